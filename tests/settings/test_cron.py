"""Times as crontab(5) writes them."""

from datetime import UTC, datetime, timedelta

import pytest

from gpuwatch.app.settings.run_policy import cron_trigger, last_due

MONDAY = datetime(2026, 3, 9, 6, tzinfo=UTC)
LATE = timedelta(hours=36)


def days(text: str) -> list[str]:
    """Days of the week on which it is due, beginning after a Sunday's midnight."""
    trigger = cron_trigger(text)
    at = datetime(2026, 3, 8, tzinfo=UTC)
    found = []
    for _ in range(7):
        fired = trigger.get_next_fire_time(None, at)
        if fired - at < timedelta(days=1):
            found.append(f"{fired:%a}")
        at += timedelta(days=1)
    return found


@pytest.mark.parametrize(
    ("field", "wanted"),
    [
        ("1", "Mon"),
        ("0", "Sun"),
        ("7", "Sun"),
        ("mon", "Mon"),
        ("SAT,sun", "Sun Sat"),
        ("1-5", "Mon Tue Wed Thu Fri"),
        ("fri-sun", "Sun Fri Sat"),
        ("5-7", "Sun Fri Sat"),
        ("*/3", "Sun Wed Sat"),
        ("1-6/2", "Mon Wed Fri"),
        ("*", "Sun Mon Tue Wed Thu Fri Sat"),
    ],
)
def test_days_of_the_week_are_those_of_crontab(field: str, wanted: str) -> None:
    assert " ".join(days(f"0 6 * * {field}")) == wanted


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0 6 * *", "4 fields and not five"),
        ("0 6 * * 8", "'8' is no day of the week"),
        ("0 6 * * someday", "'someday' is no day of the week"),
        ("0 6 * * 5-2", "'5-2' is no range of days"),
        ("0 6 1 * 1", "days of the month and of the week"),
        ("0 25 * * 1", "is no time as crontab"),
        ("x 6 * * 1", "is no time as crontab"),
    ],
)
def test_what_is_no_time_is_told(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        cron_trigger(text)


def test_the_last_moment_is_found_within_its_time_and_not_after() -> None:
    moment = timedelta(microseconds=1)
    assert last_due("0 6 * * 1", MONDAY - moment, LATE) is None
    assert last_due("0 6 * * 1", MONDAY, LATE) == MONDAY
    assert last_due("0 6 * * 1", MONDAY + LATE - moment, LATE) == MONDAY
    assert last_due("0 6 * * 1", MONDAY + LATE, LATE) is None
    assert last_due("0 6 * * *", MONDAY + timedelta(days=1), LATE) == MONDAY + timedelta(days=1)
