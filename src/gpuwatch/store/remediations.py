"""Remediations as custom resources, and the pause as a ConfigMap beside the controller.

What is for a workload is a Remediation in its Namespace; what is for a Node is a NodeRemediation. So RBAC decides who
may decide.

gpuwatch writes status, people write spec, so that neither can lose what the other wrote. The pause is no custom
resource: whoever is on call may write in gpuwatch's Namespace, seldom to the whole cluster, and it has to work where
the definitions are not (or not any more) applied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from gpuwatch.frameworks.json_patch import difference
from gpuwatch.frameworks.objects import Object, ref_of, version_of
from gpuwatch.kube.writer import ClusterWriter, Failure, WriteError
from gpuwatch.model.remediation import ObjectRef, Pause, Phase, Remediation, RemediationId, misplaced
from gpuwatch.model.telemetry import Gap, GapKind
from gpuwatch.store import StoreError
from gpuwatch.store.api_form import FormError, camel_enum, from_api, to_api, with_unknown
from gpuwatch.store.custom_resources import (
    API_VERSION,
    KIND,
    NODE_KIND,
    RemediationSpec,
    RemediationStatus,
    parts_of,
    remediation_of,
    said_correct,
)

PAUSE = "gpuwatch-pause"
"""Name of the ConfigMap. Its data: paused (anything but 'false' holds), since, by, reason."""

FINAL_KEPT = timedelta(days=90)
"""Final Remediations are kept at least so long: a quarter's audit, and more than any rate limit looks back."""

FINAL_AT_MOST = 1000
"""More final ones than this are forgotten whatever their age, oldest first: each is an object in etcd."""


class ConflictError(StoreError):
    """Somebody else wrote the Remediation since it was read, or it is gone. Nothing was written: `get` it again."""


class RemediationStore:
    """Remediations, what people decided about them, and the pause, in the cluster of `writer`. Every method raises
    StoreError where the cluster does not answer or refuses; what it then did not say is not known, and nothing may be
    done on it.

    A Remediation has two writers who never write the same: gpuwatch its course (`save`), people their decisions
    (`approve`, `reject`, `ask_undo`, and `kubectl patch` of spec). The proposal is never written again.

    One that says what must not be acted on from where it lies (`misplaced`) is not understood, and never given.

    namespace: where the pause is: the controller's own. within: all that is listed lies in this Namespace; '' for
    everything. forgiving: of what this account may not list there is a gap, and the rest is listed; for people alone,
    since who does not see all does not know what is in flight.
    """

    def __init__(self, writer: ClusterWriter, namespace: str, *, within: str = "", forgiving: bool = False) -> None:
        self._writer = writer
        self._pause_at = ObjectRef("v1", "ConfigMap", PAUSE, namespace)
        self._within = within
        self._forgiving = forgiving
        self._gaps: tuple[Gap, ...] = ()
        self._known: dict[tuple[str, str], Remediation] = {}  # by uid and version, which are never given twice
        self._behind: dict[RemediationId, Remediation] = {}  # whose status is of an older generation of spec

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """Those that the last `all` could not read, and left out."""
        return self._gaps

    def all(self) -> tuple[Remediation, ...]:
        """The oldest proposal first."""
        return tuple(sorted((each for each, _ in self._all()), key=lambda each: (each.proposal.created_at, each.id)))

    def _all(self) -> list[tuple[Remediation, ObjectRef]]:
        found: list[tuple[Remediation, ObjectRef]] = []
        gaps: list[Gap] = []
        before, self._known, self._behind = self._known, {}, {}
        for each in self._objects(gaps):
            ref, version = ref_of(each), version_of(each)
            try:
                known = before.get((ref.uid, version)) or _decoded(each)
            except FormError as error:
                at = _id(each)
                detail = f"It cannot be understood and is left out: {error}. Delete it: {_deletion(ref)}"
                gaps.append(Gap(kind=GapKind.BAD_INPUT, what=f"remediation {at}", detail=detail))
                continue
            self._known[ref.uid, version] = known
            found.append((known, ref))
            if (each.get("status") or {}).get("observedGeneration") != _generation(each):
                self._behind[known.id] = known
        self._gaps = tuple(gaps)
        return found

    def _objects(self, gaps: list[Gap]) -> list[Object]:
        """What there is of both kinds; what may not be listed is added to the gaps, where that is allowed."""
        places = [(KIND, self._within)] if self._within else [(NODE_KIND, ""), (KIND, "")]
        found: list[Object] = []
        refused: list[StoreError] = []
        for kind, namespace in places:
            try:
                with _told():
                    found += self._writer.objects(API_VERSION, kind, namespace)
            except StoreError as error:
                refused.append(error)
                gaps.append(Gap(kind=GapKind.REFUSED, what=f"{kind}s", detail=str(error)))
        if refused and (len(refused) == len(places) or not self._forgiving):
            raise refused[-1]
        return found

    def get(self, at: RemediationId) -> Remediation | None:
        """The Remediation as it is now, with its version; None where there is none.

        Raises StoreError where there is one that cannot be read: it is not absent.
        """
        found = self._get(at)
        return None if found is None else _understood(found)

    def create(self, remediation: Remediation) -> Remediation:
        """Keep a new one; as it is kept, with its version. Where one of this id exists, that one, unchanged.

        Decisions are not taken from it: people make them afterwards. Killed within, either nothing is kept, or the
        proposal in phase PROPOSED without anything else.
        """
        at = remediation.id
        wrong = misplaced(remediation, remediation.namespace)
        if wrong:
            raise StoreError(f"Remediation {at} cannot be kept: {wrong}")
        spec, status = parts_of(remediation)
        ref = _ref(at)
        wanted: Object = {
            "apiVersion": ref.api_version,
            "kind": ref.kind,
            "metadata": {"name": ref.name, **({"namespace": ref.namespace} if ref.namespace else {})},
            "spec": _form(at, spec),
        }
        _form(at, status)  # what cannot be written is found before anything is
        try:
            with _told():
                created = self._writer.create(wanted)
            return self._write(created, remediation_of(at, version_of(created), spec, status))
        except ConflictError:
            kept = self.get(at)
            if kept is None:
                raise
            return kept

    def save(self, remediation: Remediation) -> Remediation:
        """Keep its course in place of the one that was read; as it is kept, with its new version.

        Its proposal and people's decisions are not written; a decision that came since is a conflict, and is seen when
        it is read again. Raises ConflictError unless the stored version is `remediation.version`.
        """
        _form(remediation.id, parts_of(remediation)[1])  # what cannot be written is found before anything is asked
        found = self._get(remediation.id)
        if found is None or version_of(found) != remediation.version:
            raise ConflictError(
                f"Remediation {remediation.id} {'is gone' if found is None else 'was written by somebody else'} "
                "since it was read; read it again"
            )
        return self._write(found, remediation)

    def _write(self, found: Object, remediation: Remediation) -> Remediation:
        """Its course as the status of the object that was read in this version."""
        _, status = parts_of(remediation, _generation(found))
        new = _form(remediation.id, status)
        old = found.get("status") or {}
        patch = difference(old, with_unknown(old, new, RemediationStatus))
        if not patch:
            return remediation
        with _told():
            stored = self._writer.patch(
                ref_of(found), {"status": patch}, subresource="status", version=remediation.version
            )
        return replace(remediation, version=version_of(stored))

    def catch_up(self) -> int:
        """Tell people that what they decided is seen: bring what is shown of those that the last listing found decided
        since their course was written up to date. How many; what cannot be written is left for the next time."""
        written = 0
        for each in self._behind.values():
            with suppress(StoreError):
                self.save(each)
                written += 1
        self._behind = {}
        return written

    def approve(self, at: RemediationId, by: str) -> Remediation:
        """A person's approval. Raises StoreError where there is none of this id, or it is rejected already."""
        found = self._decided_on(at)
        if found.rejected:
            raise StoreError(f"Remediation {at} is rejected already; it cannot be approved")
        return self._decide(at, {"approved": True, "approvedBy": by})

    def reject(self, at: RemediationId, finding_correct: bool = False) -> Remediation:
        """A person's refusal; finding_correct: which does not mean that the finding was wrong. Raises StoreError where
        there is none of this id, or it is approved already."""
        found = self._decided_on(at)
        if found.approved:
            raise StoreError(f"Remediation {at} is approved already; ask for its undo instead")
        return self._decide(at, {"rejected": True, **said_correct(finding_correct)})

    def ask_undo(self, at: RemediationId, finding_correct: bool = False) -> Remediation:
        """A person wants what was done undone; finding_correct: as above. Raises StoreError where there is none of this
        id."""
        return self._decide(at, {"undo": True, **said_correct(finding_correct)})

    def _decided_on(self, at: RemediationId) -> Remediation:
        found = self.get(at)
        if found is None:
            raise StoreError(f"There is no Remediation {at}; `gpuwatch history` lists them")
        return found

    def _decide(self, at: RemediationId, decision: Mapping[str, object]) -> Remediation:
        """Whatever the version: a decision is not lost to a status that is written at the same time. Of two decisions
        that exclude each other the API server refuses the second."""
        try:
            with _told():
                stored = self._writer.patch(_ref(at), {"spec": decision})
        except ConflictError as error:
            raise StoreError(str(error)) from error
        return _understood(stored)

    def forget_final(self, now: datetime, kept: timedelta = FINAL_KEPT, at_most: int = FINAL_AT_MOST) -> int:
        """Forget final ones whose last turn is more than `kept` before `now`, and the oldest beyond `at_most`; how
        many were forgotten. None that `needs_attention` is forgotten."""
        final = sorted(
            ((each.changed_at, each.id, ref) for each, ref in self._all() if not needs_attention(each)),
            key=lambda one: one[:2],
        )
        forgotten = 0
        for index, (ended_at, _, ref) in enumerate(final):
            if index >= len(final) - at_most and ended_at >= now - kept:
                continue
            try:
                with _told():
                    self._writer.delete(ref)
            except ConflictError:
                continue  # somebody else was faster
            forgotten += 1
        return forgotten

    def pause(self, by: str, reason: str, now: datetime) -> Pause:
        """Stop every replica, from its next write on. A pause that holds already stays as it is."""
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
        """End the pause."""
        with _told():
            found = self._writer.get(self._pause_at)
            if found is not None and found.get("data"):
                self._writer.patch(ref_of(found), {"data": None})
        return Pause()

    def paused(self) -> Pause:
        """The pause as it is now, never from a cache. Asked before each write: a StoreError here means do not write.

        A pause that is there but cannot be understood holds.
        """
        with _told():
            found = self._writer.get(self._pause_at)
        data: Mapping[str, str] = (found or {}).get("data") or {}
        if data.get("paused", "false").strip().lower() == "false":
            return Pause()
        return Pause(
            paused=True, since=_time(data.get("since", "")), by=data.get("by", ""), reason=data.get("reason", "")
        )

    def _get(self, at: RemediationId) -> Object | None:
        with _told():
            return self._writer.get(_ref(at))


def _ref(at: RemediationId) -> ObjectRef:
    namespace, _, name = at.rpartition("/")
    return ObjectRef(API_VERSION, KIND if namespace else NODE_KIND, name, namespace)


def _id(found: Object) -> RemediationId:
    metadata = found["metadata"]
    return f"{metadata.get('namespace', '')}/{metadata['name']}".removeprefix("/")


def _generation(found: Object) -> int:
    return int(found["metadata"].get("generation", 1))


def _deletion(ref: ObjectRef) -> str:
    if ref.namespace:
        return f"kubectl delete rem {ref.name} -n {ref.namespace}"
    return f"kubectl delete noderem {ref.name}"


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
    written = found.get("status") or {"phase": camel_enum(Phase.PROPOSED)}  # killed as it was created
    status = from_api(written, RemediationStatus, "status")
    return remediation_of(_id(found), version_of(found), spec, status)


def _understood(found: Object) -> Remediation:
    try:
        return _decoded(found)
    except FormError as error:
        raise StoreError(
            f"Remediation {_id(found)} cannot be understood ({error}); see what it had done, then: "
            f"{_deletion(ref_of(found))}"
        ) from error


def _form(at: RemediationId, part: object) -> dict[str, Any]:
    try:
        return to_api(part)
    except FormError as error:
        raise StoreError(f"Remediation {at} cannot be kept: {error}") from error


def _time(text: str) -> datetime | None:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def needs_attention(remediation: Remediation) -> bool:
    """Is it open, or was it ended while something it did may still stand, and a person wants that undone?"""
    ended = remediation.phase in (Phase.SUCCEEDED, Phase.FAILED)
    return remediation.phase.open or (remediation.undo_asked and ended)
