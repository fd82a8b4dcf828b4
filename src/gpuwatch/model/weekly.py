"""The weekly report as values: what the pages show, in every form that it is written in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from gpuwatch.model.decision import ActionKind, Coverage, Finding, Mode
from gpuwatch.model.remediation import Phase
from gpuwatch.model.sizing import Abstention, Outcome, Recommendation
from gpuwatch.model.telemetry import Gap


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """GPU-hours and money of a group over the report's time. None: not known (no signal, no price).

    capacity ≥ allocated ≥ busy ≥ sm. cost is of the report's time, and so is all money but the projections. wasted_cost
    is the price of allocated time in which the engine did nothing, plus that of time which nobody took where `capacity`
    is the fleet's. saving and saving_gpu_hours are what would have been saved in the report's time, had all that is
    advised been so from its start: the advised changes' share of what their workloads cost, and the hours in which
    allocations were proven idle; never more than cost and allocated_gpu_hours. The same of a whole week to come, if it
    goes on like this, are the projections: projected_saving_per_week, projected_saving_gpu_hours_per_week.
    """

    allocatable_gpu_hours: float | None
    allocated_gpu_hours: float
    busy_gpu_hours: float
    sm_gpu_hours: float | None = None
    unknown_gpu_hours: float = 0.0
    idle_gpu_hours: float = 0.0  # of allocations that were found idle
    lost_gpu_hours: float = 0.0  # to degraded devices
    cost: float | None = None
    wasted_cost: float | None = None
    saving: float | None = None
    saving_gpu_hours: float = 0.0
    projected_saving_per_week: float | None = None
    projected_saving_gpu_hours_per_week: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UsePoint:
    """One point of the fleet's curve: mean GPUs in the hour (or day) that begins at `at`. Gaps are None."""

    at: datetime
    allocatable_gpus: float | None
    allocated_gpus: float | None
    busy_gpus: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamUse:
    """One namespace."""

    namespace: str
    use: Use
    gpu_models: Mapping[str, float]  # model → allocated GPU-hours
    recommendations: int
    idle_allocations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadUse:
    """One workload with what is advised for it, one of the two, or neither where it was not profiled.

    Hours and money are of the report's time. saving, saving_gpu_hours: what would have been saved in it, never more
    than cost and allocated_gpu_hours: the advised change's share of the hours that were not idle, and all of those that
    were proven idle (idle_gpu_hours). The projection to a week is in the recommendation.
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
    """A Remediation that was proposed, or under way, within the report's time. phase and said are how it stands when
    the report is written: the last line of its history, else why it was proposed.

    released_gpu_hours: GPU-hours within the report's time that a release gave to others: from when its GPUs were seen
    to be free until it was taken back, or until its hold was over; 0 of other actions.
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
    """How often a detector was right, by the verified outcomes of all Remediations that are kept, not of this time
    alone; with the 95 % interval of its precision."""

    detector: str
    right: int
    wrong: int
    lower_ratio: float
    upper_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WeeklyReport:
    """Everything that is in the report of (start, end]. `previous` is the fleet's use of the time before, of the same
    length; None where that is not known. top_changes: the ten worth most in a
    week, as projected, money first, then GPU-hours. currency: of all money, ISO 4217. actions: newest
    first; None where no Remediations were read. actions_note: why there are none, as a sentence."""

    version: int
    at: datetime
    start: datetime
    end: datetime
    source: str
    fleet: Use
    previous: Use | None
    curve: tuple[UsePoint, ...]
    teams: tuple[TeamUse, ...]
    workloads: tuple[WorkloadUse, ...]
    top_changes: tuple[Recommendation, ...]
    idle: tuple[Finding, ...]
    degraded: tuple[Finding, ...]
    lost_gpu_hours_by_cause: Mapping[str, float] = field(default_factory=dict)
    outcomes: tuple[Outcome, ...] = ()
    actions: tuple[ActionTaken, ...] | None = None
    actions_note: str = ""
    detectors: tuple[DetectorRecord, ...] = ()
    coverage: Coverage = Coverage()
    coverage_ratio: float | None = None  # of the week's held time with a sample of activity
    currency: str = "USD"
    limits: tuple[str, ...] = ()  # full sentences: what these numbers cannot say
    gaps: tuple[Gap, ...] = ()
