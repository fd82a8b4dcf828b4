"""Nodes that refuse Pods which others admit, and what only looks like one."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detect.builders import ago, cluster, findings, machines, scene
from gpuwatch.facts.model.cluster import Condition, Namespace, Node, Pod
from gpuwatch.facts.model.decision import Advice, Finding, FindingKind, Severity, Snapshot, Verdict
from gpuwatch.judge.health.policy import HealthPolicy

POLICY = HealthPolicy(team_label="example.com/team")
LABELS = {"vision": "a", "speech": "b", "robots": "a", "search": ""}
"""Namespace → its team."""
FLEET = machines(4, 2)


def pod(
    name: str,
    *,
    space: str = "vision",
    owner: str = "",
    node: str = "node-0",
    minutes: float = 5,
    refused: str = "UnexpectedAdmissionError",
    scheduled: bool = True,
    created: datetime | None = None,
    gpus: int = 1,
) -> Pod:
    """A Pod that was refused, or with refused='' admitted, so many minutes ago."""
    return Pod(
        namespace=space,
        name=name,
        workload=f"Job/{space}/{owner or name}",
        node=node,
        phase="Failed" if refused else "Running",
        created=created or ago(minutes=minutes, seconds=2),
        started=ago(minutes=minutes),
        accelerators={"nvidia.com/gpu": gpus},
        refused=refused,
        scheduled=scheduled,
    )


def admitted(node: str = "node-1", gpus: int = 1, minutes: float = 5) -> Pod:
    return pod("lives", space="robots", node=node, refused="", gpus=gpus, minutes=minutes)


def eaten(spaces: Iterable[str] = ("vision", "speech"), count: int = 5, **more: object) -> list[Pod]:
    """So many refused Pods, an owner in each of these Namespaces."""
    spaces = list(spaces)
    chosen = [spaces[number % len(spaces)] for number in range(count)]
    return [pod(f"p-{n}", space=space, owner=f"job-{space}", **more) for n, space in enumerate(chosen)]  # type: ignore[arg-type]


def seen(pods: Iterable[Pod]) -> Snapshot:
    ready = (Condition("Ready", "True", since=ago(days=9)),)
    state = cluster(nodes=[f"node-{number}" for number in range(4)])
    nodes = tuple(replace(node, conditions=ready) for node in state.nodes)
    spaces = tuple(
        Namespace(name=name, labels={"example.com/team": team} if team else {}) for name, team in LABELS.items()
    )
    return scene(FLEET, state=replace(state, nodes=nodes, pods=tuple(pods), namespaces=spaces))


def told(snapshot: Snapshot, policy: HealthPolicy = POLICY) -> list[Finding]:
    return [found for found in findings(snapshot, policy).values() if found.kind is FindingKind.POD_ADMISSION]


def test_a_node_that_eats_the_pods_of_two_teams_is_degraded() -> None:
    (found,) = told(seen([*eaten(), admitted()]))
    assert (found.verdict, found.severity, found.advice) == (Verdict.DEGRADED, Severity.CRITICAL, Advice.INSPECT)
    assert (found.node, found.approval) == ("node-0", "")
    assert found.confidence_ratio >= 0.8, "the plan needs so much"
    assert found.since == ago(minutes=5)
    assert found.summary == (
        "the kubelet refused 5 Pods of 2 owners within 15 min that a scheduler had placed, "
        "while other Nodes admit such Pods"
    )
    assert found.evidence[0].note == "UnexpectedAdmissionError × 5"


NOT_ENOUGH: dict[str, Iterable[Pod]] = {
    "four Pods": eaten(count=4),
    "one of five is old": [*eaten(count=4), *eaten(count=1, minutes=16)],
    "no other Node admits such Pods": eaten(gpus=4),
    "pinned to the Node by a client": eaten(scheduled=False),
    "from before the Node was Ready, as after a boot": eaten(created=ago(days=10)),
    "not refused but not started yet": [replace(each, refused="", phase="Pending") for each in eaten()],
}


@pytest.mark.parametrize("case", NOT_ENOUGH)
def test_nothing_is_said_of(case: str) -> None:
    assert told(seen([*NOT_ENOUGH[case], admitted()])) == []


def test_others_must_admit_pods_in_the_same_time() -> None:
    assert told(seen(eaten())) == []
    assert told(seen([*eaten(), admitted(node="node-0")])) == [], "the Node itself is no other Node"
    assert told(seen([*eaten(), admitted(minutes=16)])) == []
    assert told(seen([*eaten(gpus=2), admitted(gpus=2)])), "as many GPUs"


@pytest.mark.parametrize(
    ("pods", "lacks"),
    [
        (eaten(["vision"]), "a second owner"),
        (eaten(["vision", "robots"]), "a second team"),
    ],
    ids=["one owner", "two Namespaces of one team"],
)
def test_one_owner_or_one_team_accuses_no_node(pods: list[Pod], lacks: str) -> None:
    (found,) = told(seen([*pods, admitted()]))
    assert (found.verdict, found.severity) == (Verdict.UNKNOWN, Severity.WARNING)
    assert lacks in found.missing[0]


@given(
    st.lists(
        st.builds(
            pod,
            name=st.sampled_from("abcdef"),
            space=st.sampled_from(["vision", "robots"]),
            owner=st.sampled_from(["x", "y", "z"]),
            node=st.sampled_from(["node-0", "node-1"]),
            minutes=st.floats(0, 20),
            refused=st.sampled_from(["", "UnexpectedAdmissionError", "TopologyAffinityError"]),
            scheduled=st.booleans(),
        ),
        max_size=30,
    )
)
def test_no_pods_of_one_team_degrade_a_node(pods: list[Pod]) -> None:
    """Both Namespaces are of team a."""
    assert not [found for found in told(seen([*pods, admitted()])) if found.verdict is Verdict.DEGRADED]


def test_a_person_approves_where_teams_are_not_known() -> None:
    (found,) = told(seen([*eaten(["vision", "search"]), admitted()]))
    assert found.verdict is Verdict.DEGRADED
    assert found.approval == (
        "A person has to approve it: no two of the refused Pods' Namespaces name different teams by the label "
        "example.com/team."
    )
    (found,) = told(seen([*eaten(), admitted()]), HealthPolicy())
    assert "a label (health.team_label)" in found.approval


def test_a_person_approves_where_a_second_node_refuses_pods_too() -> None:
    both = [*eaten(), *eaten(node="node-2")]
    assert [found.approval for found in told(seen([*both, admitted()]))] == [
        f"A person has to approve it: Pods are refused on {other} too, so the cause may not be this Node."
        for other in ("node-2", "node-0")
    ]


def test_a_node_without_the_time_of_its_ready_condition_is_not_accused() -> None:
    snapshot = seen([*eaten(), admitted()])
    bare: tuple[Node, ...] = tuple(replace(node, conditions=()) for node in snapshot.cluster.nodes)
    assert told(replace(snapshot, cluster=replace(snapshot.cluster, nodes=bare))) == []
