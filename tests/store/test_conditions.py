"""Conditions follow from the Remediation: what they say in each phase, and since when."""

from __future__ import annotations

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
from gpuwatch.sources.store.conditions import TYPES, conditions
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


@pytest.mark.parametrize(
    ("remediation", "approved", "applied", "verified", "finished"),
    [
        (
            course(mode=Mode.SUGGEST),
            ("False", "AwaitingApproval", 0),
            ("False", "Pending", 0),
            ("Unknown", "Pending", 0),
            ("False", "Proposed", 0),
        ),
        (
            course(),
            ("Unknown", "Pending", 0),
            ("False", "Pending", 0),
            ("Unknown", "Pending", 0),
            ("False", "Proposed", 0),
        ),
        (
            course(mode=Mode.SUGGEST, approved=True, approved_by="ana"),
            ("True", "Approved", 0),
            ("False", "Pending", 0),
            ("Unknown", "Pending", 0),
            ("False", "Proposed", 0),
        ),
        (
            course(Phase.NOTIFIED, Phase.ACTING, mode=Mode.SUGGEST, approved=True),
            ("True", "Approved", 1),
            ("False", "Acting", 0),
            ("Unknown", "Pending", 0),
            ("False", "Acting", 0),
        ),
        (
            course(Phase.NOTIFIED, Phase.ACTING, Phase.VERIFYING),
            ("True", "Enforced", 1),
            ("True", "Applied", 3),
            ("Unknown", "Verifying", 0),
            ("False", "Verifying", 0),
        ),
        (
            course(Phase.NOTIFIED, Phase.ACTING, Phase.VERIFYING, Phase.IN_EFFECT, Phase.IN_EFFECT),
            ("True", "Enforced", 1),
            ("True", "Applied", 3),
            ("True", "Verified", 4),
            ("False", str(Phase.IN_EFFECT), 0),
        ),
        (
            course(Phase.NOTIFIED, Phase.ACTING, Phase.VERIFYING, Phase.IN_EFFECT, Phase.UNDOING),
            ("True", "Enforced", 1),
            ("True", "Applied", 3),
            ("True", "Verified", 4),
            ("False", "Undoing", 0),
        ),
        (
            course(Phase.NOTIFIED, Phase.ACTING, Phase.VERIFYING, Phase.IN_EFFECT, Phase.UNDOING, Phase.UNDONE),
            ("True", "Enforced", 1),
            ("False", "Undone", 6),
            ("False", "Undone", 6),
            ("True", "Undone", 6),
        ),
        (
            course(Phase.NOTIFIED, Phase.ACTING, Phase.VERIFYING, Phase.IN_EFFECT, Phase.UNDOING, Phase.SUCCEEDED),
            ("True", "Enforced", 1),
            ("True", "Applied", 3),
            ("True", "Verified", 4),
            ("True", "Succeeded", 6),
        ),
        (  # put back to a person
            course(Phase.NOTIFIED, Phase.PROPOSED),
            ("False", "AwaitingApproval", 2),
            ("False", "Pending", 0),
            ("Unknown", "Pending", 0),
            ("False", "Proposed", 0),
        ),
        (
            course(Phase.REJECTED, mode=Mode.SUGGEST, rejected=True),
            ("False", "Rejected", 0),
            ("False", "Rejected", 0),
            ("False", "Rejected", 1),
            ("True", "Rejected", 1),
        ),
        (  # evictions that did not come back: nothing to undo
            course(Phase.NOTIFIED, Phase.ACTING, Phase.VERIFYING, Phase.FAILED),
            ("True", "Enforced", 1),
            ("True", "Applied", 3),
            ("False", "Failed", 4),
            ("True", "Failed", 4),
        ),
        (
            course(Phase.NOTIFIED, Phase.ACTING, Phase.UNDOING, Phase.FAILED),
            ("True", "Enforced", 1),
            ("False", "Failed", 0),
            ("False", "Failed", 4),
            ("True", "Failed", 4),
        ),
    ],
)
def test_each_phase_has_its_conditions(
    remediation: Remediation,
    approved: tuple[str, str, int],
    applied: tuple[str, str, int],
    verified: tuple[str, str, int],
    finished: tuple[str, str, int],
) -> None:
    expected = dict(zip(TYPES[:-1], (approved, applied, verified, finished), strict=True))
    found = told(remediation)
    assert found.pop("Overdue")[:2] == ("False", "InTime")
    assert found == expected


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
