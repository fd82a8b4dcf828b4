"""docs/story.md: what its commands on the demo's fleet print is what the page shows."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuwatch.app.cli.main import cli

PAGE = Path(__file__).parents[2] / "docs" / "story.md"
ELSEWHERE = ("history", "approve", "reject", "undo", "mig-plan")
"""Commands that need a cluster, or the larger fleet of another seed."""


def _shown() -> Iterator[tuple[str, list[str]]]:
    """(command, the lines below it) of each command on the page."""
    for block in re.findall(r"```console\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        for part in block.split("$ ")[1:]:
            command, *lines = part.splitlines()
            yield command, lines


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("story")
    assert CliRunner().invoke(cli, ["demo", "--folder", str(made / "out" / "demo")]).exit_code == 0
    return made


@pytest.mark.parametrize(("command", "lines"), list(_shown()), ids=lambda value: str(value)[:40])
def test_what_is_shown_is_what_is_printed(
    command: str, lines: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this order; between two of the lines others may stand only where the page has `…`."""
    program, name, *words = shlex.split(command)
    assert (program, name in cli.commands) == ("gpuwatch", True)
    if name in ELSEWHERE:
        return
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "100")
    result = CliRunner().invoke(cli, [name, *words])
    assert result.exit_code == 0, result.output
    printed = [line.rstrip() for line in result.output.splitlines()]
    at, anywhere = 0, False
    for line in lines:
        if line == "…":
            anywhere = True
            continue
        at = printed.index(line, at) if anywhere else at
        assert printed[at] == line
        at, anywhere = at + 1, False
    assert anywhere or at == len(printed)
