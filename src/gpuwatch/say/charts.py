"""The weekly report's charts as inline SVG. Colours, patterns and fonts come from the page's style sheet by class, so
that one drawing works on dark and light screens and on paper.

ElementTree writes them, since chart libraries (pygal, matplotlib, Altair) write fixed colours into each chart.

Shades (`busy`, `allocated`, `idle`, `unknown`, `free`) differ by pattern as well as by colour; `patterns` defines them
once per page. Unknown values are drawn as unknown or not at all, never as zero.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from xml.etree import ElementTree as ET

from markupsafe import Markup

from gpuwatch.facts.model.sizing import SpeedEstimate
from gpuwatch.facts.model.weekly import UsePoint
from gpuwatch.say.weekly_words import UsePart, hours, percent, speed

SHADES = ("busy", "allocated", "idle", "unknown", "free")
_WIDE, _NARROW, _MINI = 620, 360, 120
_CHARACTER_PX = 6.6  # of the widest common system font at the charts' 11 px, so that labels are never cut
_HATCHES = {
    "allocated": "M-2,2 l4,-4 M0,8 l8,-8 M6,10 l4,-4",
    "idle": "M-2,2 l4,-4 M0,8 l8,-8 M6,10 l4,-4 M-2,6 l4,4 M0,0 l8,8 M6,-2 l4,4",
    "unknown": "M1,2 h1.6 M5,6 h1.6",
}


def patterns() -> Markup:
    """The definitions of the shades' patterns, for the top of the page."""
    svg = ET.Element("svg", {"class": "patterns", "width": "0", "height": "0", "aria-hidden": "true"})
    defs = ET.SubElement(svg, "defs")
    for shade in SHADES:
        pattern = _add(
            defs, "pattern", f"shade {shade}", id=f"shade-{shade}", width=8, height=8, patternUnits="userSpaceOnUse"
        )
        _add(pattern, "rect", "ground", width=8, height=8)
        if shade in _HATCHES:
            _add(pattern, "path", "hatch", d=_HATCHES[shade])
    return _markup(svg)


def swatch(shade: str, *, line: bool = False) -> Markup:
    svg = ET.Element("svg", {"class": "swatch", "viewBox": "0 0 16 12", "aria-hidden": "true"})
    if line:
        _add(svg, "path", f"line {shade}", d="M0,6 H16")
    else:
        _add(svg, "rect", f"area {shade}", x=0.5, y=0.5, width=15, height=11)
    return _markup(svg)


def fleet_curve(points: Sequence[UsePoint]) -> Markup:
    """GPUs allocatable, allocated and busy, as steps. Time without data is a labelled gap. Drawn twice, for wide and
    for narrow pages; the style sheet shows one."""
    return Markup("").join(_fleet_curve(points, width) for width in (_WIDE, _NARROW))


def _fleet_curve(points: Sequence[UsePoint], width: int) -> Markup:
    known = [value for point in points for value in (point.allocatable_gpus, point.allocated_gpus) if value is not None]
    svg = _image(f"GPUs allocatable, allocated and busy: {_spoken(points)}", width, 210)
    left, right, top, bottom = 34.0, width - 6.0, 10.0, 184.0
    if not points or not known:
        _add(svg, "rect", "area unknown", x=left, y=top, width=right - left, height=bottom - top)
        _text(svg, "Nothing was measured: unknown", (left + right) / 2, (top + bottom) / 2, "middle", "strong halo")
        return _markup(svg)
    step = points[1].at - points[0].at if len(points) > 1 else timedelta(hours=1)
    start, end = points[0].at, points[-1].at + step
    ticks = _ticks(max(known))

    def across(at: datetime) -> float:
        return left + (right - left) * ((at - start) / (end - start))

    def up(gpus: float) -> float:
        return bottom - (bottom - top) * gpus / ticks[-1]

    def area(shade: str, run: Sequence[UsePoint], gpus: Callable[[UsePoint], float | None]) -> str:
        line = _steps(run, [up(gpus(point) or 0.0) for point in run], step, across)
        _add(svg, "path", f"area {shade}", d=f"{line}V{_n(up(0.0))}H{_n(across(run[0].at))}Z")
        return line

    for tick in ticks:
        _add(svg, "path", "grid", d=f"M{_n(left)},{_n(up(tick))} H{_n(right)}")
        _text(svg, f"{tick:g}", left - 5, up(tick) + 4, "end")
    _days(svg, start, end, across, top, bottom)
    for run in _runs(points, lambda point: point.allocated_gpus is not None):
        line = area("allocated", run, lambda point: point.allocated_gpus)
        for inner in _runs(run, lambda point: point.busy_gpus is None):
            area("unknown", inner, lambda point: point.allocated_gpus)  # dots where busy is unknown
        for inner in _runs(run, lambda point: point.busy_gpus is not None):
            area("busy", inner, lambda point: point.busy_gpus)
        _add(svg, "path", "line allocated", d=line)
    for run in _runs(points, lambda point: point.allocated_gpus is None):
        x0, x1 = across(run[0].at), across(run[-1].at + step)
        _add(svg, "rect", "area unknown", x=x0, y=top, width=x1 - x0, height=bottom - top)
        if x1 - x0 > 8 * _CHARACTER_PX:
            _text(svg, "unknown", (x0 + x1) / 2, top + 14, "middle", "halo")
    for run in _runs(points, lambda point: point.allocatable_gpus is not None):
        heights = [up(point.allocatable_gpus or 0.0) for point in run]
        _add(svg, "path", "line capacity", d=_steps(run, heights, step, across))
    return _markup(svg)


def _days(
    svg: ET.Element, start: datetime, end: datetime, across: Callable[[datetime], float], top: float, bottom: float
) -> None:
    """A tick at each midnight, with as many labels as fit."""
    day = start.replace(hour=0, minute=0, second=0, microsecond=0)
    spacing = max(across(start + timedelta(days=1)) - across(start), 1e-9)
    label = 6.5 * _CHARACTER_PX
    every = max(1, math.ceil(label / spacing))
    count = 0
    while day < end:
        if day >= start:
            _add(svg, "path", "grid", d=f"M{_n(across(day))},{_n(top)} V{_n(bottom + 4)}")
        x, beyond = max(across(day), across(start)), min(across(day + every * timedelta(days=1)), across(end) + 6)
        if count % every == 0 and x + label <= beyond:  # the first day may have only an hour left
            _text(svg, f"{day:%a} {day.day}", x + 2, bottom + 16)
        day += timedelta(days=1)
        count += 1
    _add(svg, "path", "axis", d=f"M{_n(across(start))},{_n(bottom)} H{_n(across(end))}")


def gpu_hours_parts(parts: Sequence[UsePart]) -> Markup:
    """Where the GPU-hours went: each part begins where the last one ended, and the last ends at the capacity.

    Drawn twice, for wide and for narrow pages.
    """
    return Markup("").join(_gpu_hours_parts(parts, width) for width in (_WIDE, _NARROW))


def _gpu_hours_parts(parts: Sequence[UsePart], width: int) -> Markup:
    wide = width == _WIDE
    left, right = (178.0 if wide else 2.0), (width - 122.0 if wide else width - 112.0)
    pitch, first = (27.0, 4.0) if wide else (35.0, 14.0)
    total = sum(part.gpu_hours or 0.0 for part in parts)
    said = "; ".join(f"{part.label} {hours(part.gpu_hours)}" for part in parts) or "unknown"
    svg = _image(f"Where the GPU-hours went: {said}", width, first + pitch * len(parts) + 4)
    began = 0.0
    for index, part in enumerate(parts):
        y = first + pitch * index
        if wide:
            _text(svg, part.label, left - 8, y + 13, "end")
        else:
            _text(svg, part.label, left, y - 2)
        scale = (right - left) / total if total > 0 else 0.0
        height = 18.0 if wide else 15.0
        _add(svg, "rect", "track", x=left, y=y, width=right - left, height=height)
        if part.gpu_hours:
            length = max(part.gpu_hours * scale, 1.0)
            x = min(left + began * scale, right - length)
            _add(svg, "rect", f"area {part.shade}", x=x, y=y, width=length, height=height)
            began += part.gpu_hours
        share = f" · {percent(part.gpu_hours / total)}" if total > 0 and part.gpu_hours is not None else ""
        _text(svg, hours(part.gpu_hours) + share, right + 6, y + 13, css="strong")
    return _markup(svg)


def use_bar(allocated: float, busy: float | None, unknown: float, most: float) -> Markup:
    """Allocated GPU-hours of a team or workload: busy, then unknown; `most` is the longest bar's."""
    said = f"allocated {hours(allocated)}, busy {hours(busy)}, activity unknown {hours(unknown)} GPU-hours"
    svg = _image(said)
    scale = _MINI / most if most > 0 else 0.0
    busy_px = (busy or 0.0) * scale
    _add(svg, "rect", "area allocated", x=0, y=1, width=max(allocated * scale, 1.0), height=12)
    if unknown > 0:
        _add(svg, "rect", "area unknown", x=busy_px, y=1, width=unknown * scale, height=12)
    if busy:
        _add(svg, "rect", "area busy", x=0, y=1, width=busy_px, height=12)
    return _markup(svg)


def speed_interval(estimate: SpeedEstimate, measured_ratio: float | None = None, *, hit: bool | None = None) -> Markup:
    """Low to high with a tick at the likely speed, on a scale from 50 to 120 % of today's, with 100 % dotted; values
    outside are drawn at the edge.

    measured_ratio: the later measured speed: a filled dot for a hit, a cross for a miss, a ring if not judged.
    """
    said = f"predicted {speed(estimate)}, likely {percent(estimate.likely_ratio)}"
    if measured_ratio is not None:
        said += f", measured {percent(measured_ratio)}"
    svg = _image(said)

    def across(ratio: float) -> float:
        return 4.0 + (_MINI - 8.0) * (min(max(ratio, 0.5), 1.2) - 0.5) / 0.7

    _add(svg, "path", "axis", d=f"M{_n(across(0.5))},11 H{_n(across(1.2))}")
    _add(svg, "path", "whole", d=f"M{_n(across(1.0))},0 V14")
    low, high = across(estimate.low_ratio), across(estimate.high_ratio)
    _add(svg, "rect", "area busy", x=low, y=4, width=max(high - low, 1.0), height=6)
    _add(svg, "path", "likely", d=f"M{_n(across(estimate.likely_ratio))},2 V12")
    if measured_ratio is not None:
        x = across(measured_ratio)
        if hit is False:
            _add(svg, "path", "miss", d=f"M{_n(x - 4)},3 l8,8 m0,-8 l-8,8")
        else:
            _add(svg, "circle", "hit" if hit else "ring", cx=x, cy=7, r=4)
    return _markup(svg)


def _image(said: str, width: int = _MINI, height: float = 14) -> ET.Element:
    """One that is _MINI wide is for a table's cell; the cell's text has the same numbers."""
    css = {_MINI: "mini", _NARROW: "chart narrow", _WIDE: "chart wide"}[width]
    svg = ET.Element("svg", {"class": css, "viewBox": f"0 0 {width:g} {height:g}", "role": "img"})
    ET.SubElement(svg, "title").text = said
    return svg


def _spoken(points: Sequence[UsePoint]) -> str:
    """The curve for screen readers: means over the known time, and the unknown share."""

    def mean(values: Iterable[float | None]) -> str:
        known = [value for value in values if value is not None]
        return f"{sum(known) / len(known):.1f}" if known else "unknown"

    gaps = sum(1 for point in points if point.allocated_gpus is None)
    return (
        f"on average {mean(point.allocatable_gpus for point in points)} allocatable, "
        f"{mean(point.allocated_gpus for point in points)} allocated, "
        f"{mean(point.busy_gpus for point in points)} busy; "
        f"{gaps} of {len(points)} points unknown"
    )


def _ticks(most: float) -> list[float]:
    """From 0 to the first round number that holds `most`, in at most four steps.

    >>> _ticks(64), _ticks(7), _ticks(0), _ticks(9800)
    ([0, 20, 40, 60, 80], [0, 2, 4, 6, 8], [0, 1], [0, 5000, 10000])
    """
    if most <= 0:
        return [0, 1]
    power = 10 ** math.floor(math.log10(most / 4))
    size = next(factor * power for factor in (1, 2, 5, 10) if most / (factor * power) <= 4)
    size = round(size) if size >= 1 else size
    return [size * index for index in range(math.ceil(most / size - 1e-9) + 1)]


def _runs(points: Sequence[UsePoint], wanted: Callable[[UsePoint], bool]) -> list[list[UsePoint]]:
    """Runs of neighbouring points that are all wanted."""
    return [list(group) for keep, group in groupby(points, key=wanted) if keep]


def _steps(
    run: Sequence[UsePoint], heights: Sequence[float], step: timedelta, across: Callable[[datetime], float]
) -> str:
    path = f"M{_n(across(run[0].at))},{_n(heights[0])}"
    for point, height in zip(run[1:], heights[1:], strict=True):
        path += f"H{_n(across(point.at))}V{_n(height)}"
    return f"{path}H{_n(across(run[-1].at + step))}"


def _add(parent: ET.Element, tag: str, css: str = "", **attributes: float | str) -> ET.Element:
    given = {name: value if isinstance(value, str) else _n(value) for name, value in attributes.items()}
    return ET.SubElement(parent, tag, {**({"class": css} if css else {}), **given})


def _text(parent: ET.Element, text: str, x: float, y: float, anchor: str = "start", css: str = "") -> None:
    _add(parent, "text", css, x=x, y=y, **({} if anchor == "start" else {"text-anchor": anchor})).text = text


def _n(value: float) -> str:
    """One decimal: a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0")


def _markup(element: ET.Element) -> Markup:
    # SVG inside HTML needs no namespace. ElementTree has escaped all names.
    return Markup(ET.tostring(element, encoding="unicode"))  # noqa: S704
