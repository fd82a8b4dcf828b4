"""Gangs that were stopped in order to be moved, and a Pod of each that never ends."""

import time
from typing import Any

import pytest

from e2e.live_fleet import workload
from e2e.world import HOLD, World

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

STOPPED_SECONDS = 16
SLACK_SECONDS = 60
"""Rounds of gpuwatch, of the scheduler and of the test itself, on a machine that does other things."""


def test_a_gang_whose_pod_never_ends_runs_again_or_a_person_is_called_in_time(allowed: World) -> None:
    """One that may run beside its own terminating Pod is resumed. One that asks not to be waits, and a person is
    called; it runs again as soon as its Pod is gone."""
    living = allowed
    living.node("stuck-0", "stuck")
    for name, policy in (("resumes", "TerminatingOrFailed"), ("insists", "Failed")):
        job = workload("Job", name, pool="stuck", gpus=4)
        job["spec"]["podReplacementPolicy"] = policy
        living.api.create(job)
        living.until(lambda: len(living.running(name)) == 1)  # noqa: B023
    living.node("stuck-1", "stuck")
    held = {name: living.running(name)[0]["metadata"]["name"] for name in ("resumes", "insists")}
    for pod in held.values():
        living.finalize(pod, HOLD)
    scopes = [{"mode": "enforce", "pool": "stuck", "action": action} for action in ("taint_node", "evict_gang")]
    file = living.settings(
        "stuck",
        plan={"scopes": scopes},
        execute={"notice_period_seconds": 1, "stopped_gang_seconds": STOPPED_SECONDS},
    )
    stopped: dict[str, float] = {}
    over: dict[str, float] = {}

    def again(name: str) -> list[Any]:
        """Its Pods that run, but for the one that was stopped: for a moment that one is not yet deleted."""
        return [item for item in living.running(name) if item["metadata"]["name"] != held[name]]

    def job_of(name: str) -> Any:
        return living.api.get(f"/apis/batch/v1/namespaces/team-a/jobs/{name}")["spec"]

    def called() -> bool:
        events = living.api.get("/apis/events.k8s.io/v1/namespaces/team-a/events")["items"]
        return any(
            each["reason"] == "RemediationNeedsPerson" and "/insists has been stopped" in each["note"]
            for each in events
        )

    with living.gpuwatch("stuck", file) as replica:
        living.fleet.faults["stuck-0"] = {1, 5}

        def both() -> bool:
            now = time.monotonic()
            for name in held:
                if job_of(name)["suspend"]:
                    stopped.setdefault(name, now)
            if "resumes" in stopped and again("resumes"):
                over.setdefault("resumes", now)
            if "insists" in stopped and called():
                over.setdefault("insists", now)
            return len(over) == len(held)

        living.until(both, replica)
        for name, at in over.items():
            assert at - stopped[name] < STOPPED_SECONDS + SLACK_SECONDS, name
        assert [item["spec"]["nodeName"] for item in again("resumes")] == ["stuck-1"]
        assert living.running("insists") == []
        assert job_of("insists")["suspend"]
        living.until(lambda: replica.metric("gpuwatch_remediations_overdue") == 1.0, replica)
        waits = living.newest("evict_gang", "insists")
        assert waits is not None
        conditions = {each["type"]: each["status"] for each in waits["status"]["conditions"]}
        assert conditions["Overdue"] == "True"
        for pod in held.values():
            living.finalize(pod)
        for name in held:
            living.until(lambda: living.phase("evict_gang", name) == "Succeeded", replica)  # noqa: B023
        assert [item["spec"]["nodeName"] for item in living.running("insists")] == ["stuck-1"]
    living.fleet.faults.clear()
