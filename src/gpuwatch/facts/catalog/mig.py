"""MIG layouts: profiles, their allowed positions, and every valid combination.

An instance occupies the grid units [start, start + size) of the memory. Instances do not overlap, their compute slices
add up to at most the GPU's, no profile exceeds its own maximum, and at most one instance has the media extensions
(`+me`, `+me.all`). Source: NVIDIA MIG user guide; each layout and family in `mig.json` has its own source, and so has
the measured memory of its instances.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from typing import Any, TypeAlias

import msgspec

from gpuwatch.facts.catalog.tables import CatalogError, packaged, read_json

_NAME = re.compile(r"(?P<slices>\d+)g\.(?P<gigabytes>\d+)gb(?P<rest>.*)")
# Drivers round memory differently: 3g.39gb is 3g.40gb (NVIDIA/mig-parted#31), a GB200's 3g.93gb is 3g.95gb (bd7160f4).
_SAME_MEMORY_RATIO = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class MigProfile:
    """`size` and `starts` are in grid units; `starts` are all that the driver allows."""

    name: str  # as in GPU_I_PROFILE, e.g. 1g.5gb
    compute_slices: int
    size: int
    starts: tuple[int, ...]
    max_instances: int
    media_extensions: bool  # +me: only one instance of a GPU may have it
    double_memory: bool  # the one-slice profile with twice the memory
    memory_bytes: float | None = None  # that an instance has, measured; None without a source
    decoders: int | None = None  # NVDEC engines; None without a source

    @property
    def resource_suffix(self) -> str:
        """The profile in `nvidia.com/mig-…` resource names."""
        return self.name.replace("+", ".")


@dataclass(frozen=True, slots=True, kw_only=True)
class MigGeometry:
    family: str  # Gpu.mig_family
    grid_units: int
    compute_total: int
    profiles: tuple[MigProfile, ...]
    source: str
    checked: date  # when a person last looked at the source

    def profile(self, name: str) -> MigProfile | None:
        """By its name or its resource suffix (1g.5gb+me, 1g.5gb.me) in any driver's spelling; None where there is none.

        >>> geometry("A100-80GB").profile("3g.39gb").name
        '3g.40gb'
        """
        wanted = name.strip().lower()
        exact = next((p for p in self.profiles if wanted in (p.name, p.resource_suffix)), None)
        asked = _NAME.fullmatch(wanted)
        if exact is not None or asked is None:
            return exact
        known = ((_NAME.fullmatch(p.resource_suffix), p) for p in self.profiles)
        alike = ("slices", "rest")
        near = [
            (abs(int(found["gigabytes"]) / int(asked["gigabytes"]) - 1), p)
            for found, p in known
            if found and found.group(*alike) == (asked["slices"], asked["rest"].replace("+", "."))
        ]
        apart, nearest = min(near, key=lambda item: item[0], default=(1.0, None))
        return nearest if apart <= _SAME_MEMORY_RATIO else None

    def memory_ratio(self, profile: MigProfile) -> float:
        """Share of the GPU's memory that an instance gets, 0 to 1."""
        return profile.size / self.grid_units

    @property
    def plain_profiles(self) -> tuple[str, ...]:
        """Names without the variants: no media extensions, graphics or double memory."""
        return tuple(p.name for p in self.profiles if p.name.endswith("gb") and not p.double_memory)


@dataclass(frozen=True, slots=True, order=True)
class MigPlacement:
    start: int  # grid unit
    profile: str


PlacementSet: TypeAlias = tuple[MigPlacement, ...]
"""Instances on one GPU, by start. () is a GPU with MIG on and no instance."""


def families() -> tuple[str, ...]:
    return tuple(_geometries())


def geometry(family: str) -> MigGeometry | None:
    """None for a family without MIG, or one that the catalog lacks."""
    return _geometries().get(family)


def placement_sets(geometry: MigGeometry, names: Collection[str] | None = None) -> tuple[PlacementSet, ...]:
    """Every valid set of instances of the profiles with these names (default: all), the empty one first."""
    profiles = [profile for profile in geometry.profiles if names is None or profile.name in names]
    return tuple(sorted(_extend(geometry, profiles, 0, ()), key=lambda found: (len(found), found)))


def maximal(geometry: MigGeometry, names: Collection[str] | None = None) -> tuple[PlacementSet, ...]:
    """The valid sets to which no instance of these profiles can be added."""
    spots = [(p, start) for p in geometry.profiles if names is None or p.name in names for start in p.starts]
    sets = placement_sets(geometry, names)
    return tuple(placed for placed in sets if not any(_fits(geometry, placed, *spot) for spot in spots))


def _extend(
    geometry: MigGeometry, profiles: Sequence[MigProfile], first_start: int, placed: PlacementSet
) -> Iterator[PlacementSet]:
    yield placed
    for profile in profiles:
        for start in profile.starts:
            if start >= first_start and _fits(geometry, placed, profile, start):
                yield from _extend(
                    geometry, profiles, start + profile.size, (*placed, MigPlacement(start, profile.name))
                )


def _fits(geometry: MigGeometry, placed: PlacementSet, profile: MigProfile, start: int) -> bool:
    others = [(one.start, found) for one in placed if (found := geometry.profile(one.profile))]
    return (
        all(start + profile.size <= at or at + other.size <= start for at, other in others)
        and profile.compute_slices + sum(other.compute_slices for _, other in others) <= geometry.compute_total
        and sum(other is profile for _, other in others) < profile.max_instances
        and not (profile.media_extensions and any(other.media_extensions for _, other in others))
    )


@cache
def _geometries() -> Mapping[str, MigGeometry]:
    return parse_mig(packaged("mig.json"), "mig.json")


def parse_mig(text: str, file: str) -> dict[str, MigGeometry]:
    """By family. Raises CatalogError that names the file and the family or layout."""
    tables = read_json(text, file)
    found: dict[str, MigGeometry] = {}
    where = "the top level"
    try:
        for family, entry in tables["families"].items():
            where = f"family {family}"
            layout = tables["layouts"][entry["layout"]]
            found[family] = _geometry(family, entry, layout)
    except (KeyError, TypeError, AttributeError, ValueError) as problem:
        missing = f"{problem.args[0]!r} is missing; add it" if isinstance(problem, KeyError) else ""
        raise CatalogError(f"{file}, {where}", missing or f"{problem}; compare with the other entries") from None
    return found


def _geometry(family: str, entry: Mapping[str, Any], layout: Mapping[str, Any]) -> MigGeometry:
    grid, compute = layout["grid_units"], layout["compute_total"]
    measured = entry.get("memory_mib", {})
    profiles = []
    for slot in layout["profiles"]:
        memory = measured[str(slot["size"])] * 2.0**20 if str(slot["size"]) in measured else None
        told = {"memory_bytes": memory, "decoders": entry.get("decoders", {}).get(slot["kind"])}
        profile = msgspec.convert({**slot, **told, "name": entry["names"][slot["kind"]]}, MigProfile)
        if not profile.starts or min(profile.starts) < 0 or max(profile.starts) + profile.size > grid:
            raise ValueError(f"profile {profile.name} does not lie on the grid of {grid} units")
        if not 0 < profile.compute_slices <= compute:
            raise ValueError(f"profile {profile.name} has {profile.compute_slices} of {compute} compute slices")
        profiles.append(profile)
    return MigGeometry(
        family=family,
        grid_units=grid,
        compute_total=compute,
        profiles=tuple(profiles),
        source=entry["source"],
        checked=date.fromisoformat(entry["checked"]),
    )
