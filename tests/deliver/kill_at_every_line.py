"""Delivers in a child that is killed at its n-th line of gpuwatch, then again in one that is not; for each n.

    python kill_at_every_line.py OUTBOXES WEBHOOK_ADDRESS STRIDE

Prints one JSON line per n: what the second run says. Ends after the first n that the child outlives. A process of its
own, without threads, because it forks.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

warnings.simplefilter("ignore")

import apprise  # noqa: E402

from gpuwatch.say.deliver.deliver import deliver, deliver_pending  # noqa: E402
from gpuwatch.say.deliver.policy import DeliveryPolicy  # noqa: E402

KILLED = 77


def run(outbox: Path, policy: DeliveryPolicy, title: str) -> list[dict[str, Any]]:
    files = {"report.html": b"<p>" * 1000, "report.json": b"{}"}
    deliver_pending(policy, outbox, lambda _: None)
    return [asdict(item) for item in deliver(files, title, "summary", policy, outbox, lambda _: None)]


def kill_after(lines: int) -> Callable[..., Any]:
    left = lines

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if "/gpuwatch/say/deliver/" not in frame.f_code.co_filename:
            return None
        if event == "line":
            left -= 1
            if left < 0:
                os._exit(KILLED)
        return trace

    return trace


def forked(work: Callable[[], object]) -> int:
    """The exit status of a child that does the work. This process never notifies by itself: that starts threads, which
    a fork would leave behind with their locks held."""
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        work()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_at(number: int, base: Path, address: str) -> bool:
    """Delivers twice, the first time killed at the line; False where the first came to its end."""
    outbox, folder = base / f"box-{number}", base / f"out-{number}"
    policy = DeliveryPolicy(folder=folder, urls=(f"json://{address}/",), attempts=1)

    def killed() -> None:
        sys.settrace(kill_after(number))
        run(outbox, policy, f"report {number}")

    def files() -> list[str]:
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())

    def again() -> None:
        seen = files()
        result = run(outbox, policy, f"report {number}")
        print(json.dumps({"after_kill": seen, "result": result, "files": files()}), flush=True)

    status = forked(killed)
    if forked(again) != 0:
        raise SystemExit(f"the run after the kill at line {number} failed")
    return status == KILLED


def main() -> None:
    base, address, stride = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    # Import what is imported on first use, so that children start quickly.
    apprise.Apprise.instantiate(f"json://{address}/")
    number = 0
    while killed_at(number, base, address):
        number += stride


if __name__ == "__main__":
    main()
