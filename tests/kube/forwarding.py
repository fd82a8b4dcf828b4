"""A plain HTTP server on loopback that hands every request on to an API server, and spoils chosen answers."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests

from cluster.api import Api
from parts.http_server import QuietHandler, served


@dataclass(frozen=True)
class Spoilt:
    """What the client gets instead of the answer; the server has carried the request out. Without a status the
    connection is cut."""

    status: int = 0
    body: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    pause_seconds: float = 0.0


@dataclass
class Forwarding:
    url: str
    requests: list[tuple[str, str, bytes]] = field(default_factory=list)


@contextlib.contextmanager
def forwarding(kubeconfig: Path, spoil: Callable[[str, str, bytes], Spoilt | None]) -> Iterator[Forwarding]:
    """As the user of the kubeconfig. spoil: by method, path with parameters, and body; None lets the answer through."""
    api: Any = Api(kubeconfig)
    seen = Forwarding("")

    class Handler(QuietHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            seen.requests.append((self.command, self.path, body))
            headers = {"Content-Type": self.headers.get("Content-Type", "application/json")}
            answer: requests.Response = api._session.request(
                self.command, f"{api._url}{self.path}", data=body, headers=headers, timeout=30
            )
            spoilt = spoil(self.command, self.path, body)
            if spoilt is not None:
                time.sleep(spoilt.pause_seconds)
            if spoilt is not None and not spoilt.status:
                self.close_connection = True
                return
            status = spoilt.status if spoilt else answer.status_code
            content = spoilt.body.encode() if spoilt else answer.content
            with contextlib.suppress(OSError):
                self.send_response(status)
                for name, value in spoilt.headers if spoilt else ():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        do_GET = do_POST = do_PATCH = do_DELETE = _serve  # noqa: N815

    with served(Handler) as seen.url:
        yield seen
