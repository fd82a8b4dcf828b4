"""Guards: each returns the reason against a candidate, or None. All of them run, so the Plan has every reason.

A guard fails closed: unknown is a reason. Names are stable: the Plan and the docs use them. A new guard is a
function and its row in `Guard`.
"""

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from gpuwatch.act.placement import Nowhere, tolerates
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.plan.misfit import CONTENTION, place
from gpuwatch.act.plan.moves import not_allowed
from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.frameworks.allowed import move_refusal, release_refusal
from gpuwatch.facts.model.cluster import DisruptionBudget, FactKind, Node, OwnerStatus, Pod, Requirement, Taint
from gpuwatch.facts.model.decision import (
    MOVES,
    ActionKind,
    Candidate,
    Family,
    FindingKind,
    Mode,
    Refusal,
    Score,
    Verdict,
)
from gpuwatch.facts.model.remediation import Phase
from gpuwatch.facts.model.selectors import labels_match
from gpuwatch.judge.reclaim import remediated


@dataclass(frozen=True, slots=True)
class GuardCase:
    candidate: Candidate
    score: Score
    facts: PlanFacts


class Clearance(StrEnum):
    """Whether a Remediation may go on, just before a write that disrupts."""

    GO = "go"
    WAIT = "wait"  # may pass by itself, within hours
    ASK = "ask"  # a person has to approve first
    OBJECTED = "objected"  # by an owner: it ends as rejected
    REFUSED = "refused"
    GONE = "gone"  # its reason or its target no longer exists


Against = str | tuple[str, str] | None
"""The reason; or the reason and what helps in this case, in place of what `Guard` says of all cases."""

_TAINT, _MOVE, _RELEASE = ({ActionKind.TAINT_NODE}, MOVES, {ActionKind.RELEASE_GANG})
_ROOM = {ActionKind.MAKE_ROOM}
_FOUND = frozenset(ActionKind) - {ActionKind.MAKE_ROOM}
"""Actions that rest on findings."""


_FOREIGN_OPT_OUTS = {"karpenter.sh/do-not-disrupt": "true", "cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
"""Opt-outs of other controllers, as Pod annotations."""


def guard(case: GuardCase) -> tuple[Refusal, ...]:
    """All reasons against the candidate, except budgets and rates."""
    asked = ((each, each.check) for each in Guard if each.check is not None and case.candidate.action in each.actions)
    found = ((each, check(case)) for each, check in asked)
    return tuple(each.refuses(*((why,) if isinstance(why, str) else why)) for each, why in found if why)


def _cluster_known(case: GuardCase) -> str | None:
    candidate = case.candidate
    spaces = {candidate.namespace, *(ref.partition("/")[0] for ref in candidate.pods)}
    return unread(case.facts, candidate.action, spaces) or None


def _node_known(case: GuardCase) -> str | None:
    missing = sorted(name for name in case.candidate.nodes if name not in case.facts.nodes)
    if missing or not case.candidate.nodes:
        return f"The host in telemetry is not a Node of this cluster ({', '.join(missing) or 'no host given'})."
    return None


def _telemetry_trusted(case: GuardCase) -> str | None:
    return case.facts.doubt(case.candidate.nodes, case.candidate.pods) or None


def _evidence(case: GuardCase) -> str | None:
    findings = case.facts.findings_of(case.candidate)
    if any(finding.verdict is Verdict.UNKNOWN for finding in findings):
        return "One of its findings is UNKNOWN."
    best = max((finding.confidence_ratio for finding in findings), default=0.0)
    needed = case.facts.policy.min_confidence_ratio
    return f"The highest confidence of its findings is {best:.2f}; {needed:.2f} is needed." if best < needed else None


def _worth_it(case: GuardCase) -> Against:
    if not math.isfinite(case.score.value):
        return "The score is not a finite number.", "Give its GPUs in telemetry the name of their Node."
    if case.score.value <= 0:
        findings = case.facts.findings_of(case.candidate)
        if case.candidate.relief_gpus is None and any(item.family is Family.MISFIT for item in findings):
            missing = dict.fromkeys(text for item in findings for text in item.missing)
            why = f"It is not known what the move gains; missing: {', '.join(missing)}."
            return why, "Export the signals that are missing."
        score = case.score
        why = (
            f"It gains {score.gained_gpu_hours * score.confidence_ratio:.1f} GPU-hours (times confidence) and costs "
            f"{score.disrupted_gpu_hours:.1f} within {score.horizon_hours:g} h. {score.gain_basis} {score.harm_basis}"
        )
        saved = f"Annotate its Pods with {keys.LAST_CHECKPOINT} if they save their work."
        return (why, saved) if keys.LAST_CHECKPOINT in score.harm_basis else why
    return None


def _annotated(candidate: Candidate, facts: PlanFacts) -> Iterable[tuple[str, str, str]]:
    """(object, key, value) of all labels and annotations of its Nodes, and of the Pods that it ends, their owners and
    Namespaces. A taint ends no Pod, so only its Nodes count: a tenant cannot keep a degraded Node in service.
    `no_execute_refused` checks the gangs that NoExecute ends."""
    spaces = {candidate.namespace} if candidate.namespace else set()
    objects: list[tuple[str, dict[str, str]]] = []
    for pod in facts.ended_by(candidate):
        spaces.add(pod.namespace)
        objects.append((f"Pod {pod.ref}", {**pod.labels, **pod.annotations}))
        owner = facts.workloads.get(pod.workload)
        if owner is not None:
            objects.append((owner.id, {**owner.labels, **owner.annotations}))
    objects += [(f"Namespace {name}", facts.namespaces.get(name, {})) for name in sorted(spaces)]
    nodes = (facts.nodes[name] for name in candidate.nodes if name in facts.nodes)
    objects += [(f"Node {node.name}", {**node.labels, **node.annotations}) for node in nodes]
    for where, found in dict.fromkeys((name, tuple(sorted(values.items()))) for name, values in objects):
        yield from ((where, key, value) for key, value in found)


def _opted_out(case: GuardCase) -> Against:
    for where, key, value in _annotated(case.candidate, case.facts):
        asks = f"Ask the owner of {where} to remove {key}."
        if key == keys.OPT_OUT and value.lower() != "false":
            return f"{where} opted out with {keys.OPT_OUT}={value}.", asks
        if key == keys.OBJECTION and value:
            return f"{where} objects: {value}", asks
        if _FOREIGN_OPT_OUTS.get(key) == value and case.candidate.action is not ActionKind.TAINT_NODE:
            return f"{where} opted out of disruptions with {key}={value}.", asks
    return None


def _snoozed(case: GuardCase) -> Against:
    for where, key, value in _annotated(case.candidate, case.facts):
        if key != keys.SNOOZE_UNTIL:
            continue
        mend = f"Ask the owner of {where} to write {key} as 2026-01-31T18:00:00Z."
        try:
            until = datetime.fromisoformat(value)
        except ValueError:
            return f"{where} has {key}={value!r}, which is not a time.", mend
        if until.tzinfo is None:
            return f"{where} has {key}={value!r} without a time zone.", mend
        if until > case.facts.snapshot.at:
            return f"{where} is snoozed until {value}.", f"Wait until {value}, or ask the owner of {where}."
    return None


def _owner(case: GuardCase) -> Against:
    reasons = {
        OwnerStatus.BARE: "has no controller and would be gone for good",
        OwnerStatus.FORBIDDEN: "has an owner that gpuwatch may not read",
        OwnerStatus.MISSING: "has an owner that no longer exists",
        OwnerStatus.FOREIGN: "has an owner reference with the uid of an object of another Namespace, kind or name",
        OwnerStatus.UNKNOWN_KIND: "is controlled by a kind that gpuwatch does not know",
        OwnerStatus.STATIC: "is a static Pod of its Node",
        OwnerStatus.DAEMON: "belongs to a DaemonSet and would come back on the same Node",
    }
    for ref in case.candidate.pods:
        pod = case.facts.pods.get(ref)
        if pod is None:
            return f"Pod {ref} is known from telemetry only."
        owner = case.facts.workloads.get(pod.workload)
        if owner is None:
            return f"The owner of Pod {ref} was not read."
        if owner.status in reasons:
            stays = owner.status in (OwnerStatus.STATIC, OwnerStatus.DAEMON)
            unread = f"Let gpuwatch read {owner.id}." if owner.status is OwnerStatus.FORBIDDEN else ""
            helps = "Nothing: such a Pod belongs to its Node." if stays else unread
            return f"Pod {ref} {reasons[owner.status]} ({owner.id}).", helps
    return None if case.candidate.pods else "None of its Pods was found."


def _framework(case: GuardCase) -> Against:
    candidate, facts = case.candidate, case.facts
    pods = facts.pods_of(candidate)
    gang = facts.gangs.get(candidate.target.name)
    for name in dict.fromkeys(pod.workload for pod in pods):
        owner = facts.workloads.get(name)
        if owner is None or owner.status is not OwnerStatus.FOUND:
            continue  # the guard `owner` refuses it
        if candidate.action is ActionKind.RELEASE_GANG:
            reason = release_refusal(gang, owner)
        else:
            reason = move_refusal(gang, owner, pods, facts.owned.get(name, []))
        if reason:
            kept = f"Let {owner.kind} {owner.name} retain its data." if reason == owner.loses else ""
            return f"{gang.framework if gang else owner.kind}: {reason}", kept
    return None


def _whole_group_idle(case: GuardCase) -> Against:
    facts = case.facts
    group = facts.members.get(case.candidate.target.name, ())
    # A release acts on the owner, which may have other gangs too.
    owned = [pod for name in {pod.workload for pod in group} for pod in facts.owned.get(name, ())]
    working = sorted({pod.ref for pod in (*group, *owned) if pod.ref not in facts.idle_pods})
    if working:
        return f"{len(working)} of its owner's Pods are not proven idle, such as {working[0]}."
    # A Pod without a GPU is never proven idle. One that belongs to the gang has no work without the gang.
    gangs = {pod.gang for pod in group}
    beside = sorted(
        pod.ref
        for pod in facts.ended_by(case.candidate)
        if not (pod.accelerators or pod.claims) and not (pod.gang and pod.gang in gangs)
    )
    if beside:
        why = f"{len(beside)} Pods without a GPU have the same owner and would end with it, such as {beside[0]}."
        return why, "Give the Pods without a GPU an owner of their own."
    return None


def _idle_storm(case: GuardCase) -> str | None:
    """Of any confidence: what looks a little idle everywhere is a sign of a broken exporter, too."""
    idle, held, machines = case.facts.looks_idle
    most = case.facts.policy.idle_storm_ratio
    if machines < 2 or idle <= most * held:
        return None
    return f"{idle:.0f} of {held} allocated GPUs look idle at once, more than {most:.0%}."


def _attribution(case: GuardCase) -> str | None:
    shared = [name for name in case.candidate.devices if name in case.facts.devices and case.facts.devices[name].shared]
    why = "is shared by several Pods, so its telemetry does not show which of them is idle"
    return f"Device {shared[0]} {why}." if shared else None


def _priority(case: GuardCase) -> str | None:
    for pod in case.facts.ended_by(case.candidate):
        if pod.priority >= case.facts.policy.protected_priority:
            return f"Pod {pod.ref} has priority {pod.priority}, at or above {case.facts.policy.protected_priority}."
    return None


_SELECTING = ("In", "NotIn", "Exists", "DoesNotExist")
"""Operators of a label selector. Another one counts as matching: it protects the Pod."""


def selected(budget: DisruptionBudget, pod: Pod) -> bool:
    if budget.namespace != pod.namespace:
        return False
    if budget.selects_all or not (budget.match_labels or budget.match_expressions):
        return budget.selects_all
    known = (Requirement(*each) for each in budget.match_expressions if each[1] in _SELECTING)
    return labels_match(pod.labels, budget.match_labels, known)


def _disruption_budget(case: GuardCase) -> str | None:
    pods = case.facts.ended_by(case.candidate)
    for budget in case.facts.disruption_budgets(pods):
        hit = sum(1 for pod in pods if selected(budget, pod))
        held = in_flight(budget, case.facts, but=str(case.candidate.target)) if hit else 0
        if hit + held > budget.disruptions_allowed:
            return (
                f"PodDisruptionBudget {budget.namespace}/{budget.name} allows {budget.disruptions_allowed} "
                f"disruptions; this needs {hit}{f', and {held} are in flight' if held else ''}."
            )
    return None


def in_flight(budget: DisruptionBudget, facts: PlanFacts, but: str = "") -> int:
    """Pods that the budget selects and that Remediations disturb, or are about to, until they run again: a suspended
    owner asks for fewer Pods, so its budget soon allows as many disruptions as before. but: a target not to count."""
    found = 0
    for item in facts.disruptive:
        proposal = item.proposal
        if proposal.namespace == budget.namespace and proposal.pods and proposal.target != but:
            there = (facts.pods[ref] for ref in proposal.pods if ref in facts.pods)
            found += max(
                sum(pod.uid in proposal.pod_uids and selected(budget, pod) for pod in there),
                proposal.budgets.get(budget.name, 0),
            )
    return found


def _already_tainted(case: GuardCase) -> str | None:
    for name in case.candidate.nodes:
        node = case.facts.nodes.get(name)
        reason = case.facts.closed(node) if node is not None else ""
        if reason:
            return f"{reason} already and takes no new Pods; gpuwatch does not change taints and cordons of others."
        if name in case.facts.unrecorded:
            return f"{name} has the taint {keys.DEGRADED} already, and no Remediation holds it."
    return None


def _other_remediator(case: GuardCase) -> str | None:
    nodes = (case.facts.nodes.get(name) for name in (*case.candidate.nodes, *left_behind(case.candidate, case.facts)))
    told = (remediated(node) for node in nodes if node is not None)
    return next((f"{who}; two controllers would undo each other's work." for who in told if who), None)


def left_behind(candidate: Candidate, facts: PlanFacts) -> tuple[str, ...]:
    """Nodes whose degraded GPUs a move leaves; () for other candidates."""
    if candidate.action is not ActionKind.EVICT_GANG:
        return ()
    degraded = [item for item in facts.findings_of(candidate) if item.verdict is Verdict.DEGRADED]
    known = (facts.devices[name].node for item in degraded for name in item.devices if name in facts.devices)
    return tuple(sorted({name for name in (*(item.node for item in degraded), *known) if name}))


def taken_back(candidate: Candidate, facts: PlanFacts) -> tuple[str, ...]:
    """Of the Nodes that a move leaves, those where the scheduler may put its Pods again: they have neither a cordon nor
    gpuwatch's taint with NoSchedule or NoExecute that none of the Pods tolerates. PreferNoSchedule is no bar."""
    pods = facts.pods_of(candidate)

    def shut(node: Node) -> bool:
        bars = [taint for taint in node.taints if taint.key == keys.DEGRADED and taint.effect in _BARS]
        bars += [_CORDON] if node.unschedulable else []
        return any(not any(tolerates(pod.placement.tolerations, bar) for pod in pods) for bar in bars)

    return tuple(name for name in left_behind(candidate, facts) if name in facts.nodes and not shut(facts.nodes[name]))


_BARS = ("NoSchedule", "NoExecute")
_CORDON = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
"""Kubernetes' own taint of a cordoned Node; the scheduler asks for its toleration even before the taint is there."""


def _tainted_first(case: GuardCase) -> Against:
    """Refuses Pods that would tolerate the taint; `draw` checks whether there is one."""
    candidate, facts = case.candidate, case.facts
    nodes = left_behind(candidate, facts)
    # The taint's value is one of these.
    taints = [Taint(key=keys.DEGRADED, value=name, effect="NoSchedule") for name in candidate.detectors if nodes]
    for ref in candidate.pods:
        pod = facts.pods.get(ref)
        if pod is not None and any(tolerates(pod.placement.tolerations, taint) for taint in taints):
            why = f"Pod {ref} tolerates the taint {keys.DEGRADED}, so the scheduler may put it back on {nodes[0]}."
            return why, f"Name the keys in the tolerations of Pod {ref}, without {keys.DEGRADED}."
    return None


def _allowed(case: GuardCase) -> str | None:
    """Of a move for others: each Pod does no work, has saved it, or has an owner who allows it."""
    return not_allowed(case.facts.pods_of(case.candidate), case.facts) or None


def _lands(case: GuardCase) -> str | None:
    """Pending Pods are placed before it."""
    candidate, facts = case.candidate, case.facts
    if why := _limited(facts.ended_by(candidate), facts):
        return why
    # Without a Pod the guard `owner` refuses it; a scattered gang is a candidate only where it lands.
    if candidate.detectors == (FindingKind.SCATTERED,) or not any(ref in facts.pods for ref in candidate.pods):
        return None
    places = place(candidate, facts.ground.room.copy(), facts)
    return places.reason if isinstance(places, Nowhere) else None


_NO_PODS = re.compile(
    r"count/(?!pods$).*|configmaps|persistentvolumeclaims|replicationcontrollers|requests\.storage|resourcequotas|secrets"
    r"|services(\..*)?|.*\.storageclass\.storage\.k8s\.io/.*"
)
"""What a ResourceQuota limits that no Pod takes."""


def _limited(pods: Iterable[Pod], facts: PlanFacts) -> str:
    """The ResourceQuota from which other Pods may take what these leave before they are created again; '' for none. How
    much it has left proves nothing: what waits for it is not created yet, so no list shows it."""
    quotas = facts.snapshot.cluster.quotas
    for pod, quota in ((pod, quota) for pod in pods for quota in quotas if quota.namespace == pod.namespace):
        if name := next((each for each in quota.limited if _takes(pod, each)), ""):
            return (
                f"ResourceQuota {quota.namespace}/{quota.name} limits {name}. When Pod {pod.ref} ends, another "
                "Pod of the Namespace may take what it leaves of the quota, and then its owner cannot create it again."
            )
    return ""


def _takes(pod: Pod, limited: str) -> bool:
    """Whether the Pod takes of this limit; yes where the limit is not known."""
    asked = limited.removeprefix("requests.")
    other_device = asked != limited and "/" in asked and asked not in pod.accelerators
    return not other_device and not _NO_PODS.fullmatch(limited)


def contended(candidate: Candidate, facts: PlanFacts) -> list[str]:
    """Its findings of contention; one move resolves each."""
    return [item.id for item in facts.findings_of(candidate) if item.kind in CONTENTION]


def _already_open(case: GuardCase) -> Against:
    candidate, facts = case.candidate, case.facts
    if same := facts.open_on(candidate.action, str(candidate.target)):
        why = f": {same.history[-1].message}" if same.history else "."
        approve = f"Approve it or reject it: `gpuwatch approve {same.name}`."
        helps = approve if same.phase is Phase.PROPOSED and same.proposal.mode is Mode.SUGGEST else ""
        return f"Remediation {same.name} of the same target is in phase {same.phase}{why}", helps
    if candidate.action is ActionKind.TAINT_NODE:
        return None
    answered = set(contended(candidate, facts))
    for other in facts.open:
        mine, theirs = set(candidate.pods), other.proposal
        if theirs.action is not ActionKind.TAINT_NODE and (shared := sorted(mine.intersection(theirs.pods))):
            return f"Remediation {other.name}, which disturbs Pod {shared[0]}, is in phase {other.phase}."
        if theirs.action is ActionKind.EVICT_GANG and answered.intersection(theirs.findings):
            moves = f"which moves {theirs.target} away from it"
            return f"Remediation {other.name}, {moves}, is in phase {other.phase}."
    return None


_LOSS = "Nothing: it costs more than it gains."
_OUT = "Nothing: the Node is out of service already."
_OTHER = "Wait until the other remediator is done."


class Guard(StrEnum):
    """The name of every refusal, as the Plan and the docs have it, with what follows from it.

    helps: what ends the refusal, as the docs say it; "Nothing: …" where no change does, "Wait …" where time does.
    check: the reason against one candidate, or none; None where the plan as a whole refuses. actions: those that it
    checks. each_step: whether it is asked again once the action has begun.
    """

    nature: Clearance | None
    helps: str
    check: Callable[[GuardCase], Against] | None
    actions: Collection[ActionKind]
    each_step: bool

    def __new__(
        cls,
        name: str,
        nature: Clearance | None,
        helps: str,
        check: Callable[[GuardCase], Against] | None = None,
        actions: Collection[ActionKind] = frozenset(ActionKind),
        each_step: bool = True,
    ) -> "Guard":
        made = str.__new__(cls, name)
        made._value_, made.nature, made.check, made.actions, made.each_step = name, nature, check, actions, each_step
        made.helps = helps
        return made

    def refuses(self, reason: str, helps: str = "") -> Refusal:
        return Refusal(guard=self.value, reason=reason, helps=helps or self.helps)

    CLUSTER_KNOWN = "cluster_known", Clearance.WAIT, "Let gpuwatch read what the reason names.", _cluster_known
    NODE_KNOWN = "node_known", Clearance.WAIT, "Name the Node in a label `node`, by relabelling.", _node_known
    TELEMETRY_TRUSTED = "telemetry_trusted", Clearance.WAIT, "Set `prometheus.trusted_targets`.", _telemetry_trusted
    EVIDENCE = "evidence", Clearance.REFUSED, "Export what `gpuwatch doctor` lists for its rules.", _evidence, _FOUND
    # What is left of an action that has begun has a lower score.
    WORTH_IT = "worth_it", Clearance.REFUSED, _LOSS, _worth_it, frozenset(ActionKind), False
    OPTED_OUT = "opted_out", Clearance.OBJECTED, "Ask the owner of the object that the reason names.", _opted_out
    SNOOZED = "snoozed", Clearance.WAIT, "Wait until the time that the reason names.", _snoozed
    # A NoSchedule taint touches no Pod.
    OWNER = "owner", Clearance.REFUSED, "Run the Pod under a controller that gpuwatch knows.", _owner, _MOVE | _RELEASE
    FRAMEWORK = "framework", Clearance.REFUSED, "Nothing: gpuwatch only reports it.", _framework, _MOVE | _RELEASE
    WHOLE_GROUP_IDLE = "whole_group_idle", Clearance.REFUSED, "Wait until all are idle.", _whole_group_idle, _RELEASE
    IDLE_STORM = "idle_storm", Clearance.WAIT, "Wait until people work again.", _idle_storm, _RELEASE
    ATTRIBUTION = "attribution", Clearance.REFUSED, "Give each Pod a GPU of its own.", _attribution, _RELEASE
    PRIORITY = "priority", Clearance.REFUSED, "Nothing: such Pods are never disturbed.", _priority
    DISRUPTION_BUDGET = "disruption_budget", Clearance.WAIT, "Run more ready replicas.", _disruption_budget
    # The Node of a taint that has begun has our taint.
    ALREADY_TAINTED = "already_tainted", Clearance.REFUSED, _OUT, _already_tainted, _TAINT, False
    OTHER_REMEDIATOR = "other_remediator", Clearance.WAIT, _OTHER, _other_remediator, _TAINT | _MOVE
    ALREADY_OPEN = "already_open", Clearance.WAIT, "Wait until the Remediation ends.", _already_open
    TAINTED_FIRST = "tainted_first", Clearance.WAIT, "Set `plan.modes.taint_node`, or cordon the Node.", _tainted_first
    ALLOWED = "allowed", Clearance.REFUSED, f"Ask its owner to annotate it with {keys.MAY_MOVE}=true.", _allowed, _ROOM
    LANDS = "lands", Clearance.WAIT, "Make room for its Pods, or move them yourself.", _lands, _MOVE
    # By what else is planned.
    POOL_NODES = "pool_nodes", None, "Bring another Node of the pool into service."
    BUDGET = "budget", None, "Return Nodes of the pool to service, or raise the limit."
    RATE = "rate", None, "Wait an hour at most.", None, frozenset(ActionKind), False  # it counts when an action begins
    ONCE = "once", None, "Nothing: another action of this plan goes before it."
    DEMAND = "demand", Clearance.WAIT, "Nothing: no Pod waits for these GPUs."
    # By conditions that stop all actions.
    PAUSED = "paused", Clearance.WAIT, "End the pause with `gpuwatch resume`."
    MEMORY = "memory", Clearance.WAIT, "Run the version that wrote the record, or delete the record."
    SEVERAL_CLUSTERS = "several_clusters", Clearance.WAIT, "Set `prometheus.matchers` to the label of this cluster."
    PARTIAL_ANSWER = "partial_answer", Clearance.WAIT, "Mend the store that did not answer."
    CLOCKS = "clocks", Clearance.WAIT, "Set both clocks by NTP."
    BRAKE = "brake", Clearance.WAIT, "Look for one common cause, such as an exporter or a driver."
    COOL_DOWN = "cool_down", Clearance.WAIT, "Wait until the cool-down ends."
    ALERT = "alert", Clearance.WAIT, "Resolve the alert, or correct its name in `plan.brake_alerts`."
    FREEZE = "freeze", Clearance.WAIT, "Wait until the freeze ends."


def guard_of(refusal: Refusal) -> Guard:
    """What made it: all refusals are made by `Guard.refuses`."""
    return next(each for each in Guard if each.value == refusal.guard)


_NO_POD_ENDS = "A taint below NoExecute ends no Pod, and NoExecute is checked like a move."
INDIFFERENT: Mapping[tuple[FactKind, ActionKind], str] = {
    (FactKind.OWNERS, ActionKind.TAINT_NODE): _NO_POD_ENDS,
    (FactKind.GANGS, ActionKind.TAINT_NODE): f"{_NO_POD_ENDS} What Kueue then does is watched once its list is read.",
    (FactKind.BUDGETS, ActionKind.TAINT_NODE): _NO_POD_ENDS,
    (FactKind.QUOTAS, ActionKind.TAINT_NODE): _NO_POD_ENDS,
    (FactKind.AUTOSCALERS, ActionKind.TAINT_NODE): _NO_POD_ENDS,
    (FactKind.AUTOSCALERS, ActionKind.EVICT_GANG): "Most moves change no replicas. One that does waits for the list.",
    (FactKind.AUTOSCALERS, ActionKind.MAKE_ROOM): "Most moves change no replicas. One that does waits for the list.",
    (FactKind.QUOTAS, ActionKind.RELEASE_GANG): "A release ends Pods and lets others have their place and their quota.",
    (
        FactKind.NAMESPACES,
        ActionKind.TAINT_NODE,
    ): "A Node is in no Namespace, so no such settings apply to its taint.",
    (FactKind.CLAIMS, ActionKind.TAINT_NODE): "A Node's GPUs are counted by its capacity, with claims or without.",
}
"""Why an action does not depend on a kind of facts. It depends on every kind that is not here, and is refused if one of
them was not wholly read."""

_NOUNS: Mapping[FactKind, tuple[str, str]] = {
    FactKind.NODES: ("Nodes", "which are in service"),
    FactKind.PODS: ("Pods", "which would end"),
    FactKind.OWNERS: ("owners of Pods", "which Pods would end with them"),
    FactKind.GANGS: ("Kueue Workloads and PodGroups", "which Pods need each other"),
    FactKind.BUDGETS: ("PodDisruptionBudgets", "how many disruptions they allow"),
    FactKind.QUOTAS: ("ResourceQuotas", "whether the Pods may be created again"),
    FactKind.AUTOSCALERS: ("autoscalers", "who else sets the replicas"),
    FactKind.NAMESPACES: ("Namespaces", "which modes and opt-outs they have"),
    FactKind.CLAIMS: ("ResourceClaims", "which Pods have which devices"),
}


def unread(facts: PlanFacts, action: ActionKind, namespaces: Collection[str] | None = None) -> str:
    """Which facts that this action depends on were not wholly read, a sentence for each kind; '' for none.

    namespaces: those of the Pods that it touches; None for all.
    """
    reasons: dict[FactKind, str] = {}
    for item in facts.snapshot.cluster.unread:
        touched = not item.namespace or namespaces is None or item.namespace in namespaces
        if touched and (item.kind, action) not in INDIFFERENT:
            noun, what = _NOUNS[item.kind]
            where = f" of Namespace {item.namespace}" if item.namespace else ""
            reasons.setdefault(item.kind, f"Not all {noun}{where} were read, so it is not known {what}: {item.why}")
    return " ".join(reasons.values())
