"""Up to which length a silence is explained, and by what."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.judge.idle.explanation import (
    ExplainedBy,
    Explanation,
    Kin,
    Prior,
    confidence_in_silence,
    explained_silence_seconds,
    judged_later,
    past_text,
    time_text,
    without,
)
from gpuwatch.judge.idle.silence import Silences, unlikely_silence_seconds

HOUR, DAY = 3600.0, 86400.0
SERVICE = Prior(seconds=24 * HOUR, mature_seconds=12 * HOUR, reason="a service may rest: 24 h")

NONE = Prior(seconds=0, mature_seconds=0, reason="")


def past(*, longest: float, worked: float, observed: float | None = None, count: int = 20) -> Silences:
    """Hours."""
    return Silences(
        longest_seconds=longest * HOUR,
        count=count,
        observed_seconds=(observed or worked) * HOUR,
        worked_seconds=worked * HOUR,
    )


def explained(
    own: Silences, kin: Kin | None = None, *, own_lacks: str = "", stretch: float = 1.0, prior: Prior = SERVICE
) -> Explanation:
    return explained_silence_seconds(
        own,
        kin,
        prior,
        chance_ratio=0.01,
        floor_seconds=2 * HOUR,
        step_seconds=300,
        own_lacks=own_lacks,
        own_stretch_ratio=stretch,
    )


def kin(*hours: float) -> Kin:
    return Kin(bounds=tuple(sorted(each * HOUR for each in hours)), likeness="serving in namespace chat")


class TestOwnPast:
    def test_an_old_workload_is_measured_by_its_own_silences(self) -> None:
        own = past(longest=185 / 60, worked=6 * 24, count=212)
        found = explained(own, kin(50, 50, 50, 50, 50))
        assert found.by is ExplainedBy.OWN
        assert found.seconds == unlikely_silence_seconds(own, 0.01, 300)
        assert found.text.startswith("longest of its 212 idle times in 6 days: 3 h 05 min; one of more than ")

    def test_a_past_of_short_silences_is_given_the_floor(self) -> None:
        found = explained(past(longest=0.1, worked=100))
        assert found.seconds == 2 * HOUR
        assert "the threshold is never below 2 h" in found.text


class TestYoung:
    def test_without_kin_the_prior_is_waited_out(self) -> None:
        found = explained(past(longest=0.5, worked=5))
        assert (found.by, found.seconds) == (ExplainedBy.PRIOR, 24 * HOUR)
        assert found.text == (
            "worked over only 5 h so far, and too few workloads like it are known (a service may rest: 24 h); "
            "threshold: 24 h"
        )

    def test_a_workload_that_was_never_seen_to_work_waits_for_the_prior(self) -> None:
        found = explained(Silences(observed_seconds=3 * DAY))
        assert (found.by, found.seconds) == (ExplainedBy.PRIOR, 24 * HOUR)
        assert found.text.startswith("it was never seen to work")

    def test_kin_speak_for_it_up_to_nine_in_ten_of_them(self) -> None:
        found = explained(past(longest=0.5, worked=5), kin(4, 5, 6, 6, 7, 7, 8, 9, 10, 40))
        assert (found.by, found.seconds) == (ExplainedBy.KIN, 10 * HOUR)
        assert "9 of 10 workloads like it (serving in namespace chat) need no more than 10 h" in found.text

    def test_of_five_kin_the_longest_decides(self) -> None:
        assert explained(past(longest=0.5, worked=5), kin(4, 5, 6, 7, 30)).seconds == 30 * HOUR

    @pytest.mark.parametrize(("bound", "waited"), [(47, 47), (49, 48)])
    def test_kin_stretch_the_prior_to_twice_its_length(self, bound: float, waited: float) -> None:
        found = explained(past(longest=0.5, worked=5), kin(bound, bound, bound, bound, bound))
        assert found.seconds == waited * HOUR
        assert found.by is ExplainedBy.KIN

    def test_its_own_longer_silences_are_never_cut_by_kin(self) -> None:
        own = past(longest=5, worked=11)
        assert explained(own, kin(1, 1, 1, 1, 1)).seconds == unlikely_silence_seconds(own, 0.01, 300) > 20 * HOUR

    @pytest.mark.parametrize(("worked", "waited"), [(12, 24), (14, 22), (30, 6), (34, 2), (40, 2)])
    def test_the_prior_fades_as_it_works_on(self, worked: float, waited: float) -> None:
        assert explained(past(longest=0.05, worked=worked)).seconds == waited * HOUR

    def test_a_past_that_lacks_something_never_replaces_the_prior(self) -> None:
        found = explained(past(longest=0.05, worked=300), own_lacks="other Pods work on the same device")
        assert (found.by, found.seconds) == (ExplainedBy.PRIOR, 24 * HOUR)
        assert found.text.startswith("other Pods work on the same device, and too few")

    def test_a_past_may_be_stretched(self) -> None:
        own = past(longest=20, worked=11 * 24)
        once, twice = (explained(own, kin(1, 1, 1, 1, 1), own_lacks="no weekend", stretch=each) for each in (1.0, 2.0))
        assert twice.seconds == 2 * once.seconds
        assert twice.text.endswith(f"; no weekend, so the threshold is {time_text(twice.seconds)}")

    @pytest.mark.parametrize(("bounds", "waited"), [((40,), 24 + 16 / 5), ((40, 10), 24 + 16 * 2 / 5), ((1,), 24)])
    def test_too_few_kin_stretch_the_prior_by_their_part_and_never_shorten_it(
        self, bounds: tuple[float, ...], waited: float
    ) -> None:
        found = explained(past(longest=0.5, worked=5), kin(*bounds))
        assert found.by is ExplainedBy.PRIOR
        assert found.seconds == pytest.approx(waited * HOUR)
        assert "too few workloads like it are known" in found.text


hours = st.floats(min_value=0.1, max_value=300)


@given(longest=hours, worked=hours, more=hours, silent=hours)
def test_work_within_the_silence_never_makes_it_unexplained(
    longest: float, worked: float, more: float, silent: float
) -> None:
    """A silence that is explained stays so where the workload worked `more` hours into it."""
    more = min(more, silent)
    observed = worked + silent
    before = past(longest=min(longest, worked), worked=worked, observed=observed)
    after = past(longest=max(min(longest, worked), more), worked=worked + more, observed=observed)
    if silent * HOUR <= explained(before).seconds:
        assert (silent - more) * HOUR <= explained(after).seconds + 1e-6


class TestUnfinished:
    @pytest.mark.parametrize(("worked", "after"), [(10, 5), (15.1, 15.1 / 3), (72, 24), (336, 112)])
    def test_a_third_of_the_work_without_a_pause_is_waited_for(self, worked: float, after: float) -> None:
        own = replace(past(longest=0.1, worked=worked), unpaused_seconds=worked * HOUR)
        found = judged_later(explained(own, prior=NONE), own, 5 * HOUR)
        assert (found.by, found.seconds, found.expected_seconds) == (ExplainedBy.UNPAUSED, after * HOUR, 2 * HOUR)
        assert ("a third of" in found.text) is (after > 5)

    def test_a_longer_explanation_stands(self) -> None:
        own = replace(past(longest=20, worked=300), unpaused_seconds=6 * HOUR)
        found = explained(own, prior=NONE)
        assert judged_later(found, own, 5 * HOUR) is found

    def test_what_peers_or_a_prior_say_is_not_trusted_more(self) -> None:
        own = replace(past(longest=0.1, worked=5), unpaused_seconds=5 * HOUR)
        found = judged_later(explained(own, kin(2, 2, 2, 3, 3)), own, 5 * HOUR)
        assert (found.by, found.seconds) == (ExplainedBy.KIN, 5 * HOUR)


class TestConfidence:
    own = past(longest=3, worked=6 * 24)

    def test_grows_with_the_silence_up_to_a_limit(self) -> None:
        by_own = Explanation(seconds=0, by=ExplainedBy.OWN, text="")
        grown = [confidence_in_silence(self.own, by_own, each * HOUR, 300) for each in (3, 4, 5, 100)]
        assert grown == sorted(grown)
        assert grown[0] == 0.0
        assert grown[-1] == 0.97

    @pytest.mark.parametrize(
        ("by", "limit"), [(ExplainedBy.UNPAUSED, 0.95), (ExplainedBy.KIN, 0.85), (ExplainedBy.PRIOR, 0.7)]
    )
    def test_what_is_further_away_is_trusted_less(self, by: ExplainedBy, limit: float) -> None:
        assert confidence_in_silence(Silences(), Explanation(seconds=0, by=by, text=""), 10 * DAY, 300) == limit


@pytest.mark.parametrize(("own", "left"), [(2.0, (1.0, 2.0, 3.0)), (None, (1.0, 2.0, 2.0, 3.0))])
def test_the_workload_itself_is_no_kin_of_its_own(own: float | None, left: tuple[float, ...]) -> None:
    assert without((1.0, 2.0, 2.0, 3.0), own) == left


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (20, "20 s"),
        (59 * 60, "59 min"),
        (HOUR, "1 h"),
        (33000, "9 h 10 min"),
        (11100, "3 h 05 min"),
        (DAY, "24 h"),
        (47 * HOUR + 59 * 60, "47 h 59 min"),
        (2 * DAY, "2 days"),
        (50 * HOUR, "2 days 2 h"),
        (6 * DAY + HOUR, "6 days"),
    ],
)
def test_lengths_are_spoken_as_people_do(seconds: float, text: str) -> None:
    assert time_text(seconds) == text


@pytest.mark.parametrize(
    ("own", "text"),
    [
        (past(longest=3.0, worked=40, count=1), "its only idle time in 40 h: 3 h"),
        (past(longest=0, worked=40, count=0), "no idle time in 40 h"),
        (Silences(), "it was never seen to work"),
    ],
)
def test_a_past_in_words(own: Silences, text: str) -> None:
    assert past_text(own) == text
