"""Replaces each name in a Snapshot by a pseudonym, always the same one, so that the Snapshot can be shared.

Kept: GPU models, MIG profiles, kinds, resource names, and label keys and values of the vendors' and Kubernetes' own
vocabulary. Replaced: names of Nodes, Pods, containers, namespaces, owners, queues, pools, images, addresses, GPU UUIDs,
and every other label key and value. The key is random and not kept, so that a guessed name cannot be checked.
"""

import hashlib
import re
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias, TypeVar

import yaml

from gpuwatch.facts.catalog.tables import packaged
from gpuwatch.facts.model.cluster import Requirement
from gpuwatch.facts.model.decision import Snapshot
from gpuwatch.facts.model.telemetry import DeviceId, Readings

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
        """The item by its rule. Without a rule, objects change by the rules of their class, and other items stay."""
        if callable(rule):
            return rule(self, item)
        if isinstance(item, tuple):
            return tuple(self.of(each, rule) for each in item)
        if rule is not None:
            return None if item is None else self(rule, item)
        rules = _RULES.get(type(item).__name__)
        if rules is None:
            return item
        return replace(
            item, **{each.name: self.of(getattr(item, each.name), rules.get(each.name)) for each in fields(item)}
        )


_Rule: TypeAlias = str | Callable[[_Alias, Any], Any]
"""The kind of a name or of a tuple of names, or a function of the whole value."""


def _each(rule: Callable[[_Alias, Any], Any]) -> Callable[[_Alias, Any], Any]:
    return lambda alias, items: tuple(rule(alias, item) for item in items)


def _requirement(alias: _Alias, item: Requirement) -> Requirement:
    if _PLAIN.match(item.key):
        return item
    return replace(item, key=alias("key", item.key), values=alias.of(item.values, "value"))


def _node_field(alias: _Alias, item: Requirement) -> Requirement:
    """A requirement on the only field of a Node that has one, its name."""
    return replace(item, values=alias.of(item.values, "node"))


def _expression(alias: _Alias, item: tuple[str, str, tuple[str, ...]]) -> tuple[str, str, tuple[str, ...]]:
    key, operator, values = item
    return alias.label(key), operator, values if _PLAIN.match(key) else alias.of(values, "value")


def _nodes_of(kind: str) -> Callable[[_Alias, Any], Any]:
    """For a mapping from names of this kind to Nodes."""
    return lambda alias, item: {alias(kind, name): alias("node", node) for name, node in item.items()}


def _by_device(alias: _Alias, item: Mapping[DeviceId, Any] | None) -> dict[DeviceId, Any] | None:
    return None if item is None else {alias.device(name): alias.of(value) for name, value in item.items()}


def _withheld(_: _Alias, text: str | None) -> str | None:
    """Text that may quote any name."""
    return "(withheld)" if text else text


_FUNCTIONS: Mapping[str, Callable[[_Alias, Any], Any]] = {
    "device()": _Alias.device,
    "ref()": _Alias.ref,
    "refs()": _each(_Alias.ref),
    "path()": _Alias.path,
    "label()": _Alias.label,
    "labels()": _Alias.labels,
    "taint()": _Alias.taint,
    "requirements()": _each(_requirement),
    "expressions()": _each(_expression),
    "node_fields()": _each(_node_field),
    "by_device()": _by_device,
    "by_node()": lambda alias, item: {alias("node", name): value for name, value in item.items()},
    "nodes_of_targets()": _nodes_of("target"),
    "nodes_of_addresses()": _nodes_of("address"),
    "withheld()": _withheld,
    "nothing()": lambda *_: "",
    "no_reason()": lambda *_: "The reason is left out.",
}
_RULES: Mapping[str, Mapping[str, _Rule]] = {
    kind: {name: _FUNCTIONS[rule] if rule.endswith("()") else rule for name, rule in rules.items()}
    for kind, rules in yaml.safe_load(packaged("pseudonyms.yaml", "gpuwatch.sources.collect"))["classes"].items()
}


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
