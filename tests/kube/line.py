"""A TCP line to a server that can be cut, held and counted: what lies between a client and its API server."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

_PIECE_BYTES = 1 << 16


@dataclass
class Line:
    """connections, refused: how many were made so far, and how many were not. received_bytes: by the client; TLS and
    HTTP count."""

    port: int = 0
    connections: int = 0
    refused: int = 0
    received_bytes: int = 0
    _down: bool = False
    _open: set[socket.socket] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def cut(self) -> None:
        """All connections at once; new ones may be made."""
        with self._lock:
            cut, self._open = self._open, set()
        for each in cut:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def down(self) -> Iterator[None]:
        """No connection until the block ends."""
        self._down = True
        self.cut()
        try:
            yield
        finally:
            self._down = False

    def kubeconfig(self, kubeconfig: Path) -> Path:
        """The same user, over this line."""
        content = json.loads(kubeconfig.read_text())
        content["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{self.port}"
        written = kubeconfig.with_name(f"{kubeconfig.stem}-line-{self.port}.kubeconfig")
        written.write_text(json.dumps(content))
        return written

    def carry(self, client: socket.socket, server: socket.socket) -> None:
        """Both ways, until one side ends."""
        with self._lock:
            if self._down:
                self.refused += 1
                client.close()
                server.close()
                return
            self.connections += 1
            self._open |= {client, server}
        ways = ((client, server, False), (server, client, True))
        threads = [threading.Thread(target=self._one_way, args=each, daemon=True) for each in ways]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with self._lock:
            self._open -= {client, server}
        client.close()
        server.close()

    def _one_way(self, source: socket.socket, target: socket.socket, received: bool) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(_PIECE_BYTES):
                with self._lock:
                    self.received_bytes += len(piece) * received
                target.sendall(piece)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def line_to(url: str) -> Iterator[Line]:
    """A line on a free loopback port to the server of the URL, which may come and go."""
    parts = urlsplit(url)
    address = (parts.hostname or "", parts.port or 443)
    line = Line()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        line.port = listener.getsockname()[1]

        def accept() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return  # the end
                try:
                    server = socket.create_connection(address, timeout=5)
                except OSError:
                    client.close()
                    continue
                for each in (client, server):
                    each.settimeout(None)
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=line.carry, args=(client, server), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield line
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            line.cut()
            thread.join(5)
