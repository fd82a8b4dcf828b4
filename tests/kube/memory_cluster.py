"""A cluster in memory that is written like a real one: uids, versions, preconditions, budgets and rights, but no
controllers. One conformance suite holds it and `LiveWriter` to the same answers.
"""

import copy
import itertools
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from gpuwatch.facts.frameworks.objects import Object
from gpuwatch.facts.model.remediation import ObjectRef
from gpuwatch.sources.kube.live_writer import event_of
from gpuwatch.sources.kube.writer import Failure, LeaseCheck, PatchKind, WriteError, grant

_Place = tuple[str, str, str, str]
"""API group, kind, Namespace and name."""

_LIST_KEYS = {"conditions": "type", "taints": "key", "ownerReferences": "uid"}  # the API's patchMergeKey
_COUNTS = ("replicas", "parallelism", "completions", "minReplicas")


class MemoryCluster:
    """Implements `ClusterWriter`.

    lease_check: called before each write. may: has this writer the right, by verb and resource as RBAC names them?
    interfere: called with verb, object and False before each write is carried out, and with True after it; may raise,
    change the cluster through `put`, or end the process.
    unserved: API groups that this cluster does not serve.
    """

    description = "cluster in memory"

    def __init__(
        self,
        objects: Iterable[Object] = (),
        *,
        lease_check: LeaseCheck = lambda: None,
        may: Callable[[str, str], bool] = lambda _verb, _resource: True,
        interfere: Callable[[str, str, bool], None] = lambda _verb, _what, _done: None,
        unserved: Iterable[str] = (),
    ) -> None:
        self._lease_check = lease_check
        self._may = may
        self._interfere = interfere
        self._unserved = frozenset(unserved)
        self._objects: dict[_Place, Object] = {}
        self._counter = itertools.count(1)
        for item in objects:
            self.put(item)

    def writer(
        self,
        *,
        lease_check: LeaseCheck = lambda: None,
        may: Callable[[str, str], bool] = lambda _verb, _resource: True,
        interfere: Callable[[str, str, bool], None] = lambda _verb, _what, _done: None,
    ) -> "MemoryCluster":
        """Another writer of this very cluster."""
        other = MemoryCluster(lease_check=lease_check, may=may, interfere=interfere, unserved=self._unserved)
        other._objects, other._counter = self._objects, self._counter
        return other

    def put(self, object_: Object) -> Object:
        """Store the object whole, status included, as a controller would: without lease check, rights, preconditions.
        What it lacks of uid, version and generation is made."""
        place = _place(object_["apiVersion"], object_["kind"], object_["metadata"])
        before = self._objects.get(place)
        stored = copy.deepcopy(object_)
        metadata = stored["metadata"]
        number = next(self._counter)
        metadata.setdefault("uid", before["metadata"]["uid"] if before else str(uuid.UUID(int=number)))
        metadata["resourceVersion"] = str(number)
        respecified = before is not None and before.get("spec") != stored.get("spec")
        metadata["generation"] = (before["metadata"]["generation"] if before else 1) + respecified
        self._objects[place] = stored
        return copy.deepcopy(stored)

    def remove(self, ref: ObjectRef) -> None:
        """It and all that it owns are gone, as the garbage collector leaves it."""
        gone = self._objects.pop(_place(ref.api_version, ref.kind, {"name": ref.name, "namespace": ref.namespace}))
        uid = gone["metadata"]["uid"]
        for item in list(self._objects.values()):
            if any(owner.get("uid") == uid for owner in item["metadata"].get("ownerReferences") or ()):
                metadata = item["metadata"]
                self.remove(
                    ObjectRef(item["apiVersion"], item["kind"], metadata["name"], metadata.get("namespace", ""))
                )

    def get(self, ref: ObjectRef) -> Object | None:
        self._allowed("get", _resource(ref.api_version, ref.kind), f"{ref}")
        found = self._found(ref)
        return None if found is None or (ref.uid and found["metadata"]["uid"] != ref.uid) else copy.deepcopy(found)

    def objects(self, api_version: str, kind: str, namespace: str = "", labels: str = "") -> tuple[Object, ...]:
        resource = _resource(api_version, kind)
        self._allowed("list", resource, f"{resource} in {namespace or 'all Namespaces'}")
        wanted = dict(item.split("=", 1) for item in labels.split(",") if item)
        key = (api_version.rpartition("/")[0], kind)
        return tuple(
            copy.deepcopy(item)
            for place, item in sorted(self._objects.items())
            if place[:2] == key and (not namespace or place[2] == namespace) and _labelled(item, wanted)
        )

    def create(self, object_: Object) -> Object:
        resource = _resource(object_["apiVersion"], object_["kind"])
        place = _place(object_["apiVersion"], object_["kind"], object_["metadata"])
        what = f"{object_['kind']} {place[2]}/{place[3]}".replace(" /", " ")
        with_status = {key: value for key, value in object_.items() if key != "status"}

        def stored() -> Object:
            if place[0] in self._unserved:
                message = f"The cluster does not serve {object_['kind']} of {object_['apiVersion']}."
                raise WriteError(Failure.INVALID, message, status=404)
            if place in self._objects:
                raise _refused(Failure.CONFLICT, "create", what, resource, f"{what} already exists", 409)
            self._checked(with_status, "create", what, resource)
            metadata = {key: value for key, value in object_["metadata"].items() if key != "uid"}
            return self.put({**with_status, "metadata": metadata})

        return self._write("create", what, resource, stored)

    def patch(
        self,
        ref: ObjectRef,
        patch: Mapping[str, Any],
        *,
        kind: PatchKind = PatchKind.MERGE,
        subresource: str = "",
        version: str = "",
    ) -> Object:
        resource = _resource(ref.api_version, ref.kind, subresource)

        def stored() -> Object:
            now = self._meant(ref, "patch", resource)
            if version and now["metadata"]["resourceVersion"] != version:
                raise _refused(Failure.CONFLICT, "patch", f"{ref}", resource, "the object has been modified", 409)
            changed: Object = _strategic(now, patch) if kind is PatchKind.STRATEGIC else merged(now, patch)
            kept = {"status"} if subresource != "status" else set(now) - {"status", "metadata"}
            for key in kept:
                changed.pop(key, None)
                if key in now:
                    changed[key] = now[key]
            changed["metadata"] = {**changed["metadata"], "uid": now["metadata"]["uid"]}
            if not changed["metadata"].get("annotations", True):
                del changed["metadata"]["annotations"]
            self._checked(changed, "patch", f"{ref}", resource)
            changed["metadata"]["resourceVersion"] = now["metadata"]["resourceVersion"]
            if changed["metadata"].get("deletionTimestamp") and not changed["metadata"].get("finalizers"):
                self.remove(ref)
                return copy.deepcopy(changed)
            return copy.deepcopy(now) if changed == now else self.put(changed)

        return self._write("patch", f"{ref}", resource, stored)

    def evict(self, pod: ObjectRef, *, version: str = "") -> None:
        what, resource = f"an eviction of {pod}", "pods/eviction"

        def evicted() -> Object:
            found = self._meant(pod, "create", resource, what)
            budgets = [item for item in self._budgets(pod.namespace) if _selects(item, found)]
            if len(budgets) > 1:
                message = (
                    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support"
                )
                raise _refused(Failure.INVALID, "create", what, resource, message, 500)
            for item in budgets:
                name, allowed = item["metadata"]["name"], item.get("status", {}).get("disruptionsAllowed", 0)
                if allowed < 1:
                    message = f"Cannot evict pod as it would violate the pod's disruption budget {name}"
                    raise _refused(Failure.BUDGET, "create", what, resource, message, 429)
                # A new object, as writers that only rehearse share the stored ones.
                self.put({**item, "status": {**item["status"], "disruptionsAllowed": allowed - 1}})
            if version and found["metadata"]["resourceVersion"] != version:  # asked last, as the API server does
                raise _refused(Failure.CONFLICT, "create", what, resource, "the object has been modified", 409)
            self.remove(pod)
            return {}

        self._write("create", what, resource, evicted)

    def delete(self, ref: ObjectRef) -> None:
        resource = _resource(ref.api_version, ref.kind)

        def deleted() -> Object:
            found = self._meant(ref, "delete", resource)
            metadata = found["metadata"]
            if not metadata.get("finalizers"):
                self.remove(ref)
            elif not metadata.get("deletionTimestamp"):
                self.put({**found, "metadata": {**metadata, "deletionTimestamp": "2026-03-02T12:00:00Z"}})
            return {}

        self._write("delete", f"{ref}", resource, deleted)

    def event(
        self, regarding: ObjectRef, *, at: datetime, reason: str, action: str, note: str, warning: bool = False
    ) -> None:
        said = event_of(regarding, at=at, reason=reason, action=action, note=note, warning=warning)
        said["reportingInstance"] = "memory"
        name = f"Event {said['metadata']['namespace']}/{said['metadata']['name']}"

        def stored() -> Object:
            before = self._objects.get(_place(said["apiVersion"], said["kind"], said["metadata"]))
            if before is None:
                return self.put(said)
            count = before.get("series", {}).get("count", 1) + 1
            return self.put({**before, "series": {"count": count, "lastObservedTime": said["eventTime"]}})

        self._write("create", name, "events.events.k8s.io", stored)

    def _write(self, verb: str, what: str, resource: str, change: Callable[[], Object]) -> Object:
        self._lease_check()
        self._allowed(verb, resource, what)
        self._interfere(verb, what, False)
        done = change()
        self._interfere(verb, what, True)
        return done

    def _allowed(self, verb: str, resource: str, what: str) -> None:
        if not self._may(verb, resource):
            raise _refused(Failure.FORBIDDEN, verb, what, resource, f"cannot {verb} resource {resource}", 403)

    def _found(self, ref: ObjectRef) -> Object | None:
        return self._objects.get(_place(ref.api_version, ref.kind, {"name": ref.name, "namespace": ref.namespace}))

    def _meant(self, ref: ObjectRef, verb: str, resource: str, what: str = "") -> Object:
        if ref.api_version.rpartition("/")[0] in self._unserved:
            message = f"The cluster does not serve {ref.kind} of {ref.api_version}."
            raise WriteError(Failure.INVALID, message, status=404)
        found = self._found(ref)
        if found is None or (ref.uid and found["metadata"]["uid"] != ref.uid):
            said = "there is no such object" if found is None else "another object has its name now"
            raise _refused(Failure.NOT_FOUND, verb, what or f"{ref}", resource, said, 404 if found is None else 409)
        return found

    def _checked(self, object_: Object, verb: str, what: str, resource: str) -> None:
        spec = object_.get("spec") or {}
        bad = [name for name in _COUNTS if isinstance(spec.get(name), int) and spec[name] < 0]
        if bad:
            raise _refused(Failure.INVALID, verb, what, resource, f"spec.{bad[0]} must not be negative", 422)

    def _budgets(self, namespace: str) -> Iterator[Object]:
        for place, item in self._objects.items():
            if place[:3] == ("policy", "PodDisruptionBudget", namespace):
                yield item


def _place(api_version: str, kind: str, metadata: Mapping[str, Any]) -> _Place:
    return api_version.rpartition("/")[0], kind, metadata.get("namespace", ""), metadata["name"]


def _resource(api_version: str, kind: str, subresource: str = "") -> str:
    group = api_version.rpartition("/")[0]
    plural = f"{kind.lower()}s"
    whole = f"{plural}/{subresource}" if subresource else plural
    return f"{whole}.{group}" if group else whole


def _labelled(object_: Object, wanted: Mapping[str, str]) -> bool:
    labels = object_["metadata"].get("labels") or {}
    return all(labels.get(key) == value for key, value in wanted.items())


def _selects(budget: Object, pod: Object) -> bool:
    selector = budget["spec"].get("selector")
    return selector is not None and _labelled(pod, selector.get("matchLabels") or {})


def merged(document: object, patch: object) -> Any:
    """A copy with the merge patch applied: null removes, objects are merged, all else replaces."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    result = copy.deepcopy(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def _strategic(document: Any, patch: Any, name: str = "") -> Any:
    """A merge in which items of known lists are merged by their key."""
    key = _LIST_KEYS.get(name)
    if isinstance(patch, list) and key is not None:
        items = {item[key]: item for item in document or ()}
        for item in patch:
            items[item[key]] = _strategic(items.get(item[key]), item)
        return list(items.values())
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    result = copy.deepcopy(document) if isinstance(document, dict) else {}
    for part, value in patch.items():
        if value is None:
            result.pop(part, None)
        else:
            result[part] = _strategic(result.get(part), value, part)
    return result


def _refused(failure: Failure, verb: str, what: str, resource: str, said: str, status: int) -> WriteError:
    advice = f" {grant(verb, resource)}." if failure is Failure.FORBIDDEN else ""
    return WriteError(failure, f"Could not {verb} {what}: {said.rstrip('.')}.{advice}", status=status)
