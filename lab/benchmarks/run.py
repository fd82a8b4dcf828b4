"""All benchmarks, one after the other: `make bench`. Each prints ratios that were measured side by side in its run."""

import subprocess
import sys

RUNS = (
    ("cluster_list",),
    ("cluster_follow",),
    ("window_statistics", "week"),
    ("window_statistics", "health"),
    ("scoping",),
    ("look",),
    ("flood",),
    ("plan_growth",),
    ("profile_update", "week"),
    ("profile_update", "fleet"),
    ("ledger",),
    ("mig_plan",),
    ("fragmentation",),
    ("state",),
    ("guardrails",),
)


def main() -> None:
    for module, *arguments in RUNS:
        print(f"\n$ python -m lab.benchmarks.{' '.join([module, *arguments])}", flush=True)
        subprocess.run([sys.executable, "-m", f"lab.benchmarks.{module}", *arguments], check=True)


if __name__ == "__main__":
    main()
