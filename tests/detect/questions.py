"""What each health rule asks, by the names of its own needs under the default policy: `ECC.dbe` is one statistic."""

from types import SimpleNamespace
from typing import Any

from detect.builders import POLICY
from gpuwatch.facts.model.telemetry import Statistic
from gpuwatch.judge import board, verdict
from gpuwatch.judge.fleet import GpuAnswers
from gpuwatch.judge.health import fabric, hung, link, memory, throttle, xid
from gpuwatch.judge.rule import Ask, Rule

DAY = 24 * 3600


def _asked(rule: Rule[Any]) -> SimpleNamespace:
    """Beside the names of its needs: `bits_before` of the last two windows, `busy_count` of the samples of a window,
    and `busy_day_count` of a day's."""
    ask = Ask(POLICY)
    needs = rule.needs(ask)
    named = {
        f"{stat.signal.partition('_')[0]}{'_day' * (stat.window_seconds == DAY)}_count": stat
        for stat in sorted(ask.stats, key=lambda each: each.window_seconds)
        if stat.statistic is Statistic.COUNT
    }
    for name, each in vars(needs).items():
        if isinstance(each, GpuAnswers):
            named[name] = each.stat
        elif isinstance(each, list):
            named |= {
                item.stat.signal.removeprefix("nvlink_").removesuffix("_total").removesuffix("_errors"): item.stat
                for item in each
            }
        elif hasattr(each, "both"):
            named[name], named[f"{name}_before"] = each.now.stat, each.both.stat
    return SimpleNamespace(**named)


ACTION = _asked(verdict.RECOVERY_ACTION).now
HEALTH = _asked(verdict.DCGM_HEALTH)
VENDOR = _asked(verdict.VENDOR_HEALTH)
ECC = _asked(memory.ECC)
REMAP = _asked(memory.ROW_REMAP)
PAGES = _asked(memory.PAGE_RETIREMENT)
BOARD = _asked(board.BOARD)
REPLAY = _asked(link.PCIE_REPLAY)
WIDTH = _asked(link.PCIE_WIDTH)
NVLINK = _asked(link.NVLINK_ERRORS)
FABRIC = _asked(fabric.FABRIC)
HEAT = _asked(throttle.THERMAL_THROTTLE)
BRAKE = _asked(throttle.POWER_BRAKE)
XIDS = _asked(xid.XID)
HUNG = _asked(hung.HUNG)
