"""The weekly report as values, for every output format."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from gpuwatch.facts.model.decision import ActionKind, Coverage, Finding, Mode
from gpuwatch.facts.model.ledger import Row
from gpuwatch.facts.model.remediation import Phase
from gpuwatch.facts.model.sizing import Abstention, Outcome, Recommendation
from gpuwatch.facts.model.telemetry import Gap
from gpuwatch.facts.model.workload_profile import WorkloadKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """GPU-hours and money of a group over the report's time, from the ledger. None: unknown (no signal, no price).

    capacity ≥ allocated ≥ busy ≥ sm. All money is of the report's time.
    capacity_gpu_hours: of the fleet, with GPUs out of service; None for a team.
    busy_gpu_hours: time in which a kernel ran. unknown_gpu_hours: allocated, and it is not known whether one did, or
    why none did. idle_gpu_hours: proven idle. out_of_service_gpu_hours: without a Pod, and no Pod could have had them.
    wasted_cost: price of the wasted hours (`LeverAccount`), the fleet's with those that no Pod had.
    """

    capacity_gpu_hours: float | None
    allocated_gpu_hours: float
    busy_gpu_hours: float
    sm_gpu_hours: float | None = None
    unknown_gpu_hours: float = 0.0
    idle_gpu_hours: float = 0.0
    out_of_service_gpu_hours: float = 0.0
    cost: float | None = None
    wasted_cost: float | None = None


class LeverKind(StrEnum):
    """What ends a waste."""

    RELEASE = "release"  # give back what is idle now
    RESIZE = "resize"  # another GPU, a slice, a share
    MEMORY_NEED = "memory_need"  # state how much memory a workload needs
    TRY_RUN = "try_run"  # try one run on the cheaper GPU
    MEASURE = "measure"  # export the signals that advice needs
    UNBLOCK = "unblock"  # change what its owner can change, such as the accepted speed
    STARTS = "starts"  # faster starts: image pulls, init containers, loads
    GANGS = "gangs"  # start all members of a gang at once
    FAILURES = "failures"  # fewer failures, and checkpoints more often
    UNREACHABLE = "unreachable"  # another MIG layout


class Sureness(StrEnum):
    """How sure it is that a lever saves what it says."""

    SURE = "sure"  # its evidence says why
    CONDITION = "condition"  # only if a condition holds, which telemetry does not tell
    REFUSED = "refused"  # the plan refuses it
    UP_TO = "up_to"  # at most so much; how much of it can be saved is not known


class Left(StrEnum):
    """Why a wasted hour has no lever."""

    FREE = "free"  # no Pod had it, and none waited
    WAITED_FOR = "waited_for"  # no Pod had it while one waited
    OUTSIDE = "outside"  # used outside Kubernetes
    IDLE_BEFORE = "idle_before"  # a long silence, and nothing to release now
    SUSPECTED = "suspected"  # silent, and not yet proven idle
    ENDS = "ends"  # between two starts, or while its Pod ended
    AFTER_CHANGE = "after_change"  # what the advised change does not save
    NOT_PROFILED = "not_profiled"  # right-sizing did not look at it
    RIGHT_SIZED = "right_sized"  # this one and those below: as AbstentionKind
    COVERAGE = "coverage"
    YOUNG = "young"
    SIGNALS = "signals"
    UNCERTAIN = "uncertain"
    MEMORY_ELASTIC = "memory_elastic"
    VETOED = "vetoed"
    UNKNOWN_GPU = "unknown_gpu"
    UNKNOWN_OWNER = "unknown_owner"
    MOVED = "moved"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """GPU-hours of the report's time, and the price of the priced part; None if there are hours and no price."""

    gpu_hours: float = 0.0
    cost: float | None = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeverPart:
    """A workload, image or Node in a lever. saving_per_week: as in Lever. why: a sentence or a LossCause. change: a
    command; '' without one."""

    name: str
    wasted: Amount
    saving_per_week: float | None = None
    why: str = ""
    change: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """subject: a workload or gang; '' where the parts name them. wasted: the wasted hours of the report's time that it
    stands for. saving_per_week, saving_gpu_hours_per_week: of a coming week of the same use; None without a price.
    evidence: why it saves that, in sentences. needs: what it takes before; of a refused one why, and what would change
    that. change: the command that does it, or that shows more; '' where the recommendation has it as YAML."""

    kind: LeverKind
    sureness: Sureness
    subject: str = ""
    team: str = ""
    wasted: Amount = Amount()
    saving_per_week: float | None = None
    saving_gpu_hours_per_week: float = 0.0
    evidence: str = ""
    needs: str = ""
    change: str = ""
    key: WorkloadKey | None = None  # of the recommendation, which has the YAML
    parts: tuple[LeverPart, ...] = ()
    findings: tuple[str, ...] = ()  # of a release: Finding.id


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOver:
    """Wasted hours without a lever, for one reason. rows: their GPU-hours by row of the ledger. workloads: those with
    the most money, with it, the first ten; count: of all."""

    left: Left
    wasted: Amount
    rows: Mapping[Row, float] = field(default_factory=dict)
    workloads: Mapping[str, Amount] = field(default_factory=dict)
    count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeverAccount:
    """The fleet's GPU-hours: useful + unknown + out_of_service + wasted are its capacity.

    useful: SM activity. unknown: where it is not known whether they were useful, or what the GPU did. wasted: all
    others, which the levers' and the leftovers' hours and costs add up to.
    """

    useful: Amount = Amount()
    unknown: Amount = Amount()
    out_of_service: Amount = Amount()
    wasted: Amount = Amount()
    levers: tuple[Lever, ...] = ()  # the surest first, then by saving
    left: tuple[LeftOver, ...] = ()  # most money first
    saving_per_week: float | None = 0.0  # of the levers that are sure; None without a price
    saving_gpu_hours_per_week: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RowHours:
    """The fleet's GPU-hours in one row of the ledger, known and unknown, and the cost of both; None without a price."""

    row: Row
    gpu_hours: float
    unknown_gpu_hours: float
    cost: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UsePoint:
    """Mean GPUs of the fleet in the hour (or day) that begins at `at`. None: not measured."""

    at: datetime
    allocatable_gpus: float | None  # in service
    allocated_gpus: float | None
    busy_gpus: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamUse:
    """team: the Namespace, or what its label `team_label` says. saving_per_week, saving_gpu_hours_per_week: of the
    levers that are sure; None without a price. left: why most of the money has no lever; None where nothing is left."""

    team: str
    use: Use
    gpu_models: Mapping[str, float]  # model → allocated GPU-hours
    recommendations: int
    idle_allocations: int
    saving_per_week: float | None = None
    saving_gpu_hours_per_week: float = 0.0
    left: Left | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadUse:
    """One workload with its recommendation or abstention; neither where it was not profiled.

    Hours and money are of the report's time. idle_gpu_hours: proven idle. wasted_cost: as in Use.
    """

    workload: str
    namespace: str
    gpu_model: str
    allocated_gpu_hours: float
    busy_ratio: float | None
    sm_active_ratio: float | None
    memory_peak_bytes: float | None
    cost: float | None
    busy_gpu_hours: float = 0.0
    idle_gpu_hours: float = 0.0
    wasted_cost: float | None = None
    recommendation: Recommendation | None = None
    abstention: Abstention | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionTaken:
    """A Remediation that was proposed or open within the report's time.

    phase: when the report is written. said: the last line of its history, else the reason of its proposal.
    released_gpu_hours: GPU-hours of the report's time that a release freed, from the moment its GPUs were verified free
    until it was undone or expired; 0 for other actions.
    """

    name: str
    action: ActionKind
    target: str
    namespace: str
    pool: str
    gpus: int
    mode: Mode
    approved_by: str
    proposed_at: datetime
    changed_at: datetime
    phase: Phase
    reason: str
    said: str
    detectors: tuple[str, ...] = ()
    released_gpu_hours: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorRecord:
    """How often a detector was right, over all stored Remediations, and the 95 % interval of its precision."""

    detector: str
    right: int
    wrong: int
    lower_ratio: float
    upper_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WeeklyReport:
    """The report of (start, end].

    cluster: its name in the settings; '' without one. levers: what could end the waste, and what is left of it.
    previous: the fleet's use in the period of the same length before it, in whole days; None where unknown.
    rows: where the fleet's GPU-hours went; they add up to its capacity.
    top_changes: the ten with the largest projected saving per week, by money, then by GPU-hours.
    degraded: the most severe first, then the dearest; degraded_gpu_hours, degraded_cost: Finding.id → GPU-hours and
        cost of its GPUs in the period, from its start on, where the start (and the price) is known. Two findings on one
        GPU have the same hours.
    idle: most GPU-hours first; their hours and money are in the levers.
    suspected: allocations that look idle, which nothing proves.
    unusable: GPUs out of service, allocated to Pods that do not run, or used outside Kubernetes, at the period's end;
        unusable_gpu_hours: Finding.id → their GPU-hours within the period, where their start is known. Those that were
        over before the end are not in it.
    currency: of all money, ISO 4217. actions: newest first; None where no Remediations were read.
    actions_note: why there are none, as a sentence.
    """

    version: int
    at: datetime
    start: datetime
    end: datetime
    source: str
    fleet: Use
    previous: Use | None
    rows: tuple[RowHours, ...]
    curve: tuple[UsePoint, ...]
    teams: tuple[TeamUse, ...]
    workloads: tuple[WorkloadUse, ...]
    top_changes: tuple[Recommendation, ...]
    idle: tuple[Finding, ...]
    degraded: tuple[Finding, ...]
    suspected: tuple[Finding, ...] = ()
    degraded_gpu_hours: Mapping[str, float] = field(default_factory=dict)
    degraded_cost: Mapping[str, float] = field(default_factory=dict)
    unusable: tuple[Finding, ...] = ()
    unusable_gpu_hours: Mapping[str, float] = field(default_factory=dict)
    outcomes: tuple[Outcome, ...] = ()
    actions: tuple[ActionTaken, ...] | None = None
    actions_note: str = ""
    detectors: tuple[DetectorRecord, ...] = ()
    coverage: Coverage = Coverage()
    coverage_ratio: float | None = None  # of the allocated time, whose use is known
    currency: str = "USD"
    limits: tuple[str, ...] = ()  # full sentences: what these numbers cannot say
    gaps: tuple[Gap, ...] = ()
    levers: LeverAccount = LeverAccount()
    cluster: str = ""
