"""One event that several rules see counts once."""

from itertools import permutations

import pytest

from gpuwatch.facts.catalog.xids import XidClass, xids
from gpuwatch.facts.model.decision import Component, Family, Finding, FindingKind, Subject, SubjectKind, Verdict
from gpuwatch.judge.components import XID_COMPONENTS, combined_confidence, events, independent


def finding(kind: FindingKind, confidence: float, *components: Component) -> Finding:
    return Finding(
        rule=f"health.{kind}",
        family=Family.HEALTH,
        kind=kind,
        subject=Subject(SubjectKind.DEVICE, "GPU-0"),
        verdict=Verdict.DEGRADED,
        summary="",
        confidence_ratio=confidence,
        components=components,
    )


ECC = finding(FindingKind.ECC, 0.95, Component.MEMORY)
WATCH = finding(FindingKind.DCGM_HEALTH, 0.85, Component.MEMORY)
XID = finding(FindingKind.XID, 0.9, Component.MEMORY)
REPLAYS = finding(FindingKind.PCIE_REPLAY, 0.75, Component.PCIE)
DRIVER = finding(FindingKind.RECOVERY_ACTION, 0.98)


def test_a_double_bit_error_that_three_rules_see_counts_once() -> None:
    assert len(events([ECC, WATCH, XID])) == 1
    assert combined_confidence([ECC, WATCH, XID]) == pytest.approx(0.95)


def test_two_events_count_twice_and_a_judgement_is_no_event_of_its_own() -> None:
    assert combined_confidence([ECC, REPLAYS]) == pytest.approx(1 - 0.05 * 0.25)
    assert combined_confidence([ECC, DRIVER]) == pytest.approx(0.98)
    assert combined_confidence([DRIVER]) == pytest.approx(0.98)
    assert combined_confidence([]) == 0


def test_a_finding_on_two_components_joins_what_it_touches() -> None:
    both = finding(FindingKind.DCGM_HEALTH, 0.5, Component.MEMORY, Component.PCIE)
    for order in permutations([ECC, REPLAYS, both]):
        assert len(events(order)) == 1


def test_what_is_independent_of_an_event_in_memory() -> None:
    assert independent(REPLAYS, [Component.MEMORY])
    assert not independent(WATCH, [Component.MEMORY])
    assert not independent(DRIVER, [Component.MEMORY])


def test_xids_that_only_follow_another_event_have_no_component_and_fatal_hardware_has() -> None:
    assert not {45, 154, 162} & set(XID_COMPONENTS)
    assert set(XID_COMPONENTS) <= set(xids())
    untold = {code for code, known in xids().items() if known.xid_class is XidClass.FATAL} - set(XID_COMPONENTS)
    assert untold == {46, 110, 142, 151, 156, 158}, "their descriptions name no part of the GPU"
