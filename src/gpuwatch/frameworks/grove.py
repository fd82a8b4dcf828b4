"""Grove: gangs come from its PodGangs; its kinds are only reported."""

from gpuwatch.frameworks import common
from gpuwatch.frameworks.framework import Framework, Kind, Nature, PodGroups, untried
from gpuwatch.frameworks.owner import OwnerSpec


def _minimum(spec: OwnerSpec) -> int | None:
    told = [group.min_replicas for group in spec.podgroups or () if group.min_replicas is not None]
    return sum(told) if told else None


def _set(kind: str) -> Kind:
    return Kind(
        "grove.io",
        kind,
        ("v1alpha1",),
        replicas=common.replicas,
        nature=Nature.SERVES,
        release=untried(kind),
        move=untried(kind),
    )


def _inner(kind: str) -> Kind:
    return Kind("grove.io", kind, ("v1alpha1",), metadata_only=True)


GROVE = Framework(
    name="Grove",
    kinds=(_inner("PodClique"), _inner("PodCliqueScalingGroup"), _set("PodCliqueSet"), _set("PodGangSet")),
    groups=PodGroups(Kind("scheduler.grove.io", "PodGang", ("v1alpha1",)), ("grove.io/podgang",), _minimum),
)
