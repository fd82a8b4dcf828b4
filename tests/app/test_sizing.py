"""`recommend`, `mig-plan`, `report` and `explain` as a user runs them, on a fleet with oversized workloads."""

import csv
import io
import json
import re
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.commands import document, gpuwatch
from deliver.receivers import webhook
from gpuwatch.say.deliver import deliver as turns
from gpuwatch.sources.store.store import Store
from lab.simulate.fleet import SimulatedFleet, build_fleet
from lab.simulate.plan import FleetPlan
from lab.simulate.writing import write_fleet
from parts.prometheus_server import ServerBuild, running
from simulate.openmetrics import write_openmetrics

END = datetime(2026, 3, 5, 12, tzinfo=UTC)
PLAN = FleetPlan(
    seed=7,
    end=END,
    gpus=64,
    days=4.0,
    interval_seconds=120,
    extended_share=1.0,
    oversized=6,
    faults=(),
    idle_allocations=3,
)


@pytest.fixture(scope="module")
def fleet() -> SimulatedFleet:
    return build_fleet(PLAN)


@pytest.fixture(scope="module")
def sources(fleet: SimulatedFleet, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    folder = tmp_path_factory.mktemp("fleet")
    write_fleet(fleet, folder)
    return ("--telemetry", str(folder / "telemetry.parquet"), "--cluster", str(folder / "cluster"))


@pytest.fixture(scope="module")
def state(sources: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state after one run, for tests that only read from it."""
    path = tmp_path_factory.mktemp("state") / "gpuwatch.state"
    assert gpuwatch("recommend", *sources, "--state", path, "--days", "4").exit_code == 0
    return path


@pytest.fixture
def answered(sources: tuple[str, ...], state: Path) -> dict[str, Any]:
    return document("recommend", *sources, "--state", state)


def name_of(item: dict[str, Any]) -> str:
    return str(item["key"]["workload"]).partition("/")[2]


@pytest.mark.slow
def test_oversized_workloads_are_advised_and_others_have_a_reason(
    answered: dict[str, Any], fleet: SimulatedFleet
) -> None:
    advised = {name_of(item) for item in answered["recommendations"]}
    planted = {name.partition("/")[2] for name in fleet.oversized}
    assert len(planted & advised) >= 2
    for item in answered["recommendations"]:
        assert item["chosen"]["speed"]["low_ratio"] >= item["target_speed_ratio"]
        assert not item["chosen"]["vetoes"]
        assert (
            item["chosen"]["projected_saving_gpu_hours_per_week"] > 0 or item["chosen"]["projected_saving_per_week"] > 0
        )
        assert item["change"]["patch"] or item["change"]["note"]
    assert all(item["reason"] and item["resolve"] for item in answered["abstentions"])
    keys = [json.dumps(item["key"]) for item in (*answered["recommendations"], *answered["abstentions"])]
    assert len(keys) == len(set(keys))


@pytest.mark.slow
def test_a_kept_state_gives_the_same_advice_as_a_cold_run(sources: tuple[str, ...], answered: dict[str, Any]) -> None:
    cold = document("recommend", *sources, "--days", "4")

    def essence(document: dict[str, Any]) -> list[tuple[str, str]]:
        return [(json.dumps(item["key"]), json.dumps(item["chosen"]["target"])) for item in document["recommendations"]]

    assert essence(cold) == essence(answered)
    assert cold["until"] == answered["until"]


@pytest.mark.slow
def test_a_patch_for_each_recommendation(sources: tuple[str, ...], state: Path, answered: dict[str, Any]) -> None:
    documents = list(yaml.safe_load_all(gpuwatch("recommend", *sources, "--state", state, "-o", "patch").stdout))
    assert [item["metadata"]["name"] for item in documents] == [
        item["change"]["name"] for item in answered["recommendations"]
    ]
    assert all(item["kind"] and item["apiVersion"] for item in documents)


@pytest.mark.slow
def test_a_namespace_a_workload_and_csv(sources: tuple[str, ...], state: Path, answered: dict[str, Any]) -> None:
    one = answered["recommendations"][0]
    namespace = str(one["key"]["workload"]).split("/")[1]
    found = document("recommend", *sources, "--state", state, "-n", namespace)
    keys = [item["key"]["workload"] for item in (*found["recommendations"], *found["abstentions"])]
    assert keys
    assert {key.split("/")[1] for key in keys} == {namespace}
    detail = gpuwatch("recommend", *sources, "--state", state, "--workload", one["key"]["workload"])
    as_the_table_has_it = one["key"]["workload"].partition("/")[2]
    same = gpuwatch("recommend", *sources, "--state", state, "--workload", as_the_table_has_it)
    assert (same.exit_code, same.output) == (0, detail.output)
    assert one["key"]["workload"].rpartition("/")[2] in detail.stdout
    assert "Options" in detail.stdout
    rows = list(csv.DictReader(io.StringIO(gpuwatch("recommend", *sources, "--state", state, "-o", "csv").stdout)))
    advised = answered["recommendations"]
    assert [row["workload"] for row in rows] == [item["key"]["workload"] for item in advised]
    for row, item in zip(rows, advised, strict=True):
        hours = item["chosen"]["projected_saving_gpu_hours_per_week"]
        assert float(row["projected_saving_gpu_hours_per_week"]) == pytest.approx(hours, abs=1e-4)
    assert "cost" not in rows[0]  # of a report's period, which this is not


@pytest.mark.slow
def test_a_workload_that_nobody_knows_is_an_error_that_names_some(sources: tuple[str, ...], state: Path) -> None:
    result = gpuwatch("recommend", *sources, "--state", state, "--workload", "Deployment/no/such")
    assert result.exit_code == 1
    assert "no profile of 'Deployment/no/such'" in result.stderr
    assert "workloads are known, such as" in result.stderr


@pytest.mark.slow
def test_the_mig_plan_is_a_config_for_mig_parted(sources: tuple[str, ...], state: Path) -> None:
    plan = document("mig-plan", *sources, "--state", state)
    assert plan["gpus_after"] >= plan["lower_bound_gpus"]
    config = yaml.safe_load(gpuwatch("mig-plan", *sources, "--state", state, "-o", "mig-parted").stdout)
    assert config["version"] == "v1"
    assert set(plan["node_labels"].values()) <= {*config["mig-configs"], "all-disabled"}
    assert "GPUs" in gpuwatch("mig-plan", *sources, "--state", state).stdout


@pytest.mark.slow
def test_the_report_is_written_in_all_its_forms(sources: tuple[str, ...], state: Path, tmp_path: Path) -> None:
    result = gpuwatch("report", *sources, "--state", state, "--from", "2026-03-02T12:00Z", "--output-dir", tmp_path)
    assert result.exit_code == 0, result.stderr
    folder = next(path for path in tmp_path.iterdir() if path.is_dir())
    assert str(folder / "report.html") in result.stdout
    names = {path.name for path in folder.iterdir()}
    assert names >= {"report.html", "report.md", "report.json", "workloads.csv", "teams.csv", "recommendations.csv"}
    document = json.loads((folder / "report.json").read_text())
    assert document["start"].startswith("2026-03-02T12:00")
    assert document["fleet"]["capacity_gpu_hours"] >= document["fleet"]["allocated_gpu_hours"] > 0
    # 72 h of 64 GPUs, less the minutes that are left to settle and those in which Prometheus was restarted.
    assert 0.95 < document["fleet"]["capacity_gpu_hours"] / (72 * 64) <= 1.0
    assert document["fleet"]["cost"] > 0
    assert document["actions"] is None
    assert "no Remediations were read" in document["actions_note"]
    again = gpuwatch("report", *sources, "--state", state, "--from", "2026-03-02T12:00Z", "--output-dir", tmp_path)
    assert again.exit_code == 0
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 1  # the same report is the same folder


# Apprise's mail plug-in imports it on Pythons that still have it.
@pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")
@pytest.mark.slow
def test_a_destination_that_fails_is_told_and_gets_the_report_from_the_next_run(
    sources: tuple[str, ...], state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "gpuwatch.yaml"
    monkeypatch.setattr(turns, "ATTEMPTS", 1)
    with webhook(503) as receiver:
        delivery = {"folder": str(tmp_path / "kept"), "urls": [f"json://{receiver.address}/hook"]}
        config.write_text(yaml.safe_dump({"delivery": delivery}))
        arguments = ("report", *sources, "--state", state, "--config", config, "--output-dir", tmp_path / "out")
        failed = gpuwatch(*arguments)
        assert failed.exit_code == 1
        assert "not sent to" in failed.stderr
        assert "the next run tries again" in failed.stderr.replace("\n", " ")
        assert len(list((tmp_path / "kept").glob("*/report.html"))) == 1
        sent = gpuwatch(*arguments)
        assert sent.exit_code == 0, sent.stderr
    assert len(receiver.bodies) == 2  # the one that was refused, and the one that was taken
    assert b"Sure saving, a week" in receiver.bodies[-1]


@pytest.mark.slow
def test_a_week_without_data_says_so_and_claims_nothing(sources: tuple[str, ...], tmp_path: Path) -> None:
    report = document("report", *sources, "--at", "2026-01-10T00:00Z", "--output-dir", tmp_path, code=1)
    assert report["fleet"]["capacity_gpu_hours"] is None
    assert any("unknown, not idle" in line for line in report["limits"])
    assert report["top_changes"] == []


@pytest.mark.slow
def test_prices_in_another_currency_and_without_a_model_are_told_and_the_rest_goes_on(
    sources: tuple[str, ...], state: Path, tmp_path: Path
) -> None:
    prices = tmp_path / "prices.csv"
    prices.write_text(
        "name,gpu,gpu_count,price_per_hour,currency,price_date\n"
        "p4de.24xlarge,NVIDIA-A100-SXM4-80GB,8,80.00,USD,2026-03-01\n"
        "p5.48xlarge,NVIDIA-H100-80GB-HBM3,8,50.00,EUR,2026-03-01\n"
        "x9.huge,NVIDIA-Z999,8,50.00,USD,2026-03-01\n"
    )
    config = tmp_path / "gpuwatch.yaml"
    config.write_text(yaml.safe_dump({"prices": str(prices)}))
    arguments = ("report", *sources, "--state", state, "--output-dir", tmp_path / "out")
    # Its hours are read anew: hours that are kept keep the price that they had.
    other = shutil.copy(state, tmp_path / "other.state")
    report = document(*arguments[:-3], other, *arguments[-2:], "--config", config)
    told = " ".join(item["detail"] for item in report["gaps"])
    assert "EUR" in told
    assert "NVIDIA-Z999" in told
    assert (
        report["fleet"]["cost"] > 1.2 * document(*arguments)["fleet"]["cost"]
    )  # 10 USD a GPU-hour instead of the catalog's


@pytest.mark.slow
def test_a_fleet_that_is_paid_in_another_currency_is_summed_in_it(
    sources: tuple[str, ...], state: Path, tmp_path: Path
) -> None:
    prices = tmp_path / "prices.csv"
    prices.write_text(
        "name,gpu,gpu_count,price_per_hour,currency,price_date\n"
        "p4de.24xlarge,NVIDIA-A100-SXM4-80GB,8,16.00,EUR,2026-03-01\n"
    )
    config = tmp_path / "gpuwatch.yaml"
    config.write_text(yaml.safe_dump({"currency": "EUR", "prices": str(prices)}))
    arguments = (*sources, "--state", state, "--config", config)
    report = document("report", *arguments, "--output-dir", tmp_path / "out")
    assert report["currency"] == "EUR"
    # The price file names the A100 alone: what the catalog prices in USD has no price here.
    assert report["fleet"]["cost"] > 0
    assert any("No price is known for H100-SXM5-80GB" in line for line in report["limits"])
    folder = next((tmp_path / "out").glob("*/report.md")).parent
    for name in ("teams.csv", "workloads.csv", "recommendations.csv"):
        rows = list(csv.DictReader((folder / name).read_text().splitlines()))
        assert {row["currency"] for row in rows} <= {"EUR"}
    assert not re.search(r"\d USD", (folder / "report.md").read_text())
    advised = document("recommend", *arguments)
    assert {advised["currency"], *(item["currency"] for item in advised["recommendations"])} == {"EUR"}


@pytest.mark.slow
def test_the_levers_of_the_report_add_up_to_its_waste(sources: tuple[str, ...], state: Path, tmp_path: Path) -> None:
    report = document("report", *sources, "--state", state, "--output-dir", tmp_path)
    account = report["levers"]
    for name in ("gpu_hours", "cost"):
        claimed = sum(item["wasted"][name] or 0.0 for item in (*account["levers"], *account["left"]))
        assert claimed == pytest.approx(account["wasted"][name], rel=1e-9)
    assert account["wasted"]["cost"] == pytest.approx(report["fleet"]["wasted_cost"])
    parts = ("useful", "unknown", "out_of_service", "wasted")
    assert sum(account[part]["gpu_hours"] for part in parts) == pytest.approx(report["fleet"]["capacity_gpu_hours"])
    assert any(item["sureness"] == "sure" for item in account["levers"])
    for name in ("allocated_gpu_hours", "idle_gpu_hours"):
        teams = sum(team["use"][name] for team in report["teams"])
        assert report["fleet"][name] == pytest.approx(teams)
        assert sum(item[name] for item in report["workloads"]) == pytest.approx(teams)


@pytest.mark.slow
def test_a_damaged_state_is_set_aside_and_the_run_goes_on(
    sources: tuple[str, ...], state: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "gpuwatch.state"
    copy.write_bytes(state.read_bytes()[:6000])
    gaps_told = document("recommend", *sources, "--state", copy, "--days", "4")["gaps"]
    assert any("damaged" in item["detail"] for item in gaps_told)
    assert list(tmp_path.glob("*damaged*"))
    found, gaps = Store.open(copy).load_book()
    assert gaps == ()
    assert found is not None
    assert len(found.profiles) > 10


def test_a_state_that_cannot_be_a_file_is_refused(sources: tuple[str, ...], tmp_path: Path) -> None:
    result = gpuwatch("recommend", *sources, "--state", tmp_path / "no" / "such" / "gpuwatch.state")
    assert result.exit_code == 1
    assert "no/such" in result.stderr.replace("\n", "")


def test_one_moment_is_no_basis_for_profiles(sources: tuple[str, ...], tmp_path: Path) -> None:
    capture = tmp_path / "moment.json.gz"
    assert gpuwatch("capture", *sources, "--output-file", capture).exit_code == 0
    result = gpuwatch("recommend", "--telemetry", capture)
    assert result.exit_code == 1
    assert "holds one moment" in result.stderr


@pytest.mark.slow
def test_explain_tells_the_right_size(sources: tuple[str, ...], state: Path, answered: dict[str, Any]) -> None:
    live = [item for item in answered["recommendations"] if not item["key"]["workload"].startswith("StatefulSet")]
    workload = live[0]["key"]["workload"]
    result = gpuwatch("explain", f"workload/{workload}", *sources, "--state", state)
    assert result.exit_code == 0, result.stderr
    assert "Right size" in result.stdout
    assert "Options" in result.stdout
    explained = document("explain", f"workload/{workload}", *sources, "--state", state)
    assert explained["sizing"][0]["key"]["workload"] == workload


@pytest.mark.slow
def test_from_after_to_is_refused(sources: tuple[str, ...], tmp_path: Path) -> None:
    result = gpuwatch(
        "report", *sources, "--from", "2026-03-05T00:00Z", "--to", "2026-03-04T00:00Z", "--output-dir", tmp_path
    )
    assert result.exit_code == 2
    assert "is not before" in result.stderr


@pytest.mark.slow
def test_a_real_prometheus_gives_the_advice_of_the_recording(newest_prometheus: ServerBuild, tmp_path: Path) -> None:
    plan = replace(PLAN, seed=5, gpus=8, days=3.5, interval_seconds=300, oversized=4, idle_allocations=0)
    fleet = build_fleet(plan)
    write_fleet(fleet, tmp_path)
    write_openmetrics(fleet, tmp_path / "fleet.om")
    common = ("--cluster", tmp_path / "cluster", "--days", "3.5")
    recorded = document("recommend", "--telemetry", tmp_path / "telemetry.parquet", *common)
    with running(newest_prometheus, tmp_path / "fleet.om") as url:
        live = document("recommend", "--prometheus", url, "--at", recorded["at"], *common)

    def essence(document: dict[str, Any]) -> list[tuple[str, str, str]]:
        return sorted(
            [
                (json.dumps(item["key"]), "advised", item["chosen"]["target"]["gpu_model"])
                for item in document["recommendations"]
            ]
            + [(json.dumps(item["key"]), "left", item["kind"]) for item in document["abstentions"]]
        )

    assert essence(recorded)
    assert essence(live) == essence(recorded)
