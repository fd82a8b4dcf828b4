"""Of 200 requests that one planted change would place, how many get an answer, and does it cost more? And 200 that
nothing can place: each is told so."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta

from gpuwatch.act.plan.draw import draw_plan
from gpuwatch.act.whatif import WhatIf, what_if
from gpuwatch.facts.model.cluster import Node, NodeTerm, Placement, Pod, Requirement, Taint
from plan.fleet import GPU, NOW, idle, node, pod
from plan.test_whatif import GIB, SPOT, facts, new

REQUESTS = 200
LOST = Taint("node.kubernetes.io/unreachable", "", "NoExecute")


@dataclass
class Fleet:
    """Nodes that are full of Pods which nobody would make anew, so that none may move, and one planted change."""

    seed: int
    nodes: list[Node] = field(default_factory=list)
    held: list[Pod] = field(default_factory=list)
    idle: list[Pod] = field(default_factory=list)
    asks: list[Pod] = field(default_factory=list)
    planted_gpu_hours: float = 0.0  # work that the planted change makes others lose

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        for number in range(self.draw.randint(1, 5)):
            name = f"full-{number}"
            self.nodes.append(node(name, cpu_cores=64.0, memory_bytes=512 * GIB))
            self.hold(name, 8 - self.draw.choice([0, 0, 1]))

    def hold(self, on: str, gpus: int, *, movable: bool = False, **changes: object) -> Pod:
        name = f"ml/{'movable' if movable else 'bare'}-{len(self.held)}"
        owner = "" if movable else f"Pod/{name}"
        self.held.append(pod(name, on, gpus, owner, started=NOW - timedelta(hours=self.draw.randint(1, 30)), **changes))
        return self.held[-1]

    def ask(self, gpus: int, count: int = 1, **changes: object) -> None:
        asked = {"cpu_cores": 8.0, "memory_bytes": 32 * GIB} | changes
        self.asks = [new(f"new-{number}", gpus, **asked) for number in range(count)]

    def place(self, name: str, gpus: int = 8, **changes: object) -> None:
        self.nodes.append(node(name, gpus, **({"cpu_cores": 64.0, "memory_bytes": 512 * GIB} | changes)))

    def lost_gpu_hours(self, held: Pod) -> float:
        assert held.started is not None
        return min((NOW - held.started).total_seconds() / 3600, 24.0) * held.accelerators[GPU]

    def answer(self) -> WhatIf:
        known = facts(self.nodes, self.held)
        found = [
            idle(each.ref, [item for item in known.snapshot.devices if each.ref in item.pods]) for each in self.idle
        ]
        known = replace(known, findings=tuple(found))
        return what_if(self.asks, known, draw_plan(known).items)


def tolerate(fleet: Fleet) -> None:
    fleet.place("spot", taints=(SPOT,))
    fleet.ask(fleet.draw.choice([2, 4, 8]))


def select(fleet: Fleet) -> None:
    fleet.place("slow", labels={"disk": "hdd"})
    terms = (NodeTerm(labels=(Requirement("disk", "In", ("ssd",)),)),)
    wish = fleet.draw.choice([Placement(node_selector={"disk": "ssd"}), Placement(node_terms=terms)])
    fleet.ask(fleet.draw.choice([2, 4, 8]), placement=wish)


def less_cpu(fleet: Fleet) -> None:
    fleet.place("small", cpu_cores=float(fleet.draw.randint(4, 16)))
    fleet.ask(4, fleet.draw.randint(1, 2), cpu_cores=24.0)


def less_memory(fleet: Fleet) -> None:
    fleet.place("small", memory_bytes=fleet.draw.randint(16, 64) * GIB)
    fleet.ask(4, fleet.draw.randint(1, 2), memory_bytes=96 * GIB)


def uncordon(fleet: Fleet) -> None:
    fleet.place("closed", unschedulable=True)
    fleet.ask(fleet.draw.choice([2, 4, 8]))


def release(fleet: Fleet) -> None:
    fleet.place("asleep")
    fleet.idle.append(fleet.hold("asleep", fleet.draw.choice([4, 6, 8]), movable=True))
    fleet.hold("asleep", 8 - fleet.idle[0].accelerators[GPU]) if fleet.idle[0].accelerators[GPU] < 8 else None
    fleet.ask(fleet.idle[0].accelerators[GPU])
    # A start of the model, which counts as an hour, and what it had not saved: the score's own account is another test.
    fleet.planted_gpu_hours = fleet.idle[0].accelerators[GPU] + fleet.lost_gpu_hours(fleet.idle[0])


def move(fleet: Fleet) -> None:
    """Some Pods of one Node have another place; which of them leave is for the answer to choose."""
    draw = fleet.draw
    fleet.place("mixed")
    free, left, here = draw.randint(1, 3), 8, list[Pod]()
    left -= free
    while left:
        gpus = min(draw.choice([1, 1, 2, 3]), left)
        here.append(fleet.hold("mixed", gpus, movable=draw.random() < 0.8 or not here))
        left -= gpus
    movable = [each for each in here if "movable" in each.ref]
    leaving = draw.sample(movable, draw.randint(1, min(3, len(movable))))
    asked = free + sum(each.accelerators[GPU] for each in leaving)
    rooms: list[int] = []
    for each in leaving:  # a place for each of them, and none for the request
        gpus = each.accelerators[GPU]
        fits = [index for index, room in enumerate(rooms) if room + gpus < asked]
        if fits and draw.random() < 0.7:
            rooms[draw.choice(fits)] += gpus
        else:
            rooms.append(gpus)
    for index, room in enumerate(rooms):
        fleet.place(f"roomy-{index}")
        if room < 8:
            fleet.hold(f"roomy-{index}", 8 - room)
    fleet.ask(asked)
    fleet.planted_gpu_hours = sum(map(fleet.lost_gpu_hours, leaving))


PLANTED: tuple[Callable[[Fleet], None], ...] = (tolerate, select, less_cpu, less_memory, uncordon, release, move)


def too_large(fleet: Fleet) -> None:
    """Each Pod asks for more than the largest Node has."""
    fleet.place("empty")
    fleet.ask(fleet.draw.randint(9, 16))


def too_many(fleet: Fleet) -> None:
    """Together they ask for more than the fleet has."""
    fleet.place("empty")
    fleet.ask(8, len(fleet.nodes) + 1)


def no_such_node(fleet: Fleet) -> None:
    """Two things keep it from each Node that has room."""
    fleet.place("empty", labels={"disk": "hdd"}, cpu_cores=4.0)
    fleet.hold("empty", 5)
    fleet.ask(8, placement=Placement(node_selector={"disk": "ssd"}))


def unreachable(fleet: Fleet) -> None:
    fleet.place("lost", conditions=(), taints=(LOST,))
    fleet.ask(8)


def stuck(fleet: Fleet) -> None:
    """What would have to leave has no other place."""
    fleet.place("mixed")
    for _ in range(4):
        fleet.hold("mixed", 2, movable=True)
    fleet.ask(8)


IMPOSSIBLE: tuple[Callable[[Fleet], None], ...] = (too_large, too_many, no_such_node, unreachable, stuck)


def planted(kinds: tuple[Callable[[Fleet], None], ...]) -> Iterator[tuple[str, Fleet]]:
    for seed in range(REQUESTS):
        fleet, kind = Fleet(seed), kinds[seed % len(kinds)]
        kind(fleet)
        yield kind.__name__, fleet


def test_what_one_change_would_place_gets_an_answer_that_costs_no_more() -> None:
    answered, dearer = Counter[str](), []
    for name, fleet in planted(PLANTED):
        found = fleet.answer()
        assert not found.places, (name, fleet.seed)
        if found.changes:
            answered[name] += 1
            if found.changes[0].lost_gpu_hours > fleet.planted_gpu_hours + 1e-9:
                dearer.append((name, fleet.seed, found.changes[0], fleet.planted_gpu_hours))
    assert answered.total() == REQUESTS, answered
    assert not dearer


def test_what_nothing_can_place_is_told_so() -> None:
    """And whether room that others leave would help."""
    never = {too_large.__name__, too_many.__name__, no_such_node.__name__}
    for name, fleet in planted(IMPOSSIBLE):
        found = fleet.answer()
        assert (dict(found.places), found.changes, found.known) == ({}, (), True), (name, fleet.seed)
        assert found.reason and found.against, (name, fleet.seed)
        assert bool(found.never) == (name in never), (name, fleet.seed)
