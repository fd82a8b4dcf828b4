"""The harness itself: a real API server of the version that it says, in which RBAC decides."""

import pytest

from cluster.api import Api
from cluster.control_plane import VERSION, Asked, ControlPlane, credential
from parts.processes import wait_until


@pytest.fixture(scope="module")
def administrator(control_plane: ControlPlane) -> Api:
    return Api(control_plane.administrator)


def test_it_is_the_version_that_was_asked_for_and_serves_dra(administrator: Api) -> None:
    version = administrator.get("/version")
    assert (version["gitVersion"], version["major"], version["minor"]) == (VERSION, *VERSION[1:].split(".")[:2])
    served = {item["name"] for item in administrator.get("/apis/resource.k8s.io/v1")["resources"]}
    assert {"resourceclaims", "resourceclaims/status", "resourceslices", "deviceclasses"} <= served


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
