"""Whose cluster the end-to-end tests run on, which they refuse, and what they leave there."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster.api import Api, Object
from cluster.control_plane import ControlPlane
from deploy.manifests import CRDS, documents
from e2e.clusters import NotToBeUsedError, existing, marked, wipe
from e2e.live_fleet import node

pytestmark = [pytest.mark.slow, pytest.mark.e2e]


@contextmanager
def there(api: Api, object_: Object) -> Iterator[None]:
    api.create(object_)
    try:
        yield
    finally:
        api.delete(object_)
        if object_["kind"] == "Namespace":  # which no controller finalizes here
            body = {**object_, "spec": {"finalizers": []}}
            api.answer("PUT", f"/api/v1/namespaces/{object_['metadata']['name']}/finalize", body)


def refused(environment: dict[str, str], folder: Path) -> str:
    said: list[str] = []
    with pytest.raises(NotToBeUsedError) as error, existing(environment, folder, said.append):
        pass
    assert said == []  # it was refused before anything was looked for that could be deleted
    return str(error.value)


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({}, "KUBECONFIG is not set"),
        ({"KUBECONFIG": "/no/such/file"}, "KUBECONFIG is '/no/such/file', and there is no such file"),
    ],
    ids=["unset", "missing"],
)
def test_without_a_kubeconfig_it_says_so(environment: dict[str, str], why: str, tmp_path: Path) -> None:
    assert why in refused(environment, tmp_path)


def test_a_file_that_is_no_kubeconfig_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text("clusters: []\n")
    assert f"The cluster of KUBECONFIG={file} cannot be used" in refused({"KUBECONFIG": str(file)}, tmp_path)


def test_a_user_who_may_not_do_everything_is_refused(control_plane: ControlPlane, tmp_path: Path) -> None:
    why = refused({"KUBECONFIG": str(control_plane.user("stranger"))}, tmp_path)
    assert "its user may not do everything" in why


@pytest.mark.parametrize("what", ["Node", "CustomResourceDefinition", "Namespace"])
def test_a_cluster_that_is_in_use_is_refused(what: str, control_plane: ControlPlane, tmp_path: Path) -> None:
    api = Api(control_plane.administrator)
    theirs: dict[str, tuple[Object, str]] = {
        "Node": (node("theirs", "a100"), "Node theirs has GPUs"),
        "CustomResourceDefinition": (next(documents(CRDS)), "CustomResourceDefinition "),
        "Namespace": ({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a"}}, "Namespace team-a"),
    }
    object_, why = theirs[what]
    with there(api, object_):
        assert why in refused({"KUBECONFIG": str(control_plane.administrator)}, tmp_path)
        left = api.answer("GET", f"{api.resource(object_['apiVersion'], what).path()}/{object_['metadata']['name']}")
        assert left.ok
        assert "deletionTimestamp" not in left.json()["metadata"]


def test_what_is_marked_is_deleted_and_nothing_else(control_plane: ControlPlane) -> None:
    api = Api(control_plane.administrator)
    device_class: Object = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "theirs"}}
    with there(api, node("theirs", "a100")), there(api, {**device_class, "spec": {}}):
        before = api.get("/api/v1/nodes")["items"], api.get("/apis/resource.k8s.io/v1/deviceclasses")["items"]
        api.create(marked(node("ours", "a100")))
        api.create(marked({**device_class, "metadata": {"name": "ours"}, "spec": {}}))
        assert wipe(api) == 2
        after = api.get("/api/v1/nodes")["items"], api.get("/apis/resource.k8s.io/v1/deviceclasses")["items"]
        assert after == before
        assert wipe(api) == 0
