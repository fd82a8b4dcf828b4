"""The evaluation of predicted speeds: reads what it should, judges as it says, and refuses what it cannot read."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from lab.evaluation.sizing import main
from lab.evaluation.sizing_models import judge_models
from lab.evaluation.sizing_quality import (
    Intervals,
    Points,
    coverage_of,
    decide,
    errors_of,
    margin_held_out,
    points_of,
    predict_points,
    published_baselines,
)
from lab.evaluation.sizing_rows import RowError, Throughput, read_measured, read_throughputs
from lab.evaluation.sizing_shapes import judge_shapes

HEADER = "model,batch,util_gpu_pct,util_mem_pct,fb_used_mib,power_w,speed_1g,speed_2g,speed_3g,speed_4g,speed_7g\n"
# Made up, in the shape of MISO's file: a light job, one that fills the card and does not fit into 1g, one between.
ROWS = """light,1,30,2,3000,60,0.90,0.95,0.99,0.99,1.0
light,2,40,5,3000,80,0.60,0.80,0.95,0.96,1.0
full,1,98,60,12000,250,,0.30,0.48,0.58,1.0
"""


def points(folder: Path, text: str = HEADER + ROWS, card: str = "A100-PCIE-40GB") -> Points:
    file = folder / "jobs.csv"
    file.write_text(text)
    return points_of(read_measured(file, card))


def test_points_are_all_slices_but_the_one_that_speeds_are_relative_to(tmp_path: Path) -> None:
    found = points(tmp_path)
    assert len(found.truth) == 11  # 4 + 4 + 3: an empty speed is a slice that it does not fit into
    assert "7g.40gb" not in found.slices
    assert found.slices[:4] == ("1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb")
    assert found.freed[:4] == pytest.approx([7 / 8, 6 / 8, 4 / 8, 4 / 8])


def test_power_is_held_against_the_ceiling_of_the_file_not_of_the_data_sheet(tmp_path: Path) -> None:
    full = predict_points(points(tmp_path)).likely[-1]
    assert predict_points(points(tmp_path, card="A100-SXM4-40GB")).likely[-1] == pytest.approx(full)


def test_other_cards_and_slices_by_their_names(tmp_path: Path) -> None:
    text = (
        "card,model,batch,util_gpu_pct,util_mem_pct,fb_used_mib,power_w,speed_1g.10gb,speed_1g.20gb,speed_7g\n"
        "NVIDIA H100 80GB HBM3,m,1,50,10,4000,300,0.6,0.7,1.0\n"
    )
    found = points(tmp_path, text)
    assert found.jobs[0].gpu.name == "H100-SXM5-80GB"
    assert found.slices == ("1g.10gb", "1g.20gb")
    a30 = points(tmp_path, HEADER.replace(",speed_3g", "").replace("speed_7g", "speed_x").replace(",speed_x", "")
                 + "m,1,50,10,4000,120,0.6,0.8,1.0\n", card="A30")  # fmt: skip
    assert a30.slices == ("1g.6gb", "2g.12gb")


def test_sm_activity_is_used_where_a_file_has_it(tmp_path: Path) -> None:
    text = HEADER.replace(",speed_1g", ",sm_active_pct,dram_active_pct,tensor_active_pct,speed_1g") + (
        "m,1,50,10,4000,300,5,2,1,0.9,0.95,1.0,1.0,1.0\n"
    )
    found = points(tmp_path, text)
    assert predict_points(found).tiers == ("sm",) * 4
    assert found.sm == pytest.approx(0.05)
    assert predict_points(found, power=False).tiers == ("engine",) * 4


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("model,batch\n", "line 1: the columns util_gpu_pct, util_mem_pct, fb_used_mib, power_w are missing"),
        (HEADER, "no rows"),
        (HEADER + "m,1,x,2,3000,60,,,,,1.0\n", "line 2: column 'util_gpu_pct' is 'x'; expected a number"),
        (HEADER + "m,1,50,2,3000,60,0.5,,,,0.9\n", "line 2: no slice has the speed 1.0"),
        (HEADER.replace("_7g", "_9g") + "m,1,50,2,3000,60,0.5,,,,1.0\n", "has no slice '9g'; it has 1g.5gb"),
        ("card," + HEADER + "T9,m,1,50,2,3000,60,0.5,,,,1.0\n", "'T9' is no GPU of the catalog"),
        ("card," + HEADER + "T4,m,1,50,2,3000,60,0.5,,,,1.0\n", "T4 cannot be cut into slices"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(RowError) as error:
        points(tmp_path, text)
    assert says in str(error.value)
    assert "jobs.csv" in str(error.value)


def test_errors_are_against_the_measured_speed(tmp_path: Path) -> None:
    found = points(tmp_path)
    exact = errors_of("exact", found.truth, found)
    assert (exact.mae, exact.worst_over_promise, exact.over_promised_ratio) == (0.0, 0.0, 0.0)
    shifted = errors_of("more", found.truth + np.where(np.arange(11) == 0, 0.11, 0.0), found)
    assert shifted.mae == pytest.approx(0.01)
    assert shifted.over_promised_ratio == pytest.approx(1 / 11)
    assert shifted.worst_model == "A100-PCIE-40GB light"


def test_baselines_are_what_they_say(tmp_path: Path) -> None:
    found = points(tmp_path)
    known = published_baselines(found)
    assert known["linear n/7"][:4] == pytest.approx([1 / 7, 2 / 7, 3 / 7, 4 / 7])
    assert known["Amdahl on GPU_UTIL"][0] == pytest.approx(1 / (0.7 + 0.3 * 7))
    assert known["fits if util ≤ slice"][:3] == pytest.approx([(1 / 7) / 0.3, (2 / 7) / 0.3, 1.0])


def test_an_interval_covers_what_lies_in_it(tmp_path: Path) -> None:
    found = points(tmp_path)
    wide = Intervals(low=found.truth - 0.1, likely=found.truth, high=found.truth + 0.1, tiers=("power",) * 11)
    assert coverage_of("wide", wide, found).inside_ratio == 1.0
    off = Intervals(low=found.truth + 0.01, likely=found.truth, high=found.truth + 0.1, tiers=("power",) * 11)
    assert coverage_of("off", off, found).above_low_ratio == 0.0
    assert coverage_of("off", off, found).worst_below_low == pytest.approx(0.01)


def test_decisions_take_the_smallest_slice_that_is_promised(tmp_path: Path) -> None:
    found = points(tmp_path)
    oracle = decide("oracle", found.truth, found, 0.9)
    assert (oracle.possible, oracle.downsized, oracle.broken, oracle.saving_found_ratio) == (2, 2, 0, 1.0)
    everything = decide("all", np.ones(11), found, 0.9)
    assert everything.broken == 2  # light/1 keeps 0.90 on 1g
    assert everything.worst_speed == 0.30
    assert everything.broken_jobs[0].endswith("light/2 on 1g.5gb: 0.60")
    nothing = decide("none", np.zeros(11), found, 0.9)
    assert (nothing.downsized, nothing.worst_speed, nothing.saving_found_ratio) == (0, None, 0.0)
    # A slice that memory_need does not allow is not taken: 3000 MiB, headroom and context into 4.75 of 5 GiB fit.
    assert decide("all", np.ones(11), found, 0.9, by_memory_need=True).downsized == 3


def test_the_margin_of_a_model_is_fitted_on_the_others_alone(tmp_path: Path) -> None:
    """The speeds of `full` decide about the margin of `light`, and not about its own."""
    found = points(tmp_path)
    models = np.array([found.jobs[index].model for index in found.job])
    ends = [
        margin_held_out(replace(found, truth=truth)).low
        for truth in (found.truth, np.where(models == "full", 0.0, found.truth))
    ]
    assert np.array_equal(ends[0][models == "full"], ends[1][models == "full"])
    assert not np.array_equal(ends[0][models == "light"], ends[1][models == "light"])


def test_throughputs_of_one_gpu_where_it_ran(tmp_path: Path) -> None:
    text = "gpu_type,job,scale_factor,steps_per_s\nv100,A,1,2.0\nv100,A,2,4.0\nk80,A,1,0.5\nk80,B,1,0.0\n"
    (tmp_path / "x_isolated.csv.gz").write_bytes(gzip.compress((text + "v100_unconsolidated,A,1,9\n").encode()))
    rows = read_throughputs(tmp_path)
    assert [(row.gpu_type, row.steps_per_second) for row in rows] == [("v100", 2.0), ("k80", 0.5)]
    with pytest.raises(RowError, match="no file is named"):
        read_throughputs(tmp_path / "nowhere")


def test_spans_between_models_are_held_against_measured_ratios() -> None:
    rows = [Throughput(gpu_type=kind, job=job, steps_per_second=steps)
            for kind, job, steps in (("v100", "a", 10.0), ("k80", "a", 2.0), ("v100", "b", 1.0), ("k80", "b", 1.5),
                                     ("tpu", "a", 1.0))]  # fmt: skip
    down, up = sorted(judge_models(rows), key=lambda pair: pair.measured_median)
    assert (down.now, down.target, down.jobs) == ("V100-SXM2-16GB", "K80 (one of two)", 2)
    assert (down.inside_ratio, down.above_ratio, down.below_ratio) == (0.5, 0.5, 0.0)  # b is faster on the K80
    assert (up.inside_ratio, up.above_ratio, up.below_ratio) == (0.5, 0.0, 0.5)
    assert up.low == pytest.approx(1.0)
    assert up.high == pytest.approx(125 / 4.37)


def test_amdahls_bound_breaks_no_decision_whatever_the_shape_of_the_kernels() -> None:
    half, bound, power = judge_shapes(300, seed=7, bursts=(0.5, 1.0))
    assert bound.broken == 0
    assert bound.downsized > 50
    assert bound.above_low_ratio > 0.98
    assert half.saving_found_ratio > bound.saving_found_ratio > 0.5
    assert half.above_low_ratio < bound.above_low_ratio
    assert power.name.startswith("power")


def test_the_command_prints_tables_and_json(tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text(HEADER + ROWS)
    (tmp_path / "isolated.csv").write_text("gpu_type,job,scale_factor,steps_per_s\nv100,A,1,2.0\nk80,A,1,0.5\n")
    shown = CliRunner().invoke(main, ["--miso", str(file), "--gavel", str(tmp_path)], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    assert "predict_speed, low" in shown.output
    assert "K80" in shown.output
    told = CliRunner().invoke(main, ["--miso", str(file), "--format", "json"])
    data = json.loads(told.output)
    assert (data["jobs"], data["points"], data["models"]) == (3, 11, [])
    low, high = (data["predicted"][end]["A100-PCIE-40GB light/1"]["3g.20gb"] for end in ("low", "high"))
    assert 0.8 < low <= high <= 1.0
    made_up = CliRunner().invoke(main, ["--shapes", "20", "--format", "json"])
    assert [one["jobs"] for one in json.loads(made_up.output)["shapes"]] == [20] * 4
    alone = CliRunner().invoke(main, ["--gavel", str(tmp_path), "--format", "json"])
    assert len(json.loads(alone.output)["models"]) == 2


def test_the_command_says_what_is_missing(tmp_path: Path) -> None:
    assert "nothing to evaluate" in CliRunner().invoke(main, []).output
    file = tmp_path / "jobs.csv"
    file.write_text("model\n")
    broken = CliRunner().invoke(main, ["--miso", str(file)])
    assert broken.exit_code == 1
    assert "columns batch" in broken.output
