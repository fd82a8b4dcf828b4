"""MIG placements against the published counts and the listed maximal sets."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.facts.catalog.mig import MigPlacement, families, geometry, maximal, parse_mig, placement_sets
from gpuwatch.facts.catalog.tables import CatalogError

SHARED = Path(__file__).parents[2].parent / "shared"
SEVEN_SLICE = tuple(family for family in families() if not family.startswith(("A30", "RTX")))

MAXIMAL = """
7×1g@0; 1g@0-3+2g@4+1g@6; 1g@0-3+3g@4; 1g@0-1+2g@2+1g@4-6; 1g@0-1+2g@2+2g@4+1g@6; 1g@0-1+2g@2+3g@4;
2g@0+1g@2-6; 2g@0+1g@2-3+2g@4+1g@6; 2g@0+1g@2-3+3g@4; 2g@0+2g@2+1g@4-6; 2g@0+2g@2+2g@4+1g@6; 2g@0+2g@2+3g@4;
3g@0+1g@4-6; 3g@0+2g@4+1g@6; 3g@0+3g@4; 4g@0+1g@4-6; 4g@0+2g@4+1g@6; 4g@0+3g@4; 7g@0
"""  # '1g@0-3': one at each of 0, 1, 2, 3


def listed() -> set[frozenset[tuple[str, int]]]:
    found = set()
    for text in MAXIMAL.replace("7×1g@0", "1g@0-6").split(";"):
        placed = []
        for part in text.strip().split("+"):
            kind, at = part.split("@")
            first, _, last = at.partition("-")
            placed += [(kind, start) for start in range(int(first), int(last or first) + 1)]
        found.add(frozenset(placed))
    return found


@pytest.mark.parametrize("family", SEVEN_SLICE)
def test_seven_slices_make_298_sets_and_19_maximal_ones(family: str) -> None:
    gpu = geometry(family)
    sets = placement_sets(gpu, gpu.plain_profiles)
    largest = maximal(gpu, gpu.plain_profiles)
    assert len(sets) == len(set(sets)) == 298
    assert sets[0] == ()
    assert {frozenset((p.profile.split(".")[0], p.start) for p in placed) for placed in largest} == listed()
    assert len(largest) == 19
    assert len({tuple(sorted(p.profile for p in placed)) for placed in largest}) == 14


@pytest.mark.parametrize("family", SEVEN_SLICE)
def test_with_double_memory_they_make_723_and_78(family: str) -> None:
    gpu = geometry(family)
    profiles = [p.name for p in gpu.profiles if not p.media_extensions]
    assert len(placement_sets(gpu, profiles)) == 723
    assert len(maximal(gpu, profiles)) == 78


@pytest.mark.parametrize("family", ["A30-24GB", "RTX-PRO-6000-Blackwell-96GB"])
def test_four_slices_make_26_and_5(family: str) -> None:
    gpu = geometry(family)
    assert len(placement_sets(gpu, gpu.plain_profiles)) == 26
    assert len(maximal(gpu, gpu.plain_profiles)) == 5


@pytest.mark.parametrize("family", families())
def test_every_set_is_valid(family: str) -> None:
    gpu = geometry(family)
    for placed in placement_sets(gpu):
        profiles = [gpu.profile(p.profile) for p in placed]
        units = [unit for p, f in zip(placed, profiles, strict=True) if f for unit in range(p.start, p.start + f.size)]
        assert len(units) == len(set(units))
        assert not units or max(units) < gpu.grid_units
        assert sum(f.compute_slices for f in profiles if f) <= gpu.compute_total
        assert sum(f.media_extensions for f in profiles if f) <= 1
        assert all(p.start in f.starts for p, f in zip(placed, profiles, strict=True) if f)


@given(st.data())
def test_taking_an_instance_away_leaves_a_valid_set(data: st.DataObject) -> None:
    gpu = geometry(data.draw(st.sampled_from(["A100-40GB", "A30-24GB"])))
    sets = set(placement_sets(gpu))
    placed = data.draw(st.sampled_from(sorted(sets - {()})))
    gone = data.draw(st.sampled_from(placed))
    assert tuple(p for p in placed if p != gone) in sets


def test_media_extensions_go_to_one_instance_only() -> None:
    a30 = geometry("A30-24GB")
    holders = [sum("+me" in p.profile for p in placed) for placed in placement_sets(a30)]
    assert set(holders) == {0, 1}
    pro = geometry("RTX-PRO-6000-Blackwell-96GB")  # +me and +me.all are two profiles that exclude each other
    assert max(sum("+me" in p.profile for p in placed) for placed in placement_sets(pro)) == 1


def test_memory_and_compute_shares() -> None:
    a100 = geometry("A100-40GB")
    three, double = a100.profile("3g.20gb"), a100.profile("1g.10gb")
    assert (a100.memory_ratio(three), three.compute_slices) == (0.5, 3)
    assert (a100.memory_ratio(double), double.compute_slices) == (0.25, 1)
    assert double.double_memory


def test_profiles_are_found_by_name_and_by_resource_name() -> None:
    pro = geometry("RTX-PRO-6000-Blackwell-96GB")
    assert pro.profile("1g.24gb+me.all") is pro.profile("1g.24gb.me.all")
    assert pro.profile("1g.24gb-me") is not pro.profile("1g.24gb")
    assert geometry("A100-40GB").profile("1g.24gb") is None


def test_a_gpu_without_mig_has_no_geometry() -> None:
    assert geometry("") is None
    assert geometry("T4") is None


def test_placements_of_the_smallest_gpu_by_hand() -> None:
    assert maximal(geometry("A30-24GB"), ["2g.12gb", "4g.24gb"]) == (
        (MigPlacement(0, "4g.24gb"),),
        (MigPlacement(0, "2g.12gb"), MigPlacement(2, "2g.12gb")),
    )


@pytest.mark.skipif(not SHARED.exists(), reason="the shared reference is not beside this checkout")
def test_profiles_agree_with_the_reference() -> None:
    reference = json.loads((SHARED / "reference/mig_profiles.json").read_text())
    assert set(families()) == set(reference)
    for family, facts in reference.items():
        assert [
            (p.name, p.compute_slices, p.size, list(p.starts), p.max_instances, p.media_extensions)
            for p in geometry(family).profiles
        ] == [
            (
                p["name"],
                p["compute_slices"],
                p["placement_size"],
                p["placement_starts"],
                p["max_instances"],
                p["media_extensions_exclusive"],
            )
            for p in facts["profiles"]
        ]


PROFILE = {
    "kind": "1g",
    "compute_slices": 1,
    "size": 1,
    "starts": [0],
    "max_instances": 1,
    "media_extensions": False,
    "double_memory": False,
}


@pytest.mark.parametrize(
    ("profile", "names", "complaint"),
    [
        (PROFILE | {"starts": [4]}, {"1g": "1g.5gb"}, r"mig.json, family X: profile 1g.5gb does not lie on the grid"),
        (PROFILE | {"compute_slices": 5}, {"1g": "1g.5gb"}, r"mig.json, family X: profile 1g.5gb has 5 of 4"),
        (PROFILE, {}, r"mig.json, family X: '1g' is missing; add it"),
    ],
)
def test_a_malformed_table_is_named(profile: dict[str, object], names: dict[str, str], complaint: str) -> None:
    layout = {"grid_units": 4, "compute_total": 4, "profiles": [profile]}
    family = {"layout": "four", "names": names, "source": "a test", "checked": "2026-11-21"}
    with pytest.raises(CatalogError, match=complaint):
        parse_mig(json.dumps({"layouts": {"four": layout}, "families": {"X": family}}), "mig.json")
    with pytest.raises(CatalogError, match=r"mig.json, line 1: no valid JSON"):
        parse_mig("{", "mig.json")
