"""The score of an action: expected GPU-hours gained × confidence, less GPU-hours disrupted.

Both are fractions of the pool's GPU-hours over the horizon, so that scores of pools of 16 and of 10,000 GPUs compare.
"""

from dataclasses import dataclass

from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.plan.timing import Moment, chosen
from gpuwatch.facts.model.cluster import Pod
from gpuwatch.facts.model.decision import ActionKind, Candidate, Family, Score, Severity, Timing

HORIZON_HOURS = 24.0
"""Over which gain and disruption are added up. A day: long enough that a repair pays, short enough to need no
forecast."""
# How long a tainted Node stays away: the median of 584 repairs (InfiniteHBD trace).
_REPAIR_HOURS = 20.0
# Share of a degraded GPU's hours that is lost without action. CRITICAL: it cannot be used, or computes wrongly.
# WARNING: it works, slower or at risk: the worst same-model outlier of SC22 (2208.11035) is 1.5× slower than the
# median, which loses a third.
_LOSS = {Severity.CRITICAL: 1.0, Severity.WARNING: 1 / 3, Severity.INFO: 0.0}
_LOSS_IS = "the share of a slower GPU's hours that counts as lost"


def weigh(candidate: Candidate, facts: PlanFacts) -> tuple[Score, Timing]:
    """The score of a candidate at its cheapest moment, in GPU-hours over the horizon; and that moment.

    Worked example (a test): a pool of eight 8-GPU Nodes. Pods of one GPU hold seven of them; the last one has a GPU off
    the bus (CRITICAL, confidence 0.9) and seven free GPUs. Its taint gains 1 × 24 h × 0.9 and takes away 7 GPUs without
    replacement for 20 h: −118.4 of 1536 GPU-hours. With another Node free it takes none away: +21.6. If the pool runs
    gangs of 16, the next user of the degraded GPU is expected to be such a gang: +205.6. With all eight GPUs held by
    one gang it takes none away and gains all: a failed rank stops its gang.
    """
    findings = facts.findings_of(candidate)
    loss = max((_LOSS[finding.severity] for finding in findings), default=0.0)
    confidence = max((finding.confidence_ratio for finding in findings), default=0.0)
    pods = facts.pods_of(candidate)
    if any(finding.family is Family.MISFIT for finding in findings):
        rate = candidate.relief_gpus or 0.0
    else:
        rate = facts.gpu_shares(pods) * loss
    moment, timing = chosen(candidate, facts, rate * confidence)
    horizon = HORIZON_HOURS
    if candidate.action is ActionKind.RELEASE_GANG:
        freed = facts.gpu_shares(pod for pod in pods if pod.node) if pods else candidate.gpus
        gain = _Term(freed, horizon, "GPUs that the release frees")
        harm = _restart(candidate, moment, freed)
    elif candidate.action is ActionKind.EVICT_GANG:
        gain = _moved(candidate, rate, loss, max(horizon - moment.wait_hours, 0.0))
        harm = _restart(candidate, moment, facts.gpu_shares(pods))
    else:
        gain, harm = _affected(candidate, pods, loss, horizon, facts), _missed(candidate, facts)
    pool = candidate.pool or "default"
    pool_gpus = facts.pool_gpus.get(pool, 0) if facts.nodes else facts.physical(facts.devices)
    return (
        Score(
            gained_gpu_hours=gain.gpu_hours,
            disrupted_gpu_hours=harm.gpu_hours,
            pool_gpu_hours=pool_gpus * horizon,
            confidence_ratio=confidence,
            horizon_hours=horizon,
            gain_basis=gain.sentence,
            harm_basis=harm.sentence,
        ),
        timing,
    )


@dataclass(frozen=True, slots=True)
class _Term:
    """GPUs × hours × ratio, with a description."""

    gpus: float
    hours: float
    what: str
    ratio: float = 1.0
    ratio_is: str = ""  # what the ratio is, where it is not 1

    @property
    def gpu_hours(self) -> float:
        return self.gpus * self.hours * self.ratio

    @property
    def sentence(self) -> str:
        """Such as 'Seven free GPUs are away: 7 GPUs × 20 h = 140 GPU-hours.'"""
        factors = f"{_gpus(self.gpus)} × {_number(self.hours)} h"
        if self.ratio != 1.0:
            factors += f" × {_number(self.ratio)} ({self.ratio_is})"
        total = f"{self.gpu_hours:,.1f}".removesuffix(".0")
        what = self.what[:1].upper() + self.what[1:]
        return f"{what}: {factors} = {total} GPU-hour{'' if total == '1' else 's'}."


def _number(value: float) -> str:
    """At most two decimals, so that the printed product can be checked."""
    return f"{value:,.2f}".rstrip("0").rstrip(".")


def _gpus(count: float) -> str:
    return f"{_number(count)} GPU{'' if count == 1 else 's'}"


def _restart(candidate: Candidate, moment: Moment, gpus: float) -> _Term:
    """Work that the restart loses; the hours are per GPU."""
    if not moment.lost_gpu_hours:
        return _Term(0.0, 0.0, f"{moment.words.rstrip(',')}, the restart loses no work")
    gpus = gpus or 1.0
    what = f"work that the restart loses, {moment.words}".rstrip(",")
    if candidate.action is ActionKind.RELEASE_GANG:
        what = f"its next start-up, which counts as an hour{moment.also}"
    return _Term(gpus, moment.lost_gpu_hours / gpus, what)


def _moved(candidate: Candidate, rate: float, loss: float, hours: float) -> _Term:
    """Work regained by it or its neighbours from the move on."""
    if candidate.relief_gpus is not None and rate == candidate.relief_gpus:
        return _Term(rate, hours, "work that it and its neighbours regain from the move on, in GPUs")
    if not rate:
        return _Term(0.0, hours, "the gain of the move is not known")
    gpus = rate / loss if loss else 0.0
    return _Term(gpus, hours, "GPUs of the gang that a degraded GPU holds up, from the move on", loss, _LOSS_IS)


def _affected(candidate: Candidate, pods: list[Pod], loss: float, horizon: float, facts: PlanFacts) -> _Term:
    """GPUs lost while the Node takes Pods, the most of: its degraded GPUs, the gangs on them, the expected gang."""
    here = float(facts.physical(candidate.devices))
    # A degraded GPU harms every member of the gang that waits for it.
    gangs = {pod.gang for pod in pods if pod.gang}
    held = facts.gpu_shares([member for key in gangs for member in facts.members[key]] or pods)
    pool = candidate.pool or "default"
    free = any(not facts.devices[name].pods for name in candidate.devices if name in facts.devices)
    expected = facts.mean_group_gpus.get(pool, 0.0) if free else 0.0
    if expected > max(here, held):
        what = (
            f"expected gang of {_gpus(expected)} (the mean gang of the allocated GPUs of pool {pool}) that would land "
            "on the free degraded GPU and be stopped by it"
        )
        return _Term(expected, horizon, what, loss, _LOSS_IS)
    if held > here:
        return _Term(held, horizon, "GPUs of the gangs on the degraded GPU, which wait for it", loss, _LOSS_IS)
    return _Term(here, horizon, "degraded GPUs of the Node", loss, _LOSS_IS)


def _missed(candidate: Candidate, facts: PlanFacts) -> _Term:
    missed = _missed_gpus(candidate, facts)
    hours = min(_REPAIR_HOURS, HORIZON_HOURS)
    if missed:
        what = "free healthy GPUs of the Node, which no others of the pool replace until it is repaired"
        return _Term(float(missed), hours, what)
    what = "the Node has no free healthy GPU"
    if any(facts.free_gpus.get(name, 0) for name in candidate.nodes):
        what = "others of the pool replace the Node's free healthy GPUs"
    return _Term(0.0, hours, f"{what}, and running Pods stay")


def _missed_gpus(candidate: Candidate, facts: PlanFacts) -> float:
    """Free healthy GPUs of the Node that the pool cannot replace by free blocks as large, less those in demand."""
    missed = 0.0
    for name in candidate.nodes:
        node = facts.nodes.get(name)
        here = facts.free_gpus.get(name, 0)
        if not here or node is None:
            missed += here
            continue
        blocks = facts.free_blocks.get(facts.pool(node))
        spare = sum(free // here * here * nodes for free, nodes in blocks.items()) if blocks else 0
        if name not in facts.out_of_service:
            spare -= here  # its own
        missed += min(max(here - max(spare - facts.waiting_gpus, 0), 0), here)
    return missed
