"""Misplaced Pods: those that contend for a shared GPU, and gangs that span too many domains."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gpuwatch.facts.model.cluster import Node, Pod
from gpuwatch.facts.model.decision import (
    Advice,
    Evidence,
    Finding,
    FindingKind,
    Snapshot,
    Subject,
    SubjectKind,
    Verdict,
)
from gpuwatch.facts.model.telemetry import WindowStat
from gpuwatch.judge.fleet import conclude
from gpuwatch.judge.misfit.contention import Contention, MisfitPolicy, contention_needs
from gpuwatch.judge.rule import FROM_OBJECTS, OVER_TIME

__all__ = ["MisfitPolicy", "assess_misfit", "needs_of_rules"]


UNSHOWN = {
    **dict.fromkeys((FindingKind.HBM_CONTENTION, FindingKind.PCIE_CONTENTION), OVER_TIME),
    FindingKind.SCATTERED: FROM_OBJECTS,
}
"""As `Rule.unshown`."""


def needs_of_rules(policy: MisfitPolicy) -> Mapping[str, tuple[WindowStat, ...]]:
    """The statistics that each rule (`Finding.rule`) reads; that of scattered gangs reads none."""
    return {**contention_needs(policy), f"misfit.{FindingKind.SCATTERED}": ()}


def assess_misfit(
    snapshot: Snapshot, policy: MisfitPolicy, topology_labels: Sequence[str], *, everything: bool = False
) -> tuple[Finding, ...]:
    """Findings of verdict MISFIT; with `everything`, HEALTHY and UNKNOWN ones too.

    topology_labels: Node labels whose value names a domain, `PlanPolicy.topology_labels`.
    """
    return (
        *Contention(snapshot, policy, everything=everything).findings(),
        *_scattered(snapshot, topology_labels, everything=everything),
    )


def _scattered(snapshot: Snapshot, labels: Sequence[str], *, everything: bool = False) -> Iterable[Finding]:
    """One finding per gang that spans more domains than its Pods would fill, for the first label where it does.

    labels: Node labels whose value names a domain, the narrowest first. A label that a Node of the gang lacks is
    skipped. The cost of spanning domains depends on the network and the model, which are unknown.
    """
    nodes = {node.name: node for node in snapshot.cluster.nodes}
    sizes = {label: _sizes(nodes.values(), label) for label in labels}
    members: dict[str, list[Pod]] = defaultdict(list)
    for pod in snapshot.cluster.pods:
        if pod.gang and pod.phase in ("Running", "Pending") and (pod.accelerators or pod.claims):
            members[pod.gang].append(pod)
    for gang in sorted(members):
        pods = members[gang]
        if len(pods) < 2 or not all(pod.node in nodes for pod in pods):
            continue
        spans = {
            label: {nodes[pod.node].labels[label] for pod in pods}
            for label in labels
            if all(label in nodes[pod.node].labels for pod in pods)
        }
        wide = next((label for label, found in spans.items() if len(found) > _needed(pods, sizes[label])), None)
        on, missing = Subject(SubjectKind.GANG, gang), ["topology labels on its Nodes"]
        about = conclude(on, FindingKind.SCATTERED, Verdict.UNKNOWN, "its Nodes name no domain", missing=missing)
        about = replace(about, pods=tuple(sorted(pod.ref for pod in pods)))
        if wide is not None:
            counts = Counter(nodes[pod.node].labels[wide] for pod in pods)
            number, needed = float(len(counts)), float(_needed(pods, sizes[wide]))
            note = ", ".join(f"{count} Pods in {name}" for name, count in sorted(counts.items()))
            fact = Evidence(signal=wide, value=number, unit="domains", comparison=">", bound=needed, note=note)
            yield replace(
                about,
                verdict=Verdict.MISFIT,
                summary=f"it spans {number:.0f} domains of {wide}, and {needed:.0f} could hold it",
                advice=Advice.REBALANCE,
                confidence_ratio=1.0,  # labels are facts
                evidence=(fact,),
                missing=("what spanning them costs it",),
            )
        elif everything and spans:
            told = ", ".join(f"{len(found)} of {label}" for label, found in spans.items())
            summary = f"it spans no more domains than it needs: {told}"
            yield replace(about, verdict=Verdict.HEALTHY, summary=summary, confidence_ratio=1.0, missing=())
        elif everything:
            yield about


def _sizes(nodes: Iterable[Node], label: str) -> dict[str, list[int]]:
    """Resource → accelerators of each domain, the largest first."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for node in nodes:
        if label in node.labels:
            for name, count in node.allocatable.items():
                found[name][node.labels[label]] += count
    return {name: sorted(counts.values(), reverse=True) for name, counts in found.items()}


def _needed(pods: Sequence[Pod], sizes: Mapping[str, Sequence[int]]) -> int:
    """How many domains the gang needs in an empty cluster, the largest domains first. At least one."""
    asked: Counter[str] = Counter()
    for pod in pods:
        asked.update(pod.accelerators)
    needed = 1
    for name, count in asked.items():
        held = 0
        for number, size in enumerate(sizes.get(name, ()), start=1):
            held += size
            if held >= count:
                needed = max(needed, number)
                break
    return needed
