"""Reads the data files beside the code and checks every row.

Each row of the catalog names its source, and the day on which a person last looked at it (`checked`).
"""

import csv
import json
import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import date
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec
import yaml

from gpuwatch.facts.model.telemetry import Gap, GapKind

T = TypeVar("T")


class CatalogError(ValueError):
    """A row or a file is malformed. place: file and row; problem: what is wrong and what to do."""

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(f"{place}: {problem}")
        self.place = place
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Row:
    """The cells of one row. place: file and line ('metrics.csv, line 3'), for error messages."""

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

    def cell(self, column: str, kind: Any) -> Any:
        """The cell as this type. It may be empty where the type includes None or ''."""
        if not self.optional(column) and {type(None), ""}.intersection(get_args(kind)):
            return "" if "" in get_args(kind) else None
        value = self.text(column)
        try:
            found = msgspec.convert(value, kind, strict=False)
        except msgspec.ValidationError:
            found = math.nan
        if isinstance(found, float) and not math.isfinite(found):
            raise self.error(f"column {column!r} is {value!r}; expected {_expected(kind)}")
        return found

    def as_(self, kind: type[T], /, **given: Any) -> T:
        """The row as this dataclass. Each cell is converted to the type of the field with the column's name. A cell may
        be empty only where that type includes None. given: fields that are set to these values instead."""
        make: Callable[..., T] = kind
        types = {name: field for name, field in _field_types(make).items() if name not in given}
        return make(**given, **{name: self.cell(name, field) for name, field in types.items()})


@cache
def _field_types(row: Callable[..., object]) -> Mapping[str, Any]:
    return get_type_hints(row)


_EXPECTED = {int: "a whole number", float: "a number", date: "a date such as 2026-08-03", bool: "true or false"}


def _expected(kind: Any) -> str:
    bare = next((each for each in get_args(kind) if each in _EXPECTED), kind)
    if bare in _EXPECTED:
        return _EXPECTED[bare]
    return textwrap.shorten(f"one of {', '.join(get_args(kind) or kind)}", 120, placeholder=" …")


def columns_of(row: type) -> tuple[str, ...]:
    """The columns of a table whose rows become this dataclass: its fields."""
    return tuple(item.name for item in fields(row))


def read_csv(text: str, file: str, columns: tuple[str, ...]) -> Iterator[Row]:
    """Raises CatalogError for a missing, unknown or repeated column, and for a row of another length."""
    header, rows = csv_rows(text, file)
    missing = [column for column in columns if column not in header]
    unknown = [column for column in header if column not in columns]
    if missing or unknown or len(set(header)) != len(header):
        raise CatalogError(
            f"{file}, line 1",
            f"the columns must be {', '.join(columns)}, each once"
            f" (missing: {', '.join(missing) or 'none'}; unknown: {', '.join(unknown) or 'none'})",
        )
    for row in rows:
        if isinstance(row, CatalogError):
            raise row
        yield row


def csv_rows(text: str, file: str) -> tuple[list[str], Iterator[Row | CatalogError]]:
    """The header, and the rows; a CatalogError for one that has more or fewer cells than the header."""
    lines = csv.reader(text.splitlines())
    header = [cell.strip() for cell in next(lines, [])]

    def row(cells: list[str]) -> Row | CatalogError:
        place = f"{file}, line {lines.line_num}"
        if len(cells) == len(header):
            return Row(place, dict(zip(header, cells, strict=True)))
        problem = f"{len(cells)} cells where the header has {len(header)}; quote a cell that contains a comma"
        return CatalogError(place, problem)

    return header, (row(cells) for cells in lines if any(cell.strip() for cell in cells))


def keyed(
    text: str,
    file: str,
    kind: type[T],
    key: Callable[[T], Any],
    make: Callable[[Row], T] | None = None,
    columns: Iterable[str] = (),
) -> dict[Any, T]:
    """The rows of a table as this dataclass, by their key. make, columns: by themselves `Row.as_` and its fields.
    Raises CatalogError as `read_csv` and `make` do, and for a repeated key."""
    found: dict[Any, T] = {}
    for row in read_csv(text, file, tuple(columns) or columns_of(kind)):
        one = row.as_(kind) if make is None else make(row)
        if found.setdefault(key(one), one) is not one:
            raise row.error(f"{key(one)} has a row already; keep one")
    if not found:
        raise CatalogError(file, "the table has no rows")
    return found


def read_json(text: str, file: str) -> Any:
    """Raises CatalogError that names file and line."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as problem:
        raise CatalogError(f"{file}, line {problem.lineno}", f"no valid JSON ({problem.msg})") from None


def checked(value: object, kind: type[T], place: str, *, strict: bool = True) -> T:
    """A value of a data file as `kind`, or CatalogError. strict: False where numbers and flags are strings (CSV)."""
    try:
        return msgspec.convert(value, type=kind, strict=strict)
    except msgspec.ValidationError as error:
        raise CatalogError(place, str(error)) from error


def operators_file(path: Path, read: Callable[[str], T]) -> T:
    """Applies `read` to the text of an operator's file. Raises CatalogError with the reason where it is unusable."""
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


def packaged(file: str, package: str = "gpuwatch.facts.catalog") -> str:
    return resources.files(package).joinpath(file).read_text(encoding="utf-8")
