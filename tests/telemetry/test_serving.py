"""Requests and loads of serving engines by Pod: what counts, and when it is unknown."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gpuwatch.facts.model.telemetry import EngineLoad, GapKind
from gpuwatch.sources.telemetry.serving import ENGINES, Engine, loads, requests
from telemetry.timeline import AT, Timeline, Witness

DAY, HOUR = 24 * 3600, 3600
VLLM = ENGINES[0]
Values = float | Callable[[float], float]


def of(pod: str, namespace: str = "ml", **more: str) -> dict[str, str]:
    return {"namespace": namespace, "pod": pod, "job": "engines", "instance": f"{pod}:8000", **more}


def serves(
    pod: str, engine: Engine = VLLM, *, running: Values = 0, served: Values | None = None, ago: float = 26 * HOUR
) -> Timeline:
    timeline = Timeline().add(engine.gauges[0], of(pod), running, ago=ago)
    return timeline if served is None else timeline.add(engine.served, of(pod), served, ago=ago)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_each_engine_counts_the_requests_of_its_pods(engine: Engine, tmp_path: Path) -> None:
    timeline = serves("a", engine, served=lambda ago: 100 if ago >= 3 * HOUR else 107)
    found, gaps = requests(timeline.store(tmp_path), AT)
    assert gaps == ()
    assert found["ml/a"].engine == engine.name
    assert [round(count) for count in found["ml/a"].by_window.values()] == [0, 0, 7, 7]
    assert list(found["ml/a"].by_window) == [1800, HOUR, 6 * HOUR, DAY]


def test_requests_at_work_count_before_any_was_answered(tmp_path: Path) -> None:
    found, _ = requests(serves("a", running=lambda ago: 3 if ago < 300 else 0).store(tmp_path), AT)
    assert found["ml/a"].by_window == {1800: 3, HOUR: 3, 6 * HOUR: 3, DAY: 3}
    waits = serves("b").add(VLLM.gauges[1], of("b"), lambda ago: 5 if ago < 7200 else 0, ago=26 * HOUR)
    folder = tmp_path / "waits"
    folder.mkdir()
    found, _ = requests(waits.store(folder), AT)
    assert found["ml/b"].by_window[HOUR] == 5


def test_a_counter_that_begins_anew_is_no_request(tmp_path: Path) -> None:
    found, _ = requests(serves("a", served=lambda ago: 900 if ago >= 2 * HOUR else 0).store(tmp_path), AT)
    assert set(found["ml/a"].by_window.values()) == {0}


def test_a_window_that_was_not_sampled_is_unknown(tmp_path: Path) -> None:
    young, _ = requests(serves("a", ago=2 * HOUR).store(tmp_path), AT)
    assert list(young["ml/a"].by_window) == [1800, HOUR]


def test_a_pod_that_is_no_longer_sampled_is_unknown(tmp_path: Path) -> None:
    timeline = Timeline().add(VLLM.gauges[0], of("a"), 0, ago=DAY, until=HOUR)
    assert requests(timeline.store(tmp_path), AT) == ({}, ())


def test_pods_and_labels_of_an_exporter_behind_another_target(tmp_path: Path) -> None:
    labels = of("proxy", exported_namespace="chat", exported_pod="llm-0")
    timeline = serves("a").add(VLLM.gauges[0], labels, 2, ago=26 * HOUR)
    timeline.add(VLLM.gauges[0], {"job": "bare"}, 9, ago=26 * HOUR)
    found, _ = requests(timeline.store(tmp_path), AT)
    assert set(found) == {"ml/a", "chat/llm-0"}
    assert found["chat/llm-0"].by_window[DAY] == 2


def test_no_engine_costs_one_query_for_each(tmp_path: Path) -> None:
    witness = Witness(Timeline().add("up", of("a"), 1).store(tmp_path))
    assert requests(witness, AT) == ({}, ())
    assert len(witness.asked) == len(ENGINES)


def test_a_query_that_fails_proves_nothing(tmp_path: Path) -> None:
    store = serves("a").store(tmp_path)
    found, gaps = requests(Witness(store, lambda asked: asked.selector.metric == VLLM.served), AT)
    assert found == {}
    assert gaps
    assert {gap.kind for gap in gaps} == {GapKind.QUERY_FAILED}


CACHED = [(engine, cache) for engine in ENGINES for cache in engine.caches]


@pytest.mark.parametrize(("engine", "cache"), CACHED, ids=lambda one: one if isinstance(one, str) else one.name)
def test_each_engine_tells_its_fullest_cache_and_its_mean_wait(engine: Engine, cache: str, tmp_path: Path) -> None:
    """A Pod runs two engines. One of them was 70 % full for an hour. The waits of 40 requests add up to 10 s."""
    timeline = Timeline().add(cache, of("a", engine="0"), lambda ago: 0.7 if ago < HOUR else 0.1, ago=26 * HOUR)
    timeline.add(cache, of("a", engine="1"), 0.6, ago=26 * HOUR)
    timeline.add(f"{engine.first_token}_sum", of("a"), lambda ago: 5 if ago >= 2 * HOUR else 15, ago=26 * HOUR)
    timeline.add(f"{engine.first_token}_count", of("a"), lambda ago: 9 if ago >= 2 * HOUR else 49, ago=26 * HOUR)
    found, gaps = loads(timeline.store(tmp_path), AT)
    assert gaps == ()
    assert found == {"ml/a": EngineLoad(0.7, pytest.approx(0.25))}


def test_an_engine_without_requests_has_no_wait_and_one_without_a_cache_no_share(tmp_path: Path) -> None:
    timeline = Timeline().add(VLLM.caches[0], of("a"), 0.0, ago=HOUR)
    timeline.add(f"{VLLM.first_token}_count", of("a"), 0, ago=HOUR)
    timeline.add(f"{VLLM.first_token}_sum", of("b"), lambda ago: 1 if ago > 600 else 3, ago=HOUR)
    timeline.add(f"{VLLM.first_token}_count", of("b"), lambda ago: 1 if ago > 600 else 5, ago=HOUR)
    found, _ = loads(timeline.store(tmp_path), AT)
    assert found == {"ml/a": EngineLoad(0.0, None), "ml/b": EngineLoad(None, pytest.approx(0.5))}


def test_a_cache_that_has_no_number_is_unknown_and_not_empty(tmp_path: Path) -> None:
    timeline = Timeline().add(VLLM.caches[0], of("a"), float("nan"), ago=HOUR)
    assert loads(timeline.store(tmp_path), AT) == ({}, ())


def test_a_load_whose_query_fails_is_unknown_and_a_gap(tmp_path: Path) -> None:
    store = Timeline().add(VLLM.caches[0], of("a"), 0.4, ago=HOUR).store(tmp_path)
    found, gaps = loads(Witness(store, lambda asked: asked.selector.metric == VLLM.caches[0]), AT)
    assert found == {}
    assert [gap.kind for gap in gaps] == [GapKind.QUERY_FAILED]
