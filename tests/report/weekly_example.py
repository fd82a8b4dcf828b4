"""Weekly reports to render: a fleet of 64 GPUs with everything that may be in a report, and one of an empty week.

The numbers are made up, and add up: teams are the sums of their workloads, the fleet that of its teams.
"""

import random
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from gpuwatch.facts.model.cluster import Sharing
from gpuwatch.facts.model.decision import (
    ActionKind,
    Advice,
    Coverage,
    Evidence,
    Family,
    Finding,
    FindingKind,
    Mode,
    Severity,
    Subject,
    SubjectKind,
    Verdict,
)
from gpuwatch.facts.model.remediation import Phase
from gpuwatch.facts.model.sizing import (
    Abstention,
    AbstentionKind,
    Change,
    EvidenceTier,
    MemoryNeed,
    MigPlan,
    NodeMigChange,
    Option,
    Outcome,
    OutcomeVerdict,
    Recommendation,
    SpeedEstimate,
    Target,
    TargetKind,
    Veto,
)
from gpuwatch.facts.model.telemetry import Gap, GapKind
from gpuwatch.facts.model.weekly import ActionTaken, DetectorRecord, TeamUse, Use, UsePoint, WeeklyReport, WorkloadUse
from gpuwatch.facts.model.workload_profile import WorkloadKey

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

TEAMS = {
    "vision": ("perception-train", "segmentation-sweep", "autolabel", "calibration", "depth-eval"),
    "nlp": ("reranker", "embedder", "summariser", "tokenizer-bench", "chat-backend"),
    "recsys": (LONG, "ctr-train", "feature-store-warmup", "ann-index-build", "candidate-serving"),
    "speech": ("asr-serving", "asr-train", "tts", "diarisation", "wakeword"),
    "research": ("jupyter-ada", "jupyter-grace", "ablation-0417", "diffusion-toy", "rl-gym"),
    "platform-data-science-and-experimentation-shared-services": ("nightly-etl", "ci-gpu-runner", "drift-monitor"),
    "robotics": ("sim-farm", "policy-train", "grasp-eval", "slam-bench", "teleop-inference"),
    "fraud": ("graph-train", "scorer", "backtest", "feature-gen", "explainers"),
}
_MODELS = ("A100-SXM4-80GB", "H100-SXM5-80GB", "A100-SXM4-40GB", "L40S", "MI300X")
_PRICES = {"A100-SXM4-80GB": 5.12, "H100-SXM5-80GB": 6.88, "A100-SXM4-40GB": 4.10, "L40S": 1.86}
_KINDS = ("Deployment", "Job", "PyTorchJob", "StatefulSet", "RayCluster")


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
    key = WorkloadKey(workload=workload, container="main", gpu_model=model)
    memory = MemoryNeed(
        need_bytes=7.4 * GIB,
        peak_bytes=6.2 * GIB,
        runs=9,
        headroom_ratio=0.12,
        elastic=False,
        reason="The peak of 9 runs was 6.2 GiB; 12 % and 0.5 GiB of context are added.",
    )
    current = Option(
        target=Target(kind=TargetKind.SAME, gpu_model=model, gpus_per_pod=1, resource="nvidia.com/gpu"),
        speed=_speed(1.0, 1.0, 1.0, tier),
        memory_bytes=80 * GIB,
        projected_cost_per_week=projected_cost_per_week,
        projected_saving_per_week=None if projected_cost_per_week is None else 0.0,
    )
    elsewhere = Target(
        kind=TargetKind.MODEL,
        gpu_model="L4",
        gpus_per_pod=1,
        resource="nvidia.com/gpu",
        instance_type="g6.2xlarge",
        region="us-east-1",
        price_per_hour=0.98,
        price_source="instances.csv, 2026-07-20",
    )
    chosen = Option(
        target=elsewhere
        if model in ("L40S", "MI300X")
        else Target(
            kind=TargetKind.MIG,
            gpu_model=model,
            gpus_per_pod=1,
            gpu_share_ratio=1 / 8,
            mig_profile="1g.10gb",
            resource="nvidia.com/mig-1g.10gb",
            price_per_hour=None if projected_cost_per_week is None else 0.73,
            price_source="instances.csv, 2026-07-20",
        ),
        speed=_speed(low_ratio, 0.97, 1.0, tier),
        memory_bytes=9.5 * GIB,
        projected_cost_per_week=None
        if projected_cost_per_week is None or projected_saving_per_week is None
        else projected_cost_per_week - projected_saving_per_week,
        projected_saving_per_week=projected_saving_per_week,
        projected_saving_gpu_hours_per_week=projected_saving_gpu_hours_per_week,
    )
    runner_up = Option(
        target=Target(
            kind=TargetKind.SHARED,
            gpu_model=model,
            gpus_per_pod=1,
            gpu_share_ratio=0.5,
            sharing=Sharing.MPS,
            partners=(WorkloadKey(f"Deployment/{namespace}/neighbour", "main", model),),
            resource="nvidia.com/gpu.shared",
        ),
        speed=_speed(0.9, 0.96, 1.0, tier),
        memory_bytes=40 * GIB,
        projected_cost_per_week=None if projected_cost_per_week is None else projected_cost_per_week / 2,
        projected_saving_per_week=None if projected_cost_per_week is None else projected_cost_per_week / 2,
        projected_saving_gpu_hours_per_week=84.0,
    )
    vetoed = (
        Option(
            target=Target(
                kind=TargetKind.MODEL, gpu_model="T4", gpus_per_pod=1, instance_type="g4dn.2xlarge", region="us-east-1"
            ),
            speed=_speed(0.31, 0.42, 0.58, tier),
            memory_bytes=14.7 * GIB,
            projected_cost_per_week=126.3,
            projected_saving_per_week=733.9,
            projected_saving_gpu_hours_per_week=0.0,
            vetoes=(Veto("speed", "At worst it runs at 31 % of today's speed; 90 % is asked for."),),
        ),
        Option(
            target=Target(kind=TargetKind.FEWER, gpu_model=model, gpus_per_pod=0),
            speed=_speed(0.0, 0.0, 0.0, tier),
            memory_bytes=0.0,
            vetoes=(
                Veto("memory", "It needs 7.4 GiB and would get none."),
                Veto("multi_gpu", "Its Pods have one GPU."),
            ),
        ),
    )
    return Recommendation(
        key=key,
        at=END,
        current=current,
        chosen=chosen,
        runner_up=runner_up,
        options=(chosen, runner_up, current, *vetoed),
        memory=memory,
        target_speed_ratio=0.9,
        confidence_ratio=0.86,
        change=Change(
            api_version="apps/v1" if kind in ("Deployment", "StatefulSet") else "batch/v1",
            kind=kind,
            namespace=namespace,
            name=name,
            patch={
                "spec": {
                    "template": {
                        "spec": {
                            "containers": [
                                {
                                    "name": "main",
                                    "resources": {"limits": {"nvidia.com/gpu": None, "nvidia.com/mig-1g.10gb": 1}},
                                }
                            ]
                        }
                    }
                }
            },
            prerequisites=("A Node pool with nvidia.com/mig.config=all-1g.10gb.",),
            note="Its Pods restart.",
        ),
        doing_nothing_cost_per_week=projected_saving_per_week,
        doing_nothing_gpu_hours_per_week=projected_saving_gpu_hours_per_week,
        reason="Its kernels occupy 11 % of the SMs and 6.2 GiB: a 1g.10gb slice holds both.",
        caveats=("Peaks shorter than 30 s are not seen.",),
    )


def abstention(
    kind: AbstentionKind, workload: str = "Job/vision/calibration", *, nearest: Option | None = None
) -> Abstention:
    why, help_ = _ABSTAINED[kind]
    return Abstention(
        key=WorkloadKey(workload=workload, container="main", gpu_model="A100-SXM4-80GB"),
        at=END,
        kind=kind,
        reason=why,
        resolve=help_,
        nearest=nearest,
    )


_ABSTAINED = {
    AbstentionKind.RIGHT_SIZED: ("Nothing cheaper reaches 90 % of its speed.", "Nothing: this is the answer."),
    AbstentionKind.COVERAGE: ("Only 41 % of its time was measured.", "Mend the exporter on node-7."),
    AbstentionKind.YOUNG: ("It has run for 2 h in 1 run; 3 h and 2 runs are needed.", "Wait for its next run."),
    AbstentionKind.SIGNALS: (
        "Only GPU_UTIL is exported, which cannot tell how much of a GPU it needs.",
        "Export DCGM_FI_PROF_SM_ACTIVE and DCGM_FI_PROF_DRAM_ACTIVE.",
    ),
    AbstentionKind.UNCERTAIN: ("3g.40gb gives 84 to 99 % of its speed; 90 % is asked for.", "Export SM_ACTIVE."),
    AbstentionKind.MEMORY_ELASTIC: (
        "It filled 72.1 of 80 GiB within its first minutes and stayed there: what it needs cannot be told.",
        "Try it once with a bounded memory fraction.",
    ),
    AbstentionKind.VETOED: ("The slices that would do have no NVLink, and it uses it.", "Nothing."),
    AbstentionKind.UNKNOWN_GPU: ("The catalog does not know 'NVIDIA X9000'.", "Name it in the settings."),
    AbstentionKind.UNKNOWN_OWNER: ("Its Pods' owner may not be read.", "Grant get on the owner's kind."),
    AbstentionKind.MOVED: ("It has run on L40S since Wednesday.", "Nothing: look at its newer profile."),
    AbstentionKind.FAILED: ("A slice of no size was offered.", "Report it with the capture of this moment."),
    AbstentionKind.IDLE: ("Nothing ran in this week.", "Release it rather than resize it."),
}


def mig_plan() -> MigPlan:
    return MigPlan(
        at=END,
        gpus_before=14,
        gpus_after=5,
        lower_bound_gpus=4,
        changes=(
            NodeMigChange(
                node="gpu-node-04",
                device="GPU-0f1e2d3c-1b1f-4b0e-9d53-0d1d3a0f9f11",
                index=2,
                gpu_model="A100-SXM4-80GB",
                before=("7g.80gb",),
                after=("1g.10gb",) * 7,
            ),
            NodeMigChange(
                node="gpu-node-03.eu-west-1.compute.internal",
                device="GPU-755b4166-1b1f-4b0e-9d53-0d1d3a0f9f11",
                index=0,
                gpu_model="A100-SXM4-80GB",
                before=(),
                after=("3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb"),
                displaced=("vision/perception-train-0", "nlp/reranker-6c9f7d5b5c-x2x7k"),
            ),
        ),
        order=("gpu-node-04", "gpu-node-03.eu-west-1.compute.internal"),
        freed=("GPU-11111111-1b1f-4b0e-9d53-0d1d3a0f9f11", "GPU-22222222-1b1f-4b0e-9d53-0d1d3a0f9f11"),
        moved=("fraud/backtest-0",),
        mig_parted={
            "version": "v1",
            "mig-configs": {
                "gpuwatch-1": [
                    {"devices": [2], "mig-enabled": True, "mig-devices": {"1g.10gb": 7}},
                ]
            },
        },
        node_labels={"gpu-node-04": "gpuwatch-1", "gpu-node-03.eu-west-1.compute.internal": "gpuwatch-2"},
        placements={"Deployment/nlp/reranker #0": "GPU-755b4166 3g.40gb"},
        unplaced=("Deployment/fraud/scorer needs 4g.40gb: no Node has room for it.",),
    )


def full_report() -> WeeklyReport:
    """64 GPUs, 8 teams, 38 workloads and every kind of unknown."""
    chance = random.Random(7)
    workloads = _workloads(chance)
    teams = _teams(workloads)
    recommendations = [item.recommendation for item in workloads if item.recommendation]
    idle, degraded = _idle(), _degraded()
    allocated = sum(team.use.allocated_gpu_hours for team in teams)
    fleet = Use(
        allocatable_gpu_hours=GPUS * HOURS,
        allocated_gpu_hours=allocated,
        busy_gpu_hours=sum(team.use.busy_gpu_hours for team in teams),
        sm_gpu_hours=sum(team.use.sm_gpu_hours or 0.0 for team in teams),
        unknown_gpu_hours=sum(team.use.unknown_gpu_hours for team in teams),
        idle_gpu_hours=sum(item.gpu_hours for item in idle),
        lost_gpu_hours=214.6,
        cost=GPUS * HOURS * 4.87,
        wasted_cost=33366.5,
        saving=sum(team.use.saving or 0.0 for team in teams),
        saving_gpu_hours=sum(team.use.saving_gpu_hours for team in teams),
        projected_saving_per_week=sum(item.chosen.projected_saving_per_week or 0.0 for item in recommendations)
        + 2150.0,
        projected_saving_gpu_hours_per_week=sum(
            item.chosen.projected_saving_gpu_hours_per_week for item in recommendations
        )
        + 504.0,
    )
    previous = replace(
        fleet,
        allocated_gpu_hours=allocated * 0.94,
        busy_gpu_hours=fleet.busy_gpu_hours * 1.03,
        wasted_cost=29840.2,
        lost_gpu_hours=96.0,
        saving=None,
        saving_gpu_hours=0.0,
        projected_saving_per_week=None,
        projected_saving_gpu_hours_per_week=0.0,
    )
    return WeeklyReport(
        version=1,
        at=END + timedelta(minutes=4),
        start=START,
        end=END,
        source="http://thanos-query.monitoring:9090",
        fleet=fleet,
        previous=previous,
        curve=_curve(allocated / HOURS, fleet.busy_gpu_hours / HOURS, chance),
        teams=teams,
        workloads=workloads,
        top_changes=tuple(
            sorted(
                recommendations,
                key=lambda item: (
                    -(item.chosen.projected_saving_per_week or 0.0),
                    -item.chosen.projected_saving_gpu_hours_per_week,
                ),
            )[:10]
        ),
        idle=idle,
        suspected=(
            replace(
                idle[-1],
                rule="idle.suspected_idle",
                kind=FindingKind.SUSPECTED_IDLE,
                verdict=Verdict.UNKNOWN,
                subject=Subject(SubjectKind.POD, "research/old-exporter-0"),
                summary="never worked in the 21 h since it started; only engine activity says so",
                missing=("power and memory activity of GPU-0f3a over the idle time",),
                gpu_hours=21.0,
            ),
        ),
        suspected_gpu_hours=21.0,
        suspected_cost=102.3,
        degraded=degraded,
        degraded_gpu_hours={degraded[0].id: 41.0},
        degraded_cost={degraded[0].id: 209.9},
        idle_cost={idle[0].id: 614.4, idle[1].id: 184.3},
        lost_gpu_hours_by_cause={"thermal_throttle": 121.5, "gpu_missing": 72.0, "xid": 21.1},
        outcomes=_outcomes(),
        actions=_actions(),
        detectors=(
            DetectorRecord(detector="abandoned", right=16, wrong=1, lower_ratio=0.730, upper_ratio=0.990),
            DetectorRecord(detector="row_remap", right=1, wrong=0, lower_ratio=0.207, upper_ratio=1.0),
        ),
        coverage=Coverage(
            devices=71,
            devices_present=70,
            devices_resolved=69,
            devices_allocated=52,
            devices_shared=3,
            health_unknown=2,
            idle_unknown=4,
            rules_limited={"health.ecc": ("ecc_dbe_volatile_total",), "idle.host_bound": ("sm_active_ratio",)},
        ),
        coverage_ratio=0.937,
        limits=(
            "No price is known for MI300X: sums of money leave them out. Name prices with the setting `prices`.",
            "Exporters average over their interval (30 s by default): shorter peaks are not seen.",
        ),
        gaps=(
            Gap(
                kind=GapKind.SIGNAL_MISSING,
                what="ecc_dbe_volatile_total",
                detail="No series of any vocabulary.",
            ),
            Gap(
                kind=GapKind.NODE_UNRESOLVED,
                what=f"host {HOSTILE}",
                detail="Telemetry's host is no Node of the cluster. Check the exporter's labels.",
            ),
            Gap(kind=GapKind.REFUSED, what="rayclusters.ray.io", detail="403: grant list on it."),
        ),
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
    return WeeklyReport(
        version=1,
        at=END,
        start=START,
        end=END,
        source="http://prometheus:9090",
        fleet=Use(allocatable_gpu_hours=None, allocated_gpu_hours=0.0, busy_gpu_hours=0.0),
        previous=None,
        curve=tuple(
            UsePoint(at=START + timedelta(hours=hour), allocatable_gpus=None, allocated_gpus=None, busy_gpus=None)
            for hour in range(168)
        ),
        teams=(),
        workloads=(),
        top_changes=(),
        idle=(),
        degraded=(),
        limits=("No use was measured between 2026-02-23 00:00 and 2026-03-02 00:00 UTC: this is unknown, not idle.",),
    )


def free_report() -> WeeklyReport:
    """A fleet whose price is known, and zero: nothing was wasted in money, and that is known."""
    report = full_report()
    return replace(
        report,
        fleet=replace(report.fleet, cost=0.0, wasted_cost=0.0, saving=0.0, projected_saving_per_week=0.0),
        currency="EUR",
    )


def huge_report(workloads: int) -> WeeklyReport:
    """As many workloads as asked for, a third with a recommendation, a third with an abstention."""
    report = full_report()
    many = tuple(
        WorkloadUse(
            workload=f"Deployment/team-{n % 200}/workload-{n:05}",
            namespace=f"team-{n % 200}",
            gpu_model="A100-SXM4-80GB",
            allocated_gpu_hours=168.0,
            busy_ratio=0.2,
            sm_active_ratio=None,
            memory_peak_bytes=6.2 * GIB,
            cost=860.2,
            saving=737.1 if n % 3 == 0 else 0.0,
            saving_gpu_hours=144.0 if n % 3 == 0 else 0.0,
            recommendation=recommendation(f"Deployment/team-{n % 200}/workload-{n:05}") if n % 3 == 0 else None,
            abstention=abstention(
                list(AbstentionKind)[n % len(AbstentionKind)], f"Deployment/team-{n % 200}/workload-{n:05}"
            )
            if n % 3 == 1
            else None,
        )
        for n in range(workloads)
    )
    findings = tuple(
        replace(report.idle[0], subject=Subject(SubjectKind.POD, f"team-{n % 200}/pod-{n}")) for n in range(workloads)
    )
    return replace(
        report,
        workloads=many,
        teams=tuple(replace(report.teams[0], namespace=f"team-{n}") for n in range(200)),
        idle=findings,
        degraded=tuple(replace(report.degraded[0], node=f"node-{n}") for n in range(workloads)),
        outcomes=report.outcomes * 100,
        gaps=report.gaps * 500,
    )


def _speed(low: float, likely: float, high: float, tier: EvidenceTier) -> SpeedEstimate:
    return SpeedEstimate(
        low_ratio=low,
        likely_ratio=likely,
        high_ratio=high,
        tier=tier,
        basis="SM activity bounds it, from 212 h of joint samples.",
    )


def _workloads(chance: random.Random) -> tuple[WorkloadUse, ...]:
    found = []
    kinds = list(AbstentionKind)
    names = [(team, name) for team, members in TEAMS.items() for name in members]
    names[7] = ("nlp", HOSTILE)
    names[11] = (HOSTILE_NAMESPACE, "quiet")
    names[12] = ("recsys", FORMULA)
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
            withheld = replace(
                abstention(kinds[(index // 3) % len(kinds)], workload), nearest=recommendation().runner_up
            )
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
                saving=0.0 if advised is None else None if price is None else price * hours * 0.5,
                saving_gpu_hours=0.0 if advised is None else hours * 0.5,
                recommendation=advised,
                abstention=withheld,
            )
        )
    return tuple(sorted(found, key=lambda item: (-item.allocated_gpu_hours, item.workload)))


def _teams(workloads: tuple[WorkloadUse, ...]) -> tuple[TeamUse, ...]:
    by_team: dict[str, list[WorkloadUse]] = defaultdict(list)
    for item in workloads:
        by_team[item.namespace].append(item)
    teams = []
    for team, members in by_team.items():
        models: dict[str, float] = defaultdict(float)
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
                namespace=team,
                use=Use(
                    allocatable_gpu_hours=None,
                    allocated_gpu_hours=allocated,
                    busy_gpu_hours=busy,
                    sm_gpu_hours=None if team == "fraud" else busy * 0.4,
                    unknown_gpu_hours=unknown,
                    idle_gpu_hours=96.0 if team == "research" else 0.0,
                    cost=sum(priced) if priced else None,
                    wasted_cost=sum(priced) * (1 - busy / allocated) if priced else None,
                    saving=sum(item.saving or 0.0 for item in members),
                    saving_gpu_hours=sum(item.saving_gpu_hours for item in members),
                    projected_saving_per_week=sum(known) if known else None,
                    projected_saving_gpu_hours_per_week=sum(
                        item.projected_saving_gpu_hours_per_week for item in savings
                    ),
                ),
                gpu_models=dict(sorted(models.items())),
                recommendations=len(savings),
                idle_allocations=2 if team == "research" else 0,
            )
        )
    return tuple(sorted(teams, key=lambda item: (-item.use.allocated_gpu_hours, item.namespace)))


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
    assert all(later.at - earlier.at == timedelta(hours=1) for earlier, later in pairwise(points))
    return tuple(points)


def _idle() -> tuple[Finding, ...]:
    def found(kind: FindingKind, pod: str, days: float, gpus: int, why: str) -> Finding:
        return Finding(
            rule=f"idle.{kind}",
            family=Family.IDLE,
            kind=kind,
            subject=Subject(SubjectKind.POD, pod),
            verdict=Verdict.IDLE,
            summary=why,
            severity=Severity.WARNING,
            advice=Advice.RECLAIM,
            confidence_ratio=0.94,
            since=END - timedelta(days=days),
            devices=tuple(f"GPU-{pod}-{n}" for n in range(gpus)),
            pods=(pod,),
            node="gpu-node-05",
            gpu_hours=days * 24 * gpus,
        )

    return (
        found(
            FindingKind.ABANDONED,
            "research/jupyter-ada-0",
            2.5,
            2,
            "Silent for 2 d 12 h; its own past explains no more than 6 h 10 min.",
        ),
        found(FindingKind.MODEL_LOADED, f"speech/{LONG}-0", 1.5, 1, "Silent for 1 d 12 h with 38.2 GiB in memory."),
        replace(
            found(FindingKind.NEVER_USED, f"nlp/{HOSTILE}", 0.5, 1, f"No kernel ran since {HOSTILE} began."),
            since=None,
        ),
    )


def _degraded() -> tuple[Finding, ...]:
    def found(
        kind: FindingKind, device: str, node: str | None, severity: Severity, advice: Advice, why: str
    ) -> Finding:
        return Finding(
            rule=f"health.{kind}",
            family=Family.HEALTH,
            kind=kind,
            subject=Subject(SubjectKind.DEVICE, device),
            verdict=Verdict.DEGRADED,
            summary=why,
            severity=severity,
            advice=advice,
            confidence_ratio=0.97,
            since=END - timedelta(hours=41),
            evidence=(
                Evidence(signal="row_remap_failed_state", value=1.0, comparison="==", bound=1.0, statistic="last"),
            ),
            devices=(device,),
            node=node,
            gpu_hours=41.0,
        )

    return (
        found(
            FindingKind.ROW_REMAP,
            "GPU-755b4166-1b1f-4b0e-9d53-0d1d3a0f9f11",
            "gpu-node-03.eu-west-1.compute.internal",
            Severity.CRITICAL,
            Advice.REPLACE,
            "A memory row could not be remapped.",
        ),
        replace(
            found(
                FindingKind.THERMAL_THROTTLE,
                "GPU-0f1e2d3c-0000-4b0e-9d53-0d1d3a0f9f11/7",
                None,
                Severity.WARNING,
                Advice.INSPECT,
                "Throttled for 38 % of the last day, its peers for 0 %.",
            ),
            since=None,
            gpu_hours=0.0,
        ),
    )


def _outcomes() -> tuple[Outcome, ...]:
    def became(
        name: str,
        verdict: OutcomeVerdict,
        low: float,
        high: float,
        measured: float | None,
        saved: float | None,
        *,
        reason: str = "",
    ) -> Outcome:
        return Outcome(
            key=WorkloadKey(f"Deployment/nlp/{name}", "main", "A100-SXM4-80GB"),
            recommended_at=START - timedelta(days=9),
            target=Target(kind=TargetKind.MIG, gpu_model="A100-SXM4-80GB", gpus_per_pod=1, mig_profile="2g.20gb"),
            predicted=_speed(low, (low + high) / 2, high, EvidenceTier.SM),
            verdict=verdict,
            applied_at=None if verdict is OutcomeVerdict.WAITING else START - timedelta(days=5),
            measured_speed_ratio=measured,
            saved_cost=saved,
            saved_gpu_hours=0.0 if verdict is OutcomeVerdict.WAITING else 96.0,
            reason=reason,
        )

    return (
        became("embedder", OutcomeVerdict.HIT, 0.92, 1.0, 0.98, 412.5, reason="It ran as fast as predicted."),
        became("chat-backend", OutcomeVerdict.HIT, 0.90, 0.99, 1.04, None, reason="It ran faster than predicted."),
        became(
            "summariser",
            OutcomeVerdict.MISS,
            0.91,
            0.99,
            0.78,
            -35.0,
            reason="It was killed for memory twice and ran at 78 % of its speed.",
        ),
        became("tokenizer-bench", OutcomeVerdict.UNKNOWN, 0.9, 1.0, None, None, reason="Nothing measured its speed."),
        became(HOSTILE, OutcomeVerdict.WAITING, 0.93, 0.98, None, None, reason="Not applied."),
    )
