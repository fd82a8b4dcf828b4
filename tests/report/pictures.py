"""Pictures of the status page and of the weekly report, of the fleet that `python -m lab.demo` simulates."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from click.testing import CliRunner

from gpuwatch import __version__
from gpuwatch.act.analysis import Policies, analyse, needs_of
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.facts.model.decision import ActionKind, Mode
from gpuwatch.say.status_page import JobTimes, Status, status_html
from gpuwatch.sources.collect.collect import collect
from gpuwatch.sources.kube.recorded import RecordedCluster
from gpuwatch.sources.telemetry.recording import open_recording
from lab.demo import END, main
from parts.browser import page

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def draw(browser: Browser, folder: Path, temporary: Path) -> None:
    """Writes status-page.png and weekly-report.png: each page down to the end of what a person reads first."""
    CliRunner().invoke(main, ["--folder", str(temporary)], catch_exceptions=False)
    report = (temporary / "report" / "report.html").read_text(encoding="utf-8")
    for name, html, last in (
        ("status-page", status_html(_status(temporary)), "section[aria-labelledby=h-findings]"),
        ("weekly-report", report.replace(str(temporary), "out/demo"), "#glance"),
    ):
        with page(browser, html, temporary) as (opened, _):
            box = opened.locator(last).bounding_box()
            assert box is not None
            clip = {"x": 0, "y": 0, "width": 1280, "height": box["y"] + box["height"] + 20}
            opened.screenshot(path=folder / f"{name}.png", clip=clip, full_page=True)  # type: ignore[arg-type]


def _status(recorded: Path) -> Status:
    """Of the replica that leads, as of the demo's last moment. It observes, so that it has no Remediation."""
    policies = Policies()
    store, cluster = open_recording([recorded / "telemetry.parquet"]), RecordedCluster(recorded / "cluster")
    analysis = analyse(PlanFacts(snapshot=collect(store, cluster, END, needs_of(policies))), policies)
    return Status(
        at=END + timedelta(seconds=20),
        version=__version__,
        identity="gpuwatch-7d9c5b7f4-x2v9k",
        started_at=END - timedelta(days=2),
        source="Prometheus at http://prometheus:9090",
        leads=True,
        leader="gpuwatch-7d9c5b7f4-x2v9k",
        modes=tuple((str(kind), Mode.OBSERVE) for kind in ActionKind),
        jobs=(JobTimes(name="cycle", succeeded_at=END, seconds=1.3),),
        analysis=analysis,
        remediations=(),
    )
