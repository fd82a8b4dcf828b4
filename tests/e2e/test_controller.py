"""gpuwatch as it is deployed, on a living control plane with a real Prometheus: what it does, and what it does not."""

import json
import time

import pytest

from e2e.world import LEASE, QUICK, World, told

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

TAINT = {"taint_node": "enforce"}
MOVE = {"taint_node": "enforce", "evict_gang": "enforce"}
RELEASE = [{"mode": "enforce", "pool": "idle", "action": "release_gang"}]


WITHOUT_A_MODE = {"leases", "checkpoints", "workloadprofiles"}


def test_observing_writes_nothing_but_its_own_objects(living: World) -> None:
    """Under deploy/base alone: no role of any further mode is there yet."""
    uids = living.started("seen", "Job", "seen", gpus=4, copies=2)
    living.fleet.faults["seen-0"] = {3}
    with living.gpuwatch("observer", living.settings("observer")) as replica:
        living.until(lambda: "taint_node:node/seen-0 would be worth it (observe)" in replica.said(), replica)
        status, metrics = replica.asked("/metrics")
        assert status == 200
        assert (
            'gpuwatch_findings{family="health",kind="row_remap",severity="critical",verdict="degraded"} 1.0' in metrics
        )
        assert "gpuwatch_leader 1.0" in metrics
        assert 'gpuwatch_task_errors_total{task="cycle"} 0.0' in metrics
        (finding,) = [line for line in metrics.splitlines() if line.startswith("gpuwatch_finding{")]
        assert 'gpu_node="seen-0",kind="row_remap",severity="critical"' in finding
        seen = 'gpu_model="A100-SXM4-80GB",pool="seen"'
        assert f"gpuwatch_allocatable_gpus{{{seen}}} 16.0" in metrics
        assert f'gpuwatch_allocated_gpus{{{seen},workload_namespace="team-a"}} 8.0' in metrics
        assert f"gpuwatch_unpriced_gpus{{{seen}}} 16.0" in metrics  # no label tells what these Nodes are
        assert "gpuwatch_cost_per_hour{" not in metrics
        slot = 'accelerator="nvidia.com/gpu",gpu_model="A100-SXM4-80GB",gpus="8",topology=""'
        assert f"gpuwatch_slots{{{slot}}} " in metrics
        assert 'gpuwatch_waiting_gpus{room="fits"} 0.0' in metrics
        assert replica.asked("/healthz") == (200, "ok\n")
    assert replica.process.returncode == 0
    assert "stopped" in replica.said().splitlines()[-1]
    living.fleet.faults.clear()
    if living.logged("nothing but Leases, Checkpoints and WorkloadProfiles is written, and none of it is refused"):
        written = living.writes(by=replica.credential)
        assert {asked.resource for asked in written} <= WITHOUT_A_MODE
        assert {asked.status for asked in written} <= {200, 201}
        said = {told(asked) for asked in written}
        assert {"create leases leases 201", "patch leases gpuwatch 200", "create checkpoints checkpoints 201"} <= said
    assert "holderIdentity" not in living.api.get(LEASE)["spec"]  # given back
    assert living.remediations() == []
    assert living.taints("seen-0") == []
    assert {item["metadata"]["uid"] for item in living.running("seen")} == uids


def test_a_degraded_gpu_is_tainted_and_its_gang_moves_once_though_the_leader_dies(allowed: World) -> None:
    living = allowed
    old = living.started("train", "Job", "moved", gpus=4, copies=2)
    settings = living.settings("moving", plan={"modes": MOVE})
    with living.gpuwatch("moving-a", settings) as first, living.gpuwatch("moving-b", settings) as second:
        assert "standing by: moving-a" in second.said()
        living.fleet.faults["moved-0"] = {3}
        seen: set[str] = set()

        def moved() -> bool:
            seen.update(item["metadata"]["uid"] for item in living.pods("train"))
            if first.process.poll() is None and living.phase("evict_gang", "train") in ("Acting", "Verifying"):
                first.kill()
            return living.phase("evict_gang", "train") == "Succeeded"

        living.until(moved, first, second, seconds=180)
        assert first.process.poll() is not None
        assert "leads" in second.said()
    new = {item["metadata"]["uid"]: item["spec"]["nodeName"] for item in living.running("train")}
    assert set(new.values()) == {"moved-1"}
    assert seen == old | set(new)  # nothing in between: it moved once
    assert len(living.remediations("evict_gang", "train")) == 1
    (taint,) = living.taints("moved-0")
    assert (taint["value"], taint["effect"]) == ("row_remap", "NoSchedule")
    job = living.api.get("/apis/batch/v1/namespaces/team-a/jobs/train")
    assert not job["spec"]["suspend"]
    assert "gpuwatch.dev/remediation" not in job["metadata"].get("annotations", {})
    if living.logged("each write to the Job is by whoever holds the Lease"):
        patched = [line for line in living.disturbed() if line.startswith("patch jobs train")]
        assert patched
        # 409: the Job's own controller wrote its status in between; nothing was changed, and it is tried again.
        assert {line.rpartition(" ")[2] for line in patched} <= {"200", "409"}
        assert living.out_of_turn() == []


def test_the_taint_goes_when_the_gpu_is_proven_healthy(allowed: World) -> None:
    living = allowed
    assert living.taints("moved-0")
    living.fleet.exporters.silent.add("moved-0")  # before anybody hears that it is well
    living.fleet.faults.clear()
    with living.gpuwatch("healing", living.settings("healing", plan={"modes": MOVE})) as replica:
        time.sleep(3 * QUICK["execute"]["healthy_for_seconds"])
        assert " devices report, 0 degraded" in replica.said()  # it has looked
        assert living.taints("moved-0")
        assert living.phase("taint_node", "moved-0") == "InEffect"
        living.fleet.exporters.silent.clear()
        living.until(lambda: not living.taints("moved-0"), replica, seconds=240)
        living.until(lambda: living.phase("taint_node", "moved-0") == "Succeeded", replica)
    annotations = living.api.get("/api/v1/nodes/moved-0")["metadata"].get("annotations", {})
    assert not [key for key in annotations if key.startswith("gpuwatch.dev/")]


def test_an_idle_workload_is_released_and_restored_by_undo(allowed: World) -> None:
    living = allowed
    living.fleet.idle.add("forgotten")  # first: one scrape of work, and it is a job between two epochs
    living.started("forgotten", "Job", "idle", gpus=4, copies=2)
    before = living.api.get("/apis/batch/v1/namespaces/team-a/jobs/forgotten")["spec"]
    with living.gpuwatch("releasing", living.settings("releasing", plan={"scopes": RELEASE})) as replica:
        living.until(lambda: living.phase("release_gang", "forgotten") == "InEffect", replica, seconds=180)
        assert living.pods("forgotten") == []
        (held,) = living.remediations("release_gang", "forgotten")
        name = held["metadata"]["name"]
        told = living.command("history", name[:-12])
        assert told.returncode == 0, told.stderr
        assert "Its GPUs are free." in told.stdout
        living.fleet.idle.discard("forgotten")  # whoever wants it back works with it
        undone = living.command("undo", name, "-n", "team-a")
        assert undone.returncode == 0, undone.stderr
        living.until(lambda: living.phase("release_gang", "forgotten") == "Undone", replica)
        living.until(lambda: len(living.running("forgotten")) == 2, replica)
    after = living.api.get("/apis/batch/v1/namespaces/team-a/jobs/forgotten")
    assert after["spec"] == before
    assert not [key for key in after["metadata"].get("annotations", {}) if key.startswith("gpuwatch.dev/")]


def test_a_disruption_budget_holds(allowed: World) -> None:
    living = allowed
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "chat", "namespace": "team-a"},
        "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "chat"}}},
    }
    living.api.create(budget)
    uids = living.started("chat", "Deployment", "kept", gpus=4, copies=2)
    path = "/apis/policy/v1/namespaces/team-a/poddisruptionbudgets/chat"
    living.until(lambda: living.api.get(path).get("status", {}).get("currentHealthy") == 2)
    living.fleet.faults["kept-0"] = {1}
    with living.gpuwatch("keeping", living.settings("keeping", plan={"modes": MOVE})) as replica:
        living.until(lambda: living.phase("taint_node", "kept-0") == "InEffect", replica, seconds=240)
        living.until(lambda: "PodDisruptionBudget team-a/chat allows 0" in replica.said(), replica)
        time.sleep(10)
        assert {item["metadata"]["uid"] for item in living.running("chat")} == uids
        if living.logged("no eviction is asked for"):
            assert not [line for line in living.disturbed(by=replica.credential) if "eviction" in line]
    living.fleet.faults.clear()


def test_a_pause_stops_everything_and_resume_lets_it_go_on(allowed: World) -> None:
    living = allowed
    living.started("halted", "Job", "halted", gpus=8)
    paused = living.command("pause", "--reason", "maintenance", "--by", "ana")
    assert paused.returncode == 0, paused.stderr
    living.fleet.faults["halted-0"] = {3}
    try:
        with living.gpuwatch("paused", living.settings("paused", plan={"modes": TAINT})) as replica:
            living.until(lambda: "paused by ana: maintenance" in replica.said(), replica)
            planned = living.command("plan", "--prometheus", living.prometheus, "-o", "json")
            assert planned.returncode == 0, planned.stderr
            assert json.loads(planned.stdout)["plan"]["brake"].startswith("gpuwatch is paused by ana")
            time.sleep(12)
            assert living.taints("halted-0") == []
            assert living.command("resume").returncode == 0
            living.until(lambda: bool(living.taints("halted-0")), replica, seconds=240)
    finally:
        living.command("resume")
        living.fleet.faults.clear()


def test_a_proposal_waits_for_approval_and_expires_or_is_done(allowed: World) -> None:
    living = allowed
    living.started("serve", "Job", "asked", gpus=8)
    living.fleet.faults["asked-0"] = {5}
    suggest = {"modes": {"taint_node": "suggest"}}
    quick = living.settings("asking", plan=suggest, execute={"approval_timeout_seconds": 10})
    with living.gpuwatch("asking", quick) as replica:
        living.until(lambda: living.phase("taint_node", "asked-0") == "Proposed", replica)
        living.until(lambda: living.phase("taint_node", "asked-0") == "Expired", replica)
        assert living.taints("asked-0") == []
        (expired,) = living.remediations("taint_node", "asked-0")
        late = living.command("approve", expired["metadata"]["name"])
        assert late.returncode == 1
        assert "It was not approved in time" in late.stderr
    living.api.delete(expired)
    with living.gpuwatch("approved", living.settings("approved", plan=suggest)) as replica:
        living.until(lambda: living.phase("taint_node", "asked-0") == "Proposed", replica)
        time.sleep(5)
        assert living.taints("asked-0") == []
        (waits,) = living.remediations("taint_node", "asked-0")
        for arguments, returned in (("--by", "ana"), 1), ((), 0):  # nobody approves in another's name
            done = living.command("approve", waits["metadata"]["name"], *arguments)
            assert done.returncode == returned, done.stderr
        living.until(lambda: bool(living.taints("asked-0")), replica)
        (kept,) = living.remediations("taint_node", "asked-0")
        assert kept["spec"]["approvedBy"] == living.user
        assert replica.metric('gpuwatch_proposals_total{action="taint_node"}') == 1
        living.until(lambda: replica.metric('gpuwatch_taint_age_seconds{gpu_node="asked-0"}') is not None, replica)
        events = living.api.get("/apis/events.k8s.io/v1/namespaces/default/events")["items"]
        said = {item["reason"] for item in events if item["regarding"]["name"] == "asked-0"}
        assert {"RemediationProposed", "RemediationScheduled"} <= said
        assert living.command("undo", waits["metadata"]["name"]).returncode == 0
        living.until(lambda: living.phase("taint_node", "asked-0") == "Undone", replica)
        living.until(lambda: replica.metric('gpuwatch_taint_age_seconds{gpu_node="asked-0"}') is None, replica)
        for phase in ("Proposed", "Acting", "Undoing"):
            left = f'gpuwatch_remediation_phase_seconds_count{{action="taint_node",phase="{phase}"}}'
            assert replica.metric(left) == 1
        assert living.taints("asked-0") == []
    living.fleet.faults.clear()
