"""Who could share a GPU, and that all partners choose it together."""

from dataclasses import replace

import pytest

from advise.world import (
    A100,
    GIB,
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
)
from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.model.cluster import Sharing
from gpuwatch.facts.model.sizing import EvidenceTier, MemoryNeed, Recommendation, TargetKind
from gpuwatch.facts.model.workload_profile import WorkloadKey
from gpuwatch.size.options import Sharer, fits, groups, shared_speed, sharer
from gpuwatch.size.policy import AdvicePolicy
from gpuwatch.size.recommend import advise

POLICY = AdvicePolicy()
FULL = 40 * GIB


def some(name="a", busy=0.1, *, sm=0.05, dram=0.05, peak_gib=2.0, namespace="team", tier=EvidenceTier.SM):
    return Sharer(
        key=WorkloadKey(f"Notebook/{namespace}/{name}", "main", A100),
        busy_ratio=busy,
        sm_active_ratio=sm,
        dram_active_ratio=dram,
        peak_bytes=peak_gib * GIB,
        tier=tier,
    )


# 0.9 × 40 GiB = 36 GiB, of which 2 GiB are contexts.
@pytest.mark.parametrize(("peak_gib", "together"), [(17.0, True), (17.01, False)])
def test_memory_of_all_and_a_context_each(peak_gib, together):
    pair = [some("a", peak_gib=peak_gib), some("b", peak_gib=17.0)]
    for sharing in (Sharing.TIME_SLICING, Sharing.MPS):
        assert fits(pair, FULL, sharing, POLICY) is together


@pytest.mark.parametrize(("busy", "together"), [(0.5, True), (0.51, False)])
def test_time_slicing_adds_up_activity(busy, together):
    pair = [some("a", busy, sm=0.9, dram=0.9), some("b", 0.3, sm=0.9, dram=0.9)]
    assert fits(pair, FULL, Sharing.TIME_SLICING, POLICY) is together


@pytest.mark.parametrize(
    ("sm", "dram", "together"),
    [(0.5, 0.4, True), (0.51, 0.4, False), (0.5, 0.41, False), (None, 0.1, False), (0.1, None, False)],
)
def test_mps_adds_up_sms_and_bandwidth(sm, dram, together):
    pair = [some("a", 0.9, sm=sm, dram=dram), some("b", 0.9, sm=0.5, dram=0.4)]
    assert fits(pair, FULL, Sharing.MPS, POLICY) is together


def test_no_more_partners_than_the_policy_allows():
    four = [some(str(number), 0.01, peak_gib=0.1) for number in range(4)]
    assert fits(four, FULL, Sharing.TIME_SLICING, POLICY)
    assert not fits([*four, some("e", 0.01, peak_gib=0.1)], FULL, Sharing.TIME_SLICING, POLICY)


def test_groups_are_of_one_namespace_and_each_is_in_one():
    many = [some(str(number), 0.35) for number in range(5)] + [some("x", 0.1, namespace="others")]
    found = groups(many, FULL, Sharing.TIME_SLICING, POLICY)
    assert [len(group) for group in found] == [2, 2]
    assert len({one.key for group in found for one in group}) == 4
    assert {one.key.namespace for group in found for one in group} == {"team"}


def test_the_interval_of_sharing_by_hand():
    found = shared_speed(
        some("a", 0.2), [some("b", 0.3), some("c", 0.1, tier=EvidenceTier.POWER)], Sharing.TIME_SLICING
    )
    assert found.low_ratio == pytest.approx(1 / (1 + 0.2 + 0.1))
    assert found.likely_ratio == pytest.approx(1 / (1 + 0.2 * 0.4))
    assert found.high_ratio == 1.0
    assert found.tier is EvidenceTier.POWER


MEMORY = MemoryNeed(need_bytes=2 * GIB, peak_bytes=2 * GIB, runs=2, headroom_ratio=0.1, elastic=False, reason="")


@pytest.mark.parametrize(
    ("more", "memory", "tier", "may"),
    [
        ({}, MEMORY, EvidenceTier.SM, True),
        ({"gpus": 2}, MEMORY, EvidenceTier.SM, False),
        ({"pods": 2.0}, MEMORY, EvidenceTier.SM, False),
        ({"mig": "1g.5gb"}, MEMORY, EvidenceTier.SM, False),
        ({}, replace(MEMORY, elastic=True), EvidenceTier.SM, False),
        ({}, MEMORY, EvidenceTier.UTILISATION, False),
    ],
)
def test_who_may_be_a_partner(more, memory, tier, may):
    assert (sharer(profile(**more), memory, tier) is not None) is may


def test_a_mean_of_what_is_partly_unknown_is_unknown():
    def mean(signal, *cells):
        return replace(profile(), cells=cells).mean(signal)

    assert mean("sm_active_ratio", cell(0.2, 0.1), cell(0.4, 0.3)) == pytest.approx(0.2)
    assert mean("sm_active_ratio", cell(0.2, 0.1), cell(0.4, None)) is None
    assert mean("busy_ratio") is None


# A GPU without MIG, so that sharing is what is left; its price per GPU is 1 USD.
L40S = {"gpu": "L40S", "cells": [cell(0.03, 0.02)]}


def l40s(*names: str, kind: str = "Notebook"):
    ids = [f"{kind}/team/{name}" for name in names]
    return cluster(
        [node(product="NVIDIA-L40S", instance_type="l40s")],
        [owner(one, "apps/v1" if kind == "Deployment" else "kubeflow.org/v1") for one in ids],
        [pod(one, one.rsplit("/", 1)[-1]) for one in ids],
    )


PRICES = [price("l40s", "L40S", per_hour=8.0)]


def test_two_notebooks_are_advised_to_share_and_name_each_other():
    one, two = profile("Notebook/team/a", **L40S), profile("Notebook/team/b", **L40S)
    found = advised(answer(one, two, world=l40s("a", "b"), prices=PRICES))
    assert found.chosen.target.kind is TargetKind.SHARED
    assert found.chosen.target.partners == (two.key,)
    assert found.chosen.projected_cost_per_week == pytest.approx(84.0)
    other = advised(answer(two, one, world=l40s("a", "b"), prices=PRICES))
    assert other.chosen.target.partners == (one.key,)
    assert other.chosen.target.sharing is found.chosen.target.sharing
    assert any("memory and faults" in text for text in found.caveats)


@pytest.mark.parametrize("namespace", ["team", "others"])
def test_never_across_namespaces(namespace):
    one, two = profile("Notebook/team/a", **L40S), profile(f"Notebook/{namespace}/b", **L40S)
    kinds = {
        option.target.kind
        for option in answer(one, two, world=cluster([l40s("a").nodes[0]], [], []), prices=PRICES).options
    }
    assert (TargetKind.SHARED in kinds) is (namespace == "team")


def test_never_for_those_who_are_waited_for():
    one, two = profile("Deployment/team/a", **L40S), profile("Notebook/team/b", **L40S)
    found = answer(one, two, world=l40s("a", kind="Deployment"), prices=PRICES)
    assert TargetKind.SHARED not in {one.target.kind for one in found.options}


def test_a_partner_that_goes_elsewhere_leaves_nobody_to_share_with():
    # b opted out of everything, so that a has no partner.
    one, two = profile("Notebook/team/a", **L40S), profile("Notebook/team/b", **L40S)
    world = l40s("a", "b")
    unwilling = owner("Notebook/team/b", annotations={keys.OPT_OUT: "true"})
    refusing = replace(world, workloads=(world.workloads[0], unwilling))
    found = answer(one, two, world=refusing, prices=PRICES)
    shared = [one for one in found.options if one.target.kind is TargetKind.SHARED]
    assert shared
    assert all("partners" in rules(one) for one in shared)


def test_every_shared_advice_of_a_fleet_is_mutual():
    profiles = [
        profile(
            f"Notebook/team/{number}", gpu="L40S", cells=[cell(0.01 * (1 + number % 7), 0.01)], peak_gib=1 + number % 5
        )
        for number in range(40)
    ]
    world = cluster([node(product="NVIDIA-L40S", instance_type="l40s")], [], [])
    recommended, abstentions = advise(book(*profiles), world, PRICES, POLICY, profiles[0].as_of)
    assert len(recommended) + len(abstentions) == 40
    by_key: dict[WorkloadKey, Recommendation] = {one.key: one for one in recommended}
    sharing = [one for one in recommended if one.chosen.target.kind is TargetKind.SHARED]
    assert len(sharing) >= 20
    for one in sharing:
        for partner in one.chosen.target.partners:
            back = by_key[partner].chosen.target
            assert back.sharing is one.chosen.target.sharing
            assert set(back.partners) | {partner} == set(one.chosen.target.partners) | {one.key}


def test_a_shared_devices_memory_is_what_the_partners_leave():
    one, two = profile("Notebook/team/a", peak_gib=5.0, **L40S), profile("Notebook/team/b", peak_gib=30.0, **L40S)
    found = answer(one, two, world=l40s("a", "b"), prices=PRICES)
    left = option(found, TargetKind.SHARED, "mps").memory_bytes
    assert left == pytest.approx(0.9 * 47999614976 - 31 * GIB)
