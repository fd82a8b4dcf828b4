"""Since when a state that is on has been on."""

from pathlib import Path

import pytest

from gpuwatch.facts.model.telemetry import Signal, Statistic, WindowStat
from gpuwatch.sources.telemetry.changes import standing
from gpuwatch.sources.telemetry.discovery import discover
from gpuwatch.sources.telemetry.inventory import take_inventory
from gpuwatch.sources.telemetry.readings import read_stats
from telemetry.timeline import AT, EVERY, NOW, Timeline, gpu, uuid

HOUR = 3600
FAILED = ("DCGM_FI_DEV_ROW_REMAP_FAILURE", Signal.ROW_REMAP_FAILED_STATE)
ERRORS = ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", Signal.ECC_DBE_VOLATILE_TOTAL)
XID = ("DCGM_FI_DEV_XID_ERRORS", Signal.XID_CODE)


@pytest.mark.parametrize(
    ("metric", "values", "began"),
    [
        pytest.param(FAILED, lambda ago: float(ago < 5 * HOUR), (5 * HOUR - EVERY, 0.0), id="it began within the day"),
        pytest.param(FAILED, lambda ago: float(not 2 * HOUR <= ago < 3 * HOUR), (2 * HOUR - EVERY, 0.0), id="again"),
        pytest.param(FAILED, lambda ago: 1.0, (24 * HOUR + 300 - EVERY, None), id="older than the day"),
        pytest.param(FAILED, lambda ago: 0.0, None, id="it is off"),
        pytest.param(ERRORS, lambda ago: (ago < 9 * HOUR) + (ago < HOUR), (9 * HOUR - EVERY, 0.0), id="a count"),
        pytest.param(XID, lambda ago: 31.0 if ago >= HOUR else 79.0, (HOUR - EVERY, 31.0), id="another code"),
    ],
)
def test_it_began_with_the_newest_run_of_samples(
    metric: tuple[str, Signal], values: object, began: tuple[int, float | None] | None, tmp_path: Path
) -> None:
    timeline = Timeline().add("DCGM_FI_DEV_GPU_TEMP", gpu(1), 40)
    store = timeline.add(metric[0], gpu(1), values, ago=30 * HOUR).store(tmp_path)  # type: ignore[arg-type]
    schema, _ = discover(store, AT)
    inventory = take_inventory(store, AT, schema, HOUR)
    readings, _ = read_stats(store, (WindowStat(metric[1], Statistic.LAST),), AT, schema, inventory)
    found = [
        (each.device, each.signal, round(NOW - each.at.timestamp()), each.before)
        for each in standing(store, readings, AT, schema, inventory)
    ]
    assert found == ([] if began is None else [(uuid(1), metric[1], *began)])
