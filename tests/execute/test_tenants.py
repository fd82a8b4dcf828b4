"""What a tenant writes, all of it read as the product reads a cluster, and what the plan does to others: the same as
without it. docs/security.md, second rule."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from execute.hostile import HostileFleet, containers
from execute.living import ENFORCE, GPU, START, device_id
from gpuwatch.act.plan.draw import draw_plan
from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.frameworks.objects import Object, stamp
from gpuwatch.facts.model.decision import ActionKind, FindingKind, PlanItem

POLICY = replace(ENFORCE, brake_alerts=(), budget_ratio=1.0, idle_storm_ratio=1.0, storm_ratio=1.0)
ALL = "0/6 nodes are available: 6 Insufficient nvidia.com/gpu."
GATED = {"schedulingGates": [{"name": "evil.example/gate"}]}
OPTS_OUT = {
    keys.OPT_OUT: "true",
    keys.OBJECTION: "no",
    keys.SNOOZE_UNTIL: "2099-01-01T00:00:00Z",
    "karpenter.sh/do-not-disrupt": "true",
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    keys.MODE: "observe",
}


def world() -> HostileFleet:
    """n0 and n1 have a sick GPU: n0 has free healthy ones, n1 is held by a gang, for which n2 has room. On n3 a gang is
    placed in part. n4 is busy. Of twenty Nodes two may be out of service."""
    fleet = HostileFleet(nodes=20, sick={device_id("n0", 7), device_id("n1", 0)}, idle={"part"})
    fleet.idle_kind = FindingKind.PARTIAL_GANG
    fleet.owner("Job", "small", 4, node="n0")
    fleet.owner("Job", "train", 8, node="n1")
    fleet.owner("Job", "part", 8, node="n3")
    fleet.owner("Job", "batch", 8, node="n4")
    return fleet


def others(fleet: HostileFleet) -> list[PlanItem]:
    """What the plan says of all that is not the tenant's."""
    plan = draw_plan(replace(fleet.view(), policy=POLICY))
    assert not plan.brake, plan.brake
    return [item for item in plan.items if item.candidate.namespace != "evil"]


def pod(
    gpus: int = 8, said: str = "", labels: Mapping[str, str] = {}, marks: Mapping[str, str] = {}, **spec: Any
) -> Object:
    """said: by its scheduler. marks: annotations."""
    words = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
    metadata = {"name": "ghost", "namespace": "evil", "creationTimestamp": stamp(START)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**metadata, "labels": {"app": "ghost", **labels}, "annotations": dict(marks)},
        "spec": {"containers": containers(gpus), **spec},
        "status": {"phase": "Running" if "nodeName" in spec else "Pending", "conditions": [words] if said else []},
    }


def claims(name: str) -> list[Object]:
    return [{"name": "v", "persistentVolumeClaim": {"claimName": name}}]


def owned_by(kind: str, api_version: str, uid: str) -> Callable[[Object], Object]:
    reference = {"apiVersion": api_version, "kind": kind, "name": "part", "uid": uid, "controller": True}
    return lambda made: {**made, "metadata": {**made["metadata"], "ownerReferences": [reference]}}


WRITES: dict[str, Object] = {
    # Pods that never start
    "a scheduler that does not exist": pod(schedulerName="nobody"),
    "only the sick Node, by a scheduler that does not exist": pod(
        3, schedulerName="nobody", nodeSelector={"kubernetes.io/hostname": "n0"}
    ),
    "a claim that does not exist": pod(
        said='0/6 nodes are available: persistentvolumeclaim "none" not found. not found', volumes=claims("none")
    ),
    "a claim whose name has the words of a scheduler": pod(
        said=f'0/6 nodes are available: persistentvolumeclaim "x: {ALL}" not found. not found',
        volumes=claims(f"x: {ALL}"),
    ),
    "a gate": pod(**GATED),
    "a resource that it invented": pod(said=f"{ALL[:-1]}, 6 Insufficient evil.example/x."),
    "to be apart from a Pod of its own on the free Node": pod(
        said="0/6 nodes are available: 1 node(s) didn't match pod anti-affinity rules, 5 Insufficient nvidia.com/gpu.",
    ),
    "more GPUs than there are": pod(10**9, said=ALL),
    "the highest priority, without a scheduler": pod(priority=2**31 - 1, schedulerName="nobody"),
    # Gangs and owners of others
    "labels of another team's gang": pod(
        said=ALL.replace("6", "9"),
        gpus=9,
        labels={
            "batch.kubernetes.io/job-name": "part",
            "scheduling.x-k8s.io/pod-group": "part",
            "kueue.x-k8s.io/pod-group-name": "part",
            "kueue.x-k8s.io/queue-name": "team",
        },
        marks={"scheduling.k8s.io/group-name": "part", "pod-group-name": "part"},
    ),
    "an owner of another Namespace": owned_by("Job", "batch/v1", "uid-part")(pod(schedulerName="nobody")),
    "an owner in a version that is not served": owned_by("Job", "batch/v9", "uid-part")(pod(schedulerName="nobody")),
    "an owner of a kind that does not exist": owned_by("Thing", "evil.example/v1", "uid")(pod(schedulerName="nobody")),
    # Pods on the sick Nodes
    **{
        f"on {name} all opt-outs that there are": pod(0, marks=OPTS_OUT, labels=OPTS_OUT, nodeName=name)
        for name in ("n0", "n1")
    },
    "a Pod that tolerates everything": pod(0, nodeName="n0", tolerations=[{"operator": "Exists"}]),
    "a checkpoint and an end": pod(
        0, nodeName="n1", marks={keys.LAST_CHECKPOINT: stamp(START), keys.EXPECTED_END: stamp(START)}
    ),
    "marks of gpuwatch": pod(0, nodeName="n0", marks={keys.REMEDIATION: "r", keys.SAVED_STATE: "{}", keys.NOTICE: "x"}),
    # Other objects of its Namespace
    "opt-outs and a mode on its Namespace": {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": "evil", "annotations": OPTS_OUT, "labels": {keys.POOL: "train"}},
    },
    "a budget that selects everything": {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "all", "namespace": "evil"},
        "spec": {"selector": {}},
        "status": {"disruptionsAllowed": 0},
    },
    "a quota of nothing": {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "none", "namespace": "evil"},
        "spec": {"hard": {"pods": "0", f"requests.{GPU}": "0"}},
    },
}


def test_what_is_planned_without_a_tenant() -> None:
    """Both Nodes are tainted, the gang moves, and the gang that is placed in part stays, since nobody waits."""
    found = [(item.candidate.action, item.candidate.nodes, item.admitted) for item in others(world())]
    assert sorted(found) == [
        (ActionKind.EVICT_GANG, ("n1",), True),
        (ActionKind.RELEASE_GANG, ("n3",), False),
        (ActionKind.TAINT_NODE, ("n0",), True),
        (ActionKind.TAINT_NODE, ("n1",), True),
    ]


@pytest.mark.parametrize("what", WRITES)
def test_what_a_tenant_writes_changes_nothing_for_others(what: str) -> None:
    fleet = world()
    before = others(fleet)
    fleet.cluster.put(WRITES[what])
    after = others(fleet)
    # Who waits may have others moved that do no work, or whose owners allow it, once it has waited for long.
    asked = [item for item in after if item.candidate.action is ActionKind.MAKE_ROOM]
    assert not [item for item in asked if item.admitted]
    assert [item for item in after if item not in asked] == before
