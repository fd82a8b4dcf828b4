"""The past of Nodes and containers, as kube-state-metrics tells it in both ways of scraping it. Steps of 10 minutes."""

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpuwatch.facts.frameworks.keys import PREFIX
from gpuwatch.facts.model.ledger import ENDINGS, Checkpoint, ClusterHistory, LossCause, Row
from gpuwatch.facts.model.telemetry import Gap, GapKind
from gpuwatch.sources.telemetry.cluster_history import cluster_history
from gpuwatch.sources.telemetry.samples import SampleStore
from telemetry.timeline import AT, NOW, Timeline, Witness

TARGET = {"job": "ksm", "instance": "10.0.0.9:8080"}
OWN = {"namespace": "monitoring", "pod": "ksm-0", "container": "ksm", "node": "cpu-1"}
STEP, COUNT = 600, 6
UNKNOWN = None


def history(store: SampleStore) -> tuple[ClusterHistory, tuple[Gap, ...]]:
    """Without the gap that says that gpuwatch does not count free GPUs."""
    found, gaps = read(store)
    return found, tuple(gap for gap in gaps if (gap.kind, gap.what) != NO_FREE)


NO_FREE = (GapKind.SIGNAL_MISSING, "history of free GPUs")


def read(store: SampleStore) -> tuple[ClusterHistory, tuple[Gap, ...]]:
    begin = AT - timedelta(seconds=STEP * COUNT)
    return cluster_history(store, begin, AT, STEP, {"gpu-1", "gpu-2"}, {("ml/train", "main"), ("ml/other", "main")})


def steps(values: object) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values]  # type: ignore[attr-defined]  # an array


def named(exported: bool, **labels: str) -> dict[str, str]:
    """Labels of one row in either way of scraping: with honorLabels, or with the exporter's own in the plain ones."""
    if not exported:
        return TARGET | labels
    plain = {name: value for name, value in labels.items() if name not in OWN}
    return TARGET | OWN | plain | {f"exported_{name}": value for name, value in labels.items() if name in OWN and value}


def step(number: float) -> float:
    """Seconds before NOW at which this step begins."""
    return (COUNT - number) * STEP


def there(timeline: Timeline, exported: bool, node: str = "gpu-1", until: float = COUNT) -> Timeline:
    of = named(exported, node=node)
    gpus = of | {"resource": "nvidia_com_gpu", "unit": "integer"}
    left, ends = step(until), until < COUNT
    timeline.add("kube_node_status_condition", of | {"condition": "Ready", "status": "true"}, 1, until=left, ends=ends)
    timeline.add("kube_node_spec_unschedulable", of, 0, until=left, ends=ends)
    timeline.add("kube_node_status_capacity", gpus, 8, until=left, ends=ends)
    timeline.add("kube_node_status_capacity", of | {"resource": "cpu"}, 64, until=left, ends=ends)
    return timeline.add("kube_node_status_allocatable", gpus, 8, until=left, ends=ends)


@pytest.mark.parametrize("exported", [False, True])
def test_nodes(exported: bool, tmp_path: Path) -> None:
    timeline = there(there(Timeline(), exported), exported, "gpu-2", until=3)
    of = named(exported, node="gpu-1")
    timeline.series.pop(("kube_node_spec_unschedulable", tuple(sorted(of.items()))))
    timeline.add("kube_node_spec_unschedulable", of, lambda ago: float(ago < step(4)))
    slices = of | {"resource": "nvidia_com_mig_1g_10gb"}
    timeline.add("kube_node_status_capacity", slices, 2).add("kube_node_status_allocatable", slices, 1)
    taint = of | {"key": f"{PREFIX}degraded", "effect": "NoSchedule"}
    timeline.add("kube_node_spec_taint", taint, 1, ago=step(1), until=step(2), ends=True)
    timeline.add("kube_node_spec_taint", of | {"key": "nvidia.com/gpu", "effect": "NoSchedule"}, 1)
    found, gaps = history(timeline.store(tmp_path))
    assert gaps == ()
    one, gone = found.nodes["gpu-1"], found.nodes["gpu-2"]
    assert steps(one.ready) == [1] * 6
    assert steps(one.cordoned) == [0, 1, 0, 0, 1, 1]
    assert (steps(one.capacity), steps(one.allocatable)) == ([10] * 6, [9] * 6)
    assert steps(gone.ready) == [1, 1, 1, 0, 0, 0]
    assert steps(gone.capacity) == [8, 8, 8, UNKNOWN, UNKNOWN, UNKNOWN]


@pytest.mark.parametrize("exported", [False, True])
def test_the_life_of_a_container(exported: bool, tmp_path: Path) -> None:
    of = named(exported, namespace="ml", pod="train") | {"uid": "1"}
    main = named(exported, namespace="ml", pod="train", container="main") | {"uid": "1"}
    first, second = NOW - step(2.5), NOW - step(4.5)
    timeline = there(Timeline(), exported)
    runs = lambda ago: float(step(4) <= ago < step(2.5) or ago < step(4.5))  # noqa: E731  # a line of its own
    timeline.add("kube_pod_container_status_running", main, runs, ago=step(1))
    timeline.add("kube_pod_container_state_started", main, first, ago=step(2.5), until=step(4), ends=True)
    timeline.add("kube_pod_container_state_started", main, second, ago=step(4.5))
    set_up = named(exported, namespace="ml", pod="train", container="set-up") | {"uid": "1"}
    timeline.add("kube_pod_init_container_status_running", set_up, lambda ago: float(ago >= step(2)), ago=step(1))
    timeline.add("kube_pod_deletion_timestamp", of, NOW, ago=step(5))
    found, gaps = history(timeline.store(tmp_path))
    assert gaps == ()
    assert {*found.containers} == {("ml/train", "main")}
    life = found.containers["ml/train", "main"]
    assert life.first == 1
    assert steps(life.running) == [0, 1, 1, 1, 1]
    assert steps(life.init) == [1, 0, 0, 0, 0]
    assert steps(life.started) == [0, first, first, second, second]
    assert steps(life.deleting) == [0, 0, 0, 0, 1]


@pytest.mark.parametrize("exported", [False, True])
def test_how_runs_of_a_container_ended(exported: bool, tmp_path: Path) -> None:
    """While it runs again, or waits to, how it ended before; else how it ended for good. It ends, and then waits."""
    main = named(exported, namespace="ml", pod="train", container="main") | {"uid": "1"}
    timeline = there(Timeline(), exported)
    runs = lambda ago: float(int((COUNT * STEP - ago - 1) // STEP) % 2 == 0)  # noqa: E731  # every other step
    timeline.add("kube_pod_container_status_running", main, runs)
    timeline.add("kube_pod_container_state_started", main, 9.0, until=step(3), ends=True)
    timeline.add("kube_pod_container_state_started", main, 99.0, ago=step(4))
    before = "kube_pod_container_status_last_terminated_reason"
    timeline.add(before, main | {"reason": "OOMKilled"}, 1, ago=step(1), until=step(3), ends=True)
    timeline.add(before, main | {"reason": "Error"}, 1, ago=step(3))
    timeline.add("kube_pod_container_status_terminated_reason", main | {"reason": "Completed"}, 1, ago=step(5))
    life = history(timeline.store(tmp_path))[0].containers["ml/train", "main"]
    assert steps(life.running) == [1, 0, 1, 0, 1, 0]
    codes = [ENDINGS.index(cause) for cause in (LossCause.OUT_OF_MEMORY, LossCause.ERROR, None)]
    assert steps(life.ended) == [UNKNOWN, UNKNOWN, codes[0], codes[1], codes[1], codes[2]]


@pytest.mark.parametrize("exported", [False, True])
def test_the_newest_image_of_a_container(exported: bool, tmp_path: Path) -> None:
    """As its spec names it, which older kube-state-metrics do not tell."""
    main, old = (named(exported, namespace="ml", pod=name, container="main") for name in ("train", "other"))
    timeline = there(Timeline(), exported)
    for of in (main, old):
        timeline.add("kube_pod_container_status_running", of | {"uid": "1"}, 1)
    info, digest = "kube_pod_container_info", {"uid": "1", "image": "sha256:1f0c"}
    timeline.add(info, main | digest | {"image_spec": "registry.example/train:v2"}, 1, until=step(2), ends=True)
    timeline.add(info, main | digest | {"image_spec": "registry.example/train:v1"}, 1, ago=step(2))
    timeline.add(info, old | digest, 1)
    found = history(timeline.store(tmp_path))[0].containers
    images = {pod: each.image for (pod, _), each in found.items()}
    assert images == {"ml/train": "registry.example/train:v1", "ml/other": "sha256:1f0c"}


@pytest.mark.parametrize("exported", [False, True])
def test_checkpoints_that_annotations_of_pods_name(exported: bool, tmp_path: Path) -> None:
    """kube_pod_annotations has a series for each value of the annotation."""
    timeline = there(Timeline(), exported)
    of = named(exported, namespace="ml", pod="train") | {"uid": "1"}
    saved = "annotation_gpuwatch_dev_last_checkpoint"
    timeline.add("kube_pod_annotations", of | {saved: "2026-01-05T03:00:00Z"}, 1, until=step(2), ends=True)
    timeline.add("kube_pod_annotations", of | {saved: "2026-01-05T03:30:00Z"}, 1, ago=step(2))
    timeline.add("kube_pod_annotations", of | {saved: "soon"}, 1)
    timeline.add("kube_pod_annotations", named(exported, namespace="ml", pod="other"), 1)
    found, gaps = history(timeline.store(tmp_path))
    assert gaps == ()
    begin = found.start
    assert found.checkpoints == {
        "ml/train": (
            Checkpoint(seen=begin + timedelta(seconds=2 * STEP), at=datetime(2026, 1, 5, 3, tzinfo=UTC)),
            Checkpoint(seen=begin + timedelta(seconds=6 * STEP), at=datetime(2026, 1, 5, 3, 30, tzinfo=UTC)),
        )
    }


def test_a_pod_made_anew_under_the_same_name_has_not_started(tmp_path: Path) -> None:
    main = named(False, namespace="ml", pod="train", container="main")
    timeline = there(Timeline(), False)
    timeline.add("kube_pod_container_status_running", main | {"uid": "1"}, 1, until=step(3), ends=True)
    timeline.add("kube_pod_container_state_started", main | {"uid": "1"}, NOW - 9000, until=step(3), ends=True)
    timeline.add(
        "kube_pod_container_status_running", main | {"uid": "2"}, lambda ago: float(ago < step(5)), ago=step(3)
    )
    timeline.add("kube_pod_container_state_started", main | {"uid": "2"}, NOW - step(5), ago=step(5))
    life = history(timeline.store(tmp_path))[0].containers["ml/train", "main"]
    assert steps(life.started) == [NOW - 9000] * 3 + [0, 0, NOW - step(5)]


def test_a_start_that_is_not_exported_is_unknown(tmp_path: Path) -> None:
    main = named(False, namespace="ml", pod="train", container="main")
    timeline = there(Timeline(), False)
    timeline.add("kube_pod_container_status_running", main, lambda ago: float(ago < step(2)))
    life = history(timeline.store(tmp_path))[0].containers["ml/train", "main"]
    assert steps(life.started) == [0, 0, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN]


def test_a_container_that_crashes_between_scrapes_has_started(tmp_path: Path) -> None:
    main = named(False, namespace="ml", pod="train", container="main")
    timeline = there(Timeline(), False).add("kube_pod_container_status_running", main, 0)
    timeline.add("kube_pod_container_status_restarts_total", main, lambda ago: 3.0 * (ago < step(2)))
    life = history(timeline.store(tmp_path))[0].containers["ml/train", "main"]
    assert steps(life.started) == [0, 0] + [NOW - COUNT * STEP] * 4


A100 = ("blue", "A100-SXM4-80GB")
ROWS = ("waited_for", "unreachable", "usable", "unknown")


def free(
    timeline: Timeline,
    *counts: float | Callable[[float], float],
    model: str = A100[1],
    instance: str = "10.0.0.8:8080",
    ago: float = COUNT * STEP,
    until: float = 0,
) -> Timeline:
    """gpuwatch's own counts of free GPUs, in the order of ROWS."""
    of = {"job": "gpuwatch", "instance": instance, "pool": A100[0], "gpu_model": model}
    for row, count in zip(ROWS, counts, strict=False):
        timeline.add("gpuwatch_free_gpus", of | {"row": row}, count, ago=ago, until=until, ends=until > 0)
    return timeline


def parts(timeline: Timeline, folder: Path) -> tuple[list[float | None], ...]:
    """waited_for, unreachable, usable."""
    told = history(timeline.store(folder))[0].free[A100]
    return tuple(steps([round(each, 6) for each in told[row]]) for row in (Row.WAITED_FOR, Row.UNREACHABLE, Row.USABLE))


def test_free_gpus_by_what_could_use_them(tmp_path: Path) -> None:
    timeline = free(free(there(Timeline(), False), 1, 0.5, 2, 0.5), 0, 0, 1, 0, model="H100-SXM5-80GB")
    assert parts(timeline, tmp_path) == ([0.25] * 6, [0.125] * 6, [0.5] * 6)
    found, _ = history(timeline.store(tmp_path))
    assert steps(found.free["blue", "H100-SXM5-80GB"][Row.USABLE]) == [1] * 6


def test_the_newest_count_of_a_step_counts_and_those_of_two_leaders_do_not_add_up(tmp_path: Path) -> None:
    timeline = there(Timeline(), False)
    free(timeline, lambda ago: 4.0 * (ago < step(2.5)), 0, lambda ago: 4.0 * (ago >= step(2.5)), 0)
    free(timeline, 0, 0, 2, 0, instance="10.0.0.7:8080", ago=step(4.9), until=step(5.1))
    assert parts(timeline, tmp_path) == ([0, 0, 1, 1, round(4 / 6, 6), 1], [0] * 6, [1, 1, 0, 0, round(2 / 6, 6), 0])


def test_while_gpuwatch_is_away_it_is_unknown_what_free_gpus_are_for(tmp_path: Path) -> None:
    """A series that has ended inside a step says nothing of the step's end."""
    timeline = free(there(Timeline(), False), 0, 1, 3, 0, until=step(3.5))
    assert parts(timeline, tmp_path) == tuple([value] * 3 + [UNKNOWN] * 3 for value in (0, 0.25, 0.75))


@pytest.mark.parametrize(
    "counts", [(0.0, 0.0, 0.0, 0.0), (0.0, 1.0, lambda ago: 3.0 if ago >= step(3) else math.nan, 0.0)]
)
def test_without_a_free_gpu_or_a_count_parts_are_unknown(counts: tuple[float, ...], tmp_path: Path) -> None:
    known = 0 if not any(counts) else 3
    timeline = free(there(Timeline(), False), *counts)
    assert parts(timeline, tmp_path)[1] == [0.25] * known + [UNKNOWN] * (6 - known)


def test_without_one_of_the_four_rows_nothing_is_told(tmp_path: Path) -> None:
    found, _ = history(free(there(Timeline(), False), 0, 1, 3).store(tmp_path))
    assert found.free == {}


@pytest.mark.parametrize("refused", [False, True])
def test_without_counts_of_free_gpus_there_is_a_gap(refused: bool, tmp_path: Path) -> None:
    store = (free(there(Timeline(), False), 0, 1, 3, 0) if refused else there(Timeline(), False)).store(tmp_path)
    found, (gap,) = read(
        Witness(store, refuses=lambda asked: refused and asked.selector.metric == "gpuwatch_free_gpus")
    )
    assert found.free == {}
    failed = (GapKind.QUERY_FAILED, "history of Nodes and Pods (gpuwatch_free_gpus)")
    assert (gap.kind, gap.what) == (failed if refused else NO_FREE)


def test_while_kube_state_metrics_is_away_nothing_is_known(tmp_path: Path) -> None:
    timeline = there(there(Timeline(), False, until=3), False, "gpu-2", until=3)
    found, _ = history(timeline.store(tmp_path))
    assert steps(found.nodes["gpu-1"].ready) == [1, 1, 1, UNKNOWN, UNKNOWN, UNKNOWN]
    assert steps(found.nodes["gpu-1"].cordoned) == [0, 0, 0, UNKNOWN, UNKNOWN, UNKNOWN]


def test_while_kube_state_metrics_moves_nothing_is_counted_twice(tmp_path: Path) -> None:
    timeline = Timeline()
    for instance, ago, until in (("10.0.0.9:8080", step(0), step(2.5)), ("10.0.0.10:8080", step(2.5), 0)):
        of = named(False, node="gpu-1") | {"instance": instance}
        ready = of | {"condition": "Ready", "status": "true"}
        timeline.add("kube_node_status_condition", ready, 1, ago=ago, until=until, ends=until > 0)
        for name, count in (("capacity", 8), ("allocatable", 7)):
            gpus = of | {"resource": "nvidia_com_gpu"}
            timeline.add(f"kube_node_status_{name}", gpus, count, ago=ago, until=until, ends=until > 0)
    node = history(timeline.store(tmp_path))[0].nodes["gpu-1"]
    assert (steps(node.ready), steps(node.capacity), steps(node.allocatable)) == ([1] * 6, [8] * 6, [7] * 6)


def test_without_series_of_nodes_there_is_a_gap_and_pods_are_known(tmp_path: Path) -> None:
    main = named(False, namespace="ml", pod="train", container="main")
    store = Timeline().add("kube_pod_container_status_running", main, 1).store(tmp_path)
    found, (gap,) = history(store)
    assert ({*found.nodes}, {*found.containers}) == (set(), {("ml/train", "main")})
    assert (gap.kind, "Pods started" in gap.detail) == (GapKind.SIGNAL_MISSING, False)
    assert cluster_history(store, AT - timedelta(hours=1), AT, STEP, (), {("ml/train", "main")})[1] == ()


@pytest.mark.parametrize("metric", ["kube_pod_container_state_started", "kube_pod_container_status_restarts_total"])
def test_without_its_starts_or_restarts_a_container_may_have_started(metric: str, tmp_path: Path) -> None:
    main = named(False, namespace="ml", pod="train", container="main")
    timeline = there(Timeline(), False).add("kube_pod_container_status_running", main, 0)
    store = Witness(timeline.store(tmp_path), refuses=lambda asked: asked.selector.metric == metric)
    found, (gap,) = history(store)
    assert gap.kind == GapKind.QUERY_FAILED
    assert steps(found.containers["ml/train", "main"].started) == [UNKNOWN] * 6


def test_without_kube_state_metrics_there_is_a_gap(tmp_path: Path) -> None:
    found, (gap,) = history(Timeline().add("up", TARGET, 1).store(tmp_path))
    assert (found.nodes, found.containers) == ({}, {})
    assert (gap.kind, gap.what) == (GapKind.SIGNAL_MISSING, "history of Nodes and Pods")


@pytest.mark.parametrize(
    ("metric", "lost"),
    [
        ("kube_node_spec_taint", "cordoned"),
        ("kube_pod_init_container_status_running", "init"),
        ("kube_pod_deletion_timestamp", "deleting"),
    ],
)
def test_a_query_that_fails_proves_nothing(metric: str, lost: str, tmp_path: Path) -> None:
    timeline = there(Timeline(), False)
    main = named(False, namespace="ml", pod="train", container="main")
    timeline.add("kube_pod_container_status_running", main, 1)
    store = Witness(timeline.store(tmp_path), refuses=lambda asked: asked.selector.metric == metric)
    found, (gap,) = history(store)
    assert (gap.kind, gap.what) == (GapKind.QUERY_FAILED, f"history of Nodes and Pods ({metric})")
    of = found.nodes["gpu-1"] if lost == "cordoned" else found.containers["ml/train", "main"]
    assert steps(getattr(of, lost)) == [UNKNOWN] * 6
    assert steps(found.nodes["gpu-1"].ready) == [1] * 6


def test_steps_end_at_whole_steps(tmp_path: Path) -> None:
    store = there(Timeline(), False).store(tmp_path)
    found, _ = cluster_history(store, AT - timedelta(minutes=35), AT - timedelta(minutes=4), STEP, {"gpu-1"}, ())
    assert found.start == datetime.fromtimestamp(NOW, UTC) - timedelta(minutes=40)
    assert len(found.nodes["gpu-1"].ready) == 3
