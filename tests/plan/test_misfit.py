"""Misfits: gangs scattered over domains."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwatch.act.plan.policy import PlanPolicy
from gpuwatch.facts.model.cluster import Gang
from gpuwatch.facts.model.decision import ActionKind, Finding, Plan, Snapshot
from gpuwatch.judge.misfit.assess import MisfitPolicy, assess_misfit
from plan.fleet import device, guards, node, only, plan_of, pod, reason, sick, snapshot

EVICT = ActionKind.EVICT_GANG
CLIQUE = "nvidia.com/gpu.clique"
POLICY = PlanPolicy(budget_ratio=1.0)


def spread_gang(domains: dict[str, str], at: tuple[str, str] = ("n0", "n2")) -> Snapshot:
    """Two Pods of 8 GPUs; domains: Node → its NVLink domain, '' for none."""
    nodes = [node(name, labels={CLIQUE: value} if value else {}) for name, value in domains.items()]
    gang = Gang(id="g", framework="JobSet", workload="JobSet/ml/g", namespace="ml", pods=("ml/g0", "ml/g1"))
    pods = [pod(f"ml/g{i}", name, 8, "JobSet/ml/g", gang="g") for i, name in enumerate(at)]
    held = {name: f"ml/g{i}" for i, name in enumerate(at)}
    devices = [device(name, i, held.get(name, "")) for name in domains for i in range(8)]
    return snapshot(nodes, devices, pods, gangs=[gang])


def drawn(state: Snapshot, policy: PlanPolicy = POLICY, *more: Finding) -> Plan:
    """The plan with the misfits that are found in the state."""
    return plan_of(state, (*more, *assess_misfit(state, MisfitPolicy(), policy.topology_labels)), policy)


TWO_RACKS = {"n0": "a", "n1": "a", "n2": "b"}


def test_a_scattered_gang_is_shown_and_moved_only_when_its_loss_is_known() -> None:
    item = only(drawn(spread_gang(TWO_RACKS)), EVICT)
    found = f"It spans 2 domains of {CLIQUE}, and 1 could hold it. It would fit into {CLIQUE}=a."
    assert item.candidate.reason == found
    assert item.candidate.detectors == ("scattered",)
    assert item.candidate.findings == ("scattered:gang/g",)
    assert guards(item) == {"worth_it"}
    assert reason(item, "worth_it") == "It is not known what the move gains; missing: what spanning them costs it."
    # 16 GPUs × 24 h × 0.5 are gained, 10 h × 16 lost.
    known = only(drawn(spread_gang(TWO_RACKS), replace(POLICY, scattered_loss_ratio=0.5)), EVICT)
    assert (known.score.gained_gpu_hours, known.score.disrupted_gpu_hours) == (192.0, 160.0)
    assert known.admitted, known.refusals
    little = only(drawn(spread_gang(TWO_RACKS), replace(POLICY, scattered_loss_ratio=0.4)), EVICT)
    assert guards(little) == {"worth_it"}


@pytest.mark.parametrize(
    ("domains", "at"),
    [
        ({"n0": "a", "n1": "a", "n2": "a"}, ("n0", "n2")),  # one domain
        ({"n0": "a", "n2": "b"}, ("n0", "n2")),  # no domain takes both
        ({"n0": "a", "n1": "a", "n2": ""}, ("n0", "n2")),  # unknown is not another domain
        (TWO_RACKS, ("n0", "n1")),
    ],
)
def test_what_is_not_scattered_or_could_not_be_gathered(domains: dict[str, str], at: tuple[str, str]) -> None:
    assert drawn(spread_gang(domains, at)).items == ()


def test_a_domain_that_others_hold_is_no_place() -> None:
    state = spread_gang({**TWO_RACKS, "n3": "b"})
    assert drawn(state).items
    taken = tuple(pod(f"ml/x{name}", name, 1) for name in ("n1", "n3"))
    state = replace(state, cluster=replace(state.cluster, pods=(*state.cluster.pods, *taken)))
    assert drawn(state).items == ()


def test_a_gang_on_a_sick_gpu_is_moved_once_and_for_that() -> None:
    state = spread_gang({**TWO_RACKS, "n3": "b", "n4": "b"})
    plan = drawn(state, POLICY, sick(state.devices[0]))
    assert only(plan, EVICT).candidate.detectors == ("xid",)
