"""Gangs that are placed in part: what keeps their rest from its place, who waits for whom, and which is released."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta

import pytest

from gpuwatch.act.plan.demand import explained
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.plan.policy import PlanPolicy
from gpuwatch.act.plan.score import HORIZON_HOURS
from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.model.cluster import Gang, Node, Placement, Pod
from gpuwatch.facts.model.decision import (
    ActionKind,
    Family,
    Finding,
    FindingKind,
    Mode,
    Plan,
    Severity,
    Snapshot,
    Subject,
    SubjectKind,
    Verdict,
)
from gpuwatch.facts.model.remediation import Phase
from plan.fleet import NOW, device, guards, node, only, plan_of, pod, remediation, snapshot, workload

POLICY = PlanPolicy(
    budget_ratio=1.0,
    idle_storm_ratio=1.0,
    actions_per_hour=99,
    namespace_actions_per_hour=99,
    pool_actions_per_hour=99,
)
RELEASE = ActionKind.RELEASE_GANG
SINCE = NOW - timedelta(minutes=20)


def torn(
    name: str, places: dict[str, int], waits: Iterable[int], *, started: float = 1 / 3, **changes: object
) -> tuple[list[Pod], Gang]:
    """A JobSet's gang: Node → GPUs of its Pod there, and the GPUs of each Pod that waits. started: hours ago."""
    owner, gang = f"JobSet/ml/{name}", f"JobSet/ml/{name}"
    placed = [
        pod(f"ml/{name}-{n}", at, gpus, owner, gang=gang, started=NOW - timedelta(hours=started), **changes)
        for n, (at, gpus) in enumerate(places.items())
    ]
    rest = [
        pod(
            f"ml/{name}-w{n}",
            "",
            gpus,
            owner,
            gang=gang,
            phase="Pending",
            started=None,
            created=SINCE,
            **changes,
        )
        for n, gpus in enumerate(waits)
    ]
    refs = tuple(each.ref for each in (*placed, *rest))
    return [*placed, *rest], Gang(id=gang, framework="JobSet", workload=owner, namespace="ml", pods=refs)


def state(*gangs: tuple[list[Pod], Gang], nodes: Iterable[Node] = (), others: Iterable[Pod] = ()) -> Snapshot:
    """On Nodes of 8 GPUs; every GPU reports."""
    pods = [each for found, _ in gangs for each in found]
    names = sorted({each.node for each in (*pods, *others) if each.node})
    made = [node(name) for name in names if name not in {each.name for each in nodes}]
    devices, used = [], dict.fromkeys((each.name for each in (*made, *nodes)), 0)
    for each in (*pods, *others):
        for _ in range(sum(each.accelerators.values()) if each.node else 0):
            devices.append(device(each.node, used[each.node], each.ref))
            used[each.node] += 1
    devices += [device(name, index) for name, count in used.items() for index in range(count, 8)]
    owners = [workload(gang.workload, created=NOW - timedelta(days=1)) for _, gang in gangs]
    owners += [workload(each.workload) for each in others]
    return snapshot((*made, *nodes), devices, [*pods, *others], owners, [gang for _, gang in gangs])


def findings(scene: Snapshot, *, verdict: Verdict = Verdict.IDLE, policy: PlanPolicy = POLICY) -> tuple[Finding, ...]:
    """As `detect` names each gang, and then as the landing explains them."""
    found = tuple(
        Finding(
            rule="idle.partial_gang",
            family=Family.IDLE,
            kind=FindingKind.PARTIAL_GANG,
            subject=Subject(SubjectKind.GANG, gang.id),
            verdict=verdict,
            summary="placed in part",
            severity=Severity.WARNING,
            confidence_ratio=0.95 if verdict is Verdict.IDLE else 0.0,
            since=SINCE,
            devices=tuple(each.id for each in scene.devices if set(each.pods) & set(gang.pods)),
            pods=gang.pods,
        )
        for gang in scene.cluster.gangs
    )
    return explained(PlanFacts(snapshot=scene, findings=found, policy=policy))


def released(plan: Plan) -> dict[str, str]:
    """Name of the gang that is released → the Pod that waits for it."""
    return {
        item.candidate.target.name.rpartition("/")[2]: item.candidate.waiter
        for item in plan.items
        if item.candidate.action is RELEASE and item.admitted
    }


def drawn(scene: Snapshot, policy: PlanPolicy = POLICY, **how: object) -> dict[str, str]:
    return released(plan_of(scene, findings(scene, policy=policy, **how), policy))  # type: ignore[arg-type]


BIG = torn("big", {"n0": 8}, [6])
SMALL = torn("small", {"n1": 6}, [8])


def test_two_that_wait_for_each_other_are_named_together() -> None:
    told = {item.subject.name: item for item in findings(state(BIG, SMALL))}
    text = (
        "JobSet/ml/big and JobSet/ml/small wait for each other's GPUs, and the release of JobSet/ml/small loses least"
    )
    assert all(text in item.summary for item in told.values())
    landing, cost = told["JobSet/ml/big"].evidence
    assert (landing.signal, landing.value) == ("landing", "nowhere")
    assert "Closest is n1: 2 of 6 nvidia.com/gpu are free" in landing.note
    assert (cost.signal, cost.value, cost.unit) == ("release_cost", 6.0, "GPU-hours")
    assert cost.note == "JobSet/ml/big loses 8.0 GPU-hours, JobSet/ml/small loses 6.0 GPU-hours"


def test_of_two_that_wait_for_each_other_the_cheaper_one_is_released() -> None:
    for gangs in ((BIG, SMALL), (SMALL, BIG)):
        assert drawn(state(*gangs)) == {"small": "ml/big-w0"}
    # Whoever waits first in the scheduler's order makes no difference.
    first = [replace(each, created=SINCE - timedelta(hours=1)) if not each.node else each for each in SMALL[0]]
    assert drawn(state(BIG, (first, SMALL[1]))) == {"small": "ml/big-w0"}


@pytest.mark.parametrize("phase", [Phase.PROPOSED, Phase.NOTIFIED, Phase.ACTING, Phase.VERIFYING])
def test_while_one_is_released_the_other_one_for_which_it_makes_room_stays(phase: Phase) -> None:
    scene = state(BIG, SMALL)
    pods = tuple(each.ref for each in scene.cluster.pods if each.gang == "JobSet/ml/small" and each.node)
    begun = remediation(RELEASE, "gang/JobSet/ml/small", ["n1"], phase=phase, pods=pods, waiter="ml/big-w0")
    assert released(plan_of(scene, findings(scene), POLICY, history=(begun,))) == {}
    rejected = replace(begun, phase=Phase.REJECTED)
    assert released(plan_of(scene, findings(scene), POLICY, history=(rejected,))) == {"small": "ml/big-w0"}


def test_work_before_it_stopped_is_lost_with_it() -> None:
    """The small one had run for two hours when a Pod of it was lost; a checkpoint of then keeps its work."""
    worked = torn("small", {"n1": 6}, [8], started=2 + 1 / 3)
    assert drawn(state(BIG, worked)) == {"big": "ml/small-w0"}
    (cost,) = [item.evidence[-1] for item in findings(state(BIG, worked)) if item.subject.name.endswith("big")]
    assert cost.note == "JobSet/ml/big loses 8.0 GPU-hours, JobSet/ml/small loses 18.0 GPU-hours"
    saved = {keys.LAST_CHECKPOINT: SINCE.isoformat()}
    kept = torn("small", {"n1": 6}, [8], started=2 + 1 / 3, annotations=saved)
    assert drawn(state(BIG, kept)) == {"small": "ml/big-w0"}
    item = only(plan_of(state(worked), findings(state(worked)), POLICY), RELEASE)
    assert item.score.disrupted_gpu_hours == pytest.approx(18)
    assert "12.0 GPU-hours of work before it stopped, since its start (at most 24 h count; " in item.score.harm_basis
    assert item.score.gained_gpu_hours == pytest.approx(6 * HORIZON_HOURS)
    assert item.candidate.gpus == 6  # those that it holds, not those that it waits for


def test_a_gang_of_higher_priority_is_not_released_for_another() -> None:
    important = torn("small", {"n1": 6}, [8], priority=100)
    assert drawn(state(BIG, important)) == {"big": "ml/small-w0"}


def test_nobody_is_released_for_its_own_rest() -> None:
    alone = torn("big", {"n0": 8}, [6])
    scene = state(alone)
    item = only(plan_of(scene, findings(scene), POLICY), RELEASE)
    assert guards(item) == {"demand"}  # though the policy asks for no demand
    assert not POLICY.reclaim_only_on_demand


def test_a_gang_that_waits_as_a_whole_gets_what_one_in_part_holds() -> None:
    scene = state(BIG, torn("whole", {}, [4, 4]))
    found = tuple(item for item in findings(scene) if item.subject.name != "JobSet/ml/whole")
    assert released(plan_of(scene, found, POLICY)) == {"big": "ml/whole-w0"}


def test_what_is_not_confirmed_is_shown_alone() -> None:
    scene = state(BIG, SMALL)
    shown = findings(scene, verdict=Verdict.UNKNOWN)
    assert "wait for each other's GPUs" in shown[0].summary
    assert plan_of(scene, shown, POLICY).items == ()


def test_only_the_one_that_is_confirmed_is_released() -> None:
    scene = state(BIG, SMALL)
    big, small = findings(scene)
    shown = replace(small, verdict=Verdict.UNKNOWN, confidence_ratio=0.0)
    assert released(plan_of(scene, (big, shown), POLICY)) == {"big": "ml/small-w0"}


def test_of_three_in_a_ring_one_is_released() -> None:
    """Each waits for a GPU model that another one has."""
    kinds = [node(f"n{i}", labels={"kind": str(i)}) for i in range(3)]
    ring = []
    for i in range(3):
        pods, gang = torn(f"g{i}", {f"n{i}": 8}, [8])
        wants = Placement(node_selector={"kind": str((i + 1) % 3)})
        ring.append(([replace(each, placement=wants) if not each.node else each for each in pods], gang))
    scene = state(*ring, nodes=kinds)
    told = findings(scene)
    text = "JobSet/ml/g0 and JobSet/ml/g1 and JobSet/ml/g2 wait for each other's GPUs, and the release of JobSet/ml/g0"
    assert [item.summary.rpartition("; ")[2] for item in told] == [f"{text} loses least"] * 3
    assert drawn(scene) == {"g1": "ml/g0-w0"}


def test_one_whose_other_pods_were_never_made_waits_for_no_place() -> None:
    pods, gang = torn("big", {"n0": 8}, [])
    (item,) = findings(state((pods, gang)))
    assert item.summary == "placed in part"
    # Whoever wants its GPUs is told, and gets them.
    scene = state((pods, gang), SMALL)
    told = {item.subject.name: item.summary for item in findings(scene)}
    assert told["JobSet/ml/small"] == "placed in part; the release of JobSet/ml/big would make room"
    assert drawn(scene) == {"big": "ml/small-w0"}


def test_one_that_only_waits_for_another_is_no_deadlock() -> None:
    """The small one's release makes no room for the big one, which wants more than its Node has."""
    wide = torn("wide", {"n0": 8}, [9])
    small = torn("small", {"n1": 6}, [8])
    told = {item.subject.name: item.summary for item in findings(state(wide, small))}
    assert "the release of JobSet/ml/wide would make room" in told["JobSet/ml/small"]
    assert told["JobSet/ml/wide"] == "placed in part"
    assert drawn(state(wide, small)) == {"wide": "ml/small-w0"}


def test_what_the_simulation_cannot_see_is_said() -> None:
    fits = torn("big", {"n0": 4}, [4])
    (item,) = findings(state(fits))
    assert item.summary == "placed in part; the simulated scheduler finds room"
    gated = [replace(each, placement=Placement(gated=True)) if not each.node else each for each in fits[0]]
    (item,) = findings(state((gated, fits[1])))
    assert item.summary == "placed in part; they are kept from the scheduler"
    claim = Placement(unmodelled=("spec.volumes[v].persistentVolumeClaim: why",))
    (item,) = findings(state(([replace(each, placement=claim) for each in fits[0]], fits[1])))
    assert item.summary == "placed in part"
    (landing,) = (each for each in item.evidence if each.signal == "landing")
    assert (landing.value, landing.note) == (
        "unknown",
        "It is not known where Pod ml/big-w0 can run: it has spec.volumes[v].persistentVolumeClaim: why.",
    )


def test_the_mode_decides_what_is_done_about_it() -> None:
    scene = state(BIG, SMALL)
    for mode in Mode:
        policy = replace(POLICY, modes={RELEASE: mode})
        plan = plan_of(scene, findings(scene), policy)
        assert {(item.mode, item.admitted) for item in plan.items} == {(mode, True), (mode, False)}


def test_a_gang_that_opted_out_keeps_its_gpus_and_the_other_goes() -> None:
    kept = torn("small", {"n1": 6}, [8], annotations={keys.OPT_OUT: "true"})
    assert drawn(state(BIG, kept)) == {"big": "ml/small-w0"}
