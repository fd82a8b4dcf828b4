"""What a workload needs, by measurement: aligned windows of samples, and the mergeable profile built from them."""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime

from gpuwatch.facts.model.telemetry import DeviceId, PodRef, Signal


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldWindows:
    """Means of aligned windows of one device while it was allocated to one container of one Pod; pod '' while free.

    `values[signal][i]` is the mean over (start + i·step, start + (i+1)·step], in SI units; NaN without a sample.
    MEMORY_USED is the window's maximum, MEMORY_FREE its minimum (they add up to the card); a counter is its rate per
    second. All arrays are of type 'd' and have the same length. A signal that is not exported for the device has none.
    On a MIG instance, physical signals (power) are those of the whole board.

    No other container had the device between the first and the last sample. Windows before the first and after the last
    sample are NaN. A container may have several HeldWindows on one device, never with samples of the same time.
    """

    device: DeviceId
    uuid: str
    model: str  # as the exporter spells it
    mig_profile: str
    pod: PodRef
    container: str
    shared: bool  # several Pods on the device: device-wide values cannot be attributed
    start: datetime
    step_seconds: int
    values: Mapping[Signal, "array[float]"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfit:
    """A time, (start, end], in which a GPU's measurements do not show its workload's need. It covers all its MIG
    instances. cause: 'throttled', or a FindingKind of a degraded device."""

    device_uuid: str
    start: datetime
    end: datetime
    cause: str


@dataclass(frozen=True, slots=True, order=True)
class WorkloadKey:
    """Key of a profile. workload: Workload.id (`Kind/namespace/name`) of the top owner. gpu_model: Gpu.name of the
    catalog, or the exporter's spelling where the catalog lacks it. mig_profile: '' for a whole GPU."""

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
    """One cell of the joint histogram: similar windows, and their means.

    weight_seconds: decayed device-seconds. Means are ratios from 0 to 1 or SI units; None where the cell's windows have
    no such sample (windows with and without a signal never share a cell).
    busy_ratio: PROF_GR_ENGINE_ACTIVE, or GPU_UTIL where `WorkloadProfile.coarse_busy`.
    power_watts: the board's; None on a MIG instance, which has no power reading of its own.
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
    """Framebuffer of one run (one Pod).

    peak_bytes: the largest window of any of its devices; None where no unshared device was measured.
    at_start_bytes: the peak of start-up and the ten minutes after it, when a framework that fills the card does so;
    None where the run's start was not observed.
    started: None where not observed. A Pod recreated under the same name, with another start, is another run.
    devices: the most that its container held at the same time.
    decoder_peak_ratio, encoder_peak_ratio: the busiest window of NVDEC and NVENC; None where not exported, or shared.
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
    decoder_peak_ratio: float | None = None
    encoder_peak_ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DayUse:
    """GPU-hours of one workload on one UTC day, not decayed; reports add them up.

    allocated_gpu_hours: a MIG instance counts with its share of its GPU (catalog.gpus.gpu_share_ratio).
    busy_gpu_hours: the integral of engine activity. unknown_gpu_hours: allocated, without a sample of activity.
    """

    day: date
    allocated_gpu_hours: float
    busy_gpu_hours: float
    unknown_gpu_hours: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadProfile:
    """Use of one kind of device by one workload; a few kilobytes, mergeable, decaying.

    cells: the joint histogram. Weights halve every half_life_seconds, as of `as_of`.
    runs: the newest runs, as many as the policy keeps, and all of the last hour; oldest first. run_count: all ever.
    observed_seconds, expected_seconds: device-seconds with a usable window, and of all windows in which the device was
    allocated, neither decayed; their quotient is the coverage.
    left_out_seconds: reason → device-seconds of measured windows that are not in the cells (start_up, ambiguous,
    throttled, or the FindingKind of a degraded GPU).
    gpus_per_pod: devices that one of the newest Pods held at the same time.
    pods: simultaneous Pods, mean over the time with any; present_seconds: length of that time, decayed.
    resolution: levels per signal of the cells' grid, a power of two; it only ever becomes coarser.
    coarse_seconds: weight of the windows whose engine activity is GPU_UTIL; coarse_busy: too many are.
    days: use per day, the newest few weeks, oldest first.
    cpu_cores, host_memory_bytes: requests of one Pod; None where no Pod was observed alive.
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
        """Usable share of the allocated time; 0 where nothing was expected."""
        return min(self.observed_seconds / self.expected_seconds, 1.0) if self.expected_seconds > 0 else 0.0

    @property
    def memory_peak_bytes(self) -> float | None:
        """The largest of any run; None where none was measured."""
        return max((run.peak_bytes for run in self.runs if run.peak_bytes is not None), default=None)

    def mean(self, signal: str) -> float | None:
        """Weighted mean of one field of the cells; None where any cell lacks it."""
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
    """Observed power range of the boards of one model; estimating SM_ACTIVE from power needs it.

    floor_watts: low quantile of windows without engine activity; None where there was none. ceiling_watts: high
    quantile of all windows. devices: number of boards measured.
    """

    gpu_model: str
    floor_watts: float | None
    ceiling_watts: float
    devices: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileBook:
    """All profiles up to `until`: the content of a checkpoint. The next update reads what is newer."""

    until: datetime
    step_seconds: int
    profiles: Mapping[WorkloadKey, WorkloadProfile] = field(default_factory=dict)
    envelopes: Mapping[str, PowerEnvelope] = field(default_factory=dict)  # Gpu.name → envelope
    power: Mapping[str, PowerHistogram] = field(default_factory=dict)  # Gpu.name → what `envelopes` are read from
