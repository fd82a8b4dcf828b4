from typing import Any

import pytest

from gpuwatch.facts.model.cluster import ClaimedDevice
from gpuwatch.sources.kube.claims import Claim, SliceSpec, claimed_devices, device_uuids, take_claim, take_slice
from kube.cluster_json import metadata, raw

DRIVER = "gpu.nvidia.com"
GPU = "GPU-11111111-2222-3333-4444-555555555555"


def devices(*found: dict[str, Any], generation: int = 1, pool: str = "gpu-0") -> SliceSpec:
    spec = {"driver": DRIVER, "pool": {"name": pool, "generation": generation}, "devices": list(found)}
    found = take_slice(raw({"metadata": metadata("slice"), "spec": spec}))
    assert found is not None
    return found


def device(name: str, /, **attributes: str) -> dict[str, Any]:
    return {"name": name, "attributes": {key: {"string": value} for key, value in attributes.items()}}


def claim(*results: dict[str, Any]) -> Claim:
    status = {"allocation": {"devices": {"results": list(results)}}} if results else {}
    return take_claim(raw({"metadata": metadata("claim", "ml"), "status": status}))


def result(name: str, **more: Any) -> dict[str, Any]:
    return {"request": "gpu", "driver": DRIVER, "pool": "gpu-0", "device": name, **more}


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_a_claim_names_the_uuid_that_the_slice_tells(version: str) -> None:
    found = device("gpu-3", type="gpu", uuid=GPU)
    if version == "v1beta1":
        found = {"name": "gpu-3", "basic": {"attributes": found["attributes"]}}
    held = claimed_devices([claim(result("gpu-3"))], device_uuids([devices(found)]))
    assert held == (ClaimedDevice(claim="ml/claim", driver=DRIVER, pool="gpu-0", name="gpu-3", device=GPU),)


def test_a_mig_device_is_on_its_parent() -> None:
    mig = device("gpu-0-mig-1g24gb-15-0", type="mig", uuid="MIG-1", parentUUID=GPU, profile="1g.24gb")
    held = claimed_devices([claim(result("gpu-0-mig-1g24gb-15-0"))], device_uuids([devices(mig)]))
    assert [item.device for item in held] == [GPU]


def test_a_qualified_attribute_is_the_same() -> None:
    qualified = {"name": "gpu-0", "attributes": {f"{DRIVER}/uuid": {"string": GPU}, "numa": {"int": 1}}}
    assert device_uuids([devices(qualified)]) == {(DRIVER, "gpu-0", "gpu-0"): GPU}


def test_slices_of_an_older_generation_do_not_count() -> None:
    slices = [
        devices(device("gpu-0", uuid="GPU-old"), device("gpu-9", uuid="GPU-gone")),
        devices(device("gpu-0", uuid=GPU), generation=2),
        devices(device("gpu-0", uuid="GPU-elsewhere"), pool="gpu-1"),
    ]
    for order in (slices, slices[::-1]):
        assert device_uuids(order) == {(DRIVER, "gpu-0", "gpu-0"): GPU, (DRIVER, "gpu-1", "gpu-0"): "GPU-elsewhere"}


def test_an_unknown_device_is_held_all_the_same() -> None:
    assert [(item.name, item.device) for item in claimed_devices([claim(result("gpu-7"))], {})] == [("gpu-7", "")]


def test_what_holds_nothing() -> None:
    watching = claim(result("gpu-0", adminAccess=True))
    assert claimed_devices([claim(), watching], {}) == ()


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ({"type": "Ready", "status": "False", "reason": "Uncorrectable"}, "Ready=False (Uncorrectable)"),
        ({"type": "Healthy", "status": "False"}, "Healthy=False (no reason given)"),
        ({"type": "Ready", "status": "True"}, ""),
        ({"type": "Ready", "status": "Unknown"}, ""),
        ({"type": "NetworkReady", "status": "False"}, ""),
    ],
)
def test_a_drivers_condition_of_a_device(condition: dict[str, str], said: str) -> None:
    held = {"driver": DRIVER, "pool": "gpu-0", "device": "gpu-3"}
    told = [{**held, "conditions": [condition]}, {**held, "device": "gpu-4", "conditions": None}]
    results = [result("gpu-3"), result("gpu-4"), result("gpu-5")]
    status = {"allocation": {"devices": {"results": results}}, "devices": told}
    found = take_claim(raw({"metadata": metadata("claim", "ml"), "status": status}))
    assert [each.unhealthy for each in claimed_devices([found], {})] == [said, "", ""]
