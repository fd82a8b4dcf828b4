"""A board as Grafana reads it: colours, variables, links, kinds of panels, and how panels are placed.

Absence is never health. A panel whose query returns nothing shows `no_value`, which says what is known then. Where a
count of nothing is a fact (no XID on GPUs that report), the query makes its 0 from series that report (`> bool 0`,
`judged`), never from nothing (`or vector(0)`).
"""

import re
from collections.abc import Sequence
from typing import Any

from grafana_foundation_sdk.builders import bargauge, common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import prometheus as prometheus_models
from grafana_foundation_sdk.models import units

from gpuwatch.act.slots import RoomFor
from gpuwatch.say.weekly_words import ROWS
from tools.dashboards.boards import Board, Column, Panel, Query
from tools.generated import RUNBOOKS, runbook

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

NAMES = {
    "{{row}}": {row.value: words for row, words in ROWS.items()},
    "{{row}}, unknown": {f"{row}, unknown": f"{words} (unknown)" for row, words in ROWS.items()},
    "{{room}}": {
        RoomFor.FITS.value: "there is room now",
        RoomFor.NONE.value: "there is no room",
        RoomFor.NEW.value: "created since the scheduler looked",
        RoomFor.UNKNOWN.value: "not known",
    },
}
"""By legend, what people read in place of a label's value."""

HEADINGS = {
    "GPU_I_ID": "MIG instance", "GPU_I_PROFILE": "MIG profile", "UUID": "GPU", "accelerator": "Resource",
    "action": "Action", "advice": "Advice", "alertname": "Alert", "cluster": "Cluster", "currency": "Currency",
    "detector": "Detector", "gpu_model": "GPU model", "gpu_node": "Node", "instance": "Replica", "kind": "Finding",
    "modelName": "GPU model", "namespace": "Namespace", "node": "Node", "outcome": "Outcome", "phase": "Phase",
    "pod": "Pod", "pool": "Pool", "reason": "Reason", "resource": "Resource", "scope": "Pool or model",
    "severity": "Severity", "target": "Target", "task": "Task", "topology": "Within one", "verdict": "Verdict",
    "version": "Version", "workload_namespace": "Namespace", "workload_pod": "Pod",
}  # fmt: skip
"""What the columns of labels are called. The label's own name stays the name by which links and colours find it."""

DATASOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
SERIES = re.compile(
    r"\b((?:device|gpu|gpu_kind|node|namespace|cluster):\w+:\w+|gpuwatch_\w+|kube_\w+|process_\w+|ALERTS\b)"
    r"(?:\{([^}]*)\})?"
)
"""Series in PromQL, with what chooses among them."""

CHOICES = (
    (r"device:gpu_workload:info", {"namespace": "namespace", "pod": "pod"}),
    (r"(device|gpu|gpu_kind|node):|kube_", {"node": "node"}),
    (r"(device|gpu|gpu_kind|cluster):", {"model": "modelName"}),
    (r"(device|gpu|gpu_kind):", {"uuid": "UUID"}),
    (r"namespace:", {"namespace": "namespace"}),
    (r"gpuwatch_(finding$|cost|saving|allocated)", {"namespace": "workload_namespace"}),
    (r"gpuwatch_finding$", {"pod": "workload_pod"}),
    (r"gpuwatch_(finding$|device_health|taint_age)", {"node": "gpu_node"}),
)  # fmt: skip
"""By which label a variable chooses among series of such names; `cluster` chooses among all."""


VARIABLE_OF = {"cluster": "cluster", **{label: word for _, known in CHOICES for word, label in known.items()}}


def chosen(expression: str, variables: Sequence[str]) -> str:
    """The expression with each series chosen by all variables of the board that its labels know.

    A series that says `cluster=~"$cluster"` itself is meant so: not narrowed to a Pod, a Node or a model.
    """

    def one(found: re.Match[str]) -> str:
        name, given = found[1], found[2] or ""
        if "$cluster" in given:
            return found[0]
        labels = ['cluster=~"$cluster"', *([given] if given else [])]
        for pattern, known in CHOICES:
            if re.match(pattern, name):
                labels += [f'{label}=~"${variable}"' for variable, label in known.items() if variable in variables]
        return f"{name}{{{', '.join(labels)}}}"

    return SERIES.sub(one, expression)


def _property(name: str, value: object) -> models.DynamicConfigValue:
    return models.DynamicConfigValue(id_val=name, value=value)


def _steps(coloured: Panel | Column, below: str) -> list[dict[str, object]]:
    every = ((coloured.orange_from, LOOK), (coloured.red_from, ACT))
    higher: list[dict[str, object]] = [{"value": at, "color": colour} for at, colour in every if at is not None]
    return [{"value": None, "color": below}, *higher]


def _link(title: str, url: str) -> dashboard.DashboardLink:
    return dashboard.DashboardLink(title).type(models.DashboardLinkType.LINK).url(url).target_blank(True)


def _cell_link(title: str, url: str) -> models.DynamicConfigValue:
    return _property("links", [{"title": title, "url": url, "targetBlank": not url.startswith("/d/")}])


def _drill(column: str, board: str, labels: Sequence[str]) -> models.DynamicConfigValue:
    """The link of a column's cells: to the alert's runbook, or to a board with the row's cluster and this value."""
    if board == "runbook":
        return _cell_link("Runbook", runbook("${__data.fields.alertname}"))
    keep = {column, "cluster"} | ({"namespace", "workload_namespace"} if VARIABLE_OF[column] == "pod" else set())
    values = "".join(f"&var-{VARIABLE_OF[each]}=${{__data.fields.{each}}}" for each in labels if each in keep)
    return _cell_link(
        f"Show it: {board}", f"/d/gpuwatch-{board}?${{datasource:queryparam}}{values}&${{__url_time_range}}"
    )


def _shared(builder: Any, panel: Panel) -> Any:
    """What each kind of panel has: words, unit, bounds, and one fixed colour for each state among its series."""
    source = list(dict.fromkeys(found[1] for each in panel.asked for found in SERIES.finditer(each.query)))
    of_gpuwatch = all(name.startswith(("gpuwatch_", "process_")) for name in source)
    steps = _steps(panel, GOOD if panel.green else NEUTRAL)
    thresholds = dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE)
    builder = (
        builder.title(panel.title)
        .description(f"{panel.shows}\n\nSource: {', '.join(source)}.\n\nCannot see: {panel.cannot_see}.")
        .datasource(DATASOURCE)
        .unit(panel.unit)
        .no_value(panel.no_value or ("gpuwatch tells nothing" if of_gpuwatch else "no telemetry"))
        .thresholds(thresholds.steps([models.Threshold(**step) for step in steps]))  # type: ignore[arg-type]
    )
    if panel.runbook:
        builder = builder.links([_link("Runbook", runbook(panel.runbook))])
    if panel.unit == units.PercentUnit:
        builder = builder.min(0).max(1)
    if panel.decimals is not None:
        builder = builder.decimals(panel.decimals)
    if panel.words:
        words = {value: models.ValueMappingResult(text=text) for value, text in panel.words.items()}
        builder = builder.mappings([models.ValueMap(options=words)])
    legends = {each.legend for each in panel.asked}
    for state, colour in STATES.items():
        if state in legends or "{{phase}}" in legends:
            builder = builder.override_by_name(state, [_property("color", {"mode": "fixed", "fixedColor": colour})])
    for value, text in (item for legend in sorted(legends & set(NAMES)) for item in NAMES[legend].items()):
        builder = builder.override_by_name(value, [_property("displayName", text)])
    return builder


LAST = common.ReduceDataOptions().calcs(["lastNotNull"]).values(False)


def _stat(panel: Panel) -> Any:
    kind = common_models.BigValueTextMode
    return (
        _shared(stat.Panel(), panel)
        .reduce_options(LAST)
        .graph_mode(common_models.BigValueGraphMode.NONE)
        .color_mode(common_models.BigValueColorMode.VALUE)
        .text_mode(kind.VALUE_AND_NAME if panel.asked[0].legend else kind.AUTO)
    )


def _timeseries(panel: Panel) -> Any:
    legend = common.VizLegendOptions().display_mode(common_models.LegendDisplayMode.LIST).show_legend(True)
    tooltip = common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI)
    style = common_models.GraphDrawStyle
    builder = (
        _shared(timeseries.Panel(), panel)
        .draw_style(style.POINTS if panel.points else style.LINE)
        .point_size(5)
        .line_width(1)
        .fill_opacity(0)
        .span_nulls(False)  # where telemetry is absent the line is, too
        .legend(legend.placement(common_models.LegendPlacement.BOTTOM).calcs([]))
        .tooltip(tooltip.sort(common_models.SortOrder.DESCENDING))
    )
    return builder if panel.unit == units.Celsius else builder.axis_soft_min(0)


def _bargauge(panel: Panel) -> Any:
    builder = (
        _shared(bargauge.Panel(), panel)
        .reduce_options(LAST)
        .orientation(common_models.VizOrientation.HORIZONTAL)
        .display_mode(common_models.BarGaugeDisplayMode.BASIC)
        .sizing(common_models.BarGaugeSizing.MANUAL)  # else one bar alone fills its panel
        .max_viz_height(32)
    )
    return builder if panel.unit == units.PercentUnit else builder.min(0)


def _table(panel: Panel) -> Any:
    builder = _shared(table.Panel(), panel).show_header(True).filterable(True).min_width(60)
    order = {name: place for place, name in enumerate(panel.rows_by)}
    rename, hidden, text = {}, {"Time": True}, _property("custom.cellOptions", {"type": "color-text"})
    for place, column in enumerate(panel.columns):
        # With one query alone Grafana calls the column Value, with more Value #A and so on.
        value = "Value" if len(panel.columns) == 1 else f"Value #{chr(ord('A') + place)}"
        if not column.title:
            hidden[value] = True
            continue
        rename[value], order[value] = column.title, len(order)
        width = max(90, 48 + 7 * len(column.title))  # pixels of its heading; the labels share what is left
        properties = [_property("unit", column.unit), _property("noValue", "–"), _property("custom.width", width)]
        if column.runbook:
            steps = {"mode": "absolute", "steps": _steps(column, "text")}
            properties += [_property("thresholds", steps), text, _cell_link("Runbook", runbook(column.runbook))]
        builder = builder.override_by_name(column.title, properties)
    shown = {"excludeByName": hidden, "indexByName": order, "renameByName": rename}
    for name, options in (("merge", {}), ("organize", shown)):
        builder = builder.with_transformation(models.DataTransformerConfig(id_val=name, options=options))
    if "severity" in panel.rows_by:  # critical comes before warning
        builder = builder.sort_by([common.TableSortByFieldState().display_name(HEADINGS["severity"])])
    words = {word: {"text": word, "color": colour} for word, colour in STATES.items()}
    for name in sorted({"severity", "outcome", "phase"} & set(panel.rows_by)):
        mapped = _property("mappings", [{"type": "value", "options": words}])
        builder = builder.override_by_name(name, [mapped, text])
    for name in panel.rows_by:  # an empty label is no empty panel
        shown_as = _property("displayName", HEADINGS[name])
        builder = builder.override_by_name(name, [shown_as, _property("noValue", "–")])
    for name, board in panel.links.items():
        builder = builder.override_by_name(name, [_drill(name, board, panel.rows_by)])
    return builder


KINDS = {"stat": _stat, "timeseries": _timeseries, "bargauge": _bargauge, "table": _table}


def _query(query: Query, place: int, kind: str, variables: Sequence[str]) -> prometheus.Dataquery:
    target = prometheus.Dataquery().datasource(DATASOURCE).expr(chosen(query.query, variables))
    target = target.ref_id(chr(ord("A") + place))
    target = target.editor_mode(prometheus_models.QueryEditorMode.CODE)
    if query.legend:
        target = target.legend_format(query.legend)
    if kind == "timeseries":
        return target.range()
    target = target.instant()
    return target.format(prometheus_models.PromQueryFormat.TABLE) if kind == "table" else target


VARIABLES = {
    "cluster": ("Cluster", "node:gpus:count, cluster"),
    "namespace": ("Namespace", "namespace:gpus_allocated:count, namespace"),
    "node": ("Node", "node:gpus:count, node"),
    "model": ("Model", "cluster:gpus:count, modelName"),
    "uuid": ("GPU", "gpu:gpu_temperature_celsius:max, UUID"),
    "pod": ("Pod", "device:gpu_workload:info, pod"),
    # gpuwatch's own boards list the clusters in which it runs, with GPUs or without.
    "watched": ("Cluster", "gpuwatch_build_info, cluster"),
}  # fmt: skip


def _variable(name: str, before: Sequence[str]) -> dashboard.QueryVariable:
    label, asked = VARIABLES[name]
    query = f"label_values({chosen(asked, before) if before else asked})"
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


ANNOTATIONS = [
    {
        "name": name, "expr": chosen(expression, ()), "titleFormat": title, "iconColor": colour, "enable": False,
        "datasource": {"type": "prometheus", "uid": "${datasource}"}, "hide": False, "step": "60s",
    }
    for name, expression, title, colour in (
        ("Remediations act", 'changes(gpuwatch_remediation_transitions_total{phase="Acting"}[3m]) > 0',
         "gpuwatch: {{action}}", LOOK),
        ("Alerts", 'ALERTS{alertname=~"Gpu.*", alertstate="firing"}', "{{alertname}}", ACT),
    )
]  # fmt: skip


def _placed(board: Board) -> list[Any]:
    """Panels from left to right under the heading of their row, the next line below the highest of the line before."""
    placed: list[Any] = []
    top = 0
    for heading, panels in board.rows.items():
        row = dashboard.Row(heading).grid_pos(models.GridPos(h=1, w=24, x=0, y=top)).id(len(placed) + 1)
        placed.append(row)
        top, left, line = top + 1, 0, 0
        for panel in panels:
            stats = [each for each in panels if each.kind == "stat"]
            width = panel.width or (24 // len(stats) if panel in stats else 12)
            height = panel.height or (4 if panel in stats else 8)
            if left + width > 24:
                top, left, line = top + line, 0, 0
            builder = KINDS[panel.kind](panel)
            for place, query in enumerate(panel.asked):
                builder = builder.with_target(_query(query, place, panel.kind, board.variables))
            position = models.GridPos(h=height, w=width, x=left, y=top)
            placed.append(builder.id(len(placed) + 1).grid_pos(position))
            left, line = left + width, max(line, height)
        top += line
    return placed


def built(name: str, board: Board) -> dict[str, Any]:
    """The board as Grafana reads it."""
    made = (
        dashboard.Dashboard(f"gpuwatch / {board.title}")
        .uid(f"gpuwatch-{name}")
        .description(board.shows)
        .tags(["gpuwatch"])
        .timezone("browser")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .refresh("1m")
        .time("now-24h", "now")
        .editable()
    )
    others = dashboard.DashboardLink("gpuwatch boards").type(models.DashboardLinkType.DASHBOARDS).tags(["gpuwatch"])
    made = made.link(others.as_dropdown(True).include_vars(True).keep_time(True))
    for title, url in (("gpuwatch's page", "${gpuwatch_url}"), ("Runbooks", f"{RUNBOOKS}/")):
        made = made.link(_link(title, url))
    made = made.with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    for place, variable in enumerate(board.variables):
        made = made.with_variable(_variable(variable, board.variables[:place]))
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
