"""The ledger that is kept hour by hour: the same as one that is read at once, each hour counted once."""

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner, Result

from gpuwatch.app.cli.main import cli
from gpuwatch.app.controller.ledger_job import LedgerJob
from gpuwatch.app.controller.metrics import Metrics
from gpuwatch.app.controller.replica import Replica
from gpuwatch.app.ledger import keep_ledger, kept_ledger, read_ledger
from gpuwatch.app.settings import Settings
from gpuwatch.app.sources import Opened, open_sources
from gpuwatch.facts.model.ledger import (
    Checkpoint,
    Ledger,
    LedgerEntry,
    LedgerPast,
    Loss,
    LossCause,
    Row,
    Worked,
)
from gpuwatch.facts.model.telemetry import Gap, GapKind
from gpuwatch.sources.store.checkpoints import LEDGER, Checkpoints
from gpuwatch.sources.store.ledger import KEPT_DAYS, KEPT_HOURS, LedgerStore
from gpuwatch.sources.store.rows import Place as StatePlace
from gpuwatch.sources.store.state_file import StateFile
from gpuwatch.sources.telemetry.recording import RecordingStore
from gpuwatch.sources.telemetry.samples import Expression, Partition, QueryFailed, Series, Steps
from kube.memory_cluster import MemoryCluster
from ledger.test_week import MOMENT, options_of
from ledger.week import AT, END, START, write_week
from store.places import NAMESPACE, InCluster, Killed

WEEK = END - START
HOUR = timedelta(hours=1)
MIDNIGHT = datetime.fromisoformat("2026-03-02T00:00:00+00:00")


@pytest.fixture(scope="module")
def week(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    return open_sources(options_of(tmp_path_factory.mktemp("week")), Settings())


@pytest.fixture(scope="module")
def whole(week: Opened) -> Ledger:
    return read_ledger(week, WEEK, quiet=True)


@pytest.fixture(scope="module")
def kept(week: Opened, tmp_path_factory: pytest.TempPathFactory) -> LedgerStore:
    """As after a week of a process that was stopped and started again."""
    file = tmp_path_factory.mktemp("kept") / "ledger"
    for hours in (6, 30, 31, 32, 37, 44, 70, 77, 90, 109, 118, 125, 150):
        keep_ledger(replace(week, at=START + hours * HOUR), LedgerStore.open(file, "USD"), quiet=True)
    store = LedgerStore.open(file, "USD")
    keep_ledger(week, store, quiet=True)
    return store


def differences(
    one: Iterable[LedgerEntry], other: Iterable[LedgerEntry], *names: str
) -> dict[tuple[object, ...], float]:
    found: defaultdict[tuple[object, ...], float] = defaultdict(float)
    for sign, entries in ((1.0, one), (-1.0, other)):
        for each in entries:
            found[(*(getattr(each, name) for name in names), each.row, each.unknown)] += sign * each.gpu_hours
    return {key: hours for key, hours in found.items() if abs(hours) > MOMENT}


def lasting(entries: Iterable[LedgerEntry]) -> list[LedgerEntry]:
    """The Nodes are those of the week's end. One that is gone then is not known to be of this cluster before."""
    return [each for each in entries if each.node != "spot-1"]


def test_what_is_kept_is_what_is_read_at_once(week: Opened, whole: Ledger, kept: LedgerStore) -> None:
    found = kept_ledger(week, kept, WEEK)
    names = ("hour", "node", "pool", "gpu_model", "namespace", "workload", "image")
    assert differences(lasting(found.entries), lasting(whole.entries), *names) == {}
    assert {each.node for each in whole.entries} - {each.node for each in lasting(whole.entries)} == {"spot-1"}


def test_the_first_call_reads_all_days_whose_detail_is_kept(week: Opened, whole: Ledger, tmp_path: Path) -> None:
    store = LedgerStore.open(tmp_path / "ledger", "USD")
    keep_ledger(week, store, quiet=True)
    found = kept_ledger(week, store, WEEK)
    assert differences(found.entries, whole.entries, "hour", "node", "workload") == {}
    assert found.capacity_gpu_hours == pytest.approx(whole.capacity_gpu_hours, abs=1e-9)


def test_days_and_totals_are_the_sums_of_the_hours_that_are_final(kept: LedgerStore) -> None:
    final = kept.final()
    assert final == END - 5 * HOUR
    hours = [each for each in kept.hours(START - KEPT_HOURS, END) if each.hour < final]
    of_day = [replace(each, hour=each.hour.replace(hour=0)) for each in hours]
    days = [*kept.days(START - KEPT_HOURS, END)]
    assert differences(days, of_day, "hour", "namespace", "gpu_model") == {}
    # Counters do not fall: what was found lost later is counted apart.
    moved = [
        each
        for one in kept.restated()
        for each in (
            entry(0, -one.gpu_hours, gpu_model=one.gpu_model, row=one.row, unknown=one.unknown),
            entry(0, one.gpu_hours, gpu_model=one.gpu_model, row=Row.LOST, unknown=True),
        )
    ]
    assert differences([*kept.total(), *moved], hours, "namespace", "gpu_model") == {}
    assert {(each.node, each.workload) for each in (*days, *kept.total())} == {("", "")}


def test_hours_that_are_read_again_are_not_counted_again(week: Opened, kept: LedgerStore) -> None:
    def held() -> tuple[object, ...]:
        days, hours = [*kept.days(START, END)], [*kept.hours(START, END)]
        return kept.total(), days, hours, kept.past(), kept.losses(), kept.restated()

    before = held()
    keep_ledger(week, kept, quiet=True)
    assert before == held()


def test_work_that_is_found_lost_later_is_restated_once_with_its_cause(whole: Ledger, kept: LedgerStore) -> None:
    """The hours of dist before 103:00 were final when it failed at 110:00; of train only younger ones were lost."""
    (of_train, *of_dist) = kept.losses()
    assert (of_train.workload, of_train.cause, of_train.unknown) == ("Job/ml/train", LossCause.OUT_OF_MEMORY, False)
    assert of_train.since == START + timedelta(hours=88, minutes=55)
    assert (of_train.at, of_train.gpus, of_train.ratio) == (START + timedelta(hours=90, minutes=50), 1.0, 1.0)
    assert (of_train.gpu_hours, of_train.restated_gpu_hours) == (pytest.approx(1 + 55 / 60), 0.0)
    assert [(each.workload, each.cause, each.unknown) for each in of_dist] == [
        ("PyTorchJob/ml/dist", LossCause.ERROR, True)
    ] * 2
    assert {each.at for each in of_dist} == {START + 110 * HOUR}
    assert [(each.gpu_hours, each.restated_gpu_hours) for each in of_dist] == [
        (pytest.approx(7 + 50 / 60), pytest.approx(50 / 60))
    ] * 2
    assert sum(each.gpu_hours for each in kept.restated()) == pytest.approx(2 * 50 / 60)
    assert {(each.row, each.cause) for each in kept.restated()} == {
        (row, LossCause.ERROR) for row in (Row.USEFUL, Row.FEW_SMS, Row.NO_KERNEL)
    }
    lost = [(each.at, each.node, each.workload, each.gpu_hours) for each in kept.losses()]
    assert lost == [
        (each.at, each.node, each.workload, pytest.approx(each.gpu_hours))
        for each in sorted(whole.losses, key=lambda each: (each.at, each.node))
    ]


def test_what_is_kept_stays_if_telemetry_fails(
    week: Opened, whole: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LedgerStore.open(tmp_path / "ledger", "USD")
    keep_ledger(replace(week, at=START + 60 * HOUR), store, quiet=True)
    before = [*store.hours(START, END)]
    answered = RecordingStore.grid

    def grid(
        source: RecordingStore, expression: Expression, steps: Steps, partition: Partition | None = None
    ) -> list[Series]:
        if expression.selector.metric == "DCGM_FI_PROF_GR_ENGINE_ACTIVE":
            raise QueryFailed("it was refused")
        return answered(source, expression, steps, partition)

    with monkeypatch.context() as patch:
        patch.setattr(RecordingStore, "grid", grid)
        gaps = keep_ledger(replace(week, at=START + 63 * HOUR), store, quiet=True).gaps
    assert GapKind.QUERY_FAILED in {gap.kind for gap in gaps}
    assert [*store.hours(START, END)] == before
    keep_ledger(week, store, quiet=True)
    assert differences(lasting(store.hours(START, END)), lasting(whole.entries), "hour", "node", "workload") == {}


def test_hours_that_nobody_read_in_time_are_a_gap(
    week: Opened, whole: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuwatch.app.ledger.KEPT_HOURS", timedelta(days=2))
    store = LedgerStore.open(tmp_path / "ledger", "USD")
    assert not [gap for gap in keep_ledger(replace(week, at=START + 30 * HOUR), store, quiet=True).gaps if told(gap)]
    (lost,) = (gap for gap in keep_ledger(week, store, quiet=True).gaps if told(gap))
    first = START.replace(minute=0) + 24 * HOUR
    assert lost.detail.startswith(f"nothing was read between {first:%Y-%m-%d %H:%M} and ")
    assert sum(each.gpu_hours for each in store.total()) < whole.capacity_gpu_hours - 24
    assert not [gap for gap in keep_ledger(week, store, quiet=True).gaps if told(gap)]


def told(gap: Gap) -> bool:
    return "nothing was read" in gap.detail


def test_the_job_counts_what_is_kept_and_a_new_leader_goes_on(
    week: Opened, whole: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = iter((START + 40 * HOUR, START + 41 * HOUR, AT))
    settings = Settings(run={"folder": tmp_path})
    monkeypatch.setattr(Replica, "own_sources", lambda _: replace(week, at=next(moments), settings=settings))

    def process() -> tuple[LedgerJob, Metrics]:
        metrics = Metrics()
        return LedgerJob(Replica({}, replace(week, settings=settings), None, None, metrics, Event())), metrics

    def shown(metrics: Metrics) -> float:
        return metrics.registry.get_sample_value("gpuwatch_ledger_final_timestamp_seconds") or 0.0

    job, metrics = process()
    for hours in (34, 35):
        job.run()
        assert shown(metrics) == (START + hours * HOUR).timestamp()
    after, metrics = process()
    after.run()
    assert shown(metrics) == (END - 5 * HOUR).timestamp()
    store = LedgerStore.open(tmp_path / "gpuwatch.state.ledger", "USD")
    assert differences(lasting(store.hours(START, END)), lasting(whole.entries), "hour", "node", "workload") == {}
    by_row: defaultdict[tuple[str, str], float] = defaultdict(float)
    for family in metrics.registry.collect():
        for sample in family.samples:
            if sample.name == "gpuwatch_ledger_gpu_seconds_total":
                by_row[sample.labels["row"], sample.labels["unknown"]] += sample.value / 3600
    expected: defaultdict[tuple[str, str], float] = defaultdict(float)
    for each in store.hours(START - KEPT_HOURS, END):
        if each.hour < END - 5 * HOUR:
            expected[str(each.row), str(each.unknown).lower()] += each.gpu_hours
    assert by_row == pytest.approx(expected, abs=MOMENT)


def test_the_command_reads_what_is_kept_and_says_what_is_not(tmp_path: Path) -> None:
    telemetry, cluster = write_week(tmp_path)
    sources = ("--telemetry", str(telemetry), "--cluster", str(cluster), "--at", AT.isoformat())
    state = ("--state", str(tmp_path / "state"))

    def ledger(*options: str) -> Result:
        return CliRunner().invoke(cli, ["ledger", *sources, *options])

    once, kept, again = ledger("-o", "json"), ledger("-o", "json", *state), ledger("-o", "json", *state)
    assert (tmp_path / "state.ledger").exists()
    assert kept.exit_code == once.exit_code == 0
    assert again.stdout == kept.stdout
    read, found = (msgspec.json.decode(result.stdout, type=Ledger) for result in (once, kept))
    assert differences(found.entries, read.entries, "hour", "node", "pool", "namespace", "workload") == {}
    refused = ledger("--days", "30", "--by", "node", *state)
    assert refused.exit_code == 1
    assert "state.ledger keeps hours for 8 days, and after that days by team, model and row alone" in refused.stderr
    days = msgspec.json.decode(ledger("--days", "30", "--by", "team", "-o", "json", *state).stdout, type=Ledger)
    assert {each.node for each in days.entries} == {""}
    final = [each for each in read.entries if each.hour < END - 5 * HOUR]
    in_week = [each for each in days.entries if each.hour >= START]
    assert differences(in_week, final, "namespace", "gpu_model") == {}


# The store alone


def entry(hour: int, gpu_hours: float = 1.0, **facts: Any) -> LedgerEntry:
    known = {
        "node": "a",
        "pool": "p",
        "gpu_model": "H100",
        "namespace": "ml",
        "workload": "Job/ml/x",
        "row": Row.USEFUL,
    }
    known |= {"unknown": False, "cost": 2.5 * gpu_hours}
    return LedgerEntry(hour=MIDNIGHT + hour * HOUR, gpu_hours=gpu_hours, **{**known, **facts})


PAST = LedgerPast(
    gpus={"GPU-1": ("a", "H100"), "GPU-2": ("a", "H100")},
    worked={
        ("GPU-1", "ml/x-0", "main"): Worked(since_held=True, since_start=None),
        ("GPU-3", "ml/y-0", "main"): Worked(since_held=False, since_start=False),
    },
    checkpoints={"Job/ml/x": (Checkpoint(seen=MIDNIGHT + HOUR, at=MIDNIGHT), Checkpoint(seen=END, at=START))},
)
HOURS = [
    *(entry(hour, 0.75, workload=f"Job/ml/{number}") for hour in range(30) for number in range(3)),
    *(entry(hour, 0.1 + hour / 7, row=Row.USABLE, namespace="", workload="", cost=None) for hour in range(30)),
    *(entry(hour, 0.25, row=Row.SUSPECTED, unknown=True) for hour in range(30)),
]


def file_place(folder: Path) -> StatePlace:
    return StateFile(folder / "ledger")


def cluster_place(_: Path, cluster: MemoryCluster | None = None) -> StatePlace:
    return Checkpoints(cluster or MemoryCluster(), NAMESPACE, LEDGER)


@pytest.mark.parametrize("place", [file_place, cluster_place])
def test_the_store_gives_back_what_was_saved(place: Callable[[Path], StatePlace], tmp_path: Path) -> None:
    store = LedgerStore(place(tmp_path), "USD")
    assert (store.final(), store.past(), store.total()) == (None, LedgerPast(), ())
    store.save(MIDNIGHT, HOURS, MIDNIGHT + 25 * HOUR, PAST)
    assert store.final() == MIDNIGHT + 25 * HOUR
    assert store.past() == PAST
    assert sorted(store.hours(MIDNIGHT, END), key=repr) == sorted(HOURS, key=repr)
    assert {each.hour for each in store.hours(MIDNIGHT + HOUR, MIDNIGHT + 3 * HOUR)} == {
        MIDNIGHT + HOUR,
        MIDNIGHT + 2 * HOUR,
    }
    assert sum(each.gpu_hours for each in store.total()) == pytest.approx(
        sum(each.gpu_hours for each in HOURS if each.hour < MIDNIGHT + 25 * HOUR)
    )
    days = {each.hour: each for each in store.days(MIDNIGHT, END) if each.row is Row.USEFUL}
    assert {day: (each.gpu_hours, each.cost) for day, each in days.items()} == {
        MIDNIGHT: (24 * 3 * 0.75, pytest.approx(2.5 * 24 * 3 * 0.75)),
        MIDNIGHT + 24 * HOUR: (3 * 0.75, pytest.approx(2.5 * 3 * 0.75)),
    }
    assert {each.cost for each in store.total() if each.row is Row.USABLE} == {None}


def test_what_was_kept_in_another_currency_has_no_cost(tmp_path: Path) -> None:
    LedgerStore(file_place(tmp_path), "USD").save(MIDNIGHT, [entry(0)], MIDNIGHT + HOUR, LedgerPast())
    store = LedgerStore(file_place(tmp_path), "EUR")
    store.save(MIDNIGHT + HOUR, [entry(1, 3.0)], MIDNIGHT + 2 * HOUR, LedgerPast())
    assert [each.cost for each in store.hours(MIDNIGHT, END)] == [None, 7.5]
    assert sorted((each.gpu_hours, each.cost) for each in store.total()) == [(1.0, None), (3.0, 7.5)]


def test_hours_that_may_change_are_replaced_and_old_ones_are_deleted(tmp_path: Path) -> None:
    store = LedgerStore(file_place(tmp_path), "USD")
    store.save(MIDNIGHT, HOURS, MIDNIGHT + 25 * HOUR, PAST)
    store.save(MIDNIGHT + 25 * HOUR, [entry(25, 3.0)], MIDNIGHT + 26 * HOUR, PAST)
    later = [*store.hours(MIDNIGHT + 25 * HOUR, END)]
    assert later == [entry(25, 3.0)]
    assert [*store.hours(MIDNIGHT, MIDNIGHT + HOUR)] != []
    after = round(KEPT_HOURS / HOUR)
    store.save(MIDNIGHT + after * HOUR, [entry(after)], MIDNIGHT + (after + 1) * HOUR, PAST)
    assert min(each.hour for each in store.hours(MIDNIGHT, END + WEEK)) == MIDNIGHT + HOUR
    assert MIDNIGHT in {each.hour for each in store.days(MIDNIGHT, END)}
    much_later = round(KEPT_DAYS / HOUR) + 1
    store.save(MIDNIGHT + much_later * HOUR, [entry(much_later)], MIDNIGHT + (much_later + 1) * HOUR, PAST)
    assert MIDNIGHT not in {each.hour for each in store.days(MIDNIGHT, END)}
    useful = [each for each in store.total() if each.row is Row.USEFUL]
    assert sum(each.gpu_hours for each in useful) == pytest.approx(25 * 3 * 0.75 + 3 + 2)


def loss(since: float, at: float, **facts: Any) -> Loss:
    known = {"node": "a", "gpu_model": "H100", "namespace": "ml", "workload": "Job/ml/x", "cause": LossCause.GPU}
    known |= {"unknown": False, "gpus": 1.0, "ratio": 1.0, "gpu_hours": 0.0}
    return Loss(since=MIDNIGHT + since * HOUR, at=MIDNIGHT + at * HOUR, **{**known, **facts})


def lost_hours(store: LedgerStore) -> dict[float, float]:
    hours = [each for each in store.hours(MIDNIGHT, END) if each.row is Row.LOST]
    return {(each.hour - MIDNIGHT) / HOUR: each.gpu_hours for each in hours}


def test_a_loss_takes_the_work_since_its_checkpoint_and_nothing_else(tmp_path: Path) -> None:
    store = LedgerStore(file_place(tmp_path), "USD")
    others = [entry(hour, row=Row.SUSPECTED) for hour in range(4)] + [entry(hour, node="b") for hour in range(4)]
    others += [entry(hour, workload="Job/ml/y") for hour in range(4)]
    mine = [entry(hour, 3.0) for hour in range(4)]
    store.save(MIDNIGHT, [*mine, *others], MIDNIGHT + 4 * HOUR, LedgerPast())
    taken = loss(1.75, 4.0, ratio=2 / 3)
    store.save(MIDNIGHT + 4 * HOUR, [], MIDNIGHT + 4 * HOUR, LedgerPast(), [taken])
    assert lost_hours(store) == {1.0: pytest.approx(0.5), 2.0: pytest.approx(2.0), 3.0: pytest.approx(2.0)}
    (kept,) = store.losses()
    assert kept == replace(taken, gpu_hours=pytest.approx(4.5), restated_gpu_hours=pytest.approx(4.5))
    found = [*store.hours(MIDNIGHT, END)]
    assert [each for each in found if each.row is Row.SUSPECTED or (each.node, each.workload) != ("a", "Job/ml/x")] == (
        sorted(others, key=lambda each: each.hour)
    )
    day = {each.row: (each.gpu_hours, each.cost) for each in store.days(MIDNIGHT, END)}
    assert day[Row.LOST] == (pytest.approx(4.5), pytest.approx(2.5 * 4.5))
    assert day[Row.USEFUL] == (pytest.approx(12 + 8 - 4.5), pytest.approx(2.5 * (12 + 8 - 4.5)))
    total = [(each.row, each.gpu_hours) for each in store.total()]
    assert sum(hours for row, hours in total if row is Row.USEFUL) == 20.0
    assert {row for row, _ in total} == {Row.USEFUL, Row.SUSPECTED}


def test_a_loss_that_is_read_again_with_a_later_end_takes_the_place_of_the_first(tmp_path: Path) -> None:
    """A crash loop goes on while it is read."""
    store = LedgerStore(file_place(tmp_path), "USD")
    store.save(MIDNIGHT, [entry(hour) for hour in range(4)], MIDNIGHT + 4 * HOUR, LedgerPast())
    for end in (4.25, 4.75, 4.75):
        store.save(MIDNIGHT + 4 * HOUR, [], MIDNIGHT + 4 * HOUR, LedgerPast(), [loss(2, end)])
    (kept,) = store.losses()
    assert (kept.at, kept.restated_gpu_hours) == (MIDNIGHT + 4.75 * HOUR, 2.0)
    assert lost_hours(store) == {2.0: 1.0, 3.0: 1.0}
    assert [each.gpu_hours for each in store.restated()] == [2.0]


def test_an_hour_counts_once_wherever_the_process_is_killed() -> None:
    def work(store: LedgerStore) -> None:
        newest = [entry(25, 3.0), entry(26, 4.0)]
        failed = [loss(20, 25, workload="Job/ml/0")]
        store.save(MIDNIGHT + 25 * HOUR, newest, MIDNIGHT + 26 * HOUR, LedgerPast(), failed)

    steps = 0
    while True:
        cluster, left = MemoryCluster(), steps
        LedgerStore(Checkpoints(cluster, NAMESPACE, LEDGER), "USD").save(MIDNIGHT, HOURS, MIDNIGHT + 25 * HOUR, PAST)

        def end(verb: str, what: str, after: bool) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed

        with contextlib.suppress(Killed):
            work(LedgerStore(Checkpoints(cluster.writer(interfere=end), NAMESPACE, LEDGER), "USD"))
        killed = left < 0
        store = LedgerStore(Checkpoints(cluster, NAMESPACE, LEDGER), "USD")
        assert store.final() in (MIDNIGHT + 25 * HOUR, MIDNIGHT + 26 * HOUR)
        work(store)
        useful = [each for each in store.total() if each.row is Row.USEFUL]
        assert sum(each.gpu_hours for each in useful) == pytest.approx(25 * 3 * 0.75 + 3), steps
        assert [*store.hours(MIDNIGHT + 25 * HOUR, END)] == [entry(25, 3.0), entry(26, 4.0)]
        assert [each.gpu_hours for each in store.restated()] == [5 * 0.75], steps
        assert sum(lost_hours(store).values()) == 5 * 0.75
        steps += 1
        if not killed:
            break
    assert steps > 10


@pytest.mark.parametrize(
    "table",
    ["ledgerhour", "ledgerday", "ledgertotal", "ledgerpast", "ledgerloss", "ledgerrestated", "ledgercheckpoint"],
)
def test_a_damaged_piece_is_told_and_the_next_hours_count_once(table: str) -> None:
    place = InCluster(state=LEDGER)
    LedgerStore(Checkpoints(place.cluster, NAMESPACE, LEDGER), "USD").save(MIDNIGHT, HOURS, MIDNIGHT + 25 * HOUR, PAST)
    newest = [each for each in HOURS if each.hour >= MIDNIGHT + 25 * HOUR]
    LedgerStore(Checkpoints(place.cluster, NAMESPACE, LEDGER), "USD").save(
        MIDNIGHT + 25 * HOUR, newest, MIDNIGHT + 25 * HOUR, PAST, [loss(20, 25, workload="Job/ml/0")]
    )
    for name in [each for each in place.pieces() if each.startswith(table)]:
        place.spoil(name, lambda piece: piece[:-5] + b"wrong")
    store = LedgerStore(Checkpoints(place.cluster, NAMESPACE, LEDGER), "USD")
    start = store.final() or MIDNIGHT
    assert (start == MIDNIGHT) == (table == "ledgertotal")
    store.save(start, [each for each in HOURS if each.hour >= start], MIDNIGHT + 30 * HOUR, PAST)
    days = [*store.days(MIDNIGHT, END)]
    if table != "ledgertotal":  # whose loss is told when it is looked for
        assert [*store.hours(MIDNIGHT, END)]
    store.past(), store.losses(), store.restated()
    (gap,) = store.gaps
    assert gap.kind is GapKind.BAD_INPUT
    assert "a part is damaged" in gap.detail
    # A counter that begins anew has nothing to take off.
    assert [each.gpu_hours for each in store.restated()] == (
        [] if table in ("ledgertotal", "ledgerrestated") else [3.75]
    )
    assert sum(each.gpu_hours for each in days) <= sum(each.gpu_hours for each in HOURS) + 1e-9
    assert sum(each.gpu_hours for each in store.total()) <= sum(each.gpu_hours for each in HOURS) + 1e-9


def test_ten_thousand_gpus_take_less_than_80_mb(tmp_path: Path) -> None:
    """A Pod on each GPU, and three rows of an hour each: eight days of detail, and 400 of sums."""
    store, rng = LedgerStore(file_place(tmp_path), "USD"), np.random.default_rng(7)
    pods = [(f"gpu-{gpu // 8}", f"team-{gpu % 100}", f"Job/team-{gpu % 100}/train-{gpu}") for gpu in range(10_000)]
    hours = [
        entry(hour, float(share), node=node, namespace=team, workload=job, row=row)
        for hour in range(2)
        for node, team, job in pods
        for row, share in zip((Row.USEFUL, Row.FEW_SMS, Row.NO_KERNEL), rng.dirichlet((4, 2, 1)), strict=True)
    ]
    store.save(MIDNIGHT, hours, MIDNIGHT, LedgerPast())
    of_hour = (tmp_path / "ledger").stat().st_size / 2
    store.save(MIDNIGHT, hours, MIDNIGHT + 2 * HOUR, LedgerPast())
    of_day = (tmp_path / "ledger").stat().st_size - 2 * of_hour
    past = LedgerPast(
        gpus={f"GPU-{gpu:032}": (pods[gpu][0], "H100") for gpu in range(10_000)},
        worked={
            (f"GPU-{gpu:032}", f"{team}/train-{gpu}-0", "main"): Worked(since_held=True, since_start=True)
            for gpu, (_, team, _) in enumerate(pods)
        },
    )
    store.save(MIDNIGHT + 2 * HOUR, [], MIDNIGHT + 2 * HOUR, past)
    of_past = (tmp_path / "ledger").stat().st_size - 2 * of_hour - of_day
    assert 192 * of_hour + 400 * of_day + of_past < 80e6
