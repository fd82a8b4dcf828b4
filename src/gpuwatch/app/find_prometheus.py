"""Finds the Prometheus of a cluster by the Services that the usual operators and charts make."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import urllib3
from kubernetes.client import ApiClient, ApiException, CoreV1Api

from gpuwatch.app.errors import SourceError
from gpuwatch.sources.telemetry.connection import Connection
from gpuwatch.sources.telemetry.prometheus import PrometheusStore
from gpuwatch.sources.telemetry.samples import TelemetryError

_SELECTORS = ("app.kubernetes.io/name", "app", "operated-prometheus")
"""Labels by which Services are looked up, the most telling first."""

_PATHS = {
    "prometheus": "",  # the community's chart, the Operator's manifests
    "kube-prometheus-stack-prometheus": "",
    "prometheus-operator-prometheus": "",
    "rancher-monitoring-prometheus": "",
    "prometheus-server": "",
    "true": "",  # prometheus-operated, which the Operator makes for every Prometheus
    "thanos": "",
    "thanos-query": "",  # OpenShift's thanos-querier has it too
    "thanos-querier": "",
    "mimir": "/prometheus",
    "vmsingle": "",
    "victoria-metrics-single": "",
    "vmselect": "/select/0/prometheus",
    "victoria-metrics-cluster": "/select/0/prometheus",
}
"""Value of one of these labels → path of the Prometheus API."""

_COMPONENTS = ("", "server", "prometheus", "query", "query-layer", "gateway", "vmselect", "monitoring")
"""Values of app.kubernetes.io/component that answer queries; '' where it is not set."""

_PORTS = ("http-web", "web", "http", "http-query", "http-metrics", "")
_SECONDS = (5.0, 20.0)


@dataclass(frozen=True, slots=True)
class FoundService:
    """A Service that may answer Prometheus queries."""

    namespace: str
    name: str
    port: int
    path: str
    scheme: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def hint(self) -> str:
        """The commands by which a person reaches it from outside of the cluster."""
        return (
            f"kubectl -n {self.namespace} port-forward svc/{self.name} 9090:{self.port}\n"
            f"    and then --prometheus {self.scheme}://localhost:9090{self.path}"
        )


def find_prometheus(client: ApiClient) -> tuple[Connection, str]:
    """How to reach the one Prometheus of the cluster, and a sentence that says so: by the Service's name, as a Pod can,
    else through the API server, with the rights of the kubeconfig (`get` and `create` of services/proxy). Raises
    SourceError where there is none, where there are several, or where it does not answer."""
    give = "give --prometheus URL, or prometheus.url in the settings"
    try:
        found = services(client)
    except (ApiException, urllib3.exceptions.HTTPError) as error:
        why = error.reason if isinstance(error, ApiException) else error
        raise SourceError(
            f"no telemetry was given, and the cluster's Services cannot be listed ({why}); {give}"
        ) from error
    if not found:
        raise SourceError(f"no telemetry was given, and no Service in the cluster is a known Prometheus; {give}")
    if len(found) > 1:
        names = "".join(f"\n  {each}: {each.hint}" for each in found)
        raise SourceError(
            f"no telemetry was given, and the cluster has {len(found)} Prometheus Services; choose:{names}"
        )
    (service,) = found
    failures = []
    for way, connection in _ways(client, service):
        try:
            PrometheusStore(connection).check()
        except (TelemetryError, ValueError) as error:
            failures.append(f"\n  {way}: {error}")
        else:
            return connection, f"Found Prometheus {service} (port {service.port}), asked {way}."
    raise SourceError(
        f"Service {service} looks like a Prometheus but cannot be reached from here:{''.join(failures)}\n"
        f"Open a port to it: {service.hint}"
    )


def _ways(client: ApiClient, service: FoundService) -> Iterable[tuple[str, Connection]]:
    host = f"{service.name}.{service.namespace}.svc"
    yield "directly", Connection(url=f"{service.scheme}://{host}:{service.port}{service.path}")
    api: Any = client.configuration
    token = (api.get_api_key_with_prefix("authorization") or api.get_api_key_with_prefix("BearerToken") or "").strip()
    target = f"{'https:' if service.scheme == 'https' else ''}{service.name}:{service.port}"
    yield (
        "through the API server",
        Connection(
            url=f"{api.host}/api/v1/namespaces/{service.namespace}/services/{target}/proxy{service.path}",
            bearer_token=token.removeprefix("Bearer ").strip(),
            ca_file="" if not api.verify_ssl else api.ssl_ca_cert or "",
            cert_file=api.cert_file or "",
            key_file=api.key_file or "",
            insecure_skip_verify=not api.verify_ssl,
        ),
    )


def services(client: ApiClient) -> tuple[FoundService, ...]:
    """The Services that answer Prometheus queries. The Operator's own Service counts only in a Namespace without
    another one: both are the same Prometheus. Raises ApiException, or urllib3's HTTPError without an answer."""
    core: Any = CoreV1Api(client)
    values = ",".join(_PATHS)
    found: dict[tuple[str, str], FoundService] = {}
    taken: set[str] = set()
    for label in _SELECTORS:
        answer = core.list_service_for_all_namespaces(
            label_selector=f"{label} in ({values})", _request_timeout=_SECONDS
        )
        for item in answer.items:
            name, namespace = item.metadata.name, item.metadata.namespace
            if label == _SELECTORS[-1] and namespace in taken:
                continue
            port = _port(item.spec.ports or ())
            if port is None or (item.metadata.labels or {}).get("app.kubernetes.io/component", "") not in _COMPONENTS:
                continue
            path = _PATHS[item.metadata.labels[label]]
            scheme = "https" if port in (443, 9091) else "http"
            found.setdefault((namespace, name), FoundService(namespace, name, port, path, scheme))
        taken = {namespace for namespace, _ in found}
    return tuple(found[key] for key in sorted(found))


def _port(ports: Iterable[Any]) -> int | None:
    """The port with the likeliest name."""
    known = {port.name or "": port.port for port in reversed(list(ports))}
    return next((int(known[name]) for name in _PORTS if name in known), None)
