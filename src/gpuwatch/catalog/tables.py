"""Reads and checks the data files beside the code, row by row.

Each row of the catalog has its source and the day on which somebody last looked at it (`checked`).
"""

import csv
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import date
from enum import Enum
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec
import yaml

from gpuwatch.model.telemetry import Gap, GapKind

T = TypeVar("T")


class CatalogError(ValueError):
    """A row or a file is malformed. place: file and row; problem: what is wrong and what to do."""

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(f"{place}: {problem}")
        self.place = place
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Row:
    """The cells of one row. place: where it stands ('metrics.csv, line 3'), for error messages."""

    place: str
    cells: Mapping[str, str]

    def error(self, problem: str) -> CatalogError:
        return CatalogError(self.place, problem)

    def text(self, column: str) -> str:
        value = self.cells[column].strip()
        if not value:
            raise self.error(f"column {column!r} is empty; give a value")
        return value

    def optional(self, column: str) -> str:
        return self.cells[column].strip()

    def parse(self, column: str, convert: Callable[[str], T], expected: str) -> T:
        value = self.text(column)
        try:
            return convert(value)
        except ValueError:
            raise self.error(f"column {column!r} is {value!r}; expected {expected}") from None

    def number(self, column: str) -> float:
        value = self.parse(column, float, "a number")
        if not math.isfinite(value):
            raise self.error(f"column {column!r} is {value}; expected a finite number")
        return value

    def whole(self, column: str) -> int:
        return self.parse(column, int, "a whole number")

    def day(self, column: str) -> date:
        return self.parse(column, date.fromisoformat, "a date such as 2026-08-03")

    def one_of(self, column: str, allowed: tuple[str, ...], *, empty: bool = False) -> str:
        value = self.optional(column) if empty else self.text(column)
        if value not in allowed and not (empty and not value):
            raise self.error(f"column {column!r} is {value!r}; expected one of {', '.join(allowed)}")
        return value

    def as_(self, kind: type[T], /, **given: Any) -> T:
        """The row as this dataclass: each cell becomes the field of its column by the field's type; only a cell of
        `float | None` or the like may be empty. given: fields that are more than their cell."""
        make: Callable[..., T] = kind
        types = {name: field for name, field in _field_types(make).items() if name not in given}
        return make(**given, **{name: self._cell(name, field) for name, field in types.items()})

    def _cell(self, column: str, kind: Any) -> object:
        if get_args(kind):  # float | None
            return self._cell(column, get_args(kind)[0]) if self.optional(column) else None
        if kind is bool:
            return bool(self.parse(column, ("false", "true").index, "true or false"))
        if issubclass(kind, Enum):
            return self.parse(column, kind, f"one of {', '.join(kind)}")
        read: Callable[[str], object] = {str: self.text, int: self.whole, float: self.number, date: self.day}[kind]
        return read(column)


@cache
def _field_types(row: Callable[..., object]) -> Mapping[str, Any]:
    return get_type_hints(row)


def columns_of(row: type) -> tuple[str, ...]:
    """The columns of a table whose rows become this dataclass: its fields."""
    return tuple(item.name for item in fields(row))


def read_csv(text: str, file: str, columns: tuple[str, ...]) -> Iterator[Row]:
    """Raises CatalogError for a missing, unknown or doubled column and for a ragged row."""
    lines = csv.reader(text.splitlines())
    header = [cell.strip() for cell in next(lines, [])]
    missing = [column for column in columns if column not in header]
    unknown = [column for column in header if column not in columns]
    if missing or unknown or len(set(header)) != len(header):
        raise CatalogError(
            f"{file}, line 1",
            f"the columns must be {', '.join(columns)}, each once"
            f" (missing: {', '.join(missing) or 'none'}; unknown: {', '.join(unknown) or 'none'})",
        )
    for cells in lines:
        if not any(cell.strip() for cell in cells):
            continue
        yield csv_row(f"{file}, line {lines.line_num}", header, cells)


def csv_row(place: str, header: list[str], cells: list[str]) -> Row:
    """Raises CatalogError where the row has more or fewer cells than the header."""
    if len(cells) != len(header):
        raise CatalogError(
            place, f"{len(cells)} cells where the header has {len(header)}; quote a cell that contains a comma"
        )
    return Row(place, dict(zip(header, cells, strict=True)))


def read_json(text: str, file: str) -> Any:
    """Raises CatalogError that names file and line."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as problem:
        raise CatalogError(f"{file}, line {problem.lineno}", f"no valid JSON ({problem.msg})") from None


def checked(value: object, kind: type[T], place: str, *, strict: bool = True) -> T:
    """A value of a data file as `kind`. Raises CatalogError that names a missing, unknown or mistyped field.
    strict: False where numbers and flags are strings, as in a CSV file."""
    try:
        return msgspec.convert(value, type=kind, strict=strict)
    except msgspec.ValidationError as error:
        raise CatalogError(place, str(error)) from error


def operators_file(path: Path, read: Callable[[str], T]) -> T:
    """What `read` makes of the text of an operator's file. Raises CatalogError that says why it cannot be used."""
    try:
        return read(path.read_text(encoding="utf-8-sig"))
    except OSError as problem:
        reason = f"cannot be read ({problem.strerror}); check the path and its rights"
    except UnicodeDecodeError:
        reason = "is no UTF-8 text; save it as UTF-8"
    except yaml.YAMLError as problem:
        reason = f"is no valid YAML ({' '.join(str(problem).split())}); correct it"
    raise CatalogError(str(path), reason)


def bad_input(what: str, detail: str) -> Gap:
    """A Gap for an operator's entry that gpuwatch cannot use."""
    return Gap(kind=GapKind.BAD_INPUT, what=what, detail=detail)


def packaged(file: str, package: str = "gpuwatch.catalog") -> str:
    return resources.files(package).joinpath(file).read_text(encoding="utf-8")
