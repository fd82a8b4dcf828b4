"""The Prometheus of a cluster, found by its Service on a real API server and asked through it."""

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner, Result

from cluster.api import Api
from cluster.control_plane import ControlPlane
from deploy.manifests import DEPLOY, apply, documents
from gpuwatch.app.cli.main import cli
from parts.processes import wait_until
from parts.prometheus_server import ServerBuild, running

NAMESPACE = "find-prometheus"
RIGHTS = [
    {"apiGroups": [""], "resources": ["services"], "verbs": ["list"]},
    {"apiGroups": [""], "resources": ["services/proxy"], "verbs": ["get", "create"]},
]


@contextmanager
def own_address() -> Iterator[str]:
    """An address of this machine that is not loopback, as a Pod's has to be. Root lends one to a machine without."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends no packet
        except OSError:
            pass
        else:
            yield str(probe.getsockname()[0])
            return
    lent = "198.51.100.1"  # of RFC 5737's addresses for documentation
    there = ("address", "add", f"{lent}/32", "dev", "lo")
    if shutil.which("ip") is None or subprocess.run(["ip", *there], check=False).returncode:
        pytest.skip("this machine has no address but loopback, and `ip address add` gives it none")
    try:
        yield lent
    finally:
        subprocess.run(["ip", "address", "del", *there[2:]], check=True)


def doctor(kubeconfig: Path) -> Result:
    return CliRunner().invoke(cli, ["doctor", "-o", "json", "--allow-limited", "--kubeconfig", str(kubeconfig)])


def rights(name: str, rules: list[Any]) -> list[dict[str, Any]]:
    group = "rbac.authorization.k8s.io"
    return [
        {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules},
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
            "subjects": [{"apiGroup": group, "kind": "User", "name": "stranger"}],
        },
    ]


def test_a_user_with_the_documented_rights_finds_it_and_one_without_is_told(
    control_plane: ControlPlane, newest_prometheus: ServerBuild
) -> None:
    api, person = Api(control_plane.administrator), control_plane.user("stranger")
    reading = next(each for each in documents(DEPLOY / "observe" / "role.yaml") if each["kind"] == "ClusterRole")

    def told() -> str:
        return doctor(person).stderr

    with own_address() as own, running(newest_prometheus, host=own) as url:
        address, number = urlsplit(url).hostname, urlsplit(url).port
        port = {"name": "http-web", "port": number, "protocol": "TCP"}
        place, pod = {"name": "kps-prometheus", "namespace": NAMESPACE}, {"name": "kps-0", "namespace": NAMESPACE}
        labels = {"labels": {"app": "kube-prometheus-stack-prometheus"}}
        service = {"apiVersion": "v1", "kind": "Service", "metadata": place | labels, "spec": {"ports": [port]}}
        apply(api, [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}, service])
        # The API server's proxy goes to Endpoints that are Pods alone.
        containers = {"containers": [{"name": "prometheus", "image": "prometheus"}]}
        status = {"podIP": address, "podIPs": [{"ip": address}]}
        api.create({"apiVersion": "v1", "kind": "Pod", "metadata": pod, "spec": containers, "status": status})
        ready = [{"ip": address, "targetRef": {"kind": "Pod", **pod}}]
        subsets = {"subsets": [{"addresses": ready, "ports": [port]}]}
        apply(api, [{"apiVersion": "v1", "kind": "Endpoints", "metadata": place, **subsets}])
        try:
            apply(api, rights("finds-reading", reading["rules"]))
            wait_until(lambda: "Services cannot be listed (Forbidden)" in doctor(person).stderr, told)
            apply(api, rights("finds-prometheus", RIGHTS))
            wait_until(lambda: doctor(person).exit_code == 0, told)
            found = doctor(person)
        finally:
            api.delete(service)
    assert found.stderr == (
        f"Found Prometheus {NAMESPACE}/kps-prometheus (port {number}), asked through the API server.\n"
    )
    facts = json.loads(found.stdout)
    assert f"/services/kps-prometheus:{number}/proxy" in facts["telemetry"]
    assert not facts["unreadable"]
