"""Where a Pod may be scheduled: the constraints that the scheduler must satisfy, and the fields of its spec that the
simulated landing does not model, so that it cannot say where the Pod can run.

The table of fields is pod_fields.yaml. A field that it does not have, as of a newer Kubernetes, counts as not modelled.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import yaml

from gpuwatch.facts.catalog.tables import checked, packaged
from gpuwatch.facts.frameworks.owner import Wire
from gpuwatch.facts.model.cluster import HostPort, NodeTerm, Placement, PodTerm, Requirement, Spread, Toleration
from gpuwatch.sources.kube import wire
from gpuwatch.sources.kube.resources import is_accelerator, quantity

_ANYWHERE = Placement()
_EVERY_ADDRESS = "0.0.0.0"  # noqa: S104 -- what a Pod may write in place of nothing
_ports = msgspec.json.Decoder(list[wire.Port] | None)


def placement(
    spec: wire.PodSpec, namespace: str, labels: Mapping[str, str], unmodelled: tuple[str, ...] = ()
) -> Placement:
    """Constraints of one Pod, without preferences."""
    affinity = spec.affinity or wire.Affinity()
    node, near, apart = affinity.node_affinity, affinity.pod_affinity, affinity.pod_anti_affinity
    found = Placement(
        tolerations=tolerations(spec),
        node_selector=spec.node_selector or {},
        node_terms=tuple(
            NodeTerm(term.match_expressions or (), term.match_fields or ())
            for term in (node.required.node_selector_terms or () if node and node.required else ())
        ),
        pod_affinity=_pod_terms(near, namespace),
        pod_anti_affinity=_pod_terms(apart, namespace),
        spread=tuple(
            _spread(item, labels)
            for item in spec.topology_spread_constraints or ()
            if item.when_unsatisfiable != "ScheduleAnyway"
        ),
        host_ports=host_ports(spec),
        gated=bool(spec.scheduling_gates),
        unmodelled=unmodelled,
    )
    return _ANYWHERE if found == _ANYWHERE else found


def host_ports(spec: wire.PodSpec) -> tuple[HostPort, ...]:
    """Of its containers and sidecars. With hostNetwork the API server writes each container's port as one."""
    sidecars = (item for item in spec.init_containers or () if item.restart_policy == "Always")
    naming = (item.ports for item in (*sidecars, *(spec.containers or ())) if b"hostPort" in bytes(item.ports))
    return tuple(
        HostPort(port.host_port, port.protocol or "TCP", (port.host_ip or "").replace(_EVERY_ADDRESS, ""))
        for ports in naming
        for port in _ports.decode(ports) or ()
        if port.host_port
    )


def anti_affinity(spec: wire.PodSpec, namespace: str) -> tuple[PodTerm, ...]:
    """The Pods that this one must not be beside."""
    return _pod_terms(spec.affinity.pod_anti_affinity if spec.affinity else None, namespace)


def tolerations(spec: wire.PodSpec) -> tuple[Toleration, ...]:
    return _tolerations(tuple(spec.tolerations)) if spec.tolerations else ()


@lru_cache(maxsize=1024)
def _tolerations(items: tuple[wire.WireToleration, ...]) -> tuple[Toleration, ...]:
    # Cached: most Pods have the same few.
    return tuple(
        Toleration(t.key or "", t.operator or "Equal", t.value or "", t.effect or "", t.toleration_seconds is not None)
        for t in items
    )


def _pod_terms(affinity: wire.PodAffinity | None, namespace: str) -> tuple[PodTerm, ...]:
    terms: Sequence[wire.PodAffinityTerm] = (affinity.required or ()) if affinity else ()
    return tuple(
        PodTerm(
            topology_key=term.topology_key,
            match_labels=(term.label_selector.match_labels if term.label_selector else None) or {},
            match_expressions=(term.label_selector.match_expressions if term.label_selector else None) or (),
            selects_none=term.label_selector is None,
            namespaces=tuple(term.namespaces or ()) or (() if term.namespace_selector is not None else (namespace,)),
            any_namespace=term.namespace_selector is not None,
        )
        for term in terms
    )


def _spread(item: wire.SpreadConstraint, labels: Mapping[str, str]) -> Spread:
    selector = item.label_selector
    # matchLabelKeys means the Pod's own values of these labels; labels that it lacks are ignored.
    own = tuple(Requirement(key, "In", (labels[key],)) for key in item.match_label_keys or () if key in labels)
    return Spread(
        topology_key=item.topology_key,
        max_skew=item.max_skew,
        min_domains=item.min_domains or 1,
        match_labels=(selector.match_labels if selector else None) or {},
        match_expressions=(*((selector.match_expressions if selector else None) or ()), *own),
        selects_none=selector is None,
    )


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
