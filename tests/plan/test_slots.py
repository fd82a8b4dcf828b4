"""Slots: how many more gangs would start now, equal to brute force, and why other free GPUs are in none."""

import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from gpuwatch.act.placement import Nowhere
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.slots import NO_REST, TOO_FEW, RoomFor, Slots, slots, waiting_gpus
from gpuwatch.app.cli.main import cli
from gpuwatch.facts.model.cluster import Condition, Node, Placement, Pod, PodTerm, Sharing, Taint
from gpuwatch.say.slots_tables import slots_tables
from ledger.week import AT, write_week
from plan.fleet import GPU, NOW, device, node, pod, sick, snapshot

RACK, ZONE = "example.org/rack", "topology.kubernetes.io/zone"


def facts(nodes: Sequence[Node], pods: Iterable[Pod] = ()) -> PlanFacts:
    devices = [device(each.name, index) for each in nodes for index in range(each.allocatable.get(GPU, 0))]
    return PlanFacts(snapshot=snapshot(nodes, devices, pods))


def found(
    nodes: Sequence[Node], pods: Iterable[Pod] = (), *, gpus: int = 8, topology: str = "", **how: object
) -> Slots:
    known = slots(facts(nodes, pods), (gpus,), (topology,) if topology else (), **how)  # type: ignore[arg-type]
    (only,) = (each for each in known if each.topology == topology)
    return only


@st.composite
def fleets(draw: st.DrawFn) -> tuple[list[Node], list[Pod]]:
    """Nodes of up to four GPUs in two racks, some of them in use, with CPU and memory that may not suffice."""
    nodes, pods = [], []
    for number in range(draw(st.integers(1, 4))):
        taints = (Taint("dedicated", "x", "NoSchedule"),) if draw(st.integers(0, 5)) == 0 else ()
        gpus = draw(st.integers(1, 4))
        nodes.append(
            node(
                f"n{number}",
                gpus,
                cpu_cores=float(draw(st.integers(0, 8))),
                memory_bytes=draw(st.integers(0, 8)) * 2**30,
                max_pods=draw(st.sampled_from([None, 0, 1, 2, 9])),
                labels={RACK: draw(st.sampled_from(["a", "b"]))},
                taints=taints,
            )
        )
        if used := draw(st.integers(0, gpus)):
            asks = {"cpu_cores": draw(st.sampled_from([0.0, 1.0, 2.0])) * used, "memory_bytes": used * 2**30}
            pods.append(pod(f"ml/p{number}", f"n{number}", used, **asks))
    return nodes, pods


def most_pods(nodes: Sequence[Node], held: Iterable[Pod], each: Slots) -> int:
    """By trying every way to place one Pod after the other."""
    need = each.gpus // each.pods
    free = [
        [
            one.allocatable[GPU] - sum(p.accelerators[GPU] for p in held if p.node == one.name),
            one.cpu_cores - sum(p.cpu_cores for p in held if p.node == one.name),
            one.memory_bytes - sum(p.memory_bytes for p in held if p.node == one.name),
            9e9 if one.max_pods is None else one.max_pods - sum(p.node == one.name for p in held),
        ]
        for one in nodes
        if not one.taints
    ]
    asks = (need, each.cpu_cores, each.memory_bytes, 1)

    def best(first: int) -> int:
        most = 0
        for at in range(first, len(free)):
            # As kube-scheduler: what a Pod does not ask for may be overdrawn.
            if all(not wants or has + 1e-9 >= wants for has, wants in zip(free[at], asks, strict=True)):
                free[at] = [has - wants for has, wants in zip(free[at], asks, strict=True)]
                most = max(most, 1 + best(at))
                free[at] = [has + wants for has, wants in zip(free[at], asks, strict=True)]
        return most

    return best(0)


@given(fleets(), st.integers(1, 9))
def test_as_many_gangs_as_brute_force_finds(fleet: tuple[list[Node], list[Pod]], gpus: int) -> None:
    nodes, pods = fleet
    for each in slots(facts(nodes, pods), (gpus,), (RACK,)):
        of = lambda rack, topology=each.topology: [n for n in nodes if not topology or n.labels[RACK] == rack]  # noqa: E731
        racks = ("a", "b") if each.topology else ("",)
        assert each.count == sum(most_pods(of(rack), pods, each) // each.pods for rack in racks)
        assert each.count == sum(each.domains.values()) or not each.topology
        if not each.topology:
            assert each.free == each.count * gpus + sum(each.left.values())


@given(fleets(), st.sampled_from([1, 2, 4, 6]))
def test_the_landing_places_so_many_and_not_one_more(fleet: tuple[list[Node], list[Pod]], gpus: int) -> None:
    nodes, pods = fleet
    known = facts(nodes, pods)
    (each,) = slots(known, (gpus,))
    number = count()

    def one() -> Pod:
        asks = {"cpu_cores": each.cpu_cores, "memory_bytes": each.memory_bytes}
        return pod(f"new/{next(number)}", "", gpus // each.pods, phase="Pending", **asks)

    room = known.ground.room.copy()
    for _ in range(each.count):
        assert not isinstance(room.land([one() for _ in range(each.pods)]), Nowhere)
    assert isinstance(room.land([one() for _ in range(each.pods)]), Nowhere)


def test_a_gang_is_one_pod_or_pods_of_equal_parts() -> None:
    nodes = [node(f"n{number}") for number in range(9)]
    shapes = {gpus: found(nodes, gpus=gpus) for gpus in (1, 3, 8, 12, 16, 64)}
    assert {gpus: (each.pods, each.count) for gpus, each in shapes.items()} == {
        1: (1, 72), 3: (1, 18), 8: (1, 9), 12: (2, 4), 16: (2, 4), 64: (8, 1),
    }  # fmt: skip


def test_all_pods_of_a_gang_are_in_one_domain() -> None:
    nodes = [node(f"n{number}", labels={RACK: rack}) for number, rack in enumerate(("a", "a", "a", "b", "b"))]
    assert (found(nodes, gpus=16).count, found(nodes, gpus=16, topology=RACK).count) == (2, 2)
    assert (found(nodes, gpus=32).count, found(nodes, gpus=32, topology=RACK).count) == (1, 0)
    assert found(nodes, gpus=8, topology=RACK).domains == {"a": 3, "b": 2}
    assert slots(facts(nodes), (8,), ("no/such-label",)) == slots(facts(nodes), (8,))


def test_why_free_gpus_are_in_no_slot() -> None:
    """Each free GPU has one cause: the first that holds."""
    usual = {"cpu_cores": 8.0, "memory_bytes": 2**30}
    nodes = [
        node("ample", cpu_cores=99.0, memory_bytes=2**40),
        node("part", cpu_cores=99.0, memory_bytes=2**40),
        node("cpu", cpu_cores=31.0, memory_bytes=2**40),
        node("memory", cpu_cores=99.0, memory_bytes=2**31),
        node("pods", cpu_cores=99.0, memory_bytes=2**40, max_pods=0),
        node("dedicated", cpu_cores=99.0, memory_bytes=2**40, taints=(Taint("team", "x", "NoSchedule"),)),
        node("lost", cpu_cores=99.0, memory_bytes=2**40, conditions=(Condition("Ready", "False"),)),
    ]
    pods = [pod("ml/one", "part", 1, **usual)]
    assert found(nodes, pods, gpus=4).left == {
        TOO_FEW: 3,
        "too little CPU": 8,
        "too little memory": 8,
        "no more Pods on the Node": 8,
        "taint team": 8,
        "out of service": 8,
    }
    pair = [replace(nodes[0], name=f"n{number}") for number in range(3)]
    assert found(pair, gpus=16).left == {NO_REST: 8}


def test_a_pod_asks_for_what_the_median_pod_does() -> None:
    nodes = [node("n0", cpu_cores=100.0, memory_bytes=100 * 2**30)]
    pods = [
        pod("ml/a", "n0", 1, cpu_cores=4.0, memory_bytes=2**30),
        pod("ml/b", "n0", 2, cpu_cores=16.0, memory_bytes=4 * 2**30),
        pod("ml/c", "n0", 1, cpu_cores=50.0, memory_bytes=3 * 2**30),
    ]
    each = found(nodes, pods, gpus=4)
    assert (each.cpu_cores, each.memory_bytes) == (32.0, 8 * 2**30)
    assert (each.free, each.count, each.left) == (4, 0, {"too little CPU": 4})
    assert found([node("n0", cpu_cores=0.0)], gpus=4).count == 2  # nobody tells what a Pod asks for


def test_taints_of_the_vendor_and_those_named_are_tolerated() -> None:
    usual = node("n0", taints=(Taint(GPU, "present", "NoSchedule"),))
    spot = node("n1", taints=(Taint("example.org/spot", "true", "NoSchedule"), Taint(GPU, "", "NoSchedule")))
    assert found([usual, spot]).count == 1
    assert found([usual, spot], tolerated=("example.org/spot",)).count == 2


def test_degraded_nodes_and_room_that_is_promised_have_no_slot() -> None:
    nodes = [node("n0"), node("n1"), node("n2")]
    waits = pod("ml/w", "", 8, phase="Pending", created=NOW)
    assert found(nodes, [waits]).count == 2
    known = facts(nodes)
    degraded = replace(known, findings=(sick(device("n1", 0)),))
    (each,) = slots(degraded, (8,))
    assert (each.count, each.left) == (2, {"out of service": 8})


def test_a_pod_that_must_be_alone_keeps_its_node() -> None:
    alone = Placement(pod_anti_affinity=(PodTerm(topology_key="kubernetes.io/hostname", any_namespace=True),))
    nodes = [node("n0"), node("n1")]
    assert found(nodes, [pod("ml/a", "n0", 1, placement=alone)], gpus=2).left == {"other Pods": 7}


@pytest.mark.parametrize(
    ("changes", "whole"),
    [
        ({}, True),
        ({"mig_strategy": "single", "mig_layout": {"1g.10gb": 7}}, False),
        ({"mig_strategy": "mixed", "mig_layout": {"1g.10gb": 7}}, True),
        ({"sharing": Sharing.TIME_SLICING, "replicas": 4}, False),
        ({"mig_strategy": "mixed", "mig_layout": {"1g.10gb": 7}, "sharing": Sharing.MPS, "replicas": 2}, False),
    ],
)
def test_of_slices_and_shares_only_single_ones_are_counted(changes: dict[str, object], whole: bool) -> None:
    here = slots(facts([node("n0", 7, **changes)]), (1, 2))
    assert [(each.gpus, each.count, each.whole) for each in here] == (
        [(1, 7, True), (2, 3, True)] if whole else [(1, 7, False)]
    )
    profile = node("n1", allocatable={"nvidia.com/mig-1g.10gb": 3}, mig_strategy="mixed", mig_layout={"1g.10gb": 3})
    (slices,) = slots(facts([profile]))
    assert (slices.resource, slices.gpus, slices.count, slices.whole) == ("nvidia.com/mig-1g.10gb", 1, 3, False)


def test_what_waits_beside_free_gpus() -> None:
    """In the scheduler's order: the second gang finds what the first one leaves."""
    nodes = [node("n0"), node("n1")]
    waits = [
        pod("ml/first", "", 8, phase="Pending", created=NOW - timedelta(hours=2)),
        pod("ml/second", "", 6, phase="Pending", created=NOW - timedelta(minutes=5)),
        pod("ml/third", "", 4, phase="Pending", created=NOW),
        pod("ml/fourth", "", 2, phase="Pending", created=NOW - timedelta(minutes=4)),
        pod("ml/gated", "", 1, phase="Pending", placement=Placement(gated=True)),
        pod("ml/claims", "", 1, phase="Pending", created=NOW, placement=Placement(unmodelled=("a volume",))),
    ]
    told = {RoomFor.FITS: 14, RoomFor.NONE: 4, RoomFor.NEW: 2, RoomFor.UNKNOWN: 1}
    assert waiting_gpus(facts(nodes, waits)) == told
    other = "Unschedulable: 0/2 nodes are available: 2 of no quota."
    since = NOW - timedelta(days=1)
    kept = pod("ml/quota", "", 1, phase="Pending", created=since, unscheduled=other)
    assert waiting_gpus(facts(nodes, [kept])) == dict.fromkeys(RoomFor, 0) | {RoomFor.UNKNOWN: 1}
    assert waiting_gpus(facts(nodes)) == dict.fromkeys(RoomFor, 0)


def test_models_are_apart_and_no_node_is_no_slot() -> None:
    nodes = [node("n0"), node("n1", gpu_product="NVIDIA-H100-80GB-HBM3")]
    assert len({each.gpu_model for each in slots(facts(nodes), (8,))}) == 2
    assert slots(facts([])) == ()


def shown(found: Sequence[Slots], by: Sequence[str] = (), width: int = 100) -> list[list[str]]:
    console = Console(width=width, file=io.StringIO(), highlight=False)
    console.print(slots_tables(found, by))
    return [line.split() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]  # StringIO


def test_the_tables_tell_counts_domains_and_causes() -> None:
    nodes = [node(f"n{number}", labels={RACK: rack}, cpu_cores=30.0) for number, rack in enumerate("aab")]
    pods = [pod("ml/a", "n0", 4, cpu_cores=20.0)]
    lines = shown(slots(facts(nodes, pods), (1, 4, 8), (RACK,)), (RACK,))
    assert ["A100-SXM4-80GB", "cluster", "20", "14", "2", "0"] in lines
    assert ["a", "A100-SXM4-80GB", "8", "1", "0"] in lines
    assert ["b", "A100-SXM4-80GB", "6", "1", "0"] in lines
    text = " ".join(" ".join(line) for line in lines)
    assert "A100-SXM4-80GB 8 20 4 too few of them free on their Node; 16 too little CPU" in text
    assert (
        "A100-SXM4-80GB: a Pod asks for 5 CPU cores and 0 GiB of memory for each, as the median Pod does now." in text
    )
    assert "a Pod asks for nothing but its GPUs, as no Pod has such GPUs now" in " ".join(
        map(" ".join, shown(slots(facts(nodes))))
    )
    assert "No Node with GPUs has the label other." in " ".join(map(" ".join, shown(slots(facts(nodes)), ["other"])))
    assert "unknown, not zero" in " ".join(map(" ".join, shown(())))


def test_the_page_shows_what_is_printed() -> None:
    ample = {"cpu_cores": 80.0, "memory_bytes": 2**40, "labels": {"topology.kubernetes.io/zone": "a"}}
    asks = {"cpu_cores": 60.0, "memory_bytes": 720 * 2**30}
    nodes = [
        node("h100-0", gpu_product="NVIDIA-H100-80GB-HBM3", **ample),
        node("l4-0", 1, gpu_product="NVIDIA-L4", unschedulable=True, **ample),
    ]
    console = Console(width=110, file=io.StringIO(), highlight=False)
    console.print(slots_tables(slots(facts(nodes, [pod("ml/a", "h100-0", 6, **asks)]), labels=(ZONE,))))
    printed = [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]  # StringIO
    page = (Path(__file__).parents[2] / "docs" / "slots.md").read_text()
    example = next(block for block in page.split("```") if "How many more gangs" in block).strip().splitlines()
    assert example == "\n".join(printed).strip().splitlines()


def test_models_of_which_some_are_shared_are_told_apart() -> None:
    """Both have the same resource."""
    shared = node("n1", 4, sharing=Sharing.TIME_SLICING, replicas=4)
    units = {each.unit: each.count for each in slots(facts([node("n0"), shared]), (1,))}
    assert units == {GPU: 8, f"{GPU} (part)": 4}


def test_the_command_on_a_recorded_cluster(tmp_path: Path) -> None:
    telemetry, cluster = write_week(tmp_path)
    sources = ("--telemetry", str(telemetry), "--cluster", str(cluster), "--at", AT.isoformat())
    told = CliRunner().invoke(cli, ["slots", *sources, "-o", "json"])
    assert told.exit_code == 0, told.output
    found = json.loads(told.stdout)["slots"]
    assert {each["gpus"] for each in found if each["whole"]} == {1, 2, 4, 8, 16, 32, 64}
    fragments = json.loads(told.stdout)["fragmentation"]
    assert {each["gpu_model"] for each in fragments} == {each["gpu_model"] for each in found}
    assert all(0 <= each["unallocatable"] <= each["free"] for each in fragments)
    rows = CliRunner().invoke(cli, ["slots", *sources, "--gpus", "2", "-o", "csv"]).stdout.splitlines()
    assert rows[0].startswith("gpu_model,resource,whole,gpus,pods,")
    assert {line.split(",")[3] for line in rows[1:]} == {"1", "2"}  # slices and shares by themselves
    nobody = CliRunner().invoke(cli, ["slots", "--telemetry", str(telemetry), "--no-cluster", "--at", AT.isoformat()])
    assert nobody.exit_code == 1
    assert "unknown, not zero" in nobody.stdout
