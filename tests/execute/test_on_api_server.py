"""Volcano's Commands and Kueue's Workloads through the executor on a real API server, which checks every write: fields
by their definitions, versions, uids, dry runs, and the Remediations themselves."""

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.api import Api
from cluster.control_plane import ControlPlane, ControlPlaneBuild, running
from deploy.manifests import CRDS, DEPLOY, apply, documents
from execute.living import ENFORCE, KUEUE, VOLCANO, Fleet, Killed, drive, quick
from gpuwatch.act.execute.advance import ExecutorPolicies
from gpuwatch.act.execute.executor import Executor
from gpuwatch.act.remediations import RemediationStore
from gpuwatch.facts.frameworks.objects import Object
from gpuwatch.facts.model.decision import ActionKind, Mode
from gpuwatch.facts.model.remediation import ObjectRef, Phase, Remediation
from gpuwatch.sources.kube.live import api_client
from gpuwatch.sources.kube.live_writer import LiveWriter
from gpuwatch.sources.store import StoreError
from gpuwatch.sources.store.api_form import to_api
from parts.processes import wait_until
from store.remediation_stores import NODE_REMEDIATIONS, let_go, remediation

DEFINITIONS = Path(__file__).parents[1] / "cluster" / "crds"
COMMANDS = ("bus.volcano.sh/v1alpha1", "Command")
ONLY_RELEASES = replace(ENFORCE, modes={ActionKind.RELEASE_GANG: Mode.ENFORCE})


class OnServer:
    """A real API server as the fleet's cluster: what the simulated controllers and kubelets write goes there too."""

    def __init__(self, api: Api, writer: LiveWriter) -> None:
        self._api, self._writer = api, writer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)

    def put(self, object_: Object) -> Object:
        meta = object_["metadata"]
        resource = self._api.resource(object_["apiVersion"], object_["kind"])
        path = f"{resource.path(meta.get('namespace', ''))}/{meta['name']}"
        found = self._api.answer("GET", path)
        if not found.ok:
            return self._api.create(_valid(object_))
        stored: Object = found.json()
        binding = object_["kind"] == "Pod" and object_["spec"].get("nodeName") and "nodeName" not in stored["spec"]
        if binding:
            target = {"kind": "Node", "name": object_["spec"]["nodeName"]}
            made = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": meta["name"]}, "target": target}
            assert self._api.answer("POST", f"{path}/binding", made).ok
        elif object_["kind"] != "Pod":
            spec = {**stored, "spec": object_["spec"]}
            answer = self._api.answer("PUT", path, spec)
            assert answer.ok, answer.text
        body = {**self._api.get(path), "status": object_.get("status", {})}
        answer = self._api.answer("PUT", f"{path}/status", body)
        assert answer.ok, answer.text
        return self._api.get(path)

    def remove(self, ref: ObjectRef) -> None:
        resource = self._api.resource(ref.api_version, ref.kind)
        path = f"{resource.path(ref.namespace)}/{ref.name}"
        assert self._api.answer("DELETE", path, {"gracePeriodSeconds": 0}).ok


def _valid(object_: Object) -> Object:
    """With what the server asks of every such object."""
    made = copy.deepcopy(object_)
    for name in ("uid", "resourceVersion", "generation"):
        made["metadata"].pop(name, None)
    container = {"name": "main", "image": "example.org/main:1"}
    if made["kind"] == "Pod":
        made["spec"] = {"containers": [container]}
    elif made["apiVersion"] == "batch/v1":
        made["spec"]["template"] = {"spec": {"containers": [container], "restartPolicy": "Never"}}
    return made


class ServedFleet(Fleet):
    """One whose owners have the uids that the server gave them."""

    served: OnServer

    def __post_init__(self) -> None:
        super().__post_init__()
        for index in range(self.nodes):
            for _ in range(2):  # a new Node is tainted by the server as not ready
                self.served.put(self.node(f"n{index}"))
        self.cluster = self.served  # type: ignore[assignment]

    def owner(self, kind: str, name: str, gpus: int, pods: int = 1, node: str = "n0", **spec: Any) -> None:
        super().owner(kind, name, gpus, 0, node, **spec)
        self.size[name] = (gpus, pods)
        for _ in range(pods):
            self._pod(name, node)

    def _all(self, api_version: str, kind: str) -> list[Object]:
        return list(self.cluster.objects(api_version, kind, "" if kind == "Node" else "ml"))

    def _owner(self, name: str) -> Object:
        found = (self.cluster.get(ObjectRef(api, "Job", name, "ml")) for api in ("batch/v1", VOLCANO))
        return next(item for item in found if item is not None)


@pytest.fixture(scope="module")
def plane(control_plane_build: ControlPlaneBuild) -> Iterator[ControlPlane]:
    """One of its own: others' tests ask what a cluster without Kueue and Volcano is."""
    with running(control_plane_build) as started:
        yield started


@pytest.fixture
def api(plane: ControlPlane) -> Iterator[Api]:
    found = Api(plane.administrator)
    apply(found, documents(CRDS))
    for file in ("volcano.yaml", "kueue.yaml"):
        apply(found, yaml.safe_load_all((DEFINITIONS / file).read_text(encoding="utf-8")))
    for name in ("ml", "gpuwatch"):
        apply(found, [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}])
    yield found
    emptied(found)


def emptied(api: Api) -> None:
    for path in ("/apis/gpuwatch.dev/v1alpha1/namespaces/ml/remediations", NODE_REMEDIATIONS):
        let_go(api, path)
    for path in (
        "/api/v1/nodes/n0",
        "/api/v1/nodes/n1",
        *(
            f"{base}/namespaces/ml/{name}"
            for base, name in (
                ("/api/v1", "pods"),
                ("/apis/batch/v1", "jobs"),
                (f"/apis/{VOLCANO}", "jobs"),
                (f"/apis/{KUEUE}", "workloads"),
                ("/apis/scheduling.volcano.sh/v1beta1", "podgroups"),
                ("/apis/bus.volcano.sh/v1alpha1", "commands"),
            )
        ),
    ):
        answer = api.answer("DELETE", path, {"gracePeriodSeconds": 0, "propagationPolicy": "Background"})
        assert answer.ok or answer.status_code == 404, answer.text


class Served:
    """A fleet on the server, and processes that come and go. account: kubeconfig of what gpuwatch does; '' is the
    administrator's, as for all others."""

    def __init__(self, api: Api, kubeconfig: Path, kind: str, account: Path | None = None) -> None:
        self.client = api_client(account or kubeconfig)
        self.writes = 0
        self.kill_at = 0
        writer = LiveWriter(self.client, lease_check=self._lease_check)
        plain = LiveWriter(api_client(kubeconfig))
        ServedFleet.served = OnServer(api, plain)
        self.fleet = ServedFleet(nodes=2, idle={"chat"})
        self.fleet.owner("Volcano" if kind == "volcano" else "Job", "chat", 4, pods=2)
        if kind == "kueue":
            self.fleet.queue("chat")
        self.fleet.settle()
        self.before = self.stands()
        self.store = RemediationStore(writer, "gpuwatch")
        self.people = RemediationStore(plain, "gpuwatch")
        self.people.resume()
        policies = ExecutorPolicies(ONLY_RELEASES, quick(notice_period_seconds=60))
        rehearsal = LiveWriter(self.client, dry_run=True)
        source = self.fleet.read_exporters
        self.executor = Executor(self.store, writer, rehearsal, self.fleet.view, lambda _: None, policies, source)

    def _lease_check(self) -> None:
        self.writes += 1
        if self.writes == self.kill_at:
            raise Killed

    def drive(self, hours: float) -> None:
        drive(self.fleet, self.executor, hours, least_seconds=180)

    def only(self) -> Remediation:
        (found,) = self.people.all()
        return found

    def stands(self) -> dict[str, object]:
        """What runs, and what there is of ours."""
        self.fleet.settle()
        job = self.fleet.find("chat")
        return {
            "running": sum(pod["status"]["phase"] == "Running" for pod in self.fleet.pods("chat")),
            "annotations": job["metadata"].get("annotations") or {},
            "spec": job["spec"],
            "commands": self.fleet.cluster.objects(*COMMANDS, "ml"),
            "state": job["status"].get("state"),
        }


@pytest.mark.parametrize("kind", ["volcano", "kueue"])
def test_released_and_undone_on_a_real_server(api: Api, plane: ControlPlane, kind: str) -> None:
    served = Served(api, plane.administrator, kind)
    assert len(served.fleet.propose(served.executor)) == 1
    served.drive(0.6)
    assert (served.only().phase, served.only().verified) == (Phase.IN_EFFECT, {"released": True}), served.only()
    assert served.fleet.pods("chat") == []
    served.people.ask_undo(served.only().id)
    served.drive(0.5)
    assert served.only().phase is Phase.UNDONE
    assert served.stands() == served.before


@pytest.mark.parametrize("kind", ["volcano", "kueue"])
def test_released_and_undone_under_its_own_account_with_its_roles_and_guardrails(
    control_plane_build: ControlPlaneBuild, kind: str
) -> None:
    with running(control_plane_build) as own:
        api = Api(own.administrator)
        for file in ("volcano.yaml", "kueue.yaml"):
            apply(api, yaml.safe_load_all((DEFINITIONS / file).read_text(encoding="utf-8")))
        apply(api, [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}}])
        apply(api, documents(DEPLOY / "base"))
        for name in ("suggest", "enforce-release"):
            apply(api, documents(DEPLOY / "roles" / f"{name}.yaml"))
        account = own.service_account("gpuwatch", "gpuwatch")
        remediations = "/apis/gpuwatch.dev/v1alpha1/noderemediations?dryRun=All"
        forged = {"apiVersion": "gpuwatch.dev/v1alpha1", "kind": "NodeRemediation", "metadata": {"name": "x"}}
        forged["spec"] = {"proposal": to_api(remediation().proposal)}
        wait_until(lambda: api.answer("POST", remediations, forged).status_code == 403, lambda: "no policy counts")
        wait_until(lambda: Api(account).answer("POST", remediations, forged).ok, lambda: "it may not propose")
        pods = "/api/v1/namespaces/ml/pods/any"
        wait_until(lambda: Api(account).answer("GET", pods).status_code == 404, lambda: "its role does not count")
        served = Served(api, own.administrator, kind, account)
        assert len(served.fleet.propose(served.executor)) == 1
        served.drive(0.6)
        assert (served.only().phase, served.only().verified) == (Phase.IN_EFFECT, {"released": True}), served.only()
        served.people.ask_undo(served.only().id)
        served.drive(0.5)
        assert served.only().phase is Phase.UNDONE
        assert served.stands() == served.before
        served.executor.due(served.fleet.now)
        path = f"/apis/gpuwatch.dev/v1alpha1/namespaces/ml/remediations/{served.only().name}"
        assert "finalizers" not in api.get(path)["metadata"]  # its own account may take it off


@pytest.mark.parametrize("kind", ["volcano", "kueue"])
def test_a_deleted_release_is_undone_and_then_gone_on_a_real_server(api: Api, plane: ControlPlane, kind: str) -> None:
    served = Served(api, plane.administrator, kind)
    served.fleet.propose(served.executor)
    served.drive(0.6)
    path = f"/apis/gpuwatch.dev/v1alpha1/namespaces/ml/remediations/{served.only().name}"
    assert api.answer("DELETE", path).ok
    assert served.only().undo_asked  # it is there still
    served.drive(0.5)
    assert served.people.all() == ()
    assert api.answer("GET", path).status_code == 404
    assert served.stands() == served.before


def test_what_reaches_out_of_its_namespace_is_never_acted_on(api: Api, plane: ControlPlane) -> None:
    """Somebody who may create Remediations in one Namespace copies an approved one into theirs."""
    apply(api, [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "theirs"}}])
    served = Served(api, plane.administrator, "kueue")
    (made,) = served.fleet.propose(served.executor)
    genuine = api.get(f"/apis/gpuwatch.dev/v1alpha1/namespaces/ml/remediations/{made.name}")
    let_go(api, "/apis/gpuwatch.dev/v1alpha1/namespaces/ml/remediations")
    path = "/apis/gpuwatch.dev/v1alpha1/namespaces/theirs/remediations"
    forged = {**genuine, "metadata": {"name": made.name}, "spec": {**genuine["spec"], "approved": True}}
    objects = [{**each, "namespace": "theirs"} for each in genuine["spec"]["proposal"]["objects"]]
    proposal = {**genuine["spec"]["proposal"], "namespace": "theirs", "objects": objects}  # its Pods are others'
    for name, spec in ((made.name, forged["spec"]), ("other", {"proposal": proposal, "approved": True})):
        answer = api.answer("POST", path, {**forged, "metadata": {"name": name}, "spec": spec})
        assert answer.ok, answer.text
    writes = served.writes
    assert served.executor.due(served.fleet.now) == ()
    assert len(served.store.gaps) == 2
    for name in (made.name, "other"):
        with pytest.raises(StoreError, match="cannot be decoded"):
            served.executor.run_once(f"theirs/{name}", served.fleet.now)
    served.drive(0.6)
    assert served.writes == writes
    assert served.stands() == served.before
    let_go(api, path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["volcano", "kueue"])
def test_killed_before_each_write_and_undone_on_a_real_server(api: Api, plane: ControlPlane, kind: str) -> None:
    """Of the store as well as of the cluster; what is before one write is after the one before it. Every third, since
    each is a life of a few seconds: in memory it is every one."""
    for at in range(1, 90, 3):
        served = Served(api, plane.administrator, kind)
        served.kill_at = at
        try:
            served.fleet.propose(served.executor)
            served.drive(0.5)
        except Killed:
            pass
        killed, served.kill_at = served.writes >= at, 0
        if not served.people.all():
            served.fleet.propose(served.executor)
        served.people.ask_undo(served.only().id)
        served.drive(1)
        assert served.only().phase in (Phase.UNDONE, Phase.REJECTED), (at, served.only().history)
        assert served.stands() == served.before, (at, served.only().history)
        emptied(api)
        if not killed:
            assert at > 15
            return
    raise AssertionError("There were more writes than were tried.")
