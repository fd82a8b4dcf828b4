"""Resources as Kubernetes counts them: quantities ('8', '7910m', '32Gi', '1e3', '1.5G'), the names of accelerators, and
what a Pod requests."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache

import msgspec
import yaml

from gpuwatch.facts.catalog.tables import checked, packaged
from gpuwatch.sources.kube.wire import Container, PodSpec, Quantities

# Not the client's parse_quantity: it accepts what the API server refuses ('1_000', '1K', '8 Gi', 'inf'), and its
# import takes 0.45 s.
_SUFFIXES = {
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate(("n", "u", "m", "", *"kMGTPE"), -3)},
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", 1)},
}
# A digit after E makes it an exponent; a bare E is exa.
_FORM = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:[eE]([+-]?\d{1,3})|([numkMGTPE]|[KMGTPE]i)?)", re.ASCII)


@lru_cache(maxsize=8192)
def quantity(text: str | int | float) -> Decimal:
    """The exact value in the field's base unit (cores, bytes, devices). Raises ValueError for a text that the API
    server would refuse."""
    found = _FORM.fullmatch(str(text))
    if found is None:
        raise ValueError(f"{text!r} is no Kubernetes quantity (such as 8, 500m, 32Gi or 1e3)")
    number, exponent, suffix = found.groups()
    if exponent is not None:
        return Decimal(number).scaleb(int(exponent))
    return Decimal(number) * _SUFFIXES[suffix or ""]


def whole(text: str | int | float) -> int:
    """The value rounded up, as Kubernetes does."""
    return int(quantity(text).to_integral_value(ROUND_CEILING))


class _Labels(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The lists of labels.yaml."""

    pool: tuple[str, ...]
    product: tuple[str, ...]
    partition: tuple[str, ...]
    gpu_count: tuple[str, ...]
    whole_devices: tuple[str, ...]
    no_devices: Mapping[str, frozenset[str]]


LABELS = checked(yaml.safe_load(packaged("labels.yaml", "gpuwatch.sources.kube")), _Labels, "labels.yaml")


@lru_cache(maxsize=1024)
def is_accelerator(resource: str) -> bool:
    """Whether one unit is a GPU, a slice or a shared GPU. Operators may rename nvidia.com/* freely."""
    domain, _, name = resource.partition("/")
    if domain in LABELS.no_devices:
        return name not in LABELS.no_devices[domain]
    return domain == "amd.com" or resource == "habana.ai/gaudi"


def names_accelerator(spec: PodSpec) -> bool:
    """Whether any container requests an accelerator. Cheaper than `pod_requests`; most Pods request none."""
    containers = (*(spec.containers or ()), *(spec.init_containers or ()))
    asked = (container.resources for container in containers if container.resources is not None)
    return any(is_accelerator(name) for each in asked for name in (*(each.requests or ()), *(each.limits or ())))


def _requests(container: Container) -> Quantities:
    asked = container.resources
    if asked is None:
        return {}
    return {**(asked.limits or {}), **(asked.requests or {})}  # a missing request defaults to the limit


def _add(total: dict[str, Decimal], amounts: Mapping[str, str | int | float]) -> None:
    for name, amount in amounts.items():
        total[name] += quantity(amount)


def pod_requests(spec: PodSpec) -> dict[str, Decimal]:
    """What the scheduler reserves for the Pod, by resource name. Raises ValueError for a bad quantity.

    The maximum of two sums, plus the overhead: all containers and sidecars; and each init container with the sidecars
    started before it. A sidecar is an init container with restartPolicy Always. Pod-level requests (spec.resources)
    replace those of the containers.
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
    return {name: int(amount) for name, amount in amounts if amount > 0 and is_accelerator(name)}
