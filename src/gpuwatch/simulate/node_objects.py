"""Nodes and exporter Pods as `kubectl get -o json` prints them."""

from collections import Counter
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from gpuwatch.simulate.cards import Machine
from gpuwatch.simulate.exporter import CONTAINER, JOB, NAMESPACE
from gpuwatch.simulate.plan import FleetPlan
from gpuwatch.simulate.script import MachineScript

Object: TypeAlias = dict[str, Any]

REGION = "us-east-1"
"""The fleet's region; the catalog has its prices."""


def stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def node_object(plan: FleetPlan, machine: Machine, script: MachineScript, at: float) -> Object:
    """The Node at `at` seconds from the window's start: labels of GPU Feature Discovery, what it can allocate, and
    whether its kubelet reports."""
    broken = {card for begin, end, card in script.unallocatable if begin <= at < end}
    since = next((begin for begin, end in script.node_down if begin <= at < end), None)
    gone = since is not None and at > since + 40
    capacity = Counter(_resources(machine, set()))
    allocatable = Counter(_resources(machine, broken))
    host = {"cpu": str(12 * len(machine.cards)), "memory": f"{150 * len(machine.cards)}Gi", "pods": "250"}
    created = plan.start - timedelta(days=machine.age_days)
    spec: Object = {"providerID": f"example:///{machine.name}"}
    if gone:
        keys = ("NoSchedule", "NoExecute")
        spec["taints"] = [{"key": "node.kubernetes.io/unreachable", "effect": effect} for effect in keys]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": machine.name,
            "uid": machine.uid,
            "creationTimestamp": stamp(created),
            "labels": _labels(machine),
            "annotations": {"nfd.node.kubernetes.io/worker.version": "v0.16.6"},
        },
        "spec": spec,
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": machine.address},
                {"type": "Hostname", "address": machine.name},
            ],
            "capacity": host | {name: str(count) for name, count in capacity.items()},
            "allocatable": host | {name: str(allocatable[name]) for name in capacity},
            "conditions": _conditions(plan, created, since if gone else None),
            "nodeInfo": {"kernelVersion": "5.15.0-122-generic", "kubeletVersion": "v1.31.4", "architecture": "amd64"},
        },
    }


def _resources(machine: Machine, broken: set[int]) -> dict[str, int]:
    counts: dict[str, int] = {"nvidia.com/gpu": 0}
    for card in machine.cards:
        for instance in card.instances:
            name = f"nvidia.com/mig-{instance.profile}"
            counts[name] = counts.get(name, 0) + int(card.index not in broken)
        if not card.instances:
            counts["nvidia.com/gpu"] += machine.replicas * int(card.index not in broken)
    return counts


def _labels(machine: Machine) -> dict[str, str]:
    model = machine.model
    major, minor, revision = machine.driver_version.split(".")
    shared = machine.replicas > 1
    labels = {
        "kubernetes.io/hostname": machine.name,
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": model.instance_type,
        "topology.kubernetes.io/region": REGION,
        "topology.kubernetes.io/zone": f"{REGION}{'ab'[machine.index // 5 % 2]}",
        "example.com/pool": machine.pool,
        "karpenter.sh/nodepool": machine.pool,
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.deploy.dcgm-exporter": "true",
        "nvidia.com/gpu.count": str(len(machine.cards)),
        "nvidia.com/gpu.product": f"{model.product}{'-SHARED' if shared else ''}",
        "nvidia.com/gpu.memory": str(model.memory_mib),
        "nvidia.com/gpu.family": model.family,
        "nvidia.com/gpu.machine": model.machine,
        "nvidia.com/gpu.mode": "compute",
        "nvidia.com/gpu.compute.major": str(model.compute_major),
        "nvidia.com/gpu.compute.minor": str(model.compute_minor),
        "nvidia.com/gpu.replicas": str(machine.replicas),
        "nvidia.com/gpu.sharing-strategy": "time-slicing" if shared else "none",
        "nvidia.com/cuda.driver-version.major": major,
        "nvidia.com/cuda.driver-version.minor": minor,
        "nvidia.com/cuda.driver-version.revision": revision,
        "nvidia.com/cuda.driver-version.full": machine.driver_version,
        "nvidia.com/cuda.runtime-version.major": "13" if major == "580" else "12",
        "nvidia.com/mig.capable": "true" if model.family in ("ampere", "hopper") else "false",
        "nvidia.com/mps.capable": "false",
    }
    if machine.slices_mig:
        labels |= {
            "nvidia.com/mig.strategy": "mixed",
            "nvidia.com/mig.config": "custom",
            "nvidia.com/mig.config.state": "success",
        }
        profiles = Counter(instance.profile for card in machine.cards for instance in card.instances)
        sizes = {i.profile: i for card in machine.cards for i in card.instances}
        for profile, count in profiles.items():
            prefix = f"nvidia.com/mig-{profile}"
            labels |= {
                f"{prefix}.count": str(count),
                f"{prefix}.memory": str(sizes[profile].memory_mib),
                f"{prefix}.product": f"{model.product}-MIG-{profile}",
                f"{prefix}.replicas": "1",
                f"{prefix}.sharing-strategy": "none",
                f"{prefix}.slices.gi": profile[0],
                f"{prefix}.slices.ci": profile[0],
            }
    return labels


def _conditions(plan: FleetPlan, created: datetime, gone_since: float | None) -> list[Object]:
    conditions = []
    for kind, usual, reason in (
        ("MemoryPressure", "False", "KubeletHasSufficientMemory"),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID"),
        ("Ready", "True", "KubeletReady"),
    ):
        gone = gone_since is not None
        changed = created if gone_since is None else plan.moment(gone_since + 40)
        conditions.append(
            {
                "type": kind,
                "status": "Unknown" if gone else usual,
                "reason": "NodeStatusUnknown" if gone else reason,
                "lastTransitionTime": stamp(changed),
            }
        )
    return conditions


def exporter_objects(plan: FleetPlan, machines: tuple[Machine, ...]) -> list[Object]:
    """The DaemonSet of the exporter and its Pod on every Node."""
    uid = "5b1f0a52-6f0e-4c55-9d0f-6c0b8d8f2a11"
    created = stamp(plan.start - timedelta(days=400))
    labels = {"app": JOB}
    daemon = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": JOB, "namespace": NAMESPACE, "uid": uid, "creationTimestamp": created, "labels": labels},
        "spec": {"selector": {"matchLabels": labels}},
        "status": {"desiredNumberScheduled": len(machines), "currentNumberScheduled": len(machines)},
    }
    objects = [daemon]
    for machine in machines:
        started = stamp(plan.start - timedelta(days=min(machine.age_days, 30)))
        image = "nvcr.io/nvidia/k8s/dcgm-exporter:" + (
            "4.6.1-4.9.0-distroless" if machine.vocabulary == "dcgm49" else "4.4.2-4.7.0-ubuntu22.04"
        )
        address = machine.exporter_address.rpartition(":")[0]
        objects.append(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": machine.exporter_pod,
                    "namespace": NAMESPACE,
                    "uid": f"{machine.uid[:-4]}e0e0",
                    "creationTimestamp": started,
                    "labels": labels,
                    "ownerReferences": [
                        {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": JOB, "uid": uid, "controller": True}
                    ],
                },
                "spec": {
                    "nodeName": machine.name,
                    "containers": [{"name": CONTAINER, "image": image, "ports": [{"containerPort": 9400}]}],
                    "volumes": [{"name": "pod-resources", "hostPath": {"path": "/var/lib/kubelet/pod-resources"}}],
                },
                "status": {
                    "phase": "Running",
                    "startTime": started,
                    "podIP": address,
                    "podIPs": [{"ip": address}],
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            }
        )
    return objects
