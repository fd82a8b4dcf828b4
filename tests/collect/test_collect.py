"""One moment from a recording and a cluster: what is missing, by which name, and for how long."""

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

import pytest

from gpuwatch.facts.model.cluster import Cluster, Node
from gpuwatch.facts.model.decision import Finding, Snapshot
from gpuwatch.facts.model.needs import TelemetryNeeds, statistics
from gpuwatch.judge.health import assess as health
from gpuwatch.judge.health.policy import HealthPolicy
from gpuwatch.sources.collect.collect import collect
from telemetry.timeline import AT, Timeline, gpu, uuid

TEMPERATURE = "DCGM_FI_DEV_GPU_TEMP"
HOUR, DAY = 3600, 24 * 3600
POLICY = HealthPolicy()
NEEDS = TelemetryNeeds(
    stats=statistics(health.needs_of_rules(POLICY)),
    state_signals=health.state_signals(HealthPolicy()),
    change_window_seconds=POLICY.change_window_seconds,
    activity_window_seconds=DAY,
    activity_step_seconds=300,
    activity_bound_ratio=0.01,
)


class Nodes:
    """A cluster of nothing but Nodes."""

    description = "a few Nodes"

    def __init__(self, names: Iterable[str], exporter_pods: tuple[str, ...] = ()) -> None:
        self._exporter_pods = exporter_pods
        self._nodes = tuple(Node(name=name, accelerators={"nvidia.com/gpu": 4}) for name in names)

    def read(self, at: datetime) -> Cluster:
        return Cluster(nodes=self._nodes, exporter_pods=self._exporter_pods, known=True)


def machine(timeline: Timeline, host: str, first: int, *, until: dict[int, float] | None = None) -> None:
    """Four GPUs that report since two days, some until so many seconds ago."""
    for number in range(4):
        ended = (until or {}).get(number, 0)
        timeline.add(TEMPERATURE, gpu(first + number, host), 40, ago=2 * DAY, until=ended, ends=ended > 0)


def seen(timeline: Timeline, folder: Path, *nodes: str) -> tuple[Snapshot, dict[str, Finding]]:
    snapshot = collect(timeline.store(folder), Nodes(nodes), AT, NEEDS)
    return snapshot, {found.id: found for found in health.assess_health(snapshot, POLICY) if found.rule == RULE}


RULE = "health.presence"


@pytest.mark.parametrize(
    ("hours", "name"),
    [(0.5, f"device/{uuid(3)}"), (3, f"device/{uuid(3)}"), (23, f"device/{uuid(3)}"), (25, "node/node-a")],
)
def test_a_lost_gpu_is_named_for_a_day_and_counted_for_ever(hours: float, name: str, tmp_path: Path) -> None:
    timeline = Timeline()
    machine(timeline, "node-a", 0, until={3: hours * HOUR})
    machine(timeline, "node-b", 8)
    _, findings = seen(timeline, tmp_path, "node-a", "node-b")
    assert list(findings) == [f"gpu_missing:{name}"]


@pytest.mark.parametrize("hours", [0.5, 3, 12])
def test_a_node_that_left_the_cluster_is_not_missed(hours: float, tmp_path: Path) -> None:
    timeline = Timeline()
    machine(timeline, "node-a", 0, until=dict.fromkeys(range(4), hours * HOUR))
    machine(timeline, "node-b", 8)
    snapshot, findings = seen(timeline, tmp_path, "node-b")
    assert findings == {}
    # Within the hour its host is told to be no Node, and then forgotten.
    assert any("node-a" in gap.what for gap in snapshot.gaps) is (hours < 1)
    assert {(item.shown.node, item.shown.present) for item in snapshot.doubted} == (
        {(None, False)} if hours < 1 else set()
    )


@pytest.mark.parametrize("known", [True, False])
def test_an_exporter_that_the_cluster_knows_holds_no_device(known: bool, tmp_path: Path) -> None:
    timeline = Timeline()
    own = {"namespace": "mon", "pod": "gpu-telemetry-w8kfd", "container": "collector"}
    timeline.add(TEMPERATURE, gpu(0) | own, 40)
    cluster = Nodes(["node-a"], ("mon/gpu-telemetry-b4x9z",) if known else ())
    [found] = collect(timeline.store(tmp_path), cluster, AT, NEEDS).devices
    assert found.pods == (() if known else ("mon/gpu-telemetry-w8kfd",))


@pytest.mark.parametrize("hours", [0.5, 3, 30])
def test_a_node_that_stays_is_missed_as_a_whole(hours: float, tmp_path: Path) -> None:
    timeline = Timeline()
    machine(timeline, "node-a", 0, until=dict.fromkeys(range(4), hours * HOUR))
    machine(timeline, "node-b", 8)
    _, findings = seen(timeline, tmp_path, "node-a", "node-b")
    assert list(findings) == ["exporter_down:node/node-a"]


def test_how_pods_ended_and_when_nodes_booted_are_read(tmp_path: Path) -> None:
    timeline = Timeline()
    machine(timeline, "node-a", 0)
    labels = {"namespace": "ml", "pod": "a", "uid": "1", "job": "ksm"}
    asked = {"node": "node-a", "resource": "nvidia_com_gpu"}
    timeline.add("kube_pod_container_resource_requests", labels | asked, 1, until=5 * HOUR, ago=6 * HOUR, ends=True)
    timeline.add("kube_pod_status_phase", labels | {"phase": "Failed"}, 1, until=5 * HOUR, ago=6 * HOUR, ends=True)
    timeline.add("node_boot_time_seconds", {"instance": "node-a:9100"}, AT.timestamp() - 60)
    snapshot, _ = seen(timeline, tmp_path, "node-a")
    assert [(run.pod, run.node, run.phase) for run in snapshot.pod_runs] == [("ml/a", "node-a", "Failed")]
    assert snapshot.boots == {"node-a": datetime.fromtimestamp(AT.timestamp() - 60, AT.tzinfo)}
