"""Sums of the ledger, its goodput, and what people and machines read of it."""

import csv
import io
import math
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from rich.console import Console

import gpuwatch
from gpuwatch.account.ledger_sums import By, goodput, sums, total
from gpuwatch.app.cli.main import cli
from gpuwatch.facts.model.ledger import Group, Ledger, LedgerEntry, Loss, LossCause, Row
from gpuwatch.say.ledger_tables import GROUPS, ROWS, days_of_workloads, goodput_words, ledger_tables
from ledger.week import AT, CAPACITY_GPU_HOURS, write_week

START = datetime(2026, 3, 2, 22, tzinfo=UTC)
PAGE = Path(__file__).parents[2] / "docs/ledger.md"


def entry(row: Row, gpu_hours: float, *, unknown: bool = False, hour: int = 0, **more: object) -> LedgerEntry:
    held = row.group not in (Group.FREE, Group.OUT_OF_SERVICE) and row is not Row.OUTSIDE
    made = LedgerEntry(
        hour=START + timedelta(hours=hour),
        node="gpu-1",
        pool="a100",
        gpu_model="A100",
        namespace="ml" if held else "",
        workload="Job/ml/train" if held else "",
        row=row,
        unknown=unknown,
        gpu_hours=gpu_hours,
        cost=2 * gpu_hours,
    )
    return replace(made, **more)  # type: ignore[arg-type]  # fields of LedgerEntry


def of(*entries: LedgerEntry) -> Ledger:
    return Ledger(
        version=1,
        start=START,
        end=START + timedelta(hours=4),
        source="Prometheus",
        currency="USD",
        capacity_gpu_hours=math.fsum(item.gpu_hours for item in entries),
        entries=entries,
    )


FLEET = of(
    entry(Row.USEFUL, 20.0),
    entry(Row.USEFUL, 5.0, unknown=True, node="gpu-2", workload="Deployment/web/chat", namespace="web"),
    entry(Row.NO_KERNEL, 15.0, hour=1),
    entry(Row.LOAD, 4.0),
    entry(Row.ABANDONED, 10.0, hour=3),
    entry(Row.SUSPECTED, 6.0, unknown=True),
    entry(Row.OUTSIDE, 2.0),
    entry(Row.USABLE, 30.0, hour=3, gpu_model="H100", pool="h100", cost=None),
    entry(Row.ABSENT, 8.0),
)


@pytest.mark.parametrize("by", By)
def test_each_way_to_sum_has_every_hour_once(by: By) -> None:
    found = sums(FLEET, by)
    assert math.fsum(item.gpu_hours for item in found) == FLEET.capacity_gpu_hours == 100
    assert math.fsum(item.cost or 0.0 for item in found) == 140
    for item in found:
        assert math.fsum((*item.known.values(), *item.unknown.values())) == pytest.approx(item.gpu_hours)
        assert math.fsum(map(item.of_group, Group)) == pytest.approx(item.gpu_hours)
    assert len({item.name for item in found}) == len(found)


def test_namespaces_of_one_team_are_joined_by_their_label() -> None:
    hours = {"a": 1.0, "b": 2.0, "c": 4.0}
    entries = [entry(Row.USEFUL, each, namespace=name, workload=f"Job/{name}/x") for name, each in hours.items()]
    ledger = replace(of(*entries, entry(Row.USABLE, 8.0, namespace="", workload="")), teams={"a": "red", "c": "red"})
    assert [(each.name, each.gpu_hours) for each in sums(ledger, By.TEAM)] == [("", 8.0), ("red", 5.0), ("b", 2.0)]
    assert [ledger.team(name) for name in ("a", "b", "")] == ["red", "b", ""]


def test_what_no_pod_has_is_no_workload() -> None:
    assert [(item.name, item.gpu_hours) for item in sums(FLEET, By.WORKLOAD)] == [
        ("Job/ml/train", 55),
        ("", 40),
        ("Deployment/web/chat", 5),
    ]
    assert sums(FLEET, By.MODEL)[1].cost is None


def test_goodput_is_a_range_where_hours_are_unknown() -> None:
    found = goodput(FLEET)
    assert found.scheduling is not None and found.runtime is not None
    assert found.program is not None and found.useful is not None
    assert (found.scheduling.least, found.scheduling.most) == (0.6, 0.6)
    assert (found.runtime.least, found.runtime.most) == (pytest.approx(40 / 60), pytest.approx(46 / 60))
    assert (found.program.least, found.program.most) == (pytest.approx(20 / 46), pytest.approx(31 / 46))
    assert (found.useful.least, found.useful.most) == (0.2, 0.31)
    assert found.useful.least == total(FLEET).known[Row.USEFUL] / FLEET.capacity_gpu_hours
    assert next(iter(goodput_words(found))) == (
        "Pods had 60 % of the capacity, were at work in 67 to 77 % of that, and kept 43 to 67 % of the SMs active "
        "then: 20 to 31 % of the capacity."
    )


def test_the_factors_multiply_where_all_is_known() -> None:
    found = goodput(of(entry(Row.USEFUL, 6.0), entry(Row.NO_KERNEL, 2.0), entry(Row.PULL, 2.0), entry(Row.USABLE, 6.0)))
    factors = (found.scheduling, found.runtime, found.program)
    assert (
        math.prod(each.least for each in factors if each) == math.prod(each.most for each in factors if each) == 0.375
    )
    assert found.useful is not None and found.useful.least == found.useful.most == 0.375


def test_a_fleet_that_nobody_used_has_no_goodput() -> None:
    found = goodput(of(entry(Row.USABLE, 1.0)))
    assert found.scheduling is not None and found.scheduling.most == 0
    assert (found.runtime, found.program, [*goodput_words(found)]) == (None, None, [])


def test_every_row_has_a_name_and_a_place() -> None:
    assert set(ROWS) == set(Row)
    assert set(GROUPS) == set(Group)
    page = PAGE.read_text()
    told = dict(re.findall(r"^\|[^|]*\| `(\w+)` \| ([^|]+) \|", page, flags=re.MULTILINE))
    assert told == {str(row): name for row, name in ROWS.items()}


def shown(ledger: Ledger, by: By = By.ROW, group: Group | None = None, width: int = 80) -> str:
    console = Console(width=width, file=io.StringIO(), highlight=False)
    console.print(ledger_tables(ledger, by, group=group))
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())  # type: ignore[attr-defined]


def test_the_table_adds_up() -> None:
    lines = shown(FLEET).splitlines()
    assert lines[0] == "Where 100.0 GPU-hours went between 2026-03-02 22:00 and 2026-03-03 02:00 UTC"
    assert lines[2].split() == ["Working", "35.0", "35.0", "%", "5.0", "80.00", "USD"]
    (everything,) = (line for line in lines if line.startswith("All "))
    assert everything.split() == ["All", "89.0", "89.0", "%", "11.0", "140", "USD"]


def test_failures_are_listed_and_other_ends_are_counted() -> None:
    failed = Loss(
        at=datetime(2026, 3, 2, 9, tzinfo=UTC),
        since=None,
        node="gpu-1",
        gpu_model="H100",
        namespace="ml",
        workload="Job/ml/train",
        cause=LossCause.OUT_OF_MEMORY,
        unknown=False,
        gpus=2.0,
        ratio=1.0,
        gpu_hours=7.3,
    )
    unsure = replace(failed, workload="Job/ml/tune", cause=LossCause.UNKNOWN, unknown=True, gpu_hours=3.0)
    ledger = of(entry(Row.LOST, 7.3), entry(Row.LOST, 3.0, unknown=True))
    text = " ".join(shown(replace(ledger, losses=(failed, unsure))).split())
    assert "Job/ml/train gpu-1 03-02 09:00 out of memory 7.3" in text
    assert "Pods of 1 workload ended, and it is not known whether they failed: up to 3.0 GPU-hours" in text
    assert "Job/ml/tune" not in text
    assert "0 to 7.3" in " ".join(shown(replace(ledger, losses=(replace(failed, unknown=True),))).split())
    assert "lost to failures" not in shown(ledger)


def test_the_table_of_names_fits_into_80_columns() -> None:
    text = shown(FLEET, By.TEAM)
    assert "(no Pod)" in text
    assert "cost" in text.splitlines()[1]


def test_the_rows_of_one_group_are_columns() -> None:
    """The hours of other groups are not counted. What is unknown has its own column."""
    starts = (
        entry(Row.PULL, 3.0, image="big"),
        entry(Row.LOAD, 2.0, image="big"),
        entry(Row.LOAD, 1.0, image="big", unknown=True),
        entry(Row.LOAD, 4.0, cost=None),
        entry(Row.USEFUL, 90.0, image="big"),
        entry(Row.USABLE, 5.0),
    )
    lines = [line.split() for line in shown(of(*starts), By.IMAGE, Group.NOT_WORKING).splitlines()]
    assert ["big", "6.0", "3.0", "2.0", "1.0", "12.00", "USD"] in lines
    assert ["(unknown)", "4.0", "–", "4.0", "–", "–"] in lines
    by_row = [line.split() for line in shown(of(*starts), group=Group.NOT_WORKING).splitlines()]
    assert ["image", "pull", "3.0", "2.9", "%", "–", "6.00", "USD"] in by_row
    assert not any("Working" in line for line in by_row)


def test_the_page_shows_what_is_printed() -> None:
    names = ("registry.example.com/ml/pytorch-train:24.10", "registry.example.com/serving/vllm-openai:v0.6.3")
    train, serve = ({"image": name} for name in names)
    hours = [
        entry(Row.LOAD, 46.4, cost=178, **train),
        entry(Row.RESTART, 0.7, cost=2.5, **train),
        entry(Row.LOAD, 0.2, unknown=True, cost=0.5, **train),
        entry(Row.LOAD, 1.1, cost=1.25, **serve),
        entry(Row.GANG, 0.8, cost=0.86, **serve),
    ]
    page = PAGE.read_text()
    example = next(block for block in page.split("```") if "GPU-hours by image" in block).strip()
    printed = shown(of(*hours), By.IMAGE, Group.NOT_WORKING, width=110)
    assert example.splitlines() == printed.strip().splitlines()


def test_no_gpu_is_unknown_and_not_zero() -> None:
    assert "unknown, not zero" in shown(of())


def test_a_day_of_a_workload_in_the_columns_of_opencost() -> None:
    assert [(item.day.day, item.namespace, item.gpu_hours, item.cost) for item in days_of_workloads(FLEET)] == [
        (2, "", 10, 20),
        (2, "ml", 45, 90),
        (2, "web", 5, 10),
        (3, "", 30, None),
        (3, "ml", 10, 20),
    ]


@pytest.fixture(scope="module")
def week(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    telemetry, cluster = write_week(tmp_path_factory.mktemp("week"), "-")
    return ["--telemetry", str(telemetry), "--cluster", str(cluster), "--at", AT.isoformat()]


def said(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["ledger", *arguments], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    return result.stdout


def test_all_forms_have_the_same_hours(week: list[str], tmp_path: Path) -> None:
    text = said(*week)
    assert f"Where {CAPACITY_GPU_HOURS:,.1f} GPU-hours" in text
    assert re.findall(r"^> (Pods had .*)$", PAGE.read_text(), flags=re.MULTILINE)[0] in " ".join(text.split())
    document = msgspec.json.decode(said(*week, "-o", "json"), type=Ledger)
    rows = [*csv.DictReader(said(*week, "-o", "csv").splitlines())]
    frame = gpuwatch.read(week[1], cluster=week[3], at=AT).ledger()
    assert document.capacity_gpu_hours == pytest.approx(CAPACITY_GPU_HOURS)
    for hours in (
        math.fsum(item.gpu_hours for item in document.entries),
        math.fsum(float(row["gpu_hours"]) for row in rows),
        math.fsum(float(row["GPUHours"]) for row in csv.DictReader(said(*week, "-o", "opencost-csv").splitlines())),
        float(frame["gpu_hours"].sum()),
    ):
        assert hours == pytest.approx(CAPACITY_GPU_HOURS, abs=1 / 60)
    assert frame["unknown"].dtype == "boolean"
    assert len(rows) == len(frame) == len(document.entries)


def test_a_capture_of_one_moment_has_no_ledger(tmp_path: Path) -> None:
    page = tmp_path / "page.prom"
    page.write_text('DCGM_FI_DEV_GPU_UTIL{UUID="GPU-1",gpu="0",modelName="A100",Hostname="n"} 5\n')
    result = CliRunner().invoke(cli, ["ledger", "--telemetry", str(page), "--no-cluster", "--days", "1"])
    assert result.exit_code == 1
    assert "unknown, not zero" in result.stdout
