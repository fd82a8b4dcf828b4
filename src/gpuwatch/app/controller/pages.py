"""The pages of a running replica: the status page, and the reports in its folder.

The status page shows stored values: it waits for no lock, job or server.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpuwatch.say.status_page import ReportFiles, Status, reports_html, status_html

REPORTS_SHOWN = 52
"""Newest reports in the list: a year of weeks."""

_HTML = "text/html; charset=utf-8"
_TYPES = {
    ".html": _HTML,
    ".md": "text/plain; charset=utf-8",
    ".json": "application/json",
    ".csv": "text/csv; charset=utf-8",
}
_REPORT = re.compile(r"[a-z0-9][a-z0-9-]{0,80}")
_FILE = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_-]{{0,80}}({'|'.join(map(re.escape, _TYPES))})")
_FIRST = ("report.html", "report.md", "report.json")


@dataclass(frozen=True, slots=True)
class WebPage:
    content_type: str
    body: bytes


class Pages:
    """`answer` is called from the server's threads. status: the current status; folder: of the reports."""

    def __init__(self, status: Callable[[], Status], folder: Callable[[], Path]) -> None:
        self._status = status
        self._folder = folder

    def answer(self, path: str) -> WebPage | None:
        """The page at a path without its query; None if there is none."""
        if path in ("/", "/still"):
            return WebPage(_HTML, status_html(self._status(), refresh=path == "/").encode())
        if path == "/reports/":
            return WebPage(_HTML, self._reports().encode())
        parts = path.removeprefix("/reports/").split("/")
        return self._file(*parts) if path.startswith("/reports/") and len(parts) == 2 else None

    def _reports(self) -> str:
        folder = self._folder()
        found = [item for item in _own(folder, Path.is_dir) if _REPORT.fullmatch(item.name)]
        found.sort(key=lambda item: (item.stat().st_mtime, item.name), reverse=True)
        shown = []
        for item in found[:REPORTS_SHOWN]:
            served = (file.name for file in _own(item, Path.is_file) if _FILE.fullmatch(file.name))
            names = sorted(served, key=lambda name: (name not in _FIRST, name))
            shown.append(ReportFiles(id=item.name, title=_title(item), files=tuple(names)))
        return reports_html(shown, len(found))

    def _file(self, report: str, name: str) -> WebPage | None:
        """Serves only files that lie in a report's folder, by their plain names; links are not followed."""
        match = _FILE.fullmatch(name)
        if not _REPORT.fullmatch(report) or match is None:
            return None
        folder = self._folder() / report
        try:
            if folder.is_symlink() or folder / name not in _own(folder, Path.is_file):
                return None
            return WebPage(_TYPES[match[1]], (folder / name).read_bytes())
        except OSError:
            return None


def _own(folder: Path, kind: Callable[[Path], bool]) -> list[Path]:
    """What lies in the folder itself; [] where it cannot be read."""
    try:
        return [item for item in folder.iterdir() if kind(item) and not item.is_symlink()]
    except OSError:
        return []


def _title(folder: Path) -> str:
    """The heading of its Markdown, otherwise the folder's name."""
    try:
        with (folder / "report.md").open(encoding="utf-8") as file:
            return file.readline().lstrip("# ").strip() or folder.name
    except (OSError, UnicodeDecodeError):
        return folder.name
