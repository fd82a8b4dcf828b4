"""Why something is, or is not, idle or degraded: every rule's conclusion on one subject, and the plan for it."""

from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gpuwatch.model.decision import Family, Finding, Plan, PlanItem, Snapshot, SubjectKind, Verdict
from gpuwatch.model.sizing import Abstention, Recommendation
from gpuwatch.model.telemetry import DeviceId, PodRef
from gpuwatch.report.layout import new_grid
from gpuwatch.report.plan_tables import item_lines
from gpuwatch.report.sizing_tables import workload_detail
from gpuwatch.report.tables import evidence_line
from gpuwatch.report.words import ago, plural


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
        raise UnknownSubject(f"{subject!r}: write KIND/NAME with KIND one of {kinds}, or a workload's, as deployment")
    devices, pods, facts = _FINDERS[kind.lower()](snapshot, name)
    order = list(_STYLE)
    findings = (item for item in concluded if _concerns(item, devices, pods))
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
    kind = _SHORT.get(kind.lower(), kind.lower())
    kind = kind if kind in _FINDERS else _SHORT.get(kind.removesuffix("s"), kind.removesuffix("s"))
    if kind in ("device", "gpu", "node", "gang", "workload"):
        return f"{kind}/{name}"
    pods = {pod.ref for pod in snapshot.cluster.pods} | {ref for device in snapshot.devices for ref in device.pods}
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


def _concerns(item: Finding, devices: set[DeviceId], pods: set[PodRef]) -> bool:
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
    return {device.id for device in snapshot.devices if pods & set(device.pods)}


def _pod(snapshot: Snapshot, name: str) -> Found:
    cluster = {pod.ref: pod for pod in snapshot.cluster.pods}
    refs = set(cluster) | {ref for device in snapshot.devices for ref in device.pods}
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
    found = [device for device in snapshot.devices if device.id == name]
    found = found or [device for device in snapshot.devices if device.id.startswith(name) or device.uuid == name]
    if not found:
        raise _known("device", name, (device.id for device in snapshot.devices))
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
    return {item.id for item in found}, {ref for item in found for ref in item.pods}, facts


def _node(snapshot: Snapshot, name: str) -> Found:
    node = next((item for item in snapshot.cluster.nodes if item.name == name), None)
    devices = [device for device in snapshot.devices if name in (device.node, device.node_label)]
    if node is None and not devices:
        names = {item.name for item in snapshot.cluster.nodes} | {device.node_label for device in snapshot.devices}
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


def _blind(finding: Finding) -> bool:
    return finding.verdict is Verdict.UNKNOWN and finding.family is Family.HEALTH and bool(finding.missing)


def _hanging(text: Text) -> RenderableType:
    """The verdict in a column of its own, so that a long line goes on beside it."""
    grid = Table.grid(padding=(0, 1))
    grid.add_row(text[:9], text[10:])
    return grid


def explanation_tables(item: SubjectExplanation, snapshot: Snapshot, *, wide: bool = True) -> RenderableType:
    """wide: with every rule and its query; else rules that found nothing are counted only."""
    grid = new_grid()
    for name, value in item.facts:
        grid.add_row(name, escape(value))
    if item.devices:
        grid.add_row("telemetry", escape(", ".join(item.devices)))
    parts: list[RenderableType] = [Text(item.subject, style="bold underline"), grid, Text()]
    healthy = [finding for finding in item.findings if finding.verdict is Verdict.HEALTHY and not wide]
    blind = [finding for finding in item.findings if _blind(finding) and not wide]
    for finding in item.findings:
        if finding in healthy or finding in blind:
            continue
        head = Text(f"{finding.verdict:9}", style=_STYLE[finding.verdict])
        head.append(f" {finding.rule} ", style="bold")
        one = str(finding.subject) == item.subject or set(finding.devices) == set(item.devices)
        where = "" if one and not wide else f"on {finding.subject}: "
        head.append(f"{where}{finding.summary}", style="default")
        parts.append(_hanging(head))
        for evidence in finding.evidence:
            parts.append(Padding(Text(evidence_line(evidence), style="dim"), (0, 0, 0, 10)))
            if evidence.note:
                parts.append(Padding(Text(evidence.note, style="dim italic"), (0, 0, 0, 12)))
            if evidence.promql and wide:
                parts.append(Text(f"            {evidence.promql}", style="cyan"))
        if finding.missing:
            parts.append(Padding(Text(f"missing: {', '.join(finding.missing)}", style="dim"), (0, 0, 0, 10)))
    for every, folded, told in (
        (Verdict.UNKNOWN, blind, "cannot tell for want of signals (gpuwatch doctor)"),
        (Verdict.HEALTHY, healthy, "found nothing wrong"),
    ):
        if folded:
            rules = plural(len({finding.rule for finding in folded}), "rule")
            parts.append(Text(f"{every:9} {rules} {told}; -o wide shows them", style=_STYLE[every]))
    if not item.findings:
        parts.append(Text("No rule has anything to say about it: no telemetry of it was found.", style="magenta"))
    for plan in item.plan:
        verdict = f"worth doing, in mode {plan.mode}" if plan.admitted else "not planned"
        parts.append(
            Text(f"\n{verdict}: {plan.candidate.action.replace('_', ' ')} {plan.candidate.target.name}", style="bold")
        )
        known = {finding.id: finding for finding in item.findings}
        parts.append(Padding(item_lines(plan, known, snapshot.cluster, snapshot.at, why=wide), (0, 0, 0, 10)))
    if item.sizing or item.sizing_note:
        parts.append(Text("\nRight size", style="bold"))
    if item.sizing_note:
        parts.append(Text(f"          {item.sizing_note}", style="dim"))
    parts += [workload_detail(one) for one in item.sizing]
    return Group(*parts)
