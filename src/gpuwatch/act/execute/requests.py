"""Write requests as values, and how each is sent."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from gpuwatch.facts.frameworks.objects import Creation, Object, Patch
from gpuwatch.facts.model.remediation import ObjectRef, Remediation
from gpuwatch.sources.kube.writer import ClusterWriter, PatchKind


@dataclass(frozen=True, slots=True)
class StatusPatch:
    """For the subresource `status`. body: a strategic merge patch. version: as in Patch."""

    target: ObjectRef
    body: Object
    version: str = ""


@dataclass(frozen=True, slots=True)
class Eviction:
    pod: ObjectRef
    version: str


@dataclass(frozen=True, slots=True)
class Deletion:
    target: ObjectRef


@dataclass(frozen=True, slots=True)
class EventNote:
    """An Event on the object. Its name derives from its text, so that a repeat is the same Event."""

    regarding: ObjectRef
    note: str
    reason: str


@dataclass(frozen=True, slots=True)
class Notice:
    """A notification through the receivers that the operator configured."""


Request = Patch | StatusPatch | Creation | Eviction | Deletion | EventNote | Notice

PROPOSED = "RemediationProposed"
"""An action is proposed; in the mode suggest a person decides."""

SCHEDULED = "RemediationScheduled"
"""The action follows after the notice period unless an owner objects."""

CALLED = "RemediationNeedsPerson"
"""A gang that gpuwatch stopped does not run again in time."""

SWEPT = "RemediationSwept"
"""A mark without a Remediation was taken off the object."""

Notify = Callable[[Remediation], None]
"""Called at least once per notification; the sender deduplicates by the Remediation's name. Raises WriteError while no
receiver accepts: THROTTLED if the action must wait, INVALID if it continues without."""


def rehearse(rehearsal: ClusterWriter, request: Request) -> None:
    """Send the request as a dry run. Raises WriteError; nothing was changed then, not even with UNSURE."""
    if not isinstance(request, EventNote | Notice):
        write(rehearsal, request)


def send(writer: ClusterWriter, request: Request, remediation: Remediation, notify: Notify, now: datetime) -> None:
    """Raises WriteError, and what `notify` raises."""
    match request:
        case EventNote(regarding, note, reason):
            writer.event(regarding, at=now, reason=reason, action="Notify", note=note, warning=True)
        case Notice():
            notify(remediation)
        case _:
            write(writer, request)


def write(writer: ClusterWriter, request: Patch | StatusPatch | Creation | Eviction | Deletion) -> None:
    match request:
        case Patch(target, body, version):
            writer.patch(target, body, version=version)
        case StatusPatch(target, body, version):
            writer.patch(target, body, kind=PatchKind.STRATEGIC, subresource="status", version=version)
        case Creation(object_):
            writer.create(object_)
        case Eviction(pod, version):
            writer.evict(pod, version=version)
        case Deletion(target):
            writer.delete(target)
