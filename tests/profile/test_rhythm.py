"""A clock that runs with the workloads of a kind, and whether they work on weekends."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from gpuwatch.facts.model.telemetry import ActivityHistory
from gpuwatch.judge.idle.rhythm import Hourly, hourly, on_clock, paced, rhythm_of
from gpuwatch.judge.idle.silence import Calendar, calendar_of, read_steps

AN_HOUR = 12
MONDAY = datetime(2026, 6, 1, tzinfo=UTC)
SATURDAY = MONDAY + timedelta(days=5)


def hours_of(*texts: str, start: datetime = MONDAY) -> tuple[Calendar, list[Hourly]]:
    """One letter an hour."""
    rows = [
        ActivityHistory(
            device=f"gpu-{number}",
            pod="ns/pod",
            start=start,
            step_seconds=300,
            steps="".join(letter * AN_HOUR for letter in text),
        )
        for number, text in enumerate(texts)
    ]
    codes = [read_steps(row) for row in rows]
    calendar = calendar_of(rows, codes)
    return calendar, [hourly(calendar, code) for code in codes]


class TestShare:
    def test_of_the_known_ones_and_one_of_two_more(self) -> None:
        _, members = hours_of("##..", "#...", "#.?.")
        assert rhythm_of(members).share().tolist() == [4 / 5, 2 / 5, 1 / 4, 1 / 5]

    def test_a_workload_is_not_held_against_itself(self) -> None:
        _, members = hours_of("##..", "#...", "#.?.")
        assert rhythm_of(members).share(members[0]).tolist() == rhythm_of(members[1:]).share().tolist()

    def test_one_step_of_work_makes_an_hour_worked(self) -> None:
        row = ActivityHistory(device="gpu", pod="ns/pod", start=MONDAY, step_seconds=300, steps="." * 11 + "#")
        code = read_steps(row)
        assert hourly(calendar_of([row], [code]), code).worked.tolist() == [True]


class TestClock:
    def test_it_runs_as_fast_as_the_share_says(self) -> None:
        calendar, _ = hours_of("####")
        pace = paced(calendar, calendar.every_day, np.array([1.0, 0.5, 0.25, 1.0]))
        assert pace[::AN_HOUR].tolist() == [0, 3600, 5400, 6300, 9900]

    def test_paced_lengths_come_to_more_in_quiet_hours(self) -> None:
        calendar, _ = hours_of("####")
        pace = paced(calendar, calendar.every_day, np.array([1.0, 0.5, 0.25, 1.0]))
        assert on_clock(calendar.every_day, pace, AN_HOUR, [900, 1800, 2700]) == (1800, 3600, 7200)

    def test_what_is_still_to_come_runs_at_full_pace(self) -> None:
        calendar, _ = hours_of("##")
        pace = paced(calendar, calendar.every_day, np.array([1.0, 0.5]))
        assert on_clock(calendar.every_day, pace, AN_HOUR, [1800, 4000]) == (3600, 3600 + 2200)

    def test_at_the_very_end_all_is_still_to_come(self) -> None:
        calendar, _ = hours_of("##")
        pace = paced(calendar, calendar.every_day, np.array([1.0, 0.5]))
        assert on_clock(calendar.every_day, pace, calendar.steps, [60]) == (60,)


class TestWeekends:
    @pytest.mark.parametrize(("worked", "works"), [(12, True), (11, False)])
    def test_half_of_the_hours_of_other_days_is_work(self, worked: int, works: bool) -> None:
        """Friday all day, and so many hours of Saturday."""
        text = "#" * 24 + "#" * worked + "." * (24 - worked)
        _, (one,) = hours_of(text, start=SATURDAY - timedelta(days=1))
        assert one.works_weekends is works

    @pytest.mark.parametrize(("seen", "works"), [(12, True), (11, None)])
    def test_half_a_day_must_have_been_seen(self, seen: int, works: bool | None) -> None:
        _, (one,) = hours_of("#" * (24 + seen), start=SATURDAY - timedelta(days=1))
        assert one.works_weekends is works

    def test_without_another_day_there_is_nothing_to_hold_it_against(self) -> None:
        _, (one,) = hours_of("#" * 24, start=SATURDAY)
        assert one.works_weekends is None

    def test_a_silence_that_goes_on_is_no_work(self) -> None:
        _, (one,) = hours_of("#" * 24 + "." * 24, start=SATURDAY - timedelta(days=1))
        assert one.works_weekends is False

    def test_the_share_leaves_out_who_is_asked_for_and_who_saw_none(self) -> None:
        works, rests, unseen = "#" * 48, "#" * 24 + "." * 24, "#" * 24 + "?" * 24
        _, members = hours_of(works, works, rests, unseen, start=SATURDAY - timedelta(days=1))
        rhythm = rhythm_of(members)
        assert rhythm.weekend_ratio() == 3 / 5
        assert rhythm.weekend_ratio(members[2]) == 3 / 4
        assert rhythm.weekend_ratio(members[0]) == 2 / 4
        assert rhythm.weekend_ratio(members[3]) == 3 / 5
