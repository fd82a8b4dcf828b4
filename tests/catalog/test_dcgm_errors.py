"""What DCGM's error codes mean."""

from gpuwatch.facts.catalog.detectors import dcgm_error, dcgm_errors
from gpuwatch.facts.model.decision import Advice, Severity


def test_every_row_is_of_a_revision_of_dcgm() -> None:
    assert all(row.source.startswith("NVIDIA/DCGM@") for row in dcgm_errors().values())


def test_what_ends_a_job_is_critical_and_nothing_that_only_warns_is() -> None:
    ending = {Advice.RESET, Advice.REBOOT, Advice.REPLACE}
    for row in dcgm_errors().values():
        assert (row.severity is Severity.CRITICAL) is (row.advice in ending), row.code
        assert row.shown_from == (10 if row.code in WARNINGS else 255 if row.code in ("THERMAL", "POWER") else 20)


def test_the_code_decides_then_the_watch_then_nobody() -> None:
    assert dcgm_error("MEM", "DCGM_FR_FAULTY_MEMORY").advice is Advice.REPLACE
    assert dcgm_error("MEM", "DCGM_FR_UNKNOWN(140)").code == "MEM"
    assert dcgm_error("SM", "").code == "OTHER"


WARNINGS = {"DCGM_FR_CORRUPT_INFOROM", "DCGM_FR_POWER_UNREADABLE", "DCGM_FR_PCI_REPLAY_RATE"}
"""DcgmHealthWatch.cpp never sets these to FAIL."""
