"""Each veto on both sides of its bound, through the whole advice."""

import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from advise.world import (
    A100,
    GIB,
    LIGHT,
    NOW,
    abstained,
    advised,
    answer,
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
from gpuwatch.account.money import PriceList
from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.model.cluster import Condition, Gang, Namespace, Sharing
from gpuwatch.facts.model.sizing import AbstentionKind, EvidenceTier, SpeedEstimate, Target, TargetKind
from gpuwatch.facts.model.workload_profile import ProfileBook, WorkloadKey
from gpuwatch.size.facts import gather
from gpuwatch.size.policy import AdvicePolicy
from gpuwatch.size.ready import Ready, prepare
from gpuwatch.size.vetoes import ACROSS, VETOES, VetoCase, veto

L4 = price("l4-1", "L4", gpus=1, per_hour=0.5)
JOB, API, LAB = "Job/team/train", "Deployment/team/api", "Notebook/team/lab"
PRESENT, SLICE, FEWER, MODEL = TargetKind.SAME, TargetKind.MIG, TargetKind.FEWER, TargetKind.MODEL


def on_l4(**state):
    return node("l4-0", "NVIDIA-L4", **{"instance_type": "l4-1", **state})


def world_of(workload, *nodes, members=1, **more):
    """The A100 of the present, more Nodes, the owner, and its Pods: from two on they are a gang."""
    pods = [pod(workload, f"pod-{number}") for number in range(members)]
    gang = Gang(id="g", framework="JobSet", workload=workload, namespace="team", pods=tuple(one.ref for one in pods))
    api_version = "apps/v1" if workload == API else "batch/v1"
    return cluster([node(), *nodes], [owner(workload, api_version)], pods, gangs=(gang,), **more)


def of_link(traffic):
    return [cell(0.1, 0.01, nvlink_bytes_per_second=traffic)]


COARSE = [cell(0.1, None, dram_active_ratio=None, power_watts=None)]
FILLED = {"runs": (run(36, flat=True),), "run_count": 5}
H100_NODE = node("h-0", "NVIDIA-H100-80GB-HBM3", instance_type="h100")
H200_NODE = node("h200-0", "NVIDIA-H200", instance_type="h200")
CORDONED, NOT_READY = {"unschedulable": True}, {"conditions": (Condition("Ready", "False"),)}


def other(product):
    return node("other", product, instance_type="other")


def capable(value):
    return cluster([node(labels={"nvidia.com/mig.capable": value})])


# The rule, whether it refuses, the option, the profile, the world; prices and policy in few cases.
CASES = [
    # 1g.5gb has 5 GiB × 0.95 = 4.75 GiB; needed are peak × 1.15 + 0.5 GiB, and 0.1 / 14 days more.
    ("framebuffer", False, SLICE, "1g.5gb", profile(peak_gib=3.65), cluster()),
    ("framebuffer", True, SLICE, "1g.5gb", profile(peak_gib=3.70), cluster()),
    ("framebuffer", False, SLICE, "1g.10gb", profile(peak_gib=3.70), cluster()),
    ("elastic_memory", True, SLICE, "1g.5gb", profile(JOB, **FILLED), world_of(JOB)),
    ("elastic_memory", False, MODEL, "H200", profile(JOB, **FILLED), world_of(JOB, H200_NODE)),
    ("nvlink", False, SLICE, "1g.5gb", profile(cells=of_link(1e6)), cluster()),
    ("nvlink", True, SLICE, "1g.5gb", profile(cells=of_link(1.1e6)), cluster()),
    ("nvlink", True, MODEL, "L4", profile(JOB, cells=of_link(1e9), gpus=2), world_of(JOB, on_l4())),
    ("nvlink", False, MODEL, "H100", profile(JOB, cells=of_link(1e9), gpus=2), world_of(JOB, H100_NODE)),
    ("nvlink", True, FEWER, "", profile(JOB, cells=of_link(1e9), gpus=2), world_of(JOB)),
    ("nvlink_unseen", True, FEWER, "", profile(cells=of_link(None), gpus=2), cluster()),
    ("nvlink_unseen", False, FEWER, "", profile(cells=of_link(0.0), gpus=2), cluster()),
    ("one_process_one_slice", False, SLICE, "7g.40gb", profile(gpus=1), cluster()),
    ("one_process_one_slice", True, SLICE, "7g.40gb", profile(gpus=2), cluster()),
    ("gang", False, SLICE, "1g.5gb", profile(JOB), world_of(JOB)),
    ("gang", True, SLICE, "1g.5gb", profile(JOB, pods=2), world_of(JOB, members=2)),
    # A gang that is gone is known by its kind, and Pods of a Deployment are none, even where a queue admits them.
    ("gang", True, SLICE, "1g.5gb", profile("PyTorchJob/team/train", pods=2), cluster([node()], [], [])),
    ("gang", False, SLICE, "1g.5gb", profile("PyTorchJob/team/train", pods=1), cluster([node()], [], [])),
    ("gang", False, SLICE, "4g.20gb", profile(API, pods=2), world_of(API, members=2)),
    ("measure_first", True, SLICE, "1g.5gb", profile(cells=COARSE, coarse_busy=True), cluster()),
    ("measure_first", False, SLICE, "1g.5gb", profile(cells=LIGHT), cluster()),
    ("container_image", True, MODEL, "MI300X", profile(JOB), world_of(JOB, other("AMD-Instinct-MI300X-OAM"))),
    ("container_image", True, MODEL, "GB200", profile(JOB), world_of(JOB, other("NVIDIA-GB200"))),
    ("container_image", True, MODEL, "T4", profile(JOB), world_of(JOB, other("Tesla-T4"))),
    ("container_image", True, MODEL, "P100-PCIE-16GB", profile(JOB), world_of(JOB, other("Tesla-P100-PCIE-16GB"))),
    ("container_image", True, MODEL, "V100-SXM2-16GB", profile(JOB), world_of(JOB, other("Tesla-V100-SXM2-16GB"))),
    ("container_image", False, MODEL, "L4", profile(JOB), world_of(JOB, other("NVIDIA-L4"))),
    ("mig_support", False, SLICE, "1g.5gb", profile(), capable("true")),
    ("mig_support", True, SLICE, "1g.5gb", profile(), capable("false")),
    ("mig_support", False, SLICE, "1g.5gb", profile(), capable("")),
    # The Node has 96 cores and 1000 GiB for 8 GPUs.
    ("host_resources", False, MODEL, "L4", profile(JOB), world_of(JOB, on_l4())),
    ("host_resources", False, MODEL, "L4", profile(JOB, cpu_cores=12.0), world_of(JOB, on_l4())),
    ("host_resources", True, MODEL, "L4", profile(JOB, cpu_cores=12.1), world_of(JOB, on_l4())),
    ("host_resources", False, MODEL, "L4", profile(JOB, host_memory_bytes=125.0 * GIB), world_of(JOB, on_l4())),
    ("host_resources", True, MODEL, "L4", profile(JOB, host_memory_bytes=125.1 * GIB), world_of(JOB, on_l4())),
    ("capacity", True, MODEL, "L4", profile(JOB, gpus=2), world_of(JOB, on_l4(gpus=1))),
    ("capacity", False, MODEL, "L4", profile(JOB, gpus=2), world_of(JOB, on_l4(gpus=2))),
    ("capacity", True, MODEL, "L4", profile(JOB), world_of(JOB, on_l4(gpus=2, **CORDONED))),
    ("capacity", True, MODEL, "L4", profile(JOB), world_of(JOB, on_l4(gpus=2, **NOT_READY))),
    ("capacity", True, MODEL, "L4", profile(JOB, gpus=2), world_of(JOB)),  # the priced machine has one
    ("price", False, MODEL, "L4", profile(JOB), world_of(JOB, on_l4())),
]


@pytest.mark.parametrize(
    ("rule", "refuses", "kind", "name", "of", "world"),
    CASES,
    ids=[f"{case[0]}-{'refuses' if case[1] else 'allows'}-{number}" for number, case in enumerate(CASES)],
)
def test_each_rule_on_both_sides_of_its_bound(rule, refuses, kind, name, of, world):
    found = answer(of, world=world, prices=[price(), L4, price("h100", "H100-SXM5-80GB", per_hour=8)])
    assert (rule in rules(option(found, kind, name))) is refuses


@pytest.mark.parametrize(
    ("product", "name", "allowed"),
    [
        ("AMD-Instinct-MI300X-OAM", "MI300X", {"allow_vendor_change": True}),
        ("NVIDIA-GB200", "GB200", {"allow_arm_hosts": True}),
        ("Tesla-T4", "T4", {"allow_older_architecture": True}),
    ],
)
def test_a_setting_allows_another_container_image(product, name, allowed):
    found = answer(profile(JOB), world=world_of(JOB, other(product)), policy=AdvicePolicy(**allowed))
    assert "container_image" not in rules(option(found, MODEL, name))


@pytest.mark.parametrize("known", [[price()], [L4], []], ids=["present", "target", "none"])
def test_models_are_compared_in_money_alone(known):
    found = answer(profile(JOB), world=world_of(JOB, on_l4()), prices=known)
    assert "price" in rules(option(found, MODEL, "L4"))


def test_framebuffer_of_fewer_gpus_is_that_of_all():
    found = answer(profile(peak_gib=12, gpus=4))
    assert "framebuffer" not in rules(option(found, TargetKind.FEWER, "2 ×"))
    reason = next(v.reason for v in option(found, TargetKind.FEWER, "1 ×").vetoes if v.rule == "framebuffer")
    assert "(the need of 4 GPUs on 1)" in reason


def case_of(one, target, low=1.0):
    """A target held against a profile with a speed of our choice and memory enough."""
    facts = gather(
        ProfileBook(until=NOW, step_seconds=60), cluster([node()], [], []), PriceList(()), AdvicePolicy(), NOW, ()
    )
    speed = SpeedEstimate(low_ratio=low, likely_ratio=1, high_ratio=1, tier=EvidenceTier.SM, basis="")
    now = prepare(one, facts)
    assert isinstance(now, Ready)
    return VetoCase(item=now, target=target, speed=speed, offered_bytes=now.memory.need_bytes, facts=facts)


# Busy a tenth of the time: the work alone keeps 0.9 where all of it keeps 1 / (1 + 0.1 × (1/0.9 − 1)) = 0.9890.
@pytest.mark.parametrize(
    ("workload", "low", "refused"),
    [
        ("Deployment/team/api", 0.9891, False),
        ("Deployment/team/api", 0.9889, True),
        ("InferenceService/team/llm", 0.9889, True),
        ("Notebook/team/lab", 0.9889, False),
        ("CronJob/team/nightly", 0.9889, False),
    ],
)
def test_latency_counts_the_work_without_the_pauses(workload, low, refused):
    target = Target(kind=TargetKind.MIG, gpu_model=A100, gpus_per_pod=1, mig_profile="3g.20gb")
    found = veto(case_of(profile(workload), target, low))
    assert [one.rule for one in found] == (["latency"] if refused else [])


def test_a_speed_that_falls_short_by_little_does_not_read_as_if_it_sufficed():
    target = Target(kind=TargetKind.MIG, gpu_model=A100, gpus_per_pod=1, mig_profile="3g.20gb")
    (found,) = veto(case_of(profile(JOB), target, 0.8991))
    assert found.reason == "It may run at 89.9 % of today's speed; at least 90.0 % is needed."


@pytest.mark.parametrize(
    ("workload", "partner", "refused"),
    [("Deployment/team/api", "team", ["latency"]), (LAB, "team", []), (LAB, "others", ["tenancy"])],
    ids=["who is waited for", "nobody waits", "another namespace"],
)
def test_who_may_share_with_whom(workload, partner, refused):
    key = WorkloadKey(f"Notebook/{partner}/b", "main", A100)
    target = Target(kind=TargetKind.SHARED, gpu_model=A100, gpus_per_pod=1, sharing=Sharing.MPS, partners=(key,))
    assert [one.rule for one in veto(case_of(profile(workload), target))] == refused


def test_target_speed_is_held_against_the_pessimistic_end():
    found = answer(profile(cells=[cell(0.6, 0.3)]))
    for one in found.options:
        assert ("target_speed" in rules(one)) is (one.speed.low_ratio < 0.9)
    assert {"target_speed" in rules(one) for one in found.options} == {True, False}


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"cpu_cores": 11.9, "host_memory_bytes": 14.8 * GIB}, None),
        ({"cpu_cores": 12.0}, "A Pod asks for 12 CPU cores, and l4-8 has 11.9612 per 1 GPUs."),
        (
            {"host_memory_bytes": 14.9 * GIB},
            "A Pod asks for 14.9 GiB of host memory, and l4-8 has 14.8 GiB per 1 GPUs.",
        ),
        ({}, None),
    ],
)
def test_a_pod_takes_its_gpus_share_of_a_new_machines_host(asked, reason):
    # 96 CPUs less 0.31 and 128 GiB less 9.32, for 8 GPUs.
    l4 = price("l4-8", "L4", gpus=8, per_hour=0.5, vcpus=96, host_gib=128)
    world = cluster([node()], [owner(JOB, "batch/v1")], [pod(JOB)])
    one = option(answer(profile(JOB, **asked), world=world, prices=[price(), l4]), TargetKind.MODEL, "L4")
    assert [veto.reason for veto in one.vetoes if veto.rule == "host_resources"] == ([] if reason is None else [reason])


@pytest.mark.parametrize(
    ("host", "refused", "caveat"),
    [
        ({"vcpus": 8, "host_gib": 32}, True, None),
        ({"vcpus": 16, "host_gib": 32}, False, None),
        ({"vcpus": 16}, False, "The catalog does not know the host's memory on new"),
        ({"host_gib": 32}, False, "The catalog does not know the host's CPUs on new"),
        ({}, False, "The catalog does not know the host's CPUs and memory on new"),
    ],
)
def test_a_host_of_unknown_size_vetoes_nothing_and_is_said(host, refused, caveat):
    h100 = price("new", "H100-SXM5-80GB", gpus=1, per_hour=1.0, **host)
    world = cluster([node()], [owner(JOB, "batch/v1")], [pod(JOB)])
    heavy = [cell(0.95, 0.9, dram_active_ratio=0.5, tensor_active_ratio=0.3)]  # no slice is fast enough
    asking = profile(JOB, cells=heavy, peak_gib=38.0, cpu_cores=10.0, host_memory_bytes=20.0 * GIB)
    found = answer(asking, world=world, prices=[price(), h100])
    assert ("host_resources" in rules(option(found, TargetKind.MODEL, "H100"))) is refused
    if refused:
        abstained(found, AbstentionKind.VETOED)
    else:
        chosen = advised(found)
        assert chosen.chosen.target.instance_type == "new"
        said = [text.split(";")[0] for text in chosen.caveats if "catalog does not know" in text]
        assert said == ([] if caveat is None else [caveat])


def test_nodes_that_are_there_tell_more_than_the_catalog():
    # The Node has 96 cores for 8 GPUs, whatever the price file says of its type.
    l4 = price("l4-1", "L4", gpus=1, per_hour=0.5, vcpus=4, host_gib=16)
    world = cluster([node(), node("l4-0", "NVIDIA-L4", instance_type="l4-1")], [owner(JOB, "batch/v1")], [pod(JOB)])
    one = option(answer(profile(JOB, cpu_cores=12.0), world=world, prices=[price(), l4]), TargetKind.MODEL, "L4")
    assert (one.target.host_cpu_cores, one.target.host_memory_bytes) == (None, None)
    assert "host_resources" not in rules(one)


@pytest.mark.parametrize(
    ("key", "value", "refused"),
    [
        (keys.OPT_OUT, "true", True),
        (keys.OPT_OUT, "false", False),
        (keys.OBJECTION, "exam week", True),
        ("a", "b", False),
    ],
)
def test_owners_may_opt_out(key, value, refused):
    worlds = [
        cluster(workloads=[owner(annotations={key: value})]),
        cluster(pods=[pod(annotations={key: value})]),
        cluster(namespaces=(Namespace(name="team", annotations={key: value}),)),
    ]
    for world in worlds:
        assert ("opted_out" in rules(option(answer(profile(), world=world), TargetKind.MIG, "1g.5gb"))) is refused
    elsewhere = cluster(namespaces=(Namespace(name="other", annotations={key: value}),))
    advised(answer(profile(), world=elsewhere))


def test_speed_that_the_catalog_cannot_tell_is_a_veto_of_its_own():
    nodes = [node(), node("old", "HL-205", instance_type="hl-1"), node("new", "HL-225", instance_type="hl-2")]
    world = cluster(nodes, [owner(JOB, "batch/v1")], [pod(JOB)])
    found = answer(profile(JOB), world=world, policy=AdvicePolicy(allow_vendor_change=True))
    one = option(found, TargetKind.MODEL, "× Gaudi in")
    assert "speed_known" in rules(one)
    assert "target_speed" not in rules(one)
    assert one.speed.high_ratio == 0.0
    assert "speed_known" not in rules(option(found, TargetKind.MODEL, "Gaudi2"))


def test_all_vetoes_run_and_every_reason_is_a_sentence():
    talking = [cell(0.9, 0.9, nvlink_bytes_per_second=1e9)]
    found = answer(profile("PyTorchJob/team/x", cells=talking, gpus=2, pods=2, peak_gib=30), world=cluster(pods=[]))
    vetoes = option(found, TargetKind.MIG, "1g.5gb").vetoes
    assert {one.rule for one in vetoes} >= {"framebuffer", "nvlink", "one_process_one_slice", "gang", "target_speed"}
    assert all(one.reason[0].isupper() and one.reason.endswith(".") for one in vetoes)
    assert not set(VETOES) & set(ACROSS)


def test_the_present_is_never_vetoed():
    found = answer(profile(ended=timedelta(hours=2), cells=[cell(0.99, 0.99)], peak_gib=39))
    assert option(found, TargetKind.SAME).allowed


@pytest.mark.parametrize(
    ("gpu", "target", "refused"),
    [
        (A100, "1g.5gb", "1g.5gb has no decoder"),
        (A100, "1g.10gb", None),
        (A100, "2g.10gb", None),
        ("A30", "1g.6gb", "1g.6gb has no decoder"),
        ("A30", "2g.12gb", None),
        ("H100-SXM5-80GB", "1g.10gb", None),
        ("H200-SXM5-141GB", "1g.18gb", None),
        ("B200-180GB", "1g.23gb", None),
        ("GB200-186GB", "1g.23gb", "1g.23gb is not known to have a decoder"),
    ],
)
def test_work_on_the_video_decoder_needs_one(gpu, target, refused):
    for peak, expected in ((0.2, refused), (0.0, None), (None, None)):
        runs = tuple(replace(run(2.0, number=number), decoder_peak_ratio=peak) for number in range(2))
        found = answer(profile(gpu=gpu, runs=runs), world=cluster(nodes=[node(product=f"NVIDIA-{gpu}")]))
        one = option(found, TargetKind.MIG, target)
        assert [veto.reason for veto in one.vetoes if veto.rule == "media_engines"] == (
            [] if expected is None else [f"It decodes video on the GPU (NVDEC), and {expected}."]
        )


@pytest.mark.parametrize(
    ("product", "model", "reason"),
    [
        ("NVIDIA-A100-SXM4-40GB", A100, "has no encoder"),
        ("NVIDIA-A40", "A40", "is not known to have an encoder"),
        ("NVIDIA-L40S", "L40S", ""),
    ],
)
def test_work_on_the_video_encoder_needs_one(product, model, reason):
    runs = tuple(replace(run(2.0, number=number), encoder_peak_ratio=0.1) for number in range(2))
    world = cluster(nodes=[node(product="NVIDIA-L4"), node("other", product)])
    one = option(answer(profile(gpu="L4", runs=runs), world=world), TargetKind.MODEL, model)
    vetoes = [veto.reason for veto in one.vetoes if veto.rule == "media_engines"]
    assert [reason in text for text in vetoes] == [True] * bool(reason)


DOCS = (Path(__file__).parents[2] / "docs" / "sizing.md").read_text(encoding="utf-8")


def rows(section: str) -> set[str]:
    body = DOCS.split(f"## {section}\n", 1)[1].split("\n## ", 1)[0]
    return set(re.findall(r"^\| `([a-z_]+)` \|", body, re.MULTILINE))


@pytest.mark.parametrize(
    ("section", "names"), [("Vetoes", {*VETOES, *ACROSS}), ("Abstentions", {kind.value for kind in AbstentionKind})]
)
def test_tables_are_those_of_the_code(section: str, names: set[str]) -> None:
    assert rows(section) == names


@pytest.mark.parametrize(
    ("asked", "refused"),
    [
        # The Node has 96 CPU cores and 1,000 GiB for 8 GPUs.
        ({"cpu_cores": 24.0}, "the host takes 4 of them"),
        ({"cpu_cores": 12.0}, "the host takes 8 of them"),
        ({"host_memory_bytes": 400.0 * GIB}, "the host takes 2 of them"),
        ({"cpu_cores": 97.0}, "the host takes 0 of them"),
        ({"cpu_cores": 10.0, "host_memory_bytes": 100.0 * GIB}, None),
        ({}, None),
    ],
)
def test_a_slice_frees_nothing_where_the_host_bounds_the_pods(asked, refused):
    one = option(answer(profile(**asked)), SLICE, "1g.5gb")
    reasons = [veto.reason for veto in one.vetoes if veto.rule == "host_resources"]
    assert len(reasons) == (refused is not None)
    assert all(refused in reason for reason in reasons)


def test_the_saving_counts_the_part_of_the_host_that_stays_in_use():
    """6 of 96 cores: 16 such Pods on 8 GPUs, half a GPU each, with slices of any size. 84 of 168 hours are saved."""
    light, heavy = advised(answer(profile(cpu_cores=1.0))), advised(answer(profile(cpu_cores=6.0)))
    assert light.chosen.projected_saving_gpu_hours_per_week == pytest.approx(168 * 7 / 8, rel=0.01)
    assert heavy.chosen.projected_saving_gpu_hours_per_week == pytest.approx(168 / 2, rel=0.01)
    assert heavy.chosen.projected_saving_per_week == pytest.approx(168, rel=0.01)  # at 2 USD an hour
    assert any(
        "the host takes 16 of them, so the saving counts 0.50 GPUs as still in use" in it for it in heavy.caveats
    )


def test_what_pods_without_gpus_ask_for_is_not_there():
    world = cluster(nodes=[node(other_cpu_cores=60.0)])
    assert "host_resources" in rules(option(answer(profile(cpu_cores=6.0), world=world), SLICE, "1g.5gb"))
    assert "host_resources" not in rules(option(answer(profile(cpu_cores=4.0), world=world), SLICE, "1g.5gb"))


def test_fewer_gpus_with_the_same_host_free_nothing():
    found = answer(profile("Job/team/lab", gpus=4, cpu_cores=48.0, cells=profile().cells))
    assert "host_resources" in rules(option(found, TargetKind.FEWER, "2 ×"))


def test_a_host_of_unknown_size_vetoes_no_slice():
    found = answer(profile(cpu_cores=24.0), world=cluster(nodes=[node(cpu_cores=0.0)]))
    assert "host_resources" not in rules(option(found, SLICE, "1g.5gb"))
