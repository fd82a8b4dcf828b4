"""A fleet whose lives are drawn by a seed, minute by minute and not at whole steps, with its true ledger.

What a minute is, is what the script meant by it, and no rule of the ledger is asked. Lives are as artificial as each
row needs to hold a few percent of the hours. A table of seeds: `PYTHONPATH=tests:. python -m ledger.fleet 1000 1001`.
"""

import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from gpuwatch.app.ledger import read_ledger
from gpuwatch.app.settings import Settings
from gpuwatch.app.sources import open_sources
from gpuwatch.facts.model.ledger import Ledger, Row
from gpuwatch.sources.telemetry.series import FloatArray, RecordedSeries, mark_stale
from kube.cluster_json import as_list, node
from lab.simulate.recording import write_recording
from telemetry.timeline import gpu, held

START = datetime(2026, 3, 2, tzinfo=UTC)
LEAD, DAYS = 6 * 60, 4
MINUTES = LEAD + DAYS * 1440
END = START + timedelta(days=DAYS)
AT = END + timedelta(minutes=2)
TIMES = (np.arange(MINUTES + 3) - LEAD) * 60 + 17 + int(START.timestamp())
A100 = "NVIDIA A100-SXM4-80GB"
TARGET = {"job": "kube-state-metrics", "instance": "10.0.0.9:8080"}

ROLES = (
    ("jobs",) * 6 + ("gangs",) * 4 + ("idle",) * 5 + ("restarts",) * 4 + ("out",) * 5 + ("outside",) * 2 + ("mig",) * 2
)
"""Of each Node, which has four GPUs."""

_ROW = {
    "pull": Row.PULL,
    "init": Row.INIT,
    "load": Row.LOAD,
    "gang": Row.GANG,
    "crash": Row.RESTART,
    "ending": Row.RESTART,
    "pause": Row.NO_KERNEL,
    "rest": Row.RESTING,
    "never": Row.NEVER_USED,
    "low": Row.ABANDONED,
    "model": Row.MODEL_LOADED,
    "suspected": Row.SUSPECTED,
}


@dataclass
class Life:
    """A Pod: what it does, for how many minutes."""

    name: str
    owner: tuple[str, str]
    card: "Card"
    begin: int
    spans: list[tuple[str, int]]
    engine: float

    @property
    def end(self) -> int:
        return self.begin + sum(minutes for _, minutes in self.spans)


@dataclass
class Card:
    node: str
    number: int
    labels: dict[str, str] = field(default_factory=dict)
    share: float = 1.0
    lives: list[Life] = field(default_factory=list)
    outside: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class Fleet:
    """truth: GPU-hours of the days after the lead, by row. waits: minutes in which a Pod waits."""

    rng: np.random.Generator
    cards: list[Card] = field(default_factory=list)
    events: dict[str, list[tuple[Row, int, int]]] = field(default_factory=dict)
    waits: list[tuple[int, int]] = field(default_factory=list)
    truth: dict[Row, float] = field(default_factory=lambda: defaultdict(float))


def draw(seed: int) -> Fleet:
    fleet = Fleet(np.random.default_rng(seed))
    rng, number = fleet.rng, 0
    for index, role in enumerate(ROLES):
        name = f"{role}-{index}"
        sliced = {"GPU_I_ID": "1", "GPU_I_PROFILE": "3g.40gb"} if role == "mig" else {}
        cards = [Card(name, number + each, sliced, 0.5 if sliced else 1.0) for each in range(4)]
        number += 4
        fleet.cards += cards
        if role in ("out", "outside"):
            _events(fleet, name, role, cards)
        elif role == "gangs":
            for pair in (cards[:2], cards[2:]):
                _gangs(fleet, pair)
        else:
            for card in cards:
                _alone(fleet, card, role)
    begin = 400
    while begin < MINUTES - 700:
        fleet.waits.append((begin, begin + int(rng.integers(200, 420))))
        begin = fleet.waits[-1][1] + int(rng.integers(300, 900))
    _count(fleet)
    return fleet


def _alone(fleet: Fleet, card: Card, role: str) -> None:
    rng = fleet.rng
    begin = int(rng.integers(70, 200))
    while True:
        spans = _spans(rng, role)
        length = sum(minutes for _, minutes in spans)
        if begin + length > MINUTES - 20:
            return
        name = f"{role}-{card.number}-{len(card.lives)}"
        life = Life(name, ("StatefulSet", name), card, begin, spans, float(rng.uniform(0.4, 0.95)))
        card.lives.append(life)
        begin = life.end + int(rng.integers(15, 140))


def _spans(rng: np.random.Generator, role: str) -> list[tuple[str, int]]:
    def some(low: int, high: int) -> int:
        return int(rng.integers(low, high))

    start = [("pull", some(20, 90)), ("init", some(180, 320)), ("load", some(30, 110))]
    work = [("work", some(120, 400)), ("pause", some(6, 24)), ("work", some(40, 120))]
    if role == "jobs":
        return [*start, *work, ("rest", some(150, 285)), *work, ("ending", some(5, 20))]
    if role == "mig":
        return [("pull", some(5, 20)), ("load", some(10, 30)), *work]
    if role == "restarts":
        crashes = [(("crash", some(40, 150)), ("load", some(20, 60)), ("work", some(60, 200))) for _ in range(3)]
        return [("load", some(20, 60)), ("work", some(60, 200)), *(span for each in crashes for span in each)]
    kind = str(rng.choice([*["never", "low", "model"] * 2, *["suspected"] * 7]))
    if kind == "never":
        return [("load", 120), ("never", some(400, 1200))]
    long = some(120, 285) if kind == "suspected" else some(330, 1200)
    return [("load", some(10, 40)), ("work", some(40, 120)), (kind, long)]


def _gangs(fleet: Fleet, pair: Sequence[Card]) -> None:
    rng, begin = fleet.rng, int(fleet.rng.integers(70, 200))
    while True:
        late, load, work = (int(rng.integers(low, high)) for low, high in ((150, 320), (20, 60), (100, 240)))
        if begin + 10 + late + load + work > MINUTES - 20:
            return
        owner = ("PyTorchJob", f"gang-{pair[0].number}-{len(pair[0].lives)}")
        engine = float(rng.uniform(0.4, 0.95))
        first = [("pull", 10), ("gang", late), ("load", load), ("work", work)]
        second = [("pull", 10 + late), ("load", load), ("work", work)]
        for index, (card, spans) in enumerate(zip(pair, (first, second), strict=True)):
            card.lives.append(Life(f"{owner[1]}-{index}", owner, card, begin, spans, engine))
        begin = pair[0].lives[-1].end + int(rng.integers(15, 140))


def _events(fleet: Fleet, name: str, role: str, cards: Sequence[Card]) -> None:
    rng, begin = fleet.rng, 100
    kinds = (Row.ABSENT, Row.DEGRADED, Row.MAINTENANCE)
    while role == "outside" or len(fleet.events.setdefault(name, [])) < 12:
        end = begin + int(rng.integers(120, 500))
        if end > MINUTES - 60:
            return
        if role == "outside":
            for card in cards:
                card.outside.append((begin, end))
        else:
            fleet.events[name].append((kinds[len(fleet.events[name]) % 3], begin, end))
        begin = end + int(rng.integers(60, 300))


def _count(fleet: Fleet) -> None:
    waits = np.zeros(MINUTES, np.bool_)
    for begin, end in fleet.waits:
        waits[begin:end] = True
    for card in fleet.cards:
        rows = np.where(waits, Row.WAITED_FOR, Row.USABLE).astype(object)
        for row, begin, end in fleet.events.get(card.node, ()):
            rows[begin:end] = row
        for begin, end in card.outside:
            rows[begin:end] = Row.OUTSIDE
        for life in card.lives:
            at = life.begin
            for kind, minutes in life.spans:
                rows[at : at + minutes] = _ROW.get(kind)
                seen = max(at + minutes - max(at, LEAD), 0) / 60 * card.share
                if kind == "work":
                    fleet.truth[Row.NO_KERNEL] += seen * (1 - life.engine)
                    fleet.truth[Row.FEW_SMS] += seen * life.engine * 0.4
                    fleet.truth[Row.USEFUL] += seen * life.engine * 0.6
                at += minutes
        for row in rows[LEAD:]:
            if row is not None:
                fleet.truth[row] += card.share / 60
        fleet.truth[Row.UNREACHABLE] += (1 - card.share) * DAYS * 24


# As series


def _recorded(metric: str, labels: dict[str, str], values: FloatArray) -> RecordedSeries:
    there = ~np.isnan(values)
    ended = np.concatenate(([False], there[:-1])) & ~there
    chosen = there | ended
    values = values.copy()
    mark_stale(values, ended)
    return RecordedSeries(metric, labels, TIMES[chosen] * 1000, values[chosen])


def _line(*pieces: tuple[int, int, float], start: float = np.nan) -> FloatArray:
    values = np.full(len(TIMES), start)
    for begin, end, value in pieces:
        values[begin:end] = value
    return values


def series(fleet: Fleet) -> Iterator[RecordedSeries]:
    for name in dict.fromkeys(card.node for card in fleet.cards):
        events = fleet.events.get(name, ())
        lost = [(begin, end) for row, begin, end in events if row is Row.ABSENT]
        closed = [(begin, end, 1.0) for row, begin, end in events if row is not Row.ABSENT]
        of, gpus = TARGET | {"node": name}, {"resource": "nvidia_com_gpu"}
        ready = _line(*((*span, 0.0) for span in lost), start=1.0)
        yield _recorded("kube_node_status_condition", of | {"condition": "Ready", "status": "true"}, ready)
        yield _recorded("kube_node_spec_unschedulable", of, _line(*closed, start=0.0))
        for what in ("capacity", "allocatable"):
            yield _recorded(f"kube_node_status_{what}", of | gpus, _line(start=4.0))
        up = _line(*((*span, 0.0) for span in lost), start=1.0)
        yield _recorded("up", {"job": "dcgm", "instance": f"{name}:9400"}, up)
        misses = fleet.rng.random(len(TIMES)) < 0.005  # failed scrapes
        for card in (card for card in fleet.cards if card.node == name):
            yield from _of_card(fleet, card, np.where(misses | (up == 0), np.nan, 1.0))
    for card in fleet.cards:
        for number, life in enumerate(card.lives):
            yield from _of_life(life, f"{card.number}-{number}")
    waiting = TARGET | {"namespace": "ml", "pod": "waits", "container": "main", "resource": "nvidia_com_gpu"}
    yield _recorded("kube_pod_container_resource_requests", waiting, _line(*((*span, 8.0) for span in fleet.waits)))


def _of_card(fleet: Fleet, card: Card, scraped: FloatArray) -> Iterator[RecordedSeries]:
    labels = gpu(card.number, card.node, modelName=A100, **card.labels)
    free = _line(*((life.begin, life.end, np.nan) for life in card.lives), start=1.0)
    engine = _line(*((*span, 0.5) for span in card.outside), start=0.0)
    yield _recorded("DCGM_FI_PROF_GR_ENGINE_ACTIVE", labels, engine * free * scraped)
    yield _recorded("DCGM_FI_DEV_FB_USED", labels, (4 + 6000 * engine) * free * scraped)
    broken = [(begin, end, 79.0) for row, begin, end in fleet.events.get(card.node, ()) if row is Row.DEGRADED]
    if broken and not card.number % 4:
        yield _recorded("DCGM_FI_DEV_XID_ERRORS", labels, _line(*broken, start=0.0) * scraped)
    for life in card.lives:
        pieces: dict[str, list[tuple[int, int, float]]] = {"engine": [], "sm": [], "mib": []}
        at = life.begin
        for kind, minutes in life.spans:
            active = life.engine if kind == "work" else 0.0
            mib = {"low": 300.0, "pull": 4.0, "init": 4.0, "crash": 4.0}.get(kind, 40_000.0)
            for name, value in (("engine", active), ("sm", active * 0.6), ("mib", mib)):
                pieces[name].append((at, at + minutes, value))
            at += minutes
        of = labels | held(life.name, "ml")
        yield _recorded("DCGM_FI_PROF_GR_ENGINE_ACTIVE", of, _line(*pieces["engine"]) * scraped)
        yield _recorded("DCGM_FI_PROF_SM_ACTIVE", of, _line(*pieces["sm"]) * scraped)
        yield _recorded("DCGM_FI_DEV_FB_USED", of, _line(*pieces["mib"]) * scraped)


def _of_life(life: Life, uid: str) -> Iterator[RecordedSeries]:
    of = TARGET | {"namespace": "ml", "pod": life.name, "uid": uid}
    running, init, deleting = [], [], []
    started: list[tuple[int, int, float]] = []
    at, begun = life.begin, 0.0
    for kind, minutes in life.spans:
        until = at + minutes
        on = kind not in ("pull", "init", "crash")
        begun = (begun or float(TIMES[at]) - 7) if on else 0.0
        running.append((at, until, float(on)))
        started += [(at, until, begun)] if on else []
        init += [(at, until, 1.0)] if kind == "init" else []
        deleting += [(at, until, float(TIMES[until]))] if kind == "ending" else []
        at = until
    main = of | {"container": "main"}
    yield _recorded("kube_pod_container_status_running", main, _line(*running))
    yield _recorded("kube_pod_container_state_started", main, _line(*started))
    if init:
        there = (life.begin, life.end, 0.0)
        yield _recorded("kube_pod_init_container_status_running", of | {"container": "get"}, _line(there, *init))
    if deleting:
        yield _recorded("kube_pod_deletion_timestamp", of, _line(*deleting))
    asked = main | {"node": life.card.node, "resource": "nvidia_com_gpu"}
    yield _recorded("kube_pod_container_resource_requests", asked, _line((life.begin, life.end, 1.0)))
    owner = dict(zip(("owner_kind", "owner_name"), life.owner, strict=True)) | {"owner_is_controller": "true"}
    yield _recorded("kube_pod_owner", of | owner, _line((life.begin, life.end, 1.0)))


def ledger_of(fleet: Fleet, folder: Path) -> Ledger:
    telemetry, cluster = folder / "fleet.parquet", folder / "cluster"
    write_recording(telemetry, sorted(series(fleet), key=lambda each: (each.metric, sorted(each.labels.items()))))
    cluster.mkdir()
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-03-05T23:30:00Z"}
    offers = {"nvidia.com/gpu": "4", "cpu": "64", "memory": "512Gi", "pods": "110"}
    names = dict.fromkeys(card.node for card in fleet.cards)
    nodes = [node(name, {"nvidia.com/gpu.product": "A100"}, offers, conditions=[ready]) for name in names]
    for kind, items in (("nodes", nodes), ("pods", [])):
        (cluster / f"{kind}.json").write_text(json.dumps(as_list(*items)))
    options = {"telemetry": (telemetry,), "cluster": cluster, "no_cluster": False, "prometheus": None, "at": AT}
    return read_ledger(open_sources(options, Settings()), END - START, quiet=True)


@dataclass(frozen=True)
class Told:
    """GPU-hours of a row: in truth, known, and in its unknown twin."""

    true: float
    known: float
    unknown: float


def compared(fleet: Fleet, ledger: Ledger) -> dict[Row, Told]:
    known: defaultdict[Row, float] = defaultdict(float)
    unknown: defaultdict[Row, float] = defaultdict(float)
    for entry in ledger.entries:
        (unknown if entry.unknown else known)[entry.row] += entry.gpu_hours
    rows = {*fleet.truth, *known, *unknown}
    return {row: Told(fleet.truth.get(row, 0.0), known[row], unknown[row]) for row in Row if row in rows}


def main() -> None:
    for seed in map(int, sys.argv[1:]):
        fleet = draw(seed)
        with tempfile.TemporaryDirectory() as folder:
            ledger = ledger_of(fleet, Path(folder))
        total = sum(fleet.truth.values())
        print(f"seed {seed}: {total:.1f} GPU-hours in truth, {ledger.capacity_gpu_hours:.1f} in the ledger")
        for row, told in compared(fleet, ledger).items():
            off = told.known - told.true
            own = f"{off / told.true:+.1%} of its own" if told.true else ""
            print(
                f"  {row:12} true {told.true:7.1f} ({told.true / total:5.1%})  known {told.known:7.1f}  "
                f"unknown {told.unknown:6.1f}  {off / total:+.2%} of all  {own}"
            )


if __name__ == "__main__":
    main()
