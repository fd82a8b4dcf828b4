"""Planted idle allocations are silent from the time that their Truth names, and the others go on working."""

from collections import Counter, defaultdict
from datetime import UTC, datetime

import numpy as np
import pytest

from gpuwatch.facts.model.decision import FindingKind, SubjectKind
from gpuwatch.sources.telemetry.series import is_stale
from lab.planted import Truth
from lab.simulate.fleet import SimulatedFleet, build_fleet
from lab.simulate.plan import FleetPlan

END = datetime(2026, 3, 15, 12, tzinfo=UTC)
IDLE = (FindingKind.NEVER_USED, FindingKind.ABANDONED, FindingKind.MODEL_LOADED)
# An open context is not wholly silent; monitoring adds about as much on real cards.
WHISPER = 0.001


@pytest.fixture(scope="module")
def fleet() -> SimulatedFleet:
    return build_fleet(FleetPlan(seed=4, end=END, faults=()))


@pytest.fixture(scope="module")
def activity(fleet: SimulatedFleet) -> dict[tuple[str, str], tuple[np.ndarray, np.ndarray]]:
    """(Pod, device) → times and engine activity."""
    found: dict[tuple[str, str], tuple[np.ndarray, np.ndarray]] = {}
    for series in fleet.series():
        labels = series.labels
        if series.metric == "DCGM_FI_PROF_GR_ENGINE_ACTIVE" and "exported_pod" in labels:
            device = labels["UUID"] + (f"/{labels['GPU_I_ID']}" if "GPU_I_ID" in labels else "")
            live = ~is_stale(series.values)
            pod = f"{labels['exported_namespace']}/{labels['exported_pod']}"
            found[pod, device] = series.times_ms[live] / 1000, series.values[live]
    return found


def test_every_life_of_a_pod_has_one_truth(fleet: SimulatedFleet) -> None:
    pods = Counter(truth.pods for truth in fleet.truth if truth.subject.kind is SubjectKind.POD)
    lives = Counter(
        (f"{run.workload.namespace}/{pod.name}",)
        for run in fleet.runs
        for pod in run.pods
        if run.end > 0 and run.start < fleet.plan.seconds
    )
    assert pods == lives


def test_the_idle_are_silent_from_the_start_of_their_truth_to_its_end(
    fleet: SimulatedFleet, activity: dict[tuple[str, str], tuple[np.ndarray, np.ndarray]]
) -> None:
    for truth in fleet.truth:
        for device in truth.devices if truth.kind in IDLE else ():
            times, engine = activity[truth.pods[0], device]
            end = (truth.end or END).timestamp()
            within = (times >= truth.start.timestamp() + 60) & (times < end)
            assert within.sum() > 10
            assert engine[within].max() < WHISPER


def test_what_stopped_had_worked_until_then(
    fleet: SimulatedFleet, activity: dict[tuple[str, str], tuple[np.ndarray, np.ndarray]]
) -> None:
    checked = 0
    for truth in fleet.truth:
        if truth.kind in (FindingKind.ABANDONED, FindingKind.MODEL_LOADED):
            begin = truth.start.timestamp()
            recent = [
                engine[(times > begin - 600) & (times <= begin)].max(initial=0)
                for (pod, _), (times, engine) in activity.items()
                if pod in truth.pods
            ]
            if begin > fleet.plan.start.timestamp() + 3600:
                assert max(recent) > WHISPER
                checked += 1
    assert checked >= 3


def test_never_used_never_worked_and_holding_holds(fleet: SimulatedFleet) -> None:
    used: dict[str, list[tuple[np.ndarray, np.ndarray]]] = defaultdict(list)
    for series in fleet.series():
        if series.metric == "DCGM_FI_DEV_FB_USED" and "exported_pod" in series.labels:
            live = ~is_stale(series.values)
            pod = f"{series.labels['exported_namespace']}/{series.labels['exported_pod']}"
            used[pod].append((series.times_ms[live] / 1000, series.values[live]))

    def memory(truth: Truth) -> float:
        begin, end = truth.start.timestamp() + 600, (truth.end or END).timestamp()
        return max(v[(t > begin) & (t < end)].max(initial=0) for t, v in used[truth.pods[0]])

    for truth in fleet.truth:
        if truth.kind is FindingKind.NEVER_USED:
            assert memory(truth) <= 500  # nothing, or a bare CUDA context
        elif truth.kind is FindingKind.ABANDONED:
            assert memory(truth) <= 500
        elif truth.kind is FindingKind.MODEL_LOADED:
            assert memory(truth) > 5_000


def test_services_are_silent_for_long_and_work_again(
    fleet: SimulatedFleet, activity: dict[tuple[str, str], tuple[np.ndarray, np.ndarray]]
) -> None:
    """Most serving Pods have half an hour at 0 %, which is why the common rule is wrong about them."""
    longest = []
    for truth in fleet.truth:
        if truth.kind is FindingKind.BURSTY and "service" in truth.note and truth.end is None:
            times, engine = activity[truth.pods[0], truth.devices[0]]
            active = times[engine > WHISPER]
            if times[-1] - times[0] > 3 * 86400:
                longest.append(float(np.diff(active).max()) / 3600)
    hours = np.array(longest)
    assert len(hours) > 15
    assert (hours >= 0.5).mean() > 0.7
    assert 0.1 < (hours >= 6).mean() < 0.7
    assert hours.max() < 20


def test_one_of_eight_devices_keeps_its_pod_alive(
    fleet: SimulatedFleet, activity: dict[tuple[str, str], tuple[np.ndarray, np.ndarray]]
) -> None:
    kept = [truth for truth in fleet.truth if "must be kept" in truth.note]
    assert kept
    for truth in kept:
        assert truth.harmless
        assert len(truth.devices) == 8
        busy = [activity[truth.pods[0], device][1].mean() > 0.3 for device in truth.devices]
        assert busy == [True] + [False] * 7
