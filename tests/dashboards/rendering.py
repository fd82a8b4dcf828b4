"""Dashboards drawn by Grafana's own components in a real browser, over a real Prometheus.

`renderer/` is one page (React, @grafana/ui, @grafana/data; all Apache-2.0). It draws the panel types of `KINDS`; field
configuration, overrides, transformations and units are Grafana's code, what asks Prometheus is the page's own. Its
packages and its build lie outside the checkout, by the hash of the lock file and of the sources.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import http.server
import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from parts.go_tools import cache_root
from parts.http_server import served

if TYPE_CHECKING:  # rendering is looked for by every test run, and used by few
    from playwright.sync_api import Browser, Locator

SOURCES = Path(__file__).parent / "renderer"
KINDS = ("bargauge", "row", "stat", "table", "text", "timeseries")
State = Literal["data", "no value", "error", "not renderable"]
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class PanelShown:
    """What became of one panel. `text` is what somebody reads on it; what a chart's canvas says is in `values`."""

    title: str
    kind: str
    state: State
    reason: str
    text: str
    values: tuple[str, ...]
    links: tuple[str, ...]
    warnings: tuple[str, ...]
    unknown_variables: tuple[str, ...]
    screenshot: Path


@dataclass(frozen=True)
class DashboardShown:
    """A drawn dashboard. `problems` are those of no panel; `console` is what the browser had to say."""

    title: str
    variables: Mapping[str, str]
    panels: tuple[PanelShown, ...]
    problems: tuple[str, ...]
    console: tuple[str, ...]
    screenshot: Path

    def panel(self, title: str) -> PanelShown:
        """The one panel of that title."""
        (found,) = (panel for panel in self.panels if panel.title == title)
        return found


def find_npm() -> Path | None:
    """npm, where node is with it."""
    npm = shutil.which("npm")
    return Path(npm) if npm and shutil.which("node") else None


def built(npm: Path) -> Path:
    """The folder of the built page; what is missing of it is installed and built first (a minute or two, once).

    Raises RuntimeError with what npm said where it fails.
    """
    locked = _hash("package.json", "package-lock.json")
    home = cache_root() / "dashboards" / "renderer" / locked
    target = home / f"built-{_hash(*(file.name for file in SOURCES.iterdir() if file.is_file()))}"
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two runs at once would install over each other
        if target.exists():
            return target
        for file in SOURCES.iterdir():
            if file.is_file():
                shutil.copyfile(file, home / file.name)
        if not (home / "installed").exists():
            # No package's own scripts are run. Some of Grafana's dependencies name an older React as their peer.
            _run([npm, "ci", "--ignore-scripts", "--legacy-peer-deps"], home)
            (home / "installed").touch()
        shutil.rmtree(home / "built", ignore_errors=True)
        _run([npm, "run", "build"], home)
        (home / "built").rename(target)
    return target


def _hash(*names: str) -> str:
    parts = b"".join(name.encode() + (SOURCES / name).read_bytes() for name in sorted(names))
    return hashlib.sha256(parts).hexdigest()[:16]


def _run(command: list[str | Path], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} {command[1]} failed in {folder}: {(done.stdout + done.stderr)[-3000:]}")


class _Handler(http.server.SimpleHTTPRequestHandler):
    """The built page, and Prometheus under /api."""

    protocol_version = "HTTP/1.1"

    def __init__(self, *args: Any, prometheus_url: str, **kwargs: Any) -> None:
        self.prometheus_url = prometheus_url
        super().__init__(*args, **kwargs)

    def do_GET(self) -> None:
        if not self.path.startswith("/api/"):
            super().do_GET()
            return
        try:
            with _DIRECT.open(self.prometheus_url + self.path, timeout=60) as answer:
                body = answer.read()
        except urllib.error.HTTPError as refusal:
            body = refusal.read()
        except OSError as error:
            body = json.dumps({"status": "error", "error": f"Prometheus does not answer: {error}"}).encode()
        # A refused query is 200 too: the page reads the status in the body, and the browser's console stays for faults.
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Says nothing."""


def serving(page: Path, prometheus_url: str) -> contextlib.AbstractContextManager[str]:
    """The built page and the Prometheus behind it, on a loopback port. Yields the base URL."""
    return served(functools.partial(_Handler, directory=str(page), prometheus_url=prometheus_url))


def render(
    browser: Browser,
    base_url: str,
    dashboard: Mapping[str, Any],
    folder: Path,
    *,
    span: tuple[datetime, datetime] | None = None,
    variables: Mapping[str, str] | None = None,
    theme: Literal["dark", "light"] = "dark",
    scrape: str = "30s",
    width: int = 1600,
    timeout_s: float = 60,
) -> DashboardShown:
    """The dashboard as the browser shows it from `serving`'s address; its pictures go to `folder`.

    Without `span` it is the dashboard's own time range. A variable that is not given is All where it can be, else its
    current value, else the first that its query finds. `scrape` is the interval that `$__rate_interval` goes by.
    """
    from playwright.sync_api import TimeoutError as PlaywrightTimeout

    folder.mkdir(parents=True, exist_ok=True)
    asked = {"theme": theme, "scrape": scrape, **{f"var-{name}": value for name, value in (variables or {}).items()}}
    if span is not None:
        asked |= {name: str(int(at.timestamp() * 1000)) for name, at in zip(("from", "to"), span, strict=True)}
    context = browser.new_context(
        viewport={"width": width, "height": _height(dashboard)}, color_scheme=theme, timezone_id="UTC"
    )
    console: list[str] = []
    try:
        page = context.new_page()
        page.on("console", lambda said: console.append(said.text) if said.type in ("error", "warning") else None)
        page.on("response", lambda got: console.append(f"{got.status} of {got.url}") if got.status >= 400 else None)
        page.on("pageerror", lambda error: console.append(str(error)))
        page.add_init_script(f"window.dashboard = {json.dumps(dashboard)};")
        page.goto(f"{base_url}/?{urllib.parse.urlencode(asked)}")
        try:
            page.wait_for_function("window.drawn", timeout=timeout_s * 1000)
        except PlaywrightTimeout as error:
            raise RuntimeError(f"{dashboard.get('title')} was not drawn within {timeout_s} s: {console}") from error
        drawn = page.evaluate("window.drawn")
        panels = [_panel(told, page.locator(f'[data-panel="{at}"]')) for at, told in enumerate(drawn["panels"])]
        whole = folder / "dashboard.png"  # after the panels' texts: a picture scrolls to what it shows
        page.locator("#root").screenshot(path=whole)
        for at, panel in enumerate(panels):
            panels[at] = replace(panel, screenshot=folder / f"{at:02d}.png")
            page.locator(f'[data-panel="{at}"]').screenshot(path=panels[at].screenshot)
    finally:
        context.close()
    return DashboardShown(
        drawn["title"], drawn["variables"], tuple(panels), tuple(drawn["problems"]), tuple(console), whole
    )


def _height(dashboard: Mapping[str, Any]) -> int:
    """Pixels that the whole of it needs at most, with every row open: a table below the fold draws no cells."""
    panels = [*dashboard.get("panels", ()), *(inner for row in dashboard["panels"] for inner in row.get("panels", ()))]
    return 200 + 38 * sum(panel["gridPos"]["h"] for panel in panels)


def _panel(told: Mapping[str, Any], place: Locator) -> PanelShown:
    """Where the page put it, before there is a picture of it."""
    state, reason = told["state"], told["reason"]
    if told["kind"] == "table" and state == "data" and not place.get_by_role("gridcell").count():
        state, reason = "error", "the table drew no cell"
    return PanelShown(
        title=told["title"],
        kind=told["kind"],
        state=state,
        reason=reason,
        text=place.inner_text(),
        values=tuple(told["values"]),
        links=tuple(place.locator("a[href]").evaluate_all("all => all.map(one => one.getAttribute('href'))")),
        warnings=tuple(told["warnings"]),
        unknown_variables=tuple(told["unknown"]),
        screenshot=Path(),
    )
