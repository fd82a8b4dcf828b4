"""GPUs that are configured unlike their neighbours: ECC off, a lost vGPU licence, drivers that differ within a gang.

No part of a GPU is broken, so nothing is done: a person compares the machines.
"""

from collections import defaultdict
from collections.abc import Iterable

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
from gpuwatch.facts.model.telemetry import Signal, Statistic
from gpuwatch.judge.fleet import Conclusion, Fleet, PhysicalGpu, Tells, conclude
from gpuwatch.judge.rule import Ask, Judged, Rule

_TELLS = Tells(
    FindingKind.CONFIGURATION,
    "ECC off, a lost vGPU licence, or drivers that differ within a gang",
    "warning: inspect",
)
_MEANT = "whether it is meant so"


class _Asked:
    def __init__(self, ask: Ask) -> None:
        self.ecc = ask(Signal.ECC_ON_STATE)
        self.licensed = ask(Signal.VGPU_LICENSED_STATE)
        self.licensed_before = ask(Signal.VGPU_LICENSED_STATE, Statistic.MAX, ask.policy.change_window_seconds)


def configuration(fleet: Fleet, asked: _Asked) -> Judged:
    """One card whose ECC is off while others of its model and machine have it on; a vGPU that had a licence."""
    ecc, licensed, before = asked.ecc, asked.licensed, asked.licensed_before

    def judge(gpu: PhysicalGpu) -> Conclusion:
        siblings = [other for other in fleet.at_home.get(gpu.home, ()) if other.model == gpu.model]
        with_ecc = [other for other in siblings if ecc.of(other) == 1]
        if ecc.of(gpu) == 0 and 2 * len(with_ecc) > len(siblings):
            words = f"ECC is off, and on for {len(with_ecc)} of the {len(siblings)} GPUs of its model on this machine"
            fact = ecc.evidence(gpu, comparison="==", bound=0.0)
            return _unlike(gpu, f"{words}: its memory errors are not seen (nvidia-smi -e 1, then a reset)", [fact])
        # A GPU that is not virtual says 0 all the time.
        if licensed.of(gpu) == 0 and before.of(gpu) == 1:
            fact = licensed.evidence(gpu, comparison="==", bound=0.0, note="it was 1 within the hour")
            return _unlike(gpu, "the vGPU has lost its licence and will be slowed: look at the licence server", [fact])
        if ecc.of(gpu) is None and licensed.of(gpu) is None:
            return fleet.unknown(gpu, _TELLS, "neither ECC nor a licence is exported", [ecc.stat.signal])
        return fleet.healthy(gpu, _TELLS, "configured as its neighbours", ecc, licensed, confidence_ratio=0.7)

    return Judged(judge, tuple(_mixed_drivers(fleet)))


def _unlike(on: PhysicalGpu | Subject, words: str, facts: Iterable[Evidence], **more: object) -> Finding:
    return conclude(
        on,
        _TELLS,
        Verdict.UNKNOWN,
        words,
        severity=Severity.WARNING,
        advice=Advice.INSPECT,
        evidence=facts,
        missing=[_MEANT],
        **more,  # type: ignore[arg-type]
    )


def _mixed_drivers(fleet: Fleet) -> Iterable[Finding]:
    """Gangs whose GPUs run several drivers: collectives hang, or the slowest driver's bugs hit all."""
    jobs: dict[Subject, dict[str, list[PhysicalGpu]]] = defaultdict(lambda: defaultdict(list))
    for gpu in fleet.present:
        if gpu.lead.driver_version:
            for job in fleet.jobs_of(gpu):
                if job.kind is SubjectKind.GANG:
                    jobs[job][gpu.lead.driver_version].append(gpu)
    for job, drivers in sorted(jobs.items(), key=lambda item: str(item[0])):
        if len(drivers) > 1:
            told = ", ".join(f"{version} on {len(gpus)}" for version, gpus in sorted(drivers.items()))
            facts = [Evidence(signal="driver_version", value=version) for version in sorted(drivers)]
            words = f"its GPUs run {len(drivers)} driver versions ({told}): finish the rollout, or keep the gang on one"
            yield _unlike(job, words, facts, gpus=[gpu for gpus in drivers.values() for gpu in gpus])


CONFIGURATION = Rule(
    tells=(_TELLS,), needs=_Asked, judge=configuration, unshown="it compares GPUs with their neighbours"
)
