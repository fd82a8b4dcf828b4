"""Where moved gangs may land, which Nodes are out of service, and who loses the last place to a taint."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.plan.policy import Freeze, PlanPolicy
from gpuwatch.facts.model.cluster import Condition, Gang, Namespace, Placement, Quota, Taint
from gpuwatch.facts.model.decision import ActionKind, Snapshot
from gpuwatch.judge.reclaim import reclaimed
from plan.fleet import NOW, device, guards, idle, node, only, plan_of, pod, reason, sick, snapshot

EVICT, TAINT = ActionKind.EVICT_GANG, ActionKind.TAINT_NODE
CLIQUE, LEAF = "nvidia.com/gpu.clique", "network.topology.nvidia.com/leaf"
POLICY = PlanPolicy(budget_ratio=1.0, min_pool_nodes_left=0)


def gang_on_a_sick_gpu(domains: dict[str, str], at: tuple[str, ...], label: str = CLIQUE) -> Snapshot:
    """A gang with a Pod of 8 GPUs on each Node of `at`; the first one has a sick GPU."""
    nodes = [node(name, labels={label: value} if value else {}) for name, value in domains.items()]
    refs = tuple(f"ml/g{i}" for i in range(len(at)))
    gang = Gang(id="g", framework="JobSet", workload="JobSet/ml/g", namespace="ml", pods=refs)
    started = NOW - timedelta(hours=1)
    pods = [pod(ref, name, 8, "JobSet/ml/g", gang="g", started=started) for ref, name in zip(refs, at, strict=True)]
    held = dict(zip(at, refs, strict=True))
    devices = [device(name, i, held.get(name, "")) for name in domains for i in range(8)]
    return snapshot(nodes, devices, pods, gangs=[gang])


def moved(state: Snapshot) -> tuple[set[str], str]:
    item = only(plan_of(state, (sick(state.devices[0]),), POLICY), EVICT)
    return guards(item), next((each.reason for each in item.refusals if each.guard == "lands"), "")


@pytest.mark.parametrize("label", [CLIQUE, LEAF])
def test_a_move_that_would_tear_a_gang_apart_is_refused(label: str) -> None:
    """Two free Nodes, in two domains; the healthy Node that it leaves is in a third."""
    state = gang_on_a_sick_gpu({"n0": "a", "n1": "a", "n2": "b", "n3": "c"}, ("n0", "n1"), label)
    refused, why = moved(state)
    assert refused == {"lands"}
    assert why == f"It would be spread over 2 domains of {label} instead of 1."


@pytest.mark.parametrize(
    ("domains", "at"),
    [
        ({"n0": "a", "n1": "a", "n2": "b", "n3": "b"}, ("n0", "n1")),  # another domain takes all of it
        ({"n0": "a", "n1": "a", "n2": "a"}, ("n0", "n1")),  # its own does
        ({"n0": "a", "n1": "b", "n2": "c", "n3": "d"}, ("n0", "n1")),  # it was over two before
        ({"n0": "", "n1": "a", "n2": "b", "n3": "c"}, ("n0", "n1")),  # nobody knows over how many it was
    ],
)
def test_a_move_over_no_more_domains_than_before_is_none(domains: dict[str, str], at: tuple[str, str]) -> None:
    assert moved(gang_on_a_sick_gpu(domains, at)) == (set(), "")


def test_the_first_place_that_would_do_is_not_the_only_one() -> None:
    """By best fit it would land in b and c, the fuller Nodes; d holds all of it together."""
    domains = {"n0": "a", "n1": "a", "n2": "b", "n3": "c", "n4": "d", "n5": "d"}
    assert moved(gang_on_a_sick_gpu(domains, ("n0", "n1"))) == (set(), "")


def test_a_node_of_no_known_domain_is_another_one() -> None:
    assert moved(gang_on_a_sick_gpu({"n0": "a", "n1": "a", "n2": "b", "n3": ""}, ("n0", "n1")))[0] == {"lands"}


def test_pods_that_belong_to_no_gang_may_land_anywhere() -> None:
    nodes = [node("n0", 1, labels={CLIQUE: "a"}), node("n1", 1, labels={CLIQUE: "b"})]
    held = device("n0", 0, "ml/a")
    state = snapshot(nodes, [held, device("n1", 0)], [pod("ml/a", "n0", started=NOW - timedelta(hours=1))])
    assert only(plan_of(state, (sick(held),), POLICY), EVICT).admitted


VOLUME = "spec.volumes[data].persistentVolumeClaim: gpuwatch does not know in which zone or on which Node its volume is"


def with_one(state: Snapshot, **changes: object) -> Snapshot:
    """Its first Pod changed."""
    first, *rest = state.cluster.pods
    changed = replace(first, **changes)  # type: ignore[arg-type]
    return replace(state, cluster=replace(state.cluster, pods=(changed, *rest)))


def test_a_gang_whose_volume_may_not_follow_it_is_not_moved() -> None:
    """The claim's volume is in zone a, and the only free Nodes are in zone b."""
    zones = gang_on_a_sick_gpu({"n0": "a", "n1": "b"}, ("n0",), "topology.kubernetes.io/zone")
    assert moved(zones) == (set(), "")
    refused, why = moved(with_one(zones, placement=Placement(unmodelled=(VOLUME, "spec.gravity: why"))))
    assert refused == {"lands"}
    assert why == f"It is not known where Pod ml/g0 can run: it has {VOLUME} (and 1 more such fields)."


@pytest.mark.parametrize(
    "name",
    ["pods", "count/pods", "cpu", "limits.memory", "requests.nvidia.com/gpu", "requests.cpu", "something.new"],
)
def test_a_gang_whose_quota_another_may_take_is_not_moved(name: str) -> None:
    state = gang_on_a_sick_gpu({"n0": "a", "n1": "a"}, ("n0",))
    limited = replace(state, cluster=replace(state.cluster, quotas=(Quota(namespace="ml", name="q", limited=(name,)),)))
    refused, why = moved(limited)
    assert refused == {"lands"}
    assert why == (
        f"ResourceQuota ml/q limits {name}. When Pod ml/g0 ends, another Pod of the Namespace may take what it leaves "
        "of the quota, and then its owner cannot create it again."
    )


@pytest.mark.parametrize(
    "quota",
    [
        Quota(namespace="web", name="q", limited=("pods",)),
        Quota(
            namespace="ml",
            name="q",
            limited=("count/jobs.batch", "services.nodeports", "persistentvolumeclaims", "requests.storage"),
        ),
        Quota(namespace="ml", name="q", limited=("gold.storageclass.storage.k8s.io/requests.storage",)),
        Quota(namespace="ml", name="q", limited=("requests.amd.com/gpu",)),
    ],
)
def test_a_quota_that_no_pod_of_the_gang_takes_of_is_none(quota: Quota) -> None:
    state = gang_on_a_sick_gpu({"n0": "a", "n1": "a"}, ("n0",))
    assert moved(replace(state, cluster=replace(state.cluster, quotas=(quota,)))) == (set(), "")


@pytest.mark.parametrize("unmodelled", [(), (VOLUME,)])
def test_a_pod_that_waits_takes_its_room_whether_it_surely_lands_or_not(unmodelled: tuple[str, ...]) -> None:
    state = gang_on_a_sick_gpu({"n0": "a", "n1": "a"}, ("n0",))
    assert moved(state) == (set(), "")
    waits = pod("ml/w", "", 1, phase="Pending", started=None, placement=Placement(unmodelled=unmodelled))
    beside = replace(state, cluster=replace(state.cluster, pods=(*state.cluster.pods, waits)))
    assert moved(beside)[0] == {"lands"}


# Reclaim

RECLAIMS = [
    Taint("cloud.google.com/impending-node-termination", "", "NoSchedule"),
    Taint("aws-node-termination-handler/spot-itn", "1", "NoSchedule"),
    Taint("aws-node-termination-handler/scheduled-maintenance", "1", "NoExecute"),
    Taint("karpenter.sh/disrupted", "", "NoSchedule"),
    Taint("karpenter.sh/disruption", "disrupting", "NoSchedule"),
    Taint("ToBeDeletedByClusterAutoscaler", "1700000000", "NoSchedule"),
    Taint("cloudprovider.azure.microsoft.com/draining", "spot-eviction", "NoSchedule"),
    Condition("PreemptScheduled", "True"),
    Condition("TerminateScheduled", "True"),
]
HARMLESS = [
    Taint("kubernetes.azure.com/scalesetpriority", "spot", "NoSchedule"),
    Taint("cloud.google.com/gke-spot", "true", "NoSchedule"),
    Taint("DeletionCandidateOfClusterAutoscaler", "1700000000", "PreferNoSchedule"),
    Taint("aws-node-termination-handler/rebalance-recommendation", "1", "NoSchedule"),
    Taint("karpenter.sh/disrupted", "", "PreferNoSchedule"),
    Taint("nvidia.com/gpu", "present", "NoSchedule"),
    Condition("PreemptScheduled", "False"),
    Condition("RebootScheduled", "True"),
]


def marked(mark: Taint | Condition) -> dict[str, object]:
    if isinstance(mark, Taint):
        return {"taints": (mark,)}
    return {"conditions": (Condition("Ready", "True"), mark)}


def name_of(mark: Taint | Condition) -> str:
    return f"{mark.key}:{mark.effect}" if isinstance(mark, Taint) else f"{mark.type}={mark.status}"


@pytest.mark.parametrize("mark", RECLAIMS, ids=name_of)
def test_a_node_that_is_taken_back_is_not_tainted_is_no_place_and_weighs_on_the_budget(mark: Taint | Condition) -> None:
    nodes = [node("n0", **marked(mark)), node("n1")]
    devices = [device("n0", i) for i in range(8)] + [device("n1", i) for i in range(8)]
    plan = plan_of(snapshot(nodes, devices), (sick(devices[0]),), POLICY)
    item = only(plan, TAINT)
    assert "already_tainted" in guards(item)
    assert "taken back by its provider" in reason(item, "already_tainted")
    assert [use.in_flight_gpus for use in plan.budgets if use.scope == "pool/train"] == [8]
    hurt = device("n1", 0, "ml/a")
    moving = snapshot(nodes, [*devices[:8], hurt], [pod("ml/a", "n1", started=NOW - timedelta(hours=1))])
    assert "lands" in guards(only(plan_of(moving, (sick(hurt),), POLICY), EVICT))


@pytest.mark.parametrize(
    "marks",
    [
        {"labels": {"dgxc.nvidia.com/nvsentinel-state": "quarantined"}},
        {"taints": (Taint("medik8s.io/remediation", "self-node-remediation", "PreferNoSchedule"),)},
    ],
)
def test_a_node_that_another_remediator_repairs_is_left_to_it(marks: dict[str, object]) -> None:
    nodes, hurt = [node("n0", **marks), node("n1")], device("n0", 0, "ml/a")
    world = snapshot(nodes, [hurt], [pod("ml/a", "n0", started=NOW - timedelta(hours=1))])
    plan = plan_of(world, (sick(hurt),), POLICY)
    for action in (TAINT, EVICT):
        assert "is at work on n0" in reason(only(plan, action), "other_remediator")


@pytest.mark.parametrize("mark", HARMLESS, ids=name_of)
def test_a_node_that_only_may_be_taken_back_is_as_any_other(mark: Taint | Condition) -> None:
    spot = node(
        "n0", labels={"cloud.google.com/gke-spot": "true", "karpenter.sh/capacity-type": "spot"}, **marked(mark)
    )
    assert not reclaimed(spot)
    assert not PlanFacts(snapshot=snapshot([spot], [])).closed(spot)


# Taints and those that wait


def test_two_fences_of_one_plan_do_not_take_the_last_place_of_a_gang_that_waits() -> None:
    """Either of the Nodes could go; the gang needs one of them."""
    nodes = [node("n0", 8), node("n1", 8), *(node(f"b{i}", 8) for i in range(4))]
    busy = [pod(f"ml/x{i}", f"b{i}", 8, "Job/ml/x") for i in range(4)]
    waits = pod("ml/w", "", 7, phase="Pending", started=None)
    devices = [device(name, i) for name in ("n0", "n1") for i in range(8)]
    devices += [device(f"b{i}", j, f"ml/x{i}") for i in range(4) for j in range(8)]
    both = snapshot(nodes, devices, [*busy, waits])
    findings = (sick(devices[0]), sick(devices[8]))
    for alone in findings:
        assert "waiting_gangs" not in guards(only(plan_of(both, (alone,), POLICY), TAINT))
    items = [item for item in plan_of(both, findings, POLICY).items if item.candidate.action is TAINT]
    refused = [item for item in items if not item.admitted]
    assert [item.admitted for item in items] == [True, False]
    assert guards(refused[0]) == {"waiting_gangs"}
    assert reason(refused[0], "waiting_gangs").startswith("With the taints that are planned before it: ml/w waits")


# What a stranger found


def test_a_finding_on_a_pod_that_ended_is_a_refusal_and_no_crash() -> None:
    held = device("n0", 0, "ml/a")
    for gone in ({"phase": "Succeeded"}, {"phase": ""}, {"accelerators": {}}):
        state = snapshot([node("n0", 1)], [held], [replace(pod("ml/a", "n0"), **gone)])  # type: ignore[arg-type]
        plan = plan_of(state, (idle("ml/a", [held]),), POLICY)
        assert not only(plan, ActionKind.RELEASE_GANG).admitted


def test_a_namespace_opts_out_by_a_label_as_by_an_annotation() -> None:
    held = device("n0", 0, "ml/a")
    for where in ("labels", "annotations"):
        space = Namespace(name="ml", **{where: {"gpuwatch.dev/opt-out": "true"}})  # type: ignore[arg-type]
        state = snapshot([node("n0", 1)], [held], [pod("ml/a", "n0")], namespaces=(space,))
        plan = plan_of(state, (idle("ml/a", [held]),), POLICY)
        assert "opted_out" in guards(only(plan, ActionKind.RELEASE_GANG))


def test_a_freeze_with_a_zone_in_its_hours_is_refused_when_it_is_read_and_not_when_it_begins() -> None:
    with pytest.raises(ValueError, match=r"start '18:00\+02:00' has a time zone of its own"):
        Freeze(start="18:00+02:00")
    assert Freeze(start="18:00", end="20:00", time_zone="Etc/GMT-2").holds(NOW.replace(hour=16))
