"""Building blocks of all terminal tables: names, truncated tables, pairs of a label and a value."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_WORD = re.compile(r"[^-]*-|[^-]+")


@dataclass(frozen=True, slots=True)
class FoldedName:
    """A name such as `pod namespace/name`: on one line if it fits, else broken after its last '/', else after '-'. Only
    a word that is too long by itself is broken anywhere, so nothing is ever cut."""

    text: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text("\n".join(self._lines(options.max_width)), overflow="fold")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        words = (word for part in self._parts() for word in _WORD.findall(part))
        return Measurement(max(map(cell_len, words), default=0), cell_len(self.text))

    def _parts(self) -> tuple[str, str]:
        head, slash, tail = self.text.rpartition("/")
        return head + slash, tail

    def _lines(self, width: int) -> Iterator[str]:
        if cell_len(self.text) <= width:
            yield self.text
            return
        for part in self._parts():
            line = ""
            for word in _WORD.findall(part):
                if line and cell_len(line + word) > width:
                    yield line
                    line = ""
                line += word
            if line:
                yield line


_SHORT = 12
"""A column that is no wider, such as one of '1 d 14 h', is not made narrower."""
_LEAST = 60
"""Characters of a OneLine that are shown however narrow its column is."""


@dataclass(frozen=True, slots=True)
class OneLine:
    """Text that the compact table cuts after a word, with …, at the end of its first line, or of its 60th character."""

    text: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text, room = " ".join(self.text.split()), max(options.max_width, _LEAST)
        if cell_len(text) > room:
            whole = text[: room - 1].rpartition(" ")[0]
            text = f"{whole} …" if len(whole) > room / 2 else f"{text[: room - 1]}…"
        yield Text(text, overflow="fold")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(cell_len(self.text), 12), cell_len(self.text))


def whole_or_line(text: str, wide: bool) -> RenderableType:
    return Text(text, overflow="fold") if wide else OneLine(text)


class FittedTable(Table):
    """A table where each word has room; in a narrower terminal a block for each row, with a label for each cell."""

    heading = ""  # not folded at the width of the table, as its title is

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.heading:
            yield Text(self.heading, style="bold")
        wide = options.update(max_width=10_000)
        measured = (self._measure_column(console, wide, column) for column in self.columns)
        wanted = [Measurement(max(least, min(most, _SHORT)), most) for least, most in measured]
        room = options.max_width - sum(width.minimum for width in wanted)
        if room >= 0:
            # The columns that need least more get it first; what is left is shared by the others.
            order = sorted(range(len(wanted)), key=lambda index: wanted[index].span)
            for left, index in zip(range(len(order), 0, -1), order, strict=True):
                more = min(wanted[index].span, room // left)
                self.columns[index].width = wanted[index].minimum + more - self._get_padding_width(index)
                room -= more
            yield from super().__rich_console__(console, options)
            return
        for row in zip(*(column.cells for column in self.columns), strict=True):
            block = new_grid()
            for column, cell in zip(self.columns, row, strict=True):
                block.add_row(column.header, cell)
            yield Group(Text(), block)


def new_grid() -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    return grid


def new_table(title: str, *columns: str) -> Table:
    made = FittedTable(header_style="bold", box=None, pad_edge=False)
    made.heading = title
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def cut(total: int, rows: int) -> list[RenderableType]:
    """The note below a table that shows `rows` of `total`; empty if it shows all."""
    return [Text(f"… and {total - rows} more: --rows {total}, or -o json", style="dim")] if total > rows else []
