"""The board around a GPU: its InfoROM, and the sensor of its power."""

from gpuwatch.facts.model.decision import Advice, Component, FindingKind, Severity
from gpuwatch.facts.model.telemetry import Signal, Statistic
from gpuwatch.judge.fleet import SUSPECTED, Conclusion, Fleet, Grade, PhysicalGpu, Tells
from gpuwatch.judge.rule import Ask, Judged, Rule

_TELLS = Tells(FindingKind.BOARD, "the board's InfoROM is corrupt, or its power cannot be read", "warning: inspect")


class _Asked:
    def __init__(self, ask: Ask) -> None:
        window = ask.policy.window_seconds
        self.inforom = ask(Signal.INFOROM_VALID_STATE)
        self.power = ask(Signal.POWER_WATTS, Statistic.COUNT, window)
        self.warm = ask.covered(window, Signal.GPU_TEMPERATURE_CELSIUS)
        self.powered = ask.covered(window, Signal.POWER_WATTS)


def board(fleet: Fleet, asked: _Asked) -> Judged:
    """DCGM warns of both faults. No recorded page of an exporter shows either, so neither causes an action."""
    inforom, power = asked.inforom, asked.power
    grade = Grade(Severity.WARNING, Advice.INSPECT, SUSPECTED)

    def judge(gpu: PhysicalGpu) -> Conclusion:
        valid = inforom.of(gpu)
        if valid == 0:
            fact = inforom.evidence(gpu, comparison="==", bound=0.0)
            return fleet.degraded(
                gpu, _TELLS, "the InfoROM is corrupt; flash it", grade, [fact], components=[Component.INFOROM]
            )
        siblings = [other for other in fleet.at_home.get(gpu.home, ()) if other is not gpu]
        # An exporter without the counter, or a hypervisor that hides it, hides it on every GPU.
        if siblings and asked.warm(gpu) and not power.of(gpu) and all(map(asked.powered, siblings)):
            fact = power.evidence(gpu, power.of(gpu) or 0.0, comparison="==", bound=0.0, note="samples in the window")
            summary = f"its board's power cannot be read, that of the {len(siblings)} other GPUs of its machine can"
            return fleet.degraded(gpu, _TELLS, summary, grade, [fact], components=[Component.POWER])
        if valid is None:
            return fleet.unknown(gpu, _TELLS, "the InfoROM's state is not exported", [inforom.stat.signal])
        return fleet.healthy(gpu, _TELLS, "the InfoROM is valid", inforom)

    return Judged(judge)


BOARD = Rule(tells=(_TELLS,), needs=_Asked, judge=board)
