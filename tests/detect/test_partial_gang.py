"""Gangs that are placed in part: named within minutes, confirmed by silence, and told from what only looks like one."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

import pytest

from detect.idle_world import AT, POLICY, InEffect, bystander, only, steps, world
from gpuwatch.facts.model.cluster import Cluster, Condition, Pod
from gpuwatch.facts.model.decision import Advice, Finding, FindingKind, Severity, Snapshot, Verdict
from gpuwatch.facts.model.telemetry import Signal, Statistic, WindowStat
from gpuwatch.judge.idle.partial_gang import CAUSES, causes, partial_gangs

GANG = "JobSet/ml/torn"
MESSAGE = (
    "0/3 nodes are available: 2 Insufficient nvidia.com/gpu, 1 node(s) didn't match Pod's node affinity/selector. "
    "preemption: 0/3 nodes are available: 3 No preemption victims found for incoming pod."
)
RECENT_BUSY = WindowStat(Signal.BUSY_RATIO, Statistic.MAX, POLICY.recent_seconds)
RECENT_POWER = WindowStat(Signal.POWER_WATTS, Statistic.MAX, POLICY.recent_seconds)

NO_SECOND = {
    WindowStat(signal, Statistic.MAX, window): None
    for signal in (Signal.POWER_WATTS, Signal.DRAM_ACTIVE_RATIO, Signal.MEMORY_COPY_UTIL_RATIO)
    for window in (POLICY.recent_seconds, POLICY.recent_window_seconds, POLICY.long_window_seconds)
}


def holder(name: str, activity: str, **pod: object) -> InEffect:
    return InEffect(name=name, activity=(activity,), kind="Job", namespace="ml", workload="torn", gang=GANG, pod=pod)


def waiter(name: str, minutes: float, **pod: object) -> InEffect:
    """A Pod of the gang that was made so many minutes ago and has no Node."""
    told = {
        "phase": "Pending",
        "node": "",
        "started": None,
        "created": AT - timedelta(minutes=minutes),
        "accelerators": {"nvidia.com/gpu": 1},
        "unscheduled": f"Unschedulable: {MESSAGE}",
    }
    return replace(holder(name, ""), activity=(), pod={**told, **pod})


def torn(
    minutes: float = 20, *, holds: str | None = None, readings: Mapping[WindowStat, object] | None = None
) -> Snapshot:
    """Two of three Pods hold a GPU each, the third waits, all for so many minutes. holds: what the two do meanwhile."""
    activity = holds if holds is not None else steps((".", minutes / 60))
    members = [holder(f"torn-{n}", activity) for n in range(2)]
    return world(*members, waiter("torn-2", minutes), bystander(), readings=readings)  # type: ignore[arg-type]


def found(snapshot: Snapshot) -> Finding:
    return only(snapshot, GANG)


def with_pods(snapshot: Snapshot, **changes: Mapping[str, object]) -> Snapshot:
    """With other fields of Pods: name, with _ for -."""
    pods = tuple(
        replace(pod, **changes.get(pod.name.replace("-", "_"), {}))  # type: ignore[arg-type]
        for pod in snapshot.cluster.pods
    )
    return replace(snapshot, cluster=replace(snapshot.cluster, pods=pods))


def with_minimum(snapshot: Snapshot, count: int) -> Snapshot:
    gangs = tuple(replace(gang, min_available=count) for gang in snapshot.cluster.gangs)
    return replace(snapshot, cluster=replace(snapshot.cluster, gangs=gangs))


@pytest.mark.parametrize("asks", [False, True])
def test_kais_annotation_is_advised_where_its_owner_lacks_it(asks: bool) -> None:
    """KAI places a JobSet Pod by Pod since 0.15."""
    snapshot = torn(20)
    pods = tuple(replace(pod, scheduler="kai-scheduler") for pod in snapshot.cluster.pods)
    (gang,) = snapshot.cluster.gangs
    marks = {"kai.scheduler/batch-min-member": "3"} if asks else {}
    owners = tuple(
        replace(each, annotations=marks if each.id == gang.workload else {}) for each in snapshot.cluster.workloads
    )
    told = found(replace(snapshot, cluster=replace(snapshot.cluster, pods=pods, workloads=owners))).summary
    advice = f"KAI places {gang.workload} Pod by Pod; kai.scheduler/batch-min-member=3 on it places all or none"
    assert (advice in told) is not asks
    assert "KAI" not in found(torn(20)).summary


def test_it_is_named_within_minutes_and_confirmed_by_silence() -> None:
    finding = found(torn(20))
    assert (finding.rule, finding.kind, finding.verdict) == (
        "idle.partial_gang",
        FindingKind.PARTIAL_GANG,
        Verdict.IDLE,
    )
    assert (finding.severity, finding.advice) == (Severity.WARNING, Advice.RECLAIM)
    assert finding.confidence_ratio >= 0.9
    assert finding.summary == (
        "2 of the 3 Pods that it needs are placed; 1 not placed for 20 min; its scheduler's reason: resources or "
        "topology; its GPUs do nothing meanwhile"
    )
    assert finding.gpu_hours == pytest.approx(2 * 20 / 60, abs=0.01)
    assert finding.since == AT - timedelta(minutes=20)
    # The plan releases the gang as a whole, so that all its Pods stand for it.
    assert set(finding.pods) == {"ml/torn-0", "ml/torn-1", "ml/torn-2"}
    assert set(finding.devices) == {"GPU-torn-0-0", "GPU-torn-1-0"}
    placed, power = finding.evidence
    assert (placed.signal, placed.value, placed.bound) == ("placed_pods", 2.0, 3.0)
    assert placed.note.startswith("ml/torn-2: Unschedulable: 0/3 nodes are available: 2 Insufficient nvidia.com/gpu")
    assert power.signal == Signal.POWER_WATTS.value
    assert power.window_seconds == POLICY.recent_seconds


@pytest.mark.parametrize("minutes", [5, 9.9])
def test_a_gang_that_just_started_is_not_named(minutes: float) -> None:
    assert found(torn(minutes)).kind is FindingKind.IDLE_UNKNOWN


def test_it_is_named_from_its_bound_on() -> None:
    assert found(torn(10)).verdict is Verdict.IDLE


def test_holders_that_work_wait_for_nobody() -> None:
    """As an elastic job of which no minimum is known."""
    assert found(torn(60, holds=steps(("#", 1)))).kind is FindingKind.IN_USE
    # It rests for an hour after it worked in part: that may be a pause.
    assert found(torn(240, holds=steps((".", 1), ("#", 2), (".", 1)))).kind is not FindingKind.PARTIAL_GANG
    assert found(torn(300, holds=steps((".", 1), ("#", 1), (".", 3)))).verdict is Verdict.IDLE


def test_video_is_work() -> None:
    coding = WindowStat(Signal.ENCODER_UTIL_RATIO, Statistic.MAX, POLICY.recent_window_seconds)
    assert found(torn(40, readings={coding: 0.4})).kind is FindingKind.IN_USE


def test_the_last_work_of_a_gpu_may_be_an_earlier_pods() -> None:
    """Two statistics are of the device: who just got it has to wait until it is silent all through them."""
    busy = {RECENT_BUSY: 0.9}
    early = found(torn(20, readings=busy))
    assert (early.kind, early.verdict, early.confidence_ratio) == (FindingKind.PARTIAL_GANG, Verdict.UNKNOWN, 0.0)
    assert early.missing == ("which Pod did the last work of its GPUs",)
    assert found(torn(31, readings=busy)).kind is FindingKind.IN_USE
    drawn = found(torn(20, readings={RECENT_POWER: 400.0}))
    assert (drawn.verdict, drawn.advice) == (Verdict.UNKNOWN, Advice.NONE)
    assert "power_watts" in drawn.missing[0]


def test_without_a_second_signal_it_is_shown_alone() -> None:
    finding = found(torn(20, readings=NO_SECOND))
    assert (finding.kind, finding.verdict) == (FindingKind.PARTIAL_GANG, Verdict.UNKNOWN)
    assert finding.advice is Advice.FIX_MONITORING


def test_unknown_activity_is_shown_and_not_confirmed() -> None:
    finding = found(torn(40, holds="????????"))
    assert (finding.kind, finding.verdict) == (FindingKind.PARTIAL_GANG, Verdict.UNKNOWN)
    half = found(torn(40, holds="????...."))
    assert (half.kind, half.verdict) == (FindingKind.PARTIAL_GANG, Verdict.UNKNOWN)
    assert "50% of it is known" in half.missing[0]
    gone = replace(torn(20), devices=(), activity=())
    assert found(gone).verdict is Verdict.UNKNOWN
    assert found(gone).kind is FindingKind.PARTIAL_GANG


def test_silence_that_proves_itself_needs_no_such_gang() -> None:
    """A gang that never worked in hours, and of which the age of a waiting Pod is not known."""
    old = torn(600)
    assert found(with_pods(old, torn_2={"created": None})).kind is FindingKind.MODEL_LOADED
    assert found(old).kind is FindingKind.PARTIAL_GANG
    # The same where a second signal is what is missing: its hours are counted as suspected.
    suspected = found(torn(600, readings=NO_SECOND))
    assert suspected.kind is FindingKind.SUSPECTED_IDLE
    assert "2 of the 3 Pods that it needs are placed" in suspected.summary
    assert suspected.gpu_hours > 0


def nothing(snapshot: Snapshot) -> None:
    assert partial_gangs(snapshot.cluster) == {}
    assert found(snapshot).kind is not FindingKind.PARTIAL_GANG


def test_a_minimum_that_is_placed_waits_for_nobody() -> None:
    nothing(with_minimum(torn(20), 2))
    assert found(with_minimum(torn(20), 3)).verdict is Verdict.IDLE


def never_made(minutes: float = 20, *, needed: int = 4) -> Snapshot:
    """Two Pods hold a GPU each; the others that the gang needs do not exist."""
    members = [holder(f"torn-{n}", steps((".", minutes / 60))) for n in range(2)]
    return with_minimum(world(*members, bystander()), needed)


def test_members_that_were_never_made_are_missing() -> None:
    finding = found(never_made())
    assert (finding.kind, finding.verdict) == (FindingKind.PARTIAL_GANG, Verdict.IDLE)
    assert finding.summary == (
        "2 of the 4 Pods that it needs are placed; 2 not placed for 20 min (2 never created); its GPUs do nothing "
        "meanwhile"
    )
    assert found(with_minimum(torn(20), 4)).summary.startswith(
        "2 of the 4 Pods that it needs are placed; 2 not placed for 20 min (1 never created); its scheduler's"
    )
    nothing(never_made(needed=2))
    assert found(never_made(5)).kind is FindingKind.IDLE_UNKNOWN


def test_members_that_come_later_are_not_missing() -> None:
    """Of a gang that starts, or that lost a Pod, the rest may be made in a moment."""
    nothing(with_pods(never_made(), torn_1={"phase": "Pending", "node": "node-pull"}))
    state = never_made()
    for phase in ("Failed", "Succeeded"):
        ended = Pod(namespace="ml", name="torn-2", phase=phase, workload="Job/ml/torn")
        nothing(replace(state, cluster=replace(state.cluster, pods=(*state.cluster.pods, ended))))
        nothing(replace(state, cluster=replace(state.cluster, companions=(ended,))))


def test_the_gangs_own_object_says_what_keeps_the_rest_away() -> None:
    said = "Workload job-torn: QuotaReserved=False, Pending: couldn't assign flavors: insufficient unused quota"
    state = never_made()
    gangs = tuple(replace(gang, unscheduled=said) for gang in state.cluster.gangs)
    finding = found(replace(state, cluster=replace(state.cluster, gangs=gangs)))
    assert "(2 never created); its scheduler's reason: quota" in finding.summary
    assert finding.evidence[0].note == said


def test_pods_without_gpus_count_as_their_framework_counts_them() -> None:
    """A head or a launcher is one of the Pods that have to be placed."""
    head = Pod(namespace="ml", name="head", node="node-cpu", phase="Running", gang=GANG, workload="Job/ml/torn")
    state = with_minimum(torn(20), 3)
    nothing(replace(state, cluster=replace(state.cluster, companions=(head,))))
    lost = replace(head, node="", phase="Pending")
    assert found(replace(state, cluster=replace(state.cluster, companions=(lost,)))).verdict is Verdict.IDLE


def test_a_pod_that_pulls_its_image_has_its_place() -> None:
    nothing(with_pods(torn(20), torn_2={"node": "node-pull", "unscheduled": ""}))
    state = with_pods(torn(20), torn_1={"phase": "Pending"})
    (partial,) = partial_gangs(state.cluster).values()
    assert ([pod.name for pod in partial.waiting], partial.placed, partial.needed) == (["torn-2"], 2, 3)


def test_a_gang_that_ends_is_left_alone() -> None:
    nothing(with_pods(torn(20), torn_1={"deleting": True}))


def test_a_gang_of_which_a_pod_has_completed_does_not_begin() -> None:
    state = torn(20)
    done = Pod(namespace="ml", name="torn-done", phase="Succeeded", workload="Job/ml/torn")
    nothing(replace(state, cluster=replace(state.cluster, pods=(*state.cluster.pods, done))))
    # One that failed is what its owner tries again.
    failed = replace(done, phase="Failed")
    again = replace(state, cluster=replace(state.cluster, pods=(*state.cluster.pods, failed)))
    assert found(again).verdict is Verdict.IDLE


def test_a_gang_that_waits_as_a_whole_holds_nothing() -> None:
    pods = {"phase": "Pending", "node": "", "created": AT - timedelta(hours=1)}
    state = with_pods(torn(20), torn_0=pods, torn_1=pods)
    assert partial_gangs(state.cluster) == {}
    assert partial_gangs(Cluster()) == {}


def test_a_gang_on_a_node_that_is_not_ready_is_not_named() -> None:
    state = torn(20)
    ill = tuple(
        replace(node, conditions=(Condition("Ready", "Unknown"),)) if node.name == "node-torn-1" else node
        for node in state.cluster.nodes
    )
    finding = found(replace(state, cluster=replace(state.cluster, nodes=ill)))
    assert (finding.kind, finding.verdict) == (FindingKind.IDLE_UNKNOWN, Verdict.UNKNOWN)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        # kube-scheduler 1.36, pkg/scheduler/framework/plugins/*
        ("0/1 nodes are available: 1 Insufficient nvidia.com/gpu.", ("resources",)),
        ("0/2 nodes are available: 2 Too many pods.", ("resources",)),
        ("0/2 nodes are available: 2 cannot allocate all claims.", ("resources",)),
        ("0/4 nodes are available: 4 node(s) had untolerated taint(s).", ("taint",)),
        ("0/4 nodes are available: 4 node(s) had untolerated taint {dedicated: team-b}.", ("taint",)),
        ("0/1 nodes are available: 1 node(s) were unschedulable.", ("taint",)),
        ("0/4 nodes are available: 4 node(s) didn't match Pod's node affinity/selector.", ("topology",)),
        ("0/4 nodes are available: 4 node(s) didn't match pod anti-affinity rules.", ("topology",)),
        ("0/4 nodes are available: 4 node(s) didn't match pod topology spread constraints.", ("topology",)),
        ("0/4 nodes are available: pod has unbound immediate PersistentVolumeClaims.", ("volume",)),
        ("0/4 nodes are available: 4 node(s) had volume node affinity conflict.", ("volume",)),
        ("Scheduling is blocked due to non-empty scheduling gates", ("quota",)),
        ("3/4 tasks in gang unschedulable: pod group is not ready, 3 Pending, 4 minAvailable.", ("gang",)),
        ("", ()),
        ("0/1 nodes are available: 1 node(s) had a plugin's own words.", ()),
    ],
)
def test_what_keeps_it_from_being_placed(message: str, expected: tuple[str, ...]) -> None:
    pod = Pod(namespace="ml", name="p", unscheduled=f"Unschedulable: {message}")
    assert causes([pod]) == expected
    assert set(expected) <= set(CAUSES)
