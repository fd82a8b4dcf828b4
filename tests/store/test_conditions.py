"""Conditions follow from the Remediation: what they say in each phase, and since when."""

import csv
from pathlib import Path
from typing import Any

import pytest

from cluster.api import Api
from cluster.control_plane import ControlPlane
from deploy.manifests import CRDS, apply, documents
from gpuwatch.act.remediations import RemediationStore
from gpuwatch.facts.model.decision import Mode
from gpuwatch.facts.model.remediation import Phase, Remediation, Turn
from gpuwatch.sources.kube.live import api_client
from gpuwatch.sources.kube.live_writer import LiveWriter
from gpuwatch.sources.store.custom_resources import TYPES, conditions
from store.remediation_stores import (
    MERGE,
    MINUTE,
    NAMESPACE,
    T0,
    TEAM,
    InCluster,
    gang_proposal,
    namespace,
    of_team,
    path_of,
    table,
)


def course(*phases: Phase, mode: Mode = Mode.ENFORCE, **changes: Any) -> Remediation:
    """One that took these turns, one a minute."""
    turns = tuple(Turn(T0 + (index + 1) * MINUTE, phase, f"turn {index + 1}") for index, phase in enumerate(phases))
    phase = phases[-1] if phases else Phase.PROPOSED
    return of_team(proposal=gang_proposal(mode=mode), phase=phase, history=turns, **changes)


def told(remediation: Remediation) -> dict[str, tuple[str, str, int]]:
    """Status, reason, and minutes since it was proposed."""
    found = conditions(remediation, 3)
    assert [each.type for each in found] == list(TYPES)
    assert {each.observed_generation for each in found} == {3}
    assert all(each.message and each.reason for each in found)
    return {each.type: (str(each.status), each.reason, (each.last_transition_time - T0) // MINUTE) for each in found}


CASES = list(csv.DictReader(Path(__file__).with_name("conditions.csv").read_text().splitlines()))
"""The phases that were taken, one a minute; then status, reason and minutes of each condition."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['mode']} {case['decision']} {case['phases']}")
def test_each_phase_has_its_conditions(case: dict[str, str]) -> None:
    decided = {case["decision"]: True} if case["decision"] else {}
    found = told(course(*map(Phase, case["phases"].split()), mode=Mode(case["mode"]), **decided))
    assert found.pop("Overdue")[:2] == ("False", "InTime")
    assert {name: f"{status} {reason} {minutes}" for name, (status, reason, minutes) in found.items()} == {
        name: case[name] for name in TYPES if name != "Overdue"
    }


@pytest.mark.parametrize("phase", list(Phase))
def test_every_phase_is_finished_where_it_is_final(phase: Phase) -> None:
    finished = told(course(phase))["Finished"]
    assert finished[:2] == (str(not phase.open), str(phase))


@pytest.mark.cluster
def test_they_are_written_at_once_and_follow_what_people_decide(control_plane: ControlPlane) -> None:
    api = Api(control_plane.administrator)
    apply(api, [*documents(CRDS), *map(namespace, (NAMESPACE, TEAM))])
    InCluster(api, control_plane.administrator).clear()  # the tests of a worker share the server

    def shown() -> dict[str, tuple[str, str, int]]:
        status = api.get(path)["status"]
        assert {each["observedGeneration"] for each in status["conditions"]} == {status["observedGeneration"]}
        return {
            each["type"]: (each["status"], each["reason"], each["observedGeneration"]) for each in status["conditions"]
        }

    with api_client(control_plane.administrator) as client:
        store = RemediationStore(LiveWriter(client), NAMESPACE)
        store.all()
        made = store.create(of_team(proposal=gang_proposal(mode=Mode.SUGGEST)))
        path = path_of(made.id)
        assert shown()["Approved"] == ("False", "AwaitingApproval", 1)
        assert store.all() == (made,)
        assert store.catch_up() == 0
        answer = api.answer("PATCH", path, {"spec": {"approved": True}}, content_type=MERGE)
        assert answer.ok, answer.text
        assert shown()["Approved"] == ("False", "AwaitingApproval", 1)  # of the spec before
        (found,) = store.all()
        assert store.catch_up() == 1
        assert shown()["Approved"] == ("True", "Approved", 2)
        _, rows = table(api, path.rpartition("/")[0])
        assert [(row["Phase"], row["Approved"]) for row in rows] == [("Proposed", "True")]
        (found,) = store.all()
        assert store.catch_up() == 0
        assert found.approved
        api.answer("DELETE", path)
