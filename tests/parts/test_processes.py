"""Ports that servers of tests get: theirs alone."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from parts.processes import free_port

TESTS = Path(__file__).parents[1]


def test_a_port_is_of_one_process_and_of_no_outgoing_connection() -> None:
    command = [sys.executable, "-c", "from parts.processes import free_port; print(*{free_port() for _ in range(100)})"]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    mine = {free_port() for _ in range(100)}
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    theirs = set(map(int, said.split()))
    assert mine.isdisjoint(theirs)
    outgoing = Path("/proc/sys/net/ipv4/ip_local_port_range")
    if outgoing.exists():
        assert max(mine | theirs) < int(outgoing.read_text().split()[0])


def test_a_port_that_somebody_listens_on_is_passed_over() -> None:
    with socket.create_server(("127.0.0.1", free_port())) as server:
        assert server.getsockname()[1] not in {free_port() for _ in range(100)}
