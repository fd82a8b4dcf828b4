"""A living cluster to play with: a real control plane, simulated Nodes with GPUs, workloads, and a real Prometheus
that scrapes the Nodes.

    make dev-cluster                 # stays until Ctrl-C
    make dev-cluster FAULTS=0        # with nothing wrong

Everything is on free loopback ports and gone afterwards. What it prints is all that gpuwatch and kubectl need.
"""

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
from e2e.world import HISTORY_SECONDS, World, world
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
            _tell(living, chosen.faults)
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


def _tell(living: World, faults: int) -> None:
    kubeconfig = living.cluster.administrator
    account = f"KUBECONFIG={shlex.quote(str(living.cluster.account('dev')))}"  # which alone may propose
    settings = living.settings("observe", run={"listen_port": 8080})
    modes = dict.fromkeys(("taint_node", "evict_gang", "release_gang"), "suggest")
    suggest = living.settings("suggest", run={"listen_port": 8080}, plan={"modes": modes})
    programs = Path(sys.executable).parent
    lines = [
        "",
        "It runs. In another terminal:",
        "",
        f"  export KUBECONFIG={shlex.quote(str(kubeconfig))}",
        f"  export PATH={shlex.quote(str(programs))}:$PATH",
        "",
        "Look (kubectl is not part of this; gpuwatch needs none):",
        "  kubectl get nodes; kubectl -n team-a get pods -o wide",
        f"  gpuwatch analyze --config {settings}",
        f"  gpuwatch plan --config {settings}",
        "Run it, and it only tells what it would do:",
        f"  {account} gpuwatch run --config {settings}",
        "Or have it propose, in one terminal, and decide in another:",
        f"  {account} gpuwatch run --config {suggest}",
        "  gpuwatch history",
        "  gpuwatch approve NAME; gpuwatch history NAME; gpuwatch undo NAME",
        "  gpuwatch pause --reason lunch; gpuwatch resume",
        "",
        f"Prometheus answers at {living.prometheus} and scrapes a page per Node, "
        f"{living.fleet.exporters.url}/gpu-0/metrics and so on.",
        "What runs has its pages and /metrics at http://127.0.0.1:8080.",
        f"The fleet has a past of {HISTORY_SECONDS // 60} minutes, and half a minute without work is idle here, where "
        "the defaults wait for hours.",
        f"After a minute the memory of {faults} GPU{'s' * (faults != 1)} fails." if faults else "No GPU fails.",
        "Ctrl-C ends everything.",
        "",
    ]
    print("\n".join(lines), flush=True)


if __name__ == "__main__":
    sys.exit(main())
