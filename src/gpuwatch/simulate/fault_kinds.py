"""What can be planted beside idle allocations: what it is, what should be found, and what it needs and does."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from gpuwatch.model.decision import FindingKind


class FaultKind(StrEnum):
    FALLEN_OFF_BUS = "fallen_off_bus"
    VANISHED = "vanished"
    DOUBLE_BIT = "double_bit"
    GSP_TIMEOUT = "gsp_timeout"
    ROW_REMAP_PENDING = "row_remap_pending"
    ROW_REMAP_FAILED = "row_remap_failed"
    RECOVERY_RESET = "recovery_reset"
    RECOVERY_REBOOT = "recovery_reboot"
    PCIE_REPLAYS = "pcie_replays"
    NVLINK_ERRORS = "nvlink_errors"
    OVERHEATING = "overheating"
    POWER_BRAKE = "power_brake"
    HUNG = "hung"
    EXPORTER_DOWN = "exporter_down"
    NODE_GONE = "node_gone"
    TELEMETRY_MISSING = "telemetry_missing"
    APPLICATION_XID = "application_xid"
    TEARDOWN_XID = "teardown_xid"
    PROCESS_XID = "process_xid"
    POWER_CAP = "power_cap"
    DRIVER_RELOAD = "driver_reload"


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """findings: kinds that it should lead to, or for a harmless one must not lead to.

    hours: the median time that it lasts until somebody repairs it, inf where nobody does; sigma: of its logarithm.
    extended: shows only in metrics outside of the exporter's default list. remaps: needs a card that can remap rows.
    stops_work: the job that runs there dies with it. follows_job: needs the right work at the right time.
    fails_watch: DCGM's health watches fail. harmless: must not be taken for a broken GPU.
    """

    findings: tuple[FindingKind, ...]
    note: str
    hours: float
    sigma: float
    repair: Literal["", "reset", "reboot"] = ""
    extended: bool = False
    remaps: bool = False
    whole_node: bool = False
    stops_work: bool = False
    follows_job: bool = False
    fails_watch: bool = False
    harmless: bool = False


FAULTS: Mapping[FaultKind, Traits] = {
    FaultKind.FALLEN_OFF_BUS: Traits(
        findings=(FindingKind.XID, FindingKind.GPU_MISSING), hours=14, sigma=0.5, repair="reboot", stops_work=True,
        note="XID 79, then the GPU's series end while its node's other GPUs report",
    ),
    FaultKind.VANISHED: Traits(
        findings=(FindingKind.GPU_MISSING,), hours=12, sigma=0.5, repair="reboot", stops_work=True,
        note="the GPU's series end without an XID while its node's other GPUs report",
    ),
    FaultKind.DOUBLE_BIT: Traits(
        findings=(FindingKind.XID,), hours=10, sigma=0.5, repair="reset", remaps=True, stops_work=True,
        fails_watch=True, note="XID 48 and an uncorrectable ECC error",
    ),
    # The gauge shows one XID 119 as it shows ten; only counts tell that it repeats.
    FaultKind.GSP_TIMEOUT: Traits(
        findings=(FindingKind.XID,), hours=9, sigma=0.5, repair="reboot", extended=True, stops_work=True,
        note="XID 119 again and again",
    ),
    FaultKind.ROW_REMAP_PENDING: Traits(
        findings=(FindingKind.ROW_REMAP,), hours=30, sigma=0.5, repair="reset", remaps=True,
        note="XID 63; a row remapping waits for a reset",
    ),
    FaultKind.ROW_REMAP_FAILED: Traits(
        findings=(FindingKind.XID, FindingKind.ROW_REMAP), hours=float("inf"), sigma=0, remaps=True, stops_work=True,
        fails_watch=True, note="XID 64; a row could not be remapped",
    ),
    FaultKind.RECOVERY_RESET: Traits(
        findings=(FindingKind.RECOVERY_ACTION,), hours=8, sigma=0.5, repair="reset", extended=True, stops_work=True,
        fails_watch=True, note="the driver asks for a reset of the GPU",
    ),
    FaultKind.RECOVERY_REBOOT: Traits(
        findings=(FindingKind.RECOVERY_ACTION,), hours=10, sigma=0.5, repair="reboot", extended=True, stops_work=True,
        fails_watch=True, note="the driver asks for a reboot of the node",
    ),
    FaultKind.PCIE_REPLAYS: Traits(
        findings=(FindingKind.PCIE_REPLAY,), hours=40, sigma=0.4,
        note="PCIe replays far above what the link explains",
    ),
    FaultKind.NVLINK_ERRORS: Traits(
        findings=(FindingKind.NVLINK_ERRORS,), hours=36, sigma=0.4, extended=True, fails_watch=True,
        note="NVLink CRC, replay and recovery errors",
    ),
    FaultKind.OVERHEATING: Traits(
        findings=(FindingKind.THERMAL_THROTTLE,), hours=24, sigma=0.4, extended=True, follows_job=True,
        note="hotter at equal power until it throttles",
    ),
    FaultKind.POWER_BRAKE: Traits(
        findings=(FindingKind.POWER_BRAKE,), hours=8, sigma=0.6, extended=True, whole_node=True,
        note="the power supply brakes every GPU of the node",
    ),
    FaultKind.HUNG: Traits(
        findings=(FindingKind.HUNG,), hours=12, sigma=0.5, follows_job=True,
        note="a kernel that never ends: busy, near idle power, no memory traffic",
    ),
    FaultKind.EXPORTER_DOWN: Traits(
        findings=(FindingKind.EXPORTER_DOWN,), hours=3, sigma=0.6, whole_node=True,
        note="the exporter does not answer; its GPUs work on",
    ),
    FaultKind.NODE_GONE: Traits(
        findings=(FindingKind.EXPORTER_DOWN,), hours=10, sigma=0.5, whole_node=True, stops_work=True,
        note="the node is gone, and its exporter with it",
    ),
    FaultKind.TELEMETRY_MISSING: Traits(
        findings=(FindingKind.TELEMETRY_MISSING,), hours=0.45, sigma=0.3,
        note="no exporter answers: the network, not the GPUs",
    ),
    FaultKind.APPLICATION_XID: Traits(
        findings=(FindingKind.XID,), hours=1, sigma=0, follows_job=True, harmless=True,
        note="XID 13 or 31 on all GPUs of one job: the application's fault",
    ),
    FaultKind.TEARDOWN_XID: Traits(
        findings=(FindingKind.XID,), hours=1, sigma=0, follows_job=True, harmless=True,
        note="XID 45 on all GPUs of a job that was killed",
    ),
    FaultKind.PROCESS_XID: Traits(
        findings=(FindingKind.XID,), hours=1, sigma=0, follows_job=True, harmless=True, note="XID 43 of one process",
    ),
    FaultKind.POWER_CAP: Traits(
        findings=(FindingKind.POWER_BRAKE, FindingKind.THERMAL_THROTTLE), hours=1, sigma=0, extended=True,
        follows_job=True, harmless=True,
        note="the card draws its limit at full load: the software power cap is normal",
    ),
    FaultKind.DRIVER_RELOAD: Traits(
        findings=(FindingKind.ECC, FindingKind.PCIE_REPLAY, FindingKind.NVLINK_ERRORS), hours=0.3, sigma=0.2,
        whole_node=True, harmless=True, note="the driver was reloaded: every counter began again at zero",
    ),
}  # fmt: skip
