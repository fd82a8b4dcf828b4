"""What an update of the profiles reads, and what it leaves for the next time."""

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpuwatch.facts.catalog.xids import Xid, xids_with_overrides
from gpuwatch.facts.model.cluster import Cluster, Node, Pod
from gpuwatch.facts.model.telemetry import Gap, GapKind, PodRef, Signal
from gpuwatch.facts.model.workload_profile import HeldWindows, ProfileBook, Unfit
from gpuwatch.size import collect as profiles
from gpuwatch.size.collect import FetchPolicy, update_profiles
from gpuwatch.size.policy import ProfilePolicy
from gpuwatch.size.profile.joint import update_book
from gpuwatch.sources.telemetry.connection import Connection
from gpuwatch.sources.telemetry.prometheus import PrometheusStore
from gpuwatch.sources.telemetry.samples import Expression, Function, SampleStore, Selector
from parts import remote_write
from parts.prometheus_server import ServerBuild, running
from telemetry.timeline import AT, Timeline, Witness, gpu, held, uuid

ENGINE, FB, REASONS = "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"
XID, RECOVERY = "DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_GPU_RECOVERY_ACTION"
A, B = uuid(1), uuid(2)
POLICY = ProfilePolicy()
FETCH = FetchPolicy(history_seconds=7200)
SETTLED = AT - timedelta(seconds=300)  # 120 s are left to settle, and windows are of 300 s
LIVE = Pod(namespace="team", name="a", phase="Running", workload="Job/team/train", accelerators={"nvidia.com/gpu": 1})
CLUSTER = Cluster(pods=(LIVE,), nodes=(Node(name="node-a"),), known=True)


@dataclass
class Ledger:
    """Keeps what the pure update was given, which goes on."""

    books: list[ProfileBook | None] = field(default_factory=list)
    windows: list[HeldWindows] = field(default_factory=list)
    owners: list[Mapping[PodRef, str]] = field(default_factory=list)
    pods: list[Mapping[PodRef, Pod]] = field(default_factory=list)
    unfit: list[Unfit] = field(default_factory=list)

    def __call__(
        self,
        book: ProfileBook | None,
        windows: Sequence[HeldWindows],
        owners: Mapping[PodRef, str],
        pods: Mapping[PodRef, Pod],
        unfit: Sequence[Unfit],
        policy: ProfilePolicy,
    ) -> ProfileBook:
        assert policy is POLICY
        self.windows += windows
        self.owners.append(owners)
        self.pods.append(pods)
        self.unfit += unfit
        self.books.append(book)
        return update_book(book, windows, owners, pods, unfit, policy)

    def ends(self) -> list[float]:
        """Of all windows, the oldest first."""
        return sorted({end for _, _, end in self.busy()}, reverse=True)

    def busy(self) -> dict[tuple[str, str, float], float]:
        """(device, Pod, end of the window in seconds before AT) → activity. Each window once."""
        found: dict[tuple[str, str, float], float] = {}
        for each in self.windows:
            for index, value in enumerate(each.values[Signal.BUSY_RATIO]):
                end = each.start + timedelta(seconds=(index + 1) * each.step_seconds)
                key = (each.device, each.pod, (AT - end).total_seconds())
                if not math.isnan(value):
                    assert key not in found
                    found[key] = value
        return found


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Ledger:
    given = Ledger()
    monkeypatch.setattr(profiles, "update_book", given)
    return given


def update(
    store: SampleStore,
    book: ProfileBook | None = None,
    *,
    cluster: Cluster = CLUSTER,
    at: datetime = AT,
    fetch: FetchPolicy = FETCH,
    unfit: Sequence[Unfit] = (),
    xids: Mapping[int, Xid] | None = None,
) -> tuple[ProfileBook, tuple[Gap, ...]]:
    return update_profiles(book, store, cluster, at, POLICY, unfit=unfit, fetch=fetch, xids=xids)


def updated(store: SampleStore, book: ProfileBook | None = None, **options: Any) -> ProfileBook:
    """The book of an update of which nothing failed."""
    found, gaps = update(store, book, **options)
    assert failures(gaps) == []
    return found


def ago(seconds: float) -> datetime:
    return AT - timedelta(seconds=seconds)


def two_gpus(hours: float = 2) -> Timeline:
    timeline = Timeline()
    for number, pod in ((1, "a"), (2, "b")):
        labels = gpu(number) | held(pod)
        timeline.add(ENGINE, labels, lambda ago: (ago % 1000) / 1000, ago=hours * 3600)
        timeline.add(FB, labels, 1000 * number, ago=hours * 3600)
    return timeline


@pytest.mark.parametrize("doubted", [uuid(2), "node-a:9401"], ids=["the device", "its target"])
def test_windows_of_what_is_doubted_are_in_no_profile(tmp_path: Path, ledger: Ledger, doubted: str) -> None:
    timeline = Timeline()
    for number, pod, target in ((1, "a", "node-a:9400"), (2, "b", "node-a:9401")):
        timeline.add(ENGINE, gpu(number, instance=target) | held(pod), 0.5, ago=7200)
    store = timeline.store(tmp_path)
    update_profiles(None, store, CLUSTER, AT, POLICY, fetch=FETCH, doubted={doubted})
    assert {pod for _, pod, _ in ledger.busy()} == {"team/a"}
    update_profiles(None, store, CLUSTER, AT, POLICY, fetch=FETCH)
    assert {each.pod for each in ledger.windows} == {"team/a", "team/b"}


def failures(gaps: Sequence[Gap]) -> list[tuple[GapKind, str]]:
    return [(gap.kind, gap.what) for gap in gaps if gap.kind is not GapKind.SIGNAL_MISSING]


def test_the_first_update_reads_the_history_but_what_has_to_settle(tmp_path: Path, ledger: Ledger) -> None:
    book = updated(two_gpus().store(tmp_path))
    assert (book.until, book.step_seconds) == (SETTLED, 300)
    assert ledger.books == [None]  # an empty book would have watched those begin that are there from the first
    assert ledger.ends() == list(range(6900, 0, -300))


def test_the_next_update_reads_only_what_is_new(tmp_path: Path, ledger: Ledger) -> None:
    store = two_gpus().store(tmp_path)
    book, _ = update(store, at=ago(3600))
    before = ledger.busy()
    witness = Witness(store)
    later, _ = update(witness, book)
    assert (book.until, later.until) == (ago(3900), SETTLED)
    both = ledger.busy()  # fails where a window came twice
    whole = Ledger()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profiles, "update_book", whole)
        update(store)
    assert both == whole.busy()
    assert max(end for _, _, end in both.keys() - before.keys()) == 3600


def test_an_update_before_anything_is_new_asks_nothing(tmp_path: Path, ledger: Ledger) -> None:
    store = two_gpus().store(tmp_path)
    book, _ = update(store)
    witness = Witness(store)
    assert update(witness, book, at=AT + timedelta(seconds=60)) == (book, ())
    assert witness.asked == []


def test_a_stretch_that_fails_stops_the_book_before_it(
    tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = two_gpus(3).store(tmp_path)
    # 2 devices · 14 signals · 12 windows: stretches of an hour.
    monkeypatch.setattr(profiles, "VALUES_AT_ONCE", 2 * 14 * 12)
    fetch = replace(FETCH, history_seconds=3 * 3600)
    calls: list[int] = []

    def second_hour(asked: Expression) -> bool:
        if asked.selector.metric == FB and asked.window_seconds == 300:
            calls.append(1)
        return len(calls) == 2

    book, gaps = update(Witness(store, second_hour), fetch=fetch)
    assert book.until == ago(3 * 3600) + timedelta(hours=1)
    assert failures(gaps) == [(GapKind.QUERY_FAILED, "windows of memory_used_bytes")]
    assert ledger.ends() == list(range(10500, 7100, -300))
    # The next update fetches it again.
    again = updated(store, book, fetch=fetch)
    assert again.until == SETTLED
    assert ledger.ends() == list(range(10500, 0, -300))


@pytest.mark.parametrize("metric", [FB, "kube_pod_owner", REASONS, XID])
def test_a_stretch_that_is_answered_in_part_stops_the_book_before_it_once(
    tmp_path: Path, ledger: Ledger, metric: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeline = two_gpus(3).add(REASONS, gpu(1) | held("a"), 0, ago=10800).add(XID, gpu(1) | held("a"), 0, ago=10800)
    timeline.add("kube_pod_owner", {"namespace": "team", "pod": "b"}, 1, ago=10800)
    monkeypatch.setattr(profiles, "VALUES_AT_ONCE", 2 * 14 * 12)
    fetch = replace(FETCH, history_seconds=3 * 3600)
    hours: list[int] = []

    def second_hour(asked: Expression) -> bool:
        if asked.selector.metric == ENGINE and asked.window_seconds == 300:
            hours.append(1)
        return len(hours) == 2 and asked.selector.metric == metric

    witness = Witness(timeline.store(tmp_path), partial=second_hour)
    book, gaps = update(witness, fetch=fetch)
    assert book.until == ago(3 * 3600) + timedelta(hours=1)
    assert failures(gaps) == [(GapKind.PARTIAL, "answers in part")]
    hours.append(1)  # the store answers again
    again = updated(witness, book, fetch=fetch)
    assert again.until == SETTLED
    assert ledger.ends() == list(range(10500, 0, -300))


def test_what_rests_on_answers_in_part_adds_nothing_to_a_book(tmp_path: Path, ledger: Ledger) -> None:
    """The findings that make windows unfit, or the choice of the series that are this cluster's."""
    store, lacking = two_gpus().store(tmp_path), Gap(kind=GapKind.PARTIAL, what="answers in part", detail="store-3")
    book, gaps = update_profiles(None, store, CLUSTER, AT, POLICY, fetch=FETCH, partial=(lacking,))
    assert (book.until, gaps) == (ago(7200), (lacking,))
    witness = Witness(store, partial=lambda _: True)
    witness.evaluate(Expression(Selector(ENGINE), Function.LAST), AT)
    book, gaps = update(witness)
    assert (book.until, failures(gaps)) == (ago(7200), [(GapKind.PARTIAL, "answers in part")])
    assert ledger.windows == []


@pytest.mark.parametrize("metric", ["kube_pod_owner", REASONS, XID])
def test_whatever_else_fails_stops_it_too(tmp_path: Path, ledger: Ledger, metric: str) -> None:
    timeline = two_gpus().add(REASONS, gpu(1) | held("a"), 0).add(XID, gpu(1) | held("a"), 0)
    timeline.add("kube_pod_owner", {"namespace": "team", "pod": "b"}, 1)

    def refused(asked: Expression) -> bool:
        # Discovery and the inventory look at samples of now and of an hour; what is left is ours.
        return asked.selector.metric == metric and asked.function != "count" and asked.combine != "count"

    book, gaps = update(Witness(timeline.store(tmp_path), refused))
    assert book.until == ago(7200)
    assert ledger.windows == []
    assert failures(gaps) != []


def test_late_samples_are_waited_for(tmp_path: Path, ledger: Ledger) -> None:
    """The newest windows of the whole fleet are empty: the book ends with the last one that has a sample."""
    timeline = Timeline()
    for number, until in ((1, 1500), (2, 1200)):
        timeline.add(ENGINE, gpu(number) | held("a"), 0.5, ago=7200, until=until)
    book = updated(timeline.store(tmp_path))
    assert book.until == ago(1200)
    ends = {each.start + timedelta(seconds=300 * len(each.values[Signal.BUSY_RATIO])) for each in ledger.windows}
    assert ends == {ago(1200)}  # what is asked for again is not told to be empty
    late = timeline.add(ENGINE, gpu(1) | held("a"), 0.7, ago=1500).add(ENGINE, gpu(2) | held("a"), 0.7, ago=1200)
    book, _ = update(late.store(tmp_path), book)
    assert book.until == SETTLED
    assert ledger.busy()[B, "team/a", 900] == pytest.approx(0.7)


def test_a_silent_server_changes_nothing(tmp_path: Path, ledger: Ledger) -> None:
    book, _ = update(two_gpus().store(tmp_path), at=ago(3600))
    with contextlib.closing(PrometheusStore(Connection(url="http://127.0.0.1:9", retries=0))) as store:
        same, gaps = update(store, book)
    assert same == book
    assert [gap.kind for gap in gaps] == [GapKind.UNREACHABLE]
    nothing, gaps = update(Timeline().add("up", {"job": "x"}, 1).store(tmp_path), book)
    assert nothing == book
    assert [(gap.kind, gap.what) for gap in gaps] == [(GapKind.SIGNAL_MISSING, "GPU telemetry")]


def test_a_book_from_long_ago_is_taken_up_where_the_history_begins(tmp_path: Path, ledger: Ledger) -> None:
    old = ProfileBook(until=ago(9000), step_seconds=300)
    book, gaps = update(two_gpus().store(tmp_path), old)
    assert book.until == SETTLED
    assert failures(gaps) == [(GapKind.PARTIAL, "profiles")]
    assert max(end for _, _, end in ledger.busy()) == 6900
    at_bound = updated(two_gpus().store(tmp_path), replace(old, until=ago(7200)))
    assert at_bound.until == SETTLED


def test_a_book_keeps_its_step(tmp_path: Path, ledger: Ledger) -> None:
    book, _ = update(two_gpus().store(tmp_path), ProfileBook(until=ago(3600), step_seconds=600))
    assert (book.until, book.step_seconds) == (ago(600), 600)
    assert {windows.step_seconds for windows in ledger.windows} == {600}


def test_pods_are_resolved_by_the_cluster_first_and_then_by_what_is_remembered(tmp_path: Path, ledger: Ledger) -> None:
    timeline = two_gpus()
    by = {"owner_is_controller": "true"}
    for pod in ("a", "b"):
        labels = {"namespace": "team", "pod": pod, "owner_kind": "StatefulSet", "owner_name": "web"} | by
        timeline.add("kube_pod_owner", labels, 1, ago=7200)
    requests = {"namespace": "team", "pod": "b", "container": "main", "resource": "cpu"}
    timeline.add("kube_pod_container_resource_requests", requests, 8)
    notebook = replace(LIVE, workload="Notebook/team/web")
    update(timeline.store(tmp_path), cluster=replace(CLUSTER, pods=(notebook,)))
    # b is gone: its StatefulSet is that of a, which the cluster knows to be a Notebook's.
    assert ledger.owners == [{"team/a": "Notebook/team/web", "team/b": "Notebook/team/web"}]
    (pods,) = ledger.pods
    assert pods["team/a"] is notebook
    assert (pods["team/b"].cpu_cores, pods["team/b"].workload) == (8, "Notebook/team/web")


def test_without_kube_state_metrics_a_gone_pods_workload_is_unknown(tmp_path: Path, ledger: Ledger) -> None:
    book, gaps = update(two_gpus().store(tmp_path))
    assert book.until == SETTLED
    assert ledger.owners == [{"team/a": "Job/team/train"}]
    assert [gap.what for gap in gaps if "kube_pod_owner" in gap.detail] == ["owners of Pods"]


def test_throttled_windows_are_unfit(tmp_path: Path, ledger: Ledger) -> None:
    # Of a window's ten samples one is 0.1 of it, which is above the bound of 0.05.
    timeline = two_gpus().add(REASONS, gpu(1), lambda ago: 0x40 if 1500 < ago <= 2110 else 0x4, ago=7200)
    update(timeline.store(tmp_path))
    assert ledger.unfit == [Unfit(device_uuid=A, start=ago(2400), end=ago(1500), cause="throttled")]


def test_little_throttling_is_let_pass(tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the ten samples of a window."""
    timeline = two_gpus().add(REASONS, gpu(1), lambda ago: 0x40 if ago == 1530 else 0, ago=7200, every=30)
    store = timeline.store(tmp_path)
    monkeypatch.setattr(profiles, "THROTTLED_RATIO", 0.1)
    update(store)
    assert ledger.unfit == []
    monkeypatch.setattr(profiles, "THROTTLED_RATIO", 0.0999)
    update(store)
    assert [(each.start, each.end) for each in ledger.unfit] == [(ago(1800), ago(1500))]


def test_a_fatal_xid_until_it_is_cleared(tmp_path: Path, ledger: Ledger) -> None:
    timeline = two_gpus()
    # 79 fell off the bus; 13 is an application's, and says nothing about the GPU.
    timeline.add(XID, gpu(1), lambda ago: 79 if 3000 <= ago < 5000 else 0, ago=7200)
    timeline.add(XID, gpu(2), lambda ago: 13 if ago < 5000 else 0, ago=7200)
    update(timeline.store(tmp_path))
    assert ledger.unfit == [Unfit(device_uuid=A, start=ago(4980), end=ago(2970), cause="xid")]


def test_the_operators_xids_decide_which_are_fatal(tmp_path: Path, ledger: Ledger) -> None:
    (tmp_path / "xids.yaml").write_text(
        "xids: {79: {class: ignore, reason: a loose riser}, 13: {class: fatal, reason: our firmware}}"
    )
    xids, gaps = xids_with_overrides(tmp_path / "xids.yaml")
    assert not gaps
    timeline = two_gpus()
    timeline.add(XID, gpu(1), lambda ago: 79 if ago < 5000 else 0, ago=7200)
    timeline.add(XID, gpu(2), lambda ago: 13 if ago < 5000 else 0, ago=7200)
    update(timeline.store(tmp_path), xids=xids)
    assert ledger.unfit == [Unfit(device_uuid=B, start=ago(4980), end=SETTLED, cause="xid")]


def test_another_xid_does_not_clear_a_fatal_one(tmp_path: Path, ledger: Ledger) -> None:
    timeline = two_gpus().add(XID, gpu(1), lambda ago: 13 if ago < 3000 else 79 if ago < 5000 else 0, ago=7200)
    update(timeline.store(tmp_path))
    assert ledger.unfit == [Unfit(device_uuid=A, start=ago(4980), end=SETTLED, cause="xid")]


def test_a_recovery_action_that_was_there_before(tmp_path: Path, ledger: Ledger) -> None:
    timeline = two_gpus(3).add(RECOVERY, gpu(1), lambda ago: 1 if ago > 4000 else 0, ago=10800)
    update(timeline.store(tmp_path))
    assert ledger.unfit == [Unfit(device_uuid=A, start=ago(7200), end=ago(3990), cause="recovery_action")]


@pytest.mark.parametrize(("shown_for", "is_unfit"), [(3600, True), (7200, False)])
def test_a_fatal_xid_that_is_shown_for_long_is_no_news(
    tmp_path: Path, ledger: Ledger, shown_for: int, is_unfit: bool
) -> None:
    timeline = two_gpus(4).add(XID, gpu(1), lambda ago: 79 if ago <= 7200 + shown_for else 0, ago=16000)
    update(timeline.store(tmp_path), fetch=replace(FETCH, degraded_seconds=3700))
    expected = [Unfit(device_uuid=A, start=ago(7200), end=SETTLED, cause="xid")] if is_unfit else []
    assert ledger.unfit == expected


def test_the_same_fatal_xid_a_day_before_was_another_fault(tmp_path: Path, ledger: Ledger) -> None:
    shown = lambda before: 79 if before <= 7200 + 1800 or 7200 + 3500 <= before <= 7200 + 3900 else 0  # noqa: E731
    timeline = two_gpus(4).add(XID, gpu(1), shown, ago=16000)
    update(timeline.store(tmp_path), fetch=replace(FETCH, degraded_seconds=3700))
    assert ledger.unfit == [Unfit(device_uuid=A, start=ago(7200), end=SETTLED, cause="xid")]


def test_the_first_fatal_xid_of_a_series_is_news(tmp_path: Path, ledger: Ledger) -> None:
    timeline = two_gpus(4).add(XID, gpu(1), 79, ago=7200 + 1800)  # no such series before the first XID
    update(timeline.store(tmp_path), fetch=replace(FETCH, degraded_seconds=3700))
    assert ledger.unfit == [Unfit(device_uuid=A, start=ago(7200), end=SETTLED, cause="xid")]


def test_what_the_caller_knows_to_be_unfit(tmp_path: Path, ledger: Ledger) -> None:
    touching = Unfit(device_uuid=B, start=ago(9000), end=ago(7200), cause="ecc")
    within = Unfit(device_uuid=B, start=ago(7300), end=ago(600), cause="ecc")
    update(two_gpus().store(tmp_path), unfit=(touching, within))
    assert ledger.unfit == [within]


def test_nobodys_time_is_not_known_where_telemetry_names_no_pod(tmp_path: Path, ledger: Ledger) -> None:
    store = Timeline().add(ENGINE, gpu(1), 0.5, ago=7200).store(tmp_path)
    book, gaps = update(store)
    assert (book.until, ledger.windows) == (SETTLED, [])
    assert "Pods of devices" in [gap.what for gap in gaps]
    update(store, cluster=Cluster())
    assert ledger.windows == []
    update(store, cluster=Cluster(known=True))
    assert [windows.pod for windows in ledger.windows] == [""]


def test_an_exporter_that_was_updated_meanwhile(
    tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeline = Timeline().add(ENGINE, gpu(1) | held("a"), 0.5, ago=18000, until=9000, ends=True)
    newer = gpu(1, Hostname="", hostname="node-a") | held("a")
    timeline.add("DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", newer, 0.25, ago=9000)
    monkeypatch.setattr(profiles, "VALUES_AT_ONCE", 14 * 12)
    fetch = replace(FETCH, history_seconds=18000)
    book = updated(timeline.store(tmp_path), fetch=fetch)
    assert book.until == SETTLED
    busy = ledger.busy()
    assert [busy[A, "team/a", float(end)] for end in (17700, 9000)] == pytest.approx([0.5, 0.5])
    assert [busy[A, "team/a", float(end)] for end in (8700, 300)] == pytest.approx([0.25, 0.25])
    assert len(busy) == 59


@pytest.mark.parametrize(("name", "value"), [("step_seconds", 0), ("history_seconds", -1), ("settle_seconds", -1)])
def test_a_policy_that_makes_no_sense_is_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"fetch.{name}"):
        FetchPolicy(**{name: value})  # type: ignore[arg-type]


def test_updates_from_a_server_are_those_from_a_recording(
    prometheus_build: ServerBuild, tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeline = two_gpus().add(REASONS, gpu(1), lambda ago: 0x40 if 1500 < ago <= 2100 else 0, ago=7200)
    timeline.add(XID, gpu(2), lambda ago: 79 if ago < 5000 else 0, ago=7200)
    timeline.add("kube_pod_owner", {"namespace": "team", "pod": "b"}, 1, ago=7200)
    monkeypatch.setattr(profiles, "VALUES_AT_ONCE", 2 * 14 * 7)
    expected_book, expected_gaps = update(timeline.store(tmp_path))
    assert expected_book.until == SETTLED
    assert len(ledger.owners) == 4
    served = Ledger()
    with pytest.MonkeyPatch.context() as patch, running(prometheus_build) as url:
        patch.setattr(profiles, "update_book", served)
        remote_write.write(url, timeline.for_remote_write())
        with contextlib.closing(PrometheusStore(Connection(url=url))) as store:
            book, gaps = update(store)
    assert (book.until, gaps) == (expected_book.until, expected_gaps)
    assert list(book.profiles) == list(expected_book.profiles)
    assert allocated_gpu_hours(book) == pytest.approx(allocated_gpu_hours(expected_book))
    assert served.busy() == pytest.approx(ledger.busy(), rel=1e-9)
    assert (served.owners, served.pods, served.unfit) == (ledger.owners, ledger.pods, ledger.unfit)


def test_profiles_and_use_of_a_real_book(tmp_path: Path) -> None:
    """Two hours of two GPUs: a's Job is told by the cluster, b is a workload of its own; b's telemetry has a hole."""
    timeline = Timeline()
    timeline.add(ENGINE, gpu(1) | held("a"), 0.8, ago=7200).add(FB, gpu(1) | held("a"), 1000, ago=7200)
    timeline.add(ENGINE, gpu(2), 0, ago=7200, until=5400, ends=True)
    timeline.add(ENGINE, gpu(2) | held("b"), 0.4, ago=5400, until=3600).add(ENGINE, gpu(2) | held("b"), 0.4, ago=1800)
    store = timeline.store(tmp_path)
    book = updated(store)
    found = {key.workload: profile for key, profile in book.profiles.items()}
    assert set(found) == {"Job/team/train", "Pod/team/b"}
    train, alone = found["Job/team/train"], found["Pod/team/b"]
    assert (train.expected_seconds, train.coverage_ratio) == (6900, 1)
    assert train.mean("busy_ratio") == pytest.approx(0.8)
    assert [(run.pod, run.peak_bytes) for run in train.runs] == [("team/a", 1000 * 2**20)]
    # It came at −5400 s; half an hour of what follows was not measured, the first ten minutes are start-up.
    assert (alone.expected_seconds, alone.observed_seconds) == (5100, 5100 - 1800 - 600)
    assert alone.left_out_seconds == {"start_up": 600}


def allocated_gpu_hours(book: ProfileBook) -> list[float]:
    return [day.allocated_gpu_hours for profile in book.profiles.values() for day in profile.days]


def test_many_updates_make_the_book_of_one(tmp_path: Path) -> None:
    store = two_gpus(4).store(tmp_path)
    fetch = replace(FETCH, history_seconds=4 * 3600)
    whole, _ = update(store, fetch=fetch)
    book: ProfileBook | None = None
    for begin in range(3 * 3600, -1, -1800):
        book = updated(store, book, at=ago(begin), fetch=replace(fetch, history_seconds=4 * 3600 - begin))
    assert book is not None
    assert (book.until, set(book.profiles)) == (whole.until, set(whole.profiles))
    for key, expected in whole.profiles.items():
        profile = book.profiles[key]
        assert (profile.runs, profile.run_count) == (expected.runs, expected.run_count)
        assert (profile.expected_seconds, profile.observed_seconds) == (
            expected.expected_seconds,
            expected.observed_seconds,
        )
        assert sum(cell.weight_seconds for cell in profile.cells) == pytest.approx(
            sum(cell.weight_seconds for cell in expected.cells)
        )
        assert len(profile.cells) == len(expected.cells)
    assert allocated_gpu_hours(book) == pytest.approx(allocated_gpu_hours(whole))
