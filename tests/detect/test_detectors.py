"""What other detectors say of a Node, what Kubernetes says of devices that Pods hold, and Nodes that others repair."""

from dataclasses import replace

import pytest

from detect.builders import AT, ago, cluster, findings, machines, pod, scene
from gpuwatch.facts.catalog.detectors import node_conditions, node_labels
from gpuwatch.facts.model.cluster import ClaimedDevice, Cluster, Condition, HeldDevice, Node, Taint
from gpuwatch.facts.model.decision import Advice, Finding, FindingKind, SubjectKind, Verdict
from gpuwatch.facts.model.telemetry import Device
from gpuwatch.judge.reclaim import remediated

SINCE = ago(hours=2)


def told(*conditions: Condition, devices: tuple[Device, ...] = machines(1), gpus: int = 8) -> list[Finding]:
    node = Node(name="node-0", conditions=conditions, accelerators={"nvidia.com/gpu": gpus} if gpus else {})
    found = findings(scene(devices, state=cluster(nodes=[node]))).values()
    return [item for item in found if item.kind is FindingKind.NODE_CONDITION]


@pytest.mark.parametrize("kind", node_conditions())
def test_a_condition_is_shown_with_its_detector_and_is_not_enough_to_act(kind: str) -> None:
    row = node_conditions()[kind]
    (found,) = told(Condition(kind, row.bad_status, since=SINCE))
    assert (found.subject.kind, found.subject.name) == (SubjectKind.NODE, "node-0")
    assert (found.verdict, found.advice, found.since) == (Verdict.DEGRADED, Advice.INSPECT, SINCE)
    assert found.confidence_ratio < 0.8
    assert f"{row.detector} says: {row.words} ({kind}={row.bad_status})" in found.summary
    assert len(found.devices) == 8
    good = "False" if row.bad_status == "True" else "True"
    for status in (good, "Unknown"):
        assert told(Condition(kind, status)) == []


def test_other_conditions_and_nodes_without_gpus_are_left_alone() -> None:
    assert told(Condition("DiskPressure", "True"), Condition("Ready", "False")) == []
    assert told(Condition("KernelDeadlock", "True"), devices=(), gpus=0) == []


def test_two_conditions_of_a_node_are_one_finding_since_the_first() -> None:
    conditions = (Condition("GpuMemWatch", "True", since=AT), Condition("XIDErrors", "True", since=SINCE))
    (found,) = told(*conditions)
    assert found.since == SINCE
    assert len(found.evidence) == 2


def test_a_node_that_another_remediator_repairs_is_told() -> None:
    label = Node(name="n", labels={"dgxc.nvidia.com/nvsentinel-state": "draining"})
    assert remediated(label) == "NVSentinel is at work on n (label dgxc.nvidia.com/nvsentinel-state=draining)"
    taint = Node(name="n", taints=(Taint(key="medik8s.io/remediation", value="", effect="NoExecute"),))
    assert remediated(taint) == "medik8s is at work on n (taint medik8s.io/remediation)"
    assert remediated(Node(name="n", labels={"a": "b"})) == ""


@pytest.mark.parametrize(("key", "value"), node_labels())
def test_a_providers_label_is_shown_and_is_not_enough_to_act(key: str, value: str) -> None:
    row = node_labels()[key, value]

    def said(label: str) -> list[Finding]:
        node = Node(name="node-0", labels={key: label}, accelerators={"nvidia.com/gpu": 8})
        assert bool(remediated(node)) is (row.repairs and label == value)
        return of_kind(FindingKind.NODE_CONDITION, cluster(nodes=[node]))

    (found,) = said(value)
    assert found.verdict is Verdict.DEGRADED
    assert found.confidence_ratio < 0.8
    assert found.summary == f"{row.detector} says: {row.words} ({key}={value})"
    assert said("Schedulable" if row.repairs else "true") == []


def of_kind(kind: FindingKind, state: Cluster) -> list[Finding]:
    return [each for each in findings(scene(machines(1), state=state)).values() if each.kind is kind]


def conflicts(node: Node, *claims: ClaimedDevice) -> list[Finding]:
    return of_kind(FindingKind.OPERATOR_CONFLICT, replace(cluster(nodes=[node]), claims=claims))


MIG = {"nvidia.com/mig.config.state": "success"}
HAMI = {"hami.io/node-nvidia-register": "…"}
SENTINEL = {"dgxc.nvidia.com/nvsentinel-state": "draining"}
CLAIM = ClaimedDevice(claim="ml/c", driver="gpu.nvidia.com", pool="node-0", name="gpu-0")


@pytest.mark.parametrize(
    ("node", "claims", "words"),
    [
        (Node(name="node-0", labels=MIG, annotations=HAMI), (), "MIG manager and HAMi can set up its MIG devices"),
        (
            Node(name="node-0", labels=SENTINEL, taints=(Taint("medik8s.io/remediation", "", "NoSchedule"),)),
            (),
            "NVSentinel and medik8s repair it",
        ),
        (
            Node(name="node-0", accelerators={"nvidia.com/gpu": 8}),
            (CLAIM,),
            "the device plugin and the DRA driver give out its GPUs",
        ),
    ],
    ids=["MIG", "repair", "devices"],
)
def test_two_operators_of_one_node_are_named(node: Node, claims: tuple[ClaimedDevice, ...], words: str) -> None:
    (found,) = conflicts(node, *claims)
    assert (found.verdict, found.node) == (Verdict.UNKNOWN, "node-0")
    assert found.summary == f"two operators reconcile it: {words}"


@pytest.mark.parametrize(
    ("node", "claims"),
    [
        (Node(name="node-0", labels=MIG), ()),
        (Node(name="node-0", annotations=HAMI), ()),
        (Node(name="node-0", labels=SENTINEL), ()),
        (Node(name="node-0"), (CLAIM,)),
        (Node(name="node-0", accelerators={"nvidia.com/gpu": 8}), (replace(CLAIM, driver="nic.example.com"),)),
        (Node(name="node-0", accelerators={"nvidia.com/gpu": 8}), (replace(CLAIM, pool="node-1"),)),
    ],
)
def test_one_operator_alone_is_none(node: Node, claims: tuple[ClaimedDevice, ...]) -> None:
    assert conflicts(node, *claims) == []


DRIVER = "gpu.nvidia.com"


def held(*devices: HeldDevice, claims: tuple[ClaimedDevice, ...] = ()) -> list[Finding]:
    """A Pod on node-0 holds the devices."""
    holder = replace(pod("train", node="node-0"), devices=devices)
    state = replace(cluster(nodes=["node-0"], pods=[holder]), claims=claims)
    found = findings(scene(machines(1, 2), state=state)).values()
    return [each for each in found if each.kind is FindingKind.DEVICE_HEALTH]


def claim(name: str = "gpu-1", device: str = "gpu-0-1", unhealthy: str = "") -> ClaimedDevice:
    return ClaimedDevice(claim="ns/c", driver=DRIVER, pool="node-0", name=name, device=device, unhealthy=unhealthy)


def test_an_unhealthy_device_is_suspected_and_is_not_enough_to_act() -> None:
    (found,) = held(HeldDevice("gpu-0-0", "Healthy"), HeldDevice("gpu-0-1::2", "Unhealthy"))
    assert (str(found.subject), found.verdict, found.advice) == ("device/gpu-0-1", Verdict.DEGRADED, Advice.INSPECT)
    assert found.confidence_ratio < 0.8
    assert found.evidence[0].note == "gpu-0-1 of ns/train"


@pytest.mark.parametrize("health", ["Healthy", "Unknown", ""])
def test_other_words_prove_nothing(health: str) -> None:
    assert held(HeldDevice("gpu-0-0", health)) == []


def test_devices_that_telemetry_does_not_show_are_one_finding_on_their_node() -> None:
    (found,) = held(HeldDevice("GPU-x", "Unhealthy"), HeldDevice("GPU-y", "Unhealthy"))
    assert str(found.subject) == "node/node-0"
    assert [each.note for each in found.evidence] == ["GPU-x of ns/train", "GPU-y of ns/train"]


def test_a_claims_device_is_known_by_its_driver_pool_and_name() -> None:
    (found,) = held(HeldDevice(f"{DRIVER}/node-0/gpu-1", "Unhealthy"), claims=(claim(),))
    assert str(found.subject) == "device/gpu-0-1"


def test_a_drivers_condition_counts_as_well() -> None:
    (found,) = held(claims=(claim(unhealthy="Ready=False (ECC)"),))
    assert (str(found.subject), found.evidence[0].value) == ("device/gpu-0-1", "Ready=False (ECC)")
    assert held(claims=(claim(),)) == []
