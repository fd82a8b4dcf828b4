"""What becomes of a Remediation that the plan refuses follows from the guard."""

from __future__ import annotations

from pathlib import Path

import gpuwatch.act
from gpuwatch.act.plan.brakes import BRAKES
from gpuwatch.act.plan.guards import Guard, RefusalNature


def test_every_refusal_is_made_by_a_guard_and_so_has_a_nature() -> None:
    files = Path(gpuwatch.act.__path__[0]).glob("**/*.py")
    assert [path.name for path in files if "Refusal(" in path.read_text()] == ["guards.py"]
    assert {each for each in Guard if each.nature is RefusalNature.OBJECTION} == {Guard.OPTED_OUT}
    shared = {Guard.ONCE, Guard.RATE, Guard.BUDGET, Guard.POOL_NODES}
    assert {each for each in Guard if each.nature is RefusalNature.SHARED} == shared
    assert all(each.nature is RefusalNature.TRANSIENT for each in BRAKES)


def test_what_an_action_that_has_begun_is_not_asked_again() -> None:
    assert {each for each in Guard if not each.each_step} == {Guard.WORTH_IT, Guard.ALREADY_TAINTED, Guard.RATE}
