"""Delivers in a child that is killed at its n-th line of gpuwatch, then again in one that is not; for each n.

    python kill_at_every_line.py FOLDER WEBHOOK_ADDRESS STRIDE

Prints one JSON line per n: what the second run says. Ends after the first n that the child outlives. A process of its
own, without threads, because it forks.
"""

import json
import os
import signal
import sys
import warnings
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

warnings.simplefilter("ignore")

import apprise  # noqa: E402

from gpuwatch.facts.model.delivery import Sending  # noqa: E402
from gpuwatch.say.deliver import deliver as turns  # noqa: E402
from gpuwatch.say.deliver.deliver import Sent, deliver, with_new_destinations  # noqa: E402
from gpuwatch.say.deliver.policy import DeliveryPolicy  # noqa: E402
from gpuwatch.sources.store.store import Store  # noqa: E402

KILLED = 77


def run(state: Path, policy: DeliveryPolicy, title: str) -> list[dict[str, Any]]:
    files = {"report.html": b"<p>" * 1000, "report.json": b"{}"}
    sent = Sent(lambda: Store.open(state))
    new = Sending(
        id=title.replace(" ", "-"), title=title, text="summary", at=datetime(2026, 3, 9, tzinfo=UTC), report=True
    )
    sending = sent.note(with_new_destinations(sent.get(new.id) or new, policy))
    return [asdict(item) for item in deliver(sending, files, policy, sent, lambda _: None)]


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
    state, folder = base / f"state-{number}", base / f"out-{number}"
    policy = DeliveryPolicy(folder=folder, urls=(f"json://{address}/",))

    def killed() -> None:
        sys.settrace(kill_after(number))
        run(state, policy, f"report {number}")

    def files() -> list[str]:
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())

    def again() -> None:
        seen = files()
        result = run(state, policy, f"report {number}")
        print(json.dumps({"after_kill": seen, "result": result, "files": files()}, default=str), flush=True)

    status = forked(killed)
    if forked(again) != 0:
        raise SystemExit(f"the run after the kill at line {number} failed")
    return status == KILLED


def main() -> None:
    turns.ATTEMPTS = 1
    base, address, stride = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    # Import what is imported on first use, so that children start quickly.
    apprise.Apprise.instantiate(f"json://{address}/")
    number = 0
    while killed_at(number, base, address):
        number += stride


if __name__ == "__main__":
    main()
