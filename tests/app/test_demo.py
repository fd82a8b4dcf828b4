"""`gpuwatch demo` from the simulation to its last line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuwatch.app.cli.main import cli


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
    _adds_up(folder / "report")
    assert not re.search("GPU-[0-9a-f]{8}-", "\n".join(tables))  # the part of a UUID that people compare is enough


def _adds_up(folder: Path) -> None:
    """The report's page against itself: the parts of each team's hours, and the teams against the fleet."""
    html = (folder / "report.html").read_text(encoding="utf-8")
    rows = re.findall(r"<tr.*?</tr>", html.partition('id="teams"')[2].partition("</tbody>")[0], re.DOTALL)[1:]
    teams = []
    for row in rows:
        shown = dict(re.findall(r'data-label="([^"]+)" class="num" role="cell"><div>([\d,.]+)', row))
        allocated, busy, idle, unknown = (
            float(shown[name].replace(",", "")) for name in ("GPU-hours allocated", "Busy", "Idle", "Unknown")
        )
        assert allocated == pytest.approx(busy + idle + unknown, abs=0.21)  # four numbers, each rounded by itself
        teams.append(allocated)
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    fleet = report["fleet"]
    assert len(teams) == len(report["teams"]) > 3
    assert sum(teams) == pytest.approx(fleet["allocated_gpu_hours"], abs=0.051 * len(teams))
    said = re.search(r"([\d.,]+) GPU-hours allocated = ([\d.,]+) busy \+ ([\d.,]+) idle \+ ([\d.,]+) unknown", html)
    assert said is not None
    allocated, *parts = (float(text.replace(",", "")) for text in said.groups())
    assert allocated == pytest.approx(fleet["allocated_gpu_hours"], abs=0.051)
    assert allocated == pytest.approx(sum(parts), abs=0.21)
    for use in (fleet, *(team["use"] for team in report["teams"])):
        assert 0 <= use["saving"] <= use["cost"] + 1e-6
        assert 0 <= use["wasted_cost"] <= use["cost"] + 1e-6
        assert use["sm_gpu_hours"] is None or use["sm_gpu_hours"] <= use["busy_gpu_hours"] + 1e-6
    for name in ("saving", "saving_gpu_hours", "idle_gpu_hours"):
        assert fleet[name] == pytest.approx(sum(team["use"][name] for team in report["teams"]), abs=1e-6)
