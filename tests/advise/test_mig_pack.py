"""Packing against an exhaustive search, and the patterns against the listed ones."""

import itertools
import random
from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from advise.world import TABLES
from gpuwatch.facts.catalog.mig import families, geometry, placement_sets
from gpuwatch.size.mig_pack import KeptClass, Packing, pack, patterns
from gpuwatch.size.mig_parted import standard_name

A100 = "A100-40GB"
PLAIN = ("1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")


def test_the_fourteen_maximal_cuts_of_the_seven_slice_family() -> None:
    cuts = patterns(A100, PLAIN)
    # 19 maximal placements are 14 multisets, of which some are part of another that begins elsewhere.
    valid = {tuple(sorted(spot.profile for spot in placed)) for placed in placement_sets(geometry(A100), PLAIN)}  # type: ignore[arg-type]
    assert set(cuts) <= valid
    for cut in valid:
        assert any(Counter(cut) <= Counter(best) for best in cuts)
    for one, other in itertools.permutations(cuts, 2):
        assert not Counter(one) <= Counter(other)


@cache
def fewest(demand: tuple[int, ...], profiles: tuple[str, ...]) -> int:
    """By trying every cut for the next GPU."""
    if not any(demand):
        return 0
    best = 99
    for cut in patterns(A100, profiles):
        counts = Counter(cut)
        left = tuple(max(need - counts[name], 0) for name, need in zip(profiles, demand, strict=True))
        if left != demand:
            best = min(best, 1 + fewest(left, profiles))
    return best


def packed(demand: Mapping[str, int], family: str = A100, **supply: Any) -> Packing | None:
    return pack(demand, geometry(family), **supply)


@pytest.mark.parametrize("seed", range(25))
def test_as_few_gpus_as_an_exhaustive_search_finds(seed: int) -> None:
    chance = random.Random(seed)
    profiles = tuple(sorted(chance.sample(PLAIN, 3)))
    demand = tuple(chance.randint(0, 5) for _ in profiles)
    found = packed(dict(zip(profiles, demand, strict=True)), blank=20)
    assert found.gpus == fewest(demand, profiles)
    assert found.lower_bound <= found.gpus
    offered = Counter(name for cut, count in found.cut.items() for name in cut * count)
    assert all(offered[name] >= need for name, need in zip(profiles, demand, strict=True))


def test_what_does_not_fit_is_none() -> None:
    assert packed({"4g.20gb": 2}, blank=2) is not None
    assert packed({"4g.20gb": 2}, blank=1) is None
    assert packed({"4g.20gb": 1}) is None
    assert packed({}) is not None


def test_of_equally_few_gpus_the_gentlest() -> None:
    serves = KeptClass(("3g.20gb", "3g.20gb"), 0, cuttable=True)
    found = packed({"3g.20gb": 2}, kept={serves: 1}, blank=5)
    assert (found.keep, found.cut) == ({serves: 1}, {})


def test_a_kept_gpu_that_serves_worse_is_left_for_fewer_gpus() -> None:
    poor = KeptClass(("3g.20gb",), 0, cuttable=True)
    found = packed({"3g.20gb": 2}, kept={poor: 2})
    assert (found.gpus, found.keep, found.cut) == (1, {}, {("3g.20gb", "3g.20gb"): 1})


def test_the_gpu_with_fewer_tenants_is_given_up() -> None:
    one, two = (KeptClass(("3g.20gb", "3g.20gb"), tenants, cuttable=True) for tenants in (1, 2))
    found = packed({"3g.20gb": 4}, kept={one: 2, two: 1})
    assert found.keep == {one: 1, two: 1}


def test_free_instances_of_gpus_in_use_come_first() -> None:
    found = packed({"1g.5gb": 8}, held={"1g.5gb": 1, "7g.40gb": 1}, blank=1)
    assert (found.gpus, found.lower_bound) == (1, 1)


@pytest.mark.parametrize("family", families())
def test_every_family_can_be_packed_full(family: str) -> None:
    shape = geometry(family)
    for profile in shape.profiles:
        for count, gpus in ((profile.max_instances, 1), (profile.max_instances + 1, 2)):
            found = packed({profile.name: count}, family, blank=2)
            assert found.gpus == gpus


@pytest.mark.parametrize(("family", "spelling", "name"), TABLES["spellings"])
def test_spellings(family: str, spelling: str, name: str | None) -> None:
    shape = geometry(family)
    profile = shape.profile(spelling)
    assert (profile.name if profile else None) == name


@pytest.mark.parametrize(
    ("family", "cut", "name"),
    [
        (A100, (), "all-disabled"),
        (A100, ("1g.5gb",) * 7, "all-1g.5gb"),
        (A100, ("1g.5gb",) * 6, ""),
        (A100, ("1g.10gb",) * 4, "all-1g.10gb"),
        (A100, ("1g.5gb+me",), "all-1g.5gb.me"),
        (A100, ("1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb"), "all-balanced"),
        ("A30-24GB", ("1g.6gb", "1g.6gb", "2g.12gb"), "all-balanced"),
        ("RTX-PRO-6000-Blackwell-96GB", ("1g.24gb", "1g.24gb", "2g.48gb"), "all-balanced"),
        ("RTX-PRO-6000-Blackwell-96GB", ("2g.48gb-me", "2g.48gb-me"), "all-2g.48gb-me"),
        ("A100-80GB", ("3g.39gb", "3g.39gb"), ""),
    ],
)
def test_names_of_mig_parteds_own_configs(family: str, cut: tuple[str, ...], name: str) -> None:
    """As in deployments/systemd/config-default.yaml of NVIDIA/mig-parted."""
    assert standard_name(geometry(family), cut) == name
