"""The bounds of planning, each with its unit and the reason for its default."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import ClassVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from gpuwatch.facts.model.bounds import named, require
from gpuwatch.facts.model.decision import ActionKind, Mode

MILDEST_FIRST = (Mode.OBSERVE, Mode.SUGGEST, Mode.ENFORCE)
MIN_PRECISION_RATIO = 0.8
"""Where a detector's measured precision (its lower bound) is below it, an action that rests on this detector alone is
suggested and not enforced. The same as `min_confidence_ratio`."""

SMALL_POOL_NODES = 20
"""Of fewer Nodes a tenth is less than two. So in a smaller pool one Node at a time may be out of service, whatever
`budget_ratio` is: no share of a few Nodes is small."""

WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeScope:
    """A mode for an action kind, a Namespace, a node pool, or several of them together. A scope with a Namespace does
    not cover actions without one (tainting a Node)."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}

    mode: Mode
    action: ActionKind | None = None
    namespace: str = ""
    pool: str = ""

    def covers(self, action: ActionKind, namespace: str, pool: str) -> bool:
        return (
            self.action in (None, action) and self.namespace in ("", namespace) and self.pool in ("", pool or "default")
        )

    def __str__(self) -> str:
        named = {"action": self.action or "", "namespace": self.namespace, "pool": self.pool}
        return ", ".join(f"{name} {value}" for name, value in named.items() if value) or "everything"


@dataclass(frozen=True, slots=True, kw_only=True)
class Freeze:
    """A time in which nothing may be done, in local time of `time_zone` with daylight saving time.

    weekdays: mon to sun, () for all. start, end: hours as '18:00'; an end at or before the start is on the next day,
    and the weekday is that of the start. first_day, last_day: days such as 2026-12-20 on which it may start.
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}

    weekdays: tuple[str, ...] = ()
    start: str = "00:00"
    end: str = "00:00"
    time_zone: str = "UTC"
    first_day: str = ""
    last_day: str = ""
    reason: str = ""

    def __post_init__(self) -> None:
        for day in self.weekdays:
            if day not in WEEKDAYS:
                raise ValueError(f"plan.freezes: weekday {day!r} is not one of {', '.join(WEEKDAYS)}")
        for name in ("start", "end"):
            try:
                zoned = time.fromisoformat(getattr(self, name)).tzinfo is not None
            except ValueError:
                raise ValueError(f"plan.freezes: {name} {getattr(self, name)!r} is not a time such as 18:00") from None
            if zoned:
                what = f"plan.freezes: {name} {getattr(self, name)!r} has a time zone of its own"
                raise ValueError(f"{what}; write 18:00, and the zone as time_zone")
        for name in ("first_day", "last_day"):
            try:
                date.fromisoformat(getattr(self, name) or "2026-01-01")
            except ValueError:
                raise ValueError(
                    f"plan.freezes: {name} {getattr(self, name)!r} is not a day such as 2026-12-20"
                ) from None
        self._zone()

    def _zone(self) -> tzinfo:
        if self.time_zone == "UTC":
            return UTC  # known without a time zone database
        try:
            return ZoneInfo(self.time_zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(
                f"plan.freezes: time zone {self.time_zone!r} is not known here; write it as Europe/Berlin, and install "
                "tzdata where the system has no time zone database"
            ) from None

    def holds(self, at: datetime) -> bool:
        """Whether it is in force at this moment. The start is included, the end is not."""
        local = at.astimezone(self._zone()).replace(tzinfo=None)
        start, end = time.fromisoformat(self.start), time.fromisoformat(self.end)
        if start < end:
            return start <= local.time() < end and self._may_start(local.date())
        begun_today = local.time() >= start and self._may_start(local.date())
        return begun_today or (local.time() < end and self._may_start(local.date() - timedelta(days=1)))

    def _may_start(self, day: date) -> bool:
        if self.weekdays and WEEKDAYS[day.weekday()] not in self.weekdays:
            return False
        first, last = self.first_day or "0001-01-01", self.last_day or "9999-12-31"
        return date.fromisoformat(first) <= day <= date.fromisoformat(last)

    def __str__(self) -> str:
        days = " ".join(self.weekdays) or "every day"
        bounded = self.first_day or self.last_day
        span = f" from {self.first_day or 'ever'} to {self.last_day or 'ever'}" if bounded else ""
        return f"{days} {self.start} to {self.end} {self.time_zone}{span}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPolicy:
    """How much may be planned at once, and what is never planned.

    modes: what may be done with an admitted action, per kind. Everything starts at `observe`.
    scopes: the same for an action kind, a Namespace and a pool together; the scope that names most things
        wins, and of equals the mildest. The keys of `modes` are scopes that name an action kind.
    min_confidence_ratio: findings below it are shown, never planned. 0.8 leaves out single weak signals.
    budget_ratio: share of the Nodes of a pool, and of a GPU model, beyond which gpuwatch takes none out of service; and
        share of their GPUs that moves may disturb at once. At least one Node: a share alone blocks small pools for ever
        (karpenter #2134). In pools of fewer than 20 Nodes it is one Node. 1: no limit in larger ones.
    min_pool_nodes_left: schedulable Nodes of a pool that planning never goes below.
    actions_per_hour, namespace_actions_per_hour, pool_actions_per_hour: Remediations that may begin in any 60 minutes,
        in all, of one Namespace and of one pool, counted from the stored Remediations. Four: one per quarter of an hour
        is what a person can follow; three of a pool allow a taint, its move and one more; two are half of them.
    storm_ratio: when so large a share of a pool's Nodes, and at least two, became degraded within an hour, the
        monitoring is more likely at fault than the GPUs (karpenter #2811: 'inadvertently marked healthy nodes as
        unhealthy'): everything is refused. 1: only when all Nodes of a pool did.
    idle_storm_ratio: when a larger share of the allocated GPUs, on at least two Nodes, looks idle, nothing is released;
        a broken exporter looks like idleness. 1: never.
    storm_cooldown_seconds: how long a storm is remembered. Half an hour: twice the 15 minutes over which levels are
        judged, so that no sample of the storm decides anything.
    brake_alerts: names of alerts that stop everything while they fire.
    freezes: times in which nothing is done.
    checkpoint_interval_hours: time between checkpoints of jobs that report them; 0: unknown, and none is awaited.
    protected_priority: Pods at or above it are never disturbed (2,000,000,000: the system-critical classes).
    reclaim_only_on_demand: release idle GPUs only when a pending Pod could be scheduled with them.
    topology_labels: Node labels whose value names an NVLink domain or a rack: of GPU Feature Discovery, and of
        Topograph (accelerator and leaf switch).
        A moved gang is to span no more of them than before.
    scattered_loss_ratio: share of its speed that a gang loses over several domains of a topology label. It depends on
        the network and the model and was not measured. 0: no gang is moved for it.
    """

    modes: Mapping[ActionKind, Mode] = field(default_factory=dict)
    scopes: tuple[ModeScope, ...] = ()
    min_confidence_ratio: float = 0.8
    budget_ratio: float = 0.1
    min_pool_nodes_left: int = 1
    actions_per_hour: int = 4
    namespace_actions_per_hour: int = 2
    pool_actions_per_hour: int = 3
    storm_ratio: float = 0.2
    idle_storm_ratio: float = 0.8
    storm_cooldown_seconds: int = 1800
    brake_alerts: tuple[str, ...] = ()
    freezes: tuple[Freeze, ...] = ()
    checkpoint_interval_hours: float = 0.0
    protected_priority: int = 2_000_000_000
    reclaim_only_on_demand: bool = False
    topology_labels: tuple[str, ...] = (
        "nvidia.com/gpu.clique",
        "network.topology.nvidia.com/accelerator",
        "network.topology.nvidia.com/leaf",
    )
    scattered_loss_ratio: float = 0.0

    def __post_init__(self) -> None:
        require(self, "plan.", named(self, "_ratio"), lambda value: 0 <= value <= 1, "a ratio from 0 to 1")
        interval = ("checkpoint_interval_hours",)
        require(self, "plan.", interval, lambda value: 0 <= value < float("inf"), "0 or more hours")
        counts = ("min_pool_nodes_left", "storm_cooldown_seconds")
        require(self, "plan.", (*counts, *named(self, "_per_hour")), lambda value: value >= 0, "0 or more")

    @property
    def slot_labels(self) -> tuple[str, ...]:
        """Labels whose domains slots are counted in: those of the topology, and the zone."""
        return (*self.topology_labels, "topology.kubernetes.io/zone")

    @property
    def only_observes(self) -> bool:
        return all(mode is Mode.OBSERVE for mode in (*self.modes.values(), *(scope.mode for scope in self.scopes)))

    def mode(self, action: ActionKind, namespace: str = "", pool: str = "") -> Mode:
        return self.scope(action, namespace, pool).mode

    def scope(self, action: ActionKind, namespace: str = "", pool: str = "") -> ModeScope:
        """The scope that decides the mode."""
        named = (ModeScope(mode=mode, action=kind) for kind, mode in self.modes.items())
        covering = [scope for scope in (*self.scopes, *named) if scope.covers(action, namespace, pool)]

        def rank(scope: ModeScope) -> tuple[int, int]:
            named = (scope.action is not None) + bool(scope.namespace) + bool(scope.pool)
            return -named, MILDEST_FIRST.index(scope.mode)

        return min(covering, key=rank, default=ModeScope(mode=Mode.OBSERVE))
