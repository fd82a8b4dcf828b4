"""From answer rows to device values, for one WindowStat. The rows of a device with several are pieces to join: a piece
begins whenever a label changes, mostly the Pod. Pieces follow each other, or are simultaneous: replicas of a shared
GPU, rows per process, two exporters on one host."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TypeAlias

from gpuwatch.facts.catalog.metrics import MetricRow
from gpuwatch.facts.model.telemetry import DeviceId, Gap, PodRef, Scope, Signal, Statistic
from gpuwatch.sources.telemetry import labels as row_labels
from gpuwatch.sources.telemetry.gaps import BLANK, Dropped, failed
from gpuwatch.sources.telemetry.labels import SLOT_LABELS, Labels, holder
from gpuwatch.sources.telemetry.questions import ADDED, FRACTIONS, WEIGHTED, Question, in_si
from gpuwatch.sources.telemetry.samples import AnswerRow, Expression, StoreRefused, StoreUnreachable, TelemetryError

RowKey: TypeAlias = frozenset[tuple[str, str]]

_TOLERANCE = 1.05
"""Pieces with over 5 % more samples than the median interval allows in a row are simultaneous."""


@dataclass(slots=True)
class Piece:
    """One answer row of a Question with pieces."""

    value: float
    question: Question
    labels: Labels

    @property
    def instance(self) -> str:
        return self.labels.get("instance", "")

    def is_held(self, targets: frozenset[PodRef]) -> bool:
        return holder(self.labels, self.question.row.vendor, targets) is not None

    @property
    def slot(self) -> tuple[str, ...]:
        """Pieces in different slots may be simultaneous."""
        return tuple(self.labels.get(name, "") for name in SLOT_LABELS)

    @property
    def row(self) -> RowKey:
        return row_key(self.labels)


def row_key(labels: Labels) -> RowKey:
    return frozenset(labels.items())


def takes_lowest(statistic: Statistic, row: MetricRow) -> bool:
    """Whether the device's value is the lowest of simultaneous rows, not the highest."""
    return statistic is Statistic.MIN or (statistic is Statistic.LAST and row.combine == "min")


def needs_samples(statistic: Statistic, pieces: Sequence[Piece]) -> bool:
    """Whether the joined value depends on the number of samples of each piece."""
    if len(pieces) < 2 or statistic is Statistic.COUNT:
        return False
    if statistic in WEIGHTED:
        return len({piece.value for piece in pieces}) > 1
    return statistic in ADDED and sum(piece.value != 0 for piece in pieces) > 1


def joined(
    statistic: Statistic, pieces: Sequence[Piece], samples: Sequence[float] | None, fitting: float | None
) -> float:
    """The device's value. samples: number of samples of each piece; None where the value does not depend on it.
    fitting: samples that fit into the window one after the other; None where the interval is unknown, and then pieces
    count as simultaneous."""
    values = [piece.value for piece in pieces]
    if takes_lowest(statistic, pieces[0].question.row):
        return min(values)
    if samples is None or statistic not in ADDED | WEIGHTED:
        return max(values)
    if statistic in WEIGHTED:
        total = sum(samples)
        # Replicas have equal values, so counting them several times changes nothing.
        return sum(value * count for value, count in zip(values, samples, strict=True)) / total
    if _follow(samples, fitting):
        return sum(values)
    slots: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    for piece, value, count in zip(pieces, values, samples, strict=True):
        slots.setdefault(piece.slot, []).append((value, count))
    return max(
        sum(value for value, _ in members)
        if _follow([count for _, count in members], fitting)
        else max(value for value, _ in members)
        for members in slots.values()
    )


def _follow(samples: Sequence[float], fitting: float | None) -> bool:
    return fitting is not None and sum(samples) <= fitting * _TOLERANCE + 1


_Key: TypeAlias = tuple[DeviceId, str]
"""Device, and variant or ''."""

Samples: TypeAlias = Mapping[Expression, Mapping[RowKey, float]]
"""Number of samples of each piece, by `Question.counts` and `Piece.row`."""


@dataclass(slots=True)
class Trouble:
    """Errors and dropped values by signal; each becomes a Gap."""

    errors: dict[Signal, TelemetryError] = field(default_factory=dict)
    dropped: Dropped = field(default_factory=Dropped)

    def gaps(self) -> Iterator[Gap]:
        by_kind: dict[type[TelemetryError], list[Signal]] = {}
        for signal, error in self.errors.items():
            by_kind.setdefault(type(error), []).append(signal)
        for kind, signals in by_kind.items():
            # An unreachable server is one Gap for all signals; a failed query is one Gap for its signal.
            together = [signals] if kind in (StoreUnreachable, StoreRefused) else [[signal] for signal in signals]
            for members in together:
                yield failed(f"signal {', '.join(members)}", self.errors[members[0]])
        yield from self.dropped.gaps()


@dataclass(slots=True)
class LevelAnswers:
    """Answers to one WindowStat at one level of preference. known: ids of the devices and GPUs in question. values:
    variant ('' where the signal has none) → GPU or instance, by the signal's scope → value; complete after `join`.
    pieces: of instances that have several rows."""

    known: Set[DeviceId]
    trouble: Trouble
    values: dict[str, dict[DeviceId, float]] = field(default_factory=dict)
    pieces: dict[_Key, list[Piece]] = field(default_factory=dict)
    _excluded: set[_Key] = field(default_factory=set)
    _in_pieces: list[tuple[Question, Sequence[AnswerRow]]] = field(default_factory=list)
    _single: dict[str, dict[DeviceId, float]] = field(default_factory=dict)
    _several: set[_Key] = field(default_factory=set)
    _gpu_of: dict[DeviceId, str] = field(default_factory=dict)

    def exclude(self, question: Question, beside: Iterable[AnswerRow]) -> None:
        """Leaves out devices (and variants) whose `beside` row rules out an answer."""
        is_maximum = question.stat.statistic in FRACTIONS
        low, high = question.plausible
        for row in beside:
            found = row_labels.ids(row.labels, question.row.vendor)
            if found is None or (is_maximum and (low <= row.value <= high or math.isnan(row.value))):
                continue
            device = found[question.row.scope is Scope.PHYSICAL]
            self._excluded.add((device, question.row.variant(row.labels)))
            if is_maximum:
                self._no_measurement(question, row.value, device)

    def take(self, question: Question, rows: Sequence[AnswerRow]) -> None:
        if question.pieces:
            self._in_pieces.append((question, rows))
            for instance, device, variant, value, _ in self._usable(question, rows):
                of_variant = self._single.setdefault(variant, {})
                if instance in of_variant:
                    self._several.add((instance, variant))
                of_variant[instance] = value
                if instance != device:
                    self._gpu_of[instance] = device
        else:
            lowest = takes_lowest(question.stat.statistic, question.row)
            for _, device, variant, value, _ in self._usable(question, rows):
                self._put(device, variant, value, lowest)

    def divide(self, per_process: Set[tuple[str, str]], targets: frozenset[PodRef]) -> None:
        """Finds the pieces, after the last `take`. Rows per process beside the device's row are dropped."""
        if not self._several:
            return
        for question, rows in self._in_pieces:
            for instance, _, variant, value, row in self._usable(question, rows):
                if (instance, variant) in self._several:
                    self.pieces.setdefault((instance, variant), []).append(Piece(value, question, row.labels))
        for key, parts in self.pieces.items():
            del self._single[key[1]][key[0]]
            if any((part.question.row.metric, part.instance) in per_process for part in parts):
                of_device = {part.instance for part in parts if not part.is_held(targets)}
                self.pieces[key] = [
                    part
                    for part in parts
                    if not part.is_held(targets)
                    or part.instance not in of_device
                    or (part.question.row.metric, part.instance) not in per_process
                ]

    def unweighted(self) -> Iterator[tuple[Question, set[DeviceId]]]:
        """Questions, and instances whose pieces cannot be joined before the number of samples of each is known."""
        for question, _ in self._in_pieces if self.pieces else ():
            instances = {
                instance
                for (instance, _), parts in self.pieces.items()
                if needs_samples(question.stat.statistic, parts) and any(part.question is question for part in parts)
            }
            if instances:
                yield question, instances

    def join(self, statistic: Statistic, samples: Samples, fitting: float | None) -> None:
        """Fills `values`. fitting: samples that fit into the window one after the other, if known."""
        # By id: comparing expressions is slow.
        samples_of = {id(question): samples.get(question.counts, {}) for question, _ in self._in_pieces}
        for (instance, variant), parts in self.pieces.items():
            counts: list[float] | None = None
            if statistic is Statistic.COUNT:
                counts = [part.value for part in parts]
            elif needs_samples(statistic, parts):
                known = [samples_of[id(part.question)].get(part.row) for part in parts]
                counts = [count for count in known if count is not None]
                if len(counts) < len(known):
                    continue  # the value is unknown; the failed count has its Gap
            self._single[variant][instance] = (
                parts[0].value if len(parts) == 1 else joined(statistic, parts, counts, fitting)
            )
        lowest = any(takes_lowest(statistic, question.row) for question, _ in self._in_pieces)
        for variant, of_instance in self._single.items():
            if self._gpu_of or variant in self.values:
                for instance, value in of_instance.items():
                    self._put(self._gpu_of.get(instance, instance), variant, value, lowest)
            else:
                self.values[variant] = of_instance

    def _usable(
        self, question: Question, rows: Iterable[AnswerRow]
    ) -> Iterator[tuple[DeviceId, DeviceId, str, float, AnswerRow]]:
        """Instance, device that the signal describes (the instance or its GPU), variant, value in SI, and the row."""
        metric, known, excluded = question.row, self.known, self._excluded
        vendor, has_variants, is_physical = metric.vendor, bool(metric.variant_label), metric.scope is Scope.PHYSICAL
        in_units, scale = question.in_units, question.scale if question.in_units else 1.0
        zero_is_none = in_units and metric.zero_means_absent
        low, high = question.plausible if in_units else (-math.inf, math.inf)
        for row in rows:
            found = row_labels.ids(row.labels, vendor)
            if found is None:
                continue
            device = found[is_physical]
            variant = metric.variant(row.labels) if has_variants else ""
            if device not in known or (excluded and (device, variant) in excluded):
                continue
            value = row.value
            if value == 0 and zero_is_none:
                continue
            if not low <= value <= high:
                self._no_measurement(question, value, device)
                continue
            yield found[0], device, variant, in_si(value, scale) if scale != 1 else value, row

    def _no_measurement(self, question: Question, value: float, device: DeviceId) -> None:
        if not math.isnan(value):
            self.trouble.dropped.add(question.stat.signal, device, blank=value >= BLANK)

    def _put(self, device: DeviceId, variant: str, value: float, lowest: bool) -> None:
        of_variant = self.values.setdefault(variant, {})
        other = of_variant.get(device)
        if other is None or (value < other if lowest else value > other):
            of_variant[device] = value
