"""What of the windows becomes a profile, and what is left out and why."""

from dataclasses import replace
from pathlib import Path

import pytest

from gpuwatch.facts.model.workload_profile import ProfileBook, Unfit, WorkloadKey
from gpuwatch.size.policy import ProfilePolicy
from gpuwatch.size.profile import joint
from gpuwatch.size.profile.joint import update_book
from parts.held_windows import AT_ONCE, GIB, START, STEP, UNKNOWN, alive, at, only, update, windows

DAY = 288
"""Windows."""


# Whose profile it is


def test_a_profile_is_of_the_owner_the_container_and_the_kind_of_device() -> None:
    book = update(
        None,
        windows(0.5, count=2, device="GPU-0", pod="team/a"),
        windows(0.5, count=2, device="GPU-1", pod="team/b"),
        windows(0.5, count=2, device="GPU-2/7", mig="1g.5gb", pod="team/c", container="side"),
        windows(0.5, count=2, device="GPU-3", pod="team/d", model="Unheard Of 9000"),
        windows(0.5, count=2, device="GPU-4", pod=""),
        owners={"team/a": "Job/team/train", "team/b": "Job/team/train", "team/c": "Job/team/train"},
    )
    assert set(book.profiles) == {
        WorkloadKey("Job/team/train", "main", "A100-SXM4-40GB"),
        WorkloadKey("Job/team/train", "side", "A100-SXM4-40GB", "1g.5gb"),
        WorkloadKey("Pod/team/d", "main", "Unheard Of 9000"),
    }


def test_a_pod_has_no_profile_of_its_own_once_its_owner_is_known() -> None:
    book = update(None, windows(0.5, count=12), policy=AT_ONCE)
    assert [key.workload for key in book.profiles] == ["Pod/team/pod"]
    book = update(book, windows(0.5, first=12, count=12), owners={"team/pod": "Job/team/train"}, policy=AT_ONCE)
    profile = only(book)
    assert profile.key.workload == "Job/team/train"
    assert (profile.run_count, profile.observed_seconds) == (1, 3600.0)


def test_profiles_that_these_windows_say_nothing_of_stay_the_same_objects() -> None:
    first = update(None, windows(0.5, count=12, pod="team/a"), windows(0.5, count=12, device="GPU-1", pod="team/b"))
    second = update(first, windows(0.5, first=12, count=12, pod="team/a"))
    for key, profile in first.profiles.items():
        assert (second.profiles[key] is profile) == ("b" in key.workload)


def test_a_profile_is_forgotten_when_it_was_not_seen_for_long_enough() -> None:
    book = update(None, windows(0.5, count=1, pod="team/a"))
    policy = ProfilePolicy(forget_days=2)
    kept = update(book, windows(0.5, first=2 * DAY, count=1, pod="team/b"), policy=policy)
    gone = update(book, windows(0.5, first=2 * DAY + 1, count=1, pod="team/b"), policy=policy)
    assert {key.workload for key in kept.profiles} == {"Pod/team/a", "Pod/team/b"}
    assert {key.workload for key in gone.profiles} == {"Pod/team/b"}


def test_without_windows_the_book_stays_and_without_either_there_is_none() -> None:
    book = ProfileBook(until=START, step_seconds=STEP)
    assert update(book) is book
    with pytest.raises(ValueError, match="neither windows nor a book"):
        update_book(None, (), {}, {}, (), AT_ONCE)


# What is left out


def test_start_up_is_left_out_of_the_cells_to_the_second() -> None:
    policy = ProfilePolicy(start_up_seconds=600)
    on_time = only(update(None, windows(0.5, count=12), pods=[alive(started=0)], policy=policy))
    later = only(update(None, windows(0.5, count=12), pods=[alive(started=1 / STEP)], policy=policy))
    assert on_time.left_out_seconds == {"start_up": 600.0}
    assert later.left_out_seconds == {"start_up": 900.0}
    assert (on_time.observed_seconds, on_time.expected_seconds) == (3000.0, 3600.0)


def test_a_start_that_nobody_saw_leaves_nothing_out() -> None:
    profile = only(update(None, windows(0.5, count=12, memory_used_bytes=GIB)))
    assert profile.left_out_seconds == {}
    assert (profile.runs[0].started, profile.runs[0].at_start_bytes) == (None, None)
    # Nor is it taken for one when the next update goes on.
    once = update(None, windows(0.5, count=1, memory_used_bytes=GIB))
    later = only(update(once, windows(0.5, first=1, count=1, memory_used_bytes=GIB)))
    assert later.left_out_seconds == {}
    assert later.runs[0].at_start_bytes is None


def test_a_pod_that_comes_while_the_fleet_is_watched_starts_then() -> None:
    beside = windows(0.5, count=12, device="GPU-1", pod="team/other")
    within = update(None, beside, windows(0.5, first=6, count=6))
    after = update(update(None, beside), windows(0.5, first=12, count=6))
    for book, start in ((within, at(6)), (after, at(12))):
        profile = next(item for key, item in book.profiles.items() if key.workload == "Pod/team/pod")
        assert profile.runs[0].started == start
        assert profile.left_out_seconds == {"start_up": 600.0}


def test_start_up_goes_on_in_the_next_update() -> None:
    book = update(None, windows(0.5, count=12, device="GPU-1", pod="team/other"), windows(0.5, first=11, count=1))
    book = update(book, windows(0.5, first=12, count=12))
    profile = next(item for key, item in book.profiles.items() if key.workload == "Pod/team/pod")
    assert profile.left_out_seconds == {"start_up": 600.0}


@pytest.mark.parametrize(
    ("begin", "end", "left_out"), [(2, 3, 1), (2.5, 3, 1), (2, 3 + 1 / STEP, 2), (2 - 1 / STEP, 3, 2), (40, 50, 0)]
)
def test_a_window_that_an_unfit_stretch_reaches_into_is_left_out(begin: float, end: float, left_out: int) -> None:
    unfit = Unfit(device_uuid="GPU-0", start=at(begin), end=at(end), cause="throttled")
    book = update(None, windows(0.5, count=12), unfit=[unfit], policy=AT_ONCE)
    assert only(book).left_out_seconds.get("throttled", 0.0) == left_out * STEP
    assert only(book).observed_seconds == (12 - left_out) * STEP


def test_an_unfit_gpu_takes_all_its_instances_and_no_other_gpu() -> None:
    unfit = Unfit(device_uuid="GPU-0", start=at(0), end=at(12), cause="xid")
    book = update(
        None,
        windows(0.5, count=12, device="GPU-0/1", mig="1g.5gb", pod="team/a"),
        windows(0.5, count=12, device="GPU-0/2", mig="1g.5gb", pod="team/b"),
        windows(0.5, count=12, device="GPU-00", pod="team/c"),
        unfit=[unfit],
        policy=AT_ONCE,
    )
    found = {key.workload[-1]: dict(item.left_out_seconds) for key, item in book.profiles.items()}
    assert found == {"a": {"xid": 3600.0}, "b": {"xid": 3600.0}, "c": {}}


def test_a_degraded_gpu_that_is_throttled_too_is_lost() -> None:
    slow = Unfit(device_uuid="GPU-0", start=at(0), end=at(12), cause="throttled")
    book = update(None, windows(0.5, count=12), unfit=[slow, replace(slow, cause="xid")], policy=AT_ONCE)
    assert only(book).left_out_seconds == {"xid": 3600.0}


def test_what_pods_share_is_nobodys_measurement() -> None:
    both = [windows(0.5, count=12, pod=f"team/{name}", shared=True, memory_used_bytes=30 * GIB) for name in ("a", "b")]
    book = update(None, *both, policy=AT_ONCE)
    for profile in book.profiles.values():
        assert (profile.cells, profile.left_out_seconds) == ((), {"ambiguous": 3600.0})
        assert profile.runs[0].peak_bytes is None
        assert profile.coverage_ratio == 0.0
    # One GPU for one hour, however many hold it.
    held = [day for profile in book.profiles.values() for day in profile.days]
    assert sum(day.allocated_gpu_hours for day in held) == pytest.approx(1.0)
    assert sum(day.busy_gpu_hours for day in held) == pytest.approx(0.5)


def test_windows_without_activity_are_held_but_not_observed() -> None:
    busy = [0.5, UNKNOWN, UNKNOWN, 0.5]
    book = update(None, windows(busy, power_watts=80.0), policy=AT_ONCE)
    profile = only(book)
    assert (profile.observed_seconds, profile.expected_seconds) == (600.0, 1200.0)
    assert profile.left_out_seconds == {}
    (day,) = profile.days
    assert day.unknown_gpu_hours == pytest.approx(1 / 6)
    assert day.busy_gpu_hours == pytest.approx(1 / 12)


# The joint shape


def test_a_cell_is_known_by_what_was_measured_together() -> None:
    book = update(None, windows([0.9, 0.1, 0.9, 0.1], sm_active_ratio=[0.8, 0.05, 0.8, 0.05]), policy=AT_ONCE)
    found = sorted((cell.busy_ratio, cell.sm_active_ratio) for cell in only(book).cells)
    assert found == [(pytest.approx(0.1), pytest.approx(0.05)), (pytest.approx(0.9), pytest.approx(0.8))]


def test_a_signal_that_is_missing_is_none_and_apart() -> None:
    book = update(None, windows(0.5, count=4, sm_active_ratio=[0.2, UNKNOWN, 0.2, UNKNOWN]), policy=AT_ONCE)
    found = {cell.sm_active_ratio: cell for cell in only(book).cells}
    assert len(found) == 2
    assert all(cell.dram_active_ratio is None and cell.power_watts is None for cell in found.values())
    assert None in found


def test_weights_halve_in_a_half_life() -> None:
    policy = ProfilePolicy(half_life_hours=1.0, start_up_seconds=0)
    book = update(None, windows([0.1] + [UNKNOWN] * 11 + [0.9], power_watts=80.0), policy=policy)
    weights = {round(cell.busy_ratio, 1): cell.weight_seconds for cell in only(book).cells}
    assert weights == {0.1: pytest.approx(STEP / 2), 0.9: pytest.approx(STEP)}


def test_the_grid_gets_coarser_and_keeps_the_means(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = [index / 200 for index in range(200)]
    fine = only(update(None, windows(busy), policy=AT_ONCE))
    monkeypatch.setattr(joint, "MAX_CELLS", 8)
    coarse = only(update(None, windows(busy), policy=AT_ONCE))
    assert (fine.resolution, len(fine.cells)) == (32, 32)
    assert (coarse.resolution, len(coarse.cells)) == (8, 8)
    for profile in (fine, coarse):
        total = sum(cell.weight_seconds for cell in profile.cells)
        mean = sum(cell.weight_seconds * cell.busy_ratio for cell in profile.cells) / total
        weights = [2 ** (-(199 - index) * STEP / (72 * 3600)) for index in range(200)]
        assert mean == pytest.approx(
            sum(w * value for w, value in zip(weights, busy, strict=True)) / sum(weights), rel=1e-12
        )


def test_boards_power_is_no_instances() -> None:
    book = update(None, windows(0.5, count=2, device="GPU-0/1", mig="1g.5gb", power_watts=300.0), policy=AT_ONCE)
    assert [cell.power_watts for cell in only(book).cells] == [None]
    assert book.power == {}


def test_traffic_is_that_of_both_directions() -> None:
    book = update(
        None,
        windows(0.5, count=2, pcie_tx_bytes_per_second=1e9, pcie_rx_bytes_per_second=2e9),
        policy=AT_ONCE,
    )
    assert [cell.pcie_bytes_per_second for cell in only(book).cells] == [pytest.approx(3e9)]


@pytest.mark.parametrize(("coarse", "is_coarse"), [(1, False), (2, True)])
def test_activity_that_is_too_often_utilisation_is_called_so(coarse: int, *, is_coarse: bool) -> None:
    policy = ProfilePolicy(half_life_hours=1e9, start_up_seconds=0)
    engine = [0.5] * (11 - coarse) + [UNKNOWN] * coarse
    book = update(None, windows(0.5, count=11, fine=False, engine_active_ratio=engine), policy=policy)
    assert only(book).coarse_busy is is_coarse
    # What was coarse does not become fine by one more hour.
    book = update(book, windows(0.5, first=11, count=1), policy=policy)
    assert only(book).coarse_busy is is_coarse


# Runs


def test_memory_is_told_by_run() -> None:
    used = [1 * GIB, 2 * GIB, 8 * GIB, 9 * GIB, 12 * GIB, 3 * GIB]
    book = update(
        None,
        windows(0.5, count=6, memory_used_bytes=used, memory_free_bytes=[40 * GIB - each for each in used]),
        pods=[alive(started=0)],
    )
    (run,) = only(book).runs
    assert (run.peak_bytes, run.capacity_bytes) == (12 * GIB, 40 * GIB)
    # Ten minutes of start-up and the ten after it.
    assert run.at_start_bytes == 9 * GIB
    assert (run.first_seen, run.last_seen, run.device_seconds) == (at(0), at(6), 1800.0)


def test_the_video_engines_peaks_are_told_by_run_unless_the_device_is_shared() -> None:
    used: dict[str, list[float]] = {"decoder_util_ratio": [0.0, 0.3, 0.1], "encoder_util_ratio": [0.0, 0.0, 0.0]}
    (run,) = only(update(None, windows(0.5, count=3, **used))).runs
    assert (run.decoder_peak_ratio, run.encoder_peak_ratio) == (0.3, 0.0)
    (run,) = only(update(None, windows(0.5, count=3, shared=True, **used))).runs
    assert (run.decoder_peak_ratio, run.encoder_peak_ratio) == (None, None)
    (run,) = only(update(None, windows(0.5, count=3))).runs
    assert (run.decoder_peak_ratio, run.encoder_peak_ratio) == (None, None)


def test_capacity_is_unknown_where_free_memory_is() -> None:
    (run,) = only(update(None, windows(0.5, count=6, memory_used_bytes=GIB))).runs
    assert run.capacity_bytes is None


def test_a_pod_made_anew_under_the_same_name_is_another_run() -> None:
    week = windows(0.5, count=7 * DAY, memory_used_bytes=[10 * GIB] * 6 * DAY + [4 * GIB] * DAY)
    profile = only(update(None, week, pods=[alive(started=6 * DAY)]))
    assert profile.run_count == 2
    assert [(run.started, run.peak_bytes) for run in profile.runs] == [(None, 10 * GIB), (at(6 * DAY), 4 * GIB)]
    # What ran before it started is not its start-up.
    assert profile.left_out_seconds == {"start_up": 600.0}
    pieces = update(None, windows(0.5, count=6), pods=[alive(started=-10)])
    pieces = update(pieces, windows(0.5, first=6, count=6), pods=[alive(started=6)])
    assert [run.started for run in only(pieces).runs] == [at(-10), at(6)]


def test_runs_that_go_on_are_counted_once_however_many_they_are() -> None:
    book: ProfileBook | None = None
    for hour in range(3):
        replicas = [
            windows(0.5, first=12 * hour, count=12, device=f"GPU-{number}", pod=f"team/{number:02}")
            for number in range(30)
        ]
        book = update(book, *replicas, owners={each.pod: "Deployment/team/web" for each in replicas})
    assert book is not None
    assert (only(book).run_count, len(only(book).runs)) == (30, 30)
    assert only(book).pods == pytest.approx(30.0)
    assert only(book).left_out_seconds == {}


def test_of_runs_that_are_over_the_newest_are_kept() -> None:
    jobs = [windows(0.5, first=24 * number, count=12, pod=f"team/{number:02}") for number in range(25)]
    book = update(None, *jobs, owners={each.pod: "CronJob/team/night" for each in jobs})
    profile = only(book)
    assert profile.run_count == 25
    assert [run.pod for run in profile.runs] == [f"team/{number:02}" for number in range(5, 25)]


def test_devices_and_pods_are_counted_while_they_are_there_together() -> None:
    held = [
        windows(0.5, count=12, device="GPU-0", pod="team/a"),
        windows(0.5, count=12, device="GPU-1", pod="team/a"),
        windows(0.5, first=6, count=6, device="GPU-2", pod="team/b"),
    ]
    policy = ProfilePolicy(half_life_hours=1e9)
    profile = only(update(None, *held, owners={"team/a": "Job/team/j", "team/b": "Job/team/j"}, policy=policy))
    assert profile.gpus_per_pod == 2
    assert profile.pods == pytest.approx(1.5)


def test_devices_per_pod_are_those_of_the_newest_pod() -> None:
    eight = [windows(0.5, count=12, device=f"GPU-{number}", pod="team/a") for number in range(8)]
    four = [windows(0.5, first=12, count=12, device=f"GPU-{number}", pod="team/b") for number in range(4)]
    owners = {"team/a": "Job/team/j", "team/b": "Job/team/j"}
    assert only(update(None, *eight, *four, owners=owners)).gpus_per_pod == 4
    assert only(update(update(None, *eight, owners=owners), *four, owners=owners)).gpus_per_pod == 4


def test_what_a_pod_asks_of_its_host_is_remembered() -> None:
    book = update(None, windows(0.5, count=12), pods=[alive(cpu_cores=8.0, memory_bytes=64 * GIB)])
    book = update(book, windows(0.5, first=12, count=12))
    assert (only(book).cpu_cores, only(book).host_memory_bytes) == (8.0, 64 * GIB)
    assert only(update(None, windows(0.5, count=12))).cpu_cores is None


# Hours and days


def test_an_instance_counts_with_its_share_of_its_gpu() -> None:
    book = update(None, windows(0.5, count=12, device="GPU-0/1", mig="3g.20gb"))
    (day,) = only(book).days
    assert day.allocated_gpu_hours == pytest.approx(0.5)
    assert day.busy_gpu_hours == pytest.approx(0.25)


def test_a_window_in_which_the_holder_changed_is_one_window() -> None:
    book = update(None, windows(0.5, count=6, pod="team/a"), windows(0.5, first=5, count=7, pod="other/b"))
    assert sum(day.allocated_gpu_hours for item in book.profiles.values() for day in item.days) == pytest.approx(1.0)


def test_days_are_kept_for_as_long_as_the_policy_says() -> None:
    policy = ProfilePolicy(forget_days=1)
    book = update(None, windows(0.5, count=12), policy=policy)
    later = update(book, windows(0.5, first=DAY, count=12), policy=policy)
    assert len(only(later).days) == 2


# Power


def test_the_envelope_of_boards_is_what_they_drew_at_rest_and_at_most() -> None:
    rest = windows(0.0, count=20, device="GPU-0", pod="", power_watts=62.0)
    work = [windows(0.9, count=100, device=f"GPU-{number}", power_watts=351.0) for number in (1, 2)]
    found = update(None, rest, *work).envelopes["A100-SXM4-40GB"]
    assert (found.floor_watts, found.ceiling_watts, found.devices) == (62.5, 352.5, 3)


def test_an_envelope_needs_an_hour_of_boards() -> None:
    policy = ProfilePolicy(half_life_hours=1e9)
    short = update(None, windows(0.9, count=11, power_watts=351.0), policy=policy)
    long = update(None, windows(0.9, count=13, power_watts=351.0), policy=policy)
    assert (short.envelopes, list(long.envelopes)) == ({}, ["A100-SXM4-40GB"])
    # No window without work: the floor is unknown, and not 0.
    assert long.envelopes["A100-SXM4-40GB"].floor_watts is None


def test_a_throttled_board_does_not_tell_what_boards_draw() -> None:
    slow = Unfit(device_uuid="GPU-0", start=at(0), end=at(24), cause="throttled")
    assert update(None, windows(0.9, count=24, power_watts=351.0), unfit=[slow]).power == {}


DOCS = (Path(__file__).parents[2] / "docs" / "sizing.md").read_text()


def test_the_example_of_the_documentation() -> None:
    busy = [0.9] * 2 + [0.8] * 6 + [0.2] * 2 + [UNKNOWN] + [0.8]
    sm = [0.5] * 2 + [0.4] * 6 + [0.1] * 2 + [UNKNOWN] + [0.4]
    slow = Unfit(device_uuid="GPU-0", start=at(11), end=at(12), cause="throttled")
    profile = only(update(None, windows(busy, sm_active_ratio=sm), pods=[alive(started=0)], unfit=[slow]))
    (day,) = profile.days
    idle, work = sorted(profile.cells, key=lambda cell: cell.busy_ratio)
    said = [
        f"| 2 | busy 0.9 | {profile.left_out_seconds['start_up']:.0f} s left out: start_up |",
        f"| 6 | busy {work.busy_ratio:.1f}, SM {work.sm_active_ratio:.1f} | cell of {work.weight_seconds:.0f} s |",
        f"| 2 | busy {idle.busy_ratio:.1f}, SM {idle.sm_active_ratio:.1f} | cell of {idle.weight_seconds:.0f} s |",
        f"| 1 | nothing | {day.unknown_gpu_hours * 3600:.0f} s held, unknown |",
        f"| 1 | busy 0.8, throttled | {profile.left_out_seconds['throttled']:.0f} s left out: throttled |",
        f"counts {day.allocated_gpu_hours:.2f} GPU-hours allocated, {day.busy_gpu_hours:.2f} busy and "
        f"{day.unknown_gpu_hours:.2f} unknown; coverage is {profile.coverage_ratio:.2f}.",
    ]
    assert [line for line in said if line not in DOCS] == []


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
    held = [day for profile in book.profiles.values() for day in profile.days]
    assert sum(day.allocated_gpu_hours for day in held) == pytest.approx(1.0)
    assert book.power == {}


def test_a_gpu_that_is_cut_up_later_counts_until_then() -> None:
    board = windows(0.0, count=12, pod="")
    slice_ = windows(0.5, count=6, first=6, device="GPU-0/1", mig="3g.20gb")
    book = update(None, board, slice_, policy=AT_ONCE)
    assert [day.allocated_gpu_hours for day in only(book).days] == [pytest.approx(0.25)]


def test_a_silent_window_is_not_held_where_somebody_else_was_seen() -> None:
    """A holder's windows begin one before it came; there the device was seen with nobody."""
    idle, held = windows(0.0, count=6, pod=""), windows([UNKNOWN, *[0.5] * 6], first=5)
    book = update(None, idle, held, pods=[alive(started=2)], policy=AT_ONCE)
    assert only(book).expected_seconds == 6 * STEP
    assert sum(day.unknown_gpu_hours for day in only(book).days) == 0
