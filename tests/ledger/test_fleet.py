"""The ledger against the truth of a drawn fleet, minute by minute."""

from pathlib import Path

import pytest

from gpuwatch.facts.model.ledger import Row
from ledger.fleet import Told, compared, draw, ledger_of

NOT_TOLD = {Row.WAITED_FOR}
"""Whether a waiting Pod fits is not known yet, so these hours are in the unknown twin."""


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[Row, Told]:
    fleet = draw(2)
    ledger = ledger_of(fleet, tmp_path_factory.mktemp("fleet"))
    assert ledger.capacity_gpu_hours == pytest.approx(sum(fleet.truth.values()), abs=1e-6)
    return compared(fleet, ledger)


def test_each_row_of_the_script_has_its_hours(rows: dict[Row, Told]) -> None:
    """Within 2 % of the fleet's hours and 10 % of its own, with at most 5 % in the unknown twin (field.md 4.2)."""
    total = sum(told.true for told in rows.values())
    for row, told in rows.items():
        assert told.true >= 0.02 * total, row
        if row not in NOT_TOLD:
            assert abs(told.known - told.true) <= min(0.02 * total, 0.1 * told.true), row
            assert told.unknown <= 0.05 * told.true, row


def test_what_is_not_told_is_in_the_unknown_twin(rows: dict[Row, Told]) -> None:
    for row in NOT_TOLD:
        assert rows[row].known == 0
        assert rows[row].unknown == pytest.approx(rows[row].true, rel=0.1)


def test_the_rows_that_no_script_has_are_empty(rows: dict[Row, Told]) -> None:
    assert set(Row) - set(rows) == {Row.HUNG, Row.LOST, Row.SLOWED, Row.UNMEASURED}


def test_another_seed_is_another_fleet(tmp_path: Path) -> None:
    assert draw(1).truth != draw(2).truth
    assert draw(2).truth == draw(2).truth
