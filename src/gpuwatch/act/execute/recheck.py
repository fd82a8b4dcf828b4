"""Rechecks a proposal on fresh facts: all guards, the same targets, and the budgets. Pure."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from gpuwatch.act.execute.policy import ExecutePolicy
from gpuwatch.act.execute.precision import BUSY_AGAIN, poor, precision_by_place
from gpuwatch.act.execute.propose import occupied
from gpuwatch.act.placement import stays
from gpuwatch.act.plan.brakes import brakes
from gpuwatch.act.plan.budget import Ledger
from gpuwatch.act.plan.draw import draw_plan, mode_of
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.plan.guards import Clearance, GuardCase, guard, guard_of, taken_back, unread
from gpuwatch.act.plan.policy import MIN_PRECISION_RATIO
from gpuwatch.act.plan.score import weigh
from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.frameworks.objects import Object
from gpuwatch.facts.model.cluster import DisruptionBudget, Pod, Taint
from gpuwatch.facts.model.decision import (
    ActionKind,
    Candidate,
    Family,
    FindingKind,
    Mode,
    PlanItem,
    Subject,
    SubjectKind,
    Verdict,
)
from gpuwatch.facts.model.plain_text import plain
from gpuwatch.facts.model.remediation import Phase, Proposal, Remediation, Step, StepKind
from gpuwatch.facts.model.telemetry import PodRef, partial_answers

MAX_FACTS_AGE_SECONDS = 600
"""Nothing is decided on older facts. Ten minutes: two cycles of five may fail before it."""


@dataclass(frozen=True, slots=True)
class LiveFacts:
    """Read right before a step that disrupts. budgets: of the Namespace `budgets_of` ('': all); None if no Pod ends."""

    objects: tuple[Object, ...] = ()
    budgets: tuple[DisruptionBudget, ...] | None = None
    budgets_of: str = ""


def read_again(facts: PlanFacts, live: LiveFacts) -> PlanFacts:
    """The same with labels, annotations, taints, cordons and PodDisruptionBudgets as they were just read."""
    read = {_named(item["kind"], item["metadata"]): item for item in live.objects}

    def updated(kind: str, item: Any) -> Any:
        now = read.get((kind, getattr(item, "namespace", ""), item.name))
        if now is None:
            return item
        noted = {key: now["metadata"].get(key) or {} for key in _READ_AGAIN}
        found: dict[str, Any] = {key: {name: plain(text) for name, text in noted[key].items()} for key in noted}
        if kind == "Node":
            spec = now.get("spec") or {}
            found["unschedulable"] = bool(spec.get("unschedulable"))
            taints = spec.get("taints") or ()
            found["taints"] = tuple(Taint(each["key"], each.get("value", ""), each["effect"]) for each in taints)
        return replace(item, **found)

    old = facts.snapshot.cluster
    others = (each for each in old.budgets if live.budgets_of not in ("", each.namespace))
    cluster = replace(
        old,
        nodes=tuple(updated("Node", each) for each in old.nodes),
        pods=tuple(updated("Pod", each) for each in old.pods),
        workloads=tuple(updated(each.kind, each) for each in old.workloads),
        namespaces=tuple(updated("Namespace", each) for each in old.namespaces),
        budgets=old.budgets if live.budgets is None else (*others, *live.budgets),
    )
    return replace(facts, snapshot=replace(facts.snapshot, cluster=cluster))


_READ_AGAIN = ("labels", "annotations")


def _named(kind: str, metadata: Object) -> tuple[str, str, str]:
    return kind, metadata.get("namespace", ""), metadata["name"]


@dataclass(frozen=True, slots=True)
class Check:
    """waiter: the Pod that would now get the freed GPUs. ended: the Namespace of each gang that NoExecute ends. due:
    when what it waits for is due, where gpuwatch itself does it. findings: those that call for it now."""

    answer: Clearance
    reason: str = ""
    verified: Mapping[str, bool] | None = None
    waiter: PodRef = ""
    ended: tuple[str, ...] = ()
    due: datetime | None = None
    findings: tuple[str, ...] = ()


def recheck(
    remediation: Remediation,
    facts: PlanFacts,
    others: tuple[Remediation, ...],
    now: datetime,
    policy: ExecutePolicy,
    step: Step | None = None,
) -> Check:
    """Checks what must hold before a step that disrupts. others: other Remediations. step: None before the first
    one."""
    proposal, begun = remediation.proposal, remediation.began_at is not None
    if remediation.rejected:
        return Check(Clearance.OBJECTED, "A person rejected it.")
    if stopped := stopped_by(facts, now):
        return Check(Clearance.WAIT, stopped)
    measured = poor(precision_by_place(others), MIN_PRECISION_RATIO)
    going = (proposal,) if proposal.action is ActionKind.MAKE_ROOM else ()
    plan = draw_plan(replace(facts, precision=measured, rechecked=going))
    asked = (proposal.action, proposal.target)
    item = next((each for each in plan.items if (each.candidate.action, str(each.candidate.target)) == asked), None)
    if item is None:
        return _gone(proposal, facts)
    if begun and step is not None:
        item = _for_step(item, step, facts)
    changed = _changed(proposal, item.candidate, facts, begun)
    if changed:
        return Check(Clearance.GONE, changed)
    whole = proposal.action is ActionKind.RELEASE_GANG or (step is not None and step.kind is StepKind.RESTART)
    if whole and (beside := others_of_owner(proposal, facts)):
        return Check(Clearance.REFUSED, beside)
    # Other items planned now are not in flight: the budget is checked below for this one alone.
    for answer in (Clearance.OBJECTED, Clearance.REFUSED, Clearance.WAIT):  # the most severe first
        for refusal in item.refusals:
            if guard_of(refusal).nature is answer:
                return Check(answer, refusal.reason)
    if item.mode is Mode.OBSERVE:
        return Check(Clearance.REFUSED, f"The mode is observe now. {item.mode_reason}")
    if not remediation.approved and Mode.SUGGEST in (item.mode, proposal.mode):
        return Check(Clearance.ASK, f"It waits for approval. {item.mode_reason}")
    ended: tuple[str, ...] = ()
    if step is not None and step.parameters.get("effect") == "NoExecute":
        refused = no_execute_refused(remediation, facts)
        if refused:
            return Check(Clearance.WAIT, refused)
        ended = tuple(each.namespace for each in ended_by_no_execute(proposal, facts))
    if not begun and item.timing.at is not None and item.timing.at > now:
        return Check(Clearance.WAIT, f"It costs less at {item.timing.at:%Y-%m-%d %H:%M %Z}: {item.timing.reason}")
    open_nodes = taken_back(item.candidate, facts)
    if open_nodes:
        return _until_shut(open_nodes[0], others, now, policy)
    full = () if begun else Ledger(facts).charge(item.candidate)
    reason = occupied(remediation, others) or " ".join(refusal.reason for refusal in full)
    if reason:
        return Check(Clearance.WAIT, reason)
    return Check(Clearance.GO, waiter=item.candidate.waiter, ended=ended, findings=item.candidate.findings)


def _until_shut(name: str, others: tuple[Remediation, ...], now: datetime, policy: ExecutePolicy) -> Check:
    """Waits for the effect that keeps Pods off this Node."""
    back = f"It waits for NoSchedule on Node {name}: the scheduler may put the Pods back there"
    taints = (each for each in others if each.proposal.action is ActionKind.TAINT_NODE and name in each.proposal.nodes)
    tainting = next((each for each in taints if each.phase.open and each.phase is not Phase.UNDOING), None)
    if tainting is None or policy.last_taint_effect == "PreferNoSchedule":
        return Check(Clearance.WAIT, f"{back}. gpuwatch does not set it now; a cordon serves as well.")
    written = [step.done_at for step in tainting.steps if step.kind is StepKind.TAINT and step.done_at is not None]
    rungs = policy.ladder.count("PreferNoSchedule")
    due = (written[0] if written else now) + timedelta(seconds=rungs * policy.taint_escalation_seconds)
    when = f", due about {due:%Y-%m-%d %H:%M %Z}" if written else f", once {tainting.name} has tainted it"
    return Check(Clearance.WAIT, f"{back}{when}.", due=due)


def stopped_by(facts: PlanFacts, now: datetime) -> str:
    """Why nothing may be decided on these facts; '' if it may."""
    age = now - facts.snapshot.at
    if age > timedelta(seconds=MAX_FACTS_AGE_SECONDS):
        return f"The facts are {age.total_seconds():.0f} s old; {MAX_FACTS_AGE_SECONDS} s is the most."
    return " ".join(each.reason for each in brakes(facts))


def rung_refused(remediation: Remediation, facts: PlanFacts, effect: str, others: tuple[Remediation, ...]) -> str:
    """Why a taint in effect may not become stricter now; '' if it may."""
    proposal = remediation.proposal
    node = _on_node(proposal)
    full = [refusal.reason for refusal in Ledger(facts).charge(node) if guard_of(refusal).each_step]
    if full or (busy := occupied(remediation, others)):
        return full[0] if full else busy
    return no_execute_refused(remediation, facts) if effect == "NoExecute" else ""


def _gone(proposal: Proposal, view: PlanFacts) -> Check:
    busy = sorted(
        finding.id
        for finding in view.findings
        if finding.family is Family.IDLE
        and finding.verdict is Verdict.BUSY
        and not set(finding.pods).isdisjoint(proposal.pods)
    )
    if proposal.action is ActionKind.RELEASE_GANG and busy:
        # A partly placed gang that is complete now was no false positive.
        wrong = {BUSY_AGAIN: True} if proposal.detectors != (FindingKind.PARTIAL_GANG,) else None
        return Check(Clearance.GONE, f"It works again ({busy[0]}).", wrong)
    if proposal.action is ActionKind.MAKE_ROOM:
        return Check(Clearance.GONE, f"{proposal.waiter} waits no more, or the Pods to move are gone.")
    unseen = _unseen(proposal, view)
    return Check(Clearance.WAIT, unseen) if unseen else Check(Clearance.GONE, "No finding calls for it any more.")


def _unseen(proposal: Proposal, view: PlanFacts) -> str:
    """Why telemetry cannot show whether the proposal still holds; '' if it can, or if the Node has left the cluster."""
    cluster = view.snapshot.cluster
    present = {device.id for device in view.snapshot.devices if device.present}
    lost = sorted(set(proposal.devices) - present)
    if lost and (not cluster.known or not {node.name for node in cluster.nodes}.isdisjoint(proposal.nodes)):
        return f"Telemetry does not show {lost[0]} now."
    for finding in view.findings:
        of_devices = str(finding.kind) in proposal.detectors and not set(finding.devices).isdisjoint(proposal.devices)
        of_pods = finding.family is Family.IDLE and not set(finding.pods).isdisjoint(proposal.pods)
        if finding.verdict is Verdict.UNKNOWN and (of_devices or of_pods):
            return f"The rule {finding.kind} has no conclusion now ({finding.id})."
    return ""


def _for_step(item: PlanItem, step: Step, facts: PlanFacts) -> PlanItem:
    """The item with the guards' refusals of this step alone: of an eviction, of its one Pod."""
    candidate = item.candidate
    if step.kind is StepKind.EVICT:
        one = tuple(ref for ref in candidate.pods if ref in facts.pods and facts.pods[ref].uid == step.target.uid)
        candidate = replace(candidate, pods=one)
    gone = step.kind is StepKind.EVICT and not candidate.pods
    asked = () if gone else guard(GuardCase(candidate, item.score, facts))
    refusals = tuple(each for each in asked if guard_of(each).each_step)
    return replace(item, candidate=candidate, refusals=refusals)


def _changed(proposal: Proposal, candidate: Candidate, facts: PlanFacts, begun: bool) -> str:
    """How the targets differ from the proposal's, by uid; '' if they do not. begun: some of its Pods may be gone."""
    if proposal.action is ActionKind.TAINT_NODE:
        known = {ref.uid for ref in proposal.objects}
        for name in proposal.nodes:
            node = facts.nodes.get(name)
            if node is None or node.uid not in known:
                return f"Node {name} is gone, or another Node has its name."
        return ""
    uids = {facts.pods[ref].uid for ref in candidate.pods if ref in facts.pods}
    if not uids or not uids <= set(proposal.pod_uids) or (not begun and uids != set(proposal.pod_uids)):
        return "Its Pods are not those of the proposal."
    return ""


def others_of_owner(proposal: Proposal, facts: PlanFacts) -> str:
    """Pods of the owner that the proposal does not name and the action would end too, in words; '' if none."""
    owners = {facts.pods[ref].workload for ref in proposal.pods if ref in facts.pods}
    if len(owners) > 1:
        return f"Its Pods have several owners ({', '.join(sorted(owners))}), and are not one target."
    gangs = {facts.pods[ref].gang for ref in proposal.pods if ref in facts.pods} - {""}
    others = sorted(
        pod.ref
        for name in owners
        for pod in (*facts.owned.get(name, ()), *facts.companions.get(name, ()))
        if pod.ref not in proposal.pods and not (pod.gang in gangs and not pod.accelerators and not pod.claims)
    )
    return f"Pod {others[0]} has the same owner and would end with it." if others else ""


def _on_node(proposal: Proposal) -> Candidate:
    return Candidate(
        action=proposal.action,
        target=Subject(SubjectKind.NODE, proposal.nodes[0]),
        findings=(),
        devices=proposal.devices,
        pods=(),
        nodes=proposal.nodes,
        pool=proposal.pool,
        gpu_model=proposal.gpu_model,
        gpus=proposal.gpus,
    )


def ended_by_no_execute(proposal: Proposal, facts: PlanFacts) -> list[Candidate]:
    """An eviction of each gang, or of each owner without one, that has Pods with accelerators on the Nodes."""
    groups: dict[str, list[Pod]] = {}
    for pod in facts.snapshot.cluster.pods:
        if pod.node in proposal.nodes and pod.phase in ("Running", "Pending"):
            groups.setdefault(pod.gang or pod.workload, []).append(pod)
    groups = {key: facts.members.get(key) or pods for key, pods in sorted(groups.items())}
    return [
        replace(
            _on_node(proposal),
            action=ActionKind.EVICT_GANG,
            target=Subject(SubjectKind.GANG if key in facts.gangs else SubjectKind.WORKLOAD, key),
            findings=tuple(name for name in proposal.findings if name in facts.findings_by_id),
            pods=tuple(sorted(pod.ref for pod in whole)),
            nodes=tuple(sorted({pod.node for pod in whole if pod.node})),
            namespace=whole[0].namespace,
            gpus=facts.gpus(whole),
        )
        for key, whole in groups.items()
    ]


def no_execute_refused(remediation: Remediation, facts: PlanFacts) -> str:
    """Why NoExecute may not end the Pods of the Nodes; '' if guards, modes and rates allow it for every gang. NoExecute
    ignores PodDisruptionBudgets. Pods without accelerators, DaemonSets' too, have to tolerate the taint for ever."""
    proposal = remediation.proposal
    if missing := unread(facts, ActionKind.EVICT_GANG):
        return missing  # the Node may have Pods that were not listed
    taints = [Taint(keys.DEGRADED, name, "NoExecute") for name in proposal.detectors]
    for pod in facts.snapshot.cluster.companions:
        if pod.node in proposal.nodes and not all(stays(pod.placement.tolerations, each) for each in taints):
            return f"Pod {pod.ref}, which has no GPU, does not tolerate the taint without a time limit. It would end."
    # Its own taint is an action too.
    ledger = Ledger(replace(facts, history=(*facts.history, remediation)))
    for candidate in ended_by_no_execute(proposal, facts):
        mode, why = mode_of(candidate, facts)
        if mode is not Mode.ENFORCE and not (mode is Mode.SUGGEST and remediation.approved):
            return f"{candidate.target} may not be moved in the mode {mode}: {why}"
        if given_up := _given_up(candidate, facts, proposal.nodes):
            return given_up
        case = GuardCase(candidate, weigh(candidate, facts)[0], facts)
        if refusals := (*guard(case), *ledger.charge(candidate)):
            return f"{candidate.target}: {refusals[0].reason}"
    return ""


def _given_up(candidate: Candidate, facts: PlanFacts, nodes: tuple[str, ...]) -> str:
    """Why the owner of these Pods would have failed for good if all of them on the Nodes were evicted; '' for none. One
    that already ends counts too: a Job's controller takes a second to count it."""
    ended = Counter(pod.workload for pod in facts.pods_of(candidate) if pod.node in nodes or pod.deleting)
    for name, count in ended.items():
        retries = facts.workloads[name].retries if name in facts.workloads else None
        if retries is not None and count > retries:
            return (
                f"{name} counts each Pod that is evicted. {count} would be, and {retries} may be before it has failed "
                "for good. A move (evict_gang) suspends it instead, which costs nothing."
            )
    return ""


class Health(StrEnum):
    PROVEN = "proven"
    SICK = "sick"
    UNKNOWN = "unknown"


def health(proposal: Proposal, facts: PlanFacts) -> tuple[Health, str]:
    """The health of tainted devices. Proof: each of the taint's detectors finds each device HEALTHY, and no finding is
    against a device of the Node. Missing data proves nothing. A device unknown to telemetry counts as exchanged if its
    Node shows all its GPUs; then each has to be healthy."""
    on_nodes = {device.id for name in proposal.nodes for device in facts.devices_of_node.get(name, ())}
    mine = set(proposal.devices)
    gone = mine - set(facts.devices)
    against = [
        finding
        for finding in facts.findings
        if finding.family is Family.HEALTH
        and finding.verdict is Verdict.DEGRADED
        and (not (on_nodes | mine).isdisjoint(finding.devices) or (finding.node or "") in proposal.nodes)
    ]
    if against:
        return Health.SICK, against[0].summary
    if partial_answers(facts.snapshot.gaps):
        return Health.UNKNOWN, "Telemetry answered only in part."
    if doubted := [item for item in facts.snapshot.doubted if item.shown.id in mine]:
        return Health.UNKNOWN, f"{doubted[0].shown.id} is not trusted: {doubted[0].why}."
    for name in proposal.nodes:
        node = facts.nodes.get(name)
        present = {device.uuid for device in facts.devices_of_node.get(name, ()) if device.present}
        # A Node that lost a GPU counts one less, so the number at the time of the taint counts too.
        expected = 0 if node is None else max(node.gpu_count or facts.node_gpus(node), proposal.gpus)
        if not present or (gone and len(present) < expected):
            return Health.UNKNOWN, f"Telemetry does not show all GPUs of Node {name}."
    for device in sorted(on_nodes if gone else mine):
        if not facts.devices[device].present:
            return Health.UNKNOWN, f"{device} does not report."
        for detector in proposal.detectors:
            about = (finding for finding in facts.findings if device in finding.devices)
            said = [finding.verdict for finding in about if finding.kind == detector]
            if Verdict.HEALTHY not in said or Verdict.UNKNOWN in said:
                return Health.UNKNOWN, f"The rule {detector} has no conclusion about {device}."
    return Health.PROVEN, ""
