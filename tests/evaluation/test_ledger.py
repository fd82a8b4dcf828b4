"""How true the ledger is, on a fleet whose GPU-hours are known to the minute; and what counts as true."""

import numpy as np
import pytest
from click.testing import CliRunner

from gpuwatch.facts.model.ledger import Ledger, Row
from lab.evaluation.ledger import NOT_TOLD, RowTruth, compare, main, read_fleet, together
from lab.evaluation.ledger_fleet import LedgerFleet, ledger_fleet

pytestmark = pytest.mark.slow

SEED = 1


@pytest.fixture(scope="module")
def fleet() -> LedgerFleet:
    return ledger_fleet(SEED)


@pytest.fixture(scope="module")
def ledger(fleet: LedgerFleet) -> Ledger:
    return read_fleet(fleet)


@pytest.fixture(scope="module")
def rows(fleet: LedgerFleet, ledger: Ledger) -> dict[Row, RowTruth]:
    return {each.row: each for each in compare(fleet, ledger)}


def test_rows_add_up_to_the_capacity(fleet: LedgerFleet, ledger: Ledger, rows: dict[Row, RowTruth]) -> None:
    assert sum(entry.gpu_hours for entry in ledger.entries) == pytest.approx(ledger.capacity_gpu_hours)
    length = (ledger.end - ledger.start).total_seconds() / 3600
    assert sum(each.true for each in rows.values()) == pytest.approx(8 * len(fleet.machines) * length)
    assert sum(fleet.truth_gpus().values()) == pytest.approx(np.full(fleet.plan.steps, 8.0 * len(fleet.machines)))
    # A GPU whose Node was down when the ledger began counts from its first sample on.
    assert ledger.capacity_gpu_hours == pytest.approx(rows[Row.USEFUL].fleet_hours, rel=0.002)


@pytest.mark.parametrize("row", [row for row in Row if row not in NOT_TOLD | {Row.UNMEASURED}])
def test_a_row_is_near_the_truth(rows: dict[Row, RowTruth], row: Row) -> None:
    assert rows[row].true / rows[row].fleet_hours > 0.02, "the fleet has too little of it to tell"
    assert rows[row].holds, rows[row]


def test_the_same_seed_gives_the_same_fleet(fleet: LedgerFleet) -> None:
    again = ledger_fleet(SEED).truth_gpus()
    assert all((gpus == again[row]).all() for row, gpus in fleet.truth_gpus().items())


def test_bounds_are_of_the_fleet_of_the_row_and_of_what_is_unknown() -> None:
    assert RowTruth(Row.LOAD, 100.0, 109.0, 5.0, 1000.0).holds
    assert RowTruth(Row.LOAD, 100.0, 111.0, 0.0, 1000.0).holds is False  # 11 % of its own
    assert RowTruth(Row.LOAD, 300.0, 325.0, 0.0, 1000.0).holds is False  # 2.5 % of the fleet's
    assert RowTruth(Row.LOAD, 100.0, 100.0, 6.0, 1000.0).holds is False  # 6 % unknown
    assert RowTruth(Row.LOAD, 0.0, 1.0, 0.0, 1000.0).holds is False
    assert RowTruth(Row.HUNG, 100.0, 0.0, 100.0, 1000.0).holds is None


def test_fleets_add_up() -> None:
    one = [RowTruth(row, 10.0, 9.0, 1.0, 100.0) for row in Row]
    assert together([one, one])[0] == RowTruth(Row.ABSENT, 20.0, 18.0, 2.0, 200.0)


def test_the_command_prints_each_row() -> None:
    result = CliRunner().invoke(main, ["--seeds", "2", "--nodes", "4", "--days", "2"])
    assert result.exit_code == 0, result.output
    assert all(row.value in result.output for row in Row)
    assert "no list of seeds" in CliRunner().invoke(main, ["--seeds", "x"]).output
