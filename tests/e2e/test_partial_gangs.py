"""Two gangs that each hold what the other one waits for, on the real scheduler: with gangs of its own, and without."""

import json
import time
from pathlib import Path

import pytest

from cluster.api import Object
from cluster.control_plane import RELEASE
from e2e.clusters import marked
from e2e.live_fleet import node, workload
from e2e.world import World

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

API = f"scheduling.k8s.io/{RELEASE.gang}"
GROUPS = f"/apis/{API}/podgroups"
STARTING = {"key": "example.org/starting", "effect": "NoSchedule"}


def gang(name: str, *, pool: str, gpus: int, copies: int, tolerates: str = "", group: str = "") -> Object:
    """An Indexed Job. tolerates: key of a taint. group: the PodGroup that its Pods name."""
    made = workload("Job", name, pool=pool, gpus=gpus, copies=copies)
    made["spec"]["completionMode"] = "Indexed"
    pod = made["spec"]["template"]["spec"]
    if tolerates:
        pod["tolerations"] = [{"key": tolerates, "operator": "Exists"}]
    if group:
        pod["schedulingGroup"] = {"podGroupName": group}
    return made


def placed(living: World, app: str) -> tuple[int, int]:
    """Pods that run, and all of them."""
    return len(living.running(app)), len(living.pods(app))


def told(living: World, settings: Path) -> dict[str, Object]:
    """What `gpuwatch analyze` says of gangs that are placed in part, by their names."""
    said = living.command("analyze", "--prometheus", living.prometheus, "--config", str(settings), "-o", "json")
    assert said.returncode == 0, said.stderr
    found = [item for item in json.loads(said.stdout)["findings"] if item["kind"] == "partial_gang"]
    return {item["subject"]["name"].rpartition("/")[2]: item for item in found}


def test_of_two_gangs_that_wait_for_each_other_one_is_released_and_the_other_runs(allowed: World) -> None:
    living = allowed
    living.fleet.idle |= {"wide", "narrow"}
    living.node("torn-0", "torn")
    living.api.create(gang("wide", pool="torn", gpus=4, copies=3))
    living.until(lambda: placed(living, "wide") == (2, 3))
    # While it starts, a Node takes the Pods of one of them alone.
    second = node("torn-1", "torn")
    living.api.create(marked({**second, "spec": {"taints": [STARTING]}}))
    living.fleet.history(time.time(), 600, "torn-1")
    living.api.create(gang("narrow", pool="torn", gpus=3, copies=4, tolerates=STARTING["key"]))
    living.until(lambda: placed(living, "narrow") == (2, 4))
    body = {"spec": {"taints": None}}
    done = living.api.answer("PATCH", "/api/v1/nodes/torn-1", body, content_type="application/merge-patch+json")
    assert done.ok, done.text

    scopes = [{"mode": "enforce", "pool": "torn", "action": "release_gang"}]
    # Nothing else may work in this cluster now, which would be a storm of idle GPUs.
    # Long enough that one lost scrape leaves 80 % known: while the cheaper one is UNKNOWN, the other one is released.
    idle = {"partial_gang_seconds": 70}
    settings = living.settings("torn", idle=idle, plan={"scopes": scopes, "idle_storm_ratio": 1.0})
    living.until(lambda: [item["verdict"] for item in told(living, settings).values()] == ["idle"] * 2, seconds=180)
    named = told(living, settings)
    for item in named.values():
        text = "Job/team-a/narrow and Job/team-a/wide wait for each other's GPUs, and the release of Job/team-a/narrow"
        assert text in item["summary"], item["summary"]
        assert "its scheduler's reason: resources" in item["summary"]
        assert any("Insufficient nvidia.com/gpu" in each["note"] for each in item["evidence"])
    with living.gpuwatch("tearing", settings) as replica:
        living.until(lambda: placed(living, "wide") == (3, 3), replica, seconds=120)
        living.fleet.idle.discard("wide")
        living.until(lambda: living.phase("release_gang", "narrow") == "InEffect", replica, seconds=60)
        (held,) = living.remediations("release_gang", "narrow")
        assert held["spec"]["proposal"]["waiter"].startswith("team-a/wide-")
        assert held["status"]["verified"]["waiter_started"] is True
        assert living.pods("narrow") == []
        assert living.remediations("release_gang", "wide") == []
        living.until(lambda: told(living, settings) == {}, replica)
    job = living.api.get("/apis/batch/v1/namespaces/team-a/jobs/narrow")
    assert job["spec"]["suspend"] is True


def test_gangs_that_are_scheduled_as_gangs_are_never_named(allowed: World) -> None:
    """The same two wants, on Nodes of their own: one gang is placed as a whole, the other waits as a whole."""
    living = allowed
    if not living.api.answer("GET", GROUPS).ok:
        pytest.skip(f"this cluster serves no PodGroup ({API} with its feature gates)")
    for number in range(2):
        living.node(f"whole-{number}", "whole")
    for name in ("first", "then"):
        meta = {"name": name, "namespace": "team-a"}
        spec = {"schedulingPolicy": {"gang": {"minCount": 3}}}
        living.api.create({"apiVersion": API, "kind": "PodGroup", "metadata": meta, "spec": spec})
        living.fleet.idle.add(name)
        living.api.create(gang(name, pool="whole", gpus=4, copies=3, group=name))
        count = 3 if name == "first" else 0
        living.until(lambda: placed(living, name) == (count, 3))  # noqa: B023 - called here alone
    settings = living.settings("whole")
    time.sleep(30)  # longer than idle.partial_gang_seconds
    assert placed(living, "then") == (0, 3)
    assert told(living, settings) == {}
    living.fleet.idle -= {"first", "then"}  # no test that follows here may release them


def test_a_gang_whose_other_pods_a_quota_refuses_is_named(allowed: World) -> None:
    living = allowed
    quotas = "/api/v1/namespaces/team-a/resourcequotas"
    counted = "requests.nvidia.com/gpu"
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few", "namespace": "team-a"}}
    living.api.create({**quota, "spec": {"hard": {counted: "1000"}}})
    try:
        living.until(lambda: counted in (living.api.get(f"{quotas}/few").get("status") or {}).get("used", {}))
        used = int(living.api.get(f"{quotas}/few")["status"]["used"][counted])
        body = {"spec": {"hard": {counted: str(used + 8)}}}
        done = living.api.answer("PATCH", f"{quotas}/few", body, content_type="application/merge-patch+json")
        assert done.ok, done.text
        living.until(lambda: living.api.get(f"{quotas}/few")["status"]["hard"] == body["spec"]["hard"])
        for number in range(2):
            living.node(f"few-{number}", "few")
        living.fleet.idle.add("few")
        living.api.create(gang("few", pool="few", gpus=4, copies=3))
        living.until(lambda: placed(living, "few") == (2, 2))
        settings = living.settings("few")
        living.until(lambda: [item["verdict"] for item in told(living, settings).values()] == ["idle"], seconds=90)
        (item,) = told(living, settings).values()
        assert item["summary"].startswith("2 of the 3 Pods that it needs are placed; ")
        assert " (1 never created); " in item["summary"]
    finally:
        living.api.answer("DELETE", f"{quotas}/few")
        living.api.answer("DELETE", "/apis/batch/v1/namespaces/team-a/jobs/few?propagationPolicy=Background")
