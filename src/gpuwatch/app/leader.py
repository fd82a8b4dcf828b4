"""Which replica leads: a Lease of coordination.k8s.io, and the lease check that every write of the leader passes.

The rules are those of client-go: whoever holds the Lease renews it; another takes it once it saw no renewal for the
Lease's whole duration, by its own clock, so that clocks that differ do no harm. A leader stops writing when two thirds
of the duration have passed since it *asked* for its last renewal, well before anybody may take over. (The client's own
`leaderelection` blocks its caller, has no lease check, and ends the process when the Lease is lost.)
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from gpuwatch.frameworks.objects import Object, ref_of, version_of
from gpuwatch.kube.writer import ClusterWriter, Failure, WriteError
from gpuwatch.model.remediation import ObjectRef

LEASE = "gpuwatch"
"""Name of the Lease; deploy/base/controller-role.yaml grants this one."""

_API_VERSION = "coordination.k8s.io/v1"
_WRITES_FOR = 2 / 3

log = logging.getLogger("gpuwatch.leader")


class NotLeadingError(Exception):
    """This process may not write: another one leads, or it is not sure that it does."""


@dataclass(frozen=True, slots=True)
class _Observed:
    """A version of the Lease, and when it was first seen here, by the monotonic clock."""

    version: str
    at: float


class Election:
    """One replica's part in the election. `attempt` is for one thread; `leads` and `check_lease` are for all.

    writer: without a lease check of its own. identity: of this process, never used twice. wall: for people who read the
    Lease; monotonic: what decides.
    """

    def __init__(
        self,
        writer: ClusterWriter,
        namespace: str,
        identity: str,
        *,
        lease_duration_seconds: int,
        lease_retry_seconds: float,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._writer = writer
        self._ref = ObjectRef(_API_VERSION, "Lease", LEASE, namespace)
        self.identity = identity
        self._lease_seconds = lease_duration_seconds
        self._retry_seconds = lease_retry_seconds
        self._wall = wall
        self._monotonic = monotonic
        self._observed: _Observed | None = None
        self._leads_until = float("-inf")
        self._answered_at = float("-inf")
        self._uid = ""
        self.holder = ""

    @property
    def leads(self) -> bool:
        """May this process still write, as far as its own clock tells?"""
        return self._monotonic() < self._leads_until

    @property
    def answered(self) -> bool:
        """Did the API server answer about the Lease within its duration?"""
        return self._monotonic() - self._answered_at < self._lease_seconds

    def check_lease(self) -> None:
        """Before each write. Raises NotLeadingError unless the Lease, read now, names this process.

        Reading it, beside the clock, catches a machine that was suspended as a whole and whose clocks stood still.
        """
        if not self.leads:
            raise NotLeadingError(f"{self.identity} does not lead" + (f"; {self.holder} does" if self.holder else ""))
        try:
            found = self._writer.get(self._ref)
        except WriteError as error:
            raise NotLeadingError(f"whether {self.identity} still leads could not be read: {error.message}") from error
        holder = _holder(found)
        if holder != self.identity:
            self._leads_until = float("-inf")
            raise NotLeadingError(f"{holder or 'nobody'} holds the Lease, and not {self.identity}")
        if not self.leads:
            raise NotLeadingError(f"the Lease of {self.identity} ran out while it was read")

    def attempt(self) -> bool:
        """Take or renew the Lease if that may be done; does this process lead now? Raises WriteError where the API
        server gives no answer, or refuses: then it leads as long as it still did."""
        asked = self._monotonic()
        found = self._writer.get(self._ref)
        self._answered_at = self._monotonic()
        if found is None:
            return self._taken(asked, self._create)
        self.holder = _holder(found)
        if self.holder == self.identity:
            return self._taken(asked, lambda: self._renew(found))
        self._leads_until = float("-inf")
        version = version_of(found)
        if self._observed is None or self._observed.version != version:
            self._observed = _Observed(version, self._monotonic())
        duration = found.get("spec", {}).get("leaseDurationSeconds") or self._lease_seconds
        if self.holder and self._monotonic() - self._observed.at < duration:
            return False
        return self._taken(asked, lambda: self._take(found))

    def uid(self) -> str:
        """Of the Lease, once there is one: no other cluster's has it. Raises WriteError."""
        if not self._uid:
            found = self._writer.get(self._ref)
            self._uid = str((found or {}).get("metadata", {}).get("uid", ""))
        return self._uid

    def recall(self, key: str) -> str:
        """What a leader noted on the Lease; '' where nothing. Raises WriteError."""
        found = self._writer.get(self._ref)
        return str(((found or {}).get("metadata", {}).get("annotations") or {}).get(key, ""))

    def note(self, key: str, value: str) -> None:
        """Leave a word on the Lease for whoever leads next; '' removes it. Raises WriteError and NotLeadingError."""
        self.check_lease()
        self._writer.patch(self._ref, {"metadata": {"annotations": {key: value or None}}})

    def release(self) -> None:
        """Give the Lease back, so that another replica need not wait for its end; nothing where it is not ours."""
        self._leads_until = float("-inf")
        try:
            found = self._writer.get(self._ref)
            if found is not None and _holder(found) == self.identity:
                spec = {"holderIdentity": None, "leaseDurationSeconds": 1, "renewTime": self._now()}
                self._writer.patch(ref_of(found), {"spec": spec}, version=version_of(found))
        except WriteError as error:
            log.warning("the Lease was not given back, and runs out by itself: %s", error.message)

    def run(self, stop: threading.Event) -> None:
        """Attempt after attempt until `stop` is set."""
        led = False
        while not stop.is_set():
            try:
                self.attempt()
            except WriteError as error:
                log.warning("no attempt at the Lease: %s", error.message)
            except Exception:  # a replica without election must not go on looking healthy
                log.exception("the election failed")
            if led != self.leads:
                led = self.leads
                log.info("%s %s", self.identity, "leads" if led else f"leads no more; {self.holder or 'nobody'} does")
            # Jitter, so that replicas that were started together do not ask together for ever.
            stop.wait(self._retry_seconds * random.uniform(0.8, 1.2))  # noqa: S311 - no secret

    def _taken(self, asked: float, write: Callable[[], Object]) -> bool:
        try:
            write()
        except WriteError as error:
            if error.failure is not Failure.CONFLICT and error.failure is not Failure.NOT_FOUND:
                raise
            # Somebody was faster. If it leads, the time that is left was won before anybody could take over.
            return self.leads
        self.holder = self.identity
        self._leads_until = asked + self._lease_seconds * _WRITES_FOR
        return self.leads

    def _create(self) -> Object:
        metadata = {"name": self._ref.name, "namespace": self._ref.namespace}
        spec = {**self._held(), "acquireTime": self._now(), "leaseTransitions": 0}
        return self._writer.create({"apiVersion": _API_VERSION, "kind": "Lease", "metadata": metadata, "spec": spec})

    def _renew(self, found: Object) -> Object:
        return self._writer.patch(ref_of(found), {"spec": self._held()}, version=version_of(found))

    def _take(self, found: Object) -> Object:
        transitions = int(found.get("spec", {}).get("leaseTransitions") or 0) + 1
        spec = {**self._held(), "acquireTime": self._now(), "leaseTransitions": transitions}
        return self._writer.patch(ref_of(found), {"spec": spec}, version=version_of(found))

    def _held(self) -> Object:
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self._lease_seconds,
            "renewTime": self._now(),
        }

    def _now(self) -> str:
        return self._wall().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _holder(lease: Object | None) -> str:
    return str(((lease or {}).get("spec") or {}).get("holderIdentity") or "")
