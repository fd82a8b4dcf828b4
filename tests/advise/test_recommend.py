"""One answer per workload: gates, choice, gangs, and failures that cost one workload."""

from dataclasses import replace
from datetime import timedelta
from random import Random

import pytest

from advise.world import (
    A100,
    GIB,
    LIGHT,
    NOW,
    TABLES,
    abstained,
    advised,
    answer,
    book,
    cell,
    cluster,
    node,
    option,
    owner,
    pod,
    price,
    profile,
    rules,
    run,
)
from gpuwatch.facts.catalog.instances import instance_types
from gpuwatch.facts.model.cluster import Cluster, Gang, OwnerStatus
from gpuwatch.facts.model.decision import Family, Finding, FindingKind, Subject, SubjectKind, Verdict
from gpuwatch.facts.model.sizing import AbstentionKind, EvidenceTier, Option, SpeedEstimate, Target, TargetKind
from gpuwatch.facts.model.telemetry import EngineLoad
from gpuwatch.size import recommend
from gpuwatch.size.options import fewer_speed
from gpuwatch.size.policy import AdvicePolicy
from gpuwatch.size.ready import confidence_days, widened
from gpuwatch.size.recommend import advise, expected_cost, miss_probability

JOB = "Job/team/train"
POLICY = AdvicePolicy()


def test_the_cheapest_that_is_fast_enough_is_advised_with_all_its_numbers():
    found = advised(answer(profile()))
    assert found.chosen.target.mig_profile == "1g.5gb"
    assert found.chosen.allowed
    assert found.chosen.speed.low_ratio >= found.target_speed_ratio == 0.9
    assert found.runner_up.target.mig_profile == "1g.10gb"
    assert found.current.target.kind is TargetKind.SAME
    assert found.chosen.projected_saving_per_week == pytest.approx(168 * 2 * 7 / 8)
    assert found.change.patch
    assert "projected to save 294.00 of 336.00 USD and 147.0 A100-SXM4-40GB GPU-hours a week" in found.reason
    allowed = [one.allowed for one in found.options]
    assert allowed == sorted(allowed, reverse=True)


def test_one_answer_per_key_the_largest_saving_first():
    names = [f"Notebook/team/{name}" for name in ("a", "b", "c")]
    profiles = [profile(name, days=14.0, hours_per_day=hours) for name, hours in zip(names, (8, 24, 16), strict=True)]
    unknown = [profile("Notebook/team/z", gpu="X9"), profile("Notebook/team/y", gpu="X9")]
    recommended, abstentions = advise(book(*unknown, *profiles), cluster(), [price()], POLICY, NOW)
    assert [one.key.workload for one in recommended] == [names[1], names[2], names[0]]
    assert [one.key.workload for one in abstentions] == ["Notebook/team/y", "Notebook/team/z"]


def test_the_answer_does_not_depend_on_the_order_of_the_book():
    profiles = [profile(f"Notebook/team/{n}", gpu="L40S", cells=[cell(0.02 * (n + 1), 0.01)]) for n in range(6)]
    world = cluster([node(product="NVIDIA-L40S")], [], [])
    assert advise(book(*profiles), world, [price()], POLICY, NOW) == advise(
        book(*reversed(profiles)), world, [price()], POLICY, NOW
    )


# --- gates ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("coverage", "enough"), [(0.6, True), (0.59, False)])
def test_coverage(coverage, enough):
    found = answer(profile(coverage=coverage, left_out_seconds={"throttled": 7200.0}))
    if enough:
        advised(found)
    else:
        assert "throttled 2.0 h" in abstained(found, AbstentionKind.COVERAGE).reason


@pytest.mark.parametrize(
    ("left_out", "says"),
    [
        ({}, "gaps in the exporter's scrapes"),
        ({"ambiguous": 1e9, "start_up": 600.0}, "Several Pods share the device"),
        ({"start_up": 1e9}, "longer than their start-up"),
        ({"xid": 1e9}, "distorts the measurement (xid)"),
    ],
    ids=["nothing", "shared", "start-up", "degraded"],
)
def test_what_would_mend_coverage_depends_on_what_is_missing(left_out, says):
    found = abstained(answer(profile(coverage=0.1, left_out_seconds=left_out)), AbstentionKind.COVERAGE)
    assert says in found.resolve


def test_no_window_is_no_coverage():
    abstained(answer(profile(cells=[])), AbstentionKind.COVERAGE)


def test_a_framebuffer_that_was_never_measured():
    assert "framebuffer" in abstained(answer(profile(runs=())), AbstentionKind.COVERAGE).reason


@pytest.mark.parametrize(("hours", "enough"), [(3.0, True), (2.9, False)])
def test_hours(hours, enough):
    found = answer(profile(days=1.0, hours_per_day=hours, run_count=2))
    assert (getattr(found, "kind", None) is AbstentionKind.YOUNG) is not enough


def test_many_devices_for_a_moment_are_no_hours():
    brief = profile(days=0.1, hours_per_day=24.0, pods=64.0)
    assert "2.4 h" in abstained(answer(brief), AbstentionKind.YOUNG).reason
    moment = replace(brief, first_seen=brief.last_seen)
    abstained(answer(moment), AbstentionKind.YOUNG)


@pytest.mark.parametrize(
    ("workload", "runs", "days", "enough"),
    [
        (JOB, 2, 5.0, True),
        (JOB, 1, 5.0, False),
        ("Notebook/team/lab", 1, 3.0, True),
        ("Notebook/team/lab", 1, 2.0, False),
        ("Notebook/team/lab", 2, 2.0, True),
    ],
)
def test_runs_or_days(workload, runs, days, enough):
    found = answer(profile(workload, run_count=runs, days=days), world=cluster([node()], [], []))
    assert (getattr(found, "kind", None) is AbstentionKind.YOUNG) is not enough


def test_an_unknown_model_is_named():
    found = abstained(answer(profile(gpu="NVIDIA X9000")), AbstentionKind.UNKNOWN_GPU)
    assert "NVIDIA X9000" in found.reason
    assert "GPU table" in found.resolve


@pytest.mark.parametrize(("busy", "idle"), [(0.001, True), (0.0011, False)])
def test_what_does_nothing_is_released(busy, idle):
    found = answer(profile(cells=[cell(busy, 0.0001)]))
    assert (getattr(found, "kind", None) is AbstentionKind.IDLE) is idle


@pytest.mark.parametrize(
    ("pods", "verdict", "idle"),
    [
        (("team/lab-0", "team/lab-1"), Verdict.IDLE, True),
        (("team/lab-0",), Verdict.IDLE, False),
        (("team/lab-0", "team/lab-1"), Verdict.BUSY, False),
    ],
)
def test_what_was_found_idle_is_released(pods, verdict, idle):
    finding = Finding(
        rule="idle.abandoned",
        family=Family.IDLE,
        kind=FindingKind.ABANDONED,
        subject=Subject(SubjectKind.POD, "team/lab-0"),
        verdict=verdict,
        summary="",
        pods=pods,
    )
    world = cluster(pods=[pod(name="lab-0"), pod(name="lab-1")])
    found = answer(profile(), world=world, findings=[finding])
    assert (getattr(found, "kind", None) is AbstentionKind.IDLE) is idle


@pytest.mark.parametrize(
    ("status", "known"),
    [
        (OwnerStatus.FOUND, True),
        (OwnerStatus.BARE, True),
        (OwnerStatus.UNKNOWN_KIND, True),
        (OwnerStatus.FORBIDDEN, False),
        (OwnerStatus.MISSING, False),
        (OwnerStatus.STATIC, False),
        (OwnerStatus.DAEMON, False),
    ],
)
def test_owners_that_nobody_can_change(status, known):
    found = answer(profile(), world=cluster(workloads=[owner(status=status)]))
    assert (getattr(found, "kind", None) is AbstentionKind.UNKNOWN_OWNER) is not known


@pytest.mark.parametrize(("hours", "moved"), [(24, False), (25, True)])
def test_a_profile_of_where_it_ran_before_is_history(hours, moved):
    old = profile(ended=timedelta(hours=hours))
    new = profile(mig="1g.5gb", days=hours / 24)
    found = answer(old, new)
    assert (getattr(found, "kind", None) is AbstentionKind.MOVED) is moved
    assert getattr(answer(new, old), "kind", None) is not AbstentionKind.MOVED
    other = replace(new.key, container="other")
    assert getattr(answer(old, replace(new, key=other)), "kind", None) is not AbstentionKind.MOVED


# --- abstentions after the options were weighed --------------------------------------------------------------------


def test_a_full_gpu_is_right_sized():
    found = abstained(
        answer(profile(cells=[cell(0.98, 0.95, dram_active_ratio=0.7)], peak_gib=38)), AbstentionKind.RIGHT_SIZED
    )
    assert found.current is not None
    assert found.options
    assert found.nearest is not None


def test_likely_fast_enough_but_not_surely():
    world = cluster([node()], [owner(JOB, "batch/v1")], [pod(JOB)])
    # Half busy on a quarter of the SMs: half of the card likely does.
    found = abstained(
        answer(profile(JOB, cells=[cell(0.55, 0.22)], peak_gib=15), world=world), AbstentionKind.UNCERTAIN
    )
    assert found.nearest.speed.likely_ratio >= 0.9 > found.nearest.speed.low_ratio
    assert rules(found.nearest) == {"target_speed"}


def test_memory_that_fills_the_card():
    filled = profile(runs=(run(38, flat=True), run(38, number=1, flat=True)), cells=LIGHT)
    found = abstained(answer(filled), AbstentionKind.MEMORY_ELASTIC)
    assert "gpuwatch.dev/gpu-memory-need" in found.resolve
    assert found.nearest is not None
    assert "elastic_memory" in rules(found.nearest)


def test_a_full_card_that_is_too_busy_for_another_is_not_called_right_sized():
    """No other GPU is fast enough; whether it could share one depends on a need that nobody knows."""
    filled = profile(runs=(run(38, flat=True), run(38, number=1, flat=True)), cells=[cell(0.98, 0.95)])
    found = abstained(answer(filled), AbstentionKind.MEMORY_ELASTIC)
    assert "Whether it could share a GPU is not known." in found.reason
    assert "gpuwatch.dev/gpu-memory-need" in found.resolve
    grown = profile(cells=[cell(0.98, 0.95)], peak_gib=38)
    abstained(answer(grown), AbstentionKind.RIGHT_SIZED)


def vllm():
    """At gpu_memory_utilization 0.4 of an A100-40GB."""
    return profile(runs=(run(16, flat=True), run(16, number=1, flat=True)), cells=LIGHT)


def test_a_vllm_at_four_tenths_gets_the_slice_that_has_what_it_uses_on_a_condition():
    """16 GiB, 15 % for peaks and 0.5 GiB of context are 18.9 GiB; 2g.10gb would be enough for its kernels."""
    found = advised(answer(vllm()))
    assert found.chosen.target.mig_profile == "3g.20gb"
    assert found.condition == (
        "Only if it still gets the 16.0 GiB per GPU that it uses now: where the program reserves a share of its GPU "
        "(vLLM's gpu_memory_utilization, XLA_PYTHON_CLIENT_MEM_FRACTION), raise that share."
    )
    assert found.reason.startswith(found.condition)
    smaller = [one for one in found.options if one.memory_bytes < 18 * GIB]
    assert smaller
    assert all("elastic_memory" in rules(one) for one in smaller)


@pytest.mark.parametrize("peak", [1, 3.6])
def test_a_small_model_whose_memory_is_flat_gets_a_small_slice_on_a_condition(peak):
    found = advised(answer(profile(runs=(run(peak, flat=True), run(peak, number=1, flat=True)), cells=LIGHT)))
    assert found.chosen.target.mig_profile == "1g.5gb"
    assert "raise that share" in found.condition


def test_memory_that_grew_is_no_condition():
    assert advised(answer(profile(cells=LIGHT))).condition == ""


@pytest.mark.parametrize(("need", "profile_"), [("12Gi", "3g.20gb"), ("4Gi", "1g.5gb")])
def test_with_a_stated_need_it_gets_the_slice_that_has_it(need, profile_):
    lab = owner(annotations={"gpuwatch.dev/gpu-memory-need": need})
    found = advised(answer(vllm(), world=cluster([node()], [lab], [pod()])))
    assert found.chosen.target.mig_profile == profile_
    assert found.condition == ""


def test_what_would_do_but_must_not():
    found = abstained(answer(profile(cells=[cell(0.1, 0.01, nvlink_bytes_per_second=1e9)])), AbstentionKind.VETOED)
    assert "nvlink" in found.resolve
    assert "NVLink" in found.reason


def test_utilisation_alone_says_measure_first_and_what_might_come_of_it():
    coarse = [cell(0.1, None, dram_active_ratio=None, tensor_active_ratio=None, power_watts=None)]
    found = abstained(answer(profile(cells=coarse, coarse_busy=True)), AbstentionKind.SIGNALS)
    assert "DCGM_FI_PROF_GR_ENGINE_ACTIVE" in found.resolve
    assert found.nearest is not None


# --- confidence ----------------------------------------------------------------------------------------------------


def speed(low, likely=1.0, high=1.0):
    return SpeedEstimate(low_ratio=low, likely_ratio=likely, high_ratio=high, tier=EvidenceTier.SM, basis="")


def test_young_profiles_are_widened_as_the_vertical_pod_autoscaler_does():
    assert confidence_days(profile(days=7.0, hours_per_day=4.0)) == pytest.approx(7 * 4 / 24)
    assert confidence_days(profile(days=2.0, pods=10.0)) == pytest.approx(2.0)
    assert 1 / widened(speed(0.8), 1.0, 1.0).low_ratio - 1 == pytest.approx(0.25 * 2)
    assert 1 / widened(speed(0.8), 10.0, 1.0).low_ratio - 1 == pytest.approx(0.25 * 1.1)
    assert widened(speed(1.0), 0.1, 1.0).low_ratio == 1.0
    assert widened(speed(0.8), 0.0, 1.0).low_ratio == 0.0
    assert widened(speed(0.8), 1.0, 0.0).low_ratio == pytest.approx(0.8)


def test_a_week_allows_what_a_day_does_not():
    kinds = {}
    for days in (1.0, 14.0):
        found = answer(profile(days=days))
        kinds[days] = (option(found, TargetKind.MIG, "1g.5gb").allowed, getattr(found, "confidence_ratio", 0.0))
    assert kinds[14.0][0] is True
    assert kinds[1.0][0] is False
    assert kinds[14.0][1] == pytest.approx(14 / 15)


def test_young_memory_is_widened_too():
    old, young = answer(profile(days=14.0)).memory, answer(profile(days=1.0)).memory
    assert young.need_bytes / old.need_bytes == pytest.approx(1.1 / (1 + 0.1 / 14))


# --- choice --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "likely", "high", "probability"),
    [(0.9, 0.95, 1.0, 0.0), (0.5, 0.6, 0.9, 1.0), (0.8, 0.9, 1.0, 0.5), (0.8, 1.0, 1.0, 0.25), (0.8, 0.8, 1.0, 0.75)],
)
def test_probability_of_missing_the_speed(low, likely, high, probability):
    assert miss_probability(speed(low, likely, high), 0.9) == pytest.approx(probability)


def test_the_cost_of_a_likely_miss_is_what_it_costs_now():
    now = Option(target=Target(kind=TargetKind.SAME, gpu_model=A100, gpus_per_pod=1), speed=speed(1), memory_bytes=1)
    target = Target(kind=TargetKind.MIG, gpu_model=A100, gpus_per_pod=1, mig_profile="3g.20gb")
    sure = Option(target=target, speed=speed(0.9), memory_bytes=1, projected_saving_gpu_hours_per_week=84.0)
    unsure = replace(sure, speed=speed(0.8, 0.9, 1.0))
    assert expected_cost(sure, now, 168.0, POLICY) == pytest.approx(84.0)
    assert expected_cost(unsure, now, 168.0, POLICY) == pytest.approx(84.0 + 84.0)
    assert expected_cost(unsure, now, 168.0, AdvicePolicy(penalty_ratio=0.0)) == pytest.approx(84.0)
    priced = replace(now, projected_cost_per_week=100.0)
    assert expected_cost(replace(unsure, projected_cost_per_week=50.0), priced, 168.0, POLICY) == pytest.approx(100.0)
    assert expected_cost(now, priced, 168.0, POLICY) == float("inf")  # a price is missing on one side


def test_fewer_gpus_for_pods_that_hardly_use_theirs():
    idle_pod = profile("Notebook/team/lab", cells=[cell(0.02, 0.01)], gpus=4, peak_gib=2.0)
    world = cluster(pods=[pod(accelerators={"nvidia.com/gpu": 4})])
    found = advised(answer(idle_pod, world=world))
    assert found.chosen.target.kind is TargetKind.FEWER
    assert found.chosen.target.gpus_per_pod == 1
    assert found.chosen.projected_saving_gpu_hours_per_week == pytest.approx(3 * 168)


def test_speed_on_fewer_gpus_by_hand():
    one = profile(cells=[cell(0.1, 0.01), cell(0.3, 0.01)], gpus=4)
    now = Target(kind=TargetKind.SAME, gpu_model=A100, gpus_per_pod=4)
    found = fewer_speed(one, now, replace(now, gpus_per_pod=2), EvidenceTier.SM)
    assert found.low_ratio == pytest.approx(1 / 1.2)
    assert found.high_ratio == pytest.approx(1.0)
    full = fewer_speed(one, now, replace(now, gpus_per_pod=1), EvidenceTier.SM)
    assert full.high_ratio == pytest.approx(1 / ((1.0 + 1.2 / 0.8) / 2))
    assert full.low_ratio == pytest.approx(1 / ((1.3 + 1.9) / 2))


def test_a_faster_and_cheaper_model_wins_in_money():
    nodes = [node(), node("h-0", "NVIDIA-H100-80GB-HBM3", instance_type="h100")]
    world = cluster(nodes, [owner(JOB, "batch/v1")], [pod(JOB)])
    busy = profile(JOB, cells=[cell(0.95, 0.9, dram_active_ratio=0.5, tensor_active_ratio=0.3)], peak_gib=38.0)
    found = advised(answer(busy, world=world, prices=[price(), price("h100", "H100-SXM5-80GB", per_hour=8.0)]))
    assert found.chosen.target.gpu_model == "H100-SXM5-80GB"
    assert found.condition == "Only if the image carries sm_90, or PTX that the driver can compile for it."
    assert found.reason.startswith(f"{found.condition} 1 × H100-SXM5-80GB in h100 keeps ")
    assert "Without a condition" not in found.reason  # nothing else is fast enough
    assert "Where this holds, set annotation gpuwatch.dev/compute-capabilities to 9.0." in found.caveats


def test_beside_a_condition_stands_the_best_that_needs_none():
    nodes = [node(), node("h-0", "NVIDIA-H100-80GB-HBM3", instance_type="h100")]
    prices = [price(), price("h100", "H100-SXM5-80GB", per_hour=0.01)]
    found = advised(answer(profile(), world=cluster(nodes), prices=prices))
    assert (found.chosen.target.gpu_model, bool(found.condition)) == ("H100-SXM5-80GB", True)
    assert found.runner_up.target.gpu_model == A100
    assert f". Without a condition: {found.runner_up.target.name} keeps " in found.reason
    assert found.reason.endswith("GPU-hours a week.")


@pytest.mark.parametrize(("where", "text", "setting", "conditional"), TABLES["images"])
def test_who_knows_the_image_removes_the_condition(where, text, setting, conditional):
    told = {} if text is None else {"gpuwatch.dev/compute-capabilities": text}
    train = owner(JOB, "batch/v1", annotations=told if where == "owner" else {})
    running = pod(JOB, annotations=told if where == "pod" else {})
    world = cluster([node(), node("h-0", "NVIDIA-H100-80GB-HBM3", instance_type="h100")], [train], [running])
    busy = profile(JOB, cells=[cell(0.95, 0.9, dram_active_ratio=0.5, tensor_active_ratio=0.3)], peak_gib=38.0)
    found = advised(
        answer(
            busy,
            world=world,
            prices=[price(), price("h100", "H100-SXM5-80GB", per_hour=8.0)],
            policy=AdvicePolicy(compute_capabilities=setting),
        )
    )
    assert bool(found.condition) is conditional
    assert found.reason.startswith("Only if") is conditional


def test_a_slice_of_the_same_model_has_no_condition():
    assert advised(answer(profile())).condition == ""


# --- gangs ---------------------------------------------------------------------------------------------------------


def gang_world(*pods, nodes):
    members = Gang(id="g", framework="JobSet", workload=JOB, namespace="team", pods=tuple(one.ref for one in pods))
    return cluster(nodes, [owner(JOB, "batch/v1")], pods, gangs=(members,))


def test_a_gang_on_two_models_moves_as_a_whole_or_not_at_all():
    nodes = [
        node(),
        node("v-0", "Tesla-V100-SXM2-32GB", instance_type="v100"),
        node("l4-0", "NVIDIA-L40S", instance_type="l40s"),
    ]
    prices = [price(), price("v100", "V100-SXM2-32GB", per_hour=16.0), price("l40s", "L40S", per_hour=4.0)]
    pods = [pod(JOB, "a"), pod(JOB, "b", on="v-0")]
    light = {"cells": [cell(0.1, 0.01)], "pods": 1.0}
    one, two = profile(JOB, **light), profile(JOB, gpu="V100-SXM2-32GB", **light)
    world = gang_world(*pods, nodes=nodes)
    both = [advised(answer(first, second, world=world, prices=prices)) for first, second in ((one, two), (two, one))]
    assert {found.chosen.target.gpu_model for found in both} == {"L40S"}
    # The other member fills more memory than the target has: none of them goes there.
    full = replace(two, runs=(run(31.0, capacity_gib=32.0), run(44.0, number=1, capacity_gib=64.0)))
    found = answer(one, full, world=world, prices=prices)
    assert "gang_whole" in rules(option(found, TargetKind.MODEL, "L40S"))
    assert not hasattr(found, "chosen")


def test_a_member_without_an_answer_keeps_the_gang_where_it_is():
    nodes = [node(), node("l4-0", "NVIDIA-L40S", instance_type="l40s")]
    prices = [price(), price("l40s", "L40S", per_hour=4.0)]
    pods = [pod(JOB, "a"), pod(JOB, "b")]
    one = profile(JOB)
    unknown = profile(JOB, container="other", runs=())
    found = answer(one, unknown, world=gang_world(*pods, nodes=nodes), prices=prices)
    assert "gang_whole" in rules(option(found, TargetKind.MODEL, "L40S"))
    alone = answer(one, world=gang_world(*pods, nodes=nodes), prices=prices)
    assert advised(alone).chosen.target.gpu_model == "L40S"


# --- failures ------------------------------------------------------------------------------------------------------


def test_one_workloads_failure_costs_one_workload_and_is_said(monkeypatch):
    broken, sound = profile("Notebook/team/broken"), profile("Notebook/team/sound")
    for step in ("prepare", "options_of", "change"):
        real = getattr(recommend, step)

        def fails(*given, real=real):
            if "broken" in repr(given[0]):
                raise ZeroDivisionError("by the test")
            return real(*given)

        with monkeypatch.context() as patched:
            patched.setattr(recommend, step, fails)
            recommended, abstentions = advise(book(broken, sound), cluster(), [price()], POLICY, NOW)
        assert [one.key.workload for one in recommended] == ["Notebook/team/sound"]
        assert abstained(abstentions[0], AbstentionKind.FAILED).reason == (
            "gpuwatch failed on this workload (ZeroDivisionError: by the test)."
        )


def test_nothing_profiled_and_nothing_known():
    assert advise(book(), cluster([], [], []), [], POLICY, NOW) == ((), ())
    found = answer(profile(), world=cluster([], [], []), prices=[])
    assert advised(found).chosen.projected_saving_gpu_hours_per_week == pytest.approx(147.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("target_speed_ratio", 1.1),
        ("min_coverage_ratio", -0.1),
        ("min_runs", 0),
        ("max_partners", 1),
        ("penalty_ratio", -1.0),
        ("min_observed_hours", float("inf")),
    ],
)
def test_a_policy_out_of_bounds_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"advice.{name}"):
        AdvicePolicy(**{name: value})


def test_usable_memory_of_the_options():
    found = answer(profile())
    assert option(found, TargetKind.MIG, "1g.5gb").memory_bytes == pytest.approx(0.95 * 5 * GIB)
    assert found.current.memory_bytes == pytest.approx(0.98 * 40 * GIB)


def test_whatever_the_fleet_what_is_advised_keeps_its_promises():
    random = Random(7)
    kinds = ("CronJob", "Notebook", "Deployment", "PyTorchJob", "StatefulSet")
    profiles = []
    for number in range(300):
        has_sm, has_dram, talks = random.random() < 0.8, random.random() < 0.9, random.random() < 0.2
        most = random.choice((0.1, 0.3, 1.0))
        cells = []
        for _ in range(random.randrange(1, 6)):
            busy = random.uniform(0.0, most)
            cells.append(
                cell(
                    busy,
                    busy * random.random() if has_sm else None,
                    dram_active_ratio=busy * random.random() / 2 if has_dram else None,
                    tensor_active_ratio=busy * random.random() / 2,
                    nvlink_bytes_per_second=1e9 if talks else 0.0,
                )
            )
        one = profile(
            f"{random.choice(kinds)}/team-{number % 5}/w{number}",
            gpu=random.choice((A100, A100, "H100-SXM5-80GB", "L4", "MI300X")),
            cells=cells,
            peak_gib=random.uniform(0.5, 20.0),
            days=random.choice((0.1, 1.0, 14.0, 14.0)),
            coverage=random.choice((0.4, 0.8, 1.0)),
            gpus=random.choice((1, 1, 1, 2, 8)),
            pods=random.choice((1.0, 3.0)),
            coarse_busy=random.random() < 0.1,
        )
        profiles.append(one)
    nodes = [node(instance_type="p4d.24xlarge", region="us-east-1")]
    nodes.append(node("h-0", "NVIDIA-H100-80GB-HBM3", instance_type="p5.48xlarge", region="us-east-1"))
    recommended, abstentions = advise(book(*profiles), cluster(nodes, [], []), instance_types(), POLICY, NOW)
    assert {one.key for one in (*recommended, *abstentions)} == {one.key for one in profiles}
    assert len(recommended) + len(abstentions) == len(profiles)
    assert len(recommended) > 20
    assert len({one.kind for one in abstentions}) > 5
    assert AbstentionKind.FAILED not in {one.kind for one in abstentions}
    for one in recommended:
        assert one.chosen.allowed
        assert one.chosen.speed.low_ratio >= POLICY.target_speed_ratio
        assert one.chosen.projected_saving_gpu_hours_per_week >= POLICY.min_saving_gpu_hours_per_week
        assert one.chosen.memory_bytes >= one.memory.need_bytes
        assert one.chosen.projected_saving_per_week is None or one.chosen.projected_saving_per_week > 0
        assert one.chosen.speed.tier is not EvidenceTier.UTILISATION
        assert one.runner_up is None or one.runner_up.allowed
        assert one.change.patch
        assert 0 < one.confidence_ratio < 1
    for found in (*recommended, *abstentions):
        for way in found.options:
            assert way.speed.low_ratio <= way.speed.likely_ratio <= way.speed.high_ratio
            assert all(veto.reason.endswith(".") for veto in way.vetoes)
        assert found.reason.strip()
        assert not ("would be fast enough" in found.reason and "of today's speed" in found.reason)


def test_a_live_pod_that_restarted_near_the_cards_limit_needs_more() -> None:
    one = profile(runs=(run(38.0), *(run(4.0, number=number) for number in range(1, 6))))
    once = answer(one, world=cluster(pods=[pod(name="pod-0")])).memory
    again = answer(one, world=cluster(pods=[pod(name="pod-0", restarts=1)])).memory
    assert (once.headroom_ratio, again.headroom_ratio) == (0.10, 0.20)
    assert "perhaps out of memory" in again.reason


@pytest.mark.parametrize(("sm", "said"), [(0.01, False), (0.5, True)])
def test_the_speed_while_it_works_is_said_where_pauses_hide_it(sm, said):
    """A notebook that works 2 % of the time; on 1g.5gb kernels on half of the SMs take several times as long."""
    found = advised(answer(profile(cells=[cell(0.02, 0.02 * sm, dram_active_ratio=0.0)])))
    assert found.chosen.target.mig_profile == "1g.5gb"
    assert ("while its GPU works, 2.0% of the time" in found.reason) is said


def test_what_is_not_known_to_be_cheaper_is_not_called_so():
    """A job on a T4 would take fewer hours of an A100, and neither has a price."""
    t4, a100 = node("t4-0", "Tesla-T4", instance_type="n1"), node("a100-0", instance_type="a2")
    world = cluster([t4, a100], [owner(JOB, "batch/v1")], [pod(JOB)])
    busy = [cell(0.98, 0.9, dram_active_ratio=0.5)]
    found = abstained(answer(profile(JOB, gpu="T4", cells=busy), world=world, prices=[]), AbstentionKind.VETOED)
    assert "would be fast enough, but: " in found.reason
    assert "It is not known which is cheaper" in found.reason


API = "Deployment/team/api"
SLOWER = [cell(0.5, 0.2)]
"""A service at work half of the time, on 40 % of the SMs: on a small slice its answers take longer."""


def accepting(speed: str) -> Cluster:
    api = owner(API, "apps/v1", annotations={"gpuwatch.dev/target-speed": speed})
    return cluster([node()], [api], [pod(API)])


def test_an_owner_may_accept_slower_answers():
    usual = answer(profile(API, cells=SLOWER), world=cluster([node()], [owner(API, "apps/v1")], [pod(API)]))
    assert "latency" in {rule for one in usual.options for rule in rules(one)}
    found = advised(answer(profile(API, cells=SLOWER), world=accepting("0.3")))
    assert found.target_speed_ratio == 0.3
    assert not rules(found.chosen)
    assert 0.3 <= found.chosen.speed.low_ratio < 0.9


@pytest.mark.parametrize("text", ["60 %", "0", "1.5", "-0.5", "nan"])
def test_an_accepted_speed_that_is_no_share_is_ignored_and_said(text):
    found = answer(profile(API, cells=[cell(0.98, 0.95)]), world=accepting(text))
    words = f"gpuwatch.dev/target-speed of {API} is {text!r}, and not a share of today's speed such as 0.6"
    assert words in found.reason


def test_a_service_is_told_how_long_a_first_token_would_take():
    """Refused for its latency it names the wait that its owner has to accept; advised it names the wait to expect."""
    load = {"team/lab-0": EngineLoad(kv_cache_ratio=0.1, first_token_seconds=0.2)}
    world = cluster([node()], [owner(API, "apps/v1")], [pod(API)])
    usual = answer(profile(API, cells=SLOWER), world=world, loads=load)
    refused = next(veto.reason for one in usual.options for veto in one.vetoes if veto.rule == "latency")
    assert "s instead of 0.20 s. Its owner may accept less (gpuwatch.dev/target-speed)." in refused
    found = advised(answer(profile(API, cells=SLOWER), world=accepting("0.3"), loads=load))
    assert "; a first token takes up to about 0." in found.reason
    assert "first token" not in advised(answer(profile(API, cells=SLOWER), world=accepting("0.3"))).reason


@pytest.mark.parametrize(("ratio", "elastic"), [(0.3, True), (0.95, False)])
def test_only_a_full_kv_cache_shows_that_a_service_needs_what_it_reserves(ratio, elastic):
    load = {"team/lab-0": EngineLoad(kv_cache_ratio=ratio)}
    fixed = (run(20.0, flat=True),)
    world = cluster([node()], [owner(API, "apps/v1")], [pod(API)])
    found = answer(profile(API, cells=LIGHT, runs=fixed, run_count=9), world=world, loads=load)
    assert ("gpu_memory_utilization" in found.memory.reason) is elastic
    assert found.memory.elastic is elastic
