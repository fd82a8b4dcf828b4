"""The examples of the frameworks: recorded objects with their Pods, and what gpuwatch has to make of them.

Each file of tests/fixtures/cluster/frameworks begins with an object of the kind Expected: its gangs, Pods without one
(alone), and objects as users write them, with the status of a running and of a released one (releases).
"""

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gpuwatch.facts.frameworks import WRITTEN, keys
from gpuwatch.facts.frameworks.framework import ReleaseRule
from gpuwatch.facts.frameworks.objects import Object, key_of, ref_of
from gpuwatch.facts.model.remediation import Saved

TABLES = yaml.safe_load(Path(__file__).with_name("tables.yaml").read_text(encoding="utf-8"))
FILES = sorted((Path(__file__).parents[1] / "fixtures" / "cluster" / "frameworks").iterdir())
ANNOTATIONS = {"team.example.org/owner": "vision", "kubectl.kubernetes.io/note": "kept/~as it is"}


@dataclass(frozen=True)
class Sample:
    """path: the field that releases it. released: the status of one that gave everything up.

    spec_after: what a restoration leaves in its spec that was not there before.
    """

    id: str
    object: Object
    path: str
    status: Object = field(default_factory=dict)
    released: Object = field(default_factory=dict)
    spec_after: Object = field(default_factory=dict)

    def named(self, namespace: str, **metadata: Any) -> Object:
        made = copy.deepcopy(self.object)
        made["metadata"] = {"name": self.id, "namespace": namespace, **made.get("metadata", {}), **metadata}
        return made


@dataclass(frozen=True)
class Example:
    """gangs: by id, (Workload, GPU Pods, minimum, told by)."""

    file: Path
    gangs: Mapping[str, tuple[str, int, int | None, str]]
    alone: frozenset[str]
    releases: tuple[Sample, ...]


def recorded(file: Path) -> list[Object]:
    return [each for each in yaml.safe_load_all(file.read_text()) if each["kind"] != "Expected"]


def _example(file: Path) -> Example:
    told = next(each for each in yaml.safe_load_all(file.read_text()) if each["kind"] == "Expected")
    gangs = {name: (each["workload"], each["pods"], each["needs"], each["by"]) for name, each in told["gangs"].items()}
    releases = tuple(
        Sample(
            each["id"],
            {"metadata": {}, **each["object"]},
            each["path"],
            *(each.get(name, {}) for name in ("status", "released", "specAfter")),
        )
        for each in told.get("releases", ())
    )
    return Example(file, gangs, frozenset(told.get("alone", ())), releases)


EXAMPLES = {file.name: _example(file) for file in FILES}
_EVERY = [sample for example in EXAMPLES.values() for sample in example.releases]
(VOLCANO,) = (each for each in _EVERY if each.id == "volcano")
"""It is released by a command and not by a field."""
SAMPLES = tuple(each for each in _EVERY if each is not VOLCANO)

assert {key_of(each.object) for each in _EVERY} == {
    key for key, kind in WRITTEN.items() if isinstance(kind.release, ReleaseRule)
}, "A kind with a release has no object under `releases` in its example, or the other way round."


def told_state(object_: Object) -> tuple[Saved, ...]:
    """What the annotation on the object says of the fields before the release. People read it; gpuwatch does not."""
    target, text = ref_of(object_), object_["metadata"]["annotations"][keys.SAVED_STATE]
    return tuple(Saved(target=target, **item) for item in json.loads(text))
