"""The fragmentation of a large cluster, beside the slots of the same cluster: `python -m lab.benchmarks.fragmentation`.

Nodes of 8 GPUs, half of the GPUs held by Pods whose requests of CPU and memory are drawn at random, so that hundreds of
different requests make up the mix, and a Pod without GPUs on each Node. CPU time: other work may keep the cores busy.
"""

import argparse
import random
import time
from datetime import UTC, datetime

from gpuwatch.act.fragmentation import fragmentation, mix_of
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.slots import slots
from gpuwatch.facts.model.cluster import Cluster, Condition, Node, Placement, Pod, PodTerm
from gpuwatch.facts.model.decision import Snapshot

GPU, GIB = "nvidia.com/gpu", 2**30
ALONE = Placement(pod_anti_affinity=(PodTerm(topology_key="kubernetes.io/hostname", match_labels={"app": "one"}),))


def cluster(gpus: int, requests: int, chance: random.Random) -> Cluster:
    asks = [(chance.choice((1, 1, 1, 2, 4)), chance.randint(1, 24), chance.randint(4, 256)) for _ in range(requests)]
    pods: list[Pod] = []
    nodes, beside = [], []
    for number in range(gpus // 8):
        name = f"node-{number:05}"
        other = float(chance.choice((2, 2, 8, 64)))
        beside.append(Pod(namespace="web", name=f"web-{number}", node=name, phase="Running", cpu_cores=other))
        left = chance.randint(0, 8)
        while left:
            count, cores, gib = chance.choice(asks)
            if count > left:
                continue
            left -= count
            place = ALONE if chance.random() < 0.02 else Placement()
            pods.append(
                Pod(
                    namespace="ml", name=f"pod-{len(pods)}", node=name, phase="Running", accelerators={GPU: count},
                    cpu_cores=float(cores), memory_bytes=gib * GIB, placement=place,
                )
            )  # fmt: skip
        nodes.append(
            Node(
                name=name, conditions=(Condition("Ready", "True"),), accelerators={GPU: 8}, allocatable={GPU: 8},
                cpu_cores=96.0, memory_bytes=1024 * GIB, max_pods=110, other_cpu_cores=other, other_pods=1,
                gpu_product="NVIDIA-A100-SXM4-80GB", pool="train",
            )
        )  # fmt: skip
    return Cluster(nodes=tuple(nodes), pods=tuple(pods), companions=tuple(beside), known=True, unread=())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=int, default=10_000)
    parser.add_argument("--requests", type=int, default=300)
    asked = parser.parse_args()
    found = cluster(asked.gpus, asked.requests, random.Random(7))
    facts = PlanFacts(snapshot=Snapshot(at=datetime(2026, 3, 2, tzinfo=UTC), devices=(), cluster=found))
    room = facts.ground.room
    began = time.process_time()
    slots(facts)
    between = time.process_time()
    (one,) = fragmentation(facts)
    alone, own = between - began, time.process_time() - between
    print(f"{asked.gpus} GPUs, {len(found.pods)} Pods, {len(mix_of(found.pods, room))} requests in the mix")
    print(f"{one.unallocatable:.1f} of {one.free} free GPUs cannot be used: {dict(one.causes)}")
    print(f"fragmentation {own:.2f} s of CPU, slots {alone:.2f} s: {own / alone:.1f} times")


if __name__ == "__main__":
    main()
