"""A small API server over real HTTP: paged lists, discovery, and the ways in which a real one fails."""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kubernetes.client import ApiClient, Configuration

from parts.http_server import QuietHandler, served


@dataclass
class Request:
    path: str
    query: dict[str, str]
    headers: dict[str, str]


@dataclass
class Answer:
    """What to send instead of a list. `body`: text as it is. close_after: cut the connection after so many bytes.

    stream: in the place of a body, pieces to be sent as they come; it ends in order unless `cut`.
    """

    status: int = 200
    body: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    delay_seconds: float = 0.0
    close_after: int | None = None
    stream: Iterable[bytes] | None = None
    cut: bool = False


def status(code: int, message: str, **headers: str) -> Answer:
    """A refusal as the API server words it."""
    return Answer(code, json.dumps({"kind": "Status", "apiVersion": "v1", "message": message, "code": code}), headers)


def quiet(seconds: float) -> Iterator[bytes]:
    """A watch in which nothing happens."""
    time.sleep(seconds)
    yield from ()


Trouble = Callable[[Request], Answer | None]


@dataclass
class ApiServer:
    """lists: URL path of a list → its objects. resource_version: of every list.

    trouble: looked at first; None lets the list answer, and a watch be quiet.
    """

    lists: dict[str, list[dict[str, Any]]]
    trouble: Trouble = lambda _: None
    discovery: bool = True
    honour_limit: bool = True
    resource_version: str = "1"
    url: str = ""
    requests: list[Request] = field(default_factory=list)

    def asked(self, path: str) -> list[Request]:
        return [request for request in self.requests if request.path == path]

    def answer(self, request: Request) -> Answer:
        self.requests.append(request)
        told = self.trouble(request)
        if told is not None:
            return told
        if request.path == "/apis":
            return self._groups() if self.discovery else status(403, "discovery is forbidden")
        if request.path not in self.lists:
            return status(404, "the server could not find the requested resource")
        if "watch" in request.query:
            return Answer(stream=quiet(float(request.query["timeoutSeconds"])))
        return Answer(200, json.dumps(self._page(request)))

    def _page(self, request: Request) -> dict[str, Any]:
        items = self.lists[request.path]
        if "continue" in request.query and "resourceVersion" in request.query:
            raise AssertionError("resourceVersion is not allowed with continue")
        start = int(request.query.get("continue", "0"))
        limit = int(request.query.get("limit", "0")) if self.honour_limit else 0
        stop = min(start + limit, len(items)) if limit else len(items)
        found = items[start:stop]
        if "PartialObjectMetadataList" in request.headers.get("Accept", ""):
            found = [{"metadata": item["metadata"]} for item in found]
        meta = {"resourceVersion": self.resource_version, **({"continue": str(stop)} if stop < len(items) else {})}
        # The items of a typed list carry neither kind nor apiVersion.
        stripped = [{key: value for key, value in item.items() if key not in ("kind", "apiVersion")} for item in found]
        return {"kind": "SomeList", "apiVersion": "v1", "metadata": meta, "items": stripped}

    def _groups(self) -> Answer:
        groups: dict[str, list[dict[str, str]]] = {}
        for path in self.lists:
            parts = path.split("/")
            if parts[1] == "apis":
                groups.setdefault(parts[2], []).append({"groupVersion": f"{parts[2]}/{parts[3]}", "version": parts[3]})
        return Answer(
            200, json.dumps({"groups": [{"name": name, "versions": found} for name, found in groups.items()]})
        )


@contextmanager
def serving(server: ApiServer) -> Iterator[ApiServer]:
    """The server on a free port of loopback, until the block ends."""

    class Handler(QuietHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else every answer waits 40 ms for an acknowledgement

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(parts.query).items()}
            answer = server.answer(Request(parts.path, query, dict(self.headers.items())))
            time.sleep(answer.delay_seconds)
            body = answer.body.encode(errors="surrogateescape")
            if answer.stream is not None:
                with suppress(BrokenPipeError, ConnectionResetError):
                    self._stream(answer)
                return
            try:
                self.send_response(answer.status)
                for key, value in answer.headers.items():
                    self.send_header(key.replace("_", "-"), value)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: answer.close_after])
            except (BrokenPipeError, ConnectionResetError):
                return  # a client that timed out is gone
            self.close_connection = answer.close_after is not None

        def _stream(self, answer: Answer) -> None:
            self.send_response(answer.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for piece in answer.stream or ():
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            if answer.cut:
                self.close_connection = True
            else:
                self.wfile.write(b"0\r\n\r\n")

    with served(Handler) as server.url:
        yield server


def client_of(url: str, **settings: Any) -> ApiClient:
    """One that tries nothing again."""
    configuration = Configuration(host=url, **settings)
    configuration.retries = False
    return ApiClient(configuration)
