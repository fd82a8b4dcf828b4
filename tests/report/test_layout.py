"""Names in narrow columns: broken where a person would, and nothing lost."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table

from gpuwatch.say.layout import FoldedName, OneLine, new_table


def shown(text: str, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    with console.capture() as capture:
        console.print(FoldedName(text))
    return [line.rstrip() for line in capture.get().splitlines()]


@pytest.mark.parametrize(
    ("width", "lines"),
    [
        (33, ["pod vision/jun-api-jzc7l7rz-ftj9h"]),
        (32, ["pod vision/", "jun-api-jzc7l7rz-ftj9h"]),
        (22, ["pod vision/", "jun-api-jzc7l7rz-ftj9h"]),
        (21, ["pod vision/", "jun-api-jzc7l7rz-", "ftj9h"]),
        (11, ["pod vision/", "jun-api-", "jzc7l7rz-", "ftj9h"]),
    ],
)
def test_a_name_breaks_after_its_last_slash_then_after_dashes(width: int, lines: list[str]) -> None:
    assert shown("pod vision/jun-api-jzc7l7rz-ftj9h", width) == lines


def test_a_name_without_a_place_to_break_is_folded() -> None:
    assert shown("abcdefgh", 3) == ["abc", "def", "gh"]


@given(st.from_regex(r"[a-z0-9/-]{1,40}", fullmatch=True), st.integers(1, 45))
def test_nothing_is_lost(text: str, width: int) -> None:
    lines = shown(text, width)
    assert "".join(lines) == text
    assert all(len(line) <= width for line in lines)


def test_other_columns_are_wrapped_before_a_word_of_a_name_is() -> None:
    table = Table(box=None)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    table.add_row(FoldedName("moderation-prod/nora-api-8ndvghq9v6-pzv2f"), "a service that never got any request " * 3)
    console = Console(file=io.StringIO(), width=60)
    with console.capture() as capture:
        console.print(table)
    assert [line.split()[0] for line in capture.get().splitlines()[1:3]] == [
        "moderation-prod/",
        "nora-api-8ndvghq9v6-pzv2f",
    ]


def drawn(width: int) -> list[str]:
    table = new_table("A title that is longer than a narrow table", "severity", "who", "why")
    table.add_row("critical", FoldedName("moderation-prod/nora-api-8ndv"), OneLine("it never got any request " * 9))
    console = Console(file=io.StringIO(), width=width)
    with console.capture() as capture:
        console.print(table)
    return [line.rstrip() for line in capture.get().splitlines()]


def test_a_table_that_has_no_room_for_its_words_is_a_block_for_each_row() -> None:
    assert drawn(80)[1].split() == ["severity", "who", "why"]
    assert drawn(80)[2].startswith("critical  moderation-prod/nora-api-8ndv  it never got any request it")
    narrow = drawn(32)
    assert narrow[:2] == ["A title that is longer than a", "narrow table"]
    assert narrow[3:6] == ["severity  critical", "who       moderation-prod/", "          nora-api-8ndv"]
    assert max(map(len, narrow)) <= 32


def test_what_is_cut_is_cut_after_a_word() -> None:
    console = Console(file=io.StringIO(), width=200)
    for width in range(10, 150):
        with console.capture() as capture:
            console.print(OneLine("it never got any request " * 5), width=width)
        words = capture.get().split()
        assert set(words) <= {"it", "never", "got", "any", "request", "…"}
        assert ("…" in words) == (width < 124)
        assert len(" ".join(words)) > 52  # it keeps some of it however narrow the column
