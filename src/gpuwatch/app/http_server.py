"""/healthz, /readyz and /metrics, answered from threads of their own, so that a job that hangs is seen."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

Complaints = Callable[[], list[str]]
"""What is wrong now, a sentence each; nothing where all is well."""

_TIMEOUT_SECONDS = 10
_PLAIN = "text/plain; charset=utf-8"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 32

    def __init__(self, address: str, port: int, healthy: Complaints, ready: Complaints, registry: CollectorRegistry):
        self.healthy, self.ready, self.registry = healthy, ready, registry
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
                self._answer(404, _PLAIN, b"There are /healthz, /readyz and /metrics.\n")

    do_HEAD = do_GET  # noqa: N815 - the name that the standard library looks for

    def _say(self, complaints: list[str]) -> None:
        text = "\n".join(complaints) if complaints else "ok"
        self._answer(503 if complaints else 200, _PLAIN, f"{text}\n".encode())

    def _answer(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: probes come every few seconds."""


@contextmanager
def serving(
    address: str, port: int, healthy: Complaints, ready: Complaints, registry: CollectorRegistry
) -> Iterator[int]:
    """Answer until the block ends; yields the port. address: '' for all. Raises OSError where it cannot be had."""
    with _Server(address, port, healthy, ready, registry) as server:
        thread = threading.Thread(target=server.serve_forever, name="http", daemon=True)
        thread.start()
        try:
            yield int(server.server_address[1])
        finally:
            server.shutdown()
            thread.join()
