"""What Kubernetes says of the devices that Pods hold."""

from dataclasses import replace

import pytest

from detect.builders import cluster, findings, machines, pod, scene
from gpuwatch.facts.model.cluster import ClaimedDevice, HeldDevice
from gpuwatch.facts.model.decision import Advice, Finding, FindingKind, Verdict

DRIVER = "gpu.nvidia.com"


def told(*devices: HeldDevice, claims: tuple[ClaimedDevice, ...] = ()) -> list[Finding]:
    """A Pod on node-0 holds the devices."""
    holder = replace(pod("train", node="node-0"), devices=devices)
    state = replace(cluster(nodes=["node-0"], pods=[holder]), claims=claims)
    found = findings(scene(machines(1, 2), state=state)).values()
    return [each for each in found if each.kind is FindingKind.DEVICE_HEALTH]


def claim(name: str = "gpu-1", device: str = "gpu-0-1", unhealthy: str = "") -> ClaimedDevice:
    return ClaimedDevice(claim="ns/c", driver=DRIVER, pool="node-0", name=name, device=device, unhealthy=unhealthy)


def test_an_unhealthy_device_is_suspected_and_is_not_enough_to_act() -> None:
    (found,) = told(HeldDevice("gpu-0-0", "Healthy"), HeldDevice("gpu-0-1::2", "Unhealthy"))
    assert (str(found.subject), found.verdict, found.advice) == ("device/gpu-0-1", Verdict.DEGRADED, Advice.INSPECT)
    assert found.confidence_ratio < 0.8
    assert found.evidence[0].note == "gpu-0-1 of ns/train"


@pytest.mark.parametrize("health", ["Healthy", "Unknown", ""])
def test_other_words_prove_nothing(health: str) -> None:
    assert told(HeldDevice("gpu-0-0", health)) == []


def test_devices_that_telemetry_does_not_show_are_one_finding_on_their_node() -> None:
    (found,) = told(HeldDevice("GPU-x", "Unhealthy"), HeldDevice("GPU-y", "Unhealthy"))
    assert str(found.subject) == "node/node-0"
    assert [each.note for each in found.evidence] == ["GPU-x of ns/train", "GPU-y of ns/train"]


def test_a_claims_device_is_known_by_its_driver_pool_and_name() -> None:
    (found,) = told(HeldDevice(f"{DRIVER}/node-0/gpu-1", "Unhealthy"), claims=(claim(),))
    assert str(found.subject) == "device/gpu-0-1"


def test_a_drivers_condition_counts_as_well() -> None:
    (found,) = told(claims=(claim(unhealthy="Ready=False (ECC)"),))
    assert (str(found.subject), found.evidence[0].value) == ("device/gpu-0-1", "Ready=False (ECC)")
    assert told(claims=(claim(),)) == []
