"""Accelerators as Kubernetes counts them: resource names, and what a Pod asks for in all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from decimal import Decimal
from functools import lru_cache

from gpuwatch.kube.quantity import quantity
from gpuwatch.kube.wire import Container, PodSpec, Quantities

# Names under an accelerator vendor's domain that count something else: shares of a GPU (HAMi), network devices
# (NVIDIA's network operator), and Intel's monitoring, fraction and tile resources.
_NVIDIA_OTHERS = frozenset({"gpumem", "gpumem-percentage", "gpucores", "priority", "hostdev", "mlnxnics"})
_INTEL_OTHERS = frozenset({"millicores", "memory.max", "tiles", "i915_monitoring", "xe_monitoring"})


@lru_cache(maxsize=1024)
def is_accelerator(resource: str) -> bool:
    """Does one unit of it hold a GPU, a slice or a shared GPU? Operators may rename nvidia.com/* freely."""
    domain, _, name = resource.partition("/")
    if domain == "nvidia.com":
        return name not in _NVIDIA_OTHERS
    if domain == "gpu.intel.com":
        return name not in _INTEL_OTHERS
    return domain == "amd.com" or resource == "habana.ai/gaudi"


def names_accelerator(spec: PodSpec) -> bool:
    """Does any container ask for an accelerator? Cheaper than adding up, and most Pods ask for none."""
    for container in (*(spec.containers or ()), *(spec.init_containers or ())):
        asked = container.resources
        if asked is not None and (
            any(map(is_accelerator, asked.requests or ())) or any(map(is_accelerator, asked.limits or ()))
        ):
            return True
    return False


def _requests(container: Container) -> Quantities:
    asked = container.resources
    if asked is None:
        return {}
    return {**(asked.limits or {}), **(asked.requests or {})}  # a request that is missing equals the limit


def _add(total: dict[str, Decimal], amounts: Mapping[str, str | int | float]) -> None:
    for name, amount in amounts.items():
        total[name] += quantity(amount)


def pod_requests(spec: PodSpec) -> dict[str, Decimal]:
    """What the scheduler reserves for the Pod, by resource name.

    The larger of what its containers and sidecars need together, and what each init container needs beside the
    sidecars started before it; plus the overhead. A sidecar is an init container that is restarted always.
    Requests of the whole Pod (spec.resources) take the place of its containers'.
    Raises ValueError for a bad quantity.
    """
    running: dict[str, Decimal] = defaultdict(Decimal)
    peak: dict[str, Decimal] = defaultdict(Decimal)
    for container in spec.init_containers or ():
        if container.restart_policy == "Always":
            _add(running, _requests(container))
            _raise_to(peak, running)
        else:
            beside = defaultdict(Decimal, running)
            _add(beside, _requests(container))
            _raise_to(peak, beside)
    for container in spec.containers or ():
        _add(running, _requests(container))
    _raise_to(peak, running)
    if spec.resources is not None:
        peak.update({name: quantity(amount) for name, amount in (spec.resources.requests or {}).items()})
    _add(peak, spec.overhead or {})
    return dict(peak)


def _raise_to(peak: dict[str, Decimal], amounts: Mapping[str, Decimal]) -> None:
    for name, amount in amounts.items():
        peak[name] = max(peak[name], amount)


def accelerator_counts(amounts: Iterable[tuple[str, Decimal]]) -> dict[str, int]:
    """The accelerators among the amounts, those of which there is at least one."""
    return {name: int(amount) for name, amount in amounts if amount > 0 and is_accelerator(name)}
