"""GPUs slowed by heat or by the power supply. A software power cap at full load is normal.

Bits of the clock event reasons (NVML): 0x1 idle, 0x2 application clocks, 0x4 software power cap, 0x8 hardware
slowdown, 0x10 sync boost, 0x20 software thermal, 0x40 hardware thermal, 0x80 hardware power brake, 0x100 display.
Only 0x8, 0x20, 0x40 and 0x80 are faults; the masks leave out every other bit, and any that a newer driver adds.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import NamedTuple

from gpuwatch.facts.model.decision import Advice, Component, Evidence, Finding, FindingKind, Severity, Verdict
from gpuwatch.facts.model.telemetry import Signal, Statistic
from gpuwatch.judge.fleet import (
    SUSPECTED,
    Conclusion,
    Fleet,
    GpuAnswers,
    Grade,
    Judge,
    Peers,
    PhysicalGpu,
    Tells,
    on_node,
)
from gpuwatch.judge.health.heat import Excess, excess_heat
from gpuwatch.judge.health.policy import HealthPolicy
from gpuwatch.judge.places import SlowPlace, air_of, slow_machines, slow_places, together_finding
from gpuwatch.judge.rule import OVER_TIME, Ask, Judged, Rule

THERMAL_BITS = 0x60
HARDWARE_THERMAL_BITS = 0x40
BRAKE_BITS = 0x80
SLOWDOWN_BITS = 0x8

_BUSY_RATIO = 0.5
"""Least engine activity in the window at which clocks are compared: they fall at idle by design."""


_HEAT = Tells(
    FindingKind.THERMAL_THROTTLE,
    "slowed down by heat",
    "critical: inspect; warning: watch, inspect",
    (Component.COOLING,),
)
_BRAKE = Tells(
    FindingKind.POWER_BRAKE,
    "slowed down by the power brake or the hardware slowdown",
    "critical: inspect; warning: inspect, watch",
    (Component.POWER,),
)
_REASONS = Signal.CLOCK_EVENT_REASONS_BITS


class _Measure:
    """A statistic of the last window, and of the last two together. enough: whether there are samples of both."""

    def __init__(self, ask: Ask, signal: Signal, statistic: Statistic, bits: float | None = None) -> None:
        window = ask.policy.window_seconds
        self.now = ask(signal, statistic, window, bits)
        self.both = ask(signal, statistic, 2 * window, bits)
        self.enough = ask.reporting(2 * window) if bits is None else ask.covered(2 * window, signal)

    def duty(self, gpu: PhysicalGpu) -> "_Duty | None":
        """Duty in the last window and in the one before, which is that of both less that of the last."""
        late, all_of_it = self.now.of(gpu), self.both.of(gpu)
        if late is None or all_of_it is None or not self.enough(gpu):
            return None
        if self.now.stat.statistic is Statistic.INCREASE:  # seconds of each window
            per, whole = float(self.now.stat.window_seconds), all_of_it
        else:  # a share of the samples or of the time
            per, whole = 1.0, 2 * all_of_it
        return _Duty(min(late / per, 1.0), min(max(whole - late, 0.0) / per, 1.0), self.now)


class _HeatAsked:
    def __init__(self, ask: Ask) -> None:
        now, both = ask.policy.window_seconds, 2 * ask.policy.window_seconds
        self.seconds = _Measure(ask, Signal.THERMAL_THROTTLE_SECONDS_TOTAL, Statistic.INCREASE)
        self.bits = _Measure(ask, _REASONS, Statistic.FRACTION_BITS, THERMAL_BITS)
        # AMD's exporter gives the share itself, of the package and of its memory.
        self.share = _Measure(ask, Signal.THERMAL_THROTTLE_RATIO, Statistic.AVG)
        self.memory_share = _Measure(ask, Signal.MEMORY_THERMAL_THROTTLE_RATIO, Statistic.AVG)
        self.events = ask(Signal.CLOCK_EVENTS_WINDOW_COUNT, Statistic.MIN, now)
        self.margin = ask(Signal.TEMPERATURE_MARGIN_CELSIUS, Statistic.AVG, now)
        self.temperature = ask(Signal.GPU_TEMPERATURE_CELSIUS, Statistic.AVG, now)
        self.clock = ask(Signal.SM_CLOCK_HERTZ, Statistic.AVG, now)
        self.clock_both = ask(Signal.SM_CLOCK_HERTZ, Statistic.AVG, both)
        self.power = ask(Signal.POWER_WATTS, Statistic.AVG, now)
        self.busy = ask(Signal.BUSY_RATIO, Statistic.MIN, now)
        self.hardware = ask(_REASONS, Statistic.FRACTION_BITS, now, HARDWARE_THERMAL_BITS)
        self.memory = ask(Signal.MEMORY_TEMPERATURE_CELSIUS, Statistic.AVG, both)
        self.reporting = ask.reporting(now)


class _BrakeAsked:
    def __init__(self, ask: Ask) -> None:
        now = ask.policy.window_seconds
        self.seconds = _Measure(ask, Signal.HW_POWER_BRAKE_SECONDS_TOTAL, Statistic.INCREASE)
        self.bits = _Measure(ask, _REASONS, Statistic.FRACTION_BITS, BRAKE_BITS)
        self.slowdown = _Measure(ask, _REASONS, Statistic.FRACTION_BITS, SLOWDOWN_BITS)
        self.thermal = ask(_REASONS, Statistic.FRACTION_BITS, now, THERMAL_BITS)
        self.events = ask(Signal.CLOCK_EVENTS_WINDOW_COUNT, Statistic.MIN, now)
        self.reporting = ask.reporting(now)


class _Duty(NamedTuple):
    """Share of the last window and of the window before it that was throttled, as read from `source`."""

    now: float
    before: float
    source: GpuAnswers

    @property
    def lasting(self) -> float:
        return min(self.now, self.before)


def _highest_duty(gpu: PhysicalGpu, *measures: _Measure) -> _Duty | None:
    """None without enough samples of all of them."""
    known = [duty for each in measures if (duty := each.duty(gpu)) is not None]
    return max(known, key=lambda each: (each.lasting, each.now), default=None)


def thermal_throttle(fleet: Fleet, asked: _HeatAsked) -> Judged:
    """Judges each GPU, and makes one finding on the places and models that are slowed as a whole.

    A GPU is slowed by heat in two windows in a row by the violation counter, the reason bits or the exporter's event
    counts; less surely where it is hotter and slower than busy peers. Heat that power does not explain is named too.
    """
    kind, policy = _HEAT, fleet.policy
    margin, temperature, power, memory = asked.margin, asked.temperature, asked.power, asked.memory
    proxy = _heat_and_clock(fleet, asked)
    measures = (asked.seconds, asked.bits, asked.share, asked.memory_share)
    duties = {gpu: duty for gpu in fleet.present if (duty := _highest_duty(gpu, *measures)) is not None}
    slowed = {gpu: duty for gpu, duty in duties.items() if duty.lasting >= policy.thermal_duty_ratio}
    memory_limit = policy.memory_temperature_celsius
    working = [gpu for gpu in fleet.present if (asked.busy.of(gpu) or 0.0) >= _BUSY_RATIO]
    usual = _usually_slowed(fleet, slowed, working, asked.hardware)
    as_its_model = {gpu for gpus in usual.values() for gpu in gpus}
    hot = [gpu for gpu in fleet.present if gpu in slowed or (memory.of(gpu) or 0.0) >= memory_limit]
    places = slow_places(fleet, [gpu for gpu in hot if gpu not in as_its_model], duties.keys() | hot)
    place_of = {gpu: place for place in places for gpu in place.gpus}
    alone = [gpu for gpu in slowed if gpu not in place_of and gpu not in as_its_model]
    touched = [gpu for gpu, duty in duties.items() if max(duty.now, duty.before) >= _HARDLY and gpu not in as_its_model]
    machine_of = slow_machines(fleet, alone, touched)
    heat = excess_heat(working, temperature, power, partial(air_of, fleet), slowed)

    def seen(gpu: PhysicalGpu) -> Conclusion:
        if gpu in place_of:
            return fleet.unknown(gpu, kind, f"slowed by heat, as {place_of[gpu]}", _ALONE)
        if gpu in machine_of:
            return fleet.unknown(gpu, kind, f"slowed by heat, as most GPUs of {machine_of[gpu]}", _ALONE)
        duty, excess = duties.get(gpu), heat.get(gpu)
        excess = excess if excess is not None and excess.stands_out else None
        if gpu in as_its_model and excess is None:
            words = "slowed by heat as most busy GPUs of its model"
            if asked.hardware.of(gpu) is None:  # a site that is too hot looks the same
                return fleet.unknown(gpu, kind, words, [Signal.CLOCK_EVENT_REASONS_BITS])
            return fleet.healthy(gpu, kind, words, asked.bits.now, confidence_ratio=0.5)
        if excess is not None and gpu not in slowed:
            return _hotter(fleet, gpu, excess, temperature)
        if gpu not in slowed and (memory.of(gpu) or 0.0) >= memory_limit:
            return _hot_memory(fleet, gpu, memory)
        if duty is not None and gpu in slowed:
            evidence = [_duty_evidence(gpu, duty, policy.thermal_duty_ratio)]
            if excess is not None:
                evidence.append(_excess_evidence(gpu, excess, temperature))
            if margin.of(gpu) is not None:
                evidence.append(margin.evidence(gpu, comparison="<=", bound=policy.temperature_margin_celsius))
            # The driver counted it in both windows; below half of the time a hot day explains it as well.
            severe = duty.lasting >= policy.thermal_severe_ratio
            critical = Grade(Severity.CRITICAL, Advice.INSPECT, 0.9)
            grade = critical if severe else Grade(Severity.WARNING, Advice.WATCH, 0.8)
            return _slowed(fleet, gpu, kind, duty, "slowed by heat", evidence, grade)
        if duty is not None:
            return fleet.healthy(gpu, kind, "no lasting thermal slowdown", *(each.now for each in measures))
        if not asked.reporting(gpu):
            return fleet.unseen(gpu, kind, policy.window_seconds)
        names = ("sw_thermal", "hw_thermal")
        return _by_events(fleet, gpu, kind, asked.events, names, "thermal slowdown") or proxy(gpu)

    def differs(gpu: PhysicalGpu, found: Finding) -> bool | None:
        excess = heat.get(gpu)
        if gpu in slowed and _alone(fleet, gpu, duties, margin):
            return True
        if found.evidence[0].signal == memory.stat.signal:
            return _far_hotter(fleet, gpu, memory, power)
        if excess is None or excess.alone:
            return _far_hotter(fleet, gpu, temperature, power)
        return excess.stands_out

    judged = {gpu: seen(gpu) for gpu in fleet.present}
    warm = _as_its_place(fleet, judged, differs)
    machines = _machines(fleet, kind, "slowed by heat: look at its fans and its air", machine_of, duties, policy)
    return Judged(
        lambda gpu: judged.get(gpu) or seen(gpu), [*machines, *_shared_heat(fleet, places, usual, warm, slowed)]
    )


def _alone(fleet: Fleet, gpu: PhysicalGpu, duties: Mapping[PhysicalGpu, _Duty], margin: GpuAnswers) -> bool:
    """Whether the other GPUs of its machine are not slowed at all, and far from their own slowdown temperature as their
    margins show: then their air is cool enough, and the card is the cause."""
    near = fleet.policy.temperature_margin_celsius + _NEAR_CELSIUS
    others = [each for each in fleet.at_home.get(gpu.home, ()) if each is not gpu and each in duties]
    margins = [margin.of(each) for each in others if max(duties[each].now, duties[each].before) < _HARDLY]
    return _NEIGHBOURS <= len(others) == sum(known is not None and known > near for known in margins)


def _machines(
    fleet: Fleet,
    kind: Tells,
    words: str,
    machine_of: Mapping[PhysicalGpu, str],
    duties: Mapping[PhysicalGpu, _Duty],
    policy: HealthPolicy,
) -> list[Finding]:
    """One DEGRADED finding on each machine of which most GPUs are slowed."""
    found = []
    for home in dict.fromkeys(machine_of.values()):
        gpus = [gpu for gpu, machine in machine_of.items() if machine == home]
        worst = max(gpus, key=lambda gpu: duties[gpu].lasting)
        severe = kind is _BRAKE or duties[worst].lasting >= policy.thermal_severe_ratio
        bound = policy.power_brake_duty_ratio if kind is _BRAKE else policy.thermal_duty_ratio
        seconds = policy.window_seconds
        found.append(
            fleet.degraded(
                on_node(home),
                kind,
                f"{len(gpus)} of its {len(fleet.at_home[home])} GPUs are {words}",
                Grade(Severity.CRITICAL if severe else Severity.WARNING, Advice.INSPECT, 0.9),
                [_duty_evidence(worst, duties[worst], bound)],
                since=fleet.before(2 * seconds),
                gpu_hours=sum(duties[gpu].now + duties[gpu].before for gpu in gpus) * seconds / 3600,
                gpus=gpus,
                node=worst.lead.node,
            )
        )
    return found


def _shared_heat(
    fleet: Fleet,
    places: Sequence[SlowPlace],
    usual: Mapping[str, Sequence[PhysicalGpu]],
    warm: Sequence[PhysicalGpu],
    slowed: Mapping[PhysicalGpu, _Duty],
) -> list[Finding]:
    """One finding on what no single GPU explains. usual: as of `_usually_slowed`. warm: as of `_as_its_place`."""
    policy = fleet.policy
    said = [f"{place} are slowed by heat at once: look at their cooling, not at each GPU" for place in places]
    if warm:
        homes = ", ".join(sorted({gpu.home for gpu in warm}))
        who = "1 GPU is" if len(warm) == 1 else f"{len(warm)} GPUs are"
        said.append(f"{who} too hot, with others nearby about as warm: look at the cooling of {homes}")
    said += (
        f"{len(gpus)} busy {model}, half of all or more, are slowed by heat: it is usual for the model in these "
        "machines, or the site is too hot"
        for model, gpus in usual.items()
    )
    of_places = [*(gpu for place in places for gpu in place.gpus), *warm]
    of_models = [gpu for gpus in usual.values() for gpu in gpus]
    shared = [*of_places, *of_models]
    severe = {gpu for gpu, duty in slowed.items() if duty.lasting >= policy.thermal_severe_ratio}
    severity = Severity.WARNING if of_places or severe.intersection(of_models) else Severity.INFO
    severity = Severity.CRITICAL if severe.intersection(of_places) else severity
    shown = [_duty_evidence(gpu, slowed[gpu], policy.thermal_duty_ratio) for gpu in shared if gpu in slowed][:1]
    since = fleet.before(2 * policy.window_seconds)
    return together_finding(_HEAT, said, shared, severity, evidence=shown, since=since)


_NOT_SLOWED = Grade(Severity.WARNING, Advice.INSPECT, SUSPECTED)
"""Of a GPU that is too hot; no signal says that it is slowed."""
_ALONE = ("a GPU that is slowed while the others of its place are not", Signal.TEMPERATURE_MARGIN_CELSIUS)
_NEIGHBOURS = 2
"""So many other GPUs of the machine have to show that its air is cool enough; one may stand in the colder slot."""
_NEAR_CELSIUS = 5.0
"""To its slowdown temperature: slots of one machine differ by more, so such a neighbour says that the air is warm."""
_HARDLY = 0.01
"""Share of the time below which a neighbour counts as not slowed: a counter may tick once at a change of state."""
_FAR_CELSIUS = 15.0
"""Between cards that work alike: slots of one machine differ by less (front and back of the air)."""
_AS_HARD = 0.8
"""Share of a GPU's power from which another works as hard; a GPU that is slowed draws less."""


def _as_its_place(
    fleet: Fleet, judged: dict[PhysicalGpu, Conclusion], differs: Callable[[PhysicalGpu, Finding], bool | None]
) -> list[PhysicalGpu]:
    """GPUs whose place is as warm as they are. In `judged` they become UNKNOWN, and so do GPUs of which it is not known
    whether they are hotter than their place. differs: whether a GPU is; None where that is not known."""
    warm = []
    for gpu, found in judged.items():
        if not isinstance(found, Finding) or found.verdict is not Verdict.DEGRADED or (own := differs(gpu, found)):
            continue
        if own is None:
            words = f"{found.summary}; whether its place is too warm is not known: no GPU near it works as hard"
            judged[gpu] = fleet.undecided(gpu, _HEAT, words, found.evidence, *_ALONE, severity=Severity.WARNING)
        else:
            warm.append(gpu)
            judged[gpu] = fleet.unknown(
                gpu, _HEAT, f"{found.summary}; the GPUs near it are about as warm for their power", _ALONE
            )
    return warm


def _far_hotter(fleet: Fleet, gpu: PhysicalGpu, temperature: GpuAnswers, power: GpuAnswers) -> bool | None:
    """Whether it is far hotter than those of its machine and model that work as hard; None where none is known to."""
    celsius, watts = temperature.of(gpu), power.of(gpu)
    alike = [
        value
        for each in fleet.at_home.get(gpu.home, ())
        if each is not gpu and each.model == gpu.model and (value := temperature.of(each)) is not None
        if watts is not None and (power.of(each) or 0.0) >= _AS_HARD * watts
    ]
    return None if celsius is None or not alike else celsius - median(alike) > _FAR_CELSIUS


def _usually_slowed(
    fleet: Fleet, slowed: Mapping[PhysicalGpu, _Duty], working: Sequence[PhysicalGpu], hardware: GpuAnswers
) -> dict[str, list[PhysicalGpu]]:
    """By model, the GPUs that are slowed by heat, though not by the hardware, where they are at least half of the busy
    ones: small passive cards run at their software slow-down point in many machines. hardware: share of the samples
    that are slowed by it."""
    policy = fleet.policy
    by_model: dict[str, list[PhysicalGpu]] = defaultdict(list)
    for gpu in working:
        by_model[gpu.model].append(gpu)
    usual = {}
    for model, gpus in by_model.items():
        found = [gpu for gpu in gpus if gpu in slowed and (hardware.of(gpu) or 0.0) < policy.thermal_duty_ratio]
        enough = len(gpus) > policy.min_peers and len({gpu.home for gpu in found}) >= policy.common_cause_nodes
        if model and enough and 2 * len(found) >= len(gpus):
            usual[model] = found
    return usual


def _excess_evidence(gpu: PhysicalGpu, excess: Excess, temperature: GpuAnswers) -> Evidence:
    bound = excess.expected_celsius + excess.least_celsius
    note = f"its power explains {excess.expected_celsius:.0f} °C, by {excess.gpus} busy GPUs of its model"
    return temperature.evidence(gpu, comparison=">", bound=bound, note=note)


def _hotter(fleet: Fleet, gpu: PhysicalGpu, excess: Excess, temperature: GpuAnswers) -> Finding:
    return fleet.degraded(
        gpu,
        _HEAT,
        f"{excess.celsius:.0f} °C hotter than its power explains",
        _NOT_SLOWED,
        [_excess_evidence(gpu, excess, temperature)],
        since=fleet.before(fleet.policy.window_seconds),
        missing=["a slowdown"],
    )


def _hot_memory(fleet: Fleet, gpu: PhysicalGpu, memory: GpuAnswers) -> Finding:
    limit = fleet.policy.memory_temperature_celsius
    return fleet.degraded(
        gpu,
        _HEAT,
        f"its memory is at {memory.of(gpu):.0f} °C, where it is slowed as the core is",
        _NOT_SLOWED,
        [memory.evidence(gpu, comparison=">=", bound=limit)],
        since=fleet.before(2 * fleet.policy.window_seconds),
        missing=["a signal of memory that is slowed by heat"],
    )


def _slowed(
    fleet: Fleet,
    gpu: PhysicalGpu,
    kind: Tells,
    duty: _Duty,
    words: str,
    evidence: Sequence[Evidence],
    grade: Grade,
) -> Finding:
    seconds = fleet.policy.window_seconds
    summary = f"{words} {duty.lasting:.0%} of the time or more in two windows of {seconds // 60} min"
    lost = (duty.now + duty.before) * seconds / 3600
    return fleet.degraded(gpu, kind, summary, grade, evidence, since=fleet.before(2 * seconds), gpu_hours=lost)


def _duty_evidence(gpu: PhysicalGpu, duty: _Duty, bound: float) -> Evidence:
    of = {Statistic.INCREASE: "increase ÷ window", Statistic.FRACTION_BITS: "share of samples"}
    return duty.source.evidence(
        gpu,
        duty.now,
        unit="ratio",
        comparison=">=",
        bound=bound,
        note=f"{of.get(duty.source.stat.statistic, 'mean')}; {duty.before:.0%} in the window before",
    )


def _by_events(
    fleet: Fleet, gpu: PhysicalGpu, kind: Tells, events: GpuAnswers, names: Sequence[str], words: str
) -> Conclusion | None:
    """The conclusion from the exporter's counts of clock events; None where it counts none."""
    found = events.by_variant(gpu)
    if not found:
        return None
    lasting = [name for name in names if found.get(name, 0.0) > 0]
    if not lasting:
        return fleet.healthy(gpu, kind, f"no lasting {words}", confidence_ratio=0.8)
    return fleet.degraded(
        gpu,
        kind,
        f"{words} in every one of the exporter's own windows of the last {fleet.policy.window_seconds // 60} min",
        Grade(Severity.WARNING, Advice.WATCH, SUSPECTED),  # for how much of each window is unknown
        [events.evidence(gpu, found[name], comparison=">", bound=0.0, note=f"clock event {name}") for name in lasting],
        since=fleet.before(fleet.policy.window_seconds),
        missing=[Signal.CLOCK_EVENT_REASONS_BITS, Signal.THERMAL_THROTTLE_SECONDS_TOTAL],
    )


def _heat_and_clock(fleet: Fleet, asked: _HeatAsked) -> Judge:
    """Without any throttle signal: hotter and slower than busy peers in two windows, and not at the power cap."""
    kind, policy = _HEAT, fleet.policy
    margin, temperature, power, busy = asked.margin, asked.temperature, asked.power, asked.busy
    clock, clock_both = asked.clock, asked.clock_both
    missing = [Signal.THERMAL_THROTTLE_SECONDS_TOTAL, Signal.CLOCK_EVENT_REASONS_BITS]
    working = [gpu for gpu in fleet.present if (busy.of(gpu) or 0.0) >= _BUSY_RATIO]
    clock_peers, clock_both_peers, temperature_peers, power_peers = (
        _of_job_or_model(fleet, answers, working) for answers in (clock, clock_both, temperature, power)
    )

    def judge(gpu: PhysicalGpu) -> Conclusion:
        room = margin.of(gpu)
        if room is not None and room <= policy.temperature_margin_celsius:
            return fleet.degraded(
                gpu,
                kind,
                f"on average {room:.0f} °C from its slowdown temperature: it has to slow down",
                Grade(Severity.WARNING, Advice.WATCH, SUSPECTED),  # whether it does slow down is unknown
                [margin.evidence(gpu, comparison="<=", bound=policy.temperature_margin_celsius)],
                since=fleet.before(policy.window_seconds),
                missing=missing,
            )
        measured = (clock.of(gpu), clock_both.of(gpu), temperature.of(gpu), power.of(gpu))
        cohorts = (clock_peers(gpu), clock_both_peers(gpu), temperature_peers(gpu), power_peers(gpu))
        if (busy.of(gpu) or 0.0) < _BUSY_RATIO or None in measured or None in cohorts:
            if room is not None:
                return fleet.healthy(gpu, kind, "far from its slowdown temperature", margin, confidence_ratio=0.7)
            return fleet.unknown(gpu, kind, "no throttling signal is exported, nor busy peers to compare with", missing)
        low, low_both, hot, drawn = (value for value in measured if value is not None)
        slow_now, slow_before, heat, feed = (peers for peers in cohorts if peers is not None)
        slow = low < slow_now.lower and low_both < slow_before.lower
        # A card at its power cap draws as much as its peers; one that is throttled for heat draws less.
        if slow and hot > heat.upper and drawn < feed.median:
            return fleet.degraded(
                gpu,
                kind,
                f"{1 - low / slow_now.median:.0%} slower and {hot - heat.median:.0f} °C hotter than its busy peers",
                # Three measurements agree, but none of them is a throttle signal.
                Grade(Severity.WARNING, Advice.WATCH, 0.5),
                [
                    clock.evidence(gpu, comparison="<", bound=slow_now.lower, peers=slow_now),
                    temperature.evidence(gpu, comparison=">", bound=heat.upper, peers=heat),
                    power.evidence(gpu, comparison="<", bound=feed.median, peers=feed),
                ],
                since=fleet.before(2 * policy.window_seconds),
                missing=missing,
            )
        return fleet.healthy(gpu, kind, "clock and heat as its busy peers", clock, temperature, confidence_ratio=0.5)

    return judge


def _of_job_or_model(
    fleet: Fleet, answers: GpuAnswers, working: list[PhysicalGpu]
) -> Callable[[PhysicalGpu], Peers | None]:
    """Busy peers of the same job, whose clocks compare best; of the same model where those are too few."""
    in_job = fleet.peers(answers.of, among=working, kin=fleet.jobs_of)
    of_model = fleet.peers(answers.of, among=working)
    return lambda gpu: in_job(gpu) or of_model(gpu)


def power_brake(fleet: Fleet, asked: _BrakeAsked) -> Judged:
    """Judges each GPU, and makes one finding on the places that are braked as a whole.

    What counts is the power brake, or a hardware slowdown without a reason, in two windows in a row.
    """
    kind, policy, seconds, bits = _BRAKE, fleet.policy, asked.seconds.now, asked.bits.now
    bound = policy.power_brake_duty_ratio
    duties = {gpu: duty for gpu in fleet.present if (duty := _highest_duty(gpu, asked.seconds, asked.bits)) is not None}
    braked = {gpu: duty for gpu, duty in duties.items() if duty.lasting >= bound}
    # Machines that one supply brakes are sampled at different seconds, so one of them fills both windows first.
    in_part = [gpu for gpu, duty in duties.items() if max(duty.now, duty.before) >= bound]
    places = [place for place in slow_places(fleet, in_part, duties) if not braked.keys().isdisjoint(place.gpus)]
    place_of = {gpu: place for place in places for gpu in place.gpus}
    machine_of = slow_machines(fleet, [gpu for gpu in braked if gpu not in place_of])

    def judge(gpu: PhysicalGpu) -> Conclusion:
        if gpu in place_of:
            return fleet.unknown(gpu, kind, f"under the power brake, as {place_of[gpu]}", _ALONE)
        if gpu in machine_of:
            return fleet.unknown(gpu, kind, f"under the power brake, as most GPUs of {machine_of[gpu]}", _ALONE)
        duty, unnamed = duties.get(gpu), asked.slowdown.duty(gpu)
        if duty is not None and gpu in braked:
            # No healthy machine uses the brake; card, cable or power supply may be at fault.
            words, evidence = "under the power brake", [_duty_evidence(gpu, duty, bound)]
            grade = Grade(Severity.CRITICAL, Advice.INSPECT, 0.85)
            return _slowed(fleet, gpu, kind, duty, words, evidence, grade)
        hot = (asked.thermal.of(gpu) or 0.0) >= bound
        if unnamed is not None and unnamed.lasting >= bound and not hot:
            # 0x8 without a thermal or brake bit: fast power protection, which flickers at state changes.
            words, evidence = "in hardware slowdown of no given reason", [_duty_evidence(gpu, unnamed, bound)]
            grade = Grade(Severity.WARNING, Advice.INSPECT, SUSPECTED)
            return _slowed(fleet, gpu, kind, unnamed, words, evidence, grade)
        if duty is not None:
            return fleet.healthy(gpu, kind, "no lasting power brake", seconds, bits)
        if asked.reporting(gpu) and (
            counted := _by_events(fleet, gpu, kind, asked.events, ("hw_power_brake",), "power brake")
        ):
            return counted
        missing = [bits.stat.signal, seconds.stat.signal]
        return fleet.unknown(gpu, kind, "the power brake is not exported, or too little was seen", missing)

    said = [f"{place} are under the power brake at once: look at their power feed, not at each GPU" for place in places]
    shown = [_duty_evidence(gpu, braked[gpu], bound) for gpu in place_of if gpu in braked][:1]
    since = fleet.before(2 * policy.window_seconds)
    machines = _machines(fleet, kind, "under the power brake: look at its power supply", machine_of, duties, policy)
    together = together_finding(kind, said, place_of, Severity.CRITICAL, evidence=shown, since=since)
    return Judged(judge, [*machines, *together])


THERMAL_THROTTLE = Rule(tells=(_HEAT,), needs=_HeatAsked, judge=thermal_throttle, unshown=OVER_TIME)
POWER_BRAKE = Rule(tells=(_BRAKE,), needs=_BrakeAsked, judge=power_brake, unshown=OVER_TIME)
