"""Writes to a running cluster over the official client's transport: plain JSON, preconditions, timeouts, plain errors.

Nothing is tried twice here: whoever writes knows what another try would mean.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import urllib3
from kubernetes.client import ApiClient, ApiException

from gpuwatch.frameworks.json_patch import applies
from gpuwatch.frameworks.objects import MANAGER, Object, version_of
from gpuwatch.kube.transport import DEFAULT_LIMITS, Limits, cause_of, without_secrets
from gpuwatch.kube.writer import Failure, LeaseCheck, PatchKind, WriteError
from gpuwatch.model.remediation import ObjectRef

_CONTROLLER = "gpuwatch.dev/controller"
_JSON = "application/json"
# An unknown field is an error: an older custom resource would drop it, and a Job would seem suspended that is not.
_STRICT = {"fieldManager": MANAGER, "fieldValidation": "Strict"}
_NOTE_BYTES = 1000  # the API takes 1,024 of an Event's note
_SAID_CHARACTERS = 600
_BUDGET_NAME = re.compile(r"disruption budget (\S+) ")
# Strict decoding quotes the whole object, and a Pod's environment may hold secrets.
_LONG_QUOTE = re.compile(r'"(?:[^"\\]|\\.){80,}"')
_VERBS = {"GET": "get", "POST": "create", "PATCH": "patch", "DELETE": "delete"}


def _no_lease_check() -> None:
    """For writes of which there is one writer only."""


@dataclass(frozen=True, slots=True)
class _Resource:
    """api_version: '' group for the core. name: as in the URL, 'jobs'."""

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
        """As RBAC names it."""
        whole = f"{self.name}/{subresource}" if subresource else self.name
        return f"{whole}.{self.group}" if self.group else whole


@dataclass(frozen=True, slots=True)
class _Question:
    """What a request is about, for its error: 'patch Job/team-a/train'. Without `on`, a list or a new object."""

    verb: str
    what: str
    resource: str
    on: ObjectRef | None = None
    tests: Sequence[Mapping[str, Any]] = ()


class LiveWriter:
    """A running cluster, read and written object by object.

    lease_check: called before each write. instance: this process in Events, such as the name of its Pod.
    """

    def __init__(
        self,
        api_client: ApiClient,
        *,
        lease_check: LeaseCheck = _no_lease_check,
        instance: str = MANAGER,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self._client = api_client
        self._lease_check = lease_check
        self._instance = instance
        self._limits = limits
        self._served: dict[str, dict[str, _Resource]] = {}
        self._dry = False

    @property
    def description(self) -> str:
        return f"Kubernetes at {without_secrets(str(self._client.configuration.host))}"

    def get(self, ref: ObjectRef) -> Object | None:
        resource = self._resource(ref.api_version, ref.kind)
        if resource is None:
            return None
        question = _Question("get", f"{ref}", resource.named())
        try:
            found = self._ask("GET", resource.path(ref.namespace, ref.name), question)
        except WriteError as error:
            if error.failure is Failure.NOT_FOUND:
                return None
            raise
        return None if ref.uid and found["metadata"].get("uid") != ref.uid else found

    def objects(self, api_version: str, kind: str, namespace: str = "", labels: str = "") -> tuple[Object, ...]:
        resource = self._resource(api_version, kind)
        if resource is None:
            return ()
        question = _Question("list", f"{resource.named()} in {namespace or 'all Namespaces'}", resource.named())
        asked = {"limit": str(self._limits.page_size), **({"labelSelector": labels} if labels else {})}
        found: list[Object] = []
        token = ""
        while True:
            params = {**asked, **({"continue": token} if token else {})}
            page = self._ask("GET", resource.path(namespace), question, params)
            # The items of a typed list carry neither.
            found += ({**item, "apiVersion": api_version, "kind": kind} for item in page.get("items") or ())
            token = page.get("metadata", {}).get("continue", "")
            if not token:
                return tuple(found)

    def create(self, object_: Object) -> Object:
        metadata = object_["metadata"]
        resource = self._known(object_["apiVersion"], object_["kind"])
        name = f"{object_['kind']} {metadata.get('namespace', '')}/{metadata['name']}".replace(" /", " ")
        question = _Question("create", name, resource.named())
        path = resource.path(metadata.get("namespace", ""))
        return self._write("POST", path, question, object_, params=_STRICT)

    def patch(
        self,
        ref: ObjectRef,
        patch: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        kind: PatchKind = PatchKind.MERGE,
        subresource: str = "",
        version: str = "",
    ) -> Object:
        resource = self._known(ref.api_version, ref.kind)
        body, tests = _with_preconditions(ref, patch, kind, version)
        question = _Question("patch", f"{ref}", resource.named(subresource), ref, tests)
        path = resource.path(ref.namespace, ref.name, subresource)
        return self._write("PATCH", path, question, body, kind, _STRICT)

    def evict(self, pod: ObjectRef, *, dry_run: bool = False) -> None:
        resource = self._known("v1", "Pod")
        eviction: Object = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
        }
        if pod.uid:
            eviction["deleteOptions"] = {"preconditions": {"uid": pod.uid}}
        question = _Question("create", f"an eviction of {pod}", resource.named("eviction"), pod)
        path = resource.path(pod.namespace, pod.name, "eviction")
        self._write("POST", path, question, eviction, params={"dryRun": "All"} if dry_run else {})

    def delete(self, ref: ObjectRef) -> None:
        resource = self._known(ref.api_version, ref.kind)
        options: Object = {"propagationPolicy": "Background"}
        if self._dry:
            options["dryRun"] = ["All"]  # a deletion with a body is not asked for its parameters
        if ref.uid:
            options["preconditions"] = {"uid": ref.uid}
        question = _Question("delete", f"{ref}", resource.named(), ref)
        self._write("DELETE", resource.path(ref.namespace, ref.name), question, options)

    def event(
        self, regarding: ObjectRef, *, at: datetime, reason: str, action: str, note: str, warning: bool = False
    ) -> None:
        said = event_of(regarding, at=at, reason=reason, action=action, note=note, warning=warning)
        said["reportingInstance"] = self._instance[:128]
        try:
            self.create(said)
        except WriteError as error:
            if error.failure is not Failure.CONFLICT:
                raise
        else:
            return
        metadata = said["metadata"]
        ref = ObjectRef(said["apiVersion"], said["kind"], metadata["name"], metadata["namespace"])
        before = self.get(ref)
        if before is None:
            return  # it expired in between: it was said, and is not said now
        count = int((before.get("series") or {}).get("count", 1)) + 1
        self.patch(ref, {"series": {"count": count, "lastObservedTime": said["eventTime"]}}, version=version_of(before))

    def _resource(self, api_version: str, kind: str) -> _Resource | None:
        """None where the cluster does not serve it. What is served is remembered, what is not is asked for again."""
        known = self._served.get(api_version, {}).get(kind)
        if known is not None:
            return known
        base = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        try:
            answer = self._ask("GET", base, _Question("get", f"the kinds of {api_version}", base))
        except WriteError as error:
            if error.failure is Failure.NOT_FOUND:
                return None
            raise
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

    def _write(
        self,
        method: str,
        path: str,
        question: _Question,
        body: object,
        media_type: str = _JSON,
        params: Mapping[str, str] | None = None,
    ) -> Object:
        self._lease_check()
        dry = {"dryRun": "All"} if self._dry else {}
        try:
            return self._ask(method, path, question, {**(params or {}), **dry}, body, media_type)
        except WriteError as error:
            if error.status in (409, 422) and question.on is not None:
                raise self._told_apart(error, question, question.on) from error
            raise

    def _told_apart(self, error: WriteError, question: _Question, on: ObjectRef) -> WriteError:
        """The server refuses another uid, another version and a failed test with the same two codes, so the object is
        looked at."""
        try:
            now = self.get(ObjectRef(on.api_version, on.kind, on.name, on.namespace))
        except WriteError:
            return error
        if now is None or (on.uid and now["metadata"].get("uid") != on.uid):
            said = "there is no such object any more" if now is None else "another object has its name now"
            failure, message = Failure.NOT_FOUND, f"Could not {question.verb} {question.what}: {said}."
        elif error.status == 409:
            failure, message = Failure.CONFLICT, error.message
        else:
            failed = next((test["path"] for test in question.tests if not applies(now, test)), None)
            if failed is None:
                return error
            failure = Failure.CONFLICT
            message = f"Could not {question.verb} {question.what}: {failed} is not what it has to be any more."
        return WriteError(failure, message, verb=error.verb, resource=error.resource, status=error.status)

    def _ask(
        self,
        method: str,
        path: str,
        question: _Question,
        params: Mapping[str, str] | None = None,
        body: object = None,
        media_type: str = _JSON,
    ) -> Object:
        """The answer's JSON. Raises WriteError."""
        client: Any = self._client
        headers = {"Accept": _JSON, **({} if body is None else {"Content-Type": str(media_type)})}
        timeout = (self._limits.connect_timeout_seconds, self._limits.read_timeout_seconds)
        request = client.param_serialize(
            method,
            path,
            query_params=list((params or {}).items()),
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            answer = client.call_api(*request, _request_timeout=timeout)
            content: bytes = answer.read()
        except (urllib3.exceptions.HTTPError, ApiException) as error:  # ApiException: TLS did not come about
            said = error.reason if isinstance(error, ApiException) else cause_of(error)
            raise self._unsure(question, f"no answer from {self.description}: {said}") from error
        if 200 <= answer.status <= 299:
            return self._decoded(question, content)
        raise _explained(question, answer.status, answer.getheader("Retry-After", ""), content, str(answer.reason))

    def _decoded(self, question: _Question, content: bytes) -> Object:
        try:
            found = json.loads(content)
        except ValueError as error:
            raise self._unsure(question, f"the answer is not JSON ({error}); is there a proxy in between?") from error
        if not isinstance(found, dict):
            raise self._unsure(question, "the answer is not an object; is there a proxy in between?")
        return found

    def _unsure(self, question: _Question, why: str) -> WriteError:
        message = f"Could not {question.verb} {question.what}: {why.rstrip('.')}."
        return WriteError(Failure.UNSURE, message, verb=question.verb, resource=question.resource)


def event_of(
    regarding: ObjectRef, *, at: datetime, reason: str, action: str, note: str, warning: bool = False
) -> Object:
    """An Event without its instance; its name is made of what it says, so that saying it twice is a conflict."""
    note = note.encode()[:_NOTE_BYTES].decode(errors="ignore")
    told = json.dumps([regarding.api_version, regarding.kind, regarding.uid, regarding.name, reason, action, note])
    digest = hashlib.sha256(told.encode()).hexdigest()[:16]
    # Events of objects without a Namespace stand in `default`.
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


def _with_preconditions(
    ref: ObjectRef, patch: Mapping[str, Any] | Sequence[Mapping[str, Any]], kind: PatchKind, version: str
) -> tuple[object, list[Mapping[str, Any]]]:
    """The patch as it is sent, and the tests in it."""
    named = {key: value for key, value in (("uid", ref.uid), ("resourceVersion", version)) if value}
    if isinstance(patch, Mapping):
        if kind is PatchKind.JSON:
            raise TypeError("A JSON patch is a list of operations.")
        return {**patch, "metadata": {**patch.get("metadata", {}), **named}} if named else dict(patch), []
    if kind is not PatchKind.JSON:
        raise TypeError("Only a JSON patch is a list of operations.")
    held = [{"op": "test", "path": f"/metadata/{key}", "value": value} for key, value in named.items()]
    operations = [*held, *patch]
    return operations, [operation for operation in operations if operation["op"] == "test"]


def _explained(question: _Question, status: int, retry_after: str, content: bytes, reason: str) -> WriteError:
    """What a refusal means and what to do about it."""
    try:
        told = json.loads(content)
    except ValueError:
        told = {}
    told = told if isinstance(told, dict) else {}
    details = told.get("details") or {}
    causes = [cause for cause in details.get("causes") or () if isinstance(cause, dict)]
    said = str(told.get("message") or reason or "no reason given").strip().rstrip(".")
    said = _LONG_QUOTE.sub('"…"', said)[:_SAID_CHARACTERS]
    budget = next((str(cause.get("message", "")) for cause in causes if cause.get("reason") == "DisruptionBudget"), "")
    failure = _failure(status, bool(budget), said)
    wait = str(retry_after or details.get("retryAfterSeconds") or "")
    advice = ""
    if failure is Failure.BUDGET:
        said = f"{said}: {budget.rstrip('.')}"
    elif status == 401:
        advice = " Renew the token, or check the kubeconfig's user."
    elif failure is Failure.FORBIDDEN and " cannot " in said:  # else a quota or a webhook said no
        resource, _, group = question.resource.partition(".")
        advice = f" Grant the verb `{question.verb}` on `{resource}` of API group {group or 'core'!r}."
    named = _BUDGET_NAME.search(budget)
    return WriteError(
        failure,
        f"Could not {question.verb} {question.what}: the API server answered {status} ({said}).{advice}",
        verb=question.verb,
        resource=question.resource,
        budget=named[1] if named else "",
        retry_after_seconds=float(wait) if wait.isdecimal() else None,
        status=status,
    )


def _failure(status: int, budget: bool, said: str) -> Failure:
    if status == 429:
        return Failure.BUDGET if budget else Failure.THROTTLED
    if status == 500 and "more than one PodDisruptionBudget" in said:
        return Failure.INVALID  # the Eviction API never takes such a Pod, and calls that an internal error
    if status >= 500:
        return Failure.UNSURE
    known = {401: Failure.FORBIDDEN, 403: Failure.FORBIDDEN, 404: Failure.NOT_FOUND, 410: Failure.NOT_FOUND}
    return Failure.CONFLICT if status == 409 else known.get(status, Failure.INVALID)
