"""A rule of health as one value: what it tells, what it asks of telemetry, and how it judges."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from gpuwatch.facts.model.decision import Finding
from gpuwatch.facts.model.telemetry import Readings, Signal, StateChange, Statistic, WindowStat
from gpuwatch.judge.fleet import MIN_COVERAGE_RATIO, REPORTING_SIGNALS, Fleet, GpuAnswers, Judge, PhysicalGpu, Tells
from gpuwatch.judge.health.policy import HealthPolicy

OVER_TIME = "it compares values over time"
FROM_OBJECTS = "it reads the cluster's objects"
NO_PORTS = "a GPU exporter shows no ports"


class Ask:
    """Takes the questions of one rule, and answers them where there is a fleet.

    A rule's needs are a class that asks all of them when it is made: its attributes are the questions, and the answers.
    Nothing can be asked later, since nobody would have fetched it.

    stats: what is asked, the best first. signals: those that the rule rests on, without `context` and the samples that
    show when a GPU reported. state_signals: those whose changes it reads. port_stats: of InfiniBand ports.
    """

    def __init__(self, policy: HealthPolicy, fleet: Fleet | None = None) -> None:
        self.policy = policy
        self.stats: dict[WindowStat, None] = {}
        self.signals: dict[Signal, None] = {}
        self.state_signals: dict[Signal, None] = {}
        self.port_stats: tuple[str, ...] = ()
        self._fleet = fleet
        self._readings = Readings() if fleet is None else fleet.snapshot.readings
        self._closed = False

    def __call__(
        self,
        signal: Signal,
        statistic: Statistic = Statistic.LAST,
        window_seconds: int = 0,
        parameter: float | None = None,
    ) -> GpuAnswers:
        found = self.context(signal, statistic, window_seconds, parameter)
        self.signals[signal] = None
        return found

    def context(
        self,
        signal: Signal,
        statistic: Statistic = Statistic.LAST,
        window_seconds: int = 0,
        parameter: float | None = None,
    ) -> GpuAnswers:
        """A statistic that says more about what others show, and nothing alone."""
        stat = WindowStat(signal, statistic, window_seconds, parameter)
        if self._closed:
            raise LookupError(f"{stat.key} was not declared among the needs of the rule, so it was not fetched")
        self.stats[stat] = None
        readings = self._readings
        return GpuAnswers(stat, readings, readings.values.get(stat.key, {}), readings.variants.get(stat.key, {}))

    def changes(self, signal: Signal) -> Mapping[str, Sequence[StateChange]]:
        """New values of a state signal within the change window, by GPU, oldest first."""
        if self._closed:
            raise LookupError(f"changes of {signal} were not declared among the needs of the rule")
        self.state_signals[signal] = None
        return {} if self._fleet is None else self._fleet.changes.get(signal, {})

    def reporting(self, window_seconds: int) -> Callable[[PhysicalGpu], bool]:
        """Whether a GPU reported through enough of the window to conclude that nothing happened."""
        return self._covered(
            window_seconds, [self.context(each, Statistic.COUNT, window_seconds) for each in REPORTING_SIGNALS]
        )

    def covered(self, window_seconds: int, signal: Signal) -> Callable[[PhysicalGpu], bool]:
        """Whether the signal has enough samples in the window."""
        return self._covered(window_seconds, [self(signal, Statistic.COUNT, window_seconds)])

    def _covered(self, window_seconds: int, counts: Sequence[GpuAnswers]) -> Callable[[PhysicalGpu], bool]:
        def enough(gpu: PhysicalGpu) -> bool:
            if self._fleet is None:
                return False
            schema = self._fleet.snapshot.telemetry_schema
            shares = (schema.share_of_samples(count.of(gpu), window_seconds) for count in counts)
            return any(share is not None and share >= MIN_COVERAGE_RATIO for share in shares)

        return enough

    def close(self) -> None:
        self._closed = True


class Nothing:
    """The needs of a rule that reads no statistic of GPUs."""

    def __init__(self, ask: Ask) -> None:
        pass


class Judged(NamedTuple):
    """each: the conclusion on each GPU; None where there is none. shared: on machines, jobs, places, the fleet."""

    each: Judge | None = None
    shared: Sequence[Finding] = ()


NeedsT = TypeVar("NeedsT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule(Generic[NeedsT]):
    """tells: the kinds of its findings. needs: the class of its questions. assesses: whether a GPU that it could judge
    has a known health; False where it says nothing about a GPU that reports and is well. unshown: why one read of the
    exporter cannot show what its findings rest on; '' where it can."""

    tells: tuple[Tells, ...]
    needs: Callable[[Ask], NeedsT]
    judge: Callable[[Fleet, NeedsT], Judged]
    assesses: bool = True
    unshown: str = ""

    @property
    def name(self) -> str:
        """`Finding.rule`, and its section in docs/rules/."""
        return self.tells[0].of_rule

    def asked(self, policy: HealthPolicy) -> Ask:
        """What it asks, without an answer."""
        ask = Ask(policy)
        self.needs(ask)
        return ask

    def judged(self, fleet: Fleet) -> Judged:
        ask = Ask(fleet.policy, fleet)
        needs = self.needs(ask)
        ask.close()
        return self.judge(fleet, needs)


def without_statistics(tells: Tells, find: Callable[[Fleet], Iterable[Finding]]) -> Rule[Nothing]:
    """A rule that reads the cluster's objects, and says nothing about a GPU that reports and is well."""
    by = lambda fleet, _: Judged(None, tuple(find(fleet)))  # noqa: E731
    return Rule(tells=(tells,), needs=Nothing, judge=by, assesses=False, unshown=FROM_OBJECTS)
