"""What a page has to show of each kind of finding before gpuwatch ends Pods by itself."""

import pytest

from gpuwatch.act.execute.source import UNSHOWN, facts_of, not_shown
from gpuwatch.act.plan.candidates import TAINTING
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.facts.model.decision import Evidence, FindingKind, Verdict
from gpuwatch.facts.model.telemetry import Signal, SourceRead
from gpuwatch.judge.health.assess import RULES
from plan.fleet import device, idle, node, sick, snapshot

MINE, OTHER = device("n0", 0), device("n0", 1)
XID, COUNT, BUSY, CODE = Signal.XID_CODE, Signal.XID_WINDOW_COUNT, Signal.BUSY_RATIO, Signal.RECOVERY_ACTION_CODE
REMAP, DBE, WATCH = Signal.ROW_REMAP_FAILED_STATE, Signal.ECC_DBE_VOLATILE_TOTAL, Signal.HEALTH_STATUS_CODE
VENDOR, SBE = Signal.VENDOR_HEALTHY_STATE, Signal.ECC_SBE_VOLATILE_TOTAL


def fact(signal: Signal, value: float, comparison: str = "", bound: float | None = None, **more: str) -> Evidence:
    return Evidence(
        signal=signal,
        value=value,
        comparison=comparison,
        bound=bound,
        **{"statistic": "last", **more},  # type: ignore[arg-type]
    )


def read(**values: dict[Signal, float | dict[str, float]]) -> SourceRead:
    """Of GPUs by `mine` and `other`."""
    ids = {"mine": MINE.id, "other": OTHER.id}
    told = {
        (ids[name], signal): value if isinstance(value, dict) else {"": value}
        for name, shown in values.items()
        for signal, value in shown.items()
    }
    return SourceRead("http://n0", frozenset(ids[name] for name in values), told)


GAUGE = fact(XID, 79.0, note="became this value; no XID before")
WINDOW = fact(COUNT, 2.0, ">", 0.0, statistic="increase", note="XID 79; 2 at least")


@pytest.mark.parametrize(
    ("kind", "evidence", "mine", "shown"),
    [
        ("xid", [GAUGE], {XID: 79.0}, True),
        ("xid", [GAUGE], {XID: 0.0}, False),
        ("xid", [GAUGE], {XID: 13.0}, False),
        ("xid", [GAUGE], {XID: 154.0, COUNT: {"79": 1.0, "154": 1.0}}, True),
        ("xid", [WINDOW], {COUNT: {"79": 1.0}}, True),
        ("xid", [WINDOW], {COUNT: {"79": 0.0, "13": 4.0}}, False),
        ("xid", [WINDOW], {XID: 79.0}, True),
        ("xid", [GAUGE, fact(XID, 13.0)], {XID: 13.0}, False),
        ("recovery_action", [fact(CODE, 2.0, "!=", 0.0)], {CODE: 2.0}, True),
        ("recovery_action", [fact(CODE, 2.0, "!=", 0.0)], {CODE: 3.0}, False),
        ("row_remap", [fact(REMAP, 1.0, ">=", 1.0)], {REMAP: 1.0}, True),
        ("row_remap", [fact(REMAP, 1.0, ">=", 1.0)], {REMAP: 0.0}, False),
        ("row_remap", [fact(REMAP, 1.0, ">=", 1.0)], {XID: 64.0}, False),
        ("ecc", [fact(DBE, 1.03, ">", 0.0, statistic="increase")], {DBE: 1.0}, True),
        ("ecc", [fact(DBE, 1.03, ">", 0.0, statistic="increase")], {DBE: 0.0}, False),
        ("ecc", [fact(DBE, 1.0, ">", 0.0), fact(CODE, 2.0, "==", 2.0)], {DBE: 1.0, CODE: 0.0}, False),
        ("ecc", [fact(SBE, 3.0, statistic="count")], {SBE: 3.0}, False),
        ("dcgm_health", [fact(WATCH, 20.0, ">=", 20.0)], {WATCH: {"PCIE;X": 20.0, "MEM;Y": 0.0}}, True),
        ("dcgm_health", [fact(WATCH, 20.0, ">=", 20.0)], {WATCH: {"PCIE;X": 10.0}}, False),
        ("vendor_health", [fact(VENDOR, 0.0, "==", 0.0, statistic="max")], {VENDOR: 0.0}, True),
        ("vendor_health", [fact(VENDOR, 0.0, "==", 0.0, statistic="max")], {VENDOR: 1.0}, False),
        ("gpu_missing", [], None, True),
        ("gpu_missing", [], {XID: 0.0}, False),
    ],
)
def test_a_fault(
    kind: str, evidence: list[Evidence], mine: dict[Signal, float | dict[str, float]] | None, shown: bool
) -> None:
    found = sick(MINE, kind=FindingKind(kind), evidence=tuple(evidence))
    facts = PlanFacts(snapshot=snapshot([node("n0")], [MINE, OTHER]), findings=(found,))
    pages = {"other": {XID: 0.0}} if mine is None else {"mine": mine, "other": {XID: 0.0}}
    why = not_shown([found.id], facts, {"n0": read(**pages)}, 0.01, True)
    assert (why == "") is shown, why
    if not shown:
        assert MINE.id in why
    unread = {"n0": SourceRead(failed="No answer.")}
    assert not_shown([found.id], facts, unread, 0.01, True) == "No answer."
    assert not_shown([found.id], facts, unread, 0.01, False) == ""
    assert "was not read" in not_shown([found.id], facts, {}, 0.01, True)
    assert not_shown([found.id], facts, {"n0": SourceRead("http://n0")}, 0.01, True) == "http://n0 shows no GPU."


@pytest.mark.parametrize(
    ("mine", "other", "why"),
    [
        (0.0, 0.01, ""),
        (0.0, 0.4, "shows 0.4 as busy_ratio of GPU-n0-1, where <= 0.01 is needed"),
        (0.0, None, "does not show GPU-n0-1"),
    ],
)
def test_each_device_of_what_is_idle_has_to_be_idle(mine: float, other: float | None, why: str) -> None:
    found = idle("ml/chat", [MINE, OTHER])
    facts = PlanFacts(snapshot=snapshot([node("n0")], [MINE, OTHER]), findings=(found,))
    pages = {"mine": {BUSY: mine}} | ({} if other is None else {"other": {BUSY: other}})
    assert not_shown([found.id], facts, {"n0": read(**pages)}, 0.01, True) == (f"http://n0 {why}." if why else "")


def test_one_of_several_faults_is_enough_and_what_no_read_can_show_asks_nothing() -> None:
    forged = sick(MINE, evidence=(GAUGE,))
    real = sick(OTHER, kind=FindingKind.ROW_REMAP, evidence=(fact(REMAP, 1.0, ">=", 1.0),))
    slow = sick(OTHER, kind=FindingKind.THERMAL_THROTTLE)
    facts = PlanFacts(snapshot=snapshot([node("n0")], [MINE, OTHER]), findings=(forged, real, slow))
    reads = {"n0": read(mine={XID: 0.0}, other={REMAP: 1.0})}
    assert not_shown([forged.id, real.id], facts, reads, 0.01, True) == ""
    assert "shows 0 as xid_code" in not_shown([forged.id, slow.id], facts, reads, 0.01, True)
    assert not_shown([slow.id], facts, {}, 0.01, True) == ""


def test_a_kind_that_says_nothing_has_to_be_shown_and_a_reason_is_a_sentence() -> None:
    """So a new kind that may end Pods needs a read unless its rule says why none can show it."""
    acting = {
        told.kind: rule.unshown
        for rule in RULES
        for told in rule.tells
        if any(advice in told.advice.replace(";", ",").replace(":", ",") for advice in TAINTING)
    }
    shown = {kind for kind, reason in acting.items() if not reason}
    always = {FindingKind.GPU_MISSING, FindingKind.RECOVERY_ACTION, FindingKind.DCGM_HEALTH, FindingKind.VENDOR_HEALTH}
    of_memory = {FindingKind.ECC, FindingKind.ROW_REMAP, FindingKind.PAGE_RETIREMENT}
    assert shown == always | of_memory | {FindingKind.XID, FindingKind.BOARD}
    assert all(reason.startswith(("it ", "a ")) and not reason.endswith(".") for reason in UNSHOWN.values())
    nothing = sick(MINE, kind=FindingKind.BOARD, verdict=Verdict.DEGRADED)
    assert facts_of(nothing, 0.01) == ()
    facts = PlanFacts(snapshot=snapshot([node("n0")], [MINE]), findings=(nothing,))
    assert "rests on no value of now" in not_shown([nothing.id], facts, {"n0": read(mine={XID: 0.0})}, 0.01, True)
