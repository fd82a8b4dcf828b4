"""The harness itself: a real API server of the version that it says, in which RBAC decides."""

from __future__ import annotations

import json
import socket
from urllib.parse import urlsplit

import pytest

from cluster.api import Api
from cluster.control_plane import VERSION, Asked, ControlPlane, ControlPlaneBuild, credential, running
from parts.processes import wait_until


@pytest.fixture(scope="module")
def administrator(control_plane: ControlPlane) -> Api:
    return Api(control_plane.administrator)


def test_it_is_the_version_that_was_asked_for_and_serves_dra(administrator: Api) -> None:
    version = administrator.get("/version")
    assert (version["gitVersion"], version["major"], version["minor"]) == (VERSION, "1", "36")
    served = {item["name"] for item in administrator.get("/apis/resource.k8s.io/v1")["resources"]}
    assert {"resourceclaims", "resourceclaims/status", "resourceslices", "deviceclasses"} <= served


def test_what_is_created_comes_back_with_its_status(administrator: Api) -> None:
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "harness", "labels": {"nvidia.com/gpu.count": "8"}},
        "status": {"capacity": {"nvidia.com/gpu": "8"}},
    }
    try:
        assert administrator.create(node)["status"]["capacity"] == {"nvidia.com/gpu": "8"}
        listed = administrator.kubectl_list("v1", "Node")["items"]
        assert [item["kind"] for item in listed if item["metadata"]["name"] == "harness"] == ["Node"]
    finally:
        administrator.delete(node)


def test_users_may_do_only_what_a_binding_allows(control_plane: ControlPlane, administrator: Api) -> None:
    assert Api(control_plane.user("stranger")).answer("GET", "/api/v1/nodes").status_code == 403
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "harness"}}
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "reader", "namespace": "harness"}}
    administrator.create(namespace)
    administrator.create(account)
    reader = Api(control_plane.service_account("harness", "reader"))
    refused = reader.answer("GET", "/api/v1/nodes")
    assert refused.status_code == 403
    user = "system:serviceaccount:harness:reader"
    assert f'"{user}" cannot list resource "nodes"' in refused.json()["message"]
    wait_until(  # the log follows the answer
        lambda: (
            [item for item in control_plane.asked() if item.user == user]
            == [Asked(user, "list", "nodes", "/api/v1/nodes", 403)]
        ),
        lambda: f"not in the audit log: {control_plane.asked()}",
        seconds=10,
    )


def test_an_unknown_token_is_not_accepted(control_plane: ControlPlane) -> None:
    assert Api(control_plane.kubeconfig("nobody", "no-such-token")).answer("GET", "/apis").status_code == 401


def test_two_run_side_by_side_and_are_gone_afterwards(
    control_plane: ControlPlane, control_plane_build: ControlPlaneBuild
) -> None:
    with running(control_plane_build, flags=["--runtime-config=resource.k8s.io/v1beta2=true"]) as other:
        versions = {item["name"]: item["versions"] for item in Api(other.administrator).get("/apis")["groups"]}
        assert [item["version"] for item in versions["resource.k8s.io"]] == ["v1", "v1beta2"]
        config = json.loads(other.administrator.read_text())
        token = config["users"][0]["user"]["token"]
        assert Api(control_plane.kubeconfig("of-the-other", token)).answer("GET", "/apis").status_code == 401
        port = urlsplit(other.url).port
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", port or 0), timeout=5):
        pass
    assert not other.folder.exists()


def test_a_server_that_was_gone_comes_back_with_what_it_had(control_plane_build: ControlPlaneBuild) -> None:
    with running(control_plane_build) as own:
        api = Api(own.administrator)
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kept"}})
        with own.gone():
            assert not own.ready()
        assert api.get("/api/v1/namespaces/kept")["metadata"]["name"] == "kept"


def test_tokens_of_one_account_are_told_apart(control_plane: ControlPlane, administrator: Api) -> None:
    administrator.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "tokens"}})
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "twice", "namespace": "tokens"}}
    administrator.create(account)
    files = [control_plane.service_account("tokens", "twice", file) for file in ("one", "two")]
    for file in files:
        Api(file).answer("GET", "/api")
    user = "system:serviceaccount:tokens:twice"
    wait_until(
        lambda: [item.credential for item in control_plane.asked() if item.user == user] == [*map(credential, files)],
        lambda: f"not in the audit log: {control_plane.asked()}",
        seconds=10,
    )


def test_a_server_that_cannot_start_says_why(control_plane_build: ControlPlaneBuild) -> None:
    with (
        pytest.raises(RuntimeError, match="unknown flag: --no-such-flag"),
        running(control_plane_build, flags=["--no-such-flag"]),
    ):
        pass
