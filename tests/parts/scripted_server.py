"""A small HTTP server on loopback that answers what a test tells it to, and remembers what it was asked."""

import contextlib
import itertools
import json
import ssl
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from parts.http_server import QuietHandler, served


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    headers: Mapping[str, str]  # names in lower case
    form: Mapping[str, str]  # of the body or of the address

    @property
    def query(self) -> str:
        return self.form.get("query", "")


@dataclass(frozen=True)
class Reply:
    """notified: the Content-Length where it is not the body's. pause_seconds: before anything is sent."""

    status: int = 200
    body: bytes | str = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    notified: int | None = None
    pause_seconds: float = 0.0


PROBE = "count_over_time(vector(1)[2m:1m]) * 10 + changes(vector(time())[2m:1m])"


def vector(*rows: tuple[Mapping[str, str], str], **more: object) -> Reply:
    """A successful answer of an instant query."""
    result = [{"metric": labels, "value": [0, value]} for labels, value in rows]
    data = {"resultType": "vector", "result": result}
    return Reply(body=json.dumps({"status": "success", "data": data, **more}))


def error(status: int, kind: str, text: str) -> Reply:
    """An error in the API's own shape."""
    return Reply(status, json.dumps({"status": "error", "errorType": kind, "error": text}))


def always(reply: Reply) -> Callable[[Asked], Reply]:
    """That reply to every question but the one about the server's dialect."""
    return lambda asked: Reply() if asked.query == PROBE else reply


def in_turn(*replies: Reply) -> Callable[[Asked], Reply]:
    """One reply after the other, the last for ever."""
    script = itertools.chain(replies, itertools.repeat(replies[-1]))
    return lambda asked: Reply() if asked.query == PROBE else next(script)


@dataclass
class Scripted:
    url: str
    asked: list[Asked]
    stop_waiting: threading.Event

    @property
    def queries(self) -> list[str]:
        """What was asked for, without the question about the server's dialect."""
        return [each.query for each in self.asked if each.query != PROBE]


@contextlib.contextmanager
def scripted(
    answer: Callable[[Asked], Reply], tls: ssl.SSLContext | None = None, *, everywhere: bool = False
) -> Iterator[Scripted]:
    """Serves `answer`; the question about the server's dialect is answered as by Prometheus 3, if it comes through."""
    asked: list[Asked] = []
    stop_waiting = threading.Event()

    class Handler(QuietHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            address, _, query = self.path.partition("?")
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            form = dict(urllib.parse.parse_qsl(f"{query}&{body}", keep_blank_values=True))
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Asked(self.command, address, headers, form)
            asked.append(request)
            reply = answer(request)
            if reply.status == 200 and request.query == PROBE and not reply.body:
                reply = vector(({}, "21"))
            stop_waiting.wait(reply.pause_seconds) if reply.pause_seconds else None
            content = reply.body.encode() if isinstance(reply.body, str) else reply.body
            # send_response adds a Date of its own.
            (self.send_response_only if "Date" in reply.headers else self.send_response)(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content) if reply.notified is None else reply.notified))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(content)
            self.close_connection = reply.notified is not None

        do_POST = do_GET  # noqa: N815 - the name that the standard library looks for

    with served(Handler, tls, everywhere=everywhere) as url:
        try:
            yield Scripted(url, asked, stop_waiting)
        finally:
            stop_waiting.set()
