"""Helm 4 and 3, and what judges what a chart renders, kubeconform and kube-score: where they are, and Helm as a person
uses it.

`parts/install` puts them in place; nothing here builds or downloads.
"""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from parts.go_tools import HELM_3, OLDER, TOOLS


@dataclass(frozen=True)
class HelmBuild:
    helm: Path
    kubeconform: Path


def find_helm() -> HelmBuild | None:
    """What parts/install built; None where it did not."""
    folder = TOOLS.folder
    build = HelmBuild(folder / "helm", folder / "kubeconform")
    return build if all(os.access(program, os.X_OK) for program in (build.helm, build.kubeconform)) else None


def find_helm_3() -> Path | None:
    """What parts/install built; None where it did not."""
    return _program(HELM_3.folder / "helm")


def find_kube_score() -> Path | None:
    """What parts/install built; None where it did not."""
    return _program(OLDER.folder / "kube-score")


def _program(path: Path) -> Path | None:
    return path if os.access(path, os.X_OK) else None


@dataclass(frozen=True)
class Helm:
    """Helm as a person uses it; nothing of the machine's own configuration is read. folder: for what it keeps."""

    program: Path
    kubeconfig: Path | str
    namespace: str
    folder: Path

    def __call__(self, *arguments: str | Path) -> str:
        """What it says. Fails the test where that is an error."""
        done = self.attempted(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def attempted(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        environment = {f"HELM_{name.upper()}_HOME": str(self.folder / name) for name in ("cache", "config", "data")}
        environment |= {"HOME": str(self.folder), "KUBECONFIG": str(self.kubeconfig), "HELM_NAMESPACE": self.namespace}
        command = [str(each) for each in (self.program, *arguments)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
