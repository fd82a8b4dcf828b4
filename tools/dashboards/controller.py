"""Boards about what gpuwatch concludes and does: a workload, money, Remediations, gpuwatch itself."""

from __future__ import annotations

from grafana_foundation_sdk.models import units

from tools.dashboards.parts import (
    CLUSTER, NO_GPUWATCH, Board, Column, bars, counted, devices, figure, judged, rows, trend,
)  # fmt: skip

SPACE = f'{CLUSTER}, workload_namespace=~"$namespace"'
POD = f'{CLUSTER}, namespace=~"$namespace", pod=~"$pod"'
DEVICE = "cluster, node, UUID, GPU_I_ID"
HOLDS = f"group by ({DEVICE}, namespace, pod) (device:gpu_workload:info{{{POD}}})"
FOUND_OF = f'{SPACE}, workload_pod=~"$pod"'
SHARED = "how a shared GPU divides: its values are the whole device's"
UNLABELLED = "Pods on GPUs whose exporter attaches no Pod labels"
NO_DEVICE = "no device seen for these Pods"
NO_PRICE = "no price known, or gpuwatch does not look"
PRICELESS = "GPUs without a known price, and clusters in which no device reports"


def of_pods(series: str) -> str:
    """A device's value for each Pod that has it. A shared device gives each of its Pods the same value."""
    return f"{HOLDS} * on ({DEVICE}) group_left () max by ({DEVICE}) ({series}{{{CLUSTER}}})"


def _use(title: str, what: str, series: str, unit: str, **more: object):  # type: ignore[no-untyped-def]
    return trend(title, what, f"{series} joined with device:gpu_workload:info", SHARED,
                 (of_pods(series), "{{pod}} {{UUID}} {{GPU_I_ID}}"), **{"unit": unit, "no_value": NO_DEVICE, **more})  # fmt: skip


WORKLOAD = Board(
    "workload", "Workload", "Is my GPU used, what is advised, and why. For the owner of a Pod.",
    ("cluster", "namespace", "pod"),
    (
        ("Now", (
            figure("Devices", "GPUs and MIG instances that the chosen Pods have.", "device:gpu_workload:info",
                   UNLABELLED, f"count(group by ({DEVICE}) ({HOLDS}))", no_value=NO_DEVICE, width=4),
            figure("Shared devices", "Those of them that more than one Pod has.", "device:gpu_workload:info", UNLABELLED,
                   f"sum((count by ({DEVICE}) (group by ({DEVICE}, namespace, pod)"
                   f" (device:gpu_workload:info{{{CLUSTER}}})) > bool 1) and on ({DEVICE}) {HOLDS})",
                   no_value=NO_DEVICE, width=4),
            figure("Engine active", "Mean share of time in which an engine of their devices worked.",
                   "device:gpu_engine_active_ratio:max", SHARED,
                   f"avg({of_pods('device:gpu_engine_active_ratio:max')})", unit=units.PercentUnit,
                   no_value=NO_DEVICE, width=4),
            figure("Idle findings", "Idle allocations found in the chosen Namespaces.", "gpuwatch_finding",
                   "Pods whose use could not be judged",
                   counted(f'gpuwatch_finding{{{SPACE}, verdict="idle"}}'), bounds=(1, None), no_value="unknown",
                   runbook="GpuAllocatedIdle", width=4),
            figure("Would be saved per hour", "What following the advice to these Namespaces would save, as expected.",
                   "gpuwatch_saving_per_hour", PRICELESS,
                   "sum by (currency) (" + judged(f"sum by (cluster, currency) (gpuwatch_saving_per_hour{{{SPACE},"
                   ' confidence="likely"}) > 0') + ")", legend="{{currency}}", decimals=2,
                   no_value="no saving known", width=4),
            figure("Pods not judged", "Pods in the whole cluster whose use of their GPUs could not be judged.",
                   "gpuwatch_unknown", "Pods without GPUs", f'sum(gpuwatch_unknown{{{CLUSTER}, subject="pod_use"}})',
                   no_value="unknown", width=4),
        )),
        ("Use of their devices", (
            _use("Engine active", "Share of time in which an engine worked.", "device:gpu_engine_active_ratio:max",
                 units.PercentUnit),
            _use("SM active", "Share of SMs that had work, over time.", "device:gpu_sm_active_ratio:max",
                 units.PercentUnit),
            _use("Tensor active", "Share of cycles in which tensor cores worked.", "device:gpu_tensor_active_ratio:max",
                 units.PercentUnit),
            _use("Memory bandwidth", "Share of cycles in which device memory moved data.",
                 "device:gpu_dram_active_ratio:max", units.PercentUnit),
            _use("Memory used", "Memory in use.", "device:gpu_memory_used_bytes:max", units.BytesIEC),
            bars("Devices of each Pod", "GPUs and MIG instances, of the 20 Pods with most.", "device:gpu_workload:info",
                 UNLABELLED, (f"topk(20, count by (namespace, pod) ({HOLDS}))", "{{namespace}}/{{pod}}"),
                 no_value=NO_DEVICE),
        )),
        ("What gpuwatch says", (
            rows("Devices", "Each device of the chosen Pods. Where more than one Pod has it, its values are of all.",
                 "device:gpu_workload:info, device:gpu_engine_active_ratio:max, device:gpu_memory_used_bytes:max",
                 SHARED, ("cluster", "namespace", "pod", "node", "UUID", "GPU_I_ID"),
                 Column("Pods on it", f"{HOLDS} * on ({DEVICE}) group_left () count by ({DEVICE}) (group by ({DEVICE},"
                                      f" namespace, pod) (device:gpu_workload:info{{{CLUSTER}}}))", bounds=(2, None)),
                 Column("Engine active", of_pods("device:gpu_engine_active_ratio:max"), units.PercentUnit),
                 Column("Memory used", of_pods("device:gpu_memory_used_bytes:max"), units.BytesIEC),
                 Column("Memory there is", of_pods("device:gpu_memory_total_bytes:max"), units.BytesIEC),
                 no_value=NO_DEVICE, to=(("node", "gpu"), ("UUID", "gpu"))),
            rows("Findings", "What gpuwatch found about the chosen Pods.", "gpuwatch_finding",
                 "Pods whose use could not be judged; of a gang the first Pod is named",
                 ("severity", "kind", "advice", "cluster", "workload_namespace", "workload_pod", "UUID"),
                 Column("", "max by (severity, kind, advice, cluster, workload_namespace, workload_pod, UUID)"
                            f" (gpuwatch_finding{{{FOUND_OF}}})"),
                 no_value="no finding is told: none of what could be judged, or gpuwatch does not look", width=12,
                 to=(("UUID", "gpu"),)),
            rows("What would be saved", "Per hour, by what would be done, in the currency of the row.",
                 "gpuwatch_saving_per_hour", PRICELESS,
                 ("cluster", "workload_namespace", "target", "currency"),
                 *(Column(word.capitalize(), judged(
                     "sum by (cluster, workload_namespace, target, currency)"
                     f' (gpuwatch_saving_per_hour{{{SPACE}, confidence="{word}"}}) > 0'))
                   for word in ("likely", "pessimistic")),
                 no_value="no saving known", width=12),
        )),
    ),
)  # fmt: skip


def cost(state: str, by: str = "") -> str:
    """Cost per hour of one state. Without telemetry nobody knows what is idle, so it counts only what is judged."""
    one = f'sum by (cluster, currency{by}) (gpuwatch_cost_per_hour{{{SPACE}, state="{state}"}})'
    return f"sum by (currency{by}) ({judged(one)})"


def saving(confidence: str, by: str = "") -> str:
    one = f'sum by (cluster, currency{by}) (gpuwatch_saving_per_hour{{{SPACE}, confidence="{confidence}"}})'
    return f"sum by (currency{by}) ({judged(one)})"


MONEY = Board(
    "money", "Money", "What GPUs cost, what is wasted, what would be saved, and whether advice was followed.",
    ("cluster", "namespace"),
    (
        ("Per hour, in the currency of the name", (
            figure("All GPUs", "What the allocatable GPUs cost: those of the chosen Namespaces.",
                   "gpuwatch_cost_per_hour", "GPUs without a known price",
                   f"sum by (currency) (gpuwatch_cost_per_hour{{{SPACE}}})", legend="{{currency}}", decimals=2,
                   no_value=NO_PRICE, width=4),
            *(figure(title, what, "gpuwatch_cost_per_hour", PRICELESS, cost(state), legend="{{currency}}", decimals=2,
                     no_value=NO_PRICE, width=4) for title, what, state in (
                         ("Idle", "GPUs whose Pod is proven to be idle.", "idle"),
                         ("Free", "GPUs that no Pod has; they belong to no Namespace.", "free"))),
            *(figure(title, what, "gpuwatch_saving_per_hour", PRICELESS, saving(word), legend="{{currency}}",
                     decimals=2, no_value="no saving known", width=4) for title, what, word in (
                         ("Would be saved", "By all advice and the release of what is idle, as expected.", "likely"),
                         ("At least", "The same where work runs as slowly as it may.", "pessimistic"))),
            figure("GPUs without a price", "Allocatable GPUs that no cost and no saving counts, in the whole cluster.",
                   "gpuwatch_unpriced_gpus", "GPUs that no Node offers",
                   f"sum(gpuwatch_unpriced_gpus{{{CLUSTER}}})", no_value=NO_GPUWATCH, bounds=(1, None), width=4),
        )),
        ("Over time", (
            trend("Cost per hour by state", "Allocated and not idle, allocated and idle, free.",
                  "gpuwatch_cost_per_hour", PRICELESS,
                  *((cost(state), state) for state in ("allocated", "idle", "free")), no_value=NO_PRICE, decimals=2),
            trend("Saving per hour", "What the current advice would save.", "gpuwatch_saving_per_hour", PRICELESS,
                  *((saving(word), word) for word in ("likely", "pessimistic")), no_value="no saving known",
                  decimals=2),
            trend("GPUs by namespace", "Physical GPUs that Pods have, of the ten largest Namespaces.",
                  "gpuwatch_allocated_gpus", "GPUs that no Pod has",
                  (f"topk(10, sum by (workload_namespace) (gpuwatch_allocated_gpus{{{SPACE}}}))",
                   "{{workload_namespace}}"), no_value=NO_GPUWATCH),
            trend("GPU time wasted so far", "By the allocations that are idle now, since they are.",
                  "gpuwatch_idle_gpu_seconds", "what was idle before, and what could not be judged",
                  (judged(f"sum by (cluster) (gpuwatch_idle_gpu_seconds{{{CLUSTER}}})"), "{{cluster}}"),
                  unit=units.Seconds, no_value=NO_GPUWATCH),
        )),
        ("Who and what", (
            rows("Namespaces", "Per hour, in the currency of the row.", "gpuwatch_cost_per_hour, "
                 "gpuwatch_saving_per_hour", PRICELESS, ("workload_namespace", "currency"),
                 Column("Allocated", cost("allocated", ", workload_namespace")),
                 Column("Idle", cost("idle", ", workload_namespace")),
                 Column("Would be saved", saving("likely", ", workload_namespace")), no_value=NO_PRICE, width=12),
            rows("Pools", "Physical GPUs by node pool and model, in the whole cluster.", "gpuwatch_allocatable_gpus, "
                 "gpuwatch_allocated_gpus, gpuwatch_unpriced_gpus", "GPUs that no Node offers",
                 ("cluster", "pool", "gpu_model"),
                 *(Column(title, f"sum by (cluster, pool, gpu_model) ({name}{{{CLUSTER}}})") for title, name in (
                     ("Allocatable", "gpuwatch_allocatable_gpus"), ("Allocated", "gpuwatch_allocated_gpus"),
                     ("Without a price", "gpuwatch_unpriced_gpus"))), no_value=NO_GPUWATCH, width=12),
            bars("Saving by what would be done", "Per hour, as expected.", "gpuwatch_saving_per_hour", PRICELESS,
                 (saving("likely", ", target"), "{{target}} ({{currency}})"), no_value="no saving known", decimals=2),
            rows("Advice", "Workloads by what was advised to them, and what became of it in eight weeks.",
                 "gpuwatch_advice", "workloads that no sizing run has seen", ("outcome", "target", "reason"),
                 Column("Workloads", f"sum by (outcome, target, reason) (gpuwatch_advice{{{CLUSTER}}})"),
                 no_value="no sizing run has ended", width=12),
        )),
    ),
)  # fmt: skip

BINARY = {"0": "off", "1": "ON"}

REMEDIATION = Board(
    "remediation", "Remediation", "What was proposed, done, refused and undone, and why not.", ("watched",),
    (
        ("Now", (
            figure("Brake", "Whether anything stops every action now, in any chosen cluster.", "gpuwatch_brake",
                   "why: see refusals, and gpuwatch's page", f"max(gpuwatch_brake{{{CLUSTER}}})", names=BINARY,
                   bounds=(1, None), runbook="GpuwatchBrake", no_value=NO_GPUWATCH, width=4),
            figure("Pause", "Whether a person has paused all writes, in any chosen cluster.", "gpuwatch_paused",
                   "who: see gpuwatch's page", f"max(gpuwatch_paused{{{CLUSTER}}})", names=BINARY, bounds=(1, None),
                   runbook="GpuwatchPaused", no_value=NO_GPUWATCH, width=4),
            figure("At work", "Remediations that act or are undone now.", "gpuwatch_remediations",
                   "Remediations that were deleted",
                   f'sum(gpuwatch_remediations{{{CLUSTER}, phase=~"Acting|Undoing"}})'
                   f" or 0 * sum(gpuwatch_leader{{{CLUSTER}}} == 1)", no_value=NO_GPUWATCH, width=4,
                   runbook="GpuwatchRemediationStuck"),
            figure("Nodes tainted", "Nodes on which a taint of gpuwatch stands.", "gpuwatch_tainted_nodes",
                   "taints of others", f"sum(gpuwatch_tainted_nodes{{{CLUSTER}}})", no_value=NO_GPUWATCH, width=4),
            figure("Oldest taint", "How long the oldest taint of gpuwatch has been standing.",
                   "gpuwatch_taint_age_seconds", "taints of others",
                   f"max(gpuwatch_taint_age_seconds{{{CLUSTER}}})", unit=units.Seconds,
                   no_value="no taint is told", width=4),
            figure("Failed, 24 h", "Remediations that failed within a day.", "gpuwatch_remediation_transitions_total",
                   "those before gpuwatch ran",
                   f'sum(increase(gpuwatch_remediation_transitions_total{{{CLUSTER}, phase="Failed"}}[$__range]))',
                   bounds=(1, None), runbook="GpuwatchRemediationFailed", no_value=NO_GPUWATCH, decimals=0, width=4),
        )),
        ("The last plan", (
            bars("Candidates", "Of the last plan, by action and whether a guard refused them.", "gpuwatch_plan_items",
                 "what no rule found",
                 (f"sum by (action, admitted) (gpuwatch_plan_items{{{CLUSTER}}})", "{{action}}: admitted {{admitted}}"),
                 no_value="no candidate is told", width=8),
            bars("Refusals by guard", "One candidate may be refused by several; docs/rules.md tells what helps.",
                 "gpuwatch_plan_refusals", "what no rule found",
                 (f"sum by (guard) (gpuwatch_plan_refusals{{{CLUSTER}}})", "{{guard}}"),
                 no_value="no refusal is told", width=8),
            rows("Budgets", "GPUs that may be out of service or disturbed at once, and that are.",
                 "gpuwatch_budget_limit_gpus, gpuwatch_budget_in_flight_gpus", "pools whose GPUs are not known",
                 ("cluster", "scope"),
                 Column("In flight", f"sum by (cluster, scope) (gpuwatch_budget_in_flight_gpus{{{CLUSTER}}})"),
                 Column("Limit", f"sum by (cluster, scope) (gpuwatch_budget_limit_gpus{{{CLUSTER}}})"),
                 no_value="no budget is told", width=8),
        )),
        ("Remediations", (
            rows("Kept", "Remediations that are kept, by phase.", "gpuwatch_remediations",
                 "Remediations that were deleted", ("cluster", "action", "phase"),
                 Column("Remediations", f"sum by (cluster, action, phase) (gpuwatch_remediations{{{CLUSTER}}})"),
                 no_value="no Remediation is told", width=8),
            trend("Proposed", "New Remediations in each interval, by action.", "gpuwatch_proposals_total",
                  "those before gpuwatch ran",
                  (f"sum by (action) (increase(gpuwatch_proposals_total{{{CLUSTER}}}[$__rate_interval]))", "{{action}}"),
                  no_value=NO_GPUWATCH, width=8),
            trend("Turns", "Changes of phase in each interval.", "gpuwatch_remediation_transitions_total",
                  "those before gpuwatch ran",
                  (f"sum by (phase) (increase(gpuwatch_remediation_transitions_total{{{CLUSTER}}}[$__rate_interval])) > 0",
                   "{{phase}}"), no_value="no change of phase is told", width=8),
            rows("How long phases take", "Mean time that Remediations were in a phase that they left.",
                 "gpuwatch_remediation_phase_seconds", "phases that none has left", ("action", "phase"),
                 Column("Left", f"sum by (action, phase) (gpuwatch_remediation_phase_seconds_count{{{CLUSTER}}}) > 0"),
                 Column("Mean", f"sum by (action, phase) (gpuwatch_remediation_phase_seconds_sum{{{CLUSTER}}})"
                                f" / (sum by (action, phase) (gpuwatch_remediation_phase_seconds_count{{{CLUSTER}}})"
                                " > 0)", units.Seconds), no_value="none has left a phase", width=8),
            rows("Precision of detectors", "Verified outcomes, and the ends of the 95 % interval of the precision.",
                 "gpuwatch_detector_outcomes, gpuwatch_detector_precision_ratio", "findings that led to no Remediation",
                 ("cluster", "detector"),
                 Column("Correct", f'sum by (cluster, detector) (gpuwatch_detector_outcomes{{{CLUSTER}, correct="true"}})'),
                 Column("Wrong", f'sum by (cluster, detector) (gpuwatch_detector_outcomes{{{CLUSTER}, correct="false"}})',
                        bounds=(1, None)),
                 *(Column(title, f"min by (cluster, detector) (gpuwatch_detector_precision_ratio{{{CLUSTER},"
                                 f' bound="{bound}"}})', units.PercentUnit)
                   for title, bound in (("At least", "lower"), ("At most", "upper"))),
                 no_value="no outcome is verified", width=16),
            rows("Taints of gpuwatch", "How long they have been standing; the Node leads to its board.",
                 "gpuwatch_taint_age_seconds", "taints of others", ("cluster", "gpu_node"),
                 Column("For", f"max by (cluster, gpu_node) (gpuwatch_taint_age_seconds{{{CLUSTER}}})", units.Seconds),
                 no_value="no taint is told", to=(("gpu_node", "nodes"),), width=8),
            trend("Writes that failed", "Requests to the Kubernetes API in each interval, apart from dry runs.",
                  "gpuwatch_cluster_write_failures_total", "requests of the inventory",
                  (f"sum by (verb, failure) (increase(gpuwatch_cluster_write_failures_total{{{CLUSTER},"
                   ' dry_run="false"}[$__rate_interval])) > 0', "{{verb}}: {{failure}}"),
                  no_value="no failure is told", width=16),
        )),
    ),
)  # fmt: skip

TASK = f'{CLUSTER}, task!=""'
OWN = f"on (cluster, job, instance) group_left () gpuwatch_build_info{{{CLUSTER}}}"


def each_task(metric: str) -> str:
    return f"sum by (task) (increase({metric}{{{TASK}}}[$__rate_interval])) > 0"


SELF = Board(
    "self", "gpuwatch itself", "Does gpuwatch work, how long does it take, and how much does it need.", ("watched",),
    (
        ("Now", (
            figure("Replicas", "Replicas that Prometheus scrapes.", "gpuwatch_build_info",
                   "replicas that are not scraped", f"count(gpuwatch_build_info{{{CLUSTER}}})",
                   no_value="no gpuwatch is scraped", runbook="GpuwatchDown"),
            figure("Leaders", "The chosen clusters' replicas that lead; one for each cluster.", "gpuwatch_leader",
                   "replicas that are not scraped", f"sum(gpuwatch_leader{{{CLUSTER}}})",
                   no_value="no gpuwatch is scraped", runbook="GpuwatchNoLeader"),
            figure("Last look", "How old the oldest cluster's last cycle is.", "gpuwatch_cycle_timestamp_seconds",
                   "whether it saw telemetry: see gaps",
                   f"max(time() - max by (cluster) (gpuwatch_cycle_timestamp_seconds{{{CLUSTER}}} > 0))",
                   unit=units.Seconds, bounds=(None, 600), runbook="GpuwatchAnalysisStale", no_value="never"),
            figure("Settings in force", "Whether the newest settings are in force on all replicas.",
                   "gpuwatch_settings_last_reload_successful", "whether they are what you meant",
                   f"min(gpuwatch_settings_last_reload_successful{{{CLUSTER}}})", names={"0": "OLD ONES", "1": "newest"},
                   no_value=NO_GPUWATCH, runbook="GpuwatchSettingsRejected"),
            figure("Silent devices", "Devices that were known and do not report.", "gpuwatch_devices",
                   "devices that gpuwatch has not seen for long",
                   f"sum({devices('known')} - on (cluster)"
                   f' sum by (cluster) (gpuwatch_devices{{{CLUSTER}, state="reporting"}}))', no_value="none is known"),
            figure("Gaps", "Things that the last cycle could not read.", "gpuwatch_gaps", "what nobody asked for",
                   f"sum(gpuwatch_gaps{{{CLUSTER}}}) or 0 * sum(gpuwatch_cycle_timestamp_seconds{{{CLUSTER}}} > 0)",
                   bounds=(1, None), runbook="GpuwatchGaps", no_value=NO_GPUWATCH),
            figure("Undelivered", "Notifications that reached nobody.", "gpuwatch_notifications_undelivered",
                   "whether anybody read the others", f"sum(gpuwatch_notifications_undelivered{{{CLUSTER}}})",
                   bounds=(1, None), runbook="GpuwatchUndelivered", no_value=NO_GPUWATCH),
            figure("Series left out", "Series beyond the bound of their metric.", "gpuwatch_series_dropped",
                   "which they were", f"sum(gpuwatch_series_dropped{{{CLUSTER}}})", no_value=NO_GPUWATCH),
        )),
        ("Tasks", (
            rows("Tasks", "What gpuwatch does again and again.", "gpuwatch_task_last_success_timestamp_seconds, "
                 "gpuwatch_task_errors_total, gpuwatch_task_missed_total", "tasks that are switched off",
                 ("cluster", "task"),
                 Column("Last success ago", f"time() - max by (cluster, task)"
                        f" (gpuwatch_task_last_success_timestamp_seconds{{{TASK}}})", units.Seconds),
                 Column("Errors", f"sum by (cluster, task) (increase(gpuwatch_task_errors_total{{{TASK}}}[$__range]))",
                        bounds=(1, None)),
                 Column("Missed", f"sum by (cluster, task) (increase(gpuwatch_task_missed_total{{{TASK}}}[$__range]))",
                        bounds=(1, None)), no_value=NO_GPUWATCH, width=12),
            trend("Duration", "Median and 99th percentile of the runs that ended.", "gpuwatch_task_duration_seconds",
                  "runs that have not ended",
                  *((f"histogram_quantile({share}, sum by (task, le)"
                     f" (rate(gpuwatch_task_duration_seconds_bucket{{{TASK}}}[$__rate_interval])))",
                     f"{{{{task}}}} {word}") for share, word in ((0.5, "p50"), (0.99, "p99"))),
                  unit=units.Seconds, no_value="no run has ended"),
            trend("Errors and missed runs", "In each interval.", "gpuwatch_task_errors_total, "
                  "gpuwatch_task_missed_total", "why: see the log",
                  (each_task("gpuwatch_task_errors_total"), "{{task}}: failed"),
                  (each_task("gpuwatch_task_missed_total"), "{{task}}: missed"), no_value="none is told"),
            bars("Gaps by kind", "Things that the last cycle could not read.", "gpuwatch_gaps", "what nobody asked for",
                 (f"sum by (kind) (gpuwatch_gaps{{{CLUSTER}}})", "{{kind}}"), no_value="no gap is told"),
        )),
        ("Cluster and delivery", (
            rows("Inventory", "How gpuwatch follows the cluster.", "gpuwatch_inventory_age_seconds, "
                 "gpuwatch_inventory_lists_total, gpuwatch_inventory_drift_total", "resources that it may not read",
                 ("cluster", "resource"),
                 Column("Age", f"max by (cluster, resource) (gpuwatch_inventory_age_seconds{{{CLUSTER}}})",
                        units.Seconds, (300, None)),
                 Column("Lists", f"sum by (cluster, resource) (gpuwatch_inventory_lists_total{{{CLUSTER}}})"),
                 Column("Drift", f"sum by (cluster, resource) (gpuwatch_inventory_drift_total{{{CLUSTER}}})",
                        bounds=(1, None)), no_value=NO_GPUWATCH, width=12),
            trend("Writes", "Requests to the Kubernetes API in each interval that succeeded, and that failed.",
                  "gpuwatch_cluster_writes_total, gpuwatch_cluster_write_failures_total", "requests of the inventory",
                  (f"sum by (verb) (increase(gpuwatch_cluster_writes_total{{{CLUSTER}}}[$__rate_interval]))", "{{verb}}"),
                  (f"sum by (verb) (increase(gpuwatch_cluster_write_failures_total{{{CLUSTER}}}[$__rate_interval]))",
                   "{{verb}} failed"), no_value=NO_GPUWATCH),
            trend("Deliveries", "Attempts in each interval.", "gpuwatch_deliveries_total", "whether anybody read them",
                  (f"sum by (content, result) (increase(gpuwatch_deliveries_total{{{CLUSTER}}}[$__rate_interval]))",
                   "{{content}} {{result}}"), no_value=NO_GPUWATCH),
            trend("Reports behind", "How long the newest weekly report has been due.",
                  "gpuwatch_report_due_timestamp_seconds, gpuwatch_report_done_timestamp_seconds",
                  "reports that were given up: they count as done",
                  (f"clamp_min(max by (cluster) (gpuwatch_report_due_timestamp_seconds{{{CLUSTER}}})"
                   f" - max by (cluster) (gpuwatch_report_done_timestamp_seconds{{{CLUSTER}}}), 0)", "{{cluster}}"),
                  unit=units.Seconds, no_value=NO_GPUWATCH),
        )),
        ("What it needs", (
            trend("Memory", "Resident memory of each replica.", "process_resident_memory_bytes", "pages swapped out",
                  (f"process_resident_memory_bytes{{{CLUSTER}}} * {OWN}", "{{instance}}"), unit=units.BytesIEC,
                  no_value=NO_GPUWATCH),
            trend("Processor", "Cores in use by each replica.", "process_cpu_seconds_total", "throttling by its limit",
                  (f"rate(process_cpu_seconds_total{{{CLUSTER}}}[$__rate_interval]) * {OWN}", "{{instance}}"),
                  no_value=NO_GPUWATCH, decimals=3),
            rows("Replicas", "Their version, and which leads.", "gpuwatch_build_info, gpuwatch_leader",
                 "replicas that are not scraped", ("cluster", "instance", "version"),
                 Column("Leads", f"sum by (cluster, instance, version) (gpuwatch_build_info{{{CLUSTER}}}"
                                 f" * on (cluster, job, instance) group_left () gpuwatch_leader{{{CLUSTER}}})"),
                 no_value="no gpuwatch is scraped", width=24),
        )),
    ),
)  # fmt: skip
