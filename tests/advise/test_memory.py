"""Framebuffer that is needed: both sides of every bound, and what is not known."""

from datetime import UTC, datetime, timedelta

import pytest

from advise import world
from gpuwatch.facts.model.cluster import Pod
from gpuwatch.facts.model.workload_profile import MemoryRun, WorkloadProfile
from gpuwatch.size.memory import memory_need

GIB = 2**30
NOW = datetime(2026, 3, 1, tzinfo=UTC)


def run(peak_gib: float, at_start_gib: float | None = 0.0, capacity_gib: float | None = 40.0) -> MemoryRun:
    return MemoryRun(
        pod="ns/x",
        first_seen=NOW - timedelta(hours=8),
        last_seen=NOW - timedelta(hours=1),
        peak_bytes=peak_gib * GIB,
        at_start_bytes=None if at_start_gib is None else at_start_gib * GIB,
        capacity_bytes=None if capacity_gib is None else capacity_gib * GIB,
        device_seconds=7 * 3600.0,
    )


def profile(*runs: MemoryRun, count: int | None = None) -> WorkloadProfile:
    return world.profile(runs=runs, run_count=len(runs) if count is None else count)


def test_without_a_run_nothing_is_known() -> None:
    assert memory_need(profile()) is None
    assert memory_need(profile(run(0.0))) is None


def test_the_largest_run_counts_with_headroom_and_context() -> None:
    need = memory_need(profile(run(4.0), run(10.0), run(6.0)))
    assert need.peak_bytes == 10 * GIB
    assert need.need_bytes == pytest.approx((10 * 1.15 + 0.5) * GIB)
    assert (need.runs, need.elastic) == (3, False)
    assert "10.0 GiB" in need.reason


@pytest.mark.parametrize(("count", "headroom"), [(4, 0.15), (5, 0.10), (50, 0.10)])
def test_few_runs_need_more_headroom(count: int, headroom: float) -> None:
    """run_count also counts runs that the profile keeps no more."""
    need = memory_need(profile(run(10.0), count=count))
    assert need.headroom_ratio == headroom


@pytest.mark.parametrize(
    ("peak", "at_start", "elastic"),
    [
        (30.0, 30.0, True),  # 0.75 of the card at the start, and flat: JAX
        (16.0, 16.0, True),  # a vLLM at 0.4
        (16.0, 15.6, False),
        (36.0, 36.0 * 0.981, True),  # grew by less than 2 % of the peak
        (36.0, 36.0 * 0.979, False),
        (36.0, 0.0, False),
        (36.0, None, True),  # full, and nobody saw it start
        (20.0, None, False),
    ],
)
def test_what_is_taken_at_the_start_and_kept_is_suspect(peak: float, at_start: float | None, elastic: bool) -> None:
    need = memory_need(profile(run(peak, at_start)))
    assert need.elastic is elastic
    assert ("whose peak does not tell its need" in need.reason) is elastic


def test_one_elastic_run_is_enough_and_an_unknown_card_is_none() -> None:
    mixed = memory_need(profile(run(10.0), run(36.0, 36.0)))
    assert mixed.elastic
    unknown = memory_need(profile(run(36.0, 36.0, capacity_gib=None)))
    assert unknown.elastic
    assert "took their memory at the start" in unknown.reason


@pytest.mark.parametrize(("peak", "elastic"), [(30.0, True), (29.9, False)])
def test_beside_runs_that_were_seen_to_grow_only_a_full_one_is_suspect(peak: float, elastic: bool) -> None:
    need = memory_need(profile(run(10.0), run(peak, None)))
    assert need.elastic is elastic


def test_a_full_card_whose_start_was_not_seen_says_so() -> None:
    need = memory_need(profile(run(30.0, None), run(12.0, None)))
    assert need.elastic
    assert "1 of 2 runs had up to 75% of the device, and their start was not measured" in need.reason
    assert "gpuwatch.dev/gpu-memory-need, for example 12Gi" in need.reason


@pytest.mark.parametrize(("text", "gib"), [("12Gi", 12), ("12288Mi", 12), (" 1.5Gi ", 1.5), ("12G", 12e9 / GIB)])
def test_what_the_owner_states_is_the_need_where_it_cannot_be_measured(text: str, gib: float) -> None:
    stated = [("Pod ns/x", {}), ("Deployment/ns/x", {"gpuwatch.dev/gpu-memory-need": text})]
    need = memory_need(profile(run(16.0, 16.0)), annotated=stated)
    assert need.need_bytes == pytest.approx(gib * GIB)
    assert not need.elastic
    assert "Deployment/ns/x states a need of" in need.reason
    assert "set a share that gives this much" in need.reason


@pytest.mark.parametrize(("text", "needed"), [("20Gi", 20.0), ("2Gi", 10 * 1.15 + 0.5)])
def test_what_was_measured_is_not_talked_away(text: str, needed: float) -> None:
    need = memory_need(profile(run(10.0)), annotated=[("Pod ns/x", {"gpuwatch.dev/gpu-memory-need": text})])
    assert need.need_bytes == pytest.approx(needed * GIB)


@pytest.mark.parametrize("text", ["much", "12", "-1Gi", ""])
def test_a_need_that_is_no_amount_is_named_and_not_used(text: str) -> None:
    need = memory_need(profile(run(16.0, 16.0)), annotated=[("Pod ns/x", {"gpuwatch.dev/gpu-memory-need": text})])
    assert need.elastic
    assert f"gpu-memory-need of Pod ns/x is {text!r}, and not a quantity such as 12Gi" in need.reason


@pytest.mark.parametrize(
    ("peak", "pod", "starved"),
    [
        (38.0, Pod(namespace="ns", name="x", restarts=1), True),  # 0.95 of the card
        (37.9, Pod(namespace="ns", name="x", restarts=1), False),
        (38.0, Pod(namespace="ns", name="x"), False),
        (38.0, Pod(namespace="ns", name="y", restarts=1), False),
        (38.0, Pod(namespace="ns", name="x", restarts=1, created=NOW - timedelta(hours=8)), True),
        (38.0, Pod(namespace="ns", name="x", restarts=1, created=NOW - timedelta(hours=1)), False),  # the next of it
    ],
)
def test_a_restart_near_the_limit_adds_more(peak: float, pod: Pod, starved: bool) -> None:
    need = memory_need(profile(run(peak), count=9), pods=[pod])
    assert need.headroom_ratio == (0.20 if starved else 0.10)
    assert ("out of memory" in need.reason) is starved


@pytest.mark.parametrize(
    ("ratio", "elastic", "said"),
    [
        (None, True, "whose peak does not tell its need"),
        (0.0, True, "At most 0% of its KV cache was seen in use in a week, so it may do with less."),
        (0.89, True, "At most 89% of its KV cache was seen in use in a week, so it may do with less."),
        (0.9, False, "At most 90% of its KV cache was seen in use in a week, so it needs what it reserves."),
    ],
)
def test_a_full_kv_cache_says_that_the_reserved_memory_is_needed(ratio: float | None, elastic: bool, said: str) -> None:
    need = memory_need(profile(run(16.0, 16.0)), kv_cache_ratio=ratio)
    assert need.elastic is elastic
    assert said in need.reason


def test_a_full_kv_cache_does_not_outrank_the_owner_and_says_nothing_of_memory_that_grows() -> None:
    stated = [("Pod ns/x", {"gpuwatch.dev/gpu-memory-need": "12Gi"})]
    assert memory_need(profile(run(16.0, 16.0)), annotated=stated, kv_cache_ratio=0.95).need_bytes == 12 * GIB
    assert "KV cache" not in memory_need(profile(run(10.0)), kv_cache_ratio=0.95).reason
