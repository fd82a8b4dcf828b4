"""Reads recordings of real Nodes (`fixtures/node-recordings`) moment by moment, as gpuwatch reads a cluster."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from cluster.api import Object
from gpuwatch.facts.model.cluster import Cluster, Node, Pod
from gpuwatch.sources.kube.recorded import RecordedCluster

RECORDINGS = Path(__file__).parent.parent / "fixtures" / "node-recordings"
Line = dict[str, Any]
_PERHAPS_NONE_OF = ("Pod", "PodDisruptionBudget", "ResourceQuota", "Workload")
"""Kinds that always have a list, which is empty where there is no object."""


def key_of(found: Object) -> str:
    meta = found["metadata"]
    return f"{found['kind']}/{meta.get('namespace', '')}/{meta['name']}"


def lines_of(name: str) -> list[Line]:
    text = (RECORDINGS / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


@dataclass(frozen=True)
class Moment:
    """mark: what was done last. objects: all of this moment, by kind/namespace/name."""

    at: datetime
    mark: str
    objects: Mapping[str, Object]

    def cluster(self, folder: Path) -> Cluster:
        """As gpuwatch reads the objects. folder: an empty one, which is used again."""
        items = [each for each in self.objects.values() if each["kind"] != "Event"]
        (folder / "objects.json").write_text(json.dumps({"kind": "List", "items": items}))
        for kind in _PERHAPS_NONE_OF:
            (folder / f"{kind.lower()}s.json").write_text(json.dumps({"kind": f"{kind}List", "items": []}))
        return RecordedCluster(folder).read(self.at)


def moments(lines: Iterable[Line]) -> Iterator[Moment]:
    """The beginning, and one after each line that changes a Node, a Pod or a Job."""
    objects: dict[str, Object] = {}
    mark = ""
    for line in lines:
        at = datetime.fromisoformat(line["at"])
        if "mark" in line:
            if not mark:
                yield Moment(at, "", dict(objects))
            mark = line["mark"]
            continue
        key = key_of(line["new"]) if "new" in line else line["of"]
        if "new" in line:
            objects[key] = line["new"]
        elif "patch" in line:
            objects[key] = merged(objects[key], line["patch"])
        else:
            del objects[key]
        if mark and not key.startswith("Event/"):
            yield Moment(at, mark, dict(objects))


def merged(old: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    base = old if isinstance(old, dict) else {}
    kept = {name: value for name, value in base.items() if name not in patch}
    return kept | {name: merged(base.get(name), value) for name, value in patch.items() if value is not None}


def told(lines: Sequence[Line], folder: Path) -> dict[str, list[str]]:
    """What gpuwatch reads of each Node, Pod and Job, one after another, without times and without repetitions. Pods are
    named by their label `app` and, of several, a number."""
    found: dict[str, list[str]] = defaultdict(list)
    names: dict[str, str] = {}
    counted = Counter[str]()

    def tell(name: str, words: str) -> None:
        if found[name][-1:] != [words]:
            found[name].append(words)

    for moment in moments(lines):
        cluster = moment.cluster(folder)
        for node in cluster.nodes:
            tell(node.name, told_of_node(node))
        for pod in sorted(cluster.pods, key=lambda each: (each.created is None, each.created, each.name)):
            if pod.uid not in names:
                app = f"{pod.namespace}/{pod.labels['app']}"
                names[pod.uid] = f"{app}-{counted[app]}"
                counted[app] += 1
            tell(names[pod.uid], told_of_pod(pod))
        there = {pod.uid for pod in cluster.pods}
        for uid, name in names.items():
            if uid not in there:
                tell(name, "gone")
        for owner in cluster.workloads:
            tell(owner.id, f"{owner.retries} evictions left")
    return dict(found)


def told_of_node(node: Node) -> str:
    capacity, left = (sum(each.values()) for each in (node.accelerators, node.allocatable))
    taints = "".join(f", {each.key}:{each.effect}" for each in node.taints)
    return f"{'Ready' if node.ready else 'not Ready'} {left}/{capacity}{taints}"


def told_of_pod(pod: Pod) -> str:
    health = Counter(each.health for each in pod.devices)
    devices = (f"{count} {name}" for name, count in sorted(health.items()))
    words = [pod.phase, "ready" * pod.ready, "deleting" * pod.deleting, pod.refused, *devices]
    return ", ".join(word for word in words if word)
