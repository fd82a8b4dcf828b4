"""Owners of Pods that are gone, as kube-state-metrics tells them in both ways of scraping it."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpuwatch.facts.model.telemetry import GapKind
from gpuwatch.sources.telemetry.owners import JobRun, PastPod, job_runs, pod_owners
from telemetry.timeline import AT, NOW, Timeline, Witness

HOUR = timedelta(hours=1)
TARGET = {"job": "ksm", "instance": "10.0.0.9:8080"}
POD, REPLICASET, JOB = "kube_pod_owner", "kube_replicaset_owner", "kube_job_owner"


def owner(kind: str, name: str, controller: str = "true") -> dict[str, str]:
    return {"owner_kind": kind, "owner_name": name, "owner_is_controller": controller}


def of(name: str, namespace: str = "ml", label: str = "pod") -> dict[str, str]:
    return TARGET | {"namespace": namespace, label: name}


def exported(name: str, namespace: str = "ml") -> dict[str, str]:
    """As stored without honorLabels: kube-state-metrics' own Pod in the plain labels."""
    own = {"namespace": "monitoring", "pod": "ksm-0", "container": "ksm"}
    return TARGET | own | {"exported_namespace": namespace, "exported_pod": name}


def test_from_a_pod_to_its_top_owner(tmp_path: Path) -> None:
    timeline = Timeline()
    timeline.add(POD, of("web-6f-x") | owner("ReplicaSet", "web-6f"), 1, until=1800, ends=True)
    timeline.add(REPLICASET, of("web-6f", label="replicaset") | owner("Deployment", "web"), 1)
    timeline.add(POD, of("night-1-y") | owner("Job", "night-1"), 1, until=1800, ends=True)
    timeline.add(JOB, of("night-1", label="job_name") | owner("CronJob", "night"), 1)
    timeline.add(POD, of("once-z") | owner("Job", "once"), 1)
    timeline.add(JOB, of("once", label="job_name") | owner("", "", ""), 1)
    timeline.add(POD, of("old-z") | owner("Job", "old"), 1)
    timeline.add(JOB, of("old", label="job_name") | owner("<none>", "<none>", "<none>"), 1)
    timeline.add(POD, of("db-0") | owner("StatefulSet", "db"), 1)
    timeline.add(POD, of("alone"), 1)
    timeline.add(POD, of("kept") | owner("Thing", "t", "false"), 1)
    timeline.add(POD, of("web-6f-x", "other") | owner("StatefulSet", "namesake"), 1)
    names = ("web-6f-x", "night-1-y", "once-z", "old-z", "db-0", "alone", "kept", "absent")
    found, gaps = pod_owners(timeline.store(tmp_path), AT - HOUR, AT, [f"ml/{name}" for name in names])
    assert gaps == ()
    assert {pod: past.workload for pod, past in found.items()} == {
        "ml/web-6f-x": "Deployment/ml/web",
        "ml/night-1-y": "CronJob/ml/night",
        "ml/once-z": "Job/ml/once",
        "ml/old-z": "Job/ml/old",
        "ml/db-0": "StatefulSet/ml/db",
        "ml/alone": "Pod/ml/alone",
        "ml/kept": "Pod/ml/kept",
    }


def test_an_owner_whose_own_owner_is_not_told_is_no_top(tmp_path: Path) -> None:
    timeline = Timeline().add(POD, of("web-6f-x") | owner("ReplicaSet", "web-6f"), 1)
    found, _ = pod_owners(timeline.store(tmp_path), AT - HOUR, AT, ["ml/web-6f-x"])
    assert found == {"ml/web-6f-x": PastPod()}


def test_a_name_that_was_two_pods_has_no_known_owner(tmp_path: Path) -> None:
    timeline = Timeline().add(POD, of("p-0") | owner("StatefulSet", "a"), 1, until=1800, ends=True)
    timeline.add(POD, of("p-0") | owner("StatefulSet", "b"), 1, ago=1800)
    store = timeline.store(tmp_path)
    assert pod_owners(store, AT - HOUR, AT, ["ml/p-0"])[0]["ml/p-0"].workload == ""
    later = pod_owners(store, AT - HOUR / 2, AT, ["ml/p-0"])[0]
    assert later["ml/p-0"].workload == "StatefulSet/ml/b"


def test_scraped_without_honor_labels(tmp_path: Path) -> None:
    timeline = Timeline().add(POD, exported("web-6f-x") | owner("ReplicaSet", "web-6f"), 1)
    child = {name: value for name, value in exported("x").items() if name != "exported_pod"}
    timeline.add(REPLICASET, child | {"replicaset": "web-6f"} | owner("Deployment", "web"), 1)
    for container, cores in (("main", 2), ("side", 0.5)):
        labels = exported("web-6f-x") | {"exported_container": container, "resource": "cpu"}
        timeline.add("kube_pod_container_resource_requests", labels, cores)
    store = timeline.store(tmp_path)
    found, gaps = pod_owners(store, AT - HOUR, AT, ["ml/web-6f-x", "monitoring/ksm-0"])
    assert gaps == ()
    assert found == {"ml/web-6f-x": PastPod(workload="Deployment/ml/web", cpu_cores=2.5)}


def test_requests_and_starts(tmp_path: Path) -> None:
    timeline = Timeline().add(POD, of("a"), 1).add(POD, of("b"), 1)
    for instance in ("10.0.0.9:8080", "10.0.0.10:8080"):  # it moved: every series there is twice
        target = {"instance": instance}
        for container in ("main", "side"):
            labels = of("a") | target | {"container": container}
            timeline.add("kube_pod_container_resource_requests", labels | {"resource": "cpu", "unit": "core"}, 4)
            timeline.add("kube_pod_container_resource_requests", labels | {"resource": "memory"}, 2**30)
    timeline.add("kube_pod_start_time", of("a"), NOW - 7200)
    found, _ = pod_owners(timeline.store(tmp_path), AT - HOUR, AT, ["ml/a", "ml/b"])
    assert found == {
        "ml/a": PastPod(
            workload="Pod/ml/a",
            cpu_cores=8,
            memory_bytes=2**31,
            started=datetime.fromtimestamp(NOW - 7200, UTC),
        ),
        "ml/b": PastPod(workload="Pod/ml/b"),
    }


def test_what_is_not_there_and_what_fails_is_said(tmp_path: Path) -> None:
    timeline = Timeline().add("up", TARGET, 1).add(POD, of("a") | owner("ReplicaSet", "r"), 1)
    store = timeline.store(tmp_path)
    found, gaps = pod_owners(store, AT - HOUR, AT, ["ml/gone"])
    assert found == {}
    assert [(gap.kind, gap.what) for gap in gaps] == [(GapKind.SIGNAL_MISSING, "owners of Pods")]
    refusing = Witness(timeline.store(tmp_path), lambda asked: asked.selector.metric == REPLICASET)
    found, gaps = pod_owners(refusing, AT - HOUR, AT, ["ml/a"])
    assert found["ml/a"].workload == ""
    assert [(gap.kind, gap.what) for gap in gaps] == [(GapKind.QUERY_FAILED, f"owners of Pods ({REPLICASET})")]


def test_nobody_is_asked_about_nobody(tmp_path: Path) -> None:
    witness = Witness(Timeline().add("up", TARGET, 1).store(tmp_path))
    assert pod_owners(witness, AT - HOUR, AT, []) == ({}, ())
    assert witness.asked == []


def test_many_pods_are_asked_for_in_parts(tmp_path: Path) -> None:
    timeline = Timeline()
    for number in range(101):
        timeline.add(POD, of(f"p-{number}") | owner("StatefulSet", "p"), 1, ago=60)
    witness = Witness(timeline.store(tmp_path))
    found, _ = pod_owners(witness, AT - HOUR, AT, [f"ml/p-{number}" for number in range(101)])
    assert len(found) == 101
    assert len([asked for asked in witness.asked if asked.selector.metric == POD]) == 4  # two parts, two label schemes


def test_jobs_and_how_long_they_took(tmp_path: Path) -> None:
    timeline = Timeline()
    for name, began, ended in (("n-1", 7200, 600), ("n-2", 1200, None), ("again", 900, 5000)):
        labels = of(name, label="job_name")
        timeline.add("kube_job_status_start_time", labels, NOW - began)
        if ended is not None:
            timeline.add("kube_job_status_completion_time", labels, NOW - ended)
    timeline.add(JOB, of("n-1", label="job_name") | owner("CronJob", "n"), 1)
    timeline.add(JOB, of("again", label="job_name"), 1)
    runs, gaps = job_runs(timeline.store(tmp_path), AT - HOUR, AT)
    assert gaps == ()
    assert [(run.job, run.workload, run.completed) for run in runs] == [
        ("Job/ml/again", "Job/ml/again", None),  # the completion is that of a Job before it
        ("Job/ml/n-1", "CronJob/ml/n", AT - timedelta(seconds=600)),
        ("Job/ml/n-2", "", None),
    ]
    assert runs[1] == JobRun(
        job="Job/ml/n-1",
        workload="CronJob/ml/n",
        started=AT - timedelta(seconds=7200),
        completed=AT - timedelta(seconds=600),
    )


@pytest.mark.parametrize("count", [0, 1])
def test_without_jobs_there_are_no_runs(tmp_path: Path, count: int) -> None:
    timeline = Timeline().add("up", TARGET, 1)
    for number in range(count):
        timeline.add("kube_job_status_completion_time", of(f"j-{number}", label="job_name"), NOW)
    assert job_runs(timeline.store(tmp_path), AT - HOUR, AT) == ((), ())
