"""Writes to a running cluster: plain JSON over the official client's transport, with preconditions and timeouts.
Nothing is retried here: only the caller knows whether a retry is safe."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import quote

import urllib3
from kubernetes.client import ApiClient, ApiException

from gpuwatch.facts.frameworks.objects import MANAGER, Object, version_of
from gpuwatch.facts.model.plain_text import plain
from gpuwatch.facts.model.remediation import ObjectRef
from gpuwatch.sources.kube import wire
from gpuwatch.sources.kube.transport import (
    DEFAULT_LIMITS,
    JSON,
    Limits,
    address,
    ask,
    cause_of,
    decoded_status,
    retry_after,
)
from gpuwatch.sources.kube.writer import Failure, LeaseCheck, PatchKind, WriteError, grant

_CONTROLLER = "gpuwatch.dev/controller"
# Unknown fields are errors. An older CRD would drop them: a Job would seem to be suspended and is not.
_STRICT = {"fieldManager": MANAGER, "fieldValidation": "Strict"}
_NOTE_BYTES = 1000  # the API accepts 1,024 bytes as an Event's note
_REASON_CHARACTERS = 600
# Strict decoding errors quote the whole object, and a Pod's environment may hold secrets.
_LONG_QUOTE = re.compile(r'"(?:[^"\\]|\\.){80,}"')


_METHODS = {"get": "GET", "list": "GET", "create": "POST", "patch": "PATCH", "delete": "DELETE"}


class _Request(NamedTuple):
    """verb, resource: as in RBAC rules. what: for people, 'Job/team-a/train'. on: None for a list or a new object."""

    verb: str
    what: str
    resource: str
    path: str
    on: ObjectRef | None = None


@dataclass(frozen=True, slots=True)
class _Resource:
    """name: as in the URL, such as 'jobs'."""

    api_version: str
    name: str
    namespaced: bool

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        base = f"/apis/{self.api_version}" if self.group else f"/api/{self.api_version}"
        parts = [f"namespaces/{quote(namespace)}"] if namespace and self.namespaced else []
        return "/".join((base, *parts, self.name, *(quote(part) for part in (name, subresource) if part)))

    def named(self, subresource: str = "") -> str:
        """The name in RBAC rules."""
        whole = f"{self.name}/{subresource}" if subresource else self.name
        return f"{whole}.{self.group}" if self.group else whole

    def on(self, verb: str, ref: ObjectRef, subresource: str = "", what: str = "") -> _Request:
        path = self.path(ref.namespace, ref.name, subresource)
        return _Request(verb, what or f"{ref}", self.named(subresource), path, ref)


@dataclass(eq=False)
class LiveWriter:
    """Reads and writes single objects of a running cluster.

    lease_check: called before each write. instance: names this process in Events, such as its Pod's name.
    dry_run: the server checks admission, validation, RBAC, preconditions and budgets, and stores nothing. No Events are
    sent.
    """

    api_client: ApiClient
    _: KW_ONLY
    lease_check: LeaseCheck = lambda: None
    instance: str = MANAGER
    limits: Limits = DEFAULT_LIMITS
    dry_run: bool = False

    def __post_init__(self) -> None:
        self.description = f"Kubernetes at {address(self.api_client)}{' (dry run)' if self.dry_run else ''}"
        self._served: dict[str, dict[str, _Resource]] = {}

    def get(self, ref: ObjectRef) -> Object | None:
        resource = self._resource(ref.api_version, ref.kind)
        if resource is None:
            return None
        found = self._found(resource.on("get", ref))
        return None if found is None or (ref.uid and found["metadata"].get("uid") != ref.uid) else found

    def objects(self, api_version: str, kind: str, namespace: str = "", labels: str = "") -> tuple[Object, ...]:
        resource = self._resource(api_version, kind)
        if resource is None:
            return ()
        what = f"{resource.named()} in {namespace or 'all Namespaces'}"
        request = _Request("list", what, resource.named(), resource.path(namespace))
        params = {"limit": str(self.limits.page_size), **({"labelSelector": labels} if labels else {})}
        found: list[Object] = []
        while True:
            page = self._ask(request, params)
            # The items of a typed list have neither.
            found += ({**item, "apiVersion": api_version, "kind": kind} for item in page.get("items") or ())
            params["continue"] = page.get("metadata", {}).get("continue", "")
            if not params["continue"]:
                return tuple(found)

    def create(self, object_: Object) -> Object:
        metadata = object_["metadata"]
        resource = self._known(object_["apiVersion"], object_["kind"])
        name = f"{object_['kind']} {metadata.get('namespace', '')}/{metadata['name']}".replace(" /", " ")
        request = _Request("create", name, resource.named(), resource.path(metadata.get("namespace", "")))
        return self._write(request, object_, params=_STRICT)

    def patch(
        self,
        ref: ObjectRef,
        patch: Mapping[str, Any],
        *,
        kind: PatchKind = PatchKind.MERGE,
        subresource: str = "",
        version: str = "",
    ) -> Object:
        resource = self._known(ref.api_version, ref.kind)
        named = _preconditions(ref, version)
        body = {**patch, "metadata": {**patch.get("metadata", {}), **named}} if named else dict(patch)
        return self._write(resource.on("patch", ref, subresource), body, kind, _STRICT)

    def evict(self, pod: ObjectRef, *, version: str = "") -> None:
        resource = self._known("v1", "Pod")
        eviction: Object = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
        }
        if named := _preconditions(pod, version):
            eviction["deleteOptions"] = {"preconditions": named}
        self._write(resource.on("create", pod, "eviction", f"an eviction of {pod}"), eviction)

    def delete(self, ref: ObjectRef) -> None:
        resource = self._known(ref.api_version, ref.kind)
        options: Object = {"propagationPolicy": "Background"}
        if self.dry_run:
            options["dryRun"] = ["All"]  # for a DELETE with a body the server ignores query parameters
        if ref.uid:
            options["preconditions"] = {"uid": ref.uid}
        self._write(resource.on("delete", ref), options)

    def event(
        self, regarding: ObjectRef, *, at: datetime, reason: str, action: str, note: str, warning: bool = False
    ) -> None:
        if self.dry_run:
            return
        event = event_of(regarding, at=at, reason=reason, action=action, note=note, warning=warning)
        event["reportingInstance"] = self.instance[:128]
        try:
            self.create(event)
        except WriteError as error:
            if error.failure is not Failure.CONFLICT:
                raise
        else:
            return
        metadata = event["metadata"]
        ref = ObjectRef(event["apiVersion"], event["kind"], metadata["name"], metadata["namespace"])
        before = self.get(ref)
        if before is None:
            return  # it expired in between
        series = {"count": (before.get("series") or {}).get("count", 1) + 1, "lastObservedTime": event["eventTime"]}
        self.patch(ref, {"series": series}, version=version_of(before))

    def _resource(self, api_version: str, kind: str) -> _Resource | None:
        """None when the cluster does not serve it. Only kinds that are served are cached."""
        known = self._served.get(api_version, {}).get(kind)
        if known is not None:
            return known
        base = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        answer = self._found(_Request("get", f"the kinds of {api_version}", base, base))
        if answer is None:
            return None
        self._served[api_version] = {
            item["kind"]: _Resource(api_version, item["name"], item["namespaced"])
            for item in answer.get("resources") or ()
            if "/" not in item["name"]
        }
        return self._served[api_version].get(kind)

    def _known(self, api_version: str, kind: str) -> _Resource:
        found = self._resource(api_version, kind)
        if found is None:
            raise WriteError(Failure.INVALID, f"The cluster does not serve {kind} of {api_version}.", status=404)
        return found

    def _found(self, request: _Request) -> Object | None:
        try:
            return self._ask(request)
        except WriteError as error:
            if error.failure is Failure.NOT_FOUND:
                return None
            raise

    def _write(self, request: _Request, body: object, media_type: str = JSON, params: Mapping[str, str] = {}) -> Object:
        self.lease_check()
        dry = {"dryRun": "All"} if self.dry_run else {}
        try:
            return self._ask(request, {**params, **dry}, body, media_type)
        except WriteError as error:
            if error.status in (409, 422) and request.on is not None:
                raise self._refined(error, request, request.on) from error
            raise

    def _refined(self, error: WriteError, request: _Request, on: ObjectRef) -> WriteError:
        """The server answers 409 or 422 both to a wrong uid and to a wrong version; reading the object decides."""
        try:
            now = self.get(ObjectRef(on.api_version, on.kind, on.name, on.namespace))
        except WriteError:
            return error
        if now is not None and (not on.uid or now["metadata"].get("uid") == on.uid):
            return error
        reason = "there is no such object any more" if now is None else "another object has its name now"
        message = f"Could not {request.verb} {request.what}: {reason}."
        return WriteError(Failure.NOT_FOUND, message, status=error.status)

    def _ask(
        self, request: _Request, params: Mapping[str, str] = {}, body: object = None, media_type: str = JSON
    ) -> Object:
        timeout = (self.limits.connect_timeout_seconds, self.limits.read_timeout_seconds)
        try:
            method, kind = _METHODS[request.verb], str(media_type)
            answer = ask(self.api_client, request.path, params, timeout, method=method, body=body, media_type=kind)
            content: bytes = answer.read()
        except ApiException as error:
            if error.status:
                raise _explained(request, error) from error
            raise self._unsure(request, f"no answer from {self.description}: {error.reason}") from error
        except urllib3.exceptions.HTTPError as error:
            raise self._unsure(request, f"no answer from {self.description}: {cause_of(error)}") from error
        try:
            found = json.loads(content)
        except ValueError as error:
            raise self._unsure(request, f"the answer is not JSON ({error}); is there a proxy in between?") from error
        if not isinstance(found, dict):
            raise self._unsure(request, "the answer is not an object; is there a proxy in between?")
        return found

    def _unsure(self, request: _Request, why: str) -> WriteError:
        return WriteError(Failure.UNSURE, f"Could not {request.verb} {request.what}: {why.rstrip('.')}.")


def _preconditions(ref: ObjectRef, version: str) -> Object:
    return {key: value for key, value in (("uid", ref.uid), ("resourceVersion", version)) if value}


def event_of(
    regarding: ObjectRef, *, at: datetime, reason: str, action: str, note: str, warning: bool = False
) -> Object:
    """An Event without its instance. Its name is a hash of its content, so that creating it twice is a conflict."""
    note = plain(note).encode()[:_NOTE_BYTES].decode(errors="ignore")
    content = json.dumps([regarding.api_version, regarding.kind, regarding.uid, regarding.name, reason, action, note])
    digest = hashlib.sha256(content.encode()).hexdigest()[:16]
    # Events of cluster-scoped objects go into `default`.
    namespace = regarding.namespace or "default"
    reference = {
        "apiVersion": regarding.api_version,
        "kind": regarding.kind,
        "name": regarding.name,
        **({"namespace": regarding.namespace} if regarding.namespace else {}),
        **({"uid": regarding.uid} if regarding.uid else {}),
    }
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": f"{regarding.name[:200].rstrip('-.')}.{digest}", "namespace": namespace},
        "eventTime": at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": _CONTROLLER,
        "reason": reason,
        "action": action,
        "note": note,
        "regarding": reference,
        "type": "Warning" if warning else "Normal",
    }


def _explained(request: _Request, error: ApiException) -> WriteError:
    status, answer = int(error.status or 0), decoded_status(error.body or "{}")
    details = answer.details or wire.StatusDetails()
    reason = (answer.message or str(error.reason or "no reason given")).strip().rstrip(".")
    reason = _LONG_QUOTE.sub('"…"', reason)[:_REASON_CHARACTERS]
    budget = next((cause.message for cause in details.causes or () if cause.reason == "DisruptionBudget"), "")
    failure = _failure(status, bool(budget), reason)
    wait = retry_after(error)
    if wait is None and details.retry_after_seconds:
        wait = float(details.retry_after_seconds)
    advice = ""
    if failure is Failure.BUDGET:
        reason = f"{reason}: {budget.rstrip('.')}"
    elif status == 401:
        advice = " Renew the token, or check the kubeconfig's user."
    elif failure is Failure.FORBIDDEN and " cannot " in reason:  # otherwise a quota or webhook refused, not RBAC
        advice = f" {grant(request.verb, request.resource)}."
    message = f"Could not {request.verb} {request.what}: the API server answered {status} ({reason}).{advice}"
    return WriteError(failure, message, retry_after_seconds=wait, status=status)


def _failure(status: int, budget: bool, reason: str) -> Failure:
    if status == 429:
        return Failure.BUDGET if budget else Failure.THROTTLED
    if status == 500 and "more than one PodDisruptionBudget" in reason:
        return Failure.INVALID  # the Eviction API never evicts such a Pod; it answers with an internal error
    if status >= 500:
        return Failure.UNSURE
    known = {401: Failure.FORBIDDEN, 403: Failure.FORBIDDEN, 404: Failure.NOT_FOUND, 410: Failure.NOT_FOUND}
    return Failure.CONFLICT if status == 409 else known.get(status, Failure.INVALID)
