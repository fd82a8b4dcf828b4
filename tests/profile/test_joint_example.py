"""The worked example of docs/sizing.md is what the code makes of it."""

from pathlib import Path

from gpuwatch.facts.model.workload_profile import Unfit
from parts.held_windows import UNKNOWN, alive, at, only, update, windows

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
