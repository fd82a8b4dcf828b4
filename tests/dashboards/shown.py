"""The committed boards as tests read them: panels, queries, and what Grafana would put for their variables."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BOARDS: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text()) for path in sorted((ROOT / "dashboards").glob("gpuwatch-*.json"))
}
SERIES = re.compile(
    r"\b(?:(?:device|gpu|gpu_kind|node|namespace|cluster):\w+:\w+|gpuwatch_\w+|kube_\w+|process_\w+|ALERTS\b)"
)
"""Names of series in PromQL."""


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    """Without the headings of rows."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def targets() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Board, panel and target of each query."""
    for name, board in BOARDS.items():
        for panel in panels(board):
            for target in panel["targets"]:
                yield name, panel, target


def variables(board: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [each for each in board["templating"]["list"] if each["type"] == kind]


def filled(text: str, cluster: str = ".*") -> str:
    """As Grafana fills it in: every variable on All, apart from the cluster."""
    values = {"cluster": cluster, "__rate_interval": "8m", "__range": "4h", "__interval": "4m"}
    return re.sub(r"\$(\w+)", lambda found: values.get(found[1], ".*"), text)
