"""docs/security.md names tests that exist."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "security.md"
NAMED = re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE.read_text(encoding="utf-8"))


def defined(file: Path) -> set[str]:
    """Functions and methods."""
    found = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    return {each.name for each in found if isinstance(each, ast.FunctionDef)}


def test_each_test_that_the_threat_model_names_exists() -> None:
    assert len(NAMED) > 30
    assert [f"{file}::{name}" for file, name in NAMED if name not in defined(TESTS / file)] == []


def test_each_row_of_its_tables_names_a_test() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    heads = [line for line in rows if line.endswith("| shown by |")]
    assert [line for line in rows if line not in heads and "::" not in line] == []
