"""What is learnt from outcomes, and the policy's bounds."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from execute.living import ENFORCE, START, Fleet, quick
from gpuwatch.act.execute.policy import ExecutePolicy, doubled
from gpuwatch.act.execute.precision import BUSY_AGAIN, Precision, distrusted, poor, precision, precision_by_place
from gpuwatch.act.execute.propose import FAILURE_BACKOFF_MAX_SECONDS, propose
from gpuwatch.facts.model.decision import ActionKind, PlanItem, Refusal
from gpuwatch.facts.model.remediation import Phase, Remediation
from plan.fleet import plan_of


def proposed(**changes: Any) -> Remediation:
    fleet = Fleet(idle={"chat"})
    fleet.owner("Job", "chat", 2)
    view = fleet.view()
    (item,) = plan_of(view.snapshot, view.findings, ENFORCE).items
    found = propose(item, view.snapshot, view.findings, START, quick())
    assert found is not None
    return replace(found, **changes)


@given(st.integers(0, 60), st.integers(0, 60))
def test_bounds_are_wilsons(successes: int, failures: int) -> None:
    """Held to another implementation of the same interval."""
    found = Precision(successes, failures)
    if not found.outcomes:
        assert (found.lower_ratio, found.upper_ratio) == (0.0, 1.0)
        return
    interval = binomtest(successes, found.outcomes).proportion_ci(0.95, method="wilson")
    assert found.lower_ratio == pytest.approx(interval.low, abs=1e-6)
    assert found.upper_ratio == pytest.approx(interval.high, abs=1e-6)


@given(st.integers(0, 60), st.integers(0, 60), st.sampled_from([0.5, 0.8, 0.95]))
def test_no_wrong_outcome_wins_trust_and_no_right_one_loses_it(successes: int, failures: int, bound: float) -> None:
    before, after = Precision(successes, failures), Precision(successes, failures + 1)
    assert after.lower_ratio <= before.lower_ratio
    assert after.upper_ratio <= before.upper_ratio
    right = Precision(successes + 1, failures)
    assert before.trusted(bound) >= after.trusted(bound)
    assert right.trusted(bound) >= before.trusted(bound)
    if failures:
        one_sided = binomtest(successes, before.outcomes).proportion_ci(0.8, method="wilson").low  # 10 % below it
        assert before.trusted(bound) is bool(one_sided >= bound)


@pytest.mark.parametrize(
    ("right", "wrong", "trusted"),
    [
        (0, 0, True),
        (0, 1, False),
        (2, 2, False),
        (13, 1, False),
        (14, 1, True),
        (15, 1, True),  # a right outcome takes no trust away
        (20, 2, False),
        (21, 2, True),
        (25, 3, False),
        (26, 3, True),
        (80, 20, False),
    ],
)
def test_how_many_right_outcomes_make_up_for_wrong_ones(right: int, wrong: int, trusted: bool) -> None:
    assert Precision(right, wrong).trusted(0.8) is trusted


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"phase": Phase.SUCCEEDED}, Precision(1, 0)),
        ({"phase": Phase.REJECTED}, Precision(0, 1)),
        ({"phase": Phase.UNDONE, "undo_asked": True}, Precision(0, 1)),
        ({"phase": Phase.REJECTED, "finding_correct": True}, Precision(1, 0)),
        ({"phase": Phase.UNDONE, "undo_asked": True, "finding_correct": True}, Precision(1, 0)),
        ({"phase": Phase.FAILED, "undo_asked": True, "finding_correct": True}, Precision(1, 0)),
        ({"phase": Phase.FAILED, "finding_correct": True}, None),  # nobody was asked
        ({"phase": Phase.UNDONE}, None),
        ({"phase": Phase.OBSOLETE}, None),
        ({"phase": Phase.OBSOLETE, "verified": {BUSY_AGAIN: True}}, Precision(0, 1)),
        ({"phase": Phase.FAILED}, None),
        ({"phase": Phase.EXPIRED}, None),
        ({"phase": Phase.IN_EFFECT}, None),
    ],
)
def test_which_ends_tell_about_a_detector(changes: dict[str, Any], expected: Precision | None) -> None:
    assert precision([proposed(**changes)]).get("abandoned") == expected


def test_a_move_that_worked_does_not_prove_the_fault() -> None:
    release = proposed(phase=Phase.SUCCEEDED)
    move = replace(release, proposal=replace(release.proposal, action=ActionKind.EVICT_GANG))
    assert precision([move]) == {}
    assert precision([replace(move, undo_asked=True)]) == {"abandoned": Precision(0, 1)}


def test_one_trusted_detector_is_enough() -> None:
    both = proposed()
    both = replace(both, proposal=replace(both.proposal, detectors=("abandoned", "never_used")))
    wrong = {("ml", "abandoned"): Precision(0, 4)}
    assert distrusted(both, wrong, 0.8) == ""
    assert "never_used was right in 1 of 9" in distrusted(both, {**wrong, ("ml", "never_used"): Precision(1, 8)}, 0.8)


def test_the_owners_of_one_namespace_teach_a_detector_for_that_namespace_alone() -> None:
    rejected = [proposed(name=f"r{index}", phase=Phase.REJECTED) for index in range(20)]
    here = proposed(name="here")
    elsewhere = replace(here, proposal=replace(here.proposal, namespace="web"))
    node = replace(here, proposal=replace(here.proposal, namespace=""))
    measured = precision_by_place(rejected)
    assert distrusted(here, measured, 0.8)
    assert not distrusted(elsewhere, measured, 0.8)
    assert not distrusted(node, measured, 0.8)
    assert precision(rejected) == {"abandoned": Precision(0, 20)}


def test_what_is_decided_on_nodes_counts_in_each_namespace() -> None:
    found = proposed()
    measured = {("", "abandoned"): Precision(0, 4), ("ml", "abandoned"): Precision(16, 0)}
    assert "or on Nodes" in distrusted(found, measured, 0.8)


@given(st.integers(0, 40), st.integers(0, 40))
def test_what_the_plan_is_told_is_below_its_bound(successes: int, failures: int) -> None:
    """The plan compares the lower bound alone; whoever is trusted is not named to it."""
    told = poor({("", "xid"): Precision(successes, failures)}, 0.8)
    assert all(value < 0.8 for value in told.values())
    assert (("", "xid") in told) is not Precision(successes, failures).trusted(0.8)


def test_what_the_plan_refused_is_not_proposed() -> None:
    fleet = Fleet(idle={"chat"})
    fleet.owner("Job", "chat", 2)
    view = fleet.view()
    (item,) = plan_of(view.snapshot, view.findings, ENFORCE).items
    refused: PlanItem = replace(item, refusals=(Refusal(guard="snoozed", reason="Later."),))
    assert propose(refused, view.snapshot, view.findings, START, quick()) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"notice_period_seconds": -1},
        {"action_timeout_seconds": 0},
        {"first_taint_effect": "NoSchedule", "last_taint_effect": "PreferNoSchedule"},
        {"source_read": "yes"},
        {"last_taint_effect": "NoWay"},
        {"hand_off_label": "repair"},
        {"hand_off_label": "=yes"},
    ],
)
def test_wrong_settings_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"execute.{next(iter(wrong))}"):
        ExecutePolicy(**wrong)


def test_waits_double_up_to_their_cap_without_jitter() -> None:
    policy = ExecutePolicy()
    assert [policy.retry_after(n) for n in (1, 2, 3, 6, 7, 99)] == [60, 120, 240, 1920, 3600, 3600]
    failed, obsolete = policy.failure_backoff_seconds, policy.obsolete_backoff_seconds
    days = [doubled(failed, n, FAILURE_BACKOFF_MAX_SECONDS) // 86_400 for n in (1, 2, 3, 5, 6)]
    assert days == [1, 2, 4, 16, 16]
    hours = [doubled(obsolete, n, policy.rejection_backoff_seconds) // 3_600 for n in (1, 2, 3, 5, 6, 99)]
    assert hours == [1, 2, 4, 16, 24, 24]
