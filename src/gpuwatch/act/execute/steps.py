"""The steps of an action, the steps that undo it, and what each step writes to the object as just read. Pure.

A step whose effect is there already, under our mark, is done. It is blocked where the object is not in the expected
state. So an interrupted step is not done twice.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from gpuwatch.act.execute.policy import ExecutePolicy
from gpuwatch.act.execute.recheck import LiveFacts
from gpuwatch.act.execute.requests import CALLED, SCHEDULED, Deletion, EventNote, Eviction, Notice, Request, StatusPatch
from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.frameworks.fights import Surroundings, kueue_workload
from gpuwatch.facts.frameworks.framework import How
from gpuwatch.facts.frameworks.objects import (
    ABSENT,
    Creation,
    Object,
    Patch,
    Refused,
    pointer,
    ref_of,
    stamp,
    value_at,
    version_of,
)
from gpuwatch.facts.frameworks.release import (
    count_running,
    held_by,
    loses,
    move,
    obeyed,
    release,
    restore,
    rollout,
    saved_state,
)
from gpuwatch.facts.model.cluster import ClaimedDevice
from gpuwatch.facts.model.decision import ActionKind, FindingKind
from gpuwatch.facts.model.remediation import ObjectRef, Proposal, Remediation, Saved, Step, StepKind

DEVICE_TAINT_VERSIONS = ("resource.k8s.io/v1", "resource.k8s.io/v1beta2", "resource.k8s.io/v1alpha3")
"""API versions of DeviceTaintRule, tried in this order, newest first."""

RELEASED = "released"
"""In `Remediation.verified`: it holds no GPU and no quota any more."""

RAN = "ran"
"""In `Step.parameters`: how many Pods of the gang ran before the first write."""

_VERSIONED = frozenset({StepKind.TAINT, StepKind.CONDITION, StepKind.RELEASE, StepKind.RESTART, StepKind.EVICT})
_OPTIONAL = frozenset({StepKind.CONDITION, StepKind.HAND_OFF, StepKind.CLEAR})


def optional(step: Step) -> bool:
    """True if the action works without this step where the cluster does not allow it."""
    return step.kind in _OPTIONAL or step.parameters.get("by") in ("event", "notice") or "touch" in step.parameters


@dataclass(frozen=True, slots=True)
class PendingWrite:
    """saved: the fields that the write changes. following: steps that must come right after this one."""

    request: Request
    saved: tuple[Saved, ...] = ()
    following: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class Done:
    """No write is needed."""

    message: str = ""
    saved: tuple[Saved, ...] = ()


@dataclass(frozen=True, slots=True)
class Blocked:
    """gone: the target no longer exists. passing: the block may pass by itself."""

    reason: str
    gone: bool = False
    passing: bool = False


Built = PendingWrite | Done | Blocked


@dataclass(frozen=True, slots=True)
class TargetState:
    """An object as just read, and its surroundings. object: None if it is gone or another object has its name. sent:
    the step's Command, until it is carried out. owner: `Proposal.objects[0]`. pods: all Pods below it; pod_groups:
    Volcano's in its Namespace; each None if unread. live: read right before a step that disrupts, or why it was not."""

    object: Object | None = None
    sent: Object | None = None
    owner: Object | None = None
    surroundings: Surroundings = Surroundings()
    pods: tuple[Object, ...] | None = None
    pod_groups: tuple[Object, ...] | None = ()
    live: LiveFacts | str = "It was not read."


def notify_steps(remediation: Remediation, now: datetime, policy: ExecutePolicy) -> tuple[Step, ...]:
    """Event, annotation and notification about the object that is written first."""
    proposal = remediation.proposal
    due = now + timedelta(seconds=notice_seconds(proposal, policy))
    what = {
        ActionKind.TAINT_NODE: "taint this Node",
        ActionKind.EVICT_GANG: f"move {len(proposal.pods)} Pods elsewhere",
        ActionKind.MAKE_ROOM: f"move {len(proposal.pods)} Pods elsewhere",
        ActionKind.RELEASE_GANG: f"release its {proposal.gpus} idle GPUs, which ends its Pods,",
    }[proposal.action]
    text = (
        f"{remediation.name}: gpuwatch will {what} at {stamp(due)} or later. {proposal.reason} "
        f"To object, set the annotation {keys.OBJECTION}=REASON; to postpone it, {keys.SNOOZE_UNTIL}=TIME."
    )
    target = proposal.objects[0]
    return tuple(
        Step(kind=StepKind.NOTIFY, target=target, parameters={"by": by, "text": text})
        for by in ("annotation", "event", "notice")
    )


def announces(step: Step) -> bool:
    """Whether it is the first that tells the owners, and was not begun."""
    return step.kind is StepKind.NOTIFY and step.parameters["by"] == "annotation" and step.begun_at is None


def call_steps(remediation: Remediation, why: str) -> tuple[Step, ...]:
    """An Event and a notification that call a person. No pause stops them."""
    text = f"{remediation.name}: gpuwatch needs a person. {why}"
    target = remediation.proposal.objects[0]
    return tuple(
        Step(kind=StepKind.NOTIFY, target=target, parameters={"by": by, "text": text, "call": "true"})
        for by in ("event", "notice")
    )


def touch_step(step: Step, now: datetime) -> Step | None:
    """A step that changes the object's resourceVersion, so that a write that another process may still send fails; None
    where the step's write names no version, such as a creation."""
    if step.kind not in _VERSIONED and "label" not in step.parameters:
        return None
    text = f"The write begun at {stamp(step.begun_at or now)} had no effect by {stamp(now)}; it is checked again."
    parameters = {"by": "annotation", "text": text, "touch": "true"}
    return Step(kind=StepKind.NOTIFY, target=step.target, parameters=parameters)


def act_steps(
    remediation: Remediation,
    state: TargetState,
    claims: tuple[ClaimedDevice, ...],
    avoid: tuple[str, ...],
    policy: ExecutePolicy,
) -> tuple[Step, ...] | Blocked:
    """The steps, in order. avoid: Nodes that moved Pods should not return to."""
    proposal = remediation.proposal
    main = proposal.objects[0]
    if state.object is None:
        return Blocked(f"{main} is gone, or another object has its name.", gone=True)
    clear = Step(kind=StepKind.CLEAR, target=main)
    if proposal.action is ActionKind.TAINT_NODE:
        return (*_tainting(remediation, claims, policy), clear)
    workload = kueue_workload(state.object, state.surroundings)
    if isinstance(workload, Refused):
        return Blocked(workload.reason)
    if lost := loses(state.object):  # also where Kueue's Workload is written, which does not say it
        return Blocked(lost)
    target = main if workload is None else ref_of(workload)
    if proposal.action is ActionKind.RELEASE_GANG:
        return (Step(kind=StepKind.RELEASE, target=target, parameters=_ran(remediation, state)), clear)
    if state.pods is None:
        return Blocked(f"The Pods of {main} could not be read.", passing=True)
    how = move(state.object if workload is None else workload, state.pods, proposal.pod_uids)
    if isinstance(how, Refused):
        return Blocked(how.reason, passing=True)
    if proposal.action is ActionKind.MAKE_ROOM and len(how.pods) > 1:
        return Blocked(f"{main} starts a new Pod before all of the old ones have left, and it may take the room.")
    # The move is proven by as many ready Pods on other Nodes.
    moved = {pod.uid for pod in how.pods} or set(proposal.pod_uids)
    live = [pod for pod in state.pods if value_at(pod, "/status/phase") not in ("Succeeded", "Failed")]
    others = (pod for pod in live if pod["metadata"].get("uid") not in moved)
    staying = [pod for pod in others if value_at(pod, "/spec/nodeName") in avoid]
    pods = len(live) - (len(staying) if how.how is How.EVICT else 0)
    avoided = {"avoid": ",".join(avoid), "pods": str(pods), **_ran(remediation, state)}
    match how.how:
        case How.CYCLE:
            away = Step(kind=StepKind.RELEASE, target=target, parameters=avoided)
            return (away, Step(kind=StepKind.RESTORE, target=target), clear)
        case How.ROLLOUT:
            again = Step(kind=StepKind.RESTART, target=main, parameters=avoided)
            return (again, replace(clear, parameters={"mark": "true"}))
        case How.EVICT:
            return (*(Step(kind=StepKind.EVICT, target=pod, parameters=avoided) for pod in how.pods), clear)


def _ran(remediation: Remediation, state: TargetState) -> dict[str, str]:
    """How many Pods run before the first write. An undo is done once as many run again."""
    unread = len(remediation.proposal.pod_uids)
    return {RAN: str(unread if state.pods is None else count_running(state.pods))}


def _tainting(remediation: Remediation, claims: tuple[ClaimedDevice, ...], policy: ExecutePolicy) -> tuple[Step, ...]:
    proposal = remediation.proposal
    held = {claim.device: claim for claim in claims if claim.device}
    node = proposal.objects[0]
    steps: list[Step] = []
    single = policy.device_taints and policy.last_taint_effect != "PreferNoSchedule" and not at_once(proposal)
    if single and set(proposal.devices) <= set(held):
        steps += [_device_taint(remediation, held[device]) for device in proposal.devices]
    if not steps:
        steps.append(first_taint(remediation, policy))
    if policy.condition:
        message = f"Remediation {remediation.name}: {proposal.reason}"
        reason = "".join(part.capitalize() for part in cause(remediation).split("_"))
        parameters = {"status": "True", "reason": reason, "message": message}
        steps.append(Step(kind=StepKind.CONDITION, target=node, parameters=parameters))
    return (*steps, *(() if policy.hand_off_when_empty else hand_off_steps(remediation, policy)))


def hand_off_steps(remediation: Remediation, policy: ExecutePolicy) -> tuple[Step, ...]:
    """Steps that hand the Node over to a repair system: the label, the object, both or neither."""
    node = remediation.proposal.objects[0]
    steps: list[Step] = []
    if policy.hand_off_label:
        key, _, value = policy.hand_off_label.partition("=")
        steps.append(Step(kind=StepKind.HAND_OFF, target=node, parameters={"label": key, "value": value}))
    if policy.hand_off_object:
        told = {
            "node": node.name,
            "remediation": remediation.name,
            "cause": cause(remediation),
            "reason": remediation.proposal.reason,
        }
        wanted: Object = _filled_in(policy.hand_off_object, told)
        annotations = {**wanted["metadata"].get("annotations", {}), keys.REMEDIATION: remediation.name}
        wanted["metadata"]["annotations"] = annotations
        steps.append(Step(kind=StepKind.HAND_OFF, target=ref_of(wanted), parameters={"object": json.dumps(wanted)}))
    return tuple(steps)


def _filled_in(value: Any, told: Mapping[str, str]) -> Any:
    """A copy with the names in braces replaced in all texts; other braces stay."""
    if isinstance(value, Mapping):
        return {key: _filled_in(each, told) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_filled_in(each, told) for each in value]
    if isinstance(value, str):
        # In one pass, so that a name within a filled-in value is not replaced.
        return re.sub(r"\{(\w+)\}", lambda found: told.get(found[1], found[0]), value)
    return value


_AT_ONCE = frozenset({FindingKind.POD_ADMISSION})
"""Detectors of Nodes on which each minute costs Pods. The first taint has to keep them off; it ends none that run."""


def at_once(proposal: Proposal) -> bool:
    """Whether its taint begins with NoSchedule, if `last_taint_effect` allows it, and not with the first effect."""
    return proposal.action is ActionKind.TAINT_NODE and not _AT_ONCE.isdisjoint(proposal.detectors)


def notice_seconds(proposal: Proposal, policy: ExecutePolicy) -> int:
    """How long owners may object before the first write. A taint ends no Pod, unless it begins with NoExecute."""
    mild = proposal.action is ActionKind.TAINT_NODE and policy.first_taint_effect != "NoExecute"
    return 0 if mild else policy.notice_period_seconds


def first_taint(remediation: Remediation, policy: ExecutePolicy) -> Step:
    """The Node's first taint: of the ladder, the first effect, or the first that keeps Pods off."""
    barring = [effect for effect in policy.ladder if effect != "PreferNoSchedule"]
    skips = at_once(remediation.proposal) and barring
    return taint_step(remediation, barring[0] if skips else policy.first_taint_effect)


def taint_step(remediation: Remediation, effect: str) -> Step:
    parameters = {"value": cause(remediation), "effect": effect}
    return Step(kind=StepKind.TAINT, target=remediation.proposal.objects[0], parameters=parameters)


def _device_taint(remediation: Remediation, claim: ClaimedDevice) -> Step:
    digest = hashlib.sha256(f"{remediation.name}|{claim.device}".encode()).hexdigest()[:12]
    device = {"driver": claim.driver, "pool": claim.pool, "device": claim.name}
    return Step(
        kind=StepKind.DEVICE_TAINT,
        target=ObjectRef(DEVICE_TAINT_VERSIONS[0], "DeviceTaintRule", f"gpuwatch-{digest}"),
        parameters={**device, "value": cause(remediation), "effect": "NoSchedule"},
    )


def cause(remediation: Remediation) -> str:
    """The taint's value: the strongest finding's detector."""
    return remediation.proposal.detectors[0]


def undo_steps(remediation: Remediation, now: datetime) -> tuple[Step, ...]:
    """Steps that undo all writes that happened or may have happened, taints first. Before them, objects to which
    another process may still write are touched. After the end of a Remediation they also undo a late write."""
    undone: dict[tuple[StepKind, ObjectRef], Step] = {}

    def undo(kind: StepKind, target: ObjectRef, /, **parameters: str) -> None:
        undone[kind, target] = Step(kind=kind, target=target, parameters=parameters)

    done = [step for step in remediation.steps if step.done_at is not None or step.begun_at is not None]
    pending = [step for step in remediation.steps if step.begun_at is not None and step.done_at is None]
    touches = [touch for step in pending if (touch := touch_step(step, now)) is not None]
    done += touches
    if not remediation.phase.open:
        main = remediation.proposal.objects[0]
        if remediation.proposal.action is ActionKind.TAINT_NODE:
            done.append(Step(kind=StepKind.TAINT, target=main, parameters={"value": cause(remediation)}))
        else:
            targets = {main, *(item.target for item in remediation.saved)}
            done += [
                Step(kind=kind, target=ref) for ref in sorted(targets) for kind in (StepKind.RELEASE, StepKind.NOTIFY)
            ]
            done.append(Step(kind=StepKind.RESTART, target=main))
    carried_out = remediation.verified.get(RELEASED) or any(step.kind is StepKind.RESTORE for step in done)
    for step in done:
        target, told = step.target, step.parameters
        match step.kind:
            case StepKind.TAINT:
                undo(StepKind.UNTAINT, target, value=told["value"])
            case StepKind.DEVICE_TAINT:
                undo(StepKind.DEVICE_UNTAINT, target)
            case StepKind.CONDITION:
                undo(step.kind, target, **{**told, "status": "False", "reason": "Cleared"})
            case StepKind.HAND_OFF:
                undo(step.kind, target, **{**told, "remove": "true"})
            case StepKind.COMMAND if not carried_out:
                undo(StepKind.WITHDRAW, target, **told)
            case StepKind.RELEASE:
                undo(StepKind.RESTORE, target)
            case StepKind.NOTIFY:
                undo(StepKind.CLEAR, target)
            case StepKind.RESTART:
                undo(StepKind.CLEAR, target, mark="true")
            case _:
                pass
    rank = {StepKind.UNTAINT: 0, StepKind.DEVICE_UNTAINT: 0, StepKind.WITHDRAW: 1}
    return (*touches, *sorted(undone.values(), key=lambda step: rank.get(step.kind, 2)))


def command_of(step: Step) -> ObjectRef | None:
    """The Command that the step sends or withdraws; None for other steps."""
    return ref_of(json.loads(step.parameters["object"])) if "object" in step.parameters else None


_NEED_THEIR_OBJECT = (StepKind.TAINT, StepKind.RELEASE, StepKind.RESTART, StepKind.COMMAND)
"""Steps that fail if their object is gone. All others are done then."""


def build(step: Step, state: TargetState, remediation: Remediation, now: datetime) -> Built:
    """What the step writes to its object as just read."""
    object_ = state.object
    match step.kind:
        case StepKind.NOTIFY:
            return _notify(step, object_, remediation)
        case StepKind.HAND_OFF if "object" in step.parameters:
            return _hand_over(step, object_, remediation)
        case StepKind.DEVICE_TAINT:
            return _taint_device(step, object_, remediation)
        case StepKind.WITHDRAW:
            return _withdraw(state, remediation, now)
    if object_ is None:
        return _gone(step) if step.kind in _NEED_THEIR_OBJECT else Done()
    match step.kind:
        case StepKind.CLEAR:
            return _clear(step, object_, remediation)
        case StepKind.TAINT:
            return _taint(step, object_, remediation)
        case StepKind.UNTAINT:
            return _untaint(step, object_, remediation)
        case StepKind.CONDITION:
            return _condition(step, object_, remediation, now)
        case StepKind.HAND_OFF:
            return _hand_off(step, object_, remediation)
        case StepKind.DEVICE_UNTAINT:
            ours = held_by(object_) == remediation.name
            return (
                PendingWrite(Deletion(ref_of(object_)))
                if ours
                else Done("The device taint does not belong to this Remediation.")
            )
        case StepKind.EVICT:
            leaves = object_["metadata"].get("deletionTimestamp")
            return Done() if leaves else PendingWrite(Eviction(step.target, version_of(object_)))
        case StepKind.RELEASE:
            return _release(step, object_, remediation, now)
        case StepKind.COMMAND:
            # A Command that was carried out is gone; sending it again before its effect shows changes nothing.
            sent = state.sent is not None or obeyed(object_)
            return Done() if sent else PendingWrite(Creation(json.loads(step.parameters["object"])))
        case StepKind.RESTORE:
            return _restore(step, object_, remediation)
        case _:
            return _restart(step, object_, remediation, now)


def ours_on(node: Object, remediation: Remediation, value: str) -> list[Mapping[str, Any]]:
    """Taints of the Node that this Remediation wrote: our key with the value and effect of a step that was begun; while
    the Node has this Remediation's mark, also our key with the value alone."""
    begun = (step for step in remediation.steps if step.kind is StepKind.TAINT and step.begun_at is not None)
    written = {(step.parameters["value"], step.parameters["effect"]) for step in begun}
    marked = held_by(node) == remediation.name
    return [
        taint
        for taint in _taints(node)
        if taint.get("key") == keys.DEGRADED
        and ((taint.get("value"), taint.get("effect")) in written or (marked and taint.get("value") == value))
    ]


def _taints(node: Object) -> list[Mapping[str, Any]]:
    found = value_at(node, "/spec/taints")
    return found if isinstance(found, list) else []


def _gone(step: Step) -> Blocked:
    return Blocked(f"{step.target} is gone, or another object has its name.", gone=True)


def _annotations(object_: Object) -> Mapping[str, str]:
    return object_["metadata"].get("annotations") or {}


def _annotate(object_: Object, annotations: Mapping[str, str | None]) -> Patch:
    return Patch(ref_of(object_), {"metadata": {"annotations": dict(annotations)}}, version_of(object_))


def _notify(step: Step, object_: Object | None, remediation: Remediation) -> Built:
    if object_ is None and "call" not in step.parameters:
        return Done() if "touch" in step.parameters else _gone(step)
    text = step.parameters["text"]
    match step.parameters["by"]:
        case "event":
            called = "call" in step.parameters
            return PendingWrite(EventNote(step.target, text, CALLED if called else SCHEDULED))
        case "notice":
            return PendingWrite(Notice())
    if "touch" in step.parameters:
        text = f"{remediation.name}: {text}"
    if object_ is None or _annotations(object_).get(keys.NOTICE) == text:
        return Done()
    return PendingWrite(_annotate(object_, {keys.NOTICE: text}))


def _clear(step: Step, object_: Object, remediation: Remediation) -> Built:
    ours: dict[str, str | None] = {}
    if _annotations(object_).get(keys.NOTICE, "").startswith(f"{remediation.name}: "):
        ours[keys.NOTICE] = None
    if (
        step.parameters.get("mark")
        and keys.SAVED_STATE not in _annotations(object_)
        and held_by(object_) == remediation.name
    ):
        ours[keys.REMEDIATION] = None
    return PendingWrite(_annotate(object_, ours)) if ours else Done()


def _restart(step: Step, object_: Object, remediation: Remediation, now: datetime) -> Built:
    if holder := held_by(object_):
        held = Blocked(f"The Remediation {holder} holds {step.target} already.")
        return Done() if holder == remediation.name else held
    return PendingWrite(rollout(object_, remediation=remediation.name, at=now))


def _taint(step: Step, node: Object, remediation: Remediation) -> Built:
    value, effect = step.parameters["value"], step.parameters["effect"]
    ours = ours_on(node, remediation, value)
    if any(taint.get("effect") == effect for taint in ours):
        return Done()
    foreign = [taint for taint in _taints(node) if taint.get("key") == keys.DEGRADED and taint not in ours]
    if foreign:
        return Blocked(
            f"{step.target} has the taint {keys.DEGRADED}={foreign[0].get('value', '')}, which gpuwatch did not set."
        )
    if held_by(node) not in ("", remediation.name):
        return Blocked(f"The Remediation {held_by(node)} holds {step.target} already.")
    mark = {"remediation": remediation.name, "reason": remediation.proposal.reason, **step.parameters}
    taints = [taint for taint in _taints(node) if taint not in ours]
    body = {
        "metadata": {"annotations": {keys.REMEDIATION: remediation.name, keys.TAINT: json.dumps(mark)}},
        "spec": {"taints": [*taints, {"key": keys.DEGRADED, "value": value, "effect": effect}]},
    }
    return PendingWrite(Patch(ref_of(node), body, version_of(node)))


def _untaint(step: Step, node: Object, remediation: Remediation) -> Built:
    marked, ours = held_by(node) == remediation.name, ours_on(node, remediation, step.parameters["value"])
    if not (marked or ours):
        return Done("It has no taint of this Remediation.")
    body: Object = {"metadata": {"annotations": {keys.REMEDIATION: None, keys.TAINT: None}}} if marked else {}
    if ours:
        body["spec"] = {"taints": [taint for taint in _taints(node) if taint not in ours] or None}
    return PendingWrite(Patch(ref_of(node), body, version_of(node)))


def _condition(step: Step, node: Object, remediation: Remediation, now: datetime) -> Built:
    told = step.parameters
    conditions = value_at(node, "/status/conditions")
    here = next((item for item in ([] if conditions is ABSENT else conditions) if item["type"] == keys.CONDITION), None)
    ours = here is not None and remediation.name in here.get("message", "")
    if told["status"] == "False" and (here is None or not ours):
        return Done()
    if here is not None and here.get("status") == told["status"] and (ours or told["status"] == "True"):
        return Done()
    times = dict.fromkeys(("lastTransitionTime", "lastHeartbeatTime"), stamp(now))
    condition = {"type": keys.CONDITION, **{key: told[key] for key in ("status", "reason", "message")}, **times}
    return PendingWrite(StatusPatch(ref_of(node), {"status": {"conditions": [condition]}}, version_of(node)))


def _hand_off(step: Step, node: Object, remediation: Remediation) -> Built:
    label, value = step.parameters["label"], step.parameters["value"]
    now = (node["metadata"].get("labels") or {}).get(label)
    path = pointer("metadata", "labels", label)
    if step.parameters.get("remove"):
        saved = next((item for item in remediation.saved if item.path == path), None)
        if saved is None:
            return Done()
        body: Object = {"annotations": {keys.SAVED_STATE: None}} if keys.SAVED_STATE in _annotations(node) else {}
        if now == value:
            body["labels"] = {label: json.loads(saved.before) if saved.before else None}
        changed = Done("The label was changed since, and stays.")
        return PendingWrite(Patch(ref_of(node), {"metadata": body}, version_of(node))) if body else changed
    if now == value:
        return Done()
    saved = Saved(target=step.target, path=path, before="" if now is None else json.dumps(now), after=json.dumps(value))
    body = {"labels": {label: value}, "annotations": {keys.SAVED_STATE: saved_state((saved,))}}
    return PendingWrite(Patch(ref_of(node), {"metadata": body}, version_of(node)), (saved,))


def _hand_over(step: Step, object_: Object | None, remediation: Remediation) -> Built:
    """The object for the repair system. Once it is deleted, it is not created again."""
    ours = object_ is not None and held_by(object_) == remediation.name
    if step.parameters.get("remove"):
        return PendingWrite(Deletion(ref_of(object_))) if object_ is not None and ours else Done()
    if object_ is not None:
        return Done("" if ours else f"{step.target} exists, and gpuwatch did not make it.")
    return PendingWrite(Creation(json.loads(step.parameters["object"])))


def _taint_device(step: Step, rule: Object | None, remediation: Remediation) -> Built:
    if rule is not None:
        theirs = Blocked(f"{step.target} exists, and gpuwatch did not make it.")
        return Done() if held_by(rule) == remediation.name else theirs
    told = step.parameters
    wanted = {
        "apiVersion": step.target.api_version,
        "kind": step.target.kind,
        "metadata": {"name": step.target.name, "annotations": {keys.REMEDIATION: remediation.name}},
        "spec": {
            "deviceSelector": {key: told[key] for key in ("driver", "pool", "device")},
            "taint": {"key": keys.DEGRADED, "value": told["value"], "effect": told["effect"]},
        },
    }
    return PendingWrite(Creation(wanted))


def _release(step: Step, object_: Object, remediation: Remediation, now: datetime) -> Built:
    found = release(object_, remediation=remediation.name, at=now, kept=remediation.saved)
    if isinstance(found, Refused):
        return Blocked(found.reason)
    if not found.writes or isinstance(found.writes[0], Creation):
        return Done(saved=found.saved)  # the mark is written; a Command is a step of its own
    first, *more = found.writes
    following = tuple(
        Step(kind=StepKind.COMMAND, target=step.target, parameters={"object": json.dumps(write.object)})
        for write in more
        if isinstance(write, Creation)
    )
    return PendingWrite(first, found.saved, following)


def _withdraw(state: TargetState, remediation: Remediation, now: datetime) -> Built:
    """Volcano deletes a Command before it carries it out. One that is gone may take effect until the deadline."""
    if state.sent is not None:
        return PendingWrite(Deletion(ref_of(state.sent)))
    if state.object is None or obeyed(state.object):
        return Done()
    if remediation.deadline_at is not None and now < remediation.deadline_at:
        return Blocked("The Command is gone, and its effect has not shown yet.", passing=True)
    return Done("The Command is gone, and was not carried out.")


def _restore(step: Step, object_: Object, remediation: Remediation) -> Built:
    if held_by(object_) != remediation.name:
        return Done("It has no mark of this Remediation: it was restored, or another Remediation holds it.")
    saved = tuple(item for item in remediation.saved if item.target.uid == object_["metadata"].get("uid"))
    if not saved:
        return Done(f"It has a mark of this Remediation, which did not write to {step.target}.")
    found = restore(object_, saved, remediation=remediation.name)
    if isinstance(found, Refused):
        return Blocked(found.reason)
    if not found.writes:
        return Done()
    first, *more = found.writes
    if step.parameters.get("part") == "last":
        if more:
            return Blocked("It was told to resume and has not begun to.", passing=True)
        return PendingWrite(first)
    following = tuple(replace(step, parameters={"part": "last"}, begun_at=None) for _ in more)
    return PendingWrite(first, (), following)
