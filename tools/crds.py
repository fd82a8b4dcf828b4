"""The CustomResourceDefinitions of gpuwatch.dev/v1alpha1, which `tools.names` writes.

Their fields are those of the model; crd_fields.yaml says what each means.
"""

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, is_dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any, cast, get_args, get_origin

import yaml

from gpuwatch.facts.catalog.tables import checked
from gpuwatch.facts.model.decision import ActionKind
from gpuwatch.facts.model.remediation import OF_NODES, OF_WORKLOADS, ObjectRef, Phase
from gpuwatch.sources.store.api_form import QUANTITY, TEXT_SUFFIX, NumberOrText, camel_enum, enum_members, form_fields
from gpuwatch.sources.store.custom_resources import (
    ADVISED,
    CHECKPOINT_KIND,
    GROUP,
    KIND,
    MEANINGS,
    NODE_KIND,
    PENDING,
    PROFILE_KIND,
    TYPES,
    VERSION,
    ConditionStatus,
    RemediationSpec,
    RemediationStatus,
    WorkloadProfileSpec,
    WorkloadProfileStatus,
)
from tools.generated import ROOT

MAX_ITEMS = 8192
"""Of any list: a gang of so many devices fits, and CEL can bound its work."""

MAX_TEXT = 16384
"""Of any text, in characters. PromQL that names one device is a few hundred."""

_TEXT: Mapping[str, Any] = {"type": "string", "maxLength": MAX_TEXT}

FILE = ROOT / "deploy" / "base" / "crds.yaml"

_FILE = Path(__file__).with_name("crd_fields.yaml")
FIELDS = checked(
    yaml.safe_load(_FILE.read_text(encoding="utf-8")), dict[str, dict[str, str | dict[str, Any]]], _FILE.name
)
"""By class and field: its description, or that and more keys of its schema."""

CONDITIONS: Mapping[str, Mapping[str, str]] = {
    KIND: MEANINGS,
    NODE_KIND: MEANINGS,
    PROFILE_KIND: {ADVISED: "something is recommended; where it is False, the reason says why not"},
}
"""By kind and type, what is so where the condition is True."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSpec:
    """A piece of the state, in base64, or the list of its pieces."""

    data: str = ""
    schema: int = 0
    pieces: tuple[str, ...] = ()
    sweep: tuple[str, ...] = ()


def definitions() -> list[dict[str, Any]]:
    """The CustomResourceDefinitions, as they are applied to a cluster."""
    return [
        _remediation(
            KIND, "rem", "Namespaced", OF_WORKLOADS,
            "Something to be done to a workload of this Namespace, whose people set spec.approved or spec.rejected.",
        ),
        _remediation(
            NODE_KIND, "noderem", "Cluster", OF_NODES,
            "Something to be done to a Node. The platform's people set spec.approved or spec.rejected.",
        ),
        _workload_profile(),
        _definition(
            CHECKPOINT_KIND, "gwcp", "Namespaced", "A piece of what gpuwatch remembers. For gpuwatch alone.",
            {"spec": schema(CheckpointSpec)}, [("Age", "date", ".metadata.creationTimestamp", 0)],
        ),
    ]  # fmt: skip


_ACTIONS = {
    ActionKind.TAINT_NODE: "TaintNode keeps new Pods off a Node.",
    ActionKind.EVICT_GANG: "EvictGang moves Pods elsewhere.",
    ActionKind.MAKE_ROOM: "MakeRoom moves Pods elsewhere, so that a Pod that waits is placed.",
    ActionKind.RELEASE_GANG: "ReleaseGang suspends an idle workload or scales it to zero.",
}


def _remediation(kind: str, short: str, scope: str, actions: Collection[ActionKind], says: str) -> dict[str, Any]:
    spec, status = schema(RemediationSpec), schema(RemediationStatus)
    proposal = spec["properties"]["proposal"]
    proposal["x-kubernetes-validations"] = [
        {"rule": "self == oldSelf", "message": "the proposal cannot be changed; reject it, and another is made"}
    ]
    action = proposal["properties"]["action"]
    action["enum"] = sorted(map(camel_enum, actions))
    action["description"] = "What is to be done. " + " ".join(_ACTIONS[each] for each in sorted(actions))
    spec["x-kubernetes-validations"] = [
        {
            "rule": "!(has(self.approved) && self.approved && has(self.rejected) && self.rejected)",
            "message": "approved and rejected exclude each other",
        }
    ]
    status["default"] = {"phase": camel_enum(Phase.PROPOSED), "conditions": _pending(*TYPES)}
    return _definition(
        kind,
        short,
        scope,
        says,
        {"spec": spec, "status": status},
        [
            ("Action", "string", ".spec.proposal.action", 0),
            ("Target", "string", ".spec.proposal.target", 0),
            ("GPUs", "integer", ".spec.proposal.gpus", 0),
            ("Phase", "string", ".status.phase", 0),
            ("Approved", "string", _condition(TYPES[0], "status"), 0),
            ("Age", "date", ".metadata.creationTimestamp", 0),
            ("Reason", "string", ".spec.proposal.reason", 1),
        ],
    )


def _condition(type_: str, part: str) -> str:
    return f'.status.conditions[?(@.type=="{type_}")].{part}'


def _workload_profile() -> dict[str, Any]:
    spec, status = schema(WorkloadProfileSpec), schema(WorkloadProfileStatus)
    spec["x-kubernetes-validations"] = [{"rule": "self == oldSelf", "message": "a profile stays that of its workload"}]
    status["default"] = {"conditions": _pending(ADVISED)}
    advised = ".status.recommendation"
    return _definition(
        PROFILE_KIND,
        "wlp",
        "Namespaced",
        "What was measured of one container of a workload, and what is advised. For reading: gpuwatch writes it.",
        {"spec": spec, "status": status},
        [
            ("Workload", "string", ".spec.workload", 0),
            ("Container", "string", ".spec.container", 1),
            ("GPU", "string", ".spec.gpuModel", 0),
            ("Slice", "string", ".spec.migProfile", 1),
            ("Busy", "string", ".status.busyRatio", 0),
            ("Advised", "string", _condition(ADVISED, "status"), 0),
            ("Reason", "string", _condition(ADVISED, "reason"), 0),
            ("Target", "string", f"{advised}.target", 0),
            ("Saves per week", "string", f"{advised}.projectedSavingPerWeek", 0),
            ("Currency", "string", f"{advised}.currency", 0),
            ("Observed", "date", ".status.observationTime", 0),
        ],
    )


def _definition(
    kind: str,
    short: str,
    scope: str,
    says: str,
    parts: Mapping[str, Any],
    columns: list[tuple[str, str, str, int]],
) -> dict[str, Any]:
    """columns: name, type, JSONPath, and the priority: above 0 it is shown with `-o wide` alone."""
    plural = f"{kind.lower()}s"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": scope,
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short],
                "categories": ["gpuwatch"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    **({"subresources": {"status": {}}} if "status" in parts else {}),
                    "additionalPrinterColumns": [
                        {"name": name, "type": type_, "jsonPath": path, "priority": priority}
                        for name, type_, path, priority in columns
                    ],
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "description": says,
                            "required": ["spec"],
                            "properties": {
                                "apiVersion": {"type": "string", "description": "Version of this form of the object."},
                                "kind": {"type": "string", "description": "Kind of the object."},
                                "metadata": {"type": "object"},
                                **{name: {"description": _PARTS[name], **part} for name, part in parts.items()},
                            },
                        }
                    },
                }
            ],
        },
    }


_PARTS = {
    "spec": "What gpuwatch wrote when it made the object, and what people decide.",
    "status": "What became of it, written by gpuwatch alone.",
}

_HEAD = """\
# Written by `make names` from the model and tools/crd_fields.yaml.
"""


# The structural schema of a class


def _pending(*types: str) -> list[dict[str, Any]]:
    """What an object says before anybody looked at it, as Gateway API has it: the default of a definition."""
    return [
        {
            "type": name,
            "status": str(ConditionStatus.UNKNOWN),
            "reason": PENDING,
            "message": "Waiting for gpuwatch.",
            "lastTransitionTime": "1970-01-01T00:00:00Z",
        }
        for name in types
    ]


def schema(kind: type) -> dict[str, Any]:
    """The structural schema of `to_api` of this dataclass. Raises TypeError where a field has no description, or a time
    is not called one."""
    properties: dict[str, Any] = {}
    required: list[str] = []
    either: list[str] = []
    for each in form_fields(cast("Hashable", kind)):
        described = FIELDS.get(kind.__name__, {}).get(each.name, "")
        more = {"description": described} if isinstance(described, str) else dict(described)
        says = {"description": more.pop("description", "")}
        if not says["description"]:
            raise TypeError(f"{kind.__name__}.{each.name} has no description")
        if each.kind is datetime and each.api_name != "time" and not each.api_name.endswith("Time"):
            raise TypeError(f"{kind.__name__}.{each.name} is a time, and {each.api_name} does not say so")
        if each.kind is NumberOrText:
            properties[each.api_name] = {**says, **_schema(float)}
            properties[each.api_name + TEXT_SUFFIX] = {
                **_TEXT,
                "description": f"Instead of {each.api_name} where it is a text.",
            }
        else:
            properties[each.api_name] = {**says, **_schema(each.kind), **more}
        if each.required and not each.optional:
            (either if each.kind is NumberOrText else required).append(each.api_name)
    found: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        found["required"] = required
    if either:
        found["allOf"] = [{"oneOf": [{"required": [name]}, {"required": [name + TEXT_SUFFIX]}]} for name in either]
    if kind is ObjectRef:  # a part of another object makes no sense
        found["x-kubernetes-map-type"] = "atomic"
    return found


def _schema(kind: Any) -> dict[str, Any]:
    if is_dataclass(kind):
        return schema(cast(type, kind))
    origin = get_origin(kind)
    if origin is tuple:
        (item, _) = get_args(kind)
        kept = {"maxItems": MAX_ITEMS, "x-kubernetes-list-type": "atomic"}
        return {"type": "array", **kept, "items": _schema(item)}
    if origin is not None:
        (_, item) = get_args(kind)
        kept = {"maxProperties": MAX_ITEMS, "x-kubernetes-map-type": "granular"}
        return {"type": "object", **kept, "additionalProperties": _schema(item)}
    if kind is datetime:
        return {"type": "string", "format": "date-time"}
    if issubclass(kind, Enum):
        return {"type": "string", "enum": list(enum_members(kind))}
    scalars: dict[type, Mapping[str, Any]] = {
        bool: {"type": "boolean"},
        int: {"type": "integer", "format": "int64"},
        float: {"type": "string", "pattern": QUANTITY, "maxLength": 32},
        str: _TEXT,
    }
    return dict(scalars[kind])


class _Plain(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
        return True  # the API server's YAML has them, people's eyes have not


def page() -> str:
    return _HEAD + yaml.dump_all(definitions(), Dumper=_Plain, sort_keys=False, width=118, explicit_start=True)
