"""The chart on a living control plane, as a person installs, upgrades and removes it with Helm: what runs, what it may
do, and what is left. The Pods' containers run as processes here (`kubelet`), under their own accounts, beside a real
Prometheus with a simulated fleet. The tests are one story: each goes on from the one before."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.api import Api, Object
from cluster.control_plane import ControlPlaneBuild
from deploy.kubelet import Kubelet, can_run
from deploy.manifests import DEPLOY
from e2e.clusters import own
from e2e.exporters import JOB
from e2e.live_fleet import node
from e2e.world import QUICK, World, world
from parts.helm_tools import Helm, HelmBuild
from parts.processes import wait_until
from parts.prometheus_server import ServerBuild

pytestmark = [pytest.mark.slow, pytest.mark.prometheus]

CHART = DEPLOY / "chart" / "gpuwatch"
RELEASE, NAMESPACE = "fleet", "gpu-tools"
"""Other ones than those of deploy/base, so that no name is taken for granted."""
NAME = f"{RELEASE}-gpuwatch"
FAULTY = "gpu-0"
MERGE = "application/merge-patch+json"


@pytest.fixture(scope="module")
def living(
    control_plane_build: ControlPlaneBuild, newest_prometheus: ServerBuild, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """A fleet of three Nodes; on one a GPU has failed. The release's Namespace enforces the strictest standard."""
    nodes = [node(name, "a100") for name in (FAULTY, "gpu-1", "gpu-2")]
    with (
        own(control_plane_build) as cluster,
        world(cluster, newest_prometheus, tmp_path_factory.mktemp("world"), nodes, installed=False) as found,
    ):
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        found.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}})
        found.fleet.faults[FAULTY] = {3}
        yield found


@pytest.fixture(scope="module")
def kubelet(living: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubelet]:
    if not can_run():
        pytest.skip("processes with mounts of their own are not to be had here: they need Linux and unshare")
    assert living.cluster.own is not None
    found = Kubelet(living.cluster.own, living.api, tmp_path_factory.mktemp("kubelet"))
    with found.running(NAMESPACE):
        yield found


@pytest.fixture(scope="module")
def helm(living: World, helm_build: HelmBuild, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm(helm_build.helm, living.cluster.administrator, NAMESPACE, tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="module")
def quick(living: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Values for a test: a day in a minute, and the simulated exporters trusted."""
    settings = {**QUICK, "prometheus": {"trusted_targets": [{"job": JOB}]}}
    values = {"settings": settings, "prometheus": {"url": living.prometheus}, "replicas": 1}
    file = tmp_path_factory.mktemp("values") / "quick.yaml"
    file.write_text(yaml.safe_dump(values))
    return file


# Rights, as the API server reviews them: verb, group, resource, and '' or a Namespace.

Right = tuple[str, str, str, str]
OBSERVE: tuple[Right, ...] = (
    ("list", "", "pods", ""),
    ("watch", "", "nodes", ""),
    ("list", "gpuwatch.dev", "remediations", ""),
    ("patch", "coordination.k8s.io", "leases/gpuwatch", NAMESPACE),
    ("create", "gpuwatch.dev", "checkpoints", NAMESPACE),
    ("get", "", "configmaps/gpuwatch-pause", NAMESPACE),
)
SUGGEST: tuple[Right, ...] = (
    ("create", "gpuwatch.dev", "remediations", "team-a"),
    ("create", "gpuwatch.dev", "noderemediations", ""),
    ("create", "events.k8s.io", "events", "team-a"),
)
TAINT: tuple[Right, ...] = (("patch", "", "nodes", ""), ("create", "resource.k8s.io", "devicetaintrules", ""))
EVICT: tuple[Right, ...] = (("create", "", "pods/x/eviction", "team-a"), ("patch", "", "pods", "team-a"))
RELEASE_IDLE: tuple[Right, ...] = (("patch", "apps", "deployments", "team-a"), ("patch", "batch", "jobs", "team-a"))
NEVER: tuple[Right, ...] = (
    ("get", "", "secrets", NAMESPACE),
    ("get", "", "secrets", "team-a"),
    ("create", "", "pods", NAMESPACE),
    ("create", "", "pods/x/exec", "team-a"),
    ("delete", "", "pods", "team-a"),
    ("delete", "", "nodes", ""),
    ("delete", "apps", "deployments", "team-a"),
    ("patch", "", "configmaps/gpuwatch-pause", NAMESPACE),
    ("create", "", "serviceaccounts/x/token", NAMESPACE),
    ("impersonate", "", "users", ""),
    ("impersonate", "", "serviceaccounts", NAMESPACE),
    ("bind", "rbac.authorization.k8s.io", "clusterroles", ""),
    ("patch", "rbac.authorization.k8s.io", "clusterroles", ""),
    ("delete", "admissionregistration.k8s.io", "validatingadmissionpolicybindings", ""),
    ("patch", "apiextensions.k8s.io", "customresourcedefinitions", ""),
    ("create", "gpuwatch.dev", "checkpoints", "team-a"),
    # Finding Prometheus is for people: in the cluster its address is in the settings.
    ("list", "", "services", ""),
    ("get", "", "services/prometheus/proxy", "monitoring"),
    ("create", "", "services/prometheus/proxy", "monitoring"),
)


def may(api: Api, right: Right, account: str = NAME) -> bool:
    """Whether the account has it, as the API server answers a SubjectAccessReview."""
    verb, group, resource, namespace = right
    plural, _, rest = resource.partition("/")
    name, _, subresource = rest.partition("/")
    attributes = {"verb": verb, "group": group, "resource": plural, "namespace": namespace}
    attributes |= {"name": name, "subresource": subresource}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "metadata": {},
        "spec": {
            "user": f"system:serviceaccount:{NAMESPACE}:{account}",
            "groups": ["system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}", "system:authenticated"],
            "resourceAttributes": attributes,
        },
    }
    answer = api.answer("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    assert answer.ok, answer.text
    return bool(answer.json()["status"]["allowed"])


def rights(api: Api, *allowed: tuple[Right, ...]) -> None:
    """The account may do all of these, and nothing of the other modes."""
    every = (OBSERVE, SUGGEST, TAINT, EVICT, RELEASE_IDLE)
    expected = {right for group in allowed for right in group}
    tried = {right for group in (*every, NEVER) for right in group}
    wait_until(
        lambda: {right for right in tried if may(api, right)} == expected,
        lambda: (
            f"it may and should not: {sorted({r for r in tried if may(api, r)} - expected)}; "
            f"should and may not: {sorted(expected - {r for r in tried if may(api, r)})}"
        ),
        20,
    )


def paused(api: Api) -> Any:
    return api.get(f"/api/v1/namespaces/{NAMESPACE}/configmaps/gpuwatch-pause").get("data")


def deployment(api: Api) -> Object:
    return api.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{NAME}")


def on_a_page(kubelet: Kubelet, text: str) -> Callable[[], bool]:
    return lambda: any(text in run.asked("/")[1] for run in list(kubelet.replicas.values()))


def said(kubelet: Kubelet) -> str:
    logs = [f"{name}: {run.asked('/readyz')} {run.said()[-3000:]}" for name, run in list(kubelet.replicas.items())]
    return "\n".join((*logs, *(f"{each.pod} ended with {each.exit_code}: {each.output}" for each in kubelet.ended)))


def test_without_a_prometheus_it_says_how_to_find_one(helm: Helm, kubelet: Kubelet) -> None:
    done = helm.attempted("install", RELEASE, CHART)
    assert done.returncode != 0
    assert "prometheus.url" in done.stderr


def test_the_first_finding_is_on_the_page_a_minute_after_the_installation(
    helm: Helm, kubelet: Kubelet, living: World
) -> None:
    """With nothing said but where Prometheus is. Images need no pulling here, and Nodes are at hand."""
    begun = time.monotonic()
    helm("install", RELEASE, CHART, "--set", f"prometheus.url={living.prometheus}")
    installed = time.monotonic() - begun
    wait_until(
        lambda: any(run.asked("/readyz")[0] == 200 for run in list(kubelet.replicas.values())), lambda: said(kubelet)
    )
    ready = time.monotonic() - begun
    wait_until(on_a_page(kubelet, FAULTY), lambda: said(kubelet))
    shown = time.monotonic() - begun
    for name, seconds in (("installed", installed), ("ready", ready), ("first finding on the page", shown)):
        print(f"helm install: {name} after {seconds:.1f} s")
    assert shown < 60
    # One that is not made as it demands would have been refused.
    bare = {"containers": [{"name": "main", "image": "x"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bare", "namespace": NAMESPACE}, "spec": bare}
    refused = living.api.answer("POST", f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All", pod)
    assert "restricted" in refused.text
    wait_until(lambda: deployment(living.api)["status"].get("readyReplicas") == 2, lambda: said(kubelet))
    assert len(kubelet.replicas) == 2


def test_observe_may_read_and_keep_what_is_its_own(living: World) -> None:
    rights(living.api, OBSERVE)
    assert may(living.api, ("list", "", "pods", ""), "nobody") is False


def test_guardrails_stand_where_they_are_served(living: World) -> None:
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
    names = {item["metadata"]["name"] for item in living.api.get(path)["items"]}
    assert {"gpuwatch-other", "gpuwatch-nodes"} <= names


def test_helm_test_runs_the_doctor(helm: Helm, kubelet: Kubelet) -> None:
    helm("test", RELEASE, "--timeout", "120s")
    ended = kubelet.ended[-1]
    assert "Prometheus at" in ended.output
    assert "in place" in ended.output  # the guardrails


def test_helm_test_fails_where_prometheus_does_not_answer(helm: Helm, kubelet: Kubelet) -> None:
    helm("upgrade", RELEASE, CHART, "--set", "prometheus.url=http://127.0.0.1:9")
    assert helm.attempted("test", RELEASE, "--timeout", "120s").returncode != 0
    ended = kubelet.ended[-1]
    assert ended.exit_code == 1
    assert "http://127.0.0.1:9" in ended.output
    helm("rollback", RELEASE, "1")
    helm("test", RELEASE, "--timeout", "120s")  # which takes the Pod of the one before away


def test_a_pause_survives_an_upgrade_to_another_mode(helm: Helm, living: World, quick: Path) -> None:
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/gpuwatch-pause"
    pause = {"paused": "true", "reason": "maintenance"}
    assert living.api.answer("PATCH", path, {"data": pause}, content_type=MERGE).ok
    helm("upgrade", RELEASE, CHART, "--values", quick, "--set", "mode=suggest")
    assert paused(living.api) == pause
    rights(living.api, OBSERVE, SUGGEST)


def test_rolled_back_it_may_what_it_might_before_and_is_still_paused(helm: Helm, living: World) -> None:
    helm("rollback", RELEASE)
    rights(living.api, OBSERVE)
    assert paused(living.api) == {"paused": "true", "reason": "maintenance"}


@pytest.mark.parametrize(
    ("action", "more"),
    [("evict", EVICT), ("release", RELEASE_IDLE), ("taint", TAINT)],
    ids=["evict", "release", "taint"],
)
def test_each_action_has_its_rights_and_no_others(
    action: str, more: tuple[Right, ...], helm: Helm, living: World, quick: Path
) -> None:
    helm("upgrade", RELEASE, CHART, "--values", quick, "--set", f"mode=enforce,enforce.{action}=true")
    overlap = (("patch", "batch", "jobs", "team-a"), ("patch", "apps", "deployments", "team-a"))
    rights(living.api, OBSERVE, SUGGEST, more, overlap if action == "evict" else ())


def test_what_a_person_approved_is_done(helm: Helm, kubelet: Kubelet, living: World) -> None:
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/gpuwatch-pause"
    assert living.api.answer("PATCH", path, {"data": {"paused": "false", "reason": None}}, content_type=MERGE).ok
    wait_until(lambda: living.phase("taint_node", FAULTY) == "Proposed", lambda: said(kubelet))
    (proposed,) = living.remediations("taint_node")  # in mode suggest, so that a person decides
    done = living.command("approve", proposed["metadata"]["name"], "--controller-namespace", NAMESPACE)
    assert done.returncode == 0, done.stderr
    wait_until(lambda: living.phase("taint_node", FAULTY) == "InEffect", lambda: said(kubelet))
    assert living.taints(FAULTY) != []


def test_what_is_in_effect_outlasts_an_upgrade(helm: Helm, kubelet: Kubelet, living: World) -> None:
    before = set(kubelet.replicas)
    helm("upgrade", RELEASE, CHART, "--reuse-values", "--set", "podAnnotations.new=yes,replicas=2")
    wait_until(lambda: len(set(kubelet.replicas) - before) == 2 == len(kubelet.replicas), lambda: said(kubelet))
    wait_until(on_a_page(kubelet, FAULTY), lambda: said(kubelet))
    (kept,) = living.remediations("taint_node")
    assert kept["status"]["phase"] == "InEffect"
    assert kept["metadata"]["finalizers"]
    assert living.taints(FAULTY) != []


def test_what_cannot_be_given_back_keeps_the_release(helm: Helm, kubelet: Kubelet, living: World) -> None:
    """Its roles, above all, without which nothing of it could be given back later."""
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/gpuwatch-pause"
    assert living.api.answer("PATCH", path, {"data": {"paused": "all"}}, content_type=MERGE).ok
    assert helm.attempted("uninstall", RELEASE, "--timeout", "60s").returncode != 0
    assert "`gpuwatch resume` first" in kubelet.ended[-1].output
    assert living.taints(FAULTY) != []
    rights(living.api, OBSERVE, SUGGEST, TAINT)
    assert living.api.answer("PATCH", path, {"data": {"paused": "false"}}, content_type=MERGE).ok


REFUSING = "no-nodes"
"""Of an admission policy by which people hold gpuwatch off Nodes."""


def refuse(api: Api) -> None:
    """Until `allow`, no account of the Namespace may change a Node."""
    admission = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": REFUSING}}
    nodes = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["nodes"]}
    theirs = f"!request.userInfo.username.startsWith('system:serviceaccount:{NAMESPACE}:')"
    policy = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [nodes]},
        "validations": [{"expression": theirs, "message": "Nodes are frozen this week"}],
    }
    api.create({**admission, "kind": "ValidatingAdmissionPolicy", "spec": policy})
    binding = {"policyName": REFUSING, "validationActions": ["Deny"]}
    api.create({**admission, "kind": "ValidatingAdmissionPolicyBinding", "spec": binding})


def allow(api: Api) -> None:
    for plural in ("validatingadmissionpolicybindings", "validatingadmissionpolicies"):
        assert api.answer("DELETE", f"/apis/admissionregistration.k8s.io/v1/{plural}/{REFUSING}").ok


def test_what_cannot_be_undone_is_told_and_the_release_can_be_rolled_back(
    helm: Helm, kubelet: Kubelet, living: World
) -> None:
    """In mode observe, which has no role to undo anything. Helm upgrades no release whose uninstallation has failed."""
    helm("rollback", RELEASE)
    helm("upgrade", RELEASE, CHART, "--reuse-values", "--set", "mode=observe")
    rights(living.api, OBSERVE)
    refuse(living.api)
    begun = time.monotonic()
    assert helm.attempted("uninstall", RELEASE, "--timeout", "180s").returncode != 0
    print(f"helm uninstall: refused after {time.monotonic() - begun:.1f} s")
    told = kubelet.ended[-1].output
    assert "is Undoing" in told
    assert FAULTY in told
    assert "Nodes are frozen this week" in told
    assert living.taints(FAULTY) != []
    rights(living.api, OBSERVE)  # what the removal was granted is gone again
    assert helm.attempted("upgrade", RELEASE, CHART, "--reuse-values").returncode != 0
    helm("rollback", RELEASE)
    rights(living.api, OBSERVE, SUGGEST, TAINT)
    wait_until(lambda: deployment(living.api)["status"].get("readyReplicas") == 1, lambda: said(kubelet))


def test_uninstalling_in_a_milder_mode_leaves_no_taint_no_mark_and_no_finalizer(
    helm: Helm, kubelet: Kubelet, living: World
) -> None:
    """Than the one in which the Node was tainted."""
    helm("upgrade", RELEASE, CHART, "--reuse-values", "--set", "mode=observe")
    rights(living.api, OBSERVE)
    assert living.taints(FAULTY) != []
    allow(living.api)
    told = helm("uninstall", RELEASE, "--timeout", "180s")
    assert "Nothing of gpuwatch is left" in kubelet.ended[-1].output
    assert living.taints(FAULTY) == [], told + said(kubelet)
    found = living.api.get(f"/api/v1/nodes/{FAULTY}")["metadata"]
    assert [key for key in found.get("annotations", {}) if "gpuwatch" in key] == []
    assert left(living.api) == []
    assert definitions(living.api) != []
    assert dict(kubelet.replicas) == {}


def left(api: Api) -> list[str]:
    """Objects that name gpuwatch or the release, but for the definitions, and what ends by itself."""
    ends = {"apiservices", "customresourcedefinitions", "endpointslices", "events"}
    found = []
    for resource in api.resources():
        if "list" in resource.verbs and resource.name not in ends:
            answer = api.answer("GET", resource.path())
            for item in answer.json()["items"] if answer.ok else ():
                name, labels = item["metadata"]["name"], item["metadata"].get("labels", {})
                if "gpuwatch" in name or labels.get("app.kubernetes.io/instance") == RELEASE:
                    found.append(f"{resource.kind} {name}")
    return found


def definitions(api: Api) -> list[str]:
    items = api.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")["items"]
    return [item["metadata"]["name"] for item in items if item["spec"]["group"] == "gpuwatch.dev"]


def test_values_of_a_chart_that_knew_less_are_enough(helm: Helm, living: World, tmp_path: Path) -> None:
    """`--reuse-values` takes the values of the release before, in which all is missing that came since."""
    url = f"prometheus.url={living.prometheus}"
    older = tmp_path / "gpuwatch"
    shutil.copytree(CHART, older)
    (older / "values.schema.json").unlink()
    (older / "values.yaml").write_text(yaml.safe_dump({"image": {"repository": "gpuwatch"}, "mode": "observe"}))
    helm("install", RELEASE, older, "--set", url)
    assert paused(living.api) is None  # that of the uninstallation is gone
    helm("upgrade", RELEASE, CHART, "--reuse-values")
    reused = helm("get", "manifest", RELEASE)
    helm("upgrade", RELEASE, CHART, "--reset-values", "--set", url)
    assert helm("get", "manifest", RELEASE) == reused


def test_the_definitions_go_where_that_is_asked(helm: Helm, kubelet: Kubelet, living: World, quick: Path) -> None:
    """With proposals of an earlier mode, and with the Pod of a test that failed."""
    helm("upgrade", RELEASE, CHART, "--values", quick, "--set", "mode=suggest")
    wait_until(lambda: living.phase("taint_node", FAULTY) == "Proposed", lambda: said(kubelet))
    changes = "mode=observe,crds.keep=false,prometheus.url=http://127.0.0.1:9"
    helm("upgrade", RELEASE, CHART, "--reset-then-reuse-values", "--set", changes)
    assert helm.attempted("test", RELEASE, "--timeout", "120s").returncode != 0
    assert any("doctor" in each for each in left(living.api))
    helm("uninstall", RELEASE, "--timeout", "180s")
    wait_until(lambda: definitions(living.api) == [], lambda: said(kubelet))
    assert left(living.api) == []
