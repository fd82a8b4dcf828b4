"""Which fields of a Pod's spec the simulated landing does not model, so that it cannot say where the Pod can run.

The table is pod_fields.yaml. A field that it does not have, as of a newer Kubernetes, counts as not modelled.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import yaml

from gpuwatch.facts.catalog.tables import checked, packaged
from gpuwatch.facts.frameworks.owner import Wire
from gpuwatch.sources.kube.accelerators import is_accelerator
from gpuwatch.sources.kube.quantity import quantity


class _Irrelevant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    why: str
    fields: tuple[str, ...]


class _Refused(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """unless: values that do not restrict where the Pod can run."""

    why: str
    fields: tuple[str, ...]
    unless: tuple[Any, ...] = ()


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    modelled: tuple[str, ...]
    quantities: tuple[str, ...]
    irrelevant: tuple[_Irrelevant, ...]
    refused: tuple[_Refused, ...]


class _Spec(Wire, frozen=True):
    spec: dict[str, Any] = msgspec.field(default_factory=dict)


TABLE = checked(yaml.safe_load(packaged("pod_fields.yaml", "gpuwatch.sources.kube")), _Table, "pod_fields.yaml")
_FINE, _QUANTITIES = "fine", "quantities"
_Rule = str | _Refused | dict[str, Any]
_decoder = msgspec.json.Decoder(_Spec)


def _rules() -> dict[str, Any]:
    """Field → its rule, or the rules of the fields below it."""
    found: dict[str, Any] = {}
    rows: list[tuple[str, _Rule]] = [(path, _FINE) for path in TABLE.modelled]
    rows += [(path, _QUANTITIES) for path in TABLE.quantities]
    rows += [(path, _FINE) for each in TABLE.irrelevant for path in each.fields]
    rows += [(path, each) for each in TABLE.refused for path in each.fields]
    for path, rule in rows:
        *above, last = path.replace("[]", "").split(".")
        below = found
        for name in above:
            below = below.setdefault(name, {})
        below[last] = rule
    found["initContainers"] = {**found["containers"], **found["initContainers"]}
    return found


_RULES = _rules()


def unmodelled_fields(raw: msgspec.Raw) -> tuple[str, ...]:
    """Each field of the Pod's spec that the landing does not model, with the reason. Raises DecodeError, or ValueError
    for a bad quantity."""
    return tuple(dict.fromkeys(_below(_decoder.decode(raw).spec, _RULES, "spec")))


def _below(found: Any, rules: Mapping[str, Any], path: str) -> Iterator[str]:
    if isinstance(found, list):
        for item in found:
            name = item.get("name") or item.get("key") or item.get("topologyKey") if isinstance(item, dict) else None
            yield from _below(item, rules, f"{path}[{name or ''}]")
        return
    if not isinstance(found, dict):
        yield f"{path}: gpuwatch does not know this form of the field"
        return
    for key, value in found.items():
        rule = rules.get(key)
        if rule is _FINE or value is None:
            continue
        if rule is None:
            yield f"{path}.{key}: gpuwatch does not know this field"
        elif rule is _QUANTITIES:
            for name, amount in value.items():
                if name not in ("cpu", "memory") and not is_accelerator(name) and quantity(amount):
                    yield f"{path}.{key}[{name}]: gpuwatch does not know how much of it is free on other Nodes"
        elif isinstance(rule, _Refused):
            if value not in ("", [], *rule.unless):
                yield f"{_named(path, key, value)}: {rule.why}"
        else:
            yield from _below(value, rule, f"{path}.{key}")


def _named(path: str, key: str, value: Any) -> str:
    if isinstance(value, list):
        names = ",".join(str(item.get("name", "")) for item in value if isinstance(item, dict))
        return f"{path}.{key}[{names}]"
    return f"{path}.{key}={value}" if isinstance(value, str | int) and value is not True else f"{path}.{key}"
