"""The shipped manifests as documents, put together as kustomize does it with the one key that they use."""

import copy
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml

from cluster.api import Api, Object
from parts.processes import wait_until

DEPLOY = Path(__file__).parents[2] / "deploy"
CRDS = DEPLOY / "base" / "crds.yaml"


def documents(place: Path) -> Iterator[Object]:
    """The objects of a file, or of a folder with its kustomization.yaml, in its order."""
    if place.is_file():
        yield from yaml.safe_load_all(place.read_text(encoding="utf-8"))
        return
    kustomization: dict[str, Any] = yaml.safe_load((place / "kustomization.yaml").read_text(encoding="utf-8"))
    assert set(kustomization) <= {"apiVersion", "kind", "resources"}, f"{place}: this reader knows resources alone"
    for name in kustomization["resources"]:
        yield from documents(place / name)


def renamed(objects: Iterable[Object], namespace: str, account: str) -> Iterator[Object]:
    """The same with gpuwatch's account called like that, in that Namespace, as `namespace:` and a patch of the
    ServiceAccount do it in a kustomization."""
    for each in objects:
        made = copy.deepcopy(each)
        metadata = made["metadata"]
        if made["kind"] == "Namespace":
            metadata["name"] = namespace
        elif "namespace" in metadata:
            metadata["namespace"] = namespace
        if made["kind"] == "ServiceAccount":
            metadata["name"] = account
        for subject in made.get("subjects", ()):
            subject.update(name=account, namespace=namespace)
        if made["kind"] == "Deployment":
            made["spec"]["template"]["spec"]["serviceAccountName"] = account
        yield made


def apply(api: Api, objects: Iterable[Object]) -> None:
    """As `kubectl apply --server-side` does it; custom resources can be used when it returns."""
    for each in objects:
        resource = api.resource(each["apiVersion"], each["kind"])
        name, namespace = each["metadata"]["name"], each["metadata"].get("namespace", "")
        how = urlencode({"fieldManager": "test", "force": "true", "fieldValidation": "Strict"})
        path = f"{resource.path(namespace)}/{name}"
        answer = api.answer("PATCH", f"{path}?{how}", each, content_type="application/apply-patch+yaml")
        assert answer.ok, f"{each['kind']} {name}: {answer.status_code} {answer.text}"
        if each["kind"] == "CustomResourceDefinition":
            served = (
                f"/apis/{each['spec']['group']}/{each['spec']['versions'][0]['name']}/{each['spec']['names']['plural']}"
            )
            wait_until(lambda: api.answer("GET", served).ok, lambda: f"{served} is not served")  # noqa: B023
