"""Gangs that Kueue placed by their topology, on Nodes that gpuwatch taints: held to what Kueue itself did."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from execute.living import ENFORCE, Fleet, drive, is_closed, new_store, quick
from execute.living import only as only_remediation
from gpuwatch.act.execute.advance import ExecutorPolicies
from gpuwatch.act.execute.recheck import ended_by_no_execute
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.plan.guards import GuardCase, guard
from gpuwatch.act.plan.policy import PlanPolicy
from gpuwatch.act.plan.score import weigh
from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.frameworks.framework import place_lost
from gpuwatch.facts.model.cluster import Assigned, Cluster, Pod, Toleration
from gpuwatch.facts.model.decision import ActionKind, Mode, PlanItem, Snapshot
from gpuwatch.facts.model.remediation import Phase, StepKind
from gpuwatch.facts.model.telemetry import GapKind
from kueue.recorded import TAINTED, Object, Recorded, course
from plan.fleet import device, only, plan_of, remediation, sick

LATE = 1000.0  # after all that was recorded
BEFORE, AFTER = {"gpu-0": 1, "gpu-1": 1, "gpu-2": 1}, {"gpu-0": 1, "gpu-2": 1, "gpu-3": 1}
MOVED = [Assigned(pods=BEFORE), Assigned(pods=BEFORE, replaced=(TAINTED,)), Assigned(pods=AFTER)]


def pods(of: Recorded, seconds: float, namespace: str = "team-a") -> list[Object]:
    found = (each for each in of.objects(seconds) if each["kind"] == "Pod")
    return [each for each in found if each["metadata"]["namespace"] == namespace]


def ended(found: list[Object]) -> list[Object]:
    """Those that Kueue ended."""
    return [each for each in found if any(told["type"] == "TerminatedByKueue" for told in each["status"]["conditions"])]


def gang_of(cluster: Cluster) -> Assigned | None:
    found = [gang.assigned for gang in cluster.gangs if gang.namespace == "team-a"]
    return found[0] if found else None


# What Kueue did: the sentences of the plan rest on it


def test_no_schedule_ends_no_pod_that_runs() -> None:
    first, last = pods(course("running"), 0), pods(course("running"), LATE)
    assert first == last
    assert {each["status"]["phase"] for each in last} == {"Running"}


def test_a_gang_without_room_elsewhere_loses_its_place_to_who_waits() -> None:
    assert pods(course("full"), 0, "team-b") == []
    assert pods(course("full"), LATE) == []
    assert [each["status"]["phase"] for each in pods(course("full"), LATE, "team-b")] == ["Running"]


def test_beside_a_mate_that_runs_each_new_pod_is_ended() -> None:
    """kueue#14917."""
    last = pods(course("mates"), LATE)
    killed = ended(last)
    assert len(killed) == 3
    assert {each["spec"]["nodeSelector"]["kubernetes.io/hostname"] for each in killed} == {TAINTED}
    assert {each["status"]["phase"] for each in killed} == {"Failed"}
    assert TAINTED in {each["spec"].get("nodeName") for each in last if each["status"]["phase"] == "Running"}
    assert not any(ended(pods(course(name), LATE)) for name in ("running", "spare", "full", "no_execute"))


# What gpuwatch reads


@pytest.mark.parametrize("version", ["v1beta2", "v1beta1"])
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("running", MOVED[:1]),
        ("spare", MOVED),
        ("full", [*MOVED[:2], Assigned(pods=BEFORE, evictions=1), None]),
        ("mates", [Assigned(pods=dict.fromkeys(BEFORE, 2))]),
        ("no_execute", MOVED),
    ],
)
def test_the_reader_follows_where_kueue_places_a_gang(
    name: str, expected: list[Assigned | None], version: str, tmp_path: Path
) -> None:
    found: list[Assigned | None] = []
    for at, seconds in enumerate(dict.fromkeys(each["seconds"] for each in course(name).frames)):
        now = gang_of(course(name).cluster(tmp_path / str(at), seconds, version))
        if not found or found[-1] != now:
            found.append(now)
    dated = [each.evicted_at for each in found if each is not None and each.evictions]
    assert [each and replace(each, evicted_at=None) for each in found] == expected
    assert all(at is not None and at >= course(name).tainted_at for at in dated)


def test_the_reader_knows_when_kueue_ended_a_pod(tmp_path: Path) -> None:
    found = course("mates").cluster(tmp_path, LATE)
    times = [pod.sent_back for pod in found.pods if pod.sent_back is not None]
    assert len(times) == 3
    assert all(course("mates").tainted_at < at < course("mates").at(120) for at in times)


BROKEN = {
    "no levels": {"slices": []},
    "levels of another type": {"levels": 3, "slices": []},
    "a count that is a text": {"levels": ["kubernetes.io/hostname"], "domains": [{"values": ["gpu-1"], "count": "1"}]},
    "a domain without values": {"levels": ["kubernetes.io/hostname"], "domains": [{"values": [], "count": 1}]},
    "more domains than values": {
        "levels": ["kubernetes.io/hostname"],
        "slices": [
            {"domainCount": 10**12, "podCounts": {"universal": 1}, "valuesPerLevel": [{"universal": "gpu-1"}]},
        ],
    },
}


@pytest.mark.parametrize("topology", BROKEN.values(), ids=BROKEN)
def test_a_workload_that_is_not_understood_costs_only_itself(topology: Object, tmp_path: Path) -> None:
    def spoil(found: Object) -> None:
        if found["kind"] == "Workload" and found["metadata"]["namespace"] == "team-a":
            found["status"]["admission"]["podSetAssignments"][0]["topologyAssignment"] = topology

    well = course("running").cluster(tmp_path / "a", 0)
    found = course("running").cluster(tmp_path / "b", 0, change=spoil)
    (gap,) = [each for each in found.gaps if each.kind is GapKind.BAD_INPUT]
    assert gap.what.startswith("Workload team-a/job-team-a-")
    assert gang_of(found) == Assigned()
    assert [replace(each, assigned=None) for each in found.gangs] == [
        replace(each, assigned=None) for each in well.gangs
    ]
    assert found.unread == well.unread
    assert "1 Pod of Kueue/team-a/" in taint(found, course("running"), 0).candidate.reason


def test_a_topology_above_nodes_binds_a_gang_to_none(tmp_path: Path) -> None:
    def by_rack(found: Object) -> None:
        if found["kind"] == "Workload" and found["metadata"]["namespace"] == "team-a":
            placed = found["status"]["admission"]["podSetAssignments"][0]["topologyAssignment"]
            placed["levels"] = ["example.org/rack"]

    assert gang_of(course("running").cluster(tmp_path, 0, change=by_rack)) is None


# What the plan tells


def taint(cluster: Cluster, of: Recorded, seconds: float, later: timedelta = timedelta()) -> PlanItem:
    """The plan's taint of that Node, one of whose GPUs is sick."""
    held = [pod.ref for pod in cluster.pods if pod.node == TAINTED and pod.phase == "Running"]
    bare = replace(cluster, nodes=tuple(replace(each, taints=()) for each in cluster.nodes))
    devices = [device(TAINTED, at, held[0] if held else "") for at in range(8)]
    state = Snapshot(at=of.at(seconds) + later, devices=tuple(devices), cluster=bare)
    policy = PlanPolicy(modes=dict.fromkeys(ActionKind, Mode.ENFORCE), budget_ratio=1.0)
    return only(plan_of(state, (sick(devices[0]),), policy), ActionKind.TAINT_NODE)


def test_the_plan_tells_what_the_taint_causes(tmp_path: Path) -> None:
    running = course("running").cluster(tmp_path / "a", 0)
    gang = next(each.id for each in running.gangs)
    item = taint(running, course("running"), 0)
    assert item.candidate.reason == (
        f"Fell off the bus. Kueue placed 1 Pod of {gang} there by its topology. NoSchedule ends none that runs. Once "
        "none of its Pods runs there (1 now), Kueue gives it another Node, or without one evicts and requeues "
        "all of it."
    )
    assert item.mode is Mode.ENFORCE
    mates = taint(course("mates").cluster(tmp_path / "b", 0), course("mates"), 0).candidate.reason
    assert "Kueue placed 2 Pods" in mates
    assert "(2 now)" in mates
    assert mates.endswith("Until then it ends each Pod that is created anew for this Node.")


def test_the_plan_tells_that_a_gang_moves_at_once(tmp_path: Path) -> None:
    """Its Pod there is gone, and Kueue has begun to look for another Node."""
    replaced = next(
        each["seconds"]
        for each in course("no_execute").frames
        if each.get("object", {}).get("status", {}).get("unhealthyNodes")
    )
    told = taint(course("no_execute").cluster(tmp_path, replaced), course("no_execute"), replaced).candidate.reason
    assert "From NoSchedule on, as none runs there, Kueue gives it another Node, or without one evicts" in told
    assert "Kueue moves it off gpu-1 already; if it loses two, it is evicted." in told


@pytest.mark.parametrize("name", ["spare", "full"])
def test_a_gang_that_has_left_the_node_is_not_named(name: str, tmp_path: Path) -> None:
    item = taint(course(name).cluster(tmp_path, LATE), course(name), 30)
    assert item.candidate.reason == ""


def test_a_gang_that_tolerates_the_taint_is_not_moved(tmp_path: Path) -> None:
    found = course("running").cluster(tmp_path, 0)

    def with_tolerations(pod: Pod) -> Pod:
        return replace(pod, placement=replace(pod.placement, tolerations=(Toleration(keys.DEGRADED, "Exists"),)))

    tolerant = replace(found, pods=tuple(map(with_tolerations, found.pods)))
    assert taint(tolerant, course("running"), 0).candidate.reason == ""
    first, *others = tolerant.pods
    one_does_not = replace(found, pods=(*others, next(pod for pod in found.pods if pod.ref == first.ref)))
    assert taint(one_does_not, course("running"), 0).candidate.reason != ""


def test_no_execute_is_never_set_where_kueue_placed_a_gang(tmp_path: Path) -> None:
    found = replace(course("running").cluster(tmp_path, 0), unread=())
    facts = PlanFacts(snapshot=Snapshot(at=course("running").at(0), cluster=found))
    standing = remediation(ActionKind.TAINT_NODE, f"node/{TAINTED}", nodes=(TAINTED,), detectors=("xid",))
    (moved,) = ended_by_no_execute(standing.proposal, facts)
    refusals = guard(GuardCase(moved, weigh(moved, facts)[0], facts))
    assert [each.reason for each in refusals if each.guard == "framework"] == [f"Kueue: {place_lost('Kueue')}"]


# Three times an hour


def kills() -> list[float]:
    """Seconds after the taint."""
    found = course("mates").frames
    return [
        each["seconds"] for each in found if each.get("object", {}).get("kind") == "Pod" and ended([each["object"]])
    ]


@pytest.mark.parametrize(
    ("seconds", "later", "mode"),
    [
        (lambda: kills()[2] - 0.1, timedelta(), Mode.ENFORCE),
        (lambda: kills()[2], timedelta(), Mode.SUGGEST),
        (lambda: kills()[2], timedelta(minutes=58), Mode.SUGGEST),
        (lambda: kills()[2], timedelta(hours=1), Mode.ENFORCE),
    ],
    ids=["twice", "three times", "within the hour", "an hour later"],
)
def test_a_person_decides_once_kueue_sent_three_pods_back(
    seconds: object, later: timedelta, mode: Mode, tmp_path: Path
) -> None:
    assert callable(seconds)
    found = course("mates").cluster(tmp_path, seconds())
    item = taint(found, course("mates"), seconds(), later)
    assert item.mode is mode
    gang = next(each.id for each in found.gangs)
    told = f"Kueue sent {gang} or Pods of it back 3 times within an hour, and this taint moves it. `kueuectl stop "
    assert item.mode_reason.startswith(told) is (mode is Mode.SUGGEST)


@pytest.mark.parametrize(
    ("evictions", "minutes", "mode"), [(3, 59, Mode.SUGGEST), (2, 59, Mode.ENFORCE), (3, 61, Mode.ENFORCE)]
)
def test_a_person_decides_once_kueue_evicted_a_gang_three_times(
    evictions: int, minutes: int, mode: Mode, tmp_path: Path
) -> None:
    found = course("running").cluster(tmp_path, 0)
    (gang,) = found.gangs
    assert gang.assigned is not None
    at = course("running").at(0) - timedelta(minutes=minutes)
    again = replace(gang, assigned=replace(gang.assigned, evictions=evictions, evicted_at=at))
    assert taint(replace(found, gangs=(again,)), course("running"), 0).mode is mode


# While the taint stands


class Placed(Fleet):
    """Kueue placed the gang 'train' by its topology, and ends its Pods as it did in the record, at the same times."""

    since: datetime | None = None
    killed: tuple[Pod, ...] = ()

    def view(self) -> PlanFacts:
        facts = super().view()
        cluster = facts.snapshot.cluster
        on = {pod.node for pod in cluster.pods}
        gangs = tuple(replace(each, assigned=Assigned(pods=dict.fromkeys(on, 2))) for each in cluster.gangs)
        if self.since is None and any(map(is_closed, self._all("v1", "Node"))):
            self.since = self.now
        dead = tuple(
            replace(pod, workload="Job/ml/train", sent_back=at)
            for pod in self.killed
            if self.since is not None and pod.sent_back is not None
            if (at := self.since + (pod.sent_back - course("mates").tainted_at)) <= self.now
        )
        changed = replace(cluster, gangs=gangs, pods=(*cluster.pods, *dead))
        return replace(facts, snapshot=replace(facts.snapshot, cluster=changed))


@pytest.mark.parametrize("loops", [True, False])
def test_a_person_is_called_while_the_taint_sends_a_gang_back(loops: bool, tmp_path: Path) -> None:
    fleet = Placed(sick={"GPU-n0-0"})
    fleet.owner("Job", "train", 4, pods=2)
    recorded = course("mates").cluster(tmp_path, LATE)
    fleet.killed = tuple(pod for pod in recorded.pods if pod.sent_back is not None) if loops else ()
    store = new_store()
    taints_only = replace(ENFORCE, modes={ActionKind.TAINT_NODE: Mode.ENFORCE})
    executor = fleet.executor(store, ExecutorPolicies(taints_only, quick()))
    fleet.propose(executor)
    drive(fleet, executor, 1.5)
    found = only_remediation(store)
    assert found.phase is Phase.IN_EFFECT
    called = [step for step in found.steps if "call" in step.parameters]
    assert len(called) == (2 if loops else 0), "an Event and a notification, once"
    assert [turn.message for turn in found.history if turn.message.startswith("A person is called: Kueue sent ")] == (
        [f"A person is called: {called[0].parameters['text'].partition('needs a person. ')[2]}"] if loops else []
    )
    effects = [step.parameters["effect"] for step in found.steps if step.kind is StepKind.TAINT and step.done_at]
    assert effects == ["PreferNoSchedule", "NoSchedule"]
