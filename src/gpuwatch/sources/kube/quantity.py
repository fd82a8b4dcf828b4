"""Kubernetes quantities: '8', '7910m', '32Gi', '1e3', '1.5G'."""

import re
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache

# Not the client's parse_quantity: it accepts what the API server refuses ('1_000', '1K', '8 Gi', 'inf'), and its
# import takes 0.45 s.
_SUFFIXES = {
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate(("n", "u", "m", "", *"kMGTPE"), -3)},
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", 1)},
}
# A digit after E makes it an exponent; a bare E is exa.
_FORM = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:[eE]([+-]?\d{1,3})|([numkMGTPE]|[KMGTPE]i)?)", re.ASCII)


@lru_cache(maxsize=8192)
def quantity(text: str | int | float) -> Decimal:
    """The exact value in the field's base unit (cores, bytes, devices). Raises ValueError for a text that the API
    server would refuse."""
    found = _FORM.fullmatch(str(text))
    if found is None:
        raise ValueError(f"{text!r} is no Kubernetes quantity (such as 8, 500m, 32Gi or 1e3)")
    number, exponent, suffix = found.groups()
    if exponent is not None:
        return Decimal(number).scaleb(int(exponent))
    return Decimal(number) * _SUFFIXES[suffix or ""]


def whole(text: str | int | float) -> int:
    """The value rounded up, as Kubernetes does."""
    return int(quantity(text).to_integral_value(ROUND_CEILING))
