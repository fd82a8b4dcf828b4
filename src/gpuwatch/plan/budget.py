"""Budgets and the brake: how much may be out of service or disturbed at once, whoever caused it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from gpuwatch.model.cluster import Node
from gpuwatch.model.decision import ActionKind, BudgetUse, Candidate, Family, Refusal, Severity, Verdict
from gpuwatch.model.telemetry import DeviceId, GapKind
from gpuwatch.plan.facts import Facts
from gpuwatch.plan.policy import PlanPolicy


def budgets(facts: Facts, policy: PlanPolicy) -> dict[str, BudgetUse]:
    """One budget per pool and per GPU model, with every fence that is already in place counted against it."""
    scopes: dict[str, list[Node]] = {}
    for node in facts.nodes.values():
        if facts.node_gpus(node):
            for scope in _scopes(facts.pool(node), node.gpu_product):
                scopes.setdefault(scope, []).append(node)
    return {scope: _use(scope, nodes, facts, policy) for scope, nodes in sorted(scopes.items())}


def _scopes(pool: str, gpu_model: str) -> list[str]:
    return [f"pool/{pool or 'default'}", *([f"model/{gpu_model}"] if gpu_model else [])]


def _use(scope: str, nodes: list[Node], facts: Facts, policy: PlanPolicy) -> BudgetUse:
    total = sum(facts.node_gpus(node) for node in nodes)
    fenced = [(node, reason) for node in nodes if (reason := facts.fenced(node))]
    return BudgetUse(
        scope=scope,
        limit_gpus=max(policy.budget_min_gpus, math.floor(policy.budget_ratio * total)),
        total_gpus=total,
        in_flight_gpus=sum(facts.node_gpus(node) for node, _ in fenced),
        reasons=tuple(reason for _, reason in fenced),
    )


class Ledger:
    """What is left of the budgets while one Plan is drawn up, best candidates first.

    The GPUs of a Node that one action fences are not counted again for the gang that moves off it.
    """

    def __init__(self, facts: Facts, policy: PlanPolicy) -> None:
        self._facts = facts
        self._policy = policy
        self._budgets = budgets(facts, policy)
        self._spent: dict[str, int] = dict.fromkeys(self._budgets, 0)
        self._charged: set[DeviceId] = set()
        self._fenced: set[str] = set()

    @property
    def budgets(self) -> tuple[BudgetUse, ...]:
        return tuple(self._budgets.values())

    def charge(self, candidate: Candidate) -> Refusal | None:
        """Take the candidate's GPUs from its budgets, or say which one is used up and take nothing."""
        last = self._last_nodes(candidate)
        if last:
            return Refusal(guard="pool_nodes", reason=last)
        gpus = self._gpus(candidate)
        scopes = [scope for scope in _scopes(candidate.pool, candidate.gpu_model) if scope in self._budgets]
        if not scopes:
            return Refusal(guard="budget", reason="The GPUs of its pool are not known, so it has no budget.")
        for scope in scopes:
            use = self._budgets[scope]
            after = use.in_flight_gpus + self._spent[scope] + gpus
            if after > use.limit_gpus:
                why = f" ({'; '.join(use.reasons[:3])})" if use.reasons else ""
                return Refusal(
                    guard="budget",
                    reason=f"{scope}: {after} of {use.total_gpus} GPUs would be out of service or disturbed; "
                    f"the limit is {use.limit_gpus}, {use.in_flight_gpus} already are{why} "
                    f"and {self._spent[scope]} are planned.",
                )
        for scope in scopes:
            self._spent[scope] += gpus
        self._charged.update(self._devices(candidate))
        if candidate.action is ActionKind.TAINT_NODE:
            self._fenced.update(candidate.nodes)
        return None

    def _devices(self, candidate: Candidate) -> set[DeviceId]:
        if candidate.action is ActionKind.TAINT_NODE:
            return {d.id for name in candidate.nodes for d in self._facts.devices_of_node.get(name, ())}
        pods = set(candidate.pods)
        return {d.id for d in self._facts.devices.values() if pods.intersection(d.holders)}

    def _gpus(self, candidate: Candidate) -> int:
        return max(candidate.gpus - len(self._devices(candidate) & self._charged), 0)

    def _last_nodes(self, candidate: Candidate) -> str:
        if candidate.action is not ActionKind.TAINT_NODE:
            return ""
        pool = [node for node in self._facts.nodes.values() if self._facts.pool(node) == candidate.pool]
        left = [
            node.name
            for node in pool
            if not self._facts.fenced(node) and node.name not in self._fenced and node.name not in candidate.nodes
        ]
        if len(left) >= self._policy.min_pool_nodes_left:
            return ""
        must = self._policy.min_pool_nodes_left
        return f"Pool {candidate.pool} would have {len(left)} Nodes in service left; {must} must stay."


def brake(facts: Facts, policy: PlanPolicy) -> str:
    """Why nothing at all may be done now; '' when the picture looks plausible."""
    present = [device for device in facts.snapshot.devices if device.present]
    known = len(facts.snapshot.devices)
    if not known:
        return "Telemetry shows no device at all."
    partial = next((gap for gap in facts.snapshot.gaps if gap.kind is GapKind.PARTIAL), None)
    if partial is not None:
        return f"Telemetry answered in part only: {partial.detail}"
    if any(
        finding.verdict is Verdict.UNKNOWN and finding.subject.name == "fleet" and finding.severity is Severity.CRITICAL
        for finding in facts.findings
    ):
        return "Telemetry of the fleet as a whole is missing or stale."
    if len(present) < policy.min_coverage_ratio * known:
        return f"Only {len(present)} of {known} known devices report."
    sick = _devices(facts, Family.HEALTH, Verdict.DEGRADED)
    if len(sick) >= policy.storm_min_gpus and len(sick) > policy.storm_ratio * known:
        return f"{len(sick)} of {known} devices look degraded at once, more than {policy.storm_ratio:.0%}."
    held = {device.id for device in present if device.holders}
    idle = _devices(facts, Family.IDLE, Verdict.IDLE) & held
    if len(idle) >= policy.storm_min_gpus and len(idle) > policy.idle_storm_ratio * len(held):
        return f"{len(idle)} of {len(held)} held devices look idle at once, more than {policy.idle_storm_ratio:.0%}."
    return ""


def _devices(facts: Facts, family: Family, verdict: Verdict) -> set[DeviceId]:
    chosen: Iterable[tuple[DeviceId, ...]] = (
        finding.devices for finding in facts.findings if finding.family is family and finding.verdict is verdict
    )
    return {device for devices in chosen for device in devices}
