"""The renderer tells a drawn panel from an empty and from a broken one, on a sample that has each."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from dashboards import rendering, sample
from dashboards.rendering import DashboardShown
from parts.prometheus_server import ServerBuild
from parts.prometheus_server import running as running_prometheus

pytestmark = pytest.mark.npm


@pytest.fixture(scope="module")
def base_url(newest_prometheus: ServerBuild, renderer: Path) -> Iterator[str]:
    with (
        running_prometheus(newest_prometheus, sample.openmetrics()) as prometheus_url,
        rendering.serving(renderer, prometheus_url) as url,
    ):
        yield url


@pytest.fixture(scope="module")
def shown(browser: Browser, base_url: str, tmp_path_factory: pytest.TempPathFactory) -> DashboardShown:
    folder = tmp_path_factory.mktemp("shown")
    return rendering.render(browser, base_url, sample.dashboard(), folder, span=(sample.START, sample.END))


def test_each_panel_is_in_the_state_that_it_should_be(shown: DashboardShown) -> None:
    assert {panel.title: panel.state for panel in shown.panels} == {
        "Power": "data",
        "Requests": "data",
        "Nothing found": "no value",
        "Broken": "error",
        "Temperature": "data",
        "Nothing to draw": "no value",
        "Busy": "data",
        "Nodes": "data",
        "Notes": "data",
        "No component": "not renderable",
        "Folded away": "data",
        "Folded": "data",
        "After the fold": "data",
    }
    assert {panel.kind for panel in shown.panels if panel.state == "data"} == set(rendering.KINDS)
    assert (shown.console, shown.problems) == ((), ())
    assert not [panel for panel in shown.panels if panel.unknown_variables or panel.warnings]


def test_a_broken_query_says_why(shown: DashboardShown) -> None:
    assert "parse error" in shown.panel("Broken").reason
    assert "parse error" in shown.panel("Broken").text
    assert "heatmap" in shown.panel("No component").reason


def test_an_empty_panel_says_what_it_was_given_to_say(shown: DashboardShown) -> None:
    assert "No GPU reports this" in shown.panel("Nothing found").text
    assert "No samples in this time" in shown.panel("Nothing to draw").text


def test_values_stand_in_their_units(shown: DashboardShown) -> None:
    assert "1.26 kW" in _line(shown.panel("Power").text)
    assert "2.00 req/s" in _line(shown.panel("Requests").text)
    bars = _line(shown.panel("Busy").text)
    assert "NVIDIA L4" in bars
    assert "%" in bars
    assert "°C" in shown.panel("Temperature").text
    assert all("°C" in value for value in shown.panel("Temperature").values)


def test_overrides_and_transformations_are_applied(shown: DashboardShown) -> None:
    text = shown.panel("Temperature").text
    assert "Slowdown" in text
    assert "limit" not in text
    table = shown.panel("Nodes").text
    assert [word for word in ("Node", "Power", "Hottest", "Time", "Value") if word in table] == [
        "Node",
        "Power",
        "Hottest",
    ]
    assert "n0 500 W 58.7 °C n1 762 W" in _line(table)


def test_a_folded_row_is_drawn_open_and_a_table_below_the_fold_has_its_cells(shown: DashboardShown) -> None:
    assert "n1" in shown.panel("Folded").text
    assert "762" in shown.panel("Folded").text


def test_variables_are_filled_in(shown: DashboardShown) -> None:
    wanted = {"datasource": "prometheus", "cluster": ".*", "node": ".*", "UUID": "GPU-0", "__range": "21600s"}
    assert {name: shown.variables[name] for name in wanted} == wanted
    assert "GPUs of .*, first GPU-0, over 21600s." in shown.panel("Notes").text
    assert "/d/nodes?var-datasource=prometheus&var-node=n1" in shown.panel("Nodes").links


def test_a_given_variable_and_the_light_theme(browser: Browser, base_url: str, tmp_path: Path) -> None:
    span, only = (sample.START, sample.END), {"node": "n1"}
    shown = rendering.render(
        browser, base_url, sample.dashboard(), tmp_path, span=span, variables=only, theme="light", width=1200
    )
    assert "762 W" in _line(shown.panel("Power").text)
    assert shown.screenshot.stat().st_size > 10_000
    assert all(panel.screenshot.exists() for panel in shown.panels)


def test_an_unknown_variable_and_an_override_of_nothing_are_told(
    browser: Browser, base_url: str, tmp_path: Path
) -> None:
    dashboard = sample.dashboard()
    power, requests = dashboard["panels"][:2]
    power["targets"][0]["expr"] = 'sum(gpu:gpu_power_watts:max{node=~"$nod"})'
    requests["fieldConfig"]["overrides"] = [
        {"matcher": {"id": "byName", "options": "x"}, "properties": [{"id": "unti", "value": "watt"}]}
    ]
    shown = rendering.render(browser, base_url, dashboard, tmp_path, span=(sample.START, sample.END))
    assert shown.panel("Power").unknown_variables == ("$nod",)
    assert (shown.panel("Requests").state, "unti" in shown.panel("Requests").reason) == ("error", True)


def _line(text: str) -> str:
    """The words of a panel in one line; a value and its unit stand in elements of their own."""
    return " ".join(text.split())
