"""Planted cases of slice advice, right and wrong ones, on seeds that nothing was chosen by."""

import pytest
from click.testing import CliRunner

from lab.evaluation.sizing import main
from lab.evaluation.sizing_planted import Planted, judge_planted, planted


@pytest.mark.parametrize("seed", [1101, 1102])
def test_no_slice_is_advised_that_frees_nothing_or_cannot_decode(seed: int) -> None:
    found = judge_planted(planted(200, seed))
    assert (found.wrong, found.overstated, found.missed) == (0, 0, 0)
    assert 50 < found.advised < 200
    assert found.by_gpu_alone > 50


def test_the_command_prints_them() -> None:
    answer = CliRunner().invoke(main, ["--planted", "20"])
    assert answer.exit_code == 0, answer.output
    assert "Planted cases" in answer.output


def test_what_is_right_is_counted_from_the_node_alone() -> None:
    case = Planted(gpus=8, node_cores=96.0, node_gib=1000.0, pod_cores=24.0, pod_gib=4.0, decodes=False)
    assert (case.host_pods, case.frees, case.freed_ratio) == (4, False, 0.0)
    case = Planted(gpus=8, node_cores=96.0, node_gib=1000.0, pod_cores=6.0, pod_gib=4.0, decodes=False)
    assert (case.host_pods, case.frees, case.freed_ratio) == (16, True, 0.5)
