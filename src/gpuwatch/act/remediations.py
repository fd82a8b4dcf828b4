"""Remediations as custom resources, and the pause as a ConfigMap in the controller's Namespace.

A workload's Remediation is in the workload's Namespace, a Node's is a NodeRemediation; so RBAC controls who may decide.
gpuwatch writes status and people write spec, so that neither overwrites the other. The pause is a ConfigMap because the
person on call can write in gpuwatch's Namespace but seldom to the whole cluster, and because it must work without the
custom resource definitions.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.frameworks.objects import Object, difference, ref_of, version_of
from gpuwatch.facts.model.plain_text import plain
from gpuwatch.facts.model.remediation import ObjectRef, Pause, Phase, Remediation, RemediationId, misplaced
from gpuwatch.facts.model.telemetry import Gap, GapKind
from gpuwatch.sources.kube.writer import ClusterWriter, Failure, WriteError
from gpuwatch.sources.store import StoreError
from gpuwatch.sources.store.api_form import FormError, camel_enum, from_api, to_api
from gpuwatch.sources.store.custom_resources import (
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
"""Name of the ConfigMap. No data, or `paused: "false"`: not paused. `paused: "true"` stops new actions, `paused: all`
undoing too. Any other content is a pause."""

_PAUSE_KEYS = ("paused", "since", "by", "reason")
_HOLDS = ("true", "all")

FINAL_KEPT = timedelta(days=90)
"""Minimum retention of final Remediations: a quarter's audit, and longer than the window of any rate limit."""

FINAL_AT_MOST = 1000
"""Beyond this number the oldest final ones are deleted at any age: each is an object in etcd."""


class ConflictError(StoreError):
    """The Remediation was changed or deleted after it was read. Nothing was written; read it again."""


class RefusedError(StoreError):
    """This one object cannot be stored; others may be."""


class RemediationStore:
    """Remediations with people's decisions, and the pause. Every method raises StoreError when the cluster does not
    answer or refuses; then nothing may be done.

    gpuwatch writes the progress (`save`); people write decisions (`approve`, `reject`, `ask_undo`, and `kubectl patch`
    of spec). The proposal is written once. Remediations that must not be acted on from their Namespace (`misplaced`)
    are never returned.

    namespace: the controller's own, where the pause is. within: list only this Namespace; '' for all. forgiving: a
    kind that may not be listed is a gap instead of an error. Only for display, since an incomplete list does not show
    all actions in flight.
    """

    def __init__(self, writer: ClusterWriter, namespace: str, *, within: str = "", forgiving: bool = False) -> None:
        self._writer = writer
        self._pause_at = ObjectRef("v1", "ConfigMap", PAUSE, namespace)
        self._within = within
        self._forgiving = forgiving
        self.gaps: tuple[Gap, ...] = ()
        """Remediations that the last `all` could not read and left out."""
        self._known: dict[tuple[str, str], Remediation] = {}  # by uid and version, which are never reused
        self._behind: dict[RemediationId, Remediation] = {}  # their status has an older generation than their spec
        self._unheld: list[Object] = []  # their finalizer is not as it has to be

    def all(self) -> tuple[Remediation, ...]:
        """Oldest proposal first."""
        return tuple(sorted((each for each, _ in self._all()), key=lambda each: (each.proposal.created_at, each.id)))

    def _all(self) -> list[tuple[Remediation, ObjectRef]]:
        found: list[tuple[Remediation, ObjectRef]] = []
        gaps: list[Gap] = []
        before, self._known, self._behind, self._unheld = self._known, {}, {}, []
        for each in self._objects(gaps):
            ref, version = ref_of(each), version_of(each)
            try:
                known = before.get((ref.uid, version)) or _decoded(each)
            except FormError as error:
                at = _id(each)
                detail = f"Its record cannot be decoded and is left out: {error}. {_deletion(ref)}"
                if _deleting(each) and _held(each):
                    self._unheld.append(each)
                gaps.append(Gap(kind=GapKind.BAD_INPUT, what=f"remediation {at}", detail=detail))
                continue
            self._known[ref.uid, version] = known
            found.append((known, ref))
            if _held(each) != known.stands and not (known.stands and _deleting(each)):
                self._unheld.append(each)
            if (each.get("status") or {}).get("observedGeneration") != _generation(each):
                self._behind[known.id] = known
        self.gaps = tuple(gaps)
        return found

    def _objects(self, gaps: list[Gap]) -> list[Object]:
        places = [(KIND, self._within)] if self._within else [(NODE_KIND, ""), (KIND, "")]
        found: list[Object] = []
        refused: list[StoreError] = []
        for kind, namespace in places:
            try:
                with _store_errors():
                    found += self._writer.objects(API_VERSION, kind, namespace)
            except StoreError as error:
                refused.append(error)
                gaps.append(Gap(kind=GapKind.REFUSED, what=f"{kind}s", detail=str(error)))
        if refused and (len(refused) == len(places) or not self._forgiving):
            raise refused[-1]
        return found

    def get(self, at: RemediationId) -> Remediation | None:
        """The current Remediation, with its version, or None. One that cannot be decoded is a StoreError, not None."""
        found = self._get(at)
        return None if found is None else _understood(found)

    def create(self, remediation: Remediation) -> Remediation:
        """Stores a new Remediation without its decisions. Returns it with its version, or an existing one with this id.
        If the process is killed meanwhile, either nothing is stored, or only the proposal in phase PROPOSED."""
        at = remediation.id
        if wrong := misplaced(remediation, remediation.namespace):
            raise RefusedError(f"Remediation {at} cannot be stored: {wrong}")
        spec, status = parts_of(remediation)
        ref = _ref(at)
        wanted: Object = {
            "apiVersion": ref.api_version,
            "kind": ref.kind,
            # From its creation, so that no write to another object comes before it.
            "metadata": {
                "name": ref.name,
                **({"namespace": ref.namespace} if ref.namespace else {}),
                "finalizers": [keys.FINALIZER],
            },
            "spec": _form(at, spec),
        }
        _form(at, status)  # raises before anything is written
        try:
            with _store_errors():
                created = self._writer.create(wanted)
            return self._write(created, remediation_of(at, version_of(created), spec, status))
        except ConflictError:
            kept = self.get(at)
            if kept is None:
                raise
            return kept

    def save(self, remediation: Remediation) -> Remediation:
        """Stores its progress, without proposal and decisions. Returns it with its new version. Raises ConflictError
        unless the stored version is `remediation.version`; so a new decision is a conflict."""
        _form(remediation.id, parts_of(remediation)[1])  # raises before any request
        found = self._get(remediation.id)
        if found is None or version_of(found) != remediation.version:
            raise ConflictError(
                f"Remediation {remediation.id} {'is gone' if found is None else 'was changed'} "
                "since it was read; read it again"
            )
        return self._write(found, remediation)

    def _write(self, found: Object, remediation: Remediation) -> Remediation:
        _, status = parts_of(remediation, _generation(found))
        patch = difference(found.get("status") or {}, _form(remediation.id, status))
        if not patch:
            return remediation
        with _store_errors():
            stored = self._writer.patch(
                ref_of(found), {"status": patch}, subresource="status", version=remediation.version
            )
        return replace(remediation, version=version_of(stored))

    def catch_up(self) -> int:
        """Updates observedGeneration and conditions of the Remediations that were decided since their last save. Adds
        missing finalizers, and removes those of Remediations whose changes are all undone. Uses the last listing.
        Returns how many were written; failures are left for the next call."""
        written = 0
        for each in self._behind.values():
            with suppress(StoreError):
                self.save(each)
                written += 1
        for found in self._unheld:
            with suppress(StoreError):
                self._hold(found, not _held(found))
                written += 1
        self._behind, self._unheld = {}, []
        return written

    def _hold(self, found: Object, held: bool) -> None:
        """Sets or removes the finalizer. The API server then removes an object that is being deleted."""
        others = [each for each in _finalizers(found) if each != keys.FINALIZER]
        patch = {"metadata": {"finalizers": [*others, *([keys.FINALIZER] if held else [])] or None}}
        with _store_errors():
            self._writer.patch(ref_of(found), patch, version=version_of(found))

    def approve(self, at: RemediationId, by: str) -> Remediation:
        """Raises StoreError if there is none with this id, or it is rejected already."""
        if self._decided_on(at).rejected:
            raise StoreError(f"Remediation {at} is rejected already; it cannot be approved")
        return self._decide(at, {"approved": True, "approvedBy": by})

    def reject(self, at: RemediationId, finding_correct: bool = False) -> Remediation:
        """finding_correct: the action is rejected, but the finding is right. Raises StoreError if there is none with
        this id, or it is approved already."""
        if self._decided_on(at).approved:
            raise StoreError(f"Remediation {at} is approved already; ask for its undo instead")
        return self._decide(at, {"rejected": True, **said_correct(finding_correct)})

    def ask_undo(self, at: RemediationId, finding_correct: bool = False) -> Remediation:
        """finding_correct: as for `reject`. Raises StoreError if there is none with this id."""
        return self._decide(at, {"undo": True, **said_correct(finding_correct)})

    def _decided_on(self, at: RemediationId) -> Remediation:
        found = self.get(at)
        if found is None:
            raise StoreError(f"There is no Remediation {at}; `gpuwatch history` lists them")
        return found

    def _decide(self, at: RemediationId, decision: Mapping[str, object]) -> Remediation:
        """Patch without a version, so that a concurrent status write does not lose the decision. The API server refuses
        the second of two contradictory decisions."""
        try:
            with _store_errors():
                stored = self._writer.patch(_ref(at), {"spec": decision})
        except ConflictError as error:
            raise StoreError(str(error)) from error
        return _understood(stored)

    def delete_all(self) -> dict[RemediationId, str]:
        """Deletes all. The finalizer keeps those whose changes are in effect until they are undone. Returns those that
        could not be deleted, and why."""
        refused: dict[RemediationId, str] = {}
        for each in self._objects([]):
            if not _deleting(each):
                try:
                    with suppress(ConflictError), _store_errors():
                        self._writer.delete(ref_of(each))
                except StoreError as error:
                    refused[_id(each)] = str(error)
        return refused

    def forget_final(self, now: datetime, kept: timedelta = FINAL_KEPT, at_most: int = FINAL_AT_MOST) -> int:
        """Deletes final ones that ended more than `kept` before `now`, and the oldest beyond `at_most`; returns how
        many. Those that `needs_attention` are never deleted."""
        final = sorted(
            ((each.changed_at, each.id, ref) for each, ref in self._all() if not needs_attention(each)),
            key=lambda one: one[:2],
        )
        forgotten = 0
        for index, (ended_at, _, ref) in enumerate(final):
            if index >= len(final) - at_most and ended_at >= now - kept:
                continue
            try:
                with _store_errors():
                    found = self._writer.get(ref)
                    if found is not None and _held(found):  # its age is no reason to undo it
                        self._hold(found, held=False)
                    self._writer.delete(ref)
            except ConflictError:
                continue  # changed or deleted meanwhile
            forgotten += 1
        return forgotten

    def pause(self, by: str, reason: str, now: datetime, *, everything: bool = False) -> Pause:
        """Stops every replica before its next write; `everything`: undoing too. An existing pause that stops as much
        is kept."""
        with _store_errors():
            found = self._writer.get(self._pause_at)
        held = self._pause_of(found)
        if _pause_data(found).get("paused") in _HOLDS and held.everything >= everything:
            return held
        data = {
            "paused": "all" if everything else "true",
            "since": now.astimezone(UTC).isoformat(),
            "by": by,
            "reason": reason,
        }
        self._write_pause(data)
        return Pause(paused=True, everything=everything, since=now, by=by, reason=reason)

    def resume(self) -> Pause:
        """Ends the pause and clears the ConfigMap."""
        self._write_pause({"paused": "false"})
        return Pause()

    def _write_pause(self, data: Mapping[str, str]) -> None:
        """Replaces all data of the ConfigMap."""
        for last in (False, True):
            try:
                with _store_errors():
                    found = self._writer.get(self._pause_at)
                    if found is None:
                        metadata = {"name": self._pause_at.name, "namespace": self._pause_at.namespace}
                        made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dict(data)}
                        self._writer.create(made)
                    else:
                        gone = dict.fromkeys(_pause_data(found))
                        more = {"binaryData": None} if found.get("binaryData") else {}
                        self._writer.patch(ref_of(found), {"data": {**gone, **data}, **more})
            except ConflictError:  # created or deleted meanwhile
                if last:
                    raise
            else:
                return

    def paused(self) -> Pause:
        """The current pause, never cached. Read before each write; on a StoreError do not write."""
        with _store_errors():
            return self._pause_of(self._writer.get(self._pause_at))

    def _pause_of(self, found: Object | None) -> Pause:
        """Anything but a valid open state is a pause, with a reason that says what to write."""
        data = _pause_data(found)
        value = data.get("paused", "").strip().lower()
        by, reason, since = data.get("by", ""), data.get("reason", ""), _time(data.get("since", ""))
        unknown = sorted(set(data).difference(_PAUSE_KEYS))
        where = f"ConfigMap {self._pause_at.name} in Namespace {self._pause_at.namespace}"
        if found is None:
            wrong = f"{where} is missing: create it with `gpuwatch resume` or deploy/base/pause.yaml"
        elif unknown:
            wrong = f"{where} has the unknown key {unknown[0]!r}: `gpuwatch resume` clears it"
        elif not data or value == "false":
            return Pause()
        elif value in _HOLDS:
            wrong = ""
        else:
            wrong = f'{where} says neither paused: "false" nor "true" nor "all": `gpuwatch resume` ends the pause'
        why = f"{reason} ({wrong})" if reason and wrong else reason or wrong
        return Pause(paused=True, everything=value == "all", since=since, by=by, reason=why)

    def _get(self, at: RemediationId) -> Object | None:
        with _store_errors():
            return self._writer.get(_ref(at))


def _ref(at: RemediationId) -> ObjectRef:
    namespace, _, name = at.rpartition("/")
    return ObjectRef(API_VERSION, KIND if namespace else NODE_KIND, name, namespace)


def _id(found: Object) -> RemediationId:
    metadata = found["metadata"]
    return f"{metadata.get('namespace', '')}/{metadata['name']}".removeprefix("/")


def _generation(found: Object) -> int:
    return int(found["metadata"].get("generation", 1))


def _finalizers(found: Object) -> list[str]:
    return found["metadata"].get("finalizers") or []


def _held(found: Object) -> bool:
    return keys.FINALIZER in _finalizers(found)


def _deleting(found: Object) -> bool:
    return bool(found["metadata"].get("deletionTimestamp"))


def _deletion(ref: ObjectRef) -> str:
    """How to undo its changes and delete it, when its record cannot be read."""
    named = f"rem {ref.name} -n {ref.namespace}" if ref.namespace else f"noderem {ref.name}"
    undone = (
        f"Restore what it released by hand, from its annotation {keys.SAVED_STATE}. Then:"
        if ref.namespace
        else "gpuwatch removes its taint from the Node once the object is deleted:"
    )
    return f"{undone} kubectl delete {named}"


_ERRORS: Mapping[Failure, type[StoreError]] = {
    Failure.CONFLICT: ConflictError,
    Failure.NOT_FOUND: ConflictError,
    Failure.FORBIDDEN: RefusedError,
    Failure.INVALID: RefusedError,
}


@contextmanager
def _store_errors() -> Iterator[None]:
    """Turn a WriteError into the StoreError of its kind."""
    try:
        yield
    except WriteError as error:
        raise _ERRORS.get(error.failure, StoreError)(error.message) from error


def _decoded(found: Object) -> Remediation:
    """Raises FormError."""
    spec = from_api(found.get("spec"), RemediationSpec, "spec")
    written = found.get("status") or {"phase": camel_enum(Phase.PROPOSED)}  # its creator was killed before the status
    status = from_api(written, RemediationStatus, "status")
    decoded = remediation_of(_id(found), version_of(found), spec, status)
    return replace(decoded, undo_asked=True) if _deleting(found) else decoded


def _understood(found: Object) -> Remediation:
    try:
        return _decoded(found)
    except FormError as error:
        raise StoreError(
            f"Remediation {_id(found)} cannot be decoded ({error}); check what it had done. {_deletion(ref_of(found))}"
        ) from error


def _form(at: RemediationId, part: object) -> dict[str, Any]:
    try:
        return to_api(part)
    except FormError as error:
        raise RefusedError(f"Remediation {at} cannot be stored: {error}") from error


def _pause_data(found: Object | None) -> dict[str, str]:
    parts = ((found or {}).get(part) or {} for part in ("data", "binaryData"))
    return {key: plain(value) for part in parts for key, value in part.items()}


def _time(text: str) -> datetime | None:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def needs_attention(remediation: Remediation) -> bool:
    """Whether it is open, or a person asked for its undo and some of its changes may remain."""
    return remediation.phase.open or remediation.undoable
