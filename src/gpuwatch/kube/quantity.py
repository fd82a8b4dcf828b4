"""Kubernetes quantities: '8', '7910m', '32Gi', '1e3', '1.5G'."""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache

_SUFFIXES = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}
# A digit after E makes it an exponent; a bare E is exa.
_FORM = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:[eE]([+-]?\d{1,3})|([numkMGTPE]|[KMGTPE]i)?)", re.ASCII)


@lru_cache(maxsize=8192)
def quantity(text: str | int | float) -> Decimal:
    """The exact value, in the unit that the field has without a suffix (cores, bytes, devices).

    Raises ValueError for anything that the API server would refuse.
    """
    found = _FORM.fullmatch(str(text))
    if found is None:
        raise ValueError(f"{text!r} is no Kubernetes quantity (such as 8, 500m, 32Gi or 1e3)")
    number, exponent, suffix = found.groups()
    if exponent is not None:
        return Decimal(number).scaleb(int(exponent))
    return Decimal(number) * _SUFFIXES[suffix or ""]


def whole(text: str | int | float) -> int:
    """The value as a count, fractions rounded up as Kubernetes does."""
    return int(quantity(text).to_integral_value(ROUND_CEILING))
