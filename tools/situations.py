"""The situations of tests/detect/situations: their form, and the page docs/situations.md.

python -m tools.situations [--check]: writes the page, or exits with 1 where it is out of date.

A row says what a cluster shows and what gpuwatch has to conclude of it. tests/detect/test_situations.py builds
telemetry and cluster from it and asks the whole path from metric to plan. A row with `todo` is one that gpuwatch still
gets wrong.
"""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from gpuwatch.facts.model.decision import ActionKind, Advice, FindingKind, Severity, Verdict
from tools import generated

FOLDER = generated.ROOT / "tests" / "detect" / "situations"
PAGE = generated.ROOT / "docs" / "situations.md"


class Expect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One finding. What is left out is not asked.

    verdict: null says that there is no finding of that kind, or of any of several, which people would see
    (`Finding.notable`). Of a fault, severity and advice have to be said too.
    subject: 'a0/3' is GPU 3 of Node a0; else a subject as gpuwatch writes it
    (node/a0, gang/…, fleet/fleet), or any. acted_on: whether the plan does anything for it, or the very actions.
    says: words that the summary has.
    """

    kind: FindingKind | tuple[FindingKind, ...]
    verdict: Verdict | None
    subject: str | tuple[str, ...] = "any"
    severity: Severity | None = None
    advice: Advice | None = None
    acted_on: bool | tuple[ActionKind, ...] | None = None
    says: str = ""

    @property
    def kinds(self) -> tuple[FindingKind, ...]:
        return self.kind if isinstance(self.kind, tuple) else (self.kind,)

    @property
    def subjects(self) -> tuple[str, ...]:
        return self.subject if isinstance(self.subject, tuple) else (self.subject,)


class Moment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What has to be concluded at `at` (90m, 26h, 8d after the first sample). The moments of a row are of one process,
    which remembers.

    nodes: changes of Nodes since the moment before (see the fleet's `nodes`). spared: no Pod is moved or released.
    nothing_done: the plan admits nothing at all. others: findings on GPUs that `expect` does not name are no error.
    """

    at: str
    expect: tuple[Expect, ...] = ()
    nodes: Mapping[str, Mapping[str, Any]] = {}
    spared: bool = False
    nothing_done: bool = False
    others: bool = False


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """given: see tests/detect/situations/fleet.py. moments: one or several; a row with one has its fields itself.

    source: who says so. against: another tool that says otherwise, and what. todo: why gpuwatch gets it wrong today.
    """

    situation: str
    source: str
    given: Mapping[str, Any]
    moments: tuple[Moment, ...]
    against: str = ""
    todo: str = ""


class Theme(msgspec.Struct, frozen=True, kw_only=True):
    """columns: heads of the moments of its rows, which have as many each; the page then has one column per moment."""

    name: str
    title: str
    words: str
    rows: tuple[Row, ...]
    columns: tuple[str, ...] = ()


def themes(folder: Path = FOLDER) -> tuple[Theme, ...]:
    """All themes, by their file names. Raises ValueError, which names file and row, for what is not of this form."""
    return tuple(_theme(path) for path in sorted(folder.glob("*.yaml")))


def _theme(path: Path) -> Theme:
    read = yaml.safe_load(path.read_text())
    rows = []
    for row in read["rows"]:
        named = f"{path.name}: {row.get('situation', 'a row without `situation`')}"
        row.setdefault("given", {})
        if "moments" not in row:
            row["moments"] = [{name: row.pop(name) for name in Moment.__struct_fields__ if name in row}]
        try:
            rows.append(msgspec.convert(row, Row))
        except msgspec.ValidationError as error:
            raise ValueError(f"{named}: {error}") from error
    columns = tuple(read.get("columns", ()))
    if odd := next((row for row in rows if columns and len(row.moments) != len(columns)), None):
        raise ValueError(f"{path.name}: {odd.situation}: {len(odd.moments)} moments, but {len(columns)} columns")
    return Theme(name=path.stem, title=read["title"], words=read["words"].strip(), rows=tuple(rows), columns=columns)


_HEAD = """\
# Situations

The right answers to single situations, and whether gpuwatch gives them. The answers are from NVIDIA's documents
first, then from the test cases of other tools. `make situations` writes this page from `tests/detect/situations`.
`tests/detect/test_situations.py` builds the telemetry and the cluster of each row and runs everything from samples to
plan, with all modes at `enforce` and default bounds. "Acts" means that the plan admits an action; "moves" that a job
is moved off its GPU; "taints" that the Node takes no new Pods.

Telemetry and clusters are written by hand, in the forms of exporters and the API server; they are no recordings of
broken hardware. gpuwatch gets a row marked **not yet** wrong today; its test fails once gpuwatch gets it right, so
that the mark is removed. All other rows are what gpuwatch says. *otherwise* names a tool that says something else.
`a0/3` is GPU 3 of Node `a0`. Everything that a row does not name is healthy.

## Summary

{summary}
"""


def page(found: Sequence[Theme]) -> str:
    parts = [_HEAD.format(summary=_summary(found))]
    for theme in found:
        parts.append(f"## {theme.title}\n\n{theme.words}\n")
        heads = theme.columns or ("right answer",)
        lines = [f"| situation | {' | '.join(heads)} | source |", "|---" * (len(heads) + 2) + "|"]
        for row in theme.rows:
            said = [_short(moment) for moment in row.moments] if theme.columns else [_says(row)]
            lines.append(f"| {_cell(row.situation)} | {' | '.join(said)} | {_source(row)} |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _summary(found: Sequence[Theme]) -> str:
    """How many rows there are and how many are right, by theme; then those that are wrong."""
    rows = [row for theme in found for row in theme.rows]
    lines = ["| | situations | right | not yet |", "|---|---|---|---|"]
    lines += [_counted(f"[{theme.title}](#{_anchor(theme.title)})", theme.rows) for theme in found]
    lines.append(_counted("all", rows))
    wrong = [f"- {_cell(row.situation)}: {_cell(row.todo)}." for row in rows if row.todo]
    otherwise = sum(bool(row.against) for row in rows)
    says = "Wrong today:\n\n" + "\n".join(wrong) if wrong else "gpuwatch gets none of them wrong today."
    return "\n".join(lines) + f"\n\nIn {otherwise} of them another tool says something else. {says}"


def _anchor(title: str) -> str:
    """As GitHub and MyST make them."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def _counted(title: str, rows: Sequence[Row]) -> str:
    todo = sum(bool(row.todo) for row in rows)
    return f"| {title} | {len(rows)} | {len(rows) - todo} | {todo} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _source(row: Row) -> str:
    return _cell(row.source) + (f"; otherwise: {_cell(row.against)}" if row.against else "")


def _says(row: Row) -> str:
    several = len(row.moments) > 1
    parts = [(f"after {moment.at}: " if several else "") + "; ".join(_words(moment)) for moment in row.moments]
    return (f"**not yet** ({_cell(row.todo)}): " if row.todo else "") + "<br>".join(parts)


def _words(moment: Moment) -> Iterable[str]:
    yield from (_finding(each) for each in moment.expect)
    if moment.nothing_done:
        yield "nothing is done"
    elif moment.spared:
        yield "no job is moved"


def _short(moment: Moment) -> str:
    """Verdict and actions alone, for a table with a column per moment."""
    return "; ".join(", ".join((str(each.verdict), *_done(each))) for each in moment.expect)


_ACTS = {
    ActionKind.TAINT_NODE: "taints",
    ActionKind.EVICT_GANG: "moves",
    ActionKind.MAKE_ROOM: "makes room",
    ActionKind.RELEASE_GANG: "releases",
}


def _finding(each: Expect) -> str:
    kinds = " or ".join(f"`{kind}`" for kind in each.kinds)
    where = "" if each.subject == "any" else f" on {', '.join(each.subjects)}"
    if each.verdict is None:
        return f"no {kinds}{where}"
    told = [f"{kinds}{where}: {each.verdict}", str(each.severity or ""), str(each.advice or ""), *_done(each)]
    return ", ".join(part for part in told if part)


def _done(each: Expect) -> Iterable[str]:
    if each.acted_on is False:
        yield "does not act"
    elif each.acted_on is True:
        yield "acts"
    elif each.acted_on is not None:
        yield " and ".join(_ACTS.get(action, str(action)) for action in each.acted_on)


if __name__ == "__main__":
    sys.exit(generated.main("situations", lambda: {PAGE: page(themes())}, sys.argv[1:]))
