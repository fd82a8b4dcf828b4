"""Right-sizing: alternative GPUs for a workload, its speed on them, and the savings."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from gpuwatch.facts.model.cluster import Sharing
from gpuwatch.facts.model.telemetry import DeviceId, PodRef
from gpuwatch.facts.model.workload_profile import WorkloadKey


class EvidenceTier(StrEnum):
    """The signals behind a prediction, best first. GPU_UTIL alone allows no recommendation but to measure first."""

    SM = "sm"  # SM_ACTIVE, DRAM and tensor activity, engine activity, framebuffer
    POWER = "power"  # the default exporter CSV: SM demand from board power against the card's observed envelope
    ENGINE = "engine"  # engine and DRAM activity, but neither SM_ACTIVE nor a power envelope: engine bounds SM demand
    UTILISATION = "utilisation"  # GPU_UTIL and framebuffer only


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedEstimate:
    """Speed on the target relative to now (1 = as fast). low ≤ likely ≤ high; decisions use `low`."""

    low_ratio: float
    likely_ratio: float
    high_ratio: float
    tier: EvidenceTier
    basis: str  # one sentence: its bottleneck and its inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """Framebuffer that the workload needs per GPU: peak × (1 + headroom) + context.

    elastic: the framework seems to fill all memory that it gets, so the need is unknown.
    """

    need_bytes: float
    peak_bytes: float
    runs: int
    headroom_ratio: float
    elastic: bool
    reason: str


class TargetKind(StrEnum):
    SAME = "same"  # as now
    MIG = "mig"  # a MIG slice of the same GPU model
    MODEL = "model"  # another GPU model
    SHARED = "shared"  # time-slicing or MPS with named partners
    FEWER = "fewer"  # fewer GPUs for each Pod


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A GPU configuration that a workload could run on. Counts and prices are per Pod.

    gpu_share_ratio: share of one physical GPU, 1 for a whole one (catalog.gpus.gpu_share_ratio; of a shared GPU its
    part). Times gpus_per_pod it gives the GPUs per Pod.
    price_per_hour: None where unknown. instance_type: '' where the GPU stays in its present Node.
    host_cpu_cores, host_memory_bytes: of a new machine, the allocatable host resources that go with this Pod's GPUs;
    None on existing Nodes, and where the machine's size is unknown.
    """

    kind: TargetKind
    gpu_model: str
    gpus_per_pod: int
    gpu_share_ratio: float = 1.0
    mig_profile: str = ""
    sharing: Sharing = Sharing.NONE
    partners: tuple[WorkloadKey, ...] = ()
    resource: str = ""  # e.g. nvidia.com/mig-1g.5gb
    instance_type: str = ""
    region: str = ""
    price_per_hour: float | None = None
    price_source: str = ""
    host_cpu_cores: float | None = None
    host_memory_bytes: float | None = None

    @property
    def name(self) -> str:
        """For people: '1 × A100-SXM4-40GB 2g.10gb'."""
        what = f"{self.gpu_model} {self.mig_profile}".strip()
        if self.sharing is not Sharing.NONE:
            what += f" shared ({self.sharing})"
        where = f" in {self.instance_type}" if self.instance_type else ""
        return f"{self.gpus_per_pod} × {what}{where}"


@dataclass(frozen=True, slots=True)
class Veto:
    """Why a target must not be recommended. rule: its name in the docs. reason: a full sentence."""

    rule: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A target compared with the workload. projected_…_per_week extrapolate the newest seven days to a week; a younger
    workload that still runs counts as if it had run all the time.

    projected_cost_per_week: of all Pods; for work that ends (jobs) with the longer run time at the likely speed, or the
    shorter one at the pessimistic speed; None where a price is unknown.
    projected_gpu_hours_per_week: hours of physical GPUs of the target's model; a slice counts with its share.
    projected_saving_per_week, projected_saving_gpu_hours_per_week: against now; GPU-hours are of the present model.
    """

    target: Target
    speed: SpeedEstimate
    memory_bytes: float  # of the target, per GPU
    vetoes: tuple[Veto, ...] = ()
    projected_cost_per_week: float | None = None
    projected_saving_per_week: float | None = None
    projected_saving_gpu_hours_per_week: float = 0.0
    projected_gpu_hours_per_week: float = 0.0

    @property
    def allowed(self) -> bool:
        return not self.vetoes


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The change that the owner has to make. `patch` is a strategic merge patch of the owner's kind as plain data."""

    api_version: str
    kind: str
    namespace: str
    name: str
    patch: Mapping[str, object] = field(default_factory=dict)
    prerequisites: tuple[str, ...] = ()  # e.g. 'Node pool with nvidia.com/mig.config=all-1g.5gb'
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """A recommended change: the pessimistic end of `chosen.speed` meets target_speed_ratio, and nothing vetoes it.

    options: all that were compared, best first, vetoed ones last. runner_up: the next best allowed one; beside one with
    a condition the best that needs none, where that is worth a change.
    doing_nothing_cost_per_week, doing_nothing_gpu_hours_per_week: waste of a week without a change, projected as in the
    options. condition: what has to be true of the image before it can run there, which telemetry does not tell; its
    saving is counted apart. currency: of all money in it, ISO 4217.
    """

    key: WorkloadKey
    at: datetime
    current: Option
    chosen: Option
    runner_up: Option | None
    options: tuple[Option, ...]
    memory: MemoryNeed
    target_speed_ratio: float
    confidence_ratio: float
    change: Change
    doing_nothing_cost_per_week: float | None
    doing_nothing_gpu_hours_per_week: float
    reason: str
    caveats: tuple[str, ...] = ()
    currency: str = "USD"
    condition: str = ""


def by_worth(item: Recommendation) -> tuple[float, float, WorkloadKey]:
    """Sort key of changes: most money first, then most GPU-hours."""
    return -(item.chosen.projected_saving_per_week or 0.0), -item.chosen.projected_saving_gpu_hours_per_week, item.key


class AbstentionKind(StrEnum):
    RIGHT_SIZED = "right_sized"  # nothing cheaper is fast enough: keep as is
    COVERAGE = "coverage"  # too much of its time was not measured
    YOUNG = "young"  # too few hours or runs were seen
    SIGNALS = "signals"  # utilisation alone was measured, which says nothing about a smaller GPU
    UNCERTAIN = "uncertain"  # the likely speed is enough, the pessimistic one is not
    MEMORY_ELASTIC = "memory_elastic"  # it fills all memory that it gets, so its need is not known
    VETOED = "vetoed"  # a cheaper target is fast enough, and something rules it out
    UNKNOWN_GPU = "unknown_gpu"  # the catalog does not know its GPU model
    UNKNOWN_OWNER = "unknown_owner"  # its owner is not known
    IDLE = "idle"  # it did not work: release it, do not resize it
    MOVED = "moved"  # the same container runs on another GPU by now
    FAILED = "failed"  # gpuwatch could not work it out; the reason says where


@dataclass(frozen=True, slots=True, kw_only=True)
class Abstention:
    """No recommendation, why, and what would resolve it. nearest: the best option. currency: of its options."""

    key: WorkloadKey
    at: datetime
    kind: AbstentionKind
    reason: str
    resolve: str
    current: Option | None = None
    nearest: Option | None = None
    options: tuple[Option, ...] = ()
    memory: MemoryNeed | None = None
    currency: str = "USD"


class OutcomeVerdict(StrEnum):
    WAITING = "waiting"  # not applied, or too little seen since
    HIT = "hit"  # as fast as promised
    MISS = "miss"  # slower than promised
    UNKNOWN = "unknown"  # applied, and no measurement tells the speed


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of a recommendation. measured_speed_ratio: None where no measurement shows it. saved_cost,
    saved_gpu_hours: since it was applied; no projection. saved_cost is in the recommendation's currency; None where a
    price is unknown, or the setting `currency` has changed since."""

    key: WorkloadKey
    recommended_at: datetime
    target: Target
    predicted: SpeedEstimate
    verdict: OutcomeVerdict
    applied_at: datetime | None = None
    measured_speed_ratio: float | None = None
    saved_cost: float | None = None
    saved_gpu_hours: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceDemand:
    """GPUs of one model that one Pod needs: `count` slices of a profile, or whole GPUs (mig_profile ''), on one Node.

    pod, devices: the Pod and its present devices; '' and () where it does not run yet. A Pod that has exactly what it
    needs stays. priority: the Pod's; higher ones are placed first.
    """

    key: WorkloadKey
    gpu_model: str  # Gpu.name of the catalog
    mig_profile: str
    count: int = 1
    pod: PodRef = ""
    devices: tuple[DeviceId, ...] = ()
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMigChange:
    """A new MIG layout of one GPU. before: () where MIG is off, or not known to be on."""

    node: str
    device: str  # UUID
    index: int | None = None  # of the GPU on its Node
    gpu_model: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    displaced: tuple[PodRef, ...] = ()  # Pods that must leave first: only an empty GPU can change its layout


@dataclass(frozen=True, slots=True, kw_only=True)
class MigPlan:
    """All recommended slices in valid layouts. Counts cover the GPU models of which slices are needed.

    gpus_before, gpus_after: allocated GPUs. freed: UUIDs of those that the plan frees for others; freed_without_host:
    of those that it empties on Nodes without CPU or memory for a further Pod. lower_bound_gpus: no packing needs fewer.
    order: Nodes in the order of draining. moved: Pods that have what they need, yet must move. mig_parted: config for
    mig-parted. node_labels: Node → new value of nvidia.com/mig.config.
    """

    at: datetime
    gpus_before: int
    gpus_after: int
    lower_bound_gpus: int
    changes: tuple[NodeMigChange, ...]
    order: tuple[str, ...]
    freed: tuple[str, ...] = ()
    freed_without_host: tuple[str, ...] = ()
    moved: tuple[PodRef, ...] = ()
    mig_parted: Mapping[str, object]
    node_labels: Mapping[str, str]
    placements: Mapping[str, str] = field(default_factory=dict)  # `WorkloadKey` and replica → device and profile
    unplaced: tuple[str, ...] = ()  # demands without a place, with the reason
