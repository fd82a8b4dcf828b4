"""docs/sizing.md names every veto and every kind of abstention, and none that does not exist."""

import re
from pathlib import Path

import pytest

from gpuwatch.facts.model.sizing import AbstentionKind
from gpuwatch.size.vetoes import ACROSS, VETOES

DOCS = (Path(__file__).parents[2] / "docs" / "sizing.md").read_text(encoding="utf-8")


def rows(section: str) -> set[str]:
    body = DOCS.split(f"## {section}\n", 1)[1].split("\n## ", 1)[0]
    return set(re.findall(r"^\| `([a-z_]+)` \|", body, re.MULTILINE))


@pytest.mark.parametrize(
    ("section", "names"), [("Vetoes", {*VETOES, *ACROSS}), ("Abstentions", {kind.value for kind in AbstentionKind})]
)
def test_tables_are_those_of_the_code(section: str, names: set[str]) -> None:
    assert rows(section) == names
