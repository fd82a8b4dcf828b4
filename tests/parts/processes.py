"""Servers as child processes: started, waited for, stopped by process id and gone before the next one starts."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path


@contextlib.contextmanager
def running_process(command: Sequence[str | Path], log: Path, ready: Callable[[], bool]) -> Iterator[None]:
    """The command until the block ends, from when `ready` holds; what it says goes to `log`.

    Raises RuntimeError with the end of its log where it ends by itself, or is not ready within a minute.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=log.parent)
    try:

        def is_ready() -> bool:
            if process.poll() is not None:
                raise RuntimeError(f"{command[0]} ended with {process.returncode}: {log.read_text()[-2000:]}")
            return ready()

        wait_until(is_ready, lambda: f"{command[0]} was not ready in time: {log.read_text()[-2000:]}")
        yield
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until(condition: Callable[[], bool], complaint: Callable[[], str], seconds: float = 60) -> None:
    """Raises RuntimeError with the complaint where the condition does not come to hold in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(complaint())
        time.sleep(0.05)


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
