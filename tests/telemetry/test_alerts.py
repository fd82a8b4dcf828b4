"""Which alerts fire: asked of a real server, whose rules leave the same series as these samples."""

import json
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from gpuwatch.facts.model.telemetry import GapKind
from gpuwatch.sources.telemetry.alerts import firing
from gpuwatch.sources.telemetry.connection import Connection
from gpuwatch.sources.telemetry.prometheus import PrometheusStore
from parts import remote_write
from parts.processes import free_port
from parts.prometheus_server import ServerBuild, running
from parts.scripted_server import Asked, Reply, scripted, vector


def rules(folder: Path, *names: str) -> Path:
    file = folder / "rules.yaml"
    file.write_text(
        yaml.safe_dump({"groups": [{"name": "g", "rules": [{"alert": n, "expr": "up == 9"} for n in names]}]})
    )
    return file


def test_those_that_fire_now_are_named_and_no_others(newest_prometheus: ServerBuild, tmp_path: Path) -> None:
    now = time.time()

    def series(
        name: str, state: str, *samples: float | None, **more: str
    ) -> tuple[dict[str, str], list[tuple[float, float | None]]]:
        labels = {"__name__": "ALERTS", "alertname": name, "alertstate": state, "severity": "page", **more}
        return labels, [(now - 30 + 15 * number, value) for number, value in enumerate(samples)]

    with running(newest_prometheus, rule_files=[rules(tmp_path, "PowerLost", "StorageSlow", "Never")]) as url:
        remote_write.write(
            url,
            [
                series("NetworkDown", "firing", 1.0, 1.0),
                series("StorageSlow", "pending", 1.0, 1.0),
                series("PowerLost", "firing", 1.0, None),  # over: the series ended
                series("Unasked", "firing", 1.0, 1.0),
                series("Elsewhere", "firing", 1.0, 1.0, cluster="eu-2"),
                series("Here", "firing", 1.0, 1.0, cluster="eu-1"),
            ],
        )
        store = PrometheusStore(Connection(url=url))
        names = ("PowerLost", "NetworkDown", "StorageSlow", "Never")
        at = datetime.fromtimestamp(now, UTC)
        assert firing(store, names, at) == (("NetworkDown",), ())
        # An alert whose rule dropped the label may be of any cluster.
        ours = {"cluster": "eu-1"}
        assert firing(store, ("NetworkDown", "Here"), at, ours) == (("NetworkDown", "Here"), ())
        assert firing(store, ("Elsewhere",), at) == (("Elsewhere",), ())
        found, (gap,) = firing(store, ("NetworkDown", "PowerLsot"), at)
        assert found is None
        assert gap.what == "alerts"
        assert "PowerLsot" in gap.detail
        assert "The rules there are: Never, PowerLost, StorageSlow." in gap.detail


@pytest.mark.parametrize("reply", [Reply(404, "not here"), Reply(403, "no"), Reply(200, "<html>")])
def test_rules_that_cannot_be_read_tell_nothing(reply: Reply) -> None:
    def answer(asked: Asked) -> Reply:
        return reply if asked.path.startswith("/api/v1/rules") else vector()

    with scripted(answer) as server:
        store = PrometheusStore(Connection(url=server.url, retries=0))
        found, (gap,) = firing(store, ("NetworkDown",), datetime(2026, 3, 2, tzinfo=UTC))
    assert found is None
    assert "/api/v1/rules" in gap.detail


@pytest.mark.parametrize("part", ["/api/v1/rules", "/api/v1/query"])
def test_an_answer_in_part_about_alerts_tells_nothing_until_the_next_one(part: str) -> None:
    lacking = {"warnings": ["store-3 did not answer."]}

    def answer(asked: Asked) -> Reply:
        said = lacking if asked.path == part else {}
        if asked.path.endswith("/rules"):
            groups = [{"name": "g", "rules": [{"name": "NetworkDown"}]}]
            return Reply(body=json.dumps({"status": "success", "data": {"groups": groups}, **said}))
        return vector(**said)

    with scripted(answer) as server:
        store = PrometheusStore(Connection(url=server.url, retries=0))
        found, (gap,) = firing(store, ("NetworkDown",), datetime(2026, 3, 2, tzinfo=UTC))
        assert (found, gap.kind, gap.what) == (None, GapKind.PARTIAL, "alerts")
        assert "store-3" in gap.detail
        lacking.clear()
        assert firing(store, ("NetworkDown",), datetime(2026, 3, 2, tzinfo=UTC)) == ((), ())


def test_where_nobody_could_tell_the_answer_is_none_and_not_nothing() -> None:
    store = PrometheusStore(Connection(url=f"http://127.0.0.1:{free_port()}"))
    found, (gap,) = firing(store, ("NetworkDown",), datetime(2026, 3, 2, tzinfo=UTC))
    assert found is None
    assert gap.kind is GapKind.UNREACHABLE
