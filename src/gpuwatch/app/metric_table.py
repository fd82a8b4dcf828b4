"""Every metric of /metrics, declared once: /metrics is built from these rows, and so is the table in the docs.

Labels never have a name that Prometheus gives to a target (job, instance, namespace, pod, container, node, service,
endpoint): a scrape would rename ours to exported_….
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from enum import StrEnum
from functools import partial
from itertools import product

from gpuwatch.kube.writer import Failure
from gpuwatch.model.decision import ActionKind
from gpuwatch.model.remediation import Phase


class MetricType(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class ExportedBy(StrEnum):
    """What only the leader knows is away or 0 on other replicas, so that sums count nothing twice."""

    REPLICA = "replica"  # each of them
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class MetricDescription:
    """One metric.

    name: as it is queried (of a counter with `_total`, of a histogram without `_bucket`). unit: '' for a plain count, a
    state or a flag. labels: name → meaning. meaning: a sentence or two, the HELP of /metrics.
    initial: label values of the series that are there from the start, at 0. most_series: how many are exported at most;
    0 where the vocabularies of its labels bound it. buckets: upper bounds of a histogram.
    """

    name: str
    _: KW_ONLY
    type: MetricType
    meaning: str
    unit: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    exported_by: ExportedBy = ExportedBy.REPLICA
    initial: tuple[tuple[str, ...], ...] = ()
    most_series: int = 0
    buckets: tuple[float, ...] = ()


ACTIONS = tuple(str(kind) for kind in ActionKind if kind is not ActionKind.RESIZE_WORKLOAD)
"""What gpuwatch does itself; resizing is its owner's to do."""

WRITES = ("create", "delete", "event", "evict", "patch")
READS = ("get", "list")
CONTENTS = ("report", "notification")

_BOOL = ("false", "true")
_PHASES = tuple(str(phase) for phase in Phase)

_TASK = {"task": "what `gpuwatch run` does again and again"}
_ACTION = {"action": "what is done: " + ", ".join(ACTIONS)}
_PHASE = {"phase": "phase of the Remediation"}
_DRY_RUN = {"dry_run": "true where the API server only judged the request and stored nothing"}
_CONTENT = {"content": "report or notification"}
_FINDING = {
    "family": "health, idle or misfit",
    "kind": "what was found; docs/rules.md has all kinds",
    "verdict": "degraded, idle, misfit or unknown",
    "severity": "critical, warning or info",
}
_GPU_NODE = {"gpu_node": "Node; the host as telemetry spells it where no Node is found for it"}
_WORKLOAD_NAMESPACE = {"workload_namespace": "Namespace of the Pods that have the GPUs"}
_MODEL_AND_POOL = {
    "gpu_model": "model as the catalog names it; as its Node's label spells it where the catalog lacks it",
    "pool": "node pool, by gpuwatch.dev/pool or the cloud's label; default where there is none",
}
_CURRENCY = {"currency": "currency of the amount, by ISO 4217"}
_RESOURCE = {"resource": "resource of the Kubernetes API"}
_SCOPE = {"scope": "pool/NAME or model/NAME"}
_DETECTOR = {"detector": "kind of the finding that called for the action"}

_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0)
_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0
_LONG = (1.0, 10.0, _MINUTE, 5 * _MINUTE, 15 * _MINUTE, _HOUR, 4 * _HOUR, 12 * _HOUR, _DAY, 3 * _DAY, 7 * _DAY)

_counter = partial(MetricDescription, type=MetricType.COUNTER)
_gauge = partial(MetricDescription, type=MetricType.GAUGE)
_histogram = partial(MetricDescription, type=MetricType.HISTOGRAM)

_OF_EACH_REPLICA = (
    _gauge(
        "gpuwatch_build_info",
        labels={"version": "version of gpuwatch"},
        meaning="Always 1; its label says which version runs.",
    ),
    _gauge("gpuwatch_leader", meaning="1 where this replica leads, 0 where it stands by."),
    _gauge(
        "gpuwatch_task_last_success_timestamp_seconds",
        unit="seconds since 1970",
        labels=_TASK,
        meaning="When the task last succeeded. Missing until it does so for the first time.",
    ),
    _histogram(
        "gpuwatch_task_duration_seconds",
        unit="seconds",
        labels=_TASK,
        meaning="How long a run of the task took, whether it succeeded or not.",
        buckets=_SECONDS,
    ),
    _counter("gpuwatch_task_errors_total", labels=_TASK, meaning="Runs of the task that failed."),
    _counter(
        "gpuwatch_task_missed_total",
        labels=_TASK,
        meaning="Runs of the task that were left out: they came too late, or the run before still ran.",
    ),
    _gauge(
        "gpuwatch_settings_last_reload_successful",
        meaning="1 where the newest settings are in force, 0 where they could not be taken and older ones are.",
    ),
    _gauge(
        "gpuwatch_settings_last_reload_success_timestamp_seconds",
        unit="seconds since 1970",
        meaning="When settings were last taken.",
    ),
    _counter(
        "gpuwatch_proposals_total",
        labels=_ACTION,
        meaning="Remediations that were proposed.",
        initial=tuple((action,) for action in ACTIONS),
    ),
    _gauge(
        "gpuwatch_report_due_timestamp_seconds",
        unit="seconds since 1970",
        meaning="When the newest weekly report was due that this process looked after.",
    ),
    _gauge(
        "gpuwatch_report_done_timestamp_seconds",
        unit="seconds since 1970",
        meaning="When the newest weekly report was due that is finished: it was sent, or given up.",
    ),
    _counter(
        "gpuwatch_deliveries_total",
        labels={**_CONTENT, "result": "sent or failed"},
        meaning="Attempts to send something to one destination; retries that follow each other at once count once.",
        initial=tuple(product(CONTENTS, ("sent", "failed"))),
    ),
    _gauge(
        "gpuwatch_deliveries_pending",
        labels=_CONTENT,
        meaning="Deliveries that failed or were not tried yet, and will be tried again.",
        initial=tuple((content,) for content in CONTENTS),
    ),
    _gauge(
        "gpuwatch_notifications_undelivered", meaning="Notifications that no receiver took, although a receiver is set."
    ),
    _counter(
        "gpuwatch_cluster_writes_total",
        labels={"verb": "verb of the request: " + ", ".join(WRITES), **_DRY_RUN},
        meaning="Write requests to the Kubernetes API that succeeded.",
        initial=tuple(product(WRITES, _BOOL)),
    ),
    _counter(
        "gpuwatch_cluster_write_failures_total",
        labels={
            "verb": "verb of the request: " + ", ".join((*WRITES, *READS)),
            "failure": "what is known afterwards: " + ", ".join(Failure),
            **_DRY_RUN,
        },
        meaning=(
            "Requests of the part that writes to the Kubernetes API that failed, its reads among them. Failure budget "
            "of verb evict is an eviction that a PodDisruptionBudget puts off."
        ),
        initial=tuple(product((*WRITES, *READS), map(str, Failure), _BOOL)),
    ),
    _counter(
        "gpuwatch_remediation_transitions_total",
        labels={**_ACTION, **_PHASE},
        meaning="How often a Remediation came to a phase.",
        initial=tuple(product(ACTIONS, _PHASES)),
    ),
    _histogram(
        "gpuwatch_remediation_phase_seconds",
        unit="seconds",
        labels={**_ACTION, "phase": "phase that the Remediation left"},
        meaning="How long a Remediation was in a phase, counted when it leaves it.",
        # Nothing leaves a final phase.
        initial=tuple(product(ACTIONS, (str(phase) for phase in Phase if phase.open))),
        buckets=_LONG,
    ),
)

_OF_THE_LEADER = (
    _gauge(
        "gpuwatch_cycle_timestamp_seconds",
        unit="seconds since 1970",
        meaning="The moment of the last cycle, which the other metrics of the fleet describe. 0 where none ended.",
    ),
    _gauge(
        "gpuwatch_devices",
        unit="devices",
        labels={"state": "known: seen lately; reporting: seen now; allocated: reporting, and a Pod has it"},
        meaning="Whole GPUs and MIG instances in telemetry.",
    ),
    _gauge(
        "gpuwatch_unknown",
        labels={"subject": "device_health: devices; pod_use: Pods"},
        meaning="Devices whose health, and Pods whose use of their GPUs, could not be judged.",
    ),
    _gauge(
        "gpuwatch_device_health_unknown",
        unit="devices",
        labels={
            **_GPU_NODE,
            "reason": (
                "signals_missing: nothing exports what the rules need; samples_missing: too few samples; "
                "exporter_down: its exporter does not answer; exporter_empty: its exporter answers without a GPU; "
                "telemetry_missing: so many exporters are down that the scraping is at fault"
            ),
        },
        meaning="Devices whose health could not be judged, by Node and reason. They add up to gpuwatch_unknown.",
        most_series=1000,
    ),
    _gauge("gpuwatch_findings", labels=_FINDING, meaning="Findings of the last cycle."),
    _gauge(
        "gpuwatch_finding",
        labels={
            **_FINDING,
            "advice": "what a person would do about it",
            **_GPU_NODE,
            "UUID": "the GPU, where the finding is about one GPU",
            "GPU_I_ID": "the MIG instance, where the finding is about one instance",
            "workload_namespace": "Namespace of the Pods concerned, where it is one",
            "workload_pod": "the Pod concerned; of a gang or a workload the first of its Pods",
        },
        meaning=(
            "1 for each finding of the last cycle, with what it is about; a label is empty where that is unknown or is "
            "not one thing. Of a GPU that several Pods share no Pod is named. Findings with equal labels are one "
            "series. The most severe findings come first."
        ),
        most_series=500,
    ),
    _gauge(
        "gpuwatch_idle_gpu_seconds",
        unit="GPU-seconds",
        meaning="GPU time that was wasted so far by the allocations that are idle now.",
    ),
    _gauge(
        "gpuwatch_allocatable_gpus",
        unit="GPUs",
        labels=_MODEL_AND_POOL,
        meaning=(
            "Physical GPUs that Pods can have or have. MIG instances count with their share of a GPU, units of a "
            "shared GPU with one part of its replicas."
        ),
        most_series=1000,
    ),
    _gauge(
        "gpuwatch_allocated_gpus",
        unit="GPUs",
        labels={**_WORKLOAD_NAMESPACE, **_MODEL_AND_POOL},
        meaning=(
            "Physical GPUs that Pods have, counted as gpuwatch_allocatable_gpus is. The largest Namespaces come first."
        ),
        most_series=2000,
    ),
    _gauge(
        "gpuwatch_unpriced_gpus",
        unit="GPUs",
        labels=_MODEL_AND_POOL,
        meaning="Allocatable physical GPUs whose price is unknown. Cost and saving leave them out.",
        most_series=1000,
    ),
    _gauge(
        "gpuwatch_cost_per_hour",
        unit="currency per hour",
        labels={
            "workload_namespace": "Namespace of the Pods that have the GPUs; empty for GPUs that are free",
            "state": "allocated: a Pod that is not idle has it; idle: a Pod that is idle has it; free: no Pod has it",
            **_CURRENCY,
        },
        meaning=(
            "What the allocatable GPUs cost now, by the prices of their Nodes. Missing where no price is known. The "
            "largest Namespaces come first."
        ),
        most_series=1500,
    ),
    _gauge(
        "gpuwatch_saving_per_hour",
        unit="currency per hour",
        labels={
            **_WORKLOAD_NAMESPACE,
            "target": (
                "mig: a MIG instance; model: another GPU model; shared: a GPU with others; fewer: fewer GPUs per Pod; "
                "release: give an idle allocation back"
            ),
            "confidence": (
                "likely: as expected; pessimistic: work runs as slowly as it may, and a release counts with the "
                "confidence of its finding"
            ),
            **_CURRENCY,
        },
        meaning=(
            "What the current recommendations and the release of what is idle would save, a week's mean. Missing where "
            "no price is known. A workload with an idle Pod counts as a release alone. The largest Namespaces come "
            "first."
        ),
        most_series=2000,
    ),
    _gauge(
        "gpuwatch_advice",
        unit="workloads",
        labels={
            "target": "mig, model, shared or fewer; empty where nothing is advised",
            "outcome": (
                "advised, abstained: by the last sizing run; applied, ignored: advice of the last eight weeks that was "
                "followed, or was not within a week"
            ),
            "reason": "why gpuwatch abstained; empty for the other outcomes",
        },
        meaning="Workloads by what was advised to them and what became of it. Missing until the first sizing run ends.",
    ),
    _gauge(
        "gpuwatch_tainted_nodes",
        unit="Nodes",
        meaning="Nodes on which a taint of gpuwatch stands, on the Node or on one of its devices.",
    ),
    _gauge(
        "gpuwatch_taint_age_seconds",
        unit="seconds",
        labels={"gpu_node": "Node"},
        meaning="How long a taint of gpuwatch has been standing on the Node. The oldest come first.",
        most_series=1000,
    ),
    _gauge(
        "gpuwatch_gaps",
        labels={"kind": "why it could not be read"},
        meaning="Things that the last cycle could not read.",
    ),
    _gauge(
        "gpuwatch_inventory_age_seconds",
        unit="seconds",
        labels=_RESOURCE,
        meaning="How old the last cycle's view of a followed resource was at most.",
    ),
    _counter("gpuwatch_inventory_lists_total", labels=_RESOURCE, meaning="Lists made of a followed resource."),
    _counter(
        "gpuwatch_inventory_drift_total",
        labels=_RESOURCE,
        meaning="Objects of which a list showed another state than had been followed by watches.",
    ),
    _gauge(
        "gpuwatch_plan_items",
        labels={
            "action": "what would be done",
            "mode": "observe, suggest or enforce",
            "admitted": "true where no guard refused it",
        },
        meaning="Candidates of the last plan.",
    ),
    _gauge(
        "gpuwatch_plan_refusals",
        labels={"guard": "the guard that refused"},
        meaning="Refusals of the last plan. One candidate may be refused by several guards.",
    ),
    _gauge("gpuwatch_brake", meaning="1 while the brake refuses every candidate, 0 else."),
    _gauge("gpuwatch_paused", meaning="1 while a person has paused all writes, 0 else."),
    _gauge(
        "gpuwatch_budget_limit_gpus",
        unit="GPUs",
        labels=_SCOPE,
        meaning="GPUs that may be out of service or disturbed at once.",
        most_series=1000,
    ),
    _gauge(
        "gpuwatch_budget_in_flight_gpus",
        unit="GPUs",
        labels=_SCOPE,
        meaning="GPUs that are out of service or disturbed now, whoever caused it.",
        most_series=1000,
    ),
    _gauge("gpuwatch_remediations", labels={**_ACTION, **_PHASE}, meaning="Remediations that are kept."),
    _gauge(
        "gpuwatch_detector_outcomes",
        labels={**_DETECTOR, "correct": "true where the outcome showed that the finding was correct"},
        meaning="Verified outcomes of Remediations that a detector called for, among those that are kept.",
    ),
    _gauge(
        "gpuwatch_detector_precision_ratio",
        unit="ratio",
        labels={**_DETECTOR, "bound": "lower or upper"},
        meaning="Measured precision of a detector, 0 to 1: the ends of its 95 % interval.",
    ),
)

METRICS = (*_OF_EACH_REPLICA, *(replace(each, exported_by=ExportedBy.LEADER) for each in _OF_THE_LEADER))

DROPPED = _gauge(
    "gpuwatch_series_dropped",
    labels={"metric": "a metric whose series are bounded"},
    meaning="Series that the last cycle left out because the metric has a bound; 0 where nothing was left out.",
    initial=tuple((each.name,) for each in METRICS if each.most_series),
)

ALL_METRICS = (*METRICS, DROPPED)
