"""From samples to findings: what `promtool test rules` shows of each metric, through telemetry.

Half an hour of samples 30 s apart, looked at after 20 min with windows of ten.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpuwatch.facts.model.decision import Finding, Snapshot, Verdict
from gpuwatch.facts.model.needs import TelemetryNeeds, statistics
from gpuwatch.judge.health.assess import HealthPolicy, assess_health, needs_of_rules, state_signals
from gpuwatch.sources.collect.collect import collect
from gpuwatch.sources.telemetry.recording import open_recording

START = datetime(2026, 10, 1, 12, 0, tzinfo=UTC)
MINUTES_10 = 600
POLICY = HealthPolicy(window_seconds=300, change_window_seconds=MINUTES_10)

Samples = Callable[[int], float | None]
"""Value of the sample with this number; None where there is none."""


def steady(value: float) -> Samples:
    return lambda _: value


def then(first: float | None, second: float | None, at: int = 30) -> Samples:
    return lambda number: first if number < at else second


def line(metric: str, gpu: str, number: int, value: float, extra: str = "", host: str = "n1") -> str:
    labels = f'gpu="0",UUID="{gpu}",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",Hostname="{host}"'
    job = f'instance="{host}:9400",job="dcgm"'
    return f"{metric}{{{labels},{job}{extra}}} {value} {(START + timedelta(seconds=30 * number)).timestamp():.0f}"


def recorded(tmp_path: Path, series: dict[tuple[str, str, str], Samples], at: datetime) -> Snapshot:
    """A Snapshot of these series: (metric, GPU, more labels) → samples. Every GPU has a temperature unless given."""
    gpus = {gpu for _, gpu, _ in series}
    for gpu in gpus:
        series.setdefault(("DCGM_FI_DEV_GPU_TEMP", gpu, ""), steady(50))
    lines = [
        line(metric, gpu, number, value, extra)
        for (metric, gpu, extra), samples in series.items()
        for number in range(61)
        if (value := samples(number)) is not None
    ]
    lines += [
        f'up{{instance="n1:9400",job="dcgm"}} 1 {(START + timedelta(seconds=30 * number)).timestamp():.0f}'
        for number in range(61)
    ]
    page = tmp_path / "page.om"
    page.write_text("\n".join([*lines, "# EOF\n"]))
    wanted = TelemetryNeeds(
        stats=statistics(needs_of_rules(POLICY)),
        state_signals=state_signals(POLICY),
        change_window_seconds=POLICY.change_window_seconds,
        activity_window_seconds=600,
        activity_step_seconds=60,
        activity_bound_ratio=0.01,
        suspect_window_seconds=0,
    )
    return collect(open_recording([page], at), None, at, wanted)


def judged(
    tmp_path: Path, series: dict[tuple[str, str, str], Samples], minutes: float = 20
) -> dict[tuple[str, str], Finding]:
    """(kind, GPU) → finding."""
    at = START + timedelta(minutes=minutes)
    found = assess_health(recorded(tmp_path, series, at), POLICY)
    return {(item.kind.value, item.subject.name): item for item in found}


GAUGE = "DCGM_FI_DEV_XID_ERRORS"
TOTAL = "DCGM_EXP_XID_ERRORS_TOTAL"
REASONS = "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"


def test_the_last_value_gauge(tmp_path: Path) -> None:
    """`increase()` gives 66 for 13 → 79, 13 for 79 → 13, and nothing for a steady 79."""
    found = judged(
        tmp_path,
        {
            (GAUGE, "repeat79", ""): steady(79),
            (GAUGE, "up", ""): then(13, 79),
            (GAUGE, "down", ""): then(79, 13),
            (GAUGE, "none", ""): steady(0),
        },
        minutes=17,
    )
    assert {name: item.verdict for (kind, name), item in found.items() if kind == "xid"} == {
        "repeat79": Verdict.DEGRADED,
        "up": Verdict.DEGRADED,
        "down": Verdict.DEGRADED,
    }
    # Since when is not known, so these are suspected, and nothing is done by them.
    assert {found["xid", name].confidence_ratio for name in ("repeat79", "down")} == {0.6}
    up, down = found["xid", "up"], found["xid", "down"]
    assert up.since == START + timedelta(minutes=15)
    assert (up.evidence[0].value, {item.value for item in down.evidence} >= {79.0, 13.0}) == (79.0, True)


def test_a_total_that_is_born_and_one_that_grows(tmp_path: Path) -> None:
    """`increase()` misses the series that is born at 1; `… unless … offset` catches it."""
    found = judged(
        tmp_path,
        {
            (TOTAL, "born", ',xid="79"'): then(None, 1),
            (TOTAL, "second", ',xid="79"'): then(1, 2),
            (TOTAL, "old", ',xid="79"'): steady(1),
        },
    )
    assert {name: item.verdict for (kind, name), item in found.items() if kind == "xid"} == {
        "born": Verdict.DEGRADED,
        "second": Verdict.DEGRADED,
    }


def test_the_bits_of_the_clock_event_reasons(tmp_path: Path) -> None:
    """8 is hardware slowdown, 4 the power cap, 196 = 128 + 64 + 4 has heat and brake in it."""
    found = judged(
        tmp_path,
        {
            (REASONS, "hw", ""): steady(8),
            (REASONS, "cap", ""): steady(4),
            (REASONS, "cap_therm_brake", ""): steady(196),
            (REASONS, "unknown_high", ""): steady(0x200 + 0x400),
        },
    )
    assert sorted(found) == [
        ("power_brake", "cap_therm_brake"),
        ("power_brake", "hw"),
        ("thermal_throttle", "cap_therm_brake"),
    ]
    assert found["thermal_throttle", "cap_therm_brake"].evidence[0].value == 1.0


def test_a_gpu_that_vanished_beside_one_that_reports(tmp_path: Path) -> None:
    remap = "DCGM_FI_DEV_ROW_REMAP_FAILURE"
    found = judged(
        tmp_path,
        {
            ("DCGM_FI_DEV_GPU_TEMP", "a", ""): steady(50),
            ("DCGM_FI_DEV_GPU_TEMP", "b", ""): then(50, None),
            (remap, "a", ""): steady(0),
            (remap, "b", ""): then(0, None),
        },
        minutes=22,
    )
    [finding] = found.values()
    assert (finding.kind, finding.subject.name, finding.verdict) == ("gpu_missing", "b", Verdict.DEGRADED)


def test_evidence_names_the_query_for_this_gpu(tmp_path: Path) -> None:
    found = judged(tmp_path, {(GAUGE, "up", ""): then(13, 79)}, minutes=17)
    promql = found["xid", "up"].evidence[0].promql
    assert 'UUID="up"' in promql
    assert GAUGE in promql


SAMPLES = Path(__file__).parents[2].parent / "shared" / "samples"


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the real pages in ../shared/samples are not here")
@pytest.mark.parametrize("page", sorted(SAMPLES.glob("*/*.prom")), ids=lambda page: page.name)
def test_a_real_page_condemns_nothing(page: Path) -> None:
    """One scrape of healthy machines: states are known, windows are not, and nothing is degraded."""
    store = open_recording([page], START)
    wanted = TelemetryNeeds(
        stats=statistics(needs_of_rules(POLICY)),
        state_signals=state_signals(POLICY),
        change_window_seconds=POLICY.change_window_seconds,
        activity_window_seconds=600,
        activity_step_seconds=60,
        activity_bound_ratio=0.01,
    )
    snapshot = collect(store, None, store.end, wanted)
    assert snapshot.devices
    found = assess_health(snapshot, POLICY)
    assert {item.verdict for item in found} <= {Verdict.UNKNOWN}
    assert {item.kind for item in found} <= {"health_unknown"}
