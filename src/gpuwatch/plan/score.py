"""What an action is worth: expected GPU-hours gained × confidence, against GPU-hours disrupted.

Both are given as a fraction of what the pool offers over the horizon, so that a score means the same in a pool of 16
GPUs and in one of 10,000.
"""

from __future__ import annotations

from gpuwatch.model.cluster import Pod
from gpuwatch.model.decision import ActionKind, Candidate, Score, Severity, Timing
from gpuwatch.plan.facts import Facts
from gpuwatch.plan.policy import PlanPolicy
from gpuwatch.plan.timing import chosen

# Share of a degraded GPU's hours that are taken to be lost while nothing is done. CRITICAL: it cannot be used, or
# computes wrongly. WARNING: it works, slower or at risk: the worst same-model outlier of SC22 (2208.11035) is 1.5×
# slower than the median, which loses a third.
_LOSS = {Severity.CRITICAL: 1.0, Severity.WARNING: 1 / 3, Severity.INFO: 0.0}


def score(candidate: Candidate, facts: Facts, policy: PlanPolicy) -> Score:
    """The score of a candidate with all its inputs, in GPU-hours over the policy's horizon.

    Worked example (a test): a pool of 64 GPUs, one 8-GPU Node with one GPU off the bus (CRITICAL, confidence 0.9) and
    the other seven free. Fencing it gains 1 × 24 h × 0.9 and takes 7 GPUs away for 20 h: −118.4 of 1536 GPU-hours.
    With all eight held by one gang it takes none away and gains all: a failed rank stops its gang.
    """
    return weigh(candidate, facts, policy)[0]


def weigh(candidate: Candidate, facts: Facts, policy: PlanPolicy) -> tuple[Score, Timing]:
    """The score at the cheapest moment, and that moment."""
    findings = [facts.findings_by_id[name] for name in candidate.findings]
    loss = max((_LOSS[finding.severity] for finding in findings), default=policy.scattered_loss_ratio)
    confidence = max((finding.confidence_ratio for finding in findings), default=candidate.confidence_ratio)
    pods = [facts.pods[ref] for ref in candidate.pods if ref in facts.pods]
    moment, timing = chosen(candidate, facts, policy, loss, confidence)
    if candidate.action in (ActionKind.RELEASE_GANG, ActionKind.RESIZE_WORKLOAD):
        # Of a resize, `gpus` are those that it frees.
        gained = candidate.gpus * policy.horizon_hours
        disrupted = moment.lost_gpu_hours
    elif candidate.action is ActionKind.EVICT_GANG:
        gained = facts.gpus(pods) * max(policy.horizon_hours - moment.wait_hours, 0.0) * loss
        disrupted = moment.lost_gpu_hours
    else:
        affected = max(len(candidate.devices), facts.gpus(_whole_groups(pods, facts)))
        gained = affected * policy.horizon_hours * loss
        disrupted = _free_healthy_gpus(candidate, facts) * min(policy.repair_hours, policy.horizon_hours)
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


def _free_healthy_gpus(candidate: Candidate, facts: Facts) -> int:
    sick = set(candidate.devices)
    return sum(
        1
        for name in candidate.nodes
        for device in facts.devices_of_node.get(name, ())
        if device.present and device.id not in sick and not device.holders
    )


def _pool_gpus(pool: str, facts: Facts) -> int:
    if not facts.nodes:
        return len(facts.devices)
    return sum(facts.node_gpus(node) for node in facts.nodes.values() if facts.pool(node) == (pool or "default"))
