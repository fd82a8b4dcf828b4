"""Receivers for the tests of delivery: a webhook that misbehaves on demand, a mail server, an S3 server."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from aiosmtpd.controller import Controller


class Webhook(ThreadingHTTPServer):
    """Answers POSTs with the given statuses, then with 200. 0: hangs up late, after `hang_seconds`."""

    daemon_threads = True

    def __init__(self, *statuses: int, hang_seconds: float = 1.0) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.statuses = list(statuses)
        self.hang_seconds = hang_seconds
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.taken: list[str] = []  # Idempotency-Key of each that was answered with 200

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Webhook

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        status = self.server.statuses.pop(0) if self.server.statuses else 200
        self.server.bodies.append(body)
        self.server.headers.append(dict(self.headers))
        if status == 0:
            time.sleep(self.server.hang_seconds)
            self.close_connection = True
            return
        if status == 200:
            self.server.taken.append(self.headers.get("Idempotency-Key", ""))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(b"the receiver's own words")

    def log_message(self, *_: object) -> None:
        """Quiet."""


@contextmanager
def webhook(*statuses: int, hang_seconds: float = 1.0) -> Iterator[Webhook]:
    with Webhook(*statuses, hang_seconds=hang_seconds) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class _Mailbox:
    def __init__(self, answers: list[str]) -> None:
        self.answers = answers
        self.messages: list[Message] = []

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        answer = self.answers.pop(0) if self.answers else "250 taken"
        if answer.startswith("250"):
            self.messages.append(message_from_bytes(envelope.content))
        return answer


class _AnyPort(Controller):
    """The controller connects to itself to learn that it listens; asked for port 0, it does not know where."""

    def _trigger_server(self) -> None:
        assert self.server is not None
        self.port = self.server.sockets[0].getsockname()[1]
        super()._trigger_server()


@contextmanager
def mail_server(*answers: str) -> Iterator[tuple[int, list[Message]]]:
    """Its port, and the messages that it took."""
    mailbox = _Mailbox(list(answers))
    controller = _AnyPort(mailbox, hostname="127.0.0.1", port=0)
    controller.start()
    try:
        yield controller.port, mailbox.messages
    finally:
        controller.stop()


@contextmanager
def s3_server() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()
