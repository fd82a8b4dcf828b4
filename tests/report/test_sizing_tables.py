"""Right-sizing and the MIG plan in the terminal."""

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest
import yaml
from rich.cells import cell_len

from gpuwatch.facts.model.sizing import AbstentionKind
from gpuwatch.say.sizing_tables import mig_plan_tables, patch_yaml, recommend_tables, workload_detail
from gpuwatch.say.weekly_words import ABSTAINED
from report.terminal import shown
from report.weekly_example import HOSTILE, LONG, abstention, mig_plan, recommendation

WIDTHS = (80, 100, 160)


def squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_cut_off_and_no_line_is_too_long(width: int) -> None:
    many = [recommendation(f"Deployment/nlp/{LONG}"), recommendation("Job/vision/a", projected_saving_per_week=None)]
    stay = [abstention(kind, f"Job/vision/{kind}") for kind in AbstentionKind]
    for item in (
        recommend_tables(many, stay),
        workload_detail(recommendation()),
        workload_detail(abstention(AbstentionKind.YOUNG)),
        mig_plan_tables(mig_plan()),
    ):
        text = shown(item, width)
        assert max(cell_len(line) for line in text.splitlines()) <= width
        assert "…" not in text
    text = shown(recommend_tables(many, stay), width)
    assert squeezed("93–100 %") in squeezed(text)
    assert "737 USD" in text
    assert "SM activity" in text


def test_the_dearest_comes_first_and_unknown_prices_are_said_so() -> None:
    text = shown(
        recommend_tables(
            [
                recommendation(
                    "Job/a/hours", projected_saving_per_week=None, projected_saving_gpu_hours_per_week=900.0
                ),
                recommendation("Job/a/cheap", projected_saving_per_week=20.0),
                recommendation("Job/a/dear", projected_saving_per_week=500.0),
            ],
            [],
        )
    )
    assert [text.index(name) for name in ("a/dear", "a/cheap", "a/hours")] == sorted(
        text.index(name) for name in ("a/dear", "a/cheap", "a/hours")
    )
    assert "520 USD" in text
    assert "price unknown of 1" in text
    assert "unknown" in text.partition("a/hours")[2]


def test_savings_with_a_condition_are_counted_apart() -> None:
    sure = recommendation("Job/a/sure", projected_saving_per_week=500.0, projected_saving_gpu_hours_per_week=100.0)
    unsure = replace(
        recommendation("Job/a/unsure", projected_saving_per_week=200.0, projected_saving_gpu_hours_per_week=40.0),
        condition="Only if the image carries sm_120.",
    )
    text = shown(recommend_tables([sure, unsure], []))
    assert "1 change: 500 USD and 100.0 GPU-hours a week, projected" in text
    assert "1 more only on a condition: 200 USD and 40.0 GPU-hours a week, projected" in text
    assert "Only if the image carries sm_120." in shown(recommend_tables([sure, unsure], [], wide=False))
    assert "700 USD" not in text
    assert "condition" not in shown(recommend_tables([sure], []))
    alone = shown(recommend_tables([unsure], []))
    assert "0 changes: 0 USD and 0.0 GPU-hours a week, projected" in alone
    assert "1 more only on a condition: 200 USD" in alone


def test_abstentions_are_grouped_with_their_count_and_examples() -> None:
    text = shown(recommend_tables([], [abstention(AbstentionKind.YOUNG, f"Job/vision/run-{n}") for n in range(5)]))
    assert "Changes  none for 5 workloads" in text
    assert text.count(ABSTAINED[AbstentionKind.YOUNG][0]) == 1
    assert "vision/run-2" in text
    assert "vision/run-3" not in text
    assert "and 2 more" in text
    assert "no workload was profiled" in shown(recommend_tables([], []))


def test_a_long_list_is_cut_and_says_so() -> None:
    many = [recommendation(f"Job/a/run-{n}") for n in range(4)]
    assert "and 2 more: --rows 4" in shown(recommend_tables(many, [], rows=2))
    assert "more: --rows" not in shown(recommend_tables(many, [], rows=4))


def test_the_detail_shows_every_option_with_what_speaks_against_it() -> None:
    item = recommendation()
    text = shown(workload_detail(item))
    for option in item.options:
        assert option.target.name in text
        for veto in option.vetoes:
            assert veto.reason in text
    for said in ("advised", "runner-up", "as now", "needs 7.4 GiB", "likely 97 %", "86 % sure", "First: A Node pool"):
        assert said in text


def test_the_detail_of_an_abstention_says_what_would_resolve_it() -> None:
    item = abstention(AbstentionKind.MEMORY_ELASTIC, nearest=recommendation().chosen)
    text = shown(workload_detail(item))
    assert item.resolve in text
    assert "1g.10gb" in text
    assert "The change" not in text


def test_markup_in_names_is_text() -> None:
    item = recommendation(f"Deployment/nlp/[red]{HOSTILE}[/red]")
    assert squeezed(f"[red]{HOSTILE}[/red]") in squeezed(shown(workload_detail(item)))
    assert "[red]" in shown(recommend_tables([item], []))


@pytest.mark.parametrize("width", WIDTHS)
def test_the_change_is_yaml_that_can_be_copied(width: int) -> None:
    item = recommendation()
    text = shown(workload_detail(item), width)
    copied = "\n".join(line.rstrip() for line in text.partition("The change\n")[2].splitlines())
    assert yaml.safe_load(copied) == yaml.safe_load(patch_yaml(item.change))


def test_a_name_longer_than_the_line_is_folded_and_not_cut() -> None:
    text = shown(workload_detail(recommendation(f"Deployment/nlp/{LONG}")), 80)
    assert LONG in squeezed(text.partition("The change\n")[2])


def test_a_patch_names_its_object_and_takes_keys_away() -> None:
    read = yaml.safe_load(patch_yaml(recommendation().change))
    assert list(read) == ["apiVersion", "kind", "metadata", "spec"]
    assert read["metadata"] == {"name": "reranker", "namespace": "nlp"}
    limits = read["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"nvidia.com/gpu": None, "nvidia.com/mig-1g.10gb": 1}


def test_a_patch_keeps_its_own_metadata_but_not_another_name() -> None:
    change = replace(
        recommendation().change,
        patch={"metadata": {"name": "else", "annotations": {"a": "b"}}},
    )
    assert yaml.safe_load(patch_yaml(change))["metadata"] == {
        "name": "reranker",
        "namespace": "nlp",
        "annotations": {"a": "b"},
    }


@pytest.mark.parametrize("name", ["a\nb: c", "'", "yes", "1e3", HOSTILE, "null"])
def test_no_name_changes_the_structure(name: str) -> None:
    change = replace(recommendation().change, name=name, note=f"see\nspec: {name}", prerequisites=(name,))
    read: Mapping[str, object] = yaml.safe_load(patch_yaml(change))
    assert read["metadata"] == {"name": name, "namespace": "nlp"}
    assert list(read) == ["apiVersion", "kind", "metadata", "spec"]


def test_gpus_that_are_emptied_where_the_host_is_full_are_told_apart() -> None:
    text = shown(mig_plan_tables(replace(mig_plan(), freed_without_host=("GPU-empty",))))
    assert "Emptied" in text
    assert "their Nodes have no CPU or memory for a further Pod" in text


def test_the_mig_plan_says_how_many_gpus_in_which_order_and_with_which_files() -> None:
    plan = mig_plan()
    text = shown(mig_plan_tables(plan))
    assert text.lstrip().startswith("It frees ")
    assert "14 now → 5 after; no packing needs fewer than 4" in text
    assert "7 × 1g.10gb" in text
    assert "MIG off or unknown" in text
    assert text.index("gpu-node-04") < text.index("gpu-node-03")
    assert "vision/perception-train-0" in text
    assert "Move although they need no change (1): fraud/backtest-0" in text
    assert "Deployment/fraud/scorer needs 4g.40gb" in text
    assert yaml.safe_load(text.partition("Configuration for mig-parted\n")[2]) == plan.mig_parted


@pytest.mark.parametrize(
    ("freed", "gain", "says"),
    [
        (("GPU-a", "GPU-b"), 336.4, "It frees 2 GPUs, worth 336 USD a week: "),
        (("GPU-a",), None, "It frees 1 GPU: "),
        ((), None, "It frees no GPU: "),
    ],
)
def test_the_mig_plan_says_first_what_it_gains(freed: tuple[str, ...], gain: float | None, says: str) -> None:
    plan = replace(mig_plan(), freed=freed)
    text = shown(mig_plan_tables(plan, gain_per_week=gain, currency="USD"))
    assert text.lstrip().startswith(says)
    leave = {ref for change in plan.changes for ref in change.displaced} | {*plan.moved}
    assert f"{len(plan.changes)} GPUs are cut anew, and {len(leave)} Pods leave first." in text


def test_a_plan_without_changes_says_so() -> None:
    plan = replace(mig_plan(), changes=(), order=(), mig_parted={}, node_labels={}, unplaced=())
    text = shown(mig_plan_tables(plan))
    assert text.lstrip().startswith("Nothing to cut: the layouts of today need no more GPUs.")
    assert "mig-parted" not in text
