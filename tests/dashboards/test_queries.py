"""Every query of every board on a real Prometheus: it returns series where there are some, and no lie where not."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode
from urllib.request import ProxyHandler, build_opener

import pytest

from dashboards.shown import BOARDS, SERIES, filled, targets, variables
from dashboards.telling import HOURS, LACKS, WATCHED, openmetrics
from parts.prometheus_server import ServerBuild, running

QUERIES = [(board, panel["title"], target) for board, panel, target in targets()]

EMPTY_HERE = {
    ("gpuwatch-nodes", "Missing GPUs", "quiet"): "shows only Nodes that lack a GPU",
    ("gpuwatch-health", "XIDs", "quiet"): "lists faults, and there is none",
    ("gpuwatch-health", "Memory errors", "quiet"): "lists faults, and there is none",
}
"""Empty although every series that it names is there, with the reason. Keys without a cluster hold for each one."""
ONLY_MISSING = "shows only Nodes that lack a GPU; the cluster `stopped` has some"
NO_INSTANCES = "lists MIG instances; the cluster `mig` has some"
for each in WATCHED:
    EMPTY_HERE["gpuwatch-nodes", "Missing GPUs", each] = ONLY_MISSING
    if each != "mig":
        EMPTY_HERE["gpuwatch-gpu", "MIG instances", each] = NO_INSTANCES

HONEST_ZERO = {
    "gpuwatch-remediation": "what gpuwatch did and may do is a fact without telemetry, too; the brake is on then",
    "gpuwatch-self": "how gpuwatch itself runs is a fact without telemetry, too",
}
"""Boards that may show 0 while the exporters are stopped."""
HONEST_ZERO_PANELS = {
    ("gpuwatch-nodes", "Tainted by gpuwatch"): "a taint stands in the cluster, whatever telemetry says",
    ("gpuwatch-money", "GPUs without a price"): "prices are of Nodes",
    ("gpuwatch-money", "Pools"): "Nodes and Pods tell what is allocated and priced",
    ("gpuwatch-money", "Advice"): "advice of the last eight weeks",
}


class Server:
    def __init__(self, url: str, now: int) -> None:
        self.url, self.now = url, now
        self.open = build_opener(ProxyHandler({})).open

    def get(self, path: str, **parameters: Any) -> Any:
        with self.open(f"{self.url}/api/v1/{path}?{urlencode(parameters)}") as answer:
            return json.load(answer)["data"]

    def asked(self, target: dict[str, Any], cluster: str, minutes: int = 180) -> list[dict[str, Any]]:
        """The series of a panel's query, with their values of the last minutes or of now."""
        query = filled(target["expr"], cluster)
        if target.get("instant"):
            found = self.get("query", query=query, time=self.now)["result"]
            return [{**series, "values": [series["value"]]} for series in found]
        start = self.now - 60 * minutes
        return list(self.get("query_range", query=query, start=start, end=self.now, step=240)["result"])

    def names(self, cluster: str) -> set[str]:
        """What series of a cluster there are now."""
        found = self.get("query", query=f'group by (__name__) ({{cluster="{cluster}"}})', time=self.now)["result"]
        return {series["metric"]["__name__"] for series in found}


@pytest.fixture(scope="module")
def told_text(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, int]:
    now = int(time.time()) // 120 * 120
    return openmetrics(tmp_path_factory.mktemp("fleet"), now), now


@pytest.fixture(scope="module")
def server(prometheus_build: ServerBuild, told_text: tuple[str, int]) -> Iterator[Server]:
    text, now = told_text
    with running(prometheus_build, text) as url:
        yield Server(url, now)


def empty(server: Server, cluster: str) -> Iterator[tuple[str, str, str]]:
    """Queries without series although all that they name is there and no reason is given."""
    there = server.names(cluster)
    for board, title, target in QUERIES:
        if set(SERIES.findall(target["expr"])) <= there and not server.asked(target, cluster):
            yield board, title, cluster


@pytest.mark.parametrize("cluster", WATCHED)
def test_queries_return_series(server: Server, cluster: str) -> None:
    found = set(empty(server, cluster))
    reasons = {key for key in EMPTY_HERE if key[2] == cluster}
    assert found - reasons == set(), "empty without a reason"
    assert reasons - found == set(), "no longer empty: the reason can go"


def test_each_query_returns_series_somewhere(server: Server) -> None:
    assert [(board, title) for board, title, target in QUERIES if not server.asked(target, ".*")] == []


def test_only_what_an_exporter_lacks_is_left_out(server: Server) -> None:
    """That a series is missing excuses a query above: here is said which may be missing."""
    everywhere = {name for _, _, target in QUERIES for name in SERIES.findall(target["expr"])}
    for cluster in WATCHED:
        missing = everywhere - server.names(cluster)
        if cluster == "quiet":
            missing -= {"gpuwatch_finding", "gpuwatch_findings", "gpuwatch_advice", "ALERTS"}
        assert missing == LACKS.get(cluster, set()), cluster


def test_variables_return_values(server: Server) -> None:
    for name, board in BOARDS.items():
        for variable in variables(board, "query"):
            series, label = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"]).groups()  # type: ignore[union-attr]
            values = server.get(
                f"label/{label}/values", **{"match[]": filled(series), "start": server.now - 3600, "end": server.now}
            )
            assert len(values) > 1, (name, variable["name"])


def test_nothing_comes_from_nothing(server: Server) -> None:
    """A cluster of which nothing was ever told: no value at all, so that every panel says what is not known."""
    told = [(board, title) for board, title, target in QUERIES if server.asked(target, "never", 60 * HOURS)]
    assert told == []


def zeros(server: Server, cluster: str) -> Iterator[tuple[str, str]]:
    """Panels that show 0 of a cluster now, or in the last half hour."""
    for board, title, target in QUERIES:
        values = (float(value) for series in server.asked(target, cluster, 30) for _, value in series["values"])
        if any(value == 0 for value in values):
            yield board, title


def test_no_zero_while_the_exporters_are_stopped(server: Server) -> None:
    """gpuwatch runs and sees nothing: 0 faults, 0 idle, 0 cost of idle would be lies."""
    found = {key for key in zeros(server, "stopped") if key[0] not in HONEST_ZERO}
    assert found - HONEST_ZERO_PANELS.keys() == set()


def test_a_quiet_cluster_shows_zeros(server: Server) -> None:
    """So that the test above can fail: where telemetry reports, nothing found is 0."""
    shown = set(zeros(server, "quiet"))
    assert {
        ("gpuwatch-fleet", "Critical findings"), ("gpuwatch-fleet", "GPUs missing"),
        ("gpuwatch-health", "GPUs with an XID"), ("gpuwatch-gpu", "Row remap failed"),
        ("gpuwatch-workload", "Idle findings"), ("gpuwatch-money", "Namespaces"),
    } <= shown  # fmt: skip


def colour(panel: dict[str, Any], value: float) -> str:
    steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    return str([step["color"] for step in steps if step["value"] is None or value >= step["value"]][-1])


def greens(server: Server, cluster: str) -> set[tuple[str, str]]:
    return {
        (board, panel["title"])
        for board, panel, target in targets()
        if panel["type"] in ("stat", "bargauge")
        for series in server.asked(target, cluster)
        for _, value in series["values"]
        if "green" in colour(panel, float(value))
    }


def test_nothing_is_green_while_the_exporters_are_stopped(server: Server) -> None:
    assert greens(server, "stopped") == set()
    assert {("gpuwatch-fleet", "Critical findings"), ("gpuwatch-nodes", "GPUs missing")} <= greens(server, "quiet")


def test_stopped_exporters_are_seen(server: Server) -> None:
    """The Nodes that stopped count as missing, and that all telemetry is gone is a critical finding."""
    shown = {
        (board, title): [float(series["values"][-1][1]) for series in server.asked(target, "stopped")]
        for board, title, target in QUERIES
        if title in ("GPUs missing", "Critical findings")
    }
    assert shown["gpuwatch-fleet", "GPUs missing"] == shown["gpuwatch-nodes", "GPUs missing"] == [4]
    assert shown["gpuwatch-fleet", "Critical findings"] == [1]
