"""Turns an admitted plan item into a proposal, and tells whether its target has another one or is left alone. Pure."""

import hashlib
import re
from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta
from itertools import takewhile

from gpuwatch.act.execute.policy import ExecutePolicy, doubled
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.plan.guards import selected
from gpuwatch.facts.model.cluster import Pod
from gpuwatch.facts.model.decision import ActionKind, Candidate, Finding, Mode, PlanItem, Snapshot
from gpuwatch.facts.model.remediation import ObjectRef, Phase, Proposal, Remediation, misplaced

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


TAKEN_BACK = "taken_back"
"""In `Remediation.verified`: its owner, or a person who works on the Node, undid the action."""

FAILURE_BACKOFF_MAX_SECONDS = 16 * 86_400
"""A target whose Remediations fail is left alone for a day, then two, and at most for so long: five failures in a row
are no chance, and one try in two weeks is no burden."""


def left_alone(
    proposal: Proposal, known: Iterable[Remediation], seen_at: datetime, now: datetime, policy: ExecutePolicy
) -> str:
    """Why this may not be proposed now; '' if it may. seen_at: time of the facts. Facts from before the end of the last
    Remediation may show the fault that it repaired."""
    ended = []
    for each in known:
        if not same_target(proposal, each.proposal):
            continue
        if each.phase.open:
            return f"{each.name} is {each.phase}."
        if each.proposal.action is proposal.action:
            ended.append(each)
    if not ended:
        return ""
    ended.sort(key=lambda each: each.changed_at)
    last = ended[-1]
    quiet_until = last.changed_at + timedelta(seconds=_quiet_seconds(ended, proposal, policy))
    if now < quiet_until:
        return f"{last.name} is {last.phase}; it is left alone until {quiet_until:%Y-%m-%d %H:%M %Z}."
    return f"Its facts are from before {last.name} ended." if seen_at <= last.changed_at else ""


def _quiet_seconds(ended: list[Remediation], proposal: Proposal, policy: ExecutePolicy) -> int:
    last = ended[-1]
    in_a_row = len(list(takewhile(lambda each: each.phase is last.phase, reversed(ended))))
    if _declined(last):
        return 0 if _about_more(proposal, last.proposal) else policy.rejection_backoff_seconds
    match last.phase:
        case Phase.FAILED:
            return doubled(policy.failure_backoff_seconds, in_a_row, FAILURE_BACKOFF_MAX_SECONDS)
        case Phase.OBSOLETE | Phase.REFUSED | Phase.EXPIRED:
            return doubled(policy.obsolete_backoff_seconds, in_a_row, policy.rejection_backoff_seconds)
        case Phase.SUCCEEDED if proposal.action is ActionKind.MAKE_ROOM:
            # It has little work to lose after a move, and would be the cheapest to move again and again.
            return policy.failure_backoff_seconds
        case _:
            return 0  # the last one succeeded, so this is new


def _declined(remediation: Remediation) -> bool:
    if remediation.phase is Phase.UNDONE:
        return remediation.undo_asked or remediation.verified.get(TAKEN_BACK, False)
    return remediation.phase is Phase.REJECTED


def _about_more(proposal: Proposal, declined: Proposal) -> bool:
    """Whether it names a device or a detector that the declined proposal lacked. Never for a release: the owner decided
    to keep an idle workload, whichever rule finds it."""
    if proposal.action is ActionKind.RELEASE_GANG:
        return False
    return not (set(proposal.devices) <= set(declined.devices) and set(proposal.detectors) <= set(declined.detectors))


def same_target(mine: Proposal, other: Proposal) -> bool:
    """Whether both write to one object or disrupt one Pod. A tainted Node and a gang that leaves it do not conflict."""
    if mine.action is other.action and mine.target == other.target:
        return True
    if not set(mine.objects).isdisjoint(other.objects):
        return True
    if ActionKind.TAINT_NODE in (mine.action, other.action):
        return False
    return not set(mine.pod_uids).isdisjoint(other.pod_uids)


def occupied(remediation: Remediation, others: Iterable[Remediation]) -> str:
    """Which other Remediation is acting on the same target; '' if none."""
    busy = (each for each in others if each.phase.in_flight and same_target(remediation.proposal, each.proposal))
    return next((f"Remediation {each.name} acts on {each.proposal.target}." for each in busy), "")
