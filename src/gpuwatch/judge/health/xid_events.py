"""The XIDs within the change window, and those of many GPUs with one common cause that is not hardware.

Each of the three metrics is incomplete. The last-value gauge shows no repeat, shows only the last of several, and never
clears. The exporter's windowed count shows repeats, but forgets an XID after its window. Its total shows repeats, but
its first sample is 1, so it appears instead of increasing, at no known time. So all counts here are lower bounds.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpuwatch.facts.catalog.xids import Xid, XidClass
from gpuwatch.facts.model.decision import Component, Evidence, Subject, SubjectKind
from gpuwatch.facts.model.faults import KnownFault
from gpuwatch.facts.model.grouping import grouped
from gpuwatch.facts.model.telemetry import Activity, Signal, StateChange, Statistic
from gpuwatch.judge.components import XID_COMPONENTS
from gpuwatch.judge.fleet import FLEET, REPORTING_SIGNALS, Fleet, GpuAnswers, PhysicalGpu, on_node
from gpuwatch.judge.places import PLACES, shared_place
from gpuwatch.judge.rule import Ask

COMMON_CAUSE_SECONDS = 300
"""Time within which events came at once: ten samples, and the exporters' own XID window."""
_COMMON_CAUSE_GPUS = 2
"""GPUs of one workload or machine with the same XID at once from which it has one cause: a job that dies on all its
GPUs is far likelier than two independent faults within minutes."""


class XidsAsked:
    """The three metrics of XIDs, and since when the GPU reports."""

    def __init__(self, ask: Ask) -> None:
        window = ask.policy.change_window_seconds
        self.last = ask(Signal.XID_CODE)
        self.counted = ask(Signal.XID_WINDOW_COUNT, Statistic.MAX, window)
        self.increased = ask(Signal.XID_EVENTS_TOTAL, Statistic.INCREASE, window)
        self.appeared = ask(Signal.XID_EVENTS_TOTAL, Statistic.APPEARED, window)
        self.counts = (self.counted, self.increased, self.appeared)
        self.samples = [ask.context(signal, Statistic.COUNT, window) for signal in REPORTING_SIGNALS]
        self.latched = ask.changes(Signal.XID_CODE)
        self.occurred = ask.changes(Signal.XID_WINDOW_COUNT)
        self.rose = ask.changes(Signal.XID_EVENTS_TOTAL)


# Columns of NVIDIA's catalog, and the prefixes of their models. Every XID applies to other models (Ada, Turing, GH200).
_ARCHITECTURES = {
    "GB200": ("GB200", "GB300"),
    "B100": ("B100", "B200", "B300"),
    "H100": ("H100", "H800", "H200", "H20"),
    "A100": ("A100", "A800"),
}


def architecture(model: str) -> str | None:
    """The column of NVIDIA's XID catalog for a model name; None where there is none."""
    name = model.upper().replace("NVIDIA", "").strip(" -")
    return next((column for column, prefixes in _ARCHITECTURES.items() if name.startswith(prefixes)), None)


def applies(known: Xid, model: str) -> bool:
    """Whether cards of this model raise the XID; True where the catalog does not tell."""
    column = architecture(model)
    return column is None or not known.architectures or column in known.architectures


@dataclass(frozen=True, slots=True, eq=False)
class XidEvent:
    """An XID that one GPU raised within the change window.

    code: the number, or the text where an exporter wrote something else. known: its row of the catalog.
    times: as far as the gauge, the windowed count or the total shows them.
    doubtful: it may be older than the window: the gauge's first sample had it, or the windowed count began before.
    workloads: those that had the GPU at these times, or have it now where no time is known.
    fault: the remembered fault; None where the XID is no fault of the hardware.
    """

    gpu: PhysicalGpu
    code: int | str
    known: Xid | None
    times: tuple[datetime, ...]
    doubtful: bool
    workloads: tuple[frozenset[Subject], ...]
    evidence: tuple[Evidence, ...]
    fault: KnownFault | None = None

    @property
    def all_workloads(self) -> frozenset[Subject]:
        return frozenset().union(*self.workloads)


def xid_events(fleet: Fleet, asked: XidsAsked) -> dict[str, list[XidEvent]]:
    """The XIDs of each GPU within the change window, one event per code."""
    seen = _Seen(fleet, asked)
    events: dict[str, list[XidEvent]] = {}
    for gpu in fleet.gpus:
        codes = seen.codes(gpu)
        if codes:
            events[gpu.uuid] = [seen.event(gpu, code) for code in sorted(codes, key=str)]
    return events


def counts_xids(answers: GpuAnswers, gpu: PhysicalGpu) -> bool:
    """Whether an exporter counts this GPU's XIDs; the count may be 0."""
    return gpu.uuid in answers.variants or gpu.lead.id in answers.variants


class _Seen:
    def __init__(self, fleet: Fleet, asked: XidsAsked) -> None:
        self._asked = asked
        self._catalog = fleet.xids
        self._began = _telemetry_began(fleet, asked.samples)
        self._held = _holders(fleet)
        self._latched = {
            uuid: _by_code((_code(change.after), change) for change in changes if change.after > 0)
            for uuid, changes in asked.latched.items()
        }
        self._occurred, self._rose = (
            {
                uuid: _by_code((code, change) for change in changes if (code := _variant(change.variant)))
                for uuid, changes in shown.items()
            }
            for shown in (asked.occurred, asked.rose)
        )

    def codes(self, gpu: PhysicalGpu) -> set[int | str]:
        found = {code for shown in (self._latched, self._occurred, self._rose) for code in shown.get(gpu.uuid, ())}
        for answers in self._asked.counts:
            found.update(_counts(answers, gpu))
        return found

    def event(self, gpu: PhysicalGpu, code: int | str) -> XidEvent:
        latched = self._latched.get(gpu.uuid, {}).get(code, [])
        occurred, rose = (shown.get(gpu.uuid, {}).get(code, []) for shown in (self._occurred, self._rose))
        evidence = []
        if latched:
            newest = latched[-1]
            before = "no XID" if newest.before in (None, 0.0) else f"XID {newest.before:g}"
            note = f"became this value; {before} before"
            evidence.append(self._asked.last.evidence(gpu, newest.after, at=newest.at, note=note))
        totals = [0]
        for answers in (self._asked.increased, self._asked.appeared):
            if total := _counts(answers, gpu).get(code):
                totals.append(total)
                newest_rise = rose[-1].at if rose and answers is self._asked.increased else None
                evidence.append(
                    answers.evidence(gpu, float(total), comparison=">", bound=0.0, at=newest_rise, note=f"XID {code}")
                )
        at_once = _counts(self._asked.counted, gpu).get(code, 0)
        times = max((latched, occurred, rose), key=len)
        in_window = round(sum(change.after - (change.before or 0.0) for change in occurred))
        if at_once or occurred:
            note = f"XID {code}"
            if in_window > at_once:
                note += f"; {in_window} at least, as each is counted no longer than the exporter's window"
            newest_at = occurred[-1].at if occurred else None
            value = float(max(at_once, 1))
            evidence.append(
                self._asked.counted.evidence(gpu, value, comparison=">", bound=0.0, at=newest_at, note=note)
            )
        return XidEvent(
            gpu=gpu,
            code=code,
            known=self._catalog.get(code) if isinstance(code, int) else None,
            times=tuple(change.at for change in times),
            doubtful=not (in_window or max(totals)) and self._is_doubtful(gpu, latched),
            workloads=tuple(self._held(gpu, change.at) for change in times) or (self._held(gpu, None),),
            evidence=tuple(evidence),
        )

    def _is_doubtful(self, gpu: PhysicalGpu, latched: Sequence[StateChange]) -> bool:
        """Whether all of it may be older than the window."""
        began = self._began(gpu)
        return not latched or (
            began is not None and all(change.before is None and change.at <= began for change in latched)
        )


def _by_code(changes: Iterable[tuple[int | str, StateChange]]) -> dict[int | str, list[StateChange]]:
    found: dict[int | str, list[StateChange]] = defaultdict(list)
    for code, change in changes:
        found[code].append(change)
    return dict(found)


def _variant(text: str) -> int | str:
    """The XID of a counted row; '' or 0 where it has none, as with old exporters before the first XID."""
    return int(text) if text.isdecimal() else text


def _code(value: float) -> int | str:
    return int(value) if value == int(value) else f"{value:g}"


def _counts(answers: GpuAnswers, gpu: PhysicalGpu) -> dict[int | str, int]:
    """Occurrences by XID. increase() extrapolates, hence round."""
    found: dict[int | str, int] = {}
    for variant, value in answers.by_variant(gpu).items():
        if value > 0 and (code := _variant(variant)):
            found[code] = max(round(value), 1)
    return found


def _telemetry_began(fleet: Fleet, samples: Sequence[GpuAnswers]) -> Callable[[PhysicalGpu], datetime | None]:
    """Until when a GPU's gauge may show an XID from before the window: two samples after its telemetry began within it.
    None where it reported all along, or is missing now."""
    window = fleet.policy.change_window_seconds
    interval = fleet.snapshot.telemetry_schema.interval_seconds

    def began(gpu: PhysicalGpu) -> datetime | None:
        seen = max((value for count in samples if (value := count.of(gpu)) is not None), default=None)
        if seen is None or interval <= 0 or not gpu.present or (seen + 2) * interval >= window:
            return None
        return fleet.snapshot.at - timedelta(seconds=(seen - 2) * interval)

    return began


def _holders(fleet: Fleet) -> Callable[[PhysicalGpu, datetime | None], frozenset[Subject]]:
    """The workloads that had a GPU at a time: by recorded activity, else those that have it now and had started."""
    histories = defaultdict(list)
    for history in fleet.snapshot.activity:
        if history.pod:
            histories[history.device].append(history)

    def held(gpu: PhysicalGpu, at: datetime | None) -> frozenset[Subject]:
        if at is None:
            return fleet.jobs_of(gpu)
        pods = set()
        for device in gpu.devices:
            for history in histories.get(device.id, ()):
                # Step i covers (start + i·step, start + (i+1)·step]. A program that ends with the XID may be gone in
                # the sample that shows it, so the two steps before count too.
                index = -int(-(at - history.start).total_seconds() // history.step_seconds) - 1
                recent = history.steps[max(index - 2, 0) : max(index + 1, 0)]
                if recent.strip(Activity.UNKNOWN):
                    pods.add(history.pod)
        if not pods:
            for pod in gpu.pods:
                known = fleet.pods.get(pod)
                if known is None or known.started is None or known.started <= at:
                    pods.add(pod)
        return frozenset(fleet.workload_of(pod) for pod in pods)

    return held


@dataclass(frozen=True, slots=True, eq=False)
class CommonCause:
    """One XID on many GPUs at once. subject: workload, Node, NVLink domain or fleet. place: label of their Nodes alone,
    or ''."""

    known: Xid
    events: tuple[XidEvent, ...]
    subject: Subject
    place: str = ""

    @property
    def homes(self) -> int:
        return len({event.gpu.home for event in self.events})

    @property
    def fatal(self) -> bool:
        return self.known.xid_class is XidClass.FATAL


def common_causes(fleet: Fleet, events: Iterable[XidEvent]) -> list[CommonCause]:
    """The same XID on many Nodes, or on several GPUs of one workload or of one machine, within minutes.

    A fatal XID has a common cause only on many Nodes. GPUs of one machine share hardware (a board, a power feed, a
    switch), and two Nodes of one workload are two broken GPUs: no program causes it.
    """
    told = [event for event in events if event.known is not None and event.known.xid_class is not XidClass.IGNORE]
    causes = _domain_causes(fleet, told)
    explained = {event for cause in causes for event in cause.events}
    by_xid: dict[Xid, list[XidEvent]] = defaultdict(list)
    for event in told:
        if event.known is not None and event not in explained:
            by_xid[event.known].append(event)
    for known, found in by_xid.items():
        fatal, left = known.xid_class is XidClass.FATAL, found
        together = _at_once(found, fatal=fatal)
        if len({event.gpu.home for event in together}) >= fleet.policy.common_cause_nodes:
            subject = FLEET if fatal else _one_workload(together) or FLEET
            place = shared_place(fleet, {event.gpu.lead.node for event in together})
            causes.append(CommonCause(known, tuple(together), subject, place))
            widespread = set(together)
            left = [event for event in left if event not in widespread]
        if not fatal:
            causes += _shared_causes(known, left)
    return causes


def _domain_causes(fleet: Fleet, events: Iterable[XidEvent]) -> list[CommonCause]:
    """XIDs of NVLink on many Nodes of one NVLink domain, whatever their numbers: a switch raises several."""
    domains: dict[str, list[XidEvent]] = defaultdict(list)
    for event in events:
        node = fleet.nodes.get(event.gpu.lead.node or "")
        domain = "" if node is None else node.labels.get(PLACES[0], "")
        # The cluster UUID is all zeros where the fabric ends at the machine.
        if domain.strip("0-.") and XID_COMPONENTS.get(_number(event)) is Component.NVLINK:
            domains[domain].append(event)
    causes = []
    for domain, found in sorted(domains.items()):
        together = _at_once(found, fatal=False)
        if len({event.gpu.home for event in together}) >= fleet.policy.common_cause_nodes:
            by_xid = grouped(together, lambda event: event.known)
            subject = Subject(SubjectKind.FLEET, domain)
            causes += [CommonCause(known, tuple(of), subject) for known, of in by_xid.items() if known is not None]
    return causes


def _number(event: XidEvent) -> int:
    return event.known.code if event.known is not None else 0


def _shared_causes(known: Xid, left: list[XidEvent]) -> Iterable[CommonCause]:
    """Causes by workload, and by machine for the events that are left."""
    for sharers in (lambda event: event.all_workloads, lambda event: [on_node(event.gpu.home)]):
        explained: set[XidEvent] = set()
        groups: dict[Subject, list[XidEvent]] = defaultdict(list)
        for event in left:
            for subject in sharers(event):
                groups[subject].append(event)
        for subject, members in groups.items():
            together = _at_once(members, fatal=False)
            if len({event.gpu.uuid for event in together}) >= _COMMON_CAUSE_GPUS:
                yield CommonCause(known, tuple(together), subject)
                explained |= set(together)
        left = [event for event in left if event not in explained]


def _at_once(events: Sequence[XidEvent], *, fatal: bool) -> list[XidEvent]:
    """The events within COMMON_CAUSE_SECONDS that have the most GPUs, and all of unknown time unless fatal."""
    timed = sorted(((time, event) for event in events for time in event.times), key=lambda item: item[0])
    inside: Counter[str] = Counter()
    most, best, start = 0, range(0), 0
    for end, (time, event) in enumerate(timed):
        inside[event.gpu.uuid] += 1
        while (time - timed[start][0]).total_seconds() > COMMON_CAUSE_SECONDS:
            left = timed[start][1].gpu.uuid
            inside[left] -= 1
            if not inside[left]:
                del inside[left]
            start += 1
        if len(inside) > most:
            most, best = len(inside), range(start, end + 1)
    untimed = [] if fatal else [event for event in events if not event.times]
    return [*dict.fromkeys(timed[index][1] for index in best), *untimed]


def _one_workload(events: Sequence[XidEvent]) -> Subject | None:
    """The workload that had nearly all of these GPUs (four of five: telemetry may name an old Pod on the rest)."""
    counts = Counter(workload for event in events for workload in event.all_workloads)
    return next((best for best, count in counts.most_common(1) if count * 5 >= len(events) * 4), None)
