"""What goes wrong between gpuwatch and a server, against a real server on loopback."""

import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gpuwatch.facts.model.telemetry import GapKind
from gpuwatch.sources.telemetry import http_api
from gpuwatch.sources.telemetry.connection import Connection
from gpuwatch.sources.telemetry.prometheus import PrometheusStore
from gpuwatch.sources.telemetry.samples import (
    AnswerRow,
    Expression,
    Function,
    Partition,
    QueryFailed,
    QueryTooLarge,
    Selector,
    Steps,
    StoreRefused,
    StoreUnreachable,
    TelemetryError,
)
from parts.processes import free_port
from parts.scripted_server import PROBE, Asked, Reply, always, error, in_turn, scripted, vector

AT = datetime.fromtimestamp(1_760_000_400, UTC)
QUESTION = Expression(Selector("some_metric"), Function.AVG, 3600, by=("node",))
ONE_ROW = vector(({"node": "a"}, "1.5"))
VECTOR = '{"status":"success","data":{"resultType":"vector","result":[%s]}}'
LOGIN_PAGE = "<!DOCTYPE html><html><head><title>Sign in</title></head><body>password</body></html>"


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second attempt waits for nothing but what the server asks for."""
    monkeypatch.setattr(http_api, "BACKOFF_SECONDS", 0.0)


def connection(url: str, **more: object) -> Connection:
    return replace(Connection(url=url, retries=0), **more)


def failure(reply: Reply, **more: object) -> TelemetryError:
    with scripted(always(reply)) as server:
        answer = PrometheusStore(connection(server.url, **more)).evaluate_many([QUESTION], AT)[0]
        assert isinstance(answer, TelemetryError)
        assert server.url in str(answer)
        assert "avg_over_time(some_metric[1h])" in str(answer)
        return answer


@pytest.mark.parametrize(
    ("reply", "kind", "told"),
    [
        (Reply(401, "no"), StoreRefused, "401 Unauthorized.*bearer_token"),
        (Reply(403, "no org id"), StoreRefused, "403 Forbidden.*no org id.*X-Scope-OrgID"),
        (Reply(404, "404 page not found"), QueryFailed, "404 Not Found.*path prefix"),
        (error(400, "bad_data", "parse error: unexpected end"), QueryFailed, "400.*parse error: unexpected end"),
        (error(422, "execution", "who knows"), QueryTooLarge, "422.*who knows"),
        (Reply(413, "too big"), QueryTooLarge, "413"),
        (Reply(429, "slow down"), QueryFailed, "429.*lower concurrency"),
        (error(500, "internal", "broken block"), QueryFailed, "500.*broken block.*log"),
        (Reply(503, "starting"), StoreUnreachable, "503 Service Unavailable.*try again later"),
        (Reply(502, "<html><title>Bad Gateway</title>"), StoreUnreachable, "502.*titled 'Bad Gateway'"),
        (error(503, "timeout", "query timed out in expression evaluation"), QueryTooLarge, "took too long"),
        (Reply(200, LOGIN_PAGE), QueryFailed, "web page.*titled 'Sign in'.*login page"),
        (Reply(200, '{"status":"success","data":{"resu'), QueryFailed, "broke off after 33 bytes"),
        (Reply(200, "pong"), QueryFailed, "not of the Prometheus API"),
        (Reply(200, '{"status":"success","data":[1]}'), QueryFailed, "not of the Prometheus API"),
        (Reply(200, VECTOR % '{"metric":{"a":1},"value":[1,"2"]}'), QueryFailed, "not of the Prometheus API"),
        (Reply(200, VECTOR % '{"metric":{"a":"b"},"value":[1,"two"]}'), QueryFailed, "not of the Prometheus API"),
        (Reply(200, '{"status":"error","error":"no store"}'), QueryFailed, "the query failed.*no store"),
        (Reply(200, '{"status":"suc', notified=400), QueryFailed, "broke off"),
        (Reply(302, headers={"Location": "https://sso.example/login?token=abc"}), StoreRefused, "sso.example/login;"),
        (
            Reply(301, headers={"Location": "/prometheus/api/v1/query"}),
            QueryFailed,
            "to /prometheus/api/v1/query;",
        ),
        (Reply(418, "short"), QueryFailed, "418"),
    ],
)
def test_each_failure_says_what_it_is_and_what_to_do(reply: Reply, kind: type[TelemetryError], told: str) -> None:
    found = failure(reply)
    assert isinstance(found, kind)
    with pytest.raises(kind, match=f"(?s){told}"):
        raise found


@pytest.mark.parametrize(
    "text",
    [
        "query processing would load too many samples into memory in query execution",
        "expanding series: proxy Series(): rpc error: code = ResourceExhausted desc = exceeded series limit: "
        "rpc error: code = Code(422) desc = limit 12000 violated (got 12704)",
        "the query exceeded the maximum number of chunks (limit: 2000000 chunks) (err-mimir-max-chunks-per-query)",
        "the query exceeded the maximum allowed estimated amount of memory consumed by a single query (limit: 1 bytes) "
        "(err-mimir-max-estimated-memory-consumption-per-query)",
        "the query hit the max number of series limit (limit: 100000 series)",
        "cannot select more than -search.maxSamplesPerQuery=1000000000 samples",
        "the number of matching timeseries exceeds 300000; either narrow down the search or increase -search.max*",
        "not enough memory for processing 36 data points across 2 time series",
        "the response contains more than -search.maxResponseSeries=2 time series: 7 series; either increase it",
        "too long query; got 20000 bytes; mustn't exceed `-search.maxQueryLen=16384` bytes",
    ],
)
@pytest.mark.parametrize("status", [422, 500])
def test_the_wordings_of_limits_are_known_whatever_the_status(status: int, text: str) -> None:
    answer = failure(error(status, "execution", text))
    assert type(answer) is QueryTooLarge


def test_a_range_of_too_many_steps_is_not_taken_for_too_many_samples() -> None:
    text = "exceeded maximum resolution of 11,000 points per timeseries. Try decreasing the query resolution"
    assert type(failure(error(400, "bad_data", text))) is QueryFailed


# Splitting


NODES = Partition("node", {f"n{index}": 1 for index in range(8)}, 60)


def accepts_at_most(nodes: int, refusal: Reply) -> Callable[[Asked], Reply]:
    def answer(asked: Asked) -> Reply:
        if asked.query == PROBE:
            return Reply()
        names = [node for node in NODES.nodes if node in asked.query] or list(NODES.nodes)
        return vector(*(({"node": node}, "1") for node in names)) if len(names) <= nodes else refusal

    return answer


TOO_MANY = error(422, "execution", "query processing would load too many samples into memory in query execution")


def test_a_refused_query_is_cut_in_two_until_it_passes() -> None:
    with scripted(accepts_at_most(2, TOO_MANY)) as server:
        rows = PrometheusStore(connection(server.url)).evaluate(QUESTION, AT, NODES)
        assert sorted(row.labels["node"] for row in rows) == sorted(NODES.nodes)
        # All eight, and once it is known that four are too many as well nothing larger is asked again.
        assert 1 + 1 + 4 <= len(server.queries) <= 1 + 2 + 4
        assert 'some_metric{node=~"n0|n1"}' in " ".join(server.queries)


def test_what_was_refused_is_remembered() -> None:
    with scripted(accepts_at_most(2, TOO_MANY)) as server:
        store = PrometheusStore(connection(server.url))
        store.evaluate(QUESTION, AT, NODES)
        before = len(server.queries)
        store.evaluate(QUESTION, AT, NODES)
        assert len(server.queries) == before + 4


def test_it_ends_at_one_node() -> None:
    with scripted(accepts_at_most(0, TOO_MANY)) as server:
        answers = PrometheusStore(connection(server.url, concurrency=1)).evaluate_many([QUESTION], AT, NODES)
        assert type(answers[0]) is QueryTooLarge
        assert 'some_metric{node="n0"}' in " ".join(server.queries)
        assert len(server.queries) < 2 * len(NODES.nodes)


def test_an_error_that_only_may_be_about_size_is_cut_in_two_twice() -> None:
    with scripted(accepts_at_most(2, error(503, "timeout", "query timed out in expression evaluation"))) as server:
        rows = PrometheusStore(connection(server.url)).evaluate(QUESTION, AT, NODES)
        assert len(rows) == 8
    with scripted(accepts_at_most(1, error(422, "execution", "who knows"))) as server:
        [answer] = PrometheusStore(connection(server.url)).evaluate_many([QUESTION], AT, NODES)
        assert isinstance(answer, QueryTooLarge)
        assert "who knows" in str(answer)
        assert len(server.queries) <= 1 + 2 + 4


# Trying again


def test_it_tries_again_on_429_and_5xx_and_broken_answers() -> None:
    cut = Reply(200, '{"status":"suc', notified=400)
    with scripted(in_turn(Reply(429), Reply(503), cut, ONE_ROW)) as server:
        store = PrometheusStore(connection(server.url, retries=3))
        assert store.evaluate(QUESTION, AT) == [AnswerRow({"node": "a"}, 1.5)]
        assert len(server.queries) == 4


def test_it_stops_trying() -> None:
    with scripted(always(Reply(503))) as server:
        with pytest.raises(StoreUnreachable):
            PrometheusStore(connection(server.url, retries=2)).evaluate(QUESTION, AT)
        assert len(server.queries) == 3


@pytest.mark.parametrize("reply", [Reply(401), Reply(404), error(422, "execution", "no"), Reply(200, LOGIN_PAGE)])
def test_what_will_not_change_is_not_asked_again(reply: Reply) -> None:
    with scripted(always(reply)) as server:
        PrometheusStore(connection(server.url, retries=3)).evaluate_many([QUESTION], AT)
        assert len(server.queries) == 1


def test_retry_after_is_honoured_up_to_the_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(in_turn(Reply(429, headers={"Retry-After": "1"}), ONE_ROW)) as server:
        began = time.monotonic()
        PrometheusStore(connection(server.url, retries=1)).evaluate(QUESTION, AT)
        assert time.monotonic() - began >= 1
    monkeypatch.setattr(http_api, "RETRY_MAX_SECONDS", 0.1)
    with scripted(in_turn(Reply(503, headers={"Retry-After": "3600"}), ONE_ROW)) as server:
        began = time.monotonic()
        PrometheusStore(connection(server.url, retries=1)).evaluate(QUESTION, AT)
        assert time.monotonic() - began < 10


def test_a_server_that_is_gone_is_not_asked_for_every_answer() -> None:
    with scripted(always(Reply(503))) as server:
        answers = PrometheusStore(connection(server.url, concurrency=1)).evaluate_many([QUESTION] * 50, AT)
        assert all(isinstance(answer, StoreUnreachable) for answer in answers)
        assert len(server.queries) == 3


def test_one_failed_question_costs_one_answer() -> None:
    def answer(asked: Asked) -> Reply:
        if asked.query == PROBE:
            return Reply()
        return error(400, "bad_data", "bad") if "some_metric" in asked.query else ONE_ROW

    with scripted(answer) as server:
        other = replace(QUESTION, selector=Selector("other_metric"))
        failed, answered = PrometheusStore(connection(server.url)).evaluate_many([QUESTION, other], AT)
        assert isinstance(failed, QueryFailed)
        assert answered == [AnswerRow({"node": "a"}, 1.5)]


# No answer at all


def test_nobody_listens() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(StoreUnreachable, match=f"{url}: cannot be reached: .*[Rr]efused"):
        PrometheusStore(connection(url)).evaluate(QUESTION, AT)


def test_a_host_that_does_not_resolve() -> None:
    with pytest.raises(StoreUnreachable, match=r"cannot be reached: .*no-such-host\.invalid"):
        PrometheusStore(connection("http://no-such-host.invalid")).evaluate(QUESTION, AT)


def test_a_server_that_does_not_answer_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuwatch.sources.telemetry.http_api._GRACE_SECONDS", 0.1)
    with scripted(always(Reply(pause_seconds=30))) as server:
        began = time.monotonic()
        with pytest.raises(StoreUnreachable, match=r"no answer within 0\.2 s; raise timeout_seconds"):
            PrometheusStore(connection(server.url, timeout_seconds=0.2)).evaluate(QUESTION, AT)
        assert time.monotonic() - began < 10
        server.stop_waiting.set()


def test_a_query_that_takes_too_long_is_cut_in_two_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuwatch.sources.telemetry.http_api._GRACE_SECONDS", 0.1)
    with scripted(accepts_at_most(4, Reply(pause_seconds=30))) as server:
        rows = PrometheusStore(connection(server.url, timeout_seconds=0.4)).evaluate(QUESTION, AT, NODES)
        assert len(rows) == 8
        assert len(server.queries) == 3
        server.stop_waiting.set()


def test_a_proxy_that_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://user:proxy-password@127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://user:proxy-password@127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(StoreUnreachable, match="HTTP_PROXY") as caught:
        PrometheusStore(connection("http://prometheus.invalid")).evaluate(QUESTION, AT)
    assert "proxy-password" not in str(caught.value)


# What messages hold


@pytest.mark.parametrize("status", [200, 401, 500])
def test_secrets_are_in_no_message(status: int) -> None:
    def echoing(asked: Asked) -> Reply:
        return Reply(status, f"you sent {asked.headers['authorization']} and {asked.headers['x-key']}")

    with scripted(echoing) as server:
        secret = connection(server.url, bearer_token="s3cret-token", headers={"X-Key": "k3y-material"})
        assert "s3cret-token" not in repr(secret)
        assert "k3y-material" not in repr(secret)
        store = PrometheusStore(secret)
        assert "s3cret" not in store.description
        with pytest.raises(TelemetryError, match=r"you sent Bearer \*\*\* and \*\*\*") as caught:
            store.evaluate(QUESTION, AT)
        assert "s3cret" not in str(caught.value)
    with pytest.raises(StoreUnreachable) as unreachable:
        PrometheusStore(connection("http://someone:pa55word@127.0.0.1:1")).evaluate(QUESTION, AT)
    assert "pa55word" not in str(unreachable.value)
    assert "someone" not in str(unreachable.value)


def test_long_queries_are_shortened_in_messages() -> None:
    long = replace(QUESTION, selector=Selector("m" * 5000))
    with scripted(always(Reply(404))) as server, pytest.raises(QueryFailed) as caught:
        PrometheusStore(connection(server.url)).evaluate(long, AT)
    assert len(str(caught.value)) < 1000


# What is said beside the answer


PARTIAL = [{"warnings": ["No StoreAPIs matched for this query"]}, {"isPartial": True}]
WHOLE = [{}, {"warnings": None}, {"isPartial": False}, {"infos": ["PromQL info: metric might not be a counter"]}]


def test_warnings_are_kept_once_and_remarks_are_not() -> None:
    said = ["No StoreAPIs matched for this query", "PromQL info: metric might not be a counter"]
    with scripted(always(vector(({"node": "a"}, "1"), warnings=said))) as server:
        store = PrometheusStore(connection(server.url))
        assert store.problems == ()
        store.evaluate_many([QUESTION, QUESTION], AT)
        (gap,) = store.problems
        assert gap.kind is GapKind.PARTIAL
        assert gap.detail.startswith("No StoreAPIs matched for this query ")


@pytest.mark.parametrize(("said", "lacks"), [*((each, 1) for each in PARTIAL), *((each, 0) for each in WHOLE)])
def test_every_kind_of_answer_may_be_partial(said: Mapping[str, object], lacks: int) -> None:
    matrix = {"resultType": "matrix", "result": [{"metric": {"node": "a"}, "values": [[1_760_000_400, "1"]]}]}
    answers = {
        "/query": {"resultType": "vector", "result": []},
        "/query_range": matrix,
        "/label/__name__/values": ["a"],
        "/rules": {"groups": []},
    }

    def answer(asked: Asked) -> Reply:
        if asked.query == PROBE:
            return vector(({}, "21"))
        data = matrix if asked.query.endswith("]") else answers[asked.path.removeprefix("/api/v1")]
        return Reply(body=json.dumps({"status": "success", "data": data, **said}))

    steps = Steps(AT - timedelta(minutes=5), 300, 1)
    with scripted(answer) as server:
        store = PrometheusStore(connection(server.url))
        asks: list[Callable[[PrometheusStore], object]] = [
            lambda reading: reading.evaluate(QUESTION, AT),
            lambda reading: reading.grid(QUESTION, steps),
            lambda reading: reading.raw(QUESTION.selector, AT - timedelta(minutes=5), AT),
            lambda reading: reading.metric_names(AT, 3600),
            lambda reading: reading.alert_names(),
        ]
        for ask in asks:
            reading = store.reading()
            ask(reading)
            assert len(reading.problems) == lacks
            assert store.reading().problems == store.problems == ()


def test_reads_at_the_same_time_lack_only_what_their_own_answers_lack() -> None:
    """The answers to `some_metric` are whole, those to `other` partial; one connection, many threads."""

    def answer(asked: Asked) -> Reply:
        if asked.query == PROBE:
            return Reply()
        return vector(({"node": "a"}, "1"), warnings=["store-3 did not answer"] if "other" in asked.query else [])

    def read(metric: str) -> int:
        reading = store.reading()
        reading.evaluate_many([replace(QUESTION, selector=Selector(metric))] * 5, AT)
        return len(reading.problems)

    with scripted(answer) as server:
        store = PrometheusStore(connection(server.url))
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(read, ["some_metric", "other"] * 20)) == [0, 1] * 20
        assert len([each for each in server.asked if each.query == PROBE]) == 1, "the dialect is shared"


def test_a_dialect_that_was_not_told_is_asked_for_again() -> None:
    """Of a proxy that answered 200 and nothing."""
    told = [vector(), vector(({}, "32"))]

    def answer(asked: Asked) -> Reply:
        return told.pop(0) if asked.query == PROBE else ONE_ROW

    with scripted(answer) as server:
        store = PrometheusStore(connection(server.url))
        for _ in range(3):
            store.reading().evaluate(QUESTION, AT)
        assert [query.partition("[")[2] for query in server.queries] == ["1h]))", "3599999ms]))", "3599999ms]))"]


def test_values_that_json_cannot_carry() -> None:
    with scripted(always(vector(({"a": "1"}, "NaN"), ({"a": "2"}, "+Inf"), ({"a": "3"}, "-1.5e-07")))) as server:
        rows = PrometheusStore(connection(server.url)).evaluate(QUESTION, AT)
        assert [str(row.value) for row in rows] == ["nan", "inf", "-1.5e-07"]


def test_the_clock_of_the_server() -> None:
    with scripted(always(vector())) as server:
        store = PrometheusStore(connection(server.url))
        skew = store.clock_skew_seconds(datetime.now(UTC))
        assert skew is not None
        assert abs(skew) < 5


def test_metric_names_where_there_is_no_list_of_label_values() -> None:
    def answer(asked: Asked) -> Reply:
        return Reply(404) if "/label/" in asked.path else vector(({"name": "a"}, "2"), ({"name": "b"}, "1"))

    with scripted(answer) as server:
        assert PrometheusStore(connection(server.url)).metric_names(AT, 3600) == {"a", "b"}


def test_no_metric_names_at_all_is_an_answer() -> None:
    with scripted(always(Reply(body='{"status":"success","data":null}'))) as server:
        assert PrometheusStore(connection(server.url)).metric_names(AT, 3600) == frozenset()
        assert server.asked[0].form == {"start": "1759996800.000", "end": "1760000400.000"}
