"""Who may do what with gpuwatch's own objects, on a living control plane: rights by scope, and admission."""

import contextlib
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cluster.api import Api, Object
from cluster.control_plane import ControlPlane, ControlPlaneBuild, running
from deploy.manifests import DEPLOY, apply, documents
from gpuwatch.act.execute.executor import Executor
from gpuwatch.act.remediations import RemediationStore
from gpuwatch.app.cli.main import cli
from gpuwatch.facts.model.remediation import Pause, Phase, Remediation, Turn
from gpuwatch.sources.kube.live import api_client
from gpuwatch.sources.kube.live_writer import LiveWriter
from gpuwatch.sources.store import StoreError
from gpuwatch.sources.store.api_form import to_api
from parts.processes import wait_until
from store.remediation_stores import (
    JOB,
    MERGE,
    NODE,
    TEAM,
    gang_proposal,
    namespace,
    of_team,
    path_of,
    proposal,
    remediation,
)

OTHER, GOING = "team-b", "team-c"
GROUP = "rbac.authorization.k8s.io"
ANA = f"system:serviceaccount:{TEAM}:ana"
PLATFORM = "system:serviceaccount:platform:pia"
NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
BASE = "/apis/gpuwatch.dev/v1alpha1"

pytestmark = pytest.mark.cluster


def account(space: str, name: str) -> Object:
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": space}}


def binding(kind: str, role: str, space: str, name: str, within: str = "") -> Object:
    """Of a ServiceAccount to a ClusterRole (or a Role of `within`), in one Namespace or everywhere."""
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "RoleBinding" if within else "ClusterRoleBinding",
        "metadata": {"name": f"{name}-{role}", **({"namespace": within} if within else {})},
        "roleRef": {"apiGroup": GROUP, "kind": kind, "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": space}],
    }


@pytest.fixture(scope="module")
def living(control_plane_build: ControlPlaneBuild) -> Iterator[ControlPlane]:
    """One of its own, with the controllers that put ClusterRoles together and take Namespaces apart."""
    with running(control_plane_build, alive=True) as started:
        yield started


@pytest.fixture(scope="module")
def administrator(living: ControlPlane) -> Api:
    """Everything is applied, and counts."""
    api = Api(living.administrator)
    spaces = map(namespace, (TEAM, OTHER, GOING, "platform"))
    base = [each for each in documents(DEPLOY / "base") if each["kind"] != "Deployment"]
    roles = [each for name in ("suggest", "people") for each in documents(DEPLOY / "roles" / f"{name}.yaml")]
    apply(api, [*spaces, *base, *roles, account(TEAM, "ana"), account(TEAM, "vic"), account("platform", "pia")])
    apply(
        api,
        [
            binding("ClusterRole", "edit", TEAM, "ana", TEAM),
            binding("ClusterRole", "view", TEAM, "vic", TEAM),
            binding("ClusterRole", "gpuwatch-node-approver", "platform", "pia"),
            binding("Role", "gpuwatch-pauser", "platform", "pia", "gpuwatch"),
        ],
    )
    names = [each["metadata"]["name"] for each in base if each["kind"] == "ValidatingAdmissionPolicy"]
    policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"

    def checked() -> bool:
        """The server has looked at each; its warnings about types would be bugs here."""
        found = [api.get(f"{policies}/{name}") for name in names]
        return all("typeChecking" in (each.get("status") or {}) for each in found)

    wait_until(checked, lambda: f"{api.get(policies)}")
    warned = {each["metadata"]["name"]: each["status"]["typeChecking"] for each in api.get(policies)["items"]}
    assert warned == {key: {} for key in warned}
    bad = {"apiVersion": "gpuwatch.dev/v1alpha1", "kind": "NodeRemediation", "metadata": {"name": "bad"}}
    bad["spec"] = {"proposal": to_api(proposal())}
    path = f"{BASE}/noderemediations?dryRun=All"
    wait_until(lambda: "only gpuwatch creates" in api.answer("POST", path, bad).text, lambda: "no policy counts")
    return api


def user(living: ControlPlane, space: str, name: str, path: str) -> Path:
    """Kubeconfig of a ServiceAccount, once it may read what lies there."""
    kubeconfig = living.service_account(space, name)
    api = Api(kubeconfig)
    wait_until(lambda: api.answer("GET", path).ok, lambda: api.answer("GET", path).text)
    return kubeconfig


@pytest.fixture(scope="module")
def ana(living: ControlPlane, administrator: Api) -> Path:
    """Who may edit one team's Namespace, as any of its people may, and knows nothing of gpuwatch's roles."""
    return user(living, TEAM, "ana", f"{BASE}/namespaces/{TEAM}/remediations")


@pytest.fixture(scope="module")
def platform(living: ControlPlane, administrator: Api) -> Path:
    return user(living, "platform", "pia", f"{BASE}/noderemediations")


@pytest.fixture(scope="module")
def controller(living: ControlPlane, administrator: Api) -> Path:
    kubeconfig = user(living, "gpuwatch", "gpuwatch", f"{BASE}/noderemediations")
    api = Api(kubeconfig)
    path = f"{BASE}/noderemediations?dryRun=All"
    wait_until(lambda: api.answer("POST", path, {}).status_code != 403, lambda: api.answer("POST", path, {}).text)
    return kubeconfig


@contextlib.contextmanager
def opened(kubeconfig: Path, **options: Any) -> Iterator[RemediationStore]:
    with api_client(kubeconfig) as client:
        yield RemediationStore(LiveWriter(client), "gpuwatch", **options)


@pytest.fixture(scope="module")
def store(controller: Path) -> Iterator[RemediationStore]:
    """gpuwatch's own."""
    with opened(controller) as found:
        yield found


numbers = count(1)


def made(store: RemediationStore, like: Remediation) -> Remediation:
    """A new one, made by gpuwatch."""
    return store.create(replace(like, name=f"{like.name}-{next(numbers)}"))


def of_other() -> Remediation:
    return of_team(proposal=gang_proposal(OTHER))


def gpuwatch(kubeconfig: Path, *arguments: str) -> Result:
    everything = [*arguments, "--kubeconfig", str(kubeconfig)]
    return CliRunner(env={"COLUMNS": "200"}).invoke(cli, everything, catch_exceptions=False)


def refusal(api: Api, method: str, path: str, body: object, content_type: str = "application/json") -> str:
    """What the server says against it; '' where it took it."""
    answer = api.answer(method, path, body, content_type=content_type)
    if answer.ok:
        return ""
    assert answer.status_code in (403, 422), answer.text
    said: str = answer.json()["message"]
    return said


def patched(api: Api, found: Remediation, spec: Object) -> str:
    return refusal(api, "PATCH", path_of(found.id), {"spec": spec}, MERGE)


# Rights by scope


def test_who_edits_a_namespace_decides_there_and_nowhere_else(store: RemediationStore, ana: Path) -> None:
    mine, theirs, node = made(store, of_team()), made(store, of_other()), made(store, remediation())
    listed = gpuwatch(ana, "history", "-n", TEAM, "-o", "json")
    assert listed.exit_code == 0, listed.stderr
    document = json.loads(listed.stdout)
    assert mine.name in [each["name"] for each in document["remediations"]]
    assert {each["proposal"]["namespace"] for each in document["remediations"]} == {TEAM}
    assert document["pause"] is None  # which is not theirs to see
    assert [gap["what"] for gap in document["gaps"]] == ["pause"]
    done = gpuwatch(ana, "approve", mine.name, "-n", TEAM)
    assert done.exit_code == 0, done.stderr
    found = store.get(mine.id)
    assert found is not None
    assert (found.approved, found.approved_by) == (True, ANA)
    assert gpuwatch(ana, "undo", mine.name, "-n", TEAM).exit_code == 1  # it is only proposed
    for arguments in (("-n", OTHER), ()):
        refused = gpuwatch(ana, "approve", theirs.name, *arguments)
        assert refused.exit_code == 1
        assert "Grant the verb" in refused.stderr
    for command in (("history",), ("approve", mine.name)):
        assert "-n NAMESPACE" in " ".join(gpuwatch(ana, *command).stderr.split())
    api = Api(ana)
    for other in (theirs, node):
        assert "cannot patch" in patched(api, other, {"approved": True})
        assert "cannot get" in refusal(api, "GET", path_of(other.id), None)
        kept = store.get(other.id)
        assert kept is not None
        assert not kept.approved


def test_who_views_a_namespace_sees_and_decides_nothing(store: RemediationStore, living: ControlPlane) -> None:
    vic = user(living, TEAM, "vic", f"{BASE}/namespaces/{TEAM}/remediations")
    mine = made(store, of_team())
    assert gpuwatch(vic, "history", mine.name, "-n", TEAM).exit_code == 0
    assert "cannot patch" in patched(Api(vic), mine, {"approved": True})
    assert Api(vic).answer("GET", f"{BASE}/namespaces/{TEAM}/workloadprofiles").ok


def test_who_decides_about_nodes_decides_about_no_team(store: RemediationStore, platform: Path) -> None:
    node, theirs = made(store, remediation()), made(store, of_team())
    listed = gpuwatch(platform, "history")
    assert listed.exit_code == 0, listed.stderr
    assert node.name in listed.stdout
    assert theirs.name not in listed.stdout
    done = gpuwatch(platform, "approve", node.name)
    assert done.exit_code == 0, done.stderr
    found = store.get(node.id)
    assert found is not None
    assert (found.approved, found.approved_by) == (True, PLATFORM)
    assert "cannot patch" in patched(Api(platform), theirs, {"approved": True})
    paused = gpuwatch(platform, "pause", "--reason", "enough")
    assert paused.exit_code == 0, paused.stderr
    assert store.paused() == Pause(paused=True, since=store.paused().since, by=PLATFORM, reason="enough")
    assert gpuwatch(platform, "resume").exit_code == 0


# What admission refuses, whatever RBAC allows


def forged(like: Remediation, **spec: object) -> Object:
    meta = {"name": "forged", **({"namespace": like.namespace} if like.namespace else {})}
    return {
        "apiVersion": "gpuwatch.dev/v1alpha1",
        "kind": "Remediation" if like.namespace else "NodeRemediation",
        "metadata": meta,
        "spec": {"proposal": to_api(like.proposal), **spec},
    }


def creation(api: Api, object_: Object) -> str:
    plural = f"{object_['kind'].lower()}s"
    space = object_["metadata"].get("namespace", "")
    path = f"{BASE}/namespaces/{space}/{plural}" if space else f"{BASE}/{plural}"
    return refusal(api, "POST", f"{path}?dryRun=All", object_)


def test_nobody_else_makes_what_gpuwatch_acts_on_or_remembers(administrator: Api) -> None:
    profile = {"workload": "Job/team-a/train", "container": "main", "gpuModel": "H100"}
    for kind, spec in (("WorkloadProfile", profile), ("Checkpoint", {"schema": 1})):
        body = {"apiVersion": "gpuwatch.dev/v1alpha1", "kind": kind, "spec": spec}
        metadata = {"name": "forged", "namespace": TEAM}
        assert "only gpuwatch creates" in creation(administrator, {**body, "metadata": metadata})
    for like in (of_team(), remediation()):
        assert "only gpuwatch creates" in creation(administrator, forged(like))


def at(like: Remediation, space: str) -> Object:
    """Laid into another Namespace than the one that it is about."""
    found = forged(like)
    found["metadata"]["namespace"] = space
    return found


FOREIGN = [
    (at(of_team(), OTHER), "for the Namespace that it lies in"),
    (forged(of_team(proposal=gang_proposal(objects=(JOB, replace(JOB, namespace=OTHER))))), "objects of its own"),
    (forged(of_team(proposal=gang_proposal(objects=(JOB, NODE)))), "objects of its own"),
    (forged(of_team(proposal=gang_proposal(objects=()))), "objects of its own"),
    (forged(of_team(proposal=gang_proposal(pods=("team-aa/train-0",)))), "Pods of its own"),
    (forged(remediation(proposal=proposal(objects=(JOB,)))), "nothing that lies in a Namespace"),
    (forged(remediation(proposal=proposal(pods=("team-a/train-0",)))), "nothing that lies in a Namespace"),
    (at(remediation(), TEAM) | {"kind": "Remediation"}, "spec.proposal.action: Unsupported value"),
    ({**forged(of_team()), "kind": "NodeRemediation", "metadata": {"name": "x"}}, "action: Unsupported value"),
]


@pytest.mark.parametrize(("body", "said"), FOREIGN, ids=[str(number) for number in range(len(FOREIGN))])
def test_gpuwatch_itself_proposes_nothing_that_reaches_elsewhere(controller: Path, body: Object, said: str) -> None:
    assert said in creation(Api(controller), body)


@pytest.mark.parametrize(
    "decided",
    [{"approved": True}, {"rejected": True}, {"undo": True}, {"findingCorrect": True}, {"approvedBy": "ana"}],
    ids=lambda each: next(iter(each)),
)
def test_gpuwatch_itself_makes_none_that_is_decided(controller: Path, decided: Object) -> None:
    for like in (of_team(), remediation()):
        assert creation(Api(controller), forged(like)) == ""
        assert "people decide" in creation(Api(controller), forged(like, **decided))


def test_gpuwatch_itself_decides_nothing_even_where_rbac_would_let_it(
    administrator: Api, controller: Path, store: RemediationStore
) -> None:
    mine, node = made(store, of_team()), made(store, remediation())
    too_much = [
        binding("ClusterRole", "gpuwatch-approver", "gpuwatch", "gpuwatch", TEAM),
        binding("ClusterRole", "gpuwatch-node-approver", "gpuwatch", "gpuwatch"),
    ]
    apply(administrator, too_much)
    try:
        for found in (mine, node):
            for decision in ({"approved": True}, {"rejected": True}, {"undo": True}):
                wait_until(
                    lambda: "cannot patch" not in patched(Api(controller), found, decision),  # noqa: B023
                    lambda: "the binding does not count",
                )
                assert "gpuwatch decides nothing" in patched(Api(controller), found, decision)
            with pytest.raises(StoreError, match="gpuwatch decides nothing"):
                store.approve(found.id, "")
            assert store.get(found.id) == found
    finally:
        for each in too_much:
            administrator.delete(each)


def test_nobody_decides_in_anothers_name(store: RemediationStore, ana: Path, administrator: Api) -> None:
    api, mine = Api(ana), made(store, of_team())
    for by in ("bo", PLATFORM, "system:serviceaccount:gpuwatch:gpuwatch"):
        assert f"the name that you have here, {ANA}" in patched(api, mine, {"approved": True, "approvedBy": by})
    told = gpuwatch(ana, "approve", mine.name, "-n", TEAM, "--by", "bo")
    assert told.exit_code == 1
    assert "the name that you have here" in told.stderr
    assert patched(api, mine, {"approved": True, "approvedBy": ANA}) == ""
    # Others go on deciding beside it, and leave the name alone.
    assert patched(administrator, mine, {"undo": True}) == ""
    assert patched(administrator, mine, {"approved": False}) == ""
    # With the name that is left there an approval would be the first one's again.
    assert "the name that you have here, administrator" in patched(administrator, mine, {"approved": True})
    assert patched(administrator, mine, {"approved": True, "approvedBy": ""}) == ""
    assert patched(api, mine, {"approvedBy": ANA}) == ""


def test_nobody_changes_a_proposal_or_a_status(store: RemediationStore, ana: Path, administrator: Api) -> None:
    for found in (made(store, of_team()), made(store, remediation())):
        for change in ({"gpus": 9}, {"pods": ["team-b/train-0"]}, {"mode": "Enforce"}, {"namespace": OTHER}):
            assert "the proposal cannot be changed" in patched(administrator, found, {"proposal": change})
        status = {"status": {"phase": "Succeeded"}}
        path = f"{path_of(found.id)}/status"
        assert "status is written by gpuwatch alone" in refusal(administrator, "PATCH", path, status, MERGE)
        # Beside a decision a status is not taken: the server leaves it out.
        assert refusal(administrator, "PATCH", path_of(found.id), {**status, "spec": {"undo": True}}, MERGE) == ""
        kept = store.get(found.id)
        assert kept is not None
        assert (kept.phase, kept.undo_asked) == (Phase.PROPOSED, True)
        labelled = {"metadata": {"labels": {"team": "a"}, "annotations": {"note": "x"}}}
        assert refusal(administrator, "PATCH", path_of(found.id), labelled, MERGE) == ""
    mine = made(store, of_team())
    said = refusal(Api(ana), "PATCH", f"{path_of(mine.id)}/status", {"status": {"phase": "Succeeded"}}, MERGE)
    assert "cannot patch" in said


# What the cluster itself does with any object goes on


def gone(store: RemediationStore, found: Remediation) -> Callable[[], bool]:
    return lambda: store.get(found.id) is None


def test_a_namespace_that_is_deleted_takes_its_own_along(store: RemediationStore, administrator: Api) -> None:
    found = made(store, of_team(proposal=gang_proposal(GOING)))
    administrator.delete(namespace(GOING))
    path = f"/api/v1/namespaces/{GOING}"

    def went() -> bool:
        a_controller_runs(store, found)
        return administrator.answer("GET", path).status_code == 404

    wait_until(went, lambda: str(administrator.get(path)))
    assert gone(store, found)()


def a_controller_runs(store: RemediationStore, deleted: Remediation) -> None:
    """What was deleted is taken back and let go, by gpuwatch's own account. Others are left alone: some were
    approved, and the cluster is read before their owners are told."""

    def unasked(*_: object) -> Any:
        raise AssertionError("nothing of it was written")

    executor = Executor(store, store._writer, store._writer, unasked, unasked)
    for _ in range(2):
        if deleted.id in executor.due(NOW):
            executor.run_once(deleted.id, NOW)


def test_the_garbage_collector_takes_what_is_owned(store: RemediationStore, administrator: Api) -> None:
    found = made(store, of_team())
    owner: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner", "namespace": TEAM}}
    uid = administrator.create(owner)["metadata"]["uid"]
    ref = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid, "blockOwnerDeletion": True}
    owned = {"metadata": {"ownerReferences": [ref]}}
    assert refusal(administrator, "PATCH", path_of(found.id), owned, MERGE) == ""
    path = f"/api/v1/namespaces/{TEAM}/configmaps/owner"
    assert administrator.answer("DELETE", path, {"propagationPolicy": "Foreground"}).ok

    def collected() -> bool:
        a_controller_runs(store, found)
        return gone(store, found)()

    wait_until(collected, lambda: "it is not collected")
    wait_until(lambda: administrator.answer("GET", path).status_code == 404, lambda: "its owner stays")


def test_the_garbage_collector_may_orphan_what_is_owned(store: RemediationStore, administrator: Api) -> None:
    # The collector takes a dependent that it had not seen yet when the owner was orphaned, so it gets another try.
    assert any(_orphaned(store, administrator, f"orphaning-{attempt}") for attempt in range(5))


def _orphaned(store: RemediationStore, administrator: Api, name: str) -> bool:
    """Whether a Remediation outlived its owner and lost the reference to it; False where it was collected."""
    found = made(store, of_team())
    owner: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": TEAM}}
    uid = administrator.create(owner)["metadata"]["uid"]
    owned = {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid}]}}
    assert refusal(administrator, "PATCH", path_of(found.id), owned, MERGE) == ""
    path = f"/api/v1/namespaces/{TEAM}/configmaps/{name}"
    assert administrator.answer("DELETE", path, {"propagationPolicy": "Orphan"}).ok

    def settled() -> bool:
        answer = administrator.answer("GET", path_of(found.id))
        metadata = answer.json()["metadata"]
        return "deletionTimestamp" in metadata or "ownerReferences" not in metadata

    wait_until(settled, lambda: str(administrator.get(path_of(found.id))["metadata"]))
    return "deletionTimestamp" not in administrator.get(path_of(found.id))["metadata"]


def test_a_finalizer_holds_and_lets_go(store: RemediationStore, administrator: Api) -> None:
    found = made(store, remediation())
    held = {"metadata": {"finalizers": ["example.com/hold"]}}
    assert refusal(administrator, "PATCH", path_of(found.id), held, MERGE) == ""
    assert administrator.answer("DELETE", path_of(found.id)).ok
    assert store.get(found.id) is not None
    assert refusal(administrator, "PATCH", path_of(found.id), {"metadata": {"finalizers": None}}, MERGE) == ""
    wait_until(gone(store, found), lambda: "it stays")


def test_kubectl_waits_for_its_end(store: RemediationStore, ana: Path) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("there is no kubectl here")
    found = made(store, of_team())
    command = [kubectl, f"--kubeconfig={ana}", "-n", TEAM, "wait", "--for=condition=Finished", f"rem/{found.name}"]
    early = subprocess.run([*command, "--timeout=1s"], capture_output=True, text=True, check=False)
    assert early.returncode != 0
    assert "timed out" in early.stderr
    with subprocess.Popen([*command, "--timeout=60s"], stdout=subprocess.PIPE, text=True) as waiting:
        turn = Turn(NOW, Phase.EXPIRED, "It was not approved in time.")
        store.save(replace(found, phase=Phase.EXPIRED, history=(turn,)))
        said, _ = waiting.communicate(timeout=60)
    assert waiting.returncode == 0
    assert "condition met" in said
