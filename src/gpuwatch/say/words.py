"""Durations, units and names as text for people."""

import re
from collections.abc import Sequence
from datetime import datetime, timedelta


def duration(seconds: float) -> str:
    """Two units at most.

    >>> duration(42), duration(190), duration(5400), duration(200000)
    ('42 s', '3 min 10 s', '1 h 30 min', '2 d 7 h')
    """
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    units = ((total // 86400, "d"), (total // 3600 % 24, "h"), (total // 60 % 60, "min"), (total % 60, "s"))
    first = next(index for index, (count, _) in enumerate(units) if count)
    return " ".join(f"{count} {unit}" for count, unit in units[first : first + 2] if count)


def ago(then: datetime | None, now: datetime) -> str:
    """How long ago; '' if unknown."""
    return "" if then is None else duration((now - then) / timedelta(seconds=1))


_BINARY = ("bytes", "KiB", "MiB", "GiB", "TiB")
_WHOLE = {"hertz": (1e6, "MHz"), "celsius": (1, "°C"), "watts": (1, "W")}
"""Units that are shown without decimals, with what divides the value."""


def quantity(value: float | str, unit: str = "") -> str:
    """A value with its unit in the size that people use.

    >>> quantity(0.0312, "ratio"), quantity(17179869184, "bytes"), quantity(1.41e9, "hertz"), quantity(79.0)
    ('3.12 %', '16.0 GiB', '1410 MHz', '79')
    """
    if isinstance(value, str):
        return value
    if unit == "ratio":
        return f"{value * 100:.3g} %" if abs(value) < 1 else f"{value * 100:.0f} %"
    if unit in ("bytes", "bytes/second"):
        size, power = float(value), 0
        while abs(size) >= 1024 and power < len(_BINARY) - 1:
            size, power = size / 1024, power + 1
        text = f"{size:.0f} {_BINARY[0]}" if power == 0 else f"{size:.1f} {_BINARY[power]}"
        return text + ("/s" if unit == "bytes/second" else "")
    if unit == "seconds":
        return duration(value) if value >= 1 else f"{value:.2g} s"
    if unit in _WHOLE:
        scale, sign = _WHOLE[unit]
        return f"{value / scale:.0f} {sign}"
    number = f"{value:.0f}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:.3g}"
    return f"{number} {unit}".strip()


def short_uuid(device: str) -> str:
    """The part of a device id that people compare: 'GPU-1a2b3c4d' or 'GPU-1a2b3c4d/7'."""
    uuid, slash, instance = device.partition("/")
    head = "-".join(uuid.split("-")[:2])
    return head + slash + instance


def listed(names: Sequence[str], most: int) -> str:
    """
    >>> listed(["a", "b", "c", "d"], 2), listed(["a"], 2)
    ('a, b and 2 more', 'a')
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def plural(count: int, noun: str) -> str:
    """
    >>> plural(1, "GPU"), plural(3, "Pod"), plural(2, "allocation")
    ('1 GPU', '3 Pods', '2 allocations')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


_SPECIAL = re.compile(r"([\\`*_\[\]|~$])")


def escaped(text: str, *, code: bool = False) -> str:
    """Text that Markdown and chat dialects show literally. `code` keeps `code spans`."""
    flat = " ".join(text.split())
    safe = flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # A zero-width space keeps @here and the like from notifying anybody.
    safe = _SPECIAL.sub(r"\\\1", safe).replace("@", "@\u200b")
    return (
        re.sub(r"\\`(\w+(?:\\[_-]\w+)*)\\`", lambda found: f"`{found[1].replace(chr(92), '')}`", safe) if code else safe
    )
