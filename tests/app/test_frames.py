"""`gpuwatch.read` and -o parquet: the documents' examples as they stand, every column, and every source."""

import io
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd
import pytest

import gpuwatch
from app import commands
from gpuwatch.account.fleet_cost import fleet_cost
from gpuwatch.app.errors import SourceError
from gpuwatch.app.sizing import price_list
from gpuwatch.facts.model.decision import Verdict
from gpuwatch.say.machine import to_json
from gpuwatch.say.weekly_machine import weekly_csvs
from lab.simulate.fleet import build_fleet
from lab.simulate.plan import FleetPlan
from lab.simulate.writing import write_fleet
from parts.prometheus_server import ServerBuild, running
from report.weekly_example import full_report
from simulate.openmetrics import write_openmetrics

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "frames.md").read_text(encoding="utf-8")
IN_PERIOD = ["cost"]
"""Columns of advice() that only a report's period gives."""
TABLES = ("findings", "allocations", "profiles", "workloads", "advice", "cost", "gaps")
PLAN = FleetPlan(seed=2, end=datetime(2026, 3, 2, 12, tzinfo=UTC), gpus=24, days=1.5, oversized=2, idle_allocations=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording with its cluster, a capture, an analysis and a report, named as on the page."""
    folder = tmp_path_factory.mktemp("frames")
    write_fleet(build_fleet(PLAN), folder)
    sources = ("--telemetry", folder / "telemetry.parquet", "--cluster", folder / "cluster")
    assert commands.gpuwatch("capture", *sources, "--output-file", folder / "incident.json.gz").exit_code == 0
    (folder / "analysis.json").write_text(commands.gpuwatch("analyze", *sources, "-o", "json").stdout)
    (folder / "report.json").write_text(to_json(full_report()))
    return folder


@pytest.fixture(scope="module")
def fleet(folder: Path) -> gpuwatch.Frames:
    return gpuwatch.read(folder / "telemetry.parquet", cluster=folder / "cluster", days=1)


def examples(text: str) -> str:
    return "\n".join(re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL))


def test_the_examples_of_the_page_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    names: dict[str, pd.DataFrame] = {}
    exec(examples(PAGE), names)
    assert len(names["idle"]) > 0
    assert {"idle", "allocated"} <= set(names["by_team"].columns)
    assert (names["small"]["sm_active_ratio"] < 0.2).all()
    assert len(pd.read_csv("allocations.csv")) > 0
    assert len(pd.read_parquet("advice.parquet")) > 0


@pytest.mark.slow
def test_the_example_of_the_readme_runs_on_a_prometheus(
    newest_prometheus: ServerBuild, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = replace(PLAN, end=datetime.now(UTC) + timedelta(minutes=10), gpus=8, days=0.2)
    write_openmetrics(build_fleet(plan), tmp_path / "fleet.om")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    code = examples((ROOT / "README.md").read_text(encoding="utf-8"))
    assert "http://localhost:9090" in code
    names: dict[str, gpuwatch.Frames] = {}
    with running(newest_prometheus, tmp_path / "fleet.om") as url:
        exec(code.replace("http://localhost:9090", url), names)
    assert len(pd.read_parquet("teams.parquet")) > 0


@pytest.mark.parametrize("table", TABLES)
def test_the_page_has_the_columns_and_their_dtypes_in_order(fleet: gpuwatch.Frames, table: str) -> None:
    section = PAGE.partition(f"\n## {table}()\n")[2].partition("\n## ")[0]
    told = re.findall(r"^\| `(\w+)` \| ([^|]+) \| [^|]+ \|$", section, flags=re.MULTILINE)
    assert told == [(name, str(dtype)) for name, dtype in getattr(fleet, table)().dtypes.items()]


def test_frames_say_what_the_analysis_says(fleet: gpuwatch.Frames, folder: Path) -> None:
    analysis = fleet.analysis
    assert analysis is not None
    findings = fleet.findings()
    assert findings["id"].tolist() == [item.id for item in analysis.findings]
    assert findings["confidence_ratio"].tolist() == [item.confidence_ratio for item in analysis.findings]
    held = fleet.allocations().set_index("pod")
    cost = fleet_cost(analysis, price_list(fleet.settings))
    assert held["gpus"].sum() == pytest.approx(sum(cost.allocated.values()))
    by_state = held.groupby(["namespace", "state"])["cost_per_hour"].sum()
    assert {key: by_state[key] for key in by_state.index} == pytest.approx(
        {key: cost.cost[key] for key in by_state.index}
    )
    idle = {ref for item in analysis.findings if item.verdict is Verdict.IDLE for ref in item.pods}
    assert set(held.index[held["state"] == "idle"]) == idle != set()
    assert (held["cost_per_hour"] > 0).all()
    profiles = fleet.profiles()
    assert len(profiles) > 5
    assert profiles["busy_ratio"].dropna().between(0, 1).all()
    assert fleet.cost()["allocated_gpu_hours"].sum() == pytest.approx(fleet.workloads()["allocated_gpu_hours"].sum())
    for saved in ("incident.json.gz", "analysis.json"):
        again = gpuwatch.read(folder / saved)
        pd.testing.assert_frame_equal(again.findings(), findings)
        pd.testing.assert_frame_equal(again.allocations().set_index("pod"), held)
        # With what the profiles and the ledger could not read, which a saved analysis does not have.
        assert set(again.gaps().itertuples(index=False)) <= set(fleet.gaps().itertuples(index=False))


def test_a_saved_report_gives_what_its_csv_files_have(folder: Path) -> None:
    report, saved = full_report(), gpuwatch.read(folder / "report.json")
    for table, file in (("workloads", "workloads.csv"), ("advice", "recommendations.csv"), ("cost", "teams.csv")):
        frame, csv = getattr(saved, table)(), pd.read_csv(io.StringIO(weekly_csvs(report)[file]))
        assert list(frame.columns) == list(csv.columns)
        for name in frame.columns[frame.dtypes == "float64"]:
            pd.testing.assert_series_equal(frame[name], csv[name].astype("float64"), atol=1e-4)
    assert saved.cost()["sm_gpu_hours"].isna().any()  # not exported there: unknown, and not 0
    assert len(saved.findings()) == len(report.degraded) + len(report.idle) + len(report.suspected)


def test_a_table_that_a_source_lacks_names_a_source_that_has_it(folder: Path) -> None:
    for file, table in (("incident.json.gz", "cost"), ("analysis.json", "advice"), ("report.json", "profiles")):
        with pytest.raises(SourceError, match=f"{file} has no profiles, which this needs: read a Prometheus or a rec"):
            getattr(gpuwatch.read(folder / file), table)()
    with pytest.raises(SourceError, match=r"report\.json is a report, which has no allocations: read an analysis or"):
        gpuwatch.read(folder / "report.json").allocations()
    with pytest.raises(SourceError, match="stands for itself"):
        gpuwatch.read(folder / "report.json", no_cluster=True)
    with pytest.raises(ValueError, match="no time zone"):
        gpuwatch.read(folder / "telemetry.parquet", at=datetime(2026, 3, 2))  # noqa: DTZ001
    with pytest.raises(AttributeError, match="no attribute 'raed'"):
        gpuwatch.raed  # noqa: B018


def test_files_of_a_newer_version_or_cut_short_are_refused(folder: Path, tmp_path: Path) -> None:
    text = (folder / "report.json").read_text()
    newer, damaged = tmp_path / "newer.json", tmp_path / "damaged.json"
    newer.write_text(text.replace('"version": 1', '"version": 99', 1))
    damaged.write_text(text.replace('"teams"', '"tames"', 1))
    with pytest.raises(SourceError, match=r"newer\.json: of a newer gpuwatch \(version 99, here up to 1\); upgrade"):
        gpuwatch.read(newer)
    with pytest.raises(SourceError, match=r"damaged\.json: damaged or incomplete .*`teams`"):
        gpuwatch.read(damaged)


def test_a_prometheus_that_does_not_answer_is_an_error_and_no_empty_table(tmp_path: Path) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text("prometheus: {url: 'http://127.0.0.1:9', retries: 0}")
    with pytest.raises(SourceError, match=r"127\.0\.0\.1:9"):
        gpuwatch.read(config=settings, no_cluster=True)


def test_parquet_of_the_commands_is_the_frame(fleet: gpuwatch.Frames, folder: Path, tmp_path: Path) -> None:
    sources = ("--telemetry", folder / "telemetry.parquet", "--cluster", folder / "cluster")
    out = tmp_path / "findings.parquet"
    done = commands.gpuwatch("analyze", *sources, "-o", "parquet", "--output-file", out)
    assert (done.exit_code, done.stdout) == (0, "")
    assert f"wrote {out}: {len(fleet.findings())} rows" in done.stderr
    pd.testing.assert_frame_equal(pd.read_parquet(out), fleet.findings())
    piped = commands.gpuwatch("recommend", *sources, "--days", "1", "-o", "parquet")
    pd.testing.assert_frame_equal(
        pd.read_parquet(io.BytesIO(piped.stdout_bytes)), fleet.advice().drop(columns=IN_PERIOD)
    )
    kept = tmp_path / "reports"
    done = commands.gpuwatch("report", *sources, "--from", "2026-03-01T12:00Z", "--output-dir", kept, "-o", "parquet")
    assert done.exit_code == 0, done.stderr
    (teams,) = kept.glob("*/teams.parquet")
    assert {path.stem for path in teams.parent.glob("*.parquet")} == {path.stem for path in teams.parent.glob("*.csv")}
    assert pd.read_parquet(teams)["allocated_gpu_hours"].sum() > 0
    wrong = commands.gpuwatch("analyze", *sources, "--output-file", out)
    assert wrong.exit_code == 2
    assert "--output-file is for -o csv and -o parquet; for table, redirect with > FILE." in wrong.stderr
