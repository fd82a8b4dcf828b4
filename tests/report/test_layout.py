"""Names in narrow columns: broken where a person would, and nothing lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import RenderableType
from rich.table import Table

from gpuwatch.say.layout import FoldedName, OneLine, new_table
from report.terminal import shown


def lines(what: RenderableType, width: int) -> list[str]:
    return [line.rstrip() for line in shown(what, width).splitlines()]


@pytest.mark.parametrize(
    ("width", "broken"),
    [
        (33, ["pod vision/jun-api-jzc7l7rz-ftj9h"]),
        (32, ["pod vision/", "jun-api-jzc7l7rz-ftj9h"]),
        (22, ["pod vision/", "jun-api-jzc7l7rz-ftj9h"]),
        (21, ["pod vision/", "jun-api-jzc7l7rz-", "ftj9h"]),
        (11, ["pod vision/", "jun-api-", "jzc7l7rz-", "ftj9h"]),
    ],
)
def test_a_name_breaks_after_its_last_slash_then_after_dashes(width: int, broken: list[str]) -> None:
    assert lines(FoldedName("pod vision/jun-api-jzc7l7rz-ftj9h"), width) == broken


def test_a_name_without_a_place_to_break_is_folded() -> None:
    assert lines(FoldedName("abcdefgh"), 3) == ["abc", "def", "gh"]


@given(st.from_regex(r"[a-z0-9/-]{1,40}", fullmatch=True), st.integers(1, 45))
def test_nothing_is_lost(text: str, width: int) -> None:
    broken = lines(FoldedName(text), width)
    assert "".join(broken) == text
    assert all(len(line) <= width for line in broken)


def test_other_columns_are_wrapped_before_a_word_of_a_name_is() -> None:
    table = Table(box=None)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    table.add_row(FoldedName("moderation-prod/nora-api-8ndvghq9v6-pzv2f"), "a service that never got any request " * 3)
    first = [line.split()[0] for line in lines(table, 60)[1:3]]
    assert first == ["moderation-prod/", "nora-api-8ndvghq9v6-pzv2f"]


def drawn(width: int) -> list[str]:
    table = new_table("A title that is longer than a narrow table", "severity", "who", "why")
    table.add_row("critical", FoldedName("moderation-prod/nora-api-8ndv"), OneLine("it never got any request " * 9))
    return lines(table, width)


def test_a_table_that_has_no_room_for_its_words_is_a_block_for_each_row() -> None:
    assert drawn(80)[1].split() == ["severity", "who", "why"]
    assert drawn(80)[2].startswith("critical  moderation-prod/nora-api-8ndv  it never got any request it")
    narrow = drawn(32)
    assert narrow[:2] == ["A title that is longer than a", "narrow table"]
    assert narrow[3:6] == ["severity  critical", "who       moderation-prod/", "          nora-api-8ndv"]
    assert max(map(len, narrow)) <= 32


def test_what_is_cut_is_cut_after_a_word() -> None:
    for width in range(10, 150):
        words = shown(OneLine("it never got any request " * 5), width).split()
        assert set(words) <= {"it", "never", "got", "any", "request", "…"}
        assert ("…" in words) == (width < 124)
        assert len(" ".join(words)) > 52  # it keeps some of it however narrow the column
