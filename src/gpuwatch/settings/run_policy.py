"""How `gpuwatch run` goes about its work. It stands here because the room of the process is above the settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpuwatch.settings.cron import cron_trigger


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPolicy:
    """When jobs run, where the process listens, and how it shares the work with its replicas.

    analysis_seconds: distance of two looks at health and idleness together, from one Snapshot: a plan weighs both, and
        they share the inventory and the cluster. A minute: two samples of an exporter at its usual 30 s.
    remediation_seconds: distance of two looks at what is announced, under way, or to be verified.
    profiles_seconds: distance of two updates of the profiles and the advice.
    forget_seconds: distance of two clean-ups of final Remediations.
    report_cron: when the weekly report is due, in UTC, as crontab(5) writes it; '' for never. Monday at six.
    report_late_seconds: for so long after it was due a report is still made, and sent to those that did not take it:
        nobody led, or a receiver was down. A day and a half: Monday's report comes until Tuesday evening.
    listen_address, listen_port: of the pages, /healthz, /readyz and /metrics; '' listens on all addresses, port 0 on
        any free one.
    pages: whether the status page and the reports are shown there too; whoever reaches the port can read them.
    lease_seconds: a leader that was not heard of for so long is replaced; it writes nothing itself in the last third.
        15 s, as kube-controller-manager has it. retry_seconds: distance of two renewals, 2 s as there.
    namespace: of the Lease and of the pause; '' is $POD_NAMESPACE, else 'gpuwatch'.
    stuck_seconds: a job that runs longer than this, or longer than ten of its intervals, is stuck: /healthz says so.
        Half an hour: the first profiles of a large fleet take minutes.
    stop_seconds: at SIGTERM the step in hand has so long to end; below the 30 s after which Kubernetes kills.
    watch_seconds: distance of two looks at the settings file.
    folder: of what the process keeps on disk: reports, notifications on their way out, and where `state` is not set
        the profiles. It need not survive a restart.
    """

    analysis_seconds: int = 60
    remediation_seconds: int = 60
    profiles_seconds: int = 3_600
    forget_seconds: int = 86_400
    report_cron: str = "0 6 * * 1"
    report_late_seconds: int = 129_600
    listen_address: str = ""
    listen_port: int = 8080
    pages: bool = True
    lease_seconds: int = 15
    retry_seconds: int = 2
    namespace: str = ""
    stuck_seconds: int = 1_800
    stop_seconds: int = 25
    watch_seconds: int = 5
    folder: Path = Path("gpuwatch-run")

    def __post_init__(self) -> None:
        for name in (
            "analysis_seconds",
            "remediation_seconds",
            "profiles_seconds",
            "forget_seconds",
            "report_late_seconds",
            "retry_seconds",
            "stuck_seconds",
            "stop_seconds",
            "watch_seconds",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"run.{name} is {getattr(self, name)!r}; it has to be 1 or more seconds")
        if self.lease_seconds < 3 * self.retry_seconds:
            raise ValueError(
                f"run.lease_seconds is {self.lease_seconds!r}; it has to be three times run.retry_seconds "
                f"({self.retry_seconds}) or more, so that one lost request costs nothing"
            )
        if not 0 <= self.listen_port <= 65_535:
            raise ValueError(f"run.listen_port is {self.listen_port!r}; it has to be from 0 to 65535")
        if self.report_cron:
            try:
                cron_trigger(self.report_cron)
            except ValueError as error:
                raise ValueError(f"run.report_cron: {error}, or '' for never") from None
