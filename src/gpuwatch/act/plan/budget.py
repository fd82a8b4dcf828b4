"""Limits: Nodes out of service, GPUs that moves disturb, and actions that begin in an hour.

Two ledgers: a taint takes a Node out of service, and a move disturbs GPUs that work. A release takes no capacity, so it
has rates only.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from gpuwatch.act.plan.demand import on_demand
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.plan.guards import Guard
from gpuwatch.act.plan.policy import SMALL_POOL_NODES
from gpuwatch.facts.model.cluster import Node
from gpuwatch.facts.model.decision import MOVES, ActionKind, BudgetUse, Candidate, Refusal, Severity
from gpuwatch.facts.model.grouping import grouped
from gpuwatch.facts.model.remediation import ENDED, Phase, Proposal, Remediation
from gpuwatch.facts.model.telemetry import PodRef
from gpuwatch.judge.reclaim import being_changed

RATE_WINDOW = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class _Outage:
    """A Node that is out of service, or is about to be. announced: its taint, if that has not begun."""

    scopes: tuple[str, ...]
    why: str
    announced: Proposal | None = None


def budgets(facts: PlanFacts) -> dict[str, BudgetUse]:
    """The limits of each pool and GPU model, and what counts against them, whoever caused it."""
    members = grouped(
        ((scope, node) for node in facts.nodes.values() if facts.node_gpus(node) for scope in _of(node, facts)),
        lambda pair: pair[0],
    )
    outages, moving = _outages(facts), _moving(facts)
    found = {}
    for scope, pairs in sorted(members.items()):
        gpus = [facts.node_gpus(node) for _, node in pairs]
        ratio = facts.policy.budget_ratio if len(pairs) >= SMALL_POOL_NODES else 0.0
        out = [each.why for each in outages.values() if scope in each.scopes]
        found[scope] = BudgetUse(
            scope=scope,
            limit_nodes=max(math.floor(ratio * len(pairs)), 1),
            total_nodes=len(pairs),
            out_nodes=len(out),
            limit_gpus=max(math.floor(ratio * sum(gpus)), *gpus),
            moving_gpus=moving[scope],
            reasons=tuple(dict.fromkeys(out)),
        )
    return found


def _scopes(pool: str, gpu_model: str) -> tuple[str, ...]:
    return (f"pool/{pool or 'default'}", *([f"model/{gpu_model}"] if gpu_model else []))


def _of(node: Node, facts: PlanFacts) -> tuple[str, ...]:
    return _scopes(facts.pool(node), node.gpu_product)


def _outages(facts: PlanFacts) -> dict[str, _Outage]:
    """By Node: gpuwatch's taints, with a record or without, and what others took out of service within a day, but for a
    planned change."""
    found = {}
    for item in facts.disruptive:
        for name in item.proposal.nodes if item.proposal.action is ActionKind.TAINT_NODE else ():
            node, announced = facts.nodes.get(name), item.proposal if item.announced else None
            scopes = _of(node, facts) if node else _scopes(item.proposal.pool, item.proposal.gpu_model)
            found[name] = _Outage(scopes, f"{item.name} is {item.phase}", announced)
    for node in facts.nodes.values():
        ours = node.name in found and found[node.name].announced is None
        counts = node.name in facts.unrecorded or not (facts.closed_for_long(node) or being_changed(node))
        if facts.node_gpus(node) and not ours and counts and (why := facts.kept_free(node.name)):
            found[node.name] = _Outage(_of(node, facts), why)
    return found


def _moving(facts: PlanFacts) -> Counter[str]:
    """By scope: GPUs in service of moves whose Pods do not run again yet, or that are about to begin. They are spread
    evenly over the move's Nodes, as its Pods may be gone."""
    found: Counter[str] = Counter()
    for item in facts.disruptive:
        proposal = item.proposal
        if proposal.action in MOVES:
            known = [facts.nodes[name] for name in proposal.nodes if name in facts.nodes]
            for node in (each for each in known if not facts.closed(each)):
                found.update(dict.fromkeys(_of(node, facts), math.ceil(proposal.gpus / len(proposal.nodes))))
            if not known:
                found.update(dict.fromkeys(_scopes(proposal.pool, proposal.gpu_model), proposal.gpus))
    return found


def outranks(taint: Candidate | Proposal, other: Proposal, facts: PlanFacts) -> bool:
    """Whether it is a taint of a worse fault than the other one, which then gives way while it is only announced. One
    of whose findings none is there any more gives way to nothing."""

    def worst(findings: Iterable[str]) -> int:
        found = (facts.findings_by_id[name].severity for name in findings if name in facts.findings_by_id)
        return max(map(list(Severity).index, found), default=-1)

    return taint.action is ActionKind.TAINT_NODE and worst(taint.findings) > worst(other.findings) >= 0


def acted_at(remediation: Remediation) -> datetime | None:
    """When it acted, for the rates: at its first write; before that, when it entered the phase Acting. None where it
    has not acted, such as one that was given up before any write. One in flight without known steps may have written at
    any time since it was proposed."""
    if remediation.began_at is None and remediation.phase is Phase.ACTING and remediation.history:
        return remediation.history[-1].at
    unknown = remediation.phase.in_flight and not remediation.steps
    return remediation.proposal.created_at if unknown else remediation.began_at


def _actions(item: Remediation) -> Iterable[tuple[str, datetime]]:
    """Namespace and time of all that it did: of its action, and of each gang that its NoExecute ended."""
    if (at := acted_at(item)) is not None:
        yield item.proposal.namespace, at
    for step in item.steps:
        if step.begun_at is not None and ENDED in step.parameters:
            yield from ((namespace, step.begun_at) for namespace in step.parameters[ENDED].split(","))


_UNKNOWN = "The GPUs of its pool are not known, so it has no limit."
_STANDS = datetime.max.replace(tzinfo=UTC)
"""Until when a taint without a Remediation counts: nothing says since when it stands."""


class Ledger:
    """What is left of limits and rates while one Plan is made, best candidates first."""

    def __init__(self, facts: PlanFacts) -> None:
        self._facts = facts
        self._budgets = budgets(facts)
        self._outages = _outages(facts)
        self._moving = _moving(facts)
        self._tainted: set[str] = set()
        # By rate: until when an action counts in it, and the Pod that a release makes room for.
        self._begun: defaultdict[tuple[str, str], list[tuple[datetime, PodRef]]] = defaultdict(list)
        for item in facts.history:
            for namespace, at in _actions(item):
                if facts.snapshot.at - at < RATE_WINDOW:
                    self._begin(namespace, {item.proposal.pool or "default"}, at + RATE_WINDOW, item.proposal.waiter)
        for name in facts.unrecorded:
            self._begin("", {facts.pool(facts.nodes[name])}, _STANDS)

    @property
    def budgets(self) -> tuple[BudgetUse, ...]:
        return tuple(self._budgets.values())

    def charge(self, candidate: Candidate) -> tuple[Refusal, ...]:
        """Charge the candidate to its ledger and its rates, or return all reasons against it and charge nothing."""
        refusals, moved = [*self._too_fast(candidate)], Counter[str]()
        if candidate.action is ActionKind.TAINT_NODE:
            refusals = [*self._last_nodes(candidate), *self._out_of_service(candidate), *refusals]
        elif candidate.action in MOVES:
            moved = self._moved(candidate)
            refusals = [*self._disturbed(moved), *refusals]
        if refusals:
            return tuple(refusals)
        if candidate.action is ActionKind.TAINT_NODE:
            self._tainted.update(candidate.nodes)
        self._moving.update(moved)
        until = self._facts.snapshot.at + RATE_WINDOW
        self._begin(candidate.namespace, self._pools(candidate), until, candidate.waiter)
        return ()

    def _begin(self, namespace: str, pools: Iterable[str], until: datetime, waiter: str = "") -> None:
        for rate in _rates(namespace, pools):
            self._begun[rate].append((until, waiter))

    def _out_of_service(self, candidate: Candidate) -> Iterable[Refusal]:
        """A Node that is out of service already, or has our taint, takes nothing more."""
        facts = self._facts
        scopes = {scope for name in candidate.nodes for scope in self._scopes_of(name) if not facts.kept_free(name)}
        if not any(name in facts.nodes for name in candidate.nodes):
            yield Guard.BUDGET.refuses(_UNKNOWN)
        counted = {
            name: each
            for name, each in self._outages.items()
            if each.announced is None or not outranks(candidate, each.announced, facts)
        }
        for scope in sorted(scopes):
            planned = {name for name in self._tainted if scope in self._scopes_of(name)}
            out = {name: each.why for name, each in counted.items() if scope in each.scopes}
            use, after = self._budgets.get(scope), len({*out, *planned, *candidate.nodes})
            if use is None:
                yield Guard.BUDGET.refuses(_UNKNOWN)
            elif after > use.limit_nodes:
                why = "; ".join([*list(out.values())[:3], *([f"{len(planned)} are planned"] if planned else [])])
                would = f"{after} of {use.total_nodes} Nodes would be out of service ({why})"
                yield Guard.BUDGET.refuses(f"{scope}: {would}; the limit is {use.limit_nodes}.")

    def _scopes_of(self, name: str) -> tuple[str, ...]:
        node = self._facts.nodes.get(name)
        return _of(node, self._facts) if node is not None else ()

    def _moved(self, candidate: Candidate) -> Counter[str]:
        """By scope: GPUs of the Pods that it moves. Those of a Node that is out of service, or is tainted before, are
        charged as an outage."""
        found: Counter[str] = Counter()
        for name, pods in grouped(self._facts.pods_of(candidate), lambda pod: pod.node).items():
            out = name in self._tainted or (name in self._facts.nodes and self._facts.closed(self._facts.nodes[name]))
            found.update(dict.fromkeys(self._scopes_of(name), 0 if out else self._facts.gpus(pods)))
        return found

    def _disturbed(self, moved: Mapping[str, int]) -> Iterable[Refusal]:
        if not moved:
            yield Guard.BUDGET.refuses(_UNKNOWN)
        for scope, gpus in moved.items():
            use, now = self._budgets.get(scope), self._moving[scope]
            if use is None:
                yield Guard.BUDGET.refuses(_UNKNOWN)
            elif gpus and now + gpus > use.limit_gpus:
                would = f"moves would disturb {now + gpus} GPUs at once, {now} of them by others"
                yield Guard.BUDGET.refuses(f"{scope}: {would}; the limit is {use.limit_gpus}.")

    def _pools(self, candidate: Candidate) -> set[str]:
        nodes = (self._facts.nodes.get(name) for name in candidate.nodes)
        return {self._facts.pool(node) for node in nodes if node is not None} or {candidate.pool or "default"}

    def _last_nodes(self, candidate: Candidate) -> Iterable[Refusal]:
        away = {*self._tainted, *self._facts.tainted_by_us, *candidate.nodes}
        must = self._facts.policy.min_pool_nodes_left
        for pool in sorted(self._pools(candidate)):
            there = self._facts.in_service.get(pool, set())
            left = len(there) - len(there & away)
            if left < must:
                reason = f"Pool {pool} would have {left} GPU Nodes in service left; {must} must stay."
                yield Guard.POOL_NODES.refuses(reason)

    def _too_fast(self, candidate: Candidate) -> Iterable[Refusal]:
        """Releases that make room for one Pod are done all or none. They may begin where nothing else began lately,
        even if they are more than the rate."""
        policy = self._facts.policy
        limits = {
            "all": policy.actions_per_hour,
            "namespace": policy.namespace_actions_per_hour,
            "pool": policy.pool_actions_per_hour,
        }
        together = candidate.waiter and on_demand(candidate.detectors, policy)
        for kind, name in _rates(candidate.namespace, self._pools(candidate)):
            begun, limit = sorted(self._begun[kind, name]), limits[kind]
            others = [until for until, waiter in begun if not together or waiter != candidate.waiter]
            if len(begun) < limit or (limit and not others):
                continue
            where = f" in {kind} {name}" if name else ""
            counted = "began in the last 60 min, are planned, or left a taint without a Remediation"
            reason = f"{len(begun)} actions{where} {counted}; {limit} may begin in an hour."
            if limit:
                reason += f" The next may begin {_from(begun[len(begun) - limit][0])}."
            if limit and together:
                what = f"All releases that make room for {candidate.waiter} may begin together"
                reason += f" {what} {_from(others[-1])}, however many they are."
            when = f"Wait until {begun[len(begun) - limit][0]:%H:%M %Z}: the rate is {limit} an hour." if limit else ""
            stands = bool(limit) and begun[len(begun) - limit][0] == _STANDS
            yield Guard.RATE.refuses(reason, "" if stands else when)


def _from(until: datetime) -> str:
    return "once that taint is gone" if until == _STANDS else f"at {until:%H:%M %Z} at the earliest"


def _rates(namespace: str, pools: Iterable[str]) -> list[tuple[str, str]]:
    """(kind of limit, name) of each rate that an action counts against."""
    named = [("namespace", namespace)] if namespace else []
    return [("all", ""), *named, *(("pool", pool) for pool in sorted(pools))]
