"""Delivers in a child that is killed at its n-th line of gpuwatch, then again in one that is not; for each n.

    python kill_at_every_line.py OUTBOXES WEBHOOK_ADDRESS STRIDE

Prints one JSON line per n: what the second run says. Ends after the first n that the child outlives. A process of its
own, without threads, because it forks.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

warnings.simplefilter("ignore")

from gpuwatch.deliver.deliver import deliver, deliver_pending  # noqa: E402
from gpuwatch.deliver.policy import DeliveryPolicy  # noqa: E402

KILLED = 77


def run(outbox: Path, policy: DeliveryPolicy, title: str) -> list[dict[str, Any]]:
    files = {"report.html": b"<p>" * 1000, "report.json": b"{}"}
    deliver_pending(policy, outbox, lambda _: None)
    return [asdict(item) for item in deliver(files, title, "summary", policy, outbox, lambda _: None)]


def kill_after(lines: int) -> Callable[..., Any]:
    left = lines

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if "/gpuwatch/deliver/" not in frame.f_code.co_filename:
            return None
        if event == "line":
            left -= 1
            if left < 0:
                os._exit(KILLED)
        return trace

    return trace


def main() -> None:
    base, address, stride = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    # Import what is imported on first use, so that children start quickly.
    run(base / "warm", DeliveryPolicy(folder=base / "warm-out", urls=(f"json://{address}/",)), "warm up")
    number = 0
    killed = True
    while killed:
        outbox, folder = base / f"box-{number}", base / f"out-{number}"
        policy = DeliveryPolicy(folder=folder, urls=(f"json://{address}/",), attempts=1)
        child = os.fork()
        if child == 0:
            sys.settrace(kill_after(number))
            run(outbox, policy, f"report {number}")
            os._exit(0)
        killed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == KILLED
        seen = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        result = run(outbox, policy, f"report {number}")
        done = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        print(json.dumps({"number": number, "after_kill": seen, "result": result, "files": done}), flush=True)
        number += stride


if __name__ == "__main__":
    main()
