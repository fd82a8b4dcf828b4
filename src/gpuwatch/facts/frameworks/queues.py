"""Queues that admit workloads by quota. A move gives the quota up, and the next in the queue may take it. Pure.

An eviction may give up a part of it: Kueue admits each Pod of a Deployment by itself, and the queues of schedulers
count the Pods that run. Of none of them is it known that it keeps the place for the new Pod.
"""

from collections.abc import Iterable, Mapping, Sequence

from gpuwatch.facts.frameworks import FRAMEWORKS, kueue
from gpuwatch.facts.frameworks.fights import Surroundings
from gpuwatch.facts.frameworks.framework import place_lost
from gpuwatch.facts.frameworks.objects import Object, condition

_MARKS = {mark: item.name for item in FRAMEWORKS for mark in (*item.queues, *item.queued)}
_SCHEDULERS = {scheduler: item.name for item in FRAMEWORKS for scheduler in item.schedulers}


def admitted_by(marks: Iterable[Mapping[str, str]], schedulers: Iterable[str]) -> str:
    """Whose queue admits it, by labels and annotations of the owner and its Pods, and by their schedulerName; '' if
    none is known to."""
    found = (_MARKS[key] for each in marks for key in each if key in _MARKS)
    return next(found, "") or next((_SCHEDULERS[name] for name in schedulers if name in _SCHEDULERS), "")


def loses_place(owner: Object, pods: Sequence[Object], surroundings: Surroundings) -> str:
    """Why a move would lose its place in a queue, by these objects as just read; '' where none is known to admit it."""
    metadata = [item["metadata"] for item in (owner, *pods)]
    uids = {item.get("uid", "") for item in metadata}
    uids |= {ref.get("uid", "") for item in metadata for ref in item.get("ownerReferences") or ()}
    for workload in surroundings.of(kueue.WORKLOAD.key):
        mine = any(ref.get("uid") in uids for ref in workload["metadata"].get("ownerReferences") or ())
        if mine and condition(workload, "Finished") is not True:
            return place_lost(kueue.ADMITTED.name)
    marks = (item.get(key) or {} for item in metadata for key in ("labels", "annotations"))
    name = admitted_by(marks, (pod["spec"].get("schedulerName", "") for pod in pods))
    return place_lost(name) if name else ""
