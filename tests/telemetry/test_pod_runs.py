"""How Pods with accelerators fared, as kube-state-metrics tells it in both ways of scraping it."""

from datetime import UTC, datetime
from pathlib import Path

from gpuwatch.facts.model.telemetry import GapKind, PodRun
from gpuwatch.sources.telemetry.pod_runs import pod_runs
from telemetry.timeline import AT, NOW, Timeline, Witness

TARGET = {"job": "ksm", "instance": "10.0.0.9:8080"}
SIX_HOURS = 6 * 3600


def moment(ago: float) -> datetime:
    return datetime.fromtimestamp(NOW - ago, UTC)


def pod(timeline: Timeline, name: str, *, node: str = "gpu-1", until: float = 0, **more: str) -> dict[str, str]:
    """A Pod of the Namespace ml that asks for a GPU; its labels in all series."""
    labels = TARGET | {"namespace": "ml", "pod": name, "uid": f"uid-{name}"} | more
    for resource, value in (("nvidia_com_gpu", 2), ("cpu", 8)):
        asked = {"container": "main", "node": node, "resource": resource}
        timeline.add("kube_pod_container_resource_requests", labels | asked, value, until=until, ends=until > 0)
    return labels


def phases(timeline: Timeline, labels: dict[str, str], phase: str, until: float = 0) -> None:
    for each in ("Pending", "Running", "Succeeded", "Failed", "Unknown"):
        timeline.add(
            "kube_pod_status_phase", labels | {"phase": each}, float(each == phase), until=until, ends=until > 0
        )


def test_a_job_that_died_after_two_minutes(tmp_path: Path) -> None:
    timeline = Timeline()
    labels = pod(timeline, "train-1-x", until=1800)
    timeline.add("kube_pod_status_phase", labels | {"phase": "Running"}, lambda ago: float(ago > 3480))
    timeline.add("kube_pod_status_phase", labels | {"phase": "Failed"}, lambda ago: float(ago <= 3480))
    timeline.add("kube_pod_start_time", labels, NOW - 3700)
    timeline.add("kube_pod_container_state_started", labels | {"container": "main"}, NOW - 3600)
    timeline.add("kube_pod_completion_time", labels, NOW - 3480)
    timeline.add("kube_pod_container_status_restarts_total", labels | {"container": "main"}, 0)
    timeline.add("kube_pod_container_status_terminated_reason", labels | {"reason": "Error"}, 1)
    timeline.add("kube_pod_status_reason", labels | {"reason": "Evicted"}, 0)
    timeline.add("kube_pod_container_info", labels | {"image": "registry/ml/train:v1"}, 1)
    timeline.add("kube_pod_info", labels | {"created_by_kind": "Job", "created_by_name": "train-1"}, 1)
    assert pod_runs(timeline.store(tmp_path), AT, SIX_HOURS) == (
        (
            PodRun(
                pod="ml/train-1-x",
                node="gpu-1",
                created_by="Job/train-1",
                images=("registry/ml/train:v1",),
                phase="Failed",
                started=moment(3600),
                ended=moment(3480),
                reasons=("Error",),
            ),
        ),
        (),
    )


def test_a_pod_that_crashes_one_that_was_deleted_and_one_that_is_gone(tmp_path: Path) -> None:
    timeline = Timeline()
    crashing = pod(timeline, "a")
    phases(timeline, crashing, "Running")
    timeline.add("kube_pod_container_status_restarts_total", crashing | {"container": "main"}, 7)
    timeline.add("kube_pod_container_status_restarts_total", crashing | {"container": "proxy"}, 0)
    timeline.add("kube_pod_container_status_last_terminated_reason", crashing | {"reason": "Error"}, 1)
    timeline.add("kube_pod_container_status_last_terminated_exitcode", crashing | {"container": "main"}, 139)
    timeline.add("kube_pod_info", crashing | {"created_by_kind": "<none>", "created_by_name": "<none>"}, 1)
    timeline.add("kube_pod_start_time", crashing, NOW - 900)
    deleted = pod(timeline, "b")
    timeline.add("kube_pod_deletion_timestamp", deleted, NOW - 60)
    phases(timeline, pod(timeline, "c", until=1800), "Running", until=1800)
    found, gaps = pod_runs(timeline.store(tmp_path), AT, SIX_HOURS)
    assert gaps == ()
    assert found == (
        PodRun(
            pod="ml/a",
            node="gpu-1",
            phase="Running",
            started=moment(900),
            restarts=7,
            reasons=("Error", "exit code 139"),
        ),
        PodRun(pod="ml/b", node="gpu-1", reasons=("deleted",)),
        PodRun(pod="ml/c", node="gpu-1"),  # it ran, and nobody saw its end
    )


def test_pods_that_the_kubelet_refused_at_their_start_and_when_their_node_booted_again(tmp_path: Path) -> None:
    """The kubelet keeps the start of one that ran, and drops its containers."""
    timeline = Timeline()
    for name, ago in (("new", 900), ("ran", 3600), ("older", SIX_HOURS + 60)):
        labels = pod(timeline, name)
        phases(timeline, labels, "Failed")
        timeline.add("kube_pod_start_time", labels, NOW - ago)
        timeline.add("kube_pod_status_reason", labels | {"reason": "UnexpectedAdmissionError"}, 1)
        if name == "ran":
            timeline.add("kube_pod_container_info", labels | {"image": "train"}, 1, until=1800, ends=True)
    found, _ = pod_runs(timeline.store(tmp_path), AT, SIX_HOURS)
    assert {run.pod: run.ended for run in found} == {"ml/new": moment(900), "ml/ran": None, "ml/older": None}


def test_scraped_without_honor_labels(tmp_path: Path) -> None:
    timeline = Timeline()
    own = TARGET | {"namespace": "monitoring", "pod": "ksm-0", "node": "infra-1"}
    labels = own | {"exported_namespace": "ml", "exported_pod": "a", "uid": "1"}
    asked = {"exported_node": "gpu-1", "resource": "nvidia_com_mig_1g_5gb"}
    timeline.add("kube_pod_container_resource_requests", labels | asked, 1)
    phases(timeline, labels, "Succeeded")
    found, _ = pod_runs(timeline.store(tmp_path), AT, SIX_HOURS)
    assert found == (PodRun(pod="ml/a", node="gpu-1", phase="Succeeded"),)


def test_pods_of_one_name_are_told_apart_and_others_are_left_out(tmp_path: Path) -> None:
    timeline = Timeline()
    phases(timeline, pod(timeline, "db-0", uid="1", node="gpu-1", until=1800), "Failed", until=1800)
    phases(timeline, pod(timeline, "db-0", uid="2", node="gpu-2"), "Running")
    plain = TARGET | {"namespace": "ml", "pod": "web", "uid": "3", "node": "cpu-1", "resource": "cpu"}
    timeline.add("kube_pod_container_resource_requests", plain, 1)
    found, _ = pod_runs(timeline.store(tmp_path), AT, SIX_HOURS)
    assert [(each.pod, each.node, each.phase) for each in found] == [
        ("ml/db-0", "gpu-1", "Failed"),
        ("ml/db-0", "gpu-2", "Running"),
    ]


def test_without_kube_state_metrics_nothing_is_known_and_a_failure_is_said(tmp_path: Path) -> None:
    timeline = Timeline().add("up", TARGET, 1)
    witness = Witness(timeline.store(tmp_path))
    assert pod_runs(witness, AT, SIX_HOURS) == ((), ())
    assert len(witness.asked) == 1  # nobody is asked about no Pod
    phases(timeline, pod(timeline, "a"), "Failed")
    refusing = Witness(timeline.store(tmp_path), lambda asked: asked.selector.metric == "kube_pod_completion_time")
    found, gaps = pod_runs(refusing, AT, SIX_HOURS)
    assert found == ()  # without the ends, a Pod that died after days would look like one that died at once
    assert [(gap.kind, gap.what) for gap in gaps] == [(GapKind.QUERY_FAILED, "ends of Pods (kube_pod_completion_time)")]
