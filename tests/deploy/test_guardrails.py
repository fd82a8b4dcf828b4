"""The guardrails follow from the code, cover every right that a role gives, and name no account."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cluster.api import Object
from deploy.manifests import DEPLOY, documents, renamed
from deploy.test_roles import rights
from frameworks.samples import SAMPLES
from gpuwatch.facts.frameworks import FRAMEWORKS, WRITTEN, keys
from gpuwatch.facts.frameworks.framework import How, Kind, MovePlan, MoveRule, ReleaseRule
from gpuwatch.facts.frameworks.release import move
from tools.guardrails import BY_GPUWATCH, LEFT_TO_RBAC, MARKS, ROLLED_OUT, policies, shapes

GUARDRAILS, ADMISSION = DEPLOY / "base" / "guardrails.yaml", DEPLOY / "base" / "admission.yaml"
OPERATIONS = {"create": "CREATE", "patch": "UPDATE", "update": "UPDATE", "delete": "DELETE"}
OF_GPUWATCH = (
    "base",
    "roles/suggest.yaml",
    *(f"roles/enforce-{name}.yaml" for name in ("taint", "evict", "make-room", "release")),
)

Operations = set[tuple[str, str, str]]
"""API group, resource with its subresource, operation."""


def held() -> Operations:
    return {
        (rule.group, rule.resource, operation)
        for policy in policies()
        for rule in policy.rules
        for operation in rule.operations
        if rule.group != "*"
    }


def permitted() -> Operations:
    """What the roles let gpuwatch write."""
    every = {each for place in OF_GPUWATCH for kind in ("ClusterRole", "Role") for each in rights(DEPLOY / place, kind)}
    return {(group, resource, OPERATIONS[verb]) for group, resource, verb in every if verb in OPERATIONS}


def left_to_rbac() -> Operations:
    return {(*key, operation) for key, operations in LEFT_TO_RBAC.items() for operation in operations}


def test_every_right_to_write_has_a_policy_or_is_named_as_having_none() -> None:
    assert permitted() - held() - left_to_rbac() == set()


def test_no_policy_lets_through_what_no_role_permits() -> None:
    # Finalizers of Remediations wait for the role that lets gpuwatch write them.
    finalizers = {("gpuwatch.dev", each, "UPDATE") for each in ("remediations", "noderemediations")}
    reviews = {
        each for each in left_to_rbac() if each[0].endswith("zation.k8s.io") or each[0].endswith("cation.k8s.io")
    }
    assert held() - permitted() <= finalizers
    assert left_to_rbac() - permitted() == reviews


def test_what_one_policy_holds_the_last_one_leaves_out_and_nothing_more() -> None:
    left_out = {(rule.group, rule.resource, each) for rule in policies()[-1].left_out for each in rule.operations}
    assert left_out == held() | left_to_rbac()


def _written(kind: Kind) -> bool:
    return isinstance(kind.release, ReleaseRule) or isinstance(kind.move, MoveRule)


def test_every_kind_that_a_framework_writes_to_is_held() -> None:
    of_frameworks = {kind.key for item in FRAMEWORKS for kind in item.kinds if _written(kind)}
    of_frameworks |= {item.acts_on.key for item in FRAMEWORKS if item.acts_on is not None}
    assert of_frameworks == {key for key, kind in WRITTEN.items() if _written(kind)}
    assert {kind.key for kinds in shapes().values() for kind in kinds} == of_frameworks
    assert {("", each.plural, "UPDATE") for each in WRITTEN.values() if _written(each) and not each.group} == set()


def test_only_the_kinds_that_roll_out_may_have_their_pods_restarted() -> None:
    found = set()
    for sample in SAMPLES:
        kind = WRITTEN[sample.object["apiVersion"].rpartition("/")[0], sample.object["kind"]]
        if not isinstance(kind.move, MoveRule):
            continue
        for replicas in (1, 2):
            object_ = sample.named("team-a")
            object_["spec"]["replicas"] = replicas
            ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
            pod: Object = {"metadata": {"name": "p", "namespace": "team-a", "uid": "p"}, "status": ready}
            plan = move(object_, [pod], ["p"])
            if isinstance(plan, MovePlan) and plan.how is How.ROLLOUT:
                found.add(kind.key)
    assert found == set(ROLLED_OUT)


def test_every_key_of_ours_is_a_mark_or_a_persons_word() -> None:
    people = {keys.OPT_OUT, keys.SNOOZE_UNTIL, keys.OBJECTION, keys.MODE, keys.POOL}
    people |= {keys.LAST_CHECKPOINT, keys.EXPECTED_END, keys.GPU_MEMORY_NEED, keys.COMPUTE_CAPABILITIES}
    people |= {keys.REPAIRED_AT, keys.TARGET_SPEED, keys.MAY_MOVE}
    # A taint's key; a label on bindings; one on the Lease; the finalizer of our own records.
    elsewhere = {keys.PREFIX, keys.DEGRADED, keys.ACCOUNT, keys.LAST_STORM, keys.FINALIZER}
    every = {value for name, value in vars(keys).items() if name.isupper() and str(value).startswith(keys.PREFIX)}
    assert every == {*MARKS, keys.TAINT} | people | elsewhere
    assert not people & {*MARKS, keys.TAINT}


def bindings() -> Iterator[Object]:
    for place in OF_GPUWATCH:
        yield from (each for each in documents(DEPLOY / place) if each["kind"] == "ClusterRoleBinding")


def test_each_binding_that_gives_a_right_to_write_says_who_is_held() -> None:
    writing = {
        each["metadata"]["name"]
        for place in OF_GPUWATCH
        for each in documents(DEPLOY / place)
        if each["kind"] == "ClusterRole" and any(set(rule["verbs"]) & set(OPERATIONS) for rule in each["rules"])
    }
    labelled = {each["roleRef"]["name"] for each in bindings() if each["metadata"].get("labels", {}).get(keys.ACCOUNT)}
    assert labelled == writing
    controller = [each for each in bindings() if each["metadata"].get("labels", {}).get(keys.ACCOUNT) == "controller"]
    assert [each["metadata"]["name"] for each in controller] == ["gpuwatch-controller"]


def test_no_policy_names_an_account_and_all_look_in_one_place() -> None:
    asked = []
    for file in (GUARDRAILS, ADMISSION):
        assert "serviceaccount:gpuwatch" not in file.read_text()
        for each in documents(file):
            spec = each["spec"]
            if each["kind"] == "ValidatingAdmissionPolicy":
                assert spec["failurePolicy"] == "Fail"
                told = [one["expression"] for one in (*spec.get("matchConditions", ()), *spec["validations"])]
                asked += [one for one in told if "userInfo.username ==" in one]
            elif "paramRef" in spec:
                assert spec["paramRef"]["selector"] in (
                    {"matchExpressions": [{"key": keys.ACCOUNT, "operator": "Exists"}]},
                    {"matchLabels": {keys.ACCOUNT: "controller"}},
                )
    right = "authorizer.group('gpuwatch.dev').resource('accounts').name('{}').check('use').allowed()"
    some_binding = f"{BY_GPUWATCH} || ({right.format('controller')} && !{right.format('nobody')})"
    assert set(asked) == {BY_GPUWATCH, some_binding}
    rules = [rule for each in documents(DEPLOY / "base") if each["kind"] == "ClusterRole" for rule in each["rules"]]
    granted = [rule["resourceNames"] for rule in rules if {"accounts", "*"} & set(rule["resources"])]
    assert granted == [["controller"]]


def kustomized(folder: Path) -> list[Object]:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("there is no kubectl here")
    made = subprocess.run([kubectl, "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return list(yaml.safe_load_all(made.stdout))


def overlay(folder: Path, **content: object) -> Path:
    """A kustomization beside a copy of deploy/, as an administrator keeps one."""
    shutil.copytree(DEPLOY, folder / "deploy")
    mine = folder / "mine"
    mine.mkdir()
    head = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": ["../deploy/base"]}
    (mine / "kustomization.yaml").write_text(yaml.safe_dump({**head, **content}))
    return mine


def _by_name(objects: list[Object]) -> dict[tuple[str, str], Object]:
    for each in objects:
        if each["kind"].startswith("ValidatingAdmission"):
            each["metadata"].pop("namespace", None)  # kustomize 5.5 takes them for namespaced; the API server clears it
    return {(each["kind"], each["metadata"]["name"]): each for each in objects}


def test_kustomize_renames_the_account_in_the_one_place(tmp_path: Path) -> None:
    rename = {
        "target": {"kind": "ServiceAccount", "name": "gpuwatch"},
        "options": {"allowNameChange": True},
        "patch": '[{"op": "replace", "path": "/metadata/name", "value": "gpu-keeper"}]',
    }
    mine = overlay(tmp_path, namespace="gpu-ops", patches=[rename])
    expected = list(renamed(documents(DEPLOY / "base"), "gpu-ops", "gpu-keeper"))
    assert _by_name(kustomized(mine)) == _by_name(expected)


def test_an_older_kubernetes_gets_everything_but_the_policies(tmp_path: Path) -> None:
    mine = overlay(tmp_path, components=["../deploy/optional/without-admission"])
    expected = [each for each in documents(DEPLOY / "base") if not each["kind"].startswith("ValidatingAdmission")]
    assert len(expected) < len(list(documents(DEPLOY / "base")))
    assert _by_name(kustomized(mine)) == _by_name(expected)
