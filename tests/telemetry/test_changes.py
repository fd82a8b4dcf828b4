"""State changes: the semantics of XIDs as in reference rules for PromQL, and what is no change at all."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpuwatch.facts.model.telemetry import Gap, GapKind, Signal, StateChange
from gpuwatch.sources.telemetry.changes import state_changes
from gpuwatch.sources.telemetry.discovery import discover
from gpuwatch.sources.telemetry.inventory import take_inventory
from gpuwatch.sources.telemetry.samples import SampleStore
from telemetry.timeline import AT, EVERY, NOW, Timeline, Witness, gpu, held, uuid

XID, TEMPERATURE = "DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_GPU_TEMP"
A = uuid(1)
WINDOW = 1800

Told = list[tuple[str, int, float | None, float]]
"""Device, seconds before NOW, before, after."""


def ask(store: SampleStore, signal: Signal = Signal.XID_CODE) -> tuple[tuple[StateChange, ...], tuple[Gap, ...]]:
    schema, _ = discover(store, AT)
    return state_changes(store, [signal], AT, WINDOW, schema, take_inventory(store, AT, schema, 3600))


def told(timeline: Timeline, folder: Path, signal: Signal = Signal.XID_CODE) -> Told:
    changes, gaps = ask(timeline.store(folder), signal)
    assert gaps == ()
    assert {change.signal for change in changes} <= {signal}
    return [(each.device, round(NOW - each.at.timestamp()), each.before, each.after) for each in changes]


def xid(value: float | Callable[[float], float], *, ago: float = 3600) -> Timeline:
    return Timeline().add(TEMPERATURE, gpu(1), 40).add(XID, gpu(1), value, ago=ago)


def test_a_steady_code_is_no_change(tmp_path: Path) -> None:
    assert told(xid(79), tmp_path) == []


def test_13_to_79_is_one_change_to_79_not_66_errors(tmp_path: Path) -> None:
    assert told(xid(lambda ago: 13 if ago >= 600 else 79), tmp_path) == [(A, 600 - EVERY, 13, 79)]


def test_79_to_13_is_one_change_to_13(tmp_path: Path) -> None:
    assert told(xid(lambda ago: 79 if ago >= 600 else 13), tmp_path) == [(A, 600 - EVERY, 79, 13)]


def test_a_first_appearance_has_no_before(tmp_path: Path) -> None:
    assert told(xid(79, ago=600), tmp_path) == [(A, 600 - EVERY, None, 79)]


def test_a_first_appearance_of_zero_is_the_state_before_anything_happened(tmp_path: Path) -> None:
    assert told(xid(0, ago=600), tmp_path) == []


def test_from_zero_and_back_to_zero(tmp_path: Path) -> None:
    timeline = xid(lambda ago: 31 if 300 <= ago < 900 else 0)
    assert told(timeline, tmp_path) == [(A, 900 - EVERY, 0, 31), (A, 300 - EVERY, 31, 0)]


def test_several_changes_are_in_order(tmp_path: Path) -> None:
    timeline = xid(lambda ago: 13 if ago >= 1200 else 43 if ago >= 600 else 79)
    assert told(timeline, tmp_path) == [(A, 1200 - EVERY, 13, 43), (A, 600 - EVERY, 43, 79)]


@pytest.mark.parametrize(("first_new", "expected"), [(WINDOW, []), (WINDOW - EVERY, [(A, WINDOW - EVERY, 13.0, 79.0)])])
def test_both_sides_of_the_windows_edge(tmp_path: Path, first_new: int, expected: Told) -> None:
    # The window is open on the left: a sample exactly `window` ago is outside of it.
    assert told(xid(lambda ago: 79 if ago <= first_new else 13), tmp_path) == expected


def test_a_change_behind_a_hole_is_found(tmp_path: Path) -> None:
    timeline = Timeline().add(TEMPERATURE, gpu(1), 40)
    timeline.add(XID, gpu(1), 13, ago=3600, until=2700).add(XID, gpu(1), 79, ago=900)
    assert told(timeline, tmp_path) == [(A, 900 - EVERY, 13, 79)]


def test_the_same_code_behind_a_hole_is_no_change(tmp_path: Path) -> None:
    timeline = Timeline().add(TEMPERATURE, gpu(1), 40)
    timeline.add(XID, gpu(1), 79, ago=3600, until=2700).add(XID, gpu(1), 79, ago=900)
    assert told(timeline, tmp_path) == []


def test_a_new_pod_changes_nothing(tmp_path: Path) -> None:
    timeline = Timeline().add(XID, gpu(1) | held("a"), 79, until=900, ends=True).add(XID, gpu(1) | held("b"), 79, 900)
    assert told(timeline, tmp_path) == []


def test_labels_that_follow_the_code_hide_no_change(tmp_path: Path) -> None:
    # XID rows carry err_code and err_msg: each code is a series of its own, none of which ever changes.
    timeline = Timeline().add(TEMPERATURE, gpu(1), 40)
    timeline.add(XID, gpu(1, err_code="13", err_msg="Graphics Exception"), 13, until=900, ends=True)
    timeline.add(XID, gpu(1, err_code="79", err_msg="fallen off the bus"), 79, ago=900)
    assert told(timeline, tmp_path) == [(A, 900 - EVERY, 13, 79)]


def test_mig_rows_are_one_gpu(tmp_path: Path) -> None:
    timeline = Timeline()
    for instance in ("7", "8"):
        timeline.add(XID, gpu(1, GPU_I_ID=instance), lambda ago: 94 if ago < 600 else 0)
    assert told(timeline, tmp_path) == [(A, 600 - EVERY, 0, 94)]


def test_both_vocabularies_are_asked(tmp_path: Path) -> None:
    timeline = Timeline().add(XID, gpu(1), lambda ago: 79 if ago < 600 else 0)
    timeline.add("DCGM_FI_DEV_XID_ERROR", gpu(2), lambda ago: 48 if ago < 300 else 0)
    timeline.add(TEMPERATURE, gpu(1), 40).add("DCGM_FI_DEV_GPU_TEMP_CELSIUS", gpu(2), 40)
    assert told(timeline, tmp_path) == [(A, 600 - EVERY, 0, 79), (uuid(2), 300 - EVERY, 0, 48)]


def test_recovery_action(tmp_path: Path) -> None:
    timeline = Timeline().add(TEMPERATURE, gpu(1), 40)
    timeline.add("DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION", gpu(1), lambda ago: 2 if ago < 600 else 0)
    assert told(timeline, tmp_path, Signal.RECOVERY_ACTION_CODE) == [(A, 600 - EVERY, 0, 2)]


def test_raw_samples_are_read_of_suspects_alone(tmp_path: Path) -> None:
    timeline = Timeline()
    for number in range(1, 9):
        timeline.add(XID, gpu(number), lambda ago, number=number: 79 if number == 5 and ago < 600 else 31)
    witness = Witness(timeline.store(tmp_path))
    schema, _ = discover(witness, AT)
    inventory = take_inventory(witness, AT, schema, 3600)
    witness.raw_selectors.clear()
    changes, _ = state_changes(witness, [Signal.XID_CODE], AT, WINDOW, schema, inventory)
    assert [change.device for change in changes] == [uuid(5)]
    assert [matcher.value for each in witness.raw_selectors for matcher in each.matchers] == [uuid(5)]


def test_blank_values_are_no_change(tmp_path: Path) -> None:
    timeline = xid(lambda ago: 2.0**63 if 300 <= ago < 900 else 13)
    changes, gaps = ask(timeline.store(tmp_path))
    assert changes == ()
    assert [gap.kind for gap in gaps] == [GapKind.IMPLAUSIBLE]


def test_a_refused_question_is_a_gap(tmp_path: Path) -> None:
    witness = Witness(xid(79).store(tmp_path), lambda e: e.selector.metric == XID and e.offset_seconds > 0)
    changes, gaps = ask(witness)
    assert changes == ()
    assert [(gap.kind, gap.what) for gap in gaps] == [(GapKind.QUERY_FAILED, f"changes of xid_code ({XID})")]


def test_no_xid_series_may_be_the_good_case(tmp_path: Path) -> None:
    changes, gaps = ask(Timeline().add(TEMPERATURE, gpu(1), 40).store(tmp_path))
    assert changes == ()
    assert [(gap.kind, gap.what) for gap in gaps] == [(GapKind.SIGNAL_MISSING, "signal xid_code")]
    assert "no such series before the first XID" in gaps[0].detail


def test_times_are_in_utc(tmp_path: Path) -> None:
    changes, _ = ask(xid(79, ago=600).store(tmp_path))
    assert [change.at for change in changes] == [datetime.fromtimestamp(NOW - 600 + EVERY, UTC)]


ENERGY = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"


def energy(value: Callable[[float], float]) -> Timeline:
    """In millijoules, as the exporter counts."""
    return Timeline().add(TEMPERATURE, gpu(1), 40).add(ENERGY, gpu(1), value)


def test_a_counter_changes_only_where_it_begins_anew(tmp_path: Path) -> None:
    reset = energy(lambda ago: 9e9 - ago if ago >= 600 else 1e6 - ago)
    changes, _ = ask(reset.store(tmp_path), Signal.ENERGY_JOULES_TOTAL)
    [change] = changes
    assert (change.device, round(NOW - change.at.timestamp())) == (A, 600 - EVERY)
    assert change.before is not None
    assert change.after < change.before / 2


@pytest.mark.parametrize(
    "value",
    [
        lambda ago: 9e9 - ago,  # it grows
        lambda ago: 9e9 - ago - (5000 if round(ago / EVERY) % 2 else 0),  # a second exporter that is behind
    ],
)
def test_a_counter_that_goes_on_does_not(tmp_path: Path, value: Callable[[float], float]) -> None:
    changes, _ = ask(energy(value).store(tmp_path), Signal.ENERGY_JOULES_TOTAL)
    assert changes == ()
