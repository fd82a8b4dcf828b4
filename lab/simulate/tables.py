"""The data files of this room: CSV files, of which each row is one Struct, and the names of a simulated fleet."""

from typing import TypeVar, get_origin, get_type_hints

import msgspec
import yaml

from gpuwatch.facts.catalog.tables import checked, packaged, read_csv

T = TypeVar("T", bound=msgspec.Struct)


def read_table(file: str, kind: type[T]) -> tuple[T, ...]:
    """An empty cell takes the field's default; a tuple's cell has its values between semicolons. Raises CatalogError
    that names the file, the line and the field."""
    tuples = {name for name, hint in get_type_hints(kind).items() if get_origin(hint) is tuple}
    found = []
    for row in read_csv(packaged(file, "lab.simulate"), file, kind.__struct_fields__):
        given = {column: cell for column, cell in row.cells.items() if cell}
        values = {column: cell.split(";") if column in tuples else cell for column, cell in given.items()}
        found.append(checked(values, kind, row.place, strict=False))
    return tuple(found)


class Names(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """workloads, images: by kind of work. xids: the exporter's text of each code."""

    teams: tuple[str, ...]
    products: tuple[str, ...]
    people: tuple[str, ...]
    workloads: dict[str, tuple[str, ...]]
    images: dict[str, str]
    xids: dict[int, str]
    sm_levels: tuple[tuple[float, float], ...]


NAMES = checked(yaml.safe_load(packaged("names.yaml", "lab.simulate")), Names, "names.yaml")
