"""A small dashboard with one panel of each kind that can be drawn, and samples for it: what the renderer is held to."""

import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

START = datetime(2026, 3, 2, 6, tzinfo=UTC)
END = START + timedelta(hours=6)
STEP_S = 30

LABELS = tuple(
    f'cluster="east",node="n{card // 2}",UUID="GPU-{card}",modelName="{model}"'
    for card, model in enumerate(("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB", "NVIDIA L4", "NVIDIA L4"))
)


def openmetrics() -> str:
    """Four GPUs on two nodes for six hours: temperature, a busy share, watts; a counter that grows by 2 a second."""
    times = range(0, int((END - START).total_seconds()) + 1, STEP_S)
    start = START.timestamp()

    def lines(metric: str, value: Any) -> list[str]:
        return [f"# TYPE {metric} gauge"] + [
            f"{metric}{{{labels}}} {value(card, second):.4f} {start + second:.0f}"
            for card, labels in enumerate(LABELS)
            for second in times
        ]

    def busy(card: int, second: int) -> float:
        return 0.2 * card + 0.1 * (1 + math.sin(second / 1800 + card))

    return "\n".join(
        [
            *lines("gpu:gpu_temperature_celsius:max", lambda card, second: 45 + 40 * busy(card, second)),
            *lines("gpu:gpu_engine_active_ratio:weighted", busy),
            *lines("gpu:gpu_power_watts:max", lambda card, second: 512.0 if card == 3 else 250.0),
            "# TYPE sample_requests counter",
            *(f'sample_requests_total{{cluster="east"}} {2 * second} {start + second:.0f}' for second in times),
            "# EOF\n",
        ]
    )


def dashboard() -> dict[str, Any]:
    """Each kind with data; a query that is no PromQL, one that finds nothing, a kind that cannot be drawn."""
    found: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    return found
