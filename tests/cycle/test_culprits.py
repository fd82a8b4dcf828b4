"""What a finding names, why health is unknown, and which taints of ours stand."""

from dataclasses import replace
from datetime import timedelta

import pytest

from detect.builders import cluster, device, exporters_of, gang, machines, pod, scene
from gpuwatch.act.analysis import Policies, analyse
from gpuwatch.act.culprits import Culprit, culprits, health_unknown, tainted_since, worst_first
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.facts.model.cluster import Workload
from gpuwatch.facts.model.decision import (
    ActionKind,
    Analysis,
    Family,
    Finding,
    FindingKind,
    Severity,
    Snapshot,
    Subject,
    SubjectKind,
    Verdict,
)
from gpuwatch.facts.model.remediation import ObjectRef, Phase, Step, StepKind
from gpuwatch.facts.model.telemetry import Signal
from gpuwatch.judge.health.assess import needs_of_rules
from gpuwatch.judge.health.policy import HealthPolicy
from gpuwatch.judge.needs import statistics
from store.remediation_stores import DAY, MINUTE, T0, proposal, remediation

DEVICES = (
    device("gpu-0", pods=["ns/a"]),
    device("gpu-1", pods=["ns/b", "ns/c"]),
    device("gpu-2", pods=["ns/d", "other/e"]),
    device("gpu-3", mig="1"),
    device("gpu-3", mig="2"),
    device("gpu-4", node=None, label="host-9"),
)


def finding(
    kind: SubjectKind, name: str, devices: tuple[str, ...] = (), pods: tuple[str, ...] = (), node: str | None = None
) -> Finding:
    return Finding(
        rule="health.ecc",
        family=Family.HEALTH,
        kind=FindingKind.ECC,
        subject=Subject(kind, name),
        verdict=Verdict.DEGRADED,
        summary="",
        devices=devices,
        pods=pods,
        node=node,
    )


@pytest.mark.parametrize(
    ("found", "named"),
    [
        (
            finding(SubjectKind.DEVICE, "gpu-0", ("gpu-0",), ("ns/a",), "node-0"),
            Culprit("node-0", "gpu-0", "", "ns", "a"),
        ),
        (finding(SubjectKind.DEVICE, "gpu-1", ("gpu-1",), ("ns/b", "ns/c")), Culprit("node-0", "gpu-1", "", "ns", "")),
        (
            finding(SubjectKind.DEVICE, "gpu-2", ("gpu-2",), ("ns/d", "other/e")),
            Culprit("node-0", "gpu-2", "", "", ""),
        ),
        (finding(SubjectKind.DEVICE, "gpu-3", ("gpu-3/1", "gpu-3/2")), Culprit("node-0", "gpu-3", "", "", "")),
        (finding(SubjectKind.DEVICE, "gpu-3/2", ("gpu-3/2",)), Culprit("node-0", "gpu-3", "2", "", "")),
        (finding(SubjectKind.DEVICE, "gpu-4", ("gpu-4",)), Culprit("host-9", "gpu-4", "", "", "")),
        (finding(SubjectKind.DEVICE, "gpu-9/7"), Culprit("", "gpu-9", "7", "", "")),
        (finding(SubjectKind.POD, "ns/a", ("gpu-0",), ("ns/a",)), Culprit("node-0", "gpu-0", "", "ns", "a")),
        (finding(SubjectKind.POD, "ns/a", (), ("ns/a",)), Culprit("node-1", "", "", "ns", "a")),
        (finding(SubjectKind.POD, "ns/a", ("gpu-0", "gpu-1"), ("ns/a",)), Culprit("node-0", "", "", "ns", "a")),
        (finding(SubjectKind.NODE, "node-0", ("gpu-0", "gpu-1"), ("ns/a",)), Culprit("node-0", "", "", "", "")),
        (finding(SubjectKind.NODE, "host-9"), Culprit("host-9", "", "", "", "")),
        (
            finding(SubjectKind.GANG, "JobSet/ns/g", ("gpu-0", "gpu-1"), ("ns/b", "ns/a")),
            Culprit("node-0", "", "", "ns", "a"),
        ),
        (finding(SubjectKind.GANG, "JobSet/ns/g"), Culprit("", "", "", "ns", "")),
        (finding(SubjectKind.WORKLOAD, "Job/ns/w"), Culprit("", "", "", "ns", "")),
        (finding(SubjectKind.FLEET, "fleet", ("gpu-0",), ("ns/a",)), Culprit()),
    ],
)
def test_a_finding_names_what_is_one_thing(found: Finding, named: Culprit) -> None:
    state = cluster(pods=[pod("a", node="node-1")], gangs=[gang("JobSet/ns/g", ["ns/a"])])
    owner = Workload(id="Job/ns/w", kind="Job", api_version="batch/v1", namespace="ns", name="w")
    snapshot = scene(DEVICES, state=replace(state, workloads=(owner,)))
    assert culprits(analysed(snapshot), [found]) == [named]


def test_the_worst_come_first_and_stay_in_order() -> None:
    mild = finding(SubjectKind.DEVICE, "a")
    bad = [replace(finding(SubjectKind.DEVICE, name), severity=Severity.CRITICAL) for name in "xy"]
    for order in ([mild, *bad], [bad[1], mild, bad[0]]):
        assert worst_first(order) == [*bad, mild]


def analysed(snapshot: Snapshot) -> Analysis:
    return analyse(PlanFacts(snapshot=snapshot), Policies())


EIGHT = machines(8)


def blind(devices: int, **answers: float) -> Snapshot:
    """Devices that report, and of which no health rule can tell anything; answers: of the first GPU alone."""
    stats = [stat for stat in statistics(needs_of_rules(HealthPolicy())) if str(stat.signal) in answers]
    given = {stat: {"gpu-0": answers[str(stat.signal)]} for stat in stats}
    return scene([device(f"gpu-{number}", index=str(number)) for number in range(devices)], given)


def test_why_health_is_unknown_adds_up() -> None:
    silent = [replace(item, present=False) if item.node == "node-0" else item for item in EIGHT]
    down = analysed(scene(silent, exporters=exporters_of(EIGHT, down=["node-0"])))
    empty = analysed(scene(silent, exporters=exporters_of(EIGHT)))
    everywhere = analysed(scene([replace(item, present=False) for item in EIGHT]))
    nothing = analysed(blind(2))
    elsewhere = analysed(blind(3, row_remap_failed_state=0.0))
    reasons = {name: health_unknown(found) for name, found in locals().items() if isinstance(found, Analysis)}
    assert reasons["down"]["node-0", "exporter_down"] == 8
    assert reasons["empty"]["node-0", "exporter_empty"] == 8
    assert reasons["everywhere"] == {(f"node-{number}", "telemetry_missing"): 8 for number in range(8)}
    assert reasons["nothing"] == {("node-0", "signals_missing"): 2}
    assert reasons["elsewhere"] == {("node-0", "samples_missing"): 2}  # the third has what the rule needs
    for found in (down, empty, everywhere, nothing, elsewhere):
        assert sum(health_unknown(found).values()) == found.coverage.health_unknown > 0


NODE = ObjectRef("v1", "Node", "gpu-1", uid="b0de")
RULE = ObjectRef("resource.k8s.io/v1beta2", "DeviceTaintRule", "gpu-1")


def done(kind: StepKind, after: timedelta, target: ObjectRef = NODE) -> Step:
    return Step(kind=kind, target=target, begun_at=T0 + after, done_at=T0 + after)


def test_a_taint_stands_from_its_first_write_until_it_is_taken_back() -> None:
    mild, hard = done(StepKind.TAINT, MINUTE), done(StepKind.TAINT, 9 * MINUTE)
    begun = Step(kind=StepKind.UNTAINT, target=NODE, begun_at=T0 + DAY)
    standing = remediation("a", phase=Phase.IN_EFFECT, steps=(mild, hard))
    undoing = remediation("b", phase=Phase.UNDOING, steps=(mild, begun))
    taken_back = remediation("c", phase=Phase.UNDOING, steps=(mild, hard, done(StepKind.UNTAINT, DAY)))
    ended = remediation("d", phase=Phase.UNDONE, steps=(mild,))
    to_come = remediation("e", phase=Phase.ACTING, steps=(Step(kind=StepKind.TAINT, target=NODE, begun_at=T0),))
    moved = remediation("f", phase=Phase.IN_EFFECT, steps=(mild,), proposal=proposal(action=ActionKind.EVICT_GANG))
    of_a_device = remediation(
        "g",
        phase=Phase.IN_EFFECT,
        proposal=proposal(nodes=("gpu-2",)),
        steps=(done(StepKind.DEVICE_TAINT, MINUTE, RULE), done(StepKind.DEVICE_UNTAINT, DAY, NODE)),
    )
    assert tainted_since([standing]) == {"gpu-1": T0 + MINUTE}
    assert tainted_since([undoing]) == {"gpu-1": T0 + MINUTE}
    assert tainted_since([taken_back, ended, to_come, moved]) == {}
    assert tainted_since([of_a_device, standing]) == {"gpu-1": T0 + MINUTE, "gpu-2": T0 + MINUTE}


def test_every_signal_of_the_unknown_is_a_signal() -> None:
    """The reason is read from Finding.missing, which has to speak of signals then."""
    (unknown,) = [item for item in analysed(blind(1)).findings if item.kind is FindingKind.HEALTH_UNKNOWN]
    assert all(Signal(name) for name in unknown.missing)
