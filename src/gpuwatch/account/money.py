"""What GPUs cost: prices of Nodes by instance type and region, and the hours a week that a workload holds them.

A price for another region or in another currency is not used. Without a price GPU-hours decide, and the reason is
reported.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from gpuwatch.facts.catalog.gpus import gpu_share_ratio
from gpuwatch.facts.catalog.instances import ANY_REGION, CURRENCY, InstanceType
from gpuwatch.facts.model.cluster import Node
from gpuwatch.facts.model.sizing import SpeedEstimate
from gpuwatch.facts.model.workload_profile import WorkloadProfile

HOURS_PER_WEEK = 168.0

_TYPE_LABELS = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
_REGION_LABELS = ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region")
# Labels of spot and preemptible Nodes, which cost less than on demand.
_SPOT_LABELS = (
    ("karpenter.sh/capacity-type", "spot"),
    ("eks.amazonaws.com/capacityType", "SPOT"),
    ("cloud.google.com/gke-spot", "true"),
    ("kubernetes.azure.com/scalesetpriority", "spot"),
)


@dataclass(frozen=True, slots=True)
class Price:
    """Of one GPU for one hour, its host included, in the list's currency; None where unknown."""

    price_per_gpu_hour: float | None
    reason: str  # the price's source, or why it is unknown
    spot: bool = False


def instance_type_of(node: Node) -> str:
    return next((node.labels[label] for label in _TYPE_LABELS if node.labels.get(label)), "")


def region_of(node: Node) -> str:
    return next((node.labels[label] for label in _REGION_LABELS if node.labels.get(label)), "")


class PriceList:
    """Instance types by name and region; the first of two equal rows counts. currency: ISO 4217; a price in another one
    is unknown."""

    def __init__(self, types: Iterable[InstanceType], currency: str = CURRENCY) -> None:
        self.currency = currency
        self._types: dict[tuple[str, str], InstanceType] = {}
        for one in types:
            self._types.setdefault((one.name, one.region), one)

    def find(self, name: str, region: str) -> InstanceType | None:
        """The price for this region, else the one for all regions."""
        return self._types.get((name, region)) or self._types.get((name, ANY_REGION))

    def of_node(self, node: Node) -> Price:
        name, region = instance_type_of(node), region_of(node)
        if not name:
            return Price(None, f"Node {node.name} has no label {_TYPE_LABELS[0]}, so its price is not known.")
        found = self.find(name, region)
        if found is None:
            where = f"in region {region}" if region else f"(Node {node.name} has no label {_REGION_LABELS[0]})"
            return Price(None, f"No price of {name} {where} is known; give one in the price file.")
        if found.currency != self.currency:
            return Price(
                None,
                f"The price of {name} is in {found.currency} and sums are in {self.currency}; give its price in "
                f"{self.currency} in the price file.",
            )
        spot = any(node.labels.get(label) == value for label, value in _SPOT_LABELS)
        return Price(found.price_per_gpu_hour, source_of(found), spot)

    def of_nodes(self, nodes: Sequence[Node]) -> Price:
        """The mean over these Nodes' GPUs; unknown if any Node has no price."""
        if not nodes:
            return Price(None, "No Node with this GPU is known, so its price is not known.")
        found = [self.of_node(node) for node in nodes]
        unknown = next((price for price in found if price.price_per_gpu_hour is None), None)
        if unknown is not None:
            return unknown
        weights = [max(node.gpu_count, 1) for node in nodes]
        total = sum(w * (price.price_per_gpu_hour or 0.0) for w, price in zip(weights, found, strict=True))
        sources = "; ".join(dict.fromkeys(price.reason for price in found))
        return Price(total / sum(weights), sources, any(price.spot for price in found))

    def offers(self, regions: Iterable[str]) -> tuple[InstanceType, ...]:
        """All types with a price in one of these regions, or for all regions, in this list's currency."""
        wanted = {*regions, ANY_REGION}
        return tuple(one for one in self._types.values() if one.region in wanted and one.currency == self.currency)


@dataclass(frozen=True, slots=True)
class Rates:
    """Prices of one whole GPU for an hour, its host included, as the fleet stands now; None or missing where unknown.

    by_node: of the Nodes. by_holder: (Namespace, Gpu.name) → mean over the GPUs that its Pods have now, '' for those
    that no Pod has. by_model: Gpu.name → mean over the Nodes. Hours of the past are known by Namespace and model only,
    so they cost what the Namespace pays now, else the mean of the model.
    """

    by_node: Mapping[str, float | None] = field(default_factory=dict)
    by_holder: Mapping[tuple[str, str], float | None] = field(default_factory=dict)
    by_model: Mapping[str, float] = field(default_factory=dict)

    def price(self, gpu_model: str, *, namespace: str | None = None, node: str | None = None) -> float | None:
        if node is not None and node in self.by_node:
            return self.by_node[node]
        if namespace is not None and (namespace, gpu_model) in self.by_holder:
            return self.by_holder[namespace, gpu_model]
        return self.by_model.get(gpu_model)


def cost_of(gpu_hours: float, price: float | None) -> float | None:
    return None if price is None else price * gpu_hours


def source_of(found: InstanceType) -> str:
    where = "" if found.region == ANY_REGION else f" in {found.region}"
    each = f", of its {found.gpu_count} GPUs each" if found.gpu_count > 1 else ""
    return f"{found.name}{where} on demand{each}, {found.price_date} ({found.source})"


def pod_hours_per_week(profile: WorkloadProfile, until: datetime, *, ends: bool) -> float:
    """Hours a week that its Pods hold their devices, all Pods together. Taken from the newest seven days (the last one
    is not over), and scaled to a whole week for workloads that are older than these days and for services that still
    run. The hours of a younger job are not scaled."""
    gpus = max(profile.gpus_per_pod, 1)
    goes_on = not ends and (until - profile.last_seen) <= timedelta(hours=1)
    if profile.days:
        first_day = until.date() - timedelta(days=6)
        begin = datetime(first_day.year, first_day.month, first_day.day, tzinfo=until.tzinfo)
        held = sum(day.allocated_gpu_hours for day in profile.days if day.day >= first_day)
        hours = held / (gpus * gpu_share_ratio(profile.key.gpu_model, profile.key.mig_profile))
    else:  # not kept per day: the whole past
        begin = until - timedelta(hours=HOURS_PER_WEEK)
        hours = profile.expected_seconds / 3600 / gpus
    older = profile.first_seen <= begin
    start = max(profile.first_seen, begin) if profile.days else profile.first_seen
    elapsed_hours = (until - start).total_seconds() / 3600
    if elapsed_hours > 0 and (older or goes_on):
        hours *= HOURS_PER_WEEK / elapsed_hours
    return min(hours, profile.pods * HOURS_PER_WEEK) if profile.pods > 0 else hours


def run_time_ratio(speed: SpeedEstimate, *, ends: bool) -> float:
    """Hours on the target per hour now; 1 for work without an end. A loss of speed counts at its likely value, a gain
    at its low end."""
    if not ends:
        return 1.0
    return 1.0 / (speed.likely_ratio if speed.likely_ratio < 1 else max(speed.low_ratio, 1.0))


def regions(nodes: Iterable[Node]) -> Mapping[str, None]:
    """Regions of these Nodes, in order of appearance."""
    return dict.fromkeys(region for region in map(region_of, nodes) if region)
