"""Under which condition an image that runs on one GPU model runs on another. Pure.

NVIDIA's "Blackwell Compatibility Guide": binary code runs on the same major version and an equal or higher minor one;
the driver compiles PTX for newer GPUs. What an image carries is not in telemetry.
"""

from collections.abc import Iterable, Mapping

from gpuwatch.facts.catalog.gpus import Gpu
from gpuwatch.facts.frameworks.keys import COMPUTE_CAPABILITIES

# The first whose tensor cores have the format: NVIDIA's CUDA Programming Guide, "Compute Capabilities".
_FORMATS = {"BF16": 8.0, "FP8": 8.9, "FP4": 10.0}


def lost_formats(now: Gpu, target: Gpu) -> list[str]:
    """Number formats of the tensor cores of `now` that `target` lacks; none where either is not NVIDIA's."""
    have, need = now.compute_capability, target.compute_capability
    return [name for name, first in _FORMATS.items() if have and need and need < first <= have]


def built_for(gpu: Gpu) -> str:
    """What an image has to be built for: NVIDIA's compute capability, others' architecture."""
    return str(gpu.compute_capability or gpu.architecture)


def condition(now: Gpu, target: Gpu, allowed: Iterable[str], annotated: Iterable[tuple[str, Mapping[str, str]]]) -> str:
    """A sentence; '' where the image runs on `target`, or where `allowed` or the first annotation names it."""
    annotated_for = next((texts[COMPUTE_CAPABILITIES] for _, texts in annotated if COMPUTE_CAPABILITIES in texts), "")
    have, need = now.compute_capability, target.compute_capability
    if built_for(target) in {built_for(now), *allowed, *(name.strip() for name in annotated_for.split(","))}:
        return ""
    if have is None or need is None:
        return f"Only if the image is built for {target.architecture}."
    if int(have) == int(need) and have <= need:
        return ""
    now_sm, target_sm = (f"sm_{capability}".replace(".", "") for capability in (have, need))
    found = [f"Only if the image carries {target_sm}, or PTX that the driver can compile for it"]
    found += [f"{name} is not available" for name in lost_formats(now, target)]
    # From sm_90 on there are targets for one compute capability alone, such as sm_90a.
    found += [f"kernels for {now_sm}a do not run"] if have >= 9.0 else []
    return f"{'; '.join(found)}."
