"""Every container that is shipped starts with the environment that a kubelet builds for it, and its Pod may run where
gpuwatch has tainted the Node. The containers run as processes here; no API server and no Prometheus answers them."""

import copy
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import certifi
import msgspec
import pytest
import yaml

from cluster.api import Object
from deploy.container_view import ENTRY_POINT, can_run, seeing
from deploy.manifests import DEPLOY, documents
from deploy.pod_environment import expanded, pod_environment, service_variables
from deploy.test_chart import EVERYTHING, Chart, helm_chart, pod_specs
from gpuwatch.act.execute.policy import EFFECTS
from gpuwatch.act.placement import stays, tolerates
from gpuwatch.app.exit_code import ExitCode
from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.model.cluster import Taint
from gpuwatch.sources.kube import wire
from gpuwatch.sources.kube.placement import tolerations
from parts.gpuwatch_run import GpuwatchRun, begun
from parts.processes import free_port, wait_until

__all__ = ["helm_chart"]
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
IMAGE = {"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/nonexistent"}
"""What the image and the container runtime set."""
SETTINGS = {"prometheus": {"url": "http://127.0.0.1:9", "retries": 0}}
"""Of the person who installs: a Prometheus that does not answer, and is not asked again."""


def service(name: str, namespace: str, *ports: Mapping[str, Any], address: str = "10.96.0.10") -> Object:
    listed = list(ports) or [{"port": 80}]
    return {
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"clusterIP": address, "ports": listed},
    }


def neighbours(namespace: str) -> list[Object]:
    """Services of other people in gpuwatch's Namespace, whose names make variables like those of its settings."""
    return [
        service("gpuwatch", namespace, {"name": "http", "port": 8080}),
        service("gpuwatch-run--listen", namespace, {"port": 9090, "protocol": "UDP"}, address="fd00::1"),
        service("gpuwatch-plan--modes", namespace),
        service("gpuwatch-prometheus--matchers--team", namespace),
        service("gpuwatch-service", namespace, {"name": "8080-tcp", "port": 8080}, {"name": "service-host", "port": 1}),
        service("gpuwatch-headless", namespace, address="None"),
    ]


# What a kubelet does


def test_variables_are_made_of_services_as_a_kubelet_makes_them() -> None:
    ports = ({"name": "web", "port": 80}, {"name": "d-n-s", "port": 53, "protocol": "UDP"})
    mine = service("my-gpu--x", "a", *ports, address="fd00::7")
    assert service_variables([mine, service("none", "a", address="None")], "a", linked=True) == {
        "MY_GPU__X_SERVICE_HOST": "fd00::7",
        "MY_GPU__X_SERVICE_PORT": "80",
        "MY_GPU__X_SERVICE_PORT_WEB": "80",
        "MY_GPU__X_SERVICE_PORT_D_N_S": "53",
        "MY_GPU__X_PORT": "tcp://[fd00::7]:80",
        "MY_GPU__X_PORT_80_TCP": "tcp://[fd00::7]:80",
        "MY_GPU__X_PORT_80_TCP_PROTO": "tcp",
        "MY_GPU__X_PORT_80_TCP_PORT": "80",
        "MY_GPU__X_PORT_80_TCP_ADDR": "fd00::7",
        "MY_GPU__X_PORT_53_UDP": "udp://[fd00::7]:53",
        "MY_GPU__X_PORT_53_UDP_PROTO": "udp",
        "MY_GPU__X_PORT_53_UDP_PORT": "53",
        "MY_GPU__X_PORT_53_UDP_ADDR": "fd00::7",
    }
    server = service("kubernetes", "default", {"name": "https", "port": 443}, address="10.96.0.1")
    everywhere = [mine, server, service("kubernetes", "a", address="10.96.0.66")]
    assert service_variables(everywhere, "b", linked=True)["KUBERNETES_SERVICE_HOST"] == "10.96.0.1"
    unlinked = service_variables(everywhere, "a", linked=False)
    assert {name.partition("_")[0] for name in unlinked} == {"KUBERNETES"}
    assert unlinked["KUBERNETES_SERVICE_HOST"] == "10.96.0.1"
    # With links, a Service of that name in the Pod's own Namespace takes the API server's place.
    assert service_variables(everywhere, "a", linked=True)["KUBERNETES_SERVICE_HOST"] == "10.96.0.66"


def test_what_the_container_says_wins_and_may_name_the_rest() -> None:
    env = [
        {"name": "X_PORT", "value": "9090"},
        {"name": "AT", "value": "$(X_SERVICE_HOST):$(X_PORT) $(NONE) $$(X_PORT) $(ONE)"},
        {"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
    ]
    container = {"env": env, "envFrom": [{"configMapRef": {"name": "some"}, "prefix": "O"}]}
    pod = {"metadata": {"namespace": "a"}, "spec": {}}
    made = pod_environment(pod, container, [service("x", "a")], lambda _, name: {"NE": name})
    assert made["AT"] == "10.96.0.10:9090 $(NONE) $(X_PORT) some"
    assert (made["X_PORT"], made["X_SERVICE_PORT"], made["POD_NAMESPACE"]) == ("9090", "80", "a")


# The Pods that are shipped


def pods(objects: list[Object]) -> Iterator[Object]:
    for each in objects:
        for spec in pod_specs(each):
            names = {"name": f"{each['metadata']['name']}-0", "namespace": each["metadata"]["namespace"], "uid": "1"}
            yield {"kind": "Pod", "metadata": names, "spec": copy.deepcopy(spec)}


def in_deploy(folder: str) -> list[Object]:
    return list(documents(DEPLOY / folder))


def in_chart(chart: Chart, values: dict[str, Any]) -> list[Object]:
    return list(chart.few(values).values())


CHARTS: dict[str, dict[str, Any]] = {
    "default": {"report": {"enabled": True}},
    "everything": yaml.safe_load(EVERYTHING.read_text(encoding="utf-8")),
}
CONTAINERS = {
    "deploy/base": ["gpuwatch"],
    "deploy/report": ["report"],
    "chart/default": ["gpuwatch", "doctor", "report", "uninstall"],
    "chart/everything": ["gpuwatch", "doctor", "report", "uninstall"],
}
# The chart's Pods are rendered by Helm.
PLACES = [place if place.startswith("deploy") else pytest.param(place, marks=pytest.mark.parts) for place in CONTAINERS]
EVERY = [(place, name) for place, names in CONTAINERS.items() for name in names]


def objects_of(place: str, request: pytest.FixtureRequest) -> list[Object]:
    origin, _, name = place.partition("/")
    return in_deploy(name) if origin == "deploy" else in_chart(request.getfixturevalue("helm_chart"), CHARTS[name])


@pytest.mark.parametrize("place", PLACES)
def test_every_container_is_known_here(place: str, request: pytest.FixtureRequest) -> None:
    found = [
        container["name"]
        for pod in pods(objects_of(place, request))
        for container in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"])
    ]
    assert sorted(found) == sorted(CONTAINERS[place])


def test_no_other_manifest_has_a_pod() -> None:
    shown = [*DEPLOY.rglob("*.yaml"), *DEPLOY.rglob("*.tpl"), *DEPLOY.parent.glob("docs/**/*.md"), DEPLOY / "README.md"]
    having = {str(path.relative_to(DEPLOY.parent)) for path in shown if "containers:\n" in path.read_text()}
    here = {"deploy/base/deployment.yaml", "deploy/report/cronjob.yaml"}
    in_the_chart = {f"deploy/chart/gpuwatch/templates/{name}" for name in ("_helpers.tpl", "controller.yaml")}
    assert having == here | in_the_chart


@pytest.mark.parametrize("place", PLACES)
def test_no_pod_gets_variables_of_services(place: str, request: pytest.FixtureRequest) -> None:
    for pod in pods(objects_of(place, request)):
        assert pod["spec"]["enableServiceLinks"] is False, pod["metadata"]["name"]


def own_taint_holds(pod: Object) -> bool:
    """Whether gpuwatch's own taint keeps the Pod away, or ends it."""
    found = tolerations(msgspec.json.decode(json.dumps(pod["spec"]), type=wire.PodSpec))
    taints = [Taint(keys.DEGRADED, "xid", effect) for effect in EFFECTS]
    return not all(tolerates(found, taint) and stays(found, taint) for taint in taints)


@pytest.mark.parametrize("place", PLACES)
def test_every_pod_may_run_where_gpuwatch_has_tainted_the_node(place: str, request: pytest.FixtureRequest) -> None:
    made = list(pods(objects_of(place, request)))
    assert [pod["metadata"]["name"] for pod in made if own_taint_holds(pod)] == []
    unlike = {"spec": {"tolerations": [{"key": keys.DEGRADED, "operator": "Exists", "effect": "NoSchedule"}]}}
    assert own_taint_holds(unlike)


@pytest.mark.parametrize("given", [[], [{"key": "team", "operator": "Exists"}]], ids=["none", "of_a_person"])
def test_a_persons_tolerations_leave_gpuwatchs_own(given: list[dict[str, str]], helm_chart: Chart) -> None:
    made = list(pods(in_chart(helm_chart, {**CHARTS["default"], "tolerations": given})))
    assert len(made) == 4
    for pod in made:
        assert pod["spec"]["tolerations"] == [*given, {"key": keys.DEGRADED, "operator": "Exists"}]


@pytest.mark.parametrize("place", PLACES)
def test_the_first_probe_comes_when_the_controller_listens(place: str, request: pytest.FixtureRequest) -> None:
    """A kubelet writes a Warning event for each probe that fails. The others wait for the startup probe's success."""
    for pod in pods(objects_of(place, request)):
        (container,) = pod["spec"]["containers"]
        assert ("startupProbe" in container) is ("livenessProbe" in container)
        if "startupProbe" in container:
            assert container["startupProbe"]["initialDelaySeconds"] >= 5  # docs/controller.md: measured
            assert container["startupProbe"]["periodSeconds"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("linked", [False, True], ids=["as_shipped", "linked"])
@pytest.mark.parametrize(("place", "name"), EVERY, ids=lambda each: each.replace("/", "-"))
def test_it_starts_with_the_environment_of_a_kubelet(
    place: str, name: str, linked: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if not can_run():
        pytest.skip("processes with mounts of their own are not to be had here: they need Linux and unshare")
    objects = objects_of(place, request)
    pod = next(each for each in pods(objects) if each["spec"]["containers"][0]["name"] == name)
    namespace = pod["metadata"]["namespace"]
    served = [each for each in objects if each["kind"] == "Service"]
    for number, each in enumerate(served):
        each["spec"]["clusterIP"] = f"10.96.1.{number + 1}"  # as the API server does
    if linked:
        pod["spec"]["enableServiceLinks"] = True
        served += [each for each in neighbours(namespace) if each["metadata"]["name"] != "gpuwatch" or not served]
    served.append(service("kubernetes", "default", {"name": "https", "port": 9}, address="127.0.0.1"))
    (container,) = pod["spec"]["containers"]
    made = pod_environment(pod, container, served, lambda *_: {})
    assert ("GPUWATCH_SERVICE_HOST" in made) is linked
    port = free_port()
    view = seeing(files(pod, objects, tmp_path, port), tmp_path / "view", [*ENTRY_POINT, *arguments(container, made)])
    log = tmp_path / "log"
    with begun(view, log, {**IMAGE, **made}, tmp_path) as process:
        if name == "gpuwatch":
            run = GpuwatchRun(process, port, log)
            wait_until(lambda: process.poll() is not None or run.asked("/healthz") == (200, "ok\n"), run.said, 60)
            assert process.poll() is None, run.said()
            return
        assert process.wait(60) == ExitCode.FAILED, log.read_text()
    assert "Connection refused" in log.read_text()


def arguments(container: Object, environment: Mapping[str, str]) -> list[str]:
    assert "command" not in container, "the image's entry point is another one then"
    return [expanded(each, environment) for each in container["args"]]


def files(pod: Object, objects: list[Object], folder: Path, port: int) -> dict[Path, Path]:
    """The container's mounts: place → a folder. What is not of a ConfigMap is empty, and a Secret has the keys that
    the settings name."""
    account = folder / "account"
    account.mkdir()
    (account / "token").write_text("a token")
    (account / "namespace").write_text(pod["metadata"]["namespace"])
    (account / "ca.crt").write_text(Path(certifi.where()).read_text(encoding="utf-8"))
    found = {ACCOUNT: account}
    volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
    for mount in pod["spec"]["containers"][0]["volumeMounts"]:
        made = found[Path(mount["mountPath"])] = folder / f"volume-{mount['name']}"
        made.mkdir()
        if mount["name"] == "settings":
            wanted = volumes["settings"]["configMap"]["name"]
            (data,) = (
                each["data"] for each in objects if each["kind"] == "ConfigMap" and each["metadata"]["name"] == wanted
            )
            for key, text in data.items():
                (made / key).write_text(set_up(text, port))
        elif "secret" in volumes[mount["name"]]:
            (made / "token").write_text("a token")
            (made / "ca.crt").write_text(Path(certifi.where()).read_text(encoding="utf-8"))
    return found


def set_up(settings: str, port: int) -> str:
    """A person's settings.yaml."""
    found = yaml.safe_load(settings)
    found["prometheus"] |= SETTINGS["prometheus"]
    found["run"] = {**found.get("run", {}), "listen_port": port}
    return yaml.safe_dump(found)
