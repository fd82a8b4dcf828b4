"""Contended cards in the simulation: in closed form, and nobody else's."""

from collections import defaultdict
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from gpuwatch.facts.model.decision import FindingKind
from lab.evaluation.contention import BUSY_RATIO, contended_fleet, dram_peak
from lab.evaluation.detectors import watch
from lab.evaluation.scoring import MISFIT_KINDS, SURE, score_misfits
from lab.planted import Named, Truth
from lab.simulate.fleet import SimulatedFleet, build_fleet
from lab.simulate.plan import FleetPlan
from lab.simulate.runs import Run

END = datetime(2026, 3, 15, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def fleet() -> SimulatedFleet:
    return contended_fleet(FleetPlan(seed=21, end=END, gpus=4, days=2, faults=(), idle_allocations=0), 4)


def sharing(fleet: SimulatedFleet, truth: Truth) -> list[Run]:
    """Runs on the card while the truth holds."""
    (machine,) = [item for item in fleet.machines if item.name in truth.nodes]
    (card,) = [item.index for item in machine.cards if item.uuid in truth.devices]
    at = (truth.start - fleet.plan.start).total_seconds() + 1  # a Truth begins at the second below
    return [run for run in fleet.runs if run.touches(machine.index, frozenset({card})) and run.alive(at)]


def misfits(fleet: SimulatedFleet) -> list[Truth]:
    return [truth for truth in fleet.truth if truth.kind in MISFIT_KINDS]


def test_contenders_ask_for_more_than_the_peak_and_the_innocent_for_less(fleet: SimulatedFleet) -> None:
    counts: dict[tuple[str, bool], int] = defaultdict(int)
    for truth in misfits(fleet):
        machine = next(item for item in fleet.machines if item.name in truth.nodes)
        card = next(item.index for item in machine.cards if item.uuid in truth.devices)
        both = sharing(fleet, truth)
        assert len({run.workload.id for run in both}) == 2
        if truth.kind is FindingKind.HBM_CONTENTION:
            peak = dram_peak(fleet.plan, machine, card)
            asked = [run.behaviour.dram_demand for run in both]
        else:
            peak = 1.0
            asked = [run.behaviour.pcie_demand for run in both]
        mean = [BUSY_RATIO * (value or 0.0) for value in asked]
        assert (sum(mean) > peak) is not truth.harmless
        assert max(mean) < peak
        counts[truth.kind, truth.harmless] += 1
    # Two machines each; three of the innocent where the contenders have no card to themselves, else one.
    assert counts == {
        (kind, harmless): (4 if harmless else 2)
        for kind in (FindingKind.HBM_CONTENTION, FindingKind.PCIE_CONTENTION)
        for harmless in (True, False)
    }


def test_a_card_shows_the_sum_or_its_peak(fleet: SimulatedFleet) -> None:
    for truth in misfits(fleet):
        if truth.kind is not FindingKind.HBM_CONTENTION:
            continue
        index = next(item.index for item in fleet.machines if item.name in truth.nodes)
        (state,) = fleet._states([fleet.machines[index]])
        device = next(item for item in state.devices if item.card.uuid in truth.devices)
        begin = (truth.start - fleet.plan.start).total_seconds() + 600
        end = ((truth.end or END) - fleet.plan.start).total_seconds()
        seen = device.load.dram[(state.seconds >= begin) & (state.seconds < end)]
        peak = dram_peak(fleet.plan, fleet.machines[index], device.card.index)
        asked = sum(BUSY_RATIO * (run.behaviour.dram_demand or 0.0) for run in sharing(fleet, truth))
        assert float(np.median(seen)) == pytest.approx(min(asked, peak), rel=0.06)


def test_the_rest_of_a_fleet_is_the_same_with_and_without() -> None:
    plain = build_fleet(FleetPlan(seed=4, end=END, gpus=16, days=1))
    more = contended_fleet(FleetPlan(seed=4, end=END, gpus=16, days=1), 2)
    new = {machine.name for machine in more.machines} - {machine.name for machine in plain.machines}
    assert len(new) == 2
    assert plain.truth == tuple(truth for truth in more.truth if not new & set(truth.nodes))
    assert {run.workload.id for run in plain.runs} < {run.workload.id for run in more.runs}
    series = {(item.metric, tuple(sorted(item.labels.items()))): item for item in more.series()}
    for item in plain.series():
        other = series[item.metric, tuple(sorted(item.labels.items()))]
        assert np.array_equal(item.values, other.values, equal_nan=True)


def test_contention_is_found_from_files_as_a_user_has_them(fleet: SimulatedFleet) -> None:
    """Every planted one is suspected, and proven where others of both have a card to themselves."""
    planted = [truth for truth in misfits(fleet) if not truth.harmless]
    moments = sorted(truth.start + timedelta(hours=2) for truth in planted)
    named = watch(fleet, moments)
    rows = {row.kind: row for row in score_misfits(fleet.truth, named, [fleet.plan.start, *moments])}
    for kind in (FindingKind.HBM_CONTENTION, FindingKind.PCIE_CONTENTION):
        assert (rows[kind].planted, rows[kind].found) == (2, 2)
        sure = rows[f"{kind}{SURE}"]
        assert (sure.planted, sure.found, sure.false_found) == (2, 1, 0)


def test_what_ended_within_the_hour_is_not_held_against_a_rule(fleet: SimulatedFleet) -> None:
    truth = next(truth for truth in misfits(fleet) if not truth.harmless and truth.end is not None)
    assert truth.end is not None

    def wrong(at: datetime) -> int:
        one = Named(at=at, kind=truth.kind.value, subject=str(truth.subject), devices=frozenset(truth.devices))
        rows = score_misfits(fleet.truth, [one], [fleet.plan.start, END])
        return next(row for row in rows if row.kind == truth.kind).false_found

    assert wrong(truth.end + timedelta(minutes=59)) == 0
    assert wrong(truth.end + timedelta(minutes=61)) == 1
