"""A Snapshot indexed for the health rules: physical GPUs, their readings and peers; builds the findings."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from statistics import median
from typing import Any, NamedTuple, TypeAlias

from gpuwatch.facts.catalog.xids import Xid, xids
from gpuwatch.facts.model.cluster import Node, Pod
from gpuwatch.facts.model.decision import (
    Advice,
    Component,
    Evidence,
    Finding,
    FindingKind,
    Severity,
    Snapshot,
    Subject,
    SubjectKind,
    Verdict,
)
from gpuwatch.facts.model.faults import FaultMemory
from gpuwatch.facts.model.telemetry import (
    Device,
    DeviceId,
    PodRef,
    Readings,
    Signal,
    StateChange,
    WindowStat,
)
from gpuwatch.judge.health.policy import HealthPolicy

HEALTHY_CONFIDENCE = 0.9
"""Of a rule that had all its signals and found nothing: some faults these signals do not show."""

SUSPECTED = 0.6
"""Of a fault that one unconfirmed sign shows, or that has another likely explanation. It is below
`plan.min_confidence_ratio`, so it causes no action alone."""

MIN_COVERAGE_RATIO = 0.7
"""Share of a window's samples below which a rule says UNKNOWN: scrapes may fail for a while."""
PEER_SPREAD_RATIO = 0.08
"""Least spread assumed among peers, as a share of their median: the average difference between healthy GPUs of one
model (SC'22, 'Not All GPUs Are Created Equal')."""
PEER_DEVIATIONS = 3.0
"""Spreads from the peers' median at which a GPU stands out: at least 24 % of the median. The largest difference between
healthy cards in that study is 22 %."""

FLEET = Subject(SubjectKind.FLEET, "fleet")


def on_node(name: str) -> Subject:
    return Subject(SubjectKind.NODE, name)


@dataclass(frozen=True, slots=True)
class Tells:
    """A kind of finding, as its rule tells it.

    meaning: what it says, for docs/names.md. advice: of its findings by severity, `critical: reset, reboot; …`.
    components: the parts of the GPU that it is about; () where each finding sets its own, or for the whole GPU.
    rule: of several kinds that one rule tells, the name of the rule; '' where it is that of the kind.
    """

    kind: FindingKind
    meaning: str
    advice: str
    components: tuple[Component, ...] = ()
    rule: str = ""

    @property
    def of_rule(self) -> str:
        """`Finding.rule`."""
        return f"{self.kind.family}.{self.rule or self.kind}"


Conclusion: TypeAlias = Finding | Verdict
"""A rule's result for one GPU: a bare Verdict (HEALTHY or UNKNOWN) where no Finding is wanted."""

REPORTING_SIGNALS = (Signal.GPU_TEMPERATURE_CELSIUS, Signal.POWER_WATTS)
"""Every exporter has one of them for each card, so their samples show when a card and its counters reported."""


@dataclass(frozen=True, slots=True, eq=False)
class PhysicalGpu:
    """One physical GPU: itself, or its MIG instances, which share its physical faults."""

    uuid: str
    devices: tuple[Device, ...]
    lead: Device  # the device for look-ups and queries: a present one if there is any

    @property
    def present(self) -> bool:
        return self.lead.present

    @property
    def sliced(self) -> bool:
        return self.lead.id != self.uuid

    @property
    def last_seen(self) -> datetime | None:
        return max((device.last_seen for device in self.devices if device.last_seen is not None), default=None)

    @property
    def model(self) -> str:
        return self.lead.model

    @property
    def pods(self) -> tuple[PodRef, ...]:
        return tuple(dict.fromkeys(pod for device in self.devices for pod in device.pods))

    @property
    def home(self) -> str:
        return home_of(self.lead)


def home_of(device: Device) -> str:
    """Its machine: the Node, or the host as telemetry spells it."""
    return device.node or device.node_label or device.exporter


Judge: TypeAlias = Callable[[PhysicalGpu], Conclusion]
"""A rule with a fleet's readings, to be called for each of its GPUs."""

_MAD_TO_DEVIATION = 1.4826  # standard deviation ÷ median absolute deviation of a normal distribution


@dataclass(frozen=True, slots=True)
class Peers:
    """Median and spread of a cohort, in its values' unit. count: the other members. same_model: else of all models."""

    median: float
    spread: float
    count: int
    same_model: bool = True

    @property
    def upper(self) -> float:
        """Above it a GPU stands out."""
        return self.median + PEER_DEVIATIONS * self.spread

    @property
    def lower(self) -> float:
        return self.median - PEER_DEVIATIONS * self.spread

    def times(self, factor: float) -> "Peers":
        return replace(self, median=self.median * factor, spread=self.spread * factor)


def peers_of(values: Sequence[float], spread_ratio: float = PEER_SPREAD_RATIO) -> Peers:
    """Median, and the MAD scaled to a standard deviation, but at least `spread_ratio` of the median: the MAD is 0 where
    all but one are equal, and healthy cards of one model do differ. `values` holds every member."""
    middle = median(values)
    deviation = median(abs(value - middle) for value in values)
    return Peers(middle, max(_MAD_TO_DEVIATION * deviation, spread_ratio * abs(middle)), len(values) - 1)


@dataclass(frozen=True, slots=True)
class GpuAnswers:
    """One statistic's answers for all GPUs."""

    stat: WindowStat
    readings: Readings
    values: Mapping[str, float]
    variants: Mapping[str, Mapping[str, float]]

    def of(self, gpu: PhysicalGpu) -> float | None:
        """The GPU's value; the highest of its MIG instances for a signal that they have of their own."""
        value = self.values.get(gpu.uuid)
        if value is None and gpu.sliced:
            return max((self.values[device.id] for device in gpu.devices if device.id in self.values), default=None)
        return value

    def times(self, factor: float) -> Callable[[PhysicalGpu], float | None]:
        return lambda gpu: None if (found := self.of(gpu)) is None else found * factor

    def by_variant(self, gpu: PhysicalGpu) -> Mapping[str, float]:
        found = self.variants.get(gpu.uuid)
        return found if found is not None else self.variants.get(gpu.lead.id, {})

    def known(self, gpu: PhysicalGpu) -> bool:
        return self.of(gpu) is not None or bool(self.by_variant(gpu))

    def evidence(
        self,
        gpu: PhysicalGpu,
        value: float | str | None = None,
        *,
        unit: str | None = None,
        comparison: str = "",
        bound: float | str | None = None,
        peers: Peers | None = None,
        at: datetime | None = None,
        note: str = "",
    ) -> Evidence:
        """This answer as evidence. value: a value computed from it; `note` says how."""
        value = self.of(gpu) if value is None else value
        found = measured(self.readings, self.stat, gpu.lead, value, comparison, bound, note)
        if peers is not None:
            found = replace(found, peers_median=peers.median, peers=peers.count)
        return replace(found, at=at, unit=found.unit if unit is None else unit)


def measured(
    readings: Readings,
    stat: WindowStat,
    device: Device,
    value: float | str | None,
    comparison: str = "",
    bound: float | str | None = None,
    note: str = "",
) -> Evidence:
    """The answer to a statistic for one device as evidence, with the query by which a person can check it."""
    return Evidence(
        signal=stat.signal.value,
        value="no answer" if value is None else value,
        unit=stat.signal.unit,
        statistic=stat.statistic.value if stat.parameter is None else f"{stat.statistic}({stat.parameter:g})",
        window_seconds=stat.window_seconds,
        comparison=comparison,
        bound=bound,
        promql=readings.query(stat, device),
        note=note,
    )


class Grade(NamedTuple):
    """Severity of a fault, what to do about it, and the confidence that it is one."""

    severity: Severity
    advice: Advice
    confidence_ratio: float


class Fleet:
    """The Snapshot of one cycle with its indexes.

    everything: HEALTHY and UNKNOWN findings as well. catalog: XIDs by number, with the operator's overrides. memory: of
    faults; None for a single run, which remembers nothing. What rules answer is in `gpuwatch.judge.rule.Ask`.

    against, assessed: what the rules that were asked before concluded: DEGRADED findings by GPU, and the GPUs that some
    rule could assess.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        policy: HealthPolicy,
        *,
        everything: bool = False,
        catalog: Mapping[int, Xid] | None = None,
        memory: FaultMemory | None = None,
    ) -> None:
        self.memory = memory
        self.against: dict[str, list[Finding]] = defaultdict(list)
        self.assessed: set[str] = set()
        self.xids = xids() if catalog is None else catalog
        self.snapshot = snapshot
        self.policy = policy
        self.everything = everything
        by_uuid: dict[str, list[Device]] = defaultdict(list)
        for device in snapshot.devices:
            by_uuid[device.uuid].append(device)
        self.gpus = tuple(
            PhysicalGpu(uuid, tuple(devices), next((device for device in devices if device.present), devices[0]))
            for uuid, devices in by_uuid.items()
        )

    @cached_property
    def present(self) -> tuple[PhysicalGpu, ...]:
        return tuple(gpu for gpu in self.gpus if gpu.present)

    @cached_property
    def doubted_at(self) -> frozenset[str]:
        """Machines of which telemetry shows devices that are doubted: their trusted ones may not be all."""
        return frozenset(home_of(item.shown) for item in self.snapshot.doubted)

    @cached_property
    def nodes(self) -> dict[str, Node]:
        return {node.name: node for node in self.snapshot.cluster.nodes}

    @cached_property
    def pods(self) -> dict[PodRef, Pod]:
        return {pod.ref: pod for pod in self.snapshot.cluster.pods}

    @cached_property
    def at_home(self) -> dict[str, tuple[PhysicalGpu, ...]]:
        """Present GPUs per machine."""
        found: dict[str, list[PhysicalGpu]] = defaultdict(list)
        for gpu in self.present:
            found[gpu.home].append(gpu)
        return {home: tuple(gpus) for home, gpus in found.items()}

    @cached_property
    def changes(self) -> Mapping[Signal, Mapping[str, Sequence[StateChange]]]:
        """New values of state signals within the change window, by GPU, oldest first; a rule asks for them."""
        found: dict[Signal, dict[str, list[StateChange]]] = {}
        for change in sorted(self.snapshot.changes, key=lambda item: item.at):
            if 0 <= (self.snapshot.at - change.at).total_seconds() < self.policy.change_window_seconds:
                by_gpu = found.setdefault(change.signal, defaultdict(list))
                by_gpu[self.uuids.get(change.device, change.device)].append(change)
        return found

    def before(self, seconds: float) -> datetime:
        return self.snapshot.at - timedelta(seconds=seconds)

    @cached_property
    def uuids(self) -> dict[DeviceId, str]:
        return {device.id: device.uuid for device in self.snapshot.devices}

    def workload_of(self, pod: PodRef) -> Subject:
        """The Pod's gang, else its workload, else the Pod."""
        found = self.pods.get(pod)
        if found is not None and found.gang:
            return Subject(SubjectKind.GANG, found.gang)
        if found is not None and found.workload:
            return Subject(SubjectKind.WORKLOAD, found.workload)
        return Subject(SubjectKind.POD, pod)

    @cached_property
    def images(self) -> Mapping[Subject, set[tuple[str, ...]]]:
        """The images of each workload's Pods."""
        found: dict[Subject, set[tuple[str, ...]]] = defaultdict(set)
        for ref, pod in self.pods.items():
            if pod.images:
                found[self.workload_of(ref)].add(pod.images)
        return found

    def jobs_of(self, gpu: PhysicalGpu) -> frozenset[Subject]:
        return frozenset(self.workload_of(pod) for pod in gpu.pods)

    def peers(
        self,
        value: Callable[[PhysicalGpu], float | None],
        *,
        among: Iterable[PhysicalGpu] | None = None,
        kin: Callable[[PhysicalGpu], Hashable] | None = None,
        any_model: bool = False,
    ) -> Callable[[PhysicalGpu], Peers | None]:
        """The cohort of each GPU: GPUs of the same model, and of the same `kin` where given.

        None where the model is unknown or the cohort too small; with any_model then all GPUs of the vendor.
        """
        cohorts: dict[Hashable, list[float]] = defaultdict(list)
        key = _model if kin is None else lambda gpu: (_model(gpu), kin(gpu))
        for gpu in self.present if among is None else among:
            found = value(gpu)
            if found is None:
                continue
            if gpu.model:
                cohorts[key(gpu)].append(found)
            if any_model:
                cohorts[gpu.lead.vendor].append(found)
        peers = {name: peers_of(values) for name, values in cohorts.items() if len(values) > self.policy.min_peers}

        def of(gpu: PhysicalGpu) -> Peers | None:
            near = peers.get(key(gpu)) if gpu.model else None
            if near is not None or not any_model:
                return near
            wide = peers.get(gpu.lead.vendor)
            return None if wide is None else replace(wide, same_model=False)

        return of

    def healthy(
        self,
        gpu: PhysicalGpu,
        kind: Tells,
        summary: str,
        *seen: GpuAnswers,
        confidence_ratio: float = HEALTHY_CONFIDENCE,
    ) -> Conclusion:
        if not self.everything:
            return Verdict.HEALTHY
        return conclude(
            gpu,
            kind,
            Verdict.HEALTHY,
            summary,
            confidence_ratio=confidence_ratio,
            evidence=[answers.evidence(gpu) for answers in seen if answers.of(gpu) is not None],
        )

    def unknown(self, gpu: PhysicalGpu, kind: Tells, summary: str, missing: Iterable[str]) -> Conclusion:
        if not self.everything:
            return Verdict.UNKNOWN
        return conclude(gpu, kind, Verdict.UNKNOWN, summary, missing=missing)

    def unseen(self, gpu: PhysicalGpu, kind: Tells, window_seconds: int) -> Conclusion:
        missing = [f"samples in the last {window_seconds // 60} min"]
        return self.unknown(gpu, kind, "the window has too few samples", missing)

    @staticmethod
    def undecided(
        gpu: PhysicalGpu,
        kind: Tells,
        summary: str,
        evidence: Iterable[Evidence],
        *missing: str,
        severity: Severity = Severity.INFO,
    ) -> Finding:
        """A possible fault, and the data that would decide."""
        more: dict[str, Any] = {"severity": severity, "advice": Advice.WATCH, "evidence": evidence}
        return conclude(gpu, kind, Verdict.UNKNOWN, summary, missing=missing, **more)

    @staticmethod
    def degraded(
        on: PhysicalGpu | Subject, kind: Tells, summary: str, grade: Grade, evidence: Iterable[Evidence], **more: Any
    ) -> Finding:
        """A DEGRADED finding. more: as for `conclude`."""
        return conclude(on, kind, Verdict.DEGRADED, summary, evidence=evidence, **grade._asdict(), **more)


def conclude(
    on: PhysicalGpu | Device | Subject,
    kind: Tells | FindingKind,
    verdict: Verdict,
    summary: str,
    *,
    severity: Severity = Severity.INFO,
    advice: Advice = Advice.NONE,
    confidence_ratio: float = 0.0,
    since: datetime | None = None,
    evidence: Iterable[Evidence] = (),
    missing: Iterable[str] = (),
    gpu_hours: float = 0.0,
    relief_gpus: Mapping[str, float] | None = None,
    gpus: Iterable[PhysicalGpu] = (),
    node: str | None = None,
    components: Iterable[Component] | None = None,
    approval: str = "",
) -> Finding:
    """A finding on one GPU or device, or on a subject that these `gpus` share, with their devices, Pods and Node.

    components: those of the kind where None."""
    told = kind if isinstance(kind, Tells) else Tells(kind, "", "")
    devices = [device for gpu in gpus for device in gpu.devices]
    if isinstance(on, PhysicalGpu):
        devices, node = list(on.devices), on.lead.node
        on = Subject(SubjectKind.DEVICE, on.uuid)
    elif isinstance(on, Device):
        devices, node = [on], on.node
        on = Subject(SubjectKind.DEVICE, on.id)
    return Finding(
        rule=told.of_rule,
        family=told.kind.family,
        kind=told.kind,
        subject=on,
        verdict=verdict,
        summary=summary,
        severity=severity,
        advice=advice,
        confidence_ratio=confidence_ratio,
        since=since,
        evidence=tuple(evidence),
        missing=tuple(str(item) for item in missing),
        devices=tuple(device.id for device in devices),
        pods=tuple(dict.fromkeys(pod for device in devices for pod in device.pods)),
        node=node,
        gpu_hours=gpu_hours,
        relief_gpus=relief_gpus or {},
        components=told.components if components is None else tuple(components),
        approval=approval,
    )


def _model(gpu: PhysicalGpu) -> Hashable:
    return (gpu.lead.vendor, gpu.model)
