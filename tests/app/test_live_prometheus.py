"""The same fleet from a real Prometheus and from a recording: one and the same analysis."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from app.commands import document
from lab.simulate.fault_kinds import FaultKind
from lab.simulate.fleet import build_fleet
from lab.simulate.plan import FleetPlan
from lab.simulate.writing import write_fleet
from parts.prometheus_server import ServerBuild, running
from simulate.openmetrics import write_openmetrics

END = datetime(2026, 3, 2, 12, tzinfo=UTC)


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
    more = ("--cluster", tmp_path / "cluster", "--at", END.isoformat())
    recorded = document("analyze", "--telemetry", tmp_path / "telemetry.parquet", *more)
    with running(prometheus_build, tmp_path / "fleet.om") as url:
        live = document("analyze", "--prometheus", url, *more)
    assert essence(live) == essence(recorded)
    assert [item["id"] for item in live["devices"]] == [item["id"] for item in recorded["devices"]]
    assert {item["kind"] for item in live["findings"]} >= {"row_remap"}
    targets = [
        [(item["candidate"]["target"], bool(item["refusals"])) for item in each["plan"]["items"]]
        for each in (live, recorded)
    ]
    assert targets[0] == targets[1]
