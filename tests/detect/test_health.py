import sys
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest

from detect.alone import with_others
from detect.builders import AT, POLICY, cluster, device, findings, healthy, machines, pod, scene, the
from detect.questions import ECC, REMAP
from gpuwatch.facts.catalog.metrics import metric_rows
from gpuwatch.facts.model.decision import Advice, Family, FindingKind, Severity, Verdict
from gpuwatch.facts.model.needs import statistics
from gpuwatch.facts.model.telemetry import Readings, Scope, Signal, Statistic
from gpuwatch.judge.fleet import Fleet
from gpuwatch.judge.health.assess import (
    HEALTH_UNKNOWN,
    RULES,
    HealthPolicy,
    assess_health,
    needs_of_rules,
    state_signals,
)
from gpuwatch.judge.health.objects import DEVICE_HEALTH, NODE_CONDITION, OPERATOR_CONFLICT
from gpuwatch.judge.health.pod_admission import POD_ADMISSION
from gpuwatch.judge.health.unused import NOT_RUNNING, OUT_OF_SERVICE
from gpuwatch.judge.rule import Ask, Judged, Rule
from tools.kinds import MODEL, model

ON_NODES = (
    NODE_CONDITION,
    DEVICE_HEALTH,
    POD_ADMISSION,
    OPERATOR_CONFLICT,
    OUT_OF_SERVICE,
    NOT_RUNNING,
    HEALTH_UNKNOWN,
)
ON_EACH = len(RULES) - len(ON_NODES)
"""Rules that say something about each GPU."""


def test_each_statistic_is_asked_for_once() -> None:
    found = statistics(needs_of_rules(POLICY))
    assert len(found) == len(set(found))
    assert len({stat.key for stat in found}) == len(found)


def test_windows_follow_the_policy() -> None:
    found = statistics(needs_of_rules(HealthPolicy(window_seconds=600, change_window_seconds=1200)))
    assert {stat.window_seconds for stat in found} == {0, 600, 1200, 21_600, 86_400, 604_800}


def test_codes_are_never_counted_up() -> None:
    """XID_CODE is a code: no increase, no average. increase() over 13 → 79 would be 66."""
    used = {
        stat.statistic
        for stat in statistics(needs_of_rules(POLICY))
        if stat.signal in (Signal.XID_CODE, Signal.RECOVERY_ACTION_CODE)
    }
    assert used == {Statistic.LAST}


def test_totals_are_never_read_as_levels_but_where_the_level_means_something() -> None:
    levels = {
        stat.signal
        for stat in statistics(needs_of_rules(POLICY))
        if stat.signal.value.endswith("_total") and stat.statistic not in (Statistic.INCREASE, Statistic.APPEARED)
    }
    assert levels == {
        Signal.ECC_DBE_VOLATILE_TOTAL,  # since the driver was loaded
        Signal.ROW_REMAP_UNCORRECTABLE_TOTAL,
        Signal.PAGES_RETIRED_SBE_TOTAL,
        Signal.PAGES_RETIRED_DBE_TOTAL,
        Signal.ENERGY_JOULES_TOTAL,  # only whether it began anew
    }


def test_every_signal_that_a_rule_uses_is_exported_by_somebody() -> None:
    exported = {row.signal for row in metric_rows()}
    assert {stat.signal for stats in needs_of_rules(POLICY).values() for stat in stats} <= exported


def test_rules_and_findings_have_the_same_names() -> None:
    fleet = machines(1, 2)
    shown = assess_health(scene(fleet, healthy(fleet)), POLICY, everything=True)
    named = {rule.name for rule in RULES if rule not in ON_NODES}
    assert {item.rule for item in shown} == named
    assert set(state_signals(POLICY)) <= {stat.signal for stats in needs_of_rules(POLICY).values() for stat in stats}


def test_a_healthy_busy_fleet_has_no_finding_and_every_conclusion_on_demand() -> None:
    fleet = machines(2, 8)
    snapshot = scene(fleet, healthy(fleet))
    assert findings(snapshot) == {}
    shown = findings(snapshot, everything=True)
    assert len(shown) == 16 * ON_EACH
    # A watch of DCGM shows one incident; Pods that live prove no GPU healthy; no cluster was read.
    unsure = (FindingKind.DCGM_HEALTH, FindingKind.POD_FAILURES, FindingKind.INFINIBAND, FindingKind.USED_OUTSIDE)
    known = {item.verdict for item in shown.values() if item.kind not in unsure}
    assert known == {Verdict.HEALTHY}
    assert all(item.confidence_ratio > 0 for item in shown.values() if item.verdict is Verdict.HEALTHY)


def test_a_gpu_of_which_nothing_is_known_is_one_finding() -> None:
    found = findings(scene())
    assert list(found) == ["health_unknown:device/gpu-0"]
    assert found["health_unknown:device/gpu-0"].verdict is Verdict.UNKNOWN


def test_a_machine_of_which_nothing_is_known_is_one_finding() -> None:
    fleet = machines(2, 8, pods=True)
    answers = {REMAP.failed: {"gpu-1-0": 0.0}}
    found = findings(scene(fleet, answers))
    assert len(found) == 1 + 7
    whole = found["health_unknown:node/node-0"]
    assert (len(whole.devices), whole.pods, whole.node) == (8, ("ns/pod-0",), "node-0")
    assert len(findings(scene(fleet, answers), everything=True)) == 16 * ON_EACH + 15


def test_a_machine_of_two_is_a_machine() -> None:
    assert list(findings(scene(machines(1, 2)))) == ["health_unknown:node/node-0"]


def test_one_known_signal_is_enough_to_say_something() -> None:
    assert findings(scene(answers={REMAP.failed: 0.0})) == {}


@pytest.mark.parametrize("coverage", [0.0, 0.69])
def test_a_new_gpu_is_unknown_until_enough_was_seen(coverage: float) -> None:
    found = findings(scene(answers={ECC.dbe: 0.0}, coverage=coverage))
    assert list(found) == ["health_unknown:device/gpu-0"]


def test_seven_tenths_of_the_samples_are_enough() -> None:
    assert findings(scene(answers={ECC.dbe: 0.0}, coverage=0.7)) == {}


def test_an_empty_answer_never_makes_a_gpu_healthy() -> None:
    fleet = machines(2, 8)
    silent = replace(scene(fleet), readings=Readings())
    shown = findings(silent, everything=True)
    assert {item.verdict for item in shown.values() if item.rule != "health.presence"} == {Verdict.UNKNOWN}
    assert all(item.confidence_ratio == 0 for item in shown.values() if item.verdict is Verdict.UNKNOWN)


def test_every_unknown_says_what_is_missing() -> None:
    shown = findings(scene(), everything=True)
    assert [item.id for item in shown.values() if item.verdict is Verdict.UNKNOWN and not item.missing] == []


def test_a_physical_fault_is_one_finding_with_all_instances_and_pods() -> None:
    sliced = [device("gpu-0", mig=mig, pods=[f"ns/p{mig}"]) for mig in ("7", "8", "9")]
    finding = the(findings(scene(sliced, {REMAP.failed: 1.0})), FindingKind.ROW_REMAP)
    assert finding.devices == ("gpu-0/7", "gpu-0/8", "gpu-0/9")
    assert finding.pods == ("ns/p7", "ns/p8", "ns/p9")


def test_an_unresolved_node_stays_unresolved() -> None:
    finding = the(findings(scene([device(node=None)], {REMAP.failed: 1.0})), FindingKind.ROW_REMAP)
    assert finding.node is None


def test_degraded_findings_carry_evidence_that_can_be_checked() -> None:
    fleet = machines(2, 8)
    answers = healthy(fleet) | {REMAP.failed: 1.0, ECC.dbe: 1.0, ECC.standing: 1.0}
    found = [item for item in findings(scene(fleet, answers)).values() if item.verdict is Verdict.DEGRADED]
    assert len(found) == 32
    for item in found:
        assert item.evidence
        assert all(fact.promql and fact.comparison and fact.bound is not None for fact in item.evidence)
        assert 0 < item.confidence_ratio <= 1


def test_the_same_snapshot_gives_the_same_findings() -> None:
    fleet = machines(3, 8)
    snapshot = scene(fleet, healthy(fleet) | {REMAP.failed: 1.0})
    assert assess_health(snapshot, POLICY) == assess_health(snapshot, POLICY)
    assert snapshot.at == AT


def test_signals_of_a_gpu_as_a_whole_are_marked_so_in_the_catalog() -> None:
    """Rules look a GPU up by its UUID; the signals that an instance has of its own are the activity of work."""
    instance = {row.signal for row in metric_rows() if row.scope is Scope.INSTANCE}
    used = {stat.signal for stats in needs_of_rules(POLICY).values() for stat in stats}
    assert used & instance == {
        Signal.BUSY_RATIO,
        Signal.DRAM_ACTIVE_RATIO,
        Signal.MEMORY_USED_BYTES,
        Signal.MEMORY_COPY_UTIL_RATIO,
        Signal.TENSOR_ACTIVE_RATIO,
    }


def test_work_grows_with_the_fleet_and_not_with_its_square() -> None:
    """In calls of functions, which are the same on each machine, and not in seconds, which are not."""

    def calls(nodes: int) -> int:
        fleet = machines(nodes, 8, pods=True)
        state = cluster(
            nodes=[f"node-{number}" for number in range(nodes)],
            pods=[pod(f"pod-{number}", gang=f"gang-{number // 4}") for number in range(nodes)],
        )
        snapshot = scene(fleet, healthy(fleet), state=state)
        counted = 0

        def count(_frame: FrameType, event: str, _argument: object) -> None:
            nonlocal counted
            counted += event in ("call", "c_call")

        before = sys.getprofile()
        sys.setprofile(count)
        try:
            found = assess_health(snapshot, POLICY)
        finally:
            sys.setprofile(before)
        assert found == ()
        return counted

    calls(8)  # what is computed once for all
    few, many = calls(40), calls(160)
    assert 8 * 160 < many < 4.2 * few


def test_a_statistic_that_was_not_declared_is_refused() -> None:
    ask = Ask(POLICY)
    ask.close()
    with pytest.raises(LookupError, match="xid_code:last:0 was not declared among the needs of the rule"):
        ask(Signal.XID_CODE)
    with pytest.raises(LookupError, match="changes of xid_code were not declared"):
        ask.changes(Signal.XID_CODE)


def test_a_rule_that_asks_later_fails() -> None:
    class Keeps:
        def __init__(self, ask: Ask) -> None:
            self.ask = ask

    def judge(_: Fleet, asked: Keeps) -> Judged:
        asked.ask(Signal.XID_CODE)
        return Judged()

    rule = Rule(tells=NODE_CONDITION.tells, needs=Keeps, judge=judge)
    with pytest.raises(LookupError, match="xid_code"):
        rule.judged(Fleet(scene(), POLICY))


def test_whether_an_error_was_contained_is_read_by_its_own_rule() -> None:
    answers = {ECC.standing: 1.0, ECC.dbe: 1.0, ECC.last_xid: 94.0, ECC.new_rows: 1.0}
    assert with_others(scene(answers=answers)) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_kinds_and_advice_are_written_as_the_words_are(rule: Rule[Any]) -> None:
    for told in rule.tells:
        assert told.meaning
        for clause in told.advice.split("; "):
            severity, _, advice = clause.partition(": ")
            assert {severity} <= set(Severity)
            assert set(advice.split(", ")) <= set(Advice)


def test_the_kinds_of_health_are_those_that_the_rules_tell() -> None:
    told = [each.kind for rule in RULES for each in rule.tells]
    assert sorted(told) == sorted(kind for kind in FindingKind if kind.family is Family.HEALTH)
    assert MODEL.read_text() == model(), "make names"
