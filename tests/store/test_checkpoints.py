"""The state in Checkpoints: what is saved is what another replica opens, whole, whenever the first one ends."""

from __future__ import annotations

import base64
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta

import pytest

from cluster.api import Api
from cluster.control_plane import ControlPlane
from deploy.manifests import CRDS, apply, documents
from gpuwatch.facts.frameworks.objects import Object
from gpuwatch.facts.model.remediation import ObjectRef
from gpuwatch.facts.model.telemetry import GapKind
from gpuwatch.facts.model.workload_profile import ProfileBook
from gpuwatch.sources.kube.live import api_client
from gpuwatch.sources.kube.live_writer import LiveWriter
from gpuwatch.sources.kube.writer import ClusterWriter
from gpuwatch.sources.store import StoreError, checkpoints
from gpuwatch.sources.store.checkpoints import LARGEST_BYTES, STATE, store_in_cluster
from gpuwatch.sources.store.custom_resources import API_VERSION, CHECKPOINT_KIND
from gpuwatch.sources.store.store import Store
from kube.memory_cluster import MemoryCluster
from store.values import DAY, T0, advice, applied, book, key, outcome, tags, without_options

NAMESPACE = "gpuwatch"


class Killed(Exception):
    """The process ends here."""


def opened(writer: ClusterWriter) -> AbstractContextManager[Store]:
    return store_in_cluster(writer, NAMESPACE)


def saved(writer: ClusterWriter, *all_of: ProfileBook) -> None:
    with opened(writer) as store:
        for each in all_of:
            store.save_book(each)


def loaded(writer: ClusterWriter) -> ProfileBook | None:
    with opened(writer) as store:
        found, gaps = store.load_book()
    assert gaps == ()
    return found


def pieces(cluster: ClusterWriter) -> dict[str, Object]:
    """All Checkpoints but `state`."""
    found = {each["metadata"]["name"]: each for each in cluster.objects(API_VERSION, CHECKPOINT_KIND, NAMESPACE)}
    found.pop(STATE, None)
    return found


def counted(changes: list[str]) -> Callable[[str, str, bool], None]:
    return lambda verb, what, done: changes.append(verb) if done else None


def test_nothing_was_saved() -> None:
    assert loaded(MemoryCluster()) is None


def test_what_is_saved_is_what_another_replica_opens() -> None:
    cluster = MemoryCluster()
    saved(cluster, book(count=20))
    assert loaded(cluster) == book(count=20)
    saved(cluster, book(count=5, tag=2.0))
    assert loaded(cluster) == book(count=5, tag=2.0)


def test_advice_and_outcomes_come_along() -> None:
    cluster = MemoryCluster()
    given, later = advice(key(1)), advice(key(1), T0 + DAY, mig_profile="3g.40gb")
    with opened(cluster) as store:
        store.save_book(book())
        store.record_advice([given])
        store.record_outcomes([outcome(given, T0 + DAY)])
        store.record_advice([later])
    with opened(cluster) as store:
        assert store.advice_given() == (without_options(given), without_options(later))
        assert applied(store) == {key(1): T0 + DAY}
        assert store.profile_at_advice(key(1), T0) == book().profiles[key(1)]
        store.record_advice([advice(key(2), T0 + 2 * DAY)])
    with opened(cluster) as store:
        assert [each.key for each in store.advice_given()] == [key(1), key(1), key(2)]


def test_only_what_changed_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "PIECE_BYTES", 2048)
    cluster = MemoryCluster()
    first = book(count=60)
    saved(cluster, first)
    before = pieces(cluster)
    assert len([name for name in before if name.startswith("profile-")]) > 8
    changed = replace(first.profiles[key(7)], observed_seconds=99.0)
    changes: list[str] = []
    with opened(cluster.writer(interfere=counted(changes))) as store:
        store.save_book(first)
        assert changes == []
        store.save_book(replace(first, profiles={**first.profiles, key(7): changed}))
    # The list, the piece, the list again, and the old piece.
    assert changes == ["patch", "create", "patch", "delete"]
    after = pieces(cluster)
    assert len(before.keys() - after.keys()) == len(after.keys() - before.keys()) == 1


def test_killed_at_any_write_the_state_is_the_old_or_the_new_and_nothing_is_left_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkpoints, "PIECE_BYTES", 1024)
    old, new, last = book(count=6), book(count=5, tag=2.0), book(count=4, tag=3.0)
    seen = set()
    for at, done in ((at, done) for at in range(200) for done in (False, True)):
        cluster = MemoryCluster()
        saved(cluster, old)
        left = at

        def end(verb: str, what: str, after: bool, done: bool = done) -> None:
            nonlocal left
            if after is done:
                if not left:
                    raise Killed
                left -= 1

        ended = True
        try:
            saved(cluster.writer(interfere=end), new)
        except Killed:
            ended = False
        found = loaded(cluster)
        assert found is not None
        assert len(tags(found)) == 1
        assert found in (old, new)
        seen.add((ended, found == new))
        # Whoever goes on leaves what it needs, and no more.
        saved(cluster, last)
        assert loaded(cluster) == last
        state = cluster.get(ObjectRef(API_VERSION, CHECKPOINT_KIND, STATE, NAMESPACE))
        assert state is not None
        assert set(pieces(cluster)) == set(state["spec"]["pieces"])
        if ended:
            break
    assert seen == {(False, False), (False, True), (True, True)}


def test_of_two_replicas_the_second_is_told() -> None:
    cluster = MemoryCluster()
    saved(cluster, book())
    with opened(cluster.writer()) as one, opened(cluster.writer()) as other:
        one.save_book(book(tag=2.0))
        with pytest.raises(StoreError, match="another replica wrote the state"):
            other.save_book(book(tag=3.0))
    assert loaded(cluster) == book(tag=2.0)
    with opened(cluster.writer()) as fresh, opened(MemoryCluster().writer()) as _:
        fresh.save_book(book(tag=4.0))
    assert loaded(cluster) == book(tag=4.0)


@pytest.mark.parametrize("harm", ["gone", "cut", "other bytes", "no base64", "no data"])
def test_a_damaged_piece_costs_what_it_held(monkeypatch: pytest.MonkeyPatch, harm: str) -> None:
    monkeypatch.setattr(checkpoints, "PIECE_BYTES", 4096)
    cluster = MemoryCluster()
    whole = book(count=60)
    saved(cluster, whole)
    name, piece = next((name, each) for name, each in sorted(pieces(cluster).items()) if name.startswith("profile-"))
    if harm == "gone":
        cluster.delete(ObjectRef(API_VERSION, CHECKPOINT_KIND, name, NAMESPACE))
    else:
        data = base64.b64decode(piece["spec"]["data"])
        spoilt = {
            "cut": base64.b64encode(data[:-9]).decode(),
            "other bytes": base64.b64encode(bytes(reversed(data))).decode(),
            "no base64": "§§§",
        }
        piece["spec"] = {"data": spoilt[harm]} if harm in spoilt else {}
        cluster.put(piece)
    with opened(cluster) as store:
        found, gaps = store.load_book()
        (gap,) = gaps
        assert store.gaps == gaps
        assert (gap.kind, gap.what) == (GapKind.BAD_INPUT, f"Checkpoint {NAMESPACE}/{name}")
        assert found is not None
        assert found.until == whole.until
        lost = whole.profiles.keys() - found.profiles.keys()
        assert 0 < len(lost) < len(whole.profiles)
        assert all(whole.profiles[each] == profile for each, profile in found.profiles.items())
        store.save_book(whole)
    assert loaded(cluster) == whole


def test_lost_advice_does_not_stand_in_the_way_of_new(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = MemoryCluster()
    with opened(cluster) as store:
        store.save_book(book())
        store.record_advice([advice(key(number)) for number in range(3)])
    (name,) = (each for each in pieces(cluster) if each.startswith("advice-") and "body" not in each)
    cluster.delete(ObjectRef(API_VERSION, CHECKPOINT_KIND, name, NAMESPACE))
    with opened(cluster) as store:
        assert store.advice_given() == ()
        store.record_advice([advice(key(5))])
    with opened(cluster) as store:
        assert [each.key for each in store.advice_given()] == [key(5)]


@pytest.mark.parametrize(("schema", "which"), [(99, "a newer"), (1, "an older")])
def test_another_schema_is_left_as_it_is(schema: int, which: str) -> None:
    cluster = MemoryCluster()
    saved(cluster, book())
    state = cluster.get(ObjectRef(API_VERSION, CHECKPOINT_KIND, STATE, NAMESPACE))
    assert state is not None
    state["spec"]["schema"] = schema
    cluster.put(state)
    with pytest.raises(StoreError, match=rf"{which} gpuwatch \(schema {schema}.*or delete them"), opened(cluster):
        pass


def test_what_is_too_large_for_one_object_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = MemoryCluster()
    saved(cluster, book())
    monkeypatch.setattr(checkpoints, "LARGEST_BYTES", 700)
    with opened(cluster) as store, pytest.raises(StoreError, match="too large for the cluster"):
        store.save_book(book(count=20, tag=2.0))
    assert loaded(cluster) == book()
    assert LARGEST_BYTES * 4 / 3 < 1_400_000  # what the definition takes as data


def test_what_cannot_be_read_is_an_error_and_not_an_empty_state() -> None:
    cluster = MemoryCluster(may=lambda verb, _: verb != "get")
    with pytest.raises(StoreError, match="reading the state"), opened(cluster):
        pass


def test_a_real_api_server_keeps_it(control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "PIECE_BYTES", 16384)
    api = Api(control_plane.administrator)
    apply(api, [*documents(CRDS), {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpuwatch-state"}}])
    with api_client(control_plane.administrator) as client:
        writer = LiveWriter(client)
        with store_in_cluster(writer, "gpuwatch-state") as store:
            store.save_book(book(count=40))
            store.record_advice([advice(key(1))], T0 + timedelta(hours=1))
            store.save_book(book(count=39, tag=2.0))
        with (
            store_in_cluster(writer, "gpuwatch-state") as store,
            store_in_cluster(writer, "gpuwatch-state") as other,
        ):
            assert store.load_book() == (book(count=39, tag=2.0), ())
            assert store.advice_given() == (without_options(advice(key(1))),)
            store.save_book(book(count=3))
            with pytest.raises(StoreError, match="another replica"):
                other.save_book(book(count=4))
        state = writer.get(ObjectRef(API_VERSION, CHECKPOINT_KIND, STATE, "gpuwatch-state"))
        assert state is not None
        there = {each["metadata"]["name"] for each in writer.objects(API_VERSION, CHECKPOINT_KIND, "gpuwatch-state")}
        assert there == {STATE, *state["spec"]["pieces"]}
