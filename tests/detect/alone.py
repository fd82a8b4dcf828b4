"""Whether each health rule says the same with its own statistics alone as with those that all rules ask for."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from detect.builders import POLICY
from gpuwatch.facts.model.decision import Snapshot
from gpuwatch.facts.model.faults import FaultMemory
from gpuwatch.judge.fleet import Fleet
from gpuwatch.judge.health.assess import RULES, conclusions
from gpuwatch.judge.rule import Rule


def with_others(snapshot: Snapshot, memory: FaultMemory | None = None) -> list[str]:
    """The rules that say something else where nothing is read but what they declare."""
    whole = Fleet(snapshot, POLICY, everything=True, memory=memory)
    odd = []
    for rule in RULES:
        alone = Fleet(_own(snapshot, rule), POLICY, everything=True, memory=memory)
        alone.against = defaultdict(list, {uuid: list(found) for uuid, found in whole.against.items()})
        alone.assessed = set(whole.assessed)
        if conclusions(alone, rule) != conclusions(whole, rule):
            odd.append(rule.name)
    return odd


def _own(snapshot: Snapshot, rule: Rule[Any]) -> Snapshot:
    asked = rule.asked(POLICY)
    keys = {stat.key for stat in asked.stats}

    def own(answers: Mapping[str, Any]) -> dict[str, Any]:
        return {key: found for key, found in answers.items() if key in keys}

    readings = replace(
        snapshot.readings, values=own(snapshot.readings.values), variants=own(snapshot.readings.variants)
    )
    changes = tuple(change for change in snapshot.changes if change.signal in asked.state_signals)
    return replace(snapshot, readings=readings, changes=changes)
