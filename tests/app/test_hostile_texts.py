"""Texts of a cluster and of telemetry that would command a terminal, or make a second line of a log, do neither."""

import json
import logging
import re
import unicodedata
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from app.commands import gpuwatch
from gpuwatch.act.analysis import Policies, analyse, needs_of
from gpuwatch.act.execute.recheck import LiveFacts, read_again
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.app.cli.terminal import remark
from gpuwatch.app.logs import log_to_stderr
from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.model.cluster import Cluster, Namespace
from gpuwatch.facts.model.decision import Snapshot
from gpuwatch.facts.model.plain_text import original, plain, plain_json, plain_key
from gpuwatch.facts.model.remediation import Pause
from gpuwatch.say.remediation_tables import history_tables, notification, remediation_detail
from gpuwatch.say.status_page import Status, status_html
from gpuwatch.sources.collect.collect import collect
from gpuwatch.sources.kube.recorded import RecordedCluster
from gpuwatch.sources.kube.transport import ListError
from gpuwatch.sources.kube.writer import Failure, WriteError
from gpuwatch.sources.telemetry.connection import Connection
from gpuwatch.sources.telemetry.prometheus import PrometheusStore
from gpuwatch.sources.telemetry.promql import any_of, none_of, vector
from gpuwatch.sources.telemetry.recording import open_recording
from gpuwatch.sources.telemetry.samples import Expression, Function, Selector, TelemetryError
from kube import cluster_json as made
from parts import scripted_server
from parts.scripted_server import Reply, always, scripted
from report.terminal import shown
from store.remediation_stores import T0, InMemory, proposal, remediation
from telemetry.timeline import AT, Timeline, gpu, held

UNSAFE = [*map(chr, (*range(0x20), *range(0x7F, 0xA0))), *"\u061c\u200e\u200f\u2028\u2029"]
UNSAFE += map(chr, (*range(0x202A, 0x202F), *range(0x2066, 0x206A)))
HOSTILE = f"FORGED{''.join(UNSAFE)}\x1b]0;owned\x07\x1b[2J\r\n2026-01-01T00:00:00.000Z WARNING a second line"
_MEANT = {"kind", "apiVersion", "name", "namespace", "uid", "nodeName", "phase", "status", "type", "effect", "operator"}
_KEPT = {*_MEANT, "key", "creationTimestamp", "lastTransitionTime", "startTime", "startedAt", "nvidia.com/gpu"}
"""What the API server checks the form of, so that no tenant can write such a text there."""


def harmless(text: str) -> None:
    bad = {repr(each) for each in text if each not in "\n\t" and unicodedata.category(each) in ("Cc", "Zl", "Zp", "Cs")}
    bad |= {repr(each) for each in text if unicodedata.bidirectional(each) in _TURNING or each in "\u061c\u200e\u200f"}
    assert not bad
    assert not [line for line in text.splitlines() if line.startswith("2026-01-01T00:00:00.000Z")]


_TURNING = {"LRE", "LRO", "RLE", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def spoilt(found: Any, key: str = "") -> Any:
    """With the hostile text at the end of each text that is free."""
    if isinstance(found, dict):
        return {name: spoilt(value, name) for name, value in found.items()}
    if isinstance(found, list):
        return [spoilt(value, key) for value in found]
    return found + HOSTILE if isinstance(found, str) and key not in _KEPT else found


@pytest.fixture
def world(tmp_path: Path) -> tuple[str, ...]:
    """A Node with a broken GPU, its Pod and owner; every text in the cluster and in telemetry is hostile."""
    notes = dict.fromkeys((keys.OBJECTION, keys.OPT_OUT, keys.SNOOZE_UNTIL, keys.LAST_CHECKPOINT), "no")
    condition = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready"}
    waiting = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    labels = {"app": "train", "kubernetes.io/hostname": "gpu-0"}
    node = made.node(capacity={"nvidia.com/gpu": "8"}, conditions=[condition])
    node["metadata"]["annotations"] = notes
    owner = made.owner("Job", "train", "batch/v1", meta={"annotations": notes, "labels": labels}, status={"x": "y"})
    mine = {**made.controlled_by("Job", "train", "batch/v1"), "annotations": notes, "labels": labels}
    pods = [
        made.pod(meta=mine),
        made.pod("train-1", meta=mine, status={"phase": "Pending", "conditions": [waiting]}, nodeName=""),
    ]
    spaces = [{"apiVersion": "v1", "kind": "Namespace", "metadata": made.metadata("ml", annotations=notes)}]
    broken = made.pod("broken") | {"status": {"phase": 7, "reason": HOSTILE}}
    objects = [*spoilt([node, owner, *pods, *spaces]), broken]
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "all.json").write_text(
        json.dumps(made.as_list(*objects)).replace(made.CREATED, "2025-12-01T08:00:00Z")
    )
    timeline = Timeline()
    for number in range(7):
        labels = gpu(number, "gpu-0", **held("train-0", "ml")) | {"modelName": HOSTILE}
        if number > 3:
            labels = {name: value + HOSTILE for name, value in labels.items()}
        for metric, value in (("GPU_TEMP", 40), ("GPU_UTIL", 0), ("XID_ERRORS", 79)):
            timeline.add(f"DCGM_FI_DEV_{metric}", labels, value, ago=7200)
    timeline.store(tmp_path)
    moment = f"{AT:%Y-%m-%dT%H:%M:%SZ}"
    return "--telemetry", str(tmp_path / "timeline.parquet"), "--cluster", str(tmp_path / "cluster"), "--at", moment


@pytest.mark.parametrize(
    "command",
    [
        ("analyze",),
        ("analyze", "-o", "wide"),
        ("analyze", "-o", "json"),
        ("analyze", "-o", "yaml"),
        ("analyze", "-o", "csv"),
        ("analyze", "-o", "name"),
        ("plan", "-o", "wide"),
        ("plan", "-o", "json"),
        ("explain", "node/gpu-0", "-o", "wide"),
        ("explain", "job/train", "-n", "ml", "-o", "wide"),
        ("doctor", "-o", "wide"),
        ("recommend", "-o", "wide"),
    ],
    ids=" ".join,
)
def test_no_command_prints_what_a_terminal_obeys(world: tuple[str, ...], command: tuple[str, ...]) -> None:
    result = gpuwatch(*command, *world, COLUMNS="200")
    harmless(result.stdout)
    harmless(result.stderr)
    assert result.stdout
    # Findings have no such text: no rule gets the devices, which are doubted.
    if command not in (("analyze", "-o", "name"), ("analyze", "-o", "csv"), ("recommend", "-o", "wide")):
        assert "FORGED" in result.stdout  # so the text did come that far


def test_no_report_and_no_page_has_them(world: tuple[str, ...], tmp_path: Path) -> None:
    assert gpuwatch("report", "--no-send", "--output-dir", tmp_path / "out", *world).exit_code == 0
    written = [path for path in (tmp_path / "out").rglob("*") if path.suffix in (".md", ".html", ".json", ".csv")]
    for path in written:
        harmless(path.read_text())
    assert {path.suffix for path in written} >= {".md", ".html", ".json"}
    policies = Policies()
    cluster = RecordedCluster(tmp_path / "cluster")
    snapshot = collect(open_recording([tmp_path / "timeline.parquet"]), cluster, AT, needs_of(policies))
    analysis = analyse(PlanFacts(snapshot=snapshot), policies)
    harmless(page := status_html(_status(analysis)))
    assert "FORGED" in page


def _status(analysis: Any) -> Status:
    return Status(
        at=AT,
        version="0",
        identity="a",
        started_at=AT,
        source="b",
        leads=True,
        leader="a",
        modes=(),
        analysis=analysis,
    )


def test_history_and_notices_are_plain_though_the_stored_object_is_not() -> None:
    place = InMemory()
    with place.opened() as store:
        made_of = proposal(reason=HOSTILE, expires_at=T0 + timedelta(days=1))
        made_one = store.create(remediation(proposal=made_of))
        status = {
            "phase": "Proposed",
            "history": [{"time": "2026-03-02T12:00:00Z", "phase": "Proposed", "message": HOSTILE}],
        }
        place.write_raw(made_one.id, status)
        (found,) = store.all()
        assert found.history[-1].message == plain(HOSTILE)
        for text in (
            shown(history_tables([found], Pause(paused=True, reason="x"), (), T0, rows=9)),
            shown(remediation_detail(found, T0)),
            notification(found)[1],
        ):
            assert "FORGED" in text
            harmless(text)
        assert HOSTILE not in json.dumps(place.raw(made_one.id)["spec"], ensure_ascii=False)
        place.set_pause({"paused": "true", "by": HOSTILE, "reason": HOSTILE})
        assert store.paused().reason == plain(HOSTILE)


def test_what_a_step_reads_again_right_before_it_is_plain() -> None:
    space = {"kind": "Namespace", "metadata": {"name": "ml", "annotations": {keys.OBJECTION: HOSTILE}}}
    facts = PlanFacts(snapshot=Snapshot(at=AT, cluster=Cluster(namespaces=(Namespace(name="ml"),))))
    (again,) = read_again(facts, LiveFacts((space,))).snapshot.cluster.namespaces
    assert again.annotations == {keys.OBJECTION: plain(HOSTILE)}


def test_a_record_of_a_text_log_is_one_line_whoever_wrote_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    log_to_stderr("text")
    failure = ValueError(HOSTILE)
    logging.getLogger("gpuwatch").error("it failed: %s", HOSTILE, exc_info=(ValueError, failure, None))
    told = capsys.readouterr().err
    harmless(told)
    assert len([line for line in told.splitlines() if not line.startswith("  ")]) == 1
    remark(f"gpuwatch: {HOSTILE.replace(chr(10), ' ')}\nand its second line")
    told = capsys.readouterr().err
    harmless(told)
    assert told.count("\n") == 2


@pytest.mark.parametrize("answer", [scripted_server.error(400, "bad_data", HOSTILE), Reply(502, HOSTILE)])
def test_errors_of_servers_are_plain(answer: Reply) -> None:
    with scripted(always(answer)) as server, pytest.raises(TelemetryError, match="FORGED") as caught:
        PrometheusStore(Connection(url=server.url, retries=0)).evaluate(Expression(Selector("up"), Function.LAST), AT)
    for error in (caught.value, ListError("refused", HOSTILE), WriteError(Failure.INVALID, HOSTILE)):  # type: ignore[arg-type]
        harmless(str(error))


def test_warnings_and_names_of_a_server_are_plain_and_its_rows_are_asked_for_by_their_own_labels() -> None:
    answer = scripted_server.vector(({"instance": HOSTILE, "alertname": HOSTILE}, "1"), warnings=[HOSTILE])
    with scripted(always(answer)) as server:
        store = PrometheusStore(Connection(url=server.url))
        (row,) = store.evaluate(Expression(Selector("up"), Function.LAST), AT)
        harmless(row.labels["instance"] + store.problems[0].detail)
        for chosen in (any_of("instance", [row.labels["instance"]]), none_of("instance", [row.labels["instance"]])):
            store.evaluate(Expression(Selector("up", (chosen,)), Function.LAST), AT)
            harmless(query := server.queries[-1])
            assert re.sub(r"\\(.)", r"\1", _as_promql_reads(query)) == HOSTILE


def _as_promql_reads(query: str) -> str:
    return str(json.loads(query[query.index('"') : query.rindex('"') + 1]))


def test_no_two_texts_become_equal_and_a_query_gets_the_original() -> None:
    texts = ["n0", *(f"n0{each}" for each in UNSAFE), "n0\ufffd000a", "n0 ", "n0\\n"]
    assert len({plain_key(each) for each in texts}) == len(texts)
    assert [original(plain_key(each)) for each in texts] == texts
    assert vector(Selector("up", (any_of("a", [plain_key("x\x1b\ufffd\n")]),))) == 'up{a="x\\u001b\ufffd\\n"}'


@pytest.mark.parametrize("ascii_only", [True, False])
def test_json_keeps_all_but_what_is_unsafe(ascii_only: bool) -> None:
    texts = [HOSTILE, 'a "quoted" \\n \\\\u001b', "😀 é ü \ufffd", "C:\\new\\u001b", "\\\n", '\\"\n', "/\t/"]
    given = {"texts": texts, "n": [1.5, None, True], plain(HOSTILE): {}}
    found = json.loads(plain_json(json.dumps(given, ensure_ascii=ascii_only, indent=1).encode()))
    assert found == {**given, "texts": [plain(each) for each in texts]}
    assert plain(plain(HOSTILE)) == plain(HOSTILE)
