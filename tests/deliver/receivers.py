"""Receivers for the tests of delivery: a webhook that misbehaves on demand, a mail server, an S3 server."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import Message
from typing import Any

from aiosmtpd.controller import Controller

from parts.http_server import QuietHandler, served


@dataclass
class Webhook:
    """Answers POSTs with the given statuses, then with 200. 0: hangs up late, after `hang_seconds`."""

    statuses: list[int]
    hang_seconds: float
    address: str = ""
    bodies: list[bytes] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)  # Idempotency-Key of each that was answered with 200


@contextmanager
def webhook(*statuses: int, hang_seconds: float = 1.0) -> Iterator[Webhook]:
    hook = Webhook(list(statuses), hang_seconds)

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            hook.bodies.append(self.rfile.read(int(self.headers.get("Content-Length", "0"))))
            status = hook.statuses.pop(0) if hook.statuses else 200
            if status == 0:
                time.sleep(hook.hang_seconds)
                self.close_connection = True
                return
            if status == 200:
                hook.taken.append(self.headers.get("Idempotency-Key", ""))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"the receiver's own words")

    with served(Handler) as url:
        hook.address = url.removeprefix("http://")
        yield hook


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
