"""Allocations over time: workloads, their Pods' lives, and their places on cards."""

from dataclasses import dataclass

from gpuwatch.model.decision import FindingKind
from gpuwatch.simulate.behaviour import Behaviour
from gpuwatch.simulate.cards import Machine


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A device, or a time-sliced replica of one, by position: machine and card indices, GI id or ''."""

    machine: int
    card: int
    gi: str = ""
    replica: int = -1


@dataclass(frozen=True, kw_only=True)
class SimulatedWorkload:
    """The top owner. `framework` is one of: Job, JobSet, PyTorchJob, VolcanoJob, Deployment, CronJob, Notebook,
    StatefulSet, Bare."""

    framework: str
    namespace: str
    name: str
    uid: str
    created_seconds: float
    image: str
    priority_class: str = ""
    protected: bool = False  # has a PodDisruptionBudget

    @property
    def id(self) -> str:
        """As Workload.id of the model: Kind/namespace/name."""
        kind = {"VolcanoJob": "Job", "Bare": "Pod"}.get(self.framework, self.framework)
        return f"{kind}/{self.namespace}/{self.name}"

    @property
    def container(self) -> str:
        return {
            "PyTorchJob": "pytorch",
            "JobSet": "worker",
            "VolcanoJob": "worker",
            "Deployment": "server",
            "CronJob": "batch",
            "Notebook": self.name,
            "StatefulSet": "notebook",
            "Bare": "dev",
        }.get(self.framework, "main")


@dataclass(frozen=True, kw_only=True)
class PodLife:
    name: str
    uid: str
    places: tuple[Place, ...]

    @property
    def replica(self) -> int:
        """Its time-slicing replica; −1 for whole devices."""
        return self.places[0].replica


@dataclass(kw_only=True)
class Run:
    """One life of Pods that start and end together: a gang, or one replica of a service.

    Seconds count from the window's start; `end` is inf if nothing ends it. `idle` is the planted kind of idleness,
    from `idle_from` on; None if the workload keeps working.
    """

    workload: SimulatedWorkload
    pods: tuple[PodLife, ...]
    start: float
    end: float
    behaviour: Behaviour
    seed: int
    generation: int = 0
    idle: FindingKind | None = None
    idle_from: float = 0.0
    note: str = ""
    planted: bool = False  # idle or a look-alike: faults avoid it
    failed_at: float | None = None

    @property
    def places(self) -> tuple[Place, ...]:
        return tuple(place for pod in self.pods for place in pod.places)

    def alive(self, seconds: float) -> bool:
        return self.start <= seconds < self.end

    def touches(self, machine: int, cards: frozenset[int] | None = None) -> bool:
        """Whether any Pod holds one of the machine's cards (None: any of them)."""
        return any(p.machine == machine and (cards is None or p.card in cards) for p in self.places)


def resource_name(machine: Machine, place: Place) -> str:
    """The extended resource that a container requests for this place (MIG strategy mixed)."""
    instance = machine.cards[place.card].instance(place.gi)
    return f"nvidia.com/mig-{instance.profile}" if instance is not None else "nvidia.com/gpu"
