"""`gpuwatch demo` from its packaged recording to its last line, the commands that it prints, and what the laboratory
says of what was planted in it."""

import json
import re
import shlex
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from gpuwatch.app.cli.main import cli
from gpuwatch.app.exit_code import ExitCode
from gpuwatch.sources.telemetry.recording_file import RecordingFile
from lab import demo as lab
from lab.planted import Planted
from lab.simulate.recording import write_recording

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Shown:
    folder: Path
    text: str

    @property
    def commands(self) -> list[str]:
        return [line.strip() for line in self.text.splitlines() if re.match(r"  \S*gpuwatch ", line)]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    folder = tmp_path_factory.mktemp("demo") / "a folder"
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("COLUMNS", raising=False)
        result = CliRunner().invoke(cli, ["demo", "--folder", str(folder)], catch_exceptions=False)
    assert result.exit_code == 0
    return Shown(folder, result.stdout)


def test_the_laboratory_says_what_was_planted_and_what_was_found(tmp_path: Path) -> None:
    result = CliRunner().invoke(lab.main, ["--folder", str(tmp_path)], catch_exceptions=False)
    assert result.exit_code == 0
    text = result.stdout
    counts = re.search(r"^(\d+) of (\d+) found, (\d+) missed, \d+ named wrongly\.$", text, re.MULTILINE)
    assert counts is not None
    found, planted, missed = map(int, counts.groups())
    assert 0 < found == planted - missed
    assert missed > 0
    assert len(re.findall(r"\bafter \d", text)) == found
    assert len(re.findall(r" missed *$", text, re.MULTILINE)) == missed
    assert re.search(r"^Of \d+ workloads that were planted .* advice was given for [1-9]", text, re.MULTILINE)


def test_the_demo_says_what_gpuwatch_finds(shown: Shown) -> None:
    text = shown.text
    assert text.startswith("A recording of a simulated fleet (seed 3): 32 GPUs, 5 days.")
    for section in (r"^Degraded \(\d", r"^Idle allocations \(\d", r"^\d+ changes?: \d"):
        assert re.search(section, text, re.MULTILINE), section
    lines = text.splitlines()
    tables = lines[: next(number for number, line in enumerate(lines) if line.startswith("Look further"))]
    assert Path(lines[-1].strip()).read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert 100 < max(map(len, tables)) <= 160
    _adds_up(shown.folder / "report")
    assert not re.search("GPU-[0-9a-f]{8}-", "\n".join(tables))  # the part of a UUID that people compare is enough


def test_the_demo_names_the_commands_that_go_on_from_it(shown: Shown) -> None:
    names = [shlex.split(command)[1] for command in shown.commands]
    assert names == ["analyze", "explain", "recommend", "mig-plan", "doctor"]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(5))
def test_each_printed_command_works_as_printed(shown: Shown, number: int) -> None:
    """In a shell of the folder where the demo ran."""
    command = shown.commands[number]
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, cwd=Path.cwd())
    # The doctor's code says that a rule lacks a signal, as half of the Nodes export the default metrics alone.
    assert done.returncode == (ExitCode.LIMITED if "doctor" in command else 0), done.stderr
    assert done.stdout


@pytest.mark.slow
def test_the_packaged_recording_is_what_the_laboratory_makes(tmp_path: Path) -> None:
    """Make it anew with `python -m lab.demo --pack`. Numbers may differ in their last digits between processors."""
    fleet = lab.packaged_fleet()
    lab.write(fleet, tmp_path)
    write_recording(tmp_path / "telemetry.parquet", lab.kept_series(fleet))
    packaged = msgspec.json.decode((lab.PLANTED / "planted.json").read_bytes(), type=Planted)
    assert packaged == msgspec.json.decode((tmp_path / "planted.json").read_bytes(), type=Planted)
    assert (lab.PACKAGED / "fleet.json").read_bytes() == (tmp_path / "fleet.json").read_bytes()
    for packed, names in (
        (lab.PLANTED / "moments.tar.xz", "moments/*/*.json"),
        (lab.PACKAGED / "cluster.tar.xz", "cluster/*.json"),
    ):
        with tarfile.open(packed) as archive:
            listed = {item.name: archive.extractfile(item).read() for item in archive}  # type: ignore[union-attr]
        assert listed == {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.glob(names)}
    ours, theirs = RecordingFile(tmp_path / "telemetry.parquet"), RecordingFile(lab.PACKAGED / "telemetry.parquet")
    assert ours.spans_ms == theirs.spans_ms
    for metric in ours.spans_ms:
        one, other = ours.read(metric), theirs.read(metric)
        assert one.labels == other.labels
        np.testing.assert_array_equal(one.times_ms, other.times_ms)
        np.testing.assert_allclose(one.values, other.values, rtol=0.02)
    assert sum(path.stat().st_size for path in lab.PACKAGED.iterdir()) < 2_000_000


def test_the_laboratory_shows_another_fleet_in_the_same_way(tmp_path: Path) -> None:
    arguments = ["--seed", "5", "--gpus", "8", "--days", "0.5", "--folder", str(tmp_path)]
    result = CliRunner().invoke(lab.main, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    assert "(seed 5): 8 GPUs, 0.5 days" in result.stdout
    assert (tmp_path / "report" / "report.html").exists()


def _adds_up(folder: Path) -> None:
    """The report's page against itself: the teams and the parts that are shown against the fleet."""
    html = (folder / "report.html").read_text(encoding="utf-8")

    def shown(section: str) -> list[dict[str, float]]:
        table = html.partition(section)[2].partition("</tbody>")[0]
        rows = re.findall(r"<tr.*?</tr>", table, re.DOTALL)[1:]
        cells = (re.findall(r'data-label="([^"]+)" class="num" role="cell"><div>([\d,]+)', row) for row in rows)
        return [{name: float(text.replace(",", "")) for name, text in row} for row in cells]

    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    fleet, teams, parts = report["fleet"], shown('id="teams"'), shown("All GPU-hours, and what they cost")
    assert len(teams) == len(report["teams"]) > 3
    assert sum(team["GPU-hours"] for team in teams) == pytest.approx(
        fleet["allocated_gpu_hours"], abs=0.51 * len(teams)
    )
    assert len(parts) == 6
    assert sum(part["GPU-hours"] for part in parts) == pytest.approx(fleet["capacity_gpu_hours"], abs=3.1)
    assert sum(part["Cost"] for part in parts) == pytest.approx(fleet["cost"], abs=3.1)
    assert sum(part["Cost"] for part in parts[1:4]) == pytest.approx(fleet["wasted_cost"], abs=1.6)
    for use in (fleet, *(team["use"] for team in report["teams"])):
        assert 0 <= use["wasted_cost"] <= use["cost"] + 1e-6
        assert use["sm_gpu_hours"] is None or use["sm_gpu_hours"] <= use["busy_gpu_hours"] + 1e-6
    idle = sum(team["use"]["idle_gpu_hours"] for team in report["teams"])
    assert fleet["idle_gpu_hours"] == pytest.approx(idle, abs=1e-6)
