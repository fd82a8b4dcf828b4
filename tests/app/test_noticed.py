"""What a server says beside its answers: that parts are missing, and what time it is there."""

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from app.commands import gpuwatch
from parts.scripted_server import Asked, Reply, scripted


def gaps(answer: Reply) -> list[dict[str, Any]]:
    def reply(asked: Asked) -> Reply:
        return answer

    with scripted(reply) as server:
        result = gpuwatch("analyze", "--no-cluster", "-o", "json", "--prometheus", server.url)
    return list(json.loads(result.stdout)["gaps"])


def empty(**more: object) -> bytes:
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": []}, **more}).encode()


def test_a_partial_answer_is_a_gap() -> None:
    found = [gap for gap in gaps(Reply(body=empty(warnings=["store-3: no route to host"]))) if gap["kind"] == "partial"]
    assert found, "Thanos answers 200 with what it has"
    assert "store-3" in found[0]["detail"]
    assert [gap for gap in gaps(Reply(body=empty())) if gap["kind"] == "partial"] == []


@pytest.mark.parametrize(("seconds", "told"), [(0, False), (50, False), (90, True), (-90, True)])
def test_a_clock_that_is_off_is_a_gap(seconds: int, told: bool) -> None:
    there = format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)
    found = [gap for gap in gaps(Reply(body=empty(), headers={"Date": there})) if gap["kind"] == "clock"]
    assert bool(found) is told
    if told:
        assert ("ahead of" if seconds > 0 else "behind") in found[0]["detail"]
