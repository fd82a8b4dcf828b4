"""Fleets with faults that one GPU's own counters do not tell, and with what only looks like them.

They are: the fabric, NVLink 5, links to the CPU and to the host, the board, a hot rack, repairs that were seen or
not, contained errors, XIDs and health watches beside other signs, other detectors' Node conditions, Pods that die at
a place or are refused there, ports of InfiniBand and RoCE, and gangs that wait for each other.

Each scene has machines of its own and says what is right about them: that a fault is named, how much may be done about
it, or that it only looks like a fault. `gpuwatch demo` does not need them, so they are not part of the package.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from itertools import chain, combinations, permutations
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np
import yaml

from gpuwatch.facts.catalog.detectors import node_conditions
from gpuwatch.facts.catalog.tables import checked
from gpuwatch.facts.model.decision import FindingKind
from gpuwatch.facts.model.telemetry import DeviceId
from gpuwatch.sources.telemetry.series import FloatArray, RecordedSeries, mark_stale
from lab.simulate.behaviour import Behaviour, WorkKind
from lab.simulate.cards import A100, H100, CardModel, Machine, make_machine
from lab.simulate.exporter import JOB, prometheus_up, samples
from lab.simulate.fleet import SimulatedFleet
from lab.simulate.forms import Object
from lab.simulate.metrics import Metric
from lab.simulate.plan import DAY, HOUR, FleetPlan, Floats, Mask
from lab.simulate.runs import Place, Run
from lab.simulate.schedule import FOREVER, Scheduler
from lab.simulate.script import CardScript, MachineScript, Span
from lab.simulate.states import DeviceState
from lab.simulate.tables import NAMES

END = datetime(2026, 3, 15, 12, tzinfo=UTC)
DAYS = 1.5
WHOLE: Span = (0.0, FOREVER)
STARTS = 6
"""Times at which faults begin, so that a few more moments see each soon after its beginning."""

CLIQUE, RACK, LEAF = "nvidia.com/gpu.clique", "topology.kubernetes.io/rack", "network.topology.nvidia.com/leaf"


class Right(IntEnum):
    """How far a finding may go. Each level includes those below it."""

    NOTHING = 0  # it only looks like a fault
    QUESTION = 1  # shown as not known (UNKNOWN, for information)
    NAMED = 2  # named (DEGRADED, or UNKNOWN as a warning), and nothing is done
    TAINTED = 3  # new work may be kept off it
    MOVED = 4  # running work may be ended or moved


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is right about some GPUs, or about a Node as a whole (no devices), from `start` to `end`.

    together: it has one cause, so that one finding on all of them is right, and one on a GPU or a Node is wrong. fades:
    for how long after the end a finding is still right, because the rule looks back as far. says: words of the summary
    without which it is not found.
    """

    scene: str
    kind: FindingKind
    nodes: frozenset[str]
    devices: frozenset[DeviceId]
    start: datetime
    end: datetime
    right: Right
    together: bool = False
    fades: timedelta = timedelta(hours=1.5)
    says: str = ""
    pods: frozenset[str] = frozenset()


Port: TypeAlias = dict[str, Floats]
"""A port of InfiniBand or RoCE over time, by the names of node_exporter after `node_infiniband_`."""
_STATE, _RATE, _DOWNED, _SYMBOLS = "state_id", "rate_bytes_per_second", "link_downed_total", "symbol_error_total"

# The state of a healthy card is set from the beginning on (`_Site.machine`); 0 elsewhere is 'not supported'.
_STATES = {
    "DCGM_FI_DEV_FABRIC_MANAGER_STATUS": "fabric_manager",
    "DCGM_FI_DEV_FABRIC_HEALTH_SUMMARY": "fabric_health",
    "DCGM_FI_DEV_FABRIC_HEALTH_MASK": "fabric_mask",
    "DCGM_FI_IMEX_DAEMON_STATUS": "imex",
}
_COUNTERS = (
    ("DCGM_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS", "DCGM_FI_DEV_NVLINK_EFFECTIVE_ERROR_TOTAL", "link5_effective", 0.1),
    ("DCGM_FI_DEV_NVLINK_COUNT_RX_SYMBOL_ERRORS", "DCGM_FI_DEV_NVLINK_RX_SYMBOL_ERROR_TOTAL", "link5_symbols", 5.0),
    (
        "DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS",
        "DCGM_FI_DEV_NVLINK_RECOVERY_EVENT_TOTAL",
        "link5_recovery",
        0.05,
    ),
    (
        "DCGM_FI_DEV_NVLINK_PPCNT_PHYSICAL_LINK_DOWN_COUNTER",
        "DCGM_FI_DEV_NVLINK_PPCNT_PHYSICAL_LINK_DOWN_TOTAL",
        "link5_downs",
        0.0,
    ),
)
_LANES = ("DCGM_FI_DEV_PCIE_LINK_WIDTH", "DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH")
_INFOROM = Metric(dcgm="DCGM_FI_DEV_INFOROM_CONFIG_VALID", dcgm49="DCGM_FI_DEV_INFOROM_VALID", state="inforom")
MORE_METRICS = (
    *(Metric(dcgm=name, dcgm49=name, only="linked", state=state) for name, state in _STATES.items()),
    *(Metric(dcgm=old, dcgm49=new, only="linked", counter=name, per_day=day) for old, new, name, day in _COUNTERS),
    _INFOROM,
    *(Metric(dcgm=name, dcgm49=name, state=name) for name in _LANES),
)


class _ToCpu(Metric, frozen=True, kw_only=True):
    """Only superchips have a link to their CPU."""

    def applies(self, machine: Machine, device: DeviceState) -> bool:
        return machine.model is GB200 and super().applies(machine, device)


_C2C = ("DCGM_FI_DEV_C2C_LINK_STATUS", "DCGM_FI_DEV_C2C_LINK_ERROR_INTR", "DCGM_FI_DEV_C2C_LINK_ERROR_REPLAY")
C2C_METRICS = (
    _ToCpu(dcgm=_C2C[0], dcgm49=_C2C[0], state="c2c_up"),
    _ToCpu(dcgm=_C2C[1], dcgm49=_C2C[1], counter="c2c_errors"),
    _ToCpu(dcgm=_C2C[2], dcgm49=_C2C[2], counter="c2c_replays", per_day=2.0),
)
# Otherwise as the H100 is; no rule here looks at it. GB200s are cooled by a liquid.
GB200 = msgspec.structs.replace(
    H100, name="gb200", pool="gb200", label="NVIDIA GB200", product="NVIDIA-GB200", celsius_per_watt=0.03
)
H100_NVL = msgspec.structs.replace(
    H100, name="nvl", pool="nvl", label="NVIDIA H100 NVL", product="NVIDIA-H100-NVL", limit_watts=400.0
)
_SXIDS = {
    True: ("DCGM_FI_DEV_NVSWITCH_FATAL_ERRORS", "DCGM_FI_DEV_SXID_FATAL_ERROR"),
    False: ("DCGM_FI_DEV_NVSWITCH_NON_FATAL_ERRORS", "DCGM_FI_DEV_SXID_NON_FATAL_ERROR"),
}
"""By whether it is fatal: the name up to dcgm-exporter 4.8, and from 4.9 on."""
_ACCESS = {0: "OK", 5: "NotSupported", 6: "Unknown"}
REFUSED = "UnexpectedAdmissionError"
"""Of the kubelet: the Pod did not get its device."""
_POWER = frozenset({"DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_BOARD_POWER_WATTS"})
_ACTIONS = frozenset({"DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION", "DCGM_FI_DEV_GPU_RECOVERY_ACTION"})
_WELL = 2 | 2 << 2 | 2 << 4 | 2 << 6 | 1 << 8
"""nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_*: each fault is supported and absent."""


@dataclass(frozen=True, eq=False, kw_only=True)
class HealthFleet(SimulatedFleet):
    """A fleet with what only evaluation plants."""

    site: "_Site"
    cases: tuple[Case, ...]

    def series(self, only: Sequence[Metric] | None = None) -> Iterator[RecordedSeries]:
        more = (*MORE_METRICS, *C2C_METRICS)
        for series in chain(super().series(only), super().series(more) if only is None else ()):
            yield self._without_unread(series)
        if only is None:
            yield from self._of_switches()
            yield from self._of_peers()
            yield from self._of_hosts()
            yield from self._of_pods()

    def _without_unread(self, series: RecordedSeries) -> RecordedSeries:
        kept = np.ones(len(series.times_ms), dtype=bool)
        seconds = series.times_ms / 1000 - self.plan.start.timestamp()
        for metrics, uuids, (begin, end) in self.site.unread:
            if series.metric in metrics and series.labels.get("UUID") in uuids:
                kept &= (seconds < begin) | (seconds >= end)
        if kept.all():
            return series
        return RecordedSeries(series.metric, series.labels, series.times_ms[kept], series.values[kept])

    def _of_switches(self) -> Iterator[RecordedSeries]:
        """The last fatal and the last other error (SXid) of each NVSwitch, whose rows name no GPU."""
        for fatal, names in _SXIDS.items():
            for vocabulary, metric in zip(("dcgm", "dcgm49"), names, strict=True):
                for machine in (self.machines[index] for index in self.site.switches):
                    for switch in range(4) if machine.vocabulary == vocabulary else ():
                        codes = np.zeros(self.plan.steps)
                        for number, is_fatal, span, code in self.site.switches[machine.index]:
                            if (number, is_fatal) == (switch, fatal):
                                codes[self._during(span)] = code
                        labels = _of_exporter(machine) | {"nvswitch": str(switch)}
                        yield self._recorded(metric, labels, codes, prometheus_up(self.plan))

    def _of_peers(self) -> Iterator[RecordedSeries]:
        """Access between each two GPUs of a machine; each state is a series of its own, as a label names it."""
        up = prometheus_up(self.plan)
        for machine in (self.machines[index] for index in self.site.peers):
            for card, other in permutations(machine.cards, 2):
                codes = np.zeros(self.plan.steps)
                for one, another, span, code in self.site.peers[machine.index]:
                    if {one, another} == {card.index, other.index}:
                        codes[self._during(span)] = code
                named = {"gpu": str(card.index), "UUID": card.uuid, "modelName": machine.model.label}
                for code in np.unique(codes):
                    status = {"peer_gpu": str(other.index), "link_status": _ACCESS[int(code)]}
                    labels = _of_exporter(machine) | named | status
                    yield self._recorded("DCGM_EXP_P2P_STATUS", labels, codes, up & (codes == code))

    def _during(self, span: Span) -> Mask:
        return (self.plan.sample_seconds >= span[0]) & (self.plan.sample_seconds < span[1])

    def _of_hosts(self) -> Iterator[RecordedSeries]:
        """node_exporter's, grouped by metric."""
        up = prometheus_up(self.plan)
        for machine in self.machines:
            began = np.full(self.plan.steps, self.plan.start.timestamp() - machine.age_days * DAY)
            for at in self.site.boots.get(machine.name, ()):
                began[self.plan.sample_seconds >= at] = self.plan.start.timestamp() + at
            yield self._recorded("node_boot_time_seconds", _host(machine), began, up)
        for metric in (_STATE, _RATE, _DOWNED, _SYMBOLS):
            for machine in self.machines:
                for device, port in self.site.ports.get(machine.name, {}).items():
                    labels = _host(machine) | {"device": device, "port": "1"}
                    if metric in port:
                        yield self._recorded(f"node_infiniband_{metric}", labels, port[metric], up)

    def _of_pods(self) -> Iterator[RecordedSeries]:
        """kube-state-metrics' of Jobs' Pods, grouped by metric; each is kept for an hour after its end."""
        up, seconds, zero = prometheus_up(self.plan), self.plan.sample_seconds, self.plan.start.timestamp()
        rows: dict[str, list[tuple[dict[str, str], Mask, float]]] = defaultdict(list)
        for run, phase, reason in self.site.jobs:
            (pod,), workload = run.pods, run.workload
            there = (seconds >= run.start) & (seconds < run.end + HOUR) & up
            over = there & (seconds >= run.end)
            labels = {"namespace": workload.namespace, "pod": pod.name, "uid": pod.uid, "job": "kube-state-metrics"}
            node = {"node": self.machines[pod.places[0].machine].name}
            ran = there & ~over if reason == REFUSED else there
            created = {"created_by_kind": "Job", "created_by_name": workload.name}
            for metric, mask, value, more in (
                ("container_resource_requests", there, 1.0, node | {"resource": "nvidia_com_gpu"}),
                ("status_phase", there & ~over, 1.0, {"phase": "Running"}),
                ("status_phase", over, 1.0, {"phase": phase}),
                ("start_time", there, zero + run.start, {}),
                ("completion_time", over & ran, zero + run.end, {}),
                ("container_info", ran, 1.0, {"image": workload.image}),
                ("info", there, 1.0, created | node),
                ("container_status_terminated_reason", over & ran, 1.0, {"reason": reason}),
                ("status_reason", over & ~ran, 1.0, {"reason": reason}),
                ("deletion_timestamp", over if reason == "deleted" else over & False, zero + run.end, {}),
            ):
                rows[f"kube_pod_{metric}"].append((labels | more, mask, value))
        for metric, found in rows.items():
            for labels, mask, value in found:
                if mask.any():
                    yield self._recorded(metric, labels, np.full(self.plan.steps, value), mask)

    def _recorded(self, metric: str, labels: dict[str, str], values: Floats, mask: Mask) -> RecordedSeries:
        index, stale = samples(mask, prometheus_up(self.plan))
        times_ms = (int(self.plan.start.timestamp()) * 1000 + self.plan.sample_seconds * 1000).astype(np.int64)
        taken: FloatArray = values[index].astype(np.float64)
        mark_stale(taken, stale)
        return RecordedSeries(metric, labels, times_ms[index], taken)

    def cluster_objects(self, at: datetime | None = None) -> list[Object]:
        seconds = self.plan.seconds if at is None else (at - self.plan.start).total_seconds()
        objects = super().cluster_objects(at)
        for item in objects:
            name = item["metadata"]["name"]
            if item["kind"] == "Node":
                item["metadata"]["labels"] |= self.site.labels[name]
                boots = sum(1 for boot in self.site.boots.get(name, ()) if boot <= seconds)
                item["status"]["nodeInfo"]["bootID"] = f"{item['metadata']['uid'][:-2]}{boots:02d}"
                for kind, status, (begin, end) in self.site.conditions.get(name, ()):
                    if begin <= seconds < end:
                        changed = self.plan.moment(max(begin, 0.0)).strftime("%Y-%m-%dT%H:%M:%SZ")
                        found = {"type": kind, "status": status, "reason": kind, "lastTransitionTime": changed}
                        item["status"]["conditions"] = [*item["status"]["conditions"], found]
        return objects


def _host(machine: Machine) -> dict[str, str]:
    return {"instance": f"{machine.address}:9100", "job": "node-exporter"}


def _of_exporter(machine: Machine) -> dict[str, str]:
    name = "hostname" if machine.vocabulary == "dcgm49" else "Hostname"
    return {name: machine.name, "instance": machine.exporter_address, "job": JOB}


def health_fleet(seed: int, scenes: Sequence[Callable[["_Site"], None]]) -> HealthFleet:
    """One and a half days with these scenes, such as those of one of `FLEETS`."""
    site = _Site(FleetPlan(seed=seed, end=END, gpus=1, days=DAYS, vocabulary="mixed", faults=(), idle_allocations=0))
    shuffled = [scene for scene in scenes if scene not in _BESIDE]
    site.rng.shuffle(shuffled)
    for scene in shuffled:
        scene(site)
    site.label()
    for scene in scenes:
        if scene in _BESIDE:
            scene(site)
    return HealthFleet(
        plan=site.plan,
        machines=tuple(site.machines),
        runs=site.runs,
        scripts=site.scripts,
        faults=(),
        oversized=(),
        scheduler=site.scheduler,
        site=site,
        cases=tuple(site.cases),
    )


class _Site:
    """What has been built so far. labels: of Nodes. unread: metrics that a card does not export in a span. conditions:
    of Nodes, as (type, status, span). boots: when Nodes booted again. jobs: of Pods whose ends kube-state-metrics
    counts, with the reason of each end. switches: by machine with NVSwitches, errors: (switch, whether fatal, span,
    SXid). peers: by machine that exports them, pairs of GPUs without access, as (card, card, span, code of
    `_ACCESS`)."""

    def __init__(self, plan: FleetPlan) -> None:
        self.plan = plan
        self.rng = plan.rng("health")
        self.scheduler = Scheduler(plan, (), plan.rng("health-jobs"))
        self.machines: list[Machine] = []
        self.scripts: list[MachineScript] = []
        self.runs: list[Run] = []
        self.cases: list[Case] = []
        self.labels: dict[str, dict[str, str]] = {}
        self.unread: list[tuple[frozenset[str], frozenset[str], Span]] = []
        self.conditions: dict[str, list[tuple[str, str, Span]]] = defaultdict(list)
        self.boots: dict[str, list[float]] = defaultdict(list)
        self.ports: dict[str, dict[str, Port]] = {}
        self.jobs: list[tuple[Run, str, str]] = []
        self.switches: dict[int, list[tuple[int, bool, Span, int]]] = {}
        self.peers: dict[int, list[tuple[int, int, Span, int]]] = {}
        self.starts = np.sort(self.rng.uniform(0.25, 0.6, STARTS)) * plan.seconds
        self.domains = 0

    def machine(
        self,
        model: CardModel = H100,
        size: int = 0,
        where: Mapping[str, str] = {},
        *,
        works: bool = True,
        watched: bool = False,
    ) -> Machine:
        """A new one, with a job on all of its GPUs for the whole time. where: labels that say where it stands. watched:
        DCGM's health watches are exported."""
        size = size or int(self.rng.choice([4, 4, 8]))
        number = sum(1 for each in self.machines if each.model is model) + 1
        made = make_machine(self.plan, self.rng, len(self.machines), "job8", model, size, number, extended=True)
        if watched:
            made = replace(made, has_health_watches=True, driver_version="580.105.08")
        self.machines.append(made)
        script = MachineScript()
        self.scripts.append(script)
        trained, healthy, mask, ready = (3.0, 1.0, float(_WELL), 5.0) if model is H100 else (1.0, 0.0, 0.0, 5.0)
        if model is H100 and size == 8:
            self.switches[made.index], self.peers[made.index] = [], []
        for card in made.cards:
            base = {"fabric_manager": trained, "fabric_health": healthy, "fabric_mask": mask, "imex": ready}
            for state, value in (base | {"inforom": 1.0, "c2c_up": 1.0} | dict.fromkeys(_LANES, 16.0)).items():
                script.cards[card.index].states[state].append((0.0, FOREVER, value))
        # Nodes of one instance type have as many GPUs.
        self.labels[made.name] = {"node.kubernetes.io/instance-type": f"{model.name}-{size}", **where}
        if works:
            self.job([made])
        return made

    def job(self, machines: Sequence[Machine], behaviour: Behaviour | None = None, waiting: int = 0) -> Run:
        """A gang of one Pod per machine, from before the window to its end, and Pods that wait for a place."""
        seats = [tuple(Place(machine.index, card.index) for card in machine.cards) for machine in machines]
        name, team = str(self.rng.choice(NAMES.workloads["training"])), str(self.rng.choice(NAMES.teams))
        framework = str(self.rng.choice(["JobSet", "PyTorchJob"])) if len(seats) + waiting > 1 else "Job"
        start = -float(self.rng.uniform(2, 20)) * HOUR
        workload = self.scheduler.new_workload(framework, team, name, start, NAMES.images["training"])
        works = behaviour or Behaviour(
            activity=WorkKind.TRAINING,
            sm_level=float(self.rng.uniform(0.7, 0.9)),
            memory_share=float(self.rng.uniform(0.5, 0.9)),
        )
        run = self.scheduler.run(workload, (*seats, *((),) * waiting), start, FOREVER, works)
        self.runs.append(run)
        return run

    def domain(self) -> dict[str, str]:
        """The label of a new NVLink domain."""
        self.domains += 1
        return {CLIQUE: f"{self.plan.seed:08d}-0000-4000-8000-{self.domains:012d}.{self.domains}"}

    def spot(self, size: int = 0, *, watched: bool = False) -> tuple[Machine, Span, int, CardScript]:
        """A new machine, when a fault begins and ends there, one of its GPUs, and that one's script."""
        machine, span = self.machine(size=size, watched=watched), self.span()
        card = self.one(machine)
        return machine, span, card, self.scripts[machine.index].cards[card]

    def span(self, *, lasts: bool = False) -> Span:
        """When a fault begins and ends; lasts: not before the window does."""
        start = float(self.rng.choice(self.starts))
        return start, FOREVER if lasts else start + float(self.rng.uniform(5, 11)) * HOUR

    def cards(self, machine: Machine, chosen: Iterable[int] = ()) -> list[CardScript]:
        """The scripts of these cards, or of all."""
        script = self.scripts[machine.index]
        return [script.cards[index] for index in (tuple(chosen) or range(len(machine.cards)))]

    def one(self, machine: Machine) -> int:
        return int(self.rng.integers(len(machine.cards)))

    def case(
        self,
        scene: str,
        kind: FindingKind,
        machines: Sequence[Machine],
        span: Span,
        right: Right,
        cards: Sequence[int] | None = None,
        **more: object,
    ) -> None:
        """cards: of each of the machines; None: the Nodes as a whole."""
        begin, end = max(span[0], 0.0), min(span[1], self.plan.seconds)
        chosen = (() if cards is None else [machine.cards[card].uuid for card in cards] for machine in machines)
        self.cases.append(
            Case(
                scene=scene,
                kind=kind,
                nodes=frozenset(machine.name for machine in machines),
                devices=frozenset(uuid for uuids in chosen for uuid in uuids),
                start=self.plan.moment(begin),
                end=self.plan.moment(end),
                right=right,
                **more,  # type: ignore[arg-type]
            )
        )

    def label(self) -> None:
        """Three or four machines that no scene has put somewhere share a rack, a leaf switch or an NVLink domain."""
        for number, machine in enumerate(self.machines):
            mine = self.labels[machine.name]
            mine.setdefault(RACK, f"rack-{number // 4}")
            mine.setdefault(LEAF, f"leaf-{number // 4}")
            if machine.model is H100:
                mine.setdefault(CLIQUE, f"{self.plan.seed:08d}-0000-4000-8000-000000000000.{100 + number // 3}")


# The fabric between GPUs


def links_not_trained(site: _Site) -> None:
    machine, span = site.machine(size=8), site.span()
    for card in site.cards(machine):
        card.states["fabric_manager"].append((*span, 4.0))
    site.case("Fabric Manager failed on a machine", FindingKind.FABRIC, [machine], span, Right.NAMED)


def _manager_not_started(site: _Site) -> None:
    machine, span = site.machine(), site.span()
    _reboot(site, machine, span[0])
    for card in site.cards(machine):
        card.states["fabric_manager"].append((*span, 1.0))
    site.case("Fabric Manager not started after a reboot", FindingKind.FABRIC, [machine], span, Right.NAMED)
    machine = site.machine()
    _reboot(site, machine, span[0])
    training = (span[0], span[0] + 700.0)
    for card in site.cards(machine):
        card.states["fabric_manager"].append((*training, 2.0))
    until = (span[0], span[0] + 3 * HOUR)
    site.case("links in training after a reboot", FindingKind.FABRIC, [machine], until, Right.NOTHING)


def _needs_no_manager(site: _Site) -> None:
    for _ in range(2):
        machine = site.machine(A100)
        site.case("a model that needs no Fabric Manager", FindingKind.FABRIC, [machine], WHOLE, Right.NOTHING)


def _fabric_unhealthy(site: _Site) -> None:
    machine, span, card, script = site.spot()
    script.states["fabric_health"].append((*span, float(site.rng.choice([2, 3]))))
    site.case("unhealthy fabric of one GPU", FindingKind.FABRIC, [machine], span, Right.NAMED, [card])
    where, span = site.domain(), site.span()
    machines = [site.machine(where=where) for _ in range(3)]
    for each in machines:
        for script in site.cards(each, range(2)):
            script.states["fabric_mask"].append((*span, float(_WELL - 1)))  # the bandwidth is degraded
    scene = "degraded bandwidth in one NVLink domain"
    site.case(scene, FindingKind.FABRIC, machines, span, Right.NAMED, range(2), together=True)


def _imex(site: _Site) -> None:
    span = site.span()
    machines = [site.machine(works=False) for _ in range(2)]
    site.job(machines)
    alone = site.machine()
    for machine in (machines[0], alone):
        for card in site.cards(machine):
            card.states["imex"].append((*span, 0.0))
    kind = FindingKind.FABRIC
    site.case("IMEX not ready for a job over two Nodes", kind, machines[:1], span, Right.QUESTION)
    site.case("IMEX not ready where no job needs it", kind, [alone], span, Right.NOTHING)


def _nvlink5(site: _Site) -> None:
    kind = FindingKind.NVLINK_ERRORS
    machine, span, card, script = site.spot(size=8)
    script.rates["link5_effective"].append((*span, float(site.rng.uniform(4, 40)) / 60))
    script.rates["link5_again"].append((*span, float(site.rng.uniform(1.8, 8)) / 60))
    site.case("NVLink 5 errors and recoveries of one GPU", kind, [machine], span, Right.MOVED, [card])
    machine, span, card, script = site.spot()
    script.steps["link5_downs"].extend(
        (at, 1.0) for at in np.arange(span[0] + 60, min(span[1], site.plan.seconds), 600.0)
    )
    site.case("an NVLink 5 goes down again and again", kind, [machine], span, Right.NAMED, [card])
    where, span = site.domain(), site.span()
    machines = [site.machine(where=where) for _ in range(3)]
    for each in machines:
        for script in site.cards(each, range(2)):
            script.rates["link5_effective"].append((*span, float(site.rng.uniform(10, 40)) / 60))
    scene = "NVLink 5 errors in one NVLink domain"
    site.case(scene, kind, machines, span, Right.NAMED, range(2), together=True)
    machine, span, card, script = site.spot()
    script.rates["link5_symbols"].append((*span, 0.2 / 60))
    site.case("few NVLink 5 errors", kind, [machine], span, Right.NOTHING, [card])


def switches(site: _Site) -> None:
    """A switch fails until its machine boots again; elsewhere an error is not fatal. DCGM's fields 856 and 857."""
    kind, rng = FindingKind.FABRIC, site.rng
    machine, (begin, end) = site.machine(size=8), site.span()
    code = int(rng.choice([11012, 12028, 14017, 20034]))
    site.switches[machine.index].append((int(rng.integers(4)), True, (begin, end), code))
    _reboot(site, machine, end)
    site.case("a fatal error of an NVSwitch", kind, [machine], (begin, end), Right.NAMED)
    later = (end + HOUR, FOREVER)
    site.case("a fatal error of an NVSwitch, after a reboot", kind, [machine], later, Right.NOTHING)
    machine, span = site.machine(size=8), site.span()
    site.switches[machine.index].append((int(rng.integers(4)), False, span, 12023))
    site.case("an error of an NVSwitch that is not fatal", kind, [machine], span, Right.NOTHING)


def access(site: _Site) -> None:
    """One GPU loses access to its peers. Of H100 NVL a bridge joins each two, and there is no other access."""
    kind = FindingKind.FABRIC
    machine, span, card, _ = site.spot(size=8)
    site.peers[machine.index] += [(card, other.index, span, 6) for other in machine.cards]
    site.case("a GPU that the others of its machine cannot access", kind, [machine], span, Right.NAMED)
    for _ in range(3):
        machine = site.machine(H100_NVL, 4)
        none = [(one, other, (0.0, FOREVER), 5) for one, other in combinations(range(4), 2) if one // 2 != other // 2]
        site.peers[machine.index] = none
        site.case("access between bridged pairs alone", kind, [machine], WHOLE, Right.NOTHING)


def to_cpu(site: _Site) -> None:
    """Links between GPU and CPU of superchips (C2C)."""
    kind = FindingKind.NVLINK_ERRORS
    where = site.domain()
    errors, down, few, unused = machines = [site.machine(GB200, 4, where) for _ in range(4)]
    card = {machine.index: site.one(machine) for machine in machines}
    script = {machine.index: site.cards(machine, [card[machine.index]])[0] for machine in machines}
    span = site.span()
    script[errors.index].rates["c2c_errors"].append((*span, float(site.rng.uniform(3, 30)) / 60))
    site.case("errors of a link to the CPU", kind, [errors], span, Right.NAMED, [card[errors.index]])
    span = site.span()
    script[down.index].states["c2c_up"].append((*span, 0.0))
    site.case("a link to the CPU is down", kind, [down], span, Right.NAMED, [card[down.index]])
    span = site.span()
    script[few.index].rates["c2c_replays"].append((*span, 0.3 / 60))
    site.case("few replays of a link to the CPU", kind, [few], span, Right.NOTHING, [card[few.index]])
    site.case("links to the CPU that are well", kind, [unused], WHOLE, Right.NOTHING)


def lanes(site: _Site) -> None:
    """One GPU's link to the host has fewer lanes than its slot; the slots of another model's machines have no more."""
    kind, (width, most) = FindingKind.PCIE_WIDTH, _LANES
    for scene, exported in (("", True), (", where the widest link is not exported", False)):
        machine, span, card, script = site.spot(size=8)
        script.states[width].append((*span, float(site.rng.choice([1, 4, 8]))))
        if not exported:
            site.unread.append((frozenset({most}), frozenset(each.uuid for each in machine.cards), (0.0, FOREVER)))
        site.case(f"fewer PCIe lanes than its peers{scene}", kind, [machine], span, Right.TAINTED, [card])
    machine = site.machine(size=8)
    card = site.one(machine)
    for begin in np.arange(site.span()[0], site.plan.seconds, 2400.0):
        site.cards(machine, [card])[0].states[width].append((begin, begin + 480.0, 8.0))
    site.case("PCIe lanes that rest for some minutes", kind, [machine], WHOLE, Right.NOTHING, [card])
    for _ in range(2):
        machine = site.machine(H100_NVL, 4)
        for script in site.cards(machine):
            script.states[width].append((0.0, FOREVER, 8.0))
        site.case("slots with half of the PCIe lanes", kind, [machine], WHOLE, Right.NOTHING)


# The board, its power and its heat


def board(site: _Site) -> None:
    kind = FindingKind.BOARD
    machine, span, card, script = site.spot()
    script.states["inforom"].append((*span, 0.0))
    site.case("corrupt InfoROM", kind, [machine], span, Right.NAMED, [card])
    machine, span, card, _ = site.spot()
    site.unread.append((_POWER, frozenset({machine.cards[card].uuid}), span))
    site.case("power of one board cannot be read", kind, [machine], span, Right.NAMED, [card])
    machine, span = site.machine(), site.span()
    every = frozenset(card.uuid for card in machine.cards)
    site.unread.append((_POWER, every, span))
    site.unread.append((frozenset({_INFOROM.dcgm, _INFOROM.dcgm49}), every, span))
    site.case("a machine hides power and InfoROM", kind, [machine], span, Right.NOTHING)


def _rack(site: _Site) -> None:
    """Three machines of a rack of four are too hot, or braked; elsewhere one card, or one machine, is."""
    for number, kind in enumerate((FindingKind.THERMAL_THROTTLE, FindingKind.POWER_BRAKE)):
        hot = kind is FindingKind.THERMAL_THROTTLE
        where, span = {RACK: f"row-{number}"}, site.span()
        *machines, _ = (site.machine(A100, where=where) for _ in range(4))
        alone, alone_span = site.machine(A100), site.span()
        card = site.one(alone)
        for machine in (*machines, alone):
            begin, end = alone_span if machine is alone else span
            if not hot:
                site.scripts[machine.index].brakes.append((begin, end))
            for script in site.cards(machine, [card] if machine is alone else ()) if hot else ():
                script.hotter.append((begin, end, float(site.rng.uniform(2.6, 3.4))))
        every = "too hot" if hot else "braked by their power supply"
        site.case(f"three machines of a rack {every}", kind, machines, span, Right.NAMED, together=True)
        scene = "one card too hot" if hot else "one machine braked by its power supply"
        site.case(scene, kind, [alone], alone_span, Right.MOVED, [card] if hot else None)


# Faults until their repair was seen


def _repaired(site: _Site) -> None:
    kind = FindingKind.XID
    machine, (begin, end), card, script = site.spot()
    script.xids.append((begin, 95))
    script.steps["ecc_dbe"].append((begin, 1.0))
    script.states["recovery"].append((begin, end, 1.0))
    script.counter_resets.append(end)
    site.case("XID 95, then a reset", kind, [machine], (begin, end), Right.MOVED, [card])
    site.case("after a reset that was seen", kind, [machine], (end + 1.5 * HOUR, FOREVER), Right.NOTHING, [card])
    machine, (begin, end), card, script = site.spot()
    script.xids.extend((begin + 400 * turn, 119) for turn in range(3))
    script.states["recovery"].append((begin, end, 2.0))
    _reboot(site, machine, end)
    site.case("XID 119, then a reboot", kind, [machine], (begin, end), Right.MOVED, [card])
    site.case("after a reboot that was seen", kind, [machine], (end + 1.5 * HOUR, FOREVER), Right.NOTHING, [card])


def not_repaired(site: _Site) -> None:
    """DCGM's host engine starts anew, so the gauge forgets the XID; the GPU was not reset."""
    kind = FindingKind.XID
    machine, (begin, _), card, script = site.spot()
    script.xids.append((begin, 140))
    restart = begin + float(site.rng.uniform(1, 3)) * HOUR
    site.scripts[machine.index].exporter_down.append((restart, restart + 90))
    site.scripts[machine.index].exporter_restarts.append(restart)
    site.case("XID 140 that nothing repaired", kind, [machine], (begin, FOREVER), Right.MOVED, [card])
    late = (begin + 8 * HOUR, FOREVER)
    site.case("the same, eight hours later, forgotten by the exporter", kind, [machine], late, Right.MOVED, [card])


def contained(site: _Site) -> None:
    machine, span, card, script = site.spot()
    script.xids.append((span[0], 94))
    script.steps["ecc_dbe"].append((span[0], 1.0))
    script.steps["rows_uncorrectable"].append((span[0], 1.0))
    script.states["remap_pending"].append((*span, 1.0))
    script.watches["MEM"].append((*span, 10, "DCGM_FR_VOLATILE_DBE_DETECTED"))
    script.counter_resets.append(span[1])
    scene = "XID 94: contained, a row waits for its remapping"
    site.case(scene, FindingKind.ECC, [machine], span, Right.TAINTED, [card])


# XIDs, health watches and the driver's recovery action, beside other signs


class _Signs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row of health_signs.yaml, which says what the fields mean. right: the name of a `Right`. The drivers here set
    the recovery action after 48, 74 and 120, so that its 'none' calls these off."""

    scene: str
    kind: FindingKind
    right: str
    xids: tuple[tuple[float, tuple[int, ...]], ...] = ()
    states: dict[str, float] = {}
    watch: tuple[str, float, str] | None = None
    rates: dict[str, float] = {}
    steps: tuple[str, ...] = ()
    asked: bool = True


_XID = FindingKind.XID
_LISTED = yaml.safe_load(Path(__file__).with_name("health_signs.yaml").read_text(encoding="utf-8"))
_SIGNS = checked(_LISTED, tuple[_Signs, ...], "health_signs.yaml")


def signs(site: _Site) -> None:
    for one in _SIGNS:
        machine, (begin, end), card, script = site.spot(size=4, watched=True)
        script.xids.extend((begin + 60 * minutes, int(site.rng.choice(codes))) for minutes, codes in one.xids)
        if not one.asked:
            site.unread.append((_ACTIONS, frozenset({machine.cards[card].uuid}), (0.0, FOREVER)))
        for state, value in one.states.items():
            script.states[state].append((begin, end, value))
        if one.watch is not None:
            watch, status, error = one.watch
            script.watches[watch].append((begin, end, status, error))
        for counter, per_minute in one.rates.items():
            script.rates[counter].append((begin, end, per_minute / 60))
        for counter in one.steps:
            script.steps[counter].append((begin, 1.0))
        script.counter_resets.append(end)
        site.case(one.scene, one.kind, [machine], (begin, end), Right[one.right], [card])


def _two_of_a_gang(site: _Site) -> None:
    """No program causes these XIDs, not even on two Nodes of its gang."""
    machines = [site.machine(works=False) for _ in range(2)]
    site.job(machines)
    (begin, end), code = site.span(), int(site.rng.choice([64, 79, 140]))
    for number, machine in enumerate(machines):
        card = site.one(machine)
        site.cards(machine, [card])[0].xids.append((begin + 90.0 * number, code))
        scene = "XID 64, 79 or 140 on two Nodes of a gang"
        site.case(scene, _XID, [machine], (begin, end), Right.MOVED, [card], fades=timedelta(days=2))


def _domain_155(site: _Site) -> None:
    """XID 155, a link is down, all over an NVLink domain: one switch, not six Nodes."""
    where, (begin, _) = site.domain(), site.span()
    machines = [site.machine(GB200, 4, where) for _ in range(6)]
    for machine in machines:
        for script in site.cards(machine):
            script.xids.append((begin + float(site.rng.uniform(0, 20)), 155))
    scene, cards = "XID 155 all over an NVLink domain", range(4)
    site.case(scene, _XID, machines, (begin, begin + HOUR), Right.NAMED, cards, together=True)


def _reboot(site: _Site, machine: Machine, at: float) -> None:
    site.scripts[machine.index].reboot(at, 300.0)
    site.boots[machine.name].append(at + 60)


# Pods that die


_PROGRAMS = 12


def _pods(site: _Site) -> None:
    """Eight machines with a Job after another on each card. One kills most Pods, another has one GPU that does; on a
    third one program always dies, a fourth is drained. The kubelet of a fifth has no healthy device for most Pods; on
    a sixth it refuses those that run there when the Node boots (kubernetes/kubernetes#125579)."""
    rng = site.rng
    machines = [site.machine(A100, works=False) for _ in range(8)]
    hole, lemon, selected, drained, refuses, boots, *_ = machines
    card = site.one(lemon)
    spans = {machine.index: site.span(lasts=True) for machine in machines}
    kills = rng.uniform(0.6, 0.95, 2)
    dying = np.minimum(rng.beta(0.4, 4.0, _PROGRAMS), 0.5)
    dying[-1] = 0.9  # dies everywhere
    frequent = rng.dirichlet(np.full(_PROGRAMS, 2.0))
    for machine in machines:
        begin = spans[machine.index][0]
        for each in machine.cards:
            at = -float(rng.uniform(0, 1)) * HOUR
            while at < site.plan.seconds:
                program = int(rng.choice(_PROGRAMS, p=frequent))
                own = machine is selected and rng.random() < 0.4
                chance = 1.0 if own else dying[program]
                if at >= begin and (machine is hole or (machine is lemon and each.index == card)):
                    chance = max(chance, float(kills[int(machine is lemon)]))
                dies = bool(rng.random() < chance)
                end = at + (float(rng.uniform(60, 400)) if dies else float(rng.uniform(20, 80)) * 60)
                phase, reason = ("Failed", "Error") if dies else ("Succeeded", "Completed")
                if machine is drained and at < begin < end:
                    end, phase, reason = begin, "Failed", "deleted"
                elif machine is refuses and at >= begin and rng.random() < kills[0]:
                    end, phase, reason = at + float(rng.uniform(1, 3)), "Failed", REFUSED
                elif machine is boots and at < begin < end:
                    end, phase, reason = begin + 60.0, "Failed", REFUSED
                site.jobs.append(
                    _short_job(site, Place(machine.index, each.index), at, end, -1 if own else program, phase, reason)
                )
                at = end + float(rng.uniform(60, 400))
    kind, fades = FindingKind.POD_FAILURES, timedelta(hours=6.5)
    site.case("a Node on which Pods die", kind, [hole], spans[hole.index], Right.NAMED, fades=fades)
    site.case("a GPU on which Pods die", kind, [lemon], spans[lemon.index], Right.NAMED, [card], fades=fades)
    scene = "a Node whose kubelet refuses Pods"
    site.case(scene, kind, [refuses], spans[refuses.index], Right.NAMED, fades=fades)
    site.case("a program that always dies, on its own Node", kind, [selected], WHOLE, Right.NOTHING)
    site.case("a Node that is drained", kind, [drained], WHOLE, Right.NOTHING)
    _reboot(site, boots, spans[boots.index][0] - 60.0)
    site.case("a Node that boots, and refuses the Pods that ran there", kind, [boots], WHOLE, Right.NOTHING)
    for machine in machines[6:]:
        site.case("Pods that die as often as elsewhere", kind, [machine], WHOLE, Right.NOTHING)


def _short_job(
    site: _Site, place: Place, begin: float, end: float, program: int, phase: str, reason: str
) -> tuple[Run, str, str]:
    team = NAMES.teams[program % len(NAMES.teams)]
    image = f"registry.example.com/{team}/program-{program}:{site.plan.seed % 7}"
    workload = site.scheduler.new_workload("Job", team, f"run-{len(site.jobs)}", begin, image)
    behaviour = Behaviour(activity=WorkKind.BATCH, sm_level=float(site.rng.uniform(0.3, 0.8)), memory_share=0.4)
    run = site.scheduler.run(workload, ((place,),), begin, end, behaviour)
    run.failed_at = end if phase == "Failed" else None
    site.runs.append(run)
    return run, phase, reason


# Gangs


def _gangs(site: _Site) -> None:
    """Two gangs that hold a machine each and want another; and one that waits for more than a second one holds."""
    silent = Behaviour(activity=WorkKind.SILENT, memory_share=0.0, keeps_context=True)
    kind = FindingKind.PARTIAL_GANG
    for wants, scene, says in (
        ((1, 1), "two gangs that wait for each other", "wait for each other's GPUs"),
        ((2, 1), "a gang that another one's release does not help", ""),
    ):
        start = float(site.rng.choice(site.starts))
        for waiting in wants:
            machine = site.machine(A100, 8, works=False)
            run = site.job([machine], silent, waiting)
            run.start, run.state = start, ""
            pods = frozenset(f"{run.workload.namespace}/{pod.name}" for pod in run.pods if pod.places)
            site.case(scene, kind, [machine], (start, FOREVER), Right.MOVED, says=says, pods=pods)


# Of Nodes, beside what else is planted there


def _node_conditions(site: _Site) -> None:
    chosen = site.rng.permutation(len(site.machines))[:5]
    bad, second, well, unknown, past = (site.machines[int(index)] for index in chosen)
    known = list(node_conditions().values())
    kind = FindingKind.NODE_CONDITION
    for machine in (bad, second):
        row, span = known[int(site.rng.integers(len(known)))], site.span()
        site.conditions[machine.name].append((row.type, row.bad_status, span))
        site.case("another detector's condition", kind, [machine], span, Right.NAMED, fades=timedelta())
    for row in known:
        site.conditions[well.name].append((row.type, "False" if row.bad_status == "True" else "True", WHOLE))
    site.conditions[unknown.name].append(("ExampleMaintenanceDue", "True", WHOLE))
    row, (begin, _) = known[int(site.rng.integers(len(known)))], site.span()
    site.conditions[past.name].append((row.type, "Unknown", (begin, FOREVER)))
    for machine, scene in (
        (well, "conditions that say that all is well"),
        (unknown, "a condition that no detector is known for"),
        (past, "a condition whose detector no longer reports"),
    ):
        site.case(scene, kind, [machine], WHOLE, Right.NOTHING)


def _infiniband(site: _Site) -> None:
    rng, plan, kind = site.rng, site.plan, FindingKind.INFINIBAND
    steps, seconds = plan.steps, plan.sample_seconds
    for machine in site.machines:
        site.ports[machine.name] = {
            f"mlx5_{number}": {
                _STATE: np.full(steps, 1.0 if number == 2 else 4.0),
                _RATE: np.full(steps, (5e10, 5e10, 1e9, 2.5e10)[number]),
                _DOWNED: np.full(steps, float(rng.poisson(1.0))),
                _SYMBOLS: np.cumsum(rng.poisson(0.02, steps)).astype(float),
            }
            for number in range(4)
        }
        # RoCE: the kernel lists its ports too; without the counters of InfiniBand. The second is not connected.
        for number in range(2):
            state, rate = np.full(steps, 4.0 - 3.0 * number), np.full(steps, 1.25e10)
            site.ports[machine.name][f"rocep{number}"] = {_STATE: state, _RATE: rate}
    leaves: dict[str, list[Machine]] = defaultdict(list)
    for machine in site.machines:
        leaves[site.labels[machine.name][LEAF]].append(machine)
    whole = [machines for machines in leaves.values() if len(machines) == 4]
    switch = whole[int(rng.integers(len(whole)))]
    # Beside the leaf, so that each place has a cause of its own; one a leaf, as two are half of it.
    free = [machines[int(rng.integers(len(machines)))] for machines in whole if machines is not switch]
    rng.shuffle(free)
    down, flaps, slow, noisy, once, few, roce, slower = free[:8]
    fades = timedelta(hours=6.5)

    def during(span: Span) -> Mask:
        return (seconds >= span[0]) & (seconds < span[1])

    def port(machine: Machine) -> Port:
        return site.ports[machine.name]["mlx5_0"]

    spans = {machine.name: site.span() for machine in free[:8]}
    port(down)[_STATE][during(spans[down.name])] = 1.0
    site.case("a port that is down", kind, [down], spans[down.name], Right.NAMED, fades=fades)
    begin, end = spans[flaps.name]
    for at in np.arange(begin + 300, end, 1500.0):
        port(flaps)[_DOWNED][seconds >= at] += 1
    site.case("a port that goes down again and again", kind, [flaps], (begin, end), Right.NAMED, fades=fades)
    port(slow)[_RATE][during(spans[slow.name])] = 2.5e10
    site.case("a port that is slower than before", kind, [slow], spans[slow.name], Right.NAMED, fades=fades)
    added = np.where(during(spans[noisy.name]), plan.interval_seconds * float(rng.uniform(2, 9)), 0.0)
    port(noisy)[_SYMBOLS] += np.cumsum(added)
    site.case("symbol errors of a port", kind, [noisy], spans[noisy.name], Right.NAMED, fades=fades)
    site.ports[roce.name]["rocep0"][_STATE][during(spans[roce.name])] = 1.0
    site.case("a port of RoCE that is down", kind, [roce], spans[roce.name], Right.NAMED, fades=fades)
    site.ports[slower.name]["rocep0"][_RATE][during(spans[slower.name])] = 1.25e9
    site.case("a port of RoCE that is slower than before", kind, [slower], spans[slower.name], Right.NAMED, fades=fades)
    port(once)[_DOWNED][seconds >= spans[once.name][0]] += 1
    site.case("a port that went down once", kind, [once], WHOLE, Right.NOTHING)
    port(few)[_SYMBOLS] += np.cumsum(np.full(steps, 2500 / (6 * HOUR) * plan.interval_seconds))
    site.case("fewer symbol errors than InfiniBand allows", kind, [few], WHOLE, Right.NOTHING)
    span = site.span()
    for machine in switch[:3]:
        port(machine)[_STATE][during(span)] = 1.0
    scene = "ports of three of a leaf switch's four Nodes are down"
    site.case(scene, kind, switch[:3], span, Right.NAMED, together=True, fades=fades)


_BESIDE = (_node_conditions, _infiniband)
"""Scenes on Nodes of others; they have no machines of their own."""
_SCENES: tuple[Callable[[_Site], None], ...] = (
    links_not_trained,
    _manager_not_started,
    _needs_no_manager,
    _fabric_unhealthy,
    _imex,
    _nvlink5,
    board,
    _rack,
    _repaired,
    not_repaired,
    contained,
    _gangs,
    *_BESIDE,
)
FLEETS = (_SCENES, (switches, access, to_cpu, lanes, signs, _two_of_a_gang, _domain_155, _pods))
"""Two fleets for each seed, as no rule names single GPUs by their Pods where there are more than 256 devices. Each has
about 45 machines of four or eight GPUs, some 220 GPUs."""
