"""Right-sizing: what a workload could run on instead, how fast it would run there, and what that would save."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from gpuwatch.model.cluster import Sharing
from gpuwatch.model.telemetry import DeviceId, PodRef
from gpuwatch.model.workload_profile import WorkloadKey


class EvidenceTier(StrEnum):
    """What a prediction rests on, best first. From GPU_UTIL alone only 'measure first' may be said."""

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
    basis: str  # one sentence: what bounds it, and what it was computed from


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """Framebuffer that one GPU's worth of the workload needs. peak × (1 + headroom) + context.

    elastic: a framework seems to fill whatever card it gets, so the peak is not a need (and nothing is known of it).
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
    """Something that a workload could run on. Counts and prices are per Pod.

    gpu_share_ratio: what it takes of one physical GPU, 1 for a whole one (catalog.gpus.gpu_share_ratio; of a shared GPU
    its part), times gpus_per_pod = GPUs per Pod.
    price_per_hour: None where no price is known. instance_type: '' where the GPU stays in its present Node.
    host_cpu_cores, host_memory_bytes: of a machine that would be added, what Pods can have of its host beside this
    Pod's GPUs; None on Nodes that are there, and where the size of the machine is not known.
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
    """Why a target must not be recommended. `rule` is its name in the docs; `reason` a full sentence."""

    rule: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A target compared with the workload. projected_…_per_week are projections: what its newest seven days would come
    to if they went on for a week; younger work that goes on counts as if it had always been there.

    projected_cost_per_week counts all Pods, and, for work that has an end (jobs), the longer run time at the likely
    speed, or the shorter one at the pessimistic speed; None where a price is unknown. projected_gpu_hours_per_week: the
    hours of physical GPUs of the target's model that it would take (a slice counts with its share of the GPU).
    projected_saving_per_week and projected_saving_gpu_hours_per_week are against now; the GPU-hours are of the present
    model: a move to another model frees all of them."""

    target: Target
    speed: SpeedEstimate
    memory_bytes: float  # what the target offers per GPU
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
    """Exactly what the owner would change. `patch` is a strategic-merge patch of the owner's kind as plain data."""

    api_version: str
    kind: str
    namespace: str
    name: str
    patch: Mapping[str, object] = field(default_factory=dict)
    prerequisites: tuple[str, ...] = ()  # e.g. 'Node pool with nvidia.com/mig.config=all-1g.5gb'
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """Do this. The pessimistic end of `chosen.speed` meets target_speed_ratio, and no veto stands.

    options: everything that was looked at, best first, vetoed ones last. runner_up: the next best allowed one.
    doing_nothing_cost_per_week and …_gpu_hours_per_week: what staying as now would waste in a week, projected as the
    options are. currency: of all money in it, ISO 4217.
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


class AbstentionKind(StrEnum):
    RIGHT_SIZED = "right_sized"  # nothing cheaper is fast enough: keep as is
    COVERAGE = "coverage"  # too much of its time was not measured
    YOUNG = "young"  # too few hours or runs were seen
    SIGNALS = "signals"  # utilisation alone was measured, which says nothing about a smaller GPU
    UNCERTAIN = "uncertain"  # the likely speed is enough, the pessimistic one is not
    MEMORY_ELASTIC = "memory_elastic"  # it fills whatever memory it gets, so its need is not known
    VETOED = "vetoed"  # a cheaper target is fast enough, and something rules it out
    UNKNOWN_GPU = "unknown_gpu"  # the catalog does not know its GPU model
    UNKNOWN_OWNER = "unknown_owner"  # its owner is not known
    IDLE = "idle"  # it did not work: release it, do not resize it
    MOVED = "moved"  # the same container runs on another GPU by now
    FAILED = "failed"  # gpuwatch could not work it out; the reason says where


@dataclass(frozen=True, slots=True, kw_only=True)
class Abstention:
    """No recommendation, why, and what would resolve it. `nearest` is the option that came closest; currency: of all
    money in its options, ISO 4217."""

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
    """What became of a recommendation. measured_speed_ratio is None where nothing tells it. saved_cost and
    saved_gpu_hours: since it was applied; no projection. saved_cost is in the currency of the advice; None where a
    price is unknown, or where sums are in another currency by now."""

    key: WorkloadKey
    recommended_at: datetime
    target: Target
    predicted: SpeedEstimate
    verdict: OutcomeVerdict
    applied_at: datetime | None = None
    measured_speed_ratio: float | None = None
    out_of_memory: bool = False
    saved_cost: float | None = None
    saved_gpu_hours: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceDemand:
    """What one Pod needs of GPUs of one model: `count` slices of a profile, or whole GPUs, on one Node.

    mig_profile: '' for whole GPUs. pod and devices: who needs it and what it holds now, '' and () where it does not
    run yet. It stays where it is if it holds exactly what it needs. priority: the Pod's; the higher is served first.
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
    """One GPU that the plan cuts anew. before is () where MIG is off (or it is not known to be on)."""

    node: str
    device: str  # UUID
    index: int | None = None  # of the GPU on its Node
    gpu_model: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    displaced: tuple[PodRef, ...] = ()  # Pods that must leave first: a GPU has to be empty to be cut


@dataclass(frozen=True, slots=True, kw_only=True)
class MigPlan:
    """All advised slices in valid geometries. Counts are of the GPU models that somebody asks slices of.

    gpus_before and gpus_after: GPUs that some Pod holds; freed: UUIDs of those that nobody holds any more.
    lower_bound_gpus: no packing needs fewer. fragmentation_*_ratio: the share of free capacity that the demand mix
    cannot use (FGD); None where nothing is free. order: Nodes in the order of draining, batches: the same in groups
    that go together. moved: tenants that need what they have, and yet must move to another GPU. waiting: Pods that
    have no slice between leaving their GPU and the end of a later batch. mig_parted: the config for mig-parted;
    node_labels: Node → value of nvidia.com/mig.config, of the Nodes that change.
    """

    at: datetime
    gpus_before: int
    gpus_after: int
    lower_bound_gpus: int
    fragmentation_before_ratio: float | None
    fragmentation_after_ratio: float | None
    changes: tuple[NodeMigChange, ...]
    order: tuple[str, ...]
    batches: tuple[tuple[str, ...], ...] = ()
    freed: tuple[str, ...] = ()
    moved: tuple[PodRef, ...] = ()
    waiting: tuple[PodRef, ...] = ()
    mig_parted: Mapping[str, object]
    node_labels: Mapping[str, str]
    placements: Mapping[str, str] = field(default_factory=dict)  # `WorkloadKey` and replica → device and profile
    unplaced: tuple[str, ...] = ()  # what has no place, or was left out, with the reason
