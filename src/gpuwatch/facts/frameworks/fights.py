"""Whether an owner may be released, and what other controllers do about it: which would undo the release, whose queue
admits it, and what one that was stopped waits for. Pure.

An autoscaler does not always undo it (a HorizontalPodAutoscaler of at least one replica is switched off while its
target has none), but a release would contradict the replicas that the owner asked the autoscaler for.

A move gives the quota in a queue up, and the next in the queue may take it. An eviction may give up a part of it: Kueue
admits each Pod of a Deployment by itself, and the queues of schedulers count the Pods that run. Of none of them is it
known that it keeps the place for the new Pod.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gpuwatch.facts.frameworks import FRAMEWORKS, WRITTEN, kueue, volcano
from gpuwatch.facts.frameworks.framework import Kind, ReleaseRule, place_lost
from gpuwatch.facts.frameworks.objects import (
    ABSENT,
    MANAGER,
    KindKey,
    Object,
    Refused,
    condition,
    key_of,
    owned_by,
    parts,
    pointer,
    value_at,
)
from gpuwatch.facts.frameworks.owner import OwnerState
from gpuwatch.facts.frameworks.release import barred, known_rule, owned_paths

AUTOSCALERS = (
    Kind("autoscaling", "HorizontalPodAutoscaler", ("v2",)),
    Kind("keda.sh", "ScaledObject", ("v1alpha1",)),
)
PAUSED = "autoscaling.keda.sh/paused"
_LAST_APPLIED = pointer("metadata", "annotations", "kubectl.kubernetes.io/last-applied-configuration")

# Deployers that restore their own state: labels or annotations on their objects, and prefixes of their names in
# managedFields. From the documentation of Argo CD and Flux.
_DEPLOYERS = (
    ("Argo CD", ("argocd.argoproj.io/tracking-id", "argocd.argoproj.io/instance"), ("argocd",)),
    (
        "Flux",
        ("kustomize.toolkit.fluxcd.io/name", "helm.toolkit.fluxcd.io/name"),
        ("kustomize-controller", "helm-controller"),
    ),
)
# Controllers that create an object and never change its spec.
_HANDS_OFF = frozenset({("batch", "CronJob")})
# Queues that admit workloads by quota.
_MARKS = {mark: item.name for item in FRAMEWORKS for mark in (*item.queues, *item.queued)}
_SCHEDULERS = {scheduler: item.name for item in FRAMEWORKS for scheduler in item.schedulers}


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Other objects in the Namespace. unread: which kinds could not be read, and why."""

    objects: tuple[Object, ...] = ()
    unread: tuple[str, ...] = ()

    def of(self, key: KindKey) -> Iterable[Object]:
        return (item for item in self.objects if key_of(item) == key)


@dataclass(frozen=True, slots=True)
class Answer:
    """no: why it may not be released. unread: what was not read, so that it is not known. Both empty: it may."""

    no: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


def alone(object_: Object) -> tuple[str, ...]:
    """Why it may not be released, by what stands in the object itself."""
    controllers = _controller if key_of(object_) != kueue.WORKLOAD.key else lambda _: ()
    try:
        return tuple(filter(None, (barred(object_), *controllers(object_), *_deployers(object_))))
    except (AttributeError, KeyError, TypeError, ValueError):  # a field has another type than its API documents
        return ("Its fields could not be read, so it is not known whether a release of it would last.",)


def may_release(
    owner: Object, surroundings: Surroundings, by_itself: Callable[[Object], Iterable[str]] = alone
) -> Answer:
    """Whether a release of it would be written and would last; where Kueue manages it, a release of its Workload. The
    plan and the executor both ask here, and a move that stops the whole owner asks too.

    by_itself: the answers of `alone`, where the objects are not whole.
    """
    found = kueue_workload(owner, surroundings)
    if isinstance(found, Refused):
        return Answer((found.reason,), surroundings.unread)
    target = owner if found is None else found
    rule = known_rule(target)
    reasons = [rule.reason] if isinstance(rule, Refused) else []
    reasons += by_itself(target)
    if is_scaled(key_of(target)):
        reasons += _autoscalers(target, surroundings)
    if key_of(target) == ("ray.io", "RayCluster"):
        reasons += _left_in_the_queue(target, surroundings)
    return Answer(tuple(dict.fromkeys(reasons)), surroundings.unread)


def is_scaled(kind: KindKey) -> bool:
    """Whether autoscalers may set the fields that a release sets."""
    rule = WRITTEN[kind].release if kind in WRITTEN else None
    return isinstance(rule, ReleaseRule) and rule.scaled


def kueue_workload(object_: Object, surroundings: Surroundings) -> Object | Refused | None:
    """The Workload by which Kueue manages this object: the only one to write. None where Kueue does not manage it."""
    metadata = object_["metadata"]
    if key_of(object_) == kueue.WORKLOAD.key:
        return object_
    uid = metadata.get("uid", "")
    admitted = [item for item in surroundings.of(kueue.WORKLOAD.key) if owned_by(item, [uid])]
    going = [item for item in admitted if condition(item, "Finished") is not True]
    if len(going) == 1:
        return going[0]
    if len(going) > 1:
        names = ", ".join(sorted(item["metadata"]["name"] for item in going))
        return Refused(f"Kueue has several Workloads for it ({names}).")
    queue = (metadata.get("labels") or {}).get(kueue.QUEUE)
    if queue:
        return Refused(f"It is in Kueue's queue {queue}, and no Workload of it was found.")
    return None


def who_wrote(object_: Object, path: str) -> str:
    """The last writer of this field in `managedFields`: a deployer's name, else the manager's own (such as
    'kubectl-edit'); '' where there is none but gpuwatch."""
    entries = object_["metadata"].get("managedFields") or []
    theirs = [item for item in entries if item.get("manager") != MANAGER and _manages(item, path)]
    if not theirs:
        return ""
    manager = str(max(theirs, key=lambda item: str(item.get("time", ""))).get("manager", ""))
    return next((name for name, _, prefixes in _DEPLOYERS if manager.startswith(prefixes)), manager)


def _controller(object_: Object) -> Iterable[str]:
    for owner in object_["metadata"].get("ownerReferences") or ():
        key = (owner.get("apiVersion", "").rpartition("/")[0], owner.get("kind"))
        if owner.get("controller") and key not in _HANDS_OFF:
            yield f"{owner.get('kind')} {owner.get('name')} controls it and would undo the release."


def _left_in_the_queue(object_: Object, surroundings: Surroundings) -> Iterable[str]:
    """KubeRay keeps the PodGroup of a suspended RayCluster, and Volcano's queue reserves all that it requests again."""
    uid = object_["metadata"].get("uid", "")
    for item in surroundings.of(volcano.POD_GROUP.key):
        if owned_by(item, [uid]):
            yield f"Its PodGroup {item['metadata']['name']} would stay in Volcano's queue during a suspension."


def _autoscalers(object_: Object, surroundings: Surroundings) -> Iterable[str]:
    for item in surroundings.of(("autoscaling", "HorizontalPodAutoscaler")):
        if _targets(item, object_, "", ""):
            least, most = value_at(item, "/spec/minReplicas"), value_at(item, "/spec/maxReplicas")
            bounds = f"{1 if least is ABSENT else least} to {most}"
            yield f"HorizontalPodAutoscaler {item['metadata']['name']} sets its replicas ({bounds})."
    for item in surroundings.of(("keda.sh", "ScaledObject")):
        if _targets(item, object_, "apps/v1", "Deployment") and not _paused(item):
            yield f"KEDA's ScaledObject {item['metadata']['name']} sets its replicas."


def _targets(autoscaler: Object, object_: Object, api_version: str, kind: str) -> bool:
    """api_version, kind: defaults of the target reference."""
    target = value_at(autoscaler, "/spec/scaleTargetRef")
    if target is ABSENT:
        return False
    group = (target.get("apiVersion") or api_version).rpartition("/")[0]
    named = (group, target.get("kind") or kind, target.get("name"))
    return named == (*key_of(object_), object_["metadata"]["name"])


def _paused(scaled: Object) -> bool:
    annotations = scaled["metadata"].get("annotations") or {}
    # KEDA keeps setting the number in paused-replicas, so only paused without it leaves the replicas alone.
    return annotations.get(PAUSED) == "true" and f"{PAUSED}-replicas" not in annotations


def _deployers(object_: Object) -> Iterable[str]:
    metadata = object_["metadata"]
    marked = {**(metadata.get("labels") or {}), **(metadata.get("annotations") or {})}
    entries = metadata.get("managedFields") or []
    for name, marks, managers in _DEPLOYERS:
        theirs = [item for item in entries if str(item.get("manager", "")).startswith(managers)]
        if not theirs and not any(mark in marked for mark in marks):
            continue
        wanted = [path for path in owned_paths(object_) if _declared(object_, path, theirs, entries)]
        if wanted:
            yield f"{name} deploys it, sets {', '.join(wanted)} and would write this again."


def _declared(object_: Object, path: str, theirs: list[Mapping[str, Any]], entries: list[Mapping[str, Any]]) -> bool:
    """Whether the deployer's manifest may set this field, by last-applied-configuration, else by managedFields. There
    gpuwatch may have taken the field over from the deployer; a deployer without entries may set any field."""
    applied = value_at(object_, _LAST_APPLIED)
    if applied is not ABSENT:
        try:
            return value_at(json.loads(applied), path) is not ABSENT
        except ValueError:
            return True
    if not theirs:
        return True
    ours = [item for item in entries if item.get("manager") == MANAGER]
    return any(_manages(item, path) for item in (*theirs, *ours))


def _manages(entry: Mapping[str, Any], path: str) -> bool:
    here = entry.get("fieldsV1") or {}
    for name in parts(path):
        if f"f:{name}" not in here:
            return False
        here = here[f"f:{name}"]
    return True


def admitted_by(marks: Iterable[Mapping[str, str]], schedulers: Iterable[str]) -> str:
    """Whose queue admits it, by labels and annotations of the owner and its Pods, and by their schedulerName; '' if
    none is known to."""
    found = (_MARKS[key] for each in marks for key in each if key in _MARKS)
    return next(found, "") or next((_SCHEDULERS[name] for name in schedulers if name in _SCHEDULERS), "")


def loses_place(owner: Object, pods: Sequence[Object], surroundings: Surroundings) -> str:
    """Why a move would lose its place in a queue, by these objects as just read; '' where none is known to admit it."""
    metadata = [item["metadata"] for item in (owner, *pods)]
    uids = {item.get("uid", "") for item in metadata}
    uids |= {ref.get("uid", "") for item in metadata for ref in item.get("ownerReferences") or ()}
    for workload in surroundings.of(kueue.WORKLOAD.key):
        if owned_by(workload, uids) and condition(workload, "Finished") is not True:
            return place_lost(kueue.ADMITTED.name)
    marks = (item.get(key) or {} for item in metadata for key in ("labels", "annotations"))
    name = admitted_by(marks, (pod["spec"].get("schedulerName", "") for pod in pods))
    return place_lost(name) if name else ""


def waits_for(pods: Sequence[Object], owner: Object, surroundings: Surroundings) -> str:
    """What its Kueue Workload, its PodGroup or the scheduler says; '' where none says anything."""
    for kind in (kueue.WORKLOAD, volcano.POD_GROUP):
        for item in surroundings.of(kind.key):
            if owned_by(item, [owner["metadata"].get("uid")]) and kind.unscheduled is not None:
                said = kind.unscheduled(msgspec.convert({"conditions": _conditions(item)}, OwnerState))
                if said:
                    return f"{kind.kind} {item['metadata']['name']}: {said}"
    for pod in pods:
        for each in _conditions(pod):
            if each.get("type") == "PodScheduled" and each.get("status") == "False":
                return f"Pod {pod['metadata']['name']}: {each.get('reason', '')}: {each.get('message', '')}"
    return "" if pods else "It has no Pods."


def _conditions(object_: Object) -> list[Object]:
    found = value_at(object_, "/status/conditions")
    return found if isinstance(found, list) else []
