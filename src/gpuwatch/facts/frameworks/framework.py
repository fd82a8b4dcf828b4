"""The types that describe a workload framework. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeAlias

from gpuwatch.facts.frameworks.objects import ABSENT, KindKey, Object, Refused
from gpuwatch.facts.frameworks.owner import Owner, OwnerSpec, OwnerState
from gpuwatch.facts.model.cluster import Assigned, Pod
from gpuwatch.facts.model.remediation import ObjectRef

Labels = Mapping[str, str]
Right = tuple[str, str, str]
"""API group, resource and verb, as RBAC names them."""


class Nature(StrEnum):
    """ENDS: runs to completion. SERVES: until stopped; an idle restart loses nothing. SESSION: a person uses it."""

    ENDS = "ends"
    SERVES = "serves"
    SESSION = "session"


@dataclass(frozen=True, slots=True)
class Never:
    """The action is never done to objects of this kind, or gangs of this framework. reason: a sentence for people."""

    reason: str


def untried(kind: str) -> Never:
    return Never(f"gpuwatch was not tested with {kind}s, so it is not known whether they come back as they were.")


def place_lost(queue: str) -> str:
    """Why its gangs are not moved. queue: the name of what admits them."""
    return (
        f"{queue} admits it by a queue's quota. A move gives the quota up, and the next in the queue may take it. "
        "Move it by hand while nothing waits in its queue, or let it end where it is."
    )


Fields = tuple[tuple[str, Any], ...]
"""JSON pointers and their new values."""


def no_reason(_: object) -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """A release by creating an object (a Command), whose result shows in the owner's status.

    release, restore: (owner, Remediation's name) → the object to create. obeyed: its controller has begun to obey it.
    """

    release: Callable[[Object, str], Object]
    restore: Callable[[Object, str], Object]
    obeyed: Callable[[Object], bool]
    rights: tuple[Right, ...]


@dataclass(frozen=True, slots=True)
class Deletes:
    """What the controller of a kind deletes on a release, apart from Pods. A move ends some of the Pods that a release
    ends, so that this holds for a move too.

    what: for people. data: why this object would lose data that outlives a Pod; '' where it would not. None where no
    object of the kind can. A Pod's emptyDirs and ephemeral volumes end with it, and do not count.
    """

    what: str
    data: Callable[[Object], str] | None

    def refusal(self, object_: Object) -> str:
        """Why this object must be neither released nor moved; '' where it may."""
        try:
            return self.data(object_) if self.data is not None else ""
        except (AttributeError, KeyError, TypeError):  # a field has another type than its API documents
            return "Its fields could not be read, so it is not known whether a release would delete its data."


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseRule:
    """How objects of a kind are released. It is always the whole object, so all its Pods have to be idle.

    fields: the release sets them. any_value: the field releases with any value.
    holds: why the status shows that it is not released; '' where it does not.
    refuses: why it would not work. ended: whether it has run to its end.
    unset: the restored value of a field that was absent, where the controller does not resume without it.
    scaled: autoscalers may set the same field.
    resumes_early: whether it may be resumed beside Pods that still terminate.
    """

    fields: Callable[[Object, datetime], Fields]
    deletes: Deletes
    holds: Callable[[Object], str] = no_reason
    refuses: Callable[[Object], str] = no_reason
    ended: Callable[[Object], bool] = lambda _: False
    unset: object = ABSENT
    any_value: bool = False
    commands: Commands | None = None
    scaled: bool = False
    resumes_early: Callable[[Object], bool] = lambda _: False


class How(StrEnum):
    CYCLE = "cycle"  # release the whole object, verify that, restore it
    EVICT = "evict"  # these Pods through the Eviction API, one at a time, each once the last one is back
    ROLLOUT = "rollout"  # the new Pod starts before the old one ends


@dataclass(frozen=True, slots=True)
class MovePlan:
    """pods: to evict, in this order; empty where `how` is not EVICT."""

    how: How
    pods: tuple[ObjectRef, ...] = ()


CYCLE = MovePlan(How.CYCLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveRule:
    """How the Pods of an object move to other Nodes. Its kind has a ReleaseRule too, which says what is deleted.

    choose: (object, its live Pods, those to move) → plan. stays: why a Pod with these labels is never moved.
    one_by_one: Pods without a gang move singly, while all others are ready. whole: a move may stop the whole object, as
    a release does.
    """

    choose: Callable[[Object, Sequence[Object], Sequence[Object]], MovePlan | Refused] = lambda *_: CYCLE
    stays: Callable[[Labels], str] = no_reason
    one_by_one: bool = False
    whole: bool = True


WHOLE = MoveRule()

Tree: TypeAlias = dict[str, object]


@dataclass(frozen=True, slots=True)
class Template:
    """Where a kind has its Pod template. place: a patch with the Pod spec there; None where the Pods do not show which
    part of the object they belong to. frozen: the template is immutable."""

    place: Callable[[Sequence[Pod], Tree], Tree | None]
    frozen: bool = False
    note: str = ""


INNER = Never("gpuwatch acts on top owners, and this kind is none.")


@dataclass(frozen=True, slots=True)
class Kind:
    """One resource. versions: those whose fields are known, newest first; the served one is chosen at run time. A kind
    without versions is not listed, so that its Pods have an owner of an unknown kind.

    metadata_only: only the metadata is read. spec: the fields that are read of its spec. replicas, suspended: by the
    spec, the latter also by annotations; None where the kind has neither. unscheduled: why its Pods are not placed, by
    its status. retries: `Workload.retries`, by spec and status. assigned: `Gang.assigned`, by the status. independent:
    its Pods do not need each other, unless its framework makes them a gang. pod_suffix: pattern of what the controller
    appends to its own name in its Pods' names.
    """

    group: str
    kind: str
    versions: tuple[str, ...] = ()
    metadata_only: bool = False
    spec: type[OwnerSpec] = OwnerSpec
    replicas: Callable[[Any], int | None] | None = None
    suspended: Callable[[Any, Labels], bool] | None = None
    unscheduled: Callable[[OwnerState], str] | None = None
    retries: Callable[[Any, OwnerState], int] | None = None
    assigned: Callable[[Object], Assigned | None] | None = None
    nature: Nature | None = None
    independent: bool = False
    pod_suffix: str = ""
    release: ReleaseRule | Never = INNER
    move: MoveRule | Never = INNER
    template: Template | None = None

    def __post_init__(self) -> None:
        if isinstance(self.move, MoveRule) and not isinstance(self.release, ReleaseRule):
            raise TypeError(
                f"{self.kind} can be moved and has no ReleaseRule, so nothing says what its controller deletes"
            )

    @property
    def key(self) -> KindKey:
        return self.group, self.kind

    @property
    def plural(self) -> str:
        return f"{self.kind.lower()}{'es' if self.kind.endswith('s') else 's'}"

    @property
    def api_version(self) -> str:
        """Of the newest known version."""
        return self.api_versions[0]

    @property
    def api_versions(self) -> tuple[str, ...]:
        return tuple(f"{self.group}/{each}" if self.group else each for each in self.versions)

    @property
    def resource(self) -> str:
        """As RBAC and kubectl name it: 'pods', 'jobsets.jobset.x-k8s.io'."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, version: str) -> str:
        """URL path of the list in all namespaces."""
        prefix = f"/apis/{self.group}" if self.group else "/api"
        return f"{prefix}/{version}/{self.plural}"


def reported(
    group: str, kind: str, versions: tuple[str, ...], nature: Nature | None, never: Never | None = None, **more: Any
) -> Kind:
    """A kind that is never written. never: why, by default because it was not tried. more: other fields of Kind."""
    never = never or untried(kind)
    return Kind(group, kind, versions, nature=nature, release=never, move=never, **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class GangRule:
    """How the Pods of a controller form gangs.

    named_by: labels or annotations on the Pods with the controller's name.
    named_only_with: a label and its value; without it `named_by` means another framework.
    split_by: labels or annotations of which each value is a separate gang.
    whole_with: labels on the Pod or the owner; if given, a Pod with none of them and without `split_by` has no gang.
    minimum: needed Pods, by the owner's spec (None where it was not read) and the Pod's annotations; None: all are.
    """

    named_by: tuple[str, ...] = ()
    named_only_with: tuple[str, str] | None = None
    split_by: tuple[str, ...] = ()
    whole_with: tuple[str, ...] = ()
    minimum: Callable[[Any, Labels], int | None] = lambda *_: None


@dataclass(frozen=True, slots=True)
class PodGroups:
    """A scheduler's PodGroups, which Pods name themselves. minimum: Pods that the group needs."""

    kind: Kind
    named_by: tuple[str, ...]
    minimum: Callable[[Any], int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """name: as in `Gang.framework`. kinds: those that own Pods directly or not.

    by_convention: the field of an owner by which its Pods count as a gang; '' where they do not.
    acts_on: the kind that is written in place of the owner.
    release, move: why its gangs are never released or moved, with any owner.
    annotations: prefixes of those in use. queues: labels or annotations with a Pod's queue; queued: others of Pods that
    its queues admit; schedulers: their schedulerName.
    """

    name: str
    kinds: tuple[Kind, ...] = ()
    gang: GangRule | None = None
    by_convention: Callable[[Owner], str] | None = None
    groups: PodGroups | None = None
    acts_on: Kind | None = None
    release: Never | None = None
    move: Never | None = None
    annotations: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    queued: tuple[str, ...] = ()
    schedulers: tuple[str, ...] = ()

    @property
    def makes_gangs(self) -> bool:
        return self.gang is not None or self.by_convention is not None
