"""What outlasts a leader: the known faults, in the store, and the last storm, on the Lease."""

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from gpuwatch.act.analysis import remember
from gpuwatch.app.controller.leader import Election
from gpuwatch.app.sources import Opened
from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.model.decision import Snapshot
from gpuwatch.facts.model.faults import FaultMemory, KnownFault
from gpuwatch.sources.kube.writer import WriteError
from gpuwatch.sources.store import StoreError
from gpuwatch.sources.store.store import Store

log = logging.getLogger("gpuwatch.run")


class KnownFaults:
    """The memory of faults. store: opens it."""

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._faults = FaultMemory()
        self._saved: tuple[KnownFault, ...] | None = None  # None: not read yet
        self._term = 0

    def with_snapshot(self, snapshot: Snapshot, opened: Opened, term: int) -> FaultMemory:
        """The memory with this Snapshot, stored if it changed. What fails is tried again at the next call. In a new
        term of leadership, what another leader stored in between is read."""
        if term != self._term:
            self._saved, self._term = None, term
        try:
            if self._saved is None:
                store = self._store()
                stored = store.load_faults()
                if stored.unread:
                    store.save_faults(stored)  # without what is damaged
                known = {each.key: each for each in (*self._faults.faults, *stored.faults)}
                self._faults, self._saved = replace(stored, faults=tuple(known.values())), stored.faults
            self._faults = remember(snapshot, opened.policies, self._faults)
            if self._faults.faults != self._saved:
                self._store().save_faults(self._faults)
                self._saved = self._faults.faults
        except StoreError as error:
            log.warning("the known faults were not read or not stored: %s", error)
            if self._saved is None:
                self._faults = remember(snapshot, opened.policies, replace(self._faults, unread=str(error)))
        return self._faults


class LastStorm:
    """When the last storm of findings was. On the Lease, so that the cool-down outlasts this process."""

    def __init__(self, election: Election | None) -> None:
        self._election = election
        self._at: datetime | None = None
        self._term = 0

    def at(self, term: int) -> datetime | None:
        """In a new term of leadership, the last leader's note."""
        if self._election is not None and term != self._term:
            self._term = term
            try:
                said = self._election.recall(keys.LAST_STORM)
                self._at = datetime.fromisoformat(said) if said else None
            except (WriteError, ValueError) as error:
                # Assume a storm just now: while it is unknown, nothing may be done.
                log.warning("whether there was a storm lately could not be read from the Lease: %s", error)
                self._at = datetime.now(UTC)
        return self._at

    def remember(self, at: datetime | None) -> None:
        if at == self._at:
            return
        self._at = at
        if self._election is not None:
            try:
                self._election.note(keys.LAST_STORM, at.isoformat() if at is not None else "")
            except WriteError as error:
                log.warning("the last storm was not noted on the Lease: %s", error.message)
