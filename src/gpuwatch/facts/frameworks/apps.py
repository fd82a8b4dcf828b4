"""Deployments, StatefulSets, ReplicaSets, ReplicationControllers and bare Pods. A StatefulSet that starts all its Pods
at once is treated as a gang. The search for owners handles DaemonSets, whose Pods return to the same Node."""

from collections.abc import Sequence

from gpuwatch.facts.frameworks import common
from gpuwatch.facts.frameworks.framework import (
    CYCLE,
    Deletes,
    Framework,
    How,
    Kind,
    MovePlan,
    MoveRule,
    Nature,
    Never,
    Template,
    reported,
)
from gpuwatch.facts.frameworks.objects import Object, Refused, number, value_at
from gpuwatch.facts.frameworks.owner import Owner, OwnerSpec


class StatefulSetSpec(OwnerSpec, frozen=True):
    pod_management_policy: str | None = None


def _others_missing(owner: Object, there: Sequence[Object], chosen: Sequence[Object]) -> str:
    """Why none of the chosen may be evicted: not all other Pods are ready. '' where they are."""
    others = number(owner, "/spec/replicas", 1) - len(chosen)
    ready = sum(common.is_ready(pod) for pod in there if pod not in chosen)
    return f"{ready} of its {others} other Pods are ready; a move needs all of them." if ready < others else ""


def _move_of_deployment(deployment: Object, there: Sequence[Object], chosen: Sequence[Object]) -> MovePlan | Refused:
    """With a single replica the new Pod starts before the old one ends."""
    if number(deployment, "/spec/replicas", 1) == 1:
        return MovePlan(How.ROLLOUT)
    missing = _others_missing(deployment, there, chosen)
    return Refused(missing) if missing else common.evict(chosen)


def _move_of_stateful_set(stateful: Object, there: Sequence[Object], chosen: Sequence[Object]) -> MovePlan | Refused:
    if value_at(stateful, "/spec/podManagementPolicy") == "Parallel" and number(stateful, "/spec/replicas", 1) > 1:
        return CYCLE
    missing = _others_missing(stateful, there, chosen)
    return Refused(missing) if missing else common.evict(chosen)


def _deleted_claims(stateful: Object) -> str:
    return common.deleted_claims(stateful, "/spec", "whenScaled")


def _parallel(owner: Owner) -> str:
    gang = owner.spec.pod_management_policy == "Parallel" and owner.replicas != 1
    return "spec.podManagementPolicy Parallel" if gang else ""


_IN_THE_SPEC = common.under("template", "spec")
_KEEPS_ITS_PODS = "A {} does not change existing Pods: delete them one by one."

STATEFUL_SET = Framework(
    name="StatefulSet",
    kinds=(
        Kind(
            "apps",
            "StatefulSet",
            ("v1",),
            spec=StatefulSetSpec,
            replicas=common.replicas,
            nature=Nature.SERVES,
            independent=True,
            pod_suffix=r"\d+",
            release=common.to_zero(
                Deletes("the claims of `volumeClaimTemplates` with `whenScaled: Delete`", _deleted_claims)
            ),
            move=MoveRule(choose=_move_of_stateful_set, one_by_one=True),
            template=Template(_IN_THE_SPEC),
        ),
    ),
    by_convention=_parallel,
)
APPS = Framework(
    name="Deployment",
    kinds=(
        Kind(
            "apps",
            "Deployment",
            ("v1",),
            replicas=common.replicas,
            nature=Nature.SERVES,
            independent=True,
            pod_suffix=r"[a-z0-9]{1,10}-[a-z0-9]{5}",
            release=common.to_zero(
                Deletes("nothing; a restart for a move, ReplicaSets older than `revisionHistoryLimit`", None)
            ),
            move=MoveRule(choose=_move_of_deployment, whole=False),
            template=Template(_IN_THE_SPEC),
        ),
        reported(
            "apps",
            "ReplicaSet",
            ("v1",),
            Nature.SERVES,
            metadata_only=True,
            independent=True,
            pod_suffix=r"[a-z0-9]{5}",
            template=Template(_IN_THE_SPEC, note=_KEEPS_ITS_PODS.format("ReplicaSet")),
        ),
        reported(
            "",
            "ReplicationController",
            ("v1",),
            Nature.SERVES,
            replicas=common.replicas,
            independent=True,
            template=Template(_IN_THE_SPEC, note=_KEEPS_ITS_PODS.format("ReplicationController")),
        ),
        # A leader Pod owns its LeaderWorkerSet group's StatefulSet, a Spark driver its executors.
        reported(
            "",
            "Pod",
            ("v1",),
            None,
            Never("A Pod without a controller would be gone for good."),
            metadata_only=True,
            template=Template(common.under(), frozen=True),
        ),
    ),
)
