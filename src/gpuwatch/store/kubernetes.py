"""Remediations as custom resources, and the pause as a ConfigMap beside the controller.

gpuwatch writes status, people write spec, so that neither can lose what the other wrote. The pause is no custom
resource: whoever is on call may write in gpuwatch's Namespace, seldom to the whole cluster, and it has to work where
the definitions are not (or not any more) applied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from gpuwatch.kube.json_patch import difference
from gpuwatch.kube.writer import ClusterWriter, Failure, Object, WriteError, ref_of, version_of
from gpuwatch.model.remediation import ObjectRef, Pause, Remediation
from gpuwatch.model.telemetry import Gap, GapKind
from gpuwatch.store.api_form import FormError, from_api, to_api, with_unknown
from gpuwatch.store.custom_resources import (
    API_VERSION,
    RemediationSpec,
    RemediationStatus,
    parts_of,
    remediation_of,
    said_right,
    selected,
)
from gpuwatch.store.remediations import FINAL_AT_MOST, FINAL_KEPT, ConflictError, needs_attention, to_forget
from gpuwatch.store.store import StoreError

KIND = "Remediation"
PAUSE = "gpuwatch-pause"
"""Name of the ConfigMap. Its data: paused (anything but 'false' holds), since, by, reason."""


class KubernetesRemediations:
    """A RemediationStore in the cluster of `writer`; its lease check, where it has one, holds for every write here.

    namespace: where the pause is: the controller's own.
    """

    def __init__(self, writer: ClusterWriter, namespace: str) -> None:
        self._writer = writer
        self._pause_at = ObjectRef("v1", "ConfigMap", PAUSE, namespace)
        self._gaps: tuple[Gap, ...] = ()
        self._known: dict[tuple[str, str], Remediation] = {}  # by uid and version, which are never given twice

    @property
    def gaps(self) -> tuple[Gap, ...]:
        return self._gaps

    def open_(self) -> tuple[Remediation, ...]:
        return tuple(each for each in self.all() if needs_attention(each))

    def history(self, target: str, since: datetime | None = None) -> tuple[Remediation, ...]:
        return tuple(each for each in self.all(since) if each.proposal.target == target)

    def all(self, since: datetime | None = None) -> tuple[Remediation, ...]:
        return selected((remediation for remediation, _ in self._all()), since)

    def _all(self) -> list[tuple[Remediation, ObjectRef]]:
        with _told():
            objects = self._writer.objects(API_VERSION, KIND)
        found: list[tuple[Remediation, ObjectRef]] = []
        gaps: list[Gap] = []
        before, self._known = self._known, {}
        for each in objects:
            ref, version = ref_of(each), version_of(each)
            try:
                known = before.get((ref.uid, version)) or _decoded(each)
                self._known[ref.uid, version] = known
                found.append((known, ref))
            except FormError as error:
                name = each["metadata"]["name"]
                detail = f"It cannot be understood and is left out: {error}. Delete it: kubectl delete rem {name}"
                gaps.append(Gap(kind=GapKind.BAD_INPUT, what=f"remediation {name}", detail=detail))
        self._gaps = tuple(gaps)
        return found

    def get(self, name: str) -> Remediation | None:
        found = self._get(name)
        return None if found is None else _understood(found)

    def create(self, remediation: Remediation) -> Remediation:
        spec, status = parts_of(remediation)
        wanted: Object = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": remediation.name},
            "spec": _form(remediation.name, spec),
        }
        _form(remediation.name, status)  # what cannot be written is found before anything is
        try:
            with _told():
                created = self._writer.create(wanted)
        except ConflictError:
            kept = self.get(remediation.name)
            if kept is None:
                raise
            return kept
        begun = remediation_of(remediation.name, version_of(created), spec, status)
        if status == RemediationStatus():
            return begun
        try:
            return self.save(begun)
        except ConflictError:
            kept = self.get(remediation.name)
            if kept is None:
                raise
            return kept

    def save(self, remediation: Remediation) -> Remediation:
        _, status = parts_of(remediation)
        new = _form(remediation.name, status)
        found = self._get(remediation.name)
        if found is None or version_of(found) != remediation.version:
            raise ConflictError(
                f"Remediation {remediation.name} {'is gone' if found is None else 'was written by somebody else'} "
                "since it was read; read it again"
            )
        old = found.get("status") or {}
        patch = difference(old, with_unknown(old, new, RemediationStatus))
        if not patch:
            return remediation
        with _told():
            stored = self._writer.patch(
                ref_of(found), {"status": patch}, subresource="status", version=remediation.version
            )
        return replace(remediation, version=version_of(stored))

    def approve(self, name: str, by: str) -> Remediation:
        found = self._decided_on(name)
        if found.rejected:
            raise StoreError(f"Remediation {name} is rejected already; it cannot be approved")
        return self._decide(name, {"approved": True, "approvedBy": by})

    def reject(self, name: str, finding_right: bool = False) -> Remediation:
        found = self._decided_on(name)
        if found.approved:
            raise StoreError(f"Remediation {name} is approved already; ask for its undo instead")
        return self._decide(name, {"rejected": True, **said_right(finding_right)})

    def ask_undo(self, name: str, finding_right: bool = False) -> Remediation:
        return self._decide(name, {"undo": True, **said_right(finding_right)})

    def _decided_on(self, name: str) -> Remediation:
        found = self.get(name)
        if found is None:
            raise StoreError(f"There is no Remediation {name}; `kubectl get rem` lists them")
        return found

    def _decide(self, name: str, decision: Mapping[str, object]) -> Remediation:
        """Whatever the version: a decision is not lost to a status that is written at the same time. Of two decisions
        that exclude each other the API server refuses the second."""
        try:
            with _told():
                stored = self._writer.patch(ObjectRef(API_VERSION, KIND, name), {"spec": decision})
        except ConflictError as error:
            raise StoreError(str(error)) from error
        return _understood(stored)

    def forget_final(self, now: datetime, kept: timedelta = FINAL_KEPT, at_most: int = FINAL_AT_MOST) -> int:
        everything = self._all()
        refs = {remediation.name: ref for remediation, ref in everything}
        forgotten = 0
        for each in to_forget(tuple(remediation for remediation, _ in everything), now, kept, at_most):
            try:
                with _told():
                    self._writer.delete(refs[each.name])
            except ConflictError:
                continue  # somebody else was faster
            forgotten += 1
        return forgotten

    def pause(self, by: str, reason: str, now: datetime) -> Pause:
        held = self.paused()
        if held.paused:
            return held
        data = {"paused": "true", "since": now.astimezone(UTC).isoformat(), "by": by, "reason": reason}
        try:
            with _told():
                self._write_pause(data)
        except ConflictError:  # made, or deleted, just now
            with _told():
                self._write_pause(data)
        return Pause(paused=True, since=now, by=by, reason=reason)

    def _write_pause(self, data: Mapping[str, str]) -> None:
        if self._writer.get(self._pause_at) is not None:
            self._writer.patch(self._pause_at, {"data": data})
            return
        metadata = {"name": self._pause_at.name, "namespace": self._pause_at.namespace}
        self._writer.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dict(data)})

    def resume(self) -> Pause:
        with _told():
            found = self._writer.get(self._pause_at)
            if found is not None and found.get("data"):
                self._writer.patch(ref_of(found), {"data": None})
        return Pause()

    def paused(self) -> Pause:
        with _told():
            found = self._writer.get(self._pause_at)
        data: Mapping[str, str] = (found or {}).get("data") or {}
        if data.get("paused", "false").strip().lower() == "false":
            return Pause()
        return Pause(
            paused=True, since=_time(data.get("since", "")), by=data.get("by", ""), reason=data.get("reason", "")
        )

    def _get(self, name: str) -> Object | None:
        with _told():
            return self._writer.get(ObjectRef(API_VERSION, KIND, name))


@contextmanager
def _told() -> Iterator[None]:
    """The writer's errors as a store's: ConflictError where somebody was faster, else StoreError."""
    try:
        yield
    except WriteError as error:
        kind = ConflictError if error.failure in (Failure.CONFLICT, Failure.NOT_FOUND) else StoreError
        raise kind(error.message) from error


def _decoded(found: Object) -> Remediation:
    """Raises FormError."""
    spec = from_api(found.get("spec"), RemediationSpec, "spec")
    status = from_api(found.get("status") or {}, RemediationStatus, "status")
    return remediation_of(found["metadata"]["name"], version_of(found), spec, status)


def _understood(found: Object) -> Remediation:
    try:
        return _decoded(found)
    except FormError as error:
        name = found["metadata"]["name"]
        raise StoreError(
            f"Remediation {name} cannot be understood ({error}); see what it had done, then: kubectl delete rem {name}"
        ) from error


def _form(name: str, part: object) -> dict[str, Any]:
    try:
        return to_api(part)
    except FormError as error:
        raise StoreError(f"Remediation {name} cannot be kept: {error}") from error


def _time(text: str) -> datetime | None:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
