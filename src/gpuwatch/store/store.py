"""What is remembered between runs, whoever keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Protocol

from gpuwatch.model.sizing import Outcome, Recommendation
from gpuwatch.model.telemetry import Gap
from gpuwatch.model.workload_profile import ProfileBook, WorkloadKey, WorkloadProfile

KEPT = timedelta(days=400)
"""Advice and its outcomes are kept at least so long: a year, and the month that is held against the one a year ago."""


class StoreError(Exception):
    """The state cannot be read or written. The message says what, where, and what to do; nothing was half written."""


class Store(Protocol):
    """Profiles, advice that was given, and what came of it. Every method raises StoreError; each write is whole or
    not at all, whenever the process ends."""

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """What was found damaged so far, and left out."""
        ...

    def load_book(self) -> tuple[ProfileBook | None, tuple[Gap, ...]]:
        """The book that was saved last, less what is damaged, and a Gap for each of that.

        None where none was saved, or what is left of it is not enough to go on from. `usage` is in the order of hours,
        and within an hour in the order it was saved in.
        """
        ...

    def save_book(self, book: ProfileBook) -> None:
        """Keep this book in place of the last. Profiles and hours that are not in it are forgotten."""
        ...

    def record_advice(self, recommendations: Sequence[Recommendation], at: datetime | None = None) -> None:
        """Keep each recommendation that is new, or has another target than the one kept before it for its key.

        Prices do not make another target. It is kept without its `options`, and with the profile of its key as the
        last `save_book` left it. One that was kept already stays as it was first given: its `at` is the moment from
        which an owner could act on it. at: the moment of this run, the newest recommendation's where None.
        Advice that was last given more than KEPT before `at` is forgotten, and so are outcomes of that age.
        """
        ...

    def advice_given(self, since: datetime | None = None) -> tuple[Recommendation, ...]:
        """Advice that is worth judging, oldest first: what a workload's container was last advised, one for each kind
        of GPU that it was advised on at that time; and all earlier advice of which an outcome says that it was applied.

        since: only what was first given at that time or later.
        """
        ...

    def profile_at_advice(self, key: WorkloadKey, recommended_at: datetime | None = None) -> WorkloadProfile | None:
        """The profile of this key when it was advised, the last time where recommended_at is None; None where no
        advice or no profile was kept."""
        ...

    def record_outcomes(self, outcomes: Sequence[Outcome]) -> None:
        """Keep each outcome in place of the last one of its key and `recommended_at`."""
        ...

    def outcomes(self, since: datetime | None = None) -> tuple[Outcome, ...]:
        """Outcomes, oldest recommendation first. since: only of recommendations given at that time or later."""
        ...
