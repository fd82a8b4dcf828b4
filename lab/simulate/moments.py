"""The moments at which a simulated fleet is looked at."""

from datetime import datetime, timedelta

from gpuwatch.facts.model.decision import FindingKind
from lab.simulate.fleet import SimulatedFleet

NEVER_USED_LIMIT = timedelta(hours=2)
"""A Pod that never worked should be found within this time of its start."""
# Moments to evaluate, from the start of a planted fault or idle allocation.
_FAULT_PROBES = (timedelta(minutes=30),)
_IDLE_PROBES = (NEVER_USED_LIMIT,)
_NEVER_USED_PROBES = tuple(NEVER_USED_LIMIT - timedelta(minutes=minutes) for minutes in (60, 30, 25, 20, 15, 10, 5, 0))


def moments_of(fleet: SimulatedFleet, every_hours: float) -> list[datetime]:
    """Regular moments after the first day (or the first seventh), one soon after each planted start, and several within
    NEVER_USED_LIMIT of a Pod that never worked."""
    plan = fleet.plan
    first = plan.start + timedelta(days=min(1.0, plan.days / 7))
    count = int((plan.end - first) / timedelta(hours=every_hours))
    moments = {plan.end - timedelta(hours=every_hours * number) for number in range(count + 1)}
    for truth in fleet.truth:
        if not truth.harmless:
            never = truth.kind is FindingKind.NEVER_USED
            soon = truth.fault or truth.kind is FindingKind.PARTIAL_GANG
            probes = _FAULT_PROBES if soon else _NEVER_USED_PROBES if never else _IDLE_PROBES
            moments.update((truth.start + probe).replace(second=0) for probe in probes)
    return sorted(moment for moment in moments if first <= moment <= plan.end)
