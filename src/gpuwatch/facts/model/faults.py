"""GPUs' faults, remembered until they are repaired, although telemetry no longer shows them."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from gpuwatch.facts.model.decision import Evidence, FindingKind


class RepairKind(StrEnum):
    """What ended a fault."""

    REBOOT = "reboot"  # the Node runs in another boot
    RELOAD = "reload"  # the GPU's counters began anew, as after a reset or a reload of its driver
    RESET = "reset"  # the driver had asked for a recovery action, and asks for none now
    DECLARED = "declared"  # a person declared it in an annotation of the Node
    EXCHANGE = "exchange"  # another GPU is in its slot
    CALLED_OFF = "called_off"  # nothing was repaired: the driver asks for nothing, or the GPU came back by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    kind: RepairKind
    at: datetime  # when it was, or was first seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """The workload that held a GPU when an XID came. program: what tells one program from another; see `programs`."""

    at: datetime
    workload: str
    program: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFault:
    """One fault of one GPU: an XID, or that the GPU is missing (code 0).

    node, slot, boot_id: where it last occurred, and in which boot; '' unknown.
    since: when it first occurred after the last repair; last_at: when it last occurred.
    timed: telemetry shows when it began; else the gauge had it from the start, and it is older than `since`.
    asked: the driver has asked for a recovery action since.
    counted: the GPU's volatile count of double-bit errors has been above 0 since.
    energy_joules: the GPU's counter at `last_at`; a lower value later means that its counters began anew.
    bursts: its last occurrences, each later than the one before by more than the policy's `common_cause_seconds`.
    seen_at: when the GPU last reported, to the hour.
    """

    uuid: str
    kind: FindingKind
    code: int
    node: str
    slot: str
    boot_id: str
    since: datetime
    last_at: datetime
    seen_at: datetime
    timed: bool = True
    asked: bool = False
    counted: bool = False
    energy_joules: float | None = None
    bursts: tuple[datetime, ...] = ()
    repairs: tuple[Repair, ...] = ()
    holdings: tuple[Holding, ...] = ()
    evidence: tuple[Evidence, ...] = ()

    @property
    def key(self) -> tuple[str, FindingKind, int]:
        return self.uuid, self.kind, self.code

    @property
    def open(self) -> bool:
        """Whether no repair was seen since it last occurred."""
        return not self.repairs or self.repairs[-1].at <= self.last_at

    @property
    def failed_repairs(self) -> int:
        """Number of repairs after which it occurred again."""
        return sum(each.kind is not RepairKind.CALLED_OFF and each.at <= self.last_at for each in self.repairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultMemory:
    """unread: why it may lack faults, and what to do; '' if it is complete."""

    faults: tuple[KnownFault, ...] = ()
    unread: str = ""
