"""The fleet MIG plan for many workloads: time, and how far it is from the lower bound.

    python -m lab.benchmarks.mig_plan --workloads 10000

Seeded random mixes of five profiles on A100 40 GB, in two states of the fleet: all Pods on whole GPUs of their own, all
of them advised a slice; and all GPUs cut in some valid way, with tenants on half of the instances, half of which were
advised another profile. Goal: under a second of CPU time and within 1 % of the lower bound of the linear relaxation.
Loading the solver (scipy) is counted apart: it happens once per process.
"""

import argparse
import random
import time
from collections import Counter
from datetime import UTC, datetime

from gpuwatch.facts.model.cluster import Cluster, Condition, Node, Pod
from gpuwatch.facts.model.sizing import SliceDemand
from gpuwatch.facts.model.telemetry import Device, Vendor
from gpuwatch.facts.model.workload_profile import WorkloadKey
from gpuwatch.size.mig_pack import patterns
from gpuwatch.size.mig_plan import MigPlanPolicy, plan_mig

GOAL_SECONDS = 1.0
GOAL_RATIO = 1.01
MODEL = "A100-SXM4-40GB"
PROFILES = ("1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")
GPUS_PER_NODE = 8


def demand(number: int, device: str, now: str, wants: str) -> SliceDemand:
    key = WorkloadKey(f"Job/team/{number}", "main", MODEL, now)
    return SliceDemand(key=key, gpu_model=MODEL, mig_profile=wants, pod=f"team/{number}", devices=(device,))


def row(gpu: int, instance: int | None = None, profile: str | None = None, holder: str = "") -> Device:
    uuid = f"GPU-{gpu:06}"
    return Device(
        id=uuid if instance is None else f"{uuid}/{instance}", uuid=uuid, vendor=Vendor.NVIDIA, vocabulary="dcgm",
        mig_instance=None if instance is None else str(instance), mig_profile=profile, index=str(gpu % GPUS_PER_NODE),
        model=MODEL, node=f"node-{gpu // GPUS_PER_NODE:05}", pods=(holder,) if holder else (),
    )  # fmt: skip


def whole(workloads: int, chance: random.Random) -> tuple[list[SliceDemand], list[Device]]:
    weights = [chance.random() ** 2 for _ in PROFILES]
    wants = chance.choices(PROFILES, weights, k=workloads)
    demands = [demand(number, f"GPU-{number:06}", "", profile) for number, profile in enumerate(wants)]
    return demands, [row(number, holder=f"team/{number}") for number in range(workloads)]


def sliced(workloads: int, chance: random.Random) -> tuple[list[SliceDemand], list[Device]]:
    cuts = patterns("A100-40GB", PROFILES)
    demands: list[SliceDemand] = []
    devices: list[Device] = []
    gpu = 0
    while len(demands) < workloads:
        for instance, profile in enumerate(chance.choice(cuts), 1):
            held = chance.random() < 0.5 and len(demands) < workloads
            number = len(demands)
            devices.append(row(gpu, instance, profile, f"team/{number}" if held else ""))
            if held:
                wants = profile if chance.random() < 0.5 else chance.choice(PROFILES)
                demands.append(demand(number, devices[-1].id, profile, wants))
        gpu += 1
    return demands, devices


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    begun = time.perf_counter()
    import scipy.optimize  # noqa: F401

    print(f"loading the solver: {time.perf_counter() - begun:.2f} s")
    failed = False
    for name, make in (("whole", whole), ("sliced", sliced)):
        for seed in range(options.rounds):
            demands, devices = make(options.workloads, random.Random(seed))
            names = Counter(device.node for device in devices if device.node)
            nodes = tuple(
                Node(name=each, conditions=(Condition("Ready", "True"),), mig_strategy="mixed", cpu_cores=128.0)
                for each in names
            )
            # One core each, so that 56 slices of a Node never lack CPU and the bound by geometry can be reached.
            pods = tuple(
                Pod(
                    namespace="team", name=ref[5:], node=device.node or "", phase="Running", cpu_cores=1.0, workload=ref
                )
                for device in devices
                for ref in device.pods
            )
            begun, cpu = time.perf_counter(), time.process_time()
            plan = plan_mig(
                demands, Cluster(nodes=nodes, pods=pods, known=True), devices, MigPlanPolicy(), datetime.now(UTC)
            )
            wall, seconds = time.perf_counter() - begun, time.process_time() - cpu
            ratio = plan.gpus_after / plan.lower_bound_gpus
            failed = failed or seconds > GOAL_SECONDS or ratio > GOAL_RATIO or bool(plan.unplaced)
            print(
                f"{name:7} seed {seed}: {seconds:.2f} s CPU ({wall:.2f} s), {plan.gpus_before} → {plan.gpus_after} GPUs"
                f", bound {plan.lower_bound_gpus} (÷ {ratio:.4f}), {len(plan.changes)} cut, {len(plan.moved)} moved, "
                f"{len(plan.unplaced)} lines unplaced"
            )
    print(f"goal: under {GOAL_SECONDS:g} s CPU and at most {GOAL_RATIO:g} of the bound")
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
