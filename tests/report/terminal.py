"""What a terminal shows, and an Analysis to show."""

import io
from collections.abc import Iterable
from datetime import datetime

from rich.console import Console, RenderableType

from gpuwatch.facts.model.cluster import Cluster
from gpuwatch.facts.model.decision import Analysis, Coverage, Finding, Plan
from gpuwatch.facts.model.telemetry import Device


def shown(what: RenderableType, width: int = 160) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    with console.capture() as captured:
        console.print(what)
    return captured.get()


def flat(text: str) -> str:
    """In one line, with single spaces."""
    return " ".join(text.split())


def analysis_of(
    findings: Iterable[Finding] = (),
    *,
    at: datetime,
    devices: Iterable[Device] = (),
    cluster: Cluster = Cluster(),  # noqa: B008 - frozen
    coverage: Coverage = Coverage(),  # noqa: B008 - frozen
    plan: Plan | None = None,
) -> Analysis:
    """Without a plan unless one is given."""
    return Analysis(
        version=1,
        at=at,
        coverage=coverage,
        devices=tuple(devices),
        cluster=cluster,
        findings=tuple(findings),
        plan=plan or Plan(at=at),
    )
