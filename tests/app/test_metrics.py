"""/metrics: what is declared is exported, from the start and within bounds, and as Prometheus' own linter wants it."""

import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from itertools import product

import pytest
from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from app.told_fleet import END, LEDGER, RESTATED, leading, remediations, simulated
from gpuwatch.account.fleet_cost import FleetCost
from gpuwatch.act.plan.brakes import BRAKES
from gpuwatch.app.controller.metric_table import METRICS, ExportedBy, MetricDescription, MetricType, described
from gpuwatch.app.controller.metrics import Metrics
from gpuwatch.facts.catalog.tables import CatalogError
from gpuwatch.facts.model.decision import (
    ActionKind,
    Analysis,
    Family,
    Finding,
    FindingKind,
    Severity,
    Subject,
    SubjectKind,
    Verdict,
)
from gpuwatch.facts.model.ledger import LedgerEntry
from gpuwatch.facts.model.remediation import ObjectRef, Pause, Phase, Turn
from gpuwatch.facts.model.telemetry import Device, Vendor
from gpuwatch.sources.kube.writer import Failure, WriteError
from kube.memory_cluster import MemoryCluster
from parts.prometheus_server import ServerBuild
from report.terminal import analysis_of
from store.remediation_stores import T0, remediation

TARGET_LABELS = {"job", "instance", "namespace", "pod", "container", "node", "service", "endpoint"}
"""What Prometheus and the Prometheus Operator name a target with."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    return simulated(tmp_path_factory.mktemp("fleet"))


@pytest.fixture
def leader(fleet: Analysis) -> Metrics:
    return leading(fleet)


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def series(metrics: Metrics, name: str) -> list[tuple[dict[str, str], float]]:
    """Labels and value of every series of this name."""
    return [
        (dict(sample.labels), sample.value)
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == name
    ]


def exported(metrics: Metrics) -> dict[str, Metric]:
    """gpuwatch's own metrics by the name of their description, as a scraper reads them."""
    found = text_string_to_metric_families(generate_latest(metrics.registry).decode())
    return {
        family.name + ("_total" if family.type == "counter" else ""): family
        for family in found
        if family.name.startswith("gpuwatch_")
    }


def labels_of(family: Metric) -> set[tuple[str, ...]]:
    return {tuple(sorted(set(sample.labels) - {"le"})) for sample in family.samples}


def test_what_is_declared_is_what_is_exported(leader: Metrics) -> None:
    """Each metric has its type, its help and its labels, and the leader has a series of it."""
    declared = {each.name: each for each in METRICS}
    found = exported(leader)
    assert set(found) == set(declared)
    for name, family in found.items():
        each = declared[name]
        assert (family.type, family.documentation) == (str(each.type), each.meaning)
        assert labels_of(family) == {tuple(sorted(each.labels))}, name


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"type": "meter"}, "Invalid enum value 'meter' - at `$.type`"),
        ({"most_series": "many"}, "Expected `int`, got `str` - at `$.most_series`"),
        ({"help": "twice"}, "Object contains unknown field `help`"),
        ({"starts_with": ["colours"]}, "starts_with is ('colours',); expected one of actions"),
        ({"starts_with": ["phases", "actions"]}, "expected one of actions, booleans"),
        ({"labels": {"phase": "one of {colours}"}}, "labels have {colours}, which is no vocabulary"),
    ],
)
def test_a_row_that_is_wrong_is_named_with_its_field(wrong: Mapping[str, object], complaint: str) -> None:
    row = {"name": "gpuwatch_x", "type": "gauge", "meaning": "What.", "labels": {"phase": "one of {phases}"}}
    assert described(row, "metrics.yaml, row 1").labels == {"phase": "one of " + ", ".join(Phase)}
    with pytest.raises(CatalogError, match=re.escape(complaint)) as raised:
        described({**row, **wrong}, "metrics.yaml, row 1")
    assert raised.value.place == "metrics.yaml, row 1, gpuwatch_x"


def test_declarations_are_in_plain_words() -> None:
    names = [each.name for each in METRICS]
    assert len(names) == len(set(names))
    for each in METRICS:
        assert re.fullmatch(r"gpuwatch_[a-z_]+", each.name)
        assert re.search(r"[.]$", each.meaning), each.name
        assert all(each.labels.values()), each.name
        assert all(re.fullmatch(r"[a-z_]+|UUID|GPU_I_ID", label) for label in each.labels)
        assert not TARGET_LABELS & set(each.labels), each.name
        assert (each.type is MetricType.HISTOGRAM) == bool(each.buckets)
        assert (each.type is MetricType.COUNTER) == each.name.endswith("_total")
        for unit, suffix in (
            ("seconds", "_seconds"),
            ("seconds since 1970", "_timestamp_seconds"),
            ("ratio", "_ratio"),
        ):
            assert (each.unit != unit) or each.name.endswith(suffix), each.name


def test_a_target_label_of_prometheus_stays_the_targets(leader: Metrics) -> None:
    used = {label for family in leader.registry.collect() for sample in family.samples for label in sample.labels}
    assert used & TARGET_LABELS == set()


ACTIONS = ("taint_node", "evict_gang", "make_room", "release_gang")
BOTH = ("true", "false")
FROM_THE_START: Mapping[str, Iterable[tuple[str, ...]]] = {
    "gpuwatch_proposals_total": product(ACTIONS),
    "gpuwatch_remediation_transitions_total": product(ACTIONS, map(str, Phase)),
    "gpuwatch_remediation_phase_seconds": product(ACTIONS, (str(phase) for phase in Phase if phase.open)),
    "gpuwatch_cluster_writes_total": product(("create", "patch", "evict", "delete", "event"), BOTH),
    "gpuwatch_cluster_write_failures_total": product(
        ("create", "patch", "evict", "delete", "event", "get", "list"), map(str, Failure), BOTH
    ),
    "gpuwatch_deliveries_total": product(("report", "notification"), ("sent", "failed")),
    "gpuwatch_deliveries_pending": product(("report", "notification")),
    "gpuwatch_task_errors_total": product(("cycle",)),
    "gpuwatch_task_missed_total": product(("cycle",)),
    "gpuwatch_task_duration_seconds": product(("cycle",)),
    "gpuwatch_enforcement_cycles_total": product(
        map(str, ActionKind), ("false", "true"), [*map(str, BRAKES), "cluster_known", "unreachable", "nothing"]
    ),
    "gpuwatch_series_dropped": product(each.name for each in METRICS if each.most_series),
}
OF_WHAT_IS_FOLLOWED = {
    *("gpuwatch_inventory_lists_total", "gpuwatch_inventory_drift_total"),
    *("gpuwatch_ledger_gpu_seconds_total", "gpuwatch_ledger_cost_total", "gpuwatch_ledger_restated_gpu_seconds_total"),
}


def test_counters_and_histograms_are_there_from_the_start_at_zero() -> None:
    metrics = Metrics()
    metrics.job("cycle")
    for each in METRICS:
        if each.type is MetricType.GAUGE and each.name not in FROM_THE_START:
            continue
        if each.name in OF_WHAT_IS_FOLLOWED:  # resources and Namespaces are those that the cluster has
            continue
        sample = f"{each.name}_count" if each.type is MetricType.HISTOGRAM else each.name
        found = {tuple(labels[name] for name in each.labels): number for labels, number in series(metrics, sample)}
        assert found == dict.fromkeys(FROM_THE_START[each.name], 0.0), each.name


def test_gauges_without_labels_are_there_from_the_start() -> None:
    found = exported(Metrics())
    assert [each.name for each in METRICS if not each.labels and not found[each.name].samples] == []


def test_every_phase_of_a_course_is_among_the_declared(leader: Metrics) -> None:
    """Nothing that happens makes a series that was not there before."""
    for name in FROM_THE_START:
        fresh, after = exported(Metrics())[name], exported(leader)[name]
        labels = {tuple(sample.labels.items()) for sample in fresh.samples}
        if not name.startswith("gpuwatch_task_"):
            assert {tuple(sample.labels.items()) for sample in after.samples} == labels, name


@pytest.mark.parametrize("leads", [False, True])
def test_prometheus_own_linter_has_nothing_to_say(leads: bool, fleet: Analysis, prometheus_build: ServerBuild) -> None:
    told = generate_latest((leading(fleet) if leads else Metrics()).registry)
    checked = subprocess.run(
        [prometheus_build.promtool, "check", "metrics"], input=told, capture_output=True, check=False
    )
    assert (checked.stdout.decode() + checked.stderr.decode(), checked.returncode) == ("", 0)


def test_a_replica_that_leads_no_more_says_nothing_of_the_fleet(leader: Metrics) -> None:
    acted = {"action": "taint_node", "phase": str(Phase.ACTING)}
    counted = value(leader, "gpuwatch_remediation_transitions_total", **acted)
    leader.stood_down()
    found = exported(leader)
    assert value(leader, "gpuwatch_leader") == 0
    for each in METRICS:
        if each.exported_by is ExportedBy.LEADER and each.type is MetricType.GAUGE:
            values = [sample.value for sample in found[each.name].samples]
            assert values == ([] if each.labels else [0.0]), each.name
    assert {number for _, number in series(leader, "gpuwatch_series_dropped")} == {0.0}
    assert value(leader, "gpuwatch_remediation_transitions_total", **acted) == counted != 0


def test_findings_name_the_gpu_the_node_and_the_pod(leader: Metrics, fleet: Analysis) -> None:
    (sick,) = [
        item for item in fleet.findings if item.kind is FindingKind.ROW_REMAP and item.verdict is Verdict.DEGRADED
    ]
    (named,) = [labels for labels, _ in series(leader, "gpuwatch_finding") if labels["kind"] == "row_remap"]
    assert named["UUID"] == sick.subject.name
    assert named["gpu_node"] == sick.node
    assert (named["severity"], named["verdict"]) == ("critical", "degraded")
    idle = [item for item in fleet.findings if item.verdict is Verdict.IDLE]
    pods = {
        f"{labels['workload_namespace']}/{labels['workload_pod']}"
        for labels, _ in series(leader, "gpuwatch_finding")
        if labels["verdict"] == "idle"
    }
    assert pods == {min(item.pods) for item in idle} != set()
    counted = sum(number for _, number in series(leader, "gpuwatch_findings"))
    assert counted == sum(item.notable for item in fleet.findings)


def test_the_numbers_of_the_fleet_agree_with_each_other(leader: Metrics, fleet: Analysis) -> None:
    def total(name: str, **labels: str) -> float:
        return sum(number for found, number in series(leader, name) if labels.items() <= found.items())

    assert total("gpuwatch_device_health_unknown") == value(leader, "gpuwatch_unknown", subject="device_health") != 0
    assert value(leader, "gpuwatch_devices", state="allocated") == fleet.coverage.devices_allocated
    assert 0 < total("gpuwatch_allocated_gpus") < total("gpuwatch_allocatable_gpus") <= 64
    h100 = {"gpu_model": "H100-SXM5-80GB", "topology": ""}
    free = [
        gpus * total("gpuwatch_slots", gpus=str(gpus), **h100)
        + total("gpuwatch_gpus_in_no_slot", gpus=str(gpus), gpu_model="H100-SXM5-80GB")
        for gpus in (1, 2, 4, 8, 16, 32, 64)
    ]
    assert {*free} == {free[0]} != {0.0}
    assert total("gpuwatch_slots", gpus="1", **h100) > total("gpuwatch_slots", gpus="8", **h100)
    assert 0 < total("gpuwatch_unusable_gpus", gpu_model="H100-SXM5-80GB") < free[0]
    by_row = {
        row: total("gpuwatch_free_gpus", gpu_model="H100-SXM5-80GB", row=row)
        for row in ("usable", "waited_for", "unreachable", "unknown")
    }
    assert 0 < by_row["unreachable"] < sum(by_row.values()) == total("gpuwatch_free_gpus", gpu_model="H100-SXM5-80GB")
    assert sum(by_row.values()) <= total("gpuwatch_allocatable_gpus", gpu_model="H100-SXM5-80GB")
    assert {labels["room"] for labels, _ in series(leader, "gpuwatch_waiting_gpus")} == {
        "fits",
        "none",
        "new",
        "unknown",
    }
    assert total("gpuwatch_cost_per_hour", state="idle") > 0
    released = total("gpuwatch_saving_per_hour", target="release", confidence="likely")
    assert released == pytest.approx(total("gpuwatch_cost_per_hour", state="idle"))
    assert 0 < total("gpuwatch_saving_per_hour", target="release", confidence="pessimistic") < released
    assert {labels["currency"] for labels, _ in series(leader, "gpuwatch_cost_per_hour")} == {"USD"}
    assert total("gpuwatch_tainted_nodes") == 1
    ((of, age),) = series(leader, "gpuwatch_taint_age_seconds")
    assert (of, age > 0) == ({"gpu_node": "n0"}, True)


def test_what_has_no_price_has_no_series() -> None:
    metrics = Metrics()
    metrics.costs(FleetCost(allocatable={("A100", "a"): 8.0}, unpriced={("A100", "a"): 8.0}))
    assert series(metrics, "gpuwatch_cost_per_hour") == []
    assert series(metrics, "gpuwatch_saving_per_hour") == []
    assert value(metrics, "gpuwatch_unpriced_gpus", gpu_model="A100", pool="a") == 8


def test_the_ledgers_counters_are_what_is_kept() -> None:
    metrics = Metrics()
    time, cost = "gpuwatch_ledger_gpu_seconds_total", "gpuwatch_ledger_cost_total"

    def agree(entries: Iterable[LedgerEntry]) -> None:
        gpu_hours, spent = sum(each.gpu_hours for each in entries), sum(each.cost or 0 for each in entries)
        assert sum(number for _, number in series(metrics, time)) == pytest.approx(3600 * gpu_hours)
        assert sum(number for _, number in series(metrics, cost)) == pytest.approx(spent)

    metrics.accounted(END, LEDGER, "USD")
    agree(LEDGER)
    assert {labels["currency"] for labels, _ in series(metrics, cost)} == {"USD"}
    assert {labels["unknown"] for labels, _ in series(metrics, cost)} == {"false"}  # unknown ones have no price here
    assert value(metrics, "gpuwatch_ledger_final_timestamp_seconds") == END.timestamp()
    more = [replace(each, gpu_hours=each.gpu_hours + 1) for each in LEDGER]
    metrics.accounted(END + timedelta(hours=1), more, "USD")
    agree(more)
    metrics.stood_down()
    assert series(metrics, time) == series(metrics, cost) == []
    metrics.accounted(END + timedelta(hours=1), more, "USD")
    agree(more)
    metrics.accounted(END, LEDGER, "USD")  # the state was lost, and begins anew
    agree(LEDGER)


def test_what_was_found_lost_later_is_counted_apart() -> None:
    metrics, time = Metrics(), "gpuwatch_ledger_gpu_seconds_total"
    metrics.accounted(END, LEDGER, "USD", RESTATED)
    whole = series(metrics, time)
    ((labels, lost),) = series(metrics, "gpuwatch_ledger_restated_gpu_seconds_total")
    assert (labels["row"], labels["unknown"], labels["cause"], lost) == ("useful", "false", "node", 1800.0)
    metrics.accounted(END, LEDGER, "USD", [replace(each, gpu_hours=2.0) for each in RESTATED])
    assert [amount for _, amount in series(metrics, "gpuwatch_ledger_restated_gpu_seconds_total")] == [7200.0]
    assert series(metrics, time) == whole


def test_the_ledgers_first_series_stay_and_those_beyond_the_bound_are_counted() -> None:
    metrics = Metrics()
    many = [replace(LEDGER[0], namespace=f"team-{number}") for number in range(6000)]
    for entries in (many[:4000], many):
        metrics.accounted(END, entries, "USD")
    found = {labels["workload_namespace"] for labels, _ in series(metrics, "gpuwatch_ledger_gpu_seconds_total")}
    assert found == {f"team-{number}" for number in range(5000)}
    assert value(metrics, "gpuwatch_series_dropped", metric="gpuwatch_ledger_gpu_seconds_total") == 1000


def finding(number: int, severity: Severity) -> Finding:
    return Finding(
        rule="health.ecc",
        family=Family.HEALTH,
        kind=FindingKind.HEALTH_UNKNOWN,
        subject=Subject(SubjectKind.DEVICE, f"GPU-{number:04d}"),
        verdict=Verdict.UNKNOWN,
        summary="",
        severity=severity,
        devices=(f"GPU-{number:04d}",),
    )


def test_what_a_bound_leaves_out_is_counted() -> None:
    """The most severe findings stay, and the same ones each cycle; the same of the Nodes and of the Namespaces."""
    most = {each.name: each.most_series for each in METRICS}
    findings = [finding(number, Severity.INFO if number else Severity.CRITICAL) for number in reversed(range(1200))]
    devices = tuple(
        Device(
            id=item.subject.name,
            uuid=item.subject.name,
            vendor=Vendor.NVIDIA,
            vocabulary="dcgm",
            node=f"node-{item.subject.name}",
        )
        for item in findings
    )
    metrics, quiet = Metrics(), analysis_of(findings, at=T0, devices=devices)
    metrics.analysed(quiet)
    teams = {(f"team-{number}", "A100", "a"): 1.0 for number in range(2500)}
    cost = {(f"team-{number}", "allocated"): 1.0 for number in range(2500)}
    metrics.costs(FleetCost(allocated=teams, cost=cost))
    for name, there in (
        ("gpuwatch_finding", 1200),
        ("gpuwatch_device_health_unknown", 1200),
        ("gpuwatch_allocated_gpus", 2500),
        ("gpuwatch_cost_per_hour", 2500),
    ):
        found = series(metrics, name)
        assert len(found) == most[name] > 0
        assert value(metrics, "gpuwatch_series_dropped", metric=name) == there - most[name]
    named = {labels["UUID"] for labels, _ in series(metrics, "gpuwatch_finding")}
    assert named == {f"GPU-{number:04d}" for number in range(500)}
    assert {labels["workload_namespace"] for labels, _ in series(metrics, "gpuwatch_allocated_gpus")} == {
        f"team-{number}" for number in range(2000)
    }
    metrics.analysed(replace(quiet, findings=()))
    assert series(metrics, "gpuwatch_finding") == []
    assert value(metrics, "gpuwatch_series_dropped", metric="gpuwatch_finding") == 0


def test_no_metric_that_names_things_is_without_a_bound() -> None:
    """Labels whose values come from the cluster or from telemetry, and not from gpuwatch's own vocabulary."""
    of_the_cluster = {"gpu_node", "UUID", "workload_namespace", "workload_pod", "gpu_model", "pool", "scope"}

    def names_things(each: MetricDescription) -> bool:
        return bool(of_the_cluster & set(each.labels))

    assert [each.name for each in METRICS if names_things(each) and not each.most_series] == []


def test_how_long_a_phase_lasts_is_counted_when_it_is_left() -> None:
    metrics = Metrics()
    minutes = [(5, Phase.PROPOSED), (20, Phase.NOTIFIED), (21, Phase.ACTING), (23, Phase.FAILED)]
    each = remediation(history=tuple(Turn(T0 + timedelta(minutes=at), phase, str(at)) for at, phase in minutes))
    metrics.proposed(each)  # at T0, before any line of its history
    for index in range(len(each.history)):
        metrics.transitioned(each, index)

    def spent(phase: Phase) -> tuple[float | None, float | None]:
        labels = {"action": str(ActionKind.TAINT_NODE), "phase": str(phase)}
        name = "gpuwatch_remediation_phase_seconds"
        return value(metrics, f"{name}_count", **labels), value(metrics, f"{name}_sum", **labels)

    assert spent(Phase.PROPOSED) == (1, 20 * 60)  # a line of the history that is no other phase is no end of it
    assert spent(Phase.NOTIFIED) == (1, 60)
    assert spent(Phase.ACTING) == (1, 120)
    assert spent(Phase.VERIFYING) == (0, 0)
    turns = {phase: value(metrics, "gpuwatch_remediation_transitions_total", action="taint_node", phase=str(phase))
             for phase in Phase}  # fmt: skip
    assert {phase for phase, number in turns.items() if number} == {phase for _, phase in minutes}
    assert set(turns.values()) == {0, 1}
    assert value(metrics, "gpuwatch_proposals_total", action="taint_node") == 1


def test_precision_counts_outcomes_and_nothing_else() -> None:
    metrics = Metrics()
    (held,) = [
        each
        for each in remediations()
        if each.phase is Phase.IN_EFFECT and each.proposal.action is ActionKind.RELEASE_GANG
    ]
    metrics.remembered((held,), Pause(), T0)
    assert value(metrics, "gpuwatch_detector_outcomes", detector="abandoned", correct="true") is None  # not yet known
    right = [replace(held, name=f"right-{number}", phase=Phase.SUCCEEDED) for number in range(3)]
    wrong = replace(held, name="wrong", phase=Phase.UNDONE, undo_asked=True)
    metrics.remembered((*right, wrong), Pause(), T0)
    assert value(metrics, "gpuwatch_detector_outcomes", detector="abandoned", correct="true") == 3
    assert value(metrics, "gpuwatch_detector_outcomes", detector="abandoned", correct="false") == 1
    lower = value(metrics, "gpuwatch_detector_precision_ratio", detector="abandoned", bound="lower")
    upper = value(metrics, "gpuwatch_detector_precision_ratio", detector="abandoned", bound="upper")
    assert lower is not None
    assert upper is not None
    assert 0.30 < lower < 0.75 < upper < 0.96  # Wilson's interval of 3 in 4


def test_requests_to_the_cluster_are_counted_by_what_became_of_them() -> None:
    metrics, cluster = Metrics(), MemoryCluster()
    plain = metrics.counted(cluster, rehearsal=False)
    rehearsal = metrics.counted(cluster, rehearsal=True)
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a", "namespace": "ml", "labels": {"app": "a"}},
        "spec": {},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }
    plain.create(pod)
    with pytest.raises(WriteError):
        plain.create(pod)
    assert value(metrics, "gpuwatch_cluster_writes_total", verb="create", dry_run="false") == 1
    conflict = {"verb": "create", "failure": "conflict", "dry_run": "false"}
    assert value(metrics, "gpuwatch_cluster_write_failures_total", **conflict) == 1
    budget = {"verb": "evict", "failure": "budget", "dry_run": "true"}
    assert value(metrics, "gpuwatch_cluster_write_failures_total", **budget) == 0
    cluster.put(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "a", "namespace": "ml"},
            "spec": {"selector": {"matchLabels": {"app": "a"}}},
            "status": {"disruptionsAllowed": 0},
        }
    )
    with pytest.raises(WriteError):
        rehearsal.evict(ObjectRef("v1", "Pod", "a", "ml"))
    assert value(metrics, "gpuwatch_cluster_write_failures_total", **budget) == 1
    assert plain.get(ObjectRef("v1", "Pod", "a", "ml")) is not None
    assert value(metrics, "gpuwatch_cluster_writes_total", verb="get", dry_run="false") is None


def test_modes_and_refusals_are_those_of_the_last_plan(leader: Metrics, fleet: Analysis) -> None:
    assert fleet.plan.items
    assert fleet.plan.brake
    items = {tuple(labels.values()): number for labels, number in series(leader, "gpuwatch_plan_items")}
    assert sum(items.values()) == len(fleet.plan.items)
    assert {admitted for _, _, admitted in items} == {"false"}
    refused = sum(number for _, number in series(leader, "gpuwatch_plan_refusals"))
    assert refused == sum(len(item.refusals) for item in fleet.plan.items)
    assert value(leader, "gpuwatch_brake") == 1
    limits = {labels["scope"]: number for labels, number in series(leader, "gpuwatch_budget_limit_nodes")}
    assert limits == {use.scope: use.limit_nodes for use in fleet.plan.budgets}
