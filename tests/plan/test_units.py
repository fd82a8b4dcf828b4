"""Budgets, floors, storms and scores count physical GPUs of GPU Nodes, however these are cut or shared."""

from dataclasses import replace

import pytest

from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.plan.policy import PlanPolicy
from gpuwatch.facts.model.cluster import Node, Pod, Sharing
from gpuwatch.facts.model.decision import ActionKind, Snapshot
from gpuwatch.facts.model.telemetry import Device
from plan.fleet import GPU, device, guards, idle, node, only, plan_of, pod, sick, snapshot

SLICE = "nvidia.com/mig-1g.10gb"
HALF = "nvidia.com/mig-3g.40gb"


def cut(name: str, gpus: int = 8, **changes: object) -> Node:
    """Each GPU in seven slices."""
    resources = {SLICE: 7 * gpus}
    base = node(name, accelerators=resources, allocatable=resources, mig_layout={"1g.10gb": 7 * gpus}, gpu_count=gpus)
    return replace(base, **changes)  # type: ignore[arg-type]


def instances(name: str, gpu: int, *holders: str) -> list[Device]:
    whole = device(name, gpu)
    return [
        replace(
            whole,
            id=f"{whole.uuid}/{at}",
            mig_instance=str(at),
            mig_profile="1g.10gb",
            pods=(holders[at],) if at < len(holders) and holders[at] else (),
        )
        for at in range(7)
    ]


def sliced(ref: str, on: str, count: int = 1) -> Pod:
    return pod(ref, on, accelerators={SLICE: count})


def facts(state: Snapshot) -> PlanFacts:
    return PlanFacts(snapshot=state)


def test_slices_do_not_raise_a_limit() -> None:
    """Ten Nodes of 56 slices and ten whole ones of 8 GPUs have 160 GPUs, of which a tenth may move: 16."""
    nodes = [cut(f"m{at}") for at in range(10)] + [node(f"w{at}") for at in range(10)]
    devices = [device(f"w{at}", index) for at in range(10) for index in range(8)]
    devices += [part for at in range(10) for index in range(8) for part in instances(f"m{at}", index)]
    findings = tuple(sick(device(f"w{at}", 0)) for at in range(10))
    plan = plan_of(snapshot(nodes, devices), findings, PlanPolicy())
    pool = next(item for item in plan.budgets if item.scope == "pool/train")
    assert (pool.total_nodes, pool.limit_nodes, pool.limit_gpus) == (20, 2, 16)
    assert sum(item.admitted for item in plan.items) == 2


def test_nodes_without_gpus_do_not_keep_a_pool_in_service() -> None:
    held = device("n0", 0)
    state = snapshot([node("n0"), *(node(f"cpu{at}", gpus=0) for at in range(3))], [held])
    item = only(plan_of(state, (sick(held),), PlanPolicy(budget_ratio=1.0)), ActionKind.TAINT_NODE)
    assert "pool_nodes" in guards(item)


@pytest.mark.parametrize(
    ("changes", "gpus"),
    [
        ({}, 8),
        ({"gpu_count": 0}, 1),  # by telemetry, which shows one
        ({"gpu_count": 0, "mig_layout": {}, "accelerators": {GPU: 4}}, 4),
        ({"gpu_count": 2, "mig_layout": {}, "accelerators": {GPU: 8}, "sharing": Sharing.TIME_SLICING}, 2),
        ({"gpu_count": 0, "mig_layout": {}, "accelerators": {GPU: 8}, "sharing": Sharing.MPS}, 1),
    ],
)
def test_the_gpus_of_a_node(changes: dict[str, object], gpus: int) -> None:
    found = facts(snapshot([cut("n0", **changes)], instances("n0", 0)))
    assert found.node_gpus(found.nodes["n0"]) == gpus


def test_a_slice_is_worth_its_part_and_disturbs_its_whole_gpu() -> None:
    seven = [sliced(f"ml/p{at}", "n0") for at in range(7)]
    found = facts(snapshot([cut("n0")], instances("n0", 0, *(each.ref for each in seven)), seven))
    assert found.gpu_shares(seven) == pytest.approx(1.0)
    assert found.gpu_shares(seven[:1]) == pytest.approx(1 / 7)
    assert (found.gpus(seven), found.gpus(seven[:1])) == (1, 1)


def test_slices_that_telemetry_does_not_attribute_are_taken_to_be_on_gpus_of_their_own() -> None:
    seven = [sliced(f"ml/p{at}", "n0") for at in range(7)]
    found = facts(snapshot([cut("n0")], instances("n0", 0), seven))
    assert found.gpus(seven) == 7
    assert found.gpus([sliced("ml/all", "n0", 56)]) == 8


def test_profiles_of_one_node_count_by_their_size() -> None:
    """One GPU of a 3g and three 1g, as an H100 has them: four of eight memory slices, and one each."""
    resources = {HALF: 1, SLICE: 3}
    mixed = cut(
        "n0", 1, accelerators=resources, mig_layout={"3g.40gb": 1, "1g.10gb": 3}, gpu_product="NVIDIA-H100-80GB-HBM3"
    )
    found = facts(snapshot([mixed], instances("n0", 0)))
    half = pod("ml/half", "n0", accelerators={HALF: 1})
    assert found.gpu_shares([half]) == pytest.approx(4 / 7)
    assert found.gpu_shares([half, sliced("ml/rest", "n0", 3)]) == pytest.approx(1.0)


def test_the_score_of_a_release_counts_the_slice_that_it_frees() -> None:
    owner = sliced("ml/p0", "n0")
    parts = instances("n0", 0, owner.ref)
    state = snapshot([cut("n0")], parts, [owner])
    item = only(plan_of(state, (idle(owner.ref, parts[:1]),), PlanPolicy()), ActionKind.RELEASE_GANG)
    assert item.score.gained_gpu_hours == pytest.approx(24 / 7)
    assert item.candidate.gpus == 1
