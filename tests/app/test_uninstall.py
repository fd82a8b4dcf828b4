"""`gpuwatch uninstall` on a real API server, as a person who may act as gpuwatch's account."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from app.commands import gpuwatch
from cluster.api import Api, Object
from cluster.control_plane import ControlPlane, ControlPlaneBuild, running
from deploy.manifests import CRDS, DEPLOY, apply, documents
from gpuwatch.act.execute.requests import write
from gpuwatch.act.execute.steps import RELEASED
from gpuwatch.act.remediations import RemediationStore
from gpuwatch.app.cli import uninstall
from gpuwatch.app.cli.main import cli
from gpuwatch.facts.frameworks import keys, kueue
from gpuwatch.facts.frameworks.objects import Patch, ref_of
from gpuwatch.facts.frameworks.release import Release, release
from gpuwatch.facts.model.remediation import ObjectRef, Phase, Step, StepKind, Turn
from gpuwatch.sources.kube.live import api_client
from gpuwatch.sources.kube.live_writer import LiveWriter
from parts.processes import wait_until
from store.remediation_stores import (
    NODE_REMEDIATIONS,
    REMEDIATIONS,
    TEAM,
    gang_proposal,
    namespace,
    of_team,
    proposal,
    remediation,
)

NOW = datetime.now(UTC)
LEASE = "/apis/coordination.k8s.io/v1/namespaces/gpuwatch/leases"
JOB_PATH = f"/apis/batch/v1/namespaces/{TEAM}/jobs/train"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{TEAM}/deployments"
KUEUE_CRDS = Path(__file__).parents[1] / "cluster" / "crds" / "kueue.yaml"
FOREIGN_CRDS = Path(__file__).parents[1] / "cluster" / "crds" / "volcano.yaml"
FOREIGN = {"key": "example.com/theirs", "value": "x", "effect": "NoSchedule"}


@pytest.fixture(scope="module")
def plane(control_plane_build: ControlPlaneBuild) -> Iterator[ControlPlane]:
    with running(control_plane_build) as started:
        api = Api(started.administrator)
        apply(api, [each for each in documents(DEPLOY / "base") if each["kind"] not in ("Deployment",)])
        for role in ("suggest", "enforce-taint", "enforce-release", "enforce-evict", "enforce-make-room"):
            apply(api, documents(DEPLOY / "roles" / f"{role}.yaml"))
        apply(api, [namespace(TEAM)])
        yield started


@pytest.fixture
def tainted(plane: ControlPlane) -> Iterator[Api]:
    """Two Nodes with our taint: of one the record is there, of the other it is gone."""
    api = Api(plane.administrator)
    with api_client(plane.administrator) as client:
        client.set_default_header("Impersonate-User", "system:serviceaccount:gpuwatch:gpuwatch")
        store = RemediationStore(LiveWriter(client), "gpuwatch")
        for name in ("held", "lost"):
            api.answer("DELETE", f"/api/v1/nodes/{name}")
            taint = {"key": keys.DEGRADED, "value": "xid", "effect": "NoSchedule"}
            told = {"remediation": f"taint-{name}", "expires": (NOW + timedelta(days=3)).isoformat(), **taint}
            annotations = {keys.REMEDIATION: f"taint-{name}", keys.TAINT: json.dumps(told)}
            made = api.create(
                {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "metadata": {"name": name, "annotations": annotations},
                    "spec": {"taints": [FOREIGN, taint]},
                }
            )
            if name == "held":
                ref = ObjectRef("v1", "Node", name, uid=made["metadata"]["uid"])
                parameters = {"value": "xid", "effect": "NoSchedule", "expires": told["expires"]}
                step = Step(kind=StepKind.TAINT, target=ref, parameters=parameters, begun_at=NOW, done_at=NOW)
                wanted = remediation("taint-held", proposal=proposal("node/held", NOW, objects=(ref,), nodes=("held",)))
                kept = store.create(wanted)
                turn = Turn(NOW, Phase.IN_EFFECT, "tainted")
                store.save(replace(kept, phase=Phase.IN_EFFECT, steps=(step,), step=1, history=(turn,)))
    yield api


def run(plane: ControlPlane, *arguments: str) -> Result:
    command = ("uninstall", "--kubeconfig", plane.administrator, "--timeout", "60", "-o", "json")
    return gpuwatch(*command, *arguments)


def uninstalled(plane: ControlPlane, *arguments: str) -> None:
    """It ran to its end, and nothing is left."""
    result = run(plane, "--yes", *arguments)
    assert result.exit_code == 0, (result.stdout, result.stderr)
    assert json.loads(result.stdout)["left"] == []


def ours(api: Api) -> list[Any]:
    """What there is of gpuwatch on Nodes, and its Remediations."""
    nodes: list[Object] = [api.get(f"/api/v1/nodes/{name}") for name in ("held", "lost")]
    keyed = [key for each in nodes for key in each["metadata"].get("annotations", {}) if key.startswith(keys.PREFIX)]
    taints = [taint for each in nodes for taint in each["spec"].get("taints", ()) if taint["key"] == keys.DEGRADED]
    return [*keyed, *taints, *api.get(NODE_REMEDIATIONS)["items"]]


def is_clean(api: Api) -> None:
    assert ours(api) == []
    for name in ("held", "lost"):
        assert FOREIGN in api.get(f"/api/v1/nodes/{name}")["spec"]["taints"]


def test_it_says_what_would_go_and_asks_before_it_goes(plane: ControlPlane, tainted: Api) -> None:
    before = ours(tainted)
    told = run(plane, "--dry-run")
    assert told.exit_code == 0
    assert json.loads(told.stdout)["left"] == ["taint-held (InEffect)", "Node/lost"]
    refused = CliRunner().invoke(cli, ["uninstall", "--kubeconfig", str(plane.administrator)], input="n\n")
    assert refused.exit_code != 0
    assert ours(tainted) == before


def test_nothing_of_ours_is_left_and_what_is_others_stays_and_it_may_be_run_again(
    plane: ControlPlane, tainted: Api
) -> None:
    for _ in range(2):
        uninstalled(plane)
        is_clean(tainted)
    with api_client(plane.administrator) as client:
        assert RemediationStore(LiveWriter(client), "gpuwatch").paused().paused  # nothing begins again


def patch(api: Api, path: str, body: Object) -> None:
    answer = api.answer("PATCH", path, body, content_type="application/merge-patch+json")
    assert answer.ok, answer.text


def kept_of(found: Object) -> list[object]:
    """What stands on an object but for its status and what the server counts."""
    return [found["spec"], found["metadata"].get("annotations"), found["metadata"].get("labels")]


@pytest.fixture
def suspended(plane: ControlPlane) -> Iterator[tuple[Api, Object]]:
    """A Job that a Remediation in effect holds suspended, and the Job as it was before."""
    api = Api(plane.administrator)
    container = {"name": "main", "image": "example.org/main:1"}
    made = api.create(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "train", "namespace": TEAM, "annotations": {"example.com/note": "x"}},
            "spec": {
                "parallelism": 2,
                "template": {"spec": {"containers": [container], "restartPolicy": "Never"}},
            },
        }
    )
    released(plane, made, "release-train")
    yield api, made
    api.answer("DELETE", JOB_PATH, {"propagationPolicy": "Background"})


def released(plane: ControlPlane, made: Object, name: str) -> None:
    """By a Remediation that is in effect."""
    ref = ref_of(made)
    with api_client(plane.administrator) as client:
        client.set_default_header("Impersonate-User", "system:serviceaccount:gpuwatch:gpuwatch")
        writer = LiveWriter(client)
        store = RemediationStore(writer, "gpuwatch")
        kept = store.create(of_team(name, proposal=gang_proposal(objects=(ref,))))
        done = release(made, remediation=kept.name, at=NOW)
        assert isinstance(done, Release)
        for each in done.writes:
            assert isinstance(each, Patch)
            write(writer, each)
        step = Step(kind=StepKind.RELEASE, target=ref, begun_at=NOW, done_at=NOW)
        turn = Turn(NOW, Phase.IN_EFFECT, "released")
        acted = replace(kept, phase=Phase.IN_EFFECT, steps=(step,), step=1, saved=done.saved, history=(turn,))
        store.save(replace(acted, verified={RELEASED: True}))


def test_a_job_that_is_held_suspended_is_resumed_as_it_was(plane: ControlPlane, suspended: tuple[Api, Object]) -> None:
    api, before = suspended
    held = api.get(JOB_PATH)
    assert held["spec"]["suspend"] is True
    assert held["metadata"]["annotations"].keys() >= {keys.REMEDIATION, keys.SAVED_STATE}
    (record,) = api.get(REMEDIATIONS)["items"]
    assert record["metadata"]["finalizers"] == [keys.FINALIZER]
    uninstalled(plane)
    assert kept_of(api.get(JOB_PATH)) == kept_of(before)
    assert api.get(REMEDIATIONS)["items"] == []


def definitions(api: Api) -> set[str]:
    """Names of our definitions."""
    found = api.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")["items"]
    return {each["metadata"]["name"] for each in found if each["spec"]["group"] == "gpuwatch.dev"}


def test_definitions_stay_without_crds_and_go_with_it_after_the_undo_and_it_may_be_run_again(
    plane: ControlPlane, suspended: tuple[Api, Object]
) -> None:
    api, before = suspended
    shipped = {each["metadata"]["name"] for each in documents(CRDS)}
    assert definitions(api) == shipped
    other = next(documents(FOREIGN_CRDS))
    apply(api, [other])
    try:
        uninstalled(plane, "--crds")
        assert kept_of(api.get(JOB_PATH)) == kept_of(before)
        wait_until(lambda: definitions(api) == set(), lambda: f"there are still {definitions(api)}")
        assert api.get(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{other['metadata']['name']}")
        uninstalled(plane, "--crds")
    finally:
        api.delete(other)
        apply(api, documents(CRDS))
    uninstalled(plane)
    assert definitions(api) == shipped


def test_a_workload_of_kueue_that_is_held_inactive_is_active_again_as_it_was(plane: ControlPlane) -> None:
    api = Api(plane.administrator)
    (definition,) = (each for each in documents(KUEUE_CRDS) if each["spec"]["names"]["kind"] == "Workload")
    apply(api, [definition])
    served = [each["name"] for each in definition["spec"]["versions"] if each["served"]]
    version = next(each for each in kueue.WORKLOAD.versions if each in served)
    path = f"/apis/kueue.x-k8s.io/{version}/namespaces/{TEAM}/workloads"
    wait_until(lambda: api.answer("GET", path).ok, lambda: f"{path} is not served")
    container = {"name": "main", "image": "example.org/main:1"}
    template = {"spec": {"containers": [container], "restartPolicy": "Never"}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "name": "queued", "uid": "x", "controller": True}
    made = api.create(
        {
            "apiVersion": f"kueue.x-k8s.io/{version}",
            "kind": "Workload",
            "metadata": {"name": "job-queued", "namespace": TEAM, "ownerReferences": [job]},
            "spec": {
                "active": True,
                "queueName": "team",
                "podSets": [{"name": "main", "count": 1, "template": template}],
            },
        }
    )
    released(plane, made, "release-queued")
    assert api.get(f"{path}/job-queued")["spec"]["active"] is False
    uninstalled(plane)
    assert kept_of(api.get(f"{path}/job-queued")) == kept_of(made)
    assert api.get(REMEDIATIONS)["items"] == []
    # Without its record it is named.
    marks = {keys.REMEDIATION: "release-lost", keys.SAVED_STATE: "[]"}
    patch(api, f"{path}/job-queued", {"metadata": {"annotations": marks}})
    (left,) = json.loads(run(plane, "--yes").stdout)["left"]
    assert left.startswith(f"Workload/{TEAM}/job-queued was changed by release-lost, which is gone")
    api.delete(definition)


BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"


def test_it_acts_as_whom_the_bindings_name_and_asks_where_they_name_none_or_several(
    plane: ControlPlane, tainted: Api
) -> None:
    bindings = [each for each in tainted.get(BINDINGS)["items"] if keys.ACCOUNT in each["metadata"].get("labels", {})]
    before = ours(tainted)
    other = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "other", "labels": {keys.ACCOUNT: "mode"}},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "ServiceAccount", "namespace": "gpuwatch", "name": "gpu-keeper"}],
    }
    try:
        for each in bindings:
            patch(tainted, f"{BINDINGS}/{each['metadata']['name']}", {"metadata": {"labels": {keys.ACCOUNT: None}}})
        none = run(plane, "--yes")
    finally:
        for each in bindings:
            labels = {"metadata": {"labels": each["metadata"]["labels"]}}
            patch(tainted, f"{BINDINGS}/{each['metadata']['name']}", labels)
    tainted.create(other)
    try:
        several = run(plane, "--yes")
        assert ours(tainted) == before
        chosen = run(plane, "--yes", "--account", "gpuwatch:gpuwatch")
    finally:
        tainted.delete(other)
    for result, named in ((none, "no ServiceAccount"), (several, "gpuwatch:gpu-keeper, gpuwatch:gpuwatch")):
        assert result.exit_code == 1
        assert f"name {named}. Say --account NAMESPACE:NAME" in " ".join(result.stderr.split())
    assert chosen.exit_code == 0, (chosen.stdout, chosen.stderr)
    is_clean(tainted)


@pytest.fixture
def orphaned(plane: ControlPlane) -> Iterator[Api]:
    """Two Deployments with the mark of a Remediation that is gone; `scaled` also has the state that a release saved."""
    api = Api(plane.administrator)
    container = {"name": "main", "image": "example.org/main:1"}
    saved = json.dumps([{"path": "/spec/replicas", "before": "2", "after": "0"}])
    for name, more in (("noted", {}), ("scaled", {keys.SAVED_STATE: saved})):
        annotations = {"example.com/note": "x", keys.REMEDIATION: "release-lost", **more}
        api.create(
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": name, "namespace": TEAM, "annotations": annotations},
                "spec": {
                    "replicas": 0 if more else 2,
                    "selector": {"matchLabels": {"app": name}},
                    "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}},
                },
            }
        )
    yield api
    for name in ("noted", "scaled"):
        api.answer("DELETE", f"{DEPLOYMENTS}/{name}", {"propagationPolicy": "Background"})


def test_a_mark_without_a_record_is_taken_back_but_what_a_lost_release_changed_is_named_and_left(
    plane: ControlPlane, orphaned: Api
) -> None:
    told = run(plane, "--dry-run")
    noted_left, scaled_left = json.loads(told.stdout)["left"]
    assert noted_left == f"Deployment/{TEAM}/noted"
    assert scaled_left.startswith(f"Deployment/{TEAM}/scaled was changed by release-lost, which is gone")
    noted, scaled = (orphaned.get(f"{DEPLOYMENTS}/{name}") for name in ("noted", "scaled"))
    done = run(plane, "--yes", "--crds")
    assert done.exit_code == 1
    (left,) = json.loads(done.stdout)["left"]
    assert left == scaled_left
    after = orphaned.get(f"{DEPLOYMENTS}/noted")
    assert after["metadata"]["annotations"] == {"example.com/note": "x"}
    assert after["spec"] == noted["spec"]
    assert kept_of(orphaned.get(f"{DEPLOYMENTS}/scaled")) == kept_of(scaled)
    assert definitions(orphaned) == {each["metadata"]["name"] for each in documents(CRDS)}  # while anything is left


class Killed(BaseException):
    """The process ends here."""


# The thread that renews the Lease is killed too, where it writes before the process has ended.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("at", [1, 2, 3, 5])
def test_killed_in_between_and_run_again_it_finishes(
    plane: ControlPlane, tainted: Api, monkeypatch: pytest.MonkeyPatch, at: int, tmp_path: Path
) -> None:
    config = tmp_path / "settings.yaml"
    # The next run waits that long for the Lease of the one that was killed, and before it looks what became of a write.
    config.write_text("{run: {lease_duration_seconds: 3}, execute: {write_timeout_seconds: 5}}")
    writes = 0
    for name in ("patch", "delete"):
        real = getattr(LiveWriter, name)

        def counted(self: LiveWriter, ref: ObjectRef, *rest: Any, _real: Any = real, **more: Any) -> Any:
            nonlocal writes
            writes += ref.kind != "Lease" and not self.dry_run
            if writes == at + 1:
                raise Killed
            return _real(self, ref, *rest, **more)

        monkeypatch.setattr(LiveWriter, name, counted)
    with pytest.raises(Killed):
        run(plane, "--yes", "--config", str(config))
    monkeypatch.undo()
    uninstalled(plane, "--config", str(config))
    is_clean(tainted)


@pytest.fixture
def frozen(plane: ControlPlane) -> Iterator[Object]:
    """The binding of a policy that lets no account change the Node `held`."""
    api = Api(plane.administrator)
    admission = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": "frozen"}}
    nodes = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["nodes"]}
    validation = {"expression": "object.metadata.name != 'held'", "message": "Nodes are frozen this week"}
    spec = {"matchConstraints": {"resourceRules": [nodes]}, "validations": [validation]}
    policy = api.create({**admission, "kind": "ValidatingAdmissionPolicy", "spec": spec})
    binding = {"policyName": "frozen", "validationActions": ["Deny"]}
    yield api.create({**admission, "kind": "ValidatingAdmissionPolicyBinding", "spec": binding})
    api.delete(policy)


def test_what_is_refused_is_told_early_the_rest_goes_and_once_it_is_repaired_nothing_is_waited_for(
    plane: ControlPlane, tainted: Api, frozen: Object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uninstall, "_REFUSED_SECONDS", 3.0)
    path, update = "/api/v1/nodes/held", {"metadata": {"labels": {"example.com/tried": "x"}}}
    merge = "application/merge-patch+json"

    def may_change() -> bool:
        return tainted.answer("PATCH", f"{path}?dryRun=All", update, content_type=merge).ok

    wait_until(lambda: not may_change(), lambda: "the policy is not in force")
    begun = time.monotonic()
    refused = run(plane, "--yes")
    assert refused.exit_code == 1
    assert time.monotonic() - begun < 40  # of the 60 that it may take
    (left,) = json.loads(refused.stdout)["left"]
    assert left.startswith("Remediation taint-held is Undoing: ")
    assert "held" in left
    assert "Nodes are frozen this week" in left
    assert keys.DEGRADED in {each["key"] for each in tainted.get(path)["spec"]["taints"]}
    assert keys.DEGRADED not in {each["key"] for each in tainted.get("/api/v1/nodes/lost")["spec"]["taints"]}
    # A controller that tried for long would wait for as long as this.
    with api_client(plane.administrator) as client:
        client.set_default_header("Impersonate-User", "system:serviceaccount:gpuwatch:gpuwatch")
        store = RemediationStore(LiveWriter(client), "gpuwatch")
        (held,) = store.all()
        store.save(replace(held, next_at=datetime.now(UTC) + timedelta(hours=1)))
    tainted.delete(frozen)
    wait_until(may_change, lambda: "the policy is still in force")
    uninstalled(plane)
    is_clean(tainted)


def test_it_ends_the_controller_where_it_is_told_its_deployment_and_its_lease_goes(
    plane: ControlPlane, tainted: Api
) -> None:
    deployments = "/apis/apps/v1/namespaces/gpuwatch/deployments"
    (deployment,) = (each for each in documents(DEPLOY / "base") if each["kind"] == "Deployment")
    apply(tainted, [deployment])
    uninstalled(plane, "--scale-down", "gpuwatch")
    is_clean(tainted)
    assert tainted.get(f"{deployments}/gpuwatch")["spec"]["replicas"] == 0
    assert tainted.answer("GET", f"{LEASE}/gpuwatch").status_code == 404
    tainted.delete(deployment)
    uninstalled(plane, "--scale-down", "gpuwatch")  # which is gone now


def test_it_does_not_act_beside_a_controller_that_leads(
    plane: ControlPlane, tainted: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uninstall, "_until", lambda *_: None)  # a leader renews for longer than anybody waits
    lead = {
        "holderIdentity": "gpuwatch-0",
        "leaseDurationSeconds": 3600,
        "renewTime": f"{NOW:%Y-%m-%dT%H:%M:%S.000000Z}",
    }
    tainted.answer("DELETE", f"{LEASE}/gpuwatch")
    metadata = {"name": "gpuwatch", "namespace": "gpuwatch"}
    tainted.create({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": lead})
    before = ours(tainted)
    result = run(plane, "--yes")
    assert result.exit_code == 1
    assert "scale deployment gpuwatch --replicas=0" in " ".join(result.stderr.split())
    assert ours(tainted) == before
    assert tainted.answer("DELETE", f"{LEASE}/gpuwatch").ok
