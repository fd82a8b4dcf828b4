"""What is admitted is what can be done: every kind and every framework, asked by the plan and by who carries it out."""

from datetime import UTC, datetime

import pytest

from frameworks.samples import SAMPLES, VOLCANO
from gpuwatch.facts.frameworks import BY_NAME, FRAMEWORKS, OWNERS, WRITTEN, kueue
from gpuwatch.facts.frameworks.allowed import move_refusal, release_refusal
from gpuwatch.facts.frameworks.framework import Framework, Kind, MoveRule, Never, ReleaseRule
from gpuwatch.facts.frameworks.objects import Object, Refused, key_of
from gpuwatch.facts.frameworks.release import Release, move, release
from gpuwatch.facts.model.cluster import Gang, Pod, Workload

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
KINDS = pytest.mark.parametrize("kind", WRITTEN.values(), ids=lambda kind: kind.resource)
RUNNING = {key_of(sample.object): sample for sample in reversed((*SAMPLES, VOLCANO))}
# With these a Pod is one that the strictest framework lets go.
LABELS = {
    "ray.io/node-type": "worker",
    "leaderworkerset.sigs.k8s.io/worker-index": "0",
}


def owner(kind: Kind) -> Workload:
    version = kind.api_version if kind.versions else f"{kind.group}/v1"
    return Workload(
        id=f"{kind.kind}/ml/x", kind=kind.kind, api_version=version, namespace="ml", name="x", loses="", unreleasable=""
    )


def written(kind: Kind) -> Object:
    """A running object of the kind, as the executor reads it."""
    status: Object = {}
    base: Object = {"apiVersion": owner(kind).api_version, "kind": kind.kind, "spec": {"replicas": 3}, "metadata": {}}
    if kind.key in RUNNING:
        base, status = RUNNING[kind.key].object, RUNNING[kind.key].status
    metadata = {"name": "x", "namespace": "ml", "uid": "u", "resourceVersion": "1", **base["metadata"]}
    return {**base, "metadata": metadata, "status": status}


def members(count: int) -> list[Object]:
    """Ready Pods, each of them its own LeaderWorkerSet's group."""
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    group = "leaderworkerset.sigs.k8s.io/group-index"
    return [
        {
            "metadata": {"name": f"p{n}", "namespace": "ml", "uid": f"p{n}", "labels": {**LABELS, group: str(n)}},
            "status": status,
        }
        for n in range(count)
    ]


def gang_of(framework: Framework) -> Gang:
    return Gang(id="g", framework=framework.name, workload="JobSet/ml/x", namespace="ml", pods=("ml/p0",))


def released(kind: Kind) -> bool:
    return isinstance(release(written(kind), remediation="r", at=NOW), Release)


def moved(kind: Kind) -> bool:
    object_ = written(kind)
    there = members(object_["spec"].get("replicas", 3))
    return not isinstance(move(object_, there, ["p0"]), Refused)


POD = Pod(namespace="ml", name="p0", labels=LABELS, ready=True)


@KINDS
def test_what_a_plan_admits_of_a_kind_is_what_can_be_done_to_it(kind: Kind) -> None:
    if kind is kueue.WORKLOAD:  # owns no Pods: its gangs are asked below
        return
    assert (not release_refusal(None, owner(kind))) is released(kind)
    assert (not move_refusal(None, owner(kind), [POD], [POD])) is moved(kind)


@KINDS
def test_what_a_plan_admits_of_a_gang_can_be_done_to_what_is_written(kind: Kind) -> None:
    """A framework may refuse more than the kind does, never less."""
    for framework in FRAMEWORKS:
        acted_on = framework.acts_on or kind
        gang = gang_of(framework)
        if not release_refusal(gang, owner(kind)):
            assert released(acted_on), framework.name
        if not move_refusal(gang, owner(kind), [POD], [POD]):
            assert moved(acted_on), framework.name


@KINDS
def test_every_refusal_is_a_sentence_of_its_own(kind: Kind) -> None:
    for rule, told in (
        (kind.release, release_refusal(None, owner(kind))),
        (kind.move, move_refusal(None, owner(kind), [POD], [POD])),
    ):
        assert isinstance(rule, Never | ReleaseRule | MoveRule)
        if isinstance(rule, Never):
            assert rule.reason.endswith(".")
            assert told == rule.reason or kind is kueue.WORKLOAD  # owns no Pods


def test_kinds_of_one_name_are_told_apart_by_their_group() -> None:
    for one, other in ((("batch", "Job"), ("batch.volcano.sh", "Job")),):
        assert OWNERS[one].release != OWNERS[other].release
    foreign = Workload(id="Service/ml/x", kind="Service", api_version="v1", namespace="ml", name="x")
    assert release_refusal(None, foreign) == "gpuwatch does not know how a Service brings its Pods back."


def test_no_framework_and_no_kind_stands_twice() -> None:
    kinds = [kind.key for framework in FRAMEWORKS for kind in framework.kinds]
    assert len(kinds) == len(set(kinds))
    assert len(BY_NAME) == len(FRAMEWORKS)


def test_an_unknown_framework_is_reported_only() -> None:
    unknown = Gang(id="g", framework="Something new", workload="JobSet/ml/x", namespace="ml", pods=("ml/p0",))
    jobset = owner(OWNERS["jobset.x-k8s.io", "JobSet"])
    assert "does not know" in release_refusal(unknown, jobset)
    assert "does not know" in move_refusal(unknown, jobset, [POD], [POD])


def test_coscheduling_and_plain_groups_of_kueue_are_stricter_than_their_owners() -> None:
    job = owner(OWNERS["batch", "Job"])
    assert not release_refusal(gang_of(BY_NAME["Coscheduling"]), job)
    assert move_refusal(gang_of(BY_NAME["Coscheduling"]), job, [POD], [POD])
    assert release_refusal(gang_of(BY_NAME["Kueue pod group"]), job)
    assert move_refusal(gang_of(BY_NAME["Kueue pod group"]), job, [POD], [POD])
