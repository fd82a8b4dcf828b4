"""Writes rules/*.yaml, and the same groups as PrometheusRule objects for the Prometheus Operator.

python -m tools.rules [--check] [--runbooks URL]: writes the files, or compares them and exits with 1 where one differs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tools.rules import alerts, recorded

ROOT = Path(__file__).resolve().parents[2]
HEAD = "# Written by `make rules`. Change tools/rules/ and write it anew.\n"


class _Dumper(yaml.SafeDumper):
    pass


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def files(runbooks: str = alerts.RUNBOOKS) -> dict[Path, str]:
    """Path → text of every file that is written. runbooks: where the runbook pages are served."""
    named = {"recording": recorded.rule_groups()}
    pages = {"recording": _text({"groups": named["recording"]})}
    for name, optional in (("alerts", False), ("alerts-optional", True)):
        named[name] = alerts.groups(optional=optional, runbooks=runbooks)
        pages[name] = alerts.page(optional=optional, runbooks=runbooks)
    return {
        **{ROOT / "rules" / f"gpuwatch-{name}.yaml": text for name, text in pages.items()},
        **{
            ROOT / "deploy" / "optional" / f"prometheus-rule-{name}.yaml": _text(_object(name, groups))
            for name, groups in named.items()
        },
    }


def _object(name: str, groups: list[dict[str, Any]]) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": "gpuwatch", "app.kubernetes.io/component": "rules"}
    metadata = {"name": f"gpuwatch-{name}", "namespace": "gpuwatch", "labels": labels}
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": metadata,
        "spec": {"groups": groups},
    }


def _text(content: Mapping[str, Any]) -> str:
    dumped: str = yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=100_000, allow_unicode=True)
    return HEAD + dumped


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.rules", description="Writes the rules.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where a file differs")
    parser.add_argument("--runbooks", default=alerts.RUNBOOKS, metavar="URL", help="where the runbook pages are served")
    options = parser.parse_args(arguments)
    written = files(options.runbooks)
    stale = [path for path, text in written.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if options.check:
            print(f"{path.relative_to(ROOT)} is out of date: make rules", file=sys.stderr)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(written[path])
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
