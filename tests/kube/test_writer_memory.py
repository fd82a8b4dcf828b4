"""The cluster in memory answers as the real one does, and can be told to fail."""

from collections.abc import Callable

import pytest

from gpuwatch.facts.frameworks.objects import Object
from gpuwatch.facts.model.remediation import ObjectRef
from gpuwatch.sources.kube.writer import ClusterWriter, Failure, WriteError
from kube.memory_cluster import MemoryCluster
from kube.writer_conformance import World, WriterConformance

JOBS_ONLY = (("get", "jobs.batch"), ("list", "jobs.batch"))


class MemoryWorld:
    def __init__(self) -> None:
        self._cluster = MemoryCluster(unserved=["unserved.example.org"])

    def writer(self, lease_check: Callable[[], None] = lambda: None) -> ClusterWriter:
        return self._cluster.writer(lease_check=lease_check)

    def narrow(self, namespace: str) -> ClusterWriter:
        return self._cluster.writer(may=lambda verb, resource: (verb, resource) in JOBS_ONLY)

    def losing(self) -> ClusterWriter:
        def lose(_verb: str, _what: str, done: bool) -> None:
            if done:
                raise WriteError(Failure.UNSURE, "No answer.")

        return self._cluster.writer(interfere=lose)

    def set_status(self, object_: Object, status: Object) -> None:
        self._cluster.put({**object_, "status": status})


class TestMemoryCluster(WriterConformance):
    @pytest.fixture
    def world(self) -> World:
        return MemoryWorld()


def test_what_an_object_owns_goes_with_it() -> None:
    cluster = MemoryCluster()
    owner = cluster.put({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j", "namespace": "a"}})
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": owner["metadata"]["uid"]}
    for name, owners in (("p", [reference]), ("q", [])):
        metadata = {"name": name, "namespace": "a", "ownerReferences": owners}
        cluster.put({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})
    cluster.delete(ObjectRef("batch/v1", "Job", "j", "a"))
    assert [item["metadata"]["name"] for item in cluster.objects("v1", "Pod")] == ["q"]


def test_its_generation_follows_the_spec_and_its_version_every_change() -> None:
    cluster = MemoryCluster()
    ref = ObjectRef("batch/v1", "Job", "j", "a")
    cluster.put({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j", "namespace": "a"}, "spec": {}})
    seen = []
    for patch in ({"metadata": {"labels": {"a": "b"}}}, {"spec": {"suspend": True}}, {"spec": {"suspend": True}}):
        metadata = cluster.patch(ref, patch)["metadata"]
        seen.append((metadata["generation"], metadata["resourceVersion"]))
    assert seen == [(1, "2"), (2, "3"), (2, "3")]
