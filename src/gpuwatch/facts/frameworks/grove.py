"""Grove: gangs come from its PodGangs; its kinds are only reported."""

from gpuwatch.facts.frameworks import common
from gpuwatch.facts.frameworks.framework import Framework, Kind, Nature, PodGroups, reported
from gpuwatch.facts.frameworks.owner import OwnerSpec, Scaled


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
