"""What writes to a cluster: `live_writer.LiveWriter`, and in tests a cluster in memory.

Every write names the object that is meant by its uid, so that it never lands on another object of the same name, and
fails in one of seven ways that say what is known afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from gpuwatch.frameworks.objects import Object
from gpuwatch.model.remediation import ObjectRef

LeaseCheck = Callable[[], None]
"""Called before each write; raises where this process may not write any more (it is no longer the leader)."""


class PatchKind(StrEnum):
    """The value is the patch's media type. STRATEGIC is known for built-in kinds only."""

    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"


class Failure(StrEnum):
    """What is known after a request that failed. After all but UNSURE, nothing was changed."""

    CONFLICT = "conflict"  # another version than the one named; the object to create exists
    NOT_FOUND = "not_found"  # no such object, or one with another uid
    BUDGET = "budget"  # a PodDisruptionBudget allows no eviction now
    THROTTLED = "throttled"  # too many requests
    FORBIDDEN = "forbidden"
    INVALID = "invalid"  # it will not be taken however often it is sent
    UNSURE = "unsure"  # no answer, or a failure of the server: it may or may not have happened


class WriteError(Exception):
    """One request failed. The message says what, on what, why and what to do; it holds no secret.

    verb, resource: as RBAC names them (`patch`, `jobs.batch`); what to grant where the failure is FORBIDDEN.
    budget: name of the PodDisruptionBudget, where the failure is BUDGET and the server names it.
    retry_after_seconds: where the server named a time.
    status: HTTP status, 0 where there was no answer.
    """

    def __init__(
        self,
        failure: Failure,
        message: str,
        *,
        verb: str = "",
        resource: str = "",
        budget: str = "",
        retry_after_seconds: float | None = None,
        status: int = 0,
    ) -> None:
        super().__init__(message)
        self.failure = failure
        self.message = message
        self.verb = verb
        self.resource = resource
        self.budget = budget
        self.retry_after_seconds = retry_after_seconds
        self.status = status


class ClusterWriter(Protocol):
    """All methods raise WriteError; those that write also what the lease check raises, before anything is sent."""

    @property
    def description(self) -> str:
        """Kind and place for people, without secrets."""

    def get(self, ref: ObjectRef) -> Object | None:
        """The object as it is now; None where there is none, or one with another uid than `ref` names."""

    def objects(self, api_version: str, kind: str, namespace: str = "", labels: str = "") -> tuple[Object, ...]:
        """All objects of a kind in a Namespace, or in all; none where the cluster does not serve the kind.

        labels: a selector as `kubectl -l` takes it. Unlike the server's list, each object has `apiVersion` and `kind`.
        """

    def create(self, object_: Object) -> Object:
        """The object as stored. CONFLICT where one of that name exists."""

    def patch(
        self,
        ref: ObjectRef,
        patch: Mapping[str, Any],
        *,
        kind: PatchKind = PatchKind.MERGE,
        subresource: str = "",
        version: str = "",
    ) -> Object:
        """The object as stored afterwards.

        patch: part of the object. version: the resourceVersion that the object must still have. An unknown field is
        INVALID, never dropped in silence.
        """

    def evict(self, pod: ObjectRef) -> None:
        """Ask for the Pod's end through the Eviction API, which holds PodDisruptionBudgets. A Pod that was evicted
        may go on for its grace period."""

    def delete(self, ref: ObjectRef) -> None:
        """Delete the object; what it owns is deleted behind it."""

    def event(
        self, regarding: ObjectRef, *, at: datetime, reason: str, action: str, note: str, warning: bool = False
    ) -> None:
        """An Event on the object. The same reason, action and note on the same object is one Event, which is counted.

        reason, action: one word in CamelCase each. note: a sentence for people, cut at 1,000 bytes.
        """
