"""Planted faults and their symptoms on a card. Rates are far above DCGM's bounds."""

from dataclasses import dataclass

import numpy as np

from lab.simulate.fault_kinds import FAULTS, FaultKind
from lab.simulate.script import CardScript


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

    @property
    def all_cards(self) -> list[tuple[int, int]]:
        """(machine, card) of each."""
        return [*((self.machine, card) for card in self.cards), *self.others]


def show(fault: Fault, card: CardScript, interval: float, rng: np.random.Generator) -> None:
    """Add the fault's symptoms to one of its cards. interval: seconds between samples."""
    start, end, strength = fault.start, fault.end, fault.strength
    traits = FAULTS[fault.kind]
    if traits.xid:
        card.xids.append((start, traits.xid))
    if traits.state:
        card.states[traits.state].append((start, end, traits.state_value))
    if traits.watch:
        card.watches[traits.watch].append((start, end, traits.watch_status, traits.watch_error))
    match fault.kind:
        case FaultKind.FALLEN_OFF_BUS:
            # The last scrapes still show the card, with its fatal XID.
            card.absent.append((start + interval * (1 + int(strength * 3)), end + 480))
        case FaultKind.VANISHED:
            card.absent.append((start, end + 480))
        case FaultKind.DOUBLE_BIT:
            if strength > 0.5:
                card.xids.append((start + 300, 63))
            card.steps["ecc_dbe"].append((start, 1 + float(rng.poisson(0.5))))
            card.steps["rows_uncorrectable"].append((start, 1))
        case FaultKind.ROW_REMAP_PENDING:
            card.steps["rows_uncorrectable" if strength > 0.5 else "rows_correctable"].append((start, 1))
        case FaultKind.ROW_REMAP_FAILED:
            card.steps["rows_uncorrectable"].append((start, 1))
        case FaultKind.GSP_TIMEOUT:
            at = start
            for _ in range(3 + int(strength * 5)):
                card.xids.append((at, 119))
                at += float(rng.uniform(30, 900))
        case FaultKind.HUNG:
            card.hung.append((start, end))
        case FaultKind.PCIE_REPLAYS:
            card.rates["replays"].append((start, end, (60 + 340 * strength) / 60))
        case FaultKind.NVLINK_ERRORS:
            card.rates["nvlink_crc_flit"].append((start, end, 120 + 1500 * strength))
            card.rates["nvlink_crc_data"].append((start, end, 5 * strength))
            card.rates["nvlink_replay"].append((start, end, (3 + 25 * strength) / 60))
            card.rates["nvlink_recovery"].append((start, end, (1.2 + 2 * strength) / 60))
        case FaultKind.OVERHEATING:
            card.hotter.append((start, end, 2.6 + 0.8 * strength))
        case FaultKind.APPLICATION_XID:
            card.xids.append((start + float(rng.uniform(0, 20)), 31 if strength > 0.5 else 13))
        case FaultKind.TEARDOWN_XID:
            card.xids.append((start + float(rng.uniform(0, 5)), 45))
