"""The fabric between GPUs: what DCGM fails of it, one finding for a machine, one for an NVLink domain."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pytest

from detect.builders import H100, Answer, cluster, findings, gang, healthy, machines, pod, scene, spread, the
from detect.questions import FABRIC, NVLINK
from gpuwatch.act.plan.policy import PlanPolicy
from gpuwatch.facts.model.cluster import Node
from gpuwatch.facts.model.decision import Advice, Finding, FindingKind, Severity, Verdict
from gpuwatch.facts.model.telemetry import Device, WindowStat
from gpuwatch.judge.health.fabric import CLIQUE

FLEET = machines(4, 8)
GB200 = machines(6, 4, model="NVIDIA GB200")


def of_node(node: str, fleet: Iterable[Device] = FLEET) -> set[str]:
    return {item.uuid for item in fleet if item.node == node}


def manager(fleet: Sequence[Device], sick: Iterable[str], code: float, usual: float = 3.0) -> dict[WindowStat, Answer]:
    named = set(sick)
    codes = {item.uuid: code if item.uuid in named else usual for item in fleet}
    return {FABRIC.manager: codes, FABRIC.highest: codes}


def domain(nodes: Iterable[str], label: str = "6f5a1c2e-0000-4000-8000-000000000001.7") -> tuple[Node, ...]:
    return tuple(Node(name=name, labels={CLIQUE: label}) for name in nodes)


def fabric_of(found: Mapping[str, Finding]) -> dict[str, Finding]:
    return {name: item for name, item in found.items() if item.kind is FindingKind.FABRIC}


@pytest.mark.parametrize(("code", "words"), [(1.0, "has not begun"), (2.0, "has not finished"), (4.0, "links failed")])
def test_a_machine_whose_links_are_not_trained_is_one_finding(code: float, words: str) -> None:
    """NVSentinel #883: H100s stood in 'In Progress' for 20 days, and every GPU looked healthy."""
    [finding] = findings(scene(FLEET, manager(FLEET, of_node("node-1"), code))).values()
    assert (finding.id, finding.node) == ("fabric:node/node-1", "node-1")
    assert (finding.verdict, finding.severity, finding.advice) == (Verdict.DEGRADED, Severity.CRITICAL, Advice.INSPECT)
    assert words in finding.summary
    assert finding.summary.endswith("on 8 of its GPUs")
    assert set(finding.devices) == of_node("node-1")


@pytest.mark.parametrize("fleet", [FLEET, GB200], ids=["eight", "four"])
def test_what_was_never_seen_recorded_is_not_acted_on(fleet: tuple[Device, ...]) -> None:
    [finding] = findings(scene(fleet, manager(fleet, of_node("node-1", fleet), 4.0))).values()
    assert finding.id == "fabric:node/node-1"
    assert 0 < finding.confidence_ratio < PlanPolicy().min_confidence_ratio


@pytest.mark.parametrize("code", [1.0, 2.0])
def test_machines_that_need_no_fabric_manager_are_not_sick(code: float) -> None:
    """GB200 without a Fabric Manager of its own says 'not started' for ever (aws/eks-node-monitoring-agent#145)."""
    found = fabric_of(findings(scene(GB200, manager(GB200, (), 0.0, usual=code))))
    assert len(found) == len(GB200)
    assert {(item.verdict, item.missing) for item in found.values()} == {
        (Verdict.UNKNOWN, ("another machine with trained links of this model",))
    }


def test_a_trained_machine_of_another_model_proves_nothing() -> None:
    other = machines(1, 8, model="NVIDIA H200")
    mixed = (*other, *(item for item in machines(2, 8, model=H100) if item.node == "node-1"))
    found = fabric_of(findings(scene(mixed, manager(mixed, of_node("node-1", mixed), 2.0))))
    assert {item.verdict for item in found.values()} == {Verdict.UNKNOWN}


def test_training_that_goes_on_for_a_moment_is_no_fault() -> None:
    """After a boot, or where the state was another one within the window, nothing is concluded yet."""
    now = manager(FLEET, of_node("node-1"), 2.0)
    answers: dict[WindowStat, Answer] = now | {FABRIC.highest: 3.0}
    assert {item.verdict for item in findings(scene(FLEET, answers)).values()} == {Verdict.UNKNOWN}
    assert {item.verdict for item in fabric_of(findings(scene(FLEET, now, coverage=0.5))).values()} == {Verdict.UNKNOWN}


@pytest.mark.parametrize("code", [5.0, 6.0, 9.0])
def test_a_state_that_says_nothing_is_unknown(code: float) -> None:
    found = findings(scene(FLEET, manager(FLEET, of_node("node-1"), code)))
    assert {item.verdict for item in found.values()} == {Verdict.UNKNOWN}


def test_a_gpu_without_a_fabric_is_not_called_healthy() -> None:
    shown = findings(scene(FLEET, manager(FLEET, (), 0.0, usual=0.0)), everything=True)
    assert shown["fabric:device/gpu-0-0"].verdict is Verdict.UNKNOWN


def test_a_trained_gpu_is_healthy() -> None:
    shown = findings(scene(FLEET, manager(FLEET, (), 0.0)), everything=True)
    assert shown["fabric:device/gpu-0-0"].verdict is Verdict.HEALTHY


@pytest.mark.parametrize("mask", [0x0, 0x80, 0x1AA, 0x1000])
def test_a_mask_above_zero_is_no_fault(mask: int) -> None:
    """0x80: the EKS agent fenced healthy GPUs for it, until it decoded the mask."""
    assert fabric_of(findings(scene(FLEET, {FABRIC.mask: float(mask)}))) == {}


@pytest.mark.parametrize(("code", "words"), [(2.0, "is unhealthy"), (3.0, "limited capacity")])
def test_the_summary_of_fabric_health(code: float, words: str) -> None:
    finding = the(
        findings(scene(FLEET, {FABRIC.health: spread(FLEET, 1.0, gpu_0_3=code)})), FindingKind.FABRIC, "gpu-0-3"
    )
    assert (finding.verdict, finding.severity) == (Verdict.DEGRADED, Severity.WARNING)
    assert words in finding.summary


class TestImex:
    PODS = machines(3, 4, model="NVIDIA GB300", pods=True)

    @pytest.mark.parametrize("code", [-3.0, -2.0, -1.0, 2.0, 7.0])
    def test_an_idle_domain_is_no_fault(self, code: float) -> None:
        """NVIDIA/aicr#2641: -3 on healthy idle GB300 for 13 days."""
        assert fabric_of(findings(scene(GB200, {FABRIC.imex: code}))) == {}

    def test_a_job_on_one_node_needs_none(self) -> None:
        assert fabric_of(findings(scene(self.PODS, {FABRIC.imex: 2.0}))) == {}

    @pytest.mark.parametrize(("code", "shown"), [(2.0, True), (5.0, False), (7.0, False), (-3.0, False)])
    def test_a_job_over_several_nodes_may_need_it(self, code: float, shown: bool) -> None:
        pods = [pod(f"pod-{number}", gang="JobSet/ns/big") for number in range(3)]
        state = cluster(pods=pods, gangs=[gang("JobSet/ns/big", [item.ref for item in pods])])
        found = fabric_of(findings(scene(self.PODS, {FABRIC.imex: code}, state=state)))
        assert {(str(item.subject), item.verdict, item.severity, item.advice) for item in found.values()} == (
            {(f"node/node-{number}", Verdict.UNKNOWN, Severity.WARNING, Advice.INSPECT) for number in range(3)}
            if shown
            else set()
        )


class TestDomain:
    """The NVLink domain of an NVL72 spans 18 Nodes; its switches are in no machine's telemetry."""

    NVL72 = machines(20, 4, model="NVIDIA GB200")
    SICK = tuple(f"node-{number}" for number in range(18))

    def links(self, nodes: Iterable[str]) -> dict[WindowStat, Answer]:
        sick = set(nodes)
        return {NVLINK.rx_symbol: {item.uuid: 900.0 if item.node in sick else 0.0 for item in machines(60, 4)}}

    def test_link_errors_on_many_nodes_of_a_domain_are_one_cause(self) -> None:
        """Most of the fleet is of other domains, so that every sick GPU stands out."""
        fleet = machines(60, 4, model="NVIDIA GB200")
        state = cluster(nodes=domain(self.SICK))
        [finding] = findings(scene(fleet, self.links(self.SICK), state=state)).values()
        assert (finding.kind, finding.subject.kind) == (FindingKind.NVLINK_ERRORS, "fleet")
        assert (finding.verdict, finding.severity, finding.advice) == (
            Verdict.UNKNOWN,
            Severity.CRITICAL,
            Advice.INSPECT,
        )
        assert "72 GPUs of 18 Nodes" in finding.summary

    def test_two_nodes_of_a_domain_may_be_sick_on_their_own(self) -> None:
        fleet = machines(60, 4, model="NVIDIA GB200")
        found = findings(scene(fleet, self.links(("node-0", "node-1")), state=cluster(nodes=domain(self.SICK))))
        assert {(item.verdict, item.node) for item in found.values()} == {
            (Verdict.DEGRADED, "node-0"),
            (Verdict.DEGRADED, "node-1"),
        }

    def test_beside_two_sick_nodes_one_that_does_not_report_may_be_sick_too(self) -> None:
        fleet = [replace(each, present=each.node != "node-2") for each in machines(60, 4, model="NVIDIA GB200")]
        found = findings(scene(fleet, self.links(("node-0", "node-1")), state=cluster(nodes=domain(self.SICK))))
        (finding,) = (item for item in found.values() if item.kind is FindingKind.NVLINK_ERRORS)
        assert (finding.subject.kind, finding.verdict) == ("fleet", Verdict.UNKNOWN)
        assert "8 GPUs of 2 Nodes in one NVLink domain" in finding.summary

    def test_machines_with_a_fabric_of_their_own_share_none(self) -> None:
        fleet = machines(60, 4, model="NVIDIA GB200")
        own = domain(self.SICK, "00000000-0000-0000-0000-000000000000.0")
        found = findings(scene(fleet, self.links(self.SICK[:4]), state=cluster(nodes=own)))
        assert {item.verdict for item in found.values()} == {Verdict.DEGRADED}
        assert len(found) == 16

    def test_a_fabric_that_failed_on_many_nodes_is_the_domains(self) -> None:
        sick = {item.uuid for item in self.NVL72 if item.node in self.SICK}
        state = cluster(nodes=domain(self.SICK))
        [finding] = findings(scene(self.NVL72, manager(self.NVL72, sick, 4.0), state=state)).values()
        assert (finding.kind, finding.subject.kind, finding.verdict) == (FindingKind.FABRIC, "fleet", Verdict.UNKNOWN)
        assert len(finding.devices) == 72


def test_a_healthy_fleet_has_no_finding() -> None:
    fleet = machines(4, 4, model="NVIDIA GB200", pods=True)
    assert findings(scene(fleet, healthy(fleet))) == {}
