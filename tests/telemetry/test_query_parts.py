"""How questions are divided: every Node once, evenly, and halves are always smaller."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.sources.telemetry.prometheus import QueryPart, divided, halves, together
from gpuwatch.sources.telemetry.samples import AnswerRow, Combine, Expression, Function, Partition, Selector

QUESTION = Expression(Selector("m"), Function.AVG, 3600, by=("node",))
FLEETS = st.dictionaries(st.text("abc", min_size=1, max_size=4), st.integers(0, 16), min_size=1, max_size=60)


@given(FLEETS, st.integers(1, 500), st.integers(1, 5000))
def test_every_node_is_in_one_part(nodes: dict[str, int], samples: int, most: int) -> None:
    parts = divided(Partition("node", nodes, 60), QUESTION, samples, most)
    assert [name for part in parts for name in part.nodes] == sorted(nodes)
    assert len({part.first for part in parts}) == len(parts)
    assert [part.whole for part in parts] == ([True] if len(parts) == 1 else [False] * len(parts))
    largest = max(max(1, count) for count in nodes.values())
    share = sum(max(1, count) for count in nodes.values()) / max(1, math.ceil(sum(nodes.values()) * samples / most))
    # No part is more than its even share and the one Node that lies across each of its borders.
    assert all(part.series <= share + 2 * largest or len(part.nodes) == 1 for part in parts)


@given(FLEETS)
def test_halving_ends_at_single_nodes(nodes: dict[str, int]) -> None:
    partition = Partition("node", nodes, 60)
    waiting = divided(partition, QUESTION, 1, math.inf)
    single: list[QueryPart] = []
    while waiting:
        part = waiting.pop()
        pieces = halves(part, partition)
        if len(pieces) == 1:
            single.append(part)
            continue
        assert len(pieces) == 2
        assert all(len(piece.nodes) < len(part.nodes) for piece in pieces)
        waiting.extend(pieces)
    assert sorted(part.nodes for part in single) == [(name,) for name in sorted(nodes)]


def test_a_question_that_fits_is_asked_whole() -> None:
    partition = Partition("node", {"a": 8, "b": 8}, 60)
    assert len(divided(partition, QUESTION, 60, 960)) == 1
    assert len(divided(partition, QUESTION, 60, 959)) == 2
    assert divided(None, QUESTION, 60, 1) == [QueryPart()]


def test_long_lists_of_names_are_divided_for_servers_with_short_queries() -> None:
    partition = Partition("node", {f"{index:0100d}": 8 for index in range(1000)}, 60)
    parts = divided(partition, QUESTION, 60, 300_000)
    assert all(sum(len(name) + 1 for name in part.nodes) <= 8_100 for part in parts)


@pytest.mark.parametrize(
    ("combine", "expected"),
    [(Combine.MAX, 5.0), (Combine.MIN, 2.0), (Combine.SUM, 7.0), (Combine.COUNT, 7.0)],
)
def test_parts_are_combined_once_more(combine: Combine, expected: float) -> None:
    question = Expression(Selector("m"), Function.AVG, 60, combine=combine, by=("pod",))
    answers = [[AnswerRow({"pod": "a"}, 5.0), AnswerRow({"pod": "b"}, 1.0)], [AnswerRow({"pod": "a"}, 2.0)]]
    assert together(answers, "node", question) == [AnswerRow({"pod": "a"}, expected), AnswerRow({"pod": "b"}, 1.0)]


def test_nan_is_passed_over_by_max_and_min_alone() -> None:
    answers = [[AnswerRow({}, math.nan)], [AnswerRow({}, 2.0)]]
    maximum = Expression(Selector("m"), Function.AVG, 60, combine=Combine.MAX)
    assert together(answers, "node", maximum)[0].value == 2.0
    total = Expression(Selector("m"), Function.AVG, 60, combine=Combine.SUM)
    assert math.isnan(together(answers, "node", total)[0].value)
