"""A kubelet for tests, beside kwok's, that really runs what a Pod says: each container as a process of this machine.

It takes from the Pod object what a kubelet takes: command, arguments, environment, and as files at their mount paths
ConfigMaps, Secrets, empty folders and the token of its ServiceAccount. Of the image it knows the entry point alone,
which is this checkout's `gpuwatch`. A Pod has no network of its own here, so its port is another one than it says.
What a container may use and which user it is are not looked at: `make image` runs the image itself.

A view of the file system of its own needs Linux.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster.api import Api, Object
from cluster.control_plane import ControlPlane
from parts.gpuwatch_run import GpuwatchRun, asked, begun
from parts.processes import free_port, wait_until

_ENTRY_POINT = [sys.executable, "-m", "gpuwatch.app.cli"]
_LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class Ended:
    """A Pod of a Job that has run. account: of its ServiceAccount."""

    job: str
    account: str
    exit_code: int
    output: str


@dataclass(frozen=True)
class Kubelet:
    """folder: for the files of its Pods. ended: the Pods of Jobs that it has run, in their order."""

    cluster: ControlPlane
    api: Api
    folder: Path
    ended: list[Ended] = field(default_factory=list)

    @contextmanager
    def serving(self, pod: Object, seconds: float = 120) -> Iterator[GpuwatchRun]:
        """The Pod's container until the block ends, from when its readiness probe is answered with success."""
        (container,) = pod["spec"]["containers"]
        probe, port = container["readinessProbe"]["httpGet"]["path"], free_port()
        log = self.folder / f"{pod['metadata']['name']}.log"
        environment = {**self._environment(pod, container), "GPUWATCH_RUN__LISTEN_PORT": str(port)}
        with begun(self._command(pod, container, environment), log, environment, self.folder) as process:
            wait_until(
                lambda: process.poll() is not None or asked(port, probe)[0] == 200,
                lambda: f"{probe} is answered with {asked(port, probe)}: {log.read_text()[-3000:]}",
                seconds,
            )
            assert process.poll() is None, log.read_text()[-3000:]
            yield GpuwatchRun(process, port, log)

    @contextmanager
    def jobs(self, namespace: str) -> Iterator[None]:
        """Pods of Jobs in this Namespace run until the block ends, and end as their processes end."""
        stop = threading.Event()
        failed: list[Exception] = []

        def work() -> None:
            seen: set[str] = set()
            while not stop.wait(_LOOK_SECONDS):
                try:
                    for pod in self.pods(namespace, "Job"):
                        if pod["metadata"]["uid"] not in seen:
                            seen.add(pod["metadata"]["uid"])
                            self._run(pod)
                except Exception as error:  # noqa: BLE001 - told below; a thread's own is lost
                    failed.append(error)

        thread = threading.Thread(target=work, name="kubelet", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(60)
        if failed:
            raise RuntimeError(f"the kubelet failed {len(failed)} times; first: {failed[0]}") from failed[0]

    def pods(self, namespace: str, owner: str) -> list[Object]:
        """Those that kwok made run and that nobody ends, of owners of this kind."""
        return [
            pod
            for pod in self.api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
            if pod["status"].get("phase") == "Running"
            and "deletionTimestamp" not in pod["metadata"]
            and owner in (each["kind"] for each in pod["metadata"].get("ownerReferences", ()))
        ]

    def _run(self, pod: Object) -> None:
        """Its containers, one after the other; then its status says how they ended."""
        code, output = 0, ""
        for container in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]):
            environment = self._environment(pod, container)
            command = self._command(pod, container, environment)
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            code, output = done.returncode, output + done.stdout + done.stderr
            if code != 0:
                break
        metadata = pod["metadata"]
        self.ended.append(Ended(metadata["ownerReferences"][0]["name"], _account(pod), code, output))
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        terminated = {
            "exitCode": code, "reason": "Error" if code else "Completed", "startedAt": moment, "finishedAt": moment
        }  # fmt: skip
        container = pod["spec"]["containers"][0]
        state = {
            "name": container["name"], "image": container["image"], "imageID": "", "ready": False,
            "restartCount": 0, "state": {"terminated": terminated},
        }  # fmt: skip
        status = {"status": {"phase": "Failed" if code else "Succeeded", "containerStatuses": [state]}}
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status"
        answer = self.api.answer("PATCH", path, status, content_type="application/merge-patch+json")
        assert answer.ok or answer.status_code == 404, answer.text

    def _environment(self, pod: Object, container: Object) -> dict[str, str]:
        """What the Pod says, and what a kubelet adds."""
        own = {key: value for key, value in os.environ.items() if not key.startswith(("GPUWATCH_", "KUBE"))}
        host, _, port = self.cluster.url.removeprefix("https://").partition(":")
        found = {**own, "HOME": "/nonexistent", "KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
        for source in container.get("envFrom", ()):
            ((kind, reference),) = source.items()
            found |= self._texts(pod, {"configMapRef": "configmaps", "secretRef": "secrets"}[kind], reference["name"])
        for each in container.get("env", ()):
            found[each["name"]] = _expanded(each["value"], found) if "value" in each else self._from(pod, each)
        return found

    def _from(self, pod: Object, variable: Object) -> str:
        ((kind, reference),) = variable["valueFrom"].items()
        if kind == "fieldRef":
            return _field(pod, reference["fieldPath"])
        plural = {"configMapKeyRef": "configmaps", "secretKeyRef": "secrets"}[kind]
        return self._texts(pod, plural, reference["name"])[reference["key"]]

    def _texts(self, pod: Object, plural: str, name: str) -> dict[str, str]:
        found = self.api.get(f"/api/v1/namespaces/{pod['metadata']['namespace']}/{plural}/{name}").get("data", {})
        if plural == "secrets":
            return {key: base64.b64decode(value).decode() for key, value in found.items()}
        return dict(found)

    def _command(self, pod: Object, container: Object, environment: Mapping[str, str]) -> list[str]:
        """The container's command where it sees its mounts."""
        said = [_expanded(each, environment) for each in (*container.get("command", ()), *container.get("args", ()))]
        if "command" not in container:
            said = [*_ENTRY_POINT, *said]
        elif said[0] == "gpuwatch":
            said = [*_ENTRY_POINT, *said[1:]]
        volumes = {each["name"]: each for each in pod["spec"].get("volumes", ())}
        place = self.folder / pod["metadata"]["uid"]
        mounts: dict[Path, Path] = {}
        for mount in container.get("volumeMounts", ()):
            source = place / mount["name"]
            if not source.exists():
                source.mkdir(parents=True)
                self._fill(pod, volumes[mount["name"]], source)
            mounts[Path(mount["mountPath"])] = source / mount.get("subPath", "")
        return _seeing(mounts, place / "view", said)

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
            return {each["path"]: _field(pod, each["fieldRef"]["fieldPath"]) for each in spec["items"]}
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


def _field(pod: Object, path: str) -> str:
    """Of the Pod, as the downward API names it."""
    found: Any = pod
    for name in path.split("."):
        found = found[name]
    return found if isinstance(found, str) else json.dumps(found)


def _expanded(text: str, environment: Mapping[str, str]) -> str:
    """$(NAME) is the variable's value, or stays where there is none."""
    return re.sub(r"\$\(([A-Za-z_][\w.-]*)\)", lambda found: environment.get(found[1], found[0]), text)


def _seeing(mounts: Mapping[Path, Path], scratch: Path, command: list[str]) -> list[str]:
    """The command where these folders (place → what is there) are mounted, and nothing of it is seen from outside.

    A place that is not there is made in an overlay over the nearest folder that is. /tmp comes last: what is mounted
    may lie in it.
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
    for place in sorted(places, key=lambda each: each == Path("/tmp")):
        script.append(f"mkdir -p {shlex.quote(str(place))}")
        script.append(f"mount --bind {shlex.join([str(places[place]), str(place)])}")
    script.append('exec "$@"')
    as_root = () if os.geteuid() == 0 else ("--map-root-user",)
    return ["unshare", "--mount", *as_root, "sh", "-c", "\n".join(script), "sh", *command]
