"""The shipped alerts: each side of every number by promtool, their texts, their runbooks, that the files are fresh."""

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuwatch.facts.catalog.xids import XidClass, xids
from parts.prometheus_server import ServerBuild
from rules.alert_cases import all_cases
from rules.promtool import Case, evaluate, wrong
from tools.generated import main, with_runbooks
from tools.rules import alerts as generator
from tools.rules.__main__ import files

ROOT = Path(__file__).resolve().parents[2]
FILES = ("rules/gpuwatch-alerts.yaml", "rules/gpuwatch-alerts-optional.yaml")
RUNBOOKS = ROOT / "docs" / "runbooks"


RULES: dict[str, dict[str, Any]] = {
    rule["alert"]: rule
    for file in FILES
    for group in yaml.safe_load((ROOT / file).read_text())["groups"]
    for rule in group["rules"]
}


def cases_of(alert: str, major: int) -> list[Case]:
    return [case for case in all_cases(major) if case.alert == alert]


def alone(rule: dict[str, Any]) -> dict[str, Any]:
    return {"groups": [{"name": "one", "rules": [rule]}]}


def test_the_files_are_what_the_list_says() -> None:
    assert main("rules", files, ["--check"]) == 0, "make rules"


Source = dict[str, Any]


def _without_severity(source: Source) -> None:
    del source["groups"]["hardware"][0]["severity"]


def _of_a_severity_that_is_none(source: Source) -> None:
    source["groups"]["hardware"][0]["severity"] = "page"


def _with_a_field_that_is_none(source: Source) -> None:
    source["groups"]["hardware"][0]["labels"] = {}


def _with_a_piece_that_is_none(source: Source) -> None:
    source["groups"]["hardware"][0]["summary"] = "XID on << gpus >>"


def _with_a_class_that_is_none(source: Source) -> None:
    source["groups"]["hardware"][0]["expr"] = '<< new_xid("deadly", "1h") >>'


def _with_a_piece_too_many(source: Source) -> None:
    source["pieces"]["rack"] = "Rack {{ $labels.rack }}"


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_without_severity, "alert GpuXidFatal: Object missing required field `severity`"),
        (_of_a_severity_that_is_none, "alert GpuXidFatal: Invalid enum value 'page'"),
        (_with_a_field_that_is_none, "alert GpuXidFatal: Object contains unknown field `labels`"),
        (_with_a_piece_that_is_none, "alert GpuXidFatal, summary: 'gpus' is undefined"),
        (_with_a_class_that_is_none, "alert GpuXidFatal, expr: 'deadly' is not a valid XidClass"),
        (_with_a_piece_too_many, "nothing uses rack"),
    ],
)
def test_a_mistake_in_the_list_is_named(spoil: Callable[[Source], None], said: str) -> None:
    source = yaml.safe_load(generator.LIST.read_text())
    assert generator.read(source)
    spoil(source)
    with pytest.raises(ValueError, match=re.escape(said)):
        generator.read(source)


def test_another_place_for_the_runbooks_stands_in_every_alert() -> None:
    written = with_runbooks(files(), "https://wiki.example/gpu/")
    for file in FILES:
        rules = [rule for group in yaml.safe_load(written[ROOT / file])["groups"] for rule in group["rules"]]
        assert {rule["annotations"]["runbook_url"] for rule in rules} == {
            f"https://wiki.example/gpu/{rule['alert']}.md" for rule in rules
        }


@pytest.mark.prometheus
def test_promtool_finds_nothing(prometheus_build: ServerBuild) -> None:
    done = subprocess.run(
        [prometheus_build.promtool, "check", "rules", *(ROOT / file for file in FILES)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "SUCCESS" in done.stdout


@pytest.mark.prometheus
@pytest.mark.parametrize("alert", RULES)
def test_both_sides_of_every_number(alert: str, prometheus_build: ServerBuild) -> None:
    """Also the texts: no label that the expression drops, the names of what it is about, a rendered template."""
    cases = cases_of(alert, prometheus_build.major)
    results = evaluate(prometheus_build.promtool, alone(RULES[alert]), cases)
    problems = [problem for case in cases for problem in wrong(case, results)]
    assert not problems, "\n".join(problems)
    fired = [firing for each in results.values() for firing in each]
    assert fired
    rule = RULES[alert]
    silenced = re.findall(r"^amtool silence .*?'(\w+)=", (RUNBOOKS / f"{alert}.md").read_text(), re.MULTILINE)
    assert any({*silenced, "severity"} <= firing.labels.keys() for firing in fired)
    texts = rule["annotations"]["summary"] + rule["annotations"]["description"]
    optional = set(re.findall(r"with \$labels\.(\w+)", texts)) | (
        {"namespace"} if "with $labels.pod" in texts else set()
    )
    for firing in fired:
        assert set(re.findall(r"\$labels\.(\w+)", texts)) - optional <= firing.labels.keys()
        shown = " ".join(firing.annotations.values())
        assert "<no value>" not in shown
        assert "error" not in shown.replace("errors", "").replace(" error", "")
        assert "{{" not in shown
        assert "<" not in firing.annotations["description"]
        assert firing.annotations["runbook_url"].endswith(f"/{alert}.md")
        assert firing.labels["severity"] == rule["labels"]["severity"]


_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_NUMBER = re.compile(r"(?<![\w:.$])(\d+(?:\.\d+)?)([smhd]?)(?![\w.:])")


def changed(text: str) -> list[tuple[str, str]]:
    """The text with one number a little greater or less: what was changed, and the text."""
    strings = [match.span() for match in _STRING.finditer(text)]
    made = []
    for match in _NUMBER.finditer(text):
        if any(start <= match.start() < end for start, end in strings):
            continue
        number, unit = match[1], match[2]
        others = (
            [f"{float(number) * factor:g}" for factor in (0.9, 1.1)]
            if "." in number
            else [str(int(number) + step) for step in (-1, 1)]
        )
        for other in others:
            if unit and float(other) < (1 if match[0] != "1m" else 0):
                continue
            new = text[: match.start()] + other + unit + text[match.end() :]
            made.append((f"{match[0]} → {other}{unit} in …{text[max(0, match.start() - 40) : match.end()]}", new))
    return made


def _differs(build: ServerBuild, rule: dict[str, Any]) -> bool:
    """Does some case come out otherwise than it says? Short cases first: most changes show in them."""
    cases = cases_of(rule["alert"], build.major)
    for low, high in ((0, 20), (20, 100), (100, 9999)):
        batch = [case for case in cases if low <= max(case.fires) < high]
        results = evaluate(build.promtool, alone(rule), batch)
        if any(wrong(case, results) for case in batch):
            return True
    return False


@pytest.mark.prometheus
@pytest.mark.slow
@pytest.mark.mutants
@pytest.mark.parametrize("alert", RULES)
def test_every_number_matters(alert: str, prometheus_builds: dict[int, ServerBuild]) -> None:
    """With one number of an alert changed, or its wait, some case comes out otherwise, by one promtool or the other:
    they differ in whether a window has its first moment. Every sixth change; all with EVERY_NUMBER=1 (minutes).
    """
    if not prometheus_builds:
        pytest.skip("Prometheus is not to be had here")
    rule = RULES[alert]
    variants = [(what, {**rule, "expr": expr}) for what, expr in changed(rule["expr"])]
    for key in ("for", "keep_firing_for"):
        variants += [(f"{key}: {what}", {**rule, key: wait}) for what, wait in changed(rule.get(key, ""))]
    assert variants
    step = 1 if os.environ.get("EVERY_NUMBER") else 6
    unnoticed = [
        what
        for what, variant in variants[len(alert) % min(step, len(variants)) :: step]
        if not any(_differs(build, variant) for build in reversed(prometheus_builds.values()))
    ]
    assert not unnoticed, "\n".join(unnoticed)


def test_no_xid_stands_in_two_tiers() -> None:
    tiers = [set(generator.xid_codes(each)) for each in (XidClass.FATAL, XidClass.CORROBORATE, XidClass.APPLICATION)]
    assert sum(map(len, tiers)) == len(set().union(*tiers))
    assert all(tiers)


SECTIONS = ("Summary", "Impact", "Diagnosis", "Mitigation", "When it ends", "False alarms")


@pytest.mark.parametrize("alert", RULES)
def test_the_runbook_says_what_a_person_needs(alert: str) -> None:
    page = (RUNBOOKS / f"{alert}.md").read_text()
    rule = RULES[alert]
    assert tuple(re.findall(r"^## (.+)$", page, re.MULTILINE)) == SECTIONS
    wait = "at once" if rule["for"] == "0m" else f"after {rule['for']}"
    assert f"Severity {rule['labels']['severity']}; fires {wait}; in `" in page
    assert re.search(rf"^amtool silence add alertname={alert} ", page, re.MULTILINE)
    listed = {each.name: each for each in generator.alerts()}[alert]
    assert f"Threshold: {listed.why}" in page
    assert listed.optional_because in page
    for link in re.findall(r"\]\(([^)#]+?)(?:#[\w-]+)?\)", page):
        assert (RUNBOOKS / link).exists(), link
    for target, anchor in re.findall(r"\.\./(rules(?:/[\w-]+)?\.md)#([\w-]+)", page):
        headings = re.findall(r"^#+ (.*)$", (ROOT / "docs" / target).read_text(), re.MULTILINE)
        assert anchor in {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}, anchor


def test_every_page_belongs_to_an_alert_and_stands_in_the_index() -> None:
    pages = {page.stem for page in RUNBOOKS.glob("*.md")} - {"README"}
    assert pages == RULES.keys()
    index = (RUNBOOKS / "README.md").read_text()
    rows = re.findall(r"^\| \[(\w+)\]\((\w+)\.md\) \| (\w+)(, off)? \| (\w+) \|", index, re.MULTILINE)
    listed = {each.name: each for each in generator.alerts()}
    assert [(name, link, severity, bool(off), wait) for name, link, severity, off, wait in rows] == [
        (each.name, each.name, each.severity, bool(each.optional_because), each.wait) for each in listed.values()
    ]


@pytest.mark.parametrize(
    ("alert", "xid_class"),
    [
        ("GpuXidFatal", XidClass.FATAL),
        ("GpuXidNeedsSecondSign", XidClass.CORROBORATE),
        ("GpuXidApplication", XidClass.APPLICATION),
    ],
)
def test_the_runbooks_have_every_xid_of_their_class(alert: str, xid_class: XidClass) -> None:
    rows = "".join(
        f"| {code} | {xids()[code].description} | {xids()[code].action} | {xids()[code].reason} |\n"
        for code in generator.xid_codes(xid_class)
    )
    table = f"| XID | name | NVIDIA asks for | meaning |\n|---|---|---|---|\n{rows}"
    assert table in (RUNBOOKS / f"{alert}.md").read_text()


@pytest.mark.prometheus
def test_the_runbooks_queries_parse(prometheus_build: ServerBuild, tmp_path: Path) -> None:
    queries = [
        query.strip()
        for page in RUNBOOKS.glob("*.md")
        for query in re.findall(r"```promql\n(.+?)```", page.read_text(), re.DOTALL)
    ]
    assert len(queries) > len(RULES)
    file = tmp_path / "queries.yaml"
    rules = [{"record": f"q:q{number}", "expr": query} for number, query in enumerate(queries)]
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    done = subprocess.run(
        [prometheus_build.promtool, "check", "rules", file], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
