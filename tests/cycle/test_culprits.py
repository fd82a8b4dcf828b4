"""What a finding names, why health is unknown, and which taints of ours stand."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from detect.builders import cluster, device, exporters_of, gang, machines, pod, scene
from gpuwatch.act.analysis import Policies, analyse
from gpuwatch.act.culprits import Culprit, culprits, health_unknown, tainted_since, worst_first
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.facts.model.cluster import Workload
from gpuwatch.facts.model.decision import (
    ActionKind,
    Analysis,
    Finding,
    FindingKind,
    Severity,
    Snapshot,
    Subject,
    SubjectKind,
)
from gpuwatch.facts.model.needs import statistics
from gpuwatch.facts.model.remediation import ObjectRef, Phase, Step, StepKind
from gpuwatch.facts.model.telemetry import Signal
from gpuwatch.judge.health.assess import needs_of_rules
from gpuwatch.judge.health.policy import HealthPolicy
from plan.fleet import sick
from store.remediation_stores import DAY, MINUTE, T0, proposal, remediation

DEVICES = (
    device("gpu-0", pods=["ns/a"]),
    device("gpu-1", pods=["ns/b", "ns/c"]),
    device("gpu-2", pods=["ns/d", "other/e"]),
    device("gpu-3", mig="1"),
    device("gpu-3", mig="2"),
    device("gpu-4", node=None, label="host-9"),
)


CASES = yaml.safe_load(Path(__file__).with_name("culprits.yaml").read_text(encoding="utf-8"))


def finding(subject: str, devices: Iterable[str] = (), pods: Iterable[str] = (), node: str | None = None) -> Finding:
    kind, _, name = subject.partition("/")
    about = Subject(SubjectKind(kind), name)
    return replace(sick(device()), subject=about, devices=tuple(devices), pods=tuple(pods), node=node)


@pytest.mark.parametrize(("named", "given"), [(each.pop("named"), each) for each in CASES])
def test_a_finding_names_what_is_one_thing(named: list[str], given: dict[str, Any]) -> None:
    state = cluster(pods=[pod("a", node="node-1")], gangs=[gang("JobSet/ns/g", ["ns/a"])])
    owner = Workload(id="Job/ns/w", kind="Job", api_version="batch/v1", namespace="ns", name="w")
    snapshot = scene(DEVICES, state=replace(state, workloads=(owner,)))
    assert culprits(analysed(snapshot), [finding(**given)]) == [Culprit(*named)]


def test_the_worst_come_first_and_stay_in_order() -> None:
    mild = replace(finding("device/a"), severity=Severity.INFO)
    bad = [finding(f"device/{name}") for name in "xy"]
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
