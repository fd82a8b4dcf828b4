"""The fabric between GPUs: Fabric Manager, fabric health, NVSwitches, IMEX, and access between GPUs.

No recorded page of an exporter has these signals, so their faults are shown and never acted on.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from gpuwatch.facts.model.decision import (
    Advice,
    Component,
    Evidence,
    Finding,
    FindingKind,
    Severity,
    Subject,
    SubjectKind,
    Verdict,
)
from gpuwatch.facts.model.telemetry import Signal, Statistic
from gpuwatch.judge.fleet import Conclusion, Fleet, PhysicalGpu, Tells, conclude, on_node
from gpuwatch.judge.rule import OVER_TIME, Ask, Judged, Rule

KIND = Tells(
    FindingKind.FABRIC,
    "Fabric Manager, fabric health, NVSwitches, IMEX, or access between GPUs",
    "critical: inspect; warning: inspect; info: watch",
    (Component.NVLINK,),
)
CLIQUE = "nvidia.com/gpu.clique"
"""Node label of GPU feature discovery: cluster UUID and clique id of an NVLink domain."""

# dcgm_structs.h, dcgmFabricManagerStatus_t: 0 not supported, 1 not started, 2 in progress, 3 success, 4 failure.
_TRAINED = 3
_TRAINING = {1: "has not begun", 2: "has not finished", 4: "failed"}
# nvml.h, NVML_GPU_FABRIC_HEALTH_SUMMARY_*: 0 not supported, 1 healthy.
_HEALTH = {2: "its fabric is unhealthy", 3: "its fabric has limited capacity"}
# nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_*: (shift, width, faults). Values not listed mean 'well' or 'not supported'.
_MASK = {
    "its fabric's bandwidth is degraded": (0, 0x3, (1,)),
    "its fabric recovers a route": (2, 0x3, (1,)),
    "a route of its fabric is unhealthy": (4, 0x3, (1,)),
    "its fabric recovers from access timeouts": (6, 0x3, (1,)),
    "its fabric is configured wrongly": (8, 0xF, range(2, 16)),
}
_NOTHING_BYTES_PER_SECOND, _MUCH_BYTES_PER_SECOND, _WORKS_RATIO = 1e6, 1e9, 0.5
"""Of a machine's NVLinks that carry nothing, and of those of its gang's other machines: training moves tens of GB/s."""
_IMEX_NOT_READY = (0, 1, 2, 3, 4, 6)  # DcgmImexManager.h: from initializing to preparing the GPUs, and shutting down


class _Asked:
    def __init__(self, ask: Ask) -> None:
        self.highest = ask(Signal.FABRIC_MANAGER_CODE, Statistic.MAX, ask.policy.window_seconds)
        self.manager = ask(Signal.FABRIC_MANAGER_CODE)
        self.health = ask(Signal.FABRIC_HEALTH_CODE)
        self.mask = ask(Signal.FABRIC_HEALTH_BITS)
        self.switch = ask(Signal.NVSWITCH_FATAL_CODE)
        self.access = ask(Signal.PEER_ACCESS_CODE)
        self.imex = ask(Signal.IMEX_DAEMON_CODE)
        self.non_fatal = ask(Signal.NVSWITCH_NON_FATAL_CODE)
        self.ber = ask(Signal.NVLINK_EFFECTIVE_BER_BITS)
        self.signals = tuple(ask.signals)
        self.traffic = ask(Signal.NVLINK_BYTES_PER_SECOND, Statistic.AVG, ask.policy.window_seconds)
        self.busy = ask(Signal.BUSY_RATIO, Statistic.AVG, ask.policy.window_seconds)
        self.reporting = ask.reporting(ask.policy.window_seconds)


class _Sign(NamedTuple):
    """missing: what would decide whether it is a fault; '' for a fault."""

    words: str
    fact: Evidence
    missing: str = ""


def fabric(fleet: Fleet, asked: _Asked) -> Judged:
    """Faults of the fabric by DCGM's criteria: per GPU, per machine with most GPUs failed, per NVLink domain."""
    manager, health, mask = asked.manager, asked.health, asked.mask
    switch, access, imex = asked.switch, asked.access, asked.imex
    training = _training(fleet, asked)
    peers_of = fleet.peers(access.of)
    homes = Counter(job for gpus in fleet.at_home.values() for job in frozenset().union(*map(fleet.jobs_of, gpus)))

    def signs_of(gpu: PhysicalGpu) -> Iterable[_Sign]:
        yield from training(gpu)
        if (words := _HEALTH.get(int(health.of(gpu) or 0))) is not None:
            yield _Sign(words, health.evidence(gpu, comparison=">=", bound=2.0))
        bits = int(mask.of(gpu) or 0)
        for words, (shift, width, faults) in _MASK.items():
            if bits >> shift & width in faults:
                yield _Sign(words, mask.evidence(gpu, hex(bits), note=f"{width:#x} from bit {shift} on"))
        if code := switch.of(gpu):
            fact = switch.evidence(gpu, comparison=">", bound=0.0, note="the last one, until the driver is reloaded")
            yield _Sign(f"an NVSwitch of its machine reported the fatal SXid {code:.0f}", fact)
        yield from _of_links(gpu, asked)
        # Some machines have no access between all GPUs by design, and slices never have.
        if access.of(gpu) and (peers := peers_of(gpu)) is not None and peers.median == 0 and not gpu.sliced:
            fact = access.evidence(gpu, comparison=">", bound=0.0, peers=peers)
            yield _Sign("it cannot access the memory of another GPU over NVLink", fact)

    def waits_for_imex(gpu: PhysicalGpu) -> bool:
        """Only a gang over several Nodes needs the daemon; without one it may not run (NVIDIA/aicr#2641)."""
        gangs = (job for job in fleet.jobs_of(gpu) if job.kind is SubjectKind.GANG)
        return imex.of(gpu) in _IMEX_NOT_READY and any(homes[job] > 1 for job in gangs)

    signs = {gpu.uuid: tuple(signs_of(gpu)) for gpu in fleet.present}
    sick = {gpu.uuid: faults for gpu in fleet.present if (faults := [x for x in signs[gpu.uuid] if not x.missing])}
    shared, explained = by_domain(fleet, KIND, "fabric faults", [gpu for gpu in fleet.present if gpu.uuid in sick])
    shared += _silent(fleet, asked)
    without_imex: set[str] = set()
    for home, gpus in fleet.at_home.items():
        bad = [gpu for gpu in gpus if gpu.uuid in sick and gpu.uuid not in explained]
        if len(gpus) > 1 and len(bad) > len(gpus) / 2:
            shared.append(_fault(on_node(home), [x for gpu in bad for x in sick[gpu.uuid]], bad))
            explained |= {gpu.uuid for gpu in bad}

            continue
        if waiting := [gpu for gpu in gpus if gpu.present and waits_for_imex(gpu)]:
            shared.append(_not_ready(home, waiting, imex.evidence(waiting[0], comparison="!=", bound=5.0)))
            without_imex |= {gpu.uuid for gpu in waiting}

    def judge(gpu: PhysicalGpu) -> Conclusion:
        if gpu.uuid in without_imex and gpu.uuid not in sick:
            return fleet.unknown(gpu, KIND, "its Node's IMEX daemon is not ready", ["a fault of this GPU alone"])
        if gpu.uuid in explained:
            return fleet.unknown(gpu, KIND, "its machine or NVLink domain has the fault", ["a fault of this GPU alone"])
        if gpu.uuid in sick:
            return _fault(gpu, sick[gpu.uuid], [gpu])
        if found := signs.get(gpu.uuid):
            words, missing = "; ".join(sign.words for sign in found), "; ".join(sign.missing for sign in found)
            return fleet.undecided(gpu, KIND, words, [sign.fact for sign in found], missing)
        states = (switch, access, asked.non_fatal, asked.ber)
        if any(each.of(gpu) for each in (manager, health, mask)) or any(each.known(gpu) for each in states):
            seen = (manager, health, mask, *states)
            return fleet.healthy(gpu, KIND, "no fault of its fabric is reported", *seen, confidence_ratio=0.7)
        return fleet.unknown(gpu, KIND, "no state of a fabric is exported, or the GPU has none", asked.signals)

    return Judged(judge, shared)


def _of_links(gpu: PhysicalGpu, asked: _Asked) -> Iterable[_Sign]:
    if code := asked.non_fatal.of(gpu):
        until = "the last one, until the driver is reloaded"
        fact = asked.non_fatal.evidence(gpu, comparison=">", bound=0.0, note=until)
        yield _Sign(f"an NVSwitch of its machine reported SXid {code:.0f}, which is not fatal", fact, "a fatal one")
    bits = int(asked.ber.of(gpu) or 0)
    mantissa, exponent = bits >> 8 & 0xF, bits & 0xFF
    # DcgmUtilities.cpp, IsEffectiveBerThresholdExceeded: more than 1e-12.
    if mantissa > 10.0 ** (exponent - 12):
        fact = asked.ber.evidence(gpu, mantissa / 10.0**exponent, comparison=">", bound=1e-12)
        yield _Sign(f"{mantissa}e-{exponent} of its NVLinks' bits are wrong after correction", fact)


def _silent(fleet: Fleet, asked: _Asked) -> Iterable[Finding]:
    """One machine of a gang whose GPUs work and whose NVLinks carry nothing, while those of all others carry much."""
    gangs: dict[Subject, dict[str, list[PhysicalGpu]]] = defaultdict(lambda: defaultdict(list))
    for gpu in fleet.present:
        for job in fleet.jobs_of(gpu):
            if job.kind is SubjectKind.GANG:
                gangs[job][gpu.home].append(gpu)
    for gang, machines in gangs.items():
        if len(machines) < 3 or min(map(len, machines.values())) < 2:
            continue
        slowest = {home: min(asked.traffic.of(gpu) or 0.0 for gpu in gpus) for home, gpus in machines.items()}
        (home, _), (_, others) = sorted(slowest.items(), key=lambda each: each[1])[:2]
        here = machines[home]
        quiet = all((moved := asked.traffic.of(gpu)) is not None and moved <= _NOTHING_BYTES_PER_SECOND for gpu in here)
        works = all((asked.busy.of(gpu) or 0.0) >= _WORKS_RATIO for gpu in here)
        if quiet and works and others >= _MUCH_BYTES_PER_SECOND:
            yield conclude(
                on_node(home),
                KIND,
                Verdict.UNKNOWN,
                f"its NVLinks carry nothing, while those of the other {len(machines) - 1} machines of {gang.name} move "
                f"{others / 1e9:.0f} GB/s or more for each GPU: its ranks may use PCIe, and all others wait for them",
                severity=Severity.WARNING,
                advice=Advice.INSPECT,
                evidence=[asked.traffic.evidence(here[0], comparison="<=", bound=_NOTHING_BYTES_PER_SECOND)],
                missing=["which transport its ranks use; NCCL's log says it"],
                gpus=here,
                node=here[0].lead.node,
            )


def _training(fleet: Fleet, asked: _Asked) -> Callable[[PhysicalGpu], Iterable[_Sign]]:
    """'Not started' is a fault only where another machine of the model is trained (eks-node-monitoring-agent#145)."""
    seconds, now = fleet.policy.window_seconds, asked.manager
    trained = {(gpu.model, gpu.home) for gpu in fleet.present if now.of(gpu) == _TRAINED}

    def missing(gpu: PhysicalGpu, code: float) -> str:
        if code not in _TRAINING:
            return "a state that NVML documents"
        if code < _TRAINED and ((asked.highest.of(gpu) or _TRAINED) >= _TRAINED or not asked.reporting(gpu)):
            return f"{seconds // 60} min in this state"
        other = any(model == gpu.model and home != gpu.home for model, home in trained)
        return "" if code > _TRAINED or other else "another machine with trained links of this model"

    def signs(gpu: PhysicalGpu) -> Iterable[_Sign]:
        if (code := now.of(gpu) or _TRAINED) != _TRAINED:
            words = f"the Fabric Manager's training of its links {_TRAINING.get(int(code), f'is in state {code:.0f}')}"
            yield _Sign(words, now.evidence(gpu, comparison="!=", bound=float(_TRAINED)), missing(gpu, code))

    return signs


def _fault(on: PhysicalGpu | Subject, signs: Sequence[_Sign], gpus: Sequence[PhysicalGpu]) -> Finding:
    distinct = {sign.words: sign.fact for sign in signs}
    whole = isinstance(on, Subject)
    return conclude(
        on,
        KIND,
        Verdict.DEGRADED,
        "; ".join(distinct) + (f", on {len(gpus)} of its GPUs" if whole else ""),
        severity=Severity.CRITICAL if whole else Severity.WARNING,
        advice=Advice.INSPECT,
        # DCGM fails these states too, but no recorded page has the signals.
        confidence_ratio=0.75,
        evidence=distinct.values(),
        gpus=gpus if whole else (),
        node=gpus[0].lead.node,
    )


def _not_ready(home: str, gpus: Sequence[PhysicalGpu], fact: Evidence) -> Finding:
    jobs = "a job of several Nodes runs there, which may fail when it imports memory of another Node"
    return conclude(
        on_node(home),
        KIND,
        Verdict.UNKNOWN,
        f"the Node's IMEX daemon is not ready; {jobs}: look at its domain, its configuration and its network",
        severity=Severity.WARNING,
        advice=Advice.INSPECT,
        evidence=[fact],
        missing=["whether its job uses memory of other Nodes"],
        gpus=gpus,
        node=gpus[0].lead.node,
    )


def by_domain(fleet: Fleet, kind: Tells, what: str, sick: Iterable[PhysicalGpu]) -> tuple[list[Finding], set[str]]:
    """One finding per NVLink domain with sick GPUs on several Nodes (its switches explain them), and their UUIDs."""
    domains: dict[str, list[PhysicalGpu]] = defaultdict(list)
    for gpu in sick:
        node = fleet.nodes.get(gpu.lead.node or "")
        domains["" if node is None else node.labels.get(CLIQUE, "")].append(gpu)
    found, explained = [], set()
    for domain, gpus in sorted(domains.items()):
        nodes = len({gpu.home for gpu in gpus})
        members = [name for name, node in fleet.nodes.items() if node.labels.get(CLIQUE) == domain]
        # Beside two sick Nodes, one that does not report may be sick too.
        count = nodes + sum(name not in fleet.at_home for name in members) if nodes > 1 else nodes
        # The cluster UUID is all zeros where the fabric ends at the machine.
        if domain.strip("0-.") and count >= fleet.policy.common_cause_nodes:
            found.append(
                conclude(
                    Subject(SubjectKind.FLEET, domain),
                    kind,
                    Verdict.UNKNOWN,
                    f"{what} on {len(gpus)} GPUs of {nodes} Nodes in one NVLink domain: look at its switches first",
                    severity=Severity.CRITICAL,
                    advice=Advice.INSPECT,
                    evidence=[Evidence(signal="nvlink_domain", value=domain, note=f"Node label {CLIQUE}")],
                    missing=["faults of single Nodes"],
                    gpus=gpus,
                )
            )
            explained |= {gpu.uuid for gpu in gpus}
    return found, explained


FABRIC = Rule(tells=(KIND,), needs=_Asked, judge=fabric, unshown=OVER_TIME)
