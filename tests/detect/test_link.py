from collections.abc import Mapping

import pytest

from detect.builders import POLICY, Answer, cluster, findings, gang, machines, on, pod, scene, spread, the
from detect.questions import NVLINK, REPLAY, WIDTH
from gpuwatch.facts.model.cluster import Node
from gpuwatch.facts.model.decision import Advice, Finding, FindingKind, Verdict
from gpuwatch.facts.model.telemetry import WindowStat

MINUTES = POLICY.window_seconds / 60
SECONDS = float(POLICY.window_seconds)
FLEET = machines(2, 8)


def replays(per_minute: float, link: Mapping[WindowStat, Answer] | None = None, usual: float = 0.0) -> Finding | None:
    answers = {REPLAY.replays: spread(FLEET, usual * MINUTES, gpu_0_0=per_minute * MINUTES), **(link or {})}
    return on(findings(scene(FLEET, answers)), FindingKind.PCIE_REPLAY, "gpu-0-0")


@pytest.mark.parametrize(
    ("generation", "lanes", "expected"), [(3, 16, 7.68), (4, 16, 15.36), (5, 16, 30.72), (5, 8, 15.36), (6, 16, 61.44)]
)
def test_dcgms_expected_replays_by_generation_and_width(generation: float, lanes: float, expected: float) -> None:
    link = {REPLAY.generation: generation, REPLAY.lanes: lanes}
    assert replays(expected, link) is None
    finding = replays(expected * 1.001, link)
    assert finding is not None
    assert (finding.verdict, finding.advice) == (Verdict.DEGRADED, Advice.INSPECT)
    assert finding.evidence[0].bound == pytest.approx(expected)
    assert finding.evidence[0].note == f"bound for Gen{generation} ×{lanes}; compared with its peers"


def test_an_unknown_link_is_taken_for_a_fast_one() -> None:
    assert replays(30.7) is None
    finding = replays(30.8)
    assert finding is not None
    assert finding.evidence[0].note.startswith("bound for Gen5 ×16 (assumed)")


@pytest.mark.parametrize(
    ("link", "words"),
    [
        ({REPLAY.generation: 4.0}, "Gen4 ×16 (assumed)"),
        ({REPLAY.lanes: 8.0}, "Gen5 ×8 (assumed)"),
        ({REPLAY.generation: 9.0, REPLAY.lanes: 16.0}, "Gen5 ×16 (assumed)"),
    ],
)
def test_what_is_assumed_is_said(link: Mapping[WindowStat, Answer], words: str) -> None:
    finding = replays(500.0, link)
    assert finding is not None
    assert words in finding.evidence[0].note


def test_a_platform_on_which_all_replay_is_no_cards_fault() -> None:
    assert replays(100.0, usual=95.0) is None


def test_too_few_of_a_model_are_compared_with_all_models() -> None:
    """What a link may resend depends on the link; how much of it healthy links use is the same for every model."""
    fleet = (*machines(1, 2, model="Tesla T4"), *(item for item in machines(2, 8) if item.node == "node-1"))
    found = findings(scene(fleet, {REPLAY.replays: spread(fleet, 0.0, gpu_0_0=100.0 * MINUTES)}))
    finding = the(found, FindingKind.PCIE_REPLAY, "gpu-0-0")
    assert (finding.verdict, finding.confidence_ratio) == (Verdict.DEGRADED, 0.6)
    assert "GPUs of all models" in finding.summary


def test_replays_without_peers_are_unknown() -> None:
    few = machines(1, 5)
    found = findings(scene(few, {REPLAY.replays: spread(few, 0.0, gpu_0_0=500.0 * MINUTES)}))
    finding = the(found, FindingKind.PCIE_REPLAY, "gpu-0-0")
    assert finding.verdict is Verdict.UNKNOWN


def pools(narrow: int) -> tuple[Node, ...]:
    return tuple(Node(name=f"node-{number}", pool="narrow" if number < narrow else "wide") for number in range(4))


def test_a_narrow_slot_is_the_servers_design() -> None:
    fleet = machines(4, 8)
    lanes = {item.uuid: 8.0 if item.node in ("node-0", "node-1") else 16.0 for item in fleet}
    snapshot = scene(fleet, {WIDTH.most: 16.0, WIDTH.lanes: lanes}, state=cluster(nodes=pools(2)))
    assert findings(snapshot) == {}


def test_a_narrow_link_without_peers_is_unknown() -> None:
    few = machines(1, 2)
    found = findings(scene(few, {WIDTH.most: 16.0, WIDTH.lanes: spread(few, 16.0, gpu_0_0=4.0)}))
    finding = the(found, FindingKind.PCIE_WIDTH, "gpu-0-0")
    assert finding.verdict is Verdict.UNKNOWN


def test_a_full_link_needs_no_peers() -> None:
    alone = machines(1, 1)
    shown = findings(scene(alone, {WIDTH.most: 16.0, WIDTH.lanes: 16.0}), everything=True)
    assert shown["pcie_width:device/gpu-0-0"].verdict is Verdict.HEALTHY


def test_without_the_widest_link_the_peers_tell() -> None:
    [finding] = findings(scene(FLEET, {WIDTH.lanes: spread(FLEET, 16.0, gpu_1_1=8.0)})).values()
    assert finding.subject.name == "gpu-1-1"


def nvlink(**odd: float) -> dict[WindowStat, Answer]:
    return {
        NVLINK.replay: spread(FLEET, 0.0, **odd),
        NVLINK.recovery: 0.0,
        NVLINK.crc_flit: 0.0,
        NVLINK.crc_data: 0.0,
    }


@pytest.mark.parametrize(("per_second", "named"), [(99.9, False), (100.0, True)])
def test_dcgms_bound_on_crc_errors(per_second: float, named: bool) -> None:
    answers: dict[WindowStat, Answer] = {NVLINK.crc_data: spread(FLEET, 0.0, gpu_0_0=per_second * SECONDS)}
    assert (on(findings(scene(FLEET, answers)), FindingKind.NVLINK_ERRORS, "gpu-0-0") is not None) is named


def test_errors_that_cost_traffic_are_surer() -> None:
    state = cluster(pods=[pod("pod-0", gang="job"), pod("pod-1", gang="job")], gangs=[gang("job", ["ns/pod-0"])])
    fleet = machines(2, 8, pods=True)
    answers = nvlink(gpu_0_0=5.0 * MINUTES) | {NVLINK.traffic: spread(fleet, 3e11, gpu_0_0=1e11)}
    finding = the(findings(scene(fleet, answers, state=state)), FindingKind.NVLINK_ERRORS, "gpu-0-0")
    assert finding.confidence_ratio == 0.85
    assert finding.evidence[-1].signal == "nvlink_bytes_per_second"


def test_errors_that_cost_no_traffic_are_less_sure() -> None:
    fleet = machines(2, 8, pods=True)
    answers = nvlink(gpu_0_0=5.0 * MINUTES) | {NVLINK.traffic: 3e11}
    finding = the(findings(scene(fleet, answers)), FindingKind.NVLINK_ERRORS, "gpu-0-0")
    assert (finding.confidence_ratio, len(finding.evidence)) == (0.6, 1)


def test_a_machine_of_one_gpu_has_no_switches_to_blame() -> None:
    fleet = machines(8, 1)
    [finding] = findings(scene(fleet, {NVLINK.replay: spread(fleet, 0.0, gpu_3_0=5.0 * MINUTES)})).values()
    assert finding.advice is Advice.RESET_WHEN_IDLE


def test_errors_that_the_whole_fleet_has_are_unknown() -> None:
    found = findings(scene(FLEET, {NVLINK.replay: 5.0 * MINUTES}))
    assert {item.verdict for item in found.values()} == {Verdict.UNKNOWN}


def test_errors_on_a_whole_machine_point_at_its_switches() -> None:
    fleet = machines(4, 8)
    sick = {item.uuid: 5.0 * MINUTES if item.node == "node-2" else 0.0 for item in fleet}
    found = findings(scene(fleet, {NVLINK.replay: sick}))
    assert {item.node for item in found.values()} == {"node-2"}
    assert {(item.verdict, item.advice) for item in found.values()} == {(Verdict.DEGRADED, Advice.INSPECT)}
    assert all("8 of 8 GPUs of this machine" in item.summary for item in found.values())


def test_half_of_a_machine_is_not_its_switches() -> None:
    fleet = machines(4, 8)
    half = {f"gpu-2-{index}" for index in range(4)}
    found = findings(scene(fleet, {NVLINK.replay: {item.uuid: 75.0 * (item.uuid in half) for item in fleet}}))
    assert {item.advice for item in found.values()} == {Advice.RESET_WHEN_IDLE}
    assert len(found) == 4


def test_ports_that_nobody_uses_are_no_fault() -> None:
    shown = findings(scene(FLEET, {NVLINK.up: 0.0}), everything=True)
    assert {shown[f"nvlink_errors:device/{item.uuid}"].verdict for item in FLEET} == {Verdict.UNKNOWN}


BLACKWELL = machines(3, 4, model="NVIDIA GB200", pods=True)
GANG = cluster(pods=[pod(f"pod-{number}", gang="job") for number in range(3)], gangs=[gang("job", ["ns/pod-0"])])


@pytest.mark.parametrize(
    ("counter", "words"),
    [
        ("replay", "NVLink replay errors per minute"),
        ("recovery", "NVLink recovery errors per minute"),
        ("rx_symbol", "NVLink rx symbol errors per minute"),
        ("rx_malformed_packets", "NVLink rx malformed packets per minute"),
        ("rx_dropped_packets", "NVLink rx dropped packets per minute"),
        ("rx", "NVLink rx errors per minute"),
        ("rx_remote", "NVLink rx remote errors per minute"),
        ("rx_general", "NVLink rx general errors per minute"),
        ("integrity", "NVLink integrity errors per minute"),
        ("effective", "NVLink effective errors per minute"),
        ("link_recoveries", "NVLink link recoveries per minute"),
        ("ecc", "NVLink ecc errors per minute"),
        ("c2c", "C2C errors per minute"),
        ("c2c_replays", "C2C replays per minute"),
        ("c2c_repeated_replays", "C2C repeated replays per minute"),
    ],
)
@pytest.mark.parametrize(("per_minute", "named"), [(0.99, False), (1.0, True)])
def test_dcgms_bound_on_every_counter(counter: str, words: str, per_minute: float, named: bool) -> None:
    answers: dict[WindowStat, Answer] = {getattr(NVLINK, counter): spread(BLACKWELL, 0.0, gpu_1_2=per_minute * MINUTES)}
    found = findings(scene(BLACKWELL, answers))
    assert [item.summary for item in found.values()] == ([f"1 {words}"] if named else [])
    assert {item.id for item in found.values()} <= {"nvlink_errors:device/gpu-1-2"}


@pytest.mark.parametrize(
    ("counter", "confidence"), [("rx_symbol", 0.85), ("c2c", 0.6), ("ecc", 0.6), ("link_downs", 0.6)]
)
def test_a_machine_of_four_is_compared_with_its_jobs_other_machines(counter: str, confidence: float) -> None:
    """What no page of an exporter was seen with is less sure, though it moves less than its peers too."""
    answers: dict[WindowStat, Answer] = {
        getattr(NVLINK, counter): spread(BLACKWELL, 0.0, gpu_1_2=5.0 * MINUTES),
        NVLINK.traffic: spread(BLACKWELL, 3e11, gpu_1_2=1e11),
    }
    finding = the(findings(scene(BLACKWELL, answers, state=GANG)), FindingKind.NVLINK_ERRORS, "gpu-1-2")
    assert "moves less than its peers" in finding.summary
    assert finding.confidence_ratio == confidence


def test_traffic_of_other_jobs_is_no_comparison() -> None:
    answers: dict[WindowStat, Answer] = {
        NVLINK.rx_symbol: spread(BLACKWELL, 0.0, gpu_1_2=5.0 * MINUTES),
        NVLINK.traffic: spread(BLACKWELL, 3e11, gpu_1_2=1e11),
    }
    finding = the(findings(scene(BLACKWELL, answers)), FindingKind.NVLINK_ERRORS, "gpu-1-2")
    assert finding.confidence_ratio == 0.6
