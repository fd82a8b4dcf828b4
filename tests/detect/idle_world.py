"""Builds Snapshots for the idle rules: Pods with the activity of their devices, quiet in every other signal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from frameworks.names import api_version
from gpuwatch.facts.model.cluster import Cluster, Gang, Node, Pod, Workload
from gpuwatch.facts.model.decision import Finding, Snapshot
from gpuwatch.facts.model.needs import statistics
from gpuwatch.facts.model.telemetry import (
    ActivityHistory,
    Device,
    Readings,
    Schema,
    Signal,
    Statistic,
    Vendor,
    WindowStat,
)
from gpuwatch.judge.idle.assess import IdlePolicy, assess_idle, needs_of_rules

STEP = 300
AN_HOUR = 12  # steps
A_DAY = 288
# A Thursday, 12:00 UTC.
AT = datetime(2026, 9, 17, 12, tzinfo=UTC)
POLICY = IdlePolicy()

IDLE_WATTS, FLOOR_WATTS = 85.0, 62.0


def steps(*parts: tuple[str, float]) -> str:
    """steps(('#', 3), ('.', 0.5)): three hours of work and half an hour of silence."""
    return "".join(letter * round(hours * AN_HOUR) for letter, hours in parts)


@dataclass(frozen=True, kw_only=True)
class InEffect:
    """A Pod and, per device, its activity from the Pod's start to AT. age_hours: None is the length of the activity."""

    name: str
    activity: Sequence[str]
    kind: str = "Deployment"
    namespace: str = "chat"
    workload: str = ""
    gang: str = ""
    image: str = "registry.example/vllm/vllm-openai:v0.9"
    age_hours: float | None = None
    memory_bytes: float = 20 * 2**30
    pod: Mapping[str, object] = field(default_factory=dict)
    device: Mapping[str, object] = field(default_factory=dict)

    @property
    def ref(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def owner(self) -> str:
        return f"{self.kind}/{self.namespace}/{self.workload or self.name}"

    def devices(self) -> tuple[Device, ...]:
        return tuple(
            Device(
                **{
                    "id": f"GPU-{self.name}-{number}",
                    "uuid": f"GPU-{self.name}-{number}",
                    "vendor": Vendor.NVIDIA,
                    "vocabulary": "dcgm",
                    "node": f"node-{self.name}",
                    "pods": (self.ref,),
                    **self.device,
                }
            )
            for number in range(len(self.activity))
        )

    def histories(self, length: int) -> tuple[ActivityHistory, ...]:
        """Laid into a window of `length` steps that ends at AT; unknown before."""
        return tuple(
            ActivityHistory(
                device=device.id,
                pod=self.ref,
                start=AT - timedelta(seconds=STEP * length),
                step_seconds=STEP,
                steps=text[-length:].rjust(length, "?"),
            )
            for device, text in zip(self.devices(), self.activity, strict=True)
        )

    def as_pod(self) -> Pod:
        longest = max((len(text) for text in self.activity), default=0)
        age = timedelta(hours=self.age_hours) if self.age_hours is not None else timedelta(seconds=STEP * longest)
        return Pod(
            **{
                "namespace": self.namespace,
                "name": self.name,
                "uid": self.name,
                "node": f"node-{self.name}",
                "phase": "Running",
                "started": AT - age,
                "images": (self.image,),
                "accelerators": {"nvidia.com/gpu": len(self.activity)},
                "workload": self.owner,
                "gang": self.gang,
                **self.pod,
            }
        )

    def as_workload(self) -> Workload:
        name = self.workload or self.name
        return Workload(
            id=self.owner, kind=self.kind, api_version=api_version(self.kind), namespace=self.namespace, name=name
        )


def world(
    *holdings: InEffect,
    days: float = 14,
    min_available: int | None = None,
    readings: Mapping[WindowStat, float | Mapping[str, float] | None] | None = None,
    cluster_known: bool = True,
    policy: IdlePolicy = POLICY,
    extra: Sequence[ActivityHistory] = (),
) -> Snapshot:
    """A Snapshot of `days` of history. readings: overrides, one value for all devices, by device, or None for none."""
    length = round(days * A_DAY)
    devices = tuple(device for holding in holdings for device in holding.devices())
    memory = {device.id: holding.memory_bytes for holding in holdings for device in holding.devices()}
    values: dict[str, dict[str, float]] = {}
    for stat in statistics(needs_of_rules(policy)):
        quiet = _quiet(stat)
        if quiet is not None:
            values[stat.key] = {device.id: quiet for device in devices}
    values[WindowStat(Signal.MEMORY_USED_BYTES, Statistic.LAST).key] = memory
    for stat, value in (readings or {}).items():
        if value is None:
            values.pop(stat.key, None)
        elif isinstance(value, Mapping):
            values[stat.key] = dict(value)
        else:
            values[stat.key] = {device.id: value for device in devices}
    pods = tuple(holding.as_pod() for holding in holdings)
    gangs: dict[str, list[InEffect]] = {}
    for holding in holdings:
        if holding.gang:
            gangs.setdefault(holding.gang, []).append(holding)
    cluster = Cluster(
        nodes=tuple({pod.node: Node(name=pod.node) for pod in pods}.values()),
        pods=pods,
        workloads=tuple({holding.owner: holding.as_workload() for holding in holdings}.values()),
        gangs=tuple(
            Gang(
                id=name,
                framework="JobSet",
                workload=members[0].owner,
                namespace=members[0].namespace,
                pods=tuple(member.ref for member in members),
                min_available=min_available,
            )
            for name, members in gangs.items()
        ),
        known=True,
    )
    return Snapshot(
        at=AT,
        telemetry_schema=Schema(interval_seconds=30),
        devices=devices,
        readings=Readings(
            values=values, promql={stat.key: "max(DCGM{$device})" for stat in statistics(needs_of_rules(policy))}
        ),
        activity=(*(row for holding in holdings for row in holding.histories(length)), *extra),
        cluster=cluster if cluster_known else Cluster(),
    )


def _quiet(stat: WindowStat) -> float | None:
    """What a card with an idle context answers. Engine activity has none: the history speaks for it."""
    if stat.signal is Signal.POWER_WATTS:
        return FLOOR_WATTS if stat.statistic is Statistic.MIN else IDLE_WATTS
    if stat.signal in (Signal.BUSY_RATIO, Signal.MEMORY_USED_BYTES):
        return None
    return 0.0


def bystander(days: float = 14) -> InEffect:
    """A Pod that works all the time, so that the telemetry as a whole is never missing."""
    return InEffect(name="bystander", kind="Job", namespace="other", activity=("#" * round(days * A_DAY),))


def only(snapshot: Snapshot, name: str, policy: IdlePolicy = POLICY) -> Finding:
    """The finding on the Pod or gang of that name."""
    found = [item for item in assess_idle(snapshot, policy) if item.subject.name == name]
    assert len(found) == 1, found
    return found[0]


def judged(holding: InEffect, *others: InEffect, **how: object) -> Finding:
    """The finding on this Pod, in a world of its own with a bystander."""
    return only(world(holding, *others, bystander(), **how), holding.ref)  # type: ignore[arg-type]


def with_pod(snapshot: Snapshot, ref: str, **changes: object) -> Snapshot:
    pods = tuple(replace(pod, **changes) if pod.ref == ref else pod for pod in snapshot.cluster.pods)  # type: ignore[arg-type]
    return replace(snapshot, cluster=replace(snapshot.cluster, pods=pods))
