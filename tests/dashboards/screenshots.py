"""Pictures of the shipped dashboards, drawn over a real Prometheus: `make screenshots` writes docs/images/.

    PYTHONPATH=tests python tests/dashboards/screenshots.py FOLDER [--theme light] [DASHBOARD.json …]

Without dashboards it draws all of dashboards/. Says what became of each, and
ends with 1 where a panel is broken.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from app.told_fleet import END
from dashboards import rendering, telling
from parts.browser import find_browser
from parts.browser import running as running_browser
from parts.prometheus_server import find_servers
from parts.prometheus_server import running as running_prometheus

SHIPPED = Path(__file__).parents[2] / "dashboards"


@dataclass(frozen=True)
class World:
    """What the pictures show: samples, the time that is looked at, which variables are not All, the scrape interval."""

    openmetrics: str
    span: tuple[datetime, datetime]
    variables: Mapping[str, str] = field(default_factory=dict)
    scrape: str = "30s"


def world() -> World:
    """The samples under the pictures: a fleet of two models, whole and cut into MIG instances, with gpuwatch's own
    metrics of a simulated fleet."""
    at = END + timedelta(hours=telling.STOPPED_HOURS)
    with tempfile.TemporaryDirectory(prefix="telling-") as folder:
        samples = telling.openmetrics(Path(folder), int(at.timestamp()))
    return World(samples, (at - timedelta(hours=telling.HOURS), at), scrape="120s")


def main() -> int:
    parser = argparse.ArgumentParser(description="Draw dashboards as Grafana would")
    parser.add_argument("folder", type=Path)
    parser.add_argument("dashboards", type=Path, nargs="*")
    parser.add_argument("--theme", choices=("dark", "light"), default="dark")
    asked = parser.parse_args()
    npm, browser_build, servers = rendering.find_npm(), find_browser(), find_servers()
    if npm is None or browser_build is None or not servers:
        sys.exit("pictures need npm, Chromium and a Prometheus; tests/parts/install puts the last two in place")
    files = asked.dashboards or sorted(SHIPPED.glob("*.json"))
    boards = {file.stem: json.loads(file.read_text()) for file in files}
    told, page, broken = world(), rendering.built(npm), 0
    with (
        tempfile.TemporaryDirectory(prefix="screenshots-") as temporary,
        running_prometheus(servers[-1], told.openmetrics) as prometheus_url,
        rendering.serving(page, prometheus_url) as base_url,
        running_browser(browser_build) as browser,
    ):
        asked.folder.mkdir(parents=True, exist_ok=True)
        for name, board in boards.items():
            started = time.monotonic()
            shown = rendering.render(
                browser,
                base_url,
                board,
                Path(temporary, name),
                span=told.span,
                variables=told.variables,
                scrape=told.scrape,
                theme=asked.theme,
            )
            shutil.copyfile(shown.screenshot, asked.folder / f"{name}.png")
            print(f"{name}: {len(shown.panels)} panels in {time.monotonic() - started:.1f} s")
            for panel in shown.panels:
                if panel.state != "data" or panel.warnings or panel.unknown_variables:
                    broken += panel.state in ("error", "not renderable")
                    said = "; ".join(filter(None, (panel.reason, *panel.warnings, *panel.unknown_variables)))
                    print(f"  {panel.title}: {panel.state}{' – ' if said else ''}{said}")
            for line in (*shown.problems, *shown.console):
                print(f"  page: {line}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
