"""A kind says what its controller deletes. An object that would lose data is neither released nor moved."""

import copy
import json
from dataclasses import replace
from datetime import UTC, datetime

import msgspec
import pytest

from frameworks.samples import TABLES
from frameworks.test_allowed import KINDS, POD, gang_of, members, owner, written
from gpuwatch.facts.frameworks import BY_NAME, OWNERS, WRITTEN, kueue
from gpuwatch.facts.frameworks.allowed import move_refusal, release_refusal
from gpuwatch.facts.frameworks.framework import WHOLE, Deletes, Kind, MoveRule, Never, ReleaseRule, place_lost, untried
from gpuwatch.facts.frameworks.objects import Object, Refused, key_of, put
from gpuwatch.facts.frameworks.release import Release, loses, move, release
from gpuwatch.facts.model.cluster import Workload
from gpuwatch.sources.kube.owners import TakeOwner

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
BY_NAME_OF_KIND = {kind.kind: kind for kind in reversed(WRITTEN.values())}


def made(kind: str, spec: Object | None = None, annotations: Object | None = None, wrapped: bool = False) -> Object:
    """A running object of the kind, with more in its spec; names with / are paths. wrapped: by an AppWrapper."""
    object_ = copy.deepcopy(written(BY_NAME_OF_KIND[kind]))
    for path, value in (spec or {}).items():
        object_ = put(object_, f"/spec/{path}", value)
    object_ = put(object_, "/metadata/annotations", annotations) if annotations else object_
    wrapping = {"components": [{"template": {**object_, "metadata": {"name": "x"}}}]}
    return made("AppWrapper", wrapping) if wrapped else object_


KEEPING = {name: made(**row) for name, row in TABLES["keeping"].items()}
DELETING = {
    name: (made(**{key: row[key] for key in row if key != "why"}), row["why"])
    for name, row in TABLES["deleting"].items()
}
DELETES = pytest.mark.parametrize(("object_", "why"), DELETING.values(), ids=DELETING)
KEEPS = pytest.mark.parametrize("object_", KEEPING.values(), ids=KEEPING)


def moved(object_: Object) -> object:
    return move(object_, members(object_["spec"].get("replicas", 3)), ["p0"])


def read(object_: Object) -> Workload:
    """As the reader of the cluster gives it to the plan."""
    kind = WRITTEN[key_of(object_)]
    found = TakeOwner(kind)(msgspec.Raw(json.dumps(object_).encode()))
    return replace(owner(kind), loses=found.loses)


@DELETES
def test_the_executor_neither_releases_nor_moves_what_would_lose_data(object_: Object, why: str) -> None:
    """With the object that it has just read."""
    refused = release(object_, remediation="r", at=NOW)
    assert isinstance(refused, Refused)
    assert why in refused.reason
    assert moved(object_) == refused
    assert loses(object_) == refused.reason


@DELETES
def test_the_plan_refuses_with_the_same_reason(object_: Object, why: str) -> None:
    assert why in loses(object_)
    queued = gang_of(BY_NAME["Kueue"])
    for gang in (None, queued):
        assert release_refusal(gang, read(object_)) == loses(object_)
    assert move_refusal(None, read(object_), [POD], [POD]) == loses(object_)
    assert move_refusal(queued, read(object_), [POD], [POD]) == place_lost("Kueue")


@KEEPS
def test_what_keeps_its_data_is_released_and_moved(object_: Object) -> None:
    assert isinstance(release(object_, remediation="r", at=NOW), Release)
    assert not isinstance(moved(object_), Refused)
    assert loses(object_) == ""
    assert release_refusal(None, read(object_)) == ""
    assert move_refusal(None, read(object_), [POD], [POD]) == ""


@KINDS
def test_every_kind_that_is_written_says_what_its_controller_deletes(kind: Kind) -> None:
    if isinstance(kind.release, Never):
        assert isinstance(kind.move, Never)
        return
    assert kind.release.deletes.what
    assert loses(written(kind)) == ""
    if kind is not kueue.WORKLOAD:  # the plan judges the owner that it admits
        unread = replace(owner(kind), loses=None)
        depends = kind.release.deletes.data is not None
        assert bool(release_refusal(None, unread)) is depends
        assert not isinstance(kind.move, MoveRule) or bool(move_refusal(None, unread, [POD], [POD])) is depends


@KINDS
def test_kueue_stops_no_owner_of_which_it_is_not_known_what_is_deleted(kind: Kind) -> None:
    if isinstance(kind.release, Never) and kind.key in OWNERS:
        gang = gang_of(BY_NAME["Kueue"])
        assert release_refusal(gang, owner(kind)) == kind.release.reason
        assert move_refusal(gang, owner(kind), [POD], [POD]) == place_lost("Kueue")
    foreign = Workload(
        id="Sprocket/ml/x", kind="Sprocket", api_version="x/v1", namespace="ml", name="x", loses="", unreleasable=""
    )
    assert "not known what data" in release_refusal(gang_of(BY_NAME["Kueue"]), foreign)


def test_a_kind_cannot_be_made_without_saying_it() -> None:
    with pytest.raises(TypeError, match="deletes"):
        ReleaseRule(fields=lambda *_: ())  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="what its controller deletes"):
        Kind("example.com", "Sprocket", ("v1",), release=untried("Sprocket"), move=WHOLE)
    says = ReleaseRule(fields=lambda *_: (), deletes=Deletes("nothing", None))
    assert Kind("example.com", "Sprocket", ("v1",), release=says, move=WHOLE).release is says
