"""Every fact of the catalog says where it is from, and when somebody last looked there."""

import csv
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from importlib import resources

import pytest

from gpuwatch.facts.catalog.detectors import dcgm_error, dcgm_errors
from gpuwatch.facts.model.decision import Advice, Severity

CATALOG = resources.files("gpuwatch.facts.catalog")
BEGIN = date(2026, 6, 1)  # before all other lists
OLDEST_PRICE = date(2025, 4, 24)  # of AWS outside us-east-1 and GovCloud; the doctor tells of old prices that count
TODAY = datetime.now(tz=UTC).date()
# File → (source, date) of a row. A bound's source is its reason.
TABLES = {
    "gpus.csv": [("source", "checked")],
    "processors.csv": [("source", "checked")],
    "metrics.csv": [("source", "checked")],
    "pcie.csv": [("source", "checked")],
    "ranges.csv": [("reason", "checked")],
    "dcgm_errors.csv": [("source", "checked")],
    "node_conditions.csv": [("source", "checked")],
    "node_labels.csv": [("source", "checked")],
    "instances.csv": [("source", "price_date"), ("host_source", "host_checked")],
}


def rows(file: str) -> Iterator[tuple[str, str, str]]:
    """(place, source, date) of each fact. The host of a machine may be unknown; then it has neither."""
    for number, row in enumerate(csv.DictReader(CATALOG.joinpath(file).read_text(encoding="utf-8").splitlines()), 2):
        for source, checked in TABLES[file]:
            if source != "host_source" or row["vcpus"] or row["host_memory_bytes"]:
                yield f"{file}, line {number}", row[source], row[checked]


def parts(file: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """(place, an object that must have source and checked)."""
    tables = json.loads(CATALOG.joinpath(file).read_text(encoding="utf-8"))
    if file == "xids.json":
        yield file, tables
        for code in tables["xids"]:
            yield f"{file}, XID {code['code']}", {"source": tables["source"], "checked": tables["checked"]} | code
    for group in ("authorities", "layouts", "families"):
        for name, entry in tables.get(group, {}).items():
            yield f"{file}, {name}", entry
            if "decoders" in entry:
                decoders = {"source": entry["decoders_source"], "checked": entry["decoders_checked"]}
                yield f"{file}, decoders of {name}", decoders
            if "memory_mib" in entry:
                memory = {"source": entry["memory_source"], "checked": entry["memory_checked"]}
                yield f"{file}, memory of {name}", memory


def told(file: str) -> Iterator[tuple[str, str, str]]:
    if file in TABLES:
        yield from rows(file)
    else:
        yield from ((where, part.get("source", ""), part.get("checked", "")) for where, part in parts(file))


def test_no_file_is_forgotten() -> None:
    files = {item.name for item in CATALOG.iterdir() if item.name.endswith((".csv", ".json", ".yaml"))}
    assert files == {*TABLES, "mig.json", "xids.json"}


@pytest.mark.parametrize("file", [*TABLES, "mig.json", "xids.json"])
def test_each_fact_has_its_source_and_the_day_on_which_it_was_checked(file: str) -> None:
    found = list(told(file))
    assert found
    for where, source, checked in found:
        assert source.strip(), where
        begin = OLDEST_PRICE if "ec2-instances-info" in source else BEGIN
        assert begin <= date.fromisoformat(checked) <= TODAY, where


def test_every_row_is_of_a_revision_of_dcgm() -> None:
    assert all(row.source.startswith("NVIDIA/DCGM@") for row in dcgm_errors().values())


def test_what_ends_a_job_is_critical_and_nothing_that_only_warns_is() -> None:
    ending = {Advice.RESET, Advice.REBOOT, Advice.REPLACE}
    for row in dcgm_errors().values():
        assert (row.severity is Severity.CRITICAL) is (row.advice in ending), row.code
        assert row.shown_from == (10 if row.code in WARNINGS else 255 if row.code in NEVER_SHOWN else 20)


def test_the_code_decides_then_the_watch_then_nobody() -> None:
    assert dcgm_error("MEM", "DCGM_FR_FAULTY_MEMORY").advice is Advice.REPLACE
    assert dcgm_error("MEM", "DCGM_FR_UNKNOWN(140)").code == "MEM"
    assert dcgm_error("SM", "").code == "OTHER"


def test_a_code_that_the_exporter_does_not_know_is_known_by_its_number() -> None:
    assert dcgm_error("NVLINK", "DCGM_FR_UNKNOWN(119)").code == "DCGM_FR_NVLINK_EFFECTIVE_BER_THRESHOLD"
    assert dcgm_error("NVLINK", "DCGM_FR_UNKNOWN(121)").code == "DCGM_FR_NVLINK_SYMBOL_BER_THRESHOLD"


WARNINGS = {
    "DCGM_FR_CORRUPT_INFOROM",
    "DCGM_FR_GPU_RECOVERY_DRAIN_P2P",
    "DCGM_FR_PCI_REPLAY_RATE",
    "DCGM_FR_POWER_UNREADABLE",
    "DCGM_FR_UNCORRECTABLE_ROW_REMAP_LIMIT",
}
"""DcgmHealthWatch.cpp never sets these to FAIL."""
NEVER_SHOWN = {
    "DCGM_FR_CLOCKS_EVENT_POWER",
    "DCGM_FR_CLOCKS_EVENT_THERMAL",
    "DCGM_FR_CONTAINED_ERROR",
    "DCGM_FR_IMEX_UNHEALTHY",
    "DCGM_FR_NVLINK_ERROR_THRESHOLD",
    "DCGM_FR_NVSWITCH_NON_FATAL_ERROR",
    "DCGM_FR_PENDING_PAGE_RETIREMENTS",
    "POWER",
    "THERMAL",
}
"""A rule of gpuwatch's own measures these, or knows whether they matter."""
