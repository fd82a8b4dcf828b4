"""What is written from FRAMEWORKS is up to date, and docs/frameworks.md has a trial of every kind that is released."""

import pytest

from gpuwatch.facts.frameworks import WRITTEN
from gpuwatch.facts.frameworks.framework import ReleaseRule
from tools.frameworks import PAGE, files
from tools.generated import ROOT

FILES = {str(path.relative_to(ROOT)): text for path, text in files().items()}


@pytest.mark.parametrize("name", FILES)
def test_the_file_is_what_follows_from_the_frameworks(name: str) -> None:
    assert (ROOT / name).read_text() == FILES[name], "make frameworks"


def test_every_kind_that_is_released_is_in_the_table_of_what_was_seen() -> None:
    trials = PAGE.read_text().split("## What was tried")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in trials.splitlines() if line.startswith("| ")]
    named = {name.split()[0] for cell in rows for name in cell.split(",") if name.split()}
    released = {kind.kind for kind in WRITTEN.values() if isinstance(kind.release, ReleaseRule)}
    # The end-to-end tests try these on each run.
    assert released - {"Workload", "Deployment", "StatefulSet"} <= named
