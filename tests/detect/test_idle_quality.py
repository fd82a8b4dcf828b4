"""How right and how fast the idle rules are on fleets whose future is known. No bound was chosen on these seeds."""

import numpy as np
import pytest

from detect.idle_fleets import A_DAY, PER_HOUR, Member, Outcome, fleet, requests, snapshot_of, watch, watch_fixed
from gpuwatch.facts.model.decision import FindingKind, Verdict
from gpuwatch.judge.idle.assess import IdlePolicy, assess_idle

pytestmark = pytest.mark.slow
POLICY = IdlePolicy()
MIX = (
    *("busy service",) * 4,
    *("quiet service",) * 6,
    *("office service",) * 4,
    *("queue worker",) * 3,
    *("periodic",) * 3,
    *("notebook",) * 5,
    *("training",) * 5,
)


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    """Three fleets, two weeks of history, watched for four days every three hours."""
    total = Outcome()
    for seed in (2001, 2002, 2003):
        members = fleet(seed, 14, 4, MIX)
        total.add(watch(members, 14 * A_DAY, 18 * A_DAY, POLICY, every_steps=3 * PER_HOUR))
    return total


def test_hardly_any_that_works_on_is_named(outcome: Outcome) -> None:
    """The hardest kinds take days off without notice, so not even a past of two weeks explains all of them."""
    assert len(outcome.false) <= 0.02 * sum(outcome.watched.values())
    assert outcome.precision >= 0.95


def test_steady_work_that_stopped_is_named_within_hours(outcome: Outcome) -> None:
    delays = [*outcome.delays["training"], *outcome.delays["busy service"]]
    assert len(delays) >= 5
    assert np.median(delays) <= 5


def test_all_that_never_worked_are_named(outcome: Outcome) -> None:
    assert outcome.kinds["never"] == [FindingKind.NEVER_USED] * outcome.watched["never"]
    # Seen every three hours only.
    assert max(outcome.delays["never"]) <= 1.5 + 3 + 0.1


def test_the_common_rules_are_mostly_wrong_on_the_same_fleets() -> None:
    members = fleet(2001, 14, 4, MIX)
    for hours, least in ((0.5, 0.5), (6, 0.3)):
        found = watch_fixed(members, 14 * A_DAY, 18 * A_DAY, hours, every_steps=6)
        assert len(found.false) > least * len(members)


def test_what_never_worked_is_named_within_two_hours() -> None:
    (member,) = [
        Member(
            name="never-0",
            what="never",
            kind="Deployment",
            active=np.zeros(4 * A_DAY, dtype=bool),
            born=A_DAY,
            stops=A_DAY,
        )
    ]
    busy = Member(name="job-0", what="training", kind="Job", active=np.ones(4 * A_DAY, dtype=bool), born=0, stops=None)
    named = [
        step
        for step in range(A_DAY + 1, A_DAY + 3 * PER_HOUR)
        for finding in assess_idle(snapshot_of([member, busy], step, 14 * A_DAY), POLICY)
        if finding.verdict is Verdict.IDLE
    ]
    assert named[0] - A_DAY == 1.5 * PER_HOUR
    assert named == list(range(named[0], A_DAY + 3 * PER_HOUR))


DAYS = 7


@pytest.fixture(scope="module")
def services() -> list[Member]:
    """Services that nearly all rest for half an hour a day, and none for six: a fleet on which fixed rules fail."""
    rng = np.random.default_rng(3001)
    members: list[Member] = []
    while len(members) < 50:
        per_day = float(np.exp(rng.uniform(np.log(15), np.log(400))))
        active = requests(rng, DAYS + 3, per_day, rng.uniform(0.2, 0.9), weekend=rng.uniform(0.6, 1), spread=0.15)
        if np.diff(np.concatenate(([0], np.flatnonzero(active), [len(active)]))).max() >= 6 * PER_HOUR:
            continue
        number = len(members)
        stops = int(rng.integers(DAYS * A_DAY, (DAYS + 1) * A_DAY)) if number % 4 == 0 else None
        members.append(
            Member(name=f"service-{number}", what="service", kind="Deployment", active=active, born=0, stops=stops)
        )
    return members


def test_half_an_hour_names_most_services_that_work_on_and_six_hours_none(services: list[Member]) -> None:
    first, last = DAYS * A_DAY, (DAYS + 1) * A_DAY
    assert len(watch_fixed(services, first, last, 0.5).false) > 0.7 * len(services)
    assert not watch_fixed(services, first, last, 6).false


def test_the_learnt_bound_names_none_that_works_on_and_the_others_about_as_soon(services: list[Member]) -> None:
    found = watch(services, DAYS * A_DAY, (DAYS + 2) * A_DAY, POLICY, every_steps=PER_HOUR)
    assert not found.false
    assert np.isfinite(found.delays["service"]).all()
    assert np.median(found.delays["service"]) <= 7
