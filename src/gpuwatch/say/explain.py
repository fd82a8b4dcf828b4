"""Why something is, or is not, idle or degraded: every rule's conclusion on one subject, and the plan for it."""

from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gpuwatch.facts.model.decision import Family, Finding, Plan, PlanItem, Snapshot, Subject, SubjectKind, Verdict
from gpuwatch.facts.model.grouping import grouped
from gpuwatch.facts.model.sizing import Abstention, Recommendation
from gpuwatch.facts.model.telemetry import DeviceId, PodRef
from gpuwatch.say.layout import FoldedName, cut, new_grid, new_table
from gpuwatch.say.plan_tables import called, item_lines
from gpuwatch.say.sizing_tables import workload_detail
from gpuwatch.say.tables import evidence_line, shown
from gpuwatch.say.words import ago, listed, plural, short_uuid


class UnknownSubject(Exception):
    """The Snapshot has nothing of this name; the message lists similar names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectExplanation:
    """`facts`: (name, value) pairs of what was read."""

    subject: str
    devices: tuple[DeviceId, ...]
    pods: tuple[PodRef, ...]
    facts: tuple[tuple[str, str], ...]
    findings: tuple[Finding, ...]
    plan: tuple[PlanItem, ...]
    sizing: tuple[Recommendation | Abstention, ...] = ()
    sizing_note: str = ""  # why `sizing` is empty, if that needs a reason


def explain(snapshot: Snapshot, subject: str, concluded: Iterable[Finding], plan: Plan) -> SubjectExplanation:
    """Raises UnknownSubject. concluded: all findings of the Snapshot, HEALTHY ones included."""
    kind, slash, name = subject.partition("/")
    if not slash or kind.lower() not in _FINDERS:
        kinds = ", ".join(_FINDERS)
        raise UnknownSubject(
            f"{subject!r}: the KIND of KIND/NAME is one of {kinds}, or a workload's, such as deployment"
        )
    devices, pods, facts = _FINDERS[kind.lower()](snapshot, name)
    order = list(_STYLE)
    findings = (item for item in concluded if concerns(item, devices, pods))
    return SubjectExplanation(
        subject=subject,
        devices=tuple(sorted(devices)),
        pods=tuple(sorted(pods)),
        facts=tuple(facts),
        findings=tuple(sorted(findings, key=lambda item: (order.index(item.verdict), item.rule, item.id))),
        plan=tuple(item for item in plan.items if _planned(item, subject, devices, pods)),
    )


_SHORT = {
    "deploy": "deployment",
    "sts": "statefulset",
    "ds": "daemonset",
    "rs": "replicaset",
    "po": "pod",
    "no": "node",
}
"""kubectl's short names."""


def full_subject(snapshot: Snapshot, subject: str, namespace: str = "") -> str:
    """`deployment/guard` and `pod/web-0` as `workload/Deployment/NAMESPACE/guard` and `pod/NAMESPACE/web-0`. namespace:
    '' looks in all. What needs no completion, or is not known, stays as it is. Raises UnknownSubject where several
    Namespaces have one of this name."""
    kind, _, name = subject.partition("/")
    kind = kind.lower().partition(".")[0]  # deployment.apps, as kubectl prints it
    kind = _SHORT.get(kind, kind)
    kind = kind if kind in _FINDERS else _SHORT.get(kind.removesuffix("s"), kind.removesuffix("s"))
    if kind in ("device", "gpu", "node", "gang", "workload"):
        return f"{kind}/{name}"
    pods = {pod.ref for pod in snapshot.cluster.pods} | {ref for device in shown(snapshot) for ref in device.pods}
    owners = {pod.workload for pod in snapshot.cluster.pods}
    names = [f"pod/{ref}" for ref in pods] if kind == "pod" else [
        f"workload/{owner}" for owner in owners if owner.partition("/")[0].lower() == kind
    ]  # fmt: skip
    wanted = f"/{namespace}/{name}" if namespace else f"/{name}"
    found = sorted(each for each in names if each.endswith(wanted))
    if len(found) > 1:
        raise UnknownSubject(f"{len(found)} are called {subject}: {', '.join(found[:5])}; name the Namespace, with -n")
    if not found and names:
        raise _known(kind.capitalize(), name, names)
    return found[0] if found else subject


_STYLE = {
    Verdict.DEGRADED: "bold red",
    Verdict.IDLE: "yellow",
    Verdict.MISFIT: "yellow",
    Verdict.BUSY: "green",
    Verdict.UNKNOWN: "magenta",
    Verdict.HEALTHY: "green",
}
"""Most important first."""


def workloads_of(snapshot: Snapshot, explanation: SubjectExplanation) -> frozenset[str]:
    """Workload.id of everything that the explanation covers."""
    kind, _, name = explanation.subject.partition("/")
    named = {name} if kind.lower() == "workload" else set()
    return frozenset(named | {pod.workload for pod in snapshot.cluster.pods if pod.ref in explanation.pods})


def concerns(item: Finding, devices: set[DeviceId], pods: set[PodRef]) -> bool:
    """Health findings are about devices; others are about Pods, if they name any."""
    if item.pods and item.family is not Family.HEALTH:
        return bool(pods & set(item.pods))
    return bool(devices & set(item.devices))


def _planned(item: PlanItem, subject: str, devices: set[DeviceId], pods: set[PodRef]) -> bool:
    candidate = item.candidate
    kind, _, name = subject.partition("/")
    if candidate.target.kind is SubjectKind.NODE and kind != "node":
        return bool(devices & set(candidate.devices))
    return bool(pods & set(candidate.pods) or devices & set(candidate.devices) or name in candidate.nodes)


Found = tuple[set[DeviceId], set[PodRef], list[tuple[str, str]]]


def _known(what: str, name: str, names: Iterable[str]) -> UnknownSubject:
    last = name.rpartition("/")[2]
    near = sorted(known for known in names if last and last in known)[:5]
    hint = f"; similar names: {', '.join(near)}" if near else ""
    return UnknownSubject(f"No {what} {name!r} in this snapshot{hint}")


def _held(snapshot: Snapshot, pods: set[PodRef]) -> set[DeviceId]:
    return {device.id for device in shown(snapshot) if pods & set(device.pods)}


def _pod(snapshot: Snapshot, name: str) -> Found:
    cluster = {pod.ref: pod for pod in snapshot.cluster.pods}
    refs = set(cluster) | {ref for device in shown(snapshot) for ref in device.pods}
    if name not in refs:
        raise _known("Pod", name, refs)
    facts = []
    pod = cluster.get(name)
    if pod is None:
        facts.append(("cluster", "not read, or the Pod is not in it; known from telemetry alone"))
    else:
        asked = ", ".join(f"{count} × {resource}" for resource, count in pod.accelerators.items())
        facts += [
            ("asks for", asked or "nothing (a claim may)"),
            ("node", pod.node or "none yet"),
            ("phase", pod.phase),
            ("runs for", ago(pod.started or pod.created, snapshot.at)),
            ("owner", pod.workload),
        ]
        if pod.gang:
            gang = next(item for item in snapshot.cluster.gangs if item.id == pod.gang)
            facts.append(("gang", f"{gang.id}: {len(gang.pods)} Pods, recognised by {gang.recognised_by}"))
    return _held(snapshot, {name}), {name}, facts


def _device(snapshot: Snapshot, name: str) -> Found:
    found = [device for device in shown(snapshot) if device.id == name]
    found = found or [device for device in shown(snapshot) if device.id.startswith(name) or device.uuid == name]
    if not found:
        raise _known("device", name, (device.id for device in shown(snapshot)))
    if len({device.uuid for device in found}) > 1:
        raise UnknownSubject(
            f"{len(found)} device ids begin with {name!r}: {', '.join(d.id for d in found[:5])}; write more of the id"
        )
    device = found[0]
    facts = [
        ("model", device.model or "not exported"),
        ("node", device.node or f"unresolved ({device.node_label or 'no host label'})"),
        ("index", device.index),
        ("driver", device.driver_version),
        ("MIG", ", ".join(item.mig_profile or "?" for item in found if item.mig_instance is not None) or "no"),
        ("allocated to", ", ".join(sorted({ref for item in found for ref in item.pods})) or "no Pod"),
        ("reports", "now" if device.present else f"not since {ago(device.last_seen, snapshot.at)}"),
    ]
    facts += [("not trusted", item.why) for item in snapshot.doubted if item.shown.id == device.id]
    return {item.id for item in found}, {ref for item in found for ref in item.pods}, facts


def _node(snapshot: Snapshot, name: str) -> Found:
    node = next((item for item in snapshot.cluster.nodes if item.name == name), None)
    devices = [device for device in shown(snapshot) if name in (device.node, device.node_label)]
    if node is None and not devices:
        names = {item.name for item in snapshot.cluster.nodes} | {device.node_label for device in shown(snapshot)}
        raise _known("Node", name, names)
    facts = [("devices", str(len(devices)))]
    if node is not None:
        facts += [
            ("pool", node.pool or "none given"),
            ("GPU", node.gpu_product or "not labelled"),
            ("cordoned", "yes" if node.unschedulable else "no"),
            ("ready", {True: "yes", False: "no", None: "not reported"}[node.ready]),
            ("taints", ", ".join(f"{item.key}:{item.effect}" for item in node.taints) or "none"),
        ]
    return {device.id for device in devices}, {ref for device in devices for ref in device.pods}, facts


def _group(snapshot: Snapshot, name: str) -> Found:
    pods = {pod.ref for pod in snapshot.cluster.pods if name in (pod.gang, pod.workload)}
    if not pods:
        names = {pod.workload for pod in snapshot.cluster.pods} | {
            pod.gang for pod in snapshot.cluster.pods if pod.gang
        }
        raise _known("gang or workload", name, names)
    return _held(snapshot, pods), pods, [("Pods", str(len(pods)))]


_FINDERS = {"pod": _pod, "device": _device, "gpu": _device, "node": _node, "gang": _group, "workload": _group}


_DEVICES = 32
"""Most devices that compact output lists one by one."""


def explanation_tables(item: SubjectExplanation, snapshot: Snapshot, *, wide: bool = True) -> RenderableType:
    """The verdict on each GPU and Pod, then what each rests on; equal conclusions once. wide: with every rule and its
    query; else rules that found nothing, or lack signals, are counted only."""
    grid = new_grid()
    for name, value in item.facts:
        grid.add_row(name, escape(value))
    parts: list[RenderableType] = [Text(item.subject, style="bold underline"), grid, Text()]
    if item.devices:
        parts += [_verdicts(item, snapshot, wide), Text()]
    told: set[tuple[Subject, str]] = set()
    counted: dict[Verdict, set[str]] = {Verdict.UNKNOWN: set(), Verdict.HEALTHY: set()}
    alike: dict[tuple[Verdict, str, str], list[Finding]] = {}
    for finding in item.findings:
        blind = finding.verdict is Verdict.UNKNOWN and finding.family is Family.HEALTH and bool(finding.missing)
        if not wide and (blind or finding.verdict is Verdict.HEALTHY):
            counted[finding.verdict].add(finding.rule)
        else:
            alike.setdefault((finding.verdict, finding.rule, finding.summary), []).append(finding)
    for (verdict, rule, summary), group in alike.items():
        names = listed([called(each.subject) for each in group], 3)
        on = "" if item.subject.endswith(f"/{names}") else f" on {names}"
        lines = [Text.assemble((f"{rule}{on}", "bold"), f": {summary}")]
        for finding in group if wide else group[:1]:
            for evidence in finding.evidence:
                if (fact := (finding.subject, evidence_line(evidence))) in told:
                    continue
                told.add(fact)
                lines.append(Text(fact[1], style="dim"))
                lines += [Text(f"  {evidence.note}", style="dim italic")] * bool(evidence.note)
                lines += [Text(f"  {evidence.promql}", style="cyan")] * bool(evidence.promql and wide)
            if finding.dissent:
                lines.append(Text(f"but {finding.dissent}", style="yellow"))
            if finding.missing and "missing: " not in summary:
                lines.append(Text(f"missing: {', '.join(finding.missing)}", style="dim"))
        parts.append(_beside(verdict, Group(*lines)))
    for verdict, rules in counted.items():
        unseen = verdict is Verdict.UNKNOWN
        how = "cannot tell: signals are missing (gpuwatch doctor)" if unseen else "found nothing wrong"
        if rules:
            parts.append(_beside(verdict, Text(f"{plural(len(rules), 'rule')} {how}; -o wide shows them")))
    if not item.findings:
        why = "it is not trusted" if "not trusted" in dict(item.facts) else "no telemetry of it was found"
        parts.append(Text(f"No rule has anything to say about it: {why}.", style="magenta"))
    known = {finding.id: finding for finding in item.findings}
    for plan in item.plan:
        done = f"worth doing, in mode {plan.mode}" if plan.admitted else "not planned"
        what = f"{plan.candidate.action.replace('_', ' ')} {plan.candidate.target.name}"
        parts.append(Text(f"\n{done}: {what}", style="bold"))
        parts.append(Padding(item_lines(plan, known, snapshot.cluster, snapshot.at, why=wide), (0, 0, 0, 2)))
    if item.sizing or item.sizing_note:
        parts.append(Text("\nRight size", style="bold"))
    if item.sizing_note:
        parts.append(Text(f"  {item.sizing_note}", style="dim"))
    parts += [workload_detail(one) for one in item.sizing]
    return Group(*parts)


def _beside(verdict: Verdict, what: RenderableType) -> RenderableType:
    """The verdict in a column of its own, so that long lines go on beside it."""
    grid = Table.grid(padding=(0, 1))
    grid.add_row(Text(f"{verdict:8}", style=_STYLE[verdict]), what)
    return grid


def _verdicts(item: SubjectExplanation, snapshot: Snapshot, wide: bool) -> RenderableType:
    """A row for each device: its health, and the use by each Pod on it."""
    table = new_table("", "GPU", "where", "health", "Pod", "use")
    devices = [device for device in shown(snapshot) if device.id in item.devices]
    listed_here = devices if wide else devices[:_DEVICES]
    for device in listed_here:
        pods = device.pods or ("",)
        table.add_row(
            FoldedName(device.id if wide else short_uuid(device.id)),
            FoldedName(f"{device.node or device.node_label or '?'} gpu {device.index or '?'}"),
            _health(each for each in item.findings if each.family is Family.HEALTH and device.id in each.devices),
            Group(*(FoldedName(pod or "none") for pod in pods)),
            Group(*(_use(item, pod) for pod in pods)),
        )
    return Group(table, *cut(len(devices), len(listed_here)))


def _health(findings: Iterable[Finding]) -> Text:
    """By the rules that could tell."""
    found = grouped(findings, lambda each: each.verdict)
    told = next((each for each in (Verdict.DEGRADED, Verdict.HEALTHY) if found[each]), Verdict.UNKNOWN)
    kinds = ", ".join(each.kind.replace("_", " ") for each in found[told])
    return Text(f"{told}: {kinds}" if told is Verdict.DEGRADED else told, style=_STYLE[told])


def _use(item: SubjectExplanation, pod: PodRef) -> Text:
    """What is said of the Pod, before what is said of one of its devices."""
    found = [each for each in item.findings if each.family is Family.IDLE and pod in each.pods]
    found.sort(key=lambda each: each.subject.name != pod)
    if not found:
        return Text(Verdict.UNKNOWN, style=_STYLE[Verdict.UNKNOWN]) if pod else Text("free", style="dim")
    kind = f": {found[0].kind.replace('_', ' ')}" if found[0].verdict is Verdict.IDLE else ""
    return Text(f"{found[0].verdict}{kind}", style=_STYLE[found[0].verdict])
