"""Remediations that are remembered, whoever keeps them: custom resources in a cluster, an SQLite file elsewhere."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Protocol

from gpuwatch.model.remediation import Pause, Phase, Remediation, RemediationId
from gpuwatch.model.telemetry import Gap
from gpuwatch.store.store import StoreError

FINAL_KEPT = timedelta(days=90)
"""Final Remediations are kept at least so long: a quarter's audit, and more than any rate limit looks back."""

FINAL_AT_MOST = 1000
"""More final ones than this are forgotten whatever their age, oldest first: each is an object in etcd."""


class ConflictError(StoreError):
    """Somebody else wrote the Remediation since it was read, or it is gone. Nothing was written: `get` it again."""


class RemediationStore(Protocol):
    """Remediations, what people decided about them, and the pause. Every method raises StoreError where the place does
    not answer or refuses; what it then did not say is not known, and nothing may be done on it.

    A Remediation has two writers who never write the same: gpuwatch its course (`save`), people their decisions
    (`approve`, `reject`, `ask_undo`; in a cluster also `kubectl patch` of spec). The proposal is never written again.

    One that says what must not be acted on from where it lies (`misplaced`) is not understood, and never given.
    """

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """Those that the last `open_`, `all` or `history` could not read, and left out."""
        ...

    def open_(self) -> tuple[Remediation, ...]:
        """Those that `needs_attention` of: open, or done and to be undone. Oldest first."""
        ...

    def all(self, since: datetime | None = None) -> tuple[Remediation, ...]:
        """All that were proposed at that time or later, oldest first."""
        ...

    def history(self, target: str, since: datetime | None = None) -> tuple[Remediation, ...]:
        """What was proposed for this `Proposal.target` at that time or later, oldest first."""
        ...

    def get(self, at: RemediationId) -> Remediation | None:
        """The Remediation as it is now, with its version; None where there is none.

        Raises StoreError where there is one that cannot be read: it is not absent.
        """
        ...

    def create(self, remediation: Remediation) -> Remediation:
        """Keep a new one; as it is kept, with its version. Where one of this id exists, that one, unchanged.

        Decisions are not taken from it: people make them afterwards. Killed within, either nothing is kept, or the
        proposal in phase PROPOSED without anything else.
        """
        ...

    def save(self, remediation: Remediation) -> Remediation:
        """Keep its course in place of the one that was read; as it is kept, with its new version.

        Its proposal and people's decisions are not written; a decision that came since is a conflict, and is seen when
        it is read again. Raises ConflictError unless the stored version is `remediation.version`.
        """
        ...

    def catch_up(self) -> int:
        """Tell people that what they decided is seen: bring what is shown of those that the last listing found decided
        since their course was written up to date. How many; what cannot be written is left for the next time."""
        ...

    def approve(self, at: RemediationId, by: str) -> Remediation:
        """A person's approval. Raises StoreError where there is none of this id, or it is rejected already."""
        ...

    def reject(self, at: RemediationId, finding_correct: bool = False) -> Remediation:
        """A person's refusal; finding_correct: which does not mean that the finding was wrong. Raises StoreError where
        there is none of this id, or it is approved already."""
        ...

    def ask_undo(self, at: RemediationId, finding_correct: bool = False) -> Remediation:
        """A person wants what was done undone; finding_correct: as above. Raises StoreError where there is none of this
        id."""
        ...

    def forget_final(self, now: datetime, kept: timedelta = FINAL_KEPT, at_most: int = FINAL_AT_MOST) -> int:
        """Forget final ones whose last turn is more than `kept` before `now`, and the oldest beyond `at_most`; how
        many were forgotten. None that `needs_attention` is forgotten."""
        ...

    def pause(self, by: str, reason: str, now: datetime) -> Pause:
        """Stop every replica, from its next write on. A pause that holds already stays as it is."""
        ...

    def resume(self) -> Pause:
        """End the pause."""
        ...

    def paused(self) -> Pause:
        """The pause as it is now, never from a cache. Asked before each write: a StoreError here means do not write.

        A pause that is there but cannot be understood holds.
        """
        ...


def needs_attention(remediation: Remediation) -> bool:
    """Is it open, or was it ended while something it did may still stand, and a person wants that undone?"""
    ended = remediation.phase in (Phase.SUCCEEDED, Phase.FAILED)
    return remediation.phase.open or (remediation.undo_asked and ended)


def last_turn_at(remediation: Remediation) -> datetime:
    """When its phase last changed."""
    return remediation.history[-1].at if remediation.history else remediation.proposal.created_at


def to_forget(remediations: tuple[Remediation, ...], now: datetime, kept: timedelta, at_most: int) -> list[Remediation]:
    """The final ones that are to be forgotten, oldest first."""
    final = sorted(
        (each for each in remediations if not needs_attention(each)), key=lambda each: (last_turn_at(each), each.id)
    )
    beyond = len(final) - at_most
    return [each for index, each in enumerate(final) if index < beyond or last_turn_at(each) < now - kept]
