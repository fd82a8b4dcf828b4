"""What other tools got wrong on healthy hardware, by the place where it was reported."""

from detect.builders import (
    POLICY,
    Answer,
    ago,
    cluster,
    findings,
    healthy,
    machines,
    pod,
    scene,
    the,
    xid_became,
)
from detect.questions import ACTION, BRAKE, HEALTH, HEAT, XIDS
from gpuwatch.facts.model.decision import FindingKind, Verdict
from gpuwatch.facts.model.needs import statistics
from gpuwatch.facts.model.telemetry import Signal, Statistic, WindowStat
from gpuwatch.judge.health.assess import needs_of_rules


def test_10_xid_45_on_77_healthy_nodes_is_a_jobs_teardown() -> None:
    """NVSentinel PR 1629: 77 Nodes in 11 racks of GB300 flagged, because one job ended."""
    fleet = machines(90, 4, model="NVIDIA GB300", pods=True)
    hit = [item for item in fleet if int((item.node or "").partition("-")[2]) < 77]
    changes = [xid_became(item.uuid, 45, before=None, at=ago(minutes=4)) for item in hit]
    state = cluster(pods=[pod(f"pod-{number}", gang="JobSet/ns/big") for number in range(77)])
    [finding] = findings(scene(fleet, healthy(fleet), changes=changes, state=state)).values()
    assert finding.id == "xid:gang/JobSet/ns/big"
    assert (finding.verdict, finding.confidence_ratio) == (Verdict.UNKNOWN, 0.0)
    assert len(finding.devices) == 308
    assert "77 machines" in finding.summary
    # The same without knowing the job.
    [finding] = findings(scene(fleet, healthy(fleet), changes=changes)).values()
    assert (finding.id, finding.verdict) == ("xid:fleet/fleet", Verdict.UNKNOWN)


def test_13_a_fatal_check_without_an_action_ends_with_the_window() -> None:
    """NVSentinel #911: XID 31, 'fatal' with action NONE, left the Node cordoned for ever."""
    during = the(findings(scene(changes=[xid_became("gpu-0", 31)])), FindingKind.XID)
    assert during.verdict is Verdict.UNKNOWN
    later = xid_became("gpu-0", 31, at=ago(seconds=POLICY.change_window_seconds))
    assert findings(scene(answers={XIDS.last: 31.0}, changes=[later])) == {}


def test_21_a_gpu_recovers() -> None:
    """k8s-device-plugin #1014, gpu-operator #1065: marked unhealthy by XID 94, it never came back."""
    sick = scene(answers={ACTION: 1.0}, changes=[xid_became("gpu-0", 94)])
    assert {item.verdict for item in findings(sick).values()} == {Verdict.DEGRADED}
    old = xid_became("gpu-0", 94, at=ago(hours=2))
    assert findings(scene(answers={ACTION: 0.0, XIDS.last: 94.0}, changes=[old])) == {}


def test_22_a_power_cap_at_full_load_is_how_a_healthy_card_works() -> None:
    """NVSentinel #1447: DCGM_FR_CLOCK_THROTTLE_POWER flapped ten times a second. Bit 0x4 is in no mask; the cap's own
    counter, and DCGM's POWER watch, are read by no rule."""
    fleet = machines(4, 8)
    capped: dict[WindowStat, Answer] = healthy(fleet) | {
        WindowStat(Signal.POWER_THROTTLE_SECONDS_TOTAL, Statistic.INCREASE, POLICY.window_seconds): 900.0,
        WindowStat(Signal.CLOCK_EVENT_REASONS_BITS, Statistic.FRACTION_BITS, POLICY.window_seconds, 0x4): 1.0,
    }
    events = {item.uuid: {"power_cap": 10.0} for item in fleet}
    watches = {item.uuid: {"POWER": 20.0, "THERMAL": 10.0, "ALL": 0.0} for item in fleet}
    snapshot = scene(
        fleet, capped, variants={HEAT.events: events, BRAKE.events: events, HEALTH.now: watches, HEALTH.lowest: watches}
    )
    assert findings(snapshot) == {}
    assert Signal.POWER_THROTTLE_SECONDS_TOTAL not in {stat.signal for stat in statistics(needs_of_rules(POLICY))}
