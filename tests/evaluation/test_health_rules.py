"""The fleets of special health faults: what is planted shows, is found or spared, and is scored as it should be."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gpuwatch.facts.model.decision import FindingKind
from lab.evaluation.health_fleets import (
    CLIQUE,
    FLEETS,
    Case,
    HealthFleet,
    Right,
    board,
    contained,
    health_fleet,
    links_not_trained,
    not_repaired,
    switches,
)
from lab.evaluation.health_rules import Seen, moments_of, scenes_together, score, watch

pytestmark = pytest.mark.slow

START = datetime(2026, 3, 14, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
FAULT = Case(
    scene="a hot card",
    kind=FindingKind.THERMAL_THROTTLE,
    nodes=frozenset({"a"}),
    devices=frozenset({"gpu-1"}),
    start=START,
    end=START + 6 * HOUR,
    right=Right.TAINTED,
)
FOUND = Seen(
    at=START + HOUR,
    kind=FindingKind.THERMAL_THROTTLE,
    subject="device/gpu-1",
    summary="slowed by heat",
    nodes=frozenset({"a"}),
    devices=frozenset({"gpu-1"}),
    pods=frozenset(),
    together=False,
    level=Right.NAMED,
)
MOMENTS = [START + number * HOUR for number in range(12)]


class TestScore:
    def of(self, case: Case, *seen: Seen) -> tuple[int, int, int]:
        """Faults found, subjects named wrongly, and faults for which too much was done."""
        rows, scenes = score([case], seen, MOMENTS)
        return sum(row.found for row in rows), sum(row.false_found for row in rows), scenes[0].too_far

    def test_a_fault_is_found_by_its_kind_on_its_gpu_while_it_lasts(self) -> None:
        assert self.of(FAULT, FOUND) == (1, 0, 0)
        assert self.of(FAULT) == (0, 0, 0)
        assert self.of(FAULT, replace(FOUND, at=START - HOUR)) == (0, 1, 0)
        assert self.of(FAULT, replace(FOUND, at=START + 9 * HOUR)) == (0, 1, 0)
        assert self.of(FAULT, replace(FOUND, devices=frozenset({"gpu-2"}), subject="device/gpu-2")) == (0, 1, 0)

    def test_another_sign_on_the_same_gpu_is_neither_found_nor_wrong(self) -> None:
        assert self.of(FAULT, replace(FOUND, kind=FindingKind.POWER_BRAKE)) == (0, 0, 0)
        assert self.of(FAULT, replace(FOUND, kind=FindingKind.INFINIBAND)) == (0, 1, 0)

    def test_a_rule_may_look_back_for_a_while_after_the_end(self) -> None:
        assert self.of(FAULT, FOUND, replace(FOUND, at=START + 7 * HOUR)) == (1, 0, 0)

    def test_more_than_is_right_is_counted(self) -> None:
        assert self.of(FAULT, replace(FOUND, level=Right.TAINTED)) == (1, 0, 0)
        assert self.of(FAULT, replace(FOUND, level=Right.MOVED)) == (1, 0, 1)
        only_shown = replace(FAULT, right=Right.NAMED)
        assert self.of(only_shown, replace(FOUND, level=Right.TAINTED)) == (1, 0, 1)

    def test_what_another_fault_there_allows_is_not_too_much(self) -> None:
        condition = replace(
            FAULT, kind=FindingKind.NODE_CONDITION, devices=frozenset(), right=Right.NAMED, scene="said"
        )
        told = replace(FOUND, kind=FindingKind.NODE_CONDITION, devices=frozenset(), level=Right.MOVED)
        gone = replace(FAULT, scene="XID 140", right=Right.MOVED)
        for beside, too_far in (((), 1), ((gone,), 0), ((replace(gone, nodes=frozenset({"b"})),), 1)):
            _, scenes = score([condition, *beside], [told], MOMENTS)
            assert [row.too_far for row in scenes if row.scene == "said"] == [too_far]

    def test_where_a_question_is_right_a_question_is_enough(self) -> None:
        question = replace(FOUND, level=Right.QUESTION)
        assert self.of(replace(FAULT, right=Right.QUESTION), question) == (1, 0, 0)
        assert self.of(FAULT, question) == (0, 0, 0)

    def test_a_look_alike_that_is_named_is_wrong(self) -> None:
        rows, scenes = score([replace(FAULT, right=Right.NOTHING)], [FOUND], MOMENTS)
        assert [(row.planted, row.found, row.false_names) for row in rows] == [(0, 0, ("device/gpu-1",))]
        assert [(row.planted, row.found) for row in scenes] == [(1, 1)]

    def test_a_common_cause_has_to_be_named_as_one(self) -> None:
        rack = replace(FAULT, together=True, devices=frozenset({"gpu-1", "gpu-2"}))
        assert self.of(rack, FOUND) == (0, 1, 0)
        assert self.of(rack, replace(FOUND, together=True, subject="fleet/fleet")) == (1, 0, 0)

    def test_what_it_has_to_say_counts(self) -> None:
        assert self.of(replace(FAULT, says="wait for each other"), FOUND) == (0, 0, 0)

    def test_fleets_are_added_scene_by_scene(self) -> None:
        _, once = score([FAULT], [FOUND], MOMENTS)
        _, never = score([FAULT], [], MOMENTS)
        (row,) = scenes_together([once, never])
        assert (row.planted, row.found, row.delay_hours) == (2, 1, 1.0)


@pytest.fixture(scope="module")
def whole() -> tuple[HealthFleet, ...]:
    return tuple(health_fleet(3, scenes) for scenes in FLEETS)


def test_every_scene_is_there_once_and_has_a_look_alike_of_its_kind(whole: tuple[HealthFleet, ...]) -> None:
    kinds = {case.kind for fleet in whole for case in fleet.cases if case.right}
    spared = {case.kind for fleet in whole for case in fleet.cases if not case.right}
    assert kinds == {
        FindingKind.FABRIC, FindingKind.NVLINK_ERRORS, FindingKind.BOARD, FindingKind.THERMAL_THROTTLE,
        FindingKind.POWER_BRAKE, FindingKind.XID, FindingKind.ECC, FindingKind.POD_FAILURES,
        FindingKind.NODE_CONDITION, FindingKind.INFINIBAND, FindingKind.PARTIAL_GANG,
        FindingKind.PCIE_WIDTH, FindingKind.PCIE_REPLAY, FindingKind.DCGM_HEALTH, FindingKind.RECOVERY_ACTION,
    }  # fmt: skip
    # Beside a hot rack a hot card, beside a contained error others; healthy gangs in part are in the gangs' own fleet.
    assert spared == kinds - {
        FindingKind.THERMAL_THROTTLE, FindingKind.POWER_BRAKE, FindingKind.ECC, FindingKind.PARTIAL_GANG,
        FindingKind.PCIE_REPLAY, FindingKind.RECOVERY_ACTION,
    }  # fmt: skip
    for fleet in whole:
        assert sum(len(machine.cards) for machine in fleet.machines) <= 256
        names = {machine.name for machine in fleet.machines}
        for case in fleet.cases:
            assert case.nodes <= names
            assert fleet.plan.start <= case.start < case.end <= fleet.plan.end


def test_nodes_say_where_they_stand_and_when_they_booted(whole: tuple[HealthFleet, ...]) -> None:
    fleet = whole[0]
    rebooted, at = next((name, times[0]) for name, times in fleet.site.boots.items())

    def boot(seconds: float) -> str:
        objects = fleet.cluster_objects(fleet.plan.moment(seconds))
        (node,) = [item for item in objects if item["kind"] == "Node" and item["metadata"]["name"] == rebooted]
        assert node["metadata"]["labels"][CLIQUE]
        return str(node["status"]["nodeInfo"]["bootID"])

    assert boot(at - 3600) != boot(at + 3600)


def test_faults_are_found_and_what_is_contained_ends_no_job() -> None:
    """On a small fleet, from the files to the plan."""
    fleet = health_fleet(3, (links_not_trained, board, contained, not_repaired, switches))
    moments = [at for number, at in enumerate(moments_of(fleet)) if number % 2]
    rows, scenes = score(fleet.cases, watch(fleet, moments), moments)
    assert {row.kind: (row.planted, row.false_names) for row in rows} == {
        "board": (2, ()),
        "ecc": (1, ()),
        "fabric": (2, ()),
        "xid": (2, ()),
    }
    assert [(row.scene, row.found) for row in scenes if row.found < row.planted and row.right] == []
    assert [row.scene for row in scenes if row.too_far] == []
