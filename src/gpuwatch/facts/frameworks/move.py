"""How the Pods of an owner are moved to other Nodes: some one by one, some only as a whole, some never. Pure."""

from collections.abc import Sequence
from datetime import datetime

from gpuwatch.facts.frameworks import WRITTEN, keys
from gpuwatch.facts.frameworks.framework import MovePlan, Never
from gpuwatch.facts.frameworks.json_patch import value_at
from gpuwatch.facts.frameworks.objects import Object, Patch, Refused, key_of, ref_of, stamp, version_of
from gpuwatch.facts.frameworks.release import loses


def move(object_: Object, pods: Sequence[Object], wanted: Sequence[str]) -> MovePlan | Refused:
    """How to move the Pods with the uids `wanted`. pods: all of the owner. object_: the top owner or Kueue Workload."""
    there = [pod for pod in pods if value_at(pod, "/status/phase") not in ("Succeeded", "Failed")]
    chosen = [pod for pod in there if pod["metadata"].get("uid") in wanted]
    if not chosen:
        return Refused("None of the Pods to move exists any more.")
    kind = WRITTEN.get(key_of(object_))
    if kind is None:
        return Refused(f"gpuwatch does not move the Pods of a {object_['kind']} of {object_['apiVersion']}.")
    if isinstance(kind.move, Never):
        return Refused(kind.move.reason)
    if lost := loses(object_):
        return Refused(lost)
    staying = (kind.move.stays(pod["metadata"].get("labels") or {}) for pod in chosen)
    reason = next((told for told in staying if told), "")
    return Refused(reason) if reason else kind.move.choose(object_, there, chosen)


def rollout(object_: Object, *, remediation: str, at: datetime) -> Patch:
    """A restart of a Deployment's Pods, as by `kubectl rollout restart`. Nothing has to be restored."""
    template = {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": stamp(at)}}}
    body = {"metadata": {"annotations": {keys.REMEDIATION: remediation}}, "spec": {"template": template}}
    return Patch(ref_of(object_), body, version_of(object_))
