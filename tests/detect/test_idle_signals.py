"""The second signal: what confirms that a device does nothing, what contradicts, and what is missing."""

from dataclasses import replace

import pytest

from detect.idle_world import POLICY, InEffect, bystander, judged, only, steps, world
from gpuwatch.facts.model.decision import Advice, Finding, FindingKind, Verdict
from gpuwatch.facts.model.telemetry import Signal, Statistic, WindowStat
from gpuwatch.judge.idle.assess import IdlePolicy

SILENT = InEffect(name="pod", activity=(steps((".", 3)),))
LONG_SILENT = InEffect(name="pod", activity=(steps((".", 9)),))
FLOOR = WindowStat(Signal.POWER_WATTS, Statistic.MIN, POLICY.power_floor_seconds)


def highest(signal: Signal, window: int = 3600) -> WindowStat:
    return WindowStat(signal, Statistic.MAX, window)


L40S = {"model": "NVIDIA L40S"}  # a model whose idle power the catalog lacks

NONE_ELSE = {
    highest(signal, window): None
    for signal in (Signal.POWER_WATTS, Signal.DRAM_ACTIVE_RATIO, Signal.MEMORY_COPY_UTIL_RATIO, Signal.SM_ACTIVE_RATIO)
    for window in (3600, 21600)
}


class TestPower:
    @pytest.mark.parametrize(("watts", "verdict"), [(159.0, Verdict.IDLE), (159.1, Verdict.UNKNOWN)])
    def test_against_the_cards_own_floor(self, watts: float, verdict: Verdict) -> None:
        found = judged(SILENT, readings={highest(Signal.POWER_WATTS): watts})
        assert found.verdict is verdict

    # Floor and draw with an idle context, in watts, of small and large cards.
    @pytest.mark.parametrize(("floor", "context"), [(9, 27), (12, 55), (17, 29), (62, 100), (70, 120), (140, 200)])
    def test_an_idle_context_is_quiet_on_every_card(self, floor: float, context: float) -> None:
        found = judged(SILENT, readings={highest(Signal.POWER_WATTS): context, FLOOR: floor})
        assert found.verdict is Verdict.IDLE

    def test_a_card_that_drew_250_watts_all_week_is_not_its_own_measure(self) -> None:
        """Another profiler holds the engine counters at 0, and the cards of its model show what an idle one draws."""
        fleet = [InEffect(name=f"other-{number}", activity=("#" * 36,), device=L40S) for number in range(5)]
        silent = replace(SILENT, device=L40S)
        floors = {f"GPU-other-{number}-0": 70.0 for number in range(5)} | {"GPU-pod-0": 245.0}
        readings = {highest(Signal.POWER_WATTS): 250.0, FLOOR: floors}
        found = judged(silent, *fleet, readings=readings)
        assert found.verdict is Verdict.UNKNOWN
        assert "power_watts of GPU-pod-0 says that it works (250 watts)" in found.summary
        # Four other cards are too few to be a measure; so is one sensor that reads 0.
        assert judged(silent, *fleet[1:], readings=readings).verdict is Verdict.IDLE
        one_broken = {
            **floors,
            **dict.fromkeys((f"GPU-other-{number}-0" for number in range(5)), 245.0),
            "GPU-other-0-0": 0.0,
        }
        assert judged(silent, *fleet, readings={**readings, FLOOR: one_broken}).verdict is Verdict.IDLE

    def test_the_catalog_knows_what_an_idle_h100_draws(self) -> None:
        silent = replace(SILENT, device={"model": "NVIDIA H100 80GB HBM3"})
        readings = {highest(Signal.POWER_WATTS): 250.0, FLOOR: 245.0}
        assert judged(silent, readings=readings).verdict is Verdict.UNKNOWN
        assert judged(silent, readings={**readings, highest(Signal.POWER_WATTS): 120.0}).verdict is Verdict.IDLE

    def test_a_contradiction_is_named_and_shown(self) -> None:
        found = judged(SILENT, readings={highest(Signal.POWER_WATTS): 300.0})
        assert "power_watts of GPU-pod-0 says that it works (300 watts)" in found.summary
        assert found.missing == ("signals that agree",)
        assert [(item.signal, item.value, item.bound) for item in found.evidence] == [("power_watts", 300.0, 159.0)]


@pytest.mark.parametrize(
    ("signal", "quiet", "working"),
    [
        (Signal.DRAM_ACTIVE_RATIO, 0.02, 0.03),
        (Signal.MEMORY_COPY_UTIL_RATIO, 0.01, 0.02),
        (Signal.SM_ACTIVE_RATIO, 0.01, 0.02),
    ],
)
def test_another_engine_contradicts(signal: Signal, quiet: float, working: float) -> None:
    assert judged(SILENT, readings={highest(signal): quiet}).verdict is Verdict.IDLE
    assert judged(SILENT, readings={highest(signal): working}).verdict is Verdict.UNKNOWN


def test_traffic_both_ways_contradicts() -> None:
    tx, rx = (
        WindowStat(signal, Statistic.AVG, 3600)
        for signal in (Signal.PCIE_TX_BYTES_PER_SECOND, Signal.PCIE_RX_BYTES_PER_SECOND)
    )
    assert judged(SILENT, readings={tx: 5e6, rx: 5e6}).verdict is Verdict.IDLE
    assert judged(SILENT, readings={tx: 5e6, rx: 5.1e6}).verdict is Verdict.UNKNOWN


class TestMissing:
    @pytest.mark.parametrize(
        ("signal", "value", "verdict"),
        [
            (Signal.POWER_WATTS, 85.0, Verdict.IDLE),
            (Signal.DRAM_ACTIVE_RATIO, 0.0, Verdict.IDLE),
            (Signal.MEMORY_COPY_UTIL_RATIO, 0.0, Verdict.IDLE),
            (Signal.SM_ACTIVE_RATIO, 0.0, Verdict.UNKNOWN),  # shares its source with the engine activity
        ],
    )
    def test_one_of_them_is_enough(self, signal: Signal, value: float, verdict: Verdict) -> None:
        assert judged(SILENT, readings={**NONE_ELSE, highest(signal): value}).verdict is verdict

    def found(self) -> Finding:
        return judged(SILENT, readings=NONE_ELSE)

    def test_none_at_all_is_a_suspicion_and_a_matter_of_monitoring(self) -> None:
        assert (self.found().kind, self.found().verdict) == (FindingKind.SUSPECTED_IDLE, Verdict.UNKNOWN)
        assert self.found().gpu_hours == pytest.approx(3.0)
        assert self.found().summary.endswith("only engine activity says so")
        assert self.found().missing == ("power and memory activity of GPU-pod-0 over the idle time",)
        assert self.found().advice is Advice.FIX_MONITORING

    def test_a_silence_that_is_explained_is_no_suspicion(self) -> None:
        worked = InEffect(name="pod", activity=(steps(("#", 30), (".", 1)),))
        assert judged(worked, readings=NONE_ELSE).kind is FindingKind.BURSTY

    def test_a_signal_that_contradicts_is_no_suspicion(self) -> None:
        readings = {**NONE_ELSE, highest(Signal.SM_ACTIVE_RATIO): 0.5}
        assert judged(SILENT, readings=readings).kind is FindingKind.IDLE_UNKNOWN

    def test_power_without_a_floor_says_nothing(self) -> None:
        assert judged(SILENT, readings={**NONE_ELSE, highest(Signal.POWER_WATTS): 85.0, FLOOR: None}).verdict is (
            Verdict.UNKNOWN
        )

    def test_every_device_needs_one(self) -> None:
        pod = InEffect(name="pod", activity=(steps((".", 3)),) * 3)
        found = judged(pod, readings={**NONE_ELSE, highest(Signal.POWER_WATTS): {"GPU-pod-0": 85.0}})
        assert found.missing == ("a second signal of GPU-pod-1 and 1 more over the idle time",)


class TestWindows:
    def test_a_long_silence_is_held_against_the_long_window(self) -> None:
        readings = {highest(Signal.DRAM_ACTIVE_RATIO, 21600): 0.5}
        assert judged(SILENT, readings=readings).verdict is Verdict.IDLE
        assert judged(LONG_SILENT, readings=readings).verdict is Verdict.UNKNOWN

    def test_the_window_lies_within_the_silence(self) -> None:
        # Of nine hours of silence a window of nine lies within, one of ten does not.
        for hours, verdict in ((9, Verdict.UNKNOWN), (10, Verdict.IDLE)):
            policy = IdlePolicy(long_window_seconds=hours * 3600)
            readings = {highest(Signal.DRAM_ACTIVE_RATIO, hours * 3600): 0.5}
            snapshot = world(LONG_SILENT, bystander(), readings=readings, policy=policy)
            assert only(snapshot, LONG_SILENT.ref, policy).verdict is verdict


class TestMig:
    POD = InEffect(
        name="mig",
        activity=(steps((".", 7)),),
        device={
            "id": "GPU-a/7",
            "uuid": "GPU-a",
            "mig_instance": "7",
            "mig_profile": "1g.10gb",
            "model": "NVIDIA H100 80GB HBM3",
        },
    )

    def test_high_power_of_the_board_is_the_other_instances(self) -> None:
        board = {highest(Signal.POWER_WATTS, 21600): {"GPU-a": 400.0}, FLOOR: {"GPU-a": 70.0}}
        found = judged(self.POD, readings=board)
        assert found.verdict is Verdict.IDLE
        assert [item.signal for item in found.evidence] == ["busy_ratio", "dram_active_ratio", "memory_used_bytes"]

    def test_low_power_of_the_board_confirms(self) -> None:
        board = {highest(Signal.POWER_WATTS, 21600): {"GPU-a": 90.0}, FLOOR: {"GPU-a": 70.0}}
        assert [item.signal for item in judged(self.POD, readings=board).evidence][1] == "power_watts"

    def test_what_the_parent_does_is_not_the_instances(self) -> None:
        parent = {highest(Signal.DRAM_ACTIVE_RATIO, 21600): {"GPU-a": 0.9}}
        assert judged(self.POD, readings=parent).verdict is Verdict.IDLE

    def test_an_eighth_of_a_gpu_is_wasted(self) -> None:
        assert judged(self.POD).gpu_hours == 0.88  # 7 h × 1/8
