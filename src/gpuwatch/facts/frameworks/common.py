"""Functions that several frameworks share. Pure."""

from collections.abc import Callable, Sequence
from datetime import datetime

from gpuwatch.facts.frameworks.framework import Deletes, Fields, How, Labels, MovePlan, ReleaseRule, Tree
from gpuwatch.facts.frameworks.objects import Object, condition, number, ref_of, value_at
from gpuwatch.facts.frameworks.owner import OwnerSpec
from gpuwatch.facts.model.cluster import Pod


def suspend(spec: OwnerSpec, _: Labels) -> bool:
    return bool(spec.suspend)


def replicas(spec: OwnerSpec) -> int:
    return 1 if spec.replicas is None else spec.replicas  # the API's default


def min_member(spec: OwnerSpec) -> int | None:
    return spec.min_member


def sets(path: str, value: object) -> Callable[[Object, datetime], Fields]:
    return lambda _object, _at: ((path, value),)


def ends(*conditions: str) -> Callable[[Object], bool]:
    return lambda object_: any(condition(object_, kind) for kind in conditions)


def counts(*paths: str) -> Callable[[Object], str]:
    """Released once the status is newer than the last change and these counts are 0."""

    def holds(object_: Object) -> str:
        seen, meant = value_at(object_, "/status/observedGeneration"), value_at(object_, "/metadata/generation")
        if isinstance(seen, int) and isinstance(meant, int) and seen < meant:
            return "its controller has not seen the change yet"
        left = {path: number(object_, path) for path in paths if number(object_, path)}
        return ", ".join(f"{path} is {count}" for path, count in left.items())

    return holds


def counts_active(path: str) -> Callable[[Object], str]:
    """Released once no part of this list or map in the status has active Pods."""

    def holds(object_: Object) -> str:
        found = value_at(object_, path) or ()
        parts = found.values() if isinstance(found, dict) else found
        active = sum(part.get("active") or 0 for part in parts)
        return f"{path} count {active} active" if active else ""

    return holds


def managed_by_another(object_: Object) -> str:
    """Why a Job or JobSet is not run by its default controller."""
    manager = value_at(object_, "/spec/managedBy")
    if isinstance(manager, str) and manager != "kubernetes.io/job-controller":
        return f"{manager} runs it, not the Job controller."
    return ""


def to_zero(deletes: Deletes) -> ReleaseRule:
    return ReleaseRule(fields=sets("/spec/replicas", 0), deletes=deletes, holds=counts("/status/replicas"), scaled=True)


def deleted_claims(object_: Object, where: str, *occasions: str) -> str:
    """Why a StatefulSet with the retention policy in this field deletes its volume claims on one of these occasions,
    whenScaled or whenDeleted. Kubernetes' default is Retain."""
    policy = value_at(object_, f"{where}/persistentVolumeClaimRetentionPolicy")
    told = ((occasion, policy.get(occasion, "Retain")) for occasion in (occasions if policy else ()))
    return next((_would_delete(occasion, value) for occasion, value in told if value != "Retain"), "")


def _would_delete(occasion: str, value: object) -> str:
    return f"Its volume claims would be deleted: persistentVolumeClaimRetentionPolicy.{occasion} is {value}."


def label(pod: Object, name: str) -> str:
    return str((pod["metadata"].get("labels") or {}).get(name, ""))


def is_ready(pod: Object) -> bool:
    return condition(pod, "Ready") is True and "deletionTimestamp" not in pod["metadata"]


def evict(pods: Sequence[Object]) -> MovePlan:
    ordered = sorted(pods, key=lambda pod: (pod["metadata"].get("namespace", ""), pod["metadata"]["name"]))
    return MovePlan(How.EVICT, tuple(ref_of({"apiVersion": "v1", "kind": "Pod", **pod}) for pod in ordered))


def groups_of(pods: Sequence[Pod], name: str) -> tuple[str, ...]:
    """Distinct values of this label, in the Pods' order."""
    return tuple(dict.fromkeys(pod.labels[name] for pod in pods if pod.labels.get(name)))


def under(*path: str) -> Callable[[Sequence[Pod], Tree], Tree]:
    def place(_: Sequence[Pod], pod_spec: Tree) -> Tree:
        tree: object = pod_spec
        for step in reversed(path):
            tree = {step: tree}
        return {"spec": tree}

    return place


def resources(pod_spec: Tree) -> object:
    """Of the only container."""
    containers = pod_spec["containers"]
    assert isinstance(containers, list)
    return containers[0]["resources"]
