"""The past of Nodes and of containers with GPUs, step by step, from kube-state-metrics' series in Prometheus: metrics
of its default list (docs/metrics/, v2), in both ways of scraping it. And of free GPUs, from gpuwatch's own."""

import re
from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeAlias, TypeVar

import numpy as np

from gpuwatch.facts.frameworks.keys import LAST_CHECKPOINT, PREFIX, time_in
from gpuwatch.facts.model.ledger import (
    ENDINGS,
    Checkpoint,
    ClusterHistory,
    ContainerHistory,
    LossCause,
    NodeHistory,
    Row,
)
from gpuwatch.facts.model.telemetry import Gap, GapKind, PodRef
from gpuwatch.sources.telemetry.gaps import failed
from gpuwatch.sources.telemetry.labels import Labels
from gpuwatch.sources.telemetry.owners import namespace_of
from gpuwatch.sources.telemetry.pod_runs import ACCELERATORS
from gpuwatch.sources.telemetry.promql import in_batches
from gpuwatch.sources.telemetry.samples import (
    Expression,
    Function,
    Matcher,
    MatchOp,
    SampleStore,
    Selector,
    Series,
    Steps,
    TelemetryError,
)
from gpuwatch.sources.telemetry.series import FloatArray
from gpuwatch.sources.telemetry.windows import aligned_steps

_K = TypeVar("_K")
_OfContainer: TypeAlias = Mapping[tuple[PodRef, str], FloatArray]

_NAMES_AT_ONCE = 50
"""Names of up to 253 characters; VictoriaMetrics accepts queries of 16 KiB."""
_CONDITION = "kube_node_status_condition"
_READY = (Matcher("condition", MatchOp.EQUAL, "Ready"), Matcher("status", MatchOp.EQUAL, "true"))
_OURS = (Matcher("key", MatchOp.MATCHES, f"{PREFIX.replace('.', '[.]')}.*"),)


def cluster_history(
    store: SampleStore,
    start: datetime,
    end: datetime,
    step_seconds: int,
    nodes: Collection[str],
    containers: Collection[tuple[PodRef, str]],
) -> tuple[ClusterHistory, tuple[Gap, ...]]:
    """The steps (start + i·step, start + (i+1)·step] of these Nodes and containers; both ends are rounded down to whole
    steps. A query that fails is a Gap, and its facts are unknown. Without any series of these Nodes there is a Gap."""
    steps = aligned_steps(start, end, step_seconds)
    asked = _Questions(store, steps)
    of_nodes, of_containers = _node_histories(asked, nodes), _container_histories(asked, containers)
    if nodes and not of_nodes and _CONDITION not in asked.failed:
        started = "" if of_containers else " and when Pods started"
        detail = (
            f"no series of {_CONDITION} for these Nodes, so it is unknown when they were out of service{started}; "
            "Prometheus has to scrape kube-state-metrics, and its metric allow list has to name it"
        )
        asked.gaps.append(Gap(kind=GapKind.SIGNAL_MISSING, what="history of Nodes and Pods", detail=detail))
    free = _free_histories(asked)
    if nodes and not free and _FREE not in asked.failed:
        detail = (
            f"no series of {_FREE}, so it is unknown which of the free GPUs a request could use; `gpuwatch run` has to "
            "run, and Prometheus has to scrape it"
        )
        asked.gaps.append(Gap(kind=GapKind.SIGNAL_MISSING, what="history of free GPUs", detail=detail))
    return (
        ClusterHistory(
            start=steps.start,
            step_seconds=step_seconds,
            nodes=of_nodes,
            containers=of_containers,
            free=free,
            checkpoints=_checkpoints(asked),
        ),
        tuple(asked.gaps),
    )


def _node_histories(asked: "_Questions", nodes: Collection[str]) -> dict[str, NodeHistory]:
    labels = ("exported_node", "node")

    def of(metric: str, *matchers: Matcher) -> dict[str, FloatArray]:
        return asked.about(metric, labels, {*nodes}, matchers, (), _node_name)

    def counted(metric: str) -> dict[str, FloatArray]:
        """Added up here: while kube-state-metrics moves there are two series of each resource."""
        total: dict[str, FloatArray] = {}
        each = asked.about(metric, labels, {*nodes}, (ACCELERATORS,), ("resource",), _resource_of_node)
        for (name, _), values in each.items():
            before = total.get(name, blank)
            total[name] = np.where(np.isnan(before), values, before + np.nan_to_num(values))
        return total

    ready, ours = of(_CONDITION, *_READY), of("kube_node_spec_taint", *_OURS)
    if not ready:
        return {}
    unschedulable, blank = of("kube_node_spec_unschedulable"), np.full(asked.steps.count, np.nan)
    capacity, allocatable = counted("kube_node_status_capacity"), counted("kube_node_status_allocatable")
    reported = np.logical_or.reduce([~np.isnan(values) for values in ready.values()])
    found = {}
    for name in sorted(nodes):
        is_ready, closed = ready.get(name, blank), unschedulable.get(name, blank)
        tainted, untainted = np.nan_to_num(ours.get(name, blank)) > 0, asked.unknown("kube_node_spec_taint")
        found[name] = NodeHistory(
            name=name,
            # A Node without a row among others that have one is gone, or not yet there.
            ready=_packed(np.where(np.isnan(is_ready) & reported, 0.0, is_ready)),
            cordoned=_packed(np.where(tainted | (closed > 0), 1.0, closed + untainted)),
            capacity=_packed(capacity.get(name, blank)),
            allocatable=_packed(allocatable.get(name, blank)),
        )
    return found


def _container_histories(
    asked: "_Questions", containers: Collection[tuple[PodRef, str]]
) -> dict[tuple[PodRef, str], ContainerHistory]:
    names, labels = {pod.partition("/")[2] for pod, _ in containers}, ("exported_pod", "pod")

    def of(metric: str, name: Callable[[Labels], _K], *more: str) -> dict[_K, FloatArray]:
        by = ("namespace", "exported_namespace", *more)
        return asked.about(f"kube_pod_{metric}", labels, names, (), by, name)

    def ended(metric: str) -> _OfContainer:
        found: dict[tuple[PodRef, str], FloatArray] = {}
        told = of(f"container_status_{metric}", _reason_of_container, "reason", *of_container)
        for (pod, container, reason), values in told.items():
            code = np.where(values > 0, ENDINGS.index(_REASONS.get(reason, LossCause.ERROR)), np.nan)
            found[pod, container] = np.fmax(found.get((pod, container), np.nan), code)
        return found

    of_container = ("container", "exported_container")
    by_uid = of("container_status_running", _container_of_pod, "uid", *of_container)
    told = ("container_state_started", "container_status_restarts_total")
    starts, restarts = (of(metric, _container_of_pod, "uid", *of_container) for metric in told)
    unstarted = sum((asked.unknown(f"kube_pod_{metric}") for metric in told), np.zeros(asked.steps.count))
    started = _newest_starts(by_uid, starts, restarts, unstarted, asked.steps.start.timestamp())
    running, begun = _by_container(by_uid), _by_container(starts)
    init, deleted = of("init_container_status_running", _pod_name), of("deletion_timestamp", _pod_name)
    blank = np.full(asked.steps.count, np.nan)
    reported: dict[PodRef, FloatArray] = {}
    for (pod, _), values in running.items():
        reported[pod] = np.fmax(reported.get(pod, blank), values * 0.0)  # 0 where the Pod has a row
    codes = (ended("terminated_reason"), ended("last_terminated_reason"))
    images = of("container_info", _image_of_container, "image", "image_spec", *of_container)
    newest = sorted(images, key=lambda key: (int(np.max(np.flatnonzero(~np.isnan(images[key])), initial=-1)), key))
    image_of = {(pod, container): image for pod, container, image in newest}
    no_init = asked.unknown("kube_pod_init_container_status_running")
    not_deleted = asked.unknown("kube_pod_deletion_timestamp")
    found = {}
    for pod, container in sorted(containers):
        runs, zero = running.get((pod, container)), reported.get(pod)
        if runs is None or zero is None:
            continue
        there = np.flatnonzero(~np.isnan(zero))
        span = slice(int(there[0]), int(there[-1]) + 1)
        found[pod, container] = ContainerHistory(
            pod=pod,
            container=container,
            first=span.start,
            running=_flags(runs[span]),
            init=_flags(np.fmax(init.get(pod, blank), zero + no_init)[span]),
            started=_packed(started[pod, container][span]),
            deleting=_flags(np.where(deleted.get(pod, blank) > 0, 1.0, zero + not_deleted)[span]),
            ended=_flags(_ended(codes, (pod, container), runs, begun.get((pod, container), blank))[span]),
            image=image_of.get((pod, container), ""),
        )
    return found


def _by_container(by_uid: "_OfContainers") -> dict[tuple[PodRef, str], FloatArray]:
    found: dict[tuple[PodRef, str], FloatArray] = {}
    for (pod, container, _), values in by_uid.items():
        found[pod, container] = np.fmax(found.get((pod, container), np.nan), values)
    return found


def _ended(
    codes: tuple[_OfContainer, _OfContainer], name: tuple[PodRef, str], running: FloatArray, begun: FloatArray
) -> FloatArray:
    """`ContainerHistory.ended`: while it runs again, or waits to, how it ended before; else how it ended for good.
    begun: its start, which is exported unless it waits."""
    for_good, before = (each.get(name, np.full(len(running), np.nan)) for each in codes)
    waits = np.isnan(begun) & np.isnan(for_good)
    return np.where((running == 1) | waits, before, for_good)


_REASONS: Mapping[str, LossCause | None] = {"Completed": None, "OOMKilled": LossCause.OUT_OF_MEMORY}
"""kube-state-metrics tells others too: Error, Evicted, ContainerCannotRun, DeadlineExceeded."""


_OfContainers: TypeAlias = Mapping[tuple[PodRef, str, str], FloatArray]
"""By Pod, container and uid of the Pod."""


def _newest_starts(
    running: _OfContainers, started: _OfContainers, restarts: _OfContainers, unstarted: FloatArray, at_least: float
) -> dict[tuple[PodRef, str], FloatArray]:
    """Newest start by then, by Pod and container: 0 before the first one of the Pod that is there; a Pod that was made
    anew under the same name has another uid. Unknown where it ran and no start is exported; at_least where it restarted
    and no scrape saw a start, as one in CrashLoopBackOff may. unstarted: 0, or NaN where a missing start proves
    nothing."""
    found: dict[tuple[PodRef, str], FloatArray] = {}
    for key, runs in sorted(running.items(), key=lambda each: int(np.argmax(~np.isnan(each[1])))):
        fell = np.where(restarts.get(key, runs * np.nan) > 0, at_least, np.nan)
        newest = np.maximum.accumulate(np.nan_to_num(np.fmax(started.get(key, runs * np.nan), fell)))
        has_run = np.maximum.accumulate(np.nan_to_num(runs)) > 0
        known = np.where(newest > 0, newest, np.where(np.isnan(runs) | has_run, np.nan, unstarted))
        before = found.get(key[:2])
        there = np.maximum.accumulate(~np.isnan(runs))
        found[key[:2]] = known if before is None else np.where(there, known, before)
    return found


def _checkpoints(asked: "_Questions") -> dict[PodRef, tuple[Checkpoint, ...]]:
    """From kube_pod_annotations, which has a series for each value of the annotation."""
    names = ("namespace", "exported_namespace", "pod", "exported_pod", _SAVED)
    found: dict[PodRef, list[Checkpoint]] = {}
    for series in asked.grid(Selector("kube_pod_annotations", (Matcher(_SAVED, MatchOp.MATCHES, ".+"),)), names):
        if (at := time_in(series.labels, _SAVED)) is not None and len(series.times):
            seen = datetime.fromtimestamp(series.times[-1], UTC)
            found.setdefault(_pod_name(series.labels), []).append(Checkpoint(seen=seen, at=at))
    return {pod: tuple(sorted(each, key=lambda item: item.seen)) for pod, each in found.items()}


_SAVED = f"annotation_{re.sub('[^a-z0-9]', '_', LAST_CHECKPOINT)}"
"""The annotation as kube-state-metrics names it."""


def _free_histories(asked: "_Questions") -> dict[tuple[str, str], dict[Row, "array[float]"]]:
    """From gpuwatch's own metric. Its value at a step's end counts: of two moments, the parts would not fit together.
    A step without one of the four rows, or without a free GPU, is unknown."""
    found: defaultdict[tuple[str, str], dict[str, FloatArray]] = defaultdict(dict)
    for series in asked.grid(Selector(_FREE), ("pool", "gpu_model", "row"), Function.LAST):
        pool, model, row = (series.labels.get(label, "") for label in ("pool", "gpu_model", "row"))
        found[pool, model][row] = asked.steps.values(series)
    histories = {}
    for of, rows in found.items():
        if rows.keys() >= {*_FREE_ROWS, "unknown"}:
            total = np.sum([*rows.values()], axis=0)
            total = np.where(total > 0, total, np.nan)
            histories[of] = {row: _packed(rows[row] / total) for row in _FREE_ROWS}
    return histories


_FREE = "gpuwatch_free_gpus"
_FREE_ROWS = (Row.WAITED_FOR, Row.UNREACHABLE, Row.USABLE)


@dataclass(slots=True)
class _Questions:
    """Range queries over the steps; one that fails is a Gap and an empty answer."""

    store: SampleStore
    steps: Steps
    gaps: list[Gap] = field(default_factory=list)
    failed: set[str] = field(default_factory=set)  # metrics

    def unknown(self, metric: str) -> FloatArray:
        """0 in each step, NaN where the metric's query failed: then a missing series proves nothing."""
        return np.full(self.steps.count, np.nan if metric in self.failed else 0.0)

    def about(
        self,
        metric: str,
        labels: Sequence[str],
        names: Collection[str],
        matchers: tuple[Matcher, ...],
        by: tuple[str, ...],
        name: Callable[[Labels], _K],
    ) -> dict[_K, FloatArray]:
        """The series of these objects by name, the greatest where several have one name. labels: that may name them."""
        found: dict[_K, FloatArray] = {}
        for label in labels:
            for one in in_batches(label, names, _NAMES_AT_ONCE):
                for series in self.grid(Selector(metric, (*matchers, one)), (*labels, *by)):
                    # A scrape target's own label may have a Node's name too.
                    if label != labels[0] and labels[0] in series.labels:
                        continue
                    key, values = name(series.labels), self.steps.values(series)
                    found[key] = np.fmax(found[key], values) if key in found else values
        return found

    def grid(
        self, selector: Selector, by: tuple[str, ...], function: Function = Function.LAST_IN_WINDOW
    ) -> Sequence[Series]:
        question = Expression(selector, function, 0 if function is Function.LAST else self.steps.step_seconds, by=by)
        try:
            return self.store.grid(question, self.steps)
        except TelemetryError as error:
            self.failed.add(selector.metric)
            gap = failed(f"history of Nodes and Pods ({selector.metric})", error)
            if gap not in self.gaps:
                self.gaps.append(gap)
            return ()


def _node_name(labels: Labels) -> str:
    return labels.get("exported_node") or labels.get("node", "")


def _resource_of_node(labels: Labels) -> tuple[str, str]:
    return _node_name(labels), labels.get("resource", "")


def _pod_name(labels: Labels) -> PodRef:
    return f"{namespace_of(labels)}/{labels.get('exported_pod') or labels.get('pod', '')}"


def _container_name(labels: Labels) -> tuple[PodRef, str]:
    return _pod_name(labels), labels.get("exported_container") or labels.get("container", "")


def _container_of_pod(labels: Labels) -> tuple[PodRef, str, str]:
    return *_container_name(labels), labels.get("uid", "")


def _reason_of_container(labels: Labels) -> tuple[PodRef, str, str]:
    return *_container_name(labels), labels.get("reason", "")


def _image_of_container(labels: Labels) -> tuple[PodRef, str, str]:
    """As the spec names it, since kube-state-metrics 2.7; before as the runtime does, which may be a digest alone."""
    return *_container_name(labels), labels.get("image_spec") or labels.get("image", "")


def _flags(values: FloatArray) -> "array[float]":
    """In half of the memory: a large fleet has tens of thousands of containers."""
    return array("f", values.astype(np.float32).tobytes())


def _packed(values: FloatArray) -> "array[float]":
    return array("d", values.tobytes())
