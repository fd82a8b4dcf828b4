"""A week written by hand, as series and as kubectl's lists, with its GPU-hours worked out on paper.

Three Nodes with eight GPUs, and one that comes and goes. All events are at whole steps of five minutes; scrapes are a
minute apart, and 17 s after the minute. The series begin six hours before the week and end a minute after it. Moments
are "hours:minutes" since its start. The ledger reads in stretches that end at 19:00, 43:00, … 163:00; what could tear
there lies across.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.model.ledger import Row
from gpuwatch.sources.telemetry.series import RecordedSeries, mark_stale
from kube.cluster_json import as_list, container, controlled_by, node, owner, pod
from lab.simulate.recording import write_recording
from telemetry.timeline import gpu, held

START = datetime(2026, 3, 2, tzinfo=UTC)
END = START + timedelta(days=7)
AT = END + timedelta(minutes=2)
FIRST, LAST = "-6:00", "168:05"

A100, H100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"
BIG, COLD, SLICED, SPOT = "a100-1", "h100-1", "h100-2", "spot-1"
TARGET = {"job": "kube-state-metrics", "instance": "10.0.0.9:8080"}


def clock(moment: str) -> int:
    """Seconds since START."""
    hours, _, minutes = moment.partition(":")
    return int(hours) * 3600 + int(minutes) * 60


TIMES = np.arange(clock(FIRST), clock(LAST), 60) + 17


class Use(NamedTuple):
    """What a device does up to this moment, from the one before on. pod: '' for a free device, None where it is not
    there. mib: memory in use."""

    until: str
    pod: str | None = ""
    engine: float = 0.0
    sm: float = 0.0
    mib: float = 4.0


@dataclass(frozen=True, kw_only=True)
class Card:
    """The rows of one GPU, MIG instance or share."""

    node: str
    number: int
    model: str
    uses: tuple[Use, ...]
    more: Mapping[str, str]


def card(on: str, number: int, model: str, *uses: Use, **more: str) -> Card:
    return Card(node=on, number=number, model=model, uses=uses, more=more)


CARDS = (
    # Pulls its image for two hours, then works.
    card(BIG, 1, A100, Use("18:00"), Use("20:00", "tune-q2l"), Use(LAST, "tune-q2l", 0.9, 0.6, 40_000)),
    # Works, is silent for 40 hours, and takes ten minutes to end. Then a worker that waits for the other on card 9.
    card(
        *(BIG, 2, A100, Use("30:00", "night-28-x", 0.9, 0.6, 40_000), Use("70:10", "night-28-x", mib=500)),
        *(Use("101:00"), Use("102:10", "dist-0"), Use("110:00", "dist-0", 0.9, 0.6, 40_000), Use(LAST)),
    ),
    # Init and load; then a restart with another load.
    card(
        *(BIG, 3, A100, Use("42:45"), Use("43:15", "train-7k"), Use("90:50", "train-7k", 0.9, 0.6, 40_000)),
        *(Use("91:35", "train-7k"), Use(LAST, "train-7k", 0.9, 0.6, 40_000)),
    ),
    # Half of it works all week. Beside it a quarter is free, and a quarter no instance; after 120 hours a half is free.
    # Rows of the whole card count for nothing.
    card(BIG, 4, A100, Use(LAST, "embed-5d-a", 0.8, 0.4, 20_000), GPU_I_ID="1", GPU_I_PROFILE="3g.40gb"),
    card(BIG, 4, A100, Use("120:00"), GPU_I_ID="5", GPU_I_PROFILE="2g.20gb"),
    card(BIG, 4, A100, Use("120:00", None), Use(LAST), GPU_I_ID="2", GPU_I_PROFILE="3g.40gb"),
    card(BIG, 4, A100, Use(LAST, "", 0.4, 0.2, 20_000)),
    card(COLD, 5, H100, Use("60:00"), Use("90:00", "quick-z", 0.7, 0.5, 40_000), Use(LAST)),
    # Breaks, and is replaced 20 hours later; a process that Kubernetes does not know uses the new one for an hour.
    card(COLD, 6, H100, Use("80:00")),
    card(COLD, 7, H100, Use("100:00", None), Use("120:00"), Use("121:00", "", 0.5, 0.3, 20_000), Use(LAST)),
    # A pause of twenty minutes, and a rest of two hours between work.
    card(
        *(SLICED, 8, H100, Use("100:00", "serve-6f-b", 0.5, 0.3, 20_000), Use("100:20", "serve-6f-b", mib=20_000)),
        *(Use("150:00", "serve-6f-b", 0.5, 0.3, 20_000), Use("152:00", "serve-6f-b", mib=20_000)),
        Use(LAST, "serve-6f-b", 0.5, 0.3, 20_000),
        vgpu="0",
    ),
    # Two notebooks share it; then a Pod that never works; one that keeps its model loaded; a worker that pulls for an
    # hour; and one of the notebooks again, under its old name.
    card(
        *(SLICED, 9, H100, Use("20:00"), Use("50:00", "ann-0", 0.8, 0.4, 10_000), Use("60:00"), Use("75:00", "lost-c")),
        *(Use("90:00"), Use("92:00", "chat-9b-d", 0.9, 0.6, 30_000), Use("100:00", "chat-9b-d", mib=30_000)),
        *(Use("101:00"), Use("102:10", "dist-1"), Use("110:00", "dist-1", 0.9, 0.6, 40_000)),
        *(Use("145:00"), Use("145:30", "ann-0"), Use("150:00", "ann-0", 0.8, 0.4, 10_000), Use(LAST)),
        vgpu="0",
    ),
    card(SLICED, 9, H100, Use("20:00", None), Use("50:00", "bob-0", 0.8, 0.4, 10_000), vgpu="1"),
    # Gets a MIG layout with one instance, an eighth.
    card(SPOT, 10, A100, Use("50:00", None), Use("80:00")),
    card(SPOT, 10, A100, Use("80:00", None), Use("100:00"), GPU_I_ID="7", GPU_I_PROFILE="1g.10gb"),
)
NOT_SCRAPED = {COLD: [("110:00", "111:00")], SLICED: [("138:30", "139:30")]}
KUBE_STATE_METRICS_DOWN = (("85:00", "85:20"), ("140:00", "140:20"))
GPUWATCH_AWAY = ("12:00", "12:30")
# Physical free GPUs by row, as gpuwatch counts them: in general all are usable. Card 3 is beside too little CPU for an
# hour; quick-z waits for card 5; of half of the free ones the landing cannot tell.
FREE = {
    ("A100-SXM4-80GB", "usable"): [(FIRST, LAST, 2.0), ("10:00", "11:00", 1.25)],
    ("A100-SXM4-80GB", "unreachable"): [(FIRST, LAST, 0.0), ("10:00", "11:00", 1.0)],
    ("A100-SXM4-80GB", "waited_for"): [(FIRST, LAST, 0.0)],
    ("A100-SXM4-80GB", "unknown"): [(FIRST, LAST, 0.0)],
    ("H100-SXM5-80GB", "usable"): [(FIRST, LAST, 3.0), ("57:00", "60:00", 2.0), ("131:00", "132:00", 1.5)],
    ("H100-SXM5-80GB", "unreachable"): [(FIRST, LAST, 0.0)],
    ("H100-SXM5-80GB", "waited_for"): [(FIRST, LAST, 0.0), ("57:00", "60:00", 1.0)],
    ("H100-SXM5-80GB", "unknown"): [(FIRST, LAST, 0.0), ("131:00", "132:00", 1.5)],
}
NEEDS_RESET = ("125:30", "130:30")  # card 7's recovery action


@dataclass(frozen=True, kw_only=True)
class Life:
    """A Pod as kube-state-metrics tells of it. owners: kind and name, the nearest first. runs, init: from, to. reasons:
    how runs ended. saved: its owner's last checkpoint. image: '' if nothing tells."""

    name: str
    owners: tuple[tuple[str, str], ...]
    node: str
    bound: str
    runs: tuple[tuple[str, str], ...]
    init: tuple[str, str] | None = None
    created: str = ""
    deleting: str = ""
    gone: str = LAST
    reasons: tuple[str, ...] = ()
    saved: str = ""
    image: str = ""
    resource: str = "nvidia.com/gpu"


def life(name: str, on: str, owners: str, bound: str, *runs: str, **more: Any) -> Life:
    """owners: "ReplicaSet/serve-6f Deployment/serve". runs: "from-to", by default from `bound` to the end."""
    spans = tuple((begin, end) for begin, _, end in (each.partition("-") for each in runs))
    of = tuple((kind, name) for kind, _, name in (each.partition("/") for each in owners.split()))
    return Life(name=name, owners=of, node=on, bound=bound, runs=spans or ((bound, more.get("gone", LAST)),), **more)


TRAINS = "registry.example/ml/train:v2"
LIVES = (
    life("tune-q2l", BIG, "Job/tune", "18:00", f"20:00-{LAST}"),
    life("night-28-x", BIG, "Job/night-28 CronJob/night", "-10:00", deleting="70:00", gone="70:10"),
    life(
        *("train-7k", BIG, "Job/train", "42:45", "42:55-90:50", f"91:05-{LAST}"),
        init=("42:45", "42:55"),
        reasons=("OOMKilled",),
        saved="88:52",
        image=TRAINS,
    ),
    life("embed-5d-a", BIG, "ReplicaSet/embed-5d Deployment/embed", "-30:00", resource="nvidia.com/mig-3g.40gb"),
    life("quick-z", COLD, "Job/quick", "60:00", "60:00-90:00", created="57:00", gone="95:00", reasons=("Completed",)),
    life("serve-6f-b", SLICED, "ReplicaSet/serve-6f Deployment/serve", "-30:00"),
    life("ann-0", SLICED, "StatefulSet/ann", "20:00", gone="50:00"),
    life("bob-0", SLICED, "StatefulSet/bob", "20:00", gone="50:00"),
    life("lost-c", SLICED, "Job/lost", "60:00", gone="75:00"),
    life("chat-9b-d", SLICED, "ReplicaSet/chat-9b Deployment/chat", "90:00", gone="100:00"),
    life("dist-0", BIG, "PyTorchJob/dist", "101:00", gone="110:00", image=TRAINS),
    life(
        *("dist-1", SLICED, "PyTorchJob/dist", "101:00", "102:00-110:00"),
        gone="111:00",
        reasons=("Error",),
        image=TRAINS,
    ),
    life("ann-0", SLICED, "StatefulSet/ann", "145:00", "145:30-150:00", gone="150:00"),
)
NOT_OFFERED = {COLD: ("80:00", "100:00", 1.0), SLICED: ("120:00", "122:00", 2.0)}  # a GPU that broke; two shares
CORDONED = ("40:00", "50:00")  # the Node COLD
FENCED = ("126:00", "130:00")
(NOT_READY,) = NOT_SCRAPED[COLD]
THERE = {BIG: (FIRST, LAST), COLD: (FIRST, LAST), SLICED: (FIRST, LAST), SPOT: ("50:00", "100:00")}
CAPACITY = {
    BIG: {
        "nvidia_com_gpu": [(FIRST, LAST, 3.0)],
        "nvidia_com_mig_3g_40gb": [(FIRST, "120:00", 1.0), ("120:00", LAST, 2.0)],
        "nvidia_com_mig_2g_20gb": [(FIRST, "120:00", 1.0)],
    },
    COLD: {"nvidia_com_gpu": [(FIRST, LAST, 2.0)]},
    SLICED: {"nvidia_com_gpu": [(FIRST, LAST, 4.0)]},  # two shares of each
    SPOT: {"nvidia_com_gpu": [("50:00", "80:00", 1.0)], "nvidia_com_mig_1g_10gb": [("80:00", "100:00", 1.0)]},
}

# Hours of work with engine and SM activity 0.9 and 0.6: card 1 148 h, 2 30 h, 3 124 h, of which train-7k lost 1 h 55
# since its checkpoint, chat-9b-d 2 h. 0.8 and 0.4: half of card 4 168 h, half of 9 twice 30 h, ann-0 4½ h. 0.5 and
# 0.3: 8.
_LOST = 1 + 55 / 60
_TUNED, _MEDIUM, _SERVED = 148 + 30 + 124 - _LOST + 2, 84 + 30 + 4.5, 168 - 2 - 1 - 1 / 3
# Of cards 1, 3 and ¼ of 4 one for an hour; of 5, 6 and 9 one for three hours; of 5, 7 and 9 half for an hour. All of
# these but 7 were free for the half of an hour in which gpuwatch was away.
_STARVED, _WAITED, _UNTOLD, _AWAY = 1.0, 3.0, 1.5, (2.25 + 3) / 2
_TAKEN = _STARVED + _WAITED + _UNTOLD + _AWAY
CAPACITY_GPU_HOURS = 8 * 168 + 50.0
EXPECTED = {
    # Cards 1, 2, 3: 18 h; from 70:10 less the worker's 9 h; 42 h 45. 4: ¼·120 + ½·48. 5: 60 − 10, and 78 − 1 − 4.
    # 6: 80 − 10. 7: 68 − 1 − 1 − 4. 9: 20 + 10 + 15 + (68 − 9 − 1 − 2 − 5). 10: 30 + ⅛·20. Less two times ⅓ h in which
    # nothing was known of Nodes: 2, ¼ of 4, 9 and ⅛ of 10; 2, ½ of 4, 5, 7 and 9. Less what gpuwatch counted otherwise.
    (Row.USABLE, False): 18 + 88 + 5 / 6 + 42.75 + 54 + (50 + 73) + (70 + 62) + 96 + 32.5 - (2.375 + 4.5) / 3 - _TAKEN,
    # Card 9 while it was not scraped; those times, with the rest of ½ of 4 and all of 10.
    (Row.USABLE, True): 1 + (3.5 + 4.5 - 0.25 - 0.875) / 3,
    (Row.UNREACHABLE, True): (0.25 + 0.875) / 3 + _AWAY + _UNTOLD,
    (Row.WAITED_FOR, False): _WAITED,
    # ¼ of card 4 for 120 h; ⅞ of 10 for 20 h; and what lay beside too little CPU.
    (Row.UNREACHABLE, False): 30.0 + 17.5 - (0.25 + 0.875) / 3 + _STARVED,
    (Row.MAINTENANCE, False): 20.0,  # 5 and 6
    (Row.DEGRADED, False): 8.0,  # 5 and 7
    (Row.ABSENT, False): 20.0 + 2 + 2,  # card 6 until 7 came; 5 and 7, whose Node was not Ready; 9, not offered
    (Row.OUTSIDE, False): 1.0,
    (Row.PULL, False): 2 + 1 + 0.5,  # tune-q2l, dist-1, ann-0
    (Row.INIT, False): 1 / 6,
    (Row.LOAD, False): 1 / 3 + 0.5 + 2 + 2 / 6,  # train-7k twice; lost-c's first two hours; dist-0 and dist-1
    (Row.GANG, False): 1.0,  # dist-0
    (Row.RESTART, False): 1 / 4 + 1 / 6,  # train-7k; night-28-x while it was deleted
    (Row.NEVER_USED, False): 13.0,
    (Row.ABANDONED, False): 40.0,
    (Row.MODEL_LOADED, False): 8.0,
    (Row.RESTING, False): 2.0,
    (Row.UNMEASURED, True): 1.0,
    (Row.LOST, False): _LOST,
    (Row.LOST, True): 15 + 2 / 3,  # dist-0 and dist-1 since their starts, as nobody knows what they saved
    (Row.NO_KERNEL, False): 0.1 * _TUNED + 0.2 * _MEDIUM + 0.3 * 30 + 0.5 * _SERVED + 1 / 3,  # card 5, and 8's pause
    (Row.FEW_SMS, False): 0.3 * _TUNED + 0.4 * _MEDIUM + 0.2 * 30 + 0.2 * _SERVED,
    (Row.USEFUL, False): 0.6 * _TUNED + 0.4 * _MEDIUM + 0.5 * 30 + 0.3 * _SERVED,
}
OF_WORKLOADS = {
    ("Job/ml/tune", Row.PULL): 2.0,
    ("Job/ml/tune", Row.USEFUL): 88.8,
    ("CronJob/ml/night", Row.ABANDONED): 40.0,
    ("CronJob/ml/night", Row.RESTART): 1 / 6,
    ("Job/ml/train", Row.INIT): 1 / 6,
    ("Job/ml/train", Row.LOAD): 5 / 6,
    ("Job/ml/train", Row.RESTART): 0.25,
    ("Deployment/ml/embed", Row.USEFUL): 33.6,
    ("Deployment/ml/serve", Row.UNMEASURED): 1.0,
    ("Deployment/ml/serve", Row.RESTING): 2.0,
    ("Deployment/ml/chat", Row.MODEL_LOADED): 8.0,
    ("StatefulSet/ml/ann", Row.USEFUL): 6.0 + 1.8,
    ("StatefulSet/ml/ann", Row.PULL): 0.5,
    ("StatefulSet/ml/bob", Row.USEFUL): 6.0,
    ("Job/ml/lost", Row.NEVER_USED): 13.0,
    ("PyTorchJob/ml/dist", Row.GANG): 1.0,
    ("PyTorchJob/ml/dist", Row.LOAD): 1 / 3,
    ("Job/ml/train", Row.LOST): _LOST,
    ("PyTorchJob/ml/dist", Row.LOST): 15 + 2 / 3,
    ("", Row.OUTSIDE): 1.0,
}


def write_week(folder: Path, without: str = "-") -> tuple[Path, Path]:
    """The recording and the folder of the cluster. without: how the names of metrics begin that are left out."""
    series = [each for each in week_series() if not each.metric.startswith(without)]
    telemetry, cluster = folder / "week.parquet", folder / "cluster"
    write_recording(telemetry, sorted(series, key=lambda each: (each.metric, sorted(each.labels.items()))))
    cluster.mkdir()
    for kind, found in (("nodes", _nodes()), ("pods", _pods()), ("owners", _owners())):
        (cluster / f"{kind}.json").write_text(json.dumps(as_list(*found)))
    return telemetry, cluster


def week_series() -> list[RecordedSeries]:
    return [*_of_exporters(), *_of_nodes(), *_of_pods(), *_of_gpuwatch()]


_Piece = tuple[str, str, float]


def _series(
    metric: str, labels: Mapping[str, str], *pieces: _Piece, down: Iterable[tuple[str, str]] = ()
) -> RecordedSeries:
    """Values of (from, to], a later piece over an earlier one, except while the target was down. A staleness marker
    follows where they end."""
    values = np.full(len(TIMES), np.nan)
    for begin, end, value in [*pieces, *((*span, np.nan) for span in down)]:
        values[(clock(begin) < TIMES) & (clock(end) >= TIMES)] = value
    there = ~np.isnan(values)
    ended = np.concatenate(([False], there[:-1])) & ~there
    chosen = there | ended
    mark_stale(values, ended)
    return RecordedSeries(metric, dict(labels), (TIMES[chosen] + int(START.timestamp())) * 1000, values[chosen])


_OF_DCGM = {"DCGM_FI_PROF_GR_ENGINE_ACTIVE": "engine", "DCGM_FI_PROF_SM_ACTIVE": "sm", "DCGM_FI_DEV_FB_USED": "mib"}


def _told(metric: str, labels: Mapping[str, str], *pieces: _Piece) -> RecordedSeries:
    """By kube-state-metrics."""
    return _series(metric, TARGET | dict(labels), *pieces, down=KUBE_STATE_METRICS_DOWN)


def _of_exporters() -> Iterator[RecordedSeries]:
    for each in CARDS:
        down, labels = NOT_SCRAPED.get(each.node, ()), gpu(each.number, each.node, modelName=each.model, **each.more)
        spans = [*zip((FIRST, *(use.until for use in each.uses)), each.uses, strict=False)]
        for name in dict.fromkeys(use.pod for use in each.uses if use.pod is not None):
            own = [(begin, use) for begin, use in spans if use.pod == name]
            of = labels | (held(name, "ml") if name else {})
            for metric, value in _OF_DCGM.items():
                pieces = [(begin, use.until, float(getattr(use, value))) for begin, use in own]
                yield _series(metric, of, *pieces, down=down)
    begin, end = NEEDS_RESET
    asks = [("100:00", LAST, 0.0), (begin, end, 2.0)]
    yield _series("DCGM_FI_DEV_GPU_RECOVERY_ACTION", gpu(7, COLD), *asks, down=NOT_SCRAPED[COLD])
    for name, there in THERE.items():
        failed = [(*span, 0.0) for span in NOT_SCRAPED.get(name, ())]
        yield _series("up", {"job": "dcgm", "instance": f"{name}:9400"}, (*there, 1.0), *failed)


def _of_nodes() -> Iterator[RecordedSeries]:
    """As kube-state-metrics tells of them."""
    for name, sizes in CAPACITY.items():
        of, cold = {"node": name}, name == COLD
        for status in ("true", "false", "unknown"):
            of_status = of | {"condition": "Ready", "status": status}
            lost = [(*NOT_READY, float(status == "unknown"))] if cold else []
            yield _told("kube_node_status_condition", of_status, (*THERE[name], float(status == "true")), *lost)
        yield _told("kube_node_spec_unschedulable", of, (*THERE[name], 0.0), *([(*CORDONED, 1.0)] if cold else []))
        for resource, pieces in sizes.items():
            of_resource = of | {"resource": resource, "unit": "integer"}
            yield _told("kube_node_status_capacity", of_resource, *pieces)
            broken = [NOT_OFFERED[name]] if name in NOT_OFFERED else []
            yield _told("kube_node_status_allocatable", of_resource, *pieces, *broken)
    for key, effect, span in (
        ("node.kubernetes.io/unschedulable", "NoSchedule", CORDONED),
        ("node.kubernetes.io/unreachable", "NoExecute", NOT_READY),
        (keys.TAINT, "NoSchedule", FENCED),
    ):
        yield _told("kube_node_spec_taint", {"node": COLD, "key": key, "effect": effect}, (*span, 1.0))


_PARENTS = {"ReplicaSet": ("kube_replicaset_owner", "replicaset"), "Job": ("kube_job_owner", "job_name")}


def _of_pods() -> Iterator[RecordedSeries]:
    """As kube-state-metrics tells of them."""
    for number, each in enumerate(LIVES):
        of = {"namespace": "ml", "pod": each.name, "uid": f"uid-{number}"}
        main, born, bound, gone = of | {"container": "main"}, each.created or each.bound, each.bound, each.gone
        # One that has ended has its start, and one that waits for its restart has none.
        ends = (*(end for _, end in each.runs[:-1]), gone)
        starts = [
            (run[0], end, START.timestamp() + clock(run[0]) + 5) for run, end in zip(each.runs, ends, strict=True)
        ]
        yield _told("kube_pod_container_state_started", main, *starts)
        running = [(*span, 1.0) for span in each.runs]
        yield _told("kube_pod_container_status_running", main, (bound, gone, 0.0), *running)
        for index, reason in enumerate(each.reasons):
            metric = "last_terminated_reason" if index + 1 < len(each.runs) else "terminated_reason"
            of_reason, ended = main | {"reason": reason}, each.runs[index][1]
            yield _told(f"kube_pod_container_status_{metric}", of_reason, (ended, gone, 1.0))
        if each.image:
            info = main | {"image": "sha256:1f0c", "image_spec": each.image}
            yield _told("kube_pod_container_info", info, (bound, gone, 1.0))
        if each.init:
            fetch = of | {"container": "fetch"}
            yield _told("kube_pod_init_container_status_running", fetch, (bound, gone, 0.0), (*each.init, 1.0))
        asks = main | {"resource": each.resource.translate(str.maketrans("./-", "___")), "unit": "integer"}
        if born != bound:
            yield _told("kube_pod_container_resource_requests", asks, (born, bound, 1.0))
        yield _told("kube_pod_container_resource_requests", asks | {"node": each.node}, (bound, gone, 1.0))
        if each.deleting:
            due = START.timestamp() + clock(gone)
            yield _told("kube_pod_deletion_timestamp", of, (each.deleting, gone, due))
        (kind, above), *upper = each.owners
        yield _told("kube_pod_owner", of | _owned_by(kind, above), (born, gone, 1.0))
        if kind in _PARENTS:
            metric, label = _PARENTS[kind]
            owned = {"namespace": "ml", label: above} | (_owned_by(*upper[0]) if upper else {})
            yield _told(metric, owned, (born, gone, 1.0))


def _of_gpuwatch() -> Iterator[RecordedSeries]:
    for (model, row), pieces in FREE.items():
        labels = {"job": "gpuwatch", "instance": "10.0.0.8:8080", "pool": "default", "gpu_model": model, "row": row}
        yield _series("gpuwatch_free_gpus", labels, *pieces, down=[GPUWATCH_AWAY])


def _owned_by(kind: str, name: str) -> dict[str, str]:
    return {"owner_kind": kind, "owner_name": name, "owner_is_controller": "true"}


def _time(moment: str) -> str:
    return (START + timedelta(seconds=clock(moment))).strftime("%Y-%m-%dT%H:%M:%SZ")


def _nodes() -> Iterator[dict[str, Any]]:
    """As they stand at the end."""
    offers = {BIG: {"nvidia.com/gpu": "3", "nvidia.com/mig-3g.40gb": "2"}, COLD: {"nvidia.com/gpu": "2"}}
    for name, model in ((BIG, A100), (COLD, H100), (SLICED, H100)):
        replicas = "2" if name == SLICED else "1"
        labels = {"nvidia.com/gpu.product": model.replace(" ", "-"), "nvidia.com/gpu.replicas": replicas}
        since = _time(NOT_READY[1] if name == COLD else "-100:00")
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": since}
        offered = {"cpu": "64", "memory": "512Gi", "pods": "110", **offers.get(name, {"nvidia.com/gpu": "4"})}
        yield node(name, labels, offered, conditions=[ready])


def _pods() -> Iterator[dict[str, Any]]:
    for each in LIVES:
        if each.gone != LAST:
            continue
        begin, _ = each.runs[-1]
        restarts = len(each.runs) - 1
        state = {"running": {"startedAt": _time(begin)}}
        main = {"name": "main", "ready": True, "restartCount": restarts, "state": state}
        kind, above = each.owners[0]
        yield pod(
            each.name,
            containers=[container(limits={each.resource: "1"})],
            status={"startTime": _time(each.bound), "containerStatuses": [main]},
            meta=controlled_by(kind, above, "batch/v1" if kind == "Job" else "apps/v1")
            | {"creationTimestamp": _time(each.bound)},
            nodeName=each.node,
        )


def _owners() -> Iterator[dict[str, Any]]:
    for each in LIVES:
        if each.gone != LAST:
            continue
        (kind, name), *upper = each.owners
        if kind == "Job":
            saved = {"annotations": {keys.LAST_CHECKPOINT: _time(each.saved)}} if each.saved else {}
            yield owner("Job", name, "batch/v1", spec={"parallelism": 1}, meta=saved)
        for top, above in upper:
            yield owner(kind, name, meta=controlled_by(top, above))
            yield owner(top, above, spec={"replicas": 1})
