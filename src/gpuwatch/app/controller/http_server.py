"""/healthz, /readyz, /metrics and the pages, served from threads of their own, so that a hanging job is noticed."""

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from gpuwatch.app.controller.pages import Pages
from gpuwatch.say.templating import POLICY, SCRIPT_HASH

Complaints = Callable[[], list[str]]
"""Current problems, a sentence each; empty if there are none."""

_TIMEOUT_SECONDS = 10
_PLAIN = "text/plain; charset=utf-8"
_CLOSED: Mapping[str, str] = {
    # The weekly report's script alone may run; the other pages forbid it by a policy of their own.
    "Content-Security-Policy": f"{POLICY}; frame-ancestors 'none'; script-src '{SCRIPT_HASH}'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""Headers of pages: they contain names from the cluster, so nothing of theirs may run or be requested."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 32
    healthy: Complaints
    ready: Complaints
    registry: CollectorRegistry
    pages: Pages | None

    def __init__(self, address: str, port: int) -> None:
        if ":" in address or (not address and socket.has_dualstack_ipv6()):
            self.address_family = socket.AF_INET6
        super().__init__((address, port), _Handler)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _TIMEOUT_SECONDS
    server_version = "gpuwatch"
    sys_version = ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        match path:
            case "/healthz":
                self._say(self.server.healthy())
            case "/readyz":
                self._say(self.server.ready())
            case "/metrics":
                encode, content_type = choose_encoder(self.headers.get("Accept", ""))
                self._answer(200, content_type, encode(self.server.registry))
            case _:
                page = self.server.pages.answer(path) if self.server.pages is not None else None
                if page is not None:
                    self._answer(200, page.content_type, page.body, _CLOSED)
                else:
                    there = "/, /reports/, /healthz" if self.server.pages is not None else "/healthz"
                    self._answer(404, _PLAIN, f"There are {there}, /readyz and /metrics.\n".encode())

    do_HEAD = do_GET  # noqa: N815 - the name that the standard library looks for

    def _say(self, complaints: list[str]) -> None:
        text = "\n".join(complaints) if complaints else "ok"
        self._answer(503 if complaints else 200, _PLAIN, f"{text}\n".encode())

    def _answer(self, status: int, content_type: str, body: bytes, headers: Mapping[str, str] = {}) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing: probes come every few seconds."""


@contextmanager
def serving(
    address: str,
    port: int,
    healthy: Complaints,
    ready: Complaints,
    registry: CollectorRegistry,
    pages: Pages | None = None,
) -> Iterator[int]:
    """Serve until the block ends; yields the port. address: '' for all. Raises OSError if the port cannot be bound."""
    with _Server(address, port) as server:
        server.healthy, server.ready, server.registry, server.pages = healthy, ready, registry, pages
        thread = threading.Thread(target=server.serve_forever, name="http", daemon=True)
        thread.start()
        try:
            yield int(server.server_address[1])
        finally:
            server.shutdown()
            thread.join()
