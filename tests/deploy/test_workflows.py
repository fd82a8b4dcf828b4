"""GitHub's workflows: valid, and no action in them changes without a commit here. None has run: docs/releasing.md."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_they_are_valid(actionlint: Path) -> None:
    # Without shellcheck, which is not on every machine.
    done = subprocess.run([actionlint, "-shellcheck=", *FILES], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_every_action_is_named_by_its_commit_and_its_version() -> None:
    used = [line.strip() for file in FILES for line in file.read_text().splitlines() if "uses:" in line]
    assert len(used) > 5
    assert [line for line in used if not re.search(r"uses: [\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line)] == []


def test_an_action_has_one_version_everywhere() -> None:
    used = {found for file in FILES for found in re.findall(r"uses: ([\w/-]+)@(\w+)", file.read_text())}
    assert len(used) == len({name for name, _ in used})
