"""Faults of a GPU's links: PCIe replays and width, errors on NVLinks and on the link to the CPU (C2C)."""

from collections.abc import Hashable

from gpuwatch.facts.catalog.gpus import pcie_generations
from gpuwatch.facts.model.decision import Advice, Component, Evidence, FindingKind, Severity
from gpuwatch.facts.model.telemetry import Signal, Statistic
from gpuwatch.judge.fleet import SUSPECTED, Conclusion, Fleet, GpuAnswers, Grade, Peers, PhysicalGpu, Tells
from gpuwatch.judge.health.fabric import by_domain
from gpuwatch.judge.rule import OVER_TIME, Ask, Judged, Rule

_ASSUMED_GENERATION = 5
_ASSUMED_LANES = 16

NVLINK_CRC_ERRORS_PER_SECOND = 100.0
"""DCGM fails the link there."""
NVLINK_ERRORS_PER_MINUTE = 1.0
"""Replays or recoveries; DCGM fails the link there."""

_CRC = (Signal.NVLINK_CRC_FLIT_ERRORS_TOTAL, Signal.NVLINK_CRC_DATA_ERRORS_TOTAL)
_LOST_LINKS = (Signal.NVLINK_FAILED_RECOVERIES_TOTAL, Signal.NVLINK_LINK_DOWNS_TOTAL)
_CPU_LINK = (Signal.C2C_ERRORS_TOTAL, Signal.C2C_REPLAYS_TOTAL, Signal.C2C_REPEATED_REPLAYS_TOTAL)
# What DCGM's MonitorNVLink4Fields and MonitorNVLink5Fields count, and the link to the CPU, for which it has no bound.
# Without the two bit error rates: the exporter prints 1e-12 as 0.000000, and `fabric` reads the raw one.
COUNTERS = (
    Signal.NVLINK_REPLAY_ERRORS_TOTAL,
    Signal.NVLINK_RECOVERY_ERRORS_TOTAL,
    Signal.NVLINK_RX_SYMBOL_ERRORS_TOTAL,
    Signal.NVLINK_RX_MALFORMED_PACKETS_TOTAL,
    Signal.NVLINK_RX_DROPPED_PACKETS_TOTAL,
    Signal.NVLINK_RX_ERRORS_TOTAL,
    Signal.NVLINK_RX_REMOTE_ERRORS_TOTAL,
    Signal.NVLINK_RX_GENERAL_ERRORS_TOTAL,
    Signal.NVLINK_INTEGRITY_ERRORS_TOTAL,
    Signal.NVLINK_EFFECTIVE_ERRORS_TOTAL,
    Signal.NVLINK_LINK_RECOVERIES_TOTAL,
    Signal.NVLINK_ECC_ERRORS_TOTAL,
    *_CPU_LINK,
    *_CRC,
    *_LOST_LINKS,
)
"""The counters of errors on a GPU's links to other GPUs and to the CPU."""
_NEVER_RECORDED = (Signal.NVLINK_ECC_ERRORS_TOTAL, Signal.NVLINK_LINK_DOWNS_TOTAL, *_CPU_LINK)
"""No recorded page of an exporter has these signals, so alone they cause no action."""

_REPLAY = Tells(FindingKind.PCIE_REPLAY, "too many replays on the PCIe link", "warning: inspect", (Component.PCIE,))
_WIDTH = Tells(
    FindingKind.PCIE_WIDTH, "a link with fewer lanes than it could have", "warning: inspect", (Component.PCIE,)
)
_NVLINK = Tells(
    FindingKind.NVLINK_ERRORS,
    "too many errors on an NVLink, or on the link to the CPU",
    "warning: reset_when_idle, inspect; critical: inspect",
    (Component.NVLINK,),
)


class _ReplayAsked:
    def __init__(self, ask: Ask) -> None:
        window = ask.policy.window_seconds
        self.replays = ask(Signal.PCIE_REPLAYS_TOTAL, Statistic.INCREASE, window)
        # The highest generation and width of the window: both fall by design while the link is idle.
        self.generation = ask(Signal.PCIE_LINK_GENERATION, Statistic.MAX, window)
        self.lanes = ask(Signal.PCIE_LINK_WIDTH_LANES, Statistic.MAX, window)
        self.reporting = ask.reporting(window)


class _WidthAsked:
    def __init__(self, ask: Ask) -> None:
        window = ask.policy.window_seconds
        self.lanes = ask(Signal.PCIE_LINK_WIDTH_LANES, Statistic.MAX, window)
        self.most = ask(Signal.PCIE_LINK_WIDTH_MAX_LANES)
        self.reporting = ask.reporting(window)


class _NvlinkAsked:
    def __init__(self, ask: Ask) -> None:
        window = ask.policy.window_seconds
        self.counters = [ask(signal, Statistic.INCREASE, window) for signal in COUNTERS]
        self.traffic = ask(Signal.NVLINK_BYTES_PER_SECOND, Statistic.AVG, window)
        self.up = ask(Signal.LINK_UP_STATE)
        self.reporting = ask.reporting(window)


def pcie_replay(fleet: Fleet, asked: _ReplayAsked) -> Judged:
    """More replays per minute than the link's speed and width allow, and more than the peers have: replays slow a link,
    but replays on all links of a platform are no card's fault."""
    kind, policy = _REPLAY, fleet.policy
    minutes = policy.window_seconds / 60
    replays = asked.replays

    def allowed(gpu: PhysicalGpu) -> tuple[float, str]:
        return _expected_replays(asked.generation.of(gpu), asked.lanes.of(gpu))

    def excess(gpu: PhysicalGpu) -> float | None:
        increase = replays.of(gpu)
        return None if increase is None else increase / minutes / allowed(gpu)[0]

    # Multiples of what each link allows compare across models.
    peers_of = fleet.peers(excess, any_model=True)

    def judge(gpu: PhysicalGpu) -> Conclusion:
        increase = replays.of(gpu)
        if increase is None:
            return fleet.unknown(gpu, kind, "PCIe replays are not exported", [replays.stat.signal])
        rate = increase / minutes
        bound, assumed = allowed(gpu)
        if rate <= bound:
            if asked.reporting(gpu):
                return fleet.healthy(gpu, kind, "no more replays than its link allows", replays)
            return fleet.unseen(gpu, kind, policy.window_seconds)
        multiples = peers_of(gpu)
        peers = None if multiples is None else multiples.times(bound)
        compared = "GPUs of all models" if peers is not None and not peers.same_model else "its peers"
        note, unit = f"bound for {assumed}; compared with {compared}", "replays/minute"
        fact = replays.evidence(gpu, rate, unit=unit, comparison=">", bound=bound, peers=peers, note=note)
        if peers is None:
            summary = f"{rate:,.3g} PCIe replays per minute, and too few GPUs to compare with"
            return fleet.undecided(gpu, kind, summary, [fact], f"{policy.min_peers} other GPUs that export replays")
        if rate <= peers.upper:
            return fleet.healthy(gpu, kind, f"as many replays as {compared} have", replays, confidence_ratio=0.6)
        summary = f"{rate:,.3g} PCIe replays per minute; {bound:.3g} are normal, and {compared} have {peers.median:.3g}"
        # Two independent bounds are exceeded, but replays seldom cost more than speed.
        grade = Grade(Severity.WARNING, Advice.INSPECT, 0.75 if peers.same_model else SUSPECTED)
        return fleet.degraded(gpu, kind, summary, grade, [fact], since=fleet.before(policy.window_seconds))

    return Judged(judge)


def _expected_replays(generation: float | None, lanes: float | None) -> tuple[float, str]:
    """Replays per minute of a healthy link, and a name of the link: the fastest common one where unknown."""
    known = generation is not None and int(generation) in pcie_generations()
    built = generation if known and generation is not None else _ASSUMED_GENERATION
    width = lanes if lanes is not None and lanes > 0 else _ASSUMED_LANES
    assumed = "" if known and lanes is not None else " (assumed)"
    per_lane = pcie_generations()[int(built)].replays_per_minute_per_lane
    return per_lane * width, f"Gen{built:g} ×{width:g}{assumed}"


def pcie_width(fleet: Fleet, asked: _WidthAsked) -> Judged:
    """A link that never had all its lanes in the window, while its peers (same model, same pool) did.

    Peers tell a fault from a slot with fewer lanes. The generation falls at idle by design and is not judged.
    """
    kind, policy, lanes, most = _WIDTH, fleet.policy, asked.lanes, asked.most
    peers_of = fleet.peers(lanes.of, kin=lambda gpu: _pool(fleet, gpu))

    def judge(gpu: PhysicalGpu) -> Conclusion:
        width = lanes.of(gpu)
        if width is None:
            return fleet.unknown(gpu, kind, "the PCIe link's width is not exported", [lanes.stat.signal])
        peers = peers_of(gpu)
        possible = most.of(gpu)
        full = possible if possible is not None else None if peers is None else peers.median
        if full is None:
            return fleet.unknown(gpu, kind, "neither the card's widest link nor peers are known", [most.stat.signal])
        if width >= full:
            return fleet.healthy(gpu, kind, "all lanes are in use", lanes, most)
        if not asked.reporting(gpu):
            return fleet.unseen(gpu, kind, policy.window_seconds)
        fact = lanes.evidence(gpu, comparison="<", bound=full, peers=peers)
        summary = f"the PCIe link has {width:g} of {full:g} lanes"
        if peers is None:
            missing = f"{policy.min_peers} other GPUs of this model in its pool, to know what the slots have"
            return fleet.undecided(gpu, kind, f"{summary}; its slot may have no more", [fact], missing)
        if width >= peers.median:
            return fleet.healthy(gpu, kind, f"{summary}, as its peers' links have", lanes, most, confidence_ratio=0.8)
        slots = [lanes.of(each) or full for each in fleet.at_home[gpu.home]]
        if len(slots) > 1 and max(slots) < peers.median:
            missing = "whether the slots of its machine have more lanes"
            return fleet.undecided(gpu, kind, f"{summary}; no GPU of its machine has more", [fact], missing)
        summary += f"; its peers have {peers.median:g}"
        grade = Grade(Severity.WARNING, Advice.INSPECT, 0.85)  # less than 1, as the servers of a pool may differ
        return fleet.degraded(gpu, kind, summary, grade, [fact], since=fleet.before(policy.window_seconds))

    return Judged(judge)


def _pool(fleet: Fleet, gpu: PhysicalGpu) -> Hashable:
    node = fleet.nodes.get(gpu.lead.node or "")
    return "" if node is None else node.pool


def nvlink_errors(fleet: Fleet, asked: _NvlinkAsked) -> Judged:
    """Error rates at which DCGM fails a link. They seldom cost speed (Imbue: 'do not seem to impact training'), so the
    GPU must also exceed its peers or move less than they do. An NVLink domain is one finding."""
    kind, policy, counters, traffic, up = _NVLINK, fleet.policy, asked.counters, asked.traffic, asked.up
    rates = [_rate(answers, policy.window_seconds) for answers in counters]
    peers_of = [fleet.peers(answers.times(scale)) for answers, scale, _, _ in rates]
    # A machine of four GPUs is too small to compare within: its job's GPUs on all machines are.
    near_traffic = fleet.peers(traffic.of, kin=lambda gpu: (gpu.home, fleet.jobs_of(gpu)))
    job_traffic = fleet.peers(traffic.of, among=[gpu for gpu in fleet.present if gpu.pods], kin=fleet.jobs_of)
    up_peers = fleet.peers(up.of, kin=lambda gpu: _pool(fleet, gpu))
    up_vendor = fleet.peers(up.of, any_model=True)  # for Gaudi, whose exporter names no model

    def excesses(gpu: PhysicalGpu) -> list[tuple[Evidence, bool]]:
        """What is too much, and whether the peers have less of it."""
        found = []
        for (answers, scale, bound, unit), cohort in zip(rates, peers_of, strict=True):
            rate = (answers.of(gpu) or 0.0) * scale
            if rate >= bound:
                peers = cohort(gpu)
                fact = answers.evidence(gpu, rate, unit=unit, comparison=">=", bound=bound, peers=peers)
                found.append((fact, peers is not None and rate > peers.upper))
        return found

    over = {gpu.uuid: excesses(gpu) for gpu in fleet.present}
    sick = [gpu for gpu in fleet.present if any(outlier for _, outlier in over[gpu.uuid])]
    shared, explained = by_domain(fleet, kind, "link errors", sick)

    def judge(gpu: PhysicalGpu) -> Conclusion:
        if gpu.uuid in explained:
            return fleet.unknown(gpu, kind, "link errors on its whole NVLink domain", ["errors of this GPU alone"])
        down = _link_down(gpu, up, up_peers(gpu) if gpu.model else up_vendor(gpu))
        if down is not None:
            return down
        known = [answers for answers in counters if answers.known(gpu)]
        if not known:
            if (up.of(gpu) or 0) > 0:
                return fleet.healthy(gpu, kind, "its links are up", up, confidence_ratio=0.7)
            return fleet.unknown(gpu, kind, "NVLink errors are not exported", [each.stat.signal for each in counters])
        found = over.get(gpu.uuid)
        if not found:
            if asked.reporting(gpu):
                return fleet.healthy(gpu, kind, "few NVLink errors", *known)
            return fleet.unseen(gpu, kind, policy.window_seconds)
        evidence = [fact for fact, _ in found]
        words = " and ".join(f"{fact.value:,.3g} {fact.unit.replace('/', ' per ')}" for fact in evidence)
        peers = near_traffic(gpu) or job_traffic(gpu)
        carried = traffic.of(gpu)
        least = None if peers is None else peers.lower
        slower = least is not None and carried is not None and carried < least
        if slower:
            evidence.append(traffic.evidence(gpu, comparison="<", bound=least, peers=peers))
        outliers = [fact for fact, outlier in found if outlier]
        if not (outliers or slower):
            missing = "peers that have fewer errors, or a lack of traffic"
            return fleet.undecided(gpu, kind, f"{words}, which no comparison supports", evidence, missing)
        machine = fleet.at_home.get(gpu.home, ())
        many = sum(1 for sibling in machine if over[sibling.uuid])
        whole = len(machine) > 1 and many > len(machine) / 2
        words += "; it also moves less than its peers" if slower else ""
        words += f"; {many} of {len(machine)} GPUs of this machine have them: look at its switches" if whole else ""
        # Errors alone, without less traffic, are often harmless.
        sure = slower and any(fact.signal not in _NEVER_RECORDED for fact in outliers)
        advice = Advice.INSPECT if whole else Advice.RESET_WHEN_IDLE
        grade = Grade(Severity.WARNING, advice, 0.85 if sure else SUSPECTED)
        return fleet.degraded(gpu, kind, words, grade, evidence, since=fleet.before(policy.window_seconds))

    return Judged(judge, shared)


def _rate(answers: GpuAnswers, window: int) -> tuple[GpuAnswers, float, float, str]:
    """The counter, what its increase is multiplied by, the rate from which it is too many, and that rate's unit."""
    signal = answers.stat.signal
    name = signal.removesuffix("_total").replace("_", " ").replace("nvlink", "NVLink").replace("c2c", "C2C")
    if signal in _CRC:
        return answers, 1 / window, NVLINK_CRC_ERRORS_PER_SECOND, f"{name}/second"
    bound = 60 / window if signal in _LOST_LINKS else NVLINK_ERRORS_PER_MINUTE
    return answers, 60 / window, bound, f"{name}/minute"


def _link_down(gpu: PhysicalGpu, up: GpuAnswers, peers: Peers | None) -> Conclusion | None:
    """A link that is down while the peers' links are up. None without peers: ports may be unused by design."""
    if up.of(gpu) != 0 or peers is None or peers.median <= 0:
        return None
    summary = "a link to other accelerators or to the CPU is down; its peers' links are up"
    grade = Grade(Severity.WARNING, Advice.INSPECT, 0.75)  # the state names no port, and the port may be unused
    evidence = [up.evidence(gpu, comparison="==", bound=0.0, peers=peers)]
    return Fleet.degraded(gpu, _NVLINK, summary, grade, evidence)


PCIE_REPLAY = Rule(tells=(_REPLAY,), needs=_ReplayAsked, judge=pcie_replay, unshown=OVER_TIME)
PCIE_WIDTH = Rule(tells=(_WIDTH,), needs=_WidthAsked, judge=pcie_width, unshown=OVER_TIME)
NVLINK_ERRORS = Rule(tells=(_NVLINK,), needs=_NvlinkAsked, judge=nvlink_errors, unshown=OVER_TIME)
