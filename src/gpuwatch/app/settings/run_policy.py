"""Policy of `gpuwatch run`; in this room because settings may not import the app."""

from dataclasses import dataclass
from pathlib import Path

from gpuwatch.app.settings.cron import cron_trigger
from gpuwatch.facts.model.bounds import named, require


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
