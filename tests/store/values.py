"""Values of any type that the nouns are made of, by their type hints, and a few made by hand."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from gpuwatch.facts.model.cluster import Sharing
from gpuwatch.facts.model.sizing import (
    Change,
    EvidenceTier,
    MemoryNeed,
    Option,
    Outcome,
    OutcomeVerdict,
    Recommendation,
    SpeedEstimate,
    Target,
    TargetKind,
)
from gpuwatch.facts.model.workload_profile import (
    Cell,
    DayUse,
    MemoryRun,
    PowerEnvelope,
    PowerHistogram,
    ProfileBook,
    WorkloadKey,
    WorkloadProfile,
)
from gpuwatch.sources.store.store import Store, _Advice

T0 = datetime(2026, 3, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)

_PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(max_size=12),
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    NoneType: st.none(),
    datetime: st.datetimes(timezones=st.just(UTC)),
    date: st.dates(),
    # Plain data, as it is in a patch.
    object: st.recursive(
        st.none() | st.booleans() | st.integers(-(2**31), 2**31) | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=6,
    ),
}


def any_of(hint: Any) -> st.SearchStrategy[Any]:
    """Any value of this type; fields that a dataclass gains are found by themselves."""
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, inner = get_origin(hint), get_args(hint)
    if origin in {Union, UnionType}:
        return st.one_of([any_of(each) for each in inner])
    if origin is Mapping:
        return st.dictionaries(any_of(inner[0]), any_of(inner[1]), max_size=2)
    if origin is tuple:
        assert inner[1:] == (...,), hint
        return st.lists(any_of(inner[0]), max_size=3).map(tuple)
    if issubclass(hint, Enum):
        return st.sampled_from(hint)
    assert is_dataclass(hint), hint
    hints = get_type_hints(hint)
    return st.builds(hint, **{each.name: st.deferred(lambda of=hints[each.name]: any_of(of)) for each in fields(hint)})


@st.composite
def books(draw: st.DrawFn) -> ProfileBook:
    """A book whose profiles are under their own keys."""
    hints = get_type_hints(ProfileBook)
    values = {name: draw(any_of(hint)) for name, hint in hints.items() if name != "profiles"}
    profiles = draw(st.lists(any_of(WorkloadProfile), max_size=4))
    return ProfileBook(**values, profiles={each.key: each for each in profiles})


def key(number: int = 0, container: str = "main", gpu_model: str = "A100-SXM4-80GB") -> WorkloadKey:
    return WorkloadKey(f"Job/team-{number % 7}/job-{number}", container, gpu_model)


def profile(number: int = 0, tag: float = 1.0, at: datetime = T0) -> WorkloadProfile:
    """tag: told apart by it."""
    return WorkloadProfile(
        key=key(number),
        as_of=at,
        half_life_seconds=3 * 86400.0,
        cells=tuple(
            Cell(weight_seconds=tag + number, busy_ratio=level / 30, power_watts=100.0 + level) for level in range(10)
        ),
        runs=(
            MemoryRun(
                pod=f"team/job-{number}-0",
                first_seen=at - HOUR,
                last_seen=at,
                peak_bytes=3e9,
                at_start_bytes=None,
                capacity_bytes=8e10,
                device_seconds=3600.0,
            ),
        ),
        run_count=1,
        first_seen=at - HOUR,
        last_seen=at,
        observed_seconds=tag,
        left_out_seconds={"start_up": 600.0},
        days=(DayUse(day=at.date(), allocated_gpu_hours=1.0, busy_gpu_hours=0.5),),
    )


def book(count: int = 3, tag: float = 1.0, until: datetime = T0) -> ProfileBook:
    """A book in which every part says which one it is."""
    return ProfileBook(
        until=until + tag * HOUR,
        step_seconds=300,
        profiles={each.key: each for each in (profile(number, tag) for number in range(count))},
        envelopes={"A100": PowerEnvelope(gpu_model="A100", floor_watts=50.0, ceiling_watts=400.0 + tag, devices=2)},
        power={"A100": PowerHistogram(as_of=until, idle_seconds={3: tag}, all_seconds={80: 1.0}, devices=2)},
    )


def tags(found: ProfileBook) -> set[float]:
    """Of all parts of a `book`: one where it is whole."""
    return {
        (found.until - T0) / HOUR,
        *(each.observed_seconds for each in found.profiles.values()),
        *(each.ceiling_watts - 400.0 for each in found.envelopes.values()),
        *(each.idle_seconds[3] for each in found.power.values()),
    }


SPEED = SpeedEstimate(low_ratio=0.95, likely_ratio=1.0, high_ratio=1.0, tier=EvidenceTier.SM, basis="busy a tenth")


def option(target: Target) -> Option:
    return Option(target=target, speed=SPEED, memory_bytes=2e10, projected_cost_per_week=100.0)


def target(mig_profile: str = "2g.20gb", price_per_hour: float | None = 1.0) -> Target:
    return Target(
        kind=TargetKind.MIG,
        gpu_model="A100-SXM4-80GB",
        gpus_per_pod=1,
        gpu_share_ratio=2 / 8,
        mig_profile=mig_profile,
        sharing=Sharing.NONE,
        price_per_hour=price_per_hour,
    )


def advice(
    of: WorkloadKey | None = None, at: datetime = T0, mig_profile: str = "2g.20gb", price_per_hour: float | None = 1.0
) -> Recommendation:
    chosen = option(target(mig_profile, price_per_hour))
    current = option(replace(target("", 3.0), kind=TargetKind.SAME, gpu_share_ratio=1.0))
    return Recommendation(
        key=of or key(),
        at=at,
        current=current,
        chosen=chosen,
        runner_up=None,
        options=(chosen, current),
        memory=MemoryNeed(
            need_bytes=4e9, peak_bytes=3e9, runs=1, headroom_ratio=0.2, elastic=False, reason="the peak of one run"
        ),
        target_speed_ratio=0.9,
        confidence_ratio=0.8,
        change=Change(
            api_version="batch/v1",
            kind="Job",
            namespace="team",
            name="job",
            patch={"spec": {"template": {"spec": {"containers": [{"name": "main"}]}}}},
        ),
        doing_nothing_cost_per_week=10.0,
        doing_nothing_gpu_hours_per_week=5.0,
        reason="It needs a seventh of its GPU.",
    )


def without_options(given: Recommendation) -> Recommendation:
    return replace(given, options=())


def outcome(given: Recommendation, applied_at: datetime | None = None) -> Outcome:
    return Outcome(
        key=given.key,
        recommended_at=given.at,
        target=given.chosen.target,
        predicted=given.chosen.speed,
        verdict=OutcomeVerdict.WAITING if applied_at is None else OutcomeVerdict.HIT,
        applied_at=applied_at,
        measured_speed_ratio=None if applied_at is None else 1.0,
    )


def applied(store: Store) -> dict[WorkloadKey, datetime]:
    """When the advice of each key was applied, where it was."""
    rows = store._state.rows("advice", _Advice)
    return {each.key: each.applied_at for _, each in rows if each.applied_at is not None}
