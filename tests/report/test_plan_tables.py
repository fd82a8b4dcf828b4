"""The plan and its Remediations as a person on call reads them: what, when, why, what stops it, and how to stop it."""

from dataclasses import replace
from datetime import timedelta

import pytest

from execute.living import ENFORCE, SUGGEST, Fleet, drive, new_store, quick, tick
from gpuwatch.act.execute.advance import ExecutorPolicies
from gpuwatch.act.plan.guards import Guard
from gpuwatch.act.plan.policy import PlanPolicy
from gpuwatch.act.remediations import RemediationStore
from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.model.decision import ActionKind, Analysis, Mode, PlanItem, Timing, TimingKind
from gpuwatch.facts.model.remediation import Pause, Phase
from gpuwatch.say.plan_tables import item_lines
from gpuwatch.say.remediation_tables import history_tables, remediation_detail
from gpuwatch.say.tables import analysis_tables, plan_tables
from plan.fleet import NOW, device, idle, node, plan_of, pod, sick, snapshot, workload
from report.terminal import analysis_of, flat, shown


def analysis(policy: PlanPolicy = PlanPolicy()) -> Analysis:  # noqa: B008 - frozen
    """A sick GPU of a Job that saved its work twenty minutes ago, and two idle Deployments of one team."""
    told = {
        keys.LAST_CHECKPOINT: (NOW - timedelta(minutes=20)).isoformat(),
        keys.EXPECTED_END: (NOW + timedelta(hours=3)).isoformat(),
    }
    train = [device("n2", index, "ml/train-0") for index in range(8)]
    free = [device("n0", index, "ml/a") for index in range(8)]
    half = [device("n1", index, "ml/b") for index in range(4)]
    state = snapshot(
        tuple(node(f"n{index}") for index in range(6)),
        [*train, *free, *half],
        [
            pod("ml/train-0", "n2", 8, owner="Job/ml/train", annotations=told),
            pod("ml/a", "n0", 8),
            pod("ml/b", "n1", 4),
        ],
    )
    owners = (*state.cluster.workloads, workload("Job/ml/train", api_version="batch/v1"))
    kept = {each.id: each for each in owners}
    state = replace(state, cluster=replace(state.cluster, workloads=tuple(kept.values())))
    findings = (sick(train[0]), idle("ml/a", free), idle("ml/b", half))
    plan = plan_of(state, findings, policy)
    return analysis_of(findings, at=NOW, devices=state.devices, cluster=state.cluster, plan=plan)


ACTING = PlanPolicy(
    modes={
        ActionKind.TAINT_NODE: Mode.ENFORCE,
        ActionKind.EVICT_GANG: Mode.ENFORCE,
        ActionKind.RELEASE_GANG: Mode.SUGGEST,
    },
    budget_ratio=0.5,
    idle_storm_ratio=1.0,
    checkpoint_interval_hours=1.0,
)


@pytest.mark.parametrize("width", [100, 160])
def test_what_would_be_done_says_when_why_at_what_cost_and_how_to_stop_it(width: int) -> None:
    text = flat(shown(plan_tables(analysis(ACTING), "test"), width))
    for words in (
        "evict gang Job/ml/train: owners are notified, and it is done unless one objects (mode enforce)",
        "release gang Deployment/ml/a: done once a person approves it (mode suggest)",
        "why xid: ",
        "(confidence 0.90)",
        "8 × NVIDIA-A100-SXM4-80GB of pool train",
        "1 Pod: ml/train-0",
        "saves 172.8 GPU-hours in 24 h (192.0 × confidence 0.90), costs 2.7; the pool offers 1,152: score +0.1477",
        "Now (work since the checkpoint at 2026-03-02 11:40 UTC) it costs 2.7 GPU-hours",
        "after the checkpoint expected at 2026-03-02 12:40 UTC 4.8",
        "mode enforce. Settings for action evict_gang.",
        "kubectl annotate node n2 gpuwatch.dev/opt-out=true",
        "kubectl -n ml annotate job.batch train gpuwatch.dev/opt-out=true",
        "rate: 2 actions in namespace ml began",
        "Stop everything: gpuwatch pause",
    ):
        assert words in text, f"{words!r} is not in {text}"


def test_budgets_that_nothing_weighs_on_are_a_line() -> None:
    text = shown(plan_tables(analysis(ACTING), "test"))
    (row,) = [line for line in text.splitlines() if line.startswith("pool/train")]
    assert " ".join(row.split()) == "pool/train 0 + 1 1 6 0 + 8 8"
    quiet = flat(shown(plan_tables(analysis(replace(ACTING, min_confidence_ratio=0.99)), "test")))
    assert "2 budgets have nothing on them; the smallest allows 1 of 6 Nodes" in quiet
    assert "Stop everything" not in quiet


def test_in_the_mode_observe_it_is_said_that_nothing_is_done() -> None:
    text = flat(shown(plan_tables(analysis(), "test")))
    assert "(mode observe: nothing is done)" in text
    assert "advisory (mode observe)" in text
    assert "mode observe. The default mode." in text
    assert "gpuwatch pause" not in text


def test_the_summary_has_the_mode_and_the_time() -> None:
    text = shown(analysis_tables(analysis(ACTING), "test"), 160)
    (row,) = [line for line in text.splitlines() if "evict gang" in line]
    assert row.split()[:6] == ["yes", "evict", "gang", "8", "now", "enforce"]
    assert "mode" not in shown(analysis_tables(analysis(), "test"), 160).partition("Plan")[2].splitlines()[1]


def test_the_summary_says_why_where_no_finding_does_and_who_waits() -> None:
    state = analysis(ACTING)
    best = state.plan.items[0]
    candidate = replace(best.candidate, findings=(), reason="It shares a link with others.", waiter="ml/queued")
    plan = replace(state.plan, items=(replace(best, candidate=candidate),))
    text = flat(shown(analysis_tables(replace(state, plan=plan), "test"), 160))
    assert "It shares a link with others." in text
    assert "GPU-hours in 24 h; Pod ml/queued waits for it" in text


def item(**changes: object) -> PlanItem:
    found = next(each for each in analysis(ACTING).plan.items if each.candidate.action is ActionKind.RELEASE_GANG)
    return replace(found, **changes)  # type: ignore[arg-type]


def lines(one: PlanItem) -> str:
    state = analysis(ACTING)
    return flat(shown(item_lines(one, {each.id: each for each in state.findings}, state.cluster, NOW)))


def test_one_that_is_for_later_and_for_somebody_says_so() -> None:
    later = Timing(
        kind=TimingKind.WHEN_IDLE, at=NOW + timedelta(hours=5), cost_gpu_hours=3.0, reason="It is idle then."
    )
    candidate = replace(item().candidate, waiter="ml/queued", findings=(), reason="A cheaper model would do.")
    text = lines(item(timing=later, candidate=candidate))
    assert "when Mon 2026-03-02 17:00 UTC, in 5 h. It is idle then." in text
    assert "for Pod ml/queued, which waits and could be scheduled" in text
    assert "why A cheaper model would do." in text


@pytest.mark.parametrize("width", [80, 140])
@pytest.mark.parametrize("wide", [False, True])
def test_what_helps_is_shown_whole(width: int, wide: bool) -> None:
    """The other cells of the row stand between its words; no word of it is cut."""
    key = "cluster-autoscaler.kubernetes.io/safe-to-evict"  # longer than its column at 80, so it is folded
    helps = f"First ask the owner of Deployment/ml/a to remove {key}."
    refused = item(refusals=(Guard.OPTED_OUT.refuses("no"), Guard.LANDS.refuses("no")), helps=helps)
    state = replace(analysis(), plan=replace(analysis().plan, items=(refused,)))
    text = shown(plan_tables(state, "test", wide=wide), width)
    words = iter(text.split())
    assert all(word in words for word in helps.removesuffix(f"{key}.").split()), text
    assert f"{key}." in "".join(text.split()), text
    assert f"what helps {helps}" in lines(refused)


def test_markup_in_names_is_shown_as_it_is() -> None:
    assert "why [red]x[/red]" in lines(item(candidate=replace(item().candidate, reason="[red]x[/red]", findings=())))


@pytest.fixture
def store() -> RemediationStore:
    return new_store()


def notified(store: RemediationStore, plan: PlanPolicy) -> tuple[Fleet, list[str]]:
    """A fleet with a release and a taint, after the first steps; what is told of each."""
    fleet = Fleet(idle={"chat"}, sick={"GPU-n0-0"})
    fleet.owner("Job", "chat", 2, node="n1")
    fleet.owner("Job", "train", 8)
    executor = fleet.executor(store, ExecutorPolicies(plan, quick()))
    fleet.propose(executor)
    for _ in range(5):
        tick(fleet, executor)
    return fleet, [flat(shown(remediation_detail(each, fleet.now))) for each in store.all()]


def test_what_is_notified_says_what_comes_next_and_how_it_is_stopped(store: RemediationStore) -> None:
    _, told = notified(store, ENFORCE)
    for each, text in zip(store.all(), told, strict=True):
        assert each.phase is Phase.NOTIFIED
        at_once = each.proposal.action is ActionKind.TAINT_NODE
        due = "" if at_once else ", not before 2026-03-02 12:10Z (in 10 min)"
        assert f"Next owners may object; then all is checked again{due} At the latest" in text
        end = "14:00Z (in 2 h)" if at_once else "14:10Z (in 2 h 10 min)"
        assert f"At the latest this phase ends 2026-03-02 {end}" in text
        assert f"Stop it gpuwatch reject {each.name}" in text
        assert "× confidence 0.90" in text


def test_what_waits_for_a_person_says_until_when(store: RemediationStore) -> None:
    fleet, told = notified(store, SUGGEST)
    for each, text in zip(store.all(), told, strict=True):
        assert "Next waits for a person until 2026-03-05 12:00Z (in 3 d)" in text
        where = f"{each.name} -n ml" if each.namespace else each.name
        assert f"Decide gpuwatch approve {where}, or gpuwatch reject {where}" in text
    count = len(store.all())
    assert f"{count} proposals to decide" in shown(history_tables(store.all(), Pause(), (), fleet.now, rows=9))


def test_what_is_enforced_waits_for_nobody(store: RemediationStore) -> None:
    fleet = Fleet(idle={"chat"})
    fleet.owner("Job", "chat", 2)
    executor = fleet.executor(store, ExecutorPolicies(ENFORCE, quick()))
    fleet.propose(executor)
    assert "to decide" not in shown(history_tables(store.all(), Pause(), (), fleet.now, rows=9))
    drive(fleet, executor, 1.0)
    (held,) = store.all()
    text = flat(shown(remediation_detail(held, fleet.now)))
    assert held.phase is Phase.IN_EFFECT
    assert "Next checks whether its owner took it back" in text
    assert f"Take it back gpuwatch undo {held.name}" in text


def test_what_holds_it_up_is_told(store: RemediationStore) -> None:
    notified(store, ENFORCE)
    one = store.all()[0]
    steps = tuple(
        replace(step, done_at=None, begun_at=None, error="No receiver took the notification: json: 503.", attempts=3)
        if step.parameters.get("by") == "notice"
        else step
        for step in one.steps
    )
    held = replace(one, steps=steps, step=2)
    text = flat(shown(remediation_detail(held, NOW)))
    assert "Waits No receiver took the notification: json: 503. (tried 3 times)" in text
    assert "No receiver took the notification: json: 503." in shown(
        history_tables((held,), Pause(), (), NOW, rows=9), 160
    )
