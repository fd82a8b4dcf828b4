"""The diagnosis: which sources are connected, which exporters there are, and which metrics each rule lacks."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from gpuwatch.account.money import OLD_AFTER, PriceList, instance_type_of
from gpuwatch.act.analysis import Policies, missing_signals, rule_signals
from gpuwatch.act.execute.policy import ExecutePolicy
from gpuwatch.act.plan.policy import PlanPolicy
from gpuwatch.facts.catalog.metrics import MetricRow, rows_for
from gpuwatch.facts.frameworks.objects import Object, value_at
from gpuwatch.facts.model.cluster import Cluster
from gpuwatch.facts.model.decision import Snapshot
from gpuwatch.facts.model.telemetry import Gap, GapKind, Schema, Signal
from gpuwatch.judge.idle.signals import CONFIRMING
from gpuwatch.say.layout import new_grid, new_table, whole_or_line
from gpuwatch.say.tables import gap_tables, shown
from gpuwatch.say.words import duration, plural

_USUAL = ("dcgm",)
"""The vocabulary to name where no exporter was found."""

# The exporter replaces its defaults by a custom list, so a list that enables more has to repeat them.
_SERVICE_MONITOR = """\
spec:
  endpoints:
    - port: metrics            # gpu-metrics with the GPU Operator
      interval: 30s            # the exporter reads the hardware every 30 s; a shorter one repeats samples
      honorLabels: false       # the workload arrives as exported_pod, exported_namespace, exported_container
      relabelings:
        - sourceLabels: [__meta_kubernetes_pod_node_name]
          targetLabel: node    # the Node's name, as Kubernetes knows it
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleLimit:
    """A rule that lacks signals. `enable`: lines of the exporter's counter CSV, or metric names elsewhere."""

    rule: str
    missing: tuple[str, ...]
    present: tuple[str, ...]
    enable: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What `gpuwatch doctor` prints. `facts`: name → value."""

    telemetry: str
    cluster: str
    unreadable: bool  # a source did not answer
    limited: bool  # a rule lacks signals
    facts: dict[str, str]
    rules: tuple[RuleLimit, ...]
    gaps: tuple[Gap, ...]
    telemetry_schema: Schema
    counters_csv: str
    service_monitor: str


def switched_off(plan: PlanPolicy, execute: ExecutePolicy, writer_seconds: float) -> dict[str, str]:
    """Settings whose value takes a safeguard away, and which one. writer_seconds: after which a write fails."""
    found = {
        "execute.notice_period_seconds": (execute.notice_period_seconds == 0, "owners cannot object before an action"),
        "execute.write_timeout_seconds": (
            execute.write_timeout_seconds <= writer_seconds,
            f"a write may be under way for {writer_seconds:.0f} s, and is taken for lost before that",
        ),
        "plan.min_confidence_ratio": (plan.min_confidence_ratio == 0, "findings of any confidence are planned"),
        "plan.budget_ratio": (plan.budget_ratio == 1, "all of a pool or model may be out of service at once"),
        "plan.storm_ratio": (plan.storm_ratio == 1, "no share of degraded GPUs is a storm before all are"),
        "plan.idle_storm_ratio": (plan.idle_storm_ratio == 1, "no share of GPUs that look idle is a storm"),
    }
    return {f"{name} takes a safeguard away": why for name, (takes, why) in found.items() if takes}


def diagnose(snapshot: Snapshot, policies: Policies, telemetry: str, cluster: str) -> Diagnosis:
    """All limits of the answers here, with the lines that would lift each."""
    schema = snapshot.telemetry_schema
    found = {item.signal for item in schema.signals}
    signals_of = rule_signals(policies)
    rules = tuple(
        RuleLimit(
            rule=rule,
            missing=tuple(str(signal) for signal in missing),
            present=tuple(str(signal) for signal in signals_of[rule] if signal in found),
            enable=_enabling(schema.vocabularies, missing),
        )
        for rule, missing in sorted(missing_signals(schema, policies).items())
    )
    return Diagnosis(
        telemetry=telemetry,
        cluster=cluster,
        unreadable=any(gap.kind in (GapKind.UNREACHABLE, GapKind.REFUSED) for gap in snapshot.gaps),
        limited=bool(rules),
        facts=dict([*_facts(snapshot), ("idle is proven by", _idle_proof(schema)), *_cluster_facts(snapshot.cluster)]),
        rules=rules,
        gaps=snapshot.gaps,
        telemetry_schema=schema,
        counters_csv=_counters_csv(schema, rules),
        service_monitor=_SERVICE_MONITOR,
    )


def _enabling(vocabularies: Sequence[str], missing: Sequence[Signal]) -> tuple[str, ...]:
    rows = (row for signal in missing for row in rows_for(signal) if row.vocabulary in (vocabularies or _USUAL))
    return tuple(dict.fromkeys(row.exporter_line or row.metric for row in rows))


def _counters_csv(schema: Schema, rules: Sequence[RuleLimit]) -> str:
    """A whole counter list for dcgm-exporter: its defaults, what it exports now and gpuwatch reads, and what the rules
    lack; '' without such an exporter."""
    vocabulary = next((name for name in schema.vocabularies or _USUAL if name.startswith("dcgm")), "")
    if not vocabulary:
        return ""
    lines = ["# Counter list for dcgm-exporter. It replaces the default list, so the defaults are repeated here."]
    rows: dict[str, MetricRow] = {}
    for signal in Signal:
        for row in rows_for(signal):
            if row.vocabulary == vocabulary and row.exporter_line:
                rows.setdefault(row.exporter_line, row)
    lines += [line for line, row in rows.items() if row.default_exported]
    exported = {each.metric for each in schema.signals}
    kept = [line for line, row in rows.items() if row.metric in exported and not row.default_exported]
    lines += ["# Exported today beyond the defaults:", *kept] if kept else []
    lines.append("# What gpuwatch's rules lack here:")
    wanted = dict.fromkeys(line for rule in rules for line in rule.enable)
    lines += [line for line in wanted if line in rows and not rows[line].default_exported and line not in kept]
    return "\n".join(lines) + "\n"


def _facts(snapshot: Snapshot) -> list[tuple[str, str]]:
    schema = snapshot.telemetry_schema
    devices = shown(snapshot)
    down = [item.instance for item in snapshot.exporters if item.up is False]
    return [
        ("vocabularies", ", ".join(schema.vocabularies) or "none found"),
        ("backend", schema.backend or "unknown"),
        ("cluster filter", ", ".join(f"{key}={value!r}" for key, value in schema.matchers.items()) or "none"),
        ("host labels", ", ".join(schema.node_labels) or "none"),
        ("workload labels", schema.pod_labels or "none: telemetry does not say which Pod has which GPU"),
        ("sampling", f"every {duration(schema.interval_seconds)}" if schema.interval_seconds else "interval unknown"),
        ("signals", f"{len({item.signal for item in schema.signals})} of {len(Signal)} that gpuwatch knows"),
        ("exporters", f"{len(snapshot.exporters)}" + (f", down: {', '.join(down)}" if down else "")),
        (
            "devices",
            f"{len(devices)}, {sum(1 for device in devices if device.present)} reporting now, "
            f"{sum(1 for device in devices if device.node)} on a verified Node, "
            f"{len(snapshot.doubted)} not trusted",
        ),
        ("Pod ends known", _or_none(len(snapshot.pod_runs), "Pods", "kube-state-metrics has no requests of devices")),
        ("Node reboots known", _or_none(len(snapshot.boots), "Nodes", "no node_exporter with a Node's address")),
        ("InfiniBand ports", _or_none(len(snapshot.infiniband), "Nodes", "no node_exporter shows any")),
    ]


def _or_none(count: int, what: str, why: str) -> str:
    return f"of {count} {what}" if count else f"none: {why}"


def _idle_proof(schema: Schema) -> str:
    """The exported signals of which one has to confirm that a GPU is idle, or the lines that would export one."""
    found = {item.signal for item in schema.signals}
    if exported := [str(signal) for signal in CONFIRMING if signal in found]:
        return ", ".join(exported)
    lines = (line.partition(",")[0] for line in _enabling(schema.vocabularies, CONFIRMING))
    return f"nothing, so idle allocations are only suspected; export one of {', '.join(dict.fromkeys(lines))}"


def _cluster_facts(cluster: Cluster) -> list[tuple[str, str]]:
    if not cluster.known:
        return [("cluster", "not read")]
    gpu_nodes = sum(1 for node in cluster.nodes if node.accelerators)
    gangs = Counter(sorted(gang.framework for gang in cluster.gangs))
    return [
        ("nodes", f"{len(cluster.nodes)}, {gpu_nodes} with accelerators"),
        ("GPU Pods", f"{len(cluster.pods)} of {plural(len(cluster.workloads), 'workload')}"),
        ("gangs", ", ".join(f"{count} {name}" for name, count in gangs.items()) or "none"),
    ]


def price_fact(cluster: Cluster, prices: PriceList, at: datetime) -> str:
    """Of how many GPU Nodes the price is known, and whether the prices that count here are old."""
    nodes = [node for node in cluster.nodes if node.accelerators or node.gpu_product]
    rows = [row for node in nodes if (row := prices.row_of(node)) is not None]
    if not nodes:
        return "no GPU Node was read"
    told = f"known of {len(rows)} of {plural(len(nodes), 'GPU Node')}"
    if without := sorted({instance_type_of(node) or "no type" for node in nodes if prices.row_of(node) is None}):
        names = f"{', '.join(without[:5])}{' and others' if len(without) > 5 else ''}"
        told += f", not of {names}; give them in the setting prices"
    old = sorted({row for row in rows if at.date() - row.price_date > OLD_AFTER}, key=lambda row: row.price_date)
    if old:
        names = ", ".join(dict.fromkeys(row.name for row in old))
        told += (
            f". The price of {names} is of {old[0].price_date}, more than {OLD_AFTER.days} days ago: compare it with "
            "your provider's, and give the present one in the setting prices"
        )
    return told


_OURS = {"app.kubernetes.io/name": "gpuwatch", "app.kubernetes.io/component": "controller"}.items()


def installations(deployments: Iterable[Object]) -> str:
    """The controllers that run in the cluster, by the labels of their Deployments, and what to do about a second."""
    ours = [each for each in deployments if (each["metadata"].get("labels") or {}).items() >= _OURS]
    running = [each["metadata"] for each in ours if value_at(each, "/spec/replicas") != 0]
    found = sorted(f"{each['namespace']}/{each['name']}" for each in running)
    if len(found) < 2:
        return ", ".join(found) or "none runs"
    return (
        f"{len(found)}: {', '.join(found)}. Each acts on all Remediations of the cluster, and has a pause of its own. "
        "Keep one: scale the others to 0, then remove them (helm uninstall, or kubectl delete -k)."
    )


def _verdict(item: Diagnosis) -> Text:
    """In one line: can gpuwatch judge this fleet, and what to do first."""
    if item.unreadable:
        lost = sorted({gap.what for gap in item.gaps if gap.kind in (GapKind.UNREACHABLE, GapKind.REFUSED)})
        return Text(f"Not ready: {' and '.join(lost)} could not be read.\n", style="bold red")
    blind = sum(not rule.present for rule in item.rules)
    limited = len(item.rules) - blind
    if not item.rules:
        return Text("Ready: every rule has all the signals that it can use.\n", style="bold green")
    told = [f"{plural(blind, 'rule')} can conclude nothing"] if blind else []
    told += [f"{plural(limited, 'rule')} could know more"] if limited else []
    lines = "`gpuwatch doctor -o wide` prints the lines that enable them."
    return Text(f"Ready, with limits: {' and '.join(told)}. {lines}\n", style="bold yellow")


def diagnosis_tables(item: Diagnosis, *, wide: bool = True) -> RenderableType:
    """wide: with every missing signal, and the lines that enable them."""
    grid = new_grid()
    grid.add_row("telemetry", escape(item.telemetry))
    grid.add_row("cluster", escape(item.cluster))
    for name, value in item.facts.items():
        grid.add_row(name, escape(value))
    parts: list[RenderableType] = [_verdict(item), grid, Text()]
    if gaps := gap_tables(item.gaps, rows=len(item.gaps), wide=wide):
        parts += [*gaps, Text()]
    if not item.rules:
        parts.append(Text("Every rule has all the signals that it can use.", style="green"))
        return Group(*parts)
    table = new_table("Rules that could know more", "rule", "state", "lacks")
    for rule in item.rules:
        state = Text("limited", style="yellow") if rule.present else Text("blind", style="bold red")
        table.add_row(rule.rule, state, whole_or_line(f"{len(rule.missing)}: {', '.join(rule.missing)}", wide))
    parts += [table, Text()]
    if not wide:
        parts.append(Text("The lines that enable them: -o wide; a whole counter list: --csv-out FILE", style="dim"))
        return Group(*parts)
    lines = list(dict.fromkeys(line for rule in item.rules for line in rule.enable))
    if lines:
        parts.append(
            Text(
                "Add to the exporter's counter list. A custom list replaces the defaults (--csv-out writes a whole "
                "one), and an exporter refuses a field that its version does not know: try it on one Node first.",
                style="bold",
            )
        )
        parts += [Text(f"  {line}", style="cyan") for line in lines]
    parts.append(Text("\nServiceMonitor that keeps the Node's name and the workload's labels:", style="bold"))
    parts.append(Text(item.service_monitor, style="cyan"))
    return Group(*parts)
