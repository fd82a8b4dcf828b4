"""What stands against an action, by the sentence that says so, and what does not. Each changes a `Town`."""

import copy
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from execute.hostile import containers
from execute.living import GPUS, START, UNPLACED, device_id
from gpuwatch.act.execute.policy import ExecutePolicy
from gpuwatch.act.execute.propose import propose
from gpuwatch.act.plan.draw import draw_plan
from gpuwatch.act.plan.policy import Freeze, PlanPolicy
from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.frameworks.objects import Object, ref_of, stamp
from gpuwatch.facts.model.decision import ActionKind, Advice, Mode, Score
from gpuwatch.facts.model.remediation import ObjectRef, Phase, Turn
from gpuwatch.facts.model.telemetry import Device, Gap, GapKind, Vendor
from plan import fleet as model
from sentences.town import MINUTE, MOVE, RELEASE, TAINT, Town

ALL, OF_NODES, OF_PODS = (TAINT, MOVE, RELEASE), (TAINT, MOVE), (MOVE, RELEASE)
Change = Callable[[Town], object]


@dataclass(frozen=True, slots=True)
class Reason:
    """stops: the actions that it stops. put: makes it so. takes: ends it. anytime: it may come after the proposal.
    minutes: how long it stands by itself; 0 for longer than a test. told: the plan admits an action that it stops,
    since only fresh facts show it, or since it may pass by itself."""

    sentence: int
    stops: tuple[ActionKind, ...]
    put: Change
    takes: Change | None = None
    anytime: bool = True
    minutes: int = 0
    told: bool = False


def ended(town: Town) -> None:
    """What is not of an object."""
    town.store.resume()
    town.reads, town.more_gaps, town.unreadable = {}, [], ""
    town.partial, town.stale, town.unanswered = False, timedelta(), ""
    town.well, town.at_work = set(), set()


def objects(kind: str, name: str, change: Callable[[Object], object]) -> Change:
    """kind: Node, Namespace, 'owner', or 'pods' of an owner."""

    def put(town: Town) -> None:
        if kind == "pods":
            found = town.pods(name)
        elif kind == "owner":
            found = [town.find(name)]
        else:
            found = [item for item in town._all("v1", kind) if item["metadata"]["name"] == name]
        assert found
        for item in copy.deepcopy(found):
            change(item)
            town.cluster.put(item)

    return put


def says(key: str, value: str = "true") -> Callable[[Object], object]:
    return lambda item: item["metadata"].setdefault("annotations", {}).update({key: value})


def labelled(key: str, value: str) -> Callable[[Object], object]:
    return lambda item: item["metadata"].setdefault("labels", {}).update({key: value})


def setting(**changes: Any) -> Change:
    return lambda town: town.plan.update(changes)


def mode(action: ActionKind, value: Mode) -> Change:
    return lambda town: town.plan["modes"].update({action: value})


def doubted(action: ActionKind, **changes: Any) -> Change:
    """The finding that calls for the action is a lesser one."""
    return lambda town: town.doubts.update({action: changes})


def gap(kind: GapKind, what: str = "telemetry") -> Change:
    return lambda town: town.more_gaps.append(Gap(kind=kind, what=what, detail="for a test"))


def unread(group: str, kind: str) -> Change:
    """Its list fails."""
    return lambda town: town.reads.update({(group, kind): town.random.choice(("refused", "timed out", "failed"))})


def become(**changes: Any) -> Change:
    return lambda town: [town.become(name, value) for name, value in changes.items()]


def unseen(kind: str, change: Change) -> Change:
    """The watch of this kind is silent, and the list lags behind what is said now."""
    key = ("policy" if kind == "PodDisruptionBudget" else "", kind)
    return lambda town: (town.reads.update({key: "stale"}), change(town))


def alerted(town: Town, alerts: tuple[str, ...] | None) -> None:
    """None: they cannot be read."""
    town.plan["brake_alerts"] = ("EtcdDown",)
    town.alerts = alerts  # type: ignore[assignment]


# Proof


def lie(town: Town) -> None:
    """Nothing is wrong with n0; a tenant's target says so."""
    town.sick, town.lied = set(), {device_id("n0", 0)}


def namesake(town: Town) -> None:
    """A broken GPU of a host that is no Node of ours, held by a Pod with the name of ours."""
    town.sick = set()
    town.rows.append(row("GPU-other", "elsewhere", "10.9.0.1:9400", town.pods("train")[0]["metadata"]["name"]))


def row(name: str, host: str, exporter: str, pod: str = "") -> Device:
    return Device(
        id=name,
        uuid=name,
        vendor=Vendor.NVIDIA,
        vocabulary="dcgm",
        node_label=host,
        exporter=exporter,
        pods=(f"ml/{pod}",) if pod else (),
    )


def volume(pod: Object) -> None:
    """Of the zone in which n0 is."""
    pod["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]


def quota(town: Town) -> None:
    """Of which others of the Namespace take what is free."""
    hard = {"requests.nvidia.com/gpu": "64"}
    metadata = {"name": "team", "namespace": "ml"}
    town.cluster.put({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard}})


def kind_of_released(town: Town, kind: str, **spec: Any) -> None:
    """`chat` is of this kind instead."""
    town.cluster.remove(ref_of(town.find("chat")))
    for pod in town.pods("chat"):
        town._end(pod)
    town.owner(kind, "chat", 1, node="n1", **spec)


def deletes_data(town: Town) -> None:
    claims = [{"metadata": {"name": "cache"}}]
    kept = {"whenScaled": "Delete"}
    kind_of_released(town, "StatefulSet", volumeClaimTemplates=claims, persistentVolumeClaimRetentionPolicy=kept)


def autoscaled(town: Town) -> None:
    kind_of_released(town, "Deployment")
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"}
    town.cluster.put(
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "chat", "namespace": "ml"},
            "spec": {"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 4},
        }
    )


def autoscalers_unread(town: Town) -> None:
    kind_of_released(town, "Deployment")
    unread("autoscaling", "HorizontalPodAutoscaler")(town)


def deployed(town: Town) -> None:
    """By Argo CD, with its replicas in Git."""
    kind_of_released(town, "Deployment")
    objects("owner", "chat", labelled("argocd.argoproj.io/instance", "chat"))(town)


def of_all_gpus(town: Town) -> None:
    """`train` is a Job that has all GPUs of n0."""
    town.cluster.remove(ref_of(town.find("train")))
    for pod in town.pods("train"):
        town._end(pod)
    town.owner("Job", "train", GPUS, node="n0")


def queued(town: Town) -> None:
    """By Kueue, whose quota another team waits for."""
    of_all_gpus(town)
    town.queue("train")
    town.quota = GPUS
    town.rival("rival", GPUS)


def of_cron_job(town: Town) -> None:
    """`chat` is a Job of a CronJob."""
    kind_of_released(town, "Job")
    metadata = {"name": "nightly", "namespace": "ml"}
    cron = town.cluster.put({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": metadata, "spec": {}})
    job = town.find("chat")
    above = {"apiVersion": "batch/v1", "kind": "CronJob", "name": "nightly", "uid": cron["metadata"]["uid"]}
    job["metadata"]["ownerReferences"] = [{**above, "controller": True}]
    town.cluster.put(job)


def unsaved(town: Town) -> None:
    """`chat` is a Job that worked for more than a day before it stopped, and told of no checkpoint."""
    kind_of_released(town, "Job")

    def began(pod: Object) -> None:
        pod["status"]["startTime"] = stamp(START - timedelta(hours=30))

    objects("pods", "chat", began)(town)


def at_work(town: Town) -> None:
    """The page of n1, whatever the series say."""
    town.at_work = {device_id("n1", index) for index in range(GPUS)}


def shared(town: Town) -> None:
    town.sharing = {f"ml/{pod['metadata']['name']}" for pod in town.pods("chat")}


def one_node_left(town: Town) -> None:
    """All Nodes but n0 have been out of service for two days."""
    of_all_gpus(town)
    for index in range(1, town.nodes):
        objects("Node", f"n{index}", out_of_service(timedelta(days=2)))(town)


def out_of_service(age: timedelta) -> Callable[[Object], object]:
    since = stamp(START - age)

    def out(node: Object) -> None:
        node["status"]["conditions"] = [{"type": "Ready", "status": "False", "lastTransitionTime": since}]

    return out


def others_out(town: Town) -> None:
    """As many Nodes as may be out of service at once have been for an hour."""
    for index in range(2, 3 if town.nodes < 20 else 4):
        objects("Node", f"n{index}", out_of_service(timedelta(hours=1)))(town)


def acted_lately(town: Town) -> None:
    """Four actions began five minutes ago."""
    score = Score(
        gained_gpu_hours=1.0, disrupted_gpu_hours=0.0, pool_gpu_hours=1.0, confidence_ratio=1.0, horizon_hours=24.0
    )
    for number in range(4):
        at = f"gang/g{number}"
        team = f"team{number}"
        kept = model.remediation(
            MOVE, at, phase=Phase.SUCCEEDED, begun_minutes_ago=5, namespace=team, pool=team, score=score
        )
        ref = ObjectRef("batch/v1", "Job", f"g{number}", team, f"uid-g{number}")
        steps = tuple(replace(step, target=ref) for step in kept.steps)
        kept = replace(kept, proposal=replace(kept.proposal, objects=(ref,)), steps=steps)
        town.store.save(replace(kept, version=town.store.create(kept).version))


def said_no(times: int, hours: int, right: bool = False) -> Change:
    """So many times, so long ago, a person rejected what is called for. right: and said that the finding was."""
    return lambda town: remembered(town, times, timedelta(hours=hours), Phase.REJECTED, right)


def remembered(town: Town, times: int, ago: timedelta, phase: Phase, right: bool = False) -> None:
    """What is called for was proposed so often before, and ended so."""
    view, at = town.view(), town.now - ago
    for item in draw_plan(replace(view, policy=PlanPolicy(**town.plan))).items:
        found = propose(item, view.snapshot, view.findings, at, ExecutePolicy())
        for number in range(times if found is not None else 0):
            assert found is not None
            old = town.store.create(replace(found, name=f"{found.name}-{phase}-{number}".lower()))
            if phase is Phase.REJECTED:
                town.store.reject(old.id, finding_correct=right)
                old = town.store.get(old.id) or old
            town.store.save(replace(old, phase=phase, history=(Turn(at, phase, "It is over."),)))


def storm_before(town: Town) -> None:
    town.last_storm = START - 10 * MINUTE


def tolerant(pod: Object) -> None:
    pod["spec"]["tolerations"] = [{"key": keys.DEGRADED, "operator": "Exists"}]


def bare(pod: Object) -> None:
    pod["metadata"]["ownerReferences"] = []


def full(town: Town) -> None:
    """No Node has room."""
    of_all_gpus(town)
    for index, free in free_gpus(town).items():
        town.owner("Job", f"full{index}", free, node=f"n{index}")


def free_gpus(town: Town) -> dict[int, int]:
    """Of the Nodes but n0 that have some."""
    used: Counter[str] = Counter()
    for pod in town.pods():
        used[pod["spec"].get("nodeName", "")] += town._gpus(pod)
    free = {index: GPUS - used[f"n{index}"] for index in range(1, town.nodes)}
    return {index: gpus for index, gpus in free.items() if gpus}


def several_sick(town: Town) -> None:
    """A fifth of the pool's Nodes and more, and at least two, within an hour."""
    town.sick_for = timedelta()
    sick = range(max(2, town.nodes // 4 + 1))
    town.sick = {device_id(f"n{number}", index) for number in sick for index in range(GPUS)}


def resting(town: Town) -> None:
    """Nearly all that is held looks idle."""
    for index, free in free_gpus(town).items():
        if free == GPUS and 1 < index < town.nodes - 1:
            town.owner("Deployment", f"night{index}", GPUS, node=f"n{index}")
    town.idle = set(town.size)


_WORDS: Mapping[str, Callable[[Object], object]] = {
    "opt_out": says(keys.OPT_OUT),
    "objection": says(keys.OBJECTION, "mine"),
    "snooze": says(keys.SNOOZE_UNTIL, stamp(START + timedelta(hours=9))),
}
_PLACES = (
    ("node", "Node", "n0", OF_NODES),
    ("namespace", "Namespace", "ml", OF_PODS),
    ("owner_of_moved", "owner", "train", (MOVE,)),
    ("owner_of_released", "owner", "chat", (RELEASE,)),
    ("moved_pods", "pods", "train", (MOVE,)),
    ("released_pods", "pods", "chat", (RELEASE,)),
)
AGAINST: Mapping[str, Reason] = {
    # 1. Only where you said so
    **{
        f"{value}_{action}": Reason(1, OF_NODES if action is TAINT else (action,), mode(action, value), anytime=False)
        for action in ALL
        for value in (Mode.OBSERVE, Mode.SUGGEST)
    },
    "namespace_observes": Reason(1, OF_PODS, objects("Namespace", "ml", says(keys.MODE, "observe"))),
    "namespace_suggests": Reason(1, OF_PODS, objects("Namespace", "ml", says(keys.MODE, "suggest"))),
    "namespace_mistyped": Reason(1, OF_PODS, objects("Namespace", "ml", says(keys.MODE, "enforced"))),
    "asks_for_approval": Reason(1, (RELEASE,), doubted(RELEASE, approval="A person has to look at it first.")),
    "protected": Reason(1, OF_PODS, setting(protected_priority=0), anytime=False),
    "wrong_before": Reason(1, ALL, said_no(5, hours=30), anytime=False),
    # 2. Only on proof
    "lie": Reason(2, OF_NODES, lie, anytime=False),
    "namesake": Reason(2, OF_NODES, namesake, anytime=False),
    "doubted": Reason(2, OF_NODES, lambda town: town.lied.add(device_id("n0", 1))),
    "unsure_of_node": Reason(2, OF_NODES, doubted(TAINT, confidence_ratio=0.79)),
    "unsure_of_idleness": Reason(2, (RELEASE,), doubted(RELEASE, confidence_ratio=0.79)),
    "busy_again": Reason(2, (RELEASE,), lambda town: (town.idle.clear(), town.busy.add("chat"))),
    "pod_without_gpu": Reason(2, (RELEASE,), lambda town: town.side_pod("chat", {})),
    "bare_pods": Reason(2, (RELEASE,), objects("pods", "chat", bare)),
    "of_cron_job": Reason(2, (RELEASE,), of_cron_job, anytime=False),
    "unsaved": Reason(2, (RELEASE,), unsaved, anytime=False),
    "shared": Reason(2, (RELEASE,), shared),
    "nobody_waits": Reason(2, (RELEASE,), setting(reclaim_only_on_demand=True), anytime=False),
    "deletes_data": Reason(2, (RELEASE,), deletes_data, anytime=False),
    "autoscaled": Reason(2, (RELEASE,), autoscaled, anytime=False),
    "deployed": Reason(2, (RELEASE,), deployed, anytime=False),
    "volume_of_a_zone": Reason(2, (MOVE,), objects("pods", "train", volume)),
    "quota": Reason(2, (MOVE,), quota),
    "queued": Reason(2, (MOVE,), queued, anytime=False),
    "full": Reason(2, (MOVE,), full, anytime=False),
    "node_stays_open": Reason(
        2, (MOVE,), lambda town: town.execute.update(last_taint_effect="PreferNoSchedule"), anytime=False, told=True
    ),
    "exporter_says_well": Reason(2, (MOVE,), lambda town: town.well.add(device_id("n0", 0)), ended, told=True),
    "exporter_says_work": Reason(2, (RELEASE,), at_work, ended, told=True),
    "exporter_is_silent": Reason(2, OF_PODS, become(unanswered="no route to host"), ended, told=True),
    "tolerant": Reason(2, (MOVE,), objects("pods", "train", tolerant)),
    "cordon": Reason(
        2, (TAINT,), objects("Node", "n0", lambda node: node["spec"].update(unschedulable=True)), anytime=False
    ),
    # 3. Those concerned can stop it
    **{
        f"{name}_on_{where}": Reason(3, stops, objects(kind, of, word))
        for name, word in _WORDS.items()
        for where, kind, of, stops in _PLACES
    },
    "do_not_disrupt": Reason(3, (MOVE,), objects("pods", "train", says("karpenter.sh/do-not-disrupt"))),
    "safe_to_evict": Reason(
        3, (RELEASE,), objects("pods", "chat", says("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"))
    ),
    "budget_of_moved": Reason(3, (MOVE,), lambda town: town.budget("train", 0), lambda town: town.budget("train", 9)),
    "budget_of_released": Reason(
        3, (RELEASE,), lambda town: town.budget("chat", 0), lambda town: town.budget("chat", 9)
    ),
    "unseen_opt_out": Reason(3, (MOVE,), unseen("Pod", objects("pods", "train", says(keys.OPT_OUT))), told=True),
    "unseen_budget": Reason(
        3, (RELEASE,), unseen("PodDisruptionBudget", lambda town: town.budget("chat", 0)), told=True
    ),
    "nodes_unread": Reason(3, ALL, unread("", "Node"), ended),
    "pods_unread": Reason(3, ALL, unread("", "Pod"), ended),
    "namespaces_unread": Reason(3, OF_PODS, unread("", "Namespace"), ended),
    "autoscalers_unread": Reason(3, (RELEASE,), autoscalers_unread, ended, anytime=False),
    "budgets_unread": Reason(3, OF_PODS, unread("policy", "PodDisruptionBudget"), ended),
    "queue_unread": Reason(3, OF_PODS, unread("kueue.x-k8s.io", "Workload"), ended),
    "paused": Reason(3, ALL, lambda town: town.store.pause("ann", "a demo", town.now), ended),
    "frozen": Reason(3, ALL, setting(freezes=(Freeze(),)), anytime=False),
    "alert": Reason(3, ALL, lambda town: alerted(town, ("EtcdDown",)), anytime=False),
    "alerts_unknown": Reason(3, ALL, lambda town: alerted(town, None), anytime=False),
    "declined": Reason(3, ALL, said_no(1, hours=3, right=True), anytime=False, told=True),
    "repaired_by_another": Reason(
        3, OF_NODES, objects("Node", "n0", labelled("dgxc.nvidia.com/nvsentinel-state", "quarantined"))
    ),
    # 4. Never much at once
    "partial_answer": Reason(4, ALL, become(partial=True), ended),
    "clocks": Reason(4, ALL, gap(GapKind.CLOCK), ended),
    "several_clusters": Reason(4, ALL, gap(GapKind.AMBIGUOUS), ended),
    "record_unread": Reason(4, ALL, gap(GapKind.BAD_INPUT, "remediation taint-n9"), ended),
    "old_facts": Reason(4, ALL, become(stale=660), ended, told=True),
    "several_sick": Reason(4, ALL, several_sick),
    "resting": Reason(4, (RELEASE,), resting),
    "storm_before": Reason(4, ALL, storm_before, anytime=False, minutes=20),
    "others_out": Reason(4, OF_NODES, others_out, anytime=False),
    "one_node_left": Reason(4, OF_NODES, one_node_left, anytime=False),
    "acted_lately": Reason(4, ALL, acted_lately, anytime=False, minutes=55),
}


# What does not stop an action


def ghosts(town: Town) -> None:
    """Pods of another team that no scheduler looks at: for n0 alone, and as many as there is room."""
    ghost(town, "ghost", 1, schedulerName="nobody", nodeSelector={"kubernetes.io/hostname": "n0"})
    for index, free in free_gpus(town).items():
        ghost(town, f"ghost-{index}", free, schedulerName="nobody")


def ghost(town: Town, name: str, gpus: int, said: Object | None = None, **spec: Any) -> None:
    town.stuck.add(name)
    metadata = {"name": name, "namespace": "evil", "labels": {"app": name}, "creationTimestamp": stamp(town.now)}
    status = {"phase": "Pending", "conditions": [said] if said else []}
    whole = {"containers": containers(gpus), **{key: value for key, value in spec.items() if value}}
    town.cluster.put({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": whole, "status": status})


def without_volume(town: Town) -> None:
    """The scheduler says of it that its volume claim does not exist."""
    said = {**UNPLACED, "message": 'persistentvolumeclaim "data" not found'}
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    ghost(town, "unbound", 1, said, nodeSelector={"kubernetes.io/hostname": "n0"}, volumes=volumes)


def in_repair(town: Town) -> None:
    """A Node has been out of service for two days, and somebody has sent for a part."""
    objects("Node", f"n{town.nodes - 1}", out_of_service(timedelta(days=2)))(town)


def scaled_down(town: Town) -> None:
    """At night more Nodes have left than are there; telemetry remembers their GPUs for an hour."""
    for number in range(2 * town.nodes):
        gone = (row(f"GPU-gone{number}-{index}", f"gone{number}", "") for index in range(GPUS))
        town.gone += [replace(each, present=False) for each in gone]


def short_lived(town: Town) -> None:
    """As many Nodes again live for 20 minutes each, and end before telemetry shows their GPUs."""
    for number in range(town.nodes):
        town.spot_node(f"spot{number}")
    town.later.append((town.now + 20 * MINUTE, lambda: short_lived(town)))


def mostly_right(town: Town) -> None:
    """Of sixteen outcomes, two days ago and more, one was wrong."""
    said_no(1, hours=72)(town)
    ended_well(15, hours=48)(town)


def ended_well(times: int, hours: int) -> Change:
    return lambda town: remembered(town, times, timedelta(hours=hours), Phase.SUCCEEDED)


def suspicions(town: Town) -> None:
    """An old fleet: most GPUs are worth a look, and no more."""
    for number in range(1, town.nodes):
        for index in range(GPUS):
            device = model.device(f"n{number}", index)
            town.more_findings.append(model.sick(device, advice=Advice.WATCH, confidence_ratio=0.5))


def another_cluster(town: Town) -> None:
    """Many noisy GPUs of hosts that are no Nodes here."""
    town.rows += [row(f"GPU-x{number}", f"x{number}", f"10.9.0.{number}:9400") for number in range(1, 31)]


def others_say(kind: str, name: str, **words: str) -> Change:
    return lambda town: [objects(kind, name, says(key, value))(town) for key, value in words.items()]


BESIDE: Mapping[str, tuple[tuple[ActionKind, ...], Change]] = {
    "ghosts": (ALL, ghosts),
    "without_volume": (ALL, without_volume),
    "in_repair": ((TAINT, RELEASE), in_repair),
    "suspicions": (ALL, suspicions),
    "scaled_down": (ALL, scaled_down),
    "short_lived": (ALL, short_lived),
    "mostly_right": ((TAINT, RELEASE), mostly_right),
    "another_cluster": (ALL, another_cluster),
    "resting": ((TAINT,), resting),
    "claims_unread": (ALL, unread("resource.k8s.io", "ResourceClaim")),
    "queue_unread": ((TAINT,), unread("kueue.x-k8s.io", "Workload")),
    "tenants_word": ((TAINT,), objects("pods", "train", says(keys.OPT_OUT))),
    "full": ((TAINT,), full),
}
"""For which actions it must make no difference."""


# What is to hold whatever stands against an action


@dataclass(frozen=True, slots=True)
class Course:
    """breach: what the `Town` says where it does not hold. gone: whether n0 has no taint at the end."""

    sentence: int
    breach: str
    calls: tuple[ActionKind, ...]
    change: Change = lambda _town: None
    hours: float = 1.25
    gone: bool | None = None


def heals(town: Town, blind: bool) -> None:
    """After half an hour, and from then on, the rules do not see it. The taint would expire after two hours."""
    town.execute["taint_expiry_seconds"] = 7_200

    def well() -> None:
        town.sick, town.blind = set(), blind

    town.later.append((town.now + 30 * MINUTE, well))


def handed_off(town: Town) -> None:
    """A Pod without a GPU stays on n0 for another half an hour."""
    town.execute["hand_off_label"] = "repair=yes"
    town.beside_gpus("n0")
    town.later.append((town.now + 90 * MINUTE, lambda: town.cluster.remove(ObjectRef("v1", "Pod", "beside", "ml"))))


def budget_of_both(town: Town) -> None:
    """One PodDisruptionBudget for both teams allows the larger of the move and the release, and not both."""
    selector = {"matchExpressions": [{"key": "app", "operator": "In", "values": ["train", "chat"]}]}
    town.cluster.put(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "both", "namespace": "ml"},
            "spec": {"selector": selector},
            "status": {"disruptionsAllowed": town.size["train"][1]},
        }
    )


COURSES: Mapping[str, Course] = {
    "plan": Course(4, "twice", ALL),
    "budget_of_both": Course(3, "together", ALL, budget_of_both),
    "notice": Course(5, "notice", OF_PODS),
    "heals": Course(5, "opened", (TAINT,), lambda town: heals(town, blind=False), 2.0, gone=True),
    "heals_unseen": Course(5, "opened", (TAINT,), lambda town: heals(town, blind=True), 2.4, gone=False),
    "expires_unseen": Course(5, "opened", (TAINT,), lambda town: heals(town, blind=True), 2.75, gone=True),
    "stays_sick": Course(
        5, "opened", (TAINT,), lambda town: town.execute.update(taint_expiry_seconds=7_200), 2.75, gone=False
    ),
    "handed_off": Course(5, "handed_off", (TAINT,), handed_off),
}
