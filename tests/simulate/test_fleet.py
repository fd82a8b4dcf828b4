"""The fleet as a whole: its size, its seeds, who holds what, and what its exporters print."""

import itertools
from collections import Counter, defaultdict
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from catalog.platform_metrics import PLATFORM_METRICS
from gpuwatch.facts.catalog.metrics import metric_rows, plausible_range
from gpuwatch.sources.telemetry.series import RecordedSeries, is_stale
from lab.simulate.fault_kinds import FaultKind
from lab.simulate.fleet import SimulatedFleet, build_fleet
from lab.simulate.plan import FleetPlan

END = datetime(2026, 3, 12, 6, tzinfo=UTC)
PLAN = FleetPlan(seed=3, end=END, days=2, vocabulary="mixed", label_scheme="exported")


@pytest.fixture(scope="module")
def fleet() -> SimulatedFleet:
    return build_fleet(PLAN)


@pytest.fixture(scope="module")
def recorded(fleet: SimulatedFleet) -> dict[str, list[RecordedSeries]]:
    by_metric: dict[str, list[RecordedSeries]] = defaultdict(list)
    for series in fleet.series():
        by_metric[series.metric].append(series)
    return by_metric


@pytest.mark.parametrize("gpus", [1, 3, 8, 17, 64, 100])
def test_a_fleet_has_exactly_the_gpus_asked_for(gpus: int) -> None:
    fleet = build_fleet(FleetPlan(seed=2, end=END, gpus=gpus, days=0.25))
    cards = [card.uuid for machine in fleet.machines for card in machine.cards]
    assert len(cards) == len(set(cards)) == gpus
    assert any(True for _ in fleet.series())
    assert fleet.cluster_objects()


def test_one_seed_is_one_fleet_and_another_seed_another() -> None:
    plan = FleetPlan(seed=5, end=END, gpus=16, days=1)
    first, again, other = build_fleet(plan), build_fleet(plan), build_fleet(replace(plan, seed=6))
    assert first.truth == again.truth
    assert first.truth != other.truth
    assert first.cluster_objects() == again.cluster_objects()
    for one, two in zip(first.series(), again.series(), strict=True):
        assert (one.metric, one.labels) == (two.metric, two.labels)
        assert np.array_equal(one.times_ms, two.times_ms)
        assert np.array_equal(one.values.view(np.uint64), two.values.view(np.uint64))


def test_no_device_is_held_by_two_pods_at_once_unless_it_is_shared(fleet: SimulatedFleet) -> None:
    spans = defaultdict(list)
    for run in fleet.runs:
        for place in run.places:
            spans[place].append((run.start, run.end))
    assert spans
    for lives in spans.values():
        for (_, end), (start, _) in itertools.pairwise(sorted(lives)):
            assert end <= start


def test_every_metric_is_in_the_catalog_of_its_vocabulary(recorded: dict[str, list[RecordedSeries]]) -> None:
    for metric, members in recorded.items():
        if metric in PLATFORM_METRICS:
            continue
        known = {row.vocabulary for row in metric_rows() if row.metric == metric}
        spoken = {"dcgm49" if "hostname" in series.labels else "dcgm" for series in members}
        assert spoken <= known, metric


def test_values_are_physical_in_both_vocabularies(recorded: dict[str, list[RecordedSeries]]) -> None:
    for metric, members in recorded.items():
        for series in members if metric not in PLATFORM_METRICS else ():
            vocabulary = "dcgm49" if "hostname" in series.labels else "dcgm"
            row = next(row for row in metric_rows() if (row.metric, row.vocabulary) == (metric, vocabulary))
            low, high = plausible_range(row.signal)
            values = series.values[~is_stale(series.values)] * row.scale
            assert low <= values.min(), metric
            assert values.max() <= high, metric


def test_each_series_ends_with_a_marker_one_interval_later_unless_it_lasts(
    recorded: dict[str, list[RecordedSeries]],
) -> None:
    last_scrape = max(series.times_ms[-1] for series in recorded["up"])
    ended = [s for s in recorded["DCGM_FI_DEV_GPU_TEMP"] if s.times_ms[-1] < last_scrape - 3_600_000]
    assert len(ended) > 20
    for series in ended:
        assert is_stale(series.values[-1:]).all()
        assert not is_stale(series.values[-2:-1]).any()
    living = [s for s in recorded["DCGM_FI_DEV_GPU_TEMP"] if s.times_ms[-1] > last_scrape - 60_000]
    assert len(living) >= 32
    assert not any(is_stale(series.values[-1:]).any() for series in living)


def test_mig_rows_have_no_util_and_repeat_the_cards_physics(recorded: dict[str, list[RecordedSeries]]) -> None:
    assert not any("GPU_I_ID" in s.labels for s in recorded["DCGM_FI_DEV_GPU_UTIL"])
    at_end: dict[str, set[float]] = defaultdict(set)
    instances: dict[str, set[str]] = defaultdict(set)
    last = max(series.times_ms[-1] for series in recorded["up"])
    names = ("DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_BOARD_POWER_WATTS")
    for series in itertools.chain.from_iterable(recorded[name] for name in names):
        if "GPU_I_ID" in series.labels and series.times_ms[-1] > last - 60_000:
            at_end[series.labels["UUID"]].add(float(series.values[-1]))
            instances[series.labels["UUID"]].add(series.labels["GPU_I_ID"])
    assert sorted(len(ids) for ids in instances.values()) == [4, 7]
    assert all(len(values) == 1 for values in at_end.values())


def test_a_shared_card_has_one_row_per_pod_with_the_same_value(recorded: dict[str, list[RecordedSeries]]) -> None:
    rows = defaultdict(list)
    for metric in ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS"):
        for series in recorded[metric]:
            if "vgpu" in series.labels:
                rows[series.labels["UUID"]].append(series)
    assert rows
    for members in rows.values():
        by_time: dict[int, set[float]] = defaultdict(set)
        for series in members:
            live = ~is_stale(series.values)
            for time, value in zip(series.times_ms[live].tolist(), series.values[live].tolist(), strict=True):
                by_time[time].add(value)
        assert all(len(values) == 1 for values in by_time.values())
        assert len({series.labels["exported_pod"] for series in members}) >= 2


def test_prometheus_misses_scrapes_and_says_so(
    fleet: SimulatedFleet, recorded: dict[str, list[RecordedSeries]]
) -> None:
    assert len(recorded["up"]) == len(fleet.machines)
    failed = {s.labels["instance"]: s.times_ms[s.values == 0] for s in recorded["up"]}
    assert sum(len(times) for times in failed.values()) > 0
    for series in recorded["DCGM_FI_DEV_POWER_USAGE"]:
        live = series.times_ms[~is_stale(series.values)]
        assert not np.isin(live, failed[series.labels["instance"]]).any()


def test_two_faults_of_one_kind_on_one_card_are_one_series() -> None:
    """With twelve double-bit errors on eight cards some card has two, and a recording refuses a series given twice."""
    faulty = build_fleet(
        FleetPlan(seed=3, end=END, gpus=8, days=2, extended_share=1.0, faults=(FaultKind.DOUBLE_BIT,) * 12)
    )
    twice = Counter(truth.subject for truth in faulty.truth if truth.fault == FaultKind.DOUBLE_BIT)
    assert max(twice.values()) > 1
    names = Counter((item.metric, tuple(sorted(item.labels.items()))) for item in faulty.series())
    assert [name for name, count in names.items() if count > 1] == []
