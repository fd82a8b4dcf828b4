"""What was planted in a simulated fleet, and how findings compare with it.

A finding is correct if a Truth of its kind about the same device, Pod or node holds at that moment or held within the
last day, because rules look back as far. A health finding of another kind on a GPU that is broken is not wrong.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from gpuwatch.facts.model.decision import Advice, Finding, FindingKind, Subject, Verdict
from gpuwatch.facts.model.grouping import grouped
from gpuwatch.facts.model.telemetry import DeviceId, PodRef

IDLE_KINDS = (FindingKind.NEVER_USED, FindingKind.ABANDONED, FindingKind.MODEL_LOADED, FindingKind.PARTIAL_GANG)
# These report missing telemetry; they can only be found or not.
ABSENCES = (FindingKind.EXPORTER_DOWN, FindingKind.TELEMETRY_MISSING)
_LOOKS_BACK = timedelta(hours=25)


REBOOT = "reboot"
"""Truth.fault of a node that reboots for some minutes: harmless, but a finding about it is correct."""


@dataclass(frozen=True, kw_only=True)
class Truth:
    """A fact that holds from `start` to `end` (None: the window's end).

    harmless: it only looks like a finding of `kind`. An application's XID is no hardware fault; a Pod that is IN_USE
    or BURSTY keeps working and must not be found idle. Each life of a Pod has exactly one Truth of these kinds.
    """

    kind: FindingKind
    subject: Subject
    start: datetime
    end: datetime | None
    devices: tuple[DeviceId, ...]
    pods: tuple[PodRef, ...] = ()
    nodes: tuple[str, ...] = ()
    workload: str = ""
    harmless: bool = False
    fault: str = ""  # FaultKind, or REBOOT; '' for an allocation
    note: str


class Planted(msgspec.Struct, frozen=True, kw_only=True):
    """planted.json beside a simulated fleet's recording.

    look_alikes: Pods that only look idle. truths: all but these. oversized: Workload.ids of what has far more GPU than
    it can use. moments: when the fleet is looked at, rising; the last is the recording's end.
    """

    seed: int
    gpus: int
    days: float
    look_alikes: int
    truths: tuple[Truth, ...]
    oversized: tuple[str, ...]
    moments: tuple[datetime, ...]


@dataclass(frozen=True, kw_only=True)
class Named:
    """One finding at a moment; `kind` is a FindingKind, or the name of a baseline's rule."""

    at: datetime
    kind: str
    subject: str
    devices: frozenset[DeviceId] = frozenset()
    pods: frozenset[PodRef] = frozenset()
    node: str = ""


def named_of(at: datetime, findings: Iterable[Finding]) -> list[Named]:
    """What a person would take for a broken GPU, a lost exporter or an idle allocation. An XID that is the
    application's fault names no GPU."""
    named = []
    for finding in findings:
        program = finding.advice is Advice.FIX_APPLICATION and finding.kind is not FindingKind.HUNG
        broken = finding.verdict is Verdict.DEGRADED and not program
        # A single recent failed scrape only has the advice to watch; it does not claim an outage.
        absent = finding.kind in ABSENCES and finding.notable and finding.advice is Advice.FIX_MONITORING
        if broken or absent or finding.verdict is Verdict.IDLE:
            named.append(named_as(at, finding))
    return named


def named_as(at: datetime, finding: Finding, kind: str = "") -> Named:
    """kind: in place of the finding's own."""
    on = finding.subject.kind.value
    return Named(
        at=at,
        kind=kind or finding.kind.value,
        subject=str(finding.subject),
        devices=frozenset(finding.devices) | ({finding.subject.name} if on == "device" else set()),
        pods=frozenset(finding.pods),
        node=finding.node or (finding.subject.name if on == "node" else ""),
    )


def holds(truth: Truth, at: datetime, back: timedelta = timedelta()) -> bool:
    """Whether the Truth holds at that moment, or ended less than `back` before."""
    return truth.start <= at and (truth.end is None or at < truth.end + back)


def nameable_faults(truths: Iterable[Truth]) -> list[Truth]:
    return [truth for truth in truths if truth.fault and (not truth.harmless or truth.fault == REBOOT)]


def explained(one: Named, faults: Sequence[Truth]) -> bool:
    """A Truth of its kind covers it, or its GPU is broken in another way."""
    for truth in faults:
        if not holds(truth, one.at, _LOOKS_BACK):
            continue
        if truth.kind.value == one.kind and about(truth, one):
            return True
        absent = truth.kind in ABSENCES or one.kind in ABSENCES
        if not absent and one.devices & set(truth.devices):
            return True
    return False


def about(truth: Truth, one: Named) -> bool:
    """Same devices; or the same Node, for a finding without devices (a missing GPU)."""
    if truth.devices and one.devices:
        return bool(one.devices & set(truth.devices))
    return truth.subject.name == "fleet" or one.node in truth.nodes


def first_about(truth: Truth, named: Iterable[Named]) -> datetime | None:
    times = [one.at for one in named if holds(truth, one.at, _LOOKS_BACK) and about(truth, one)]
    return min(times, default=None)


def named_by_pod(named: Iterable[Named], kinds: Container[str]) -> dict[PodRef, list[Named]]:
    found: dict[PodRef, list[Named]] = defaultdict(list)
    for one in named:
        for pod in one.pods if one.kind in kinds else ():
            found[pod].append(one)
    return found


def wrongly_named(truths: Sequence[Truth], of_pod: dict[PodRef, list[Named]]) -> dict[PodRef, set[str]]:
    """Pods that were named while no idle Truth held, with the kinds that they were given."""
    planted = (truth for truth in truths if not truth.harmless and truth.pods and truth.kind in IDLE_KINDS)
    idle = grouped(planted, lambda truth: truth.pods[0])
    wrong: dict[PodRef, set[str]] = defaultdict(set)
    for pod, names in of_pod.items():
        for one in names:
            if not any(holds(truth, one.at, timedelta(minutes=10)) for truth in idle[pod]):
                wrong[pod].add(one.kind)
    return dict(wrong)


def first_named(truth: Truth, named: Iterable[Named]) -> datetime | None:
    """When it was first found: a fault by its kind, an idle allocation by any class of idleness."""
    if truth.fault:
        return first_about(truth, (one for one in named if one.kind == truth.kind.value))
    times = [
        one.at
        for one in named
        if one.kind in IDLE_KINDS and truth.pods and truth.pods[0] in one.pods and holds(truth, one.at)
    ]
    return min(times, default=None)


def false_names(truths: Sequence[Truth], named: Sequence[Named]) -> set[tuple[str, str]]:
    """(subject, kind) of every false finding."""
    faults = nameable_faults(truths)
    broken = {(one.subject, one.kind) for one in named if one.kind not in IDLE_KINDS and not explained(one, faults)}
    wrong = wrongly_named(truths, named_by_pod(named, IDLE_KINDS))
    return broken | {(pod, kind) for pod, kinds in wrong.items() for kind in kinds}
