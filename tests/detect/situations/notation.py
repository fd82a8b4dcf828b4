"""Series as promtool's unit tests write them: '0x30 95x90' is 31 times 0 and 91 times 95, one value per interval."""

import re

import numpy as np

from gpuwatch.sources.telemetry.series import FloatArray

_VALUE = re.compile(r"(?P<from>[+-]?[\d.]+(?:e[+-]?\d+)?)(?:(?P<by>[+-][\d.]+(?:e[+-]?\d+)?))?(?:x(?P<times>\d+))?")
_GAP = re.compile(r"_(?:x(?P<times>\d+))?")

STALE = float("inf")
"""Stands for a staleness marker in what `values` returns; nothing that is measured here is infinite."""


def values(text: str | float, length: int) -> FloatArray:
    """`length` values; NaN is no sample, STALE a staleness marker. A single number is that number all the time, and a
    series that is shorter ends there; a longer one is cut.

    a, axn: the value, and n more of it. a+bxn, a-bxn: the value, then n more, each b more or less than the one before.
    _, _xn: one or n times no sample. stale: the marker with which Prometheus ends a series. Raises ValueError.
    """
    if isinstance(text, int | float):
        return np.full(length, float(text))
    found: list[float] = []
    for part in text.split():
        if part == "stale":
            found.append(STALE)
        elif (gap := _GAP.fullmatch(part)) is not None:
            found += [float("nan")] * int(gap["times"] or 1)
        elif (value := _VALUE.fullmatch(part)) is not None:
            first, by = float(value["from"]), float(value["by"] or 0)
            found += [first + by * index for index in range(int(value["times"] or 0) + 1)]
        else:
            raise ValueError(f"{part!r} in {text!r} is no value of promtool's notation")
    filled = np.full(length, np.nan)
    filled[: len(found)] = found[:length]
    return filled
