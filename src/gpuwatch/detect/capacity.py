"""GPUs that the cluster counts and telemetry does not show: lost before the inventory window, or never scraped."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gpuwatch.detect.fleet import FLEET, SUSPECTED, Fleet, conclude
from gpuwatch.detect.presence import being_changed, monitoring_fault, widespread
from gpuwatch.model.cluster import Node, Sharing
from gpuwatch.model.decision import Advice, Evidence, Finding, FindingKind, Severity, Subject, SubjectKind, Verdict


class _Count(NamedTuple):
    node: Node
    capacity: int  # accelerators that Kubernetes counts
    seen: int  # GPUs that telemetry has seen

    @property
    def whole(self) -> bool:
        """Whether its capacity counts whole GPUs of one kind; replicas and MIG instances outnumber the GPUs."""
        node = self.node
        counted = [resource for resource, count in node.accelerators.items() if count > 0]
        plain = node.sharing is Sharing.NONE and node.replicas <= 1 and not node.mig_layout
        return plain and len(counted) == 1 and counted[0].endswith("/gpu")


def missing_from_telemetry(fleet: Fleet) -> list[Finding]:
    """Nodes whose capacity exceeds the GPUs that telemetry has seen within the inventory window.

    Empty where some host of telemetry resolves to no Node: the missing GPUs may be there.
    """
    if not fleet.snapshot.cluster.known or not fleet.present or any(gpu.lead.node is None for gpu in fleet.present):
        return []
    seen = Counter(gpu.lead.node for gpu in fleet.gpus if gpu.lead.node is not None)
    at, settling = fleet.snapshot.at, fleet.policy.change_window_seconds
    counts = [
        _Count(node, capacity, seen[node.name])
        for node in fleet.snapshot.cluster.nodes
        if (capacity := sum(node.accelerators.values())) > 0
        and not being_changed(node)
        and not (node.created is not None and (at - node.created).total_seconds() < settling)
    ]
    dark = [count for count in counts if not count.seen]
    comparable = [count for count in counts if count.seen and count.whole]
    short = [count for count in comparable if count.seen < count.capacity]
    return [*_dark(fleet, dark, len(counts)), *_short(fleet, short, len(comparable))]


def _dark(fleet: Fleet, dark: Sequence[_Count], total: int) -> Iterable[Finding]:
    if widespread(fleet, len(dark), total):
        names = ", ".join(count.node.name for count in dark[:5]) + (" …" if len(dark) > 5 else "")
        yield monitoring_fault(
            FLEET,
            FindingKind.EXPORTER_DOWN,
            Severity.WARNING,
            f"{len(dark)} of {total} Nodes with GPUs have no GPU telemetry: {names}",
            Evidence(signal="nodes_without_telemetry", value=float(len(dark)), note=f"of {total}"),
            missing="an exporter on these Nodes, or its scrape",
        )
        return
    for count in dark:
        down = ", and the Node is NotReady" if count.node.ready is False else ""
        yield monitoring_fault(
            Subject(SubjectKind.NODE, count.node.name),
            FindingKind.EXPORTER_DOWN,
            Severity.WARNING,
            f"no telemetry of its GPUs{down}",
            _capacity(count),
            missing="an exporter on this Node, or its scrape",
            node=count.node.name,
        )


def _short(fleet: Fleet, short: Sequence[_Count], total: int) -> Iterable[Finding]:
    """Nodes that lack some of their GPUs. On many Nodes at once, the exporters' device filter is the cause."""
    if widespread(fleet, len(short), total) and len(short) > 2:
        yield monitoring_fault(
            FLEET,
            FindingKind.GPU_MISSING,
            Severity.WARNING,
            f"{len(short)} of {total} Nodes show fewer GPUs than their capacity: the exporters leave some out",
            Evidence(signal="nodes_with_fewer_gpus", value=float(len(short)), note=f"of {total}"),
            missing="telemetry of these GPUs",
        )
        return
    for count in short:
        name, lost = count.node.name, count.capacity - count.seen
        given_up = sum(count.node.accelerators.values()) - sum(count.node.allocatable.values())
        agrees = bool(count.node.allocatable) and given_up >= lost
        evidence = [_capacity(count)]
        if agrees:
            evidence.append(
                Evidence(
                    signal="allocatable",
                    value=float(count.capacity - given_up),
                    comparison="<",
                    bound=float(count.capacity),
                )
            )
        yield conclude(
            Subject(SubjectKind.NODE, name),
            FindingKind.GPU_MISSING,
            Verdict.DEGRADED,
            f"{lost} of its {count.capacity} GPUs {'is' if lost == 1 else 'are'} missing in telemetry"
            + (", and the device plugin has given up on as many" if agrees else ""),
            severity=Severity.CRITICAL if agrees else Severity.WARNING,
            advice=Advice.REBOOT,
            # Two counts disagree; the device plugin is a third count.
            confidence_ratio=0.85 if agrees else SUSPECTED,
            evidence=evidence,
            node=name,
        )


def _capacity(count: _Count) -> Evidence:
    return Evidence(
        signal="gpus_in_telemetry",
        value=float(count.seen),
        comparison="<",
        bound=float(count.capacity),
        note="the bound is the Node's capacity",
    )
