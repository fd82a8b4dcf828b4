"""Times in the format of crontab(5), in UTC. APScheduler's own parser differs: day 0 of the week is Monday there, and
two day fields both have to match."""

import re
from datetime import UTC, datetime, timedelta

from apscheduler.triggers.cron import CronTrigger

_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_ITEM = re.compile(r"(?:\*|(?P<first>[0-7])(?:-(?P<last>[0-7]))?)(?:/(?P<step>[1-9]\d*))?")


def cron_trigger(text: str) -> CronTrigger:
    """Minute, hour, day of the month, month and day of the week (0 and 7 are Sunday). ValueError for anything else.

    >>> def first(text): return f"{cron_trigger(text).get_next_fire_time(None, datetime(2026, 3, 4, tzinfo=UTC)):%a %d}"
    >>> first("0 6 * * 1"), first("0 6 * * mon"), first("0 6 * * 0"), first("0 6 * * 5-7"), first("0 6 * * */3")
    ('Mon 09', 'Mon 09', 'Sun 08', 'Fri 06', 'Wed 04')
    """
    fields = text.split()
    if len(fields) != 5:
        raise ValueError(f"{text!r} has {len(fields)} fields and not five; write it as `0 6 * * 1`")
    minute, hour, day, month, weekday = fields
    if day != "*" and weekday != "*":
        raise ValueError(f"{text!r} names days of the month and of the week; name one of them, and * for the other")
    try:
        return CronTrigger(
            minute=minute, hour=hour, day=day, month=month, day_of_week=_days_of_week(weekday), timezone=UTC
        )
    except ValueError as error:
        raise ValueError(f"{text!r} is no time as crontab(5) writes it: {error}") from error


def last_due(text: str, now: datetime, within: timedelta) -> datetime | None:
    """The last time of the cron up to `now`; None where that is `within` ago or longer, and where the cron is ''."""
    if not text:
        return None
    trigger = cron_trigger(text)
    found: datetime | None = None
    # The trigger gives whole seconds, from this moment on.
    following = trigger.get_next_fire_time(None, now - within + timedelta(microseconds=1))
    while following is not None and following <= now:
        found = following
        following = trigger.get_next_fire_time(found, found)
    return found


def _days_of_week(field: str) -> str:
    """Names in place of numbers and ranges, since APScheduler's weeks begin on Monday."""
    if field == "*":
        return field
    found: set[int] = set()
    for item in re.sub("|".join(_DAYS), lambda day: str(_DAYS.index(day[0])), field.lower()).split(","):
        parts = _ITEM.fullmatch(item)
        if parts is None:
            raise ValueError(f"{item!r} is no day of the week; they are 0 to 7, or {', '.join(_DAYS)}")
        first = int(parts["first"] or 0)
        last = int(parts["last"] or parts["first"] or 6)
        last = 7 if last == 0 < first else last  # fri-sun
        if last < first:
            raise ValueError(f"{item!r} is no range of days of the week")
        found.update(number % 7 for number in range(first, last + 1, int(parts["step"] or 1)))
    return ",".join(_DAYS[number] for number in sorted(found))
