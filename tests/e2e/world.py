"""Everything that gpuwatch meets in a cluster, and gpuwatch in it as its own process under its own account."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cluster.api import Api, Object
from cluster.control_plane import Asked, credential
from deploy.manifests import DEPLOY, apply, documents
from e2e.clusters import Cluster, marked
from e2e.exporters import JOB, NAMESPACE, TENANTS_JOB, daemon_set, exporters
from e2e.live_fleet import LiveFleet, node, reporting, workload
from gpuwatch.facts.model.decision import ActionKind
from gpuwatch.sources.store.api_form import camel_enum
from parts.gpuwatch_run import GpuwatchRun, begun
from parts.processes import free_port, wait_until
from parts.prometheus_server import ServerBuild
from parts.prometheus_server import running as running_prometheus

REMEDIATIONS = "/apis/gpuwatch.dev/v1alpha1/remediations"
NODE_REMEDIATIONS = "/apis/gpuwatch.dev/v1alpha1/noderemediations"
ACCOUNT = "system:serviceaccount:gpuwatch:gpuwatch"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/gpuwatch/leases/gpuwatch"
HOLD = "example.org/hold"
"""A finalizer that keeps a Pod that was deleted, as long as the test wants it."""
HISTORY_SECONDS = 1200
LEASE_SECONDS = 6

OWN = frozenset({"leases", "checkpoints", "workloadprofiles", "remediations", "noderemediations", "events"})
"""Resources of which gpuwatch writes objects of its own; all others are somebody's."""

_MAIN = "from gpuwatch.app.cli.main import main; main()"

UNSEEN: list[str] = []
"""What was not looked at, and in which test, because the cluster is somebody else's."""

QUICK: Mapping[str, Mapping[str, Any]] = {
    "run": {
        "cycle_interval_seconds": 3,
        "remediation_interval_seconds": 1,
        "lease_duration_seconds": LEASE_SECONDS,
        "report_schedule": "",
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
        "partial_gang_seconds": 20,
        "power_floor_seconds": HISTORY_SECONDS,
    },
    "execute": {
        "notice_period_seconds": 4,
        "retry_seconds": 1,
        "retry_max_seconds": 4,
        "write_timeout_seconds": 5,
        "check_interval_seconds": 2,
        "healthy_for_seconds": 6,
        "first_taint_effect": "NoSchedule",
    },
    # The Lease remembers a storm of an earlier test of the same world.
    "plan": {
        "actions_per_hour": 100,
        "namespace_actions_per_hour": 100,
        "pool_actions_per_hour": 100,
        "storm_cooldown_seconds": 2,
    },
}


@dataclass(frozen=True)
class Replica(GpuwatchRun):
    """credential: by which the API server's log knows it; '' where nobody sees that log."""

    name: str
    credential: str

    def kill(self) -> None:
        """As a machine that loses its power."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def freeze(self) -> None:
        """As a machine that is suspended: nothing of it goes on, and it knows of nothing."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)


@dataclass(frozen=True)
class Installed:
    """A cluster with gpuwatch's base manifests, and a Prometheus that scrapes its Nodes.

    folder: for files of gpuwatch.
    """

    cluster: Cluster
    api: Api
    prometheus: str
    folder: Path

    def settings(self, name: str, **groups: Mapping[str, Any]) -> Path:
        """A settings file: `QUICK` with these over it."""
        usual = {**QUICK, "prometheus": {"url": self.prometheus, "trusted_targets": [{"job": JOB}]}}
        merged = {group: {**usual.get(group, {}), **groups.get(group, {})} for group in {**usual, **groups}}
        merged["run"]["folder"] = str(self.folder / f"{name}-work")
        file = self.folder / f"{name}.yaml"
        new = file.with_suffix(".new")
        new.write_text(yaml.safe_dump(merged))
        new.replace(file)  # at once, for a replica that watches it
        return file

    @contextmanager
    def gpuwatch(self, name: str, settings: Path, version: str = "") -> Iterator[Replica]:
        """A replica, ready, under the account of deploy/; ended in order if it still runs. version: that it says it
        is, where it is to be another one than this."""
        port, log = free_port(), self.folder / f"{name}.log"
        command = [sys.executable, "-m", "gpuwatch.app.cli.main", "run", "--config", str(settings)]
        kubeconfig = self.cluster.account(name)
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("GPUWATCH_")},
            "GPUWATCH_RUN__LISTEN_PORT": str(port),
            "POD_NAME": name,
            "POD_NAMESPACE": "gpuwatch",
            "KUBECONFIG": str(kubeconfig),
        }
        if version:
            command[1:3] = ["-c", f"import gpuwatch; gpuwatch.__version__ = {version!r}; {_MAIN}"]
        with begun(command, log, environment, self.folder) as process:
            replica = Replica(process, port, log, name, credential(kubeconfig) if self.cluster.own else "")
            wait_until(
                lambda: process.poll() is not None or replica.asked("/readyz")[0] == 200,
                lambda: f"{name} was not ready: {replica.asked('/readyz')} {replica.said()[-3000:]}",
            )
            assert process.poll() is None, replica.said()[-3000:]
            yield replica

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A person's `gpuwatch …`, as the administrator."""
        whole = [sys.executable, "-m", "gpuwatch.app.cli.main", *arguments]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("GPUWATCH_")}
        environment |= {"KUBECONFIG": self.cluster.administrator, "COLUMNS": "200"}
        return subprocess.run(whole, capture_output=True, text=True, check=False, env=environment, cwd=self.folder)

    @property
    def user(self) -> str:
        """Who gives a person's commands, as the API server knows them."""
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        answer = self.api.answer("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body)
        return str(answer.json()["status"]["userInfo"]["username"])

    def remediations(self, action: str = "", target: str = "") -> list[Object]:
        """Of workloads and of Nodes. action: as the settings name it; '' for all. target: the whole name of what it is
        about, as one name may begin another's; '' for all."""
        named = camel_enum(ActionKind(action)) if action else ""
        return [
            item
            for path in (REMEDIATIONS, NODE_REMEDIATIONS)
            for item in self.api.get(path)["items"]
            if item["spec"]["proposal"]["action"] == (named or item["spec"]["proposal"]["action"])
            and target in ("", item["spec"]["proposal"]["target"].rpartition("/")[2])
        ]

    def newest(self, action: str, target: str) -> Object | None:
        """The newest Remediation of it."""
        found = sorted(self.remediations(action, target), key=lambda item: item["spec"]["proposal"]["proposedTime"])
        return found[-1] if found else None

    def phase(self, action: str, target: str) -> str:
        """Of the newest; '' where there is none."""
        found = self.newest(action, target)
        return str((found.get("status") or {}).get("phase", "Proposed")) if found else ""

    def notified(self, action: str, target: str) -> bool:
        """Were its owners told all, and may object now?"""
        found = self.newest(action, target)
        status = (found or {}).get("status") or {}
        return status.get("phase") == "Notified" and "deadlineTime" in status

    def pods(self, app: str) -> list[Object]:
        found = self.api.get("/api/v1/namespaces/team-a/pods", labelSelector=f"app={app}")["items"]
        return [item for item in found if "deletionTimestamp" not in item["metadata"]]

    def running(self, app: str) -> list[Object]:
        return [item for item in self.pods(app) if item["status"].get("phase") == "Running"]

    def finalize(self, pod: str, *finalizers: str) -> None:
        """The Pod has these, and what the Job's controller has put there. With `HOLD` it stays, once it is deleted."""
        path = f"/api/v1/namespaces/team-a/pods/{pod}"
        others = [each for each in self.api.get(path)["metadata"].get("finalizers", []) if each != HOLD]
        body = {"metadata": {"finalizers": [*others, *finalizers]}}
        answer = self.api.answer("PATCH", path, body, content_type="application/merge-patch+json")
        assert answer.ok, answer.text

    def taints(self, node: str) -> list[Object]:
        found = self.api.get(f"/api/v1/nodes/{node}")["spec"].get("taints", [])
        return [taint for taint in found if taint["key"] == "gpuwatch.dev/degraded"]

    def logged(self, claim: str) -> bool:
        """Can the API server's log tell whether the claim holds? Where it cannot, the run says so at its end."""
        if self.cluster.own is None:
            UNSEEN.append(f"{os.environ.get('PYTEST_CURRENT_TEST', '').partition(' ')[0]}: {claim}")
        return self.cluster.own is not None

    def writes(self, since: float = 0.0, by: str = "") -> list[Asked]:
        """What the account has asked to have written, dry runs left out. since: Unix seconds. by: a credential."""
        assert self.cluster.own is not None
        return [
            asked
            for asked in self.cluster.own.asked()
            if asked.user == ACCOUNT
            and asked.verb not in ("get", "list", "watch")
            and not asked.dry_run
            and asked.at >= since
            and asked.credential in (by or asked.credential,)
        ]

    def disturbed(self, since: float = 0.0, by: str = "", of: tuple[str, ...] = ("",)) -> list[str]:
        """Of these writes those to objects that are not gpuwatch's own: 'patch nodes gpu-0 200' and so on. of: only
        those whose path has one of these names in it."""
        return [
            told(asked)
            for asked in self.writes(since, by)
            if asked.resource not in OWN and any(name in asked.uri for name in of)
        ]

    def out_of_turn(self) -> list[str]:
        """Writes to others' objects by a replica that was not the last one to take or renew the Lease, or later after
        that than the Lease lasts. What was forbidden is left out: a test asks for such things in gpuwatch's name."""
        found = []
        holder, renewed = "", 0.0
        for asked in sorted(self.writes(), key=lambda asked: asked.at):
            if asked.resource == "leases" and asked.status < 300:
                holder, renewed = asked.credential, asked.at
            elif asked.status == 403 or asked.resource in OWN:
                continue
            elif asked.credential != holder or asked.at - renewed > LEASE_SECONDS:
                found.append(f"{told(asked)} by {asked.credential}, {asked.at - renewed:.1f} s after {holder} renewed")
        return found

    def _places(self) -> Iterator[str]:
        for item in self.api.get("/api/v1/nodes")["items"]:
            taints = [
                f"{each['key']}={each.get('value', '')}:{each['effect']}" for each in item["spec"].get("taints", ())
            ]
            if taints:
                yield f"Node {item['metadata']['name']} {' '.join(taints)}"
        for item in self.api.get("/api/v1/namespaces/team-a/pods")["items"]:
            conditions = (each.get("message", "") for each in item["status"].get("conditions", ()))
            ending = "ending" * ("deletionTimestamp" in item["metadata"])
            where = item["spec"].get("nodeName", "nowhere")
            yield " ".join(("Pod", item["metadata"]["name"], item["status"]["phase"], where, ending, *conditions))

    def until(self, condition: Callable[[], bool], *replicas: Replica, seconds: float = 240) -> None:
        """Raises RuntimeError with what gpuwatch said and keeps, and where the Pods are."""

        def complaint() -> str:
            logs = (f"--- {item.name}\n{item.said()[-6000:]}" for item in replicas)
            return "\n".join(("it did not come to that", *map(_course, self.remediations()), *self._places(), *logs))

        wait_until(condition, complaint, seconds)


@dataclass(frozen=True)
class World(Installed):
    """With a simulated fleet."""

    fleet: LiveFleet

    def started(self, app: str, kind: str, pool: str, gpus: int, copies: int = 1) -> set[str]:
        """The workload runs on the first Node of its pool, which then has a second one; uids of its Pods."""
        self.api.create(workload(kind, app, pool=pool, gpus=gpus, copies=copies))
        self.until(lambda: len(self.running(app)) == copies)
        self.node(f"{pool}-1", pool)
        return {item["metadata"]["uid"] for item in self.running(app)}

    def node(self, name: str, pool: str) -> None:
        """One more Node, that has been free for a while."""
        self.api.create(marked(node(name, pool)))
        self.fleet.history(time.time(), 600, name)


def _course(remediation: Object) -> str:
    """What became of it so far, in a few lines."""
    status = remediation.get("status") or {}
    turns = (f"  {each['time']} {each['phase']}: {each['message']}" for each in status.get("history", ()))
    steps = (
        f"  {each['kind']} {each.get('startTime', '-')} {each.get('completionTime', '-')} {each.get('error', '')}"
        for each in status.get("steps", ())
    )
    rest = {name: value for name, value in status.items() if name not in ("history", "steps", "saved")}
    return "\n".join((f"{remediation['metadata']['name']} {json.dumps(rest)}", *turns, *steps))


def told(asked: Asked) -> str:
    return f"{asked.verb} {asked.resource} {asked.uri.partition('?')[0].rpartition('/')[2]} {asked.status}"


def base() -> list[Object]:
    """deploy/base without gpuwatch itself."""
    return [item for item in documents(DEPLOY / "base") if item["kind"] not in ("Deployment", "PodDisruptionBudget")]


@contextmanager
def world(
    cluster: Cluster, prometheus_build: ServerBuild, folder: Path, nodes: list[Object], *, installed: bool = True
) -> Iterator[World]:
    """The cluster with these Nodes, gpuwatch's base manifests but for its Deployment if it is to be `installed`, and a
    Prometheus that scrapes the Nodes."""
    with ExitStack() as stack:
        pages = stack.enter_context(exporters())
        scraping = [pages.scrape_config(JOB), pages.scrape_config(TENANTS_JOB)]
        prometheus = stack.enter_context(running_prometheus(prometheus_build, scrape_configs=scraping))
        api = Api(cluster.administrator)
        if installed:
            apply(api, map(marked, base()))
        for name in ("team-a", NAMESPACE):
            api.create(marked({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}))
        api.create(daemon_set(pages.port))
        for item in nodes:
            api.create(marked(item))
        fleet = LiveFleet(Api(cluster.administrator), pages, prometheus)
        fleet.history(time.time(), HISTORY_SECONDS)
        stack.enter_context(reporting(fleet))
        yield World(cluster, api, prometheus, folder, fleet)
