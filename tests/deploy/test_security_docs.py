"""docs/security.md names tests that exist, and says of roles and Pods what deploy/ has."""

import ast
import re
from collections.abc import Iterator
from itertools import product, takewhile
from pathlib import Path

import pytest
import yaml

from deploy.manifests import DEPLOY, documents

TESTS = Path(__file__).parents[1]
TEXT = (TESTS.parent / "docs" / "security.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`([\w/]+\.py)::(\w+)`", TEXT)
ROLES = ["observe", "base", *sorted(f"roles/{each.name}" for each in (DEPLOY / "roles").glob("*.yaml"))]
WRITES = {"create", "delete", "deletecollection", "patch", "update"}


def defined(file: Path) -> set[str]:
    """Functions and methods."""
    found = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    return {each.name for each in found if isinstance(each, ast.FunctionDef)}


def test_each_test_that_the_threat_model_names_exists() -> None:
    assert len(NAMED) > 30
    assert [f"{file}::{name}" for file, name in NAMED if name not in defined(TESTS / file)] == []


def table(head: str) -> list[list[str]]:
    """Cells of each row below that head."""
    rows = TEXT.partition(f"{head}\n")[2].splitlines()[1:]
    return [
        [cell.strip() for cell in row.strip("|").split("|")] for row in takewhile(lambda row: row.startswith("|"), rows)
    ]


def test_each_row_of_the_threat_models_tables_names_a_test() -> None:
    rows = [line for line in TEXT.partition("\n## Threat model\n")[2].splitlines() if line.startswith("| ")]
    heads = [line for line in rows if line.endswith("| shown by |")]
    assert [line for line in rows if line not in heads and "::" not in line] == []


def rules(place: Path) -> Iterator[tuple[str, str, set[str]]]:
    """(kind and name of the role, resource with its group and subresource, verbs)."""
    for role in documents(place):
        if role["kind"] in ("ClusterRole", "Role"):
            for rule in role["rules"]:
                for group, resource in product(rule["apiGroups"], rule["resources"]):
                    plural, slash, subresource = resource.partition("/")
                    name = f"{plural}.{group}" if group else plural
                    yield f"{role['kind']} `{role['metadata']['name']}`", name + slash + subresource, set(rule["verbs"])


def said(cell: str) -> set[tuple[str, str]]:
    """(resource, verb) of a cell such as "create, delete `a`, `b`; patch `c`"."""
    pairs = (clause.partition(" `") for clause in cell.split("; ") if clause != "nothing")
    return {pair for verbs, _, names in pairs for pair in product(re.findall(r"[\w./-]+", names), verbs.split(", "))}


def test_the_page_says_what_each_role_may_write() -> None:
    shipped: dict[str, set[tuple[str, str]]] = {}
    for place in ROLES:
        for role, resource, verbs in rules(DEPLOY / place):
            shipped.setdefault(role, set()).update(product([resource], verbs & WRITES))
    rows = table("| role | file | needed for | writes |")
    assert {role: said(writes) for role, _, _, writes in rows} == shipped
    for role, file, _, _ in rows:
        kind, name = role.replace("`", "").split()
        assert (kind, name) in {
            (each["kind"], each["metadata"]["name"]) for each in documents(DEPLOY / file.strip("`"))
        }


def test_no_role_reaches_what_the_page_excludes() -> None:
    for place in ROLES:
        for role, resource, verbs in rules(DEPLOY / place):
            assert resource not in {"secrets", "pods/log", "pods/exec", "pods/attach", "pods/portforward"}, role
            assert not verbs & {"impersonate", "escalate", "bind", "*"}, role


@pytest.mark.parametrize("file", ["base/deployment.yaml", "report/cronjob.yaml"])
def test_the_pods_are_as_the_page_says(file: str) -> None:
    workload = next(each for each in documents(DEPLOY / file) if each["kind"] in ("Deployment", "CronJob"))
    spec = workload["spec"]["jobTemplate"]["spec"] if workload["kind"] == "CronJob" else workload["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    fields = {**pod, **pod["securityContext"], **container["securityContext"]}
    for name, value in table("| field | value |"):
        assert fields[name.strip("`")] == yaml.safe_load(value.strip("`")), name
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert all("hostPath" not in volume for volume in pod["volumes"])
