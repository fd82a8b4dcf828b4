"""XIDs: NVIDIA's catalog, other authorities' verdicts, and what gpuwatch concludes from the number alone.

`xids.json` has the numbers, NVIDIA's actions and the verdicts, each with its source. gpuwatch's own class is derived
here from a comparison of nine authorities, which do not agree.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from types import MappingProxyType
from typing import Any

from gpuwatch.catalog.tables import CatalogError, packaged, read_json


class XidAction(StrEnum):
    """The immediate action in NVIDIA's catalog."""

    RESTART_APP = "RESTART_APP"
    IGNORE = "IGNORE"
    RESET_GPU = "RESET_GPU"
    RESTART_BM = "RESTART_BM"  # power-cycle the machine
    RESTART_VM = "RESTART_VM"
    CHECK_MECHANICALS = "CHECK_MECHANICALS"
    CHECK_UVM = "CHECK_UVM"
    UPDATE_SWFW = "UPDATE_SWFW"
    CONTACT_SUPPORT = "CONTACT_SUPPORT"
    WORKFLOW_XID_45 = "WORKFLOW_XID_45"
    WORKFLOW_XID_48 = "WORKFLOW_XID_48"
    WORKFLOW_NVLINK_ERR = "WORKFLOW_NVLINK_ERR"
    WORKFLOW_NVLINK5_ERR = "WORKFLOW_NVLINK5_ERR"
    XID_154 = "XID_154"  # the driver's recovery action decides
    NONE_GIVEN = "NONE_GIVEN"  # listed without an action


class XidClass(StrEnum):
    """What the number alone proves about the hardware."""

    FATAL = "fatal"  # the GPU is unusable until it is reset, rebooted or replaced
    CORROBORATE = "corroborate"  # a fault only with a second sign: a recovery action, DCGM health, a counter, a repeat
    APPLICATION = "application"  # the program's fault; the hardware's only if different programs show it on one GPU
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True)
class Opinion:
    """Verdict of one authority other than NVIDIA's catalog. acts: whether it acts on the GPU or its Node; None where
    that depends on more than the number."""

    authority: str
    acts: bool | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    """One XID. xid_class: gpuwatch's, by `rule` (its name) and for `reason` (a clause for people).

    architectures: those of A100, H100, B100, GB200 that raise it.
    repeat_is_fatal: a second one on the same GPU within the rule's window counts as FATAL.
    """

    code: int
    description: str
    architectures: tuple[str, ...]
    action: XidAction
    others: tuple[Opinion, ...]
    xid_class: XidClass
    repeat_is_fatal: bool = False
    rule: str
    reason: str
    source: str


@cache
def xids() -> Mapping[int, Xid]:
    return MappingProxyType(parse_xids(packaged("xids.json"), "xids.json"))


def conflicts(xid: Xid) -> str:
    """The authorities' verdicts as one sentence; '' unless one acts and another does not.

    >>> conflicts(xids()[109])[:60]
    'NVIDIA: RESET_GPU; the device plugin ignores it; NVSentinel:'
    """
    stances = {opinion.acts for opinion in xid.others} | {_NVIDIA_ACTS.get(xid.action)}
    if not {True, False} <= stances:
        return ""
    action = "no action given" if xid.action is XidAction.NONE_GIVEN else xid.action.value
    return "; ".join((f"NVIDIA: {action}", *(opinion.text for opinion in xid.others)))


_NVIDIA_ACTS: Mapping[XidAction, bool] = {
    XidAction.RESTART_APP: False,
    XidAction.IGNORE: False,
    XidAction.RESET_GPU: True,
    XidAction.RESTART_BM: True,
    XidAction.RESTART_VM: True,
    XidAction.CHECK_MECHANICALS: True,
    XidAction.CONTACT_SUPPORT: True,
    XidAction.WORKFLOW_XID_48: True,
}
"""Whether NVIDIA's immediate action is on GPU or Node. The other actions depend on more than the number."""

_FATAL: Mapping[int, str] = {
    46: "the GPU stopped and NVIDIA asks for a reset",
    48: "an uncorrectable memory error: NVIDIA asks to drain and reset",
    54: "auxiliary power is missing: somebody has to look at the board",
    62: "a micro-controller halted: only a reset brings it back",
    64: "a memory row could not be remapped: the fault stays in use until a reset",
    79: "the GPU is off the bus: only a power cycle brings it back",
    95: "a memory error was not contained: every process on the GPU may have wrong data",
    110: "a security fault: NVIDIA asks for a reset",
    136: "a link could not be trained: NVIDIA asks for a reset",
    140: "an ECC error was not recovered: NVIDIA asks for a reset",
    142: "NVIDIA gives no way to recover but its support",
    143: "the GPU did not initialize: NVIDIA asks for a reset",
    151: "the keys could not be rotated: only a restart of the machine helps",
    155: "an NVLink fault that NVIDIA answers with a reset",
    156: "a memory resource was retired: it takes a reset to be out of use",
    158: "a fatal timeout in the GPU: NVIDIA asks for a reset",
}

_CORROBORATE: Mapping[int, str] = {
    45: "clean-up after another error: follow that one",
    63: "the memory repaired itself, or will at the next reset",
    74: "an NVLink error whose registers decide, and they are not in the telemetry",
    92: "a high rate of corrected errors: a trend to watch, nothing to act on at once",
    94: "a contained memory error: the program is lost, the GPU may go on",
    109: "a context switch timed out: NVIDIA asks for a reset, but a program's hang looks the same",
    119: "the GSP did not answer once: a hiccup of the firmware, unless it repeats or the driver asks for an action",
    120: "a GSP error: a hiccup of the firmware, unless it repeats or the driver asks for an action",
    121: "a corrected error on the link to the CPU: nothing to act on at once",
    154: "the driver's recovery action changed: read that, it says what is needed",
}
_REPEAT_IS_FATAL = frozenset({119, 120})
_NVLINK5 = range(144, 151)

_APPLICATION: Mapping[int, str] = {
    8: "the GPU stopped on a program's work",
    13: "a program used memory or instructions that it may not use",
    31: "a program touched memory that is not its own",
    32: "a program's command stream was corrupted",
    43: "a program's fault stopped its channel; the GPU itself goes on",
    68: "the video decoder got a stream that it cannot read",
    69: "a program gave the graphics engine a wrong command",
    137: "a program used NVLink in a way that it may not",
}


def _classify(code: int, action: XidAction, decoded: Mapping[str, int]) -> tuple[XidClass, str, str]:
    """Class, rule and reason: first from the lists above, which hold across the authorities, then from NVIDIA's
    immediate action. Without either, the XID needs a second sign."""
    if code in _FATAL:
        return XidClass.FATAL, "fatal on sight", _FATAL[code]
    if code in _NVLINK5:
        rows = ", ".join(f"{count} {name}" for name, count in sorted(decoded.items()))
        return (
            XidClass.CORROBORATE,
            "only with corroboration",
            f"the number decides nothing: its decode rows say {rows}",
        )
    if code in _CORROBORATE:
        return XidClass.CORROBORATE, "only with corroboration", _CORROBORATE[code]
    if code in _APPLICATION:
        return XidClass.APPLICATION, "application first", _APPLICATION[code]
    if action is XidAction.RESTART_APP:
        return (
            XidClass.APPLICATION,
            "NVIDIA: RESTART_APP",
            "NVIDIA asks to restart the program and deems no reset necessary",
        )
    if action is XidAction.IGNORE:
        return XidClass.IGNORE, "NVIDIA: IGNORE", "NVIDIA asks for no action"
    if action is XidAction.NONE_GIVEN:
        return XidClass.CORROBORATE, "no verdict", "NVIDIA lists it without an action"
    return XidClass.CORROBORATE, f"NVIDIA: {action}", "NVIDIA's action depends on more than the number"


def parse_xids(text: str, file: str) -> dict[int, Xid]:
    """XIDs by number. Raises CatalogError that names the file, the XID and the problem."""
    tables = read_json(text, file)
    found: dict[int, Xid] = {}
    where = "the top level"
    try:
        source = tables["source"]
        authorities = tables["authorities"]
        for position, entry in enumerate(tables["xids"], 1):
            where = f"entry {position}"
            code = _new_code(entry["code"], found)
            where = f"XID {code}"
            found[code] = _xid(entry, authorities, source)
    except (KeyError, TypeError, AttributeError, ValueError) as problem:
        what = f"{problem.args[0]!r} is missing; add it" if isinstance(problem, KeyError) else str(problem)
        raise CatalogError(f"{file}, {where}", what) from None
    return found


def _new_code(code: object, found: Mapping[int, Xid]) -> int:
    if type(code) is not int:
        raise ValueError(f"the code {code!r} is no whole number")
    if code in found:
        raise ValueError(f"XID {code} stands twice; keep one")
    return code


def _xid(entry: Mapping[str, Any], authorities: Mapping[str, Any], source: str) -> Xid:
    code = entry["code"]
    action = XidAction(entry["action"])
    xid_class, rule, reason = _classify(code, action, entry.get("decoded_actions", {}))
    opinions = []
    for authority, verdict in entry["others"].items():
        known = authorities[authority]["verdicts"]
        if verdict not in known:
            raise ValueError(f"{authority} has no verdict {verdict!r}; it has {', '.join(known)}")
        opinions.append(Opinion(authority, known[verdict]["acts"], known[verdict]["text"]))
    return Xid(
        code=code,
        description=entry["description"],
        architectures=tuple(entry["architectures"]),
        action=action,
        others=tuple(opinions),
        xid_class=xid_class,
        repeat_is_fatal=code in _REPEAT_IS_FATAL,
        rule=rule,
        reason=reason,
        source=source,
    )
