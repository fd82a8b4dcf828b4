"""What all boards share: colours, variables, links, kinds of panels, and how panels are placed.

Absence is never health. A panel whose query returns nothing shows `no_value`, which says what is known then. Where a
count of nothing is a fact (no XID on GPUs that report), the query makes its 0 from series that report (`> bool 0`,
`judged`), never from nothing (`or vector(0)`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from grafana_foundation_sdk.builders import bargauge, common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import prometheus as prometheus_models
from grafana_foundation_sdk.models import units

RUNBOOKS = "https://github.com/gpuwatch/gpuwatch/blob/main/docs/runbooks"
"""Where the runbooks are read; <Alert>.md stands below it."""


def _runbook(alert: str) -> str:
    return f"{RUNBOOKS}/{alert}.md"


GOOD, LOOK, ACT, NEUTRAL, UNKNOWN = "green", "orange", "red", "blue", "#8e8e8e"

STATES = {
    "critical": ACT, "warning": LOOK, "info": NEUTRAL,
    "degraded": ACT, "idle": LOOK, "misfit": LOOK, "unknown": UNKNOWN,
    "allocated": NEUTRAL, "busy": GOOD, "free": UNKNOWN, "reporting": "semi-dark-blue", "missing": ACT,
    "advised": NEUTRAL, "applied": GOOD, "ignored": LOOK, "abstained": UNKNOWN,
    "likely": NEUTRAL, "pessimistic": "semi-dark-blue",
    "admitted": GOOD, "refused": UNKNOWN, "in flight": LOOK, "limit": UNKNOWN,
    "true": GOOD, "false": LOOK,
    "Succeeded": GOOD, "InEffect": NEUTRAL, "Acting": LOOK, "Undoing": LOOK, "Failed": ACT,
}  # fmt: skip
"""One colour per state, on every board."""

DATASOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
CLUSTER = 'cluster=~"$cluster"'
NO_TELEMETRY = "no telemetry"
NO_GPUWATCH = "gpuwatch tells nothing"


def devices(state: str) -> str:
    return f'(sum by (cluster) (gpuwatch_devices{{{CLUSTER}, state="{state}"}}) > 0)'


def judged(expression: str, state: str = "reporting") -> str:
    """`expression`, only of clusters in which a device reports to gpuwatch: else nobody knows, and 0 would be a lie."""
    return f"({expression}) and on (cluster) {devices(state)}"


def counted(expression: str) -> str:
    """How many findings there are: 0 where a device reports and nothing is found, no number where none reports.

    Findings that are told always count: that all telemetry is gone is a critical one.
    """
    return f"sum(sum by (cluster) ({expression}) or 0 * {devices('reporting')})"


@dataclass(frozen=True)
class Query:
    expression: str
    legend: str = ""


@dataclass(frozen=True)
class Column:
    """Of a table: one query, shown as one column, with its unit; or a mere label, where it has no title."""

    title: str
    expression: str
    unit: str = units.NoUnit
    bounds: tuple[float | None, float | None] | None = None
    """From where it is orange and from where red; None where no runbook stands behind."""


@dataclass(frozen=True)
class Panel:
    """One panel: `what` becomes its description, together with its `source` and what it cannot see (`blind`)."""

    kind: str
    title: str
    what: str
    source: str
    blind: str
    queries: tuple[Query, ...]
    unit: str = units.NoUnit
    no_value: str = NO_TELEMETRY
    width: int = 12
    height: int = 8
    bounds: tuple[float | None, float | None] | None = None
    good: bool = False
    """Whether it is green below its bounds: only where a value is a proof of health."""
    runbook: str = ""
    top: float | None = None
    decimals: int | None = None
    points: bool = False
    names: dict[str, str] = field(default_factory=dict)
    """Words for values."""
    columns: tuple[Column, ...] = ()
    labels: tuple[str, ...] = ()
    to: tuple[tuple[str, str], ...] = ()
    """Columns whose cells lead to a board, or to a `runbook`."""


@dataclass(frozen=True)
class Board:
    name: str
    title: str
    what: str
    variables: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]


def figure(title: str, what: str, source: str, blind: str, expression: str, **more: Any) -> Panel:
    """A stat. Its height and width suit eight in a line."""
    legend = more.pop("legend", "")
    return Panel("stat", title, what, source, blind, (Query(expression, legend),), **{"width": 3, "height": 4, **more})


def trend(title: str, what: str, source: str, blind: str, *queries: tuple[str, str], **more: Any) -> Panel:
    return Panel("timeseries", title, what, source, blind, tuple(Query(*each) for each in queries), **more)


def bars(title: str, what: str, source: str, blind: str, *queries: tuple[str, str], **more: Any) -> Panel:
    return Panel("bargauge", title, what, source, blind, tuple(Query(*each) for each in queries), **more)


def rows(
    title: str, what: str, source: str, blind: str, labels: Sequence[str], *columns: Column, **more: Any
) -> Panel:
    """A table: one row for each value of the labels, one column for each label and each query."""
    queries = tuple(Query(column.expression) for column in columns)
    given = {"width": 24, **more}
    return Panel(
        "table", title, what, source, blind, queries, columns=tuple(columns), labels=tuple(labels), **given
    )


def _property(name: str, value: object) -> models.DynamicConfigValue:
    return models.DynamicConfigValue(id_val=name, value=value)


def _thresholds(bounds: tuple[float | None, float | None] | None, below: str) -> dashboard.ThresholdsConfig:
    steps = [models.Threshold(value=None, color=below)]
    for bound, colour in zip(bounds or (), (LOOK, ACT), strict=False):
        if bound is not None:
            steps.append(models.Threshold(value=bound, color=colour))
    return dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)


def _link(title: str, url: str) -> dashboard.DashboardLink:
    return dashboard.DashboardLink(title).type(models.DashboardLinkType.LINK).url(url).target_blank(False)


VARIABLE_OF = {
    "cluster": "cluster", "node": "node", "gpu_node": "node", "UUID": "uuid", "pod": "pod", "workload_pod": "pod",
    "namespace": "namespace", "workload_namespace": "namespace",
}  # fmt: skip
"""Which variable of a board takes the values of a label."""


def _drill(column: str, board: str, labels: Sequence[str]) -> models.DynamicConfigValue:
    """The link of a column's cells: to the alert's runbook, or to a board with the row's cluster and this value."""
    if board == "runbook":
        return _property("links", [{"title": "Runbook", "url": _runbook("${__data.fields.alertname}"), "targetBlank": True}])
    keep = ["cluster"] + (["namespace", "workload_namespace"] if VARIABLE_OF[column] == "pod" else [])
    taken = [label for label in labels if label == column or label in keep]
    values = "".join(f"&var-{VARIABLE_OF[label]}=${{__data.fields.{label}}}" for label in taken)
    url = f"/d/gpuwatch-{board}?${{datasource:queryparam}}{values}&${{__url_time_range}}"
    return _property("links", [{"title": f"Show it: {board}", "url": url}])


def _shared(builder: Any, panel: Panel) -> Any:
    """What each kind of panel has: words, unit, bounds, colours."""
    lines = [panel.what, f"Source: {panel.source}.", f"Cannot see: {panel.blind}."]
    builder = (
        builder.title(panel.title)
        .description("\n\n".join(lines))
        .datasource(DATASOURCE)
        .unit(panel.unit)
        .no_value(panel.no_value)
        .thresholds(_thresholds(panel.bounds, GOOD if panel.good else NEUTRAL))
    )
    if panel.runbook:
        builder = builder.links([_link("Runbook", _runbook(panel.runbook)).target_blank(True)])
    if panel.unit == units.PercentUnit:
        builder = builder.min(0).max(1) if panel.top is None else builder.min(0).max(panel.top)
    if panel.decimals is not None:
        builder = builder.decimals(panel.decimals)
    if panel.names:
        words = {value: models.ValueMappingResult(text=text) for value, text in panel.names.items()}
        builder = builder.mappings([models.ValueMap(options=words)])
    return builder


def _coloured(builder: Any, panel: Panel) -> Any:
    """One fixed colour for each state that a series of this panel can be named by."""
    legends = {query.legend for query in panel.queries}
    for state, colour in STATES.items():
        if state in legends or legends & {"{{phase}}", "{{severity}}"}:
            builder = builder.override_by_name(state, [_property("color", {"mode": "fixed", "fixedColor": colour})])
    return builder


def _stat(panel: Panel) -> Any:
    last = common.ReduceDataOptions().calcs(["lastNotNull"]).values(False)
    mode = common_models.BigValueTextMode.VALUE_AND_NAME if panel.queries[0].legend else None
    return (
        _shared(stat.Panel(), panel)
        .reduce_options(last)
        .graph_mode(common_models.BigValueGraphMode.NONE)
        .color_mode(common_models.BigValueColorMode.VALUE)
        .text_mode(mode or common_models.BigValueTextMode.AUTO)
    )


def _timeseries(panel: Panel) -> Any:
    builder = _shared(timeseries.Panel(), panel).line_width(1).fill_opacity(0)
    # Where telemetry is absent the line is absent, too.
    builder = builder.span_nulls(False).show_points(common_models.VisibilityMode.AUTO)
    if panel.points:
        builder = builder.draw_style(common_models.GraphDrawStyle.POINTS).point_size(6)
    if panel.unit != units.Celsius:
        builder = builder.axis_soft_min(0)
    legend = common.VizLegendOptions().display_mode(common_models.LegendDisplayMode.LIST)
    legend = legend.placement(common_models.LegendPlacement.BOTTOM).show_legend(True).calcs([])
    tooltip = common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI)
    return _coloured(builder.legend(legend).tooltip(tooltip.sort(common_models.SortOrder.DESCENDING)), panel)


def _bargauge(panel: Panel) -> Any:
    last = common.ReduceDataOptions().calcs(["lastNotNull"]).values(False)
    builder = (
        _shared(bargauge.Panel(), panel)
        .reduce_options(last)
        .orientation(common_models.VizOrientation.HORIZONTAL)
        .display_mode(common_models.BarGaugeDisplayMode.BASIC)
    )
    return _coloured(builder if panel.unit == units.PercentUnit else builder.min(0), panel)


def _table(panel: Panel) -> Any:
    builder = _shared(table.Panel(), panel).show_header(True).filterable(True)
    order = {name: place for place, name in enumerate(panel.labels)}
    rename, hidden = {}, {"Time": True}
    for place, column in enumerate(panel.columns):
        # With one query alone Grafana calls the column Value, with more Value #A and so on.
        value = "Value" if len(panel.columns) == 1 else f"Value #{chr(ord('A') + place)}"
        if not column.title:
            hidden[value] = True
            continue
        rename[value], order[value] = column.title, len(panel.labels) + place
        properties = [_property("unit", column.unit)]
        if column.bounds is not None:
            steps = _thresholds(column.bounds, "text").build()
            properties += [
                _property("thresholds", {"mode": "absolute", "steps": [{"value": each.value, "color": each.color} for each in steps.steps]}),
                _property("custom.cellOptions", {"type": "color-text"}),
            ]  # fmt: skip
        builder = builder.override_by_name(column.title, properties)
    shown = {"excludeByName": hidden, "indexByName": order, "renameByName": rename}
    builder = builder.with_transformation(models.DataTransformerConfig(id_val="merge", options={}))
    builder = builder.with_transformation(models.DataTransformerConfig(id_val="organize", options=shown))
    for name in {"severity", "verdict", "outcome"} & set(panel.labels):
        words = [{"type": "value", "options": {word: {"text": word, "color": colour} for word, colour in STATES.items()}}]
        builder = builder.override_by_name(
            name, [_property("mappings", words), _property("custom.cellOptions", {"type": "color-text"})]
        )
    for name, board in panel.to:
        builder = builder.override_by_name(name, [_drill(name, board, panel.labels)])
    return builder


KINDS = {"stat": _stat, "timeseries": _timeseries, "bargauge": _bargauge, "table": _table}


def _query(query: Query, place: int, kind: str) -> prometheus.Dataquery:
    target = prometheus.Dataquery().datasource(DATASOURCE).expr(query.expression).ref_id(chr(ord("A") + place))
    target = target.editor_mode(prometheus_models.QueryEditorMode.CODE)
    if query.legend:
        target = target.legend_format(query.legend)
    if kind == "timeseries":
        return target.range()
    target = target.instant()
    return target.format(prometheus_models.PromQueryFormat.TABLE) if kind == "table" else target


def _values(series: str, label: str) -> str:
    return f"label_values({series}, {label})"


VARIABLES = {
    "cluster": ("Cluster", _values("node:gpus:count", "cluster")),
    "namespace": ("Namespace", _values(f"namespace:gpus_allocated:count{{{CLUSTER}}}", "namespace")),
    "node": ("Node", _values(f"node:gpus:count{{{CLUSTER}}}", "node")),
    "model": ("Model", _values(f"cluster:gpus:count{{{CLUSTER}}}", "modelName")),
    "uuid": ("GPU", _values(f'gpu:gpu_temperature_celsius:max{{{CLUSTER}, node=~"$node", modelName=~"$model"}}', "UUID")),
    "pod": ("Pod", _values(f'device:gpu_workload:info{{{CLUSTER}, namespace=~"$namespace"}}', "pod")),
    # gpuwatch's own boards list the clusters in which it runs, with GPUs or without.
    "watched": ("Cluster", _values("gpuwatch_build_info", "cluster")),
}  # fmt: skip


def _variable(name: str) -> dashboard.QueryVariable:
    label, query = VARIABLES[name]
    everything = models.VariableOption(selected=True, text="All", value="$__all")
    return (
        dashboard.QueryVariable("cluster" if name == "watched" else name)
        .label(label)
        .datasource(DATASOURCE)
        .query({"qryType": 1, "query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery"})
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.NATURAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(everything)
    )


def _annotation(name: str, expression: str, colour: str, title: str) -> dict[str, object]:
    return {
        "name": name, "datasource": {"type": "prometheus", "uid": "${datasource}"}, "enable": False, "hide": False,
        "iconColor": colour, "expr": expression, "titleFormat": title, "step": "60s", "useValueForTime": False,
    }  # fmt: skip


ANNOTATIONS = [
    _annotation(
        "Remediations act",
        f'changes(gpuwatch_remediation_transitions_total{{{CLUSTER}, phase="Acting"}}[1m]) > 0',
        LOOK,
        "gpuwatch: {{action}}",
    ),
    _annotation("Alerts", f'ALERTS{{{CLUSTER}, alertname=~"Gpu.*", alertstate="firing"}}', ACT, "{{alertname}}"),
]


def _placed(board: Board) -> list[Any]:
    """Panels from left to right under the heading of their row, the next line below the highest of the line before."""
    placed: list[Any] = []
    top = 0
    for heading, panels in board.rows:
        row = dashboard.Row(heading).grid_pos(models.GridPos(h=1, w=24, x=0, y=top)).id(len(placed) + 1)
        placed.append(row)
        top, left, line = top + 1, 0, 0
        for panel in panels:
            if left + panel.width > 24:
                top, left, line = top + line, 0, 0
            builder = KINDS[panel.kind](panel)
            for place, query in enumerate(panel.queries):
                builder = builder.with_target(_query(query, place, panel.kind))
            position = models.GridPos(h=panel.height, w=panel.width, x=left, y=top)
            placed.append(builder.id(len(placed) + 1).grid_pos(position))
            left, line = left + panel.width, max(line, panel.height)
        top += line
    return placed


def built(board: Board) -> dict[str, Any]:
    """The board as Grafana reads it."""
    made = (
        dashboard.Dashboard(f"gpuwatch / {board.title}")
        .uid(f"gpuwatch-{board.name}")
        .description(board.what)
        .tags(["gpuwatch"])
        .timezone("browser")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .refresh("1m")
        .time("now-24h", "now")
        .readonly()
    )
    made = made.link(
        dashboard.DashboardLink("gpuwatch boards")
        .type(models.DashboardLinkType.DASHBOARDS)
        .tags(["gpuwatch"])
        .as_dropdown(True)
        .include_vars(True)
        .keep_time(True)
    )
    for title, url in (("gpuwatch's page", "${gpuwatch_url}"), ("Runbooks", f"{RUNBOOKS}/")):
        made = made.link(_link(title, url).target_blank(True))
    made = made.with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    for name in board.variables:
        made = made.with_variable(_variable(name))
    made = made.with_variable(
        dashboard.TextBoxVariable("gpuwatch_url")
        .label("gpuwatch's page")
        .description("Where your browser reaches the controller; as here after kubectl port-forward svc/gpuwatch 8080")
        .default_value("http://localhost:8080")
    )
    for panel in _placed(board):
        made = made.with_row(panel) if isinstance(panel, dashboard.Row) else made.with_panel(panel)
    value = made.build().to_json()
    # The builder knows no titleFormat of an annotation; Grafana does.
    return {**value, "annotations": {"list": ANNOTATIONS}}

