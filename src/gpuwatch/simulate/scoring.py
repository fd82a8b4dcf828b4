"""Findings held against the truth: at which moments to look, which finding is right, and when each fault was named.

A finding is right where a Truth of its kind about the same device, Pod or node holds at that moment or held within the
last day, as rules look back as far. A health finding of another kind on a GPU that really is broken is not wrong.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gpuwatch.model.decision import Advice, Finding, FindingKind, Verdict
from gpuwatch.model.telemetry import DeviceId, PodRef
from gpuwatch.plan.policy import PlanPolicy
from gpuwatch.simulate.fleet import SimulatedFleet
from gpuwatch.simulate.truth import REBOOT, Truth

IDLE_KINDS = (FindingKind.NEVER_USED, FindingKind.ABANDONED, FindingKind.MODEL_LOADED)
MISFIT_KINDS = (FindingKind.HBM_CONTENTION, FindingKind.PCIE_CONTENTION, FindingKind.SCATTERED)
SURE = ", proven"
"""Follows the kind of a misfit of which the plan would make something: a confidence of 0.8 and more."""
ALLOCATION_KINDS = frozenset(
    {kind.value for kind in IDLE_KINDS} | {f"{kind.value}{sure}" for kind in MISFIT_KINDS for sure in ("", SURE)}
)
# These say that nothing is known; being found is all that can be asked of them.
ABSENCES = (FindingKind.EXPORTER_DOWN, FindingKind.TELEMETRY_MISSING)
_LOOKS_BACK = timedelta(hours=25)

NEVER_USED_LIMIT = timedelta(hours=2)
"""Within this time of its start a Pod that never worked is to be named."""
# Moments to look at, from the beginning of what was planted: a fault should be seen soon.
_FAULT_PROBES = (timedelta(minutes=30),)
_IDLE_PROBES = (NEVER_USED_LIMIT,)
_NEVER_USED_PROBES = tuple(NEVER_USED_LIMIT - timedelta(minutes=minutes) for minutes in (60, 30, 25, 20, 15, 10, 5, 0))


@dataclass(frozen=True, kw_only=True)
class Named:
    """One thing that was named at a moment; `kind` is a FindingKind, or the name of a baseline's rule."""

    at: datetime
    kind: str
    subject: str
    devices: frozenset[DeviceId] = frozenset()
    pods: frozenset[PodRef] = frozenset()
    node: str = ""


def moments_of(fleet: SimulatedFleet, every_hours: float) -> list[datetime]:
    """Regular moments after the first day (or the first seventh), one soon after each planted beginning, and several
    within the time that a Pod which never worked may take to be named."""
    plan = fleet.plan
    first = plan.start + timedelta(days=min(1.0, plan.days / 7))
    count = int((plan.end - first) / timedelta(hours=every_hours))
    moments = {plan.end - timedelta(hours=every_hours * number) for number in range(count + 1)}
    for truth in fleet.truth:
        if not truth.harmless:
            never = truth.kind is FindingKind.NEVER_USED
            probes = _FAULT_PROBES if truth.fault else _NEVER_USED_PROBES if never else _IDLE_PROBES
            moments.update((truth.start + probe).replace(second=0) for probe in probes)
    return sorted(moment for moment in moments if first <= moment <= plan.end)


def named_of(at: datetime, findings: Iterable[Finding]) -> list[Named]:
    """What a person would take for a broken GPU, a lost exporter, an idle allocation, or a misfit. An XID that is the
    application's fault names no GPU."""
    named = []
    for finding in findings:
        broken = finding.verdict is Verdict.DEGRADED and finding.advice is not Advice.FIX_APPLICATION
        # A failed scrape of a moment ago is told with the advice to watch; only the rest claims an outage.
        absent = finding.kind in ABSENCES and finding.notable and finding.advice is Advice.FIX_MONITORING
        if broken or absent or finding.verdict in (Verdict.IDLE, Verdict.MISFIT):
            one = Named(
                at=at,
                kind=finding.kind.value,
                subject=str(finding.subject),
                devices=frozenset(finding.devices) | _device(finding),
                pods=frozenset(finding.pods),
                node=finding.node or (finding.subject.name if finding.subject.kind.value == "node" else ""),
            )
            named.append(one)
            if finding.verdict is Verdict.MISFIT and finding.confidence_ratio >= PlanPolicy().min_confidence_ratio:
                named.append(replace(one, kind=f"{one.kind}{SURE}"))
    return named


def _device(finding: Finding) -> frozenset[DeviceId]:
    return frozenset({finding.subject.name}) if finding.subject.kind.value == "device" else frozenset()


def holds(truth: Truth, at: datetime, back: timedelta = timedelta()) -> bool:
    """Whether the Truth is so at that moment, or was within the time before it."""
    return truth.start <= at and (truth.end is None or at < truth.end + back)


def nameable_faults(truths: Iterable[Truth]) -> list[Truth]:
    """Truths of faults that are right to name."""
    return [truth for truth in truths if truth.fault and (not truth.harmless or truth.fault == REBOOT)]


def explained(one: Named, faults: Sequence[Truth]) -> bool:
    """A Truth of the kind covers it, or it speaks of a GPU that is broken in another way."""
    for truth in faults:
        if not holds(truth, one.at, _LOOKS_BACK):
            continue
        if truth.kind.value == one.kind and about(truth, one):
            return True
        absences = {truth.kind.value, one.kind} & {kind.value for kind in ABSENCES}
        if not absences and one.devices & set(truth.devices):
            return True
    return False


def about(truth: Truth, one: Named) -> bool:
    """The same devices; a finding that knows only the Node (a GPU that is missing there) is about that Node."""
    if truth.devices and one.devices:
        return bool(one.devices & set(truth.devices))
    return truth.subject.name == "fleet" or one.node in truth.nodes


def first_about(truth: Truth, named: Iterable[Named]) -> datetime | None:
    times = [one.at for one in named if holds(truth, one.at, _LOOKS_BACK) and about(truth, one)]
    return min(times, default=None)


def named_by_pod(named: Iterable[Named], kinds: set[str]) -> dict[PodRef, list[Named]]:
    found: dict[PodRef, list[Named]] = defaultdict(list)
    for one in named:
        for pod in one.pods if one.kind in kinds else ():
            found[pod].append(one)
    return found


def wrongly_named(truths: Sequence[Truth], of_pod: dict[PodRef, list[Named]]) -> dict[PodRef, set[str]]:
    """Pods that were named while no idle Truth held, with the kinds that they were given."""
    idle: dict[PodRef, list[Truth]] = defaultdict(list)
    for truth in truths:
        if not truth.harmless and truth.pods and truth.kind in IDLE_KINDS:
            idle[truth.pods[0]].append(truth)
    wrong: dict[PodRef, set[str]] = defaultdict(set)
    for pod, names in of_pod.items():
        for one in names:
            if not any(holds(truth, one.at, timedelta(minutes=10)) for truth in idle[pod]):
                wrong[pod].add(one.kind)
    return dict(wrong)


# One by one, for people


def first_named(truth: Truth, named: Iterable[Named]) -> datetime | None:
    """The first moment at which it was named: a fault by its kind, an idle allocation by any class of idleness."""
    if truth.fault:
        return first_about(truth, (one for one in named if one.kind == truth.kind.value))
    idle = {kind.value for kind in IDLE_KINDS}
    times = [
        one.at
        for one in named
        if one.kind in idle and truth.pods and truth.pods[0] in one.pods and holds(truth, one.at)
    ]
    return min(times, default=None)


def false_names(truths: Sequence[Truth], named: Sequence[Named]) -> set[tuple[str, str]]:
    """(subject, kind) of everything that was named and is not so."""
    idle = {kind.value for kind in IDLE_KINDS}
    faults = nameable_faults(truths)
    of_pod = named_by_pod(named, idle)
    broken = {
        (one.subject, one.kind) for one in named if one.kind not in ALLOCATION_KINDS and not explained(one, faults)
    }
    return broken | {(pod, kind) for pod, kinds in wrongly_named(truths, of_pod).items() for kind in kinds}
