import pytest

from detect.builders import POLICY, device, findings, machines, scene, spread, the
from detect.questions import BOARD
from gpuwatch.facts.model.decision import Advice, Component, Finding, FindingKind, Severity, Snapshot, Verdict

FULL = POLICY.window_seconds / 30


def boards(snapshot: Snapshot) -> list[Finding]:
    return [finding for finding in findings(snapshot).values() if finding.kind is FindingKind.BOARD]


def test_a_board_whose_power_alone_cannot_be_read_is_shown() -> None:
    fleet = machines(2, 8)
    [finding] = boards(scene(fleet, {BOARD.power: spread(fleet, FULL, gpu_0_3=0.0)}))
    assert finding.subject.name == "gpu-0-3"
    assert (finding.verdict, finding.severity, finding.advice) == (Verdict.DEGRADED, Severity.WARNING, Advice.INSPECT)
    assert (finding.confidence_ratio, finding.components) == (0.6, (Component.POWER,))
    assert "7 other GPUs" in finding.summary


@pytest.mark.parametrize("unread", [2, 8])
def test_power_that_several_of_its_machine_do_not_report_is_no_boards_fault(unread: int) -> None:
    """An exporter without the counter, a hypervisor that hides it."""
    fleet = machines(2, 8)
    power = spread(fleet, FULL, **{f"gpu_0_{index}": 0.0 for index in range(unread)})
    assert boards(scene(fleet, {BOARD.power: power})) == []


def test_a_gpu_that_is_silent_altogether_is_not_named_for_its_power() -> None:
    fleet = machines(2, 8)
    quiet = spread(fleet, FULL, gpu_0_3=0.0)
    assert boards(scene(fleet, {BOARD.power: quiet, BOARD.gpu_count: quiet})) == []


def test_a_power_that_came_and_went_is_no_fault() -> None:
    fleet = machines(2, 8)
    assert boards(scene(fleet, {BOARD.power: spread(fleet, FULL, gpu_0_3=1.0)})) == []


def test_a_corrupt_inforom_asks_for_an_inspection() -> None:
    finding = the(findings(scene(answers={BOARD.inforom: 0.0})), FindingKind.BOARD)
    assert (finding.severity, finding.advice, finding.confidence_ratio) == (Severity.WARNING, Advice.INSPECT, 0.6)
    assert finding.components == (Component.INFOROM,)
    well = findings(scene(answers={BOARD.inforom: 1.0}), everything=True)["board:device/gpu-0"]
    assert well.verdict is Verdict.HEALTHY


def test_without_the_inforom_nothing_is_proven() -> None:
    shown = findings(scene([device()]), everything=True)["board:device/gpu-0"]
    assert (shown.verdict, shown.missing) == (Verdict.UNKNOWN, ("inforom_valid_state",))
