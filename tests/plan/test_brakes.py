"""What stops everything at once, and for how long."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuwatch.act.plan.brakes import first_seen
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.plan.policy import Freeze, PlanPolicy
from gpuwatch.app.settings import load_settings
from gpuwatch.facts.model.cluster import FactKind, Node, Unread
from gpuwatch.facts.model.decision import (
    ActionKind,
    Advice,
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
from gpuwatch.facts.model.telemetry import Device, DoubtedDevice, Gap, GapKind, Stops
from plan.fleet import NOW, device, guards, idle, node, only, plan_of, pod, reason, sick, snapshot

POLICY = PlanPolicy()


def one_idle() -> tuple[Snapshot, tuple[Finding, ...]]:
    held = device("n0", 0, "ml/chat")
    return snapshot([node("n0"), node("n1")], [held, device("n1", 0)], [pod("ml/chat", "n0")]), (
        idle("ml/chat", [held]),
    )


def refused_by(plan: Plan) -> set[str]:
    (item,) = plan.items
    return guards(item)


HOUR = timedelta(hours=1)
FIRST = [f"xid:device/GPU-train{i}-0" for i in range(4)]


def pool(nodes: int, gpus: int = 8, name: str = "train") -> tuple[list[Node], list[Device]]:
    """And the first GPU of each Node; the others are as those of the Node."""
    named = [node(f"{name}{i}", gpus, pool=name) for i in range(nodes)]
    return named, [device(each.name, i) for each in named for i in range(gpus)]


def braked(count: int, nodes: int, gpus: int = 8, beside: int = 0, policy: PlanPolicy = POLICY, **changes: Any) -> str:
    """So many of the Nodes have a degraded GPU each. beside: Nodes of another pool."""
    known: dict[str, Any] = {key: changes.pop(key) for key in ("first_seen",) if key in changes}
    named, devices = pool(nodes, gpus)
    more, others = pool(beside, name="other")
    found = [sick(devices[gpus * at], **{"since": None, **changes}) for at in range(count)]
    return plan_of(snapshot([*named, *more], [*devices, *others]), tuple(found), policy, **known).brake


@pytest.mark.parametrize(
    ("count", "nodes", "gpus", "storm"),
    [
        *((nodes, nodes, 1, True) for nodes in (5, 9, 12, 15)),  # small pools of one GPU in a Node, all at once
        (2, 5, 1, True),
        (1, 1, 8, False),  # one Node may fail by itself
        (1, 4, 8, False),
        (2, 10, 8, True),
        (2, 11, 8, False),
        (7, 35, 8, True),  # a fifth, exactly
        (6, 35, 8, False),
        (3, 15, 16, True),
    ],
)
def test_a_storm_is_a_fifth_of_a_pools_nodes_and_two_at_least(count: int, nodes: int, gpus: int, storm: bool) -> None:
    says = f"{count} of {nodes} Nodes of pool train became degraded within an hour, such as train0."
    assert braked(count, nodes, gpus).startswith(says if storm else "")
    assert bool(braked(count, nodes, gpus)) is storm
    # The exporter and the rules are the same everywhere, so a storm of one pool stops all.
    assert bool(braked(count, nodes, gpus, beside=60)) is storm


@pytest.mark.parametrize(
    ("ratio", "count", "storm"), [(1.0, 4, False), (1.0, 5, True), (0.0, 1, False), (0.0, 2, True)]
)
def test_what_the_ends_of_the_storms_ratio_mean(ratio: float, count: int, storm: bool) -> None:
    assert bool(braked(count, 5, policy=PlanPolicy(storm_ratio=ratio))) is storm


def test_pools_of_one_node_have_a_storm_together() -> None:
    parts = [pool(1, 1, f"p{i}") for i in range(5)]
    state = snapshot([each for nodes, _ in parts for each in nodes], [each for _, found in parts for each in found])
    brake = plan_of(state, tuple(sick(each, since=NOW) for each in state.devices[:2]), POLICY).brake
    assert brake.startswith("2 of 5 Nodes of the cluster became degraded within an hour")


@pytest.mark.parametrize(
    ("changes", "storm"),
    [
        ({"since": NOW}, True),
        ({"since": NOW - 0.9 * HOUR}, True),
        ({"since": NOW - HOUR}, False),
        ({"since": NOW - 24 * HOUR}, False),  # an old fleet
        # A level has no beginning but its window; what was seen before is older.
        (
            {"since": NOW - 0.25 * HOUR, "first_seen": {FIRST[i]: NOW - HOUR for i in range(4)}},
            False,
        ),
        ({"since": None, "first_seen": {FIRST[i]: NOW - 2 * HOUR for i in range(3)}}, False),
        ({"since": None, "first_seen": {FIRST[i]: NOW - HOUR / 2 for i in range(4)}}, True),
        # What may cause no action is no sign against the observer: a hot aisle, suspicions, a tenant's own kernels.
        ({"advice": Advice.WATCH}, False),
        ({"advice": Advice.NONE}, False),
        ({"advice": Advice.FIX_APPLICATION}, False),
        ({"confidence_ratio": 0.5}, False),
        ({"confidence_ratio": 0.79}, False),
        ({"confidence_ratio": 0.8}, True),
        ({"advice": Advice.RESET_WHEN_IDLE, "severity": Severity.WARNING}, True),
        ({"verdict": Verdict.UNKNOWN, "confidence_ratio": 0.0}, False),
    ],
)
def test_only_what_began_lately_and_may_cause_an_action_makes_a_storm(changes: dict[str, Any], storm: bool) -> None:
    assert bool(braked(4, 16, **changes)) is storm


def test_when_a_finding_began_is_remembered_while_it_stays() -> None:
    nodes, devices = pool(2)
    found = (sick(devices[0]), sick(devices[8]), sick(devices[1], advice=Advice.WATCH))
    state = snapshot(nodes, devices)
    began = first_seen(PlanFacts(snapshot=state, findings=found))
    assert began == {"xid:device/GPU-train0-0": NOW, "xid:device/GPU-train1-0": NOW}
    later = replace(state, at=NOW + HOUR)
    again = first_seen(PlanFacts(snapshot=later, findings=found[:1], first_seen=began))
    assert again == {"xid:device/GPU-train0-0": NOW}


def test_a_storm_is_remembered_until_its_cool_down_is_over() -> None:
    nodes, devices = pool(10)
    storm = plan_of(snapshot(nodes, devices), tuple(sick(item, since=NOW) for item in devices[:9]), POLICY)
    assert storm.brake
    assert all("brake" in guards(item) for item in storm.items)
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
    (FindingKind.POWER_BRAKE, 8, ""),
    (FindingKind.POWER_BRAKE, 16, "3 of 12 Nodes of pool train became degraded"),
    (FindingKind.TELEMETRY_MISSING, 16, "Telemetry of the fleet as a whole is missing or stale."),
])  # fmt: skip
def test_a_rack_with_one_cause_stops_the_rest_of_the_fleet_only_as_a_storm(
    kind: FindingKind, gpus: int, says: str
) -> None:
    nodes, devices = pool(12)
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
    plan = plan_of(snapshot(nodes, devices), (rack, sick(devices[95], since=NOW)), POLICY)
    assert plan.brake.startswith(says)
    assert bool(plan.brake) is bool(says)
    warned = plan_of(snapshot(nodes, devices), (replace(rack, severity=Severity.WARNING), sick(devices[95])), POLICY)
    assert warned.brake == ""


# An idle storm stops releases alone


@pytest.mark.parametrize(
    ("nodes", "held", "idle_gpus", "ratio", "stopped"),
    [
        (3, 20, 16, 0.8, False),  # 80 % of 20
        (3, 20, 17, 0.8, True),
        (2, 2, 2, 0.8, True),  # a small fleet
        (1, 8, 8, 0.8, False),  # one Node's exporter
        (2, 2, 2, 1.0, False),
    ],
)
def test_when_nearly_everything_looks_idle_nothing_is_released(
    nodes: int, held: int, idle_gpus: int, ratio: float, stopped: bool
) -> None:
    """On a Sunday all notebooks are idle. A free GPU that is dead is fenced as ever, and no cool-down follows."""
    named, each = [node(f"n{i}") for i in range(nodes)], -(-held // nodes)
    devices = [device(f"n{i // each}", i % each, f"ml/p{i}") for i in range(held)]
    pods = [pod(f"ml/p{i}", f"n{i // each}") for i in range(held)]
    free = [device(name, i) for name in ("b0", "b1") for i in range(8)]
    findings = (*(idle(f"ml/p{i}", [devices[i]]) for i in range(idle_gpus)), sick(free[0]))
    state = snapshot([*named, node("b0"), node("b1")], [*devices, *free], pods)
    plan = plan_of(state, findings, PlanPolicy(idle_storm_ratio=ratio))
    assert (plan.brake, plan.last_storm) == ("", None)
    releases = [guards(item) for item in plan.items if item.candidate.action is ActionKind.RELEASE_GANG]
    assert ["idle_storm" in found for found in releases] == [stopped] * idle_gpus
    assert guards(only(plan, ActionKind.TAINT_NODE)) == set()


def test_a_gang_moves_off_a_dead_gpu_while_all_else_looks_idle() -> None:
    """And what is moved is not a reason to release anything."""
    held = [device(f"n{i}", 0, f"ml/p{i}") for i in range(5)]
    gang, free = [device("b0", i, "ml/t") for i in range(1)], [device("b1", i) for i in range(8)]
    pods = [*(pod(f"ml/p{i}", f"n{i}") for i in range(5)), pod("ml/t", "b0", 1, "Job/ml/t", started=NOW - HOUR)]
    names = [*(f"n{i}" for i in range(5)), "b0", "b1"]
    state = snapshot([node(name, 8 if name == "b1" else 1) for name in names], [*held, *gang, *free], pods)
    plan = plan_of(state, (*(idle(f"ml/p{i}", held[i : i + 1]) for i in range(5)), sick(gang[0])), POLICY)
    refused = {(item.candidate.action, *sorted(guards(item))) for item in plan.items}
    assert refused == {
        (ActionKind.RELEASE_GANG, "idle_storm"),
        (ActionKind.TAINT_NODE,),
        (ActionKind.EVICT_GANG,),
    }
    (item, *_) = (each for each in plan.items if each.candidate.action is ActionKind.RELEASE_GANG)
    assert reason(item, "idle_storm") == "5 of 6 allocated GPUs look idle at once, more than 80%."


# What telemetry covers


def test_gpus_of_nodes_that_left_the_cluster_are_not_missing() -> None:
    """A nightly scale-down: the GPUs of six of eight Nodes reported within the hour, and now do not."""
    nodes, devices = pool(2)
    gone = [replace(device(f"gone{i // 8}", i % 8), node=None, present=False) for i in range(48)]
    finding = (sick(devices[0]),)
    down = snapshot(nodes, [*devices, *gone])
    assert plan_of(down, finding, POLICY).brake == ""
    # Where the Nodes were not read, or telemetry's hosts are no Nodes, nobody knows that they left.
    unread = replace(down, cluster=replace(down.cluster, unread=(Unread(FactKind.NODES, "", "403"),)))
    nowhere = replace(down, devices=tuple(replace(each, node=None) for each in down.devices))
    still = replace(down, devices=(*devices, *(replace(each, node="train1") for each in gone)))
    for state in (unread, nowhere, still):
        assert plan_of(state, finding, POLICY).brake == "Only 16 of 64 known GPUs report."


@pytest.mark.parametrize(("minutes", "stopped"), [(29, False), (30, True), (None, True)])
def test_nodes_that_began_just_now_need_not_be_shown_yet(minutes: float | None, stopped: bool) -> None:
    """Spot and batch Nodes may live for less than half an hour: their drivers and exporters are still starting."""
    nodes, devices = pool(2)
    created = None if minutes is None else NOW - timedelta(minutes=minutes)
    new = [node(f"spot{i}", created=created) for i in range(3)]
    brake = plan_of(snapshot([*nodes, *new], devices), (sick(devices[0]),), POLICY).brake
    assert brake == ("Telemetry shows devices of only 2 of 5 Nodes that have any." if stopped else "")


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
    assert bool(plan.brake) is (kind.stops is Stops.EVERYTHING)
    assert plan.brake.endswith("This is why." if plan.brake else "")


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


def test_forged_devices_do_not_hide_a_storm_nor_what_is_missing() -> None:
    nodes, devices = pool(10)
    forged = tuple(DoubtedDevice(shown=device("train0", i), why="its target is unknown") for i in range(100, 900))
    two = (sick(devices[0], since=NOW), sick(devices[8], since=NOW))
    assert "2 of 10" in plan_of(replace(snapshot(nodes, devices), doubted=forged), two, POLICY).brake
    lost = [replace(item, present=index < 39) for index, item in enumerate(devices)]
    assert "Only 39 of 80" in plan_of(replace(snapshot(nodes, lost), doubted=forged), (), POLICY).brake
    alone = plan_of(replace(snapshot(nodes, []), doubted=forged), (), POLICY)
    assert alone.brake.startswith("Telemetry shows no GPU that is trusted")


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


@pytest.mark.parametrize(
    ("moment", "refused"),
    [
        ("2026-11-26T04:59:59", False),
        ("2026-11-26T05:00:00", True),
        ("2026-11-30T04:59:59", True),
        ("2026-11-30T05:00:00", False),
        ("2026-12-25T12:00:00", True),
        ("2027-01-04T05:00:00", False),
    ],
)
def test_the_holidays_of_the_documents_refuse_a_release_and_the_days_beside_them_do_not(
    moment: str, refused: bool, tmp_path: Path
) -> None:
    page = (Path(__file__).parents[2] / "docs/rules/guards.md").read_text(encoding="utf-8")
    text = page.partition("## freeze\n")[2].partition("```yaml\n")[2].partition("```")[0]
    (tmp_path / "gpuwatch.yaml").write_text(text, encoding="utf-8")
    policy = load_settings(tmp_path / "gpuwatch.yaml", {}).plan
    assert len(policy.freezes) == 2
    state, findings = one_idle()
    at = datetime.fromisoformat(moment).replace(tzinfo=UTC)
    assert refused_by(plan_of(replace(state, at=at), findings, policy)) == ({"freeze"} if refused else set())


def test_a_freeze_with_a_zone_in_its_hours_is_refused_when_it_is_read_and_not_when_it_begins() -> None:
    with pytest.raises(ValueError, match=r"start '18:00\+02:00' has a time zone of its own"):
        Freeze(start="18:00+02:00")
    assert Freeze(start="18:00", end="20:00", time_zone="Etc/GMT-2").holds(NOW.replace(hour=16))
