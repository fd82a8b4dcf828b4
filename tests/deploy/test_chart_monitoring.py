"""What the chart gives the Prometheus Operator: the real one makes a configuration of it on a real API server, for a
Prometheus that selects by labels as kube-prometheus-stack's does, and promtool 3 reads that."""

import base64
import gzip
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.api import Api, Object
from cluster.control_plane import ControlPlaneBuild, running
from deploy.manifests import DEPLOY, apply
from parts.helm_tools import Helm, HelmBuild
from parts.operator_server import OperatorBuild, definitions, running_operator
from parts.processes import wait_until
from parts.prometheus_server import ServerBuild

pytestmark = [pytest.mark.slow, pytest.mark.prometheus]

NAMESPACE, STACK = "gpu-tools", "kube-prometheus-stack"
SELECTED = {"matchLabels": {"release": STACK}}
PROMETHEUS: Object = {
    "apiVersion": "monitoring.coreos.com/v1",
    "kind": "Prometheus",
    "metadata": {"name": "k8s", "namespace": "monitoring"},
    "spec": {
        "serviceAccountName": "prometheus",
        **{f"{kind}Selector": SELECTED for kind in ("serviceMonitor", "podMonitor", "rule")},
        **{f"{kind}NamespaceSelector": {} for kind in ("serviceMonitor", "podMonitor", "rule")},
    },
}
LABELLED = {"enabled": True, "additionalLabels": {"release": STACK}}
VALUES = {
    "serviceMonitor": {**LABELLED, "interval": "15s", "targetLabels": ["team"]},
    "podMonitor": {**LABELLED, "metricRelabelings": [{"action": "labeldrop", "regex": "never"}]},
    "prometheusRule": {**LABELLED, "rules": {"GpuwatchDown": {"for": "7m", "labels": {"team": "sre"}}}},
}


@dataclass(frozen=True)
class Generated:
    """settings: gpuwatch's own. configuration: Prometheus', as the operator wrote it. folder: with the files that it
    names. rules: by group."""

    settings: dict[str, Any]
    configuration: dict[str, Any]
    folder: Path
    rules: dict[str, list[dict[str, Any]]]

    @property
    def jobs(self) -> dict[str, dict[str, Any]]:
        return {job["job_name"]: job for job in self.configuration["scrape_configs"]}


@pytest.fixture(scope="module")
def generated(
    control_plane_build: ControlPlaneBuild,
    operator_build: OperatorBuild,
    helm_build: HelmBuild,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Generated]:
    folder = tmp_path_factory.mktemp("monitoring")
    values = folder / "values.yaml"
    values.write_text(yaml.safe_dump(VALUES))
    with running(control_plane_build) as cluster:
        api = Api(cluster.administrator)
        apply(api, definitions(operator_build))
        for name in (NAMESPACE, "monitoring"):
            api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        helm = Helm(helm_build.helm, cluster.administrator, NAMESPACE, folder)
        with running_operator(operator_build, cluster.administrator) as log:
            api.create(PROMETHEUS)
            service = "/api/v1/namespaces/monitoring/services/prometheus-operated"
            wait_until(lambda: api.answer("GET", service).ok, lambda: log.read_text()[-2000:])
            helm("install", "fleet", DEPLOY / "chart" / "gpuwatch", "--values", values)
            wait_until(lambda: len(written(api)) == 2, lambda: f"{written(api)}\n{log.read_text()[-2000:]}")
        texts = written(api)
        rules = folder / "rules"
        rules.mkdir()
        for name, text in texts["rules"].items():
            (rules / name).write_text(text)
        # Where Prometheus' container has them, and what the reloader beside it fills in.
        text = texts["configuration"]["prometheus.yaml"].replace("$(SHARD)", "0")
        (place,) = yaml.safe_load(text)["rule_files"]
        (folder / "prometheus.yaml").write_text(text.replace(place, f"{rules}/*.yaml"))
        groups = [group for file in texts["rules"].values() for group in yaml.safe_load(file)["groups"]]
        own = api.get(f"/api/v1/namespaces/{NAMESPACE}/configmaps/fleet-gpuwatch-settings")["data"]["settings.yaml"]
        yield Generated(
            yaml.safe_load(own), yaml.safe_load(text), folder, {group["name"]: group["rules"] for group in groups}
        )


def written(api: Api) -> dict[str, dict[str, str]]:
    """What the operator has generated so far, once it has taken up the chart's objects."""
    found = {}
    secret = api.answer("GET", "/api/v1/namespaces/monitoring/secrets/prometheus-k8s")
    if secret.ok:
        text = gzip.decompress(base64.b64decode(secret.json()["data"]["prometheus.yaml.gz"])).decode()
        if f"serviceMonitor/{NAMESPACE}" in text and f"podMonitor/{NAMESPACE}" in text:
            found["configuration"] = {"prometheus.yaml": text}
    rules = api.answer("GET", "/api/v1/namespaces/monitoring/configmaps/prometheus-k8s-rulefiles-0")
    if rules.ok and rules.json().get("data"):
        found["rules"] = rules.json()["data"]
    return found


def test_it_found_the_prometheus_of_the_operator(generated: Generated) -> None:
    assert generated.settings["prometheus"] == {"url": "http://prometheus-operated.monitoring.svc:9090"}


def test_promtool_accepts_what_the_operator_makes(
    generated: Generated, prometheus_builds: dict[int, ServerBuild]
) -> None:
    if 3 not in prometheus_builds:
        pytest.skip("promtool 3 is not to be had here; tests/parts/install puts it in place")
    promtool = prometheus_builds[3].promtool
    files = sorted(str(file) for file in (generated.folder / "rules").iterdir())
    for arguments in (
        ("check", "config", "--syntax-only", str(generated.folder / "prometheus.yaml")),
        ("check", "rules", *files),
    ):
        done = subprocess.run([str(promtool), *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_both_monitors_become_jobs_with_what_their_values_say(generated: Generated) -> None:
    service = generated.jobs[f"serviceMonitor/{NAMESPACE}/fleet-gpuwatch/0"]
    pods = generated.jobs[f"podMonitor/{NAMESPACE}/fleet-gpuwatch/0"]
    assert (service["scrape_interval"], pods["scrape_interval"]) == ("15s", "30s")
    assert [way["namespaces"]["names"] for job in (service, pods) for way in job["kubernetes_sd_configs"]] == [
        [NAMESPACE],
        [NAMESPACE],
    ]
    assert "team" in [rule.get("target_label") for rule in service["relabel_configs"]]
    assert {"action": "labeldrop", "regex": "never"} in pods["metric_relabel_configs"]


def test_the_rules_are_those_of_the_project_with_the_changes_of_the_values(generated: Generated) -> None:
    shipped = {
        group["name"]: group["rules"]
        for name in ("recording", "alerts")
        for group in yaml.safe_load((DEPLOY / "optional" / f"prometheus-rule-{name}.yaml").read_text())["spec"][
            "groups"
        ]
    }
    assert set(generated.rules) == set(shipped)
    changed = [
        (mine, theirs)
        for name, rules in shipped.items()
        for mine, theirs in zip(generated.rules[name], rules, strict=True)
        if mine != theirs
    ]
    ((mine, theirs),) = changed
    assert mine == {**theirs, "for": "7m", "labels": {**theirs["labels"], "team": "sre"}}
