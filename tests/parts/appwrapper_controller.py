"""The real AppWrapper controller for tests: where it is, and how it starts against an API server.

Without its webhooks, which only look at what is created, and without Kueue: `spec.suspend` alone decides.

`parts/install` puts it in place; nothing here builds or downloads.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from cluster.api import Api
from parts.go_tools import OLDER
from parts.processes import answers, free_port, running_process

_NAMESPACE = "appwrapper-system"


@dataclass(frozen=True)
class AppWrapperBuild:
    """crds: the custom resource definition of the same version."""

    program: Path
    crds: Path


def find_appwrapper() -> AppWrapperBuild | None:
    """What parts/install built; None where it did not."""
    build = AppWrapperBuild(OLDER.folder / "cmd", OLDER.folder / "appwrapper-crds")
    return build if os.access(build.program, os.X_OK) and build.crds.is_dir() else None


def definitions(build: AppWrapperBuild) -> Iterator[dict[str, Any]]:
    """Its custom resource definition, to be created before it starts."""
    for file in sorted(build.crds.glob("workload.*.yaml")):
        yield yaml.safe_load(file.read_text(encoding="utf-8"))


@contextlib.contextmanager
def running_controller(build: AppWrapperBuild, kubeconfig: Path, **fault_tolerance: int) -> Iterator[Path]:
    """It works for the cluster of this kubeconfig, where its definition has to be. Yields the file of its log.

    fault_tolerance: its settings by their own names, durations in nanoseconds.
    """
    api = Api(kubeconfig)
    health = f"127.0.0.1:{free_port()}"
    settings = {
        "appwrapper": {"faultTolerance": fault_tolerance},
        "controllerManager": {"health": {"bindAddress": health}, "metrics": {"bindAddress": "0"}},
        "webhooksEnabled": False,
    }
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _NAMESPACE}})
    api.create(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "settings", "namespace": _NAMESPACE},
            "data": {"config.yaml": json.dumps(settings)},
        }
    )
    with TemporaryDirectory(prefix="appwrapper-") as temporary:
        log = Path(temporary) / "controller.log"
        command: list[str | Path] = [
            "env",  # which becomes the controller
            f"KUBECONFIG={kubeconfig}",
            f"NAMESPACE={_NAMESPACE}",
            build.program,
            "--config=settings",
        ]
        with running_process(command, log, lambda: answers(f"http://{health}/healthz")):
            yield log
