"""Readings: WindowStats answered for every device, from as few queries as it takes.

A device is answered by its most preferred metric that has an answer; the next one is asked only where a device is
left. What a device's pieces (its Pods one after the other, the Pods that share it, its MIG rows) make together is
decided by how many samples each has: more than fit into the window one after the other were there at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime

from gpuwatch.catalog.metrics import MetricRow, plausible_range
from gpuwatch.model.telemetry import (
    Device,
    DeviceId,
    Gap,
    Readings,
    Schema,
    Scope,
    Signal,
    Statistic,
    Vendor,
    WindowStat,
)
from gpuwatch.telemetry import labels as door
from gpuwatch.telemetry.gaps import BLANK, dropped, failed, missing
from gpuwatch.telemetry.inventory import Inventory
from gpuwatch.telemetry.pieces import Piece, joined, lowest_counts, needs_samples
from gpuwatch.telemetry.promql import any_of
from gpuwatch.telemetry.questions import IN_UNITS, Question, found_rows, in_si, question, shown
from gpuwatch.telemetry.samples import (
    Expression,
    Matcher,
    Row,
    SampleStore,
    StoreRefused,
    StoreUnreachable,
    TelemetryError,
)

_ROWS_AT_ONCE = 100_000
_STATS_AT_FIRST, _STATS_AT_LEAST = 8, 4
_DEVICES_IN_MATCHER = 300

_Key = tuple[DeviceId, str]
"""A device, and the variant or ''."""


@dataclass(slots=True)
class _Asked:
    """A WindowStat on its way: what to ask at each level of preference, and what has been answered."""

    stat: WindowStat
    levels: list[list[Question]]
    level: int = 0
    answers: dict[_Key, float] = field(default_factory=dict)
    answered: set[DeviceId] = field(default_factory=set)

    def questions(self) -> list[Question]:
        return self.levels[self.level]


@dataclass(slots=True)
class _Trouble:
    """What went wrong, by signal: it becomes one Gap per signal."""

    errors: dict[Signal, TelemetryError] = field(default_factory=dict)
    blank: dict[Signal, set[DeviceId]] = field(default_factory=dict)
    implausible: dict[Signal, set[DeviceId]] = field(default_factory=dict)

    def gaps(self) -> Iterator[Gap]:
        by_kind: dict[type[TelemetryError], list[Signal]] = {}
        for signal, error in self.errors.items():
            by_kind.setdefault(type(error), []).append(signal)
        for kind, signals in by_kind.items():
            # A server that does not answer at all says so once; a question that it cannot answer has its own reason.
            together = [signals] if kind in (StoreUnreachable, StoreRefused) else [[signal] for signal in signals]
            for members in together:
                yield failed(f"signal {', '.join(members)}", self.errors[members[0]])
        for signal in dict.fromkeys((*self.blank, *self.implausible)):
            blank, implausible = self.blank.get(signal, set()), self.implausible.get(signal, set())
            yield dropped(signal, len(blank), len(implausible - blank), *plausible_range(signal))


def read(
    store: SampleStore,
    rows: Sequence[MetricRow],
    stats: Sequence[WindowStat],
    at: datetime,
    schema: Schema,
    inventory: Inventory,
) -> tuple[Readings, tuple[Gap, ...]]:
    """Answers to all stats about the devices of the inventory. What fails or is missing is a Gap per signal."""
    reader = _Reader(store, at, schema, inventory)
    asked: list[_Asked] = []
    gaps: list[Gap] = []
    for stat in dict.fromkeys(stats):
        found = found_rows(stat.signal, rows, schema)
        if not found:
            gaps.append(missing(stat.signal, rows, schema.vocabularies))
            continue
        levels: dict[int, list[Question]] = {}
        for row, signal in found:
            per_process = any(row.metric == metric for metric, _ in inventory.per_process)
            each = question(stat, row, signal.scale, per_process, schema.interval_seconds)
            levels.setdefault(row.preference, []).append(each)
        asked.append(_Asked(stat, list(levels.values())))
    start, at_once = 0, _STATS_AT_FIRST
    while start < len(asked):
        reader.rows = 0
        batch = asked[start : start + at_once]
        reader.answer(batch)
        start += len(batch)
        # Long windows have many Pods per device, so that what an answer weighs is only known from the ones before.
        at_once = max(_STATS_AT_LEAST, _ROWS_AT_ONCE * len(batch) // max(1, reader.rows))
    return reader.readings(asked), (*dict.fromkeys(gaps), *reader.trouble.gaps())


@dataclass(slots=True)
class _Level:
    """Answers of one stat at one level of preference: values that are final, and pieces by device and variant.

    Devices of `values` are what the signal is about (the GPU, or its instance); of `pieces` always instances.
    """

    values: dict[_Key, float] = field(default_factory=dict)
    pieces: dict[_Key, list[Piece]] = field(default_factory=dict)

    def take(self, key: _Key, value: float, lowest: bool) -> None:
        known = self.values.get(key)
        if known is None or (value < known if lowest else value > known):
            self.values[key] = value


class _Reader:
    def __init__(self, store: SampleStore, at: datetime, schema: Schema, inventory: Inventory) -> None:
        self._store = store
        self._at = at
        self._interval_seconds = schema.interval_seconds
        self._inventory = inventory
        self._ids = {device.id for device in inventory.devices} | {device.uuid for device in inventory.devices}
        self.trouble = _Trouble()
        self.rows = 0

    def answer(self, batch: Sequence[_Asked]) -> None:
        """Asks one level of preference after the other, until no device is left or no level."""
        pending = list(batch)
        while pending:
            questions = [question for each in pending for question in each.questions()]
            answers = self._evaluated(e for q in questions for e in (q.value, q.beside) if e is not None)
            levels = [self._level(each, answers) for each in pending]
            answers.clear()
            samples = self._samples(pending, levels)
            for each, level in zip(pending, levels, strict=True):
                self._join(each, level, samples)
            pending = [each for each in pending if self._next_level(each)]

    def _evaluated(self, expressions: Iterable[Expression]) -> dict[Expression, list[Row] | TelemetryError]:
        distinct = list(dict.fromkeys(expressions))
        if not distinct:
            return {}
        answers = self._store.evaluate_many(distinct, self._at, self._inventory.partition)
        self.rows += sum(len(answer) for answer in answers if not isinstance(answer, TelemetryError))
        return dict(zip(distinct, answers, strict=True))

    def _level(self, asked: _Asked, answers: Mapping[Expression, list[Row] | TelemetryError]) -> _Level:
        usable: list[tuple[Question, list[Row]]] = []
        excluded: set[_Key] = set()
        for each in asked.questions():
            answer, beside = answers[each.value], answers[each.beside] if each.beside else []
            if isinstance(answer, TelemetryError):
                self.trouble.errors.setdefault(asked.stat.signal, answer)
            elif isinstance(beside, TelemetryError):
                self.trouble.errors.setdefault(asked.stat.signal, beside)
            else:
                usable.append((each, answer))
                excluded |= self._excluded(each, beside)
        level = _Level()
        for each, answer in usable:
            self._take(level, each, answer, excluded)
        if self._inventory.per_process:
            level.pieces = {key: self._without_processes(parts) for key, parts in level.pieces.items()}
        return level

    def _take(self, level: _Level, question: Question, answer: Iterable[Row], excluded: Set[_Key]) -> None:
        """The usable rows of one answer."""
        metric, statistic = question.row, question.stat.statistic
        vendor, variant_label, is_physical = metric.vendor, metric.variant_label, metric.scope is Scope.PHYSICAL
        in_units, lowest = statistic in IN_UNITS, lowest_counts(statistic, metric)
        for row in answer:
            labels, value = row.labels, row.value
            found = door.ids(labels, vendor)
            if found is None or math.isnan(value):
                continue
            device = found[is_physical]
            variant = labels.get(variant_label, "") if variant_label else ""
            if device not in self._ids or (excluded and (device, variant) in excluded):
                continue
            if in_units:
                if (value == 0 and metric.zero_means_absent) or self._is_no_measurement(question, value, device):
                    continue
                value = in_si(value, question.scale)
            if question.pieces:
                level.pieces.setdefault((found[0], variant), []).append(Piece(value, question, labels))
            else:
                level.take((device, variant), value, lowest)

    def _without_processes(self, parts: list[Piece]) -> list[Piece]:
        """Where an exporter writes rows per process beside that of the device, the latter alone."""
        per_process = self._inventory.per_process
        if not any((part.question.row.metric, part.labels.get("instance", "")) in per_process for part in parts):
            return parts
        of_device = {part.labels.get("instance", "") for part in parts if not self._is_held(part)}
        return [
            part
            for part in parts
            if not self._is_held(part)
            or (instance := part.labels.get("instance", "")) not in of_device
            or (part.question.row.metric, instance) not in per_process
        ]

    def _is_held(self, part: Piece) -> bool:
        targets = self._inventory.scrape_targets
        return door.holder(part.labels, part.question.row.vendor, targets) is not None

    def _excluded(self, question: Question, beside: Iterable[Row]) -> set[_Key]:
        """Devices (and variants) that this answer says nothing of, because of what is beside it."""
        excluded: set[_Key] = set()
        appearance = question.stat.statistic in (Statistic.APPEARED, Statistic.DISAPPEARED)
        for row in beside:
            found = door.ids(row.labels, question.row.vendor)
            if found is None:
                continue
            key = (found[question.row.scope is Scope.PHYSICAL], row.labels.get(question.row.variant_label, ""))
            if appearance or self._is_no_measurement(question, row.value, key[0]):
                excluded.add(key)
        return excluded

    def _is_no_measurement(self, question: Question, value: float, device: DeviceId) -> bool:
        low, high = question.plausible
        if low <= value <= high or math.isnan(value):
            return False
        trouble = self.trouble.blank if value >= BLANK else self.trouble.implausible
        trouble.setdefault(question.stat.signal, set()).add(device)
        return True

    def _samples(
        self, asked: Sequence[_Asked], levels: Sequence[_Level]
    ) -> dict[tuple[Expression, tuple[tuple[str, str], ...]], float]:
        """Samples behind the pieces whose value as a whole depends on them, by `Piece.samples_key`."""
        needed: dict[Expression, tuple[Question, set[DeviceId]]] = {}
        for each, level in zip(asked, levels, strict=True):
            for (device, _), parts in level.pieces.items():
                if needs_samples(each.stat.statistic, parts):
                    for part in parts:
                        needed.setdefault(part.question.counts, (part.question, set()))[1].add(device)
        restricted = {plain: asks.counts_of(*self._only(devices)) for plain, (asks, devices) in needed.items()}
        answers = self._evaluated(restricted.values())
        samples: dict[tuple[Expression, tuple[tuple[str, str], ...]], float] = {}
        for plain, expression in restricted.items():
            answer = answers[expression]
            if isinstance(answer, TelemetryError):
                self.trouble.errors.setdefault(needed[plain][0].stat.signal, answer)
                continue
            for row in answer:
                samples[plain, tuple(sorted(row.labels.items()))] = row.value
        return samples

    def _only(self, devices: Set[DeviceId]) -> tuple[Matcher, ...]:
        """A matcher for few devices; none where they are many or have no label in common."""
        if len(devices) > _DEVICES_IN_MATCHER:
            return ()
        chosen = [self._inventory.matchers[device][0] for device in devices if self._inventory.matchers.get(device)]
        names = {matcher.label for matcher in chosen}
        if len(chosen) < len(devices) or len(names) != 1:
            return ()
        return (any_of(names.pop(), sorted({matcher.value for matcher in chosen})),)

    def _join(
        self,
        asked: _Asked,
        level: _Level,
        samples: Mapping[tuple[Expression, tuple[tuple[str, str], ...]], float],
    ) -> None:
        statistic = asked.stat.statistic
        fitting = asked.stat.window_seconds / self._interval_seconds if self._interval_seconds else None
        for (_, variant), parts in level.pieces.items():
            first = parts[0]
            counts: list[float] | None = None
            if statistic is Statistic.COUNT:
                counts = [part.value for part in parts]
            elif needs_samples(statistic, parts):
                known = [samples.get(part.samples_key) for part in parts]
                counts = [count for count in known if count is not None]
                if len(counts) < len(known):
                    continue  # without the number of samples the whole is not known; its Gap is written
            value = first.value if len(parts) == 1 else joined(statistic, parts, counts, fitting)
            found = door.ids(first.labels, first.question.row.vendor)
            assert found is not None
            device = found[first.question.row.scope is Scope.PHYSICAL]
            level.take((device, variant), value, lowest_counts(statistic, first.question.row))
        for key, value in level.values.items():
            if key[0] not in asked.answered:
                asked.answers[key] = value
        asked.answered.update(device for device, _ in level.values)

    def _next_level(self, asked: _Asked) -> bool:
        asked.level += 1
        if asked.level >= len(asked.levels):
            return False
        vendors = {question.row.vendor for question in asked.questions()}
        physical = asked.questions()[0].row.scope is Scope.PHYSICAL
        return any(
            (device.uuid if physical else device.id) not in asked.answered
            for device in self._inventory.devices
            if device.present and device.vendor in vendors
        )

    def readings(self, asked: Sequence[_Asked]) -> Readings:
        values: dict[str, dict[str, float]] = {}
        variants: dict[str, dict[str, dict[str, float]]] = {}
        promql: dict[str, str] = {}
        for each in asked:
            key = each.stat.key
            questions = [question for level in each.levels for question in level]
            promql[key] = shown(self._store, questions)
            if any(question.row.variant_label for question in questions):
                by_device: dict[str, dict[str, float]] = {}
                for (device, variant), value in each.answers.items():
                    # A row without a variant says that there is none: the device has an answer, and it is empty.
                    of_device = by_device.setdefault(device, {})
                    if variant:
                        of_device[variant] = value
                variants[key] = by_device
            else:
                values[key] = {device: value for (device, _), value in each.answers.items()}
        promql.update(_matchers(self._inventory.devices, self._inventory.matchers))
        return Readings(values=values, variants=variants, promql=promql)


def _matchers(devices: Iterable[Device], matchers: Mapping[DeviceId, tuple[Matcher, ...]]) -> dict[str, str]:
    """`Readings.query` knows how NVIDIA devices are picked; the others are written down."""
    return {
        f"matcher:{device.id}": ",".join(f'{each.label}="{each.value}"' for each in matchers.get(device.id, ()))
        for device in devices
        if device.vendor is not Vendor.NVIDIA
    }
