"""Everything that is shipped, applied to a living control plane; what the account may then do, and what it may not."""

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest

from cluster.api import Api, Object
from cluster.control_plane import ControlPlane, ControlPlaneBuild, running
from deploy.manifests import DEPLOY, apply, documents
from gpuwatch.act.remediations import RemediationStore
from gpuwatch.facts.frameworks.keys import DEGRADED, REMEDIATION, TAINT
from gpuwatch.facts.model.remediation import ObjectRef, Pause, Phase
from gpuwatch.facts.model.telemetry import GapKind
from gpuwatch.sources.kube.live import LiveCluster, api_client
from gpuwatch.sources.kube.live_writer import LiveWriter
from gpuwatch.sources.kube.writer import Failure, PatchKind, WriteError
from gpuwatch.sources.store import StoreError
from gpuwatch.sources.store.checkpoints import Checkpoints
from gpuwatch.sources.store.store import Store
from gpuwatch.sources.store.workload_profiles import publish
from parts.processes import wait_until
from store.remediation_stores import of_team, remediation
from store.values import advice, book, key

TEAM = "team-a"
NODE = ObjectRef("v1", "Node", "gpu-1")
POD = ObjectRef("v1", "Pod", "worker", TEAM)
JOB = ObjectRef("batch/v1", "Job", "train", TEAM)
DEPLOYMENT = ObjectRef("apps/v1", "Deployment", "chat", TEAM)
LEASE = ObjectRef("coordination.k8s.io/v1", "Lease", "gpuwatch", "gpuwatch")
PAUSE = ObjectRef("v1", "ConfigMap", "gpuwatch-pause", "gpuwatch")
RULE: Object = {
    "apiVersion": "resource.k8s.io/v1beta2",
    "kind": "DeviceTaintRule",
    "metadata": {"name": "gpuwatch-1", "annotations": {REMEDIATION: "x"}},
    "spec": {
        "deviceSelector": {"driver": "gpu.example.com", "pool": "gpu-1", "device": "gpu-0"},
        "taint": {"key": "gpuwatch.dev/degraded", "value": "xid", "effect": "NoSchedule"},
    },
}
MARKED: Object = {"metadata": {"annotations": {REMEDIATION: "x"}}}
NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def living(control_plane_build: ControlPlaneBuild) -> Iterator[ControlPlane]:
    """One of its own: what is applied here would stand in the way of others' tests."""
    with running(control_plane_build, alive=True) as started:
        yield started


@pytest.fixture(scope="module")
def administrator(living: ControlPlane) -> Api:
    api = Api(living.administrator)
    container = {"name": "main", "image": "worker"}
    template = {
        "metadata": {"labels": {"app": "x"}},
        "spec": {"containers": [container], "restartPolicy": "Never"},
    }
    served = {"metadata": {"labels": {"app": "chat"}}, "spec": {"containers": [container]}}
    apply(
        api,
        [
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": NODE.name},
                "status": {"allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110"}},
            },
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM}},
        ],
    )
    room = {"status": {"allocatable": {"cpu": "64", "memory": "512Gi", "pods": "110"}}}
    api.answer("PATCH", f"/api/v1/nodes/{NODE.name}/status", room, content_type="application/merge-patch+json")
    account = f"/api/v1/namespaces/{TEAM}/serviceaccounts/default"
    wait_until(lambda: api.answer("GET", account).ok, lambda: "no account was made")
    apply(
        api,
        [
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": POD.name, "namespace": TEAM},
                "spec": {"containers": [container]},
            },
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"name": JOB.name, "namespace": TEAM},
                "spec": {"template": template},
            },
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": DEPLOYMENT.name, "namespace": TEAM},
                "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "chat"}}, "template": served},
            },
        ],
    )
    return api


@pytest.fixture(scope="module")
def deployed(administrator: Api, living: ControlPlane) -> Path:
    """Kubeconfig of the controller's account in mode observe, once its rights count."""
    apply(administrator, documents(DEPLOY / "base"))
    account = living.service_account("gpuwatch", "gpuwatch")
    counted(account, "/apis/coordination.k8s.io/v1/namespaces/gpuwatch/leases/gpuwatch")  # its Role
    return counted(account, "/apis/gpuwatch.dev/v1alpha1/noderemediations")  # its ClusterRole


def counted(kubeconfig: Path, path: str, method: str = "GET") -> Path:
    """A new binding counts a moment later."""
    api = Api(kubeconfig)
    wait_until(
        lambda: api.answer(method, path, None if method == "GET" else {}).status_code != 403,
        lambda: f"{method} {path} stays forbidden",
    )
    return kubeconfig


@pytest.fixture(scope="module")
def writer(deployed: Path) -> Iterator[LiveWriter]:
    with api_client(deployed) as client:
        yield LiveWriter(client)


@pytest.fixture(scope="module")
def store(writer: LiveWriter) -> RemediationStore:
    return RemediationStore(writer, "gpuwatch")


def kubectl(living: ControlPlane, *arguments: str) -> None:
    found = shutil.which("kubectl")
    if found is None:
        pytest.skip("kubectl is missing: install it to see what its ways of applying do")
    done = subprocess.run(
        [found, f"--kubeconfig={living.administrator}", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def refused(do: object, *arguments: object, **named: object) -> bool:
    """Whether the API server said that it is not allowed, and nothing else went wrong."""
    try:
        do(*arguments, **named)  # type: ignore[operator]
    except WriteError as error:
        assert error.failure is Failure.FORBIDDEN, error
        return True
    except StoreError as error:
        # By its role, or by a policy of base/admission.yaml: its role lets it patch a Remediation for the finalizer.
        # Of two that deny one request (gpuwatch-decides-nothing, gpuwatch-decisions) the server names either.
        assert "Grant the verb" in str(error) or "ValidatingAdmissionPolicy 'gpuwatch-deci" in str(error), error
        return True
    return False


def write_to_node(writer: LiveWriter) -> None:
    writer.patch(NODE, {"metadata": {"annotations": {"gpuwatch.dev/remediation": "x"}}})


def suspend(writer: LiveWriter) -> None:
    writer.patch(JOB, {**MARKED, "spec": {"suspend": True}})


# Mode observe. The order of this file is that of the modes: each adds a role.


def test_two_replicas_run_and_keep_to_the_strictest_pod_standard(administrator: Api, deployed: Path) -> None:
    def ready() -> int:
        status = administrator.get("/apis/apps/v1/namespaces/gpuwatch/deployments/gpuwatch")["status"]
        return int(status.get("readyReplicas", 0))

    def said() -> str:
        events = administrator.get("/api/v1/namespaces/gpuwatch/events")["items"]
        return str([event["message"] for event in events])

    wait_until(lambda: ready() == 2, said)
    # A Pod that does not keep to it would have been refused.
    bad = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "root", "namespace": "gpuwatch"},
        "spec": {"containers": [{"name": "main", "image": "x"}]},
    }
    assert administrator.answer("POST", "/api/v1/namespaces/gpuwatch/pods?dryRun=All", bad).status_code == 403
    (budget,) = administrator.get("/apis/policy/v1/namespaces/gpuwatch/poddisruptionbudgets")["items"]
    wait_until(
        lambda: (
            administrator.get("/apis/policy/v1/namespaces/gpuwatch/poddisruptionbudgets/" + budget["metadata"]["name"])[
                "status"
            ].get("currentHealthy")
            == 2
        ),
        lambda: "the budget does not count the replicas",
    )


def test_the_report_alone_can_be_applied_beside_it(administrator: Api, deployed: Path) -> None:
    apply(administrator, documents(DEPLOY / "report"))
    apply(administrator, documents(DEPLOY / "optional" / "network-policy.yaml"))
    job = administrator.get("/apis/batch/v1/namespaces/gpuwatch/cronjobs/gpuwatch-report")["spec"]["jobTemplate"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        **job["spec"]["template"],
        "metadata": {"name": "report", "namespace": "gpuwatch"},
    }
    answer = administrator.answer("POST", "/api/v1/namespaces/gpuwatch/pods?dryRun=All", pod)
    assert answer.ok, answer.text


def test_reading_finds_nothing_forbidden(deployed: Path, store: RemediationStore) -> None:
    cluster = LiveCluster(api_client(deployed)).read(datetime.now(UTC))
    assert cluster.known
    assert [gap for gap in cluster.gaps if gap.kind is GapKind.REFUSED] == []
    assert store.all() == ()
    assert store.get("nobody") is None
    assert store.paused() == Pause()


def test_the_state_and_the_profiles_are_its_own_to_write(deployed: Path, writer: LiveWriter) -> None:
    mine = key(0)
    here = replace(mine, workload=f"Job/{TEAM}/{JOB.name}")
    of_team = replace(book(), profiles={here: replace(book().profiles[mine], key=here)})
    for _ in range(2):  # the second goes on from the first
        state = Store(Checkpoints(writer, "gpuwatch"))
        state.save_book(replace(of_team, until=of_team.until + timedelta(hours=1)))
        state.save_book(of_team)
    assert Store(Checkpoints(writer, "gpuwatch")).load_book() == (of_team, ())
    assert publish(writer, of_team, [advice(here)]) == ()
    (shown,) = writer.objects("gpuwatch.dev/v1alpha1", "WorkloadProfile", TEAM)
    assert shown["status"]["recommendation"]["target"].endswith("2g.20gb")
    assert publish(writer, replace(of_team, profiles={})) == ()
    assert writer.objects("gpuwatch.dev/v1alpha1", "WorkloadProfile", TEAM) == ()
    with pytest.raises(StoreError, match="Grant the verb"):
        Store(Checkpoints(writer, TEAM))


def test_observe_writes_to_nobody(writer: LiveWriter, store: RemediationStore) -> None:
    assert refused(store.create, remediation())
    assert refused(writer.event, NODE, at=NOW, reason="Remediation", action="Notify", note="x")
    assert refused(write_to_node, writer)
    assert refused(writer.patch, NODE, {"status": {}}, kind=PatchKind.STRATEGIC, subresource="status")
    assert refused(writer.create, RULE)
    assert refused(writer.evict, POD)
    assert refused(suspend, writer)
    assert refused(writer.delete, POD)
    assert refused(store.pause, "gpuwatch", "a storm", NOW)
    secret = ObjectRef("v1", "Secret", "any", "gpuwatch")
    assert refused(writer.get, secret)
    assert refused(writer.get, ObjectRef("v1", "ConfigMap", "gpuwatch-settings", "gpuwatch"))


def test_it_keeps_its_lease_and_no_other(writer: LiveWriter) -> None:
    lease: Object = {
        "apiVersion": LEASE.api_version,
        "kind": LEASE.kind,
        "metadata": {"name": LEASE.name, "namespace": LEASE.namespace},
        "spec": {"holderIdentity": "gpuwatch-0"},
    }
    writer.create(lease)
    writer.patch(LEASE, {"spec": {"holderIdentity": "gpuwatch-1"}})
    held = writer.get(LEASE)
    assert held is not None
    assert held["spec"]["holderIdentity"] == "gpuwatch-1"
    assert refused(writer.get, replace(LEASE, name="other"))
    assert refused(writer.create, {**lease, "metadata": {"name": "gpuwatch", "namespace": TEAM}})


def test_the_pause_is_read_at_once_and_no_way_of_applying_it_ends_one(
    administrator: Api, living: ControlPlane, store: RemediationStore
) -> None:
    path = f"/api/v1/namespaces/gpuwatch/configmaps/{PAUSE.name}"
    merge = "application/merge-patch+json"
    paused = {"data": {"paused": "true", "reason": "maintenance"}}
    assert administrator.answer("PATCH", path, paused, content_type=merge).ok
    assert store.paused() == Pause(paused=True, reason="maintenance")
    apply(administrator, documents(DEPLOY / "base" / "pause.yaml"))
    assert store.paused().paused  # applying the manifests again ends no pause
    file, folder = str(DEPLOY / "base" / "pause.yaml"), str(DEPLOY / "base")
    for arguments in (("-f", file), ("--server-side", "-f", file), ("--server-side", "-k", folder)):
        for _ in ("first", "again"):
            kubectl(living, "apply", "--force-conflicts" if "-k" in arguments else "--validate=true", *arguments)
            assert store.paused() == Pause(paused=True, reason="maintenance"), arguments
    (shipped,) = documents(DEPLOY / "base" / "pause.yaml")
    replaced = administrator.answer("PUT", path, shipped)  # kubectl replace, helm upgrade --force-replace
    assert 'to end it, write paused: \\"false\\"' in replaced.text
    assert store.paused() == Pause(paused=True, reason="maintenance")
    assert administrator.answer("DELETE", path).ok
    assert "is missing" in store.paused().reason
    kubectl(living, "apply", "-f", file)
    assert administrator.answer("PATCH", path, {"data": {"paused": "false"}}, content_type=merge).ok
    assert store.paused() == Pause()


# Mode suggest


def test_suggest_keeps_proposals_and_says_them_and_decides_nothing(
    administrator: Api, deployed: Path, writer: LiveWriter, store: RemediationStore
) -> None:
    apply(administrator, documents(DEPLOY / "roles" / "suggest.yaml"))
    counted(deployed, "/apis/gpuwatch.dev/v1alpha1/noderemediations?dryRun=All", "POST")
    for wanted in (remediation(attempts=1), of_team(attempts=1)):
        created = store.create(wanted)
        stored = store.save(replace(created, phase=Phase.EXPIRED))
        assert store.get(created.id) == stored
    for _ in range(2):
        writer.event(NODE, at=NOW, reason="RemediationScheduled", action="Notify", note="tomorrow")
    for at in (remediation().id, of_team().id):
        assert refused(store.approve, at, "gpuwatch")
        assert refused(store.reject, at)
        assert refused(store.ask_undo, at)
    assert refused(write_to_node, writer)
    assert refused(suspend, writer)
    assert refused(writer.evict, POD)
    assert store.forget_final(NOW, at_most=0) == 2


# Mode enforce, one kind of action after the other


def test_enforcing_taints_writes_to_nodes_alone(administrator: Api, deployed: Path, writer: LiveWriter) -> None:
    apply(administrator, documents(DEPLOY / "roles" / "enforce-taint.yaml"))
    counted(deployed, f"/api/v1/nodes/{NODE.name}")
    write_to_node(writer)
    ready = {"type": "GPUDegraded", "status": "True", "reason": "Xid", "message": "XID 79"}
    writer.patch(NODE, {"status": {"conditions": [ready]}}, kind=PatchKind.STRATEGIC, subresource="status")
    rule = writer.create(RULE)
    assert [each["metadata"]["name"] for each in writer.objects(RULE["apiVersion"], RULE["kind"])] == ["gpuwatch-1"]
    writer.delete(ObjectRef(RULE["apiVersion"], RULE["kind"], rule["metadata"]["name"]))
    assert refused(writer.delete, NODE)
    assert refused(suspend, writer)
    assert refused(writer.evict, POD)


def test_guardrails_leave_it_its_own_taint_and_annotations(
    administrator: Api, deployed: Path, writer: LiveWriter
) -> None:
    apply(administrator, documents(DEPLOY / "roles" / "enforce-taint.yaml"))
    counted(deployed, f"/api/v1/nodes/{NODE.name}")
    foreign = [{"key": "example.com/maintenance", "effect": "NoSchedule"}]
    own = [{"key": DEGRADED, "value": "xid", "effect": "NoSchedule"}]
    merge = "application/merge-patch+json"
    theirs = {"spec": {"taints": foreign}, "metadata": {"annotations": {"example.com/note": "x"}}}
    assert administrator.answer("PATCH", f"/api/v1/nodes/{NODE.name}", theirs, content_type=merge).ok

    def held(change: Object) -> str:
        """What the guardrail says against it."""
        try:
            writer.patch(NODE, change)
        except WriteError as error:
            return error.message
        return ""

    other = (f"value {number}" for number in count())  # each is a change, until none is taken any more
    wait_until(
        lambda: "nothing of metadata.annotations but" in held({"metadata": {"annotations": {"a.com/b": next(other)}}}),
        lambda: "it does not count",
    )
    assert "nothing of spec but taints" in held({"spec": {"unschedulable": True}})
    assert "only together with its annotations" in held({"spec": {"taints": [*foreign, *own]}})
    marks = {"metadata": {"annotations": {REMEDIATION: "y", TAINT: "{}"}}}
    assert held({**marks, "spec": {"taints": [*foreign, *own]}}) == ""
    assert "no taint but its own" in held({"spec": {"taints": own}})
    assert "no taint but its own" in held({"spec": {"taints": [*foreign, {**foreign[0], "key": "other.com/x"}]}})
    assert held({"spec": {"taints": foreign}}) == ""
    assert held({"metadata": {"annotations": {REMEDIATION: "y/1"}}}) == ""
    assert held({"metadata": {"annotations": {REMEDIATION: None}}}) == ""
    for value in ("y", None):
        assert "nothing of metadata.annotations but" in held({"metadata": {"annotations": {"example.com/note": value}}})
    assert "nothing of metadata.annotations but" in held({"metadata": {"annotations": {"example.com/other": "y"}}})
    assert administrator.answer(
        "PATCH", f"/api/v1/nodes/{NODE.name}", {"spec": {"taints": None}}, content_type=merge
    ).ok


def test_enforcing_releases_writes_to_owners_alone(administrator: Api, deployed: Path, writer: LiveWriter) -> None:
    apply(administrator, documents(DEPLOY / "roles" / "enforce-release.yaml"))
    counted(deployed, f"/apis/apps/v1/namespaces/{TEAM}/deployments/{DEPLOYMENT.name}")
    suspend(writer)
    writer.patch(DEPLOYMENT, {**MARKED, "spec": {"replicas": 0}})

    def held(run: Object) -> str:
        """What the guardrail says against having Pods run so."""
        try:
            writer.patch(DEPLOYMENT, {"spec": {"template": {"spec": run}}})
        except WriteError as error:
            return error.message
        return ""

    other = count(40)  # each is a change, until none is taken any more
    wait_until(
        lambda: "nothing of spec.template but metadata" in held({"terminationGracePeriodSeconds": next(other)}),
        lambda: "it does not count",
    )
    assert "nothing of spec.template but metadata" in held({"priorityClassName": "system-node-critical"})
    restarted = {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "x"}}}
    writer.patch(DEPLOYMENT, {"spec": {"template": restarted}})
    assert writer.objects("autoscaling/v2", "HorizontalPodAutoscaler", TEAM) == ()
    assert refused(writer.evict, POD)
    assert refused(writer.delete, JOB)
    assert refused(writer.delete, POD)
    assert refused(writer.patch, POD, {"metadata": {"labels": {"a": "b"}}})
    pods = writer.objects("v1", "Pod", TEAM)
    for owner in (owner for pod in pods for owner in pod["metadata"].get("ownerReferences", ())):
        writer.get(ObjectRef(owner["apiVersion"], owner["kind"], owner["name"], TEAM))


def test_enforcing_evictions_evicts_and_deletes_nothing(administrator: Api, deployed: Path, writer: LiveWriter) -> None:
    apply(administrator, documents(DEPLOY / "roles" / "enforce-evict.yaml"))
    counted(deployed, f"/api/v1/namespaces/{TEAM}/pods/{POD.name}/eviction?dryRun=All", "POST")
    found = writer.get(POD)
    assert found is not None
    assert refused(writer.patch, POD, {"metadata": {"labels": {"a": "b"}}})
    writer.patch(POD, {"metadata": {"annotations": {"gpuwatch.dev/notice": "looked at again"}}})
    writer.evict(replace(POD, uid=found["metadata"]["uid"]))
    wait_until(lambda: writer.get(POD) is None, lambda: "the Pod was not evicted")
    assert refused(writer.delete, JOB)
    assert refused(writer.delete, NODE)
