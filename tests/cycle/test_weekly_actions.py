"""What was done, in the weekly report: which Remediations are in it, what became of them, what they gave to others."""

from dataclasses import replace
from datetime import timedelta

import pytest

from execute.living import ENFORCE, START, Fleet, drive, new_store, quick
from gpuwatch.account.weekly import NOTHING, OBSERVED, actions_in
from gpuwatch.act.execute.advance import ExecutorPolicies
from gpuwatch.act.execute.executor import Executor
from gpuwatch.act.remediations import RemediationStore
from gpuwatch.facts.model.remediation import Phase, Remediation, Turn
from gpuwatch.facts.model.weekly import WeeklyReport
from gpuwatch.say.weekly_pages import weekly_html, weekly_markdown, weekly_summary
from gpuwatch.say.weekly_words import BECAME, actions_line
from report.weekly_example import empty_report, full_report

WEEK = timedelta(days=7)
HOUR = timedelta(hours=1)


@pytest.fixture
def store() -> RemediationStore:
    return new_store()


@pytest.fixture
def released(store: RemediationStore) -> tuple[Fleet, Executor, Remediation]:
    """A release of two GPUs, an hour after it was proposed."""
    fleet = Fleet(idle={"chat"})
    fleet.owner("Job", "chat", 2)
    executor = fleet.executor(store, ExecutorPolicies(ENFORCE, quick(release_observation_seconds=36_000)))
    fleet.propose(executor)
    drive(fleet, executor, 1.0)
    (found,) = store.all()
    assert found.phase is Phase.IN_EFFECT
    return fleet, executor, found


def held_at(found: Remediation) -> Turn:
    return next(turn for turn in found.history if turn.phase is Phase.IN_EFFECT)


def test_every_phase_has_its_words_and_its_place() -> None:
    assert set(BECAME) == set(Phase)
    assert actions_line(full_report()).startswith(
        "13 actions: 3 done, 2 undone, 1 failed, 4 not done, 3 open. Releases freed "
    )


def test_hours_count_from_when_gpus_were_seen_free_and_within_the_week(
    released: tuple[Fleet, Executor, Remediation],
) -> None:
    _, _, found = released
    free = held_at(found).at
    (whole,) = actions_in((found,), START - WEEK, free + 5 * HOUR)
    assert whole.released_gpu_hours == pytest.approx(2 * 5)
    (later,) = actions_in((found,), free + 2 * HOUR, free + 5 * HOUR)
    assert later.released_gpu_hours == pytest.approx(2 * 3)
    (before,) = actions_in((found,), START - WEEK, free - timedelta(minutes=1))
    assert before.released_gpu_hours == 0


def test_hours_end_when_it_is_taken_back(
    released: tuple[Fleet, Executor, Remediation], store: RemediationStore
) -> None:
    fleet, executor, found = released
    fleet.now += 3 * HOUR
    store.ask_undo(found.id)
    drive(fleet, executor, 1.0)
    (undone,) = store.all()
    assert undone.phase is Phase.UNDONE
    (told,) = actions_in((undone,), START - WEEK, START + WEEK)
    back = next(turn.at for turn in undone.history if turn.phase is Phase.UNDOING)
    assert told.released_gpu_hours == pytest.approx(2 * ((back - held_at(undone).at) / HOUR))
    assert told.released_gpu_hours > 6


def test_hours_end_with_the_hold(released: tuple[Fleet, Executor, Remediation], store: RemediationStore) -> None:
    fleet, executor, found = released
    drive(fleet, executor, 12.0)
    (done,) = store.all()
    assert done.phase is Phase.SUCCEEDED
    (told,) = actions_in((done,), START - WEEK, START + WEEK)
    assert told.released_gpu_hours == pytest.approx(2 * 10, abs=0.3)
    assert told.said == "Its owner did not undo the release within the observation time."
    assert held_at(found).at == held_at(done).at


def test_those_of_other_weeks_are_left_out_and_what_still_stands_is_not(
    released: tuple[Fleet, Executor, Remediation],
) -> None:
    _, _, open_ = released
    ended = replace(open_, phase=Phase.SUCCEEDED)
    last = open_.history[-1].at
    assert actions_in((open_,), START + WEEK, START + 2 * WEEK)
    assert actions_in((ended,), last - timedelta(seconds=1), START + WEEK)
    assert actions_in((ended,), last, START + WEEK) == ()
    assert actions_in((open_,), START - WEEK, open_.proposal.created_at - timedelta(seconds=1)) == ()


def test_where_nothing_was_proposed_it_says_why_in_a_line() -> None:
    assert actions_line(empty_report()) == (
        "It is not known what was done: no Remediations were read. Give the cluster that stores them."
    )

    def none(note: str) -> WeeklyReport:
        return replace(empty_report(), actions=(), actions_note=note)

    for note in (OBSERVED, NOTHING):
        assert note in weekly_markdown(none(note))
        assert note in weekly_html(none(note))
        assert note not in weekly_summary(none(note))


def test_all_forms_have_what_became_of_them() -> None:
    report = full_report()
    assert report.actions
    html, text = weekly_html(report), weekly_markdown(report)
    for item in report.actions:
        assert BECAME[item.phase] in html
        assert BECAME[item.phase] in text
    assert "13 actions: 3 done" in weekly_summary(report)
    assert "| abandoned | 16 | 1 | 73 % to 99 % |" in text
    assert len(weekly_summary(report).splitlines()) <= 25
