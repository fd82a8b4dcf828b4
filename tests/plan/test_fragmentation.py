"""Fragmentation: equal to asking the landing for each Node and request, and both sides of each cause."""

import io
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, Group

from gpuwatch.act.fragmentation import (
    OTHER_KIND,
    UNKNOWN,
    Blocker,
    Fragmentation,
    fragmentation,
    mix_of,
    most_frequent,
)
from gpuwatch.act.placement import Nowhere
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.slots import TOO_FEW
from gpuwatch.facts.model.cluster import Condition, Node, Placement, Pod, PodTerm, Spread, Taint, Toleration
from gpuwatch.say.slots_tables import fragmentation_tables
from plan.fleet import GPU, NOW, node, pod, snapshot

MIG, GIB = "nvidia.com/mig-1g.10gb", 2**30
RACK, HOST = "example.org/rack", "kubernetes.io/hostname"


def facts(nodes: Sequence[Node], pods: Iterable[Pod] = (), **cluster: object) -> PlanFacts:
    return PlanFacts(snapshot=snapshot(nodes, (), pods, **cluster))


def wants(ref: str, gpus: int = 1, place: Placement | None = None, **changes: object) -> Pod:
    """A Pod of the mix that takes no room: a gate holds it back."""
    return pod(ref, "", gpus, phase="Pending", placement=replace(place or Placement(), gated=True), **changes)


APART = PodTerm(topology_key=HOST, match_labels={"app": "x"}, namespaces=("ml",))
PLACES = (
    Placement(),
    Placement(node_selector={RACK: "a"}),
    Placement(tolerations=(Toleration(key="dedicated", operator="Exists"),)),
    Placement(pod_anti_affinity=(APART,)),
    Placement(pod_affinity=(APART,)),
    Placement(spread=(Spread(topology_key=RACK, match_labels={"app": "x"}),)),
    Placement(unmodelled=("a volume claim",)),
)


@st.composite
def fleets(draw: st.DrawFn) -> tuple[list[Node], list[Pod]]:
    nodes, pods = [], []
    for number in range(draw(st.integers(1, 4))):
        gpus = draw(st.integers(1, 4))
        nodes.append(
            node(
                f"n{number}",
                allocatable={GPU: gpus, MIG: draw(st.integers(0, 2))},
                cpu_cores=float(draw(st.integers(0, 8))),
                memory_bytes=draw(st.integers(0, 8)) * GIB,
                max_pods=draw(st.sampled_from([None, 0, 1, 2, 9])),
                labels={RACK: draw(st.sampled_from("ab"))},
                taints=draw(st.sampled_from([(), (), (Taint("dedicated", "x", "NoSchedule"),)])),
                unschedulable=draw(st.integers(0, 5)) == 0,
                pool=draw(st.sampled_from(["p", "q"])),
            )
        )
    for number in range(draw(st.integers(1, 6))):
        changes = {
            "accelerators": draw(st.sampled_from([{GPU: 1}, {GPU: 2}, {GPU: 4}, {MIG: 1}, {GPU: 1, MIG: 1}])),
            "cpu_cores": draw(st.sampled_from([0.0, 1.0, 4.0])),
            "memory_bytes": draw(st.sampled_from([0, GIB, 4 * GIB])),
            "labels": {"app": draw(st.sampled_from("xy"))},
        }
        place, on = draw(st.sampled_from(PLACES)), draw(st.sampled_from(["", "", "n0"]))
        one = pod(f"ml/p{number}", on, placement=place, **changes)
        pods.append(one if on else wants(one.ref, place=place, **changes))
    return nodes, pods


CAUSES = {"too little CPU", "too little memory", "no more Pods on the Node", "taint or affinity", "topology spread"}
CAUSES |= {TOO_FEW, OTHER_KIND, UNKNOWN}


@given(fleets())
def test_equal_to_asking_the_landing_for_each_node_and_request(fleet: tuple[list[Node], list[Pod]]) -> None:
    nodes, pods = fleet
    known = facts(nodes, pods)
    room, mix = known.ground.room, mix_of(pods, known.ground.room)
    assert sum(share for _, share in mix) == pytest.approx(1)
    free, bad, unsure = Counter[object](), Counter[object](), Counter[object]()
    for each in nodes:
        for resource in (GPU, MIG) if not each.unschedulable else ():
            kind, units = (each.pool, resource), room.free(each.name, resource)
            free[kind] += units
            for like, share in mix:
                asked = replace(
                    like, namespace="ml", name="new", node="", placement=replace(like.placement, gated=False)
                )
                lands = not isinstance(room.copy().land([asked], {each.name}, perhaps=True), Nowhere)
                if not lands or resource not in like.accelerators:
                    bad[kind] += share * units
                elif like.placement.unmodelled:
                    unsure[kind] += share * units
    for told in fragmentation(known):
        kind = told.pool, told.resource
        assert told.free == free[kind]
        assert told.unallocatable == pytest.approx(bad[kind])
        assert told.causes.get(UNKNOWN, 0) == pytest.approx(unsure[kind])
        assert sum(told.causes.values()) == pytest.approx(bad[kind] + unsure[kind])
        assert {UNKNOWN: told.gpus[UNKNOWN], "unreachable": told.gpus["unreachable"]} == pytest.approx(
            {UNKNOWN: unsure[kind], "unreachable": bad[kind]}
        )
        assert sum(told.gpus.values()) == pytest.approx(told.free)
        assert set(told.causes) <= CAUSES
    assert {(told.pool, told.resource) for told in fragmentation(known)} >= {kind for kind in free if free[kind]}


ASKS = {"cpu_cores": 4.0, "memory_bytes": 4 * GIB}
AMPLE = {"cpu_cores": 4.0, "memory_bytes": 4 * GIB, "max_pods": 1, "labels": {RACK: "a"}}


@pytest.mark.parametrize(
    ("short", "place", "why"),
    [
        ({"cpu_cores": 3.9}, Placement(), "too little CPU"),
        ({"memory_bytes": 4 * GIB - 1}, Placement(), "too little memory"),
        ({"max_pods": 0}, Placement(), "no more Pods on the Node"),
        ({"taints": (Taint("dedicated", "x", "NoSchedule"),)}, Placement(), "taint or affinity"),
        ({"labels": {RACK: "b"}}, Placement(node_selector={RACK: "a"}), "taint or affinity"),
        ({"allocatable": {GPU: 1}}, Placement(), TOO_FEW),
        ({"allocatable": {MIG: 2}}, Placement(), OTHER_KIND),
        ({"labels": {}}, Placement(spread=(Spread(topology_key=RACK),)), "topology spread"),
    ],
)
def test_both_sides_of_each_cause(short: dict[str, object], place: Placement, why: str) -> None:
    asked = wants("ml/a", 2, place, **ASKS)

    def told(**changes: object) -> Fragmentation:
        (only,) = fragmentation(facts([node("n0", 2, **{**AMPLE, **changes})], [asked]))
        return only

    assert (told().unallocatable, told().causes) == (0, {})
    lacking = told(**short)
    assert lacking.free > 0
    assert (lacking.unallocatable, lacking.causes) == (lacking.free, {why: lacking.free})


def test_an_anti_affinity_of_a_placed_pod_keeps_those_away_that_it_means() -> None:
    nodes = [node("n0"), node("n1")]
    shy = pod("ml/shy", "n0", 1, placement=Placement(pod_anti_affinity=(APART,)))
    mix = [*(wants(f"ml/x{n}", labels={"app": "x", "i": str(n)}) for n in range(3)), wants("ml/y", labels={"app": "y"})]
    (told,) = fragmentation(facts(nodes, [shy, *mix]))
    # Of five Pods the three x, which are one request, cannot use n0's 7 free GPUs.
    assert told.causes == {"taint or affinity": pytest.approx(3 / 5 * 7)}


def test_the_first_cause_counts_in_a_fixed_order() -> None:
    asked = wants("ml/a", 2, Placement(unmodelled=("a volume claim",)), **ASKS)
    changes = {**AMPLE, "allocatable": {GPU: 1}, "memory_bytes": 0, "max_pods": 0}
    for repaired, why in (
        ({}, "too little memory"),
        ({"memory_bytes": 4 * GIB}, "no more Pods on the Node"),
        ({"max_pods": 1}, TOO_FEW),
        ({"allocatable": {GPU: 2}}, UNKNOWN),
    ):
        changes |= repaired
        (told,) = fragmentation(facts([node("n0", **changes)], [asked]))
        assert list(told.causes) == [why]
        assert told.unallocatable == (0 if why == UNKNOWN else told.free)


def test_nodes_out_of_service_and_rare_requests_do_not_count() -> None:
    nodes = [node("n0", 4), node("n1", unschedulable=True), node("n2", conditions=(Condition("Ready", "False"),))]
    mix = [wants(f"ml/a{number}", 1) for number in range(19)]
    (told,) = fragmentation(facts(nodes, [*mix, wants("ml/rare", 8)]))
    assert (told.free, told.unallocatable) == (4, 0)
    (told,) = fragmentation(facts(nodes, [*mix[:-1], wants("ml/rare", 8), wants("ml/rare2", 8)]))
    assert told.causes == {TOO_FEW: pytest.approx(4 * 2 / 20)}


def test_without_a_gpu_pod_no_mix_is_seen() -> None:
    assert fragmentation(facts([node("n0")])) == ()
    assert most_frequent({}) == {}


def test_pods_that_hold_the_cpu_of_gpu_nodes_by_name() -> None:
    nodes = [node("n0", 4, cpu_cores=10.0, other_cpu_cores=9.0), node("n1", 4, cpu_cores=10.0, other_cpu_cores=3.0)]
    beside = [
        pod("web/small", "n0", 0, accelerators={}, cpu_cores=2.0),
        pod("web/big", "n0", 0, accelerators={}, cpu_cores=7.0),
        pod("web/harmless", "n1", 0, accelerators={}, cpu_cores=3.0),
    ]
    mix = [wants("ml/a", cpu_cores=2.0), wants("ml/b", cpu_cores=7.0)]
    (told,) = fragmentation(facts(nodes, mix, companions=tuple(beside)))
    assert told.causes == {"too little CPU": 4.0}
    assert told.blockers == (
        Blocker(pod="web/big", node="n0", cpu_cores=7.0, gpus=4.0),
        Blocker(pod="web/small", node="n0", cpu_cores=2.0, gpus=2.0),
    )


def test_waiting_pods_take_their_room_first() -> None:
    waits = pod("ml/w", "", 8, phase="Pending", created=NOW - timedelta(hours=1))
    (told,) = fragmentation(facts([node("n0"), node("n1")], [waits]))
    assert (told.free, told.gpus) == (8, {"usable": 8, "waited_for": 8, "unreachable": 0, "unknown": 0})


def test_slices_and_shares_count_with_their_part_of_a_gpu() -> None:
    """Eight GPUs with four shares each, and one with a slice of two eighths and one of four."""
    share, slices = f"{GPU}.shared", {"nvidia.com/mig-2g.20gb": 1, "nvidia.com/mig-3g.40gb": 1}
    shared = node("n0", 0, accelerators={share: 32}, allocatable={share: 32}, gpu_count=8, replicas=4)
    cut = node("n1", 0, accelerators=slices, allocatable=slices, gpu_count=1, mig_layout={"2g.20gb": 1, "3g.40gb": 1})
    asks = wants("ml/a", accelerators={share: 1})
    found = {each.resource: each for each in fragmentation(facts([shared, cut], [asks]))}
    assert (found[share].free, found[share].gpus["usable"]) == (32, 8)
    gpus = {resource: each.gpus["unreachable"] for resource, each in found.items()}
    assert gpus == {
        share: 0,
        "nvidia.com/mig-2g.20gb": pytest.approx(1 / 3),
        "nvidia.com/mig-3g.40gb": pytest.approx(2 / 3),
    }


def shown(found: Sequence[Fragmentation]) -> list[str]:
    console = Console(width=110, file=io.StringIO(), highlight=False)
    console.print(Group(*fragmentation_tables(found)))
    return [line.rstrip() for line in console.file.getvalue().strip().splitlines()]  # type: ignore[attr-defined]


def test_the_page_shows_what_is_printed() -> None:
    """The two Nodes and nine Pods that docs/slots.md tells of."""
    nodes = [
        node("a100-0", cpu_cores=64.0, other_cpu_cores=40.0, memory_bytes=512 * GIB),
        node("a100-1", cpu_cores=64.0, memory_bytes=512 * GIB),
    ]
    asks = {"cpu_cores": 8.0, "memory_bytes": 64 * GIB}
    pods = [pod(f"ml/one-{n}", "a100-1", 1, cpu_cores=4.0, memory_bytes=32 * GIB) for n in range(6)]
    pods += [pod(f"ml/two-{n}", "a100-0", 2, **asks) for n in range(2)]
    pods += [wants("ml/four", 4, cpu_cores=32.0, memory_bytes=256 * GIB)]
    beside = (pod("web/search-0", "a100-0", 0, accelerators={}, cpu_cores=40.0),)
    (told,) = found = fragmentation(facts(nodes, pods, companions=beside))
    # 4 and 2 GPUs are free. Six of nine Pods ask for one GPU, two for two, and one for four.
    assert (told.free, told.unallocatable) == (6, pytest.approx(6 / 9))
    page = (Path(__file__).parents[2] / "docs" / "slots.md").read_text()
    example = next(block for block in page.split("```") if block.startswith("\nFree GPUs that a request"))
    assert example.strip().splitlines() == shown(found)


def test_nothing_is_told_where_no_gpu_is_free_or_no_mix_is_seen() -> None:
    assert shown(()) == []
    assert shown(fragmentation(facts([node("n0", 1)], [pod("ml/a", "n0", 1)]))) == []
