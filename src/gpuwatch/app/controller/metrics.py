"""/metrics of `gpuwatch run`, declared in metrics.yaml, plus the Python client's process_… and python_info."""

import threading
from collections import Counter as Tally
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import Any, TypeVar, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from gpuwatch import __version__
from gpuwatch.account.fleet_cost import FleetCost
from gpuwatch.act.culprits import culprits, health_unknown, tainted_since, worst_first
from gpuwatch.act.execute.precision import precision
from gpuwatch.act.fragmentation import Fragmentation
from gpuwatch.act.slots import RoomFor, Slots, unit_of
from gpuwatch.app.controller.metric_table import METRICS, ExportedBy, MetricDescription, MetricType
from gpuwatch.facts.model.cluster import FactKind
from gpuwatch.facts.model.decision import Analysis, FindingKind, Verdict
from gpuwatch.facts.model.ledger import LedgerEntry, Restated
from gpuwatch.facts.model.remediation import Pause, Phase, Remediation, Turn
from gpuwatch.sources.kube.reader import Followed
from gpuwatch.sources.kube.writer import ClusterWriter, WriteError

_Labels = TypeVar("_Labels", bound=tuple[str, ...])

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series of each counter, that nobody asks for


class Metrics:
    """All metrics of one process, in a registry of their own, so that tests may have several.

    Fleet metrics are those of the leader's last cycle. Other replicas have none, so a sum over replicas counts nothing
    twice.
    """

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        self._gauges: dict[str, Gauge] = {}
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        for each in METRICS:
            self._declare(each)
        self._most = {each.name: each.most_series for each in METRICS}
        self._dropped = self._gauges["gpuwatch_series_dropped"]
        for name, most in self._most.items():
            if most:
                self._dropped.labels(name)
        self._shown: dict[str, set[tuple[str, ...]]] = {}
        self._raised: dict[str, dict[tuple[str, ...], float]] = {}
        self._replacing = threading.Lock()
        self._followed: dict[str, Followed] = {}
        self._gauges["gpuwatch_build_info"].labels(__version__).set(1)
        self.leads = self._gauges["gpuwatch_leader"]
        self.job_success = self._gauges["gpuwatch_task_last_success_timestamp_seconds"]
        self.job_seconds = self._histograms["gpuwatch_task_duration_seconds"]
        self.job_errors = self._counters["gpuwatch_task_errors_total"]
        self.job_missed = self._counters["gpuwatch_task_missed_total"]
        self.enforcement = self._counters["gpuwatch_enforcement_cycles_total"]
        self.report_due = self._gauges["gpuwatch_report_due_timestamp_seconds"]
        self.report_done = self._gauges["gpuwatch_report_done_timestamp_seconds"]
        self.undelivered = self._gauges["gpuwatch_notifications_undelivered"]
        self.overdue = self._gauges["gpuwatch_remediations_overdue"]
        self.left_behind = self._gauges["gpuwatch_orphaned_objects"]

    def _declare(self, each: MetricDescription) -> None:
        labels = tuple(each.labels)
        made: Gauge | Counter | Histogram
        if each.type is MetricType.COUNTER:
            made = self._counters[each.name] = Counter(each.name, each.meaning, labels, registry=self.registry)
        elif each.type is MetricType.HISTOGRAM:
            made = self._histograms[each.name] = Histogram(
                each.name, each.meaning, labels, registry=self.registry, buckets=each.buckets
            )
        else:
            made = self._gauges[each.name] = Gauge(each.name, each.meaning, labels, registry=self.registry)
        for values in each.initial():
            made.labels(*values)

    def job(self, name: str) -> None:
        """Create the job's series at 0: a counter that begins at 1 has no increase to alert on."""
        self.job_errors.labels(name)
        self.job_missed.labels(name)
        self.job_seconds.labels(name)

    def delivered(self, content: str, sent: bool) -> None:
        """Count one attempt at one destination; content: 'report' or 'notification'."""
        self._counters["gpuwatch_deliveries_total"].labels(content, "sent" if sent else "failed").inc()

    def pending(self, content: str, count: int) -> None:
        self._gauges["gpuwatch_deliveries_pending"].labels(content).set(count)

    def counted(self, writer: ClusterWriter, *, rehearsal: bool) -> ClusterWriter:
        """The same writer, whose writes and failures are counted."""
        writes = self._counters["gpuwatch_cluster_writes_total"]
        failures = self._counters["gpuwatch_cluster_write_failures_total"]
        return cast("ClusterWriter", _Counted(writer, writes, failures, "true" if rehearsal else "false"))

    def proposed(self, remediation: Remediation) -> None:
        """Count a new proposal: its history has no entry for it."""
        action = remediation.proposal.action
        self._counters["gpuwatch_proposals_total"].labels(action).inc()
        self._counters["gpuwatch_remediation_transitions_total"].labels(action, Phase.PROPOSED).inc()

    def transitioned(self, remediation: Remediation, index: int) -> None:
        """Count the history entry `index` if it changed the phase."""
        proposal = remediation.proposal
        history = (Turn(proposal.created_at, Phase.PROPOSED, ""), *remediation.history[: index + 1])
        turn, left = history[-1], history[-2].phase
        if turn.phase is left:
            return
        began = len(history) - 2
        while began and history[began - 1].phase is left:
            began -= 1
        self._counters["gpuwatch_remediation_transitions_total"].labels(proposal.action, turn.phase).inc()
        spent = max((turn.at - history[began].at).total_seconds(), 0.0)
        self._histograms["gpuwatch_remediation_phase_seconds"].labels(proposal.action, left).observe(spent)

    def analysed(self, analysis: Analysis) -> None:
        """Replace the fleet metrics by the last cycle's."""
        coverage, plan = analysis.coverage, analysis.plan
        self._gauges["gpuwatch_cycle_timestamp_seconds"].set(analysis.at.timestamp())
        counted = (coverage.devices, coverage.devices_present, coverage.devices_allocated)
        states = ((state,) for state in ("known", "reporting", "allocated"))
        self._replace("gpuwatch_devices", dict(zip(states, counted, strict=True)))
        self._replace(
            "gpuwatch_unknown", {("device_health",): coverage.health_unknown, ("pod_use",): coverage.idle_unknown}
        )
        self._replace("gpuwatch_device_health_unknown", health_unknown(analysis))
        notable = worst_first(item for item in analysis.findings if item.notable)
        named = {
            (
                *(item.family, item.kind, item.verdict, item.severity, item.advice),
                *(what.gpu_node, what.uuid, what.mig_instance, what.namespace, what.pod),
            ): 1
            for item, what in zip(notable, culprits(analysis, notable), strict=True)
        }
        self._replace("gpuwatch_finding", named)
        findings = Tally((item.family, item.kind, item.verdict, item.severity) for item in notable)
        self._replace("gpuwatch_findings", findings)
        wasted = 3600 * sum(item.gpu_hours for item in notable if item.verdict is Verdict.IDLE)
        self._gauges["gpuwatch_idle_gpu_seconds"].set(wasted)
        suspected = 3600 * sum(item.gpu_hours for item in notable if item.kind is FindingKind.SUSPECTED_IDLE)
        self._gauges["gpuwatch_suspected_idle_gpu_seconds"].set(suspected)
        lost = Tally(each.kind for each in analysis.cluster.unread)
        self._replace("gpuwatch_unread_facts", {(kind,): lost[kind] for kind in FactKind})
        self._replace("gpuwatch_gaps", Tally((gap.kind,) for gap in analysis.gaps))
        items = Tally((item.candidate.action, item.mode, "true" if item.admitted else "false") for item in plan.items)
        self._replace("gpuwatch_plan_items", items)
        refusals = Tally((refusal.guard,) for item in plan.items for refusal in item.refusals)
        self._replace("gpuwatch_plan_refusals", refusals)
        self._gauges["gpuwatch_brake"].set(bool(plan.brake))
        self._replace("gpuwatch_budget_limit_nodes", {(use.scope,): use.limit_nodes for use in plan.budgets})
        self._replace("gpuwatch_budget_out_nodes", {(use.scope,): use.out_nodes for use in plan.budgets})

    def costs(self, found: FleetCost) -> None:
        self._replace("gpuwatch_allocatable_gpus", found.allocatable)
        self._replace("gpuwatch_allocated_gpus", found.allocated)
        self._replace("gpuwatch_unpriced_gpus", found.unpriced)
        for name, amounts in (("gpuwatch_cost_per_hour", found.cost), ("gpuwatch_saving_per_hour", found.saving)):
            self._replace(name, {(*labels, found.currency): amount for labels, amount in amounts.items()})

    def room(
        self, found: Iterable[Slots], waiting: Mapping[RoomFor, int], fragments: Collection[Fragmentation] = ()
    ) -> None:
        counts: dict[tuple[str, ...], float] = {}
        left: dict[tuple[str, ...], float] = {}
        for each in found:
            kind = (each.gpu_model, each.unit, str(each.gpus))
            counts[*kind, each.topology] = each.count
            left |= {(*kind, why): units for why, units in each.left.items()}
        self._replace("gpuwatch_slots", counts)
        self._replace("gpuwatch_gpus_in_no_slot", left)
        unusable = {
            (each.gpu_model, unit_of(each.resource, whole=each.whole), each.pool, why): units
            for each in fragments
            for why, units in each.causes.items()
        }
        self._replace("gpuwatch_unusable_gpus", unusable)
        free: dict[tuple[str, ...], float] = {}
        for labels, gpus in (((of.gpu_model, of.pool, row), gpus) for of in fragments for row, gpus in of.gpus.items()):
            free[labels] = free.get(labels, 0.0) + gpus
        self._replace("gpuwatch_free_gpus", free)
        self._replace("gpuwatch_waiting_gpus", {(str(room),): gpus for room, gpus in waiting.items()})

    def accounted(
        self, final: datetime, total: Iterable[LedgerEntry], currency: str, restated: Iterable[Restated] = ()
    ) -> None:
        """Raise the ledger's counters to what is kept, which outlasts this process; total: all hours before `final`.
        restated: of them those that were found lost later."""
        self._gauges["gpuwatch_ledger_final_timestamp_seconds"].set(final.timestamp())
        seconds: dict[tuple[str, ...], float] = {}
        costs: dict[tuple[str, ...], float] = {}
        for each in total:
            labels = (each.namespace, each.gpu_model, str(each.row), str(each.unknown).lower())
            seconds[labels] = seconds.get(labels, 0.0) + 3600 * each.gpu_hours
            if each.cost is not None:
                costs[*labels, currency] = costs.get((*labels, currency), 0.0) + each.cost
        self._raise("gpuwatch_ledger_gpu_seconds_total", seconds)
        self._raise("gpuwatch_ledger_cost_total", costs)
        lost: dict[tuple[str, ...], float] = {}
        for one in restated:
            of = (one.namespace, one.gpu_model, str(one.row), str(one.unknown).lower(), str(one.cause))
            lost[of] = lost.get(of, 0.0) + 3600 * one.gpu_hours
        self._raise("gpuwatch_ledger_restated_gpu_seconds_total", lost)

    def _raise(self, name: str, values: Mapping[tuple[str, ...], float]) -> None:
        """Raise a counter's series to these values, up to its limit: those that came first stay. One that would fall
        begins anew, as after a loss of the state."""
        counter, shown = self._counters[name], self._raised.setdefault(name, {})
        kept = dict(islice(values.items(), self._most[name]))
        for labels in [labels for labels, value in shown.items() if kept.get(labels, 0.0) < value]:
            counter.remove(*labels)
            del shown[labels]
        for labels, value in kept.items():
            counter.labels(*labels).inc(value - shown.get(labels, 0.0))
            shown[labels] = value
        self._dropped.labels(name).set(len(values) - len(kept))

    def advised(self, counts: Mapping[tuple[str, str, str], int]) -> None:
        """Replace the right-sizing metrics: (target, outcome, reason) → workloads."""
        self._replace("gpuwatch_advice", counts)

    def inventory(self, followed: Iterable[Followed]) -> None:
        """Replace the age of the inventory; add the lists since then."""
        lists = self._counters["gpuwatch_inventory_lists_total"]
        drift = self._counters["gpuwatch_inventory_drift_total"]
        ages: dict[tuple[str, ...], float] = {}
        for each in sorted(followed, key=lambda item: item.age_seconds):  # the oldest one of a name counts
            ages[each.resource,] = each.age_seconds
            before = self._followed.get(each.resource)
            if before is None or each.lists < before.lists:  # the count restarted, as after new settings
                before = replace(each, lists=0, drifted=0)
            lists.labels(each.resource).inc(each.lists - before.lists)
            drift.labels(each.resource).inc(each.drifted - before.drifted)
            self._followed[each.resource] = each
        self._replace("gpuwatch_inventory_age_seconds", ages)

    def remembered(self, remediations: Iterable[Remediation], pause: Pause, at: datetime) -> None:
        remediations = tuple(remediations)
        measured = precision(remediations)
        self._replace(
            "gpuwatch_detector_outcomes",
            {
                (detector, correct): count
                for detector, each in measured.items()
                for correct, count in (("true", each.successes), ("false", each.failures))
            },
        )
        self._replace(
            "gpuwatch_detector_precision_ratio",
            {
                (detector, bound): ratio
                for detector, each in measured.items()
                for bound, ratio in (("lower", each.lower_ratio), ("upper", each.upper_ratio))
            },
        )
        self._replace("gpuwatch_remediations", Tally((each.proposal.action, each.phase) for each in remediations))
        since = tainted_since(remediations)
        self._gauges["gpuwatch_tainted_nodes"].set(len(since))
        ages = {(node,): max((at - began).total_seconds(), 0.0) for node, began in since.items()}
        self._replace("gpuwatch_taint_age_seconds", ages)
        self._gauges["gpuwatch_paused"].set(pause.paused)

    def stood_down(self) -> None:
        """Clear the fleet metrics of a replica that no longer leads."""
        self.leads.set(0)
        for each in METRICS:
            if each.name in self._raised:
                self._raise(each.name, {})
            if each.exported_by is not ExportedBy.LEADER or each.type is not MetricType.GAUGE:
                continue
            if each.labels:
                self._replace(each.name, {})
            else:
                self._gauges[each.name].set(0)

    def settings(self, taken: bool, at: datetime) -> None:
        self._gauges["gpuwatch_settings_last_reload_successful"].set(taken)
        if taken:
            self._gauges["gpuwatch_settings_last_reload_success_timestamp_seconds"].set(at.timestamp())

    def _replace(self, name: str, values: Mapping[_Labels, float]) -> None:
        """All series of a gauge, up to its limit. A series that stays is never removed, so that no scrape misses it."""
        gauge, most = self._gauges[name], self._most[name]
        kept = dict(islice(values.items(), most or None))
        with self._replacing:
            for labels, value in kept.items():
                gauge.labels(*labels).set(value)
            shown: set[tuple[str, ...]] = set(kept)
            for gone in self._shown.get(name, set()) - shown:
                gauge.remove(*gone)
            self._shown[name] = shown
            if most:
                self._dropped.labels(name).set(len(values) - len(kept))


_READS = {"get": "get", "objects": "list"}


class _Counted:
    """Passes on another writer's answers and errors unchanged. Of reads, only failures are counted."""

    def __init__(self, writer: ClusterWriter, writes: Counter, failures: Counter, dry_run: str) -> None:
        self._writer, self._writes, self._failures, self._dry_run = writer, writes, failures, dry_run

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._writer, name)

        def asked(*arguments: Any, **options: Any) -> Any:
            try:
                answer = found(*arguments, **options)
            except WriteError as error:
                self._failures.labels(_READS.get(name, name), str(error.failure), self._dry_run).inc()
                raise
            if name not in _READS:
                self._writes.labels(name, self._dry_run).inc()
            return answer

        return asked if callable(found) else found
