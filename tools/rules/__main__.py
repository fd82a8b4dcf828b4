"""Writes rules/*.yaml, and the same groups as PrometheusRule objects for the Prometheus Operator.

python -m tools.rules [--check] [--runbooks URL]: writes the files, or compares them and exits with 1 where one differs.
"""

import sys
from pathlib import Path
from textwrap import indent, wrap
from typing import Any

import yaml

from tools import generated
from tools.rules import alerts, recorded

HEAD = "# Written by `make rules`. Change tools/rules/ and write it anew.\n"
OPTIONAL = "# Alerts that are often wrong, or need a threshold of yours. Load the file, or copy what you want.\n"


class _Dumper(yaml.SafeDumper):
    """Texts of several lines stand as they are."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def files() -> dict[Path, str]:
    """Path → text of every file that is written."""
    recording = recorded.rule_groups()
    made = {
        **_both("recording", recording, HEAD + _dumped({"groups": recording})),
        **_alerts("alerts", alerts.groups(optional=False), HEAD),
        **_alerts("alerts-optional", alerts.groups(optional=True), HEAD + OPTIONAL),
    }
    return {generated.ROOT / path: text for path, text in made.items()}


def _alerts(name: str, groups: dict[str, list[alerts.Alert]], head: str) -> dict[str, str]:
    rules = [{"name": group, "rules": [alerts.rule(alert) for alert in listed]} for group, listed in groups.items()]
    return _both(name, rules, head + _explained(groups))


def _both(name: str, groups: list[dict[str, Any]], page: str) -> dict[str, str]:
    """The rule file, and the groups as an object."""
    rule_object = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {
            "name": f"gpuwatch-{name}",
            "namespace": "gpuwatch",
            "labels": {"app.kubernetes.io/name": "gpuwatch", "app.kubernetes.io/component": "rules"},
        },
        "spec": {"groups": groups},
    }
    return {
        f"rules/gpuwatch-{name}.yaml": page,
        f"deploy/optional/prometheus-rule-{name}.yaml": HEAD + _dumped(rule_object),
    }


def _explained(groups: dict[str, list[alerts.Alert]]) -> str:
    """Groups of alerts with the source of each threshold beside it."""
    lines = ["groups:\n"]
    for group, listed in groups.items():
        lines.append(f"- name: {group}\n  rules:\n")
        for alert in listed:
            why = [alert.why, *([f"Off: {alert.optional_because}"] if alert.optional_because else [])]
            lines.extend(f"  # {line}\n" for text in why for line in wrap(text, 110))
            lines.append(indent(_dumped([alerts.rule(alert)]), "  "))
    return "".join(lines)


def _dumped(content: Any) -> str:
    text: str = yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=100_000, allow_unicode=True)
    return text


if __name__ == "__main__":
    sys.exit(generated.main("rules", files, sys.argv[1:]))
