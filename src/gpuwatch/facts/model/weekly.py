"""The weekly report as values, for every output format."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from gpuwatch.facts.model.decision import ActionKind, Coverage, Finding, Mode
from gpuwatch.facts.model.ledger import Row
from gpuwatch.facts.model.remediation import Phase
from gpuwatch.facts.model.sizing import Abstention, Outcome, Recommendation
from gpuwatch.facts.model.telemetry import Gap


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """GPU-hours and money of a group over the report's time, from the ledger. None: unknown (no signal, no price).

    capacity ≥ allocated ≥ busy ≥ sm. All money but the projections is of the report's time.
    capacity_gpu_hours: of the fleet, with GPUs out of service; None for a team.
    busy_gpu_hours: time in which a kernel ran. unknown_gpu_hours: allocated, and it is not known whether one did, or
    why none did. idle_gpu_hours: proven idle. out_of_service_gpu_hours: without a Pod, and no Pod could have had them.
    wasted_cost: price of time that is known to be without a kernel; for the fleet, with all that no Pod had.
    saving, saving_gpu_hours: what all changes that are advised without a condition would have saved in the report's
    time, plus the time in which allocations were proven idle; never more than cost and allocated_gpu_hours.
    projected_saving_per_week, projected_saving_gpu_hours_per_week: the same for a coming week of the same use.
    projected_conditional_saving_…: what the changes with a condition (`Recommendation.condition`) would save on top.
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
    saving: float | None = None
    saving_gpu_hours: float = 0.0
    projected_saving_per_week: float | None = None
    projected_saving_gpu_hours_per_week: float = 0.0
    projected_conditional_saving_per_week: float | None = None
    projected_conditional_saving_gpu_hours_per_week: float = 0.0


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
    """team: the Namespace, or what its label `team_label` says."""

    team: str
    use: Use
    gpu_models: Mapping[str, float]  # model → allocated GPU-hours
    recommendations: int
    idle_allocations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadUse:
    """One workload with its recommendation or abstention; neither where it was not profiled.

    Hours and money are of the report's time. saving, saving_gpu_hours: the advised change's share of the hours that
    were not idle, plus all hours that were proven idle (idle_gpu_hours); never more than cost and allocated_gpu_hours.
    The projection to a week is in the recommendation.
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
    saving: float | None = None
    saving_gpu_hours: float = 0.0
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

    previous: the fleet's use in the period of the same length before it, in whole days; None where unknown.
    rows: where the fleet's GPU-hours went; they add up to its capacity.
    top_changes: the ten with the largest projected saving per week, by money, then by GPU-hours.
    degraded: the most severe first, then the dearest; degraded_gpu_hours, degraded_cost: Finding.id → GPU-hours and
        cost of its GPUs in the period, from its start on, where the start (and the price) is known. Two findings on one
        GPU have the same hours.
    idle: the dearest first; idle_cost: Finding.id → cost of its hours without work within the period, from its start
        on, where the price is known.
    suspected: allocations that look idle, which nothing proves; suspected_gpu_hours, suspected_cost: theirs, within the
        period. They are no part of idle hours or savings. The cost is None where the price is unknown.
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
    idle_cost: Mapping[str, float] = field(default_factory=dict)
    suspected_gpu_hours: float = 0.0
    suspected_cost: float | None = None
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
