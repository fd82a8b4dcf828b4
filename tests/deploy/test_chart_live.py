"""The chart on real Nodes, as a person installs, upgrades and removes it with Helm: what runs, what it may do, and what
is left. Its image is this checkout. The tests are one story: each goes on from the one before."""

import json
import shutil
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.api import Api, Object
from cluster.control_plane import ControlPlaneBuild
from cluster.real_node import EXPORTER_PORT, HOST, PAUSE, PYTHON, RealNodes, running_nodes
from deploy.manifests import DEPLOY
from deploy.pod_environment import pod_environment
from e2e.clusters import Cluster
from e2e.exporters import NAMESPACE as EXPORTERS
from e2e.exporters import exporter_pod, scraping, write_history
from e2e.world import HISTORY_SECONDS, QUICK, Installed
from gpuwatch import __version__
from parts.helm_tools import Helm, HelmBuild
from parts.processes import wait_until
from parts.prometheus_server import ServerBuild
from parts.prometheus_server import running as running_prometheus

pytestmark = [pytest.mark.slow, pytest.mark.prometheus]

CHART = DEPLOY / "chart" / "gpuwatch"
RELEASE, NAMESPACE = "fleet", "gpu-tools"
"""Other ones than those of deploy/base, so that no name is taken for granted."""
NAME = f"{RELEASE}-gpuwatch"
FAULTY = "gpu-0"
MERGE = "application/merge-patch+json"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


@pytest.fixture(scope="module")
def nodes(node_build: ControlPlaneBuild) -> Iterator[RealNodes]:
    """Two; on one a GPU has failed."""
    with running_nodes(node_build, count=2, checkout=f"docker.io/library/gpuwatch:{__version__}") as found:
        found[0].set_gpu(3, DCGM_FI_DEV_ROW_REMAP_FAILURE=1)
        yield found


def exporters_run(api: Api, nodes: RealNodes) -> None:
    """A Pod for each Node's exporter, by which gpuwatch knows it. Its page comes from the device plugin, at the same
    address."""
    space = f"/api/v1/namespaces/{EXPORTERS}"
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": EXPORTERS}})
    wait_until(lambda: api.answer("GET", f"{space}/serviceaccounts/default").ok, lambda: "no account")
    for node in nodes.nodes:
        api.create(exporter_pod(node.name, EXPORTER_PORT, PAUSE))

    def running() -> set[str]:
        found = [item["status"] for item in api.get(f"{space}/pods")["items"]]
        return {each.get("podIP", "") for each in found if each.get("phase") == "Running"}

    wait_until(lambda: running() == {node.address for node in nodes.nodes}, lambda: str(api.get(f"{space}/pods")))


@pytest.fixture(scope="module")
def living(
    nodes: RealNodes, newest_prometheus: ServerBuild, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installed]:
    """The release's Namespace enforces the strictest standard."""
    plane = nodes.cluster
    with running_prometheus(newest_prometheus, host=HOST, scrape_configs=[scraping(nodes.nodes)]) as prometheus:
        for node in nodes.nodes:
            write_history(prometheus, node, HISTORY_SECONDS)
        api = Api(plane.administrator)
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}})
        exporters_run(api, nodes)
        cluster = Cluster(str(plane.administrator), lambda name: plane.service_account(NAMESPACE, NAME, name), plane)
        yield Installed(cluster, api, prometheus, tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def helm(living: Installed, helm_build: HelmBuild, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm(helm_build.helm, living.cluster.administrator, NAMESPACE, tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="module")
def quick(living: Installed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Values for a test: a day in a minute."""
    run = {name: value for name, value in QUICK["run"].items() if name != "listen_address"}
    settings = {**QUICK, "run": run}
    values = {"settings": settings, "prometheus": {"url": living.prometheus}, "replicas": 1}
    file = tmp_path_factory.mktemp("values") / "quick.yaml"
    file.write_text(yaml.safe_dump(values))
    return file


def replicas(api: Api, *, ending: bool = False) -> dict[str, Object]:
    """The controller's Pods by name; with those that end and may still act, where that is asked."""
    found = api.get(PODS, labelSelector="app.kubernetes.io/component=controller")["items"]
    return {item["metadata"]["name"]: item for item in found if ending or "deletionTimestamp" not in item["metadata"]}


def ready(api: Api, count: int) -> bool:
    """So many run, and each is ready."""
    there = [item["status"].get("conditions", ()) for item in replicas(api).values()]
    well = [any((each["type"], each["status"]) == ("Ready", "True") for each in item) for item in there]
    return well == [True] * count


def page(item: Object, path: str = "/") -> str:
    """Of a replica, by its Pod's address; '' while nothing answers."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{item['status']['podIP']}:8080{path}", timeout=5) as answer:
            return str(answer.read().decode())
    except (OSError, KeyError):
        return ""


def on_a_page(api: Api, *texts: str) -> Callable[[], bool]:
    """All of them on one."""
    return lambda: any(all(each in shown for each in texts) for shown in map(page, replicas(api).values()))


def said(api: Api) -> str:
    """The ends of the logs of all Pods."""
    names = [item["metadata"]["name"] for item in api.get(PODS)["items"]]
    return "\n".join(f"--- {name}\n{api.answer('GET', f'{PODS}/{name}/log').text[-3000:]}" for name in names)


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


@pytest.mark.parametrize("linked", [True, False])
def test_a_containers_variables_are_those_that_the_tests_make(living: Installed, linked: bool) -> None:
    """What `pod_environment` says of a kubelet, on a real one."""
    api, place = living.api, f"links-{linked}".lower()
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": place}})
    meta = {"namespace": place}
    ports = [{"name": "web", "port": 80}, {"name": "d-n-s", "port": 53, "protocol": "UDP"}]
    for name, spec in (("gpuwatch-run--listen", {"ports": ports}), ("none", {"clusterIP": "None", "ports": ports})):
        api.create({"apiVersion": "v1", "kind": "Service", "metadata": {**meta, "name": name}, "spec": spec})
    api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {**meta, "name": "some"}, "data": {"NE": "one"}})
    container = {
        "name": "main",
        "image": f"docker.io/library/gpuwatch:{__version__}",
        "imagePullPolicy": "Never",
        "command": [PYTHON, "-c", "import json, os; print(json.dumps(dict(os.environ)))"],
        "env": [
            {"name": "X_PORT", "value": "9090"},
            {"name": "AT", "value": "$(KUBERNETES_SERVICE_HOST):$(X_PORT) $(NONE) $$(X_PORT) $(ONE)"},
            {"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
        ],
        "envFrom": [{"configMapRef": {"name": "some"}, "prefix": "O"}],
    }
    spec = {"restartPolicy": "Never", "enableServiceLinks": linked, "containers": [container]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {**meta, "name": "tells"}, "spec": spec}
    wait_until(
        lambda: api.answer("GET", f"/api/v1/namespaces/{place}/serviceaccounts/default").ok, lambda: "no account"
    )
    api.create(pod)
    path = f"/api/v1/namespaces/{place}/pods/tells"
    wait_until(lambda: api.get(path)["status"].get("phase") == "Succeeded", lambda: str(api.get(path)["status"]), 60)
    real = json.loads(api.answer("GET", f"{path}/log").text)
    services = api.get("/api/v1/services")["items"]
    made = pod_environment(pod, container, services, lambda _, name: {"NE": "one"} if name == "some" else {})
    assert {name: real.get(name) for name in made} == made
    others = {"PATH", "HOSTNAME", "HOME", "LC_CTYPE", "PYTHONPATH"}
    assert set(real) - set(made) <= others, "what the runtime, Python and the image set"
    for each in services:  # else what is left of gpuwatch after its removal would be these
        if each["metadata"]["namespace"] == place:
            api.delete({"apiVersion": "v1", "kind": "Service", **each})


def test_without_a_prometheus_it_says_how_to_find_one(helm: Helm) -> None:
    done = helm.attempted("install", RELEASE, CHART)
    assert done.returncode != 0
    assert "prometheus.url" in done.stderr


def test_the_first_finding_is_on_the_page_a_minute_after_the_installation(helm: Helm, living: Installed) -> None:
    """With nothing said but where Prometheus is. Images need no pulling here, and Nodes are at hand."""
    begun = time.monotonic()
    helm("install", RELEASE, CHART, "--set", f"prometheus.url={living.prometheus}")
    installed = time.monotonic() - begun
    wait_until(lambda: ready(living.api, 2), lambda: said(living.api))
    available = time.monotonic() - begun
    wait_until(on_a_page(living.api, FAULTY, "<strong>degraded</strong>"), lambda: said(living.api))
    shown = time.monotonic() - begun
    for name, seconds in (("installed", installed), ("ready", available), ("first finding on the page", shown)):
        print(f"helm install: {name} after {seconds:.1f} s")
    assert shown < 60
    # One that is not made as it demands would have been refused.
    bare = {"containers": [{"name": "main", "image": "x"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bare", "namespace": NAMESPACE}, "spec": bare}
    refused = living.api.answer("POST", f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All", pod)
    assert "restricted" in refused.text


def test_observe_may_read_and_keep_what_is_its_own(living: Installed) -> None:
    rights(living.api, OBSERVE)
    assert may(living.api, ("list", "", "pods", ""), "nobody") is False


def test_guardrails_stand_where_they_are_served(living: Installed) -> None:
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
    names = {item["metadata"]["name"] for item in living.api.get(path)["items"]}
    assert {"gpuwatch-other", "gpuwatch-nodes"} <= names


def test_helm_test_runs_the_doctor(helm: Helm) -> None:
    done = helm.attempted("test", RELEASE, "--timeout", "120s")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Prometheus at" in done.stdout + done.stderr
    assert "in place" in done.stdout + done.stderr  # the guardrails


def test_helm_test_fails_where_prometheus_does_not_answer(helm: Helm) -> None:
    helm("upgrade", RELEASE, CHART, "--set", "prometheus.url=http://127.0.0.1:9")
    done = helm.attempted("test", RELEASE, "--timeout", "120s")
    assert done.returncode != 0
    assert "http://127.0.0.1:9" in done.stdout + done.stderr
    helm("rollback", RELEASE, "1")
    helm("test", RELEASE, "--timeout", "120s")  # which takes the Pod of the one before away


def test_a_pause_survives_an_upgrade_to_another_mode(helm: Helm, living: Installed, quick: Path) -> None:
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/gpuwatch-pause"
    pause = {"paused": "true", "reason": "maintenance"}
    assert living.api.answer("PATCH", path, {"data": pause}, content_type=MERGE).ok
    helm("upgrade", RELEASE, CHART, "--values", quick, "--set", "mode=suggest")
    assert paused(living.api) == pause
    rights(living.api, OBSERVE, SUGGEST)


def test_rolled_back_it_may_what_it_might_before_and_is_still_paused(helm: Helm, living: Installed) -> None:
    helm("rollback", RELEASE)
    rights(living.api, OBSERVE)
    assert paused(living.api) == {"paused": "true", "reason": "maintenance"}


@pytest.mark.parametrize(
    ("action", "more"),
    [("evict", EVICT), ("makeRoom", EVICT), ("release", RELEASE_IDLE), ("taint", TAINT)],
    ids=["evict", "make_room", "release", "taint"],
)
def test_each_action_has_its_rights_and_no_others(
    action: str, more: tuple[Right, ...], helm: Helm, living: Installed, quick: Path
) -> None:
    helm("upgrade", RELEASE, CHART, "--values", quick, "--set", f"mode=enforce,enforce.{action}=true")
    overlap = (("patch", "batch", "jobs", "team-a"), ("patch", "apps", "deployments", "team-a"))
    rights(living.api, OBSERVE, SUGGEST, more, overlap if more == EVICT else ())


def test_what_a_person_approved_is_done(helm: Helm, living: Installed, quick: Path) -> None:
    path, before = f"/api/v1/namespaces/{NAMESPACE}/configmaps/gpuwatch-pause", set(replicas(living.api, ending=True))
    # The annotation makes new Pods, which know no other mode. The old ones enforce until they have ended.
    changes = "mode=suggest,rbac.roles={suggest,taint},podAnnotations.mode=suggest"
    helm("upgrade", RELEASE, CHART, "--values", quick, "--set", changes)
    wait_until(
        lambda: ready(living.api, 1) and not before & set(replicas(living.api, ending=True)), lambda: said(living.api)
    )
    assert living.api.answer("PATCH", path, {"data": {"paused": "false", "reason": None}}, content_type=MERGE).ok
    wait_until(lambda: living.phase("taint_node", FAULTY) == "Proposed", lambda: said(living.api))
    (proposed,) = living.remediations("taint_node")
    done = living.command("approve", proposed["metadata"]["name"], "--controller-namespace", NAMESPACE)
    assert done.returncode == 0, done.stderr
    wait_until(lambda: living.phase("taint_node", FAULTY) == "InEffect", lambda: said(living.api))
    assert living.taints(FAULTY) != []
    helm("upgrade", RELEASE, CHART, "--values", quick, "--set", "mode=enforce,enforce.taint=true")
    rights(living.api, OBSERVE, SUGGEST, TAINT)


def test_what_is_in_effect_outlasts_an_upgrade(helm: Helm, living: Installed) -> None:
    before = set(replicas(living.api))
    helm("upgrade", RELEASE, CHART, "--reuse-values", "--set", "podAnnotations.new=yes,replicas=2")
    wait_until(lambda: ready(living.api, 2) and not before & set(replicas(living.api)), lambda: said(living.api))
    wait_until(on_a_page(living.api, FAULTY), lambda: said(living.api))
    (kept,) = living.remediations("taint_node")
    assert kept["status"]["phase"] == "InEffect"
    assert kept["metadata"]["finalizers"]
    assert living.taints(FAULTY) != []


def test_what_cannot_be_given_back_keeps_the_release(helm: Helm, living: Installed) -> None:
    """Its roles, above all, without which nothing of it could be given back later."""
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/gpuwatch-pause"
    assert living.api.answer("PATCH", path, {"data": {"paused": "all"}}, content_type=MERGE).ok
    done = helm.attempted("uninstall", RELEASE, "--timeout", "60s")
    assert done.returncode != 0
    assert "`gpuwatch resume` first" in done.stdout + done.stderr
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


def test_what_cannot_be_undone_is_told_and_the_release_can_be_rolled_back(helm: Helm, living: Installed) -> None:
    """In mode observe, which has no role to undo anything. Helm upgrades no release whose uninstallation has failed."""
    helm("rollback", RELEASE)
    helm("upgrade", RELEASE, CHART, "--reuse-values", "--set", "mode=observe")
    rights(living.api, OBSERVE)
    refuse(living.api)
    begun = time.monotonic()
    done = helm.attempted("uninstall", RELEASE, "--timeout", "180s")
    assert done.returncode != 0
    print(f"helm uninstall: refused after {time.monotonic() - begun:.1f} s")
    told = done.stdout + done.stderr
    assert "is Undoing" in told
    assert FAULTY in told
    assert "Nodes are frozen this week" in told
    assert living.taints(FAULTY) != []
    rights(living.api, OBSERVE)  # what the removal was granted is gone again
    assert helm.attempted("upgrade", RELEASE, CHART, "--reuse-values").returncode != 0
    helm("rollback", RELEASE)
    rights(living.api, OBSERVE, SUGGEST, TAINT)
    wait_until(lambda: deployment(living.api)["status"].get("readyReplicas") == 1, lambda: said(living.api))


def test_uninstalling_in_a_milder_mode_leaves_no_taint_no_mark_and_no_finalizer(helm: Helm, living: Installed) -> None:
    """Than the one in which the Node was tainted."""
    helm("upgrade", RELEASE, CHART, "--reuse-values", "--set", "mode=observe")
    rights(living.api, OBSERVE)
    assert living.taints(FAULTY) != []
    allow(living.api)
    done = helm.attempted("uninstall", RELEASE, "--timeout", "180s")
    told = done.stdout + done.stderr
    assert done.returncode == 0 and "Nothing of gpuwatch is left" in told, told
    assert living.taints(FAULTY) == [], told + said(living.api)
    found = living.api.get(f"/api/v1/nodes/{FAULTY}")["metadata"]
    assert [key for key in found.get("annotations", {}) if "gpuwatch" in key] == []
    assert left(living.api) == []
    assert definitions(living.api) != []
    wait_until(lambda: living.api.get(PODS)["items"] == [], lambda: said(living.api))


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


def test_values_of_a_chart_that_knew_less_are_enough(helm: Helm, living: Installed, tmp_path: Path) -> None:
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


def test_the_definitions_go_where_that_is_asked(helm: Helm, living: Installed, quick: Path) -> None:
    """With proposals of an earlier mode, and with the Pod of a test that failed."""
    helm("upgrade", RELEASE, CHART, "--values", quick, "--set", "mode=suggest")
    wait_until(lambda: living.phase("taint_node", FAULTY) == "Proposed", lambda: said(living.api))
    changes = "mode=observe,crds.keep=false,prometheus.url=http://127.0.0.1:9"
    helm("upgrade", RELEASE, CHART, "--reset-then-reuse-values", "--set", changes)
    assert helm.attempted("test", RELEASE, "--timeout", "120s").returncode != 0
    assert any("doctor" in each for each in left(living.api))
    helm("uninstall", RELEASE, "--timeout", "180s")
    wait_until(lambda: definitions(living.api) == [], lambda: said(living.api))
    assert left(living.api) == []
