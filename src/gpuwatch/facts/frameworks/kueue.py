"""Kueue: where it manages an owner, only its Workload may be written."""

from gpuwatch.facts.frameworks import common
from gpuwatch.facts.frameworks.framework import Deletes, Framework, Kind, Never, ReleaseRule, place_lost
from gpuwatch.facts.frameworks.objects import Object, condition, value_at
from gpuwatch.facts.frameworks.owner import OwnerSpec, Wire

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
