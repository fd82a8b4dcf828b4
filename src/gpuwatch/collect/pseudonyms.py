"""Replaces the names in a Snapshot by pseudonyms, the same name by the same one, so that it can be shared.

Kept: GPU models, MIG profiles, kinds, resource names, and label keys and values of the vendors' and Kubernetes' own
vocabulary. Replaced: names of Nodes, Pods, containers, namespaces, owners, queues, pools, images, addresses, GPU
UUIDs, and every other label key and value. The key is random and not kept, so that a guessed name cannot be checked.
"""

import hashlib
import re
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias, TypeVar

from gpuwatch.model import cluster
from gpuwatch.model.decision import Snapshot
from gpuwatch.model.telemetry import ActivityHistory, Device, DeviceId, Exporter, Gap, PodRun, Readings, StateChange

# Labels whose keys and values contain no names.
_PLAIN = re.compile(
    r"^(nvidia\.com/|(beta\.)?amd\.com/|gpu\.intel\.com/|gpuwatch\.dev/|kubernetes\.io/(arch|os)$|"
    r"node\.kubernetes\.io/instance-type$|topology\.kubernetes\.io/|karpenter\.sh/capacity-type$)"
)
T = TypeVar("T")
_URL = re.compile(r"https?://[^\s'\",;]+")


def pseudonymise(snapshot: Snapshot, key: bytes | None = None) -> Snapshot:
    """The Snapshot with other names. `key` makes them repeatable (for tests)."""
    alias = _Alias(key or secrets.token_bytes(32))
    schema = snapshot.telemetry_schema
    found: Snapshot = alias.of(snapshot)
    return replace(
        found,
        telemetry_schema=replace(
            schema, backend=_URL.sub("URL", schema.backend), matchers=alias.labels(schema.matchers)
        ),
        readings=_readings(snapshot.readings, ("job", "instance", *schema.matchers), alias),
    )


@dataclass(frozen=True, slots=True)
class _Alias:
    key: bytes

    def __call__(self, kind: str, name: str) -> str:
        if not name:
            return name
        digest = hashlib.blake2b(name.encode(), key=self.key, digest_size=6, person=kind.encode()).hexdigest()
        return f"{kind}-{digest}"

    def device(self, name: str) -> str:
        uuid, slash, instance = name.partition("/")
        return self("GPU", uuid) + slash + instance

    def ref(self, name: str) -> str:
        """`namespace/name` of a Pod or a claim; without a slash it is a name."""
        space, slash, rest = name.rpartition("/")
        return (self("ns", space) + slash if slash else "") + self("name", rest)

    def path(self, name: str) -> str:
        """`Kind/namespace/name` of a workload or a gang; the kind stays."""
        kind, slash, rest = name.partition("/")
        return kind + slash + self.ref(rest) if slash else self("name", name)

    def labels(self, labels: Mapping[str, str]) -> dict[str, str]:
        return {self.label(key): value if _PLAIN.match(key) else self("value", value) for key, value in labels.items()}

    def label(self, key: str) -> str:
        return key if _PLAIN.match(key) else self("key", key)

    def taint(self, key: str) -> str:
        return key if key.startswith("node.kubernetes.io/") else self.label(key)

    def of(self, item: Any, rule: "_Rule | None" = None) -> Any:
        """The item by its rule. Without one, objects by the rules of their class, and anything else as it is."""
        if callable(rule):
            return rule(self, item)
        if isinstance(item, tuple):
            return tuple(self.of(each, rule) for each in item)
        if rule is not None:
            return None if item is None else self(rule, item)
        rules = _RULES.get(type(item))
        if rules is None:
            return item
        return replace(
            item, **{each.name: self.of(getattr(item, each.name), rules.get(each.name)) for each in fields(item)}
        )


_Rule: TypeAlias = str | Callable[[_Alias, Any], Any]
"""The kind of a name or of a tuple of names, or a function of the whole value."""


def _each(rule: Callable[[_Alias, Any], Any]) -> _Rule:
    return lambda alias, items: tuple(rule(alias, item) for item in items)


def _requirement(alias: _Alias, item: cluster.Requirement) -> cluster.Requirement:
    if _PLAIN.match(item.key):
        return item
    return replace(item, key=alias("key", item.key), values=alias.of(item.values, "value"))


def _field(alias: _Alias, item: cluster.Requirement) -> cluster.Requirement:
    """On a field of the Node, which is its name."""
    return replace(item, values=alias.of(item.values, "node"))


def _expression(alias: _Alias, item: tuple[str, str, tuple[str, ...]]) -> tuple[str, str, tuple[str, ...]]:
    key, operator, values = item
    return alias.label(key), operator, values if _PLAIN.match(key) else alias.of(values, "value")


def _nodes_of(kind: str) -> _Rule:
    """For a mapping from names of this kind to Nodes."""
    return lambda alias, item: {alias(kind, name): alias("node", node) for name, node in item.items()}


def _withheld(_: _Alias, text: str) -> str:
    """Text that may quote any name."""
    return "(withheld)" if text else ""


_DEVICE, _REF, _PATH, _LABELS = _Alias.device, _Alias.ref, _Alias.path, _Alias.labels
_NAMED: Mapping[str, _Rule] = {"namespace": "ns", "name": "name"}
_META: Mapping[str, _Rule] = {"uid": "uid", "labels": _LABELS, "annotations": _LABELS}
_SELECTOR: Mapping[str, _Rule] = {"match_labels": _LABELS, "match_expressions": _each(_requirement)}
_RULES: Mapping[type, Mapping[str, _Rule]] = {
    Snapshot: dict.fromkeys(("boots", "infiniband"), lambda alias, of: {alias("node", name): of[name] for name in of}),
    Device: {
        "id": _DEVICE,
        "uuid": "GPU",
        "node": "node",
        "node_label": "node",
        "exporter": "target",
        "untrusted": _withheld,
        "pci_bus_id": lambda *_: "",
        "pods": _each(_REF),
        "containers": "container",
    },
    Exporter: {"instance": "target", "job": "job", "node": "node", "node_label": "node"},
    ActivityHistory: {"device": _DEVICE, "pod": _REF},
    StateChange: {"device": _DEVICE},
    PodRun: {"pod": _REF, "node": "node", "created_by": _PATH, "images": "image"},
    Gap: {"what": _withheld, "detail": _withheld},
    cluster.Cluster: {
        "priorities": lambda alias, item: {alias("class", name): value for name, value in item.items()},
        "exporter_nodes": _nodes_of("target"),
        "exporter_pods": _each(_REF),
        "node_addresses": _nodes_of("address"),
    },
    cluster.Node: {**_META, "name": "node", "boot_id": "boot", "pool": "pool"},
    cluster.Taint: {"key": _Alias.taint, "value": "value"},
    cluster.Pod: {
        **_NAMED,
        **_META,
        "node": "node",
        "images": "image",
        "claims": "name",
        "priority_class": "class",
        "workload": _PATH,
        "gang": _PATH,
        "unscheduled": _withheld,
    },
    cluster.Placement: {"node_selector": _LABELS},
    cluster.Toleration: {"key": _Alias.taint, "value": "value"},
    cluster.NodeTerm: {"labels": _each(_requirement), "fields": _each(_field)},
    cluster.PodTerm: {**_SELECTOR, "topology_key": _Alias.label, "namespaces": "ns"},
    cluster.Spread: {**_SELECTOR, "topology_key": _Alias.label},
    cluster.Workload: {**_NAMED, **_META, "id": _PATH, "queue": "queue"},
    cluster.Gang: {"id": _PATH, "workload": _PATH, "namespace": "ns", "pods": _each(_REF), "unscheduled": _withheld},
    cluster.DisruptionBudget: {**_NAMED, "match_labels": _LABELS, "match_expressions": _each(_expression)},
    cluster.Namespace: {"name": "ns", "labels": _LABELS, "annotations": _LABELS},
    cluster.Unread: {"namespace": "ns", "why": lambda *_: "The reason is left out."},
    cluster.ClaimedDevice: {"claim": _REF, "pool": "pool", "device": _DEVICE},
}
"""By class the rules of its fields. A field without one stays as it is, but for objects of these classes in it."""


def _readings(item: Readings, scoped: Collection[str], alias: _Alias) -> Readings:
    """scoped: labels whose matchers in queries contain names."""
    names = re.compile(rf"\b({'|'.join(scoped)})(=~?|!~)\"(?:[^\"\\]|\\.)*\"")

    def by_device(answers: Mapping[str, Mapping[DeviceId, T]]) -> dict[str, dict[DeviceId, T]]:
        return {stat: {alias.device(key): value for key, value in found.items()} for stat, found in answers.items()}

    return Readings(
        values=by_device(item.values),
        variants=by_device(item.variants),
        # Matchers of single devices contain their ids; the expressions contain `$device`.
        promql={
            key: names.sub(r'\1\2"…"', text) for key, text in item.promql.items() if not key.startswith("matcher:")
        },
    )
