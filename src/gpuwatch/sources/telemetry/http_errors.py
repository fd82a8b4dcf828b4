"""Turns a failed answer of the API into a TelemetryError, and says whether a retry may succeed.

The texts of limits are those of Prometheus (promql/engine.go), Thanos (pkg/store/limiter.go, bucket.go), Mimir and
Cortex (their runbooks' err-mimir-… identifiers and the older texts) and VictoriaMetrics (lib/storage, app/vmselect).
"""

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.client import responses
from urllib.parse import urlsplit, urlunsplit

import msgspec
import requests
from urllib3 import Retry
from urllib3.exceptions import HTTPError, InvalidHeader

from gpuwatch.sources.telemetry.samples import (
    QueryFailed,
    QueryTooLarge,
    StoreRefused,
    StoreUnreachable,
    TelemetryError,
)

_LIMITS = re.compile(
    r"too many samples"
    r"|exceeded (series|chunks|samples|bytes) limit|limit \S+ violated|resourceexhausted"
    r"|err-mimir-max-(chunks|series|estimated|query-expression)\S*"
    r"|(exceeded|hit) the (max|maximum|aggregated) "
    r"|-search\.max(samples|uniquetimeseries|memory|querylen|responseseries)\w*"
    r"|matching timeseries exceeds|not enough memory for proc"
    r"|received message larger than max",
    re.IGNORECASE,
)
_TIMEOUTS = re.compile(r"query timed out|context deadline exceeded|-search\.maxqueryduration", re.IGNORECASE)
_SHOWN_QUERY, _SHOWN_TEXT = 300, 300


class PerhapsTooLarge(QueryTooLarge):
    """A timeout, or a 422 with an unknown text: size may be the reason."""


class TimedOut(StoreUnreachable):
    """No answer in time; smaller parts may succeed."""


class Failed(Exception):
    """again: a retry may succeed, after `wait_seconds` where the server named a time."""

    def __init__(self, error: TelemetryError, again: bool = False, wait_seconds: float = 0.0) -> None:
        super().__init__(str(error))
        self.error = error
        self.again = again
        self.wait_seconds = wait_seconds


class Envelope(msgspec.Struct):
    """The API's answer around its data."""

    status: str
    data: msgspec.Raw = msgspec.Raw(b"null")
    errorType: str = ""  # noqa: N815
    error: str = ""
    warnings: list[str] | None = None
    isPartial: bool = False  # noqa: N815 - of VictoriaMetrics cluster


_ENVELOPE = msgspec.json.Decoder(Envelope)


def outcome_of_answer(response: requests.Response, place: str, asked: str) -> Envelope | Failed:
    """The envelope of a result, or the failure. place, asked: for messages, without secrets."""
    status, content = response.status_code, response.content
    envelope = None
    with contextlib.suppress(msgspec.MsgspecError):
        envelope = _ENVELOPE.decode(content)
    if status == HTTPStatus.OK and envelope is not None and envelope.status == "success":
        return envelope
    if envelope is not None and envelope.status == "error":
        said = f"{envelope.errorType}: {envelope.error}" if envelope.errorType else envelope.error
    else:
        said = _text(content)
    about = _About(place, asked, said)
    if _LIMITS.search(said):
        return Failed(QueryTooLarge(about.says("the query exceeds a limit of the server", "ask for less at once")))
    if (envelope is not None and envelope.errorType == "timeout") or _TIMEOUTS.search(said):
        return Failed(PerhapsTooLarge(about.says("the query took too long", "raise timeout_seconds or ask for less")))
    if 300 <= status < 400:
        return Failed(_redirected(response, about))
    if status == HTTPStatus.OK:
        return _no_result(response, envelope, about)
    other = "see the server's log" if status >= 500 else "check the query and the address"
    kind, todo = _BY_STATUS.get(status, (QueryFailed, other))
    error = kind(about.says(f"answers {status} {responses.get(status, '')}".rstrip(), todo))
    again = status == 429 or status >= 500
    return Failed(error, again, _retry_after(response.headers) if again else 0.0)


@dataclass(frozen=True, slots=True)
class _About:
    place: str
    asked: str
    said: str

    def says(self, what: str, todo: str) -> str:
        said = f" (it said: {_shortened(self.said, _SHOWN_TEXT)})" if self.said else ""
        return f"{self.place}: {what}{said}; {todo}. Asked: {_shortened(self.asked, _SHOWN_QUERY)}"


_LATER = "the server or a proxy in front of it is not ready: try again later"
_BY_STATUS: Mapping[int, tuple[type[TelemetryError], str]] = {
    401: (
        StoreRefused,
        "give a bearer_token, bearer_token_file, username and password, or a client certificate that it accepts",
    ),
    403: (StoreRefused, "these credentials, or this tenant (X-Scope-OrgID), may not query here: ask for read access"),
    404: (
        QueryFailed,
        "the API is not under this address: add the path prefix (Mimir: /prometheus; VictoriaMetrics cluster: "
        "/select/<tenant>/prometheus; or the server's --web.route-prefix)",
    ),
    413: (QueryTooLarge, "a proxy on the way limits the size of requests"),
    414: (QueryTooLarge, "a proxy on the way limits the size of requests"),
    422: (PerhapsTooLarge, "check the query by hand"),
    429: (QueryFailed, "it gets too many queries: lower concurrency, or raise the tenant's limit"),
    502: (StoreUnreachable, _LATER),
    503: (StoreUnreachable, _LATER),
    504: (StoreUnreachable, _LATER),
}


def _no_result(response: requests.Response, envelope: Envelope | None, about: _About) -> Failed:
    if envelope is not None:
        return Failed(QueryFailed(about.says("the query failed", "check the query by hand")))
    if _is_html(response.content):
        todo = (
            "it may be a login page or the user interface: give credentials that the API takes, or correct the url "
            "(path prefix, port)"
        )
        return Failed(QueryFailed(about.says("answers with a web page instead of the API", todo)))
    if response.content.lstrip().startswith(b"{"):
        todo = "a proxy or the network cut it off: try again, or check them"
        cut = _About(about.place, about.asked, "")
        return Failed(QueryFailed(cut.says(f"the answer broke off after {len(response.content)} bytes", todo)), True)
    return Failed(QueryFailed(about.says("the answer is not of the Prometheus API", "check the url")))


def _redirected(response: requests.Response, about: _About) -> TelemetryError:
    target = response.headers.get("Location", "")
    parts = urlsplit(target)
    shown = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    what = f"answers {response.status_code} and redirects to {shown or 'no address'}"
    if parts.hostname and parts.hostname != urlsplit(response.url).hostname:
        todo = "another host may ask for a login: give credentials that the API takes"
        return StoreRefused(about.says(what, todo))
    return QueryFailed(about.says(what, "put that address into url if it is the server's own"))


def failure_of_request(error: requests.RequestException, place: str, asked: str, timeout_seconds: float) -> Failed:
    """The failure for a request without an answer, or with part of one."""
    about = _About(place, asked, "")
    reason = _reason(error)
    match error:
        case requests.exceptions.SSLError():
            todo = "give the authority's certificate as ca_file, the client's as cert_file and key_file"
            return Failed(StoreUnreachable(about.says(f"no TLS connection: {reason}", todo)))
        case requests.exceptions.ReadTimeout():
            todo = "raise timeout_seconds or look at the server's load"
            return Failed(TimedOut(about.says(f"no answer within {timeout_seconds:g} s", todo)))
        case requests.exceptions.ProxyError():
            todo = "check HTTP_PROXY, HTTPS_PROXY and NO_PROXY"
            return Failed(StoreUnreachable(about.says(f"the proxy refuses the connection: {reason}", todo)), again=True)
        case requests.exceptions.ChunkedEncodingError() | requests.exceptions.ContentDecodingError():
            todo = "a proxy or the network cut it off: try again, or check them"
            return Failed(QueryFailed(about.says(f"the answer broke off: {reason}", todo)), again=True)
        case requests.exceptions.ConnectionError() | requests.exceptions.Timeout():
            todo = "check the url, the network and that the server runs"
            return Failed(StoreUnreachable(about.says(f"cannot be reached: {reason}", todo)), again=True)
    return Failed(
        QueryFailed(about.says(f"the query cannot be sent: {type(error).__name__}", "check the connection's settings"))
    )


def _reason(error: BaseException) -> str:
    """The innermost cause; urllib3 wraps it in exceptions that repeat address and path."""
    inner = error.args[0] if error.args else error
    while True:
        deeper = getattr(inner, "reason", None) or next(
            (each for each in getattr(inner, "args", ()) if isinstance(each, (HTTPError, OSError))), None
        )
        if not isinstance(deeper, BaseException):
            break
        inner = deeper
    words = str(deeper) if isinstance(deeper, str) and not str(inner) else str(inner)
    return _shortened(words.rsplit("): ", 1)[-1].strip("'\" ") or type(error).__name__, _SHOWN_TEXT)


def _retry_after(headers: Mapping[str, str]) -> float:
    try:
        return float(Retry().parse_retry_after(headers.get("Retry-After", "0")))
    except InvalidHeader:
        return 0.0


def _text(content: bytes) -> str:
    """The beginning of an unexpected body in one line; the title of a web page."""
    text = content[:20_000].decode("utf-8", "replace")
    if _is_html(content):
        title = re.search(r"<title[^>]*>(.*?)</title>", text, re.IGNORECASE | re.DOTALL)
        text = f"a web page{f' titled {title[1].strip()!r}' if title else ''}"
    return " ".join(text.split())


def _is_html(content: bytes) -> bool:
    return content[:200].lstrip().lower().startswith((b"<!doctype html", b"<html", b"<head", b"<body"))


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length * 2 // 3]} … {text[-length // 3 :]}"
