"""Misfits in what people read."""

from rich.console import RenderableType

from detect.test_contention import ALONE_A, ALONE_B, SHARED, SISTERS, A, B, dram, snapshot
from gpuwatch.act.analysis import Policies, analyse, assess
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.facts.model.decision import Snapshot
from gpuwatch.say.explain import explain, explanation_tables
from gpuwatch.say.tables import analysis_tables
from report import terminal
from report.terminal import flat


def shown(item: RenderableType) -> str:
    return flat(terminal.shown(item, 400))


def state(**asked: float) -> Snapshot:
    return snapshot((SHARED, ALONE_A, ALONE_B), (A, B, *SISTERS), dram(**asked))


def test_contention_is_in_the_analysis_with_its_reason() -> None:
    text = shown(analysis_tables(analyse(PlanFacts(snapshot=state(a=0.5, b=0.7)), Policies()), "a test"))
    assert "In the wrong place (1)" in text
    assert "hbm contention" in text
    assert "they lose 33% of their speed" in text
    assert "In the wrong place" not in shown(
        analysis_tables(analyse(PlanFacts(snapshot=state(shared=0.5)), Policies()), "a test")
    )


def test_an_explanation_says_what_was_looked_at_and_is_well_or_not_known() -> None:
    calm = state(shared=0.5, a=0.1, b=0.1)
    plan = analyse(PlanFacts(snapshot=calm), Policies()).plan
    found = explain(calm, "device/gpu-0", assess(calm, Policies(), everything=True), plan)
    verdicts = {item.rule: str(item.verdict) for item in found.findings if item.rule.startswith("misfit.")}
    assert verdicts == {"misfit.hbm_contention": "healthy", "misfit.pcie_contention": "unknown"}
    assert "its workloads leave room on its memory's bandwidth" in shown(explanation_tables(found, calm))


def test_a_misfit_comes_after_what_is_broken_or_idle_and_before_what_is_not_known() -> None:
    crowded = analyse(PlanFacts(snapshot=state(a=0.5, b=0.7)), Policies())
    verdicts = [str(item.verdict) for item in crowded.findings]
    assert verdicts.index("misfit") < verdicts.index("unknown")
