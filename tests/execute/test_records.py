"""Nothing that gpuwatch did outlives its record: what is deleted is undone first, and goes then."""

from __future__ import annotations

import pytest

from execute.living import ENFORCE, Fleet, drive, new_store, quick
from gpuwatch.execute.advance import ExecutorPolicies
from gpuwatch.execute.executor import Executor
from gpuwatch.frameworks import keys
from gpuwatch.model.remediation import ObjectRef, Phase, Remediation
from gpuwatch.store.custom_resources import API_VERSION, KIND, NODE_KIND
from gpuwatch.store.remediations import RemediationStore


def ref_of(found: Remediation) -> ObjectRef:
    return ObjectRef(API_VERSION, KIND if found.namespace else NODE_KIND, found.name, found.namespace)


def delete(store: RemediationStore, found: Remediation) -> None:
    """As a person does with kubectl."""
    store._writer.delete(ref_of(found))


def in_effect(fleet: Fleet) -> tuple[RemediationStore, Executor, Remediation]:
    store = new_store()
    executor = fleet.executor(store, ExecutorPolicies(ENFORCE, quick()))
    fleet.propose(executor)
    drive(fleet, executor, 1)
    (found,) = store.all()
    assert found.phase is Phase.IN_EFFECT
    return store, executor, found


@pytest.mark.parametrize("paused", [False, True])
def test_a_deleted_fence_is_taken_off_its_node_and_then_its_record_goes(*, paused: bool) -> None:
    fleet = Fleet(nodes=3, sick={"GPU-n0-0"})
    store, executor, found = in_effect(fleet)
    assert [taint["key"] for taint in fleet.node("n0")["spec"]["taints"]] == [keys.DEGRADED]
    if paused:
        store.pause("ana", "maintenance", fleet.now)
    delete(store, found)
    drive(fleet, executor, 0.2)
    assert store.all() == ()
    node = fleet.node("n0")
    assert not node["spec"].get("taints")
    assert not [key for key in node["metadata"].get("annotations", {}) if key.startswith(keys.PREFIX)]
    assert {item["type"]: item["status"] for item in node["status"]["conditions"]}.get(keys.CONDITION) in (
        None,
        "False",
    )


def test_a_deleted_release_is_restored_and_then_its_record_goes() -> None:
    fleet = Fleet(nodes=3, idle={"chat"})
    fleet.owner("Job", "chat", 4)
    before = fleet.find("chat")
    store, executor, found = in_effect(fleet)
    assert fleet.find("chat")["spec"]["suspend"] is True
    delete(store, found)
    drive(fleet, executor, 0.5)
    assert store.all() == ()
    after = fleet.find("chat")
    assert after["spec"] == before["spec"]
    assert not [key for key in after["metadata"].get("annotations", {}) if key.startswith(keys.PREFIX)]


def test_a_release_of_which_the_workload_is_gone_lets_its_record_go() -> None:
    """As in a Namespace that is deleted: all of it goes, in any order, and nothing may hold it up."""
    fleet = Fleet(nodes=3, idle={"chat"})
    fleet.owner("Job", "chat", 4)
    store, executor, found = in_effect(fleet)
    delete(store, found)
    fleet.cluster.remove(ObjectRef("batch/v1", "Job", "chat", found.namespace))
    drive(fleet, executor, 0.5)
    assert store.all() == ()


def test_under_a_pause_of_everything_a_deleted_one_stays_with_what_it_did() -> None:
    fleet = Fleet(nodes=3, sick={"GPU-n0-0"})
    store, executor, found = in_effect(fleet)
    store.pause("ana", "a fire", fleet.now, everything=True)
    delete(store, found)
    drive(fleet, executor, 0.2)
    assert [each.id for each in store.all()] == [found.id]
    assert fleet.node("n0")["spec"]["taints"]
    store.resume()
    drive(fleet, executor, 0.2)
    assert store.all() == ()
    assert not fleet.node("n0")["spec"].get("taints")
