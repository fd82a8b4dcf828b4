"""What an action is worth: expected GPU-hours gained × confidence, against GPU-hours disrupted.

Both are given as a fraction of what the pool offers over the horizon, so that a score means the same in a pool of 16
GPUs and in one of 10,000.
"""

from __future__ import annotations

from gpuwatch.model.cluster import Pod
from gpuwatch.model.decision import ActionKind, Candidate, Family, Score, Severity, Timing
from gpuwatch.plan.facts import Facts
from gpuwatch.plan.policy import PlanPolicy
from gpuwatch.plan.timing import chosen

# Share of a degraded GPU's hours that are taken to be lost while nothing is done. CRITICAL: it cannot be used, or
# computes wrongly. WARNING: it works, slower or at risk: the worst same-model outlier of SC22 (2208.11035) is 1.5×
# slower than the median, which loses a third.
_LOSS = {Severity.CRITICAL: 1.0, Severity.WARNING: 1 / 3, Severity.INFO: 0.0}


def score(candidate: Candidate, facts: Facts, policy: PlanPolicy) -> Score:
    """The score of a candidate with all its inputs, in GPU-hours over the policy's horizon.

    Worked example (a test): a pool of eight 8-GPU Nodes, each but one held by Pods of one GPU; the last one has a GPU
    off the bus (CRITICAL, confidence 0.9), and the other seven free. Tainting it gains 1 × 24 h × 0.9 and takes away 7
    GPUs that nothing else in the pool can stand in for, for 20 h: −118.4 of 1536 GPU-hours. With another Node free, it
    takes none away: +21.6. Where the pool runs gangs of 16, whoever gets the sick GPU stops a gang of 16: +205.6. With
    all eight held by one gang it takes none away and gains all: a failed rank stops its gang.
    """
    return weigh(candidate, facts, policy)[0]


def weigh(candidate: Candidate, facts: Facts, policy: PlanPolicy) -> tuple[Score, Timing]:
    """The score at the cheapest moment, and that moment."""
    findings = [facts.findings_by_id[name] for name in candidate.findings]
    loss = max((_LOSS[finding.severity] for finding in findings), default=0.0)
    confidence = max((finding.confidence_ratio for finding in findings), default=candidate.confidence_ratio)
    pods = [facts.pods[ref] for ref in candidate.pods if ref in facts.pods]
    if any(finding.family is Family.MISFIT for finding in findings):
        rate = candidate.relief_gpus or 0.0
    else:
        rate = facts.gpus(pods) * loss
    moment, timing = chosen(candidate, facts, policy, rate * confidence)
    if candidate.action in (ActionKind.RELEASE_GANG, ActionKind.RESIZE_WORKLOAD):
        # Of a resize, `gpus` are those that it frees.
        gained = candidate.gpus * policy.horizon_hours
        disrupted = moment.lost_gpu_hours
    elif candidate.action is ActionKind.EVICT_GANG:
        gained = rate * max(policy.horizon_hours - moment.wait_hours, 0.0)
        disrupted = moment.lost_gpu_hours
    else:
        affected = max(len(candidate.devices), facts.gpus(_whole_groups(pods, facts)), _next_user(candidate, facts))
        gained = affected * policy.horizon_hours * loss
        disrupted = _missed_gpus(candidate, facts) * min(policy.repair_hours, policy.horizon_hours)
    return (
        Score(
            gained_gpu_hours=gained,
            disrupted_gpu_hours=disrupted,
            pool_gpu_hours=_pool_gpus(candidate.pool, facts) * policy.horizon_hours,
            confidence_ratio=confidence,
            horizon_hours=policy.horizon_hours,
        ),
        timing,
    )


def _whole_groups(pods: list[Pod], facts: Facts) -> list[Pod]:
    """A degraded GPU harms every member of the gang that waits for it."""
    keys = {pod.gang for pod in pods if pod.gang}
    return [member for key in keys for member in facts.members[key]] or pods


def _next_user(candidate: Candidate, facts: Facts) -> float:
    """GPUs of the gang that a free sick GPU will stop, as expected: like those that the pool's held GPUs belong to."""
    free = any(not facts.devices[name].pods for name in candidate.devices if name in facts.devices)
    return facts.mean_group_gpus.get(candidate.pool or "default", 0.0) if free else 0.0


def _missed_gpus(candidate: Candidate, facts: Facts) -> int:
    """Free healthy GPUs of the Node for which the pool has no others, free in blocks as large and not waited for."""
    missed = 0
    for name in candidate.nodes:
        node = facts.nodes.get(name)
        here = facts.free_gpus.get(name, 0)
        if not here or node is None:
            missed += here
            continue
        spare = sum(
            facts.free_gpus.get(other.name, 0) // here * here
            for other in facts.nodes.values()
            if other.name != name and facts.pool(other) == facts.pool(node) and other.name not in facts.out_of_service
        )
        missed += min(max(here - max(spare - facts.waiting_gpus, 0), 0), here)
    return missed


def _pool_gpus(pool: str, facts: Facts) -> int:
    return facts.pool_gpus.get(pool or "default", 0) if facts.nodes else len(facts.devices)
