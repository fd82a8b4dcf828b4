"""The rooms that decide get the time passed in, and read and write no files. What they import, import-linter sees."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpuwatch

ROOMS = ("facts/frameworks", "judge", "act/plan", "act/placement.py", "size", "account", "say")
DELIVERY = "say/deliver"
CLOCK = {"now", "utcnow", "today"}
FILES = {"open", "read_text", "read_bytes", "write_text", "write_bytes", "mkdir", "unlink", "rename"}


def effects(source: str) -> Iterator[str]:
    """Calls of the clock (`datetime.now()`, `date.today()`) and of files."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in FILES or (name in CLOCK and isinstance(node.func, ast.Attribute)):
            yield f"{ast.unparse(node.func)}, line {node.lineno}"


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_that_decides_asks_neither_the_clock_nor_a_file(room: str) -> None:
    package = Path(gpuwatch.__file__).parent
    files = [path for path in sorted(package.rglob("*.py")) if path.is_relative_to(package / room)]
    files = [path for path in files if not path.is_relative_to(package / DELIVERY)]
    assert files
    found = [f"{path.name}: {each}" for path in files for each in effects(path.read_text(encoding="utf-8"))]
    assert found == []


@pytest.mark.parametrize(
    "source", ["datetime.now(UTC)", "date.today()", "datetime.datetime.utcnow()", "open(name)", "path.write_text('x')"]
)
def test_an_effect_is_seen(source: str) -> None:
    assert len(list(effects(source))) == 1
