"""One cycle of the controller as a line of its log."""

from collections import Counter
from collections.abc import Iterable, Iterator

from gpuwatch.facts.model.decision import Analysis, Mode
from gpuwatch.facts.model.remediation import Pause, Remediation
from gpuwatch.facts.model.telemetry import Gap, GapKind
from gpuwatch.say.words import plural

_SHOWN = 4
"""Refused candidates shown in the line; JSON has all."""


def cycle_line(
    analysis: Analysis,
    before: Analysis | None,
    proposed: tuple[Remediation, ...],
    known: tuple[Remediation, ...],
    pause: Pause,
) -> str:
    """The state of the fleet, what was decided about it, and why. What was refused for the same reason in the cycle
    before is only counted."""
    coverage = analysis.coverage
    verdicts = [str(item.verdict) for item in analysis.findings]
    parts = [
        f"{coverage.devices_present} of {plural(coverage.devices, 'device')} report, "
        f"{verdicts.count('degraded')} degraded, {verdicts.count('idle')} idle, {verdicts.count('unknown')} unknown"
    ]
    now = {(each.proposal.action, each.proposal.target) for each in proposed}
    open_ = {(each.proposal.action, each.proposal.target): each for each in known if each.phase.open}
    admitted = [item for item in analysis.plan.items if item.admitted]
    told = set(_refusals(before)) if before is not None else set()
    all_refused = list(_refusals(analysis))
    refused = [each for each in all_refused if each not in told]
    for item in admitted:
        target = (item.candidate.action, str(item.candidate.target))
        if target in now:
            what = f"proposed ({item.mode})"
        elif target in open_:
            what = f"is {open_[target].phase} already"
        else:
            what = "would be worth it (observe)" if item.mode is Mode.OBSERVE else "left alone for now"
        parts.append(f"{item.candidate.id} {what}")
    parts += refused[:_SHOWN]
    if len(refused) > _SHOWN:
        parts.append(f"{len(refused) - _SHOWN} more refused")
    if same := len(all_refused) - len(refused):
        parts.append(f"{same} refused as before")
    if not analysis.plan.items:
        parts.append("nothing to do")
    if analysis.plan.brake:
        parts.append(f"brake: {analysis.plan.brake.rstrip('.')}")
    if pause.paused:
        parts.append(f"paused by {pause.by or 'a person'}" + (f": {pause.reason}" if pause.reason else ""))
    lost = [gap for gap in analysis.gaps if gap.kind in (GapKind.UNREACHABLE, GapKind.REFUSED)]
    if lost:
        parts.append(f"not read: {joined(lost)}")
    return "; ".join(parts)


def _refusals(analysis: Analysis) -> Iterator[str]:
    for item in analysis.plan.items:
        for refusal in item.refusals[:1]:
            more = f" and {len(item.refusals) - 1} more" if len(item.refusals) > 1 else ""
            yield f"{item.candidate.id} refused by {refusal.guard}{more}: {refusal.reason.rstrip('.')}"


def cycle_fields(analysis: Analysis, proposed: tuple[Remediation, ...], pause: Pause) -> dict[str, object]:
    return {
        "at": f"{analysis.at:%Y-%m-%dT%H:%M:%SZ}",
        "devices": analysis.coverage.devices,
        "reporting": analysis.coverage.devices_present,
        "findings": dict(sorted(Counter(str(item.verdict) for item in analysis.findings).items())),
        "plan": [
            {
                "candidate": item.candidate.id,
                "mode": str(item.mode),
                "score": round(item.score.value, 6),
                "refusals": [f"{refusal.guard}: {refusal.reason}" for refusal in item.refusals],
            }
            for item in analysis.plan.items
        ],
        "proposed": [each.name for each in proposed],
        "brake": analysis.plan.brake,
        "paused": pause.paused,
        "gaps": len(analysis.gaps),
    }


def joined(gaps: Iterable[Gap]) -> str:
    return "; ".join(dict.fromkeys(f"{gap.what}: {gap.detail.rstrip('.')}" for gap in gaps))
