"""Dynamic resource allocation (DRA): which device each ResourceClaim holds."""

from collections.abc import Iterable, Mapping

from gpuwatch.facts.frameworks.owner import Wire
from gpuwatch.facts.model.cluster import ClaimedDevice
from gpuwatch.sources.kube.wire import Metadata


class AllocatedDevice(Wire, frozen=True):
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None


class DeviceAllocation(Wire, frozen=True):
    results: list[AllocatedDevice] | None = None


class WireAllocation(Wire, frozen=True):
    devices: DeviceAllocation | None = None


class ClaimStatus(Wire, frozen=True):
    allocation: WireAllocation | None = None


class ResourceClaim(Wire, frozen=True):
    metadata: Metadata
    status: ClaimStatus = ClaimStatus()


class Attribute(Wire, frozen=True):
    string: str | None = None


class SliceDevice(Wire, frozen=True):
    name: str = ""
    attributes: dict[str, Attribute] | None = None
    basic: "SliceDevice | None" = None  # holds the attributes in resource.k8s.io/v1beta1


class SlicePool(Wire, frozen=True):
    name: str = ""
    generation: int = 0


class SliceSpec(Wire, frozen=True):
    driver: str = ""
    pool: SlicePool = SlicePool()
    devices: list[SliceDevice] | None = None


class ResourceSlice(Wire, frozen=True):
    metadata: Metadata
    spec: SliceSpec = SliceSpec()


DeviceKey = tuple[str, str, str]
"""Driver, pool and device name."""


def device_uuids(slices: Iterable[ResourceSlice]) -> dict[DeviceKey, str]:
    """UUID of each device whose driver publishes one; for a MIG device, the UUID of its GPU. Slices of a pool's older
    generations are outdated and ignored."""
    found = list(slices)
    newest: dict[tuple[str, str], int] = {}
    for item in found:
        pool = (item.spec.driver, item.spec.pool.name)
        newest[pool] = max(newest.get(pool, 0), item.spec.pool.generation)
    uuids = {}
    for item in found:
        spec = item.spec
        if spec.pool.generation < newest[spec.driver, spec.pool.name]:
            continue
        for device in spec.devices or ():
            attributes = device.attributes or (device.basic.attributes if device.basic else None) or {}
            # Telemetry does not use a MIG device's own UUID; the device's name has its profile and placement.
            uuid = _text(attributes, "parentUUID", spec.driver) or _text(attributes, "uuid", spec.driver)
            if uuid:
                uuids[spec.driver, spec.pool.name, device.name] = uuid
    return uuids


def _text(attributes: Mapping[str, Attribute], name: str, driver: str) -> str:
    # Drivers write an attribute with or without their domain.
    found = attributes.get(name) or attributes.get(f"{driver}/{name}")
    return (found.string if found else None) or ""


def claimed_devices(claims: Iterable[ResourceClaim], uuids: Mapping[DeviceKey, str]) -> tuple[ClaimedDevice, ...]:
    return tuple(
        ClaimedDevice(
            claim=f"{claim.metadata.namespace}/{claim.metadata.name}",
            driver=held.driver,
            pool=held.pool,
            name=held.device,
            device=uuids.get((held.driver, held.pool, held.device), ""),
        )
        for claim in claims
        if claim.status.allocation is not None and claim.status.allocation.devices is not None
        for held in claim.status.allocation.devices.results or ()
        if not held.admin_access  # admin access does not reserve the device
    )
