"""One metric of a recording: which series a selector matches, and how labels group them, cached for each cycle."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuwatch.sources.telemetry.samples import Matcher, MatchOp, QueryFailed, Selector
from gpuwatch.sources.telemetry.series import IntArray, MetricSamples

Groups = tuple[Sequence[Mapping[str, str]], IntArray]
"""Labels of each group, in the order of their values, and each series' group number."""


class LoadedMetric:
    """samples: what range functions see. markers: the staleness markers of the same series."""

    def __init__(self, recorded: MetricSamples, known_times_ms: Iterable[IntArray] = ()) -> None:
        """known_times_ms: columns of other metrics; an equal one is shared, which halves the memory."""
        samples, self.markers = recorded.parted()
        alike = (times_ms for times_ms in known_times_ms if np.array_equal(times_ms, samples.times_ms))
        self.samples = replace(samples, times_ms=next(alike, samples.times_ms))
        self.arrays = (self.samples.times_ms, self.samples.values, self.markers.times_ms, self.markers.values)
        self._groups: dict[tuple[str, ...], Groups] = {}
        self._columns: dict[str, tuple[Sequence[str], IntArray]] = {}
        starts, times_ms = self.samples.starts, self.samples.times_ms
        self._filled = np.flatnonzero(np.diff(starts))
        self._first_ms = times_ms[starts[self._filled]]
        self._last_ms = times_ms[starts[self._filled + 1] - 1]

    def within(self, after_ms: int, until_ms: int) -> IntArray:
        """Indices of the series with a sample up to until_ms and one after after_ms: candidates for the range."""
        return self._filled[(self._first_ms <= until_ms) & (self._last_ms > after_ms)]

    def has_samples(self, after_ms: int, until_ms: int) -> bool:
        edges = self.samples.positions(self.within(after_ms, until_ms), np.array([after_ms, until_ms]))
        return bool((edges[:, 0] < edges[:, 1]).any())

    def chosen(self, selector: Selector) -> IntArray:
        """Indices of the series that all matchers accept. Raises QueryFailed for an invalid matcher."""
        accepted = np.ones(len(self.samples.labels), np.bool_)
        for matcher in selector.matchers:
            if matcher.label == "__name__":
                raise QueryFailed(f"{selector.metric}: the metric's name is set twice; remove the matcher on __name__")
            values, codes = self._column(matcher.label)
            fitting = _fitting(matcher, values)
            accepted &= np.array([value in fitting for value in values], np.bool_)[codes]
        return np.flatnonzero(accepted)

    def groups(self, by: tuple[str, ...]) -> Groups:
        """The series grouped by the labels `by`; a group's labels leave out empty ones."""
        if by not in self._groups:
            columns = [self._column(label) for label in by]
            everywhere = np.zeros(len(self.samples.labels), np.int64)
            rows, numbers = np.unique(
                np.column_stack((everywhere, *(codes for _, codes in columns))), axis=0, return_inverse=True
            )
            labels = tuple(
                {
                    name: value
                    for name, (values, _), code in zip(by, columns, codes, strict=True)
                    if (value := values[code])
                }
                for _, *codes in rows.tolist()
            )
            self._groups[by] = labels, numbers.ravel()
        return self._groups[by]

    def _column(self, label: str) -> tuple[Sequence[str], IntArray]:
        """The sorted values of a label, and the index of each series' value; '' where it lacks the label."""
        if label not in self._columns:
            values = [labels.get(label, "") for labels in self.samples.labels]
            distinct = sorted(set(values))
            code = {value: index for index, value in enumerate(distinct)}
            self._columns[label] = distinct, np.array([code[value] for value in values], np.int64)
        return self._columns[label]


def _fitting(matcher: Matcher, values: Sequence[str]) -> set[str]:
    if matcher.op is MatchOp.EQUAL:
        return {matcher.value}
    candidates = pa.array(values, pa.string())
    try:
        # Arrow matches with RE2, as Prometheus does.
        matched = pc.match_substring_regex(candidates, f"^(?s:{matcher.value})$")
    except pa.ArrowInvalid as error:
        raise QueryFailed(f"{matcher.label}{matcher.op}{matcher.value!r} is no valid matcher: {error}") from error
    return set(candidates.filter(pc.invert(matched) if matcher.op is MatchOp.DIFFERS else matched).to_pylist())
