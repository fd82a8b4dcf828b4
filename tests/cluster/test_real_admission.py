"""A Node whose plugin gives no Pod a GPU and says that all are well: it eats the Pods that the scheduler sends."""

import json
import re
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec
import pytest

from cluster.api import Api, Object
from cluster.control_plane import ControlPlaneBuild
from cluster.real_node import RealNodes, running_nodes
from cluster.test_real_node import gpus_of, pod, pod_spec, read
from gpuwatch.facts.model.cluster import Cluster, Namespace
from gpuwatch.facts.model.decision import Finding, FindingKind, Snapshot, Verdict
from gpuwatch.judge.health.assess import HealthPolicy, assess_health
from gpuwatch.sources.kube.nodes import take_node
from parts.processes import wait_until

pytestmark = pytest.mark.slow
TEAMS = {"team-a": "vision", "team-b": "speech"}


@pytest.fixture(scope="module")
def nodes(node_build: ControlPlaneBuild) -> Iterator[RealNodes]:
    with running_nodes(node_build, count=2) as found:
        for name in TEAMS:
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            Api(found.cluster.administrator).create(namespace)
        yield found


def pods(api: Api) -> list[Object]:
    return [each for name in TEAMS for each in api.get(f"/api/v1/namespaces/{name}/pods")["items"]]


def phases(api: Api) -> str:
    return json.dumps([[each["metadata"]["name"], each["status"]] for each in pods(api)], indent=1)[-3000:]


def findings(api: Api, at: datetime) -> list[Finding]:
    found = [take_node(msgspec.Raw(json.dumps(each).encode())).node for each in api.get("/api/v1/nodes")["items"]]
    spaces = tuple(Namespace(name=name, labels={"team": team}) for name, team in TEAMS.items())
    cluster = Cluster(nodes=tuple(found), pods=tuple(map(read, pods(api))), namespaces=spaces, known=True)
    told = assess_health(Snapshot(at=at, cluster=cluster), HealthPolicy(team_label="team"))
    return [each for each in told if each.kind is FindingKind.POD_ADMISSION]


def test_a_node_that_eats_pods_is_named_and_one_that_has_no_room_is_not(nodes: RealNodes) -> None:
    api, eater = Api(nodes.cluster.administrator), nodes[0]

    def submit(number: int) -> None:
        found = pod(f"job-{number}", pod_spec())
        found["metadata"]["namespace"] = list(TEAMS)[number % 2]
        api.create(found)

    eater.set_gpu(0, refuses=True)
    for number in range(12):
        submit(number)
    # The other Node takes four. Each of the rest is refused at once, and its GPU looks free again.
    wait_until(lambda: sum(each["status"].get("phase") == "Failed" for each in pods(api)) == 8, lambda: phases(api))
    assert gpus_of(api, eater) == ("4", "4"), "the Node says that all is well"
    wait_until(
        lambda: sum(each["status"].get("phase") == "Running" for each in pods(api)) == 4, lambda: phases(api), 60
    )
    (found,) = findings(api, datetime.now(UTC))
    assert (found.node, found.verdict, found.approval) == (eater.name, Verdict.DEGRADED, "")
    assert found.evidence[0].value == 8
    # The same Pods, pinned by their clients: one team could make them, so they prove nothing.
    eater.set_gpu(0, refuses=True)
    for each in pods(api):
        path = f"/api/v1/namespaces/{each['metadata']['namespace']}/pods/{each['metadata']['name']}"
        api.answer("DELETE", path, {"gracePeriodSeconds": 0})
    for number in range(6):
        pinned = pod(f"pinned-{number}", pod_spec(nodeName=eater.name))
        pinned["metadata"]["namespace"] = list(TEAMS)[number % 2]
        api.create(pinned)
    api.create(pod("lives", pod_spec(nodeName=nodes[1].name)))
    wait_until(lambda: sum(each["status"].get("phase") == "Failed" for each in pods(api)) == 6, lambda: phases(api))
    wait_until(lambda: any(each["status"].get("phase") == "Running" for each in pods(api)), lambda: phases(api), 60)
    assert findings(api, datetime.now(UTC)) == []


def test_the_kubelet_tells_who_has_which_device_as_the_exporter_does(nodes: RealNodes) -> None:
    api, node = Api(nodes.cluster.administrator), nodes[1]
    api.create(pod("holds-two", pod_spec(gpus=2, nodeName=node.name)))
    path = "/api/v1/namespaces/team-a/pods/holds-two"
    wait_until(lambda: api.get(path)["status"].get("phase") == "Running", lambda: phases(api), 60)
    told = {device.id: device.health for device in read(api.get(path)).devices}
    with urllib.request.urlopen(node.page_url, timeout=10) as page:
        labelled = set(re.findall(r'UUID="([^"]+)"[^}]*pod="holds-two"', page.read().decode()))
    assert set(told) == labelled and len(told) == 2
    assert set(told.values()) == {"Healthy"}
