"""Which part of a GPU a finding is about, so that one event that several rules see counts once.

A double-bit error raises XID 48, 94 or 95, counts in an ECC counter, fails DCGM's memory watch and makes a row wait for
its remapping: four findings on one component, and one event.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from math import prod

from gpuwatch.facts.model.decision import Component, Finding

# By the descriptions of NVIDIA's catalog; other XIDs come from programs, or their component is not known. 45, 154 and
# 162 have none on purpose: they follow another event (a process' end, a new recovery action) or end one.
XID_COMPONENTS: dict[int, Component] = {
    **dict.fromkeys((48, 63, 64, 92, 94, 95, 140, 160, 161, 171, 172), Component.MEMORY),
    **dict.fromkeys((32, 79, 167), Component.PCIE),
    **dict.fromkeys((74, 121, 136, *range(144, 151), 155), Component.NVLINK),
    **dict.fromkeys((62, 119, 120, 143, 169), Component.FIRMWARE),
    54: Component.POWER,
    93: Component.INFOROM,
}


def events(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Findings on one GPU, grouped by shared component: one event each, at most. One without any joins a group."""
    groups: list[list[Finding]] = []
    for finding in sorted(findings, key=lambda item: not item.components):
        same = [group for group in groups if not all(independent(finding, item.components) for item in group)]
        if not finding.components:
            del same[1:]
        groups = [group for group in groups if group not in same] + [[*chain(*same), finding]]
    return groups


def combined_confidence(findings: Iterable[Finding]) -> float:
    """Confidence that at least one event is real. Of each event only the strongest finding counts."""
    return 1 - prod(1 - max(finding.confidence_ratio for finding in group) for group in events(findings))


def independent(finding: Finding, of: Sequence[Component]) -> bool:
    """Whether it shows another event than one on these components. A finding on the whole GPU never does."""
    return bool(finding.components) and not set(finding.components) & set(of)
