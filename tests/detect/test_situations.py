"""The situations of tests/detect/situations, each through the whole path from its samples to the plan.

A row that the product still gets wrong has a `todo`; it is expected to fail, and fails this test once it is right.
"""

import math
from pathlib import Path

import msgspec
import pytest

from detect.alone import with_others
from detect.situations.asked import complaints, concluded
from detect.situations.notation import STALE, values
from gpuwatch.act.execute.source import UNSHOWN, facts_of
from gpuwatch.facts.model.decision import Advice, Finding, FindingKind, Severity, Verdict
from tools.situations import PAGE, Row, page, themes

THEMES = themes()


def _parameters() -> list[object]:
    found = []
    for theme in THEMES:
        for row in theme.rows:
            marks = [pytest.mark.xfail(reason=row.todo, raises=AssertionError, strict=True)] if row.todo else []
            found.append(pytest.param(row, id=f"{theme.name}: {' '.join(row.situation.split())}", marks=marks))
    return found


def calls_for_a_move(finding: Finding) -> bool:
    """Whether it may end Pods, by a signal that one read of the exporter can show."""
    grave = finding.advice in (Advice.RESET, Advice.REBOOT, Advice.REPLACE) and finding.severity is Severity.CRITICAL
    return grave and finding.verdict is Verdict.DEGRADED and finding.kind not in (*UNSHOWN, FindingKind.GPU_MISSING)


@pytest.mark.parametrize("row", _parameters())
def test_what_is_concluded(row: Row, tmp_path: Path) -> None:
    wrong = []
    for moment, found in concluded(row, tmp_path):
        wrong += complaints(moment, found)
        assert with_others(found.snapshot, found.faults) == [], "rules that need what they did not declare"
        assert [each.id for each in found.findings if calls_for_a_move(each) and not facts_of(each, 0.01)] == [], (
            UNSHOWN
        )
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"severity": Severity.INFO},
        {"verdict": Verdict.HEALTHY},
        {"verdict": None},
        {"advice": Advice.REPLACE},
        {"acted_on": False},
        {"subject": "a0/4"},
        {"says": "no such words"},
    ],
    ids=str,
)
def test_a_wrong_expectation_is_noticed(wrong: dict[str, object], tmp_path: Path) -> None:
    row = next(row for theme in THEMES for row in theme.rows if row.situation.startswith("XID 79 twenty minutes ago"))
    [moment] = row.moments
    [(_, found)] = concluded(row, tmp_path)
    expected = msgspec.structs.replace(moment.expect[0], **wrong)
    assert complaints(moment, found) == []
    assert complaints(msgspec.structs.replace(moment, expect=(expected,)), found)
    assert complaints(msgspec.structs.replace(moment, expect=(), others=True, spared=True), found)
    assert complaints(msgspec.structs.replace(moment, expect=(), others=True, nothing_done=True), found)
    assert complaints(msgspec.structs.replace(moment, expect=()), found), "a finding that nobody expected"


def test_the_page_is_made_from_these_rows() -> None:
    assert PAGE.read_text() == page(THEMES), "make situations"


def test_each_situation_stands_once_and_has_a_source() -> None:
    rows = [row for theme in THEMES for row in theme.rows]
    named = [" ".join(row.situation.split()) for row in rows]
    assert len(set(named)) == len(named)
    assert all(row.source.strip() and row.moments for row in rows)
    expected = [(row.situation, each) for row in rows for moment in row.moments for each in moment.expect]
    of_faults = (Verdict.DEGRADED, Verdict.UNKNOWN, Verdict.IDLE)
    assert [row for row, each in expected if each.verdict in of_faults and not (each.severity and each.advice)] == []
    assert all(moment.expect or moment.nothing_done or moment.spared for row in rows for moment in row.moments)


def test_series_are_read_as_promtool_reads_them() -> None:
    """The examples of Prometheus' documentation of unit tests for rules."""

    def read(text: str, length: int) -> list[float | str]:
        names = {STALE: "stale"}
        return ["none" if math.isnan(value) else names.get(value, value) for value in values(text, length).tolist()]

    assert read("-2+4x3", 4) == [-2, 2, 6, 10]
    assert read(" 1-2x4", 5) == [1, -1, -3, -5, -7]
    assert read("1x4", 5) == [1, 1, 1, 1, 1]
    assert read(" 1 _x3 stale", 5) == [1, "none", "none", "none", "stale"]
    assert read("1 2", 3) == [1, 2, "none"]
