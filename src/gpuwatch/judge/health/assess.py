"""Which GPUs are degraded: all health rules, and the statistics that they need.

Each rule reads one family of signals and concludes HEALTHY, DEGRADED or UNKNOWN for each GPU. UNKNOWN (a signal is not
exported, a window has too few samples, peers are missing) never causes an action.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpuwatch.facts.catalog.xids import Xid
from gpuwatch.facts.model.decision import Advice, Finding, FindingKind, Snapshot, Subject, Verdict
from gpuwatch.facts.model.faults import FaultMemory
from gpuwatch.facts.model.telemetry import GapKind, Signal, WindowStat, partial_answers
from gpuwatch.judge.board import BOARD
from gpuwatch.judge.fleet import Fleet, PhysicalGpu, Tells, conclude, on_node
from gpuwatch.judge.health.configuration import CONFIGURATION
from gpuwatch.judge.health.fabric import FABRIC
from gpuwatch.judge.health.fault_memory import FaultsAsked, remembered_missing, remembered_xids
from gpuwatch.judge.health.hung import HUNG
from gpuwatch.judge.health.infiniband import INFINIBAND
from gpuwatch.judge.health.link import NVLINK_ERRORS, PCIE_REPLAY, PCIE_WIDTH
from gpuwatch.judge.health.memory import ECC, PAGE_RETIREMENT, ROW_REMAP
from gpuwatch.judge.health.objects import DEVICE_HEALTH, NODE_CONDITION, OPERATOR_CONFLICT, calls_well
from gpuwatch.judge.health.pod_admission import POD_ADMISSION
from gpuwatch.judge.health.pod_failures import POD_FAILURES
from gpuwatch.judge.health.policy import HealthPolicy
from gpuwatch.judge.health.presence import PRESENCE, PresenceAsked, absences
from gpuwatch.judge.health.throttle import POWER_BRAKE, THERMAL_THROTTLE
from gpuwatch.judge.health.unused import NOT_RUNNING, OUT_OF_SERVICE, USED_OUTSIDE
from gpuwatch.judge.health.xid import XID
from gpuwatch.judge.health.xid_events import XidsAsked, xid_events
from gpuwatch.judge.rule import Ask, Rule, without_statistics
from gpuwatch.judge.verdict import DCGM_HEALTH, RECOVERY_ACTION, VENDOR_HEALTH

__all__ = [
    "RULES",
    "HealthPolicy",
    "asks",
    "assess_health",
    "conclusions",
    "needs_of_rules",
    "remember_faults",
    "signals_of_rules",
    "state_signals",
]

_UNKNOWN = Tells(FindingKind.HEALTH_UNKNOWN, "no rule could tell the health of the device", "info: fix_monitoring")


def _unassessed(fleet: Fleet) -> Iterable[Finding]:
    """One finding for each reporting GPU that no rule before could assess, or for a machine that has only such GPUs."""
    for home, gpus in fleet.at_home.items():
        left = [gpu for gpu in gpus if gpu.uuid not in fleet.assessed]
        if len(left) < 2 or len(left) < len(gpus) or fleet.everything:
            yield from (_health_unknown(gpu, "it reports") for gpu in left)
        else:
            yield _health_unknown(on_node(home), f"its {len(gpus)} GPUs report", left)


def _health_unknown(on: PhysicalGpu | Subject, who: str, gpus: Sequence[PhysicalGpu] = ()) -> Finding:
    return conclude(
        on,
        _UNKNOWN,
        Verdict.UNKNOWN,
        f"{who}, but no health rule has the signals or the samples that it needs",
        advice=Advice.FIX_MONITORING,
        missing=[Signal.XID_CODE, Signal.ROW_REMAP_FAILED_STATE, Signal.ECC_DBE_VOLATILE_TOTAL],
        gpus=gpus,
        node=gpus[0].lead.node if gpus else None,
    )


HEALTH_UNKNOWN = without_statistics(_UNKNOWN, _unassessed)

RULES: tuple[Rule[Any], ...] = (
    RECOVERY_ACTION,
    DCGM_HEALTH,
    VENDOR_HEALTH,
    ECC,
    ROW_REMAP,
    PAGE_RETIREMENT,
    PCIE_REPLAY,
    PCIE_WIDTH,
    NVLINK_ERRORS,
    FABRIC,
    THERMAL_THROTTLE,
    POWER_BRAKE,
    BOARD,
    CONFIGURATION,
    NODE_CONDITION,
    DEVICE_HEALTH,
    PRESENCE,
    XID,  # it and the rules after it use what those before them concluded
    HUNG,
    POD_FAILURES,
    POD_ADMISSION,
    INFINIBAND,
    OPERATOR_CONFLICT,
    OUT_OF_SERVICE,
    NOT_RUNNING,
    USED_OUTSIDE,
    HEALTH_UNKNOWN,
)
"""All health rules, in the order in which they are asked and stand in docs/rules.md."""


def asks(policy: HealthPolicy) -> Mapping[str, Ask]:
    """What each rule (`Finding.rule`) asks."""
    return {rule.name: rule.asked(policy) for rule in RULES}


def needs_of_rules(policy: HealthPolicy) -> Mapping[str, tuple[WindowStat, ...]]:
    """The statistics that each rule reads, the best first."""
    return {name: tuple(ask.stats) for name, ask in asks(policy).items()}


def signals_of_rules(policy: HealthPolicy) -> Mapping[str, tuple[Signal, ...]]:
    """The signals that each rule rests on, the best first.

    A rule with none of them concludes UNKNOWN for every GPU. With some of them it is less sure or misses faults.
    """
    return {name: tuple(ask.signals) for name, ask in asks(policy).items()}


def state_signals(policy: HealthPolicy) -> tuple[Signal, ...]:
    """Signals whose changes within `HealthPolicy.change_window_seconds` the rules read."""
    return tuple(dict.fromkeys(signal for ask in asks(policy).values() for signal in ask.state_signals))


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
    fleet = Fleet(snapshot, policy, everything=everything, catalog=xids, memory=memory)
    found = tuple(finding for rule in RULES for finding in conclusions(fleet, rule))
    watches = DCGM_HEALTH.needs(Ask(policy, fleet)).now
    shown = {gpu.uuid: watches.by_variant(gpu) for gpu in fleet.gpus}
    return tuple(
        replace(finding, dissent=_dissent(fleet, finding, shown)) if finding.verdict is Verdict.DEGRADED else finding
        for finding in found
    )


def _dissent(fleet: Fleet, finding: Finding, watches: Mapping[str, Mapping[str, float]]) -> str:
    """Two more opinions on one Node's truth, which people compare: they decide nothing here. watches: by GPU."""
    told = [watches.get(fleet.uuids.get(device, ""), {}) for device in finding.devices]
    said = []
    if told and all(shown and not any(shown.values()) for shown in told):
        said.append("DCGM's health watches pass")
    if conditions := calls_well(fleet, finding.node):
        said.append(f"the Node's conditions say that all is well ({', '.join(conditions)})")
    return "; ".join(said)


def conclusions(fleet: Fleet, rule: Rule[Any]) -> list[Finding]:
    """What the rule says. The fleet then has what it concluded, for the rules after it."""
    each, shared = rule.judged(fleet)
    findings = list(shared)
    if rule.assesses:  # a finding on a job or the fleet counts for every GPU in it
        fleet.assessed.update(fleet.uuids[device] for finding in shared for device in finding.devices)
    if each is None:
        return findings
    unread = sorted(_unread(fleet.snapshot, rule.asked(fleet.policy)))
    for gpu in fleet.gpus:
        conclusion = each(gpu)
        verdict = conclusion.verdict if isinstance(conclusion, Finding) else conclusion
        if unread and verdict is Verdict.HEALTHY:
            conclusion = fleet.unknown(gpu, rule.tells[0], f"not all was read: {', '.join(unread)}", unread)
        known = conclusion is not Verdict.UNKNOWN
        if isinstance(conclusion, Finding):
            findings.append(conclusion)
            if conclusion.verdict is Verdict.DEGRADED:
                fleet.against[gpu.uuid].append(conclusion)
            known = conclusion.verdict is not Verdict.UNKNOWN or bool(conclusion.evidence)
        if known and rule.assesses:
            fleet.assessed.add(gpu.uuid)
    return findings


def _unread(snapshot: Snapshot, asked: Ask) -> set[str]:
    """The rule's signals of which a query failed. No series of them then proves nothing, as it does where one begins
    with the first event."""
    kinds = (GapKind.UNREACHABLE, GapKind.REFUSED, GapKind.QUERY_FAILED)
    words = {word.strip(",") for gap in snapshot.gaps if gap.kind in kinds for word in gap.what.split()}
    return words.intersection(map(str, (*asked.signals, *asked.state_signals)))


def remember_faults(
    snapshot: Snapshot, policy: HealthPolicy, memory: FaultMemory, *, xids: Mapping[int, Xid] | None = None
) -> FaultMemory:
    """The memory with what this Snapshot shows: new faults, those that came again, and repairs. Answers in part add
    nothing: a series that they cut off looks as if it began anew, and a GPU that they leave out as if it were lost."""
    if partial_answers(snapshot.gaps):
        return memory
    fleet = Fleet(snapshot, policy, catalog=xids)
    ask = Ask(policy, fleet)
    asked = FaultsAsked(ask)
    memory = remembered_xids(fleet, asked, xid_events(fleet, XidsAsked(ask)), memory)
    gone, _ = absences(fleet, PresenceAsked(ask))
    return remembered_missing(fleet, asked, gone.values(), memory)
