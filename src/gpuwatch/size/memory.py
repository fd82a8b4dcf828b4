"""How much framebuffer a workload needs per GPU: the largest peak of any run, plus headroom, or what is stated."""

import re
from collections.abc import Iterable, Mapping, Sequence

from gpuwatch.facts.frameworks.keys import GPU_MEMORY_NEED, stated
from gpuwatch.facts.model.cluster import Pod
from gpuwatch.facts.model.sizing import MemoryNeed
from gpuwatch.facts.model.workload_profile import MemoryRun, WorkloadProfile

_GIB = 2**30
_MIB = 2**20
_QUANTITY = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>Mi|Gi|M|G)")
_UNITS = {"Mi": _MIB, "Gi": _GIB, "M": 10**6, "G": 10**9}


# Added to the highest peak, as samples miss peaks between them: 0.10 from five runs on and 0.15 below (krr adds as much
# for short-lived peaks).
_HEADROOM_RATIO, _HEADROOM_FEW_RUNS_RATIO, _MANY_RUNS = 0.10, 0.15, 5
# Added on top: a CUDA context is 0.3 to 0.7 GiB, depending on the GPU model.
_CONTEXT_BYTES = 0.5 * _GIB
# Peak as a share of the device from which a run counts as elastic if its start was not measured: JAX reserves 0.75 by
# default, vLLM 0.9.
_ELASTIC_FILL_RATIO = 0.75
# Growth after the first ten minutes, as a share of the peak, up to which memory counts as flat: an allocator that
# reserves its share of the device at the start does not grow afterwards.
_ELASTIC_GROWTH_RATIO = 0.02
# Share of the device from which a run whose Pod restarted counts as out of memory; the headroom of such a peak is that
# of the Vertical Pod Autoscaler.
# Share of a KV cache from which requests soon wait for room: llm-d's documents call 0.9 nearly full.
_KV_CACHE_FULL_RATIO = 0.9
_OUT_OF_MEMORY_RATIO, _OUT_OF_MEMORY_HEADROOM_RATIO = 0.95, 0.20


def memory_need(
    profile: WorkloadProfile,
    pods: Iterable[Pod] = (),
    annotated: Iterable[tuple[str, Mapping[str, str]]] = (),
    kv_cache_ratio: float | None = None,
) -> MemoryNeed | None:
    """What the workload needs per GPU; None where no run was measured.

    pods: its live ones. A Pod that held nearly all of its device and restarted may have run out of memory, which
    telemetry does not show: its need is then above its peak. annotated: (object, annotations) of its owner, Pods and
    Namespace. Where memory is elastic, an annotated need replaces the measured one; else the larger one counts.
    kv_cache_ratio: the largest share of its KV cache in use; a full one says that it needs what it reserves.
    """
    runs = [run for run in profile.runs if run.peak_bytes]
    peak = max((run.peak_bytes for run in runs if run.peak_bytes), default=None)
    if peak is None:
        return None
    count = max(profile.run_count, len(runs))
    elastic = [run for run in runs if _is_elastic(run)]
    restarted = {pod.ref: pod for pod in pods if pod.restarts}
    starved = [run for run in runs if _ran_out(run, restarted.get(run.pod))]
    headroom = _HEADROOM_RATIO if count >= _MANY_RUNS else _HEADROOM_FEW_RUNS_RATIO
    reason = f"The largest peak of {count} run{'' if count == 1 else 's'} is {_gib(peak)}"
    if starved:
        headroom = max(headroom, _OUT_OF_MEMORY_HEADROOM_RATIO)
        reason += f"; {len(starved)} of them restarted near the limit of the device, perhaps out of memory"
    context = f"{_CONTEXT_BYTES / _MIB:.0f} MiB for the CUDA context"
    reason += f"; the need adds {headroom:.0%} for peaks between samples and {context}."
    full = kv_cache_ratio is not None and kv_cache_ratio >= _KV_CACHE_FULL_RATIO
    # It may have been sampled for less than the week.
    used = "" if kv_cache_ratio is None else f" At most {kv_cache_ratio:.0%} of its KV cache was seen in use in a week"
    if elastic and full:
        reason += f"{used}, so it needs what it reserves."
    elif elastic:
        reason = _unknown_need(elastic, count) + (f"{used}, so it may do with less." if used else "")
    need = peak * (1.0 + headroom) + _CONTEXT_BYTES
    stated, sentence = _stated(annotated)
    if stated is not None and (elastic or stated > need):
        need, elastic, reason = stated, [], sentence
    elif sentence:
        reason = f"{reason} {sentence}"
    return MemoryNeed(
        need_bytes=need,
        peak_bytes=peak,
        runs=count,
        headroom_ratio=headroom,
        elastic=bool(elastic) and not full,
        reason=reason,
    )


def reserves(memory: MemoryNeed, now_bytes: float, then_bytes: float) -> str:
    """The condition on a GPU with less memory than now, of a program that may reserve a share of it; '' for others."""
    if not memory.elastic or then_bytes >= now_bytes:
        return ""
    return (
        f"Only if it still gets the {_gib(memory.peak_bytes)} per GPU that it uses now: where the program reserves a "
        "share of its GPU (vLLM's gpu_memory_utilization, XLA_PYTHON_CLIENT_MEM_FRACTION), raise that share."
    )


def _is_elastic(run: MemoryRun) -> bool:
    """Whether the run may have reserved more than it needs: flat from the start at any share of the device (vLLM at
    0.4), or nearly full where its start was not measured."""
    if run.at_start_bytes is None or run.peak_bytes is None:
        return (_filled_ratio(run) or 0.0) >= _ELASTIC_FILL_RATIO
    return run.peak_bytes - run.at_start_bytes <= _ELASTIC_GROWTH_RATIO * run.peak_bytes


def _unknown_need(elastic: Sequence[MemoryRun], count: int) -> str:
    shares = [share for run in elastic if (share := _filled_ratio(run)) is not None]
    much = f"up to {max(shares):.0%} of the device" if shares else "their memory"
    took = f"took {much} at the start and kept it"
    if all(run.at_start_bytes is None for run in elastic):
        took = f"had {much}, and their start was not measured"
    return (
        f"{len(elastic)} of {count} runs {took}. This is typical of a framework that reserves a share of the device "
        "(vLLM's gpu_memory_utilization, XLA_PYTHON_CLIENT_MEM_FRACTION), whose peak does not tell its need. State the "
        f"need per GPU on its Pods, its owner or its Namespace: annotation {GPU_MEMORY_NEED}, for example 12Gi."
    )


def _stated(annotated: Iterable[tuple[str, Mapping[str, str]]]) -> tuple[float | None, str]:
    """(need in bytes, the sentence on it) by the first object that states one; (None, '') where none does."""
    where, text = stated(annotated, GPU_MEMORY_NEED)
    found = _QUANTITY.fullmatch(text.strip())
    if found is None:
        bad = f"{GPU_MEMORY_NEED} of {where} is {text!r}, and not a quantity such as 12Gi; gpuwatch ignores it."
        return None, bad if where else ""
    need = float(found["number"]) * _UNITS[found["unit"]]
    return need, (
        f"{where} states a need of {_gib(need)} per GPU ({GPU_MEMORY_NEED}). If the framework reserves a share of "
        "the device, set a share that gives this much."
    )


def _ran_out(run: MemoryRun, restarted: Pod | None) -> bool:
    filled = _filled_ratio(run)
    if restarted is None or filled is None or filled < _OUT_OF_MEMORY_RATIO:
        return False
    # A StatefulSet's next Pod has the name of the one before.
    return restarted.created is None or restarted.created < run.last_seen


def _filled_ratio(run: MemoryRun) -> float | None:
    """Peak as a share of the device."""
    return run.peak_bytes / run.capacity_bytes if run.peak_bytes is not None and run.capacity_bytes else None


def _gib(value: float) -> str:
    return f"{value / _GIB:.1f} GiB"
