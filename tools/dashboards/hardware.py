"""Boards about GPUs: the fleet, its Nodes, one GPU, health."""

from __future__ import annotations

from grafana_foundation_sdk.models import units

from tools.dashboards.parts import CLUSTER, NO_GPUWATCH, Board, Column, bars, counted, figure, judged, rows, trend

MODEL = f'{CLUSTER}, modelName=~"$model"'
NODE = f'{CLUSTER}, node=~"$node"'
CARD = f'{NODE}, modelName=~"$model", UUID=~"$uuid"'
HARD = f'{NODE}, modelName=~"$model"'
SPACE = f'{CLUSTER}, namespace=~"$namespace"'
FOUND = f'{CLUSTER}, gpu_node=~"$node"'
RESOURCES = 'resource=~"nvidia_com_.*|amd_com_gpu|gpu_intel_com_.*|habana_ai_gaudi"'

OWN_UNITS = "GPUs of vendors whose exporter does not tell it, and Nodes without an exporter"

# Where an exporter stops, its Nodes count as missing for six hours, as long as the alert GpuMissing remembers them.
MISSING = (
    "(max_over_time(node:gpus:count{{{0}}}[6h]) - node:gpus:count{{{0}}})"
    " or (max_over_time(node:gpus:count{{{0}}}[6h]) unless node:gpus:count{{{0}}})"
).format


def busy(selector: str, by: str = "") -> str:
    """Mean engine activity of the GPUs that tell it, over models and clusters."""
    average, count = f"cluster:gpu_engine_active_ratio:avg{{{selector}}}", f"cluster:gpus:count{{{selector}}}"
    return f"sum{by} ({average} * {count}) / sum{by} ({count} and {average})"


FINDINGS = rows(
    "Findings",
    "What gpuwatch found in its last cycle, the most severe first; the GPU's name leads to its board.",
    "gpuwatch_finding",
    "what could not be judged (see unknown), and findings beyond the bound of 500",
    ("severity", "kind", "advice", "cluster", "gpu_node", "UUID", "GPU_I_ID", "workload_namespace", "workload_pod"),
    Column("", "max by (severity, kind, advice, cluster, gpu_node, UUID, GPU_I_ID, workload_namespace, workload_pod)"
               f' (gpuwatch_finding{{{FOUND}, workload_namespace=~"$namespace"}})'),
    no_value="no finding is told: none of what could be judged, or gpuwatch does not look",
    to=(("gpu_node", "gpu"), ("UUID", "gpu"), ("workload_pod", "workload")), height=10,
)  # fmt: skip

FLEET = Board(
    "fleet", "Fleet", "How many GPUs there are, allocated, used, lost and degraded; which model, which team.",
    ("cluster", "namespace", "model"),
    (
        ("Now", (
            figure("GPUs reporting", "Physical GPUs in telemetry.", "cluster:gpus:count", "GPUs whose exporter is down",
                   f"sum(cluster:gpus:count{{{MODEL}}})"),
            figure("GPUs missing", "GPUs that reported within six hours and do not now. Every model counts.",
                   "node:gpus:count", "GPUs that have been gone for more than six hours",
                   f"sum({MISSING(CLUSTER)})", bounds=(None, 1), good=True, runbook="GpuMissing"),
            figure("Critical findings", "Findings that need a person now, of every model.", "gpuwatch_findings",
                   "devices that could not be judged; without a device that reports there is no number",
                   counted(f'gpuwatch_findings{{{CLUSTER}, severity="critical"}}'), bounds=(None, 1), good=True,
                   runbook="GpuwatchCriticalFinding", no_value="unknown"),
            figure("Health unknown", "Share of known devices whose health could not be judged, of every model.",
                   "gpuwatch_unknown, gpuwatch_devices", "devices that gpuwatch has not seen for long",
                   f'sum(gpuwatch_unknown{{{CLUSTER}, subject="device_health"}})'
                   f' / (sum(gpuwatch_devices{{{CLUSTER}, state="known"}}) > 0)',
                   unit=units.PercentUnit, bounds=(0.2, None), runbook="GpuwatchHealthUnknown", no_value="unknown"),
            figure("Allocated", "Share of GPUs that a Pod has; MIG instances by their share of the card.",
                   "cluster:gpus_allocated:sum, cluster:gpus:count",
                   "allocations of GPUs whose exporter attaches no Pod labels",
                   f"sum(cluster:gpus_allocated:sum{{{MODEL}}}) / sum(cluster:gpus:count{{{MODEL}}})",
                   unit=units.PercentUnit, no_value="no allocation seen"),
            figure("Engine active", "Mean share of time in which an engine worked, of the GPUs that tell it.",
                   "cluster:gpu_engine_active_ratio:avg", "how well the engine was filled; see tensor and SM on GPU",
                   busy(MODEL), unit=units.PercentUnit),
            figure("Power", "Power of all boards, every model.", "node:gpu_power_watts:sum",
                   "the rest of the servers, and boards that tell no power",
                   f"sum(node:gpu_power_watts:sum{{{CLUSTER}}})", unit=units.Watt),
            figure("Cost per hour", "What the allocatable GPUs cost now, in the currency of the name.",
                   "gpuwatch_cost_per_hour", "GPUs without a known price",
                   f'sum by (currency) (gpuwatch_cost_per_hour{{{CLUSTER}, workload_namespace=~"$namespace"}})',
                   legend="{{currency}}", decimals=2, no_value="no price known"),
        )),
        ("Over time", (
            trend("Allocation and use", "Physical GPUs: reporting, allocated, and as many as were busy all the time.",
                  "cluster:gpus:count, cluster:gpus_allocated:sum, cluster:gpu_engine_active_ratio:avg",
                  "GPUs whose exporter is down: all three lines fall or end with them",
                  (f"sum(cluster:gpus:count{{{MODEL}}})", "reporting"),
                  (f"sum(cluster:gpus_allocated:sum{{{MODEL}}})", "allocated"),
                  (f"sum(cluster:gpu_engine_active_ratio:avg{{{MODEL}}} * cluster:gpus:count{{{MODEL}}})", "busy")),
            trend("Engine active by model", "Mean share of time in which an engine worked.",
                  "cluster:gpu_engine_active_ratio:avg", OWN_UNITS,
                  (busy(MODEL, " by (modelName)"), "{{modelName}}"), unit=units.PercentUnit),
        )),
        ("By namespace", (
            bars("Allocated devices by namespace", "Devices (GPUs and MIG instances) of the 20 largest Namespaces.",
                 "namespace:gpus_allocated:count", "allocations of GPUs whose exporter attaches no Pod labels",
                 (f"topk(20, sum by (namespace) (namespace:gpus_allocated:count{{{SPACE}}}))", "{{namespace}}"),
                 no_value="no allocation seen"),
            bars("Engine active by namespace", "Mean over their devices, of the 20 lowest Namespaces.",
                 "namespace:gpu_engine_active_ratio:avg", "shared GPUs apart: their value is the whole device's",
                 (f"bottomk(20, avg by (namespace) (namespace:gpu_engine_active_ratio:avg{{{SPACE}}}))",
                  "{{namespace}}"), unit=units.PercentUnit, no_value="no allocation seen"),
        )),
        ("Tables", (
            rows("Clusters", "Which cluster reports, and how old gpuwatch's last look at it is. Its name leads on.",
                 "node:gpus:count, gpuwatch_cycle_timestamp_seconds",
                 "clusters that sent nothing for six hours: they have no row", ("cluster",),
                 Column("Reporting", f"sum by (cluster) (node:gpus:count{{{CLUSTER}}})"),
                 Column("Missing", f"sum by (cluster) ({MISSING(CLUSTER)})", bounds=(None, 1)),
                 Column("Last look ago",
                        f"time() - max by (cluster) (gpuwatch_cycle_timestamp_seconds{{{CLUSTER}}} > 0)",
                        units.Seconds, (None, 600)), to=(("cluster", "nodes"),)),
            rows("Models", "GPUs of each model: how many report, are allocated, and how active their engines are.",
                 "cluster:gpus:count, cluster:gpus_allocated:sum, cluster:gpu_engine_active_ratio:avg", OWN_UNITS,
                 ("cluster", "modelName"),
                 Column("Reporting", f"sum by (cluster, modelName) (cluster:gpus:count{{{MODEL}}})"),
                 Column("Allocated", f"sum by (cluster, modelName) (cluster:gpus_allocated:sum{{{MODEL}}})"),
                 Column("Engine active", busy(MODEL, " by (cluster, modelName)"), units.PercentUnit), width=12),
            rows("Firing alerts", "Alerts about GPUs and gpuwatch that fire now; the name leads to its runbook.",
                 "ALERTS", "anything, where Prometheus has not loaded gpuwatch's rules",
                 ("severity", "alertname", "cluster", "node", "UUID"),
                 Column("", f"count by (severity, alertname, cluster, node, UUID)"
                            f' (ALERTS{{{CLUSTER}, alertname=~"Gpu.*", alertstate="firing"}})'),
                 no_value="none fires, or the rules are not loaded", to=(("alertname", "runbook"),), width=12),
        )),
    ),
)  # fmt: skip

TAINTED = f'label_replace(gpuwatch_taint_age_seconds{{{FOUND}}}, "node", "$1", "gpu_node", "(.+)")'
ALLOCATABLE_GAP = (
    f"sum by (cluster, node) (kube_node_status_capacity{{{NODE}, {RESOURCES}}})"
    f" - sum by (cluster, node) (kube_node_status_allocatable{{{NODE}, {RESOURCES}}})"
)

NODES = Board(
    "nodes", "Nodes", "Which Node is odd: silent, hot, short of GPUs, tainted.", ("cluster", "node"),
    (
        ("Now", (
            figure("Nodes reporting", "Nodes with a GPU in telemetry.", "node:gpus:count", "Nodes without an exporter",
                   f"count(node:gpus:count{{{NODE}}})", width=6),
            figure("GPUs missing", "GPUs that reported within six hours and do not now.", "node:gpus:count",
                   "GPUs that have been gone for more than six hours", f"sum({MISSING(NODE)})", bounds=(None, 1),
                   good=True, runbook="GpuMissing", width=6),
            figure("Capacity not allocatable", "Devices of the Nodes' capacity that Kubernetes does not offer.",
                   "kube_node_status_capacity and _allocatable of kube-state-metrics",
                   "what the device plugin never registered", f"sum({ALLOCATABLE_GAP})", bounds=(1, None),
                   runbook="GpuAllocatableBelowCapacity", no_value="no kube-state-metrics", width=6),
            figure("Tainted by gpuwatch", "Nodes on which a taint of gpuwatch stands, in the whole cluster.",
                   "gpuwatch_tainted_nodes", "taints and cordons of others",
                   f"sum(gpuwatch_tainted_nodes{{{CLUSTER}}})", no_value=NO_GPUWATCH, width=6),
        )),
        ("Nodes", (
            rows("Nodes", "One row for each Node that has or had GPUs; its name leads to its GPUs.",
                 "node:gpus:count, gpu:gpu_allocated_ratio:sum, node:gpu_engine_active_ratio:avg, "
                 "gpu:gpu_temperature_celsius:max, node:gpu_power_watts:sum, gpuwatch_taint_age_seconds",
                 "Nodes that never reported; an empty cell is a value that nothing tells", ("cluster", "node"),
                 Column("GPUs", f"sum by (cluster, node) (node:gpus:count{{{NODE}}})"),
                 Column("Missing", f"sum by (cluster, node) ({MISSING(NODE)})", bounds=(None, 1)),
                 Column("Allocated", f"sum by (cluster, node) (gpu:gpu_allocated_ratio:sum{{{NODE}}})"),
                 Column("Engine active", f"avg by (cluster, node) (node:gpu_engine_active_ratio:avg{{{NODE}}})",
                        units.PercentUnit),
                 Column("Hottest", f"max by (cluster, node) (gpu:gpu_temperature_celsius:max{{{NODE}}})",
                        units.Celsius),
                 Column("Power", f"sum by (cluster, node) (node:gpu_power_watts:sum{{{NODE}}})", units.Watt),
                 Column("Not allocatable", ALLOCATABLE_GAP, bounds=(1, None)),
                 Column("Tainted for", f"max by (cluster, node) ({TAINTED})", units.Seconds), to=(("node", "gpu"),), height=12),
        )),
        ("Over time", (
            trend("Engine active, the ten lowest", "Mean over the Node's GPUs.", "node:gpu_engine_active_ratio:avg",
                  OWN_UNITS, (f"bottomk(10, node:gpu_engine_active_ratio:avg{{{NODE}}})", "{{node}}"),
                  unit=units.PercentUnit),
            trend("Hottest GPU, the ten hottest", "The highest temperature of the Node's GPUs.",
                  "gpu:gpu_temperature_celsius:max", "how far the model may go; see health for its peers",
                  (f"topk(10, max by (cluster, node) (gpu:gpu_temperature_celsius:max{{{NODE}}}))", "{{node}}"),
                  unit=units.Celsius),
            trend("Power, the ten highest", "Sum over the Node's boards.", "node:gpu_power_watts:sum",
                  "the rest of the server", (f"topk(10, node:gpu_power_watts:sum{{{NODE}}})", "{{node}}"),
                  unit=units.Watt),
            trend("Missing GPUs", "GPUs that reported within six hours before and did not then.", "node:gpus:count",
                  "GPUs that have been gone for more than six hours",
                  (f"sum by (cluster, node) ({MISSING(NODE)}) > 0", "{{node}}"),
                  no_value="no GPU left, or no telemetry: see GPUs missing"),
        )),
    ),
)  # fmt: skip


def _card(title: str, what: str, blind: str, unit: str, *series: tuple[str, str], **more: object):  # type: ignore[no-untyped-def]
    queries = tuple((f"{name}{{{CARD}}}", f"{{{{node}}}} GPU {{{{gpu}}}}{word}") for name, word in series)
    return trend(title, what, ", ".join(name for name, _ in series), blind, *queries, **{"unit": unit, "width": 8, **more})


INSTANCE = " {{GPU_I_ID}}"
GPU = Board(
    "gpu", "GPU", "What one card did: for a case with the vendor, choose it by Node and UUID.",
    ("cluster", "node", "model", "uuid"),
    (
        ("Now: the worst of the chosen", (
            figure("GPUs", "Chosen GPUs that report.", "gpu:gpu_temperature_celsius:max", "GPUs that tell no temperature",
                   f"count(gpu:gpu_temperature_celsius:max{{{CARD}}})"),
            figure("Last XID", "The highest of the last XIDs; 0 means that the driver has told none since it was loaded.",
                   "gpu:gpu_xid:last", "XIDs before the last one, and when it was",
                   f"max(gpu:gpu_xid:last{{{CARD}}})", bounds=(1, None), runbook="GpuXidFatal"),
            figure("Uncorrected ECC, 1 h", "New uncorrected memory errors within an hour.",
                   "gpu:gpu_ecc_uncorrected:increase1h", "GPUs without ECC",
                   f"sum(gpu:gpu_ecc_uncorrected:increase1h{{{CARD}}})", bounds=(None, 1),
                   runbook="GpuUncorrectableEcc", decimals=0),
            figure("Row remap failed", "GPUs that could not replace a row of memory.", "gpu:gpu_row_remap_failed:max",
                   "GPUs that do not remap rows", f"sum(gpu:gpu_row_remap_failed:max{{{CARD}}} > bool 0)",
                   bounds=(None, 1), runbook="GpuRowRemapFailed"),
            figure("Row remap pending", "GPUs that will replace a row of memory at their next reset.",
                   "gpu:gpu_row_remap_pending:max", "GPUs that do not remap rows",
                   f"sum(gpu:gpu_row_remap_pending:max{{{CARD}}} > bool 0)", bounds=(1, None),
                   runbook="GpuRowRemapPending"),
            figure("Recovery action", "What the driver asks for.", "gpu:gpu_recovery_action:max",
                   "drivers and exporters that do not tell it", f"max(gpu:gpu_recovery_action:max{{{CARD}}})",
                   bounds=(1, None), runbook="GpuRecoveryActionNeeded", no_value="not told",
                   names={"0": "none", "1": "reset GPU", "2": "reboot Node", "3": "drain P2P", "4": "drain, reset"}),
            figure("Hottest", "Temperature of the hottest.", "gpu:gpu_temperature_celsius:max",
                   "how far the model may go", f"max(gpu:gpu_temperature_celsius:max{{{CARD}}})", unit=units.Celsius),
            figure("Thermal throttling", "The highest share of 15 minutes slowed down for heat.",
                   "gpu:gpu_thermal_throttle_ratio:rate15m", "the power cap, which is no fault",
                   f"max(gpu:gpu_thermal_throttle_ratio:rate15m{{{CARD}}})", unit=units.PercentUnit,
                   bounds=(0.1, None), runbook="GpuThermalThrottle"),
        )),
        ("Use", (
            _card("Engine active", "Share of time in which an engine worked; per MIG instance where there are some.",
                  "how many SMs worked", units.PercentUnit, ("device:gpu_engine_active_ratio:max", INSTANCE)),
            _card("SM active", "Share of SMs that had work, over time.", "GPUs without profiling metrics",
                  units.PercentUnit, ("device:gpu_sm_active_ratio:max", INSTANCE), no_value="not exported"),
            _card("Tensor active", "Share of cycles in which tensor cores worked.", "GPUs without profiling metrics",
                  units.PercentUnit, ("device:gpu_tensor_active_ratio:max", INSTANCE), no_value="not exported"),
            _card("Memory bandwidth", "Share of cycles in which device memory moved data.",
                  "GPUs without profiling metrics", units.PercentUnit, ("device:gpu_dram_active_ratio:max", INSTANCE),
                  no_value="not exported"),
            _card("Memory used", "Memory in use, and all there is.", "what a framework reserved and does not use",
                  units.BytesIEC, ("device:gpu_memory_used_bytes:max", INSTANCE + " used"),
                  ("device:gpu_memory_total_bytes:max", INSTANCE + " total")),
            _card("SM clock", "Clock of the SMs.", "why it is low", units.Hertz, ("gpu:gpu_sm_clock_hertz:max", "")),
        )),
        ("Power, heat, links", (
            _card("Power", "Power of the board, and its limit.", "the rest of the server", units.Watt,
                  ("gpu:gpu_power_watts:max", ""), ("gpu:gpu_power_limit_watts:max", " limit")),
            _card("Temperature", "Of the GPU and of its memory.", "how far the model may go", units.Celsius,
                  ("gpu:gpu_temperature_celsius:max", ""), ("gpu:gpu_memory_temperature_celsius:max", " memory")),
            _card("Throttling", "Share of 15 minutes slowed down for heat, or braked by the power supply.",
                  "the power cap, which is no fault", units.PercentUnit,
                  ("gpu:gpu_thermal_throttle_ratio:rate15m", " heat"), ("gpu:gpu_power_brake_ratio:rate15m", " brake")),
            _card("XID", "The last XID, a point at each moment.", "XIDs before the last one", units.NoUnit,
                  ("gpu:gpu_xid:last", ""), points=True),
            _card("Corrected ECC errors", "Corrected memory errors a second, over an hour.", "GPUs without ECC",
                  units.EventsPerSecond, ("gpu:gpu_ecc_corrected:rate1h", "")),
            _card("Link errors", "PCIe replays and NVLink errors a second, over 15 minutes.", "which link it was",
                  units.EventsPerSecond, ("gpu:gpu_pcie_replays:rate15m", " PCIe"),
                  ("gpu:gpu_nvlink_errors:rate15m", " NVLink")),
        )),
        ("Who", (
            trend("Pods on the chosen GPUs", "1 for each Pod while it has a device.", "device:gpu_workload:info",
                  "Pods on GPUs whose exporter attaches no Pod labels",
                  (f"max by (cluster, namespace, pod) (device:gpu_workload:info{{{CARD}}})", "{{namespace}}/{{pod}}"),
                  no_value="no allocation seen"),
            rows("MIG instances", "Each instance of the chosen cards.", "device:gpu_engine_active_ratio:max, "
                 "device:gpu_memory_used_bytes:max", "instances that tell neither",
                 ("cluster", "node", "UUID", "GPU_I_ID", "GPU_I_PROFILE"),
                 Column("Engine active", "max by (cluster, node, UUID, GPU_I_ID, GPU_I_PROFILE)"
                        f' (device:gpu_engine_active_ratio:max{{{CARD}, GPU_I_ID!=""}})', units.PercentUnit),
                 Column("Memory used", "max by (cluster, node, UUID, GPU_I_ID, GPU_I_PROFILE)"
                        f' (device:gpu_memory_used_bytes:max{{{CARD}, GPU_I_ID!=""}})', units.BytesIEC),
                 no_value="no MIG instance reports", width=12),
            rows("Pods now", "Who has the chosen GPUs; the Pod's name leads to its board.", "device:gpu_workload:info",
                 "Pods on GPUs whose exporter attaches no Pod labels",
                 ("cluster", "namespace", "pod", "node", "UUID", "GPU_I_ID"),
                 Column("", "max by (cluster, namespace, pod, node, UUID, GPU_I_ID)"
                        f" (device:gpu_workload:info{{{CARD}}})"), no_value="no allocation seen", to=(("pod", "workload"),)),
        )),
    ),
)  # fmt: skip

BY_CARD = "cluster, node, UUID, gpu, modelName"


def _worst(title: str, what: str, blind: str, columns: tuple[Column, ...], source: str, none: str):  # type: ignore[no-untyped-def]
    return rows(title, what, source, blind, ("cluster", "node", "UUID", "gpu", "modelName"), *columns, no_value=none,
                to=(("UUID", "gpu"),), width=12)  # fmt: skip


HEALTH = Board(
    "health", "Health", "What is broken, what is unknown, and whether it is one card or the fleet.",
    ("cluster", "namespace", "node", "model"),
    (
        ("Now", (
            *(
                figure(f"{severity.capitalize()} findings", f"Findings of severity {severity} in the whole cluster.",
                       "gpuwatch_findings", "devices that could not be judged",
                       counted(f'gpuwatch_findings{{{CLUSTER}, severity="{severity}"}}'),
                       bounds=bounds, good=good, runbook=runbook, no_value="unknown", width=4)
                for severity, bounds, good, runbook in (
                    ("critical", (None, 1), True, "GpuwatchCriticalFinding"), ("warning", None, False, ""))
            ),
            figure("Health unknown", "Devices whose health could not be judged.", "gpuwatch_device_health_unknown",
                   "devices that gpuwatch has not seen for long",
                   "sum(" + judged(f'sum by (cluster) (gpuwatch_unknown{{{CLUSTER}, subject="device_health"}})', "known")
                   + ")", bounds=(1, None),
                   runbook="GpuwatchHealthUnknown", no_value="unknown", width=4),
            figure("GPUs with an XID", "GPUs that report and whose last XID is not 0.", "gpu:gpu_xid:last",
                   "when it was, and whether it was the application's", f"sum(gpu:gpu_xid:last{{{HARD}}} > bool 0)",
                   bounds=(1, None), runbook="GpuXidFatal", width=4),
            figure("GPUs throttled by heat", "GPUs slowed down for heat for more than a tenth of 15 minutes.",
                   "gpu:gpu_thermal_throttle_ratio:rate15m", "the power cap, which is no fault",
                   f"sum(gpu:gpu_thermal_throttle_ratio:rate15m{{{HARD}}} > bool 0.1)", bounds=(1, None),
                   runbook="GpuThermalThrottle", width=4),
            figure("Row remap failed", "GPUs that could not replace a row of memory.", "gpu:gpu_row_remap_failed:max",
                   "GPUs that do not remap rows", f"sum(gpu:gpu_row_remap_failed:max{{{HARD}}} > bool 0)",
                   bounds=(None, 1), runbook="GpuRowRemapFailed", width=4),
        )),
        ("Findings", (
            bars("Findings by kind", "Findings of the last cycle in the whole cluster.", "gpuwatch_findings",
                 "devices that could not be judged",
                 (f"sum by (kind, severity) (gpuwatch_findings{{{CLUSTER}}})",
                  "{{kind}} ({{severity}})"),
                 no_value="no finding is told: none of what could be judged, or gpuwatch does not look"),
            rows("Unknown", "Why the health of devices could not be judged.", "gpuwatch_device_health_unknown",
                 "devices that gpuwatch has not seen for long", ("cluster", "gpu_node", "reason"),
                 Column("Devices", f"sum by (cluster, gpu_node, reason) (gpuwatch_device_health_unknown{{{FOUND}}})"),
                 no_value="no reason is told: all could be judged, or gpuwatch does not look", width=12),
            FINDINGS,
        )),
        ("GPUs", (
            _worst("XIDs", "GPUs whose last XID is not 0; docs/rules.md tells what each means.", "when it was",
                   (Column("Last XID", f"max by ({BY_CARD}) (gpu:gpu_xid:last{{{HARD}}} > 0)"),), "gpu:gpu_xid:last",
                   "no XID is told: none, or no telemetry"),
            _worst("Memory errors", "GPUs with uncorrected errors, or with rows to remap.", "GPUs without ECC",
                   (Column("Uncorrected, 1 h", f"max by ({BY_CARD}) (gpu:gpu_ecc_uncorrected:increase1h{{{HARD}}} > 0)",
                           bounds=(None, 1)),
                    Column("Since reload",
                           f"max by ({BY_CARD}) (gpu:gpu_ecc_uncorrected_since_reload:max{{{HARD}}} > 0)",
                           bounds=(1, None)),
                    Column("Remap failed", f"max by ({BY_CARD}) (gpu:gpu_row_remap_failed:max{{{HARD}}} > 0)",
                           bounds=(None, 1)),
                    Column("Remap pending", f"max by ({BY_CARD}) (gpu:gpu_row_remap_pending:max{{{HARD}}} > 0)",
                           bounds=(1, None))),
                   "gpu:gpu_ecc_*, gpu:gpu_row_remap_*", "no error is told: none, or no telemetry"),
            trend("Hotter than its peers, the ten first", "Temperature above the median of the model in the cluster.",
                  "gpu:gpu_temperature_celsius:max", "whether the peers work as hard",
                  (f"topk(10, gpu:gpu_temperature_celsius:max{{{HARD}}} - on (cluster, modelName) group_left ()"
                   f" quantile by (cluster, modelName) (0.5, gpu:gpu_temperature_celsius:max{{{MODEL}}}))",
                   "{{node}} GPU {{gpu}}"), unit=units.Celsius),
            trend("Throttling, the ten first", "Share of 15 minutes slowed down for heat.",
                  "gpu:gpu_thermal_throttle_ratio:rate15m", "the power cap, which is no fault",
                  (f"topk(10, gpu:gpu_thermal_throttle_ratio:rate15m{{{HARD}}})", "{{node}} GPU {{gpu}}"),
                  unit=units.PercentUnit),
            trend("Corrected ECC, the ten first", "Corrected memory errors a second, over an hour.",
                  "gpu:gpu_ecc_corrected:rate1h", "GPUs without ECC",
                  (f"topk(10, gpu:gpu_ecc_corrected:rate1h{{{HARD}}})", "{{node}} GPU {{gpu}}"),
                  unit=units.EventsPerSecond),
            trend("Links, the ten first", "PCIe replays and NVLink errors a second, over 15 minutes.",
                  "gpu:gpu_pcie_replays:rate15m, gpu:gpu_nvlink_errors:rate15m", "which link it was",
                  (f"topk(10, gpu:gpu_pcie_replays:rate15m{{{HARD}}})", "{{node}} GPU {{gpu}} PCIe"),
                  (f"topk(10, gpu:gpu_nvlink_errors:rate15m{{{NODE}}})", "{{node}} {{UUID}} NVLink"),
                  unit=units.EventsPerSecond),
        )),
    ),
)  # fmt: skip
