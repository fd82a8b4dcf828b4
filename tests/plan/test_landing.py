"""Where Pods would land: every constraint on both sides, gangs as a whole, and what is said where no place is left."""

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.act.placement import Nowhere, Room, waiting_groups
from gpuwatch.facts.model.cluster import (
    ClaimedVolume,
    FreeVolume,
    HostPort,
    Node,
    NodeTerm,
    Placement,
    Pod,
    PodTerm,
    Requirement,
    Spread,
    Taint,
    Toleration,
)
from plan.fleet import GPU, NOW, node, pod

TAINT = Taint("dedicated", "vision", "NoSchedule")


def new(name: str, gpus: int = 1, **changes: object) -> Pod:
    return pod(f"ml/{name}", "", gpus, phase="Pending", **changes)


def land(nodes: list[Node], *pods: Pod, held: tuple[Pod, ...] = ()) -> Mapping[str, str] | Nowhere:
    return Room(nodes, held, {}).land(pods)


def lands(nodes: list[Node], *pods: Pod, held: tuple[Pod, ...] = ()) -> bool:
    return not isinstance(land(nodes, *pods, held=held), Nowhere)


def said(nodes: list[Node], *pods: Pod, held: tuple[Pod, ...] = ()) -> str:
    found = land(nodes, *pods, held=held)
    assert isinstance(found, Nowhere)
    return found.reason


def test_accelerators_on_both_sides_and_what_lacks() -> None:
    held = (pod("ml/a", "n0", 5),)
    assert land([node("n0")], new("x", 3), held=held) == {"ml/x": "n0"}
    assert said([node("n0")], new("x", 4), held=held) == (
        f"Pod ml/x needs 4 {GPU} and would land nowhere. Closest is n0: 3 of 4 {GPU} are free."
    )


def test_pods_that_ended_hold_nothing_and_those_that_are_bound_do() -> None:
    ended, bound = pod("ml/a", "n0", 8, phase="Succeeded"), pod("ml/a", "n0", 8, phase="Pending")
    assert lands([node("n0")], new("x"), held=(ended,))
    assert not lands([node("n0")], new("x"), held=(bound,))


@pytest.mark.parametrize(
    ("at", "below", "words"),
    [
        ({"cpu_cores": 8.0}, {"cpu_cores": 7.9}, "7.9 of 8 CPU cores are free"),
        ({"cpu_cores": 9.0, "other_cpu_cores": 1.0}, {"cpu_cores": 9.0, "other_cpu_cores": 1.5}, "7.5 of 8 CPU cores"),
        ({"memory_bytes": 2**31}, {"memory_bytes": 2**30}, "1.0 of 2.0 GiB memory are free"),
        (
            {"memory_bytes": 2**32, "other_memory_bytes": 2**31},
            {"memory_bytes": 2**31, "other_memory_bytes": 2**31},
            "0.0 of 2.0 GiB memory are free",
        ),
        ({"max_pods": 3, "other_pods": 2}, {"max_pods": 3, "other_pods": 3}, "it takes no more Pods"),
    ],
)
def test_cpu_memory_and_the_number_of_pods(at: dict[str, Any], below: dict[str, Any], words: str) -> None:
    asks: dict[str, Any] = {"cpu_cores": 8.0} if "cpu_cores" in at else {}
    asks = {"memory_bytes": 2**31} if "memory_bytes" in at else asks
    assert lands([node("n0", **at)], new("x", **asks))
    assert words in said([node("n0", **below)], new("x", **asks))


def test_a_spread_counts_pods_on_nodes_that_the_pod_may_run_on() -> None:
    """By its labels, and with each label that it is spread over: as kube-scheduler, taints do not count."""
    zone, rack = "topology.kubernetes.io/zone", "example.org/rack"
    nodes = [
        node("n0", labels={zone: "a", rack: "r", "disk": "ssd"}),
        node("n1", labels={zone: "a", rack: "r", "disk": "hdd"}),
        node("n2", 1, labels={zone: "b", rack: "r", "disk": "hdd"}),
        node("n3", 1, labels={zone: "c", "disk": "hdd"}),
    ]
    held = (pod("ml/a", "n0", labels={"app": "x"}), pod("ml/b", "n1", labels={"app": "x"}), pod("ml/c", "n2"))
    apart = Spread(topology_key=zone, match_labels={"app": "x"})
    hard = NodeTerm(labels=(Requirement("disk", "NotIn", ("ssd",)),))

    def asks(*spreads: Spread, terms: tuple[NodeTerm, ...] = (hard,)) -> Pod:
        place = Placement(node_terms=terms, spread=spreads)
        return new("p", 2, placement=place, labels={"app": "other"})

    assert land(nodes, asks(apart), held=held) == {"ml/p": "n1"}
    assert not lands(nodes, asks(apart, terms=()), held=held)
    # Without n3, which has no rack, there are the zones a and b alone.
    racks, more = Spread(topology_key=rack, max_skew=9), (*held, pod("ml/d", "n1", labels={"app": "x"}))
    filled = (*more, pod("ml/e", "n2", 0, labels={"app": "x"}))
    assert lands(nodes, asks(apart, racks), held=filled)
    assert not lands(nodes, asks(apart), held=filled)
    assert not lands(nodes, asks(replace(apart, min_domains=3), racks), held=filled)


def test_a_placement_that_is_gone_decides_nothing_about_the_next() -> None:
    """Placements that are made for a trial may have the id of one before."""
    room = Room([node("n0", taints=(TAINT,))], (), {})
    tolerates = (Toleration(key="dedicated", operator="Exists"),)
    for trial in range(20):
        place = Placement(tolerations=tolerates if trial % 2 else ())
        found = room.copy().land([new(f"x{trial}", placement=place)])
        assert isinstance(found, Nowhere) == (trial % 2 == 0)
        del place, found


def test_mig_profiles_are_resources_of_their_own() -> None:
    sliced = node("n0", allocatable={"nvidia.com/mig-1g.10gb": 2, "nvidia.com/mig-3g.40gb": 1})
    asks = new("x", accelerators={"nvidia.com/mig-1g.10gb": 2})
    assert lands([sliced], asks)
    assert not lands([sliced], asks, held=(pod("ml/a", "n0", accelerators={"nvidia.com/mig-1g.10gb": 1}),))
    assert lands([sliced], asks, held=(pod("ml/a", "n0", accelerators={"nvidia.com/mig-3g.40gb": 1}),))
    assert not lands([sliced], new("y"))


def placed(**placement: Any) -> Pod:
    return new("x", placement=Placement(**placement), labels={"app": "x"})


@pytest.mark.parametrize(
    ("toleration", "allowed"),
    [
        (None, False),
        (Toleration("dedicated", "Equal", "vision", "NoSchedule"), True),
        (Toleration("dedicated", "Equal", "vision", ""), True),
        (Toleration("dedicated", "Equal", "speech", "NoSchedule"), False),
        (Toleration("dedicated", "Exists", "", "NoExecute"), False),
        (Toleration("dedicated", "Exists"), True),
        (Toleration("", "Exists"), True),
        (Toleration("", "Equal", "vision"), False),
        (Toleration("other", "Exists"), False),
    ],
)
def test_taints_are_kept_unless_tolerated(toleration: Toleration | None, allowed: bool) -> None:
    tainted = [node("n0", taints=(TAINT,))]
    asks = placed(tolerations=(toleration,) if toleration else ())
    assert lands(tainted, asks) is allowed
    if not allowed:
        assert "its taint dedicated=vision:NoSchedule is not tolerated" in said(tainted, asks)


def test_a_taint_that_only_prefers_is_none() -> None:
    assert lands([node("n0", taints=(replace(TAINT, effect="PreferNoSchedule"),))], new("x"))


def test_the_node_selector() -> None:
    asks = placed(node_selector={"gpu": "h100"})
    assert lands([node("n0", labels={"gpu": "h100"})], asks)
    assert "it has no label gpu=h100" in said([node("n0", labels={"gpu": "a100"})], asks)
    assert lands([node("n0")], placed(node_selector={"kubernetes.io/hostname": "n0"}))


@pytest.mark.parametrize(
    ("requirement", "holds"),
    [
        (Requirement("zone", "In", ("a", "b")), True),
        (Requirement("zone", "In", ("b",)), False),
        (Requirement("zone", "NotIn", ("b",)), True),
        (Requirement("zone", "NotIn", ("a",)), False),
        (Requirement("absent", "NotIn", ("a",)), True),
        (Requirement("zone", "Exists"), True),
        (Requirement("absent", "Exists"), False),
        (Requirement("absent", "DoesNotExist"), True),
        (Requirement("zone", "DoesNotExist"), False),
        (Requirement("gpus", "Gt", ("7",)), True),
        (Requirement("gpus", "Gt", ("8",)), False),
        (Requirement("gpus", "Lt", ("9",)), True),
        (Requirement("gpus", "Lt", ("8",)), False),
        (Requirement("zone", "Gt", ("1",)), False),
        (Requirement("zone", "Near", ("a",)), False),
    ],
)
def test_node_affinity(requirement: Requirement, holds: bool) -> None:
    labelled = [node("n0", labels={"zone": "a", "gpus": "8"})]
    assert lands(labelled, placed(node_terms=(NodeTerm((requirement,)),))) is holds
    never = NodeTerm((Requirement("zone", "In", ("z",)),))
    assert lands(labelled, placed(node_terms=(never, NodeTerm((requirement,))))) is holds


def test_node_affinity_by_name_and_an_empty_term() -> None:
    named = placed(node_terms=(NodeTerm((), (Requirement("metadata.name", "In", ("n1",)),)),))
    assert land([node("n0"), node("n1")], named) == {"ml/x": "n1"}
    assert not lands([node("n0")], placed(node_terms=(NodeTerm(),)))


def rack(name: str, where: str, **changes: object) -> Node:
    return node(name, labels={"rack": where}, **changes)


APART = PodTerm(topology_key="rack", match_labels={"app": "x"}, namespaces=("ml",))


def test_anti_affinity_keeps_pods_apart_in_both_directions() -> None:
    racks = [rack("n0", "r0"), rack("n1", "r0"), rack("n2", "r1")]
    other = pod("ml/old", "n0", labels={"app": "x"})
    assert land(racks, placed(pod_anti_affinity=(APART,)), held=(other,)) == {"ml/x": "n2"}
    grumpy = pod("ml/old", "n0", placement=Placement(pod_anti_affinity=(APART,)))
    assert land(racks, replace(new("x"), labels={"app": "x"}), held=(grumpy,)) == {"ml/x": "n2"}
    assert land(racks, new("y"), held=(grumpy,)) == {"ml/y": "n0"}
    elsewhere = pod("web/old", "n0", labels={"app": "x"})
    assert land(racks, placed(pod_anti_affinity=(APART,)), held=(elsewhere,)) == {"ml/x": "n0"}
    anywhere = replace(APART, namespaces=(), any_namespace=True)
    assert land(racks, placed(pod_anti_affinity=(anywhere,)), held=(elsewhere,)) == {"ml/x": "n2"}
    nobody = replace(APART, selects_none=True)
    assert land(racks, placed(pod_anti_affinity=(nobody,)), held=(other,)) == {"ml/x": "n0"}


def test_anti_affinity_within_a_gang() -> None:
    gang = [new(f"x{i}", labels={"app": "x"}, placement=Placement(pod_anti_affinity=(APART,))) for i in range(3)]
    two, three = [rack("n0", "r0"), rack("n1", "r1")], [rack("n0", "r0"), rack("n1", "r1"), rack("n2", "r2")]
    assert lands(three, *gang)
    assert "after 2 of 3 Pods of its group have a place" in said(two, *gang)


def test_affinity_lands_beside_a_known_pod_only() -> None:
    racks = [rack("n0", "r0"), rack("n1", "r1"), node("n2")]
    beside = placed(pod_affinity=(replace(APART, match_labels={"app": "db"}),))
    assert land(racks, beside, held=(pod("ml/db", "n1", labels={"app": "db"}),)) == {"ml/x": "n1"}
    assert "no Pod that it must be beside is known" in said(racks, beside)
    # The first of a group that wants to be together may be anywhere, the others follow.
    group = [new(f"x{i}", 8, labels={"app": "x"}, placement=Placement(pod_affinity=(APART,))) for i in range(2)]
    together = land([rack("n0", "r0"), rack("n1", "r1"), rack("n2", "r1")], *group)
    assert together in ({"ml/x0": "n1", "ml/x1": "n2"}, {"ml/x0": "n2", "ml/x1": "n1"})
    assert not lands([rack("n0", "r0"), rack("n1", "r1")], *group)


def test_affinity_by_two_terms_is_to_pods_that_both_select() -> None:
    racks, x = [rack("n0", "r0"), rack("n1", "r1")], {"app": "x", "tier": "y"}
    both = (APART, replace(APART, match_labels={"tier": "y"}))
    one, other = pod("ml/a", "n1", labels={"app": "x"}), pod("ml/b", "n1", labels={"tier": "y"})
    beside = replace(placed(pod_affinity=both), labels={"app": "z"})
    assert land(racks, beside, held=(pod("ml/a", "n1", labels=x),)) == {"ml/x": "n1"}
    assert not lands(racks, beside, held=(one, other))
    # A Pod on a Node without the label is in no domain, so that the Pod is still the first of its group.
    first = replace(beside, labels=x)
    assert lands(racks, first, held=(one, other))
    assert lands([*racks, node("n2")], first, held=(pod("ml/a", "n2", labels=x),))
    assert land(racks, first, held=(pod("ml/a", "n1", labels=x),)) == {"ml/x": "n1"}


def test_topology_spread_on_both_sides() -> None:
    spread = Spread(topology_key="rack", max_skew=1, match_labels={"app": "x"})
    racks = [rack("n0", "r0"), rack("n1", "r1")]
    held = (pod("ml/a", "n0", labels={"app": "x"}), pod("ml/b", "n1", 8, labels={"app": "x"}))
    assert land(racks, placed(spread=(spread,)), held=held) == {"ml/x": "n0"}
    lopsided = (pod("ml/a", "n0", labels={"app": "x"}), pod("ml/b", "n1", 8, labels={"app": "y"}))
    assert "its rack has 1 of these Pods, and another 0" in said(racks, placed(spread=(spread,)), held=lopsided)
    assert lands(racks, placed(spread=(replace(spread, max_skew=2),)), held=lopsided)
    # A rack that the Pod may not be in does not count, and with too few domains the least is 0.
    here = {"node_selector": {"rack": "r0"}}
    assert lands(racks, placed(spread=(spread,), **here), held=lopsided)
    assert not lands(racks, placed(spread=(replace(spread, min_domains=2),), **here), held=lopsided)
    assert "it has no label rack" in said([node("n9")], placed(spread=(spread,)))


def test_a_gang_lands_whole_or_not_at_all() -> None:
    nodes = [node("n0"), node("n1")]
    room = Room(nodes, (), {})
    assert isinstance(room.land([new(f"x{i}", 6) for i in range(3)]), Nowhere)
    # Nothing of the failed try is left behind.
    assert not isinstance(room.land([new("y0", 8), new("y1", 8)]), Nowhere)


def test_unequal_pods_are_packed_and_a_first_try_that_fails_is_taken_back() -> None:
    """Best fit puts the 3 beside the 5; only another place for the 3 leaves room for the picky one."""
    nodes = [node("n0", 5, labels={"nvme": "yes"}), node("n1", 4)]
    picky = new("picky", 2, placement=Placement(node_selector={"nvme": "yes"}))
    found = land(nodes, new("three", 3), picky, new("other", 4))
    assert found == {"ml/three": "n0", "ml/picky": "n0", "ml/other": "n1"}
    tight = [node("n0", 3, labels={"nvme": "yes"}), node("n1", 4)]
    assert land(tight, new("three", 3), picky) == {"ml/three": "n1", "ml/picky": "n0"}


def test_a_claim_lands_nowhere_because_nobody_can_tell() -> None:
    assert "ResourceClaim" in said([node("n0")], new("x", accelerators={}, claims=("c",)))


@pytest.mark.parametrize(
    ("asked", "taken", "free"),
    [
        (HostPort(80), HostPort(80), False),
        (HostPort(80), HostPort(81), True),
        (HostPort(80), HostPort(80, "UDP"), True),
        (HostPort(80), HostPort(80, ip="10.0.0.1"), False),
        (HostPort(80, ip="10.0.0.1"), HostPort(80), False),
        (HostPort(80, ip="10.0.0.1"), HostPort(80, ip="10.0.0.1"), False),
        (HostPort(80, ip="10.0.0.1"), HostPort(80, ip="10.0.0.2"), True),
    ],
)
def test_a_host_port_that_a_pod_of_the_node_has_is_taken(asked: HostPort, taken: HostPort, free: bool) -> None:
    held = pod("ml/serves", "n0", placement=Placement(host_ports=(HostPort(7), taken)))
    assert lands([node("n0")], placed(host_ports=(asked,)), held=(held,)) is free
    beside = Room([node("n0")], (), {}, [replace(held, accelerators={})])
    assert isinstance(beside.copy().land([placed(host_ports=(asked,))]), Nowhere) is not free
    if not free:
        assert "n0: its host port 80 is taken by Pod ml/serves" in said(
            [node("n0")], placed(host_ports=(asked,)), held=(held,)
        )


def test_pods_of_a_gang_with_one_host_port_land_on_a_node_each() -> None:
    gang = [new(f"x{i}", placement=Placement(host_ports=(HostPort(80),))) for i in range(2)]
    assert sorted(dict(land([node("n0"), node("n1")], *gang)).values()) == ["n0", "n1"]  # type: ignore[call-overload]
    assert not lands([node("n0")], *gang)
    (count,) = [number for _, number, _ in Room([node("n0")], (), {}).copies(gang[0])]
    assert count == 1


ZONE_B = (NodeTerm((Requirement("zone", "In", ("b",)),)),)
BOUND = ClaimedVolume(claim="ml/data", terms=ZONE_B, where="is bound to a volume in zone b")


def claiming(name: str, *volumes: ClaimedVolume) -> Pod:
    return new(name, placement=Placement(volumes=volumes))


def test_a_claim_that_is_bound_is_where_its_volume_is() -> None:
    a, b = node("n0", labels={"zone": "a"}), node("n1", labels={"zone": "b"})
    assert land([a, b], claiming("x", BOUND)) == {"ml/x": "n1"}
    assert "n0: claim ml/data is bound to a volume in zone b." in said([a], claiming("x", BOUND))
    assert lands([a], claiming("x", replace(BOUND, terms=None)))
    assert not lands([a, b], claiming("x", replace(BOUND, terms=())))


def test_a_claim_for_one_pod_alone() -> None:
    alone = ClaimedVolume(claim="ml/data", alone=True)
    user = pod("ml/user", "n1", placement=Placement(volumes=(ClaimedVolume(claim="ml/data"),)))
    nodes = [node("n0"), node("n1")]
    assert lands(nodes, claiming("x", alone))
    assert "claim ml/data is for one Pod alone, and Pod ml/user uses it" in said(
        nodes, claiming("x", alone), held=(user,)
    )
    assert lands(nodes, claiming("x", replace(alone, alone=False)), held=(user,))
    assert lands(nodes, claiming("x", replace(alone, claim="ml/other")), held=(user,))
    assert not lands(nodes, claiming("x", alone), claiming("y", alone))


def local(*names: str) -> ClaimedVolume:
    """A claim for which there are free volumes, each on the Node n of its number."""
    free = tuple(
        FreeVolume(each, (NodeTerm((Requirement("kubernetes.io/hostname", "In", (f"n{each[1]}",)),)),))
        for each in names
    )
    return ClaimedVolume(claim="ml/data", terms=(), free=free, where="finds no free volume")


def test_a_free_volume_is_taken_once() -> None:
    nodes = [node("n0"), node("n1")]
    one, two = claiming("x", local("v0", "v1")), claiming("y", replace(local("v0", "v1"), claim="ml/other"))
    assert land(nodes, claiming("x", local("v1"))) == {"ml/x": "n1"}
    assert sorted(dict(land(nodes, one, two)).values()) == ["n0", "n1"]  # type: ignore[call-overload]
    assert not lands([node("n0")], one, two)
    assert "claim ml/data finds no free volume" in said([node("n0")], claiming("x", local("v1")))
    # A volume that can be made where there is no free one.
    assert lands([node("n0")], claiming("x", local()), claiming("y", local())) is False
    assert lands([node("n0")], one, claiming("y", replace(local("v0"), terms=None)))
    # Two claims of one Pod need two volumes.
    assert not lands([node("n0")], claiming("x", local("v0"), replace(local("v0"), claim="ml/other")))
    assert lands([node("n0")], claiming("x", local("v0"), replace(local("v00"), claim="ml/other")))


def test_a_free_volume_is_free_again_when_a_try_is_taken_back() -> None:
    room = Room([node("n0")], (), {})
    asks = claiming("x", local("v0"))
    assert not isinstance(room.land([asks]), Nowhere)
    assert isinstance(room.copy().land([claiming("y", local("v0"))]), Nowhere)
    room.without([asks.ref])
    assert not isinstance(room.land([claiming("y", local("v0"))]), Nowhere)


def test_a_node_attaches_a_bounded_number_of_volumes_of_a_driver() -> None:
    csi = ClaimedVolume(claim="ml/data", driver="ebs")
    user = pod("ml/user", "n0", placement=Placement(volumes=(csi,)))
    assert lands([node("n0", attachable={"ebs": 1})], claiming("x", csi))
    assert "it attaches no more volumes of ebs" in said([node("n0", attachable={"ebs": 1})], claiming("x", csi, csi))
    assert not lands([node("n0", attachable={"ebs": 1})], claiming("x", csi), held=(user,))
    assert lands([node("n0", attachable={"ebs": 2})], claiming("x", csi), held=(user,))
    assert lands([node("n0", attachable={"efs": 0})], claiming("x", csi), held=(user,))


def test_nodes_that_are_out_take_nothing_and_say_why() -> None:
    room = Room([node("n0"), node("n1", 0)], (), {"n0": "it has a degraded GPU"})
    found = room.land([new("x")])
    assert isinstance(found, Nowhere)
    assert "Closest is n0: it has a degraded GPU" in found.reason
    assert Room([], (), {}).land([new("x")]) == Nowhere(
        f"Pod ml/x needs 1 {GPU} and would land nowhere. There is no Node to look at."
    )


def test_a_copy_leaves_the_room_as_it_was() -> None:
    room = Room([node("n0")], (pod("ml/a", "n0", 8),), {})
    trial = room.copy()
    trial.without(["ml/a"])
    assert not isinstance(trial.land([new("x", 8)]), Nowhere)
    again = room.copy()
    assert isinstance(again.land([new("y")]), Nowhere)
    room.without(["ml/a"])
    assert not isinstance(room.land([new("y", 8)]), Nowhere)
    assert isinstance(again.land([new("z")]), Nowhere)


def test_who_waits_and_in_which_order() -> None:
    waiting = [
        new("young", created=NOW),
        new("gang-0", gang="g"),
        new("gang-1", gang="g", priority=5),
        new("old", created=NOW.replace(year=2025)),
        new("gated", placement=Placement(gated=True)),
        new("leaving", deleting=True),
        pod("ml/bound", "n0", phase="Pending"),
        pod("ml/runs", "n0"),
    ]
    assert [[pod.name for pod in group] for group in waiting_groups(waiting)] == [
        ["gang-0", "gang-1"],
        ["old"],
        ["young"],
    ]


sizes = st.lists(st.integers(1, 8), min_size=1, max_size=4)


@given(
    free=st.lists(st.integers(0, 8), min_size=1, max_size=3),
    asks=sizes,
    cores=st.lists(st.integers(0, 8), min_size=4, max_size=4),
    picky=st.sets(st.integers(0, 3)),
)
def test_what_lands_fits_and_small_gangs_land_whenever_they_can(
    free: list[int], asks: list[int], cores: list[int], picky: set[int]
) -> None:
    """Against every possible placement: what is given is valid, and nothing that is possible is refused."""
    nodes = [node(f"n{i}", count, cpu_cores=8.0, labels={"even": str(i % 2)}) for i, count in enumerate(free)]
    pods = [
        new(
            f"x{i}",
            count,
            cpu_cores=float(cores[i]),
            placement=Placement(node_selector={"even": "0"}) if i in picky else Placement(),
        )
        for i, count in enumerate(asks)
    ]

    def fits(places: tuple[int, ...]) -> bool:
        for index, offered in enumerate(free):
            here = [i for i, at in enumerate(places) if at == index]
            if sum(asks[i] for i in here) > offered or sum(cores[i] for i in here) > 8:
                return False
            if index % 2 and picky.intersection(here):
                return False
        return True

    possible = any(fits(places) for places in itertools.product(range(len(free)), repeat=len(asks)))
    found = land(nodes, *pods)
    assert isinstance(found, Nowhere) is not possible
    if not isinstance(found, Nowhere):
        assert fits(tuple(int(found[pod.ref].removeprefix("n")) for pod in pods))
