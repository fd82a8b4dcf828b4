"""Paged lists as raw bytes over the official client, with bounded retries and explained errors."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
import urllib3
from kubernetes.client import ApiClient, ApiException
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt

from gpuwatch.facts.frameworks.framework import Kind
from gpuwatch.facts.model.plain_text import plain, plain_json
from gpuwatch.facts.model.telemetry import Gap, GapKind
from gpuwatch.sources.kube import wire
from gpuwatch.sources.kube.decode import UNDECODABLE, BadObjects, Listing, Take, take_all
from gpuwatch.sources.kube.writer import grant

T = TypeVar("T")

JSON = "application/json"
_METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
_page = msgspec.json.Decoder(wire.WirePage)
_groups = msgspec.json.Decoder(wire.ApiGroups)
_status = msgspec.json.Decoder(wire.WireStatus)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of requests.

    page_size: objects per page.
    attempts: tries of a request that gets 429, 5xx or no answer.
    backoff_seconds: pause before the second try, doubled for each further one, unless the server names one.
    longest_pause_seconds: bound of any pause.
    restarts: how often a list that expired between pages (410) is restarted.
    """

    page_size: int = 500
    connect_timeout_seconds: float = 5.0
    read_timeout_seconds: float = 60.0
    attempts: int = 4
    backoff_seconds: float = 0.5
    longest_pause_seconds: float = 15.0
    restarts: int = 3


DEFAULT_LIMITS = Limits()


class ListError(Exception):
    """A request failed after all retries. `kind` and `detail` are those of the Gap."""

    def __init__(self, kind: GapKind, detail: str, status: int = 0) -> None:
        self.kind = kind
        self.detail = plain(detail)
        super().__init__(self.detail)
        self.status = status


class Lists:
    """The lists of one read of a cluster."""

    def __init__(self, client: ApiClient, limits: Limits) -> None:
        self._client = client
        self._limits = limits
        self._asked = False
        self._failure: ListError | None = None
        self._served: dict[str, list[str]] | None = None
        self._lost = False

    def objects(self, kind: Kind, take: Take[T], version: str = "") -> Listing[T]:
        """All objects of the kind, page by page; only what `take` returns stays in memory. Raises ListError when the
        first request finds the server unreachable or the credentials refused."""
        self.discover()
        try:
            for candidate in self._versions(kind, version):
                try:
                    return self._whole(kind, candidate, take)
                except ListError as error:
                    if error.status != 404:
                        raise
        except ListError as error:
            return Listing(failure=Gap(kind=error.kind, what=kind.resource, detail=error.detail))
        detail = f"The cluster does not serve {kind.kind} of {kind.group or 'the core group'}."
        return Listing(failure=Gap(kind=GapKind.NOT_SERVED, what=kind.resource, detail=detail))

    def exactly(self, kind: Kind, version: str, take: Take[T], resource_version: str) -> Listing[T]:
        """All objects at that resourceVersion. Raises ListError, with status 410 when it has expired."""
        self.discover()
        return self._pages(kind, version, take, {"resourceVersion": resource_version, "resourceVersionMatch": "Exact"})

    def discover(self) -> None:
        """Reads once which API groups and versions are served. Without a usable answer, the lists try versions. Raises
        ListError when the server is unreachable or refuses the credentials."""
        if not self._asked:
            self._asked = True
            try:
                groups = _groups.decode(self._get("/apis", {}, JSON)).groups
            except UNDECODABLE:
                return
            except ListError as error:
                if error.kind is GapKind.UNREACHABLE or error.status == 401:
                    self._failure = error
            else:
                self._served = {group.name: [item.get("version", "") for item in group.versions] for group in groups}
        if self._failure is not None:
            raise self._failure

    def _versions(self, kind: Kind, version: str) -> list[str]:
        """Versions to try: first those whose fields are known, then others that are served."""
        known = list(dict.fromkeys(item for item in (version, *kind.versions) if item))
        if self._served is None or not kind.group:
            return known if kind.group else list(kind.versions)
        served = self._served.get(kind.group, [])
        return [*(item for item in known if item in served), *(item for item in served if item not in known)]

    def _whole(self, kind: Kind, version: str, take: Take[T]) -> Listing[T]:
        """Again from its first page where it expires between two (410)."""
        for _ in range(self._limits.restarts):
            try:
                return self._pages(kind, version, take)
            except ListError as error:
                if error.status != 410:
                    raise
        return self._pages(kind, version, take)

    def _pages(self, kind: Kind, version: str, take: Take[T], moment: Mapping[str, str] | None = None) -> Listing[T]:
        accept = _METADATA if kind.metadata_only else JSON
        found: list[T] = []
        bad = BadObjects()
        number = 0
        # No resourceVersion: with 0 the server answers from its cache and ignores the limit (Kubernetes 1.36: 6,000
        # Pods of 8 kB took 156 MB and 0.93 s instead of 60 MB and 0.77 s).
        params: dict[str, str] = {"limit": str(self._limits.page_size), **(moment or {})}
        resource_version = ""
        while True:
            try:
                page = _page.decode(self._get(kind.path(version), params, accept, kind))
            except UNDECODABLE as error:
                detail = f"The answer is not a list in JSON ({error}); is there a proxy in front of the API server?"
                raise ListError(GapKind.QUERY_FAILED, detail) from error
            number += 1
            items = page.items or ()
            take_all(((raw, f"page {number}") for raw in items), take, found, bad)
            meta = page.metadata or wire.PageMetadata()
            resource_version = resource_version or meta.resource_version
            token = meta.continue_
            if not token:
                return Listing(found, None, bad.gaps(kind.resource), frozenset(bad.places), version, resource_version)
            params = {"limit": str(self._limits.page_size), "continue": token}

    def _get(self, path: str, params: dict[str, str], accept: str, kind: Kind | None = None) -> bytes:
        """The body of a successful answer, of plain texts. Raises ListError after the last attempt."""
        # After the server was unreachable once, the read's other lists do not retry.
        attempts = 1 if self._lost else self._limits.attempts
        timeout = (self._limits.connect_timeout_seconds, self._limits.read_timeout_seconds)
        tries = Retrying(
            stop=stop_after_attempt(attempts), wait=self._pause, retry=retry_if_exception(_transient), reraise=True
        )
        try:
            # `tries(ask, …)` would keep the page in memory until the garbage collector breaks a reference cycle.
            for attempt in tries:
                with attempt:
                    body = bytes(ask(self._client, path, params, timeout, accept=accept).read())
        except ApiException as error:
            raise explained(error, kind) from error
        except urllib3.exceptions.HTTPError as error:
            self._lost = True
            detail = f"No answer from {address(self._client)}: {cause_of(error)}."
            raise ListError(GapKind.UNREACHABLE, detail) from error
        return plain_json(body)

    def _pause(self, state: RetryCallState) -> float:
        """Seconds before the next try."""
        error = state.outcome.exception() if state.outcome else None
        wanted = retry_after(error) if isinstance(error, ApiException) else None
        if wanted is None:
            wanted = self._limits.backoff_seconds * 2.0 ** (state.attempt_number - 1)
        return min(wanted, self._limits.longest_pause_seconds)


def _transient(error: BaseException) -> bool:
    if isinstance(error, ApiException):
        return error.status == 429 or (error.status or 0) >= 500
    return isinstance(error, urllib3.exceptions.HTTPError)


def ask(
    client: ApiClient,
    path: str,
    params: Mapping[str, str],
    timeout: tuple[float, float],
    *,
    method: str = "GET",
    accept: str = JSON,
    body: object = None,
    media_type: str = JSON,
) -> Any:
    """Sends one request. Returns the client's RESTResponse with its body unread. timeout: seconds to connect, and
    between two reads. media_type: of the body. Raises ApiException for any status but 2xx, and urllib3's HTTPError
    without an answer."""
    untyped: Any = client
    request = untyped.param_serialize(
        method,
        path,
        query_params=list(params.items()),
        header_params={"Accept": accept, **({} if body is None else {"Content-Type": media_type})},
        body=body,
        auth_settings=["BearerToken"],
    )
    try:
        answer = untyped.call_api(*request, _request_timeout=timeout)
    except ApiException as error:
        # The client wraps a broken TLS connection.
        cause = error.__context__
        if not error.status and isinstance(cause, urllib3.exceptions.HTTPError):
            raise cause from error
        raise
    if not 200 <= answer.status <= 299:
        content = answer.read().decode("utf-8", "replace")
        raise ApiException.from_response(http_resp=answer, body=content, data=None)
    return answer


def address(client: ApiClient) -> str:
    """Address of the API server, without secrets."""
    parts = urlsplit(str(client.configuration.host))
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def cause_of(error: BaseException) -> str:
    """The innermost reason, without urllib3's pool objects."""
    reason = getattr(error, "reason", None)
    text = str(reason if isinstance(reason, BaseException) else error)
    return text.rpartition(">: ")[2] or type(error).__name__


def retry_after(error: ApiException) -> float | None:
    """Seconds."""
    value = (error.headers or {}).get("Retry-After", "")
    return float(value) if value.isdecimal() else None


def decoded_status(body: str | msgspec.Raw) -> wire.WireStatus:
    """The server's reason for a refusal, empty when it cannot be decoded."""
    try:
        return _status.decode(body)
    except UNDECODABLE:
        return wire.WireStatus()


def explained(error: ApiException, kind: Kind | None, verb: str = "list") -> ListError:
    """The refusal in plain words, with what to do about it."""
    status = int(error.status or 0)
    said = decoded_status(error.body or "{}").message or str(error.reason or "no reason given")
    if status == 401:
        detail = f"The credentials are not accepted ({said}): renew the token, or check the kubeconfig's user."
        return ListError(GapKind.REFUSED, detail, status)
    if status == 403:
        advice = f" {grant(verb, kind.resource)} in all Namespaces with a ClusterRole." if kind is not None else ""
        return ListError(GapKind.REFUSED, f"Not allowed ({said}).{advice}", status)
    return ListError(GapKind.QUERY_FAILED, f"The API server answered {status} ({said}).", status)
