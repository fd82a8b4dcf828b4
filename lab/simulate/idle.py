"""Plants idle allocations, and allocations that only look idle, into a filled fleet."""

from dataclasses import replace
from typing import Literal

import msgspec
import numpy as np

from gpuwatch.facts.model.decision import FindingKind
from lab.simulate.behaviour import Behaviour, WorkKind
from lab.simulate.plan import DAY, HOUR, FleetPlan
from lab.simulate.runs import Run
from lab.simulate.schedule import Scheduler, Slot
from lab.simulate.states import last_active
from lab.simulate.tables import NAMES, read_table


class Wish(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row of idle.csv: one thing to plant.

    uses: of the slots that may take it. kind: the kind of idleness; None: it only looks idle, being young, or using one
    of its devices alone. keeps: what stays on the device when it has stopped; memory needs the context too.
    least_hours, most_hours: of work before it stops. waiting: Pods of the gang without a place, beside those that fill
    the slot. state: see `Run`; 'starting' is made within the last minutes.
    """

    gpus: int
    uses: tuple[str, ...]
    framework: str
    kind: FindingKind | None = None
    young: bool = False
    activity: WorkKind
    keeps: Literal["", "context", "memory"] = ""
    least_hours: float = 0.0
    most_hours: float = 0.0
    waiting: int = 0
    state: str = ""
    note: str


_WISHES = [wish for wish in read_table("idle.csv", Wish) if not wish.waiting]
_GANGS = [wish for wish in read_table("idle.csv", Wish) if wish.waiting]


def _behaviour(wish: Wish, rng: np.random.Generator) -> Behaviour:
    keeps_context = wish.keeps != ""
    if wish.young:
        return Behaviour(activity=wish.activity, sm_level=0.7, warmup_seconds=float(rng.uniform(2400, 4800)))
    if wish.kind is None:
        working = 1 if not wish.waiting else None
        return Behaviour(activity=wish.activity, sm_level=float(rng.uniform(0.4, 0.8)), working_devices=working)
    if wish.kind in (FindingKind.NEVER_USED, FindingKind.PARTIAL_GANG):
        return Behaviour(activity=wish.activity, memory_share=0.0, keeps_context=keeps_context)
    keeps_memory = wish.keeps == "memory"
    return Behaviour(
        activity=wish.activity,
        sm_level=float(rng.uniform(0.3, 0.8)),
        memory_share=float(rng.uniform(0.45, 0.9) if keeps_memory else rng.uniform(0.1, 0.6)),
        requests_per_second=1 / float(rng.uniform(30, 400)),
        request_seconds=float(rng.uniform(20, 90)),
        keeps_memory=keeps_memory,
        keeps_context=keeps_context,
    )


def plant_idle(plan: FleetPlan, scheduler: Scheduler, slots: list[Slot], runs: list[Run]) -> list[Run]:
    """The runs with the planted ones; runs that overlap these are shortened, moved or dropped."""
    wanted = round(plan.gpus / 64 * len(_WISHES)) if plan.idle_allocations is None else plan.idle_allocations
    idle, gangs = plan.rng("idle"), plan.rng("gangs")
    wishes = [(_WISHES[number % len(_WISHES)], idle) for number in range(wanted)]
    wishes += [(_GANGS[number % len(_GANGS)], gangs) for number in range(plan.partial_gangs)]
    for wish, rng in wishes:
        fitting = [slot for slot in slots if slot.use in wish.uses and slot.size == wish.gpus]
        for _ in range(30 if fitting else 0):
            slot = fitting[int(rng.integers(len(fitting)))]
            planted = _planted(plan, scheduler, wish, slot, rng)
            taken = [run for run in runs if set(run.places) & set(planted.places)]
            if any(run.planted and run.start < planted.end + HOUR and planted.start < run.end + HOUR for run in taken):
                continue
            runs = [run for run in runs if not (run in taken and _make_room(run, planted))]
            runs.append(planted)
            break
    return runs


def _planted(plan: FleetPlan, scheduler: Scheduler, wish: Wish, slot: Slot, rng: np.random.Generator) -> Run:
    window = plan.seconds
    if wish.young:
        start = window - float(rng.uniform(10, 50)) * (10 if wish.state == "starting" else 60)
        end, idle_from = float("inf"), start
    else:
        scale = min(1.0, plan.days / 7)
        works = float(rng.uniform(wish.least_hours, wish.most_hours)) * HOUR * scale
        # Large ones are found the same day and small ones after a day or two; the last ones still run.
        silent = float(rng.lognormal(np.log(11 if wish.gpus >= 4 else 36), 0.6)) * HOUR * scale
        lasts = works + silent
        start = float(rng.uniform(0.02, 0.95)) * (window - works)
        start = min(start, 0.92 * window - works) if start > 0 else 0.0
        idle_from = start + works
        end = start + lasts
        if end > window:
            end = float("inf")
    namespace = str(rng.choice(NAMES.products if wish.framework == "Deployment" else NAMES.teams))
    name = {"Deployment": "api", "Notebook": "notebook", "Bare": "dev"}.get(wish.framework, "train")
    person = str(rng.choice(NAMES.people))
    workload = scheduler.new_workload(
        wish.framework,
        namespace,
        f"{person}-{name}",
        start,
        NAMES.images["human" if name == "notebook" else "training"],
    )
    behaviour = _behaviour(wish, rng)
    if wish.kind in (FindingKind.ABANDONED, FindingKind.MODEL_LOADED):
        behaviour = replace(behaviour, stops_at_seconds=idle_from)
    seats = (*slot.seats, *((),) * wish.waiting)
    run = scheduler.run(workload, seats, start, min(end, window + DAY), behaviour)
    run.state = wish.state
    run.idle, run.note, run.planted = wish.kind, wish.note, True
    if np.isfinite(behaviour.stops_at_seconds):
        # Its activity stops at its last work, not hours later, so that the idle time has one start.
        run.idle_from = last_active(plan, scheduler.machines, run)
        stops = min(behaviour.stops_at_seconds, run.idle_from + float(rng.uniform(30, 600)))
        run.behaviour = replace(behaviour, stops_at_seconds=stops)
    else:
        run.idle_from = max(run.start, 0.0)
    return run


def _make_room(run: Run, planted: Run) -> bool:
    """Shorten or move `run`; True if it must be dropped."""
    if run.end <= planted.start - 300 or run.start >= planted.end + 300:
        return False
    if run.start < planted.start - HOUR / 2:
        run.end = planted.start - 300
        return False
    if run.end > planted.end + HOUR / 2:
        run.start = planted.end + 300
        return False
    return True
