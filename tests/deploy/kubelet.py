"""A kubelet for tests, beside kwok's, that really runs what Pods say: each container as a process of this machine.

It takes from the Pod object what a kubelet takes: command, arguments, environment, and as files at their mount paths
ConfigMaps, Secrets, empty folders and the token of its ServiceAccount. A process ends with its Pod. One that ends by
itself is begun again or ends its Pod, as restartPolicy says. Of the image it knows the entry point alone, which is this
checkout's `gpuwatch`. A Pod has no network of its own here, so its port is another one than it says. What a container
may use and which user it is are not looked at: `make image` runs the image itself.

A view of the file system of its own needs Linux.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cluster.api import Api, Object
from cluster.control_plane import ControlPlane
from deploy.pod_environment import expanded, field_of, pod_environment
from parts.gpuwatch_run import GpuwatchRun
from parts.processes import free_port

CHECKOUT = Path(__file__).resolve().parents[2]
ENTRY_POINT = [sys.executable, "-m", "gpuwatch.app.cli.main"]
_LOOK_SECONDS = 0.3


@dataclass(frozen=True)
class Ended:
    """A container that has ended by itself. account: of its ServiceAccount."""

    pod: str
    account: str
    exit_code: int
    output: str


@dataclass(frozen=True)
class Kubelet:
    """folder: for the files of its Pods. replicas: the main containers that run now, by Pod. ended: in their order."""

    cluster: ControlPlane
    api: Api
    folder: Path
    replicas: dict[str, GpuwatchRun] = field(default_factory=dict)
    ended: list[Ended] = field(default_factory=list)

    @contextlib.contextmanager
    def running(self, namespace: str) -> Iterator[None]:
        """The Pods of this Namespace run until the block ends. Raises RuntimeError then where one could not."""
        stop = threading.Event()
        failed: list[Exception] = []
        threads: dict[str, threading.Thread] = {}

        def keep(pod: Object) -> None:
            try:
                self._run(pod, stop)
            except Exception as error:  # noqa: BLE001 - told below; a thread's own is lost
                failed.append(error)

        def look() -> None:
            while not stop.wait(_LOOK_SECONDS):
                answer = self.api.answer("GET", f"/api/v1/namespaces/{namespace}/pods")
                for pod in answer.json()["items"] if answer.ok else ():
                    uid = pod["metadata"]["uid"]
                    if uid not in threads and pod["status"].get("phase") == "Running":
                        threads[uid] = threading.Thread(target=keep, args=(pod,), name=uid, daemon=True)
                        threads[uid].start()

        looking = threading.Thread(target=look, name="kubelet", daemon=True)
        looking.start()
        try:
            yield
        finally:
            stop.set()
            for thread in (looking, *threads.values()):
                thread.join(60)
        if failed:
            raise RuntimeError(f"{len(failed)} Pods could not be run; first: {failed[0]}") from failed[0]

    def _run(self, pod: Object, stop: threading.Event) -> None:
        """Its containers one after the other, the last one as often as its Pod wants."""
        metadata, spec = pod["metadata"], pod["spec"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"

        def wanted() -> bool:
            answer = self.api.answer("GET", path)
            gone = answer.status_code == 404 or "deletionTimestamp" in answer.json()["metadata"]
            return not gone and not stop.is_set()

        containers = [*spec.get("initContainers", ()), *spec["containers"]]
        while wanted():
            code: int | None = 0
            for container in containers:
                log = self.folder / f"{metadata['name']}-{container['name']}.log"
                code = self._container(pod, container, log, wanted)
                if code is None:
                    return
                self.ended.append(Ended(metadata["name"], _account(pod), code, log.read_text()))
                if code != 0:
                    break
            if spec["restartPolicy"] == "Never":
                self._finish(pod, path, code or 0)
                return
            stop.wait(2.0)

    def _container(self, pod: Object, container: Object, log: Path, wanted: Any) -> int | None:
        """Its exit code; None where the Pod was taken away."""
        port = free_port()
        environment = {**self._environment(pod, container), "GPUWATCH_RUN__LISTEN_PORT": str(port)}
        command, name = self._command(pod, container, environment), pod["metadata"]["name"]
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, cwd=self.folder)
        if "readinessProbe" in container:
            self.replicas[name] = GpuwatchRun(process, port, log)
        try:
            while process.poll() is None:
                if not wanted():
                    process.send_signal(signal.SIGTERM)
                    process.wait(pod["spec"].get("terminationGracePeriodSeconds", 30))
                    return None
                time.sleep(_LOOK_SECONDS)
            return process.returncode
        finally:
            self.replicas.pop(name, None)
            if process.poll() is None:
                process.kill()
                process.wait(10)

    def _finish(self, pod: Object, path: str, code: int) -> None:
        """What a kubelet says of a Pod whose containers have ended."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        why = "Error" if code else "Completed"
        terminated = {"exitCode": code, "reason": why, "startedAt": moment, "finishedAt": moment}
        container = pod["spec"]["containers"][0]
        state = {"name": container["name"], "image": container["image"], "imageID": "", "ready": False}
        state |= {"restartCount": 0, "state": {"terminated": terminated}}
        status = {"status": {"phase": "Failed" if code else "Succeeded", "containerStatuses": [state]}}
        answer = self.api.answer("PATCH", f"{path}/status", status, content_type="application/merge-patch+json")
        assert answer.ok or answer.status_code == 404, answer.text

    def _environment(self, pod: Object, container: Object) -> dict[str, str]:
        """What a kubelet makes, this machine's PATH, and the API server where it is: nothing here carries a Service's
        address."""
        own = {key: value for key, value in os.environ.items() if not key.startswith(("GPUWATCH_", "KUBE"))}
        services = self.api.get("/api/v1/services")["items"]
        made = pod_environment(pod, container, services, lambda plural, name: self._texts(pod, plural, name))
        host, _, port = self.cluster.url.removeprefix("https://").partition(":")
        server = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
        return {**own, "HOME": "/nonexistent", **made, **server}

    def _texts(self, pod: Object, plural: str, name: str) -> dict[str, str]:
        found = self.api.get(f"/api/v1/namespaces/{pod['metadata']['namespace']}/{plural}/{name}").get("data", {})
        if plural == "secrets":
            return {key: base64.b64decode(value).decode() for key, value in found.items()}
        return dict(found)

    def _command(self, pod: Object, container: Object, environment: Mapping[str, str]) -> list[str]:
        """The container's command where it sees its mounts."""
        said = [expanded(each, environment) for each in (*container.get("command", ()), *container.get("args", ()))]
        if "command" not in container:
            said = [*ENTRY_POINT, *said]
        elif said[0] == "gpuwatch":
            said = [*ENTRY_POINT, *said[1:]]
        volumes = {each["name"]: each for each in pod["spec"].get("volumes", ())}
        place = self.folder / pod["metadata"]["uid"]
        mounts: dict[Path, Path] = {}
        for mount in container.get("volumeMounts", ()):
            source = place / mount["name"]
            if not source.exists():
                source.mkdir(parents=True)
                self._fill(pod, volumes[mount["name"]], source)
            mounts[Path(mount["mountPath"])] = source / mount.get("subPath", "")
        return seeing(mounts, place / "view", said)

    def _fill(self, pod: Object, volume: Object, folder: Path) -> None:
        """The files of a volume of the kinds that the chart uses."""
        ((kind, spec),) = ((key, value) for key, value in volume.items() if key != "name")
        if kind == "emptyDir":
            return
        for source in spec["sources"] if kind == "projected" else ({kind: spec},):
            ((what, said),) = source.items()
            for name, text in self._files(pod, what, said).items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(text)

    def _files(self, pod: Object, kind: str, spec: Mapping[str, Any]) -> dict[str, str]:
        if kind == "serviceAccountToken":
            return {spec["path"]: self._token(pod, spec)}
        if kind == "downwardAPI":
            return {each["path"]: field_of(pod, each["fieldRef"]["fieldPath"]) for each in spec["items"]}
        plural, name = {"configMap": ("configmaps", "name"), "secret": ("secrets", "secretName")}[kind]
        found = self._texts(pod, plural, spec.get(name) or spec["name"])
        chosen = {each["key"]: each["path"] for each in spec.get("items", ())}
        return {chosen.get(key, key): text for key, text in found.items() if not chosen or key in chosen}

    def _token(self, pod: Object, spec: Mapping[str, Any]) -> str:
        metadata = pod["metadata"]
        bound = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
        wanted: Object = {"expirationSeconds": spec.get("expirationSeconds", 3600), "boundObjectRef": bound}
        if "audience" in spec:
            wanted["audiences"] = [spec["audience"]]
        path = f"/api/v1/namespaces/{metadata['namespace']}/serviceaccounts/{_account(pod)}/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": wanted}
        answer = self.api.answer("POST", path, body)
        assert answer.ok, answer.text
        return str(answer.json()["status"]["token"])


def _account(pod: Object) -> str:
    return str(pod["spec"].get("serviceAccountName") or "default")


def can_run() -> bool:
    """Whether this machine lets a process have a view of the file system of its own."""
    with TemporaryDirectory() as folder, contextlib.suppress(FileNotFoundError):
        try_it = seeing({Path("/etc/gpuwatch-test"): Path(folder)}, Path(folder) / "view", ["true"])
        return subprocess.run(try_it, capture_output=True, check=False).returncode == 0
    return False


def seeing(mounts: Mapping[Path, Path], scratch: Path, command: list[str]) -> list[str]:
    """The command where these folders (place → what is there) are mounted, and nothing of it is seen from outside.

    A place that is not there is made in an overlay over the nearest folder that is. /tmp comes last: what is mounted
    may lie in it. So may the checkout, whose programs are run.
    """
    scratch.mkdir(exist_ok=True)
    script = ["set -e", f"mount -t tmpfs tmpfs {shlex.quote(str(scratch))}"]
    places = {place.resolve(): source for place, source in mounts.items()}
    parents = {next(each for each in place.parents if each.exists()) for place in places if not place.exists()}
    for number, parent in enumerate(sorted(parents)):
        upper, work = scratch / f"upper-{number}", scratch / f"work-{number}"
        script.append(f"mkdir {shlex.join([str(upper), str(work)])}")
        options = f"lowerdir={parent},upperdir={upper},workdir={work}"
        script.append(f"mount -t overlay overlay -o {shlex.quote(options)} {shlex.quote(str(parent))}")
    script.append(f"exec 9< {shlex.quote(str(CHECKOUT))}")
    for place in sorted(places, key=lambda each: each == Path("/tmp")):
        script.append(f"mkdir -p {shlex.quote(str(place))}")
        script.append(f"mount --bind {shlex.join([str(places[place]), str(place)])}")
        if place in CHECKOUT.parents:
            script.append(f"mkdir -p {shlex.quote(str(CHECKOUT))}")
            script.append(f"mount --no-canonicalize --bind /proc/self/fd/9 {shlex.quote(str(CHECKOUT))}")
    script.append('exec "$@" 9<&-')
    as_root = () if os.geteuid() == 0 else ("--map-root-user",)
    return ["unshare", "--mount", *as_root, "sh", "-c", "\n".join(script), "sh", *command]
