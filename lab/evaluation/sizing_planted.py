"""Planted cases of slice advice: Pods that their host bounds, Pods that decode video, and Pods that a slice does suit.

Each case is an A100-40GB Node and a workload that is light on its GPU, so that speed and memory never decide. What is
right is counted here from the Node's sizes alone: a slice frees something where the host takes more such Pods than it
has GPUs, and a Pod that decodes video needs a slice with a decoder. No code of the advice is used for it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np

from gpuwatch.facts.model.cluster import Cluster, Condition, Node, OwnerStatus, Pod, Workload
from gpuwatch.facts.model.sizing import Recommendation, TargetKind
from gpuwatch.facts.model.workload_profile import Cell, DayUse, MemoryRun, ProfileBook, WorkloadKey, WorkloadProfile
from gpuwatch.size.policy import AdvicePolicy
from gpuwatch.size.recommend import advise

NOW = datetime(2026, 11, 16, tzinfo=UTC)
A100, OWNER, GIB = "A100-SXM4-40GB", "Notebook/team/lab", 2**30
WITHOUT_DECODER = "1g.5gb"  # NVIDIA's MIG user guide: 0 NVDECs; every other profile has one


@dataclass(frozen=True)
class Planted:
    """One case. host_pods: how many such Pods the host takes by CPU and memory, GPUs aside."""

    gpus: int
    node_cores: float
    node_gib: float
    pod_cores: float
    pod_gib: float
    decodes: bool

    @property
    def host_pods(self) -> int:
        return int(min(self.node_cores // self.pod_cores, self.node_gib // self.pod_gib))

    @property
    def frees(self) -> bool:
        """Would a slice make room for more Pods than there are GPUs?"""
        return self.host_pods > self.gpus

    @property
    def freed_ratio(self) -> float:
        """The most that a slice of 1g.5gb, an eighth of a GPU, frees of each Pod's GPU."""
        return 1 - max(self.gpus / self.host_pods, 1 / 8) if self.frees else 0.0


@dataclass(frozen=True)
class PlantedQuality:
    """Counts of cases. wrong: a slice was advised that frees nothing or has no decoder. missed: none was, though one
    would have freed at least 5 % of a GPU (advice.min_saving_ratio). overstated: the saving is larger than what the
    host leaves. by_gpu_alone: cases in which 1g.5gb, which a rule that looks at the GPU only advises, is wrong."""

    cases: int
    advised: int
    wrong: int
    missed: int
    overstated: int
    by_gpu_alone: int


def planted(cases: int, seed: int) -> list[Planted]:
    chance = np.random.default_rng(seed)
    found: list[Planted] = []
    while len(found) < cases:
        gpus = int(chance.choice((1, 2, 4, 8)))
        one = Planted(
            gpus=gpus,
            node_cores=gpus * float(chance.choice((6.0, 12.0, 24.0))),
            node_gib=gpus * float(chance.choice((32.0, 64.0, 128.0))),
            pod_cores=float(chance.choice((0.5, 1.0, 2.0, 4.0, 8.0, 12.0, 24.0))),
            pod_gib=float(chance.choice((1.0, 4.0, 16.0, 64.0))),
            decodes=bool(chance.random() < 0.3),
        )
        if one.host_pods >= 1:
            found.append(one)
    return found


def judge_planted(cases: Iterable[Planted]) -> PlantedQuality:
    total = advised = wrong = missed = overstated = alone = 0
    for case in cases:
        total += 1
        found = _answer(case)
        slice_ = found.chosen.target.mig_profile if found is not None else ""
        useless = bool(slice_) and (not case.frees or (case.decodes and slice_ == WITHOUT_DECODER))
        advised += bool(slice_)
        wrong += useless
        missed += not slice_ and case.freed_ratio >= 0.05
        alone += not case.frees or case.decodes
        if found is not None:
            saved = found.chosen.projected_saving_gpu_hours_per_week / (7 * 24)
            overstated += saved > case.freed_ratio + 0.01
    return PlantedQuality(
        cases=total, advised=advised, wrong=wrong, missed=missed, overstated=overstated, by_gpu_alone=alone
    )


def _answer(case: Planted) -> Recommendation | None:
    """The advice for a slice; None where there is none."""
    node = Node(
        name="node",
        conditions=(Condition("Ready", "True"),),
        labels={"nvidia.com/gpu.product": f"NVIDIA-{A100}"},
        accelerators={"nvidia.com/gpu": case.gpus},
        cpu_cores=case.node_cores,
        memory_bytes=int(case.node_gib * GIB),
        gpu_product=f"NVIDIA-{A100}",
        gpu_count=case.gpus,
        mig_strategy="mixed",
    )
    owner = Workload(
        id=OWNER, kind="Notebook", api_version="kubeflow.org/v1", namespace="team", name="lab", status=OwnerStatus.FOUND
    )
    pod = Pod(
        namespace="team", name="lab-0", node="node", workload=OWNER, phase="Running", accelerators={"nvidia.com/gpu": 1}
    )
    runs = tuple(
        MemoryRun(
            pod=f"team/lab-{number}",
            first_seen=NOW - timedelta(days=14),
            last_seen=NOW,
            peak_bytes=1.0 * GIB,
            at_start_bytes=0.2 * GIB,
            capacity_bytes=40.0 * GIB,
            device_seconds=14 * 86400.0,
            decoder_peak_ratio=0.3 if case.decodes else 0.0,
        )
        for number in range(2)
    )
    light = Cell(
        weight_seconds=86400.0,
        busy_ratio=0.05,
        sm_active_ratio=0.005,
        tensor_active_ratio=0.0,
        dram_active_ratio=0.005,
        nvlink_bytes_per_second=0.0,
    )
    days = tuple(
        DayUse(day=(NOW - timedelta(days=back)).date(), allocated_gpu_hours=24.0, busy_gpu_hours=1.0)
        for back in range(14, 0, -1)
    )
    profile = WorkloadProfile(
        key=WorkloadKey(OWNER, "main", A100),
        as_of=NOW,
        half_life_seconds=259200.0,
        cells=(light,),
        runs=runs,
        run_count=2,
        first_seen=NOW - timedelta(days=14),
        last_seen=NOW,
        observed_seconds=14 * 86400.0,
        expected_seconds=14 * 86400.0,
        days=days,
        cpu_cores=case.pod_cores,
        host_memory_bytes=case.pod_gib * GIB,
    )
    book = ProfileBook(until=NOW, step_seconds=300, profiles={profile.key: profile})
    cluster = Cluster(nodes=(node,), pods=(pod,), workloads=(owner,), known=True)
    advice, _ = advise(book, cluster, (), AdvicePolicy(), NOW)
    return next((item for item in advice if item.chosen.target.kind is TargetKind.MIG), None)
