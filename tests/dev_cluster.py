"""A living cluster to play with: a real control plane, simulated Nodes with GPUs, workloads, and a real Prometheus.

    make dev-cluster                 # stays until Ctrl-C
    make dev-cluster FAULTS=0        # with nothing wrong

Everything is on free loopback ports and gone afterwards. What it prints is all that gpuwatch and kubectl need.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from cluster.control_plane import find_control_plane
from deploy.manifests import DEPLOY, apply, documents
from e2e.clusters import own
from e2e.live_fleet import LiveFleet, node, workload
from e2e.world import HISTORY_SECONDS, QUICK, World, world
from parts.prometheus_server import find_servers


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=4, help="of 8 GPUs each (default: %(default)s)")
    parser.add_argument("--faults", type=int, default=1, help="GPUs whose memory fails after a minute")
    parser.add_argument("--seconds", type=float, default=0.0, help="end by itself after so long")
    chosen = parser.parse_args()
    build, servers = find_control_plane(), find_servers()
    if build is None or not servers:
        sys.stderr.write("The servers are not installed yet: run .venv/bin/python tests/parts/install first.\n")
        return 1
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with tempfile.TemporaryDirectory(prefix="dev-cluster-") as temporary:
        folder = Path(temporary)
        print("Starting a control plane, a Prometheus and the fleet …", flush=True)
        nodes = [node(f"gpu-{number}", "a100") for number in range(chosen.nodes)]
        with own(build) as cluster, world(cluster, servers[-1], folder, nodes) as living:
            for file in sorted((DEPLOY / "roles").glob("*.yaml")):
                apply(living.api, documents(file))
            _populate(living)
            _tell(living)
            begun = time.monotonic()
            broken = False
            while not stop.wait(1.0):
                elapsed = time.monotonic() - begun
                if not broken and chosen.faults and elapsed > 60:
                    broken = True
                    _break(living.fleet, chosen.faults, chosen.nodes)
                if chosen.seconds and elapsed > chosen.seconds:
                    break
        print("Gone.")
    return 0


def _populate(living: World) -> None:
    """A gang that trains, a service, and a notebook that somebody forgot."""
    for item in (
        workload("Job", "train", pool="a100", gpus=4, copies=2),
        workload("Deployment", "chat", pool="a100", gpus=1, copies=3),
        workload("Deployment", "forgotten", pool="a100", gpus=4),
    ):
        living.api.create(item)
    living.fleet.idle.add("forgotten")


def _break(fleet: LiveFleet, count: int, nodes: int) -> None:
    for number in range(count):
        name, index = f"gpu-{number % nodes}", number // nodes % 8
        fleet.faults.setdefault(name, set()).add(index)
        print(f"GPU {index} of {name} has a memory row that cannot be remapped now.", flush=True)


def _tell(living: World) -> None:
    kubeconfig = living.cluster.administrator
    settings = living.settings("observe", run={"listen_port": 8080})
    modes = dict.fromkeys(("taint_node", "evict_gang", "release_gang"), "suggest")
    suggest = living.settings("suggest", run={"listen_port": 8080}, plan={"modes": modes})
    quick = ", ".join(sorted(QUICK["idle"]))
    lines = [
        "",
        f"export KUBECONFIG={shlex.quote(str(kubeconfig))}",
        f"Prometheus: {living.prometheus}   settings: {settings}",
        "",
        "Look:   kubectl get nodes; kubectl -n team-a get pods -o wide",
        f"        gpuwatch analyze --config {settings}",
        f"        gpuwatch plan --config {settings}",
        f"Run it: gpuwatch run --config {settings}",
        f"        and with proposals: gpuwatch run --config {suggest}",
        "Decide: gpuwatch history; gpuwatch approve NAME; gpuwatch undo NAME; gpuwatch pause --reason lunch",
        "",
        f"The settings are for the impatient: {quick} are minutes, not hours. The fleet has a past of "
        f"{HISTORY_SECONDS // 60} minutes.",
        "Ctrl-C ends everything.",
    ]
    print("\n".join(lines), flush=True)


if __name__ == "__main__":
    sys.exit(main())
