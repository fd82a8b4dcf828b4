"""The recorded layer: what every exporter says, under one set of names and labels.

Which metric carries which signal, its unit, its preference and its bounds of physics come from gpuwatch's own catalog,
so do the shares of MIG instances and the labels that name a host. Nothing of it is written down twice.

Levels: `device` is a MIG instance, an AMD partition or a whole GPU; `gpu` is the card; then node, namespace, cluster.
Every row of an exporter is first reduced to its device or card by `max by (…)` without any label of the scrape. That
removes doubles of every origin: several Pods on a shared GPU, MIG rows that repeat the card's power, two scrapers, the
old and the new name while an exporter is upgraded.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from gpuwatch.facts.catalog.gpus import gpu_share_ratio, gpus
from gpuwatch.facts.catalog.metrics import MetricRow, plausible_range, rows_for
from gpuwatch.facts.catalog.mig import geometry
from gpuwatch.facts.model.telemetry import Signal, Vendor
from gpuwatch.judge.health.link import COUNTERS
from gpuwatch.sources.telemetry.labels import EXPORTER_CONTAINERS, EXPORTER_POD, NODE_LABELS

CARD = ("cluster", "node", "UUID", "gpu", "modelName")
DEVICE = (*CARD, "GPU_I_ID", "GPU_I_PROFILE")
WORKLOAD = ("namespace", "pod", "container")

INTERVAL = "30s"

SIGNALS = {
    "device:gpu_engine_active_ratio:max": Signal.BUSY_RATIO,
    "device:gpu_sm_active_ratio:max": Signal.SM_ACTIVE_RATIO,
    "device:gpu_tensor_active_ratio:max": Signal.TENSOR_ACTIVE_RATIO,
    "device:gpu_dram_active_ratio:max": Signal.DRAM_ACTIVE_RATIO,
    "device:gpu_memory_used_bytes:max": Signal.MEMORY_USED_BYTES,
    "device:gpu_memory_total_bytes:max": Signal.MEMORY_TOTAL_BYTES,
    "gpu:gpu_temperature_celsius:max": Signal.GPU_TEMPERATURE_CELSIUS,
    "gpu:gpu_memory_temperature_celsius:max": Signal.MEMORY_TEMPERATURE_CELSIUS,
    "gpu:gpu_power_watts:max": Signal.POWER_WATTS,
    "gpu:gpu_power_limit_watts:max": Signal.POWER_LIMIT_WATTS,
    "gpu:gpu_sm_clock_hertz:max": Signal.SM_CLOCK_HERTZ,
    # A gauge that holds the last code: never in rate(), increase() or sum().
    "gpu:gpu_xid:last": Signal.XID_CODE,
    "gpu:gpu_recovery_action:max": Signal.RECOVERY_ACTION_CODE,
    "gpu:gpu_row_remap_failed:max": Signal.ROW_REMAP_FAILED_STATE,
    "gpu:gpu_row_remap_pending:max": Signal.ROW_REMAP_PENDING_STATE,
    "gpu:gpu_ecc_uncorrected_ever:max": Signal.ECC_DBE_AGGREGATE_TOTAL,
    "gpu:gpu_ecc_uncorrected_since_reload:max": Signal.ECC_DBE_VOLATILE_TOTAL,
    "gpu:gpu_ecc_corrected_since_reload:max": Signal.ECC_SBE_VOLATILE_TOTAL,
    "gpu:gpu_pcie_replays_since_reload:max": Signal.PCIE_REPLAYS_TOTAL,
    "gpu:gpu_thermal_throttle_seconds:max": Signal.THERMAL_THROTTLE_SECONDS_TOTAL,
    "gpu:gpu_power_brake_seconds:max": Signal.HW_POWER_BRAKE_SECONDS_TOTAL,
}
"""Recorded series that hold one signal each; a vendor whose exporter lacks the signal records none."""

NVLINK = [signal for signal in COUNTERS if signal.startswith("nvlink_")]
"""Counters of errors and of lost links, which gpuwatch's own rule compares as well."""

PRESENT = {
    # What says that a device is there, and who holds it: in every default list, and on every row of a device. AMD
    # gives temperatures on the first partition alone.
    Vendor.NVIDIA: Signal.GPU_TEMPERATURE_CELSIUS,
    Vendor.AMD: Signal.MEMORY_TOTAL_BYTES,
    Vendor.INTEL: Signal.MEMORY_USED_BYTES,
    Vendor.GAUDI: Signal.MEMORY_USED_BYTES,
}

PARTS = ("sub_dev", "com_intel_subdevice_id", "error_category")
"""Labels of rows that are parts of one device, for what the catalog says to sum."""

PERCENT_FROM = 1.5
"""Above it a ratio is percent: DCGM 4.6 has GPU_UTIL_RATIO as another name of GPU_UTIL (catalog/metrics.py)."""


def rule_groups() -> list[dict[str, Any]]:
    """The groups of rules/gpuwatch-recording.yaml: one per vendor, then what is the same for all of them."""
    vendors = [_group(vendor.value, _of_vendor(vendor)) for vendor in Vendor]
    return [*vendors, _group("totals", TOTALS)]


def _group(name: str, rules: Mapping[str, str]) -> dict[str, Any]:
    listed = [{"record": record, "expr": expression.strip() + "\n"} for record, expression in rules.items()]
    return {"name": f"gpuwatch-recording-{name}", "interval": INTERVAL, "rules": listed}


def _of_vendor(vendor: Vendor) -> dict[str, str]:
    rules = {"device:gpu_share:ratio": SHARES[vendor], "device:gpu_workload:info": WORKLOADS[vendor]}
    for record, signal in SIGNALS.items():
        expression = _signal(vendor, signal, DEVICE if record.startswith("device:") else CARD)
        if expression:
            rules[record] = expression
    if vendor is Vendor.NVIDIA:
        rules["device:gpu_memory_total_bytes:max"] += _total_of_parts()
        rules["gpu_kind:gpu_nvlink_errors:rate15m"] = _nvlink_errors()
    return rules


# One signal of one vendor

_PRECEDENCE = attrgetter("preference", "combine")


def _rows(vendor: Vendor, signal: Signal) -> list[MetricRow]:
    """Rows of all vocabularies of the vendor, preferred ones first, each metric once."""
    once: dict[tuple[object, ...], MetricRow] = {}
    for row in rows_for(signal):
        if row.vendor is vendor:
            once.setdefault((row.metric, row.matchers), row)
    return sorted(once.values(), key=_PRECEDENCE)


def _signal(vendor: Vendor, signal: Signal, labels: Sequence[str]) -> str:
    """The signal per device or card. `or` between the preferences: both sides have the same labels by then.

    Values over the bound of physics are sentinels for 'no value' and are dropped.
    """
    choices = []
    for (preference, combine), rows in groupby(_rows(vendor, signal), key=_PRECEDENCE):
        alternatives = list(rows)
        inner = _either(_scaled(row, whole_only=signal is Signal.BUSY_RATIO and preference > 1) for row in alternatives)
        bound = f"<= {plausible_range(signal)[1]:g}"
        if any(row.zero_means_absent for row in alternatives):
            bound += " > 0"
        choices.append(f"{_reduced(combine, labels, vendor, inner)} {bound}")
    return _either(choices)


def _scaled(row: MetricRow, *, whole_only: bool = False) -> str:
    # On MIG instances GPU_UTIL is missing or, with some versions, a zero that means nothing (dcgm-exporter #216).
    matchers = _own(row)
    if whole_only and row.vendor is Vendor.NVIDIA:
        matchers.append('GPU_I_ID=""')
    metric = _select(row.metric, *matchers)
    if row.metric.endswith("_RATIO") and "_PROF_" not in row.metric:
        return f"{metric} / (1 + 99 * (max_over_time({metric}[1h]) > bool {PERCENT_FROM:g}))"
    return metric if row.scale == 1 else f"{row.scale:.12g} * {metric}"


def _own(row: MetricRow) -> list[str]:
    return [f'{label}="{value}"' for label, value in row.matchers]


def _reduced(combine: str, labels: Sequence[str], vendor: Vendor, inner: str) -> str:
    if combine == "sum":  # of the parts, each once
        return f"sum by ({_list(labels)}) ({_reduced('max', (*labels, *PARTS), vendor, inner)})"
    return f"{combine} by ({_list(labels)}) (\n{_indented(_named(vendor, inner))}\n)"


def _total_of_parts() -> str:
    """Where the total is not exported, as in dcgm-exporter's default list up to 4.8: used, free and reserved.

    Old drivers have no reserved memory to tell of. Used and free alone would count it as not there.
    """
    used = "device:gpu_memory_used_bytes:max"
    free, reserved = (
        f"({_signal(Vendor.NVIDIA, signal, DEVICE)})"
        for signal in (Signal.MEMORY_FREE_BYTES, Signal.MEMORY_RESERVED_BYTES)
    )
    return f"\nor\n{used}\n+ {free}\n+ ({reserved} or 0 * {used})"


def _nvlink_errors() -> str:
    """Per second and kind of error, over all links. Rows of a link name the card in labels of their own.

    A card has 18 links with many counters each, so links are added up before any label is rewritten.
    """
    names = ("cluster", *NODE_LABELS, "UUID", "gpu_uuid", "gpu", "modelName", "model_name")
    kinds = []
    for signal in NVLINK:
        added = (
            f"sum by ({_list(names)}) (max by ({_list((*names, 'nvlink'))}) (rate({row.metric}[15m])))"
            for row in _rows(Vendor.NVIDIA, signal)
        )
        rows = _label_join(_either(added), "UUID", "", ("UUID", "gpu_uuid"))
        rows = _label_join(rows, "modelName", "", ("modelName", "model_name"))
        kind = signal.removeprefix("nvlink_").removesuffix("_total")
        kinds.append(_replace(_reduced("max", CARD, Vendor.NVIDIA, rows), "kind", kind, "", ""))
    return _either(kinds)


# Labels: each vendor's own become DCGM's, except for the host, which becomes `node`


def _named(vendor: Vendor, inner: str) -> str:
    """The rows with `node` and with DCGM's labels. `node` is the first label of NODE_LABELS that says something."""
    hosted = first_of(inner, "node", NODE_LABELS)
    if vendor is Vendor.AMD:
        return _amd(hosted)
    if vendor is Vendor.INTEL:
        return _intel(hosted)
    return _replace(hosted, "gpu", "$1", "id", "(.+)") if vendor is Vendor.GAUDI else hosted


_WHOLE = "(?i:none|na|n/a|spx)?"
"""AMD's compute partition mode of a card that is not divided."""


def _amd(rows: str) -> str:
    """gpu_uuid is not exported by default; then host, serial number and index are the card's name, as in labels.py.

    A divided card is its host and serial number, and has its partitions in GPU_I_ID, with the modes as their profile.
    """
    ids = ("gpu_partition_id", "hostname", "serial_number", "gpu_id", "gpu_uuid", "hostname", "gpu_id")
    modes = ("gpu_compute_partition_type", "gpu_memory_partition_type")
    one, text = "[^:]*:", "[^:]+"
    uuid = (
        f"{_WHOLE}:(?:{one}){{5}}({text}):.*",  # whole, with gpu_uuid
        f"{_WHOLE}:(?:{one}){{2}}({one}{text}:{text}):.*",  # whole: host, serial, index
        f"(?:{one}){{3}}({one}{text}):.*",  # divided: host, serial
        f"(?:{one}){{6}}({text}):.*",  # no serial: gpu_uuid
        f".*:({one}[^:]*)",  # no serial, no gpu_uuid: host, index
    )
    rows = _label_join(rows, "ids", ":", (*modes, *ids))
    rows = _replace(rows, "UUID", "$1$2$3$4$5", "ids", "|".join(uuid))
    rows = _replace(rows, "gpu", "$1", "ids", f"{_WHOLE}:(?:{one}){{4}}([^:]*):.*")
    rows = _replace(rows, "GPU_I_ID", "$1", "ids", f"{_WHOLE}:.*|(?:{one}){{2}}([^:]*):.*")
    rows = _replace(rows, "GPU_I_PROFILE", "${1}_$2", "ids", f"({text}):({text}):.*")
    rows = _replace(rows, "GPU_I_PROFILE", "", "ids", f"{_WHOLE}:.*")
    return first_of(rows, "modelName", ("card_series", "card_model"))


def _intel(rows: str) -> str:
    """XPU Manager 1.x has a uuid; 2.x a PCI address, which is unique on its host."""
    place = _label_join(rows, "ids", ";", ("uuid", "node", "instance", "pci_bdf", "hw_id"))
    host, pci = "(?:([^;]+);[^;]*|;([^;]*))", "(?:([^;]+);[^;]*|;([^;]*))"
    rows = _replace(place, "UUID", "$1$2:$3$4", "ids", f";{host};{pci}")
    rows = _replace(rows, "UUID", "$1", "uuid", "(.+)")
    rows = _replace(rows, "gpu", "$1", "card", "(.+)")
    return first_of(rows, "modelName", ("dev_name", "hw_name"))


def first_of(rows: str, label: str, sources: Sequence[str]) -> str:
    """The first of the labels that is not empty."""
    return _replace(_label_join(rows, "first", ";", sources), label, "$1", "first", ";*([^;]+).*")


def _replace(rows: str, label: str, value: str, source: str, pattern: str) -> str:
    return f'label_replace({rows}, "{label}", "{value}", "{source}", "{pattern}")'


def _label_join(rows: str, label: str, separator: str, sources: Sequence[str]) -> str:
    listed = ", ".join(f'"{source}"' for source in sources)
    return f'label_join({rows}, "{label}", "{separator}", {listed})'


# Shares of a card


def _mig_shares() -> str:
    """1 for a whole GPU; for a MIG instance its share of the card's memory slices, as `gpu_share_ratio` has it.

    One name may mean two shares: 1g.10gb is two of eight slices of an A100 with 40 GB and one with 80 GB. The models
    decide; on a model that the catalog does not know the smaller share holds, so that shares never exceed the card.
    """
    models: dict[str, dict[float, list[str]]] = {}
    for gpu in gpus():
        cut = geometry(gpu.mig_family)
        for profile in cut.profiles if cut else ():
            shares = models.setdefault(profile.name, {})
            shares.setdefault(gpu_share_ratio(gpu.name, profile.name), []).extend((gpu.name, *gpu.aliases))
    terms = [
        _share(share, f'GPU_I_PROFILE="{profile}"', f'modelName=~"{_model_pattern(shares[share])}"')
        for profile, shares in sorted(models.items())
        for share in sorted(shares)[1:]
    ]
    plain: dict[float, list[str]] = {}
    for name, shares in sorted(models.items()):
        plain.setdefault(min(shares), []).append(re.sub(r"([.+])", r"[\1]", name))
    terms += [
        _share(share, f'GPU_I_PROFILE=~"{"|".join(profiles)}"')
        for share, profiles in sorted(plain.items())
        if share < 1
    ]
    return _either([*terms, _share(1)])


def _share(share: float, *matchers: str) -> str:
    there = _grouped(DEVICE, Vendor.NVIDIA, _present(Vendor.NVIDIA, *matchers))
    return there if share == 1 else f"{share:.12g} * {there}"


def _model_pattern(names: Iterable[str]) -> str:
    """Any of the names, however modelName writes it: with the maker in front, spaces or dashes (catalog/gpus.py)."""
    spellings = {re.sub(r"[\s_-]+", "[-_ ]", re.sub(r"(?i)^(nvidia|tesla)[\s_-]+", "", name)) for name in names}
    return f"(?i)((NVIDIA|Tesla)[-_ ])*({'|'.join(sorted({each.lower() for each in spellings}))})"


def _amd_shares() -> str:
    """Partitions of an AMD card are equal, so a card's share is divided by their number."""
    there = _grouped(DEVICE, Vendor.AMD, _present(Vendor.AMD))
    return f"{there}\n/ on ({_list(CARD)}) group_left ()\ncount by ({_list(CARD)}) ({there})"


def _present(vendor: Vendor, *matchers: str) -> str:
    return _either(_select(row.metric, *_own(row), *matchers) for row in _rows(vendor, PRESENT[vendor]))


def _grouped(labels: Sequence[str], vendor: Vendor, inner: str) -> str:
    return f"group by ({_list(labels)}) (\n{_indented(_named(vendor, inner))}\n)"


# Workloads


def _kubernetes_workloads(vendor: Vendor) -> str:
    """exported_pod with honorLabels: false. With true it is pod, which on an idle device is the exporter's own."""
    exported = _present(vendor, 'exported_pod!=""')
    for label in WORKLOAD:
        exported = _replace(exported, label, "$1", f"exported_{label}", "(.*)")
    own = (
        'exported_pod=""',
        'pod!=""',
        f'container!~"{"|".join(sorted(EXPORTER_CONTAINERS))}"',
        f'pod!~".*{EXPORTER_POD.pattern}.*"',
    )
    return _grouped((*DEVICE, *WORKLOAD), vendor, _either((exported, _present(vendor, *own))))


def _labelled_workloads(vendor: Vendor, sources: Sequence[str]) -> str:
    """Exporters with labels of their own for the Pod; what the target has in ours is overwritten."""
    rows = _present(vendor, f'{sources[1]}!=""')
    for label, source in zip(WORKLOAD, sources, strict=True):
        rows = _replace(rows, label, "$1", source, "(.*)")
    return _grouped((*DEVICE, *WORKLOAD), vendor, rows)


# Text


def _select(metric: str, *matchers: str) -> str:
    return f"{metric}{{{', '.join(matchers)}}}" if matchers else metric


def _either(expressions: Iterable[str]) -> str:
    return "\nor\n".join(expressions)


def _list(labels: Sequence[str]) -> str:
    return ", ".join(labels)


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


SHARES = {
    Vendor.NVIDIA: _mig_shares(),
    Vendor.AMD: _amd_shares(),
    Vendor.INTEL: _grouped(DEVICE, Vendor.INTEL, _present(Vendor.INTEL)),
    Vendor.GAUDI: _grouped(DEVICE, Vendor.GAUDI, _present(Vendor.GAUDI)),
}

WORKLOADS = {
    Vendor.NVIDIA: _kubernetes_workloads(Vendor.NVIDIA),
    Vendor.AMD: _kubernetes_workloads(Vendor.AMD),
    Vendor.INTEL: _labelled_workloads(Vendor.INTEL, ("kube_namespace", "kube_pod", "kube_container")),
    # The empty source takes the target's own container away.
    Vendor.GAUDI: _labelled_workloads(Vendor.GAUDI, ("pod_namespace", "pod_name", "no_container")),
}

_D, _C = _list(DEVICE), _list(CARD)
_RATIO, _SHARE = "device:gpu_engine_active_ratio:max", "device:gpu_share:ratio"
_HOLDS = f"group by ({_D}, namespace) (device:gpu_workload:info)"

TOTALS = {
    "device:gpu_allocated:bool": f"group by ({_D}) (device:gpu_workload:info)",
    # Counters become rates here, per card and not per row of the exporter: a row ends when its Pod does, and an error
    # that ends the Pod would fall between two series.
    "gpu:gpu_ecc_uncorrected:increase1h": """
increase(gpu:gpu_ecc_uncorrected_ever:max[1h])
or
increase(gpu:gpu_ecc_uncorrected_since_reload:max[1h])""",
    "gpu:gpu_ecc_corrected:rate1h": "rate(gpu:gpu_ecc_corrected_since_reload:max[1h])",
    "gpu:gpu_nvlink_errors:rate15m": f"sum by ({_C}) (gpu_kind:gpu_nvlink_errors:rate15m)",
    "gpu:gpu_pcie_replays:rate15m": "rate(gpu:gpu_pcie_replays_since_reload:max[15m])",
    "gpu:gpu_thermal_throttle_ratio:rate15m": "rate(gpu:gpu_thermal_throttle_seconds:max[15m])",
    "gpu:gpu_power_brake_ratio:rate15m": "rate(gpu:gpu_power_brake_seconds:max[15m])",
    # AMD's partitions (cpx_nps4) are equal and only the first tells its activity, so it stands for the card.
    "gpu:gpu_engine_active_ratio:weighted": f"""
sum by ({_C}) ({_RATIO}{{GPU_I_PROFILE!~".*_.*"}} * {_SHARE})
or
avg by ({_C}) ({_RATIO}{{GPU_I_PROFILE=~".*_.*"}})""",
    "gpu:gpu_allocated_ratio:sum": f"""
sum by ({_C}) ({_SHARE} and device:gpu_allocated:bool)
or
0 * group by ({_C}) ({_SHARE})""",
    "node:gpus:count": f"count by (cluster, node) (group by ({_C}) ({_SHARE}))",
    "node:gpu_engine_active_ratio:avg": "avg by (cluster, node) (gpu:gpu_engine_active_ratio:weighted)",
    "node:gpu_power_watts:sum": "sum by (cluster, node) (gpu:gpu_power_watts:max)",
    "cluster:gpus:count": f"count by (cluster, modelName) (group by ({_C}) ({_SHARE}))",
    "cluster:gpus_allocated:sum": "sum by (cluster, modelName) (gpu:gpu_allocated_ratio:sum)",
    "cluster:gpu_engine_active_ratio:avg": "avg by (cluster, modelName) (gpu:gpu_engine_active_ratio:weighted)",
    # Every device once per namespace, however many Pods share it: `group` leaves one row, so no join finds two.
    "namespace:gpus_allocated:count": f"count by (cluster, namespace) ({_HOLDS})",
    # In GPUs: an instance is its share, and a device that several namespaces hold is divided between them.
    "namespace:gpus_allocated:sum": f"""
sum by (cluster, namespace) (
  {_HOLDS}
  * on ({_D}) group_left () {_SHARE}
  / on ({_D}) group_left () count by ({_D}) ({_HOLDS})
)""",
    "namespace:gpu_engine_active_ratio:avg": f"""
sum by (cluster, namespace) ({_HOLDS} * on ({_D}) group_left () ({_RATIO} * {_SHARE}))
/
sum by (cluster, namespace) ({_HOLDS} * on ({_D}) group_left () ({_SHARE} and {_RATIO}))""",
}
