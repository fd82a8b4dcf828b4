"""What the chart renders is valid by the schemas that the API server publishes, and the API server would take it.

The chart is rendered for each version of Kubernetes that it is for, and held to what that version publishes; gpuwatch's
own kinds and those of the Prometheus Operator to their definitions.
"""

import json
import subprocess
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import yaml

from cluster.api import Api, Object
from cluster.control_plane import ControlPlane, ControlPlaneBuild, running
from deploy.manifests import CRDS, apply, documents
from deploy.test_chart import CHART, EVERYTHING, OPERATOR, PLACES, VERSIONS, Chart, by_key, helm_chart
from parts.helm_tools import Helm, HelmBuild
from parts.operator_server import OperatorBuild, definitions
from parts.processes import wait_until

__all__ = ["helm_chart"]
GRAFANA = "grafana.integreatly.org/v1beta1"
NOT_SERVED = {"GrafanaDashboard", "HTTPRoute"}
"""Kinds of others whose definitions are not to be had here: their objects are rendered, and not validated."""
EXAMPLES = "artifacthub.io/crdsExamples"
DEFINED = {"gpuwatch.dev", "monitoring.coreos.com"}
"""Groups whose kinds are not Kubernetes' own."""


@pytest.fixture(scope="module")
def plane(control_plane_build: ControlPlaneBuild) -> Iterator[ControlPlane]:
    with running(control_plane_build) as started:
        yield started


@pytest.fixture(scope="module")
def server(plane: ControlPlane, operator_build: OperatorBuild) -> Api:
    api = Api(plane.administrator)
    apply(api, documents(CRDS))
    apply(api, definitions(operator_build))
    for name in ("gpuwatch", "monitoring", "metrics"):
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return api


@pytest.fixture(scope="module")
def schemas(server: Api, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a schema for each kind that a definition adds, in which what is not known is an error."""
    folder = tmp_path_factory.mktemp("schemas")
    published: dict[str, Any] = {}

    def complete() -> bool:
        published.update(server.get("/openapi/v2")["definitions"])
        return "com.coreos.monitoring.v1.PrometheusRule" in published

    wait_until(complete, lambda: "the definitions of the Prometheus Operator are not published")
    every = {name: strict(each) for name, each in published.items()}
    for name, each in every.items():
        for kind in each.get("x-kubernetes-group-version-kind", ()):
            if kind["group"] in DEFINED:
                needed = {one: every[one] for one in closure(name, every)}
                made = {"$ref": f"#/definitions/{name}", "definitions": needed}
                (folder / file_name(kind)).write_text(json.dumps(made))
    return folder


def file_name(kind: dict[str, str]) -> str:
    return f"{kind['group'] or kind['version']}_{kind['version']}_{kind['kind'].lower()}.json"


def strict(part: Any) -> Any:
    if isinstance(part, list):
        return [strict(each) for each in part]
    if not isinstance(part, dict):
        return part
    if part.get("format") == "int-or-string":
        return {"type": ["integer", "string"]}
    made = {name: strict(each) for name, each in part.items()}
    known = isinstance(made.get("properties"), dict) and "type" in made
    if known and not part.get("x-kubernetes-preserve-unknown-fields"):
        made.setdefault("additionalProperties", False)
    return made


def closure(name: str, every: dict[str, Any]) -> set[str]:
    found, ahead = set[str](), [name]
    while ahead:
        at = ahead.pop()
        if at not in found:
            found.add(at)
            ahead += [ref.partition('"')[0] for ref in json.dumps(every[at]).split('"#/definitions/')[1:]]
    return found


def everything(**more: Any) -> dict[str, Any]:
    return {**yaml.safe_load(EVERYTHING.read_text(encoding="utf-8")), **more}


MATRIX: dict[str, dict[str, Any]] = {
    "default": {},
    "everything": everything(),
    "two replicas": everything(replicas=3, persistence={"enabled": False}, existingConfigMap="mine", report={}),
    **PLACES,
}


def validated(rendered: str, version: str, helm_build: HelmBuild, schemas: Path) -> subprocess.CompletedProcess[str]:
    """By kubeconform, which finds no schema for a kind that this version of Kubernetes does not serve."""
    name = "{{.Group}}_{{.ResourceAPIVersion}}_{{.ResourceKind}}.json"
    places = (schemas / name, published(version, schemas) / name)
    locations = [word for place in places for word in ("-schema-location", place)]
    check = (helm_build.kubeconform, "-strict", "-summary", *locations, "-skip", ",".join(NOT_SERVED), "-")
    return subprocess.run([str(each) for each in check], input=rendered, capture_output=True, text=True, check=False)


def published(version: str, schemas: Path) -> Path:
    """A folder with a schema for each kind of this version of Kubernetes, in which what is not known is an error."""
    folder = schemas / version
    file = files("kubernetes_validate") / "kubernetes-json-schema" / f"v{version}-local-strict" / "_definitions.json"
    folder.mkdir(exist_ok=True)
    for name, each in json.loads(file.read_text(encoding="utf-8"))["$defs"].items():
        for kind in each.get("x-kubernetes-group-version-kind", ()):
            made = {"$ref": f"file://{file}#/$defs/{name}"}
            (folder / file_name(kind)).write_text(json.dumps(made))
    return folder


@pytest.mark.parametrize(
    "version",
    [VERSIONS[0], *(pytest.param(each, marks=pytest.mark.versions) for each in VERSIONS[1:-1]), VERSIONS[-1]],
)
def test_it_is_valid_for_each_version(version: str, helm_chart: Chart, helm_build: HelmBuild, schemas: Path) -> None:
    for name in MATRIX if version == VERSIONS[-1] else ("default", "everything"):
        rendered = helm_chart.template(MATRIX[name], "--kube-version", version, apis=(OPERATOR, GRAFANA))
        done = validated(rendered, version, helm_build, schemas)
        assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
        assert "Valid: 0" not in done.stdout


def test_what_a_version_does_not_know_would_be_found(helm_chart: Chart, helm_build: HelmBuild, schemas: Path) -> None:
    """A misspelt field, and a kind that came later."""
    misspelt = helm_chart.template({"podSecurityContext": {"runAsNonRoott": True}})
    done = validated(misspelt, VERSIONS[-1], helm_build, schemas)
    assert done.returncode != 0
    assert "runAsNonRoott" in done.stdout
    guarded = helm_chart.template({}, "--kube-version", "1.30.0")
    done = validated(guarded, "1.29.0", helm_build, schemas)
    assert done.returncode != 0
    assert "could not find schema for ValidatingAdmissionPolicy" in done.stdout


@pytest.mark.parametrize("name", MATRIX)
def test_the_api_server_would_take_it(name: str, helm_chart: Chart, server: Api) -> None:
    """Each object by itself, with every field known, expressions compiled and defaults checked; nothing is stored."""
    taken = 0
    for (kind, namespace, found), each in helm_chart.objects(MATRIX[name], apis=(OPERATOR, GRAFANA)).items():
        if kind in NOT_SERVED:
            continue
        resource = server.resource(each["apiVersion"], kind)
        how = urlencode({"fieldManager": "test", "force": "true", "fieldValidation": "Strict", "dryRun": "All"})
        place = namespace or ("gpuwatch" if resource.namespaced else "")  # an object of a user may leave it out
        path = f"{resource.path(place)}/{found}?{how}"
        answer = server.answer("PATCH", path, each, content_type="application/apply-patch+yaml")
        assert answer.ok, f"{kind} {found}: {answer.text}"
        taken += 1
    assert taken > 80


def test_the_api_server_would_take_the_examples_of_its_definitions(server: Api) -> None:
    examples = yaml.safe_load(yaml.safe_load((CHART / "Chart.yaml").read_text())["annotations"][EXAMPLES])
    assert [each["kind"] for each in examples] == ["Remediation", "NodeRemediation", "WorkloadProfile"]
    for each in examples:
        each["metadata"].pop("namespace", "")  # which does not exist here
        resource = server.resource(each["apiVersion"], each["kind"])
        path = resource.path("gpuwatch" if resource.namespaced else "")
        answer = server.answer("POST", f"{path}?dryRun=All&fieldValidation=Strict", each)
        assert answer.ok, answer.text


def test_what_is_left_out_of_the_validation_is_rendered(helm_chart: Chart) -> None:
    made: dict[Any, Object] = by_key(
        yaml.load_all(helm_chart.template(everything(), apis=(OPERATOR, GRAFANA)), Loader=yaml.CSafeLoader)
    )
    assert {key[0] for key in made} >= NOT_SERVED


def service(namespace: str, called: str, port: int, port_name: str, **labels: str) -> Object:
    named = {f"app.kubernetes.io/{label}": value for label, value in labels.items()}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": called, "namespace": namespace, "labels": named},
        "spec": {"ports": [{"name": port_name, "port": port}]},
    }


def test_the_only_prometheus_of_the_cluster_is_found(
    server: Api, plane: ControlPlane, helm_build: HelmBuild, tmp_path: Path
) -> None:
    helm = Helm(helm_build.helm, plane.administrator, "gpuwatch", tmp_path)
    install = ("install", "fleet", CHART, "--dry-run=server", "--set", "crds.install=false")
    none = helm.attempted(*install)
    assert none.returncode != 0
    assert "kubectl get services -A | grep" in none.stderr
    server.create(service("monitoring", "grafana", 3000, "http-web", name="grafana"))
    server.create(service("monitoring", "prometheus-operated", 9090, "http-web"))
    (written,) = (
        each
        for each in yaml.safe_load_all(helm(*install).partition("MANIFEST:")[2].partition("NOTES:")[0])
        if each and each["metadata"]["name"] == "fleet-gpuwatch-settings"
    )
    settings = yaml.safe_load(written["data"]["settings.yaml"])
    assert settings["prometheus"] == {"url": "http://prometheus-operated.monitoring.svc:9090"}
    server.create(service("metrics", "prometheus-server", 80, "http", name="prometheus", component="server"))
    several = helm.attempted(*install)
    assert several.returncode != 0
    assert "--set prometheus.url=http://prometheus-operated.monitoring.svc:9090" in several.stderr
    assert "--set prometheus.url=http://prometheus-server.metrics.svc:80" in several.stderr
    # What was found once is kept.
    before = {"settings.yaml": "prometheus: {url: 'http://prometheus-operated.monitoring.svc:9090'}"}
    metadata = {"name": "fleet-gpuwatch-settings", "namespace": "gpuwatch"}
    server.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": before})
    kept = helm.attempted(*install)
    assert "cannot be imported into the current release" in kept.stderr  # as Helm did not make it; it was rendered
