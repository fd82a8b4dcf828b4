"""Servers as child processes: started, waited for, stopped by process id and gone before the next one starts."""

import contextlib
import fcntl
import functools
import itertools
import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
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


def answers(url: str) -> bool:
    """Does this address answer with success, past any proxy?"""
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=5):
            return True
    except OSError:
        return False


_PORTS = range(20_000, 30_000)  # below those of outgoing connections (Linux: from 32768; macOS: from 49152)
_BLOCK = 100


def free_port() -> int:
    """A loopback port that nobody listens on, and that nobody takes before a server of this process does.

    Not one that the system names (port 0): until the server listens, it may give the same one to any other process, or
    to a connection that somebody opens. Raises RuntimeError where every port of this process is taken.
    """
    ports = _own_ports()
    for port in itertools.islice(ports, _BLOCK):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError(f"all {_BLOCK} ports of this process are taken, the last of them {port}")


@functools.cache
def _own_ports() -> Iterator[int]:
    """Round and round; of no other process while this one lives, as it holds a lock."""
    folder = Path(tempfile.gettempdir()) / f"gpuwatch-test-ports-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    for first in _PORTS[::_BLOCK]:
        lock = os.open(folder / f"{first}", os.O_RDWR | os.O_CREAT)  # closed, and so given up, when the process ends
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            continue
        return itertools.cycle(range(first, first + _BLOCK))
    raise RuntimeError(f"other processes have locked every file of {folder}")
