"""Writes dashboards/*.json, or with --check says which of them differ.

python -m tools.dashboards [--check] [--runbooks URL]
"""

import json
import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from tools import generated
from tools.dashboards.boards import boards
from tools.dashboards.grafana import built


def files() -> dict[Path, str]:
    """Path → text of every board."""
    return {
        generated.ROOT / "dashboards" / f"gpuwatch-{name}.json": json.dumps(
            built(name, board), cls=JSONEncoder, sort_keys=True, indent=1
        )
        + "\n"
        for name, board in boards().items()
    }


if __name__ == "__main__":
    sys.exit(generated.main("dashboards", files, sys.argv[1:]))
