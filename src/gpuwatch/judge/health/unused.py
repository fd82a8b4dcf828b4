"""GPUs that are well and not used as meant: out of service, held by a Pod that does not run, or used by a process that
belongs to no Pod. All findings are UNKNOWN, so never acted on: people did it, or an owner has to mend it."""

from collections import Counter
from collections.abc import Iterable
from datetime import timedelta

from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.model.cluster import FactKind, Node, Pod, Taint, Toleration
from gpuwatch.facts.model.decision import (
    Advice,
    Evidence,
    Finding,
    FindingKind,
    Severity,
    Subject,
    SubjectKind,
    Verdict,
)
from gpuwatch.facts.model.grouping import grouped
from gpuwatch.facts.model.telemetry import Signal, Statistic
from gpuwatch.judge.fleet import Conclusion, Fleet, PhysicalGpu, Tells, conclude, on_node
from gpuwatch.judge.reclaim import being_changed, change_failed
from gpuwatch.judge.rule import OVER_TIME, Ask, Judged, Rule, without_statistics

_OUT = Tells(
    FindingKind.OUT_OF_SERVICE,
    "free GPUs that no Pod can get: a cordon, a taint, or GPUs that are not offered",
    "warning: inspect; info: watch",
)
_STILL = Tells(
    FindingKind.NOT_RUNNING, "a Pod holds GPUs and does not run: a pull, an init container, or an end that hangs",
    "warning: fix_application",
)  # fmt: skip
_OUTSIDE = Tells(
    FindingKind.USED_OUTSIDE, "a GPU that no Pod has works, or has memory in use", "warning: inspect"
)  # fmt: skip

_LONG_HOURS = 24
"""From then on it is worth a person's time: repairs and drains take hours."""
_FAILING_MINUTES, _SLOW_MINUTES, _ENDING_MINUTES = 15, 60, 10
"""How long a start may fail, a start may take, and an end may last beyond its grace period. A kubelet tries a pull
again after five minutes at most; images and models of 100 GiB are there within the hour."""
_FAILURES = ("BackOff", "Err", "Error", "Invalid")
"""Parts of the reasons by which a kubelet says that a start failed: ImagePullBackOff, CreateContainerConfigError, …"""
_MEMORY_GIB = 2
"""The driver, its persistence daemon and an MPS server hold less."""
_WORKS_RATIO = 0.5


def out_of_service(fleet: Fleet) -> Iterable[Finding]:
    """One finding for each Node that is Ready and keeps free GPUs from Pods, without a planned change."""
    used = [pod for pod in fleet.snapshot.cluster.pods if pod.accelerators or pod.claims]
    homes = grouped(fleet.gpus, lambda gpu: gpu.home)
    for node in fleet.snapshot.cluster.nodes:
        if node.ready is not True or being_changed(node) or not (free := _free_gpus(fleet, node)):
            continue
        well = [gpu for gpu in homes[node.name] if gpu.present and not fleet.against.get(gpu.uuid)]
        broken = len(homes[node.name]) - len(well)
        closed, withheld = [*_closed(node, used)], [*_withheld(node, broken), *_tainted(node, well)]
        facts = [*closed, *(fact for _, fact in withheld)]
        if not facts:
            continue
        since = min((fact.at for fact in facts if fact.at is not None), default=None)
        lasted = fleet.snapshot.at - since if since is not None else timedelta(0)
        gpus = free if closed else min(free, sum(count for count, _ in withheld))
        long = lasted >= timedelta(hours=_LONG_HOURS)
        yield conclude(
            on_node(node.name),
            _OUT,
            Verdict.UNKNOWN,
            f"{gpus} free GPU{'s are' if gpus > 1 else ' is'} out of service: {'; '.join(fact.note for fact in facts)}",
            severity=Severity.WARNING if long else Severity.INFO,
            advice=Advice.INSPECT if long else Advice.WATCH,
            since=since,
            evidence=facts,
            missing=["who needs the Node out of service, and until when"],
            gpu_hours=gpus * lasted.total_seconds() / 3600,
            node=node.name,
        )


def _free_gpus(fleet: Fleet, node: Node) -> int:
    """Of telemetry, those that no Pod has; without telemetry all, if no Pod with accelerators is there."""
    here = fleet.at_home.get(node.name, ())
    if here:
        return sum(not gpu.pods for gpu in here)
    there = any(pod.node == node.name for pod in fleet.snapshot.cluster.pods)
    return 0 if there else node.gpu_count


def _closed(node: Node, used: Iterable[Pod]) -> Iterable[Evidence]:
    """Its cordon, and taints that no Pod with GPUs tolerates; a taint that some tolerate only says whose it is."""
    allowed = [each for pod in used for each in pod.placement.tolerations]
    if node.unschedulable:
        since = next((taint.since for taint in node.taints if taint.key.endswith("/unschedulable")), None)
        yield Evidence(signal="unschedulable", value="true", at=since, note="cordoned")
    for taint in node.taints:
        ours = taint.key.startswith((keys.PREFIX, "node.kubernetes.io/"))
        if taint.effect in ("NoSchedule", "NoExecute") and not ours and allowed and not _allows(allowed, taint):
            note = f"no Pod with GPUs tolerates the taint {taint.key}"
            yield Evidence(signal="taint", value=f"{taint.key}={taint.value}", at=taint.since, note=note)


def _allows(tolerations: Iterable[Toleration], taint: Taint) -> bool:
    return any(
        each.effect in ("", taint.effect)
        and (each.key == taint.key or not each.key)
        and (each.operator == "Exists" or each.value == taint.value)
        for each in tolerations
    )


def _withheld(node: Node, broken: int) -> Iterable[tuple[int, Evidence]]:
    """How many GPUs its device plugin does not offer, with the cause that an operator's label names. As many as are
    missing or degraded by the rules before (broken) are rightly withheld. With DRA the capacity has no GPUs."""
    why = f" ({failed})" if (failed := change_failed(node)) else ""
    if node.gpu_count and not sum(node.accelerators.values()) and node.published == {}:
        note = f"its capacity is 0, though it has {node.gpu_count}{why}"
        fact = Evidence(signal="capacity", value=0.0, comparison="<", bound=float(node.gpu_count), note=note)
        yield node.gpu_count, fact
    for resource, count in node.accelerators.items():
        if 0 <= (left := node.allocatable.get(resource, count)) < count - broken:
            note, bound = f"its device plugin offers {left} of {count} {resource}{why}", count - broken
            fact = Evidence(signal="allocatable", value=float(left), comparison="<", bound=float(bound), note=note)
            yield bound - left, fact


def _tainted(node: Node, well: Iterable[PhysicalGpu]) -> Iterable[tuple[int, Evidence]]:
    """How many free GPUs the same device taints (DRA) withhold, of those that are neither missing nor degraded."""
    tainted = Counter(taints for gpu in well if not gpu.pods and (taints := (node.published or {}).get(gpu.uuid)))
    for taints, count in tainted.items():
        names = " and ".join(f"{each.key}={each.value}" if each.value else each.key for each in taints)
        note = f"the device taint {names} is on {count} GPU{'' if count == 1 else 's'}"
        since = min((each.since for each in taints if each.since is not None), default=None)
        yield count, Evidence(signal="device_taint", value=names, at=since, note=note)


def not_running(fleet: Fleet) -> Iterable[Finding]:
    """One finding for each Pod that has a Node and GPUs, and has not started or does not end."""
    at = fleet.snapshot.at
    for pod in fleet.snapshot.cluster.pods:
        if not pod.node or not (pod.accelerators or pod.claims):
            continue
        since = pod.ends_by or pod.started or pod.created
        if pod.ends_by is not None:
            bound, words = _ENDING_MINUTES, "is being deleted, and its grace period is over"
        elif pod.phase == "Pending":
            fails = any(part in pod.not_started for part in _FAILURES)
            bound = _FAILING_MINUTES if fails else _SLOW_MINUTES
            words = f"has not started: {pod.not_started or 'no reason is given'}"
        else:
            continue
        if since is None or at - since < timedelta(minutes=bound):
            continue
        hours, gpus = (at - since).total_seconds() / 3600, _gpus(fleet, pod)
        yield conclude(
            Subject(SubjectKind.POD, pod.ref),
            _STILL,
            Verdict.UNKNOWN,
            f"holds {gpus:g} GPU{'' if gpus == 1 else 's'} for {_duration(hours)} and {words}",
            severity=Severity.WARNING,
            advice=Advice.FIX_APPLICATION,
            since=since,
            evidence=[Evidence(signal="pod_phase", value=pod.phase, at=since, note=pod.not_started or words)],
            missing=["whether it still will start" if pod.ends_by is None else "what keeps it from ending"],
            gpu_hours=gpus * hours,
            node=pod.node,
        )


def _duration(hours: float) -> str:
    return f"{hours:.0f} h" if hours >= 2 else f"{hours * 60:.0f} min"


def _gpus(fleet: Fleet, pod: Pod) -> float:
    """Its share of the Node's GPUs, by the capacity where units are parts of GPUs."""
    units = float(sum(pod.accelerators.values()) or len(pod.claims))
    node = fleet.nodes.get(pod.node)
    total = sum(node.accelerators.values()) if node is not None else 0
    return units * node.gpu_count / total if node is not None and node.cut and node.gpu_count and total else units


class _OutsideAsked:
    def __init__(self, ask: Ask) -> None:
        window = ask.policy.change_window_seconds
        self.busy = ask(Signal.BUSY_RATIO, Statistic.MIN, window)
        self.memory = ask(Signal.MEMORY_USED_BYTES, Statistic.MIN, window)
        self.reporting = ask.reporting(window)


def used_outside(fleet: Fleet, asked: _OutsideAsked) -> Judged:
    """GPUs without a Pod that worked through the whole window, or had memory in use through it. Only on Nodes of which
    each held unit is attributed to a device, and where no Pod ended in the window."""
    cluster, at = fleet.snapshot.cluster, fleet.snapshot.at
    known = cluster.known and all(each.kind is not FactKind.PODS for each in cluster.unread)
    known = known and bool(fleet.snapshot.telemetry_schema.pod_labels)
    since = at - timedelta(seconds=fleet.policy.change_window_seconds)
    unsure = {run.node for run in fleet.snapshot.pod_runs if run.ended is not None and run.ended > since}
    attributed = {ref for gpu in fleet.present for ref in gpu.pods}
    unsure |= {pod.node for pod in cluster.pods if pod.phase in ("Running", "Pending") and pod.ref not in attributed}

    def judge(gpu: PhysicalGpu) -> Conclusion:
        node = fleet.nodes.get(gpu.lead.node or "")
        if gpu.pods:
            return fleet.healthy(gpu, _OUTSIDE, "a Pod has it", asked.busy, asked.memory)
        if (
            not known
            or not gpu.present
            or node is None
            or node.name in unsure
            or being_changed(node)
            or not asked.reporting(gpu)
        ):
            return fleet.unknown(gpu, _OUTSIDE, "whether a Pod has it is not known", ["its Pods"])
        busy, memory = asked.busy.of(gpu), asked.memory.of(gpu)
        facts = []
        if (busy or 0.0) >= _WORKS_RATIO:
            facts.append(asked.busy.evidence(gpu, comparison=">=", bound=_WORKS_RATIO))
        if (memory or 0.0) >= _MEMORY_GIB * 2**30:
            facts.append(asked.memory.evidence(gpu, comparison=">=", bound=float(_MEMORY_GIB * 2**30)))
        if not facts:
            return fleet.healthy(gpu, _OUTSIDE, "no Pod has it, and it is not used", asked.busy, asked.memory)
        used = f"{(memory or 0.0) / 2**30:.0f} GiB of its memory are in use"
        does = f"it works at {busy:.0%} or more, and {used}" if (busy or 0.0) >= _WORKS_RATIO else used
        hours = (at - since).total_seconds() / 3600
        return conclude(
            gpu,
            _OUTSIDE,
            Verdict.UNKNOWN,
            f"no Pod has it, and for {_duration(hours)} {does}: a process outside of Kubernetes, or one that was left",
            severity=Severity.WARNING,
            advice=Advice.INSPECT,
            evidence=facts,
            missing=["which process it is; `nvidia-smi` on the Node shows it"],
            gpu_hours=hours,
        )

    return Judged(judge)


OUT_OF_SERVICE = without_statistics(_OUT, out_of_service)
NOT_RUNNING = without_statistics(_STILL, not_running)
USED_OUTSIDE = Rule(tells=(_OUTSIDE,), needs=_OutsideAsked, judge=used_outside, assesses=False, unshown=OVER_TIME)
