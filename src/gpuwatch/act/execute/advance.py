"""Takes one Remediation one step further. Pure.

A Transition has at most one write. Its `intent` is stored before the write and its `then` after it. A process that is
killed in between leaves a step that was begun and is not done; the next process checks the object itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import takewhile

from gpuwatch.act.execute import steps as acts
from gpuwatch.act.execute.policy import ExecutePolicy
from gpuwatch.act.execute.precision import distrusted, precision_by_place
from gpuwatch.act.execute.propose import TAKEN_BACK
from gpuwatch.act.execute.recheck import (
    MAX_FACTS_AGE_SECONDS,
    Check,
    Health,
    health,
    others_of_owner,
    read_again,
    recheck,
    rung_refused,
    stopped_by,
)
from gpuwatch.act.execute.requests import Request
from gpuwatch.act.execute.source import not_shown
from gpuwatch.act.execute.steps import Blocked, Done, TargetState
from gpuwatch.act.plan.budget import outranks
from gpuwatch.act.plan.demand import on_demand
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.plan.guards import Clearance, unread
from gpuwatch.act.plan.policy import MIN_PRECISION_RATIO, PlanPolicy
from gpuwatch.act.plan.topology import sent_back
from gpuwatch.facts.frameworks.fights import loses_place, may_release, waits_for, who_wrote
from gpuwatch.facts.frameworks.objects import ABSENT, Object, Refused, condition, value_at
from gpuwatch.facts.frameworks.release import (
    as_json,
    changed_since,
    count_running,
    ended,
    held_by,
    loses,
    most_wanted,
    move,
    released,
    resumes_early,
    still_holds,
)
from gpuwatch.facts.model.decision import MOVES, ActionKind, Mode
from gpuwatch.facts.model.remediation import (
    ASKED_BACK,
    ENDED,
    RUNNING_ELSEWHERE,
    WAITER_STARTED,
    ObjectRef,
    Pause,
    Phase,
    Remediation,
    Saved,
    Step,
    StepKind,
    Turn,
)
from gpuwatch.facts.model.telemetry import PodRef, SourceRead
from gpuwatch.judge.idle.policy import IdlePolicy
from gpuwatch.sources.kube.writer import Failure, WriteError

_INSTEAD = "It is read again later. A person may approve the action instead (`gpuwatch approve`)."


@dataclass(frozen=True, slots=True)
class WantedInputs:
    """What `Advance` needs. target: the object to read, with its surroundings if `around`. sent: the step's Command.
    waiter: the Pod that the action is for. view: fresh facts. budgets: PodDisruptionBudgets, with `around`. latest:
    all other Remediations as they are now, else as they were when the run began."""

    target: ObjectRef | None = None
    around: bool = False
    sent: ObjectRef | None = None
    waiter: ObjectRef | None = None
    view: bool = False
    budgets: bool = False
    latest: bool = False


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What was read for one Transition. others: all stored Remediations but this one. source: by Node."""

    pause: Pause = Pause()
    state: TargetState = TargetState()
    view: PlanFacts | None = None
    waiter: Object | None = None
    others: tuple[Remediation, ...] = ()
    source: Mapping[str, SourceRead] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExecutorPolicies:
    """idle_ratio: `idle.active_ratio`, up to which an engine is idle."""

    plan: PlanPolicy = PlanPolicy()
    execute: ExecutePolicy = ExecutePolicy()
    idle_ratio: float = IdlePolicy().active_ratio


@dataclass(frozen=True, slots=True)
class Transition:
    """intent: stored first. request: written next; `then` is stored after it. Both are None if nothing is written."""

    intent: Remediation
    request: Request | None = None
    then: Remediation | None = None


def idle(remediation: Remediation, now: datetime) -> bool:
    """True if there is nothing to do in any state of the cluster. People's decisions do not wait for `next_at`."""
    if not remediation.phase.open:
        return not remediation.undoable
    asked = remediation.undo_asked or (remediation.rejected and remediation.began_at is None)
    if asked and remediation.phase is not Phase.UNDOING and _unknown(remediation) is None:
        return False
    return remediation.next_at is not None and now < remediation.next_at


def held_up(remediation: Remediation, step: Step, pause: Pause) -> bool:
    """Whether the pause stops this step. No pause stops the call of a person."""
    gives_back = remediation.phase is Phase.UNDOING or step.kind.gives_back or "touch" in step.parameters
    return "call" not in step.parameters and pause.stops(gives_back=gives_back)


def needs_source(remediation: Remediation) -> bool:
    """Whether the next step, or the claim before it, leads to the first write that ends Pods, which nobody approved."""
    step, taints = remediation.next_step, remediation.proposal.action is ActionKind.TAINT_NODE
    strict = step is not None and step.parameters.get("effect") == "NoExecute"
    return not remediation.approved and (strict if taints else remediation.began_at is None)


def needs(remediation: Remediation) -> WantedInputs:
    main, step = remediation.proposal.objects[0], remediation.next_step
    match remediation.phase:
        case Phase.NOTIFIED if step is None or acts.announces(step):
            return WantedInputs(main, around=True, view=True, budgets=main.kind != "Node")
        case Phase.ACTING if step is not None:
            asks = step.kind.disrupts
            return WantedInputs(
                step.target,
                waiter=_waiting_pod(remediation) if step.kind is StepKind.RESTORE else None,
                around=asks or step.kind is StepKind.RESTORE,
                sent=acts.command_of(step),
                view=asks,
                budgets=main.kind != "Node" or step.parameters.get("effect") == "NoExecute",
                latest=asks,
            )
        case Phase.NOTIFIED | Phase.VERIFYING | Phase.UNDOING if step is not None:
            return WantedInputs(step.target, sent=acts.command_of(step))
        case Phase.VERIFYING:
            return WantedInputs(_verified_on(remediation), around=True, waiter=_waiting_pod(remediation))
        case Phase.IN_EFFECT:
            tainted = remediation.proposal.action is ActionKind.TAINT_NODE
            return WantedInputs(_verified_on(remediation), view=tainted)
        case Phase.UNDOING if remediation.stopped_since is not None:
            return WantedInputs(_verified_on(remediation), around=True)
        case _:
            return WantedInputs()


_ENDS = {Clearance.OBJECTED: Phase.REJECTED, Clearance.GONE: Phase.OBSOLETE}
"""Final phase of a Remediation that may not go on; Refused for all other answers."""


@dataclass(frozen=True, slots=True)
class Advance:
    """One Remediation, at which something is due (`idle`), and what its next Transition depends on. of: the Remediation
    to go on with, if it changed."""

    remediation: Remediation
    inputs: StepInputs
    now: datetime
    policies: ExecutorPolicies

    @property
    def policy(self) -> ExecutePolicy:
        return self.policies.execute

    @property
    def overdue(self) -> bool:
        """Whether the deadline of the phase has passed."""
        deadline = self.remediation.deadline_at
        return deadline is not None and self.now >= deadline

    def after(self, seconds: int) -> datetime:
        return self.now + timedelta(seconds=seconds)

    def transition(self) -> Transition | None:
        """None if there is nothing to do now."""
        remediation = self.remediation
        if not remediation.phase.open:
            return self._undo(Phase.UNDONE, "A person asked for the undo.")
        known, undoing = _unknown(remediation) is None, remediation.phase is Phase.UNDOING
        if (known or undoing) and (called := self._called()):
            return called
        if known and not undoing:
            if remediation.undo_asked:
                end = Phase.UNDONE if remediation.began_at else Phase.REJECTED
                return self._undo(end, "A person asked for the undo.")
            if remediation.rejected and remediation.began_at is None:
                return self._undo(Phase.REJECTED, "A person rejected it.")
        match remediation.phase:
            case Phase.PROPOSED:
                return self._proposed()
            case Phase.NOTIFIED:
                return self._notified()
            case Phase.ACTING:
                return self._acting()
            case Phase.VERIFYING:
                return self._verifying()
            case Phase.IN_EFFECT:
                return self._holding()
            case _:
                return self._undoing()

    def failed(self, error: WriteError) -> Remediation:
        """The Remediation after the write of its next step, or the dry run of that write, failed."""
        intent, policy = self.remediation, self.policy
        step = intent.steps[intent.step]
        tried = replace(step, attempts=step.attempts + 1, error=error.message)
        if error.failure is Failure.UNSURE and step.begun_at is not None:
            return _with_step(replace(intent, next_at=self.after(policy.write_timeout_seconds)), tried)
        if step.kind is not StepKind.COMMAND:  # an earlier Command may still be under way, and nothing shows it
            tried = replace(tried, begun_at=None)
        wait = policy.retry_seconds if intent.stopped_since is not None else policy.retry_after(tried.attempts)
        if error.retry_after_seconds is not None:
            wait = max(wait, int(error.retry_after_seconds) + 1)
        later = _with_step(replace(intent, next_at=self.after(wait)), tried)
        refused = error.failure in (Failure.FORBIDDEN, Failure.INVALID)
        if "call" in step.parameters or (refused and "touch" in step.parameters):  # nothing waits for it
            return self._passed(error.message, _with_step(intent, tried))
        unserved = error.status == 404 and error.failure is Failure.INVALID
        if step.kind is StepKind.DEVICE_TAINT and (unserved or error.failure is Failure.NOT_FOUND):
            return self._without_device_taint(step)
        # NOT_FOUND is retried: the step reads the object again and decides what its absence means.
        if not refused or intent.phase is Phase.UNDOING:
            return later  # an undo is never given up; people see the error
        if acts.optional(step):
            return self._passed(error.message, _with_step(intent, tried))
        if step.kind is StepKind.TAINT and any(other.kind is StepKind.TAINT for other in intent.steps[: intent.step]):
            return self._rung_given_up(f"{step.parameters['effect']} was not written: {error.message}").intent
        return self._undo(Phase.FAILED, error.message, _with_step(intent, tried)).intent

    # PROPOSED and NOTIFIED

    def _proposed(self) -> Transition | None:
        remediation, proposal = self.remediation, self.remediation.proposal
        if self.now >= proposal.expires_at:
            return self._undo(Phase.EXPIRED, "It was not approved in time.")
        if not remediation.approved:
            doubt = distrusted(remediation, precision_by_place(self.inputs.others), MIN_PRECISION_RATIO)
            if proposal.mode is not Mode.ENFORCE or doubt or remediation.history:
                # A history means that it was returned to a person for a decision.
                if doubt and not remediation.history:
                    return self._turn(Phase.PROPOSED, f"It waits for approval: {doubt}")
                return None
        why = (
            f"Approved by {remediation.approved_by or 'a person'}." if remediation.approved else "The mode is enforce."
        )
        # Keep a notification that went out before, so that it can be taken back.
        told = tuple(step for step in remediation.steps if step.begun_at is not None or step.done_at is not None)
        steps = (*told, *acts.notify_steps(remediation, self.now, self.policy))
        begun = replace(remediation, steps=steps, step=len(told), next_at=None, deadline_at=None)
        return self._turn(Phase.NOTIFIED, why, begun)

    def _notified(self) -> Transition | None:
        remediation, policy, view = self.remediation, self.policy, self.inputs.view
        untold = remediation.next_step
        if untold is not None:
            stuck = untold.error and untold.begun_at is None
            if stuck and self._older(_notified_at(remediation), policy.action_timeout_seconds):
                return self._undo(Phase.EXPIRED, f"Its owners could not be notified in time: {untold.error}")
            if acts.announces(untold) and view is not None and not self.inputs.pause.paused:
                # Nobody is told of what would be refused now. What may pass until then is told.
                if (check := self._hindered()) and check.answer is Clearance.WAIT:
                    return self._wait(check.reason)
                if (check := self._cleared()).answer not in (Clearance.GO, Clearance.WAIT):
                    return self._not_now(check)
            return self._step()
        if remediation.deadline_at is None:
            due = self.after(acts.notice_seconds(remediation.proposal, policy))
            end = due + timedelta(seconds=policy.action_timeout_seconds)
            return Transition(self._noted("Owners may object.", replace(remediation, next_at=due, deadline_at=end)))
        if self.inputs.pause.paused or view is None:
            return None
        if self.overdue:
            return self._undo(Phase.EXPIRED, "Guards or budgets did not allow it in time.")
        check = self._cleared()
        if check.answer is not Clearance.GO:
            return self._not_now(check)
        # A move for a waiting Pod has no devices: what it leaves is what that Pod then takes.
        devices = (view.devices[name].node for name in remediation.proposal.devices if name in view.devices)
        avoid = tuple(sorted({node for node in devices if node}))
        found = acts.act_steps(remediation, self.inputs.state, view.snapshot.cluster.claims, avoid, policy)
        if isinstance(found, Blocked):
            answer = Clearance.WAIT if found.passing else Clearance.GONE if found.gone else Clearance.REFUSED
            return self._not_now(Check(answer, found.reason))
        if check.waiter:
            waits = {"waiter": check.waiter}
            found = tuple(
                replace(step, parameters={**step.parameters, **waits}) if step.kind in _FOR_WAITER else step
                for step in found
            )
        whole = {StepKind.RELEASE, StepKind.RESTART}.intersection(step.kind for step in found)
        if whole and (beside := others_of_owner(remediation.proposal, view)):
            return self._not_now(Check(Clearance.REFUSED, beside))
        end = self.after(policy.action_timeout_seconds)
        claimed = replace(remediation, steps=(*remediation.steps, *found), next_at=None, deadline_at=end)
        return self._turn(Phase.ACTING, "All guards and budgets allow it.", claimed)

    def _not_now(self, check: Check) -> Transition:
        """Returns to NOTIFIED or PROPOSED, or ends. The steps of the claim are dropped: none was begun."""
        remediation = self.remediation
        kept = tuple(step for step in remediation.steps if step.kind is StepKind.NOTIFY)
        attempts, told = remediation.attempts + 1, {**remediation.verified, **(check.verified or {})}
        given_up = replace(remediation, steps=kept, step=len(kept), attempts=attempts, verified=told)
        match check.answer:
            case Clearance.WAIT:
                waiting = replace(given_up, next_at=self.after(self.policy.retry_after(attempts)))
                if remediation.phase is Phase.ACTING:
                    waiting = replace(waiting, deadline_at=_first_deadline(remediation, self.policy))
                if check.due is not None and waiting.deadline_at is not None:
                    # What it waits for is gpuwatch's own, and comes: the wait for that is no failure.
                    coming = check.due + timedelta(seconds=self.policy.action_timeout_seconds)
                    waiting = replace(waiting, deadline_at=max(waiting.deadline_at, coming))
                return self._turn(Phase.NOTIFIED, check.reason, waiting)
            case Clearance.ASK:
                return self._turn(Phase.PROPOSED, check.reason, replace(given_up, next_at=None))
            case answer:
                return self._undo(_ENDS.get(answer, Phase.REFUSED), check.reason, given_up)

    # ACTING

    def _acting(self) -> Transition | None:
        remediation = self.remediation
        step = remediation.next_step
        if step is None:
            end = self.after(self.policy.verification_timeout_seconds)
            return self._turn(
                Phase.VERIFYING, "All writes are done.", replace(remediation, next_at=None, deadline_at=end)
            )
        if step.begun_at is None:
            if self.overdue and not step.kind.only_notes:
                return self._late()
            if held_up(remediation, step, self.inputs.pause):
                return None
        # A Command that was begun is sent again. Any other begun step is begun again, unless its effect is there.
        again = step.begun_at is None or step.kind is StepKind.COMMAND
        if (
            step.kind.disrupts
            and again
            and not isinstance(acts.build(step, self.inputs.state, remediation, self.now), Done)
        ):
            check = self._cleared(step)
            if check.answer is not Clearance.GO:
                return self._stopped(step, check)
            if check.ended:
                told = {**step.parameters, ENDED: ",".join(check.ended)}
                remediation = _with_step(remediation, replace(step, parameters=told))
        if step.begun_at is None and (gate := self._gate(step)):
            return self._wait(gate, remediation)
        return replace(self, remediation=remediation)._step()

    def _cleared(self, step: Step | None = None) -> Check:
        """Rechecks everything on fresh facts, before each step that disrupts. It waits for facts that were not read."""
        view, live = self.inputs.view, self.inputs.state.live
        if view is None:
            return Check(Clearance.WAIT, "Fresh facts were not read.")
        if isinstance(live, str):
            return Check(Clearance.WAIT, f"The objects that it would disturb could not be read again: {live}")
        if self.remediation.proposal.action is not ActionKind.TAINT_NODE:
            # Its policy may have changed since the plan. What is written may be a Pod or Kueue's Workload.
            main, owner = self.remediation.proposal.objects[0], self.inputs.state.owner
            if owner is None:
                return Check(Clearance.GONE, f"{main} is gone, or another object has its name.")
            if lost := loses(owner):
                return Check(Clearance.REFUSED, lost)
        if hindered := self._hindered(step):
            return hindered
        again = read_again(self._facts(view), live)
        check = recheck(self.remediation, again, self.inputs.others, self.now, self.policy, step)
        wanted, reads = self.policy.source_read, self.inputs.source
        if check.answer is not Clearance.GO or wanted == "off" or not needs_source(self.remediation):
            return check
        why = not_shown(check.findings, view, reads, self.policies.idle_ratio, wanted == "required")
        return Check(Clearance.WAIT, f"Its exporter does not show the reason now. {why} {_INSTEAD}") if why else check

    def _hindered(self, step: Step | None = None) -> Check | None:
        """Why a move would lose its place in a queue, or why the release that comes may not be written, as just read;
        None for neither. step: None before the first one."""
        state, action = self.inputs.state, self.remediation.proposal.action
        if action in MOVES and (queued := self._queued()):
            return queued
        if step is None and action in MOVES:
            found = acts.act_steps(self.remediation, state, (), (), self.policy)
            comes = not isinstance(found, Blocked) and any(each.kind is StepKind.RELEASE for each in found)
        else:
            comes = action is ActionKind.RELEASE_GANG if step is None else step.kind is StepKind.RELEASE
        if not comes or state.owner is None:
            return None
        answer = may_release(state.owner, state.surroundings)
        if answer.no:
            return Check(Clearance.REFUSED, " ".join(answer.no))
        if answer.unread:
            return Check(Clearance.WAIT, f"It is not known whether it may be released: {' '.join(answer.unread)}")
        return None

    def _facts(self, view: PlanFacts) -> PlanFacts:
        """Under these policies. Precision is measured anew, and the pause read anew and asked before. Without the
        Remediations that have not begun: two that wait for one place would wait for each other, and so would releases
        that make room for one Pod together. But the announced taint of a worse fault goes first."""
        mine = self.remediation.proposal
        known = tuple(
            each
            for each in self.inputs.others
            if not each.announced or (mine.action is ActionKind.TAINT_NODE and outranks(each.proposal, mine, view))
        )
        return replace(view, policy=self.policies.plan, pause=Pause(), precision={}, history=known)

    def _queued(self) -> Check | None:
        """Why a move would lose its place in a queue, as just read; None where no queue admits it."""
        state = self.inputs.state
        if state.surroundings.unread or state.owner is None or state.pods is None:
            what = " ".join(state.surroundings.unread) or "Its owner or its Pods could not be read."
            return Check(Clearance.WAIT, f"It is not known whether a queue admits it: {what}")
        lost = loses_place(state.owner, state.pods, state.surroundings)
        return Check(Clearance.REFUSED, lost) if lost else None

    def _stopped(self, step: Step, check: Check) -> Transition:
        """Waits if the reason may pass. Otherwise drops the remaining steps and undoes the others: a gang resumes, Pods
        that were not evicted stay, and a taint that is in effect does not become stricter."""
        remediation = self.remediation
        if remediation.began_at is None:
            return self._not_now(check)
        if check.answer is Clearance.WAIT:
            return self._wait(check.reason)
        if step.kind is StepKind.HAND_OFF or (step.kind is StepKind.TAINT and _has_taint(remediation)):
            return self._rung_given_up(check.reason)
        disrupting = [each for each in remediation.steps if each.kind.disrupts]
        done = sum(each.done_at is not None for each in disrupting)
        why = f"It stops after {done} of {len(disrupting)} disruptive steps. {check.reason}"
        told = replace(remediation, verified={**remediation.verified, **(check.verified or {})})
        return self._undo(_ENDS.get(check.answer, Phase.REFUSED), why, told)

    def _called(self) -> Transition | None:
        """Calls a person for a gang that was stopped and does not run again in time, or may not be resumed now."""
        remediation, everything = self.remediation, self.inputs.pause.everything
        due = _call_due(remediation, self.policy)
        if due is None or not (everything or self.now >= due):
            return None
        why = _stopped(remediation)
        if everything:
            why += " `gpuwatch pause --all` also stops its resumption: end the pause, or resume it by hand."
        elif told := [step.error for step in remediation.steps if step.error and step.done_at is None]:
            why += f" {told[0]}"
        elif remediation.put_back and (waits := self._waits_for()):
            why += f" Its fields are put back. {waits}"
        called = replace(_with_call(remediation, why), next_at=None)
        return Transition(self._noted(f"A person is called: {why}", called))

    def _late(self) -> Transition:
        if _has_taint(self.remediation):
            return self._rung_given_up("The next step was not written in time.")
        return self._undo(Phase.FAILED, "Its steps were not written in time.")

    def _rung_given_up(self, why: str) -> Transition:
        """Keeps the taint as it is; the next effect is tried after the longest retry delay."""
        remediation = self.remediation
        kept = self._held(replace(remediation, steps=remediation.steps[: remediation.step]))
        return self._turn(Phase.IN_EFFECT, why, replace(kept, next_at=self.after(self.policy.retry_max_seconds)))

    def _gate(self, step: Step) -> str:
        """Why the step must wait for the effect of the step before it; '' if it need not."""
        remediation, state = self.remediation, self.inputs.state
        ours = state.object is not None and held_by(state.object) == remediation.name
        first = "part" not in step.parameters
        if step.kind is StepKind.RESTORE and first and ours and not _release_held(state)[acts.RELEASED]:
            early = state.object is not None and resumes_early(state.object)
            if not early or not self._older(remediation.stopped_since, self.policy.stopped_gang_seconds // 2):
                return "It is resumed once all of its Pods are gone."
        if step.kind is StepKind.RESTORE and first and remediation.proposal.action is ActionKind.MAKE_ROOM:
            # Resumed before, it could take the room again. A person is called for what stays stopped for twice as long.
            waits = _started(self.inputs.waiter) is False
            if waits and not self._older(remediation.stopped_since, self.policy.stopped_gang_seconds // 2):
                return f"It is resumed once {_waiter(remediation)} is placed."
        evictions = sum(other.kind is StepKind.EVICT for other in remediation.steps)
        if step.kind is StepKind.EVICT and evictions > 1 and state.object is not None:
            if state.pods is None or state.owner is None:
                return "Its owner and its other Pods could not be read."
            how = move(state.owner, state.pods, [step.target.uid])
            if isinstance(how, Refused):
                return how.reason
        return ""

    def _step(self) -> Transition | None:
        remediation, state = self.remediation, self.inputs.state
        step, acting = remediation.steps[remediation.step], remediation.phase is Phase.ACTING
        held = held_up(remediation, step, self.inputs.pause)
        if step.begun_at is None and held:
            return None
        built = acts.build(step, state, remediation, self.now)
        if isinstance(built, Done):
            return Transition(self._passed(built.message, _saving(remediation, built.saved)))
        touch = acts.touch_step(step, self.now) if step.begun_at is not None and state.object is not None else None
        if touch is not None and not _touched(remediation, step) and acting:
            # Another process may still send its write; it fails once the object has another version.
            at, behind = remediation.step, remediation.steps[remediation.step :]
            clear = Step(kind=StepKind.CLEAR, target=step.target)
            cleared = any((each.kind, each.target) == (clear.kind, clear.target) for each in behind)
            steps = (*remediation.steps[:at], touch, *behind, *(() if cleared else (clear,)))
            return Transition(replace(remediation, steps=steps, next_at=None))
        forgotten = _with_step(remediation, replace(step, begun_at=None))
        if isinstance(built, Blocked):
            if remediation.phase is Phase.UNDOING or built.passing:
                return self._wait(built.reason)
            if acts.optional(step):
                return Transition(self._passed(built.reason))
            ended = _with_step(remediation, replace(step, begun_at=None, error=built.reason))
            end = Phase.OBSOLETE if built.gone and ended.began_at is None else Phase.FAILED
            return self._undo(end, built.reason, ended)
        if step.begun_at is not None and remediation.undo_asked and remediation.phase is not Phase.UNDOING:
            # It was begun and had no effect. For a Command this cannot be known.
            known = remediation if step.kind is StepKind.COMMAND else forgotten
            end = Phase.UNDONE if known.began_at else Phase.REJECTED
            return self._undo(end, "A person asked for the undo.", known)
        if step.begun_at is not None and acting and not step.kind.only_notes:
            # The object has changed since. A retry needs the same checks as the write.
            if step.kind is not StepKind.COMMAND:
                return Transition(replace(forgotten, next_at=None))
            if self.overdue:
                return self._late()
        if held:
            return None  # wait for `next_at`
        begun = replace(step, begun_at=self.now)
        # Stored with the intent: no process checks the result before the write must have ended.
        settled = self.after(self.policy.write_timeout_seconds)
        behind = remediation.steps[remediation.step + 1 :]
        following = tuple(item for item in built.following if item not in behind)
        whole = (*remediation.steps[: remediation.step], begun, *following, *behind)
        intent = _saving(replace(remediation, steps=whole, next_at=settled), built.saved)
        return Transition(intent, built.request, self._passed("", intent))

    # VERIFYING and IN_EFFECT

    def _verifying(self) -> Transition | None:
        remediation, state = self.remediation, self.inputs.state
        action = remediation.proposal.action
        if remediation.next_step is not None:  # a person is called
            return self._step()
        if action is ActionKind.TAINT_NODE:
            whole = any(step.kind is StepKind.TAINT for step in remediation.steps)
            tainted = "The Node is tainted." if whole else "The degraded devices are tainted; the Node is not."
            return self._turn(Phase.IN_EFFECT, tainted, self._held(remediation))
        held = _release_held(state) if action is ActionKind.RELEASE_GANG else _moved(remediation, state)
        started = _started(self.inputs.waiter) if action is ActionKind.MAKE_ROOM else None
        if started is not None:
            held = {**held, WAITER_STARTED: started}
        seen = replace(remediation, verified={**remediation.verified, **held})
        if all(held.values()):
            if action is ActionKind.RELEASE_GANG:
                return self._freed(seen)
            told = f"{_waiter(seen)} is placed, and the moved Pods run" if started else "Its Pods run on other Nodes"
            return self._turn(Phase.SUCCEEDED, f"{told}.", replace(seen, next_at=None))
        missing = ", ".join(name for name, right in held.items() if not right)
        if self.overdue:
            against = still_holds(state.object) if state.object is not None else ""
            why = f"It could not be verified in time: {missing}{f' ({against})' if against else ''}."
            return self._undo(Phase.FAILED, why, seen)
        return self._wait(f"Not verified yet: {missing}.", seen)

    def _freed(self, freed: Remediation) -> Transition:
        """Its GPUs are free. Waits for the start of the Pod that they were freed for, up to the deadline."""
        name = _waiter(freed)
        started = _started(self.inputs.waiter) if name else None
        if started is None:
            gone = f" {name} no longer waits for them." if name else ""
            return self._turn(Phase.IN_EFFECT, f"Its GPUs are free.{gone}", self._held(freed))
        seen = replace(freed, verified={**freed.verified, WAITER_STARTED: started})
        if started:
            return self._turn(Phase.IN_EFFECT, f"Its GPUs are free, and {name} started.", self._held(seen))
        # Other releases may make room for the same Pod, which needs all of them.
        coming = any(
            each.proposal.waiter == name
            and each.phase in (Phase.NOTIFIED, Phase.ACTING, Phase.VERIFYING)
            and not each.verified.get(acts.RELEASED)
            for each in self.inputs.others
        )
        if coming or WAITER_STARTED not in freed.verified:
            seen = replace(seen, deadline_at=self.after(self.policy.verification_timeout_seconds))
        if seen.deadline_at is None or self.now < seen.deadline_at:
            return self._wait(f"Its GPUs are free; {name} has not started yet.", seen)
        if on_demand(freed.proposal.detectors, self.policies.plan):
            return self._undo(Phase.FAILED, f"{name} did not take the GPUs that were freed for it alone.", seen)
        return self._turn(Phase.IN_EFFECT, f"Its GPUs are free; {name} did not take them.", self._held(seen))

    def _held(self, remediation: Remediation) -> Remediation:
        """Enters IN_EFFECT. Each check that finds a tainted Node degraded moves the taint's end."""
        policy = self.policy
        taints = remediation.proposal.action is ActionKind.TAINT_NODE
        end = self.after(policy.taint_expiry_seconds if taints else policy.release_observation_seconds)
        return replace(remediation, next_at=self.after(policy.check_interval_seconds), deadline_at=end)

    def _holding(self) -> Transition | None:
        remediation, object_ = self.remediation, self.inputs.state.object
        taken_back = replace(remediation, verified={**remediation.verified, TAKEN_BACK: True})
        if remediation.proposal.action is not ActionKind.TAINT_NODE:
            if object_ is None:
                return self._undo(Phase.SUCCEEDED, "The workload was deleted.")
            # The field that released it was saved first; its parents follow.
            main = next((item for item in remediation.saved if item.target.uid == object_["metadata"].get("uid")), None)
            changed = main is not None and as_json(value_at(object_, main.path)) != main.after
            if held_by(object_) != remediation.name or changed:
                who = (main and who_wrote(object_, main.path)) or "Its owner"
                return self._undo(Phase.UNDONE, f"{who} undid the release.", taken_back)
            if self.overdue:
                return self._turn(Phase.SUCCEEDED, "Its owner did not undo the release within the observation time.")
            return Transition(replace(remediation, next_at=self.after(self.policy.check_interval_seconds)))
        if object_ is None:
            return self._undo(Phase.UNDONE, "The Node is gone.")
        taints = [step for step in remediation.steps if step.kind is StepKind.TAINT and step.done_at is not None]
        if taints and not acts.ours_on(object_, remediation, taints[-1].parameters["value"]):
            return self._undo(Phase.UNDONE, "The taint was removed, and not by gpuwatch.", taken_back)
        return None if self.inputs.view is None else self._look_at_health(self.inputs.view, taints)

    def _look_at_health(self, view: PlanFacts, taints: list[Step]) -> Transition | None:
        """Takes the taint back on lasting proof of health; hands off what is still degraded, or raises its taint."""
        remediation = self.remediation
        facts = self._facts(view)
        # Stale facts are no proof of health. The brake does not stop the removal of a taint.
        old = self.now - view.snapshot.at > timedelta(seconds=MAX_FACTS_AGE_SECONDS)
        state, why = (Health.UNKNOWN, "The facts are old.") if old else health(remediation.proposal, facts)
        looked = replace(remediation, clean_since=None, next_at=self.after(self.policy.check_interval_seconds))
        if state is Health.PROVEN:
            return self._proven(looked)
        if state is Health.SICK:
            looked = replace(looked, deadline_at=self.after(self.policy.taint_expiry_seconds))
        elif self.overdue:
            return self._undo(Phase.UNDONE, f"The taint expired: nothing has shown for long how its Node is. {why}")
        barred = bool(taints) and taints[-1].parameters["effect"] != "PreferNoSchedule"
        if barred and not remediation.called_at and (again := sent_back(remediation.proposal, facts)):
            return self._more(looked, acts.call_steps(remediation, again), f"A person is called: {again}")
        if state is Health.SICK and not self.inputs.pause.paused and not stopped_by(facts, self.now):
            handed = _to_hand_off(remediation, facts, taints, self.policy)
            if isinstance(handed, tuple):
                return self._more(looked, handed, f"The Node is still degraded ({why}) and empty: it is handed off.")
            if handed:
                looked = self._noted(handed, looked)
            return self._raised(looked, facts, taints, why)
        return Transition(looked)

    def _proven(self, looked: Remediation) -> Transition:
        """Since when every check found it healthy; a check that came late begins anew."""
        remediation, late = self.remediation, timedelta(seconds=self.policy.check_interval_seconds)
        gap = remediation.next_at is not None and self.now - remediation.next_at > late
        since = self.now if remediation.clean_since is None or gap else remediation.clean_since
        if self._older(since, self.policy.healthy_for_seconds):
            proven = replace(remediation, verified={**remediation.verified, "healthy": True})
            return self._undo(Phase.SUCCEEDED, "The Node is proven healthy.", proven)
        return Transition(replace(looked, clean_since=since))

    def _raised(self, looked: Remediation, facts: PlanFacts, taints: list[Step], why: str) -> Transition:
        """The next effect, once the last one stood long enough; for NoExecute, which ends Pods, a notice period too."""
        rung, policy = _next_rung(taints, self.policy), self.policy
        least = policy.notice_period_seconds if rung == "NoExecute" else 0
        stood = bool(taints) and self._older(taints[-1].done_at, max(policy.taint_escalation_seconds, least))
        if rung is None or not stood or rung_refused(self.remediation, facts, rung, self.inputs.others):
            return Transition(looked)
        step = acts.taint_step(self.remediation, rung)
        return self._more(looked, (step,), f"The Node is still degraded ({why}): {rung} follows.")

    def _more(self, looked: Remediation, steps: tuple[Step, ...], why: str) -> Transition:
        soon = self.after(MAX_FACTS_AGE_SECONDS)
        going = replace(looked, steps=(*looked.steps, *steps), next_at=None, deadline_at=soon)
        return self._turn(Phase.ACTING, why, going)

    def _older(self, at: datetime | None, seconds: int) -> bool:
        return at is not None and self.now - at >= timedelta(seconds=seconds)

    # UNDOING

    def _undo(self, end: Phase, why: str, of: Remediation | None = None) -> Transition:
        """Undoes all writes and then enters `end`; enters it at once if there is nothing to undo."""
        remediation = of or self.remediation
        if remediation.undo_asked:
            remediation = replace(remediation, verified={**remediation.verified, ASKED_BACK: True})
        behind = acts.undo_steps(remediation, self.now)
        if end is Phase.SUCCEEDED and remediation.proposal.action is ActionKind.RELEASE_GANG:
            behind = ()
        # Drop the steps that were not begun.
        kept = tuple(step for step in remediation.steps if step.done_at is not None or step.begun_at is not None)
        going = replace(remediation, steps=(*kept, *behind), step=len(kept), next_at=None, deadline_at=None)
        if not behind:
            return self._turn(end, why, going)
        # Time for the effect of a Command under way to show.
        shown = self.after(self.policy.verification_timeout_seconds)
        return self._turn(Phase.UNDOING, why, replace(going, deadline_at=shown, undo_to=end))

    def _undoing(self) -> Transition | None:
        if self.remediation.next_step is not None:
            return self._step()
        remediation, policy = replace(self.remediation, next_at=None, deadline_at=None), self.policy
        end = remediation.undo_to or Phase.UNDONE
        if remediation.stopped_since is None:
            return self._turn(end, "All changes were undone.", remediation)
        if over := self._over():
            return self._turn(end, f"All changes were undone{over}", remediation)
        again = self.after(policy.check_interval_seconds if remediation.called_at else policy.retry_seconds)
        waiting = replace(remediation, next_at=again)
        return Transition(self._noted("Its fields are put back. Its Pods do not run again yet.", waiting))

    def _over(self) -> str:
        """Why nothing is left to wait for after an undo, as the end of a sentence; '' while its Pods do not run again.
        People take over by changing the field that stopped it, or by deleting the workload or the Remediation."""
        remediation, state = self.remediation, self.inputs.state
        if state.owner is None:
            return "; the workload is gone."
        if ended(state.object) or ended(state.owner):
            return "; it has run to its end."
        if field := changed_since(state.object, remediation.saved):
            return f"; others have set {field} since, and decide about its Pods."
        if state.pods is None or self._running() < self._ran():
            return ""
        return ", and its Pods run again."

    def _running(self) -> int:
        proposal, since = self.remediation.proposal, self.remediation.stopped_since
        return count_running(self.inputs.state.pods or (), proposal.pod_uids, since)

    def _ran(self) -> int:
        """How many Pods ran before it was stopped, or as many as it asks for now."""
        told = [int(step.parameters[acts.RAN]) for step in self.remediation.steps if acts.RAN in step.parameters]
        pods, owner = max(told, default=len(self.remediation.proposal.pod_uids)), self.inputs.state.owner
        return pods if owner is None else most_wanted(owner, pods)

    def _waits_for(self) -> str:
        state = self.inputs.state
        if state.owner is None or state.pods is None:
            return ""
        told = waits_for(state.pods, state.owner, state.surroundings)
        return f"{self._running()} of {self._ran()} Pods run. {told}"

    # Small changes

    def _turn(self, phase: Phase, message: str, of: Remediation | None = None) -> Transition:
        return Transition(self._noted(message, replace(of or self.remediation, phase=phase)))

    def _noted(self, message: str, of: Remediation) -> Remediation:
        """Adds to the history unless phase and message equal the last entry's."""
        last = of.history[-1] if of.history else None
        if last is not None and (last.phase, last.message) == (of.phase, message):
            return of
        return replace(of, history=(*of.history, Turn(self.now, of.phase, message)))

    def _wait(self, why: str, of: Remediation | None = None) -> Transition:
        remediation, policy = of or self.remediation, self.policy
        step = remediation.next_step
        tries = step.attempts + 1 if step is not None else remediation.attempts + 1
        # A stopped gang is looked at often, after any number of tries.
        stopped = remediation.stopped_since is not None
        again = self.after(policy.retry_seconds if stopped else policy.retry_after(tries))
        for soon in (remediation.deadline_at, _call_due(remediation, policy)):
            again = min(again, soon) if soon is not None and self.now < soon else again
        later = replace(remediation, next_at=again)
        if step is not None:
            later = _with_step(later, replace(step, attempts=tries, error=why))
        else:
            later = replace(later, attempts=tries)
        return Transition(self._noted(why, later))

    def _passed(self, message: str, of: Remediation | None = None) -> Remediation:
        """Marks the next step as done, or as not needed."""
        remediation = of or self.remediation
        step = replace(remediation.steps[remediation.step], done_at=self.now, error=message)
        return replace(_with_step(remediation, step), step=remediation.step + 1, next_at=None)

    def _without_device_taint(self, step: Step) -> Remediation:
        """Tries the next API version of DeviceTaintRule, or taints the Node if the cluster serves none."""
        remediation, versions = self.remediation, acts.DEVICE_TAINT_VERSIONS
        later = versions[versions.index(step.target.api_version) + 1 :]
        before, behind = remediation.steps[: remediation.step], remediation.steps[remediation.step :]
        rest = [other for other in behind if other.kind is not StepKind.DEVICE_TAINT]
        if later:
            devices = [other for other in behind if other.kind is StepKind.DEVICE_TAINT]
            taints = [
                replace(each, target=replace(each.target, api_version=later[0]), begun_at=None) for each in devices
            ]
            return replace(remediation, steps=(*before, *taints, *rest), next_at=None)
        taint = acts.first_taint(remediation, self.policy)
        whole = replace(remediation, steps=(*before, taint, *rest), next_at=None)
        return self._noted("The cluster serves no DeviceTaintRule: the Node is tainted.", whole)


_TAINTS = (StepKind.TAINT, StepKind.DEVICE_TAINT)
_FOR_WAITER = (StepKind.RELEASE, StepKind.RESTART, StepKind.EVICT)
"""Steps that free what a waiting Pod takes."""


def _notified_at(remediation: Remediation) -> datetime | None:
    """Start of the current notification phase."""
    turns = takewhile(lambda turn: turn.phase is Phase.NOTIFIED, reversed(remediation.history))
    return min((turn.at for turn in turns), default=None)


def _first_deadline(remediation: Remediation, policy: ExecutePolicy) -> datetime:
    """The deadline set by the notification. A claim that is given up does not extend it."""
    notices = [step for step in remediation.steps if step.kind is StepKind.NOTIFY and "touch" not in step.parameters]
    told = [step.done_at for step in notices if step.done_at is not None]
    last = max(told, default=remediation.proposal.created_at)
    notice = acts.notice_seconds(remediation.proposal, policy)
    return last + timedelta(seconds=notice + policy.action_timeout_seconds)


def _has_taint(remediation: Remediation) -> bool:
    """Whether it has written a taint."""
    return any(step.kind in _TAINTS for step in remediation.steps[: remediation.step])


def _call_due(remediation: Remediation, policy: ExecutePolicy) -> datetime | None:
    """When a person is called; None if nothing is stopped, or a person was called already."""
    since = remediation.stopped_since
    if since is None or any("call" in step.parameters for step in remediation.steps):
        return None
    return since + timedelta(seconds=policy.stopped_gang_seconds)


def _stopped(remediation: Remediation) -> str:
    since = f"{remediation.stopped_since:%Y-%m-%d %H:%M:%S %Z}"
    return f"{remediation.proposal.target} has been stopped since {since}, and does not run again."


def _with_call(remediation: Remediation, why: str) -> Remediation:
    at = remediation.step
    steps = (*remediation.steps[:at], *acts.call_steps(remediation, why), *remediation.steps[at:])
    return replace(remediation, steps=steps)


def unheard(remediation: Remediation, policy: ExecutePolicy, now: datetime) -> Remediation | None:
    """The Remediation with a call as its next step, if a person is due to be called and the record shows no call: as it
    cannot be saved, the call must not wait for it. None otherwise."""
    since = remediation.stopped_since
    if since is None or remediation.called_at or now < since + timedelta(seconds=policy.stopped_gang_seconds):
        return None
    return _with_call(
        remediation, f"{_stopped(remediation)} gpuwatch has not saved this call; it may be unable to write."
    )


def _saving(remediation: Remediation, saved: tuple[Saved, ...]) -> Remediation:
    """Adds saved values, in place of those that an attempt without effect saved for the same field."""
    new = tuple(item for item in saved if item not in remediation.saved)
    if not new:
        return remediation
    places = {(item.target, item.path) for item in new}
    kept = tuple(item for item in remediation.saved if (item.target, item.path) not in places)
    return replace(remediation, saved=(*kept, *new))


def _verified_on(remediation: Remediation) -> ObjectRef:
    """The object on which the outcome is verified: the released one, or the main one."""
    told = [step.target for step in remediation.steps if step.kind in (StepKind.RELEASE, StepKind.RESTART)]
    return told[0] if told else remediation.proposal.objects[0]


def _waiter(remediation: Remediation) -> PodRef:
    """The Pod that the release or the move is for; '' if none."""
    return next((step.parameters["waiter"] for step in remediation.steps if "waiter" in step.parameters), "")


def _waiting_pod(remediation: Remediation) -> ObjectRef | None:
    namespace, _, name = _waiter(remediation).partition("/")
    return ObjectRef("v1", "Pod", name, namespace) if name else None


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
    """Whether the old Pods are gone, and as many ready Pods run on other Nodes."""
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


def _to_hand_off(
    remediation: Remediation, facts: PlanFacts, taints: list[Step], policy: ExecutePolicy
) -> tuple[Step, ...] | str:
    """Steps that hand the tainted Node over to a repair system once it is empty and stays so; else what holds it up, ''
    where nothing is to be handed off now. Empty: no Pod is on it but those that start again with it, and no Pod holds
    one of its devices. A repair system that reboots it asks no PodDisruptionBudget and no opt-out."""
    closed = any(step.parameters["effect"] != "PreferNoSchedule" for step in taints)
    told = any(step.kind is StepKind.HAND_OFF for step in remediation.steps)
    steps = acts.hand_off_steps(remediation, policy)
    if not steps or not policy.hand_off_when_empty or told or not closed:
        return ""
    if missing := unread(facts, ActionKind.EVICT_GANG):
        return f"It is not handed off: {missing}"
    cluster = facts.snapshot.cluster
    here = {pod.ref: pod.node for pods in facts.members.values() for pod in pods}
    here |= {pod.ref: pod.node for pod in cluster.companions if not pod.of_node}
    here |= {
        ref: name
        for name in remediation.proposal.nodes
        for device in facts.devices_of_node.get(name, ())
        for ref in device.pods
    }
    for ref, node in sorted(here.items()):
        if node in remediation.proposal.nodes:
            return f"It is handed off once Pod {ref} has left Node {node}."
    return steps


def _next_rung(taints: list[Step], policy: ExecutePolicy) -> str | None:
    if not taints:
        return None
    ladder, now = policy.ladder, taints[-1].parameters["effect"]
    at = ladder.index(now) + 1 if now in ladder else len(ladder)
    return ladder[at] if at < len(ladder) else None


def _unknown(remediation: Remediation) -> Step | None:
    """The step that was begun and has no result yet."""
    left = (step for step in remediation.steps[remediation.step :] if "touch" not in step.parameters)
    step = next(left, None)
    return step if step is not None and step.begun_at is not None and step.done_at is None else None


def _touched(remediation: Remediation, step: Step) -> bool:
    """Whether its object was touched after the step was begun."""
    before = remediation.steps[: remediation.step]
    return any("touch" in each.parameters and each.target == step.target for each in before[-1:])


def _with_step(remediation: Remediation, step: Step) -> Remediation:
    at = remediation.step
    return replace(remediation, steps=(*remediation.steps[:at], step, *remediation.steps[at + 1 :]))
