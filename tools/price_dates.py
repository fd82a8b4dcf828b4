"""Which shipped prices are too old for a release: `python -m tools.price_dates`. Needs no package of the project's.

It is part of a release and not of the tests: a commit must not fail because time has passed.
"""

import csv
import sys
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

PRICES = Path(__file__).parents[1] / "src/gpuwatch/facts/catalog/instances.csv"
OLDEST = timedelta(days=120)


def too_old(text: str, today: date) -> dict[tuple[str, str], int]:
    """(vendor, price_date) of the rows of more than OLDEST ago → how many."""
    rows = csv.DictReader(text.splitlines())
    dated = ((row["vendor"], row["price_date"]) for row in rows)
    return dict(sorted(Counter(each for each in dated if today - date.fromisoformat(each[1]) > OLDEST).items()))


def main() -> int:
    found = too_old(PRICES.read_text(encoding="utf-8"), datetime.now(UTC).date())
    for (vendor, day), count in found.items():
        print(f"{count} prices of {vendor} are of {day}, more than {OLDEST.days} days ago")
    if found:
        print(f"Read them anew from their sources, which {PRICES.name} names in each row, before you release.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
