"""Writes docs/names.md and docs/settings.md below what is said there by hand: every public word of gpuwatch, taken from
where the product itself has it. In docs/rules.md and docs/rules/ it writes the rows of tables, and the definitions of
`tools.crds`.

python -m tools.names [--check]: writes the files, or compares them and exits with 1 where one differs.
"""

import ast
import dataclasses
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

from gpuwatch.act.analysis import Policies, missing_signals, rule_signals
from gpuwatch.act.execute import requests
from gpuwatch.act.plan.guards import Guard
from gpuwatch.app.controller.metric_table import METRICS
from gpuwatch.app.exit_code import ExitCode
from gpuwatch.app.settings import Settings
from gpuwatch.facts.catalog.metrics import metric_rows, rows_for
from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.model.decision import ActionKind, Advice, Component, Family, FindingKind, Mode, Severity, Verdict
from gpuwatch.facts.model.remediation import Phase, StepKind
from gpuwatch.facts.model.sizing import AbstentionKind, OutcomeVerdict, TargetKind
from gpuwatch.facts.model.telemetry import GapKind, Schema, SignalFound
from gpuwatch.judge.health.assess import RULES
from tools import crds, generated
from tools.generated import ROOT

DOCS = ROOT / "docs"

UNITS = {
    "gpu_hours_per_week": "GPU-hours a week", "bytes_per_second": "bytes/s", "per_second": "1/s", "per_minute": "1/min",
    "per_hour": "1/h", "per_week": "1/week", "seconds": "s", "hours": "h", "days": "d", "ratio": "ratio",
    "gpus": "GPUs", "bytes": "bytes", "watts": "W", "celsius": "°C",
}  # fmt: skip
"""By the end of a setting's name, the longest first."""


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    names = list(head)
    yield "| " + " | ".join(names) + " |"
    yield "|" + "---|" * len(names)
    for row in rows:
        cells = [" ".join(cell.split()).replace("|", "\\|") for cell in row]
        if not all(cells[0:1]) or not cells[-1]:
            raise ValueError(f"docs/names.md: a row has no name or no meaning: {cells}")
        yield "| " + " | ".join(cells) + " |"
    yield ""


def code(text: object) -> str:
    return f"`{text}`" if str(text) else ""


def meanings(kind: type[Enum]) -> dict[str, str]:
    """Member → the comment behind it, or the lines of comment above it."""
    found: dict[str, str] = {}
    above = ""
    for line in inspect.getsource(kind).splitlines():
        text = line.strip()
        if text.startswith("#"):
            above = f"{above} {text.lstrip('# ')}".strip()
            continue
        member = re.match(r"([A-Z_0-9]+) = .*?(?:  # (.*))?$", text)
        if member:
            found[member[1]] = member[2] or above
        above = ""
    return found


def words(kind: type[Enum]) -> Iterator[tuple[str, str]]:
    said = meanings(kind)
    return ((code(member.value), said.get(member.name, "")) for member in kind)


def constants(module: ModuleType) -> Iterator[tuple[str, str]]:
    """(value, the text below it) of a module's public constants."""
    told = explained(ast.parse(inspect.getsource(module)).body)
    return ((str(getattr(module, name)), text) for name, text in told if name.isupper() and name != "PREFIX")


def explained(body: Iterable[ast.stmt]) -> Iterator[tuple[str, str]]:
    """(name, the text below it) of each assignment."""
    for here, below in pairwise(body):
        if isinstance(here, ast.Assign | ast.AnnAssign) and isinstance(below, ast.Expr):
            target = here.target if isinstance(here, ast.AnnAssign) else here.targets[0]
            if isinstance(target, ast.Name) and isinstance(below.value, ast.Constant):
                yield target.id, str(below.value.value)


def metrics() -> Iterator[str]:
    yield "## Metrics\n"
    yield (
        "Scrape them without `honorLabels`: none of gpuwatch's own labels is one that Prometheus attaches to a target. "
        "The leader's metrics describe its last cycle. Other replicas do not export them, so a sum over replicas "
        "counts nothing twice.\n"
    )
    for exported_by, title in (("replica", "Of every replica"), ("leader", "Of the leader only")):
        yield f"### {title}\n"
        yield from table(
            ("metric", "type", "unit", "labels", "meaning"),
            (
                (
                    code(item.name),
                    item.type,
                    item.unit or "–",
                    "; ".join(f"`{label}`: {meaning}" for label, meaning in item.labels.items()) or "–",
                    item.meaning,
                )
                for item in METRICS
                if item.exported_by == exported_by
            ),
        )


def fields_of(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str, str]]:
    for name, item in schema.get("properties", {}).items():
        if path == "" and name in ("apiVersion", "kind", "metadata"):
            continue
        here = f"{path}.{name}".removeprefix(".")
        inner = item
        kind = str(item.get("type", "integer or string"))
        while inner.get("type") == "array":
            inner = inner["items"]
            here += "[]"
        if item.get("type") == "array":
            kind = "list"
        if "enum" in inner:
            kind = "one of " + ", ".join(code(value) for value in inner["enum"])
        elif re.search(inner.get("pattern", "$^"), "1.5"):
            kind = "quantity"
        elif inner.get("format"):
            kind = f"{kind}, {inner['format']}"
        yield here, kind, str(item.get("description", ""))
        yield from fields_of(inner, here)


def resources() -> Iterator[str]:
    yield "## Custom resources\n"
    yield "Group `gpuwatch.dev`, version `v1alpha1`. `kubectl explain` says the same.\n"
    told: dict[str, tuple[str, str]] = {}
    for definition in crds.definitions():
        spec = definition["spec"]
        names, version = spec["names"], spec["versions"][0]
        yield f"### {names['kind']}\n"
        schema = version["schema"]["openAPIV3Schema"]
        scope = "in a Namespace" if spec["scope"] == "Namespaced" else "of the cluster"
        yield f"{schema['description']} Scope: {scope}. Short name: `{names['shortNames'][0]}`.\n"
        columns = version.get("additionalPrinterColumns", [])
        if columns:
            wide = [item["name"] for item in columns if item.get("priority")]
            shown = ", ".join(item["name"] for item in columns if not item.get("priority"))
            yield f"Columns: {shown}" + (f"; with `-o wide` also {', '.join(wide)}.\n" if wide else ".\n")
        conditions = crds.CONDITIONS.get(names["kind"], {})
        if conditions:
            yield from table(("condition", "True means"), ((code(name), text) for name, text in conditions.items()))
        rows = list(fields_of(schema))
        new = [row for row in rows if told.get(row[0]) != row[1:]]
        if len(new) < len(rows) / 2:
            yield "Its fields are those of the Remediation above, except for these:\n"
        else:
            new = rows
        yield from table(("field", "type", "meaning"), ((code(a), b, c) for a, b, c in new))
        told |= {path: (kind, text) for path, kind, text in rows}


def entries(doc: str, names: Iterable[str]) -> dict[str, str]:
    """Field → its text in a policy's docstring: `name, other: text`, at the beginning of a line or of a sentence, up to
    the next one or the end of the paragraph."""
    name = "|".join(sorted(names, key=len, reverse=True))
    heads = re.compile(rf"(?:^[ ]*|(?<=[.;] ))((?:{name})(?:(?:,| and) (?:{name}))*): ", re.MULTILINE)
    found: dict[str, str] = {}
    for paragraph in inspect.cleandoc(doc).split("\n\n"):
        _, *rest = heads.split(paragraph)
        for listed, text in zip(rest[::2], rest[1::2], strict=True):
            found |= dict.fromkeys(re.split(r", | and ", listed), text)
    return found


def unit_of(name: str) -> str:
    return next((f"{unit}" for end, unit in UNITS.items() if name.endswith(f"_{end}")), "–")


def shown(value: object) -> str:
    if isinstance(value, bool):
        return code(str(value).lower())
    if value is None or value in ("", (), {}):
        return "–"
    if isinstance(value, Enum):
        return code(value.value)
    if isinstance(value, tuple):
        return ", ".join(shown(each) for each in value)
    return code(value)


def policy_rows(kind: type, path: str) -> Iterator[tuple[str, str, str, str]]:
    texts = entries(kind.__doc__ or "", (item.name for item in dataclasses.fields(kind)))
    for item in dataclasses.fields(kind):
        default = item.default if item.default is not dataclasses.MISSING else None
        if item.default_factory is not dataclasses.MISSING:
            default = item.default_factory()
        if default is not None and dataclasses.is_dataclass(default):
            yield from policy_rows(type(default), f"{path}.{item.name}")
        else:
            yield code(f"{path}.{item.name}"), shown(default), unit_of(item.name), texts.get(item.name, "")


def settings() -> Iterator[str]:
    groups = [name for name, field in Settings.model_fields.items() if policy_of(field.annotation)]
    listed = ", ".join(f"[{name}](#{name})" for name in groups)
    head = _by_hand("settings", "## Top level")
    yield re.sub(r"(?m)^Groups: .*$", f"Groups: [top level](#top-level), {listed}.", head) + "\n## Top level\n"
    (made,) = ast.parse(inspect.getsource(Settings)).body
    assert isinstance(made, ast.ClassDef)
    below = dict(explained(made.body))
    alone = [
        (code(name), shown(field.default), "–", below.get(name, ""))
        for name, field in Settings.model_fields.items()
        if policy_of(field.annotation) is None
    ]
    yield from table(("setting", "default", "unit", "meaning"), alone)
    for name, field in Settings.model_fields.items():
        kind = policy_of(field.annotation)
        if kind is not None:
            yield f"## {name}\n"
            yield from table(("setting", "default", "unit", "meaning"), policy_rows(kind, name))


def policy_of(annotation: object) -> type | None:
    options = getattr(annotation, "__args__", (annotation,))
    return next((item for item in options if isinstance(item, type) and dataclasses.is_dataclass(item)), None)


def vocabulary() -> Iterator[str]:
    yield "## Words in findings, plans and Remediations\n"
    yield (
        "In JSON, metrics, settings and on the command line as written here; in the Kubernetes API in CamelCase "
        "(`taint_node` is `TaintNode`).\n"
    )
    for title, kind in (
        ("Families of findings", Family),
        ("Components of a GPU", Component),
        ("Verdicts", Verdict),
        ("Severities", Severity),
        ("Advice", Advice),
        ("Actions", ActionKind),
        ("Modes", Mode),
        ("Phases of a Remediation", Phase),
        ("Steps of a Remediation", StepKind),
        ("Targets of right-sizing", TargetKind),
        ("Why nothing is advised", AbstentionKind),
        ("What became of advice", OutcomeVerdict),
        ("Gaps: what could not be read", GapKind),
    ):
        yield f"### {title}\n"
        yield from table(("word", "meaning"), words(kind))
    yield "### Finding kinds\n"
    yield "[rules.md](rules.md) says which evidence each needs.\n"
    yield from table(("kind", "meaning"), words(FindingKind))
    yield "### Guards\n"
    yield "The page on [guards](rules/guards.md) says in full what each refuses, its bounds, and what helps.\n"
    # The first sentence of each guard's section.
    heads = re.findall(
        r"^## (\w+)\n\n- \*\*Refuses\*\* (.*?\.)(?=\s)",
        (DOCS / "rules" / "guards.md").read_text(encoding="utf-8"),
        re.M | re.S,
    )
    rows = ((code(name), text.replace("](../", "]("), Guard[name.upper()].helps) for name, text in heads)
    yield from table(("guard", "refuses", "what helps"), rows)


def _by_hand(page: str, end: str) -> str:
    """What the page says before this heading."""
    return (DOCS / f"{page}.md").read_text(encoding="utf-8").partition(end)[0].rstrip() + "\n"


def names_page() -> str:
    parts = [_by_hand("names", "## Metrics"), *metrics(), *resources()]
    parts += ["## Annotations, labels, taints and conditions", ""]
    parts += table(("key", "meaning"), ((code(key), text) for key, text in constants(keys)))
    parts += ["## Events", "", "On the object that an action concerns, reported by `gpuwatch.dev/controller`.", ""]
    parts += table(("reason", "meaning"), ((code(reason), text) for reason, text in constants(requests)))
    parts += ["## Exit codes", ""]
    parts += table(("code", "meaning"), ((code(int(item)), item.meaning) for item in ExitCode))
    parts += vocabulary()
    return "\n".join(parts).rstrip() + "\n"


def settings_page() -> str:
    return "\n".join(settings()).rstrip() + "\n"


def overview() -> Iterator[str]:
    """The rows of the health rules in the table on top of docs/rules.md. On the default list: by what `gpuwatch doctor`
    says where dcgm-exporter exports that alone."""
    rows = [row for row in metric_rows() if row.vocabulary == "dcgm"]
    found = tuple(
        SignalFound(signal=row.signal, vocabulary="dcgm", metric=row.metric, scale=row.scale, devices=1)
        for row in rows
        if row.default_exported
    )
    exported, spoken = {each.signal for each in found}, {row.signal for row in rows}
    missing = missing_signals(Schema(vocabularies=("dcgm",), signals=found), Policies())
    signals_of = rule_signals(Policies())
    pages = {
        heading.partition(":")[0]: page.name
        for page in (DOCS / "rules").glob("*.md")
        for heading in re.findall(r"^## (.*)$", page.read_text(encoding="utf-8"), re.M)
    }
    for rule in RULES:
        signals = set(signals_of[rule.name])
        state = "limited" if signals & exported else "blind"
        state = "complete" if rule.name not in missing else state
        state = "not NVIDIA" if signals and not signals & spoken else state
        name = rule.name
        for told in rule.tells:
            advice = told.advice.replace(":", " →")
            heading = rule.name.replace(".", "") + (f"-{told.kind}" if len(rule.tells) > 1 else "")
            anchor = f"rules/{pages[rule.name]}#{heading}"
            kind = f"[`{told.kind}`]({anchor})" if len(rule.tells) > 1 else f"`{told.kind}`"
            acts = re.search("reset|reboot|inspect|replace", told.advice)
            shown = (f"no: {rule.unshown}" if rule.unshown else "yes") if acts else "never acted on"
            row = f"| {f'[{name}]({anchor})' if name else ''} | {kind} | {advice} | {state} | {shown} |"
            yield row.replace("|  |", "| |")
            name = ""


def metric_names() -> Iterator[str]:
    """The rows of the table of metric names: of each signal that a rule rests on, as dcgm-exporter names it."""
    for signal in sorted({signal for signals in rule_signals(Policies()).values() for signal in signals}):
        old = [row for row in rows_for(signal) if row.vocabulary == "dcgm"]
        new = [row for row in rows_for(signal) if row.vocabulary == "dcgm49"]
        if old:
            named = (
                ", ".join(f"`{name}`" for name in dict.fromkeys(row.metric for row in rows)) for rows in (old, new)
            )
            shown = "yes" if any(row.default_exported for row in old) else "no"
            yield f"| `{signal}` | {' | '.join(named)} | {shown} |".replace("|  |", "| |")


def rules_page() -> str:
    """docs/rules.md with the rows of the health rules; the rest of the page is written by hand."""
    lines = (DOCS / "rules.md").read_text(encoding="utf-8").splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("| [health."))
    last = next(number for number, line in enumerate(lines) if line.startswith("| [idle."))
    lines[first:last] = overview()
    return "\n".join(lines) + "\n"


def metric_names_page() -> str:
    return "\n".join([*_by_hand("rules/metric-names", "| `").splitlines(), *metric_names()]) + "\n"


def files() -> dict[Path, str]:
    pages = {"names": names_page(), "settings": settings_page(), "rules": rules_page()}
    pages["rules/metric-names"] = metric_names_page()
    return {crds.FILE: crds.page(), **{DOCS / f"{name}.md": text for name, text in pages.items()}}


if __name__ == "__main__":
    sys.exit(generated.main("names", files, sys.argv[1:]))
