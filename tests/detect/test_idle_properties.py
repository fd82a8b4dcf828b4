"""What holds for every activity: more work, or less knowledge, never makes anything more idle."""

from hypothesis import given, settings
from hypothesis import strategies as st

from detect.idle_world import A_DAY, POLICY, InEffect, bystander, only, world
from gpuwatch.facts.model.decision import Verdict

BYSTANDER = bystander(3)


def idle(text: str, *more: str, kind: str = "Deployment", gang: str = "") -> bool:
    # The finding on a Pod with this activity, aged as its activity is long, in three days of telemetry.
    holding = InEffect(name="pod", kind=kind, gang=gang, activity=(text, *more))
    snapshot = world(holding, BYSTANDER, days=3)
    return only(snapshot, gang or holding.ref).verdict is Verdict.IDLE


runs = st.lists(st.tuples(st.sampled_from("#..?"), st.integers(min_value=1, max_value=120)), min_size=1, max_size=8)
activities = runs.map(lambda parts: "".join(letter * number for letter, number in parts)[: 3 * A_DAY - 1])
ends = st.integers(min_value=0, max_value=400)
kinds = st.sampled_from(["Deployment", "Job", "Notebook"])


@settings(max_examples=150)
@given(text=activities, silent=ends, place=st.integers(min_value=0), kind=kinds)
def test_work_in_the_silence_never_makes_a_pod_idle(text: str, silent: int, place: int, kind: str) -> None:
    text = (text + "." * silent)[-3 * A_DAY + 1 :]
    begin = text.rfind("#") + 1
    if begin == len(text):
        assert not idle(text, kind=kind)
        return
    index = begin + place % (len(text) - begin)
    worked = f"{text[:index]}#{text[index + 1 :]}"
    assert idle(text, kind=kind) or not idle(worked, kind=kind)


@settings(max_examples=150)
@given(text=activities, silent=ends, holes=st.sets(st.integers(min_value=0, max_value=3 * A_DAY)), kind=kinds)
def test_a_silent_step_turned_unknown_never_makes_a_pod_idle(
    text: str, silent: int, holes: set[int], kind: str
) -> None:
    text = (text + "." * silent)[-3 * A_DAY + 1 :]
    unknown = "".join("?" if place in holes and step == "." else step for place, step in enumerate(text))
    assert idle(text, kind=kind) or not idle(unknown, kind=kind)


@settings(max_examples=80)
@given(text=activities, other=activities, last=st.sampled_from("#?"), kind=kinds)
def test_one_device_that_works_or_is_unknown_keeps_the_gang(text: str, other: str, last: str, kind: str) -> None:
    kept = other[:-3] + last * 3
    assert not idle(text, kept, kind=kind, gang="gang")


@settings(max_examples=80)
@given(text=activities, steps=st.integers(min_value=1, max_value=POLICY.min_age_seconds // 300 - 1), kind=kinds)
def test_nothing_is_idle_before_the_minimum_age(text: str, steps: int, kind: str) -> None:
    assert not idle((text + "." * 20)[-steps:], kind=kind)
