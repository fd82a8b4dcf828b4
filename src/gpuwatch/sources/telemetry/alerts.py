"""Alerts that fire, from the series `ALERTS` that Prometheus writes for its rules."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from gpuwatch.facts.model.telemetry import Gap, GapKind, partial_answers
from gpuwatch.sources.telemetry.gaps import failed
from gpuwatch.sources.telemetry.promql import any_of
from gpuwatch.sources.telemetry.samples import Expression, Function, SampleSource, Selector, TelemetryError

_NAMED = 20


def firing(
    store: SampleSource, names: Sequence[str], at: datetime, matchers: Mapping[str, str] = {}
) -> tuple[tuple[str, ...] | None, tuple[Gap, ...]]:
    """The alerts among `names` that fire now. None where a query failed or was answered in part, or where no rule has
    one of the names, which may be misspelt. matchers: of the cluster; an alert without the label counts, as its rule
    may drop the label."""
    ours = (any_of(label, dict.fromkeys((value, ""))) for label, value in matchers.items())
    selector = Selector("ALERTS", (any_of("alertstate", ["firing"]), *ours))
    store = store.reading()
    try:
        rows = store.evaluate(Expression(selector, Function.LAST, by=("alertname",)), at)
        known = store.alert_names()
    except TelemetryError as error:
        return None, (failed("alerts", error),)
    if partial := partial_answers(store.problems):
        return None, tuple(replace(gap, what="alerts") for gap in partial)
    found = {row.labels.get("alertname", "") for row in rows if row.value > 0}
    missing = [] if known is None else sorted(set(names) - found - known)
    if missing:
        there = ", ".join(sorted(known or ())[:_NAMED]) or "none"
        detail = (
            f"plan.brake_alerts names {', '.join(missing)}, and {store.description} has no such alerting rule. Correct "
            f"the name, or load the rule. The rules there are: {there}{' …' if len(known or ()) > _NAMED else ''}."
        )
        return None, (Gap(kind=GapKind.BAD_INPUT, what="alerts", detail=detail),)
    return tuple(name for name in names if name in found), ()
