"""The boards as their YAML files have them: each file is a board, its rows have headings, each row has panels."""

from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml

from gpuwatch.facts.catalog.tables import checked
from tools.dashboards.queries import QUERIES
from tools.generated import Pieces

FOLDER = Path(__file__).parent
Number = int | float
"""Of a threshold: a whole one stays whole in the JSON."""


class Query(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """legend: the name of each series."""

    query: str
    legend: str = ""


class Column(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of a table: what one query returns. Without a title it only makes rows."""

    query: str
    title: str = ""
    unit: str = "none"
    orange_from: Number | None = None
    red_from: Number | None = None
    runbook: str = ""

    def __post_init__(self) -> None:
        _check_colours(self)


class Panel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One panel. What it `shows` and what it `cannot_see` become its description, with the series it asks for.

    query and legend, or several `queries`; a table has `columns`, and a row for each value of the labels `rows_by`.
    unit: as Grafana calls it.
    no_value: what is known when nothing returns; by itself that neither telemetry nor gpuwatch tells anything.
    width: of 24. By itself half of it; a stat has an equal part of the line.
    green: below its colours, where that is a proof of health. words: for values.
    links: columns whose cells lead to a board, or to a `runbook`.
    """

    title: str
    kind: Literal["stat", "timeseries", "bargauge", "table"]
    shows: str
    cannot_see: str
    query: str = ""
    legend: str = ""
    queries: tuple[Query, ...] = ()
    columns: tuple[Column, ...] = ()
    rows_by: tuple[str, ...] = ()
    links: dict[str, str] = {}
    unit: str = "none"
    decimals: int | None = None
    points: bool = False
    words: dict[str, str] = {}
    green: bool = False
    orange_from: Number | None = None
    red_from: Number | None = None
    runbook: str = ""
    no_value: str = ""
    width: int = 0
    height: int = 0

    def __post_init__(self) -> None:
        _check_colours(self)
        if [bool(self.query), bool(self.queries), bool(self.columns)].count(True) != 1:
            raise ValueError("one of `query`, `queries` and `columns` is needed")
        if (self.kind == "table") != bool(self.columns and self.rows_by):
            raise ValueError("a table, and nothing else, has `columns` and `rows_by`")

    @property
    def asked(self) -> tuple[Query, ...]:
        if self.columns:
            return tuple(Query(column.query) for column in self.columns)
        return self.queries or (Query(self.query, self.legend),)


def _check_colours(coloured: Panel | Column) -> None:
    coloured_from = (coloured.orange_from, coloured.red_from)
    if (coloured_from != (None, None)) != bool(coloured.runbook):
        raise ValueError("colours, and only they, need a `runbook` that says what to do")


class Board(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """variables: those of VARIABLES in grafana.py by which a person chooses."""

    title: str
    shows: str
    variables: tuple[str, ...]
    rows: dict[str, tuple[Panel, ...]]


def boards() -> dict[str, Board]:
    """The boards by name, each with its pieces. What is wrong in a file is a ValueError that names file and panel."""
    pieces = Pieces(QUERIES)
    read = {file.stem: _board(file, pieces) for file in sorted(FOLDER.glob("*.yaml"))}
    pieces.demand_use()
    return read


def _board(file: Path, pieces: Pieces) -> Board:
    source = yaml.safe_load(file.read_text())
    rows = {
        heading: [read_panel(panel, pieces, f"{file.name}, panel {panel.get('title')}") for panel in panels]
        for heading, panels in source["rows"].items()
    }
    return checked({**source, "rows": rows}, Board, file.name)


def read_panel(given: dict[str, Any], pieces: Pieces, where: str) -> Panel:
    """The panel with its pieces. What is wrong in it is a ValueError that begins with `where`."""
    return checked(pieces.put_in_all(given, where), Panel, where)
