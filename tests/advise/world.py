"""Small worlds for advice: one profile, a Node or two, and prices that are easy to add up."""

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import yaml

from gpuwatch.facts.catalog.instances import InstanceType
from gpuwatch.facts.model.cluster import Cluster, Condition, Node, Pod, Workload
from gpuwatch.facts.model.sizing import Abstention, AbstentionKind, Option, Recommendation, TargetKind
from gpuwatch.facts.model.workload_profile import (
    Cell,
    DayUse,
    MemoryRun,
    PowerEnvelope,
    ProfileBook,
    WorkloadKey,
    WorkloadProfile,
)
from gpuwatch.size.policy import AdvicePolicy
from gpuwatch.size.recommend import advise

TABLES = yaml.safe_load(Path(__file__).with_name("tables.yaml").read_text(encoding="utf-8"))
GIB = 2**30
NOW = datetime(2026, 11, 16, 0, 0, tzinfo=UTC)
A100 = "A100-SXM4-40GB"


def cell(busy: float, sm: float | None = None, **more: float | None) -> Cell:
    """A window; bandwidth and tensor cores hardly used, no link traffic unless it is told."""
    given: dict[str, float | None] = {
        "dram_active_ratio": 0.01,
        "tensor_active_ratio": 0.0,
        "power_watts": 80.0,
        "pcie_bytes_per_second": 1e6,
        "nvlink_bytes_per_second": 0.0,
    }
    return Cell(weight_seconds=3600.0, busy_ratio=busy, sm_active_ratio=sm, **(given | more))  # type: ignore[arg-type]


LIGHT = (cell(0.1, 0.01),)
"""A tenth of the time busy, on a hundredth of the SMs: fast on any slice."""


def run(peak_gib: float, *, number: int = 0, flat: bool = False, capacity_gib: float = 40.0) -> MemoryRun:
    return MemoryRun(
        pod=f"team/pod-{number}",
        first_seen=NOW - timedelta(days=10, hours=number),
        last_seen=NOW - timedelta(hours=number),
        peak_bytes=peak_gib * GIB,
        at_start_bytes=peak_gib * GIB if flat else 0.2 * GIB,
        capacity_bytes=capacity_gib * GIB,
        device_seconds=10 * 86400.0,
    )


def profile(
    workload: str = "Notebook/team/lab",
    *,
    gpu: str = A100,
    mig: str = "",
    container: str = "main",
    cells: Sequence[Cell] = LIGHT,
    peak_gib: float = 2.0,
    days: float = 14.0,
    hours_per_day: float = 24.0,
    coverage: float = 1.0,
    gpus: int = 1,
    pods: float = 1.0,
    ended: timedelta = timedelta(0),
    **more: object,
) -> WorkloadProfile:
    """A workload that ran for `days` up to `ended` before now, hours_per_day on each of them."""
    last = NOW - ended
    seconds = days * hours_per_day * 3600 * gpus * pods
    used = [last.date() - timedelta(days=back) for back in range(1, int(days) + 1)]
    values: dict[str, object] = {
        "runs": (run(peak_gib), run(peak_gib * 0.9, number=1)),
        "run_count": 2,
        "days": tuple(
            DayUse(day=day, allocated_gpu_hours=hours_per_day * gpus * pods, busy_gpu_hours=1.0) for day in sorted(used)
        ),
    }
    return WorkloadProfile(
        key=WorkloadKey(workload, container, gpu, mig),
        as_of=NOW,
        half_life_seconds=172800.0,
        cells=tuple(cells),
        first_seen=last - timedelta(days=days),
        last_seen=last,
        observed_seconds=seconds * coverage,
        expected_seconds=seconds,
        gpus_per_pod=gpus,
        pods=pods,
        **(values | more),  # type: ignore[arg-type]
    )


def book(*profiles: WorkloadProfile, envelopes: Mapping[str, PowerEnvelope] | None = None) -> ProfileBook:
    return ProfileBook(
        until=NOW, step_seconds=60, profiles={one.key: one for one in profiles}, envelopes=envelopes or {}
    )


def node(
    name: str = "gpu-0",
    product: str = "NVIDIA-A100-SXM4-40GB",
    *,
    gpus: int = 8,
    instance_type: str = "big-a100",
    region: str = "here",
    labels: Mapping[str, str] | None = None,
    **more: object,
) -> Node:
    told = {
        "node.kubernetes.io/instance-type": instance_type,
        "topology.kubernetes.io/region": region,
        "nvidia.com/gpu.product": product,
    }
    values: dict[str, object] = {
        "conditions": (Condition("Ready", "True"),),
        "accelerators": {"nvidia.com/gpu": gpus},
        "cpu_cores": 96.0,
        "memory_bytes": 1000 * GIB,
        "mig_strategy": "mixed",
    }
    return Node(
        name=name,
        labels={key: value for key, value in (told | dict(labels or {})).items() if value},
        gpu_product=product,
        gpu_count=gpus,
        **(values | more),  # type: ignore[arg-type]
    )


def owner(workload: str = "Notebook/team/lab", api_version: str = "kubeflow.org/v1", **more: object) -> Workload:
    kind, namespace, name = workload.split("/")
    return Workload(
        id=workload,
        kind=kind.split(".", 1)[0],
        api_version=api_version,
        namespace=namespace,
        name=name,
        **more,  # type: ignore[arg-type]
    )


def pod(workload: str = "Notebook/team/lab", name: str = "lab-0", *, on: str = "gpu-0", **more: object) -> Pod:
    values: dict[str, object] = {"phase": "Running", "accelerators": {"nvidia.com/gpu": 1}}
    return Pod(
        namespace=workload.split("/")[1],
        name=name,
        node=on,
        workload=workload,
        **(values | more),  # type: ignore[arg-type]
    )


def cluster(
    nodes: Sequence[Node] | None = None,
    workloads: Sequence[Workload] | None = None,
    pods: Sequence[Pod] | None = None,
    **more: object,
) -> Cluster:
    return Cluster(
        nodes=tuple([node()] if nodes is None else nodes),
        workloads=tuple([owner()] if workloads is None else workloads),
        pods=tuple([pod()] if pods is None else pods),
        known=True,
        **more,  # type: ignore[arg-type]
    )


def price(
    name: str = "big-a100",
    gpu: str = A100,
    *,
    gpus: int = 8,
    per_hour: float = 16.0,
    region: str = "here",
    vendor: str = "cloud",
    currency: str = "USD",
    vcpus: int | None = None,
    host_gib: int | None = None,
) -> InstanceType:
    """The default: 2 USD per A100 and hour."""
    return InstanceType(
        name=name,
        vendor=vendor,
        region=region,
        gpu=gpu,
        gpu_count=gpus,
        price_per_hour=per_hour,
        currency=currency,
        price_date=date(2026, 8, 3),
        source="a test",
        vcpus=vcpus,
        host_memory_bytes=None if host_gib is None else host_gib * GIB,
    )


def answer(
    one: WorkloadProfile,
    *others: WorkloadProfile,
    world: Cluster | None = None,
    prices: Sequence[InstanceType] | None = None,
    policy: AdvicePolicy | None = None,
    **more: object,
) -> Recommendation | Abstention:
    """What is said of the first profile."""
    found = advise(
        book(one, *others),
        cluster() if world is None else world,
        [price()] if prices is None else prices,
        policy or AdvicePolicy(),
        NOW,
        **more,  # type: ignore[arg-type]
    )
    return next(item for item in (*found[0], *found[1]) if item.key == one.key)


def advised(found: Recommendation | Abstention) -> Recommendation:
    assert isinstance(found, Recommendation), found
    return found


def abstained(found: Recommendation | Abstention, kind: AbstentionKind) -> Abstention:
    assert isinstance(found, Abstention), found.chosen.target.name
    assert found.kind is kind, (found.kind, found.reason)
    return found


def option(found: Recommendation | Abstention, kind: TargetKind, name: str = "") -> Option:
    """The option of this kind whose target's name holds `name`."""
    matching = [one for one in found.options if one.target.kind is kind and name in one.target.name]
    assert len(matching) == 1, [one.target.name for one in found.options]
    return matching[0]


def rules(one: Option) -> set[str]:
    return {veto.rule for veto in one.vetoes}
