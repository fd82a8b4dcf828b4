"""Every shipped dashboard, drawn: nothing broken, nothing empty that should not be, every name known."""

import json
from datetime import timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from app.told_fleet import END
from dashboards import fleets, rendering
from dashboards.screenshots import SCRAPE, SHIPPED
from parts.prometheus_server import ServerBuild

pytestmark = pytest.mark.npm

FLEETS = (
    "dcgm-4.8-host-exported-whole",
    "dcgm-4.9-node-exported-mig",
    "dcgm-4.9-node-honoured-shared",
    "amd-exported",
    "gaudi",
    "stopped",
)
AT = END + timedelta(hours=fleets.STOPPED_HOURS)
SPAN = (AT - timedelta(hours=5), AT)

MAY_BE_EMPTY: frozenset[tuple[str, str]] = frozenset()
"""Dashboard and panel of what has no value in these fleets, and rightly."""


def test_every_shipped_dashboard_is_drawn(
    newest_prometheus: ServerBuild, renderer: Path, browser: Browser, tmp_path: Path
) -> None:
    files = sorted(SHIPPED.glob("*.json"))
    assert files
    wrong, empty = [], set()
    with (
        fleets.running(newest_prometheus, round(AT.timestamp()), FLEETS, hours=5) as prometheus_url,
        rendering.serving(renderer, prometheus_url) as base_url,
    ):
        for file in files:
            board = json.loads(file.read_text())
            shown = rendering.render(
                browser, base_url, board, tmp_path / file.stem, span=SPAN, scrape=SCRAPE, theme="light"
            )
            wrong += [f"{file.stem}: {said}" for said in (*shown.problems, *shown.console)]
            for panel in shown.panels:
                said = [panel.reason] if panel.state in ("error", "not renderable") else []
                said += [*panel.warnings, *panel.unknown_variables]
                wrong += [f"{file.stem}, {panel.title}: {each}" for each in said]
                if panel.state == "no value":
                    empty.add((file.stem, panel.title))
    assert wrong == []
    assert empty == MAY_BE_EMPTY
