"""A look each minute at a large cluster: followed by watches against listed anew, on a real kube-apiserver.

    python -m lab.benchmarks.cluster_follow --pods 20000

A control plane without controllers gets so many Pods (cluster_list.py's, with a Job above each eight of them). Then
three contenders, one after the other, each for the same time with the same share of the Pods changing meanwhile: one
who lists at each look; one who follows, whose first look is a list and told apart; and nobody, so that the API server's
own doings are known. A contender is a process of its own. Bytes are what its TCP connections received, TLS and HTTP
included. A follower's hourly list for comparison is not among its looks.
Goals: at most a tenth of the bytes, and half of the reader's CPU time. The API server's CPU time, beyond what it takes
with nobody there, has none: its own doings vary by more than a follower costs it.
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from threading import local
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from lab.benchmarks.cluster_list import pod

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from cluster.api import Api
from cluster.control_plane import ControlPlane, find_control_plane, running
from kube.line import Line, line_to

GOAL_BYTES_RATIO = 0.1
GOAL_READER_RATIO = 0.5
PODS_PER_JOB = 8
SETTLING_SECONDS = 20
WRITERS = 8
MERGE = "application/merge-patch+json"


# The contender's own process


def contend(how: str, kubeconfig: Path) -> None:
    """A look for each line on stdin; a line of JSON for each look, with the CPU time since the one before."""
    from gpuwatch.sources.kube.live import FollowedCluster, LiveCluster, api_client

    with api_client(kubeconfig) as client:
        reader = LiveCluster(client) if how == "list" else FollowedCluster(client)
        before = time.process_time()
        for _ in sys.stdin:
            began = time.perf_counter()
            found = reader.read(datetime.now(UTC))
            seconds = time.perf_counter() - began
            now = time.process_time()
            told = {
                "pods": len(found.pods),
                "known": found.known,
                "changed": sum(item.labels.get("changed", "").startswith(how) for item in found.pods),
                "answer_seconds": seconds,
                "cpu_seconds": now - before,
                "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            }
            before = now
            print(json.dumps(told), flush=True)


# The cluster


class Writers:
    """Many at once, each with a connection of its own."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig
        self._own = local()
        self._pool = ThreadPoolExecutor(WRITERS)

    def api(self) -> Api:
        if not hasattr(self._own, "api"):
            self._own.api = Api(self._kubeconfig)
        api: Api = self._own.api
        return api

    def map(self, function: Any, items: Any) -> Any:
        return self._pool.map(function, items)


def fill(writers: Writers, pods: int, gpu_share: float, console: Console) -> None:
    api = writers.api()
    for team in range(40):
        api.answer("POST", "/api/v1/namespaces", {"metadata": {"name": f"team-{team}"}})

    def create(first: int) -> None:
        """A Job and its Pods, in the Namespace of the first."""
        namespace, name = namespace_of(first), f"train-{first // PODS_PER_JOB}"
        container = {"name": "main", "image": "registry.example/team/trainer:2026.11.1"}
        run = {"containers": [container], "restartPolicy": "Never"}
        job = {"template": {"metadata": {"labels": {"app": "train"}}, "spec": run}, "suspend": True}
        jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
        made = writers.api().answer("POST", jobs, {"metadata": {"name": name}, "spec": job})
        made.raise_for_status()
        uid = made.json()["metadata"]["uid"]
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid, "controller": True}
        for number in range(first, min(first + PODS_PER_JOB, pods)):
            wanted = pod(number, gpu=first % 100 < gpu_share * 100)
            meta = wanted["metadata"]
            kept = {key: meta[key] for key in ("name", "labels", "annotations")}
            spec = {key: value for key, value in wanted["spec"].items() if not key.startswith("priority")}
            body = {"metadata": {**kept, "ownerReferences": [owner]}, "spec": {**spec, "preemptionPolicy": None}}
            path = f"/api/v1/namespaces/{namespace}/pods"
            answer = writers.api().answer("POST", path, body)
            answer.raise_for_status()
            path, status = f"{path}/{meta['name']}/status", {"status": wanted["status"]}
            writers.api().answer("PATCH", path, status, content_type=MERGE).raise_for_status()

    firsts = range(0, pods, PODS_PER_JOB)
    for _ in track(writers.map(create, firsts), "creating Pods", total=len(firsts), console=console, transient=True):
        pass


def namespace_of(number: int) -> str:
    """Of a Pod and its Job."""
    return f"team-{number // PODS_PER_JOB % 40}"


def change(writers: Writers, pods: int, changes: int, dice: random.Random, value: str) -> None:
    """A label of so many Pods, as if their status had moved. value: never the same again, which would be no change."""

    def patch(number: int) -> None:
        name = f"train-{number // PODS_PER_JOB}-worker-{number % PODS_PER_JOB}"
        path = f"/api/v1/namespaces/{namespace_of(number)}/pods/{name}"
        body = {"metadata": {"labels": {"changed": value}}}
        writers.api().answer("PATCH", path, body, content_type=MERGE).raise_for_status()

    for _ in writers.map(patch, dice.sample(range(pods), changes)):
        pass


def server_cpu_seconds(plane: ControlPlane) -> float:
    """Of the kube-apiserver, from /proc."""
    flag = next(str(item) for item in plane.programs["kube-apiserver"] if str(item).startswith("--secure-port="))
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and flag in _command(folder):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / 100  # utime and stime, in ticks of USER_HZ
    raise SystemExit("the API server is gone")


def _command(folder: Path) -> list[str]:
    try:
        return (folder / "cmdline").read_text().split("\0")
    except OSError:
        return []


# The comparison


def window(
    plane: ControlPlane, line: Line, writers: Writers, options: argparse.Namespace, how: str
) -> dict[str, float]:
    """Sums of one contender's looks; the first one apart."""
    dice = random.Random(7)
    changes = round(options.pods * options.changing)
    contender: Any = None
    first: dict[str, float] = {}
    if how != "nobody":
        flags = ["--contend", how, "--kubeconfig", str(line.kubeconfig(plane.administrator))]
        command = [sys.executable, "-m", "lab.benchmarks.cluster_follow", *flags]
        contender = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        before = line.received_bytes
        first = {**look(contender), "bytes": line.received_bytes - before}
    time.sleep(5)
    total = {"bytes": 0.0, "cpu_seconds": 0.0, "answer_seconds": 0.0, "server_seconds": 0.0, "peak_mib": 0.0}
    received, worked = line.received_bytes, server_cpu_seconds(plane)
    for number in range(options.looks):
        end = time.monotonic() + options.seconds
        change(writers, options.pods, changes, dice, f"{how}-{number}")
        time.sleep(max(end - time.monotonic(), 0))
        if contender is not None:
            told = look(contender)
            if not told["known"] or told["pods"] != first["pods"]:
                raise SystemExit(f"{how} lost Pods: {told}, {first}")
            for key in ("cpu_seconds", "answer_seconds"):
                total[key] += told[key]
            total["peak_mib"], total["changed"] = told["peak_mib"], told["changed"]
    total["bytes"] = line.received_bytes - received
    total["server_seconds"] = server_cpu_seconds(plane) - worked
    total.update({f"first_{key}": value for key, value in first.items()})
    if contender is not None:
        contender.stdin.close()
        contender.wait(30)
    return total


def look(contender: Any) -> dict[str, float]:
    contender.stdin.write("look\n")
    contender.stdin.flush()
    found: dict[str, float] = json.loads(contender.stdout.readline())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=20_000)
    parser.add_argument("--gpu-share", type=float, default=0.3, help="share of the Pods that ask for GPUs")
    parser.add_argument("--changing", type=float, default=0.01, help="share of the Pods that change between two looks")
    parser.add_argument("--looks", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0, help="between two looks")
    parser.add_argument("--contend", choices=["list", "follow"], help=argparse.SUPPRESS)
    parser.add_argument("--kubeconfig", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contend:
        contend(options.contend, options.kubeconfig)
        return
    build = find_control_plane()
    if build is None:
        raise SystemExit("the control plane is not there: tests/parts/install gets it")
    console = Console()
    with running(build) as plane, line_to(plane.url) as line:
        writers = Writers(plane.administrator)
        began = time.monotonic()
        fill(writers, options.pods, options.gpu_share, console)
        time.sleep(SETTLING_SECONDS)
        console.print(f"{options.pods} Pods in {time.monotonic() - began:.0f} s")
        found = {how: window(plane, line, writers, options, how) for how in ("list", "follow", "nobody")}
    compare(found, options, console)


def compare(found: dict[str, dict[str, float]], options: argparse.Namespace, console: Console) -> None:
    looks, idle = options.looks, found["nobody"]["server_seconds"]
    table = Table("a look", "MB received", "reader's CPU s", "API server's CPU s", "answer after s", "peak MiB")
    per_look = {}
    for how in ("list", "follow"):
        each = found[how]
        server = each["server_seconds"] - idle
        per_look[how] = (each["bytes"] / looks, each["cpu_seconds"] / looks, server / looks)
        table.add_row(
            how,
            f"{each['bytes'] / looks / 1e6:.2f}",
            f"{each['cpu_seconds'] / looks:.3f}",
            f"{each['server_seconds'] / looks:.3f}",
            f"{each['answer_seconds'] / looks:.3f}",
            f"{each['peak_mib']:.0f}",
        )
    first = found["follow"]
    table.add_row(
        "follow, the first",
        f"{first['first_bytes'] / 1e6:.2f}",
        f"{first['first_cpu_seconds']:.3f}",
        "",
        f"{first['first_answer_seconds']:.3f}",
        "",
    )
    table.add_row("nobody", "", "", f"{idle / looks:.3f}", "", "")
    console.print(table)
    if found["list"]["changed"] != found["follow"]["changed"]:
        raise SystemExit(f"they saw different Pods: {found}")
    failed = False
    goals = {"bytes": GOAL_BYTES_RATIO, "reader's CPU time": GOAL_READER_RATIO, "API server's CPU time": None}
    for (name, goal), listed, followed in zip(goals.items(), per_look["list"], per_look["follow"], strict=True):
        ratio = followed / listed if listed > 0 else float("inf")
        failed |= goal is not None and ratio > goal
        told = "" if goal is None else f" (goal: at most {goal:g})"
        console.print(f"{name}: {ratio:.4f} of the list's{told}")
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
