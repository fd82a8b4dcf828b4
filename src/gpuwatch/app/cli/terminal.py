"""Terminal output of the commands."""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console, RenderableType

from gpuwatch.app.errors import EXPECTED, OptionsError
from gpuwatch.app.exit_code import ExitCode
from gpuwatch.app.settings import SettingsError
from gpuwatch.facts.model.plain_text import plain
from gpuwatch.say.machine import Columns, to_csv, to_json, to_yaml

T = TypeVar("T")

_PIPE_WIDTH = 160


def output() -> Console:
    """Standard output. A pipe has no width: without COLUMNS it gets one at which most table rows stay on one line for
    grep."""
    console = Console(highlight=False)
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(highlight=False, width=_PIPE_WIDTH)


def remark(text: str, style: str = "") -> None:
    """Prints on standard error."""
    text = "\n".join(map(plain, text.split("\n")))
    Console(stderr=True, soft_wrap=True, highlight=False).print(text, style=style, markup=False)


def write(text: str) -> None:
    """Writes what machines read to standard output, as UTF-8 in every locale."""
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode())
    sys.stdout.buffer.flush()


def print_answer(value: object, form: str, table: Callable[[], RenderableType]) -> None:
    if form == "json":
        write(to_json(value) + "\n")
    elif form == "yaml":
        write(to_yaml(value))
    else:
        output().print(table())


def print_listing(
    value: object,
    form: str,
    table: Callable[[], RenderableType],
    names: Iterable[str],
    columns: Columns[T],
    rows: Sequence[T],
    output: Path | None,
) -> None:
    """An answer that is a list too: of `names`, one a line as kubectl's -o name, each once; or as one table, CSV or
    Parquet. output: of the latter; None for standard output."""
    if form == "name":
        write("".join(f"{name}\n" for name in dict.fromkeys(names)))
        return
    if form not in ("csv", "parquet"):
        print_answer(value, form, table)
        return
    if form == "csv":
        data = to_csv(columns, rows, line_end="\n").encode()
    else:
        from gpuwatch.say.frames import to_parquet

        data = to_parquet(columns, rows)
    if output is None:
        sys.stdout.buffer.write(data)
        return
    output.write_bytes(data)
    remark(f"wrote {output}: {len(rows)} rows")


def reported(command: Callable[..., int], /, **options: Any) -> int:
    """Its exit code. Prints an expected error as a sentence on stderr; any other is a bug and keeps its traceback."""
    try:
        return command(**options)
    except EXPECTED as error:
        remark(f"gpuwatch: {error}", "red")
        return ExitCode.USAGE if isinstance(error, SettingsError | OptionsError) else ExitCode.FAILED
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        remark(f"gpuwatch: {place}{error.strerror or error}", "red")
        return ExitCode.FAILED
