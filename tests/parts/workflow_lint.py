"""actionlint, which checks GitHub's workflows: where it is. `parts/install` builds it."""

import os
from pathlib import Path

from parts.go_tools import OLDER


def find_actionlint() -> Path | None:
    """What parts/install built; None where it did not."""
    program = OLDER.folder / "actionlint"
    return program if os.access(program, os.X_OK) else None
