"""InfiniBand ports that are down, slow or have many errors, by node_exporter. The kernel lists RoCE ports there too."""

import math
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from itertools import chain
from statistics import median

from gpuwatch.facts.model.decision import Evidence, FindingKind, Severity
from gpuwatch.judge.fleet import Fleet, Tells, on_node
from gpuwatch.judge.places import slow_places, together_finding
from gpuwatch.judge.rule import NO_PORTS, Ask, Judged, Rule

_TELLS = Tells(
    FindingKind.INFINIBAND,
    "a port of the Node's InfiniBand or RoCE is down, slow or has many errors",
    "warning: inspect",
)

_SECONDS = 6 * 3600
_STATE, _RATE = "node_infiniband_state_id:max:300", "node_infiniband_rate_bytes_per_second:max:300"
_BEFORE = {now: f"{now.removesuffix('300')}{_SECONDS}" for now in (_STATE, _RATE)}
_SYMBOLS = f"node_infiniband_symbol_error_total:increase:{_SECONDS}"
_ERRORS = {
    f"node_infiniband_link_downed_total:increase:{_SECONDS}": "went down again and again",
    f"node_infiniband_link_error_recovery_total:increase:{_SECONDS}": "recovered from errors again and again",
    _SYMBOLS: "has more symbol errors than InfiniBand allows",
}
STATISTICS = (_STATE, _RATE, *_BEFORE.values(), *_ERRORS)
"""What the rule reads of each port, as `metric:function:seconds`."""
_ACTIVE = 4.0  # node_exporter's state ids: 1 down, 2 init, 3 armed
_FLAPS = 3.0
"""Above the median of all ports. gpud calls a port flapping that came back to active three times in twelve hours."""
_BIT_ERROR_RATIO = 1e-12
"""The specification's bound, by NVIDIA's guide to the cabling of data centers. The median of all ports is added."""


class _Asked:
    def __init__(self, ask: Ask) -> None:
        ask.port_stats = STATISTICS


def infiniband(fleet: Fleet, _: _Asked) -> Judged:
    """One finding per Node, and one on the fleet for a fault of half a place. UNKNOWN: cable or switch may have it."""
    sick: dict[str, dict[str, list[Evidence]]] = defaultdict(lambda: defaultdict(list))
    for words, node, fact in _signs(fleet):
        sick[words][node].append(fact)
    least = fleet.policy.fleet_wide_ratio * len(fleet.snapshot.infiniband)
    at_fault = ["whether the adapter, the cable or the switch is at fault"]
    found = partial(together_finding, _TELLS, severity=Severity.WARNING, missing=at_fault)
    said: list[str] = []
    shared: dict[str, list[Evidence]] = defaultdict(list)
    alone: dict[str, list[Evidence]] = defaultdict(list)
    for words, nodes in sick.items():
        for place in slow_places(fleet, [gpu for node in nodes for gpu in fleet.at_home[node]], fleet.gpus):
            if place.place or len(place.machines) >= least:
                said.append(f"{len(place.machines)} Nodes of {place.place or 'the fleet'} have a port that {words}")
                for node in place.machines:
                    shared[node] += nodes.pop(node)
        for node, facts in nodes.items():
            alone[node] += facts
    together = found(said, [gpu for node in shared for gpu in fleet.at_home[node]], evidence=chain(*shared.values()))
    for node, facts in alone.items():
        notes = [fact.note for fact in facts]
        together += found(notes, fleet.at_home[node], on=on_node(node), node=node, evidence=facts)
    words, missing = "working ports do not prove a GPU healthy", ["failed ports"]
    return Judged(lambda gpu: fleet.unknown(gpu, _TELLS, words, missing), together)


def _signs(fleet: Fleet) -> Iterator[tuple[str, str, Evidence]]:
    """What is wrong with a port, its Node, and the evidence. State and rate are compared with the port's own past, and
    with ports of its name on Nodes of its pool and GPU model: many ports are never connected, and storage ports may be
    slower."""
    cohorts: dict[tuple[str, ...], list[float]] = defaultdict(list)
    rows = []
    ports = ((node, *port) for node, found in fleet.snapshot.infiniband.items() for port in found.items())
    for node, name, stats in ports:
        for stat, value in stats.items() if _STATE in stats and node in fleet.nodes and node in fleet.at_home else ():
            kin = () if stat in _ERRORS else (name, fleet.nodes[node].pool, fleet.at_home[node][0].model)
            cohorts[stat, *kin].append(value)
            rows.append((node, name, stats, stat, value, cohorts[stat, *kin]))
    for node, name, stats, stat, value, cohort in rows:
        usual, up = median(cohort), stats[_STATE] >= _ACTIVE
        if stat in _ERRORS:
            allowed = stats.get(_RATE, math.inf) * 8 * _SECONDS * _BIT_ERROR_RATIO if stat == _SYMBOLS else _FLAPS
            bound, words, comparison, bad = usual + allowed, _ERRORS[stat], ">=", value >= usual + allowed
        elif stat in _BEFORE:
            best = max(stats.get(_BEFORE[stat], value), usual if len(cohort) > fleet.policy.min_peers else 0.0)
            bound, words = (best, "is slower than before or than elsewhere") if up else (_ACTIVE, "is not active")
            comparison, bad = "<", value < bound <= best and up == (stat == _RATE)
        else:
            continue
        if bad:
            metric, function, seconds = stat.split(":")
            query = '{}({}{{device="{}",port="{}"}}[{}s])'
            asked = query.format("increase" if stat in _ERRORS else "max_over_time", metric, *name.split("/"), seconds)
            fact = partial(Evidence, signal=metric, statistic=function, window_seconds=int(seconds), promql=asked)
            peers, note = len(cohort) - 1, f"port {name} of {node} {words}"
            held = partial(fact, comparison=comparison, bound=bound, peers_median=usual, peers=peers)
            yield words, node, held(value=value, note=note)


INFINIBAND = Rule(tells=(_TELLS,), needs=_Asked, judge=infiniband, assesses=False, unshown=NO_PORTS)
