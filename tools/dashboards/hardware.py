"""Boards about GPUs: the fleet, its Nodes, one GPU, health."""

from __future__ import annotations

from typing import Any

from grafana_foundation_sdk.models import units

from tools.dashboards.parts import Board, Column, Panel, bars, counted, figure, judged, rows, trend

LOOK, ACT = (1, None), (None, 1)
ALONE = "devices that could not be judged"
DOWN = "GPUs whose exporter is down"
UNLABELLED = "Pods on GPUs whose exporter attaches no Pod labels"
PEERS = "how far the model may go; see its peers on health"
NO_ECC, NO_REMAP, CAP = "GPUs without ECC", "GPUs that do not remap rows", "the power cap, which is no fault"
NONE_SEEN = "no allocation seen"
NO_FINDING = "no finding is told: none of what could be judged, or gpuwatch does not look"

# Where an exporter stops, its GPUs count as missing for six hours, as long as the alert GpuMissing remembers them.
BEFORE = "max_over_time(node:gpus:count[6h])"
MISSING = f"({BEFORE} - node:gpus:count) or ({BEFORE} unless node:gpus:count)"
GAP = "sum by (cluster, node) (kube_node_status_{}{{" + (
    'resource=~"nvidia_com_.*|amd_com_gpu|gpu_intel_com_.*|habana_ai_gaudi"}})'
)  # fmt: skip
NOT_ALLOCATABLE = f"{GAP.format('capacity')} - {GAP.format('allocatable')}"
UNKNOWN = 'gpuwatch_unknown{subject="device_health"}'


def busy(by: str = "") -> str:
    """Mean engine activity of the GPUs that tell it, over models and clusters."""
    average = "cluster:gpu_engine_active_ratio:avg"
    return f"sum{by} ({average} * cluster:gpus:count) / sum{by} (cluster:gpus:count and {average})"


MISSED = figure("GPUs missing", "GPUs that reported within six hours and do not now, of every model.",
                "GPUs that have been gone for more than six hours", f"sum({MISSING})", bounds=ACT, good=True,
                runbook="GpuMissing")  # fmt: skip
REMAP_FAILED = figure("Row remap failed", "Those that could not replace a row of memory.", NO_REMAP,
                      "sum(gpu:gpu_row_remap_failed:max > bool 0)", bounds=ACT,
                      runbook="GpuRowRemapFailed")  # fmt: skip

FLEET = Board(
    "fleet", "Fleet", "How many GPUs there are, allocated, used, lost and degraded; which model, which team.",
    ("cluster", "namespace", "model"),
    (
        ("Now", (
            figure("GPUs reporting", "Physical GPUs in telemetry.", DOWN, "sum(cluster:gpus:count)"),
            MISSED,
            figure("Critical findings", "Findings that need a person now, of every model.", ALONE,
                   counted('gpuwatch_findings{severity="critical"}'), bounds=ACT, good=True, no_value="unknown",
                   runbook="GpuwatchCriticalFinding"),
            figure("Health unknown", "Share of known devices whose health could not be judged, of every model.",
                   "devices that gpuwatch has not seen for long", f"sum({UNKNOWN}) / (sum("
                   'gpuwatch_devices{state="known"}) > 0)', unit=units.PercentUnit, bounds=(0.2, None),
                   no_value="unknown", runbook="GpuwatchHealthUnknown"),
            figure("Allocated", "Share of GPUs that a Pod has; MIG instances by their share of the card.", UNLABELLED,
                   "sum(cluster:gpus_allocated:sum) / sum(cluster:gpus:count)", unit=units.PercentUnit),
            figure("Engine active", "Mean share of time in which an engine worked, of the GPUs that tell it.",
                   "how well the engine was filled; see SM and tensor on gpu", busy(), unit=units.PercentUnit),
            figure("Power", "Power of all boards, of every model.", "the rest of the servers",
                   "sum(node:gpu_power_watts:sum)", unit=units.Watt),
            figure("Cost per hour", "What the allocatable GPUs cost now, in the currency of the name.",
                   "GPUs without a known price", "sum by (currency) (gpuwatch_cost_per_hour)", "{{currency}}",
                   decimals=2, no_value="no price known"),
        )),
        ("Over time", (
            trend("Allocation and use", "Physical GPUs: reporting, allocated, and as many as were busy all the time.",
                  f"{DOWN}: all three lines end with them", ("sum(cluster:gpus:count)", "reporting"),
                  ("sum(cluster:gpus_allocated:sum)", "allocated"),
                  ("sum(cluster:gpu_engine_active_ratio:avg * cluster:gpus:count)", "busy")),
            trend("Engine active by model", "Mean share of time in which an engine worked.", DOWN,
                  (busy(" by (modelName)"), "{{modelName}}"), unit=units.PercentUnit),
            bars("Allocated devices by namespace", "GPUs and MIG instances, of the 20 largest Namespaces.", UNLABELLED,
                 "topk(20, sum by (namespace) (namespace:gpus_allocated:count))", "{{namespace}}", no_value=NONE_SEEN),
            bars("Engine active by namespace", "Mean over their devices, of the 20 lowest Namespaces.",
                 "how a shared GPU divides: its value is the whole device's",
                 "bottomk(20, avg by (namespace) (namespace:gpu_engine_active_ratio:avg))", "{{namespace}}",
                 unit=units.PercentUnit, no_value=NONE_SEEN),
        )),
        ("Tables", (
            rows("Clusters", "Which cluster reports, and how old gpuwatch's last look at it is. Its name leads on.",
                 "clusters that sent nothing for six hours: they have no row", "cluster",
                 Column("Reporting", "sum by (cluster) (node:gpus:count)"),
                 Column("Missing", f"sum by (cluster) ({MISSING})", bounds=ACT, runbook="GpuMissing"),
                 Column("Last look ago", "time() - max by (cluster) (gpuwatch_cycle_timestamp_seconds > 0)",
                        units.Seconds, (None, 600), "GpuwatchAnalysisStale"), to=(("cluster", "nodes"),)),
            rows("Models", "GPUs of each model.", DOWN, "cluster, modelName",
                 Column("Reporting", "sum by (cluster, modelName) (cluster:gpus:count)"),
                 Column("Allocated", "sum by (cluster, modelName) (cluster:gpus_allocated:sum)"),
                 Column("Engine active", busy(" by (cluster, modelName)"), units.PercentUnit)),
            rows("Firing alerts", "Alerts about GPUs and gpuwatch that fire now; the name leads to its runbook.",
                 "anything, where Prometheus has not loaded gpuwatch's rules",
                 "severity, alertname, cluster, node, UUID",
                 Column("", "count by (severity, alertname, cluster, node, UUID)"
                            ' (ALERTS{alertname=~"Gpu.*", alertstate="firing"})'), width=24,
                 no_value="none fires, or the rules are not loaded", to=(("alertname", "runbook"), ("UUID", "gpu"))),
        )),
    ),
)  # fmt: skip

NODES = Board(
    "nodes", "Nodes", "Which Node is odd: down, hot, short of GPUs, tainted.", ("cluster", "node"),
    (
        ("Now", (
            figure("Nodes reporting", "Nodes with a GPU in telemetry.", "Nodes without an exporter",
                   "count(node:gpus:count)"),
            MISSED,
            figure("Not allocatable", "Devices of the Nodes' capacity that Kubernetes does not offer.",
                   "what the device plugin never registered", f"sum({NOT_ALLOCATABLE})", bounds=LOOK,
                   runbook="GpuAllocatableBelowCapacity", no_value="no kube-state-metrics"),
            figure("Tainted by gpuwatch", "Nodes on which a taint of gpuwatch stands, in the whole cluster.",
                   "taints and cordons of others", "sum(gpuwatch_tainted_nodes)"),
        )),
        ("Nodes", (
            rows("Nodes", "One row for each Node that has or had GPUs; its name leads to its GPUs.",
                 "Nodes that never reported; an empty cell is a value that nothing tells", "cluster, node",
                 Column("GPUs", "sum by (cluster, node) (node:gpus:count)"),
                 Column("Missing", f"sum by (cluster, node) ({MISSING})", bounds=ACT, runbook="GpuMissing"),
                 Column("Allocated", "sum by (cluster, node) (gpu:gpu_allocated_ratio:sum)"),
                 Column("Engine active", "avg by (cluster, node) (node:gpu_engine_active_ratio:avg)",
                        units.PercentUnit),
                 Column("Hottest", "max by (cluster, node) (gpu:gpu_temperature_celsius:max)", units.Celsius),
                 Column("Power", "sum by (cluster, node) (node:gpu_power_watts:sum)", units.Watt),
                 Column("Not allocatable", NOT_ALLOCATABLE, bounds=LOOK, runbook="GpuAllocatableBelowCapacity"),
                 Column("Tainted for", "max by (cluster, node) (label_replace(gpuwatch_taint_age_seconds,"
                                       ' "node", "$1", "gpu_node", "(.+)"))', units.Seconds),
                 to=(("node", "gpu"),), width=24, height=12),
        )),
        ("Over time", (
            trend("Engine active, the ten lowest", "Mean over the Node's GPUs.", DOWN,
                  ("bottomk(10, node:gpu_engine_active_ratio:avg)", "{{cluster}} {{node}}"), unit=units.PercentUnit),
            trend("Hottest GPU, the ten highest", "The highest temperature of the Node's GPUs.", PEERS,
                  ("topk(10, max by (cluster, node) (gpu:gpu_temperature_celsius:max))", "{{cluster}} {{node}}"),
                  unit=units.Celsius),
            trend("Power, the ten highest", "Sum over the Node's boards.", "the rest of the server",
                  ("topk(10, node:gpu_power_watts:sum)", "{{cluster}} {{node}}"), unit=units.Watt),
            trend("Missing GPUs", "GPUs that had reported within six hours before and did not then.",
                  "GPUs that have been gone for more than six hours",
                  (f"sum by (cluster, node) ({MISSING}) > 0", "{{cluster}} {{node}}"),
                  no_value="none is missing, or no telemetry: see GPUs missing"),
        )),
    ),
)  # fmt: skip


def card(title: str, what: str, blind: str, unit: str, *series: str, **more: Any) -> Panel:
    """Over time, a line for each card or MIG instance: `series` are a name and, where there are several, a word."""
    instance = " {{GPU_I_ID}}" if series[0].startswith("device:") else ""
    lines = [(name, f"{{{{node}}}} GPU {{{{gpu}}}}{instance} {word}".rstrip())
             for name, _, word in (each.partition(" ") for each in series)]  # fmt: skip
    return trend(title, what, blind, *lines, unit=unit, width=8, **more)


PROFILED = "GPUs without profiling metrics"
GPU = Board(
    "gpu", "GPU", "What one card did: for a case with the vendor, choose it by Node and UUID.",
    ("cluster", "node", "model", "uuid"),
    (
        ("Now: the worst of the chosen", (
            figure("GPUs", "Chosen GPUs that report.", "GPUs that tell no temperature",
                   "count(gpu:gpu_temperature_celsius:max)"),
            figure("Last XID", "The highest of the last XIDs; 0 is none since the driver was loaded.",
                   "XIDs before the last one, and when it was", "max(gpu:gpu_xid:last)", bounds=LOOK,
                   runbook="GpuXidFatal", no_value="not told"),
            figure("Uncorrected ECC, 1 h", "New uncorrected memory errors within an hour.", NO_ECC,
                   "sum(gpu:gpu_ecc_uncorrected:increase1h)", bounds=ACT, runbook="GpuUncorrectableEcc", decimals=0,
                   no_value="not told"),
            REMAP_FAILED,
            figure("Row remap pending", "GPUs that will replace a row of memory at their next reset.", NO_REMAP,
                   "sum(gpu:gpu_row_remap_pending:max > bool 0)", bounds=LOOK, runbook="GpuRowRemapPending"),
            figure("Recovery action", "What the driver asks for.", "drivers and exporters that do not tell it",
                   "max(gpu:gpu_recovery_action:max)", bounds=LOOK, runbook="GpuRecoveryActionNeeded",
                   no_value="not told", words={"0": "none", "1": "reset GPU", "2": "reboot Node", "3": "drain P2P",
                                               "4": "drain, reset", "6": "reset bus", "7": "reboot system"}),
            figure("Hottest", "Temperature of the hottest.", PEERS, "max(gpu:gpu_temperature_celsius:max)",
                   unit=units.Celsius),
            figure("Throttled by heat", "The highest share of 15 minutes slowed down for heat.", CAP,
                   "max(gpu:gpu_thermal_throttle_ratio:rate15m)", unit=units.PercentUnit, bounds=(0.1, None),
                   runbook="GpuThermalThrottle", no_value="not told"),
        )),
        ("Use", (
            card("Engine active", "Share of time in which an engine worked; per MIG instance where there are some.",
                 "how many SMs worked", units.PercentUnit, "device:gpu_engine_active_ratio:max"),
            card("SM active", "Share of SMs that had work, over time.", PROFILED, units.PercentUnit,
                 "device:gpu_sm_active_ratio:max", no_value="not exported"),
            card("Tensor active", "Share of cycles in which tensor cores worked.", PROFILED, units.PercentUnit,
                 "device:gpu_tensor_active_ratio:max", no_value="not exported"),
            card("Memory bandwidth", "Share of cycles in which device memory moved data.", PROFILED,
                 units.PercentUnit, "device:gpu_dram_active_ratio:max", no_value="not exported"),
            card("Memory used", "Memory in use, and all there is.", "what a framework reserved and does not use",
                 units.BytesIEC, "device:gpu_memory_used_bytes:max used", "device:gpu_memory_total_bytes:max total"),
            card("SM clock", "Clock of the SMs.", "why it is low", units.Hertz, "gpu:gpu_sm_clock_hertz:max"),
        )),
        ("Power, heat, faults", (
            card("Power", "Power of the board, and its limit.", "the rest of the server", units.Watt,
                 "gpu:gpu_power_watts:max", "gpu:gpu_power_limit_watts:max limit"),
            card("Temperature", "Of the GPU and of its memory.", PEERS, units.Celsius,
                 "gpu:gpu_temperature_celsius:max", "gpu:gpu_memory_temperature_celsius:max memory"),
            card("Throttling", "Share of 15 minutes slowed down for heat, or braked by the power supply.", CAP,
                 units.PercentUnit, "gpu:gpu_thermal_throttle_ratio:rate15m heat",
                 "gpu:gpu_power_brake_ratio:rate15m brake"),
            card("XID", "The last XID at each moment.", "XIDs before the last one", units.NoUnit, "gpu:gpu_xid:last",
                 points=True),
            card("Corrected ECC errors", "Corrected memory errors a second, over an hour.", NO_ECC,
                 units.EventsPerSecond, "gpu:gpu_ecc_corrected:rate1h"),
            card("Link errors", "PCIe replays and NVLink errors a second, over 15 minutes.", "which link it was",
                 units.EventsPerSecond, "gpu:gpu_pcie_replays:rate15m PCIe", "gpu:gpu_nvlink_errors:rate15m NVLink"),
        )),
        ("Who", (
            trend("Pods over time", "1 for each Pod while it has one of the chosen devices.", UNLABELLED,
                  ("max by (cluster, namespace, pod) (device:gpu_workload:info)", "{{namespace}}/{{pod}}"),
                  no_value=NONE_SEEN),
            rows("MIG instances", "Each instance of the chosen cards.", "instances that tell neither",
                 "cluster, node, UUID, GPU_I_ID, GPU_I_PROFILE",
                 *(Column(title, f'max by (cluster, node, UUID, GPU_I_ID, GPU_I_PROFILE) ({name}{{GPU_I_ID!=""}})',
                          unit) for title, name, unit in (
                     ("Engine active", "device:gpu_engine_active_ratio:max", units.PercentUnit),
                     ("Memory used", "device:gpu_memory_used_bytes:max", units.BytesIEC))),
                 no_value="no MIG instance reports"),
            rows("Pods now", "Who has the chosen GPUs; the Pod's name leads to its board.", UNLABELLED,
                 "cluster, namespace, pod, node, UUID, GPU_I_ID",
                 Column("", "max by (cluster, namespace, pod, node, UUID, GPU_I_ID) (device:gpu_workload:info)"),
                 no_value=NONE_SEEN, to=(("pod", "workload"),), width=24),
        )),
    ),
)  # fmt: skip


def worst(title: str, what: str, blind: str, none: str, *columns: tuple[str, str, tuple[int | None, int | None], str]):  # type: ignore[no-untyped-def]
    """Cards of which one of the series is not 0."""
    labels = "cluster, node, UUID"  # few, so that the values fit beside them
    return rows(title, what, blind, labels, *(
        Column(name, f"max by ({labels}) ({series} > 0)", bounds=bounds, runbook=runbook)
        for name, series, bounds, runbook in columns), no_value=none, to=(("UUID", "gpu"),))  # fmt: skip


def first(title: str, what: str, blind: str, expression: str, unit: str) -> Panel:
    return trend(
        f"{title}, the ten first",
        what,
        blind,
        (f"topk(10, {expression})", "{{cluster}} {{node}} GPU {{gpu}}"),
        unit=unit,
    )


FOUND = "severity, kind, advice, cluster, gpu_node, UUID, GPU_I_ID, workload_namespace, workload_pod"
HEALTH = Board(
    "health", "Health", "What is broken, what is unknown, and whether it is one card or the fleet.",
    ("cluster", "namespace", "node", "model"),
    (
        ("Now", (
            figure("Critical findings", "Findings that need a person now, in the whole cluster.", ALONE,
                   counted('gpuwatch_findings{severity="critical"}'), bounds=ACT, good=True, no_value="unknown",
                   runbook="GpuwatchCriticalFinding"),
            figure("Warnings", "Findings of severity warning, in the whole cluster.", ALONE,
                   counted('gpuwatch_findings{severity="warning"}'), no_value="unknown"),
            figure("Health unknown", "Devices whose health could not be judged, in the whole cluster.",
                   "devices that gpuwatch has not seen for long",
                   f"sum({judged(f'sum by (cluster) ({UNKNOWN})', 'known')})", bounds=LOOK, no_value="unknown",
                   runbook="GpuwatchHealthUnknown"),
            figure("GPUs with an XID", "GPUs that report and whose last XID is not 0.",
                   "when it was, and whether it was a program's", "sum(gpu:gpu_xid:last > bool 0)", bounds=LOOK,
                   runbook="GpuXidFatal"),
            figure("Throttled by heat", "GPUs slowed down for heat for more than a tenth of 15 minutes.", CAP,
                   "sum(gpu:gpu_thermal_throttle_ratio:rate15m > bool 0.1)", bounds=LOOK,
                   runbook="GpuThermalThrottle"),
            REMAP_FAILED,
        )),
        ("Findings", (
            bars("Findings by kind", "Findings of the last cycle, in the whole cluster.", ALONE,
                 "sum by (kind, severity) (gpuwatch_findings)", "{{kind}} ({{severity}})", no_value=NO_FINDING),
            rows("Unknown", "Why the health of devices could not be judged.",
                 "devices that gpuwatch has not seen for long", "cluster, gpu_node, reason",
                 Column("Devices", "sum by (cluster, gpu_node, reason) (gpuwatch_device_health_unknown)"),
                 no_value="no reason is told: all could be judged, or gpuwatch does not look"),
            rows("Findings", "Warnings and critical findings of the last cycle. Node, GPU, Pod lead to their boards.",
                 "findings of severity info, what could not be judged, and what is beyond the metric's bound", FOUND,
                 Column("", f'max by ({FOUND}) (gpuwatch_finding{{severity!="info"}})'),
                 no_value=NO_FINDING, width=24, height=10,
                 to=(("gpu_node", "gpu"), ("UUID", "gpu"), ("workload_pod", "workload"))),
        )),
        ("GPUs", (
            worst("XIDs", "GPUs whose last XID is not 0; docs/rules.md tells what each means.", "when it was",
                  "no XID is told: none, or no telemetry", ("Last XID", "gpu:gpu_xid:last", LOOK, "GpuXidFatal")),
            worst("Memory errors", "GPUs with uncorrected errors, or with rows to remap.", NO_ECC,
                  "no error is told: none, or no telemetry",
                  ("New within 1 h", "gpu:gpu_ecc_uncorrected:increase1h", ACT, "GpuUncorrectableEcc"),
                  ("Since reload", "gpu:gpu_ecc_uncorrected_since_reload:max", LOOK, "GpuUncorrectableEccNotReset"),
                  ("Remap failed", "gpu:gpu_row_remap_failed:max", ACT, "GpuRowRemapFailed"),
                  ("Remap pending", "gpu:gpu_row_remap_pending:max", LOOK, "GpuRowRemapPending")),
            first("Hotter than its peers", "Temperature above the median of the model in the cluster.",
                  "whether the peers work as hard",
                  "gpu:gpu_temperature_celsius:max - on (cluster, modelName) group_left () quantile by (cluster,"
                  ' modelName) (0.5, gpu:gpu_temperature_celsius:max{cluster=~"$cluster"})', units.Celsius),
            first("Throttling", "Share of 15 minutes slowed down for heat.", CAP,
                  "gpu:gpu_thermal_throttle_ratio:rate15m", units.PercentUnit),
            first("Corrected ECC errors", "Corrected memory errors a second, over an hour.", NO_ECC,
                  "gpu:gpu_ecc_corrected:rate1h", units.EventsPerSecond),
            first("NVLink errors", "Errors a second, over 15 minutes.", "which link it was",
                  "gpu:gpu_nvlink_errors:rate15m", units.EventsPerSecond),
        )),
    ),
)  # fmt: skip
