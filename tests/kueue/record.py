"""What the taint of a Node does to a gang that Kueue placed by its topology: written down from the real controllers.

    PYTHONPATH=tests .venv/bin/python -m kueue.record        # as root, after `make parts`; needs Go's module proxy

It builds Kueue, which takes five minutes the first time, and then takes as long again. Two racks have two Nodes of
eight GPUs each. A gang uses the ClusterQueue's whole quota, and another team's Workload waits. The API server, the
scheduler, the controllers and Kueue are real; kwok plays the kubelets. In each course a Node of the gang gets
gpuwatch's taint. In some courses one of the gang's Pods there is deleted 5 s later.

The record has a line for each course, and one for each state of a Workload (as v1beta2 and as v1beta1), a Pod or an
Event of Kueue, with the seconds since the taint.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cluster.api import Api
from cluster.control_plane import VERSION, find_control_plane, running
from gpuwatch.facts.frameworks import keys
from kueue.controller import KueueBuild, build_kueue, running_kueue
from parts.processes import wait_until

Object = dict[str, Any]
KUEUE_VERSION = "v0.19.0"
RECORD = Path(__file__).parents[1] / "fixtures" / "kueue" / "taints.jsonl"
GPU, RACK, HOST = "nvidia.com/gpu", "example.org/rack", "kubernetes.io/hostname"
MERGE = "application/merge-patch+json"
GANG, RIVAL = "team-a", "team-b"
"""Namespaces, each with a LocalQueue and a Job of its name."""


@dataclass(frozen=True)
class Course:
    """nodes: how many of the four there are. pods: of the gang, of so many GPUs each. ends: one on the tainted Node is
    deleted then, as a drain or a failure would end it. seconds: recorded after the taint."""

    what: str
    effect: str
    nodes: int
    pods: int
    gpus: int
    ends: bool
    seconds: int


COURSES = {
    "running": Course("The gang runs on under NoSchedule.", "NoSchedule", 4, 3, 8, False, 15),
    "spare": Course("Its Pod there ends. Another Node is free.", "NoSchedule", 4, 3, 8, True, 25),
    "full": Course("Its Pod there ends. No other Node is free.", "NoSchedule", 3, 3, 8, True, 25),
    "mates": Course("One of its two Pods there ends. Another Node is free.", "NoSchedule", 4, 6, 4, True, 120),
    "no_execute": Course("NoExecute ends its Pod there. Another Node is free.", "NoExecute", 4, 3, 8, False, 25),
}


@dataclass
class Recorder:
    """since: when the Node was tainted, by the monotonic clock; 0 before."""

    api: Api
    since: float = 0.0
    frames: list[Object] = field(default_factory=list)
    _seen: dict[str, Object] = field(default_factory=dict)

    def look(self) -> None:
        """Notes each object that has changed since the last look, and each that is gone."""
        at = round(time.monotonic() - self.since, 1) if self.since else 0
        now = {f"{each['apiVersion']}/{each['kind']}/{each['metadata']['name']}": each for each in self._objects()}
        self.frames += [{"seconds": at, "object": each} for key, each in now.items() if self._seen.get(key) != each]
        self.frames += [{"seconds": at, "gone": key} for key in self._seen if key not in now]
        self._seen = now

    def _objects(self) -> Iterator[Object]:
        for team in (GANG, RIVAL):
            for version in ("kueue.x-k8s.io/v1beta2", "kueue.x-k8s.io/v1beta1"):
                for item in self.api.get(f"/apis/{version}/namespaces/{team}/workloads")["items"]:
                    yield workload({**item, "apiVersion": version, "kind": "Workload"})
            for item in self.api.get(f"/api/v1/namespaces/{team}/pods")["items"]:
                yield pod({**item, "apiVersion": "v1", "kind": "Pod"})
            for item in self.api.get(f"/apis/events.k8s.io/v1/namespaces/{team}/events")["items"]:
                if "kueue" in str(item.get("reportingController")):
                    yield event({**item, "apiVersion": "events.k8s.io/v1", "kind": "Event"})


def kept(object_: Object, *names: str) -> Object:
    return {name: object_[name] for name in names if name in object_}


def metadata(found: Object, *more: str) -> Object:
    wanted = ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "ownerReferences", *more)
    return kept(found["metadata"], *wanted)


def workload(found: Object) -> Object:
    """Without the Pod templates, which are long."""
    spec, status = kept(found["spec"], "active", "queueName"), found.get("status", {})
    spec["podSets"] = [kept(each, "name", "count") for each in found["spec"]["podSets"]]
    told = kept(status, "admission", "unhealthyNodes", "schedulingStats", "requeueState")
    told["conditions"] = [
        kept(each, "type", "status", "reason", "message", "lastTransitionTime") for each in status.get("conditions", ())
    ]
    return {**kept(found, "apiVersion", "kind"), "metadata": metadata(found, "labels"), "spec": spec, "status": told}


def pod(found: Object) -> Object:
    spec, status = kept(found["spec"], "nodeName", "nodeSelector", "schedulingGates"), found["status"]
    spec["containers"] = [kept(each, "name", "image", "resources") for each in found["spec"]["containers"]]
    told = kept(status, "phase", "reason")
    told["conditions"] = [each for each in status.get("conditions", ()) if each["type"] in _CONDITIONS]
    meta = metadata(found, "labels", "annotations")
    return {**kept(found, "apiVersion", "kind"), "metadata": meta, "spec": spec, "status": told}


_CONDITIONS = ("PodScheduled", "Ready", "DisruptionTarget", "TerminatedByKueue")


def event(found: Object) -> Object:
    told = kept(found, "apiVersion", "kind", "reason", "type", "note")
    return {**told, "metadata": kept(found["metadata"], "name"), "regarding": kept(found["regarding"], "kind", "name")}


def job(team: str, pods: int, gpus: int) -> Object:
    container = {"name": "main", "image": "example.org/main:1", "resources": {"limits": {GPU: str(gpus)}}}
    asked = {"kueue.x-k8s.io/podset-preferred-topology": RACK}
    template = {
        "metadata": {"annotations": asked},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]},
    }
    spec = {
        "parallelism": pods,
        "completions": pods,
        "completionMode": "Indexed",
        "backoffLimit": 50,
        "suspend": True,
        "template": template,
    }
    meta = {"name": team, "namespace": team, "labels": {"kueue.x-k8s.io/queue-name": team}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}


def provide(api: Api, course: Course) -> None:
    """Nodes, queues and quota: 24 GPUs, all of which the gang takes."""
    kueue = "kueue.x-k8s.io/v1beta2"
    gpus = {GPU: "8", "cpu": "64", "memory": "512Gi", "pods": "110"}
    for index in range(course.nodes):
        name = f"gpu-{index}"
        labels = {HOST: name, RACK: f"r{index // 2}", "example.org/pool": "gpu"}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
        api.create({**node, "status": {"capacity": gpus, "allocatable": gpus}})
    levels = [{"nodeLabel": RACK}, {"nodeLabel": HOST}]
    flavor = {"nodeLabels": {"example.org/pool": "gpu"}, "topologyName": "racks"}
    quota = {"name": "gpu", "resources": [{"name": GPU, "nominalQuota": 24}]}
    queue = {"namespaceSelector": {}, "resourceGroups": [{"coveredResources": [GPU], "flavors": [quota]}]}
    api.create({"apiVersion": kueue, "kind": "Topology", "metadata": {"name": "racks"}, "spec": {"levels": levels}})
    api.create({"apiVersion": kueue, "kind": "ResourceFlavor", "metadata": {"name": "gpu"}, "spec": flavor})
    api.create({"apiVersion": kueue, "kind": "ClusterQueue", "metadata": {"name": "gpus"}, "spec": queue})
    for team in (GANG, RIVAL):
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": team}})
        meta = {"name": team, "namespace": team}
        api.create({"apiVersion": kueue, "kind": "LocalQueue", "metadata": meta, "spec": {"clusterQueue": "gpus"}})


def pods_of(api: Api, team: str) -> list[Object]:
    found: list[Object] = api.get(f"/api/v1/namespaces/{team}/pods")["items"]
    return found


def record(build: KueueBuild, course: Course) -> tuple[str, list[Object]]:
    """When the Node was tainted in a course, and what was seen, in a cluster of its own."""
    control_plane = find_control_plane()
    if control_plane is None:
        raise SystemExit("There is no control plane: make parts builds it.")
    with running(control_plane, alive=True) as cluster:
        api = Api(cluster.administrator)
        with running_kueue(build, cluster):
            provide(api, course)
            recorder = Recorder(api)
            api.create(job(GANG, course.pods, course.gpus))

            def runs() -> bool:
                ready = [each for each in pods_of(api, GANG) if each["status"].get("phase") == "Running"]
                return len(ready) == course.pods

            wait_until(runs, lambda: f"The gang does not run: {pods_of(api, GANG)}")
            api.create(job(RIVAL, 1, 8))
            time.sleep(3)
            recorder.look()
            there = [each for each in pods_of(api, GANG) if each["spec"]["nodeName"] == "gpu-1"]
            taint = {"key": keys.DEGRADED, "value": "xid", "effect": course.effect}
            recorder.since, at = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
            api.answer("PATCH", "/api/v1/nodes/gpu-1", {"spec": {"taints": [taint]}}, content_type=MERGE)
            ends_at = recorder.since + 5
            while time.monotonic() < recorder.since + course.seconds:
                if course.ends and there and time.monotonic() > ends_at:
                    api.delete({**there.pop(), "apiVersion": "v1", "kind": "Pod"})
                    there.clear()
                recorder.look()
                time.sleep(0.1)
            return at, recorder.frames


def main() -> None:
    build = build_kueue(KUEUE_VERSION)
    lines: list[Object] = [{"kueue": KUEUE_VERSION, "kubernetes": VERSION}]
    for name, course in COURSES.items():
        at, frames = record(build, course)
        lines += [{"course": name, **asdict(course), "tainted_at": at}, *frames]
        print(f"{name}: {len(frames)} states", flush=True)
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.write_text("".join(f"{json.dumps(each)}\n" for each in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
