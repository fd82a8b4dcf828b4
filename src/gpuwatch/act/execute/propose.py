"""Turns an admitted plan item into a proposal. Pure."""

import hashlib
import re
from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta

from gpuwatch.act.execute.policy import ExecutePolicy
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.plan.guards import selected
from gpuwatch.facts.model.cluster import Pod
from gpuwatch.facts.model.decision import ActionKind, Candidate, Finding, Mode, PlanItem, Snapshot
from gpuwatch.facts.model.remediation import ObjectRef, Proposal, Remediation, misplaced

_EVIDENCE = 20
"""Most facts that a proposal carries, the strongest findings' first; it keeps the API object small."""


def propose(
    item: PlanItem,
    snapshot: Snapshot,
    findings: tuple[Finding, ...],
    now: datetime,
    policy: ExecutePolicy,
    taken: Collection[str] = (),
) -> Remediation | None:
    """The Remediation of an admitted item. None if the mode is observe, a guard refused it, a later time is cheaper,
    its target has no uid, or it spans Namespaces.

    taken: names of the stored Remediations. The new name is made of the action, the target's uid, the day and, from the
    second of a day on, a number. Replicas with the same knowledge make the same name; a replica that knows of fewer
    makes a name that is taken, so its create fails.
    """
    if not item.admitted or item.mode is Mode.OBSERVE:
        return None
    # It is carried out after the notice period.
    if item.timing.at is not None and item.timing.at > now + timedelta(seconds=policy.notice_period_seconds):
        return None
    candidate, facts = item.candidate, PlanFacts(snapshot=snapshot, findings=findings)
    pods = [facts.pods[ref] for ref in candidate.pods if ref in facts.pods]
    main = _main(candidate, pods, facts)
    behind = [facts.findings_by_id[name] for name in candidate.findings if name in facts.findings_by_id]
    acting = candidate.action is not ActionKind.TAINT_NODE
    if (
        main is None
        or not (behind or candidate.reason)
        or (acting and (len(pods) < len(candidate.pods) or not all(p.uid for p in pods)))
    ):
        return None
    proposal = Proposal(
        action=candidate.action,
        target=str(candidate.target),
        reason=candidate.reason or _sentence(behind[0], len(behind) - 1),
        findings=candidate.findings,
        detectors=candidate.detectors or tuple(dict.fromkeys(str(finding.kind) for finding in behind)),
        devices=candidate.devices,
        pods=candidate.pods if acting else (),
        pod_uids=tuple(pod.uid for pod in pods) if acting else (),
        nodes=candidate.nodes,
        objects=(main,),
        score=item.score,
        mode=item.mode,
        created_at=now,
        expires_at=now + timedelta(seconds=policy.approval_timeout_seconds),
        namespace=candidate.namespace,
        pool=candidate.pool,
        gpu_model=candidate.gpu_model,
        gpus=candidate.gpus,
        framework=next((facts.gangs[pod.gang].framework for pod in pods if pod.gang in facts.gangs), ""),
        waiter=candidate.waiter,
        evidence=tuple(fact for finding in behind for fact in finding.evidence)[:_EVIDENCE],
        room=item.room,
        budgets=_budgets(pods, facts) if acting else {},
    )
    name = _name(candidate, main, now)
    numbered = (name, *(f"{name}-{number}" for number in range(2, len(taken) + 2)))
    found = Remediation(name=next(each for each in numbered if each not in taken), proposal=proposal)
    return None if misplaced(found, found.namespace) else found


def _budgets(pods: Collection[Pod], facts: PlanFacts) -> dict[str, int]:
    counts = ((budget.name, sum(selected(budget, pod) for pod in pods)) for budget in facts.snapshot.cluster.budgets)
    return {name: count for name, count in counts if count}


def _main(candidate: Candidate, pods: Iterable[Pod], facts: PlanFacts) -> ObjectRef | None:
    """The Node to taint, or the top owner of the Pods; None if there is not exactly one, or it has no uid."""
    if candidate.action is ActionKind.TAINT_NODE:
        node = facts.nodes.get(candidate.nodes[0]) if len(candidate.nodes) == 1 else None
        return ObjectRef("v1", "Node", node.name, "", node.uid) if node is not None and node.uid else None
    owners = {pod.workload for pod in pods}
    owner = facts.workloads.get(owners.pop()) if len(owners) == 1 else None
    if owner is None or not owner.uid:
        return None
    return ObjectRef(owner.api_version, owner.kind, owner.name, owner.namespace, owner.uid)


def _name(candidate: Candidate, main: ObjectRef, now: datetime) -> str:
    day = now.astimezone(UTC).strftime("%Y%m%d")
    # A gang may be only a part of its owner.
    digest = hashlib.sha256(f"{candidate.action}|{main.uid}|{candidate.target}".encode()).hexdigest()[:10]
    readable = re.sub(r"[^a-z0-9]+", "-", f"{candidate.action}-{main.name}".lower())[:63].strip("-")
    return f"{readable}-{digest}-{day}"


def _sentence(finding: Finding, more: int) -> str:
    beside = f" (and {more} more findings)" if more else ""
    said = finding.summary[:1].upper() + finding.summary[1:].rstrip(".")
    return f"{said}{beside}."
