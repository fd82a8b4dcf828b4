"""The charts' geometry: what is known is drawn to scale, and what is not is not drawn as zero."""

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest
from markupsafe import Markup

from gpuwatch.facts.model.sizing import EvidenceTier, SpeedEstimate
from gpuwatch.facts.model.weekly import UsePoint
from gpuwatch.say.charts import fleet_curve, gpu_hours_parts, patterns, speed_interval, use_bar
from gpuwatch.say.weekly_words import UsePart, parts
from report.weekly_example import HOSTILE, empty_report, full_report

START = datetime(2026, 2, 23, tzinfo=UTC)


def points(*values: tuple[float | None, float | None, float | None]) -> list[UsePoint]:
    return [
        UsePoint(at=START + timedelta(hours=hour), allocatable_gpus=on_offer, allocated_gpus=held, busy_gpus=busy)
        for hour, (on_offer, held, busy) in enumerate(values)
    ]


def drawn(markup: Markup) -> list[ET.Element]:
    """Each SVG, read by an XML parser: it is well formed."""
    return list(ET.fromstring(f"<all>{markup}</all>"))


def shapes(svg: ET.Element, css: str) -> list[ET.Element]:
    return [item for item in svg.iter() if item.get("class") == css]


def width(item: ET.Element) -> float:
    return float(item.get("width", "nan"))


def moves(path: ET.Element) -> list[str]:
    return re.findall(r"[MHVZ][^MHVZ]*", path.get("d", ""))


def bars(markup: Markup, shades: Sequence[str]) -> dict[str, tuple[float, float]]:
    svg = drawn(markup)[0]
    found = {shade: shapes(svg, f"area {shade}") for shade in shades}
    return {shade: (float(items[0].get("x", "nan")), width(items[0])) for shade, items in found.items() if items}


def test_the_curve_is_made_of_steps_to_scale() -> None:
    wide, narrow = drawn(fleet_curve(points((8, 4, 2), (8, 8, 0))))
    assert (wide.get("class"), narrow.get("class")) == ("chart wide", "chart narrow")
    # 0 to 8 GPUs over 174 px, from 184 up; two hours over 580 px, from 34 on.
    assert moves(shapes(wide, "line capacity")[0]) == ["M34,10", "H324", "V10", "H614"]
    assert moves(shapes(wide, "line allocated")[0]) == ["M34,97", "H324", "V10", "H614"]
    assert moves(shapes(wide, "area busy")[0]) == ["M34,140.5", "H324", "V184", "H614", "V184", "H34", "Z"]


def test_a_gap_is_a_gap_and_not_zero() -> None:
    wide = drawn(fleet_curve(points((8, 4, 2), (None, None, None), (None, None, None), (8, 4, 2))))[0]
    assert (
        len(shapes(wide, "line allocated")) == len(shapes(wide, "line capacity")) == len(shapes(wide, "area busy")) == 2
    )
    (gap,) = [item for item in shapes(wide, "area unknown") if item.tag == "rect"]
    assert (gap.get("x"), width(gap)) == ("179", 290)
    assert "unknown" in [item.text for item in wide.iter("text")]


def test_held_time_without_activity_is_unknown_and_not_silent() -> None:
    wide = drawn(fleet_curve(points((8, 4, 2), (8, 4, None), (8, 4, 2))))[0]
    assert len(shapes(wide, "line allocated")) == 1
    assert len(shapes(wide, "area busy")) == 2
    assert [item.tag for item in shapes(wide, "area unknown")] == ["path"]


@pytest.mark.parametrize("given", [[], points((None, None, None), (None, None, None))])
def test_a_curve_of_nothing_says_so(given: list[UsePoint]) -> None:
    for svg in drawn(fleet_curve(given)):
        assert [item.text for item in svg.iter("text")] == ["Nothing was measured: unknown"]
        assert not shapes(svg, "line allocated")


def test_a_curve_of_zeros_is_known() -> None:
    wide = drawn(fleet_curve(points((0, 0, 0), (0, 0, 0))))[0]
    assert moves(shapes(wide, "line allocated")[0]) == ["M34,184", "H324", "V184", "H614"]
    assert not shapes(wide, "area unknown")


def test_one_point_is_an_hour() -> None:
    assert moves(shapes(drawn(fleet_curve(points((4, 2, 1))))[0], "line allocated")[0]) == ["M34,97", "H614"]


def test_days_are_named_as_often_as_there_is_room() -> None:
    def labels(days: int) -> list[str]:
        wide = drawn(fleet_curve(points(*[(8.0, 4.0, 2.0)] * (24 * days))))[0]
        return [item.text or "" for item in wide.iter("text") if re.match(r"[A-Z][a-z]{2} \d", item.text or "")]

    assert labels(7) == ["Mon 23", "Tue 24", "Wed 25", "Thu 26", "Fri 27", "Sat 28", "Sun 1"]
    month = labels(31)
    assert 5 <= len(month) <= 14
    assert month[0] == "Mon 23"


@pytest.mark.parametrize(("hour", "first"), [(0, "Mon 23"), (6, "Mon 23"), (18, "Tue 24"), (23, "Tue 24")])
def test_a_day_with_little_left_of_it_does_not_crowd_the_next(hour: int, first: str) -> None:
    week = [replace(point, at=point.at + timedelta(hours=hour)) for point in points(*[(8.0, 4.0, 2.0)] * (24 * 7))]
    wide, narrow = drawn(fleet_curve(week))
    for svg in (wide, narrow):
        named = [item for item in svg.iter("text") if re.match(r"[A-Z][a-z]{2} \d", item.text or "")]
        assert svg is narrow or named[0].text == first
        for one, other in pairwise(named):
            assert float(one.get("x", "nan")) + 6.6 * len(one.text or "") <= float(other.get("x", "nan"))


def test_parts_stand_end_to_end_and_add_up_to_the_capacity() -> None:
    report = full_report()
    shown = parts(report)
    assert sum(part.gpu_hours or 0.0 for part in shown) == pytest.approx(report.fleet.capacity_gpu_hours)
    svg = drawn(gpu_hours_parts(shown))[0]
    found = [item for item in svg.iter("rect") if (item.get("class") or "").startswith("area ")]
    assert [item.get("class") for item in found] == [f"area {part.shade}" for part in shown if part.gpu_hours]
    ends = [(float(item.get("x", "nan")), float(item.get("x", "nan")) + width(item)) for item in found]
    for (_, end), (begin, _) in pairwise(ends):
        assert begin == pytest.approx(end, abs=0.11)
    assert ends[-1][1] == pytest.approx(498, abs=0.2)


def test_a_part_that_is_not_known_has_no_bar() -> None:
    shown = (
        UsePart("Busy", "busy", None),
        UsePart("Free", "free", 0.0),
        UsePart("Held, but not busy", "allocated", 5.0),
    )
    svg = drawn(gpu_hours_parts(shown))[0]
    assert not shapes(svg, "area busy")
    assert not shapes(svg, "area free")
    assert [item.text for item in svg.iter("text")][1::2] == ["unknown", "0 · 0 %", "5 · 100 %"]


def test_a_fleet_of_which_nothing_is_known_has_no_parts() -> None:
    assert parts(empty_report()) == ()


def test_a_teams_bar_is_to_scale() -> None:
    assert bars(use_bar(50.0, 20.0, 10.0, 100.0), ["allocated", "busy", "unknown"]) == {
        "allocated": (0, 60),
        "busy": (0, 24),
        "unknown": (24, 12),
    }
    assert "busy" not in bars(use_bar(50.0, None, 50.0, 100.0), ["allocated", "busy"])


@pytest.mark.parametrize(
    ("measured", "hit", "mark"), [(0.98, True, "hit"), (0.7, False, "miss"), (0.9, None, "ring"), (None, None, None)]
)
def test_what_was_measured_is_marked_by_its_form(measured: float | None, hit: bool | None, mark: str | None) -> None:
    estimate = SpeedEstimate(low_ratio=0.85, likely_ratio=0.9, high_ratio=1.2, tier=EvidenceTier.SM, basis="")
    (svg,) = drawn(speed_interval(estimate, measured, hit=hit))
    assert [item.get("class") for item in svg if item.get("class") in ("hit", "miss", "ring")] == (
        [mark] if mark else []
    )
    # 50 to 120 % over 112 px, from 4 on.
    assert bars(speed_interval(estimate, measured, hit=hit), ["busy"]) == {"busy": (60, 56)}


def test_names_are_escaped() -> None:
    for svg in drawn(gpu_hours_parts([UsePart(HOSTILE, "busy", 1.0)])):
        assert HOSTILE in (svg.findtext("title") or "")


def test_the_same_values_give_the_same_drawing() -> None:
    curve = full_report().curve
    assert fleet_curve(curve) == fleet_curve(curve)
    assert patterns() == patterns()
