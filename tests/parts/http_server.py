"""An HTTP server on loopback for as long as a block lasts."""

import contextlib
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class QuietHandler(BaseHTTPRequestHandler):
    """One that logs nothing."""

    def log_message(self, *_: object) -> None:
        """Quiet."""


@contextlib.contextmanager
def served(
    handler: Callable[..., Any], tls: ssl.SSLContext | None = None, *, everywhere: bool = False
) -> Iterator[str]:
    """Yields its URL. everywhere: on all loopback addresses, and all others of the machine."""
    server = ThreadingHTTPServer(("" if everywhere else "127.0.0.1", 0), handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        server.handle_error = lambda *_: None  # type: ignore[method-assign] - a client that refuses the certificate
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http{'s' * (tls is not None)}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
