"""Controllers between a Pod and its top owner, reduced to the fields in use. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from gpuwatch.facts.frameworks.objects import KindKey
from gpuwatch.facts.model.cluster import Assigned
from gpuwatch.facts.model.telemetry import Gap


class Wire(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Every field may be missing or null: the API omits empty fields, and hand-written files omit more."""


class OwnerRef(Wire, frozen=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        return self.api_version.rpartition("/")[2]


class Scaled(Wire, frozen=True):
    """A part of an object with a number of replicas of its own."""

    min_replicas: int | None = None
    replicas: int | None = None


class Condition(Wire, frozen=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class OwnerState(Wire, frozen=True):
    """`status` of kinds that say why their Pods are not placed. failed: Pods that a Job counts as failed."""

    conditions: list[Condition] | None = None
    failed: int | None = None

    def matching(self, **wanted: str) -> str:
        """Type, reason and message of the first condition that has the wanted status; '' for none."""
        found = (item for name in wanted for item in self.conditions or () if item.type == name)
        told = (item for item in found if item.status == wanted[item.type])
        return next((f"{item.type}={item.status}, {item.reason}: {item.message}" for item in told), "")


class OwnerSpec(Wire, frozen=True):
    """What kinds of several frameworks have. A framework's own fields are in its file, in a subclass (`Kind.spec`)."""

    replicas: int | None = None
    suspend: bool | None = None
    queue: str | None = None  # Volcano's
    min_member: int | None = None  # of schedulers' PodGroups


@dataclass(frozen=True, slots=True)
class Owner:
    """One controller in the chain, or a Pod that owns others. spec: of the type `Kind.spec` of its kind."""

    group: str
    kind: str
    namespace: str
    name: str
    uid: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    created: datetime | None = None
    controller: OwnerRef | None = None
    spec: Any = OwnerSpec()
    replicas: int | None = None
    suspended: bool | None = None
    unscheduled: str = ""  # why its Pods are not placed, as its status says
    loses: str | None = None  # see Workload
    alone: tuple[str, ...] = ()  # why it may not be released, by itself
    ended: bool = False
    retries: int | None = None  # see Workload
    assigned: Assigned | None = None  # see Gang
    misread: Gap | None = None  # why `assigned` is not understood

    @property
    def key(self) -> KindKey:
        return self.group, self.kind
