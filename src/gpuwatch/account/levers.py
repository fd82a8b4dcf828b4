"""The account of levers: what could end each wasted GPU-hour of the ledger, and why nothing ends the rest. Pure.

Wasted is what is known to be neither useful work nor out of service (`is_wasted`). Each wasted hour has at most one
lever, the first of these: the release of what is idle now, apart where the plan refuses it; the cause that its row
names, such as a slow start; the change that right-sizing advises or could advise, for as many of the workload's hours
as it saves. What is left has a reason. So levers and leftovers add up to the waste, in hours and in money.

What a lever saves in a coming week is a projection beside these hours: an allocation that is idle now is taken to stay
idle, and a change saves what right-sizing projects.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from shlex import quote

from gpuwatch.account.money import HOURS_PER_WEEK, Rates, cost_of
from gpuwatch.account.weekly_use import PROVEN_IDLE, is_silent, is_wasted, parts_of, profiles_of
from gpuwatch.facts.catalog.gpus import gpu_share_ratio, model_name, profile_name
from gpuwatch.facts.frameworks import kind_of
from gpuwatch.facts.frameworks.framework import ReleaseRule
from gpuwatch.facts.frameworks.keys import GPU_MEMORY_NEED
from gpuwatch.facts.model.decision import ActionKind, Analysis, Finding, PlanItem
from gpuwatch.facts.model.grouping import grouped
from gpuwatch.facts.model.ledger import Group, Ledger, LedgerEntry, Loss, LossCause, Row
from gpuwatch.facts.model.sizing import Abstention, AbstentionKind, Option, Recommendation
from gpuwatch.facts.model.telemetry import Device, DeviceId, PodRef
from gpuwatch.facts.model.weekly import Amount, Left, LeftOver, Lever, LeverAccount, LeverKind, LeverPart, Sureness
from gpuwatch.facts.model.workload_profile import ProfileBook, WorkloadKey

_STARTS = (Row.PULL, Row.INIT, Row.LOAD)
_NAMED = {
    **dict.fromkeys(_STARTS, LeverKind.STARTS),
    Row.GANG: LeverKind.GANGS,
    Row.LOST: LeverKind.FAILURES,
    Row.UNREACHABLE: LeverKind.UNREACHABLE,
}
"""Rows whose name is the lever."""
_SAID = {
    LeverKind.MEMORY_NEED: (
        "Their memory was flat from the start, so its peak may be a reservation. A cheaper GPU may have enough.",
        f"Their owners state what they need per GPU, in the annotation {GPU_MEMORY_NEED}.", "gpuwatch recommend"),
    LeverKind.TRY_RUN: (
        "A cheaper GPU is likely fast enough. At worst it is not.",
        "One run on the cheaper GPU, to compare.", "gpuwatch recommend"),
    LeverKind.MEASURE: (
        "Utilisation alone cannot tell how much of a GPU is needed.",
        "Exporters give engine, SM and memory activity.", "gpuwatch doctor -o wide"),
    LeverKind.UNBLOCK: (
        "A cheaper GPU would do, and only conditions that an owner can change rule it out.",
        "Each workload names its conditions.", "gpuwatch recommend"),
    LeverKind.STARTS: (
        "The ledger's hours of image pulls, init containers and loads. How much faster they can be is not known.",
        "Images and models on the Node before the Pod starts.", "gpuwatch ledger --by image --group starting"),
    LeverKind.GANGS: (
        "The ledger's hours in which members of a gang waited for others. Some wait may remain.",
        "A scheduler that starts all members at once.", "gpuwatch ledger --by workload --group starting"),
    LeverKind.FAILURES: (
        "The ledger's hours of work that failures made worthless. No failure can be ruled out.",
        "Checkpoints more often, and the causes mended.", "gpuwatch ledger"),
    LeverKind.UNREACHABLE: (
        "The ledger's hours of free GPUs, or parts of them, that no request could get.",
        "What is missing beside them: CPU, memory, a toleration, whole Nodes, another MIG layout.", "gpuwatch slots"),
}  # fmt: skip
"""Evidence, needs, and the command that shows more, of the levers with several parts."""
_LEFT = {
    Row.USABLE: Left.FREE,
    Row.WAITED_FOR: Left.WAITED_FOR,
    Row.OUTSIDE: Left.OUTSIDE,
    Row.RESTART: Left.ENDS,
    Row.SUSPECTED: Left.SUSPECTED,
    **dict.fromkeys(PROVEN_IDLE, Left.IDLE_BEFORE),
}
"""Rows whose name is the reason, whatever the workload is."""
_NEEDS_MEMORY = frozenset({"framebuffer", "elastic_memory"})
_OWNERS = _NEEDS_MEMORY | {
    "target_speed", "latency", "container_image", "tenancy", "opted_out", "host_resources", "gang_whole",
}  # fmt: skip
"""Vetoes of right-sizing that the owner of a workload can end; the others are facts of its work or of the fleet."""
_WORKLOADS = 10
_NOTHING = 1e-12
"""What is left of a sum of parts by rounding alone."""

_Key = tuple[LeverKind, Sureness, str]
"""Kind, sureness and subject of a lever."""
_Cell = tuple[str, str, str, str, str, Row]
"""Namespace, workload, GPU model, Node, image and row."""


@dataclass(slots=True)
class Sum:
    """GPU-hours, and the price of the priced part; None if there is none."""

    gpu_hours: float = 0.0
    cost: float | None = None

    def add(self, gpu_hours: float, cost: float | None) -> None:
        self.gpu_hours += gpu_hours
        if cost is not None:
            self.cost = (self.cost or 0.0) + cost

    @property
    def known_cost(self) -> float | None:
        """0 if there are no hours; None if they have no price."""
        return 0.0 if self.cost is None and not self.gpu_hours else self.cost

    @property
    def amount(self) -> Amount:
        return Amount(gpu_hours=self.gpu_hours, cost=self.known_cost)


@dataclass(frozen=True, slots=True)
class _Claim:
    """A profile's part of a workload's waste: what its lever takes of the hours and of the cost, and why the rest is
    left."""

    part: float
    left: Left
    key: _Key | None = None
    hours_ratio: float = 0.0
    cost_ratio: float = 0.0


def levers_of(
    ledger: Ledger,
    analysis: Analysis,
    idle: Sequence[Finding],
    book: ProfileBook,
    recommendations: Iterable[Recommendation],
    abstentions: Iterable[Abstention],
    rates: Rates,
    start: datetime,
    end: datetime,
) -> tuple[LeverAccount, Mapping[str, Left]]:
    """The account of (start, end], of which the ledger is; and for each team why most of its money has no lever."""
    week = HOURS_PER_WEEK / max((end - start) / timedelta(hours=1), 1.0)
    drafts, release_of = _releases(idle, analysis, ledger, rates)
    advised: dict[WorkloadKey | None, Recommendation] = {item.key: item for item in recommendations}
    drafts |= {_resize_key(item): _resize(item, ledger) for item in advised.values()}
    abstained: dict[WorkloadKey | None, Abstention] = {item.key: item for item in abstentions}
    profiles = profiles_of(book)

    taken: defaultdict[tuple[_Key, str], Sum] = defaultdict(Sum)
    left: defaultdict[tuple[Left, str, str, Row], Sum] = defaultdict(Sum)
    held: defaultdict[tuple[str, str], Sum] = defaultdict(Sum)  # not released, by workload and model
    cells: defaultdict[_Cell, Sum] = defaultdict(Sum)  # the waste of it
    useful, unknown, out = Sum(), Sum(), Sum()
    places = _places(idle, analysis)
    for each in ledger.entries:
        kept = 1.0
        for finding, ratio in _found(places, each) if is_silent(each) else ():
            taken[release_of[finding.id], each.workload].add(*_times(each, ratio))
            kept -= ratio
        if kept < _NOTHING:
            continue
        rest = _times(each, kept)
        held[each.workload, each.gpu_model].add(*rest)
        if is_wasted(each):
            cells[each.namespace, each.workload, each.gpu_model, each.node, each.image, each.row].add(*rest)
        elif each.row.group is Group.OUT_OF_SERVICE:
            out.add(*rest)
        else:
            (unknown if each.unknown else useful).add(*rest)

    parts: dict[tuple[_Key, str], LeverPart] = {}
    claims: dict[tuple[str, str], list[_Claim]] = {}
    for (workload, model), waste in _sized(cells).items():
        of_profiles = parts_of(profiles.get((workload, model), ()), start, end)
        keys = ((each.key if each else None, part) for each, part in of_profiles)
        claims[workload, model] = [
            _claim(advised.get(key), abstained.get(key), part, held[workload, model], waste, parts)
            for key, part in keys
        ]
    nodes: defaultdict[tuple[_Key, str], defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for (namespace, workload, model, node, image, row), of in cells.items():
        if row in _NAMED:
            key: _Key = (_NAMED[row], Sureness.UP_TO, "")
            name = image or workload if row in _STARTS else workload or node
            taken[key, name].add(of.gpu_hours, of.cost)
            nodes[key, name][node] += of.gpu_hours
            continue
        for claim in claims.get((workload, model), (_Claim(1.0, Left.NOT_PROFILED),)):
            if claim.key:
                taken[claim.key, workload].add(*_times(of, claim.hours_ratio, claim.cost_ratio))
            rest = _times(of, claim.part - claim.hours_ratio, claim.part - claim.cost_ratio)
            left[_LEFT.get(row, claim.left), namespace, workload, row].add(*rest)

    causes = _causes(ledger.losses)
    for key, name in taken:
        if key[0] in _NAMED.values():
            of_node = nodes[key, name]
            most = max(of_node, key=lambda node: of_node[node])
            why = f"on {len(of_node)} Nodes" if of_node[most] * 2 < sum(of_node.values()) else f"most on Node {most}"
            why = causes.get(name, "") if key[0] is LeverKind.FAILURES else why
            parts[key, name] = LeverPart(name=name, wasted=Amount(), why=why)
    return _account(drafts, taken, parts, left, (useful, unknown, out), week, ledger)


def _sized(cells: Mapping[_Cell, Sum]) -> Mapping[tuple[str, str], Sum]:
    """By workload and model, the waste that a change could save."""
    found: defaultdict[tuple[str, str], Sum] = defaultdict(Sum)
    for (_, workload, model, _, _, row), of in cells.items():
        if workload and row not in _NAMED:
            found[workload, model].add(of.gpu_hours, of.cost)
    return found


def _times(of: LedgerEntry | Sum, ratio: float, cost_ratio: float | None = None) -> tuple[float, float | None]:
    """A part of its hours and of its cost; cost_ratio: None for the same part."""
    priced = ratio if cost_ratio is None else cost_ratio
    return of.gpu_hours * ratio, None if of.cost is None else of.cost * priced


def _account(
    drafts: Mapping[_Key, Lever],
    taken: Mapping[tuple[_Key, str], Sum],
    parts: Mapping[tuple[_Key, str], LeverPart],
    left: Mapping[tuple[Left, str, str, Row], Sum],
    others: tuple[Sum, Sum, Sum],
    week: float,
    ledger: Ledger,
) -> tuple[LeverAccount, Mapping[str, Left]]:
    levers = []
    of_key = grouped({**parts, **taken}, lambda each: each[0])
    for key in {**drafts, **of_key}:
        names = of_key.get(key, ())
        wasted = _sum(taken.get(each, Sum()) for each in names)
        draft = drafts.get(key)
        if draft is None:
            again = week if key[0] in _NAMED.values() else None
            shown = [_part(parts[each], taken.get(each, Sum()), again) for each in names]
            saving = [each.saving_per_week for each in shown if each.saving_per_week is not None]
            evidence, needs, change = _SAID[key[0]]
            draft = Lever(
                kind=key[0], sureness=key[1], evidence=evidence, needs=needs, change=change,
                saving_per_week=math.fsum(saving) if saving else None,
                saving_gpu_hours_per_week=wasted.gpu_hours * week,
                parts=tuple(sorted(shown, key=lambda each: (-(each.saving_per_week or 0.0), -each.wasted.gpu_hours))),
            )  # fmt: skip
        levers.append(replace(draft, wasted=wasted.amount))
    order = list(Sureness)
    levers.sort(
        key=lambda item: (
            order.index(item.sureness), -(item.saving_per_week or 0.0), -item.saving_gpu_hours_per_week, item.subject,
        )
    )  # fmt: skip
    found = (_left_over(why, {key: left[key] for key in of}) for why, of in grouped(left, lambda key: key[0]).items())
    leftovers = [item for item in found if item.wasted.gpu_hours or item.wasted.cost]
    leftovers.sort(key=lambda item: (-(item.wasted.cost or 0.0), -item.wasted.gpu_hours))
    sure = [item for item in levers if item.sureness is Sureness.SURE]
    saved = [item.saving_per_week for item in sure if item.saving_per_week is not None]
    account = LeverAccount(
        useful=others[0].amount,
        unknown=others[1].amount,
        out_of_service=others[2].amount,
        wasted=_sum((*taken.values(), *left.values())).amount,
        levers=tuple(levers),
        left=tuple(leftovers),
        saving_per_week=math.fsum(saved) if saved or not sure else None,
        saving_gpu_hours_per_week=math.fsum(item.saving_gpu_hours_per_week for item in sure),
    )
    return account, _reasons(left, ledger)


def _part(part: LeverPart, wasted: Sum, week: float | None) -> LeverPart:
    """With its hours. week: how often they fit a week, where they are taken to be wasted again."""
    saving = part.saving_per_week if week is None else None if wasted.cost is None else wasted.cost * week
    return replace(part, wasted=wasted.amount, saving_per_week=saving)


def _left_over(why: Left, of: Mapping[tuple[Left, str, str, Row], Sum]) -> LeftOver:
    def by(place: int) -> dict[str, Sum]:
        groups = grouped(of, lambda key: str(key[place]))
        return {name: _sum(of[key] for key in keys) for name, keys in groups.items()}

    workloads = {
        name: each for name, each in by(2).items() if name and max(each.gpu_hours, each.cost or 0.0) > _NOTHING
    }
    dearest = sorted(workloads.items(), key=lambda item: (-(item[1].cost or 0.0), -item[1].gpu_hours, item[0]))
    return LeftOver(
        left=why,
        wasted=_sum(of.values()).amount,
        rows={Row(row): each.gpu_hours for row, each in by(3).items()},
        workloads={name: each.amount for name, each in dearest[:_WORKLOADS]},
        count=len(workloads),
    )


def _reasons(left: Mapping[tuple[Left, str, str, Row], Sum], ledger: Ledger) -> Mapping[str, Left]:
    """Team → the reason for most of what it wastes without a lever: by money, or by hours without prices."""
    found: defaultdict[str, defaultdict[Left, float]] = defaultdict(lambda: defaultdict(float))
    priced = any(each.cost for each in left.values())
    for (why, namespace, _, _), each in left.items():
        if namespace:
            found[ledger.team(namespace)][why] += (each.cost or 0.0) if priced else each.gpu_hours
    return {team: max(of, key=lambda why: of[why]) for team, of in found.items() if sum(of.values()) > 0}


def _sum(parts: Iterable[Sum]) -> Sum:
    found = tuple(parts)
    costs = [each.cost for each in found if each.cost is not None]
    return Sum(math.fsum(each.gpu_hours for each in found), math.fsum(costs) if costs else None)


def _causes(losses: Iterable[Loss]) -> Mapping[str, LossCause]:
    """Workload → the cause of most of the work that it lost."""
    known = sorted((each for each in losses if not each.unknown), key=lambda each: each.gpu_hours)
    return {each.workload: each.cause for each in known}


# Releases


def _releases(
    idle: Sequence[Finding], analysis: Analysis, ledger: Ledger, rates: Rates
) -> tuple[dict[_Key, Lever], Mapping[str, _Key]]:
    """A lever for each release, without hours; and Finding.id → its key. Only what the plan admits is sure."""
    planned = {
        name: item
        for item in analysis.plan.items
        if item.candidate.action is ActionKind.RELEASE_GANG
        for name in item.candidate.findings
    }
    workload_of = {pod.ref: pod.workload for pod in analysis.cluster.pods if pod.workload}
    drafts: dict[_Key, Lever] = {}
    keys: dict[str, _Key] = {}
    for finding in idle:
        item = planned.get(finding.id)
        subject = item.candidate.target.name if item else finding.subject.name
        sure = item is not None and item.admitted
        sureness = Sureness.SURE if sure else Sureness.REFUSED
        keys[finding.id] = key = (LeverKind.RELEASE, sureness, subject)
        before = drafts[key].findings if key in drafts else ()
        drafts[key] = Lever(
            kind=LeverKind.RELEASE,
            sureness=sureness,
            subject=subject,
            team=ledger.team(namespace_of(finding)),
            evidence=f"{finding.summary[:1].upper()}{finding.summary[1:]}.",
            needs=_refused(item),
            change=_release_command(workload_of.get(finding.pods[0], ""), analysis.at) if sure else "gpuwatch plan",
            findings=(*before, finding.id),
        )
    saved: defaultdict[_Key, Sum] = defaultdict(Sum)
    for finding, device, share in _held(idle, analysis.devices):
        price = rates.price(model_name(device.model if device else ""), node=device.node if device else None)
        saved[keys[finding.id]].add(share * HOURS_PER_WEEK, cost_of(share * HOURS_PER_WEEK, price))
    for key, of in saved.items():
        drafts[key] = replace(drafts[key], saving_per_week=of.known_cost, saving_gpu_hours_per_week=of.gpu_hours)
    return drafts, keys


def _refused(item: PlanItem | None) -> str:
    if item is None:
        return "The plan has no release for it: what owns its Pods is not known."
    reasons = dict.fromkeys(each.reason for each in item.refusals)
    return " ".join((*reasons, *((item.helps,) if item.helps and item.refusals else ())))


def _release_command(workload: str, at: datetime) -> str:
    """The patch that a release makes; the command that shows the plan where it is no merge patch."""
    kind = kind_of(workload)
    fields = dict(kind.release.fields({}, at)) if kind and isinstance(kind.release, ReleaseRule) else {}
    if not fields or any(path.startswith("/status/") for path in fields):
        return "gpuwatch plan"
    patch: dict[str, object] = {}
    for path, value in fields.items():
        *outer, last = path.strip("/").split("/")
        place = patch
        for name in outer:
            place = place.setdefault(name, {})  # type: ignore[assignment]
        place[last] = value
    return f"kubectl {_object('patch', workload)} --type=merge -p {quote(json.dumps(patch, separators=(',', ':')))}"


def _object(verb: str, workload: str) -> str:
    """As kubectl takes it: `-n NAMESPACE VERB KIND NAME`."""
    kind = kind_of(workload)
    name, namespace, own = [*workload.split("/", 2), "", ""][:3]
    called = f"{kind.kind.lower()}.{kind.group}".rstrip(".") if kind else name.lower()
    return f"-n {quote(namespace)} {verb} {quote(called)} {quote(own)}"


# Right sizes


def _resize(item: Recommendation, ledger: Ledger) -> Lever:
    chosen = item.chosen
    return Lever(
        kind=LeverKind.RESIZE,
        sureness=_resize_key(item)[1],
        subject=item.key.workload,
        team=ledger.team(item.key.namespace),
        saving_per_week=chosen.projected_saving_per_week,
        saving_gpu_hours_per_week=chosen.projected_saving_gpu_hours_per_week,
        evidence=chosen.speed.basis,
        needs=" ".join((*((item.condition,) if item.condition else ()), *item.change.prerequisites)),
        key=item.key,
    )


def _resize_key(item: Recommendation) -> _Key:
    key = item.key
    sureness = Sureness.CONDITION if item.condition else Sureness.SURE
    return LeverKind.RESIZE, sureness, "/".join((key.workload, key.container, key.gpu_model, key.mig_profile))


def _claim(
    advice: Recommendation | None,
    abstention: Abstention | None,
    part: float,
    held: Sum,
    waste: Sum,
    parts: dict[tuple[_Key, str], LeverPart],
) -> _Claim:
    """What the lever of one profile takes of its part. It saves hours of all that the workload has, but takes no more
    than it wastes. Notes the lever's part for what may unlock a change."""
    if advice is not None:
        return _taking(part, Left.AFTER_CHANGE, _resize_key(advice), advice.current, advice.chosen, held, waste)
    if abstention is None:
        return _Claim(part, Left.NOT_PROFILED)
    if abstention.kind is AbstentionKind.IDLE:
        return _Claim(part, Left.IDLE_BEFORE)
    why, near, now = Left(abstention.kind), abstention.nearest, abstention.current
    kind = _unlocked_by(abstention)
    if kind is None or near is None or now is None:
        return _Claim(part, why)
    key, name = (kind, Sureness.UP_TO, ""), abstention.key.workload
    before = parts.get((key, name))
    saving = near.projected_saving_per_week
    if before is not None and before.saving_per_week is not None:
        saving = before.saving_per_week + (saving or 0.0)
    command = f"kubectl {_object('annotate', name)} {GPU_MEMORY_NEED}=12Gi" if kind is LeverKind.MEMORY_NEED else ""
    said = abstention.reason if kind is LeverKind.MEMORY_NEED else f"{abstention.reason} {abstention.resolve}"
    parts[key, name] = LeverPart(name=name, wasted=Amount(), saving_per_week=saving, why=said, change=command)
    return _taking(part, why, key, now, near, held, waste)


def _unlocked_by(abstention: Abstention) -> LeverKind | None:
    """What could turn it into advice that saves; None where nothing that is known could."""
    near = abstention.nearest
    if near is None or near.projected_saving_gpu_hours_per_week <= 0 or (near.projected_saving_per_week or 1.0) <= 0:
        return None
    rules = {each.rule for each in near.vetoes}
    match abstention.kind:
        case AbstentionKind.SIGNALS:
            return LeverKind.MEASURE
        case AbstentionKind.UNCERTAIN:
            return LeverKind.TRY_RUN
        case AbstentionKind.MEMORY_ELASTIC | AbstentionKind.VETOED if rules <= _OWNERS and "elastic_memory" in rules:
            return LeverKind.MEMORY_NEED if rules <= _NEEDS_MEMORY else LeverKind.UNBLOCK
        case AbstentionKind.VETOED if rules <= _OWNERS - {"framebuffer"}:
            return LeverKind.UNBLOCK
    return None


def _taking(part: float, left: Left, key: _Key, now: Option, then: Option, held: Sum, waste: Sum) -> _Claim:
    of_hours, of_cost = saving_ratios(now, then)
    hours = min(of_hours * held.gpu_hours / waste.gpu_hours, 1.0) if waste.gpu_hours > 0 else 0.0
    cost = hours  # the share of the cost of these hours, where the saving has no price
    if of_cost is not None and waste.cost:
        cost = min(of_cost * (held.cost or 0.0) / waste.cost, 1.0)
    return _Claim(part, left, key, hours * part, cost * part)


def saving_ratios(now: Option, then: Option) -> tuple[float, float | None]:
    """The change's saving of the workload's GPU-hours and of its cost, 0 to 1 each. Cost: None if a price is unknown; 0
    if the target costs more."""
    hours, cost = now.projected_gpu_hours_per_week, now.projected_cost_per_week
    of_hours = then.projected_saving_gpu_hours_per_week / hours if hours > 0 else 0.0
    saving = then.projected_saving_per_week
    if cost is None or saving is None:
        return _ratio(of_hours), None
    return _ratio(of_hours), _ratio(saving / cost if cost > 0 else 0.0)


def _ratio(value: float) -> float:
    return min(max(value, 0.0), 1.0)


# Hours of findings

_Places = Mapping[tuple[str, str], Sequence[tuple[Finding, float]]]
"""(workload, Node) → findings there, and the share of each of the hours without work."""


def _places(findings: Sequence[Finding], analysis: Analysis) -> _Places:
    workload_of = {pod.ref: pod.workload for pod in analysis.cluster.pods if pod.workload}
    shares: defaultdict[tuple[str, str], list[tuple[Finding, float]]] = defaultdict(list)
    for finding, device, share in _held(findings, analysis.devices):
        for pod in (pods := _pods_on(device, finding)):
            place = (workload_of.get(pod, f"Pod/{pod}"), (device.node if device else finding.node) or "")
            shares[place].append((finding, share / len(pods)))
    found = {}
    for place, of in shares.items():
        total = math.fsum(share for _, share in of)
        found[place] = [(finding, share / total if total > 0 else 0.0) for finding, share in of]
    return found


def _found(places: _Places, entry: LedgerEntry) -> Iterator[tuple[Finding, float]]:
    """The findings to which an hour without work belongs, with their shares of it."""
    for finding, ratio in places.get((entry.workload, entry.node), ()):
        since = finding.since.replace(minute=0, second=0, microsecond=0) if finding.since else None
        if since is None or entry.hour >= since:
            yield finding, ratio


def namespace_of(idle: Finding) -> str:
    """The Namespace of its Pods: the finding of a gang is named by the gang's id."""
    return idle.pods[0].partition("/")[0]


def _held(findings: Sequence[Finding], devices: Iterable[Device]) -> Iterable[tuple[Finding, Device | None, float]]:
    """Each allocation's part of each of its devices, of a GPU. Pods that share a device have a part each, so that two
    of them free it once."""
    known = {device.id: device for device in devices}
    claims: defaultdict[DeviceId, int] = defaultdict(int)
    for finding in findings:
        for name in finding.devices:
            claims[name] += len(_pods_on(known.get(name), finding))
    for finding in findings:
        for name in finding.devices:
            device = known.get(name)
            model = device.model if device else ""
            profile = profile_name(model, device.mig_profile or "") if device else ""
            sharers = len(device.pods) if device is not None and device.shared else 1
            part = len(_pods_on(device, finding)) / max(sharers, claims[name])
            yield finding, device, gpu_share_ratio(model, profile) * part


def _pods_on(device: Device | None, finding: Finding) -> Sequence[PodRef]:
    """The allocation's Pods that have the device; its first where telemetry names none of them."""
    return sorted(set(device.pods if device else ()) & set(finding.pods)) or finding.pods[:1]
