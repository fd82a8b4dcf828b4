"""Which part of a GPU a finding is about, so that one event that several rules see counts once.

A double-bit error raises XID 48, 94 or 95, counts in an ECC counter, fails DCGM's memory watch and makes a row wait for
its remapping. These are four findings on one component, and one event.
"""

from collections.abc import Iterable, Sequence
from math import prod

from gpuwatch.model.decision import Component, Finding, FindingKind

COMPONENTS: dict[FindingKind, tuple[Component, ...]] = {
    FindingKind.ECC: (Component.MEMORY,),
    FindingKind.ROW_REMAP: (Component.MEMORY,),
    FindingKind.PAGE_RETIREMENT: (Component.MEMORY,),
    FindingKind.PCIE_REPLAY: (Component.PCIE,),
    FindingKind.PCIE_WIDTH: (Component.PCIE,),
    FindingKind.GPU_MISSING: (Component.PCIE,),
    FindingKind.NVLINK_ERRORS: (Component.NVLINK,),
    FindingKind.FABRIC: (Component.NVLINK,),
    FindingKind.THERMAL_THROTTLE: (Component.COOLING,),
    FindingKind.POWER_BRAKE: (Component.POWER,),
}
"""By the kind of a finding. The rules of XIDs and of DCGM's watches say it for each finding. The driver's recovery
action, a vendor's verdict and the like have none: they may speak of any event."""

# By the descriptions of NVIDIA's catalog. Programs cause the numbers that are not here, or their part is not known. 45,
# 154 and 162 have none on purpose: they follow another event (a process' end, a new recovery action) or end one.
XID_COMPONENTS: dict[int, Component] = {
    **dict.fromkeys((48, 63, 64, 92, 94, 95, 140, 160, 161, 171, 172), Component.MEMORY),
    **dict.fromkeys((32, 79, 167), Component.PCIE),
    **dict.fromkeys((74, 121, 136, *range(144, 151), 155), Component.NVLINK),
    **dict.fromkeys((62, 119, 120, 143, 169), Component.FIRMWARE),
    54: Component.POWER,
    93: Component.INFOROM,
}


def events(findings: Iterable[Finding]) -> tuple[tuple[Finding, ...], ...]:
    """Findings on one GPU in groups that share a component. Each group may be one event.

    Those without a component are judgements of the same facts: they are added to the first group, or are one of their
    own.
    """
    groups: list[tuple[set[Component], list[Finding]]] = []
    judgements: list[Finding] = []
    for finding in findings:
        if not finding.components:
            judgements.append(finding)
            continue
        touched = [group for group in groups if group[0] & set(finding.components)]
        groups = [group for group in groups if group not in touched]
        merged = {*finding.components}.union(*(components for components, _ in touched))
        groups.append((merged, [*(each for _, found in touched for each in found), finding]))
    found = [members for _, members in groups] or [[]]
    found[0] += judgements
    return tuple(tuple(members) for members in found if members)


def combined_confidence(findings: Iterable[Finding]) -> float:
    """That at least one of the events is real: the strongest finding of each event counts, the others of it do not."""
    return 1 - prod(1 - max(finding.confidence_ratio for finding in members) for members in events(findings))


def independent(finding: Finding, of: Sequence[Component]) -> bool:
    """Whether it shows another event than one on these components. A judgement on the whole GPU never does."""
    return bool(finding.components) and not set(finding.components) & set(of)
