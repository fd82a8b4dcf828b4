"""Moments in time as people write them."""

from __future__ import annotations

from datetime import UTC, datetime


def parse_moment(text: str) -> datetime:
    """ISO 8601 with a zone, or seconds since the epoch; the answer is in UTC.

    >>> parse_moment("2026-01-31T18:00Z").isoformat()
    '2026-01-31T18:00:00+00:00'
    >>> parse_moment("1773114089").isoformat()
    '2026-03-10T03:41:29+00:00'

    ValueError where it is neither, or has no zone (whose six o'clock would it be?).
    """
    try:
        return datetime.fromtimestamp(float(text), UTC)
    except (ValueError, OverflowError, OSError):
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no time; write it as 2026-01-31T18:00Z or in seconds since 1970") from None
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone; add Z for UTC or an offset such as +01:00")
    return moment.astimezone(UTC)
