"""What the generators of rules and dashboards share: the runbooks' URL, pieces of text, the writing of files."""

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined, TemplateError, meta

RUNBOOKS = "https://github.com/gpuwatch/gpuwatch/blob/main/docs/runbooks"
"""Where the runbook pages are served. Every alert and every coloured panel links to a page under it."""

ROOT = Path(__file__).resolve().parents[1]


def runbook(alert: str) -> str:
    return f"{RUNBOOKS}/{alert}.md"


class Pieces:
    """Puts pieces in the place of `<< name >>`; what Prometheus and Grafana write as {{ … }} stays as it is.

    A piece is a text or a function, which may be called: `<< name("argument") >>`.
    """

    def __init__(self, pieces: Mapping[str, Any]) -> None:
        self._environment = Environment(
            variable_start_string="<<",
            variable_end_string=">>",
            block_start_string="<%",
            block_end_string="%>",
            comment_start_string="<#",
            comment_end_string="#>",
            undefined=StrictUndefined,
            autoescape=False,  # noqa: S701 - it makes no HTML
        )
        self._environment.globals.clear()  # Jinja has a `namespace` of its own
        self._pieces = dict(pieces)
        self._unused = set(pieces)

    def add(self, name: str, text: str) -> None:
        """A piece that may have earlier ones in it."""
        self._pieces[name] = self.put_in(text, f"piece {name}")
        self._unused.add(name)

    def put_in(self, text: str, where: str, **here: object) -> str:
        """here: pieces of this text alone."""
        try:
            self._unused -= meta.find_undeclared_variables(self._environment.parse(text))
            return self._environment.from_string(text).render(self._pieces, **here)
        except (TemplateError, TypeError, ValueError) as error:
            raise ValueError(f"{where}: {error}") from error

    def put_in_all(self, value: Any, where: str) -> Any:
        """The same for each text in a list or a map."""
        if isinstance(value, dict):
            return {key: self.put_in_all(each, where) for key, each in value.items()}
        if isinstance(value, list):
            return [self.put_in_all(each, where) for each in value]
        return self.put_in(value, where) if isinstance(value, str) else value

    def demand_use(self) -> None:
        if self._unused:
            raise ValueError(f"nothing uses {', '.join(sorted(self._unused))}")


def with_runbooks(files: Mapping[Path, str], url: str) -> dict[Path, str]:
    """The files with links to runbook pages that are served elsewhere."""
    return {path: text.replace(RUNBOOKS, url.rstrip("/")) for path, text in files.items()}


def main(what: str, files: Callable[[], Mapping[Path, str]], arguments: list[str]) -> int:
    """Writes the files where they differ, or with --check says which do. Returns the exit status.

    what: the generator, as in `make what`.
    """
    parser = argparse.ArgumentParser(prog=f"python -m tools.{what}", description=f"Writes the {what}.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where a file differs")
    parser.add_argument("--runbooks", default=RUNBOOKS, metavar="URL", help="where the runbook pages are served")
    options = parser.parse_args(arguments)
    try:
        written = with_runbooks(files(), options.runbooks)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    stale = [path for path, text in written.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if options.check:
            print(f"{path.relative_to(ROOT)} is out of date: make {what}", file=sys.stderr)
        else:
            path.write_text(written[path])
    return 1 if options.check and stale else 0
