"""A dcgm-exporter on each Node: the page that a Prometheus scrapes, and how it finds them and names their targets."""

import json
import re
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from cluster.real_node import EXPORTER_PORT, RealNode
from parts import remote_write
from parts.scripted_server import Asked, Reply, scripted

JOB = "dcgm-exporter"
TENANTS_JOB = "kubernetes-pods"
"""The job that scrapes whichever Pods ask for it by an annotation."""
INTERVAL_SECONDS = 5

Sample = tuple[str, Mapping[str, str], float]
"""Metric, labels as the exporter writes them, value."""


NAMESPACE = "gpu-operator"


def daemon_set(port: int, image: str = "nvcr.io/nvidia/k8s/dcgm-exporter:4.4.2") -> dict[str, Any]:
    """The exporters' Pods, as the API server knows them."""
    labels = {"app": JOB}
    container = {"name": JOB, "image": image, "ports": [{"name": "metrics", "containerPort": port}]}
    pod_resources = {"name": "pods", "hostPath": {"path": "/var/lib/kubelet/pod-resources"}}
    spec = {"containers": [container], "volumes": [pod_resources], "tolerations": [{"operator": "Exists"}]}
    template = {"metadata": {"labels": labels}, "spec": {**spec, "hostNetwork": True}}
    metadata = {"name": JOB, "namespace": NAMESPACE}
    wanted = {"selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": wanted}


def exporter_pod(node: str, port: int, image: str) -> dict[str, Any]:
    """One of these Pods on its own, by the name that the Node's target has."""
    template = daemon_set(port, image)["spec"]["template"]
    metadata = {**template["metadata"], "name": target(node)["pod"], "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**template["spec"], "nodeName": node}}


def target(node: str) -> dict[str, str]:
    """The labels that service discovery gives to a Node's exporter."""
    own = {"namespace": NAMESPACE, "pod": f"{JOB}-{node}", "container": JOB}
    return {"job": JOB, "instance": f"{node}:9400", **own}


def scraped(sample: Sample, node: str) -> dict[str, str]:
    """Labels with `__name__` that Prometheus makes of the sample: what the target has too becomes `exported_…`."""
    metric, labels, _ = sample
    found = target(node)
    return {
        "__name__": metric,
        **found,
        **{f"exported_{name}" if name in found else name: value for name, value in labels.items()},
    }


@dataclass
class Exporters:
    """url: where they are served, all on one port. A Node without a page is no target. silent: Nodes whose exporter
    answers with an error, as one whose DCGM is gone."""

    url: str = ""
    silent: set[str] = field(default_factory=set)
    _pages: dict[str, bytes] = field(default_factory=dict)
    _tenants: dict[str, tuple[Mapping[str, str], bytes]] = field(default_factory=dict)
    _addresses: dict[str, str] = field(default_factory=dict)

    def address(self, node: str) -> str:
        """Of the Node's exporter: each has a loopback address of its own, by which its page is found."""
        count = len(self._addresses)
        return self._addresses.setdefault(node, f"127.9.{count // 250}.{count % 250 + 1}")

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def show(self, nodes: Mapping[str, Iterable[Sample]]) -> None:
        """The pages of these Nodes from now on; of no others."""
        self._pages = {node: _page(samples) for node, samples in nodes.items()}

    def show_tenants(self, pages: Mapping[str, tuple[Mapping[str, str], Iterable[Sample]]]) -> None:
        """Pods of tenants that are scraped too, by a name, and of no others: the labels that service discovery gives to
        the target, and what they export."""
        self._tenants = {name: (labels, _page(samples)) for name, (labels, samples) in pages.items()}

    def scrape_config(self, job: str = JOB) -> dict[str, Any]:
        """Of Prometheus: every target is found within seconds, and is no target any more when it is gone."""
        return {
            "job_name": job,
            "scrape_interval": f"{INTERVAL_SECONDS}s",
            "scrape_timeout": f"{INTERVAL_SECONDS - 1}s",
            "http_sd_configs": [{"url": f"{self.url}/targets/{job}", "refresh_interval": "1s"}],
        }

    def answer(self, asked: Asked) -> Reply:
        pages = {f"/{node}/metrics": (target(node), page) for node, page in self._pages.items()}
        tenants = {f"/tenants/{name}": found for name, found in self._tenants.items()}
        for job, listed in ((JOB, pages), (TENANTS_JOB, tenants)):
            if asked.path == f"/targets/{job}":
                address = self.url.removeprefix("http://")
                found = [
                    {"targets": [address], "labels": {"__metrics_path__": path, **labels}}
                    for path, (labels, _) in listed.items()
                ]
                return Reply(body=json.dumps(found), headers={"Content-Type": "application/json"})
        at = {address: f"/{node}/metrics" for node, address in self._addresses.items()}
        path = at.get(asked.headers.get("host", "").partition(":")[0], asked.path)
        if path.removesuffix("/metrics").removeprefix("/") in self.silent:
            return Reply(500)
        page = {**pages, **tenants}.get(path)
        return Reply(404) if page is None else Reply(body=page[1], headers={"Content-Type": CONTENT_TYPE_LATEST})


def scraping(nodes: Iterable[RealNode]) -> dict[str, Any]:
    """Of Prometheus: the pages of real Nodes, as those of `Exporters` are found."""
    found = [
        {"targets": [f"{node.address}:{EXPORTER_PORT}"], "labels": {**target(node.name), "instance": node.name}}
        for node in nodes
    ]
    times = {"scrape_interval": f"{INTERVAL_SECONDS}s", "scrape_timeout": f"{INTERVAL_SECONDS - 1}s"}
    return {"job_name": JOB, **times, "static_configs": found}


def write_history(prometheus: str, node: RealNode, seconds: int) -> None:
    """As if its page had been scraped for so long as it is now."""
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(node.page_url) as answer:
        rows = [found for line in answer.read().decode().splitlines() if (found := _ROW.match(line))]
    labels = {**target(node.name), "instance": node.name}
    series = [({"__name__": row[1], **labels, **dict(_LABEL.findall(row[2]))}, float(row[3])) for row in rows]
    moments = [time.time() - seconds + step for step in range(0, seconds, INTERVAL_SECONDS)]
    every = [*series, ({"__name__": "up", **labels}, 1.0)]
    remote_write.write(prometheus, ((name, [(at, value) for at in moments]) for name, value in every))


_ROW = re.compile(r"(\w+)\{(.*)\} (\S+)$")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@contextmanager
def exporters() -> Iterator[Exporters]:
    """Served on a loopback port until the block ends; with no Node yet."""
    found = Exporters()
    with scripted(found.answer, everywhere=True) as server:
        found.url = server.url
        yield found


class _Collector:
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = tuple(metrics)

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _page(samples: Iterable[Sample]) -> bytes:
    metrics: dict[str, Metric] = {}
    for name, labels, value in samples:
        metrics.setdefault(name, Metric(name, name, "gauge")).add_sample(name, dict(labels), value)
    registry = CollectorRegistry()
    registry.register(_Collector(metrics.values()))
    return generate_latest(registry)
