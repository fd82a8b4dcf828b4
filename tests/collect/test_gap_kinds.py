"""Each kind of gap is read: where one stands, a rule that rests on the fact concludes UNKNOWN, or a guard refuses."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from collect.test_collect import NEEDS, POLICY
from collect.test_origin import CLUSTER, TEMPERATURE, XID, Fixed, forged, gaps, ours, up
from gpuwatch.act.analysis import Policies, analyse
from gpuwatch.act.plan.brakes import brakes
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.facts.frameworks.framework import Kind
from gpuwatch.facts.model.cluster import FactKind
from gpuwatch.facts.model.decision import ActionKind, Snapshot, Verdict
from gpuwatch.facts.model.telemetry import Gap, GapKind, Stops
from gpuwatch.judge.health import assess as health
from gpuwatch.judge.health.fault_memory import FaultMemory
from gpuwatch.sources.collect.collect import collect
from gpuwatch.sources.kube.assemble import read_cluster
from gpuwatch.sources.kube.decode import BadObjects, Listing, Take, take_all
from gpuwatch.sources.telemetry.samples import Expression, QueryFailed, StoreRefused, StoreUnreachable, TelemetryError
from kube import cluster_json as made
from plan.test_completeness import told
from telemetry.timeline import AT, Timeline, Witness, gpu

Refuses = Callable[[Expression], bool]


def looked(timeline: Timeline, folder: Path, refuses: Refuses = lambda _: False) -> Snapshot:
    return collect(Witness(timeline.store(folder), refuses), Fixed(), AT, NEEDS)


def said(snapshot: Snapshot, rule: str) -> set[Verdict]:
    """What the rule says of all GPUs."""
    found = health.assess_health(snapshot, POLICY, everything=True, memory=FaultMemory())
    return {each.verdict for each in found if each.rule == rule}


class _Budgets:
    """A cluster of one Node, of which the list of PodDisruptionBudgets has this failure."""

    def __init__(self, kind: GapKind) -> None:
        self._kind = kind

    def objects(self, kind: Kind, take: Take[Any], version: str = "") -> Listing[Any]:
        found: list[Any] = []
        bad = BadObjects()
        if kind.kind == "Node":
            take_all([(made.raw(made.node()), "page 1")], take, found, bad)
        elif kind.kind == "PodDisruptionBudget" and self._kind is GapKind.BAD_INPUT:
            odd = {"metadata": {"name": "a", "namespace": "ml", "labels": 7}}
            take_all([(made.raw(odd), "page 1")], take, found, bad)
        elif kind.kind == "PodDisruptionBudget":
            return Listing(failure=Gap(kind=self._kind, what=kind.resource, detail="403."))
        return Listing(found, bad=bad.gaps(kind.resource), bad_places=frozenset(bad.places))


def refused_by_a_guard(kind: GapKind) -> bool:
    lost = [each for each in read_cluster(_Budgets(kind), AT).unread if each.kind is FactKind.BUDGETS]
    return bool(lost) and bool(told(ActionKind.RELEASE_GANG, *lost))


QUESTIONS: dict[str, Refuses] = {
    "all": lambda _: True,
    "the gauge": lambda asked: asked.function == "last",
    "changes": lambda asked: asked.function in ("min", "max"),
    "before": lambda asked: bool(asked.offset_seconds),
}


def xid_unknown_without(error: type[TelemetryError], folder: Path, questions: Refuses) -> bool:
    def refuse(asked: Expression) -> bool:
        if asked.selector.metric == XID and questions(asked):
            raise error("It failed.")
        return False

    snapshot = looked(ours(), folder, refuse)
    return bool(gaps(snapshot, error.kind)) and said(snapshot, "health.xid") == {Verdict.UNKNOWN}


@pytest.mark.parametrize("asked", QUESTIONS)
@pytest.mark.parametrize("error", [QueryFailed, StoreRefused, StoreUnreachable])
def test_no_gpu_is_healthy_by_the_absence_of_xids_that_were_not_read(
    error: type[TelemetryError], asked: str, tmp_path: Path
) -> None:
    assert said(looked(ours(), tmp_path), "health.xid") == {Verdict.HEALTHY}
    assert xid_unknown_without(error, tmp_path, QUESTIONS[asked])


def _nothing_planned(timeline: Timeline, folder: Path) -> bool:
    """Though a GPU in telemetry, which is doubted, has XID 79."""
    snapshot = looked(timeline, folder)
    assert snapshot.doubted
    return not [item for item in analyse(PlanFacts(snapshot=snapshot), Policies()).plan.items if item.admitted]


def _implausible(folder: Path) -> bool:
    timeline = ours().add("DCGM_FI_DEV_ROW_REMAP_FAILURE", gpu(1, "n0", instance="10.1.0.5:9400"), 9e30)
    return Verdict.HEALTHY not in said(looked(timeline, folder), "health.row_remap")


READ: dict[GapKind, Callable[[Path], bool]] = {
    GapKind.UNREACHABLE: lambda folder: xid_unknown_without(StoreUnreachable, folder, QUESTIONS["all"]),
    GapKind.REFUSED: lambda folder: xid_unknown_without(StoreRefused, folder, QUESTIONS["all"]),
    GapKind.QUERY_FAILED: lambda folder: xid_unknown_without(QueryFailed, folder, QUESTIONS["all"]),
    GapKind.SIGNAL_MISSING: lambda folder: said(looked(ours(), folder), "health.row_remap") == {Verdict.UNKNOWN},
    GapKind.IMPLAUSIBLE: _implausible,
    GapKind.NODE_UNRESOLVED: lambda folder: _nothing_planned(_broken("n9"), folder),
    GapKind.UNTRUSTED: lambda folder: _nothing_planned(forged(ours()), folder),
    GapKind.NOT_SERVED: lambda _: refused_by_a_guard(GapKind.NOT_SERVED),
    GapKind.BAD_INPUT: lambda _: refused_by_a_guard(GapKind.BAD_INPUT),
}


def _broken(host: str) -> Timeline:
    labels = gpu(8, host, instance="10.1.0.9:9400")
    return ours().add(TEMPERATURE, labels, 60).add(XID, labels, lambda ago: 79 if ago < 600 else 0)


@pytest.mark.parametrize("kind", GapKind)
def test_each_kind_of_gap_is_read(kind: GapKind, tmp_path: Path) -> None:
    assert (kind in READ) is (kind.stops is Stops.ITS_FACT)
    if kind in READ:
        assert READ[kind](tmp_path)
    else:
        gap = Gap(kind=kind, what="x", detail="This is why.")
        stopped = brakes(PlanFacts(snapshot=Snapshot(at=AT, cluster=CLUSTER, gaps=(gap,))))
        assert [refusal for refusal in stopped if refusal.reason.endswith("This is why.")]


@pytest.mark.parametrize("kind", [GapKind.UNREACHABLE, GapKind.REFUSED, GapKind.QUERY_FAILED])
def test_a_list_that_failed_refuses_what_it_could_have_protected(kind: GapKind) -> None:
    assert refused_by_a_guard(kind)


def test_without_the_targets_own_pods_nothing_is_done(tmp_path: Path) -> None:
    """A tenant's Pod in the Node's network has the Node's address: only `up` tells it from an exporter there."""
    theirs = {"instance": "10.0.0.5:8080", "job": "pods"}
    timeline = forged(ours(), **theirs)
    up(timeline, "10.0.0.5:8080", "team/evil-0", "pods")
    assert not gaps(looked(timeline, tmp_path), GapKind.AMBIGUOUS)
    lost = looked(timeline, tmp_path, lambda asked: asked.selector.metric == "up" and asked.window_seconds == 86_400)
    assert brakes(PlanFacts(snapshot=lost))
    assert gaps(lost, GapKind.AMBIGUOUS)
