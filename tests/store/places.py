"""The two places of a state, a file and a cluster in memory, with the same handles: open, spoil a piece, end early."""

import base64
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuwatch.facts.model.remediation import ObjectRef
from gpuwatch.sources.store.checkpoints import STATE, Checkpoints
from gpuwatch.sources.store.custom_resources import API_VERSION, CHECKPOINT_KIND
from gpuwatch.sources.store.state_file import StateFile
from gpuwatch.sources.store.store import Store
from kube.memory_cluster import MemoryCluster

NAMESPACE = "gpuwatch"


class Killed(BaseException):
    """The process ends here."""


@dataclass
class InFile:
    path: Path

    def opened(self) -> Store:
        """As a new process has it."""
        return Store.open(self.path)

    def pieces(self) -> dict[str, bytes]:
        return dict(StateFile(self.path).read() or {})

    def spoil(self, name: str, harm: Callable[[bytes], bytes]) -> None:
        """Another program changes a piece behind gpuwatch's back."""
        content, piece = self.path.read_bytes(), self.pieces()[name]
        assert content.count(piece) == 1
        self.path.write_bytes(content.replace(piece, harm(piece).ljust(len(piece), b"?")[: len(piece)]))


@dataclass
class InCluster:
    cluster: MemoryCluster = field(default_factory=MemoryCluster)
    state: str = STATE

    def opened(self) -> Store:
        return Store(Checkpoints(self.cluster, NAMESPACE, self.state))

    def objects(self) -> dict[str, Any]:
        """All Checkpoints but the list."""
        found = {
            each["metadata"]["name"]: each for each in self.cluster.objects(API_VERSION, CHECKPOINT_KIND, NAMESPACE)
        }
        found.pop(self.state, None)
        return found

    def pieces(self) -> dict[str, bytes]:
        return {name: base64.b64decode(each["spec"]["data"]) for name, each in self.objects().items()}

    def spoil(self, name: str, harm: Callable[[bytes], bytes]) -> None:
        spoilt = harm(self.pieces()[name])
        if not spoilt:
            self.cluster.delete(ref(name))
            return
        piece = self.objects()[name]
        piece["spec"] = {"data": base64.b64encode(spoilt).decode()}
        self.cluster.put(piece)

    def killed_at(self, step: int, work: Callable[[Store], None]) -> bool:
        """Does the work in a process that is killed at its n-th step of writing, before and after each request. False
        where it ended before."""
        left = step

        def end(verb: str, what: str, after: bool) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed

        with contextlib.suppress(Killed):
            work(Store(Checkpoints(self.cluster.writer(interfere=end), NAMESPACE, self.state)))
        return left < 0


Kept = InFile | InCluster


def ref(name: str) -> ObjectRef:
    return ObjectRef(API_VERSION, CHECKPOINT_KIND, name, NAMESPACE)
