"""Discovery: the vocabularies, signals, labels and sampling interval that telemetry has here, as a Schema. An absent
signal is left out of the Schema; only the absence of all of them is a Gap."""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from gpuwatch.facts.catalog.metrics import MetricRow, metric_rows
from gpuwatch.facts.model.telemetry import Gap, GapKind, Schema, Scope, SignalFound, Vendor
from gpuwatch.sources.telemetry import labels as row_labels
from gpuwatch.sources.telemetry.gaps import BLANK, failed
from gpuwatch.sources.telemetry.promql import any_of, none_of
from gpuwatch.sources.telemetry.samples import (
    AnswerRow,
    Combine,
    Expression,
    Function,
    Matcher,
    MatchOp,
    SampleStore,
    Selector,
    TelemetryError,
)

LOOKBACK_SECONDS = 3600
_SERIES_FOR_INTERVAL = 9
LEFT_OUT_AT_ONCE = 64
"""Instances in one matcher: VictoriaMetrics accepts queries of 16 KiB, most of which the devices' names take."""
_PERCENT_FROM = 1.5
"""A *_RATIO metric above this is in whole percent (DCGM 4.6 has the new name as an alias of the integer percent):
no ratio reaches it, and 2 % is the smallest percentage above it."""


def selector(row: MetricRow, *more: Matcher) -> Selector:
    fixed = tuple(Matcher(label, MatchOp.EQUAL, value) for label, value in row.matchers)
    return Selector(row.metric, fixed + more)


def by_labels(*groups: Sequence[str]) -> tuple[str, ...]:
    """Label names for `Expression.by`, each once."""
    return tuple(dict.fromkeys(name for group in groups for name in group))


PLACE = ("instance", "job")
Places = dict[str, dict[tuple[str, str], int]]
"""Metric → instance and job of each target that has it now, or where none has, in the look-back → how many series."""

MOST_SERIES = 50_000
"""Of one metric. More are not read: a cycle takes about 30 KiB for each GPU (docs/cost.md), and the limit is 2 GiB."""
_MOST_OF_TARGET = 1_000
"""16 GPUs with 7 MIG instances each, all with nine Pods in the look-back."""
_ROW_PER_DEVICE = frozenset(
    row.metric
    for row in metric_rows()
    if row.scope is not Scope.MACHINE and not row.variant_label and row.combine not in ("sum", "avg")
)


def too_many(places: Places) -> tuple[tuple[Matcher, ...], Gap] | None:
    """Matchers that leave out targets, and a Gap, where they have more series than are read: first those with more than
    any exporter, then the job with most. At most so many targets of the jobs that stay as one matcher may name."""
    series: dict[tuple[str, str], int] = {}
    for metric in _ROW_PER_DEVICE.intersection(places):
        series.update({place: max(count, series.get(place, 0)) for place, count in places[metric].items()})
    if sum(series.values()) <= MOST_SERIES:
        return None
    of_job = Counter[str]()
    for (_, job), count in series.items():
        of_job[job] += count if count <= _MOST_OF_TARGET else 0
    total = of_job.total()
    for job, count in of_job.most_common():
        if total > MOST_SERIES:
            total, of_job[job] = total - count, 0
    left = {place: count for place, count in series.items() if count > _MOST_OF_TARGET or not of_job[place[1]]}
    (instance, job), most = max(left.items(), key=lambda item: item[1])
    jobs, largest = sorted(+of_job), sorted(left, key=lambda place: -left[place])
    alone = [place[0] for place in largest if of_job[place[1]]]
    detail = (
        f"They have {sum(left.values())} series of one metric, more than a fleet has, and are not read; most has "
        f"{instance} of job {job}: {most}. Find out who runs it, and give its job a sample_limit in Prometheus "
        "(sampleLimit of its ServiceMonitor). If they are of other clusters, set prometheus.matchers."
    )
    matchers = [any_of("job", jobs or ["-"])] + ([none_of("instance", alone[:LEFT_OUT_AT_ONCE])] if alone else [])
    return tuple(matchers), Gap(kind=GapKind.UNTRUSTED, what=f"{len(left)} targets", detail=detail)


def discover(store: SampleStore, at: datetime, places: Places | None = None) -> tuple[Schema, tuple[Gap, ...]]:
    """The Schema of the hour before `at`. places: filled by the queries that are sent anyway. SignalFound.scale is the
    catalog's, except where *_RATIO metrics are in percent. Where exporters differ in that, a Gap replaces them."""
    try:
        names = store.metric_names(at, LOOKBACK_SECONDS)
    except TelemetryError as error:
        return Schema(backend=store.description), (failed("discovery of metrics", error),)
    existing = _existing_rows(names)
    if not existing:
        return Schema(backend=store.description), (_nothing(store),)
    gaps: list[Gap] = []
    counted: Places = {} if places is None else places
    found = _counted(store, existing, at, gaps, counted)
    if (flood := too_many(counted)) is not None:
        return Schema(backend=store.description), (flood[1],)
    samples: dict[str, list[AnswerRow]] = {}
    references: dict[str, MetricRow] = {}
    for vocabulary in dict.fromkeys(row.vocabulary for row in found):
        reference = max((row for row in found if row.vocabulary == vocabulary), key=lambda row: _rank(row, found[row]))
        labelled = _labelled(store, reference, at, gaps)
        if labelled is not None and not labelled:
            gaps.append(_unidentified(reference))
        if labelled:
            samples[vocabulary], references[vocabulary] = labelled, reference
    found = {row: count for row, count in found.items() if row.vocabulary in samples}
    percent, unclear = _percentages(store, found, at, gaps)
    signals = tuple(
        SignalFound(
            signal=row.signal,
            vocabulary=row.vocabulary,
            metric=row.metric,
            scale=row.scale * (0.01 if row.metric in percent else 1.0),
            devices=count,
        )
        for row, count in found.items()
        if row.metric not in unclear
    )
    widest = max(samples, key=lambda vocabulary: len(samples[vocabulary]), default="")
    rows = [(references[vocabulary].vendor, row) for vocabulary, answer in samples.items() for row in answer]
    schema = Schema(
        vocabularies=tuple(samples),
        signals=signals,
        node_labels=tuple(name for name in row_labels.NODE_LABELS if any(row.labels.get(name) for _, row in rows)),
        pod_labels=_pod_labels(rows),
        interval_seconds=_interval(store, references[widest], samples[widest], at, gaps) if samples else 0.0,
        backend=store.description,
    )
    return schema, tuple(gaps)


def place_of(labels: row_labels.Labels) -> tuple[str, str]:
    return labels.get("instance", ""), labels.get("job", "")


def _existing_rows(names: frozenset[str]) -> list[MetricRow]:
    """Catalog rows whose metric exists; a metric of two vocabularies counts for the one that has other metrics too."""
    existing = [row for row in metric_rows() if row.metric in names]
    claims: dict[str, set[str]] = {}
    for row in existing:
        claims.setdefault(row.metric, set()).add(row.vocabulary)
    certain = {next(iter(vocabularies)) for vocabularies in claims.values() if len(vocabularies) == 1}
    chosen: dict[tuple[object, ...], MetricRow] = {}
    for row in existing:
        claimants = claims[row.metric]
        if claimants & certain and row.vocabulary not in certain:
            continue
        chosen.setdefault((row.metric, row.signal, row.matchers), row)
    return list(chosen.values())


def _counted(
    store: SampleStore, rows: Sequence[MetricRow], at: datetime, gaps: list[Gap], places: Places
) -> dict[MetricRow, int]:
    """Rows that have series, and how many, now or else in the look-back. A row whose count failed is kept."""
    counts: dict[Selector, int] = {}
    open_selectors = list(dict.fromkeys(selector(row) for row in rows))
    unanswered: dict[Selector, TelemetryError] = {}
    # Series that have ended still show how the signal is exported, so the look-back is searched too.
    for function, window in ((Function.LAST, 0), (Function.LAST_IN_WINDOW, LOOKBACK_SECONDS)):
        expressions = [Expression(each, function, window, combine=Combine.COUNT, by=PLACE) for each in open_selectors]
        for chosen, answer in zip(open_selectors, store.evaluate_many(expressions, at), strict=True):
            if isinstance(answer, TelemetryError):
                unanswered[chosen] = answer
            elif answer:
                counts[chosen] = int(sum(row.value for row in answer))
                of_metric = places.setdefault(chosen.metric, {})
                of_metric.update((place_of(row.labels), int(row.value)) for row in answer)
                unanswered.pop(chosen, None)
        open_selectors = [each for each in open_selectors if each not in counts]
    if unanswered:
        first, error = next(iter(unanswered.items()))
        others = f" and {len(unanswered) - 1} other metrics" if len(unanswered) > 1 else ""
        gaps.append(failed(f"series of {first.metric}{others}", error))
    return {row: counts.get(each, 0) for row in rows if (each := selector(row)) in counts or each in unanswered}


def _rank(row: MetricRow, series: int) -> tuple[bool, bool, bool, int, bool]:
    """Highest for the metric that has one row per device for most devices; its labels stand for the exporter's."""
    names_gpus = row.scope is not Scope.MACHINE
    return (names_gpus, not row.variant_label, row.combine not in ("sum", "avg"), series, row.default_exported)


def _labelled(store: SampleStore, row: MetricRow, at: datetime, gaps: list[Gap]) -> list[AnswerRow] | None:
    """Rows of the reference metric that name a device, with all labels that labels.py reads; None on failure."""
    vendor = row.vendor
    device, holder = row_labels.IDENTITY_LABELS[vendor], row_labels.HOLDER_LABELS[vendor]
    names = by_labels(device, holder, ("pod", "namespace", "container"), row_labels.NODE_LABELS)
    expression = Expression(selector(row), Function.LAST_IN_WINDOW, LOOKBACK_SECONDS, by=names)
    try:
        answer = store.evaluate(expression, at)
    except TelemetryError as error:
        gaps.append(failed(f"labels of {row.metric}", error))
        return None
    return [each for each in answer if row_labels.identity(each.labels, vendor) is not None]


def _pod_labels(rows: Sequence[tuple[Vendor, AnswerRow]]) -> str:
    if any(row.labels.get("exported_pod") for _, row in rows):
        return "exported_*"
    return "native" if any(row_labels.holder(row.labels, vendor) for vendor, row in rows) else ""


def _interval(store: SampleStore, row: MetricRow, rows: Sequence[AnswerRow], at: datetime, gaps: list[Gap]) -> float:
    """Median seconds between samples of a few devices across the fleet; 0 where no series has two samples."""
    devices = sorted(
        {tuple(row_labels.device_matchers(each.labels, row.vendor)) for each in rows},
        key=lambda matchers: [matcher.value for matcher in matchers],
    )
    step = max(1, len(devices) // _SERIES_FOR_INTERVAL)
    distances: list[float] = []
    for matchers in devices[::step][:_SERIES_FOR_INTERVAL]:
        try:
            answer = store.raw(selector(row, *matchers), at - timedelta(seconds=LOOKBACK_SECONDS), at)
        except TelemetryError as error:
            gaps.append(failed("sampling interval", error))
            break
        for series in answer:
            distances.extend(later - earlier for earlier, later in zip(series.times, series.times[1:], strict=False))
    return round(statistics.median(distances), 3) if distances else 0.0


def _percentages(
    store: SampleStore, found: Iterable[MetricRow], at: datetime, gaps: list[Gap]
) -> tuple[frozenset[str], frozenset[str]]:
    """Metrics named ratio that are in percent, and those whose unit is unknown. DCGM changed the unit of all of them in
    one release, so they are judged together. Percentages are integers, so a maximum between 0 and 1 is a ratio."""
    metrics = {
        row.metric: row
        for row in found
        if row.metric.endswith("_RATIO") and "_PROF_" not in row.metric and row.scale == 1
    }
    expressions = [
        Expression(selector(row), Function.MAX, LOOKBACK_SECONDS, by=row_labels.IDENTITY_LABELS[row.vendor])
        for row in metrics.values()
    ]
    values: list[float] = []
    for metric, answer in zip(metrics, store.evaluate_many(expressions, at) if expressions else [], strict=True):
        if isinstance(answer, TelemetryError):
            # With the wrong scale a metric would be off by a factor of 100.
            gaps.append(failed(f"scale of {metric}", answer))
            return frozenset(), frozenset(metrics)
        values.extend(row.value for row in answer if row.value < BLANK)
    if not any(value > _PERCENT_FROM for value in values):
        return frozenset(), frozenset()
    if any(0 < value < 1 for value in values):
        detail = (
            "percentages on some exporters and ratios on others (DCGM 4.6 and 4.7 give them different units), so they "
            "are left out; bring all exporters to one version"
        )
        gaps.append(Gap(kind=GapKind.IMPLAUSIBLE, what=f"metrics {', '.join(metrics)}", detail=detail))
        return frozenset(), frozenset(metrics)
    return frozenset(metrics), frozenset()


def _nothing(store: SampleStore) -> Gap:
    examples: dict[str, str] = {}
    for row in metric_rows():
        if row.default_exported:
            examples.setdefault(row.vocabulary, row.metric)
    return Gap(
        kind=GapKind.SIGNAL_MISSING,
        what="GPU telemetry",
        detail=f"{store.description} has no sample of any GPU metric in the last {LOOKBACK_SECONDS // 60} minutes; "
        f"looked for {len({row.metric for row in metric_rows()})} metrics such as {', '.join(examples.values())}. "
        "Check that the exporter runs on the GPU Nodes, that Prometheus scrapes it (Status > Targets), that this is "
        "the right server and tenant, and that the time asked about lies within its retention",
    )


def _unidentified(row: MetricRow) -> Gap:
    labels = {Vendor.NVIDIA: "UUID", Vendor.AMD: "gpu_id", Vendor.INTEL: "uuid or pci_bdf", Vendor.GAUDI: "UUID"}
    return Gap(
        kind=GapKind.BAD_INPUT,
        what=f"vocabulary {row.vocabulary}",
        detail=f"no series of {row.metric} has the label {labels[row.vendor]}, so devices cannot be told apart; look "
        "for a labeldrop in the metricRelabelings of its ServiceMonitor",
    )
