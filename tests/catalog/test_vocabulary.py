"""Whatever code, rules and dashboards call a metric of a GPU exporter is in the catalog, with its source."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from catalog.platform_metrics import LABEL_METRICS, PLATFORM_METRICS
from gpuwatch.facts.catalog.metrics import metric_rows

TABLES = yaml.safe_load(Path(__file__).with_name("tables.yaml").read_text(encoding="utf-8"))
ROOT = Path(__file__).parents[2]

DISTINCT = re.compile(r"\b(?:DCGM_(?:FI|EXP)|xpum|habanalabs|amd_(?:gpu|pcie))_\w+")
"""Prefixes that nothing but a metric has."""

HARDWARE = re.compile(
    r"\bhw_(?:\w+_)?(?:celsius|watts|bytes|joules|hertz|status|info|ratio|(?:joules|bytes|errors)_total)\b"
)
"""XPUM 2.x, by its units: hw_slowdown is a clock event and hw_type a label."""

AMD = re.compile(
    r"(?<!:)\bgpu_(?:gfx|umc|prof|ecc|xgmi|violation|afid|package|average_package|junction|edge)_\w+"
    r"|(?<!:)\bgpu_(?:(?:used|free|total)_\w*(?:vram|gtt)|energy_consumed|power_usage|memory_temperature|health)\b"
    r"|(?<!:)\b(?:gpu|pcie)_\w+(?=\s*[{\[])"
)
"""AMD, by what it measures or by a selector behind it: gpu_count is a column and gpu_uuid a label.
Not behind a colon: gpu:gpu_ecc_corrected:rate1h is a recorded series."""

KNOWN = {row.metric for row in metric_rows()} | set(LABEL_METRICS) | set(PLATFORM_METRICS)


def metrics_named(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """(line, metric) for all that looks like a metric of a GPU exporter. A name with an open end ('DCGM_FI_DEV_'
    before a placeholder or a wildcard) is none. In Python, the ambiguous ones count in strings alone."""
    for number, line in enumerate(text.splitlines(), 1):
        patterns = (DISTINCT,) if path.suffix == ".py" else (DISTINCT, HARDWARE, AMD)
        yield from ((number, found) for pattern in patterns for found in _whole(pattern, line))
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for offset, line in enumerate(node.value.split("\n")):
                    yield from ((node.lineno + offset, found) for p in (HARDWARE, AMD) for found in _whole(p, line))


def _whole(pattern: re.Pattern[str], line: str) -> Iterator[str]:
    return (found[0] for found in pattern.finditer(line) if not found[0].endswith("_"))


def unknown_metrics(path: Path, text: str) -> list[str]:
    return [
        f"{path}:{line}: {metric} is not in catalog/metrics.csv; correct the name, or add a row with its source"
        for line, metric in sorted(set(metrics_named(path, text)))
        if metric not in KNOWN
    ]


def sources() -> list[Path]:
    files = [*ROOT.glob("src/gpuwatch/**/*.py")]
    for folder in ("rules", "dashboards"):
        files += [path for path in ROOT.glob(f"{folder}/**/*") if path.is_file()]
    return sorted(files)


def test_every_metric_in_use_is_in_the_catalog() -> None:
    files = sources()
    assert files
    problems = [
        problem
        for path in files
        for problem in unknown_metrics(path.relative_to(ROOT), path.read_text("utf-8", "replace"))
    ]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(("file", "text", "metric"), TABLES["unknown_metrics"])
def test_an_unknown_name_is_caught_with_its_place(file: str, text: str, metric: str) -> None:
    (problem,) = unknown_metrics(Path(file), text)
    assert problem.startswith(f"{file}:2: {metric} is not in ")


@pytest.mark.parametrize(("file", "text"), TABLES["known_metrics"])
def test_what_is_known_or_no_metric_passes(file: str, text: str) -> None:
    assert unknown_metrics(Path(file), text) == []
