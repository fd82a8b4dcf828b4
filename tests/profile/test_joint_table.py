"""Windows as a table: who held what, what counts of each device, and why a window may not be used."""

import pytest

from gpuwatch.facts.model.workload_profile import Unfit
from parts.held_windows import AT_ONCE, STEP, UNKNOWN, alive, at, only, update, windows

HOUR = 3600


def test_a_pod_has_its_devices_while_its_images_are_pulled() -> None:
    """Its containers started in window 5; that nobody else had it before is told by when it was made."""
    pod = alive(created=at(1), started=5.5)
    idle, held = windows(0.0, count=2, pod=""), windows(0.5, count=10, first=2)
    profile = only(update(None, idle, held, pods=[pod]))
    (run,) = profile.runs
    assert profile.run_count == 1
    assert (run.first_seen, run.last_seen, run.started) == (at(2), at(12), at(5.5))
    assert profile.left_out_seconds == {"start_up": 6 * STEP}  # windows 2 to 7; start-up ends in window 7


def test_a_pod_whose_containers_begin_between_two_updates_is_the_same_run() -> None:
    """Until they run, the Pod's own start is told, and an earlier one again after a restart."""
    book = update(
        None, windows(0.0, count=1, pod=""), windows(0.5, count=3, first=1), pods=[alive(created=at(1), started=1)]
    )
    book = update(book, windows(0.5, count=4, first=4), pods=[alive(created=at(1), started=4.5)])
    book = update(book, windows(0.5, count=4, first=8), pods=[alive(created=at(1), started=1)])
    profile = only(book)
    assert (profile.run_count, len(profile.runs)) == (1, 1)
    assert profile.runs[0].started == at(1)


@pytest.mark.parametrize(("made", "runs"), [(3.0, 2), (2.9, 1)])
def test_what_ended_before_the_pod_was_made_was_another_one(made: float, runs: int) -> None:
    book = update(None, windows(0.5, count=3), pods=[])
    book = update(book, windows(0.5, count=3, first=3), pods=[alive(created=at(made), started=made)])
    assert only(book).run_count == runs


def test_a_degraded_device_is_lost_to_everybody_who_shares_it() -> None:
    a, b = (windows(0.5, count=12, pod=pod, shared=True) for pod in ("team/a", "team/b"))
    book = update(None, a, b, unfit=[Unfit(device_uuid="GPU-0", start=at(0), end=at(6), cause="xid")], policy=AT_ONCE)
    (hour,) = book.usage
    assert hour.lost_gpu_hours == {"xid": pytest.approx(0.5)}
    for profile in book.profiles.values():
        assert profile.left_out_seconds == {"xid": 6 * STEP, "ambiguous": 6 * STEP}


def test_traffic_of_which_one_direction_is_unknown_is_unknown() -> None:
    held = windows(0.5, count=2, pcie_tx_bytes_per_second=1e9, pcie_rx_bytes_per_second=[2e9, UNKNOWN])
    cells = only(update(None, held, policy=AT_ONCE)).cells
    assert {cell.pcie_bytes_per_second for cell in cells} == {3e9, None}


def test_a_gpu_beside_its_instances_counts_once() -> None:
    board = windows(0.0, count=12, pod="", power_watts=100.0)
    slices = [
        windows(0.5, count=12, device=f"GPU-0/{number}", pod=f"team/{number}", mig="3g.20gb", power_watts=100.0)
        for number in (1, 2)
    ]
    book = update(None, board, *slices, policy=AT_ONCE)
    assert sum(hour.allocated_gpu_hours for hour in book.usage) == pytest.approx(1.0)
    assert {hour.namespace for hour in book.usage} == {"team"}
    assert book.power == {}


def test_a_gpu_that_is_cut_up_later_counts_until_then() -> None:
    board = windows(0.0, count=12, pod="")
    slice_ = windows(0.5, count=6, first=6, device="GPU-0/1", mig="3g.20gb")
    book = update(None, board, slice_, policy=AT_ONCE)
    hours = {hour.namespace: hour.allocated_gpu_hours for hour in book.usage}
    assert hours == {"": pytest.approx(0.5), "team": pytest.approx(0.25)}


def test_a_silent_window_is_not_held_where_somebody_else_was_seen() -> None:
    """A holder's windows begin one before it came; there the device was seen with nobody."""
    idle, held = windows(0.0, count=6, pod=""), windows([UNKNOWN, *[0.5] * 6], first=5)
    book = update(None, idle, held, pods=[alive(started=2)], policy=AT_ONCE)
    assert only(book).expected_seconds == 6 * STEP
    assert sum(hour.unknown_gpu_hours for hour in book.usage) == 0
