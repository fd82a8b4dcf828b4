import pytest

from detect.builders import POLICY, Answer, device, findings, machines, on, scene, spread, the
from detect.questions import ECC, PAGES, REMAP
from gpuwatch.facts.model.decision import Advice, FindingKind, Severity, Verdict
from gpuwatch.facts.model.telemetry import Vendor, WindowStat

HOUR = POLICY.change_window_seconds


def test_a_new_double_bit_error_asks_for_a_reset() -> None:
    # One error, extrapolated by increase() to the window's edges.
    finding = the(findings(scene(answers={ECC.dbe: 1.03, ECC.last_xid: 95.0})), FindingKind.ECC)
    assert (finding.verdict, finding.severity, finding.advice) == (Verdict.DEGRADED, Severity.CRITICAL, Advice.RESET)
    assert finding.summary == "1 new uncorrectable ECC error; it was not contained"
    assert (finding.evidence[0].value, finding.evidence[0].window_seconds) == (1.03, HOUR)


@pytest.mark.parametrize(
    ("evidence", "critical"),
    [
        ({}, False),  # nothing tells: a job that runs is not ended for it
        ({ECC.last_xid: 94.0}, False),
        ({ECC.last_xid: 63.0}, False),
        ({ECC.pending: 1.0}, False),
        ({ECC.new_rows: 1.0}, False),
        ({ECC.recovery: 4.0}, False),
        ({ECC.last_xid: 48.0, ECC.pending: 1.0}, False),  # NVIDIA's workflow of 48: with 63, drain and reset
        ({ECC.last_xid: 48.0, ECC.recovery: 4.0}, False),
        ({ECC.last_xid: 48.0}, True),  # 48 alone: reset the GPU
        ({ECC.last_xid: 48.0, ECC.pending: 0.0}, True),
        ({ECC.last_xid: 140.0, ECC.pending: 1.0}, True),
        ({ECC.last_xid: 95.0, ECC.pending: 1.0}, True),
        ({ECC.recovery: 1.0, ECC.pending: 1.0}, True),
        ({ECC.recovery: 2.0}, True),
        ({ECC.last_xid: 95.0, ECC.recovery: 4.0}, False),  # the driver outranks the number
    ],
)
def test_a_contained_error_ends_no_job(evidence: dict[WindowStat, Answer], critical: bool) -> None:
    for error in ({ECC.dbe: 1.0}, {ECC.standing: 1.0}, {ECC.dbe_lifetime: 1.0}):
        finding = the(findings(scene(answers={**error, **evidence})), FindingKind.ECC)
        expected = (Severity.CRITICAL, Advice.RESET) if critical else (Severity.WARNING, Advice.RESET_WHEN_IDLE)
        assert (finding.severity, finding.advice, finding.confidence_ratio) == (*expected, 0.95)


@pytest.mark.parametrize(
    ("model", "critical"),
    [
        ("Tesla V100-SXM2-32GB", True),
        ("Tesla T4", True),
        ("NVIDIA A10", True),
        ("NVIDIA L40S", True),
        ("NVIDIA A30", False),
        ("NVIDIA A100-SXM4-80GB", False),
        ("NVIDIA GB200", False),
        ("a model that nobody knows", False),
    ],
)
def test_where_nothing_tells_the_architecture_does(model: str, critical: bool) -> None:
    """GPU Memory Error Management, Supported GPUs: error containment on GA100, GH100 and GB10x."""
    finding = the(findings(scene([device(model=model)], {ECC.dbe: 1.0})), FindingKind.ECC)
    assert (finding.severity is Severity.CRITICAL) is critical


def test_an_error_that_stands_in_the_volatile_counter_is_due_for_a_reset() -> None:
    """It counts since the driver was loaded, so it stands until the reset, however old it is."""
    finding = the(findings(scene(answers={ECC.dbe: 0.0, ECC.standing: 2.0})), FindingKind.ECC)
    assert (finding.verdict, finding.advice) == (Verdict.DEGRADED, Advice.RESET_WHEN_IDLE)
    assert finding.summary.startswith("2 uncorrectable ECC errors since the driver was loaded")
    born = the(findings(scene(answers={ECC.appeared: 3.0, ECC.standing: 3.0})), FindingKind.ECC)
    assert born.verdict is Verdict.DEGRADED


def test_the_reset_clears_it_at_once() -> None:
    for error in ({ECC.dbe: 1.0}, {ECC.dbe_lifetime: 1.0}, {ECC.appeared: 1.0}):
        assert findings(scene(answers={**error, ECC.standing: 0.0, ECC.last_xid: 48.0})) == {}


def test_a_driver_that_asks_for_nothing_outranks_the_counter() -> None:
    finding = the(findings(scene(answers={ECC.standing: 1.0, ECC.recovery: 0.0})), FindingKind.ECC)
    assert (finding.severity, finding.confidence_ratio) == (Severity.WARNING, 0.6)
    waits = {ECC.standing: 1.0, ECC.recovery: 0.0, ECC.pending: 1.0}
    pending = the(findings(scene(answers=waits)), FindingKind.ECC)
    assert (pending.advice, pending.confidence_ratio) == (Advice.RESET_WHEN_IDLE, 0.95)


def test_other_vendors_counters_say_nothing_by_standing_above_zero() -> None:
    amd = [device(vendor=Vendor.AMD, model="AMD Instinct MI300X OAM")]
    assert findings(scene(amd, {ECC.dbe: 0.0, ECC.standing: 2.0})) == {}
    fresh = the(findings(scene(amd, {ECC.dbe: 1.0, ECC.standing: 2.0})), FindingKind.ECC)
    assert fresh.verdict is Verdict.DEGRADED


def test_mig_is_the_reason_where_nvml_does_not_tell() -> None:
    slices = [device(mig="1"), device(mig="2")]
    for kind in ("row_remap", "ecc"):
        shown = findings(scene(slices), everything=True)[f"{kind}:device/gpu-0"]
        assert shown.verdict is Verdict.UNKNOWN
        assert "MIG" in shown.summary
    told = findings(scene(slices, {REMAP.failed: 0.0, REMAP.pending: 0.0}), everything=True)
    assert told["row_remap:device/gpu-0"].verdict is Verdict.HEALTHY


def test_several_errors_are_told_in_whole_numbers() -> None:
    finding = the(findings(scene(answers={ECC.dbe: 3.1})), FindingKind.ECC)
    assert finding.summary.startswith("3 new uncorrectable ECC errors")


def test_a_counter_that_appeared_at_zero_is_no_news() -> None:
    assert findings(scene(answers={ECC.dbe: 0.0, ECC.appeared: 0.0})) == {}


def test_an_error_is_degraded_however_little_was_seen() -> None:
    finding = the(findings(scene(answers={ECC.dbe: 1.0}, coverage=0.1)), FindingKind.ECC)
    assert finding.verdict is Verdict.DEGRADED


def test_errors_from_before_telemetry_began_are_unknown() -> None:
    finding = the(findings(scene(answers={ECC.dbe: 0.0, ECC.appeared: 3.0})), FindingKind.ECC)
    assert (finding.verdict, finding.advice) == (Verdict.UNKNOWN, Advice.WATCH)


def test_one_gpu_with_corrected_errors_in_a_fleet_that_has_none() -> None:
    """NVSentinel #1748: 17.7k corrected errors per second on one GB200, none on the other 287 Nodes; DCGM: healthy."""
    fleet = machines(36, 8, model="NVIDIA GB200")
    found = findings(scene(fleet, {ECC.dbe: 0.0, ECC.sbe: spread(fleet, 0.0, gpu_7_2=17_700.0 * HOUR)}))
    [finding] = found.values()
    assert finding.subject.name == "gpu-7-2"
    assert (finding.verdict, finding.confidence_ratio) == (Verdict.DEGRADED, 0.8)
    fact = finding.evidence[0]
    assert (fact.value, fact.unit, fact.peers_median, fact.peers) == (17_700.0, "errors/second", 0.0, 287)


@pytest.mark.parametrize(("rate", "named"), [(0.1, True), (0.0999, False)])
def test_the_rate_from_which_corrected_errors_are_compared(rate: float, named: bool) -> None:
    fleet = machines(1, 8)
    found = findings(scene(fleet, {ECC.sbe: spread(fleet, 0.0, gpu_0_0=rate * HOUR)}))
    assert (on(found, FindingKind.ECC, "gpu-0-0") is not None) is named


def test_corrected_errors_that_every_peer_has_are_no_ones_fault() -> None:
    fleet = machines(2, 8)
    assert findings(scene(fleet, {ECC.sbe: 50.0 * HOUR, ECC.dbe: 0.0})) == {}


@pytest.mark.parametrize(("others", "verdict"), [(5, Verdict.DEGRADED), (4, Verdict.UNKNOWN)])
def test_a_comparison_needs_peers(others: int, verdict: Verdict) -> None:
    fleet = machines(1, others + 1)
    found = findings(scene(fleet, {ECC.sbe: spread(fleet, 0.0, gpu_0_0=1000.0 * HOUR)}))
    finding = the(found, FindingKind.ECC, "gpu-0-0")
    assert finding.verdict is verdict


def test_other_models_are_no_peers() -> None:
    fleet = (*machines(1, 8, model="Tesla T4"), *(item for item in machines(2, 8) if item.node == "node-1"))
    rates = spread(fleet, 50.0 * HOUR) | {item.uuid: 0.0 for item in fleet if item.model == "Tesla T4"}
    assert findings(scene(fleet, {ECC.dbe: 0.0, ECC.sbe: rates})) == {}


def test_unless_there_are_too_few_of_its_own() -> None:
    fleet = (*machines(1, 2, model="Tesla T4"), *(item for item in machines(2, 8) if item.node == "node-1"))
    found = findings(scene(fleet, {ECC.dbe: 0.0, ECC.sbe: spread(fleet, 0.0, gpu_0_0=50.0 * HOUR)}))
    finding = the(found, FindingKind.ECC, "gpu-0-0")
    assert (finding.verdict, finding.confidence_ratio) == (Verdict.DEGRADED, 0.6)


def test_failed_outranks_pending_in_one_finding() -> None:
    finding = the(findings(scene(answers={REMAP.failed: 1.0, REMAP.pending: 1.0})), FindingKind.ROW_REMAP)
    assert finding.advice is Advice.REPLACE
    assert len(finding.evidence) == 2


def test_many_rows_and_a_pending_one_wait_for_a_reset() -> None:
    finding = the(findings(scene(answers={REMAP.pending: 1.0, REMAP.rows: 600.0})), FindingKind.ROW_REMAP)
    assert (finding.severity, finding.advice) == (Severity.WARNING, Advice.RESET_WHEN_IDLE)


@pytest.mark.parametrize(
    ("sign", "severity", "advice"),
    [
        ("unrepairable", Severity.WARNING, Advice.REPLACE),
        ("exhausted", Severity.WARNING, Advice.REPLACE),
        ("low", Severity.INFO, Advice.WATCH),
    ],
)
def test_signals_of_which_no_page_was_recorded_are_shown_and_never_acted_on(
    sign: str, severity: Severity, advice: Advice
) -> None:
    stat = getattr(REMAP, sign)
    finding = the(findings(scene(answers={stat: 1.0, REMAP.failed: 0.0})), FindingKind.ROW_REMAP)
    assert (finding.severity, finding.advice, finding.confidence_ratio) == (severity, advice, 0.6)
    beside = the(findings(scene(answers={stat: 1.0, REMAP.pending: 1.0})), FindingKind.ROW_REMAP)
    assert (beside.severity, beside.advice, beside.confidence_ratio) == (Severity.INFO, Advice.RESET_WHEN_IDLE, 0.9)
    assert len(beside.evidence) == 2


@pytest.mark.parametrize(
    ("dbe", "this_week", "named"),
    # increase() extrapolates one page to 1.03, two to 1.98 or 2.07.
    [
        (16.0, 2.07, True),
        (16.0, 1.98, True),
        (15.0, 2.0, False),
        (16.0, 1.0, False),
        (16.0, 1.03, False),
        (16, 0, False),
    ],
)
def test_dcgms_limit_of_double_bit_pages(dbe: float, this_week: float, named: bool) -> None:
    answers = {PAGES.sbe: 0.0, PAGES.dbe: dbe, PAGES.dbe_new: this_week}
    assert (on(findings(scene(answers=answers)), FindingKind.PAGE_RETIREMENT) is not None) is named


def test_a_page_that_waits_for_a_reset_is_not_urgent() -> None:
    finding = the(findings(scene(answers={PAGES.sbe: 1.0, PAGES.pending: 1.0})), FindingKind.PAGE_RETIREMENT)
    assert (finding.severity, finding.advice) == (Severity.INFO, Advice.RESET_WHEN_IDLE)
