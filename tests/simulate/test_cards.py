"""The table of cards: what is wrong in it is named by file, column and field."""

from __future__ import annotations

import re

import pytest

from gpuwatch.facts.catalog.tables import CatalogError, packaged
from lab.simulate.cards import card_models

TABLE = packaged("cards.csv", "lab.simulate")


@pytest.mark.parametrize(
    ("there", "wrong", "complaint"),
    [
        (
            "400,700,72,70",
            "400,much,72,70",
            "cards.csv, column 'h100': Expected `float`, got `str` - at `$.limit_watts`",
        ),
        ("400,700,72,70", "400,,72,70", "cards.csv, line 15: column 'h100' is empty"),
        ("400,700,72,70", "400,700,72", "cards.csv, line 15: 4 cells where the header has 5"),
        ("limit_watts,400,700,72,70\n", "", "cards.csv, column 'a100': Object missing required field `limit_watts`"),
        ("machine,", "colour,a,b,c,d\nmachine,", "cards.csv, column 'a100': Object contains unknown field `colour`"),
        ("field,a100,", "field,b100,", "cards.csv, line 1: the columns must be"),
    ],
)
def test_what_is_wrong_in_the_table_is_named(there: str, wrong: str, complaint: str) -> None:
    assert TABLE.count(there) == 1
    with pytest.raises(CatalogError, match=re.escape(complaint)):
        card_models(TABLE.replace(there, wrong), "cards.csv")
