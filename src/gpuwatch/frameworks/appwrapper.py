"""AppWrapper (CodeFlare): contains the whole of a gang."""

from __future__ import annotations

from gpuwatch.frameworks import common
from gpuwatch.frameworks.framework import Framework, GangRule, Kind, Nature, untried

APP_WRAPPER = Framework(
    name="AppWrapper",
    kinds=(
        Kind(
            "workload.codeflare.dev",
            "AppWrapper",
            ("v1beta2",),
            suspended=common.suspend,
            nature=Nature.ENDS,
            release=untried("AppWrapper"),
            move=untried("AppWrapper"),
        ),
    ),
    gang=GangRule(),
)
