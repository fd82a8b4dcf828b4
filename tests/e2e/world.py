"""Everything that gpuwatch meets in a cluster, and gpuwatch in it as its own process under its own account."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cluster.api import Api, Object
from cluster.control_plane import ControlPlane, ControlPlaneBuild
from cluster.control_plane import running as running_cluster
from deploy.manifests import DEPLOY, apply, documents
from e2e.live_fleet import LiveFleet, reporting
from parts.processes import free_port, wait_until
from parts.prometheus_server import ServerBuild
from parts.prometheus_server import running as running_prometheus

REMEDIATIONS = "/apis/gpuwatch.dev/v1alpha1/remediations"
ACCOUNT = "system:serviceaccount:gpuwatch:gpuwatch"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/gpuwatch/leases/gpuwatch"
HISTORY_SECONDS = 1200

QUICK: Mapping[str, Mapping[str, Any]] = {
    "run": {
        "analysis_seconds": 3,
        "remediation_seconds": 1,
        "lease_seconds": 6,
        "retry_seconds": 1,
        "report_cron": "",
        "listen_address": "127.0.0.1",
    },
    # A day of a cluster in a minute: what is idle for half a minute here is idle for hours there.
    "idle": {
        "window_seconds": HISTORY_SECONDS,
        "step_seconds": 10,
        "recent_seconds": 10,
        "recent_window_seconds": 20,
        "long_window_seconds": 60,
        "min_silence_seconds": 20,
        "min_age_seconds": 30,
        "power_floor_seconds": HISTORY_SECONDS,
    },
    "execute": {
        "announce_seconds": 4,
        "retry_seconds": 1,
        "retry_cap_seconds": 4,
        "write_timeout_seconds": 5,
        "look_seconds": 2,
        "healthy_seconds": 6,
        "first_effect": "NoSchedule",
    },
    "plan": {"actions_per_hour": 100, "namespace_actions_per_hour": 100, "pool_actions_per_hour": 100},
}


@dataclass(frozen=True)
class Replica:
    """A `gpuwatch run`."""

    name: str
    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def asked(self, path: str) -> tuple[int, str]:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def kill(self) -> None:
        """As a machine that loses its power."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)


@dataclass(frozen=True)
class World:
    cluster: ControlPlane
    api: Api
    prometheus: str
    fleet: LiveFleet
    folder: Path

    def settings(self, name: str, **groups: Mapping[str, Any]) -> Path:
        """A settings file: `QUICK` with these over it."""
        merged: dict[str, Any] = {"prometheus": {"url": self.prometheus}}
        for group in {*QUICK, *groups}:
            merged[group] = {**QUICK.get(group, {}), **groups.get(group, {})}
        merged["run"]["folder"] = str(self.folder / f"{name}-work")
        file = self.folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump(merged))
        return file

    @contextmanager
    def gpuwatch(self, name: str, settings: Path) -> Iterator[Replica]:
        """A replica, ready, under the account of deploy/; ended in order if it still runs."""
        port, log = free_port(), self.folder / f"{name}.log"
        command = [sys.executable, "-m", "gpuwatch.app.cli", "run", "--config", str(settings)]
        kubeconfig = self.cluster.service_account("gpuwatch", "gpuwatch")
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("GPUWATCH_")},
            "GPUWATCH_RUN__LISTEN_PORT": str(port),
            "POD_NAME": name,
            "POD_NAMESPACE": "gpuwatch",
            "KUBECONFIG": str(kubeconfig),
        }
        with log.open("wb") as output:
            process = subprocess.Popen(command, stderr=output, stdout=output, env=environment, cwd=self.folder)
        replica = Replica(name, process, port, log)
        try:
            wait_until(
                lambda: process.poll() is not None or replica.asked("/readyz")[0] == 200,
                lambda: f"{name} was not ready: {replica.asked('/readyz')} {replica.said()[-3000:]}",
            )
            assert process.poll() is None, replica.said()[-3000:]
            yield replica
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(40)
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait(10)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A person's `gpuwatch …`, as the administrator."""
        whole = [sys.executable, "-m", "gpuwatch.app.cli", *arguments, "--kubeconfig", str(self.cluster.administrator)]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("GPUWATCH_")}
        return subprocess.run(whole, capture_output=True, text=True, check=False, env=environment, cwd=self.folder)

    def remediations(self, action: str = "", target: str = "") -> list[Object]:
        return [
            item
            for item in self.api.get(REMEDIATIONS)["items"]
            if item["spec"]["proposal"]["action"] == (action or item["spec"]["proposal"]["action"])
            and target in item["spec"]["proposal"]["target"]
        ]

    def phase(self, action: str, target: str) -> str:
        """Of the newest; '' where there is none."""
        found = sorted(self.remediations(action, target), key=lambda item: item["spec"]["proposal"]["createdAt"])
        return str((found[-1].get("status") or {}).get("phase", "Proposed")) if found else ""

    def pods(self, app: str) -> list[Object]:
        found = self.api.get("/api/v1/namespaces/team-a/pods", labelSelector=f"app={app}")["items"]
        return [item for item in found if "deletionTimestamp" not in item["metadata"]]

    def running(self, app: str) -> list[Object]:
        return [item for item in self.pods(app) if item["status"].get("phase") == "Running"]

    def taints(self, node: str) -> list[Object]:
        found = self.api.get(f"/api/v1/nodes/{node}")["spec"].get("taints", [])
        return [taint for taint in found if taint["key"] == "gpuwatch.dev/degraded"]

    def writes(self) -> list[str]:
        """What the account has written so far: 'patch nodes gpu-0 200' and so on, dry runs left out."""
        return [
            f"{asked.verb} {asked.resource} {asked.uri.partition('?')[0].rpartition('/')[2]} {asked.status}"
            for asked in self.cluster.asked()
            if asked.user == ACCOUNT and asked.verb not in ("get", "list", "watch") and "dryRun" not in asked.uri
        ]

    def until(self, condition: Any, *replicas: Replica, seconds: float = 240) -> None:
        """Raises RuntimeError with what gpuwatch said and keeps."""

        def complaint() -> str:
            kept = [
                (item["metadata"]["name"], {k: v for k, v in (item.get("status") or {}).items() if k != "saved"})
                for item in self.remediations()
            ]
            logs = "\n".join(f"--- {item.name}\n{item.said()[-6000:]}" for item in replicas)
            return f"it did not come to that\n{json.dumps(kept, indent=1)}\n{logs}"

        wait_until(condition, complaint, seconds)


@contextmanager
def world(
    cluster_build: ControlPlaneBuild, prometheus_build: ServerBuild, folder: Path, nodes: list[Object]
) -> Iterator[World]:
    """A living cluster with these Nodes, gpuwatch's base manifests but for its Deployment, and a Prometheus to which
    the Nodes report."""
    with ExitStack() as stack:
        cluster = stack.enter_context(running_cluster(cluster_build, alive=True))
        prometheus = stack.enter_context(running_prometheus(prometheus_build))
        api = Api(cluster.administrator)
        base = [
            item for item in documents(DEPLOY / "base") if item["kind"] not in ("Deployment", "PodDisruptionBudget")
        ]
        apply(api, base)
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a"}})
        for item in nodes:
            api.create(item)
        fleet = LiveFleet(Api(cluster.administrator), prometheus)
        fleet.history(time.time(), HISTORY_SECONDS)
        stack.enter_context(reporting(fleet))
        yield World(cluster, api, prometheus, fleet, folder)
