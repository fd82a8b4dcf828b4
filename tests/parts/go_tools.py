"""Where real servers that are built with Go lie: one Go module per server with its `tool` lines, its go.sum locked."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path


def in_ci() -> bool:
    """In CI a missing server is an error, elsewhere a test that was not run."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def cache_root() -> Path:
    """Everything that is built or fetched for tests, outside the checkout."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuwatch"


@dataclass(frozen=True)
class GoTools:
    """The tools of one Go module, and the flags of `go build` that they need."""

    module: Path
    flags: tuple[str, ...]

    @property
    def name(self) -> str:
        """As people know it: 'parts/prometheus'."""
        return f"{self.module.parent.name}/{self.module.name}"

    @property
    def folder(self) -> Path:
        """Where they are built to: one folder per go.mod, go.sum and flags."""
        locked = b"".join((self.module / name).read_bytes() for name in ("go.mod", "go.sum"))
        built_from = locked + " ".join(self.flags).encode()
        return cache_root() / self.name / hashlib.sha256(built_from).hexdigest()[:16]
