"""What stops everything at once, and for how long."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuwatch.act.plan.policy import Freeze, PlanPolicy
from gpuwatch.facts.model.decision import (
    Family,
    Finding,
    FindingKind,
    Plan,
    Severity,
    Snapshot,
    Subject,
    SubjectKind,
    Verdict,
)
from gpuwatch.facts.model.remediation import Pause
from gpuwatch.facts.model.telemetry import Gap, GapKind
from plan.fleet import NOW, device, guards, idle, node, plan_of, pod, sick, snapshot

POLICY = PlanPolicy()


def one_idle() -> tuple[Snapshot, tuple[Finding, ...]]:
    held = device("n0", 0, "ml/chat")
    return snapshot([node("n0"), node("n1")], [held, device("n1", 0)], [pod("ml/chat", "n0")]), (
        idle("ml/chat", [held]),
    )


def refused_by(plan: Plan) -> set[str]:
    (item,) = plan.items
    return guards(item)


def test_a_storm_is_remembered_until_its_cool_down_is_over() -> None:
    nodes = [node(f"n{i}") for i in range(10)]
    devices = [device(f"n{n}", i) for n in range(10) for i in range(8)]
    storm = plan_of(snapshot(nodes, devices), tuple(sick(item) for item in devices[:17]), POLICY)
    assert storm.brake
    assert storm.last_storm == NOW
    state, findings = one_idle()
    for seconds, stopped in ((1, True), (1799, True), (1800, False)):
        later = plan_of(
            replace(state, at=NOW + timedelta(seconds=seconds)), findings, POLICY, last_storm=storm.last_storm
        )
        assert refused_by(later) == ({"cool_down"} if stopped else set())
        # What the next plan has to be given: the storm as long as it matters, not the moment of each plan within it.
        assert later.last_storm == (NOW if stopped else None)


@pytest.mark.parametrize(("kind", "gpus", "says"), [
    (FindingKind.POWER_BRAKE, 15, ""),
    (FindingKind.POWER_BRAKE, 16, "17 of 80 GPUs look degraded at once"),
    (FindingKind.TELEMETRY_MISSING, 16, "Telemetry of the fleet as a whole is missing or stale."),
])  # fmt: skip
def test_a_rack_with_one_cause_stops_the_rest_of_the_fleet_only_as_a_storm(
    kind: FindingKind, gpus: int, says: str
) -> None:
    devices = [device(f"n{n}", i) for n in range(10) for i in range(8)]
    rack = Finding(
        rule=f"health.{kind}",
        family=Family.HEALTH,
        kind=kind,
        subject=Subject(SubjectKind.FLEET, "fleet"),
        verdict=Verdict.UNKNOWN,
        summary="one cause",
        severity=Severity.CRITICAL,
        devices=tuple(item.id for item in devices[:gpus]),
    )
    plan = plan_of(snapshot([node(f"n{i}") for i in range(10)], devices), (rack, sick(devices[79])), POLICY)
    assert plan.brake.startswith(says)
    assert bool(plan.brake) is bool(says)


def test_missing_telemetry_counts_as_a_storm_and_a_freeze_does_not() -> None:
    state, findings = one_idle()
    assert plan_of(Snapshot(at=NOW), (), POLICY).last_storm == NOW
    frozen = plan_of(state, findings, PlanPolicy(freezes=(Freeze(),)))
    assert refused_by(frozen) == {"freeze"}
    assert frozen.last_storm is None


@pytest.mark.parametrize(
    ("named", "firing", "stopped"),
    [
        (("A",), ("A", "B"), True),
        (("A",), ("B",), False),
        (("A",), (), False),
        (("A",), None, True),
        ((), ("A",), False),
        ((), None, False),
    ],
)
def test_a_chosen_alert_stops_everything(named: tuple[str, ...], firing: tuple[str, ...] | None, stopped: bool) -> None:
    state, findings = one_idle()
    plan = plan_of(state, findings, PlanPolicy(brake_alerts=named), alerts=firing)
    assert refused_by(plan) == ({"alert"} if stopped else set())
    assert bool(plan.brake) is stopped


@pytest.mark.parametrize("kind", GapKind)
def test_a_gap_says_by_its_kind_whether_it_stops_everything(kind: GapKind) -> None:
    state, findings = one_idle()
    plan = plan_of(replace(state, gaps=(Gap(kind=kind, what="x", detail="This is why."),)), findings, POLICY)
    stopping = {GapKind.CLOCK: {"clocks"}, GapKind.PARTIAL: {"partial_answer"}, GapKind.AMBIGUOUS: {"several_clusters"}}
    assert refused_by(plan) == stopping.get(kind, set())
    assert bool(plan.brake) is kind.stops_all
    assert plan.brake.endswith("This is why.") or not kind.stops_all


def test_nothing_is_done_while_telemetry_is_of_several_clusters() -> None:
    state, findings = one_idle()
    gap = Gap(kind=GapKind.AMBIGUOUS, what="telemetry", detail="Set prometheus.matchers.")
    plan = plan_of(replace(state, gaps=(gap,)), findings, POLICY)
    assert (refused_by(plan), plan.brake) == ({"several_clusters"}, "Set prometheus.matchers.")
    assert plan.last_storm is None


def test_a_misspelt_alert_says_so_in_the_brake() -> None:
    state, findings = one_idle()
    gap = Gap(kind=GapKind.BAD_INPUT, what="alerts", detail="No rule is called A.")
    plan = plan_of(replace(state, gaps=(gap,)), findings, PlanPolicy(brake_alerts=("A",)), alerts=None)
    assert plan.brake == "It is not known whether A fires. No rule is called A."


def test_forged_devices_do_not_hide_a_storm() -> None:
    nodes = [node(f"n{i}") for i in range(10)]
    devices = [device(f"n{n}", i) for n in range(10) for i in range(8)]
    forged = [replace(device("n0", i), untrusted="its target is unknown") for i in range(100, 900)]
    findings = tuple(sick(item) for item in devices[:17])
    assert "17 of 80" in plan_of(snapshot(nodes, [*devices, *forged]), findings, POLICY).brake


def test_the_pause_says_who_and_why() -> None:
    state, findings = one_idle()
    pause = Pause(paused=True, since=NOW, by="ada", reason="moving racks")
    plan = plan_of(state, findings, POLICY, pause=pause)
    assert refused_by(plan) == {"paused"}
    assert plan.brake == "gpuwatch is paused by ada since 2026-03-02 12:00 UTC: moving racks."
    assert refused_by(plan_of(state, findings, POLICY, pause=replace(pause, paused=False))) == set()


def test_all_reasons_to_stop_are_given_at_once() -> None:
    state, findings = one_idle()
    policy = PlanPolicy(freezes=(Freeze(),), brake_alerts=("A",))
    plan = plan_of(state, findings, policy, alerts=("A",), pause=Pause(paused=True), last_storm=NOW)
    assert refused_by(plan) == {"freeze", "alert", "paused", "cool_down"}


FREEZES = yaml.safe_load((Path(__file__).parent / "freezes.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("freeze", "moment", "held"), FREEZES)
def test_freezes(freeze: dict[str, Any], moment: str, held: bool) -> None:
    assert Freeze(**freeze).holds(datetime.fromisoformat(moment).replace(tzinfo=UTC)) is held


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"weekdays": ("friday",)}, "weekday 'friday' is not one of mon"),
        ({"start": "25:00"}, "start '25:00' is not a time"),
        ({"end": "noon"}, "end 'noon' is not a time"),
        ({"time_zone": "Mars/Olympus"}, "time zone 'Mars/Olympus' is not known here"),
        ({"first_day": "Christmas"}, "first_day 'Christmas' is not a day"),
    ],
)
def test_freezes_that_mean_nothing_are_refused_by_name(given: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Freeze(**given)  # type: ignore[arg-type]


def test_a_freeze_with_a_zone_in_its_hours_is_refused_when_it_is_read_and_not_when_it_begins() -> None:
    with pytest.raises(ValueError, match=r"start '18:00\+02:00' has a time zone of its own"):
        Freeze(start="18:00+02:00")
    assert Freeze(start="18:00", end="20:00", time_zone="Etc/GMT-2").holds(NOW.replace(hour=16))
