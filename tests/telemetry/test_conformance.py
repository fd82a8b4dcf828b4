"""Both stores on the same data: what a recording answers is what Prometheus 2, Prometheus 3 and Thanos answer.

The servers get the samples as blocks made of OpenMetrics text, and those with staleness markers by remote write.

Two differences are known and pinned down, both of increase(). Prometheus 2.42 extrapolates in another order and has a
window that is a millisecond shorter (promql_oracle.increase). Thanos makes every counter rise for ever before it
evaluates, and leaves out NaN, so that a counter that was reset before the window seems far from zero, and a series
with negative values comes out as something else.
"""

import contextlib
import json
import math
import subprocess
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest

from gpuwatch.facts.model.plain_text import plain_key
from gpuwatch.sources.telemetry.connection import Connection
from gpuwatch.sources.telemetry.prometheus import PrometheusStore
from gpuwatch.sources.telemetry.recording import RecordingStore, open_recording
from gpuwatch.sources.telemetry.samples import (
    AnswerRow,
    Combine,
    Expression,
    Function,
    Matcher,
    MatchOp,
    Partition,
    SampleStore,
    Selector,
    Series,
)
from gpuwatch.sources.telemetry.series import RecordedSeries, mark_stale
from lab.simulate.recording import write_recording
from parts import remote_write
from parts.go_tools import in_ci
from parts.http_server import QuietHandler, served
from parts.prometheus_server import ServerBuild, dump_openmetrics, running, thanos_query
from telemetry import promql_oracle
from telemetry.conformance_data import BEGIN, INTERVAL, MARKED, NOW, SERIES, Known, as_openmetrics
from telemetry.timeline import at_steps

pytestmark = pytest.mark.prometheus

METRICS = sorted({known.metric for known in SERIES})
MARKED_METRIC = MARKED[0].metric
WINDOWS = (60, 300, 900, 3600)
FUNCTIONS: tuple[tuple[Function, float | None], ...] = (
    *((function, None) for function in Function if function.value in {"last", "last_in_window", "min", "max", "avg"}),
    (Function.COUNT, None),
    (Function.CHANGES, None),
    (Function.LAST_TIME, None),
    (Function.QUANTILE, 0.37),
    (Function.QUANTILE, 1.0),
    (Function.QUANTILE, -0.1),
    (Function.FRACTION_ABOVE, 0.0),
    (Function.FRACTION_ABOVE, 10.5),
    (Function.FRACTION_BITS, 8 + 32 + 64 + 128),
    (Function.FRACTION_BITS, 1),
)
MOMENTS = (NOW, NOW - 37.5, BEGIN + 300)

ONE_OF_EACH = tuple({function: (function, parameter) for function, parameter in FUNCTIONS}.values())
every_function = pytest.mark.parametrize(("function", "parameter"), FUNCTIONS, ids=str)
one_of_each = pytest.mark.parametrize(("function", "parameter"), ONE_OF_EACH, ids=str)
Values = Mapping[tuple[tuple[str, str], ...], Mapping[float, float]]
"""Labels → time → value."""


@dataclass(frozen=True)
class Server:
    store: PrometheusStore
    url: str
    kind: str  # '2', '3' or 'thanos'


@pytest.fixture(scope="module", params=["2", "3", "thanos"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server with SERIES and MARKED: Prometheus 2, Prometheus 3, and Thanos Query over the newest."""
    builds = request.getfixturevalue("prometheus_builds")
    major = max(builds, default=0) if request.param == "thanos" else int(request.param)
    if major not in builds:
        (pytest.fail if in_ci() else pytest.skip)(f"no Prometheus for {request.param} here; see tests/parts/install")
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(running(builds[major], as_openmetrics(SERIES)))
        remote_write.write(url, [({"__name__": one.metric, **one.labels}, one.samples) for one in MARKED])
        if request.param == "thanos":
            url = stack.enter_context(thanos_query(request.getfixturevalue("thanos"), url))
        store = PrometheusStore(Connection(url=url))
        stack.callback(store.close)
        yield Server(store, url, request.param)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> RecordingStore:
    """The same text that the blocks are made of, and a Parquet file of the series with markers."""
    folder = tmp_path_factory.mktemp("recording")
    (folder / "series.om").write_text(as_openmetrics(SERIES))
    write_recording(folder / "marked.parquet", map(recorded, MARKED))
    opened = open_recording([folder])
    assert opened.problems == ()
    return opened


def recorded(known: Known) -> RecordedSeries:
    times_ms = np.array([round(seconds * 1000) for seconds, _ in known.samples], np.int64)
    values = np.array([0.0 if value is None else value for _, value in known.samples])
    mark_stale(values, np.array([value is None for _, value in known.samples], np.bool_))
    return RecordedSeries(known.metric, known.labels, times_ms, values)


def moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def expression(
    function: Function,
    parameter: float | None,
    metric: str,
    *,
    window: int = 900,
    offset: int = 0,
    step: int = INTERVAL,
    combine: Combine = Combine.MAX,
    by: tuple[str, ...] | None = None,
) -> Expression:
    window = 0 if function is Function.LAST else window
    return Expression(Selector(metric), function, window, parameter, offset, step, combine, by)


def identity(labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))


def values_of(rows: Iterable[AnswerRow]) -> Values:
    return {identity(row.labels): {0.0: row.value} for row in rows}


def values_at(series: Iterable[Series]) -> Values:
    return {identity(one.labels): dict(zip(one.times, one.values, strict=True)) for one in series}


def same(found: float, expected: float) -> bool:
    if math.isnan(found) or math.isnan(expected):
        return math.isnan(found) and math.isnan(expected)
    return found == expected or math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-12)


def assert_equal(found: Values, expected: Values, what: str) -> None:
    assert found.keys() == expected.keys(), what
    for labels, values in expected.items():
        assert found[labels].keys() == values.keys(), (what, labels)
        for at, value in values.items():
            assert same(found[labels][at], value), (what, labels, at, found[labels][at], value)


def assert_same_answers(
    server: SampleStore, recording: SampleStore, expressions: Sequence[Expression], at: float
) -> int:
    """Asks both all questions; returns how many values were compared."""
    compared = 0
    expected, found = (store.evaluate_many(expressions, moment(at)) for store in (server, recording))
    for question, one, other in zip(expressions, expected, found, strict=True):
        assert isinstance(one, list), one
        assert isinstance(other, list), other
        assert_equal(values_of(other), values_of(one), f"{recording.render(question)} at {at}")
        compared += len(one)
    return compared


@every_function
def test_every_series(server: Server, recording: RecordingStore, function: Function, parameter: float | None) -> None:
    offsets = [(900, 600), *((window, 0) for window in WINDOWS)]
    questions = [
        expression(function, parameter, metric, window=window, offset=offset)
        for metric, (window, offset) in product(METRICS, offsets[:2] if function is Function.LAST else offsets)
    ]
    compared = sum(assert_same_answers(server.store, recording, questions, at) for at in MOMENTS)
    assert compared > 150


def test_before_the_first_sample_there_is_nothing(server: Server, recording: RecordingStore) -> None:
    questions = [expression(*function, metric) for function, metric in product(FUNCTIONS, METRICS)]
    assert assert_same_answers(server.store, recording, questions, BEGIN - 1) == 0


@one_of_each
def test_every_way_to_combine(
    server: Server, recording: RecordingStore, function: Function, parameter: float | None
) -> None:
    metrics = ("DCGM_FI_DEV_GPU_UTIL", "odd_values", "random_samples", "unlabelled")
    labels = ((), ("UUID",), ("Hostname", "gpu"), ("gpu", "Hostname", "exported_pod"), ("missing",))
    questions = [
        expression(function, parameter, metric, combine=combine, by=by)
        for metric, combine, by in product(metrics, Combine, labels)
    ]
    assert assert_same_answers(server.store, recording, questions, NOW) > 200


@one_of_each
@pytest.mark.parametrize(("step", "begin"), [(900, NOW - 7200), (47, NOW - 1900)], ids=["windows", "overlapping"])
def test_grid(
    server: Server, recording: RecordingStore, function: Function, parameter: float | None, step: int, begin: int
) -> None:
    by, offset = (None, 0) if step == 900 else (("UUID",), 45)
    for metric in METRICS:
        question = expression(function, parameter, metric, by=by, combine=Combine.AVG, offset=offset)
        expected, found = (
            store.grid(question, at_steps(moment(begin), moment(NOW), step)) for store in (server.store, recording)
        )
        assert_equal(values_at(found), values_at(expected), recording.render(question))


@pytest.mark.parametrize("at", [*MOMENTS, NOW - 1500])
def test_increase_extrapolates_as_each_version_does(server: Server, recording: RecordingStore, at: float) -> None:
    """Prometheus follows its own version, the recording Prometheus 3; a counter born in the window, whose zero lies
    near its first sample, is where they differ."""
    differ = 0
    for metric, window in product([*METRICS, MARKED_METRIC], WINDOWS):
        question = expression(Function.INCREASE, None, metric, window=window)
        expected: dict[int, dict[tuple[tuple[str, str], ...], dict[float, float]]] = {2: {}, 3: {}}
        altered = set()
        for known, prometheus in product((one for one in (*SERIES, *MARKED) if one.metric == metric), (2, 3)):
            samples = [(round(seconds * 1000), value) for seconds, value in known.samples]
            answer = promql_oracle.answer(samples, question, round(at * 1000), prometheus=prometheus)
            labels = identity({name: plain_key(value) for name, value in known.labels.items() if value})
            if answer is not None:
                expected[prometheus][labels] = {0.0: answer}
            if server.kind == "thanos" and altered_by_thanos(known, at - window):
                altered.add(labels)
        what = f"{recording.render(question)} at {at}"
        found = values_of(server.store.evaluate(question, moment(at)))
        version = expected[2 if server.kind == "2" else 3]
        assert_equal(without(found, altered), without(version, altered), what)
        assert_equal(values_of(recording.evaluate(question, moment(at))), expected[3], what)
        differ += sum(not same(expected[2][labels][0.0], expected[3][labels][0.0]) for labels in expected[3])
    assert at != NOW or differ > 0


def altered_by_thanos(known: Known, begin: float) -> bool:
    values = [(seconds, value) for seconds, value in known.samples if value is not None]
    fell = any(new < old for (_, old), (seconds, new) in pairwise(values) if seconds <= begin + INTERVAL)
    return fell or any(not value >= 0 or value > 2**53 for _, value in values)


def without(values: Values, left_out: set[tuple[tuple[str, str], ...]]) -> Values:
    return {labels: found for labels, found in values.items() if labels not in left_out}


@pytest.mark.parametrize("metric", [*METRICS, MARKED_METRIC])
@pytest.mark.parametrize(("begin", "end"), [(BEGIN - 60, NOW), (NOW - 900, NOW), (NOW - 600, NOW - 0.5)])
def test_raw_samples(server: Server, recording: RecordingStore, metric: str, begin: float, end: float) -> None:
    expected, found = (store.raw(Selector(metric), moment(begin), moment(end)) for store in (server.store, recording))
    assert_equal(values_at(found), values_at(expected), metric)
    assert all(list(one.times) == sorted(one.times) for one in found)


def test_metric_names(server: Server, recording: RecordingStore) -> None:
    """A server names metrics by block, so that it may name some whose samples are older. It names none that has only
    samples which came out of order, as the marked ones did, when it is asked for a span of time."""
    names = {*METRICS, MARKED_METRIC}
    assert recording.metric_names(moment(NOW), 4 * 3600) == names
    assert server.store.metric_names(moment(NOW), 4 * 3600) | {MARKED_METRIC} == names
    recent = recording.metric_names(moment(NOW - 1800), 60)
    assert "edge_samples" not in recent
    assert recent - {MARKED_METRIC} <= server.store.metric_names(moment(NOW - 1800), 60)
    assert recording.metric_names(moment(BEGIN - 10 * 86400), 3600) == frozenset()


MATCHERS = (
    (),
    (Matcher("UUID", MatchOp.EQUAL, "GPU-node-b-3"),),
    (Matcher("exported_pod", MatchOp.EQUAL, ""),),
    (Matcher("missing", MatchOp.MATCHES, ".*"),),
    (Matcher("missing", MatchOp.MATCHES, ".+"),),
    (Matcher("Hostname", MatchOp.MATCHES, "node"),),
    (Matcher("Hostname", MatchOp.MATCHES, "node-(a|b)"), Matcher("gpu", MatchOp.EQUAL, "1")),
    (Matcher("instance", MatchOp.MATCHES, r"10\.0\.0\.[0-9]+:94\d\d"),),
    (Matcher("err_msg", MatchOp.MATCHES, plain_key('.*"off".*\\\\\n')),),
)


@pytest.mark.parametrize("matchers", MATCHERS, ids=range(len(MATCHERS)))
def test_matchers(server: Server, recording: RecordingStore, matchers: tuple[Matcher, ...]) -> None:
    questions = [
        Expression(Selector(metric, matchers), Function.COUNT, 3 * 3600, by=None)
        for metric in ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_XID_ERRORS")
    ]
    assert_same_answers(server.store, recording, questions, NOW)


@one_of_each
def test_series_with_staleness_markers(
    server: Server, recording: RecordingStore, function: Function, parameter: float | None
) -> None:
    questions = [
        expression(function, parameter, MARKED_METRIC, window=window, by=by)
        for window, by in product((0,) if function is Function.LAST else (60, 300, 900), (None, ("Hostname",)))
    ]
    around = (0, -1, -29.999, -30, -45, -90, -120, -570, -571, -599.999, -600, -600.001, -630, -900)
    assert sum(assert_same_answers(server.store, recording, questions, NOW + shift) for shift in around) > 60
    grids = [
        values_at(store.grid(questions[0], at_steps(moment(NOW - 900), moment(NOW), 15)))
        for store in (recording, server.store)
    ]
    assert_equal(*grids, str(questions[0]))


def test_a_divided_question_has_the_same_answer(server: Server, recording: RecordingStore) -> None:
    """A server is asked Node by Node where the whole is too large for it; the recording never needs to."""
    partition = Partition("Hostname", {"node-a": 3, "node-b": 4}, float(INTERVAL))
    small = PrometheusStore(Connection(url=server.url, max_samples_per_query=50))
    questions = [
        expression(function, parameter, "DCGM_FI_DEV_GPU_UTIL", combine=combine, by=by, step=0)
        for (function, parameter), combine, by in product(ONE_OF_EACH, Combine, ((), ("UUID",), ("Hostname",)))
    ]
    with contextlib.closing(small):
        expected = small.evaluate_many(questions, moment(NOW), partition)
    found = recording.evaluate_many(questions, moment(NOW), partition)
    for question, one, other in zip(questions, expected, found, strict=True):
        assert isinstance(one, list), one
        assert isinstance(other, list), other
        assert_equal(values_of(other), values_of(one), recording.render(question))


def test_a_bad_matcher_is_refused_by_both(server: Server, recording: RecordingStore) -> None:
    bad = Expression(Selector("unlabelled", (Matcher("a", MatchOp.MATCHES, "("),)), Function.LAST)
    good = Expression(Selector("unlabelled"), Function.LAST)
    answers = [store.evaluate_many([bad, good], moment(NOW)) for store in (server.store, recording)]
    assert [type(answer[0]).__name__ for answer in answers] == ["QueryFailed", "QueryFailed"]
    assert answers[0][1] == answers[1][1] != []


def test_a_dump_of_the_blocks_is_the_recording(prometheus_build: ServerBuild, tmp_path: Path) -> None:
    """What promtool dumps answers as the server did, staleness markers included."""
    known = [one for one in SERIES if not one.metric.startswith("odd")]  # lone NaN that are values: not told apart
    questions = [
        expression(function, parameter, metric)
        for (function, parameter), metric in product(ONE_OF_EACH, (*METRICS, MARKED_METRIC))
        if metric != "odd_values"
    ]
    moments = (NOW, NOW - 615)
    data = tmp_path / "data"
    with running(prometheus_build, as_openmetrics(known), data=data) as url:
        remote_write.write(url, [({"__name__": one.metric, **one.labels}, one.samples) for one in MARKED])
        with contextlib.closing(PrometheusStore(Connection(url=url))) as store:
            expected = [store.evaluate_many(questions, moment(at)) for at in moments]
    dump = tmp_path / "dump.om"
    dump.write_text(dumped(prometheus_build, data))
    opened = open_recording([dump])
    assert [gap.detail.partition(":")[0] for gap in opened.problems] == [
        "5 single NaN samples are read as ends of series"
    ]
    for at, answers in zip(moments, expected, strict=True):
        for question, one, other in zip(questions, answers, opened.evaluate_many(questions, moment(at)), strict=True):
            assert isinstance(one, list), one
            assert isinstance(other, list), other
            assert_equal(values_of(other), values_of(one), f"{opened.render(question)} at {at}")


def dumped(build: ServerBuild, data: Path) -> str:
    """Prometheus 2.42 cannot dump OpenMetrics, only its own format."""
    if build.major >= 3:
        return dump_openmetrics(build, data)
    return subprocess.run([build.promtool, "tsdb", "dump", data], capture_output=True, text=True, check=True).stdout


@contextlib.contextmanager
def exporter(page: list[str]) -> Iterator[str]:
    """Serves page[0] to a scraper; yields host:port."""

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(page[0].encode())

    with served(Handler) as url:
        yield url.removeprefix("http://")


def scrape(url: str, target: str) -> None:
    """Makes a running Prometheus scrape the target once a second."""
    with urllib.request.urlopen(f"{url}/api/v1/status/flags") as answer:
        config = Path(json.load(answer)["data"]["config.file"])
    job = f"{{job_name: dcgm, static_configs: [{{targets: ['{target}']}}]}}"
    config.write_text(f"global: {{scrape_interval: 1s, scrape_timeout: 1s}}\nscrape_configs: [{job}]\n")
    urllib.request.urlopen(urllib.request.Request(f"{url}/-/reload", method="POST")).close()


@pytest.mark.slow
def test_what_real_scrapes_leave_behind(newest_prometheus: ServerBuild, tmp_path: Path) -> None:
    """A GPU vanishes from the page and comes back, and its neighbour goes on; then the blocks are dumped."""
    both, one = 'g{gpu="0"} 1\ng{gpu="1"} 2\n', 'g{gpu="0"} 1\n'
    data, page = tmp_path / "data", [both]
    last = Expression(Selector("g"), Function.LAST, by=("gpu",))
    with exporter(page) as target, running(newest_prometheus, data=data, flags=["--web.enable-lifecycle"]) as url:
        scrape(url, target)
        with contextlib.closing(PrometheusStore(Connection(url=url))) as store:

            def wait_for(gpus: set[str]) -> None:
                deadline = time.monotonic() + 30
                while {row.labels["gpu"] for row in store.evaluate(last, datetime.now(UTC))} != gpus:
                    assert time.monotonic() < deadline, f"GPUs {gpus} were not seen"
                    time.sleep(0.2)

            begin = datetime.now(UTC)
            for page[0], gpus in ((both, {"0", "1"}), (one, {"0"}), (both, {"0", "1"})):
                wait_for(gpus)
                time.sleep(1.1)
            end = datetime.now(UTC)
            expected = store.grid(last, at_steps(begin, end, 1))
            counted = store.evaluate(Expression(Selector("g"), Function.COUNT, 60, by=("gpu",)), end)
    (tmp_path / "dump.om").write_text(dumped(newest_prometheus, data))
    opened = open_recording([tmp_path / "dump.om"])
    assert_equal(values_at(opened.grid(last, at_steps(begin, end, 1))), values_at(expected), "g")
    assert opened.evaluate(Expression(Selector("g"), Function.COUNT, 60, by=("gpu",)), end) == counted
    assert [gap.detail.partition(" single")[0] for gap in opened.problems] == ["1"]
    lived = {one.labels["gpu"]: len(one.times) for one in expected}
    assert 0 < lived["1"] < lived["0"]
    assert begin < opened.end < end + timedelta(seconds=1)
