"""docs/remediation.md opens with the sentences that the properties are ordered by; its durations are the defaults."""

import re
from datetime import timedelta
from pathlib import Path

import pytest

from execute import broken
from execute import test_histories as histories
from gpuwatch.act.plan.brakes import BRAKES
from gpuwatch.act.plan.guards import Guard
from gpuwatch.act.plan.policy import SMALL_POOL_NODES
from gpuwatch.app.settings import Settings
from sentences.mechanisms import MECHANISMS
from sentences.reasons import AGAINST, COURSES
from sentences.sentences import SENTENCES

PAGE = (Path(__file__).parents[2] / "docs" / "remediation.md").read_text(encoding="utf-8")
UNITS = {"min": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}
DURATION, SETTING = re.compile(r"\b(\d+) (min|h|d)\b"), re.compile(r"`((?:run|execute)\.\w+)`")


def test_the_page_opens_with_them() -> None:
    told = re.findall(r"^(\d)\. \*\*(.+?)\.\*\*", PAGE.partition("\n## ")[0], re.MULTILINE)
    assert {int(number): title for number, title in told} == {key: each.title for key, each in SENTENCES.items()}


def time_line() -> list[tuple[timedelta, str]]:
    """(duration, setting): in a row of the table, and in the text below it, one stands for the other in their order."""
    (section,) = re.findall(r"^## Time line\n(.+?)^## ", PAGE, re.MULTILINE | re.DOTALL)
    rows, _, text = section.rpartition("|\n")
    found: list[tuple[timedelta, str]] = []
    for part in (*rows.splitlines(), *re.split(r"(?<=\))", text)):
        durations, settings = DURATION.findall(part), SETTING.findall(part)
        assert len(durations) == len(settings), part
        found += [(int(n) * UNITS[unit], name) for (n, unit), name in zip(durations, settings, strict=True)]
    return found


@pytest.mark.parametrize(("duration", "setting"), time_line())
def test_a_duration_of_the_time_line_is_the_default(duration: timedelta, setting: str) -> None:
    group, _, name = setting.partition(".")
    assert duration == timedelta(seconds=getattr(getattr(Settings(), group), name))


def test_the_time_line_has_the_waits_of_every_course() -> None:
    others = {"retry_seconds", "write_timeout_seconds"}
    others |= {f"{name}_backoff_seconds" for name in ("failure", "obsolete", "rejection")}  # before another proposal
    waits = {name for name in type(Settings().execute).__slots__ if name.endswith("_seconds")} - others
    assert {name.partition(".")[2] for _, name in time_line()} == waits | {"remediation_interval_seconds"}


def test_the_limits_of_the_fourth_sentence_are_the_defaults() -> None:
    policy = Settings().plan
    (sentence,) = re.findall(r"^4\. (.+?)^5\. ", PAGE, re.MULTILINE | re.DOTALL)
    numbers = [float(each) for each in re.findall(r"\d+", sentence)]
    assert numbers == [SMALL_POOL_NODES, 100 * policy.budget_ratio, policy.actions_per_hour]


def test_each_invariant_of_the_histories_is_of_one_sentence() -> None:
    told = re.findall(r"^(\w+) {2,}\S", (histories.__doc__ or "").partition("reported under:")[2], re.MULTILINE)
    ordered = [name for each in SENTENCES.values() for name in each.invariants]
    assert sorted(ordered) == sorted(told)


def test_each_sentence_fails_without_its_mechanisms() -> None:
    for number, sentence in SENTENCES.items():
        reasons = {name for name, reason in (*AGAINST.items(), *COURSES.items()) if reason.sentence == number}
        assert [name for name, each in MECHANISMS.items() if reasons.intersection(each.reasons)]
        assert [name for name, each in broken.BREAKS.items() if set(each.rules).intersection(sentence.invariants)]


def test_every_guard_and_brake_is_taken_out_by_name() -> None:
    named = {guard for each in MECHANISMS.values() for guard in each.guards}
    # In no town does a Pod wait for which others could be moved: tests/plan/test_making_room.py and courses.yaml hold
    # this guard.
    assert named | {Guard.ALLOWED} == set(Guard)
    assert set(BRAKES) <= named
