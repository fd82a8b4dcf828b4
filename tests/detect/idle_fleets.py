"""Synthetic fleets with known futures, on which the idle rules are measured.

Every member works as its kind does, step by step, for longer than it is watched, so that whoever is named can be
held against what came after. Some stop for good while they are watched, and some never begin.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from detect.idle_world import FLOOR_WATTS, IDLE_WATTS, STEP
from frameworks.names import api_version
from gpuwatch.facts.model.cluster import Cluster, Pod, Workload
from gpuwatch.facts.model.decision import FindingKind, Snapshot, SubjectKind, Verdict
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
from gpuwatch.judge.idle.assess import IdlePolicy, assess_idle

Steps = NDArray[np.bool_]
A_DAY = 288
PER_HOUR = 12
BEGIN = datetime(2026, 6, 1, tzinfo=UTC)  # a Monday


def requests(rng: Generator, days: int, per_day: float, swing: float, weekend: float, spread: float) -> Steps:
    """A service: requests at random, `swing` (0 to 1) between the quietest and the busiest hour, days that differ."""
    at = np.arange(days * A_DAY)
    peak = rng.uniform(0, 24)
    hourly = np.maximum(1 + swing * np.cos((at % A_DAY / PER_HOUR - peak) / 24 * 2 * np.pi), 0)
    daily = np.repeat(np.exp(rng.normal(0, spread, days)), A_DAY)
    rate = per_day / A_DAY * hourly * daily * np.where(at // A_DAY % 7 >= 5, weekend, 1.0)
    return lasting(rng.random(len(at)) < 1 - np.exp(-rate), rng, mean_steps=float(rng.choice([1, 2, 3])))


def lasting(begun: Steps, rng: Generator, mean_steps: float) -> Steps:
    active = begun.copy()
    for index in np.flatnonzero(begun) if mean_steps > 1 else ():
        active[index : index + int(rng.geometric(1 / mean_steps))] = True
    return active


def office(rng: Generator, days: int, day_off: float, weekend: float, density: float) -> Steps:
    """Works from morning to evening, and not at night."""
    active = np.zeros(days * A_DAY, dtype=bool)
    opens, closes, jitter = rng.uniform(6, 11), rng.uniform(16, 21), rng.uniform(0.2, 1.0)
    for day in range(days):
        if rng.random() < (1 - weekend if day % 7 >= 5 else day_off):
            continue
        first = day * A_DAY + int(max(0.0, opens + rng.normal(0, jitter)) * PER_HOUR)
        last = day * A_DAY + int(min(24.0, closes + rng.normal(0, jitter)) * PER_HOUR)
        active[first:last] = rng.random(max(0, last - first)) < density
        active[first] = True
    return active


def on_and_off(rng: Generator, days: int, on_hours: float, off_hours: float, tail: float) -> Steps:
    """Sessions of work and pauses between them; `tail` is the pauses' lognormal sigma, 0 for exponential ones."""
    active = np.zeros(days * A_DAY, dtype=bool)
    at = 0
    while at < len(active):
        length = 1 + int(rng.exponential(on_hours) * PER_HOUR)
        active[at : at + length] = True
        pause = rng.lognormal(np.log(off_hours) - tail**2 / 2, tail) if tail else rng.exponential(off_hours)
        at += length + 1 + int(pause * PER_HOUR)
    return active


def every(rng: Generator, days: int, hours: float, jitter: float, lasts: float) -> Steps:
    active = np.zeros(days * A_DAY, dtype=bool)
    for due in np.arange(rng.uniform(0, hours), days * 24, hours):
        first = int((due + abs(rng.normal(0, jitter))) * PER_HOUR)
        active[first : first + 1 + int(rng.exponential(lasts) * PER_HOUR)] = True
    return active


def training(rng: Generator, days: int) -> Steps:
    """Works all the time, but for checkpoints, evaluations and restores of up to an hour."""
    active = np.ones(days * A_DAY, dtype=bool)
    between, at = rng.uniform(2, 12), 0
    while at < len(active):
        at += 1 + int(rng.exponential(between) * PER_HOUR)
        pause = int(rng.choice([1, 2, 3, 6, 12], p=[0.4, 0.3, 0.2, 0.08, 0.02]))
        active[at : at + pause] = False
        at += pause
    return active


def notebook(rng: Generator, days: int) -> Steps:
    there = office(rng, days, day_off=float(rng.choice([0, 0.1, 0.2])), weekend=float(rng.choice([0, 0.2])), density=1)
    return there & on_and_off(rng, days, rng.uniform(0.2, 1), rng.uniform(0.3, 1.5), tail=1.0)


KINDS: dict[str, tuple[str, Callable[[Generator, int], Steps]]] = {
    "busy service": (
        "Deployment",
        lambda rng, days: requests(
            rng, days, rng.uniform(200, 2000), rng.uniform(0.3, 0.98), rng.uniform(0.3, 1), spread=0.2
        ),
    ),
    "quiet service": (
        "Deployment",
        lambda rng, days: requests(
            rng, days, rng.uniform(8, 80), rng.uniform(0.3, 0.95), rng.uniform(0.2, 1), spread=0.3
        ),
    ),
    "rare service": (
        "Deployment",
        lambda rng, days: requests(rng, days, rng.uniform(1.5, 6), rng.uniform(0, 0.5), 1.0, spread=0.3),
    ),
    "office service": (
        "InferenceService",
        lambda rng, days: office(
            rng, days, float(rng.choice([0, 0, 0.05])), float(rng.choice([0, 0, 0.2])), rng.uniform(0.1, 0.8)
        ),
    ),
    "queue worker": ("Deployment", lambda rng, days: on_and_off(rng, days, rng.uniform(1, 6), rng.uniform(0.5, 4), 0)),
    "sessions": (
        "StatefulSet",
        lambda rng, days: on_and_off(rng, days, rng.uniform(0.3, 2), rng.uniform(1, 5), tail=rng.uniform(0.8, 1.4)),
    ),
    "periodic": (
        "Deployment",
        lambda rng, days: every(
            rng, days, float(rng.choice([1, 2, 4, 6, 8, 12, 24])), float(rng.choice([0, 0.1, 0.5])), rng.uniform(0.1, 1)
        ),
    ),
    "notebook": ("Notebook", notebook),
    "training": ("Job", training),
}


@dataclass(frozen=True, kw_only=True)
class Member:
    """active: what it would do. born, stops: steps; it never works from `stops` on (born: it never works at all)."""

    name: str
    what: str
    kind: str
    active: Steps
    born: int
    stops: int | None

    @property
    def seen(self) -> Steps:
        seen = self.active.copy()
        if self.stops is not None:
            seen[self.stops :] = False
        return seen


@dataclass(kw_only=True)
class Outcome:
    """Who was named while it would work again, and how long it took to name those that would not."""

    watched: dict[str, int] = field(default_factory=dict)
    false: list[tuple[str, str, float]] = field(default_factory=list)  # what, name, hours of silence
    delays: dict[str, list[float]] = field(default_factory=dict)  # what → hours; inf where never named
    kinds: dict[str, list[FindingKind]] = field(default_factory=dict)

    def add(self, other: "Outcome") -> None:
        self.false += other.false
        for what, number in other.watched.items():
            self.watched[what] = self.watched.get(what, 0) + number
        for what, hours in other.delays.items():
            self.delays.setdefault(what, []).extend(hours)
        for what, kinds in other.kinds.items():
            self.kinds.setdefault(what, []).extend(kinds)

    @property
    def named_rightly(self) -> int:
        return sum(np.isfinite(hours) for delays in self.delays.values() for hours in delays)

    @property
    def recall(self) -> float:
        return self.named_rightly / max(1, sum(len(delays) for delays in self.delays.values()))

    @property
    def precision(self) -> float:
        return self.named_rightly / max(1, self.named_rightly + len(self.false))


def fleet(seed: int, history_days: int, watch_days: int, kinds: Sequence[str], young: float = 0.25) -> list[Member]:
    """Members of each kind in turn. A share of them is born while telemetry runs; a third stops while watched, and
    one more per six never works."""
    rng = np.random.default_rng(seed)
    total = (history_days + 2 * watch_days + 7) * A_DAY
    watched = (history_days * A_DAY, (history_days + watch_days) * A_DAY)
    members = []
    for number, what in enumerate(kinds):
        kind, make = KINDS[what]
        born = int(rng.integers(0, watched[1] - A_DAY)) if rng.random() < young else 0
        active = make(rng, total // A_DAY)
        active[:born] = False
        active[born + 1 : born + 4] = True  # start-up: the model is loaded
        stops = int(rng.integers(max(born + PER_HOUR, watched[0]), watched[1])) if rng.random() < 1 / 3 else None
        members.append(
            Member(name=f"{kind.lower()}-{number}", what=what, kind=kind, active=active, born=born, stops=stops)
        )
    for number in range(len(kinds) // 6):
        born = int(rng.integers(watched[0], watched[1] - PER_HOUR * 5))
        idle = np.zeros(total, dtype=bool)
        members.append(
            Member(name=f"never-{number}", what="never", kind="Deployment", active=idle, born=born, stops=born)
        )
    return members


def snapshot_of(members: Sequence[Member], at: int, window: int) -> Snapshot:
    """What is seen at the end of step `at` of the last `window` steps; every other signal is quiet."""
    begin = max(0, at - window)
    moment = BEGIN + timedelta(seconds=STEP * at)
    there = [member for member in members if member.born < at]
    texts = {member.name: _text(member, begin, at) for member in there}
    names = [f"GPU-{member.name}" for member in there]
    power = {
        WindowStat(Signal.POWER_WATTS, Statistic.MAX, window_seconds).key: dict.fromkeys(names, IDLE_WATTS)
        for window_seconds in (3600, 21600)
    }
    floor = WindowStat(Signal.POWER_WATTS, Statistic.MIN, 7 * 86400).key
    return Snapshot(
        at=moment,
        telemetry_schema=Schema(interval_seconds=30),
        devices=tuple(
            Device(id=name, uuid=name, vendor=Vendor.NVIDIA, vocabulary="dcgm", pods=(f"ns/{member.name}",))
            for name, member in zip(names, there, strict=True)
        ),
        readings=Readings(values={**power, floor: dict.fromkeys(names, FLOOR_WATTS)}),
        activity=tuple(
            ActivityHistory(
                device=name,
                pod=f"ns/{member.name}",
                start=BEGIN + timedelta(seconds=STEP * begin),
                step_seconds=STEP,
                steps=texts[member.name],
            )
            for name, member in zip(names, there, strict=True)
        ),
        cluster=Cluster(
            pods=tuple(
                Pod(
                    namespace="ns",
                    name=member.name,
                    phase="Running",
                    started=BEGIN + timedelta(seconds=STEP * member.born),
                    accelerators={"nvidia.com/gpu": 1},
                    workload=f"{member.kind}/ns/{member.name}",
                )
                for member in there
            ),
            workloads=tuple(
                Workload(
                    id=f"{member.kind}/ns/{member.name}",
                    kind=member.kind,
                    api_version=api_version(member.kind),
                    namespace="ns",
                    name=member.name,
                )
                for member in there
            ),
            known=True,
        ),
    )


def _text(member: Member, begin: int, at: int) -> str:
    codes = np.where(member.seen[begin:at], ord("#"), ord(".")).astype(np.uint8)
    codes[: max(0, member.born - begin)] = ord("?")
    return codes.tobytes().decode()


def watch(members: Sequence[Member], first: int, last: int, policy: IdlePolicy, every_steps: int = PER_HOUR) -> Outcome:
    """Assesses the fleet again and again, from step `first` to `last`."""
    return _held_against_truth(members, last, _named(members, first, last, policy, every_steps))


def watch_fixed(members: Sequence[Member], first: int, last: int, hours: float, every_steps: int = 1) -> Outcome:
    """The common rule instead: no activity for so long."""
    return _held_against_truth(members, last, _silent_for(members, first, last, hours, every_steps))


Named = tuple[int, str, FindingKind]


def _named(members: Sequence[Member], first: int, last: int, policy: IdlePolicy, every_steps: int) -> Iterator[Named]:
    for at in range(first, last, every_steps):
        for finding in assess_idle(snapshot_of(members, at, policy.window_seconds // STEP), policy):
            if finding.verdict is Verdict.IDLE:
                assert finding.subject.kind is SubjectKind.POD
                yield at, finding.subject.name.removeprefix("ns/"), finding.kind


def _silent_for(members: Sequence[Member], first: int, last: int, hours: float, every_steps: int) -> Iterator[Named]:
    length = round(hours * PER_HOUR)
    for at in range(first, last, every_steps):
        for member in members:
            if member.born <= at - length and not member.seen[at - length : at].any():
                yield at, member.name, FindingKind.ABANDONED


def _held_against_truth(members: Sequence[Member], last: int, named: Iterator[Named]) -> Outcome:
    outcome = Outcome()
    by_name = {member.name: member for member in members}
    when: dict[str, int] = {}
    wrong: set[str] = set()
    for at, name, kind in named:
        member = by_name[name]
        seen = member.seen
        if seen[at:].any():
            if name not in wrong:
                before = np.flatnonzero(seen[:at])
                wrong.add(name)
                outcome.false.append(
                    (member.what, name, (at - before[-1] - 1 if len(before) else at - member.born) / PER_HOUR)
                )
        elif name not in when and member.stops is not None:
            when[name] = at
            outcome.kinds.setdefault(member.what, []).append(kind)
    for member in members:
        outcome.watched[member.what] = outcome.watched.get(member.what, 0) + 1
        if member.stops is not None and member.stops < last:
            worked = np.flatnonzero(member.seen)
            since = int(worked[-1]) + 1 if len(worked) else member.born
            hours = (when[member.name] - since) / PER_HOUR if member.name in when else float("inf")
            outcome.delays.setdefault(member.what, []).append(hours)
    return outcome
