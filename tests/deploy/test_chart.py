"""The Helm chart: it is what `kubectl apply -k` gives, its values mean what they say, and what it renders is valid.

Helm renders here; tests/deploy/test_chart_live.py installs it on a real API server.
"""

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.api import Object
from deploy.manifests import DEPLOY, documents
from gpuwatch import __version__
from gpuwatch.app.settings import load_settings
from gpuwatch.facts.model.decision import ActionKind, Mode
from gpuwatch.sources.store.custom_resources import GROUP
from parts.helm_tools import HelmBuild
from tools import chart
from tools.rules import alerts

CHART = DEPLOY / "chart" / "gpuwatch"
URL = "http://prometheus-operated.monitoring.svc:9090"
OPERATOR = "monitoring.coreos.com/v1"
VERSIONS = [f"1.{minor}.0" for minor in range(29, 38)]
EVERYTHING = Path(__file__).with_name("chart_everything.yaml")
"""Values that switch on all there is."""

Key = tuple[str, str, str]


class Chart:
    """helm template, with the values of a test."""

    def __init__(self, helm: Path, folder: Path) -> None:
        self.helm, self.folder = helm, folder

    def run(self, *arguments: str | Path, values: Mapping[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
        file = self.folder / "values.yaml"
        file.write_text(yaml.safe_dump(values or {}), encoding="utf-8")
        command = [self.helm, *arguments, "--values", file]
        return subprocess.run([str(each) for each in command], capture_output=True, text=True, check=False)

    def template(
        self, values: Mapping[str, Any] | None = None, *arguments: str, apis: tuple[str, ...] = (OPERATOR,)
    ) -> str:
        given = {"prometheus": {"url": URL}, **(values or {})}
        served = (word for api in apis for word in ("--api-versions", api))
        name = ("gpuwatch", CHART, "--namespace", "gpuwatch")
        done = self.run("template", *name, *served, *arguments, values=given)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def objects(
        self, values: Mapping[str, Any] | None = None, *arguments: str, apis: tuple[str, ...] = (OPERATOR,)
    ) -> dict[Key, Object]:
        return by_key(yaml.load_all(self.template(values, *arguments, apis=apis), Loader=yaml.CSafeLoader))

    def few(self, values: Mapping[str, Any], *arguments: str) -> dict[Key, Object]:
        """Without definitions and policies, which are most of it, for tests of other things."""
        return self.objects({"crds": {"install": False}, "guardrails": {"enabled": False}, **values}, *arguments)

    def refused(self, values: Mapping[str, Any]) -> str:
        """Why it does not render."""
        done = self.run("template", "gpuwatch", CHART, values={"prometheus": {"url": URL}, **values})
        assert done.returncode != 0, "it was not refused"
        return done.stderr


def by_key(objects: Iterator[Object]) -> dict[Key, Object]:
    found = {}
    for each in objects:
        if each is not None:
            key = (each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"])
            assert key not in found, f"{key} is there twice"
            found[key] = each
    return found


@pytest.fixture(scope="module")
def helm_chart(helm_build: HelmBuild, tmp_path_factory: pytest.TempPathFactory) -> Chart:
    return Chart(helm_build.helm, tmp_path_factory.mktemp("chart"))


def test_helm_finds_nothing_to_say_against_it(helm_chart: Chart) -> None:
    done = helm_chart.run("lint", "--strict", CHART, values={"prometheus": {"url": URL}})
    assert done.returncode == 0, done.stdout
    assert "[WARNING]" not in done.stdout


def test_it_has_the_version_of_the_package() -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (about["version"], about["appVersion"]) == (__version__, __version__)
    images = yaml.safe_load(about["annotations"]["artifacthub.io/images"])
    assert [each["image"] for each in images] == [f"gpuwatch:{__version__}"]
    shipped = {each["metadata"]["name"] for each in documents(DEPLOY / "base" / "crds.yaml")}
    assert {each["name"] for each in yaml.safe_load(about["annotations"]["artifacthub.io/crds"])} == shipped


LEFT_OUT_OF_SCORE = {
    "container-image-pull-policy": "the image has the tag of its version, or a digest",
    "container-ephemeral-storage-request-and-limit": "a container's own files are read-only; what it writes is small",
}
"""Checks of kube-score that do not hold here. Nor does it have a limit of CPU: that would only slow it down."""


@pytest.mark.parametrize("values", [{}, {"networkPolicy": {"enabled": True}, "report": {"enabled": True}}], ids=len)
def test_kube_score_finds_what_is_left_out_alone(values: dict[str, Any], helm_chart: Chart, kube_score: Path) -> None:
    rendered = helm_chart.template({"crds": {"install": False}, "guardrails": {"enabled": False}, **values})
    left_out = [word for name in LEFT_OUT_OF_SCORE for word in ("--ignore-test", name)]
    if not values:
        left_out += ["--ignore-test", "pod-networkpolicy"]  # which is off: not every cluster has what enforces it
    score = [kube_score, "score", "--kubernetes-version=v1.36", "--ignore-container-cpu-limit", *left_out]
    command = [*map(str, score), "--exit-one-on-warning", "--output-format=ci", "-"]
    done = subprocess.run(command, input=rendered, capture_output=True, text=True, check=False)
    assert done.returncode == 0, [line for line in done.stdout.splitlines() if not line.startswith("[OK]")]
    assert "Deployment" in done.stdout


@pytest.mark.helm3
@pytest.mark.parametrize("values", ["default", "everything"])
def test_helm_3_renders_the_same(values: str, helm_chart: Chart, helm_3: Path) -> None:
    file = {} if values == "default" else yaml.safe_load(EVERYTHING.read_text(encoding="utf-8"))
    older = Chart(helm_3, helm_chart.folder)
    how = ("--kube-version", "1.36.0")
    assert older.objects(file, *how) == helm_chart.objects(file, *how)
    assert older.run("lint", "--strict", CHART, values={"prometheus": {"url": URL}}).returncode == 0


# One source with the manifests of deploy/


PLACES: dict[str, dict[str, Any]] = {
    "base": {},
    "roles": {"mode": "enforce", "enforce": {"taint": True, "evict": True, "makeRoom": True, "release": True}},
    "report": {"report": {"enabled": True}},
    "optional": {
        "serviceMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True},
        "networkPolicy": {
            "enabled": True,
            "egress": {"enabled": False},
            "ingressFrom": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
        },
    },
}
"""Folder of deploy/ → the values that give the same objects."""

NOT_IN_THE_CHART = {
    ("Namespace", "", "gpuwatch"),  # helm --create-namespace
    ("PrometheusRule", "gpuwatch", "gpuwatch-alerts-optional"),  # of the chart's one object, rule by rule
}
REMOVAL = ("gpuwatch-uninstall", "gpuwatch-undo")
ONLY_IN_THE_CHART = (*REMOVAL, "gpuwatch-doctor")
OF_HELM = ("app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "app.kubernetes.io/version", "helm.sh/")


def plain(value: Any) -> Any:
    """Without what Helm adds: labels of its own, and what they leave empty."""
    if isinstance(value, list):
        return [plain(each) for each in value]
    if not isinstance(value, dict):
        return value
    made = {name: plain(each) for name, each in value.items() if not str(name).startswith(OF_HELM)}
    return {name: each for name, each in made.items() if name not in ("labels", "annotations") or each}


def same(ours: Object, theirs: Object) -> None:
    """But for the order of mounts and volumes, for text of the settings, and for labels where deploy/ has none."""
    ours, theirs = plain(ours), plain(theirs)
    for each in (ours, theirs):
        labels = each["metadata"].pop("labels", {})
        each["labelled"] = {name: told for name, told in labels.items() if not name.startswith("app.kubernetes.io/")}
        for spec in pod_specs(each):
            spec["volumes"].sort(key=lambda volume: volume["name"])
            for container in spec["containers"]:
                container["volumeMounts"].sort(key=lambda mount: mount["name"])
        if "settings.yaml" in each.get("data", {}):
            each["data"]["settings.yaml"] = yaml.safe_load(each["data"]["settings.yaml"])
    assert ours == theirs


def pod_specs(object_: Object) -> Iterator[dict[str, Any]]:
    if object_["kind"] == "Pod":
        yield object_["spec"]
    for path in (("spec", "template", "spec"), ("spec", "jobTemplate", "spec", "template", "spec")):
        found: Any = object_
        for name in path:
            found = found.get(name, {}) if isinstance(found, dict) else {}
        if found:
            yield found


def shipped(place: str) -> Iterator[Object]:
    folder = DEPLOY / place
    if (folder / "kustomization.yaml").exists():
        yield from documents(folder)
    else:
        for file in sorted(folder.glob("*.yaml")):
            yield from documents(file)


@pytest.mark.parametrize("place", PLACES)
def test_it_makes_the_objects_of_deploy(place: str, helm_chart: Chart) -> None:
    made = helm_chart.objects(PLACES[place])
    wanted = by_key(shipped(place))
    for key in sorted(set(wanted) - NOT_IN_THE_CHART):
        assert key in made, f"the chart makes no {key}"
        theirs = wanted[key]
        if place == "report" and key[0] == "ConfigMap":
            continue  # the controller beside it leaves the report to the CronJob
        same(made[key], theirs)
    if place == "base":
        people = by_key(documents(DEPLOY / "roles" / "people.yaml"))
        more = {key for key in set(made) - set(wanted) - set(people) if not key[2].startswith(ONLY_IN_THE_CHART)}
        assert more == set()


# Values


def test_every_value_is_explained_and_no_other_is_taken(helm_chart: Chart) -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = chart.schema(values, dict(chart.explained((CHART / "values.yaml").read_text())))  # raises where one is not

    def closed(part: Any, where: str) -> None:
        if isinstance(part, dict):
            if "properties" in part:
                assert part.get("additionalProperties") is False, f"{where} takes what it does not know"
            for name, each in part.items():
                closed(each, f"{where}/{name}")

    closed(schema, "")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"replicaz": 3}, "replicaz"),
        ({"image": {"tagg": "1"}}, "tagg"),
        ({"image": {"digest": "sha256:1"}}, "/image/digest"),
        ({"mode": "enforced"}, "'observe', 'suggest', 'enforce'"),
        ({"enforce": {"drain": True}}, "drain"),
        ({"settings": {"plan": {"budget_rato": 0.1}}}, "budget_rato"),
        ({"settings": {"plan": {"modes": {"taint_node": "enforce"}}}}, "modes"),
        ({"settings": {"run": {"namespace": "x"}}}, "namespace"),
        ({"prometheusRule": {"rules": {"GpuXidFatl": {"enabled": False}}}}, "GpuXidFatl"),
        ({"prometheusRule": {"rules": {"GpuXidFatal": {"threshold": 1}}}}, "threshold"),
        ({"grafanaDashboards": {"perDashboard": {"gpuwatch-monney": False}}}, "gpuwatch-monney"),
        ({"resources": {"request": {}}}, "request"),
        ({"podLabels": {"a": 1}}, "/podLabels/a"),
        ({"service": {"port": "http"}}, "/service/port"),
        # By the templates.
        ({"prometheus": {"url": ""}}, "kubectl get services -A | grep"),
        ({"mode": "enforce"}, "set enforce.taint, enforce.evict, enforce.makeRoom or enforce.release"),
        ({"persistence": {"enabled": True}}, "persistence.enabled needs replicas: 1"),
        ({"serviceAccount": {"create": False}}, "serviceAccount.name"),
        ({"terminationGracePeriodSeconds": 25}, "settings.run.shutdown_timeout_seconds"),
        ({"ingress": {"enabled": True}}, "ingress.hosts"),
        ({"httpRoute": {"enabled": True}}, "httpRoute.parentRefs"),
        (
            {"settings": {"plan": {"scopes": [{"mode": "enforce", "action": "taint_node", "pool": "a"}]}}},
            "add taint to rbac.roles",
        ),
    ],
    ids=lambda value: json.dumps(value)[:50] if isinstance(value, dict) else "",
)
def test_what_is_wrong_is_refused_and_named(values: dict[str, Any], said: str, helm_chart: Chart) -> None:
    assert said in helm_chart.refused(values)


def role_names(objects: Mapping[Key, Object]) -> set[str]:
    """But for those of the removal."""
    names = {name.removeprefix("gpuwatch-") for kind, _, name in objects if kind == "ClusterRoleBinding"}
    return {name for name in names if not name.startswith(("uninstall", "undo"))}


ALWAYS = {"observe", "controller"}


@pytest.mark.parametrize(
    ("values", "modes", "roles"),
    [
        ({}, "observe observe observe observe", set()),
        ({"enforce": {"taint": True}}, "observe observe observe observe", set()),
        ({"mode": "suggest"}, "suggest suggest suggest suggest", {"suggest"}),
        (
            {"mode": "enforce", "enforce": {"taint": True}},
            "enforce suggest suggest suggest",
            {"suggest", "enforce-taint"},
        ),
        (
            {"mode": "enforce", "enforce": {"evict": True, "release": True}},
            "suggest enforce suggest enforce",
            {"suggest", "enforce-evict", "enforce-release"},
        ),
        (
            {"mode": "enforce", "enforce": {"makeRoom": True}},
            "suggest suggest enforce suggest",
            {"suggest", "enforce-make-room"},
        ),
        ({"rbac": {"roles": ["taint", "suggest"]}}, "observe observe observe observe", {"suggest", "enforce-taint"}),
        ({"mode": "suggest", "rbac": {"create": False}}, "suggest suggest suggest suggest", None),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else "",
)
def test_the_mode_decides_settings_and_roles_together(
    values: dict[str, Any], modes: str, roles: set[str] | None, helm_chart: Chart, tmp_path: Path
) -> None:
    made = helm_chart.few(values)
    assert role_names(made) == (ALWAYS | roles if roles is not None else set())
    kinds = (ActionKind.TAINT_NODE, ActionKind.EVICT_GANG, ActionKind.MAKE_ROOM, ActionKind.RELEASE_GANG)
    assert settings(made, tmp_path).plan.modes == dict(zip(kinds, map(Mode, modes.split()), strict=True))


def settings(objects: Mapping[Key, Object], folder: Path) -> Any:
    file = folder / "settings.yaml"
    file.write_text(objects["ConfigMap", "gpuwatch", "gpuwatch-settings"]["data"]["settings.yaml"])
    return load_settings(file, {})


def test_settings_reach_gpuwatch(helm_chart: Chart, tmp_path: Path) -> None:
    values = {
        "mode": "suggest",
        "prometheus": {
            "url": URL,
            "headers": {"X-Scope-OrgID": "gpu"},
            "bearerTokenSecret": {"name": "prometheus", "key": "bearer"},
            "caSecret": {"name": "authorities"},
        },
        "settings": {
            "currency": "EUR",
            "prometheus": {"matchers": {"cluster": "eu-1"}},
            "plan": {
                "budget_ratio": 0.05,
                "scopes": [{"mode": "enforce", "action": "taint_node", "pool": "a"}],
            },
            "execute": {"hand_off_label": "example.com/repair=wanted", "last_taint_effect": "NoExecute"},
        },
        "rbac": {"roles": ["taint"]},
    }
    made = helm_chart.few(values)
    found = settings(made, tmp_path)
    assert (found.currency, found.plan.budget_ratio) == ("EUR", 0.05)
    assert found.prometheus.headers == {"X-Scope-OrgID": "gpu"}
    (spec,) = pod_specs(made["Deployment", "gpuwatch", "gpuwatch"])
    mounted = {each["mountPath"]: each["name"] for each in spec["containers"][0]["volumeMounts"]}
    secrets = {each["name"]: each["secret"]["secretName"] for each in spec["volumes"] if "secret" in each}
    for file, secret, key in (
        (found.prometheus.bearer_token_file, "prometheus", "bearer"),
        (found.prometheus.ca_file, "authorities", "ca.crt"),
    ):
        folder, _, name = file.rpartition("/")
        assert (secrets[mounted[folder]], name) == (secret, key)
    # Rights that the settings need beside a mode's.
    rules = made["ClusterRole", "", "gpuwatch-extra"]["rules"]
    assert [(each["resources"], each["resourceNames"]) for each in rules] == [
        (["nodelabels"], ["example.com/repair"]),
        (["nodetaints"], ["NoExecute"]),
    ]
    assert made["ClusterRoleBinding", "", "gpuwatch-extra"]["metadata"]["labels"]["gpuwatch.dev/account"] == "mode"


def test_names_and_namespaces_are_the_releases(helm_chart: Chart) -> None:
    values = {
        **PLACES["roles"],
        "fullnameOverride": "watcher",
        "namespaceOverride": "gpu-ops",
        "serviceAccount": {"name": "keeper"},
        "commonLabels": {"team": "gpu"},
    }
    for (kind, namespace, name), each in helm_chart.objects(values).items():
        fixed = kind.startswith(("ValidatingAdmission", "CustomResource")) or name == "gpuwatch-pause"
        assert name.startswith("watcher") is not (fixed or (kind == "ServiceAccount" and name == "keeper")), (
            kind,
            name,
        )
        assert namespace in ("", "gpu-ops")
        assert each["metadata"]["labels"]["team"] == "gpu"
        for subject in each.get("subjects", ()):
            wanted = "watcher-uninstall" if name == "watcher-uninstall" else "keeper"
            assert (subject["name"], subject["namespace"]) == (wanted, "gpu-ops")
        if "roleRef" in each:
            assert each["roleRef"]["name"].startswith("watcher-")


def test_the_longest_name_is_short_enough_for_every_object(helm_chart: Chart) -> None:
    made = helm_chart.few({**yaml.safe_load(EVERYTHING.read_text()), "fullnameOverride": "x" * 60})
    for kind, _, name in made:
        if kind not in ("CustomResourceDefinition",):
            assert len(name) <= (52 if kind == "CronJob" else 63), name


def test_alerts_are_changed_one_by_one(helm_chart: Chart) -> None:
    def found(rules: dict[str, Any], **more: Any) -> dict[str, Object]:
        made = helm_chart.few({"prometheusRule": {"enabled": True, "rules": rules, **more}})
        groups = made["PrometheusRule", "gpuwatch", "gpuwatch-alerts"]["spec"]["groups"]
        return {rule["alert"]: rule for group in groups for rule in group["rules"]}

    usual = found({})
    assert set(usual) == {each.name for each in alerts.alerts() if not each.optional_because}
    changed = found(
        {
            "GpuXidFatal": {"enabled": False},
            "GpuwatchIdleWaste": {"enabled": True, "threshold": 25.5, "labels": {"team": "finops"}},
            "GpuTemperatureHigh": {"enabled": True, "for": "5m", "severity": "critical", "keepFiringFor": "1h"},
        },
        runbookUrl="https://wiki.example.org/gpu/",
    )
    assert set(changed) == {*usual, "GpuwatchIdleWaste", "GpuTemperatureHigh"} - {"GpuXidFatal"}
    waste = changed["GpuwatchIdleWaste"]
    assert waste["expr"].endswith("> 25.5")
    assert "more than 25.5 " in waste["annotations"]["description"]
    assert waste["labels"] == {"severity": "info", "team": "finops"}
    hot = changed["GpuTemperatureHigh"]
    assert (hot["for"], hot["keep_firing_for"], hot["labels"]) == ("5m", "1h", {"severity": "critical"})
    assert hot["annotations"]["runbook_url"] == "https://wiki.example.org/gpu/GpuTemperatureHigh.md"
    assert not [rule for rule in (*usual.values(), *changed.values()) if alerts.THRESHOLD in str(rule)]
    only = helm_chart.few({"prometheusRule": {"enabled": True, "vendors": ["amd"], "alerts": False}})
    (rule,) = (each for (kind, _, _), each in only.items() if kind == "PrometheusRule")
    assert [group["name"] for group in rule["spec"]["groups"]] == [
        "gpuwatch-recording-amd",
        "gpuwatch-recording-totals",
    ]


def test_dashboards_are_those_of_the_folder(helm_chart: Chart) -> None:
    made = helm_chart.few({"grafanaDashboards": {"enabled": True, "perDashboard": {"gpuwatch-money": False}}})
    found = {}
    for (_, _, name), each in made.items():
        if "-dashboard-" in name:
            assert each["metadata"]["labels"]["grafana_dashboard"] == "1"
            assert each["metadata"]["annotations"] == {"grafana_folder": "GPU"}
            found |= {file: json.loads(text) for file, text in each["data"].items()}
    shipped = {path.name: json.loads(path.read_text()) for path in (DEPLOY.parent / "dashboards").glob("*.json")}
    assert shipped.pop("gpuwatch-money.json")
    assert found == shipped


def test_what_only_some_clusters_serve_is_left_out_elsewhere(helm_chart: Chart) -> None:
    values = yaml.safe_load(EVERYTHING.read_text())
    kinds = {key[0] for key in helm_chart.objects(values, "--kube-version", "1.29.0", apis=())}
    assert not kinds & {"ServiceMonitor", "PodMonitor", "PrometheusRule", "ValidatingAdmissionPolicy"}
    values["serviceMonitor"]["force"] = True
    assert "ServiceMonitor" in {key[0] for key in helm_chart.objects(values, apis=())}
    assert "ValidatingAdmissionPolicy" in {key[0] for key in helm_chart.objects({}, "--kube-version", "1.30.0")}
    assert not [key for key in helm_chart.objects({"guardrails": {"enabled": False}}) if "Admission" in key[0]]


def test_a_network_policy_names_what_is_reached_and_denies_the_rest(helm_chart: Chart) -> None:
    def egress(url: str, **given: Any) -> list[Any]:
        policy = {"enabled": True, "egress": given}
        made = helm_chart.few({"prometheus": {"url": url}, "networkPolicy": policy})
        spec = made["NetworkPolicy", "gpuwatch", "gpuwatch"]["spec"]
        assert spec["policyTypes"] == ["Ingress", "Egress"]
        assert spec["ingress"] == []
        rules: list[Any] = spec["egress"]
        return rules

    api, dns, prometheus, exporters = egress(URL)
    assert [port["port"] for port in api["ports"]] == [443, 6443]
    assert {(port["protocol"], port["port"]) for port in dns["ports"]} == {("UDP", 53), ("TCP", 53)}
    monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    assert prometheus == {"to": [monitoring]}  # at any port, as a Service's may differ from its Pods'
    assert egress("https://metrics.example.org/prometheus")[2] == {"ports": [{"protocol": "TCP", "port": 443}]}
    assert egress("http://metrics.example.org:8427")[2] == {"ports": [{"protocol": "TCP", "port": 8427}]}
    assert [port["port"] for port in exporters["ports"]] == [9400, 5000, 29999, 41611] and "to" not in exporters
    assert len(egress(URL, exporters={"ports": []})) == 3
    mail = {"to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]}
    assert egress(URL, delivery=[mail], apiServer={"cidrs": ["198.51.100.7/32"]})[4] == mail


def test_values_of_an_older_chart_get_what_came_since(helm_chart: Chart, tmp_path: Path) -> None:
    """As `helm upgrade --reuse-values` does it: no default of this chart is merged in."""
    whole = helm_chart.few({})
    assert whole == helm_chart.few({}, "--set", "uninstall=null,networkPolicy=null,report=null,service=null,rbac=null")
    kept = "grafanaDashboards.operator=null,prometheusRule.vendors=null,podDisruptionBudget.minAvailable=null"
    assert whole == helm_chart.few({}, "--set", kept)
    # What is taken away of a whole stays away.
    without = helm_chart.few({}, "--set", "resources.limits=null,livenessProbe=null")
    (spec,) = pod_specs(without["Deployment", "gpuwatch", "gpuwatch"])
    assert set(spec["containers"][0]["resources"]) == {"requests"}


def test_every_pod_meets_the_strictest_standard(helm_chart: Chart) -> None:
    made = helm_chart.few(yaml.safe_load(EVERYTHING.read_text()))
    pods = [(key, spec) for key, each in made.items() for spec in pod_specs(each)]
    assert {key[0] for key, _ in pods} == {"Deployment", "CronJob", "Job", "Pod"}
    for key, spec in pods:
        assert spec["securityContext"]["runAsNonRoot"] is True, key
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, key
        for container in spec["containers"]:
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}, key
            assert container["securityContext"]["allowPrivilegeEscalation"] is False, key
            assert container["securityContext"]["readOnlyRootFilesystem"] is True, key


def test_every_template_is_reached(helm_chart: Chart) -> None:
    written = helm_chart.template(
        yaml.safe_load(EVERYTHING.read_text()), apis=(OPERATOR, "grafana.integreatly.org/v1beta1")
    )
    reached = set(re.findall(r"^# Source: gpuwatch/templates/(\S+)", written, re.MULTILINE))
    templates = (CHART / "templates").rglob("*.yaml")
    assert reached == {path.relative_to(CHART / "templates").as_posix() for path in templates}


def test_the_removal_needs_no_right_that_stays(helm_chart: Chart) -> None:
    """And may undo what any mode did, as gpuwatch's account, that the guardrails hold."""
    made = helm_chart.few({})
    removal = {key: each for key, each in made.items() if key[2].startswith(REMOVAL)}
    for (kind, _, name), each in removal.items():
        annotations = each["metadata"]["annotations"]
        assert annotations["helm.sh/hook"] == "pre-delete", name
        assert ("hook-failed" in annotations["helm.sh/hook-delete-policy"]) is (kind != "Job"), name
    assert GROUP in str(made["ClusterRole", "", "gpuwatch-uninstall"]["rules"])
    acts = {"taint": True, "evict": True, "makeRoom": True, "release": True}
    every = helm_chart.few({"mode": "enforce", "enforce": acts})
    for name in ("suggest", "enforce-taint", "enforce-evict", "enforce-make-room", "enforce-release"):
        assert (
            removal["ClusterRole", "", f"gpuwatch-undo-{name}"]["rules"]
            == (every["ClusterRole", "", f"gpuwatch-{name}"]["rules"])
        )
        bound = removal["ClusterRoleBinding", "", f"gpuwatch-undo-{name}"]
        assert bound["roleRef"]["name"] == f"gpuwatch-undo-{name}"
        assert bound["subjects"] == [{"kind": "ServiceAccount", "name": "gpuwatch", "namespace": "gpuwatch"}]
        assert bound["metadata"]["labels"]["gpuwatch.dev/account"] == "mode"
    off = helm_chart.few({"uninstall": {"enabled": False}})
    assert not [key for key in off if key[2].startswith(REMOVAL)]


def test_the_values_that_its_page_shows_are_taken(helm_chart: Chart) -> None:
    page = (CHART / "README.md").read_text(encoding="utf-8")
    files = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert files
    for file in files:
        kinds = {key[0] for key in helm_chart.few(yaml.safe_load(file))}
        assert {"ServiceMonitor", "PrometheusRule"} <= kinds
    shown = [given.rstrip("`.,").replace("'", "") for given in re.findall(r"--set (\S+)", page)]
    shown += re.findall(r"`([a-z]+\.[A-Za-z.]+=[a-z0-9]+)`", page)
    assert len(shown) >= 5
    for given in shown:
        helm_chart.few({}, "--set", given)
