"""GPUs that are handed out by dynamic resource allocation: a device is tainted by a DeviceTaintRule, and its Node is
not."""

import time

import pytest

from cluster.api import Object
from e2e.clusters import marked
from e2e.live_fleet import DRIVER, claimed_node, claiming
from e2e.world import World

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

CHOSEN_BY = ("driver", "pool", "device")
RULES = "/apis/resource.k8s.io/v1beta2/devicetaintrules"


@pytest.fixture
def claimable(allowed: World) -> World:
    """Two Nodes whose GPUs are claimed; one Job of two Pods holds all of each."""
    if not allowed.api.answer("GET", RULES).ok:
        pytest.skip("this cluster serves no DeviceTaintRule (resource.k8s.io/v1beta2 with DRADeviceTaintRules)")
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    device_class = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": DRIVER}}
    allowed.api.create(marked({**device_class, "spec": {"selectors": [selector]}}))
    for number in range(2):
        for item in claimed_node(f"claimed-{number}", "claimed"):
            allowed.api.create(marked(item))
    allowed.fleet.history(time.time(), 600, "claimed-0")
    allowed.fleet.history(time.time(), 600, "claimed-1")
    for item in claiming("claims", pool="claimed", gpus=4, copies=4):
        allowed.api.create(item)
    allowed.until(lambda: len(allowed.running("claims")) == 4)
    return allowed


def rules(living: World) -> list[Object]:
    found: list[Object] = living.api.get(RULES)["items"]
    return found


def chosen(living: World) -> list[tuple[str, ...]]:
    """The device of each rule, all of which have gpuwatch's taint."""
    taint = {"key": "gpuwatch.dev/degraded", "value": "row_remap", "effect": "NoSchedule"}
    assert all(taint.items() <= rule["spec"]["taint"].items() for rule in rules(living))
    return [tuple(rule["spec"]["deviceSelector"][key] for key in CHOSEN_BY) for rule in rules(living)]


def unschedulable(pod: Object) -> bool:
    conditions = pod["status"].get("conditions", ())
    return any(each["type"] == "PodScheduled" and each.get("reason") == "Unschedulable" for each in conditions)


def nodes_of(living: World, app: str) -> list[str]:
    return sorted(item["spec"]["nodeName"] for item in living.running(app))


def test_a_device_is_tainted_alone_and_free_again_by_proof_of_health_or_undo(claimable: World) -> None:
    living = claimable
    scopes = [{"mode": "enforce", "pool": "claimed", "action": "taint_node"}]
    file = living.settings("claimed", plan={"scopes": scopes, "min_pool_nodes_left": 0})
    with living.gpuwatch("claimed", file) as replica:
        living.fleet.faults["claimed-0"] = {3}
        living.until(lambda: living.phase("taint_node", "claimed-0") == "InEffect", replica)
        assert chosen(living) == [(DRIVER, "claimed-0", "gpu-3")]
        assert "taints" not in living.api.get("/api/v1/nodes/claimed-0")["spec"]
        assert len(living.running("claims")) == 4  # nobody was driven off

        # The scheduler hands out the other seven of the Node, and not the tainted one.
        suspended = {"spec": {"suspend": True}}
        job = "/apis/batch/v1/namespaces/team-a/jobs/claims"
        assert living.api.answer("PATCH", job, suspended, content_type="application/merge-patch+json").ok
        living.until(lambda: living.pods("claims") == [], replica)
        for item in claiming("wants", pool="claimed", gpus=8, copies=2):
            living.api.create(item)
        living.until(lambda: nodes_of(living, "wants") == ["claimed-1"], replica)
        living.until(lambda: any(unschedulable(item) for item in living.pods("wants")), replica)

        living.fleet.faults.pop("claimed-0")
        living.until(lambda: living.phase("taint_node", "claimed-0") == "Succeeded", replica)
        living.until(lambda: nodes_of(living, "wants") == ["claimed-0", "claimed-1"], replica)
        assert rules(living) == []

        # One Node of so small a pool at a time.
        living.fleet.faults["claimed-1"] = {5}
        living.until(lambda: living.phase("taint_node", "claimed-1") == "InEffect", replica)
        assert chosen(living) == [(DRIVER, "claimed-1", "gpu-5")]
        (held,) = living.remediations("taint_node", "claimed-1")
        done = living.command("undo", held["metadata"]["name"])
        assert done.returncode == 0, done.stderr
        living.until(lambda: living.phase("taint_node", "claimed-1") == "Undone", replica)
        assert rules(living) == []
    living.fleet.faults.clear()
