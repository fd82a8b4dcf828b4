"""The plan walks the fleet a fixed number of times, not once for each candidate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

import pytest

from gpuwatch.act.plan.policy import PlanPolicy
from gpuwatch.facts.model.cluster import DisruptionBudget
from plan.fleet import device, idle, node, plan_of, pod, sick, snapshot

T = TypeVar("T")
POLICY = PlanPolicy(storm_ratio=1.0, idle_storm_ratio=1.0)


class Counted(tuple[T, ...]):
    """Counts its walks."""

    walks = 0

    def __iter__(self) -> Iterator[T]:
        self.walks += 1
        return super().__iter__()


def walks(candidates: int, kind: str) -> list[int]:
    """Over devices, Nodes, Pods and PodDisruptionBudgets."""
    devices = [device(f"n{number}", 0, f"ml/p{number}") for number in range(40)]
    pods = [pod(f"ml/p{number}", f"n{number}") for number in range(40)]
    state = snapshot([node(f"n{number}") for number in range(40)], devices, pods)
    budgets = Counted([DisruptionBudget(namespace="other", name=f"b{number}") for number in range(9)])
    given = [Counted(each) for each in (devices, state.cluster.nodes, pods)]
    cluster = replace(state.cluster, nodes=given[1], pods=given[2], budgets=budgets)
    found = [idle(each.pods[0], [each]) if kind == "releases" else sick(each) for each in devices[: candidates * 2 : 2]]
    plan = plan_of(replace(state, devices=given[0], cluster=cluster), tuple(found), POLICY)
    assert len(plan.items) == candidates * (1 if kind == "releases" else 2)
    assert plan.brake == ""
    return [each.walks for each in (*given, budgets)]


@pytest.mark.parametrize("kind", ["releases", "moves"])
def test_more_candidates_are_no_more_walks_over_the_fleet(kind: str) -> None:
    few, many = walks(2, kind), walks(12, kind)
    assert all(few)
    assert many == few
