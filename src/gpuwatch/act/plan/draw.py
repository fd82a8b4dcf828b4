"""Make the Plan of one moment. Pure, so that it can be replayed, back-tested and diffed."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from gpuwatch.act.placement import Nowhere, Room
from gpuwatch.act.plan.brakes import brakes, last_storm
from gpuwatch.act.plan.budget import Ledger
from gpuwatch.act.plan.candidates import candidates
from gpuwatch.act.plan.demand import on_demand, waiters
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.plan.guards import (
    Guard,
    GuardCase,
    contended,
    guard,
    in_flight,
    left_behind,
    selected,
    taken_back,
    unread,
)
from gpuwatch.act.plan.misfit import place
from gpuwatch.act.plan.policy import MILDEST_FIRST, MIN_PRECISION_RATIO
from gpuwatch.act.plan.score import weigh
from gpuwatch.act.plan.topology import sent_back
from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.model.cluster import FactKind, Pod
from gpuwatch.facts.model.decision import (
    MOVES,
    ActionKind,
    Candidate,
    HeldRoom,
    Mode,
    Plan,
    PlanItem,
    Refusal,
    Severity,
    Subject,
    SubjectKind,
)
from gpuwatch.facts.model.remediation import Phase
from gpuwatch.facts.model.telemetry import PodRef


def draw_plan(facts: PlanFacts) -> Plan:
    """Every candidate with its score and all reasons against it, best first; budgets are spent in that order."""
    stopped = brakes(facts)
    items = _demanded([_item(candidate, facts) for candidate in candidates(facts)], facts)
    items.sort(key=lambda item: (-item.score.value if math.isfinite(item.score.value) else math.inf, item.candidate.id))
    if stopped:
        ledger = Ledger(facts)
        drawn = [replace(item, refusals=(*item.refusals, *stopped)) for item in items]
    else:
        drawn, ledger = _together(items, facts)
    on = [item.guard for item in stopped]
    return Plan(
        at=facts.snapshot.at,
        items=tuple(map(_advised, drawn)),
        budgets=ledger.budgets,
        brake=" ".join(item.reason for item in stopped),
        last_storm=last_storm(facts),
        stops={each: (*on, *([Guard.CLUSTER_KNOWN.value] * bool(unread(facts, each, ())))) for each in ActionKind},
    )


def _advised(item: PlanItem) -> PlanItem:
    """With the one thing to change first: nothing if one refusal stays anyway, and no wait before a change."""
    rank = {"Nothing:": 0, "Wait": 2}
    refusals = tuple(sorted(item.refusals, key=lambda each: rank.get(each.helps.partition(" ")[0], 1)))
    helps = refusals[0].helps if refusals else ""
    if len({each.helps for each in refusals}) > 1 and not helps.startswith("Nothing:"):
        helps = f"First {helps[:1].lower()}{helps[1:]}"
    return replace(item, refusals=refusals, helps=helps)


def _item(candidate: Candidate, facts: PlanFacts) -> PlanItem:
    worth, timing = weigh(candidate, facts)
    mode, why = mode_of(candidate, facts)
    if waits := taken_back(candidate, facts):
        timing = replace(timing, reason=f"{timing.reason} It waits for NoSchedule on Node {waits[0]}.")
    return PlanItem(
        candidate=candidate,
        score=worth,
        mode=mode,
        refusals=guard(GuardCase(candidate, worth, facts)),
        timing=timing,
        mode_reason=why,
    )


def mode_of(candidate: Candidate, facts: PlanFacts) -> tuple[Mode, str]:
    """The mildest mode: by policy for its pools, by its Namespace, by its detectors' precision; and the reason."""
    nodes = [facts.nodes[name] for name in candidate.nodes if name in facts.nodes]
    pools = sorted({facts.pool(node) for node in nodes}) or [candidate.pool]
    scopes = [facts.policy.scope(candidate.action, candidate.namespace, pool) for pool in pools]
    scope = min(scopes, key=lambda each: MILDEST_FIRST.index(each.mode))
    named = scope.action or scope.namespace or scope.pool
    offers = [(scope.mode, f"Settings for {scope}." if named else "The default mode.")]
    offers += [
        (Mode.OBSERVE, f"The mode of Namespace {candidate.namespace} was not read: {each.why}")
        for each in facts.snapshot.cluster.unread
        if each.kind is FactKind.NAMESPACES and candidate.namespace and each.namespace in ("", candidate.namespace)
    ]
    asked = facts.namespaces.get(candidate.namespace, {}).get(keys.MODE)
    if asked is not None:
        # An invalid value counts as observe.
        wanted = Mode(asked) if asked in set(Mode) else Mode.OBSERVE
        offers.append((wanted, f"Namespace {candidate.namespace} has {keys.MODE}={asked}."))
    for doubt in (_imprecise(candidate, facts), _to_approve(candidate, facts), sent_back(candidate, facts)):
        if doubt:
            offers.append((Mode.SUGGEST, doubt))
    return min(offers, key=lambda offer: MILDEST_FIRST.index(offer[0]))


def _to_approve(candidate: Candidate, facts: PlanFacts) -> str:
    """Why a person has to approve it: each sufficiently confident finding asks for that."""
    sure = [each for each in facts.findings_of(candidate) if each.confidence_ratio >= facts.policy.min_confidence_ratio]
    return sure[0].approval if sure and all(each.approval for each in sure) else ""


def _imprecise(candidate: Candidate, facts: PlanFacts) -> str:
    """Why it may only be suggested: each sufficiently confident finding comes from a detector whose measured precision
    is too low. Unmeasured precision does not count as low."""
    grounds = {
        str(finding.kind)
        for finding in facts.findings_of(candidate)
        if finding.confidence_ratio >= facts.policy.min_confidence_ratio
    } or set(candidate.detectors)
    # Only outcomes of this Namespace and of Nodes count: people of other Namespaces decide nothing here.
    places = [(place, name) for name in grounds for place in {candidate.namespace, ""}]
    known = [(name, facts.precision[place, name]) for place, name in places if (place, name) in facts.precision]
    poor = {name: value for name, value in sorted(known, reverse=True) if not value >= MIN_PRECISION_RATIO}
    if not poor or set(poor) != grounds:
        return ""
    name, needed = min(poor, key=lambda key: (-poor[key], key)), f"{MIN_PRECISION_RATIO:.2f}"
    return f"The precision of {name} was measured to be {poor[name]:.2f} or better; {needed} is needed to enforce."


def _demanded(items: list[PlanItem], facts: PlanFacts) -> list[PlanItem]:
    """Adds to each release the Pod that waits for its GPUs; refuses those without one if the policy requires demand. A
    release in mode observe frees nothing, so the others are chosen without it."""
    left = [item for item in items if not item.refusals]
    observed = waiters(left, facts) if any(item.mode is Mode.OBSERVE for item in left) else {}
    acted_on = waiters([item for item in left if item.mode is not Mode.OBSERVE], facts)
    return [_with_demand(item, observed if item.mode is Mode.OBSERVE else acted_on, facts) for item in items]


def _with_demand(item: PlanItem, waiting: Mapping[str, PodRef], facts: PlanFacts) -> PlanItem:
    """waiting: Candidate.id of a release → the Pod that waits for it."""
    if item.candidate.action is ActionKind.MAKE_ROOM:
        first = next((name for name, waiter in waiting.items() if waiter == item.candidate.waiter), "")
        reason = f"{first} makes the room for {item.candidate.waiter}, and ends no work."
        helps = "Nothing: the release goes first."
        return replace(item, refusals=(*item.refusals, Guard.DEMAND.refuses(reason, helps))) if first else item
    if waiter := waiting.get(item.candidate.id, ""):
        return replace(item, candidate=replace(item.candidate, waiter=waiter))
    if item.candidate.action is ActionKind.RELEASE_GANG and on_demand(item.candidate.detectors, facts.policy):
        reason = "No pending Pod could be scheduled on the GPUs that it frees, or other releases do less harm."
        return replace(item, refusals=(*item.refusals, Guard.DEMAND.refuses(reason)))
    return item


class _Grants:
    """What this plan has granted so far: room, taints, disturbed Pods and answered findings."""

    def __init__(self, facts: PlanFacts) -> None:
        self._facts = facts
        self._room = facts.ground.room.copy()
        self._tainted: dict[str, Mode] = {}
        self._disturbed: dict[PodRef, str] = {}  # Pod → the candidate
        self._ended: list[Pod] = []
        self._answered: dict[str, str] = {}  # finding of contention → the candidate
        self.held: dict[str, tuple[HeldRoom, ...]] = {}  # candidate → where it lands

    def grant(self, item: PlanItem, ledger: Ledger) -> tuple[Refusal, ...]:
        """Take its room and budget, or return the reasons against it and take nothing."""
        candidate = item.candidate
        refusals = (*self._against(candidate), *self._returning(item))
        trial: Room | None = None
        if not refusals and candidate.action in MOVES:
            trial = self._room.copy()
            places = place(candidate, trial, self._facts)
            if isinstance(places, Nowhere):
                refusals = (Guard.LANDS.refuses(places.reason),)
            else:
                self.held[candidate.id] = _held(places, self._facts)
        refusals = refusals or ledger.charge(candidate)
        if refusals:
            return refusals
        self._room = trial or self._room
        if candidate.action is ActionKind.TAINT_NODE:
            self._room.avoid(candidate.nodes, "it is to be tainted by this plan")
            self._tainted.update(dict.fromkeys(candidate.nodes, item.mode))
        else:
            self._disturbed.update(dict.fromkeys(candidate.pods, candidate.id))
            self._ended += self._facts.ended_by(candidate)
            self._answered.update(dict.fromkeys(contended(candidate, self._facts), candidate.id))
        return ()

    def _against(self, candidate: Candidate) -> Iterable[Refusal]:
        if candidate.action is ActionKind.TAINT_NODE:
            return
        other = next((self._disturbed[ref] for ref in candidate.pods if ref in self._disturbed), None)
        if other is not None:
            yield Guard.ONCE.refuses(f"{other} already disturbs its Pods and has a higher score.")
        for name in contended(candidate, self._facts):
            if name in self._answered:
                yield Guard.ONCE.refuses(f"{self._answered[name]} resolves {name} and has a higher score.")
        yield from self._budgets(candidate)

    def _returning(self, item: PlanItem) -> Iterable[Refusal]:
        """Without a taint the scheduler may put Pods that move off degraded GPUs back on the same Node."""
        for name in taken_back(item.candidate, self._facts):
            offers = [self._tainted[name]] if name in self._tainted else []
            open_ = self._facts.open_on(ActionKind.TAINT_NODE, str(Subject(SubjectKind.NODE, name)))
            if open_ is not None and open_.phase is not Phase.UNDOING:
                waits = open_.phase is Phase.PROPOSED and not open_.approved
                offers.append(Mode.SUGGEST if waits else Mode.ENFORCE)
            best = max(map(MILDEST_FIRST.index, offers), default=-1)
            if best < MILDEST_FIRST.index(item.mode):
                but = f"; the mode of its planned taint is {MILDEST_FIRST[best]}" if offers else ""
                reason = f"{name} has neither NoSchedule nor a cordon: the scheduler may put the Pods back there{but}."
                taints = self._facts.policy.mode(ActionKind.TAINT_NODE, pool=self._facts.pool(self._facts.nodes[name]))
                mild = MILDEST_FIRST.index(taints) < MILDEST_FIRST.index(item.mode)
                change = f"Set plan.modes.taint_node to {item.mode}." if mild else f"Cordon {name}."
                yield Guard.TAINTED_FIRST.refuses(reason, change)

    def _budgets(self, candidate: Candidate) -> Iterable[Refusal]:
        """PodDisruptionBudgets that do not allow this together with what is granted already."""
        pods, before = self._facts.ended_by(candidate), self._ended
        for budget in self._facts.disruption_budgets(pods) if before else ():
            now = sum(1 for pod in pods if selected(budget, pod))
            planned = sum(1 for pod in before if selected(budget, pod)) if now else 0
            allowed = budget.disruptions_allowed
            if planned and now + planned + in_flight(budget, self._facts) > allowed:
                name = f"PodDisruptionBudget {budget.namespace}/{budget.name}"
                reason = f"{name} allows {allowed} disruptions; this needs {now}, and {planned} are planned."
                yield Guard.ONCE.refuses(reason)


def _granted(items: list[PlanItem], ledger: Ledger, facts: PlanFacts) -> list[PlanItem]:
    """Order: candidates in mode observe after all others, then by score. A move's taints come just before it, and
    taints of critical faults before all. A refused candidate takes neither budget nor room."""
    grants = _Grants(facts)
    wanted: dict[str, int] = {}  # Node → the best rank of a move that needs its taint
    for rank, item in enumerate(items):
        for name in () if item.refusals else left_behind(item.candidate, facts):
            wanted.setdefault(name, rank)

    def turn(ranked: tuple[int, PlanItem]) -> tuple[bool, bool, int, bool]:
        rank, item = ranked
        taints = item.candidate.action is ActionKind.TAINT_NODE
        grave = taints and any(each.severity is Severity.CRITICAL for each in facts.findings_of(item.candidate))
        if taints:
            rank = min([rank, *(wanted.get(name, rank) for name in item.candidate.nodes)])
        return item.mode is Mode.OBSERVE, not grave, rank, not taints

    turns = [item for _, item in sorted(enumerate(items), key=turn)]
    drawn = {item.candidate.id: item.refusals or grants.grant(item, ledger) for item in turns}
    room = {name: places for name, places in grants.held.items() if not drawn[name]}
    return [replace(item, refusals=drawn[item.candidate.id], room=room.get(item.candidate.id, ())) for item in items]


def _held(places: Mapping[PodRef, str], facts: PlanFacts) -> tuple[HeldRoom, ...]:
    """Where Pods land; Pods of one Node with equal requests are one entry."""
    alike: Counter[tuple[str, tuple[tuple[str, int], ...], float, int]] = Counter()
    for ref, node in places.items():
        pod = facts.pods[ref]
        alike[node, tuple(sorted(pod.accelerators.items())), pod.cpu_cores, pod.memory_bytes] += 1
    return tuple(
        HeldRoom(node=node, pods=pods, accelerators=dict(asked), cpu_cores=cpu, memory_bytes=memory)
        for (node, asked, cpu, memory), pods in sorted(alike.items())
    )


def _together(items: list[PlanItem], facts: PlanFacts) -> tuple[list[PlanItem], Ledger]:
    """Releases that make room for one Pod together are granted all or none. When a group is refused, budgets are spent
    anew without it, so that others can use them."""
    mates: dict[tuple[PodRef, bool], list[str]] = {}
    for item in items:
        if item.candidate.action is ActionKind.RELEASE_GANG and item.candidate.waiter:
            mates.setdefault(_party(item), []).append(item.candidate.id)
    dropped: dict[str, tuple[Refusal, ...]] = {}
    while True:
        ledger = Ledger(facts)
        offered = [replace(item, refusals=dropped.get(item.candidate.id, item.refusals)) for item in items]
        drawn = _granted(offered, ledger, facts)
        found = {item.candidate.id: item for item in drawn}
        short = next(
            (
                item
                for item in drawn
                if on_demand(item.candidate.detectors, facts.policy)
                and not item.admitted
                and item.candidate.id not in dropped
                and len(mates.get(_party(item), ())) > 1
                and item.candidate.action is ActionKind.RELEASE_GANG
            ),
            None,
        )
        if short is None:
            return drawn, ledger
        for name in mates[_party(short)]:
            reason = f"Pod {short.candidate.waiter} also needs {short.candidate.id}, which is refused."
            then = f"Look at {short.candidate.id}: both are released together."
            dropped[name] = found[name].refusals or (Guard.DEMAND.refuses(reason, then),)


def _party(item: PlanItem) -> tuple[PodRef, bool]:
    """Key of the releases that make room for one Pod together."""
    return item.candidate.waiter, item.mode is Mode.OBSERVE
