"""Which Services are taken for a Prometheus, on answers as the API server gives them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kubernetes.client import ApiClient, Configuration

from gpuwatch.app.errors import SourceError
from gpuwatch.app.find_prometheus import find_prometheus, services
from parts.scripted_server import Asked, Reply, scripted

STACK = {"app": "kube-prometheus-stack-prometheus"}


def service(name: str, labels: dict[str, str], port: int = 9090, port_name: str = "http-web") -> dict[str, Any]:
    ports = [{"name": port_name, "port": port, "targetPort": port, "protocol": "TCP"}]
    return {"metadata": {"name": name, "namespace": "monitoring", "labels": labels}, "spec": {"ports": ports}}


@contextmanager
def api(*known: dict[str, Any], proxied: bool = True) -> Iterator[ApiClient]:
    """Serves Services by label, and through the proxy the answer of a Prometheus, or that it is forbidden."""

    def answer(asked: Asked) -> Reply:
        if asked.method == "POST":
            assert "/namespaces/monitoring/services/" in asked.path
            result = {"resultType": "scalar", "result": [0, "1"]}
            return Reply(200 if proxied else 403, json.dumps({"status": "success", "data": result}))
        label, _, values = asked.form["labelSelector"].partition(" in ")
        wanted = values.strip("()").split(",")
        items = [each for each in known if each["metadata"]["labels"].get(label) in wanted]
        found = {"apiVersion": "v1", "kind": "ServiceList", "metadata": {}, "items": items}
        return Reply(body=json.dumps(found), headers={"Content-Type": "application/json"})

    with scripted(answer) as server, ApiClient(Configuration(host=server.url)) as client:
        yield client


@pytest.mark.parametrize(
    ("item", "path"),
    [
        (service("kps-prometheus", STACK), ""),
        (service("prometheus-server", {"app.kubernetes.io/name": "prometheus"}, 80, "http"), ""),
        (service("thanos-querier", {"app.kubernetes.io/name": "thanos-query"}, 9091, "web"), ""),
        (service("vmsingle-vm", {"app.kubernetes.io/name": "vmsingle"}, 8428, "http"), ""),
        (service("vmselect-vm", {"app.kubernetes.io/name": "vmselect"}, 8481, "http"), "/select/0/prometheus"),
    ],
    ids=lambda item: item["metadata"]["name"] if isinstance(item, dict) else "",
)
def test_services_of_the_usual_makers_are_found(item: dict[str, Any], path: str) -> None:
    with api(item) as client:
        (found,) = services(client)
    assert (found.name, found.path) == (item["metadata"]["name"], path)
    assert found.port == item["spec"]["ports"][0]["port"]


def test_the_operators_own_service_is_the_same_prometheus() -> None:
    operated = service("prometheus-operated", {"operated-prometheus": "true"})
    with api(service("kps-prometheus", STACK), operated) as client:
        assert [each.name for each in services(client)] == ["kps-prometheus"]
    with api(operated) as client:
        assert [each.name for each in services(client)] == ["prometheus-operated"]


def test_openshift_has_two_and_a_person_chooses() -> None:
    """Labels and ports as its cluster-monitoring-operator makes them; both are served with TLS."""
    thanos = {"app.kubernetes.io/name": "thanos-query", "app.kubernetes.io/component": "query-layer"}
    one = {"app.kubernetes.io/name": "prometheus", "app.kubernetes.io/component": "prometheus"}
    node = {"app.kubernetes.io/name": "prometheus", "app.kubernetes.io/component": "exporter"}
    known = (
        service("thanos-querier", thanos, 9091, "web"),
        service("prometheus-k8s", one, 9091, "web"),
        service("node-exporter", node, 9100, "https"),
    )
    with api(*known) as client, pytest.raises(SourceError) as error:
        find_prometheus(client)
    said = str(error.value)
    assert "2 Prometheus Services; choose:" in said
    for name in ("thanos-querier", "prometheus-k8s"):
        assert f"port-forward svc/{name} 9090:9091\n    and then --prometheus https://localhost:9090" in said


def test_one_that_answers_through_the_api_server_is_used_and_said() -> None:
    with api(service("kps-prometheus", STACK)) as client:
        connection, told = find_prometheus(client)
    assert connection.url.endswith("/api/v1/namespaces/monitoring/services/kps-prometheus:9090/proxy")
    assert told == "Found Prometheus monitoring/kps-prometheus (port 9090), asked through the API server."


def test_errors_have_the_command_that_helps() -> None:
    one, other = service("kps-prometheus", STACK), service("thanos", {"app.kubernetes.io/name": "thanos-query"})
    forward = "kubectl -n monitoring port-forward svc/kps-prometheus 9090:9090"
    for known, said in (
        ((), "no Service in the cluster is a known Prometheus; give --prometheus URL"),
        ((one, other), "the cluster has 2 Prometheus Services; choose:"),
        ((one,), "cannot be reached from here"),
    ):
        with api(*known, proxied=False) as client, pytest.raises(SourceError) as error:
            find_prometheus(client)
        assert said in str(error.value)
        assert (forward in str(error.value)) == bool(known)
