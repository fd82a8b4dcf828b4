"""Records what Nodes, Pods, Jobs and Events show while something happens to real Nodes: `make record-nodes`.

    with running_nodes(build, count=2) as nodes:
        lines = recorded(nodes, "kubelet-restarts")

Each line is one change with the time at which it was seen: `{"at", "new": object}`, `{"at", "of": key, "patch": JSON
merge patch}`, `{"at", "of": key, "gone": true}`, or `{"at", "mark": what is done now}`. Of an object only the fields in
`KEPT` are there, and a change of others is no line. The recorder holds that gpuwatch reads the same of them as of the
whole. `node_replay.py` reads recordings.
"""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from cluster.api import Api, Object
from cluster.control_plane import find_control_plane
from cluster.node_replay import RECORDINGS, Line, key_of
from cluster.real_node import WORKLOAD, RealNodes, running_nodes
from cluster.test_real_node import FORGIVES, GPU, device_health, evict, gpus_of, job, pod_spec
from gpuwatch.facts.frameworks import OWNERS
from gpuwatch.sources.kube.nodes import take_node
from gpuwatch.sources.kube.owners import TakeOwner
from gpuwatch.sources.kube.pods import take_pod
from parts.processes import wait_until

TEAMS = {"team-a": "vision", "team-b": "speech"}
"""Namespace → its label `team`."""
PULLED = "localhost/absent:1"
"""An image that no Node has, of a registry that no Node reaches."""

_ALL = True
_META = dict.fromkeys(("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp"), _ALL) | dict.fromkeys(
    ("deletionGracePeriodSeconds", "labels", "annotations", "ownerReferences", "finalizers"), _ALL
)
_CONDITION = dict.fromkeys(("type", "status", "reason", "message", "lastTransitionTime"), _ALL)
_ENDED = dict.fromkeys(("exitCode", "reason", "message", "startedAt", "finishedAt"), _ALL)
_STATE = {"running": _ALL, "waiting": _ALL, "terminated": _ENDED}
_CONTAINER = {"name": _ALL, "ready": _ALL, "restartCount": _ALL, "state": _STATE, "allocatedResourcesStatus": _ALL}
_SET = {"subresource": _ALL, "fieldsV1": {"f:spec": {"f:containers": {}, "f:nodeName": {}}}}
KEPT: Mapping[str, Any] = {
    "Namespace": {"metadata": _META},
    "Node": {
        "metadata": _META,
        "spec": dict.fromkeys(("unschedulable", "taints"), _ALL),
        "status": {
            **dict.fromkeys(("capacity", "allocatable", "addresses"), _ALL),
            "conditions": _CONDITION,
            "nodeInfo": {"bootID": _ALL},
        },
    },
    "Pod": {
        "metadata": {**_META, "managedFields": _SET},
        "spec": _ALL,
        "status": {
            **dict.fromkeys(("phase", "reason", "message", "startTime"), _ALL),
            "conditions": _CONDITION,
            "containerStatuses": _CONTAINER,
        },
    },
    "Job": {
        "metadata": _META,
        "spec": _ALL,
        "status": {
            **dict.fromkeys(("active", "ready", "failed", "succeeded", "terminating", "startTime"), _ALL),
            "conditions": _CONDITION,
        },
    },
    "Event": {
        "metadata": dict.fromkeys(("name", "namespace", "uid"), _ALL),
        "involvedObject": dict.fromkeys(("kind", "namespace", "name", "uid"), _ALL),
        **dict.fromkeys(("reason", "message", "type", "count", "firstTimestamp", "lastTimestamp"), _ALL),
    },
}
"""The fields that are written of each kind: those that gpuwatch reads, those that identify, and what people look at."""
_PATHS = {
    "Namespace": "/api/v1/namespaces",
    "Node": "/api/v1/nodes",
    "Pod": "/api/v1/pods",
    "Job": "/apis/batch/v1/jobs",
    "Event": "/api/v1/events",
}
_VERSIONS = {"Job": "batch/v1"}
_READ: Mapping[str, Callable[[msgspec.Raw], Any]] = {
    "Node": take_node,
    "Pod": take_pod,
    "Job": TakeOwner(OWNERS["batch", "Job"]),
}


def kept(kind: str, found: Object) -> Object:
    """The object without the fields that are not written. Raises ValueError where gpuwatch would read it otherwise."""
    written: Object = {"apiVersion": _VERSIONS.get(kind, "v1"), "kind": kind, **_chosen(found, KEPT[kind])}
    if kind in _READ:
        whole, short = (_READ[kind](msgspec.Raw(json.dumps(each).encode())) for each in (found, written))
        if whole != short:
            raise ValueError(f"a field that gpuwatch reads is not in KEPT: {whole} became {short}")
    return written


def _chosen(found: Any, fields: Any) -> Any:
    if isinstance(found, list):
        return [_chosen(each, fields) for each in found]
    if fields is _ALL or not isinstance(found, dict):
        return found
    return {name: _chosen(value, fields[name]) for name, value in found.items() if name in fields}


def merge_patch(old: Any, new: Any) -> Any:
    """RFC 7396: what makes `new` of `old`."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    gone: Object = dict.fromkeys(old.keys() - new.keys())
    return gone | {
        name: merge_patch(old.get(name), value) for name, value in new.items() if name not in old or old[name] != value
    }


@dataclass
class Recorder:
    """now: the objects as they were last seen."""

    lines: list[Line] = field(default_factory=list)
    now: dict[str, Object] = field(default_factory=dict)
    failed: list[BaseException] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def mark(self, what: str) -> None:
        with self._lock:
            self._write({"mark": what})

    def seen(self, kind: str, found: Object, *, gone: bool = False) -> None:
        with self._lock:
            written = kept(kind, found)
            key = key_of(written)
            old = self.now.get(key)
            if gone:
                self.now.pop(key, None)
                self._write({"of": key, "gone": True})
            elif old is None:
                self._write({"new": written})
            elif old != written:
                self._write({"of": key, "patch": merge_patch(old, written)})
            if not gone:
                self.now[key] = written

    def _write(self, line: Line) -> None:
        at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self.lines.append({"at": at, **line})


@contextmanager
def recording(administrator: Path | str) -> Iterator[Recorder]:
    """What is there now, and each change until the block ends."""
    found, stop, threads = Recorder(), threading.Event(), []
    for kind, path in _PATHS.items():
        api = Api(administrator)
        page = api.get(path)
        for item in page["items"] if kind != "Event" else ():
            if kind != "Namespace" or item["metadata"]["name"] in TEAMS:
                found.seen(kind, item)
        if kind != "Namespace":
            told = (found, api, kind, page["metadata"]["resourceVersion"], stop)
            threads.append(threading.Thread(target=_follow, args=told))
    for each in threads:
        each.start()
    try:
        yield found
    finally:
        stop.set()
        for each in threads:
            each.join()
    if found.failed:
        raise found.failed[0]


def _follow(into: Recorder, api: Api, kind: str, version: str, stop: threading.Event) -> None:
    try:
        while not stop.is_set():
            for change in api.changes(_PATHS[kind], version, seconds=2):
                version = change["object"]["metadata"]["resourceVersion"]
                if change["type"] != "BOOKMARK":
                    into.seen(kind, change["object"], gone=change["type"] == "DELETED")
    except (OSError, LookupError, ValueError) as error:  # a KeyError: the watch told of an error instead
        into.failed.append(error)


@dataclass(frozen=True)
class Stage:
    """Two Nodes with four GPUs each. What a scene waits for, it waits for in the recording."""

    nodes: RealNodes
    api: Api
    recorder: Recorder

    def mark(self, what: str) -> None:
        self.recorder.mark(what)

    def pods(self, phase: str = "") -> list[Object]:
        every = [each for key, each in list(self.recorder.now.items()) if key.startswith("Pod/")]
        return [each for each in every if phase in ("", each.get("status", {}).get("phase"))]

    def running(self) -> list[Object]:
        """Pods that are ready, and are to go on."""
        ready = {"type": "Ready", "status": "True"}
        return [
            each
            for each in self.pods("Running")
            if "deletionTimestamp" not in each["metadata"]
            and any(ready.items() <= told.items() for told in each["status"]["conditions"])
        ]

    def until(self, holds: Callable[[], bool], seconds: float = 90) -> None:
        def complaint() -> str:
            return json.dumps([each["status"] for each in self.pods()], indent=1)[-3000:]

        wait_until(holds, complaint, seconds)

    def gpus(self, index: int) -> tuple[str, str]:
        """Capacity of a Node, and what of it is allocatable, as they were last seen."""
        status = self.recorder.now[f"Node//{self.nodes[index].name}"]["status"]
        return status["capacity"].get(GPU, ""), status["allocatable"].get(GPU, "")


def _one(*arguments: str, **more: Any) -> Object:
    """A Job with one Pod that takes all GPUs of a Node."""
    return job("train", pod_spec(*arguments, gpus=4, terminationGracePeriodSeconds=20), **more)


def _plugin_restarts(stage: Stage) -> None:
    stage.mark("the device plugin of gpu-0 ends")
    with stage.nodes[0].without("gpu-plugin"):
        stage.until(lambda: stage.gpus(0) == ("4", "0"))
        time.sleep(3)
        stage.mark("it is back")
    stage.until(lambda: stage.gpus(0) == ("4", "4"))


def _kubelet_restarts(stage: Stage) -> None:
    for index in range(2):
        stage.mark(f"the kubelet of gpu-{index} is restarted; its device plugin registers anew by itself")
        stage.nodes[index].restart("kubelet")
        stage.until(lambda index=index: stage.gpus(index) == ("0", "0"))  # type: ignore[misc]
        stage.until(lambda index=index: stage.gpus(index) == ("4", "4"))  # type: ignore[misc]
        time.sleep(3)


def _device_unhealthy(stage: Stage) -> None:
    node = stage.nodes[0]
    stage.mark("the device plugin of gpu-0 calls GPU 1 unhealthy, which the Pod holds")
    node.set_gpu(1, health="Unhealthy")
    try:
        stage.until(lambda: stage.gpus(0) == ("4", "3") and "Unhealthy" in device_health(stage.running()[0]))
        time.sleep(3)
    finally:
        stage.mark("it calls it healthy again")
        node.set_gpu(1, health="Healthy")
    stage.until(lambda: stage.gpus(0) == ("4", "4") and "Unhealthy" not in device_health(stage.running()[0]))


def _refusals(stage: Stage) -> None:
    eater = stage.nodes[0]
    stage.mark("the device plugin of gpu-0 gives no Pod a GPU, and calls all healthy; two teams send six Pods each")
    eater.set_gpu(0, refuses=True)
    try:
        for space in TEAMS:
            made = job("serve", pod_spec(), parallelism=6, completions=6, backoffLimit=20)
            made["metadata"]["namespace"] = space
            stage.api.create(made)
        stage.until(lambda: len(stage.running()) == 4 and len(stage.pods("Failed")) == 8)
    finally:
        stage.mark("it gives GPUs again; the Jobs wait before they try again")
        eater.set_gpu(0, refuses=False)
    stage.mark("the kubelet of gpu-0 is restarted")
    eater.restart("kubelet")
    stage.until(lambda: all("containerStatuses" in each["status"] for each in stage.pods("Failed")))


def _eviction(stage: Stage) -> None:
    (first,) = stage.running()
    stage.mark("the Pod is evicted; its process ends after 4 s, with exit code 0")
    assert evict(stage.api, first) == 201
    _next_runs(stage, first)


def _next_runs(stage: Stage, first: Object) -> None:
    """Another Pod in its place, when it is gone."""
    stage.until(lambda: [each["metadata"]["uid"] for each in stage.running()] not in ([], [first["metadata"]["uid"]]))
    stage.until(lambda: len(stage.pods()) == 1)


def _forgiven(stage: Stage) -> None:
    (first,) = stage.running()
    stage.mark("the Pod is evicted; its process ends after 4 s, with exit code 0")
    assert evict(stage.api, first) == 201
    stage.until(lambda: "Complete" in json.dumps(stage.recorder.now["Job/team-a/train"]["status"]))


def _pull_fails(stage: Stage) -> None:
    spec = pod_spec(gpus=4)
    spec["containers"][0] |= {"image": PULLED}
    stage.mark("a Job whose image cannot be pulled")
    stage.api.create(job("train", spec))
    stage.until(lambda: any("ImagePullBackOff" in json.dumps(each["status"]) for each in stage.pods("Pending")))
    stage.mark("the image can be had now")
    names = ("ctr", "--address=/run/node/containerd.sock", "--namespace=k8s.io", "images", "tag")
    for node in stage.nodes.nodes:
        node.run(*names, WORKLOAD, PULLED)
    try:
        stage.until(lambda: len(stage.running()) == 1, 120)
    finally:
        for node in stage.nodes.nodes:
            node.run(*names[:-1], "remove", PULLED)


def _never_ends(stage: Stage) -> None:
    (first,) = stage.running()
    stage.mark(
        "the kubelet of gpu-0 ends, and the Pod is deleted with a grace period of 3 s; its process ignores SIGTERM"
    )
    with stage.nodes[0].without("kubelet"):
        path = f"/api/v1/namespaces/team-a/pods/{first['metadata']['name']}"
        stage.api.answer("DELETE", path, {"gracePeriodSeconds": 3})
        time.sleep(12)
        stage.mark("the kubelet is back")
    _next_runs(stage, first)


@dataclass(frozen=True)
class Scene:
    """first: the Job that runs on the first Node when the recording begins. plain: so does a Pod without a GPU."""

    course: Callable[[Stage], None]
    first: Object | None = None
    plain: bool = False


SCENES: Mapping[str, Scene] = {
    "plugin-restarts": Scene(_plugin_restarts, _one()),
    "kubelet-restarts": Scene(_kubelet_restarts, _one(), plain=True),
    "device-unhealthy": Scene(_device_unhealthy, _one()),
    "refusals": Scene(_refusals),
    "eviction": Scene(_eviction, _one("--end-seconds=4", backoffLimit=1)),
    "eviction-forgiven": Scene(_forgiven, _one("--end-seconds=4", podFailurePolicy=FORGIVES)),
    "pull-fails": Scene(_pull_fails),
    "never-ends": Scene(_never_ends, _one("--ignore-term")),
}


def recorded(nodes: RealNodes, name: str) -> Sequence[Line]:
    """The scene on these Nodes, which have nothing else to do, and afterwards nothing."""
    api, scene = Api(nodes.cluster.administrator), SCENES[name]
    prepared(api)
    try:
        _set_up(nodes, api, scene)
        with recording(nodes.cluster.administrator) as recorder:
            scene.course(Stage(nodes, api, recorder))
            time.sleep(2)
    finally:
        _clear(api)
    return recorder.lines


def prepared(api: Api) -> None:
    """Makes the Namespaces, where they are not there yet."""
    for name, team in TEAMS.items():
        if not api.answer("GET", f"/api/v1/namespaces/{name}").ok:
            metadata = {"name": name, "labels": {"team": team}}
            api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})


def _set_up(nodes: RealNodes, api: Api, scene: Scene) -> None:
    other = f"/api/v1/nodes/{nodes[1].name}"
    made = [] if scene.first is None else [scene.first]
    if scene.plain:
        spec = pod_spec()
        del spec["containers"][0]["resources"]["limits"]
        made.append(job("plain", spec))

    def cordon(value: bool) -> None:
        answer = api.answer(
            "PATCH", other, {"spec": {"unschedulable": value}}, content_type="application/merge-patch+json"
        )
        assert answer.ok, answer.text

    if not made:
        return
    cordon(True)
    for each in made:
        api.create(each)

    def ready() -> bool:
        status = [each["status"] for each in api.get("/apis/batch/v1/jobs")["items"]]
        return len(status) == len(made) and all(each.get("ready") == 1 for each in status)

    wait_until(ready, lambda: json.dumps(api.get("/api/v1/pods")["items"])[-3000:], 60)
    cordon(False)
    wait_until(lambda: gpus_of(api, nodes[0]) == gpus_of(api, nodes[1]) == ("4", "4"), lambda: "GPUs are missing")
    wait_until(lambda: not api.get(other)["spec"].get("taints"), lambda: "it stays cordoned")


def _clear(api: Api) -> None:
    for space in TEAMS:
        api.answer("DELETE", f"/apis/batch/v1/namespaces/{space}/jobs", {"propagationPolicy": "Background"})
        api.answer("DELETE", f"/api/v1/namespaces/{space}/pods", {"gracePeriodSeconds": 0})
    wait_until(lambda: not api.get("/api/v1/pods")["items"], lambda: json.dumps(api.get("/api/v1/pods"))[-3000:])


def main(names: Sequence[str]) -> None:
    """Writes the recordings, or those that are named."""
    build = find_control_plane()
    if build is None:
        raise SystemExit("there is no control plane: make parts")
    RECORDINGS.mkdir(exist_ok=True)
    with running_nodes(build, count=2) as nodes:
        for name in names or SCENES:
            lines = recorded(nodes, name)
            text = "".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in lines)
            (RECORDINGS / f"{name}.jsonl").write_text(text)
            print(f"{name}: {len(lines)} lines, {len(text) / 1000:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
