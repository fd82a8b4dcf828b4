"""What a workload could run on: slices of its card, other models, a shared GPU, fewer GPUs. Vetoes come later.

A model is a candidate if the cluster has Nodes with it, or its region has a priced instance type with it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import ceil

from gpuwatch.account.money import Capacity, capacity_of, instance_type_of, region_of, regions, source_of
from gpuwatch.facts.catalog.gpus import Gpu, find_gpu, gpu_share_ratio, gpus, profile_name
from gpuwatch.facts.catalog.instances import InstanceType
from gpuwatch.facts.catalog.mig import geometry
from gpuwatch.facts.model.cluster import Node, Sharing
from gpuwatch.facts.model.sizing import Target, TargetKind
from gpuwatch.facts.model.telemetry import Vendor
from gpuwatch.facts.model.workload_profile import WorkloadKey, WorkloadProfile
from gpuwatch.size.capability import times
from gpuwatch.size.facts import Facts, in_service

# Resource names of whole GPUs.
_WHOLE = {
    Vendor.NVIDIA: "nvidia.com/gpu",
    Vendor.AMD: "amd.com/gpu",
    Vendor.INTEL: "gpu.intel.com/i915",
    Vendor.GAUDI: "habana.ai/gaudi",
}


def strategy(nodes: Sequence[Node]) -> str:
    """MIG strategy of the Nodes: 'single' where all known ones are, else 'mixed', which names slices exactly."""
    strategies = {node.mig_strategy for node in nodes if node.mig_strategy in ("single", "mixed")}
    return "single" if strategies == {"single"} else "mixed"


def mig_resource(gpu: Gpu, mig_profile: str, nodes: Sequence[Node]) -> str:
    """The resource that a Pod asks for: nvidia.com/mig-1g.5gb, or nvidia.com/gpu with strategy single."""
    if strategy(nodes) == "single":
        return _WHOLE[gpu.vendor]
    return f"nvidia.com/mig-{resource_suffix(gpu, mig_profile, nodes)}"


def shared_resource(nodes: Sequence[Node], sharing: Sharing) -> str:
    """nvidia.com/gpu.shared, unless Nodes that already share this way use the plain name."""
    sharers = [node for node in nodes if node.sharing is sharing]
    renamed = any("nvidia.com/gpu.shared" in node.accelerators for node in sharers)
    return "nvidia.com/gpu" if sharers and not renamed else "nvidia.com/gpu.shared"


def current(profile: WorkloadProfile, gpu: Gpu, facts: Facts) -> Target:
    nodes = facts.present_nodes(profile.key)
    count = max(profile.gpus_per_pod, 1)
    share = gpu_share_ratio(gpu.name, profile.key.mig_profile)
    price = facts.prices.of_nodes(nodes)
    asked = {name for pod in facts.pods.get(profile.key.workload, ()) for name in pod.accelerators}
    mig = profile.key.mig_profile
    usual = mig_resource(gpu, mig, nodes) if mig else _WHOLE[gpu.vendor]
    return Target(
        kind=TargetKind.SAME,
        gpu_model=gpu.name,
        gpus_per_pod=count,
        gpu_share_ratio=share,
        mig_profile=mig,
        resource=_common(asked) or usual,
        instance_type=_common(map(instance_type_of, nodes)),
        region=_common(regions(nodes)),
        price_per_hour=times(price.price_per_gpu_hour, share * count),
        price_source=price.reason,
    )


def candidates(profile: WorkloadProfile, now: Target, gpu: Gpu, facts: Facts) -> tuple[Target, ...]:
    """All targets except the present one and sharing, in a fixed order."""
    return (*_slices(profile, now, gpu, facts), *_fewer(now), *_models(profile, now, gpu, facts))


def shared(now: Target, sharing: Sharing, partners: Sequence[WorkloadKey], facts: Facts) -> Target:
    share = 1.0 / (len(partners) + 1)
    return replace(
        now,
        kind=TargetKind.SHARED,
        gpus_per_pod=1,
        gpu_share_ratio=share,
        sharing=sharing,
        partners=tuple(sorted(partners)),
        resource=shared_resource(facts.nodes_of.get(now.gpu_model, ()), sharing),
        instance_type="",
        price_per_hour=times(now.price_per_hour, share),
    )


def _slices(profile: WorkloadProfile, now: Target, gpu: Gpu, facts: Facts) -> Iterable[Target]:
    shape = geometry(gpu.mig_family)
    nodes = facts.present_nodes(profile.key)
    whole = None if now.price_per_hour is None else now.price_per_hour / (now.gpu_share_ratio * now.gpus_per_pod)
    for found in shape.profiles if shape is not None else ():
        # Variants with media engines or graphics are left out: whether a workload needs these is unknown.
        if not found.name.endswith("gb") or found.name == profile_name(gpu.name, profile.key.mig_profile):
            continue
        share = gpu_share_ratio(gpu.name, found.name)
        yield replace(
            now,
            kind=TargetKind.MIG,
            gpu_share_ratio=share,
            mig_profile=found.name,
            resource=mig_resource(gpu, found.name, nodes),
            instance_type="",
            price_per_hour=None if whole is None else whole * share * now.gpus_per_pod,
        )


def _fewer(now: Target) -> Iterable[Target]:
    """Only divisors, so that work in equal parts stays equal."""
    for count in range(now.gpus_per_pod - 1, 0, -1):
        if now.gpus_per_pod % count == 0 and not now.mig_profile:
            price = None if now.price_per_hour is None else now.price_per_hour * count / now.gpus_per_pod
            yield replace(now, kind=TargetKind.FEWER, gpus_per_pod=count, instance_type="", price_per_hour=price)


def _models(profile: WorkloadProfile, now: Target, gpu: Gpu, facts: Facts) -> Iterable[Target]:
    everywhere = regions(facts.cluster.nodes)
    present = {capacity_of(node) for node in facts.present_nodes(profile.key)}
    capacity = present.pop() if len(present) == 1 else Capacity.ON_DEMAND
    offers = facts.prices.offers([now.region] if now.region else everywhere, capacity)
    # Another provider's machines are no target, even if its region has the same name.
    clouds = {offer.vendor for offer in offers if offer.region in everywhere}
    for model in gpus():
        if model.name == gpu.name:
            continue
        nodes = facts.nodes_of.get(model.name, ())
        if nodes:
            yield _present(model, nodes, now.gpus_per_pod, facts)
            continue
        own = [offer for offer in offers if offer.gpu == model.name and (offer.vendor in clouds or not offer.vendor)]
        if own:
            yield _new(model, own, profile, now)


def _present(model: Gpu, nodes: Sequence[Node], count: int, facts: Facts) -> Target:
    """On the cluster's Nodes: those in service, else all. Priced by the GPUs used."""
    usable = [node for node in nodes if in_service(node)] or list(nodes)
    price = facts.prices.of_nodes(usable)
    return Target(
        kind=TargetKind.MODEL,
        gpu_model=model.name,
        gpus_per_pod=count,
        resource=_WHOLE[model.vendor],
        instance_type=_common(map(instance_type_of, usable)),
        region=_common(map(region_of, usable)),
        price_per_hour=times(price.price_per_gpu_hour, count),
        price_source=price.reason,
    )


def _new(model: Gpu, offers: Sequence[InstanceType], profile: WorkloadProfile, now: Target) -> Target:
    """On new machines, priced whole, as no other workload is known to fill them. Of machines with enough GPUs: the
    cheapest whose host is known to satisfy a Pod's requests; else the cheapest whose host is unknown; else the
    cheapest."""
    count = now.gpus_per_pod
    pods = max(profile.pods, 1.0)

    def per_pod(offer: InstanceType) -> float:
        fit = offer.gpu_count // count  # Pods of it that one machine takes
        return offer.price_per_hour * ceil(pods / fit - 1e-9) / pods if fit else float("inf")

    def order(offer: InstanceType) -> tuple[bool, int, float, int, str]:
        too_small = offer.gpu_count < count
        return too_small, _host_rank(profile, offer), per_pod(offer), -offer.gpu_count if too_small else 0, offer.name

    best = min(offers, key=order)
    price = per_pod(best)
    cores, memory = _host_share(best, count)
    return Target(
        kind=TargetKind.MODEL,
        gpu_model=model.name,
        gpus_per_pod=count,
        resource=_WHOLE[model.vendor],
        instance_type=best.name,
        region=best.region,
        price_per_hour=price if price < float("inf") else None,
        price_source=source_of(best),
        host_cpu_cores=cores,
        host_memory_bytes=memory,
    )


def _host_share(offer: InstanceType, count: int) -> tuple[float | None, float | None]:
    """CPU cores and bytes of memory in proportion to `count` of its GPUs."""
    part = min(count / offer.gpu_count, 1.0)
    cores, memory = offer.allocatable_cpu_cores, offer.allocatable_memory_bytes
    return times(cores, part), times(memory, part)


def _host_rank(profile: WorkloadProfile, offer: InstanceType) -> int:
    """0 where the host satisfies a Pod's requests, 2 where it does not, 1 where unknown."""
    asked = (profile.cpu_cores or 0.0, profile.host_memory_bytes or 0.0)
    pairs = list(zip(asked, _host_share(offer, max(profile.gpus_per_pod, 1)), strict=True))
    if any(have is not None and want > have for want, have in pairs):
        return 2
    return 1 if any(have is None and want > 0 for want, have in pairs) else 0


def _common(values: Iterable[str]) -> str:
    """The value that all have; '' where they differ."""
    found = set(values)
    return found.pop() if len(found) == 1 else ""


def gpu_of(target: Target) -> Gpu:
    gpu = find_gpu(target.gpu_model)
    assert gpu is not None  # every target is made from a model of the catalog
    return gpu


def resource_suffix(gpu: Gpu, mig_profile: str, nodes: Sequence[Node]) -> str:
    """The profile in names of resources and labels, in the spelling of these Nodes' driver where one has it."""
    spelled = (name for node in nodes for name in node.mig_layout if profile_name(gpu.name, name) == mig_profile)
    return next(spelled, mig_profile).replace("+", ".")
