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

    capacity ≥ allocated ≥ busy ≥ sm. wasted_usd is the price of allocated time in which the engine did nothing, plus
    that of time which nobody took where `capacity` is the fleet's; savable_usd_per_week is what the recommendations
    and the idle allocations would save each week.
    """

    capacity_gpu_hours: float | None
    allocated_gpu_hours: float
    busy_gpu_hours: float
    sm_gpu_hours: float | None = None
    unknown_gpu_hours: float = 0.0
    idle_gpu_hours: float = 0.0  # of allocations that were found idle
    lost_gpu_hours: float = 0.0  # to degraded devices
    cost_usd: float | None = None
    wasted_usd: float | None = None
    savable_usd_per_week: float | None = None
    savable_gpu_hours_per_week: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UsePoint:
    """One point of the fleet's curve: mean GPUs in the hour (or day) that begins at `at`. Gaps are None."""

    at: datetime
    capacity_gpus: float | None
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
    """One workload with what is advised for it, one of the two, or neither where it was not profiled."""

    workload: str
    namespace: str
    gpu_model: str
    allocated_gpu_hours: float
    busy_ratio: float | None
    sm_active_ratio: float | None
    memory_peak_bytes: float | None
    cost_usd: float | None
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
    length; None where that is not known. top_changes: the ten worth most, money first, then GPU-hours. actions: newest
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
