"""Which alerts fire, from the series `ALERTS` that Prometheus writes of its own rules."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from gpuwatch.model.telemetry import Gap
from gpuwatch.telemetry.gaps import failed
from gpuwatch.telemetry.samples import (
    Expression,
    Function,
    Matcher,
    MatchOp,
    SampleStore,
    Selector,
    TelemetryError,
)


def firing(store: SampleStore, names: Sequence[str], at: datetime) -> tuple[tuple[str, ...] | None, tuple[Gap, ...]]:
    """Those of the names that fire now; None where the store could not tell.

    A server that evaluates no rules has no such series, and then none fires.
    """
    selector = Selector("ALERTS", (Matcher("alertstate", MatchOp.EQUAL, "firing"),))
    try:
        rows = store.evaluate(Expression(selector, Function.LAST, by=("alertname",)), at)
    except TelemetryError as error:
        return None, (failed("alerts", error),)
    found = {row.labels.get("alertname", "") for row in rows if row.value > 0}
    return tuple(name for name in names if name in found), ()
