"""kube-state-metrics' owner series of every Pod that ever ran, which identify the workloads of deleted Pods.

Each series lasts as long as its object: a finished Job's Pods for an hour more, everything else while it runs.
As in a real cluster, a StatefulSet's owner has no series, so a Notebook's deleted Pods resolve to the StatefulSet.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from gpuwatch.sources.telemetry.series import FloatArray, RecordedSeries, mark_stale
from lab.simulate.exporter import samples
from lab.simulate.plan import FleetPlan, Mask
from lab.simulate.runs import Run
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
