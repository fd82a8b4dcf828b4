"""Dynamic resource allocation (DRA): which device each ResourceClaim holds, and which GPUs each Node publishes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.frameworks.owner import Wire
from gpuwatch.facts.model.cluster import ClaimedDevice, Taint
from gpuwatch.facts.model.telemetry import DeviceId
from gpuwatch.sources.kube.decode import part, place_of
from gpuwatch.sources.kube.wire import WireCondition, WireTaint


class AllocatedDevice(Wire, frozen=True):
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    conditions: list[WireCondition] | None = None  # of status.devices


class SliceDevice(Wire, frozen=True):
    name: str = ""
    attributes: dict[str, dict[str, Any]] | None = None  # by type: {"string": "GPU-…"}
    taints: list[WireTaint] | None = None
    basic: "SliceDevice | None" = None  # holds both in resource.k8s.io/v1beta1


class SlicePool(Wire, frozen=True):
    name: str = ""
    generation: int = 0


class SliceSpec(Wire, frozen=True):
    driver: str = ""
    node_name: str | None = None
    pool: SlicePool = SlicePool()
    devices: list[SliceDevice] | None = None


class DeviceSelector(Wire, frozen=True):
    """None: any. The last two were in v1alpha3 alone."""

    driver: str | None = None
    pool: str | None = None
    device: str | None = None
    device_class_name: str | None = None
    selectors: list[msgspec.Raw] | None = None


class TaintRule(Wire, frozen=True):
    taint: WireTaint = WireTaint()
    device_selector: DeviceSelector | None = None


Claim = tuple[str, Sequence[AllocatedDevice]]
"""namespace/name of a ResourceClaim, and what it holds."""

DeviceKey = tuple[str, str, str]
"""Driver, pool and device name."""


def take_claim(raw: msgspec.Raw) -> Claim:
    held = part(raw, "/status/allocation/devices/results", list[AllocatedDevice]) or ()
    told = part(raw, "/status/devices", list[AllocatedDevice]) or ()
    conditions = {(each.driver, each.pool, each.device): each.conditions for each in told}
    return place_of(raw), [
        msgspec.structs.replace(each, conditions=conditions.get((each.driver, each.pool, each.device))) for each in held
    ]


def _unhealthy(device: AllocatedDevice) -> str:
    """The types are the driver's own; Ready is the one that Kubernetes documents (KEP-4817)."""
    bad = [each for each in device.conditions or () if each.type in ("Ready", "Healthy") and each.status == "False"]
    return ", ".join(f"{each.type}=False ({each.reason or 'no reason given'})" for each in bad)


def take_slice(raw: msgspec.Raw) -> SliceSpec | None:
    return part(raw, "/spec", SliceSpec)


def take_rule(raw: msgspec.Raw) -> TaintRule | None:
    return part(raw, "/spec", TaintRule)


def device_uuids(slices: Sequence[SliceSpec]) -> dict[DeviceKey, DeviceId]:
    """UUID of each device whose driver publishes one; for a MIG device, the UUID of its GPU."""
    return {(spec.driver, spec.pool.name, device.name): uuid for spec, device, uuid in _devices(slices)}


def published(slices: Sequence[SliceSpec], rules: Sequence[TaintRule]) -> dict[str, dict[DeviceId, tuple[Taint, ...]]]:
    """Node → its GPUs that a driver publishes, with the taints that withhold them or a part of them: the driver's own,
    and those of rules other than gpuwatch's."""
    found: dict[str, dict[DeviceId, tuple[Taint, ...]]] = {}
    of_pool: dict[tuple[str, str], list[tuple[str | None, WireTaint]]] = {}  # of a device's name, None for all
    for spec, device, uuid in _devices(slices):
        pool = (spec.driver, spec.pool.name)
        if pool not in of_pool:
            of_pool[pool] = [each for rule in rules for each in _in_pool(rule, *pool)]
        told = [*(device.taints or (device.basic.taints if device.basic else None) or ())]
        told += [taint for name, taint in of_pool[pool] if name in (None, device.name)]
        taints = (
            Taint(each.key, each.value or "", each.effect, each.time_added)
            for each in told
            if each.effect in ("NoSchedule", "NoExecute") and not each.key.startswith(keys.PREFIX)
        )
        if spec.node_name:
            gpus = found.setdefault(spec.node_name, {})
            gpus[uuid] = tuple(dict.fromkeys((*gpus.get(uuid, ()), *taints)))
    return found


def _in_pool(rule: TaintRule, driver: str, pool: str) -> Iterator[tuple[str | None, WireTaint]]:
    """A rule without a selector selects nothing. What one by class or expression selects is not known here."""
    wanted = rule.device_selector
    if wanted is None or wanted.device_class_name or wanted.selectors:
        return
    if wanted.driver in (None, driver) and wanted.pool in (None, pool):
        yield wanted.device, rule.taint


def _devices(slices: Sequence[SliceSpec]) -> Iterator[tuple[SliceSpec, SliceDevice, DeviceId]]:
    """Those with a UUID. Slices of a pool's older generations are outdated and ignored."""
    newest: dict[tuple[str, str], int] = {}
    for spec in slices:
        pool = (spec.driver, spec.pool.name)
        newest[pool] = max(newest.get(pool, 0), spec.pool.generation)
    for spec in slices:
        if spec.pool.generation < newest[spec.driver, spec.pool.name]:
            continue
        for device in spec.devices or ():
            attributes = device.attributes or (device.basic.attributes if device.basic else None) or {}
            # Telemetry does not use a MIG device's own UUID; the device's name has its profile and placement.
            uuid = _text(attributes, "parentUUID", spec.driver) or _text(attributes, "uuid", spec.driver)
            if uuid:
                yield spec, device, uuid


def _text(attributes: Mapping[str, Mapping[str, Any]], name: str, driver: str) -> str:
    # Drivers write an attribute with or without their domain.
    found = attributes.get(name) or attributes.get(f"{driver}/{name}")
    return (found or {}).get("string") or ""


def claimed_devices(claims: Iterable[Claim], uuids: Mapping[DeviceKey, str]) -> tuple[ClaimedDevice, ...]:
    return tuple(
        ClaimedDevice(
            claim=claim,
            driver=held.driver,
            pool=held.pool,
            name=held.device,
            device=uuids.get((held.driver, held.pool, held.device), ""),
            unhealthy=_unhealthy(held),
        )
        for claim, devices in claims
        for held in devices
        if not held.admin_access  # admin access does not reserve the device
    )
