"""Decodes the raw JSON of objects, and takes what is used of budgets and Namespaces."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec

from gpuwatch.facts.frameworks import FRAMEWORKS, keys
from gpuwatch.facts.frameworks.objects import ABSENT, value_at
from gpuwatch.facts.model.cluster import DisruptionBudget, Namespace, Quota
from gpuwatch.facts.model.plain_text import plain
from gpuwatch.facts.model.telemetry import Gap, GapKind
from gpuwatch.sources.kube import wire

S = TypeVar("S")
T = TypeVar("T")
Take = Callable[[msgspec.Raw], T | None]
"""Decodes one object and drops what is not used; None for an unwanted one. Raises msgspec.DecodeError or ValueError."""

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError)
"""What msgspec raises for bytes that are not the expected JSON."""

_NAMED_AT_MOST = 3

# Prefixes of the annotations that gpuwatch reads. All others are dropped: they may be long and may hold secrets.
_ANNOTATIONS_KEPT = (
    keys.PREFIX,
    "cluster-autoscaler.kubernetes.io/safe-to-evict",
    "karpenter.sh/do-not-disrupt",
    "hami.io/node-",
    *(prefix for framework in FRAMEWORKS for prefix in framework.annotations),
)
decode_named = msgspec.json.Decoder(wire.WireNamed).decode
decode_bare = msgspec.json.Decoder(wire.Bare).decode


def own_annotations(annotations: Mapping[str, str] | None) -> dict[str, str]:
    return {key: annotations[key] for key in annotations if key.startswith(_ANNOTATIONS_KEPT)} if annotations else {}


@dataclass(slots=True)
class Listing(Generic[T]):
    """The answer to one list. failure: why it is incomplete; then `items` is empty, and absence of an object proves
    nothing. bad: Gaps of objects that could not be decoded; bad_places: their namespace/name, '' if unknown. version,
    resource_version: of a live list, the API version served and where a watch continues."""

    items: list[T] = field(default_factory=list)
    failure: Gap | None = None
    bad: tuple[Gap, ...] = ()
    bad_places: frozenset[str] = frozenset()
    version: str = ""
    resource_version: str = ""


@dataclass(slots=True)
class BadObjects:
    """Objects of one list that could not be decoded: namespace/name of all, and what is said of each."""

    told: list[str] = field(default_factory=list)
    places: set[str] = field(default_factory=set)

    def add(self, place: str, why: str) -> None:
        """place: namespace/name, '' if unknown. why: what follows it in the message."""
        self.places.add(place)
        self.told.append(f"{place or 'an object without a name'}{plain(why)}")

    def gaps(self, what: str) -> tuple[Gap, ...]:
        if not self.told:
            return ()
        first = "; ".join(self.told[:_NAMED_AT_MOST])
        detail = f"{len(self.told)} could not be read and are left out: {first}."
        return (Gap(kind=GapKind.BAD_INPUT, what=what, detail=detail),)


def take_all(objects: Iterable[tuple[msgspec.Raw, str]], take: Take[T], into: list[T], bad: BadObjects) -> None:
    """Decodes (object, its file or page) one by one, so that a bad object loses no other."""
    for raw, source in objects:
        try:
            taken = take(raw)
        except (msgspec.DecodeError, ValueError) as error:
            bad.add(place_of(raw), f" ({source}): {error}")
            continue
        if taken is not None:
            into.append(taken)


def place_of(raw: msgspec.Raw) -> str:
    """namespace/name, '' if unknown."""
    try:
        meta = decode_named(raw).metadata
    except UNDECODABLE:
        meta = None
    return f"{meta.namespace}/{meta.name}".lstrip("/") if meta is not None else ""


def part(raw: msgspec.Raw, path: str, kind: type[S]) -> S | None:
    """The field at a JSON pointer. Slower than a Struct for the whole object. Raises DecodeError."""
    found = value_at(msgspec.json.decode(raw), path)
    return None if found is ABSENT or found is None else msgspec.convert(found, kind)


def take_budget(raw: msgspec.Raw) -> DisruptionBudget:
    meta = decode_bare(raw).metadata
    selector = part(raw, "/spec/selector", wire.LabelSelector)
    match_labels = (selector.match_labels if selector else None) or {}
    requirements = (selector.match_expressions if selector else None) or ()
    return DisruptionBudget(
        namespace=meta.namespace,
        name=meta.name,
        match_labels=match_labels,
        match_expressions=tuple((item.key, item.operator, item.values) for item in requirements),
        # In policy/v1 an empty selector selects every Pod of the Namespace, a missing selector none.
        selects_all=selector is not None and not match_labels and not requirements,
        disruptions_allowed=part(raw, "/status/disruptionsAllowed", int) or 0,
    )


def take_quota(raw: msgspec.Raw) -> Quota:
    meta = decode_bare(raw).metadata
    limited = tuple(sorted(part(raw, "/spec/hard", wire.Quantities) or ()))
    return Quota(namespace=meta.namespace, name=meta.name, limited=limited)


def take_namespace(raw: msgspec.Raw) -> Namespace:
    meta = decode_bare(raw).metadata
    return Namespace(name=meta.name, labels=meta.labels or {}, annotations=own_annotations(meta.annotations))
