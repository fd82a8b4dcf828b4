"""Writes rules/*.yaml, and the same groups as PrometheusRule objects for the Prometheus Operator.

python -m tools.rules [--check]: writes the files, or compares them and exits with 1 where one differs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tools.rules import recorded

ROOT = Path(__file__).resolve().parents[2]
HEAD = "# Written by `make rules`. Change tools/rules/ and write it anew.\n"


class _Dumper(yaml.SafeDumper):
    pass


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def files() -> dict[Path, str]:
    """Path → text of every file that is written."""
    written = {}
    for name, groups in (("recording", recorded.rule_groups()),):
        written[ROOT / "rules" / f"gpuwatch-{name}.yaml"] = _text({"groups": groups})
        written[ROOT / "deploy" / "optional" / f"prometheus-rule-{name}.yaml"] = _text(_object(name, groups))
    return written


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
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    stale = [path for path, text in files().items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if arguments:
            print(f"{path.relative_to(ROOT)} is out of date: make rules", file=sys.stderr)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files()[path])
    return 1 if arguments and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
