"""Better places for workloads in the wrong place."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from gpuwatch.act.placement import Nowhere, Room
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.plan.moves import place_for_waiter
from gpuwatch.facts.model.cluster import Pod, Sharing
from gpuwatch.facts.model.decision import ActionKind, Candidate, Finding, FindingKind, Verdict
from gpuwatch.facts.model.telemetry import PodRef

CONTENTION = frozenset({FindingKind.HBM_CONTENTION, FindingKind.PCIE_CONTENTION})


def misfits(facts: PlanFacts, kinds: Collection[FindingKind]) -> list[Finding]:
    return [item for item in facts.findings if item.verdict is Verdict.MISFIT and item.kind in kinds]


def gathering(facts: PlanFacts) -> Iterable[tuple[Finding, str]]:
    """Scattered gangs that would fit into one domain now, and that domain."""
    for finding in misfits(facts, {FindingKind.SCATTERED}):
        pods = facts.members.get(finding.subject.name, [])
        if pods and finding.subject.name in facts.gangs:
            room = facts.ground.room.copy()
            room.without(pod.ref for pod in pods)
            found = _one_domain(pods, room, facts)
            if found is not None:
                yield finding, found[0]


def place(candidate: Candidate, room: Room, facts: PlanFacts) -> Mapping[PodRef, str] | Nowhere:
    """Where the Pods of a move would land; moves them in this room. A scattered gang must land in one domain, a
    contending workload on its own GPUs, others in no more domains; after a move for a Pod that waits, that one too."""
    pods = facts.pods_of(candidate)
    if candidate.action is ActionKind.MAKE_ROOM:
        return place_for_waiter(candidate, room, facts)
    room.without(candidate.pods)
    if candidate.detectors == (FindingKind.SCATTERED,):
        found = _one_domain(pods, room, facts)
        return found[1] if found is not None else Nowhere("No topology domain has room for the whole gang any more.")
    roomy = None
    if CONTENTION.intersection(candidate.detectors):
        roomy = [name for name in facts.nodes if name not in facts.out_of_service and _own_gpu(name, len(pods), facts)]
        if not roomy:
            return Nowhere("No Node in service has a GPU for it alone.")
    return _together(pods, room, facts, roomy)


def _own_gpu(name: str, pods: int, facts: PlanFacts) -> bool:
    """Whether each of so many Pods would have a GPU to itself there. Of shared GPUs all with free replicas have to be
    unused: NVIDIA's device plugin spreads or packs replicas, as configured."""
    node = facts.nodes[name]
    if node.sharing is Sharing.NONE or node.replicas <= 1:
        return True
    present = [item for item in facts.devices_of_node.get(name, ()) if item.present]
    left = [item for item in present if len(set(item.pods)) < node.replicas]
    return len(left) >= pods and not any(item.pods for item in left)


def _together(
    pods: list[Pod], room: Room, facts: PlanFacts, within: Collection[str] | None
) -> Mapping[PodRef, str] | Nowhere:
    """Anywhere in `within`; a gang in no more domains of any topology label than now."""
    found = room.land(pods, within)
    gang = facts.gangs.get(pods[0].gang) if pods and pods[0].gang else None
    if isinstance(found, Nowhere) or gang is None or not (wider := _spread_wider(pods, found, facts)):
        return found
    room.without(found)
    for label in facts.policy.topology_labels:
        for names in facts.domains[label].values():
            inside = names if within is None else [name for name in names if name in within]
            found = room.land(pods, inside, tell=False)
            if not isinstance(found, Nowhere):
                if not _spread_wider(pods, found, facts):
                    return found
                room.without(found)
    return Nowhere(wider)


def _spread_wider(pods: Iterable[Pod], places: Mapping[PodRef, str], facts: PlanFacts) -> str:
    """Why the Pods would be in more domains than now, of a label that all of their Nodes have; '' if they would not."""
    for label in facts.policy.topology_labels:
        now = {facts.nodes[pod.node].labels.get(label) if pod.node in facts.nodes else None for pod in pods}
        if None in now:
            continue
        then = [facts.nodes[name].labels.get(label) for name in places.values()]
        # Each Node without the label counts as a domain.
        count = len(set(then) - {None}) + then.count(None)
        if count > len(now):
            return f"It would be spread over {count} domains of {label} instead of {len(now)}."
    return ""


def _one_domain(pods: list[Pod], room: Room, facts: PlanFacts) -> tuple[str, Mapping[PodRef, str]] | None:
    """The first domain, of the first label over which the Pods are scattered, that has room for all of them, and their
    Nodes. Places them in the room. None for none."""
    for label in facts.policy.topology_labels:
        here = Counter(facts.nodes[pod.node].labels.get(label) for pod in pods if pod.node in facts.nodes)
        if None in here or len(here) < 2:
            continue
        domains = facts.domains[label]
        # The domain with most of its Pods first.
        first = sorted((name for name in here if name is not None), key=lambda name: (-here[name], name))
        for name in (*first, *(other for other in domains if other not in here)):
            found = room.land(pods, domains[name], tell=False)
            if not isinstance(found, Nowhere):
                return f"{label}={name}", found
        return None
    return None
