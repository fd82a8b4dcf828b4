"""Policy of `gpuwatch run`, and when its report is due; in this room because settings may not import the app."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from apscheduler.triggers.cron import CronTrigger

from gpuwatch.facts.model.bounds import named, require

# Times in the format of crontab(5), in UTC. APScheduler's own parser differs: day 0 of the week is Monday there, and
# two day fields both have to match.
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_ITEM = re.compile(r"(?:\*|(?P<first>[0-7])(?:-(?P<last>[0-7]))?)(?:/(?P<step>[1-9]\d*))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerPolicy:
    """When tasks run, where the process listens, and how replicas share the work.

    cycle_interval_seconds: time between two cycles (Snapshot, findings, plan). A minute: two samples of an exporter at
        its usual 30 s.
    remediation_interval_seconds: time between two passes over the open Remediations.
    profile_interval_seconds: time between two updates of the profiles and the recommendations.
    report_schedule: when the weekly report is due, in UTC, in the form of crontab(5); '' for never. Monday at six.
    report_deadline_seconds: how long after its due time a report is still written, and retried for destinations that
        failed. A day and a half: Monday's report comes until Tuesday evening.
    listen_address, listen_port: of the pages, /healthz, /readyz and /metrics; '' is every address, 0 any free port.
    pages: whether the status page and the reports are served too; all who reach the port can read them.
    lease_duration_seconds: a leader that has not renewed its Lease for this long is replaced; it writes nothing in the
        last third. 15 s, as in kube-controller-manager. It is renewed seven times in that time.
    namespace: of the Lease and of the pause; '' is $POD_NAMESPACE, else 'gpuwatch'.
    stuck_after_seconds: a task that runs longer than this, and than ten of its intervals, is stuck, and /healthz
        fails. Half an hour: the first profiles of a large fleet take minutes.
    shutdown_timeout_seconds: how long the current step may take after SIGTERM; below the 30 s after which Kubernetes
        kills.
    folder: of reports and, without `state` and a cluster, the state. It need not survive a restart.
    """

    cycle_interval_seconds: int = 60
    remediation_interval_seconds: int = 60
    profile_interval_seconds: int = 3_600
    report_schedule: str = "0 6 * * 1"
    report_deadline_seconds: int = 129_600
    listen_address: str = ""
    listen_port: int = 8080
    pages: bool = True
    lease_duration_seconds: int = 15
    namespace: str = ""
    stuck_after_seconds: int = 1_800
    shutdown_timeout_seconds: int = 25
    folder: Path = Path("gpuwatch-run")

    def __post_init__(self) -> None:
        require(self, "run.", named(self, "_seconds"), lambda value: value >= 1, "1 or more seconds")
        # With less, one slow answer of the API server ends a leadership.
        require(self, "run.", ("lease_duration_seconds",), lambda value: value >= 3, "3 or more seconds")
        require(self, "run.", ("listen_port",), lambda value: 0 <= value <= 65_535, "from 0 to 65535")
        if self.report_schedule:
            try:
                cron_trigger(self.report_schedule)
            except ValueError as error:
                raise ValueError(f"run.report_schedule: {error}, or '' for never") from None


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
