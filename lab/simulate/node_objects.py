"""Nodes and exporter Pods as `kubectl get -o json` prints them."""

from collections import Counter
from datetime import datetime, timedelta

from msgspec import structs

from lab.simulate.cards import Machine
from lab.simulate.exporter import CONTAINER, JOB, NAMESPACE
from lab.simulate.forms import OBJECTS, Object, fill
from lab.simulate.plan import FleetPlan
from lab.simulate.script import MachineScript


def stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def node_object(plan: FleetPlan, machine: Machine, script: MachineScript, at: float) -> Object:
    """The Node at `at` seconds from the window's start: labels of GPU Feature Discovery, what it can allocate, and
    whether its kubelet reports."""
    broken = {card for begin, end, card in script.unallocatable if begin <= at < end}
    since = next((begin for begin, end in script.node_down if begin <= at < end and at > begin + 40), None)
    host = {"cpu": str(12 * len(machine.cards)), "memory": f"{150 * len(machine.cards)}Gi", "pods": "250"}
    created = stamp(plan.start - timedelta(days=machine.age_days))
    if since is None:
        conditions, taints = fill(OBJECTS["NodeConditions"], {"changed": created}), None
    else:
        gone = {"status": "Unknown", "reason": "NodeStatusUnknown"}
        changed = {"changed": stamp(plan.moment(since + 40))}
        conditions = [condition | gone for condition in fill(OBJECTS["NodeConditions"], changed)]
        effects = ("NoSchedule", "NoExecute")
        taints = [{"key": "node.kubernetes.io/unreachable", "effect": effect} for effect in effects]
    values = {
        "name": machine.name,
        "uid": machine.uid,
        "created": created,
        "labels": _labels(machine),
        "taints": taints,
        "address": machine.address,
        "capacity": host | resources(machine, set()),
        "allocatable": host | resources(machine, broken),
        "conditions": conditions,
    }
    node: Object = fill(OBJECTS["Node"], values)
    return node


def resources(machine: Machine, broken: set[int]) -> dict[str, str]:
    counts = Counter({"nvidia.com/gpu": 0})
    for card in machine.cards:
        for instance in card.instances:
            counts[f"nvidia.com/mig-{instance.profile}"] += int(card.index not in broken)
        if not card.instances:
            counts["nvidia.com/gpu"] += machine.replicas * int(card.index not in broken)
    return {name: str(count) for name, count in counts.items()}


def _labels(machine: Machine) -> dict[str, str]:
    model = machine.model
    major, minor, revision = machine.driver_version.split(".")
    shared = machine.replicas > 1
    values = {name: str(value) for name, value in structs.asdict(model).items()} | {
        "name": machine.name,
        "zone": "ab"[machine.index // 5 % 2],
        "pool": machine.pool,
        "cards": str(len(machine.cards)),
        "shared": "-SHARED" if shared else "",
        "replicas": str(machine.replicas),
        "sharing": "time-slicing" if shared else "none",
        "major": major,
        "minor": minor,
        "revision": revision,
        "driver": machine.driver_version,
        "cuda": "13" if major == "580" else "12",
        "mig_capable": "true" if model.family in ("ampere", "hopper") else "false",
    }
    labels: dict[str, str] = fill(OBJECTS["NodeLabels"], values)
    if machine.slices_mig:
        labels |= OBJECTS["MigLabels"]
    instances = [instance for card in machine.cards for instance in card.instances]
    for profile, count in Counter(instance.profile for instance in instances).items():
        memory = next(instance.memory_mib for instance in instances if instance.profile == profile)
        of_profile = {"profile": profile, "count": str(count), "memory_mib": str(memory), "slices": profile[0]}
        labels |= fill(OBJECTS["MigProfileLabels"], of_profile | {"product": model.product})
    return labels


def exporter_objects(plan: FleetPlan, machines: tuple[Machine, ...]) -> list[Object]:
    """The DaemonSet of the exporter and its Pod on every Node."""
    values = {"exporter": JOB, "namespace": NAMESPACE, "container": CONTAINER, "machines": len(machines)}
    created = {"created": stamp(plan.start - timedelta(days=400))}
    objects = [fill(OBJECTS["ExporterDaemonSet"], values | created)]
    for machine in machines:
        pod = {
            "pod": machine.exporter_pod,
            "uid": f"{machine.uid[:-4]}e0e0",
            "started": stamp(plan.start - timedelta(days=min(machine.age_days, 30))),
            "node": machine.name,
            "version": "4.6.1-4.9.0-distroless" if machine.vocabulary == "dcgm49" else "4.4.2-4.7.0-ubuntu22.04",
            "address": machine.exporter_address.rpartition(":")[0],
        }
        objects.append(fill(OBJECTS["ExporterPod"], values | pod))
    return objects
