"""The PrometheusRule object: the real Prometheus Operator makes a rule file of it that promtool accepts."""

import subprocess
from pathlib import Path

import pytest
import yaml

from cluster.api import Api
from cluster.control_plane import ControlPlaneBuild
from cluster.control_plane import running as control_plane_running
from deploy.manifests import DEPLOY, apply, documents
from parts.operator_server import OperatorBuild, definitions, running_operator
from parts.processes import wait_until
from parts.prometheus_server import ServerBuild

pytestmark = [pytest.mark.slow, pytest.mark.prometheus, pytest.mark.cluster]

PROMETHEUS = {
    "apiVersion": "monitoring.coreos.com/v1",
    "kind": "Prometheus",
    "metadata": {"name": "k8s", "namespace": "monitoring"},
    "spec": {"ruleSelector": {}, "ruleNamespaceSelector": {}, "serviceAccountName": "prometheus"},
}


def test_the_operator_makes_the_rule_file_of_the_object(
    control_plane_build: ControlPlaneBuild,
    operator_build: OperatorBuild,
    newest_prometheus: ServerBuild,
    tmp_path: Path,
) -> None:
    (rule,) = documents(DEPLOY / "optional" / "prometheus-rule-recording.yaml")
    with control_plane_running(control_plane_build) as cluster:
        api = Api(cluster.administrator)
        apply(api, definitions(operator_build))
        for name in ("gpuwatch", "monitoring"):
            api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        apply(api, [rule])
        with running_operator(operator_build, cluster.administrator) as log:
            api.create(PROMETHEUS)
            wait_until(lambda: bool(rule_files(api)), lambda: log.read_text()[-2000:])
        (text,) = rule_files(api)
    file = tmp_path / "rules.yaml"
    file.write_text(text)
    assert yaml.safe_load(text)["groups"] == rule["spec"]["groups"]
    checked = subprocess.run([newest_prometheus.promtool, "check", "rules", "--lint=none", file], check=False)
    assert checked.returncode == 0


def rule_files(api: Api) -> list[str]:
    answer = api.answer("GET", "/api/v1/namespaces/monitoring/configmaps/prometheus-k8s-rulefiles-0")
    return list((answer.json().get("data") or {}).values()) if answer.ok else []
