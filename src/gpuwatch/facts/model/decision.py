"""Conclusions: findings with evidence, candidates, guards' refusals, scores and the plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from gpuwatch.facts.model.cluster import Cluster
from gpuwatch.facts.model.telemetry import (
    ActivityHistory,
    Device,
    DeviceId,
    DoubtedDevice,
    Exporter,
    Gap,
    PodRef,
    PodRun,
    Readings,
    Requests,
    Schema,
    StateChange,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All facts of one cycle. `gpuwatch capture` saves it; any decision can be replayed from it.

    devices, readings, activity, changes: of trusted devices alone.
    """

    at: datetime
    telemetry_schema: Schema = Schema()
    devices: tuple[Device, ...] = ()
    doubted: tuple[DoubtedDevice, ...] = ()
    exporters: tuple[Exporter, ...] = ()
    readings: Readings = Readings()
    activity: tuple[ActivityHistory, ...] = ()
    changes: tuple[StateChange, ...] = ()
    pod_runs: tuple[PodRun, ...] = ()
    requests: Mapping[PodRef, Requests] = field(default_factory=dict)  # of serving engines that Prometheus scrapes
    boots: Mapping[str, datetime] = field(default_factory=dict)  # Node → when it booted
    # Node → device/port → statistic of node_exporter → value
    infiniband: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    cluster: Cluster = Cluster()
    gaps: tuple[Gap, ...] = ()


class SubjectKind(StrEnum):
    DEVICE = "device"
    POD = "pod"
    GANG = "gang"
    WORKLOAD = "workload"
    NODE = "node"
    FLEET = "fleet"


@dataclass(frozen=True, slots=True)
class Subject:
    """What a finding is about. name: DeviceId, `namespace/name`, Gang.id, Workload.id, Node, a domain or 'fleet'."""

    kind: SubjectKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


class Family(StrEnum):
    HEALTH = "health"  # a GPU is degraded
    IDLE = "idle"  # an allocated GPU is not used
    MISFIT = "misfit"  # works, but in the wrong place


class Verdict(StrEnum):
    """What a rule concludes. UNKNOWN is neither healthy nor idle and is never acted on."""

    HEALTHY = "healthy"  # a rule of health looked, and found nothing
    DEGRADED = "degraded"  # broken, slow, hung, missing or about to be withdrawn
    BUSY = "busy"  # in use
    IDLE = "idle"  # allocated, and proven to be unused
    MISFIT = "misfit"  # in the wrong place
    UNKNOWN = "unknown"  # telemetry does not tell; never acted on


class FindingKind(StrEnum):
    """What a finding says."""

    # health: written by `make names` from the rules
    BOARD = "board"  # the board's InfoROM is corrupt, or its power cannot be read
    CONFIGURATION = "configuration"  # ECC off, a lost vGPU licence, or drivers that differ within a gang
    DCGM_HEALTH = "dcgm_health"  # a health watch of DCGM failed
    DEVICE_HEALTH = "device_health"  # the device plugin or the DRA driver calls a device that is in use unhealthy
    ECC = "ecc"  # uncorrectable memory errors, or many corrected ones
    EXPORTER_DOWN = "exporter_down"  # an exporter does not report
    FABRIC = "fabric"  # Fabric Manager, fabric health, NVSwitches, IMEX, or access between GPUs
    GPU_MISSING = "gpu_missing"  # a GPU is gone from telemetry while its exporter is up
    HEALTH_UNKNOWN = "health_unknown"  # no rule could tell the health of the device
    HUNG = "hung"  # busy without power and memory traffic: a stuck kernel or collective
    INFINIBAND = "infiniband"  # a port of the Node's InfiniBand or RoCE is down, slow or has many errors
    NODE_CONDITION = "node_condition"  # another detector says by a condition or label that the Node or a GPU is broken
    NOT_RUNNING = "not_running"  # a Pod holds GPUs and does not run: a pull, an init container, or an end that hangs
    NVLINK_ERRORS = "nvlink_errors"  # too many errors on an NVLink, or on the link to the CPU
    OPERATOR_CONFLICT = "operator_conflict"  # two operators reconcile one Node or its GPUs
    OUT_OF_SERVICE = "out_of_service"  # free GPUs that no Pod can get: a cordon, a taint, or GPUs that are not offered
    PAGE_RETIREMENT = "page_retirement"  # memory pages were retired (before Ampere)
    PCIE_REPLAY = "pcie_replay"  # too many replays on the PCIe link
    PCIE_WIDTH = "pcie_width"  # a link with fewer lanes than it could have
    POD_ADMISSION = "pod_admission"  # the kubelet refuses Pods that other Nodes admit
    POD_FAILURES = "pod_failures"  # Pods die soon after their start here, and live elsewhere
    POWER_BRAKE = "power_brake"  # slowed down by the power brake or the hardware slowdown
    RECOVERY_ACTION = "recovery_action"  # the driver asks for a reset, a drain or a reboot
    ROW_REMAP = "row_remap"  # a memory row was remapped, or could not be
    TELEMETRY_MISSING = "telemetry_missing"  # so many exporters do not report that monitoring is the likelier fault
    THERMAL_THROTTLE = "thermal_throttle"  # slowed down by heat
    USED_OUTSIDE = "used_outside"  # a GPU that no Pod has works, or has memory in use
    VENDOR_HEALTH = "vendor_health"  # the vendor's own verdict (AMD, Intel, Gaudi)
    XID = "xid"  # an XID: the driver reported a fault
    # idle: the classes of an allocation
    NEVER_USED = "never_used"  # idle since its Pod started
    ABANDONED = "abandoned"  # worked, and stopped for good
    MODEL_LOADED = "model_loaded"  # idle, with a loaded model in memory
    PARTIAL_GANG = "partial_gang"  # holds GPUs while the rest of its gang waits to be placed
    HOST_BOUND = "host_bound"  # the GPU waits for the host: always busy, hardly loaded
    BURSTY = "bursty"  # idle now, as often before it worked again
    IN_USE = "in_use"  # it works
    SUSPECTED_IDLE = "suspected_idle"  # looks idle by one signal, which no second one confirms; never acted on
    IDLE_UNKNOWN = "idle_unknown"  # no rule could tell the use of the Pod
    # misfit: Pods that would do better elsewhere
    HBM_CONTENTION = "hbm_contention"  # workloads that share a GPU want more of its memory's bandwidth than there is
    PCIE_CONTENTION = "pcie_contention"  # workloads that share a GPU want more of its link to the host than there is
    SCATTERED = "scattered"  # a gang over more NVLink domains or racks than it needs

    @property
    def family(self) -> Family:
        return _FAMILIES.get(self, Family.HEALTH)


_FAMILIES = {
    **dict.fromkeys((FindingKind.NEVER_USED, FindingKind.ABANDONED, FindingKind.MODEL_LOADED), Family.IDLE),
    **dict.fromkeys((FindingKind.PARTIAL_GANG, FindingKind.HOST_BOUND, FindingKind.BURSTY), Family.IDLE),
    **dict.fromkeys((FindingKind.IN_USE, FindingKind.SUSPECTED_IDLE, FindingKind.IDLE_UNKNOWN), Family.IDLE),
    **dict.fromkeys((FindingKind.HBM_CONTENTION, FindingKind.PCIE_CONTENTION, FindingKind.SCATTERED), Family.MISFIT),
}
"""Of the kinds that are not of HEALTH."""


class Component(StrEnum):
    """The part of a GPU that a health finding is about."""

    MEMORY = "memory"  # DRAM and SRAM with their ECC, rows and pages
    PCIE = "pcie"  # the bus to the host; a GPU that fell off it
    NVLINK = "nvlink"  # links to other GPUs, and their fabric
    FIRMWARE = "firmware"  # the GPU's own processors (GSP, PMU)
    POWER = "power"  # its feed and its measurement
    COOLING = "cooling"  # heat, and what takes it away
    INFOROM = "inforom"  # the board's own store of its configuration and lifetime counters


class Severity(StrEnum):
    INFO = "info"  # worth knowing
    WARNING = "warning"  # worth a person's time this week
    CRITICAL = "critical"  # a person is needed now


class Advice(StrEnum):
    """What a person would do about it, mildest first."""

    NONE = "none"  # nothing to do
    WATCH = "watch"  # nothing yet; look again
    FIX_APPLICATION = "fix_application"  # the workload's owner has to act
    FIX_MONITORING = "fix_monitoring"  # telemetry has to be repaired
    RECLAIM = "reclaim"  # release the idle allocation
    REBALANCE = "rebalance"  # move a Pod that contends with others, or a gang that spans too many domains
    RESET_WHEN_IDLE = "reset_when_idle"  # reset the GPU once no Pod has it
    RESET = "reset"  # reset the GPU now
    REBOOT = "reboot"  # reboot the Node
    INSPECT = "inspect"  # look at the machine: cooling, power feed, cables, seating
    REPLACE = "replace"  # replace the GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One fact that a person can check. bound: what the value was compared with, by `comparison`, one of >, >=, <, <=,
    ==, !=, in; None where the value is only context."""

    signal: str
    value: float | str
    unit: str = ""
    statistic: str = ""
    window_seconds: int = 0
    comparison: str = ""
    bound: float | str | None = None
    peers_median: float | None = None
    peers: int = 0
    at: datetime | None = None
    promql: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One rule's conclusion on one subject.

    confidence_ratio: 0 to 1, how sure the rule is of `verdict`; UNKNOWN carries 0.
    missing: the data (signals, coverage) that a better verdict needs.
    components: the parts of the GPU that it is about; () for the whole GPU. Findings on one component may show one
    event. approval: why a person has to approve what follows from it, in any mode; '' where none has to.
    dissent: who calls the GPU or Node of a DEGRADED finding well, as a clause; '' for nobody. No verdict rests on it.
    relief_gpus: of a misfit: Gang.id or Workload.id that could move → gain of the move in GPUs, where known.
    """

    rule: str  # the rule's file and section in the docs, e.g. 'health.xid'
    family: Family
    kind: FindingKind
    subject: Subject
    verdict: Verdict
    summary: str
    severity: Severity = Severity.INFO
    advice: Advice = Advice.NONE
    confidence_ratio: float = 0.0
    since: datetime | None = None
    evidence: tuple[Evidence, ...] = ()
    missing: tuple[str, ...] = ()
    devices: tuple[DeviceId, ...] = ()
    pods: tuple[PodRef, ...] = ()
    node: str | None = None
    gpu_hours: float = 0.0  # GPU-hours lost or wasted so far in this condition; 0 where unknown
    relief_gpus: Mapping[str, float] = field(default_factory=dict)
    components: tuple[Component, ...] = ()
    approval: str = ""
    dissent: str = ""

    @property
    def id(self) -> str:
        """Stable across cycles."""
        return f"{self.kind}:{self.subject}"

    @property
    def notable(self) -> bool:
        """Whether people should see it."""
        return self.verdict in (Verdict.DEGRADED, Verdict.IDLE, Verdict.MISFIT, Verdict.UNKNOWN)


class ActionKind(StrEnum):
    TAINT_NODE = "taint_node"  # keep new Pods off a degraded Node (or device)
    EVICT_GANG = "evict_gang"  # move a gang elsewhere
    MAKE_ROOM = "make_room"  # move Pods elsewhere, so that a Pod that waits is placed
    RELEASE_GANG = "release_gang"  # suspend an idle workload, or scale it to zero


MOVES = frozenset({ActionKind.EVICT_GANG, ActionKind.MAKE_ROOM})
"""Actions that end Pods which then run elsewhere."""


class Mode(StrEnum):
    OBSERVE = "observe"  # show it, write nothing about it
    SUGGEST = "suggest"  # write a Remediation and wait for approval
    ENFORCE = "enforce"  # write a Remediation, notify owners, and do it


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A possible action. target: the Node of a taint, or the workload of a release.

    detectors: kinds of its findings. reason: '' where its findings give it. waiter: the pending Pod that the freed
    GPUs would fit. pods: of a release all Pods of the owner; of a move those that move.
    relief_gpus: of a move in favour of other Pods: regained throughput, in GPUs; None for a move in its own favour.
    """

    action: ActionKind
    target: Subject
    findings: tuple[str, ...]  # Finding.id, strongest first
    devices: tuple[DeviceId, ...]
    pods: tuple[PodRef, ...]
    nodes: tuple[str, ...]
    namespace: str = ""
    pool: str = ""
    gpu_model: str = ""
    gpus: int = 0
    detectors: tuple[str, ...] = ()
    reason: str = ""
    waiter: PodRef = ""
    relief_gpus: float | None = None

    @property
    def id(self) -> str:
        return f"{self.action}:{self.target}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a guard refuses an action. guard: its name in the docs. reason: a full sentence. helps: the change that ends
    it, a sentence."""

    guard: str
    reason: str
    helps: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Gain × confidence minus disruption, as a fraction of the pool's capacity, with its inputs.

    All are GPU-hours over `horizon_hours`; pool_gpu_hours: the pool's capacity in it. gain_basis, harm_basis: the
    arithmetic of gained_gpu_hours and disrupted_gpu_hours, in sentences that mark what is only expected.
    """

    gained_gpu_hours: float
    disrupted_gpu_hours: float
    pool_gpu_hours: float
    confidence_ratio: float
    horizon_hours: float
    gain_basis: str = ""
    harm_basis: str = ""

    @property
    def value(self) -> float:
        """Positive is worth doing. NaN where an input is, or the pool has no capacity."""
        if not self.pool_gpu_hours > 0:
            return float("nan")
        return (self.gained_gpu_hours * self.confidence_ratio - self.disrupted_gpu_hours) / self.pool_gpu_hours


class TimingKind(StrEnum):
    NOW = "now"
    WHEN_IDLE = "when_idle"
    AFTER_CHECKPOINT = "after_checkpoint"
    AT_JOB_END = "at_job_end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """When an action costs least. at: None for now. cost_gpu_hours: lost by wait and restart. reason: why then."""

    kind: TimingKind = TimingKind.NOW
    at: datetime | None = None
    cost_gpu_hours: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRoom:
    """Room on a Node for so many equal Pods. accelerators, cpu_cores, memory_bytes: requests of one of them."""

    node: str
    pods: int
    accelerators: Mapping[str, int] = field(default_factory=dict)
    cpu_cores: float = 0.0
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanItem:
    """A candidate with its score, mode and refusals, the most pressing first. mode_reason: why it has this mode. room:
    where a move lands. helps: the one thing to change first, a sentence; '' where it is admitted."""

    candidate: Candidate
    score: Score
    mode: Mode
    refusals: tuple[Refusal, ...] = ()
    timing: Timing = Timing()
    mode_reason: str = ""
    room: tuple[HeldRoom, ...] = ()
    helps: str = ""

    @property
    def admitted(self) -> bool:
        return not self.refusals


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetUse:
    """The limits of a pool or GPU model, and what counts against them: Nodes out of service, and GPUs that moves
    disturb. `reasons` say why each Node counts."""

    scope: str  # 'pool/NAME' or 'model/NAME'
    limit_nodes: int
    total_nodes: int
    out_nodes: int
    limit_gpus: int
    moving_gpus: int
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Every candidate, admitted or refused, best score first. brake: why all are refused, or ''.

    last_storm: the last time within the cool-down that too much looked degraded or idle at once, or telemetry was
    missing. The caller keeps it for the next plan, so that the cool-down outlasts a restart. stops: by action, the
    brakes that are on, and cluster_known if facts of the whole cluster are missing.
    """

    at: datetime
    items: tuple[PlanItem, ...] = ()
    budgets: tuple[BudgetUse, ...] = ()
    brake: str = ""
    last_storm: datetime | None = None
    stops: Mapping[ActionKind, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How many devices telemetry has, and how many of them could be judged."""

    devices: int = 0
    devices_present: int = 0
    devices_resolved: int = 0  # with a verified Node
    devices_allocated: int = 0
    devices_shared: int = 0
    health_unknown: int = 0
    idle_unknown: int = 0  # Pods whose use is unknown
    rules_limited: dict[str, tuple[str, ...]] = field(default_factory=dict)  # rule → signals it lacks here


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """The answer of `gpuwatch analyze`; its JSON Schema is published."""

    version: int
    at: datetime
    coverage: Coverage
    devices: tuple[Device, ...]
    cluster: Cluster
    findings: tuple[Finding, ...]
    plan: Plan
    doubted: tuple[DoubtedDevice, ...] = ()
    telemetry_schema: Schema = Schema()
    gaps: tuple[Gap, ...] = ()
