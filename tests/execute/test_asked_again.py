"""What is in flight holds its place, each step that disrupts asks everything again, and what was stopped runs again."""

import copy
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from execute.hostile import HostileFleet
from execute.living import ENFORCE, Fleet, drive, new_store, only, quick, tick
from gpuwatch.act.execute.advance import ExecutorPolicies, needs
from gpuwatch.act.execute.executor import Executor
from gpuwatch.act.execute.recheck import Health, health
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.plan.policy import PlanPolicy
from gpuwatch.act.remediations import RemediationStore
from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.frameworks.objects import Object
from gpuwatch.facts.model.decision import ActionKind, Mode, Verdict
from gpuwatch.facts.model.remediation import ObjectRef, Pause, Phase, Step, StepKind
from gpuwatch.facts.model.telemetry import DoubtedDevice, Gap, GapKind
from gpuwatch.sources.kube.writer import Failure, WriteError
from plan import fleet as model

MOVES = replace(ENFORCE, modes={ActionKind.EVICT_GANG: Mode.ENFORCE})
TAINTS = replace(ENFORCE, modes={ActionKind.TAINT_NODE: Mode.ENFORCE})


def start(fleet: Fleet, store: RemediationStore, plan: PlanPolicy = MOVES, **changes: Any) -> Executor:
    executor = fleet.executor(store, ExecutorPolicies(plan, quick(**changes)))
    fleet.propose(executor)
    return executor


def web() -> Fleet:
    """Four replicas on sick GPUs of one Node."""
    fleet = Fleet(sick={"GPU-n0-0", "GPU-n0-2", "GPU-n0-4", "GPU-n0-6"})
    fleet.owner("Deployment", "web", 2, pods=4)
    fleet.budget("web", 4)
    fleet.cordon()
    return fleet


def evictions(fleet: Fleet) -> list[str]:
    return [line for line in fleet.log if "eviction" in line]


def until(fleet: Fleet, executor: Executor, seen: Callable[[], object]) -> None:
    for _ in range(400):
        if seen():
            return
        tick(fleet, executor)
        fleet.now += timedelta(seconds=60)
    raise AssertionError("it was never seen")


def annotate(fleet: Fleet, found: Object, **values: str) -> None:
    found = copy.deepcopy(found)
    annotations = found["metadata"].setdefault("annotations", {})
    annotations.update({f"{keys.PREFIX}{key.replace('_', '-')}": value for key, value in values.items()})
    fleet.cluster.put(found)


# What is in flight holds its place


def two_gangs(**budget: int) -> Fleet:
    """Each on a sick Node of its own; one Node is free."""
    fleet = Fleet(nodes=3, sick={"GPU-n0-0"})
    fleet.owner("Job", "a", 8, node="n0")
    fleet.owner("Job", "b", 8, node="n1")
    fleet.cordon("n0")
    fleet.cordon("n1")
    return fleet


@pytest.mark.parametrize("gone", [False, True])
def test_a_gang_in_flight_keeps_its_landing_room_also_while_its_pods_are_gone(
    store: RemediationStore, gone: bool
) -> None:
    fleet = two_gangs()
    executor = start(fleet, store)
    (first,) = store.all()
    assert [(place.node, place.pods) for place in first.proposal.room] == [("n2", 1)]
    if gone:
        until(fleet, executor, lambda: fleet.find("a")["spec"]["suspend"])
        fleet.settle()
        assert not fleet.pods("a")
    fleet.sick.add("GPU-n1-0")
    fleet.propose(executor)
    assert [each.proposal.target for each in store.all()] == ["gang/Job/ml/a"]
    drive(fleet, executor, 1)
    assert only(store).phase is Phase.SUCCEEDED


def shared_budget(fleet: Fleet, allowed: int) -> None:
    """One budget over all Pods, as its status stands while nothing is disturbed."""
    fleet.cluster.put(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "all", "namespace": "ml"},
            "spec": {"selector": {"matchLabels": {}}},
            "status": {"disruptionsAllowed": allowed},
        }
    )


def test_pods_in_flight_count_against_their_budget_while_they_are_gone(store: RemediationStore) -> None:
    fleet = Fleet(idle={"a"})
    for name in ("a", "b"):
        fleet.owner("Job", name, 2)
    shared_budget(fleet, 1)
    view = fleet.view
    everything = replace(view().snapshot.cluster.budgets[0], selects_all=True)

    def selecting() -> Any:
        found = view()
        cluster = replace(found.snapshot.cluster, budgets=(everything,))
        return replace(found, snapshot=replace(found.snapshot, cluster=cluster))

    fleet.view = selecting  # type: ignore[method-assign]
    executor = start(fleet, store, ENFORCE)
    assert only(store).proposal.budgets == {"all": 1}
    until(fleet, executor, lambda: fleet.find("a")["spec"]["suspend"])
    fleet.settle()
    fleet.idle.add("b")
    fleet.propose(executor)
    assert [each.proposal.target for each in store.all()] == ["gang/Job/ml/a"]


@pytest.mark.parametrize("why", ["none allowed", "not readable"])
def test_budgets_are_read_from_the_api_right_before_a_suspend(store: RemediationStore, why: str) -> None:
    fleet = two_gangs()
    fleet.budget("a", 1)
    old = fleet.view().snapshot.cluster.budgets
    view = fleet.view

    def stale() -> Any:
        found = view()
        return replace(found, snapshot=replace(found.snapshot, cluster=replace(found.snapshot.cluster, budgets=old)))

    fleet.view = stale  # type: ignore[method-assign]
    executor = start(fleet, store)
    read = fleet.cluster.objects

    def objects(api_version: str, kind: str, *rest: str) -> tuple[Object, ...]:
        if kind == "PodDisruptionBudget" and why == "not readable":
            raise WriteError(Failure.FORBIDDEN, "PodDisruptionBudgets may not be listed.", status=403)
        return read(api_version, kind, *rest)

    fleet.cluster.objects = objects  # type: ignore[method-assign]
    if why == "none allowed":
        fleet.budget("a", 0)
    drive(fleet, executor, 1)
    assert not fleet.find("a")["spec"]["suspend"]
    assert only(store).phase is Phase.NOTIFIED
    said = only(store).history[-1].message
    assert ("may not be listed" if why == "not readable" else "PodDisruptionBudget ml/a allows 0") in said


# Every step that disrupts asks everything again


def test_each_kind_of_step_says_whether_it_disrupts_and_all_that_do_are_asked(store: RemediationStore) -> None:
    """A new kind disrupts until it is named as harmless, so that it is asked without anybody thinking of it."""
    harmless = {
        StepKind.NOTIFY, StepKind.CLEAR, StepKind.CONDITION, StepKind.UNTAINT, StepKind.DEVICE_UNTAINT,
        StepKind.WITHDRAW, StepKind.RESTORE,
    }  # fmt: skip
    fleet = two_gangs()
    start(fleet, store)
    main = only(store).proposal.objects[0]
    for kind in StepKind:
        assert kind.disrupts is (kind not in harmless)
        assert not (kind.disrupts and kind.gives_back)
        acting = replace(only(store), phase=Phase.ACTING, steps=(Step(kind=kind, target=main),))
        wanted = needs(acting)
        assert (wanted.view, wanted.latest) == (kind.disrupts,) * 2
        assert wanted.around or not kind.disrupts


def test_what_an_owner_says_is_read_from_the_object_and_not_from_older_facts(store: RemediationStore) -> None:
    fleet = web()
    executor = start(fleet, store)
    until(fleet, executor, lambda: evictions(fleet))
    kept = fleet.view()
    fleet.view = lambda: replace(kept, snapshot=replace(kept.snapshot, at=fleet.now))  # type: ignore[method-assign]
    annotate(fleet, fleet.find("web"), objection="mine")
    drive(fleet, executor, 0.5)
    assert (len(evictions(fleet)), only(store).phase) == (1, Phase.REJECTED)


# Bounded harm


def stuck_in_termination(fleet: Fleet, name: str) -> None:
    """Its Pod is deleted and does not end."""
    end = fleet._end

    def stay(pod: Object) -> None:
        if pod["metadata"]["labels"]["app"] != name or pod["metadata"]["name"] != f"{name}-0":
            end(pod)
        elif "deletionTimestamp" not in pod["metadata"]:
            fleet.cluster.put({**pod, "metadata": {**pod["metadata"], "deletionTimestamp": f"{fleet.now}"}})

    fleet._end = stay  # type: ignore[method-assign]


def calls(fleet: Fleet) -> list[Object]:
    events = fleet.cluster.objects("events.k8s.io/v1", "Event")
    return [event for event in events if event["reason"] == "RemediationNeedsPerson"]


def test_a_job_with_a_pod_that_does_not_end_is_resumed_in_time(store: RemediationStore) -> None:
    fleet = two_gangs()
    stuck_in_termination(fleet, "a")
    executor = start(fleet, store)
    until(fleet, executor, lambda: fleet.find("a")["spec"]["suspend"])
    began = fleet.now
    until(fleet, executor, lambda: not fleet.find("a")["spec"]["suspend"])
    assert fleet.now - began <= timedelta(minutes=9)
    until(fleet, executor, lambda: fleet.now - began > timedelta(minutes=20))
    assert calls(fleet) == []  # it runs, though its old Pod does not end


def test_a_person_is_called_once_for_a_gang_that_may_not_be_resumed_yet(store: RemediationStore) -> None:
    fleet = two_gangs()
    job = fleet.find("a")
    job["spec"]["podReplacementPolicy"] = "Failed"
    fleet.cluster.put(job)
    stuck_in_termination(fleet, "a")
    executor = start(fleet, store)
    until(fleet, executor, lambda: fleet.find("a")["spec"]["suspend"])
    notices, began = len(fleet.notices), fleet.now
    until(fleet, executor, lambda: calls(fleet))
    assert timedelta(minutes=14) <= fleet.now - began <= timedelta(minutes=17)
    drive(fleet, executor, 1)
    (call,) = calls(fleet)
    assert "series" not in call
    assert call["type"] == "Warning"
    assert len(fleet.notices) == notices + 1
    assert only(store).overdue
    fleet._end = Fleet._end.__get__(fleet)  # type: ignore[method-assign]
    for pod in fleet.pods("a"):
        fleet._end(pod)
    drive(fleet, executor, 0.2)
    assert not fleet.find("a")["spec"]["suspend"]
    assert not only(store).overdue


def test_a_pause_of_everything_stops_both_and_calls_a_person(
    store: RemediationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = two_gangs()
    executor = start(fleet, store)
    until(fleet, executor, lambda: fleet.find("a")["spec"]["suspend"])
    with monkeypatch.context() as patched:
        patched.setattr(type(store), "paused", lambda _: Pause(paused=True, everything=True))
        drive(fleet, executor, 0.3)
        assert fleet.find("a")["spec"]["suspend"]
        assert len(calls(fleet)) == 1
    drive(fleet, executor, 0.5)
    assert not fleet.find("a")["spec"]["suspend"]


def test_a_write_in_hand_does_not_land_after_another_process_ended_the_remediation(store: RemediationStore) -> None:
    """The first process stands still after all its checks; the second sees an objection."""
    fleet = Fleet(idle={"chat"})
    fleet.owner("Job", "chat", 2)
    executor = start(fleet, store, ENFORCE)
    held: list[Callable[[], object]] = []
    send = fleet.cluster.patch

    def slow(*args: Any, **options: Any) -> Object:
        if not held and "spec" in args[1]:
            held.append(lambda: send(*args, **options))
            raise WriteError(Failure.UNSURE, "no answer")
        return send(*args, **options)

    fleet.cluster.patch = slow  # type: ignore[method-assign]
    until(fleet, executor, lambda: held)
    # Its notification is gone already, so that taking that back changes nothing.
    job = fleet.find("chat")
    job["metadata"]["annotations"] = {keys.OBJECTION: "mine"}
    version = fleet.cluster.put(job)["metadata"]["resourceVersion"]
    write = held[0].__closure__
    assert write is not None
    for cell in write:  # it had read the object after that
        if isinstance(cell.cell_contents, dict) and "version" in cell.cell_contents:
            cell.cell_contents["version"] = version
    drive(fleet, executor, 0.5)
    assert only(store).phase is Phase.REJECTED
    with pytest.raises(WriteError) as error:
        held[0]()
    assert error.value.failure is Failure.CONFLICT
    assert not fleet.find("chat")["spec"]["suspend"]


def test_what_stands_with_our_mark_can_be_undone_after_any_end(store: RemediationStore) -> None:
    fleet = Fleet(idle={"chat"})
    fleet.owner("Job", "chat", 2)
    executor = start(fleet, store, ENFORCE)
    until(fleet, executor, lambda: fleet.find("chat")["spec"]["suspend"])
    late = fleet.find("chat")
    found = only(store)
    told = tuple(step for step in found.steps if step.kind is StepKind.NOTIFY)
    store.save(replace(found, phase=Phase.REJECTED, steps=told, step=len(told)))
    fleet.cluster.put(late)
    store.ask_undo(only(store).id)
    drive(fleet, executor, 0.2)
    assert not fleet.find("chat")["spec"]["suspend"]
    assert keys.REMEDIATION not in (fleet.find("chat")["metadata"].get("annotations") or {})
    assert only(store).phase is Phase.UNDONE


# Taints


def tainted(store: RemediationStore) -> tuple[Fleet, Executor]:
    fleet = Fleet(sick={"GPU-n0-0"})
    fleet.owner("Job", "train", 8)
    executor = start(fleet, store, TAINTS)
    drive(fleet, executor, 1)
    assert fleet.node("n0")["spec"]["taints"]
    return fleet, executor


def no_execute(store: RemediationStore, **plan: Any) -> tuple[HostileFleet, Executor]:
    """A gang on a Node that is about to get NoExecute."""
    fleet = HostileFleet(sick={"GPU-n0-0"})
    fleet.owner("Job", "train", 4)
    fleet.budget("train", 4)
    modes = {ActionKind.TAINT_NODE: Mode.ENFORCE, ActionKind.EVICT_GANG: Mode.ENFORCE}
    changes = {"actions_per_hour": 100, "namespace_actions_per_hour": 100, **plan}
    policy = replace(ENFORCE, modes={**modes, ActionKind.RELEASE_GANG: Mode.ENFORCE}, **changes)
    executor = start(fleet, store, policy, last_taint_effect="NoExecute")
    store.reject(next(each.id for each in store.all() if each.proposal.action is ActionKind.EVICT_GANG))
    until(fleet, executor, lambda: [taint["effect"] for taint in taints_of(fleet)] == ["NoSchedule"])
    return fleet, executor


def taints_of(fleet: Fleet) -> list[dict[str, str]]:
    return fleet.node("n0")["spec"].get("taints") or []


PLACES = (
    ObjectRef("v1", "Namespace", "ml"),
    ObjectRef("v1", "Pod", "train-0", "ml"),
    ObjectRef("batch/v1", "Job", "train", "ml"),
)


@pytest.mark.parametrize("place", [None, *PLACES], ids=lambda ref: ref.kind if ref else "nobody")
def test_what_no_execute_would_end_is_read_again_before_it(store: RemediationStore, place: ObjectRef | None) -> None:
    fleet, executor = no_execute(store)

    def between() -> None:
        if place is not None:
            found = fleet.cluster.get(place)
            assert found is not None
            annotate(fleet, found, opt_out="true")

    kept = fleet.view()
    fleet.view = lambda: replace(kept, snapshot=replace(kept.snapshot, at=fleet.now))  # type: ignore[method-assign]
    fleet.between = between
    drive(fleet, executor, 1)
    assert [taint["effect"] for taint in taints_of(fleet)] == ["NoSchedule" if place else "NoExecute"]


def test_the_gangs_that_no_execute_ended_count_in_later_rates(store: RemediationStore) -> None:
    fleet, executor = no_execute(store, namespace_actions_per_hour=1)
    fleet.owner("Job", "chat", 2, node="n1")
    fleet.budget("chat", 2)
    until(fleet, executor, lambda: [taint["effect"] for taint in taints_of(fleet)] == ["NoExecute"])
    fleet.idle = {"chat"}
    for pod in fleet.pods("train"):
        fleet._end(pod)
    fleet.settle()
    fleet.propose(executor)
    assert not [each for each in store.all() if each.proposal.action is ActionKind.RELEASE_GANG]
    fleet.now += timedelta(minutes=61)
    fleet.propose(executor)
    assert [each for each in store.all() if each.proposal.action is ActionKind.RELEASE_GANG]


def test_a_rollout_counts_pods_without_gpus_that_came_since(store: RemediationStore) -> None:
    for comes in (False, True):
        store = new_store()
        fleet = HostileFleet(sick={"GPU-n0-0"})
        fleet.owner("Deployment", "web", 2)
        fleet.cordon()
        executor = start(fleet, store)
        until(fleet, executor, lambda: only(store).phase is Phase.ACTING)  # noqa: B023
        assert [step.kind for step in only(store).steps if step.kind.disrupts] == [StepKind.RESTART]
        if comes:
            fleet.side_pod("web", {})
        drive(fleet, executor, 0.5)
        assert bool(fleet.find("web")["spec"].get("template")) is not comes


@pytest.mark.parametrize(("doubted", "found"), [(True, Health.UNKNOWN), (False, Health.PROVEN)])
def test_a_device_that_is_doubted_is_no_proof_of_health(doubted: bool, found: Health) -> None:
    """One that is gone counts as exchanged once its Node shows all its GPUs, and each is healthy."""
    mine, *others = (model.device("n0", index) for index in range(8))
    given = {"devices": (mine.id,), "gpus": 7, "detectors": ("xid",)}
    proposal = model.remediation(ActionKind.TAINT_NODE, "n0", ["n0"], **given).proposal  # type: ignore[arg-type]
    state = model.snapshot([model.node("n0", gpus=7)], others)
    state = replace(state, doubted=(DoubtedDevice(shown=mine, why="two hosts"),) if doubted else ())
    healthy = tuple(model.sick(item, verdict=Verdict.HEALTHY) for item in others)
    assert health(proposal, PlanFacts(snapshot=state, findings=healthy))[0] is found


def test_a_device_that_left_telemetry_is_no_proof_of_health(store: RemediationStore) -> None:
    """Its Node counts one GPU less since, as the device plugin does."""
    fleet, executor = tainted(store)
    fleet.sick, fleet.dark = set(), {"GPU-n0-0"}
    model = fleet._model_node

    def fewer(node: Object) -> Any:
        found = model(node)
        return replace(found, gpu_count=7, accelerators={"nvidia.com/gpu": 7}) if found.name == "n0" else found

    fleet._model_node = fewer  # type: ignore[method-assign]
    drive(fleet, executor, 3)
    assert only(store).phase is Phase.IN_EFFECT
    assert fleet.node("n0")["spec"]["taints"]


def test_whose_clock_is_ahead_ends_no_notice_period_early(store: RemediationStore) -> None:
    """A leader half an hour ahead sees that the server is behind."""
    fleet = two_gangs()
    executor = start(fleet, store, notice_period_seconds=3600)
    until(fleet, executor, lambda: any(each.phase is Phase.NOTIFIED for each in store.all()))
    detail = "The server's clock is 1800 s behind the one here; set both by NTP, or give --at."
    fleet.gaps = lambda: (Gap(kind=GapKind.CLOCK, what="clocks", detail=detail),)  # type: ignore[method-assign]
    drive(fleet, executor, 2)
    assert not any(pod["metadata"].get("deletionTimestamp") for pod in fleet.pods("a"))
    assert not fleet.find("a")["spec"].get("suspend")
    del fleet.gaps
    until(fleet, executor, lambda: fleet.find("a")["spec"].get("suspend"))
