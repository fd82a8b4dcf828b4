"""What happens around gpuwatch while Remediations are in flight: somebody else has its account, it is upgraded, its
exporters are, and its records are deleted."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest

from cluster.api import Api
from e2e.live_fleet import GPUS_PER_NODE, workload
from e2e.world import REMEDIATIONS, Replica, World
from gpuwatch.facts.frameworks.keys import CONDITION

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

NOTICE_SECONDS = 20
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
JOBS = "/apis/batch/v1/namespaces/team-a/jobs"
NODES = tuple(f"flight-{number}" for number in range(3))


@dataclass
class Flight:
    """A taint on flight-0, in effect; a release of the Job `leaves`, in effect; and the move of the Job `steady` off
    flight-0, of which its owners have been notified. uids: of the Pods of `steady`."""

    living: World
    uids: set[str]
    running: ExitStack = field(default_factory=ExitStack)
    replica: Replica | None = None

    def settings(self, *actions: str, **execute: Any) -> Any:
        scopes = [{"mode": "enforce", "pool": "flight", "action": action} for action in actions]
        plan = {"scopes": scopes, "storm_cooldown_seconds": 2}
        # On a busy machine samples are late and a finding is less sure for a moment: then it is proposed again.
        return self.living.settings("flight", plan=plan, execute={"obsolete_backoff_seconds": 3, **execute})

    def begin(self, name: str, version: str = "") -> Replica:
        """Another process takes the place of the one that runs."""
        self.running.close()
        self.replica = self.running.enter_context(
            self.living.gpuwatch(name, self.living.folder / "flight.yaml", version)
        )
        return self.replica

    def until(self, condition: Callable[[], bool]) -> None:
        assert self.replica is not None
        self.living.until(condition, self.replica)

    def phases(self) -> tuple[str, str]:
        return self.living.phase("taint_node", "flight-0"), self.living.phase("release_gang", "leaves")


@pytest.fixture(scope="module")
def flight(with_every_role: World) -> Iterator[Flight]:
    living = with_every_role
    living.node("flight-0", "flight")
    living.api.create(workload("Job", "steady", pool="flight", gpus=4, copies=2))
    living.until(lambda: len(living.running("steady")) == 2)
    for name in NODES[1:]:
        living.node(name, "flight")
    living.fleet.idle.add("leaves")
    living.api.create(workload("Job", "leaves", pool="flight", gpus=4))
    found = Flight(living, {item["metadata"]["uid"] for item in living.running("steady")})
    found.settings("taint_node", "release_gang")
    try:
        found.begin("flight-old")
        found.until(lambda: living.phase("release_gang", "leaves") == "InEffect")
        living.fleet.faults["flight-0"] = {3}
        found.until(lambda: living.phase("taint_node", "flight-0") == "InEffect")
        found.settings("taint_node", "release_gang", "evict_gang", notice_period_seconds=NOTICE_SECONDS)
        found.until(lambda: living.notified("evict_gang", "steady"))
        yield found
    finally:
        found.running.close()
        living.fleet.renewed.clear()
        living.fleet.faults.clear()
        living.fleet.idle.discard("leaves")


def test_who_has_gpuwatchs_account_is_refused_what_gpuwatch_does_not_do(flight: Flight) -> None:
    """Each of these the roles give to the account; what it may not at all is left out."""
    living = flight.living
    thief = Api(living.cluster.account("thief"))
    pod = living.running("steady")[0]["metadata"]["name"]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": "team-a"}}
    (held,) = living.remediations("taint_node", "flight-0")
    remediations = "/apis/gpuwatch.dev/v1alpha1/noderemediations"
    owned = [{"op": "add", "path": "/metadata/labels", "value": {"owned": "x"}}]
    foreign = [{"key": "example.org/theirs", "effect": "NoExecute"}]
    asked = (
        ("PATCH", f"{JOBS}/steady", {"spec": {"suspend": True}}, MERGE),
        ("PATCH", f"{JOBS}/leaves", owned, JSON_PATCH),
        ("PATCH", "/api/v1/nodes/flight-1", {"spec": {"unschedulable": True}}, MERGE),
        ("PATCH", "/api/v1/nodes/flight-1", {"spec": {"taints": foreign}}, MERGE),
        ("PATCH", "/api/v1/nodes/flight-1", {"metadata": {"labels": {"gpuwatch.dev/pool": "mine"}}}, MERGE),
        ("POST", f"/api/v1/namespaces/team-a/pods/{pod}/eviction", eviction, "application/json"),
        (
            "POST",
            remediations,
            {**held, "metadata": {"name": "approved"}, "spec": {**held["spec"], "approved": True}},
            "",
        ),
    )
    for method, path, body, kind in asked:
        answer = thief.answer(method, path, body, content_type=kind or "application/json")
        assert answer.status_code in (403, 422), (path, body, answer.text)
        assert "ValidatingAdmissionPolicy 'gpuwatch-" in answer.text, answer.text
    assert flight.phases() == ("InEffect", "InEffect")
    assert {item["metadata"]["uid"] for item in living.running("steady")} == flight.uids


def test_an_upgrade_and_a_rollout_of_the_exporter_change_nothing_that_is_in_flight(flight: Flight) -> None:
    """Another version under another name takes over, while dcgm-exporter 4.8 becomes 4.9 Node after Node."""
    living = flight.living
    names = {item["metadata"]["name"] for item in living.remediations(target="")}
    move = living.newest("evict_gang", "steady")
    assert move is not None
    living.fleet.renewed.add("flight-0")
    newer = flight.begin("flight-new", version="0.2.0")
    flight.until(lambda: 'gpuwatch_build_info{version="0.2.0"} 1.0' in newer.asked("/metrics")[1])
    flight.until(lambda: living.phase("evict_gang", "steady") == "Succeeded")
    moved = living.newest("evict_gang", "steady")
    assert moved is not None
    assert moved["metadata"]["uid"] == move["metadata"]["uid"]
    assert flight.uids.isdisjoint(item["metadata"]["uid"] for item in living.running("steady"))
    assert len(living.running("steady")) == 2
    assert flight.phases() == ("InEffect", "InEffect")
    living.fleet.renewed.update(NODES)  # the rest of this pool; other pools keep 4.8
    devices = GPUS_PER_NODE * len(living.api.get("/api/v1/nodes")["items"])
    time.sleep(12)  # two scrapes, and some cycles
    flight.until(lambda: f": {devices} of {devices} devices report, 1 degraded" in newer.said().splitlines()[-1])
    assert flight.phases() == ("InEffect", "InEffect")
    assert {item["metadata"]["name"] for item in living.remediations(target="")} == names  # nothing else looked wrong
    # What 4.9 tells is understood: the fault is seen to be over, and nothing else takes the taint off.
    living.fleet.faults.clear()
    flight.until(lambda: living.phase("taint_node", "flight-0") == "Succeeded")
    assert living.taints("flight-0") == []


def marks(living: World) -> list[str]:
    """What of gpuwatch is on others' objects: annotations, taints and conditions, but for one that says `False`."""
    found = []
    for path in ("/api/v1/nodes", "/api/v1/pods", "/apis/batch/v1/jobs", "/apis/apps/v1/deployments"):
        for item in living.api.get(path)["items"]:
            name = f"{path.rpartition('/')[2]}/{item['metadata']['name']}"
            found += [
                f"{name} {key}" for key in item["metadata"].get("annotations", {}) if key.startswith("gpuwatch.dev/")
            ]
            found += [
                f"{name} {each['key']}"
                for each in item["spec"].get("taints", ())
                if each["key"].startswith("gpuwatch.dev/")
            ]
            found += [
                f"{name} {each['type']}"
                for each in item["status"].get("conditions", ())
                if (each["type"], each["status"]) == (CONDITION, "True")
            ]
    return found


def test_a_remediation_that_is_deleted_in_flight_is_undone_and_goes(flight: Flight) -> None:
    living = flight.living
    held = living.newest("release_gang", "leaves")
    assert held is not None
    assert held["metadata"]["finalizers"] == ["gpuwatch.dev/undo"]
    living.fleet.idle.discard("leaves")  # whoever wants it back works with it
    path = f"{REMEDIATIONS.replace('/remediations', '/namespaces/team-a/remediations')}/{held['metadata']['name']}"
    assert living.api.answer("DELETE", path).ok
    flight.until(lambda: living.api.answer("GET", path).status_code == 404)
    job = living.api.get(f"{JOBS}/leaves")
    assert not job["spec"]["suspend"]
    assert not [key for key in job["metadata"].get("annotations", {}) if key.startswith("gpuwatch.dev/")]
    flight.until(lambda: len(living.running("leaves")) == 1)


def test_uninstall_leaves_nothing(flight: Flight) -> None:
    """What other tests have left in this world goes too."""
    living = flight.living
    flight.settings("taint_node")
    on = living.running("steady")[0]["spec"]["nodeName"]  # where the scheduler put the gang that was moved
    living.fleet.faults[on] = {3}  # below the gang, so that a taint is worth it
    flight.until(lambda: living.phase("taint_node", on) == "InEffect")
    assert marks(living) != []
    config = ("--config", str(living.folder / "flight.yaml"))
    flight.running.close()
    try:
        done = living.command("uninstall", "--yes", "--timeout", "90", *config)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Nothing of gpuwatch is left but its manifests and the pause." in done.stdout
        assert marks(living) == []
        kinds = ("remediations", "noderemediations", "workloadprofiles", "checkpoints")
        assert [item for kind in kinds for item in living.api.get(f"/apis/gpuwatch.dev/v1alpha1/{kind}")["items"]] == []
    finally:
        assert living.command("resume").returncode == 0
