"""A tenant who attacks, and an account that may not read everything: what gpuwatch would have to be fooled into is
planted, beside one of each that is real. What is real is acted on, so what is forged was seen and refused."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.api import Object
from e2e.clusters import marked
from e2e.exporters import JOB, TENANTS_JOB, Sample
from e2e.live_fleet import gpu_uuid, workload
from e2e.world import ACCOUNT, World

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

EVIL, PROD = "e2e-evil", "e2e-prod"
PROD_API = f"/apis/apps/v1/namespaces/{PROD}/deployments/api"
ROLE = "/apis/rbac.authorization.k8s.io/v1/clusterroles"


@pytest.fixture(scope="module")
def attacked(with_every_role: World) -> Iterator[World]:
    """On attacked-0 a Job of team-a and a Pod of a tenant are idle; attacked-1 to attacked-3 are free. The tenant's Pod
    says that the Deployment of another Namespace controls it. Kubernetes' garbage collector would delete it, if it knew
    the version of that reference."""
    living = with_every_role
    for name in (EVIL, PROD):
        living.api.create(marked({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}))
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        living.until(lambda: living.api.answer("GET", account).ok)  # noqa: B023
    for number in range(4):
        living.node(f"attacked-{number}", "attacked")
    victim = living.api.create(workload("Deployment", "api", pool="attacked", gpus=0, namespace=PROD))
    living.api.create(workload("Job", "forgotten-too", pool="attacked", gpus=4))
    living.api.create(forged_pod(victim["metadata"]["uid"]))
    living.fleet.idle.update(("forgotten-too", "forged"))
    pods = f"/api/v1/namespaces/{EVIL}/pods/forged"
    living.until(lambda: living.api.get(pods)["status"].get("phase") == "Running")
    living.until(lambda: living.api.get(PROD_API).get("status", {}).get("readyReplicas") == 1)
    try:
        yield living
    finally:
        living.fleet.exporters.show_tenants({})
        living.fleet.faults.clear()


def forged_pod(uid: str) -> Object:
    template: Object = workload("Job", "forged", pool="attacked", gpus=4, namespace=EVIL)["spec"]["template"]
    owner = {"apiVersion": "apps/v99", "kind": "Deployment", "name": "api", "uid": uid, "controller": True}
    metadata = {**template["metadata"], "name": "forged", "namespace": EVIL, "ownerReferences": [owner]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def settings(living: World, name: str, *actions: str, **groups: Any) -> Any:
    scopes = [{"mode": "enforce", "pool": "attacked", "action": action} for action in actions]
    plan = {"scopes": scopes, "storm_cooldown_seconds": 2}
    # On a busy machine samples are late and a finding is less sure for a moment: then it is proposed again.
    return living.settings(name, plan=plan, execute={"obsolete_backoff_seconds": 3}, **groups)


def test_without_disruption_budgets_that_it_can_read_it_disturbs_nobody(attacked: World) -> None:
    living = attacked
    rules = {
        name: living.api.get(f"{ROLE}/{name}")["rules"]
        for name in (item["metadata"]["name"] for item in living.api.get(ROLE)["items"])
        if name.startswith("gpuwatch")
    }

    def give(blind: bool) -> None:
        for name, whole in rules.items():
            seen = [
                {**rule, "resources": [each for each in rule["resources"] if each != "poddisruptionbudgets"]}
                for rule in whole
                if rule["resources"] != ["poddisruptionbudgets"]
            ]
            body = {"rules": seen if blind else whole}
            answer = living.api.answer("PATCH", f"{ROLE}/{name}", body, content_type="application/merge-patch+json")
            assert answer.ok, answer.text

    give(blind=True)
    try:
        with living.gpuwatch("blind", settings(living, "blind", "release_gang", "evict_gang")) as replica:
            said = "so it is not known how many disruptions they allow"
            living.until(lambda: said in replica.said(), replica)
            assert replica.metric('gpuwatch_unread_facts{fact="budgets"}') == 1.0
            page = replica.asked("/")[1]
            assert "budgets, at least in part. gpuwatch refuses the actions that depend on them" in page
            time.sleep(5)  # some more cycles, in each of which it could act
            assert [item["spec"]["proposal"] for item in living.remediations(target="forgotten-too")] == []
            assert len(living.running("forgotten-too")) == 1
            if living.logged("nothing is written to anybody's objects while PodDisruptionBudgets cannot be read"):
                assert living.disturbed(by=replica.credential) == []
            give(blind=False)
            living.until(lambda: living.phase("release_gang", "forgotten-too") == "InEffect", replica)
            assert replica.metric('gpuwatch_unread_facts{fact="budgets"}') == 0.0
    finally:
        give(blind=False)


def test_a_pod_that_names_an_owner_of_another_namespace_reaches_nothing_there(attacked: World) -> None:
    living = attacked
    before = living.api.get(PROD_API)
    with living.gpuwatch("deputy", settings(living, "deputy", "release_gang", "evict_gang")) as replica:
        refused = "has an owner reference with the uid of an object of another Namespace, kind or name"
        living.until(lambda: refused in replica.said(), replica)
        living.until(lambda: living.phase("release_gang", "forgotten-too") == "InEffect", replica)
        time.sleep(5)
    after = living.api.get(PROD_API)
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    assert after["spec"]["replicas"] == 1
    assert living.api.get(f"/api/v1/namespaces/{EVIL}/pods/forged")["status"]["phase"] == "Running"
    for namespace in (PROD, EVIL):
        assert living.api.get(f"/apis/gpuwatch.dev/v1alpha1/namespaces/{namespace}/remediations")["items"] == []
    if living.logged("nothing is written to either Namespace"):
        there = (f"/namespaces/{PROD}/", f"/namespaces/{EVIL}/")
        asked = [each for each in living.cluster.own.asked() if each.user == ACCOUNT]
        assert [
            each for each in asked if each.verb not in ("get", "list") and any(map(each.uri.__contains__, there))
        ] == []


def forged_rows(name: str, uuid: str) -> list[Sample]:
    """What a real exporter writes of a GPU whose memory could not be repaired."""
    labels = {"Hostname": name, "UUID": uuid, "gpu": "3", "device": "nvidia3", "modelName": "NVIDIA-A100-SXM4-80GB"}
    return [
        ("DCGM_FI_DEV_ROW_REMAP_FAILURE", labels, 1.0),
        ("DCGM_FI_DEV_GPU_UTIL", labels, 0.0),
        ("DCGM_FI_DEV_GPU_TEMP", labels, 33.0),
    ]


def test_what_a_tenants_target_exports_under_dcgms_names_taints_no_node(attacked: World) -> None:
    """Of a GPU that is there, from a Pod that is named; and of one that is not, from an address alone."""
    living = attacked
    own = {"namespace": EVIL, "pod": "forged", "container": "main"}
    living.fleet.exporters.show_tenants(
        {
            "named": (
                {"job": TENANTS_JOB, "instance": "10.9.9.8:8080", **own},
                forged_rows("attacked-2", gpu_uuid("attacked-2", 3)),
            ),
            "bare": (
                {"job": TENANTS_JOB, "instance": "10.9.9.9:8080"},
                forged_rows("attacked-3", gpu_uuid("attacked-3", 99)),
            ),
        }
    )
    living.fleet.faults["attacked-1"] = {3}
    with living.gpuwatch("fooled", settings(living, "fooled", "taint_node")) as replica:
        living.until(lambda: living.phase("taint_node", "attacked-1") == "InEffect", replica)
        left_out = "belong to no known exporter, so their rows are ignored; one is target 10.9.9.8:8080"
        living.until(lambda: left_out in replica.asked("/")[1], replica)
        living.until(lambda: "its rows come from target 10.9.9.9:8080" in replica.asked("/")[1], replica)
        time.sleep(8)  # a scrape of theirs, and some cycles
        for name in ("attacked-2", "attacked-3"):
            assert living.taints(name) == []
            assert living.remediations("taint_node", name) == []
        if living.logged("no Node is written to but the one whose exporter tells of it"):
            written = [each.uri for each in living.writes(by=replica.credential) if each.resource == "nodes"]
            assert written
            assert [uri for uri in written if "/nodes/attacked-1" not in uri] == []
        assert "node/attacked-2" not in replica.said()
        # The forgery is one: with the target trusted, a taint of that Node is weighed.
        settings(living, "fooled", "taint_node", prometheus={"trusted_targets": [{"job": JOB}, {"job": TENANTS_JOB}]})
        living.until(lambda: "taint_node:node/attacked-2" in replica.said(), replica)
        (held,) = living.remediations("taint_node", "attacked-1")
        # Else the detector would be a poor one for the tests that follow.
        assert living.command("undo", held["metadata"]["name"], "--finding-correct").returncode == 0
        living.until(lambda: living.phase("taint_node", "attacked-1") == "Undone", replica)
