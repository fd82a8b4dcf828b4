"""Fills the fleet with workloads, before faults are planted.

Every slot (a device, some devices of a node, or several nodes) gets its own sequence of workloads with free time
between them. Services and notebooks stay for days; jobs follow each other.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from lab.simulate.behaviour import Behaviour, WorkKind
from lab.simulate.cards import Machine, make_suffix, make_uid
from lab.simulate.forms import fill
from lab.simulate.plan import DAY, HOUR, FleetPlan
from lab.simulate.runs import Place, PodLife, Run, SimulatedWorkload, resource_name
from lab.simulate.tables import NAMES

FOREVER = float("inf")


@dataclass(frozen=True, kw_only=True)
class Slot:
    """seats: the places of each Pod. use: gang, job, serve, human, batch."""

    use: str
    seats: tuple[tuple[Place, ...], ...]
    service: int = 0  # serve: slots of one number are replicas of one service

    @property
    def size(self) -> int:
        return sum(len(places) for places in self.seats)


class Scheduler:
    """Draws workloads. Holds the fleet's counters, so that names are unique and levels cover their distribution."""

    def __init__(self, plan: FleetPlan, machines: tuple[Machine, ...], rng: np.random.Generator) -> None:
        self.plan = plan
        self.machines = machines
        self.rng = rng
        self._used_names: dict[tuple[str, str], int] = {}
        self._levels = float(self.rng.random())

    def slots(self) -> list[Slot]:
        """How the machines are divided, by their role."""
        slots: list[Slot] = []
        service = 0
        served = ("", 0, "")
        waiting: list[Machine] = []
        for machine in self.machines:
            if machine.role == "gang":
                waiting.append(machine)
                if len(waiting) == 2:
                    slots.append(Slot(use="gang", seats=tuple(_whole(each) for each in waiting)))
                    waiting = []
                continue
            for use, places in _divide(machine):
                if use == "serve":
                    shape = (machine.model.label, len(places), resource_name(machine, places[0]))
                    if shape != served or self.rng.random() > 0.45:
                        service += 1
                    served = shape
                slots.append(Slot(use=use, seats=(places,), service=service))
        slots.extend(Slot(use="gang", seats=(_whole(machine),)) for machine in waiting)
        return slots

    def fill(self, slots: list[Slot]) -> list[Run]:
        services: dict[int, tuple[SimulatedWorkload, Behaviour]] = {}
        runs: list[Run] = []
        for slot in slots:
            if slot.use == "serve":
                replicas = sum(1 for other in slots if other.use == "serve" and other.service == slot.service)
                if slot.service not in services:
                    services[slot.service] = self._service(replicas, slot)
                runs.extend(self._replica_lives(slot, *services[slot.service]))
            elif slot.use == "batch":
                runs.extend(self._cron_runs(slot))
            else:
                runs.extend(self._tenants(slot))
        return runs

    def _tenants(self, slot: Slot) -> Iterator[Run]:
        rng = self.rng
        at = -float(rng.uniform(0, 30)) * HOUR
        while at < self.plan.seconds:
            kind = self._kind(slot)
            length = self._length(kind, slot)
            run = self.tenant(kind, slot, at, at + length)
            if run.end > 0:
                yield run
            gap = {"gang": 0.7, "job": 1.2, "human": 16.0}[slot.use]
            at = run.end + 300 + float(rng.exponential(gap)) * HOUR

    def _kind(self, slot: Slot) -> str:
        if slot.use == "human":
            return "human"
        if slot.use == "gang" or slot.size >= 8:
            return "training"
        weights = np.array([0.6, 0.28, 0.12])
        return str(self.rng.choice(["training", "short", "host_bound"], p=weights / weights.sum()))

    def _length(self, kind: str, slot: Slot) -> float:
        """Seconds. Medians: gangs a day, single-node training 11 h, short jobs 45 min, notebooks 5 days."""
        median, sigma = {
            "training": (24.0 if slot.use == "gang" else 11.0, 0.7),
            "short": (0.75, 1.1),
            "host_bound": (16.0, 0.5),
            "human": (110.0, 0.6),
        }[kind]
        return max(600.0, float(self.rng.lognormal(np.log(median), sigma)) * HOUR)

    def tenant(self, kind: str, slot: Slot, start: float, end: float) -> Run:
        rng = self.rng
        behaviour = self.tenant_behaviour(kind)
        if kind == "human":
            framework = str(rng.choice(["Notebook", "Notebook", "StatefulSet", "Bare"]))
            person = str(rng.choice(NAMES.people))
            name = f"{person}-{'dev' if framework == 'Bare' else 'notebook'}"
            workload = self.new_workload(framework, f"user-{person}", name, start, NAMES.images[kind])
        else:
            frameworks = ["Job"] if slot.size < 4 else ["Job", "JobSet", "PyTorchJob", "VolcanoJob"]
            if len(slot.seats) > 1:
                frameworks = ["JobSet", "PyTorchJob", "VolcanoJob", "Job"]
            workload = self.new_workload(
                str(rng.choice(frameworks)),
                str(rng.choice(NAMES.teams)),
                str(rng.choice(NAMES.workloads[kind])),
                start,
                NAMES.images[kind],
                priority_class=str(rng.choice(["", "training-high"])),
            )
        return self.run(workload, slot.seats, start, end, behaviour)

    def run(
        self,
        workload: SimulatedWorkload,
        seats: tuple[tuple[Place, ...], ...],
        start: float,
        end: float,
        behaviour: Behaviour,
        generation: int = 0,
    ) -> Run:
        pods = []
        for index, places in enumerate(seats):
            values = workload.values(generation, len(seats), index) | {"suffix": make_suffix(self.rng)}
            pods.append(PodLife(name=fill(workload.form.pod, values), uid=make_uid(self.rng), places=places))
        return Run(
            workload=workload,
            pods=tuple(pods),
            start=start,
            end=end,
            behaviour=behaviour,
            seed=int(self.rng.integers(2**31)),
            generation=generation,
        )

    def resumed(self, run: Run, start: float) -> Run:
        """The same workload again after its Pods were lost."""
        return self.run(
            run.workload, tuple(pod.places for pod in run.pods), start, run.end, run.behaviour, run.generation + 1
        )

    def tenant_behaviour(self, kind: str) -> Behaviour:
        """Of a tenant of this kind: training, short, host_bound or human."""
        rng = self.rng
        if kind == "host_bound":
            return Behaviour(
                activity=WorkKind.HOST_BOUND,
                sm_level=float(rng.uniform(0.03, 0.12)),
                memory_share=float(rng.uniform(0.1, 0.4)),
            )
        if kind == "human":
            return Behaviour(
                activity=WorkKind.HUMAN,
                sm_level=float(rng.uniform(0.15, 0.7)),
                memory_share=float(rng.uniform(0.05, 0.5)),
                request_seconds=float(rng.uniform(60, 240)),
                sessions_per_day=float(rng.uniform(1.5, 2.6)),
            )
        # Consecutive jobs take evenly spread quantiles, so that a small fleet matches the distribution too.
        self._levels = (self._levels + 0.6180339887) % 1.0
        shares, levels = zip(*NAMES.sm_levels, strict=True)
        return Behaviour(
            activity=WorkKind.TRAINING,
            sm_level=float(np.interp(self._levels, shares, levels)),
            memory_share=float(np.clip(rng.normal(0.77 if kind == "training" else 0.5, 0.1), 0.1, 0.93)),
            warmup_seconds=float(rng.uniform(120, 600)) if kind == "training" else float(rng.uniform(20, 120)),
        )

    def _service(self, replicas: int, slot: Slot) -> tuple[SimulatedWorkload, Behaviour]:
        """Busy, steady with quiet nights, seldom asked, or used in office hours only."""
        rng = self.rng
        team = str(rng.choice(NAMES.products))
        workload = self.new_workload(
            "Deployment",
            team,
            str(rng.choice(NAMES.workloads["serving"])),
            -float(rng.uniform(10, 120)) * DAY,
            NAMES.images["serving"],
            priority_class="serving",
            protected=bool(rng.random() < 0.6),
        )
        behaviour = self.service_behaviour(slot.size)
        if behaviour.requests_per_second < 0.1:
            # Except for busy services, the traffic is per replica, because the rates are small.
            return workload, behaviour
        return workload, replace(behaviour, requests_per_second=behaviour.requests_per_second / replicas)

    def service_behaviour(self, gpus: int) -> Behaviour:
        """Of one replica with so many devices; of a busy service, all of its traffic."""
        rng = self.rng
        kind = str(rng.choice(["busy", "nightly", "seldom", "office"], p=[0.1, 0.25, 0.5, 0.15]))
        quiet = float(rng.uniform(4, 10))
        common = Behaviour(
            activity=WorkKind.SERVING,
            sm_level=float(rng.uniform(0.2, 0.65)),
            memory_share=0.88 if gpus > 1 or rng.random() < 0.6 else float(rng.uniform(0.15, 0.6)),
            quiet_from_hour=(3.0 - quiet / 2 + float(rng.normal(0, 1))) % 24,
        )
        if kind == "busy":
            return replace(
                common, requests_per_second=float(rng.uniform(0.3, 2.0)), request_seconds=float(rng.uniform(4, 15))
            )
        if kind == "nightly":
            return replace(
                common,
                requests_per_second=1 / float(rng.uniform(20, 240)),
                request_seconds=float(rng.uniform(8, 60)),
                burstiness=float(rng.uniform(0.8, 1.3)),
                quiet_hours=quiet,
                weekend_factor=float(rng.uniform(0.3, 1.0)),
            )
        if kind == "seldom":
            return replace(
                common,
                requests_per_second=1 / (60 * float(rng.uniform(6, 30))),
                request_seconds=float(rng.uniform(20, 120)),
                burstiness=float(rng.uniform(0.6, 1.0)),
                weekend_factor=float(rng.uniform(0.5, 1.0)),
            )
        return replace(
            common,
            requests_per_second=1 / float(rng.uniform(60, 600)),
            request_seconds=float(rng.uniform(10, 60)),
            burstiness=float(rng.uniform(0.9, 1.3)),
            quiet_hours=10.0,
            quiet_from_hour=float(rng.uniform(20.0, 22.0)),
            weekend_factor=float(rng.uniform(0.15, 0.4)),
        )

    def _replica_lives(self, slot: Slot, workload: SimulatedWorkload, behaviour: Behaviour) -> Iterator[Run]:
        """Redeployed now and then, in working hours."""
        rng = self.rng
        start = max(workload.created_seconds, -float(rng.uniform(0.5, 20)) * DAY)
        if rng.random() < 0.12:
            start = float(rng.uniform(0.05, 0.6)) * self.plan.seconds
        generation = 0
        while start < self.plan.seconds:
            life = float(rng.exponential(8.0)) * DAY + 12 * HOUR
            end = start + life
            if end > self.plan.seconds:
                end = FOREVER
            if end > 0:
                yield self.run(workload, slot.seats, start, end, behaviour, generation)
            generation += 1
            start = end + float(rng.uniform(20, 120))

    def _cron_runs(self, slot: Slot) -> Iterator[Run]:
        rng = self.rng
        hours = float(rng.choice([4, 6, 12, 24]))
        workload = self.new_workload(
            "CronJob",
            str(rng.choice(NAMES.products)),
            str(rng.choice(NAMES.workloads["batch"])),
            -60 * DAY,
            NAMES.images["batch"],
        )
        behaviour = Behaviour(
            activity=WorkKind.BATCH, sm_level=float(rng.uniform(0.4, 0.8)), memory_share=float(rng.uniform(0.3, 0.7))
        )
        start = float(rng.uniform(-hours, 0)) * HOUR
        number = 0
        while start < self.plan.seconds:
            length = float(rng.uniform(0.3, 0.75)) * hours * HOUR
            yield self.run(workload, slot.seats, start, start + min(length, 6 * HOUR), behaviour, number)
            start += hours * HOUR
            number += 1

    def new_workload(
        self,
        framework: str,
        namespace: str,
        name: str,
        start: float,
        image: str,
        *,
        priority_class: str = "",
        protected: bool = False,
    ) -> SimulatedWorkload:
        number = self._used_names.get((namespace, name), 0)
        self._used_names[namespace, name] = number + 1
        return SimulatedWorkload(
            framework=framework,
            namespace=namespace,
            name=name if number == 0 else f"{name}-{number + 1}",
            uid=make_uid(self.rng),
            created_seconds=start - float(self.rng.uniform(5, 90)) if start > -5 * DAY else start,
            image=image,
            priority_class=priority_class,
            protected=protected,
        )


def _whole(machine: Machine) -> tuple[Place, ...]:
    return tuple(Place(machine.index, card.index) for card in machine.cards)


def _divide(machine: Machine) -> Iterator[tuple[str, tuple[Place, ...]]]:
    if machine.role == "job8":
        yield "job", _whole(machine)
        return
    if machine.role == "shared":
        for card in machine.cards:
            for replica in range(machine.replicas - 1):
                yield "serve", (Place(machine.index, card.index, "", replica),)
        return
    if machine.role == "serving":
        uses = ["serve", "serve", "serve", "batch"]
        for card in machine.cards:
            yield uses[card.index % 4], (Place(machine.index, card.index),)
        return
    whole = [card.index for card in machine.cards if not card.instances]
    if machine.role == "mig":
        uses = ["job", "human", "job", "job", "serve", "job"]
        for position, index in enumerate(whole):
            yield uses[position % len(uses)], (Place(machine.index, index),)
        for sliced in machine.cards:
            for number, instance in enumerate(sliced.instances):
                use = "human" if number % 5 == 4 else "serve"
                yield use, (Place(machine.index, sliced.index, instance.gi),)
        return
    yield from _mixed(machine, whole)


def _mixed(machine: Machine, whole: list[int]) -> Iterator[tuple[str, tuple[Place, ...]]]:
    """Slots of 4, 2 and 1 cards: jobs in front on A100 nodes, two-card services on H100 nodes."""
    shapes = [("job", 4), ("job", 1), ("human", 1), ("serve", 1), ("job", 1)]
    if machine.model.nvlink_megabytes_per_second > 400_000:
        shapes = [("serve", 2), ("serve", 2), ("job", 2), ("job", 1), ("human", 1)]
    at = 0
    while at < len(whole):
        for use, size in shapes:
            cards = whole[at : at + size]
            if not cards:
                return
            yield use, tuple(Place(machine.index, card) for card in cards)
            at += size
