"""The precision of each detector, measured by the outcomes of the actions it caused. Pure."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuwatch.facts.model.decision import ActionKind
from gpuwatch.facts.model.remediation import WAITER_STARTED, Phase, Remediation

_Z = 1.959964
"""Quantile of the normal distribution at 97.5 %, for 95 % intervals."""

_Z_TRUST = 1.281552
"""The same at 90 %, one-sided (Wilson, 1927). Of detectors that are right in just less than 80 %, one in ten is trusted
by chance at any number of outcomes; what it then does can be undone, and the next wrong outcome counts again. After one
wrong outcome it needs 14 right ones, after two 21."""

BUSY_AGAIN = "busy_again"
"""In `Remediation.verified`: an idle target became busy before anything was done to it."""


@dataclass(frozen=True, slots=True)
class Precision:
    """Outcomes of one detector; lower and upper are Wilson's bounds of the precision at 95 %."""

    successes: int = 0
    failures: int = 0

    @property
    def outcomes(self) -> int:
        return self.successes + self.failures

    @property
    def lower_ratio(self) -> float:
        return self._bound(-1)

    @property
    def upper_ratio(self) -> float:
        return self._bound(1)

    def _bound(self, side: int, z: float = _Z) -> float:
        n = self.outcomes
        if not n:
            return 0.0 if side < 0 else 1.0
        share = self.successes / n
        spread = z * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
        return min(max((share + z**2 / (2 * n) + side * spread) / (1 + z**2 / n), 0.0), 1.0)

    def trusted(self, bound: float) -> bool:
        """Whether gpuwatch may act on its findings without approval: until the first wrong outcome, and after it where
        Wilson's one-sided lower bound reaches `bound`. So a right outcome never takes trust away, and a wrong one never
        gives it.

        >>> Precision(0, 0).trusted(0.8), Precision(0, 1).trusted(0.8), Precision(2, 2).trusted(0.8)
        (True, False, False)
        >>> Precision(13, 1).trusted(0.8), Precision(14, 1).trusted(0.8), Precision(15, 1).trusted(0.8)
        (False, True, True)
        """
        return not self.failures or self._bound(-1, _Z_TRUST) >= bound


Place = tuple[str, str]
"""The Namespace whose owners and approvers decided, '' for those of Nodes; and the detector."""


def precision(history: Iterable[Remediation]) -> Mapping[str, Precision]:
    """Detector → precision over all places, for people. What gpuwatch may do depends on `precision_by_place`."""
    total: dict[str, Precision] = {}
    for (_, detector), found in precision_by_place(history).items():
        known = total.get(detector, Precision())
        total[detector] = Precision(known.successes + found.successes, known.failures + found.failures)
    return dict(sorted(total.items()))


def precision_by_place(history: Iterable[Remediation]) -> Mapping[Place, Precision]:
    """Place → measured precision. An outcome counts for every detector behind the proposal, in its own Namespace.

    Right: the action was verified and not undone while it was open, or a person who rejected or undid it said that the
    finding was right. Wrong: a person or an owner rejected or undid it without saying so, or an idle target became busy
    before its release; or the Pod for which others were moved was not placed. Nothing else counts: no failed write, no
    expired proposal, no expired taint.
    """
    counts: dict[Place, list[int]] = {}
    for each in history:
        right = _right(each)
        if right is not None:
            for detector in each.proposal.detectors:
                counts.setdefault((each.proposal.namespace, detector), [0, 0])[0 if right else 1] += 1
    return {place: Precision(*found) for place, found in sorted(counts.items())}


def _right(remediation: Remediation) -> bool | None:
    if remediation.phase is Phase.REJECTED or remediation.undo_asked:
        return remediation.finding_correct
    if remediation.phase is Phase.OBSOLETE and remediation.verified.get(BUSY_AGAIN):
        return False
    if remediation.proposal.action is ActionKind.MAKE_ROOM:
        # A Pod that was deleted meanwhile proves nothing.
        over = remediation.phase in (Phase.SUCCEEDED, Phase.FAILED)
        return remediation.verified.get(WAITER_STARTED) if over else None
    # A gang that runs elsewhere proves that the move works, not that its GPU was degraded.
    if remediation.phase is Phase.SUCCEEDED and remediation.proposal.action is not ActionKind.EVICT_GANG:
        return True
    return None


def poor(measured: Mapping[Place, Precision], bound: float) -> Mapping[Place, float]:
    """Places where a detector may only suggest, with the lower bound of its precision there."""
    return {place: record.lower_ratio for place, record in measured.items() if not record.trusted(bound)}


def distrusted(remediation: Remediation, measured: Mapping[Place, Precision], bound: float) -> str:
    """Why this proposal's detectors may only suggest; '' if one of them may do more. A detector is trusted by the
    outcomes of the proposal's own Namespace and of Nodes; other Namespaces do not count."""
    namespace = remediation.proposal.namespace
    records = {
        name: min(
            (measured.get(place, Precision()) for place in {(namespace, name), ("", name)}),
            key=lambda record: (record.trusted(bound), record.upper_ratio),
        )
        for name in remediation.proposal.detectors
    }
    if not records or any(record.trusted(bound) for record in records.values()):
        return ""
    name, worst = min(records.items(), key=lambda item: (item[1].upper_ratio, item[0]))
    where = f" in Namespace {namespace} or on Nodes" if namespace else " on Nodes"
    measured_as = f"(95 %: {worst.lower_ratio:.2f} to {worst.upper_ratio:.2f})"
    told = f"{name} was right in {worst.successes} of {worst.outcomes} verified outcomes{where} {measured_as}"
    return f"{told}; {bound:.2f} is needed to act without approval."
