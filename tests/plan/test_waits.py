"""fixtures/scheduler-words.yaml: which Pods wait for GPUs, by the word of their scheduler, and what follows."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.plan.policy import PlanPolicy
from gpuwatch.facts.model.cluster import Gang, Pod
from gpuwatch.facts.model.decision import ActionKind, FindingKind, Refusal, Score
from gpuwatch.sources.kube.pods import take_pod
from plan.fleet import GPU, device, guards, idle, node, only, plan_of, pod, sick, snapshot

WORDS = yaml.safe_load((Path(__file__).parents[1] / "fixtures" / "scheduler-words.yaml").read_text(encoding="utf-8"))
ROWS = {name: row for rows in WORDS.values() for name, row in rows.items()}
POLICY = PlanPolicy(budget_ratio=1.0, idle_storm_ratio=1.0, reclaim_only_on_demand=True)


def unplaced(name: str, row: dict[str, Any]) -> Pod:
    """As the reader makes it of what the API server has."""
    limits = {GPU: str(row.get("gpus", 8)), **row.get("limits", {})}
    container = {"name": "main", "image": "work", "resources": {"limits": limits}, "ports": row.get("ports", [])}
    gates = "schedulingGates" in row.get("pod", {})
    condition = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated" if gates else "Unschedulable"}
    conditions = [{**condition, "message": row["said"]}] if row["said"] or gates else []
    raw = {
        "metadata": {"name": name, "namespace": "evil", "labels": {"app": "beside"}},
        "spec": {"containers": [container], **row.get("pod", {})},
        "status": {"phase": "Pending", "conditions": conditions},
    }
    found = take_pod(msgspec.Raw(json.dumps(raw).encode()))
    assert found is not None
    assert found.held is not None
    return replace(found.held.pod, workload=f"Job/evil/{name}")


@pytest.mark.parametrize("name", ROWS)
def test_a_pod_waits_if_its_scheduler_says_that_it_lacks_its_accelerators(name: str) -> None:
    waiting = PlanFacts(snapshot=snapshot([node("n0")], [], [unplaced("w", ROWS[name])])).waiting
    assert bool(waiting) is ROWS[name]["waits"]


@pytest.mark.parametrize("name", ROWS)
def test_it_takes_the_room_of_a_move_only_if_its_scheduler_would_place_it_there(name: str) -> None:
    """n1 has just become free: a Pod that waits takes it at once. One that cannot start leaves it to the move."""
    devices = [*(device("n0", i, "ml/t") for i in range(8)), *(device("n1", i) for i in range(8))]
    pods = [pod("ml/t", "n0", 8, "Job/ml/t"), unplaced("w", ROWS[name])]
    item = only(
        plan_of(snapshot([node("n0"), node("n1")], devices, pods), (sick(devices[0]),), POLICY), ActionKind.EVICT_GANG
    )
    assert ("lands" in guards(item)) is ("room" in ROWS[name].get("takes", {}))


@pytest.mark.parametrize("kind", [FindingKind.ABANDONED, FindingKind.PARTIAL_GANG])
@pytest.mark.parametrize("name", ROWS)
def test_it_is_demand_for_another_teams_gpus_only_if_it_could_start_on_them(name: str, kind: FindingKind) -> None:
    devices = [device("n0", i, "ml/t") for i in range(8)]
    pods = [pod("ml/t", "n0", 8, "JobSet/ml/t", gang="G"), unplaced("w", ROWS[name])]
    gang = Gang(id="G", framework="JobSet", workload="JobSet/ml/t", namespace="ml", pods=("ml/t",))
    found = idle("ml/t", devices, kind=kind)
    policy = replace(POLICY, reclaim_only_on_demand=kind is FindingKind.ABANDONED)
    item = only(plan_of(snapshot([node("n0")], devices, pods, gangs=[gang]), (found,), policy), ActionKind.RELEASE_GANG)
    wanted = "demand" in ROWS[name].get("takes", {})
    assert (guards(item), item.candidate.waiter) == ((set(), "evil/w") if wanted else ({"demand"}, ""))


@pytest.mark.parametrize("first", ["no Node has GPUs", "KAI lacks GPUs for the rest of a gang"])
@pytest.mark.parametrize(
    "second", ["Volcano waits for the rest of the gang", "another scheduler is to place it, and there is none"]
)
def test_a_gang_waits_as_a_whole_if_one_of_its_pods_lacks_gpus(first: str, second: str) -> None:
    """Gang schedulers give the reason at one Pod, and at the others that the gang waits, or nothing."""
    pods = [replace(unplaced(f"w{i}", ROWS[name]), gang="G") for i, name in enumerate((first, second))]
    facts = PlanFacts(snapshot=snapshot([node("n0")], [], pods))
    assert [[each.ref for each in group] for group in facts.waiting] == [["evil/w0", "evil/w1"]]
    alone = PlanFacts(snapshot=snapshot([node("n0")], [], [pods[1]]))
    assert alone.waiting == []


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("free", [False, True])
def test_nothing_that_is_not_placed_keeps_a_degraded_node_in_service(name: str, free: bool) -> None:
    """Seven healthy GPUs of n0 are free, and it is the only Node or has a twin. A Pod that the scheduler can place
    there runs there within seconds, so what waits has no place to lose."""
    nodes = [node("n0"), *([node("n1")] if free else []), *(node(f"busy{i}") for i in range(3))]
    pods = [pod(f"ml/b{i}", f"busy{i}", 8, "JobSet/ml/b", gang="B") for i in range(3)]
    holder = {each.node: each.ref for each in pods}
    devices = [device(each.name, i, holder.get(each.name, "")) for each in nodes for i in range(8)]
    gang = Gang(id="B", framework="JobSet", workload="JobSet/ml/b", namespace="ml", pods=())

    def taint(*more: Pod) -> tuple[tuple[Refusal, ...], Score]:
        state = snapshot(nodes, devices, [*pods, *more], gangs=[gang])
        item = only(plan_of(state, (sick(devices[0]),), POLICY), ActionKind.TAINT_NODE)
        return item.refusals, item.score

    refusals, score = taint()
    assert refusals == ()
    assert taint(replace(unplaced("w", ROWS[name]), accelerators={GPU: 7})) == (refusals, score)


def test_gpus_that_a_pod_asks_for_and_does_not_hold_weigh_nothing() -> None:
    """A gang asks for any number beside the GPUs that it holds: neither its own move nor the taint of a Node on which
    gangs of the pool may land is worth more by that."""
    nodes = [node(f"n{i}") for i in range(4)]
    devices = [device(f"n{n}", i, "evil/g" if n == 1 else "") for n in range(4) for i in range(8)]
    gang = Gang(id="G", framework="JobSet", workload="JobSet/evil/g", namespace="evil", pods=())
    held = pod("evil/g", "n1", 8, "JobSet/evil/g", gang="G")
    asks = pod("evil/more", "", 10**9, "JobSet/evil/g", gang="G", phase="Pending")

    def scores(*pods: Pod) -> list[Score]:
        found = plan_of(snapshot(nodes, devices, pods, gangs=[gang]), (sick(devices[0]), sick(devices[8])), POLICY)
        assert {item.candidate.action for item in found.items} == {ActionKind.TAINT_NODE, ActionKind.EVICT_GANG}
        return [item.score for item in found.items]

    assert scores(held, asks) == scores(held)
