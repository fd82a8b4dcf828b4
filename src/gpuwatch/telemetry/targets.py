"""The scrape targets of GPU metrics, and the clusters that series name."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from gpuwatch.model.telemetry import Gap, PodRef, Schema
from gpuwatch.telemetry import labels as door
from gpuwatch.telemetry.discovery import LOOKBACK_SECONDS, by_labels, selector
from gpuwatch.telemetry.gaps import failed
from gpuwatch.telemetry.promql import any_of
from gpuwatch.telemetry.samples import (
    Combine,
    Expression,
    Function,
    SampleStore,
    Selector,
    TelemetryError,
)
from gpuwatch.telemetry.sightings import looked_back_metrics

CLUSTER_LABELS = ("cluster", "cluster_name", "k8s_cluster", "k8s_cluster_name", "kubernetes_cluster")
"""Labels that tell clusters apart in one server: external labels of Prometheus and Thanos, and OpenTelemetry's."""

UP_SECONDS = 86_400
"""How far back targets are looked for: the longest window of a health rule, so that a target that has ended is known
as long as its samples count."""


@dataclass(frozen=True, slots=True)
class Target:
    """instance, job: '' where the rows lack them. pods: the target's own, by its series `up`; none where that names
    none. writes: it has GPU metrics now or in the look-back. has_devices: among them one that shows every device."""

    instance: str
    job: str
    pods: frozenset[PodRef]
    writes: bool
    has_devices: bool


def targets(store: SampleStore, at: datetime, schema: Schema) -> tuple[tuple[Target, ...], tuple[Gap, ...]]:
    """Targets with GPU metrics, and all targets in the last day of their jobs."""
    place = ("instance", "job")
    shown, gaps = _rows(store, at, schema, place)
    any_metric = [Selector(name) for name in dict.fromkeys(item.metric for item in schema.signals)]
    wrote, more = _asked(store, at, any_metric, place, Function.LAST)
    devices = {(row.get("instance", ""), row.get("job", "")) for row in shown}
    writing = devices | {(row.get("instance", ""), row.get("job", "")) for row in wrote}
    pods: dict[tuple[str, str], set[PodRef]] = {key: set() for key in writing}
    if jobs := sorted({job for _, job in pods if job}):
        chosen = Selector("up", (any_of("job", jobs),))
        wanted = Expression(chosen, Function.LAST_IN_WINDOW, UP_SECONDS, by=(*place, "pod", "namespace"))
        try:
            for row in store.evaluate(wanted, at):
                own = pods.setdefault((row.labels.get("instance", ""), row.labels.get("job", "")), set())
                if pod := door.target({**row.labels, "__name__": "up"}):
                    own.add(pod)
        except TelemetryError as error:
            more.append(failed("targets of the exporters' jobs", error))
    found = (Target(*key, frozenset(own), key in writing, key in devices) for key, own in sorted(pods.items()))
    return tuple(found), (*gaps, *more)


def places(store: SampleStore, at: datetime, schema: Schema) -> tuple[list[door.Labels], tuple[Gap, ...]]:
    """Distinct cluster labels, host labels and instances of the devices' rows; the cluster labels alone where no label
    has two values."""
    found, gaps = _rows(store, at, schema, CLUSTER_LABELS)
    if all(len({row.get(label, "") for row in found}) <= 1 for label in CLUSTER_LABELS):
        return found, tuple(gaps)
    found, more = _rows(store, at, schema, by_labels(CLUSTER_LABELS, door.NODE_LABELS, ("instance",)))
    return found, (*gaps, *more)


def _rows(store: SampleStore, at: datetime, schema: Schema, by: Sequence[str]) -> tuple[list[door.Labels], list[Gap]]:
    return _asked(store, at, [selector(row) for row in looked_back_metrics(schema)], by, Function.LAST_IN_WINDOW)


def _asked(
    store: SampleStore, at: datetime, selectors: Sequence[Selector], by: Sequence[str], function: Function
) -> tuple[list[door.Labels], list[Gap]]:
    """Distinct labels of the series, now or in the look-back."""
    window = LOOKBACK_SECONDS if function is Function.LAST_IN_WINDOW else 0
    wanted = [Expression(each, function, window, combine=Combine.COUNT, by=tuple(by)) for each in selectors]
    answers = store.evaluate_many(wanted, at) if wanted else []
    gaps = [failed("targets of GPU metrics", answer) for answer in answers if isinstance(answer, TelemetryError)][:1]

    def labels() -> Iterator[door.Labels]:
        for answer in answers:
            if not isinstance(answer, TelemetryError):
                yield from (row.labels for row in answer)

    return [dict(each) for each in dict.fromkeys(tuple(sorted(each.items())) for each in labels())], gaps
