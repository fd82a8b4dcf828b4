"""Which alerts fire: asked of a real server, whose rules leave the same series as these samples."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from gpuwatch.model.telemetry import GapKind
from gpuwatch.telemetry.alerts import firing
from gpuwatch.telemetry.connection import Connection
from gpuwatch.telemetry.prometheus import PrometheusStore
from parts import remote_write
from parts.processes import free_port
from parts.prometheus_server import ServerBuild, running


def test_those_that_fire_now_are_named_and_no_others(newest_prometheus: ServerBuild) -> None:
    now = time.time()

    def series(
        name: str, state: str, *samples: float | None
    ) -> tuple[dict[str, str], list[tuple[float, float | None]]]:
        labels = {"__name__": "ALERTS", "alertname": name, "alertstate": state, "severity": "page"}
        return labels, [(now - 30 + 15 * number, value) for number, value in enumerate(samples)]

    with running(newest_prometheus) as url:
        remote_write.write(
            url,
            [
                series("NetworkDown", "firing", 1.0, 1.0),
                series("StorageSlow", "pending", 1.0, 1.0),
                series("PowerLost", "firing", 1.0, None),  # over: the series ended
                series("Unasked", "firing", 1.0, 1.0),
            ],
        )
        store = PrometheusStore(Connection(url=url))
        names = ("PowerLost", "NetworkDown", "StorageSlow", "Never")
        assert firing(store, names, datetime.fromtimestamp(now, UTC)) == (("NetworkDown",), ())


def test_where_nobody_could_tell_the_answer_is_none_and_not_nothing() -> None:
    store = PrometheusStore(Connection(url=f"http://127.0.0.1:{free_port()}"))
    found, (gap,) = firing(store, ("NetworkDown",), datetime(2026, 3, 2, tzinfo=UTC))
    assert found is None
    assert gap.kind is GapKind.UNREACHABLE
