"""Where the end-to-end tests run: on a control plane of their own, or on the cluster that $KUBECONFIG names.

Everything that the tests make outside a Namespace of theirs carries the label `MARK`, and so do those Namespaces. By it
a cluster that is somebody else's is left as it was found, and what a run that was killed left behind is told from what
is others'.
"""

import copy
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cluster.api import Api, Object, Resource, settings_of
from cluster.control_plane import ControlPlane, ControlPlaneBuild, running
from gpuwatch.sources.kube.resources import is_accelerator
from parts.processes import wait_until

MARK = "e2e.gpuwatch.dev/suite"
NAMESPACES = ("gpuwatch", "team-a", "gpu-operator")
_TAINT_RULES = ("resource.k8s.io/v1", "resource.k8s.io/v1beta2", "resource.k8s.io/v1alpha3")
_GONE_SECONDS = 180
_PROBE = "gpuwatch-e2e-probe"

NEEDS = """\
Such a cluster is one for tests: Kubernetes 1.30 or newer, its scheduler and its controllers running, kwok playing the
kubelets of Nodes with the annotation kwok.x-k8s.io/node=fake without its stage pod-complete (which ends the Pods of a
Job at once), a user who may do everything, no GPUs and no gpuwatch, and nobody's Pods waiting for either."""


class NotToBeUsedError(Exception):
    """The cluster of $KUBECONFIG is not one to run these tests on; the message says why, and what to do."""


@dataclass(frozen=True)
class Cluster:
    """administrator: kubeconfig of a user who may do everything. account: a kubeconfig of the ServiceAccount of
    deploy/, with a token of its own, by the name of who uses it. own: None where the cluster is somebody else's; then
    nobody can see what its API server was asked for, or have it stop."""

    administrator: str
    account: Callable[[str], Path]
    own: ControlPlane | None = None


def on_existing() -> bool:
    """Do the tests run on the cluster that $KUBECONFIG names?"""
    return os.environ.get("E2E_EXISTING", "") not in ("", "0")


def marked(object_: Object) -> Object:
    """The object with the mark of the tests, and for kwok that simulated kubelets are its own."""
    found = copy.deepcopy(object_)
    metadata = found["metadata"]
    metadata["labels"] = {**metadata.get("labels", {}), MARK: "true"}
    if found["kind"] == "Node":
        metadata["annotations"] = {**metadata.get("annotations", {}), "kwok.x-k8s.io/node": "fake"}
    return found


@contextmanager
def own(build: ControlPlaneBuild) -> Iterator[Cluster]:
    """A living control plane, gone afterwards."""
    with running(build, alive=True) as started:
        yield Cluster(
            str(started.administrator), lambda name: started.service_account("gpuwatch", "gpuwatch", name), started
        )


@contextmanager
def existing(environment: Mapping[str, str], folder: Path, say: Callable[[str], None]) -> Iterator[Cluster]:
    """The cluster of $KUBECONFIG, as it was found when the block ends. folder: for kubeconfigs. Raises
    NotToBeUsedError before anything is written."""
    named = environment.get("KUBECONFIG", "")
    if not any(Path(item).is_file() for item in named.split(os.pathsep) if item):
        there = f"KUBECONFIG is {named!r}, and there is no such file" if named else "KUBECONFIG is not set"
        raise NotToBeUsedError(f"E2E_EXISTING=1 runs the tests on the cluster that KUBECONFIG names, but {there}.")
    try:
        settings, api = settings_of(named), Api(named)
        refuse_what_is_in_use(api)
    except NotToBeUsedError:
        raise
    except Exception as error:
        raise NotToBeUsedError(f"The cluster of KUBECONFIG={named} cannot be used: {error}") from error
    left = wipe(api)
    say(f"end-to-end tests run on {settings.host}" + (f"; an earlier run had left {left} objects there" * bool(left)))
    try:
        _try_it(api)
        yield Cluster(named, lambda name: _account(api, settings, folder / f"{name}.kubeconfig"))
    finally:
        say(f"{wipe(api)} objects of the tests were deleted from {settings.host}")


def refuse_what_is_in_use(api: Api) -> None:
    """Raises NotToBeUsedError where the cluster has GPUs or a gpuwatch that are not of these tests, or does not let
    them do what they have to."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "metadata": {},
        "spec": {"resourceAttributes": {"group": "*", "resource": "*", "verb": "*"}},
    }
    answer = api.answer("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
    if not answer.ok or not answer.json()["status"]["allowed"]:
        said = "its user may not do everything" if answer.ok else f"it answered {answer.status_code}: {answer.text}"
        raise NotToBeUsedError(f"The cluster of KUBECONFIG cannot be used: {said}.\n{NEEDS}")
    others = [*_gpus(api), *_gpuwatch(api)]
    if others:
        raise NotToBeUsedError(
            "The cluster of KUBECONFIG is in use, and gpuwatch would act on what is there: "
            f"{', '.join(others[:8])}{' …' if len(others) > 8 else ''}.\n{NEEDS}"
        )


def _gpus(api: Api) -> Iterator[str]:
    for item in api.get("/api/v1/nodes")["items"]:
        counted = item.get("status", {}).get("capacity") or {}
        if any(map(is_accelerator, counted)) and not _ours(item):
            yield f"Node {item['metadata']['name']} has GPUs"
    answer = api.answer("GET", "/apis/resource.k8s.io/v1/resourceslices")
    for item in answer.json()["items"] if answer.ok else ():
        if not _ours(item):
            yield f"ResourceSlice {item['metadata']['name']} has devices"


def _gpuwatch(api: Api) -> Iterator[str]:
    for item in api.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")["items"]:
        if item["spec"]["group"] == "gpuwatch.dev" and not _ours(item):
            yield f"CustomResourceDefinition {item['metadata']['name']}"
    for kind in ("clusterroles", "clusterrolebindings"):
        for item in api.get(f"/apis/rbac.authorization.k8s.io/v1/{kind}")["items"]:
            if item["metadata"]["name"].startswith("gpuwatch") and not _ours(item):
                yield f"{kind} {item['metadata']['name']}"
    for name in NAMESPACES:
        answer = api.answer("GET", f"/api/v1/namespaces/{name}")
        if answer.ok and not _ours(answer.json()):
            yield f"Namespace {name}"


def _ours(object_: Object) -> bool:
    return MARK in object_["metadata"].get("labels", {})


def wipe(api: Api) -> int:
    """Delete all that is marked, and what gpuwatch made of it; Namespaces first, so that their Pods end on Nodes that
    are there. How many objects there were. Raises RuntimeError where something does not go."""
    _let_go(api)
    nodes = {_PROBE, *(item["metadata"]["name"] for item in api.get("/api/v1/nodes")["items"] if _ours(item))}
    found = [
        (resource, item)
        for resource in api.resources()
        if not resource.namespaced and {"list", "delete"} <= resource.verbs
        for item in _marked(api, resource)
    ]
    found.sort(key=lambda each: (each[0].kind != "Namespace", each[0].kind != "Node"))
    for resource, item in found:
        _delete(api, f"{resource.path()}/{item['metadata']['name']}")
        if resource.kind == "Namespace":
            _wait_until_gone(api, f"{resource.path()}/{item['metadata']['name']}")
    for resource, item in found:
        _wait_until_gone(api, f"{resource.path()}/{item['metadata']['name']}")
    return len(found) + _wipe_what_was_made(api, nodes)


def _let_go(api: Api) -> None:
    """No gpuwatch runs any more that would take back what a Remediation's finalizer stands for."""
    for plural in ("remediations", "noderemediations"):
        answer = api.answer("GET", f"/apis/gpuwatch.dev/v1alpha1/{plural}")
        for item in answer.json()["items"] if answer.ok else ():
            place = item["metadata"].get("namespace", "")
            at = f"/apis/gpuwatch.dev/v1alpha1/{f'namespaces/{place}/' if place else ''}{plural}"
            none = {"metadata": {"finalizers": None}}
            path = f"{at}/{item['metadata']['name']}"
            api.answer("PATCH", path, none, content_type="application/merge-patch+json")


def _marked(api: Api, resource: Resource) -> list[Object]:
    answer = api.answer("GET", resource.path(), parameters={"labelSelector": MARK})
    found: list[Object] = answer.json()["items"] if answer.ok else []  # an aggregated API may be out of order
    return found


def _wipe_what_was_made(api: Api, nodes: set[str]) -> int:
    """Rules about devices, and Events about Nodes, which stand in the Namespace `default`."""
    count = 0
    for version in _TAINT_RULES:
        answer = api.answer("GET", f"/apis/{version}/devicetaintrules")
        for item in answer.json()["items"] if answer.ok else ():
            if "gpuwatch.dev/remediation" in item["metadata"].get("annotations", {}):
                _delete(api, f"/apis/{version}/devicetaintrules/{item['metadata']['name']}")
                count += 1
    events = "/apis/events.k8s.io/v1/namespaces/default/events"
    for item in api.get(events)["items"]:
        if item.get("regarding", {}).get("kind") == "Node" and item["regarding"].get("name") in nodes:
            _delete(api, f"{events}/{item['metadata']['name']}")
            count += 1
    return count


def _delete(api: Api, path: str) -> None:
    answer = api.answer("DELETE", path)
    if not answer.ok and answer.status_code != 404:
        raise RuntimeError(f"{path} was not deleted: {answer.status_code} {answer.text}")


def _wait_until_gone(api: Api, path: str) -> None:
    wait_until(
        lambda: api.answer("GET", path).status_code == 404,
        lambda: f"{path} is still there: {api.answer('GET', path).text}",
        _GONE_SECONDS,
    )


def _try_it(api: Api) -> None:
    """A Pod of a Job on a Node of ours runs, and goes on running. Raises NotToBeUsedError."""
    probe = _PROBE
    host = {"cpu": "4", "memory": "8Gi", "pods": "8"}
    labels = {"kubernetes.io/hostname": probe}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": probe, "labels": labels}}
    api.create(marked({**node, "status": {"capacity": host, "allocatable": host}}))
    api.create(marked({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": probe}}))
    container = {"name": "main", "image": "example.org/main:1"}
    template = {"spec": {"restartPolicy": "Never", "nodeSelector": labels, "containers": [container]}}
    metadata = {"name": probe, "namespace": probe}
    api.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": template}})

    def phases() -> list[str]:
        return [item["status"].get("phase", "") for item in api.get(f"/api/v1/namespaces/{probe}/pods")["items"]]

    try:
        wait_until(lambda: phases() == ["Running"], lambda: f"a Pod on a Node that was made for it is {phases()}")
    except RuntimeError as error:
        raise NotToBeUsedError(
            f"The cluster of KUBECONFIG runs no Pods on simulated Nodes: {error}.\n{NEEDS}"
        ) from None
    time.sleep(3)
    if phases() != ["Running"]:
        raise NotToBeUsedError(f"The cluster of KUBECONFIG ends the Pods of a Job by itself.\n{NEEDS}")
    _delete(api, f"/api/v1/namespaces/{probe}")
    _wait_until_gone(api, f"/api/v1/namespaces/{probe}")
    _delete(api, f"/api/v1/nodes/{probe}")


def _account(api: Api, settings: Any, file: Path) -> Path:
    """As ControlPlane.service_account does it, at the address and with the authorities of the administrator."""
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    answer = api.answer("POST", "/api/v1/namespaces/gpuwatch/serviceaccounts/gpuwatch/token", asked)
    if not answer.ok:
        raise RuntimeError(f"no token of the account: {answer.status_code} {answer.text}")
    cluster = {
        "server": settings.host,
        "certificate-authority": settings.ssl_ca_cert,
        "insecure-skip-tls-verify": not settings.verify_ssl,
        "tls-server-name": settings.tls_server_name,
    }
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": {key: value for key, value in cluster.items() if value}}],
        "users": [{"name": "gpuwatch", "user": {"token": answer.json()["status"]["token"]}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "gpuwatch"}}],
        "current-context": "test",
    }
    file.write_text(yaml.safe_dump(content))
    return file
