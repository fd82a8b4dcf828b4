"""Measurements: signals, window statistics, devices and their readings.

All values are in SI units (bytes, seconds, hertz, watts, degrees Celsius) or ratios from 0 to 1; the telemetry room
converts each vendor's units and metric names.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, StrEnum
from typing import TypeAlias

DeviceId: TypeAlias = str
"""`UUID` of a whole GPU or `UUID/GI` of a MIG instance (GI: the GPU-instance id). Instances have the UUID of their
parent; GI ids change with the MIG layout."""

PodRef: TypeAlias = str
"""`namespace/name` of a Pod."""


class Vendor(StrEnum):
    NVIDIA = "nvidia"
    AMD = "amd"
    INTEL = "intel"
    GAUDI = "gaudi"


class Scope(StrEnum):
    """What a signal describes. A PHYSICAL one (power, temperature, XID, ECC …) repeats on every MIG row of its GPU, so
    it is keyed by UUID and never summed over rows; an INSTANCE one is keyed by DeviceId. A MACHINE one (NVSwitches) has
    rows without a GPU; each GPU of the scrape target has its value, keyed by UUID."""

    PHYSICAL = "physical"
    INSTANCE = "instance"
    MACHINE = "machine"


class Signal(StrEnum):
    """The vendor-neutral vocabulary. The unit is the suffix; a name without one is a code or a count."""

    # Activity. BUSY_RATIO is the best engine-activity signal that a device has: PROF_GR_ENGINE_ACTIVE where
    # profiling works, the coarser GPU_UTIL elsewhere (GPU_UTIL is missing on MIG: NVIDIA/dcgm-exporter#216).
    BUSY_RATIO = "busy_ratio"
    ENGINE_ACTIVE_RATIO = "engine_active_ratio"
    GPU_UTIL_RATIO = "gpu_util_ratio"
    SM_ACTIVE_RATIO = "sm_active_ratio"
    TENSOR_ACTIVE_RATIO = "tensor_active_ratio"
    DRAM_ACTIVE_RATIO = "dram_active_ratio"
    MEMORY_COPY_UTIL_RATIO = "memory_copy_util_ratio"
    ENCODER_UTIL_RATIO = "encoder_util_ratio"
    DECODER_UTIL_RATIO = "decoder_util_ratio"
    PCIE_TX_BYTES_PER_SECOND = "pcie_tx_bytes_per_second"
    PCIE_RX_BYTES_PER_SECOND = "pcie_rx_bytes_per_second"
    NVLINK_BYTES_PER_SECOND = "nvlink_bytes_per_second"
    # Memory
    MEMORY_USED_BYTES = "memory_used_bytes"
    MEMORY_FREE_BYTES = "memory_free_bytes"
    MEMORY_RESERVED_BYTES = "memory_reserved_bytes"
    MEMORY_TOTAL_BYTES = "memory_total_bytes"
    # Physics
    POWER_WATTS = "power_watts"
    POWER_LIMIT_WATTS = "power_limit_watts"
    ENERGY_JOULES_TOTAL = "energy_joules_total"
    GPU_TEMPERATURE_CELSIUS = "gpu_temperature_celsius"
    MEMORY_TEMPERATURE_CELSIUS = "memory_temperature_celsius"
    TEMPERATURE_MARGIN_CELSIUS = "temperature_margin_celsius"
    SM_CLOCK_HERTZ = "sm_clock_hertz"
    MEMORY_CLOCK_HERTZ = "memory_clock_hertz"
    # Throttling. The *_SECONDS_TOTAL are cumulative time; CLOCK_EVENT_REASONS_BITS is NVML's bit mask;
    # CLOCK_EVENTS_WINDOW_COUNT is the exporter's own windowed gauge, one row per reason (its variant).
    THERMAL_THROTTLE_SECONDS_TOTAL = "thermal_throttle_seconds_total"
    THERMAL_THROTTLE_RATIO = "thermal_throttle_ratio"
    MEMORY_THERMAL_THROTTLE_RATIO = "memory_thermal_throttle_ratio"
    POWER_THROTTLE_SECONDS_TOTAL = "power_throttle_seconds_total"
    HW_POWER_BRAKE_SECONDS_TOTAL = "hw_power_brake_seconds_total"
    CLOCK_EVENT_REASONS_BITS = "clock_event_reasons_bits"
    CLOCK_EVENTS_WINDOW_COUNT = "clock_events_window_count"
    # Faults. XID_CODE is the last XID (a code, not a count: never rate() or increase() it);
    # the window count and the total have one row per XID (their variant).
    XID_CODE = "xid_code"
    XID_WINDOW_COUNT = "xid_window_count"
    XID_EVENTS_TOTAL = "xid_events_total"
    RECOVERY_ACTION_CODE = "recovery_action_code"
    HEALTH_STATUS_CODE = "health_status_code"  # 0 pass, 10 warn, 20 fail; variant: health watch;error code
    VENDOR_HEALTHY_STATE = "vendor_healthy_state"  # 1 healthy, 0 not (AMD gpu_health and the like)
    ECC_SBE_VOLATILE_TOTAL = "ecc_sbe_volatile_total"
    ECC_DBE_VOLATILE_TOTAL = "ecc_dbe_volatile_total"
    ECC_DEFERRED_TOTAL = "ecc_deferred_total"
    ECC_SBE_AGGREGATE_TOTAL = "ecc_sbe_aggregate_total"
    ECC_DBE_AGGREGATE_TOTAL = "ecc_dbe_aggregate_total"
    SRAM_ECC_THRESHOLD_EXCEEDED_STATE = "sram_ecc_threshold_exceeded_state"
    MEMORY_UNREPAIRABLE_STATE = "memory_unrepairable_state"
    REMAP_BANKS_LOW_COUNT = "remap_banks_low_count"
    REMAP_BANKS_EXHAUSTED_COUNT = "remap_banks_exhausted_count"
    ROW_REMAP_FAILED_STATE = "row_remap_failed_state"
    ROW_REMAP_PENDING_STATE = "row_remap_pending_state"
    ROW_REMAP_CORRECTABLE_TOTAL = "row_remap_correctable_total"
    ROW_REMAP_UNCORRECTABLE_TOTAL = "row_remap_uncorrectable_total"
    PAGES_RETIRED_SBE_TOTAL = "pages_retired_sbe_total"
    PAGES_RETIRED_DBE_TOTAL = "pages_retired_dbe_total"
    PAGES_RETIRED_PENDING_STATE = "pages_retired_pending_state"
    PCIE_REPLAYS_TOTAL = "pcie_replays_total"
    PCIE_LINK_WIDTH_LANES = "pcie_link_width_lanes"
    PCIE_LINK_WIDTH_MAX_LANES = "pcie_link_width_max_lanes"
    PCIE_LINK_GENERATION = "pcie_link_generation"
    NVLINK_CRC_FLIT_ERRORS_TOTAL = "nvlink_crc_flit_errors_total"
    NVLINK_CRC_DATA_ERRORS_TOTAL = "nvlink_crc_data_errors_total"
    NVLINK_REPLAY_ERRORS_TOTAL = "nvlink_replay_errors_total"
    NVLINK_RECOVERY_ERRORS_TOTAL = "nvlink_recovery_errors_total"
    # NVLink 5 (Blackwell) over all links, of LINK_DOWNS the worst one; the link to the CPU (C2C).
    NVLINK_RX_SYMBOL_ERRORS_TOTAL = "nvlink_rx_symbol_errors_total"
    NVLINK_RX_MALFORMED_PACKETS_TOTAL = "nvlink_rx_malformed_packets_total"
    NVLINK_RX_DROPPED_PACKETS_TOTAL = "nvlink_rx_dropped_packets_total"
    NVLINK_RX_ERRORS_TOTAL = "nvlink_rx_errors_total"
    NVLINK_RX_REMOTE_ERRORS_TOTAL = "nvlink_rx_remote_errors_total"
    NVLINK_RX_GENERAL_ERRORS_TOTAL = "nvlink_rx_general_errors_total"
    NVLINK_INTEGRITY_ERRORS_TOTAL = "nvlink_integrity_errors_total"
    NVLINK_EFFECTIVE_ERRORS_TOTAL = "nvlink_effective_errors_total"
    NVLINK_LINK_RECOVERIES_TOTAL = "nvlink_link_recoveries_total"
    NVLINK_FAILED_RECOVERIES_TOTAL = "nvlink_failed_recoveries_total"
    NVLINK_ECC_ERRORS_TOTAL = "nvlink_ecc_errors_total"
    NVLINK_LINK_DOWNS_TOTAL = "nvlink_link_downs_total"
    LINK_UP_STATE = "link_up_state"
    ECC_ON_STATE = "ecc_on_state"  # whether the memory's error correction is on
    VGPU_LICENSED_STATE = "vgpu_licensed_state"  # 1: a virtual GPU has its licence; 0 on others too
    INFOROM_VALID_STATE = "inforom_valid_state"  # 0: its checksums are wrong
    C2C_ERRORS_TOTAL = "c2c_errors_total"
    C2C_REPLAYS_TOTAL = "c2c_replays_total"
    C2C_REPEATED_REPLAYS_TOTAL = "c2c_repeated_replays_total"
    # The fabric of a machine or rack. NVSWITCH_…_CODE is the last SXid; NVLINK_EFFECTIVE_BER_BITS as nvml.h packs it.
    FABRIC_MANAGER_CODE = "fabric_manager_code"
    FABRIC_HEALTH_CODE = "fabric_health_code"
    FABRIC_HEALTH_BITS = "fabric_health_bits"
    IMEX_DAEMON_CODE = "imex_daemon_code"
    NVSWITCH_FATAL_CODE = "nvswitch_fatal_code"
    NVSWITCH_NON_FATAL_CODE = "nvswitch_non_fatal_code"
    NVLINK_EFFECTIVE_BER_BITS = "nvlink_effective_ber_bits"
    PEER_ACCESS_CODE = "peer_access_code"

    @property
    def unit(self) -> str:
        """The unit as reports print it; '' for codes, states and counts."""
        for suffix, unit in _UNITS:
            if self.value.endswith(suffix):
                return unit
        return ""


_UNITS = (
    ("_bytes_per_second", "bytes/second"),
    ("_seconds_total", "seconds"),
    ("_joules_total", "joules"),
    ("_ratio", "ratio"),
    ("_bytes", "bytes"),
    ("_watts", "watts"),
    ("_celsius", "celsius"),
    ("_hertz", "hertz"),
    ("_lanes", "lanes"),
)


class Statistic(StrEnum):
    """An aggregate of a signal's samples in the window (at − window, at], left-open as in Prometheus 3."""

    LAST = "last"  # the value an instant query gives at `at`: 5 min look-back, staleness honoured. window 0
    MIN = "min"
    MAX = "max"
    AVG = "avg"
    COUNT = "count"  # samples in the window, the basis of coverage
    QUANTILE = "quantile"  # parameter: 0..1
    FRACTION_ABOVE = "fraction_above"  # share of samples strictly above `parameter`
    FRACTION_BITS = "fraction_bits"  # share of samples with any bit of the mask `parameter` set
    INCREASE = "increase"  # PromQL increase(): resets handled, extrapolated to the window's edges
    CHANGES = "changes"  # how often the value changed
    APPEARED = "appeared"  # value of a series with samples in the window and none in the window before it
    DISAPPEARED = "disappeared"  # last value of a series with samples in the window and none in its last 5 min


@dataclass(frozen=True, slots=True)
class WindowStat:
    """One statistic of one signal over one window, as rules request it.

    >>> WindowStat(Signal.SM_CLOCK_HERTZ, Statistic.AVG, 900).key
    'sm_clock_hertz:avg:900'
    >>> WindowStat(Signal.BUSY_RATIO, Statistic.FRACTION_ABOVE, 3600, 0.01).key
    'busy_ratio:fraction_above(0.01):3600'
    """

    signal: Signal
    statistic: Statistic
    window_seconds: int = 0
    parameter: float | None = None

    @property
    def key(self) -> str:
        """Its key in Readings and in a saved Snapshot."""
        parameter = "" if self.parameter is None else f"({self.parameter:g})"
        return f"{self.signal}:{self.statistic}{parameter}:{self.window_seconds}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU or MIG instance with samples within the inventory window.

    node: name of the Kubernetes Node, verified in the cluster; None where unresolved (then nothing may be written about
    this device). pods: those that it is allocated to, by telemetry.
    """

    id: DeviceId
    uuid: str
    vendor: Vendor
    vocabulary: str
    mig_instance: str | None = None
    mig_profile: str | None = None
    index: str = ""
    model: str = ""  # as the exporter spells it; '' where not exported
    driver_version: str = ""
    pci_bus_id: str = ""
    node_label: str = ""  # the host as telemetry spells it
    node: str | None = None
    exporter: str = ""  # `instance` of the scrape target, '' in a bare exposition page
    pods: tuple[PodRef, ...] = ()
    containers: tuple[str, ...] = ()  # container names, in the order of `pods`
    shared: bool = False  # several Pods on one device: device-wide values cannot be attributed
    present: bool = True  # False: no sample now, though within the inventory window
    last_seen: datetime | None = None  # of a device that is present: the time of the query


@dataclass(frozen=True, slots=True, kw_only=True)
class DoubtedDevice:
    """What telemetry shows as a device of which it is not proven that it is one of this cluster, and who has it. It is
    no Device, so no rule can take it for one: people see it with the reason, and rules know only that it is there."""

    shown: Device
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Exporter:
    """A scrape target that exports GPU metrics. `up` is None without an `up` series."""

    instance: str
    job: str = ""
    node_label: str = ""
    node: str | None = None
    up: bool | None = None
    devices: int = 0  # devices it exported within the inventory window


@dataclass(frozen=True, slots=True)
class SourceRead:
    """What the exporters of a Node show, as gpuwatch just read it. place: their URLs. devices: ids and UUIDs. values:
    by device (or its GPU) and signal, then by variant. failed: why nothing could be read."""

    place: str = ""
    devices: frozenset[DeviceId] = frozenset()
    values: Mapping[tuple[DeviceId, Signal], Mapping[str, float]] = field(default_factory=dict)
    failed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """Requests of a serving engine in one Pod. by_window: seconds up to the Snapshot → the least number of requests in
    that time, running and waiting ones too; only windows through which it was sampled."""

    engine: str
    metric: str  # that counts those that it has answered
    by_window: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Of a serving engine in one Pod, over as much of the last week as Prometheus has; None where it is not exported.
    kv_cache_ratio: the largest share of its KV cache in use. first_token_seconds: mean time to a request's first token.
    """

    kv_cache_ratio: float | None = None
    first_token_seconds: float | None = None


class Activity(StrEnum):
    """One step of an ActivityHistory."""

    UNKNOWN = "?"  # no sample in the step: neither silent nor active
    SILENT = "."
    ACTIVE = "#"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityHistory:
    """Engine activity of a device while it was allocated to this Pod ('' while free): one `Activity` character per
    step, oldest first. Character i covers (start + i·step, start + (i+1)·step]."""

    device: DeviceId
    pod: PodRef
    start: datetime
    step_seconds: int
    steps: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChange:
    """A new value of a state signal (XID, recovery action). `before` is None for the first value.

    For a windowed count (XID_WINDOW_COUNT) it is a new event: `variant` is the XID; `before` and `after` are lower
    bounds of its count since the query's window began.
    """

    device: DeviceId
    signal: Signal
    at: datetime
    before: float | None
    after: float
    variant: str = ""


@dataclass(frozen=True, slots=True)
class Readings:
    """Answers to WindowStats.

    values: `WindowStat.key` → device (the UUID for PHYSICAL signals) → value.
    variants: the same for signals with one row per variant (an XID, a health watch): … → device → variant → value.
    promql: `WindowStat.key` → its PromQL, with `$device` as placeholder of the device's matcher; and
        `matcher:<device id>` → that matcher, for devices that UUID and GPU_I_ID do not identify.

    A missing device is unknown, never zero.
    """

    values: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    variants: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    promql: Mapping[str, str] = field(default_factory=dict)

    def get(self, stat: WindowStat, device: Device) -> float | None:
        """The value of this device or its parent GPU; None where unknown."""
        answers = self.values.get(stat.key)
        if answers is None:
            return None
        value = answers.get(device.id)
        return answers.get(device.uuid) if value is None else value

    def query(self, stat: WindowStat, device: Device) -> str:
        """PromQL by which a person can check `get`; '' where the statistic was not queried."""
        matcher = f'UUID="{device.uuid}"'
        if device.vendor is Vendor.NVIDIA and device.mig_instance is not None:
            matcher += f',GPU_I_ID="{device.mig_instance}"'
        matcher = self.promql.get(f"matcher:{device.id}", matcher)
        return self.promql.get(stat.key, "").replace("$device", matcher).replace("$machine", device.exporter)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRun:
    """A Pod that asks for accelerators, as kube-state-metrics last showed it.

    created_by: `Kind/name` of its controller; '' without one. started, ended: of its last container; of a Pod that the
    kubelet refused at its start, both are that start.
    phase: Failed or Succeeded; Running only if it runs now; '' where it waits, or is gone and its end was not seen.
    reasons: why it ended, by Kubernetes (Error, OOMKilled), `exit code 139` of a restart, and `deleted`.
    """

    pod: PodRef
    node: str
    created_by: str = ""
    images: tuple[str, ...] = ()
    phase: str = ""
    started: datetime | None = None
    ended: datetime | None = None
    restarts: int = 0
    reasons: tuple[str, ...] = ()


class Stops(Enum):
    """What a gap stops. EVERYTHING: all other facts are doubtful too, so a brake reads it. ITS_FACT: what rests on the
    fact that is missing: a rule concludes UNKNOWN, or a guard refuses. No gap stops nothing."""

    EVERYTHING = "everything"
    ITS_FACT = "its fact"


class GapKind(StrEnum):
    """Why something is unknown; `stops` says what it stops."""

    UNREACHABLE = "unreachable"  # no connection, or no answer in time
    REFUSED = "refused"  # no right to read it (401, 403)
    QUERY_FAILED = "query_failed"  # the server answered with an error
    SIGNAL_MISSING = "signal_missing"  # no series of any vocabulary has the signal
    NODE_UNRESOLVED = "node_unresolved"  # telemetry names a host that is no Node of the cluster
    IMPLAUSIBLE = "implausible"  # a value outside of physics was dropped
    NOT_SERVED = "not_served"  # the API server does not serve the kind
    BAD_INPUT = "bad_input"  # a file or an object could not be understood
    UNTRUSTED = "untrusted"  # rows of a target that is no known exporter, or that contradicts the cluster
    CLOCK = "clock"  # the clocks of gpuwatch and its source differ, so that the past looks like the present
    PARTIAL = "partial"  # the server said that parts of the data are missing
    AMBIGUOUS = "ambiguous"  # it is not certain which series are those of this cluster and its exporters

    @property
    def stops(self) -> Stops:
        everything = (GapKind.CLOCK, GapKind.PARTIAL, GapKind.AMBIGUOUS)
        return Stops.EVERYTHING if self in everything else Stops.ITS_FACT


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Something (`what`) that could not be read. `detail` is what happened and what to do."""

    kind: GapKind
    what: str
    detail: str


def partial_answers(gaps: Iterable[Gap]) -> tuple[Gap, ...]:
    """Those of answers that the server itself calls partial. Rows are missing, and it is not known which: what one read
    of such answers does not show may exist."""
    return tuple(gap for gap in gaps if gap.kind is GapKind.PARTIAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalFound:
    """How one signal is exported here. `devices` counts rows of the metric at discovery."""

    signal: Signal
    vocabulary: str
    metric: str
    scale: float
    devices: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """Metrics and labels found at discovery; logged, exported and printed by `gpuwatch doctor`."""

    vocabularies: tuple[str, ...] = ()
    signals: tuple[SignalFound, ...] = ()
    node_labels: tuple[str, ...] = ()  # e.g. ('Hostname',), both spellings in a mixed fleet
    pod_labels: str = ""  # 'exported_*', 'native' or '' where no Pod attribution exists
    interval_seconds: float = 0.0  # median sampling interval; 0: unknown
    backend: str = ""  # kind of server: 'prometheus 2', 'prometheus 3', 'recording', …
    matchers: Mapping[str, str] = field(default_factory=dict)  # labels found to tell this cluster's series from others

    def has(self, signal: Signal) -> bool:
        return any(found.signal is signal for found in self.signals)

    def share_of_samples(self, count: float | None, window_seconds: int) -> float | None:
        """Share of a window's expected samples that are there, 0 to 1. None where the count or the sampling interval is
        unknown. More samples than expected (two scrapers, a target scraped faster than most) give 1."""
        if count is None or self.interval_seconds <= 0:
            return None
        return min(count * self.interval_seconds / window_seconds, 1.0)
