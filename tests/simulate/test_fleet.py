"""The fleet as a whole: its size, its seeds, who holds what, and what its exporters print."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

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


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seed", -1),
        ("gpus", 0),
        ("days", 0.04),
        ("interval_seconds", 14),
        ("interval_seconds", 301),
        ("vocabulary", "dcgm5"),
        ("label_scheme", "both"),
        ("extended_share", 1.01),
        ("idle_allocations", -1),
    ],
)
def test_a_plan_names_the_field_that_is_out_of_range(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"FleetPlan.{field}"):
        FleetPlan(**{"seed": 1, "end": END, field: value})  # type: ignore[arg-type]


def test_a_plan_needs_a_time_zone_and_turns_it_into_utc() -> None:
    with pytest.raises(ValueError, match="time zone"):
        FleetPlan(seed=1, end=datetime(2026, 3, 12))  # noqa: DTZ001
    east = FleetPlan(seed=1, end=datetime(2026, 3, 12, 8, tzinfo=timezone(timedelta(hours=2))))
    assert east.end.tzinfo is UTC
    assert east.end.hour == 6


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


def test_the_writer_gets_each_metric_in_one_piece_and_each_series_once(fleet: SimulatedFleet) -> None:
    metrics = [series.metric for series in fleet.series()]
    assert len(list(itertools.groupby(metrics))) == len(set(metrics))
    names = [(series.metric, tuple(sorted(series.labels.items()))) for series in fleet.series()]
    assert len(names) == len(set(names))


def test_times_rise_on_the_grid_inside_the_window(recorded: dict[str, list[RecordedSeries]]) -> None:
    begin, end = (round(moment.timestamp() * 1000) for moment in (PLAN.start, PLAN.end))
    for series in itertools.chain.from_iterable(recorded.values()):
        steps = np.diff(series.times_ms)
        assert (steps > 0).all()
        assert (steps % 60_000 == 0).all()
        assert begin <= series.times_ms[0]
        assert series.times_ms[-1] < end


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


def test_gpu_util_and_temperature_are_whole_numbers(recorded: dict[str, list[RecordedSeries]]) -> None:
    for metric in ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_FB_USED"):
        for series in recorded[metric]:
            values = series.values[~is_stale(series.values)]
            assert np.array_equal(values, np.rint(values)), metric


def test_memory_adds_up_to_the_card(recorded: dict[str, list[RecordedSeries]]) -> None:
    used = {tuple(s.labels.items()): s for s in recorded["DCGM_FI_DEV_FB_USED"] if "A100" in s.labels["modelName"]}
    free = {tuple(s.labels.items()): s for s in recorded["DCGM_FI_DEV_FB_FREE"]}
    checked = 0
    for key, series in used.items():
        if "GPU_I_ID" not in series.labels:
            live = ~is_stale(series.values)
            assert set(series.values[live] + free[key].values[live]) == {81920.0 - 616}
            checked += 1
    assert checked > 10


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


def test_workloads_stand_in_exported_labels_beside_the_exporters_own(
    recorded: dict[str, list[RecordedSeries]],
) -> None:
    rows = recorded["DCGM_FI_PROF_GR_ENGINE_ACTIVE"]
    assert all(s.labels["pod"].startswith("nvidia-dcgm-exporter-") for s in rows)
    assert {True, False} == {"exported_pod" in s.labels for s in rows}


def test_native_rows_carry_the_workload_and_idle_ones_the_exporter() -> None:
    fleet = build_fleet(FleetPlan(seed=3, end=END, gpus=8, days=1, label_scheme="native"))
    pods = {pod.name for run in fleet.runs for pod in run.pods}
    exporter = fleet.machines[0].exporter_pod
    seen = {s.labels["pod"] for s in fleet.series() if s.metric == "DCGM_FI_DEV_GPU_TEMP"}
    assert seen & pods
    assert exporter in seen
    assert seen <= pods | {exporter}
    assert not any("exported_pod" in s.labels for s in fleet.series())


def test_only_some_exporters_have_more_than_the_default_metrics(
    fleet: SimulatedFleet, recorded: dict[str, list[RecordedSeries]]
) -> None:
    extended = {machine.name for machine in fleet.machines if machine.extended}
    assert 0 < len(extended) < len(fleet.machines)
    for metric in ("DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_SM_UTIL_RATIO", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"):
        for series in recorded[metric]:
            assert (series.labels.get("Hostname") or series.labels["hostname"]) in extended


def test_prometheus_misses_scrapes_and_says_so(
    fleet: SimulatedFleet, recorded: dict[str, list[RecordedSeries]]
) -> None:
    assert len(recorded["up"]) == len(fleet.machines)
    failed = {s.labels["instance"]: s.times_ms[s.values == 0] for s in recorded["up"]}
    assert sum(len(times) for times in failed.values()) > 0
    for series in recorded["DCGM_FI_DEV_POWER_USAGE"]:
        live = series.times_ms[~is_stale(series.values)]
        assert not np.isin(live, failed[series.labels["instance"]]).any()


def test_objects_are_those_of_the_moment_and_a_moment_outside_is_refused(fleet: SimulatedFleet) -> None:
    early, late = PLAN.start + timedelta(hours=5), PLAN.end
    pods = [
        {item["metadata"]["name"] for item in fleet.cluster_objects(at) if item["kind"] == "Pod"}
        for at in (early, late)
    ]
    assert pods[0] != pods[1]
    with pytest.raises(ValueError, match="outside"):
        fleet.cluster_objects(PLAN.end + timedelta(seconds=1))


def test_two_faults_of_one_kind_on_one_card_are_one_series() -> None:
    """With twelve double-bit errors on eight cards some card has two, and a recording refuses a series given twice."""
    faulty = build_fleet(
        FleetPlan(seed=3, end=END, gpus=8, days=2, extended_share=1.0, faults=(FaultKind.DOUBLE_BIT,) * 12)
    )
    twice = Counter(truth.subject for truth in faulty.truth if truth.fault == FaultKind.DOUBLE_BIT)
    assert max(twice.values()) > 1
    names = Counter((item.metric, tuple(sorted(item.labels.items()))) for item in faulty.series())
    assert [name for name, count in names.items() if count > 1] == []
