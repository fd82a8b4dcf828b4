"""Write dashboards/*.json, or with --check say which of them are not as the code makes them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from tools.dashboards import controller, hardware
from tools.dashboards.parts import Board, built

FOLDER = Path(__file__).parents[2] / "dashboards"
BOARDS: tuple[Board, ...] = (
    hardware.FLEET,
    hardware.NODES,
    hardware.GPU,
    controller.WORKLOAD,
    hardware.HEALTH,
    controller.MONEY,
    controller.REMEDIATION,
    controller.SELF,
)


def files() -> dict[str, str]:
    """What each file of dashboards/ has to hold, by its name."""
    return {
        f"gpuwatch-{board.name}.json": json.dumps(built(board), cls=JSONEncoder, sort_keys=True, indent=1) + "\n"
        for board in BOARDS
    }


def main() -> None:
    wanted = files()
    if "--check" in sys.argv:
        there = {path.name: path.read_text() for path in FOLDER.glob("*.json")}
        old = sorted(name for name in {*wanted, *there} if wanted.get(name) != there.get(name))
        sys.exit(f"dashboards/ is out of date ({', '.join(old)}): make dashboards" if old else 0)
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.glob("*.json"):
        path.unlink()
    for name, text in wanted.items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
