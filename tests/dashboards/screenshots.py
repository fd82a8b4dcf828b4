"""Pictures of the shipped dashboards, drawn over a real Prometheus with the demo's fleet, of the status page and of the
weekly report: `make screenshots` writes docs/images/.

    PYTHONPATH=tests:. python tests/dashboards/screenshots.py FOLDER [--theme light] [DASHBOARD.json …]

Without dashboards it draws the two pages and all of dashboards/. It tells the state of each panel, and ends with 1
where one is broken. pngquant, a package of Debian, makes the files a third as large.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dashboards import demo_fleet, fleets, rendering
from parts.browser import find_browser
from parts.browser import running as running_browser
from parts.prometheus_server import find_servers
from report import pictures

SHIPPED = Path(__file__).parents[2] / "dashboards"


SPAN = (demo_fleet.END - demo_fleet.DAY, demo_fleet.END)
SCRAPE = f"{fleets.STEP}s"


def main() -> int:
    parser = argparse.ArgumentParser(description="Draw dashboards as Grafana would")
    parser.add_argument("folder", type=Path)
    parser.add_argument("dashboards", type=Path, nargs="*")
    parser.add_argument("--theme", choices=("dark", "light"), default="dark")
    asked = parser.parse_args()
    npm, browser_build, servers = rendering.find_npm(), find_browser(), find_servers()
    if npm is None or browser_build is None or not servers or not shutil.which("pngquant"):
        sys.exit(
            "pictures need npm, Chromium, a Prometheus and pngquant; tests/parts/install puts Chromium and Prometheus "
            "in place, `apt-get install npm pngquant` the others"
        )
    files = asked.dashboards or sorted(SHIPPED.glob("*.json"))
    boards = {file.stem: json.loads(file.read_text()) for file in files}
    page, broken = rendering.built(npm), 0
    with (
        tempfile.TemporaryDirectory(prefix="screenshots-") as temporary,
        demo_fleet.running(servers[-1]) as prometheus_url,
        rendering.serving(page, prometheus_url) as base_url,
        running_browser(browser_build) as browser,
    ):
        asked.folder.mkdir(parents=True, exist_ok=True)
        if not asked.dashboards:
            pictures.draw(browser, asked.folder, Path(temporary, "demo"))
        for name, board in boards.items():
            started = time.monotonic()
            shown = rendering.render(
                browser,
                base_url,
                board,
                Path(temporary, name),
                span=SPAN,
                scrape=SCRAPE,
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
    drawn = [str(file) for file in asked.folder.glob("*.png")]
    subprocess.run(["pngquant", "--force", "--skip-if-larger", "--strip", "--ext", ".png", *drawn], check=False)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
