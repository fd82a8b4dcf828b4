"""One write as a value, and how it is sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from gpuwatch.frameworks.objects import Creation, Object, Patch
from gpuwatch.kube.writer import ClusterWriter, PatchKind
from gpuwatch.model.remediation import ObjectRef, Remediation


@dataclass(frozen=True, slots=True)
class StatusPatch:
    """Of the subresource `status`. body: a strategic merge patch."""

    target: ObjectRef
    body: Object


@dataclass(frozen=True, slots=True)
class Eviction:
    pod: ObjectRef


@dataclass(frozen=True, slots=True)
class Deletion:
    target: ObjectRef


@dataclass(frozen=True, slots=True)
class EventNote:
    """An Event on the object. Its name is made of what it says, so that saying it twice is one Event."""

    regarding: ObjectRef
    note: str


@dataclass(frozen=True, slots=True)
class Notice:
    """A notification to people, through whatever the operator set up."""


Request = Patch | StatusPatch | Creation | Eviction | Deletion | EventNote | Notice

PROPOSED = "RemediationProposed"
"""Something is proposed for the object; in the mode suggest a person decides."""

SCHEDULED = "RemediationScheduled"
"""It is done once the notice period is over, unless somebody objects."""

Notify = Callable[[Remediation], None]
"""Told of each notification at least once; whoever sends it knows the Remediation's name, and sends it once. Raises
WriteError while nobody could be told: THROTTLED where that holds the action back, INVALID where it goes on without."""


def rehearse(rehearsal: ClusterWriter, request: Request) -> None:
    """Have the server judge it without storing anything. rehearsal: a writer whose writes are dry runs.

    Raises WriteError; nothing was changed then, UNSURE included.
    """
    match request:
        case EventNote() | Notice():
            pass
        case _:
            write(rehearsal, request)


def send(writer: ClusterWriter, request: Request, remediation: Remediation, notify: Notify, now: datetime) -> None:
    """Raises WriteError, and whatever `notify` raises."""
    match request:
        case EventNote(regarding, note):
            writer.event(regarding, at=now, reason=SCHEDULED, action="Notify", note=note, warning=True)
        case Notice():
            notify(remediation)
        case _:
            write(writer, request)


def write(writer: ClusterWriter, request: Patch | StatusPatch | Creation | Eviction | Deletion) -> None:
    match request:
        case Patch(target, body, version):
            writer.patch(target, body, version=version)
        case StatusPatch(target, body):
            writer.patch(target, body, kind=PatchKind.STRATEGIC, subresource="status")
        case Creation(object_):
            writer.create(object_)
        case Eviction(pod):
            writer.evict(pod)
        case Deletion(target):
            writer.delete(target)
