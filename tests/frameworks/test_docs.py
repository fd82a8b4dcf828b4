"""docs/frameworks.md says of every kind what is done to it, and why nothing is."""

from __future__ import annotations

from pathlib import Path

from gpuwatch.facts.frameworks import OWNERS, WRITTEN
from gpuwatch.facts.frameworks.framework import Kind, Never, ReleaseRule

PAGE = (Path(__file__).parents[2] / "docs" / "frameworks.md").read_text()
INNER = Kind("", "").release


def row(kind: Kind) -> str:
    assert isinstance(kind.release, Never)
    return f"| {kind.kind} | {f'`{kind.group}`' if kind.group else 'core'} | {kind.release.reason} |"


def test_every_kind_that_is_reported_only_is_listed_with_its_reason() -> None:
    wanted = [row(kind) for kind in OWNERS.values() if isinstance(kind.release, Never) and kind.release is not INNER]
    table = PAGE.split("## Reported only")[1].split("\n## ")[0]
    assert [line for line in table.splitlines() if line.startswith("| ")][1:] == sorted(wanted)


def test_every_kind_that_is_released_is_in_the_table_of_what_was_seen() -> None:
    rows = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| ")]
    named = {name.split()[0] for cell in rows for name in cell.split(",") if name.split()}
    released = {kind.kind for kind in WRITTEN.values() if isinstance(kind.release, ReleaseRule)}
    # The end-to-end tests try these on each run.
    assert released - {"Workload", "Deployment", "StatefulSet"} <= named


def test_it_says_of_every_kind_that_is_written_what_its_controller_deletes() -> None:
    told = {kind: kind.release.deletes for kind in WRITTEN.values() if isinstance(kind.release, ReleaseRule)}
    wanted = [f"| {kind.kind} | `{kind.group}` | {deletes.what} |" for kind, deletes in told.items()]
    table = PAGE.split("## What each controller deletes")[1].split("\n## ")[0]
    assert [line for line in table.splitlines() if line.startswith("| ")][1:] == sorted(wanted)
