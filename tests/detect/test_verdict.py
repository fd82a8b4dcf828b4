import pytest

from detect.builders import AT, Answer, ago, cluster, device, findings, machines, on, scene, spread, the
from detect.questions import ACTION, HEALTH, VENDOR
from gpuwatch.facts.model.cluster import Condition, Node
from gpuwatch.facts.model.decision import Advice, Component, FindingKind, Severity, Snapshot, Verdict
from gpuwatch.facts.model.telemetry import Signal, StateChange, Vendor, WindowStat


@pytest.mark.parametrize(
    ("code", "verdict", "severity", "advice"),
    [
        (1, Verdict.DEGRADED, Severity.CRITICAL, Advice.RESET),
        (2, Verdict.DEGRADED, Severity.CRITICAL, Advice.REBOOT),
        (3, Verdict.DEGRADED, Severity.WARNING, Advice.WATCH),
        (4, Verdict.DEGRADED, Severity.WARNING, Advice.RESET_WHEN_IDLE),
        (5, Verdict.UNKNOWN, Severity.INFO, Advice.WATCH),
        (6, Verdict.DEGRADED, Severity.CRITICAL, Advice.RESET),
        (7, Verdict.DEGRADED, Severity.CRITICAL, Advice.REBOOT),
        (8, Verdict.UNKNOWN, Severity.WARNING, Advice.WATCH),
        (255, Verdict.UNKNOWN, Severity.WARNING, Advice.WATCH),
    ],
)
def test_what_the_driver_asks_for(code: float, verdict: Verdict, severity: Severity, advice: Advice) -> None:
    finding = the(findings(scene(answers={ACTION: float(code)})), FindingKind.RECOVERY_ACTION)
    assert (finding.verdict, finding.severity, finding.advice) == (verdict, severity, advice)
    assert (finding.confidence_ratio == 0) is (verdict is Verdict.UNKNOWN)
    [fact] = finding.evidence
    assert (fact.value, fact.comparison, fact.bound) == (code, "!=", 0.0)
    assert fact.promql == 'query(recovery_action_code:last:0){UUID="gpu-0"}'


def test_action_5_means_one_thing_or_another_by_the_driver() -> None:
    """nvidia-ml-py 13.580.82: GPU_RESET_BUS; 13.590 and 13.595: none; from 13.610: RECOVER_IMEX_DOMAIN."""
    finding = the(findings(scene(answers={ACTION: 5.0})), FindingKind.RECOVERY_ACTION)
    assert "IMEX domain" in finding.summary
    assert "bus" in finding.summary
    assert finding.missing == ("the driver's version, which decides what 5 means",)


def test_no_action_is_healthy_and_no_answer_is_unknown() -> None:
    assert findings(scene(answers={ACTION: 0.0})) == {}
    shown = findings(scene(answers={ACTION: 0.0}), everything=True)
    assert shown["recovery_action:device/gpu-0"].verdict is Verdict.HEALTHY
    missing = findings(scene(), everything=True)["recovery_action:device/gpu-0"]
    assert (missing.verdict, missing.missing) == (Verdict.UNKNOWN, ("recovery_action_code",))


def test_since_is_when_the_present_action_was_first_asked_for() -> None:
    changes = [
        StateChange(device="gpu-0", signal=Signal.RECOVERY_ACTION_CODE, at=ago(minutes=40), before=0.0, after=1.0),
        StateChange(device="gpu-0", signal=Signal.RECOVERY_ACTION_CODE, at=ago(minutes=20), before=1.0, after=2.0),
    ]
    finding = the(findings(scene(answers={ACTION: 2.0}, changes=changes)), FindingKind.RECOVERY_ACTION)
    assert finding.since == ago(minutes=20)


def watch(
    name: str, now: float, lowest: float | None = None, *, action: float | None = None, coverage: float = 1.0
) -> Snapshot:
    rows: dict[WindowStat, dict[str, dict[str, float]]] = {HEALTH.now: {"gpu-0": {"SM": 0.0, name: now}}}
    if lowest is not None:
        rows[HEALTH.lowest] = {"gpu-0": {"SM": 0.0, name: lowest}}
    answers: dict[WindowStat, Answer] = {} if action is None else {ACTION: action}
    return scene(answers=answers, variants=rows, coverage=coverage)


def test_a_watch_that_failed_all_along_is_degraded() -> None:
    finding = the(findings(watch("MEM;DCGM_FR_FAULTY_MEMORY", 20, 20)), FindingKind.DCGM_HEALTH)
    assert (finding.verdict, finding.advice, finding.confidence_ratio) == (Verdict.DEGRADED, Advice.REPLACE, 0.85)
    assert finding.evidence[0].note == "health watch MEM: DCGM_FR_FAULTY_MEMORY"
    assert finding.components == (Component.MEMORY,)


@pytest.mark.parametrize(
    ("incident", "severity", "advice"),
    [
        # "MEM fails while the volatile count is above 0": contained or not, the job that runs is left alone.
        ("MEM;DCGM_FR_VOLATILE_DBE_DETECTED", Severity.WARNING, Advice.RESET_WHEN_IDLE),
        ("MEM;DCGM_FR_ROW_REMAP_FAILURE", Severity.CRITICAL, Advice.REPLACE),
        ("MEM;DCGM_FR_RETIRED_PAGES_LIMIT", Severity.CRITICAL, Advice.REPLACE),
        ("MEM;DCGM_FR_RETIRED_PAGES_DBE_LIMIT", Severity.CRITICAL, Advice.REPLACE),
        ("ALL;DCGM_FR_FALLEN_OFF_BUS", Severity.CRITICAL, Advice.REBOOT),
        ("DRIVER;DCGM_FR_GPU_RECOVERY_RESET", Severity.CRITICAL, Advice.RESET),
        ("DRIVER;DCGM_FR_GPU_RECOVERY_REBOOT", Severity.CRITICAL, Advice.REBOOT),
        ("DRIVER;DCGM_FR_GPU_RECOVERY_DRAIN_RESET", Severity.WARNING, Advice.RESET_WHEN_IDLE),
        ("NVLINK;DCGM_FR_NVLINK_DOWN", Severity.WARNING, Advice.RESET_WHEN_IDLE),
        ("NVLINK;DCGM_FR_FABRIC_PROBE_STATE", Severity.WARNING, Advice.INSPECT),
        ("NVLINK;DCGM_FR_NVLINK_CRC_ERROR_THRESHOLD", Severity.WARNING, Advice.RESET_WHEN_IDLE),
        # No code: the watch.
        ("MEM", Severity.WARNING, Advice.RESET_WHEN_IDLE),
        ("DRIVER", Severity.WARNING, Advice.RESET_WHEN_IDLE),
        ("PCIE", Severity.WARNING, Advice.INSPECT),
    ],
)
def test_the_error_code_decides_and_not_the_watch(incident: str, severity: Severity, advice: Advice) -> None:
    finding = the(findings(watch(incident, 20, 20)), FindingKind.DCGM_HEALTH)
    assert (finding.severity, finding.advice, finding.confidence_ratio) == (severity, advice, 0.85)


@pytest.mark.parametrize(
    "incident", ["MEM;DCGM_FR_UNKNOWN(140)", "NVLINK;DCGM_FR_NVLINK_ERROR_CRITICAL", "SM", "CONNECTX"]
)
@pytest.mark.parametrize("action", [None, 0, 1])
def test_an_error_that_the_table_lacks_is_shown_and_decides_nothing(incident: str, action: float | None) -> None:
    found = findings(watch(incident, 20, 20, action=action))
    finding = the(found, FindingKind.DCGM_HEALTH)
    assert (finding.verdict, finding.severity, finding.advice) == (Verdict.UNKNOWN, Severity.WARNING, Advice.WATCH)
    assert incident.partition(";")[2] in finding.summary
    assert finding.evidence


def test_an_error_that_the_table_lacks_changes_no_other() -> None:
    both = {"gpu-0": {"MEM;DCGM_FR_VOLATILE_DBE_DETECTED": 20.0, "PMU;DCGM_FR_OF_TOMORROW": 20.0}}
    finding = the(findings(scene(variants={HEALTH.now: both, HEALTH.lowest: both})), FindingKind.DCGM_HEALTH)
    assert (finding.verdict, finding.advice) == (Verdict.DEGRADED, Advice.RESET_WHEN_IDLE)
    assert "PMU" not in finding.summary
    assert any("OF_TOMORROW" in fact.note for fact in finding.evidence)


@pytest.mark.parametrize("incident", ["ALL;DCGM_FR_XID_ERROR", "ALL;DCGM_FR_UNCONTAINED_ERROR", "ALL"])
def test_what_dcgm_remembers_past_a_reset_is_only_suspected(incident: str) -> None:
    """DCGM keeps XIDs until its host engine restarts, and a reset does not restart it."""
    finding = the(findings(watch(incident, 20, 20)), FindingKind.DCGM_HEALTH)
    assert (finding.severity, finding.confidence_ratio) == (Severity.WARNING, 0.6)
    assert "repaired" in finding.missing[0]


@pytest.mark.parametrize(("action", "advice"), [(None, Advice.RESET_WHEN_IDLE), (1, Advice.RESET)])
def test_an_xid_that_dcgm_remembers_makes_a_contained_error_no_graver(action: float | None, advice: Advice) -> None:
    """One double-bit error: XID 48 fails ALL for good, the volatile counter fails MEM until the next reload."""
    watches = {"gpu-0": {"ALL;DCGM_FR_XID_ERROR": 20.0, "MEM;DCGM_FR_VOLATILE_DBE_DETECTED": 20.0}}
    answers: dict[WindowStat, Answer] = {} if action is None else {ACTION: action}
    both = scene(answers=answers, variants={HEALTH.now: watches, HEALTH.lowest: watches})
    finding = the(findings(both), FindingKind.DCGM_HEALTH)
    assert (finding.advice, finding.confidence_ratio) == (advice, 0.85)
    assert len([fact for fact in finding.evidence if fact.note.startswith("health watch")]) == 2


def test_the_watches_that_only_ever_warn_ask_for_an_inspection() -> None:
    for incident in ("INFOROM;DCGM_FR_CORRUPT_INFOROM", "POWER;DCGM_FR_POWER_UNREADABLE"):
        finding = the(findings(watch(incident, 10, 10)), FindingKind.DCGM_HEALTH)
        assert (finding.severity, finding.advice, finding.confidence_ratio) == (Severity.WARNING, Advice.INSPECT, 0.6)
    # A minute of replays is none: only what warns through the whole window.
    assert on(findings(watch("PCIE;DCGM_FR_PCI_REPLAY_RATE", 10, 0)), FindingKind.DCGM_HEALTH) is None
    assert on(findings(watch("PCIE;DCGM_FR_PCI_REPLAY_RATE", 10, 10)), FindingKind.DCGM_HEALTH) is not None
    assert findings(watch("POWER;DCGM_FR_CLOCK_THROTTLE_POWER", 10, 10)) == {}


def test_a_watch_that_passed_within_the_window_did_not_fail_through_it() -> None:
    """Each code is a series of its own: the failing one's minimum is 20, the passing one's 0."""
    incident = "MEM;DCGM_FR_FAULTY_MEMORY"
    now, lowest = {"gpu-0": {incident: 20.0}}, {"gpu-0": {incident: 20.0, "MEM;DCGM_FR_OK": 0.0}}
    finding = the(findings(scene(variants={HEALTH.now: now, HEALTH.lowest: lowest})), FindingKind.DCGM_HEALTH)
    assert (finding.confidence_ratio, finding.since) == (0.6, None)


@pytest.mark.parametrize(
    ("incident", "action", "severity", "advice", "confidence"),
    [
        # The driver asks for nothing, now: a reset has been, or is not needed.
        ("MEM;DCGM_FR_VOLATILE_DBE_DETECTED", 0, Severity.WARNING, Advice.RESET_WHEN_IDLE, 0.6),
        ("DRIVER;DCGM_FR_GPU_RECOVERY_RESET", 0, Severity.WARNING, Advice.RESET, 0.6),
        ("PCIE", 0, Severity.WARNING, Advice.INSPECT, 0.6),
        # No reset cures these, so the driver's "nothing" says nothing about them.
        ("ALL;DCGM_FR_FALLEN_OFF_BUS", 0, Severity.CRITICAL, Advice.REBOOT, 0.85),
        ("MEM;DCGM_FR_ROW_REMAP_FAILURE", 0, Severity.CRITICAL, Advice.REPLACE, 0.85),
        # The driver lets the work end first.
        ("ALL;DCGM_FR_UNCONTAINED_ERROR", 4, Severity.WARNING, Advice.RESET_WHEN_IDLE, 0.85),
        ("DRIVER", 4, Severity.WARNING, Advice.RESET_WHEN_IDLE, 0.85),
        ("MEM;DCGM_FR_ROW_REMAP_FAILURE", 4, Severity.CRITICAL, Advice.REPLACE, 0.85),
        ("ALL;DCGM_FR_XID_ERROR", 1, Severity.CRITICAL, Advice.RESET, 0.85),
    ],
)
def test_the_driver_outranks_the_watch_where_a_reset_cures(
    incident: str, action: float, severity: Severity, advice: Advice, confidence: float
) -> None:
    finding = the(findings(watch(incident, 20, 20, action=action)), FindingKind.DCGM_HEALTH)
    assert (finding.severity, finding.advice, finding.confidence_ratio) == (severity, advice, confidence)


@pytest.mark.parametrize("code", [0, 10, 19])
def test_a_warning_is_no_failure(code: float) -> None:
    assert on(findings(watch("MEM", code, code)), FindingKind.DCGM_HEALTH) is None


def test_a_warning_proves_nothing_because_it_may_hide_a_failure() -> None:
    """dcgm-exporter shows one incident of a watch, the last one."""
    incident = "MEM;DCGM_FR_UNKNOWN(140)"
    shown = findings(watch(incident, 10, 10), everything=True)["dcgm_health:device/gpu-0"]
    assert shown.verdict is Verdict.UNKNOWN
    assert shown.summary.startswith("no watch fails, but MEM warns")
    busy = findings(watch("THERMAL;DCGM_FR_CLOCK_THROTTLE_THERMAL", 10, 10), everything=True)
    assert busy["dcgm_health:device/gpu-0"].verdict is Verdict.HEALTHY


@pytest.mark.parametrize(("nodes", "blamed"), [(3, True), (2, False)])
def test_a_watch_is_doubted_from_three_machines_on(nodes: int, blamed: bool) -> None:
    fleet = machines(nodes, 1)
    watches = {item.uuid: {"NVLINK": 20.0} for item in fleet}
    found = findings(scene(fleet, variants={HEALTH.now: watches, HEALTH.lowest: watches}))
    assert ("dcgm_health:fleet/fleet" in found) is blamed


@pytest.mark.parametrize("name", ["THERMAL", "POWER"])
def test_thermal_and_power_watches_are_left_to_the_throttling_rules(name: str) -> None:
    assert findings(watch(name, 20, 20)) == {}


@pytest.mark.parametrize(
    "weaker",
    [watch("MEM", 20, 0), watch("MEM", 20), watch("MEM", 20, 20, coverage=0.5), watch("MEM", 20, 20, action=0)],
)
def test_a_failure_that_flaps_or_that_the_driver_contradicts_is_less_sure(weaker: Snapshot) -> None:
    finding = the(findings(weaker), FindingKind.DCGM_HEALTH)
    assert (finding.verdict, finding.severity, finding.confidence_ratio) == (Verdict.DEGRADED, Severity.WARNING, 0.6)


def test_the_sticky_watch_of_all_xids_is_unknown_once_the_driver_asks_for_nothing() -> None:
    finding = the(findings(watch("ALL", 20, 20, action=0)), FindingKind.DCGM_HEALTH)
    assert finding.verdict is Verdict.UNKNOWN
    sick = the(findings(watch("ALL", 20, 20, action=1)), FindingKind.DCGM_HEALTH)
    assert sick.verdict is Verdict.DEGRADED


def test_a_vendors_verdict_counts_when_it_stays() -> None:
    amd = [device(vendor=Vendor.AMD, model="AMD Instinct MI300X OAM")]
    finding = the(findings(scene(amd, {VENDOR.now: 0.0, VENDOR.highest: 0.0})), FindingKind.VENDOR_HEALTH)
    assert (finding.verdict, finding.advice) == (Verdict.DEGRADED, Advice.RESET_WHEN_IDLE)
    flapping = the(findings(scene(amd, {VENDOR.now: 0.0, VENDOR.highest: 1.0})), FindingKind.VENDOR_HEALTH)
    assert (flapping.verdict, flapping.confidence_ratio) == (Verdict.UNKNOWN, 0.0)
    assert findings(scene(amd, {VENDOR.now: 1.0, VENDOR.highest: 1.0})) == {}


def test_one_page_of_metrics_is_no_window() -> None:
    """A bare page gives every statistic a value from a single sample."""
    bare = scene(answers={VENDOR.now: 0.0, VENDOR.highest: 0.0}, interval=0.0)
    finding = the(findings(bare), FindingKind.VENDOR_HEALTH)
    assert finding.verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(("sick", "blamed"), [(3, False), (4, True)])
def test_a_vendor_that_calls_a_fifth_of_the_fleet_sick_is_doubted(sick: int, blamed: bool) -> None:
    fleet = machines(20, 1)
    state = spread(fleet, 1.0, **{f"gpu_{node}_0": 0.0 for node in range(sick)})
    found = findings(scene(fleet, {VENDOR.now: state, VENDOR.highest: state}))
    assert ("vendor_health:fleet/fleet" in found) is blamed
    assert len(found) == (1 if blamed else sick)


def test_two_watches_that_fail_everywhere_are_one_finding() -> None:
    fleet = machines(5, 1)
    watches = {item.uuid: {"NVLINK": 20.0, "PCIE": 20.0} for item in fleet}
    [finding] = findings(scene(fleet, variants={HEALTH.now: watches, HEALTH.lowest: watches})).values()
    assert finding.id == "dcgm_health:fleet/fleet"
    assert "NVLINK" in finding.summary
    assert "PCIE" in finding.summary
    assert len(finding.devices) == 5


def test_changes_of_the_future_are_not_read() -> None:
    late = StateChange(
        device="gpu-0", signal=Signal.RECOVERY_ACTION_CODE, at=AT.replace(hour=13), before=0.0, after=2.0
    )
    finding = the(findings(scene(answers={ACTION: 2.0}, changes=[late])), FindingKind.RECOVERY_ACTION)
    assert finding.since is None


@pytest.mark.parametrize(
    ("watches", "status", "dissent"),
    [
        ({"MEM": 0.0, "PCIE": 0.0}, "", "DCGM's health watches pass"),
        ({"MEM": 0.0, "PCIE": 10.0}, "", ""),
        ({}, "", ""),
        ({}, "False", "the Node's conditions say that all is well (XidCriticalError=False)"),
        ({}, "True", ""),
        ({}, "Unknown", ""),
        (
            {"MEM": 0.0},
            "False",
            "DCGM's health watches pass; the Node's conditions say that all is well (XidCriticalError=False)",
        ),
    ],
)
def test_who_calls_a_degraded_gpu_well_is_told_and_changes_nothing(
    watches: dict[str, float], status: str, dissent: str
) -> None:
    conditions = (Condition("XidCriticalError", status),) if status else ()
    known = cluster(nodes=[Node(name="node-0", conditions=conditions, accelerators={"nvidia.com/gpu": 1})])
    variants = {HEALTH.now: {"gpu-0": watches}, HEALTH.lowest: {"gpu-0": watches}} if watches else {}
    found = findings(scene([device()], {ACTION: 2.0}, variants=variants, state=known))
    finding = the(found, FindingKind.RECOVERY_ACTION, "gpu-0")
    assert (finding.verdict, finding.advice) == (Verdict.DEGRADED, Advice.REBOOT)
    assert finding.dissent == dissent
