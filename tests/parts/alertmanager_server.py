"""The real Alertmanager for tests: where it is, and how it starts, on loopback and without peers.

`parts/install` puts Debian's package in place; nothing here installs or downloads.
"""

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from parts.processes import answers, free_port, running_process


@dataclass(frozen=True)
class AlertmanagerBuild:
    alertmanager: Path
    amtool: Path


def find_alertmanager() -> AlertmanagerBuild | None:
    """From the PATH, by Debian's name or by its own; None where it or amtool is missing."""
    program = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
    amtool = shutil.which("amtool")
    return AlertmanagerBuild(Path(program), Path(amtool)) if program and amtool else None


@contextlib.contextmanager
def running_alertmanager(build: AlertmanagerBuild, config: Path) -> Iterator[str]:
    """With this configuration, until the block ends. Yields its base URL."""
    with TemporaryDirectory(prefix="alertmanager-") as temporary:
        folder = Path(temporary)
        address = f"127.0.0.1:{free_port()}"
        command = [
            build.alertmanager,
            f"--config.file={config}",
            f"--storage.path={folder / 'data'}",
            f"--web.listen-address={address}",
            "--cluster.listen-address=",
            "--log.level=warn",
        ]
        url = f"http://{address}"
        with running_process(command, folder / "alertmanager.log", lambda: answers(f"{url}/-/ready")):
            yield url
