"""The interface of `live_writer.LiveWriter` and of the tests' cluster in memory. Every write carries the uid of its
object, so that it never changes another object of the same name. A `Failure` says what is known after an error."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from gpuwatch.facts.frameworks.objects import Object
from gpuwatch.facts.model.plain_text import plain
from gpuwatch.facts.model.remediation import ObjectRef

LeaseCheck = Callable[[], None]
"""Called before each write; raises when this process is no longer the leader."""


class PatchKind(StrEnum):
    """The value is the patch's media type. STRATEGIC works for built-in kinds only."""

    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"


class Failure(StrEnum):
    """Why a request failed. After all but UNSURE, nothing was changed."""

    CONFLICT = "conflict"  # the object has another version, or the object to create exists
    NOT_FOUND = "not_found"  # no such object, or one with another uid
    BUDGET = "budget"  # a PodDisruptionBudget allows no eviction now
    THROTTLED = "throttled"  # too many requests
    FORBIDDEN = "forbidden"
    INVALID = "invalid"  # a retry cannot succeed
    UNSURE = "unsure"  # no answer or a server error: the write may have happened


@dataclass(eq=False)
class WriteError(Exception):
    """One request failed. The message has the request, the reason and what to do, and no secret.

    retry_after_seconds: if the server gave a time.
    status: HTTP status, 0 without an answer.
    """

    failure: Failure
    message: str
    _: KW_ONLY
    retry_after_seconds: float | None = None
    status: int = 0

    def __post_init__(self) -> None:
        self.message = plain(self.message)

    def __str__(self) -> str:
        return self.message


def grant(verb: str, resource: str) -> str:
    """What to do after FORBIDDEN. resource: as in RBAC rules, `jobs.batch`."""
    name, _, group = resource.partition(".")
    return f"Grant the verb `{verb}` on `{name}` of API group {group or 'core'!r}"


class ClusterWriter(Protocol):
    """All methods raise WriteError. Methods that write also raise the lease check's error, before anything is sent."""

    @property
    def description(self) -> str:
        """Kind and place, without secrets."""

    def get(self, ref: ObjectRef) -> Object | None:
        """The current object; None if there is none, or its uid differs from the one in `ref`."""

    def objects(self, api_version: str, kind: str, namespace: str = "", labels: str = "") -> tuple[Object, ...]:
        """All objects of a kind in one or all Namespaces; none if the cluster does not serve the kind. labels: a
        selector as for `kubectl -l`. Unlike in the server's list, each object has `apiVersion` and `kind`."""

    def create(self, object_: Object) -> Object:
        """The object as stored. CONFLICT if one of that name exists."""

    def patch(
        self,
        ref: ObjectRef,
        patch: Mapping[str, Any],
        *,
        kind: PatchKind = PatchKind.MERGE,
        subresource: str = "",
        version: str = "",
    ) -> Object:
        """The object as stored afterwards. version: the resourceVersion that the object must still have. An unknown
        field is INVALID."""

    def evict(self, pod: ObjectRef, *, version: str = "") -> None:
        """Use the Eviction API, which respects PodDisruptionBudgets. The Pod may run on for its grace period. version:
        as in `patch`."""

    def delete(self, ref: ObjectRef) -> None:
        """Delete the object; its dependents are deleted in the background."""

    def event(
        self, regarding: ObjectRef, *, at: datetime, reason: str, action: str, note: str, warning: bool = False
    ) -> None:
        """Creates an Event, or counts up the one with the same object, reason, action and note. reason, action: one
        word in CamelCase each. note: a sentence, cut at 1,000 bytes."""


def listed(writer: ClusterWriter, api_versions: Iterable[str], kind: str, namespace: str = "") -> tuple[Object, ...]:
    """All objects, from the first of these API versions that lists any; all list the same ones. Raises WriteError."""
    return next(filter(None, (writer.objects(each, kind, namespace) for each in api_versions)), ())
