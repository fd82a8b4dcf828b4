"""People's commands over a file, as they are run where there is no cluster; tests/e2e has them on one."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpuwatch.app.cli import cli
from gpuwatch.app.remediation_stores import file_beside
from gpuwatch.model.remediation import Phase, Turn
from gpuwatch.store.remediation_sqlite import SqliteRemediations
from store.remediation_stores import course, gang_proposal, of_team, proposal, remediation

FIXTURES = Path(__file__).parents[1] / "fixtures"
PAGE = FIXTURES / "exposition" / "honor-labels-false.prom"
NOW = datetime.now(UTC)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state beside which three Remediations are kept: proposed, under way, and ended."""
    file = tmp_path / "state.sqlite"
    with SqliteRemediations.open(file_beside(file)) as store:
        fresh = proposal(at=NOW - timedelta(minutes=5), expires_at=NOW + timedelta(days=3))
        store.create(remediation("taint-node-gpu-1-aaaa-20260302", proposal=fresh))
        going = remediation("taint-node-gpu-2-bbbb-20260302", proposal=proposal("node/gpu-2"))
        store.save(replace(store.create(going), **course()))
        ended = remediation("release-gang-chat-cccc-20260302", proposal=proposal("gang/chat"))
        turn = Turn(NOW, Phase.EXPIRED, "Nobody approved it in time.")
        store.save(replace(store.create(ended), phase=Phase.EXPIRED, history=(turn,)))
    return file


def gpuwatch(*arguments: str | Path) -> Result:
    return CliRunner(env={"COLUMNS": "160"}).invoke(cli, [str(item) for item in arguments], catch_exceptions=False)


def done(*arguments: str | Path) -> str:
    result = gpuwatch(*arguments)
    assert result.exit_code == 0, result.stderr
    return " ".join(result.stdout.split())


def refused(*arguments: str | Path) -> str:
    result = gpuwatch(*arguments)
    assert result.exit_code == 1
    assert not result.stdout
    return " ".join(result.stderr.split())


def test_history_shows_what_waits_for_a_person_first(state: Path) -> None:
    result = gpuwatch("history", "--state", state)
    lines = result.stdout.splitlines()
    assert "Remediations: 2 open, 1 ended" in lines[0]
    assert [next(word for word in ("Proposed", "Verifying", "Expired") if word in line) for line in lines[2:5]] == [
        "Proposed",
        "Verifying",
        "Expired",
    ]
    assert "1 proposal to decide: gpuwatch approve NAME" in result.stdout
    assert "release-gang" not in done("history", "--state", state, "--open")
    assert "… and 1 more: --rows 3" in done("history", "--state", state, "--rows", "2")


def test_history_of_one_tells_it_in_full_by_the_beginning_of_its_name(state: Path) -> None:
    text = done("history", "taint-node-gpu-2", "--state", state)
    for part in ("row_remap_failed_state = 1 (== 1)", "taint (NoSchedule)", "409", "tainted", "Verifying"):
        assert part in text, part


def test_history_for_machines(state: Path) -> None:
    document = json.loads(gpuwatch("history", "--state", state, "--format", "json").stdout)
    assert document["version"] == 1
    phases = {item["name"].split("-")[-2]: item["phase"] for item in document["remediations"]}
    assert phases == {"aaaa": "Proposed", "bbbb": "Verifying", "cccc": "Expired"}
    assert document["pause"]["paused"] is False
    one = json.loads(gpuwatch("history", "release", "--state", state, "--format", "json").stdout)
    assert [item["phase"] for item in one["remediations"]] == ["Expired"]


def kept(state: Path, name: str) -> tuple[bool, str, bool, bool]:
    with SqliteRemediations.open(file_beside(state)) as store:
        found = store.get(name)
    assert found is not None
    return found.approved, found.approved_by, found.rejected, found.undo_asked


def test_a_proposal_is_approved_once_and_by_somebody(state: Path) -> None:
    assert "is approved by ana" in done("approve", "taint-node-gpu-1", "--by", "ana", "--state", state)
    assert kept(state, "taint-node-gpu-1-aaaa-20260302") == (True, "ana", False, False)
    assert "is approved by ana" in done("approve", "taint-node-gpu-1", "--by", "bo", "--state", state)
    assert kept(state, "taint-node-gpu-1-aaaa-20260302") == (True, "ana", False, False)
    assert "Proposed (approved)" in done("history", "--state", state)
    assert "approved already; ask for its undo instead" in refused("reject", "taint-node-gpu-1", "--state", state)


def test_a_proposal_is_rejected_and_cannot_be_approved_then(state: Path) -> None:
    assert "is rejected" in done("reject", "rem/taint-node-gpu-1-aaaa-20260302", "--state", state)
    assert kept(state, "taint-node-gpu-1-aaaa-20260302") == (False, "", True, False)
    assert "is rejected already" in refused("approve", "taint-node-gpu-1", "--state", state)


def test_what_was_done_is_undone_and_what_was_not_is_refused_with_what_to_do(state: Path) -> None:
    assert "is taken back" in done("undo", "taint-node-gpu-2", "--state", state)
    assert kept(state, "taint-node-gpu-2-bbbb-20260302") == (False, "", False, True)
    assert "gpuwatch reject taint-node-gpu-1" in refused("undo", "taint-node-gpu-1", "--state", state)
    assert "nothing of it stands" in refused("undo", "release", "--state", state)
    assert "take it back: gpuwatch undo" in refused("reject", "taint-node-gpu-2", "--state", state)
    assert "is Verifying since" in refused("approve", "taint-node-gpu-2", "--state", state)


@pytest.mark.parametrize(("command", "name"), [("reject", "taint-node-gpu-1"), ("undo", "taint-node-gpu-2")])
def test_a_person_can_say_that_the_finding_was_right(state: Path, command: str, name: str) -> None:
    done(command, name, "--state", state)
    for options, expected in (((), False), (("--finding-correct",), True)):
        done(command, name, *options, "--state", state)
        with SqliteRemediations.open(file_beside(state)) as store:
            (found,) = [each for each in store.all() if each.name.startswith(name)]
        assert found.finding_correct is expected


def test_a_namespace_shows_and_decides_its_own_alone(state: Path) -> None:
    with SqliteRemediations.open(file_beside(state)) as store:
        for space in ("team-a", "team-b"):
            store.create(of_team("release-gang-train-dddd-20260302", proposal=gang_proposal(space, at=NOW)))
    listed = json.loads(gpuwatch("history", "-n", "team-a", "--state", state, "--format", "json").stdout)
    assert [item["proposal"]["namespace"] for item in listed["remediations"]] == ["team-a"]
    assert "5 are known" in refused("history", "zzzz", "--state", state)
    assert "name the Namespace, with -n" in refused("approve", "release-gang-train-dddd-20260302", "--state", state)
    assert "there is no Remediation 'taint'" in refused("approve", "taint", "-n", "team-a", "--state", state)
    assert "gpuwatch reject release-gang-train-dddd-20260302 -n team-a" in done(
        "history", "release", "-n", "team-a", "--state", state
    )
    done("approve", "rem/release-gang-train", "-n", "team-a", "--by", "ana", "--state", state)
    done("reject", "team-b/release-gang-train", "--state", state)
    assert kept(state, "team-a/release-gang-train-dddd-20260302") == (True, "ana", False, False)
    assert kept(state, "team-b/release-gang-train-dddd-20260302") == (False, "", True, False)


def test_one_that_cannot_be_understood_is_not_said_to_be_absent(state: Path) -> None:
    with contextlib.closing(sqlite3.connect(file_beside(state))) as db, db:
        db.execute("UPDATE remediation SET status = '{}' WHERE id LIKE 'taint-node-gpu-1%'")
    said = refused("approve", "taint-node-gpu-1", "--state", state)
    assert "remediation taint-node-gpu-1-aaaa-20260302: damaged" in said
    assert "status.phase is missing" in said


@pytest.mark.parametrize("command", ["approve", "reject", "undo", "history"])
def test_a_name_that_is_none_or_several_is_refused_with_the_nearest(state: Path, command: str) -> None:
    assert "begins the names of 2 Remediations" in refused(command, "taint-node-gpu", "--state", state)
    assert "did you mean release-gang-chat-cccc-20260302?" in refused(command, "relase-gang-chat", "--state", state)
    assert "3 are known: gpuwatch history" in refused(command, "zzzz", "--state", state)


def test_a_pause_is_kept_told_and_ended(state: Path) -> None:
    assert "Paused since" in done("pause", "--reason", "maintenance", "--by", "ana", "--state", state)
    assert "by ana: maintenance" in done("history", "--state", state)
    result = gpuwatch("approve", "taint-node-gpu-1", "--state", state)
    assert "nothing is done before `gpuwatch resume`" in " ".join(result.stderr.split())
    assert done("resume", "--state", state) == "It goes on."
    assert done("resume", "--state", state) == "It was not paused."


def test_a_pause_may_come_before_anything_else(tmp_path: Path) -> None:
    done("pause", "--state", tmp_path / "new" / "state.sqlite")
    assert "Nothing was proposed yet" in done("history", "--state", tmp_path / "new" / "state.sqlite")


def test_a_state_without_remediations_is_an_error_and_makes_no_file(tmp_path: Path) -> None:
    assert "there is no such file" in refused("history", "--state", tmp_path / "state.sqlite")
    assert list(tmp_path.iterdir()) == []


def test_without_cluster_and_state_the_error_names_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    text = refused("history")
    assert "--kubeconfig" in text
    assert "--state FILE" in text


def test_plan_tells_what_would_be_done_and_fails_where_nothing_was_seen(tmp_path: Path) -> None:
    assert "Plan nothing to do" in done("plan", "--telemetry", PAGE, "--no-cluster")
    document = json.loads(gpuwatch("plan", "--telemetry", PAGE, "--no-cluster", "--format", "json").stdout)
    assert set(document) == {"version", "at", "plan", "gaps"}
    assert document["version"] == 1
    result = gpuwatch("plan", "--prometheus", "http://127.0.0.1:9", "--no-cluster")
    assert result.exit_code == 1
