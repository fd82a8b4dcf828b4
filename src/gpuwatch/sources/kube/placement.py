"""Where a Pod may be scheduled: the constraints that the scheduler must satisfy."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from gpuwatch.facts.model.cluster import NodeTerm, Placement, PodTerm, Requirement, Spread, Toleration
from gpuwatch.sources.kube import wire

_ANYWHERE = Placement()


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
        gated=bool(spec.scheduling_gates),
        unmodelled=unmodelled,
    )
    return _ANYWHERE if found == _ANYWHERE else found


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
