"""The course of one Remediation, phase by phase, on a fleet that lives."""

import json
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from execute.living import ENFORCE, START, SUGGEST, Fleet, Killed, drive, quick, tick
from gpuwatch.act.execute.advance import ExecutorPolicies
from gpuwatch.act.execute.executor import Executor
from gpuwatch.act.execute.policy import ExecutePolicy
from gpuwatch.act.plan.guards import Guard
from gpuwatch.act.plan.policy import PlanPolicy
from gpuwatch.act.remediations import RemediationStore
from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.frameworks.objects import Object
from gpuwatch.facts.model.cluster import ClaimedDevice
from gpuwatch.facts.model.decision import ActionKind, FindingKind, Mode
from gpuwatch.facts.model.remediation import Phase, Remediation, StepKind


def only(store: RemediationStore, action: ActionKind | None = None) -> Remediation:
    (found,) = [each for each in store.all() if action in (None, each.proposal.action)]
    return found


def taint_fleet(nodes: int = 8) -> Fleet:
    """One gang holds the whole Node of which one GPU is sick: tainting it is worth it."""
    fleet = Fleet(nodes=nodes, sick={"GPU-n0-0"})
    fleet.owner("Job", "train", 8)
    return fleet


def taints_only(policy: PlanPolicy = ENFORCE) -> PlanPolicy:
    return replace(policy, modes={ActionKind.TAINT_NODE: policy.mode(ActionKind.TAINT_NODE)})


def idle_fleet() -> Fleet:
    fleet = Fleet(idle={"chat"})
    fleet.owner("Job", "chat", 2)
    return fleet


def start(fleet: Fleet, store: RemediationStore, plan: PlanPolicy = ENFORCE, **changes: Any) -> Executor:
    executor = fleet.executor(store, ExecutorPolicies(plan, quick(**changes)))
    fleet.propose(executor)
    return executor


def effects(fleet: Fleet, node: str = "n0") -> list[str]:
    return [t["effect"] for t in fleet.node(node)["spec"].get("taints") or () if t["key"] == keys.DEGRADED]


def suspended(fleet: Fleet) -> bool:
    return bool(fleet.find("chat")["spec"]["suspend"])


# Proposals


def test_two_replicas_propose_the_same_object(store: RemediationStore, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = idle_fleet()
    start(fleet, store)
    kept = only(store)
    fleet.now += timedelta(hours=3)
    with monkeypatch.context() as patched:
        # The second one has listed before the first one's proposal was there.
        patched.setattr(type(store), "all", lambda _: ())
        (again,) = fleet.propose(fleet.executor(store, ExecutorPolicies(ENFORCE, quick())))
    assert again == kept == only(store)
    assert kept.name.endswith("-20260302")


def test_what_an_owner_in_between_left_behind_still_holds_its_gpus(
    store: RemediationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KubeRay suspends a RayJob by deleting its RayCluster, whose Pods go later."""
    fleet = idle_fleet()
    executor = start(fleet, store)
    gone = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "gone", "uid": "gone", "controller": True}

    def outlive(pod: Object) -> None:
        fleet.cluster.put({**pod, "metadata": {**pod["metadata"], "ownerReferences": [gone]}})

    with monkeypatch.context() as patched:
        patched.setattr(fleet, "_end", outlive)
        drive(fleet, executor, 0.4)
        assert suspended(fleet)
        assert [pod["metadata"]["ownerReferences"] for pod in fleet.pods("chat")] == [[gone]]
        assert only(store).phase is Phase.VERIFYING
    drive(fleet, executor, 0.2)
    assert fleet.pods("chat") == []
    assert only(store).phase is Phase.IN_EFFECT


# Notifications


def test_owners_are_told_and_have_the_time_that_they_were_told(store: RemediationStore) -> None:
    fleet = idle_fleet()
    executor = start(fleet, store, notice_period_seconds=3600)
    drive(fleet, executor, 1)
    said = fleet.find("chat")["metadata"]["annotations"][keys.NOTICE]
    assert said.startswith(f"{only(store).name}: gpuwatch will release its 2 idle GPUs, which ends its Pods, at ")
    assert keys.OBJECTION in said
    assert fleet.notices == [only(store).name]
    events = fleet.cluster.objects("events.k8s.io/v1", "Event")
    assert [event["note"] for event in events] == [said[:1000]]
    assert not suspended(fleet)
    drive(fleet, executor, 0.2)
    assert suspended(fleet)


def test_an_event_has_the_time_at_which_it_is_written_and_is_one_however_often_it_is_tried(
    store: RemediationStore,
) -> None:
    """Approved two hours after it was proposed, by an executor that ends before it keeps that it said so."""
    fleet = idle_fleet()
    executor = start(fleet, store, SUGGEST, write_timeout_seconds=60)
    fleet.now += timedelta(hours=2)
    store.approve(only(store).id, "ann")
    before = fleet.cluster

    class End(Exception):
        pass

    def end(verb: str, what: str, done: bool) -> None:
        if (verb, done) == ("create", True) and what.startswith("Event"):
            raise End

    dying = replace(executor, writer=before.writer(interfere=end))
    with pytest.raises(End):
        for _ in range(9):
            dying.run_once(only(store).id, fleet.now)
    (event,) = fleet.cluster.objects("events.k8s.io/v1", "Event")
    written = fleet.now
    assert datetime.fromisoformat(event["eventTime"]) == written == only(store).proposal.created_at + timedelta(hours=2)
    assert (event["reason"], event["action"]) == ("RemediationScheduled", "Notify")
    drive(fleet, executor, 0.1)
    (again,) = fleet.cluster.objects("events.k8s.io/v1", "Event")
    assert (again["metadata"]["name"], again["eventTime"]) == (event["metadata"]["name"], event["eventTime"])
    assert again["series"]["count"] == 2
    assert datetime.fromisoformat(again["series"]["lastObservedTime"]) > written


# The check before the first write


@pytest.mark.parametrize(
    ("refusing", "phase"),
    [(Guard.SNOOZED, Phase.NOTIFIED), (Guard.OWNER, Phase.REFUSED), (Guard.OPTED_OUT, Phase.REJECTED)],
)
def test_a_guard_says_by_its_nature_what_becomes_of_what_it_refuses(
    store: RemediationStore, monkeypatch: pytest.MonkeyPatch, refusing: Guard, phase: Phase
) -> None:
    fleet = idle_fleet()
    executor = start(fleet, store)
    monkeypatch.setattr(refusing, "check", lambda _: "Not now.")
    drive(fleet, executor, 1)
    assert only(store).phase is phase
    assert not suspended(fleet)


def test_what_was_notified_before_a_person_was_asked_is_taken_back(store: RemediationStore) -> None:
    """Rejected in the moment between the approval and the new notification."""
    fleet = idle_fleet()
    executor = start(fleet, store)
    drive(fleet, replace(executor, policies=replace(executor.policies, plan=SUGGEST)), 1)
    name = only(store).id
    store.approve(name, "ann")
    executor.run_once(name, fleet.now)
    assert only(store).phase is Phase.NOTIFIED
    store.ask_undo(name)
    drive(fleet, executor, 0.2)
    assert only(store).phase is Phase.REJECTED
    assert not fleet.find("chat")["metadata"].get("annotations")


def test_the_rate_is_counted_from_what_is_kept(store: RemediationStore) -> None:
    fleet = Fleet(idle={"a", "b"})
    fleet.owner("Job", "a", 2)
    fleet.owner("Job", "b", 2)
    executor = start(fleet, store)
    executor = replace(executor, policies=replace(executor.policies, plan=replace(ENFORCE, actions_per_hour=1)))
    drive(fleet, executor, 0.8)
    assert sorted(each.phase for each in store.all()) == sorted((Phase.NOTIFIED, Phase.IN_EFFECT))
    restarted = fleet.executor(store, executor.policies)
    drive(fleet, restarted, 1.5)
    assert [each.phase for each in store.all()] == [Phase.IN_EFFECT, Phase.IN_EFFECT]
    first, second = sorted(
        step.begun_at for each in store.all() for step in each.steps if step.kind is StepKind.RELEASE and step.begun_at
    )
    assert second - first >= timedelta(hours=1)


def test_a_claim_that_was_given_up_is_no_action_of_the_rate(store: RemediationStore) -> None:
    """The first claims its turn, and the alert fires before it writes; its claim takes nobody's turn, before a restart
    and after it, and is counted while it stands."""
    fleet = Fleet(idle={"a", "b"})
    fleet.owner("Job", "a", 2)
    fleet.owner("Job", "b", 2)
    executor = start(fleet, store)
    executor = replace(executor, policies=replace(executor.policies, plan=replace(ENFORCE, actions_per_hour=1)))
    drive(fleet, executor, 0.1)
    fleet.now += timedelta(minutes=10)
    first, second = (each.id for each in store.all())
    claimed = executor.run_once(first, fleet.now)
    assert claimed is not None
    assert claimed.phase is Phase.ACTING
    waits = executor.run_once(second, fleet.now)
    assert waits is not None
    assert "1 actions began" in waits.history[-1].message
    fleet.alerts = ("EtcdDown",)
    given_up = executor.run_once(first, fleet.now)
    assert given_up is not None
    assert given_up.phase is Phase.NOTIFIED
    fleet.alerts = ()
    owner = fleet.find("a")
    owner["metadata"]["annotations"][keys.SNOOZE_UNTIL] = "2026-03-02T16:00:00Z"
    fleet.cluster.put(owner)
    restarted = fleet.executor(store, executor.policies)
    drive(fleet, restarted, 0.1)
    phases = {each.id: each.phase for each in store.all()}
    assert phases == {first: Phase.NOTIFIED, second: Phase.IN_EFFECT}


def test_a_budget_holds_what_is_in_flight_by_the_records(store: RemediationStore) -> None:
    """Two Nodes of twenty were worth tainting; now the limit is one."""
    fleet = taint_fleet(nodes=20)
    fleet.owner("Job", "more", 8, node="n1")
    fleet.sick.add("GPU-n1-0")
    start(fleet, store, taints_only())
    assert len(store.all()) == 2
    drive(fleet, fleet.executor(store, ExecutorPolicies(replace(taints_only(), budget_ratio=0.05), quick())), 1)
    tainted = [name for name in ("n0", "n1") if effects(fleet, name)]
    assert len(tainted) == 1
    waiting = next(each for each in store.all() if each.phase is Phase.NOTIFIED)
    assert "2 of 20 Nodes would be out of service" in waiting.history[-1].message
    assert waiting.history[-1].message.endswith("; the limit is 1.")


class Counted:
    """A store that counts how often all of it is read."""

    def __init__(self, store: RemediationStore) -> None:
        self._store = store
        self.reads = 0

    def all(self) -> tuple[Remediation, ...]:
        self.reads += 1
        return self._store.all()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_all_is_read_once_in_a_run_and_once_more_for_each_claim(store: RemediationStore) -> None:
    """With a thousand final ones, this read is most of what a run costs."""
    fleet = Fleet(idle=set("abcd"))
    for name in "abcd":
        fleet.owner("Job", name, 2)
    counted = Counted(store)
    executor = start(fleet, counted, replace(ENFORCE))  # type: ignore[arg-type]
    counted.reads = 0

    def run() -> int:
        counted.reads = 0
        for name in executor.due(fleet.now):
            for _ in range(8):
                executor.run_once(name, fleet.now)
        fleet.settle()
        return counted.reads

    assert run() == 1  # four are notified
    fleet.now += timedelta(minutes=5)
    assert run() == 1  # nothing is due
    fleet.now += timedelta(minutes=5)
    assert run() == 5  # four are claimed, and looked at again before they are written
    assert {each.phase for each in store.all()} == {Phase.VERIFYING}


# Taints


def test_the_ladder_rises_rung_by_rung_and_the_taint_goes_on_proof_of_health(store: RemediationStore) -> None:
    fleet = taint_fleet()
    executor = start(fleet, store, taints_only(), hand_off_label="repair/wanted=yes", hand_off_when_empty=False)
    seen: list[list[str]] = []
    for _ in range(60):
        drive(fleet, executor, 1 / 30)
        if effects(fleet) not in seen:
            seen.append(effects(fleet))
    assert seen == [[], ["PreferNoSchedule"], ["NoSchedule"]]
    node = fleet.node("n0")
    assert node["metadata"]["labels"] == {"repair/wanted": "yes"}
    (told,) = [c for c in node["status"]["conditions"] if c["type"] == keys.CONDITION]
    assert (told["status"], told["reason"]) == ("True", "Xid")
    assert only(store).name in told["message"]
    mark = json.loads(node["metadata"]["annotations"][keys.TAINT])
    assert mark["remediation"] == only(store).name
    fleet.sick = set()
    drive(fleet, executor, 1)
    assert only(store).phase is Phase.SUCCEEDED
    node = fleet.node("n0")
    assert node["spec"] == {}
    assert not node["metadata"].get("annotations")
    assert not node["metadata"].get("labels")
    (told,) = [c for c in node["status"]["conditions"] if c["type"] == keys.CONDITION]
    assert told["status"] == "False"


def test_a_node_is_closed_within_a_quarter_of_an_hour_of_a_fatal_finding(store: RemediationStore) -> None:
    """With the waits of the defaults. A taint that ends no Pod gives owners nothing to object to."""
    fleet = taint_fleet()
    executor = fleet.executor(store, ExecutorPolicies(taints_only(), ExecutePolicy()))
    fleet.propose(executor)
    seen = []
    for _ in range(15):  # one pass a minute, which goes as far as it can
        for _ in range(20):
            tick(fleet, executor)
        seen.append(effects(fleet))
        fleet.now += timedelta(minutes=1)
    assert seen[0] == ["PreferNoSchedule"]
    assert seen[-1] == ["NoSchedule"]
    assert len(fleet.pods("train")) == 1


@pytest.mark.parametrize("first", ["PreferNoSchedule", "NoExecute"])
def test_no_execute_waits_for_the_notice_period(store: RemediationStore, first: str) -> None:
    """It ends Pods: as the first effect after the notification, or else as long after NoSchedule."""
    fleet = taint_fleet()
    waits = {"notice_period_seconds": 7200, "first_taint_effect": first, "last_taint_effect": "NoExecute"}
    executor = start(fleet, store, ENFORCE, **waits)
    drive(fleet, executor, 1.9)
    assert effects(fleet) == (["NoSchedule"] if first == "PreferNoSchedule" else [])
    drive(fleet, executor, 0.8)
    assert effects(fleet) == ["NoExecute"]


@pytest.mark.parametrize("last", ["NoSchedule", "PreferNoSchedule"])
def test_a_node_that_refuses_pods_is_closed_at_once_as_far_as_settings_allow(
    store: RemediationStore, last: str
) -> None:
    """Each minute costs Pods, and a preference keeps none off. Owners have nothing to object to: no Pod ends."""
    fleet = taint_fleet()
    fleet.sick_kind = FindingKind.POD_ADMISSION
    executor = start(fleet, store, taints_only(), notice_period_seconds=3600, last_taint_effect=last)
    drive(fleet, executor, 0.25)
    assert effects(fleet) == [last]


@pytest.mark.parametrize("served", [True, False])
def test_a_device_of_a_claim_is_tainted_alone_where_that_is_served(store: RemediationStore, served: bool) -> None:
    claim = ClaimedDevice(claim="ml/c", driver="gpu.nvidia.com", pool="n0", name="gpu-0", device="GPU-n0-0")
    fleet = Fleet(sick={"GPU-n0-0"}, claims=(claim,), unserved=() if served else ("resource.k8s.io",))
    fleet.owner("Job", "train", 8)
    executor = start(fleet, store, taints_only())
    drive(fleet, executor, 1)
    rules = fleet.cluster.objects("resource.k8s.io/v1", "DeviceTaintRule")
    assert only(store).phase is Phase.IN_EFFECT
    assert bool(effects(fleet)) is not served
    said = "The degraded devices are tainted; the Node is not." if served else "The Node is tainted."
    assert said in [turn.message for turn in only(store).history]
    if served:
        assert rules[0]["spec"]["deviceSelector"] == {"driver": "gpu.nvidia.com", "pool": "n0", "device": "gpu-0"}
        assert rules[0]["spec"]["taint"] == {"key": keys.DEGRADED, "value": "xid", "effect": "NoSchedule"}
    fleet.sick = set()
    drive(fleet, executor, 1)
    assert only(store).phase is Phase.SUCCEEDED
    assert fleet.cluster.objects("resource.k8s.io/v1", "DeviceTaintRule") == ()
    assert effects(fleet) == []


# Releases


def test_a_suspend_without_released_pods_is_a_failure_and_taken_back(store: RemediationStore) -> None:
    fleet = idle_fleet()
    before = fleet.find("chat")["spec"]
    executor = start(fleet, store)
    fleet.settle = lambda: None  # type: ignore[method-assign]  # its controller hangs
    drive(fleet, executor, 2)
    assert only(store).phase is Phase.FAILED
    assert only(store).verified == {"released": False}
    assert fleet.find("chat")["spec"] == before


def test_a_failed_target_is_left_alone_for_longer_each_time(store: RemediationStore) -> None:
    fleet = idle_fleet()
    executor = start(fleet, store)
    fleet.settle = lambda: None  # type: ignore[method-assign]
    tries = []
    for _ in range(4 * 5):
        tries += [fleet.now - START for _ in fleet.propose(executor)]
        drive(fleet, executor, 6, least_seconds=600)
    days = [each.total_seconds() / 86_400 for each in tries]
    assert len(days) == 2  # after the first, which was at once
    assert 1 <= days[0] < 1.5
    assert 2 <= days[1] - days[0] < 2.5


@pytest.mark.parametrize("works_again", [True, False])
def test_what_was_begun_and_did_not_happen_is_checked_again(store: RemediationStore, works_again: bool) -> None:
    """The process ends between the intent and the write. What was true before the first try may not be any more."""
    fleet = idle_fleet()
    executor = start(fleet, store)

    def kill(verb: str, what: str, done: bool) -> None:
        if only(store).began_at is not None:
            raise Killed

    fleet.before_write = kill
    with pytest.raises(Killed):
        drive(fleet, executor, 1)
    fleet.before_write = lambda verb, what, done: None
    assert only(store).phase is Phase.ACTING
    if works_again:
        fleet.idle, fleet.busy = set(), {"chat"}
    fleet.now += timedelta(minutes=5)
    drive(fleet, executor, 0.5)
    assert suspended(fleet) is not works_again
    assert only(store).phase is (Phase.OBSOLETE if works_again else Phase.IN_EFFECT)
    if works_again:
        assert any(turn.message.startswith("It works again") for turn in only(store).history)
        assert only(store).began_at is None


# Moves


def evictable() -> Fleet:
    """Each of two replicas holds a sick GPU."""
    fleet = Fleet(sick={"GPU-n0-0", "GPU-n0-4"})
    fleet.owner("Deployment", "web", 4, pods=2)
    fleet.cordon()
    return fleet


def evictions_only() -> PlanPolicy:
    return replace(ENFORCE, modes={ActionKind.EVICT_GANG: Mode.ENFORCE})


def test_pods_are_evicted_one_after_the_other_as_their_budget_allows(store: RemediationStore) -> None:
    fleet = evictable()
    fleet.budget("web", 2)
    executor = start(fleet, store, evictions_only())
    drive(fleet, executor, 0.25)
    # By the time of the second eviction the budget is used up; it is back two hours later.
    evicted = [line for line in fleet.log if "eviction" in line]
    assert len(evicted) <= 1
    while not [line for line in fleet.log if "eviction" in line]:
        tick(fleet, executor)
        fleet.now += timedelta(seconds=60)
    fleet.budget("web", 0)
    drive(fleet, executor, 0.5)
    assert len([line for line in fleet.log if "eviction" in line]) == 1
    (waiting,) = [step for step in only(store).steps if step.kind is StepKind.EVICT and step.done_at is None]
    assert waiting.error == "PodDisruptionBudget ml/web allows 0 disruptions; this needs 1."
    fleet.budget("web", 1)
    drive(fleet, executor, 1.1)
    assert len([line for line in fleet.log if "eviction" in line]) == 2
    assert only(store).phase is Phase.SUCCEEDED
    assert {pod["spec"]["nodeName"] for pod in fleet.pods("web")} == {"n7"}


# Learning


def test_a_detector_that_was_wrong_only_suggests(store: RemediationStore) -> None:
    fleet = idle_fleet()
    executor = start(fleet, store)
    drive(fleet, executor, 1)
    store.ask_undo(only(store).id)
    drive(fleet, executor, 1)
    fleet.now += timedelta(days=1)
    fleet.propose(executor)
    drive(fleet, executor, 2)
    (second,) = [each for each in store.all() if each.phase.open]
    assert second.phase is Phase.PROPOSED
    assert "abandoned was right in 0 of 1 verified outcomes" in second.history[-1].message
    assert not suspended(fleet)
    store.approve(second.id, "ann")
    drive(fleet, executor, 1)
    assert suspended(fleet)
