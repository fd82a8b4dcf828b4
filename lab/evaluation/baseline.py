"""The rules that people use today, to be measured beside gpuwatch's: so and so long at 0 %, whatever the workload."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from gpuwatch.facts.model.telemetry import PodRef
from gpuwatch.sources.telemetry.series import is_stale
from lab.planted import Named
from lab.simulate.fleet import SimulatedFleet
from lab.simulate.metrics import METRICS
from lab.simulate.plan import Floats


@dataclass(frozen=True, kw_only=True)
class FixedRule:
    """A Pod is idle where every device of it showed nothing but 0 for this long, with most samples there."""

    name: str
    seconds: float


COMMON_RULE = FixedRule(name="0 % for 30 minutes", seconds=1800)
SIX_HOURS = FixedRule(name="0 % for 6 hours", seconds=6 * 3600)

# GPU_UTIL as the common rules read it; MIG instances have none, and the engine's activity is read instead.
_UTIL = {"DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_UTIL_RATIO"}
_ENGINE = {"DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO"}
_READ = [metric for metric in METRICS if {metric.dcgm, metric.dcgm49} & (_UTIL | _ENGINE)]


def fixed_rules(fleet: SimulatedFleet, moments: Sequence[datetime], rules: Sequence[FixedRule]) -> Iterator[Named]:
    """What each rule names at each moment. A Pod younger than the rule's time is left alone."""
    samples = _use_of_pods(fleet)
    for at in moments:
        for rule in rules:
            begin, end = (at - timedelta(seconds=rule.seconds)).timestamp(), at.timestamp()
            expected = rule.seconds / fleet.plan.interval_seconds
            for pod, devices in samples.items():
                if all(_silent(times, values, begin, end, expected) for times, values in devices):
                    yield Named(at=at, kind=rule.name, subject=f"pod/{pod}", pods=frozenset({pod}))


def _silent(times: Floats, values: Floats, begin: float, end: float, expected: float) -> bool:
    first, last = np.searchsorted(times, (begin, end), side="right")
    return bool(last - first >= 0.8 * expected and values[first:last].max() == 0)


def _use_of_pods(fleet: SimulatedFleet) -> dict[PodRef, list[tuple[Floats, Floats]]]:
    """Pod → times and use of each of its devices."""
    label = "exported_" if fleet.plan.label_scheme == "exported" else ""
    exporters = {machine.exporter_pod for machine in fleet.machines}
    pods: dict[PodRef, list[tuple[Floats, Floats]]] = {}
    for series in fleet.series(_READ):
        name = series.labels.get(f"{label}pod", "")
        if not name or name in exporters or (series.metric in _ENGINE) != ("GPU_I_ID" in series.labels):
            continue
        live = ~is_stale(series.values)
        values = np.where(series.values[live] < 0.005, 0.0, series.values[live])
        pods.setdefault(f"{series.labels[f'{label}namespace']}/{name}", []).append(
            (series.times_ms[live] / 1000, values)
        )
    return pods
