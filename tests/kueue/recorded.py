"""The record of `kueue/record.py` as gpuwatch reads it: it stands in for Kueue where that is not built.

A state is all that the record has up to a moment, with its Nodes and the Jobs that own the Pods.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from gpuwatch.facts.model.cluster import Cluster
from gpuwatch.sources.kube.recorded import RecordedCluster
from kube.cluster_json import as_list, node

Object = dict[str, Any]
RECORD = Path(__file__).parents[1] / "fixtures" / "kueue" / "taints.jsonl"
HEADS, TAINTED = ("course", "kueue"), "gpu-1"


@dataclass(frozen=True)
class Recorded:
    """One course. frames: oldest first."""

    tainted_at: datetime
    nodes: int
    frames: tuple[Object, ...]

    def objects(self, seconds: float, version: str = "v1beta2") -> list[Object]:
        """Those that were there so many seconds after the taint, with Workloads of this version."""
        there: dict[str, Object] = {}
        for frame in (each for each in self.frames if each["seconds"] <= seconds):
            found = frame.get("object", {})
            key = frame.get("gone") or f"{found['apiVersion']}/{found['kind']}/{found['metadata']['name']}"
            there.pop(key, None)
            there |= {key: found} if found else {}
        return [each for key, each in there.items() if not key.startswith("kueue") or f"/{version}/" in key]

    def cluster(self, folder: Path, seconds: float, version: str = "v1beta2", change: Change | None = None) -> Cluster:
        """As gpuwatch reads it. change: made to each object before."""
        found = copy.deepcopy(self.objects(seconds, version))
        for each in found:
            if change is not None:
                change(each)
        gpus, ready = {"nvidia.com/gpu": "8"}, [{"type": "Ready", "status": "True"}]
        nodes = [node(f"gpu-{at}", capacity=gpus, conditions=ready) for at in range(self.nodes)]
        jobs = {owner["uid"]: _job(owner, each) for each in found for owner in _owners(each) if owner["kind"] == "Job"}
        folder.mkdir(exist_ok=True)
        (folder / "all.json").write_text(json.dumps(as_list(*nodes, *jobs.values(), *found)))
        return RecordedCluster(folder).read(self.at(seconds))

    def at(self, seconds: float) -> datetime:
        return self.tainted_at + timedelta(seconds=seconds)


Change = Callable[[Object], None]


def _owners(found: Object) -> list[Object]:
    owners: list[Object] = found["metadata"].get("ownerReferences") or []
    return owners


def _job(owner: Object, owned: Object) -> Object:
    meta = {"name": owner["name"], "namespace": owned["metadata"]["namespace"], "uid": owner["uid"]}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": {"parallelism": 1}}


@cache
def course(name: str) -> Recorded:
    heads = {each["course"]: each for each in _lines() if "course" in each}
    frames: list[Object] = []
    now = ""
    for each in _lines():
        now = each.get("course", now)
        if now == name and not any(key in each for key in HEADS):
            frames.append(each)
    return Recorded(datetime.fromisoformat(heads[name]["tainted_at"]), heads[name]["nodes"], tuple(frames))


def _lines() -> Iterator[Object]:
    return (json.loads(line) for line in RECORD.read_text(encoding="utf-8").splitlines())
