"""What alert rules do on sample data, by promtool: which alerts fire, with which labels and texts."""

import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml


@dataclass(frozen=True)
class Case:
    """Samples a minute apart, and what an alert does with them.

    samples: series → promtool's notation. fires: minute → labels that each firing alert has at least, none for silence.
    says: what every text of a firing alert contains.
    """

    name: str
    alert: str
    samples: Mapping[str, str]
    fires: Mapping[int, Sequence[Mapping[str, str]]]
    says: tuple[str, ...] = ()


@dataclass(frozen=True)
class Firing:
    labels: dict[str, str] = field(hash=False)
    annotations: dict[str, str] = field(hash=False)


def evaluate(promtool: Path, rules: Mapping[str, Any], cases: Sequence[Case]) -> dict[tuple[str, int], list[Firing]]:
    """What fires in each case at each of its minutes. promtool is told that nothing would, and shows what did."""
    tests = [
        {
            "name": case.name,
            "interval": "1m",
            "input_series": [{"series": series, "values": values} for series, values in case.samples.items()],
            "alert_rule_test": [
                {"eval_time": f"{minute}m", "alertname": case.alert, "exp_alerts": []} for minute in case.fires
            ],
        }
        for case in cases
    ]
    with tempfile.TemporaryDirectory(prefix="promtool-") as temporary:
        rule_file, test_file = Path(temporary, "rules.yaml"), Path(temporary, "test.yaml")
        rule_file.write_text(yaml.safe_dump(rules))
        test_file.write_text(
            yaml.safe_dump({"rule_files": [str(rule_file)], "evaluation_interval": "1m", "tests": tests})
        )
        done = subprocess.run([promtool, "test", "rules", test_file], capture_output=True, text=True, check=False)
    return _read(done.stdout + done.stderr)


_TIMES = {"h": 60, "m": 1, "s": 1 / 60, "d": 1440}


def _read(output: str) -> dict[tuple[str, int], list[Firing]]:
    found: dict[tuple[str, int], list[Firing]] = {}
    name, key, labels = "", ("", 0), {}
    for line in output.splitlines():
        text = line.strip()
        if text.startswith("name: "):
            name = text.removeprefix("name: ").rstrip(",")
        elif match := re.match(r"alertname: \S+, time: (\S+?),", text):
            minute = sum(float(n) * _TIMES[u] for n, u in re.findall(r"([\d.]+)([dhms])", match[1]))
            key = (name, round(minute))
            found[key] = []
        elif text.startswith("Labels:"):
            labels = _pairs(text)
        elif text.startswith("Annotations:"):
            found[key].append(Firing(labels, _pairs(text)))
        elif "error" in text.lower() and not text.startswith(("Labels", "Annotations")):
            raise AssertionError(output[-3000:])
    return found


def _pairs(text: str) -> dict[str, str]:
    quoted = re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', text.partition("{")[2])
    return {name: value.replace('\\"', '"').replace("\\n", "\n").replace("\\\\", "\\") for name, value in quoted}


def wrong(case: Case, results: Mapping[tuple[str, int], list[Firing]]) -> list[str]:
    """How the results differ from what the case says."""
    problems = []
    for minute, expected in case.fires.items():
        fired = results.get((case.name, minute), [])
        seen = [firing.labels for firing in fired]
        if len(seen) != len(expected) or not all(
            any(wanted.items() <= labels.items() for labels in seen) for wanted in expected
        ):
            problems.append(f"{case.alert}, {case.name}, {minute}m: {seen} fired, expected {list(expected)}")
        for firing in fired:
            texts = " ".join((firing.annotations["summary"], firing.annotations["description"]))
            problems.extend(
                f"{case.alert}, {case.name}: no {word!r} in {texts!r}" for word in case.says if word not in texts
            )
    return problems
