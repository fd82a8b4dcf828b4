"""What was sent to whom: rows of the state in memory, each saved when it changes. Nothing else outlives a process that
delivers."""

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace

from gpuwatch.facts.model.delivery import Delivery, Sending
from gpuwatch.sources.store import StoreError
from gpuwatch.sources.store.store import Store

_AGAIN_SECONDS = 60.0
"""How long a state that could not be read is left alone."""


class Sent:
    """For several threads. Every method raises StoreError. opened: opens the state; called for each read and write."""

    def __init__(self, opened: Callable[[], AbstractContextManager[Store]]) -> None:
        self._opened = opened
        self._lock = threading.Lock()
        self._rows: dict[str, Sending] | None = None
        self._unsaved: dict[str, Sending] = {}
        self._token = ""
        self._failed: tuple[float, StoreError] | None = None

    def all(self) -> dict[str, Sending]:
        with self._lock:
            return dict(self._loaded())

    def get(self, name: str) -> Sending | None:
        return self.all().get(name)

    def note(self, sending: Sending, *, later: bool = False) -> Sending:
        """Keep the row. later: save it with the next one that is noted. A row that cannot be saved counts here, and is
        saved with the next one too."""
        with self._lock:
            rows = self._loaded()
            rows[sending.id] = self._unsaved[sending.id] = sending
            if not later:
                with self._opened() as store:
                    store.save_deliveries(self._unsaved.values())
                self._unsaved.clear()
        return sending

    def forget(self, names: Iterable[str]) -> int:
        """Remove rows; returns how many."""
        with self._lock:
            gone = self._loaded().keys() & set(names)
            if gone:
                with self._opened() as store:
                    store.save_deliveries((), gone)
            for name in gone:
                self._loaded().pop(name)
                self._unsaved.pop(name, None)
            return len(gone)

    def read_again(self) -> None:
        """Before the next use: another process may have written since."""
        with self._lock:
            self._rows = self._failed = None

    def token(self) -> str:
        """Of this state alone, for the identities of its reports."""
        with self._lock:
            if not self._token:
                with self._opened() as store:
                    self._token = store.token()
            return self._token

    def _loaded(self) -> dict[str, Sending]:
        if self._rows is None:
            if self._failed is not None and time.monotonic() - self._failed[0] < _AGAIN_SECONDS:
                raise self._failed[1]
            try:
                with self._opened() as store:
                    self._rows = {**store.deliveries(), **self._unsaved}
            except StoreError as error:
                self._failed = time.monotonic(), error
                raise
        return self._rows


def noted(sending: Sending, delivery: Delivery) -> Sending:
    """The row with this delivery in place of the one to the same destination."""
    all_ = (delivery if item.destination == delivery.destination else item for item in sending.deliveries)
    return replace(sending, deliveries=tuple(all_))
