"""FGD's fragmentation as its own simulator reports it, from recorded states (`lab/evaluation/fgd.py` makes them)."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from gpuwatch.act.fragmentation import fragmentation, most_frequent
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.facts.model.cluster import Placement
from lab.evaluation.fgd import Card, Record, fgd_fragmentation, read_record
from plan.fleet import GPU, node, pod, snapshot

RECORDS = sorted((Path(__file__).parents[1] / "fixtures" / "fgd").glob("*.json.gz"))
HUNDREDTH = 10
"""Milli of a GPU."""


@pytest.fixture(scope="module", params=RECORDS, ids=lambda path: path.name.partition(".")[0])
def record(request: pytest.FixtureRequest) -> Record:
    return read_record(request.param)


def test_there_are_two_records() -> None:
    assert [path.name for path in RECORDS] == ["BestFit-42.json.gz", "Random-42.json.gz"]


def test_our_figure_is_the_simulators_to_a_hundredth_of_a_gpu(record: Record) -> None:
    mix = record.mix()
    assert len(record.nodes) == 1213
    assert sum(each[2] for each in record.nodes) == 6212
    assert len(record.reported) == 22
    for pods, milli in record.reported.items():
        assert fgd_fragmentation(record.after(pods), mix) == pytest.approx(milli, abs=HUNDREDTH)


@pytest.mark.parametrize("without", ["CPU", "parts", "rare requests", "Pods without GPUs"])
def test_each_part_of_the_definition_is_needed(record: Record, without: str) -> None:
    pods, mix = 5000, record.mix()
    cards = record.after(pods)
    if without == "CPU":
        cards = [replace(each, cpu_milli=10**6) for each in cards]
    elif without == "parts":
        cards = [replace(each, free=(sum(each.free),)) for each in cards]
    elif without == "rare requests":
        mix = most_frequent(Counter(record.requests[of][:4] for _, of, *_ in record.arrivals))
    else:
        mix = {each: share for each, share in mix.items() if each[2]}
    assert abs(fgd_fragmentation(cards, mix) - record.reported[pods]) > 2 * HUNDREDTH


@pytest.mark.parametrize("pods", [2500, 7500, 10866])
def test_what_slots_prints_is_fgds_figure_where_nothing_else_counts(record: Record, pods: int) -> None:
    """Whole GPUs, Pods with whole GPUs, CPU: there both definitions look at the same."""
    cards = [Card(each.model, each.cpu_milli, tuple(f for f in each.free if f == 1000)) for each in record.after(pods)]
    asked = [record.requests[of][:4] for _, of, *_ in record.arrivals if record.requests[of][1] == 1000]
    assert not any(models for *_, models in asked)
    waits = Placement(gated=True)
    mix = [
        pod(f"ml/{n}", "", gpus, phase="Pending", cpu_cores=cpu / 1000, placement=waits)
        for n, (cpu, _, gpus, _) in enumerate(asked)
    ]
    nodes = [
        node(name, len(card.free), cpu_cores=card.cpu_milli / 1000, gpu_product=card.model)
        for (name, *_), card in zip(record.nodes, cards, strict=True)
    ]
    told = fragmentation(PlanFacts(snapshot=snapshot(nodes, (), mix, ())))
    counts = Counter(sorted(asked))
    expected = fgd_fragmentation(cards, most_frequent(counts))
    assert sum(each.free for each in told) == sum(len(card.free) for card in cards) > 0
    assert 1000 * sum(each.unallocatable for each in told) == pytest.approx(expected, abs=0.01)
    assert expected > 0
    assert GPU in {each.resource for each in told}
