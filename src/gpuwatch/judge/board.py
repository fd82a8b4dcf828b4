"""The board around a GPU: its InfoROM, and the sensor of its power."""

from gpuwatch.facts.model.decision import Advice, Component, FindingKind, Severity
from gpuwatch.facts.model.telemetry import Signal, Statistic, WindowStat
from gpuwatch.judge.fleet import SUSPECTED, Conclusion, Fleet, Grade, Judge, PhysicalGpu
from gpuwatch.judge.health.policy import HealthPolicy
from gpuwatch.judge.needs import stats


def board_needs(policy: HealthPolicy) -> tuple[WindowStat, ...]:
    samples = stats(Statistic.COUNT, policy.window_seconds, Signal.POWER_WATTS, Signal.GPU_TEMPERATURE_CELSIUS)
    return (WindowStat(Signal.INFOROM_VALID_STATE, Statistic.LAST), *samples)


def board(fleet: Fleet) -> Judge:
    """DCGM warns of both faults. No recorded page of an exporter shows either, so neither causes an action."""
    kind, window = FindingKind.BOARD, fleet.policy.window_seconds
    inforom, power, _ = map(fleet.answers, board_needs(fleet.policy))
    warm, powered = (fleet.covered(window, [signal]) for signal in (Signal.GPU_TEMPERATURE_CELSIUS, Signal.POWER_WATTS))
    grade = Grade(Severity.WARNING, Advice.INSPECT, SUSPECTED)

    def judge(gpu: PhysicalGpu) -> Conclusion:
        valid = inforom.of(gpu)
        if valid == 0:
            fact = inforom.evidence(gpu, comparison="==", bound=0.0)
            return fleet.degraded(
                gpu, kind, "the InfoROM is corrupt; flash it", grade, [fact], components=[Component.INFOROM]
            )
        siblings = [other for other in fleet.at_home.get(gpu.home, ()) if other is not gpu]
        # An exporter without the counter, or a hypervisor that hides it, hides it on every GPU.
        if siblings and warm(gpu) and not power.of(gpu) and all(map(powered, siblings)):
            fact = power.evidence(gpu, power.of(gpu) or 0.0, comparison="==", bound=0.0, note="samples in the window")
            summary = f"its board's power cannot be read, that of the {len(siblings)} other GPUs of its machine can"
            return fleet.degraded(gpu, kind, summary, grade, [fact], components=[Component.POWER])
        if valid is None:
            return fleet.unknown(gpu, kind, "the InfoROM's state is not exported", [inforom.stat.signal])
        return fleet.healthy(gpu, kind, "the InfoROM is valid", inforom)

    return judge
