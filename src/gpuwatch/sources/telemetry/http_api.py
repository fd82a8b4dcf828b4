"""The Prometheus HTTP API: requests with credentials and retries, and answers decoded in little memory.
`prometheus_api_client` builds the requests; its own session has no POST bodies, warnings or kinds of exceptions."""

import logging
import os
import random
from array import array
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal

import msgspec
import requests
import urllib3
from prometheus_api_client import PrometheusConnect
from requests.adapters import BaseAdapter, HTTPAdapter
from requests.auth import AuthBase, HTTPBasicAuth
from requests.utils import get_environ_proxies
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt

from gpuwatch.facts.model.plain_text import plain, plain_key
from gpuwatch.sources.telemetry.connection import Connection
from gpuwatch.sources.telemetry.http_errors import Envelope, Failed, failure_of_request, outcome_of_answer
from gpuwatch.sources.telemetry.samples import (
    AnswerRow,
    QueryFailed,
    QueryTooLarge,
    Series,
    StoreRefused,
    TelemetryError,
)

_log = logging.getLogger(__name__)
_CONNECT_SECONDS = 10.0
_GRACE_SECONDS = 5.0
BACKOFF_SECONDS = 0.5
"""Before the second attempt; doubled before each further one."""
RETRY_MAX_SECONDS = 30.0
"""The longest wait; a Retry-After is honoured up to it: a cycle begins each minute, and does without the answer."""
_MOST_BYTES = 64 << 20
"""Of one answer: twice the rows of `MOST_SERIES` devices. A larger query is divided by Node, or fails."""
_KEPT_REASONS = 100
_KEPT_LABELS = 200_000
_IS_PARTIAL = "vmselect marked its answer as partial: a vmstorage node did not answer."


def connect(connection: Connection, answers: "Answers") -> PrometheusConnect:
    """A client whose queries return lists of AnswerRow or Series. The session does the retries."""
    return PrometheusConnect(url=connection.url, session=answers, method="POST")


class ApiSession(requests.Session):
    """HTTP session with one server; thread-safe. Raises TelemetryError where a file of the connection is missing.

    It keeps nothing of an answer but label sets, which many answers repeat: what one answer lacks says nothing about
    the next (`Answers`).
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection
        self.place = f"Prometheus at {connection.url}"
        self._posts = True
        self._labels: dict[bytes, Mapping[str, str]] = {}
        no_retries = urllib3.Retry(0, redirect=False, respect_retry_after_header=False)
        self.mount(connection.url, HTTPAdapter(max_retries=no_retries))
        # requests would read credentials from ~/.netrc. Proxies and the CA bundle still come from the environment.
        self.trust_env = False
        self.proxies.update(get_environ_proxies(connection.url))
        self.verify = _authorities(connection)
        self.cert = _client_certificate(connection)
        self.auth = _authentication(connection)
        # Compression takes a seventh of the server's time. For a slow network, set this header in the settings.
        self.headers["Accept-Encoding"] = "identity"
        self.headers.update(connection.headers)

    def request(  # type: ignore[override]
        self, method: str, url: str, params: Mapping[str, Any] | None = None, **options: Any
    ) -> "DecodedResponse":
        """One query, retried where another attempt may succeed. Raises TelemetryError."""
        tries = Retrying(
            stop=stop_after_attempt(self._connection.retries + 1),
            wait=self._pause,
            before_sleep=self._log_retry,
            retry=retry_if_exception(lambda error: isinstance(error, Failed) and error.again),
            reraise=True,
        )
        try:
            # Not `tries(self._ask, …)`, which keeps the answer in memory until the garbage collector runs.
            for attempt in tries:
                with attempt:
                    answer = self._ask(method, url, params or {}, options)
        except Failed as failure:
            raise failure.error from None
        return answer

    def _pause(self, state: RetryCallState) -> float:
        pause = BACKOFF_SECONDS * 2.0 ** (state.attempt_number - 1) * random.uniform(0.75, 1.25)  # noqa: S311
        failure = state.outcome.exception() if state.outcome else None
        wanted = failure.wait_seconds if isinstance(failure, Failed) else 0.0
        return min(max(pause, wanted), RETRY_MAX_SECONDS)

    def _log_retry(self, state: RetryCallState) -> None:
        failure = state.outcome.exception() if state.outcome else None
        tries, pause = self._connection.retries + 1, state.upcoming_sleep
        _log.info("%s; attempt %d of %d in %.1f s", failure, state.attempt_number + 1, tries, pause)

    def _ask(self, method: str, url: str, params: Mapping[str, Any], options: Mapping[str, Any]) -> "DecodedResponse":
        """One attempt. Raises Failed; StoreRefused where a file of the connection is unusable."""
        asked = str(params.get("query") or url.removeprefix(self._connection.url))
        timeout = self._connection.timeout_seconds
        sent = {**options, "timeout": (min(_CONNECT_SECONDS, timeout), timeout + _GRACE_SECONDS)}
        posts = method == "POST" and self._posts
        # A proxy may limit the length of URLs; a query with the names of a hundred Nodes needs a body.
        sent |= {"data": params} if posts else {"params": params}
        try:
            response = super().request("POST" if posts else "GET", url, allow_redirects=False, stream=True, **sent)
            self._read(response, asked)
        except requests.RequestException as error:
            raise failure_of_request(error, self.place, asked, timeout) from error
        except OSError as error:
            # requests passes on OpenSSL's OSError about certificate files.
            raise StoreRefused(f"{self.place}: ca_file, cert_file or key_file cannot be used: {error}") from error
        if response.status_code == 405 and posts:
            self._posts = False
            return self._ask(method, url, params, options)
        vector = self._vector(response) if response.status_code == HTTPStatus.OK else None
        if vector is not None:
            return vector
        outcome = outcome_of_answer(response, self.place, asked)
        if isinstance(outcome, Failed):
            raise self._without_secrets(outcome)
        lacks, date = _lacks(outcome), response.headers.get("Date", "")
        try:
            if url.endswith("/rules"):
                groups = _RULES.decode(outcome.data)["groups"] or []
                rules = [plain_key(str(rule["name"])) for group in groups for rule in group.get("rules") or []]
                return DecodedResponse(rules, lacks, date)
            names = "/label/" in url
            found = (_NAMES.decode(outcome.data) or []) if names else self._decoded(outcome)
            return DecodedResponse(found, lacks, date)
        except (msgspec.MsgspecError, KeyError) as error:
            message = f"{self.place}: the answer is not of the Prometheus API ({error}); check the url. Asked: {asked}"
            raise Failed(QueryFailed(message)) from error

    def _read(self, response: requests.Response, asked: str) -> None:
        """The body, up to a limit: what is invented must not take the memory in which changes are undone."""
        body = bytearray()
        with response:
            for chunk in response.iter_content(1 << 16):
                body += chunk
                if len(body) > _MOST_BYTES:
                    message = f"{self.place}: the answer has more than {_MOST_BYTES >> 20} MiB; ask for less at once. "
                    raise Failed(QueryTooLarge(f"{message}Asked: {asked[:300]}"))
        response._content = bytes(body)

    def _vector(self, response: requests.Response) -> "DecodedResponse | None":
        known = self._labels.get
        try:
            answer = _VECTOR.decode(response.content)
            rows = [
                AnswerRow(known(text := bytes(item.metric)) or self._shared_labels(text), float(item.value[1]))
                for item in answer.data.result
                if item.value is not None
            ]
        except (msgspec.MsgspecError, ValueError):
            return None
        return DecodedResponse({"result": rows}, _lacks(answer), response.headers.get("Date", ""))

    def _decoded(self, envelope: Envelope) -> dict[str, Any]:
        result = _RESULT.decode(envelope.data)
        if result.resultType == "matrix":
            # One series at a time: samples as Python objects take ten times the memory of the array.
            return {"result": [self._series(_MATRIX_ITEM.decode(raw)) for raw in _RAW_ITEMS.decode(result.result)]}
        _, value = _SCALAR.decode(result.result)
        return {"result": [AnswerRow({}, float(value))]}

    def _series(self, item: "_MatrixItem") -> Series:
        times = array("d", [seconds for seconds, _ in item.values])
        values = array("d", [float(value) for _, value in item.values])
        text = bytes(item.metric)
        return Series(self._labels.get(text) or self._shared_labels(text), times, values)

    def _shared_labels(self, text: bytes) -> Mapping[str, str]:
        """Without the metric's name, as plain keys. Equal labels share one object, as each answer repeats them."""
        labels = {name: plain_key(value) for name, value in _LABELS.decode(text).items() if name != "__name__"}
        if len(self._labels) > _KEPT_LABELS:
            self._labels.clear()
        return self._labels.setdefault(text, labels)

    def _without_secrets(self, failure: Failed) -> Failed:
        """Servers and proxies may echo credentials."""
        message = hidden = str(failure.error)
        for secret in self._connection.secrets:
            hidden = hidden.replace(secret, "***")
        if hidden == message:
            return failure
        return Failed(type(failure.error)(hidden), failure.again, failure.wait_seconds)


class DecodedResponse:
    """Stands in for the response that PrometheusConnect expects. lacks: why data may be missing from it. date: its Date
    header."""

    status_code = 200

    def __init__(self, data: list[str] | dict[str, Any], lacks: tuple[str, ...], date: str) -> None:
        self._data = data
        self.lacks = lacks
        self.date = date

    def json(self) -> dict[str, Any]:
        return {"data": self._data}


class Answers:
    """The answers of one read, over a session that other reads use at the same time; thread-safe.

    lacks: why data may be missing from them, each reason once.
    """

    def __init__(self, session: ApiSession) -> None:
        self._session = session
        self.verify, self.cert = session.verify, session.cert
        self.lacks: dict[str, None] = {}

    def mount(self, prefix: str, adapter: BaseAdapter) -> None:
        """Nothing: the session keeps its connections."""

    def request(self, method: str, url: str, params: Mapping[str, Any], **options: Any) -> DecodedResponse:
        """`ApiSession.request`, and keeps what the answer lacks. Raises TelemetryError."""
        answer = self._session.request(method, url, params, **options)
        for reason in answer.lacks:
            if reason not in self.lacks and len(self.lacks) < _KEPT_REASONS:
                self.lacks[reason] = None
                _log.warning("%s answered in part: %s", self._session.place, reason)
        return answer


def _lacks(answer: "Envelope | _VectorAnswer") -> tuple[str, ...]:
    """Why data may be missing from a successful answer.

    `warnings`: Thanos names the stores that did not answer, Cortex says that the result may be partial where its limit
    query_partial_data allows that, and Prometheus names a remote read that failed. Remarks on the query itself come as
    `infos`, or before Prometheus 3 as warnings that begin with "PromQL info:"; they are no sign of missing data.
    `isPartial`: VictoriaMetrics cluster, in each answer of vmselect while a vmstorage node is unavailable, unless
    -search.denyPartialResponse is set (docs.victoriametrics.com, Cluster version, "Cluster availability").
    Mimir has no such answers: it fails the query (err-mimir-store-consistency-check-failed).
    """
    said = [plain(warning) for warning in answer.warnings or () if not warning.startswith("PromQL info:")]
    return (*said, *([_IS_PARTIAL] if answer.isPartial else []))


class _Bearer(AuthBase):
    def __init__(self, place: str, token: str, file: str) -> None:
        self.place, self._token, self._file = place, token, file

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        token = self._token
        if self._file:
            try:
                token = Path(self._file).read_text(encoding="ascii").strip()
            except (OSError, UnicodeDecodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else "it is not ASCII text"
                message = f"{self.place}: bearer_token_file {self._file} cannot be read: {reason}"
                raise StoreRefused(message) from None
            if not token or not token.isprintable():
                raise StoreRefused(f"{self.place}: bearer_token_file {self._file} does not hold one line with a token")
        request.headers["Authorization"] = f"Bearer {token}"
        return request


def _authentication(connection: Connection) -> AuthBase | None:
    if connection.username:
        # As UTF-8 bytes: requests would encode text as Latin-1.
        return HTTPBasicAuth(connection.username.encode(), connection.password.encode())
    if connection.bearer_token or connection.bearer_token_file:
        place = f"Prometheus at {connection.url}"
        return _Bearer(place, connection.bearer_token, connection.bearer_token_file)
    return None


def _authorities(connection: Connection) -> str | bool:
    if connection.insecure_skip_verify:
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        _log.warning("insecure_skip_verify: the identity of Prometheus at %s is not verified", connection.url)
        return False
    if connection.ca_file:
        return _existing("ca_file", connection.ca_file)
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        if os.environ.get(name):
            return _existing(name, os.environ[name])
    return True


def _client_certificate(connection: Connection) -> str | tuple[str, str] | None:
    if not connection.cert_file:
        return None
    certificate = _existing("cert_file", connection.cert_file)
    return (certificate, _existing("key_file", connection.key_file)) if connection.key_file else certificate


def _existing(name: str, path: str) -> str:
    if not Path(path).exists():
        raise TelemetryError(f"{name}: there is no {path}")
    return path


class _VectorItem(msgspec.Struct, gc=False):
    metric: msgspec.Raw
    value: tuple[float, str] | None = None  # a native histogram has none


class _Vector(msgspec.Struct):
    resultType: Literal["vector"]  # noqa: N815
    result: list[_VectorItem]


class _VectorAnswer(msgspec.Struct):
    status: Literal["success"]
    data: _Vector
    warnings: list[str] | None = None
    isPartial: bool = False  # noqa: N815


class _MatrixItem(msgspec.Struct):
    metric: msgspec.Raw
    values: list[tuple[float, str]] = []


class _RawResult(msgspec.Struct):
    resultType: str  # noqa: N815
    result: msgspec.Raw


_RULES = msgspec.json.Decoder(dict[str, list[dict[str, Any]] | None])
_RESULT = msgspec.json.Decoder(_RawResult)
_VECTOR = msgspec.json.Decoder(_VectorAnswer)
_LABELS = msgspec.json.Decoder(dict[str, str])
_RAW_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])
_MATRIX_ITEM = msgspec.json.Decoder(_MatrixItem)
_SCALAR = msgspec.json.Decoder(tuple[float, str])
_NAMES = msgspec.json.Decoder(list[str] | None)  # Thanos: null where there are none
