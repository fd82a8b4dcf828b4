import copy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuwatch.act.execute.policy import ExecutePolicy
from gpuwatch.act.execute.steps import Blocked, TargetState, act_steps
from gpuwatch.facts.frameworks.fights import Surroundings
from gpuwatch.facts.frameworks.objects import Object, Refused, ref_of
from gpuwatch.facts.frameworks.release import Release, release
from gpuwatch.facts.model.decision import ActionKind
from gpuwatch.facts.model.remediation import Remediation, Step
from store.remediation_stores import proposal

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
SEEN = Path(__file__).parents[1] / "fixtures" / "cluster" / "frameworks" / "appwrapper.yaml"


def seen(kind: str, name: str) -> Object:
    for found in yaml.safe_load_all(SEEN.read_text()):
        if (found["kind"], found["metadata"]["name"]) == (kind, name):
            found["metadata"]["resourceVersion"] = "7"
            return dict(found)
    raise KeyError(name)


@pytest.fixture
def wrapper() -> Object:
    """A running one, as its controller made it."""
    return seen("AppWrapper", "torch")


def wrapping(wrapper: Object, *templates: Object) -> Object:
    return {**wrapper, "spec": {"components": [{"template": each} for each in templates]}}


def template(api_version: str, kind: str, **spec: Any) -> Object:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "x"}, "spec": spec}


def refusal(wrapper: Object) -> str:
    found = release(wrapper, remediation="release-4f2a", at=NOW)
    assert isinstance(found, Refused)
    return found.reason


def is_released(wrapper: Object) -> bool:
    return isinstance(release(wrapper, remediation="release-4f2a", at=NOW), Release)


def test_a_running_one_is_released(wrapper: Object) -> None:
    found = release(wrapper, remediation="release-4f2a", at=NOW)
    assert isinstance(found, Release)
    assert [item.path for item in found.saved] == ["/spec/suspend"]


@pytest.mark.parametrize("phase", ["Resuming", "Suspending", "Resetting", "Failed", "Terminating"])
def test_only_a_running_one_is_released(wrapper: Object, phase: str) -> None:
    wrapper["status"]["phase"] = phase
    assert repr(phase) in refusal(wrapper)


def test_one_that_succeeded_has_ended(wrapper: Object) -> None:
    wrapper["status"]["phase"] = "Succeeded"
    assert "has ended" in refusal(wrapper)


def test_one_that_another_cluster_runs_is_left_alone(wrapper: Object) -> None:
    wrapper["spec"]["managedBy"] = "kueue.x-k8s.io/multikueue"
    assert refusal(wrapper) == "kueue.x-k8s.io/multikueue runs it, not the AppWrapper controller."
    wrapper["spec"]["managedBy"] = "workload.codeflare.dev/appwrapper-controller"
    assert is_released(wrapper)


@pytest.mark.parametrize(
    ("annotation", "used", "refused"), [(None, 2, False), (None, 3, True), ("1", 1, True), ("5", 3, False)]
)
def test_without_a_retry_left_it_might_not_come_back(
    wrapper: Object, annotation: str | None, used: int, refused: bool
) -> None:
    wrapper["status"]["resettingCount"] = used
    if annotation is not None:
        wrapper["metadata"]["annotations"] = {"workload.codeflare.dev.appwrapper/retryLimit": annotation}
    assert is_released(wrapper) is not refused
    if refused:
        assert "retries are used up" in refusal(wrapper)


def test_what_holds_state_is_not_deleted(wrapper: Object) -> None:
    claim = template("v1", "PersistentVolumeClaim")
    assert "PersistentVolumeClaim x" in refusal(wrapping(wrapper, template("batch/v1", "Job"), claim))
    assert "ConfigMap x" in refusal(wrapping(wrapper, template("v1", "ConfigMap")))
    assert "Job x" in refusal(wrapping(wrapper, template("batch.volcano.sh/v1alpha1", "Job")))


def test_work_that_is_done_is_not_done_again(wrapper: Object) -> None:
    at_once, queue = {"completions": 4, "parallelism": 4}, {"completions": 100, "parallelism": 4}
    assert is_released(wrapping(wrapper, template("batch/v1", "Job", **at_once)))
    assert "run completed work again" in refusal(wrapping(wrapper, template("batch/v1", "Job", **queue)))

    def job_set(spec: Object) -> Object:
        jobs = [{"name": "a", "template": {"spec": at_once}}, {"name": "b", "template": {"spec": spec}}]
        return template("jobset.x-k8s.io/v1alpha2", "JobSet", replicatedJobs=jobs)

    assert is_released(wrapping(wrapper, job_set(copy.deepcopy(at_once))))
    assert "run completed work again" in refusal(wrapping(wrapper, job_set(queue)))


def test_kueue_is_not_asked_to_delete_what_holds_state() -> None:
    """Its Workload does not tell what is wrapped beside the Pods."""
    queued, workload = seen("AppWrapper", "wrapped-job"), seen("Workload", "appwrapper-wrapped-job-a6b8c")
    pods = [seen("Pod", name) for name in ("wrapped-job-0-lqndb", "wrapped-job-1-qbdmr")]
    made = proposal(
        action=ActionKind.RELEASE_GANG,
        objects=(ref_of(queued),),
        pod_uids=tuple(pod["metadata"]["uid"] for pod in pods),
    )

    def steps(wrapper: Object) -> tuple[Step, ...] | Blocked:
        state = TargetState(wrapper, surroundings=Surroundings((workload,)), pods=tuple(pods))
        return act_steps(Remediation(name="r", proposal=made), state, (), (), ExecutePolicy())

    found = steps(queued)
    assert not isinstance(found, Blocked)
    assert found[0].target == ref_of(workload)
    job = queued["spec"]["components"][0]["template"]
    lost = steps(wrapping(queued, job, template("v1", "PersistentVolumeClaim")))
    assert isinstance(lost, Blocked)
    assert "PersistentVolumeClaim x" in lost.reason
