"""People's commands on a real API server; tests/e2e has them beside a controller."""

import csv
import io
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from app.commands import document, gpuwatch
from cluster.api import Api
from deploy.manifests import CRDS, apply, documents
from gpuwatch.app.cli.remediation_commands import kept_of
from gpuwatch.app.sources import open_sources
from gpuwatch.facts.model.remediation import Phase, Turn
from gpuwatch.sources.store.api_form import to_api
from gpuwatch.sources.store.custom_resources import API_VERSION, NODE_KIND
from store.remediation_stores import (
    NAMESPACE,
    NODE_REMEDIATIONS,
    REMEDIATIONS,
    TEAM,
    InCluster,
    course,
    gang_proposal,
    let_go,
    namespace,
    of_team,
    proposal,
    remediation,
)

FIXTURES = Path(__file__).parents[1] / "fixtures"
PAGE = FIXTURES / "exposition" / "honor-labels-false.prom"
NOW = datetime.now(UTC)


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> InCluster:
    control_plane = request.getfixturevalue("control_plane")
    api = Api(control_plane.administrator)
    apply(api, [*documents(CRDS), *map(namespace, (NAMESPACE, TEAM, "team-b"))])
    return InCluster(api, control_plane.administrator)


@pytest.fixture
def empty(control_plane_build: object, cluster: InCluster) -> InCluster:
    cluster.clear()
    let_go(cluster.api, REMEDIATIONS.replace(TEAM, "team-b"))
    return cluster


@pytest.fixture
def kept(empty: InCluster) -> InCluster:
    """Three Remediations: proposed, under way, and ended."""
    with empty.opened() as store:
        fresh = proposal(at=NOW - timedelta(minutes=5), expires_at=NOW + timedelta(days=3))
        store.create(remediation("taint-node-gpu-1-aaaa-20260302", proposal=fresh))
        going = remediation("taint-node-gpu-2-bbbb-20260302", proposal=proposal("node/gpu-2"))
        store.save(replace(store.create(going), **course()))
        ended = remediation("release-gang-chat-cccc-20260302", proposal=proposal("gang/chat"))
        turn = Turn(NOW, Phase.EXPIRED, "It was not approved in time.")
        store.save(replace(store.create(ended), phase=Phase.EXPIRED, history=(turn,)))
    return empty


def at(cluster: InCluster) -> tuple[str | Path, ...]:
    return "--kubeconfig", cluster.kubeconfig, "--controller-namespace", NAMESPACE


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


def done(*arguments: str | Path) -> str:
    result = gpuwatch(*arguments)
    assert result.exit_code == 0, result.stderr
    return " ".join(result.stdout.split())


def refused(*arguments: str | Path) -> str:
    result = gpuwatch(*arguments)
    assert result.exit_code == 1
    assert not result.stdout
    return " ".join(result.stderr.split())


def test_history_shows_what_waits_for_a_person_first(kept: InCluster) -> None:
    result = gpuwatch("history", *at(kept))
    lines = result.stdout.splitlines()
    assert "Remediations: 2 open, 1 ended" in lines[0]
    assert [next(word for word in ("Proposed", "Verifying", "Expired") if word in line) for line in lines[2:5]] == [
        "Proposed",
        "Verifying",
        "Expired",
    ]
    assert "1 proposal to decide: gpuwatch approve NAME" in result.stdout
    assert "release-gang" not in done("history", *at(kept), "--open")
    assert "… and 1 more: --rows 3" in done("history", *at(kept), "--rows", "2")


def test_history_of_one_tells_it_in_full_by_the_beginning_of_its_name(kept: InCluster) -> None:
    text = done("history", "taint-node-gpu-2", *at(kept))
    for part in ("row_remap_failed_state = 1 (== 1)", "taint (NoSchedule)", "409", "tainted", "Verifying"):
        assert part in text, part


def test_history_for_machines(kept: InCluster) -> None:
    found = document("history", *at(kept))
    assert found["version"] == 1
    phases = {item["name"].split("-")[-2]: item["phase"] for item in found["remediations"]}
    assert phases == {"aaaa": "Proposed", "bbbb": "Verifying", "cccc": "Expired"}
    assert found["pause"]["paused"] is False
    table = list(csv.DictReader(io.StringIO(gpuwatch("history", *at(kept), "-o", "csv").stdout)))
    assert sorted(row["phase"] for row in table) == ["Expired", "Proposed", "Verifying"]
    for name in gpuwatch("history", *at(kept), "-o", "name").stdout.split():
        assert gpuwatch("history", name, *at(kept), "-o", "name").stdout.strip() == name
    one = document("history", "release", *at(kept))
    assert [item["phase"] for item in one["remediations"]] == ["Expired"]


def decided(cluster: InCluster, name: str) -> tuple[bool, str, bool, bool]:
    with cluster.opened() as store:
        found = store.get(name)
    assert found is not None
    return found.approved, found.approved_by, found.rejected, found.undo_asked


def test_a_proposal_is_approved_once_and_by_somebody(kept: InCluster) -> None:
    assert "is approved by ana" in done("approve", "taint-node-gpu-1", "--by", "ana", *at(kept))
    assert decided(kept, "taint-node-gpu-1-aaaa-20260302") == (True, "ana", False, False)
    assert "is approved by ana" in done("approve", "taint-node-gpu-1", "--by", "bo", *at(kept))
    assert decided(kept, "taint-node-gpu-1-aaaa-20260302") == (True, "ana", False, False)
    assert "Proposed (approved)" in done("history", *at(kept))
    assert "approved already; ask for its undo instead" in refused("reject", "taint-node-gpu-1", *at(kept))


@pytest.mark.parametrize(("command", "name"), [("approve", "aaaa"), ("reject", "aaaa"), ("undo", "bbbb")])
def test_a_dry_run_is_judged_and_stores_nothing(kept: InCluster, command: str, name: str) -> None:
    full = next(each for each in gpuwatch("history", *at(kept), "-o", "name").stdout.split() if name in each)
    before = gpuwatch("history", full, *at(kept), "-o", "yaml").stdout.partition("\n")[2]
    result = gpuwatch(command, full, *at(kept), "--dry-run")
    assert (result.exit_code, result.stderr) == (0, "Dry run: nothing is stored.\n")
    after = gpuwatch("history", full, *at(kept), "-o", "yaml").stdout.partition("\n")[2]
    assert without_time(after) == without_time(before)


def without_time(document: str) -> str:
    return "\n".join(line for line in document.splitlines() if not line.startswith("at: "))


def test_a_proposal_is_rejected_and_cannot_be_approved_then(kept: InCluster) -> None:
    assert "is rejected" in done("reject", "rem/taint-node-gpu-1-aaaa-20260302", *at(kept))
    assert decided(kept, "taint-node-gpu-1-aaaa-20260302") == (False, "", True, False)
    assert "is rejected already" in refused("approve", "taint-node-gpu-1", *at(kept))


def test_what_was_done_is_undone_and_what_was_not_is_refused_with_what_to_do(kept: InCluster) -> None:
    assert "is taken back" in done("undo", "taint-node-gpu-2", *at(kept))
    assert decided(kept, "taint-node-gpu-2-bbbb-20260302") == (False, "", False, True)
    assert "gpuwatch reject taint-node-gpu-1" in refused("undo", "taint-node-gpu-1", *at(kept))
    assert "nothing of it stands" in refused("undo", "release", *at(kept))
    assert "take it back: gpuwatch undo" in refused("reject", "taint-node-gpu-2", *at(kept))
    assert "is Verifying since" in refused("approve", "taint-node-gpu-2", *at(kept))


@pytest.mark.parametrize(("command", "name"), [("reject", "taint-node-gpu-1"), ("undo", "taint-node-gpu-2")])
def test_a_person_can_say_that_the_finding_was_right(kept: InCluster, command: str, name: str) -> None:
    done(command, name, *at(kept))
    for options, expected in (((), False), (("--finding-correct",), True)):
        done(command, name, *options, *at(kept))
        with kept.opened() as store:
            (found,) = [each for each in store.all() if each.name.startswith(name)]
        assert found.finding_correct is expected


def test_a_namespace_shows_and_decides_its_own_alone(kept: InCluster) -> None:
    with kept.opened() as store:
        for space in ("team-a", "team-b"):
            store.create(of_team("release-gang-train-dddd-20260302", proposal=gang_proposal(space, at=NOW)))
    listed = document("history", "-n", "team-a", *at(kept))
    assert [item["proposal"]["namespace"] for item in listed["remediations"]] == ["team-a"]
    assert "5 are known" in refused("history", "zzzz", *at(kept))
    assert "name the Namespace, with -n" in refused("approve", "release-gang-train-dddd-20260302", *at(kept))
    assert "there is no Remediation 'taint'" in refused("approve", "taint", "-n", "team-a", *at(kept))
    assert "gpuwatch reject release-gang-train-dddd-20260302 -n team-a" in done(
        "history", "release", "-n", "team-a", *at(kept)
    )
    done("approve", "rem/release-gang-train", "-n", "team-a", "--by", "ana", *at(kept))
    done("reject", "team-b/release-gang-train", *at(kept))
    assert decided(kept, "team-a/release-gang-train-dddd-20260302") == (True, "ana", False, False)
    assert decided(kept, "team-b/release-gang-train-dddd-20260302") == (False, "", True, False)


def test_one_that_cannot_be_understood_is_not_said_to_be_absent(kept: InCluster) -> None:
    body = {"apiVersion": API_VERSION, "kind": NODE_KIND, "metadata": {"name": "forged"}}
    forged = to_api(proposal(pods=("team-b/train-0",)))
    assert kept.api.answer("POST", NODE_REMEDIATIONS, {**body, "spec": {"proposal": forged}}).ok
    said = refused("approve", "forged", *at(kept))
    assert "remediation forged: Its record cannot be decoded" in said
    assert "kubectl delete noderem forged" in said


@pytest.mark.parametrize("command", ["approve", "reject", "undo", "history"])
def test_a_name_that_is_none_or_several_is_refused_with_the_nearest(kept: InCluster, command: str) -> None:
    assert "begins the names of 2 Remediations" in refused(command, "taint-node-gpu", *at(kept))
    assert "did you mean release-gang-chat-cccc-20260302?" in refused(command, "relase-gang-chat", *at(kept))
    assert "3 are known: gpuwatch history" in refused(command, "zzzz", *at(kept))


def test_a_pause_is_kept_told_and_ended(kept: InCluster) -> None:
    assert "Paused since" in done("pause", "--reason", "maintenance", "--by", "ana", *at(kept))
    assert "by ana: maintenance" in done("history", *at(kept))
    result = gpuwatch("approve", "taint-node-gpu-1", *at(kept))
    assert "starts no action, and only undoes what it did; `gpuwatch resume` ends the pause." in " ".join(
        result.stderr.split()
    )
    assert "gpuwatch changes nothing; `gpuwatch resume` ends" in done("pause", "--all", "--by", "ana", *at(kept))
    assert "gpuwatch changes nothing; `gpuwatch resume` ends" in " ".join(
        gpuwatch("undo", "taint-node-gpu-2", *at(kept)).stderr.split()
    )
    assert done("resume", *at(kept)) == "It goes on."
    assert done("resume", *at(kept)) == "It was not paused."


def test_a_pause_may_come_before_anything_else(empty: InCluster) -> None:
    done("pause", *at(empty))
    assert "Nothing was proposed yet" in done("history", *at(empty))


@pytest.mark.parametrize("command", [("history",), ("approve", "taint"), ("pause",)])
def test_without_a_cluster_the_error_says_what_to_name_and_that_nothing_is_kept_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    text = refused(*command)
    assert "--kubeconfig" in text
    assert "kept in the cluster alone" in text


def test_plans_and_reports_know_what_a_live_cluster_keeps(kept: InCluster) -> None:
    options: dict[str, Any] = dict.fromkeys(("prometheus", "cluster", "context", "at", "config"))
    options |= {"telemetry": (PAGE,), "kubeconfig": kept.kubeconfig, "no_cluster": False}
    found, gaps = kept_of(open_sources(options), options)
    assert gaps == ()
    assert found is not None
    assert {each.phase for each in found[0]} == {Phase.PROPOSED, Phase.VERIFYING, Phase.EXPIRED}
    recorded = {**options, "no_cluster": True}
    assert kept_of(open_sources(recorded), recorded) == (None, ())


def test_plan_tells_what_would_be_done_and_fails_where_nothing_was_seen(tmp_path: Path) -> None:
    assert "Plan nothing to do" in done("plan", "--telemetry", PAGE, "--no-cluster")
    found = document("plan", "--telemetry", PAGE, "--no-cluster")
    assert set(found) == {"version", "at", "plan", "gaps"}
    assert found["version"] == 1
    header = gpuwatch("plan", "--telemetry", PAGE, "--no-cluster", "-o", "csv").stdout
    assert header.startswith("action,target,namespace,") and header.count("\n") == 1
    result = gpuwatch("plan", "--prometheus", "http://127.0.0.1:9", "--no-cluster")
    assert result.exit_code == 1
