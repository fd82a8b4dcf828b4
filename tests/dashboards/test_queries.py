"""Every query of every board and variable, on a real Prometheus that has recorded what each exporter writes."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import ProxyHandler, build_opener

import pytest
import yaml

from dashboards import fleets
from dashboards.fleets import FLEETS, HOURS, STOPPED_HOURS
from dashboards.shown import BOARDS, SERIES, filled, targets, variables
from parts.prometheus_server import ServerBuild
from tools.rules.recorded import rule_groups

QUERIES = [(board, panel["title"], target) for board, panel, target in targets()]
VARIABLES = [
    (board, each["name"], each["query"]["query"]) for board in BOARDS for each in variables(BOARDS[board], "query")
]
RECORDED = {rule["record"] for group in rule_groups() for rule in group["rules"]}

MAY = yaml.safe_load(Path(__file__).with_name("exceptions.yaml").read_text(encoding="utf-8"))


def not_told(cluster: str) -> list[str]:
    """Series that this fleet lacks."""
    found = [name for each in MAY["not_told"] if re.fullmatch(each["fleets"], cluster) for name in each["series"]]
    return [*(name for name in found if name != "recorded"), *(RECORDED if "recorded" in found else ())]


LISTED = {
    (cluster, board, title)
    for each in MAY["empty"]
    for cluster in FLEETS
    if re.fullmatch(each["fleets"], cluster)
    for board, titles in each["panels"].items()
    for title in titles
}


class Server:
    def __init__(self, url: str, now: int) -> None:
        self.url, self.now = url, now
        self.open = build_opener(ProxyHandler({})).open

    def get(self, path: str, **parameters: Any) -> Any:
        with self.open(f"{self.url}/api/v1/{path}?{urlencode(parameters)}") as answer:
            return json.load(answer)["data"]

    def asked(self, target: dict[str, Any], cluster: str, minutes: int = 30) -> list[dict[str, Any]]:
        """The series of a panel's query, with their values of the last minutes or of now."""
        query = filled(target["expr"], cluster)
        if target.get("instant"):
            found = self.get("query", query=query, time=self.now)["result"]
            return [{**series, "values": [series["value"]]} for series in found]
        return fleets.query_range(self.url, query, self.now - 60 * minutes, self.now, step=240)

    def shown(self, board: str, title: str, cluster: str) -> list[float]:
        """The last values of a panel."""
        return [
            float(series["values"][-1][1])
            for where, panel, target in QUERIES
            if (where, panel) == (board, title)
            for series in self.asked(target, cluster)
        ]

    def names(self, cluster: str) -> set[str]:
        """What series of a cluster there are now."""
        found = self.get("query", query=f'group by (__name__) ({{cluster="{cluster}"}})', time=self.now)["result"]
        return {series["metric"]["__name__"] for series in found}

    def values(self, variable: str, cluster: str = ".*") -> set[str]:
        """What there is to choose from, of all that time."""
        series, label = re.fullmatch(r"label_values\((.+), (\w+)\)", variable).groups()  # type: ignore[union-attr]
        start = self.now - round((HOURS + STOPPED_HOURS) * 3600)
        selector = filled(series, cluster)
        if "cluster=~" not in selector:  # the variable that chooses the cluster
            selector += f'{{cluster=~"{cluster}"}}'
        return set(self.get(f"label/{label}/values", **{"match[]": selector, "start": start, "end": self.now}))


@pytest.fixture(scope="module")
def server(prometheus_build: ServerBuild) -> Iterator[Server]:
    now = int(time.time()) // fleets.STEP * fleets.STEP
    with fleets.running(prometheus_build, now) as url:
        yield Server(url, now)


@pytest.mark.parametrize("cluster", FLEETS)
def test_every_query_returns_series_or_stands_in_the_list(server: Server, cluster: str) -> None:
    lacking = set(not_told(cluster))
    told = [query for query in QUERIES if not lacking & set(SERIES.findall(query[2]["expr"]))]
    empty, full = set(), set()
    for board, title, target in told:
        (full if server.asked(target, cluster) else empty).add((cluster, board, title))
    listed = {entry for entry in LISTED if entry[0] == cluster}
    assert empty - listed == set(), "empty without a reason"
    assert listed - (empty - full) == set(), "not empty, or explained twice: the entry can go"


@pytest.mark.parametrize("cluster", FLEETS)
def test_what_is_said_to_be_missing_is(server: Server, cluster: str) -> None:
    lacking = not_told(cluster)
    assert len(set(lacking)) == len(lacking), "said twice"
    assert server.names(cluster) & set(lacking) == set(), "the entry can go"
    read = {name for _, _, target in QUERIES for name in SERIES.findall(target["expr"])}
    assert read - server.names(cluster) - set(lacking) == set()


@pytest.mark.parametrize("cluster", FLEETS)
def test_variables_return_values(server: Server, cluster: str) -> None:
    for board, name, query in VARIABLES:
        values = server.values(query, cluster)
        assert bool(values) != (name in MAY["no_value"].get(cluster, ())), (board, name, values)
        if name in ("cluster", "node") and values:
            assert values == ({cluster} if name == "cluster" else set(fleets.NODES)), board


def test_cluster_offers_each_fleet(server: Server) -> None:
    for board, name, query in VARIABLES:
        if name == "cluster":
            assert server.values(query) == set(FLEETS), board


@pytest.mark.parametrize("cluster", [name for name in FLEETS if name != "stopped"])
def test_the_same_fleet_looks_the_same_from_every_exporter(server: Server, cluster: str) -> None:
    """Four GPUs on two Nodes, one of them free: whatever the labels, the halves of a card and the Pods on it."""
    parts = 2 if cluster.endswith("-mig") else 4 if cluster.endswith("-divided") else 1
    pods = 0 if cluster.startswith("intel-2") else 1
    assert server.shown("gpuwatch-fleet", "GPUs reporting", cluster) == [4]
    assert server.shown("gpuwatch-fleet", "Allocated", cluster) == [0.75 * pods]
    assert server.shown("gpuwatch-fleet", "Power", cluster) == [1200]
    assert server.shown("gpuwatch-nodes", "Nodes reporting", cluster) == [1 if "without-node" in cluster else 2]
    assert server.shown("gpuwatch-workload", "Devices allocated", cluster) == [3 * parts] * pods
    assert server.shown("gpuwatch-workload", "Shared devices", cluster) == [3 * ("-shared" in cluster)] * pods


def test_annotations_return_series(server: Server) -> None:
    for board in BOARDS.values():
        for each in board["annotations"]["list"]:
            query = filled(each["expr"])
            assert fleets.query_range(server.url, query, server.now - 3600, server.now, step=60), each["name"]


def test_each_query_returns_series_somewhere(server: Server) -> None:
    assert [(board, title) for board, title, target in QUERIES if not server.asked(target, ".*")] == []


def test_nothing_comes_from_nothing(server: Server) -> None:
    """A cluster of which nothing was ever told: no value at all, so that every panel says what is not known."""
    told = [(board, title) for board, title, target in QUERIES if server.asked(target, "never", 60 * STOPPED_HOURS)]
    assert told == []


def zeros(server: Server, cluster: str) -> Iterator[tuple[str, str]]:
    """Panels that show 0 of a cluster now, or in the last half hour."""
    for board, title, target in QUERIES:
        values = (float(value) for series in server.asked(target, cluster, 30) for _, value in series["values"])
        if any(value == 0 for value in values):
            yield board, title


def test_no_zero_while_the_exporters_are_stopped(server: Server) -> None:
    """gpuwatch runs and sees nothing: 0 faults, 0 idle, 0 cost of idle would be lies."""
    found = {(board, f"{board}/{title}") for board, title in zeros(server, "stopped")}
    assert [panel for board, panel in found if not {board, panel} & MAY["honest_zero"].keys()] == []


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
