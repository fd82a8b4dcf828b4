"""Alerts that fire, from the series `ALERTS` that Prometheus writes for its rules."""

from collections.abc import Sequence
from datetime import datetime

from gpuwatch.model.telemetry import Gap
from gpuwatch.telemetry.gaps import failed
from gpuwatch.telemetry.samples import Expression, Function, Matcher, MatchOp, SampleStore, Selector, TelemetryError


def firing(store: SampleStore, names: Sequence[str], at: datetime) -> tuple[tuple[str, ...] | None, tuple[Gap, ...]]:
    """The alerts among `names` that fire now; None where the query failed.

    A server without rules has no such series, and then none fires.
    """
    selector = Selector("ALERTS", (Matcher("alertstate", MatchOp.EQUAL, "firing"),))
    try:
        rows = store.evaluate(Expression(selector, Function.LAST, by=("alertname",)), at)
    except TelemetryError as error:
        return None, (failed("alerts", error),)
    found = {row.labels.get("alertname", "") for row in rows if row.value > 0}
    return tuple(name for name in names if name in found), ()
