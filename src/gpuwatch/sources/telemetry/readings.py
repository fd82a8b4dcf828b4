"""Readings: WindowStats of every device, from few queries. A device's value comes from its most preferred metric with
an answer; the next metric is queried only if devices are left. Pieces of a device (consecutive Pods, Pods that share
it, its MIG rows) are simultaneous where they have more samples than fit into the window one after the other."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TypeAlias

from gpuwatch.facts.model.telemetry import Device, DeviceId, Gap, Readings, Schema, Scope, Vendor, WindowStat
from gpuwatch.sources.telemetry import labels as row_labels
from gpuwatch.sources.telemetry.answers import LevelAnswers, RowKey, Samples, Trouble, row_key
from gpuwatch.sources.telemetry.discovery import selector
from gpuwatch.sources.telemetry.gaps import missing
from gpuwatch.sources.telemetry.inventory import Inventory
from gpuwatch.sources.telemetry.questions import Question, found_rows, question, shown
from gpuwatch.sources.telemetry.samples import AnswerRow, Expression, Matcher, SampleStore, TelemetryError

_ROWS_AT_ONCE = 100_000
_STATS_AT_FIRST, _STATS_AT_LEAST = 8, 4

_Answered: TypeAlias = Mapping[Expression, list[AnswerRow] | TelemetryError]


@dataclass(slots=True)
class _PendingStat:
    """A WindowStat, its questions by level of preference, and its answers: variant or '' → device → value."""

    stat: WindowStat
    levels: list[list[Question]]
    level: int = 0
    answers: dict[str, dict[DeviceId, float]] = field(default_factory=dict)
    answered: set[DeviceId] = field(default_factory=set)

    def questions(self) -> list[Question]:
        return self.levels[self.level]


def read_stats(
    store: SampleStore, stats: Sequence[WindowStat], at: datetime, schema: Schema, inventory: Inventory
) -> tuple[Readings, tuple[Gap, ...]]:
    """All stats of the inventory's devices. A signal that fails or is missing is a Gap."""
    reader = _StatReader(store, at, schema, inventory)
    asked: list[_PendingStat] = []
    gaps: list[Gap] = []
    for stat in dict.fromkeys(stats):
        found = found_rows(stat.signal, schema)
        if not found:
            gaps.append(missing(stat.signal, schema.vocabularies))
            continue
        levels: dict[int, list[Question]] = {}
        for row, signal in found:
            per_process = any(row.metric == metric for metric, _ in inventory.per_process)
            each = question(stat, row, signal.scale, per_process, schema.interval_seconds)
            levels.setdefault(row.preference, []).append(each)
        asked.append(_PendingStat(stat, list(levels.values())))
    # Questions about one signal share answers, such as the number of samples.
    signals = list(dict.fromkeys(each.stat.signal for each in asked))
    ordered = sorted(asked, key=lambda each: signals.index(each.stat.signal))
    start, at_once = 0, _STATS_AT_FIRST
    while start < len(ordered):
        reader.rows = 0
        batch = ordered[start : start + at_once]
        reader.answer(batch)
        start += len(batch)
        # The size of answers depends on the Pods per device in the window; earlier answers show it.
        at_once = max(_STATS_AT_LEAST, _ROWS_AT_ONCE * len(batch) // max(1, reader.rows))
    return reader.readings(asked), (*dict.fromkeys(gaps), *reader.trouble.gaps())


class _StatReader:
    def __init__(self, store: SampleStore, at: datetime, schema: Schema, inventory: Inventory) -> None:
        self._store = store
        self._at = at
        self._interval_seconds = schema.interval_seconds
        self._inventory = inventory
        self._known = {device.id for device in inventory.devices} | {device.uuid for device in inventory.devices}
        self.trouble = Trouble()
        self.rows = 0

    def answer(self, batch: Sequence[_PendingStat]) -> None:
        pending = list(batch)
        while pending:
            answers = self._evaluated(
                each
                for asked in pending
                for question in asked.questions()
                for each in (question.value, question.beside)
                if each is not None
            )
            levels = [self._level(each, answers) for each in pending]
            samples = self._samples(levels, answers)
            answers.clear()
            for each, level in zip(pending, levels, strict=True):
                self._join(each, level, samples)
            pending = [each for each in pending if self._next_level(each)]

    def _evaluated(self, expressions: Iterable[Expression]) -> dict[Expression, list[AnswerRow] | TelemetryError]:
        distinct = list(dict.fromkeys(expressions))
        if not distinct:
            return {}
        answers = self._store.evaluate_many(distinct, self._at, self._inventory.partition)
        self.rows += sum(len(answer) for answer in answers if not isinstance(answer, TelemetryError))
        return dict(zip(distinct, answers, strict=True))

    def _level(self, asked: _PendingStat, answers: _Answered) -> LevelAnswers:
        level = LevelAnswers(self._known, self.trouble)
        usable: list[tuple[Question, list[AnswerRow]]] = []
        for each in asked.questions():
            answer, beside = answers[each.value], answers[each.beside] if each.beside else []
            if isinstance(answer, TelemetryError):
                self.trouble.errors.setdefault(asked.stat.signal, answer)
            elif isinstance(beside, TelemetryError):
                self.trouble.errors.setdefault(asked.stat.signal, beside)
            else:
                usable.append((each, self._of_gpus(each, answer)))
                level.exclude(each, beside)
        for each, answer in usable:
            level.take(each, answer)
        level.divide(self._inventory.per_process, self._inventory.scrape_targets)
        return level

    def _of_gpus(self, asked: Question, rows: list[AnswerRow]) -> list[AnswerRow]:
        """Rows of a machine as rows of each of its GPUs."""
        if asked.row.scope is not Scope.MACHINE:
            return rows
        values = {row.labels.get("instance", ""): row.value for row in rows}
        seen = ((device.uuid, values.get(device.exporter)) for device in self._inventory.devices)
        return [AnswerRow({"UUID": uuid}, value) for uuid, value in seen if value is not None]

    def _samples(self, levels: Sequence[LevelAnswers], answers: _Answered) -> Samples:
        """Numbers of samples of the pieces that need them, taken from `answers` where possible."""
        needed: dict[Expression, tuple[Question, set[DeviceId]]] = {}
        for level in levels:
            for each, devices in level.unweighted():
                needed.setdefault(each.counts, (each, set()))[1].update(devices)
        restricted = {
            plain: replace(plain, selector=selector(asks.row, *self._inventory.matching(devices)))
            for plain, (asks, devices) in needed.items()
            if plain not in answers
        }
        counted = self._evaluated(restricted.values())
        samples: dict[Expression, dict[RowKey, float]] = {}
        for plain, (asks, devices) in needed.items():
            answer = counted[restricted[plain]] if plain in restricted else answers[plain]
            if isinstance(answer, TelemetryError):
                self.trouble.errors.setdefault(asks.stat.signal, answer)
                continue
            samples[plain] = {
                row_key(row.labels): row.value
                for row in answer
                if (found := row_labels.ids(row.labels, asks.row.vendor)) and found[0] in devices
            }
        return samples

    def _join(self, asked: _PendingStat, level: LevelAnswers, samples: Samples) -> None:
        fitting = asked.stat.window_seconds / self._interval_seconds if self._interval_seconds else None
        level.join(asked.stat.statistic, samples, fitting)
        before = asked.answered
        for variant, values in level.values.items():
            new = {device: value for device, value in values.items() if device not in before} if before else values
            asked.answers.setdefault(variant, {}).update(new)
        asked.answered.update(*level.values.values())

    def _next_level(self, asked: _PendingStat) -> bool:
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

    def readings(self, asked: Sequence[_PendingStat]) -> Readings:
        values: dict[str, dict[str, float]] = {}
        variants: dict[str, dict[str, dict[str, float]]] = {}
        promql: dict[str, str] = {}
        for each in asked:
            key = each.stat.key
            questions = [question for level in each.levels for question in level]
            promql[key] = shown(self._store, questions)
            if any(question.row.variant_label for question in questions):
                by_device: dict[str, dict[str, float]] = {}
                for variant, of_variant in each.answers.items():
                    for device, value in of_variant.items():
                        # A row without a variant means that nothing happened, so the device's answer is empty.
                        of_device = by_device.setdefault(device, {})
                        if variant:
                            of_device[variant] = value
                variants[key] = by_device
            else:
                values[key] = each.answers.get("", {})
        promql.update(_matchers(self._inventory.devices, self._inventory.matchers))
        return Readings(values=values, variants=variants, promql=promql)


def _matchers(devices: Iterable[Device], matchers: Mapping[DeviceId, tuple[Matcher, ...]]) -> dict[str, str]:
    """Matchers for `Readings.query`, where they differ from its default."""
    return {
        f"matcher:{device.id}": ",".join(f'{each.label}="{each.value}"' for each in chosen)
        for device in devices
        if (chosen := matchers.get(device.id, ())) and (device.vendor is not Vendor.NVIDIA or chosen[0].label != "UUID")
    }
