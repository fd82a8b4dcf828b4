"""Random histories of a cluster: what people, controllers and kubelets write to an API server, from a seed."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cluster.api import Api, Object

MERGE = "application/merge-patch+json"
# Of two Namespaces whose names begin alike, the order of a list is not that of the names.
NAMESPACES = ("hist", "hist-b")
_GPU = {"limits": {"nvidia.com/gpu": "1"}}
_KINDS = {
    "ReplicaSet": ("apps/v1", "replicasets"),
    "Deployment": ("apps/v1", "deployments"),
    "Job": ("batch/v1", "jobs"),
}


@dataclass
class History:
    """One cluster's life. `step` writes once, or does nothing where the server refuses (a name that is taken)."""

    api: Api
    random: random.Random
    pods: list[Object] = field(default_factory=list)
    owners: list[Object] = field(default_factory=list)
    made: int = 0

    def begin(self) -> None:
        for name in NAMESPACES:
            self.api.answer("POST", "/api/v1/namespaces", {"metadata": {"name": name}})

    def step(self) -> None:
        steps: tuple[tuple[Callable[[], None], int], ...] = (
            (self.create_pod, 6), (self.patch_pod, 5), (self.end_pod, 2), (self.delete_pod, 3), (self.own_pod, 3),
            (self.node, 4), (self.create_owner, 3), (self.patch_owner, 2), (self.delete_owner, 2), (self.budget, 2),
            (self.namespace, 1), (self.claim, 2),
        )  # fmt: skip
        (chosen,) = self.random.choices([step for step, _ in steps], [weight for _, weight in steps])
        chosen()

    # Pods

    def create_pod(self) -> None:
        gpu = self.random.random() < 0.6
        spec: Object = {
            "containers": [{"name": "main", "image": "registry.example/app:1", **({"resources": _GPU} if gpu else {})}]
        }
        if self.random.random() < 0.8:
            spec["nodeName"] = f"hist-{self.random.randrange(3)}"
        labels = {"app": self.random.choice(["chat", "nvidia-dcgm-exporter", "train"])}
        meta = {"labels": labels, **self._owned()}
        found = self._create("/api/v1", "pods", meta, spec=spec)
        if found:
            self.pods.append(found)

    def patch_pod(self) -> None:
        value = str(self.random.randrange(100))
        self._patch_pod({"metadata": {"labels": {"value": value}, "annotations": {"gpuwatch.dev/opt-out": value}}})

    def own_pod(self) -> None:
        self._patch_pod({"metadata": {"ownerReferences": self._owned().get("ownerReferences")}})

    def end_pod(self) -> None:
        phase = self.random.choice(["Running", "Succeeded", "Failed"])
        self._patch_pod({"status": {"phase": phase, "podIP": "10.9.0.1", "podIPs": [{"ip": "10.9.0.1"}]}}, "/status")

    def delete_pod(self) -> None:
        """At once, or in an hour, since no kubelet is there to end it."""
        if self.pods:
            pod = self.pods.pop(self.random.randrange(len(self.pods)))
            seconds = self.random.choice([0, 0, 3600])
            self.api.answer(
                "DELETE", self._path("/api/v1", "pods", pod), parameters={"gracePeriodSeconds": str(seconds)}
            )

    def _patch_pod(self, patch: Object, subresource: str = "") -> None:
        if self.pods:
            pod = self.random.choice(self.pods)
            self.api.answer("PATCH", self._path("/api/v1", "pods", pod) + subresource, patch, content_type=MERGE)

    def _owned(self) -> dict[str, Any]:
        """Metadata of something with an owner: one that is there, one that is gone, another Pod, or none."""
        choice = self.random.random()
        if choice < 0.6 and self.owners:
            owner = self.random.choice(self.owners)
        elif choice < 0.7 and self.pods:
            owner = {"apiVersion": "v1", "kind": "Pod", **self.random.choice(self.pods)}
        elif choice < 0.8:
            owner = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "gone", "uid": "0-0"}}
        else:
            return {}
        meta = owner["metadata"]
        named = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": meta["name"], "uid": meta["uid"]}
        return {"ownerReferences": [{**named, "controller": True}]}

    # Owners

    def create_owner(self) -> None:
        kind = self.random.choice(sorted(_KINDS))
        api_version, plural = _KINDS[kind]
        template = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "main", "image": "x"}]}}
        spec: Object = {"template": template, "selector": {"matchLabels": {"app": "x"}}, "replicas": 1}
        if kind == "Job":
            template["spec"]["restartPolicy"] = "Never"
            spec = {
                "template": template,
                "completionMode": "Indexed",
                "completions": 2,
                "parallelism": 2,
                "suspend": True,
            }
        above = self._owned() if kind == "ReplicaSet" else {}
        found = self._create(f"/apis/{api_version}", plural, {"labels": {"team": "a"}, **above}, spec=spec)
        if found:
            self.owners.append({**found, "apiVersion": api_version, "kind": kind})

    def patch_owner(self) -> None:
        if self.owners:
            owner = self.random.choice(self.owners)
            spec = (
                {"suspend": self.random.random() < 0.5}
                if owner["kind"] == "Job"
                else {"replicas": self.random.randrange(9)}
            )
            annotations = {"gpuwatch.dev/snooze": str(self.random.randrange(9)), "other": "x"}
            patch = {"metadata": {"annotations": annotations}, "spec": spec}
            self.api.answer("PATCH", self._owner_path(owner), patch, content_type=MERGE)

    def delete_owner(self) -> None:
        if self.owners:
            owner = self.owners.pop(self.random.randrange(len(self.owners)))
            self.api.answer("DELETE", self._owner_path(owner), parameters={"propagationPolicy": "Background"})

    def _owner_path(self, owner: Object) -> str:
        api_version, plural = _KINDS[owner["kind"]]
        return self._path(f"/apis/{api_version}", plural, owner)

    # The rest

    def node(self) -> None:
        name = f"hist-{self.random.randrange(4)}"
        path = f"/api/v1/nodes/{name}"
        choice = self.random.random()
        if choice < 0.3:
            self.api.answer("POST", "/api/v1/nodes", {"metadata": {"name": name}})
            offered = {"nvidia.com/gpu": str(self.random.randrange(9)), "cpu": "64", "pods": "110"}
            addresses = [{"type": "InternalIP", "address": f"10.8.0.{self.random.randrange(3)}"}]
            status = {"capacity": offered, "allocatable": offered, "addresses": addresses}
            self.api.answer("PATCH", f"{path}/status", {"status": status}, content_type=MERGE)
        elif choice < 0.7:
            taint = {"key": "gpuwatch.dev/degraded", "value": "xid", "effect": "NoSchedule"}
            patch = {"spec": {"taints": [taint] if choice < 0.5 else None, "unschedulable": choice < 0.4}}
            self.api.answer("PATCH", path, patch, content_type=MERGE)
        elif choice < 0.9:
            self.api.answer(
                "PATCH", path, {"metadata": {"labels": {"nvidia.com/gpu.product": "H100"}}}, content_type=MERGE
            )
        else:
            self.api.answer("DELETE", path)

    def budget(self) -> None:
        name, base = f"b{self.random.randrange(3)}", f"/apis/policy/v1/namespaces/{NAMESPACES[0]}/poddisruptionbudgets"
        choice = self.random.random()
        if choice < 0.5:
            spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "chat"}}}
            self.api.answer("POST", base, {"metadata": {"name": name}, "spec": spec})
        elif choice < 0.8:
            status = {
                "disruptionsAllowed": self.random.randrange(3),
                "currentHealthy": 1,
                "desiredHealthy": 1,
                "expectedPods": 1,
            }
            self.api.answer("PATCH", f"{base}/{name}/status", {"status": status}, content_type=MERGE)
        else:
            self.api.answer("DELETE", f"{base}/{name}")

    def namespace(self) -> None:
        annotations = {"gpuwatch.dev/mode": self.random.choice(["observe", "suggest"]), "other": "x"}
        name = self.random.choice(NAMESPACES)
        self.api.answer(
            "PATCH", f"/api/v1/namespaces/{name}", {"metadata": {"annotations": annotations}}, content_type=MERGE
        )

    def claim(self) -> None:
        base = f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACES[0]}/resourceclaims"
        name = f"c{self.random.randrange(3)}"
        asked = {"deviceClassName": "gpu.nvidia.com", "allocationMode": "ExactCount", "count": 1}
        spec = {"devices": {"requests": [{"name": "device", "exactly": asked}]}}
        if self.api.answer("POST", base, {"metadata": {"name": name}, "spec": spec}).ok:
            result = {
                "request": "device",
                "driver": "gpu.nvidia.com",
                "pool": "hist-0",
                "device": f"gpu-{self.made % 3}",
            }
            status = {"status": {"allocation": {"devices": {"results": [result]}}}}
            self.api.answer("PATCH", f"{base}/{name}/status", status, content_type=MERGE)
        else:
            self.api.answer("DELETE", f"{base}/{name}")

    def _create(self, base: str, plural: str, meta: Object, **rest: Any) -> Object | None:
        self.made += 1
        namespace = self.random.choice(NAMESPACES)
        # Names in no order, so that what is new stands anywhere in a list.
        name = f"{self.random.choice('abc')}-{self.made}"
        body = {"metadata": {"name": name, **meta}, **rest}
        answer = self.api.answer("POST", f"{base}/namespaces/{namespace}/{plural}", body)
        return answer.json() if answer.ok else None

    def _path(self, base: str, plural: str, object_: Object) -> str:
        meta = object_["metadata"]
        return f"{base}/namespaces/{meta['namespace']}/{plural}/{meta['name']}"
