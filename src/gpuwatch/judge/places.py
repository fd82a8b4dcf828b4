"""Places that machines share (NVLink switches, a rack, a site), and those where most machines are slowed at once."""

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from gpuwatch.facts.model.decision import Advice, Finding, Severity, Subject, Verdict
from gpuwatch.judge.fleet import FLEET, Fleet, PhysicalGpu, Tells, conclude

PLACES = (
    "nvidia.com/gpu.clique",
    "network.topology.nvidia.com/accelerator",
    "topology.kubernetes.io/rack",
    "network.topology.nvidia.com/leaf",
    "topology.kubernetes.io/zone",
)
"""Labels of what Nodes share, the smallest first: NVLink switches (GFD's clique), a rack, a leaf switch, a site."""


def shared_place(fleet: Fleet, nodes: Collection[str | None]) -> str:
    """The smallest place that all of these Nodes are in and some other Node is not, as `key=value`; '' for none."""
    for label in PLACES:
        values = {fleet.nodes[node].labels.get(label, "") if node in fleet.nodes else "" for node in nodes}
        everywhere = {node.labels.get(label, "") for node in fleet.nodes.values()}
        if len(values) == 1 and len(everywhere) > 1 and (value := values.pop()):
            return f"{label}={value}"
    return ""


def air_of(fleet: Fleet, gpu: PhysicalGpu) -> list[str]:
    """The places whose air it shares, as `key=value`: all that its Node's labels name but the site."""
    labels = fleet.nodes[gpu.home].labels if gpu.home in fleet.nodes else {}
    return [f"{label}={labels[label]}" for label in PLACES[:-1] if labels.get(label)]


@dataclass(frozen=True, slots=True, eq=False)
class SlowPlace:
    """Machines of which at least half of the GPUs are slowed. place: `key=value`; '' where no label names it. unseen:
    how many more machines it has of which it is not known whether they are slowed."""

    place: str
    machines: tuple[str, ...]
    gpus: tuple[PhysicalGpu, ...]
    unseen: int = 0

    def __str__(self) -> str:
        where = f" of {self.place}" if self.place else ""
        more = f" (of {self.unseen} more there it is not known)" if self.unseen else ""
        return f"{len(self.gpus)} GPUs on {len(self.machines)} machines{where}{more}"


def slow_machines(
    fleet: Fleet, slowed: Iterable[PhysicalGpu], beside: Iterable[PhysicalGpu] = ()
) -> dict[PhysicalGpu, str]:
    """The machine of each slowed GPU, where at least half of its several GPUs are slowed: its fans or power supply are
    the cause, and not that card.

    beside: GPUs that are slowed at all. A machine is left out if there is one on another machine of a place that its
    labels name, or anywhere if they name none: the place may be the cause.
    """
    by_home: dict[str, list[PhysicalGpu]] = defaultdict(list)
    for gpu in slowed:
        by_home[gpu.home].append(gpu)
    whole = {home: gpus for home, gpus in by_home.items() if 2 <= len(fleet.at_home.get(home, ())) <= 2 * len(gpus)}
    places = {gpu.home: frozenset(air_of(fleet, gpu)) for gpu in (*beside, *(gpus[0] for gpus in whole.values()))}

    def near(home: str, other: str) -> bool:
        return home != other and (not places[home] or not places[home].isdisjoint(places[other]))

    touched = {gpu.home for gpu in beside}
    return {
        gpu: home
        for home, gpus in whole.items()
        if len(gpus) > 1 and not any(near(home, other) for other in touched)
        for gpu in gpus
    }


def slow_places(fleet: Fleet, slowed: Iterable[PhysicalGpu], seen: Collection[PhysicalGpu]) -> list[SlowPlace]:
    """Places with `HealthPolicy.common_cause_nodes` slowed machines or more, if they are half of those that are seen.

    A machine counts as slowed if at least half of its GPUs are: air and power come to all of them, while a bad card is
    one of eight. seen: GPUs of which it is known whether they are slowed. Beside two slowed machines of a labelled
    place, one without such GPUs counts as slowed. Where no label names a place, so many machines with several GPUs have
    one cause too; machines with one GPU do if they are `HealthPolicy.fleet_wide_ratio` of all.
    """
    by_home: dict[str, list[PhysicalGpu]] = defaultdict(list)
    for gpu in slowed:
        by_home[gpu.home].append(gpu)
    whole = {home: gpus for home, gpus in by_home.items() if 2 * len(gpus) >= len(fleet.at_home.get(home, gpus))}
    told = {gpu.home for gpu in seen}
    found = []
    for label in PLACES:
        there: dict[str, list[str]] = defaultdict(list)
        for home in dict.fromkeys(gpu.home for gpu in fleet.gpus):
            if home in fleet.nodes and (value := fleet.nodes[home].labels.get(label)):
                there[value].append(home)
        for value, homes in sorted(there.items()):
            hot = [home for home in homes if home in whole]
            unseen = sum(home not in told for home in homes) if len(hot) > 1 else 0
            if len(hot) + unseen >= fleet.policy.common_cause_nodes and 2 * len(hot) >= len(homes) - unseen:
                found.append(_slow_place(f"{label}={value}", {home: whole.pop(home) for home in hot}, unseen))
    several = {home: gpus for home, gpus in whole.items() if len(fleet.at_home.get(home, ())) > 1}
    left = whole if len(whole) >= fleet.policy.fleet_wide_ratio * len(fleet.at_home) else several
    if len(left) >= fleet.policy.common_cause_nodes:
        found.append(_slow_place("", left))
    return found


def _slow_place(place: str, machines: dict[str, list[PhysicalGpu]], unseen: int = 0) -> SlowPlace:
    return SlowPlace(place, tuple(sorted(machines)), tuple(gpu for gpus in machines.values() for gpu in gpus), unseen)


def together_finding(
    kind: Tells, said: list[str], gpus: Iterable[PhysicalGpu], severity: Severity, on: Subject = FLEET, **of: Any
) -> list[Finding]:
    """One UNKNOWN finding with everything that is `said` of these GPUs, since a subject can have one of a kind; none
    where nothing is said."""
    gpus = list(gpus)
    machines = {gpu.home for gpu in gpus}
    more: dict[str, Any] = {
        "node": gpus[0].lead.node if len(machines) == 1 else None,
        "advice": Advice.WATCH if severity is Severity.INFO else Advice.INSPECT,
        "missing": ["a GPU that is slowed while the others of its place and model are not"],
        **of,
    }
    words = "; ".join(said)
    return [conclude(on, kind, Verdict.UNKNOWN, words, severity=severity, gpus=gpus, **more)] if said else []
