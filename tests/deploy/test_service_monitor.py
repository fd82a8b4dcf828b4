"""The ServiceMonitor, from the manifest to the series: the real Prometheus Operator makes Prometheus' configuration of
it on a real API server, and real Prometheus scrapes a real /metrics with that.

Prometheus 3 finds the target itself, by Kubernetes discovery of the Service's endpoints. Debian's Prometheus 2 is built
without that discovery; it is given the labels that Prometheus 3 discovered, as a static target.
"""

import base64
import gzip
import json
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import pytest
import yaml
from prometheus_client import Gauge

from app.told_fleet import leading, simulated
from cluster.api import Api, Object
from cluster.control_plane import ControlPlane, ControlPlaneBuild
from cluster.control_plane import running as control_plane_running
from deploy.manifests import DEPLOY, apply, documents
from gpuwatch.app.controller.http_server import serving
from gpuwatch.app.controller.metrics import Metrics
from parts.operator_server import OperatorBuild, definitions, running_operator
from parts.processes import wait_until
from parts.prometheus_server import ServerBuild, running

pytestmark = [pytest.mark.slow, pytest.mark.prometheus]

JOB = "serviceMonitor/gpuwatch/gpuwatch/0"
POD = "gpuwatch-7d9f8-x2x4z"
FOREIGN = "gpuwatch_of_a_test"
"""Beside gpuwatch's own a metric that has labels of a target: the scrape has to show what becomes of them."""
ADDRESS = "192.0.2.10"
"""Of the Pod, as the API server takes no endpoint on loopback; one for documents (RFC 5737), where nothing is sent."""
TO_LOOPBACK = {
    "source_labels": ["__address__"],
    "regex": r".*:(\d+)",
    "target_label": "__address__",
    "replacement": "127.0.0.1:$1",
}
"""Behind the operator's own relabelings: what was discovered is scraped on loopback."""
PROMETHEUS = {
    "apiVersion": "monitoring.coreos.com/v1",
    "kind": "Prometheus",
    "metadata": {"name": "k8s", "namespace": "monitoring"},
    "spec": {"serviceMonitorSelector": {}, "serviceMonitorNamespaceSelector": {}, "serviceAccountName": "prometheus"},
}


@dataclass(frozen=True)
class Scraped:
    """job: the scrape job that the operator made. metrics: what is served."""

    cluster: ControlPlane
    job: Mapping[str, Any]
    metrics: Metrics


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> Metrics:
    metrics = leading(simulated(tmp_path_factory.mktemp("fleet")))
    Gauge(FOREIGN, "Of a test.", ["namespace", "pod"], registry=metrics.registry).labels("ml", "train-0").set(1)
    return metrics


@pytest.fixture(scope="module")
def scraped(
    control_plane_build: ControlPlaneBuild, operator_build: OperatorBuild, metrics: Metrics
) -> Iterator[Scraped]:
    with (
        control_plane_running(control_plane_build) as cluster,
        serving("127.0.0.1", 0, list, list, metrics.registry, None) as port,
    ):
        api = Api(cluster.administrator)
        apply(api, definitions(operator_build))
        for name in ("gpuwatch", "monitoring"):
            api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        apply(api, [each for each in documents(DEPLOY / "base") if each["kind"] == "Service"])
        apply(api, documents(DEPLOY / "optional" / "service-monitor.yaml"))
        for each in behind_the_service(ADDRESS, port):
            api.create(each)
        with running_operator(operator_build, cluster.administrator) as log:
            api.create(PROMETHEUS)
            wait_until(lambda: job_of(api) is not None, lambda: log.read_text()[-2000:])
        job = job_of(api)
        assert job is not None
        yield Scraped(cluster, job, metrics)


def behind_the_service(address: str, port: int) -> Iterator[Object]:
    """The Pod that the Service selects, and where it listens: what kubelet and controllers would have written. As
    Endpoints and as EndpointSlice, since it is the operator's choice which of them Prometheus reads."""
    labels = {"app.kubernetes.io/name": "gpuwatch", "app.kubernetes.io/component": "controller"}
    ports = [{"name": "http", "port": port, "protocol": "TCP"}]
    target = {"kind": "Pod", "name": POD, "namespace": "gpuwatch"}
    container = {"name": "gpuwatch", "image": "gpuwatch", "ports": [{"name": "http", "containerPort": port}]}
    yield {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": POD, "namespace": "gpuwatch", "labels": labels},
        "spec": {"nodeName": "control-1", "containers": [container]},
        "status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]},
    }
    yield {
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": {"name": "gpuwatch", "namespace": "gpuwatch", "labels": labels},
        "subsets": [{"addresses": [{"ip": address, "targetRef": target}], "ports": ports}],
    }
    yield {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": "gpuwatch-1",
            "namespace": "gpuwatch",
            "labels": {**labels, "kubernetes.io/service-name": "gpuwatch"},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "targetRef": target, "conditions": {"ready": True}}],
        "ports": ports,
    }


def job_of(api: Api) -> dict[str, Any] | None:
    """The scrape job in the configuration that the operator generated; None where there is none yet."""
    answer = api.answer("GET", "/api/v1/namespaces/monitoring/secrets/prometheus-k8s")
    if not answer.ok:
        return None
    packed = base64.b64decode(answer.json()["data"]["prometheus.yaml.gz"])
    # The reloader beside Prometheus fills in which shard it is.
    configuration = yaml.safe_load(gzip.decompress(packed).decode().replace("$(SHARD)", "0"))
    jobs = [job for job in configuration.get("scrape_configs") or () if job["job_name"] == JOB]
    return jobs[0] if jobs else None


def asked(url: str, path: str, **parameters: str) -> Any:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{url}{path}?{urlencode(parameters)}", timeout=10) as answer:
        return json.load(answer)["data"]


def targets(url: str) -> list[dict[str, Any]]:
    return [each for each in asked(url, "/api/v1/targets", state="active")["activeTargets"] if each["health"] == "up"]


def series(build: ServerBuild, job: Mapping[str, Any]) -> tuple[list[dict[str, str]], dict[str, str]]:
    """The labels of every series of the job, and those that its target was discovered with."""
    relabelings = [*job.get("relabel_configs", ()), TO_LOOPBACK]
    local = {**job, "scrape_interval": "1s", "scrape_timeout": "1s", "relabel_configs": relabelings}
    with running(build, scrape_configs=[local]) as url:

        def complaint() -> str:
            return f"no target answers: {json.dumps(asked(url, '/api/v1/targets'))[:3000]}"

        # A target is up a moment before its samples can be asked for.
        wait_until(lambda: bool(targets(url) and asked(url, "/api/v1/query", query=FOREIGN)["result"]), complaint)
        (target,) = targets(url)
        found = asked(url, "/api/v1/query", query='{__name__=~".+"}')["result"]
        return [each["metric"] for each in found], target["discoveredLabels"]


@pytest.fixture(scope="module")
def discovered(
    scraped: Scraped, prometheus_builds: dict[int, ServerBuild], tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[dict[str, str]], dict[str, str]]:
    """By Prometheus 3 itself."""
    if 3 not in prometheus_builds:
        pytest.skip("Prometheus 3 is not to be had here; tests/parts/install puts it in place")
    ways = [{**way, "kubeconfig_file": str(scraped.cluster.administrator)} for way in discoveries(scraped.job)]
    return series(prometheus_builds[3], {**scraped.job, "kubernetes_sd_configs": ways})


def discoveries(job: Mapping[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = job["kubernetes_sd_configs"]
    return found


def test_the_operator_lets_the_target_win(scraped: Scraped) -> None:
    assert not scraped.job.get("honor_labels")
    assert scraped.job["metrics_path"] == "/metrics"
    assert [way["namespaces"]["names"] for way in discoveries(scraped.job)] == [["gpuwatch"]]


@pytest.mark.parametrize("major", [2, 3])
def test_no_label_of_ours_meets_a_label_of_the_target(
    major: int,
    scraped: Scraped,
    discovered: tuple[list[dict[str, str]], dict[str, str]],
    prometheus_builds: dict[int, ServerBuild],
) -> None:
    found, labels = discovered
    if major == 2:
        if major not in prometheus_builds:
            pytest.skip("Prometheus 2 is not to be had here; tests/parts/install puts it in place")
        static = {
            "targets": [labels["__address__"]],
            "labels": {k: v for k, v in labels.items() if k.startswith("__meta")},
        }
        job = {name: value for name, value in scraped.job.items() if name != "kubernetes_sd_configs"}
        found, _ = series(prometheus_builds[major], {**job, "static_configs": [static]})
    ours = [each for each in found if each["__name__"].startswith("gpuwatch_") and each["__name__"] != FOREIGN]
    of_the_target = {"job": "gpuwatch", "namespace": "gpuwatch", "service": "gpuwatch", "pod": POD, "endpoint": "http"}
    for each in found:
        assert of_the_target.items() <= each.items(), each
    exported = [each["__name__"] for each in found if any(label.startswith("exported_") for label in each)]
    assert exported == [FOREIGN]  # which shows that the others would be seen
    assert own_labels(ours) == served(scraped.metrics)


TARGET = ("job", "namespace", "service", "pod", "endpoint", "instance", "container")


def own_labels(found: list[dict[str, str]]) -> set[tuple[tuple[str, str], ...]]:
    return {tuple(sorted((name, value) for name, value in each.items() if name not in TARGET)) for each in found}


def served(metrics: Metrics) -> set[tuple[tuple[str, str], ...]]:
    """What /metrics has of gpuwatch's own, as Prometheus keeps it: without labels that are empty."""
    return {
        tuple(sorted({"__name__": sample.name, **{k: v for k, v in sample.labels.items() if v}}.items()))
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name.startswith("gpuwatch_") and sample.name != FOREIGN
    }
