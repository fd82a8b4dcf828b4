"""A small dashboard with one panel of each kind that can be drawn, and samples for it: what the renderer is held to."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

START = datetime(2026, 3, 2, 6, tzinfo=UTC)
END = START + timedelta(hours=6)
STEP_S = 30

LABELS = tuple(
    f'cluster="east",node="n{card // 2}",UUID="GPU-{card}",modelName="{model}"'
    for card, model in enumerate(("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB", "NVIDIA L4", "NVIDIA L4"))
)


def openmetrics() -> str:
    """Four GPUs on two nodes for six hours: temperature, a busy share, watts; a counter that grows by 2 a second."""
    times = range(0, int((END - START).total_seconds()) + 1, STEP_S)
    start = START.timestamp()

    def lines(metric: str, value: Any) -> list[str]:
        return [f"# TYPE {metric} gauge"] + [
            f"{metric}{{{labels}}} {value(card, second):.4f} {start + second:.0f}"
            for card, labels in enumerate(LABELS)
            for second in times
        ]

    def busy(card: int, second: int) -> float:
        return 0.2 * card + 0.1 * (1 + math.sin(second / 1800 + card))

    return "\n".join(
        [
            *lines("gpu:gpu_temperature_celsius:max", lambda card, second: 45 + 40 * busy(card, second)),
            *lines("gpu:gpu_engine_active_ratio:weighted", busy),
            *lines("gpu:gpu_power_watts:max", lambda card, second: 512.0 if card == 3 else 250.0),
            "# TYPE sample_requests counter",
            *(f'sample_requests_total{{cluster="east"}} {2 * second} {start + second:.0f}' for second in times),
            "# EOF\n",
        ]
    )


SELECTED = 'cluster=~"$cluster",node=~"$node",modelName=~"$model"'
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


def _query(name: str, label: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": f"label_values(gpu:gpu_temperature_celsius:max, {label})", "refId": "v"},
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _target(expr: str, ref: str = "A", **more: Any) -> dict[str, Any]:
    return {"refId": ref, "datasource": DATASOURCE, "expr": expr, **more}


def _panel(kind: str, title: str, at: tuple[int, int, int, int], *targets: Any, **more: Any) -> dict[str, Any]:
    x, y, w, h = at
    place = {"x": x, "y": y, "w": w, "h": h}
    described = {"description": f"What **{title}** is.", "datasource": DATASOURCE, "targets": list(targets)}
    return {"type": kind, "title": title, "gridPos": place, **described, **more}


def _unit(unit: str, **more: Any) -> dict[str, Any]:
    return {"defaults": {"unit": unit, **more}, "overrides": []}


def dashboard() -> dict[str, Any]:
    """Each kind with data; a query that is no PromQL, one that finds nothing, a kind that cannot be drawn."""
    instant = {"instant": True, "range": False}
    table = {"instant": True, "range": False, "format": "table"}
    temperature = f"gpu:gpu_temperature_celsius:max{{{SELECTED}}}"
    steps = [{"color": "green", "value": None}, {"color": "orange", "value": 300}, {"color": "red", "value": 500}]
    celsius = {"id": "unit", "value": "celsius"}
    link = {"title": "Node", "url": "/d/nodes?${datasource:queryparam}&var-node=${__data.fields.Node}"}
    renamed = {"Value #A": "Hottest", "Value #B": "Power", "node": "Node"}
    folded = _panel("table", "Folded", (0, 19, 12, 6), _target("sum by (node) (gpu:gpu_power_watts:max)", **table))
    return {
        "title": "Sample",
        "uid": "sample",
        "schemaVersion": 41,
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "label": "Data", "type": "datasource", "query": "prometheus", "current": {}},
                _query("cluster", "cluster"),
                _query("namespace", "namespace"),
                _query("node", "node"),
                _query("model", "modelName"),
                _query("UUID", "UUID") | {"includeAll": False, "multi": False, "allValue": None, "current": {}},
            ]
        },
        "panels": [
            _panel(
                "stat",
                "Power",
                (0, 0, 6, 4),
                _target(f"sum(gpu:gpu_power_watts:max{{{SELECTED}}})", **instant),
                fieldConfig=_unit("watt", thresholds={"mode": "absolute", "steps": steps}),
            ),
            _panel(
                "stat",
                "Requests",
                (6, 0, 6, 4),
                _target("sum(rate(sample_requests_total[$__rate_interval]))"),
                fieldConfig=_unit("reqps"),
            ),
            _panel(
                "stat",
                "Nothing found",
                (12, 0, 6, 4),
                _target("sum(no_such_metric)", **instant),
                fieldConfig=_unit("short", noValue="No GPU reports this"),
            ),
            _panel("stat", "Broken", (18, 0, 6, 4), _target("sum(no_such_metric", **instant)),
            _panel(
                "timeseries",
                "Temperature",
                (0, 4, 12, 8),
                _target(f"max by (node) ({temperature})", legendFormat="{{node}}"),
                _target("vector(85)", "B", legendFormat="limit"),
                options={"legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull"]}},
                fieldConfig={
                    "defaults": {"unit": "celsius", "decimals": 1, "custom": {"fillOpacity": 10, "lineWidth": 2}},
                    "overrides": [
                        {
                            "matcher": {"id": "byName", "options": "limit"},
                            "properties": [
                                {"id": "displayName", "value": "Slowdown"},
                                {"id": "color", "value": {"mode": "fixed", "fixedColor": "red"}},
                                {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [10, 10]}},
                            ],
                        }
                    ],
                },
            ),
            _panel(
                "timeseries",
                "Nothing to draw",
                (12, 4, 12, 4),
                _target("no_such_metric"),
                fieldConfig=_unit("short", noValue="No samples in this time"),
            ),
            _panel(
                "bargauge",
                "Busy",
                (12, 8, 12, 4),
                _target(f"avg by (modelName) (gpu:gpu_engine_active_ratio:weighted{{{SELECTED}}})", **instant)
                | {"legendFormat": "{{modelName}}"},
                options={"orientation": "horizontal", "displayMode": "gradient"},
                fieldConfig=_unit("percentunit", min=0, max=1, color={"mode": "fixed", "fixedColor": "blue"}),
            ),
            _panel(
                "table",
                "Nodes",
                (0, 12, 12, 6),
                _target(f"max by (node) ({temperature})", **table),
                _target(f"sum by (node) (gpu:gpu_power_watts:max{{{SELECTED}}})", "B", **table),
                transformations=[
                    {"id": "merge", "options": {}},
                    {
                        "id": "organize",
                        "options": {
                            "excludeByName": {"Time": True},
                            "indexByName": {"node": 0, "Value #B": 1, "Value #A": 2},
                            "renameByName": renamed,
                        },
                    },
                ],
                fieldConfig={
                    "defaults": {"unit": "watt"},
                    "overrides": [
                        {"matcher": {"id": "byName", "options": "Hottest"}, "properties": [celsius]},
                        {
                            "matcher": {"id": "byName", "options": "Node"},
                            "properties": [{"id": "links", "value": [link]}],
                        },
                    ],
                },
            ),
            _panel(
                "text",
                "Notes",
                (12, 12, 6, 6),
                options={"mode": "markdown", "content": "GPUs of **$cluster**, first `$UUID`, over $__range."},
            ),
            _panel("heatmap", "No component", (18, 12, 6, 6), _target(temperature)),
            {
                "type": "row",
                "title": "Folded away",
                "collapsed": True,
                "gridPos": {"x": 0, "y": 18, "w": 24, "h": 1},
                "panels": [folded],
            },
            _panel("stat", "After the fold", (0, 19, 6, 4), _target("vector(1)", **instant)),
        ],
    }
