"""The scheduler's hard constraints of a Pod on a Node, without free resources (see landing)."""

from collections.abc import Iterable, Mapping, Sequence

from gpuwatch.facts.model.cluster import Node, NodeTerm, Pod, PodTerm, Requirement, Spread, Taint, Toleration

HOSTNAME = "kubernetes.io/hostname"


def unfit(pod: Pod, node: Node) -> str:
    """Why the Pod may not run on the Node; '' where it may."""
    place = pod.placement
    for taint in node.taints:
        if taint.effect in ("NoSchedule", "NoExecute") and not tolerates(place.tolerations, taint):
            return f"its taint {taint.key}={taint.value}:{taint.effect} is not tolerated"
    return unselected(pod, node)


def unselected(pod: Pod, node: Node) -> str:
    """Why the Pod's node selector or node affinity does not match the Node; '' where they do. Taints do not count."""
    place = pod.placement
    for key, value in place.node_selector.items():
        if label_of(node, key) != value:
            return f"it has no label {key}={value}"
    if place.node_terms and not any(_term_holds(term, node) for term in place.node_terms):
        return "the required node affinity does not hold"
    return ""


def tolerates(tolerations: Iterable[Toleration], taint: Taint) -> bool:
    return any(
        (not item.effect or item.effect == taint.effect)
        and (item.key == taint.key or (not item.key and item.operator == "Exists"))
        and (item.operator == "Exists" or item.value == taint.value)
        for item in tolerations
    )


def stays(tolerations: Sequence[Toleration], taint: Taint) -> bool:
    """Does a Pod run on under this NoExecute taint? Of several tolerations the shortest time may count."""
    return tolerates(tolerations, taint) and not tolerates((each for each in tolerations if each.ends), taint)


def means(term: PodTerm, pod: Pod) -> bool:
    """Does the term select this Pod?"""
    if term.selects_none or not (term.any_namespace or pod.namespace in term.namespaces):
        return False
    return labels_match(pod.labels, term.match_labels, term.match_expressions)


def counts(spread: Spread, own: Pod, pod: Pod) -> bool:
    """Is this Pod spread together with `own`?"""
    if spread.selects_none or pod.namespace != own.namespace:
        return False
    return labels_match(pod.labels, spread.match_labels, spread.match_expressions)


def labels_match(labels: Mapping[str, str], equal: Mapping[str, str], expressions: Iterable[Requirement]) -> bool:
    return all(labels.get(key) == value for key, value in equal.items()) and all(
        _holds(item, labels.get(item.key)) for item in expressions
    )


def label_of(node: Node, key: str) -> str | None:
    value = node.labels.get(key)
    # The kubelet sets the hostname label, but hand-made recordings may lack it.
    return node.name if value is None and key == HOSTNAME else value


def _term_holds(term: NodeTerm, node: Node) -> bool:
    if not term.labels and not term.fields:
        return False
    return all(_holds(item, label_of(node, item.key)) for item in term.labels) and all(
        item.key == "metadata.name" and _holds(item, node.name) for item in term.fields
    )


def _holds(item: Requirement, value: str | None) -> bool:
    if item.operator == "In":
        return value is not None and value in item.values
    if item.operator == "NotIn":
        return value is None or value not in item.values
    if item.operator == "Exists":
        return value is not None
    if item.operator == "DoesNotExist":
        return value is None
    if item.operator in ("Gt", "Lt") and value is not None and len(item.values) == 1:
        try:
            held, bound = int(value), int(item.values[0])
        except ValueError:
            return False
        return held > bound if item.operator == "Gt" else held < bound
    return False  # unknown operator
