"""A writer that counts its requests and failures for /metrics."""

from collections.abc import Callable
from typing import Any, cast

from gpuwatch.sources.kube.writer import ClusterWriter, WriteError

Count = Callable[[str, str], None]
"""Called with the verb and the Failure as text; '' for success."""

_READS = {"get": "get", "objects": "list"}


class _Counted:
    """Passes on another writer's answers and errors unchanged. Of reads, only failures are counted."""

    def __init__(self, writer: ClusterWriter, count: Count) -> None:
        self._writer, self._count = writer, count

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._writer, name)

        def asked(*arguments: Any, **options: Any) -> Any:
            try:
                answer = found(*arguments, **options)
            except WriteError as error:
                self._count(_READS.get(name, name), str(error.failure))
                raise
            if name not in _READS:
                self._count(name, "")
            return answer

        return asked if callable(found) else found


def counted(writer: ClusterWriter, count: Count) -> ClusterWriter:
    return cast("ClusterWriter", _Counted(writer, count))
