"""Writes a fleet to files: a recording with its cluster and its truths."""

import json
from collections import defaultdict
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from lab.simulate.fleet import SimulatedFleet
from lab.simulate.forms import Object
from lab.simulate.recording import write_recording


def write_fleet(fleet: SimulatedFleet, folder: Path) -> None:
    """Writes telemetry.parquet, cluster/KIND.json (kubectl lists, as of the window's end) and truth.json. A missing
    folder is created. Files of an earlier fleet are replaced, and all other cluster/*.json are removed. Raises
    OSError."""
    (folder / "cluster").mkdir(parents=True, exist_ok=True)
    write_cluster(fleet, folder / "cluster")
    truths = [asdict(truth) | {"subject": str(truth.subject)} for truth in fleet.truth]
    (folder / "truth.json").write_text(json.dumps(truths, indent=1, default=datetime.isoformat) + "\n")
    write_recording(folder / "telemetry.parquet", fleet.series())


def write_cluster(fleet: SimulatedFleet, folder: Path, at: datetime | None = None) -> None:
    """Replace all *.json of the folder with the cluster's objects at that moment, one list per kind."""
    for old in folder.glob("*.json"):
        old.unlink()
    lists: dict[str, list[Object]] = defaultdict(list)
    for item in fleet.cluster_objects(at):
        group = item["apiVersion"].partition("/")[0] if "/" in item["apiVersion"] else ""
        plural = f"{item['kind'].lower()}{'es' if item['kind'].endswith('s') else 's'}"
        lists[f"{plural}{'.' if group else ''}{group}"].append(item)
    for name, items in lists.items():
        listed = {"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": items}
        (folder / f"{name}.json").write_text(json.dumps(listed) + "\n")
