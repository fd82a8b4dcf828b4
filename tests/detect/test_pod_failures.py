"""Nodes and GPUs where Pods of several programs die early, and what only looks like one."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from detect.builders import AT, ago, cluster, device, findings, machines, scene
from gpuwatch.facts.model.decision import Advice, Finding, FindingKind, Severity, Snapshot, Verdict
from gpuwatch.facts.model.telemetry import ActivityHistory, PodRun
from gpuwatch.judge.health.pod_failures import _chance

NODES = 6
FLEET = machines(NODES, 2)
TEAMS = ("vision", "speech", "robots", "search")


def run(
    name: str,
    node: int,
    *,
    team: str = "vision",
    image: str = "",
    minutes: float = 2,
    at: datetime | None = None,
    phase: str = "Failed",
    reasons: tuple[str, ...] = ("Error",),
    restarts: int = 0,
) -> PodRun:
    """A Job's Pod that ended at `at`, so many minutes after its start."""
    end = at or ago(hours=1)
    return PodRun(
        pod=f"{team}/{name}-x7k2p",
        node=f"node-{node}",
        created_by=f"Job/{name}",
        images=(f"registry/{team}/{image or 'train'}:v1",),
        phase=phase,
        started=end if phase == "Running" else end - (AT - ago(minutes=minutes)),
        ended=None if phase == "Running" else end,
        reasons=reasons,
        restarts=restarts,
    )


def dying(node: int, count: int = 3, teams: Sequence[str] = TEAMS) -> list[PodRun]:
    """Jobs of these teams on the Node, each dead after two minutes, a quarter of an hour apart."""
    return [
        run(f"job-{team}-{number}a{node}", node, team=team, at=ago(hours=3, minutes=-15 * number))
        for team in teams
        for number in range(count)
    ]


def living(nodes: Iterable[int], teams: Sequence[str] = TEAMS) -> list[PodRun]:
    """Jobs of these teams that run on each of the Nodes for hours."""
    return [
        run(f"job-{team}-9b{node}", node, team=team, phase="Running", reasons=(), at=ago(hours=4))
        for team in teams
        for node in nodes
    ]


def seen(runs: Iterable[PodRun], activity: Iterable[ActivityHistory] = ()) -> Snapshot:
    state = cluster(nodes=[f"node-{number}" for number in range(NODES)])
    return replace(scene(FLEET, state=state, activity=activity), pod_runs=tuple(runs))


def found(snapshot: Snapshot) -> list[Finding]:
    return [each for each in findings(snapshot).values() if each.kind is FindingKind.POD_FAILURES]


def test_a_node_where_the_jobs_of_four_teams_die_that_live_elsewhere() -> None:
    [finding] = found(seen([*dying(0), *living(range(1, NODES))]))
    assert str(finding.subject) == "node/node-0"
    assert (finding.verdict, finding.severity, finding.advice) == (Verdict.UNKNOWN, Severity.WARNING, Advice.INSPECT)
    assert finding.confidence_ratio == 0.0  # shown, and never acted on
    assert finding.devices == ("gpu-0-0", "gpu-0-1")
    assert finding.summary == (
        "12 of 12 workloads here died within 10 min, and 0 of 20 elsewhere that run the same 4 programs"
    )
    reasons, time = finding.evidence
    assert reasons.value == "Error × 12"
    assert "is the chance of so many deaths at any of 6 places" in reasons.note
    assert (time.signal, time.value, time.unit) == ("time to failure", 120.0, "seconds")


def test_pods_that_the_kubelet_refuses_and_pods_that_crash_again_and_again() -> None:
    refused = [
        replace(each, ended=each.started, images=(), reasons=("UnexpectedAdmissionError",))
        for each in dying(0, 3, TEAMS[:2])
    ]
    crashing = [
        replace(each, phase="Running", ended=None, started=ago(minutes=minutes), restarts=9, reasons=("exit code 139",))
        for minutes, each in enumerate(dying(0, 3, TEAMS[2:]))
    ]
    [finding] = found(seen([*refused, *crashing, *living(range(1, NODES))]))
    assert finding.evidence[0].value == "UnexpectedAdmissionError × 6, exit code 139 × 6"


def test_programs_of_one_team_whose_jobs_have_numbers_for_names_are_known_by_their_images() -> None:
    images = ("parse", "train", "score", "export")
    dead = [
        run(f"run-{n}{m}", 0, image=images[n], at=ago(hours=3, minutes=-20 * m)) for n in range(4) for m in range(3)
    ]
    alive = [
        run(f"run-{n}{node}9", node, image=images[n], phase="Running", reasons=(), at=ago(hours=4))
        for n in range(4)
        for node in range(1, NODES)
    ]
    [finding] = found(seen([*dead, *alive]))
    assert "that run the same 4 programs" in finding.summary


HARMLESS = {
    "a crash-looping image everywhere": [each for node in range(NODES) for each in dying(node)],
    "one owner's bad job that lands on the Node again and again": [
        *dying(0, 12, TEAMS[:1]),
        *living(range(1, NODES)),
    ],
    "one owner's test under several names, each with its own tag": [
        *(
            replace(run(f"test-{name}", 0, at=ago(minutes=20 * number)), images=(f"registry/ci:{name}",))
            for number, name in enumerate("abcdefgh")
        ),
        *(
            replace(run(f"test-{name}", node, phase="Running", at=ago(hours=4)), images=(f"registry/ci:{name}",))
            for node in range(1, NODES)
            for name in "abcdefgh"
        ),
    ],
    "a drained Node": [*(replace(each, reasons=("Error", "deleted")) for each in dying(0)), *living(range(1, NODES))],
    "a Node that evicted its Pods": [*(replace(each, reasons=("Evicted",)) for each in dying(0)), *living(range(1, 6))],
    "a Node that shut down: all died at once": [
        *(replace(each, ended=ago(hours=1), started=ago(hours=1, minutes=3)) for each in dying(0)),
        *living(range(1, NODES)),
    ],
    "programs that live here too": [*dying(0, 1), *living(range(NODES)), *living(range(NODES))],
    "few deaths of programs that are seen at one other place": [
        *(each for number, team in enumerate(TEAMS) for each in [dying(0, 4, [team])[number]]),
        *living([1]),
    ],
    "workloads that lived here at the second try": [
        *dying(0),
        *(replace(each, pod=f"{each.pod}-2", phase="Succeeded") for each in dying(0)),
        *living(range(1, NODES)),
    ],
    "programs of which nobody saw another place": dying(0),
    "Pods that died after hours": [
        *(replace(each, started=ago(hours=9)) for each in dying(0)),
        *living(range(1, NODES)),
    ],
    "Pods whose end nobody saw": [*(replace(each, phase="", ended=None) for each in dying(0)), *living(range(1, 6))],
    "restarts that stopped": [
        *(replace(each, phase="Running", started=ago(hours=1), ended=None, restarts=9) for each in dying(0)),
        *living(range(1, NODES)),
    ],
    "a Node of another cluster": [*(replace(each, node="other") for each in dying(0)), *living(range(1, NODES))],
    "nothing is known": [],
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_only_looks_like_a_black_hole(name: str) -> None:
    assert found(seen(HARMLESS[name])) == []


def test_a_gang_is_one_case_on_each_node() -> None:
    """Eight Pods of one Job are no eight failures, and no eight that live."""
    gangs = [
        replace(dying(0, 4, [team])[number], pod=f"{team}/gang-{rank}")
        for number, team in enumerate(TEAMS)
        for rank in range(8)
    ]
    assert found(seen([*gangs, *living([1])])) == []


def test_replicas_live_each_for_itself() -> None:
    """Of three Deployments one Pod each crashes, always on this Node."""
    replicas = [
        replace(each, pod=f"{each.pod}-{number}", created_by=f"ReplicaSet/web-{each.pod[:6]}-5d8f7c9b6d")
        for number, each in enumerate([*dying(0, 1), *living(range(1, NODES))])
    ]
    spread = [
        replace(each, started=each.started - later, ended=each.ended and each.ended - later)
        for number, each in enumerate(replicas)
        if each.started and (later := timedelta(minutes=10 * number)) is not None
    ]
    [finding] = found(seen(spread))
    assert finding.summary.startswith("4 of 4 workloads here")
    jobs = [replace(each, created_by=each.created_by.replace("ReplicaSet", "Job")) for each in spread]
    assert found(seen(jobs)) == []


def held(gpu: str, pods: Iterable[str]) -> list[ActivityHistory]:
    start = ago(hours=6)
    return [ActivityHistory(device=gpu, pod=pod, start=start, step_seconds=300, steps="." * 72) for pod in pods]


def test_a_gpu_whose_pods_die_while_its_neighbours_live() -> None:
    dead, alive = dying(0), [*living(range(1, NODES)), *living([0])]
    activity = [
        *held("gpu-0-0", [each.pod for each in dead]),
        *held("gpu-0-1", [each.pod for each in alive if each.node == "node-0"]),
        *(each for node in range(1, NODES) for gpu in range(2) for each in held(f"gpu-{node}-{gpu}", [""])),
        *(each for run in alive if run.node != "node-0" for each in held(f"gpu-{run.node[5:]}-0", [run.pod])),
    ]
    [finding] = found(seen([*dead, *alive], activity))
    assert str(finding.subject) == "device/gpu-0-0"
    assert finding.node == "node-0"
    assert "0 of 24 elsewhere" in finding.summary
    # Where the history of some GPUs is unknown, they are no fair comparison, and the Node is named.
    [finding] = found(seen([*dead, *alive], [each for each in activity if each.device != "gpu-5-1"]))
    assert str(finding.subject) == "node/node-0"


def test_jobs_that_hold_the_whole_node_name_the_node() -> None:
    dead, alive = dying(0), living(range(1, NODES))
    activity = [
        each for run in [*dead, *alive] for gpu in range(2) for each in held(f"gpu-{run.node[5:]}-{gpu}", [run.pod])
    ]
    assert [str(each.subject) for each in found(seen([*dead, *alive], activity))] == ["node/node-0"]


def test_two_gpus_of_one_node_name_the_node() -> None:
    dead = [dying(0), [replace(each, pod=f"{each.pod}-b", created_by=f"{each.created_by}-b") for each in dying(0)]]
    alive = living(range(1, NODES))
    activity = [
        *(each for gpu, runs in enumerate(dead) for each in held(f"gpu-0-{gpu}", [run.pod for run in runs])),
        *(each for node in range(1, NODES) for each in held(f"gpu-{node}-1", [""])),
        *(each for run in alive for each in held(f"gpu-{run.node[5:]}-0", [run.pod])),
    ]
    assert [str(each.subject) for each in found(seen([*dead[0], *dead[1], *alive], activity))] == ["node/node-0"]


def test_fishers_exact_test() -> None:
    """Of one program, 3 of 3 died here and 1 of 7 elsewhere: 4 deaths on 10 cases, three of them here."""
    assert _chance([(3, 3, 10, 4)]) == pytest.approx(4 / 120)
    assert _chance([(3, 0, 10, 4)]) == pytest.approx(1.0)
    assert _chance([(1, 1, 2, 1), (1, 1, 2, 1)]) == pytest.approx(0.25)
    assert _chance([(2, 2, 2, 2)]) == pytest.approx(1.0)  # a program that is only here tells nothing


def test_the_gpus_of_a_black_hole_are_not_called_assessed() -> None:
    """That Pods die says nothing of what its counters would."""
    snapshot = seen([*dying(0), *living(range(1, NODES))])
    silent = replace(snapshot, devices=(device("gpu-0-0"), *snapshot.devices[1:]))
    kinds = {each.kind for each in findings(silent).values() if "gpu-0-0" in each.devices}
    assert FindingKind.HEALTH_UNKNOWN in kinds
