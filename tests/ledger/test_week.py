"""The ledger of a week whose GPU-hours are known by construction."""

import math
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from gpuwatch.account.ledger_sums import UNKNOWN_IMAGE, By, sums
from gpuwatch.app.ledger import read_ledger
from gpuwatch.app.settings import Settings
from gpuwatch.app.sources import open_sources
from gpuwatch.facts.model.ledger import Group, Ledger, Row
from gpuwatch.facts.model.telemetry import Gap, GapKind
from gpuwatch.sources.telemetry.recording import RecordingStore
from gpuwatch.sources.telemetry.samples import Expression, Partition, QueryFailed, Series, Steps
from gpuwatch.sources.telemetry.series import RecordedSeries
from ledger.week import AT, CAPACITY_GPU_HOURS, END, EXPECTED, OF_WORKLOADS, START, TRAINS, week_series, write_week
from parts import remote_write
from parts.prometheus_server import ServerBuild, running

MOMENT = 1 / 6000  # hours: 0.6 s


def ledger_of(folder: Path, without: str = "-") -> Ledger:
    """without: how the names of metrics begin that have no series."""
    ledger = read_ledger(open_sources(options_of(folder, without), Settings()), END - START, quiet=True)
    assert (ledger.start, ledger.end) == (START, END)
    return ledger


def options_of(folder: Path, without: str = "-") -> dict[str, object]:
    telemetry, cluster = write_week(folder, without)
    return {"telemetry": (telemetry,), "cluster": cluster, "no_cluster": False, "prometheus": None, "at": AT}


def by_row(ledger: Ledger) -> dict[tuple[Row, bool], float]:
    found: defaultdict[tuple[Row, bool], float] = defaultdict(float)
    for each in ledger.entries:
        found[each.row, each.unknown] += each.gpu_hours
    return dict(found)


@pytest.fixture(scope="module")
def week(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    return ledger_of(tmp_path_factory.mktemp("week"))


def test_every_row_has_the_hours_that_the_week_was_made_of(week: Ledger) -> None:
    found = by_row(week)
    differ = {key: (found.get(key, 0.0), EXPECTED.get(key, 0.0)) for key in sorted({*found, *EXPECTED})}
    assert {key: pair for key, pair in differ.items() if abs(pair[0] - pair[1]) > MOMENT} == {}
    assert set(found) == set(EXPECTED)
    assert week.capacity_gpu_hours == pytest.approx(CAPACITY_GPU_HOURS)
    assert sum(found.values()) == pytest.approx(week.capacity_gpu_hours)


def test_workloads_have_their_own_hours(week: Ledger) -> None:
    found: defaultdict[tuple[str, Row], float] = defaultdict(float)
    for each in week.entries:
        found[each.workload, each.row] += each.gpu_hours
    assert {key: found[key] for key in OF_WORKLOADS} == pytest.approx(OF_WORKLOADS, abs=MOMENT)


def test_starts_are_known_by_image(week: Ledger) -> None:
    """As kube-state-metrics names it, or a Pod that lives; of the others that are gone nothing tells."""
    found = {item.name: item for item in sums(week, By.IMAGE)}
    assert {*found} == {TRAINS, "registry.example/app:1", UNKNOWN_IMAGE, ""}
    starts = {row: hours for row, hours in found[TRAINS].known.items() if row.group is Group.NOT_WORKING}
    assert starts == pytest.approx(
        {Row.PULL: 1.0, Row.INIT: 1 / 6, Row.LOAD: 5 / 6 + 1 / 3, Row.GANG: 1.0, Row.RESTART: 0.25}, abs=MOMENT
    )
    assert {each.workload for each in week.entries if each.image == TRAINS} == {"Job/ml/train", "PyTorchJob/ml/dist"}


def test_each_hour_adds_up_to_the_gpus_of_it(week: Ledger) -> None:
    found: defaultdict[datetime, float] = defaultdict(float)
    for each in week.entries:
        found[each.hour] += each.gpu_hours
    there = {START + timedelta(hours=hour): 8.0 + (50 <= hour < 100) for hour in range(168)}
    assert found == pytest.approx(there)


@pytest.mark.parametrize(
    "metric",
    [
        "kube_",
        "kube_node_",
        "kube_node_status_condition",
        "kube_node_spec_unschedulable",
        "kube_node_status_capacity",
        "kube_node_status_allocatable",
        "kube_pod_",
        "kube_pod_container_status_running",
        "kube_pod_container_state_started",
        "kube_pod_container_info",
        "kube_pod_container_status_terminated_reason",
        "kube_pod_container_status_last_terminated_reason",
        "kube_pod_container_resource_requests",
        "kube_pod_owner",
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        "DCGM_FI_PROF_SM_ACTIVE",
        "DCGM_FI_DEV_FB_USED",
        "gpuwatch_free_gpus",
        "up",
    ],
)
def test_without_a_metric_hours_only_move_to_unknown_twins(week: Ledger, metric: str, tmp_path: Path) -> None:
    """Not those of which a cluster may well have no series: of taints, deletions, init containers and resets."""
    only_less_is_known(week, ledger_of(tmp_path, without=metric))


@pytest.mark.parametrize(
    "metric",
    [
        "kube_node_status_condition",
        "kube_node_spec_unschedulable",
        "kube_node_spec_taint",
        "kube_node_status_capacity",
        "kube_node_status_allocatable",
        "kube_pod_container_status_running",
        "kube_pod_init_container_status_running",
        "kube_pod_container_state_started",
        "kube_pod_container_info",
        "kube_pod_deletion_timestamp",
        "gpuwatch_free_gpus",
    ],
)
def test_a_query_that_fails_only_moves_hours_to_unknown_twins(
    week: Ledger, metric: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = RecordingStore.grid

    def grid(
        store: RecordingStore, expression: Expression, steps: Steps, partition: Partition | None = None
    ) -> list[Series]:
        if expression.selector.metric == metric:
            raise QueryFailed("it was refused")
        return answered(store, expression, steps, partition)

    monkeypatch.setattr(RecordingStore, "grid", grid)
    found = ledger_of(tmp_path)
    only_less_is_known(week, found)
    assert any(metric in gap.what for gap in found.gaps)


@pytest.mark.parametrize("answer", ["failed", "partial"])
def test_the_ledger_ends_before_a_stretch_that_could_not_be_read(
    week: Ledger, answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Part of an answer, as of a Thanos without one of its stores, would show GPUs as missing."""
    answered, lacking = RecordingStore.grid, list[Gap]()
    border = START + timedelta(hours=43)

    def grid(
        store: RecordingStore, expression: Expression, steps: Steps, partition: Partition | None = None
    ) -> list[Series]:
        if steps.start >= border and expression.selector.metric == "DCGM_FI_PROF_GR_ENGINE_ACTIVE":
            if answer == "failed":
                raise QueryFailed("it was refused")
            lacking[:] = [Gap(kind=GapKind.PARTIAL, what="telemetry", detail="a store did not answer")]
        return answered(store, expression, steps, partition)

    monkeypatch.setattr(RecordingStore, "grid", grid)
    monkeypatch.setattr(RecordingStore, "problems", property(lambda _: tuple(lacking)))
    found = read_ledger(open_sources(options_of(tmp_path), Settings()), END - START, quiet=True)
    assert (found.start, found.end) == (START, border)
    assert found.capacity_gpu_hours == pytest.approx(sum(e.gpu_hours for e in week.entries if e.hour < border))
    assert {gap.kind for gap in found.gaps} & {GapKind.QUERY_FAILED, GapKind.PARTIAL}


def test_history_that_was_answered_in_part_is_unknown(
    week: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, lacking = RecordingStore.grid, list[Gap]()

    def grid(
        store: RecordingStore, expression: Expression, steps: Steps, partition: Partition | None = None
    ) -> list[Series]:
        if expression.selector.metric == "kube_node_status_condition":
            lacking[:] = [Gap(kind=GapKind.PARTIAL, what="telemetry", detail="a store did not answer")]
        return answered(store, expression, steps, partition)

    monkeypatch.setattr(RecordingStore, "grid", grid)
    monkeypatch.setattr(RecordingStore, "problems", property(lambda _: tuple(lacking)))
    found = ledger_of(tmp_path)
    assert by_row(found).get((Row.PULL, False), 0.0) == 0
    assert GapKind.PARTIAL in {gap.kind for gap in found.gaps}


def only_less_is_known(week: Ledger, found: Ledger) -> None:
    before, after = by_row(week), by_row(found)
    more = {key: hours - before.get(key, 0.0) for key, hours in after.items() if not key[1]}
    assert {key: hours for key, hours in more.items() if hours > MOMENT} == {}
    assert sum(after.values()) == pytest.approx(sum(before.values()))


def test_a_real_prometheus_gives_the_same_hours(prometheus_build: ServerBuild, week: Ledger, tmp_path: Path) -> None:
    _, cluster = write_week(tmp_path)
    with running(prometheus_build) as url:
        _write(url, week_series())
        options = {"telemetry": (), "cluster": cluster, "no_cluster": False, "prometheus": url, "at": AT}
        found = read_ledger(open_sources(options, Settings()), END - START, quiet=True)
    rows, expected = by_row(found), by_row(week)
    differ = {key: rows.get(key, 0.0) - expected.get(key, 0.0) for key in {*rows, *expected}}
    assert {key: hours for key, hours in differ.items() if abs(hours) > MOMENT} == {}
    assert {gap.what for gap in found.gaps} - {gap.what for gap in week.gaps} <= {"clock"}


def _write(url: str, series: Sequence[RecordedSeries]) -> None:
    """Hour by hour, as a Prometheus takes no samples that are much older than its newest."""
    hours = [each.times_ms // 3_600_000 for each in series]
    for hour in sorted({int(each) for of_series in hours for each in np.unique(of_series)}):
        sent = []
        for each, of_series in zip(series, hours, strict=True):
            now = of_series == hour
            samples = zip((each.times_ms[now] / 1000).tolist(), each.values[now].tolist(), strict=True)
            values = [(time, None if math.isnan(value) else value) for time, value in samples]
            sent += [({"__name__": each.metric, **each.labels}, values)] if values else []
        remote_write.write(url, sent)
