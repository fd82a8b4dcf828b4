"""The boards' JSON: fresh, well laid out, by the rules of Grafana's dashboard linter, with links that lead on."""

import json
import re
import subprocess
import sys
from collections import Counter
from itertools import combinations
from typing import Any

import pytest
from grafana_foundation_sdk.models import units

from dashboards.shown import BOARDS, ROOT, SERIES, panels, targets, variables
from tools.dashboards.__main__ import files
from tools.dashboards.boards import read_panel
from tools.dashboards.grafana import STATES
from tools.dashboards.queries import QUERIES
from tools.generated import RUNBOOKS, Pieces, with_runbooks

UNITS = {value for name, value in vars(units).items() if isinstance(value, str) and not name.startswith("_")}
ORDER = ["datasource", "cluster", "namespace", "node", "model", "uuid", "pod", "gpuwatch_url"]
RENDERED = {"stat", "timeseries", "table", "bargauge"}
"""Kinds of panels that can be drawn outside a Grafana server, and so are looked at before a release."""
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

each_board = pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)


def test_boards_are_fresh() -> None:
    check = [sys.executable, "-m", "tools.dashboards", "--check"]
    done = subprocess.run(check, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_another_place_for_the_runbooks_stands_in_every_link() -> None:
    text = "".join(with_runbooks(files(), "https://wiki.example/gpu/").values())
    assert RUNBOOKS not in text
    assert text.count("https://wiki.example/gpu/Gpu") == "".join(files().values()).count(f"{RUNBOOKS}/Gpu") > 0


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"cannot_see": None}, "fleet.yaml, panel GPUs: Expected `str`, got `null` - at `$.cannot_see`"),
        ({"kind": "pie"}, "fleet.yaml, panel GPUs: Invalid enum value 'pie'"),
        ({"colour": "red"}, "fleet.yaml, panel GPUs: Object contains unknown field `colour`"),
        ({"query": "sum(<< lost >>)"}, "fleet.yaml, panel GPUs: 'lost' is undefined"),
        ({"queries": [{"query": "up"}]}, "one of `query`, `queries` and `columns` is needed"),
        ({"red_from": 1}, "colours, and only they, need a `runbook`"),
        ({"kind": "table"}, "a table, and nothing else, has `columns` and `rows_by`"),
    ],
)
def test_a_mistake_in_a_panel_is_named(changed: dict[str, Any], said: str) -> None:
    panel = {"title": "GPUs", "kind": "stat", "shows": "GPUs.", "cannot_see": "others", "query": "sum(<< missing >>)"}
    where = "fleet.yaml, panel GPUs"
    assert read_panel(panel, Pieces(QUERIES), where).kind == "stat"
    with pytest.raises(ValueError, match=re.escape(said)):
        read_panel({**panel, **changed}, Pieces(QUERIES), where)


def test_all_eight_are_there() -> None:
    names = ("fleet", "gpu", "health", "money", "nodes", "remediation", "self", "workload")
    assert list(BOARDS) == [f"gpuwatch-{name}" for name in names]


@each_board
def test_head(board: dict[str, Any]) -> None:
    assert board["uid"] in BOARDS
    assert BOARDS[board["uid"]] is board
    assert board["schemaVersion"] == 41
    # Not by rule uneditable-dashboard: Grafana itself keeps provisioned boards, and imported ones are their users'.
    assert (board["editable"], board["refresh"], board["timezone"]) == (True, "1m", "browser")
    assert (board["time"]["from"], board["graphTooltip"], board["tags"]) == ("now-24h", 1, ["gpuwatch"])
    assert board["description"]
    assert "__inputs" not in board and "DS_PROMETHEUS" not in json.dumps(board)
    assert [each["enable"] for each in board["annotations"]["list"]] == [False, False]


@each_board
def test_layout(board: dict[str, Any]) -> None:
    spots = [panel["gridPos"] for panel in board["panels"]]
    assert all(spot["w"] > 0 and spot["h"] > 0 and spot["x"] >= 0 and spot["x"] + spot["w"] <= 24 for spot in spots)
    for one, other in combinations(spots, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above, (one, other)
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(set(numbers)) == len(numbers)


@each_board
def test_lines_are_full(board: dict[str, Any]) -> None:
    """Panels of one line stand side by side over the whole width, so that nothing looks forgotten."""
    widths: Counter[int] = Counter()
    for panel in board["panels"]:
        widths[panel["gridPos"]["y"]] += panel["gridPos"]["w"]
    assert set(widths.values()) == {24}, {y: width for y, width in widths.items() if width != 24}


@each_board
def test_variables(board: dict[str, Any]) -> None:
    """Rules template-datasource, template-label-promql, template-on-time-change-reload. In place of template-job and
    template-instance: every board has `cluster`, because recorded series have no job and no instance."""
    every = board["templating"]["list"]
    names = [variable["name"] for variable in every]
    assert names == sorted(names, key=ORDER.index)
    assert names[:2] == ["datasource", "cluster"]
    assert (every[0]["type"], every[0]["query"]) == ("datasource", "prometheus")
    text = json.dumps([panel["targets"] for panel in panels(board)] + [each.get("query") for each in every])
    for variable in variables(board, "query"):
        assert re.fullmatch(r"label_values\((\w|:)+(\{.+\})?, \w+\)", variable["query"]["query"])
        assert variable["refresh"] == 2
        assert (variable["multi"], variable["includeAll"], variable["allValue"]) == (True, True, ".*")
        assert variable["datasource"] == DATASOURCE
        assert f'=~\\"${variable["name"]}\\"' in text, f"{variable['name']} selects nothing on this board"
    used = set(re.findall(r"\$([a-z_]+)", text)) - {"datasource"}
    assert used <= {*names, "__rate_interval", "__range"}


@each_board
def test_panels(board: dict[str, Any]) -> None:
    """Rules panel-datasource, panel-title-description, panel-units, panel-no-targets."""
    titles = Counter(panel["title"] for panel in panels(board))
    for panel in panels(board):
        title, defaults = panel["title"], panel["fieldConfig"]["defaults"]
        assert panel["type"] in RENDERED, title
        assert title and titles[title] == 1, title
        what, source, blind = panel["description"].split("\n\n")
        assert what.endswith(".") and source.startswith("Source: ") and blind.startswith("Cannot see: "), title
        assert defaults["unit"] in UNITS, title
        assert defaults["noValue"] and defaults["noValue"] not in ("0", "OK", "-"), title
        assert panel["datasource"] == DATASOURCE, title
        assert panel["targets"], title
        assert [target["refId"] for target in panel["targets"]] == [*"ABCDEFGHIJ"][: len(panel["targets"])]


def test_targets() -> None:
    """Rules target-rate-interval, target-counter-agg, and in place of target-job and target-instance: every selector
    chooses the cluster. (That each expression parses is shown by tests/dashboards/test_queries.py, which runs it.)"""
    for board, panel, target in targets():
        where, query = (board, panel["title"]), target["expr"]
        assert target["datasource"] == DATASOURCE, where
        for name in SERIES.finditer(query):
            assert query[name.end() :].startswith('{cluster=~"$cluster"'), f"{where}: {name[0]} of any cluster"
        assert "vector(" not in query and "absent" not in query, where
        for counter in re.findall(r"(\w*\(?)(gpuwatch_\w+_total|process_cpu_seconds_total)\{", query):
            if counter[1].startswith("gpuwatch_ledger_"):  # kept over restarts
                assert re.search(rf"{counter[1]}\{{[^}}]*\}} offset \$__range", query), where
            else:
                assert counter[0] in ("rate(", "increase("), where
        for function, interval in re.findall(r"\b(i?rate|increase)\([^\[]+\[([^\]]+)\]", query):
            allowed = {"$__rate_interval", "$__range"} if function == "increase" else {"$__rate_interval"}
            assert interval in allowed, where
        assert bool(target.get("instant")) != bool(target.get("range")), where


def _overrides(board: dict[str, Any]) -> list[tuple[str, str, Any]]:
    return [
        (override["matcher"]["options"], each["id"], each["value"])
        for panel in panels(board)
        for override in panel["fieldConfig"].get("overrides", [])
        for each in override["properties"]
    ]


@each_board
def test_overrides_name_columns(board: dict[str, Any]) -> None:
    """An override whose column was renamed would be lost in silence."""
    for panel in panels(board):
        if panel["type"] == "table":
            shown = panel["transformations"][-1]["options"]
            columns = set(shown["renameByName"].values()) | set(shown["indexByName"])
            for override in panel["fieldConfig"]["overrides"]:
                assert override["matcher"]["options"] in columns, panel["title"]


def test_one_colour_per_state() -> None:
    every = [each for board in BOARDS.values() for each in _overrides(board)]
    fixed = {(name, value["fixedColor"]) for name, key, value in every if key == "color"}
    assert fixed <= set(STATES.items())
    mapped = [value for _, key, value in every if key == "mappings"]
    words = {(word, each["color"]) for (mapping,) in mapped for word, each in mapping["options"].items()}
    assert words <= set(STATES.items())


@each_board
def test_a_colour_has_a_runbook(board: dict[str, Any]) -> None:
    """Thresholds stand only where a runbook says what to do."""
    for panel in panels(board):
        steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        if len(steps) > 1 or steps[0]["color"] != "blue":
            assert any(link["url"].startswith(RUNBOOKS) for link in panel.get("links", [])), panel["title"]
        for override in panel["fieldConfig"].get("overrides", []):
            properties = {each["id"]: each["value"] for each in override["properties"]}
            if "thresholds" in properties:
                assert properties["links"][0]["url"].startswith(f"{RUNBOOKS}/Gpu"), panel["title"]


def _urls(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["url"]] if isinstance(value.get("url"), str) and value["url"] else []
        return own + [url for each in value.values() for url in _urls(each)]
    return [url for each in value for url in _urls(each)] if isinstance(value, list) else []


@each_board
def test_links(board: dict[str, Any]) -> None:
    first, page, _ = board["links"]
    assert (first["type"], first["tags"], first["asDropdown"]) == ("dashboards", ["gpuwatch"], True)
    assert first["includeVars"] and first["keepTime"]
    assert page["url"] == "${gpuwatch_url}"
    for url in _urls(board["panels"]):
        if url.startswith("/d/"):
            uid, query = url.removeprefix("/d/").split("?")
            assert uid in BOARDS, url
            assert "${datasource:queryparam}" in query and "${__url_time_range}" in query, url
            there = {each["name"] for each in BOARDS[uid]["templating"]["list"]}
            assert set(re.findall(r"var-(\w+)=", query)) <= there, url
        else:
            assert url.startswith(f"{RUNBOOKS}/"), url


@each_board
def test_rows_lead_on_by_columns_that_they_have(board: dict[str, Any]) -> None:
    for panel in panels(board):
        for override in panel["fieldConfig"].get("overrides", []):
            for each in override["properties"]:
                if each["id"] == "links":
                    named = set(re.findall(r"__data\.fields\.(\w+)", json.dumps(each)))
                    columns = set(panel["transformations"][-1]["options"]["indexByName"])
                    assert named <= columns, panel["title"]


def test_runbooks_exist() -> None:
    """Of the alerts that panels name."""
    folder = ROOT / "docs" / "runbooks"
    named = {
        url.removeprefix(f"{RUNBOOKS}/").removesuffix(".md")
        for board in BOARDS.values()
        for url in _urls(board["panels"])
        if url.startswith(RUNBOOKS) and "$" not in url
    }
    assert len(named) > 15
    assert named <= {page.stem for page in folder.glob("*.md")}


def test_series_exist() -> None:
    """Recorded ones in rules/, gpuwatch's own on the page of names, so that a renamed one fails here."""
    asked = {name for _, _, target in targets() for name in SERIES.findall(target["expr"])}
    own = {name for name in asked if name.startswith("gpuwatch_")}
    page = set(re.findall(r"^\| `(gpuwatch_\w+)` \|", (ROOT / "docs" / "names.md").read_text(), re.MULTILINE))
    assert {re.sub(r"_(bucket|count|sum)$", "", name) for name in own} <= page
    rules = (ROOT / "rules" / "gpuwatch-recording.yaml").read_text()
    assert {name for name in asked if ":" in name} <= set(re.findall(r"record: (\S+)", rules))
