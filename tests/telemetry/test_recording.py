"""Files opened as one recording: what is in it, what was wrong with it, and the selection of series."""

import gzip
import json
import os
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from gpuwatch.facts.model.telemetry import GapKind
from gpuwatch.sources.telemetry import recording
from gpuwatch.sources.telemetry.recording import LoadedMetric, RecordingStore, open_recording
from gpuwatch.sources.telemetry.samples import (
    AnswerRow,
    Combine,
    Expression,
    Function,
    Matcher,
    MatchOp,
    Partition,
    QueryFailed,
    SampleStore,
    Selector,
    TelemetryError,
)
from gpuwatch.sources.telemetry.series import MetricSamples, RecordedSeries, stacked
from lab.simulate.recording import write_recording
from telemetry.timeline import SAMPLES, needs_samples

STALE = np.array([0x7FF0000000000002], np.uint64).view(np.float64)
NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
SECONDS = int(NOW.timestamp())


def last(metric: str, *matchers: Matcher) -> Expression:
    return Expression(Selector(metric, matchers), Function.LAST, by=None)


def text(folder: Path, name: str, content: str) -> Path:
    path = folder / name
    path.write_text(content)
    return path


def parquet(folder: Path, name: str, metric: str, samples: dict[int, float], **labels: str) -> Path:
    """A recording of one series; times in seconds relative to NOW."""
    times = np.array([(SECONDS + seconds) * 1000 for seconds in samples], np.int64)
    write_recording(folder / name, [RecordedSeries(metric, labels, times, np.array(list(samples.values())))])
    return folder / name


def test_a_page_answers_as_of_the_time_given_and_up_to_five_minutes_later(tmp_path: Path) -> None:
    page = text(tmp_path, "metrics", 'g{gpu="0",pod=""} 7\n')
    store: SampleStore = open_recording([page], NOW)
    assert store.evaluate(last("g"), NOW) == [AnswerRow({"gpu": "0"}, 7.0)]
    assert store.evaluate(last("g"), NOW - timedelta(milliseconds=1)) == []
    assert store.evaluate(last("g"), NOW + timedelta(seconds=299.999)) == [AnswerRow({"gpu": "0"}, 7.0)]
    assert store.evaluate(last("g"), NOW + timedelta(seconds=300)) == []
    window = Expression(Selector("g"), Function.COUNT, 3600)
    assert store.evaluate(window, NOW) == [AnswerRow({}, 1.0)]
    assert store.description == "recording metrics"


def test_a_page_without_a_time_is_as_old_as_its_file(tmp_path: Path) -> None:
    page = text(tmp_path, "metrics", "g 7\n")
    os.utime(page, (SECONDS, SECONDS + 0.25))
    opened = open_recording([page])
    assert opened.end == NOW + timedelta(seconds=0.25)


def test_a_folder_is_one_recording_whatever_its_files_are(tmp_path: Path) -> None:
    parquet(tmp_path, "week.parquet", "power", {-120: 300.0, -60: 310.0}, gpu="0")
    text(tmp_path, "later.om", f'power{{gpu="0"}} 320 {SECONDS}\ntemp{{gpu="0"}} 50 {SECONDS}\n# EOF\n')
    (tmp_path / "page.gz").write_bytes(gzip.compress(f'power{{gpu="1"}} 90 {SECONDS * 1000}\n'.encode()))
    answer = {"metric": {"__name__": "temp", "gpu": "1"}, "values": [[SECONDS - 30.5, "51"], [SECONDS, "+Inf"]]}
    answered = {"status": "success", "data": {"resultType": "matrix", "result": [answer]}}
    text(tmp_path, "answer.json", json.dumps(answered))
    text(tmp_path, ".hidden", "nothing to see")
    (tmp_path / "folder").mkdir()
    opened = open_recording([tmp_path])
    assert opened.problems == ()
    assert opened.end == NOW
    assert opened.metric_names(NOW, 3600) == {"power", "temp"}
    average = Expression(Selector("power"), Function.AVG, 600, by=("gpu",))
    assert opened.evaluate(average, NOW) == [AnswerRow({"gpu": "0"}, 310.0), AnswerRow({"gpu": "1"}, 90.0)]
    (series,) = opened.raw(Selector("temp", (Matcher("gpu", MatchOp.EQUAL, "1"),)), NOW - timedelta(seconds=120), NOW)
    assert (series.times, series.values) == ((SECONDS - 30.5, SECONDS), (51.0, float("inf")))


def test_out_of_order_samples_are_sorted_and_contradictions_reported(tmp_path: Path) -> None:
    unsorted = f'g{{a="1",b="2"}} 3 {SECONDS}\ng{{b="2",a="1"}} 1 {SECONDS - 60}\ng{{a="1",b="2"}} 2 {SECONDS - 30}\n'
    again = f'g{{a="1",b="2"}} 3 {SECONDS}\ng{{a="1",b="2"}} 9 {SECONDS - 60}\n'
    opened = open_recording([text(tmp_path, "a.om", f"{unsorted}{again}# EOF\n")])
    (series,) = opened.raw(Selector("g"), NOW - timedelta(hours=1), NOW)
    assert (series.labels, series.values) == ({"a": "1", "b": "2"}, (9.0, 2.0, 3.0))
    (gap,) = opened.problems
    assert (gap.kind, gap.what) == (GapKind.BAD_INPUT, str(tmp_path / "a.om"))
    assert gap.detail == (
        '1 samples of g occur twice with different values, the first at 2026-03-01T11:59:00+00:00 for {a="1",b="2"}; '
        "the last value counts"
    )


@pytest.mark.parametrize("reverse", [False, True])
def test_of_two_files_the_one_named_last_wins(tmp_path: Path, reverse: bool) -> None:
    first = parquet(tmp_path, "a.parquet", "g", {-60: 1.0, 0: 2.0}, gpu="0")
    second = text(tmp_path, "b.om", f'g{{gpu="0"}} 5 {SECONDS}\n# EOF\n')
    opened = open_recording([second, first] if reverse else [first, second])
    assert opened.problems == ()  # not read yet
    assert opened.evaluate(last("g"), NOW) == [AnswerRow({"gpu": "0"}, 2.0 if reverse else 5.0)]
    (gap,) = opened.problems
    assert "1 samples of g occur twice" in gap.detail
    assert gap.what == opened.description


def test_the_same_sample_twice_is_no_contradiction(tmp_path: Path) -> None:
    first = parquet(tmp_path, "a.parquet", "g", {-60: float("nan"), 0: 2.0}, gpu="0")
    second = text(tmp_path, "b.om", f'# TYPE g gauge\ng{{gpu="0"}} NaN {SECONDS - 60}\ng{{gpu="0"}} 2 {SECONDS}\n# EOF')
    opened = open_recording([first, second])
    assert opened.evaluate(Expression(Selector("g"), Function.COUNT, 600), NOW) == [AnswerRow({}, 2.0)]
    assert opened.problems == ()


def test_a_bad_file_in_a_folder_is_a_gap_and_the_others_are_read(tmp_path: Path) -> None:
    parquet(tmp_path, "a.parquet", "g", {0: 1.0})
    cut = parquet(tmp_path, "b.parquet", "g", {0: 1.0})
    cut.write_bytes(cut.read_bytes()[:-9])
    text(tmp_path, "readme.md", "# Title\n\nSome words.\n")
    text(tmp_path, "page", "Title\n\ng 2 soon\nh 1\n")
    opened = open_recording([tmp_path], NOW)
    assert opened.metric_names(NOW, 60) == {"g", "h"}
    found = [(gap.what.removeprefix(f"{tmp_path}/"), gap.detail) for gap in opened.problems]
    assert [what for what, _ in found] == ["b.parquet", "page:1", "page:3", "readme.md"]
    assert "cut off or damaged" in found[0][1]
    assert "has no samples" in found[3][1]
    assert {gap.kind for gap in opened.problems} == {GapKind.BAD_INPUT}


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("none.prom", None, "none.prom does not exist; name a recording"),
        ("empty.prom", b"", "empty.prom has no samples; give a recording"),
        ("title.prom", b"Only a title\n", "has no samples.*line 1: could not convert string to float: 'a'"),
        ("binary", b"\x7fELF\0\0\0\0", "binary is neither Parquet nor text"),
        ("cut.parquet", b"PAR1 and then nothing", "cut.parquet is cut off or damaged"),
        ("cut.gz", gzip.compress(b"g 1\n", mtime=0)[:12], "cut.gz has no samples .the file is cut off or damaged"),
        ("error.json", b'{"status":"error","error":"query timed out"}', "answered with error: query timed out"),
        ("list.json", b"[1, 2]", "not an answer of /api/v1/query"),
        ("cut.json", b'{"status":"success","data":{"resultType"', "not an answer of .* truncated"),
        ("scalar.json", b'{"status":"success","data":{"resultType":"scalar","result":[1,"2"]}}', "scalar"),
        ("none.json", b'{"status":"success","data":{"resultType":"vector","result":[]}}', "has no samples"),
    ],
)
def test_a_named_file_that_cannot_be_read_says_why(
    tmp_path: Path, name: str, content: bytes | None, complaint: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(TelemetryError, match=complaint) as raised:
        open_recording([tmp_path / name], NOW)
    assert str(tmp_path / name) in str(raised.value)


def test_nothing_at_all_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TelemetryError, match=r"no samples in .*; give a recording of gpuwatch"):
        open_recording([tmp_path])
    with pytest.raises(TelemetryError, match="no samples in no file"):
        open_recording([])
    write_recording(tmp_path / "ends.parquet", [RecordedSeries("g", {}, np.array([1]), STALE)])
    with pytest.raises(TelemetryError, match="no samples in"):  # staleness markers alone
        open_recording([tmp_path / "ends.parquet"])


def test_a_compressed_page_that_breaks_off_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    lines = "".join(f'g{{i="{number}"}} {number}\n' for number in range(20_000))
    packed = gzip.compress(lines.encode())
    (tmp_path / "page.gz").write_bytes(packed[: len(packed) // 2])
    opened = open_recording([tmp_path / "page.gz"], NOW)
    (count,) = opened.evaluate(Expression(Selector("g"), Function.LAST, combine=Combine.COUNT), NOW)
    assert 5_000 < count.value < 15_000
    assert "the file is cut off or damaged" in opened.problems[-1].detail


def test_a_saved_answer_with_results_that_are_no_series(tmp_path: Path) -> None:
    results = [
        {"metric": {"gpu": "0"}, "value": [SECONDS, "1"]},
        {"metric": {"__name__": "h"}, "histogram": [SECONDS, {}]},
        {"metric": {"__name__": "g"}, "value": [SECONDS, "one"]},
        {"metric": {"__name__": "g"}, "value": [SECONDS, "1"]},
    ]
    answered = {"status": "success", "data": {"resultType": "vector", "result": results}}
    opened = open_recording([text(tmp_path, "a.json", json.dumps(answered))])
    assert opened.evaluate(last("g"), NOW) == [AnswerRow({}, 1.0)]
    assert [gap.what.rpartition(":")[2] for gap in opened.problems] == ["1", "2", "3"]


@needs_samples
def test_a_real_answer_of_prometheus() -> None:
    opened = open_recording([SAMPLES / "dcgm/aicr-promapi-DCGM_FI_DEV_GPU_UTIL.json"])
    assert opened.problems == ()
    expression = Expression(Selector("DCGM_FI_DEV_GPU_UTIL"), Function.LAST, combine=Combine.COUNT, by=("Hostname",))
    assert {row.labels["Hostname"] for row in opened.evaluate(expression, opened.end)} == {"gpu-node-1", "gpu-node-2"}


def test_metric_names_are_those_with_samples_in_the_look_back(tmp_path: Path) -> None:
    """Left-open, and true for a series whose recording spans the look-back with nothing in it."""
    files = [
        parquet(tmp_path, "hole.parquet", "hole", {-9000: 1.0, 0: 1.0}),
        parquet(tmp_path, "early.parquet", "early", {-3600: 1.0}),
        parquet(tmp_path, "late.parquet", "late", {-3599: 1.0}),
        parquet(tmp_path, "gone.parquet", "gone", {-7200: 1.0}),
    ]
    opened = open_recording(files)
    assert opened.metric_names(NOW, 3600) == {"hole", "late"}
    assert opened.metric_names(NOW - timedelta(seconds=1), 3600) == {"early", "late"}
    assert opened.metric_names(NOW, 3600 * 24) == {"hole", "early", "late", "gone"}
    assert opened.metric_names(NOW - timedelta(seconds=9001), 3600) == frozenset()


def test_metrics_that_ended_in_the_look_back_have_no_samples_there(tmp_path: Path) -> None:
    times = np.array([SECONDS - 4000, SECONDS - 60]) * 1000
    write_recording(tmp_path / "a.parquet", [RecordedSeries("g", {}, times, np.array([1.0, *STALE]))])
    assert open_recording([tmp_path]).metric_names(NOW, 3600) == frozenset()


@pytest.mark.parametrize(
    ("matcher", "found"),
    [
        (Matcher("gpu", MatchOp.EQUAL, "1"), {"1"}),
        (Matcher("gpu", MatchOp.EQUAL, ""), {"none"}),  # a missing label is the empty string
        (Matcher("gpu", MatchOp.MATCHES, "1"), {"1"}),  # anchored
        (Matcher("gpu", MatchOp.MATCHES, "0|1"), {"0", "1"}),
        (Matcher("gpu", MatchOp.MATCHES, "1.*"), {"1", "10"}),
        (Matcher("gpu", MatchOp.MATCHES, ".*"), {"0", "1", "10", "none", "line"}),
        (Matcher("gpu", MatchOp.MATCHES, ".+"), {"0", "1", "10", "line"}),
        (Matcher("gpu", MatchOp.MATCHES, "a.b"), {"line"}),  # a dot is any character, as in Prometheus 3
        (Matcher("gpu", MatchOp.MATCHES, "(?i:A.B)"), {"line"}),
    ],
)
def test_matchers(tmp_path: Path, matcher: Matcher, found: set[str]) -> None:
    page = 'g{gpu="0",n="0"} 1\ng{gpu="1",n="1"} 1\ng{gpu="10",n="10"} 1\ng{n="none"} 1\ng{gpu="a\\nb",n="line"} 1\n'
    opened = open_recording([text(tmp_path, "page", page)], NOW)
    assert {row.labels["n"] for row in opened.evaluate(last("g", matcher), NOW)} == found
    assert {one.labels["n"] for one in opened.raw(Selector("g", (matcher,)), NOW - timedelta(1), NOW)} == found


def test_one_bad_question_costs_one_answer(tmp_path: Path) -> None:
    opened = open_recording([text(tmp_path, "page", "g 1\nh 2\n")], NOW)
    questions = [last("h"), last("g", Matcher("gpu", MatchOp.MATCHES, "(")), last("nothing"), last("g")]
    answers = opened.evaluate_many(questions, NOW)
    assert isinstance(answers[1], QueryFailed)
    assert "gpu=~'('" in str(answers[1])
    assert [answers[0], answers[2], answers[3]] == [[AnswerRow({}, 2.0)], [], [AnswerRow({}, 1.0)]]


def test_a_question_without_sense_is_a_mistake_of_the_caller(tmp_path: Path) -> None:
    opened = open_recording([text(tmp_path, "page", "g 1\n")], NOW)
    with pytest.raises(ValueError, match="needs a parameter"):
        opened.evaluate(Expression(Selector("g"), Function.QUANTILE, 60), NOW)


def test_steps_are_those_of_the_question_else_of_the_partition_else_a_minute(tmp_path: Path) -> None:
    opened = open_recording([parquet(tmp_path, "a.parquet", "g", {-50: 1.0, 0: 0.0})])
    asked = Expression(Selector("g"), Function.LAST_TIME, 40, offset_seconds=10)
    partition = Partition("node", {}, 30.0)
    assert opened.evaluate(asked, NOW) == []  # -50 s is outside, and no minute ends in the window
    assert opened.evaluate(asked, NOW, partition) == [AnswerRow({}, SECONDS - 30.0)]
    in_tens = Expression(Selector("g"), Function.LAST_TIME, 45, offset_seconds=10, step_seconds=10)
    assert opened.evaluate(in_tens, NOW, partition) == [AnswerRow({}, SECONDS - 50.0)]


def test_raw_samples_are_left_open_and_without_markers(tmp_path: Path) -> None:
    times = np.array([SECONDS - 120, SECONDS - 60, SECONDS - 30, SECONDS]) * 1000
    values = np.concatenate(([1.0, 2.0], STALE, [float("nan")]))
    write_recording(tmp_path / "a.parquet", [RecordedSeries("g", {"gpu": "0"}, times, values)])
    (series,) = open_recording([tmp_path]).raw(Selector("g"), NOW - timedelta(seconds=120), NOW)
    assert series.times == (SECONDS - 60, SECONDS)
    assert series.values[0] == 2.0
    assert np.isnan(series.values[1])


def test_a_small_cache_gives_the_same_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        parquet(tmp_path, f"{number}.parquet", f"g{number}", {-60: 1.0, 0: float(number)})
    questions = [last(f"g{number % 4}") for number in range(12)]
    whole = open_recording([tmp_path]).evaluate_many(questions, NOW)
    monkeypatch.setattr(recording, "_CACHE_BYTES", 40)
    small = open_recording([tmp_path])
    assert small.evaluate_many(questions, NOW) == whole
    assert whole == [[AnswerRow({}, float(number % 4))] for number in range(12)]


class Counting:
    """Metrics of one series with one sample, 16 bytes each; counts how often each is read."""

    def __init__(self, *metrics: str) -> None:
        self.spans_ms = dict.fromkeys(metrics, (SECONDS * 1000, SECONDS * 1000))
        self.reads: Counter[str] = Counter()

    def read(self, metric: str) -> MetricSamples:
        self.reads[metric] += 1
        value = float(ord(metric))
        return stacked([{"gpu": "0"}], [(np.array([SECONDS * 1000 - ord(metric)]), np.array([value]))])


def test_metrics_that_fit_are_read_once_and_of_more_the_first_ones_are(monkeypatch: pytest.MonkeyPatch) -> None:
    questions = [last(metric) for metric in "abcd"]
    expected = [[AnswerRow({"gpu": "0"}, float(ord(metric)))] for metric in "abcd"]
    for limit, reads in ((64, {"a": 1, "b": 1, "c": 1, "d": 1}), (63, {"a": 1, "b": 1, "c": 3, "d": 3})):
        monkeypatch.setattr(recording, "_CACHE_BYTES", limit)
        part = Counting("a", "b", "c", "d")
        store = RecordingStore("test", [part])
        for _ in range(3):
            assert store.evaluate_many(questions, NOW) == expected
        assert part.reads == reads


def test_metrics_that_are_scraped_together_share_their_times() -> None:
    first, alike, other = (
        stacked([{"gpu": "0"}], [(np.array(times), np.array([1.0, 2.0]))]) for times in ([0, 60], [0, 60], [1, 60])
    )
    known = LoadedMetric(first).samples.times_ms
    assert LoadedMetric(alike, [known]).samples.times_ms is known
    assert LoadedMetric(other, [known]).samples.times_ms.tolist() == [1, 60]


def test_every_store_prints_the_same_promql(tmp_path: Path) -> None:
    opened = open_recording([text(tmp_path, "page", "g 1\n")], NOW)
    assert opened.render(Expression(Selector("g"), Function.MAX, 900, by=("UUID",))) == (
        "max by (UUID) (max_over_time(g[15m]))"
    )
