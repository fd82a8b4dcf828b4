"""What real Nodes showed over time (fixtures/node-recordings), as gpuwatch reads, judges and plans it."""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from cluster.api import Object
from cluster.control_plane import ControlPlaneBuild
from cluster.node_recorder import SCENES, recorded
from cluster.node_replay import RECORDINGS, Moment, lines_of, moments, told
from cluster.real_node import running_nodes
from detect.builders import device, healthy, scene
from gpuwatch.act.execute.recheck import no_execute_refused
from gpuwatch.act.placement import Nowhere, Room
from gpuwatch.act.plan.draw import draw_plan
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.plan.policy import PlanPolicy
from gpuwatch.facts.model.cluster import Cluster, Pod
from gpuwatch.facts.model.decision import (
    ActionKind,
    Advice,
    Finding,
    FindingKind,
    Mode,
    Plan,
    PlanItem,
    Severity,
    Verdict,
)
from gpuwatch.facts.model.telemetry import Device, Signal
from gpuwatch.judge.health.assess import assess_health
from gpuwatch.judge.health.policy import HealthPolicy
from plan.fleet import remediation

POLICY = PlanPolicy(modes=dict.fromkeys(ActionKind, Mode.ENFORCE))
GPU = "nvidia.com/gpu"
NAMES = tuple(SCENES)


def uuid(node: str, index: int) -> str:
    """As the tests' device plugin makes it."""
    found = hashlib.sha1(f"{node}/{index}".encode()).hexdigest()
    return f"GPU-{found[:8]}-{found[8:12]}-{found[12:16]}-{found[16:20]}-{found[20:32]}"


@dataclass(frozen=True)
class Seen:
    """A moment as gpuwatch reads it, beside telemetry in which all GPUs are well. broken: GPU 1 of gpu-0 has a row that
    cannot be remapped. unseen: telemetry has never shown GPU 3 of gpu-0."""

    moment: Moment
    cluster: Cluster
    broken: bool = False
    unseen: bool = False

    @property
    def at(self) -> datetime:
        return self.moment.at

    @cached_property
    def facts(self) -> PlanFacts:
        held = {each.id: pod.ref for pod in self.cluster.pods for each in pod.devices}
        names = [(node, index) for node in ("gpu-0", "gpu-1") for index in range(4)]
        if self.unseen:
            names.remove(("gpu-0", 3))

        def shown(node: str, index: int) -> Device:
            name = uuid(node, index)
            pods = [held[name]] if name in held else []
            return device(name, node=node, index=str(index), pods=pods, last_seen=self.at)

        devices = [shown(*each) for each in names]
        answers: dict[Any, Any] = healthy(devices)
        if self.broken:
            remaps = [stat for stat in answers if stat.signal is Signal.ROW_REMAP_FAILED_STATE]
            answers |= {stat: {**answers[stat], uuid("gpu-0", 1): 1.0} for stat in remaps}
        # The capacity of a Node is compared with telemetry once the Node is an hour old.
        aged = tuple(replace(node, created=None) for node in self.cluster.nodes)
        state = replace(scene(devices, answers, state=replace(self.cluster, nodes=aged)), at=self.at)
        findings = assess_health(state, HealthPolicy(team_label="team"))
        return PlanFacts(snapshot=state, findings=findings, policy=POLICY)

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self.facts.findings

    @cached_property
    def plan(self) -> Plan:
        return draw_plan(self.facts)

    @property
    def admitted(self) -> set[ActionKind]:
        return {item.candidate.action for item in self.plan.items if item.admitted}

    @property
    def without_capacity(self) -> list[str]:
        """The Nodes that offer no GPU for now, though none of theirs is held."""
        held = {pod.node for pod in self.cluster.pods if pod.devices}
        return [name for name in ("gpu-0", "gpu-1") if self.node(name) == "True 0/0" and name not in held]

    def item(self, action: ActionKind) -> PlanItem | None:
        return next((item for item in self.plan.items if item.candidate.action is action), None)

    def pod(self, number: int = 0) -> Pod | None:
        """The first Pod of the Job `train`, or the one in its place."""
        found = sorted((each for each in self.cluster.pods if each.name.startswith("train-")), key=_created)
        return found[number] if number < len(found) else None

    def has_room(self, node: str) -> bool:
        """For a Pod that takes all GPUs of a Node."""
        asks = Pod(namespace="team-b", name="next", phase="Pending", accelerators={GPU: 4})
        shut = {each.name: why for each in self.cluster.nodes if (why := self.facts.closed(each))}
        return not isinstance(Room(self.cluster.nodes, self.cluster.pods, shut).land([asks], within=[node]), Nowhere)

    def node(self, name: str) -> str:
        """Ready, allocatable, capacity."""
        found = self.facts.nodes[name]
        return f"{found.ready} {found.allocatable.get(GPU, 0)}/{found.accelerators.get(GPU, 0)}"


def _created(pod: Pod) -> tuple[str, str]:
    return str(pod.created), pod.name


@pytest.fixture
def replay(tmp_path: Path) -> Callable[..., list[Seen]]:
    def seen(name: str, **telemetry: bool) -> Iterator[Seen]:
        for moment in moments(lines_of(name)):
            cluster = moment.cluster(tmp_path)
            assert (cluster.gaps, cluster.unread) == ((), ()), "all is read"
            yield Seen(moment, cluster, **telemetry)

    return lambda name, **telemetry: list(seen(name, **telemetry))


WELL, RUNS = ["Ready 4/4"], "Running, ready, 4 Healthy"
STARTS = ["Pending", "Pending, 4 Healthy", RUNS]
ENDS_WELL = [RUNS, "Running, deleting, 4 Healthy", "Succeeded, deleting", "gone"]
TRAIN = "Job/team-a/train"
NO_PLUGIN, NO_KUBELET = (["Ready 4/4", each, "Ready 4/4"] for each in ("Ready 0/4", "Ready 0/0"))
ENOUGH = ["6 evictions left"]

SHOWN: dict[str, dict[str, list[str]]] = {
    "plugin-restarts": {"gpu-0": NO_PLUGIN, "gpu-1": WELL, "team-a/train-0": [RUNS], TRAIN: ENOUGH},
    "kubelet-restarts": {"gpu-0": NO_KUBELET, "gpu-1": NO_KUBELET, "team-a/train-0": [RUNS], TRAIN: ENOUGH},
    "device-unhealthy": {
        "gpu-0": ["Ready 4/4", "Ready 3/4", "Ready 4/4"],
        "gpu-1": WELL,
        "team-a/train-0": [RUNS, "Running, ready, 3 Healthy, 1 Unhealthy", RUNS],
        TRAIN: ENOUGH,
    },
    "eviction": {
        "gpu-0": WELL,
        "gpu-1": WELL,
        "team-a/train-0": ENDS_WELL,
        "team-a/train-1": STARTS,
        TRAIN: ["1 evictions left", "0 evictions left"],
    },
    "eviction-forgiven": {
        "gpu-0": WELL,
        "gpu-1": WELL,
        "team-a/train-0": ENDS_WELL,
        TRAIN: ["0 evictions left"],
    },
    "pull-fails": {"gpu-0": WELL, "gpu-1": WELL, "team-a/train-0": STARTS, TRAIN: ENOUGH},
    "never-ends": {
        "gpu-0": NO_KUBELET,
        "gpu-1": WELL,
        "team-a/train-0": [RUNS, "Running, deleting, 4 Healthy", "Failed, deleting", "gone"],
        "team-a/train-1": STARTS,
        TRAIN: ["6 evictions left", "5 evictions left"],
    },
}
"""What gpuwatch reads of each object, one after another. Nodes: allocatable/capacity."""


def test_each_scene_is_recorded_and_names_no_place_of_the_machine() -> None:
    files = sorted(RECORDINGS.glob("*.jsonl"))
    assert sorted(file.stem for file in files) == sorted(NAMES)
    assert sum(file.stat().st_size for file in files) < 300_000
    for file in files:
        found = re.findall(r'"(?:/(?!var/run/secrets|dev/termination-log)[\w.-]+/[^"]*)"', file.read_text())
        assert found == [], file.name


@pytest.mark.parametrize("name", SHOWN)
def test_what_is_read_of_each_object(name: str, tmp_path: Path) -> None:
    assert told(lines_of(name), tmp_path) == SHOWN[name]


def hold_to_be_shown_alone(findings: Iterable[Finding], seen: Seen) -> None:
    """They say that these Nodes have free GPUs that no Pod can get, ask nobody to do anything, and are no more."""
    found = list(findings)
    assert [each.node for each in found] == seen.without_capacity, (seen.at, seen.moment.mark)
    for each in found:
        assert (each.kind, each.verdict) == (FindingKind.OUT_OF_SERVICE, Verdict.UNKNOWN)
        assert (each.severity, each.advice, each.gpu_hours) == (Severity.INFO, Advice.WATCH, 0)
        assert each.summary == "4 free GPUs are out of service: its capacity is 0, though it has 4"


@pytest.mark.parametrize("name", SHOWN)
def test_nothing_is_done_to_a_cluster_whose_gpus_are_well(name: str, replay: Callable[..., list[Seen]]) -> None:
    """At no moment: not at a capacity of 0, not while Pods wait, end or do not end. Nothing but free GPUs that are not
    offered is a finding."""
    for seen in replay(name):
        assert seen.plan.brake == ""
        assert seen.admitted == set(), (seen.at, seen.moment.mark, seen.plan.items)
        if name != "device-unhealthy":
            hold_to_be_shown_alone(seen.findings, seen)


@pytest.mark.parametrize(("name", "node"), [("kubelet-restarts", "gpu-0"), ("kubelet-restarts", "gpu-1")])
def test_a_restarted_kubelet_has_no_gpu_for_two_seconds_and_is_ready(
    name: str, node: str, replay: Callable[..., list[Seen]]
) -> None:
    every = replay(name)
    first = next(each for each in every if each.node(node) == "True 0/0")
    back = next(each for each in every if each.at > first.at and each.node(node) == "True 4/4")
    assert timedelta(seconds=1) < back.at - first.at < timedelta(seconds=5)
    assert {each.node(node) for each in every} == {"True 4/4", "True 0/0"}


def test_a_gang_does_not_move_to_a_node_whose_kubelet_was_just_restarted(replay: Callable[..., list[Seen]]) -> None:
    every = replay("kubelet-restarts", broken=True)
    assert {each.node("gpu-1") for each in every} == {"True 4/4", "True 0/0"}
    for seen in every:
        item = seen.item(ActionKind.EVICT_GANG)
        assert item is not None
        refused = [refusal.guard for refusal in item.refusals]
        assert refused == (["lands"] if seen.node("gpu-1") == "True 0/0" else [])


def test_no_execute_sees_the_pods_of_a_node_without_a_gpu_for_now(replay: Callable[..., list[Seen]]) -> None:
    taint = remediation(ActionKind.TAINT_NODE, "node/gpu-0", ["gpu-0"], detectors=("row_remap",))
    for seen in replay("kubelet-restarts"):
        reason = no_execute_refused(taint, seen.facts)
        assert re.match(r"Pod team-a/plain-\w+, which has no GPU, does not tolerate the taint", reason), seen.node(
            "gpu-0"
        )


def test_a_device_plugin_that_is_gone_confirms_no_missing_gpu(replay: Callable[..., list[Seen]]) -> None:
    every = replay("plugin-restarts", unseen=True)
    assert "True 0/4" in {each.node("gpu-0") for each in every}
    for seen in every:
        (found,) = seen.findings
        assert (found.kind, found.node, found.confidence_ratio) == (FindingKind.GPU_MISSING, "gpu-0", 0.6)
        assert seen.admitted == set()


def test_an_unhealthy_device_that_is_held_is_shown_and_not_acted_on(replay: Callable[..., list[Seen]]) -> None:
    every = replay("device-unhealthy")
    told_of = [[each.kind for each in seen.findings] for seen in every]
    assert told_of[0] == told_of[-1] == []
    (found,) = next(seen.findings for seen in every if seen.findings)
    assert (found.kind, found.devices) == (FindingKind.DEVICE_HEALTH, (uuid("gpu-0", 1),))
    assert all(refusal.guard == "evidence" for seen in every for item in seen.plan.items for refusal in item.refusals)


def raw(seen: Seen, pod: Pod) -> Object:
    return seen.moment.objects[f"Pod/{pod.ref}"]


def is_ready(found: Object) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in found["status"]["conditions"])


def test_a_terminating_pod_is_ready_holds_its_gpus_and_costs_its_job_a_failure(
    replay: Callable[..., list[Seen]],
) -> None:
    every = replay("eviction")
    ending = [each for each in every if (pod := each.pod()) and pod.deleting and pod.phase == "Running"]
    ended = next(each for each in every if (pod := each.pod()) and pod.phase == "Succeeded")
    assert ended.at - ending[0].at > timedelta(seconds=3), "so long its process took"
    for seen in ending:
        pod = seen.pod()
        assert pod is not None and is_ready(raw(seen, pod)) and not pod.ready
        assert not seen.has_room("gpu-0")
    assert ended.has_room("gpu-0")
    left = [each.cluster.workloads[0].retries for each in ending]
    assert (left[0], left[-1]) == (1, 0), "it is counted before the Pod has ended"
    assert ending[-1].moment.objects[TRAIN]["status"]["failed"] == 1


def test_a_job_that_forgives_disruptions_takes_the_evicted_pod_for_done(replay: Callable[..., list[Seen]]) -> None:
    every = replay("eviction-forgiven")
    assert {each.retries for seen in every for each in seen.cluster.workloads} == {0}, "so none may be evicted"
    last = every[-1].moment.objects[TRAIN]["status"]
    assert last["succeeded"] == 1 and "failed" not in last


def test_a_pod_whose_image_cannot_be_pulled_holds_its_gpus(replay: Callable[..., list[Seen]]) -> None:
    waits = [
        seen
        for seen in replay("pull-fails")
        if (pod := seen.pod()) and "ImagePullBackOff" in str(raw(seen, pod)["status"].get("containerStatuses"))
    ]
    assert waits
    for seen in waits:
        pod = seen.pod()
        assert pod is not None and (pod.phase, len(pod.devices)) == ("Pending", 4)
        assert not seen.has_room(pod.node)


def test_a_pod_that_does_not_end_holds_its_gpus_and_moves_nothing_that_runs_elsewhere(
    replay: Callable[..., list[Seen]],
) -> None:
    over, both = [], []
    for seen in replay("never-ends", broken=True):
        first, second = seen.pod(), seen.pod(1)
        if first is None or not first.deleting or first.phase != "Running":
            continue
        until = datetime.fromisoformat(raw(seen, first)["metadata"]["deletionTimestamp"])
        over += [seen] if seen.at > until else []
        both += [seen] if second is not None and second.ready else []
        assert seen.item(ActionKind.EVICT_GANG) is None
        assert not seen.has_room("gpu-0")
    assert over and over[-1].at - over[0].at > timedelta(seconds=5), "it holds them long after its time"
    assert both, "its Job runs again on the other Node"


def test_refused_pods_of_two_teams_taint_the_node_and_are_read_with_and_without_container_statuses(
    replay: Callable[..., list[Seen]],
) -> None:
    every = replay("refusals")
    acted = [seen for seen in every if seen.admitted]
    assert acted and acted == every[-len(acted) :], "from then on"
    for seen in every:
        assert {each.node for each in seen.findings} <= {"gpu-0"}
        assert seen.admitted <= {ActionKind.TAINT_NODE}
    for seen in acted:
        (found,) = (each for each in seen.findings if each.kind is FindingKind.POD_ADMISSION)
        assert (found.verdict, found.approval) == (Verdict.DEGRADED, "")
        hold_to_be_shown_alone((each for each in seen.findings if each is not found), seen)
        assert {each.candidate.findings for each in seen.plan.items} == {(found.id,)}
    assert any(seen.without_capacity for seen in acted), "while its kubelet is restarted"
    refused = [(seen, pod) for seen in every for pod in seen.cluster.pods if pod.phase == "Failed"]
    assert {(pod.refused, pod.scheduled, pod.devices) for _, pod in refused} == {("UnexpectedAdmissionError", True, ())}
    bare = Counter("containerStatuses" in raw(seen, pod)["status"] for seen, pod in refused)
    assert set(bare) == {False, True}
    last = [raw(every[-1], pod)["status"] for seen, pod in refused if seen is every[-1]]
    assert len(last) == 8, "after the restart of its kubelet"
    for status in last:
        (container,) = status["containerStatuses"]
        assert container["state"]["terminated"]["reason"] == "ContainerStatusUnknown"
        assert container["state"]["terminated"]["startedAt"] is None
    left = {each.id: each.retries for each in every[-1].cluster.workloads}
    assert sum(20 - (each or 0) for each in left.values()) == 8, "each refusal costs its Job one of backoffLimit"


@pytest.mark.slow
def test_todays_nodes_show_what_was_recorded(node_build: ControlPlaneBuild, tmp_path: Path) -> None:
    with running_nodes(node_build, count=2) as nodes:
        for name in ("eviction", "kubelet-restarts"):
            assert told(recorded(nodes, name), tmp_path) == SHOWN[name]
