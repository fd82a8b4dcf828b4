"""All benchmarks, one after the other: `make bench`. Each prints ratios that were measured side by side in its run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
RUNS = (
    ("cluster_list.py",),
    ("cluster_follow.py",),
    ("window_statistics.py", "week"),
    ("window_statistics.py", "health"),
    ("scoping.py",),
    ("look.py",),
    ("plan_growth.py",),
    ("profile_update.py", "week"),
    ("profile_update.py", "fleet"),
    ("mig_plan.py",),
    ("guardrails.py",),
)


def main() -> None:
    for script, *arguments in RUNS:
        print(f"\n$ python benchmarks/{' '.join([script, *arguments])}", flush=True)
        subprocess.run([sys.executable, HERE / script, *arguments], check=True)


if __name__ == "__main__":
    main()
