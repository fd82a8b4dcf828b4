"""What if: where Pods would land, why not, and which single changes would place them; each change is tried out."""

import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from gpuwatch.act.placement import Nowhere
from gpuwatch.act.plan.draw import draw_plan
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.plan.policy import PlanPolicy
from gpuwatch.act.whatif import Change, ChangeKind, WhatIf, what_if
from gpuwatch.app.cli.main import cli
from gpuwatch.facts.model.cluster import (
    ClaimedVolume,
    Gang,
    HostPort,
    Node,
    NodeTerm,
    Placement,
    Pod,
    Requirement,
    Taint,
    Toleration,
)
from gpuwatch.facts.model.telemetry import Device
from gpuwatch.say.whatif_tables import asked_words, whatif_tables
from kube import cluster_json
from ledger.week import AT, write_week
from plan.fleet import GPU, NOW, device, idle, node, pod, snapshot, workload

GIB = 2**30
SPOT = Taint("spot", "yes", "NoSchedule")


def facts(nodes: Sequence[Node], pods: Iterable[Pod] = (), gangs: Iterable[Gang] = ()) -> PlanFacts:
    held = [*pods]
    devices, used = [], dict.fromkeys((each.name for each in nodes), 0)
    for each in held:
        for _ in range(each.accelerators.get(GPU, 0) if each.node else 0):
            devices.append(device(each.node, used[each.node], each.ref))
            used[each.node] += 1
    return PlanFacts(snapshot=snapshot(nodes, devices, held, [workload(each.workload) for each in held], gangs))


def new(name: str = "new", gpus: int = 8, **changes: object) -> Pod:
    return pod(f"ml/{name}", "", gpus, phase="Pending", started=None, **changes)


def asked(nodes: Sequence[Node], *pods: Pod, held: Iterable[Pod] = ()) -> WhatIf:
    return what_if(pods, facts(nodes, held))


def only(found: WhatIf, kind: ChangeKind) -> Change:
    (change,) = (each for each in found.changes if each.kind is kind)
    return change


def test_where_they_land() -> None:
    found = asked([node("n0"), node("n1")], new("a"), new("b"))
    assert sorted(found.places.values()) == ["n0", "n1"]
    assert (found.reason, found.changes) == ("", ())


def test_why_they_do_not_and_who_waits_before_them() -> None:
    nodes = [node("n0"), node("n1", taints=(SPOT,)), node("n2", unschedulable=True), node("n3", 4)]
    first = new("first", created=NOW - timedelta(hours=2))
    asks = new(created=NOW - timedelta(hours=1))
    found = what_if([asks], facts(nodes, [first, asks]))
    assert found.places == {}
    assert found.ahead == ("ml/first",)
    assert "would land nowhere" in found.reason
    assert found.against == {GPU: 2, "taint spot": 1, "out of service": 1}


def test_host_ports_and_claims_are_causes_in_words() -> None:
    port = (HostPort(8080),)
    nodes = [node("n0", labels={"zone": "a"}), node("n1", labels={"zone": "b"}), node("n2", attachable={"ebs": 0})]
    serves = [pod(f"ml/s{number}", f"n{number}", 1, placement=Placement(host_ports=port)) for number in range(2)]
    found = asked(nodes[:2], new(gpus=1, placement=Placement(host_ports=port)), held=serves)
    assert "n0: its host port 8080 is taken by Pod ml/s0" in found.reason
    assert found.against == {"its host port 8080 is taken": 2}
    zone = (NodeTerm(labels=(Requirement("zone", "In", ("b",)),)),)
    data = ClaimedVolume(claim="ml/data", terms=zone, where="is bound to a volume in zone b", driver="ebs")
    found = asked([nodes[0], nodes[2]], new(placement=Placement(volumes=(data,))))
    assert "n0: claim ml/data is bound to a volume in zone b" in found.reason
    assert found.against == {"claim ml/data is bound to a volume in zone b": 2}
    found = asked(nodes[2:], new(placement=Placement(volumes=(replace(data, terms=None),))))
    assert found.against == {"it attaches no more volumes of ebs": 1}
    console = Console(file=io.StringIO(), width=100)
    console.print(whatif_tables("1 Pod", found))
    assert "it attaches no more volumes of ebs" in console.file.getvalue()  # type: ignore[attr-defined]


def test_what_is_not_modelled_is_told_and_nothing_is_tried() -> None:
    found = asked([node("n0")], new(placement=Placement(unmodelled=("a volume claim",))))
    assert (found.known, found.changes) == (False, ())
    assert "a volume claim" in found.reason


def test_a_taint_to_tolerate() -> None:
    found = asked([node("n0", 4), node("n1", taints=(SPOT,))], new())
    change = only(found, ChangeKind.TOLERATE)
    assert change.subjects == ("spot=yes:NoSchedule",)
    assert change.places == {"ml/new": "n1"}
    # Of two taints the one before the other, each once.
    (pair,) = asked([node("n1", taints=(SPOT, Taint("other", "", "NoExecute")))], new()).changes
    assert pair.first is not None
    assert {*pair.subjects, *pair.first.subjects} == {"spot=yes:NoSchedule", "other=:NoExecute"}


def test_nodes_out_of_service_are_not_to_be_tolerated() -> None:
    sick = Taint("gpuwatch.dev/degraded", "xid", "NoSchedule")
    assert asked([node("n0", taints=(sick,))], new()).changes == ()


def test_a_selector_or_an_affinity_to_remove() -> None:
    nodes = [node("n0", labels={"disk": "hdd"})]
    place = Placement(node_selector={"disk": "ssd"})
    assert only(asked(nodes, new(placement=place)), ChangeKind.SELECT).subjects == ("disk",)
    terms = (NodeTerm(labels=(Requirement("disk", "In", ("ssd",)),)),)
    change = only(asked(nodes, new(placement=Placement(node_terms=terms))), ChangeKind.SELECT)
    assert (change.subjects, change.places) == (("nodeAffinity",), {"ml/new": "n0"})
    both = Placement(node_selector={"disk": "ssd"}, node_terms=terms)
    (pair,) = asked(nodes, new(placement=both)).changes  # no single change is enough
    assert pair.first is not None
    assert {pair.subjects, pair.first.subjects} == {("disk",), ("nodeAffinity",)}


def test_the_most_cpu_and_memory_that_lands() -> None:
    nodes = [node("n0", cpu_cores=12.0, memory_bytes=64 * GIB), node("n1", cpu_cores=20.0, memory_bytes=8 * GIB)]
    found = asked(nodes, new(gpus=2, cpu_cores=16.0, memory_bytes=32 * GIB))
    cpu, memory = only(found, ChangeKind.LESS_CPU), only(found, ChangeKind.LESS_MEMORY)
    assert (cpu.value, cpu.places) == (12.0, {"ml/new": "n0"})
    assert (memory.value, memory.places) == (8 * GIB, {"ml/new": "n1"})
    assert cpu.what == "Ask for at most 12 CPU cores for each Pod, in place of 16."
    gang = [new(f"g{n}", 1, cpu_cores=11.0) for n in range(3)]
    assert only(what_if(gang, facts(nodes)), ChangeKind.LESS_CPU).value == 10.0  # two of them on n1


def test_a_cordoned_node() -> None:
    taint = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
    closed = node("n0", unschedulable=True, taints=(taint,))
    change = only(asked([closed, node("n1", 4)], new()), ChangeKind.UNCORDON)
    assert (change.subjects, change.places) == (("n0",), {"ml/new": "n0"})
    lost = replace(closed, conditions=())
    assert asked([lost], new()).changes == ()


def test_a_free_gpu_to_partition() -> None:
    slice_, other = "nvidia.com/mig-3g.40gb", "nvidia.com/mig-1g.10gb"
    mixed = node("n0", mig_strategy="mixed", allocatable={GPU: 1, other: 14}, accelerators={GPU: 1, other: 14})
    cards = [
        *(
            replace(
                device("n0", 10 * card + each),
                uuid=f"GPU-{card}",
                index=str(card),
                mig_profile="1g.10gb",
                mig_instance=str(each),
            )
            for card in (0, 1)
            for each in range(7)
        ),
        device("n0", 2),
    ]
    holder = pod("ml/rest", "n0", 0, accelerators={other: 1})
    held = [replace(cards[0], pods=("ml/rest",)), *cards[1:]]

    def answer(devices: Sequence[Device], count: int = 1, **changes: object) -> WhatIf:
        closed = replace(mixed, **changes)  # type: ignore[arg-type]
        state = PlanFacts(snapshot=snapshot([closed], devices, [holder], [workload(holder.workload)]))
        return what_if([new(f"x{n}", 0, accelerators={slice_: 1}) for n in range(count)], state)

    change = only(answer(held), ChangeKind.REPARTITION)
    assert change.what == "Partition GPU 1 of Node n0, which no Pod has, into 2 × 3g.40gb."
    assert (change.subjects, change.places) == (("n0", "1"), {"ml/x0": "n0"})
    # A second GPU, without MIG so far, where one is not enough; the one that a Pod has stays.
    assert only(answer(held, 3), ChangeKind.REPARTITION).subjects == ("n0", "1", "2")
    assert answer(held, 5).changes == ()
    # What is not known to be free, or where the plugin shows no profiles of several kinds, is not partitioned.
    assert answer([replace(each, present=False) for each in held]).changes == ()
    assert answer(held, mig_strategy="single").changes == ()
    full = replace(holder, accelerators={other: 14, GPU: 1})
    state = PlanFacts(snapshot=snapshot([mixed], cards, [full], [workload(full.workload)]))
    assert what_if([new(gpus=0, accelerators={slice_: 1})], state).changes == ()


def test_idle_allocations_to_release_with_what_gpuwatch_says_of_them() -> None:
    nodes = [node("n0")]
    held = [pod("ml/chat", "n0", 8, "Deployment/ml/chat")]
    known = facts(nodes, held)
    found = idle("ml/chat", known.snapshot.devices)
    plan = draw_plan(replace(known, findings=(found,), policy=PlanPolicy(min_confidence_ratio=0.99)))
    change = only(what_if([new()], known, plan.items), ChangeKind.RELEASE)
    assert change.subjects == ("Deployment/ml/chat",)
    assert change.places == {"ml/new": "n0"}
    assert change.lost_gpu_hours == plan.items[0].score.disrupted_gpu_hours > 0
    assert "confidence" in change.refused


def test_nothing_is_released_or_moved_on_nodes_that_are_not_asked_for() -> None:
    """As for a request of one GPU model: other models have the same resource."""
    held = [pod("ml/chat", "n0", 8, "Deployment/ml/chat"), pod("ml/rest", "n1", 8, "Pod/ml/rest")]
    known = facts([node("n0"), node("n1"), node("n2")], held)
    plan = draw_plan(replace(known, findings=(idle("ml/chat", known.snapshot.devices[:8]),)))
    assert what_if([new()], known, plan.items, ["n1"]).changes == ()
    (change,) = (each for each in what_if([new()], known, plan.items, ["n0"]).changes)
    assert (change.kind, change.places) == (ChangeKind.RELEASE, {"ml/new": "n0"})


def test_each_pod_of_a_gang_gets_its_room() -> None:
    held = [
        pod("ml/a", "n0", 2, started=NOW - timedelta(hours=1)),
        pod("ml/b", "n1", 2, started=NOW - timedelta(hours=2)),
        pod("ml/rest", "n2", 4, "Pod/ml/rest"),
    ]
    nodes = [node("n0"), node("n1"), node("n2")]
    change = only(asked(nodes, new("x"), new("y"), held=held), ChangeKind.MOVE)
    assert (sorted(change.subjects), change.lost_gpu_hours) == (["ml/a", "ml/b"], 6.0)
    assert sorted(change.places.values()) == ["n0", "n1"]
    # Only one of them has another place.
    full = replace(held[2], accelerators={GPU: 6})
    assert asked(nodes, new("x"), new("y"), held=[*held[:2], full]).changes == ()


def test_the_cheapest_pods_to_move() -> None:
    young, old = NOW - timedelta(hours=1), NOW - timedelta(hours=9)
    held = [
        pod("ml/a", "n0", 2, started=old),
        pod("ml/b", "n0", 2, started=young),
        pod("ml/c", "n0", 2, started=old),
        pod("ml/d", "n1", 5, started=young),
    ]
    nodes = [node("n0"), node("n1")]
    change = only(asked(nodes, new(gpus=4), held=held), ChangeKind.MOVE)
    assert (change.subjects, change.lost_gpu_hours) == (("ml/b",), 2.0)
    assert change.places == {"ml/new": "n0"}
    assert "Move ml/b" in change.what
    # Two gangs of the same Node's room cannot have it twice: the second one finds no way.
    assert asked(nodes, new("x", 4), new("y", 4), held=held).changes == ()
    # Pods that nobody would make anew, and members of gangs, are not moved.
    bare = [*held[:1], replace(held[1], workload="Pod/ml/b"), *held[2:]]
    assert only(asked(nodes, new(gpus=4), held=bare), ChangeKind.MOVE).subjects == ("ml/a",)
    gang = [replace(each, gang="JobSet/ml/g") for each in held]
    assert asked(nodes, new(gpus=4), held=gang).changes == ()


def test_pods_that_need_not_leave_stay() -> None:
    """The cheap one leaves first and is not enough; with the dear one gone it may stay."""
    held = [
        pod("ml/cheap", "n0", 1, started=NOW - timedelta(hours=1)),
        pod("ml/dear", "n0", 4, started=NOW - timedelta(hours=2)),
        pod("ml/rest", "n0", 3, "Pod/ml/rest"),
    ]
    full = pod("ml/full", "n1", 4, "Pod/ml/full")
    change = only(asked([node("n0"), node("n1")], new(gpus=5), held=[*held[:2], full]), ChangeKind.MOVE)
    assert change.subjects == ("ml/dear",)


def test_when_a_move_loses_least() -> None:
    notes = {"gpuwatch.dev/expected-end": f"{NOW + timedelta(hours=3):%Y-%m-%dT%H:%M:%SZ}"}
    held = [pod("ml/a", "n0", 2, annotations=notes), pod("ml/rest", "n1", 5, "Pod/ml/rest")]
    nodes = [node("n0"), node("n1")]
    change = only(asked(nodes, new(), held=held), ChangeKind.MOVE)
    assert change.lost_gpu_hours == 20.0  # if it is moved now
    assert change.when == "At its end at 2026-03-02 15:00 UTC no work is lost; now 20.0."
    unknown = [replace(held[0], annotations={}), held[1]]
    assert only(asked(nodes, new(), held=unknown), ChangeKind.MOVE).when == ""


def test_room_that_nothing_would_leave() -> None:
    held = [pod("ml/rest", "n0", 8, "Pod/ml/rest")]
    assert asked([node("n0")], new(), held=held).never == ""
    assert "8 of 16 nvidia.com/gpu are free" in asked([node("n0")], new(gpus=16), held=held).never


def test_a_gate_keeps_it_back_with_the_words_of_its_queue() -> None:
    gated = new(placement=Placement(gated=True), gang="Workload/ml/new")
    why = "Workload job-new: couldn't assign flavors: insufficient unused quota for nvidia.com/gpu"
    gang = Gang(id=gated.gang, framework="Kueue", workload="", namespace="ml", pods=(gated.ref,), unscheduled=why)
    found = what_if([gated], facts([node("n0")], [gated], [gang]))
    assert found.places == {"ml/new": "n0"}  # once it is let through
    assert found.held == f"A scheduling gate keeps it from the scheduler; it waits: {why}."
    alone = what_if([replace(gated, gang="")], facts([node("n0")]))
    assert alone.held.endswith("nothing says why.")
    assert asked([node("n0")], new()).held == ""


@st.composite
def fleets(draw: st.DrawFn) -> tuple[list[Node], list[Pod], list[Pod]]:
    nodes = [
        node(
            f"n{number}",
            draw(st.sampled_from([2, 4, 8])),
            cpu_cores=float(draw(st.integers(4, 16))),
            memory_bytes=draw(st.integers(4, 16)) * GIB,
            unschedulable=draw(st.integers(0, 4)) == 0,
            taints=(SPOT,) if draw(st.integers(0, 3)) == 0 else (),
            labels={"disk": draw(st.sampled_from(["ssd", "hdd"]))},
        )
        for number in range(draw(st.integers(1, 4)))
    ]
    held = [
        pod(f"ml/p{number}-{index}", f"n{number}", draw(st.integers(1, 2)), cpu_cores=1.0)
        for number in range(len(nodes))
        for index in range(draw(st.integers(0, 2)) if nodes[number].allocatable[GPU] > 2 else 0)
    ]
    place = Placement(node_selector={"disk": "ssd"} if draw(st.booleans()) else {})
    cores, gpus = float(draw(st.integers(1, 8))), draw(st.sampled_from([1, 2, 4, 8]))
    asks = [new(f"x{number}", gpus, cpu_cores=cores, placement=place) for number in range(draw(st.integers(1, 2)))]
    return nodes, held, asks


@settings(max_examples=200)
@given(fleets())
def test_each_change_places_the_pods(fleet: tuple[list[Node], list[Pod], list[Pod]]) -> None:
    """Applied to the objects, and landed anew."""
    nodes, held, asks = fleet
    found = what_if(asks, facts(nodes, held))
    for change in found.changes:
        changed, opened, left = asks, nodes, held
        for part in filter(None, (change.first, change)):
            if part.kind is ChangeKind.TOLERATE:
                more = (Toleration("spot", "Equal", "yes", "NoSchedule"),)
                changed = [replace(each, placement=replace(each.placement, tolerations=more)) for each in changed]
            elif part.kind is ChangeKind.SELECT:
                changed = [replace(each, placement=replace(each.placement, node_selector={})) for each in changed]
            elif part.kind is ChangeKind.LESS_CPU:
                assert part.value is not None
                changed = [replace(each, cpu_cores=part.value) for each in changed]
            elif part.kind is ChangeKind.UNCORDON:
                opened = [replace(each, unschedulable=False) if each.name in part.subjects else each for each in nodes]
            elif part.kind is ChangeKind.MOVE:
                left = [each for each in held if each.ref not in part.subjects]
                moved = [replace(each, node="", phase="Pending") for each in held if each not in left]
                changed = [*changed, *moved]
        room = facts(opened, left).bare_room.copy()
        for each in changed:  # the Pods first: what is moved lands in the rest
            assert not isinstance(room.land([each]), Nowhere), change


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """A recorded cluster with one more Pod, which waits for more than there is."""
    telemetry, cluster = write_week(tmp_path_factory.mktemp("week"))
    pods = json.loads((cluster / "pods.json").read_text())
    waits = cluster_json.pod("waits", "ml", status={"phase": "Pending"}, nodeName=None)
    waits["metadata"]["creationTimestamp"] = f"{AT - timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}"
    waits["spec"]["containers"][0]["resources"] = {"limits": {GPU: "64"}}
    gated = cluster_json.pod("gated", "ml", status={"phase": "Pending"}, nodeName=None)
    gated["metadata"]["creationTimestamp"] = waits["metadata"]["creationTimestamp"]
    gated["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    gated["spec"]["containers"][0]["resources"] = {"limits": {GPU: "1"}}
    pods["items"] += [waits, gated]
    (cluster / "pods.json").write_text(json.dumps(pods))
    return ("--telemetry", str(telemetry), "--cluster", str(cluster), "--at", AT.isoformat())


def said(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["whatif", *arguments], env={"COLUMNS": "100"})


def test_the_command_tells_why_a_pod_waits(sources: tuple[str, ...]) -> None:
    for name in (("ml/waits",), ("waits", "-n", "ml"), ("pod/waits",)):
        text = said(*name, *sources).stdout
        assert "1 Pod with 64 nvidia.com/gpu: there is no room now." in text
        assert "too few nvidia.com/gpu are free" in text
    assert "No change was found that would place it: its request or the fleet has to change." in text
    gated = said("ml/gated", *sources).output
    assert "1 Pod with 1 nvidia.com/gpu: there is room now." in gated
    assert "A scheduling gate keeps it from the scheduler; nothing says why." in gated
    assert "Before it wait: ml/waits." in gated
    answer = json.loads(said("ml/waits", *sources, "-o", "json").stdout)["answer"]
    assert (answer["pods"], answer["places"], answer["known"]) == (["ml/waits"], {}, True)


def test_the_command_takes_a_request(sources: tuple[str, ...]) -> None:
    found = said("--gpus", "1", "--model", "h100", *sources)
    assert found.exit_code == 0, found.output
    assert "there is room now" in found.stdout or "there is no room now" in found.stdout
    own = said("--gpus", "2", "--pods", "2", "--model", "h100", "--cpu", "1000", "--memory-gib", "1", *sources)
    assert "2 Pods, each with 1 nvidia.com/gpu, 1000 CPU cores and 1 GiB of memory: there is no room now." in own.stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "name a Pod that waits, or give --gpus"),
        (("x", "--gpus", "1"), "name a Pod that waits, or give --gpus"),
        (("x", "--pods", "2"), "are of a new request"),
        (("nobody",), "no Pod that waits for GPUs is called nobody; those that wait are ml/waits"),
        (("--gpus", "1", "--model", "z9"), "no GPU model is called 'z9'; --model takes a part of the name: H100"),
        (("--gpus", "3", "--pods", "2", "--model", "h100"), "3 GPUs cannot be divided by 2 Pods"),
    ],
)
def test_what_cannot_be_asked_is_said(arguments: tuple[str, ...], text: str, sources: tuple[str, ...]) -> None:
    found = said(*arguments, *sources)
    assert found.exit_code in (1, 2)
    assert text in " ".join(found.output.split())


def test_a_pod_that_runs_does_not_wait(sources: tuple[str, ...]) -> None:
    held = json.loads((Path(sources[3]) / "pods.json").read_text())["items"][0]["metadata"]
    found = said(f"{held['namespace']}/{held['name']}", *sources)
    assert "does not wait for a place: it is on Node" in " ".join(found.output.split())


def test_the_page_shows_what_is_printed() -> None:
    ample = {"cpu_cores": 999.0, "memory_bytes": 2**43}
    nodes = [node("n0", **ample), node("n1", **ample), node("n2", unschedulable=True, **ample)]
    held = [
        pod("team-a/eval-7", "n0", 2, started=NOW - timedelta(hours=1)),
        pod("team-a/big-0", "n0", 4, "Pod/team-a/big-0"),
        pod("team-a/big-1", "n1", 6, "Pod/team-a/big-1"),
    ]
    asks = pod("team-a/train-0", "", 4, phase="Pending", cpu_cores=40.0, memory_bytes=480 * GIB)
    console = Console(width=110, file=io.StringIO(), highlight=False)
    console.print(whatif_tables(asked_words([asks]), asked(nodes, asks, held=held)))
    shown = [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]  # StringIO
    page = (Path(__file__).parents[2] / "docs" / "whatif.md").read_text()
    example = next(block for block in page.split("```") if "there is no room now" in block).strip().splitlines()
    assert example == [*"\n".join(shown).strip().splitlines()]
