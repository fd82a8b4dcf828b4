"""What a workload was measured to need: aligned windows of samples, and the mergeable profile made of them."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime

from gpuwatch.model.telemetry import DeviceId, PodRef, Signal, Vendor


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldWindows:
    """Means of aligned windows of one device while one container of one Pod held it.

    `values[signal][i]` is the mean over (start + i·step, start + (i+1)·step], in SI units; NaN where the window has no
    sample. Of memory it is the window's peak (MEMORY_USED) and its least (MEMORY_FREE), which add up to the card; of a
    counter its rate per second. All arrays are of type 'd' and have the same length, so a window of all signals is one
    column: the joint shape of the demand survives. A signal that nobody exports for the device has no array. Physical
    signals (power) are those of the whole board on a MIG instance. `pod` is '' while nobody held the device.

    In none of the windows between the first and the last sample somebody else had the device. NaN windows before the
    first sample say that the holder was not seen yet, those after the last one that nobody was seen any more. A
    container may have several HeldWindows on one device, never with samples of the same time.
    """

    device: DeviceId
    uuid: str
    vendor: Vendor
    model: str  # as the exporter spells it
    mig_profile: str
    node: str | None
    pod: PodRef
    container: str
    shared: bool  # several Pods on the device: device-wide values cannot be told apart
    start: datetime
    step_seconds: int
    values: Mapping[Signal, array[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfit:
    """A stretch of time, (start, end], in which what a GPU measured says nothing about its workload's need.

    cause: 'throttled', or a FindingKind of a degraded device. All MIG instances of the GPU are meant.
    """

    device_uuid: str
    start: datetime
    end: datetime
    cause: str


@dataclass(frozen=True, slots=True, order=True)
class WorkloadKey:
    """Whose profile it is. `workload` is Workload.id (`Kind/namespace/name`) of the top owner; `gpu_model` is
    Gpu.name of the catalog, or the exporter's spelling where the catalog does not know it; `mig_profile` is '' for a
    whole GPU."""

    workload: str
    container: str
    gpu_model: str
    mig_profile: str = ""

    @property
    def namespace(self) -> str:
        parts = self.workload.split("/")
        return parts[1] if len(parts) > 2 else ""

    def __str__(self) -> str:
        slice_ = f" {self.mig_profile}" if self.mig_profile else ""
        return f"{self.workload}[{self.container}] on {self.gpu_model}{slice_}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell of the joint histogram: windows that looked alike, and their means.

    weight_seconds: decayed device-seconds. Means are ratios from 0 to 1 or SI units; None where the windows of this
    cell had no such sample (cells with and without a signal are never the same cell).
    busy_ratio is the engine's (PROF_GR_ENGINE_ACTIVE, or GPU_UTIL where `WorkloadProfile.coarse_busy`).
    power_watts is the board's, and None on a MIG instance, which has no power of its own.
    """

    weight_seconds: float
    busy_ratio: float
    sm_active_ratio: float | None = None
    tensor_active_ratio: float | None = None
    dram_active_ratio: float | None = None
    power_watts: float | None = None
    pcie_bytes_per_second: float | None = None  # both directions
    nvlink_bytes_per_second: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRun:
    """Framebuffer of one run (one Pod): what it peaked at, and how it got there.

    peak_bytes: the largest window of any of its devices, None where none was measured that was its alone.
    at_start_bytes: the peak of start-up and the ten minutes after it, None where the run's start was not seen: a
    framework that fills the card does so there, and stays flat. started: when it began, None where nobody saw. A Pod
    that is made anew under the same name is another run, told by when it started. devices: the most that its container
    held at the same time.
    """

    pod: PodRef
    first_seen: datetime
    last_seen: datetime
    peak_bytes: float | None
    at_start_bytes: float | None
    capacity_bytes: float | None  # of the device it ran on, used + free + reserved
    device_seconds: float
    started: datetime | None = None
    devices: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DayUse:
    """GPU-hours of one workload on one UTC day, not decayed: what a report of any week adds up.

    allocated_gpu_hours: held time, a MIG instance counting with its share of its GPU
    (catalog.gpus.gpu_share_ratio). busy_gpu_hours: the integral of the engine's activity. unknown_gpu_hours: held,
    without a sample of activity.
    """

    day: date
    allocated_gpu_hours: float
    busy_gpu_hours: float
    unknown_gpu_hours: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadProfile:
    """What one workload did on one kind of device; a few kilobytes, mergeable, decaying.

    cells: the joint histogram. Their weights decay by half each half_life_seconds, as of `as_of`.
    runs: the newest runs, as many as the policy keeps, and all that were there in the last hour; oldest first.
    run_count counts all that ever were.
    observed_seconds and expected_seconds: device-seconds with a usable window, and of all windows in which the device
    was held, neither decayed; their quotient is the coverage. left_out_seconds: reason → device-seconds of windows
    that were measured, but are not in the cells (start_up, ambiguous, throttled, or the FindingKind of a degraded GPU).
    gpus_per_pod: devices that one of the newest Pods held at the same time; pods: Pods at the same time, mean over the
    time in which there was any, and present_seconds how much of such time that is, decayed. resolution: levels per
    signal of the grid that the cells lie on, a power of two; it only ever becomes coarser. coarse_seconds: weight of
    the windows whose engine activity is GPU_UTIL alone; coarse_busy: too many are. days: use per day, the newest few
    weeks, oldest first. cpu_cores and host_memory_bytes: what one Pod asks for, None where no Pod was seen alive.
    """

    key: WorkloadKey
    as_of: datetime
    half_life_seconds: float
    cells: tuple[Cell, ...] = ()
    runs: tuple[MemoryRun, ...] = ()
    run_count: int = 0
    first_seen: datetime
    last_seen: datetime
    observed_seconds: float = 0.0
    expected_seconds: float = 0.0
    left_out_seconds: Mapping[str, float] = field(default_factory=dict)
    gpus_per_pod: int = 1
    pods: float = 1.0
    present_seconds: float = 0.0
    days: tuple[DayUse, ...] = ()
    resolution: int = 32
    coarse_busy: bool = False
    coarse_seconds: float = 0.0
    cpu_cores: float | None = None
    host_memory_bytes: float | None = None

    @property
    def coverage_ratio(self) -> float:
        """Usable share of the held time; 0 where nothing was expected."""
        return min(self.observed_seconds / self.expected_seconds, 1.0) if self.expected_seconds > 0 else 0.0

    def mean(self, signal: str) -> float | None:
        """Mean of one value of the cells, by weight; None where any of the weight has no such value."""
        total, weight = 0.0, 0.0
        for cell in self.cells:
            value = getattr(cell, signal)
            if value is None:
                return None
            total += value * cell.weight_seconds
            weight += cell.weight_seconds
        return total / weight if weight > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerHistogram:
    """Board power of one GPU model, mergeable: bin (of 5 W) → decayed device-seconds.

    idle: windows without engine activity; all: every window. devices: the most boards in any window.
    """

    as_of: datetime
    idle_seconds: Mapping[int, float] = field(default_factory=dict)
    all_seconds: Mapping[int, float] = field(default_factory=dict)
    devices: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerEnvelope:
    """What boards of one model were seen to draw: power stands in for SM_ACTIVE only when held against this.

    floor_watts: low quantile of windows without engine activity; None where none was seen. ceiling_watts: high
    quantile of all windows. devices: how many boards it rests on.
    """

    gpu_model: str
    floor_watts: float | None
    ceiling_watts: float
    devices: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageHour:
    """GPU-hours of one hour, one namespace and one GPU model. A MIG instance counts with its share of its
    GPU (catalog.gpus.gpu_share_ratio).

    `namespace` is '' for time in which nobody held the device. allocated_gpu_hours is the held time (for '' the time
    on offer that nobody took); busy_gpu_hours is the integral of the engine's activity over it, and sm_gpu_hours that
    of SM_ACTIVE, None where no device of the group exports it. unknown_gpu_hours: held, without a sample of activity.
    lost_gpu_hours: cause (a FindingKind) → hours in which a degraded device was not of use.
    """

    hour: datetime
    namespace: str
    gpu_model: str
    allocated_gpu_hours: float
    busy_gpu_hours: float
    sm_gpu_hours: float | None = None
    unknown_gpu_hours: float = 0.0
    lost_gpu_hours: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileBook:
    """All profiles and hourly use up to `until`: what a checkpoint holds. The next update needs only what is newer."""

    until: datetime
    step_seconds: int
    profiles: Mapping[WorkloadKey, WorkloadProfile] = field(default_factory=dict)
    envelopes: Mapping[str, PowerEnvelope] = field(default_factory=dict)  # Gpu.name → envelope
    power: Mapping[str, PowerHistogram] = field(default_factory=dict)  # Gpu.name → what `envelopes` are read from
    usage: tuple[UsageHour, ...] = ()
