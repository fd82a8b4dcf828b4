"""What was sent to which destination: reports and notifications."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class DeliveryState(StrEnum):
    SENT = "sent"
    FAILED = "failed"  # all attempts of one turn failed; a later turn tries again
    PENDING = "pending"  # not tried yet, or a turn was interrupted


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One report or notification to one destination. `destination` and `error` hold no secret. attempts: over all
    turns. tried_at: time of the last attempt; None if unknown."""

    destination: str
    state: DeliveryState = DeliveryState.PENDING
    attempts: int = 0
    error: str = ""
    tried_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """The row of a report or notification: how far it has come.

    id: derived from its content or identity; name of a report's folder, and the Idempotency-Key. text: its summary in
    Markdown; of a notification all of it, so that another leader can send it. at: when it was made, or was due.
    report: whether it has files, which are in a folder or made again.
    """

    id: str
    title: str
    text: str
    at: datetime
    report: bool = False
    deliveries: tuple[Delivery, ...] = ()
