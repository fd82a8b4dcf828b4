"""A degraded Node is handed off to a repair system: by a label, by an object, and only once nobody works there."""

import json
from dataclasses import replace
from typing import Any

import pytest

from execute.living import ENFORCE, Fleet, drive, only, quick
from gpuwatch.act.execute.advance import ExecutorPolicies
from gpuwatch.act.execute.executor import Executor
from gpuwatch.act.execute.policy import ExecutePolicy
from gpuwatch.act.remediations import RemediationStore
from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.frameworks.objects import Object, ref_of
from gpuwatch.facts.model.decision import ActionKind
from gpuwatch.facts.model.remediation import Phase, StepKind

MAINTENANCE: Object = {
    "apiVersion": "nodemaintenance.medik8s.io/v1beta1",
    "kind": "NodeMaintenance",
    "metadata": {"name": "gpuwatch-{node}"},
    "spec": {"nodeName": "{node}", "reason": "{remediation}: {cause}. {reason}", "{node}": [{"kept": "{not one"}]},
}
OF_N0 = ("nodemaintenance.medik8s.io/v1beta1", "NodeMaintenance")


def begun(store: RemediationStore, **changes: Any) -> tuple[Fleet, Executor]:
    """A gang holds all of n0, of which one GPU is sick; the Node is tainted with NoSchedule at once."""
    fleet = Fleet(sick={"GPU-n0-0"})
    fleet.owner("Job", "train", 8)
    plan = replace(ENFORCE, modes={ActionKind.TAINT_NODE: ENFORCE.mode(ActionKind.TAINT_NODE)})
    policy = quick(**{"first_taint_effect": "NoSchedule", "hand_off_object": MAINTENANCE, **changes})
    executor = fleet.executor(store, ExecutorPolicies(plan, policy))
    fleet.propose(executor)
    return fleet, executor


def handed(fleet: Fleet) -> list[Object]:
    return list(fleet.cluster.objects(*OF_N0))


def empty(fleet: Fleet) -> None:
    """The gang is over."""
    fleet.cluster.remove(ref_of(fleet.find("train")))


def test_a_node_is_handed_off_once_it_is_empty_and_taken_back_when_it_is_healthy(store: RemediationStore) -> None:
    fleet, executor = begun(store, hand_off_label="repair=yes")
    drive(fleet, executor, 2)
    assert only(store).phase is Phase.IN_EFFECT
    assert handed(fleet) == []
    assert "labels" not in fleet.node("n0")["metadata"]
    empty(fleet)
    drive(fleet, executor, 0.5)
    (made,) = handed(fleet)
    name = only(store).name
    assert made["metadata"]["name"] == "gpuwatch-n0"
    assert made["metadata"]["annotations"] == {keys.REMEDIATION: name}
    assert made["spec"]["nodeName"] == "n0"
    assert made["spec"]["reason"].startswith(f"{name}: xid. ")
    assert made["spec"]["{node}"] == [{"kept": "{not one"}]
    assert fleet.node("n0")["metadata"]["labels"] == {"repair": "yes"}
    assert only(store).phase is Phase.IN_EFFECT
    fleet.sick = set()
    drive(fleet, executor, 1)
    assert only(store).phase is Phase.SUCCEEDED
    assert handed(fleet) == []
    assert not fleet.node("n0")["metadata"].get("labels")
    assert len([line for line in fleet.log if "NodeMaintenance" in line]) == 2  # made and deleted once


def test_what_another_asked_of_the_repair_system_is_theirs(store: RemediationStore) -> None:
    fleet, executor = begun(store)
    theirs = {**MAINTENANCE, "metadata": {"name": "gpuwatch-n0"}, "spec": {"nodeName": "n0"}}
    fleet.cluster.put(theirs)
    drive(fleet, executor, 0.5)
    empty(fleet)
    drive(fleet, executor, 0.5)
    (step,) = [step for step in only(store).steps if step.kind is StepKind.HAND_OFF]
    assert step.done_at is not None
    assert "gpuwatch did not make it" in step.error
    fleet.sick = set()
    drive(fleet, executor, 1)
    assert only(store).phase is Phase.SUCCEEDED
    assert [item["spec"] for item in handed(fleet)] == [{"nodeName": "n0"}]


def test_the_taint_stands_where_no_order_can_be_made(store: RemediationStore) -> None:
    fleet, executor = begun(store)
    wanted = replace(executor.policies.execute, hand_off_object={**MAINTENANCE, "apiVersion": "v1", "kind": "Node"})
    executor = replace(executor, policies=replace(executor.policies, execute=wanted))
    empty(fleet)

    def refuse(verb: str, what: str, done: bool) -> None:
        if verb == "create" and "gpuwatch-n0" in what and not done:
            from gpuwatch.sources.kube.writer import Failure, WriteError

            raise WriteError(Failure.FORBIDDEN, f"Grant the verb `{verb}`.")

    fleet.before_write = refuse
    drive(fleet, executor, 1)
    assert only(store).phase is Phase.IN_EFFECT
    (step,) = [step for step in only(store).steps if step.kind is StepKind.HAND_OFF]
    assert "Grant the verb" in step.error


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"kind": "NodeMaintenance", "metadata": {"name": "{node}"}}, "apiVersion is None"),
        ({"apiVersion": "a/v1", "metadata": {"name": "{node}"}}, "kind is None"),
        ({"apiVersion": "a/v1", "kind": "A"}, "metadata.name is None"),
        ({"apiVersion": "a/v1", "kind": "A", "metadata": {"name": "one"}}, "the same for every Node"),
        ({**MAINTENANCE, "spec": {"x": [{"y": "of {nod}"}]}}, "{nod} is not one of {node}, {remediation}"),
        ({**MAINTENANCE, "spec": {"{reson}": "x"}}, "{reson} is not one of {node}, {remediation}"),
    ],
)
def test_an_object_that_cannot_be_made_is_refused_by_name(wrong: Object, said: str) -> None:
    with pytest.raises(ValueError, match="hand_off_object") as error:
        ExecutePolicy(hand_off_object=wrong)
    assert said in str(error.value)


def test_an_order_is_data_and_not_a_template_of_a_template() -> None:
    """What is filled in is not filled in again."""
    from gpuwatch.act.execute.steps import _filled_in

    told = {"node": "{reason}", "reason": "x"}
    assert json.loads(json.dumps(_filled_in({"a": "{node} {reason} {b}"}, told))) == {"a": "{reason} x {b}"}
