from __future__ import annotations

import pytest

from detect.builders import POLICY, Answer, ago, findings, machines, on, scene, spread
from detect.questions import BRAKE, HEAT
from gpuwatch.detect.throttle import BRAKE_BITS, SLOWDOWN_BITS, THERMAL_BITS
from gpuwatch.model.decision import Advice, Finding, FindingKind, Severity, Verdict
from gpuwatch.model.telemetry import Signal, WindowStat

WINDOW = float(POLICY.window_seconds)
SAMPLES = HEAT.bits_count.window_seconds / 30


def bits(
    thermal: tuple[float, float] = (0, 0), brake: tuple[float, float] = (0, 0), slowdown: tuple[float, float] = (0, 0)
) -> dict[WindowStat, Answer]:
    """Shares of the samples with the bit in the last window and in the one before."""
    shares = {
        HEAT.bits: thermal[0],
        HEAT.bits_before: sum(thermal) / 2,
        BRAKE.bits: brake[0],
        BRAKE.bits_before: sum(brake) / 2,
        BRAKE.slowdown: slowdown[0],
        BRAKE.slowdown_before: sum(slowdown) / 2,
        HEAT.bits_count: SAMPLES,
    }
    return dict(shares)


def thermal(answers: dict[WindowStat, Answer], coverage: float = 1.0) -> Finding | None:
    return on(findings(scene(answers=answers, coverage=coverage)), FindingKind.THERMAL_THROTTLE)


def seconds(last: float, before: float) -> dict[WindowStat, Answer]:
    return {HEAT.seconds: last * WINDOW, HEAT.seconds_before: (last + before) * WINDOW}


@pytest.mark.parametrize(
    ("sample", "heat", "brake", "slow"), [(4, 0, 0, 0), (8, 0, 0, 8), (196, 64, 128, 0), (1, 0, 0, 0)]
)
def test_masks_read_samples_as_promql_does(sample: int, heat: int, brake: int, slow: int) -> None:
    """As `floor(x / 8) % 2` does: 4 is the power cap, 8 hardware slowdown, 196 cap with thermal and brake."""
    assert (sample & THERMAL_BITS, sample & BRAKE_BITS, sample & SLOWDOWN_BITS) == (heat, brake, slow)


def test_the_masks_leave_out_the_power_cap_idle_and_unknown_high_bits() -> None:
    assert (THERMAL_BITS | BRAKE_BITS | SLOWDOWN_BITS) & (0x1 | 0x2 | 0x4 | 0x10 | 0x100 | 0x200 | 0x400) == 0
    assert {HEAT.bits.parameter, BRAKE.bits.parameter, BRAKE.slowdown.parameter} == {0x60, 0x80, 0x8}


@pytest.mark.parametrize(
    ("last", "before", "severity"),
    [
        (0.1, 0.1, Severity.WARNING),
        (0.099, 0.5, None),
        (0.5, 0.099, None),
        (0.49, 0.9, Severity.WARNING),
        (0.5, 0.5, Severity.CRITICAL),
    ],
)
@pytest.mark.parametrize("source", ["seconds", "bits"])
def test_heat_counts_when_it_lasts_over_two_windows(
    last: float, before: float, severity: Severity | None, source: str
) -> None:
    answers = seconds(last, before) if source == "seconds" else bits(thermal=(last, before))
    finding = thermal(answers)
    assert (None if finding is None else finding.severity) == severity
    if finding is not None:
        assert finding.verdict is Verdict.DEGRADED
        assert finding.evidence[0].unit == "ratio"
        assert finding.advice is (Advice.INSPECT if severity is Severity.CRITICAL else Advice.WATCH)


def test_lost_time_is_counted_in_gpu_hours() -> None:
    finding = thermal(seconds(0.6, 1.0))
    assert finding is not None
    assert finding.gpu_hours == pytest.approx(1.6 * WINDOW / 3600)
    assert finding.since == ago(seconds=2 * WINDOW)


def test_a_clean_counter_and_hot_bits_are_both_read() -> None:
    assert thermal(seconds(0.0, 0.0) | bits(thermal=(0.3, 0.3))) is not None


def test_too_few_samples_are_unknown() -> None:
    few = bits(thermal=(1.0, 1.0)) | {HEAT.bits_count: 0.6 * SAMPLES}
    assert thermal(few) is None
    shown = findings(scene(answers=few, coverage=0.6), everything=True)["thermal_throttle:device/gpu-0"]
    assert shown.verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(("event", "named"), [("hw_thermal", True), ("sw_thermal", True), ("power_cap", False)])
def test_the_exporters_own_event_counts(event: str, named: bool) -> None:
    rows = {HEAT.events: {"gpu-0": {"gpu_idle": 0.0, event: 3.0}}}
    found = findings(scene(variants=rows))
    finding = on(found, FindingKind.THERMAL_THROTTLE)
    assert (finding is not None) is named
    if finding is not None:
        assert finding.confidence_ratio == 0.6


@pytest.mark.parametrize(("margin", "named"), [(0.0, True), (0.1, False)])
def test_without_throttle_signals_the_margin_is_a_proxy(margin: float, named: bool) -> None:
    finding = thermal({HEAT.margin: margin})
    assert (finding is not None) is named
    if finding is not None:
        assert finding.confidence_ratio == 0.6
        assert Signal.CLOCK_EVENT_REASONS_BITS.value in finding.missing


def test_without_any_signal_it_says_which_would_help() -> None:
    shown = findings(scene(), everything=True)["thermal_throttle:device/gpu-0"]
    assert shown.verdict is Verdict.UNKNOWN
    assert shown.missing == ("thermal_throttle_seconds_total", "clock_event_reasons_bits")


FLEET = machines(2, 8)


def busy_fleet(**odd: tuple[float, float, float]) -> dict[WindowStat, Answer]:
    """Clock in MHz, temperature and power of the odd ones among GPUs at 1700 MHz, 60 °C, 600 W."""
    clock = {name: values[0] * 1e6 for name, values in odd.items()}
    return {
        HEAT.busy: 0.98,
        HEAT.clock: spread(FLEET, 1.7e9, **clock),
        HEAT.clock_before: spread(FLEET, 1.7e9, **clock),
        HEAT.temperature: spread(FLEET, 60.0, **{name: values[1] for name, values in odd.items()}),
        HEAT.power: spread(FLEET, 600.0, **{name: values[2] for name, values in odd.items()}),
    }


def test_hot_and_slow_among_busy_peers() -> None:
    found = findings(scene(FLEET, busy_fleet(gpu_0_5=(1100, 88, 380))))
    [finding] = found.values()
    assert (finding.id, finding.verdict) == ("thermal_throttle:device/gpu-0-5", Verdict.DEGRADED)
    assert finding.confidence_ratio == 0.5
    assert [fact.peers for fact in finding.evidence] == [15, 15, 15]


@pytest.mark.parametrize(
    "odd",
    [
        (1400, 88, 380),  # 18 % slower: healthy cards differ by up to 22 %
        (1100, 70, 380),  # slow, but no hotter than cards differ
        (1100, 88, 600),  # draws what the others draw: its power cap
    ],
)
def test_one_sign_of_three_lacking_is_no_proof(odd: tuple[float, float, float]) -> None:
    assert findings(scene(FLEET, busy_fleet(gpu_0_5=odd))) == {}


def test_another_job_may_clock_otherwise() -> None:
    """All GPUs of one job are slow and hot: its work, or its machine, and none of them stands out."""
    fleet = machines(4, 8, pods=True)

    def of_job(usual: float, other: float) -> dict[str, float]:
        return {item.uuid: other if item.node == "node-0" else usual for item in fleet}

    answers: dict[WindowStat, Answer] = {
        HEAT.busy: 0.98,
        HEAT.clock: of_job(1.7e9, 1.0e9),
        HEAT.clock_before: of_job(1.7e9, 1.0e9),
        HEAT.temperature: of_job(60.0, 88.0),
        HEAT.power: of_job(600.0, 380.0),
    }
    assert findings(scene(fleet, answers)) == {}


def test_slow_in_one_window_only_is_no_proof() -> None:
    answers = busy_fleet(gpu_0_5=(1100, 88, 380))
    assert findings(scene(FLEET, answers | {HEAT.clock_before: 1.7e9})) == {}
    assert findings(scene(FLEET, answers | {HEAT.clock: 1.7e9})) == {}


@pytest.mark.parametrize("lacking", [HEAT.power, HEAT.temperature, HEAT.clock_before])
def test_one_measurement_of_the_proxy_lacking_is_unknown(lacking: WindowStat) -> None:
    answers = {stat: answer for stat, answer in busy_fleet(gpu_0_5=(1100, 88, 380)).items() if stat != lacking}
    shown = findings(scene(FLEET, answers), everything=True)["thermal_throttle:device/gpu-0-5"]
    assert shown.verdict is Verdict.UNKNOWN


def test_a_gpu_that_is_not_busy_is_not_compared() -> None:
    answers = busy_fleet(gpu_0_5=(300, 88, 100)) | {HEAT.busy: spread(FLEET, 0.98, gpu_0_5=0.49)}
    assert on(findings(scene(FLEET, answers)), FindingKind.THERMAL_THROTTLE, "gpu-0-5") is None


@pytest.mark.parametrize(("share", "named"), [(0.05, True), (0.049, False)])
def test_the_power_brake_is_an_alarm(share: float, named: bool) -> None:
    finding = on(findings(scene(answers=bits(brake=(share, share)))), FindingKind.POWER_BRAKE)
    assert (finding is not None) is named
    if finding is not None:
        assert (finding.severity, finding.advice) == (Severity.CRITICAL, Advice.INSPECT)


def test_the_brakes_own_counter() -> None:
    answers: dict[WindowStat, Answer] = {BRAKE.seconds: 0.2 * WINDOW, BRAKE.seconds_before: 0.4 * WINDOW}
    assert on(findings(scene(answers=answers)), FindingKind.POWER_BRAKE) is not None


def test_hardware_slowdown_of_no_given_reason_is_weaker() -> None:
    finding = on(findings(scene(answers=bits(slowdown=(0.3, 0.3)))), FindingKind.POWER_BRAKE)
    assert finding is not None
    assert (finding.severity, finding.confidence_ratio) == (Severity.WARNING, 0.6)


def test_hardware_slowdown_for_heat_is_one_finding() -> None:
    found = findings(scene(answers=bits(thermal=(0.3, 0.3), slowdown=(0.3, 0.3))))
    assert list(found) == ["thermal_throttle:device/gpu-0"]
