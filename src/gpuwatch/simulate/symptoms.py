"""Planted faults and their symptoms on a card. Rates are far above DCGM's bounds."""

from dataclasses import dataclass

import numpy as np

from gpuwatch.simulate.fault_kinds import FaultKind
from gpuwatch.simulate.script import CardScript


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A planted fault. Machine −1 is the whole fleet; `end` is inf if it never ends."""

    kind: FaultKind
    machine: int
    cards: tuple[int, ...]
    start: float
    end: float
    strength: float  # 0 to 1
    others: tuple[tuple[int, int], ...] = ()  # (machine, card) of a job's GPUs on other nodes


def show(fault: Fault, card: CardScript, interval: float, rng: np.random.Generator) -> None:
    """Add the fault's symptoms to one of its cards. interval: seconds between samples."""
    start, end, strength = fault.start, fault.end, fault.strength
    match fault.kind:
        case FaultKind.FALLEN_OFF_BUS:
            # The last scrapes still show the card, with its fatal XID.
            card.xids.append((start, 79))
            card.absent.append((start + interval * (1 + int(strength * 3)), end + 480))
        case FaultKind.VANISHED:
            card.absent.append((start, end + 480))
        case FaultKind.DOUBLE_BIT:
            card.xids.append((start, 48))
            if strength > 0.5:
                card.xids.append((start + 300, 63))
            card.steps["ecc_dbe"].append((start, 1 + float(rng.poisson(0.5))))
            card.steps["rows_uncorrectable"].append((start, 1))
            card.states["remap_pending"].append((start, end, 1))
            card.watches["MEM"].append((start, end, 20, "DCGM_FR_VOLATILE_DBE_DETECTED"))
        case FaultKind.ROW_REMAP_PENDING:
            card.xids.append((start, 63))
            card.steps["rows_uncorrectable" if strength > 0.5 else "rows_correctable"].append((start, 1))
            card.states["remap_pending"].append((start, end, 1))
            card.watches["MEM"].append((start, end, 10, "DCGM_FR_PENDING_ROW_REMAP"))
        case FaultKind.ROW_REMAP_FAILED:
            card.xids.append((start, 64))
            card.steps["rows_uncorrectable"].append((start, 1))
            card.states["remap_failure"].append((start, end, 1))
            card.watches["MEM"].append((start, end, 20, "DCGM_FR_ROW_REMAP_FAILURE"))
        case FaultKind.GSP_TIMEOUT:
            at = start
            for _ in range(3 + int(strength * 5)):
                card.xids.append((at, 119))
                at += float(rng.uniform(30, 900))
        case FaultKind.RECOVERY_RESET | FaultKind.RECOVERY_REBOOT:
            card.xids.append((start, 154))
            card.states["recovery"].append((start, end, 1 if fault.kind is FaultKind.RECOVERY_RESET else 2))
            card.watches["DRIVER"].append((start, end, 20, "DCGM_FR_GPU_RECOVERY_ACTION"))
        case FaultKind.HUNG:
            card.hung.append((start, end))
        case FaultKind.PCIE_REPLAYS:
            card.rates["replays"].append((start, end, (60 + 340 * strength) / 60))
        case FaultKind.NVLINK_ERRORS:
            card.rates["nvlink_crc_flit"].append((start, end, 120 + 1500 * strength))
            card.rates["nvlink_crc_data"].append((start, end, 5 * strength))
            card.rates["nvlink_replay"].append((start, end, (3 + 25 * strength) / 60))
            card.rates["nvlink_recovery"].append((start, end, (1.2 + 2 * strength) / 60))
            card.watches["NVLINK"].append((start, end, 20, "DCGM_FR_NVLINK_CRC_ERROR_THRESHOLD"))
        case FaultKind.OVERHEATING:
            card.hotter.append((start, end, 2.6 + 0.8 * strength))
            card.watches["THERMAL"].append((start, end, 10, "DCGM_FR_CLOCK_THROTTLE_THERMAL"))
        case _:
            _application(fault, card, rng)


def _application(fault: Fault, card: CardScript, rng: np.random.Generator) -> None:
    """Symptoms that are not the hardware's fault."""
    if fault.kind is FaultKind.APPLICATION_XID:
        card.xids.append((fault.start + float(rng.uniform(0, 20)), 31 if fault.strength > 0.5 else 13))
    elif fault.kind is FaultKind.TEARDOWN_XID:
        card.xids.append((fault.start + float(rng.uniform(0, 5)), 45))
    elif fault.kind is FaultKind.PROCESS_XID:
        card.xids.append((fault.start, 43))
