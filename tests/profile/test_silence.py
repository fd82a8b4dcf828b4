"""Silences learnt from activity: what counts as one, for how long, and what follows from the longest."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.facts.model.telemetry import ActivityHistory
from gpuwatch.judge.idle.silence import (
    Calendar,
    Lane,
    Silences,
    calendar_of,
    chance_of_longer,
    joined,
    lane_of,
    read_steps,
    silence_now,
    silences_of,
    unlikely_silence_seconds,
)

STEP = 300
AN_HOUR, A_DAY = 12, 288
MONDAY = datetime(2026, 6, 1, tzinfo=UTC)


def history(text: str, device: str = "gpu", start: datetime = MONDAY, step: int = STEP) -> ActivityHistory:
    return ActivityHistory(device=device, pod="ns/pod", start=start, step_seconds=step, steps=text)


def lanes_of(*texts: str, start: datetime = MONDAY, lasts: bool = True) -> tuple[Calendar, list[Lane]]:
    """Lanes beside a row that is always known, so that telemetry as a whole has no holes."""
    rows = [history(text, f"gpu-{number}", start) for number, text in enumerate(texts)]
    watched = [*rows, history("." * max(len(text) for text in texts), "other", start)]
    calendar = calendar_of(watched, [read_steps(row) for row in watched])
    return calendar, [lane_of(calendar, row, read_steps(row), None, lasts) for row in rows]


def learnt(*texts: str, start: datetime = MONDAY, weekends_count: bool | None = None, lasts: bool = True) -> Silences:
    calendar, lanes = lanes_of(*texts, start=start, lasts=lasts)
    return silences_of(calendar, lanes, weekends_count=weekends_count)


class TestLongest:
    def test_a_silence_is_the_time_between_two_pieces_of_work(self) -> None:
        past = learnt("##...#.##")
        assert (past.count, past.longest_seconds) == (2, 3 * STEP)

    def test_the_silence_that_goes_on_is_none_of_the_past(self) -> None:
        assert learnt("##.#......").longest_seconds == STEP

    def test_the_time_before_the_first_work_ended_in_work_too(self) -> None:
        assert learnt("....#").longest_seconds == 4 * STEP

    def test_work_without_silence_has_none(self) -> None:
        past = learnt("#####")
        assert (past.count, past.longest_seconds, past.worked) == (0, 0, True)

    def test_a_workload_that_never_worked_has_no_past(self) -> None:
        past = learnt("....")
        assert (past.count, past.worked, past.worked_seconds) == (0, False, 0)

    @pytest.mark.parametrize("hole", ["#.?.#", "#???#", "#?..#"])
    def test_unknown_steps_neither_end_nor_shorten_a_silence(self, hole: str) -> None:
        past = learnt(hole)
        assert (past.count, past.longest_seconds) == (1, 3 * STEP)

    @pytest.mark.parametrize(
        ("text", "steps"),
        [("", 0), ("....", 0), ("..####....", 4), ("##.###.#", 3), ("##?##.#", 5), ("#???", 1), ("#?.?##", 3)],
    )
    def test_the_longest_work_without_a_pause_is_cut_by_known_silence_alone(self, text: str, steps: int) -> None:
        assert learnt(f"{text}..").unpaused_seconds == steps * STEP

    def test_work_without_a_pause_is_that_of_one_lane_and_counts_weekends(self) -> None:
        assert learnt("####......", "......####").unpaused_seconds == 4 * STEP
        assert learnt("#" * 7 * A_DAY, weekends_count=False).unpaused_seconds == 7 * A_DAY * STEP

    def test_observed_time_ends_with_the_lane_and_worked_time_with_the_work(self) -> None:
        past = learnt("..##.#....")
        assert (past.observed_seconds, past.worked_seconds) == (10 * STEP, 4 * STEP)

    def test_active_ratio_is_of_the_known_steps(self) -> None:
        assert learnt("#.?#").active_ratio == pytest.approx(2 / 3)


class TestSeveralUnits:
    def test_two_replicas_have_the_silences_of_each(self) -> None:
        # One is busy while the other rests for five steps: a replica of this workload rests that long.
        past = learnt("#.....##", "##.#.###")
        assert (past.count, past.longest_seconds) == (3, 5 * STEP)

    def test_a_silence_that_outlasts_a_pod_is_the_workloads(self) -> None:
        # The first Pod is replaced in the night; neither of them alone was idle for the seven steps.
        past = learnt("##....????", "??????...#", lasts=False)
        assert past.longest_seconds == 7 * STEP

    def test_time_without_any_pod_is_no_silence(self) -> None:
        # Scaled to zero for four steps: nobody held anything.
        past = learnt("##..??????", "????????.#", lasts=False)
        assert past.longest_seconds == 3 * STEP

    def test_units_add_up_their_observed_time(self) -> None:
        assert learnt("#..#", "#..#").observed_seconds == 8 * STEP

    def test_a_lane_of_which_nothing_was_seen_adds_no_observed_time(self) -> None:
        calendar, lanes = lanes_of("#..#", "#..#")
        lanes[1][:] = 2
        assert silences_of(calendar, lanes).observed_seconds == 4 * STEP


class TestJoined:
    @pytest.mark.parametrize(
        ("one", "other", "both"),
        [(".", ".", "."), (".", "#", "#"), ("?", "#", "#"), (".", "?", "?"), ("#", "#", "#"), ("?", "?", "?")],
    )
    def test_work_of_one_is_work_and_the_unknown_of_one_is_unknown(self, one: str, other: str, both: str) -> None:
        code = {letter: read_steps(history(letter)) for letter in ".#?"}
        assert joined([code[one], code[other]]).tolist() == code[both].tolist()


def office(days: int, *, opens: int = 9, closes: int = 18, weekend: bool = False, offset_hours: int = 0) -> str:
    """A service that works from nine to six in its own time zone, from a Monday 00:00 UTC on."""
    text = ""
    for hour in range(days * 24):
        local = hour + offset_hours
        works = opens <= local % 24 < closes and (weekend or local // 24 % 7 < 5)
        text += ("#" if works else ".") * AN_HOUR
    return text


class TestWeekends:
    def test_a_weekend_is_no_longer_than_a_night_for_who_rests_on_it(self) -> None:
        past = learnt(office(14))
        assert past.works_weekends is False
        assert past.longest_seconds == 15 * 3600

    @pytest.mark.parametrize("offset_hours", [-8, -5, 1, 5, 8, 12])
    def test_nor_in_any_time_zone(self, offset_hours: int) -> None:
        past = learnt(office(14, offset_hours=offset_hours))
        # Where the local weekend does not cover the whole of the UTC one, the difference remains: three hours at most.
        assert 15 * 3600 <= past.longest_seconds <= 18 * 3600

    def test_who_works_on_weekends_has_its_weekends_counted(self) -> None:
        past = learnt(office(14, weekend=True) + "." * 2 * A_DAY)
        assert past.works_weekends is True
        assert past.longest_seconds == 15 * 3600

    @pytest.mark.parametrize(("hours", "works"), [(4, False), (6, True)])
    def test_half_the_usual_hours_are_work_on_weekends(self, hours: int, works: bool) -> None:
        week = "".join(("#" * AN_HOUR * (10 if day < 5 else hours)).ljust(A_DAY, ".") for day in range(7))
        assert learnt(week * 2 + "#").works_weekends is works

    @pytest.mark.parametrize(("hours", "known"), [(9, False), (10, True)])
    def test_a_weekend_is_seen_when_work_follows_it(self, hours: int, known: bool) -> None:
        past = learnt(office(8)[: 7 * A_DAY + hours * AN_HOUR])
        assert (past.works_weekends is not None) is known

    @pytest.mark.parametrize(("hours", "known"), [(4, True), (5, False)])
    def test_a_weekend_with_large_holes_is_not_seen(self, hours: int, known: bool) -> None:
        text = office(8)
        hole = slice(5 * A_DAY, 5 * A_DAY + hours * AN_HOUR)
        past = learnt(text[: hole.start] + "?" * (hole.stop - hole.start) + text[hole.stop :])
        assert (past.works_weekends is not None) is known

    def test_a_weekend_alone_says_nothing_about_weekends(self) -> None:
        saturday = MONDAY + timedelta(days=5)
        assert learnt("#" * (2 * A_DAY + AN_HOUR), start=saturday).works_weekends is None

    def test_an_unseen_weekend_does_not_count_in_the_silence_now(self) -> None:
        # From Monday to Friday 18:00, then silent until Sunday 18:00: of 48 hours the six of Friday count.
        text = office(7)[: 6 * A_DAY + 18 * AN_HOUR]
        calendar, (lane,) = lanes_of(text)
        assert silence_now(calendar, lane, weekends_count=False).silent_seconds == 6 * 3600
        assert silence_now(calendar, lane, weekends_count=True).silent_seconds == 48 * 3600


class TestSilenceNow:
    def test_only_known_steps_count_and_the_unknown_lower_the_coverage(self) -> None:
        calendar, (lane,) = lanes_of("##...?.")
        now = silence_now(calendar, lane, weekends_count=True)
        assert (now.silent_seconds, now.elapsed_seconds, now.coverage_ratio) == (4 * STEP, 5 * STEP, 0.8)
        assert (now.max_staleness_seconds, now.active_before) == (0, True)

    @pytest.mark.parametrize(
        ("text", "counted"),
        [
            ("#????....", 4),  # a hole at the beginning: what comes after it is known
            ("#....????....", 4),  # and what lies before it does not count either
            ("#........??..", 10),  # four fifths of the whole are known
            ("#.....??..", 2),  # seven ninths are not, and of no part that is longer than the end
            ("#....????", 0),
        ],
    )
    def test_of_a_silence_with_holes_the_end_counts_that_is_known_well_enough(self, text: str, counted: int) -> None:
        calendar, (lane,) = lanes_of(text)
        now = silence_now(calendar, lane, weekends_count=True)
        assert now.silent_seconds == counted * STEP
        assert now.proven_step + now.proven_seconds / STEP == len(text)

    def test_an_end_of_which_nothing_is_known_is_blind(self) -> None:
        calendar, (lane,) = lanes_of("##.??")
        assert silence_now(calendar, lane, weekends_count=True).max_staleness_seconds == 2 * STEP

    def test_of_a_lane_without_work_all_is_silence(self) -> None:
        calendar, (lane,) = lanes_of("??..")
        now = silence_now(calendar, lane, weekends_count=True)
        assert (now.first_step, now.silent_seconds, now.active_before) == (2, 2 * STEP, False)

    def test_work_in_the_last_step_leaves_none(self) -> None:
        calendar, (lane,) = lanes_of("..#")
        assert silence_now(calendar, lane, weekends_count=True).elapsed_seconds == 0


class TestCalendar:
    def test_time_in_which_all_telemetry_was_missing_counts_for_nobody(self) -> None:
        rows = [history("#..????..#", "a"), history("#.#????.##", "b")]
        calendar = calendar_of(rows, [read_steps(row) for row in rows])
        lanes = [lane_of(calendar, row, read_steps(row), None, True) for row in rows]
        assert silences_of(calendar, lanes[:1]).longest_seconds == 4 * STEP

    def test_histories_may_begin_at_different_times(self) -> None:
        late = MONDAY + timedelta(seconds=3 * STEP)
        rows = [history("#" * 8, "a"), history("#..#", "b", start=late)]
        calendar = calendar_of(rows, [read_steps(row) for row in rows])
        lane = lane_of(calendar, rows[1], read_steps(rows[1]), None, True)
        assert lane.tolist() == [0, 0, 0, 4, 1, 1, 4, 2]
        assert calendar.time_of(3) == late

    def test_a_life_longer_than_its_history_is_unknown_there(self) -> None:
        calendar, _ = lanes_of("." * 6)
        row = history("?.#???")
        assert lane_of(calendar, row, read_steps(row), 0, True).tolist() == [2, 1, 4, 2, 2, 2]
        assert lane_of(calendar, row, read_steps(row), None, False).tolist() == [0, 1, 4, 0, 0, 0]

    @pytest.mark.parametrize(("seconds", "index"), [(0, 0), (1, 1), (300, 1), (301, 2), (-900, 0), (10**6, 6)])
    def test_a_moment_belongs_to_the_step_that_begins_after_it(self, seconds: int, index: int) -> None:
        calendar, _ = lanes_of("." * 6)
        assert calendar.index_after(MONDAY + timedelta(seconds=seconds)) == index

    def test_histories_of_different_steps_are_refused_by_name(self) -> None:
        rows = [history("##", "a"), history("##", "b", step=60)]
        with pytest.raises(ValueError, match=r"activity of b has steps of 60 s and others have 300 s"):
            calendar_of(rows, [read_steps(row) for row in rows])

    def test_no_history_is_refused(self) -> None:
        with pytest.raises(ValueError, match="no activity history"):
            calendar_of([], [])

    @pytest.mark.parametrize("text", ["#x.", "#…", "# ."])
    def test_other_characters_are_refused_by_name(self, text: str) -> None:
        with pytest.raises(ValueError, match="activity of gpu under ns/pod has characters"):
            read_steps(history(text))


class TestUnlikelySilence:
    def test_the_bound_of_a_stationary_past(self) -> None:
        # Longest 3 h in 6 days: it fits 48 times; 1 in 100 follows beyond 3 h · (1 + ln 100 / ln 49).
        past = Silences(longest_seconds=3 * 3600, count=212, observed_seconds=6 * 86400, worked_seconds=6 * 86400)
        assert unlikely_silence_seconds(past, 0.01, STEP) / 3600 == pytest.approx(
            3 * (1 + math.log(100) / math.log(49))
        )

    def test_in_a_shorter_time_ahead_less_is_unlikely(self) -> None:
        past = Silences(longest_seconds=3600.0, observed_seconds=14 * 86400.0, worked_seconds=14 * 86400.0)
        day, always = unlikely_silence_seconds(past, 0.05, STEP, 86400), unlikely_silence_seconds(past, 0.05, STEP)
        assert day == pytest.approx(3600 * math.log(25 / 0.05) / math.log(337))
        assert day < always == unlikely_silence_seconds(past, 0.05, STEP, 30 * 86400)

    def test_it_is_never_less_than_what_was_seen(self) -> None:
        past = Silences(longest_seconds=3600.0, observed_seconds=1000 * 86400.0, worked_seconds=1000 * 86400.0)
        assert unlikely_silence_seconds(past, 0.5, STEP, 3600) == 3600

    def test_chance_is_the_inverse_of_the_bound(self) -> None:
        past = Silences(longest_seconds=3600, count=9, observed_seconds=86400, worked_seconds=86400)
        assert chance_of_longer(past, unlikely_silence_seconds(past, 0.02, STEP), STEP) == pytest.approx(0.02)
        assert chance_of_longer(past, 1800, STEP) == 1.0

    def test_a_past_without_silences_is_given_one_step(self) -> None:
        past = Silences(observed_seconds=86400, worked_seconds=86400)
        assert unlikely_silence_seconds(past, 0.01, STEP) == pytest.approx(STEP * (1 + math.log(100) / math.log(289)))

    def test_a_short_past_needs_a_wider_bound(self) -> None:
        short = Silences(longest_seconds=3600, count=2, observed_seconds=4 * 3600, worked_seconds=4 * 3600)
        long = Silences(longest_seconds=3600, count=90, observed_seconds=14 * 86400, worked_seconds=14 * 86400)
        assert unlikely_silence_seconds(short, 0.01, STEP) > 1.5 * unlikely_silence_seconds(long, 0.01, STEP)

    def test_exponential_silences_exceed_it_as_rarely_as_promised(self) -> None:
        # 2,000 workloads, each two weeks of silences with an exponential tail, held against the next two weeks.
        rng = np.random.default_rng(7)
        exceeded = 0
        for _ in range(2000):
            lengths = 300 + rng.exponential(3 * 3600, 400)
            begun = np.cumsum(lengths)
            past, future = lengths[begun < 14 * 86400], lengths[(begun >= 14 * 86400) & (begun < 28 * 86400)]
            known = Silences(
                longest_seconds=float(past.max()),
                count=len(past),
                observed_seconds=14 * 86400,
                worked_seconds=14 * 86400,
            )
            exceeded += bool(future.max() > unlikely_silence_seconds(known, 0.01, STEP))
        assert exceeded / 2000 <= 0.05


codes = st.text(alphabet=".#?", min_size=1, max_size=200)


@given(text=codes, place=st.integers(min_value=0, max_value=199))
def test_activity_in_the_silence_now_never_lowers_the_bound(text: str, place: int) -> None:
    text = f"#{text}"
    last = text.rindex("#")
    index = last + 1 + place
    if index >= len(text):
        return
    worked = f"{text[:index]}#{text[index + 1 :]}"
    before, after = learnt(text, weekends_count=True), learnt(worked, weekends_count=True)
    assert unlikely_silence_seconds(after, 0.01, STEP) >= unlikely_silence_seconds(before, 0.01, STEP) - 1e-6


@given(text=codes, places=st.sets(st.integers(min_value=0, max_value=200)))
def test_a_silent_step_turned_unknown_never_changes_the_past(text: str, places: Sequence[int]) -> None:
    text = f"#{text}"
    holes = "".join("?" if index in places and letter == "." else letter for index, letter in enumerate(text))
    before, after = learnt(text, weekends_count=True), learnt(holes, weekends_count=True)
    assert (after.longest_seconds, after.count) == (before.longest_seconds, before.count)


@given(text=codes)
def test_silences_by_counting_one_by_one(text: str) -> None:
    """The same by walking through the characters."""
    lengths, run, started = [], 0, False
    for letter in text:
        started = started or letter != "?"
        if letter == "#":
            lengths += [run] if run else []
            run = 0
        elif started:
            run += 1
    past = learnt(text, weekends_count=True)
    assert past.count == len(lengths)
    assert past.longest_seconds == STEP * max(lengths, default=0)
