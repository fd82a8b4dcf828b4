"""Weekly reports to render: a fleet of 64 GPUs with everything that may be in a report, and one of an empty week.

The numbers are made up, and add up: teams are the sums of their workloads, the fleet that of its teams. What is not
computed is in `weekly_example.yaml`.
"""

import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import msgspec
import yaml

from gpuwatch.facts.model.decision import ActionKind, Finding, Mode, Subject, SubjectKind
from gpuwatch.facts.model.grouping import grouped
from gpuwatch.facts.model.ledger import Row
from gpuwatch.facts.model.remediation import Phase
from gpuwatch.facts.model.sizing import (
    Abstention,
    AbstentionKind,
    EvidenceTier,
    MigPlan,
    Option,
    Recommendation,
    Target,
    by_worth,
)
from gpuwatch.facts.model.weekly import (
    ActionTaken,
    Amount,
    Left,
    LeftOver,
    Lever,
    LeverAccount,
    LeverKind,
    LeverPart,
    RowHours,
    Sureness,
    TeamUse,
    Use,
    UsePoint,
    WeeklyReport,
    WorkloadUse,
)
from gpuwatch.facts.model.workload_profile import WorkloadKey

T = TypeVar("T")

START = datetime(2026, 2, 23, tzinfo=UTC)
END = START + timedelta(days=7)
GPUS = 64
HOURS = 168.0
GIB = 1024.0**3

HOSTILE = '<img src=x onerror="document.title=1">&"\'`|*_[x](javascript:alert(1))'
HOSTILE_NAMESPACE = "<script>alert(1)</script>"
FORMULA = "=HYPERLINK(1)"
LONG = (
    "recommendation-candidate-generation-two-tower-retraining-nightly-europe-west-shadow-traffic-replay-controller-v2"
)
_NAMES = {"hostile": HOSTILE, "hostile_namespace": HOSTILE_NAMESPACE, "formula": FORMULA, "long": LONG}

_MODELS = ("A100-SXM4-80GB", "H100-SXM5-80GB", "A100-SXM4-40GB", "L40S", "MI300X")
_PRICES = {"A100-SXM4-80GB": 5.12, "H100-SXM5-80GB": 6.88, "A100-SXM4-40GB": 4.10, "L40S": 1.86}
_KINDS = ("Deployment", "Job", "PyTorchJob", "StatefulSet", "RayCluster")

_JSON = {
    name: msgspec.json.encode(value).decode()
    for name, value in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")).items()
}


def _made(section: str, type_: type[T], /, **values: object) -> T:
    """A section of the data as `type_`. values: for its $names; one that is all of a string may be anything."""

    def given(found: re.Match[str]) -> str:
        if whole := found[1]:
            return msgspec.json.encode(values[whole]).decode()
        return msgspec.json.encode(str(values[found[2]])).decode()[1:-1]

    values |= _NAMES
    return msgspec.json.decode(re.sub(r'"\$(\w+)"|\$(\w+)', given, _JSON[section]), type=type_)


def recommendation(
    workload: str = "Deployment/nlp/reranker",
    *,
    projected_saving_per_week: float | None = 737.1,
    projected_saving_gpu_hours_per_week: float = 144.0,
    projected_cost_per_week: float | None = 860.2,
    low_ratio: float = 0.93,
    tier: EvidenceTier = EvidenceTier.SM,
    model: str = "A100-SXM4-80GB",
) -> Recommendation:
    """A whole GPU to a slice, with options that are dearer, too slow, too small and not allowed."""
    kind, namespace, name = workload.split("/", 2)
    cost, saving = projected_cost_per_week, projected_saving_per_week
    target = "target_elsewhere" if model in ("L40S", "MI300X") else "target_slice"
    return _made(
        "recommendation",
        Recommendation,
        workload=workload,
        kind=kind,
        namespace=namespace,
        name=name,
        api_version="apps/v1" if kind in ("Deployment", "StatefulSet") else "batch/v1",
        model=model,
        target=_made(target, Target, model=model, price=None if cost is None else 0.73),
        tier=tier,
        low=low_ratio,
        cost=cost,
        half=None if cost is None else cost / 2,
        nothing=None if cost is None else 0.0,
        rest=None if cost is None or saving is None else cost - saving,
        saving=saving,
        hours=projected_saving_gpu_hours_per_week,
    )


def abstention(
    kind: AbstentionKind, workload: str = "Job/vision/calibration", *, nearest: Option | None = None
) -> Abstention:
    why, help_ = _made("abstained", dict[AbstentionKind, tuple[str, str]])[kind]
    return Abstention(
        key=WorkloadKey(workload=workload, container="main", gpu_model="A100-SXM4-80GB"),
        at=END,
        kind=kind,
        reason=why,
        resolve=help_,
        nearest=nearest,
    )


def mig_plan() -> MigPlan:
    return _made("mig_plan", MigPlan)


def full_report() -> WeeklyReport:
    """64 GPUs, 8 teams, 38 workloads and every kind of unknown."""
    chance = random.Random(7)
    report = _made("report", WeeklyReport)
    workloads = _workloads(chance)
    teams = _teams(workloads)
    uses = [team.use for team in teams]
    advised = [item.recommendation for item in workloads if item.recommendation]
    allocated = sum(use.allocated_gpu_hours for use in uses)
    fleet = replace(
        report.fleet,
        allocated_gpu_hours=allocated,
        busy_gpu_hours=sum(use.busy_gpu_hours for use in uses),
        sm_gpu_hours=sum(use.sm_gpu_hours or 0.0 for use in uses),
        unknown_gpu_hours=sum(use.unknown_gpu_hours for use in uses),
        idle_gpu_hours=sum(item.gpu_hours for item in report.idle),
        cost=GPUS * HOURS * 4.87,
    )
    previous = replace(
        fleet,
        allocated_gpu_hours=allocated * 0.94,
        busy_gpu_hours=fleet.busy_gpu_hours * 1.03,
        wasted_cost=29840.2,
        out_of_service_gpu_hours=96.0,
    )
    return replace(
        report,
        fleet=fleet,
        previous=previous,
        rows=_rows(fleet),
        curve=_curve(allocated / HOURS, fleet.busy_gpu_hours / HOURS, chance),
        teams=teams,
        workloads=workloads,
        top_changes=tuple(sorted(advised, key=by_worth)[:10]),
        actions=_actions(),
        levers=_levers(fleet, workloads, report.idle),
        cluster="eu-1",
    )


def _levers(fleet: Use, workloads: Sequence[WorkloadUse], idle: Sequence[Finding]) -> LeverAccount:
    """A release of each idle allocation, of which the plan refuses the second; the advised changes; what may save
    more. They add up with one reason for each kind of abstention."""
    price = 4.87
    others = (fleet.sm_gpu_hours or 0.0) + fleet.unknown_gpu_hours + fleet.out_of_service_gpu_hours
    wasted = Amount(gpu_hours=(fleet.capacity_gpu_hours or 0.0) - others, cost=fleet.wasted_cost)
    levers = [
        Lever(
            kind=LeverKind.RELEASE,
            sureness=Sureness.REFUSED if number == 1 else Sureness.SURE,
            subject=f"StatefulSet/{item.subject.name}",
            team=item.subject.name.partition("/")[0],
            wasted=Amount(gpu_hours=100.0, cost=100 * price),
            saving_per_week=168.0 * price,
            saving_gpu_hours_per_week=168.0,
            evidence=item.summary,
            needs="The highest confidence of its findings is 0.70; 0.80 is needed." if number == 1 else "",
            change=f"kubectl -n x patch statefulset.apps '{item.subject.name}' --type=merge",
            findings=(item.id,),
        )
        for number, item in enumerate(idle)
    ]
    levers += [
        Lever(
            kind=LeverKind.RESIZE,
            sureness=Sureness.CONDITION if advice.condition else Sureness.SURE,
            subject=use.workload,
            team=use.namespace,
            wasted=Amount(gpu_hours=1.0, cost=None if use.cost is None else price),
            saving_per_week=advice.chosen.projected_saving_per_week,
            saving_gpu_hours_per_week=advice.chosen.projected_saving_gpu_hours_per_week,
            evidence=advice.chosen.speed.basis,
            key=advice.key,
        )
        for use in workloads
        if (advice := use.recommendation) is not None
    ]
    part = LeverPart(name=f"Job/{HOSTILE_NAMESPACE}/{HOSTILE}", wasted=Amount(gpu_hours=9.0, cost=9 * price), why="A.")
    levers += [
        Lever(
            kind=kind,
            sureness=Sureness.UP_TO,
            wasted=Amount(gpu_hours=90.0, cost=90 * price),
            saving_per_week=90 * price,
            saving_gpu_hours_per_week=90.0,
            evidence="The ledger's hours.",
            needs="Something.",
            change="gpuwatch ledger",
            parts=(part, *(replace(part, name=f"Job/a/{number}", change="kubectl") for number in range(number + 5))),
        )
        for number, kind in enumerate(kind for kind in LeverKind if kind not in (LeverKind.RELEASE, LeverKind.RESIZE))
    ]
    order = list(Sureness)
    levers.sort(key=lambda item: (order.index(item.sureness), -(item.saving_per_week or 0.0)))
    sure = [item for item in levers if item.sureness is Sureness.SURE]
    rest = wasted.gpu_hours - sum(item.wasted.gpu_hours for item in levers)
    paid = (wasted.cost or 0.0) - sum(item.wasted.cost or 0.0 for item in levers)
    reasons = list(Left)
    return LeverAccount(
        useful=Amount(gpu_hours=fleet.sm_gpu_hours or 0.0, cost=price * (fleet.sm_gpu_hours or 0.0)),
        unknown=Amount(gpu_hours=fleet.unknown_gpu_hours, cost=None),
        out_of_service=Amount(gpu_hours=fleet.out_of_service_gpu_hours, cost=price * fleet.out_of_service_gpu_hours),
        wasted=wasted,
        levers=tuple(levers),
        left=tuple(
            LeftOver(
                left=why,
                wasted=Amount(gpu_hours=rest / len(reasons), cost=paid / len(reasons)),
                rows={Row.NO_KERNEL: 0.6 * rest / len(reasons), Row.FEW_SMS: 0.4 * rest / len(reasons)},
                workloads={}
                if why is Left.FREE
                else {f"Job/a/{n}": Amount(gpu_hours=1.0, cost=price) for n in range(10)},
                count=0 if why is Left.FREE else 12,
            )
            for why in reasons
        ),
        saving_per_week=sum(item.saving_per_week or 0.0 for item in sure),
        saving_gpu_hours_per_week=sum(item.saving_gpu_hours_per_week for item in sure),
    )


def _rows(fleet: Use) -> tuple[RowHours, ...]:
    """Rows that add up to the fleet's hours."""
    sm = fleet.sm_gpu_hours or 0.0
    quiet = fleet.allocated_gpu_hours - fleet.unknown_gpu_hours - fleet.busy_gpu_hours - fleet.idle_gpu_hours
    out = fleet.out_of_service_gpu_hours
    free = (fleet.capacity_gpu_hours or 0.0) - fleet.allocated_gpu_hours - out
    parts = (
        (Row.ABSENT, 0.5 * out, 0.0),
        (Row.DEGRADED, 0.3 * out, 0.0),
        (Row.MAINTENANCE, 0.1 * out, 0.1 * out),
        (Row.PULL, 0.05 * quiet, 0.0),
        (Row.LOAD, 0.15 * quiet, 0.0),
        (Row.NEVER_USED, 0.4 * fleet.idle_gpu_hours, 0.0),
        (Row.ABANDONED, 0.6 * fleet.idle_gpu_hours, 0.0),
        (Row.RESTING, 0.3 * quiet, 0.0),
        (Row.UNMEASURED, 0.0, fleet.unknown_gpu_hours),
        (Row.USABLE, 0.8 * free, 0.0),
        (Row.WAITED_FOR, 0.05 * free, 0.0),
        (Row.UNREACHABLE, 0.1 * free, 0.05 * free),
        (Row.NO_KERNEL, 0.5 * quiet, 0.0),
        (Row.FEW_SMS, fleet.busy_gpu_hours - sm, 0.0),
        (Row.USEFUL, sm, 0.0),
    )
    return tuple(
        RowHours(row=row, gpu_hours=known, unknown_gpu_hours=unknown, cost=4.87 * (known + unknown))
        for row, known, unknown in parts
    )


def _actions() -> tuple[ActionTaken, ...]:
    """One of each phase; names that want to be more than names."""
    found = []
    for index, phase in enumerate(Phase):
        kind = (ActionKind.RELEASE_GANG, ActionKind.TAINT_NODE, ActionKind.EVICT_GANG)[index % 3]
        where = "node/gpu-node-03.eu-west-1.compute.internal" if kind is ActionKind.TAINT_NODE else "gang/Job/nlp/tuner"
        released = kind is ActionKind.RELEASE_GANG and phase in (Phase.IN_EFFECT, Phase.SUCCEEDED, Phase.UNDONE)
        found.append(
            ActionTaken(
                name=f"{kind.replace('_', '-')}-{index}-0123456789-20260226",
                action=kind,
                target=f"gang/Job/{HOSTILE_NAMESPACE}/{HOSTILE}" if index == 2 else where,
                namespace="" if kind is ActionKind.TAINT_NODE else "nlp",
                pool="a100",
                gpus=8,
                mode=Mode.SUGGEST if index % 2 else Mode.ENFORCE,
                approved_by=HOSTILE if index == 5 else "",
                proposed_at=START + timedelta(days=3, hours=index),
                changed_at=START + timedelta(days=4, hours=index),
                phase=phase,
                reason="Silent for 38 h 10 min; no weekend of it was seen.",
                said=f"It was held back. {HOSTILE}" if index == 3 else "Its GPUs are free.",
                detectors=("abandoned",),
                released_gpu_hours=96.5 if released else 0.0,
            )
        )
    return tuple(reversed(found))


def empty_report() -> WeeklyReport:
    """A week in which nothing was measured: all of it is unknown, and none of it is zero."""
    hours = (START + timedelta(hours=hour) for hour in range(168))
    unknown = (UsePoint(at=at, allocatable_gpus=None, allocated_gpus=None, busy_gpus=None) for at in hours)
    return replace(_made("empty", WeeklyReport), curve=tuple(unknown))


def free_report() -> WeeklyReport:
    """A fleet whose price is known, and zero: nothing was wasted in money, and that is known."""
    report = full_report()
    return replace(
        report,
        fleet=replace(report.fleet, cost=0.0, wasted_cost=0.0),
        levers=replace(report.levers, saving_per_week=0.0),
        currency="EUR",
    )


def huge_report(workloads: int) -> WeeklyReport:
    """As many workloads as asked for, a third with a recommendation, a third with an abstention."""
    report = full_report()
    pod = report.idle[0]
    numbers, kinds = range(workloads), list(AbstentionKind)
    names = [f"Deployment/team-{n % 200}/workload-{n:05}" for n in numbers]
    many = tuple(
        WorkloadUse(
            workload=names[n],
            namespace=f"team-{n % 200}",
            gpu_model="A100-SXM4-80GB",
            allocated_gpu_hours=168.0,
            busy_ratio=0.2,
            sm_active_ratio=None,
            memory_peak_bytes=6.2 * GIB,
            cost=860.2,
            recommendation=None if n % 3 else recommendation(names[n]),
            abstention=abstention(kinds[n % len(kinds)], names[n]) if n % 3 == 1 else None,
        )
        for n in numbers
    )
    return replace(
        report,
        workloads=many,
        levers=_levers(report.fleet, many, ()),
        teams=tuple(replace(report.teams[0], team=f"team-{n}") for n in range(200)),
        idle=tuple(replace(pod, subject=Subject(SubjectKind.POD, f"team-{n % 200}/pod-{n}")) for n in numbers),
        degraded=tuple(replace(report.degraded[0], node=f"node-{n}") for n in numbers),
        outcomes=report.outcomes * 100,
        gaps=report.gaps * 500,
    )


def _workloads(chance: random.Random) -> tuple[WorkloadUse, ...]:
    found = []
    kinds = list(AbstentionKind)
    names = [(team, name) for team, *members in _made("workloads", list[list[str]]) for name in members]
    for index, (team, name) in enumerate(names):
        model = _MODELS[index % len(_MODELS)]
        price = _PRICES.get(model)
        hours = round(chance.uniform(20.0, 380.0), 1)
        workload = f"{_KINDS[index % len(_KINDS)]}/{team}/{name}"
        advised = None
        if index % 3 == 0:
            saved = None if price is None else round(price * hours * 0.62, 2)
            advised = recommendation(
                workload,
                model=model,
                projected_saving_per_week=saved,
                projected_saving_gpu_hours_per_week=round(hours * 0.62, 1),
                projected_cost_per_week=None if price is None else round(price * hours, 2),
                low_ratio=0.9 + index / 500,
                tier=list(EvidenceTier)[index % 3],
            )
        withheld = None
        if index % 3 == 1:
            nearest = recommendation().runner_up
            withheld = abstention(kinds[(index // 3) % len(kinds)], workload, nearest=nearest)
        found.append(
            WorkloadUse(
                workload=workload,
                namespace=team,
                gpu_model=model,
                allocated_gpu_hours=hours,
                busy_ratio=None if index % 9 == 8 else round(chance.uniform(0.05, 0.95), 3),
                sm_active_ratio=None if index % 4 == 1 else round(chance.uniform(0.02, 0.5), 3),
                memory_peak_bytes=None if index % 9 == 8 else chance.uniform(3, 70) * GIB,
                cost=None if price is None else price * hours,
                wasted_cost=None if price is None else price * hours * 0.5,
                recommendation=advised,
                abstention=withheld,
            )
        )
    return tuple(sorted(found, key=lambda item: (-item.allocated_gpu_hours, item.workload)))


def _teams(workloads: tuple[WorkloadUse, ...]) -> tuple[TeamUse, ...]:
    teams = []
    for team, members in grouped(workloads, lambda item: item.namespace).items():
        models = Counter[str]()
        for item in members:
            models[item.gpu_model] += item.allocated_gpu_hours
        priced = [item.cost for item in members if item.cost is not None]
        allocated = sum(item.allocated_gpu_hours for item in members)
        unknown = sum(item.allocated_gpu_hours for item in members if item.busy_ratio is None)
        busy = sum(item.allocated_gpu_hours * item.busy_ratio for item in members if item.busy_ratio is not None)
        savings = [item.recommendation.chosen for item in members if item.recommendation]
        known = [item.projected_saving_per_week for item in savings if item.projected_saving_per_week is not None]
        teams.append(
            TeamUse(
                team=team,
                use=Use(
                    capacity_gpu_hours=None,
                    allocated_gpu_hours=allocated,
                    busy_gpu_hours=busy,
                    sm_gpu_hours=None if team == "fraud" else busy * 0.4,
                    unknown_gpu_hours=unknown,
                    idle_gpu_hours=96.0 if team == "research" else 0.0,
                    cost=sum(priced) if priced else None,
                    wasted_cost=sum(priced) * (1 - busy / allocated) if priced else None,
                ),
                gpu_models=dict(sorted(models.items())),
                recommendations=len(savings),
                idle_allocations=2 if team == "research" else 0,
                saving_per_week=sum(known) if known else None,
                saving_gpu_hours_per_week=sum(each.projected_saving_gpu_hours_per_week for each in savings),
                left=Left.YOUNG,
            )
        )
    return tuple(sorted(teams, key=lambda item: (-item.use.allocated_gpu_hours, item.team)))


def _curve(allocated: float, busy: float, chance: random.Random) -> tuple[UsePoint, ...]:
    """Hours of a working week; eleven without any answer, and five in which the activity alone is not known."""
    points = []
    for hour in range(168):
        at = START + timedelta(hours=hour)
        swing = (1.1 if 8 <= at.hour < 20 else 0.93) * (0.85 if at.weekday() >= 5 else 1.05)
        held = min(allocated * swing + chance.uniform(-1.5, 1.5), float(GPUS))
        points.append(
            UsePoint(
                at=at,
                allocatable_gpus=None if 60 <= hour < 71 else float(GPUS - (1 if hour >= 120 else 0)),
                allocated_gpus=None if 60 <= hour < 71 else held,
                busy_gpus=None if 60 <= hour < 71 or 100 <= hour < 105 else min(busy * swing**2, held),
            )
        )
    return tuple(points)
