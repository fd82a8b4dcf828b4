"""Current allocation of GPUs, its cost per hour, and what could be saved. Pure.

GPUs are physical ones. A MIG instance counts with its share of its GPU, a unit of a shared GPU with one part of as many
as share it. So all Pods of a Node never have more than its allocatable GPUs. An unknown price is left out and never
zero; `unpriced` counts its GPUs.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from gpuwatch.account.money import HOURS_PER_WEEK, PriceList, Rates, cost_of, run_time_ratio
from gpuwatch.facts.catalog.gpus import find_gpu, gpu_share_ratio, model_name
from gpuwatch.facts.catalog.instances import CURRENCY
from gpuwatch.facts.frameworks import ends
from gpuwatch.facts.model.cluster import Cluster, Node, Pod, Sharing
from gpuwatch.facts.model.decision import Analysis, Family, Finding, FindingKind, Verdict
from gpuwatch.facts.model.grouping import grouped
from gpuwatch.facts.model.sizing import Abstention, Outcome, Recommendation
from gpuwatch.facts.model.telemetry import Device, PodRef

NO_POOL = "default"
"""The pool of a Node without one, as in a plan."""

RELEASE = "release"
"""Target for releasing an idle allocation; the other targets are those of a recommendation."""

IGNORED_AFTER = timedelta(days=7)
"""Advice that was not followed for so long counts as ignored; before that its owner may not have seen it."""


class CostState(StrEnum):
    ALLOCATED = "allocated"  # a Pod has it; it is neither idle nor suspected to be
    IDLE = "idle"  # a Pod has it, and it is idle
    SUSPECTED = "suspected"  # a Pod has it; it looks idle, and nothing proves it
    FREE = "free"  # no Pod has it


class Confidence(StrEnum):
    PESSIMISTIC = "pessimistic"
    LIKELY = "likely"


@dataclass(frozen=True, slots=True)
class FleetCost:
    """Physical GPUs, with fractions; cost and saving in `currency` per hour.

    allocatable, unpriced: by (GPU model, pool). A GPU that a Pod has counts as allocatable until the Pod is gone.
    allocated: by (Namespace, GPU model, pool). cost: by (Namespace, CostState); the Namespace of free GPUs is ''.
    saving: by (Namespace, target, Confidence). Unknown values are missing. Namespaces are ordered by GPUs, most first.
    """

    allocatable: Mapping[tuple[str, str], float] = field(default_factory=dict)
    unpriced: Mapping[tuple[str, str], float] = field(default_factory=dict)
    allocated: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    cost: Mapping[tuple[str, str], float] = field(default_factory=dict)
    saving: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    currency: str = CURRENCY


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """One Pod and the GPUs that it has now; pod '' for the free ones of a Node. gpus: physical ones, with fractions.
    use: kind of the finding on their use, such as in_use, never_used or idle_unknown; None without telemetry.
    cost_per_hour: None without a price."""

    pod: PodRef
    workload: str = ""
    node: str
    pool: str
    gpu_model: str
    gpus: float
    state: CostState
    use: str | None = None
    cost_per_hour: float | None

    @property
    def namespace(self) -> str:
        return self.pod.partition("/")[0]


def fleet_cost(analysis: Analysis, prices: PriceList, recommendations: Sequence[Recommendation] = ()) -> FleetCost:
    """Empty without a cluster."""
    idle = _idle_pods(analysis.findings)
    allocatable: dict[tuple[str, str], float] = defaultdict(float)
    unpriced: dict[tuple[str, str], float] = defaultdict(float)
    allocated: dict[tuple[str, str, str], float] = defaultdict(float)
    # By Namespace and state, with known price or not.
    gpus: dict[tuple[str, str], float] = defaultdict(float)
    cost: dict[tuple[str, str], float] = defaultdict(float)
    saving: dict[tuple[str, str, str], float] = defaultdict(float)
    for each in allocations(analysis, prices):
        kind, namespace, price = (each.gpu_model, each.pool), each.namespace, each.cost_per_hour
        allocatable[kind] += each.gpus
        unpriced[kind] += 0.0 if price is not None else each.gpus
        gpus[namespace, each.state] += each.gpus
        if each.pod:
            allocated[namespace, *kind] += each.gpus
        if price is not None:
            cost[namespace, each.state] += price
            if each.state is CostState.IDLE:
                saving[namespace, RELEASE, Confidence.LIKELY] += price
                saving[namespace, RELEASE, Confidence.PESSIMISTIC] += price * idle[each.pod]
    for namespace in {namespace for namespace, _ in cost}:
        # No idle GPUs cost nothing; idle GPUs of unknown price cost something.
        for state in (CostState.ALLOCATED, CostState.IDLE, CostState.SUSPECTED) if namespace else ():
            if not gpus[namespace, state]:
                cost.setdefault((namespace, state), 0.0)
    _add_advised(saving, recommendations, {pod.workload for pod in analysis.cluster.pods if pod.ref in idle})
    total: dict[str, float] = defaultdict(float)
    for (namespace, _, _), count in allocated.items():
        total[namespace] += count

    def largest_first(key: tuple[str, ...]) -> tuple[float, tuple[str, ...]]:
        return (-total[key[0]] if key[0] else float("-inf"), key)

    return FleetCost(
        allocatable=dict(sorted(allocatable.items())),
        unpriced=dict(sorted(unpriced.items())),
        allocated={key: allocated[key] for key in sorted(allocated, key=largest_first)},
        cost={key: cost[key] for key in sorted(cost, key=largest_first)},
        saving={key: saving[key] for key in sorted(saving, key=largest_first)},
        currency=prices.currency,
    )


def advice_counts(
    recommendations: Iterable[Recommendation],
    abstentions: Iterable[Abstention],
    outcomes: Iterable[Outcome],
    at: datetime,
) -> Mapping[tuple[str, str, str], int]:
    """(target, outcome, reason) → workloads. advised, abstained: of the last sizing run. applied, ignored: outcomes of
    the last weeks' advice; a target advised to one workload twice counts once."""
    found: Counter[tuple[str, str, str]] = Counter()
    for item in recommendations:
        found[str(item.chosen.target.kind), "advised", ""] += 1
    for left in abstentions:
        found["", "abstained", str(left.kind)] += 1
    became: dict[tuple[object, str], str] = {}
    for outcome in outcomes:
        key = (outcome.key, str(outcome.target.kind))
        if outcome.applied_at is not None:
            became[key] = "applied"
        elif at - outcome.recommended_at >= IGNORED_AFTER:
            became.setdefault(key, "ignored")
    found.update((target, how, "") for (_, target), how in became.items())
    return dict(sorted(found.items()))


def _idle_pods(findings: Iterable[Finding]) -> dict[PodRef, float]:
    """Pods that are idle, by themselves or with their gang, with the confidence."""
    found: dict[PodRef, float] = {}
    for item in findings:
        if item.verdict is Verdict.IDLE:
            for ref in item.pods:
                found[ref] = max(found.get(ref, 0.0), item.confidence_ratio)
    return found


def allocations(analysis: Analysis, prices: PriceList) -> tuple[Allocation, ...]:
    """What each Pod has, and what is free, Node by Node. Empty without a cluster."""
    cluster = analysis.cluster
    live = (pod for pod in cluster.pods if pod.phase in ("Running", "Pending") and (pod.accelerators or pod.claims))
    pods, here = grouped(live, lambda pod: pod.node), grouped(analysis.devices, lambda device: device.node)
    claimed = _claimed_gpus(cluster, {device.id: device for device in analysis.devices})
    suspected = (item for item in analysis.findings if item.kind is FindingKind.SUSPECTED_IDLE)
    states = {"": CostState.FREE, **{ref: CostState.SUSPECTED for item in suspected for ref in item.pods}}
    states |= dict.fromkeys(_idle_pods(analysis.findings), CostState.IDLE)
    # Reversed, because the gravest finding comes first, and the last one stays.
    of_use = [item for item in reversed(analysis.findings) if item.family is Family.IDLE]
    use = {ref: str(item.kind) for item in of_use for ref in item.pods}
    workload = {pod.ref: pod.workload for pod in cluster.pods}
    found = []
    for node in cluster.nodes:
        taken, allocatable = _taken(node, pods[node.name], here[node.name], claimed)
        # A GPU that the device plugin withdraws stays with the Pod that has it.
        parts = {**taken, "": max(allocatable - sum(taken.values()), 0.0)}
        product = node.gpu_product or next((device.model for device in here[node.name] if device.model), "")
        gpu, price = find_gpu(product), prices.of_node(node).price_per_gpu_hour
        if sum(parts.values()) > 0:
            found += [
                Allocation(
                    pod=ref,
                    workload=workload.get(ref, ""),
                    node=node.name,
                    pool=node.pool or NO_POOL,
                    gpu_model=gpu.name if gpu is not None else node.gpu_product,
                    gpus=count,
                    state=states.get(ref, CostState.ALLOCATED),
                    use=use.get(ref),
                    cost_per_hour=cost_of(count, price),
                )
                for ref, count in parts.items()
            ]
    return tuple(found)


def rates_of(analysis: Analysis, prices: PriceList) -> Rates:
    """What a GPU costs now: by Node, and by model."""
    nodes_of = grouped(
        (node for node in analysis.cluster.nodes if find_gpu(node.gpu_product) is not None),
        lambda node: model_name(node.gpu_product),
    )
    of_models = {model: prices.of_nodes(nodes).price_per_gpu_hour for model, nodes in nodes_of.items()}
    return Rates(
        by_node={node.name: prices.of_node(node).price_per_gpu_hour for node in analysis.cluster.nodes},
        by_model={model: price for model, price in of_models.items() if price is not None},
    )


def _taken(
    node: Node, pods: Sequence[Pod], devices: Sequence[Device], claimed: Mapping[str, float]
) -> tuple[dict[PodRef, float], float]:
    """GPUs of each Pod, and allocatable ones."""
    resources = {*node.accelerators, *(resource for pod in pods for resource in pod.accelerators)}
    unit = {resource: _share_of(node, resource) for resource in resources}
    capacity = sum(count * unit[resource] for resource, count in node.accelerators.items())
    allocatable = sum(node.allocatable.get(name, count) * unit[name] for name, count in node.accelerators.items())
    if not node.accelerators:  # with DRA no count is reported; use the GPUs that telemetry shows
        capacity = float(len({device.uuid for device in devices}))
        allocatable = float(len({device.uuid for device in devices if device.present}))
    taken = {}
    for pod in pods:
        asked = sum(count * unit[resource] for resource, count in pod.accelerators.items())
        gpus = asked + sum(claimed.get(f"{pod.namespace}/{claim}", 0.0) for claim in pod.claims)
        if gpus > 0:
            taken[pod.ref] = gpus
    total = sum(taken.values())
    if 0 < capacity < total:  # a Pod that has ended is still listed beside its successor
        taken = {ref: count * capacity / total for ref, count in taken.items()}
    return taken, allocatable


def _share_of(node: Node, resource: str) -> float:
    if node.partitioned:
        return node.gpu_count / sum(node.accelerators.values())
    bare = resource.removesuffix(".shared")
    replicas = node.labels.get(f"{bare}.replicas", "")
    shared = node.replicas if node.sharing is not Sharing.NONE else 1
    sharers = int(replicas) if replicas.isdecimal() and int(replicas) else shared
    name = bare.rpartition("/")[2]
    profile = name.removeprefix("mig-") if name.startswith("mig-") else ""
    # With the strategy `single` instances are counted as if they were GPUs, and all are alike.
    if name == "gpu" and node.mig_strategy != "mixed" and len(node.mig_layout) == 1:
        profile = next(iter(node.mig_layout))
    return gpu_share_ratio(node.gpu_product, profile) / max(sharers, 1)


def _claimed_gpus(cluster: Cluster, devices: Mapping[str, Device]) -> dict[str, float]:
    """ResourceClaim → physical GPUs that each of its Pods has; several Pods of one claim share them."""
    users = Counter(f"{pod.namespace}/{claim}" for pod in cluster.pods for claim in pod.claims)
    found: dict[str, float] = defaultdict(float)
    for item in cluster.claims:
        device = devices.get(item.device)
        profile = (device.mig_profile or "") if device is not None else ""
        share = gpu_share_ratio(device.model, profile) if device is not None else 1.0
        found[item.claim] += share / max(users[item.claim], 1)
    return found


def _add_advised(
    saving: dict[tuple[str, str, str], float], recommendations: Iterable[Recommendation], idle: set[str]
) -> None:
    """idle: workloads with an idle Pod; their saving is counted as a release. Changes with a condition do not count."""
    for item in recommendations:
        likely, after = item.chosen.projected_saving_per_week, item.chosen.projected_cost_per_week
        speed, workload = item.chosen.speed, item.key.workload
        if likely is None or after is None or item.condition or workload in idle:
            continue
        pessimistic = likely
        if ends(workload) and speed.low_ratio > 0:  # at the slowest estimate a job that ends takes longer
            pessimistic -= after * max(1.0 / speed.low_ratio / run_time_ratio(speed, ends=True) - 1.0, 0.0)
        key = (item.key.namespace, str(item.chosen.target.kind))
        saving[*key, Confidence.LIKELY] += likely / HOURS_PER_WEEK
        saving[*key, Confidence.PESSIMISTIC] += pessimistic / HOURS_PER_WEEK
