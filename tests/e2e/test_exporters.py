"""What a real Prometheus makes of the simulated Nodes' pages: the same series as the history that is written for it."""

import json
import time
import urllib.parse
import urllib.request

import pytest

from e2e.exporters import JOB, Sample, exporters, scraped, target
from parts.processes import wait_until
from parts.prometheus_server import ServerBuild, running

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

UTIL = "DCGM_FI_DEV_GPU_UTIL"
HELD: Sample = (UTIL, {"gpu": "0", "namespace": "team-a", "pod": "train-0", "container": "main"}, 97.0)
FREE: Sample = (UTIL, {"gpu": "1"}, 0.0)


def answer(url: str, query: str) -> dict[frozenset[tuple[str, str]], float]:
    """Labels → value now."""
    asked = urllib.parse.urlencode({"query": query, "time": time.time()})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{url}/api/v1/query?{asked}") as found:
        result = json.load(found)["data"]["result"]
    return {frozenset(each["metric"].items()): float(each["value"][1]) for each in result}


def test_pages_are_scraped_into_the_series_that_their_history_has(newest_prometheus: ServerBuild) -> None:
    with exporters() as pages, running(newest_prometheus, scrape_configs=[pages.scrape_config()]) as url:
        pages.show({"n0": [HELD, FREE], "n1": [FREE]})
        wanted = {
            frozenset(scraped(sample, name).items()): sample[2]
            for name, sample in (("n0", HELD), ("n0", FREE), ("n1", FREE))
        }
        wait_until(lambda: answer(url, UTIL) == wanted, lambda: f"{answer(url, UTIL)}, and not {wanted}")
        ups = {frozenset({"__name__": "up", **target(name)}.items()): 1.0 for name in ("n0", "n1")}
        assert answer(url, f'up{{job="{JOB}"}}') == ups

        pages.show({"n0": [FREE]})  # its Pod ended, and the other Node is gone: neither is carried on for five minutes
        left = {frozenset(scraped(FREE, "n0").items()): 0.0}
        wait_until(lambda: answer(url, UTIL) == left, lambda: f"{answer(url, UTIL)}, and not {left}")
