"""`gpuwatch demo` from the simulation to its last line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuwatch.app.cli import cli


def test_the_demo_says_what_was_planted_and_what_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    folder = tmp_path / "a folder"
    arguments = ["demo", "--seed", "3", "--gpus", "16", "--days", "1", "--folder", str(folder)]
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    text = result.stdout
    counts = re.search(r"^(\d+) of (\d+) found, (\d+) missed, \d+ named wrongly\.$", text, re.MULTILINE)
    assert counts is not None
    found, planted, missed = map(int, counts.groups())
    assert 0 < found == planted - missed
    assert len(re.findall(r"\bafter \d", text)) == found
    assert len(re.findall(r" missed *$", text, re.MULTILINE)) == missed
    commands = [line for line in text.splitlines() if line.startswith("  gpuwatch ")]
    assert [line.split()[1] for line in commands] == ["analyze", "explain", "recommend", "mig-plan", "doctor"]
    for command in commands:
        assert command.endswith(f"--telemetry '{folder}/telemetry.parquet' --cluster '{folder}/cluster'")
    lines = text.splitlines()
    tables = lines[: lines.index(commands[0]) - 1]
    assert Path(lines[-1].strip()).read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert 100 < max(map(len, tables)) <= 160
    assert not re.search("GPU-[0-9a-f]{8}-", "\n".join(tables))  # the part of a UUID that people compare is enough
