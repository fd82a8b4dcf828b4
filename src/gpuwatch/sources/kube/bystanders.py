"""Pods without accelerators that decide where Pods with some may be: by affinity, anti-affinity or topology spread, by
a host port, or by a volume claim that one Pod alone may use.

A large cluster has a hundred thousand Pods, and few of them are meant; so selectors are looked up by one of their
labels.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from gpuwatch.facts.model.cluster import Pod, PodTerm, Spread
from gpuwatch.facts.model.selectors import counts, means
from gpuwatch.sources.kube.pods import HeldPod, OtherPod, companion

_Place = tuple[str, tuple[str, str] | None]
"""Namespace, '' for any, and a label that a selector asks for, None where it asks for no value of one."""


def bystanders_of(held: Sequence[HeldPod], others: Sequence[OtherPod]) -> tuple[Pod, ...]:
    """Placed Pods without accelerators that have a say in where one with some may be, or the other way round."""
    pods = [item.pod for item in held]
    by_label: defaultdict[_Place, list[Pod]] = defaultdict(list)
    for pod in pods:
        for label in (*pod.labels.items(), None):
            by_label[pod.namespace, label].append(pod)
            by_label["", label].append(pod)
    terms = _terms(pods)
    ports = {(port.port, port.protocol) for pod in pods for port in pod.placement.host_ports}
    alone = {volume.claim for pod in pods for volume in pod.placement.volumes if volume.alone}
    found = []
    for item in others:
        if item.node and (
            any((port.port, port.protocol) in ports for port in item.host_ports)
            or any(f"{item.namespace}/{claim}" in alone for claim in item.claims)
        ):
            found.append(companion(item).pod)
            continue
        if not item.node or not (terms or item.pod_anti_affinity):
            continue
        labels = [*zip(item.label_keys, item.label_values, strict=True), None]
        near = [each for space in (item.namespace, "") for label in labels for each in terms.get((space, label), ())]
        if not (near or item.pod_anti_affinity):
            continue
        pod = companion(item).pod
        meant = (
            each
            for term in item.pod_anti_affinity
            for place in _places(term)
            for each in by_label.get(place, ())
            if means(term, each)
        )
        if any(_selects(term, pod) for term in near) or any(True for _ in meant):
            found.append(pod)
    return tuple(found)


def _terms(pods: Sequence[Pod]) -> dict[_Place, list[PodTerm | Spread]]:
    """What their affinities and spreads select, each once."""
    found: dict[_Place, dict[object, PodTerm | Spread]] = {}
    for pod in pods:
        place = pod.placement
        for term in (*place.pod_affinity, *place.pod_anti_affinity):
            for at in _places(term):
                found.setdefault(at, {})[_key(term)] = term
        for spread in place.spread:
            found.setdefault((pod.namespace, _label(spread)), {})[_key(spread)] = spread
    return {at: [*each.values()] for at, each in found.items()}


def _places(term: PodTerm) -> Iterable[_Place]:
    return ((space, _label(term)) for space in (("",) if term.any_namespace else term.namespaces))


def _label(term: PodTerm | Spread) -> tuple[str, str] | None:
    return next(iter(term.match_labels.items()), None)


def _key(term: PodTerm | Spread) -> object:
    return type(term), tuple(sorted(term.match_labels.items())), term.match_expressions, term.selects_none


def _selects(term: PodTerm | Spread, pod: Pod) -> bool:
    return means(term, pod) if isinstance(term, PodTerm) else counts(term, pod, pod)
