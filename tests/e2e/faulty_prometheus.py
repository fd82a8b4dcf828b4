"""A door in front of a Prometheus that fails in the ways in which a Prometheus fails, and is well again."""

import contextlib
import json
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from parts.processes import free_port


class Fault(StrEnum):
    """NONE: every answer is passed on. GONE: nobody listens on the port. LATE: the answer comes after `late_seconds`.
    EMPTY: 200, and no series. HALF: 200, and no series of what is `lost`, now or ever. PART: 200, all series, and a
    warning that some may be missing, as Thanos gives while a store does not answer."""

    NONE = "none"
    GONE = "gone"
    LATE = "late"
    EMPTY = "empty"
    HALF = "half"
    PART = "part"


class FaultyPrometheus:
    """Hands every question on to `upstream`; `turn` says how it fails from the next question on.

    late_seconds: longer than whoever asks waits. lost: values of labels (a host, a GPU's UUID) by which a series of the
    lost half is known. answered: answers so far, by the fault that they were given under.
    """

    def __init__(self, upstream: str, late_seconds: float) -> None:
        self._upstream = upstream
        self._late_seconds = late_seconds
        self._well_again = threading.Event()
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None
        self._port = free_port()  # and back on it, after it was gone
        self.fault = Fault.NONE
        self.lost: frozenset[str] = frozenset()
        self.answered: Counter[Fault] = Counter()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def turn(self, fault: Fault) -> None:
        self.fault = fault
        self._well_again.set()
        if fault is Fault.GONE:
            self.close()
            return
        self._well_again = threading.Event()
        if self._server is None:
            self._open()

    def close(self) -> None:
        self._well_again.set()
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
            self._server = None

    def _open(self) -> None:
        door = self

        class Handler(BaseHTTPRequestHandler):
            """HTTP/1.0: no connection outlives its answer, so that a fault holds from the next question on."""

            def do_GET(self) -> None:
                door.answer(self)

            do_POST = do_GET  # noqa: N815 - the name that the standard library looks for

            def log_message(self, format: str, *args: object) -> None:
                """Nothing: what was answered is counted."""

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def answer(self, asked: BaseHTTPRequestHandler) -> None:
        fault, well_again = self.fault, self._well_again
        body = asked.rfile.read(int(asked.headers.get("Content-Length", 0)))
        if fault is Fault.LATE:
            well_again.wait(self._late_seconds)
        status, content = self._passed_on(asked, body)
        if status == 200 and fault in (Fault.EMPTY, Fault.HALF):
            content = self._without(content, everything=fault is Fault.EMPTY)
        if status == 200 and fault is Fault.PART:
            content = json.dumps({**json.loads(content), "warnings": ["store-3 did not answer."]}).encode()
        self.answered[fault] += 1
        with contextlib.suppress(OSError):  # who asked has given up
            asked.send_response(status)
            asked.send_header("Content-Type", "application/json")
            asked.send_header("Content-Length", str(len(content)))
            asked.end_headers()
            asked.wfile.write(content)

    def _passed_on(self, asked: BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes]:
        kind = {"Content-Type": asked.headers["Content-Type"]} if "Content-Type" in asked.headers else {}
        url = f"{self._upstream}{asked.path}"
        request = urllib.request.Request(url, data=body or None, headers=kind, method=asked.command)
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as found:
                return found.status, found.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def _without(self, content: bytes, *, everything: bool) -> bytes:
        """The answer without what is lost. Of a half, lists of names stay as they are: the other half has the same."""
        told: dict[str, Any] = json.loads(content)
        data = told.get("data")
        if isinstance(data, dict) and isinstance(data.get("result"), list) and data.get("resultType") != "scalar":
            data["result"] = [
                series
                for series in data["result"]
                if not everything and self.lost.isdisjoint(series.get("metric", {}).values())
            ]
        elif isinstance(data, list) and everything:  # of names
            told["data"] = []
        return json.dumps(told).encode()


@contextlib.contextmanager
def faulty(upstream: str, late_seconds: float) -> Iterator[FaultyPrometheus]:
    """Well until it is told otherwise."""
    door = FaultyPrometheus(upstream, late_seconds)
    door.turn(Fault.NONE)
    try:
        yield door
    finally:
        door.close()
