"""The fleet MIG plan. `MigFleet.plan` checks every plan as a whole; here stands what a plan must decide."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from advise.mig_fleets import A100, AT, HALVES, MigFleet, fleet_of, nodes_after, overfull, random_fleet, random_hosts
from advise.world import advised, answer, profile
from gpuwatch.facts.model.cluster import Cluster, Placement, Taint
from gpuwatch.facts.model.sizing import Recommendation, SliceDemand, Target, TargetKind
from gpuwatch.facts.model.telemetry import Vendor
from gpuwatch.facts.model.workload_profile import WorkloadKey
from gpuwatch.size.mig_fleet import slice_demands
from gpuwatch.size.mig_plan import MigPlanPolicy, plan_mig


def whole_fleet(pods: int, wants: str | None) -> MigFleet:
    fleet = MigFleet()
    for number in range(pods):
        fleet.node(f"node-{number}")
        fleet.holds(f"pod-{number}", f"GPU-node-{number}-0", "", wants=wants)
    return fleet


def test_seven_pods_of_one_slice_share_one_gpu() -> None:
    plan = whole_fleet(7, "1g.5gb").plan()
    assert (plan.gpus_before, plan.gpus_after, plan.lower_bound_gpus) == (7, 1, 1)
    assert len(plan.freed) == 6
    assert len(plan.placements) == 7
    assert plan.unplaced == ()


def test_a_pod_with_a_volume_claim_gets_a_slice_on_its_own_node_or_none() -> None:
    """Its volume is there; of other Nodes that is not known. Without claims all of them share one GPU, as above."""
    fleet = MigFleet()
    claim = Placement(unmodelled=("spec.volumes[v].persistentVolumeClaim: why",))
    for number in range(7):
        fleet.node(f"node-{number}")
        host = {"placement": claim} if number else None
        fleet.holds(f"pod-{number}", f"GPU-node-{number}-0", "", wants="1g.5gb", host=host)
    there = nodes_after(fleet.plan(), fleet)
    assert [there[f"team/pod-{number}"] for number in range(1, 7)] == [f"node-{number}" for number in range(1, 7)]


def test_an_eighth_slice_needs_a_second_gpu() -> None:
    plan = whole_fleet(8, "1g.5gb").plan()
    assert (plan.gpus_after, plan.lower_bound_gpus) == (2, 2)


@pytest.mark.parametrize(("threes", "fours_on"), [(2, [0, 1]), (1, [1])])
def test_of_three_slices_one_shares_a_gpu_with_four_and_two_do_not(threes: int, fours_on: list[int]) -> None:
    fleet = fleet_of("n", gpus=3)
    fleet.asks("3g.20gb", threes)
    fleet.asks("4g.20gb", 1)
    plan = fleet.plan()
    assert plan.gpus_after == len(fours_on)
    assert sorted(Counter(change.after)["4g.20gb"] for change in plan.changes) == fours_on


def test_a_gpu_whose_cut_serves_is_kept() -> None:
    fleet = MigFleet()
    fleet.node("cut", cuts={0: ("3g.20gb", "3g.20gb")})
    fleet.node("blank")
    fleet.asks("3g.20gb", 2)
    plan = fleet.plan()
    assert plan.changes == ()
    assert plan.mig_parted == {}
    assert set(plan.placements.values()) == {"GPU-cut-0 3g.20gb"}


def test_an_empty_gpu_is_cut_rather_than_one_that_must_be_emptied() -> None:
    fleet = fleet_of("a-held", "b-empty")
    fleet.holds("pod", "GPU-a-held-0", "", wants="2g.10gb")
    plan = fleet.plan()
    assert [change.device for change in plan.changes] == ["GPU-b-empty-0"]
    assert plan.changes[0].displaced == ()
    assert plan.freed == ("GPU-a-held-0",)


def test_where_all_gpus_are_held_the_pods_in_the_way_are_named() -> None:
    assert whole_fleet(1, "2g.10gb").plan().changes[0].displaced == ("team/pod-0",)


def test_pods_that_leave_later_get_the_slices_that_are_ready_later() -> None:
    fleet = whole_fleet(14, "1g.5gb")
    plan = fleet.plan()
    assert len(plan.order) == 2
    there = nodes_after(plan, fleet)
    of_drained = [there[f"team/pod-{name.removeprefix('node-')}"] for name in plan.order]
    assert of_drained == [plan.order[0]] * 2  # the second Node's Pod moves to the first's slices


def test_whole_gpus_that_nobody_advised_stay_whole() -> None:
    fleet = whole_fleet(3, None)
    fleet.asks("1g.5gb")
    plan = fleet.plan()
    assert plan.changes == ()
    assert plan.gpus_after == plan.gpus_before == 3
    assert "no place is left for 1g.5gb" in plan.unplaced[0]


def test_tenants_are_moved_only_to_save_a_gpu() -> None:
    fleet = fleet_of("one", "two", cut=HALVES)
    fleet.holds("left", "GPU-one-0/1", "3g.20gb")
    fleet.holds("right", "GPU-two-0/1", "3g.20gb")
    plan = fleet.plan()
    assert (plan.gpus_before, plan.gpus_after) == (2, 1)
    assert len(plan.moved) == 1
    assert plan.changes == ()
    stays = fleet.plan(MigPlanPolicy(protected_priority=-(2**31)))
    assert (stays.gpus_after, stays.moved) == (2, ())


def test_a_full_fleet_of_tenants_is_left_alone() -> None:
    fleet = fleet_of("one", "two", cut=HALVES)
    for node in ("one", "two"):
        for number in (1, 2):
            fleet.holds(f"{node}-{number}", f"GPU-{node}-0/{number}", "3g.20gb")
    plan = fleet.plan()
    assert (plan.gpus_after, plan.moved, plan.changes) == (2, (), ())


@pytest.mark.parametrize(("priority", "gpus"), [(999, 1), (1000, 2)])
def test_protected_tenants_never_move(priority: int, gpus: int) -> None:
    fleet = fleet_of("one", "two", cut=HALVES)
    for node in ("one", "two"):
        fleet.holds(node, f"GPU-{node}-0/1", "3g.20gb", priority=priority)
    assert fleet.plan(MigPlanPolicy(protected_priority=1000)).gpus_after == gpus


def test_a_gpu_with_a_tenant_that_stays_is_not_cut() -> None:
    fleet = fleet_of("n", cut=HALVES)
    fleet.holds("stays", "GPU-n-0/1", "3g.20gb", priority=1000)
    fleet.asks("4g.20gb")
    plan = fleet.plan(MigPlanPolicy(protected_priority=1000))
    assert plan.changes == ()
    assert len(plan.unplaced) == 1


def test_a_tenant_is_never_without_a_place_for_a_higher_priority() -> None:
    fleet = fleet_of("n", cut=HALVES)
    ref = fleet.holds("tenant", "GPU-n-0/1", "3g.20gb", priority=0)
    fleet.asks("7g.40gb", priority=1000)
    plan = fleet.plan()
    assert [text for key, text in plan.placements.items() if "tenant" in key] == ["GPU-n-0 3g.20gb"]
    assert "7g.40gb" in plan.unplaced[0]
    assert ref not in plan.moved


def test_a_scarce_gpu_goes_to_the_higher_priority() -> None:
    fleet = fleet_of("n")
    fleet.asks("4g.20gb", priority=1)
    fleet.asks("4g.20gb", priority=2)
    plan = fleet.plan()
    assert [key.split("[")[0] for key in plan.placements] == ["Job/team/new-1"]
    assert plan.unplaced[0].startswith("Job/team/new-0")


def test_of_one_priority_the_large_slices_are_placed_first() -> None:
    fleet = fleet_of("n")
    fleet.asks("1g.5gb", 3)
    fleet.asks("7g.40gb")
    plan = fleet.plan()
    assert set(plan.placements.values()) == {"GPU-n-0 7g.40gb"}
    assert len(plan.unplaced) == 3


def test_who_finds_no_place_stays_and_keeps_its_gpu() -> None:
    """Two Pods on one Node want slices that need two GPUs; one of the GPUs is to be avoided."""
    fleet = fleet_of("n", gpus=2)
    fleet.holds("a", "GPU-n-0", "", wants="7g.40gb", priority=5)
    fleet.holds("b", "GPU-n-1", "", wants="7g.40gb")
    plan = fleet.plan(avoid={"GPU-n-1"})
    assert [change.device for change in plan.changes] == ["GPU-n-0"]
    assert plan.gpus_after == 2
    assert "it stays where it is" in plan.unplaced[0]


@pytest.mark.parametrize("degraded", [True, False], ids=["degraded", "cordoned"])
def test_free_slices_of_a_gpu_out_of_service_get_nothing_new(degraded: bool) -> None:
    fleet = MigFleet()
    fleet.node("n", cuts={0: ("3g.20gb", "3g.20gb")}, unschedulable=not degraded)
    fleet.holds("stays", "GPU-n-0/1", "3g.20gb")
    fleet.asks("3g.20gb")
    plan = fleet.plan(avoid={"GPU-n-0"} if degraded else ())
    assert list(plan.placements.values()) == ["GPU-n-0 3g.20gb"]
    assert "no place is left for 3g.20gb" in plan.unplaced[0]


def test_slices_of_one_pod_are_on_one_node() -> None:
    fleet = fleet_of("one", "two", cut=HALVES)
    fleet.holds("x", "GPU-one-0/1", "3g.20gb", priority=2_000_000_000)
    fleet.asks("3g.20gb", 1, count=2)
    plan = fleet.plan()
    assert [text for key, text in plan.placements.items() if "new-" in key] == ["GPU-two-0 3g.20gb, GPU-two-0 3g.20gb"]


def test_slices_of_one_pod_that_no_node_has_are_refused() -> None:
    fleet = fleet_of("one", "two")
    fleet.asks("4g.20gb", 1, count=2)
    plan = fleet.plan()
    assert plan.placements == {}
    assert "no Node would have 2 × 4g.20gb for one Pod" in plan.unplaced[0]


@pytest.mark.parametrize("seed", range(12))
def test_random_mixes_are_within_a_hundredth_of_the_lower_bound(seed: int) -> None:
    plan = random_fleet(seed, 600).plan()
    assert plan.unplaced == ()
    assert len(plan.placements) == 600
    assert plan.gpus_after <= 1.01 * plan.lower_bound_gpus


def test_the_lower_bound_is_one() -> None:
    """Volume alone: no packing can beat memory units and compute slices."""
    sizes = {"1g.5gb": (1, 1), "2g.10gb": (2, 2), "3g.20gb": (4, 3), "4g.20gb": (4, 4), "7g.40gb": (8, 7)}
    for seed in range(12):
        fleet = random_fleet(seed, 300)
        plan = fleet.plan()
        memory = sum(sizes[demand.mig_profile][0] for demand in fleet.demands)
        compute = sum(sizes[demand.mig_profile][1] for demand in fleet.demands)
        assert max(memory / 8, compute / 7) <= plan.lower_bound_gpus + 1e-9


@pytest.mark.parametrize("seed", range(10))
def test_random_fleets_in_use_give_valid_plans(seed: int) -> None:
    """Tenants, advised Pods, whole GPUs, Nodes out of service, strategies; `plan` checks all that has to hold."""
    chance = random.Random(seed)
    fleet = MigFleet()
    cuts = [("1g.5gb",) * 7, ("3g.20gb", "3g.20gb"), ("2g.10gb", "2g.10gb", "3g.20gb"), ("4g.20gb", "1g.5gb"), ()]
    for number in range(20):
        cut = {index: chance.choice(cuts) for index in range(4)}
        strategy = chance.choice(["mixed"] * 6 + ["none", "single"])
        fleet.node(f"n{number:02}", gpus=4, cuts=cut, mig_strategy=strategy, unschedulable=chance.random() < 0.1)
    for device in list(fleet.devices):
        if chance.random() < 0.6:
            profile = device.mig_profile or ""
            wants = chance.choice(["1g.5gb", "2g.10gb", "3g.20gb"]) if chance.random() < 0.5 else None
            known = profile if chance.random() < 0.9 else None
            fleet.holds(device.id.removeprefix("GPU-").replace("/", "-"), device.id, known, wants=wants)
    fleet.asks("2g.10gb", 5)
    fleet.asks("4g.20gb", 3, priority=chance.choice([0, 10]))
    plan = fleet.plan()
    assert plan.gpus_after <= plan.gpus_before + 5 + 3
    assert plan == fleet.plan()


def test_the_order_of_demands_and_devices_does_not_matter_for_the_gpus() -> None:
    fleet = random_fleet(3, 200)
    plan = fleet.plan()
    random.Random(1).shuffle(fleet.devices)
    random.Random(2).shuffle(fleet.demands)
    again = fleet.plan()
    assert (again.gpus_after, again.changes, again.mig_parted) == (plan.gpus_after, plan.changes, plan.mig_parted)


class TestMigParted:
    def test_a_standard_layout_has_its_standard_name(self) -> None:
        fleet = fleet_of("n", gpus=2)
        fleet.asks("1g.5gb", 14)
        plan = fleet.plan()
        assert plan.node_labels == {"n": "all-1g.5gb"}
        assert plan.mig_parted == {
            "version": "v1",
            "mig-configs": {"all-1g.5gb": [{"devices": "all", "mig-enabled": True, "mig-devices": {"1g.5gb": 7}}]},
        }

    def test_a_mixed_node_lists_every_gpu_and_its_name_follows_from_the_content(self) -> None:
        fleet = fleet_of("n", gpus=3)
        fleet.holds("whole", "GPU-n-0", "")
        fleet.asks("1g.5gb", 7)
        plan = fleet.plan()
        entries = next(iter(plan.mig_parted["mig-configs"].values()))  # type: ignore[attr-defined]
        assert entries == [
            {"devices": [0, 2], "mig-enabled": False},
            {"devices": [1], "mig-enabled": True, "mig-devices": {"1g.5gb": 7}},
        ]
        assert plan.node_labels["n"].startswith("gpuwatch-")
        assert fleet.plan().node_labels == plan.node_labels

    def test_nodes_alike_share_a_config(self) -> None:
        fleet = MigFleet()
        for name in ("a", "b"):
            fleet.node(name, gpus=2)
            fleet.holds(f"whole-{name}", f"GPU-{name}-0", "")
        fleet.asks("1g.5gb", 14)
        plan = fleet.plan()
        assert len(set(plan.node_labels.values())) == 1

    def test_one_standard_name_for_two_models_is_given_once(self) -> None:
        """all-1g.10gb is seven instances on an A100 of 80 GB, four on one of 40."""
        fleet = fleet_of("a40")
        fleet.asks("1g.10gb", 4)
        fleet.model = "A100-SXM4-80GB"
        fleet.node("b80")
        fleet.asks("1g.10gb", 7)
        plan = fleet.plan()
        assert plan.gpus_after == 2
        assert plan.node_labels["a40"] == "all-1g.10gb"
        assert plan.node_labels["b80"].startswith("gpuwatch-")

    def test_the_clusters_spelling_is_used(self) -> None:
        """3g.39gb and 3g.40gb are one profile, named by the driver."""
        fleet = MigFleet(model="A100-SXM4-80GB")
        fleet.node("old", cuts={0: ("3g.39gb", "3g.39gb")})
        fleet.node("new")
        fleet.asks("3g.40gb", 4)
        plan = fleet.plan()
        assert plan.changes[0].after == ("3g.39gb", "3g.39gb")
        assert set(plan.placements.values()) == {"GPU-old-0 3g.39gb", "GPU-new-0 3g.39gb"}

    def test_the_nodes_own_spelling_comes_first(self) -> None:
        fleet = MigFleet(model="A100-SXM4-80GB")
        fleet.node("a", cuts={0: ("3g.39gb", "3g.39gb")})
        fleet.node("b", gpus=2, cuts={0: ("3g.40gb", "1g.10gb")})
        fleet.holds("there", "GPU-b-0/1", "3g.40gb", priority=2_000_000_000)
        fleet.asks("3g.40gb", 4)
        plan = fleet.plan()
        assert plan.changes[0].after == ("3g.40gb", "3g.40gb")


class TestBadInput:
    def test_each_costs_a_line_and_the_rest_goes_on(self) -> None:
        fleet = fleet_of("n")
        fleet.asks("1g.5gb")
        fleet.asks("1g.5gb", gpu_model="Z900")
        fleet.asks("9g.99gb")
        fleet.asks("1g.5gb", gpu_model="T4")
        plan = fleet.plan()
        assert len(plan.placements) == 1
        assert "no MIG profile '1g.5gb' of the GPU model 'Z900'" in plan.unplaced[0]
        assert "no MIG profile '9g.99gb'" in plan.unplaced[1]
        assert "of the GPU model 'T4'" in plan.unplaced[2]

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"mig_strategy": "none"}, "its MIG strategy is none"),
            ({"mig_strategy": "single"}, "its MIG strategy is single, not mixed"),
            ({"mig_strategy": ""}, "its MIG strategy is unknown"),
            ({"unschedulable": True}, "cordoned"),
            ({"conditions": ()}, "not known to be ready"),
            ({"gpu_count": 2}, "telemetry shows its GPUs 0 alone, of 2"),
            ({"mig_layout": {"1c.3g.20gb": 3}}, "1c.3g.20gb"),
            ({"taints": (Taint("node.kubernetes.io/unreachable", "", "NoExecute"),)}, "out of service"),
        ],
        ids=["none", "single", "no-strategy", "cordon", "not-ready", "gpus-missing", "compute-instances", "tainted"],
    )
    def test_nodes_that_nothing_is_done_to(self, change: dict[str, object], words: str) -> None:
        fleet = MigFleet()
        fleet.node("n", **change)
        fleet.asks("1g.5gb")
        plan = fleet.plan()
        assert plan.changes == ()
        assert any(words in line for line in plan.unplaced)
        assert any("no place is left for 1g.5gb" in line for line in plan.unplaced)

    def test_a_pod_that_nobody_can_attribute_keeps_its_node_as_it_is(self) -> None:
        fleet = fleet_of("n", gpus=2)
        fleet.holds("seen", "GPU-n-0", "", wants="1g.5gb")
        fleet.pods.append(replace(fleet.pods[0], name="unseen"))
        plan = fleet.plan()
        assert plan.changes == ()
        assert any("it is not known which of its GPUs Pod team/unseen has" in line for line in plan.unplaced)

    def test_a_host_that_is_no_node(self) -> None:
        fleet = fleet_of("n")
        fleet.asks("1g.5gb")
        stray = replace(fleet.devices[0], id="GPU-x", uuid="GPU-x", node=None, node_label="10.0.0.7")
        fleet.devices.append(stray)
        plan = fleet.plan()
        assert len(plan.placements) == 1
        assert any("10.0.0.7" in line for line in plan.unplaced)

    def test_nothing_at_all(self) -> None:
        plan = plan_mig((), Cluster(), (), MigPlanPolicy(), AT)
        assert (plan.gpus_before, plan.gpus_after, plan.lower_bound_gpus, plan.unplaced) == (0, 0, 0, ())


def test_the_emptiest_node_is_drained_first() -> None:
    fleet = MigFleet()
    for name, pods in (("busy", 17), ("calm", 16), ("empty", 0)):
        fleet.node(name, gpus=17)
        for number in range(pods):
            fleet.holds(f"{name}-{number}", f"GPU-{name}-{number}", "", wants="7g.40gb")
    fleet.asks("7g.40gb", 18)
    plan = fleet.plan()
    assert plan.order == ("empty", "calm", "busy")
    assert [change.node for change in plan.changes] == sorted(
        (change.node for change in plan.changes), key=plan.order.index
    )


class TestDemandsFromAdvice:
    def advice(self, target: Target) -> Recommendation:
        given = advised(answer(profile("Job/team/a")))
        return replace(given, chosen=replace(given.chosen, target=target))

    def fleet(self) -> MigFleet:
        fleet = MigFleet()
        fleet.node("n", gpus=4, cuts={3: ("3g.20gb", "3g.20gb")})
        fleet.holds("a", "GPU-n-0", "")
        fleet.holds("b", "GPU-n-1", "")
        fleet.holds("b", "GPU-n-2", "")
        fleet.holds("c", "GPU-n-3/1", "3g.20gb")
        fleet.pods = list({pod.ref: replace(pod, priority=7) for pod in fleet.pods}.values())
        fleet.devices = [replace(item, containers=("main",) * len(item.pods)) for item in fleet.devices]
        return fleet

    def test_advised_others_and_tenants(self) -> None:
        fleet = self.fleet()
        advice = self.advice(Target(kind=TargetKind.MIG, gpu_model=A100, gpus_per_pod=1, mig_profile="2g.10gb"))
        demands = slice_demands([advice], fleet.cluster, fleet.devices)
        assert [(item.pod, item.mig_profile, item.count, item.devices, item.priority) for item in demands] == [
            ("team/a", "2g.10gb", 1, ("GPU-n-0",), 7),
            ("team/b", "", 2, ("GPU-n-1", "GPU-n-2"), 7),
            ("team/c", "3g.20gb", 1, ("GPU-n-3/1",), 7),
        ]

    def test_advice_of_another_kind_changes_nothing(self) -> None:
        fleet = self.fleet()
        advice = self.advice(Target(kind=TargetKind.MODEL, gpu_model="L40S", gpus_per_pod=1))
        demands = slice_demands([advice], fleet.cluster, fleet.devices)
        assert demands[0].mig_profile == ""

    def test_advice_with_a_condition_changes_nothing(self) -> None:
        fleet = self.fleet()
        advice = self.advice(Target(kind=TargetKind.MIG, gpu_model=A100, gpus_per_pod=1, mig_profile="2g.10gb"))
        demands = slice_demands([replace(advice, condition="Only if so.")], fleet.cluster, fleet.devices)
        assert demands[0].mig_profile == ""

    def test_pods_that_have_ended_and_other_vendors_ask_for_nothing(self) -> None:
        fleet = self.fleet()
        fleet.pods = [replace(pod, phase="Succeeded") if pod.name == "a" else pod for pod in fleet.pods]
        amd = replace(fleet.devices[0], id="x", uuid="x", vendor=Vendor.AMD, model="MI300X", pods=("team/z",))
        demands = slice_demands([], fleet.cluster, [*fleet.devices, amd])
        assert {item.pod for item in demands} == {"team/b", "team/c"}

    def test_the_demands_can_be_planned(self) -> None:
        fleet = self.fleet()
        advice = self.advice(Target(kind=TargetKind.MIG, gpu_model=A100, gpus_per_pod=1, mig_profile="3g.20gb"))
        fleet.demands = list(slice_demands([advice], fleet.cluster, fleet.devices))
        plan = fleet.plan()
        assert plan.gpus_after == 3  # Pod a moves beside c, and b keeps its two
        assert plan.freed == ("GPU-n-0",)


def test_a_demand_names_its_pod_or_its_workload() -> None:
    fleet = MigFleet()
    key = WorkloadKey("Job/team/later", "main", A100)
    fleet.demands.append(SliceDemand(key=key, gpu_model="unknown", mig_profile="1g.5gb"))
    assert fleet.plan().unplaced[0].startswith("Job/team/later[main]")


def bound_fleet(nodes: int, each: int, cores: float, *, gpus: int = 8, has: float = 96.0) -> MigFleet:
    """Nodes with `each` Pods of one whole GPU and `cores` CPU cores, all advised 1g.5gb."""
    fleet = MigFleet()
    for at in range(nodes):
        fleet.node(f"n{at}", gpus, cpu_cores=has, memory_bytes=2**40)
        for number in range(each):
            fleet.holds(f"p{at}-{number}", f"GPU-n{at}-{number}", "", wants="1g.5gb", host={"cpu_cores": cores})
    return fleet


def test_no_more_pods_are_put_on_a_node_than_its_host_takes() -> None:
    """Seven slices fit on one GPU; 80 Pods of 8 cores need seven hosts of 96 cores, 12 on each: two GPUs each."""
    fleet = bound_fleet(10, 8, 8.0)
    plan = fleet.plan()
    assert plan.unplaced == ()
    where = Counter(text.split(" ")[0].split("-")[1] for text in plan.placements.values())
    assert max(where.values()) <= 12
    assert plan.gpus_after <= 16
    assert plan.lower_bound_gpus == 12  # by geometry alone
    assert plan.gpus_before - plan.gpus_after == len(plan.freed) + len(plan.freed_without_host)


def test_gpus_whose_host_is_full_are_not_freed() -> None:
    plan = bound_fleet(1, 4, 24.0).plan()
    assert (plan.gpus_before, plan.gpus_after) == (4, 1)
    assert plan.freed == ()
    assert len(plan.freed_without_host) == 4  # the slices are on a GPU that was empty before


def test_free_gpus_come_before_freed_ones_where_the_host_has_room_for_few() -> None:
    """Two of eight GPUs are free already, and one of them is cut. Beside six Pods of 12 cores 24 of 96 are left: for
    the other free GPU and for one that is freed."""
    plan = bound_fleet(1, 6, 12.0).plan()
    assert (len(plan.freed), len(plan.freed_without_host)) == (1, 5)
    plan = bound_fleet(1, 6, 12.0, has=121.0).plan()
    assert (len(plan.freed), len(plan.freed_without_host)) == (3, 3)


def test_a_pod_that_no_other_host_takes_keeps_its_gpu_and_the_plan_says_why() -> None:
    """A large Pod alone on its Node, on a GPU that it needs whole; the small Nodes cannot take each other's Pods."""
    fleet = bound_fleet(2, 1, 60.0, gpus=1)
    plan = fleet.plan()
    assert plan.gpus_after == 2
    assert plan.freed == ()
    fleet = bound_fleet(2, 2, 40.0, gpus=2, has=90.0)
    fleet.nodes[0] = replace(fleet.nodes[0], unschedulable=True)
    fleet.nodes[1] = replace(fleet.nodes[1], cpu_cores=85.0)
    plan = fleet.plan()
    assert plan.gpus_after == 3
    assert sum("CPU cores are free; it stays where it is" in line for line in plan.unplaced) == 2


def test_taints_and_affinities_of_the_target_count() -> None:
    fleet = MigFleet()
    fleet.node("a", cpu_cores=96.0)
    fleet.node("b", cpu_cores=96.0, taints=(Taint("team", "x", "NoSchedule"),))
    fleet.holds("stays", "GPU-a-0", "")
    fleet.holds("leaves", "GPU-b-0", "", wants="1g.5gb")
    plan = fleet.plan()
    assert plan.freed == ()


def test_a_pod_that_the_cluster_does_not_list_stays() -> None:
    fleet = whole_fleet(2, "1g.5gb")
    fleet.pods.pop()
    plan = fleet.plan()
    assert any("the cluster does not list its Pod" in line for line in plan.unplaced)


@pytest.mark.parametrize("seed", range(40))
def test_no_host_is_asked_for_more_than_it_has(seed: int) -> None:
    fleet = random_hosts(seed)
    plan = fleet.plan()
    assert overfull(fleet, plan) == {}
    assert plan.gpus_after <= plan.gpus_before
