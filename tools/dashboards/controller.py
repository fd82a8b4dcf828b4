"""Boards about what gpuwatch concludes and does: a workload, money, Remediations, gpuwatch itself."""

from __future__ import annotations

from grafana_foundation_sdk.models import units

from tools.dashboards.hardware import LOOK, NO_FINDING, UNLABELLED
from tools.dashboards.parts import Board, Column, Panel, bars, counted, devices, figure, judged, rows, trend

DEVICE = "cluster, node, UUID, GPU_I_ID"
HOLDS = f"group by ({DEVICE}, namespace, pod) (device:gpu_workload:info)"
SHARERS = f'count by ({DEVICE}) (group by ({DEVICE}, namespace, pod) (device:gpu_workload:info{{cluster=~"$cluster"}}))'
SHARED = "how a shared GPU divides: its values are the whole device's"
NO_DEVICE = "no device seen for these Pods"
NO_PRICE, NO_SAVING = "no price known, or nothing judged", "no saving known"
PRICELESS = "GPUs without a known price, and clusters in which no device reports"
OTHERS = "taints of others"


def of_pods(series: str) -> str:
    """A device's value for each Pod that has it. A shared device gives each of its Pods the same value."""
    return f"{HOLDS} * on ({DEVICE}) group_left () max by ({DEVICE}) ({series})"


def use(title: str, what: str, series: str, unit: str = units.PercentUnit) -> Panel:
    return trend(title, what, SHARED, (of_pods(series), "{{pod}} {{UUID}} {{GPU_I_ID}}"), unit=unit, no_value=NO_DEVICE)


def money(name: str, chosen: str, by: str = "", more: str = "") -> str:
    """Cost or saving per hour. Without telemetry nobody knows what is idle, so it counts only what is judged."""
    one = f"sum by (cluster, currency{by}) (gpuwatch_{name}_per_hour{{{chosen}}}){more}"
    return f"sum by (currency{by}) ({judged(one)})"


def cost(state: str, by: str = "") -> str:
    return money("cost", f'state="{state}"', by)


def saving(confidence: str, by: str = "") -> str:
    return money("saving", f'confidence="{confidence}"', by, " > 0")


def sum_of(title: str, what: str, expression: str, no_value: str) -> Panel:
    return figure(title, what, PRICELESS, expression, "{{currency}}", decimals=2, no_value=no_value)


def per_interval(metric: str, by: str, legend: str, only: str = "") -> tuple[str, str]:
    return f"sum by ({by}) (increase(gpuwatch_{metric}_total{{{only}}}[$__rate_interval]))", legend


WORKLOAD = Board(
    "workload", "Workload", "Is my GPU used, what is advised, and why. For the owner of a Pod.",
    ("cluster", "namespace", "pod"),
    (
        ("Now", (
            figure("Devices allocated", "GPUs and MIG instances that the chosen Pods have.", UNLABELLED,
                   f"count(group by ({DEVICE}) ({HOLDS}))", no_value=NO_DEVICE),
            figure("Shared devices", "Those of them that more than one Pod has.", UNLABELLED,
                   f"sum(({SHARERS} > bool 1) and on ({DEVICE}) {HOLDS})", no_value=NO_DEVICE),
            figure("Mean engine active", "Mean share of time in which an engine of their devices worked.", SHARED,
                   f"avg({of_pods('device:gpu_engine_active_ratio:max')})", unit=units.PercentUnit,
                   no_value=NO_DEVICE),
            figure("Idle findings", "Idle allocations found in the chosen Namespaces and Pods.",
                   "Pods whose use could not be judged", counted('gpuwatch_finding{verdict="idle"}'), bounds=LOOK,
                   no_value="unknown", runbook="GpuAllocatedIdle"),
            sum_of("Would be saved", "Per hour, by following the advice to these Namespaces, as expected.",
                   saving("likely"), NO_SAVING),
            figure("Pods not judged", "Pods whose use of their GPUs could not be judged, in the whole cluster.",
                   "Pods without GPUs", 'sum(gpuwatch_unknown{subject="pod_use"})', no_value="unknown"),
        )),
        ("Use of their devices", (
            use("Engine active", "Share of time in which an engine worked.", "device:gpu_engine_active_ratio:max"),
            use("SM active", "Share of SMs that had work, over time.", "device:gpu_sm_active_ratio:max"),
            use("Tensor active", "Share of cycles in which tensor cores worked.", "device:gpu_tensor_active_ratio:max"),
            use("Memory bandwidth", "Share of cycles in which memory moved data.", "device:gpu_dram_active_ratio:max"),
            use("Memory used", "Memory in use.", "device:gpu_memory_used_bytes:max", units.BytesIEC),
            bars("Devices of each Pod", "GPUs and MIG instances, of the 20 Pods with most.", UNLABELLED,
                 f"topk(20, count by (namespace, pod) ({HOLDS}))", "{{namespace}}/{{pod}}", no_value=NO_DEVICE),
        )),
        ("What gpuwatch says", (
            rows("Devices", "Each device of the chosen Pods. Where more than one Pod has it, its values are of all.",
                 SHARED, "cluster, namespace, pod, node, UUID, GPU_I_ID",
                 Column("Pods on it", f"{HOLDS} * on ({DEVICE}) group_left () {SHARERS}"),
                 Column("Engine active", of_pods("device:gpu_engine_active_ratio:max"), units.PercentUnit),
                 Column("Memory used", of_pods("device:gpu_memory_used_bytes:max"), units.BytesIEC),
                 Column("Memory there is", of_pods("device:gpu_memory_total_bytes:max"), units.BytesIEC),
                 no_value=NO_DEVICE, to=(("node", "gpu"), ("UUID", "gpu")), width=24),
            rows("Findings", "What gpuwatch found about the chosen Pods.",
                 "Pods whose use could not be judged; of a gang the first Pod is named",
                 "severity, kind, advice, cluster, workload_namespace, workload_pod, UUID",
                 Column("", "max by (severity, kind, advice, cluster, workload_namespace, workload_pod, UUID)"
                            " (gpuwatch_finding)"), no_value=NO_FINDING, to=(("UUID", "gpu"),)),
            rows("What would be saved", "Per hour, by what would be done, in the currency of the row.", PRICELESS,
                 "workload_namespace, target, currency",
                 *(Column(word.capitalize(), saving(word, ", workload_namespace, target"))
                   for word in ("likely", "pessimistic")), no_value=NO_SAVING),
        )),
    ),
)  # fmt: skip

MONEY = Board(
    "money", "Money", "What GPUs cost, what is wasted, what would be saved, and whether advice was followed.",
    ("cluster", "namespace"),
    (
        ("Per hour, in the currency of the name", (
            figure("All GPUs", "What the allocatable GPUs cost.", "GPUs without a known price",
                   "sum by (currency) (gpuwatch_cost_per_hour)", "{{currency}}", decimals=2, no_value=NO_PRICE),
            sum_of("Idle", "GPUs whose Pod is proven to be idle.", cost("idle"), NO_PRICE),
            sum_of("Free", "GPUs that no Pod has; they belong to no Namespace.", cost("free"), NO_PRICE),
            sum_of("Would be saved", "By all advice and the release of what is idle.", saving("likely"), NO_SAVING),
            sum_of("At least", "The same where work runs as slowly as it may.", saving("pessimistic"), NO_SAVING),
            figure("GPUs without a price", "Allocatable GPUs that no cost and no saving counts, in the whole cluster.",
                   "GPUs that no Node offers", "sum(gpuwatch_unpriced_gpus)"),
        )),
        ("Over time", (
            trend("Cost per hour by state", "Allocated and not idle, allocated and idle, free; in their currency.",
                  PRICELESS, *((cost(state), state) for state in ("allocated", "idle", "free")), no_value=NO_PRICE),
            trend("Saving per hour", "What the current advice would save, in its currency.", PRICELESS,
                  *((saving(word), word) for word in ("likely", "pessimistic")), no_value=NO_SAVING),
            trend("GPUs by namespace", "Physical GPUs that Pods have, of the ten largest Namespaces.",
                  "GPUs that no Pod has", ("topk(10, sum by (workload_namespace) (gpuwatch_allocated_gpus))",
                                           "{{workload_namespace}}")),
            trend("GPU time wasted so far", "By the allocations that are idle now, since they are.",
                  "what was idle before, and what could not be judged",
                  (judged("sum by (cluster) (gpuwatch_idle_gpu_seconds)"), "{{cluster}}"), unit=units.Seconds),
        )),
        ("Who and what", (
            rows("Namespaces", "Per hour, in the currency of the row.", PRICELESS, "workload_namespace, currency",
                 Column("Allocated", cost("allocated", ", workload_namespace")),
                 Column("Idle", cost("idle", ", workload_namespace")),
                 Column("Would be saved", saving("likely", ", workload_namespace")), no_value=NO_PRICE),
            rows("Pools", "Physical GPUs by node pool and model; allocated: to the chosen Namespaces.",
                 "GPUs that no Node offers", "cluster, pool, gpu_model",
                 *(Column(title, f"sum by (cluster, pool, gpu_model) (gpuwatch_{name}_gpus)") for title, name in (
                     ("Allocatable", "allocatable"), ("Allocated", "allocated"), ("Without a price", "unpriced")))),
            bars("Saving by what would be done", "Per hour, as expected.", PRICELESS, saving("likely", ", target"),
                 "{{target}} ({{currency}})", no_value=NO_SAVING, decimals=2),
            rows("Advice", "Workloads by what was advised to them, and what became of it in eight weeks.",
                 "workloads that no sizing run has seen", "outcome, target, reason",
                 Column("Workloads", "sum by (outcome, target, reason) (gpuwatch_advice)"),
                 no_value="no sizing run has ended"),
        )),
    ),
)  # fmt: skip

BINARY = {"0": "off", "1": "ON"}
PHASE = "sum by (action, phase) (gpuwatch_remediation_phase_seconds_{})".format
OUTCOMES = 'sum by (cluster, detector) (gpuwatch_detector_outcomes{{correct="{}"}})'.format
PRECISION = 'min by (cluster, detector) (gpuwatch_detector_precision_ratio{{bound="{}"}})'.format
BEFORE_IT_RAN = "those before gpuwatch ran"

REMEDIATION = Board(
    "remediation", "Remediation", "What was proposed, done, refused and undone, and why not.", ("watched",),
    (
        ("Now", (
            figure("Brake", "Whether something stops every action now, in any chosen cluster.",
                   "why: see refusals, and gpuwatch's page", "max(gpuwatch_brake)", words=BINARY, bounds=LOOK,
                   runbook="GpuwatchBrake"),
            figure("Pause", "Whether a person has paused all writes, in any chosen cluster.",
                   "who: see gpuwatch's page", "max(gpuwatch_paused)", words=BINARY, bounds=LOOK,
                   runbook="GpuwatchPaused"),
            figure("At work", "Remediations that act or are undone now.", "Remediations that were deleted",
                   'sum(gpuwatch_remediations{phase=~"Acting|Undoing"}) or 0 * sum(gpuwatch_leader == 1)'),
            figure("Nodes tainted", "Nodes on which a taint of gpuwatch stands.", OTHERS,
                   "sum(gpuwatch_tainted_nodes)"),
            figure("Oldest taint", "How long the oldest taint of gpuwatch has been standing.", OTHERS,
                   "max(gpuwatch_taint_age_seconds)", unit=units.Seconds, no_value="no taint is told"),
            figure("Failed", "Remediations that failed in the time shown.", BEFORE_IT_RAN,
                   'sum(increase(gpuwatch_remediation_transitions_total{phase="Failed"}[$__range]))', bounds=LOOK,
                   runbook="GpuwatchRemediationFailed", decimals=0),
        )),
        ("The last plan", (
            bars("Candidates", "Of the last plan, by action and whether every guard admitted them.",
                 "what no rule found", "sum by (action, admitted) (gpuwatch_plan_items)",
                 "{{action}}: admitted {{admitted}}", no_value="no candidate is told", width=8),
            bars("Refusals by guard", "One candidate may be refused by several; docs/rules.md tells what helps.",
                 "what no rule found", "sum by (guard) (gpuwatch_plan_refusals)", "{{guard}}",
                 no_value="no refusal is told", width=8),
            rows("Budgets", "GPUs that may be out of service or disturbed at once, and that are.",
                 "pools whose GPUs are not known", "cluster, scope",
                 Column("In flight", "sum by (cluster, scope) (gpuwatch_budget_in_flight_gpus)"),
                 Column("Limit", "sum by (cluster, scope) (gpuwatch_budget_limit_gpus)"),
                 no_value="no budget is told", width=8),
        )),
        ("Remediations", (
            rows("Kept", "Remediations that are kept, by phase.", "Remediations that were deleted",
                 "cluster, action, phase",
                 Column("Remediations", "sum by (cluster, action, phase) (gpuwatch_remediations)"),
                 no_value="no Remediation is told", width=8),
            trend("Proposed", "New Remediations in each interval, by action.", BEFORE_IT_RAN,
                  per_interval("proposals", "action", "{{action}}"), width=8),
            trend("Changes of phase", "In each interval.", BEFORE_IT_RAN,
                  per_interval("remediation_transitions", "phase", "{{phase}}"), width=8),
            rows("How long phases take", "Mean time that Remediations were in a phase that they left.",
                 "phases that none has left", "action, phase", Column("Left", f"{PHASE('count')} > 0"),
                 Column("Mean", f"{PHASE('sum')} / ({PHASE('count')} > 0)", units.Seconds),
                 no_value="none has left a phase", width=8),
            rows("Precision of detectors", "Verified outcomes, and the ends of the 95 % interval of the precision.",
                 "findings that led to no Remediation", "cluster, detector", Column("Correct", OUTCOMES("true")),
                 Column("Wrong", OUTCOMES("false"), bounds=LOOK, runbook="GpuwatchDetectorImprecise"),
                 Column("At least", PRECISION("lower"), units.PercentUnit),
                 Column("At most", PRECISION("upper"), units.PercentUnit), no_value="no outcome is verified",
                 width=16),
            rows("Taints of gpuwatch", "How long they have been standing; the Node leads to its board.", OTHERS,
                 "cluster, gpu_node",
                 Column("For", "max by (cluster, gpu_node) (gpuwatch_taint_age_seconds)", units.Seconds),
                 no_value="no taint is told", to=(("gpu_node", "nodes"),), width=8),
            trend("Writes that failed", "Requests to the Kubernetes API in each interval, apart from dry runs.",
                  "requests of the inventory", per_interval("cluster_write_failures", "verb, failure",
                                                            "{{verb}}: {{failure}}", 'dry_run="false"'), width=16),
        )),
    ),
)  # fmt: skip

OWN = "* on (cluster, job, instance) group_left () gpuwatch_build_info"
NOT_SCRAPED = "replicas that are not scraped"
NONE_SCRAPED = "no gpuwatch is scraped"
DURATION = (
    "histogram_quantile({}, sum by (task, le) (rate(gpuwatch_task_duration_seconds_bucket[$__rate_interval])))".format
)

SELF = Board(
    "self", "gpuwatch itself", "Does gpuwatch work, how long does it take, and how much does it need.", ("watched",),
    (
        ("Now", (
            figure("Replicas", "Replicas that Prometheus scrapes.", NOT_SCRAPED, "count(gpuwatch_build_info)",
                   no_value=NONE_SCRAPED),
            figure("Leaders", "Replicas that lead; one for each cluster.", NOT_SCRAPED, "sum(gpuwatch_leader)",
                   no_value=NONE_SCRAPED),
            figure("Last look", "How old the oldest cluster's last cycle is.", "whether it saw telemetry: see gaps",
                   "max(time() - max by (cluster) (gpuwatch_cycle_timestamp_seconds > 0))", unit=units.Seconds,
                   bounds=(None, 600), runbook="GpuwatchAnalysisStale", no_value="never"),
            figure("Settings in force", "Whether the newest settings are in force on all replicas.",
                   "whether they are what you meant", "min(gpuwatch_settings_last_reload_successful)",
                   words={"0": "OLD ONES", "1": "newest"}),
            figure("Devices down", "Devices that were known and do not report.",
                   "devices that gpuwatch has not seen for long",
                   f'sum({devices("known")} - on (cluster) sum by (cluster) (gpuwatch_devices{{state="reporting"}}))',
                   no_value="none is known"),
            figure("Gaps", "Things that the last cycle could not read.", "what nobody asked for",
                   "sum(gpuwatch_gaps) or 0 * sum(gpuwatch_cycle_timestamp_seconds > 0)", bounds=LOOK,
                   runbook="GpuwatchGaps"),
            figure("Undelivered", "Notifications that reached nobody.", "whether anybody read the others",
                   "sum(gpuwatch_notifications_undelivered)", bounds=LOOK, runbook="GpuwatchUndelivered"),
            figure("Series left out", "Series beyond the bound of their metric.", "which they were",
                   "sum(gpuwatch_series_dropped)"),
        )),
        ("Tasks", (
            rows("Tasks", "What gpuwatch does again and again; errors and missed runs in the time shown.",
                 "tasks that are switched off", "cluster, task",
                 Column("Last success ago", "time() - max by (cluster, task)"
                                            " (gpuwatch_task_last_success_timestamp_seconds)", units.Seconds),
                 *(Column(name.capitalize(), f"sum by (cluster, task) (increase(gpuwatch_task_{name}_total[$__range]))",
                          bounds=LOOK, runbook=runbook)
                   for name, runbook in (("errors", "GpuwatchTaskFailing"), ("missed", "GpuwatchTaskMissed")))),
            trend("Duration", "Median and 99th percentile of the runs that ended.", "runs that have not ended",
                  (DURATION(0.5), "{{task}} p50"), (DURATION(0.99), "{{task}} p99"), unit=units.Seconds,
                  no_value="no run has ended"),
            trend("Errors and missed runs", "In each interval.", "why: see the log",
                  per_interval("task_errors", "task", "{{task}}: failed"),
                  per_interval("task_missed", "task", "{{task}}: missed")),
            bars("Gaps by kind", "Things that the last cycle could not read.", "what nobody asked for",
                 "sum by (kind) (gpuwatch_gaps)", "{{kind}}", no_value="no gap is told"),
        )),
        ("Cluster and delivery", (
            rows("Inventory", "How gpuwatch follows the cluster; drift in the time shown.",
                 "resources that it may not read", "cluster, resource",
                 Column("Age", "max by (cluster, resource) (gpuwatch_inventory_age_seconds)", units.Seconds,
                        (300, None), "GpuwatchInventoryStale"),
                 *(Column(name.capitalize(), f"sum by (cluster, resource) (increase(gpuwatch_inventory_{name}_total"
                                             "[$__range]))", bounds=bounds, runbook="GpuwatchInventoryDrift")
                   for name, bounds in (("lists", None), ("drift", LOOK)))),
            trend("Writes", "Requests to the Kubernetes API in each interval.", "requests of the inventory",
                  per_interval("cluster_writes", "verb", "{{verb}}"),
                  per_interval("cluster_write_failures", "verb", "{{verb}} failed")),
            trend("Deliveries", "Attempts in each interval.", "whether anybody read them",
                  per_interval("deliveries", "content, result", "{{content}} {{result}}")),
            trend("Reports behind", "How long the newest weekly report has been due.",
                  "reports that were given up: they count as done",
                  ("clamp_min(max by (cluster) (gpuwatch_report_due_timestamp_seconds)"
                   " - max by (cluster) (gpuwatch_report_done_timestamp_seconds), 0)", "{{cluster}}"),
                  unit=units.Seconds),
        )),
        ("What it needs", (
            trend("Memory", "Resident memory of each replica.", "pages swapped out",
                  (f"process_resident_memory_bytes {OWN}", "{{instance}}"), unit=units.BytesIEC),
            trend("Processor", "Cores in use by each replica.", "throttling by its limit",
                  (f"rate(process_cpu_seconds_total[$__rate_interval]) {OWN}", "{{instance}}"), decimals=3),
            rows("Replica", "Their version, and which leads.", NOT_SCRAPED, "cluster, instance, version",
                 Column("Leads", "sum by (cluster, instance, version) (gpuwatch_build_info * on (cluster, job,"
                                 " instance) group_left () gpuwatch_leader)"), no_value=NONE_SCRAPED, width=24),
        )),
    ),
)  # fmt: skip
