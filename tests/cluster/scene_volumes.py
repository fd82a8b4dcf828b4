"""Random storage of one cluster: StorageClasses, PersistentVolumes, claims, CSINodes, and who uses what.

Classes and drivers have the cluster's name, so that many clusters fit beside each other in one control plane. Sizes
are all unequal, because the scheduler takes any of two free volumes of one size.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from cluster.api import Api, Object

HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
BETA, REGION = "failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/region"
SELECTED = "volume.kubernetes.io/selected-node"
MADE = "made-"
SELDOM = ("now", "missing", "lost", "full")
KINDS = (*SELDOM, *(2 * ("chosen", "own made")), *(4 * ("bound", "csi", "alone", "made", "found", "own found")))


class Storage:
    """objects: to create, the first ones first. driver: that attaches volumes, with a limit on some Nodes."""

    def __init__(self, draw: random.Random, name: str, nodes: Sequence[str]) -> None:
        self.draw, self.name, self.nodes = draw, name, nodes
        self.driver = f"csi.{name}"
        self.objects: list[Object] = []
        self._sizes = iter(draw.sample(range(1, 100), 99))
        self._count = 0
        self._class("now", self.driver, "Immediate")
        self._class(
            "made", self.driver, "WaitForFirstConsumer", draw.choice([None, None, [self._zone()], [self._hosts()]])
        )
        self._class("found", "kubernetes.io/no-provisioner", "WaitForFirstConsumer")
        self._class("full", f"full.{name}", "WaitForFirstConsumer")
        self._make("storage.k8s.io/v1", "CSIDriver", f"full.{name}", {"storageCapacity": True})
        if draw.random() < 0.7:
            for node in nodes:
                if draw.random() < 0.8:
                    limit = {"allocatable": {"count": draw.randint(0, 5)}} if draw.random() < 0.8 else {}
                    driver = {"name": self.driver, "nodeID": node, "topologyKeys": None, **limit}
                    self._make("storage.k8s.io/v1", "CSINode", node, {"drivers": [driver]})

    def _make(self, version: str, kind: str, name: str, spec: Object, **meta: Any) -> Object:
        made = {"apiVersion": version, "kind": kind, "metadata": {"name": name, **meta}, "spec": spec}
        self.objects.append(made)
        return made

    def _class(self, suffix: str, provisioner: str, mode: str, allowed: Any = None) -> None:
        made = {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": f"{self.name}-{suffix}"},
        }
        made |= {"provisioner": provisioner, "volumeBindingMode": mode}
        self.objects.append(made | ({"allowedTopologies": allowed} if allowed else {}))

    def _zone(self) -> Object:
        return {"matchLabelExpressions": [{"key": ZONE, "values": self.draw.sample("abc", self.draw.randint(1, 2))}]}

    def _hosts(self) -> Object:
        return {"matchLabelExpressions": [{"key": HOST, "values": [self.draw.choice(self.nodes)]}]}

    def _affinity(self) -> Object:
        """Of a volume, in most cases: to a zone or a Node."""
        draw = self.draw
        wish: Object = {"key": HOST, "operator": "In", "values": [draw.choice(self.nodes)]}
        if draw.random() < 0.5:
            wish = {"key": ZONE, "operator": draw.choice(["In", "In", "NotIn"]), "values": [draw.choice("ab")]}
        terms = [{"matchExpressions": [wish]}]
        return {} if draw.random() < 0.4 else {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}

    def _next(self) -> str:
        self._count += 1
        return f"{self.name}-v{self._count}"

    def _volume(self, of: str, size: int, modes: Sequence[str], **changes: Any) -> Object:
        name, draw = self._next(), self.draw
        labels = {"kind": draw.choice("xy")}
        if draw.random() < 0.3:
            key, value = draw.choice([(ZONE, "a"), (ZONE, "b"), (ZONE, "a__b"), (BETA, "a"), (REGION, "r")])
            labels[key] = value
        spec = {
            "capacity": {"storage": f"{size}Gi"},
            "accessModes": [*modes],
            "storageClassName": f"{self.name}-{of}",
            "persistentVolumeReclaimPolicy": "Retain",
        }
        source = {"nfs": {"server": "files", "path": f"/{name}"}}
        return self._make("v1", "PersistentVolume", name, spec | source | changes, labels=labels)

    def claim(self, name: str, of: str, **changes: Any) -> Object:
        spec = self._asked(of) | changes
        return self._make("v1", "PersistentVolumeClaim", name, spec, namespace=self.name)

    def _asked(self, of: str) -> Object:
        sizes = {"requests": {"storage": f"{next(self._sizes)}Gi"}}
        return {"accessModes": ["ReadWriteOnce"], "storageClassName": f"{self.name}-{of}", "resources": sizes}

    def bound(self, name: str, *, csi: bool, mode: str = "ReadWriteOnce") -> None:
        """A claim with its volume."""
        size = next(self._sizes)
        ref = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": self.name, "name": name}
        source = {"csi": {"driver": self.driver, "volumeHandle": f"h-{name}"}, "nfs": None} if csi else {}
        made = self._volume("made", size, [mode], claimRef=ref, **source, **self._affinity())
        sizes = {"requests": {"storage": f"{size}Gi"}}
        self.claim(name, "made", volumeName=made["metadata"]["name"], accessModes=[mode], resources=sizes)

    def _found(self, name: str) -> Object:
        """What a claim asks for that gets one of the volumes that exist, and some volumes."""
        draw, spec = self.draw, self._asked("found")
        if draw.random() < 0.3:
            spec["selector"] = {"matchLabels": {"kind": draw.choice("xy")}}
        if draw.random() < 0.2:
            spec["volumeMode"] = "Block"
        for _ in range(draw.randint(0, 3)):
            modes = draw.choice(
                [["ReadWriteOnce"], ["ReadWriteOnce"], ["ReadOnlyMany"], ["ReadWriteOnce", "ReadOnlyMany"]]
            )
            block = {
                "volumeMode": "Block",
                "nfs": None,
                "csi": {"driver": f"block.{self.name}", "volumeHandle": self._next()},
            }
            changes: Object = block if draw.random() < 0.2 else {}
            if draw.random() < 0.15:
                meant = draw.choice([name, "another"])
                # Of another mode the scheduler takes it too, and then waits for a controller that never binds it.
                changes |= {"claimRef": {"namespace": self.name, "name": meant}, "accessModes": ["ReadWriteOnce"]}
            self._volume("found", next(self._sizes), modes, **changes, **self._affinity())
        return spec

    def of_probe(self, pod: Object) -> Iterator[tuple[Object, str]]:
        """Volumes of the Pod to be judged, with the kind of each."""
        draw = self.draw
        for number in range(draw.choice([1, 1, 2])):
            volume, claim = f"data{number}", f"claim-{number}"
            kind = draw.choice(KINDS)
            given: Object = {"persistentVolumeClaim": {"claimName": claim}}
            if kind == "bound":
                self.bound(claim, csi=False)
            elif kind == "csi":
                self.bound(claim, csi=True)
            elif kind == "alone":
                self.bound(claim, csi=False, mode="ReadWriteOncePod")
            elif kind in ("now", "made", "full"):
                self.claim(claim, kind)
            elif kind == "chosen":
                self.claim(claim, "made")["metadata"]["annotations"] = {SELECTED: draw.choice(self.nodes)}
            elif kind == "lost":
                self.claim(claim, "made", volumeName="no-such-volume")
            elif kind == "found":
                self.claim(claim, "found", **self._found(claim))
            elif kind.startswith("own "):
                spec = self._asked("made") if kind == "own made" else self._found(f"{pod['metadata']['name']}-{volume}")
                given = {"ephemeral": {"volumeClaimTemplate": {"spec": spec}}}
            yield {"name": volume, **given}, kind

    def attach(self, node: str) -> None:
        """A volume that is attached to the Node, without a Pod."""
        made = self._volume(
            "made",
            next(self._sizes),
            ["ReadWriteOnce"],
            nfs=None,
            csi={"driver": self.driver, "volumeHandle": self._next()},
        )
        source = {"persistentVolumeName": made["metadata"]["name"]}
        self._make(
            "storage.k8s.io/v1",
            "VolumeAttachment",
            self._next(),
            {"attacher": self.driver, "nodeName": node, "source": source},
        )


def on_node(name: str) -> Object:
    terms = [{"matchExpressions": [{"key": HOST, "operator": "In", "values": [name]}]}]
    return {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}


def settled(api: Api) -> bool:
    """The controllers have bound what can be bound, and made the claims of templates."""
    claims = api.get("/api/v1/persistentvolumeclaims")["items"]
    volumes = api.get("/api/v1/persistentvolumes")["items"]
    there = {item["metadata"]["name"] for item in volumes}
    names = {(item["metadata"]["namespace"], item["metadata"]["name"]) for item in claims}
    return (
        all(item["status"]["phase"] == "Bound" for item in claims if item["spec"].get("volumeName") in there)
        and all(item["status"].get("phase") in ("Available", "Bound") for item in volumes)
        and all(
            (pod["metadata"]["namespace"], f"{pod['metadata']['name']}-{volume['name']}") in names
            for pod in api.get("/api/v1/pods")["items"]
            for volume in pod["spec"].get("volumes", ())
            if "ephemeral" in volume
        )
    )


def provision(api: Api) -> None:
    """As a provisioner: makes the volume of each claim for which the scheduler has chosen a Node."""
    for item in api.get("/api/v1/persistentvolumeclaims")["items"]:
        meta, spec = item["metadata"], item["spec"]
        if spec.get("volumeName") or SELECTED not in meta.get("annotations", {}):
            continue
        ref = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": meta["namespace"],
            "name": meta["name"],
        }
        made = {
            "capacity": {"storage": spec["resources"]["requests"]["storage"]},
            "accessModes": spec["accessModes"],
            "storageClassName": spec["storageClassName"],
            "claimRef": ref | {"uid": meta["uid"]},
            "csi": {"driver": f"csi.{meta['namespace']}", "volumeHandle": meta["uid"]},
            "persistentVolumeReclaimPolicy": "Retain",
        } | on_node(meta["annotations"][SELECTED])
        with suppress(RuntimeError):  # it is made already, and is not bound yet
            name = {"name": f"{MADE}{meta['uid']}"}
            api.create({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": name, "spec": made})
