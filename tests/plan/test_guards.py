"""What becomes of a Remediation that the plan refuses follows from the guard."""

from __future__ import annotations

import ast
from pathlib import Path

import gpuwatch.act.plan
from gpuwatch.act.plan.guards import GUARDS, RefusalNature, nature_of
from gpuwatch.facts.model.decision import Refusal


def test_every_refusal_that_a_plan_gives_has_a_nature() -> None:
    named = {
        keyword.value.value
        for path in Path(gpuwatch.act.plan.__path__[0]).glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Refusal"
        for keyword in node.keywords
        if keyword.arg == "guard" and isinstance(keyword.value, ast.Constant)
    }
    assert {"once", "rate", "demand"} <= named
    natures = {name: nature_of(Refusal(guard=str(name), reason="")) for name in {*named, *GUARDS}}
    assert {name for name, nature in natures.items() if nature is RefusalNature.OBJECTION} == {"opted_out"}
    assert {natures[name] for name in ("once", "rate", "budget", "pool_nodes")} == {RefusalNature.SHARED}
