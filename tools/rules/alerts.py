# ruff: noqa: E501 - a text or an expression in one piece can be searched for
"""Every alert that gpuwatch ships, and the two rule files they go to.

Alerts stand on the recorded series (rules/gpuwatch-recording.yaml), on kube-state-metrics and on gpuwatch's own metrics
(docs/names.md). A comparison with NaN or with a missing series is no sample, so a missing metric never fires and lets
what fires end; where a short gap must not end it, `keep_firing` bridges the gap.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import dedent, indent, wrap
from typing import Any

import yaml

from gpuwatch.catalog.xids import XidClass, xids

RUNBOOKS = "https://github.com/gpuwatch/gpuwatch/blob/main/docs/runbooks"

GPU_RESOURCES = (
    "nvidia_com_gpu|nvidia_com_gpu_shared|nvidia_com_mig_.+|amd_com_gpu|gpu_intel_com_(i915|xe)|habana_ai_gaudi"
)
"""Resources of GPUs as kube-state-metrics spells them."""
EXPORTER_JOBS = ".*(dcgm|gpu|amd|xpu|gaudi|habana).*exporter.*|.*xpumd?.*"
"""Scrape jobs of GPU exporters."""

CARD = "cluster, node, UUID, gpu, modelName"
TEXTS = {
    "<GPU>": "GPU {{ $labels.gpu }} ({{ $labels.modelName }}, {{ $labels.UUID }}) on <NODE>",
    "<NODE>": "Node {{ $labels.node }}<OF_CLUSTER>",
    "<GPUWATCH>": "gpuwatch in Namespace {{ $labels.namespace }}<OF_CLUSTER>",
    "<OF_CLUSTER>": "{{ with $labels.cluster }} of cluster {{ . }}{{ end }}",
    "<PODS>": "{{ with query (printf \"max by (namespace, pod) (device:gpu_workload:info{UUID='%s'})\" $labels.UUID) }}"
    " Pods on it:{{ range . }} {{ .Labels.namespace }}/{{ .Labels.pod }}{{ end }}.{{ end }}",
    "<RECOVERY>": "{{ if eq $value 1.0 }}a reset of the GPU{{ else if eq $value 2.0 }}a reboot of the Node"
    "{{ else if eq $value 6.0 }}a reset of the GPU's bus{{ else }}a reboot of the system{{ end }}",
}
"""What stands in summaries and descriptions for longer templates, in the order in which they are put in."""


@dataclass(frozen=True, kw_only=True)
class Alert:
    """One alert. wait: `for`. why: where the threshold and the wait come from. off: why it is not on by default;
    '' where it is. keep_firing: `keep_firing_for`; '' for none."""

    name: str
    expr: str
    wait: str
    severity: str
    summary: str
    description: str
    why: str
    off: str = ""
    keep_firing: str = ""


def host(expr: str) -> str:
    """The host as `node`, as the recorded series have it: the first of what scraping and exporter call it.

    `Hostname` is dcgm-exporter's before 4.8.3, `hostname` since.
    """
    joined = f'label_join({expr}, "first", ";", "node", "kubernetes_node", "Hostname", "hostname")'
    return f'label_replace({joined}, "node", "$1", "first", ";*([^;]+).*")'


def moved(expr: str, **labels: str) -> str:
    """Labels under another name: `namespace="workload_namespace"` is the workload's Namespace as `namespace`."""
    for new, old in labels.items():
        expr = f'label_replace({expr}, "{new}", "$1", "{old}", "(.*)")'
    return expr


def xid_codes(xid_class: XidClass) -> list[int]:
    return sorted(code for code, xid in xids().items() if xid.xid_class is xid_class)


def xid_filter(xid_class: XidClass) -> str:
    """The XIDs of a class, as values of the gauge. Neighbours are one range, to keep it short."""
    runs: list[list[int]] = []
    for code in xid_codes(xid_class):
        if runs and runs[-1][-1] == code - 1:
            runs[-1].append(code)
        else:
            runs.append([code])
    terms = (f"== {run[0]}" if len(run) == 1 else f">= {run[0]} <= {run[-1]}" for run in runs)
    return "\n  or ".join(f"gpu:gpu_xid:last {term}" for term in terms)


def new_xid(xid_class: XidClass, window: str) -> str:
    """An XID of the class that came within the window.

    The gauge keeps the last XID until exporter or driver start anew, so its value alone is no news. It is none where
    it was the same a window ago (a gap of up to six hours in the telemetry is bridged), did not change meanwhile, and
    was in the telemetry whenever the GPU was: an exporter that started anew shows no XID, or 0, until the next one.
    """
    return dedent("""\
        (
          {codes}
        )
        unless (
          (gpu:gpu_xid:last == last_over_time(gpu:gpu_xid:last[6h] offset {window}))
          unless changes(gpu:gpu_xid:last[{window}]) > 0
          unless count_over_time(gpu:gpu_xid:last[{window}])
            < count_over_time(gpu:gpu_temperature_celsius:max[{window}])
        )""").format(codes=xid_filter(xid_class).replace("\n", "\n  "), window=window)


def xid_meaning() -> str:
    """What each fatal XID means, as a template of its value."""
    branches = (f"if eq $value {code}.0 }}}}{xids()[code].reason}" for code in xid_codes(XidClass.FATAL))
    return "{{ " + "{{ else ".join(branches) + "{{ end }}"


def application_xid() -> str:
    """With one alert for each Pod that had the GPU ten minutes ago: not for one that came after the XID."""
    return dedent("""\
        max by (cluster, node, UUID, namespace, pod) (device:gpu_workload:info offset 10m)
          * on (cluster, node, UUID) group_left (gpu, modelName) (
            {xid}
          )
        or (
          {bare}
        ) unless on (cluster, node, UUID) device:gpu_workload:info offset 10m""").format(
        xid=new_xid(XidClass.APPLICATION, "10m").replace("\n", "\n    "),
        bare=new_xid(XidClass.APPLICATION, "10m").replace("\n", "\n  "),
    )


def nvlink(kind: str, label: str, per_minute: int) -> str:
    """Links count by GPU and link. Rows of a link say `gpu_uuid` in the older list."""
    name = f"DCGM_FI_DEV_NVLINK_{kind}_ERROR"
    rows = host(f"(rate({name}_COUNT_TOTAL[15m]) or rate({name}_TOTAL[15m]))")
    total = f'sum by (cluster, node, UUID) (label_replace({rows}, "UUID", "$1", "gpu_uuid", "(.+)"))'
    return f'label_replace({total} * 60 > {per_minute}, "errors", "{label}", "", "")'


def hardware() -> Iterator[Alert]:
    yield Alert(
        name="GpuXidFatal",
        expr=new_xid(XidClass.FATAL, "1h"),
        wait="0m",
        severity="critical",
        summary="XID {{ $value }} on <GPU>",
        description="<GPU> reported XID {{ $value }}: <XID>.<PODS> Drain it and follow the runbook.",
        why="Class `fatal` of gpuwatch's catalog (src/gpuwatch/catalog/xids.py). One hour as health.change_window_seconds.",
    )
    yield Alert(
        name="GpuXidNeedsSecondSign",
        expr=new_xid(XidClass.CORROBORATE, "1h"),
        wait="0m",
        severity="info",
        summary="XID {{ $value }} on <GPU>",
        description="<GPU> reported XID {{ $value }}. By itself it does not say that the GPU is broken. Look for a second"
        " sign: a recovery action, a failed health check, memory errors, or the same again.",
        why="Class `corroborate` of gpuwatch's catalog: authorities contradict each other on these.",
    )
    yield Alert(
        name="GpuXidApplication",
        expr=application_xid(),
        wait="0m",
        severity="info",
        summary="XID {{ $value }}, most likely by a program, on <GPU>",
        description="A program on <GPU> caused XID {{ $value }}."
        "{{ with $labels.pod }} Pod {{ $labels.namespace }}/{{ . }} had the GPU ten minutes before.{{ end }}"
        " The GPU needs no reset.",
        why="Class `application` of gpuwatch's catalog. Ten minutes, so that it names who had the GPU before the XID.",
    )
    yield Alert(
        name="GpuUncorrectableEcc",
        expr="gpu:gpu_ecc_uncorrected:increase1h > 0",
        wait="0m",
        severity="critical",
        summary="New uncorrectable memory errors on <GPU>",
        description='<GPU> had {{ printf "%.0f" $value }} new uncorrectable memory errors within one hour.<PODS>'
        " What ran on it may have wrong data.",
        why="Any new one. One hour as health.change_window_seconds.",
    )
    yield Alert(
        name="GpuUncorrectableEccNotReset",
        expr="gpu:gpu_ecc_uncorrected_since_reload:max > 0\nunless gpu:gpu_ecc_uncorrected:increase1h > 0",
        wait="15m",
        severity="warning",
        summary="Not reset since uncorrectable memory errors: <GPU>",
        description='<GPU> has {{ printf "%.0f" $value }} uncorrectable memory errors since its driver was loaded, none of'
        " them in the last hour. Reset it at the next idle moment.",
        why="The volatile count starts at 0 with the driver: above 0 there was no reset since.",
    )
    yield Alert(
        name="GpuCorrectedEccStorm",
        expr=dedent("""\
            gpu:gpu_ecc_corrected:rate1h > 0.1
            and gpu:gpu_ecc_corrected:rate1h
              > on (cluster, modelName) group_left () 10 * quantile by (cluster, modelName) (0.5, gpu:gpu_ecc_corrected:rate1h)
            and on (cluster, modelName) count by (cluster, modelName) (gpu:gpu_ecc_corrected:rate1h) >= 5"""),
        wait="30m",
        severity="warning",
        summary="Many corrected memory errors on <GPU>",
        description='<GPU> has {{ printf "%.2f" $value }} corrected memory errors a second, more than ten times the median'
        " of its model.",
        why="0.1 a second is 360 an hour; healthy GPUs have a few a day. Five peers as health.min_peers: with fewer a"
        " median says little.",
    )
    yield Alert(
        name="GpuRowRemapFailed",
        expr="gpu:gpu_row_remap_failed:max > 0",
        wait="1m",
        severity="critical",
        summary="A memory row could not be remapped on <GPU>",
        description="<GPU> could not remap a memory row: its spare rows are used up. It has to be replaced.<PODS>",
        why="NVIDIA's criterion for an RMA. 1m: one odd sample does not wake anybody.",
    )
    yield Alert(
        name="GpuRowRemapPending",
        expr="gpu:gpu_row_remap_pending:max > 0",
        wait="15m",
        severity="warning",
        summary="A memory row waits to be remapped on <GPU>",
        description="<GPU> will remap a memory row at its next reset. Reset it when it is idle. Nothing has to be evicted.",
        why="Not urgent (NVIDIA: at the next idle moment). 15m leaves out a reset that is under way.",
    )
    yield Alert(
        name="GpuRecoveryActionNeeded",
        expr="gpu:gpu_recovery_action:max == 1\n  or gpu:gpu_recovery_action:max == 2\n  or gpu:gpu_recovery_action:max >= 6 <= 7",
        wait="1m",
        severity="critical",
        summary="The driver asks for <RECOVERY>: <GPU>",
        description="The driver of <GPU> asks for <RECOVERY> (recovery action {{ $value }}).<PODS>",
        why="Values of NVML's recovery action; nothing knows a GPU's state better than its driver. 5 is left out: idle"
        " NVLink domains show it for weeks (NVIDIA/aicr#2641). 3 and 4: GpuDrainNeeded.",
    )
    yield Alert(
        name="GpuDrainNeeded",
        expr="gpu:gpu_recovery_action:max >= 3 <= 4",
        wait="1m",
        severity="warning",
        summary="The driver asks to drain <GPU>",
        description="The driver of <GPU> asks to"
        "{{ if eq $value 3.0 }} drain peer-to-peer traffic, then to look again{{ else }} drain it and then reset it{{ end }}"
        " (recovery action {{ $value }}).",
        why="Work on it may end by itself first: docs/rules.md#healthrecovery_action calls 3 and 4 a warning.",
    )
    watch = host('DCGM_EXP_GPU_HEALTH_STATUS{health_watch!~"ALL|POWER|THERMAL"}')
    yield Alert(
        name="GpuHealthCheckFailed",
        expr=f"max by ({CARD}, health_watch) (\n  {watch}\n) == 20",
        wait="5m",
        severity="warning",
        summary="DCGM's health check {{ $labels.health_watch }} fails on <GPU>",
        description="DCGM's health check {{ $labels.health_watch }} says FAIL ({{ $value }}) for <GPU>.",
        why="20 is FAIL (dcgm_structs.h), 10 a warning. POWER and THERMAL fail for any violation within a minute"
        " (NVSentinel#1447), ALL remembers XIDs until the host engine restarts.",
    )
    yield Alert(
        name="GpuThermalThrottle",
        expr="gpu:gpu_thermal_throttle_ratio:rate15m > 0.1",
        wait="15m",
        severity="warning",
        summary="Slowed down by heat: <GPU>",
        description="<GPU> is slowed down by heat {{ $value | humanizePercentage }} of the time."
        " A synchronous job on it is as slow as this GPU.",
        why="health.thermal_duty_ratio = 0.1 in two windows of 15 minutes.",
    )
    yield Alert(
        name="GpuPowerBrake",
        expr="gpu:gpu_power_brake_ratio:rate15m > 0.1",
        wait="15m",
        severity="warning",
        summary="Slowed down by the power brake: <GPU>",
        description="The power supply's alarm line slows down <GPU> {{ $value | humanizePercentage }} of the time.",
        why="Milder than health.power_brake_duty_ratio = 0.05, so that gpuwatch's finding comes first; a healthy machine"
        " never brakes. The power cap, which is normal, is not in it.",
    )
    yield Alert(
        name="GpuThermalMarginGone",
        expr=f"{margin('!~')} <= -2\nor\n{margin('=~')} <= -3",
        wait="5m",
        severity="warning",
        summary="At its slowdown temperature: <GPU>",
        description="The temperature margin of <GPU> is {{ $value }} °C: it is as hot as it may be.",
        why="Margin at which hardware slows down: -2 °C (H100, GB200, L40S), -3 °C on B200 (NVSentinel's table).",
    )
    yield Alert(
        name="GpuTemperatureHigh",
        expr="gpu:gpu_temperature_celsius:max > 85",
        wait="10m",
        severity="warning",
        summary="{{ $value }} °C: <GPU>",
        description="<GPU> has {{ $value }} °C.",
        why="85 °C is near the slowdown temperature of many cards, and far from that of others.",
        off="What is too hot differs by model and cooling; GpuThermalThrottle and GpuThermalMarginGone know it by the card.",
    )
    yield Alert(
        name="GpuPcieReplays",
        expr="gpu:gpu_pcie_replays:rate15m * 60 > 30.72",
        wait="30m",
        severity="warning",
        summary="The PCIe link resends too much: <GPU>",
        description='<GPU> resends {{ printf "%.0f" $value }} PCIe packets a minute. A link of 16 lanes of generation 5 may'
        " resend 31.",
        why="DCGM expects 1.92 a minute and lane of generation 5, so 30.72 for 16 lanes (health.pcie_replay). Too mild for"
        " slower links, of which gpuwatch's own finding knows the speed.",
    )
    kinds = (
        ("REPLAY", "replay", 1),
        ("RECOVERY", "recovery", 1),
        ("CRC_FLIT", "CRC flit", 6000),
        ("CRC_DATA", "CRC data", 6000),
    )
    yield Alert(
        name="GpuNvlinkErrors",
        expr="\nor ".join(nvlink(*kind) for kind in kinds),
        wait="15m",
        severity="warning",
        summary="NVLink {{ $labels.errors }} errors on GPU {{ $labels.UUID }} on <NODE>",
        description="The NVLinks of GPU {{ $labels.UUID }} on <NODE>"
        ' have {{ printf "%.0f" $value }} {{ $labels.errors }} errors a minute.',
        why="DCGM fails at one replay or recovery a minute, and at 100 CRC errors a second (6000 a minute).",
    )


def margin(match: str) -> str:
    """The distance to the slowdown temperature, of B200 (=~) or of all others (!~). GB200 is no B200."""
    chosen = f'{{modelName{match}"(.*[^G])?B200.*"}}'
    rows = host(f"(DCGM_FI_DEV_GPU_TEMP_LIMIT{chosen} or DCGM_FI_DEV_GPU_TEMP_MARGIN_CELSIUS{chosen})")
    return f"max by ({CARD}) (\n  {rows}\n)"


def presence() -> Iterator[Alert]:
    yield Alert(
        name="GpuMissing",
        expr=dedent("""\
            (
              max by (cluster, node, UUID, modelName) (last_over_time(gpu:gpu_temperature_celsius:max[6h]))
              unless on (cluster, UUID) gpu:gpu_temperature_celsius:max
            )
            and on (cluster, node) node:gpus:count < on (cluster, node) max_over_time(node:gpus:count[6h])"""),
        wait="10m",
        severity="critical",
        summary="GPU {{ $labels.UUID }} is gone from <NODE>",
        description="GPU {{ $labels.UUID }} ({{ $labels.modelName }}) reported within the last six hours and does no more,"
        " while other GPUs of <NODE> do. It last had {{ $value }} °C.",
        why="The others report, so the exporter works: the card fell off the bus. Six hours are remembered; 10m are two"
        " look-backs of Prometheus. A Node that reports nothing: GpuNodeWithoutTelemetry.",
    )
    yield Alert(
        name="GpuNodeWithoutTelemetry",
        expr=f'max by (cluster, node) (kube_node_status_capacity{{resource=~"{GPU_RESOURCES}"}}) > 0\n'
        "unless on (cluster, node) node:gpus:count",
        wait="15m",
        severity="warning",
        summary="No GPU telemetry from <NODE>",
        description="<NODE> has GPUs (at most {{ $value }} of one resource), and none of them is in telemetry."
        " Their health and use are unknown.",
        why="15m: a new Node's exporter needs minutes to start.",
    )
    yield Alert(
        name="GpuAllocatableBelowCapacity",
        expr=f'max by (cluster, node, resource) (kube_node_status_capacity{{resource=~"{GPU_RESOURCES}"}})\n'
        f'  - max by (cluster, node, resource) (kube_node_status_allocatable{{resource=~"{GPU_RESOURCES}"}}) > 0',
        wait="15m",
        severity="warning",
        summary="{{ $value }} of {{ $labels.resource }} cannot be allocated on <NODE>",
        description="The device plugin of <NODE> holds back {{ $value }} of {{ $labels.resource }} as unhealthy.",
        why="The device plugin withdraws a GPU for good (NVIDIA/k8s-device-plugin#519). 15m leaves out its restart.",
    )
    yield Alert(
        name="GpuExporterDown",
        expr=f'max by (cluster, job, instance, node) (up{{job=~"{EXPORTER_JOBS}"}}) == 0',
        wait="15m",
        severity="warning",
        summary="GPU exporter {{ $labels.instance }} does not answer",
        description="GPU exporter {{ $labels.instance }} of job {{ $labels.job }}"
        "{{ with $labels.node }} on Node {{ . }}{{ end }} has not answered its scrapes. Its GPUs are unknown.",
        why="15m leaves out a rollout of the exporter.",
    )
    yield Alert(
        name="GpuProfilingMissing",
        expr=dedent("""\
            count by (cluster, node, modelName) (
              gpu:gpu_temperature_celsius:max unless on (cluster, node, UUID) device:gpu_dram_active_ratio:max
            )"""),
        wait="1h",
        severity="info",
        summary="No profiling metrics of {{ $labels.modelName }} on <NODE>",
        description="{{ $value }} GPUs ({{ $labels.modelName }}) on <NODE> report no profiling metrics, such as memory"
        " activity. Without them gpuwatch cannot tell an idle GPU from a waiting one, nor advise a smaller one.",
        why="One hour: profiling pauses while somebody profiles.",
    )


def use() -> Iterator[Alert]:
    yield Alert(
        name="GpuLowUtilization",
        expr=dedent("""\
            avg_over_time(namespace:gpu_engine_active_ratio:avg[24h]) < 0.1
            and on (cluster, namespace) namespace:gpus_allocated:count > 0
            and on (cluster, namespace) namespace:gpus_allocated:count offset 24h > 0
            and on (cluster, namespace) count_over_time(namespace:gpus_allocated:count[24h:15m]) >= 86"""),
        wait="1h",
        severity="info",
        summary="Namespace {{ $labels.namespace }} hardly uses its GPUs",
        description="The GPUs of Namespace {{ $labels.namespace }}<OF_CLUSTER> were busy {{ $value | humanizePercentage }} of the last day.",
        why="A tenth over a whole day; single Pods are judged by gpuwatch's findings. It had GPUs a day ago and nine tenths"
        " of the time since (86 of 96 quarters of an hour): a Namespace that has just begun, or has a short job now and had"
        " one yesterday, is not judged.",
    )
    yield Alert(
        name="GpuAllocatedIdle",
        expr=dedent("""\
            (
              max by (cluster, node, UUID, GPU_I_ID, namespace, pod) (device:gpu_workload:info)
              and max by (cluster, node, UUID, GPU_I_ID, namespace, pod) (device:gpu_workload:info offset 6h)
            )
            * on (cluster, node, UUID, GPU_I_ID) group_left ()
              max by (cluster, node, UUID, GPU_I_ID) (max_over_time(device:gpu_engine_active_ratio:max[6h])) < 0.01"""),
        wait="1h",
        severity="info",
        summary="Pod {{ $labels.namespace }}/{{ $labels.pod }} does not use its GPU",
        description="GPU {{ $labels.UUID }}{{ with $labels.GPU_I_ID }} (MIG instance {{ . }}){{ end }} on <NODE> was not"
        " busy for six hours (at most {{ $value | humanizePercentage }}), and Pod"
        " {{ $labels.namespace }}/{{ $labels.pod }} has it.",
        why="One percent is what an exporter shows of a waiting process. Six hours and the Pod had it all the time.",
        off="Silence alone names many Pods that only pause, and all Pods of a shared GPU; gpuwatch's own idle findings"
        " know more.",
    )
    yield Alert(
        name="GpuMemoryNearlyFull",
        expr="device:gpu_memory_used_bytes:max / device:gpu_memory_total_bytes:max > 0.97",
        wait="30m",
        severity="info",
        summary="GPU memory nearly full: <GPU>",
        description="{{ $value | humanizePercentage }} of the memory is used on <GPU>{{ with $labels.GPU_I_ID }}, MIG instance {{ . }}{{ end }}.<PODS>",
        why="3 % is less than a framework's next allocation.",
        off="Most frameworks take all memory at their start, and full is normal.",
    )
    yield Alert(
        name="GpuCapacityExhausted",
        expr=dedent("""\
            sum by (cluster) (cluster:gpus_allocated:sum) / sum by (cluster) (cluster:gpus:count) >= 0.95
            and on (cluster) count by (cluster) (
              kube_pod_status_phase{{phase="Pending"}} == 1
              and on (cluster, namespace, pod) kube_pod_container_resource_requests{{resource=~"{resources}"}} > 0
            )""").format(resources=GPU_RESOURCES),
        wait="1h",
        severity="info",
        summary="GPUs are used up{{ with $labels.cluster }} in cluster {{ . }}{{ end }}",
        description="{{ $value | humanizePercentage }} of the GPUs{{ with $labels.cluster }} of cluster {{ . }}{{ end }} are"
        " allocated, and Pods that ask for GPUs have been waiting for an hour.",
        why="The last 5 % are often remnants of Nodes that no whole job fits on.",
    )


def findings() -> Iterator[Alert]:
    found = moved(
        'gpuwatch_finding{severity="critical"}', node="gpu_node", namespace="workload_namespace", pod="workload_pod"
    )
    yield Alert(
        name="GpuwatchCriticalFinding",
        expr=f"max by (cluster, family, kind, advice, node, UUID, GPU_I_ID, namespace, pod) (\n  {found}\n) > 0",
        wait="5m",
        keep_firing="10m",
        severity="critical",
        summary="{{ $labels.kind }}{{ with $labels.UUID }}: GPU {{ . }}{{ end }}{{ with $labels.node }} on Node {{ . }}{{ end }}",
        description="gpuwatch found {{ $labels.kind }} ({{ $labels.family }})"
        "{{ with $labels.UUID }} of GPU {{ . }}{{ end }}{{ with $labels.GPU_I_ID }}, MIG instance {{ . }}{{ end }}"
        "{{ with $labels.node }}, Node {{ . }}{{ end }}<OF_CLUSTER>{{ with $labels.pod }}, Pod {{ $labels.namespace }}/{{ . }}{{ end }}. Advice: {{ $labels.advice }}.",
        why="Five cycles. It goes on for ten minutes without the metric, which is missing while another replica takes over.",
    )
    waste = moved('gpuwatch_cost_per_hour{state="idle"}', namespace="workload_namespace")
    yield Alert(
        name="GpuwatchIdleWaste",
        expr=f"max by (cluster, namespace, currency) (\n  {waste}\n) > 10",
        wait="24h",
        severity="info",
        summary="Idle GPUs of Namespace {{ $labels.namespace }} cost {{ $value }} {{ $labels.currency }} an hour",
        description="Idle GPUs of Namespace {{ $labels.namespace }}<OF_CLUSTER> have cost more than 10 {{ $labels.currency }} an hour for a day; now {{ $value }}.",
        why="10 an hour is about three H100 on demand in a cloud.",
        off="What is worth a message depends on your prices; the weekly report says it to the owners anyway.",
    )


def itself() -> Iterator[Alert]:
    yield Alert(
        name="GpuwatchDown",
        expr=dedent("""\
            max by (cluster) (present_over_time(gpuwatch_build_info[1d])) unless on (cluster) gpuwatch_build_info
            or absent(present_over_time(gpuwatch_build_info[1d]))"""),
        wait="15m",
        severity="critical",
        summary="gpuwatch is down{{ with $labels.cluster }} in cluster {{ . }}{{ end }}",
        description="No replica of gpuwatch<OF_CLUSTER> is in telemetry. Nothing is found, and nothing that is under way"
        " is finished.",
        why="15m leaves out a rollout. A cluster that had it within a day is named; where it never was, the second part fires.",
    )
    yield Alert(
        name="GpuwatchNoLeader",
        expr="max by (cluster, namespace) (gpuwatch_leader) == 0",
        wait="5m",
        severity="critical",
        summary="No replica of gpuwatch leads (Namespace {{ $labels.namespace }})",
        description="Replicas of <GPUWATCH> run, and none leads. Nothing is found or done.",
        why="A Lease changes hands within a minute.",
    )
    yield Alert(
        name="GpuwatchTwoLeaders",
        expr="sum by (cluster, namespace) (gpuwatch_leader) > 1",
        wait="2m",
        severity="warning",
        summary="{{ $value }} replicas of gpuwatch lead (Namespace {{ $labels.namespace }})",
        description="{{ $value }} replicas of <GPUWATCH> say that they lead."
        " Each checks its Lease before it writes, so nothing is done twice; but something is wrong.",
        why="2m: for one or two scrapes the old leader's last word may still stand.",
    )
    yield Alert(
        name="GpuwatchAnalysisStale",
        expr="time() - max by (cluster, namespace) (gpuwatch_cycle_timestamp_seconds) > 600",
        wait="5m",
        severity="critical",
        summary="gpuwatch does not finish its cycles (Namespace {{ $labels.namespace }})",
        description="<GPUWATCH>{{ if gt $value 1e9 }} has finished no cycle"
        " since it began to lead{{ else }} last finished a cycle {{ $value | humanizeDuration }} ago{{ end }}."
        " Its findings are old.",
        why="Ten cycles of run.cycle_interval_seconds = 60.",
    )
    for name, metric, what in (
        ("GpuwatchTaskFailing", "gpuwatch_task_errors_total", "failed"),
        ("GpuwatchTaskMissed", "gpuwatch_task_missed_total", "was left out"),
    ):
        yield Alert(
            name=name,
            expr=f"round(sum by (cluster, namespace, task) (increase({metric}[30m]))) > 2",
            wait="0m",
            severity="warning",
            summary=f"Task {{{{ $labels.task }}}} of gpuwatch {what} {{{{ $value }}}} times",
            description=f"Task {{{{ $labels.task }}}} of gpuwatch in Namespace {{{{ $labels.namespace }}}}<OF_CLUSTER> {what}"
            " {{ $value }} times in 30 minutes.",
            why="One or two are a hiccup of a server. Rounded, as increase() extrapolates 2 to more than 2.",
        )
    yield Alert(
        name="GpuwatchSettingsRejected",
        expr="gpuwatch_settings_last_reload_successful == 0",
        wait="5m",
        severity="warning",
        summary="gpuwatch {{ $labels.instance }} rejected its settings",
        description="gpuwatch {{ $labels.instance }} could not take the newest settings, and runs on with older ones.",
        why="Settings are looked at every five seconds; 5m leaves out a rollout that mounts them in two steps.",
    )
    yield Alert(
        name="GpuwatchGaps",
        expr='max by (cluster, namespace, kind) (gpuwatch_gaps{kind=~"unreachable|refused|query_failed|partial|clock"}) > 0',
        wait="15m",
        severity="warning",
        summary="gpuwatch cannot read everything: {{ $labels.kind }}",
        description="{{ $value }} things that <GPUWATCH> reads could not be read: {{ $labels.kind }}. What depends on them is unknown, and is not acted on.",
        why="Gaps that a person can repair. 15m leaves out a restart of Prometheus or of the API server.",
    )
    yield Alert(
        name="GpuwatchHealthUnknown",
        expr=dedent("""\
            max by (cluster, namespace) (gpuwatch_unknown{subject="device_health"})
              / max by (cluster, namespace) (gpuwatch_devices{state="known"}) > 0.2"""),
        wait="30m",
        severity="warning",
        summary="The health of many GPUs is unknown{{ with $labels.cluster }} in cluster {{ . }}{{ end }}",
        description="<GPUWATCH> cannot judge the health of {{ $value | humanizePercentage }} of its devices.",
        why="health.fleet_wide_ratio = 0.2: from there on it is the monitoring. 30m: a new exporter needs two windows.",
    )
    yield Alert(
        name="GpuwatchInventoryStale",
        expr="max by (cluster, namespace, resource) (gpuwatch_inventory_age_seconds) > 300",
        wait="10m",
        severity="warning",
        summary="gpuwatch sees old {{ $labels.resource }}",
        description="What <GPUWATCH> knows of {{ $labels.resource }} is {{ $value | humanizeDuration }} old.",
        why="A watch brings bookmarks about every minute; five of them are missing.",
    )
    yield Alert(
        name="GpuwatchInventoryDrift",
        expr="round(sum by (cluster, namespace, resource) (increase(gpuwatch_inventory_drift_total[2h]))) > 0",
        wait="0m",
        severity="info",
        summary="gpuwatch had missed changes of {{ $labels.resource }}",
        description="A list showed {{ $value }} {{ $labels.resource }} in another state than gpuwatch in Namespace"
        " {{ $labels.namespace }}<OF_CLUSTER> had followed. It has taken over the list.",
        why="None is right. Two hours, so that somebody sees it.",
    )
    yield Alert(
        name="GpuwatchBrake",
        expr="max by (cluster, namespace) (gpuwatch_brake) == 1",
        wait="10m",
        severity="warning",
        summary="gpuwatch's brake is on (Namespace {{ $labels.namespace }})",
        description="The brake of <GPUWATCH> refuses every action: too many"
        " GPUs are sick or idle at once, telemetry is missing, a chosen alert fires, or there is a freeze.",
        why="10m: a brake that comes and goes within ten cycles did its work.",
    )
    yield Alert(
        name="GpuwatchPaused",
        expr="max by (cluster, namespace) (gpuwatch_paused) == 1",
        wait="24h",
        severity="info",
        summary="gpuwatch has been paused for a day (Namespace {{ $labels.namespace }})",
        description="Somebody paused <GPUWATCH> more than a day ago. It finds, and does nothing.",
        why="A pause that is meant lasts a shift, not a day.",
    )
    yield Alert(
        name="GpuwatchBudgetExhausted",
        expr=dedent("""\
            max by (cluster, namespace, scope) (gpuwatch_budget_in_flight_gpus)
              >= max by (cluster, namespace, scope) (gpuwatch_budget_limit_gpus)
            and max by (cluster, namespace, scope) (gpuwatch_budget_in_flight_gpus) > 0"""),
        wait="1h",
        severity="info",
        summary="gpuwatch's budget of {{ $labels.scope }} is used up",
        description="{{ $value }} GPUs of {{ $labels.scope }}<OF_CLUSTER> are out of service or disturbed, as many as may be."
        " gpuwatch does nothing more there.",
        why="One hour: most of what is under way ends within it.",
    )
    yield Alert(
        name="GpuwatchRemediationStuck",
        expr=dedent("""\
            sum by (cluster, namespace, action, phase) (gpuwatch_remediations{phase=~"Acting|Undoing"}) > 0
            unless on (cluster, namespace) gpuwatch_paused == 1"""),
        wait="1h",
        severity="warning",
        summary="A Remediation is stuck in {{ $labels.phase }} ({{ $labels.action }})",
        description="{{ $value }} Remediations ({{ $labels.action }}) of <GPUWATCH> have been in {{ $labels.phase }} for an hour.",
        why="Steps take minutes; one hour leaves room for PodDisruptionBudgets. A pause stops them on purpose.",
    )
    yield Alert(
        name="GpuwatchRemediationFailed",
        expr='round(sum by (cluster, namespace, action) (increase(gpuwatch_remediation_transitions_total{phase="Failed"}[1h]))) > 0',
        wait="0m",
        severity="warning",
        summary="A Remediation failed ({{ $labels.action }})",
        description="{{ $value }} Remediations ({{ $labels.action }}) of <GPUWATCH> failed within one hour. What they had done was taken back.",
        why="Any one.",
    )
    yield Alert(
        name="GpuwatchWritesRefused",
        expr="round(sum by (cluster, namespace, verb, failure) (increase(\n"
        '  gpuwatch_cluster_write_failures_total{dry_run="false", failure=~"forbidden|invalid|unsure"}[15m]\n))) > 0',
        wait="15m",
        severity="warning",
        summary="The API server does not take gpuwatch's requests: {{ $labels.verb }} is {{ $labels.failure }}",
        description="{{ $value }} requests ({{ $labels.verb }}) of <GPUWATCH> failed within 15 minutes: {{ $labels.failure }}.",
        why="A conflict, a missing object, throttling and a PodDisruptionBudget are daily life, and gpuwatch tries again."
        " 15m: it goes on.",
    )
    yield Alert(
        name="GpuwatchUndelivered",
        expr="max by (cluster, namespace) (gpuwatch_notifications_undelivered) > 0",
        wait="15m",
        severity="warning",
        summary="gpuwatch reaches nobody (Namespace {{ $labels.namespace }})",
        description="{{ $value }} notifications of <GPUWATCH> reached no person. What needs notice is not done.",
        why="15m leaves out a short failure of a mail server or a chat.",
    )
    yield Alert(
        name="GpuwatchReportLate",
        expr=dedent("""\
            time() - (
              max by (cluster, namespace) (gpuwatch_report_due_timestamp_seconds)
                > max by (cluster, namespace) (gpuwatch_report_done_timestamp_seconds)
            ) > 129600"""),
        wait="5m",
        severity="warning",
        summary="The weekly report is late (Namespace {{ $labels.namespace }})",
        description="The weekly report of <GPUWATCH> was due {{ $value | humanizeDuration }} ago and is not finished.",
        why="36 hours (129600 s), counted from when it was due: a wait of 36 hours would begin anew after a restart of"
        " Prometheus.",
    )
    yield Alert(
        name="GpuwatchDetectorImprecise",
        expr='max by (cluster, namespace, detector) (gpuwatch_detector_precision_ratio{bound="upper"}) < 0.9',
        wait="1h",
        severity="warning",
        summary="gpuwatch's detector {{ $labels.detector }} is often wrong",
        description="At best {{ $value | humanizePercentage }} of what detector {{ $labels.detector }} led to was right"
        " (upper end of the 95 % interval), by <GPUWATCH>.",
        why="plan asks for 0.8 confidence; a detector that can be right in less than nine of ten cases does harm.",
    )


GROUPS = {"hardware": hardware, "presence": presence, "use": use, "findings": findings, "itself": itself}


def alerts() -> list[Alert]:
    return [alert for group in GROUPS.values() for alert in group()]


def groups(*, optional: bool, runbooks: str = RUNBOOKS) -> list[dict[str, Any]]:
    """The rule groups of one of the two files, as Prometheus has them."""
    chosen = {
        name: [rule(each, runbooks) for each in made() if bool(each.off) is optional] for name, made in GROUPS.items()
    }
    suffix = "-optional" if optional else ""
    return [{"name": f"gpuwatch-{name}{suffix}", "rules": rules} for name, rules in chosen.items() if rules]


def template(text: str) -> str:
    """A text of TEXTS' words as a template of Prometheus."""
    for word, stands_for in {"<XID>": xid_meaning(), **TEXTS}.items():
        text = text.replace(word, stands_for)
    return text


def rule(alert: Alert, runbooks: str) -> dict[str, Any]:
    made: dict[str, Any] = {"alert": alert.name, "expr": alert.expr, "for": alert.wait}
    if alert.keep_firing:
        made["keep_firing_for"] = alert.keep_firing
    made["labels"] = {"severity": alert.severity}
    made["annotations"] = {
        "summary": template(alert.summary),
        "description": template(alert.description),
        "runbook_url": f"{runbooks.rstrip('/')}/{alert.name}.md",
    }
    return made


class _Lines(yaml.SafeDumper):
    """Expressions of several lines stand as they are."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Lines.add_representer(str, _text)


def page(*, optional: bool, runbooks: str = RUNBOOKS) -> str:
    """A rule file with the source of each threshold beside it."""
    lines = ["# Written by `make rules`. Change tools/rules/ and write it anew.\n"]
    if optional:
        lines.append(
            "# Alerts that are often wrong, or need a threshold of yours. Load the file, or copy what you want.\n"
        )
    lines.append("groups:\n")
    known = {alert.name: alert for alert in alerts()}
    for group in groups(optional=optional, runbooks=runbooks):
        lines.append(f"- name: {group['name']}\n  rules:\n")
        for each in group["rules"]:
            alert = known[each["alert"]]
            why = [alert.why, *([f"Off: {alert.off}"] if alert.off else [])]
            lines.extend(f"  # {line}\n" for text in why for line in wrap(text, 110))
            dumped = yaml.dump([each], Dumper=_Lines, sort_keys=False, allow_unicode=True, width=10000)
            lines.append(indent(dumped, "  "))
    return "".join(lines)


def xid_table(xid_class: XidClass) -> str:
    """The class's XIDs for a runbook."""
    rows = "".join(
        f"| {code} | {xids()[code].description} | {xids()[code].action} | {xids()[code].reason} |\n"
        for code in xid_codes(xid_class)
    )
    return f"| XID | name | NVIDIA asks for | meaning |\n|---|---|---|---|\n{rows}"
