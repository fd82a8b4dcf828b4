"""Allocations over time: workloads, their Pods' lives, and their places on cards."""

from dataclasses import dataclass

import numpy as np

from gpuwatch.facts.model.decision import FindingKind
from lab.simulate.behaviour import Behaviour
from lab.simulate.cards import Machine, make_suffix
from lab.simulate.forms import WORKLOADS, WorkloadForm, fill


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A device, or a time-sliced replica of one, by position: machine and card indices, GI id or ''."""

    machine: int
    card: int
    gi: str = ""
    replica: int = -1


@dataclass(frozen=True, kw_only=True)
class SimulatedWorkload:
    """The top owner. framework: one of workloads.yaml."""

    framework: str
    namespace: str
    name: str
    uid: str
    created_seconds: float
    image: str
    priority_class: str = ""
    protected: bool = False  # has a PodDisruptionBudget

    @property
    def form(self) -> WorkloadForm:
        return WORKLOADS[self.framework]

    @property
    def id(self) -> str:
        """As Workload.id of the model: Kind/namespace/name."""
        return f"{self.form.kind}/{self.namespace}/{self.name}"

    @property
    def container(self) -> str:
        return str(fill(self.form.container, {"name": self.name}))

    def values(self, generation: int, pods: int, index: int) -> dict[str, object]:
        """Values of the names in workloads.yaml. index: of the Pod among the `pods` that run together."""
        return {
            "name": self.name,
            "uid": self.uid,
            "generation": str(generation),
            "hash": make_suffix(np.random.default_rng([int(self.uid[:8], 16), generation]), 10),
            "scheduled": 28_900_000 + generation * 240,
            "pods": pods,
            "index": str(index),
            "dash_index": f"-{index}" if pods > 1 else "",
            "completion_index": str(index) if pods > 1 else None,
            "completion_mode": "Indexed" if pods > 1 else None,
            "replica_type": "worker" if index else "master",
            "replica_index": str(max(index - 1, 0)),
            "other_replicas": {"replicas": pods - 1} if pods > 1 else None,
        }


@dataclass(frozen=True, kw_only=True)
class PodLife:
    name: str
    uid: str
    places: tuple[Place, ...]

    @property
    def replica(self) -> int:
        """Its time-slicing replica; −1 for whole devices."""
        return self.places[0].replica if self.places else -1


@dataclass(kw_only=True)
class Run:
    """One life of Pods that start and end together: a gang, or one replica of a service.

    Seconds count from the window's start; `end` is inf if nothing ends it. `idle` is the planted kind of idleness,
    from `idle_from` on; None if the workload keeps working. Pods without places wait for a Node. state: of
    the first of these, 'pulling' or 'completed'; of all Pods 'leaving'; 'elastic' where they are not needed.
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
    state: str = ""
    planted: bool = False  # idle or a look-alike: faults avoid it
    failed_at: float | None = None

    def values(self, index: int = 0) -> dict[str, object]:
        """`SimulatedWorkload.values` of its Pod with this index."""
        placed = sum(bool(pod.places) for pod in self.pods)
        needed = {"needed": placed if self.state == "elastic" else len(self.pods)}
        return self.workload.values(self.generation, len(self.pods), index) | needed

    @property
    def places(self) -> tuple[Place, ...]:
        return tuple(place for pod in self.pods for place in pod.places)

    def alive(self, seconds: float) -> bool:
        return self.start <= seconds < self.end

    def touches(self, machine: int, cards: frozenset[int]) -> bool:
        """Whether any Pod holds one of these cards of the machine."""
        return any(place.machine == machine and place.card in cards for place in self.places)


def resource_name(machine: Machine, place: Place) -> str:
    """The extended resource that a container requests for this place (MIG strategy mixed)."""
    instance = machine.cards[place.card].instance(place.gi)
    return f"nvidia.com/mig-{instance.profile}" if instance is not None else "nvidia.com/gpu"
