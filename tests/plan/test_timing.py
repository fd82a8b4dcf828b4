"""When a move is for: the cheapest of now, the next idle time, the next checkpoint and the job's end."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from gpuwatch.act.plan.policy import PlanPolicy
from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.model.decision import ActionKind, FindingKind, PlanItem, TimingKind
from gpuwatch.facts.model.telemetry import ActivityHistory
from plan.fleet import NOW, device, idle, node, only, plan_of, pod, sick, snapshot

POLICY = PlanPolicy(budget_ratio=1.0)
EVERY_TWO_HOURS = replace(POLICY, checkpoint_interval_hours=2.0)


def ago(hours: float) -> str:
    return (NOW - timedelta(hours=hours)).isoformat()


def moved(
    policy: PlanPolicy,
    notes: Mapping[str, str] | None = None,
    *,
    owner: str = "Job/ml/train",
    started_hours_ago: float = 10,
    activity: tuple[ActivityHistory, ...] = (),
    confidence: float = 0.9,
) -> PlanItem:
    """A Pod of 8 GPUs, one of which is sick, and a free Node to move it to."""
    devices = [device("n0", i, "ml/p") for i in range(8)] + [device("n1", i) for i in range(8)]
    held = pod("ml/p", "n0", 8, owner, annotations=notes or {}, started=NOW - timedelta(hours=started_hours_ago))
    state = replace(snapshot([node("n0"), node("n1")], devices, [held]), activity=activity)
    return only(plan_of(state, (sick(devices[0], confidence_ratio=confidence),), policy), ActionKind.EVICT_GANG)


def test_now_where_nothing_else_is_known_and_the_work_since_the_start_is_lost() -> None:
    item = moved(POLICY)
    assert (item.timing.kind, item.timing.at, item.timing.cost_gpu_hours) == (TimingKind.NOW, None, 80.0)
    assert item.timing.reason == "Now it costs 80.0 GPU-hours. It waits for NoSchedule on Node n0."
    assert item.score.disrupted_gpu_hours == 80.0


def test_a_checkpoint_makes_the_restart_cheaper() -> None:
    item = moved(POLICY, {keys.LAST_CHECKPOINT: ago(0.5)})
    assert (item.timing.kind, item.timing.cost_gpu_hours) == (TimingKind.NOW, 4.0)
    assert item.score.disrupted_gpu_hours == 4.0
    assert "work since the checkpoint at 2026-03-02 11:30 UTC" in item.timing.reason


@pytest.mark.parametrize("told", ["yesterday", "2026-03-02T11:30:00", ago(-1), ""])
def test_a_checkpoint_that_cannot_be_is_none(told: str) -> None:
    assert moved(POLICY, {keys.LAST_CHECKPOINT: told}).timing.cost_gpu_hours == 80.0


def test_a_checkpoint_before_the_start_says_nothing_of_this_run() -> None:
    assert moved(POLICY, {keys.LAST_CHECKPOINT: ago(20)}).timing.cost_gpu_hours == 80.0


@pytest.mark.parametrize(
    ("hours_since", "kind", "cost"),
    [
        # 8 GPUs × confidence 0.9 are lost for each hour of waiting, 8 for each of work done again: 2 h apart, waiting
        # is cheaper from 0.9 × (2 − h) < h on, which is 0.947 h.
        (0.94, TimingKind.NOW, 7.52),
        (0.96, TimingKind.AFTER_CHECKPOINT, 7.488),
        (1.99, TimingKind.AFTER_CHECKPOINT, 0.072),
        (2.01, TimingKind.NOW, 16.08),  # overdue: it may come at any time, or never
    ],
)
def test_the_next_checkpoint_is_waited_for_while_that_costs_less(
    hours_since: float, kind: TimingKind, cost: float
) -> None:
    item = moved(EVERY_TWO_HOURS, {keys.LAST_CHECKPOINT: ago(hours_since)})
    assert item.timing.kind is kind
    assert item.timing.cost_gpu_hours == pytest.approx(cost)
    if kind is TimingKind.AFTER_CHECKPOINT:
        assert item.timing.at == NOW + timedelta(hours=2 - hours_since)
        assert item.score.gained_gpu_hours == pytest.approx(8 * (24 - 2 + hours_since))
        assert item.score.disrupted_gpu_hours == 0
        assert "now (work since" in item.timing.reason
    assert moved(POLICY, {keys.LAST_CHECKPOINT: ago(hours_since)}).timing.kind is TimingKind.NOW


@pytest.mark.parametrize(
    ("hours", "kind"), [(11.0, TimingKind.AT_JOB_END), (11.2, TimingKind.NOW), (-1, TimingKind.NOW)]
)
def test_the_end_of_the_job_is_waited_for_while_that_costs_less(hours: float, kind: TimingKind) -> None:
    """10 h of work are lost now; waiting loses 0.9 h for each hour: worth it below 11.1 h."""
    item = moved(POLICY, {keys.EXPECTED_END: ago(-hours)})
    assert item.timing.kind is kind


def days(pattern: str, *, holder: str = "ml/p", device_id: str = "GPU-n0-0", seen: int = 4) -> ActivityHistory:
    """Half-hour steps of whole days up to now (noon); `pattern` is one day from noon on."""
    assert len(pattern) == 48
    start: datetime = NOW - timedelta(days=seen)
    return ActivityHistory(device=device_id, pod=holder, start=start, step_seconds=1800, steps=pattern * seen)


NIGHT = "#" * 20 + "." * 8 + "#" * 20  # silent from 22:00 to 02:00


def test_a_service_is_moved_when_it_is_usually_idle() -> None:
    item = moved(POLICY, owner="Deployment/ml/chat", activity=(days(NIGHT),), started_hours_ago=20)
    assert item.timing.kind is TimingKind.WHEN_IDLE
    assert item.timing.at == NOW + timedelta(hours=10)
    assert item.timing.cost_gpu_hours == pytest.approx(8 * 0.9 * 10)
    # A young one has less to lose than the wait.
    young = moved(POLICY, owner="Deployment/ml/chat", activity=(days(NIGHT),), started_hours_ago=8)
    assert young.timing.kind is TimingKind.NOW


def test_a_job_has_no_idle_time_that_a_restart_would_not_hurt() -> None:
    assert moved(POLICY, activity=(days(NIGHT),), started_hours_ago=20).timing.kind is TimingKind.NOW


def test_a_service_that_is_idle_now_loses_nothing_now() -> None:
    quiet = days("#" * 47 + ".")
    item = moved(POLICY, owner="Deployment/ml/chat", activity=(quiet,))
    assert (item.timing.kind, item.timing.cost_gpu_hours) == (TimingKind.NOW, 0.0)


@pytest.mark.parametrize(
    "activity",
    [
        (days(NIGHT, seen=2),),  # two nights are no habit
        (days(NIGHT.replace(".", "?")),),  # unknown is not idle
        (days(NIGHT), days("#" * 48, device_id="GPU-n0-1")),  # another of its devices works then
        (days(NIGHT, holder="ml/other"),),
        (),
    ],
)
def test_what_is_no_proof_of_idle_nights(activity: tuple[ActivityHistory, ...]) -> None:
    item = moved(POLICY, owner="Deployment/ml/chat", activity=activity, started_hours_ago=20)
    assert item.timing.kind is TimingKind.NOW


def released(
    notes: Mapping[str, str] | None = None,
    *,
    owner: str = "Job/ml/train",
    worked_hours: float = 72,
    idle_hours: float = 30,
    gpus: int = 4,
    **changes: object,
) -> PlanItem:
    """Idle for 30 hours after 72 hours of work on four GPUs."""
    devices = [device("n0", number, "ml/p") for number in range(gpus)]
    began = NOW - timedelta(hours=worked_hours + idle_hours)
    held = pod("ml/p", "n0", gpus, owner, annotations=notes or {}, started=began)
    found = idle("ml/p", devices, since=NOW - timedelta(hours=idle_hours), confidence_ratio=0.95, **changes)
    return only(plan_of(snapshot([node("n0")], devices, [held]), (found,), POLICY), ActionKind.RELEASE_GANG)


def test_a_release_costs_the_work_of_a_job_up_to_when_it_stopped() -> None:
    item = released()
    # The start-up, and of 72 hours the most that counts.
    assert item.score.disrupted_gpu_hours == 4 * (1 + 24)
    assert [refusal.guard for refusal in item.refusals] == ["worth_it"]
    (reason,) = [refusal.reason for refusal in item.refusals]
    assert reason == (
        "It gains 91.2 GPU-hours (times confidence) and costs 100.0 within 24 h. GPUs that the release frees: "
        "4 GPUs × 24 h = 96 GPU-hours. Its next start-up, which counts as an hour, and 96.0 GPU-hours of work before "
        "it stopped, since its start (at most 24 h count; the annotation gpuwatch.dev/last-checkpoint can name a later "
        "checkpoint): 4 GPUs × 25 h = 100 GPU-hours."
    )


@pytest.mark.parametrize(
    ("saved_hours_ago", "cost"),
    [(29, 4), (30, 4), (33, 4 * (1 + 3)), (110, 4 * 25), (-1, 4 * 25)],
    ids=["after its last work", "with it", "before it", "before this run", "to come"],
)
def test_a_checkpoint_makes_the_release_of_a_job_cheaper(saved_hours_ago: float, cost: float) -> None:
    item = released({keys.LAST_CHECKPOINT: ago(saved_hours_ago)})
    assert item.score.disrupted_gpu_hours == cost
    assert item.admitted is (cost < 91.2)
    assert ("of work before it stopped, since its checkpoint at" in item.score.harm_basis) is (cost == 16)


def test_a_job_that_was_left_after_a_morning_is_released_without_a_checkpoint() -> None:
    item = released(worked_hours=6 + 5 / 6, idle_hours=41, gpus=1)
    assert item.score.disrupted_gpu_hours == pytest.approx(1 + 6 + 5 / 6)
    assert item.admitted


@pytest.mark.parametrize("owner", ["Deployment/ml/chat", "StatefulSet/ml/chat", "Notebook.kubeflow.org/ml/lab"])
def test_services_and_sessions_lose_their_start_up_alone(owner: str) -> None:
    assert released(owner=owner).score.disrupted_gpu_hours == 4


def test_work_of_an_unknown_kind_counts_and_what_never_worked_has_none() -> None:
    assert released(owner="Novelty/ml/train").score.disrupted_gpu_hours == 4 * 25
    never = released(rule="idle.never_used", kind=FindingKind.NEVER_USED)
    assert never.score.disrupted_gpu_hours == 4


def test_fences_and_releases_are_for_now() -> None:
    held = device("n0", 0, "ml/chat")
    state = snapshot([node("n0"), node("n1")], [held, device("n1", 0)], [pod("ml/chat", "n0")])
    plan = plan_of(state, (idle("ml/chat", [held]), sick(held)), POLICY)
    for action in (ActionKind.TAINT_NODE, ActionKind.RELEASE_GANG):
        assert only(plan, action).timing.kind is TimingKind.NOW
