"""The weekly report for machines."""

import csv
import io
import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import jsonschema
import msgspec
import pytest
import yaml

from gpuwatch.facts.model.decision import Subject, SubjectKind
from gpuwatch.facts.model.remediation import Phase
from gpuwatch.facts.model.weekly import WeeklyReport
from gpuwatch.say.machine import FINDINGS, to_csv, to_json
from gpuwatch.say.weekly_machine import weekly_csvs, weekly_schema
from plan.fleet import device, sick
from report.weekly_example import FORMULA, HOSTILE, empty_report, free_report, full_report

SCHEMA = Path(__file__).parents[2] / "docs" / "weekly-v1.schema.json"


def rows(report: WeeklyReport, file: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(weekly_csvs(report)[file])))


@pytest.mark.parametrize("make", [full_report, empty_report, free_report])
def test_the_json_keeps_to_its_schema_and_reads_back(make: object) -> None:
    assert callable(make)
    report = make()
    text = to_json(report)
    jsonschema.Draft202012Validator(weekly_schema()).validate(json.loads(text))
    assert msgspec.json.decode(text, type=WeeklyReport) == report


def test_the_schema_refuses_what_is_none() -> None:
    broken = json.loads(to_json(full_report()))
    broken["fleet"]["allocated_gpu_hours"] = "much"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(weekly_schema()).validate(broken)


def test_the_published_schema_is_that_of_the_code() -> None:
    assert SCHEMA.read_text(encoding="utf-8") == to_json(weekly_schema()) + "\n"


def test_unknown_is_null_and_an_empty_cell_never_zero() -> None:
    report = full_report()
    assert json.loads(to_json(empty_report()))["fleet"]["capacity_gpu_hours"] is None
    found = {row["workload"]: row for row in rows(report, "workloads.csv")}
    for item in report.workloads:
        row = found[item.workload.lstrip("=")]
        assert (row["busy_ratio"] == "") is (item.busy_ratio is None)
        assert (row["sm_active_ratio"] == "") is (item.sm_active_ratio is None)
        assert (row["cost"] == "") is (item.cost is None)
        assert (row["memory_peak_bytes"] == "") is (item.memory_peak_bytes is None)
    assert {row["team"] for row in rows(report, "teams.csv") if row["sm_gpu_hours"] == ""} == {"fraud"}


def test_not_a_number_is_unknown() -> None:
    report = full_report()
    broken = replace(report.workloads[0], allocated_gpu_hours=float("nan"), busy_ratio=float("inf"))
    row = rows(replace(report, workloads=(broken,)), "workloads.csv")[0]
    assert (row["allocated_gpu_hours"], row["busy_ratio"]) == ("", "")


@pytest.mark.parametrize("text", [FORMULA, "+1", "-1+cmd", "@SUM(1)", "\t=1", "\r=1", "\n=1", "＝1"])
def test_text_is_never_a_formula(text: str) -> None:
    report = full_report()
    advised = next(item for item in report.workloads if item.recommendation)
    assert advised.recommendation is not None
    item = replace(
        advised,
        workload=text,
        namespace=text,
        gpu_model=text,
        recommendation=replace(
            advised.recommendation, reason=text, key=replace(advised.recommendation.key, workload=text, container=text)
        ),
    )
    team = replace(report.teams[0], team=text, gpu_models={text: 1.0})
    assert report.actions
    acted = (replace(report.actions[0], target=text, said=text),)
    levers = replace(report.levers, levers=(replace(report.levers.levers[0], subject=text, needs=text),))
    given = replace(report, workloads=(item,), teams=(team,), actions=acted, levers=levers)
    for name, content in weekly_csvs(given).items():
        cells = [cell for row in csv.reader(io.StringIO(content, newline="")) for cell in row]
        assert f"'{text}" in cells, name
        assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n", "＝"))]


def test_findings_are_not_run_as_formulas_either() -> None:
    text = "=cmd|'/C calc'!A0"
    item = sick(device("n0", 0), subject=Subject(SubjectKind.NODE, text), summary=text)
    (row,) = csv.DictReader(io.StringIO(to_csv(FINDINGS, (item,))))
    assert {key for key, cell in row.items() if cell == f"'{text}"} == {"subject", "summary"}
    assert not [cell for cell in row.values() if cell.startswith("=")]


def test_a_negative_number_stays_a_number() -> None:
    report = full_report()
    advised = next(item for item in report.workloads if item.recommendation)
    assert advised.recommendation is not None
    chosen = replace(advised.recommendation.chosen, projected_saving_per_week=-12.5)
    item = replace(advised, recommendation=replace(advised.recommendation, chosen=chosen))
    assert rows(replace(report, workloads=(item,)), "workloads.csv")[0]["projected_saving_per_week"] == "-12.5"


def test_every_workload_team_and_recommendation_is_there() -> None:
    report = full_report()
    assert len(rows(report, "workloads.csv")) == len(report.workloads)
    assert len(rows(report, "teams.csv")) == len(report.teams)
    advised = rows(report, "recommendations.csv")
    assert len(advised) == sum(1 for item in report.workloads if item.recommendation)
    change = yaml.safe_load(advised[0]["change_yaml"])
    assert change["metadata"]["namespace"] == advised[0]["namespace"]
    assert any(HOSTILE in row["workload"] for row in rows(report, "workloads.csv"))


def test_every_action_is_there_and_its_phase_and_what_it_released() -> None:
    report = full_report()
    assert report.actions
    found = {row["name"]: row for row in rows(report, "actions.csv")}
    assert len(found) == len(report.actions) == len(Phase)
    for item in report.actions:
        row = found[item.name]
        assert (row["phase"], row["mode"], row["gpus"]) == (str(item.phase), str(item.mode), "8")
        assert float(row["released_gpu_hours"]) == item.released_gpu_hours
        assert datetime.fromisoformat(row["proposed_at"]) == item.proposed_at


def test_an_empty_week_has_heads_and_no_rows() -> None:
    for content in weekly_csvs(empty_report()).values():
        assert content.count("\n") == 1
