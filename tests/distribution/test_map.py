"""The map of the code names what is there, and stays small enough to be read."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = sorted((ROOT / "src" / "gpuwatch").glob("*/__init__.py"))
PAGES = [*(init.with_name("README.md") for init in PARTS), ROOT / "lab" / "README.md"]


def test_the_map_has_at_most_200_lines_and_leads_to_every_part() -> None:
    told = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert len(told.splitlines()) <= 200
    assert {str(page.relative_to(ROOT)) for page in PAGES} <= set(re.findall(r"\]\(([^)#]+)", told))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_a_parts_page_says_the_same_four_things_in_at_most_60_lines(page: Path) -> None:
    told = page.read_text(encoding="utf-8")
    assert len(told.splitlines()) <= 60
    assert "## What it must never do" in told
    if page.parent.name != "lab":
        assert "**In**: " in told and "**Out**: " in told and "Tests: " in told


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_a_parts_page_names_its_rooms_and_files_that_are_there(page: Path) -> None:
    part = page.parent
    told = page.read_text(encoding="utf-8")
    rows = [line for line in told.splitlines() if line.startswith(("| `", "| ("))]
    named = set(re.findall(r"^\| `(\w+)/?` \|", "\n".join(rows), flags=re.MULTILINE))
    assert {init.parent.name for init in part.glob("*/__init__.py")} <= named
    for row in rows:
        room = re.match(r"\| `(\w+)` \|", row)
        for name in re.findall(r"`([\w/]+(?:\.\w+|/))`", row):
            places = (part / name, part / room[1] / name) if room else (part / name,)
            assert any(place.exists() for place in places), f"{name} of {row}"
