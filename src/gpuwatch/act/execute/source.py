"""Whether the exporters of the Nodes show now what an action rests on, by one read of each. Pure.

Such a read excludes at once all series that are forged, pushed, cached, old or of another cluster. It says nothing of a
rule that compares values over time (`Rule.unshown`).
"""

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.facts.model.decision import Family, Finding, FindingKind, Verdict
from gpuwatch.facts.model.remediation import Proposal
from gpuwatch.facts.model.telemetry import Device, Signal, SourceRead
from gpuwatch.judge.health.assess import RULES
from gpuwatch.judge.misfit.assess import UNSHOWN as OF_MISFIT

UNSHOWN = {told.kind: rule.unshown for rule in RULES for told in rule.tells if rule.unshown} | OF_MISFIT
"""Kinds of findings that no single read can show, and why."""

_HOLDS: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le, "==": operator.eq,
}  # fmt: skip
_XID_COUNTS = (Signal.XID_WINDOW_COUNT, Signal.XID_EVENTS_TOTAL)
_OF_ONE_READ = ("last", "increase", "max", "min")
"""Statistics whose bound holds for the value itself: a counter that grew by more than 0 is above 0."""


class _Fact(NamedTuple):
    """A value that a page has to show of a device. variant: '' for any."""

    signal: Signal
    comparison: str
    bound: float
    variant: str = ""

    def against(self, device: Device, read: SourceRead) -> str:
        """What the page shows instead; '' where it shows this."""
        seen = read.values.get((device.id, self.signal)) or read.values.get((device.uuid, self.signal), {})
        told = [value for variant, value in seen.items() if self.variant in ("", variant)]
        if any(_HOLDS[self.comparison](value, self.bound) for value in told):
            return ""
        said = f"{max(told):g}" if told else "nothing"
        return f"shows {said} as {self.signal} of {device.id}, where {self.comparison} {self.bound:g} is needed"


def facts_of(finding: Finding, idle_ratio: float) -> tuple[_Fact, ...]:
    """What a page has to show: all of it, but of an XID one."""
    if finding.family is Family.IDLE:
        return (_Fact(Signal.BUSY_RATIO, "<=", idle_ratio),)
    facts: list[_Fact] = []
    for each in finding.evidence:
        if finding.kind is FindingKind.XID and each.signal in (Signal.XID_CODE, *_XID_COUNTS):
            # The first is the gravest. A count has the XID in its note.
            code = re.search(r"\d+", str(each.value) if each.signal == Signal.XID_CODE else each.note)
            counts = [_Fact(count, ">", 0, code[0]) for count in _XID_COUNTS] if code else []
            return (_Fact(Signal.XID_CODE, "==", float(code[0])), *counts) if code else ()
        if each.signal in set(Signal) and each.statistic in _OF_ONE_READ and isinstance(each.bound, float):
            if each.comparison == "!=" and isinstance(each.value, float):
                facts.append(_Fact(Signal(each.signal), "==", each.value))  # another code asks for something else
            elif each.comparison in _HOLDS:
                facts.append(_Fact(Signal(each.signal), each.comparison, each.bound))
    return tuple(facts)


def nodes_to_read(proposal: Proposal, facts: PlanFacts) -> tuple[str, ...]:
    """The Nodes whose exporters can show what the proposal rests on."""
    behind = (
        each
        for each in facts.findings
        if each.verdict in (Verdict.DEGRADED, Verdict.IDLE) and each.kind not in UNSHOWN
        if each.node in proposal.nodes or not set(proposal.pods).isdisjoint(each.pods)
    )
    devices = {name for each in behind for name in each.devices}
    return tuple(sorted({facts.devices[name].node or "" for name in devices if name in facts.devices} - {""}))


def not_shown(
    names: Iterable[str], facts: PlanFacts, reads: Mapping[str, SourceRead], idle_ratio: float, required: bool
) -> str:
    """Why the exporters do not show what these findings say; '' where they do, or where no read can. Each device of an
    idle finding has to be idle. Of faults one is enough: each of them calls for the action. required: an exporter that
    was not read shows nothing."""
    asked = [each for name in names if (each := facts.findings_by_id.get(name)) and each.kind not in UNSHOWN]
    against = []
    for finding in asked:
        for device in (facts.devices[name] for name in finding.devices if name in facts.devices):
            read = reads.get(device.node or "", SourceRead(failed=f"The exporter of Node {device.node} was not read."))
            failed = read.failed if required else ""
            against.append(failed if read.failed else _on_page(finding, device, read, idle_ratio))
    wrong = [why for why in against if why]
    if asked and not against:
        return "Its findings name no GPU whose exporter could be read."
    return wrong[0] if wrong and (len(wrong) == len(against) or asked[0].family is Family.IDLE) else ""


def _on_page(finding: Finding, device: Device, read: SourceRead, idle_ratio: float) -> str:
    there, facts = not read.devices.isdisjoint((device.id, device.uuid)), facts_of(finding, idle_ratio)
    if not read.devices:
        wrong = ["shows no GPU"]
    elif finding.kind is FindingKind.GPU_MISSING:
        wrong = [f"shows {device.id}, which is said to be gone"] if there else []
    elif not there or not facts:
        wrong = [f"does not show {device.id}" if facts else f"cannot show {finding.id}, which rests on no value of now"]
    else:
        wrong = [why for fact in facts if (why := fact.against(device, read))]
        wrong = [] if finding.kind is FindingKind.XID and len(wrong) < len(facts) else wrong
    return f"{read.place} {wrong[0]}." if wrong else ""
