"""Exposition text as exporters, Prometheus and promtool write it, and as people save it."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.facts.model.plain_text import plain_key
from gpuwatch.sources.telemetry.recording_part import parse
from gpuwatch.sources.telemetry.series import is_stale
from telemetry.timeline import SAMPLES, needs_samples

PAGE_MS = 1_760_000_000_000


def read(text: str) -> tuple[list[tuple[str, dict[str, str], list[int], list[float]]], list[tuple[int, str]]]:
    series, problems = parse(text.splitlines(keepends=True), PAGE_MS)
    assert problems.hidden == 0
    plain = [(one.metric, dict(one.labels), one.times_ms.tolist(), one.values.tolist()) for one in series]
    return plain, problems.shown


def test_a_page_without_timestamps_is_of_the_time_that_is_given() -> None:
    text = '# HELP g A gauge.\n# TYPE g gauge\ng{gpu="0",UUID="GPU-1",pod=""} 30\nbare 1e3\n'
    assert read(text) == (
        [("g", {"gpu": "0", "UUID": "GPU-1"}, [PAGE_MS], [30.0]), ("bare", {}, [PAGE_MS], [1000.0])],
        [],
    )


@pytest.mark.parametrize(
    ("text", "times_ms"),
    [
        ("a 1 1773114089444\na 2 1773114119444\n", [1773114089444, 1773114119444]),  # Prometheus text: milliseconds
        ("a 1 1773114089.444\na 2 1.773114119444e9\n# EOF\n", [1773114089444, 1773114119444]),  # OpenMetrics: seconds
        ("a 1\na 2 1773114119444\n", [PAGE_MS, 1773114119444]),
        ("a 1 -5\na 2 0\n# EOF", [-5000, 0]),
    ],
)
def test_the_end_mark_decides_the_unit_of_timestamps(text: str, times_ms: list[int]) -> None:
    assert read(text) == ([("a", {}, times_ms, [1.0, 2.0])], [])


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("a 1 1773114089.444\n", "may be cut off; read as seconds"),  # a dump without its last line
        ("a 1 1773114089444\n# EOF\n", "read as milliseconds"),
    ],
)
def test_timestamps_that_contradict_the_end_mark_are_read_by_their_size_and_reported(text: str, detail: str) -> None:
    series, problems = read(text)
    assert series == [("a", {}, [1773114089444], [1.0])]
    assert [line for line, _ in problems] == [0]
    assert detail in problems[0][1]


def test_titles_rulers_and_repeated_help_do_not_stop_the_page() -> None:
    text = "Active 1g.5gb\n\n-----\n# HELP a x\n# TYPE a gauge\na 1\n# HELP a x\n# TYPE a gauge\nb 2\n"
    series, problems = read(text)
    assert [one[0] for one in series] == ["a", "b"]
    assert [line for line, _ in problems] == [1, 3]
    assert "could not convert string to float: '1g.5gb'" in problems[0][1]
    assert problems[0][1].endswith("the line is skipped: Active 1g.5gb")


@pytest.mark.parametrize(
    ("line", "detail"),
    [
        ("a", "not a metric, its value"),
        ('a{gpu="0"}', "not a metric, its value"),
        ("a 1 2 3", "not a metric, its value"),
        ("a one", "could not convert string to float: 'one'"),
        ("a 1 soon", "could not convert string to float: 'soon'"),
        ("a 1 NaN", "NaN is no timestamp"),
        ("a 1 1e15", "1e15 is no timestamp"),
        ('a{gpu="0" 1', "not a metric with its labels"),
        ("a{gpu=0} 1", "not a metric with its labels"),
        ('{gpu="0"} 1', "not a metric with its labels"),
        ('1a{gpu="0"} 1', "not a metric with its labels"),
        ("<html><body>502 Bad Gateway</body></html>", "not a metric"),
    ],
)
def test_a_line_that_cannot_be_read_is_skipped_with_its_number(line: str, detail: str) -> None:
    series, problems = read(f"before 1\n{line}\nafter 2\n")
    assert [one[0] for one in series] == ["before", "after"]
    assert [number for number, _ in problems] == [2]
    assert detail in problems[0][1]


def test_a_long_list_of_problems_is_cut_with_its_count() -> None:
    _, problems = parse(["<p>\n"] * 1000, PAGE_MS)
    assert len(problems.shown) == 20
    assert problems.hidden == 980


def test_escapes_are_undone() -> None:
    text = r'a{msg="GPU has fallen \"off\" the bus\\\n",path="C:\\new",} 1' + "\n"
    assert read(text)[0][0][1] == {
        "msg": plain_key('GPU has fallen "off" the bus\\\n'),
        "path": "C:\\new",
    }


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ('gpu="0",model="the "big" one",host="n"', {"gpu": "0", "model": 'the "big" one', "host": "n"}),
        ('msg="a", "b"",host="n"', {"msg": 'a", "b"', "host": "n"}),
        ('model="ends with \\",host="n"', {"model": "ends with \\", "host": "n"}),
        ('msg="brace } and "quote""', {"msg": 'brace } and "quote"'}),
    ],
)
def test_values_that_the_exporter_did_not_escape_are_read_as_they_stand_and_reported(
    labels: str, expected: dict[str, str]
) -> None:
    series, problems = read(f"a{{{labels}}} 7\n")
    assert series == [("a", expected, [PAGE_MS], [7.0])]
    assert [number for number, _ in problems] == [1]
    assert "not escaped" in problems[0][1]


@pytest.mark.parametrize(
    ("line", "labels", "value"),
    [
        ('x_total{gpu="0"} 5 17.5 # {trace_id="a}b"} 0.5 17.1', {"gpu": "0"}, 5.0),
        ('x_total{gpu="0"} 5 17.5 # {} 0.5', {"gpu": "0"}, 5.0),
        ('x_total 5 17.5 # {trace_id="a"} 0.5', {}, 5.0),
        ('x_total{msg="no # {exemplar} here"} 5 17.5', {"msg": "no # {exemplar} here"}, 5.0),
        ('{"x_total",gpu="0"} 5 17.5', {"gpu": "0"}, 5.0),
        ('{__name__="x_total", gpu="0"} 5 17.5', {"gpu": "0"}, 5.0),
        ('x_total{"label with spaces"="1",gpu="0"} 5 17.5', {"label with spaces": "1", "gpu": "0"}, 5.0),
        ('x_total{ gpu = "0" , } \t 5 \t 17.5', {"gpu": "0"}, 5.0),
        ("x_total{} +Inf 17.5", {}, math.inf),
    ],
)
def test_legal_lines_of_every_shape(line: str, labels: dict[str, str], value: float) -> None:
    assert read(f"{line}\n# EOF\n") == ([("x_total", labels, [17500], [value])], [])


def test_one_nan_after_a_number_in_a_dump_is_the_end_of_the_series() -> None:
    text = (
        'a{gpu="0"} 1 100.000\na{gpu="0"} NaN 130.000\na{gpu="0"} 2 160.000\na{gpu="0"} NaN 190.000\n'
        'a{gpu="1"} NaN 100.000\na{gpu="1"} NaN 130.000\na{gpu="1"} 3 160.000\n'
        'a{gpu="2"} NaN 100.000\n# EOF\n'
    )
    series, problems = parse(text.splitlines(), PAGE_MS)
    assert [is_stale(one.values).tolist() for one in series] == [
        [False, True, False, True],
        [False, False, False],
        [False],
    ]
    assert problems.shown == [(0, "2 single NaN samples are read as ends of series: in a dump both look alike")]


def test_the_dump_of_prometheus_2_is_known_by_the_names_among_its_labels() -> None:
    text = '{__name__="a", gpu="0"} 1 1760000000000\n{__name__="a", gpu="0"} NaN 1760000030000\n'
    series, _ = parse(text.splitlines(), PAGE_MS)
    assert [is_stale(one.values).tolist() for one in series] == [[False, True]]


@pytest.mark.parametrize(
    "text",
    ["# TYPE a gauge\na 1 100\na NaN 130\na 2 160\n# EOF\n", "a 1 1760000000000\na NaN 1760000030000\n"],
)
def test_nan_elsewhere_is_a_value(text: str) -> None:
    (series,), problems = parse(text.splitlines(), PAGE_MS)
    assert np.isnan(series.values[1])
    assert not is_stale(series.values).any()
    assert problems.shown == []


names = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,8}", fullmatch=True).filter(lambda name: name != "__name__")
texts = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\n"), min_size=1, max_size=12)
numbers = st.floats(allow_nan=False)


@given(
    labels=st.dictionaries(names, texts | texts.map(lambda text: text + "\n"), max_size=4),
    samples=st.dictionaries(st.integers(0, 4_000_000_000_000), numbers, min_size=1, max_size=4),
)
def test_what_is_written_by_the_rules_is_read_back(labels: dict[str, str], samples: dict[int, float]) -> None:
    def escaped(value: str) -> str:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    head = "m{" + ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items()) + "}"
    lines = [f"{head} {value!r} {time / 1000:.3f}\n" for time, value in samples.items()]
    kept = {name: plain_key(value) for name, value in labels.items()}
    assert read_lines([*lines, "# EOF\n"]) == ([("m", kept, list(samples), list(samples.values()))], [])


def read_lines(lines: list[str]) -> object:
    series, problems = parse(lines, PAGE_MS)
    return [(s.metric, dict(s.labels), s.times_ms.tolist(), s.values.tolist()) for s in series], problems.shown


@given(st.text(max_size=60))
def test_no_text_stops_the_reader(text: str) -> None:
    series, problems = parse(["first 1\n", *text.splitlines(keepends=True), "\n", "last 2\n"], PAGE_MS)
    assert {"first", "last"} <= {one.metric for one in series}
    assert all(detail for _, detail in problems.shown)


@needs_samples
@pytest.mark.parametrize(
    ("page", "series", "metrics", "skipped"),
    [
        ("dcgm/aicr-h100x8-eks-driver580.prom", 30, 4, []),
        ("dcgm/runai-a100-mig-1g5gb-active.prom", 14, 14, [1]),
        ("dcgm/runai-a100-mig-disabled-empty.prom", 23, 23, [1, 3, 75]),
        ("dcgm/runai-a100-mig-enabled-empty.prom", 14, 14, [1]),
        ("dcgm/runai-t4-x2-1workload.prom", 38, 19, []),
        ("amd/issue259-unpartitioned-excerpt.prom", 7, 7, []),
    ],
)
def test_real_pages(page: str, series: int, metrics: int, skipped: list[int]) -> None:
    lines = (SAMPLES / page).read_text().splitlines()
    found, problems = parse(lines, PAGE_MS)
    assert len({(one.metric, frozenset(one.labels.items())) for one in found}) == series
    assert len({one.metric for one in found}) == metrics
    assert [line for line, _ in problems.shown] == skipped


@needs_samples
def test_values_of_a_real_page() -> None:
    series, _ = parse((SAMPLES / "dcgm/aicr-h100x8-eks-driver580.prom").read_text().splitlines(), PAGE_MS)
    power = {one.labels["gpu"]: one for one in series if one.metric == "DCGM_FI_DEV_POWER_USAGE"}
    assert power["0"].values.tolist() == [113.611]
    assert power["0"].labels["pod"] == "vllm-agg-0-vllmdecodeworker-s65j5"
    assert "pod_uid" not in power["0"].labels  # empty on the page
    assert "pod" not in power["1"].labels
