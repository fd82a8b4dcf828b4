"""The kinds of faults that can be planted: the findings they should lead to, what they need, and what they change."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

import msgspec

from gpuwatch.facts.model.decision import FindingKind
from lab.simulate.tables import read_table


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


class Traits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row of faults.csv. findings: kinds that it should lead to, or for a harmless one must not lead to.

    hours: the median time until it is repaired, inf for never; sigma: of its logarithm.
    xid: that it begins with; 0 for none. state, watch: what changes while it lasts: a state of CardScript.states, and a
    health watch of DCGM with its status (10 warn, 20 fail) and error code.
    extended: planted only where the exporter has more than its default list; ten XIDs 119 look like one on the gauge.
    remaps: needs a card that can remap rows. stops_work: the job that runs there dies with it. follows_job: needs the
    right work at the right time. harmless: must not be taken for a broken GPU.
    """

    kind: FaultKind
    findings: tuple[FindingKind, ...]
    hours: float
    sigma: float
    repair: Literal["", "reset", "reboot"] = ""
    xid: int = 0
    state: str = ""
    state_value: int = 1
    watch: str = ""
    watch_status: int = 0
    watch_error: str = ""
    extended: bool = False
    remaps: bool = False
    whole_node: bool = False
    stops_work: bool = False
    follows_job: bool = False
    harmless: bool = False
    note: str


FAULTS: Mapping[FaultKind, Traits] = {traits.kind: traits for traits in read_table("faults.csv", Traits)}
