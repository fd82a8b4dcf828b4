"""Where GPU-hours went: rows that add up to the fleet's capacity × time, and the facts that they follow from."""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from gpuwatch.facts.model.telemetry import Gap, PodRef


class Group(StrEnum):
    """What rows have in common; each GPU-hour is in one of them."""

    OUT_OF_SERVICE = "out_of_service"  # no Pod has the GPU, and none can get it
    NOT_WORKING = "not_working"  # a Pod has it, and has not started or has stopped
    IDLE = "idle"  # a Pod has it and does not use it
    FREE = "free"  # no Pod has it, and it is in service
    WORKING = "working"  # a Pod uses it


class Row(StrEnum):
    """One cause. A step goes to the first row that holds, in the order of docs/ledger.md; a working step is divided."""

    ABSENT = "absent"  # the Node is not Ready or gone, the GPU is missing, or the device plugin does not offer it
    DEGRADED = "degraded"  # cordoned or tainted while one of its GPUs was degraded
    MAINTENANCE = "maintenance"  # cordoned, without a known fault
    PULL = "pull"  # bound, and no container has started: an image pull, a volume
    INIT = "init"  # an init container runs
    LOAD = "load"  # its container runs and has not worked yet, for two hours at most
    GANG = "gang"  # it runs and has not worked yet, and a member of its gang has not started
    RESTART = "restart"  # between two starts of its container, or being deleted
    NEVER_USED = "never_used"
    ABANDONED = "abandoned"
    MODEL_LOADED = "model_loaded"
    SUSPECTED = "suspected"  # silent for longer than work's usual pauses, and not yet proven idle
    RESTING = "resting"  # silent between two times of work
    HUNG = "hung"
    OUTSIDE = "outside"  # no Pod has it, and it works or has memory in use
    UNMEASURED = "unmeasured"  # a Pod has it, and there is no sample of its activity; its hours are always unknown
    USABLE = "usable"  # free, and a request could use it
    WAITED_FOR = "waited_for"  # free, and a Pod that waits is about to get it
    UNREACHABLE = "unreachable"  # free, and a request could not use it, such as beside too little CPU
    LOST = "lost"  # work since the last checkpoint before a run ended by a failure
    SLOWED = "slowed"  # work that heat, power or a straggler slowed
    NO_KERNEL = "no_kernel"  # at work, while no kernel ran: 1 − engine activity
    FEW_SMS = "few_sms"  # a kernel ran on few of the SMs: engine activity − SM activity
    USEFUL = "useful"  # SM activity

    @property
    def group(self) -> Group:
        return _GROUPS[self]


_GROUPS = {
    **dict.fromkeys((Row.ABSENT, Row.DEGRADED, Row.MAINTENANCE), Group.OUT_OF_SERVICE),
    **dict.fromkeys((Row.PULL, Row.INIT, Row.LOAD, Row.GANG, Row.RESTART), Group.NOT_WORKING),
    **dict.fromkeys((Row.NEVER_USED, Row.ABANDONED, Row.MODEL_LOADED, Row.SUSPECTED, Row.RESTING), Group.IDLE),
    **dict.fromkeys((Row.HUNG, Row.OUTSIDE, Row.UNMEASURED), Group.IDLE),
    **dict.fromkeys((Row.USABLE, Row.WAITED_FOR, Row.UNREACHABLE), Group.FREE),
    **dict.fromkeys((Row.LOST, Row.SLOWED, Row.NO_KERNEL, Row.FEW_SMS, Row.USEFUL), Group.WORKING),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """GPU-hours of one hour, Node, holder and row.

    namespace, workload: '' where no Pod has the GPU. workload: Workload.id; the Pod's, as Pod/namespace/name, where its
    owner is unknown. image: of its container, as its spec names it; '' where it is not known. unknown: the row's
    unknown twin: the facts that would decide were missing. cost: None without a price.
    """

    hour: datetime
    node: str
    pool: str
    gpu_model: str
    namespace: str
    workload: str
    row: Row
    unknown: bool
    gpu_hours: float
    cost: float | None = None
    image: str = ""


class LossCause(StrEnum):
    """Why a run ended before its work was done."""

    ERROR = "error"  # its container ended with an error
    OUT_OF_MEMORY = "out_of_memory"  # the kernel killed its container
    NODE = "node"  # its Node was not Ready, or was gone
    GPU = "gpu"  # a GPU of its Node was degraded
    DISRUPTED = "disrupted"  # its Pod was deleted and made anew: an eviction, a preemption, a drain
    UNKNOWN = "unknown"  # it ended, and nothing tells why: its work may have been done


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Work of one workload on one Node that a failure made worthless.

    at: end of the run. since: begin of the first step after its last checkpoint, or of the step of its start; None
    where neither is known. gpus: how many did the work. ratio: their part of what the workload had on the Node.
    unknown: less may be lost, because a later checkpoint may have been missed, or because it is not known whether the
    run failed.
    restated_gpu_hours: the part of gpu_hours that was final, in rows of work, when the loss was found.
    """

    at: datetime
    since: datetime | None
    node: str
    gpu_model: str
    namespace: str
    workload: str
    cause: LossCause
    unknown: bool
    gpus: float
    ratio: float
    gpu_hours: float
    restated_gpu_hours: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Restated:
    """The sum of final hours that were found to be lost, by the row that had them."""

    namespace: str
    gpu_model: str
    row: Row
    unknown: bool
    cause: LossCause
    gpu_hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The entries of (start, end], which add up to capacity_gpu_hours.

    capacity_gpu_hours: of every GPU from its first to its last appearance; a GPU that is missing still counts.
    currency: of all costs, ISO 4217. losses: what the rows `lost` are made of, by their end. teams: of Namespaces whose
    label names one.
    """

    version: int
    start: datetime
    end: datetime
    source: str
    currency: str
    capacity_gpu_hours: float
    entries: tuple[LedgerEntry, ...]
    losses: tuple[Loss, ...] = ()
    teams: Mapping[str, str] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()

    def team(self, namespace: str) -> str:
        """'' of what no Pod has."""
        return self.teams.get(namespace, namespace)


@dataclass(frozen=True, slots=True, kw_only=True)
class Worked:
    """Whether a container has worked since it has the GPU, and since its newest start. None: unknown."""

    since_held: bool | None
    since_start: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The newest checkpoint of a workload as its annotation named it when it was looked at."""

    seen: datetime
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerPast:
    """What the hours after a moment depend on, and telemetry of a few hours before it does not tell.

    gpus: UUID → Node and GPU model, of those that count then. worked: by (UUID, Pod, container), of those that have a
    GPU then. checkpoints: by Pod or Workload.id, what its annotation said, the oldest first.
    """

    gpus: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    worked: Mapping[tuple[str, PodRef, str], Worked] = field(default_factory=dict)
    checkpoints: Mapping[str, tuple[Checkpoint, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHistory:
    """A Node in each step, from kube-state-metrics: 1 yes, 0 no, NaN unknown. All arrays are of type 'd' and have the
    same length; a step is (start + i·step, start + (i+1)·step], and its value is the last one in it.

    ready: its condition Ready; 0 also while other Nodes are reported and it is not. cordoned: it is unschedulable, or
    has gpuwatch's taint. capacity, allocatable: its whole GPUs, slices and shares, as its device plugin counts them.
    """

    name: str
    ready: "array[float]"
    cordoned: "array[float]"
    capacity: "array[float]"
    allocatable: "array[float]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerHistory:
    """A container with GPUs in each step, from kube-state-metrics: 1 yes, 0 no, NaN unknown. Arrays as in NodeHistory,
    those of yes and no of type 'f'.

    first: the step at which its arrays begin; there is nothing before and after them. running: it runs. init: an init
    container of its Pod runs. started: Unix seconds of its newest start by then, 0 before its first. deleting: its Pod
    is being deleted. ended: how its last run by then ended, as a place in ENDINGS; NaN where none has ended or nothing
    tells. image: as its spec names it, '' where nothing tells.
    """

    pod: PodRef
    container: str
    first: int = 0
    running: "array[float]"
    init: "array[float]"
    started: "array[float]"
    deleting: "array[float]"
    ended: "array[float]"
    image: str = ""


ENDINGS: tuple[LossCause | None, ...] = (None, LossCause.ERROR, LossCause.OUT_OF_MEMORY)
"""None: with success."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterHistory:
    """What kube-state-metrics told about (start, end], and gpuwatch itself. free: by pool and GPU model, which part of
    the free GPUs in service each free row has in each step, as gpuwatch counted; NaN, and of the rest, it is unknown.
    checkpoints: what Pods' annotations said; kube-state-metrics exports them if it is told to."""

    start: datetime
    step_seconds: int
    nodes: Mapping[str, NodeHistory] = field(default_factory=dict)
    containers: Mapping[tuple[PodRef, str], ContainerHistory] = field(default_factory=dict)
    free: Mapping[tuple[str, str], Mapping[Row, "array[float]"]] = field(default_factory=dict)
    checkpoints: Mapping[PodRef, tuple[Checkpoint, ...]] = field(default_factory=dict)
