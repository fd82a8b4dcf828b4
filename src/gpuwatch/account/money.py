"""What GPUs cost: prices of Nodes by instance type and region, and the hours a week that a workload holds them.

A price for another region or in another currency is not used. Without a price GPU-hours decide, and the reason is
reported.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase

from gpuwatch.facts.catalog.gpus import find_gpu, gpu_share_ratio
from gpuwatch.facts.catalog.instances import ANY_REGION, CURRENCY, InstanceType
from gpuwatch.facts.model.cluster import Node
from gpuwatch.facts.model.sizing import SpeedEstimate
from gpuwatch.facts.model.workload_profile import WorkloadProfile

HOURS_PER_WEEK = 168.0
OLD_AFTER = timedelta(days=120)
"""Age from which a price is called old; tools/price_dates.py lets no release have such a price."""

_TYPE_LABELS = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
_REGION_LABELS = ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region")


class Capacity(StrEnum):
    """How a Node's machine is bought, as far as its labels tell."""

    ON_DEMAND = "on_demand"
    SPOT = "spot"  # may be taken back: spot, preemptible, low priority
    RESERVED = "reserved"  # a reservation or a capacity block


# Of Karpenter, EKS, GKE and AKS, by their documentation. Committed-use discounts show in no label.
_CAPACITY_LABELS = (
    ("karpenter.sh/capacity-type", "spot", Capacity.SPOT),
    ("eks.amazonaws.com/capacityType", "SPOT", Capacity.SPOT),
    ("cloud.google.com/gke-spot", "true", Capacity.SPOT),
    ("kubernetes.azure.com/scalesetpriority", "spot", Capacity.SPOT),
    ("karpenter.sh/capacity-type", "reserved", Capacity.RESERVED),
    ("eks.amazonaws.com/capacityType", "CAPACITY_BLOCK", Capacity.RESERVED),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Discount:
    """What is paid of the list price of instance types.

    price_ratio: above 0, at most 1. instance_types: names, with * and ? as wildcards. capacity: None for any.
    """

    price_ratio: float
    instance_types: str = "*"
    capacity: Capacity | None = None

    def __post_init__(self) -> None:
        if not 0 < self.price_ratio <= 1:
            raise ValueError(
                f"price_ratio is {self.price_ratio:g}; give the share of the list price that you pay, above 0 and at "
                "most 1 (0.35 for a discount of 65 %)"
            )

    def covers(self, name: str, capacity: Capacity) -> bool:
        return self.capacity in (None, capacity) and fnmatchcase(name, self.instance_types)


@dataclass(frozen=True, slots=True)
class Price:
    """Of one GPU for one hour, its host included, in the list's currency; None where unknown."""

    price_per_gpu_hour: float | None
    reason: str  # the price's source, or why it is unknown
    spot: bool = False  # of a spot Node, at the price on demand


def instance_type_of(node: Node) -> str:
    return next((node.labels[label] for label in _TYPE_LABELS if node.labels.get(label)), "")


def region_of(node: Node) -> str:
    return next((node.labels[label] for label in _REGION_LABELS if node.labels.get(label)), "")


def capacity_of(node: Node) -> Capacity:
    found = (capacity for label, value, capacity in _CAPACITY_LABELS if node.labels.get(label) == value)
    reserved = Capacity.RESERVED if node.labels.get("cloud.google.com/reservation-name") else Capacity.ON_DEMAND
    return next(found, reserved)


class PriceList:
    """Instance types by name and region, and by GPUs where a type has several rows (a machine to which GPUs are
    attached). The first of two equal rows counts, and so does the first discount that covers a type. currency: ISO
    4217; a price in another one is unknown."""

    def __init__(
        self, types: Iterable[InstanceType], currency: str = CURRENCY, discounts: Sequence[Discount] = ()
    ) -> None:
        self.currency = currency
        self._discounts = tuple(discounts)
        self._types: dict[tuple[str, str], dict[tuple[str, int], InstanceType]] = {}
        for one in types:
            self._types.setdefault((one.name, one.region), {}).setdefault((one.gpu, one.gpu_count), one)

    def of_node(self, node: Node) -> Price:
        name, region = instance_type_of(node), region_of(node)
        if not name:
            return Price(None, f"Node {node.name} has no label {_TYPE_LABELS[0]}, so its price is not known.")
        found = self.row_of(node)
        if found is None:
            where = f"in region {region}" if region else f"(Node {node.name} has no label {_REGION_LABELS[0]})"
            gpus = f"{node.gpu_count} x {node.gpu_product or 'an unknown GPU'}"
            return Price(None, f"No price of {name} {where} is known (it has {gpus}); give one in the price file.")
        if found.currency != self.currency:
            return Price(
                None,
                f"The price of {name} is in {found.currency} and sums are in {self.currency}; give its price in "
                f"{self.currency} in the price file.",
            )
        capacity = capacity_of(node)
        paid = self._paid(found, capacity)
        return Price(paid.price_per_gpu_hour, source_of(paid), capacity is Capacity.SPOT and paid is found)

    def _paid(self, one: InstanceType, capacity: Capacity) -> InstanceType:
        """The type at the price after its discount; itself where none covers it."""
        discount = next((each for each in self._discounts if each.covers(one.name, capacity)), None)
        if discount is None:
            return one
        note = f"{one.source}; {discount.price_ratio:.0%} of it are paid, by the setting discounts"
        return replace(one, price_per_hour=one.price_per_hour * discount.price_ratio, source=note)

    def row_of(self, node: Node) -> InstanceType | None:
        """The row that prices it, in any currency: for its region, else for all regions, and with its GPU model where
        that is known. Of several rows the one with as many GPUs, else the next larger one, as a GPU may be missing."""
        name, gpu = instance_type_of(node), find_gpu(node.gpu_product)
        rows = self._types.get((name, region_of(node))) or self._types.get((name, ANY_REGION)) or {}
        alike = [row for row in rows.values() if gpu is None or row.gpu == gpu.name]
        if len(alike) > 1:
            alike = [row for row in alike if gpu is not None and 0 < node.gpu_count <= row.gpu_count]
        return min(alike, key=lambda row: row.gpu_count, default=None)

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

    def offers(self, regions: Iterable[str], capacity: Capacity = Capacity.ON_DEMAND) -> tuple[InstanceType, ...]:
        """All types with a price in one of these regions, or for all regions, in this list's currency, as new machines
        of this capacity cost."""
        wanted = {*regions, ANY_REGION}
        every = (one for rows in self._types.values() for one in rows.values())
        found = (one for one in every if one.region in wanted and one.currency == self.currency)
        return tuple(self._paid(one, capacity) for one in found)


@dataclass(frozen=True, slots=True)
class Rates:
    """Prices of one whole GPU for an hour, its host included, as the fleet stands now; None or missing where unknown.

    by_node: of the Nodes. by_model: Gpu.name → mean over the Nodes.
    """

    by_node: Mapping[str, float | None] = field(default_factory=dict)
    by_model: Mapping[str, float] = field(default_factory=dict)

    def price(self, gpu_model: str, *, node: str | None = None) -> float | None:
        if node is not None and node in self.by_node:
            return self.by_node[node]
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
