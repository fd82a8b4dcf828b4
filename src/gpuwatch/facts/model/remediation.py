"""Remediations: the controller's state and audit trail.

A step's intent is stored before the step is written. A restarted controller reads the intent there, and its effect
from the annotation `gpuwatch.dev/remediation`, which is written in the same request as the change.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from itertools import takewhile

from gpuwatch.facts.model.decision import MOVES, ActionKind, Evidence, HeldRoom, Mode, Score
from gpuwatch.facts.model.telemetry import DeviceId, PodRef


@dataclass(frozen=True, slots=True, order=True)
class ObjectRef:
    """An object of the API server. uid: '' before it exists; a write with one reaches no other object of that name."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""

    def __str__(self) -> str:
        return f"{self.kind}/{self.namespace}/{self.name}" if self.namespace else f"{self.kind}/{self.name}"


OF_NODES = frozenset({ActionKind.TAINT_NODE})
"""Actions on Nodes: a NodeRemediation, which platform administrators approve."""

OF_WORKLOADS = frozenset({*MOVES, ActionKind.RELEASE_GANG})
"""Actions on workloads: a Remediation in their Namespace, which the Namespace's users approve."""

WAITER_STARTED = "waiter_started"
"""In `Remediation.verified`: whether the Pod that the action was for was placed in time. Absent if it is gone."""

RUNNING_ELSEWHERE = "running_elsewhere"
"""In `Remediation.verified`: as many Pods as were moved are ready on other Nodes."""

ASKED_BACK = "asked_back"
"""In `Remediation.verified`: a person asked for the undo, and it has begun."""

ENDED = "ended"
"""In `Step.parameters` of a NoExecute taint: the Namespace of each gang that it ends, once per gang."""

RemediationId = str
"""NAMESPACE/NAME for a workload, NAME for a Node. Names are unique within a Namespace only."""


class Phase(StrEnum):
    """Where a Remediation is. The first six are open: something may still happen to them."""

    PROPOSED = "Proposed"  # waits for approval
    NOTIFIED = "Notified"  # owners were notified, and may object until the notice period ends
    ACTING = "Acting"  # the steps are written, one after the other
    VERIFYING = "Verifying"  # written; checked: released, rescheduled, tainted?
    IN_EFFECT = "InEffect"  # verified; the taint or release stands until proof of health, expiry or undo
    UNDOING = "Undoing"  # what was changed is taken back; a gang that was stopped does not run again yet
    SUCCEEDED = "Succeeded"  # it did what it was for
    FAILED = "Failed"  # a step or its verification failed; what was done was taken back
    UNDONE = "Undone"  # taken back: by a person, its owner, or the taint's expiry
    REJECTED = "Rejected"  # a person rejected it, or an owner objected
    EXPIRED = "Expired"  # not approved in time, or no opening was found
    REFUSED = "Refused"  # a guard refused it on fresh facts
    OBSOLETE = "Obsolete"  # the reason for it went away before all of it was done

    @property
    def open(self) -> bool:
        return self in _OPEN

    @property
    def in_flight(self) -> bool:
        """Whether it counts against the budgets: the cluster is, or may be, changed."""
        return self in (Phase.ACTING, Phase.VERIFYING, Phase.IN_EFFECT, Phase.UNDOING)


_OPEN = frozenset((Phase.PROPOSED, Phase.NOTIFIED, Phase.ACTING, Phase.VERIFYING, Phase.IN_EFFECT, Phase.UNDOING))


class StepKind(StrEnum):
    """One write. Each is idempotent, or detectable on the object itself."""

    NOTIFY = "notify"  # annotation, Event and message on and about the target
    TAINT = "taint"  # the taint on the Node
    UNTAINT = "untaint"  # the taint off the Node
    DEVICE_TAINT = "device_taint"  # a DeviceTaintRule for one device (DRA)
    DEVICE_UNTAINT = "device_untaint"  # the DeviceTaintRule away
    CONDITION = "condition"  # the Node condition GPUDegraded
    HAND_OFF = "hand_off"  # a label or an object for a repair system
    RELEASE = "release"  # suspend or scale to zero through the owner
    COMMAND = "command"  # an order that the owner's controller carries out later (Volcano)
    WITHDRAW = "withdraw"  # such an order taken back before it is carried out
    RESTORE = "restore"  # the saved state back
    RESTART = "restart"  # a rollout: the Pods start anew elsewhere
    EVICT = "evict"  # one Pod through the Eviction API
    CLEAR = "clear"  # gpuwatch's annotations off the object

    @property
    def only_notes(self) -> bool:
        """Whether it changes only gpuwatch's own annotations."""
        return self in (StepKind.NOTIFY, StepKind.CLEAR)

    @property
    def gives_back(self) -> bool:
        """Whether it only takes back what gpuwatch did. An ordinary pause does not stop it."""
        return self in _GIVING_BACK

    @property
    def disrupts(self) -> bool:
        """Whether it ends Pods or keeps them from GPUs, so that all is rechecked before it. A new kind does by
        default."""
        return self not in (StepKind.NOTIFY, StepKind.CONDITION, *_GIVING_BACK)


_STOPPED = frozenset((StepKind.RELEASE, StepKind.RESTORE, StepKind.RESTART, StepKind.EVICT))
"""Steps after which an undo has to see Pods run again, once they are begun."""

_GIVING_BACK = frozenset(
    (StepKind.UNTAINT, StepKind.DEVICE_UNTAINT, StepKind.WITHDRAW, StepKind.RESTORE, StepKind.CLEAR)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One write of a Remediation. parameters: such as a taint's key, value and effect.

    begun_at: when the intent was stored. Without `done_at`, the object has to be read to know if the write happened.
    """

    kind: StepKind
    target: ObjectRef
    parameters: Mapping[str, str] = field(default_factory=dict)
    begun_at: datetime | None = None
    done_at: datetime | None = None
    attempts: int = 0
    error: str = ""  # of the last attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """Value of a field before and after gpuwatch changed it, as JSON; before is '' where the field was absent. An undo
    writes `before` only where the object still has `after`, so that it keeps later changes by others."""

    target: ObjectRef
    path: str  # JSON pointer, e.g. '/spec/suspend'
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Turn:
    """One line of the history."""

    at: datetime
    phase: Phase
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """An action and its reason; immutable once written.

    target: Subject as text. findings: Finding.id, strongest first. detectors: their kinds; the outcome counts for their
    precision. objects: those that steps may write to, with uids. waiter: the pending Pod for which idle GPUs are
    reclaimed, or Pods are moved. room: where its Pods are to land, held until they run again. budgets:
    PodDisruptionBudget → how many of its Pods it selects, which is unknown once they are gone.
    """

    action: ActionKind
    target: str
    reason: str
    findings: tuple[str, ...]
    detectors: tuple[str, ...]
    devices: tuple[DeviceId, ...]
    pods: tuple[PodRef, ...]
    pod_uids: tuple[str, ...]
    nodes: tuple[str, ...]
    objects: tuple[ObjectRef, ...]
    score: Score
    mode: Mode
    created_at: datetime
    expires_at: datetime
    namespace: str = ""
    pool: str = ""
    gpu_model: str = ""
    gpus: int = 0
    framework: str = ""
    waiter: PodRef = ""
    evidence: tuple[Evidence, ...] = ()
    room: tuple[HeldRoom, ...] = ()
    budgets: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remediation:
    """name: derived from action, target uid, day and number of the day, so that two replicas create one object.

    version: resourceVersion of the stored object, '' before; a write names it and fails after another write.
    approved, rejected, undo_asked: what a person set in `spec`. finding_correct: also from there, for a rejected or
    undone one: the finding was right. step: index of the next step; those before it are done.
    clean_since: of a tainted Node: since when every check found it healthy. undo_to: phase after undoing.
    """

    name: str
    proposal: Proposal
    phase: Phase = Phase.PROPOSED
    approved: bool = False
    approved_by: str = ""
    rejected: bool = False
    undo_asked: bool = False
    finding_correct: bool = False
    steps: tuple[Step, ...] = ()
    step: int = 0
    saved: tuple[Saved, ...] = ()
    history: tuple[Turn, ...] = ()
    next_at: datetime | None = None  # when the next work on it is due
    deadline_at: datetime | None = None  # of the phase
    attempts: int = 0  # of the whole action, for the back-off
    verified: Mapping[str, bool] = field(default_factory=dict)  # check → passed
    clean_since: datetime | None = None
    undo_to: Phase | None = None
    version: str = ""

    @property
    def namespace(self) -> str:
        """The workload's Namespace; '' for a Node."""
        return "" if self.proposal.action in OF_NODES else self.proposal.namespace

    @property
    def id(self) -> RemediationId:
        return f"{self.namespace}/{self.name}".removeprefix("/")

    @property
    def changed_at(self) -> datetime:
        return self.history[-1].at if self.history else self.proposal.created_at

    @property
    def next_step(self) -> Step | None:
        """The step at index `step`; None after the last."""
        return self.steps[self.step] if self.step < len(self.steps) else None

    @property
    def announced(self) -> bool:
        """Whether it will act without a further approval, and has not begun. Its place counts against newer proposals,
        not against older ones. A Remediation that waits for a person has no place."""
        goes_on = self.approved or (self.proposal.mode is Mode.ENFORCE and not self.history)
        return self.phase is Phase.NOTIFIED or (self.phase is Phase.PROPOSED and goes_on)

    @property
    def undoable(self) -> bool:
        """Whether it has ended and a person has asked for its undo: a late write may have left a change."""
        over = not self.phase.open and self.phase is not Phase.UNDONE
        return over and self.undo_asked and not self.verified.get(ASKED_BACK)

    @property
    def stands(self) -> bool:
        """Whether a change that it wrote may still be there. An idle gang may stay released for good."""
        released = self.phase is Phase.SUCCEEDED and self.proposal.action is ActionKind.RELEASE_GANG
        return (self.phase.open and not self.put_back) or self.undoable or released

    @property
    def put_back(self) -> bool:
        """Whether its undo has written all that it has to, and waits until the gang runs again."""
        written = all("call" in step.parameters for step in self.steps[self.step :])
        return written and self.phase is Phase.UNDOING and self.stopped_since is not None

    @property
    def called_at(self) -> datetime | None:
        """When a person was called for it last; None if never."""
        called = (step.begun_at for step in self.steps if step.begun_at is not None and "call" in step.parameters)
        return max(called, default=None)

    @property
    def overdue(self) -> bool:
        """Whether a person was called for a gang that still does not run again."""
        return self.called_at is not None and self.stopped_since is not None

    @property
    def stopped_since(self) -> datetime | None:
        """Since when a gang that is to run again has been stopped; None where there is none, as after a release. The
        undo lasts until the gang runs again."""
        moved = self.proposal.action in MOVES and self.verified.get(RUNNING_ELSEWHERE)
        stopped = any(step.kind in _STOPPED and step.begun_at is not None for step in self.steps)
        restores = any(step.kind is StepKind.RESTORE for step in self.steps[self.step :])
        if self.phase is Phase.UNDOING and (stopped or restores) and not moved:
            turns = takewhile(lambda turn: turn.phase is Phase.UNDOING, reversed(self.history))
            undoing = min((turn.at for turn in turns), default=self.proposal.created_at)
        else:
            undoing = None
        if self.proposal.action not in MOVES:
            return undoing
        if self.phase is Phase.VERIFYING and self.verified.get(RUNNING_ELSEWHERE):
            return None  # though Pods of it may still be terminating
        releases = (step for step in self.steps if step.kind is StepKind.RELEASE)
        begun = (step.begun_at for step in releases if step.begun_at is not None)
        return min(begun, default=undoing) if undoing or self.phase in (Phase.ACTING, Phase.VERIFYING) else None

    @property
    def began_at(self) -> datetime | None:
        """When the first write beyond gpuwatch's annotations began; None where none may have changed anything."""
        begun = (step.begun_at for step in self.steps if step.begun_at is not None and not step.kind.only_notes)
        return min(begun, default=None)


def misplaced(remediation: Remediation, namespace: str) -> str:
    """Why a Remediation stored in this Namespace ('' for one of a Node) must not be carried out; '' where it may be.

    Permission to write Remediations in one Namespace must not give access to objects of another.
    """
    proposal = remediation.proposal
    where = f"the Namespace {namespace}" if namespace else "no Namespace"
    if proposal.action not in (OF_WORKLOADS if namespace else OF_NODES):
        return f"its action is {proposal.action}, which no object in {where} may ask for"
    if proposal.namespace != namespace:
        return f"its proposal is for {proposal.namespace or 'no Namespace'!r}, and the object is in {where}"
    if not proposal.objects:
        return "it names no object"
    foreign = [f"{ref}" for ref in proposal.objects if ref.namespace != namespace]
    foreign += [pod for pod in proposal.pods if not namespace or not pod.startswith(f"{namespace}/")]
    if namespace:  # a repair system may keep its object for a Node in any Namespace
        written = (*(step.target for step in remediation.steps), *(saved.target for saved in remediation.saved))
        foreign += [f"{ref}" for ref in written if ref.namespace != namespace]
    return f"it names {foreign[0]}, and is in {where}" if foreign else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """The cluster-wide stop. paused: only writes that take back gpuwatch's changes go on. everything: no write does."""

    paused: bool = False
    everything: bool = False
    since: datetime | None = None
    by: str = ""
    reason: str = ""

    def stops(self, *, gives_back: bool) -> bool:
        return self.everything or (self.paused and not gives_back)
