"""What the shipped rules do with a simulated fleet's telemetry over hours: recorded, then alerted on, by promtool.

`promtool test rules` runs the rule manager of Prometheus on a clock of its own: every rule of the given files at each
step, in their order, with `for`, `keep_firing_for` and staleness, and what it writes is what the next rule reads.
"""

import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path

import numpy as np
import yaml

from gpuwatch.sources.telemetry.series import is_stale
from lab.simulate.fleet import SimulatedFleet
from lab.simulate.node_objects import node_object
from parts.prometheus_server import ServerBuild


@dataclass(frozen=True)
class Fired:
    """An alert that fired, and in which minutes since the start it was seen, to the length of a look."""

    labels: dict[str, str]
    first: int
    last: int

    @property
    def name(self) -> str:
        return self.labels["alertname"]


def fired(
    build: ServerBuild,
    fleet: SimulatedFleet,
    rules: Sequence[Path],
    folder: Path,
    *,
    step_seconds: int,
    look_minutes: int,
    more: Mapping[str, str] | None = None,
) -> list[Fired]:
    """Every alert that fired at any step of step_seconds. Firings are looked up every look_minutes, each over those.
    more: series beside the fleet's, in promtool's notation."""
    plan = fleet.plan
    minutes = int(plan.seconds // 60)
    times = range(look_minutes, minutes, look_minutes)
    interval = f"{plan.interval_seconds}s"
    test = {
        "name": "fleet",
        "interval": interval,
        "input_series": [
            {"series": name, "values": values} for name, values in chain(_input(fleet), (more or {}).items())
        ],
        "promql_expr_test": [
            {
                # Nothing is said to be there, so that promtool shows what is.
                "expr": f'count_over_time(ALERTS{{alertstate="firing"}}[{look_minutes}m])',
                "eval_time": f"{minute}m",
                "exp_samples": [],
            }
            for minute in times
        ],
    }
    file = folder / "test.yaml"
    document = {
        "rule_files": [str(each) for each in rules],
        "evaluation_interval": f"{step_seconds}s",
        # Without it the order is by chance, and a step of five minutes may read what was recorded a step ago: nothing.
        "group_eval_order": [group["name"] for each in rules for group in yaml.safe_load(each.read_text())["groups"]],
        "tests": [test],
    }
    file.write_text(json.dumps(document))  # JSON is YAML
    done = subprocess.run([build.promtool, "test", "rules", file], capture_output=True, text=True, check=False)
    return _read(done.stdout + done.stderr)


def _input(fleet: SimulatedFleet) -> Iterator[tuple[str, str]]:
    plan = fleet.plan
    start = round(plan.start.timestamp() * 1000)
    for series in fleet.series():
        words = ["_"] * plan.steps
        stale = is_stale(np.ascontiguousarray(series.values))
        steps = (series.times_ms - start) // (plan.interval_seconds * 1000)
        for step, value, ended in zip(steps.tolist(), series.values.tolist(), stale.tolist(), strict=True):
            words[step] = "stale" if ended else f"{value:.12g}"
        yield _series(series.metric, dict(series.labels)), _short(words)
    for machine, script in zip(fleet.machines, fleet.scripts, strict=True):
        nodes = [
            node_object(plan, machine, script, float(step * plan.interval_seconds))["status"]
            for step in range(plan.steps)
        ]
        for kind in ("capacity", "allocatable"):
            for resource in (name for name in nodes[0]["capacity"] if "/" in name):
                labels = {"node": machine.name, "resource": re.sub(r"\W", "_", resource), "unit": "integer"}
                yield _series(f"kube_node_status_{kind}", labels), _short([node[kind][resource] for node in nodes])
    yield 'gpuwatch_build_info{namespace="gpuwatch"}', f"1x{plan.steps}"


def _series(metric: str, labels: dict[str, str]) -> str:
    return f"{metric}{{{','.join(f'{key}={json.dumps(value)}' for key, value in labels.items())}}}"


def _short(words: list[str]) -> str:
    """promtool's notation, equal neighbours in one."""
    runs = ((word, len(list(same))) for word, same in groupby(words))
    return " ".join(
        f"_x{count}" if word == "_" else " ".join([word] * count) if word == "stale" else f"{word}x{count - 1}"
        for word, count in runs
    )


def _read(output: str) -> list[Fired]:
    seen: dict[str, list[int]] = {}
    found = re.findall(r'expr: "count_over_time.*?\[(\d+)m\]\)", time: (\S+?),(.*?)(?=expr: "|\Z)', output, re.DOTALL)
    if ", err: " in output or ("SUCCESS" not in output and not found):  # a rule failed, or the file is not valid
        raise AssertionError(output[-3000:])
    for _, time, text in found:
        units = {"d": 1440, "h": 60, "m": 1, "s": 0}
        minute = sum(int(n) * units[u] for n, u in re.findall(r"(\d+)([dhms])", time))
        for labels in re.findall(r"\{([^{}]*alertname=[^{}]*)\} \d", text):
            seen.setdefault(labels, []).append(minute)
    return [
        Fired(dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels)), min(minutes), max(minutes))
        for labels, minutes in sorted(seen.items())
    ]
