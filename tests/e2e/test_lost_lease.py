"""Whoever leads loses the Lease in the midst of it: suspended while others go on, or cut off from the API server. What
was begun is finished once, and nobody writes who does not lead."""

import time

import pytest

from e2e.world import HOLD, LEASE, LEASE_SECONDS, NODE_REMEDIATIONS, REMEDIATIONS, Replica, World

pytestmark = [pytest.mark.slow, pytest.mark.e2e]


def enforced(living: World, name: str, pool: str, notice_period_seconds: int) -> World:
    scopes = [{"mode": "enforce", "pool": pool, "action": action} for action in ("taint_node", "evict_gang")]
    living.settings(name, plan={"scopes": scopes}, execute={"notice_period_seconds": notice_period_seconds})
    return living


def leader(living: World) -> str:
    """As the Lease says it."""
    return str(living.api.get(LEASE)["spec"].get("holderIdentity") or "")


def leads(replica: Replica) -> bool:
    return replica.metric("gpuwatch_leader") == 1.0


def moved_once(living: World, app: str, old: set[str], seen: set[str], pool: str) -> None:
    new = {item["metadata"]["uid"]: item["spec"]["nodeName"] for item in living.running(app)}
    assert set(new.values()) == {f"{pool}-1"}
    assert seen == old | set(new)  # nothing in between
    assert len(living.remediations("evict_gang", app)) == 1
    job = living.api.get(f"/apis/batch/v1/namespaces/team-a/jobs/{app}")
    assert not job["spec"]["suspend"]
    assert not [key for key in job["metadata"].get("annotations", {}) if key.startswith("gpuwatch.dev/")]


def test_a_leader_that_was_suspended_in_the_act_writes_nothing_when_it_wakes(allowed: World) -> None:
    """First between the notification and the act, then, the other one, between the release and the restoring."""
    living = enforced(allowed, "frozen", "frozen", notice_period_seconds=6)
    living.node("frozen-0", "frozen")
    old = living.started("sleeper", "Job", "frozen", gpus=4, copies=2)
    held = living.running("sleeper")[0]["metadata"]["name"]
    living.finalize(held, HOLD)
    seen: set[str] = set()

    def phase() -> str:
        seen.update(item["metadata"]["uid"] for item in living.pods("sleeper"))
        return living.phase("evict_gang", "sleeper")

    file = living.folder / "frozen.yaml"
    with living.gpuwatch("frozen-a", file) as first, living.gpuwatch("frozen-b", file) as second:
        assert leader(living).startswith("frozen-a")
        living.fleet.faults["frozen-0"] = {3}
        living.until(lambda: phase() == "Notified", first, second)
        first.freeze()
        # The second one takes over, and releases the gang.
        suspended = "/apis/batch/v1/namespaces/team-a/jobs/sleeper"
        living.until(
            lambda: phase() == "Acting" and living.api.get(suspended)["spec"]["suspend"] is True, second, seconds=240
        )
        living.until(lambda: living.pods("sleeper") == [], second)  # but for the one that a finalizer keeps
        second.freeze()
        assert phase() == "Acting"
        woken = time.time()
        first.thaw()
        # The Lease is the second one's still, and the first one learns so. (It may say so before it knows who leads:
        # the request that it was in may be lost when it wakes.)
        living.until(lambda: "leads no more" in first.said(), first)
        # It takes over when nobody renewed it for as long as it lasts, and finishes what both had begun.
        living.until(lambda: leader(living).startswith("frozen-a"), first)
        assert phase() == "Acting"
        living.finalize(held)
        living.until(lambda: phase() == "Succeeded", first, seconds=240)
        again = time.time()
        second.thaw()
        living.until(lambda: "leads no more" in second.said(), second)
        living.until(lambda: not leads(second) and leads(first), first, second)
        time.sleep(3)  # some rounds of either
        assert phase() == "Succeeded"
        if living.logged("who was suspended writes nothing before it leads again, and each write is by whoever leads"):
            writes = living.writes(woken, first.credential)
            assert writes[0].resource == "leases"
            assert {"jobs"} <= {asked.resource for asked in writes}
            assert living.writes(again, second.credential) == []
            assert living.disturbed(0, second.credential) != []
            assert living.out_of_turn() == []
    moved_once(living, "sleeper", old, seen, "frozen")
    living.fleet.faults.clear()


def test_without_an_api_server_for_longer_than_the_lease_nobody_leads_and_both_go_on(allowed: World) -> None:
    living = enforced(allowed, "apart", "apart", notice_period_seconds=6)
    if living.cluster.own is None:
        pytest.skip("the API server of a cluster that is somebody else's is not stopped")
    living.node("apart-0", "apart")
    old = living.started("waiter", "Job", "apart", gpus=4, copies=2)
    seen: set[str] = set()

    def phase() -> str:
        seen.update(item["metadata"]["uid"] for item in living.pods("waiter"))
        return living.phase("evict_gang", "waiter")

    file = living.folder / "apart.yaml"
    with living.gpuwatch("apart-a", file) as first, living.gpuwatch("apart-b", file) as second:
        living.fleet.faults["apart-0"] = {3}
        living.until(lambda: phase() == "Notified", first, second)
        with living.fleet.without_api():
            gone = time.time()
            with living.cluster.own.gone():
                for replica in (first, second):
                    living.until(
                        lambda: "the API server does not answer" in replica.asked("/readyz")[1],  # noqa: B023
                    )
                    assert not leads(replica)
                    assert replica.asked("/healthz")[0] == 200
                time.sleep(max(gone + 2 * LEASE_SECONDS - time.time(), 0))
            back = time.time()
            # It answers before it has read all custom resources anew.
            living.until(lambda: all(living.api.answer("GET", each).ok for each in (REMEDIATIONS, NODE_REMEDIATIONS)))
        living.until(lambda: leads(first) or leads(second), first, second)
        living.until(lambda: phase() == "Succeeded", first, second, seconds=240)
        living.until(lambda: first.asked("/readyz")[0] == second.asked("/readyz")[0] == 200, first, second)
        assert leads(first) != leads(second)
        if living.logged("each write is by whoever leads"):
            assert living.disturbed(back) != []
            assert living.out_of_turn() == []
    moved_once(living, "waiter", old, seen, "apart")
    living.fleet.faults.clear()
