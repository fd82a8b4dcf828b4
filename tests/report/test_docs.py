"""docs/rules.md and docs/rules/ say what the code does: its names, defaults, metrics, XIDs, confidences and queries."""

import ast
import inspect
import json
import re
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest

from detect.builders import AT, device
from gpuwatch.act.analysis import Policies, missing_signals, rule_signals
from gpuwatch.act.execute.source import UNSHOWN
from gpuwatch.act.plan.guards import Guard
from gpuwatch.act.plan.policy import PlanPolicy
from gpuwatch.app.settings import load_settings
from gpuwatch.facts.catalog.detectors import dcgm_errors
from gpuwatch.facts.catalog.metrics import metric_rows, rows_for
from gpuwatch.facts.catalog.xids import XidClass, xids, xids_with_overrides
from gpuwatch.facts.model.decision import Advice, FindingKind, Severity, Snapshot
from gpuwatch.facts.model.telemetry import Schema, SignalFound
from gpuwatch.judge import fleet
from gpuwatch.judge.fleet import Grade
from gpuwatch.judge.health import assess as health
from gpuwatch.judge.health import capacity, unused, xid_events
from gpuwatch.judge.health.assess import HealthPolicy
from gpuwatch.judge.idle import assess as idle
from gpuwatch.judge.idle import explanation, past, signals, silence
from gpuwatch.judge.idle import partial_gang as idle_partial_gang
from gpuwatch.judge.idle import verdict as idle_verdict
from gpuwatch.judge.idle.assess import IdlePolicy
from gpuwatch.judge.misfit import assess as misfit
from gpuwatch.judge.misfit import contention
from gpuwatch.judge.misfit.assess import MisfitPolicy
from parts.prometheus_server import ServerBuild, running
from report.sick_series import NOW, SHOWN, openmetrics

ROOT = Path(__file__).parents[2]
PAGES = {page.stem: page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs" / "rules").glob("*.md"))}
INDEX = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
TEXT = "\n".join([INDEX, *PAGES.values()])
RUNBOOKS = {page.stem: page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "runbooks").glob("G*.md")}
POLICIES: dict[str, HealthPolicy | IdlePolicy | MisfitPolicy | PlanPolicy] = {
    "health": HealthPolicy(),
    "idle": IdlePolicy(),
    "misfit": MisfitPolicy(),
    "plan": PlanPolicy(),
}
RULES = rule_signals(Policies())
# What is said of what no rule could judge.
UNTOLD = {f"idle.{FindingKind.IDLE_UNKNOWN}", "idle.suspected_idle"}
GUARD_NAMES = set(map(str, Guard))
NEVER_SURE = {"health.operator_conflict", "health.pod_failures", "health.infiniband", "health.health_unknown"} | {
    "health.configuration",
    "health.out_of_service",
    "health.not_running",
    "health.used_outside",
}
"""Rules that conclude UNKNOWN alone."""
SHARED = (fleet, capacity, xid_events)
"""What several rules use."""
HEADINGS = [
    "What it says.",
    "What to do.",
    "What it looks at.",
    "When.",
    "What it does not do.",
    "What it needs.",
    "Check it yourself.",
]
# Where each rule's confidences and fixed bounds are written.
MODULES: dict[str, tuple[ModuleType, ...]] = {
    **{rule.name: (sys.modules[rule.judge.__module__], *SHARED) for rule in health.RULES},
    **dict.fromkeys(("health.out_of_service", "health.not_running"), (unused, *SHARED)),
    **dict.fromkeys(("idle.never_used", "idle.host_bound", "idle.bursty", "idle.in_use"), (idle_verdict,)),
    "idle.abandoned": (explanation,),
    "idle.partial_gang": (idle_partial_gang,),
    **dict.fromkeys(("misfit.hbm_contention", "misfit.pcie_contention"), (contention,)),
    "misfit.scattered": (misfit,),
}

# Where numbers are that no setting changes.
FIXED = (silence, explanation, past, signals, idle_verdict, contention)


def _sections(page: str) -> dict[str, str]:
    """Heading → text up to the next heading of its level."""
    return dict(re.findall(r"^## (.*)\n([\s\S]*?)(?=^## |\Z)", page, flags=re.MULTILINE))


SECTIONS = {
    name: text
    for page in PAGES.values()
    for name, text in _sections(page).items()
    if re.match(r"(health|idle|misfit)\.", name)
}
GUARD_SECTIONS = _sections(PAGES["guards"])
IDLE_COMMON = _sections(PAGES["idle"])["Common to the idle rules"]
HEALTH_COMMON = _sections(INDEX)["Common to the health rules"]


def _rule(section: str) -> str:
    """`health.presence` of `health.presence: gpu_missing`."""
    return section.partition(":")[0]


def _paragraph(section: str, heading: str) -> str:
    after = SECTIONS[section].partition(f"**{heading}**")[2]
    return re.split(r"^\*\*[A-Z]", after, maxsplit=1, flags=re.MULTILINE)[0]


def _of_rule(rule: str, heading: str) -> str:
    return "\n".join(_paragraph(section, heading) for section in SECTIONS if _rule(section) == rule)


def _table(text: str, first: str) -> list[list[str]]:
    """Cells of the table whose head begins with `first`, without markup of links and code."""
    lines = text.splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith(f"| {first} "))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line).replace("`", "")
        rows.append([cell.strip() for cell in plain.strip().strip("|").split("|")])
    return rows


def _overview() -> Iterator[tuple[str, str, str, str]]:
    """(rule, kind, severity → advice, state on the default list) of the table on top."""
    rule = ""
    for name, kinds, advice, state, _ in _table(INDEX, "rule"):
        rule = name or rule
        for kind in kinds.split(", "):
            yield rule, kind, advice, state


def test_every_rule_has_a_section_and_every_section_a_rule() -> None:
    assert {_rule(section) for section in SECTIONS} == {*RULES, *UNTOLD}
    kinds = {section.partition(": ")[2] for section in SECTIONS if _rule(section) == "health.presence"}
    assert kinds == {FindingKind.GPU_MISSING, FindingKind.EXPORTER_DOWN, FindingKind.TELEMETRY_MISSING}
    assert set(GUARD_SECTIONS) == GUARD_NAMES


def test_the_overview_lists_every_finding_kind_under_its_rule() -> None:
    listed = {kind: rule for rule, kind, _, _ in _overview()}
    absent = {FindingKind.GPU_MISSING, FindingKind.EXPORTER_DOWN, FindingKind.TELEMETRY_MISSING}
    assert set(listed) == set(FindingKind)
    for kind, rule in listed.items():
        assert rule == ("health.presence" if kind in absent else f"{rule.partition('.')[0]}.{kind}")
    assert set(listed.values()) == {_rule(section) for section in SECTIONS}


def test_what_the_rules_emit_is_in_the_overview() -> None:
    listed = {(rule, kind) for rule, kind, _, _ in _overview()}
    snapshot = Snapshot(at=AT, devices=(device(pods=("ml/a",)), device("gpu-1")))
    found = {
        (item.rule, str(item.kind))
        for item in (
            *health.assess_health(snapshot, HealthPolicy(), everything=True),
            *health.assess_health(Snapshot(at=AT), HealthPolicy()),
            *idle.assess_idle(snapshot, IdlePolicy(), everything=True),
            *misfit.assess_misfit(snapshot, MisfitPolicy(), PlanPolicy().topology_labels, everything=True),
        )
    }
    assert found <= listed
    by_the_cluster = {
        "idle.suspected_idle",
        "health.node_condition",
        "health.device_health",
        "health.pod_admission",
        "health.operator_conflict",
        "health.out_of_service",
        "health.not_running",
    }
    assert {rule for rule, _ in found} >= ({rule.name for rule in health.RULES} | UNTOLD) - by_the_cluster
    written = {
        node.value
        for module in (*(each for group in MODULES.values() for each in group), health, idle)
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if re.fullmatch(r"(health|idle|misfit)\.[a-z_]+", node.value)
    }
    assert written <= {rule for rule, _ in listed}


def test_severities_and_advice_of_the_overview_exist() -> None:
    for rule, _, text, _ in _overview():
        for clause in text.split("; "):
            severities, _, advice = clause.partition(" → ")
            assert set(severities.split(", ")) <= set(Severity), rule
            assert set(advice.split(", ")) <= set(Advice), rule


def test_the_overview_says_what_the_doctor_says_of_the_default_list() -> None:
    default = [row for row in metric_rows() if row.vocabulary == "dcgm" and row.default_exported]
    found = tuple(
        SignalFound(signal=row.signal, vocabulary="dcgm", metric=row.metric, scale=row.scale, devices=1)
        for row in default
    )
    missing = missing_signals(Schema(vocabularies=("dcgm",), signals=found), Policies())
    exported = {row.signal for row in default}
    spoken = {row.signal for row in metric_rows() if row.vocabulary == "dcgm"}
    for rule, _, _, state in _overview():
        signals = set(RULES.get(rule, ()))
        if signals and not signals & spoken:
            expected = "not NVIDIA"
        elif not missing.get(rule):
            expected = "complete"
        else:
            expected = "limited" if signals & exported else "blind"
        assert state == expected, rule
        needs = _of_rule(rule, "What it needs.")
        for signal in missing.get(rule, ()):
            names = [f"`{row.metric}`" for row in rows_for(signal) if row.vocabulary == "dcgm"]
            assert any(name in needs for name in names), f"{rule}: {signal}"


def test_the_overview_says_of_each_kind_that_may_end_pods_whether_one_read_shows_it() -> None:
    told = {kind: cells[4] for cells in _table(INDEX, "rule") for kind in cells[1].split(", ")}
    acting = {kind: text for kind, text in told.items() if text != "never acted on"}
    assert acting == {kind: f"no: {UNSHOWN[kind]}" if kind in UNSHOWN else "yes" for kind in map(FindingKind, acting)}
    idle_kinds = {FindingKind.NEVER_USED, FindingKind.ABANDONED, FindingKind.MODEL_LOADED, FindingKind.PARTIAL_GANG}
    assert idle_kinds | (UNSHOWN.keys() - {FindingKind.HEALTH_UNKNOWN, FindingKind.NOT_RUNNING}) <= acting.keys()


@pytest.mark.parametrize("section", SECTIONS)
def test_sections_have_the_same_headings_in_the_same_order(section: str) -> None:
    assert re.findall(r"^\*\*([A-Z][^*]*\.)\*\*", SECTIONS[section], flags=re.MULTILINE) == HEADINGS
    for heading in HEADINGS:
        assert _paragraph(section, heading).strip(), heading


def test_what_to_do_leads_to_every_runbook_that_names_the_rule() -> None:
    """A runbook that leads to a rule's section is among what that section says to do."""
    anchors = {re.sub(r"[^\w -]", "", name).replace(" ", "-"): name for name in SECTIONS}
    named = [
        (alert, anchors[anchor])
        for alert, text in RUNBOOKS.items()
        for anchor in re.findall(r"\.\./rules/\w[\w-]*\.md#((?:health|idle|misfit)\w[\w-]*)", text)
    ]
    assert len(named) > 20
    missing = [
        (alert, rule) for alert, rule in named if f"](../runbooks/{alert}.md)" not in _paragraph(rule, "What to do.")
    ]
    assert missing == []


@pytest.mark.parametrize("guard", sorted(GUARD_NAMES))
def test_guards_say_what_they_refuse_and_what_helps(guard: str) -> None:
    starts = re.findall(r"^- \*\*([A-Za-z ]+)\*\*", GUARD_SECTIONS[guard], flags=re.MULTILINE)
    assert starts in (["Refuses", "What helps"], ["Refuses", "Bound", "What helps"])
    assert " ".join(GUARD_SECTIONS[guard].partition("**What helps**: ")[2].split()).startswith(
        Guard[guard.upper()].helps
    )
    assert re.fullmatch(r"[A-Z].*\.", Guard[guard.upper()].helps)


def _bounds() -> list[tuple[str, str, str]]:
    return re.findall(r"`(health|idle|misfit|plan)\.(\w+) = ([^`]+)`", TEXT)


def test_defaults_are_those_of_the_code() -> None:
    for group, name, value in _bounds():
        default = getattr(POLICIES[group], name)
        assert ast.literal_eval(value) == default, f"{group}.{name}"
        assert type(ast.literal_eval(value)) is type(default), f"{group}.{name}"


def test_fixed_numbers_are_those_of_the_code() -> None:
    written = re.findall(r"`([A-Z][A-Z_]+) = ([^`]+)`", TEXT)
    fixed = {name: value for module in FIXED for name, value in vars(module).items()}
    assert written
    for name, value in written:
        assert ast.literal_eval(value) == fixed[name], name


@pytest.mark.parametrize("group", POLICIES)
def test_every_bound_is_on_the_page_and_explained_beside_its_default(group: str) -> None:
    policy = POLICIES[group]
    names = {item.name for item in fields(policy)}
    assert {name for found, name, _ in _bounds() if found == group} == names
    assert names <= set(re.findall(r"\w+", type(policy).__doc__ or ""))


def test_bounds_stand_in_sections_of_their_own_group() -> None:
    for section, text in SECTIONS.items():
        groups = {group for group, _, _ in re.findall(r"`(health|idle|misfit|plan)\.(\w+) = ([^`]+)`", text)}
        assert groups <= {section.partition(".")[0]}, section
    for guard, text in GUARD_SECTIONS.items():
        assert set(re.findall(r"`(\w+)\.\w+ = ", text)) <= {"plan"}, guard


@pytest.mark.parametrize("rule", RULES)
def test_signals_and_metrics_are_the_rules_and_the_catalogs(rule: str) -> None:
    text = _of_rule(rule, "What it looks at.")
    if "(#common-to-the-idle-rules)" in text:
        text += IDLE_COMMON
    pairs = set(re.findall(r"`([a-z0-9_]+)`\s+←[^`]*`([A-Za-z]\w*)", text))
    known = {(str(row.signal), row.metric) for row in metric_rows()}
    assert pairs <= known
    assert {signal for signal, _ in pairs} == {str(signal) for signal in RULES[rule]}


def test_every_metric_that_is_named_exists() -> None:
    known = {row.metric for row in metric_rows()}
    assert set(re.findall(r"\bDCGM_(?!FR_)\w+", TEXT)) <= known
    assert set(re.findall(r"\bDCGM_FR_\w+", TEXT)) <= set(dcgm_errors())


def test_the_error_codes_of_dcgm_are_the_catalogs() -> None:
    shown = {row[0]: row[1:3] for row in _table(SECTIONS["health.dcgm_health"], "error code, else watch")}
    expected = {
        row.code: [str(row.severity), str(row.advice)] for row in dcgm_errors().values() if row.shown_from <= 20
    }
    assert shown == expected


def test_the_table_of_names_is_the_catalog() -> None:
    used = sorted({signal for signals in RULES.values() for signal in signals})
    expected = []
    for signal in used:
        old = [row for row in rows_for(signal) if row.vocabulary == "dcgm"]
        new = [row for row in rows_for(signal) if row.vocabulary == "dcgm49"]
        if old:
            names = (", ".join(dict.fromkeys(row.metric for row in rows)) for rows in (old, new))
            expected.append([str(signal), *names, "yes" if any(row.default_exported for row in old) else "no"])
    assert _table(PAGES["metric-names"], "signal") == expected


def test_xids_are_in_their_class() -> None:
    rows = {row[0]: row[1] for row in _table(SECTIONS["health.xid"], "class")}
    assert set(rows) == set(XidClass)
    for name, codes in rows.items():
        listed: list[int] = []
        for part in codes.split(", "):
            first, _, last = part.partition("–")
            # A range stands for the numbers of the class within it: some were never given out.
            listed += [code for code in range(int(first), int(last or first) + 1) if code in xids()]
        assert listed == sorted(code for code, item in xids().items() if item.xid_class == name), name


def test_the_operators_own_classes_are_taken_as_shown(tmp_path: Path) -> None:
    (shown,) = re.findall(r"```yaml\n(.*?)```", SECTIONS["health.xid"], flags=re.DOTALL)
    file = tmp_path / "xids.yaml"
    file.write_text(shown, encoding="utf-8")
    found, gaps = xids_with_overrides(file)
    assert not gaps
    assert (found[63].xid_class, found[180].xid_class) == (XidClass.FATAL, XidClass.APPLICATION)
    assert 180 not in xids()
    settings = tmp_path / "settings.yaml"
    settings.write_text(f"xid_overrides: {file}\n", encoding="utf-8")
    assert load_settings(settings, environment={}).xid_overrides == file


@pytest.mark.parametrize("rule", MODULES)
def test_confidences_are_written_in_the_rules_module(rule: str) -> None:
    quoted = {float(number) for number in re.findall(r"\b[01]\.\d+", _of_rule(rule, "What it says."))}
    concluded = {
        value
        for module in MODULES[rule]
        for expression in _confidences(ast.parse(inspect.getsource(module)))
        for node in ast.walk(expression)
        if isinstance(value := _value(node, module), float)
    }
    assert quoted or rule in NEVER_SURE
    assert quoted <= concluded


@pytest.mark.parametrize("rule", [rule.name for rule in health.RULES])
def test_fixed_bounds_are_constants_of_the_rules_module(rule: str) -> None:
    shown = {float(number) for number in re.findall(r"\*\*([\d.]+)\*\*", _of_rule(rule, "When."))}
    assert shown <= _constants(*MODULES[rule])


def test_fixed_bounds_of_all_health_rules_are_constants() -> None:
    shown = {
        float(number) for number in re.findall(r"\*\*([\d.]+)\*\*", _sections(INDEX)["Common to the health rules"])
    }
    assert shown == {fleet.MIN_COVERAGE_RATIO, fleet.PEER_SPREAD_RATIO, fleet.PEER_DEVIATIONS}


def _constants(*modules: ModuleType) -> set[float]:
    return {float(value) for module in modules for value in vars(module).values() if isinstance(value, (int, float))}


def _value(node: ast.AST, module: ModuleType) -> object:
    """Of a number, or of the module's name for one."""
    if isinstance(node, ast.Constant):
        return node.value
    return vars(module).get(node.id) if isinstance(node, ast.Name) else None


def _confidences(tree: ast.Module) -> Iterator[ast.AST]:
    """What a module gives as a confidence: by that keyword or at that place of a call, under a name with that word in
    it, or in a function of such a name."""
    places = {"Grade": Grade._fields.index("confidence_ratio")}
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.FunctionDef):
            names = [each.arg for each in node.args.args]
            if "confidence" in node.name:
                yield node
        elif isinstance(node, ast.ClassDef):
            names = [ast.unparse(each.target) for each in node.body if isinstance(each, ast.AnnAssign)]
        if "confidence_ratio" in names:
            places[node.name] = names.index("confidence_ratio")  # type: ignore[attr-defined]
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "confidence_ratio":
            yield node.value
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in places:
            yield from node.args[places[ast.unparse(node.func)] :][:1]
        elif isinstance(node, ast.Assign) and any("confidence" in ast.unparse(each).lower() for each in node.targets):
            yield node.value


def _query(section: str) -> str:
    (found,) = re.findall(r"```promql\n(.*?)```", _paragraph(section, "Check it yourself."), flags=re.DOTALL)
    return str(found)


def test_queries_show_the_sick_and_nobody_else(prometheus_build: ServerBuild) -> None:
    assert set(SHOWN) <= set(SECTIONS)
    shown = {}
    with running(prometheus_build, openmetrics()) as url:
        for section in SECTIONS:
            asked = urllib.parse.urlencode({"query": _query(section), "time": NOW})
            with urllib.request.urlopen(f"{url}/api/v1/query?{asked}") as answer:
                rows = json.load(answer)["data"]["result"]
            shown[section] = {_name(row["metric"]) for row in rows}
    # The query of a rule that has no series of its own shows nobody of the others'.
    assert shown == {section: SHOWN.get(section, set()) for section in SECTIONS}


def _name(labels: dict[str, str]) -> str:
    named = ("exported_pod", "UUID", "gpu_uuid", "Hostname", "created_by_name", "node", "pod")
    return next((labels[name] for name in named if name in labels), "")
