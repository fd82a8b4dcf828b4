"""The evaluation as a whole, on a small fleet: it plays, judges, scores and prints."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from click.testing import CliRunner

from gpuwatch.facts.model.decision import FindingKind
from lab.evaluation.baseline import COMMON_RULE, SIX_HOURS, fixed_rules
from lab.evaluation.detectors import Evaluation, evaluate, gangs_of, main, parse_seeds, watch
from lab.planted import first_named, holds
from lab.simulate.fleet import SimulatedFleet, build_fleet
from lab.simulate.moments import NEVER_USED_LIMIT, moments_of
from lab.simulate.plan import FleetPlan

pytestmark = pytest.mark.slow
END = datetime(2026, 3, 15, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def fleet() -> SimulatedFleet:
    return build_fleet(FleetPlan(seed=9, end=END, days=4))


@pytest.fixture(scope="module")
def result() -> Evaluation:
    return evaluate([11], gpus=16, days=2, every_hours=12, special=False)


def test_moments_are_regular_with_one_soon_after_each_planted_beginning(fleet: SimulatedFleet) -> None:
    moments = moments_of(fleet, 12)
    assert moments == sorted(set(moments))
    assert moments[-1] == fleet.plan.end
    assert moments[0] >= fleet.plan.start + timedelta(days=4 / 7)
    for truth in fleet.truth:
        if truth.kind is FindingKind.NEVER_USED and truth.start > moments[0] and truth.start < END - timedelta(hours=3):
            within = [each - truth.start for each in moments if truth.start < each <= truth.start + NEVER_USED_LIMIT]
            # Several between the age at which it may be named and the limit, so that the delay is known to minutes.
            last = [each for each in within if each > timedelta(minutes=85)]
            assert len(last) >= 6
            assert min(within) <= timedelta(hours=1)
            assert max(b - a for a, b in pairwise(last)) <= timedelta(minutes=6)


def test_every_pod_that_never_worked_is_named_within_two_hours() -> None:
    """All of them, looked at every few minutes from files as a user has them."""
    fleet = build_fleet(FleetPlan(seed=2, end=END, gpus=48, days=2, idle_allocations=24, faults=()))
    first = fleet.plan.start + timedelta(hours=7)
    never = [
        truth
        for truth in fleet.truth
        if truth.kind is FindingKind.NEVER_USED and first <= truth.start <= (truth.end or END) - NEVER_USED_LIMIT
    ]
    assert len(never) >= 4
    moments = [each for each in moments_of(fleet, 24) if any(holds(truth, each) for truth in never)]
    named = watch(fleet, moments)
    for truth in never:
        at = first_named(truth, named)
        assert at is not None, truth
        assert timedelta(minutes=90) <= at - truth.start <= NEVER_USED_LIMIT


def test_gangs_in_part_are_named_and_what_looks_like_one_is_not() -> None:
    (row,) = gangs_of(5)
    assert row.kind == FindingKind.PARTIAL_GANG
    assert row.planted == row.found == row.same_kind > 0
    assert row.false_names == ()
    assert max(row.delays_hours) <= 0.6  # half an hour after they began somebody looked


def test_the_common_rule_names_pods_that_work_and_is_right_about_those_that_never_did(fleet: SimulatedFleet) -> None:
    moments = moments_of(fleet, 6)
    named = list(fixed_rules(fleet, moments, [COMMON_RULE, SIX_HOURS]))
    never = {t.pods[0] for t in fleet.truth if t.kind is FindingKind.NEVER_USED and t.start < END - timedelta(hours=3)}
    bursty = {truth.pods[0] for truth in fleet.truth if truth.kind is FindingKind.BURSTY}
    common = {pod for one in named if one.kind == COMMON_RULE.name for pod in one.pods}
    longer = {pod for one in named if one.kind == SIX_HOURS.name for pod in one.pods}
    assert never
    assert never <= common
    assert len(common & bursty) > 5
    assert longer < common


def test_an_evaluation_counts_what_it_saw(result: Evaluation) -> None:
    assert result.moments >= 3
    assert {row.kind for row in result.baselines} == {COMMON_RULE.name, SIX_HOURS.name}
    assert [kept.rule for kept in result.kept] == ["gpuwatch", COMMON_RULE.name, SIX_HOURS.name]
    assert len({kept.pods for kept in result.kept}) == 1
    for row in (*result.faults, *result.idle, *result.baselines):
        assert 0 <= row.found <= row.planted
        assert len(row.delays_hours) == row.found
        assert len(row.false_names) == row.false_found
        assert 0 <= row.due_found <= row.due <= row.planted
    assert sum(row.planted for row in result.faults) > 0


@pytest.mark.parametrize(("text", "seeds"), [("7", [7]), ("1000-1002", [1000, 1001, 1002]), ("1,4-5", [1, 4, 5])])
def test_seeds_are_numbers_and_ranges(text: str, seeds: list[int]) -> None:
    assert parse_seeds(text) == seeds


def test_bad_seeds_are_refused_by_name() -> None:
    refused = CliRunner().invoke(main, ["--seeds", "ten"])
    assert refused.exit_code == 2
    assert "'ten' is no list of seeds" in refused.output


def test_the_table_names_every_rule() -> None:
    printed = CliRunner().invoke(
        main, ["--seeds", "12", "--gpus", "8", "--days", "0.5", "--jobs", "1", "--no-special"], env={"COLUMNS": "160"}
    )
    assert printed.exit_code == 0, printed.output
    for name in (COMMON_RULE.name, SIX_HOURS.name, "gpuwatch", "idle, any class"):
        assert name in printed.output
