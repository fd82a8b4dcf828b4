"""Writes what the Helm chart has from elsewhere: the objects of deploy/, dashboards, alerts, its schema and README.

python -m tools.chart [--check]: writes the files, or compares them and exits with 1 where one differs.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from gpuwatch.app.settings import Settings
from gpuwatch.facts.model.telemetry import Vendor
from tools import generated
from tools.rules import alerts, recorded

DEPLOY = generated.ROOT / "deploy"
CHART = DEPLOY / "chart" / "gpuwatch"
VALUE_TYPES = Path(__file__).with_name("chart_values.yaml")
VALUES = "## Values"
HEAD = "# Written by `make chart` from {}. Change it there.\n"

OBJECTS = {
    "crds": ["base/crds.yaml"],
    "guardrails": ["base/admission.yaml", "base/guardrails.yaml"],
    "roles/observe": ["observe/role.yaml"],
    "roles/controller": ["base/controller-role.yaml"],
    "roles/suggest": ["roles/suggest.yaml"],
    "roles/taint": ["roles/enforce-taint.yaml"],
    "roles/evict": ["roles/enforce-evict.yaml"],
    "roles/makeRoom": ["roles/enforce-make-room.yaml"],
    "roles/release": ["roles/enforce-release.yaml"],
    "roles/people": ["roles/people.yaml"],
}
"""Files of the chart, and the files of deploy/ whose objects they have. A ServiceAccount is a template."""


def files() -> dict[Path, str]:
    made = {f"files/{name}.yaml": _objects(sources) for name, sources in OBJECTS.items()}
    text = (CHART / "values.yaml").read_text()
    defaults = yaml.safe_load(text)
    made["files/defaults.yaml"] = HEAD.format("values.yaml") + yaml.safe_dump(defaults, sort_keys=False)
    made["files/rules.yaml"] = HEAD.format("tools/rules") + _rules()
    for name, path in _dashboards().items():
        made[f"files/dashboards/{name}.json"] = json.dumps(json.loads(path.read_text()), separators=(",", ":")) + "\n"
    comments = dict(explained(text))
    made["values.schema.json"] = json.dumps(schema(defaults, comments), indent=1) + "\n"
    made["README.md"] = (CHART / "README.md").read_text().partition(VALUES)[0] + VALUES + _table(defaults, comments)
    return {CHART / name: text for name, text in made.items()}


def explained(values: str) -> Iterator[tuple[str, str]]:
    """Path of a value, such as 'image.tag', and what the comment above it says ("# -- …")."""
    at: list[tuple[int, str]] = []
    said: list[str] = []
    for line in values.splitlines():
        words = line.strip()
        if words.startswith("#"):
            said = [words[5:]] if words.startswith("# -- ") else [*said, words[2:]] if said else []
        elif found := re.match(r"( *)([A-Za-z]+):", line):
            at = [(depth, name) for depth, name in at if depth < len(found[1])] + [(len(found[1]), found[2])]
            if said:
                yield ".".join(name for _, name in at), " ".join(said)
            said = []


def schema(defaults: Mapping[str, Any], comments: Mapping[str, str]) -> dict[str, Any]:
    """The JSON Schema of the values. What no comment explains is an error."""
    settings = _stripped(Settings.model_json_schema())
    definitions = settings.pop("$defs")
    # What the chart decides: the mode, the Prometheus, where the state and the Lease are.
    del definitions["PlanPolicy"]["properties"]["modes"]
    del definitions["Connection"]["required"], definitions["Connection"]["properties"]["url"]
    for name in ("namespace", "folder"):
        del definitions["ControllerPolicy"]["properties"][name]
    more = yaml.safe_load(VALUE_TYPES.read_text())
    known = {
        **more["schemas"],
        **{key: {"type": "object"} for key in more["whole"]},
        **{key: {"type": "object", "additionalProperties": {"type": "string"}} for key in more["texts"]},
        **{key: {"type": "array", "items": {"type": "string"}} for key in more["words"]},
        "settings": settings,
        "prometheusRule.rules": _closed({alert.name: _changes(alert) for alert in alerts.alerts()}),
        "prometheusRule.vendors": {"items": {"enum": [vendor.value for vendor in Vendor]}},
        "grafanaDashboards.perDashboard": _closed({name: {"type": "boolean"} for name in _dashboards()}),
    }
    made = _schema_of(defaults, "", known, comments)
    if unknown := set(known) - set(_paths(defaults)):
        raise ValueError(f"{VALUE_TYPES.name}: there is no value {', '.join(sorted(unknown))}")
    made["properties"]["global"] = {"type": "object", "description": "What a chart around this one sets for all."}
    return {"$schema": "http://json-schema.org/draft-07/schema#", "$defs": definitions, **made}


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _changes(alert: alerts.Alert) -> dict[str, Any]:
    duration = {"type": "string", "pattern": "^([0-9]+(ms|s|m|h|d|w|y))+$"}
    threshold = {} if alert.threshold is None else {"threshold": {"type": "number", "default": alert.threshold}}
    return _closed(
        {
            "enabled": {"type": "boolean", "default": not alert.optional_because},
            "for": {**duration, "default": alert.wait},
            "keepFiringFor": duration,
            "severity": {"enum": ["critical", "warning", "info"], "default": alert.severity},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            **threshold,
        }
    )


TYPES = {bool: "boolean", int: "integer", str: "string", list: "array", dict: "object"}


def _schema_of(value: Any, path: str, known: Mapping[str, Any], comments: Mapping[str, str]) -> dict[str, Any]:
    given = known.get(path, {})
    made: dict[str, Any] = {"type": TYPES[type(value)]}
    if type(value) is int:
        made["minimum"] = 0
    if isinstance(value, dict) and path not in known:
        if not value:
            raise ValueError(f"{VALUE_TYPES.name} does not say what may be in {path}")
        below = {name: _schema_of(each, f"{path}.{name}".lstrip("."), known, comments) for name, each in value.items()}
        return {**made, **_closed(below)}
    if path not in comments:
        raise ValueError(f"values.yaml: no comment ('# -- …') explains {path}")
    made.update(given)
    if "properties" in made:
        made["additionalProperties"] = False
    if "properties" in made.get("items", {}):
        made["items"] = {**made["items"], "additionalProperties": False}
    return {"description": comments[path], **made}


def _paths(value: Any, path: str = "") -> Iterator[str]:
    yield path
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _paths(each, f"{path}.{name}".lstrip("."))


def _stripped(schema: Any) -> Any:
    """Without titles, docstrings and defaults that are maps, which would be most of the file."""
    if isinstance(schema, list):
        return [_stripped(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    left = {"title", "description", *(["default"] if isinstance(schema.get("default"), dict) else [])}
    return {
        name: _stripped(each)
        for name, each in schema.items()
        if name not in left or (isinstance(each, dict) and name != "default")
    }


def _table(defaults: Mapping[str, Any], comments: Mapping[str, str]) -> str:
    """The values as a Markdown table."""
    lines = ["", "", "| value | default | what |", "|---|---|---|"]
    for path, says in comments.items():
        value: Any = defaults
        for name in path.split("."):
            value = value[name]
        shown = json.dumps(value, ensure_ascii=False)
        cells = (f"`{path}`", f"`{shown}`" if len(shown) <= 60 else "in values.yaml", says)
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def _dashboards() -> dict[str, Path]:
    return {path.stem: path for path in sorted((generated.ROOT / "dashboards").glob("*.json"))}


def _rules() -> str:
    """The recording rules by vendor, and all alerts with what values can change in them."""
    recording = [
        {"vendor": group["name"].removeprefix("gpuwatch-recording-"), "group": group}
        for group in recorded.rule_groups()
    ]
    listed = [
        {"name": f"gpuwatch-{name}", "rules": [_alert(alert) for alert in group]}
        for name, group in alerts.read(yaml.safe_load(alerts.LIST.read_text()), keep_threshold=True).items()
    ]
    return yaml.safe_dump({"recording": recording, "alerts": listed}, sort_keys=False, width=100_000)


def _alert(alert: alerts.Alert) -> dict[str, Any]:
    rule = alerts.rule(alert)
    severity = rule.pop("labels")["severity"]
    threshold = {} if alert.threshold is None else {"threshold": alert.threshold}
    return {**rule, "severity": severity, "optional": bool(alert.optional_because), **threshold}


_ACCOUNT = "ServiceAccount"


def _objects(sources: list[str]) -> str:
    pieces = [piece for source in sources for piece in (DEPLOY / source).read_text().split("\n---\n")]
    kept = [piece.strip("\n") for piece in pieces if (yaml.safe_load(piece) or {}).get("kind", _ACCOUNT) != _ACCOUNT]
    named = " and ".join(f"deploy/{source}" for source in sources)
    return HEAD.format(named) + "\n---\n".join(kept) + "\n"


if __name__ == "__main__":
    sys.exit(generated.main("chart", files, sys.argv[1:]))
