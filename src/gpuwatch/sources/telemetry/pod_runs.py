"""How Pods with accelerators ended, from kube-state-metrics' series in Prometheus: metrics of its default list
(docs/metrics/workload/pod-metrics.md, v2). Pods that get their devices by ResourceClaims have no such request and are
not found."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from gpuwatch.facts.model.telemetry import Gap, PodRun
from gpuwatch.sources.telemetry.owners import KubeStateMetrics, namespace_of
from gpuwatch.sources.telemetry.promql import in_batches
from gpuwatch.sources.telemetry.samples import AnswerRow, Matcher, MatchOp, SampleStore, Selector

ACCELERATORS = Matcher("resource", MatchOp.MATCHES, "nvidia_com_.+|amd_com_.+|gpu_intel_com_.+|habana_ai_gaudi")
_NAMESPACES_AT_ONCE = 200
"""Names of up to 63 characters; VictoriaMetrics accepts queries of 16 KiB."""
_NOW_SECONDS = 300
"""Prometheus' look-back."""
_POD = ("namespace", "exported_namespace", "pod", "exported_pod", "uid")
_CREATOR = ("created_by_kind", "created_by_name")
_LABELS = (*_POD, "node", "exported_node", "phase", "reason", "image", *_CREATOR)
_PHASE, _EXIT_CODE = "status_phase", "container_status_last_terminated_exitcode"
_REASONS = ("status_reason", "container_status_terminated_reason", "container_status_last_terminated_reason")
_REFUSED = "UnexpectedAdmissionError"
"""The kubelet could not start the Pod, for example because its device plugin had no healthy device left."""
_METRICS = (
    *(_PHASE, _EXIT_CODE, *_REASONS, "info", "container_info", "start_time", "container_state_started"),
    *("completion_time", "container_status_restarts_total", "deletion_timestamp"),
)

_ByPod: TypeAlias = Mapping[str, Sequence[AnswerRow]]


def pod_runs(store: SampleStore, at: datetime, window_seconds: int) -> tuple[tuple[PodRun, ...], tuple[Gap, ...]]:
    """Pods of (at − window, at]; () where a query failed, as incomplete facts would make a wrong comparison."""
    begin = at - timedelta(seconds=window_seconds)
    asked = KubeStateMetrics(store, at, window_seconds, "ends of Pods")
    found = _by_pod(asked.rows([Selector("kube_pod_container_resource_requests", (ACCELERATORS,))], _LABELS))
    if not found:
        return (), tuple(asked.gaps)
    exported = any("exported_pod" in row.labels for rows in found.values() for row in rows)
    label = "exported_namespace" if exported else "namespace"
    where = list(in_batches(label, {key.partition("/")[0] for key in found}, _NAMESPACES_AT_ONCE))

    def fact(metric: str, asked: KubeStateMetrics = asked) -> _ByPod:
        return _by_pod(asked.rows([Selector(f"kube_pod_{metric}", (each,)) for each in where], _LABELS))

    facts = {metric: fact(metric) for metric in _METRICS}
    now = fact(_PHASE, replace(asked, window_seconds=_NOW_SECONDS))
    if asked.gaps:
        return (), tuple(asked.gaps)

    def run(key: str) -> PodRun:
        def most(metric: str) -> float:
            return max((row.value for row in facts[metric].get(key, ())), default=0.0)

        def moment(*metrics: str) -> datetime | None:
            seconds = next(filter(None, map(most, metrics)), None)
            return None if seconds is None else datetime.fromtimestamp(seconds, UTC)

        def words(rows: _ByPod, label: str) -> list[str]:
            texts = {row.labels.get(label, "") for row in rows.get(key, ()) if row.value}
            return sorted(texts - {"", "<none>"})  # v1 writes <none> where v2 leaves a label empty

        over = {"Failed", "Succeeded"}.intersection(words(facts[_PHASE], "phase"))
        reasons = [word for metric in _REASONS for word in words(facts[metric], "reason")]
        reasons += [f"exit code {row.value:.0f}" for row in facts[_EXIT_CODE].get(key, ())]
        images, started = words(facts["container_info"], "image"), moment("container_state_started", "start_time")
        # One that ran was refused when its Node booted again (kubernetes/kubernetes#125579); nothing says when.
        refused = _REFUSED in reasons and not images and started is not None and started > begin
        return PodRun(
            pod=key.rpartition("/")[0],
            node="".join((words(found, "exported_node") or words(found, "node"))[:1]),
            created_by="/".join(word for label in _CREATOR for word in words(facts["info"], label)),
            images=tuple(images),
            phase=min(over) if over else "Running" if "Running" in words(now, "phase") else "",
            started=started,
            ended=started if refused else moment("completion_time"),
            restarts=int(most("container_status_restarts_total")),
            reasons=tuple(dict.fromkeys([*reasons, *["deleted"] * (key in facts["deletion_timestamp"])])),
        )

    return tuple(map(run, sorted(found))), ()


def _by_pod(rows: Iterable[AnswerRow]) -> _ByPod:
    """By `namespace/name/uid`: the Pods of a StatefulSet share a name."""
    found: dict[str, list[AnswerRow]] = defaultdict(list)
    for row in rows:
        pod = row.labels.get("exported_pod") or row.labels.get("pod", "")
        found[f"{namespace_of(row.labels)}/{pod}/{row.labels.get('uid', '')}"].append(row)
    return found
