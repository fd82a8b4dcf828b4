"""Building blocks of all terminal tables: names, truncated tables, pairs of a label and a value."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
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


@dataclass(frozen=True, slots=True)
class OneLine:
    """Text that is cut with … where the compact table has no room for it; the wide table has it all."""

    text: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        line = Text(" ".join(self.text.split()), no_wrap=True)
        line.truncate(options.max_width, overflow="ellipsis")
        yield line

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(cell_len(self.text), 12), cell_len(self.text))


def new_grid() -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    return grid


def new_table(title: str, *columns: str) -> Table:
    made = Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False)
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def cut(total: int, rows: int) -> list[RenderableType]:
    """The note below a table that shows `rows` of `total`; empty if it shows all."""
    return [Text(f"… and {total - rows} more: --rows {total}, or -o json", style="dim")] if total > rows else []
