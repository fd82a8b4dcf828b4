"""Remediations as tables for a terminal, and the notification of an upcoming action. Pure: prints nothing."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from gpuwatch.facts.model.decision import ActionKind, Mode
from gpuwatch.facts.model.remediation import Pause, Phase, Remediation, StepKind
from gpuwatch.facts.model.telemetry import Gap
from gpuwatch.say.layout import FoldedName, cut, new_grid, new_table, whole_or_line
from gpuwatch.say.plan_tables import worth, worth_bases
from gpuwatch.say.tables import evidence_line, gap_tables
from gpuwatch.say.words import ago, duration, escaped, listed, plural

_COLOUR = {
    Phase.PROPOSED: "yellow",
    Phase.NOTIFIED: "yellow",
    Phase.ACTING: "bold cyan",
    Phase.VERIFYING: "cyan",
    Phase.IN_EFFECT: "cyan",
    Phase.UNDOING: "magenta",
    Phase.SUCCEEDED: "green",
    Phase.FAILED: "bold red",
}


def history_tables(
    known: Sequence[Remediation], pause: Pause, gaps: Iterable[Gap], now: datetime, *, rows: int, wide: bool = True
) -> RenderableType:
    """Those that wait for a person first, then the newest; cut at `rows` lines, with a note."""
    parts: list[RenderableType] = []
    if pause.paused:
        parts += [Text(pause_text(pause, now), style="bold red"), Text()]
    ordered = sorted(known, key=lambda each: (each.proposal.created_at, each.name), reverse=True)
    ordered.sort(key=lambda each: 0 if each.phase is Phase.PROPOSED else 1 if each.phase.open else 2)
    if not ordered:
        parts.append(Text("Nothing was proposed yet."))
    else:
        open_ = sum(each.phase.open for each in ordered)
        title = f"Remediations: {open_} open, {len(ordered) - open_} ended"
        table = new_table(title, "phase", "name", *(("action", "target", "GPUs") if wide else ()), "age", "last")
        for each in ordered[:rows]:
            did = each.proposal
            table.add_row(
                phase_text(each),
                Text(each.name),  # one word, so that it can be copied
                *((did.action.replace("_", " "), FoldedName(did.target), str(did.gpus)) if wide else ()),
                ago(did.created_at, now),
                whole_or_line(held_up_by(each), wide),
            )
        parts += [table, *cut(len(ordered), rows)]
        waiting = [each for each in ordered if _to_decide(each)]
        if waiting:
            parts.append(Text(f"\n{plural(len(waiting), 'proposal')} to decide: gpuwatch approve NAME, or reject NAME"))
    return Group(*parts, *gap_tables(gaps, wide=wide))


def _to_decide(remediation: Remediation) -> bool:
    """Does it wait for a person? In the mode enforce only if its history shows that it was returned for approval."""
    asked = remediation.proposal.mode is not Mode.ENFORCE or bool(remediation.history)
    return remediation.phase is Phase.PROPOSED and asked and not remediation.approved and not remediation.rejected


def held_up_by(remediation: Remediation) -> str:
    """What holds it up now, else the last message."""
    step = remediation.next_step
    if remediation.phase.open and step is not None and step.error:
        return step.error
    return remediation.history[-1].message if remediation.history else remediation.proposal.reason


def phase_text(remediation: Remediation) -> Text:
    """The phase, with a person's decision that has not taken effect yet."""
    decided = ""
    if remediation.undo_asked and remediation.phase not in (Phase.UNDOING, Phase.UNDONE):
        decided = " (undo)"
    elif remediation.rejected and remediation.phase in (Phase.PROPOSED, Phase.NOTIFIED):
        decided = " (rejected)"
    elif remediation.approved and remediation.phase is Phase.PROPOSED:
        decided = " (approved)"
    return Text(f"{remediation.phase}{decided}", style=_COLOUR.get(remediation.phase, "dim"))


def as_argument(remediation: Remediation) -> str:
    """The argument by which the commands find it with rights in its Namespace only."""
    return remediation.name + (f" -n {remediation.namespace}" if remediation.namespace else "")


def remediation_detail(remediation: Remediation, now: datetime) -> RenderableType:
    proposal = remediation.proposal
    grid = new_grid()
    grid.add_row("Name", FoldedName(remediation.name))
    grid.add_row("Phase", phase_text(remediation))
    grid.add_row("Action", escape(f"{proposal.action.replace('_', ' ')} of {proposal.target}"))
    grid.add_row("Why", escape(proposal.reason))
    grid.add_row("Mode", str(proposal.mode))
    if remediation.approved:
        grid.add_row("Approved by", escape(remediation.approved_by or "a person"))
    grid.add_row("Worth", escape(worth(proposal.score)))
    for label, text in worth_bases(proposal.score):
        grid.add_row(label.capitalize(), escape(text))
    grid.add_row("Concerns", plural(proposal.gpus, "GPU") + (f" of pool {escape(proposal.pool)}" * bool(proposal.pool)))
    for name, items in (("Nodes", proposal.nodes), ("Pods", proposal.pods), ("Devices", proposal.devices)):
        if items:
            grid.add_row(name, escape(listed(items, 4)))
    if proposal.waiter:
        grid.add_row("Waiting for it", escape(proposal.waiter))
    for label, text in _what_is_next(remediation, now):
        grid.add_row(label, escape(text))
    parts: list[RenderableType] = [grid, Text()]
    if proposal.evidence:
        parts += [Text("Evidence", style="bold"), *(Text(f"  {evidence_line(item)}") for item in proposal.evidence)]
        parts.append(Text())
    if remediation.steps:
        table = new_table("Steps", "", "step", "on", "done", "said")
        for number, step in enumerate(remediation.steps):
            done = ago(step.done_at, now) + " ago" if step.done_at else "begun" if step.begun_at else ""
            mark = "✓" if step.done_at else "▸" if number == remediation.step else ""
            by = step.parameters.get("by") or step.parameters.get("effect", "")
            told = f"{step.kind}{f' ({by})' if by else ''}".replace("_", " ")
            table.add_row(mark, told, FoldedName(str(step.target)), done, escape(step.error))
        parts += [table, Text()]
    table = new_table("History", "at", "phase", "what")
    table.add_row(f"{proposal.created_at:%Y-%m-%d %H:%M:%SZ}", str(Phase.PROPOSED), escape(proposal.reason))
    for turn in remediation.history:
        table.add_row(f"{turn.at:%Y-%m-%d %H:%M:%SZ}", str(turn.phase), escape(turn.message))
    return Group(*parts, table)


def _what_is_next(remediation: Remediation, now: datetime) -> Iterator[tuple[str, str]]:
    """What it waits for, when, what holds it up, and how a person stops it."""
    name, end = as_argument(remediation), remediation.deadline_at
    if not remediation.phase.open:
        released = remediation.proposal.action is ActionKind.RELEASE_GANG and remediation.phase is Phase.SUCCEEDED
        if released or remediation.phase is Phase.FAILED:
            yield "Take it back", f"gpuwatch undo {name}"
        return
    step = remediation.next_step
    if step is not None and step.error:
        yield "Waits", f"{step.error} (tried {plural(step.attempts, 'time')})"
    if _to_decide(remediation):
        yield "Next", f"waits for a person until {_when(remediation.proposal.expires_at, now)}"
        yield "Decide", f"gpuwatch approve {name}, or gpuwatch reject {name}"
        return
    tainted = remediation.proposal.action is ActionKind.TAINT_NODE
    doing = {
        Phase.PROPOSED: "owners are notified",
        Phase.NOTIFIED: "notifies owners" if step is not None else "owners may object; then all is checked again",
        Phase.ACTING: "writes the next step",
        Phase.VERIFYING: "verifies its effect",
        Phase.IN_EFFECT: "checks for proof of health" if tainted else "checks whether its owner took it back",
        Phase.UNDOING: "waits until its Pods run again" if remediation.put_back else "takes it back",
    }[remediation.phase]
    later = remediation.next_at is not None and remediation.next_at > now
    yield "Next", doing + (f", not before {_when(remediation.next_at, now)}" if remediation.next_at and later else "")
    if end is not None and remediation.phase is not Phase.UNDOING:
        yield "At the latest", f"this phase ends {_when(end, now)}"
    if remediation.phase in (Phase.PROPOSED, Phase.NOTIFIED):
        yield "Stop it", f"gpuwatch reject {name}"
    elif remediation.phase is not Phase.UNDOING:
        yield "Take it back", f"gpuwatch undo {name}"


def _when(at: datetime, now: datetime) -> str:
    away = duration(abs((at - now).total_seconds()))
    return f"{at:%Y-%m-%d %H:%MZ} " + (f"(in {away})" if at > now else f"({away} ago)")


def pause_text(pause: Pause, now: datetime) -> str:
    if not pause.paused:
        return "Not paused."
    since = f" since {pause.since:%Y-%m-%d %H:%MZ} ({ago(pause.since, now)})" if pause.since else ""
    by = f" by {pause.by}" if pause.by else ""
    why = f": {pause.reason}" if pause.reason else ""
    stopped = "changes nothing" if pause.everything else "starts no action, and only undoes what it did"
    return f"Paused{since}{by}{why}. gpuwatch {stopped}; `gpuwatch resume` ends the pause."


def enforcement_text(hours: Mapping[datetime, Counter[str]], now: datetime) -> str:
    """hours: of the controller's record (`app/controller/cycle_job.py`)."""
    week = sum((counts for hour, counts in hours.items() if now - hour < timedelta(days=7)), Counter[str]())
    if not (cycles := week[""]):
        return "Unknown: no cycle of the last 7 days was counted."
    shares = {str(each): f"{100 * week[each] // cycles} %" for each in ActionKind}
    alike = len(set(shares.values())) == 1
    told = min(shares.values()) if alike else ", ".join(f"{share} ({name})" for name, share in shares.items())
    stops = sorted(((count, name) for name, count in week.items() if name and name not in shares), reverse=True)
    by = f"; stopped by {', '.join(f'{name} in {count:,}' for count, name in stops)}" if stops else ""
    return f"In the last 7 days enforcement was possible in {told} of the cycles ({cycles:,} counted){by}."


def notification(remediation: Remediation) -> tuple[str, str]:
    """Title, and Markdown with what, why, when, and how to stop it. Names are escaped."""
    proposal = remediation.proposal
    title = f"gpuwatch: {str(proposal.action).replace('_', ' ')} of {proposal.target}"
    steps = (*remediation.steps[remediation.step :][:1], *remediation.steps)  # the one that is under way first
    said = next(
        (step.parameters["text"] for step in steps if step.kind is StepKind.NOTIFY and step.parameters), proposal.reason
    )
    lines = [
        escaped(said.removeprefix(f"{remediation.name}: ")),
        "",
        f"- It concerns {plural(proposal.gpus, 'GPU')}"
        + (f" in {escaped(proposal.namespace)}" if proposal.namespace else "")
        + (f" for {escaped(proposal.waiter)}, which waits for them" if proposal.waiter else "")
        + ".",
        *(f"- {label.capitalize()}: {escaped(text)}" for label, text in worth_bases(proposal.score)),
        f"- Stop it: gpuwatch reject {as_argument(remediation)}",
        f"- Once it is done, take it back: gpuwatch undo {as_argument(remediation)}",
    ]
    return " ".join(title.split()), "\n".join(lines) + "\n"
