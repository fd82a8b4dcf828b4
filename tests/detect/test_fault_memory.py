"""A fault lasts until its repair was seen, and no longer."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from detect.builders import AT, POLICY, ago, cluster, device, findings, machines, pod, scene, the, xid_became
from detect.questions import ACTION, XIDS
from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.model.cluster import Node
from gpuwatch.facts.model.decision import Advice, Finding, FindingKind, Severity, Snapshot, Verdict
from gpuwatch.facts.model.faults import FaultMemory, Holding, KnownFault, RepairKind
from gpuwatch.facts.model.telemetry import Gap, GapKind, Signal, StateChange, Statistic, WindowStat
from gpuwatch.judge.health.assess import assess_health, remember_faults
from gpuwatch.judge.health.fault_memory import programs_differ

ENERGY = WindowStat(Signal.ENERGY_JOULES_TOTAL, Statistic.LAST)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


def moved(snapshot: Snapshot, by: timedelta) -> Snapshot:
    """The same facts at another time."""
    devices = tuple(
        replace(item, last_seen=item.last_seen + by if item.last_seen else None) for item in snapshot.devices
    )
    changes = tuple(replace(change, at=change.at + by) for change in snapshot.changes)
    return replace(snapshot, at=snapshot.at + by, devices=devices, changes=changes)


NOTHING = FaultMemory()


def after(*snapshots: Snapshot, memory: FaultMemory = NOTHING) -> FaultMemory:
    for snapshot in snapshots:
        memory = remember_faults(snapshot, POLICY, memory)
        assert remember_faults(snapshot, POLICY, memory) == memory, "the same Snapshot twice is no news"
    return memory


def judged(snapshot: Snapshot, memory: FaultMemory | None, name: str = "gpu-0") -> Finding:
    found = assess_health(snapshot, POLICY, everything=True, memory=memory)
    [finding] = [item for item in found if item.id == f"xid:device/{name}"]
    return finding


def booted(boot: str, name: str = "node-0") -> Node:
    return Node(name=name, boot_id=boot)


def raised(code: int, *, boot: str = "one", at: datetime | None = None, **more: object) -> Snapshot:
    """The XID came ten minutes ago."""
    given: dict[str, object] = {"state": cluster(nodes=[booted(boot)]), "answers": {XIDS.last: float(code)}, **more}
    return scene(changes=[xid_became("gpu-0", code, at=at)], **given)  # type: ignore[arg-type]


def quiet(*, boot: str = "one", by: timedelta = timedelta(), **more: object) -> Snapshot:
    """The GPU reports, and nothing tells of an XID."""
    given: dict[str, object] = {"state": cluster(nodes=[booted(boot)]), "answers": {XIDS.last: 0.0}, **more}
    return moved(scene(**given), by)  # type: ignore[arg-type]


def began_anew(at: datetime, name: str = "gpu-0") -> StateChange:
    return StateChange(device=name, signal=Signal.ENERGY_JOULES_TOTAL, at=at, before=9e8, after=120.0)


@pytest.mark.parametrize("code", [48, 64, 79, 95, 119, 140])
@pytest.mark.parametrize("later", [2 * HOUR, timedelta(days=30)])
def test_an_old_fatal_xid_without_a_repair_is_no_health(code: int, later: timedelta) -> None:
    """Its exporter forgot it, Prometheus too, and the gauge began anew with the exporter."""
    memory = after(raised(code), quiet(by=later - HOUR), quiet(by=later))
    finding = judged(quiet(by=later), memory)
    assert (finding.verdict, finding.severity, finding.confidence_ratio) == (Verdict.DEGRADED, Severity.CRITICAL, 0.9)
    assert finding.advice is (Advice.REBOOT if code == 79 else Advice.RESET)
    assert finding.since == ago(minutes=10)


def test_one_run_alone_knows_what_the_gauge_still_shows_but_not_since_when() -> None:
    finding = judged(scene(answers={XIDS.last: 95.0}), None)
    assert (finding.verdict, finding.severity, finding.confidence_ratio) == (Verdict.DEGRADED, Severity.WARNING, 0.6)
    assert finding.since is None
    assert "when it was" in finding.missing[0]


def test_one_run_alone_says_that_it_remembers_nothing() -> None:
    assert "a single run remembers none" in judged(quiet(), None).summary
    assert "a single run" not in judged(quiet(), FaultMemory()).summary


@pytest.mark.parametrize("code", [48, 79, 119])
def test_a_reboot_that_was_seen_ends_it_at_once(code: int) -> None:
    """The event is still within the window, and the gauge of the last hour shows it."""
    memory = after(raised(code), moved(raised(code, boot="two", at=ago(minutes=15)), 5 * MINUTE))
    [fault] = memory.faults
    assert [repair.kind for repair in fault.repairs] == [RepairKind.REBOOT]
    finding = judged(moved(raised(code, boot="two", at=ago(minutes=15)), 5 * MINUTE), memory)
    assert finding.verdict is Verdict.HEALTHY
    assert "a reboot was seen" in finding.summary


@pytest.mark.parametrize(("minutes", "over"), [(5, True), (11, False)])
def test_counters_that_began_anew_after_it_end_it(minutes: float, over: bool) -> None:
    """Also for a single run: the fall of the counter has a time. A reload before the XID ends nothing."""
    changes = [xid_became("gpu-0", 79), began_anew(ago(minutes=minutes))]
    finding = judged(scene(changes=changes, answers={XIDS.last: 0.0}), None)
    assert finding.verdict is (Verdict.HEALTHY if over else Verdict.DEGRADED)


def test_a_restarted_exporter_ends_nothing() -> None:
    """Its gauge is back at 0 and all GPUs of the Node were silent, but the energy counter goes on."""
    back = StateChange(device="gpu-0", signal=Signal.XID_CODE, at=ago(minutes=3), before=79, after=0)
    changes = [xid_became("gpu-0", 79), back]
    finding = judged(scene(changes=changes, answers={XIDS.last: 0.0, ENERGY: 9e8}), None)
    assert finding.verdict is Verdict.DEGRADED


def test_a_reload_while_gpuwatch_was_away_shows_in_the_counter() -> None:
    memory = after(raised(79, answers={ENERGY: 9e8}))
    assert judged(quiet(by=5 * HOUR, answers={XIDS.last: 0.0, ENERGY: 9.1e8}), memory).verdict is Verdict.DEGRADED
    assert judged(quiet(by=5 * HOUR, answers={XIDS.last: 0.0, ENERGY: 4e5}), memory).verdict is Verdict.HEALTHY


@pytest.mark.parametrize(
    ("code", "verdict"),
    [(code, Verdict.HEALTHY) for code in (48, 62, 74, 95, 120, 158, 172)]
    + [(code, Verdict.DEGRADED) for code in (46, 64, 79, 119, 140)],
)
def test_the_driver_that_asks_for_nothing_ends_what_a_reset_cures(code: int, verdict: Verdict) -> None:
    """It says nothing of 46 and 119, after which NVIDIA's catalog has it ask for nothing."""
    finding = judged(raised(code, answers={XIDS.last: float(code), ACTION: 0.0}), None)
    assert finding.verdict is verdict


@pytest.mark.parametrize(("seconds", "verdict"), [(59, Verdict.DEGRADED), (60, Verdict.HEALTHY)])
def test_it_must_have_been_read_after_the_xid(seconds: int, verdict: Verdict) -> None:
    snapshot = raised(48, at=ago(seconds=seconds), answers={ACTION: 0.0})
    assert judged(snapshot, None).verdict is verdict


@pytest.mark.parametrize(("driver", "verdict"), [("560.35.03", Verdict.DEGRADED), ("570.86.15", Verdict.HEALTHY)])
def test_a_driver_that_does_not_speak_of_the_xid_yet_ends_nothing(driver: str, verdict: Verdict) -> None:
    old = replace(device(), driver_version=driver)
    assert judged(raised(48, answers={ACTION: 0.0}, devices=[old]), None).verdict is verdict


def test_an_action_that_was_asked_for_and_is_no_more_was_a_reset() -> None:
    memory = after(raised(48, answers={ACTION: 1.0}), quiet(by=10 * MINUTE, answers={ACTION: 0.0}))
    assert [repair.kind for repair in memory.faults[0].repairs] == [RepairKind.RESET]
    never_asked = after(raised(48, answers={ACTION: 0.0}))
    assert [repair.kind for repair in never_asked.faults[0].repairs] == [RepairKind.CALLED_OFF]


@pytest.mark.parametrize("code", [64, 79, 119])
def test_a_boot_after_it_that_node_exporter_shows_ends_it(code: int) -> None:
    """Where nothing is remembered too, and where the Node's boot ID is as it was read a minute ago."""
    snapshot = replace(raised(code), boots={"node-0": ago(minutes=4)})
    assert judged(snapshot, None).verdict is Verdict.HEALTHY
    [fault] = after(snapshot).faults
    assert [(each.kind, each.at) for each in fault.repairs] == [(RepairKind.REBOOT, ago(minutes=4))]
    later = replace(raised(code, at=ago(minutes=2)), boots=snapshot.boots)
    assert judged(later, after(snapshot)).verdict is Verdict.DEGRADED
    assert after(snapshot, later).faults[0].failed_repairs == 1


@pytest.mark.parametrize("boots", [{"node-0": ago(minutes=20)}, {"node-1": ago(minutes=4)}, {}])
def test_a_boot_before_it_or_of_another_node_ends_nothing(boots: dict[str, datetime]) -> None:
    snapshot = replace(raised(79), boots=boots)
    assert judged(snapshot, None).verdict is Verdict.DEGRADED
    assert after(snapshot).faults[0].open


def test_a_boot_that_two_sources_show_is_one_repair() -> None:
    memory = after(raised(79), quiet(boot="two", by=HOUR))
    again = replace(moved(raised(79, boot="two"), 2 * HOUR), boots={"node-0": AT + 50 * MINUTE})
    assert after(again, memory=memory).faults[0].failed_repairs == 1


def test_a_gpu_that_stays_missing_after_a_boot_was_not_brought_back() -> None:
    lost = [device(present=False, last_seen=ago(hours=1)), *(device(f"gpu-{number}") for number in range(1, 8))]
    missing = scene(lost, state=cluster(nodes=[booted("one")]))
    memory = after(missing)
    later = replace(missing, at=AT + 30 * MINUTE, boots={"node-0": AT + 20 * MINUTE})
    memory = after(later, replace(later, at=AT + 31 * MINUTE), memory=memory)
    assert (memory.faults[0].open, memory.faults[0].failed_repairs) == (True, 1)


def test_a_gpu_that_fails_again_on_its_third_node_is_to_be_exchanged() -> None:
    """What is remembered follows the card, whatever Node, job and slot it is in."""
    memory, nodes = NOTHING, [booted(f"boot-{number}", f"node-{number}") for number in range(3)]
    for number in range(3):
        card = device(node=f"node-{number}", pci=f"0000000{number}:18:00.0", pods=[f"ns/job-{number}"])
        state = cluster(nodes=nodes)
        memory = after(quiet(by=(number * 3 - 1) * HOUR, devices=[card], state=state), memory=memory)
        last = moved(raised(79, devices=[card], state=state), number * 3 * HOUR)
        assert judged(last, memory).advice is (Advice.REPLACE if number == 2 else Advice.REBOOT)
        memory = after(last, memory=memory)
    [fault] = memory.faults
    assert (fault.node, fault.failed_repairs, len(fault.bursts)) == ("node-2", 2, 3)


def test_another_gpu_in_its_slot_ends_it() -> None:
    old = replace(device(pci="00000000:18:00.0"), id="gpu-0")
    new = device("gpu-9", pci="00000000:18:00.0")
    memory = after(raised(79, devices=[old]), quiet(by=HOUR, devices=[new]))
    assert [repair.kind for repair in memory.faults[0].repairs] == [RepairKind.EXCHANGE]


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        (ago(minutes=5).isoformat(), Verdict.HEALTHY),
        (ago(minutes=15).isoformat(), Verdict.DEGRADED),  # before it came
        (ago(minutes=-90).isoformat(), Verdict.DEGRADED),  # yet to come
        (ago(minutes=5).replace(tzinfo=None).isoformat(), Verdict.DEGRADED),
        ("yesterday", Verdict.DEGRADED),
    ],
)
def test_a_person_may_say_that_it_was_repaired(said: str, verdict: Verdict) -> None:
    node = Node(name="node-0", boot_id="one", annotations={keys.REPAIRED_AT: said})
    later = quiet(by=HOUR, state=cluster(nodes=[node]))
    memory = after(raised(79), later)
    assert judged(later, memory).verdict is verdict
    assert [each.kind for each in memory.faults[0].repairs] == [RepairKind.DECLARED] * (verdict is Verdict.HEALTHY)


def twice_repaired(code: int) -> FaultMemory:
    """It came, and came again after each of two reboots."""
    memory = FaultMemory()
    for number in range(2):
        by = number * 3 * HOUR
        memory = after(
            moved(raised(code, boot=f"boot-{number}"), by),
            quiet(boot=f"boot-{number + 1}", by=by + HOUR),
            memory=memory,
        )
    assert not memory.faults[0].open
    return memory


@pytest.mark.parametrize("code", [74, 79, 119, 140])
def test_the_third_time_after_two_repairs_asks_for_more_than_another(code: int) -> None:
    memory = twice_repaired(code)
    last = moved(raised(code, boot="boot-2"), 9 * HOUR)
    finding = judged(last, memory)
    assert (finding.verdict, finding.advice) == (Verdict.DEGRADED, Advice.REPLACE)
    assert "it came back after 2 repairs" in finding.summary
    # The driver asks for a reset once more: the third time stays the third time.
    asked = moved(raised(code, boot="boot-2", answers={ACTION: 1.0}), 9 * HOUR)
    assert judged(asked, memory).advice is Advice.REPLACE
    [fault] = after(last, memory=memory).faults
    assert (fault.failed_repairs, fault.since) == (2, ago(minutes=10) + 9 * HOUR)


def test_what_the_driver_called_off_is_no_repair() -> None:
    memory = FaultMemory()
    for number in range(3):
        memory = after(moved(raised(48, answers={ACTION: 0.0}), number * 3 * HOUR), memory=memory)
    assert memory.faults[0].failed_repairs == 0


def test_a_gpu_that_a_reboot_brought_back_and_that_is_missing_again() -> None:
    siblings = [device(f"gpu-{number}") for number in range(1, 8)]
    memory = FaultMemory()
    for number in range(3):
        lost = [device(present=False, last_seen=ago(minutes=10)), *siblings]
        gone = moved(scene(lost, state=cluster(nodes=[booted(f"boot-{number}")])), number * 2 * HOUR)
        finding = the({item.id: item for item in assess_health(gone, POLICY, memory=memory)}, FindingKind.GPU_MISSING)
        assert finding.advice is (Advice.REPLACE if number == 2 else Advice.REBOOT)
        memory = after(gone, quiet(boot=f"boot-{number + 1}", by=(2 * number + 1) * HOUR), memory=memory)
        assert not memory.faults[0].open


def test_a_reboot_counts_as_one_though_the_driver_asks_for_nothing_after_it() -> None:
    memory = after(raised(48), quiet(boot="two", by=HOUR, answers={XIDS.last: 0.0, ACTION: 0.0}))
    assert [repair.kind for repair in memory.faults[0].repairs] == [RepairKind.REBOOT]


def test_a_memory_that_cannot_be_read_finds_no_gpu_healthy() -> None:
    finding = judged(quiet(), FaultMemory(unread="the disk failed"))
    assert (finding.verdict, finding.missing) == (Verdict.UNKNOWN, ("the disk failed",))


def test_faults_of_gpus_that_are_long_gone_are_forgotten() -> None:
    memory = after(raised(79))
    gone = replace(quiet(), devices=(device("gpu-1"),))
    assert after(moved(gone, timedelta(days=89)), memory=memory).faults
    assert not after(moved(gone, timedelta(days=91)), memory=memory).faults


def test_an_xid_of_another_architecture_is_not_remembered() -> None:
    assert after(raised(136, devices=[device(model="NVIDIA B200")])).faults == ()
    assert after(raised(136)).faults


@pytest.mark.parametrize(("code", "verdict"), [(48, Verdict.HEALTHY), (95, Verdict.HEALTHY), (140, Verdict.DEGRADED)])
def test_the_volatile_count_of_errors_is_back_at_zero(code: int, verdict: Verdict) -> None:
    counted = WindowStat(Signal.ECC_DBE_VOLATILE_TOTAL, Statistic.LAST)
    memory = after(raised(code, answers={counted: 1.0}))
    assert memory.faults[0].open
    assert judged(quiet(by=HOUR, answers={XIDS.last: 0.0, counted: 1.0}), memory).verdict is Verdict.DEGRADED
    assert judged(quiet(by=HOUR, answers={XIDS.last: 0.0, counted: 0.0}), memory).verdict is verdict


def test_a_count_that_rose_for_the_fault_before_shows_no_reset_of_this_one() -> None:
    counted = WindowStat(Signal.ECC_DBE_VOLATILE_TOTAL, Statistic.LAST)
    rose = WindowStat(Signal.ECC_DBE_VOLATILE_TOTAL, Statistic.INCREASE, POLICY.change_window_seconds)
    first = after(raised(48, answers={counted: 1.0}), quiet(by=5 * MINUTE, answers={XIDS.last: 0.0, counted: 0.0}))
    assert not first.faults[0].open
    again = moved(raised(48, answers={counted: 0.0, rose: 1.0}), 30 * MINUTE)
    assert after(again, memory=first).faults[0].open


def test_a_second_exporter_that_is_behind_is_no_reload() -> None:
    memory = after(raised(79, answers={ENERGY: 9e8}))
    behind = quiet(by=5 * HOUR, answers={XIDS.last: 0.0, ENERGY: 8.99e8})
    assert judged(behind, memory).verdict is Verdict.DEGRADED


def test_the_memory_is_bounded_and_drops_what_is_over_first() -> None:
    seen = KnownFault(
        uuid="",
        kind=FindingKind.XID,
        code=79,
        node="",
        slot="",
        boot_id="",
        since=AT,
        last_at=AT,
        seen_at=AT,
        bursts=(AT,),
    )
    over = after(raised(48, answers={ACTION: 0.0})).faults
    many = tuple(replace(seen, uuid=f"other-{number}") for number in range(4096))
    kept = after(quiet(), memory=FaultMemory(faults=(*over, *many))).faults
    assert len(kept) == 4096
    assert all(fault.open for fault in kept)


def test_programs_do_not_crowd_out_what_lasts() -> None:
    """A job with more GPUs than are remembered raises an XID on all of them."""
    fleet = [device("gpu-x"), *machines(600, 8, pods=True)]
    storm = scene(fleet, changes=[xid_became(item.uuid, 31) for item in fleet[1:]])
    memory = after(raised(79, devices=[device("gpu-0")]), memory=NOTHING)
    memory = remember_faults(moved(storm, HOUR), POLICY, memory)
    assert len(memory.faults) == 4096
    assert (memory.faults[0].code, memory.faults[0].uuid) == (79, "gpu-0")
    # The next day only the fault is left.
    memory = remember_faults(moved(scene([device("gpu-x")]), 26 * HOUR), POLICY, memory)
    assert [fault.code for fault in memory.faults] == [79]


def test_an_open_fault_of_many_nodes_keeps_its_common_cause() -> None:
    """18 Nodes of one rack do not become 18 broken GPUs an hour later."""
    fleet = machines(20, 1)
    hit = fleet[:18]
    nodes = [Node(name=f"node-{number}", labels={"nvidia.com/gpu.clique": f"c{number // 18}"}) for number in range(20)]
    snapshot = scene(fleet, changes=[xid_became(item.uuid, 79) for item in hit], state=cluster(nodes=nodes))
    memory = after(snapshot)
    later = moved(replace(snapshot, changes=()), 3 * HOUR)
    [finding] = [item for item in assess_health(later, POLICY, memory=memory) if item.kind is FindingKind.XID]
    assert (finding.id, finding.advice, finding.severity) == ("xid:fleet/fleet", Advice.INSPECT, Severity.CRITICAL)
    assert "all in nvidia.com/gpu.clique=c0" in finding.summary


def under(name: str, image: str, *, workload: str = "", by: timedelta) -> Snapshot:
    """An XID 31 under this Pod, ten minutes before `by`."""
    one = replace(pod(name, workload=workload, started=ago(hours=1)), images=(image,))
    given = scene([device(pods=[f"ns/{name}"])], changes=[xid_became("gpu-0", 31)], state=cluster(pods=[one]))
    moved_pod = replace(one, started=ago(hours=1) + by)
    return replace(moved(given, by), cluster=cluster(pods=[moved_pod]))


@pytest.mark.parametrize(
    ("second", "image", "hours", "hardware"),
    [
        ("llm-train", "llm:2", 5, True),
        ("llm-train", "llm:2", 25, False),  # another day
        ("test-4712", "ci:1", 5, False),  # the next run of the same test
        ("smoke", "ci:1", 5, False),  # the same image in the same Namespace
    ],
)
def test_one_application_xid_under_several_programs_within_a_day(
    second: str, image: str, hours: int, hardware: bool
) -> None:
    memory = after(under("test-4711", "ci:1", by=timedelta()))
    finding = judged(under(second, image, by=hours * HOUR), memory)
    assert finding.verdict is (Verdict.DEGRADED if hardware else Verdict.UNKNOWN)
    assert finding.advice is (Advice.RESET_WHEN_IDLE if hardware else Advice.FIX_APPLICATION)


def test_programs_that_hold_the_gpu_at_one_time_are_not_told_apart() -> None:
    shared = [Holding(at=AT, workload="a", program=("ns/a",)), Holding(at=AT, workload="b", program=("ns/b",))]
    assert not programs_differ(shared)
    assert not programs_differ([*shared, Holding(at=ago(hours=1), workload="a", program=("ns/a",))])
    assert programs_differ([*shared, Holding(at=ago(hours=1), workload="c", program=("ns/c",))])


def test_the_last_cycles_memory_and_one_with_this_snapshot_give_the_same() -> None:
    before = after(raised(79))
    snapshot = quiet(boot="two", by=HOUR)
    found = assess_health(snapshot, POLICY, everything=True, memory=before)
    assert found == assess_health(snapshot, POLICY, everything=True, memory=after(snapshot, memory=before))
    assert findings(raised(79)).keys() == {"xid:device/gpu-0"}


def in_part(snapshot: Snapshot) -> Snapshot:
    return replace(snapshot, gaps=(Gap(kind=GapKind.PARTIAL, what="answers in part", detail="store-3"),))


def test_answers_in_part_are_not_remembered() -> None:
    """Neither a fault, which may be an old one whose history is missing, nor a repair."""
    assert after(in_part(raised(79))) == NOTHING
    known = after(raised(79))
    repaired = quiet(by=HOUR, boot="two")
    assert after(in_part(repaired), memory=known) == known
    assert judged(quiet(by=2 * HOUR), after(in_part(repaired), memory=known)).verdict is Verdict.DEGRADED
    assert judged(repaired, after(repaired, memory=known)).verdict is Verdict.HEALTHY
