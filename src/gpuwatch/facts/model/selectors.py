"""Which Pods a selector means. Pure, as kube-scheduler evaluates them."""

from collections.abc import Iterable, Mapping

from gpuwatch.facts.model.cluster import Pod, PodTerm, Requirement, Spread


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
        holds(item, labels.get(item.key)) for item in expressions
    )


def holds(item: Requirement, value: str | None) -> bool:
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
