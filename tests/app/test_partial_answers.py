"""A server that gave one answer in part brakes the cycle that asked, and no other."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpuwatch.act.analysis import Policies
from gpuwatch.act.plan.policy import PlanPolicy
from gpuwatch.app.controller.controller import Controller
from gpuwatch.app.controller.metrics import Metrics
from gpuwatch.app.controller.replica import Replica
from gpuwatch.app.settings import Settings
from gpuwatch.app.settings.run_policy import ControllerPolicy
from gpuwatch.app.sources import Opened
from gpuwatch.facts.model.decision import Plan
from gpuwatch.sources.telemetry.connection import Connection
from gpuwatch.sources.telemetry.prometheus import PrometheusStore
from parts.scripted_server import Asked, Reply, scripted, vector

BUSY = "DCGM_FI_DEV_GPU_UTIL"
THANOS = {"warnings": ["fetch series for {cluster='a'} store-3:10901: rpc error: code = Unavailable"]}
VICTORIA_METRICS = {"isPartial": True}


def gpu(number: int) -> Mapping[str, str]:
    return {
        "UUID": f"GPU-{number}", "gpu": str(number), "device": f"nvidia{number}", "Hostname": "n0",
        "instance": "n0:9400", "job": "dcgm", "modelName": "NVIDIA H100 80GB HBM3",
    }  # fmt: skip


class Fleet:
    """Two busy GPUs, as a server tells of them. said: beside the answers to questions that contain `of`."""

    def __init__(self) -> None:
        self.said: Mapping[str, object] = {}
        self.of = ""
        self.told = 0

    def answer(self, asked: Asked) -> Reply:
        said = self.said if self.of in f"{asked.path} {asked.query}" else {}
        self.told += bool(said)
        if "/label/" in asked.path:
            return Reply(body=json.dumps({"status": "success", "data": [BUSY], **said}))
        if asked.path.endswith("/rules"):
            groups = [{"name": "a", "rules": [{"name": "ClusterDown", "type": "alerting"}]}]
            return Reply(body=json.dumps({"status": "success", "data": {"groups": groups}, **said}))
        if "vector(1)" in asked.query:
            return vector(({}, "21"), **said)
        if "ALERTS" in asked.query:
            return vector(**said)
        at = float(asked.form.get("time", asked.form.get("end", "0")))
        if asked.path.endswith("/query_range") or asked.query.endswith("]"):
            begin, step = float(asked.form.get("start", at - 3600)), float(asked.form.get("step", 60))
            times = [begin + step * index for index in range(int((at - begin) // step) + 1)]
            values = [[time, "50"] for time in times]
            result = [{"metric": {"__name__": BUSY, **gpu(number)}, "values": values} for number in range(2)]
            data = {"resultType": "matrix", "result": result}
            return Reply(body=json.dumps({"status": "success", "data": data, **said}))
        return vector(*((gpu(number), "50") for number in range(2)), **said)


@contextmanager
def running(fleet: Fleet, folder: Path, brake_alerts: tuple[str, ...] = ()) -> Iterator[Controller]:
    with scripted(fleet.answer) as server:
        connection = Connection(url=server.url, retries=0)
        policy = PlanPolicy(brake_alerts=brake_alerts)
        settings = Settings(run=ControllerPolicy(folder=folder), prometheus=connection, plan=policy)
        store = PrometheusStore(connection)
        opened = Opened(settings, Policies(plan=policy), store, None, None, datetime.now(UTC), "a test")
        yield Controller(Replica({}, opened, None, None, Metrics(), threading.Event()))
        store.close()


def cycle(controller: Controller) -> Plan:
    controller.cycle.run()
    assert controller.replica.found.analysis is not None
    return controller.replica.found.analysis.plan


@pytest.mark.parametrize("said", [THANOS, VICTORIA_METRICS])
@pytest.mark.parametrize("of", ["/label/", "/query_range", "max_over_time", "]"])
def test_one_partial_answer_brakes_one_cycle(said: Mapping[str, object], of: str, tmp_path: Path) -> None:
    fleet = Fleet()
    with running(fleet, tmp_path) as controller:
        assert cycle(controller).brake == ""
        fleet.said, fleet.of = said, of
        partial = cycle(controller)
        assert fleet.told
        assert partial.brake.startswith("Telemetry answered only in part: ")
        assert partial.last_storm is None
        fleet.said = {}
        for _ in range(2):
            plan = cycle(controller)
            assert (plan.brake, plan.last_storm) == ("", None)
