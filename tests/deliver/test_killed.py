"""A process that is killed at any line loses no report, and repeats one only where it could not note the answer."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from deliver.receivers import webhook

# A prime: not the same statement of each loop every time.
STRIDE = "5"


@pytest.mark.slow
def test_killed_at_every_line(tmp_path: Path) -> None:
    script = Path(__file__).with_name("kill_at_every_line.py")
    with webhook() as server:
        command = [sys.executable, str(script), str(tmp_path), server.address, STRIDE]
        told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout
        keys = Counter(server.taken)
    rounds = [json.loads(line) for line in told.splitlines()]
    assert len(rounds) > 50  # lines of one delivery, divided by the stride
    for item in rounds:
        assert [one["state"] for one in item["result"]] == ["sent", "sent"], item
        assert {name.split("/")[1] for name in item["files"]} == {"report.html", "report.json"}
        # Half-written files never bear a file's name.
        assert all(
            name.split("/")[1] in ("report.html", "report.json") or name.endswith(".part")
            for name in item["after_kill"]
        )
    assert len(keys) == len(rounds)  # each arrived
    assert max(keys.values()) <= 2
    repeated = sum(count > 1 for count in keys.values())
    assert 0 < repeated < len(rounds) / 4  # killed between the answer and its note
