"""Budgets and rates: how many GPUs may be out of service or disturbed at once, and how many actions begin an hour."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.plan.guards import Guard
from gpuwatch.facts.model.cluster import Node
from gpuwatch.facts.model.decision import ActionKind, BudgetUse, Candidate, Refusal
from gpuwatch.facts.model.remediation import ENDED, Phase, Proposal, Remediation

RATE_WINDOW = timedelta(hours=1)


def budgets(facts: PlanFacts) -> dict[str, BudgetUse]:
    """One budget per pool and per GPU model. Taints by anyone and Remediations in flight count, each GPU once."""
    harmed, elsewhere, reasons = _harm(facts)
    scopes: dict[str, list[Node]] = {}
    for node in facts.nodes.values():
        if facts.node_gpus(node):
            for scope in _scopes(facts.pool(node), node.gpu_product):
                scopes.setdefault(scope, []).append(node)
    found = {}
    for scope, members in sorted(scopes.items()):
        total = sum(facts.node_gpus(node) for node in members)
        told = (why for key in (*(node.name for node in members), scope) for why in reasons.get(key, ()))
        found[scope] = BudgetUse(
            scope=scope,
            limit_gpus=max(facts.policy.budget_min_gpus, math.floor(facts.policy.budget_ratio * total)),
            total_gpus=total,
            in_flight_gpus=sum(harmed.get(node.name, 0) for node in members) + elsewhere.get(scope, 0),
            reasons=tuple(dict.fromkeys(told)),
        )
    return found


def _scopes(pool: str, gpu_model: str) -> list[str]:
    return [f"pool/{pool or 'default'}", *([f"model/{gpu_model}"] if gpu_model else [])]


def _harm(facts: PlanFacts, claims: bool = True) -> tuple[dict[str, int], Counter[str], dict[str, list[str]]]:
    """GPUs out of service or disturbed, by Node; those whose Nodes are gone, by scope; and reasons, by either.

    claims: count Remediations before their first write, and open Nodes with our taint that have no record, too. A
    Node's harm is at most its GPUs, so a taint and the gang that moves off the Node count once.
    """
    harmed: dict[str, int] = {}
    elsewhere: Counter[str] = Counter()
    reasons: dict[str, list[str]] = {}
    for node in facts.nodes.values():
        if reason := facts.kept_free(node.name) if claims else facts.closed(node):
            harmed[node.name] = facts.node_gpus(node)
            reasons.setdefault(node.name, []).append(reason)
    for item in facts.disruptive:
        unbegun = item.began_at is None and (item.announced or (item.phase is Phase.ACTING and item.steps))
        if not claims and unbegun:
            continue
        why = f"{item.name} is {item.phase}"
        known = [name for name in item.proposal.nodes if name in facts.nodes]
        for name, gpus in _proposed(item.proposal, known, facts).items():
            harmed[name] = min(harmed.get(name, 0) + gpus, facts.node_gpus(facts.nodes[name]))
            reasons.setdefault(name, []).append(why)
        if not known:
            for scope in _scopes(item.proposal.pool, item.proposal.gpu_model):
                elsewhere[scope] += item.proposal.gpus
                reasons.setdefault(scope, []).append(why)
    return harmed, elsewhere, reasons


def _proposed(proposal: Proposal, nodes: list[str], facts: PlanFacts) -> dict[str, int]:
    """GPUs of a Remediation by Node: all GPUs of a tainted Node; a gang's spread evenly, as its Pods may be gone."""
    if proposal.action is ActionKind.TAINT_NODE:
        return {name: facts.node_gpus(facts.nodes[name]) for name in nodes}
    return {name: math.ceil(proposal.gpus / len(proposal.nodes)) for name in nodes}


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


class Ledger:
    """What is left of budgets and rates while one Plan is made, best candidates first."""

    def __init__(self, facts: PlanFacts) -> None:
        self._facts = facts
        self._budgets = budgets(facts)
        self._harmed, _, _ = _harm(facts)
        self._stands, _, _ = _harm(facts, claims=False)
        self._spent: Counter[str] = Counter()
        self._tainted: set[str] = set()
        self._begun: Counter[tuple[str, str]] = Counter()
        for item in facts.history:
            for namespace, at in _actions(item):
                if facts.snapshot.at - at < RATE_WINDOW:
                    self._begun.update(_rates(namespace, {item.proposal.pool or "default"}))
        for name in facts.unrecorded:  # nothing says since when, so each counts until it is gone
            self._begun.update(_rates("", {facts.pool(facts.nodes[name])}))

    @property
    def budgets(self) -> tuple[BudgetUse, ...]:
        return tuple(self._budgets.values())

    def charge(self, candidate: Candidate) -> tuple[Refusal, ...]:
        """Take the candidate's GPUs from its budgets, or return all reasons against it and take nothing."""
        by_node = self._by_node(candidate)
        refusals = (*self._last_nodes(candidate), *self._over_budget(by_node), *self._too_fast(candidate))
        if refusals:
            return refusals
        for scope, gpus in self._more(by_node, self._harmed).items():
            self._spent[scope] += gpus
        for name, gpus in by_node.items():
            self._harmed[name] = self._after(name, gpus, self._harmed)
        if candidate.action is ActionKind.TAINT_NODE:
            self._tainted.update(candidate.nodes)
        self._begun.update(_rates(candidate.namespace, self._pools(candidate)))
        return ()

    def _by_node(self, candidate: Candidate) -> dict[str, int]:
        facts = self._facts
        if candidate.action is ActionKind.TAINT_NODE:
            return {name: facts.node_gpus(facts.nodes[name]) for name in candidate.nodes if name in facts.nodes}
        found: Counter[str] = Counter()
        for ref in candidate.pods:
            pod = facts.pods.get(ref)
            if pod is not None and pod.node in facts.nodes:
                found[pod.node] += facts.gpus([pod])
        return dict(found)

    def _after(self, name: str, gpus: int, harmed: Mapping[str, int]) -> int:
        return min(harmed.get(name, 0) + gpus, self._facts.node_gpus(self._facts.nodes[name]))

    def _more(self, by_node: Mapping[str, int], harmed: Mapping[str, int]) -> Counter[str]:
        """By scope: GPUs that it would harm beyond those harmed already."""
        more: Counter[str] = Counter()
        for name, gpus in by_node.items():
            node = self._facts.nodes[name]
            for scope in _scopes(self._facts.pool(node), node.gpu_product):
                more[scope] += self._after(name, gpus, harmed) - harmed.get(name, 0)
        return more

    def _over_budget(self, by_node: Mapping[str, int]) -> Iterable[Refusal]:
        more, new = self._more(by_node, self._harmed), self._more(by_node, self._stands)
        scopes = [scope for scope in more if scope in self._budgets]
        if not scopes:
            yield Guard.BUDGET.refuses("The GPUs of its pool are not known, so it has no budget.")
        for scope in scopes:
            use = self._budgets[scope]
            after = use.in_flight_gpus + self._spent[scope] + more[scope]
            # Harm to GPUs that are harmed already is free. Claims do not count as harmed here, else a taint and a move
            # of one Node, both before their first write, would each let the other one pass.
            if new[scope] and after > use.limit_gpus:
                why = f" ({'; '.join(use.reasons[:3])})" if use.reasons else ""
                now = f"{use.in_flight_gpus} already are{why} and {self._spent[scope]} are planned"
                after_it = f"{after} of {use.total_gpus} GPUs would be out of service or disturbed"
                yield Guard.BUDGET.refuses(f"{scope}: {after_it} ({now}); the limit is {use.limit_gpus}.")

    def _pools(self, candidate: Candidate) -> set[str]:
        nodes = (self._facts.nodes.get(name) for name in candidate.nodes)
        return {self._facts.pool(node) for node in nodes if node is not None} or {candidate.pool or "default"}

    def _last_nodes(self, candidate: Candidate) -> Iterable[Refusal]:
        if candidate.action is not ActionKind.TAINT_NODE:
            return
        away = {*self._tainted, *self._facts.tainted_by_us, *candidate.nodes}
        must = self._facts.policy.min_pool_nodes_left
        for pool in sorted(self._pools(candidate)):
            there = self._facts.in_service.get(pool, set())
            left = len(there) - len(there & away)
            if left < must:
                reason = f"Pool {pool} would have {left} GPU Nodes in service left; {must} must stay."
                yield Guard.POOL_NODES.refuses(reason)

    def _too_fast(self, candidate: Candidate) -> Iterable[Refusal]:
        limits = {
            "all": self._facts.policy.actions_per_hour,
            "namespace": self._facts.policy.namespace_actions_per_hour,
            "pool": self._facts.policy.pool_actions_per_hour,
        }
        for kind, name in _rates(candidate.namespace, self._pools(candidate)):
            begun = self._begun[kind, name]
            if begun >= limits[kind]:
                where = f" in {kind} {name}" if name else ""
                counted = "began in the last 60 min, are planned, or left a taint without a Remediation"
                reason = f"{begun} actions{where} {counted}; {limits[kind]} may begin in an hour."
                yield Guard.RATE.refuses(reason)


def _rates(namespace: str, pools: Iterable[str]) -> list[tuple[str, str]]:
    """(kind of limit, name) of each rate that an action counts against."""
    named = [("namespace", namespace)] if namespace else []
    return [("all", ""), *named, *(("pool", pool) for pool in sorted(pools))]
