"""LeaderWorkerSet: each leader and its workers are a gang."""

from collections.abc import Sequence

from gpuwatch.facts.frameworks import common
from gpuwatch.facts.frameworks.framework import (
    Deletes,
    Framework,
    GangRule,
    Kind,
    Labels,
    MovePlan,
    MoveRule,
    Nature,
    Template,
    Tree,
)
from gpuwatch.facts.frameworks.objects import Object, Refused
from gpuwatch.facts.frameworks.owner import OwnerSpec, Wire
from gpuwatch.facts.model.cluster import Pod

_PREFIX = "leaderworkerset.sigs.k8s.io/"
_GROUP = f"{_PREFIX}group-index"
_INDEX = f"{_PREFIX}worker-index"


class _Group(Wire, frozen=True):
    size: int | None = None


class LeaderWorkerSetSpec(OwnerSpec, frozen=True):
    startup_policy: str | None = None
    leader_worker_template: _Group | None = None


def _minimum(spec: LeaderWorkerSetSpec | None, annotations: Labels) -> int | None:
    if spec is not None and spec.startup_policy == "LeaderReady":
        return None  # the workers are made once the leader is ready
    size = annotations.get(f"{_PREFIX}size", "")
    if size.isdecimal():
        return int(size)
    template = spec.leader_worker_template if spec is not None else None
    return template.size if template else None


def _move(_: Object, there: Sequence[Object], chosen: Sequence[Object]) -> MovePlan | Refused:
    """The end of a leader ends its group only."""
    groups = {common.label(pod, _GROUP) for pod in chosen}
    leaders = [pod for pod in there if common.label(pod, _INDEX) == "0" and common.label(pod, _GROUP) in groups]
    if "" in groups or len(leaders) != len(groups):
        return Refused("The leader of a group to move was not found.")
    return common.evict(leaders)


def _deleted_claims(leaders: Object) -> str:
    """Its StatefulSet of leaders is scaled to zero. A leader's end deletes the StatefulSet of its workers."""
    return common.deleted_claims(leaders, "/spec/leaderWorkerTemplate", "whenScaled", "whenDeleted")


def _place(pods: Sequence[Pod], pod_spec: Tree) -> Tree:
    # Without leaderTemplate the leader is created from workerTemplate.
    part = "leaderTemplate" if common.groups_of(pods, _INDEX) == ("0",) else "workerTemplate"
    return {"spec": {"leaderWorkerTemplate": {part: {"spec": pod_spec}}}}


LEADER_WORKER_SET = Framework(
    name="LeaderWorkerSet",
    kinds=(
        Kind(
            "leaderworkerset.x-k8s.io",
            "LeaderWorkerSet",
            ("v1",),
            spec=LeaderWorkerSetSpec,
            replicas=common.replicas,
            nature=Nature.SERVES,
            release=common.to_zero(
                Deletes(
                    "its workers' StatefulSets, which it makes again; the claims of `volumeClaimTemplates` with "
                    "`whenScaled: Delete` or `whenDeleted: Delete`",
                    _deleted_claims,
                )
            ),
            move=MoveRule(choose=_move, whole=False),
            template=Template(_place),
        ),
    ),
    gang=GangRule(named_by=(f"{_PREFIX}name",), split_by=(_GROUP, f"{_PREFIX}group-key"), minimum=_minimum),
    annotations=(_PREFIX,),
)
