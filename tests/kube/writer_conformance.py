"""What every ClusterWriter answers: held by `LiveWriter` on a real API server and by `MemoryCluster`.

A class that takes part gives the fixture `world`; each test has a Namespace of its own.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Protocol

import pytest

from gpuwatch.facts.frameworks.objects import Object, ref_of, version_of
from gpuwatch.facts.model.remediation import ObjectRef
from gpuwatch.sources.kube.writer import ClusterWriter, Failure, PatchKind, WriteError, grant

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
_numbers = itertools.count()


class World(Protocol):
    """One cluster. writer: may do all, with this lease check. narrow: may only get and list Jobs. losing: everything it
    writes is carried out, and no answer comes back."""

    def writer(self, lease_check: Callable[[], None] = lambda: None) -> ClusterWriter: ...

    def narrow(self, namespace: str) -> ClusterWriter: ...

    def losing(self) -> ClusterWriter: ...

    def set_status(self, object_: Object, status: Object) -> None:
        """As a controller does."""


@dataclass
class Place:
    world: World
    writer: ClusterWriter
    namespace: str

    def job(self, name: str = "train", **spec: object) -> Object:
        template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "example.org/main:1"}]}}
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {"parallelism": 2, "suspend": False, "template": template, **spec},
        }

    def pod(self, name: str, **labels: str) -> Object:
        """A running Pod that is ready."""
        made = self.writer.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": self.namespace, "labels": labels},
                "spec": {"containers": [{"name": "main", "image": "example.org/main:1"}]},
            }
        )
        ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        self.world.set_status(made, ready)
        return made

    def budget(self, name: str, allowed: int, **labels: str) -> Object:
        made = self.writer.create(
            {
                "apiVersion": "policy/v1",
                "kind": "PodDisruptionBudget",
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": {"minAvailable": 1, "selector": {"matchLabels": labels}},
            }
        )
        counts = {"currentHealthy": 1 + allowed, "desiredHealthy": 1, "expectedPods": 1 + allowed}
        self.world.set_status(made, {"observedGeneration": 1, "disruptionsAllowed": allowed, **counts})
        return made

    def budgets(self) -> tuple[Object, ...]:
        return self.writer.objects("policy/v1", "PodDisruptionBudget", self.namespace)


def new_place(world: World) -> Place:
    namespace = f"writer-{next(_numbers)}"
    writer = world.writer()
    writer.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    return Place(world, writer, namespace)


def failed(action: Callable[[], object]) -> WriteError:
    with pytest.raises(WriteError) as caught:
        action()
    return caught.value


def namesake(ref: ObjectRef) -> ObjectRef:
    return replace(ref, uid="11111111-2222-3333-4444-555555555555")


class WriterConformance:
    @pytest.fixture
    def place(self, world: World) -> Place:
        return new_place(world)

    def test_what_is_created_is_read_again(self, place: Place) -> None:
        made = place.writer.create(place.job())
        assert made["metadata"]["uid"]
        ref = ref_of(made)
        assert ref == ObjectRef("batch/v1", "Job", "train", place.namespace, made["metadata"]["uid"])
        assert place.writer.get(ref) == made
        assert place.writer.get(replace(ref, uid="")) == made

    def test_nothing_is_read_where_there_is_nothing_or_a_namesake(self, place: Place) -> None:
        ref = ref_of(place.writer.create(place.job()))
        assert place.writer.get(namesake(ref)) is None
        assert place.writer.get(replace(ref, name="other", uid="")) is None

    def test_a_kind_that_is_not_served_has_no_objects_and_takes_none(self, place: Place) -> None:
        unserved = ObjectRef("unserved.example.org/v1", "Thing", "a", place.namespace)
        assert place.writer.get(unserved) is None
        assert place.writer.objects(unserved.api_version, unserved.kind) == ()
        thing = {
            "apiVersion": unserved.api_version,
            "kind": "Thing",
            "metadata": {"name": "a", "namespace": place.namespace},
        }
        for action in (lambda: place.writer.create(thing), lambda: place.writer.patch(unserved, {"spec": {}})):
            error = failed(action)
            assert (error.failure, error.message) == (
                Failure.INVALID,
                "The cluster does not serve Thing of unserved.example.org/v1.",
            )

    def test_objects_are_listed_by_namespace_and_label_with_their_kind(self, place: Place) -> None:
        for name, team in (("a", "red"), ("b", "blue"), ("c", "red")):
            job = place.job(name)
            job["metadata"]["labels"] = {"team": team}
            place.writer.create(job)
        listed = place.writer.objects("batch/v1", "Job", place.namespace)
        assert [(item["apiVersion"], item["kind"], item["metadata"]["name"]) for item in listed] == [
            ("batch/v1", "Job", "a"), ("batch/v1", "Job", "b"), ("batch/v1", "Job", "c")
        ]  # fmt: skip
        red = place.writer.objects("batch/v1", "Job", place.namespace, "team=red")
        assert [item["metadata"]["name"] for item in red] == ["a", "c"]
        everywhere = [item["metadata"] for item in place.writer.objects("batch/v1", "Job")]
        assert {item["name"] for item in everywhere if item["namespace"] == place.namespace} == {"a", "b", "c"}

    def test_what_exists_is_not_created_again(self, place: Place) -> None:
        place.writer.create(place.job())
        assert failed(lambda: place.writer.create(place.job())).failure is Failure.CONFLICT

    @pytest.mark.parametrize("kind", list(PatchKind), ids=lambda kind: kind.name.lower())
    def test_a_patch_changes_what_it_names_and_the_version(self, place: Place, kind: PatchKind) -> None:
        made = place.writer.create(place.job())
        wanted = {"spec": {"suspend": True}, "metadata": {"annotations": {"gpuwatch.dev/remediation": "r"}}}
        changed = place.writer.patch(ref_of(made), wanted, kind=kind, version=version_of(made))
        assert changed["spec"] == {**made["spec"], "suspend": True}
        assert version_of(changed) != version_of(made)
        assert place.writer.get(ref_of(made)) == changed

    @pytest.mark.parametrize("kind", list(PatchKind), ids=lambda kind: kind.name.lower())
    def test_a_patch_never_lands_on_a_namesake(self, place: Place, kind: PatchKind) -> None:
        made = place.writer.create(place.job())
        wanted = {"spec": {"suspend": True}}
        error = failed(lambda: place.writer.patch(namesake(ref_of(made)), wanted, kind=kind))
        assert error.failure is Failure.NOT_FOUND
        assert place.writer.get(ref_of(made)) == made

    @pytest.mark.parametrize("kind", list(PatchKind), ids=lambda kind: kind.name.lower())
    def test_a_patch_of_a_status_never_lands_on_a_namesake(self, place: Place, kind: PatchKind) -> None:
        pod = ref_of(place.pod("worker"))
        before = place.writer.get(pod)
        wanted = {"status": {"phase": "Failed"}}
        error = failed(lambda: place.writer.patch(namesake(pod), wanted, kind=kind, subresource="status"))
        assert error.failure is Failure.NOT_FOUND
        assert place.writer.get(pod) == before
        done = place.writer.patch(pod, wanted, kind=kind, subresource="status")
        assert done["status"]["phase"] == "Failed"

    @pytest.mark.parametrize("kind", list(PatchKind), ids=lambda kind: kind.name.lower())
    def test_a_patch_of_an_old_version_is_a_conflict(self, place: Place, kind: PatchKind) -> None:
        made = place.writer.create(place.job())
        newer = place.writer.patch(ref_of(made), {"spec": {"parallelism": 3}})
        wanted = {"spec": {"suspend": True}}
        error = failed(lambda: place.writer.patch(ref_of(made), wanted, kind=kind, version=version_of(made)))
        assert error.failure is Failure.CONFLICT
        assert place.writer.get(ref_of(made)) == newer

    def test_null_removes_and_what_it_made_goes(self, place: Place) -> None:
        made = place.writer.create(place.job())
        marked = place.writer.patch(ref_of(made), {"metadata": {"annotations": {"gpuwatch.dev/remediation": "r"}}})
        assert marked["metadata"]["annotations"] == {"gpuwatch.dev/remediation": "r"}
        again = place.writer.patch(ref_of(made), {"metadata": {"annotations": {"gpuwatch.dev/remediation": None}}})
        assert "annotations" not in again["metadata"]

    def test_a_condition_is_set_beside_the_others(self, place: Place) -> None:
        pod = ref_of(place.pod("worker"))
        told = {"status": {"conditions": [{"type": "GPUDegraded", "status": "True"}]}}
        done = place.writer.patch(pod, told, kind=PatchKind.STRATEGIC, subresource="status")
        assert {item["type"]: item["status"] for item in done["status"]["conditions"]} == {
            "Ready": "True", "GPUDegraded": "True"
        }  # fmt: skip

    def test_what_may_not_be_is_invalid(self, place: Place) -> None:
        made = place.writer.create(place.job())
        error = failed(lambda: place.writer.patch(ref_of(made), {"spec": {"parallelism": -1}}))
        assert (error.failure, error.status) == (Failure.INVALID, 422)
        assert failed(lambda: place.writer.create(place.job("bad", parallelism=-1))).failure is Failure.INVALID

    def test_what_has_a_finalizer_stays_until_it_is_taken_off(self, place: Place) -> None:
        made = place.writer.create(place.job())
        ref = ref_of(made)
        place.writer.patch(ref, {"metadata": {"finalizers": ["example.com/hold"]}})
        for _ in range(2):
            place.writer.delete(ref)
            found = place.writer.get(ref)
            assert found is not None
            assert found["metadata"]["deletionTimestamp"]
        place.writer.patch(ref, {"metadata": {"finalizers": None}}, version=version_of(found))
        assert place.writer.get(ref) is None

    def test_what_is_gone_is_not_found(self, place: Place) -> None:
        made = place.writer.create(place.job())
        ref = ref_of(made)
        assert failed(lambda: place.writer.delete(namesake(ref))).failure is Failure.NOT_FOUND
        assert place.writer.get(ref) is not None
        place.writer.delete(ref)
        assert place.writer.get(ref) is None
        assert failed(lambda: place.writer.delete(ref)).failure is Failure.NOT_FOUND
        assert failed(lambda: place.writer.patch(ref, {"spec": {"suspend": True}})).failure is Failure.NOT_FOUND

    def test_a_pod_is_evicted_only_by_its_own_uid(self, place: Place) -> None:
        pod = ref_of(place.pod("worker"))
        error = failed(lambda: place.writer.evict(namesake(pod)))
        assert error.failure is Failure.NOT_FOUND
        assert not _going(place.writer, pod)
        place.writer.evict(pod)
        assert _going(place.writer, pod)

    @pytest.mark.parametrize("budget", [False, True], ids=["free", "budget"])
    def test_an_eviction_of_an_old_version_is_a_conflict(self, place: Place, budget: bool) -> None:
        """As with a patch: whatever was written since makes an eviction that was in hand come too late. A budget counts
        it all the same, until its controller looks again."""
        pod = ref_of(place.pod("worker", app="chat"))
        if budget:
            place.budget("kept", 2, app="chat")
        read = version_of(_there(place.writer, pod))
        place.writer.patch(pod, {"metadata": {"annotations": {"gpuwatch.dev/notice": "looked at again"}}})
        error = failed(lambda: place.writer.evict(pod, version=read))
        assert error.failure is Failure.CONFLICT
        assert not _going(place.writer, pod)
        left = [each["status"]["disruptionsAllowed"] for each in place.budgets()]
        assert left == ([1] if budget else [])
        place.writer.evict(pod, version=version_of(_there(place.writer, pod)))
        assert _going(place.writer, pod)

    def test_a_condition_of_an_old_version_is_a_conflict(self, place: Place) -> None:
        pod = ref_of(place.pod("worker"))
        read = version_of(_there(place.writer, pod))
        newer = place.writer.patch(pod, {"metadata": {"annotations": {"gpuwatch.dev/notice": "looked at again"}}})
        told = {"status": {"conditions": [{"type": "GPUDegraded", "status": "True"}]}}
        options = {"kind": PatchKind.STRATEGIC, "subresource": "status"}
        error = failed(lambda: place.writer.patch(pod, told, version=read, **options))  # type: ignore[arg-type]
        assert error.failure is Failure.CONFLICT
        assert place.writer.get(pod) == newer
        place.writer.patch(pod, told, version=version_of(newer), **options)  # type: ignore[arg-type]

    def test_a_budget_refuses_by_name_and_counts(self, place: Place) -> None:
        first, second = (ref_of(place.pod(name, app="chat")) for name in ("a", "b"))
        place.budget("kept", 1, app="chat")
        place.writer.evict(first)
        error = failed(lambda: place.writer.evict(second))
        assert (error.failure, error.status) == (Failure.BUDGET, 429)
        assert "kept" in str(error)
        assert not _going(place.writer, second)

    def test_a_pod_with_two_budgets_is_never_evicted(self, place: Place) -> None:
        pod = ref_of(place.pod("worker", app="chat"))
        place.budget("one", 1, app="chat")
        place.budget("two", 1, app="chat")
        assert failed(lambda: place.writer.evict(pod)).failure is Failure.INVALID

    def test_what_may_not_be_done_is_forbidden_and_says_what_to_grant(self, place: Place) -> None:
        made = place.writer.create(place.job())
        pod = ref_of(place.pod("worker"))
        narrow = place.world.narrow(place.namespace)
        assert narrow.get(ref_of(made)) == made
        for action, granted in (
            (lambda: narrow.patch(ref_of(made), {"spec": {"suspend": True}}), ("patch", "jobs.batch")),
            (lambda: narrow.patch(pod, {"status": {}}, subresource="status"), ("patch", "pods/status")),
            (lambda: narrow.create(place.job("other")), ("create", "jobs.batch")),
            (lambda: narrow.delete(ref_of(made)), ("delete", "jobs.batch")),
            (lambda: narrow.evict(pod), ("create", "pods/eviction")),
            (lambda: narrow.get(pod), ("get", "pods")),
            (lambda: narrow.objects("v1", "Pod", place.namespace), ("list", "pods")),
        ):
            error = failed(action)
            assert error.failure is Failure.FORBIDDEN
            assert error.message.endswith(f" {grant(*granted)}.")

    def test_a_lease_check_stops_every_write_and_no_read(self, place: Place) -> None:
        class LeadershipLost(Exception):
            pass

        def lease_check() -> None:
            raise LeadershipLost

        made = place.writer.create(place.job())
        pod = ref_of(place.pod("worker"))
        checked = place.world.writer(lease_check)
        assert checked.get(ref_of(made)) == made
        assert checked.objects("batch/v1", "Job", place.namespace) == (made,)
        for action in (
            lambda: checked.create(place.job("other")),
            lambda: checked.patch(ref_of(made), {"spec": {"suspend": True}}),
            lambda: checked.delete(ref_of(made)),
            lambda: checked.evict(pod),
            lambda: checked.event(ref_of(made), at=NOW, reason="Released", action="Release", note="Idle."),
        ):
            with pytest.raises(LeadershipLost):
                action()
        assert place.writer.get(ref_of(made)) == made
        assert place.writer.objects("events.k8s.io/v1", "Event", place.namespace) == ()

    def test_without_an_answer_nothing_is_known_and_it_has_happened(self, place: Place) -> None:
        made = place.writer.create(place.job())
        pod = ref_of(place.pod("worker"))
        losing = place.world.losing()
        for action in (
            lambda: losing.patch(ref_of(made), {"spec": {"suspend": True}}),
            lambda: losing.create(place.job("other")),
            lambda: losing.evict(pod),
        ):
            assert failed(action).failure is Failure.UNSURE
        now = place.writer.get(ref_of(made))
        assert now is not None
        assert now["spec"]["suspend"] is True
        assert place.writer.get(ObjectRef("batch/v1", "Job", "other", place.namespace)) is not None
        assert _going(place.writer, pod)

    def test_an_event_said_again_is_counted(self, place: Place) -> None:
        made = ref_of(place.writer.create(place.job()))
        for minute in range(3):
            at = NOW + timedelta(minutes=minute)
            place.writer.event(made, at=at, reason="Notified", action="Release", note="It is idle.")
        place.writer.event(made, at=NOW, reason="Notified", action="Release", note="Something else.", warning=True)
        events = place.writer.objects("events.k8s.io/v1", "Event", place.namespace)
        said = {item["note"]: item for item in events}
        assert sorted(said) == ["It is idle.", "Something else."]
        again = said["It is idle."]
        assert (again["regarding"]["uid"], again["type"], again["reason"]) == (made.uid, "Normal", "Notified")
        assert again["series"] == {"count": 3, "lastObservedTime": "2026-11-21T12:02:00.000000Z"}
        assert (said["Something else."]["type"], said["Something else."].get("series")) == ("Warning", None)

    def test_an_event_of_a_node_stands_in_default_and_a_long_note_is_cut(self, place: Place) -> None:
        name = f"node-of-{place.namespace}"
        node = ref_of(place.writer.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}))
        place.writer.event(node, at=NOW, reason="Tainted", action="Taint", note="ü" * 2000)
        events = place.writer.objects("events.k8s.io/v1", "Event", "default")
        note = next(item["note"] for item in events if item["regarding"]["name"] == name)
        assert note == "ü" * 500


def _going(writer: ClusterWriter, pod: ObjectRef) -> bool:
    """Gone, or about to be: a Pod that was on a Node goes on for its grace period."""
    found = writer.get(pod)
    return found is None or "deletionTimestamp" in found["metadata"]


def _there(writer: ClusterWriter, ref: ObjectRef) -> Object:
    found = writer.get(ref)
    assert found is not None
    return found
