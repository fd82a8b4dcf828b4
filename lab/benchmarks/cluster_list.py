"""Reading many Pods: gpuwatch's reader against the stock typed list of the official client, paged equally.

    python -m lab.benchmarks.cluster_list --pods 100000

An HTTP server on loopback answers paged Pod lists as an API server does (6.8 kB a Pod, managedFields included).
Each contender lists the same Pods in a process of its own, one after the other; wall time and peak resident memory
are its own. A third run reads the pages and throws them away: the part of the time that is server and transport.
Goal: at least 10 times faster, in at most a fifth of the memory.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

THIS = (sys.executable, "-m", "lab.benchmarks.cluster_list")
GOAL_TIMES_FASTER = 10.0
GOAL_MEMORY_RATIO = 0.2


@cache
def form() -> Any:
    import yaml  # not in a contender's memory

    return yaml.safe_load(Path(__file__).with_name("pod.yaml").read_text(encoding="utf-8"))


def pod(number: int, gpu: bool) -> dict[str, Any]:
    """One Pod as an API server sends it."""
    from lab.simulate.forms import fill

    fields = {f"f:{key}": {} for key in ("image", "imagePullPolicy", "name", "terminationMessagePath", "resources")}
    started, job, team = "2026-11-20T08:15:30Z", number // 8, f"team-{number % 40}"
    values = {
        "number": number,
        "job": job,
        "worker": str(number % 8),
        "namespace": team,
        "uid": f"{number:08x}-0000-4000-8000-000000000000",
        "version": str(10_000_000 + number),
        "started": started,
        "applied": "{" + "x" * 400 + "}",
        "address": f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}",
        "owner": f"{job:08x}-1111-4000-8000-000000000000",
        "fields": {f'k:{{"name":"{item}"}}': fields for item in range(4)},
        "volumes": [{"name": f"volume-{item}", "configMap": {"name": f"config-{item}"}} for item in range(4)],
        "mounts": [{"name": f"volume-{item}", "mountPath": f"/mnt/{item}"} for item in range(4)],
        "env": [{"name": f"SETTING_{item}", "value": f"value-{item}"} for item in range(12)],
        "requests": {"cpu": "7910m", "memory": "32Gi", **({"nvidia.com/gpu": "8"} if gpu else {})},
        "node": job % 5000,
        "conditions": [
            {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": started}
            for kind in ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
        ],
        "digest": "0" * 64,
        "running": f"{number:064x}",
    }
    filled: dict[str, Any] = fill(form(), values)
    return filled


class PodServer(ThreadingHTTPServer):
    """Answers /api/v1/pods in pages. Bodies are made once from a template page, so that serving costs little."""

    def __init__(self, pods: int, gpu_share: float) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.pods = pods
        self.gpu_share = gpu_share
        self.cache: dict[tuple[int, int], bytes] = {}

    def page(self, start: int, limit: int) -> bytes:
        if (start, limit) not in self.cache:
            numbers = range(start, min(start + limit, self.pods))
            items = [pod(number, gpu=number % 100 < self.gpu_share * 100) for number in numbers]
            following = {"continue": str(numbers.stop)} if numbers.stop < self.pods else {}
            body = {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1", **following}}
            self.cache[start, limit] = json.dumps({**body, "items": items}, separators=(",", ":")).encode()
        return self.cache[start, limit]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: PodServer

    def do_GET(self) -> None:
        path = urlsplit(self.path)
        if path.path != "/api/v1/pods":  # gpuwatch asks for the API groups, too
            self.send_error(404)
            return
        query = parse_qs(path.query)
        start = int(query.get("continue", ["0"])[0])
        body = self.server.page(start, int(query.get("limit", [str(self.server.pods)])[0]))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


def client(url: str):  # type: ignore[no-untyped-def]
    from kubernetes.client import ApiClient, Configuration

    return ApiClient(Configuration(host=url))


def read_with_gpuwatch(url: str, page_size: int) -> int:
    from gpuwatch.sources.kube import kinds
    from gpuwatch.sources.kube.pods import take_pod
    from gpuwatch.sources.kube.transport import Limits, Lists

    listing = Lists(client(url), Limits(page_size=page_size)).objects(kinds.POD, take_pod)
    if listing.failure is not None:
        raise SystemExit(str(listing.failure))
    return len(listing.items)


def read_with_typed_client(url: str, page_size: int) -> int:
    from kubernetes.client import CoreV1Api

    api = CoreV1Api(client(url))
    pods: list[object] = []
    token = None
    while True:
        page = api.list_pod_for_all_namespaces(limit=page_size, _continue=token)
        pods += page.items
        token = page.metadata._continue
        if not token:
            return len(pods)


def read_and_throw_away(url: str, page_size: int) -> int:
    import urllib3

    pool = urllib3.PoolManager()
    token, pages = "", 0
    while True:
        body = pool.request(
            "GET", f"{url}/api/v1/pods?limit={page_size}" + (f"&continue={token}" if token else "")
        ).data
        pages += 1
        head = body[:200]
        if b'"continue":"' not in head:
            return pages
        token = head.partition(b'"continue":"')[2].partition(b'"')[0].decode()


READERS = {"gpuwatch": read_with_gpuwatch, "typed": read_with_typed_client, "transport": read_and_throw_away}


def measure(reader: str, url: str, page_size: int) -> None:
    begun, cpu = time.perf_counter(), time.process_time()
    kept = READERS[reader](url, page_size)
    print(
        json.dumps(
            {
                "kept": kept,
                "seconds": time.perf_counter() - begun,
                "cpu_seconds": time.process_time() - cpu,
                "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            }
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=100_000)
    parser.add_argument("--page-size", type=int, default=500)
    parser.add_argument("--gpu-share", type=float, default=0.3, help="share of the Pods that ask for GPUs")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--measure", choices=sorted(READERS), help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure, options.url, options.page_size)
        return
    if options.serve:
        serve(options.pods, options.gpu_share, options.page_size)
        return
    flags = ["--pods", str(options.pods), "--gpu-share", str(options.gpu_share), "--page-size", str(options.page_size)]
    # The server's memory must not be this process's: a child starts with its parent's peak.
    with subprocess.Popen([*THIS, "--serve", *flags], stdout=subprocess.PIPE, text=True) as server:
        try:
            compare(json.loads(server.stdout.readline()), options)
        finally:
            server.terminate()


def serve(pods: int, gpu_share: float, page_size: int) -> None:
    server = PodServer(pods, gpu_share)
    size = sum(len(server.page(start, page_size)) for start in range(0, pods, page_size))
    print(json.dumps({"url": f"http://127.0.0.1:{server.server_port}", "mib": size / 2**20}), flush=True)
    server.serve_forever()


def compare(server: dict[str, str], options: argparse.Namespace) -> None:
    print(
        f"{options.pods} Pods, {options.gpu_share:.0%} with GPUs, {server['mib']:.0f} MiB, pages of {options.page_size}"
    )
    url = server["url"]
    found = {}
    for reader in ("transport", "gpuwatch", "typed"):
        command = [*THIS, "--measure", reader, "--url", url, "--page-size", str(options.page_size)]
        found[reader] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(
            f"{reader:10} {found[reader]['seconds']:8.2f} s wall  {found[reader]['cpu_seconds']:8.2f} s CPU  "
            f"{found[reader]['peak_mib']:8.0f} MiB peak  {found[reader]['kept']} kept"
        )
    faster = found["typed"]["seconds"] / found["gpuwatch"]["seconds"]
    memory = found["gpuwatch"]["peak_mib"] / found["typed"]["peak_mib"]
    print(f"time:   {faster:.1f} times faster (goal: at least {GOAL_TIMES_FASTER:g})")
    print(f"memory: {memory:.3f} of the typed list's (goal: at most {GOAL_MEMORY_RATIO:g})")
    if faster < GOAL_TIMES_FASTER or memory > GOAL_MEMORY_RATIO:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
