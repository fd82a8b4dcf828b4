"""What each health rule asks, by short names: `ECC.dbe` is one statistic of `ecc_needs`, under the default policy."""

from __future__ import annotations

from types import SimpleNamespace

from detect.builders import POLICY
from gpuwatch.facts.model.telemetry import WindowStat
from gpuwatch.judge.board import board_needs
from gpuwatch.judge.health.fabric import fabric_needs
from gpuwatch.judge.health.hung import hung_needs
from gpuwatch.judge.health.link import nvlink_needs, pcie_replay_needs, pcie_width_needs
from gpuwatch.judge.health.memory import ecc_needs, page_retirement_needs, row_remap_needs
from gpuwatch.judge.health.throttle import power_brake_needs, thermal_needs
from gpuwatch.judge.health.xid_events import xid_needs
from gpuwatch.judge.verdict import dcgm_health_needs, recovery_action_needs, vendor_health_needs


def _named(stats: tuple[WindowStat, ...], names: str) -> SimpleNamespace:
    return SimpleNamespace(**dict(zip(names.split(), stats, strict=True)))


(ACTION,) = recovery_action_needs(POLICY)
HEALTH = _named(dcgm_health_needs(POLICY), "now lowest recovery")
VENDOR = _named(vendor_health_needs(POLICY), "now highest")
ECC = _named(
    ecc_needs(POLICY),
    "sram dbe_now dbe dbe_lifetime sbe sbe_lifetime dbe_appeared remap_pending action",
)
REMAP = _named(row_remap_needs(POLICY), "failed pending uncorrectable unrepairable exhausted low uncorrectable_new")
PAGES = _named(page_retirement_needs(POLICY), "sbe dbe pending dbe_new")
BOARD = _named(board_needs(POLICY), "inforom power temperature")
REPLAY = _named(pcie_replay_needs(POLICY), "replays generation lanes")
WIDTH = _named(pcie_width_needs(POLICY), "lanes most")
NVLINK = _named(
    nvlink_needs(POLICY),
    "replay recovery symbols malformed dropped rx remote general integrity effective recoveries ecc c2c c2c_replays "
    "c2c_repeated crc_flit crc_data failed_recoveries downs traffic up",
)
FABRIC = _named(fabric_needs(POLICY), "manager_highest manager health mask switch access imex")
HEAT = _named(
    thermal_needs(POLICY),
    "seconds seconds_before bits bits_before bits_count events margin temperature clock clock_before power busy "
    "hardware memory",
)
BRAKE = _named(
    power_brake_needs(POLICY),
    "seconds seconds_before bits bits_before slowdown slowdown_before thermal bits_count events",
)
XIDS = _named(xid_needs(POLICY), "last counted increased appeared")
ECC.new_rows, ECC.last_xid = REMAP.uncorrectable_new, XIDS.last  # which it reads, and others ask
HUNG = _named(
    hung_needs(POLICY),
    "busy_lowest busy_highest busy_count power_highest power_average power_count power_past limit dram copy tensor",
)
