"""PromQL that several panels share: the pieces of the boards' YAML files. grafana.py adds the variables' selectors."""

from gpuwatch.facts.model.ledger import Row

DEVICE = "cluster, node, UUID, GPU_I_ID"

# Where an exporter stops, its GPUs count as missing for six hours, as long as the alert GpuMissing remembers them.
BEFORE = "max_over_time(node:gpus:count[6h])"
MISSING = f"({BEFORE} - node:gpus:count) or ({BEFORE} unless node:gpus:count)"

GPUS = 'resource=~"nvidia_com_.*|amd_com_gpu|gpu_intel_com_.*|habana_ai_gaudi"'
NOT_ALLOCATABLE = (
    f"sum by (cluster, node) (kube_node_status_capacity{{{GPUS}}})"
    f" - sum by (cluster, node) (kube_node_status_allocatable{{{GPUS}}})"
)

HOLDS = f"group by ({DEVICE}, namespace, pod) (device:gpu_workload:info)"
"""Which chosen Pods have which devices."""
SHARERS = f'count by ({DEVICE}) (group by ({DEVICE}, namespace, pod) (device:gpu_workload:info{{cluster=~"$cluster"}}))'
"""How many Pods have a device, chosen or not."""


def devices(state: str) -> str:
    return f'(sum by (cluster) (gpuwatch_devices{{state="{state}"}}) > 0)'


def judged(expression: str, state: str = "reporting") -> str:
    """`expression`, only of clusters in which a device reports to gpuwatch: else nobody knows, and 0 would be a lie."""
    return f"({expression}) and on (cluster) {devices(state)}"


def counted(expression: str) -> str:
    """How many findings there are: 0 where a device reports and nothing is found, no number where none reports.

    Findings that are told always count: that all telemetry is gone is a critical one.
    """
    return f"sum(sum by (cluster) ({expression}) or 0 * {devices('reporting')})"


def busy(by: str = "") -> str:
    """Mean engine activity of the GPUs that tell it, over models and clusters."""
    average = "cluster:gpu_engine_active_ratio:avg"
    total = f"sum by ({by})" if by else "sum"
    return f"{total} ({average} * cluster:gpus:count) / {total} (cluster:gpus:count and {average})"


def of_pods(series: str) -> str:
    """A device's value for each Pod that has it. A shared device gives each of its Pods the same value."""
    return f"{HOLDS} * on ({DEVICE}) group_left () max by ({DEVICE}) ({series})"


def cost(state: str, by: str = "") -> str:
    """Per hour, by currency and other labels. Only of judged clusters: without telemetry nobody knows what is idle."""
    labels = f"currency, {by}" if by else "currency"
    of_clusters = f'sum by (cluster, {labels}) (gpuwatch_cost_per_hour{{state="{state}"}})'
    return f"sum by ({labels}) ({judged(of_clusters)})"


def saving(confidence: str, by: str = "") -> str:
    """As `cost`; what saves nothing is left out."""
    labels = f"currency, {by}" if by else "currency"
    of_clusters = f'sum by (cluster, {labels}) (gpuwatch_saving_per_hour{{confidence="{confidence}"}}) > 0'
    return f"sum by ({labels}) ({judged(of_clusters)})"


def spent(counter: str, by: str, group: str = "", *, unknown: str = "") -> str:
    """GPU-hours or cost: by how much a counter of the ledger rose in the time shown. It outlasts restarts, and each
    leader goes on with it, so that the difference counts each hour once; `increase` would miss what a new series begins
    with."""
    rows = "|".join(row for row in Row if row.group == group)
    selected = ", ".join(
        f'{label}="{value}"' if label == "unknown" else f'{label}=~"{value}"'
        for label, value in (("row", rows), ("unknown", unknown))
        if value
    )
    series = f"gpuwatch_ledger_{counter}_total{{{selected}}}" if selected else f"gpuwatch_ledger_{counter}_total"
    now, before = (
        f"sum by ({by}) (max by (cluster, workload_namespace, gpu_model, row, unknown, currency) ({series}{offset}))"
        for offset in ("", " offset $__range")
    )
    hours = " / 3600" if counter == "gpu_seconds" else ""
    return f"({now} - ({before} or 0 * {now})){hours} > 0"


def slots(gpus: int) -> str:
    """Gangs of so many GPUs that would start now."""
    labels = "cluster, gpu_model, accelerator, topology"
    found = f'max by ({labels}) (gpuwatch_slots{{gpus="{gpus}"}})'
    return f'label_replace({found}, "topology", "anywhere", "topology", "")'


QUERIES = {
    "missing": MISSING,
    "not_allocatable": NOT_ALLOCATABLE,
    "holds": HOLDS,
    "sharers": SHARERS,
    **{each.__name__: each for each in (judged, counted, busy, of_pods, cost, saving, spent, slots)},
}
"""The pieces that boards may use, by name."""
