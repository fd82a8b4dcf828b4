"""A Prometheus that is gone, late, empty, answers in part, or knows of half of the fleet, while there is work:
nothing is done by then, what stands stays, it is said what is wrong, and all of it is done once Prometheus is well."""

import time

import pytest

from e2e.faulty_prometheus import Fault, FaultyPrometheus, faulty
from e2e.live_fleet import GPUS_PER_NODE, gpu_uuid
from e2e.world import Replica, World

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

TIMEOUT_SECONDS = 1
LATE_SECONDS = TIMEOUT_SECONDS + 5 + 1
"""gpuwatch gives the server 5 s more to say that it gave up."""
ANNOUNCE_SECONDS = 24
"""Longer than a look counts as fresh (15 s): what is due after it is not decided on a look from before the fault."""

LOST = ("held-0", "sick-0", "nap-0")
"""Nodes of the half that is lost: all those on which something stands or is to be done."""


def settings(living: World, door: FaultyPrometheus, notice_period_seconds: int, **modes: str) -> None:
    """modes: pool → the action that is enforced there. A replica that watches the file takes it by itself."""
    scopes = [{"mode": "enforce", "pool": pool, "action": action} for pool, action in modes.items()]
    plan = {"scopes": scopes, "storm_cooldown_seconds": 2}
    prometheus = {"url": door.url, "timeout_seconds": TIMEOUT_SECONDS, "retries": 0}
    living.settings(
        "faults", prometheus=prometheus, plan=plan, execute={"notice_period_seconds": notice_period_seconds}
    )


def told(fault: Fault, replica: Replica, said: str) -> bool:
    """Does it tell what is wrong, by its probe, its metrics and its log? said: since the fault began."""
    ready, brake = replica.asked("/readyz"), replica.metric("gpuwatch_brake")
    match fault:
        case Fault.GONE:
            return ready[0] == 503 and "Connection refused" in ready[1] and "cycle failed" in said
        case Fault.LATE:
            return ready[0] == 503 and "timed out" in ready[1] and "timed out" in said
        case Fault.EMPTY:
            return brake == 1.0 and "brake: Telemetry shows no GPU" in said
        case Fault.PART:
            return brake == 1.0 and "brake: Telemetry answered only in part: store-3" in said
        case _:
            return "Telemetry does not show GPU-" in said


def test_nothing_is_done_on_what_prometheus_does_not_say(allowed: World) -> None:
    living = allowed
    for pool in ("held", "sick", "nap"):
        living.node(f"{pool}-0", pool)
    living.fleet.idle.add("naps")
    idle = living.started("naps", "Job", "nap", gpus=4, copies=2)
    living.started("holds", "Job", "held", gpus=8)
    living.started("stays", "Job", "sick", gpus=8)
    living.fleet.faults["held-0"] = {3}
    with faulty(living.prometheus, LATE_SECONDS) as door:
        door.lost = frozenset(
            value
            for name in LOST
            for value in (name, f"{name}:9400", *(gpu_uuid(name, index) for index in range(GPUS_PER_NODE)))
        )
        settings(living, door, 1, held="taint_node")
        with living.gpuwatch("faults", living.folder / "faults.yaml") as replica:
            living.until(lambda: living.phase("taint_node", "held-0") == "InEffect", replica)
            settings(living, door, ANNOUNCE_SECONDS, held="taint_node", sick="taint_node", nap="release_gang")

            def stands() -> tuple[str, str, str]:
                sick, naps = living.phase("taint_node", "sick-0"), living.phase("release_gang", "naps")
                return living.phase("taint_node", "held-0"), sick, naps

            living.until(lambda: living.notified("release_gang", "naps"), replica)
            door.turn(Fault.HALF)
            # A taint has no notice period, so this fault has to come while Prometheus is not well.
            living.fleet.faults["sick-0"] = {5}
            living.fleet.faults.pop("held-0")  # it is well again, which nobody is told from now on
            begun = time.time()
            braked = 0.0
            for fault in (Fault.HALF, Fault.PART, Fault.GONE, Fault.LATE, Fault.EMPTY):
                door.turn(fault)
                before = len(replica.said())
                # In the first of them the time comes that was notified.
                least = time.time() + (ANNOUNCE_SECONDS + 3 if fault is Fault.HALF else 6)
                living.until(
                    lambda: time.time() > least and told(fault, replica, replica.said()[before:]),  # noqa: B023
                    replica,
                    seconds=120,
                )
                # While half of the fleet is seen, a taint of an earlier test may go from a Node of that half.
                if fault is Fault.PART:
                    braked = time.time()
                assert stands() == ("InEffect", "", "Notified"), fault
                assert [taint["value"] for taint in living.taints("held-0")] == ["row_remap"], fault
                assert living.taints("sick-0") == [], fault
                assert {item["metadata"]["uid"] for item in living.running("naps")} == idle, fault
            if living.logged("nothing is written to anybody's objects while Prometheus is not well"):
                assert living.disturbed(begun, replica.credential, of=(*LOST, "naps", "holds", "stays")) == []
                assert living.disturbed(braked, replica.credential) == []
            door.turn(Fault.NONE)
            living.until(lambda: bool(living.taints("sick-0")), replica)
            living.until(lambda: living.pods("naps") == [], replica)
            living.until(lambda: living.taints("held-0") == [], replica)
            living.until(lambda: replica.asked("/readyz")[0] == 200, replica)
    living.fleet.faults.clear()
