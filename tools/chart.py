"""Writes what the Helm chart has from elsewhere: the objects of deploy/, dashboards, alerts, its schema and README.

python -m tools.chart [--check]: writes the files, or compares them and exits with 1 where one differs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

from tools import generated
from tools.rules import alerts, recorded

DEPLOY = generated.ROOT / "deploy"
CHART = DEPLOY / "chart" / "gpuwatch"
HEAD = "# Written by `make chart` from {}. Change it there.\n"

OBJECTS = {
    "crds": ["base/crds.yaml"],
    "guardrails": ["base/admission.yaml", "base/guardrails.yaml"],
    "roles/observe": ["observe/role.yaml"],
    "roles/controller": ["base/controller-role.yaml"],
    "roles/suggest": ["roles/suggest.yaml"],
    "roles/taint": ["roles/enforce-taint.yaml"],
    "roles/evict": ["roles/enforce-evict.yaml"],
    "roles/release": ["roles/enforce-release.yaml"],
    "roles/people": ["roles/people.yaml"],
}
"""Files of the chart, and the files of deploy/ whose objects they have. A ServiceAccount is a template."""


def files() -> dict[Path, str]:
    made = {f"files/{name}.yaml": _objects(sources) for name, sources in OBJECTS.items()}
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    made["files/defaults.yaml"] = HEAD.format("values.yaml") + yaml.safe_dump(defaults, sort_keys=False)
    made["files/rules.yaml"] = HEAD.format("tools/rules") + _rules()
    for dashboard in sorted((generated.ROOT / "dashboards").glob("*.json")):
        made[f"files/dashboards/{dashboard.name}"] = json.dumps(json.loads(dashboard.read_text()), sort_keys=True) + "\n"
    return {CHART / name: text for name, text in made.items()}


def _rules() -> str:
    """The recording rules by vendor, and all alerts with what values can change in them."""
    recording = {group["name"].removeprefix("gpuwatch-"): group for group in recorded.rule_groups()}
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


def _objects(sources: list[str]) -> str:
    pieces = [piece for source in sources for piece in (DEPLOY / source).read_text().split("\n---\n")]
    kept = [piece.strip("\n") for piece in pieces if _object(piece).get("kind", "ServiceAccount") != "ServiceAccount"]
    named = " and ".join(f"deploy/{source}" for source in sources)
    return HEAD.format(named) + "\n---\n".join(kept) + "\n"


def _object(text: str) -> dict[str, Any]:
    found: dict[str, Any] | None = yaml.safe_load(text)
    return found or {}


def main(arguments: list[str]) -> int:
    return generated.main("chart", files, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
