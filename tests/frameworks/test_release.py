"""Release, proof and restoration of every owner kind, on the cluster in memory."""

import copy
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frameworks.samples import ANNOTATIONS, SAMPLES, TABLES, VOLCANO, Sample, told_state
from gpuwatch.act.execute.requests import write
from gpuwatch.facts.frameworks import WRITTEN, keys
from gpuwatch.facts.frameworks.framework import ReleaseRule
from gpuwatch.facts.frameworks.objects import (
    ABSENT,
    Creation,
    Object,
    Patch,
    Refused,
    Write,
    difference,
    key_of,
    put,
    ref_of,
    removed,
    value_at,
)
from gpuwatch.facts.frameworks.release import Release, Restoration, release, released, restore, still_holds
from gpuwatch.facts.model.remediation import ObjectRef, Saved
from gpuwatch.sources.kube.writer import Failure, WriteError
from kube.memory_cluster import MemoryCluster, merged

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
NAME = "release-4f2a"
EVERY = pytest.mark.parametrize("sample", SAMPLES, ids=[sample.id for sample in SAMPLES])
BY_ID = {sample.id: sample for sample in SAMPLES}
ALL = pytest.mark.parametrize("sample", (*SAMPLES, VOLCANO), ids=[sample.id for sample in (*SAMPLES, VOLCANO)])


def ready(result: Release | Refused) -> Release:
    assert isinstance(result, Release), result
    return result


def given_back(result: Restoration | Refused) -> Restoration:
    assert isinstance(result, Restoration), result
    return result


def started(sample: Sample, **metadata: Any) -> tuple[MemoryCluster, Object]:
    cluster = MemoryCluster()
    return cluster, cluster.put({**sample.named("team-a", **metadata), "status": sample.status})


def send(cluster: MemoryCluster, writes: Iterable[Write]) -> None:
    for each in writes:
        write(cluster, each)


def now(cluster: MemoryCluster, object_: Object) -> Object:
    found = cluster.get(ref_of(object_))
    assert found is not None
    return found


def sent(sample: Sample) -> tuple[MemoryCluster, Object, Release]:
    """The cluster with the release written, the object as it was before, and the release."""
    cluster, before = started(sample)
    plan = ready(release(before, remediation=NAME, at=NOW))
    send(cluster, plan.writes)
    return cluster, before, plan


def text(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def reason(result: object) -> str:
    assert isinstance(result, Refused), result
    return result.reason


@EVERY
@pytest.mark.parametrize("annotations", [{}, ANNOTATIONS], ids=["bare", "annotated"])
def test_a_release_is_one_write_that_says_what_was_before_and_is_taken_back_whole(
    sample: Sample, annotations: dict[str, str]
) -> None:
    cluster, before = started(sample, **({"annotations": annotations} if annotations else {}))
    plan = ready(release(before, remediation=NAME, at=NOW))
    assert [type(item) for item in plan.writes] == [Patch]
    send(cluster, plan.writes)
    gone = now(cluster, before)
    assert int(gone["metadata"]["resourceVersion"]) == int(before["metadata"]["resourceVersion"]) + 1
    assert plan.saved[0].path == sample.path
    assert text(value_at(gone, sample.path)) == text(json.loads(plan.saved[0].after))
    assert gone["metadata"]["annotations"][keys.REMEDIATION] == NAME
    assert told_state(gone) == plan.saved
    back = given_back(restore(gone, plan.saved, remediation=NAME))
    assert back.left == ()
    send(cluster, back.writes)
    again = now(cluster, before)
    assert text(again["spec"]) == text({**before["spec"], **sample.spec_after})
    assert text(again["metadata"].get("annotations", {})) == text(before["metadata"].get("annotations", {}))


@EVERY
def test_twice_is_once(sample: Sample) -> None:
    cluster, before, plan = sent(sample)
    again = ready(release(now(cluster, before), remediation=NAME, at=NOW, kept=plan.saved))
    assert again == Release((), plan.saved)
    send(cluster, given_back(restore(now(cluster, before), plan.saved, remediation=NAME)).writes)
    assert restore(now(cluster, before), plan.saved, remediation=NAME) == Restoration(())


@ALL
def test_what_another_remediation_holds_is_left_alone(sample: Sample) -> None:
    cluster, before, plan = sent(sample)
    assert NAME in reason(release(now(cluster, before), remediation="other", at=NOW))
    assert NAME in reason(restore(now(cluster, before), plan.saved, remediation="other"))


@EVERY
def test_what_somebody_changed_since_is_theirs(sample: Sample) -> None:
    cluster, before, plan = sent(sample)
    theirs = {"true": False, "false": True, "0": 7}.get(plan.saved[0].after, "2030-01-01T00:00:00Z")
    cluster.put(put(now(cluster, before), sample.path, theirs))
    back = given_back(restore(now(cluster, before), plan.saved, remediation=NAME))
    assert back.left[0] == sample.path
    send(cluster, back.writes)
    after = now(cluster, before)
    assert value_at(after, sample.path) == theirs
    assert keys.REMEDIATION not in after["metadata"].get("annotations", {})


@EVERY
def test_a_write_between_reading_and_releasing_is_a_conflict(sample: Sample) -> None:
    cluster, before = started(sample)
    plan = ready(release(before, remediation=NAME, at=NOW))
    cluster.patch(ref_of(before), {"metadata": {"labels": {"somebody": "else"}}})
    with pytest.raises(WriteError) as caught:
        send(cluster, plan.writes)
    assert caught.value.failure is Failure.CONFLICT


@EVERY
def test_a_namesake_is_not_restored(sample: Sample) -> None:
    cluster, before, plan = sent(sample)
    namesake = now(cluster, before)
    namesake["metadata"]["uid"] = "another"
    assert "another object" in reason(restore(namesake, plan.saved, remediation=NAME))


@ALL
def test_what_is_released_by_somebody_else_or_going_away_is_not_touched(sample: Sample) -> None:
    _, object_ = started(sample)
    rule = WRITTEN[key_of(sample.object)].release
    assert isinstance(rule, ReleaseRule)
    for path, value in rule.fields(object_, NOW):
        assert "not by gpuwatch" in reason(release(put(object_, path, value), remediation=NAME, at=NOW))
    leaving = put(object_, "/metadata/deletionTimestamp", "2026-11-21T11:00:00Z")
    assert "deleted" in reason(release(leaving, remediation=NAME, at=NOW))
    odd = {**object_, "apiVersion": f"{object_['apiVersion'].rpartition('/')[0]}/v99"}
    assert "not known" in reason(release(odd, remediation=NAME, at=NOW))


@ALL
def test_proof_of_release_needs_spec_status_pods_and_groups(sample: Sample) -> None:
    cluster, before = started(sample)
    assert released(before, ()) is False
    send(cluster, ready(release(before, remediation=NAME, at=NOW)).writes)
    told = now(cluster, before)
    gone = {**told, "status": {**sample.released, "observedGeneration": told["metadata"]["generation"]}}
    pod = {"metadata": {"name": "p"}, "status": {"phase": "Running"}}
    assert released(gone, ()) is True
    assert released(gone, [{**pod, "status": {"phase": "Succeeded"}}, {**pod, "status": {"phase": "Failed"}}]) is True
    assert released(gone, None) is None
    assert released(gone, (), None) is None
    assert released(gone, [pod]) is False
    leaving = {"name": "p", "deletionTimestamp": "2026-11-21T12:00:00Z"}
    assert released(gone, [{**pod, "metadata": leaving}]) is False
    assert released(gone, [{"metadata": leaving, "status": {"phase": "Failed"}}]) is False
    group = {"metadata": {"ownerReferences": [{"uid": told["metadata"]["uid"]}]}, "status": {"phase": "Running"}}
    assert released(gone, (), [group]) is False
    assert released(gone, (), [{**group, "status": {"phase": "Pending"}}]) is True
    assert released(gone, (), [{**group, "metadata": {"ownerReferences": [{"uid": "other"}]}}]) is True
    if sample is not VOLCANO:
        for item in told_state(told):
            undone = removed(gone, item.path) if item.before == "" else put(gone, item.path, json.loads(item.before))
            assert released(undone, ()) is False


@pytest.mark.parametrize(
    ("id_", "status"), TABLES["holds"], ids=lambda value: value if isinstance(value, str) else "-".join(value)
)
def test_a_status_that_says_otherwise_is_no_proof(id_: str, status: Object) -> None:
    cluster, before, _ = sent(BY_ID[id_])
    told = {**now(cluster, before), "status": status}
    assert released(told, ()) is False
    assert still_holds(told)


def test_pods_of_an_unknown_kind_prove_nothing() -> None:
    foreign = {"apiVersion": "example.org/v1", "kind": "Sprocket", "metadata": {"name": "s"}}
    assert released(foreign, ()) is None
    assert "no way" in reason(release(foreign, remediation=NAME, at=NOW))
    assert "no way" in reason(restore(foreign, (), remediation=NAME))


@pytest.mark.parametrize(
    ("id_", "changes", "told"),
    TABLES["refuses"],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "with",
)
def test_what_would_not_work_is_refused(id_: str, changes: dict[str, Any], told: str) -> None:
    _, object_ = started(BY_ID[id_])
    for path, value in changes.items():
        object_ = put(object_, path, value)
    assert told in reason(release(object_, remediation=NAME, at=NOW))


def test_a_workload_without_an_owner_is_refused() -> None:
    _, object_ = started(BY_ID["workload"])
    assert "no controller" in reason(release(removed(object_, "/metadata/ownerReferences"), remediation=NAME, at=NOW))


def test_an_annotation_of_the_mode_counts_before_the_status() -> None:
    _, object_ = started(BY_ID["inferenceservice"], annotations={"serving.kserve.io/deploymentMode": "RawDeployment"})
    assert "RawDeployment" in reason(release(object_, remediation=NAME, at=NOW))


@pytest.mark.parametrize("mode", ["RawDeployment", "Standard"])
def test_without_an_autoscaler_kserve_takes_minreplicas_for_the_number(mode: str) -> None:
    sample = BY_ID["inferenceservice"]
    told = {"serving.kserve.io/deploymentMode": mode, "serving.kserve.io/autoscalerClass": "none"}
    _, object_ = started(sample, annotations=told)
    assert [item.path for item in ready(release(object_, remediation=NAME, at=NOW)).saved] == [sample.path]
    many_hosts = put(object_, "/spec/predictor/workerSpec", {"size": 1})
    assert "workers on other Nodes" in reason(release(many_hosts, remediation=NAME, at=NOW))
    scaled = put(object_, "/metadata/annotations/serving.kserve.io~1autoscalerClass", "hpa")
    assert mode in reason(release(scaled, remediation=NAME, at=NOW))


@ALL
def test_annotations_that_a_tenant_wrote_are_no_record(sample: Sample) -> None:
    """Both annotations are forged: nothing was stored, so nothing is adopted."""
    _, object_ = started(sample)
    forged = [{"path": "/spec/priorityClassName", "before": '"system-cluster-critical"', "after": '"low"'}]
    marks = {keys.REMEDIATION: NAME, keys.SAVED_STATE: json.dumps(forged)}
    marked = put(object_, "/metadata/annotations", marks)
    assert "has not written to it" in reason(release(marked, remediation=NAME, at=NOW))
    other = Saved(target=ObjectRef("v1", "Pod", "other", "ml", "another uid"), path="/spec/x", before="", after="1")
    assert "has not written to it" in reason(release(marked, remediation=NAME, at=NOW, kept=[other]))


@EVERY
def test_a_restoration_writes_the_fields_of_its_release_alone(sample: Sample) -> None:
    cluster, before, plan = sent(sample)
    gone = put(now(cluster, before), "/spec/priorityClassName", "low")
    forged = Saved(
        target=ref_of(gone), path="/spec/priorityClassName", before='"system-cluster-critical"', after='"low"'
    )
    back = given_back(restore(gone, (*plan.saved, forged), remediation=NAME))
    assert back.left == (forged.path,)
    assert "system-cluster-critical" not in str(back.writes)


def volcano(**status: Any) -> Object:
    _, object_ = started(VOLCANO)
    return {**object_, "status": {"state": {"phase": "Running"}, **status}}


def test_volcano_is_told_by_a_command_after_the_mark() -> None:
    cluster, before = started(VOLCANO)
    plan = ready(release(before, remediation=NAME, at=NOW))
    assert [type(item) for item in plan.writes] == [Patch, Creation]
    send(cluster, plan.writes)
    (command,) = cluster.objects("bus.volcano.sh/v1alpha1", "Command", "team-a")
    assert (command["metadata"]["name"], command["action"]) == (f"{NAME}-abortjob", "AbortJob")
    assert (command["target"]["name"], command["target"]["uid"]) == ("volcano", before["metadata"]["uid"])
    assert now(cluster, before)["spec"] == before["spec"]
    # Killed between the two writes: the same Command again.
    again = ready(release(now(cluster, before), remediation=NAME, at=NOW, kept=plan.saved))
    assert (again.writes, again.saved) == (plan.writes[1:], plan.saved)
    for phase in ("Aborting", "Aborted"):
        aborted = cluster.put({**now(cluster, before), "status": {"state": {"phase": phase}}})
        back = given_back(restore(aborted, plan.saved, remediation=NAME))
        assert [type(item) for item in back.writes] == [Creation, Patch]
    assert ready(release(aborted, remediation=NAME, at=NOW, kept=plan.saved)).writes == ()
    send(cluster, back.writes)
    actions = {item["action"] for item in cluster.objects("bus.volcano.sh/v1alpha1", "Command")}
    assert actions == {"AbortJob", "ResumeJob"}
    assert keys.REMEDIATION not in now(cluster, before)["metadata"].get("annotations", {})


def test_a_volcano_job_that_somebody_resumed_is_left_running() -> None:
    cluster, before, plan = sent(VOLCANO)
    back = given_back(restore(now(cluster, before), plan.saved, remediation=NAME))
    assert ([type(item) for item in back.writes], back.left) == ([Patch], ("/status/state/phase",))


@pytest.mark.parametrize(("status", "spec", "told"), TABLES["volcano_tries"].values(), ids=TABLES["volcano_tries"])
def test_resuming_a_volcano_job_costs_a_try(status: Object, spec: Object, told: str) -> None:
    object_ = volcano(**status)
    object_ = {**object_, "spec": {**object_["spec"], **spec}}
    found = release(object_, remediation=NAME, at=NOW)
    if told:
        assert told in reason(found)
    else:
        assert isinstance(found, Release)


_values = st.recursive(
    st.booleans() | st.integers(-5, 5) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
_objects = st.dictionaries(st.text("ab~/", min_size=1, max_size=3), _values, max_size=4)


@settings(max_examples=60)
@given(
    st.sampled_from(SAMPLES), _objects, st.dictionaries(st.text("ab~/.", min_size=1, max_size=4), st.text(max_size=5))
)
def test_whatever_the_spec_it_comes_back_byte_for_byte(
    sample: Sample, more: Object, annotations: dict[str, str]
) -> None:
    made = sample.named("team-a")
    made["spec"] = {**copy.deepcopy(more), **made["spec"]}
    if annotations:
        made["metadata"]["annotations"] = annotations
    cluster = MemoryCluster()
    before = cluster.put({**made, "status": sample.status})
    plan = ready(release(before, remediation=NAME, at=NOW))
    send(cluster, plan.writes)
    gone = now(cluster, before)
    assert gone["spec"] != before["spec"] or sample.id == "notebook"
    send(cluster, given_back(restore(gone, plan.saved, remediation=NAME)).writes)
    again = now(cluster, before)
    assert text(again["spec"]) == text({**before["spec"], **sample.spec_after})
    assert text(again["metadata"].get("annotations", {})) == text(before["metadata"].get("annotations", {}))


@settings(max_examples=100)
@given(_objects, _objects)
def test_a_difference_makes_the_one_of_the_other(before: Object, after: Object) -> None:
    assert text(merged(before, difference(before, after))) == text(after)


def test_a_pointer_finds_what_it_names() -> None:
    document = {"a/b": {"~": [1, {"c": None}]}}
    assert value_at(document, "/a~1b/~0/1/c") is None
    assert value_at(document, "/a~1b/~0/2") is ABSENT
    assert value_at(document, "") is document
    with pytest.raises(ValueError, match="no JSON pointer"):
        value_at(document, "a")


def test_what_is_not_there_is_not_removed() -> None:
    document = {"a": {"b": 1}}
    for pointer in ("/x", "/x/y", "/a/x", "/a/b/c"):
        assert removed(document, pointer) == document
    assert removed(document, "/a/b") == {"a": {}}
    assert document == {"a": {"b": 1}}
