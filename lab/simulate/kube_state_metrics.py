"""kube-state-metrics: the owner series of every Pod that ever ran, which identify the workloads of deleted Pods, and
what became of Nodes and containers.

Each series lasts as long as its object: a finished Job's Pods for an hour more, everything else while it runs.
As in a real cluster, a StatefulSet's owner has no series, so a Notebook's deleted Pods resolve to the StatefulSet.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from gpuwatch.sources.telemetry.series import FloatArray, RecordedSeries, mark_stale
from lab.simulate.cards import Machine
from lab.simulate.exporter import samples
from lab.simulate.node_objects import resources
from lab.simulate.plan import FleetPlan, Mask
from lab.simulate.runs import Run, resource_name
from lab.simulate.script import MachineScript, inside
from lab.simulate.workload_objects import OwnerName, kept_until, owner_chain

_TARGET = {"instance": "10.44.0.9:8080", "job": "kube-state-metrics"}


def owner_series(plan: FleetPlan, runs: Sequence[Run], prometheus_up: Mask) -> Iterator[RecordedSeries]:
    """kube_pod_owner, kube_replicaset_owner and kube_job_owner, grouped by metric. Values are 1."""
    seconds = plan.sample_seconds
    times_ms = (int(plan.start.timestamp()) * 1000 + seconds * 1000).astype(np.int64)
    lives: dict[tuple[str, tuple[tuple[str, str], ...]], Mask] = {}
    for run in runs:
        during: Mask = (seconds >= run.start) & (seconds < kept_until(run)) & prometheus_up
        if not during.any():
            continue
        for metric, named in _owners(run):
            key = (metric, tuple(sorted(named.items())))
            lives[key] = lives[key] | during if key in lives else during
    for metric, labels in sorted(lives):
        index, stale = samples(lives[metric, labels], prometheus_up)
        values: FloatArray = np.ones(len(index), dtype=np.float64)
        mark_stale(values, stale)
        yield RecordedSeries(metric, _TARGET | dict(labels), times_ms[index], values)


def state_series(
    plan: FleetPlan,
    machines: Sequence[Machine],
    scripts: Sequence[MachineScript],
    runs: Sequence[Run],
    prometheus_up: Mask,
) -> Iterator[RecordedSeries]:
    """Series of Nodes and of containers with GPUs, grouped by metric."""
    seconds = plan.sample_seconds
    times_ms = (int(plan.start.timestamp()) * 1000 + seconds * 1000).astype(np.int64)
    told = [*_of_nodes(plan, machines, scripts), *_of_containers(plan, machines, runs)]
    for metric, labels, values in sorted(told, key=lambda each: (each[0], sorted(each[1].items()))):
        there: Mask = ~np.isnan(values) & prometheus_up
        index, stale = samples(there, prometheus_up)
        taken: FloatArray = values[index]
        mark_stale(taken, stale)
        yield RecordedSeries(metric, _TARGET | labels, times_ms[index], taken)


_Told = tuple[str, dict[str, str], FloatArray]
"""Metric, labels, and the value at each sample; NaN where there is none."""
_HEARTBEAT_SECONDS = 40.0
"""After that a Node whose kubelet is silent is not Ready."""


def _of_nodes(plan: FleetPlan, machines: Sequence[Machine], scripts: Sequence[MachineScript]) -> Iterator[_Told]:
    seconds = plan.sample_seconds
    for machine, script in zip(machines, scripts, strict=True):
        node = {"node": machine.name}
        down = inside(seconds, [(begin + _HEARTBEAT_SECONDS, end) for begin, end in script.node_down])
        for status, holds in (("true", ~down), ("false", down & False), ("unknown", down)):
            named = node | {"condition": "Ready", "status": status}
            yield "kube_node_status_condition", named, holds.astype(np.float64)
        yield "kube_node_spec_unschedulable", node, np.zeros(len(seconds))
        for resource, capacity in resources(machine, set()).items():
            named = node | {"resource": resource.translate(_AS_LABEL), "unit": "integer"}
            allocatable = np.full(len(seconds), float(capacity))
            for begin, end, card in script.unallocatable:
                less = int(capacity) - int(resources(machine, {card}).get(resource, "0"))
                allocatable -= less * ((seconds >= begin) & (seconds < end))
            yield "kube_node_status_capacity", named, np.full(len(seconds), float(capacity))
            yield "kube_node_status_allocatable", named, allocatable


_AS_LABEL = str.maketrans("./-", "___")


def _of_containers(plan: FleetPlan, machines: Sequence[Machine], runs: Sequence[Run]) -> Iterator[_Told]:
    seconds = plan.sample_seconds
    for run in runs:
        there = (seconds >= run.start) & (seconds < kept_until(run))
        if not there.any():
            continue
        ended = seconds >= run.end
        began = plan.moment(run.start).timestamp()
        for pod in run.pods:
            of = {"namespace": run.workload.namespace, "pod": pod.name, "uid": pod.uid}
            main = of | {"container": run.workload.container}
            machine = machines[(pod.places or run.pods[0].places)[0].machine]
            names = Counter(resource_name(machine, place) for place in pod.places or run.pods[0].places)
            node = {"node": machine.name} if pod.places else {}
            for resource, count in names.items():
                named = main | {"resource": resource.translate(_AS_LABEL), "unit": "integer"} | node
                yield "kube_pod_container_resource_requests", named, np.where(there & ~ended, float(count), np.nan)
            image = {"image": run.workload.image, "image_spec": run.workload.image, "image_id": ""}
            yield "kube_pod_container_info", main | image, np.where(there, 1.0, np.nan)
            runs_now = bool(pod.places) and run.state != "pulling"
            running = np.where(there, (~ended & runs_now) * 1.0, np.nan)
            yield "kube_pod_container_status_running", main, running
            if runs_now:
                yield "kube_pod_container_state_started", main, np.where(there, began, np.nan)
                yield "kube_pod_container_status_restarts_total", main, np.where(there, 0.0, np.nan)
            if (there & ended).any():
                reason = main | {"reason": "Completed"}
                yield "kube_pod_container_status_terminated_reason", reason, np.where(there & ended, 1.0, np.nan)


def _owners(run: Run) -> Iterator[tuple[str, dict[str, str]]]:
    namespace = {"namespace": run.workload.namespace}
    chain = owner_chain(run)
    for pod in run.pods:
        # A bare Pod has the series too, with empty labels (kube-state-metrics v2; v1 wrote <none>).
        owner = _owner_labels(chain[-1]) if chain else {}
        yield "kube_pod_owner", namespace | {"pod": pod.name, "uid": pod.uid} | owner
    # An object without an owner has its row too, with empty labels (kube-state-metrics, internal/store/job.go).
    for number, child in enumerate(chain):
        owner = _owner_labels(chain[number - 1]) if number else {}
        if child.kind == "ReplicaSet":
            yield "kube_replicaset_owner", namespace | {"replicaset": child.name} | owner
        elif child.kind == "Job":
            yield "kube_job_owner", namespace | {"job_name": child.name} | owner


def _owner_labels(owner: OwnerName) -> dict[str, str]:
    return {"owner_kind": owner.kind, "owner_name": owner.name, "owner_is_controller": "true"}
