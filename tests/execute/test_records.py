"""Nothing that gpuwatch did outlives its record: what is deleted is undone first, and goes then."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from execute.hostile import HostileFleet
from execute.living import ENFORCE, Fleet, drive, new_store, quick
from gpuwatch.act.execute.advance import ExecutorPolicies
from gpuwatch.act.execute.executor import Executor
from gpuwatch.act.execute.sweep import Orphan, in_turn, suspects
from gpuwatch.act.remediations import RemediationStore
from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.frameworks.objects import Object
from gpuwatch.facts.model.remediation import ObjectRef, Phase, Remediation
from gpuwatch.sources.kube.writer import Failure, WriteError
from gpuwatch.sources.store.custom_resources import API_VERSION, KIND, NODE_KIND

GRACE = timedelta(seconds=900)


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


def gone(fleet: Fleet) -> tuple[RemediationStore, Executor, Remediation]:
    """The record is lost without having been undone: a backup came back, or somebody took its finalizer off."""
    store, executor, found = in_effect(fleet)
    store._writer.patch(ref_of(found), {"metadata": {"finalizers": None}})
    delete(store, found)
    assert store.all() == ()
    return store, executor, found


def sweep(fleet: Fleet, executor: Executor, since: dict[ObjectRef, datetime]) -> tuple[Orphan, ...]:
    assert not fleet.node("n0")["spec"].get("taints") or suspects(fleet.view().snapshot.cluster)
    return executor.sweep((ObjectRef("v1", "Node", "n0"),), executor.store.all(), since, fleet.now, GRACE)


def long_since(fleet: Fleet) -> dict[ObjectRef, datetime]:
    """The Node's marks were seen before, and their grace has passed."""
    return {ObjectRef("v1", "Node", "n0", uid="uid-n0"): fleet.now - timedelta(days=5)}


def marks(fleet: Fleet) -> list[str]:
    return [key for key in fleet.node("n0")["metadata"].get("annotations") or {} if key.startswith(keys.PREFIX)]


def test_a_taint_without_a_record_goes_after_its_grace_and_is_shown_before() -> None:
    fleet = Fleet(nodes=3, sick={"GPU-n0-0"})
    _, executor, _ = gone(fleet)
    since: dict[ObjectRef, datetime] = {}
    for _ in range(2):
        assert ["gone" in each.reason for each in sweep(fleet, executor, since)] == [True]
        assert fleet.node("n0")["spec"]["taints"]
    fleet.now += timedelta(seconds=900)
    sweep(fleet, executor, since)
    assert not fleet.node("n0")["spec"].get("taints")
    assert marks(fleet) == []
    while sweep(fleet, executor, since):
        fleet.now += timedelta(seconds=900)
    assert "True" not in [
        each["status"] for each in fleet.node("n0")["status"]["conditions"] if each["type"] == keys.CONDITION
    ]
    assert since == {}


def jobs(namespace: str, count: int) -> list[ObjectRef]:
    return [ObjectRef("batch/v1", "Job", f"job-{n}", namespace) for n in range(count)]


def test_who_marks_thousands_of_its_own_objects_delays_its_own_namespace_alone() -> None:
    node = ObjectRef("v1", "Node", "n0")
    flood, other = jobs("evil", 2050), jobs("ml", 3)
    seen: set[ObjectRef] = set()
    for turn in range(21):
        now, later = in_turn([node, *flood, *other], (), turn)
        assert len(now) == 1 + 100 + 3
        assert now[0] == node
        # Writes are few: each Namespace's first one comes early.
        assert set(other) <= set(now[1:7])
        assert {each.namespace for each in later} == {"evil"}
        assert {*now, *later} == {node, *flood, *other}
        seen.update(now)
    assert seen == {node, *flood, *other}
    assert in_turn(other, (), 7) == (tuple(other), ())


def test_what_a_remediation_holds_takes_no_turn() -> None:
    fleet = Fleet(nodes=3, sick={"GPU-n0-0"})
    store, _, _ = in_effect(fleet)
    assert in_turn([ObjectRef("v1", "Node", "n0"), *jobs("ml", 1)], store.all(), 0) == (tuple(jobs("ml", 1)), ())


def test_what_waits_for_a_later_sweep_is_not_forgotten() -> None:
    """Its grace goes on."""
    fleet = Fleet(nodes=3, sick={"GPU-n0-0"})
    _, executor, _ = gone(fleet)
    since: dict[ObjectRef, datetime] = {}
    (left,) = sweep(fleet, executor, since)
    began = dict(since)
    fleet.now += timedelta(seconds=60)
    assert executor.sweep((), executor.store.all(), since, fleet.now, GRACE, [left.target]) == ()
    assert since == began
    assert executor.sweep((), executor.store.all(), since, fleet.now, GRACE) == ()
    assert since == {}


def swept_until_nothing_changes(fleet: Fleet, executor: Executor, node: str = "n0") -> tuple[Orphan, ...]:
    since: dict[ObjectRef, datetime] = {}
    left: tuple[Orphan, ...] = ()
    for _ in range(5):
        left = executor.sweep((ObjectRef("v1", "Node", node),), executor.store.all(), since, fleet.now, GRACE)
        fleet.now += GRACE
    return left


@pytest.mark.parametrize("other", [{"value": "theirs"}, {"effect": "NoExecute"}])
def test_of_taints_with_our_key_that_alone_goes_which_our_annotation_names(other: dict[str, str]) -> None:
    fleet = Fleet(nodes=3, sick={"GPU-n0-0"})
    _, executor, _ = gone(fleet)
    node = fleet.node("n0")
    (ours,) = node["spec"]["taints"]
    node["spec"]["taints"] = [ours, {**ours, **other}]
    fleet.cluster.put(node)
    (left,) = swept_until_nothing_changes(fleet, executor)
    assert fleet.node("n0")["spec"]["taints"] == [{**ours, **other}]
    assert "by hand" in left.reason
    assert left.request is None
    assert marks(fleet) == []


def test_what_a_person_has_to_take_off_keeps_nothing_of_ours_standing() -> None:
    fleet = Fleet(nodes=3, sick={"GPU-n0-0"})
    _, executor, _ = gone(fleet)
    node = fleet.node("n0")
    node["metadata"]["annotations"] = {keys.SAVED_STATE: "[" * 100_000}  # and nothing that stands there stops it
    fleet.cluster.put(node)
    (left,) = swept_until_nothing_changes(fleet, executor)
    assert "restore it" in left.reason
    assert condition_of(fleet) == "False"


def condition_of(fleet: Fleet) -> str:
    conditions = {item["type"]: item["status"] for item in fleet.node("n0")["status"]["conditions"]}
    return str(conditions.get(keys.CONDITION, ""))


def test_a_condition_of_that_type_that_somebody_else_wrote_stays() -> None:
    fleet = Fleet(nodes=3)
    node = fleet.node("n0")
    node["status"]["conditions"].append({"type": keys.CONDITION, "status": "True", "message": "by another detector"})
    fleet.cluster.put(node)
    executor = fleet.executor(new_store(), ExecutorPolicies(ENFORCE, quick()))
    assert swept_until_nothing_changes(fleet, executor) == ()
    assert condition_of(fleet) == "True"


REPAIR = {"apiVersion": "repair.example.com/v1", "kind": "Repair", "metadata": {"name": "{node}"}}


@pytest.mark.parametrize("before", [None, "no"])
def test_a_hand_off_without_a_record_goes_but_what_a_label_was_before_is_a_persons(before: str | None) -> None:
    fleet = Fleet(nodes=3, sick={"GPU-n0-0"})
    node = fleet.node("n0")
    node["metadata"]["labels"] = {"example.com/x": "y", **({"repair": before} if before else {})}
    fleet.cluster.put(node)
    fleet.cluster.put({**REPAIR, "metadata": {"name": "theirs"}})
    store = new_store()
    policy = quick(hand_off_label="repair=yes", hand_off_object=REPAIR)
    executor = fleet.executor(store, ExecutorPolicies(ENFORCE, policy))
    fleet.propose(executor)
    drive(fleet, executor, 2)
    (found,) = store.all()
    assert {item["metadata"]["name"] for item in fleet.cluster.objects(REPAIR["apiVersion"], "Repair")} == {
        "n0",
        "theirs",
    }
    assert fleet.node("n0")["metadata"]["labels"]["repair"] == "yes"
    assert executor.sweep((), store.all(), {}, fleet.now, timedelta()) == ()  # what a record holds
    store._writer.patch(ref_of(found), {"metadata": {"finalizers": None}})
    delete(store, found)
    left = swept_until_nothing_changes(fleet, executor)
    assert [item["metadata"]["name"] for item in fleet.cluster.objects(REPAIR["apiVersion"], "Repair")] == ["theirs"]
    labels = fleet.node("n0")["metadata"]["labels"]
    if before is None:
        assert left == ()
        assert labels == {"example.com/x": "y"}
        assert marks(fleet) == []
    else:
        assert ["restore it" in each.reason for each in left] == [True]
        assert labels["repair"] == "yes"
        assert marks(fleet) == [keys.SAVED_STATE]


def test_a_hand_off_that_is_undone_leaves_no_annotation_whoever_changed_the_label() -> None:
    for theirs in (None, "later"):
        fleet = Fleet(nodes=3, sick={"GPU-n0-0"})
        store = new_store()
        executor = fleet.executor(store, ExecutorPolicies(ENFORCE, quick(hand_off_label="repair=yes")))
        fleet.propose(executor)
        drive(fleet, executor, 2)
        assert keys.SAVED_STATE in marks(fleet)
        if theirs:
            node = fleet.node("n0")
            node["metadata"]["labels"] = {"repair": theirs}
            fleet.cluster.put(node)
        (found,) = store.all()
        store.ask_undo(found.id)
        drive(fleet, executor, 1)
        assert fleet.node("n0")["metadata"].get("labels", {}).get("repair") == theirs
        assert marks(fleet) == []


def test_a_command_without_a_record_is_withdrawn_and_others_are_left() -> None:
    fleet = Fleet(nodes=3, idle={"batch"}, takes_up=timedelta(days=9))
    fleet.owner("Volcano", "batch", 2, pods=2, maxRetry=99)
    store = new_store()
    executor = fleet.executor(store, ExecutorPolicies(ENFORCE, quick()))
    fleet.propose(executor)
    drive(fleet, executor, 0.5)
    (found,) = store.all()
    (sent,) = fleet.cluster.objects("bus.volcano.sh/v1alpha1", "Command")
    theirs = {**sent, "metadata": {"name": "theirs", "namespace": "ml"}}
    fleet.cluster.put(theirs)
    assert executor.sweep((), store.all(), {}, fleet.now, timedelta()) == ()
    store._writer.patch(ref_of(found), {"metadata": {"finalizers": None}})
    delete(store, found)
    assert swept_until_nothing_changes(fleet, executor) == ()
    commands = fleet.cluster.objects("bus.volcano.sh/v1alpha1", "Command")
    assert [item["metadata"]["name"] for item in commands] == ["theirs"]


@pytest.mark.parametrize("name", ["chat", "queued"])
def test_what_was_released_has_no_pods_and_is_named_when_its_record_is_lost(name: str) -> None:
    fleet = HostileFleet(idle={name})
    fleet.owner("Job", name, 2, node="n1")
    fleet.owner("Job", "beside", 2, node="n2")
    if name == "queued":
        fleet.queue(name)
    fleet.settle()
    store, executor, found = in_effect(fleet)
    fleet.settle()
    assert fleet.pods(name) == []
    assert suspects(fleet.view().snapshot.cluster)
    store._writer.patch(ref_of(found), {"metadata": {"finalizers": None}})
    delete(store, found)
    (left,) = executor.sweep(suspects(fleet.view().snapshot.cluster), (), {}, fleet.now, GRACE)
    assert left.target.name == ("chat" if name == "chat" else "job-queued")
    assert f"was changed by {found.name}" in left.reason


@pytest.mark.parametrize("status", [403, 500])
def test_a_list_that_fails_is_named_but_a_kind_that_the_account_may_not_list_it_never_made(status: int) -> None:
    fleet = Fleet(nodes=3)
    executor = fleet.executor(new_store(), ExecutorPolicies(ENFORCE, quick(hand_off_object=REPAIR)))
    failure = Failure.FORBIDDEN if status == 403 else Failure.UNSURE

    def objects(*_: object, **__: object) -> tuple[Object, ...]:
        raise WriteError(failure, "it failed", status=status)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(executor.writer), "objects", objects)
        left = executor.sweep((), (), {}, fleet.now, GRACE)
    told = ["Repair"] if status == 403 else ["DeviceTaintRule", "Command", "Repair"]
    assert [each.reason for each in left] == [f"Objects of kind {kind} were not read: it failed" for kind in told]


@pytest.mark.parametrize("verb", ["get", "patch"])
def test_what_could_not_be_read_or_taken_back_is_named_with_the_error(verb: str) -> None:
    fleet = Fleet(nodes=3, sick={"GPU-n0-0"})
    _, executor, _ = gone(fleet)
    asked = getattr(type(executor.writer), verb)

    def refused(writer: object, ref: ObjectRef, *others: object, **named: object) -> object:
        if ref.kind == "Node":
            raise WriteError(Failure.FORBIDDEN, "not yours", status=403)
        return asked(writer, ref, *others, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(executor.writer), verb, refused)
        (left,) = executor.sweep((ObjectRef("v1", "Node", "n0"),), (), long_since(fleet), fleet.now, GRACE)
    assert left.request is None
    assert left.reason.endswith("not yours")
    assert fleet.node("n0")["spec"]["taints"]
    sweep(fleet, executor, long_since(fleet))
    assert not fleet.node("n0")["spec"].get("taints")


@pytest.mark.parametrize("why", ["paused", "not understood", "no right"])
def test_the_sweep_writes_nothing_where_it_may_not_or_may_be_wrong(why: str) -> None:
    fleet = Fleet(nodes=3, sick={"GPU-n0-0"})
    store, executor, _ = gone(fleet)
    if why == "paused":
        store.pause("ana", "a fire", fleet.now, everything=True)
    elif why == "not understood":
        other = {"apiVersion": API_VERSION, "kind": NODE_KIND, "metadata": {"name": "x"}, "spec": {}}
        store._writer.create(other)
    else:
        executor = replace(executor, writer=fleet.cluster.writer(may=lambda verb, _: verb != "patch"))
    assert len(sweep(fleet, executor, long_since(fleet))) == 1  # and shown
    assert fleet.node("n0")["spec"]["taints"]


def test_what_a_record_holds_is_not_swept() -> None:
    fleet = Fleet(nodes=3, sick={"GPU-n0-0"})
    _, executor, _ = in_effect(fleet)
    assert sweep(fleet, executor, long_since(fleet)) == ()
    assert fleet.node("n0")["spec"]["taints"]


def test_a_taint_that_nothing_proves_to_be_ours_and_a_saved_state_are_left_to_a_person() -> None:
    fleet = Fleet(nodes=3)
    taint = {"key": keys.DEGRADED, "value": "xid", "effect": "NoSchedule"}
    fleet.cluster.put({**fleet.node("n0"), "spec": {"taints": [taint]}})
    annotations = {keys.REMEDIATION: "release-x", keys.SAVED_STATE: '{"/spec/priorityClassName": "system"}'}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j", "namespace": "ml"}, "spec": {}}
    fleet.cluster.put({**job, "metadata": {**job["metadata"], "annotations": annotations}})  # type: ignore[dict-item]
    executor = fleet.executor(new_store(), ExecutorPolicies(ENFORCE, quick()))
    since: dict[ObjectRef, datetime] = {}
    refs = (ObjectRef("v1", "Node", "n0"), ObjectRef("batch/v1", "Job", "j", "ml"))
    for _ in range(3):
        found = executor.sweep(refs, (), since, fleet.now, GRACE)
        assert [each.request for each in found] == [None, None]
        assert "by hand" in found[0].reason
        assert "restore it" in found[1].reason
        fleet.now += timedelta(days=5)
    assert fleet.log == []
