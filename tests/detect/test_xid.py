from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from detect.builders import (
    AT,
    H100,
    POLICY,
    ago,
    cluster,
    device,
    findings,
    machines,
    on,
    pod,
    scene,
    spread,
    the,
    xid_became,
    xid_counted,
)
from detect.questions import ACTION, ECC, HEALTH, REMAP, WIDTH, XIDS
from gpuwatch.facts.catalog.xids import XidClass, xids
from gpuwatch.facts.model.cluster import Node
from gpuwatch.facts.model.decision import Advice, Finding, FindingKind, Severity, Verdict
from gpuwatch.facts.model.telemetry import ActivityHistory, Device, Readings, Signal, StateChange
from gpuwatch.judge.health.assess import assess_health
from gpuwatch.judge.health.xid_events import architecture


def after(*changes: StateChange, **more: object) -> Finding:
    return the(findings(scene(changes=changes, **more)), FindingKind.XID)  # type: ignore[arg-type]


def nothing_after(*changes: StateChange, **more: object) -> bool:
    return on(findings(scene(changes=changes, **more)), FindingKind.XID) is None  # type: ignore[arg-type]


def said(finding: Finding) -> tuple[Verdict, Severity, Advice]:
    return finding.verdict, finding.severity, finding.advice


def counted(xid: str, *, window: float = 0, increase: float = 0, appeared: float = 0) -> dict[str, object]:
    rows = {XIDS.counted: window, XIDS.increased: increase, XIDS.appeared: appeared}
    return {"variants": {stat: {"gpu-0": {xid: value}} for stat, value in rows.items()}}


class TestNews:
    """What the last-value gauge, the windowed count and the total tell, each with its blind spot."""

    def test_a_fatal_xid_that_is_new(self) -> None:
        finding = after(xid_became("gpu-0", 79, at=ago(minutes=7)), answers={XIDS.last: 79.0})
        assert said(finding) == (Verdict.DEGRADED, Severity.CRITICAL, Advice.REBOOT)
        assert (finding.since, finding.confidence_ratio) == (ago(minutes=7), 0.9)
        assert finding.evidence[0].value == 79.0
        assert finding.evidence[0].promql == 'query(xid_code:last:0){UUID="gpu-0"}'

    def test_up_from_another_xid(self) -> None:
        """13 → 79: increase() over the gauge would say 66."""
        finding = after(xid_became("gpu-0", 79, before=13))
        assert finding.evidence[0].note == "became this value; XID 13 before"

    def test_down_from_a_fatal_one(self) -> None:
        """79 → 13: the news is 13, and nobody saw the end of the 79. Since when it lasts is not known."""
        finding = after(xid_became("gpu-0", 13, before=79))
        assert (finding.verdict, finding.confidence_ratio, finding.since) == (Verdict.DEGRADED, 0.6, None)
        assert finding.summary.endswith("also XID 13")

    def test_down_from_one_that_is_not(self) -> None:
        finding = after(xid_became("gpu-0", 13, before=45))
        assert (finding.verdict, finding.advice) == (Verdict.UNKNOWN, Advice.FIX_APPLICATION)

    def test_a_value_that_stands_is_no_news_unless_it_is_fatal(self) -> None:
        snapshot = scene(answers={XIDS.last: 43.0})
        assert findings(snapshot) == {}
        shown = findings(snapshot, everything=True)["xid:device/gpu-0"]
        assert shown.verdict is Verdict.HEALTHY
        assert "older than the window" in shown.summary

    @pytest.mark.parametrize(("seconds", "news"), [(0, True), (3599, True), (3600, False)])
    def test_news_ends_with_the_window(self, seconds: int, news: bool) -> None:
        assert nothing_after(xid_became("gpu-0", 79, at=ago(seconds=seconds))) is not news

    def test_back_to_zero_is_no_xid(self) -> None:
        assert nothing_after(xid_became("gpu-0", 0, before=79), answers={XIDS.last: 0.0})

    def test_a_first_appearance_counts(self) -> None:
        """Since DCGM 4.5 there is no series before the first XID."""
        finding = after(xid_became("gpu-0", 79, before=None))
        assert finding.verdict is Verdict.DEGRADED

    @pytest.mark.parametrize(("minutes", "confidence"), [(31, 0.6), (28, 0.9)])
    def test_unless_the_whole_gpu_appeared_with_it(self, minutes: int, confidence: float) -> None:
        """Half of the hour was seen, so telemetry began 30 min ago: a latched code of yesterday looks the same."""
        finding = after(xid_became("gpu-0", 79, before=None, at=ago(minutes=minutes)), coverage=0.5)
        assert (finding.verdict, finding.confidence_ratio) == (Verdict.DEGRADED, confidence)

    def test_a_gpu_that_fell_silent_is_believed(self) -> None:
        lost = [device(present=False, last_seen=ago(minutes=30)), device("gpu-1")]
        found = findings(scene(lost, changes=[xid_became("gpu-0", 79, before=None, at=ago(minutes=31))]))
        assert found["xid:device/gpu-0"].verdict is Verdict.DEGRADED

    def test_a_total_that_was_born_at_one(self) -> None:
        """increase() gives nothing for it; it has appeared."""
        finding = after(**counted("79", appeared=1))
        assert (finding.verdict, finding.since) == (Verdict.DEGRADED, None)

    def test_a_total_that_went_from_one_to_two(self) -> None:
        assert not nothing_after(**counted("79", increase=1))

    @pytest.mark.parametrize(("news", "confidence"), [(True, 0.9), (False, 0.6)])
    def test_a_windowed_count_is_news_where_it_was_seen_to_begin(self, news: bool, confidence: float) -> None:
        """An exporter whose window is a day still counts the XID of yesterday."""
        changes = [xid_counted("gpu-0", "79", at=ago(minutes=30))] if news else []
        finding = after(*changes, **counted("79", window=1))
        assert (finding.confidence_ratio, finding.since) == (confidence, ago(minutes=30) if news else None)
        assert any("when it was" in item for item in finding.missing) is not news

    def test_a_zero_that_stands_where_the_xid_goes_is_none(self) -> None:
        assert nothing_after(xid_counted("gpu-0", "0", at=ago(minutes=30)), **counted("0", window=1))

    def test_a_count_confirms_the_gauges_first_sample(self) -> None:
        latched = xid_became("gpu-0", 79, before=None, at=ago(minutes=31))
        finding = after(latched, xid_counted("gpu-0", "79", at=ago(minutes=31)), coverage=0.5)
        assert finding.verdict is Verdict.DEGRADED

    def test_the_row_without_an_xid_is_the_exporters_zero(self) -> None:
        assert nothing_after(**counted("", window=0))
        shown = findings(scene(**counted("", window=0)), everything=True)  # type: ignore[arg-type]
        assert shown["xid:device/gpu-0"].verdict is Verdict.HEALTHY

    @pytest.mark.parametrize(("xid", "window"), [("", 3), ("79", 0)])
    def test_a_count_without_an_xid_or_of_none_names_none(self, xid: str, window: float) -> None:
        assert nothing_after(**counted(xid, window=window))

    def test_a_first_appearance_is_believed_where_no_samples_are_counted(self) -> None:
        snapshot = replace(scene(changes=[xid_became("gpu-0", 79, before=None)]), readings=Readings())
        assert findings(snapshot)["xid:device/gpu-0"].verdict is Verdict.DEGRADED

    def test_no_gauge_anywhere_is_unknown_but_beside_others_it_is_healthy(self) -> None:
        shown = findings(scene(), everything=True)["xid:device/gpu-0"]
        assert (shown.verdict, shown.missing) == (Verdict.UNKNOWN, ("xid_code", "xid_window_count", "xid_events_total"))
        fleet = machines(1, 2)
        shown = findings(scene(fleet, {XIDS.last: {"gpu-0-1": 43.0}}), everything=True)["xid:device/gpu-0-0"]
        assert shown.verdict is Verdict.HEALTHY
        shown = findings(scene(fleet, {XIDS.last: {"gpu-0-1": 43.0}}, coverage=0.5), everything=True)[
            "xid:device/gpu-0-0"
        ]
        assert shown.verdict is Verdict.UNKNOWN


class TestClasses:
    def test_the_conflict_of_the_authorities_is_evidence(self) -> None:
        finding = after(xid_became("gpu-0", 109))
        note = finding.evidence[-1].note
        assert note.startswith("NVIDIA: RESET_GPU; the device plugin ignores it")
        assert "EKS" in note

    @pytest.mark.parametrize("code", sorted(code for code, item in xids().items() if item.xid_class is XidClass.FATAL))
    def test_fatal_on_sight(self, code: int) -> None:
        model = {"H100": H100, "B100": "NVIDIA B200", "A100": "NVIDIA A100-SXM4-80GB", "GB200": "NVIDIA GB200"}
        finding = after(xid_became("gpu-0", code), devices=[device(model=model[xids()[code].architectures[0]])])
        assert finding.verdict is Verdict.DEGRADED
        assert finding.advice in (Advice.RESET, Advice.REBOOT, Advice.INSPECT)

    @pytest.mark.parametrize(
        "code",
        sorted(
            code
            for code, item in xids().items()
            if item.xid_class in (XidClass.CORROBORATE, XidClass.APPLICATION, XidClass.IGNORE)
        ),
    )
    def test_nothing_else_is_degraded_alone(self, code: int) -> None:
        found = findings(scene(changes=[xid_became("gpu-0", code)]))
        assert {finding.verdict for finding in found.values()} <= {Verdict.UNKNOWN}

    @pytest.mark.parametrize("times", [1, 2, 5])
    def test_a_windowed_count_shows_repeats_that_it_never_counts_at_once(self, times: int) -> None:
        occurred = [
            xid_counted("gpu-0", "119", at=ago(minutes=50 - 10 * number), before=number, after=number + 1)
            for number in range(times)
        ]
        finding = after(*occurred, xid_became("gpu-0", 119, at=ago(minutes=50)), **counted("119", window=1))
        assert (finding.verdict, finding.since) == (Verdict.DEGRADED, ago(minutes=50))
        noted = [item.note for item in finding.evidence if item.signal == "xid_window_count"]
        more = f"; {times} at least, as each is counted no longer than the exporter's window"
        assert noted == ["XID 119" + (more if times > 1 else "")]

    @pytest.mark.parametrize("code", [180.0, 79.5])
    def test_an_xid_that_the_catalog_lacks_is_unknown_not_ignored(self, code: float) -> None:
        finding = after(xid_became("gpu-0", code))
        assert (finding.verdict, finding.advice, finding.severity) == (Verdict.UNKNOWN, Advice.WATCH, Severity.WARNING)
        assert f"XID {code:g} is not in the catalog" in finding.summary

    def test_a_variant_that_is_no_number_is_unknown(self) -> None:
        finding = after(**counted("0x4f", window=1))
        assert "XID 0x4f is not in the catalog" in finding.summary

    def test_the_operators_class_stands_over_the_catalogs(self) -> None:
        base = xids()[63]
        own = {**xids(), 63: replace(base, xid_class=XidClass.FATAL, reason="our supplier replaces on 63")}
        snapshot = scene(changes=[xid_became("gpu-0", 63)])
        [finding] = assess_health(snapshot, POLICY, xids=own)
        assert finding.verdict is Verdict.DEGRADED
        assert "our supplier" in finding.summary


@pytest.mark.parametrize(
    ("model", "column"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H200", "H100"),
        ("NVIDIA B200", "B100"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA GH200 480GB", None),
        ("Tesla T4", None),
        ("NVIDIA L40S", None),
        ("", None),
    ],
)
def test_the_catalogs_column_of_a_model(model: str, column: str | None) -> None:
    assert architecture(model) == column


@pytest.mark.parametrize(
    ("code", "model", "applies"),
    [
        (136, H100, True),
        (136, "NVIDIA B200", False),
        (156, "NVIDIA B200", True),
        (150, H100, False),
        (136, "Tesla T4", True),
    ],
)
def test_an_xid_of_another_architecture_concludes_nothing(code: int, model: str, applies: bool) -> None:
    finding = after(xid_became("gpu-0", code), devices=[device(model=model)])
    assert finding.verdict is (Verdict.DEGRADED if applies else Verdict.UNKNOWN)


class TestCorroboration:
    def test_an_xid_and_the_drivers_verdict(self) -> None:
        finding = after(xid_became("gpu-0", 109), answers={ACTION: 1.0})
        assert said(finding) == (Verdict.DEGRADED, Severity.CRITICAL, Advice.RESET)
        # The driver judges the event that it reported: one event, and its judgement counts.
        assert finding.confidence_ratio == pytest.approx(0.98)
        assert {fact.signal for fact in finding.evidence} == {"xid_code", "xid_catalog", "recovery_action_code"}

    def test_what_has_to_be_done_is_what_the_other_sign_says(self) -> None:
        finding = after(xid_became("gpu-0", 63), answers={REMAP.pending: 1.0})
        assert (finding.severity, finding.advice) == (Severity.INFO, Advice.RESET_WHEN_IDLE)

    def test_a_sign_on_another_gpu_is_none(self) -> None:
        fleet = machines(1, 2)
        found = findings(scene(fleet, {ACTION: spread(fleet, 0.0, gpu_0_1=1.0)}, changes=[xid_became("gpu-0-0", 63)]))
        assert found["xid:device/gpu-0-0"].verdict is Verdict.UNKNOWN

    @pytest.mark.parametrize(("code", "verdict"), [(63, Verdict.UNKNOWN), (144, Verdict.DEGRADED)])
    def test_dcgms_health_is_no_second_sign_where_it_comes_from_the_xid(self, code: int, verdict: Verdict) -> None:
        watches = {"gpu-0": {"NVLINK": 20.0}}
        devices = [device(model="NVIDIA B200")]
        finding = after(
            xid_became("gpu-0", code), devices=devices, variants={HEALTH.now: watches, HEALTH.lowest: watches}
        )
        assert finding.verdict is verdict

    def test_one_memory_error_that_three_rules_see_is_one(self) -> None:
        watches = {"gpu-0": {"MEM": 20.0}}
        finding = after(
            xid_became("gpu-0", 95),
            answers={ECC.dbe: 1.0},
            variants={HEALTH.now: watches, HEALTH.lowest: watches},
        )
        assert finding.confidence_ratio == pytest.approx(0.95)
        assert finding.advice is Advice.RESET

    def test_a_sign_on_another_component_makes_a_fatal_one_surer_and_no_other(self) -> None:
        finding = beside_half_of_its_lanes(95)
        assert finding.confidence_ratio > 0.9
        assert finding.advice is Advice.RESET
        assert beside_half_of_its_lanes(63).verdict is Verdict.UNKNOWN

    @pytest.mark.parametrize("code", [45, 154])
    def test_what_follows_another_event_confirms_nothing(self, code: int) -> None:
        """A job was killed on a GPU whose link has half of its lanes: that is the link's finding alone."""
        assert beside_half_of_its_lanes(code).verdict is Verdict.UNKNOWN

    @pytest.mark.parametrize(
        ("action", "severity", "advice"),
        [
            (1.0, Severity.CRITICAL, Advice.RESET),
            (2.0, Severity.CRITICAL, Advice.REBOOT),
            (4.0, Severity.WARNING, Advice.RESET_WHEN_IDLE),
        ],
    )
    @pytest.mark.parametrize("code", [48, 79, 95, 119])
    def test_the_driver_decides_where_it_speaks(
        self, code: int, action: float, severity: Severity, advice: Advice
    ) -> None:
        finding = after(xid_became("gpu-0", code), answers={ACTION: action})
        assert (finding.severity, finding.advice, finding.confidence_ratio) == (severity, advice, pytest.approx(0.98))

    def test_the_driver_decides_for_many_gpus_too(self) -> None:
        fleet = machines(5, 1)
        found = findings(scene(fleet, {ACTION: 4.0}, changes=fleet_xids(fleet, 62)))
        xid_findings = [item for item in found.values() if item.kind is FindingKind.XID and "device" in item.id]
        assert {item.advice for item in xid_findings} == {Advice.RESET_WHEN_IDLE}


def beside_half_of_its_lanes(code: int) -> Finding:
    fleet = machines(2, 8)
    answers = {WIDTH.most: 16.0, WIDTH.lanes: spread(fleet, 16.0, gpu_0_0=8.0)}
    found = findings(scene(fleet, answers, changes=[xid_became("gpu-0-0", code)]))
    assert "pcie_width:device/gpu-0-0" in found
    return found["xid:device/gpu-0-0"]


def memory_event(*codes: int, **more: object) -> Finding:
    changes = [xid_became("gpu-0", code, at=ago(minutes=10 - number)) for number, code in enumerate(codes)]
    return after(*changes, **more)


class TestContained:
    """What the driver contained is no reason to end a job that runs."""

    @pytest.mark.parametrize("codes", [(94,), (63,), (48, 94), (48, 63), (94, 172), (48, 171, 63)])
    def test_never_a_reason_to_end_a_job(self, codes: tuple[int, ...]) -> None:
        finding = memory_event(*codes, answers={ECC.dbe: 1.0, REMAP.pending: 1.0})
        assert (finding.verdict, finding.advice) == (Verdict.DEGRADED, Advice.RESET_WHEN_IDLE)
        assert finding.severity in (Severity.INFO, Severity.WARNING)

    def test_a_contained_error_in_sram_has_no_row_to_remap(self) -> None:
        finding = memory_event(48, 94, answers={ECC.dbe: 1.0})
        assert (finding.severity, finding.advice) == (Severity.WARNING, Advice.RESET_WHEN_IDLE)
        assert "the driver contained it" in finding.summary

    @pytest.mark.parametrize("worse", [64, 95, 140])
    def test_but_not_where_one_was_not_contained(self, worse: int) -> None:
        finding = memory_event(48, 94, worse)
        assert (finding.severity, finding.advice) == (Severity.CRITICAL, Advice.RESET)


class TestRecoveryActionChanged:
    """XID 154 says that the recovery action changed, and nothing else."""

    @pytest.mark.parametrize("news", [True, False])
    def test_without_the_action_it_hides_what_came_before(self, news: bool) -> None:
        changes = [xid_became("gpu-0", 154)] if news else []
        finding = after(*changes, answers={XIDS.last: 154.0})
        assert (finding.verdict, finding.severity) == (Verdict.UNKNOWN, Severity.WARNING)
        assert "hides the XID before it" in finding.summary
        assert finding.missing[0] == "recovery_action_code"

    def test_a_fatal_one_in_the_same_second_is_seen_in_the_count(self) -> None:
        finding = after(
            xid_became("gpu-0", 154), xid_counted("gpu-0", "79", at=ago(minutes=10)), answers={XIDS.last: 154.0}
        )
        assert (finding.verdict, finding.advice) == (Verdict.DEGRADED, Advice.REBOOT)

    def test_with_the_action_the_number_adds_nothing(self) -> None:
        found = findings(scene(changes=[xid_became("gpu-0", 154)], answers={XIDS.last: 154.0, ACTION: 2.0}))
        assert set(found) == {"recovery_action:device/gpu-0"}
        shown = findings(scene(answers={XIDS.last: 154.0, ACTION: 0.0}), everything=True)["xid:device/gpu-0"]
        assert shown.verdict is Verdict.HEALTHY


class TestAnotherSign:
    def test_more_evidence_never_lowers_confidence(self) -> None:
        alone = after(xid_became("gpu-0", 79))
        more = after(xid_became("gpu-0", 79), answers={REMAP.pending: 1.0})
        assert alone is not None and more is not None
        assert more.confidence_ratio >= alone.confidence_ratio
        assert more.severity is Severity.CRITICAL
        assert more.advice is Advice.REBOOT


def history(pod_name: str, start_minutes: float, end_minutes: float) -> ActivityHistory:
    steps = int(start_minutes - end_minutes)
    return ActivityHistory(
        device="gpu-0", pod=pod_name, start=ago(minutes=start_minutes), step_seconds=60, steps="#" * steps
    )


class TestApplication:
    CHANGES = (
        xid_became("gpu-0", 13, at=ago(minutes=50)),
        xid_became("gpu-0", 43, before=13, at=ago(minutes=49)),
        xid_became("gpu-0", 13, before=43, at=ago(minutes=10)),
    )

    def test_two_programs_on_one_gpu_are_the_gpus(self) -> None:
        state = cluster(pods=[pod("first"), pod("second", started=ago(minutes=30))])
        finding = after(
            *self.CHANGES,
            devices=[device(pods=["ns/second"])],
            state=state,
            activity=[history("ns/first", 60, 35), history("ns/second", 30, 0)],
        )
        assert (finding.verdict, finding.advice, finding.confidence_ratio) == (
            Verdict.DEGRADED,
            Advice.RESET_WHEN_IDLE,
            0.7,
        )
        assert "workload/Job/ns/first, workload/Job/ns/second" in finding.summary

    def test_two_pods_of_one_workload_are_one_program(self) -> None:
        state = cluster(pods=[pod("first", workload="Job/ns/same"), pod("second", workload="Job/ns/same")])
        finding = after(
            *self.CHANGES,
            state=state,
            activity=[history("ns/first", 60, 35), history("ns/second", 30, 0)],
        )
        assert finding.verdict is Verdict.UNKNOWN

    @pytest.mark.parametrize(("minutes", "held"), [(37, True), (38, True), (39, False)])
    def test_a_program_that_died_of_it_still_held_the_gpu(self, minutes: int, held: bool) -> None:
        """Its last sample may be two steps older than the first that shows the XID."""
        change = xid_became("gpu-0", 31, at=ago(minutes=36, seconds=1))
        finding = after(change, activity=[history("ns/first", 60, minutes)], state=cluster(pods=[pod("first")]))
        assert ("workload/Job/ns/first" in finding.summary) is held

    def test_a_holder_that_came_later_is_not_blamed(self) -> None:
        state = cluster(pods=[pod("second", started=ago(minutes=30))])
        finding = after(*self.CHANGES[:1], devices=[device(pods=["ns/second"])], state=state)
        assert "held by" not in finding.summary


def fleet_xids(
    fleet: Sequence[Device], code: float, *, seconds: Mapping[str, float] | None = None
) -> list[StateChange]:
    """The XID on every GPU, a second apart, ending a minute ago."""
    return [
        xid_became(item.uuid, code, at=ago(seconds=60 + (seconds or {}).get(item.uuid, number)))
        for number, item in enumerate(fleet)
    ]


class TestCommonCause:
    def test_gpus_of_one_workload_within_minutes(self) -> None:
        fleet = machines(2, 8, pods=True)
        state = cluster(pods=[pod("pod-0", workload="Job/ns/train"), pod("pod-1", workload="Job/ns/train")])
        [finding] = findings(scene(fleet, changes=fleet_xids(fleet, 31), state=state)).values()
        assert finding.id == "xid:workload/Job/ns/train"
        assert said(finding) == (Verdict.UNKNOWN, Severity.INFO, Advice.FIX_APPLICATION)
        assert len(finding.devices) == 16

    @pytest.mark.parametrize("code", [155, 145])
    def test_links_of_one_workload_are_no_programs_fault(self, code: int) -> None:
        fleet = machines(2, 8, model="NVIDIA B200", pods=True)
        state = cluster(pods=[pod("pod-0", workload="Job/ns/train"), pod("pod-1", workload="Job/ns/train")])
        [finding] = findings(scene(fleet, changes=fleet_xids(fleet, code), state=state)).values()
        assert said(finding) == (Verdict.UNKNOWN, Severity.WARNING, Advice.WATCH)
        assert "what they share, such as a switch" in finding.summary

    @pytest.mark.parametrize(("seconds", "together"), [(300.0, True), (301.0, False)])
    def test_minutes_are_five(self, seconds: float, together: bool) -> None:
        fleet = machines(1, 2, pods=True)
        changes = fleet_xids(fleet, 31, seconds={"gpu-0-0": 0.0, "gpu-0-1": seconds})
        found = findings(scene(fleet, changes=changes))
        assert ("xid:pod/ns/pod-0" in found) is together
        assert len(found) == (1 if together else 2)

    @pytest.mark.parametrize(("nodes", "together"), [(3, True), (2, False)])
    def test_many_nodes_at_once(self, nodes: int, together: bool) -> None:
        fleet = machines(nodes, 1)
        found = findings(scene(fleet, changes=fleet_xids(fleet, 119)))
        assert ("xid:fleet/fleet" in found) is together
        assert len(found) == (1 if together else nodes)

    def test_unless_the_gpu_shows_it_otherwise_too(self) -> None:
        fleet = machines(5, 1)
        snapshot = scene(fleet, {ACTION: spread(fleet, 0.0, gpu_2_0=2.0)}, changes=fleet_xids(fleet, 62))
        found = findings(snapshot)
        assert found["xid:device/gpu-2-0"].verdict is Verdict.DEGRADED
        assert [name for name in found if name.startswith("xid:device")] == ["xid:device/gpu-2-0"]

    def test_a_fatal_xid_on_one_machine_is_hardware_though_one_job_held_it(self) -> None:
        """Eight GPUs on one board fall off together: a switch or a power feed, not the job."""
        fleet = machines(2, 8, pods=True)
        hit = [item for item in fleet if item.node == "node-0"]
        found = findings(scene(fleet, changes=fleet_xids(hit, 79)))
        assert {item.verdict for item in found.values()} == {Verdict.DEGRADED}
        assert len(found) == 8

    def test_gpus_of_one_machine_whose_holder_is_gone(self) -> None:
        """A job that was killed holds nothing any more when its XID 45 is seen."""
        fleet = machines(2, 8)
        hit = [item for item in fleet if item.node == "node-0"]
        found = findings(scene(fleet, changes=fleet_xids(hit, 45)))
        assert list(found) == ["xid:node/node-0"]
        assert (found["xid:node/node-0"].node, found["xid:node/node-0"].advice) == ("node-0", Advice.WATCH)

    def test_no_program_is_blamed_for_a_fatal_xid_on_all_its_machines(self) -> None:
        fleet = machines(4, 1, pods=True)
        state = cluster(pods=[pod(f"pod-{number}", gang="train") for number in range(4)])
        [finding] = findings(scene(fleet, changes=fleet_xids(fleet, 79), state=state)).values()
        assert (finding.id, finding.verdict, finding.advice) == ("xid:fleet/fleet", Verdict.UNKNOWN, Advice.INSPECT)

    def test_the_place_that_they_share_is_named(self) -> None:
        fleet = machines(4, 1)
        labels = ["c0", "c0", "c0", "c1"]
        nodes = [
            Node(name=f"node-{number}", labels={"nvidia.com/gpu.clique": label, "topology.kubernetes.io/zone": "a"})
            for number, label in enumerate(labels)
        ]
        [finding] = findings(scene(fleet, changes=fleet_xids(fleet[:3], 119), state=cluster(nodes=nodes))).values()
        assert "all in nvidia.com/gpu.clique=c0" in finding.summary
        [anywhere] = findings(scene(fleet, changes=fleet_xids(fleet, 119), state=cluster(nodes=nodes))).values()
        assert "all in" not in anywhere.summary

    def test_the_devices_conclusion_is_shown_on_demand(self) -> None:
        fleet = machines(3, 1)
        shown = findings(scene(fleet, changes=fleet_xids(fleet, 45)), everything=True)
        assert "3 GPUs on 3 machines raised it together" in shown["xid:device/gpu-1-0"].summary

    def test_fatal_xids_of_unknown_time_are_not_excused(self) -> None:
        fleet = machines(4, 1)
        rows = {XIDS.appeared: {item.uuid: {"95": 1.0} for item in fleet}}
        found = findings(scene(fleet, variants=rows))
        assert {item.verdict for item in found.values()} == {Verdict.DEGRADED}
        rows = {XIDS.appeared: {item.uuid: {"45": 1.0} for item in fleet}}
        assert list(findings(scene(fleet, variants=rows))) == ["xid:fleet/fleet"]

    def test_several_codes_of_one_cause_are_one_finding(self) -> None:
        fleet = machines(3, 1)
        later = [xid_became(item.uuid, 43, before=45, at=ago(seconds=30)) for item in fleet]
        [finding] = findings(scene(fleet, changes=[*fleet_xids(fleet, 45), *later])).values()
        assert finding.severity is Severity.WARNING
        assert "XID 43" in finding.summary
        assert "XID 45" in finding.summary


def test_recovery_actions_are_not_read_as_xids() -> None:
    change = StateChange(device="gpu-0", signal=Signal.RECOVERY_ACTION_CODE, at=AT, before=0, after=2)
    assert nothing_after(change)
