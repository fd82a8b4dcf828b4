"""Requests of LLM and model servers that Prometheus scrapes: vLLM, TGI, SGLang and Triton, by Pod.

A GPU's counters do not see a request that waits, and hardly see a short one. The labels `namespace` and `pod` are those
that Prometheus sets for a scraped Pod. A window counts only where the Pod was sampled through most of it: a missing
series is no absence of requests.

For the advice on sizes vLLM and SGLang tell how full their KV cache was, and how long a first token takes.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import isnan

from gpuwatch.facts.model.telemetry import EngineLoad, Gap, PodRef, Requests
from gpuwatch.sources.telemetry.gaps import failed
from gpuwatch.sources.telemetry.owners import namespace_of
from gpuwatch.sources.telemetry.samples import Combine, Expression, Function, SampleStore, Selector, TelemetryError

WINDOWS_SECONDS = (1800, 3600, 6 * 3600, 24 * 3600)
"""Half an hour is the shortest silence that is judged; a day covers the nights of a service."""
_COVERED_RATIO = 0.7
"""Share of a window's samples that has to be there, at the interval of the last half an hour."""
_WEEK_SECONDS = 7 * 86400
_BY = ("namespace", "exported_namespace", "pod", "exported_pod")


@dataclass(frozen=True, slots=True)
class Engine:
    """served: a counter, which may have no series before the first request. gauges: requests at work, then those that
    wait; the first is always there. caches: shares of the KV cache in use. first_token: a histogram, in seconds."""

    name: str
    served: str
    gauges: tuple[str, ...]
    caches: tuple[str, ...] = ()
    first_token: str = ""


ENGINES = (
    Engine(
        "vLLM",
        "vllm:request_success_total",
        ("vllm:num_requests_running", "vllm:num_requests_waiting"),
        ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),  # the latter in older versions
        "vllm:time_to_first_token_seconds",
    ),
    Engine("TGI", "tgi_request_count", ("tgi_batch_current_size", "tgi_queue_size")),
    Engine(
        "SGLang",
        "sglang:num_requests_total",
        ("sglang:num_running_reqs", "sglang:num_queue_reqs"),
        ("sglang:token_usage",),
        "sglang:time_to_first_token_seconds",
    ),
    Engine("Triton", "nv_inference_request_success", ("nv_inference_pending_request_count",)),
)
"""By the documents of each engine."""


def requests(store: SampleStore, at: datetime) -> tuple[dict[PodRef, Requests], tuple[Gap, ...]]:
    """By Pod, of the engines that Prometheus scrapes; {} where a query failed. Without an engine one query for each."""
    presence = [_ask(engine.gauges[0], Function.COUNT, WINDOWS_SECONDS[0]) for engine in ENGINES]
    sampled, gaps = _answers(store, presence, at)
    found: dict[PodRef, Requests] = {}
    for engine, now in zip(ENGINES, sampled, strict=True):
        by_window: dict[PodRef, dict[int, float]] = defaultdict(dict)
        for window in WINDOWS_SECONDS if now else ():
            asked = [(engine.gauges[0], Function.COUNT), (engine.served, Function.INCREASE)]
            asked += [(gauge, Function.MAX) for gauge in engine.gauges]
            (covered, *counts), failures = _answers(store, [_ask(*each, window) for each in asked], at)
            gaps += failures
            for pod, samples in covered.items():
                if pod in now and samples >= _COVERED_RATIO * now[pod] * window / WINDOWS_SECONDS[0]:
                    by_window[pod][window] = max(count.get(pod, 0.0) for count in counts)
        found |= {
            pod: Requests(engine=engine.name, metric=engine.served, by_window=of) for pod, of in by_window.items()
        }
    return ({}, gaps) if gaps else (found, ())


def loads(store: SampleStore, at: datetime) -> tuple[dict[PodRef, EngineLoad], tuple[Gap, ...]]:
    """By Pod, of the engines that export these and that Prometheus scrapes, over as much of a week as it has."""
    found: dict[PodRef, EngineLoad] = {}
    gaps: tuple[Gap, ...] = ()
    for engine in ENGINES:
        if engine.caches:
            # A Pod may run several engines, each with a cache of its own.
            asked = [_ask(cache, Function.MAX, _WEEK_SECONDS, Combine.MAX) for cache in engine.caches]
            sums = [_ask(engine.first_token + part, Function.INCREASE, _WEEK_SECONDS) for part in ("_sum", "_count")]
            (*caches, seconds, counts), failures = _answers(store, [*asked, *sums], at)
            gaps += failures
            used = {pod: ratio for cache in caches for pod, ratio in cache.items()}
            waits = {pod: seconds[pod] / count for pod, count in counts.items() if count > 0 and pod in seconds}
            found |= {pod: EngineLoad(used.get(pod), waits.get(pod)) for pod in used.keys() | waits.keys()}
    return found, gaps


def _ask(metric: str, function: Function, window_seconds: int, combine: Combine = Combine.SUM) -> Expression:
    combine = Combine.MAX if function is Function.COUNT else combine
    return Expression(Selector(metric), function, window_seconds, combine=combine, by=_BY)


def _answers(
    store: SampleStore, questions: Sequence[Expression], at: datetime
) -> tuple[list[Mapping[PodRef, float]], tuple[Gap, ...]]:
    answers: list[Mapping[PodRef, float]] = []
    gaps: tuple[Gap, ...] = ()
    for question, answer in zip(questions, store.evaluate_many(questions, at), strict=True):
        found: dict[PodRef, float] = {}
        if isinstance(answer, TelemetryError):
            gaps += (failed(f"metrics of serving engines ({question.selector.metric})", answer),)
        else:
            for row in answer:
                name = row.labels.get("exported_pod") or row.labels.get("pod", "")
                if name and not isnan(row.value):
                    pod = f"{namespace_of(row.labels)}/{name}"
                    found[pod] = max(found.get(pod, 0.0), row.value)
        answers.append(found)
    return answers, gaps
