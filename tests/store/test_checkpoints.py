"""What only the state in the cluster has: objects and their order, replicas, and the limits of the API server. What it
shares with the file is in test_state."""

from datetime import timedelta

import pytest

from cluster.api import Api
from cluster.control_plane import ControlPlane
from deploy.manifests import CRDS, apply, documents
from gpuwatch.facts.model.remediation import ObjectRef
from gpuwatch.sources.kube.live import api_client
from gpuwatch.sources.kube.live_writer import LiveWriter
from gpuwatch.sources.store import SCHEMA, StoreError, checkpoints, rows
from gpuwatch.sources.store.checkpoints import FAULTS, LARGEST_BYTES, STATE, Checkpoints
from gpuwatch.sources.store.custom_resources import API_VERSION, CHECKPOINT_KIND
from gpuwatch.sources.store.store import Store
from kube.memory_cluster import MemoryCluster
from store.places import NAMESPACE, InCluster, ref
from store.test_state import by_key, loaded, memory
from store.values import T0, advice, book, key, without_options


def test_killed_at_any_step_the_state_is_the_old_or_the_new_and_nothing_is_left_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rows, "PIECE_BYTES", 4096)
    old, new, last = book(count=6), book(count=25, tag=2.0), book(count=4, tag=3.0)
    seen = set()
    for step in range(500):
        kept = InCluster()
        kept.opened().save_book(old)
        killed = kept.killed_at(step, lambda store: store.save_book(new))
        found = loaded(kept)
        assert found in (old, new)
        seen.add((killed, found == new))
        # Who goes on leaves what it needs, and no more.
        kept.opened().save_book(last)
        assert loaded(kept) == last
        state = kept.cluster.get(ref(STATE))
        assert state is not None
        assert set(kept.pieces()) == set(state["spec"]["pieces"])
        if not killed:
            break
    assert seen == {(True, False), (True, True), (False, True)}


def test_of_two_replicas_the_second_is_told() -> None:
    kept = InCluster()
    kept.opened().save_book(book())
    one, other = kept.opened(), kept.opened()
    one.save_book(book(tag=2.0))
    with pytest.raises(StoreError, match="another replica wrote the state"):
        other.save_book(book(tag=3.0))
    assert loaded(kept) == book(tag=2.0)
    kept.opened().save_book(book(tag=4.0))
    assert loaded(kept) == book(tag=4.0)


def test_a_save_that_failed_is_as_if_it_were_not_and_the_next_one_goes_on() -> None:
    kept, refused = InCluster(), True
    kept.opened().save_book(book())

    def may(verb: str, what: str) -> bool:
        return not refused or verb != "create"

    limited = MemoryCluster(may=may)
    for each in kept.cluster.objects(API_VERSION, CHECKPOINT_KIND, NAMESPACE):
        limited.put(each)
    store = Store(Checkpoints(limited, NAMESPACE))
    with pytest.raises(StoreError, match="writing the state"):
        store.save_book(book(tag=2.0))
    assert store.load_book() == (book(), ())
    refused = False
    store.save_book(book(tag=3.0))
    assert loaded(InCluster(limited)) == book(tag=3.0)


def test_lists_of_one_namespace_do_not_disturb_each_other() -> None:
    """A cycle stores a fault while the job of the profiles has its Store open."""
    kept = InCluster()
    faults = InCluster(kept.cluster, FAULTS)
    kept.opened().save_book(book(count=5))
    profiles = kept.opened()
    faults.opened().save_faults(memory())
    profiles.save_book(book(count=6))
    assert loaded(kept) == book(count=6)
    assert by_key(faults.opened().load_faults()) == memory()


@pytest.mark.parametrize(("schema", "which"), [(SCHEMA + 1, "a newer"), (SCHEMA - 1, "an older")])
def test_another_schema_is_left_as_it_is(schema: int, which: str) -> None:
    kept = InCluster()
    kept.opened().save_book(book())
    state = kept.cluster.get(ref(STATE))
    assert state is not None
    state["spec"]["schema"] = schema
    kept.cluster.put(state)
    words = rf"{which} gpuwatch \(schema {schema}.*`kubectl -n gpuwatch delete checkpoints --all`"
    with pytest.raises(StoreError, match=words):
        kept.opened()


def test_what_is_too_large_for_one_object_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = InCluster()
    kept.opened().save_book(book())
    monkeypatch.setattr(checkpoints, "LARGEST_BYTES", 700)
    with pytest.raises(StoreError, match="too large for the cluster: rows of profile"):
        kept.opened().save_book(book(count=20, tag=2.0))
    assert loaded(kept) == book()
    assert LARGEST_BYTES * 4 / 3 < 1_400_000  # what the definition takes as data


def test_what_cannot_be_read_is_an_error_and_not_an_empty_state() -> None:
    with pytest.raises(StoreError, match="reading the state"):
        Store(Checkpoints(MemoryCluster(may=lambda verb, _: verb != "get"), NAMESPACE))


def test_a_real_api_server_keeps_it(control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "PIECE_BYTES", 16384)
    api = Api(control_plane.administrator)
    apply(api, [*documents(CRDS), {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpuwatch-state"}}])
    with api_client(control_plane.administrator) as client:
        writer = LiveWriter(client)

        def opened() -> Store:
            return Store(Checkpoints(writer, "gpuwatch-state"))

        store = opened()
        store.save_book(book(count=40))
        store.record_advice([advice(key(1))], T0 + timedelta(hours=1))
        store.save_book(book(count=39, tag=2.0))
        store, other = opened(), opened()
        assert store.load_book() == (book(count=39, tag=2.0), ())
        assert store.advice_given() == (without_options(advice(key(1))),)
        store.save_book(book(count=3))
        with pytest.raises(StoreError, match="another replica"):
            other.save_book(book(count=4))
        state = writer.get(ObjectRef(API_VERSION, CHECKPOINT_KIND, STATE, "gpuwatch-state"))
        assert state is not None
        there = {each["metadata"]["name"] for each in writer.objects(API_VERSION, CHECKPOINT_KIND, "gpuwatch-state")}
        assert there == {STATE, *state["spec"]["pieces"]}
