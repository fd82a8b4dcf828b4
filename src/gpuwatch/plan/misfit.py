"""Workloads in the wrong place or of the wrong size: gangs scattered over domains, and sizes that keep others waiting.

Contention of Pods that share a GPU's memory bandwidth or a PCIe switch is left out: a device's telemetry does not tell
its holders apart, and nothing in a Snapshot says which GPUs share a switch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from gpuwatch.model.cluster import Pod
from gpuwatch.model.decision import ActionKind, Candidate, Subject, SubjectKind
from gpuwatch.model.sizing import Option, TargetKind
from gpuwatch.plan.facts import Facts
from gpuwatch.plan.landing import Nowhere, Room
from gpuwatch.plan.policy import PlanPolicy

SCATTERED = "scattered"
OVERSIZED = "oversized"


def scattered(facts: Facts, policy: PlanPolicy) -> Iterable[Candidate]:
    """Gangs that span several domains of a topology label, and would fit into one now."""
    for key in sorted(facts.gangs):
        pods = facts.members.get(key, [])
        if len(pods) < 2 or not all(pod.node in facts.nodes for pod in pods):
            continue
        spans = {
            label: len({facts.nodes[pod.node].labels[label] for pod in pods})
            for label in policy.topology_labels
            if all(label in facts.nodes[pod.node].labels for pod in pods)
        }
        label = next((label for label, count in spans.items() if count > 1), None)
        if label is None:
            continue
        room = facts.ground.room.copy()
        room.without(pod.ref for pod in pods)
        found = one_domain(pods, room, facts, policy)
        if not found:
            continue
        nodes = tuple(sorted({pod.node for pod in pods}))
        first = facts.nodes[nodes[0]]
        yield Candidate(
            action=ActionKind.EVICT_GANG,
            target=Subject(SubjectKind.GANG, key),
            findings=(),
            devices=(),
            pods=tuple(sorted(pod.ref for pod in pods)),
            nodes=nodes,
            namespace=pods[0].namespace,
            pool=facts.pool(first),
            gpu_model=first.gpu_product,
            gpus=facts.gpus(pods),
            detectors=(SCATTERED,),
            reason=f"It spans {spans[label]} domains of {label} and would fit into {found}.",
            confidence_ratio=1.0,  # labels are facts
        )


def one_domain(pods: list[Pod], room: Room, facts: Facts, policy: PlanPolicy) -> str:
    """The first domain, of the first label over which the Pods are scattered, that takes all of them; '' for none."""
    for label in policy.topology_labels:
        values = {facts.nodes[pod.node].labels.get(label) for pod in pods if pod.node in facts.nodes}
        if None in values or len(values) < 2:
            continue
        domains: dict[str, list[str]] = {}
        for node in facts.nodes.values():
            if label in node.labels:
                domains.setdefault(node.labels[label], []).append(node.name)
        # Where most of it is already comes first.
        here = Counter(facts.nodes[pod.node].labels[label] for pod in pods)
        for name in sorted(domains, key=lambda value: (-here[value], value)):
            if not isinstance(room.copy().land(pods, within=set(domains[name])), Nowhere):
                return f"{label}={name}"
        return ""
    return ""


def resizing(facts: Facts) -> Iterable[Candidate]:
    """Recommendations that free whole GPUs of a pool in which a Pod waits that could be scheduled there."""
    if not facts.ground.unsettled:
        return
    wanted: dict[str, str] = {}  # Node on which a waiting Pod would fit if it were alone → that Pod
    for group in facts.ground.unsettled:
        for pod in group:
            for name in sorted(facts.bare_room.ever(pod)):
                wanted.setdefault(name, pod.ref)
    for item in sorted(facts.recommendations, key=lambda each: str(each.key)):
        pods = [pod for pod in facts.owned.get(item.key.workload, []) if pod.node in facts.nodes]
        nodes = tuple(sorted({pod.node for pod in pods}))
        contended = [name for name in nodes if name in wanted]
        freed = math.floor(_freed(item.current, item.chosen) * len(pods) + 1e-9)
        if freed < 1 or not contended:
            continue
        node = facts.nodes[contended[0]]
        refs = {pod.ref for pod in pods}
        yield Candidate(
            action=ActionKind.RESIZE_WORKLOAD,
            target=Subject(SubjectKind.WORKLOAD, item.key.workload),
            findings=(),
            devices=tuple(sorted(d.id for d in facts.devices.values() if refs.intersection(d.holders))),
            pods=tuple(sorted(refs)),
            nodes=nodes,
            namespace=pods[0].namespace,
            pool=facts.pool(node),
            gpu_model=node.gpu_product,
            gpus=freed,
            detectors=(OVERSIZED,),
            reason=f"{item.chosen.target.name} instead of {item.current.target.name} frees {freed} whole GPUs of pool "
            f"{facts.pool(node)}, for which Pod {wanted[contended[0]]} waits. {item.reason}",
            confidence_ratio=item.confidence_ratio,
            waiter=wanted[contended[0]],
        )


def _freed(current: Option, chosen: Option) -> float:
    """Physical GPUs of the present model that one Pod leaves. A move to another model leaves all of them."""
    held = current.target.gpus_per_pod * current.target.gpu_share_ratio
    if chosen.target.kind is TargetKind.MODEL:
        return held
    return held - chosen.target.gpus_per_pod * chosen.target.gpu_share_ratio
