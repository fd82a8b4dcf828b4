"""WorkloadProfiles for people: beside their workloads, written when the advice changes or a day has passed."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from cluster.api import Api
from cluster.control_plane import ControlPlane
from deploy.manifests import CRDS, apply, documents
from gpuwatch.facts.frameworks.objects import Object
from gpuwatch.facts.model.sizing import Abstention, AbstentionKind
from gpuwatch.facts.model.workload_profile import ProfileBook, WorkloadKey
from gpuwatch.sources.kube.live import api_client
from gpuwatch.sources.kube.live_writer import LiveWriter
from gpuwatch.sources.kube.writer import Failure, WriteError
from gpuwatch.sources.store import StoreError
from gpuwatch.sources.store.custom_resources import API_VERSION, PROFILE_KIND
from gpuwatch.sources.store.workload_profiles import name_of, publish
from kube.memory_cluster import MemoryCluster
from store.remediation_stores import table
from store.values import HOUR, T0, advice, book, key


def shown(cluster: MemoryCluster, of: WorkloadKey) -> Object:
    (found,) = (
        each
        for each in cluster.objects(API_VERSION, PROFILE_KIND, of.namespace)
        if each["metadata"]["name"] == name_of(of)
    )
    return found


def later(of: ProfileBook, by: timedelta, **changes: Any) -> ProfileBook:
    return replace(
        of, profiles={at: replace(each, as_of=each.as_of + by, **changes) for at, each in of.profiles.items()}
    )


def abstention(of: WorkloadKey, kind: AbstentionKind = AbstentionKind.YOUNG) -> Abstention:
    return Abstention(key=of, at=T0, kind=kind, reason="It ran for two hours.", resolve="Wait a day.")


def written(cluster: MemoryCluster, *arguments: Any) -> list[str]:
    changes: list[str] = []

    def count(verb: str, _what: str, done: bool) -> None:
        if done:
            changes.append(verb)

    assert publish(cluster.writer(interfere=count), *arguments) == ()
    return changes


def test_each_stands_in_the_namespace_of_its_workload() -> None:
    cluster = MemoryCluster()
    given = advice(key(0))
    given = replace(given, chosen=replace(given.chosen, projected_saving_per_week=12.5))
    assert written(cluster, book(2), [given], [abstention(key(1))]) == ["create", "patch"] * 2
    first, second = shown(cluster, key(0)), shown(cluster, key(1))
    assert (first["metadata"]["namespace"], second["metadata"]["namespace"]) == ("team-0", "team-1")
    assert first["spec"] == {"workload": "Job/team-0/job-0", "container": "main", "gpuModel": "A100-SXM4-80GB"}
    status = first["status"]
    assert (status["gpusPerPod"], status["memoryPeakBytes"]) == (1, 3e9)
    assert status["busyRatio"] == "0.15"  # ten levels of one weight, 0 to 9/30
    assert "abstention" not in status
    assert status["recommendation"]["target"] == given.chosen.target.name
    assert json.loads(status["recommendation"]["patch"]) == given.change.patch
    assert status["recommendation"]["projectedSavingPerWeek"] == "12.5"
    assert status["recommendation"]["currency"] == "USD"
    assert second["status"]["abstention"] == {
        "time": "2026-03-01T00:00:00Z",
        "reason": "Young",
        "message": "It ran for two hours.",
        "resolve": "Wait a day.",
    }
    assert [each["observationTime"] for each in (status, second["status"])] == ["2026-03-01T00:00:00Z"] * 2


def told(cluster: MemoryCluster) -> tuple[str, str, str, str]:
    """Status, reason, message and time of the condition Advised."""
    (condition,) = shown(cluster, key(0))["status"]["conditions"]
    assert (condition["type"], condition["observedGeneration"]) == ("Advised", 1)
    return condition["status"], condition["reason"], condition["message"], condition["lastTransitionTime"]


def test_a_condition_says_whether_it_is_advised_and_since_when() -> None:
    cluster = MemoryCluster()
    first, at = book(1), "2026-03-01T00:00:00Z"
    written(cluster, first)
    assert told(cluster) == ("Unknown", "Pending", "It was not evaluated yet.", at)
    written(cluster, later(first, HOUR), [advice(key(0), T0 + HOUR)])
    assert told(cluster) == ("True", "Advised", advice(key(0)).reason, "2026-03-01T01:00:00Z")
    other = replace(advice(key(0), T0 + 2 * HOUR, mig_profile="3g.40gb"), reason="It needs a half.")
    written(cluster, later(first, 2 * HOUR), [other])
    assert told(cluster) == ("True", "Advised", "It needs a half.", "2026-03-01T01:00:00Z")  # advised still
    none = replace(abstention(key(0), AbstentionKind.RIGHT_SIZED), at=T0 + 3 * HOUR)
    written(cluster, later(first, 3 * HOUR), [], [none])
    assert told(cluster) == ("False", "RightSized", "It ran for two hours.", "2026-03-01T03:00:00Z")


def test_one_is_written_when_its_advice_changes_or_a_day_has_passed() -> None:
    cluster = MemoryCluster()
    first = book(1)
    given = [advice(key(0))]
    written(cluster, first, given)
    busier = later(first, HOUR, observed_seconds=7200.0)
    assert written(cluster, busier, given) == []
    assert written(cluster, later(first, 24 * HOUR - HOUR / 3600), given) == []
    assert written(cluster, busier, [advice(key(0), mig_profile="3g.40gb")]) == ["patch"]
    assert written(cluster, busier, [], [abstention(key(0))]) == ["patch"]
    assert "recommendation" not in shown(cluster, key(0))["status"]
    assert written(cluster, busier, [], [abstention(key(0), AbstentionKind.IDLE)]) == ["patch"]
    assert written(cluster, later(first, 24 * HOUR), [], [abstention(key(0), AbstentionKind.IDLE)]) == ["patch"]


def test_what_is_not_in_the_book_any_more_goes() -> None:
    cluster = MemoryCluster()
    written(cluster, book(3))
    assert written(cluster, book(2)) == ["delete"]
    assert len(cluster.objects(API_VERSION, PROFILE_KIND)) == 2


def test_one_that_cannot_be_written_costs_itself() -> None:
    def full(verb: str, what: str, done: bool) -> None:
        if verb == "create" and "team-1/" in what and not done:
            raise WriteError(Failure.FORBIDDEN, "exceeded quota")

    cluster = MemoryCluster()
    (gap,) = publish(cluster.writer(interfere=full), book(3))
    assert gap.what == f"profile of {key(1)}"
    assert "exceeded quota" in gap.detail
    assert {each["metadata"]["namespace"] for each in cluster.objects(API_VERSION, PROFILE_KIND)} == {
        "team-0",
        "team-2",
    }


def test_what_cannot_be_listed_is_an_error() -> None:
    cluster = MemoryCluster(may=lambda verb, _: verb != "list")
    with pytest.raises(StoreError, match="workload profiles"):
        publish(cluster, book(1))


def test_names_are_readable_and_told_apart() -> None:
    one = WorkloadKey("PyTorchJob/team/Train_1", "main", "NVIDIA H100 80GB HBM3", "1g.10gb")
    assert name_of(one).startswith("pytorchjob-train-1-main-nvidia-h100-80gb-hbm3-1g-10gb-")
    others = [replace(one, container="side"), replace(one, mig_profile=""), replace(one, workload="Job/team/Train_1")]
    assert len({name_of(each) for each in (one, *others)}) == 4
    long = replace(one, workload=f"Job/team/{'x' * 253}")
    assert len(name_of(long)) <= 253


def test_a_real_api_server_takes_them(control_plane: ControlPlane) -> None:
    api = Api(control_plane.administrator)
    spaces = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"team-{number}"}} for number in range(2)]
    apply(api, [*documents(CRDS), *spaces])
    with api_client(control_plane.administrator) as client:
        writer = LiveWriter(client)
        (gap,) = publish(writer, book(3), [advice(key(0))], [abstention(key(1))])
        assert gap.what == f"profile of {key(2)}"  # of a Namespace that is not there
        found = {each["metadata"]["name"]: each for each in writer.objects(API_VERSION, PROFILE_KIND)}
        assert set(found) == {name_of(key(0)), name_of(key(1))}
        assert found[name_of(key(0))]["status"]["recommendation"]["message"] == advice(key(0)).reason
        bare = {"metadata": {"name": "bare", "namespace": "team-0"}, "spec": found[name_of(key(0))]["spec"]}
        api.create({"apiVersion": API_VERSION, "kind": PROFILE_KIND, **bare})
        columns, rows = table(api, "/apis/gpuwatch.dev/v1alpha1/workloadprofiles")
        assert columns[:2] == ["Name", "Workload"]
        by_name = {row["Name"]: row for row in rows}
        cells = [
            (row["Advised"], row["Reason"]) for row in (by_name["bare"], *(by_name[name_of(key(n))] for n in (0, 1)))
        ]
        assert cells == [("Unknown", "Pending"), ("True", "Advised"), ("False", "Young")]
        api.delete({"apiVersion": API_VERSION, "kind": PROFILE_KIND, **bare})
        path = f"/apis/gpuwatch.dev/v1alpha1/namespaces/team-0/workloadprofiles/{name_of(key(0))}"
        other = api.answer("PATCH", path, {"spec": {"container": "x"}}, content_type="application/merge-patch+json")
        assert "a profile stays that of its workload" in other.text
        assert publish(writer, replace(book(3), profiles={})) == ()
        assert writer.objects(API_VERSION, PROFILE_KIND) == ()
