"""A `gpuwatch run` in a process of its own, as people see it: its log, its probes and its metrics."""

import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


def asked(port: int, path: str) -> tuple[int, str]:
    """Status and body; 0 and why where nothing answers."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


@dataclass(frozen=True)
class GpuwatchRun:
    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def asked(self, path: str) -> tuple[int, str]:
        return asked(self.port, path)

    def metric(self, name: str) -> float | None:
        """A metric without labels, as /metrics shows it; None where it does not (yet)."""
        lines = self.asked("/metrics")[1].splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} ")), None)


@contextmanager
def begun(
    command: Sequence[str], log: Path, environment: Mapping[str, str], folder: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """The process; asked to end in order if it still runs, and killed where it does not."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, cwd=folder)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGCONT)  # one that a test has suspended would never hear of it
        try:
            process.wait(40)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait(10)
