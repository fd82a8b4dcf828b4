"""The same fleet from a real Prometheus and from a recording: one and the same analysis."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpuwatch.app.cli.main import cli
from lab.simulate.fault_kinds import FaultKind
from lab.simulate.fleet import build_fleet
from lab.simulate.plan import FleetPlan
from lab.simulate.writing import write_fleet
from parts.prometheus_server import ServerBuild, running
from simulate.openmetrics import write_openmetrics

END = datetime(2026, 3, 2, 12, tzinfo=UTC)


def analysis(*arguments: str | Path) -> dict[str, Any]:
    command = ["analyze", "-o", "json", "--at", END.isoformat(), *(str(item) for item in arguments)]
    result = CliRunner().invoke(cli, command, catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def essence(document: dict[str, Any]) -> list[tuple[Any, ...]]:
    """What is concluded, and about what; values may differ in the last digits, and the backend's name does differ."""
    return sorted(
        (item["kind"], item["subject"]["name"], item["verdict"], item["severity"], item["advice"], item["node"] or "")
        for item in document["findings"]
    )


@pytest.mark.slow
def test_the_live_server_and_the_recording_agree(prometheus_build: ServerBuild, tmp_path: Path) -> None:
    plan = FleetPlan(
        seed=21,
        end=END,
        gpus=16,
        days=0.5,
        idle_allocations=4,
        faults=(FaultKind.ROW_REMAP_FAILED, FaultKind.PCIE_REPLAYS, FaultKind.EXPORTER_DOWN),
    )
    fleet = build_fleet(plan)
    write_fleet(fleet, tmp_path)
    write_openmetrics(fleet, tmp_path / "fleet.om")
    cluster = ("--cluster", tmp_path / "cluster")
    recorded = analysis("--telemetry", tmp_path / "telemetry.parquet", *cluster)
    with running(prometheus_build, tmp_path / "fleet.om") as url:
        live = analysis("--prometheus", url, *cluster)
    assert essence(live) == essence(recorded)
    assert [item["id"] for item in live["devices"]] == [item["id"] for item in recorded["devices"]]
    assert {item["kind"] for item in live["findings"]} >= {"row_remap"}
    targets = [
        [(item["candidate"]["target"], bool(item["refusals"])) for item in each["plan"]["items"]]
        for each in (live, recorded)
    ]
    assert targets[0] == targets[1]
