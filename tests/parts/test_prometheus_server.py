"""The harness itself: what goes in comes out again, at its exact time."""

import json
import math
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from parts import remote_write
from parts.prometheus_server import ServerBuild, dump_openmetrics, running, thanos_query

NOW = 1_760_000_000


def query(url: str, promql: str, at: float) -> list[dict[str, Any]]:
    asked = urllib.parse.urlencode({"query": promql, "time": at})
    with urllib.request.urlopen(f"{url}/api/v1/query?{asked}") as answer:
        result = json.load(answer)["data"]["result"]
    assert isinstance(result, list)
    return result


def test_blocks_are_served_with_their_times(prometheus_build: ServerBuild) -> None:
    text = f'a{{gpu="0"}} 1 {NOW - 7200}\na{{gpu="0"}} 2 {NOW - 30}\n# EOF\n'
    with running(prometheus_build, text) as url:
        assert [row["value"][1] for row in query(url, "a", NOW)] == ["2"]
        assert query(url, "timestamp(a)", NOW)[0]["value"][1] == str(NOW - 30)
        assert query(url, "a", NOW - 7201) == []


def test_remote_write_carries_staleness_markers_and_nan(prometheus_build: ServerBuild) -> None:
    with running(prometheus_build, f'a{{gpu="0"}} 1 {NOW - 90}\n# EOF\n') as url:
        ended = ({"__name__": "b", "gpu": "1"}, [(NOW - 60, 5.0), (NOW - 30, None)])
        odd = ({"__name__": "b", "gpu": "2"}, [(NOW - 60, 5.0), (NOW - 30, math.nan)])
        remote_write.write(url, [ended, odd])
        remote_write.write(url, [({"__name__": "b", "gpu": "2"}, [(NOW - 86400, 7.0)])])
        assert [(row["metric"]["gpu"], row["value"][1]) for row in query(url, "b", NOW)] == [("2", "NaN")]
        assert {row["value"][1] for row in query(url, "b", NOW - 30.001)} == {"5"}
        assert [row["value"][1] for row in query(url, "b", NOW - 86399)] == ["7"]
        assert [row["value"][1] for row in query(url, "a", NOW)] == ["1"]


def test_thanos_query_answers_what_its_prometheus_has(prometheus_build: ServerBuild, thanos: Path) -> None:
    with (
        running(prometheus_build, f'a{{gpu="0"}} 3 {NOW - 30}\n# EOF\n') as prometheus,
        thanos_query(thanos, prometheus) as url,
    ):
        assert query(url, "a", NOW)[0]["metric"] == {"__name__": "a", "gpu": "0"}


def test_a_kept_data_folder_is_served_again_and_dumped(newest_prometheus: ServerBuild, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running(newest_prometheus, f"a 1 {NOW}\n# EOF\n", data=data):
        pass
    with running(newest_prometheus, data=data) as url:
        assert len(query(url, "a", NOW)) == 1
    if newest_prometheus.major < 3:
        pytest.skip("promtool has dump-openmetrics since Prometheus 3")
    assert f"a{{}} 1 {NOW}.000\n" in dump_openmetrics(newest_prometheus, data)


def test_a_server_that_cannot_start_says_why(newest_prometheus: ServerBuild) -> None:
    with (
        pytest.raises(RuntimeError, match="unknown long flag"),
        running(newest_prometheus, flags=["--no-such-flag"]),
    ):
        pass


def test_text_that_is_not_openmetrics_is_refused(newest_prometheus: ServerBuild) -> None:
    with pytest.raises(RuntimeError, match="promtool could not make blocks"), running(newest_prometheus, "a 1\n"):
        pass
