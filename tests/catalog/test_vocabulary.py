"""Whatever code, rules and dashboards call a metric of a GPU exporter is in the catalog, with its source."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from catalog.platform_metrics import LABEL_METRICS, PLATFORM_METRICS
from gpuwatch.facts.catalog.metrics import metric_rows

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


@pytest.mark.parametrize(
    ("file", "text", "metric"),
    [
        ("a.py", "x = 1\nQUERY = 'max(DCGM_FI_DEV_ECC_DBE_VOL[5m])'", "DCGM_FI_DEV_ECC_DBE_VOL"),
        ("a.py", "x = 1\n# reads DCGM_EXP_XID_COUNT", "DCGM_EXP_XID_COUNT"),
        ("a.py", "x = 1\ny = 'hw_gpu_temperature_celsius'", "hw_gpu_temperature_celsius"),
        ("a.py", "x = 1\ny = 'gpu_gfx_utilization'", "gpu_gfx_utilization"),
        ("a.py", "x = 1\ny = f'gpu_load{{gpu_id=\"{x}\"}}'", "gpu_load"),
        ("a.py", "x = 1\ny = 'amd_gpu_load'", "amd_gpu_load"),
        ("a.yaml", "groups:\n  - expr: avg(xpum_gpu_ratio) > 0.9", "xpum_gpu_ratio"),
        ("a.yaml", "groups:\n  - expr: habanalabs_power > 1", "habanalabs_power"),
        ("a.json", '{\n"expr": "gpu_load{gpu_id=\\"0\\"}"}', "gpu_load"),
        ("a.json", '{\n"expr": "sum(pcie_traffic[5m])"}', "pcie_traffic"),
    ],
)
def test_an_unknown_name_is_caught_with_its_place(file: str, text: str, metric: str) -> None:
    (problem,) = unknown_metrics(Path(file), text)
    assert problem.startswith(f"{file}:2: {metric} is not in ")


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("a.py", "q = 'max by (UUID) (DCGM_FI_DEV_POWER_USAGE) or DCGM_FI_DEV_BOARD_POWER_WATTS'"),
        ("a.py", "q = f'DCGM_FI_DEV_{name}' + 'DCGM_FI_.*'"),
        ("a.py", "gpu_counts = {}\nprint(f'{gpu_counts[0]}', gpu_counts[1], 'gpu_count', 'gpu_memory_bytes')"),
        ("a.py", "clock_events = ('hw_slowdown', 'hw_thermal', 'hw_power_brake'); s = 'hw_power_brake_seconds_total'"),
        ("a.py", "labels = 'gpu_uuid', 'gpu_id', 'hw_type', 'pcie_replays_total'"),
        ("a.yaml", "expr: sum by (gpu_uuid, hw_id) (amd_gpu_gfx_activity) + gpu_clock{clock_type='system'}"),
        ("a.yaml", "expr: gpu:gpu_ecc_corrected:rate1h > 0.1 and gpu:gpu_power_watts:max{gpu='0'}"),
        ("a.json", '{"expr": "hw_power_watts{hw_sensor_location=\\"gpu\\"} and gpuwatch_gpu_hours"}'),
    ],
)
def test_what_is_known_or_no_metric_passes(file: str, text: str) -> None:
    assert unknown_metrics(Path(file), text) == []
