"""Plants idle allocations, and allocations that only look idle, into a filled fleet."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from gpuwatch.model.decision import FindingKind
from gpuwatch.simulate import names
from gpuwatch.simulate.behaviour import Behaviour, WorkKind
from gpuwatch.simulate.plan import DAY, HOUR, FleetPlan
from gpuwatch.simulate.runs import Run
from gpuwatch.simulate.schedule import Scheduler, Slot
from gpuwatch.simulate.states import last_active


@dataclass(frozen=True, kw_only=True)
class Wish:
    """One thing to plant: `gpus` devices, `uses` of the slots that may take it, hours of life before `idle_from`."""

    gpus: int
    uses: tuple[str, ...]
    framework: str
    note: str
    kind: FindingKind | None
    behaviour: Callable[[np.random.Generator], Behaviour]
    works_hours: tuple[float, float] = (0.0, 0.0)
    young: bool = False


def _never(context: bool) -> Callable[[np.random.Generator], Behaviour]:
    def make(_: np.random.Generator) -> Behaviour:
        return Behaviour(activity=WorkKind.SILENT, memory_share=0.0, keeps_context=context)

    return make


def _then_stops(activity: WorkKind, *, memory: bool, context: bool) -> Callable[[np.random.Generator], Behaviour]:
    def make(rng: np.random.Generator) -> Behaviour:
        return Behaviour(
            activity=activity,
            sm_level=float(rng.uniform(0.3, 0.8)),
            memory_share=float(rng.uniform(0.45, 0.9)) if memory else float(rng.uniform(0.1, 0.6)),
            requests_per_second=1 / float(rng.uniform(30, 400)),
            request_seconds=float(rng.uniform(20, 90)),
            keeps_memory=memory,
            keeps_context=context,
        )

    return make


def _starts_soon(rng: np.random.Generator) -> Behaviour:
    return Behaviour(activity=WorkKind.TRAINING, sm_level=0.7, warmup_seconds=float(rng.uniform(2400, 4800)))


def _one_device(rng: np.random.Generator) -> Behaviour:
    return Behaviour(activity=WorkKind.TRAINING, sm_level=float(rng.uniform(0.4, 0.8)), working_devices=1)


_JOB, _HUMAN = ("job",), ("human", "job")
_WISHES = (
    Wish(
        gpus=1, uses=_HUMAN, framework="Notebook", kind=FindingKind.ABANDONED, works_hours=(3, 20),
        note="a notebook was used, then its kernel was shut down and nobody came back",
        behaviour=_then_stops(WorkKind.HUMAN, memory=False, context=False),
    ),
    Wish(
        gpus=1, uses=_HUMAN, framework="Bare", kind=FindingKind.NEVER_USED,
        note="a Pod sleeps on its GPU and never opened a CUDA context", behaviour=_never(context=False),
    ),
    Wish(
        gpus=1, uses=_JOB, framework="Deployment", kind=FindingKind.MODEL_LOADED, works_hours=(8, 40),
        note="a service whose traffic was moved away for good; the model stays in memory",
        behaviour=_then_stops(WorkKind.SERVING, memory=True, context=True),
    ),
    Wish(
        gpus=8, uses=_JOB, framework="PyTorchJob", kind=FindingKind.NEVER_USED,
        note="a gang that waits for a rendezvous that never happens", behaviour=_never(context=True),
    ),
    Wish(
        gpus=1, uses=_HUMAN, framework="Job", kind=FindingKind.NEVER_USED,
        note="a process opened a CUDA context and never launched a kernel", behaviour=_never(context=True),
    ),
    Wish(
        gpus=8, uses=_JOB, framework="Job", kind=None,
        note="an eight-GPU Pod whose script uses one device: the gang must be kept", behaviour=_one_device,
    ),
    Wish(
        gpus=1, uses=_JOB, framework="Job", kind=FindingKind.ABANDONED, works_hours=(2, 12),
        note="training ended, but its container sleeps on",
        behaviour=_then_stops(WorkKind.TRAINING, memory=False, context=True),
    ),
    Wish(
        gpus=1, uses=_HUMAN, framework="Job", kind=None, young=True,
        note="a young Pod that still prepares its data", behaviour=_starts_soon,
    ),
    Wish(
        gpus=1, uses=_HUMAN, framework="Notebook", kind=FindingKind.MODEL_LOADED, works_hours=(2, 10),
        note="a notebook with a loaded model that nobody came back to",
        behaviour=_then_stops(WorkKind.HUMAN, memory=True, context=True),
    ),
    Wish(
        gpus=4, uses=_JOB, framework="JobSet", kind=FindingKind.NEVER_USED,
        note="a job that hangs before its first step", behaviour=_never(context=True),
    ),
    Wish(
        gpus=2, uses=_JOB, framework="Deployment", kind=FindingKind.MODEL_LOADED, works_hours=(0.2, 0.2),
        note="a service that loaded its model and never got a request",
        behaviour=_then_stops(WorkKind.SERVING, memory=True, context=True),
    ),
    Wish(
        gpus=1, uses=_HUMAN, framework="Job", kind=None, young=True,
        note="a young Pod that still pulls its data set", behaviour=_starts_soon,
    ),
)  # fmt: skip


def plant_idle(plan: FleetPlan, scheduler: Scheduler, slots: list[Slot], runs: list[Run]) -> list[Run]:
    """The runs with the planted ones; runs that overlap these are shortened, moved or dropped."""
    rng = plan.rng("idle")
    wanted = round(plan.gpus / 64 * len(_WISHES)) if plan.idle_allocations is None else plan.idle_allocations
    for number in range(wanted):
        wish = _WISHES[number % len(_WISHES)]
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
        start = window - float(rng.uniform(10, 50)) * 60
        end, idle_from = float("inf"), start
    else:
        scale = min(1.0, plan.days / 7)
        works = float(rng.uniform(*wish.works_hours)) * HOUR * scale
        # Large ones are found the same day and small ones after a day or two; the last ones still run.
        silent = float(rng.lognormal(np.log(11 if wish.gpus >= 4 else 36), 0.6)) * HOUR * scale
        lasts = works + silent
        start = float(rng.uniform(0.02, 0.95)) * (window - works)
        start = min(start, 0.92 * window - works) if start > 0 else 0.0
        idle_from = start + works
        end = start + lasts
        if end > window:
            end = float("inf")
    namespace = str(rng.choice(names.PRODUCTS if wish.framework == "Deployment" else names.TEAMS))
    name = {"Deployment": "api", "Notebook": "notebook", "Bare": "dev"}.get(wish.framework, "train")
    person = str(rng.choice(names.PEOPLE))
    workload = scheduler.new_workload(
        wish.framework,
        namespace,
        f"{person}-{name}",
        start,
        names.IMAGES["human" if name == "notebook" else "training"],
    )
    behaviour = wish.behaviour(rng)
    if wish.kind in (FindingKind.ABANDONED, FindingKind.MODEL_LOADED):
        behaviour = replace(behaviour, stops_at_seconds=idle_from)
    run = scheduler.run(workload, slot.seats, start, min(end, window + DAY), behaviour)
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
