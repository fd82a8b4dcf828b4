"""The recording rules in a running Prometheus, on what a simulated fleet exports."""

import json
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.simulate.fleet import build_fleet
from lab.simulate.plan import FleetPlan, LabelScheme
from parts.processes import wait_until
from parts.prometheus_server import ServerBuild, running
from simulate.openmetrics import write_openmetrics
from tools.rules.recorded import rule_groups

pytestmark = [pytest.mark.prometheus, pytest.mark.slow]

RECORDS = {rule["record"] for group in rule_groups() for rule in group["rules"]}


def ask(url: str, query: str) -> list[dict[str, Any]]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{url}/api/v1/query?{urllib.parse.urlencode({'query': query})}", timeout=60) as answer:
        result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return result


def values(url: str, query: str) -> Mapping[str, float]:
    return {row["metric"].get("__name__", ""): float(row["value"][1]) for row in ask(url, query)}


@pytest.mark.parametrize("scheme", ["exported", "native"])
def test_every_rule_gives_series_on_a_simulated_fleet(
    prometheus_build: ServerBuild, tmp_path: Path, scheme: LabelScheme
) -> None:
    """Both vocabularies node by node, MIG and shared cards; no rule fails, and none is without a row."""
    plan = FleetPlan(seed=7, gpus=48, days=2 / 24, end=datetime.now(UTC), vocabulary="mixed", label_scheme=scheme)
    write_openmetrics(build_fleet(plan), tmp_path / "fleet.om")
    groups = [group | {"interval": "1s"} for group in rule_groups()]
    rules = tmp_path / "rules.yaml"
    rules.write_text(yaml.safe_dump({"groups": groups}))
    with running(
        prometheus_build, tmp_path / "fleet.om", rule_files=[rules], flags=["--query.lookback-delta=15m"]
    ) as url:
        wait_until(lambda: bool(ask(url, "cluster:gpus:count")), lambda: f"no totals: {ask(url, 'up')}", seconds=30)
        time.sleep(4)
        counts = values(url, 'count by (__name__) ({__name__=~"(device|gpu|gpu_kind|node|namespace|cluster):.+"})')
        failures = ask(url, "prometheus_rule_evaluation_failures_total > 0")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{url}/api/v1/rules", timeout=60) as answer:
            evaluated = [rule for group in json.load(answer)["data"]["groups"] for rule in group["rules"]]
    cards = counts["gpu:gpu_temperature_celsius:max"]
    assert cards == plan.gpus
    # rules/README.md says what the layer costs.
    assert sum(counts.values()) / cards < 32
    assert not failures
    assert [rule for rule in evaluated if rule["health"] != "ok"] == []
    assert RECORDS - set(counts) == set()
