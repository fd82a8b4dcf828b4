"""A writer that counts its requests and failures for /metrics."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from gpuwatch.frameworks.objects import Object
from gpuwatch.kube.writer import ClusterWriter, PatchKind, WriteError
from gpuwatch.model.remediation import ObjectRef

Count = Callable[[str, str], None]
"""Called with the verb and the Failure as text; '' for success."""


class CountedWriter:
    """Passes on another writer's answers and errors unchanged. Of reads, only failures are counted."""

    def __init__(self, writer: ClusterWriter, count: Count) -> None:
        self._writer = writer
        self._count = count

    @property
    def description(self) -> str:
        return self._writer.description

    def get(self, ref: ObjectRef) -> Object | None:
        with self._counted("get", quietly=True):
            return self._writer.get(ref)

    def objects(self, api_version: str, kind: str, namespace: str = "", labels: str = "") -> tuple[Object, ...]:
        with self._counted("list", quietly=True):
            return self._writer.objects(api_version, kind, namespace, labels)

    def create(self, object_: Object) -> Object:
        with self._counted("create"):
            return self._writer.create(object_)

    def patch(
        self,
        ref: ObjectRef,
        patch: Mapping[str, Any],
        *,
        kind: PatchKind = PatchKind.MERGE,
        subresource: str = "",
        version: str = "",
    ) -> Object:
        with self._counted("patch"):
            return self._writer.patch(ref, patch, kind=kind, subresource=subresource, version=version)

    def evict(self, pod: ObjectRef, *, version: str = "") -> None:
        with self._counted("evict"):
            self._writer.evict(pod, version=version)

    def delete(self, ref: ObjectRef) -> None:
        with self._counted("delete"):
            self._writer.delete(ref)

    def event(
        self, regarding: ObjectRef, *, at: datetime, reason: str, action: str, note: str, warning: bool = False
    ) -> None:
        with self._counted("event"):
            self._writer.event(regarding, at=at, reason=reason, action=action, note=note, warning=warning)

    @contextmanager
    def _counted(self, verb: str, *, quietly: bool = False) -> Iterator[None]:
        try:
            yield
        except WriteError as error:
            self._count(verb, str(error.failure))
            raise
        if not quietly:
            self._count(verb, "")
