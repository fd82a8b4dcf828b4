"""The real prometheus-operator for tests: where it is, and how it starts against an API server.

It makes Prometheus' configuration of Prometheus, ServiceMonitor and PrometheusRule objects. It starts no Prometheus
itself: it makes a StatefulSet, and whoever runs that gets the configuration from a Secret.

`parts/install` puts it in place; nothing here builds or downloads.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from parts.go_tools import OLDER
from parts.processes import answers, free_port, running_process


@dataclass(frozen=True)
class OperatorBuild:
    """crds: the custom resource definitions of the same version, a YAML file each."""

    program: Path
    crds: Path


def find_operator() -> OperatorBuild | None:
    """What parts/install built; None where it did not."""
    build = OperatorBuild(OLDER.folder / "operator", OLDER.folder / "prometheus-operator-crds")
    return build if os.access(build.program, os.X_OK) and build.crds.is_dir() else None


def definitions(build: OperatorBuild) -> Iterator[dict[str, Any]]:
    """Its custom resource definitions, to be applied before it starts."""
    for file in sorted(build.crds.glob("*.yaml")):
        yield yaml.load(file.read_text(encoding="utf-8"), _Loader)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """With the plain scalar `=`, which an enum of these files has, as the text that it is."""


_Loader.add_constructor("tag:yaml.org,2002:value", yaml.SafeLoader.construct_yaml_str)


@contextlib.contextmanager
def running_operator(build: OperatorBuild, kubeconfig: Path) -> Iterator[Path]:
    """It works for the cluster of this kubeconfig, where its definitions have to be. Yields the file of its log."""
    with TemporaryDirectory(prefix="prometheus-operator-") as temporary:
        log = Path(temporary) / "operator.log"
        address = f"127.0.0.1:{free_port()}"
        command: list[str | Path] = [
            "env",  # which becomes the operator
            f"KUBECONFIG={kubeconfig}",
            build.program,
            f"--web.listen-address={address}",
            "--log-level=info",
        ]
        with running_process(command, log, lambda: answers(f"http://{address}/healthz")):
            yield log
