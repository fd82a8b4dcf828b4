"""Whether a workload that was stopped runs again, and what it waits for. Pure."""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime

import msgspec

from gpuwatch.facts.frameworks import WRITTEN, kueue, volcano
from gpuwatch.facts.frameworks.fights import Surroundings
from gpuwatch.facts.frameworks.framework import ReleaseRule
from gpuwatch.facts.frameworks.json_patch import value_at
from gpuwatch.facts.frameworks.objects import Object, key_of
from gpuwatch.facts.frameworks.owner import OwnerState
from gpuwatch.facts.frameworks.release import as_json
from gpuwatch.facts.model.remediation import Saved


def count_running(pods: Iterable[Object], known: Collection[str] = (), since: datetime | None = None) -> int:
    """Pods that run and are not being deleted. With `since`, also those that succeeded and were created later or have a
    uid of `known`: a job's Pods may end before they are looked at."""

    def counts(pod: Object) -> bool:
        metadata, phase = pod["metadata"], value_at(pod, "/status/phase")
        made = metadata.get("creationTimestamp")
        new = since is not None and bool(made) and datetime.fromisoformat(made) >= since
        done = since is not None and phase == "Succeeded" and (new or metadata.get("uid") in known)
        return "deletionTimestamp" not in metadata and (phase == "Running" or done)

    return sum(map(counts, pods))


def most_wanted(owner: Object, pods: int) -> int:
    """So many Pods, or fewer if a Deployment or StatefulSet asks for fewer by now, as when an autoscaler shrank it."""
    asked = value_at(owner, "/spec/replicas") if key_of(owner)[0] == "apps" else pods
    return min(pods, asked) if isinstance(asked, int) else pods


def ended(object_: Object | None) -> bool:
    """Whether it has run to its end."""
    rule = _rule(object_)
    return object_ is not None and rule is not None and rule.ended(object_)


def changed_since(object_: Object | None, saved: Sequence[Saved]) -> str:
    """The field that a release had set, if others have set it anew since it was restored; '' otherwise."""
    rule = _rule(object_)
    if object_ is None or rule is None or rule.commands is not None:
        return ""  # a Command's result shows in a status, which changes by itself
    mine = [item for item in saved if item.target.uid == object_["metadata"].get("uid")]
    restored = {item.before or as_json(rule.unset) for item in mine[:1]}
    return mine[0].path if mine and as_json(value_at(object_, mine[0].path)) not in restored else ""


def waits_for(pods: Sequence[Object], owner: Object, surroundings: Surroundings) -> str:
    """What its Kueue Workload, its PodGroup or the scheduler says; '' where none says anything."""
    for kind in (kueue.WORKLOAD, volcano.POD_GROUP):
        for item in surroundings.of(kind.key):
            refs = item["metadata"].get("ownerReferences") or ()
            if any(ref.get("uid") == owner["metadata"].get("uid") for ref in refs) and kind.unscheduled is not None:
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


def _rule(object_: Object | None) -> ReleaseRule | None:
    kind = WRITTEN.get(key_of(object_)) if object_ is not None else None
    return kind.release if kind is not None and isinstance(kind.release, ReleaseRule) else None
