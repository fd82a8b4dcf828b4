"""Leader election by a Lease of coordination.k8s.io, and the lease check before every write of the leader.

The rules are client-go's. The holder renews the Lease. Another replica takes it after it saw no renewal for the Lease's
whole duration by its own clock, so clock differences do no harm. A leader stops writing when two thirds of the duration
have passed since it *requested* its last renewal, well before another may take over. (The Python client's
`leaderelection` blocks its caller, has no lease check, and ends the process when the Lease is lost.)
"""

import logging
import random
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

from gpuwatch.facts.frameworks.objects import Object, ref_of, version_of
from gpuwatch.facts.model.remediation import ObjectRef
from gpuwatch.sources.kube.writer import ClusterWriter, Failure, WriteError

LEASE = "gpuwatch"
"""Name of the Lease; deploy/base/controller-role.yaml grants access to it."""

_API_VERSION = "coordination.k8s.io/v1"
_WRITES_FOR = 2 / 3
_RENEWALS = 7.5
"""In the Lease's duration: every 2 s of 15 s, as in kube-controller-manager, so that a lost request costs nothing."""

log = logging.getLogger("gpuwatch.leader")


class NotLeadingError(Exception):
    """This process may not write: it does not lead, or cannot be sure that it does."""


class Election:
    """One replica's part in the election. `attempt` is for one thread; `leads` and `check_lease` are for all.

    writer: without a lease check. identity: of this process, never reused. wall: for the times on the Lease; monotonic:
    for all decisions.
    """

    def __init__(
        self,
        writer: ClusterWriter,
        namespace: str,
        identity: str,
        *,
        lease_duration_seconds: int,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._writer = writer
        self.lease = ObjectRef(_API_VERSION, "Lease", LEASE, namespace)
        self.identity = identity
        self._lease_seconds = lease_duration_seconds
        self.retry_seconds = lease_duration_seconds / _RENEWALS
        self._wall = wall
        self._monotonic = monotonic
        # A version of the Lease, and the monotonic time at which this process first saw it.
        self._observed: tuple[str, float] | None = None
        self._leads_until = float("-inf")
        self._answered_at = float("-inf")
        self.holder = ""
        self.vacant = False
        """Nobody leads, because the API server refused this process' write of the Lease."""

    @property
    def leads(self) -> bool:
        """True while this process may write, by its own clock."""
        return self._monotonic() < self._leads_until

    @property
    def answered(self) -> bool:
        """Did the API server answer about the Lease within its duration?"""
        return self._monotonic() - self._answered_at < self._lease_seconds

    def check_lease(self) -> None:
        """Call before each write. Raises NotLeadingError unless the Lease, read now, names this process.

        The read catches a suspended machine whose clocks stood still too.
        """
        if not self.leads:
            raise NotLeadingError(f"{self.identity} does not lead" + (f"; {self.holder} does" if self.holder else ""))
        try:
            found = self._writer.get(self.lease)
        except WriteError as error:
            raise NotLeadingError(f"whether {self.identity} still leads could not be read: {error.message}") from error
        holder = _holder(found)
        if holder != self.identity:
            self._leads_until, self.holder = float("-inf"), holder
            raise NotLeadingError(f"{holder or 'no replica'} holds the Lease, and not {self.identity}")
        if not self.leads:
            raise NotLeadingError(f"the Lease of {self.identity} ran out while it was read")

    def attempt(self) -> bool:
        """Take or renew the Lease if allowed; returns whether this process leads. Raises WriteError if the API server
        does not answer or refuses; an unexpired leadership continues."""
        asked = self._monotonic()
        found = self._writer.get(self.lease)
        self._answered_at = self._monotonic()
        if found is None:
            return self._taken(asked, self._create)
        self.holder = _holder(found)
        if self.holder == self.identity:
            return self._taken(asked, lambda: self._patch(found, self._held()))
        self._leads_until = float("-inf")
        version = version_of(found)
        if self._observed is None or self._observed[0] != version:
            self._observed = version, self._monotonic()
        duration = found.get("spec", {}).get("leaseDurationSeconds") or self._lease_seconds
        if self.holder and self._monotonic() - self._observed[1] < duration:
            self.vacant = False
            return False
        return self._taken(asked, lambda: self._take(found))

    def recall(self, key: str) -> str:
        """A leader's note on the Lease; '' if there is none. Raises WriteError."""
        found = self._writer.get(self.lease)
        return str(((found or {}).get("metadata", {}).get("annotations") or {}).get(key, ""))

    def note(self, key: str, value: str) -> None:
        """Write a note on the Lease for the next leader; '' removes it. Raises WriteError and NotLeadingError."""
        self.check_lease()
        self._writer.patch(self.lease, {"metadata": {"annotations": {key: value or None}}})

    def release(self) -> None:
        """Give up the Lease, so that another replica need not wait until it expires; no effect if this process does not
        hold it."""
        self._leads_until = float("-inf")
        try:
            found = self._writer.get(self.lease)
            if found is not None and _holder(found) == self.identity:
                self._patch(found, {"holderIdentity": None, "leaseDurationSeconds": 1, "renewTime": self._now()})
        except WriteError as error:
            log.warning("the Lease was not given back, and runs out by itself: %s", error.message)

    def run(self, stop: threading.Event) -> None:
        led = False
        while not stop.is_set():
            try:
                self.attempt()
            except WriteError as error:
                log.warning("no attempt at the Lease: %s", error.message)
            except Exception:  # a replica without election must not stay ready
                log.exception("the election failed")
            if led != self.leads:
                led = self.leads
                log.info("%s %s", self.identity, "leads" if led else f"leads no more; {self._why_not()}")
            # Jitter, so that replicas started together do not stay in step.
            stop.wait(self.retry_seconds * random.uniform(0.8, 1.2))  # noqa: S311 - no secret

    def _why_not(self) -> str:
        if self.holder == self.identity:
            return "it did not renew its Lease in time"
        return f"{self.holder or 'no replica'} does"

    def _taken(self, asked: float, write: Callable[[], Object]) -> bool:
        try:
            write()
        except WriteError as error:
            if error.failure is not Failure.CONFLICT and error.failure is not Failure.NOT_FOUND:
                self.vacant = not self.leads
                raise
            # Another replica was faster. A leader's remaining time ends before another could take over.
            self.holder = _holder(self._writer.get(self.lease))
            return self.leads
        self.holder, self.vacant = self.identity, False
        self._leads_until = asked + self._lease_seconds * _WRITES_FOR
        return self.leads

    def _create(self) -> Object:
        metadata = {"name": self.lease.name, "namespace": self.lease.namespace}
        spec = {**self._held(), "acquireTime": self._now(), "leaseTransitions": 0}
        return self._writer.create({"apiVersion": _API_VERSION, "kind": "Lease", "metadata": metadata, "spec": spec})

    def _take(self, found: Object) -> Object:
        transitions = int(found.get("spec", {}).get("leaseTransitions") or 0) + 1
        return self._patch(found, {**self._held(), "acquireTime": self._now(), "leaseTransitions": transitions})

    def _patch(self, found: Object, spec: Object) -> Object:
        return self._writer.patch(ref_of(found), {"spec": spec}, version=version_of(found))

    def _held(self) -> Object:
        return {"holderIdentity": self.identity, "leaseDurationSeconds": self._lease_seconds, "renewTime": self._now()}

    def _now(self) -> str:
        return self._wall().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _holder(lease: Object | None) -> str:
    return str(((lease or {}).get("spec") or {}).get("holderIdentity") or "")
