"""Predicted speeds: bounds that hold for any workload, cases worked out by hand, and both sides of bounds."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advise import world
from advise.world import TABLES
from gpuwatch.facts.catalog.gpus import find_gpu, gpus, processors
from gpuwatch.facts.catalog.mig import geometry
from gpuwatch.facts.model.cluster import Node
from gpuwatch.facts.model.sizing import EvidenceTier, SpeedEstimate
from gpuwatch.facts.model.workload_profile import Cell, PowerEnvelope, WorkloadProfile
from gpuwatch.size.capability import Capability, LabelledSize, capability_of, condition, labelled_sizes, ratios
from gpuwatch.size.policy import AdvicePolicy
from gpuwatch.size.speed import SpeedPolicy, predict_speed, predict_speeds

ENVELOPE = PowerEnvelope(gpu_model="A100-SXM4-40GB", floor_watts=50.0, ceiling_watts=250.0, devices=8)


WHOLE = capability_of(find_gpu("A100-SXM4-40GB"))
SLICES = {kind: capability_of(find_gpu("A100-SXM4-40GB"), name) for kind, name in
          {"1g": "1g.5gb", "2g": "2g.10gb", "3g": "3g.20gb", "4g": "4g.20gb", "7g": "7g.40gb"}.items()}  # fmt: skip


def cell(busy: float, weight: float = 3600.0, **signals: float | None) -> Cell:
    return Cell(weight_seconds=weight, busy_ratio=busy, **signals)


def full(busy: float, sm: float, dram: float = 0.0, tensor: float = 0.0, weight: float = 3600.0) -> Cell:
    return cell(busy, weight, sm_active_ratio=sm, dram_active_ratio=dram, tensor_active_ratio=tensor)


def profile(*cells: Cell, coarse: bool = False) -> WorkloadProfile:
    return world.profile(cells=cells, coarse_busy=coarse)


def speed(
    *cells: Cell,
    target: Capability = SLICES["3g"],
    now: Capability = WHOLE,
    envelope: PowerEnvelope | None = None,
    policy: SpeedPolicy | None = None,
    coarse: bool = False,
) -> SpeedEstimate:
    return predict_speed(profile(*cells, coarse=coarse), now, target, envelope, policy)


ACTIVITY = st.floats(0.0, 1.0)


@st.composite
def cells(draw: st.DrawFn) -> Cell:
    busy = draw(ACTIVITY)
    signal = st.none() | ACTIVITY.map(lambda share: share * busy)
    return Cell(
        weight_seconds=draw(st.floats(1.0, 1e6)),
        busy_ratio=busy,
        sm_active_ratio=draw(signal),
        dram_active_ratio=draw(signal),
        tensor_active_ratio=draw(signal),
        power_watts=draw(st.none() | st.floats(0.0, 500.0)),
        pcie_bytes_per_second=draw(st.none() | st.floats(0.0, 1e11)),
    )


TARGETS = [
    *SLICES.values(),
    *(capability_of(find_gpu(name)) for name in ("T4", "L4", "H100-SXM5-80GB", "B200-180GB", "MI300X")),
]


@settings(max_examples=150)
@given(st.lists(cells(), min_size=1, max_size=5), st.booleans(), st.booleans())
def test_low_likely_and_high_are_in_order_and_within_what_the_capabilities_allow(
    some: list[Cell], coarse: bool, told: bool
) -> None:
    found = predict_speeds(profile(*some, coarse=coarse), WHOLE, TARGETS, ENVELOPE if told else None)
    for target, one in zip(TARGETS, found, strict=True):
        offer = ratios(WHOLE, target)
        scarcest = min(offer.compute.low, offer.memory, offer.tensor.low, 1.0)
        least = 1 / (1 / scarcest + max(1 / (offer.pcie or 1.0) - 1, 0.0))
        most = max(offer.compute.high, offer.memory, offer.tensor.high, 1.0)
        assert least * 0.999 <= one.low_ratio <= one.likely_ratio <= one.high_ratio <= most * 1.001
        assert one.low_ratio <= 1.0 + 1e-9  # the pessimistic end never promises to be faster


@settings(max_examples=100)
@given(st.lists(cells(), min_size=1, max_size=5))
def test_more_of_the_same_card_is_never_predicted_slower(some: list[Cell]) -> None:
    order = [SLICES[kind] for kind in ("1g", "2g", "3g", "4g", "7g")]
    found = [one for one in predict_speeds(profile(*some), WHOLE, order, ENVELOPE) if one is not None]
    for smaller, larger in pairwise(found):
        assert smaller.low_ratio <= larger.low_ratio + 1e-9
        assert smaller.likely_ratio <= larger.likely_ratio + 1e-9


def test_where_nothing_was_measured_nothing_is_predicted() -> None:
    assert predict_speeds(profile(), WHOLE, [SLICES["1g"], SLICES["2g"]]) == (None, None)
    assert predict_speed(profile(cell(0.5, weight=0.0)), WHOLE, SLICES["1g"]) is None


def test_staying_is_as_fast_as_now() -> None:
    found = speed(full(1.0, 1.0, 0.8, 1.0), target=WHOLE)
    assert (found.low_ratio, found.likely_ratio, found.high_ratio) == (1.0, 1.0, 1.0)


def test_a_host_bound_job_loses_nothing_and_a_full_one_what_the_slice_lacks() -> None:
    assert speed(full(0.0, 0.0)).low_ratio == pytest.approx(1.0)
    filled = speed(full(1.0, 1.0))
    assert filled.low_ratio == pytest.approx(42 / 108)  # SMs of 3g on a card that has all 108 without MIG
    assert filled.high_ratio == pytest.approx(0.5)  # its share of bandwidth per SM is larger


def test_idle_time_is_not_divided() -> None:
    # Half of the time at full use: (1 − ½) + ½ · 108/56 on 4g.
    assert speed(full(0.5, 0.5), target=SLICES["4g"]).low_ratio == pytest.approx(1 / (0.5 + 0.5 * 108 / 56))


def test_times_are_averaged_over_windows_not_demands() -> None:
    """Half of the windows full, half empty: their mean demand would fit into the slice."""
    mixed = speed(full(1.0, 1.0, 0.0), full(1.0, 0.0, 0.0))
    assert mixed.high_ratio == pytest.approx(1 / (0.5 * 2.0 + 0.5))
    level = speed(full(1.0, 0.5, 0.0))
    assert level.high_ratio == pytest.approx(1.0)
    assert mixed.likely_ratio < level.likely_ratio


def test_weights_are_the_windows_time() -> None:
    long, short = full(1.0, 1.0, weight=9000.0), full(0.0, 0.0, weight=1000.0)
    assert speed(long, short).low_ratio == pytest.approx(1 / (0.9 * 108 / 42 + 0.1))


def test_bandwidth_is_held_against_its_practical_peak() -> None:
    """0.8 of DRAM activity is all that a copy reaches, so half a card's bandwidth halves it."""
    assert speed(full(1.0, 0.1, 0.8)).high_ratio == pytest.approx(0.5)
    assert speed(full(1.0, 0.1, 0.4)).high_ratio == pytest.approx(1.0)
    tighter = SpeedPolicy(dram_peak_ratio=1.0)
    assert speed(full(1.0, 0.1, 0.8), policy=tighter).high_ratio == pytest.approx(1 / 1.6)


def test_3g_and_4g_have_the_same_bandwidth() -> None:
    bound = full(1.0, 0.2, 0.8)
    assert speed(bound, target=SLICES["3g"]).high_ratio == speed(bound, target=SLICES["4g"]).high_ratio


def test_between_mean_and_all_or_nothing_lies_maximum_entropy() -> None:
    """Worked out by hand: exp(−rx) cut at 1 has mean 0.3 at r ≈ 2.672; E max(1, x/s) follows from it."""
    job = full(1.0, 0.3, 0.0)
    target = SLICES["4g"]
    found = speed(job, target=target)
    s, grid = 56 / 108, (np.arange(200_000) + 0.5) / 200_000
    rate = 2.672
    density = np.exp(-rate * grid)
    density /= density.sum()
    assert float(density @ grid) == pytest.approx(0.3, abs=2e-4)
    expected = float(density @ np.maximum(1.0, grid / s))
    assert 1 / found.likely_ratio == pytest.approx(expected, rel=5e-3)
    amdahl = 0.7 + 0.3 / s
    assert 1 / found.low_ratio == pytest.approx(amdahl)
    between = speed(job, target=target, policy=SpeedPolicy(sm_burst_ratio=0.5))
    assert 1 / between.low_ratio == pytest.approx((expected + amdahl) / 2, rel=5e-3)
    assert found.high_ratio == 1.0


def test_tiers() -> None:
    power = cell(0.5, dram_active_ratio=0.1, power_watts=120.0)
    assert speed(full(0.5, 0.2, 0.1)).tier is EvidenceTier.SM
    assert speed(power, envelope=ENVELOPE).tier is EvidenceTier.POWER
    assert speed(power).tier is EvidenceTier.ENGINE
    assert speed(cell(0.5, power_watts=120.0), envelope=ENVELOPE).tier is EvidenceTier.UTILISATION
    assert speed(cell(0.5, dram_active_ratio=0.1), coarse=True).tier is EvidenceTier.UTILISATION


def test_power_of_a_board_says_nothing_about_a_slice_of_it() -> None:
    power = cell(0.5, dram_active_ratio=0.1, power_watts=120.0)
    assert speed(power, now=SLICES["7g"], envelope=ENVELOPE).tier is EvidenceTier.ENGINE


def test_the_tier_is_that_of_nearly_all_the_time() -> None:
    best, worst = full(0.5, 0.2, 0.1, weight=96.0), cell(0.5, weight=4.0)
    assert speed(best, worst).tier is EvidenceTier.SM
    assert speed(best, cell(0.5, weight=6.0)).tier is EvidenceTier.UTILISATION


def test_utilisation_alone_promises_no_more_than_amdahl() -> None:
    found = speed(cell(0.5), coarse=True, target=SLICES["4g"])
    assert found.low_ratio == found.likely_ratio == pytest.approx(1 / (0.5 + 0.5 * 2))  # 4/8 of the bandwidth
    assert found.high_ratio == 1.0
    assert "measure first" in found.basis


def test_engine_activity_bounds_sm_demand() -> None:
    unknown = speed(cell(0.5, dram_active_ratio=0.0))
    assert unknown.low_ratio == pytest.approx(1 / (0.5 + 0.5 * 108 / 42))
    assert unknown.low_ratio < unknown.likely_ratio < unknown.high_ratio == 1.0


def test_unknown_memory_activity_may_be_all_that_the_sms_do() -> None:
    unknown = speed(cell(1.0, sm_active_ratio=0.6, tensor_active_ratio=0.0))
    known = speed(full(1.0, 0.6, 0.0))
    assert unknown.low_ratio < known.low_ratio
    assert unknown.tier is EvidenceTier.UTILISATION


def test_power_is_held_against_what_the_boards_were_seen_to_draw() -> None:
    job = cell(0.9, dram_active_ratio=0.0, power_watts=150.0)
    half = speed(job, envelope=ENVELOPE)
    lower = PowerEnvelope(gpu_model="A100-SXM4-40GB", floor_watts=50.0, ceiling_watts=170.0, devices=8)
    assert speed(job, envelope=lower).likely_ratio < half.likely_ratio
    # A ceiling above the data sheet's 400 W is a glitch of a sensor, not a card that could do more.
    glitch = PowerEnvelope(gpu_model="A100-SXM4-40GB", floor_watts=50.0, ceiling_watts=900.0, devices=8)
    limit = PowerEnvelope(gpu_model="A100-SXM4-40GB", floor_watts=50.0, ceiling_watts=400.0, devices=8)
    assert speed(job, envelope=glitch) == speed(job, envelope=limit)


def test_without_a_floor_the_catalogs_is_used_and_without_range_power_is_nothing() -> None:
    job = cell(0.9, dram_active_ratio=0.0, power_watts=46.0)
    floorless = PowerEnvelope(gpu_model="A100-SXM4-40GB", floor_watts=None, ceiling_watts=250.0, devices=8)
    catalog = PowerEnvelope(gpu_model="A100-SXM4-40GB", floor_watts=46.0, ceiling_watts=250.0, devices=8)
    assert speed(job, envelope=floorless) == speed(job, envelope=catalog)
    # Boards whose holders keep their clocks up are no measure of rest: the lower floor counts.
    awake = PowerEnvelope(gpu_model="A100-SXM4-40GB", floor_watts=70.0, ceiling_watts=250.0, devices=8)
    assert speed(job, envelope=awake) == speed(job, envelope=catalog)
    flat = PowerEnvelope(gpu_model="A100-SXM4-40GB", floor_watts=46.0, ceiling_watts=46.0, devices=8)
    assert speed(job, envelope=flat).tier is EvidenceTier.ENGINE


def test_the_margin_of_power_is_at_the_pessimistic_end_only() -> None:
    job = cell(0.6, dram_active_ratio=0.0, power_watts=110.0)
    plain, wary = (speed(job, envelope=ENVELOPE, policy=SpeedPolicy(power_margin_ratio=m)) for m in (0.0, 0.1))
    assert wary.low_ratio < plain.low_ratio
    assert wary.likely_ratio == plain.likely_ratio
    assert wary.high_ratio >= plain.high_ratio


def test_traffic_to_the_host_bounds_a_move_to_a_slower_link() -> None:
    link = WHOLE.pcie_bytes_per_second
    signals = {"sm_active_ratio": 0.0, "dram_active_ratio": 0.0, "tensor_active_ratio": 0.0}
    t4 = capability_of(find_gpu("T4"))  # PCIe 3 against 4
    half = speed(cell(0.5, pcie_bytes_per_second=0.5 * link, **signals), target=t4)
    assert half.high_ratio == pytest.approx(1.0)  # behind the rest of the time
    assert half.low_ratio == pytest.approx(1 / 1.5)  # on top of it
    full_link = speed(cell(0.5, pcie_bytes_per_second=link, **signals), target=t4)
    assert full_link.high_ratio == pytest.approx(0.5)
    # Slices share the whole link.
    assert speed(cell(0.5, pcie_bytes_per_second=link, **signals)).low_ratio == pytest.approx(1.0)


def test_a_faster_card_promises_nothing_at_the_low_end() -> None:
    h100 = capability_of(find_gpu("H100-SXM5-80GB"))
    found = speed(full(1.0, 1.0, 0.8, 0.5), target=h100)
    assert found.low_ratio == pytest.approx(1.0)
    assert found.likely_ratio > 1.2
    latency_bound = speed(full(1.0, 0.02, 0.01), target=h100)
    assert latency_bound.likely_ratio < 1.05


def test_across_architectures_the_pessimistic_end_is_amdahls_bound() -> None:
    job = full(0.9, 0.5, 0.0, 0.0)
    l4 = speed(job, target=capability_of(find_gpu("L4")))
    assert 1 / l4.low_ratio == pytest.approx(0.1 + 0.4 + 0.5 * (108 * 1410) / (58 * 2040))
    # The same architecture with 56 of 108 SMs: as on a slice, the policy says how far towards the bound.
    a30 = speed(job, target=capability_of(find_gpu("A30")), policy=SpeedPolicy(sm_burst_ratio=0.5))
    assert 1 / a30.low_ratio < 0.1 + 0.4 + 0.5 * 19.5 / 10.3 - 0.01
    assert "Across models" in l4.basis
    assert "Across models" not in speed(job).basis


def test_what_power_tells_is_not_enough_across_architectures() -> None:
    job = cell(0.6, dram_active_ratio=0.0, tensor_active_ratio=0.0, power_watts=110.0)
    l4 = capability_of(find_gpu("L4"))
    plain, bursty = (speed(job, target=l4, envelope=ENVELOPE, policy=SpeedPolicy(sm_burst_ratio=b)) for b in (0, 1))
    assert plain == bursty


def test_what_cannot_be_compared_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="of both Gaudi and A100-SXM4-40GB"):
        ratios(WHOLE, capability_of(find_gpu("Gaudi")))
    same = capability_of(find_gpu("Gaudi"))
    assert ratios(same, same).compute.low == 1.0


@pytest.mark.parametrize("name", [one.name for one in gpus()])
def test_every_gpu_of_the_catalog_has_a_capability(name: str) -> None:
    found = capability_of(find_gpu(name))
    assert found.memory_bytes == find_gpu(name).memory_bytes
    assert 0 < found.idle_power_watts < found.power_limit_watts
    assert not found.mig_profile


def test_slices_have_the_sms_that_mig_leaves() -> None:
    shares = {kind: one.compute_per_second / WHOLE.compute_per_second for kind, one in SLICES.items()}
    assert shares == pytest.approx({"1g": 14 / 108, "2g": 28 / 108, "3g": 42 / 108, "4g": 56 / 108, "7g": 98 / 108})
    memory = {kind: one.memory_bytes / 2**20 for kind, one in SLICES.items()}
    assert memory == {"1g": 4864, "2g": 9856, "3g": 19968, "4g": 19968, "7g": 40192}
    assert not any(one.assumed for one in SLICES.values())


def sms(model: str, profile: str, told: dict[tuple[str, str], LabelledSize] | None = None) -> float:
    """Of the slice, from its peak rate."""
    found, whole = capability_of(find_gpu(model), profile, told), capability_of(find_gpu(model))
    return (found.compute_per_second or 0) / (whole.compute_per_second or 1) * processors()[model].multiprocessors


@pytest.mark.parametrize(("model", "profile", "mebibytes", "multiprocessors"), TABLES["measured_slices"])
def test_slices_have_what_was_measured(model: str, profile: str, mebibytes: int, multiprocessors: int) -> None:
    found = capability_of(find_gpu(model), profile)
    assert found.memory_bytes / 2**20 == mebibytes
    assert sms(model, profile) == pytest.approx(multiprocessors)
    assert found.assumed == ()


@pytest.mark.parametrize(
    ("model", "profile", "mebibytes", "multiprocessors"),
    [
        ("B200-180GB", "2g.45gb", 2 * 20992, 2 * 18),  # as much as its 1g, twice
        ("H20-96GB", "4g.48gb", 48512, 4 * 8),
        # Of another GPU the least: of all 1g H200's has the least of the memory, H20's of the SMs.
        ("GB200-186GB", "1g.23gb", 16384 / 144384 * 190464, 8 / 78 * 148),
    ],
)
def test_what_no_source_gives_is_the_least_that_any_leaves(
    model: str, profile: str, mebibytes: float, multiprocessors: float
) -> None:
    found = capability_of(find_gpu(model), profile)
    assert found.memory_bytes / 2**20 == pytest.approx(mebibytes, rel=0.003)
    assert sms(model, profile) == pytest.approx(multiprocessors)
    assert f"No source gives the SMs of {model} {profile}; the smallest" in " ".join(found.assumed)


def test_every_slice_has_less_than_its_share_of_the_card_and_most_of_it() -> None:
    for model in (one for one in gpus() if one.mig_family):
        shape = geometry(model.mig_family)
        for profile in shape.profiles:
            share = capability_of(model, profile.name).memory_bytes / (model.memory_bytes * shape.memory_ratio(profile))
            assert 0.9 < share < 1.0, (model.name, profile.name)


def test_the_labels_of_the_fleets_own_nodes_go_first() -> None:
    told = {("GB200-186GB", "1g.23gb"): LabelledSize(memory_bytes=21504 * 2.0**20, multiprocessors=18)}
    found = capability_of(find_gpu("GB200-186GB"), "1g.23gb", told)
    assert (found.memory_bytes / 2**20, sms("GB200-186GB", "1g.23gb", told), found.assumed) == (21504, 18, ())
    whole = capability_of(find_gpu("T4"), labelled={("T4", ""): LabelledSize(memory_bytes=15360 * 2.0**20)})
    assert whole.memory_bytes == 15360 * 2**20


def test_a_profile_that_the_card_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no MIG profile '1g.99gb'; it has 1g.5gb"):
        capability_of(find_gpu("A100-SXM4-40GB"), "1g.99gb")
    with pytest.raises(ValueError, match="cannot be cut"):
        capability_of(find_gpu("T4"), "1g.5gb")


SAMPLES = Path(__file__).parents[2].parent / "shared/samples/nodes"
MIB = 2**20


def node(product: str, **labels: str) -> Node:
    found = {f"nvidia.com/{name.replace('__', '.')}": value for name, value in labels.items()}
    name, _, _ = product.partition("-MIG-")
    return Node(name="n", gpu_product=name, labels={"nvidia.com/gpu.product": product, **found})


def test_mixed_strategy_has_labels_of_each_profile() -> None:
    labels = {
        "gpu.memory": "95830",
        "mig-1g.12gb.memory": "11008",
        "mig-1g.12gb.multiprocessors": "16",
        "mig-1g.12gb.count": "7",
        "mig-1g.24gb.memory": "22144",
        "mig-1g.12gb.me.memory": "11007",
        "mig-1g.12gb.engines.copy": "1",
    }
    assert labelled_sizes([node("NVIDIA-H100-NVL", **labels)]) == {
        ("H100-NVL-94GB", ""): LabelledSize(memory_bytes=95830 * MIB),
        ("H100-NVL-94GB", "1g.12gb"): LabelledSize(11008 * MIB, 16),
        ("H100-NVL-94GB", "1g.24gb"): LabelledSize(memory_bytes=22144 * MIB),
        ("H100-NVL-94GB", "1g.12gb+me"): LabelledSize(memory_bytes=11007 * MIB),
    }


@pytest.mark.parametrize("product", ["NVIDIA-A100-SXM4-80GB-MIG-3g.39gb", "NVIDIA-A100-SXM4-80GB-MIG-3g.39gb-SHARED"])
def test_single_strategy_has_those_of_its_slices_in_place_of_the_cards(product: str) -> None:
    found = labelled_sizes([node(product, **{"gpu.memory": "40192", "gpu.multiprocessors": "42"})])
    assert found == {("A100-SXM4-80GB", "3g.40gb"): LabelledSize(40192 * MIB, 42)}


def test_where_nodes_differ_the_least_counts() -> None:
    nodes = [node("NVIDIA-L4", **{"gpu.memory": memory}) for memory in ("23034", "22528", "24576")]
    assert labelled_sizes(nodes) == {("L4", ""): LabelledSize(memory_bytes=22528 * MIB)}


@pytest.mark.parametrize("value", ["", "0", "many", "-1", "40448 MiB"])
def test_what_is_no_number_says_nothing(value: str) -> None:
    assert labelled_sizes([node("NVIDIA-L4", **{"gpu.memory": value})]) == {}


def test_a_model_that_the_catalog_lacks_says_nothing() -> None:
    assert labelled_sizes([node("NVIDIA-Q1", **{"gpu.memory": "1"})]) == {}


PTX = "or PTX that the driver can compile for it"


def between(now: str, target: str, allowed: tuple[str, ...] = (), told: str | None = None) -> str:
    annotations = {} if told is None else {"gpuwatch.dev/compute-capabilities": told}
    return condition(find_gpu(now), find_gpu(target), allowed, [("Deployment/a/b", {}), ("Pod a/b-0", annotations)])


# NVIDIA's "Blackwell Compatibility Guide": binary code for 8.0 runs on 8.6, that for 8.6 not on 8.0, that for
# 8.x not on 9.0.
@pytest.mark.parametrize(("now", "target"), TABLES["runs_as_it_is"])
def test_the_same_major_version_upwards_needs_nothing(now: str, target: str) -> None:
    assert between(now, target) == ""


@pytest.mark.parametrize(
    ("now", "target", "said"),
    [
        ("A100-SXM4-40GB", "RTX-PRO-6000-Blackwell-SE", f"Only if the image carries sm_120, {PTX}."),
        ("T4", "A10", f"Only if the image carries sm_86, {PTX}."),
        ("A10", "A100-SXM4-40GB", f"Only if the image carries sm_80, {PTX}."),
        ("L4", "A10", f"Only if the image carries sm_86, {PTX}; FP8 is not available."),
        (
            "H100-SXM5-80GB",
            "A100-SXM4-80GB",
            f"Only if the image carries sm_80, {PTX}; FP8 is not available; kernels for sm_90a do not run.",
        ),
        (
            "H100-SXM5-80GB",
            "L40S",
            f"Only if the image carries sm_89, {PTX}; kernels for sm_90a do not run.",
        ),
        (
            "B200-180GB",
            "H200-SXM5-141GB",
            f"Only if the image carries sm_90, {PTX}; FP4 is not available; kernels for sm_100a do not run.",
        ),
        (
            "B200-180GB",
            "RTX-PRO-6000-Blackwell-SE",
            f"Only if the image carries sm_120, {PTX}; kernels for sm_100a do not run.",
        ),
        (
            "L4",
            "T4",
            f"Only if the image carries sm_75, {PTX}; BF16 is not available; FP8 is not available.",
        ),
        ("MI210", "MI300X", "Only if the image is built for cdna3."),
        ("A100-SXM4-40GB", "MI300X", "Only if the image is built for cdna3."),
    ],
)
def test_all_else_has_a_condition_that_says_what_is_needed_and_what_is_lost(now: str, target: str, said: str) -> None:
    assert between(now, target) == said


def test_what_names_the_target_removes_it_and_nothing_else_does() -> None:
    assert between("A100-SXM4-40GB", "H100-SXM5-80GB", told="8.0, 9.0") == ""
    assert between("A100-SXM4-40GB", "H100-SXM5-80GB", allowed=("9.0",)) == ""
    assert between("MI210", "MI300X", told="cdna3") == ""
    for told in ("", "10.0", "9", "hopper", "sm_90"):
        assert between("A100-SXM4-40GB", "H100-SXM5-80GB", told=told).startswith("Only if the image carries sm_90")


def test_a_setting_that_names_no_gpu_is_refused() -> None:
    assert AdvicePolicy(compute_capabilities=("8.0", "12.0", "cdna3"))
    with pytest.raises(ValueError, match=r"advice\.compute_capabilities is .*sm_80.*such as '8\.0'"):
        AdvicePolicy(compute_capabilities=("sm_80",))
