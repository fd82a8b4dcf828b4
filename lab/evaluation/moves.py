"""What moves for waiting Pods win back, from the end states of FGD's experiment (`fgd.py`), beside other ways.

`python -m lab.evaluation.moves [--policy Random] [--sample 50]`. A record ends with Pods that found no place. Pods with
whole GPUs move and wait here; a GPU with parts of Pods is taken to be full, as the landing counts whole GPUs. Each way
may evict a share of the Pods, and tells how many GPUs waiting Pods got.

- `make_room`: the plan's own moves, if they are worth it. Pods saved their work an hour ago, and wait since a day.
- `random`: a Pod drawn by a seed is evicted; who waits and fits takes its Node, then it lands where there is room.
- `emptiest first`: after the rule of the descheduler's HighNodeUtilization, not the descheduler itself: Pods leave the
  Nodes with the fewest GPUs allocated.
- `optimum`: by mixed-integer programming, on a sample of Nodes.

Nothing departs, so that what waiting alone would win is not told.
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from gpuwatch.act.placement import Nowhere, Room
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.plan.moves import making_room, place_for_waiter
from gpuwatch.act.plan.score import weigh
from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.model.cluster import Cluster, Condition, Node, NodeTerm, Placement, Pod, Requirement, Workload
from gpuwatch.facts.model.decision import Snapshot
from gpuwatch.facts.model.telemetry import PodRef
from lab.evaluation.fgd import Record, read_record

AT = datetime(2026, 3, 2, tzinfo=UTC)
GPU = "nvidia.com/gpu"
BUDGETS = (0.005, 0.01, 0.02, 0.05)
"""Shares of the placed Pods that may be evicted."""
_FULL = f"Unschedulable: 0/9 nodes are available: 9 Insufficient {GPU}."
_FIXTURES = Path(__file__).parents[2] / "tests" / "fixtures" / "fgd"
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Town:
    """The Nodes, the Pods that run and those that wait."""

    nodes: tuple[Node, ...]
    placed: tuple[Pod, ...]
    waiting: tuple[Pod, ...]

    def facts(self, given_up: frozenset[PodRef] = frozenset()) -> PlanFacts:
        pods = (*self.placed, *(pod for pod in self.waiting if pod.ref not in given_up))
        owners = tuple(
            Workload(
                id=pod.workload, kind="Job", api_version="batch/v1", namespace=pod.namespace, name=pod.name,
                loses="", unreleasable="",
            )
            for pod in pods
        )  # fmt: skip
        return PlanFacts(
            snapshot=Snapshot(at=AT, devices=(), cluster=Cluster(nodes=self.nodes, pods=pods, workloads=owners))
        )

    def room(self) -> Room:
        return Room(self.nodes, self.placed, {})


def town_of(record: Record, sample: Sequence[int] | None = None) -> Town:
    """The end of the record. sample: only these Nodes; the same share of those that wait."""
    chosen = range(len(record.nodes)) if sample is None else sample
    kept = {index: record.nodes[index] for index in chosen}
    parts: dict[int, set[int]] = {index: set() for index in kept}
    cpu, memory = Counter[int](), Counter[int]()
    placed, waiting = list[Pod](), list[Pod]()
    for name, of, at, cards in record.arrivals:
        milli_cpu, milli, gpus, models, mib = record.requests[of]
        if at is not None and at not in kept:
            continue
        if gpus and milli >= 1000:
            pod = _pod(name, milli_cpu, gpus, models, mib)
            if at is None:
                waiting.append(pod)
            else:
                placed.append(replace(pod, node=kept[at][0], phase="Running", unscheduled=""))
        elif at is not None:
            cpu[at] += milli_cpu
            memory[at] += mib
            parts[at].update(cards)
    if sample is not None:
        share = len(waiting) * len(kept) // len(record.nodes)
        chosen_ = random.Random(len(kept)).sample(range(len(waiting)), share)  # noqa: S311 - a draw, no secret
        waiting = [waiting[index] for index in sorted(chosen_)]
    nodes = (
        Node(
            name=name, conditions=(Condition("Ready", "True"),), labels={"model": model}, gpu_product=model,
            accelerators={GPU: gpus}, allocatable={GPU: gpus - len(parts[index])}, gpu_count=gpus,
            cpu_cores=milli / 1000, memory_bytes=mib * _MIB,
            other_cpu_cores=cpu[index] / 1000, other_memory_bytes=memory[index] * _MIB,
        )
        for index, (name, model, gpus, milli, mib) in kept.items()
    )  # fmt: skip
    return Town(tuple(nodes), tuple(placed), tuple(waiting))


def _pod(name: str, milli_cpu: int, gpus: int, models: str, mib: int) -> Pod:
    either = NodeTerm(labels=(Requirement("model", "In", tuple(models.split("|"))),))
    return Pod(
        namespace="openb", name=name, phase="Pending", accelerators={GPU: gpus}, cpu_cores=milli_cpu / 1000,
        memory_bytes=mib * _MIB, workload=f"Job/openb/{name}", unscheduled=_FULL,
        annotations={keys.LAST_CHECKPOINT: (AT - timedelta(hours=1)).isoformat()},
        started=AT - timedelta(days=1),
        created=AT - timedelta(days=1), placement=Placement(node_terms=(either,) if models else ()),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Won:
    """evicted: Pods; gpus_moved: theirs; pods, gpus: of those that waited and are placed; lost: Pods that were evicted
    and found no place."""

    evicted: int
    gpus_moved: int
    pods: int
    gpus: int
    lost: int = 0


def _gpus(pod: Pod) -> int:
    return pod.accelerators[GPU]


def by_make_room(town: Town, budget: int) -> Won:
    """One plan after the other. Who waits for a move that is not worth it, or for which there is none, is given up."""
    placed, waiting = {pod.ref: pod for pod in town.placed}, {pod.ref: pod for pod in town.waiting}
    given_up: set[PodRef] = set()
    evicted = moved = pods = gpus = 0
    while evicted < budget:
        now = Town(town.nodes, tuple(placed.values()), tuple(waiting.values()))
        facts = now.facts(frozenset(given_up))
        room, found = facts.ground.room.copy(), list(making_room(facts))
        first = [group[0].ref for group in facts.ground.unsettled]
        worth = [item for item in found if weigh(item, facts)[0].value > 0]
        if not worth:
            if not first:
                break
            # The plan looks at the first requests alone; the next plan has others before it.
            alike = {repr(waiting[ref].accelerators) + repr(waiting[ref].placement) for ref in first[:1]}
            given_up |= {ref for ref, pod in waiting.items() if repr(pod.accelerators) + repr(pod.placement) in alike}
            continue
        for item in worth:
            if evicted + len(item.pods) > budget:
                return Won(evicted, moved, pods, gpus)
            places = place_for_waiter(item, room, facts)
            at = room.node_of(item.waiter)
            if isinstance(places, Nowhere) or at is None:
                break
            placed |= {ref: replace(placed[ref], node=name) for ref, name in places.items()}
            evicted += len(places)
            moved += sum(_gpus(placed[ref]) for ref in places)
            waiter = waiting.pop(item.waiter)
            placed[waiter.ref] = replace(waiter, node=at, phase="Running", unscheduled="")
            pods, gpus = pods + 1, gpus + _gpus(waiter)
    return Won(evicted, moved, pods, gpus)


def by_eviction(town: Town, budget: int, victims: Iterator[Pod]) -> Won:
    """Each victim leaves; those that wait and fit take its Node, and it lands where there is room, or waits."""
    room, waiting = town.room(), {pod.ref: pod for pod in town.waiting}
    evicted = moved = pods = gpus = lost = 0
    for pod in victims:
        if evicted == budget:
            break
        name = room.node_of(pod.ref)
        if name is None:
            continue
        room.without((pod.ref,))
        evicted, moved = evicted + 1, moved + _gpus(pod)
        tried: set[str] = set()
        for ref, other in list(waiting.items()):
            shape = repr((sorted(other.accelerators.items()), other.cpu_cores, other.memory_bytes, other.placement))
            if shape in tried:
                continue
            if isinstance(room.land((other,), (name,), tell=False), Nowhere):
                tried.add(shape)
            else:
                del waiting[ref]
                pods, gpus = pods + 1, gpus + _gpus(other)
        if isinstance(room.land((pod,), tell=False), Nowhere):
            lost += 1
    return Won(evicted, moved, pods, gpus, lost)


def drawn(town: Town, seed: int) -> Iterator[Pod]:
    pods = list(town.placed)
    random.Random(seed).shuffle(pods)  # noqa: S311 - a draw, no secret
    yield from pods


def emptiest_first(town: Town) -> Iterator[Pod]:
    allocated = Counter[str]()
    for pod in town.placed:
        allocated[pod.node] += _gpus(pod)
    yield from sorted(town.placed, key=lambda pod: (allocated[pod.node], pod.node, _gpus(pod)))


def optimum(town: Town, budget: int, seconds: float = 120.0) -> tuple[int, int]:
    """Most GPUs that waiting Pods can get with so many moves, as found, and the bound that the solver proves."""
    nodes = {node.name: index for index, node in enumerate(town.nodes)}
    may = [[not _barred(pod, node) for node in town.nodes] for pod in (*town.placed, *town.waiting)]
    variables = [
        (which, at)
        for which, allowed in enumerate(may)
        for at, yes in enumerate(allowed)
        if yes
    ]  # fmt: skip
    pods, count = (*town.placed, *town.waiting), len(town.placed)
    worth = np.array([-_gpus(pods[which]) if which >= count else 0 for which, _ in variables], dtype=float)
    rows: list[tuple[int, int, float]] = []
    low, high = list[float](), list[float]()

    def limit(terms: Iterator[tuple[int, float]], least: float, most: float) -> None:
        rows.extend((len(low), column, value) for column, value in terms)
        low.append(least)
        high.append(most)

    of_pod: dict[int, list[int]] = {}
    of_node: dict[int, list[int]] = {}
    for column, (which, at) in enumerate(variables):
        of_pod.setdefault(which, []).append(column)
        of_node.setdefault(at, []).append(column)
    for which, columns in of_pod.items():
        limit(((column, 1.0) for column in columns), 1.0 if which < count else 0.0, 1.0)
    for at, columns in of_node.items():
        node = town.nodes[at]
        for asks, has in (
            (lambda pod: float(_gpus(pod)), float(node.allocatable[GPU])),
            (lambda pod: pod.cpu_cores, node.cpu_cores - node.other_cpu_cores + 1e-6),
            (lambda pod: pod.memory_bytes / 2**30, (node.memory_bytes - node.other_memory_bytes) / 2**30 + 1e-6),
        ):
            # The simulator has put more on some Nodes than they have: that stays possible.
            now = sum(asks(pod) for pod in town.placed if pod.node == node.name)
            limit(((column, asks(pods[variables[column][0]])) for column in columns), -np.inf, max(has, now))
    moves = (
        (column, 1.0) for column, (which, at) in enumerate(variables) if which < count and nodes[pods[which].node] != at
    )
    limit(moves, -np.inf, float(budget))
    lines, columns_, values = zip(*rows, strict=True)
    matrix = coo_array((values, (lines, columns_)), shape=(len(low), len(variables))).tocsr()
    found = milp(
        worth, constraints=LinearConstraint(matrix, low, high), integrality=np.ones(len(variables)),
        bounds=Bounds(0, 1), options={"time_limit": seconds, "mip_rel_gap": 0.001},
    )  # fmt: skip
    bound = int(-found.mip_dual_bound + 1e-6) if found.mip_dual_bound is not None else -1
    return (round(-found.fun) if found.x is not None else 0), bound


def _barred(pod: Pod, node: Node) -> bool:
    terms = pod.placement.node_terms
    return bool(terms) and node.labels["model"] not in terms[0].labels[0].values


def without_room(town: Town) -> Town:
    """Those that the landing places at once are placed: what is left needs a move."""
    room, placed, left = town.room(), list(town.placed), list[Pod]()
    for pod in town.waiting:
        found = room.land((pod,), tell=False)
        if isinstance(found, Nowhere):
            left.append(pod)
        else:
            placed.append(replace(pod, node=found[pod.ref], phase="Running", unscheduled=""))
    return Town(town.nodes, tuple(placed), tuple(left))


@click.command()
@click.option("--policy", default="Random", show_default=True)
@click.option("--sample", default=0, help="So many Nodes, drawn, with the optimum; 0 for all, without it.")
@click.option("--seed", default=1, show_default=True)
def main(policy: str, sample: int, seed: int) -> None:
    """GPUs that waiting Pods get by moves, at budgets of the placed Pods."""
    record = read_record(_FIXTURES / f"{policy}-42.json.gz")
    draw = random.Random(seed)  # noqa: S311 - a draw, no secret
    chosen = sorted(draw.sample(range(len(record.nodes)), sample)) if sample else None
    town = without_room(town_of(record, chosen))
    click.echo(
        f"{policy}: {len(town.nodes)} Nodes, {len(town.placed)} Pods with whole GPUs, {len(town.waiting)} wait for "
        f"{sum(map(_gpus, town.waiting))} GPUs"
    )
    click.echo("budget  way             evicted  GPUs moved  Pods placed  GPUs placed  Pods lost")
    for share in BUDGETS:
        budget = max(round(share * len(town.placed)), 1)
        ways = {
            "make_room": by_make_room(town, budget),
            "random": by_eviction(town, budget, drawn(town, seed)),
            "emptiest first": by_eviction(town, budget, emptiest_first(town)),
        }
        for name, won in ways.items():
            numbers = f"{won.evicted:7}  {won.gpus_moved:10}  {won.pods:11}  {won.gpus:11}  {won.lost:9}"
            click.echo(f"{budget:6}  {name:14}  {numbers}")
        if sample:
            best, bound = optimum(town, budget)
            click.echo(f"{budget:6}  optimum         {'':7}  {'':10}  {'':11}  {best:11}  (at most {bound})")


if __name__ == "__main__":
    main()
