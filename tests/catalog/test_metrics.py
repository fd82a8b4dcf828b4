"""The metric table against the facts that it was made from."""

import re
from collections import defaultdict
from pathlib import Path

import pytest
import yaml

from catalog.platform_metrics import LABEL_METRICS
from gpuwatch.facts.catalog.metrics import (
    MetricRow,
    metric_rows,
    parse_metrics,
    parse_ranges,
    plausible_range,
    rows_for,
)
from gpuwatch.facts.catalog.tables import CatalogError
from gpuwatch.facts.model.telemetry import Scope, Signal, Vendor

TABLES = yaml.safe_load(Path(__file__).with_name("tables.yaml").read_text(encoding="utf-8"))
SHARED = Path(__file__).parents[2].parent / "shared"
needs_samples = pytest.mark.skipif(not SHARED.exists(), reason="the shared samples are not beside this checkout")


def rows_named(metric: str) -> list[MetricRow]:
    return [row for row in metric_rows() if row.metric == metric]


def row(metric: str, signal: Signal, vocabulary: str | None = None) -> MetricRow:
    (found,) = [r for r in rows_named(metric) if r.signal is signal and vocabulary in (None, r.vocabulary)]
    return found


@pytest.mark.parametrize("signal", Signal)
def test_every_signal_has_an_exporter_and_a_range(signal: Signal) -> None:
    assert rows_for(signal)
    low, high = plausible_range(signal)
    assert low < high


@pytest.mark.parametrize("signal", Signal)
def test_a_signal_is_physical_or_per_instance_for_every_exporter(signal: Signal) -> None:
    assert len({r.scope for r in rows_for(signal)}) == 1


@pytest.mark.parametrize(("metric", "signal", "vocabulary", "exported", "si"), TABLES["units"])
def test_units(metric: str, signal: str, vocabulary: str, exported: float, si: float) -> None:
    assert exported * row(metric, Signal(signal), vocabulary).scale == pytest.approx(si, rel=1e-12)


def test_what_repeats_on_mig_rows_is_physical_and_what_differs_is_not() -> None:
    for signal in (Signal.POWER_WATTS, Signal.GPU_TEMPERATURE_CELSIUS, Signal.XID_CODE, Signal.SM_CLOCK_HERTZ):
        assert {r.scope for r in rows_for(signal)} == {Scope.PHYSICAL}
    for signal in (Signal.BUSY_RATIO, Signal.DRAM_ACTIVE_RATIO, Signal.MEMORY_USED_BYTES):
        assert {r.scope for r in rows_for(signal)} == {Scope.INSTANCE}


def test_nothing_that_dcgm_repeats_is_added_up() -> None:
    assert {r.combine for r in metric_rows() if r.vendor is Vendor.NVIDIA} == {"max", "min"}


def test_kinds_follow_the_meaning_not_the_declared_type() -> None:
    assert row("DCGM_FI_DEV_XID_ERRORS", Signal.XID_CODE).kind == "state"
    assert row("DCGM_EXP_XID_ERRORS_COUNT", Signal.XID_WINDOW_COUNT, "dcgm").kind == "window"
    assert row("DCGM_EXP_XID_ERRORS_TOTAL", Signal.XID_EVENTS_TOTAL, "dcgm").kind == "counter"
    assert row("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", Signal.NVLINK_BYTES_PER_SECOND).kind == "gauge"
    assert row("DCGM_FI_PROF_PCIE_TX_BYTES", Signal.PCIE_TX_BYTES_PER_SECOND, "dcgm").kind == "gauge"
    assert row("gpu_ecc_uncorrect_total", Signal.ECC_DBE_VOLATILE_TOTAL).kind == "counter"


def test_counters_are_named_as_totals_and_rates_are_not_counters() -> None:
    for r in metric_rows():
        assert (r.kind == "counter") == r.signal.value.endswith("_total"), r.metric


def test_variants() -> None:
    assert {r.signal: r.variant_label for r in metric_rows() if r.variant_label} == {
        Signal.XID_WINDOW_COUNT: "xid",
        Signal.XID_EVENTS_TOTAL: "xid",
        Signal.CLOCK_EVENTS_WINDOW_COUNT: "clock_event",
        Signal.HEALTH_STATUS_CODE: "health_watch;health_error_code",
    }


def test_a_variant_of_two_labels_does_without_the_one_that_was_dropped() -> None:
    health = row("DCGM_EXP_GPU_HEALTH_STATUS", Signal.HEALTH_STATUS_CODE, "dcgm")
    labels = {"health_watch": "MEM", "health_error_code": "DCGM_FR_OK"}
    assert health.variant_labels == tuple(labels)
    assert health.variant(labels) == "MEM;DCGM_FR_OK"
    assert health.variant({"health_watch": "MEM"}) == "MEM"
    assert health.variant({}) == ""
    assert row("DCGM_FI_DEV_ROW_REMAP_PENDING", Signal.ROW_REMAP_PENDING_STATE, "dcgm").variant(labels) == ""


def test_busy_prefers_engine_activity_and_falls_back_to_utilization() -> None:
    by_vocabulary: dict[str, list[str]] = defaultdict(list)
    for r in rows_for(Signal.BUSY_RATIO):
        by_vocabulary[r.vocabulary].append(r.metric)
    assert by_vocabulary["dcgm"] == ["DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DEV_GPU_UTIL"]
    assert by_vocabulary["dcgm49"] == ["DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", "DCGM_FI_DEV_GPU_UTIL_RATIO"]
    assert by_vocabulary["amd"][:2] == ["gpu_gfx_busy_instantaneous", "amd_gpu_gfx_busy_instantaneous"]
    assert {r.combine for r in rows_named("gpu_gfx_busy_instantaneous")} == {"avg"}  # one row per XCC


def test_amd_metrics_are_known_with_and_without_the_usual_prefix() -> None:
    amd = {r.metric for r in metric_rows() if r.vocabulary == "amd"}
    plain = {metric for metric in amd if not metric.startswith("amd_")}
    assert amd == plain | {f"amd_{metric}" for metric in plain}
    assert all(r.zero_means_absent == (r.signal is Signal.POWER_WATTS) for r in metric_rows() if r.vocabulary == "amd")


def test_matchers_tell_apart_what_shares_a_metric() -> None:
    assert row("xpum_temperature_celsius", Signal.GPU_TEMPERATURE_CELSIUS).matchers == (("location", "gpu"),)
    assert row("xpum_temperature_celsius", Signal.MEMORY_TEMPERATURE_CELSIUS).matchers == (("location", "mem"),)
    assert row("hw_status", Signal.VENDOR_HEALTHY_STATE).matchers == (("hw_state", "ok"),)


def test_a_metric_of_both_dcgm_vocabularies_means_the_same_in_both() -> None:
    spellings = defaultdict(set)
    for r in metric_rows():
        if r.vendor is Vendor.NVIDIA:
            spellings[r.metric, r.signal].add((r.scale, r.kind, r.scope, r.combine, r.variant_label, r.matchers))
    assert all(len(meanings) == 1 for meanings in spellings.values())


def test_exporter_lines_enable_their_own_metric() -> None:
    for r in metric_rows():
        if r.vendor is Vendor.NVIDIA:
            name, kind, help_text = (part.strip() for part in r.exporter_line.split(",", 2))
            assert name == r.metric
            assert kind == ("counter" if r.kind == "counter" else "gauge")
            assert help_text
        else:
            assert r.exporter_line == ""


@needs_samples
def test_default_exported_is_what_dcgm_exporter_ships() -> None:
    text = (SHARED / "samples/dcgm/default-counters-4.5.3-4.8.2.csv").read_text()
    shipped = set(re.findall(r"^\s*(DCGM_\w+)", text, re.M)) - set(LABEL_METRICS)
    assert {r.metric for r in metric_rows() if r.vocabulary == "dcgm" and r.default_exported} == shipped
    known = set(re.findall(r"^#?\s*(DCGM_(?:FI|EXP)_\w+)", text, re.M))
    listed = {r.metric for r in metric_rows() if "commented out" in r.source or r.source.startswith("NVIDIA/dcgm-exp")}
    assert listed <= known


@needs_samples
def test_intel_and_gaudi_names_are_in_the_vendors_lists() -> None:
    xpum = set(re.findall(r"xpum_\w+", (SHARED / "samples/xpum1-Prometheus_Exported_Metrics.csv").read_text()))
    assert {r.metric.removesuffix("_total") for r in metric_rows() if r.vocabulary == "xpum1"} <= xpum
    gaudi = set(re.findall(r"habanalabs_\w+", (SHARED / "samples/habana-metric-names.txt").read_text()))
    assert {r.metric for r in metric_rows() if r.vocabulary == "gaudi"} <= gaudi


@needs_samples
@pytest.mark.parametrize("page", sorted((SHARED / "samples/dcgm").glob("*.prom")), ids=lambda page: page.name)
def test_real_pages_hold_only_known_metrics_and_plausible_values(page: Path) -> None:
    values = re.findall(r"^(DCGM_\w+)\{.*\} (\S+)$", page.read_text(), re.M)
    assert values
    for metric, value in values:
        rows = [r for r in rows_named(metric) if r.vocabulary == "dcgm"]
        assert rows, metric
        for r in rows:
            low, high = plausible_range(r.signal)
            assert low <= float(value) * r.scale <= high, (metric, value)


@pytest.mark.parametrize("signal", Signal)
def test_dcgm_blank_values_are_outside_of_every_range(signal: Signal) -> None:
    high = plausible_range(signal)[1]
    for scale in {r.scale for r in rows_for(signal) if r.vendor is Vendor.NVIDIA}:
        assert 9223372036854775792 * scale > high


@pytest.mark.parametrize(
    ("signal", "inside", "outside"),
    [
        (Signal.BUSY_RATIO, 1.0, 37.0),
        (Signal.POWER_WATTS, 1400.0, -1.0),
        (Signal.GPU_TEMPERATURE_CELSIUS, 105.0, 2147483632.0),
        (Signal.XID_CODE, 172.0, -1.0),
        (Signal.ECC_SBE_AGGREGATE_TOTAL, 54.7e9, float(2**62)),
    ],
)
def test_ranges_admit_what_was_measured(signal: Signal, inside: float, outside: float) -> None:
    low, high = plausible_range(signal)
    assert low <= inside <= high
    assert not low <= outside <= high


HEADER = (
    "vocabulary,vendor,metric,signal,scale,kind,scope,preference,combine,variant_label,matchers,"
    "zero_means_absent,default_exported,exporter_line,source,checked\n"
)
GOOD = "gaudi,gaudi,habanalabs_utilization,busy_ratio,0.01,gauge,instance,1,max,,,false,true,,list,2026-11-21\n"


@pytest.mark.parametrize(("change", "complaint"), TABLES["bad_metrics"])
def test_a_malformed_row_is_named(change: list[str], complaint: str) -> None:
    assert len(parse_metrics(HEADER + GOOD, "table.csv")) == 1
    with pytest.raises(CatalogError, match=complaint):
        parse_metrics(HEADER + GOOD.replace(*change), "table.csv")


def test_a_malformed_table_is_named() -> None:
    with pytest.raises(CatalogError, match=r"table.csv, line 1: .*missing: source; unknown: origin"):
        parse_metrics(HEADER.replace("source", "origin") + GOOD, "table.csv")
    with pytest.raises(CatalogError, match=r"line 3: gaudi habanalabs_utilization busy_ratio has a row already"):
        parse_metrics(HEADER + GOOD + GOOD, "table.csv")
    with pytest.raises(CatalogError, match=r"ranges.csv: no row for engine_active_ratio"):
        parse_ranges("signal,minimum,maximum,reason,checked\nbusy_ratio,0,1,a share,2026-11-21\n", "ranges.csv")
    with pytest.raises(CatalogError, match=r"ranges.csv, line 2: the minimum 1 is not below the maximum 1"):
        parse_ranges("signal,minimum,maximum,reason,checked\nbusy_ratio,1,1,a share,2026-11-21\n", "ranges.csv")
