"""Parameters of a simulated fleet.

Seeds 0–99 are for development: thresholds, tests and demos may use them. Seeds from 1000 on are for evaluation: no
threshold is chosen with them, so that the printed precision and recall are unbiased.
"""

import zlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from lab.simulate.fault_kinds import FaultKind

Floats: TypeAlias = NDArray[np.floating[Any]]
Mask: TypeAlias = NDArray[np.bool_]
Vocabulary: TypeAlias = Literal["dcgm", "dcgm49", "mixed"]
LabelScheme: TypeAlias = Literal["exported", "native"]

HOUR = 3600.0
DAY = 24 * HOUR


@dataclass(frozen=True, kw_only=True)
class FleetPlan:
    """A fleet, wholly determined by its fields.

    end: aware; the window is [end − days, end].
    interval_seconds: distance of the samples, 15 to 300.
    vocabulary: metric names of dcgm-exporter ≤4.8 ('dcgm'), ≥4.9 ('dcgm49'), or node by node one of both.
    label_scheme: 'exported' is Prometheus' default (honorLabels: false, exported_pod), 'native' the other.
    gpus_per_node: of the large nodes; L4 and T4 nodes have at most 4.
    extended_share: share of nodes whose exporter has more than the default metrics (SM_ACTIVE, ECC, clock event
        reasons, NVLink errors, XID counts, …). Where a fault shows only there, it is planted only there.
    idle_allocations: idle allocations and their look-alikes to plant; None: 12 for each 64 GPUs.
    faults: faults to plant, in this order; None: every kind once for each 64 GPUs. One that finds no room
        (no fitting card or job) is left out, so `SimulatedFleet.truth` alone says what is there.
    oversized: workloads to put on far more GPU than they can use, as many as there is room for.
    partial_gangs: gangs that are placed in part, or only look like it, to plant in the place of other jobs.
    """

    seed: int
    end: datetime
    gpus: int = 64
    days: float = 7.0
    interval_seconds: int = 60
    vocabulary: Vocabulary = "dcgm"
    label_scheme: LabelScheme = "exported"
    gpus_per_node: int = 8
    extended_share: float = 0.6
    idle_allocations: int | None = None
    faults: tuple[FaultKind, ...] | None = None
    oversized: int = 0
    partial_gangs: int = 0

    def __post_init__(self) -> None:
        if self.end.tzinfo is None:
            raise ValueError("FleetPlan.end has no time zone; give an aware datetime in UTC")
        object.__setattr__(self, "end", self.end.astimezone(UTC))
        checks = {
            "seed": self.seed >= 0,
            "gpus": self.gpus >= 1,
            "days": self.seconds >= HOUR,
            "interval_seconds": 15 <= self.interval_seconds <= 300,
            "vocabulary": self.vocabulary in get_args(Vocabulary),
            "label_scheme": self.label_scheme in get_args(LabelScheme),
            "gpus_per_node": 1 <= self.gpus_per_node <= 16,
            "extended_share": 0.0 <= self.extended_share <= 1.0,
            "oversized": self.oversized >= 0,
            "partial_gangs": self.partial_gangs >= 0,
            "idle_allocations": self.idle_allocations is None or self.idle_allocations >= 0,
        }
        for field, valid in checks.items():
            if not valid:
                raise ValueError(
                    f"FleetPlan.{field} = {getattr(self, field)!r} is out of range: at least one GPU and one hour, "
                    "samples 15 to 300 seconds apart, shares from 0 to 1; see the class for the names"
                )

    @property
    def seconds(self) -> float:
        return self.days * DAY

    @property
    def start(self) -> datetime:
        return self.end - timedelta(seconds=self.seconds)

    @property
    def steps(self) -> int:
        """Samples of a complete series."""
        return int(self.seconds // self.interval_seconds)

    @property
    def sample_seconds(self) -> Floats:
        """Times of the samples, from the window's start."""
        seconds: Floats = np.arange(self.steps) * float(self.interval_seconds)
        return seconds

    def until(self, seconds: float) -> datetime | None:
        """As `moment`, or None after the window's end."""
        return self.moment(seconds) if seconds < self.seconds else None

    def moment(self, seconds: float) -> datetime:
        """The time `seconds` after the window's start, rounded down to a second."""
        return self.start + timedelta(seconds=int(seconds))

    def rng(self, *stream: str | int) -> np.random.Generator:
        """Random numbers of one purpose, independent of all others."""
        words = [part if isinstance(part, int) else zlib.crc32(part.encode()) for part in stream]
        return np.random.default_rng([self.seed, *words])
