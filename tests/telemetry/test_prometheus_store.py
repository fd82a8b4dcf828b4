"""The store against real servers: labels, parts of large questions, grids. What each function answers is compared with
a recording in test_conformance.py, on the same servers, and that in turn with an oracle in test_evaluate.py."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpuwatch.facts.model.plain_text import plain_key
from gpuwatch.facts.model.telemetry import GapKind
from gpuwatch.sources.telemetry.connection import Connection
from gpuwatch.sources.telemetry.prometheus import PrometheusStore
from gpuwatch.sources.telemetry.samples import (
    AnswerRow,
    Combine,
    Expression,
    Function,
    Matcher,
    MatchOp,
    Partition,
    QueryTooLarge,
    Selector,
    Series,
)
from parts import remote_write
from parts.processes import free_port, wait_until
from parts.prometheus_server import ServerBuild, running, thanos_query, thanos_sidecar
from telemetry.timeline import at_steps

NOW = 1_760_000_400  # a multiple of 60
AT = datetime.fromtimestamp(NOW, UTC)
HOUR = 3600
ODD_NODES = ("n.1", "nx1", "n|1", 'n"1\\', "n(1)[a]{2}^$*+?", "zeile\n1", "größe-1")
Samples = list[tuple[float, float | None]]


def gauge(node: int, gpu: int, minute: int) -> float:
    return float((node * 31 + gpu * 17 + minute * 7) % 100)


def minutes(count: int, value: Iterable[float]) -> Samples:
    """Values a minute apart; the last at NOW."""
    return list(zip(range(NOW - 60 * (count - 1), NOW + 1, 60), value, strict=True))


def fleet() -> Iterator[tuple[Mapping[str, str], Samples]]:
    """Six Nodes of four GPUs, two hours of one sample a minute."""
    for node in range(6):
        for gpu in range(4):
            labels = {"__name__": "util", "node": f"n{node}", "gpu": str(gpu)}
            yield labels, minutes(121, (gauge(node, gpu, minute) for minute in range(121)))


def special() -> Iterator[tuple[Mapping[str, str], Samples]]:
    edges: Samples = [(NOW - HOUR, 1000.0), (NOW - HOUR + 0.001, 1.0), (NOW - 60, 3.0), (NOW, 5.0), (NOW + 0.001, 1000)]
    yield {"__name__": "edges"}, edges
    yield {"__name__": "look", "age": "300"}, [(NOW - 300, 1.0)]
    yield {"__name__": "look", "age": "299.999"}, [(NOW - 299.999, 2.0)]
    yield {"__name__": "look", "age": "ended"}, [(NOW - 120, 3.0), (NOW - 60, None)]
    yield {"__name__": "look", "age": "back"}, [(NOW - 180, 3.0), (NOW - 120, None), (NOW - 60, 4.0)]
    # Ten minutes with a sample, then a gap of four that an instant lookup would bridge, then six more.
    gap: Samples = [(NOW - 60 * age, 1.0 if age >= 10 else 0.0) for age in range(20) if not 6 <= age <= 9]
    yield {"__name__": "gap"}, sorted(gap)
    yield {"__name__": "mask"}, minutes(12, [0, 1, 8, 9, 16, 32, 48, 64, 128, 183, 255, 256])
    yield {"__name__": "odd"}, minutes(4, [math.nan, 2.0, math.inf, 1.0])
    yield {"__name__": "total"}, minutes(7, [10, 20, 5, 5, 8, 8, 9])
    for node in ODD_NODES:
        yield {"__name__": "odd_nodes", "node": node}, minutes(2, [1, 2])
    yield {"__name__": "odd_nodes", "gpu": "no node"}, minutes(2, [1, 2])


@pytest.fixture(scope="module")
def url(prometheus_build: ServerBuild) -> Iterator[str]:
    with running(prometheus_build) as url:
        remote_write.write(url, [*fleet(), *special()])
        yield url


@pytest.fixture(scope="module")
def store(url: str) -> PrometheusStore:
    return PrometheusStore(Connection(url=url))


@pytest.fixture(scope="module")
def small_url(prometheus_build: ServerBuild) -> Iterator[str]:
    """The same fleet where a query may hold 1,000 samples: 24 series × 61 steps do not pass, six Nodes do alone."""
    with running(prometheus_build, flags=["--query.max-samples=1000"]) as url:
        remote_write.write(url, fleet())
        yield url


PARTITION = Partition("node", {f"n{node}": 4 for node in range(6)}, 60)


def test_missing_labels_are_left_out_and_names_never_shown(store: PrometheusStore) -> None:
    rows = store.evaluate(Expression(Selector("odd_nodes"), Function.LAST, by=("gpu", "node")), AT)
    assert {"gpu": "no node"} in [row.labels for row in rows]
    everything = store.evaluate(Expression(Selector("odd_nodes"), Function.LAST_IN_WINDOW, 60, by=None), AT)
    assert {tuple(row.labels) for row in everything} == {("gpu",), ("node",)}
    assert all("__name__" not in series.labels for series in store.raw(Selector("total"), AT - timedelta(1), AT))


@pytest.mark.parametrize("node", ODD_NODES)
def test_label_values_are_matched_to_the_letter(store: PrometheusStore, node: str) -> None:
    selector = Selector("odd_nodes", (Matcher("node", MatchOp.EQUAL, node),))
    [row] = store.evaluate(Expression(selector, Function.LAST, by=("node",)), AT)
    assert row.labels == {"node": plain_key(node)}


def test_parts_ask_for_their_nodes_to_the_letter(url: str) -> None:
    keys = [*map(plain_key, ODD_NODES), ""]
    pairs = Partition("node", dict.fromkeys(keys, 1), 60)
    store = PrometheusStore(Connection(url=url, max_samples_per_query=4))
    rows = store.evaluate(Expression(Selector("odd_nodes"), Function.COUNT, 120, by=("node", "gpu")), AT, pairs)
    assert sorted(row.labels.get("node", "") for row in rows) == sorted(keys)


def expected_fractions(bound: float) -> dict[tuple[str, str], float]:
    return {
        (f"n{node}", str(gpu)): sum(gauge(node, gpu, minute) > bound for minute in range(61, 121)) / 60
        for node in range(6)
        for gpu in range(4)
    }


BUSY = Expression(Selector("util"), Function.FRACTION_ABOVE, HOUR, 50.0, by=("node", "gpu"))


def by_device(rows: list[AnswerRow]) -> dict[tuple[str, str], float]:
    assert len({tuple(row.labels.items()) for row in rows}) == len(rows)
    return {(row.labels["node"], row.labels["gpu"]): row.value for row in rows}


def test_one_query_answers_where_the_server_allows_it(store: PrometheusStore) -> None:
    assert by_device(store.evaluate(BUSY, AT)) == pytest.approx(expected_fractions(50))
    assert by_device(store.evaluate(BUSY, AT, PARTITION)) == pytest.approx(expected_fractions(50))


def test_what_is_too_large_is_divided_until_it_passes(small_url: str) -> None:
    store = PrometheusStore(Connection(url=small_url))
    with pytest.raises(QueryTooLarge, match="too many samples"):
        store.evaluate(BUSY, AT)
    assert by_device(store.evaluate(BUSY, AT, PARTITION)) == pytest.approx(expected_fractions(50))


def test_what_is_known_to_be_too_large_is_divided_beforehand(small_url: str) -> None:
    store = PrometheusStore(Connection(url=small_url, max_samples_per_query=500, retries=0))
    assert by_device(store.evaluate(BUSY, AT, PARTITION)) == pytest.approx(expected_fractions(50))


@pytest.mark.parametrize(("combine", "merge"), [(Combine.MAX, max), (Combine.MIN, min), (Combine.SUM, sum)])
def test_parts_are_put_together_where_the_answer_does_not_keep_the_node(
    small_url: str, combine: Combine, merge: object
) -> None:
    assert callable(merge)
    store = PrometheusStore(Connection(url=small_url))
    rows = store.evaluate(replace(BUSY, by=("gpu",), combine=combine), AT, PARTITION)
    expected = {
        str(gpu): merge([value for (_, other), value in expected_fractions(50).items() if other == str(gpu)])
        for gpu in range(4)
    }
    assert {row.labels["gpu"]: row.value for row in rows} == pytest.approx(expected)
    counted = store.evaluate(replace(BUSY, by=(), combine=Combine.COUNT), AT, PARTITION)
    assert counted == [AnswerRow({}, 24)]


def test_a_mean_over_nodes_is_not_put_together_from_parts(small_url: str) -> None:
    store = PrometheusStore(Connection(url=small_url))
    with pytest.raises(QueryTooLarge):
        store.evaluate(replace(BUSY, by=("gpu",), combine=Combine.AVG), AT, PARTITION)


def test_one_question_that_is_too_large_for_a_single_node_costs_one_answer(prometheus_build: ServerBuild) -> None:
    with running(prometheus_build, flags=["--query.max-samples=100"]) as url:
        remote_write.write(url, fleet())
        store = PrometheusStore(Connection(url=url))
        last = Expression(Selector("util"), Function.LAST, by=("node", "gpu"))
        fraction, newest = store.evaluate_many([BUSY, last], AT, PARTITION)
        assert isinstance(fraction, QueryTooLarge)
        assert isinstance(newest, list)
        assert len(newest) == 24


def test_a_grid_is_the_answers_at_its_times(store: PrometheusStore, small_url: str) -> None:
    question = Expression(Selector("util"), Function.MAX, 600, by=("node", "gpu"))
    start = AT - timedelta(hours=1)
    undivided = store.grid(question, at_steps(start, AT, 300))
    divided = PrometheusStore(Connection(url=small_url)).grid(question, at_steps(start, AT, 300), PARTITION)

    def comparable(grid: list[Series]) -> dict[tuple[tuple[str, str], ...], tuple[list[float], list[float]]]:
        return {tuple(sorted(series.labels.items())): (list(series.times), list(series.values)) for series in grid}

    assert len(undivided) == 24
    assert comparable(undivided) == comparable(divided)
    for steps in (0, 5, 12):
        at = start + timedelta(seconds=300 * steps)
        rows = {tuple(sorted(row.labels.items())): row.value for row in store.evaluate(question, at)}
        assert rows == {key: values[steps] for key, (_, values) in comparable(undivided).items()}


def test_a_grid_of_more_steps_than_the_server_allows_is_put_together(store: PrometheusStore) -> None:
    question = Expression(Selector("total"), Function.LAST)
    [series] = store.grid(question, at_steps(AT - timedelta(seconds=12_000), AT, 1))
    # From the first sample on, one answer a second.
    assert list(series.times) == [float(second) for second in range(NOW - 360, NOW + 1)]
    assert series.values[0] == 10
    assert series.values[-1] == 9


def test_a_grid_keeps_the_fractions_of_its_moments(store: PrometheusStore) -> None:
    question = Expression(Selector("total"), Function.COUNT, 60)
    start = datetime.fromtimestamp(NOW - 120 + 0.5, UTC)
    [series] = store.grid(question, at_steps(start, AT, 60))
    assert list(series.times) == [NOW - 119.5, NOW - 59.5]


def test_the_clock_of_the_server_is_compared_when_asked(store: PrometheusStore) -> None:
    now = datetime.now(UTC)
    assert store.clock_skew_seconds(now) == pytest.approx(0, abs=5)
    assert store.clock_skew_seconds(now - timedelta(hours=2)) == pytest.approx(7200, abs=5)


def test_a_moment_without_a_time_zone_is_refused(store: PrometheusStore) -> None:
    naive = AT.replace(tzinfo=None)
    with pytest.raises(ValueError, match="time zone"):
        store.evaluate(BUSY, naive)


def test_thanos_query_gives_the_same_answers(url: str, store: PrometheusStore, thanos: Path) -> None:
    questions = [
        Expression(Selector("look"), Function.LAST, by=("age",)),
        Expression(Selector("edges"), Function.COUNT, HOUR),
        Expression(Selector("mask"), Function.FRACTION_BITS, 720, 72),
        Expression(Selector("gap"), Function.LAST_TIME, 1200, by=None),
        Expression(Selector("total"), Function.INCREASE, 420),
        BUSY,
    ]

    def comparable(answers: list[object]) -> list[dict[tuple[tuple[str, str], ...], object]]:
        found = []
        for answer in answers:
            assert isinstance(answer, list)
            found.append({tuple(sorted(row.labels.items())): pytest.approx(row.value, rel=1e-5) for row in answer})
        return found

    with thanos_query(thanos, url) as thanos_url:
        through = PrometheusStore(Connection(url=thanos_url))
        direct = comparable([*store.evaluate_many(questions, AT, PARTITION)])
        assert all(direct)
        assert comparable([*through.evaluate_many(questions, AT, PARTITION)]) == direct
        assert {"util", "edges", "look"} <= through.metric_names(AT, HOUR)
        [raw] = through.raw(Selector("edges"), AT - timedelta(hours=1), AT)
        assert list(raw.values) == [1, 3, 5]
        assert through.problems == ()


def test_thanos_query_without_one_of_its_stores_answers_in_part_and_then_again_as_a_whole(
    url: str, thanos: Path
) -> None:
    """A store that is known, gone, and there again; a read that began while it was gone is not mended by that."""
    question, late = Expression(Selector("edges"), Function.COUNT, HOUR), f"127.0.0.1:{free_port()}"
    with thanos_query(thanos, url, [f"--endpoint-strict={late}"]) as thanos_url:
        store = PrometheusStore(Connection(url=thanos_url))
        partial = store.reading()
        assert partial.evaluate(question, AT)
        assert [gap.kind for gap in partial.problems] == [GapKind.PARTIAL]
        assert late in partial.problems[0].detail
        with thanos_sidecar(thanos, url, late):

            def answered_wholly() -> bool:
                reading = store.reading()
                return bool(reading.evaluate(question, AT)) and reading.problems == ()

            wait_until(answered_wholly, lambda: "the store is there again, and answers are still partial")
        assert len(partial.problems) == 1
