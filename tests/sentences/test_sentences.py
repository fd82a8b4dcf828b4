"""The five sentences that open docs/remediation.md hold in random clusters, and each mechanism behind them is needed.

A `Town` calls for a taint, a move or a release. What is in `AGAINST` stops the actions that it names, and no other;
what is in `BESIDE` stops nothing. Each is alone in one test, and drawn with others in another: `make histories` draws
thousands.
"""

import os
from collections import Counter
from collections.abc import Collection, Iterable
from datetime import timedelta
from functools import partial

import pytest

from gpuwatch.facts.model.decision import ActionKind
from sentences.mechanisms import MECHANISMS
from sentences.reasons import AGAINST, BESIDE, COURSES
from sentences.town import HOUR, MINUTE, MOVE, RELEASE, TAINT, BreachError, Town

pytestmark = pytest.mark.slow  # 75 seconds of CPU
TOWNS = int(os.environ.get("HISTORIES", "60"))
CHUNKS = 3
HOURS = 1.25
IN_TIME = {TAINT: 15 * MINUTE, MOVE: 70 * MINUTE, RELEASE: 70 * MINUTE}
"""From the finding. A move and a release have a notice period of an hour before them."""


def put(town: Town, name: str) -> None:
    reason = AGAINST[name]
    reason.put(town)
    town.stand(name, reason.stops, reason.told)
    if reason.minutes:
        town.later.append((town.now + reason.minutes * MINUTE, lambda: town.fall(name)))


def acts(town: Town, but: Collection[ActionKind] = (), since: timedelta = timedelta()) -> None:
    """What is called for was done in time, but for what something stands against."""
    late = {
        action: town.acted.get(action)
        for action in town.calls
        if action not in but and town.acted.get(action, town.now) - town.began > IN_TIME[action] + since
    }
    told = [f"{each.name} {each.phase}: {each.history[-1].message}" for each in town.store.all() if each.history]
    assert late == {}, told


def towns_that_call(for_: Iterable[ActionKind], all_of_them: bool = False) -> list[int]:
    """The first seed of each way to call for one of these actions."""
    first: dict[tuple[ActionKind, ...], int] = {}
    for seed in range(40):
        calls = Town(seed).calls
        if set(for_) <= set(calls) if all_of_them else not set(for_).isdisjoint(calls):
            first.setdefault(calls, seed)
    return list(first.values())


@pytest.mark.parametrize("name", AGAINST)
def test_each_reason_stops_its_actions_and_no_other(name: str) -> None:
    """From the beginning, and as long as it stands."""
    reason = AGAINST[name]
    for seed in towns_that_call(reason.stops):
        town = Town(seed)
        put(town, name)
        town.live(HOURS)
        assert reason.minutes or town.acted.keys().isdisjoint(reason.stops)
        acts(town, but=reason.stops)


@pytest.mark.parametrize("name", [name for name, reason in AGAINST.items() if reason.takes or reason.minutes])
def test_what_was_stopped_is_done_once_nothing_stands_against_it(name: str) -> None:
    reason = AGAINST[name]
    wait = (reason.minutes or 20) * MINUTE
    for seed in towns_that_call(reason.stops):
        town = Town(seed)
        put(town, name)
        if (take := reason.takes) is not None:
            town.later += [(town.now + wait, partial(town.fall, name)), (town.now + wait, partial(take, town))]
        town.live(HOURS + wait / HOUR)
        acts(town, since=2 * wait)  # what waits is tried again after twice the time


@pytest.mark.parametrize("name", BESIDE)
def test_what_is_beside_stops_nothing(name: str) -> None:
    actions, change = BESIDE[name]
    for seed in towns_that_call(actions):
        town = Town(seed)
        change(town)
        town.live(HOURS)
        acts(town, but=set(ActionKind) - set(actions))


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_in_random_towns_that_alone_is_done_which_nothing_stands_against(chunk: int) -> None:
    done: Counter[ActionKind] = Counter()
    for seed in range(chunk, TOWNS, CHUNKS):
        town = Town(seed)
        try:
            but = draw(town)
            town.live(HOURS)
            acts(town, but)
        except AssertionError as error:
            error.add_note(f"town {seed}: {town.drawn}")
            raise
        done.update(town.acted.keys())
    for action in IN_TIME:
        assert done[action] > 0, f"no {action} was done in any of them, so nothing was shown of it"


def draw(town: Town) -> set[ActionKind]:
    """Some of what is beside, and of what stands against: one from the beginning, others from any time on. Returns the
    actions that they may stop."""
    stopped: set[ActionKind] = set()
    for name in town.random.sample(list(BESIDE), town.random.choice((0, 1, 2))):
        actions, change = BESIDE[name]
        change(town)
        town.drawn.append(name)
        stopped |= set(ActionKind) - set(actions)
    for number, name in enumerate(town.random.sample(list(AGAINST), town.random.choice((0, 0, 0, 1, 2)))):
        reason = AGAINST[name]
        if not reason.anytime and number:
            continue  # two that set the same thing up would undo each other
        at = town.now + town.random.choice((0, 2, 20, 50)) * MINUTE
        if reason.anytime:
            town.later.append((at, partial(put, town, name)))
        else:
            put(town, name)
        stopped |= set(reason.stops)
        town.drawn.append(f"{name} at {at:%H:%M}" if reason.anytime else name)
    return stopped


@pytest.mark.parametrize("name", COURSES)
def test_a_course_holds(name: str) -> None:
    course = COURSES[name]
    for seed in towns_that_call(course.calls, all_of_them=True):
        town = Town(seed)
        course.change(town)
        town.live(course.hours)
        if course.gone is not None:
            assert bool(town.node("n0")["spec"].get("taints")) is not course.gone


@pytest.mark.parametrize("name", MECHANISMS)
def test_each_mechanism_is_needed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, each of its reasons is passed in one of the first towns."""
    mechanism = MECHANISMS[name]
    mechanism.out(monkeypatch)
    for reason in mechanism.reasons:
        if reason in COURSES:
            seeds = towns_that_call(COURSES[reason].calls, all_of_them=True)
        else:
            seeds = towns_that_call(AGAINST[reason].stops if reason in AGAINST else BESIDE[reason][0])
        assert any(breaks(seed, reason, mechanism.later) for seed in seeds), f"without {name}, {reason} is not passed"


def breaks(seed: int, reason: str, later: int) -> bool:
    town = Town(seed)
    if reason in COURSES:
        COURSES[reason].change(town)
    elif reason in BESIDE:
        BESIDE[reason][1](town)
    elif later < 0:
        town.at_last = partial(put, town, reason)
    elif later:
        town.later.append((town.now + later * MINUTE, partial(put, town, reason)))
    else:
        put(town, reason)
    try:
        town.live(COURSES[reason].hours if reason in COURSES else HOURS)
        acts(town, but=() if reason in BESIDE else IN_TIME)
    except BreachError as error:
        return error.of == (COURSES[reason].breach if reason in COURSES else reason)
    except AssertionError:
        return reason in BESIDE
    return False
