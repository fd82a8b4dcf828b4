from collections.abc import Sequence
from dataclasses import replace

import pytest

from detect.builders import POLICY, Answer, cluster, device, findings, gang, machines, on, pod, scene, spread, the
from detect.questions import ACTION, DAY, HUNG
from gpuwatch.facts.model.decision import Advice, Finding, FindingKind, Verdict
from gpuwatch.facts.model.telemetry import Device, WindowStat

# An H100 (limit 700 W) that idles at 70 W: 10 % of its range above that is 133 W, a loaded context alone 120 W.
BOUND_WATTS = 70 + 0.1 * 630


def stuck(
    devices: Sequence[Device], names: Sequence[str], watts: float = 85.0, **other: Answer
) -> dict[WindowStat, Answer]:
    """All GPUs work, but the named ones are busy with little power and no traffic."""

    def odd(usual: float, value: float) -> dict[str, float]:
        return spread(devices, usual) | dict.fromkeys(names, value)

    full = POLICY.window_seconds / 30
    answers: dict[WindowStat, Answer] = {
        HUNG.busy_lowest: odd(0.97, 1.0),
        HUNG.busy_highest: 1.0,
        HUNG.busy_count: full,
        HUNG.power_highest: odd(640.0, watts),
        HUNG.power_average: odd(600.0, watts),
        HUNG.power_past: 70.0,
        HUNG.limit: 700.0,
        HUNG.dram: odd(0.4, 0.0),
        HUNG.tensor: odd(0.3, 0.0),
    }
    return answers | {getattr(HUNG, name): answer for name, answer in other.items()}


ONE = [device()]


def alone(watts: float = 85.0, **other: Answer) -> Finding | None:
    return on(findings(scene(ONE, stuck(ONE, ["gpu-0"], watts, **other))), FindingKind.HUNG)


def test_busy_without_power_or_traffic() -> None:
    finding = alone()
    assert finding is not None
    assert (finding.verdict, finding.advice) == (Verdict.DEGRADED, Advice.RESET)
    # Its program may have hung as well, and nothing beside it tells them apart.
    assert finding.confidence_ratio == 0.6
    assert [fact.signal for fact in finding.evidence] == [
        "busy_ratio",
        "power_watts",
        "dram_active_ratio",
        "tensor_active_ratio",
    ]
    assert finding.evidence[1].bound == pytest.approx(BOUND_WATTS)


@pytest.mark.parametrize(("busy", "named"), [(0.95, True), (0.949, False)])
def test_it_never_pauses(busy: float, named: bool) -> None:
    assert (alone(busy_lowest=busy) is not None) is named


@pytest.mark.parametrize(("watts", "named"), [(BOUND_WATTS, True), (BOUND_WATTS + 0.1, False)])
def test_power_within_a_few_percent_of_idle(watts: float, named: bool) -> None:
    assert (alone(watts) is not None) is named


@pytest.mark.parametrize("signal", ["dram", "tensor", "copy"])
@pytest.mark.parametrize(("share", "named"), [(0.001, True), (0.0011, False)])
def test_any_work_refutes_it(signal: str, share: float, named: bool) -> None:
    assert (alone(**{signal: share}) is not None) is named


@pytest.mark.parametrize(
    ("other", "hours"),
    [
        ({}, 24),
        ({"busy_day": 0.94}, 0.25),
        ({"power_day": BOUND_WATTS + 0.1}, 0.25),
        ({"power_day_count": 0.69 * DAY / 30}, 0.25),
    ],
)
def test_a_day_of_it_counts_as_a_day_where_the_whole_of_it_was_seen(other: dict[str, Answer], hours: float) -> None:
    day: dict[str, Answer] = {"busy_day": 1.0, "power_day": 85.0, "power_day_count": DAY / 30}
    finding = alone(**(day | other))
    assert finding is not None
    assert finding.gpu_hours == hours
    assert ("a day or longer" in finding.summary) is (hours == 24)


@pytest.mark.parametrize("signal", ["busy_count", "power_count"])
@pytest.mark.parametrize(("share", "named"), [(0.7, True), (0.69, False)])
def test_too_few_samples_are_unknown(signal: str, share: float, named: bool) -> None:
    assert (alone(**{signal: share * POLICY.window_seconds / 30}) is not None) is named


def test_with_fewer_witnesses_it_is_less_sure_and_says_which_lack() -> None:
    answers = {stat: answer for stat, answer in stuck(ONE, ["gpu-0"]).items() if stat not in (HUNG.dram, HUNG.tensor)}
    finding = the(findings(scene(ONE, answers)), FindingKind.HUNG)
    assert finding.confidence_ratio == 0.4
    assert finding.missing == ("dram_active_ratio", "tensor_active_ratio")


@pytest.mark.parametrize("lacking", ["busy_lowest", "power_highest"])
def test_activity_and_power_are_both_needed(lacking: str) -> None:
    stat = getattr(HUNG, lacking)
    answers = {key: answer for key, answer in stuck(ONE, ["gpu-0"]).items() if key != stat}
    shown = findings(scene(ONE, answers), everything=True)["hung:device/gpu-0"]
    assert (shown.verdict, shown.missing) == (Verdict.UNKNOWN, (stat.signal.value,))


def test_a_limit_of_zero_is_none_and_the_models_serves() -> None:
    finding = alone(limit=0.0)
    assert finding is not None
    assert finding.evidence[1].bound == pytest.approx(BOUND_WATTS)


def test_a_low_but_steady_load_is_not_taken_for_idle_power() -> None:
    """Its own lowest in hours was 281 W of 700: no idle level, and none is invented."""
    unknown = [replace(ONE[0], model="Some new GPU")]
    answers = stuck(unknown, ["gpu-0"], 360.0, power_past=281.0)
    shown = findings(scene(unknown, answers), everything=True)["hung:device/gpu-0"]
    assert (shown.verdict, shown.missing) == (Verdict.UNKNOWN, ("its power at idle",))
    shown = findings(scene(unknown, answers | {HUNG.power_past: 280.0, HUNG.power_highest: 300.0}), everything=True)[
        "hung:device/gpu-0"
    ]
    assert shown.verdict is Verdict.DEGRADED


def test_idle_power_is_read_from_idle_peers_with_a_pod() -> None:
    """A T4 with a loaded context idles at 27 W, without one at 9 W: 27 is the level of a card that is held."""
    fleet = [device(f"gpu-{number}", model="Tesla T4", pods=[f"ns/p{number}"]) for number in range(7)]
    answers = stuck(fleet, ["gpu-0"], 28.0, power_past=9.0, limit=70.0)
    idle = {item.uuid: 0.0 for item in fleet[1:]}
    answers |= {
        HUNG.busy_lowest: {"gpu-0": 1.0, **idle},
        HUNG.busy_highest: {"gpu-0": 1.0, **idle},
        HUNG.power_average: {"gpu-0": 28.0, **dict.fromkeys(idle, 27.0)},
    }
    finding = the(findings(scene(fleet, answers)), FindingKind.HUNG)
    assert finding.evidence[1].note == "idle is 27 W (median of 6 allocated idle peers), the limit 70 W"


@pytest.mark.parametrize(("peers", "source"), [(5, "median of 5 allocated idle peers"), (4, "its lowest in 6 h")])
def test_idle_peers_have_to_be_enough(peers: int, source: str) -> None:
    fleet = [device(f"gpu-{number}", pods=[f"ns/p{number}"]) for number in range(peers + 1)]
    idle = {item.uuid: 0.0 for item in fleet[1:]}
    answers = stuck(fleet, ["gpu-0"]) | {
        HUNG.busy_lowest: {"gpu-0": 1.0, **idle},
        HUNG.busy_highest: {"gpu-0": 1.0, **idle},
        HUNG.power_average: {"gpu-0": 85.0, **dict.fromkeys(idle, 75.0)},
    }
    finding = the(findings(scene(fleet, answers)), FindingKind.HUNG)
    assert source in finding.evidence[1].note


def test_a_mig_instance_cannot_be_told_by_the_power_of_its_gpu() -> None:
    sliced = [device("gpu-0", mig="7"), device("gpu-0", mig="8")]
    shown = findings(scene(sliced, stuck(sliced, ["gpu-0"])), everything=True)["hung:device/gpu-0"]
    assert shown.verdict is Verdict.UNKNOWN


FLEET = machines(2, 8, pods=True)
TRAIN = "JobSet/ns/train"
GANG = cluster(pods=[pod("pod-0", gang=TRAIN), pod("pod-1", gang=TRAIN)], gangs=[gang(TRAIN, ["ns/pod-0", "ns/pod-1"])])
JOB = f"hung:gang/{TRAIN}"


def job(names: Sequence[str], **other: Answer) -> dict[str, Finding]:
    """Findings where these GPUs of one job on two Nodes show the pattern."""
    return findings(scene(FLEET, stuck(FLEET, names, 85.0, **other), state=GANG))


def test_a_job_of_one_gpu_has_nothing_to_compare_with() -> None:
    held = [device(pods=["ns/solo"])]
    finding = the(findings(scene(held, stuck(held, ["gpu-0"]))), FindingKind.HUNG)
    assert (finding.confidence_ratio, finding.pods) == (0.6, ("ns/solo",))


def test_two_that_wait_are_enough_to_be_a_job() -> None:
    pair = machines(1, 2, pods=True)
    assert list(findings(scene(pair, stuck(pair, [item.uuid for item in pair])))) == ["hung:pod/ns/pod-0"]


def test_one_gpu_of_a_job_that_goes_on() -> None:
    [finding] = job(["gpu-0-3"]).values()
    assert (finding.id, finding.verdict, finding.confidence_ratio) == ("hung:device/gpu-0-3", Verdict.DEGRADED, 0.7)


def test_several_gpus_of_one_job_are_the_job() -> None:
    """NCCL: who waits spins, busy and without power. Nobody's hardware is to blame for that."""
    [finding] = job([item.uuid for item in FLEET]).values()
    assert finding.id == JOB
    assert (finding.verdict, finding.advice) == (Verdict.UNKNOWN, Advice.FIX_APPLICATION)
    assert len(finding.devices) == 16


def test_the_one_that_does_not_wait_is_named() -> None:
    [finding] = job([item.uuid for item in FLEET if item.uuid != "gpu-1-4"]).values()
    assert finding.summary.endswith("look first at gpu-1-4, which does not wait")


def test_the_one_with_a_finding_of_its_own_is_named() -> None:
    devices = [item.uuid for item in FLEET]
    answers = stuck(FLEET, devices) | {ACTION: spread(FLEET, 0.0, gpu_1_2=1.0)}
    found = findings(scene(FLEET, answers, state=GANG))
    assert found["recovery_action:device/gpu-1-2"].verdict is Verdict.DEGRADED
    assert "look first at gpu-1-2 (recovery action)" in found[JOB].summary


def test_the_one_that_draws_less_than_all_who_wait_is_suspected() -> None:
    names = [item.uuid for item in FLEET]
    watts = spread(FLEET, 100.0, gpu_0_6=71.0)
    found = job(names, power_highest=watts, power_average=watts)
    assert sorted(found) == ["hung:device/gpu-0-6", JOB]
    suspect = found["hung:device/gpu-0-6"]
    assert (suspect.verdict, suspect.confidence_ratio) == (Verdict.DEGRADED, 0.5)
    # 24 % under the median is what healthy cards differ by: 77 W is no sign.
    near = spread(FLEET, 100.0, gpu_0_6=77.0)
    assert list(job(names, power_highest=near, power_average=near)) == [JOB]


@pytest.mark.parametrize(("gpus", "suspected"), [(6, True), (5, False)])
def test_few_that_wait_are_not_compared(gpus: int, suspected: bool) -> None:
    fleet = machines(1, gpus, pods=True)
    watts = spread(fleet, 100.0, gpu_0_0=71.0)
    names = [item.uuid for item in fleet]
    found = findings(scene(fleet, stuck(fleet, names, power_highest=watts, power_average=watts)))
    assert ("hung:device/gpu-0-0" in found) is suspected


def test_two_jobs_that_hang_are_two_findings() -> None:
    found = findings(
        scene(FLEET, stuck(FLEET, [item.uuid for item in FLEET]), state=cluster(pods=[pod("pod-0"), pod("pod-1")]))
    )
    assert sorted(found) == ["hung:workload/Job/ns/pod-0", "hung:workload/Job/ns/pod-1"]


def test_without_a_cluster_the_pod_is_the_job() -> None:
    found = findings(scene(FLEET, stuck(FLEET, [item.uuid for item in FLEET if item.node == "node-0"])))
    assert list(found) == ["hung:pod/ns/pod-0"]
