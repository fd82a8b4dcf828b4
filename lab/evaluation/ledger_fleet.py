"""Fleets whose GPU-hours are known row by row, to the minute, from the script that they are played from.

Lives of Pods, times out of service and uses of free GPUs are drawn at whole minutes, without regard to the ledger's
steps of five. Rows follow from the definitions of docs/ledger.md; no code of the ledger is used. Pods that share a GPU
do the same on it, as its counters do not tell them apart. On a free GPU no two reasons meet for which it is out of
service, so their order decides nothing. gpuwatch's own counts of free GPUs are what its controller would see of the
script, which counts a GPU as free that is used outside Kubernetes.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gpuwatch.facts.catalog.gpus import model_name
from gpuwatch.facts.model.ledger import Row
from gpuwatch.sources.telemetry.series import RecordedSeries, mark_stale
from lab.simulate.behaviour import Behaviour, WorkKind
from lab.simulate.cards import A100, H100, Instance, Machine, make_machine, make_suffix, make_uid
from lab.simulate.exporter import CONTAINER, JOB, NAMESPACE, samples
from lab.simulate.fleet import SimulatedFleet
from lab.simulate.forms import Object, fill
from lab.simulate.kube_state_metrics import owner_series
from lab.simulate.plan import FleetPlan
from lab.simulate.recording import write_recording
from lab.simulate.runs import Place, PodLife, Run, SimulatedWorkload, resource_name
from lab.simulate.schedule import Scheduler
from lab.simulate.script import MachineScript
from lab.simulate.writing import write_cluster

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
END = datetime(2026, 3, 16, 0, 3, tzinfo=UTC)
PULL, INIT, RUNS, STOPPED, ENDS = range(5)
_PARTS = {"3g.40gb": 4 / 8, "2g.20gb": 2 / 8, "1g.10gb": 1 / 8}  # of the memory slices
_LAYOUTS = (("3g.40gb",), ("1g.10gb", "1g.10gb"))
_STORIES = {"works": 0.19, "rests": 0.17, "restarts": 0.22, "stops": 0.16, "never": 0.11, "fades": 0.15}
_FRAMEWORKS = {"Deployment": 0.3, "Notebook": 0.15, "Job": 0.3, "PyTorchJob": 0.25}
_SERVICES = ("down", "cordoned", "faulty")
_FATAL_XIDS = (48, 79, 95)
_CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


@dataclass(eq=False)
class Device:
    """A GPU, a MIG instance, or (card -1) what no instance covers. used: engine and MiB while no Pod has it."""

    machine: Machine
    place: Place
    part: float
    minutes: int
    instance: Instance | None = None
    lives: list["Life"] = field(default_factory=list)

    @property
    def waits(self) -> Bools:
        """Minutes in which a Pod waits that is about to get it."""
        found = np.zeros(self.minutes, np.bool_)
        for life in self.lives:
            found[life.created : life.bound] = True
        return found

    def __post_init__(self) -> None:
        self.used = np.zeros((2, self.minutes))
        self.missing, self.withheld = np.zeros((2, self.minutes), np.bool_)


@dataclass(eq=False)
class Life:
    """One Pod on one device. played: state, engine, SM, MiB in each minute from `bound` on. complete: when all members
    of its gang have started. saves: minutes of its checkpoints. fails: its last run ends by a failure."""

    run: Run
    index: int
    device: Device
    created: int
    bound: int
    complete: int
    played: Floats
    saves: tuple[int, ...] = ()
    fails: bool = False

    def __post_init__(self) -> None:
        self.span = slice(self.bound, self.bound + self.played.shape[1])
        runs = self.played[0] == RUNS
        starts = runs & ~np.concatenate(([False], runs[:-1]))
        self.newest = np.maximum.accumulate(np.where(starts, np.arange(len(runs)), -1))  # its container's start

    @property
    def is_job(self) -> bool:
        return self.run.workload.framework in ("Job", "PyTorchJob")

    @property
    def lost(self) -> Bools:
        """Minutes of a job between a checkpoint, or a start, and the failure that ended the run."""
        found = np.zeros(len(self.newest), np.bool_)
        stops = np.flatnonzero((self.played[0, :-1] == RUNS) & (self.played[0, 1:] == STOPPED)) + 1
        for end in (*stops.tolist(), *([len(found)] if self.fails else [])) if self.is_job else ():
            saved = [at - self.bound for at in self.saves if at - self.bound <= end]
            found[max([*saved, int(self.newest[end - 1])]) : end] = True
        return found

    def rows(self) -> Iterator[tuple[Row, Floats]]:
        """The rows of its part, with their ratios in each minute."""
        state, engine, sm, mib = self.played
        active, index, rows = engine > 0, np.arange(len(engine)), list(Row)
        worked = np.maximum.accumulate(np.where(active, index, -1))
        silence = np.full(len(engine), rows.index(Row.NO_KERNEL))
        edges = np.flatnonzero(np.diff(np.concatenate(([0], (~active).astype(np.int8), [0]))))
        for begin, end in zip(edges[::2], edges[1::2], strict=True):
            if worked[begin] < 0:
                silence[begin:end] = rows.index(Row.NEVER_USED)
            elif end - begin >= 300:
                loaded = mib[begin:end] >= 1024
                silence[begin:end] = np.where(loaded, rows.index(Row.MODEL_LOADED), rows.index(Row.ABANDONED))
            elif end - begin >= 30:
                silence[begin:end] = rows.index(Row.RESTING if end < len(engine) else Row.SUSPECTED)
        fresh = worked < self.newest
        claims = {
            Row.USEFUL: active,
            Row.RESTART: (state == STOPPED) | (state == ENDS),
            Row.INIT: state == INIT,
            Row.PULL: state == PULL,
            Row.GANG: fresh & (self.bound + index < self.complete),
            Row.LOAD: fresh & (index - np.maximum(self.newest, self.complete - self.bound) < 120),
        }
        row = np.select([*claims.values()], [rows.index(each) for each in claims], silence)
        lost = self.lost & (active | (row == rows.index(Row.NO_KERNEL)))
        yield Row.LOST, lost.astype(np.float64)
        for each in np.unique(row[~active]):
            yield rows[each], ((row == each) & ~active & ~lost).astype(np.float64)
        for work, ratio in ((Row.USEFUL, sm), (Row.FEW_SMS, engine - sm), (Row.NO_KERNEL, 1.0 - engine)):
            yield work, ratio * (active & ~lost)


@dataclass(frozen=True, eq=False, kw_only=True)
class LedgerFleet(SimulatedFleet):
    """states: of _SERVICES, for each machine and minute whether it is so. starved: share of the requests that the
    machine has too little CPU for."""

    units: tuple[Device, ...]
    lives: tuple[Life, ...]
    states: Mapping[str, Bools]
    starved: Floats

    def truth_gpus(self) -> Mapping[Row, Floats]:
        """GPUs in each row in each minute."""
        found = {row: np.zeros(self.plan.steps) for row in Row}
        for device in self.units:
            sharers = np.zeros(self.plan.steps)
            for life in device.lives:
                sharers[life.span] += 1
            for life in device.lives:
                for row, ratio in life.rows():
                    found[row][life.span] += device.part / sharers[life.span] * ratio
            down, cordoned, faulty = (self.states[name][device.machine.index] for name in _SERVICES)
            left = 1.0 * (sharers == 0)
            for row, holds in (
                (Row.ABSENT, down | device.missing | device.withheld),
                (Row.DEGRADED, cordoned & faulty),
                (Row.MAINTENANCE, cordoned),
                (Row.OUTSIDE, device.used.any(axis=0)),
                (Row.UNREACHABLE, np.full(len(left), device.place.card < 0)),
                (Row.WAITED_FOR, device.waits),
                (Row.UNREACHABLE, self.starved[device.machine.index]),
                (Row.USABLE, np.ones(len(left))),
            ):
                found[row] += device.part * left * holds
                left = left * (1.0 - holds)
        return found

    def _of_gpuwatch(self) -> Iterator[RecordedSeries]:
        """Its counts of free GPUs by pool and model. It is away for an hour."""
        rows = ("waited_for", "unreachable", "usable", "unknown")
        found: defaultdict[tuple[str, str], Floats] = defaultdict(lambda: np.zeros((len(rows), self.plan.steps)))
        for device in (each for each in self.units if each.place.card >= 0):
            machine = device.machine
            out = self.states["down"][machine.index] | self.states["cordoned"][machine.index]
            free = ~(out | device.missing | device.withheld)
            for life in device.lives:
                free[life.span] = False
            beside = sum(each.part for each in self.units if each.machine is machine and each.place.card >= 0)
            left, starved = free * (device.part * len(machine.cards) / beside), self.starved[machine.index]
            parts = (left * device.waits, left * ~device.waits * starved, left * ~device.waits * (1.0 - starved))
            found[machine.pool, model_name(machine.model.label)][:3] += parts
        there, begin = self._scraped("gpuwatch"), int(self.plan.rng("away").integers(self.plan.steps - 60))
        there[begin : begin + 60] = False
        for (pool, model), counts in found.items():
            labels = {"job": "gpuwatch", "instance": "10.44.0.7:9345", "pool": pool, "gpu_model": model}
            for row, gpus in zip(rows, counts, strict=True):
                yield self._series("gpuwatch_free_gpus", labels | {"row": row}, np.where(there, gpus, np.nan), 41)

    def write(self, folder: Path) -> tuple[Path, Path]:
        """The recording, and the folder of the cluster."""
        telemetry, cluster = folder / "telemetry.parquet", folder / "cluster"
        series = [*self._of_exporters(), *self._of_nodes(), *self._of_pods(), *self._of_gpuwatch()]
        series += owner_series(self.plan, self.runs, self._scraped("owners"))
        write_recording(telemetry, sorted(series, key=lambda each: each.metric))
        cluster.mkdir()
        write_cluster(self, cluster)
        return telemetry, cluster

    def cluster_objects(self, at: datetime | None = None) -> list[Object]:
        """With the cordons, and with what Pods that do not run at the end wait for."""
        objects = super().cluster_objects(at)
        cordoned = {each.name for each in self.machines if self.states["cordoned"][each.index, -1]}
        states = {each.run.pods[each.index].uid: each.played[0, -1] for each in self.lives}
        for item in objects:
            if item["kind"] == "Node" and item["metadata"]["name"] in cordoned:
                item["spec"] |= {"unschedulable": True, "taints": [_CORDON]}
            if item["kind"] == "Pod" and states.get(item["metadata"]["uid"], RUNS) in (PULL, INIT, STOPPED):
                waits = {"ready": False, "state": {"waiting": {"reason": "ContainerCreating"}}}
                item["status"]["containerStatuses"][0] |= waits
                item["status"]["phase"] = "Pending"
        return objects

    def _scraped(self, target: str) -> Bools:
        """One scrape of 500 fails."""
        return self.plan.rng("scrapes", target).random(self.plan.steps) > 0.002

    def _series(self, metric: str, labels: Mapping[str, str], values: Floats, offset: int = 17) -> RecordedSeries:
        """NaN: no sample, and a staleness marker follows what was there."""
        index, stale = samples(~np.isnan(values), np.ones(len(values), np.bool_))
        taken = values[index]
        mark_stale(taken, stale)
        times_ms = (round(self.plan.start.timestamp()) + index * 60 + offset) * 1000
        return RecordedSeries(metric, labels, times_ms, taken)

    def _told(
        self, metric: str, labels: Mapping[str, str], values: Floats, span: slice = slice(None)
    ) -> RecordedSeries:
        """By kube-state-metrics, in these minutes."""
        told, target = np.full(self.plan.steps, np.nan), {"instance": "10.44.0.9:8080", "job": "kube-state-metrics"}
        told[span] = values[: len(told[span])]
        return self._series(metric, target | dict(labels), np.where(self._scraped("state"), told, np.nan), 31)

    def _of_exporters(self) -> Iterator[RecordedSeries]:
        for machine in self.machines:
            up = self._scraped(machine.name) & ~self.states["down"][machine.index]
            target = {"job": JOB, "instance": machine.exporter_address, "service": JOB}
            own = {"namespace": NAMESPACE, "pod": machine.exporter_pod, "container": CONTAINER}
            yield self._series("up", target | own, up * 1.0)
            for device in self.units:
                if device.machine is machine and device.place.card >= 0:
                    yield from self._of_device(device, target, own, up)

    def _of_device(
        self, device: Device, target: dict[str, str], own: dict[str, str], up: Bools
    ) -> Iterator[RecordedSeries]:
        machine, card = device.machine, device.machine.cards[device.place.card]
        labels = {"gpu": str(card.index), "UUID": card.uuid, "device": f"nvidia{card.index}", **target}
        labels |= {"modelName": machine.model.label, "Hostname": machine.name, "pci_bus_id": card.pci_bus_id}
        if device.instance:
            labels |= {"GPU_I_PROFILE": device.instance.profile, "GPU_I_ID": device.instance.gi}
        engine, mib, free = device.used[0].copy(), 4.0 + device.used[1], up & ~device.missing
        sm, holders = engine / 2, []
        for life in device.lives:
            mask = np.zeros(len(up), np.bool_)
            mask[life.span], free[life.span] = up[life.span], False
            engine[life.span], sm[life.span], mib[life.span] = life.played[1:]
            holders.append(({**labels, **self._held(life, own)}, mask))
        faulty = self.states["faulty"][machine.index] & (card.index == 3)
        told = {
            "DCGM_FI_PROF_GR_ENGINE_ACTIVE": engine,
            "DCGM_FI_PROF_SM_ACTIVE": sm,
            "DCGM_FI_DEV_FB_USED": mib,
            "DCGM_FI_DEV_FB_FREE": machine.memory_mib(device.instance) - mib,
            "DCGM_FI_DEV_XID_ERRORS": faulty * float(_FATAL_XIDS[machine.index % 3]),
            **({} if device.instance else {"DCGM_FI_DEV_GPU_UTIL": np.ceil(engine * 100)}),
        }
        for named, mask in (*holders, (labels | own, free)):
            for metric, values in told.items():
                yield self._series(metric, named, np.where(mask, values, np.nan))

    def _held(self, life: Life, own: dict[str, str]) -> dict[str, str]:
        """Labels of a device that a Pod has."""
        workload, pod = life.run.workload, life.run.pods[life.index]
        named = {"namespace": workload.namespace, "pod": pod.name, "container": workload.container}
        if self.plan.label_scheme == "exported":
            named = own | {f"exported_{name}": value for name, value in named.items()}
        return named | ({"vgpu": str(pod.replica)} if pod.replica >= 0 else {})

    def _of_nodes(self) -> Iterator[RecordedSeries]:
        for machine in self.machines:
            down, cordoned, _ = (self.states[name][machine.index] for name in _SERVICES)
            of = {"node": machine.name}
            for status, holds in (("true", ~down), ("false", down & False), ("unknown", down)):
                labels = of | {"condition": "Ready", "status": status}
                yield self._told("kube_node_status_condition", labels, holds * 1.0)
            yield self._told("kube_node_spec_unschedulable", of, cordoned * 1.0)
            yield self._told("kube_node_spec_taint", of | _CORDON, np.where(cordoned, 1.0, np.nan))
            here = [each for each in self.units if each.machine is machine and each.place.card >= 0]
            for resource in sorted({resource_name(machine, each.place) for each in here}):
                counted = [each for each in here if resource_name(machine, each.place) == resource]
                lacks = np.sum([each.missing | each.withheld for each in counted], axis=0)
                labels = of | {"resource": resource.translate(str.maketrans("./-", "___")), "unit": "integer"}
                capacity = np.full(self.plan.steps, float(len(counted) * machine.replicas))
                yield self._told("kube_node_status_capacity", labels, capacity)
                yield self._told("kube_node_status_allocatable", labels, capacity - lacks)

    def _time(self, minute: int) -> str:
        return f"{self.plan.start + timedelta(minutes=minute):%Y-%m-%dT%H:%M:%SZ}"

    def _of_pods(self) -> Iterator[RecordedSeries]:
        for life in self.lives:
            workload, pod, span, state = life.run.workload, life.run.pods[life.index], life.span, life.played[0]
            of = {"namespace": workload.namespace, "pod": pod.name, "uid": pod.uid}
            main = of | {"container": workload.container}
            if (workload.framework == "Job" or life.fails) and state[-1] == RUNS:  # it ended, and is kept for an hour
                span, state = slice(span.start, span.stop + 60), np.append(state, np.full(60, -1.0))
                reason = main | {"reason": "Error" if life.fails else "Completed"}
                told = np.where(state == -1.0, 1.0, np.nan)
                yield self._told("kube_pod_container_status_terminated_reason", reason, told, span)
            newest = np.append(life.newest, np.full(len(state) - len(life.newest), life.newest[-1]))
            began = self.plan.start.timestamp() + 60.0 * (life.bound + newest) + 5
            restarts = np.cumsum(np.diff(newest, prepend=-1) > 0) - 1.0
            runs = (state == RUNS) | ((state == ENDS) & (newest >= 0))
            stopped = np.maximum.accumulate(state == STOPPED)
            for saved, until in pairwise((*life.saves, life.bound + len(state))):
                named = of | {"annotation_gpuwatch_dev_last_checkpoint": self._time(saved)}
                yield self._told("kube_pod_annotations", named, np.ones(until - saved), slice(saved, until))
            resource = resource_name(life.device.machine, life.device.place)
            asks = main | {"resource": resource.translate(str.maketrans("./-", "___")), "unit": "integer"}
            for metric, labels, values in (
                ("container_status_running", main, runs * 1.0),
                ("container_state_started", main, np.where((newest >= 0) & (state != STOPPED), began, np.nan)),
                ("container_status_restarts_total", main, np.maximum(restarts, 0.0)),
                ("container_status_last_terminated_reason", main | {"reason": "Error"}, np.where(stopped, 1.0, np.nan)),
                ("init_container_status_running", of | {"container": "fetch"}, (state == INIT) * 1.0),
                ("deletion_timestamp", of, np.where(state == ENDS, self.plan.end.timestamp(), np.nan)),
                ("container_resource_requests", asks | {"node": life.device.machine.name}, np.ones(len(state))),
            ):
                yield self._told(f"kube_pod_{metric}", labels, values, span)
            waits = slice(life.created, life.bound)
            yield self._told("kube_pod_container_resource_requests", asks, np.ones(self.plan.steps), waits)


def ledger_fleet(seed: int, nodes: int = 16, days: float = 6.0) -> LedgerFleet:
    """A fleet of at least four Nodes of eight GPUs; the last is shared, the one before has MIG instances."""
    scheme: Literal["exported", "native"] = "exported" if seed % 2 else "native"
    plan = FleetPlan(seed=seed, end=END, gpus=8 * nodes, days=days, label_scheme=scheme)
    return _Builder(plan, nodes).fleet()


class _Builder:
    def __init__(self, plan: FleetPlan, nodes: int) -> None:
        self.plan, self.rng, self.runs, self.lives = plan, plan.rng("ledger"), list[Run](), list[Life]()
        self.machines = tuple(self._machine(number, nodes) for number in range(nodes))
        self.devices = [device for machine in self.machines for device in self._devices(machine)]
        self.states = {name: np.zeros((nodes, plan.steps), np.bool_) for name in _SERVICES}
        self.eras = [[*self._eras(number)] for number in range(nodes)]

    def between(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def _machine(self, number: int, nodes: int) -> Machine:
        model, shared = H100 if number % 3 == 1 and number < nodes - 2 else A100, number == nodes - 1
        made = make_machine(self.plan, self.rng, number, "mixed", model, 8, number + 1, extended=True)
        made = replace(made, vocabulary="dcgm", replicas=2 if shared else 1)
        if number != nodes - 2:
            return made
        cards = []
        for card in made.cards:
            of = enumerate(_LAYOUTS[card.index % 2], start=1)
            sliced = [Instance(gi=str(gi), profile=name, share=_PARTS[name], memory_mib=9728) for gi, name in of]
            cards.append(replace(card, instances=tuple(sliced)))
        return replace(made, cards=tuple(cards))

    def _devices(self, machine: Machine) -> Iterator[Device]:
        uncovered = 0.0
        for card in machine.cards:
            for one in card.instances:
                place = Place(machine.index, card.index, gi=one.gi)
                yield Device(machine, place, _PARTS[one.profile], self.plan.steps, one)
            if card.instances:
                uncovered += 1.0 - sum(_PARTS[one.profile] for one in card.instances)
            else:
                place = Place(machine.index, card.index, replica=0 if machine.replicas > 1 else -1)
                yield Device(machine, place, 1.0, self.plan.steps)
        if uncovered:
            yield Device(machine, Place(machine.index, -1), uncovered, self.plan.steps)

    def _eras(self, machine: int) -> Iterator[tuple[int, int, bool]]:
        """When Pods are placed, from and to, and whether some may stay on after that."""
        at, end = 0, self.between(300, 2000)
        while at < self.plan.steps:
            kind = str(self.rng.choice(_SERVICES))
            yield at, min(end, self.plan.steps), kind != "down"
            at = end + self.between(200, 540)
            if kind == "faulty":
                self.states["faulty"][machine, max(end - self.between(2, 20), 0) : at] = True
                kind = "cordoned"
            self.states[kind][machine, end:at] = True
            end = at + self.between(900, 2200)

    def _starved(self, rng: np.random.Generator) -> Floats:
        """Pods without GPUs come and go, and leave little CPU for hours."""
        lengths = rng.integers(120, 900, self.plan.steps // 120 + 1)
        return np.repeat(rng.choice([0.0, 0.0, 0.3, 0.8], len(lengths)), lengths)[: self.plan.steps]

    def _room(self, device: Device, at: int) -> tuple[int, int, int] | None:
        """From then on, when Pods can next be placed there, until when, and until when such a Pod may stay."""
        for begin, end, may_stay in self.eras[device.machine.index]:
            if end - max(at, begin) >= 60:
                stays = self.between(5, 200) if may_stay and self.rng.random() < 0.25 else 0
                return max(at, begin), end, min(end + stays, self.plan.steps)
        return None

    def fleet(self) -> LedgerFleet:
        usable = [number for number, device in enumerate(self.devices) if device.place.card >= 0]
        heap = [(self.between(0, 200), number) for number in usable]
        heapq.heapify(heap)
        while heap:
            at, number = heapq.heappop(heap)
            device = self.devices[number]
            if (room := self._room(device, at)) is None:
                continue
            begin = min(room[0] + self._gap(device, room), room[1])
            if room[1] - begin < 60:
                heapq.heappush(heap, (room[1], number))
                continue
            framework = str(self.rng.choice([*_FRAMEWORKS], p=[*_FRAMEWORKS.values()]))
            members = [(number, begin, room[2])]
            for _ in range(self.between(1, 3) if framework == "PyTorchJob" else 0):
                if not heap:
                    break
                other_at, other = heapq.heappop(heap)
                found = self._room(self.devices[other], other_at + self.between(1, 30))
                if found is None or found[0] > begin + 200:
                    heapq.heappush(heap, (other_at, other))
                    break
                members.append((other, found[0], found[2]))
            for other, end in self._live(framework, members):
                heapq.heappush(heap, (end, other))
        for _ in range(round(7 * self.plan.days)):
            life = self.lives[self.between(0, len(self.lives) - 1)]
            life.created = max(0, life.bound - self.between(40, 300))
        apart = self.plan.rng("free")  # so that the rest of the fleet is as it was before Pods waited for these
        for life in self.lives:
            left = max((each.span.stop for each in life.device.lives if each.span.stop <= life.bound), default=0)
            if apart.random() < (0.6 if life.bound - left > 90 else 0.1):
                life.created = min(life.created, max(0, life.bound - int(apart.integers(60, 500))))
        last, rest = self.plan.steps, Scheduler(self.plan, self.machines, self.rng)
        downs = [np.flatnonzero(~down)[-1] + 1 for down in self.states["down"]]
        scripts = [MachineScript(node_down=[(60.0 * at, 60.0 * last + 1)] if at < last else []) for at in downs]
        made: dict[str, Any] = {"plan": self.plan, "machines": self.machines, "runs": self.runs, "scripts": scripts}
        mine: dict[str, Any] = {"units": (*self.devices,), "lives": (*self.lives,), "states": self.states}
        mine["starved"] = np.stack([self._starved(apart) for _ in self.machines])
        return LedgerFleet(**made, **mine, scheduler=rest, faults=(), oversized=())

    def _gap(self, device: Device, room: tuple[int, int, int]) -> int:
        """Minutes until the next Pod; in a long time a whole GPU may be missing, withheld or used."""
        if self.rng.random() < 0.45:
            return self.between(2, 40)
        length = min(self.between(100, 500), room[1] - room[0])
        inner = slice(room[0] + self.between(1, 10), room[0] + length - self.between(1, 10))
        kind = self.rng.choice(["used", "missing", "withheld", ""], p=[0.4, 0.1, 0.15, 0.35])
        if device.machine.index < len(self.machines) - 2 and kind and length > 40:
            if kind == "used":
                device.used[:, inner] = [[float(self.rng.choice([0.0, 0.4]))], [20_000.0]]
            else:
                getattr(device, kind)[inner] = True
        return length

    def _live(self, framework: str, members: list[tuple[int, int, int]]) -> Iterator[tuple[int, int]]:
        """The Pods of one workload; yields each device with the minute at which it is free again."""
        story = self._story(is_job=framework in ("Job", "PyTorchJob"))
        late = self.between(0, len(members) - 1) if len(members) > 1 else -1
        before = [self._before(is_late=index == late) for index in range(len(members))]
        started = [begin + each.shape[1] for (_, begin, _), each in zip(members, before, strict=True)]
        if len(members) > 1 and max(started) + 60 > min(end for _, _, end in members):
            yield from ((other, begin) for other, begin, _ in members[1:])
            members, started = members[:1], started[:1]
        complete, limit = max(started), min(end for _, _, end in members)
        end, lives = min(limit, complete + story.shape[1]), []
        for (other, begin, _), early, at in zip(members, before, started, strict=False):
            played = np.hstack((early, self._played(RUNS, complete - at), story))[:, : end - begin]
            lives.append((self.devices[other], begin, played))
            yield other, end
        is_job = framework in ("Job", "PyTorchJob")
        fails = is_job and end < limit and self.rng.random() < 0.6
        # It says at its start from where it goes on; one in fifty never says when it saves its work.
        every = self.between(240, 900)
        saves = tuple(range(complete, end - 1, every)) if is_job and self.rng.random() < 0.98 else ()
        self._add(framework, lives, end, complete, is_cut=end == limit, saves=saves, fails=fails)
        device, begin, played = lives[0]
        if device.machine.replicas > 1 and end < self.plan.steps and end - complete > 200:
            first, last = self.between(complete - begin + 20, end - begin - 100), end - begin - self.between(10, 40)
            joins = played[:, first:last].copy()
            joins[0] = np.where(np.arange(last - first) < 3, PULL, RUNS)
            self._add("Notebook", [(device, begin + first, joins)], begin + last, 0, is_cut=True)

    def _add(
        self,
        framework: str,
        lives: list[tuple[Device, int, Floats]],
        end: int,
        complete: int,
        *,
        is_cut: bool,
        saves: tuple[int, ...] = (),
        fails: bool = False,
    ) -> None:
        """is_cut: the Pods are deleted, in their last minutes, unless the span ends there."""
        number, is_open = len(self.runs), end == self.plan.steps
        born = min(bound for _, bound, _ in lives)
        owner: dict[str, Any] = {"framework": framework, "name": f"{framework.lower()}-{number}", "image": "work:1"}
        owner |= {"namespace": f"team-{number % 4}", "uid": make_uid(self.rng), "created_seconds": 60.0 * born - 60}
        workload = SimulatedWorkload(**owner)
        pods = []
        for index, (device, bound, played) in enumerate(lives):
            if is_cut and not is_open:
                last = slice(-self.between(1, 8), None)
                played[0, last], played[1:3, last] = ENDS, played[1:3, last] * (device.machine.replicas > 1)
            values = workload.values(0, len(lives), index) | {"suffix": make_suffix(self.rng)}
            name = fill(workload.form.pod, values)
            place, joins = device.place, any(each.span.stop > bound for each in device.lives)
            place = replace(place, replica=int(joins)) if place.replica >= 0 else place
            pods.append(PodLife(name=name, uid=make_uid(self.rng), places=(place,)))
        times: dict[str, Any] = {"start": 60.0 * born, "end": np.inf if is_open else 60.0 * end}
        times["failed_at"] = 60.0 * end if lives[0][2][0, -1] == ENDS else None
        run = Run(workload=workload, pods=(*pods,), behaviour=Behaviour(activity=WorkKind.BATCH), seed=number, **times)
        self.runs.append(run)
        for index, (device, bound, played) in enumerate(lives):
            times = {"created": bound, "bound": bound, "complete": complete}
            life = Life(run, index, device, **times, played=played, saves=saves, fails=fails)
            device.lives.append(life)
            self.lives.append(life)

    def _played(self, state: int, minutes: int, engine: float = 0.0, sm: float = 0.0, every: int = 1) -> Floats:
        """State, engine, SM and MiB, minute by minute. every: of so many minutes one has a kernel, on average."""
        level = np.clip(self.rng.normal(1.0, 0.1, minutes), 0.5, 1.0 / max(engine, 0.5))
        level *= self.rng.random(minutes) < 1.0 / every
        return np.array([np.full(minutes, state), level * engine, level * sm, np.full(minutes, 460.0)])

    def _before(self, *, is_late: bool) -> Floats:
        """Until its container starts."""
        pull = self.between(60, 420) if is_late else self.between(*((40, 240) if self.rng.random() < 0.12 else (2, 25)))
        init = self.between(*((40, 200) if self.rng.random() < 0.4 else (3, 20))) if self.rng.random() < 0.55 else 0
        return np.hstack((self._played(PULL, pull), self._played(INIT, init)))

    def _story(self, *, is_job: bool) -> Floats:
        """From its container's start to its end."""
        kind, engine = str(self.rng.choice([*_STORIES], p=[*_STORIES.values()])), float(self.rng.uniform(0.3, 0.95))
        sm, every = engine * float(self.rng.uniform(0.2, 0.8)), self.between(2, 8) if self.rng.random() < 0.2 else 1
        memory, keeps = float(self.between(2_000, 9_000)), self.rng.random() < 0.5

        def rests(low: int, high: int, state: int = RUNS) -> Floats:
            return self._played(state, self.between(low, high))

        def work(low: int, high: int) -> Floats:
            return self._played(RUNS, self.between(low, high), engine, sm, every)

        parts = [rests(3, 90), work(60, 300) if kind == "works" else work(20, 90)]
        for _ in range(self.between(1, 4)):
            if kind == "works":
                parts += [rests(2, 28), work(60, 300)]
            elif kind == "rests":
                parts += [rests(30, 299), work(20, 90)]
            elif kind == "restarts":
                parts += [rests(5, 120, STOPPED), rests(3, 90), work(20, 90)]
        if kind == "never":
            parts = [rests(125, 900)]
        elif kind == "stops":
            parts += [rests(300, 900), *([work(20, 90)] if self.rng.random() < 0.2 else [])]
        elif kind == "fades":
            parts += [rests(30, 290)]
        ends = [] if is_job else [rests(*((15, 60) if self.rng.random() < 0.3 else (1, 6)), ENDS)]
        story = np.hstack([*parts, *ends])
        worked = np.maximum.accumulate(story[1] > 0)
        story[3, worked] = memory if keeps or kind != "stops" else np.where(story[1, worked] > 0, memory, 600.0)
        return story
