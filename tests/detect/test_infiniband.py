"""Ports of InfiniBand that are down, slow or have many errors, and what only looks like one."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from detect.builders import cluster, findings, machines, scene
from gpuwatch.facts.model.decision import Advice, Finding, FindingKind, Severity, Verdict

NODES = 8
STATE, RATE = "node_infiniband_state_id", "node_infiniband_rate_bytes_per_second"
DOWNED, RECOVERY = "node_infiniband_link_downed_total", "node_infiniband_link_error_recovery_total"
SYMBOLS = "node_infiniband_symbol_error_total"
NDR = 5e10  # 400 Gbit/s


def port(
    *, state: float = 4, state_before: float = 4, rate: float = NDR, rate_before: float = NDR, **errors: float
) -> dict[str, float]:
    growth = {DOWNED: errors.get("downed", 0), RECOVERY: errors.get("recoveries", 0), SYMBOLS: errors.get("symbols", 0)}
    return {
        f"{STATE}:max:300": state,
        f"{STATE}:max:21600": state_before,
        f"{RATE}:max:300": rate,
        f"{RATE}:max:21600": rate_before,
        **{f"{metric}:increase:21600": value for metric, value in growth.items()},
    }


def found(
    ports: Mapping[int, Mapping[str, float]], *, nodes: int = NODES, usual: Mapping[str, float] | None = None
) -> dict[str, Finding]:
    """usual: of the Nodes that `ports` does not name."""
    state = cluster(nodes=[f"node-{number}" for number in range(nodes)])
    shown = {f"node-{number}": {"mlx5_0/1": ports.get(number, usual or port())} for number in range(nodes)}
    snapshot = replace(scene(machines(nodes, 2), state=state), infiniband=shown)
    return {str(each.subject): each for each in findings(snapshot).values() if each.kind is FindingKind.INFINIBAND}


@pytest.mark.parametrize(
    ("sick", "words"),
    [
        (port(state=1), "is not active"),
        (port(state=1, state_before=1), "is not active"),
        (port(state=2), "is not active"),
        (port(rate=NDR / 2), "is slower than before or than elsewhere"),
        (port(rate=NDR / 2, rate_before=NDR / 2), "is slower than before or than elsewhere"),
        (port(downed=3), "went down again and again"),
        (port(recoveries=3), "recovered from errors again and again"),
        (port(symbols=8641), "has more symbol errors than InfiniBand allows"),
    ],
)
def test_a_port_that_differs_from_its_peers(sick: Mapping[str, float], words: str) -> None:
    [(subject, finding)] = found({0: sick}).items()
    assert subject == "node/node-0"
    assert (finding.verdict, finding.severity, finding.advice) == (Verdict.UNKNOWN, Severity.WARNING, Advice.INSPECT)
    assert finding.confidence_ratio == 0.0  # shown, and never acted on
    assert finding.summary == f"port mlx5_0/1 of node-0 {words}"
    assert (finding.node, finding.devices) == ("node-0", ("gpu-0-0", "gpu-0-1"))
    [fact] = finding.evidence
    assert fact.peers == NODES - 1
    assert f'{fact.signal}{{device="mlx5_0",port="1"}}[{fact.window_seconds}s])' in fact.promql


@pytest.mark.parametrize(
    ("sick", "usual"),
    [
        (port(downed=2, recoveries=2), port()),
        (port(symbols=8639), port()),  # 400 Gbit/s × 6 h / 10^12 = 8640
        (port(state=1, state_before=1, rate=1.25e9), port(state=1, state_before=1, rate=1.25e9)),  # not connected
        (port(downed=4), port(downed=2)),  # maintenance
        ({}, port()),
        ({f"{STATE}:max:21600": 4.0}, port()),  # the port is no longer shown
        ({f"{STATE}:max:300": 4.0}, port()),
    ],
)
def test_what_is_no_sign(sick: Mapping[str, float], usual: Mapping[str, float]) -> None:
    assert found({0: sick}, usual=usual) == {}


def test_few_peers_prove_nothing_but_the_past_does() -> None:
    assert found({0: port(state=1, state_before=1), 1: port(rate=NDR / 2, rate_before=NDR / 2)}, nodes=5) == {}
    assert list(found({0: port(state=1), 1: port(rate=NDR / 2)}, nodes=5)) == ["node/node-0", "node/node-1"]


def test_three_of_eight_nodes_with_the_same_are_one_finding_and_a_fourth_with_another_is_its_own() -> None:
    shown = found({0: port(state=1), 1: port(state=1), 2: port(state=1, downed=9), 5: port(rate=NDR / 4)})
    assert list(shown) == ["fleet/fleet", "node/node-2", "node/node-5"]
    assert shown["fleet/fleet"].summary == "3 Nodes of the fleet have a port that is not active"
    assert shown["fleet/fleet"].devices[:2] == ("gpu-0-0", "gpu-0-1")
    assert shown["fleet/fleet"].verdict is Verdict.UNKNOWN
    assert shown["fleet/fleet"].evidence[0].note == "port mlx5_0/1 of node-0 is not active"
    assert shown["node/node-2"].summary == "port mlx5_0/1 of node-2 went down again and again"


def test_nothing_is_said_of_nodes_without_gpus_and_of_other_clusters() -> None:
    state = cluster(nodes=["node-0", "bare"])
    shown = {name: {"mlx5_0/1": port(state=1)} for name in ("bare", "elsewhere")}
    snapshot = replace(scene(machines(1, 2), state=state), infiniband=shown)
    assert not [each for each in findings(snapshot).values() if each.kind is FindingKind.INFINIBAND]
