"""Both sides of every threshold, window and wait of every alert, and what telemetry does to them: first series, gaps,
restarts, repeats, MIG, shared GPUs, both spellings of the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpuwatch.facts.catalog.xids import XidClass, xids
from gpuwatch.facts.model.telemetry import Statistic
from gpuwatch.judge.health.link import nvlink_needs
from gpuwatch.judge.health.policy import HealthPolicy
from rules.promtool import Case

CARD = 'cluster="c1",node="gpu-1",UUID="GPU-a",gpu="0",modelName="H100"'
THE_CARD = {"cluster": "c1", "node": "gpu-1", "UUID": "GPU-a"}
CARD_SAYS = ("GPU-a", "H100", "gpu-1", "c1")
SELF = 'cluster="c1",namespace="gpuwatch",instance="10.0.0.1:8080",pod="gpuwatch-0",job="gpuwatch"'
THE_SELF = {"cluster": "c1", "namespace": "gpuwatch"}
Labels = Mapping[str, str]


def series(name: str, labels: str, *more: str) -> str:
    return f"{name}{{{','.join((labels, *more))}}}"


def edges(
    alert: str,
    wait: int,
    below: Mapping[str, object],
    above: Mapping[str, object],
    labels: Labels,
    says: tuple[str, ...] = (),
    more: Mapping[str, str] | None = None,
) -> Iterator[Case]:
    """Constant values: one too few never fires, one enough fires after the wait and not before."""
    length = wait + 10
    steady = dict(more or {})
    held = [{name: f"{value}x{length}" for name, value in each.items()} for each in (below, above)]
    yield Case("below", alert, steady | held[0], {length: []})
    early: dict[int, Sequence[Labels]] = {wait - 1: []} if wait else {}
    yield Case("above", alert, steady | held[1], {**early, wait: [labels]}, says)
    nothing = dict.fromkeys(held[1], "NaN " * (length + 1))
    yield Case("not a number", alert, steady | nothing, {length: []})
    # Gone: it ends with the series, after Prometheus' look-back or at once where the series is marked stale.
    ended = {name: f"{value}x{length} stale" for name, value in above.items()}
    gone = {name: values for name, values in steady.items() if name not in ended}
    yield Case("ends", alert, gone | ended, {length: [labels], length + 1: []})


def simple(
    alert: str, wait: int, name: str, bounds: tuple[object, object], labels: Labels, *says: str
) -> Iterator[Case]:
    """An alert on one recorded series of a card."""
    below, above = bounds
    yield from edges(
        alert,
        wait,
        {series(name, CARD): below},
        {series(name, CARD): above},
        {**THE_CARD, **labels},
        (*CARD_SAYS, *says),
    )


def own(
    alert: str,
    wait: int,
    name: str,
    bounds: tuple[object, object],
    more: str = "",
    labels: Labels | None = None,
    *says: str,
) -> Iterator[Case]:
    """An alert on one metric of gpuwatch's own."""
    metric = series(name, SELF, *([more] if more else []))
    below, above = bounds
    yield from edges(alert, wait, {metric: below}, {metric: above}, {**THE_SELF, **(labels or {})}, says)


def xid_cases(s: int) -> Iterator[Case]:
    every = {
        f'gpu:gpu_xid:last{{cluster="c1",node="n",UUID="GPU-{code}",gpu="0",modelName="H100"}}': f"{code}x20"
        for code in range(200)
    }
    classes = {
        "GpuXidFatal": XidClass.FATAL,
        "GpuXidNeedsSecondSign": XidClass.CORROBORATE,
        "GpuXidApplication": XidClass.APPLICATION,
    }
    for alert, xid_class in classes.items():
        codes = [code for code, xid in xids().items() if xid.xid_class is xid_class]
        yield Case("all numbers", alert, every, {1: [{"UUID": f"GPU-{code}"} for code in codes]})
    codes = [code for code, xid in xids().items() if xid.xid_class is XidClass.APPLICATION]
    held = {name: f"_x15 {values}" for name, values in every.items()}
    held |= {
        f'device:gpu_workload:info{{cluster="c1",node="n",UUID="GPU-{code}",namespace="a",pod="p"}}': "1x40"
        for code in range(200)
    }
    named = [{"UUID": f"GPU-{code}", "pod": "p", "gpu": "0", "modelName": "H100"} for code in codes]
    yield Case("all numbers of Pods", "GpuXidApplication", held, {14: [], 16: named})

    xid, heat = series("gpu:gpu_xid:last", CARD), series("gpu:gpu_temperature_celsius:max", CARD)
    pod = {series("device:gpu_workload:info", CARD, 'namespace="a",pod="p"'): "1x1000"}
    yield from new_xid_cases("GpuXidFatal", 79, 60, s)
    yield from new_xid_cases("GpuXidNeedsSecondSign", 94, 60, s)
    yield from new_xid_cases("GpuXidApplication", 31, 10, s)
    yield from new_xid_cases("GpuXidApplication", 31, 10, s, pod)
    pods = {
        series(
            "device:gpu_workload:info", CARD, 'GPU_I_ID="1",namespace="team-a",pod="one",container="c"'
        ): "1x110 stale",
        series("device:gpu_workload:info", CARD, 'GPU_I_ID="2",namespace="team-b",pod="two",container="c"'): "1x300",
        series(
            "device:gpu_workload:info", CARD, 'GPU_I_ID="1",namespace="team-c",pod="later",container="c"'
        ): "_x101 1x300",
    }
    both = [{**THE_CARD, "namespace": "team-a", "pod": "one"}, {**THE_CARD, "namespace": "team-b", "pod": "two"}]
    late = {series("device:gpu_workload:info", CARD, 'namespace="team-a",pod="one"'): "_x90 1x200"}
    one = [{**THE_CARD, "pod": "one"}]
    yield Case("ten minutes before", "GpuXidApplication", {heat: "50x300", xid: "_x100 31x200", **late}, {100: one})
    yield Case(
        "who had it",
        "GpuXidApplication",
        {heat: "50x300", xid: "_x100 31x200", **pods},
        {99: [], 100: both, 109: both, 110: []},
        ("Pod team-",),
    )
    yield Case(
        "Pods of it",
        "GpuXidFatal",
        {heat: "50x300", xid: "_x100 79x200", **pods},
        {100: [THE_CARD]},
        ("team-a/one", "team-b/two"),
    )


def new_xid_cases(
    alert: str, code: int, window: int, s: int, beside: Mapping[str, str] | None = None
) -> Iterator[Case]:
    """What is news: the first series, a change, the same again; and what is none."""
    fires = [THE_CARD]
    xid, heat = series("gpu:gpu_xid:last", CARD), series("gpu:gpu_temperature_celsius:max", CARD)

    def case(name: str, heat_is: str, xid_is: str, fires: Mapping[int, Sequence[Labels]]) -> Case:
        samples = {heat: heat_is, xid: xid_is, **(beside or {})}
        return Case(f"{name}, Pods {bool(beside)}", alert, samples, fires, (f"XID {code}", *CARD_SAYS))

    # An exporter that shows no XID until the first: it is new for one window.
    lasts = {99: [], 100: fires, 99 + window: fires, 100 + window: []}
    yield case("first series", "50x500", f"_x100 {code}x400", lasts)
    yield case("0 before", "50x500", f"0x99 {code}x400", lasts)
    yield case("Prometheus is new", "50x500", f"{code}x500", {0: fires, window - 1: fires, window: []})
    # The same again, after its exporter started anew: for one scrape it showed 0, or no XID.
    again = {299: [], 300: [], 301: fires, 299 + window: fires}
    yield case("again after 0", "50x1000", f"{code}x299 0 {code}x400", {**again, 300 + window: fires, 301 + window: []})
    anew = {**again, 300 + window: [] if s else fires, 301 + window: []}
    yield case("again after a restart", "50x1000", f"{code}x299 stale {code}x400", anew)
    yield case("another between", "50x1000", f"{code}x299 500 {code}x400", {301: fires, 301 + window: []})
    # No news: its whole exporter was away.
    away = {350: [], 402: [], 420: [], 402 + window: [], 460 + window: []}
    yield case("a gap", "50x299 stale _x100 50x400", f"{code}x299 stale _x100 {code}x400", away)
    # Six hours are bridged: last seen at minute 9, back at minute 370, and one more.
    for name, missing, last in (("six hours", 359 - s, []), ("more than six hours", 360 - s, fires)):
        gap, back = f"stale _x{missing}", 11 + missing
        ends = {back: [], back + window // 2: [], back + window - 1: last, back + window: []}
        yield case(name, f"50x9 {gap} 50x400", f"{code}x9 {gap} {code}x400", ends)


def hardware_cases(s: int) -> Iterator[Case]:
    yield from simple("GpuUncorrectableEcc", 0, "gpu:gpu_ecc_uncorrected:increase1h", (0, 1), {}, "1 new")
    reload, lately = (
        series("gpu:gpu_ecc_uncorrected_since_reload:max", CARD),
        series("gpu:gpu_ecc_uncorrected:increase1h", CARD),
    )
    yield from edges("GpuUncorrectableEccNotReset", 15, {reload: 0}, {reload: 1}, THE_CARD, CARD_SAYS, {lately: "0x30"})
    yield Case("too new", "GpuUncorrectableEccNotReset", {reload: "2x40", lately: "1x40"}, {40: []})
    yield Case("reset", "GpuUncorrectableEccNotReset", {reload: "2x20 0x20", lately: "0x40"}, {20: [THE_CARD], 21: []})

    def rates(mine: float, others: float, count: int) -> dict[str, object]:
        name, card = "gpu:gpu_ecc_corrected:rate1h", CARD.replace("GPU-a", "GPU-{}")
        return {series(name, CARD): mine, **{series(name, card.format(n)): others for n in range(count - 1)}}

    storm = "GpuCorrectedEccStorm"
    yield from edges(storm, 30, rates(0.1, 0, 5), rates(0.101, 0, 5), THE_CARD, CARD_SAYS)
    yield Case("as its model", storm, {k: f"{v}x50" for k, v in rates(2.0, 0.2, 5).items()}, {50: []})
    yield Case("ten times its model", storm, {k: f"{v}x50" for k, v in rates(2.01, 0.2, 5).items()}, {50: [THE_CARD]})
    yield Case("few peers", storm, {k: f"{v}x50" for k, v in rates(2, 0, 4).items()}, {50: []})
    # Half of the model does it: the median, and no other quantile.
    half = {
        series("gpu:gpu_ecc_corrected:rate1h", CARD.replace("GPU-a", f"GPU-{n}")): f"{rate}x50"
        for n, rate in enumerate((0.02, 0.02, 0.2, 0.3, 2.1))
    }
    yield Case("median", storm, half, {50: [{"UUID": "GPU-4"}]})
    steep = {
        series("gpu:gpu_ecc_corrected:rate1h", CARD.replace("GPU-a", f"GPU-{n}")): f"{rate}x50"
        for n, rate in enumerate((0, 0, 0.2, 9, 1.99))
    }
    yield Case("median above", storm, steep, {50: [{"UUID": "GPU-3"}]})

    yield from simple("GpuRowRemapFailed", 1, "gpu:gpu_row_remap_failed:max", (0, 1), {}, "replaced")
    yield from simple("GpuRowRemapPending", 15, "gpu:gpu_row_remap_pending:max", (0, 1), {}, "reset")
    action = series("gpu:gpu_recovery_action:max", CARD)
    asks = {
        1: "a reset of the GPU (",
        2: "a reboot of the Node",
        6: "a reset of the GPU's bus",
        7: "a reboot of the system",
    }
    for value in range(10):
        needed = [THE_CARD] if value in asks else []
        yield Case(
            f"action {value}",
            "GpuRecoveryActionNeeded",
            {action: f"{value}x9"},
            {0: [], 1: needed},
            (*CARD_SAYS, *([asks[value]] if needed else [])),
        )
        drain = [THE_CARD] if value in (3, 4) else []
        word = "read the recovery action again" if value == 3 else "then reset it"
        yield Case(f"action {value}", "GpuDrainNeeded", {action: f"{value}x9"}, {0: [], 1: drain}, (*CARD_SAYS, word))
    yield Case("recovered", "GpuRecoveryActionNeeded", {action: "1x5 0x5"}, {5: [THE_CARD], 6: []})

    # Raw metrics, by both spellings of the host and with the exporter's own labels.
    for spelling in ("Hostname", "hostname"):
        raw = (
            CARD.replace("node=", f"{spelling}=")
            + ',pod="dcgm-exporter-x",namespace="gpu-operator",instance="10.0.0.9:9400"'
        )
        health = series("DCGM_EXP_GPU_HEALTH_STATUS", raw, 'health_watch="PCIE",GPU_I_ID="1"')
        twin = series("DCGM_EXP_GPU_HEALTH_STATUS", raw, 'health_watch="PCIE",GPU_I_ID="2"')
        check = {**THE_CARD, "health_watch": "PCIE"}
        for value in (10, 19, 21):
            yield Case(f"{spelling} {value}", "GpuHealthCheckFailed", {health: f"{value}x9"}, {9: []})
        yield Case(
            f"{spelling} and MIG",
            "GpuHealthCheckFailed",
            {health: "20x9", twin: "20x9"},
            {4: [], 5: [check]},
            (*CARD_SAYS, "PCIE"),
        )
        for name in ("DCGM_FI_DEV_GPU_TEMP_LIMIT", "DCGM_FI_DEV_GPU_TEMP_MARGIN_CELSIUS"):
            for model, least in (("H100", -2), ("NVIDIA GB200", -2), ("NVIDIA B200", -3), ("B200", -3)):
                rows = raw.replace("H100", model)
                degrees = series(name, rows)
                title = f"{spelling} {name} {model}"
                yield Case(f"{title} above", "GpuThermalMarginGone", {degrees: f"{least + 0.5}x9"}, {9: []})
                yield Case(
                    title,
                    "GpuThermalMarginGone",
                    {degrees: f"{least}x9"},
                    {4: [], 5: [THE_CARD]},
                    (f"{least} °C", "GPU-a", model),
                )
                yield Case(f"{title} blank", "GpuThermalMarginGone", {degrees: "9223372036854775794x9"}, {9: []})
    relabelled = series("DCGM_EXP_GPU_HEALTH_STATUS", CARD, 'Hostname="10.0.0.9",health_watch="PCIE"')
    yield Case("relabelled host", "GpuHealthCheckFailed", {relabelled: "20x9"}, {5: [THE_CARD]})
    for ignored in ("ALL", "POWER", "THERMAL"):
        yield Case(
            ignored,
            "GpuHealthCheckFailed",
            {series("DCGM_EXP_GPU_HEALTH_STATUS", CARD, f'health_watch="{ignored}"'): "20x9"},
            {9: []},
        )

    yield from simple("GpuThermalThrottle", 15, "gpu:gpu_thermal_throttle_ratio:rate15m", (0.1, 0.1001), {}, "10.01%")
    yield from simple("GpuPowerBrake", 15, "gpu:gpu_power_brake_ratio:rate15m", (0.1, 0.1001), {}, "10.01%")
    yield from simple("GpuTemperatureHigh", 10, "gpu:gpu_temperature_celsius:max", (85, 85.5), {}, "85.5 °C")
    yield from nvlink_cases(s)
    yield from simple("GpuPcieReplays", 30, "gpu:gpu_pcie_replays:rate15m", (0.512, 0.513), {}, "31 PCIe")


def nvlink_cases(s: int) -> Iterator[Case]:
    """Every counter that gpuwatch's own rule has, by how its detector names it, a second."""
    name = "gpu_kind:gpu_nvlink_errors:rate15m"
    policy = HealthPolicy()
    for need in nvlink_needs(policy):
        kind = need.signal.removeprefix("nvlink_").removesuffix("_total")
        if need.statistic is not Statistic.INCREASE or kind == need.signal.removesuffix("_total"):
            continue
        rate, label = series(name, CARD, f'kind="{kind}"'), {**THE_CARD, "kind": kind}
        if kind in ("failed_recoveries", "link_downs"):
            # One within 15 minutes, recorded for as long. It fires while a second window still has it.
            seen = f"0x19 {1 / 900}x14 0x60"
            yield Case(f"{kind} none", "GpuNvlinkErrors", {rate: "0x60"}, {60: []})
            last = 49 - s
            yield Case(
                kind,
                "GpuNvlinkErrors",
                {rate: seen},
                {34: [], 35: [label], last: [label], last + 1: []},
                (*CARD_SAYS, "0.0667", kind.replace("_", " "), "a minute"),
            )
            continue
        bound = 60 * policy.nvlink_crc_errors_per_second if "crc" in kind else policy.nvlink_errors_per_minute
        yield Case(f"{kind} below", "GpuNvlinkErrors", {rate: f"{bound / 60}x60"}, {60: []})
        yield Case(f"{kind} burst", "GpuNvlinkErrors", {rate: f"0x19 {2 * bound / 60}x14 0x60"}, {34: [], 35: []})
        yield Case(
            kind,
            "GpuNvlinkErrors",
            {rate: f"{1.01 * bound / 60}x20 0x9"},
            {14: [], 15: [label], 20: [label], 21: []},
            (*CARD_SAYS, kind.replace("_", " "), "a minute"),
        )


def presence_cases(s: int) -> Iterator[Case]:
    heat, other = (
        series("gpu:gpu_temperature_celsius:max", CARD),
        series("gpu:gpu_temperature_celsius:max", CARD.replace("GPU-a", "GPU-b")),
    )
    count = 'node:gpus:count{cluster="c1",node="gpu-1"}'
    gone = [{"node": "gpu-1", "UUID": "GPU-a", "cluster": "c1"}]
    lost = {heat: "60x99 stale", other: "50x1000", count: "2x99 1x900"}
    # Seen up to minute 99; forgotten after six hours, at minute 459 (Prometheus 3 leaves out the window's start).
    yield Case(
        "one of two",
        "GpuMissing",
        lost,
        {100: [], 109: [], 110: gone, 459 - s: gone, 460 - s: []},
        ("GPU-a", "gpu-1", "H100", "60 °C"),
    )
    yield Case(
        "back", "GpuMissing", {**lost, heat: "60x99 stale _x30 61x100", count: "2x99 1x30 2x900"}, {120: gone, 132: []}
    )
    yield Case(
        "renumbered",
        "GpuMissing",
        {
            heat: "60x99 stale",
            series("gpu:gpu_temperature_celsius:max", CARD.replace('gpu="0"', 'gpu="1"')): "_x100 60x100",
            other: "50x200",
            count: "2x200",
        },
        {150: []},
    )
    yield Case(
        "two numbers",
        "GpuMissing",
        {
            **lost,
            heat: "60x49 stale",
            series("gpu:gpu_temperature_celsius:max", CARD.replace('gpu="0"', 'gpu="1"')): "_x49 60x49 stale",
        },
        {111: gone},
    )
    yield Case("exchanged", "GpuMissing", {heat: "60x99 stale", other: "_x100 50x300", count: "1x400"}, {150: []})
    yield Case(
        "moved to another Node",
        "GpuMissing",
        {**lost, series("gpu:gpu_temperature_celsius:max", CARD.replace("gpu-1", "gpu-2")): "_x100 50x300"},
        {150: []},
    )
    yield Case(
        "the whole Node", "GpuMissing", {heat: "60x99 stale", other: "50x99 stale", count: "2x99 stale"}, {150: []}
    )
    yield Case(
        "a Node of another cluster",
        "GpuMissing",
        {**lost, count: "2x400", 'node:gpus:count{cluster="c2",node="gpu-1"}': "2x99 1x300"},
        {150: []},
    )
    # One of four is for virtual machines, which the Node says by what it has: 3 GPUs, and 1 for them.
    for resource in ("pgpu", "GH100_H100_SXM5_80GB", "AD102GL_L40S"):
        capacity = {
            series("kube_node_status_capacity", f'cluster="c1",node="gpu-1",resource="nvidia_com_{name}",job="ksm"'): n
            for name, n in ((resource, "0x99 1x900"), ("gpu", "4x99 3x900"))
        }
        counted = {**lost, count: "4x99 3x900"}
        yield Case(f"{resource} for a VM", "GpuMissing", {**counted, **capacity}, {110: [], 400: []})
        yield Case(
            f"{resource} for a VM, and one more is gone",
            "GpuMissing",
            {**counted, count: "4x99 2x900", **capacity},
            {110: gone},
        )
        gpus = next(name for name in capacity if "nvidia_com_gpu" in name)
        yield Case(
            f"{resource} before, and the Node still counts four", "GpuMissing", {**counted, **capacity, gpus: "4x999"},
            {110: gone},
        )  # fmt: skip
    other_resource = series("kube_node_status_capacity", 'cluster="c1",node="gpu-1",resource="nvidia_com_mig_1g_10gb"')
    yield Case("MIG instances are for no VM", "GpuMissing", {**lost, other_resource: "7x999"}, {110: gone})
    # The fall of the count is seen for six hours as well.
    later = {**lost, count: "2x199 1x900"}
    yield Case("the count fell later", "GpuMissing", later, {459 - s: gone, 460 - s: []})
    yield Case(
        "the count fell",
        "GpuMissing",
        {heat: "60x399 stale", other: "50x1000", count: "2x99 1x900"},
        {459 - s: gone, 460 - s: []},
    )

    for resource in (
        "nvidia_com_gpu",
        "nvidia_com_gpu_shared",
        "nvidia_com_mig_1g_10gb",
        "amd_com_gpu",
        "gpu_intel_com_i915",
        "gpu_intel_com_xe",
        "habana_ai_gaudi",
    ):
        where = f'cluster="c1",node="gpu-1",resource="{resource}",instance="ksm"'
        capacity, free = (series(f"kube_node_status_{name}", where) for name in ("capacity", "allocatable"))
        node = {"cluster": "c1", "node": "gpu-1"}
        yield Case(
            f"{resource} without", "GpuNodeWithoutTelemetry", {capacity: "8x30"}, {14: [], 15: [node]}, ("gpu-1", "8")
        )
        yield Case(f"{resource} with", "GpuNodeWithoutTelemetry", {capacity: "8x30", count: "8x30"}, {30: []})
        yield Case(f"{resource} none", "GpuNodeWithoutTelemetry", {capacity: "0x30"}, {30: []})
        yield Case(f"{resource} all", "GpuAllocatableBelowCapacity", {capacity: "8x30", free: "8x30"}, {30: []})
        yield Case(f"{resource} unknown", "GpuAllocatableBelowCapacity", {capacity: "8x30"}, {30: []})
        yield Case(
            resource,
            "GpuAllocatableBelowCapacity",
            {capacity: "8x30", free: "7x30"},
            {14: [], 15: [{**node, "resource": resource}]},
            (f"1 of {resource}", "gpu-1"),
        )
    single = {'kube_node_status_capacity{node="a",resource="nvidia_com_gpu"}': "1x30"}
    yield Case("one GPU", "GpuNodeWithoutTelemetry", single, {15: [{}]})
    yield Case(
        "no GPU", "GpuNodeWithoutTelemetry", {'kube_node_status_capacity{node="a",resource="cpu"}': "8x30"}, {30: []}
    )

    for job in ("dcgm-exporter", "nvidia-dcgm-exporter", "amd-gpu-metrics-exporter", "habana-metric-exporter", "xpumd"):
        up = f'up{{cluster="c1",job="{job}",instance="10.0.0.9:9400",namespace="gpu-operator"}}'
        yield from (
            edges(
                "GpuExporterDown", 15, {up: 1}, {up: 0}, {"instance": "10.0.0.9:9400", "job": job}, ("10.0.0.9:9400",)
            )
            if job == "dcgm-exporter"
            else iter([Case(job, "GpuExporterDown", {up: "0x20"}, {15: [{"job": job}]})])
        )
    yield Case(
        "with its Node",
        "GpuExporterDown",
        {'up{job="dcgm-exporter",instance="a:1",node="gpu-1"}': "0x20"},
        {15: [{"node": "gpu-1"}]},
        ("Node gpu-1",),
    )
    yield Case("another job", "GpuExporterDown", {'up{job="node-exporter",instance="a:1"}': "0x20"}, {20: []})

    active = series("device:gpu_dram_active_ratio:max", CARD, 'GPU_I_ID="3",GPU_I_PROFILE="1g.10gb"')
    without = {"node": "gpu-1", "modelName": "H100"}
    yield Case(
        "without",
        "GpuProfilingMissing",
        {heat: "50x90", other: "50x90"},
        {59: [], 60: [without]},
        ("2 GPUs", "H100", "gpu-1"),
    )
    yield Case("with, by a MIG instance", "GpuProfilingMissing", {heat: "50x90", active: "0x90"}, {90: []})


def use_cases(s: int) -> Iterator[Case]:
    held, busy = (
        'namespace:gpus_allocated:count{cluster="c1",namespace="team-a"}',
        'namespace:gpu_engine_active_ratio:avg{cluster="c1",namespace="team-a"}',
    )
    low, team, day = "GpuLowUtilization", {"namespace": "team-a", "cluster": "c1"}, 1440
    yield Case(
        "below", low, {held: "1x1600", busy: "0.0999x1600"}, {day + 59: [], day + 60: [team]}, ("team-a", "9.99%")
    )
    yield Case("above", low, {held: "1x1600", busy: "0.1x1600"}, {1600: []})
    yield Case("released", low, {held: "2x1550 0x50", busy: "0.05x1600"}, {1550: [team], 1551: []})
    yield Case(
        "had none a day ago", low, {held: "0x499 2x1600", busy: "_x499 0.05x1600"}, {day + 559: [], day + 560: [team]}
    )
    yield Case("gone", low, {held: "2x1550 stale", busy: "0.05x1550 stale"}, {1550: [team], 1551: []})
    # Busy up to minute 99, then idle: the day's mean falls below a tenth where the window has left the busy minutes.
    yield Case("one day", low, {held: "2x3000", busy: "1x99 0.0999x2900"}, {day + 159 - s: [], day + 160 - s: [team]})

    # Of the 96 quarters of an hour before minute 1505 the first is without GPUs in ten, the second in eleven.
    yield Case("most of the day", low, {held: "2x700 stale _x139 2x700", busy: "0.05x1600"}, {1505: [team]})
    yield Case("too little of the day", low, {held: "2x700 stale _x154 2x700", busy: "0.05x1600"}, {1505: []})

    idle = "GpuAllocatedIdle"
    device = CARD + ',GPU_I_ID="1",GPU_I_PROFILE="1g.10gb"'
    ratio = series("device:gpu_engine_active_ratio:max", device)
    pods = [
        series("device:gpu_workload:info", device, f'namespace="{n}",pod="{p}",container="c"')
        for n, p in (("team-a", "one"), ("team-b", "two"))
    ]
    one, two = {**THE_CARD, "GPU_I_ID": "1", "namespace": "team-a", "pod": "one"}, {"namespace": "team-b", "pod": "two"}
    yield Case(
        "idle",
        idle,
        {ratio: "0.0099x500", pods[0]: "1x500"},
        {419: [], 420: [one]},
        ("team-a/one", "GPU-a", "MIG instance 1", "gpu-1", "0.99%"),
    )
    yield Case("not idle", idle, {ratio: "0.01x500", pods[0]: "1x500"}, {500: []})
    yield Case("shared", idle, {ratio: "0x500", pods[0]: "1x500", pods[1]: "1x500"}, {420: [one, two]}, ("team-",))
    yield Case(
        "came later", idle, {ratio: "0x600", pods[0]: "1x600", pods[1]: "_x100 1x500"}, {519: [one], 520: [one, two]}
    )
    yield Case("six hours", idle, {ratio: "1x99 0x900", pods[0]: "1x900"}, {519 - s: [], 520 - s: [one]})
    yield Case("not known", idle, {pods[0]: "1x500"}, {500: []})

    used, total = series("device:gpu_memory_used_bytes:max", CARD), series("device:gpu_memory_total_bytes:max", CARD)
    yield from edges(
        "GpuMemoryNearlyFull", 30, {used: 9700}, {used: 9701}, THE_CARD, (*CARD_SAYS, "97.01%"), {total: "10000x50"}
    )

    capacity = {
        'cluster:gpus:count{cluster="c1",modelName="H100"}': "100x90",
        'cluster:gpus:count{cluster="c1",modelName="A100"}': "100x90",
    }
    taken = 'cluster:gpus_allocated:sum{cluster="c1",modelName="H100"}'
    pod = 'cluster="c1",namespace="team-a",pod="p"'
    wants = {
        f'kube_pod_status_phase{{{pod},phase="Pending"}}': "1x90",
        f'kube_pod_container_resource_requests{{{pod},resource="nvidia_com_gpu",container="c"}}': "1x90",
    }
    full = "GpuCapacityExhausted"
    yield from edges(full, 60, {taken: 189.9}, {taken: 190}, {"cluster": "c1"}, ("c1", "95%"), {**capacity, **wants})
    phase, request = wants
    yield Case("runs", full, {**capacity, taken: "200x90", **wants, phase: "0x90"}, {90: []})
    yield Case("asks for none", full, {**capacity, taken: "200x90", **wants, request: "0x90"}, {90: []})


def finding_cases(s: int) -> Iterator[Case]:
    about = (
        'family="health",kind="ecc",verdict="degraded",advice="reset",gpu_node="gpu-1",UUID="GPU-a",GPU_I_ID="2",'
        'workload_namespace="team-a",workload_pod="train-0"'
    )
    found = series("gpuwatch_finding", SELF, about, 'severity="critical"')
    what = {"node": "gpu-1", "UUID": "GPU-a", "namespace": "team-a", "pod": "train-0", "kind": "ecc", "advice": "reset"}
    critical = "GpuwatchCriticalFinding"
    yield Case(
        "critical",
        critical,
        {found: "1x9"},
        {4: [], 5: [what]},
        ("ecc", "GPU-a", "gpu-1", "Advice: reset", "team-a/train-0", "MIG instance 2", "c1"),
    )
    yield Case("warning", critical, {found.replace("critical", "warning"): "1x9"}, {9: []})
    yield Case("zero", critical, {found: "0x9"}, {9: []})
    # While another replica takes over, nothing has the metric.
    yield Case("a short gap", critical, {found: "1x9 stale _x5 1x9"}, {m: [what] for m in (9, 12, 16, 17, 20)})
    yield Case("over", critical, {found: "1x9 stale"}, {19: [what], 20: []})
    bare = series(
        "gpuwatch_finding",
        SELF,
        'family="health",kind="telemetry_missing",advice="fix_monitoring",severity="critical",gpu_node="",UUID="",workload_namespace=""',
    )
    yield Case(
        "of no workload",
        critical,
        {bare: "1x9"},
        {5: [{"kind": "telemetry_missing", "cluster": "c1"}]},
        ("telemetry_missing",),
    )
    said = 'workload_namespace="team-a",workload_pod="train-0"'
    gang = series("gpuwatch_finding", SELF, f'family="idle",kind="partial_gang",verdict="idle",{said}')
    yield from edges(
        "GpuwatchPartialGang",
        30,
        {gang: 0},
        {gang: 1},
        {"namespace": "team-a", "pod": "train-0"},
        ("team-a/train-0",),
    )
    yield Case("not confirmed", "GpuwatchPartialGang", {gang.replace('"idle",w', '"unknown",w'): "1x60"}, {60: []})
    cost = series("gpuwatch_cost_per_hour", SELF, 'workload_namespace="team-a",state="idle",currency="USD"')
    yield from edges(
        "GpuwatchIdleWaste",
        1440,
        {cost: 10},
        {cost: 10.5},
        {"namespace": "team-a", "currency": "USD"},
        ("team-a", "USD", "10.5"),
    )


def itself_cases(s: int) -> Iterator[Case]:  # noqa: PLR0915
    info, down = series("gpuwatch_build_info", SELF, 'version="1"'), "GpuwatchDown"
    yield Case("up", down, {info: "1x90"}, {90: []})
    yield Case("never there", down, {"other": "1x90"}, {14: [], 15: [{}]})
    yield Case(
        "gone",
        down,
        {info: "1x99 stale", series("gpuwatch_build_info", 'cluster="c2"'): "1x3000"},
        {99: [], 114: [], 115: [{"cluster": "c1"}], 1539 - s: [{"cluster": "c1"}], 1540 - s: []},
        ("c1",),
    )
    yield Case(
        "gone for days",
        down,
        {info.replace('cluster="c1",', ""): "1x99 stale", "other": "1x3000"},
        {115: [{}], 1500: [{}], 1538: [{}], 1540: [{}], 1600: [{}], 2900: [{}]},
    )
    yield Case("one of two", down, {info: "1x20 stale", info.replace("gpuwatch-0", "gpuwatch-1"): "1x90"}, {90: []})

    lead, second = (series("gpuwatch_leader", SELF.replace("gpuwatch-0", pod)) for pod in ("gpuwatch-0", "gpuwatch-1"))
    yield from edges(
        "GpuwatchNoLeader", 5, {lead: 1, second: 0}, {lead: 0, second: 0}, THE_SELF, ("Namespace gpuwatch",)
    )
    yield from edges(
        "GpuwatchTwoLeaders", 2, {lead: 1, second: 0}, {lead: 1, second: 1}, THE_SELF, ("2 replicas", "gpuwatch")
    )

    cycle, stale = series("gpuwatch_cycle_timestamp_seconds", SELF), "GpuwatchAnalysisStale"
    # 600 seconds after second -1 is before minute 10, after second 0 it is not.
    yield Case("just late", stale, {cycle: "-1x30"}, {14: [], 15: [THE_SELF]}, ("Namespace gpuwatch",))
    yield Case("just not late", stale, {cycle: "0x30"}, {15: [], 16: [THE_SELF]}, ("ago",))
    yield Case("in time", stale, {cycle: "0+60x30"}, {30: []})
    yield Case("no leader", stale, {cycle: "0x12 stale"}, {12: [], 17: []})

    def burst(
        alert: str,
        name: str,
        more: str,
        window: int,
        few: int,
        many: int,
        labels: Labels,
        *says: str,
        wait: int = 0,
        length: int = 0,
    ) -> Iterator[Case]:
        """A counter that rises within one minute, and one that begins anew."""
        metric = series(name, SELF, *([more] if more else []))
        yield Case(
            "few", alert, {metric: f"7x59 {7 + few}x300"}, {m: [] for m in (60, 61, 60 + window // 2, 60 + window)}
        )
        if not wait:
            yield Case(
                "many",
                alert,
                {metric: f"7x59 {7 + many}x300"},
                {59: [], 60: [labels], 59 + window - s: [labels], 60 + window - s: []},
                says,
            )
            yield Case(
                "counter restarts",
                alert,
                {metric: f"7x59 0x4 {many}x300"},
                {59: [], 60: [], 64: [], 65: [labels]},
                says,
            )
            yield Case("gap", alert, {metric: "7x59 stale _x9 7x300"}, {59: [], 75: [], 100: []})

    yield from burst(
        "GpuwatchTaskFailing",
        "gpuwatch_task_errors_total",
        'task="cycle"',
        30,
        2,
        3,
        {**THE_SELF, "task": "cycle"},
        "cycle",
        "3 times",
    )
    yield from burst(
        "GpuwatchTaskMissed",
        "gpuwatch_task_missed_total",
        'task="cycle"',
        30,
        2,
        3,
        {**THE_SELF, "task": "cycle"},
        "cycle",
        "3 times",
    )
    yield from burst(
        "GpuwatchInventoryDrift",
        "gpuwatch_inventory_drift_total",
        'resource="pods"',
        120,
        0,
        1,
        {**THE_SELF, "resource": "pods"},
        "1 pods",
    )
    yield from burst(
        "GpuwatchRemediationFailed",
        "gpuwatch_remediation_transitions_total",
        'action="taint_node",phase="Failed"',
        60,
        0,
        1,
        {**THE_SELF, "action": "taint_node"},
        "taint_node",
        "1 Remediation",
    )
    fine = series("gpuwatch_remediation_transitions_total", SELF, 'action="taint_node",phase="Succeeded"')
    yield Case("succeeded", "GpuwatchRemediationFailed", {fine: "0x9 1x50"}, {20: []})

    refused, label = "GpuwatchWritesRefused", {**THE_SELF, "verb": "patch", "failure": "forbidden"}
    failure = series("gpuwatch_cluster_write_failures_total", SELF, 'verb="patch",dry_run="false",failure="forbidden"')
    yield Case("one", refused, {failure: "0x19 1x60"}, {m: [] for m in (20, 33, 34, 35, 36)})
    pause = {failure: f"0x19 1x{15 - s} 2x60"}
    yield Case("a pause between", refused, pause, {m: [] for m in (34, 35, 36, 48, 51)})
    yield Case("on and on", refused, {failure: f"0x19 1x{14 - s} 2x60"}, {34: [], 35: [label]}, ("patch", "forbidden"))
    for name, other in (
        ("dry run", failure.replace("false", "true")),
        ("budget", failure.replace("forbidden", "budget")),
        ("conflict", failure.replace("forbidden", "conflict")),
    ):
        yield Case(name, refused, {other: "0+1x60"}, {60: []})

    settings = series("gpuwatch_settings_last_reload_successful", SELF)
    yield from edges(
        "GpuwatchSettingsRejected", 5, {settings: 1}, {settings: 0}, {"instance": "10.0.0.1:8080"}, ("10.0.0.1:8080",)
    )
    yield from own("GpuwatchGaps", 15, "gpuwatch_gaps", (0, 1), 'kind="refused"', {"kind": "refused"}, "refused")
    yield Case(
        "not to be repaired", "GpuwatchGaps", {series("gpuwatch_gaps", SELF, 'kind="signal_missing"'): "5x30"}, {30: []}
    )
    known = {series("gpuwatch_devices", SELF, 'state="known"'): "100x50"}
    unknown = series("gpuwatch_unknown", SELF, 'subject="device_health"')
    yield from edges("GpuwatchHealthUnknown", 30, {unknown: 20}, {unknown: 21}, THE_SELF, ("21%",), known)
    yield Case("no devices", "GpuwatchHealthUnknown", {unknown: "0x50", next(iter(known)): "0x50"}, {50: []})
    yield from own(
        "GpuwatchInventoryStale",
        10,
        "gpuwatch_inventory_age_seconds",
        (300, 301),
        'resource="pods"',
        {"resource": "pods"},
        "pods",
        "5m 1s",
    )
    yield from own("GpuwatchBrake", 10, "gpuwatch_brake", (0, 1), "", None, "gpuwatch")
    yield from own("GpuwatchPaused", 1440, "gpuwatch_paused", (0, 1), "", None, "gpuwatch")
    flight, limit = (
        series("gpuwatch_budget_in_flight_gpus", SELF, 'scope="pool/a"'),
        series("gpuwatch_budget_limit_gpus", SELF, 'scope="pool/a"'),
    )
    budget = {**THE_SELF, "scope": "pool/a"}
    yield from edges(
        "GpuwatchBudgetExhausted", 60, {flight: 7.9}, {flight: 8}, budget, ("pool/a", "8 GPUs"), {limit: "8x90"}
    )
    yield Case("nothing may be", "GpuwatchBudgetExhausted", {flight: "0x90", limit: "0x90"}, {90: []})
    yield Case("one of one", "GpuwatchBudgetExhausted", {flight: "1x90", limit: "1x90"}, {90: [budget]})
    paused = series("gpuwatch_paused", SELF)
    for phase in ("Acting", "Undoing"):
        stuck = series("gpuwatch_remediations", SELF, f'action="evict_gang",phase="{phase}"')
        here = {**THE_SELF, "phase": phase, "action": "evict_gang"}
        yield Case(f"{phase} none", "GpuwatchRemediationStuck", {stuck: "0x90", paused: "0x90"}, {90: []})
        yield Case(
            f"{phase} one",
            "GpuwatchRemediationStuck",
            {stuck: "1x90", paused: "0x90"},
            {59: [], 60: [here]},
            (phase, "evict_gang"),
        )
        yield Case(f"{phase} paused", "GpuwatchRemediationStuck", {stuck: "1x90", paused: "1x90"}, {90: []})
    yield Case(
        "waits",
        "GpuwatchRemediationStuck",
        {series("gpuwatch_remediations", SELF, 'action="evict_gang",phase="Proposed"'): "1x90"},
        {90: []},
    )
    yield from own("GpuwatchGangNotRunning", 1, "gpuwatch_remediations_overdue", (0, 1), "", None, "1 Remediations")
    yield from own("GpuwatchUndelivered", 15, "gpuwatch_notifications_undelivered", (0, 1), "", None, "1 notifications")
    due, done = (series(f"gpuwatch_report_{name}_timestamp_seconds", SELF) for name in ("due", "done"))
    late = "GpuwatchReportLate"
    yield Case(
        "just late", late, {due: "-1x2200", done: "-2x2200"}, {2164: [], 2165: [THE_SELF]}, ("Namespace gpuwatch",)
    )
    yield Case("just not late", late, {due: "0x2200", done: "-2x2200"}, {2165: [], 2166: [THE_SELF]})
    yield Case("finished", late, {due: "0x2200", done: "0x2200"}, {2200: []})
    detector = series("gpuwatch_detector_precision_ratio", SELF, 'detector="ecc",bound="upper"')
    yield from edges(
        "GpuwatchDetectorImprecise", 60, {detector: 0.9}, {detector: 0.899}, {"detector": "ecc"}, ("ecc", "89.9%")
    )
    yield Case("lower bound", "GpuwatchDetectorImprecise", {detector.replace("upper", "lower"): "0.1x90"}, {90: []})


def all_cases(major: int) -> list[Case]:
    """Cases for a Prometheus of this major version: 3 leaves the first moment out of a window, 2 counts it in."""
    s = 1 if major >= 3 else 0
    made = (xid_cases, hardware_cases, presence_cases, use_cases, finding_cases, itself_cases)
    return [case for each in made for case in each(s)]
