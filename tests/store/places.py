"""The two places of a state, a file and a cluster in memory, with the same handles: open, spoil a piece, end early."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from unittest import mock

from gpuwatch.facts.model.remediation import ObjectRef
from gpuwatch.sources.store import state_file
from gpuwatch.sources.store.checkpoints import STATE, Checkpoints
from gpuwatch.sources.store.custom_resources import API_VERSION, CHECKPOINT_KIND
from gpuwatch.sources.store.state_file import StateFile
from gpuwatch.sources.store.store import Store
from kube.memory_cluster import MemoryCluster

NAMESPACE = "gpuwatch"


class Killed(BaseException):
    """The process ends here."""


class Kept(Protocol):
    """One state, which outlives the processes that open it."""

    def opened(self) -> Store:
        """As a new process has it."""

    def pieces(self) -> dict[str, bytes]: ...

    def spoil(self, name: str, harm: Callable[[bytes], bytes]) -> None:
        """Another program changes a piece behind gpuwatch's back."""

    def killed_at(self, step: int, work: Callable[[Store], None]) -> bool:
        """Does the work in a process that is killed at its n-th step of writing. False where it ended before."""


@dataclass
class InFile:
    path: Path

    def opened(self) -> Store:
        return Store.open(self.path)

    def pieces(self) -> dict[str, bytes]:
        return dict(StateFile(self.path).read() or {})

    def spoil(self, name: str, harm: Callable[[bytes], bytes]) -> None:
        content, piece = self.path.read_bytes(), self.pieces()[name]
        assert content.count(piece) == 1
        self.path.write_bytes(content.replace(piece, harm(piece).ljust(len(piece), b"?")[: len(piece)]))

    def killed_at(self, step: int, work: Callable[[Store], None]) -> bool:
        """Steps: before and in the middle of the draft, and before and after it is renamed. test_killed tries lines."""
        left, real = step, state_file.replace_file

        def end() -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed

        def ending(path: Path, content: Iterable[bytes]) -> None:
            whole = b"".join(content)
            for draft in (b"", whole[: len(whole) // 2], whole):
                end()
                path.with_name(f".{path.name}.part").write_bytes(draft)
            end()
            real(path, [whole])
            end()

        with contextlib.suppress(Killed), mock.patch.object(state_file, "replace_file", ending):
            work(self.opened())
        return left < 0


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
        """Steps: before and after each request."""
        left = step

        def end(verb: str, what: str, after: bool) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed

        with contextlib.suppress(Killed):
            work(Store(Checkpoints(self.cluster.writer(interfere=end), NAMESPACE, self.state)))
        return left < 0


def ref(name: str) -> ObjectRef:
    return ObjectRef(API_VERSION, CHECKPOINT_KIND, name, NAMESPACE)
