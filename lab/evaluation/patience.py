"""How long the silence of a planted Pod stays explained to somebody who knows every kind of workload by heart.

Whoever stops looks for a while like one that rests. How long is a matter of its past: after a day of steady requests a
few hours say much, of a notebook that was opened once two days say little. A delay therefore only tells something
beside this wait, which no rule can cut short without naming working Pods. The processes of its kind are drawn anew many
times from the Pod's start on; those whose past looked like its own up to the moment at which it stopped are kept, and
of those that begin to rest at about that moment the end of the rest is waited for. Rules do not know the processes, so
they need longer.
"""

from datetime import timedelta

import numpy as np

from lab.simulate.behaviour import Behaviour, Hours, WorkKind, load_devices
from lab.simulate.fleet import SimulatedFleet
from lab.simulate.plan import DAY, HOUR, FleetPlan, Floats
from lab.simulate.runs import Run
from lab.simulate.schedule import Scheduler
from lab.simulate.states import first_sample

CHANCE_RATIO = 0.01
"""Share of the rests that last longer than the wait and end in work all the same."""

REST_SECONDS = 2 * HOUR
"""What counts as a rest, and the least wait: shorter silences are nothing to anybody, whatever they mean."""

# A quarter of so many is alike enough; of them some ten to all rest, and the longest rests decide.
_DRAWN, _ALIKE = 1200, 300
# Beyond a week the window of an evaluation has ended.
_HORIZON_SECONDS = 7 * DAY
# It stopped with its last work: others are in its place where they had just worked and soon rest.
_BEFORE_SECONDS, _AFTER_SECONDS = HOUR / 2, HOUR
_MEMORY_MIB = 80_000.0


def waits_of(fleet: SimulatedFleet) -> dict[str, timedelta]:
    """Pod → the wait from the moment at which it stopped, for every planted Pod that had worked."""
    return {
        f"{run.workload.namespace}/{pod.name}": timedelta(seconds=wait_seconds(fleet.plan, run))
        for run in fleet.runs
        if run.idle is not None and np.isfinite(run.behaviour.stops_at_seconds)
        for pod in run.pods
    }


def wait_seconds(plan: FleetPlan, run: Run) -> float:
    """The (1 − CHANCE_RATIO) quantile of the time from `run.idle_from` to the next work, over workloads of its kind
    that began when it did, had a longest silence like its own by then, and begin to rest at about that moment; at least
    REST_SECONDS, and a week at most."""
    rng = plan.rng("patience", run.seed)
    kind = Scheduler(plan, (), rng)
    own = _longest_before(plan, run, _worked(plan, run, run.behaviour, plan.rng("load", run.seed)))
    drawn = []
    for _ in range(_DRAWN):
        worked = _worked(plan, run, _of_its_kind(kind, run), rng)
        longest = _longest_before(plan, run, worked)
        if longest is not None:
            drawn.append((longest, worked))
    step = float(plan.interval_seconds)
    if own is not None:
        drawn.sort(key=lambda one: abs(np.log((one[0] + step) / (own + step))))
    rests = [_rest_ends(run, worked) for _, worked in drawn[:_ALIKE]]
    waits = [wait for wait in rests if wait is not None]
    if not waits:
        return REST_SECONDS
    return max(REST_SECONDS, float(np.quantile(waits, 1 - CHANCE_RATIO, method="inverted_cdf")))


def _of_its_kind(kind: Scheduler, run: Run) -> Behaviour:
    if run.behaviour.activity is WorkKind.SERVING:
        return kind.service_behaviour(len(run.places))
    return kind.tenant_behaviour("human" if run.behaviour.activity is WorkKind.HUMAN else "training")


def _worked(plan: FleetPlan, run: Run, behaviour: Behaviour, rng: np.random.Generator) -> Floats:
    """Times at which such a workload worked, in seconds, from the run's start to a week after it stopped."""
    interval = float(plan.interval_seconds)
    without_end = int(1e9)
    first = first_sample(run.start, interval, without_end)
    last = first_sample(run.idle_from + _HORIZON_SECONDS, interval, without_end)
    seconds = np.arange(first, last) * interval
    (load,) = load_devices(behaviour, [_MEMORY_MIB], Hours(seconds=seconds, start=plan.start), run.start, rng)
    worked: Floats = seconds[load.engine > 0]
    return worked


def _longest_before(plan: FleetPlan, run: Run, worked: Floats) -> float | None:
    """Longest silence before it stopped, in seconds; None where it had not just worked by then."""
    before = worked[worked < run.idle_from]
    if not before.size or run.idle_from - before[-1] > _BEFORE_SECONDS:
        return None
    return float(np.diff(before, prepend=run.start).max() - plan.interval_seconds)


def _rest_ends(run: Run, worked: Floats) -> float | None:
    """Seconds from `run.idle_from` to the end of a rest that begins at about then; None where none does."""
    horizon = run.idle_from + _HORIZON_SECONDS
    gaps = np.diff(worked, append=horizon)
    rests = (gaps >= REST_SECONDS) & (worked > run.idle_from - _BEFORE_SECONDS)
    rests &= worked < run.idle_from + _AFTER_SECONDS
    ends = (worked + gaps)[rests]
    return float(ends[0] - run.idle_from) if ends.size else None
