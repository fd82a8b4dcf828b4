"""How each kind of work uses its devices over time.

Every function gives a Load: the share of time and of the machine that the work takes, sample by sample. The exporter
averages its profiling metrics over its own collect interval, 30 s by default, so work between two such windows is
never seen, just as on a real fleet.

The kinds differ in their silences: a training job stops for minutes, a service is quiet between requests and for hours
at night, a notebook is idle from evening to morning and over the weekend.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import numpy as np

from lab.simulate.plan import DAY, HOUR, Floats, Mask

COLLECT_SECONDS = 30.0
CONTEXT_MIB = 460.0


class WorkKind(StrEnum):
    TRAINING = "training"
    HOST_BOUND = "host_bound"
    SERVING = "serving"
    HUMAN = "human"  # notebooks and development Pods
    BATCH = "batch"
    SILENT = "silent"


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """Parameters of one kind of work; each function below says which it reads.

    sm_level: SM-active while it computes; for HOST_BOUND the share of time in which it does.
    memory_share: of the device's memory, once loaded.
    stops_at_seconds: after this (from the window's start) it never works again; keeps_memory and keeps_context say
        what stays behind.
    working_devices: only the first so many of a Pod's devices ever work; None: all.
    dram_demand, pcie_demand: DRAM-active, and traffic from the host as a share of the card's maximum, that it asks for
        while it computes and would have if it were alone; None: as its SM-active has it.
    """

    activity: WorkKind
    sm_level: float = 0.6
    memory_share: float = 0.75
    requests_per_second: float = 0.0
    request_seconds: float = 10.0
    burstiness: float = 1.0
    quiet_from_hour: float = 0.0
    quiet_hours: float = 0.0
    weekend_factor: float = 1.0
    sessions_per_day: float = 2.0
    stops_at_seconds: float = float("inf")
    keeps_memory: bool = False
    keeps_context: bool = False
    working_devices: int | None = None
    dram_demand: float | None = None
    pcie_demand: float | None = None
    warmup_seconds: float = 420.0


@dataclass(kw_only=True)
class Load:
    """One value per sample, as ratios of 0 to 1; link and pcie as shares of the device's maximum."""

    engine: Floats
    sm: Floats
    tensor: Floats
    dram: Floats
    link: Floats
    pcie: Floats
    memory_mib: Floats
    context: Mask


@dataclass(frozen=True, kw_only=True)
class Hours:
    """Times of the samples in UTC: seconds from the window's start, hour of the day, weekend."""

    seconds: Floats
    start: datetime

    @property
    def since_midnight(self) -> float:
        """Seconds from midnight to the window's start."""
        return self.start.hour * HOUR + self.start.minute * 60.0 + self.start.second

    @property
    def hour(self) -> Floats:
        return ((self.seconds + self.since_midnight) % DAY) / HOUR

    @property
    def weekend(self) -> Mask:
        days = np.floor((self.seconds + self.since_midnight) / DAY).astype(np.int64)
        weekend: Mask = (days + self.start.weekday()) % 7 >= 5
        return weekend


def load_devices(
    behaviour: Behaviour, memory_mib: list[float], hours: Hours, born_seconds: float, rng: np.random.Generator
) -> list[Load]:
    """Loads of all devices of one run, which work in step where the kind is synchronous.

    hours: samples of the run's life inside the window. born_seconds: when its Pods started, perhaps before it.
    """
    seconds = hours.seconds
    age = seconds - born_seconds
    makers = {
        WorkKind.TRAINING: _training,
        WorkKind.HOST_BOUND: _host_bound,
        WorkKind.SERVING: _serving,
        WorkKind.HUMAN: _human,
        WorkKind.BATCH: _batch,
        WorkKind.SILENT: _silent,
    }
    busy, wait, loaded_at = makers[behaviour.activity](behaviour, hours, age, rng)
    working = len(memory_mib) if behaviour.working_devices is None else behaviour.working_devices
    stopped = seconds >= behaviour.stops_at_seconds
    loads = []
    for device, memory in enumerate(memory_mib):
        mine = np.where(stopped, 0.0, busy) if device < working else np.zeros_like(busy)
        waiting = np.where(stopped, 0.0, wait) if device < working else np.zeros_like(busy)
        load = _device(behaviour, mine, waiting, age >= loaded_at, stopped, device < working, memory, rng)
        if len(memory_mib) == 1:
            load.link = np.zeros_like(load.link)  # there is no peer
        loads.append(load)
    return loads


def _device(
    behaviour: Behaviour,
    busy: Floats,
    wait: Floats,
    loaded: Mask,
    stopped: Mask,
    works: bool,
    memory_mib: float,
    rng: np.random.Generator,
) -> Load:
    """busy: share of time with real work on the device; wait: share with a spinning collective."""
    size = len(busy)
    level = 0.5 if behaviour.activity is WorkKind.HOST_BOUND else behaviour.sm_level
    noise = rng.normal(1.0, 0.03, size) * rng.normal(1.0, 0.02)
    engine = np.clip(busy + wait, 0.0, 1.0)
    engine = np.where(engine > 0.97, 1.0 - np.abs(rng.normal(0.0, 0.012, size)), engine)
    sm = np.clip((busy * level + wait * 0.012) * noise, 0.0, 1.0)
    tensor = np.clip(busy * level * tensor_share(level) * noise, 0.0, 1.0)
    wanted = level * dram_share(level) if behaviour.dram_demand is None else behaviour.dram_demand
    dram = np.clip(busy * wanted * rng.normal(1.0, 0.05, size) + wait * 0.002, 0.0, 1.0)
    carried = 0.02 + 0.06 * level if behaviour.pcie_demand is None else behaviour.pcie_demand
    context = loaded & (~stopped | behaviour.keeps_context | behaviour.keeps_memory)
    if not works:
        context = context & behaviour.keeps_context
    holds = loaded & (~stopped | behaviour.keeps_memory) if works else np.zeros(size, dtype=bool)
    memory = np.where(context, CONTEXT_MIB, 0.0) + np.where(holds, behaviour.memory_share * memory_mib, 0.0)
    # Allocated memory changes a little now and then, by whole MiB.
    breathing = np.cumsum(np.where(rng.random(size) < 0.01, rng.normal(0.0, 40.0, size), 0.0))
    moving = holds & (engine > 0)
    memory = np.where(moving, memory + np.clip(breathing, -600.0, 0.03 * memory_mib), memory)
    synchronous = behaviour.activity is WorkKind.TRAINING
    return Load(
        engine=engine,
        sm=sm,
        tensor=tensor,
        dram=dram,
        link=np.clip((busy * level * 0.35 + wait * 0.02) * noise, 0.0, 1.0) if synchronous else 0.02 * sm,
        pcie=np.clip((busy * carried + (engine > 0) * 0.002) * noise, 0.0, 1.0),
        memory_mib=np.clip(memory, 0.0, 0.97 * memory_mib),
        context=context,
    )


def tensor_share(sm_level: float) -> float:
    """Tensor-active ÷ SM-active. Kalos: power stays near 100 W up to a third of SM-active, and nears the limit from two
    thirds on, so the tensor cores hardly work below and do above."""
    return float(np.interp(sm_level, (0.0, 0.33, 0.5, 0.64, 0.7, 1.0), (0.02, 0.03, 0.06, 0.2, 0.52, 0.58)))


def dram_share(sm_level: float) -> float:
    """DRAM-active ÷ SM-active."""
    return 0.45 + 0.25 * sm_level


def _busy_share(seconds: Floats, starts: Floats, lengths: Floats, window: float = COLLECT_SECONDS) -> Floats:
    """Share of each (t − window, t] that the union of the bursts covers."""
    if not len(starts):
        return np.zeros_like(seconds)
    ends = np.maximum.accumulate(starts + lengths)
    begins = np.maximum(starts, np.concatenate(([-np.inf], ends[:-1])))
    lasting = np.maximum(starts + lengths - begins, 0.0)
    total = np.cumsum(lasting)
    knots = np.column_stack((begins, begins + lasting)).ravel()
    values = np.column_stack((total - lasting, total)).ravel()
    done = np.interp(seconds, knots, values) - np.interp(seconds - window, knots, values)
    share: Floats = np.clip(done / window, 0.0, 1.0)
    return share


def _poisson_bursts(
    rng: np.random.Generator, seconds: Floats, per_hour: float, median_seconds: float, sigma: float
) -> tuple[Floats, Floats]:
    first, last = float(seconds[0]), float(seconds[-1])
    count = int(rng.poisson(per_hour * (last - first) / HOUR))
    starts = np.sort(rng.uniform(first, last, count))
    return starts, rng.lognormal(np.log(median_seconds), sigma, count)


def _wander(rng: np.random.Generator, sd: float, width: int, size: int) -> Floats:
    """Autocorrelated noise: a moving average over `width` samples."""
    wandering: Floats = np.convolve(rng.normal(0.0, sd, size + width - 1), np.ones(width) / width, mode="valid")
    return wandering


def _training(
    behaviour: Behaviour, hours: Hours, age: Floats, rng: np.random.Generator
) -> tuple[Floats, Floats, float]:
    """Endless steps, with checkpoints, loader stalls and a rare crash and restart within the Pod."""
    seconds = hours.seconds
    pull = float(rng.uniform(60, 300))
    begins = pull + behaviour.warmup_seconds * float(rng.uniform(0.5, 1.5))
    period, length = float(rng.uniform(20, 90)) * 60, float(rng.uniform(25, 200))
    checkpoint = ((age - begins) % period) > period - length
    stall = _busy_share(seconds, *_poisson_bursts(rng, seconds, 0.25, 110, 0.7))
    crash = _busy_share(seconds, *_poisson_bursts(rng, seconds, 0.02, 600, 0.4))
    straggler = _busy_share(seconds, *_poisson_bursts(rng, seconds, 0.3, 150, 0.8))
    busy = np.where(checkpoint, rng.uniform(0.0, 0.12, len(seconds)), 1.0) * (1.0 - 0.9 * stall) * (1.0 - crash)
    wait = np.where(crash > 0.5, 0.0, np.clip(straggler * busy, 0.0, 1.0))
    busy = np.clip(busy - wait, 0.0, 1.0)
    started = age >= begins
    return np.where(started, busy, 0.0), np.where(started, wait, 0.0), pull + 30.0


def _host_bound(
    behaviour: Behaviour, hours: Hours, age: Floats, rng: np.random.Generator
) -> tuple[Floats, Floats, float]:
    """The GPU mostly waits for the next batch."""
    size = len(hours.seconds)
    slow = np.exp(2 * _wander(rng, 0.25, 20, size))
    busy = np.clip(behaviour.sm_level * slow * rng.lognormal(0.0, 0.25, size), 0.004, 0.5)
    return np.where(age >= 240, busy, 0.0), np.zeros(size), 180.0


def traffic(behaviour: Behaviour, hours: Hours) -> Floats:
    """Requests per second: highest in the afternoon, none in the quiet hours, fewer at the weekend."""
    hour = hours.hour
    day = 0.3 + 0.7 * np.clip(0.5 + 0.5 * np.cos((hour - 14.5) / 24 * 2 * np.pi), 0.0, 1.0) ** 1.5
    since_quiet = (hour - behaviour.quiet_from_hour) % 24
    open_hours = np.where(since_quiet < behaviour.quiet_hours, 0.0, 1.0)
    weekend = np.where(hours.weekend, behaviour.weekend_factor, 1.0)
    return behaviour.requests_per_second * day * open_hours * weekend


def _serving(behaviour: Behaviour, hours: Hours, age: Floats, rng: np.random.Generator) -> tuple[Floats, Floats, float]:
    """The model loads and warms up, then requests come: continuously if there are many, else in bursts with log-normal
    gaps (`burstiness` is the sigma of a gap's logarithm)."""
    seconds = hours.seconds
    rate = traffic(behaviour, hours)
    size = len(seconds)
    if behaviour.requests_per_second * COLLECT_SECONDS > 3.0:
        swing = np.exp(_wander(rng, 0.8, 10, size))
        arrived = rng.poisson(np.clip(rate * COLLECT_SECONDS * swing, 0.0, 1e6))
        busy = 1.0 - np.exp(-arrived * behaviour.request_seconds / COLLECT_SECONDS / 4)
    else:
        step = np.diff(seconds, prepend=seconds[0] - (seconds[1] - seconds[0] if size > 1 else 60.0))
        expected = np.cumsum(rate * step)
        sigma = behaviour.burstiness
        count = int(expected[-1] * 1.5 + 50)
        gaps = rng.lognormal(-sigma * sigma / 2, sigma, count)
        passed = np.cumsum(gaps) - rng.random() * gaps[0]
        # Quiet hours do not count towards a gap.
        starts = np.interp(passed[passed < expected[-1]], expected, seconds)
        lengths = rng.lognormal(np.log(behaviour.request_seconds), 0.8, len(starts))
        busy = _busy_share(seconds, starts, lengths)
    warm = (age >= 300) & (age < 300 + 75)
    busy = np.where(warm, 0.7, np.where(age >= 375, busy, 0.0))
    return busy, np.zeros(size), 120.0


def _human(behaviour: Behaviour, hours: Hours, age: Floats, rng: np.random.Generator) -> tuple[Floats, Floats, float]:
    """Sessions of notebook cells in working hours; fewer at the weekend and in the evening."""
    seconds = hours.seconds
    first_day = int(np.floor((seconds[0] - DAY) / DAY))
    last_day = int(np.ceil(seconds[-1] / DAY))
    starts: list[float] = []
    lengths: list[float] = []
    for day in range(first_day, last_day + 1):
        weekend = (day + hours.start.weekday()) % 7 >= 5
        if rng.random() > (0.12 if weekend else 0.85):
            continue
        for session in range(1 + int(rng.poisson(max(behaviour.sessions_per_day - 1, 0)))):
            hour = (float(rng.normal(9.8, 0.9)), float(rng.normal(14.2, 1.0)), float(rng.normal(20.5, 1.0)))[
                min(session, 2)
            ]
            at = day * DAY - hours.since_midnight + hour * HOUR
            until = at + float(rng.lognormal(np.log(1.8), 0.5)) * HOUR
            while at < until:
                length = float(rng.lognormal(np.log(behaviour.request_seconds), 1.0))
                starts.append(at)
                lengths.append(length)
                at += length + float(rng.lognormal(np.log(360), 0.9))
    order = np.argsort(starts)
    begins, lasting = np.asarray(starts, dtype=float)[order], np.asarray(lengths, dtype=float)[order]
    # The first session starts soon after the Pod.
    born = float(seconds[0] - age[0])
    greeting = born + float(rng.uniform(300, 1500))
    begins = np.concatenate(([greeting, greeting + 700.0], begins[begins > greeting + 900.0]))
    lasting = np.concatenate(([behaviour.request_seconds] * 2, lasting[len(lasting) - len(begins) + 2 :]))
    busy = _busy_share(seconds, begins, lasting)
    return np.where(age >= 60, busy, 0.0), np.zeros(len(seconds)), greeting - born


def _batch(_: Behaviour, hours: Hours, age: Floats, rng: np.random.Generator) -> tuple[Floats, Floats, float]:
    """Steady inference over a data set, with short pauses between files."""
    seconds = hours.seconds
    pause = _busy_share(seconds, *_poisson_bursts(rng, seconds, 4.0, 25, 0.6))
    busy = np.clip(rng.normal(0.9, 0.05, len(seconds)), 0.0, 1.0) * (1.0 - pause)
    return np.where(age >= 120, busy, 0.0), np.zeros(len(seconds)), 60.0


def _silent(behaviour: Behaviour, _: Hours, age: Floats, rng: np.random.Generator) -> tuple[Floats, Floats, float]:
    """Never works; a context, if any, opens after some minutes."""
    nothing = np.zeros(len(age))
    return nothing, nothing.copy(), float(rng.uniform(60, 400)) if behaviour.keeps_context else float("inf")
