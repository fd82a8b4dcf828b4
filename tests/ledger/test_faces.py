"""The report, its CSV files and the DataFrames have the ledger's hours and money, and no others."""

import csv
import io
import json
import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pandas as pd
import pytest

import gpuwatch
from gpuwatch.account.ledger_sums import By, sums
from gpuwatch.app.ledger import Hours, hours_of, keep_ledger, kept_hours, read_ledger
from gpuwatch.app.settings import Settings
from gpuwatch.app.sizing import size
from gpuwatch.app.sources import Opened, open_sources
from gpuwatch.app.weekly_report import week_of
from gpuwatch.facts.model.ledger import Group, Ledger, LossCause, Row
from gpuwatch.facts.model.weekly import WeeklyReport
from gpuwatch.say.weekly_machine import weekly_csvs
from gpuwatch.say.weekly_words import CAUSES, COLUMNS, GROUPS, ROWS, parts
from gpuwatch.sources.store.ledger import LedgerStore
from kube.cluster_json import as_list
from ledger.week import AT, END, START, write_week

WEEK = END - START


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Telemetry and cluster."""
    return write_week(tmp_path_factory.mktemp("week"), "-")


@pytest.fixture(scope="module")
def opened(files: tuple[Path, Path]) -> Opened:
    telemetry, cluster = files
    return open_sources(
        {"telemetry": (telemetry,), "cluster": cluster, "no_cluster": False, "prometheus": None, "at": AT}, Settings()
    )


@pytest.fixture(scope="module")
def ledger(opened: Opened) -> Ledger:
    return read_ledger(opened, WEEK, quiet=True)


@pytest.fixture(scope="module")
def report(opened: Opened, ledger: Ledger) -> WeeklyReport:
    return week_of(opened, size(opened, None, WEEK, quiet=True), Hours(ledger=ledger, hourly=ledger.entries), WEEK)


def test_the_report_has_the_rows_of_the_ledger(report: WeeklyReport, ledger: Ledger) -> None:
    of_ledger = {item.name: item.gpu_hours for item in sums(ledger, By.ROW)}
    assert len(of_ledger) > 10
    told = {str(each.row): each.gpu_hours + each.unknown_gpu_hours for each in report.rows}
    assert told == pytest.approx(of_ledger, rel=1e-12)
    assert [each.cost for each in report.rows] == [item.cost for item in sums(ledger, By.ROW)]
    assert report.fleet.capacity_gpu_hours == pytest.approx(sum(of_ledger.values()), rel=1e-12)
    assert sum(part.gpu_hours or 0.0 for part in parts(report)) == pytest.approx(ledger.capacity_gpu_hours)
    # Lost work was work, whether the loss is known or not.
    busy = sum(of_ledger[row] for row in (Row.USEFUL, Row.FEW_SMS, Row.LOST))
    assert report.fleet.busy_gpu_hours == pytest.approx(busy, rel=1e-9)
    account = report.levers
    claimed = [each.wasted for each in (*account.levers, *account.left)]
    assert sum(each.gpu_hours for each in claimed) == pytest.approx(account.wasted.gpu_hours, rel=1e-9)
    # A point of the curve is an hour.
    allocated = sum(point.allocated_gpus or 0.0 for point in report.curve)
    assert allocated == pytest.approx(report.fleet.allocated_gpu_hours, rel=0.01)


@pytest.mark.parametrize(("by", "file", "column"), [(By.TEAM, "teams", "team"), (By.WORKLOAD, "workloads", "workload")])
def test_teams_and_workloads_have_their_sums_in_every_form(
    by: By, file: str, column: str, report: WeeklyReport, ledger: Ledger
) -> None:
    wanted = {item.name: item.gpu_hours for item in sums(ledger, by) if item.name}
    found: dict[str, float] = {}
    for row in csv.DictReader(io.StringIO(weekly_csvs(report)[f"{file}.csv"])):
        found[row[column]] = found.get(row[column], 0.0) + float(row["allocated_gpu_hours"])
    assert found == pytest.approx(wanted, abs=1e-3)
    assert sum(found.values()) == pytest.approx(report.fleet.allocated_gpu_hours, abs=0.05)


def test_the_frames_have_them_too(files: tuple[Path, Path], report: WeeklyReport, ledger: Ledger) -> None:
    telemetry, cluster = files
    frames = gpuwatch.read(telemetry, cluster=cluster, at=AT, days=WEEK / timedelta(days=1))
    hours = frames.ledger()
    by_row = hours.groupby("row")["gpu_hours"].sum()
    assert by_row.to_dict() == pytest.approx({item.name: item.gpu_hours for item in sums(ledger, By.ROW)})
    held = hours[hours["team"] != ""]
    pd.testing.assert_series_equal(
        held.groupby("team")["gpu_hours"].sum(),
        frames.cost().set_index("team")["allocated_gpu_hours"].sort_index(),
        check_names=False,
    )
    assert len(report.teams) == len(frames.cost())


def test_a_team_is_what_the_label_of_its_namespace_says(
    files: tuple[Path, Path], opened: Opened, tmp_path: Path
) -> None:
    """In the ledger that is read and in the one that is kept, and in the report of it."""
    telemetry, cluster = files
    folder = shutil.copytree(cluster, tmp_path / "cluster")
    meta = {"name": "ml", "labels": {"example.org/team": "research"}}
    (folder / "namespaces.json").write_text(
        json.dumps(as_list({"apiVersion": "v1", "kind": "Namespace", "metadata": meta}))
    )
    options = {"telemetry": (telemetry,), "cluster": folder, "no_cluster": False, "prometheus": None, "at": AT}
    labelled = open_sources(options, Settings(team_label="example.org/team"))
    day = timedelta(days=1)
    ledger = read_ledger(labelled, day, quiet=True)
    assert ledger.teams == {"ml": "research"}
    store = LedgerStore.open(tmp_path / "ledger", "USD")
    kept = kept_hours(labelled, store, day, kept=keep_ledger(labelled, store, quiet=True))
    assert kept.ledger.teams == ledger.teams
    found = week_of(labelled, size(labelled, None, day, quiet=True), kept, day)
    assert [team.team for team in found.teams] == ["research"]
    assert found.teams[0].use.allocated_gpu_hours == pytest.approx(found.fleet.allocated_gpu_hours)
    assert read_ledger(replace(labelled, settings=opened.settings), day, quiet=True).teams == {}


def test_a_report_of_what_is_kept_is_the_same_and_knows_the_period_before(
    opened: Opened, ledger: Ledger, tmp_path: Path
) -> None:
    """Two days, and the two days before: from what is kept, and read at once."""
    store, length = LedgerStore.open(tmp_path / "ledger", "USD"), timedelta(days=2)
    kept = kept_hours(opened, store, length, kept=keep_ledger(opened, store, quiet=True))
    read = hours_of(opened, length, None, trend=True, quiet=True)
    assert kept.before is not None
    assert read.before is not None
    start = kept.ledger.start
    wanted = sum(each.gpu_hours for each in ledger.entries if each.hour >= start)
    assert sum(each.gpu_hours for each in kept.ledger.entries) == pytest.approx(wanted, abs=0.01)
    by_row = {item.name: item.gpu_hours for item in sums(kept.ledger, By.ROW)}
    assert by_row == pytest.approx(
        {item.name: item.gpu_hours for item in sums(replace(ledger, entries=kept.hourly), By.ROW)}
    )
    hours = {each.hour for each in kept.hourly}
    assert len(hours) == 48
    assert {each.hour for each in kept.ledger.entries if each.row.group is Group.WORKING} < hours
    # Two whole days of the same GPUs; the days that are kept begin at midnight.
    assert kept.before.capacity_gpu_hours == pytest.approx(read.before.capacity_gpu_hours, rel=0.05)
    # Of six days the six before are not there.
    assert hours_of(opened, timedelta(days=6), None, trend=True, quiet=True).before is None


def test_every_group_row_and_cause_has_a_name() -> None:
    assert set(GROUPS) == set(COLUMNS) == set(Group)
    assert set(ROWS) == set(Row)
    assert set(CAUSES) == set(LossCause)
