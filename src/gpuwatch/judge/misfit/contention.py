"""Workloads that share a GPU and need more memory bandwidth, or more of its link to the host, than it has.

A shared GPU's counters show its load, but not whose it is. The demand of a workload is known only where another of its
Pods has a GPU of the same model to itself; without that, contention is only suspected. Time-sliced Pods take turns at
full bandwidth, which costs them as much as a part of the bandwidth all the time.

MIG instances are left out: each has its own memory bandwidth, and their traffic to the host is not exported. GPUs of
one Node that may share a PCIe switch are UNKNOWN (with `everything`), as telemetry does not show which do.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property

from gpuwatch.facts.catalog.gpus import pcie_generations
from gpuwatch.facts.model.bounds import named, require
from gpuwatch.facts.model.cluster import Pod
from gpuwatch.facts.model.decision import Advice, Evidence, Finding, FindingKind, Severity, Snapshot, Verdict
from gpuwatch.facts.model.telemetry import Device, Signal, Statistic, Vendor, WindowStat
from gpuwatch.judge.fleet import conclude, measured, on_node

_HOUR = 3600
_DAY = 24 * _HOUR
DRAM_PEAK_RATIO = 0.8
"""Highest DRAM activity of kernels: NVIDIA's guide to DCGM's profiling metrics."""
PCIE_PEAK_RATIO = 0.92
"""Share of a link's rate (after its encoding) for packets, as DCGM counts them: 57.88 of 62.96 Gbit/s; flow control and
acknowledgements take the rest (Neugebauer et al., SIGCOMM 2018)."""

SIGNALS: Mapping[FindingKind, tuple[Signal, ...]] = {
    FindingKind.HBM_CONTENTION: (Signal.DRAM_ACTIVE_RATIO,),
    FindingKind.PCIE_CONTENTION: (Signal.PCIE_RX_BYTES_PER_SECOND, Signal.PCIE_TX_BYTES_PER_SECOND),
}
_WORDS = {
    Signal.DRAM_ACTIVE_RATIO: "its memory's bandwidth",
    Signal.PCIE_RX_BYTES_PER_SECOND: "its link from the host",
    Signal.PCIE_TX_BYTES_PER_SECOND: "its link to the host",
}
_LINK = (Signal.PCIE_LINK_GENERATION, Signal.PCIE_LINK_WIDTH_LANES)


@dataclass(frozen=True, slots=True, kw_only=True)
class MisfitPolicy:
    """When Pods contend for a shared GPU.

    window_seconds: time over which traffic is judged and Pods must share the GPU. 1 h: a move costs some of it.
    min_coverage_ratio: share of the window's samples below which the verdict is UNKNOWN. 0.8, as for idleness.
    saturated_ratio: share of a peak from which a GPU is saturated. 0.9: the peaks of GPUs and access patterns
        differ by as much, and queues are long at nine tenths of a capacity.
    """

    window_seconds: int = _HOUR
    min_coverage_ratio: float = 0.8
    saturated_ratio: float = 0.9

    def __post_init__(self) -> None:
        ratios, seconds = named(self, "_ratio"), named(self, "_seconds")
        require(self, "misfit.", ratios, lambda value: 0 < value <= 1, "a ratio above 0 and up to 1")
        require(self, "misfit.", seconds, lambda value: 0 < value <= _DAY, "seconds, above 0 and within a day")


def contention_needs(policy: MisfitPolicy) -> Mapping[str, tuple[WindowStat, ...]]:
    """The statistics that each rule (`Finding.rule`) reads."""
    window = policy.window_seconds
    found = {
        f"misfit.{kind}": tuple(stat for signal in signals for stat in _traffic(signal, window))
        for kind, signals in SIGNALS.items()
    }
    link = tuple(WindowStat(signal, Statistic.MAX, window) for signal in _LINK)
    found[f"misfit.{FindingKind.PCIE_CONTENTION}"] += link
    return found


def _traffic(signal: Signal, window: int) -> tuple[WindowStat, WindowStat, WindowStat]:
    """The median, the mean and the number of samples of the window."""
    return (
        WindowStat(signal, Statistic.QUANTILE, window, 0.5),
        WindowStat(signal, Statistic.AVG, window),
        WindowStat(signal, Statistic.COUNT, window),
    )


@dataclass(frozen=True, slots=True)
class _Load:
    """A GPU's traffic of one signal and its peak; None where unknown."""

    signal: Signal
    value: float | None
    peak: float | None

    def full(self, policy: MisfitPolicy) -> bool:
        return self.value is not None and self.peak is not None and self.value >= policy.saturated_ratio * self.peak


class Contention:
    def __init__(self, snapshot: Snapshot, policy: MisfitPolicy, *, everything: bool = False) -> None:
        self._snapshot = snapshot
        self._policy = policy
        self._everything = everything
        self._pods = {pod.ref: pod for pod in snapshot.cluster.pods}
        self._settled = snapshot.at - timedelta(seconds=policy.window_seconds)

    def findings(self) -> Iterable[Finding]:
        """One per kind and saturated shared GPU; with everything, one per shared GPU, and UNKNOWN ones on Nodes."""
        for device in self._snapshot.devices:
            whole = device.present and device.vendor is Vendor.NVIDIA and device.mig_instance is None
            for kind in SIGNALS if whole and len(set(device.pods)) > 1 else ():
                found = self._judge(device, kind)
                if found.verdict is Verdict.MISFIT or self._everything:
                    yield found
        if self._everything:
            yield from self._across_nodes()

    def _judge(self, device: Device, kind: FindingKind) -> Finding:
        strangers = sorted({ref for ref in device.pods if ref not in self._pods})
        if strangers:
            return self._unknown(device, kind, f"the Pod {strangers[0]}, which holds it")
        here = self._groups(self._pods[ref] for ref in dict.fromkeys(device.pods))
        if len(here) < 2:
            summary = "all of its Pods are of one workload"
            return conclude(device, kind, Verdict.HEALTHY, summary)
        settled = [key for key, pods in here.items() if any(self._lasts(pod) for pod in pods)]
        if len(settled) < 2:
            return self._unknown(device, kind, f"{self._policy.window_seconds // 60} min of two workloads on it")
        loads = [_Load(signal, self._answer(device, signal), self._peak(device, signal)) for signal in SIGNALS[kind]]
        full = [load for load in loads if load.full(self._policy)]
        if full:
            return self._contended(device, kind, here, full)
        missing = [str(name) for load in loads for name in self._missing(load)]
        if missing:
            return self._unknown(device, kind, *dict.fromkeys(missing))
        words = " and ".join(_WORDS[load.signal] for load in loads)
        return conclude(
            device,
            kind,
            Verdict.HEALTHY,
            f"its workloads leave room on {words}",
            evidence=[self._evidence(device, load) for load in loads],
        )

    def _contended(
        self, device: Device, kind: FindingKind, here: Mapping[str, Sequence[Pod]], full: Sequence[_Load]
    ) -> Finding:
        asked = {load.signal: self._asked(device, load.signal, here) for load in full}
        evidence = [self._evidence(device, load) for load in full]
        over = [
            load
            for load in full
            if load.peak is not None
            and len(asked[load.signal]) == len(here)
            and sum(amount for amount, _ in asked[load.signal].values()) > load.peak
        ]
        words = " and ".join(_WORDS[load.signal] for load in over or full)
        names = f"{len(here)} workloads ({', '.join(sorted(here)[:3])}{', …' if len(here) > 3 else ''})"
        unclear = [key for key in sorted(here) if any(key not in asked[load.signal] for load in full)]
        suspected = conclude(
            device,
            kind,
            Verdict.MISFIT,
            f"{names} share it and {words} is at its peak; how much each of them needs is not known",
            since=self._settled,
            advice=Advice.WATCH,
            confidence_ratio=0.5,
            evidence=evidence,
            missing=[f"traffic of {key} with a GPU of this model to itself" for key in unclear],
        )
        if not over:
            return suspected
        for load in over:
            for key, (amount, alone) in sorted(asked[load.signal].items()):
                note = f"need of {key} here, by the least traffic of its Pods with a GPU to itself"
                evidence.append(self._evidence(alone, _Load(load.signal, amount, None), mean=True, note=note))
        lost = self._lost(over, asked)
        return replace(
            suspected,
            summary=f"{names} share it and need more of {words} than there is: they lose {lost:.0%} of their speed",
            severity=Severity.WARNING,
            advice=Advice.REBALANCE,
            # The demand is that of other Pods of the workload, which may do other work.
            confidence_ratio=0.85,
            evidence=tuple(evidence),
            missing=(),
            relief_gpus={key: lost - self._lost(over, asked, without=key) for key in sorted(here)},
        )

    @staticmethod
    def _lost(
        over: Sequence[_Load], asked: Mapping[Signal, Mapping[str, tuple[float, Device]]], without: str = ""
    ) -> float:
        """Share of their speed that the workloads lose at the peak; a lower bound, as means hide higher demand."""
        totals = [sum(each for key, (each, _) in asked[load.signal].items() if key != without) for load in over]
        short = zip(((load.peak or 0.0) for load in over), totals, strict=True)
        return max((1 - peak / total for peak, total in short if total > peak), default=0.0)

    def _lasts(self, pod: Pod) -> bool:
        return pod.started is not None and pod.started <= self._settled

    @staticmethod
    def _groups(pods: Iterable[Pod]) -> dict[str, list[Pod]]:
        found: dict[str, list[Pod]] = defaultdict(list)
        for pod in pods:
            found[pod.gang or pod.workload].append(pod)
        return dict(found)

    def _answer(self, device: Device, signal: Signal, *, mean: bool = False) -> float | None:
        """The window's median, or mean; None where it has too few samples."""
        window = self._policy.window_seconds
        readings = self._snapshot.readings
        medians, means, counts = _traffic(signal, window)
        share = self._snapshot.telemetry_schema.share_of_samples(readings.get(counts, device), window)
        if share is None or share < self._policy.min_coverage_ratio:
            return None
        return readings.get(means if mean else medians, device)

    def _peak(self, device: Device, signal: Signal) -> float | None:
        if signal is Signal.DRAM_ACTIVE_RATIO:
            return DRAM_PEAK_RATIO
        # The highest of the window: both fall by design while the link is idle.
        stats = (WindowStat(name, Statistic.MAX, self._policy.window_seconds) for name in _LINK)
        generation, lanes = (self._snapshot.readings.get(stat, device) for stat in stats)
        link = pcie_generations().get(int(generation or 0))
        return link.lane_bytes_per_second * lanes * PCIE_PEAK_RATIO if link and lanes else None

    @staticmethod
    def _missing(load: _Load) -> Iterable[Signal]:
        if load.value is None:
            yield load.signal
        if load.peak is None:
            yield from _LINK

    def _asked(
        self, device: Device, signal: Signal, here: Mapping[str, Sequence[Pod]]
    ) -> dict[str, tuple[float, Device]]:
        """Workload → the demand of its Pods on this GPU, and the GPU that shows it; only where one does."""
        found = {}
        for key, pods in here.items():
            alone = [
                (value, other.id, other)
                for other in self._alone.get((key, device.model), ())
                if (value := self._answer(other, signal, mean=True)) is not None
            ]
            if alone:
                least, _, other = min(alone)
                found[key] = (least * len(pods), other)
        return found

    @cached_property
    def _alone(self) -> dict[tuple[str, str], list[Device]]:
        """GPUs that one Pod had to itself through the window, by workload and model."""
        found: dict[tuple[str, str], list[Device]] = defaultdict(list)
        for device in self._snapshot.devices:
            pod = self._pods.get(device.pods[0]) if len(set(device.pods)) == 1 else None
            whole = device.present and device.mig_instance is None and device.model
            if whole and pod is not None and self._lasts(pod):
                found[pod.gang or pod.workload, device.model].append(device)
        return found

    def _across_nodes(self) -> Iterable[Finding]:
        by_node: dict[str, list[Device]] = defaultdict(list)
        for device in self._snapshot.devices:
            if device.node is not None and device.present and device.mig_instance is None and device.pods:
                by_node[device.node].append(device)
        for node, devices in sorted(by_node.items()):
            owners = self._groups(self._pods[ref] for item in devices for ref in item.pods if ref in self._pods)
            if len(devices) > 1 and len(owners) > 1:
                yield from self._across_node(node, devices, len(owners))

    def _across_node(self, node: str, devices: Sequence[Device], workloads: int) -> Iterable[Finding]:
        """GPUs of several workloads whose traffic with the host would saturate one port of a PCIe switch."""
        for signal in SIGNALS[FindingKind.PCIE_CONTENTION]:
            loads = [(self._answer(item, signal, mean=True), self._peak(item, signal)) for item in devices]
            known = [(value, peak) for value, peak in loads if value is not None and peak is not None]
            moved = sum(value for value, _ in known)
            if known and moved >= self._policy.saturated_ratio * min(peak for _, peak in known):
                found = conclude(
                    on_node(node),
                    FindingKind.PCIE_CONTENTION,
                    Verdict.UNKNOWN,
                    f"GPUs of {workloads} workloads move {moved / 1e9:.1f} GB/s over their links with the host one "
                    "way, as much as one of them carries; whether they share a switch is not known",
                    missing=["which GPUs share a PCIe switch"],
                    node=node,
                )
                pods = dict.fromkeys(ref for item in devices for ref in item.pods)
                yield replace(found, devices=tuple(item.id for item in devices), pods=tuple(pods))
                return

    def _evidence(self, device: Device, load: _Load, *, mean: bool = False, note: str = "") -> Evidence:
        medians, means, _ = _traffic(load.signal, self._policy.window_seconds)
        asked = means if mean else medians
        comparison, bound = (">=", self._policy.saturated_ratio * load.peak) if load.peak is not None else ("", None)
        return measured(self._snapshot.readings, asked, device, load.value, comparison, bound, note)

    def _unknown(self, device: Device, kind: FindingKind, *missing: str) -> Finding:
        summary = "whether its workloads contend is not known"
        return conclude(device, kind, Verdict.UNKNOWN, summary, missing=missing)
