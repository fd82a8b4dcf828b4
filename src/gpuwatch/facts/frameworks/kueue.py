"""Kueue: where it manages an owner, only its Workload may be written."""

from collections import Counter
from collections.abc import Iterator
from datetime import datetime

import msgspec

from gpuwatch.facts.frameworks import common
from gpuwatch.facts.frameworks.framework import Deletes, Framework, Kind, Never, ReleaseRule, place_lost
from gpuwatch.facts.frameworks.objects import Object, condition, value_at
from gpuwatch.facts.frameworks.owner import OwnerSpec, Wire
from gpuwatch.facts.model.cluster import HOSTNAME, Assigned

QUEUE = "kueue.x-k8s.io/queue-name"
QUEUED = ("kueue.x-k8s.io/managed", "kueue.x-k8s.io/podset")
_GONE = Never("Kueue does not recreate the Pods of a plain group.")


class _PodSet(Wire, frozen=True):
    count: int | None = None
    min_count: int | None = None


class WorkloadSpec(OwnerSpec, frozen=True):
    queue_name: str | None = None
    active: bool | None = None
    pod_sets: list[_PodSet] | None = None


def assigned(status: Object) -> Assigned | None:
    """None where Kueue chose no Nodes. Raises what a field of another type than its API documents causes."""
    pods: Counter[str] = Counter()
    for each in (status.get("admission") or {}).get("podSetAssignments") or ():
        for node, count in _domains(each.get("topologyAssignment") or {"levels": [""]}):
            pods[node] += count
    if not pods:
        return None
    evictions = (status.get("schedulingStats") or {}).get("evictions") or ()
    evicted = [each["lastTransitionTime"] for each in status.get("conditions") or () if each["type"] == "Evicted"]
    return Assigned(
        pods=msgspec.convert(pods, dict[str, int]),
        replaced=tuple(each["name"] for each in status.get("unhealthyNodes") or ()),
        evictions=sum(each["count"] for each in evictions if each["reason"] == "NodeFailures"),
        evicted_at=datetime.fromisoformat(evicted[0]) if evicted else None,
    )


def _domains(topology: Object) -> Iterator[tuple[str, int]]:
    """Its Nodes and Pods there. v1beta2 gives those of a slice of domains at once, or for each."""
    if topology["levels"][-1] != HOSTNAME:
        return
    yield from ((each["values"][-1], each["count"]) for each in topology.get("domains") or ())
    for each in topology.get("slices") or ():
        level, counts, domains = each["valuesPerLevel"][-1], each["podCounts"], each["domainCount"]
        some = level.get("individual") or {"roots": [level["universal"]]}
        names = [f"{some.get('prefix') or ''}{root}{some.get('suffix') or ''}" for root in some["roots"]]
        each_has = counts.get("individual") or [counts["universal"]] * len(names)
        if not len(names) == len(each_has) == domains:
            raise ValueError(f"a slice of {domains} domains has {len(names)} values and {len(each_has)} counts")
        yield from zip(names, each_has, strict=True)


def _refuses(object_: Object) -> str:
    owners = value_at(object_, "/metadata/ownerReferences")
    if not owners or any(owner.get("kind") == "Pod" for owner in owners):
        return "It admits Pods, which no controller would recreate."
    return ""


WORKLOAD = Kind(
    "kueue.x-k8s.io",
    "Workload",
    ("v1beta2", "v1beta1"),
    spec=WorkloadSpec,
    assigned=assigned,
    unscheduled=lambda state: state.matching(QuotaReserved="False", Admitted="False", Evicted="True"),
    release=ReleaseRule(
        fields=common.sets("/spec/active", False),
        deletes=Deletes("what the controller of the admitted owner deletes", None),  # the owner is judged itself
        holds=lambda object_: "Kueue still reserves its quota" if condition(object_, "QuotaReserved") else "",
        refuses=_refuses,
        ended=common.ends("Finished"),
    ),
    move=Never(place_lost("Kueue")),
)
ADMITTED = Framework(name="Kueue", acts_on=WORKLOAD, annotations=("kueue.x-k8s.io/",), queues=(QUEUE,), queued=QUEUED)
POD_GROUP = Framework(name="Kueue pod group", release=_GONE, move=_GONE)
