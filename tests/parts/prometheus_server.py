"""Real Prometheus and Thanos servers for tests: where they are, how they start, how data gets in.

Two ways to load samples, both with exact timestamps:

- `running(build, openmetrics=…)` makes blocks with `promtool tsdb create-blocks-from openmetrics`. Quick for much
  data. The text format cannot express staleness markers; every sample needs a timestamp, the text ends with
  `# EOF`, counters are named `…_total` or declared untyped, and samples of one metric stand together.
- `remote_write.write(url, …)` pushes into a running server: staleness markers, NaN with a payload, any order.

`parts/install` puts the servers in place; nothing here builds or downloads.
"""

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from parts.go_tools import THANOS, TOOLS
from parts.processes import free_port, running_process, wait_until

MAJORS = (2, 3)


@dataclass(frozen=True)
class ServerBuild:
    """One Prometheus with its promtool. `name` is 'prometheus-2.42' (real version) or 'prometheus-3'."""

    name: str
    major: int
    prometheus: Path
    promtool: Path


def find_servers() -> list[ServerBuild]:
    """One build per major version, the first found of: PATH, Debian's package (also on the PATH), the Go tool."""
    builds: dict[int, ServerBuild] = {}
    for folder in (
        *map(Path, os.environ.get("PATH", "").split(os.pathsep)),
        Path("/usr/bin"),
        TOOLS.folder,
    ):
        prometheus, promtool = folder / "prometheus", folder / "promtool"
        if os.access(prometheus, os.X_OK) and os.access(promtool, os.X_OK):
            build = _identified(prometheus, promtool)
            if build is not None and build.major in MAJORS:
                builds.setdefault(build.major, build)
    return [builds[major] for major in sorted(builds)]


def find_thanos() -> Path | None:
    """The thanos binary: on the PATH, else the Go tool; None where there is neither."""
    on_path = shutil.which("thanos")
    if on_path:
        return Path(on_path)
    built = THANOS.folder / "thanos"
    return built if os.access(built, os.X_OK) else None


def _identified(prometheus: Path, promtool: Path) -> ServerBuild | None:
    shown = subprocess.run([prometheus, "--version"], capture_output=True, text=True, check=False)
    version = re.search(r"version (\d+)\.(\d+)", shown.stdout + shown.stderr)
    if version is None:
        return None
    major, minor = int(version[1]), int(version[2])
    return ServerBuild(f"prometheus-2.{minor}" if major == 2 else f"prometheus-{major}", major, prometheus, promtool)


@contextlib.contextmanager
def running(
    build: ServerBuild,
    openmetrics: str | Path | None = None,
    *,
    flags: Sequence[str] = (),
    data: Path | None = None,
    host: str = "127.0.0.1",
    scrape_configs: Sequence[Mapping[str, Any]] = (),
    rule_files: Sequence[Path] = (),
) -> Iterator[str]:
    """A Prometheus on a free loopback port, ready, with the samples of `openmetrics` (text, or a file of it).

    Yields its base URL. `flags` are added to its command line, e.g. `--query.max-samples=1000`, and replace those of
    the same name. `data` is its data folder where the caller wants it to outlive the server; blocks that are already
    there are served. It scrapes what `scrape_configs` names, evaluates `rule_files`, and takes remote writes, out of
    order too.
    """
    with tempfile.TemporaryDirectory(prefix="prometheus-") as temporary:
        folder = Path(temporary)
        data = folder / "data" if data is None else data
        data.mkdir(parents=True, exist_ok=True)
        if openmetrics is not None:
            create_blocks(build, openmetrics, data)
        config = folder / "prometheus.yml"
        # A Thanos sidecar refuses a Prometheus without external labels; local queries do not show them.
        settings = {
            "global": {"external_labels": {"prometheus_replica": "a"}},
            "storage": {"tsdb": {"out_of_order_time_window": "10y"}},
            "scrape_configs": list(scrape_configs),
            "rule_files": [str(file) for file in rule_files],
        }
        config.write_text(yaml.safe_dump(settings))
        port = free_port()
        usual = [
            f"--config.file={config}",
            f"--storage.tsdb.path={data}",
            "--storage.tsdb.retention.time=10y",
            "--storage.tsdb.min-block-duration=2h",
            "--storage.tsdb.max-block-duration=2h",
            "--web.enable-remote-write-receiver",
            f"--web.listen-address={host}:{port}",
            "--log.level=warn",
        ]
        given = {flag.partition("=")[0] for flag in flags}
        command = [build.prometheus, *(flag for flag in usual if flag.partition("=")[0] not in given), *flags]
        url = f"http://{host}:{port}"
        with running_process(command, folder / "prometheus.log", _answers(f"{url}/-/ready")):
            yield url


@contextlib.contextmanager
def thanos_sidecar(thanos: Path, prometheus_url: str, grpc: str) -> Iterator[None]:
    """A Thanos sidecar beside a running Prometheus, which serves its series at the address `grpc`."""
    with tempfile.TemporaryDirectory(prefix="thanos-") as temporary:
        folder, http = Path(temporary), f"127.0.0.1:{free_port()}"
        sidecar: list[str | Path] = [
            thanos,
            "sidecar",
            f"--prometheus.url={prometheus_url}",
            f"--tsdb.path={folder}",
            f"--grpc-address={grpc}",
            f"--http-address={http}",
            "--log.level=warn",
        ]
        with running_process(sidecar, folder / "sidecar.log", _answers(f"http://{http}/-/ready")):
            yield


@contextlib.contextmanager
def thanos_query(thanos: Path, prometheus_url: str, flags: Sequence[str] = ()) -> Iterator[str]:
    """A Thanos sidecar beside a running Prometheus and a Thanos Query over it. Yields the Query's base URL."""
    with tempfile.TemporaryDirectory(prefix="thanos-") as temporary, contextlib.ExitStack() as stack:
        folder = Path(temporary)
        sidecar, grpc, http = (f"127.0.0.1:{free_port()}" for _ in range(3))
        query: list[str | Path] = [
            thanos,
            "query",
            f"--endpoint={sidecar}",
            f"--grpc-address={grpc}",
            f"--http-address={http}",
            "--query.replica-label=prometheus_replica",
            "--log.level=warn",
            *flags,
        ]
        stack.enter_context(thanos_sidecar(thanos, prometheus_url, sidecar))
        stack.enter_context(running_process(query, folder / "query.log", _answers(f"http://{http}/-/ready")))
        url = f"http://{http}"
        wait_until(
            lambda: b'"name"' in _get(f"{url}/api/v1/stores"),
            lambda: f"Thanos Query did not find its sidecar: {(folder / 'query.log').read_text()[-2000:]}",
        )
        yield url


def create_blocks(build: ServerBuild, openmetrics: str | Path, data: Path) -> None:
    """Blocks of two hours in `data` from OpenMetrics text or a file of it."""
    with tempfile.TemporaryDirectory(prefix="openmetrics-") as temporary:
        if isinstance(openmetrics, str):
            source = Path(temporary) / "samples.om"
            source.write_text(openmetrics)
        else:
            source = openmetrics
        command = [build.promtool, "tsdb", "create-blocks-from", "openmetrics", "-q", source, data]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"promtool could not make blocks from {source}: {done.stderr.strip()[-2000:]}")


def dump_openmetrics(build: ServerBuild, data: Path) -> str:
    """What `promtool tsdb dump-openmetrics` writes of a stopped server's data folder; Prometheus 3 only."""
    command = [build.promtool, "tsdb", "dump-openmetrics", data]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _answers(url: str) -> Callable[[], bool]:
    return lambda: bool(_get(url))


def _get(url: str) -> bytes:
    """The body of a 200 answer, else nothing."""
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=5) as answer:
            return bytes(answer.read()) or b"ready"
    except (urllib.error.URLError, OSError):
        return b""
