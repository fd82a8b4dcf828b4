"""tests/README.md has a line for each module that is no test, and no other."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_each_module_beside_the_tests_has_a_line() -> None:
    listed = re.findall(r"^\| `([\w/]+\.py)` \| .+ \|$", (TESTS / "README.md").read_text(), re.MULTILINE)
    there = {
        file.relative_to(TESTS).as_posix()
        for file in TESTS.rglob("*.py")
        if not file.name.startswith("test_") and file.stat().st_size
    }
    assert sorted(listed) == sorted(there), "tests/README.md: a line per module, a module per line"
