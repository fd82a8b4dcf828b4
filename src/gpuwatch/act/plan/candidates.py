"""Actions that findings or waiting Pods call for: one candidate per Node to taint and per gang to move or release."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.plan.misfit import CONTENTION, gathering, misfits
from gpuwatch.act.plan.moves import making_room
from gpuwatch.act.plan.topology import consequence
from gpuwatch.facts.model.cluster import Pod
from gpuwatch.facts.model.decision import (
    ActionKind,
    Advice,
    Candidate,
    Family,
    Finding,
    Severity,
    Subject,
    SubjectKind,
    Verdict,
)
from gpuwatch.facts.model.grouping import grouped
from gpuwatch.facts.model.telemetry import PodRef

# Advice that needs the Node to be kept free of new Pods.
TAINTING = frozenset({Advice.RESET_WHEN_IDLE, Advice.RESET, Advice.REBOOT, Advice.INSPECT, Advice.REPLACE})
# Advice that cannot wait until the Pods end.
_MOVING = frozenset({Advice.RESET, Advice.REBOOT, Advice.REPLACE})


def candidates(facts: PlanFacts) -> list[Candidate]:
    """Every action that a finding or a waiting Pod calls for, before guards; each target once."""
    found = [
        *_tainting(facts),
        *_moving(facts),
        *_releasing(facts),
        *_rebalancing(facts),
        *_gathering(facts),
        *making_room(facts),
    ]
    # The first candidate for an action and target wins: a move off a degraded GPU before other reasons.
    return list({item.id: item for item in reversed(found)}.values())[::-1]


def _degraded(facts: PlanFacts) -> Iterable[Finding]:
    return (item for item in facts.findings if item.family is Family.HEALTH and item.verdict is Verdict.DEGRADED)


def _strongest(findings: Iterable[Finding]) -> tuple[str, ...]:
    rank = {Severity.CRITICAL: 0, Severity.WARNING: 1, Severity.INFO: 2}
    return tuple(item.id for item in sorted(findings, key=lambda f: (rank[f.severity], -f.confidence_ratio, f.id)))


def _detectors(findings: Iterable[Finding]) -> tuple[str, ...]:
    return tuple(sorted({str(item.kind) for item in findings}))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _tainting(facts: PlanFacts) -> Iterable[Candidate]:
    found = (item for item in _degraded(facts) if item.advice in TAINTING)
    # Without a verified Node the finding still becomes a candidate, so that the Plan shows its refusal.
    by_node = grouped(found, lambda item: item.node or f"unresolved:{item.subject.name}")
    for name, findings in sorted(by_node.items(), key=lambda item: item[0]):
        node = facts.nodes.get(name)
        devices = tuple(sorted({device for finding in findings for device in finding.devices}))
        found_here = Candidate(
            action=ActionKind.TAINT_NODE,
            target=Subject(SubjectKind.NODE, name),
            findings=_strongest(findings),
            devices=devices,
            pods=tuple(pod.ref for pod in facts.pods_on(devices)),
            nodes=(name,),
            pool=facts.pool(node),
            gpu_model=node.gpu_product if node else "",
            gpus=facts.node_gpus(node) if node else facts.physical(devices),
            detectors=_detectors(findings),
        )
        why = _sentence(facts.findings_by_id[found_here.findings[0]].summary)
        moves = consequence(found_here, facts)
        yield replace(found_here, reason=f"{why} {moves}") if moves else found_here


def _group_candidate(
    facts: PlanFacts, action: ActionKind, key: str, findings: list[Finding], pods: list[Pod] | None = None
) -> Candidate:
    """pods: None for those that move off the devices of the findings."""
    devices = {device for item in findings for device in item.devices}
    pods = _pods_to_move(key, devices, facts) if pods is None else pods
    nodes = tuple(sorted({pod.node for pod in pods if pod.node}))
    node = facts.nodes.get(nodes[0]) if nodes else None
    return Candidate(
        action=action,
        target=Subject(SubjectKind.GANG if key in facts.gangs else SubjectKind.WORKLOAD, key),
        findings=_strongest(findings),
        devices=tuple(sorted(devices)),
        pods=tuple(sorted(pod.ref for pod in pods)),
        nodes=nodes,
        namespace=pods[0].namespace,
        pool=facts.pool(node),
        gpu_model=node.gpu_product if node else "",
        gpus=facts.gpus(pod for pod in pods if pod.node),
        detectors=_detectors(findings),
    )


def _by_group(found: Iterable[tuple[Finding, PodRef]], facts: PlanFacts) -> list[tuple[str, list[Finding]]]:
    """The findings on live Pods by gang, or by workload where there is none; each once for a group."""
    groups: defaultdict[str, dict[str, Finding]] = defaultdict(dict)
    for finding, ref in found:
        if pod := facts.live.get(ref):
            groups[pod.gang or pod.workload][finding.id] = finding
    return [(key, list(groups[key].values())) for key in sorted(groups)]


def _moving(facts: PlanFacts) -> Iterable[Candidate]:
    """Moves off degraded GPUs. A Pod that ends already calls for none: it holds its GPU for a while, and the one in its
    place may run elsewhere. A move that has begun goes on."""
    grave = [item for item in _degraded(facts) if item.advice in _MOVING and item.severity is Severity.CRITICAL]
    for key, findings in _by_group(((item, pod.ref) for item in grave for pod in facts.pods_on(item.devices)), facts):
        found = _group_candidate(facts, ActionKind.EVICT_GANG, key, findings)
        begun = facts.open_on(found.action, str(found.target))
        stays = any(not pod.deleting for pod in facts.pods_on(found.devices) if pod.ref in found.pods)
        if stays or (begun is not None and begun.began_at is not None):
            yield found


def _pods_to_move(key: str, devices: Iterable[str], facts: PlanFacts) -> list[Pod]:
    """All Pods of a gang; of independent Pods those on these devices."""
    pods, kind = facts.members[key], facts.kind_of(key)
    if key in facts.gangs or kind is None or not kind.independent:
        return pods
    hit = {pod.ref for pod in facts.pods_on(devices)}
    return [pod for pod in pods if pod.ref in hit]


def _rebalancing(facts: PlanFacts) -> Iterable[Candidate]:
    """One for each contending workload; the score decides later which of them moves."""
    for key, findings in _by_group(((item, ref) for item in misfits(facts, CONTENTION) for ref in item.pods), facts):
        known = [finding.relief_gpus[key] for finding in findings if key in finding.relief_gpus]
        yield replace(
            _group_candidate(facts, ActionKind.EVICT_GANG, key, findings),
            reason=_sentence(findings[0].summary),
            relief_gpus=sum(known) if known else None,
        )


def _gathering(facts: PlanFacts) -> Iterable[Candidate]:
    for finding, where in gathering(facts):
        key = finding.subject.name
        pods = facts.members[key]
        yield replace(
            _group_candidate(facts, ActionKind.EVICT_GANG, key, [finding], pods),
            reason=f"{_sentence(finding.summary)} It would fit into {where}.",
            relief_gpus=facts.gpu_shares(pods) * facts.policy.scattered_loss_ratio or None,
        )


def _releasing(facts: PlanFacts) -> Iterable[Candidate]:
    idle = [item for item in facts.findings if item.family is Family.IDLE and item.verdict is Verdict.IDLE]
    held = [(item, ref) for item in idle for ref in item.pods]
    for key, findings in _by_group(held, facts):
        yield _group_candidate(facts, ActionKind.RELEASE_GANG, key, findings, facts.members[key])
    unknown = grouped((each for each in held if each[1] not in facts.live), lambda each: each[1])
    for ref, found in sorted(unknown.items(), key=lambda item: item[0]):
        findings = [finding for finding, _ in found]
        yield Candidate(
            action=ActionKind.RELEASE_GANG,
            target=Subject(SubjectKind.POD, ref),
            findings=_strongest(findings),
            devices=tuple(sorted({device for finding in findings for device in finding.devices})),
            pods=(ref,),
            nodes=tuple(sorted({finding.node for finding in findings if finding.node})),
            namespace=ref.partition("/")[0],
            gpus=facts.physical(device for finding in findings for device in finding.devices),
        )
