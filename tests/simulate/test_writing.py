"""What is written can be read again: by the project's own readers and by Prometheus' tool."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpuwatch.sources.telemetry.discovery import discover
from gpuwatch.sources.telemetry.inventory import take_inventory
from gpuwatch.sources.telemetry.recording import open_recording
from gpuwatch.sources.telemetry.recording_file import RecordingFile
from gpuwatch.sources.telemetry.recording_part import parse
from gpuwatch.sources.telemetry.series import is_stale
from lab.simulate.fleet import SimulatedFleet, build_fleet
from lab.simulate.plan import FleetPlan
from lab.simulate.writing import write_fleet
from simulate.openmetrics import write_openmetrics

END = datetime(2026, 3, 15, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def fleet() -> SimulatedFleet:
    return build_fleet(FleetPlan(seed=8, end=END, gpus=20, days=0.5, vocabulary="mixed", faults=()))


def test_a_folder_holds_telemetry_cluster_and_truth(fleet: SimulatedFleet, tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "old.json").write_text("{}")
    write_fleet(fleet, tmp_path)
    assert not (tmp_path / "cluster" / "old.json").exists()
    assert (tmp_path / "cluster" / "pods.json").exists()
    truths = json.loads((tmp_path / "truth.json").read_text())
    assert len(truths) == len(fleet.truth)
    assert truths[0]["subject"] == str(fleet.truth[0].subject)
    recording = RecordingFile(tmp_path / "telemetry.parquet")
    assert set(recording.spans_ms) == {series.metric for series in fleet.series()}


def test_telemetry_is_discovered_as_it_was_planned(fleet: SimulatedFleet, tmp_path: Path) -> None:
    write_fleet(fleet, tmp_path)
    source = open_recording([tmp_path / "telemetry.parquet"])
    schema, _ = discover(source, END)
    assert set(schema.vocabularies) == {"dcgm", "dcgm49"}
    assert schema.pod_labels == "exported_*"
    assert schema.interval_seconds == 60
    inventory = take_inventory(source, END, schema, 3600)
    assert {device.uuid for device in inventory.devices} == {c.uuid for m in fleet.machines for c in m.cards}


def test_openmetrics_has_every_sample_but_no_marker(fleet: SimulatedFleet, tmp_path: Path) -> None:
    path = tmp_path / "fleet.om"
    small = build_fleet(FleetPlan(seed=8, end=END, gpus=4, days=0.1))
    write_openmetrics(small, path)
    with path.open() as lines:
        read, problems = parse(lines, 0)
    assert not problems.shown
    written = {(s.metric, frozenset(s.labels.items())): s for s in small.series()}
    assert len(read) == len([s for s in written.values() if not is_stale(s.values).all()])
    for series in read:
        original = written[series.metric, frozenset(series.labels.items())]
        live = ~is_stale(original.values)
        assert series.times_ms.tolist() == original.times_ms[live].tolist()
        assert series.values.tolist() == original.values[live].tolist()
