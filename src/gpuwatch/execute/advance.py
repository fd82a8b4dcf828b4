"""Takes one Remediation one step further. Pure.

A Transition has at most one write. Its `intent` is stored before the write and its `then` after it. A process that is
killed in between leaves a step that was begun and is not done; the next process checks the object itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import takewhile

from gpuwatch.execute import steps as acts
from gpuwatch.execute.policy import ExecutePolicy
from gpuwatch.execute.precision import Place, Precision, distrusted
from gpuwatch.execute.recheck import (
    Check,
    Clearance,
    FreshFacts,
    Health,
    health,
    others_of_owner,
    recheck,
    rung_refused,
    stopped_by,
)
from gpuwatch.execute.requests import Request
from gpuwatch.execute.steps import Blocked, Done, TargetState
from gpuwatch.execute.targets import TAKEN_BACK
from gpuwatch.frameworks.fights import who_wrote
from gpuwatch.frameworks.json_patch import ABSENT, value_at
from gpuwatch.frameworks.move import move
from gpuwatch.frameworks.objects import Object, Refused, condition
from gpuwatch.frameworks.release import as_json, held_by, released, resumes_early, still_holds
from gpuwatch.kube.writer import Failure, WriteError
from gpuwatch.model.decision import ActionKind, Mode
from gpuwatch.model.remediation import (
    ASKED_BACK,
    ENDED,
    RUNNING_ELSEWHERE,
    ObjectRef,
    Pause,
    Phase,
    Remediation,
    Saved,
    Step,
    StepKind,
    Turn,
)
from gpuwatch.model.telemetry import PodRef
from gpuwatch.plan.completeness import unread
from gpuwatch.plan.demand import on_demand
from gpuwatch.plan.facts import PlanFacts
from gpuwatch.plan.policy import PlanPolicy

WAITER_STARTED = "waiter_started"
"""In `Remediation.verified`: was the Pod that the release was for placed in time? Absent if the Pod waits no more."""


@dataclass(frozen=True, slots=True)
class WantedInputs:
    """What `advance` needs. target: the object to read, with its surroundings if `around`. sent: the Command of the
    step. waiter: the Pod that the release is for. view: fresh facts, and with `around` what stands around it, with the
    PodDisruptionBudgets if `budgets`. others: read all other Remediations; latest: as they are now, not as they were
    when the run began."""

    target: ObjectRef | None = None
    around: bool = False
    sent: ObjectRef | None = None
    waiter: ObjectRef | None = None
    view: bool = False
    budgets: bool = False
    others: bool = False
    latest: bool = False


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What was read for one Transition. others: all stored Remediations but this one."""

    pause: Pause = Pause()
    state: TargetState = TargetState()
    view: FreshFacts | None = None
    waiter: Object | None = None
    others: tuple[Remediation, ...] = ()
    measured: Mapping[Place, Precision] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExecutorPolicies:
    plan: PlanPolicy = PlanPolicy()
    execute: ExecutePolicy = ExecutePolicy()


@dataclass(frozen=True, slots=True)
class Transition:
    """intent: stored first. request: written next; `then` is stored after it. Both are None if nothing is written.
    under_pause: the write is allowed during an ordinary pause; under_any_pause: during any."""

    intent: Remediation
    request: Request | None = None
    then: Remediation | None = None
    under_pause: bool = False
    under_any_pause: bool = False


def idle(remediation: Remediation, now: datetime) -> bool:
    """True if there is nothing to do whatever the cluster's state. People's decisions do not wait for `next_at`."""
    if not remediation.phase.open:
        return not remediation.undoable
    asked = remediation.undo_asked or (remediation.rejected and remediation.began_at is None)
    if asked and remediation.phase is not Phase.UNDOING and _unknown(remediation) is None:
        return False
    return remediation.next_at is not None and now < remediation.next_at


def needs(remediation: Remediation, now: datetime) -> WantedInputs:
    if idle(remediation, now):
        return WantedInputs()
    main = remediation.proposal.objects[0]
    step = _next(remediation)
    match remediation.phase:
        case Phase.PROPOSED:
            return WantedInputs(others=True)
        case Phase.NOTIFIED:
            if step:
                return WantedInputs(step.target)
            return WantedInputs(main, around=True, view=True, budgets=main.kind != "Node", others=True)
        case Phase.ACTING:
            if step is None:
                return WantedInputs()
            asks = step.kind.disrupts
            return WantedInputs(
                step.target,
                around=asks or step.kind is StepKind.RESTORE,
                sent=acts.order_of(step),
                view=asks,
                budgets=main.kind != "Node" or step.parameters.get("effect") == "NoExecute",
                others=asks,
                latest=asks,
            )
        case Phase.VERIFYING if step is not None:
            return WantedInputs(step.target)
        case Phase.VERIFYING:
            waiter = _waiter(remediation)
            namespace, _, name = waiter.partition("/")
            pod = ObjectRef("v1", "Pod", name, namespace) if waiter else None
            return WantedInputs(_verified_on(remediation), around=True, waiter=pod, others=bool(waiter))
        case Phase.IN_EFFECT:
            tainted = remediation.proposal.action is ActionKind.TAINT_NODE
            return WantedInputs(_verified_on(remediation), view=tainted, others=tainted)
        case Phase.UNDOING:
            return WantedInputs(step.target, sent=acts.order_of(step)) if step else WantedInputs()
        case _:
            return WantedInputs()


def advance(
    remediation: Remediation, inputs: StepInputs, now: datetime, policies: ExecutorPolicies
) -> Transition | None:
    """The next Transition; None if there is nothing to do now."""
    if idle(remediation, now):
        return None
    policy = policies.execute
    if not remediation.phase.open:
        return _undo(remediation, Phase.UNDONE, "Undo was asked for.", now, policy)
    unknown = _unknown(remediation)
    if (unknown is None or remediation.phase is Phase.UNDOING) and (
        called := _called(remediation, inputs, now, policy)
    ):
        return called
    if unknown is None and remediation.phase is not Phase.UNDOING:
        if remediation.undo_asked:
            return _undo(
                remediation, Phase.UNDONE if remediation.began_at else Phase.REJECTED, "Undo was asked.", now, policy
            )
        if remediation.rejected and remediation.began_at is None:
            return _undo(remediation, Phase.REJECTED, "A person rejected it.", now, policy)
    match remediation.phase:
        case Phase.PROPOSED:
            return _proposed(remediation, inputs, now, policies)
        case Phase.NOTIFIED:
            return _notified(remediation, inputs, now, policies)
        case Phase.ACTING:
            return _acting(remediation, inputs, now, policies)
        case Phase.VERIFYING:
            return _verifying(remediation, inputs, now, policies)
        case Phase.IN_EFFECT:
            return _holding(remediation, inputs, now, policies)
        case _:
            return _undoing(remediation, inputs, now, policy)


def failed(intent: Remediation, error: WriteError, now: datetime, policy: ExecutePolicy) -> Remediation:
    """The Remediation after the write of its next step, or the dry run of that write, failed with `error`."""
    step = intent.steps[intent.step]
    tried = replace(step, attempts=step.attempts + 1, error=error.message)
    if error.failure is Failure.UNSURE and step.begun_at is not None:
        return _with_step(replace(intent, next_at=now + timedelta(seconds=policy.write_timeout_seconds)), tried)
    if step.kind is not StepKind.COMMAND:  # an earlier Command may still be under way, and nothing shows it
        tried = replace(tried, begun_at=None)
    wait = policy.retry_after(tried.attempts)
    if intent.stopped_since is not None:
        wait = policy.retry_seconds
    if error.retry_after_seconds is not None:
        wait = max(wait, int(error.retry_after_seconds) + 1)
    later = _with_step(replace(intent, next_at=now + timedelta(seconds=wait)), tried)
    refused = error.failure in (Failure.FORBIDDEN, Failure.INVALID)
    if "call" in step.parameters or (refused and "touch" in step.parameters):  # nothing waits for it
        return _passed(_with_step(intent, tried), now, error.message)
    unserved = error.status == 404 and error.failure is Failure.INVALID
    if step.kind is StepKind.DEVICE_TAINT and (unserved or error.failure is Failure.NOT_FOUND):
        return _without_device_taint(intent, step, now, policy)
    # NOT_FOUND is retried: the step reads the object again and decides what its absence means.
    if not refused or intent.phase is Phase.UNDOING:
        return later  # an undo is never given up; people see the error
    if acts.optional(step):
        return _passed(_with_step(intent, tried), now, error.message)
    if step.kind is StepKind.TAINT and any(other.kind is StepKind.TAINT for other in intent.steps[: intent.step]):
        return _rung_given_up(intent, f"{step.parameters['effect']} was not written: {error.message}", now, policy)
    return _undo(_with_step(intent, tried), Phase.FAILED, error.message, now, policy).intent


# PROPOSED and NOTIFIED


def _proposed(
    remediation: Remediation, inputs: StepInputs, now: datetime, policies: ExecutorPolicies
) -> Transition | None:
    proposal, policy = remediation.proposal, policies.execute
    if now >= proposal.expires_at:
        return _undo(remediation, Phase.EXPIRED, "Nobody approved it in time.", now, policy)
    if not remediation.approved:
        doubt = distrusted(remediation, inputs.measured, policies.plan.min_precision_ratio)
        if proposal.mode is not Mode.ENFORCE or doubt or remediation.history:
            # A history means that it was returned to a person for a decision.
            if doubt and not remediation.history:
                return Transition(_turned(remediation, Phase.PROPOSED, f"It waits for approval: {doubt}", now))
            return None
    why = f"Approved by {remediation.approved_by or 'somebody'}." if remediation.approved else "The mode is enforce."
    # Keep a notification that went out before, so that it can be taken back.
    told = tuple(step for step in remediation.steps if step.begun_at is not None or step.done_at is not None)
    begun = replace(
        remediation,
        steps=(*told, *acts.notify_steps(remediation, now, policy)),
        step=len(told),
        next_at=None,
        deadline_at=None,
    )
    return Transition(_turned(begun, Phase.NOTIFIED, why, now))


def _notified(
    remediation: Remediation, inputs: StepInputs, now: datetime, policies: ExecutorPolicies
) -> Transition | None:
    policy = policies.execute
    untold = _next(remediation)
    if untold is not None:
        if (
            untold.error
            and untold.begun_at is None
            and _older(_notified_at(remediation), policy.action_timeout_seconds, now)
        ):
            return _undo(
                remediation, Phase.EXPIRED, f"Its owners could not be notified in time: {untold.error}", now, policy
            )
        return _step(remediation, inputs, now, policy)
    if remediation.deadline_at is None:
        due = now + timedelta(seconds=policy.notice_period_seconds)
        end = due + timedelta(seconds=policy.action_timeout_seconds)
        return Transition(_noted(replace(remediation, next_at=due, deadline_at=end), "Owners may object.", now))
    if inputs.pause.paused or inputs.view is None:
        return None
    if now >= remediation.deadline_at:
        return _undo(remediation, Phase.EXPIRED, "No opening was found in time.", now, policy)
    check = _cleared(remediation, inputs, now, policies)
    if check.answer is not Clearance.GO:
        return _not_now(remediation, check, now, policy)
    facts = inputs.view.facts(inputs.others)
    devices = (facts.devices[name].node for name in remediation.proposal.devices if name in facts.devices)
    avoid = tuple(sorted({node for node in devices if node}))
    found = acts.act_steps(remediation, inputs.state, inputs.view.snapshot.cluster.claims, avoid, now, policy)
    if isinstance(found, Blocked):
        answer = Clearance.WAIT if found.passing else Clearance.GONE if found.gone else Clearance.REFUSED
        return _not_now(remediation, Check(answer, found.reason), now, policy)
    if check.waiter:
        waits = {"waiter": check.waiter}
        found = tuple(
            replace(step, parameters={**step.parameters, **waits}) if step.kind is StepKind.RELEASE else step
            for step in found
        )
    whole = {StepKind.RELEASE, StepKind.RESTART}.intersection(step.kind for step in found)
    if whole and (beside := others_of_owner(remediation.proposal, facts)):
        return _not_now(remediation, Check(Clearance.REFUSED, beside), now, policy)
    claimed = replace(
        remediation,
        steps=(*remediation.steps, *found),
        next_at=None,
        deadline_at=now + timedelta(seconds=policy.action_timeout_seconds),
    )
    return Transition(_turned(claimed, Phase.ACTING, "All guards and budgets allow it.", now))


def _notified_at(remediation: Remediation) -> datetime | None:
    """Start of the current notification phase."""
    turns = takewhile(lambda turn: turn.phase is Phase.NOTIFIED, reversed(remediation.history))
    return min((turn.at for turn in turns), default=None)


def _not_now(remediation: Remediation, check: Check, now: datetime, policy: ExecutePolicy) -> Transition:
    """Returns to NOTIFIED or PROPOSED, or ends. The steps of the claim are dropped: none was begun."""
    kept = tuple(step for step in remediation.steps if step.kind is StepKind.NOTIFY)
    attempts = remediation.attempts + 1
    told = {**remediation.verified, **(check.verified or {})}
    given_up = replace(remediation, steps=kept, step=len(kept), attempts=attempts, verified=told)
    match check.answer:
        case Clearance.WAIT:
            waiting = replace(given_up, next_at=now + timedelta(seconds=policy.retry_after(attempts)))
            if remediation.phase is Phase.ACTING:
                waiting = replace(waiting, deadline_at=_first_deadline(remediation, policy))
            return Transition(_turned(waiting, Phase.NOTIFIED, check.reason, now))
        case Clearance.ASK:
            return Transition(_turned(replace(given_up, next_at=None), Phase.PROPOSED, check.reason, now))
        case Clearance.OBJECTED:
            return _undo(given_up, Phase.REJECTED, check.reason, now, policy)
        case Clearance.REFUSED:
            return _undo(given_up, Phase.REFUSED, check.reason, now, policy)
        case _:
            return _undo(given_up, Phase.OBSOLETE, check.reason, now, policy)


def _first_deadline(remediation: Remediation, policy: ExecutePolicy) -> datetime:
    """The deadline set by the notification. A claim that is given up does not extend it."""
    notices = [step for step in remediation.steps if step.kind is StepKind.NOTIFY and "touch" not in step.parameters]
    told = [step.done_at for step in notices if step.done_at is not None]
    last = max(told, default=remediation.proposal.created_at)
    return last + timedelta(seconds=policy.notice_period_seconds + policy.action_timeout_seconds)


# ACTING


def _acting(
    remediation: Remediation, inputs: StepInputs, now: datetime, policies: ExecutorPolicies
) -> Transition | None:
    policy = policies.execute
    step = _next(remediation)
    if step is None:
        end = now + timedelta(seconds=policy.verification_timeout_seconds)
        return Transition(
            _turned(replace(remediation, next_at=None, deadline_at=end), Phase.VERIFYING, "Written.", now)
        )
    if step.begun_at is None:
        late = remediation.deadline_at is not None and now >= remediation.deadline_at
        if late and not step.kind.only_notes:
            return _late(remediation, now, policy)
        if _held_up(remediation, step, inputs.pause):
            return None
    # A Command that was begun is sent again, other steps are taken up anew; what has happened is only recorded.
    again = step.begun_at is None or step.kind is StepKind.COMMAND
    if step.kind.disrupts and again and not isinstance(acts.build(step, inputs.state, remediation, now), Done):
        check = _cleared(remediation, inputs, now, policies, step)
        if check.answer is not Clearance.GO:
            return _stopped(remediation, step, check, now, policy)
        if check.ended:
            told = {**step.parameters, ENDED: ",".join(check.ended)}
            remediation = _with_step(remediation, replace(step, parameters=told))
    if step.begun_at is None:
        gate = _gate(remediation, step, inputs, now, policy)
        if gate:
            return _wait(remediation, gate, now, policy)
    return _step(remediation, inputs, now, policy)


def _cleared(
    remediation: Remediation, inputs: StepInputs, now: datetime, policies: ExecutorPolicies, step: Step | None = None
) -> Check:
    """Asks everything on fresh facts and on the objects as they were just read. Every step that disrupts passes here,
    by its kind. What could not be read permits nothing."""
    if inputs.view is None:
        return Check(Clearance.WAIT, "The facts that it rests on were not read.")
    live = inputs.state.live
    if isinstance(live, str):
        return Check(Clearance.WAIT, f"What it would disturb could not be read again: {live}")
    view, policy = inputs.view.read_again(live), policies.execute
    return recheck(remediation, view, inputs.others, now, policies.plan, policy, inputs.measured, step)


_ENDS = {Clearance.OBJECTED: Phase.REJECTED, Clearance.GONE: Phase.OBSOLETE}
"""How a Remediation that has begun ends where it may not go on; else as refused."""


def _stopped(remediation: Remediation, step: Step, check: Check, now: datetime, policy: ExecutePolicy) -> Transition:
    """Waits where the reason may pass. Else the rest is not done, and what was begun is given back: a gang is resumed,
    Pods that were not evicted stay, and a taint that stands does not become stricter."""
    if remediation.began_at is None:
        return _not_now(remediation, check, now, policy)
    if check.answer is Clearance.WAIT:
        return _wait(remediation, check.reason, now, policy)
    if step.kind is StepKind.HAND_OFF or (step.kind is StepKind.TAINT and _stands(remediation)):
        return Transition(_rung_given_up(remediation, check.reason, now, policy))
    disrupting = [each for each in remediation.steps if each.kind.disrupts]
    done = sum(each.done_at is not None for each in disrupting)
    why = f"It stops after {done} of {len(disrupting)} steps that disturb. {check.reason}"
    told = replace(remediation, verified={**remediation.verified, **(check.verified or {})})
    return _undo(told, _ENDS.get(check.answer, Phase.REFUSED), why, now, policy)


def _stands(remediation: Remediation) -> bool:
    """Whether a taint of it was written before the next step."""
    taints = (StepKind.TAINT, StepKind.DEVICE_TAINT)
    return any(step.kind in taints for step in remediation.steps[: remediation.step])


def _called(remediation: Remediation, inputs: StepInputs, now: datetime, policy: ExecutePolicy) -> Transition | None:
    """Calls a person for a gang that was stopped and does not run again in time, or may not be resumed now."""
    due = _call_due(remediation, policy)
    if due is None or not (inputs.pause.everything or now >= due):
        return None
    since = remediation.stopped_since
    why = f"{remediation.proposal.target} has been stopped since {since:%Y-%m-%d %H:%M:%S %Z}, and does not run again."
    if inputs.pause.everything:
        why += " `gpuwatch pause --all` stops what would resume it: end the pause, or resume it by hand."
    elif told := [step.error for step in remediation.steps if step.error and step.done_at is None]:
        why += f" {told[0]}"
    at = remediation.step
    steps = (*remediation.steps[:at], *acts.call_steps(remediation, why), *remediation.steps[at:])
    return Transition(_noted(replace(remediation, steps=steps, next_at=None), f"A person is called: {why}", now))


def _call_due(remediation: Remediation, policy: ExecutePolicy) -> datetime | None:
    """When a person is called; None if nothing is stopped, or a person was called already."""
    since = remediation.stopped_since
    if since is None or any("call" in step.parameters for step in remediation.steps):
        return None
    return since + timedelta(seconds=policy.stopped_gang_seconds)


def _held_up(remediation: Remediation, step: Step, pause: Pause) -> bool:
    """Does the pause stop this step? None stops the call of a person."""
    return "call" not in step.parameters and pause.stops(gives_back=_gives_back(remediation, step))


def _gives_back(remediation: Remediation, step: Step) -> bool:
    return remediation.phase is Phase.UNDOING or step.kind.gives_back or "touch" in step.parameters


def _late(remediation: Remediation, now: datetime, policy: ExecutePolicy) -> Transition:
    if _stands(remediation):
        return Transition(_rung_given_up(remediation, "The next step was not written in time.", now, policy))
    return _undo(remediation, Phase.FAILED, "It was not done in time.", now, policy)


def _rung_given_up(remediation: Remediation, why: str, now: datetime, policy: ExecutePolicy) -> Remediation:
    """Keeps the taint as it is; the next effect is tried after the longest retry delay."""
    kept = _held(replace(remediation, steps=remediation.steps[: remediation.step]), now, policy)
    later = replace(kept, next_at=now + timedelta(seconds=policy.retry_max_seconds))
    return _turned(later, Phase.IN_EFFECT, why, now)


def _gate(remediation: Remediation, step: Step, inputs: StepInputs, now: datetime, policy: ExecutePolicy) -> str:
    """Why the step must wait for the effect of the step before it; '' if it need not."""
    state = inputs.state
    ours = state.object is not None and held_by(state.object) == remediation.name
    first = "part" not in step.parameters
    if step.kind is StepKind.RESTORE and first and ours and not _release_held(state)[acts.RELEASED]:
        early = state.object is not None and resumes_early(state.object)
        if not early or not _older(remediation.stopped_since, policy.stopped_gang_seconds // 2, now):
            return "It is resumed once all of its Pods are gone."
    evictions = sum(other.kind is StepKind.EVICT for other in remediation.steps)
    if step.kind is StepKind.EVICT and evictions > 1 and state.object is not None:
        if state.pods is None or state.owner is None:
            return "Its owner and its other Pods could not be read."
        how = move(state.owner, state.pods, [step.target.uid])
        if isinstance(how, Refused):
            return how.reason
    return ""


def _step(remediation: Remediation, inputs: StepInputs, now: datetime, policy: ExecutePolicy) -> Transition | None:
    step = remediation.steps[remediation.step]
    held = _held_up(remediation, step, inputs.pause)
    if step.begun_at is None and held:
        return None
    built = acts.build(step, inputs.state, remediation, now)
    if isinstance(built, Done):
        return Transition(_passed(_saving(remediation, built.saved), now, built.message))
    touch = acts.touch_step(step, now) if step.begun_at is not None and inputs.state.object is not None else None
    if touch is not None and not _touched(remediation, step) and remediation.phase is Phase.ACTING:
        # Another process may still have its write in hand; from the next version on it comes too late.
        at, behind = remediation.step, remediation.steps[remediation.step :]
        clear = Step(kind=StepKind.CLEAR, target=step.target)
        cleared = any((each.kind, each.target) == (clear.kind, clear.target) for each in behind)
        steps = (*remediation.steps[:at], touch, *behind, *(() if cleared else (clear,)))
        return Transition(replace(remediation, steps=steps, next_at=None))
    if isinstance(built, Blocked):
        if remediation.phase is Phase.UNDOING or built.passing:
            return _wait(remediation, built.reason, now, policy)
        if acts.optional(step):
            return Transition(_passed(remediation, now, built.reason))
        forgotten = _with_step(remediation, replace(step, begun_at=None, error=built.reason))
        end = Phase.OBSOLETE if built.gone and forgotten.began_at is None else Phase.FAILED
        return _undo(forgotten, end, built.reason, now, policy)
    if step.begun_at is not None and remediation.undo_asked and remediation.phase is not Phase.UNDOING:
        # It was begun and had no effect. For a Command this cannot be known.
        forgotten = _with_step(remediation, replace(step, begun_at=None))
        known = remediation if step.kind is StepKind.COMMAND else forgotten
        return _undo(known, Phase.UNDONE if known.began_at else Phase.REJECTED, "Undo was asked.", now, policy)
    if step.begun_at is not None and remediation.phase is Phase.ACTING and not step.kind.only_notes:
        # The object has changed since. What must hold before a write must hold before a retry too.
        if step.kind is not StepKind.COMMAND:
            return Transition(replace(_with_step(remediation, replace(step, begun_at=None)), next_at=None))
        if remediation.deadline_at is not None and now >= remediation.deadline_at:
            return _late(remediation, now, policy)
    if held:
        return None  # wait for `next_at`
    begun = replace(step, begun_at=now)
    # Stored with the intent: no process checks the result before the write must have ended.
    settled = now + timedelta(seconds=policy.write_timeout_seconds)
    behind = remediation.steps[remediation.step + 1 :]
    following = tuple(item for item in built.following if item not in behind)
    whole = (*remediation.steps[: remediation.step], begun, *following, *behind)
    intent = _saving(replace(remediation, steps=whole, next_at=settled), built.saved)
    then = replace(_passed(intent, now, ""), next_at=None)
    gives_back, calls = _gives_back(remediation, step), "call" in step.parameters
    return Transition(intent, built.request, then, under_pause=gives_back, under_any_pause=calls)


def _saving(remediation: Remediation, saved: tuple[Saved, ...]) -> Remediation:
    """Replaces what an attempt without effect saved of the same field."""
    new = tuple(item for item in saved if item not in remediation.saved)
    if not new:
        return remediation
    places = {(item.target, item.path) for item in new}
    kept = tuple(item for item in remediation.saved if (item.target, item.path) not in places)
    return replace(remediation, saved=(*kept, *new))


# VERIFYING and IN_EFFECT


def _verified_on(remediation: Remediation) -> ObjectRef:
    """The object on which the outcome is verified: the released one, or the main one."""
    told = [step.target for step in remediation.steps if step.kind in (StepKind.RELEASE, StepKind.RESTART)]
    return told[0] if told else remediation.proposal.objects[0]


def _verifying(
    remediation: Remediation, inputs: StepInputs, now: datetime, policies: ExecutorPolicies
) -> Transition | None:
    action, policy = remediation.proposal.action, policies.execute
    if _next(remediation) is not None:  # a person is called
        return _step(remediation, inputs, now, policy)
    if action is ActionKind.TAINT_NODE:
        whole = any(step.kind is StepKind.TAINT for step in remediation.steps)
        said = "The Node is tainted." if whole else "Its sick devices are tainted, and the Node is not."
        return Transition(_turned(_held(remediation, now, policy), Phase.IN_EFFECT, said, now))
    held = _release_held(inputs.state) if action is ActionKind.RELEASE_GANG else _moved(remediation, inputs.state)
    seen = replace(remediation, verified={**remediation.verified, **held})
    if all(held.values()):
        if action is ActionKind.RELEASE_GANG:
            return _freed(seen, inputs, now, policies)
        return Transition(_turned(replace(seen, next_at=None), Phase.SUCCEEDED, "It runs elsewhere.", now))
    missing = ", ".join(name for name, right in held.items() if not right)
    if remediation.deadline_at is not None and now >= remediation.deadline_at:
        against = still_holds(inputs.state.object) if inputs.state.object is not None else ""
        why = f"It could not be verified in time: {missing}{f' ({against})' if against else ''}."
        return _undo(seen, Phase.FAILED, why, now, policy)
    return _wait(seen, f"Not verified yet: {missing}.", now, policy)


def _freed(remediation: Remediation, inputs: StepInputs, now: datetime, policies: ExecutorPolicies) -> Transition:
    """Its GPUs are free: did the Pod that they were freed for start within its time?"""
    policy, name = policies.execute, _waiter(remediation)
    started = _started(inputs.waiter) if name else None
    if started is None:
        gone = f" {name} waits for them no more." if name else ""
        return Transition(_turned(_held(remediation, now, policy), Phase.IN_EFFECT, f"Its GPUs are free.{gone}", now))
    seen = replace(remediation, verified={**remediation.verified, WAITER_STARTED: started})
    if started:
        return Transition(
            _turned(_held(seen, now, policy), Phase.IN_EFFECT, f"Its GPUs are free, and {name} started.", now)
        )
    # Other releases may make room for the same Pod, which needs all of them.
    coming = any(
        each.proposal.waiter == name
        and each.phase in (Phase.NOTIFIED, Phase.ACTING, Phase.VERIFYING)
        and not each.verified.get(acts.RELEASED)
        for each in inputs.others
    )
    if coming or WAITER_STARTED not in remediation.verified:
        seen = replace(seen, deadline_at=now + timedelta(seconds=policy.verification_timeout_seconds))
    if seen.deadline_at is None or now < seen.deadline_at:
        return _wait(seen, f"Its GPUs are free; {name} has not started yet.", now, policy)
    if on_demand(remediation.proposal.detectors, policies.plan):
        return _undo(seen, Phase.FAILED, f"{name} did not take what was freed for it alone.", now, policy)
    return Transition(
        _turned(_held(seen, now, policy), Phase.IN_EFFECT, f"Its GPUs are free; {name} did not take them.", now)
    )


def _waiter(remediation: Remediation) -> PodRef:
    """The Pod that the release is for; '' if none."""
    return next((step.parameters["waiter"] for step in remediation.steps if "waiter" in step.parameters), "")


def _started(pod: Object | None) -> bool | None:
    """True if it has a Node; None if it waits no more because it is gone or terminating."""
    if pod is None:
        return None
    if value_at(pod, "/spec/nodeName") not in (ABSENT, None, ""):
        return True
    return None if _ended(pod) or pod["metadata"].get("deletionTimestamp") else False


def _release_held(state: TargetState) -> dict[str, bool]:
    if state.object is None:
        return {acts.RELEASED: state.pods is not None and not state.pods}
    return {acts.RELEASED: released(state.object, state.pods, state.pod_groups) is True}


def _moved(remediation: Remediation, state: TargetState) -> dict[str, bool]:
    """Are the old Pods gone, with as many ready Pods on other Nodes?"""
    pods = state.pods
    if pods is None:
        return {"old_pods_gone": False, RUNNING_ELSEWHERE: False}
    old = {step.target.uid for step in remediation.steps if step.kind is StepKind.EVICT}
    old = old or set(remediation.proposal.pod_uids)
    told = [step.parameters for step in remediation.steps if "avoid" in step.parameters]
    avoid = {node for parameters in told for node in parameters["avoid"].split(",") if node}
    wanted = max((int(parameters["pods"]) for parameters in told), default=len(old))
    left = [pod for pod in pods if pod["metadata"].get("uid") in old and not _ended(pod)]
    elsewhere = [
        pod
        for pod in pods
        if pod["metadata"].get("uid") not in old
        and condition(pod, "Ready") is True
        and value_at(pod, "/spec/nodeName") not in avoid
    ]
    return {"old_pods_gone": not left, RUNNING_ELSEWHERE: len(elsewhere) >= wanted}


def _ended(pod: Object) -> bool:
    return value_at(pod, "/status/phase") in ("Succeeded", "Failed")


def _held(remediation: Remediation, now: datetime, policy: ExecutePolicy) -> Remediation:
    """Enters IN_EFFECT. A taint's expiry counts from its first effect, so that a stricter effect does not extend it."""
    taints = [step for step in remediation.steps if step.kind in (StepKind.TAINT, StepKind.DEVICE_TAINT)]
    if remediation.proposal.action is ActionKind.TAINT_NODE:
        first = min((step.done_at for step in taints if step.done_at is not None), default=now)
        end = first + timedelta(seconds=policy.taint_expiry_seconds)
    else:
        end = now + timedelta(seconds=policy.release_observation_seconds)
    return replace(remediation, next_at=now + timedelta(seconds=policy.check_interval_seconds), deadline_at=end)


def _holding(
    remediation: Remediation, inputs: StepInputs, now: datetime, policies: ExecutorPolicies
) -> Transition | None:
    policy = policies.execute
    tainted = remediation.proposal.action is ActionKind.TAINT_NODE
    over = remediation.deadline_at is not None and now >= remediation.deadline_at
    if not tainted:
        object_ = inputs.state.object
        if object_ is None:
            return _undo(remediation, Phase.SUCCEEDED, "The workload was deleted.", now, policy)
        # The field that released it was saved first; its parents follow.
        main = next((item for item in remediation.saved if item.target.uid == object_["metadata"].get("uid")), None)
        changed = main is not None and as_json(value_at(object_, main.path)) != main.after
        if held_by(object_) != remediation.name or changed:
            who = (main and who_wrote(object_, main.path)) or "Its owner"
            return _undo(_declined(remediation), Phase.UNDONE, f"{who} took it back.", now, policy)
        if over:
            return Transition(_turned(remediation, Phase.SUCCEEDED, "Nobody took it back in time.", now))
        return Transition(replace(remediation, next_at=_look(now, policy)))
    if over:
        return _undo(remediation, Phase.UNDONE, "The taint expired without proof of health.", now, policy)
    node = inputs.state.object
    if node is None:
        return _undo(remediation, Phase.UNDONE, "The Node is gone.", now, policy)
    taints = [step for step in remediation.steps if step.kind is StepKind.TAINT and step.done_at is not None]
    if taints and not acts.ours_on(node, remediation, taints[-1].parameters["value"]):
        return _undo(_declined(remediation), Phase.UNDONE, "Somebody else removed the taint.", now, policy)
    if inputs.view is None:
        return None
    return _look_at_health(remediation, inputs, inputs.view, taints, now, policies)


def _declined(remediation: Remediation) -> Remediation:
    return replace(remediation, verified={**remediation.verified, TAKEN_BACK: True})


def _look(now: datetime, policy: ExecutePolicy) -> datetime:
    return now + timedelta(seconds=policy.check_interval_seconds)


def _look_at_health(
    remediation: Remediation,
    inputs: StepInputs,
    view: FreshFacts,
    taints: list[Step],
    now: datetime,
    policies: ExecutorPolicies,
) -> Transition | None:
    policy = policies.execute
    facts = view.facts(tuple(each for each in inputs.others if not each.announced))
    # Stale facts are no proof of health. The brake does not stop the removal of a taint.
    old = now - view.snapshot.at > timedelta(seconds=policy.max_facts_age_seconds)
    state, why = (Health.UNKNOWN, "The facts are old.") if old else health(remediation.proposal, facts)
    gap = remediation.next_at is not None and now - remediation.next_at > timedelta(
        seconds=policy.check_interval_seconds
    )
    if state is Health.PROVEN:
        since = now if remediation.clean_since is None or gap else remediation.clean_since
        if now - since >= timedelta(seconds=policy.healthy_for_seconds):
            proven = replace(remediation, verified={**remediation.verified, "healthy": True})
            return _undo(proven, Phase.SUCCEEDED, "Proven healthy.", now, policy)
        return Transition(replace(remediation, clean_since=since, next_at=_look(now, policy)))
    looked = replace(remediation, clean_since=None, next_at=_look(now, policy))
    rung = _next_rung(taints, policy)
    stood = bool(taints) and _older(taints[-1].done_at, policy.taint_escalation_seconds, now)
    handed = _to_hand_off(remediation, facts, taints, policy)
    if state is not Health.SICK or inputs.pause.paused or not (handed or (rung is not None and stood)):
        return Transition(looked)
    if stopped_by(view, facts, now, policies.plan, policy):
        return Transition(looked)
    if handed:
        soon = now + timedelta(seconds=policy.max_facts_age_seconds)
        going = replace(looked, steps=(*remediation.steps, *handed), next_at=None, deadline_at=soon)
        return Transition(_turned(going, Phase.ACTING, f"Degraded still ({why}), and empty: it is handed off.", now))
    if rung is None or rung_refused(remediation, facts, policies.plan, rung, inputs.others):
        return Transition(looked)
    first = min(step.parameters["expires"] for step in taints)
    step = acts.taint_step(remediation, rung, now, policy)
    step = replace(step, parameters={**step.parameters, "expires": first})
    raised = replace(
        remediation,
        steps=(*remediation.steps, step),
        clean_since=None,
        next_at=None,
        deadline_at=now + timedelta(seconds=policy.max_facts_age_seconds),
    )
    return Transition(_turned(raised, Phase.ACTING, f"Degraded still ({why}): {rung} follows.", now))


def _to_hand_off(
    remediation: Remediation, facts: PlanFacts, taints: list[Step], policy: ExecutePolicy
) -> tuple[Step, ...]:
    """Steps that hand the tainted Node over to a repair system once it is empty and stays so; () if not now.

    Empty: no Pod on it requests accelerators, and no Pod holds one of its devices.
    """
    closed = any(step.parameters["effect"] != "PreferNoSchedule" for step in taints)
    told = any(step.kind is StepKind.HAND_OFF for step in remediation.steps)
    if not policy.hand_off_when_empty or told or not closed or unread(facts, ActionKind.EVICT_GANG):
        return ()
    for name in remediation.proposal.nodes:
        if any(pod.node == name for pods in facts.members.values() for pod in pods):
            return ()
        if any(device.pods for device in facts.devices_of_node.get(name, ())):
            return ()
    return acts.hand_off_steps(remediation, policy)


def _next_rung(taints: list[Step], policy: ExecutePolicy) -> str | None:
    if not taints:
        return None
    ladder, now = policy.ladder, taints[-1].parameters["effect"]
    at = ladder.index(now) + 1 if now in ladder else len(ladder)
    return ladder[at] if at < len(ladder) else None


def _older(at: datetime | None, seconds: int, now: datetime) -> bool:
    return at is not None and now - at >= timedelta(seconds=seconds)


# UNDOING


def _undo(remediation: Remediation, end: Phase, why: str, now: datetime, policy: ExecutePolicy) -> Transition:
    """Takes back all that was done and then enters `end`; enters it at once if there is nothing to take back."""
    if remediation.undo_asked:
        remediation = replace(remediation, verified={**remediation.verified, ASKED_BACK: True})
    behind = acts.undo_steps(remediation, now)
    if end is Phase.SUCCEEDED and remediation.proposal.action is ActionKind.RELEASE_GANG:
        behind = ()
    # Drop the steps that were not begun.
    kept = tuple(step for step in remediation.steps if step.done_at is not None or step.begun_at is not None)
    if not behind:
        ended = replace(remediation, steps=kept, step=len(kept), next_at=None, deadline_at=None)
        return Transition(_turned(ended, end, why, now))
    # Time for the effect of a Command under way to show.
    shown = now + timedelta(seconds=policy.verification_timeout_seconds)
    going = replace(remediation, steps=(*kept, *behind), step=len(kept), next_at=None, deadline_at=shown, undo_to=end)
    return Transition(_turned(going, Phase.UNDOING, why, now))


def _undoing(remediation: Remediation, inputs: StepInputs, now: datetime, policy: ExecutePolicy) -> Transition | None:
    if _next(remediation) is None:
        end = remediation.undo_to or Phase.UNDONE
        return Transition(
            _turned(replace(remediation, next_at=None, deadline_at=None), end, "All that stood was taken back.", now)
        )
    return _step(remediation, inputs, now, policy)


# Small changes


def _next(remediation: Remediation) -> Step | None:
    return remediation.steps[remediation.step] if remediation.step < len(remediation.steps) else None


def _unknown(remediation: Remediation) -> Step | None:
    """The step that was begun and has no result yet."""
    left = (step for step in remediation.steps[remediation.step :] if "touch" not in step.parameters)
    step = next(left, None)
    return step if step is not None and step.begun_at is not None and step.done_at is None else None


def _touched(remediation: Remediation, step: Step) -> bool:
    """Was its object touched after it was begun?"""
    before = remediation.steps[: remediation.step]
    return any("touch" in each.parameters and each.target == step.target for each in before[-1:])


def _turned(remediation: Remediation, phase: Phase, message: str, now: datetime) -> Remediation:
    return _noted(replace(remediation, phase=phase), message, now)


def _noted(remediation: Remediation, message: str, now: datetime) -> Remediation:
    """Adds to the history unless phase and message equal the last entry's."""
    last = remediation.history[-1] if remediation.history else None
    if last is not None and (last.phase, last.message) == (remediation.phase, message):
        return remediation
    return replace(remediation, history=(*remediation.history, Turn(now, remediation.phase, message)))


def _wait(remediation: Remediation, why: str, now: datetime, policy: ExecutePolicy) -> Transition:
    step = _next(remediation)
    tries = step.attempts + 1 if step is not None else remediation.attempts + 1
    # A gang that stands still is looked at often, whatever was tried.
    stands = remediation.stopped_since is not None
    again = now + timedelta(seconds=policy.retry_seconds if stands else policy.retry_after(tries))
    for soon in (remediation.deadline_at, _call_due(remediation, policy)):
        again = min(again, soon) if soon is not None and now < soon else again
    later = replace(remediation, next_at=again)
    if step is not None:
        later = _with_step(later, replace(step, attempts=tries, error=why))
    else:
        later = replace(later, attempts=tries)
    return Transition(_noted(later, why, now))


def _with_step(remediation: Remediation, step: Step) -> Remediation:
    at = remediation.step
    return replace(remediation, steps=(*remediation.steps[:at], step, *remediation.steps[at + 1 :]))


def _passed(remediation: Remediation, now: datetime, message: str) -> Remediation:
    """Marks the next step as done, or as not needed."""
    step = replace(remediation.steps[remediation.step], done_at=now, error=message)
    return replace(_with_step(remediation, step), step=remediation.step + 1, next_at=None)


def _without_device_taint(remediation: Remediation, step: Step, now: datetime, policy: ExecutePolicy) -> Remediation:
    """Tries the next API version of DeviceTaintRule, or taints the Node if the cluster serves none."""
    versions = acts.DEVICE_TAINT_VERSIONS
    at = versions.index(step.target.api_version) + 1
    rest = [other for other in remediation.steps[remediation.step :] if other.kind is not StepKind.DEVICE_TAINT]
    devices = [other for other in remediation.steps[remediation.step :] if other.kind is StepKind.DEVICE_TAINT]
    if at < len(versions):
        other_version = [
            replace(each, target=replace(each.target, api_version=versions[at]), begun_at=None) for each in devices
        ]
        return replace(remediation, steps=(*remediation.steps[: remediation.step], *other_version, *rest), next_at=None)
    taint = acts.taint_step(remediation, policy.first_taint_effect, now, policy)
    whole = replace(remediation, steps=(*remediation.steps[: remediation.step], taint, *rest), next_at=None)
    return _noted(whole, "The cluster serves no DeviceTaintRule: the Node is tainted.", now)
