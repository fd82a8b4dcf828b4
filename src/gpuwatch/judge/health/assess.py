"""Which GPUs are degraded: all health rules, and the statistics that they need.

Each rule reads one family of signals and concludes HEALTHY, DEGRADED or UNKNOWN for each GPU. UNKNOWN (a signal is not
exported, a window has too few samples, peers are missing) never causes an action.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from gpuwatch.facts.catalog.xids import Xid
from gpuwatch.facts.model.decision import Advice, Finding, FindingKind, Snapshot, Subject, Verdict
from gpuwatch.facts.model.faults import FaultMemory
from gpuwatch.facts.model.telemetry import Signal, WindowStat, partial_answers
from gpuwatch.judge import board, verdict
from gpuwatch.judge.fleet import Fleet, Judge, PhysicalGpu, conclude, on_node
from gpuwatch.judge.health import fabric, link, memory, throttle
from gpuwatch.judge.health.capacity import missing_from_telemetry
from gpuwatch.judge.health.fault_memory import fault_needs, remembered, with_failed_reboots, with_memory
from gpuwatch.judge.health.hung import hung, hung_needs
from gpuwatch.judge.health.infiniband import infiniband
from gpuwatch.judge.health.node_conditions import broken_conditions
from gpuwatch.judge.health.pod_failures import pod_failures
from gpuwatch.judge.health.policy import HealthPolicy
from gpuwatch.judge.health.presence import Presence, presence, presence_needs
from gpuwatch.judge.health.xid import xid
from gpuwatch.judge.health.xid_events import xid_events, xid_needs

__all__ = ["STATE_SIGNALS", "HealthPolicy", "assess_health", "needs_of_rules", "remember_faults"]


_Needs: TypeAlias = Callable[[HealthPolicy], tuple[WindowStat, ...]]
_Rule: TypeAlias = Callable[[Fleet], Judge | tuple[Judge, list[Finding]]]
_RULES: tuple[tuple[FindingKind, _Needs, _Rule], ...] = (
    (FindingKind.DCGM_HEALTH, verdict.dcgm_health_needs, verdict.dcgm_health),
    (FindingKind.VENDOR_HEALTH, verdict.vendor_health_needs, verdict.vendor_health),
    (FindingKind.NVLINK_ERRORS, link.nvlink_needs, link.nvlink_errors),
    (FindingKind.FABRIC, fabric.fabric_needs, fabric.fabric),
    (FindingKind.THERMAL_THROTTLE, throttle.thermal_needs, throttle.thermal_throttle),
    (FindingKind.POWER_BRAKE, throttle.power_brake_needs, throttle.power_brake),
    (FindingKind.RECOVERY_ACTION, verdict.recovery_action_needs, verdict.recovery_action),
    (FindingKind.ECC, memory.ecc_needs, memory.ecc),
    (FindingKind.ROW_REMAP, memory.row_remap_needs, memory.row_remap),
    (FindingKind.PAGE_RETIREMENT, memory.page_retirement_needs, memory.page_retirement),
    (FindingKind.PCIE_REPLAY, link.pcie_replay_needs, link.pcie_replay),
    (FindingKind.PCIE_WIDTH, link.pcie_width_needs, link.pcie_width),
    (FindingKind.BOARD, board.board_needs, board.board),
)
"""Rules that need no other rule's findings. Some return findings that several GPUs share, too."""


def needs_of_rules(policy: HealthPolicy) -> Mapping[str, tuple[WindowStat, ...]]:
    """The statistics that each rule (`Finding.rule`) reads, the best first.

    A rule with none of them concludes UNKNOWN for every GPU. With some of them it is less sure or misses faults.
    """
    return {
        **{f"health.{kind}": needs(policy) for kind, needs, _ in _RULES},
        "health.xid": (*xid_needs(policy), *fault_needs(policy)),
        "health.presence": presence_needs(policy),
        "health.pod_failures": (),
        "health.infiniband": (),
        "health.hung": hung_needs(policy),
    }


STATE_SIGNALS = (Signal.XID_CODE, Signal.XID_WINDOW_COUNT, Signal.RECOVERY_ACTION_CODE, Signal.ENERGY_JOULES_TOTAL)
"""Signals whose changes within `HealthPolicy.change_window_seconds` the rules read."""


def assess_health(
    snapshot: Snapshot,
    policy: HealthPolicy,
    *,
    everything: bool = False,
    xids: Mapping[int, Xid] | None = None,
    memory: FaultMemory | None = None,
) -> tuple[Finding, ...]:
    """Notable findings, at most one per kind and subject.

    everything: each rule's conclusion on each GPU, HEALTHY and UNKNOWN too. xids: the catalog with overrides. memory:
    of the last cycle, or already with this Snapshot; None for a single run, which remembers nothing.
    """
    fleet = Fleet(snapshot, policy, everything=everything, catalog=xids)
    gone = presence(fleet)
    raised = xid_events(fleet)
    faults = remembered(fleet, raised, gone.findings, memory or FaultMemory())
    gone.findings = [with_failed_reboots(fleet, finding, faults) for finding in gone.findings]
    missing = (with_failed_reboots(fleet, finding, faults) for finding in missing_from_telemetry(fleet))
    findings = [*gone.findings, *missing, *broken_conditions(fleet)]
    assessed: set[str] = set()  # GPUs that some rule could assess
    against: dict[str, list[Finding]] = defaultdict(list)
    for finding in gone.findings:
        if finding.kind is FindingKind.GPU_MISSING and finding.verdict is Verdict.DEGRADED:
            against[finding.subject.name].append(finding)

    def take(judge: Judge) -> None:
        for gpu in fleet.gpus:
            conclusion = judge(gpu)
            if isinstance(conclusion, Finding):
                findings.append(conclusion)
                if conclusion.verdict is Verdict.DEGRADED:
                    against[gpu.uuid].append(conclusion)
                is_known = conclusion.verdict is not Verdict.UNKNOWN or bool(conclusion.evidence)
            else:
                is_known = conclusion is not Verdict.UNKNOWN
            if is_known:
                assessed.add(gpu.uuid)

    def take_shared(shared: Iterable[Finding]) -> None:
        """Findings on a job or the fleet count for every GPU in them."""
        for finding in shared:
            findings.append(finding)
            assessed.update(fleet.uuids[device] for device in finding.devices)

    for _, _, rule in _RULES:
        judged = rule(fleet)
        judge, shared = judged if isinstance(judged, tuple) else (judged, [])
        take_shared(shared)
        take(judge)
    # The last two rules use the findings of the others.
    judge, common = xid(fleet, against, with_memory(fleet, raised, faults), None if memory is None else faults)
    take_shared(common)
    take(judge)
    conclusions, jobs = hung(fleet, against)
    take_shared(jobs)
    take(lambda gpu: conclusions[gpu.uuid])
    words, missing_sign = "running Pods and working ports do not prove a GPU healthy", ["failed Pods or ports"]
    for kind in (FindingKind.POD_FAILURES, FindingKind.INFINIBAND):
        take(partial(fleet.unknown, kind=kind, summary=words, missing=missing_sign))
    findings += [*pod_failures(fleet), *infiniband(fleet), *_unassessed(fleet, assessed, gone)]
    return tuple(findings)


def remember_faults(
    snapshot: Snapshot, policy: HealthPolicy, memory: FaultMemory, *, xids: Mapping[int, Xid] | None = None
) -> FaultMemory:
    """The memory with what this Snapshot shows: new faults, those that came again, and repairs. Answers in part add
    nothing: a series that they cut off looks as if it began anew, and a GPU that they leave out as if it were lost."""
    if partial_answers(snapshot.gaps):
        return memory
    fleet = Fleet(snapshot, policy, catalog=xids)
    return remembered(fleet, xid_events(fleet), presence(fleet).findings, memory)


def _unassessed(fleet: Fleet, assessed: set[str], gone: Presence) -> Iterable[Finding]:
    """One finding for each reporting GPU that no rule could assess, or for a machine that has only such GPUs."""
    for home, gpus in fleet.at_home.items():
        left = [gpu for gpu in gpus if gpu.uuid not in assessed and gpu.uuid not in gone.explained]
        if len(left) < 2 or len(left) < len(gpus) or fleet.everything:
            yield from (_health_unknown(gpu, "it reports") for gpu in left)
        else:
            yield _health_unknown(on_node(home), f"its {len(gpus)} GPUs report", left)


def _health_unknown(on: PhysicalGpu | Subject, who: str, gpus: Sequence[PhysicalGpu] = ()) -> Finding:
    return conclude(
        on,
        FindingKind.HEALTH_UNKNOWN,
        Verdict.UNKNOWN,
        f"{who}, but no health rule has the signals or the samples that it needs",
        advice=Advice.FIX_MONITORING,
        missing=[Signal.XID_CODE, Signal.ROW_REMAP_FAILED_STATE, Signal.ECC_DBE_VOLATILE_TOTAL],
        gpus=gpus,
        node=gpus[0].lead.node if gpus else None,
    )
