"""GPUs that the cluster or the Node's siblings have and telemetry does not show: lost long ago, or never scraped."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from gpuwatch.facts.model.cluster import Node
from gpuwatch.facts.model.decision import Advice, Component, Evidence, Finding, FindingKind, Severity, Verdict
from gpuwatch.judge.fleet import FLEET, SUSPECTED, Fleet, Grade, Tells, conclude, on_node
from gpuwatch.judge.reclaim import being_changed, change_failed

GPU_MISSING = Tells(
    FindingKind.GPU_MISSING,
    "a GPU is gone from telemetry while its exporter is up",
    "critical: reboot, replace; warning: reboot, replace, inspect",
    (Component.PCIE,),
    rule="presence",
)
EXPORTER_DOWN = Tells(
    FindingKind.EXPORTER_DOWN,
    "an exporter does not report",
    "warning: fix_monitoring; info: watch",
    rule="presence",
)
TELEMETRY_MISSING = Tells(
    FindingKind.TELEMETRY_MISSING,
    "so many exporters do not report that monitoring is the likelier fault",
    "critical: fix_monitoring",
    rule="presence",
)

monitoring_fault = partial(conclude, verdict=Verdict.UNKNOWN, advice=Advice.FIX_MONITORING)


def widespread(fleet: Fleet, few: int, of: int) -> bool:
    """Whether so many machines are affected that monitoring is the likelier cause."""
    policy = fleet.policy
    return few >= policy.telemetry_missing_exporters and few >= policy.telemetry_missing_ratio * of


class _Count(NamedTuple):
    node: Node
    capacity: int  # accelerators that Kubernetes counts
    seen: int  # GPUs that telemetry has seen

    @property
    def whole(self) -> bool:
        """Whether its capacity counts whole GPUs of one kind; replicas, MIG instances and partitions outnumber them."""
        counted = [resource for resource, count in self.node.accelerators.items() if count > 0]
        return not self.node.cut and len(counted) == 1 and counted[0].endswith("/gpu")


def missing_from_telemetry(fleet: Fleet) -> list[Finding]:
    """Nodes whose capacity exceeds the GPUs that telemetry has seen within the inventory window. A doubted one is not
    missing, so it counts as seen.

    Empty where some host of telemetry resolves to no Node: the missing GPUs may be there.
    """
    doubted = [item.shown for item in fleet.snapshot.doubted]
    present = (*(gpu.lead for gpu in fleet.present), *(item for item in doubted if item.present))
    if not fleet.snapshot.cluster.known or not fleet.present or any(item.node is None for item in present):
        return []
    seen = Counter(node for node, _ in {(item.node, item.uuid) for item in (*fleet.snapshot.devices, *doubted)})
    at, settling = fleet.snapshot.at, fleet.policy.change_window_seconds
    counts = [
        _Count(node, capacity, seen[node.name])
        for node in fleet.snapshot.cluster.nodes
        if (capacity := sum(node.accelerators.values())) > 0
        and not being_changed(node)
        and not (node.created is not None and (at - node.created).total_seconds() < settling)
    ]
    dark = [count for count in counts if not count.seen]
    # Telemetry shows partitions of AMD's GPUs that no label of the Node names.
    sliced = {gpu.lead.node for gpu in fleet.gpus if gpu.sliced}
    comparable = [count for count in counts if count.seen and count.whole and count.node.name not in sliced]
    return [*_without_telemetry(fleet, dark, len(counts)), *_with_fewer_gpus(fleet, comparable)]


def _without_telemetry(fleet: Fleet, dark: Sequence[_Count], total: int) -> Iterable[Finding]:
    unexplained = [count for count in dark if not change_failed(count.node)]
    if widespread(fleet, len(unexplained), total - len(dark) + len(unexplained)):
        names = ", ".join(count.node.name for count in unexplained[:5]) + (" …" if len(unexplained) > 5 else "")
        yield monitoring_fault(
            FLEET,
            EXPORTER_DOWN,
            summary=f"{len(unexplained)} of {total} Nodes with GPUs have no GPU telemetry: {names}",
            severity=Severity.WARNING,
            evidence=[Evidence(signal="nodes_without_telemetry", value=float(len(unexplained)), note=f"of {total}")],
            missing=["an exporter on these Nodes, or its scrape"],
        )
        dark = [count for count in dark if count not in unexplained]
    for count in dark:
        failed = change_failed(count.node)
        down = ", and the Node is NotReady" if count.node.ready is False else ""
        yield monitoring_fault(
            on_node(count.node.name),
            EXPORTER_DOWN,
            summary=f"no telemetry of its GPUs, and {failed}: look at the operator's Pods on this Node"
            if failed
            else f"no telemetry of its GPUs{down}",
            severity=Severity.WARNING,
            evidence=[_capacity(count)],
            missing=["an exporter on this Node, or its scrape"],
            node=count.node.name,
        )


def _with_fewer_gpus(fleet: Fleet, comparable: Sequence[_Count]) -> Iterable[Finding]:
    """Nodes that lack some of their GPUs. On many Nodes at once, the exporters' device filter is the cause. After a
    reboot the Node counts only the GPUs that are left; then Nodes of the same kind show how many there were."""
    usual = _usual(fleet, comparable)
    expected = {count.node.name: max(count.capacity, usual.get(_kin(count), 0)) for count in comparable}
    short = [count for count in comparable if count.seen < expected[count.node.name]]
    if widespread(fleet, len(short), total := len(comparable)) and len(short) > 2:
        yield monitoring_fault(
            FLEET,
            GPU_MISSING,
            summary=f"{len(short)} of {total} Nodes show fewer GPUs than their capacity: the exporters leave some out",
            severity=Severity.WARNING,
            evidence=[Evidence(signal="nodes_with_fewer_gpus", value=float(len(short)), note=f"of {total}")],
            missing=["telemetry of these GPUs"],
        )
        return
    for count in short:
        lost, whole = expected[count.node.name] - count.seen, expected[count.node.name]
        words = f"{lost} of its {whole} GPUs {'is' if lost == 1 else 'are'} missing in telemetry"
        capacity, left = float(count.capacity), float(sum(count.node.allocatable.values()))
        # Two counts disagree.
        grade, evidence = Grade(Severity.WARNING, Advice.REBOOT, SUSPECTED), [_capacity(count)]
        if count.capacity < whole:  # the Node's capacity lacks them too, as after a reboot
            words += " and in its capacity; Nodes of its kind have them"
            grade = grade._replace(advice=Advice.INSPECT)
            note = f"the bound is what Nodes of {' and '.join(filter(None, _kin(count)))} have"
            evidence = [Evidence(signal="capacity", value=capacity, comparison="<", bound=float(whole), note=note)]
        # The device plugin is a third count. One that is gone gives up on all, also on GPUs that report.
        elif left > 0 and capacity - left >= lost:
            words += ", and the device plugin has given up on as many"
            grade = Grade(Severity.CRITICAL, Advice.REBOOT, 0.85)
            evidence.append(Evidence(signal="allocatable", value=left, comparison="<", bound=capacity))
        words += _places(fleet, count, whole, comparable)
        yield Fleet.degraded(on_node(count.node.name), GPU_MISSING, words, grade, evidence, node=count.node.name)


def _kin(count: _Count) -> tuple[str, str]:
    node = count.node
    return node.labels.get("node.kubernetes.io/instance-type") or node.pool, node.gpu_product


def _usual(fleet: Fleet, comparable: Sequence[_Count]) -> Mapping[tuple[str, str], int]:
    """Usual number of GPUs by kind of Node: for each Node with another number, `common_cause_nodes` have it."""
    kin: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    for count in comparable:
        kin[_kin(count)][count.capacity] += 1
    found = {kind: counts.most_common(1)[0] for kind, counts in kin.items() if kind[0]}
    least = fleet.policy.common_cause_nodes
    return {kind: gpus for kind, (gpus, nodes) in found.items() if nodes >= least * max(1, kin[kind].total() - nodes)}


def _places(fleet: Fleet, count: _Count, usual: int, comparable: Sequence[_Count]) -> str:
    """Index and slot of the missing GPUs, where the other GPUs and the Nodes of the same kind show them."""
    if count.node.name in fleet.doubted_at:
        return ""
    here = [gpu.lead for gpu in fleet.gpus if gpu.lead.node == count.node.name]
    slots = defaultdict(set)
    for gpu in fleet.gpus:
        slots[gpu.lead.node].add(gpu.lead.pci_bus_id)
    siblings = (item for item in comparable if _kin(item) == _kin(count) and item.seen == usual)
    layouts = {frozenset(slots[item.node.name]) for item in siblings}
    free = sorted({str(index) for index in range(usual)} - {device.index for device in here}, key=int)
    empty = sorted(layouts.pop() - {device.pci_bus_id for device in here}) if len(layouts) == 1 else []
    words = []
    if len(free) == usual - len(here):
        # A driver that is loaded while a GPU is missing numbers the others from 0 on.
        words.append(f"index {', '.join(free)}" + (" or numbered anew" if free[-1] == str(usual - 1) else ""))
    if len(empty) == usual - len(here):
        words.append(f"slot {', '.join(empty)}")
    return f" ({'; '.join(words)})" if words else ""


def _capacity(count: _Count) -> Evidence:
    seen, bound, note = float(count.seen), float(count.capacity), "the bound is the Node's capacity"
    return Evidence(signal="gpus_in_telemetry", value=seen, comparison="<", bound=bound, note=note)
