"""Gangs of schedulers: Pods name a PodGroup; release and move depend on their owner. Grove's come from its PodGangs,
and its kinds are only reported."""

from gpuwatch.facts.frameworks import common
from gpuwatch.facts.frameworks.framework import Framework, Kind, Nature, Never, PodGroups, place_lost, reported
from gpuwatch.facts.frameworks.owner import OwnerSpec, Scaled, Wire


class _Gang(Wire, frozen=True):
    min_count: int | None = None


class _Policy(Wire, frozen=True):
    gang: _Gang | None = None


class NativeGroupSpec(OwnerSpec, frozen=True):
    """priority: for preemption in 1.36 and for scheduling since 1.37, in place of its Pods' (KEP-5710)."""

    scheduling_policy: _Policy | None = None
    priority: int | None = None


NATIVE_GROUP = Kind("scheduling.k8s.io", "PodGroup", ("v1beta1", "v1alpha3", "v1alpha2"), spec=NativeGroupSpec)

NATIVE = Framework(name="Kubernetes gang")
COSCHEDULING = Framework(
    name="Coscheduling",
    groups=PodGroups(
        Kind("scheduling.x-k8s.io", "PodGroup", ("v1alpha1",)), ("scheduling.x-k8s.io/pod-group",), common.min_member
    ),
    move=Never("The members that stay keep running, and a replacement may not fit beside them."),
)
KAI_MINIMUM = "kai.scheduler/batch-min-member"
"""Annotation of a Job or JobSet: how many of its Pods KAI places at once. Without it the PodGroup of a Job has one, and
since KAI 0.15 that of a JobSet as well (its CHANGELOG)."""
KAI = Framework(
    name="KAI",
    groups=PodGroups(Kind("scheduling.run.ai", "PodGroup", ("v2alpha2",)), ("pod-group-name",), common.min_member),
    move=Never(place_lost("KAI")),
    annotations=("kai.scheduler/", "pod-group-name"),
    queues=("kai.scheduler/queue",),
    queued=("pod-group-name",),
    schedulers=("kai-scheduler",),
)
YUNIKORN = Framework(name="YuniKorn", queues=("yunikorn.apache.org/queue",), schedulers=("yunikorn",))
RUN_AI = Framework(name="Run:ai", queues=("runai/queue",), schedulers=("runai-scheduler",))


class _GangSpec(OwnerSpec, frozen=True):
    podgroups: list[Scaled] | None = None


def _minimum(spec: _GangSpec) -> int | None:
    told = [group.min_replicas for group in spec.podgroups or () if group.min_replicas is not None]
    return sum(told) if told else None


GROVE = Framework(
    name="Grove",
    kinds=(
        *(Kind("grove.io", kind, ("v1alpha1",), metadata_only=True) for kind in ("PodClique", "PodCliqueScalingGroup")),
        *(
            reported("grove.io", kind, ("v1alpha1",), Nature.SERVES, replicas=common.replicas)
            for kind in ("PodCliqueSet", "PodGangSet")
        ),
    ),
    groups=PodGroups(
        Kind("scheduler.grove.io", "PodGang", ("v1alpha1",), spec=_GangSpec), ("grove.io/podgang",), _minimum
    ),
)
