"""Parquet recordings: what is written is read, and what is no recording is refused with a reason."""

import json
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gpuwatch.sources.telemetry.recording_file import RecordingFile
from gpuwatch.sources.telemetry.samples import TelemetryError
from gpuwatch.sources.telemetry.series import MetricSamples, RecordedSeries
from lab.simulate import recording
from lab.simulate.recording import write_recording

STALE = np.array([0x7FF0000000000002], np.uint64).view(np.float64)


def series(metric: str, gpu: str, times_ms: list[int], values: list[float] | np.ndarray) -> RecordedSeries:
    labels = {"gpu": gpu, "pod": ""}
    return RecordedSeries(metric, labels, np.array(times_ms, np.int64), np.asarray(values, np.float64))


def same(samples: MetricSamples, written: list[RecordedSeries]) -> None:
    assert [dict(labels) for labels in samples.labels] == [{"gpu": one.labels["gpu"]} for one in written]
    for index, one in enumerate(written):
        times_ms, values = samples.part(index)
        assert times_ms.tolist() == one.times_ms.tolist()
        assert values.view(np.uint64).tolist() == one.values.view(np.uint64).tolist()


def test_each_metric_is_read_for_itself(tmp_path: Path) -> None:
    path = tmp_path / "week.parquet"
    first = [series("b", "0", [1000, 2000], [1.0, 2.0]), series("b", "1", [1500], [3.0])]
    second = [series("a", "0", [-5, 7000], [-1.0, 0.0])]
    write_recording(path, [*first, *second])
    about = json.loads(pq.read_schema(path).metadata[b"gpuwatch.recording"])
    assert about == {"version": 1}
    read = RecordingFile(path)
    assert read.spans_ms == {"b": (1000, 2000), "a": (-5, 7000)}
    same(read.read("b"), first)
    same(read.read("a"), second)
    assert read.read("c").labels == ()


def test_markers_and_nan_keep_their_bits(tmp_path: Path) -> None:
    path = tmp_path / "nan.parquet"
    odd = np.array([0x7FF0000000000002, 0x7FF8000000000001, 0x7FF8000000000000, 0x8000000000000000], np.uint64)
    written = [series("a", "0", [1, 2, 3, 4], odd.view(np.float64)), series("a", "1", [9], STALE)]
    write_recording(path, [*written, series("b", "0", [5], STALE)])
    read = RecordingFile(path)
    same(read.read("a"), written)
    assert read.spans_ms == {"a": (2, 4), "b": None}


def test_a_metric_of_many_samples_is_spread_over_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "_ROW_GROUP_SAMPLES", 5)
    written = [series("a", str(gpu), [1, 2, 3], [gpu, gpu, gpu]) for gpu in range(4)]
    write_recording(tmp_path / "large.parquet", written)
    assert pq.ParquetFile(tmp_path / "large.parquet").metadata.num_row_groups == 4
    same(RecordingFile(tmp_path / "large.parquet").read("a"), written)


@given(
    st.lists(
        st.integers(0, 40).flatmap(
            lambda size: st.tuples(
                st.lists(st.integers(-(2**40), 2**40), min_size=size, max_size=size, unique=True).map(sorted),
                hnp.arrays(np.uint64, size),
            )
        ),
        max_size=5,
    )
)
def test_any_bits_come_back(columns: list[tuple[list[int], np.ndarray]]) -> None:
    written = [series("a", str(gpu), times, bits.view(np.float64)) for gpu, (times, bits) in enumerate(columns)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "any.parquet"
        write_recording(path, written)
        same(RecordingFile(path).read("a"), [one for one in written if one.times_ms.size])


@pytest.mark.parametrize(
    ("given_series", "complaint"),
    [
        ([series("a", "0", [1], [1]), series("b", "0", [1], [1]), series("a", "1", [1], [1])], "a come in two places"),
        ([series("a", "0", [1], [1]), series("a", "0", [2], [1])], "comes twice"),
        ([series("a", "0", [2, 1], [1, 1])], "times must rise"),
        ([series("a", "0", [1, 1], [1, 1])], "times must rise"),
        ([series("a", "0", [1, 2], [1])], "as many as the values"),
    ],
)
def test_what_is_no_series_is_not_written(tmp_path: Path, given_series: list[RecordedSeries], complaint: str) -> None:
    path = tmp_path / "bad.parquet"
    write_recording(path, [series("old", "0", [1], [1])])
    with pytest.raises(ValueError, match=complaint):
        write_recording(path, given_series)
    assert set(RecordingFile(path).spans_ms) == {"old"}  # the complete file is still there
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "week.parquet"
    write_recording(path, [series("a", "0", list(range(1000)), np.random.default_rng(1).random(1000))])
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(TelemetryError, match=r"week\.parquet is cut off or damaged .* copy it again"):
        RecordingFile(path)


def test_damage_inside_is_found_when_the_metric_is_read(tmp_path: Path) -> None:
    path = tmp_path / "week.parquet"
    write_recording(path, [series("a", "0", list(range(1000)), np.random.default_rng(1).random(1000))])
    content = bytearray(path.read_bytes())
    content[1000:3000] = b"\xff" * 2000
    path.write_bytes(content)
    read = RecordingFile(path)
    with pytest.raises(TelemetryError, match="damaged"):
        read.read("a")


def rewritten(path: Path, about: object, columns: dict[str, object] | None = None) -> None:
    table = pq.read_table(path)
    if columns is not None:
        table = pa.table(columns)
    metadata = {} if about is None else {"gpuwatch.recording": json.dumps(about)}
    pq.write_table(table.replace_schema_metadata(metadata), path)


VERSION_1 = {"version": 1}


@pytest.mark.parametrize(
    ("about", "columns", "complaint"),
    [
        ({**VERSION_1, "version": 2}, None, r"of version 2, .*reads version 1; read it with a newer gpuwatch"),
        (None, None, "is Parquet but no recording of gpuwatch; give a file that gpuwatch wrote"),
        (VERSION_1, {"metric": ["a"]}, "does not have the columns of a recording, metric, labels, first_ms"),
        (VERSION_1, None, "row group 0 is not of one metric"),  # another program made one row group of all
    ],
)
def test_what_is_no_recording_says_why(
    tmp_path: Path, about: object, columns: dict[str, object] | None, complaint: str
) -> None:
    path = tmp_path / "other.parquet"
    write_recording(path, [series("a", "0", [1], [1]), series("b", "0", [1], [1])])
    rewritten(path, about, columns)
    with pytest.raises(TelemetryError, match=complaint) as raised:
        RecordingFile(path)
    assert str(path) in str(raised.value)


def test_falling_times_in_a_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.parquet"
    write_recording(path, [series("a", "0", [5, 6], [1, 2]), series("a", "1", [5, 6], [1, 2])])
    table = pq.read_table(path)
    times = pa.array([[5, 6], [6, 5]], pa.list_(pa.int64()))
    pq.write_table(table.set_column(4, table.schema.field("times"), times), path)
    with pytest.raises(TelemetryError, match="samples of a are damaged"):
        RecordingFile(path).read("a")


def test_a_recorded_week_is_small(tmp_path: Path) -> None:
    """Regular times cost next to nothing: a day of 8 GPUs with whole-number values is far under 2 bytes a sample."""
    draw = np.random.default_rng(7)
    times = list(range(0, 86_400_000, 60_000))
    path = tmp_path / "day.parquet"
    write_recording(path, [series("a", str(gpu), times, draw.integers(0, 101, len(times))) for gpu in range(8)])
    assert path.stat().st_size < 2 * 8 * len(times)
