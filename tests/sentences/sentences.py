"""The five sentences of docs/remediation.md, with what is held to be so at every write."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sentence:
    """invariants: of `execute/test_histories.py`. `reasons.py` says what else is of which sentence."""

    title: str
    invariants: tuple[str, ...]


SENTENCES: Mapping[int, Sentence] = {
    1: Sentence("Only where you said so", ("namespace",)),
    2: Sentence("Only on proof", ("telemetry", "whole", "place")),
    3: Sentence(
        "Those concerned can stop it, and others cannot", ("opt_out", "disruption", "brake", "unread", "foreign")
    ),
    4: Sentence("Never much at once", ("budget", "once")),
    5: Sentence("It gives back what it took", ("own_fields", "recorded", "late", "bounded", "undone", "ends")),
}
