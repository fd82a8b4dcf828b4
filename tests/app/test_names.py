"""Public words: docs/names.md is as the code has them, and no word that was replaced is left where people see it."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click import Command, Context, Group

from gpuwatch.app.cli.main import cli

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*", "deploy/**/*.yaml", "*/*.md", "rules/*.yaml", "dashboards/*.json")
    for path in ROOT.glob(pattern)
    if path.is_file() and path.suffix in (".md", ".json", ".yaml") and path.name != "CHANGELOG.md"
)
TEMPLATES = sorted((ROOT / "src" / "gpuwatch" / "say" / "templates").iterdir())

STILL_WORDS = {"retry_seconds", "taint_node", "--namespace", "At"}
"""Names of the changelog's column `was` that have another meaning, and stay."""

REPLACED = {
    r"\bfenc(e|ed|es|ing)\b": "taint a Node, check the Lease",
    r"\bannounc\w+": "notify",
    r"\bon offer\b": "allocatable",
    r"\bNot taken\b": "free",
    r"\b[Ss]ilent\b(?! *$)": "idle, down",
    r"\bheld\b": "allocated",
    r"\bholders?\b": "Pod that has it",
    r"\brehears\w+": "dry run",
    r"_usd\b|\busd_|Usd": "currency",
}
"""Concepts that had another word, as people read them: in the strings of the code."""


def _renamed() -> dict[str, re.Pattern[str]]:
    """The changelog's names that are no more, and how each is found. A metric with a label is gone with that label."""
    section = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").partition("#### Names")[2].partition("\n#### ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| ") and " | " in line]
    found: dict[str, re.Pattern[str]] = {}
    for span in (name for row in rows[1:] for name in re.findall(r"`([^`]+)`", row[1])):
        name, brace, label = span.partition("{")
        if name in STILL_WORDS or name.endswith("*") or not re.search(r"[A-Z_/-]", name):
            continue  # a plain word is looked for as a concept, below
        behind = rf"\{{[^}}]*\b{re.escape(label.rstrip('}'))}" if brace else r"(?![\w-])"
        found[span] = re.compile(rf"(?<![\w.-]){re.escape(name)}{behind}")
    return found


def _helps(command: Command, names: tuple[str, ...] = ("gpuwatch",)) -> Iterator[tuple[str, str]]:
    with Context(command, info_name=names[-1]) as context:
        yield f"help of {' '.join(names)}", command.get_help(context)
    if isinstance(command, Group):
        for name, inner in command.commands.items():
            yield from _helps(inner, (*names, name))


def _texts() -> Iterator[tuple[str, str]]:
    """What people read, by the place where it stands."""
    for path in (*PAGES, *TEMPLATES):
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
    yield from _helps(cli)


def _literals(path: Path) -> Iterator[tuple[int, str]]:
    """Strings of a module that are no docstring."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    expressions = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in expressions:
            yield node.lineno, node.value


def test_the_page_of_names_is_as_the_code_has_them() -> None:
    command = [sys.executable, "-m", "tools.names", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_changelog_names_renames() -> None:
    renamed = _renamed()
    some = {"gpuwatch.dev/fenced", "fenced_first", "Holding", "gpu_gone", "look_seconds", "savingUsdPerWeek"}
    assert some <= set(renamed)
    assert len(renamed) > 50


@pytest.mark.parametrize(("where", "text"), [pytest.param(*item, id=item[0]) for item in _texts()])
def test_no_name_that_was_replaced_is_left(where: str, text: str) -> None:
    left = [name for name, pattern in _renamed().items() if pattern.search(text)]
    assert not left, f"{where} has {left}; CHANGELOG.md has their new names"


def test_no_string_of_the_code_has_a_name_that_was_replaced() -> None:
    names = re.compile("|".join(pattern.pattern for pattern in _renamed().values()))
    left = [
        f"{path.relative_to(ROOT)}:{line}: {text[:80]}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for line, text in _literals(path)
        if names.search(text)
    ]
    assert not left


@pytest.mark.parametrize("old", REPLACED)
def test_people_read_the_fields_own_word(old: str) -> None:
    """In messages, tables, reports and pages of every room that speaks to people."""
    pattern = re.compile(old)
    left = [
        f"{path.relative_to(ROOT)}:{line}: {text[:100]!r}"
        for room in ("account", "act", "app", "judge", "say", "size", "sources/store")
        for path in sorted((ROOT / "src" / "gpuwatch" / room).rglob("*.py"))
        for line, text in _literals(path)
        if pattern.search(text)
    ]
    left += [
        f"{path.relative_to(ROOT)}: {line.strip()[:100]}"
        for path in TEMPLATES
        for line in path.read_text(encoding="utf-8").splitlines()
        if pattern.search(line)
    ]
    assert not left, f"say {REPLACED[old]}: {left}"
