"""The terms in which each file of this room tells what gpuwatch knows of a workload framework. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeAlias

from gpuwatch.frameworks.json_patch import ABSENT
from gpuwatch.frameworks.objects import KindKey, Object, Refused
from gpuwatch.frameworks.owner import Owner, OwnerSpec
from gpuwatch.model.cluster import Pod
from gpuwatch.model.remediation import ObjectRef

Labels = Mapping[str, str]
Right = tuple[str, str, str]
"""API group, resource and verb, as RBAC names them."""


class Nature(StrEnum):
    """What tells whether a workload works: only itself, its callers, or a person at a keyboard. What serves goes on
    until somebody stops it, so that a restart while it is idle loses nothing."""

    ENDS = "ends"
    SERVES = "serves"
    SESSION = "session"


@dataclass(frozen=True, slots=True)
class Never:
    """Why it is not done to any object of a kind, or to any gang of a framework: a sentence for people."""

    reason: str


def untried(kind: str) -> Never:
    return Never(f"gpuwatch was never tried with {kind}s: whether they come back as they were is not known.")


Fields = tuple[tuple[str, Any], ...]
"""JSON pointers and what they are set to."""


def no_reason(_: object) -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """A release that is asked for by creating an object, of which the owner's status tells the outcome.

    release, restore: the object to create, of the owner and the Remediation's name. obeyed: has the owner's controller
    begun to carry out the release?
    """

    release: Callable[[Object, str], Object]
    restore: Callable[[Object, str], Object]
    obeyed: Callable[[Object], bool]
    rights: tuple[Right, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseRule:
    """How the objects of a kind give their accelerators up. A release is always of the whole object, so all of its Pods
    have to be idle, not those of one gang of it.

    fields: what a release sets. any_value: whatever stands in such a field releases.
    holds: what the status says against it being released; '' where it says nothing against it.
    refuses: why it would not work. ended: has it run to its end?
    loses: what would not come back, through whatever it is released; '' where all does.
    unset: what a restoration writes where there was no field before: its controller takes back nothing without it.
    scaled: autoscalers may set the same field.
    """

    fields: Callable[[Object, datetime], Fields]
    holds: Callable[[Object], str] = no_reason
    refuses: Callable[[Object], str] = no_reason
    loses: Callable[[Object], str] = no_reason
    ended: Callable[[Object], bool] = lambda _: False
    unset: object = ABSENT
    any_value: bool = False
    commands: Commands | None = None
    scaled: bool = False


class How(StrEnum):
    CYCLE = "cycle"  # release it whole, see it released, restore it
    EVICT = "evict"  # these Pods through the Eviction API, one after the other, each once the last one is back
    ROLLOUT = "rollout"  # a new Pod first, the old one after it


@dataclass(frozen=True, slots=True)
class MovePlan:
    """pods: to evict, in this order; empty where `how` is not EVICT."""

    how: How
    pods: tuple[ObjectRef, ...] = ()


CYCLE = MovePlan(How.CYCLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveRule:
    """How the Pods of an object are moved to other Nodes. choose: of the object, its live Pods, and those to move.
    stays: why a Pod with these labels is never moved. one_by_one: where they are no gang, while all others are ready.
    """

    choose: Callable[[Object, Sequence[Object], Sequence[Object]], MovePlan | Refused] = lambda *_: CYCLE
    stays: Callable[[Labels], str] = no_reason
    one_by_one: bool = False


WHOLE = MoveRule()

Tree: TypeAlias = dict[str, object]


@dataclass(frozen=True, slots=True)
class Template:
    """Where a kind has its Pod template. place: puts a Pod spec there; None where the Pods do not tell which part of
    the object they are. frozen: it cannot be changed in place."""

    place: Callable[[Sequence[Pod], Tree], Tree | None]
    frozen: bool = False
    note: str = ""


_NOT_ON_TOP = Never("gpuwatch acts on top owners, and it is none.")


@dataclass(frozen=True, slots=True)
class Kind:
    """One resource. versions: those whose fields are known, newest first; the served one is chosen at run time. A
    kind without any is not listed, so that its Pods have an owner of an unknown kind.

    metadata_only: nothing but the metadata is in use, so that the server is asked for nothing else.
    replicas, suspended: how the kind tells them, the latter from its annotations too; absent where it does not.
    independent: its Pods do without each other, where its framework makes no gang of them.
    pod_suffix: how its controller names its Pods after its own name, where they are named that way (a pattern).
    """

    group: str
    kind: str
    versions: tuple[str, ...] = ()
    irregular_plural: str = ""
    metadata_only: bool = False
    replicas: Callable[[OwnerSpec], int | None] | None = None
    suspended: Callable[[OwnerSpec, Labels], bool] | None = None
    nature: Nature | None = None
    independent: bool = False
    pod_suffix: str = ""
    release: ReleaseRule | Never = _NOT_ON_TOP
    move: MoveRule | Never = _NOT_ON_TOP
    template: Template | None = None

    @property
    def key(self) -> KindKey:
        return self.group, self.kind

    @property
    def plural(self) -> str:
        return self.irregular_plural or f"{self.kind.lower()}s"

    @property
    def api_version(self) -> str:
        """The newest known."""
        return f"{self.group}/{self.versions[0]}" if self.group else self.versions[0]

    @property
    def resource(self) -> str:
        """As RBAC and kubectl name it: 'pods', 'jobsets.jobset.x-k8s.io'."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, version: str) -> str:
        """URL path of the list in all namespaces."""
        prefix = f"/apis/{self.group}" if self.group else "/api"
        return f"{prefix}/{version}/{self.plural}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GangRule:
    """How Pods are told to be one gang, which the controllers of the framework's kinds make.

    named_by: labels or annotations that name the controller on its Pods.
    named_only_with: a label and its value without which `named_by` means another framework.
    split_by: every value of it is a gang of its own.
    whole_with: labels on the Pod or the owner; where given, a Pod without any of them and without `split_by` stands
    alone.
    minimum: Pods that are needed, of the owner's spec and the Pod's annotations; None where all are.
    """

    named_by: tuple[str, ...] = ()
    named_only_with: tuple[str, str] | None = None
    split_by: tuple[str, ...] = ()
    whole_with: tuple[str, ...] = ()
    minimum: Callable[[OwnerSpec | None, Labels], int | None] = lambda *_: None


@dataclass(frozen=True, slots=True)
class PodGroups:
    """A scheduler's groups, which Pods name themselves. minimum: what the group needs."""

    kind: Kind
    named_by: tuple[str, ...]
    minimum: Callable[[OwnerSpec], int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """name: as `Gang.framework` says it. kinds: that own Pods, or own what owns them.

    by_convention: what makes a gang of an owner's Pods though nothing says so; '' where nothing does.
    acts_on: what is written to in place of the owner.
    release, move: why it is not done to gangs of it, whoever owns them. stays: see `MoveRule`, of a gang's Pods.
    annotations: prefixes of those that are in use. queues: labels or annotations that name the queue of a Pod.
    """

    name: str
    kinds: tuple[Kind, ...] = ()
    gang: GangRule | None = None
    by_convention: Callable[[Owner], str] | None = None
    groups: PodGroups | None = None
    acts_on: Kind | None = None
    release: Never | None = None
    move: Never | None = None
    stays: Callable[[Labels], str] = no_reason
    annotations: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()

    @property
    def makes_gangs(self) -> bool:
        return self.gang is not None or self.by_convention is not None
