"""Owners of deleted Pods, from kube-state-metrics' series in Prometheus.

Metrics and labels are those of kube-state-metrics v2 (docs/metrics/workload); v1 writes `<none>` where v2 leaves a
label empty. Without honorLabels, `namespace`, `pod` and `container` are its own, and `exported_*` those of the object.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from gpuwatch.facts.model.telemetry import Gap, GapKind, PodRef
from gpuwatch.sources.telemetry.gaps import failed
from gpuwatch.sources.telemetry.labels import Labels
from gpuwatch.sources.telemetry.promql import in_batches
from gpuwatch.sources.telemetry.samples import AnswerRow, Expression, Function, SampleStore, Selector, TelemetryError

_NAMES_AT_ONCE = 100
"""Pod names in one query: a name has up to 253 characters, and VictoriaMetrics accepts queries of 16 KiB."""
_CONTAINER = ("container", "exported_container")
_OWNER = ("owner_kind", "owner_name", "owner_is_controller")
_NONE = ("", "<none>")
_PARENTS = {"ReplicaSet": ("kube_replicaset_owner", "replicaset"), "Job": ("kube_job_owner", "job_name")}
"""Kinds whose own owner kube-state-metrics exports: the metric, and the label that names the child."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastPod:
    """A Pod as kube-state-metrics last exported it; None is unknown. workload: Workload.id (`Kind/namespace/name`) of
    the top owner, the Pod itself without a controller; '' if unknown. cpu_cores, memory_bytes: requests of the Pod."""

    workload: str = ""
    cpu_cores: float | None = None
    memory_bytes: float | None = None
    started: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """One run of a Job. workload: Workload.id of its top owner, the Job itself without one; '' if unknown."""

    job: str
    workload: str
    started: datetime
    completed: datetime | None


def pod_owners(
    store: SampleStore, start: datetime, end: datetime, pods: Collection[PodRef]
) -> tuple[Mapping[PodRef, PastPod], tuple[Gap, ...]]:
    """Owners and requests of these Pods in (start, end]; Pods without a series are left out. The workload is '' where
    the owner of its ReplicaSet or Job is unknown, and where Pods with one name had different owners."""
    if not pods:
        return {}, ()
    asked = KubeStateMetrics(store, end, round((end - start).total_seconds()))
    owners = asked.about_pods("kube_pod_owner", pods, _OWNER)
    if not owners and not asked.gaps:
        detail = (
            f"no series of kube_pod_owner for {len(pods)} Pods that are gone, so their workloads stay unknown; "
            "Prometheus has to scrape kube-state-metrics, and its metric allow list has to name it"
        )
        return {}, (Gap(kind=GapKind.SIGNAL_MISSING, what="owners of Pods", detail=detail),)
    tops = _tops(asked, owners)
    requests = asked.about_pods("kube_pod_container_resource_requests", pods, ("resource", *_CONTAINER))
    starts = asked.about_pods("kube_pod_start_time", pods, ())
    found: dict[PodRef, PastPod] = {}
    for pod in sorted(owners.keys() | requests.keys() | starts.keys()):
        began = max((row.value for row in starts.get(pod, ())), default=None)
        found[pod] = PastPod(
            workload=tops.get(pod, ""),
            cpu_cores=_requested(requests.get(pod, ()), "cpu"),
            memory_bytes=_requested(requests.get(pod, ()), "memory"),
            started=datetime.fromtimestamp(began, UTC) if began else None,
        )
    return found, tuple(asked.gaps)


def job_runs(store: SampleStore, start: datetime, end: datetime) -> tuple[tuple[JobRun, ...], tuple[Gap, ...]]:
    """Jobs that existed in (start, end], by name, with start and completion times."""
    asked = KubeStateMetrics(store, end, round((end - start).total_seconds()))
    times: list[dict[tuple[str, str], float]] = []
    for metric in ("kube_job_status_start_time", "kube_job_status_completion_time"):
        rows = asked.rows([Selector(metric)], ("namespace", "exported_namespace", "job_name"))
        times.append({(namespace_of(row.labels), row.labels.get("job_name", "")): row.value for row in rows})
    started, completed = times
    parents = _parents(asked, "Job", started)
    runs = []
    for job, began in sorted(started.items()):
        ended = completed.get(job)
        # A Job of the same name may have completed before this one began.
        done = None if ended is None or ended < began else datetime.fromtimestamp(ended, UTC)
        runs.append(
            JobRun(
                job=_id("Job", job),
                workload=parents.get(job, ""),
                started=datetime.fromtimestamp(began, UTC),
                completed=done,
            )
        )
    return tuple(runs), tuple(asked.gaps)


_Name = tuple[str, str]  # namespace and name


@dataclass(slots=True)
class KubeStateMetrics:
    """Queries about (at − window, at]; one that fails is a Gap and an empty answer."""

    store: SampleStore
    at: datetime
    window_seconds: int
    what: str = "owners of Pods"
    gaps: list[Gap] = field(default_factory=list)
    _labels: tuple[str, ...] = ("pod", "exported_pod")

    def rows(self, selectors: Iterable[Selector], by: tuple[str, ...]) -> list[AnswerRow]:
        questions = [Expression(each, Function.LAST_IN_WINDOW, self.window_seconds, by=by) for each in selectors]
        found: list[AnswerRow] = []
        for question, answer in zip(questions, self.store.evaluate_many(questions, self.at), strict=True):
            if isinstance(answer, TelemetryError):
                gap = failed(f"{self.what} ({question.selector.metric})", answer)
                if gap not in self.gaps:
                    self.gaps.append(gap)
            else:
                found += answer
        return found

    def about_pods(self, metric: str, pods: Collection[PodRef], more: tuple[str, ...]) -> dict[PodRef, list[AnswerRow]]:
        wanted = frozenset(pods)
        names = {pod.partition("/")[2] for pod in pods}
        chosen = [
            Selector(metric, (one,)) for label in self._labels for one in in_batches(label, names, _NAMES_AT_ONCE)
        ]
        found: dict[PodRef, list[AnswerRow]] = {}
        present: set[str] = set()
        for row in self.rows(chosen, ("namespace", "pod", "exported_namespace", "exported_pod", *more)):
            pod = f"{namespace_of(row.labels)}/{row.labels.get('exported_pod') or row.labels.get('pod', '')}"
            if pod in wanted:
                found.setdefault(pod, []).append(row)
                present.add("exported_pod" if row.labels.get("exported_pod") else "pod")
        # All metrics come from the same scrape, so later queries need only this label.
        self._labels = tuple(label for label in self._labels if label in present) or self._labels
        return found


def _tops(asked: KubeStateMetrics, owners: Mapping[PodRef, Iterable[AnswerRow]]) -> dict[PodRef, str]:
    controllers: dict[PodRef, tuple[str, _Name]] = {}
    tops: dict[PodRef, str] = {}
    for pod, rows in owners.items():
        namespace, _, name = pod.partition("/")
        found = _controllers(rows)
        if not found:
            tops[pod] = _id("Pod", (namespace, name))
        elif len(found) == 1:
            kind, owner = found.pop()
            controllers[pod] = (kind, (namespace, owner))
    above: dict[str, Mapping[_Name, str]] = {
        kind: _parents(asked, kind, {child for each, child in controllers.values() if each == kind})
        for kind in _PARENTS
    }
    for pod, (kind, owner_name) in controllers.items():
        tops[pod] = above[kind].get(owner_name, "") if kind in above else _id(kind, owner_name)
    return tops


def _parents(asked: KubeStateMetrics, kind: str, children: Collection[_Name]) -> dict[_Name, str]:
    """Workload.id of the owner of each ReplicaSet or Job, itself without a controller; left out where unknown."""
    metric, label = _PARENTS[kind]
    names = {name for _, name in children}
    chosen = [Selector(metric, (one,)) for one in in_batches(label, names, _NAMES_AT_ONCE)]
    found: dict[_Name, list[AnswerRow]] = {}
    for row in asked.rows(chosen, ("namespace", "exported_namespace", label, *_OWNER)) if chosen else ():
        found.setdefault((namespace_of(row.labels), row.labels.get(label, "")), []).append(row)
    parents: dict[_Name, str] = {}
    for child in children:
        controllers = _controllers(found.get(child, ()))
        if child in found and not controllers:
            parents[child] = _id(kind, child)
        elif len(controllers) == 1:
            above, name = controllers.pop()
            parents[child] = _id(above, (child[0], name))
    return parents


def _controllers(rows: Iterable[AnswerRow]) -> set[tuple[str, str]]:
    return {
        (row.labels.get("owner_kind", ""), row.labels.get("owner_name", ""))
        for row in rows
        if row.labels.get("owner_is_controller") == "true" and row.labels.get("owner_kind", "") not in _NONE
    }


def _id(kind: str, name: _Name) -> str:
    return f"{kind}/{name[0]}/{name[1]}"


def namespace_of(labels: Labels) -> str:
    return labels.get("exported_namespace") or labels.get("namespace", "")


def _requested(rows: Iterable[AnswerRow], resource: str) -> float | None:
    """The greatest value of each container: after a restart kube-state-metrics has a second series of each."""
    values: dict[str, float] = {}
    for row in rows:
        if row.labels.get("resource") == resource:
            name = row.labels.get("exported_container") or row.labels.get("container", "")
            values[name] = max(values.get(name, row.value), row.value)
    return sum(values.values()) if values else None
