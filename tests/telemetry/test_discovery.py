"""Discovery on real pages, on our own pages, and where telemetry is not what it says."""

from pathlib import Path

import pytest

from gpuwatch.facts.model.telemetry import GapKind, Schema, Signal
from gpuwatch.sources.telemetry.discovery import discover
from gpuwatch.sources.telemetry.recording import open_recording
from telemetry.timeline import AT, FIXTURES, SAMPLES, Timeline, gpu, held, needs_samples


def schema_of(*pages: Path) -> Schema:
    schema, gaps = discover(open_recording(list(pages), AT), AT)
    assert gaps == ()
    return schema


@pytest.mark.parametrize(
    ("page", "vocabulary", "node_labels", "pod_labels"),
    [
        ("honor-labels-false.prom", "dcgm", ("Hostname",), "exported_*"),
        ("honor-labels-true.prom", "dcgm", ("Hostname",), "native"),
        ("dcgm49.prom", "dcgm49", ("hostname",), "native"),
        ("amd-mi300x.prom", "amd", ("hostname",), "native"),
        ("xpum1.prom", "xpum1", ("node",), "native"),
        ("gaudi.prom", "gaudi", (), "native"),
        ("ratio-as-percent.prom", "dcgm49", ("hostname",), ""),
    ],
)
def test_vocabulary_and_labels(page: str, vocabulary: str, node_labels: tuple[str, ...], pod_labels: str) -> None:
    schema = schema_of(FIXTURES / page)
    assert schema.vocabularies == (vocabulary,)
    assert schema.node_labels == node_labels
    assert schema.pod_labels == pod_labels
    assert {found.vocabulary for found in schema.signals} == {vocabulary}


def test_a_mixed_fleet_speaks_both_vocabularies_and_both_spellings() -> None:
    schema = schema_of(FIXTURES / "mig.prom", FIXTURES / "dcgm49.prom", FIXTURES / "amd-mi300x.prom")
    assert schema.vocabularies == ("dcgm", "dcgm49", "amd")
    assert schema.node_labels == ("Hostname", "hostname")
    power = {
        (found.vocabulary, found.metric): found.devices for found in schema.signals if found.signal == "power_watts"
    }
    assert power == {
        ("dcgm", "DCGM_FI_DEV_POWER_USAGE"): 3,
        ("dcgm49", "DCGM_FI_DEV_BOARD_POWER_WATTS"): 2,
        ("amd", "gpu_package_power"): 3,
    }


def test_a_metric_that_kept_its_name_belongs_to_the_vocabulary_that_is_spoken() -> None:
    schema = schema_of(FIXTURES / "dcgm49.prom")
    assert [found.vocabulary for found in schema.signals if found.metric == "DCGM_FI_PROF_PCIE_TX_BYTES"] == ["dcgm49"]


def test_what_is_missing_is_not_in_the_schema() -> None:
    schema = schema_of(FIXTURES / "mig.prom")
    assert schema.has(Signal.BUSY_RATIO)
    assert not schema.has(Signal.GPU_UTIL_RATIO)
    assert not schema.has(Signal.SM_ACTIVE_RATIO)


@needs_samples
def test_real_pages() -> None:
    eks = schema_of(SAMPLES / "dcgm" / "aicr-h100x8-eks-driver580.prom")
    assert (eks.vocabularies, eks.node_labels, eks.pod_labels) == (("dcgm",), ("Hostname",), "native")
    counts = {found.metric: found.devices for found in eks.signals}
    assert counts["DCGM_FI_DEV_GPU_TEMP"] == 8
    assert counts["DCGM_FI_DEV_MEM_COPY_UTIL"] == 6  # the page was cut there
    empty = schema_of(SAMPLES / "dcgm" / "runai-a100-mig-enabled-empty.prom")
    assert empty.pod_labels == ""
    assert not empty.has(Signal.MEMORY_USED_BYTES)
    assert not empty.has(Signal.GPU_UTIL_RATIO)
    assert empty.has(Signal.BUSY_RATIO)
    amd = schema_of(SAMPLES / "amd" / "issue259-unpartitioned-excerpt.prom")
    assert (amd.vocabularies, amd.node_labels, amd.pod_labels) == (("amd",), ("hostname",), "")


@pytest.mark.parametrize("every", [15, 30, 60])
def test_interval_is_the_median_distance(tmp_path: Path, every: int) -> None:
    timeline = Timeline()
    for number in range(20):
        timeline.add("DCGM_FI_DEV_GPU_TEMP", gpu(number), 40, every=every)
    # Pods that come and go cut a series in pieces; a hole is no interval either.
    timeline.add("DCGM_FI_DEV_GPU_TEMP", gpu(30) | held("a"), 40, ago=3600, until=2400, every=every)
    timeline.add("DCGM_FI_DEV_GPU_TEMP", gpu(30) | held("b"), 40, ago=600, every=every)
    schema, _ = discover(timeline.store(tmp_path), AT)
    assert schema.interval_seconds == every


def test_interval_of_a_short_recording_is_not_stretched_over_the_look_back(tmp_path: Path) -> None:
    timeline = Timeline().add("DCGM_FI_DEV_GPU_TEMP", gpu(1), 40, ago=120, every=15)
    schema, _ = discover(timeline.store(tmp_path), AT)
    assert schema.interval_seconds == 15


def test_interval_of_one_page_is_unknown() -> None:
    assert schema_of(FIXTURES / "mig.prom").interval_seconds == 0


def scales(timeline: Timeline, folder: Path) -> tuple[dict[str, float], list[str]]:
    schema, gaps = discover(timeline.store(folder), AT)
    ratios = {found.metric: found.scale for found in schema.signals if found.metric.endswith("_UTIL_RATIO")}
    return ratios, [gap.detail for gap in gaps]


UTIL, COPY = "DCGM_FI_DEV_GPU_UTIL_RATIO", "DCGM_FI_DEV_MEMORY_UTIL_RATIO"


def test_a_ratio_stays_a_ratio(tmp_path: Path) -> None:
    timeline = Timeline().add(UTIL, gpu(1), 1.0).add(COPY, gpu(1), 0.004).add(UTIL, gpu(2), 0.0)
    assert scales(timeline, tmp_path) == ({UTIL: 1.0, COPY: 1.0}, [])


def test_a_ratio_above_one_is_percent_and_so_are_its_sisters(tmp_path: Path) -> None:
    # 1 % of copying alone could not be told from a ratio of 1.
    timeline = Timeline().add(UTIL, gpu(1), 2.0).add(COPY, gpu(1), 1.0).add(UTIL, gpu(2), 0.0)
    assert scales(timeline, tmp_path) == ({UTIL: 0.01, COPY: 0.01}, [])


def test_a_blank_value_is_no_percentage(tmp_path: Path) -> None:
    timeline = Timeline().add(UTIL, gpu(1), 0.4).add(UTIL, gpu(2), 9223372036854775794.0)
    assert scales(timeline, tmp_path) == ({UTIL: 1.0}, [])


def test_profiling_ratios_never_were_percent(tmp_path: Path) -> None:
    profiling = "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO"
    timeline = Timeline().add(UTIL, gpu(1), 55.0).add(profiling, gpu(1), 0.5)
    schema, gaps = discover(timeline.store(tmp_path), AT)
    assert gaps == ()
    assert {found.metric: found.scale for found in schema.signals if found.signal == "busy_ratio"} == {
        profiling: 1.0,
        UTIL: 0.01,
    }


def test_percent_and_ratio_side_by_side_are_left_out(tmp_path: Path) -> None:
    # Read as percent, a GPU at 0.9 would look idle.
    timeline = Timeline().add(UTIL, gpu(1), 80.0).add(UTIL, gpu(2), 0.9).add("DCGM_FI_DEV_GPU_TEMP_CELSIUS", gpu(1), 40)
    found, details = scales(timeline, tmp_path)
    assert found == {}
    assert len(details) == 1
    assert "percentages on some exporters" in details[0]


def test_nothing_at_all_is_a_gap_that_says_what_to_check(tmp_path: Path) -> None:
    schema, gaps = discover(Timeline().add("node_load1", {"instance": "a"}, 1).store(tmp_path), AT)
    assert schema.signals == ()
    assert [gap.kind for gap in gaps] == [GapKind.SIGNAL_MISSING]
    assert "DCGM_FI_DEV_GPU_UTIL" in gaps[0].detail or "DCGM_FI_PROF_GR_ENGINE_ACTIVE" in gaps[0].detail
    assert "Status > Targets" in gaps[0].detail


def test_a_fleet_that_is_gone_now_is_still_discovered(tmp_path: Path) -> None:
    timeline = Timeline().add("DCGM_FI_DEV_GPU_TEMP", gpu(1), 40, ago=3600, until=1200, ends=True)
    schema, gaps = discover(timeline.store(tmp_path), AT)
    assert gaps == ()
    assert [(found.metric, found.devices) for found in schema.signals] == [("DCGM_FI_DEV_GPU_TEMP", 1)]


def test_a_dropped_uuid_is_named(tmp_path: Path) -> None:
    timeline = Timeline().add("DCGM_FI_DEV_GPU_TEMP", gpu(1, UUID=""), 40)
    schema, gaps = discover(timeline.store(tmp_path), AT)
    assert schema.vocabularies == ()
    assert [gap.kind for gap in gaps] == [GapKind.BAD_INPUT]
    assert "labeldrop" in gaps[0].detail


def test_a_namesake_of_another_exporter_is_no_amd_telemetry(tmp_path: Path) -> None:
    timeline = Timeline().add("gpu_clock", {"card": "0", "instance": "a"}, 900).add("DCGM_FI_DEV_GPU_TEMP", gpu(1), 40)
    schema, gaps = discover(timeline.store(tmp_path), AT)
    assert schema.vocabularies == ("dcgm",)
    assert {found.vocabulary for found in schema.signals} == {"dcgm"}
    assert gaps == ()
