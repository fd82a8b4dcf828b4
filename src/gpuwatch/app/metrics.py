"""What `gpuwatch run` says about itself and the fleet at /metrics."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from gpuwatch import __version__
from gpuwatch.execute.precision import precision
from gpuwatch.kube.followed import Followed
from gpuwatch.model.decision import Analysis, Verdict
from gpuwatch.model.remediation import Pause, Remediation

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series of each counter, that nobody asks for
_DURATIONS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0)


class Metrics:
    """All metrics of one process, in a registry of their own, so that tests may have several.

    Metrics of the fleet are those of the last analysis; a replica that does not lead has none, so that a sum over
    replicas counts nothing twice.
    """

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        Gauge("gpuwatch_build_info", "1, with the version.", ["version"], registry=registry).labels(__version__).set(1)
        self.leads = Gauge("gpuwatch_leader", "1 where this replica leads.", registry=registry)
        self.job_success = Gauge(
            "gpuwatch_job_last_success_timestamp_seconds", "When the job last succeeded.", ["job"], registry=registry
        )
        self.job_seconds = Histogram(
            "gpuwatch_job_duration_seconds", "How long it ran.", ["job"], registry=registry, buckets=_DURATIONS
        )
        self.job_errors = Counter("gpuwatch_job_errors", "Runs that failed.", ["job"], registry=registry)
        self.job_missed = Counter(
            "gpuwatch_job_missed", "Runs left out: too late, or the one before still ran.", ["job"], registry=registry
        )
        self.settings_taken = Gauge(
            "gpuwatch_settings_last_reload_successful", "0 where the newest settings are not those in force.",
            registry=registry,
        )  # fmt: skip
        self.settings_at = Gauge(
            "gpuwatch_settings_last_reload_success_timestamp_seconds", "When settings were last taken.",
            registry=registry,
        )  # fmt: skip
        self.proposed = Counter("gpuwatch_proposals", "Remediations proposed.", ["action"], registry=registry)
        self.report_due = Gauge(
            "gpuwatch_report_due_timestamp_seconds", "When the report was due that this process looked after last.",
            registry=registry,
        )  # fmt: skip
        self.report_done = Gauge(
            "gpuwatch_report_done_timestamp_seconds",
            "When the last report was due with which nothing more is to be done: it was sent, or given up.",
            registry=registry,
        )
        self._deliveries = Counter(
            "gpuwatch_deliveries", "Runs of attempts to send something to one destination.", ["what", "result"],
            registry=registry,
        )  # fmt: skip
        self._pending = Gauge(
            "gpuwatch_deliveries_pending", "Deliveries that failed or were not tried, and will be tried again.",
            ["what"], registry=registry,
        )  # fmt: skip
        self._untold = Gauge(
            "gpuwatch_notifications_undelivered",
            "Notifications of which nobody could be told, although somebody is to be.",
            registry=registry,
        )
        for what in ("report", "notification"):
            self._pending.labels(what)
            for result in ("sent", "failed"):
                self._deliveries.labels(what, result)
        self._requests = Counter(
            "gpuwatch_cluster_writes", "Requests to the cluster that write; rehearsal: judged only.",
            ["verb", "rehearsal"], registry=registry,
        )  # fmt: skip
        self._failures = Counter(
            "gpuwatch_cluster_request_failures",
            "Requests to the cluster that failed, by what is known afterwards; an eviction's 'budget' is a back-off.",
            ["verb", "failure", "rehearsal"],
            registry=registry,
        )
        for failure in ("budget", "throttled"):
            self._failures.labels("evict", failure, "true")
        self.turns = Counter(
            "gpuwatch_remediation_turns", "Changes of a Remediation's phase.", ["action", "phase"], registry=registry
        )
        self._outcomes = Gauge(
            "gpuwatch_detector_outcomes", "Verified outcomes of what a detector called for, among those kept.",
            ["detector", "right"], registry=registry,
        )  # fmt: skip
        self._precision = Gauge(
            "gpuwatch_detector_precision_ratio", "Measured precision of a detector: the ends of its 95 % interval.",
            ["detector", "bound"], registry=registry,
        )  # fmt: skip
        self._analysed = Gauge(
            "gpuwatch_analysis_timestamp_seconds", "The moment that the fleet's metrics are of.", registry=registry
        )
        self._devices = Gauge("gpuwatch_devices", "Devices: known, reporting, held.", ["state"], registry=registry)
        self._unknown = Gauge(
            "gpuwatch_unknown", "What could not be judged: health of devices, use of Pods.", ["what"], registry=registry
        )
        self._findings = Gauge(
            "gpuwatch_findings", "Findings of the last analysis.", ["family", "kind", "verdict", "severity"],
            registry=registry,
        )  # fmt: skip
        self._wasted = Gauge(
            "gpuwatch_idle_gpu_seconds", "GPU-seconds wasted so far by what is idle now.", registry=registry
        )
        self._gaps = Gauge("gpuwatch_gaps", "What could not be read.", ["kind"], registry=registry)
        self._age = Gauge(
            "gpuwatch_inventory_age_seconds", "How old the last look's view of a followed resource was at most.",
            ["resource"], registry=registry,
        )  # fmt: skip
        self._lists = Counter(
            "gpuwatch_inventory_lists", "Lists made of a followed resource.", ["resource"], registry=registry
        )
        self._drift = Counter(
            "gpuwatch_inventory_drift", "Objects that a list showed other than they were followed.", ["resource"],
            registry=registry,
        )  # fmt: skip
        self._followed: dict[str, Followed] = {}
        self._plan = Gauge(
            "gpuwatch_plan_items", "Candidates of the last plan.", ["action", "mode", "admitted"], registry=registry
        )
        self._refusals = Gauge("gpuwatch_refusals", "Refusals of the last plan.", ["guard"], registry=registry)
        self._brake = Gauge("gpuwatch_brake", "1 while the storm brake refuses everything.", registry=registry)
        self._limit = Gauge("gpuwatch_budget_limit_gpus", "GPUs that a budget allows.", ["scope"], registry=registry)
        self._used = Gauge(
            "gpuwatch_budget_in_flight_gpus", "GPUs that weigh on a budget.", ["scope"], registry=registry
        )
        self._remediations = Gauge(
            "gpuwatch_remediations", "Remediations that are kept.", ["action", "phase"], registry=registry
        )
        self._paused = Gauge("gpuwatch_paused", "1 while a person has paused everything.", registry=registry)
        self.leads.set(0)

    def job(self, name: str) -> None:
        """Have the job's series from the start: a counter that begins at 1 has no increase to alert on."""
        self.job_errors.labels(name)
        self.job_missed.labels(name)

    def delivered(self, what: str, sent: bool) -> None:
        """One destination was tried; what: 'report' or 'notification'."""
        self._deliveries.labels(what, "sent" if sent else "failed").inc()

    def pending(self, what: str, count: int) -> None:
        self._pending.labels(what).set(count)

    def untold(self, notifications: int) -> None:
        self._untold.set(notifications)

    def requested(self, rehearsal: bool) -> Callable[[str, str], None]:
        """What counts the requests of one writer."""
        whether = "true" if rehearsal else "false"

        def count(verb: str, failure: str) -> None:
            if failure:
                self._failures.labels(verb, failure, whether).inc()
            else:
                self._requests.labels(verb, whether).inc()

        return count

    def analysed(self, analysis: Analysis) -> None:
        """Replace what is said about the fleet."""
        coverage, plan = analysis.coverage, analysis.plan
        self._analysed.set(analysis.at.timestamp())
        self._devices.labels("known").set(coverage.devices)
        self._devices.labels("reporting").set(coverage.devices_present)
        self._devices.labels("held").set(coverage.devices_allocated)
        self._unknown.labels("health").set(coverage.health_unknown)
        self._unknown.labels("use").set(coverage.idle_unknown)
        notable = [item for item in analysis.findings if item.notable]
        _counted(
            self._findings,
            Tally((str(item.family), str(item.kind), str(item.verdict), str(item.severity)) for item in notable),
        )
        self._wasted.set(3600 * sum(item.gpu_hours for item in notable if item.verdict is Verdict.IDLE))
        _counted(self._gaps, Tally((str(gap.kind),) for gap in analysis.gaps))
        _counted(
            self._plan,
            Tally(
                (str(item.candidate.action), str(item.mode), "true" if item.admitted else "false")
                for item in plan.items
            ),
        )
        _counted(self._refusals, Tally((refusal.guard,) for item in plan.items for refusal in item.refusals))
        self._brake.set(bool(plan.brake))
        _counted(self._limit, {(use.scope,): use.limit_gpus for use in plan.budgets})
        _counted(self._used, {(use.scope,): use.in_flight_gpus for use in plan.budgets})

    def inventory(self, followed: Iterable[Followed]) -> None:
        """Replace what is said about the age of the inventory; add what was listed since."""
        self._age.clear()
        for each in sorted(followed, key=lambda item: item.age_seconds):  # the oldest of one name counts
            self._age.labels(each.resource).set(each.age_seconds)
            before = self._followed.get(each.resource)
            if before is None or each.lists < before.lists:  # counted from the start, as after new settings
                before = replace(each, lists=0, drifted=0)
            self._lists.labels(each.resource).inc(each.lists - before.lists)
            self._drift.labels(each.resource).inc(each.drifted - before.drifted)
            self._followed[each.resource] = each

    def remembered(self, remediations: Iterable[Remediation], pause: Pause) -> None:
        """Replace what is said about Remediations, and about the detectors that they tell of."""
        remediations = tuple(remediations)
        measured = precision(remediations)
        _counted(
            self._outcomes,
            {
                (detector, right): count
                for detector, each in measured.items()
                for right, count in (("true", each.successes), ("false", each.failures))
            },
        )
        _counted(
            self._precision,
            {
                (detector, bound): ratio
                for detector, each in measured.items()
                for bound, ratio in (("lower", each.lower_ratio), ("upper", each.upper_ratio))
            },
        )
        tally: Tally[tuple[str, ...]] = Tally((str(each.proposal.action), str(each.phase)) for each in remediations)
        _counted(self._remediations, tally)
        self._paused.set(pause.paused)

    def stood_down(self) -> None:
        """Of a replica that leads no more: nothing is said about the fleet."""
        self.leads.set(0)
        self._analysed.set(0)
        self._wasted.set(0)
        self._brake.set(0)
        for gauge in (
            self._devices, self._unknown, self._findings, self._gaps, self._plan, self._refusals, self._limit,
            self._used, self._remediations, self._age, self._outcomes, self._precision,
        ):  # fmt: skip
            gauge.clear()

    def settings(self, taken: bool, at: datetime) -> None:
        self.settings_taken.set(taken)
        if taken:
            self.settings_at.set(at.timestamp())


def _counted(gauge: Gauge, values: Mapping[tuple[str, ...], float]) -> None:
    gauge.clear()
    for labels, value in values.items():
        gauge.labels(*labels).set(value)
