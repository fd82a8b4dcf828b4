"""Guards: each gives the reason against a candidate, or nothing. All of them run, so every reason is seen at once.

A guard fails closed: what it cannot know is a reason. Names are stable; they stand in the Plan and in the docs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from gpuwatch.kube import keys
from gpuwatch.model.cluster import DisruptionBudget, OwnerStatus, Pod
from gpuwatch.model.decision import ActionKind, Candidate, Refusal, Score, Verdict
from gpuwatch.plan.facts import Facts
from gpuwatch.plan.policy import PlanPolicy


@dataclass(frozen=True, slots=True)
class Case:
    """What a guard looks at: one candidate, what it is worth, and the world around it."""

    candidate: Candidate
    score: Score
    facts: Facts
    policy: PlanPolicy


Guard = Callable[[Case], str | None]

# Frameworks whose Pods nothing may act on automatically: a released member is gone for good, or there is no way to
# restore it (Kueue does not recreate a plain group's Pods; Argo's suspend holds new steps back only).
_REPORT_ONLY = frozenset({"Kueue pod group", "Argo Workflow", "Tekton", "Spark"})


def guard(case: Case) -> tuple[Refusal, ...]:
    """All reasons against the candidate; empty means that it may be done as far as its budget goes."""
    refusals = []
    for name, check in GUARDS.items():
        reason = check(case)
        if reason:
            refusals.append(Refusal(guard=name, reason=reason))
    return tuple(refusals)


def _cluster_known(case: Case) -> str | None:
    if not case.facts.snapshot.cluster.known:
        return "No cluster state was read, so nobody knows what would be disturbed."
    return None


def _node_known(case: Case) -> str | None:
    missing = sorted(name for name in case.candidate.nodes if name not in case.facts.nodes)
    if missing or not case.candidate.nodes:
        return f"Telemetry's host is no Node of this cluster ({', '.join(missing) or 'no host given'})."
    return None


def _evidence(case: Case) -> str | None:
    findings = [case.facts.findings_by_id[name] for name in case.candidate.findings]
    if any(finding.verdict is Verdict.UNKNOWN for finding in findings):
        return "A finding behind it is UNKNOWN."
    best = max((finding.confidence_ratio for finding in findings), default=0.0)
    if best < case.policy.min_confidence_ratio:
        return f"The best evidence has a confidence of {best:.2f}; {case.policy.min_confidence_ratio:.2f} is needed."
    return None


def _worth_it(case: Case) -> str | None:
    if not math.isfinite(case.score.value):
        return "The score is not a finite number."
    if case.score.value <= case.policy.min_score:
        return (
            f"It gains {case.score.gained_gpu_hours * case.score.confidence_ratio:.1f} GPU-hours and disturbs "
            f"{case.score.disrupted_gpu_hours:.1f} in {case.score.horizon_hours:g} h."
        )
    return None


def _annotated(candidate: Candidate, facts: Facts) -> Iterable[tuple[str, str, str]]:
    """(object, key, value) of gpuwatch's keys on every Pod, owner, Namespace and Node that is touched."""
    spaces = {candidate.namespace} if candidate.namespace else set()
    objects: list[tuple[str, dict[str, str]]] = []
    for ref in candidate.pods:
        pod = facts.pods.get(ref)
        if pod is not None:
            spaces.add(pod.namespace)
            objects.append((f"Pod {ref}", {**pod.labels, **pod.annotations}))
            owner = facts.workloads.get(pod.workload)
            if owner is not None:
                objects.append((owner.id, {**owner.labels, **owner.annotations}))
    objects += [(f"Namespace {name}", facts.namespaces.get(name, {})) for name in sorted(spaces)]
    for name in candidate.nodes:
        node = facts.nodes.get(name)
        if node is not None:
            objects.append((f"Node {name}", {**node.labels, **node.annotations}))
    for where, found in dict.fromkeys((name, tuple(sorted(values.items()))) for name, values in objects):
        yield from ((where, key, value) for key, value in found)


def _opted_out(case: Case) -> str | None:
    for where, key, value in _annotated(case.candidate, case.facts):
        if key == keys.OPT_OUT and value.lower() != "false":
            return f"{where} opted out with {keys.OPT_OUT}={value}."
        if key == keys.OBJECT and value:
            return f"{where} objects: {value}"
    return None


def _snoozed(case: Case) -> str | None:
    for where, key, value in _annotated(case.candidate, case.facts):
        if key != keys.SNOOZE_UNTIL:
            continue
        try:
            until = datetime.fromisoformat(value)
        except ValueError:
            return f"{where} has {keys.SNOOZE_UNTIL}={value!r}, which is no time; write it as 2026-01-31T18:00:00Z."
        if until.tzinfo is None:
            return f"{where} has {keys.SNOOZE_UNTIL}={value!r} without a time zone; add Z or an offset."
        if until > case.facts.snapshot.at:
            return f"{where} is snoozed until {value}."
    return None


def _owner(case: Case) -> str | None:
    if case.candidate.action is ActionKind.TAINT_NODE:
        return None  # no Pod is touched by a NoSchedule taint
    reasons = {
        OwnerStatus.BARE: "has no controller and would be gone for good",
        OwnerStatus.FORBIDDEN: "has an owner that gpuwatch may not read",
        OwnerStatus.MISSING: "has an owner that no longer exists",
        OwnerStatus.UNKNOWN_KIND: "is controlled by a kind that gpuwatch does not know",
        OwnerStatus.STATIC: "is a static Pod of its Node",
        OwnerStatus.DAEMON: "belongs to a DaemonSet and would come back in place",
    }
    for ref in case.candidate.pods:
        pod = case.facts.pods.get(ref)
        if pod is None:
            return f"Pod {ref} is known from telemetry only."
        owner = case.facts.workloads.get(pod.workload)
        if owner is None:
            return f"The owner of Pod {ref} was not read."
        if owner.status in reasons:
            return f"Pod {ref} {reasons[owner.status]} ({owner.id})."
    return None if case.candidate.pods else "No Pod of it was found."


def _framework(case: Case) -> str | None:
    gang = case.facts.gangs.get(case.candidate.target.name)
    if case.candidate.action is not ActionKind.TAINT_NODE and gang is not None and gang.framework in _REPORT_ONLY:
        return f"{gang.framework} gangs are reported, never acted on: they cannot be restored."
    return None


def _whole_group_idle(case: Case) -> str | None:
    if case.candidate.action is not ActionKind.RELEASE_GANG:
        return None
    working = [
        pod.ref for pod in case.facts.members.get(case.candidate.target.name, ()) if pod.ref not in case.facts.idle_pods
    ]
    if working:
        return f"{len(working)} of its Pods are not proven idle, such as {sorted(working)[0]}."
    return None


def _attribution(case: Case) -> str | None:
    if case.candidate.action is not ActionKind.RELEASE_GANG:
        return None
    shared = [name for name in case.candidate.devices if name in case.facts.devices and case.facts.devices[name].shared]
    if shared:
        return f"Device {shared[0]} is shared by several Pods, so its telemetry does not tell who is idle."
    return None


def _priority(case: Case) -> str | None:
    if case.candidate.action is ActionKind.TAINT_NODE:
        return None
    for ref in case.candidate.pods:
        pod = case.facts.pods.get(ref)
        if pod is not None and pod.priority >= case.policy.protected_priority:
            return f"Pod {ref} has priority {pod.priority}, at or above {case.policy.protected_priority}."
    return None


def _selected(budget: DisruptionBudget, pod: Pod) -> bool:
    if budget.namespace != pod.namespace:
        return False
    if budget.selects_all:
        return True
    for key, operator, values in budget.match_expressions:
        present = key in pod.labels
        held = {
            "In": present and pod.labels.get(key) in values,
            "NotIn": not present or pod.labels.get(key) not in values,
            "Exists": present,
            "DoesNotExist": not present,
        }.get(operator, True)  # an operator we do not know protects the Pod
        if not held:
            return False
    has_selector = bool(budget.match_labels or budget.match_expressions)
    return has_selector and all(pod.labels.get(key) == value for key, value in budget.match_labels.items())


def _disruption_budget(case: Case) -> str | None:
    if case.candidate.action is ActionKind.TAINT_NODE:
        return None
    pods = [case.facts.pods[ref] for ref in case.candidate.pods if ref in case.facts.pods]
    for budget in case.facts.snapshot.cluster.budgets:
        hit = sum(1 for pod in pods if _selected(budget, pod))
        if hit > budget.disruptions_allowed:
            return (
                f"PodDisruptionBudget {budget.namespace}/{budget.name} allows {budget.disruptions_allowed} "
                f"disruptions; this needs {hit}."
            )
    return None


def _already_fenced(case: Case) -> str | None:
    if case.candidate.action is not ActionKind.TAINT_NODE:
        return None
    for name in case.candidate.nodes:
        node = case.facts.nodes.get(name)
        reason = case.facts.fenced(node) if node is not None else ""
        if reason:
            return f"{reason} already; nothing is left to fence, and what others fenced is theirs."
    return None


def _lands(case: Case) -> str | None:
    """Capacity only: enough free accelerators of each resource on Nodes in service, the candidate's Nodes left out."""
    if case.candidate.action is not ActionKind.EVICT_GANG:
        return None
    sick = {finding.node for finding in case.facts.findings if finding.verdict is Verdict.DEGRADED}
    wanted: dict[str, int] = {}
    moved = set(case.candidate.pods)
    for ref in case.candidate.pods:
        pod = case.facts.pods.get(ref)
        for resource, count in (pod.accelerators if pod else {}).items():
            wanted[resource] = wanted.get(resource, 0) + count
    for resource, count in sorted(wanted.items()):
        free = 0
        for node in case.facts.nodes.values():
            if node.name in sick or case.facts.fenced(node):
                continue
            used = sum(
                pod.accelerators.get(resource, 0)
                for pod in case.facts.snapshot.cluster.pods
                if pod.node == node.name and pod.ref not in moved and pod.phase in ("Running", "Pending")
            )
            free += max(node.allocatable.get(resource, 0) - used, 0)
        if free < count:
            return f"It needs {count} {resource}, and Nodes in service have {free} free: it would land nowhere."
    return None


GUARDS: dict[str, Guard] = {
    "cluster_known": _cluster_known,
    "node_known": _node_known,
    "evidence": _evidence,
    "worth_it": _worth_it,
    "opted_out": _opted_out,
    "snoozed": _snoozed,
    "owner": _owner,
    "framework": _framework,
    "whole_group_idle": _whole_group_idle,
    "attribution": _attribution,
    "priority": _priority,
    "disruption_budget": _disruption_budget,
    "already_fenced": _already_fenced,
    "lands": _lands,
}
