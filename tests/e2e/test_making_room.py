"""A Pod waits for a whole Node, and each Node has other Pods: a Job leaves one and comes back on the other."""

import pytest

from e2e.live_fleet import workload
from e2e.world import World

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

MAY_MOVE = "gpuwatch.dev/may-move"
NODES = "/api/v1/nodes"
JOB = "/apis/batch/v1/namespaces/team-a/jobs/lodger"


def test_a_pod_that_waits_is_placed_by_a_move_and_all_is_whole_afterwards(allowed: World) -> None:
    living = allowed

    def open_to(name: str, *, closed: bool) -> None:
        body = {"spec": {"unschedulable": closed or None}}
        done = living.api.answer("PATCH", f"{NODES}/{name}", body, content_type="application/merge-patch+json")
        assert done.ok, done.text

    living.node("lodge-0", "lodge")
    lodger = workload("Job", "lodger", pool="lodge", gpus=1)
    lodger["metadata"]["annotations"] = {MAY_MOVE: "true"}
    living.api.create(lodger)
    living.until(lambda: len(living.running("lodger")) == 1)
    open_to("lodge-0", closed=True)
    living.node("lodge-1", "lodge")
    living.api.create(workload("Job", "neighbour", pool="lodge", gpus=7))  # its owner allows no move
    living.until(lambda: len(living.running("neighbour")) == 1)
    open_to("lodge-0", closed=False)
    living.api.create(workload("Deployment", "wide", pool="lodge", gpus=8))
    living.until(lambda: [item["status"]["phase"] for item in living.pods("wide")] == ["Pending"])
    before = {item["metadata"]["uid"] for item in living.running("lodger")}

    scopes = [{"mode": "enforce", "pool": "lodge", "action": "make_room"}]
    settings = living.settings("lodge", plan={"scopes": scopes})
    with living.gpuwatch("lodge-a", settings) as first:
        living.until(lambda: living.api.get(JOB)["spec"].get("suspend") is True, first, seconds=300)
        (asked,) = living.remediations("make_room", "lodger")
        proposal = asked["spec"]["proposal"]
        assert proposal["waiter"].startswith("team-a/wide-")
        assert "waits for 8 accelerators" in proposal["reason"]
        first.kill()  # between the suspension and the rest
    with living.gpuwatch("lodge-b", settings) as second:
        living.until(lambda: living.phase("make_room", "lodger") == "Succeeded", second)
        (done,) = living.remediations("make_room", "lodger")
        assert done["status"]["verified"] == {
            "old_pods_gone": True,
            "running_elsewhere": True,
            "waiter_started": True,
        }
    places = {
        app: [item["spec"]["nodeName"] for item in living.running(app)] for app in ("lodger", "neighbour", "wide")
    }
    assert places == {"lodger": ["lodge-1"], "neighbour": ["lodge-1"], "wide": ["lodge-0"]}
    assert before.isdisjoint(item["metadata"]["uid"] for item in living.running("lodger"))
    job = living.api.get(JOB)
    assert not job["spec"]["suspend"]
    assert [key for key in job["metadata"]["annotations"] if key.startswith("gpuwatch.dev/")] == [MAY_MOVE]
    assert len(living.remediations("make_room")) == 1
