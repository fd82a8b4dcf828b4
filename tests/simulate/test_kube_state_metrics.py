"""The owner series lead to the same owners as the objects of the API server."""

from datetime import UTC, datetime, timedelta

from lab.simulate.exporter import prometheus_up
from lab.simulate.fleet import build_fleet
from lab.simulate.kube_state_metrics import owner_series
from lab.simulate.plan import FleetPlan

FLEET = build_fleet(FleetPlan(seed=3, end=datetime(2026, 3, 2, 12, tzinfo=UTC), gpus=64, days=2))
SERIES = list(owner_series(FLEET.plan, FLEET.runs, prometheus_up(FLEET.plan)))


def _named(metric: str) -> dict[tuple[str, str], tuple[str, str]]:
    child = {"kube_pod_owner": "pod", "kube_replicaset_owner": "replicaset", "kube_job_owner": "job_name"}[metric]
    return {
        (item.labels["namespace"], item.labels[child]): (
            item.labels.get("owner_kind", ""),
            item.labels.get("owner_name", ""),
        )
        for item in SERIES
        if item.metric == metric
    }


def test_every_pod_of_the_api_server_has_the_owner_that_it_refers_to() -> None:
    owners = _named("kube_pod_owner")
    pods = [
        item
        for item in FLEET.cluster_objects()
        if item["kind"] == "Pod" and item["metadata"].get("labels", {}).get("app") != "dcgm-exporter"
    ]
    compared = 0
    for pod in pods:
        meta = pod["metadata"]
        if (meta["namespace"], meta["name"]) not in owners:
            continue  # a Pod of the platform
        reference = next(iter(meta.get("ownerReferences", ())), {"kind": "", "name": ""})
        assert owners[meta["namespace"], meta["name"]] == (reference["kind"], reference["name"])
        compared += 1
    assert compared > 20


def test_controllers_lead_on_to_the_top() -> None:
    moments = [FLEET.plan.start + timedelta(hours=hours) for hours in range(1, 48)]
    objects = [item for at in moments for item in FLEET.cluster_objects(at)]
    found = _named("kube_replicaset_owner") | _named("kube_job_owner")
    kinds = set()
    for item in objects:
        meta = item["metadata"]
        if item["kind"] not in ("ReplicaSet", "Job") or not meta.get("ownerReferences"):
            continue
        reference = meta["ownerReferences"][0]
        assert found[meta["namespace"], meta["name"]] == (reference["kind"], reference["name"])
        kinds.add(item["kind"])
    assert kinds == {"ReplicaSet", "Job"}
