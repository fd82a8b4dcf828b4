"""Under which condition an image runs on another GPU model."""

import pytest

from gpuwatch.facts.catalog.gpus import find_gpu
from gpuwatch.size.capability import condition
from gpuwatch.size.policy import AdvicePolicy

PTX = "or PTX that the driver can compile for it"


def between(now: str, target: str, allowed: tuple[str, ...] = (), told: str | None = None) -> str:
    have, need = find_gpu(now), find_gpu(target)
    assert have is not None
    assert need is not None
    annotations = {} if told is None else {"gpuwatch.dev/compute-capabilities": told}
    return condition(have, need, allowed, [("Deployment/a/b", {}), ("Pod a/b-0", annotations)])


# NVIDIA's "Blackwell Compatibility Guide": binary code for 8.0 runs on 8.6, that for 8.6 not on 8.0, that for
# 8.x not on 9.0.
@pytest.mark.parametrize(
    ("now", "target"),
    [
        ("A100-SXM4-40GB", "A100-SXM4-80GB"),
        ("A100-SXM4-40GB", "A10"),
        ("A100-SXM4-40GB", "L4"),
        ("A10", "L40S"),
        ("V100-SXM2-16GB", "T4"),
        ("H100-SXM5-80GB", "H200-SXM5-141GB"),
        ("B200-180GB", "B300-269GB"),
        ("MI300X", "MI325X"),
    ],
)
def test_the_same_major_version_upwards_needs_nothing(now: str, target: str) -> None:
    assert between(now, target) == ""


@pytest.mark.parametrize(
    ("now", "target", "said"),
    [
        ("A100-SXM4-40GB", "RTX-PRO-6000-Blackwell-SE", f"Only if the image carries sm_120, {PTX}."),
        ("T4", "A10", f"Only if the image carries sm_86, {PTX}."),
        ("A10", "A100-SXM4-40GB", f"Only if the image carries sm_80, {PTX}."),
        ("L4", "A10", f"Only if the image carries sm_86, {PTX}; FP8 is not available."),
        (
            "H100-SXM5-80GB",
            "A100-SXM4-80GB",
            f"Only if the image carries sm_80, {PTX}; FP8 is not available; kernels for sm_90a do not run.",
        ),
        (
            "H100-SXM5-80GB",
            "L40S",
            f"Only if the image carries sm_89, {PTX}; kernels for sm_90a do not run.",
        ),
        (
            "B200-180GB",
            "H200-SXM5-141GB",
            f"Only if the image carries sm_90, {PTX}; FP4 is not available; kernels for sm_100a do not run.",
        ),
        (
            "B200-180GB",
            "RTX-PRO-6000-Blackwell-SE",
            f"Only if the image carries sm_120, {PTX}; kernels for sm_100a do not run.",
        ),
        (
            "L4",
            "T4",
            f"Only if the image carries sm_75, {PTX}; BF16 is not available; FP8 is not available.",
        ),
        ("MI210", "MI300X", "Only if the image is built for cdna3."),
        ("A100-SXM4-40GB", "MI300X", "Only if the image is built for cdna3."),
    ],
)
def test_all_else_has_a_condition_that_says_what_is_needed_and_what_is_lost(now: str, target: str, said: str) -> None:
    assert between(now, target) == said


def test_what_names_the_target_removes_it_and_nothing_else_does() -> None:
    assert between("A100-SXM4-40GB", "H100-SXM5-80GB", told="8.0, 9.0") == ""
    assert between("A100-SXM4-40GB", "H100-SXM5-80GB", allowed=("9.0",)) == ""
    assert between("MI210", "MI300X", told="cdna3") == ""
    for told in ("", "10.0", "9", "hopper", "sm_90"):
        assert between("A100-SXM4-40GB", "H100-SXM5-80GB", told=told).startswith("Only if the image carries sm_90")


def test_a_setting_that_names_no_gpu_is_refused() -> None:
    assert AdvicePolicy(compute_capabilities=("8.0", "12.0", "cdna3"))
    with pytest.raises(ValueError, match=r"advice\.compute_capabilities is .*sm_80.*such as '8\.0'"):
        AdvicePolicy(compute_capabilities=("sm_80",))
