"""The guardrails on a real API server: under gpuwatch's own account, to which RBAC allows everything, all that the code
writes passes and all else is refused. The account has another name, in another Namespace, than deploy/ gives it."""

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml
from click.testing import CliRunner

from cluster.api import Api, Object
from cluster.control_plane import ControlPlane, ControlPlaneBuild, running
from deploy.manifests import DEPLOY, apply, documents, renamed
from frameworks.samples import SAMPLES, VOLCANO
from gpuwatch.act.execute.requests import write
from gpuwatch.app.cli.main import cli
from gpuwatch.facts.frameworks import WRITTEN, keys
from gpuwatch.facts.frameworks.framework import ReleaseRule
from gpuwatch.facts.frameworks.objects import ABSENT, key_of, parts, put, ref_of, value_at
from gpuwatch.facts.frameworks.release import Release, Restoration, release, restore, rollout
from gpuwatch.facts.model.remediation import ObjectRef
from gpuwatch.sources.kube.live import api_client
from gpuwatch.sources.kube.live_writer import LiveWriter, event_of
from gpuwatch.sources.store.api_form import to_api
from parts.processes import wait_until
from store.remediation_stores import JOB, NODE, gang_proposal, of_team, proposal, remediation
from tools.guardrails import policies

OPS, KEEPER, TEAM = "gpu-ops", "gpu-keeper", "team-a"
NAME = "release-4f2a"
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
BASE = "/apis/gpuwatch.dev/v1alpha1"
DEVICE_TAINTS = (
    "--feature-gates=DRADeviceTaints=true,DRADeviceTaintRules=true",
    "--runtime-config=resource.k8s.io/v1beta2=true",
)
MARK = {keys.REMEDIATION: NAME}
CONTAINER = {"name": "main", "image": "example.org/main:1"}

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@dataclass(frozen=True)
class Request:
    """A dry run, where the server knows one."""

    method: str
    path: str
    body: Any = None
    media_type: str = "application/json"
    dry: bool = True

    def sent(self, api: Api) -> requests.Response:
        mark = "&" if "?" in self.path else "?"
        path = f"{self.path}{mark}dryRun=All" if self.dry else self.path
        return api.answer(self.method, path, self.body, content_type=self.media_type)


@dataclass(frozen=True)
class Case:
    """policy: the one that refuses the request."""

    policy: str
    request: Request
    by_administrator: bool = False


def denied_by(answer: requests.Response) -> str:
    """The policy that refused it, or could not judge it; '' where none did."""
    if answer.status_code not in (403, 422) or "ValidatingAdmissionPolicy '" not in answer.text:
        return ""
    return str(answer.json()["message"]).split("ValidatingAdmissionPolicy '")[1].split("'")[0]


def refused(answer: requests.Response) -> bool:
    """By admission, or as what no such object may be, such as another template of a Job."""
    assert "cannot" not in answer.text or answer.status_code != 403, f"RBAC refused it: {answer.text}"
    return bool(denied_by(answer)) or answer.status_code == 422


PAGE = DEPLOY.parent / "tests" / "fixtures" / "exposition" / "dcgm49.prom"


# The cluster


@pytest.fixture(scope="module")
def plane(control_plane_build: ControlPlaneBuild) -> Iterator[ControlPlane]:
    with running(control_plane_build, flags=DEVICE_TAINTS) as started:
        yield started


def _opened(schema: Object) -> None:
    if "properties" in schema:
        schema["x-kubernetes-preserve-unknown-fields"] = True
        for each in schema["properties"].values():
            _opened(each)


def definitions() -> Iterator[Object]:
    """Of the frameworks, with status beside spec and with further fields: a patch may change all of it, as far as the
    API server goes."""
    for file in sorted((DEPLOY.parent / "tests" / "cluster" / "crds").glob("*.yaml")):
        for each in yaml.safe_load_all(file.read_text(encoding="utf-8")):
            for version in each["spec"]["versions"]:
                version.pop("subresources", None)
                _opened(version["schema"]["openAPIV3Schema"]["properties"].get("spec", {}))
            yield each
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    yield {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "nodemaintenances.nodemaintenance.medik8s.io"},
        "spec": {
            "group": "nodemaintenance.medik8s.io",
            "scope": "Cluster",
            "names": {"plural": "nodemaintenances", "kind": "NodeMaintenance", "singular": "nodemaintenance"},
            "versions": [{"name": "v1beta1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }


def installed() -> Iterator[Object]:
    """All that deploy/ has for the controller, under other names."""
    every = [*documents(DEPLOY / "base")]
    for file in sorted((DEPLOY / "roles").glob("*.yaml")):
        every += documents(file)
    yield from renamed(every, OPS, KEEPER)


def named(kind: str, name: str, namespace: str = TEAM, api_version: str = "v1", **more: Any) -> Object:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {}), **more.pop("metadata", {})}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **more}


def everything(api: Api) -> list[Object]:
    """Lets the account do all but use a Node label, so that admission alone can refuse; under another role's name."""
    groups = ["", *(group["name"] for group in api.get("/apis")["groups"] if group["name"] != "gpuwatch.dev")]
    every = {"resources": ["*"], "verbs": ["*"]}
    own = ["remediations", "noderemediations", "workloadprofiles", "checkpoints"]
    own += [f"{each}/status" for each in own]
    rbac = "rbac.authorization.k8s.io"
    rules = [{"apiGroups": groups, **every}, {"apiGroups": ["gpuwatch.dev"], "resources": own, "verbs": ["*"]}]
    return [
        named("ClusterRole", "everything", "", f"{rbac}/v1", rules=rules),
        named(
            "ClusterRoleBinding",
            "everything",
            "",
            f"{rbac}/v1",
            roleRef={"apiGroup": rbac, "kind": "ClusterRole", "name": "everything"},
            subjects=[{"kind": "ServiceAccount", "name": KEEPER, "namespace": OPS}],
        ),
    ]


POD = named("Pod", "worker", metadata={"annotations": {"example.com/note": "x"}}, spec={"containers": [CONTAINER]})
FOREIGN_TAINT = {"key": "example.com/maintenance", "effect": "NoSchedule"}
OWN_TAINT = {"key": keys.DEGRADED, "value": "xid", "effect": "NoSchedule"}
NODE_BODY = named("Node", "gpu-1", "", metadata={"labels": {"a": "b"}, "annotations": {"example.com/note": "x"}})
NODE_BODY["spec"] = {"taints": [FOREIGN_TAINT]}
RULE = named(
    "DeviceTaintRule",
    "gpuwatch-1",
    "",
    "resource.k8s.io/v1beta2",
    metadata={"annotations": MARK},
    spec={
        "deviceSelector": {"driver": "gpu.example.com", "pool": "gpu-1", "device": "gpu-0"},
        "taint": {"key": keys.DEGRADED, "value": "xid", "effect": "NoSchedule"},
    },
)
COMMAND: Object = {
    "apiVersion": "bus.volcano.sh/v1alpha1",
    "kind": "Command",
    "action": "AbortJob",
    "target": {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "v", "uid": "u-1"},
    "metadata": {
        "name": "abort",
        "namespace": TEAM,
        "annotations": MARK,
        "ownerReferences": [{"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "v", "uid": "u-1"}],
    },
}
MAINTENANCE = named(
    "NodeMaintenance", "gpuwatch-gpu-1", "", "nodemaintenance.medik8s.io/v1beta1", metadata={"annotations": MARK}
)
PAUSED = named("ConfigMap", "gpuwatch-pause", data={"paused": "true"})
CHECKPOINT = named("Checkpoint", "state", OPS, "gpuwatch.dev/v1alpha1", spec={"schema": 1})
PROFILE = named(
    "WorkloadProfile",
    "train",
    TEAM,
    "gpuwatch.dev/v1alpha1",
    spec={"workload": f"Job/{TEAM}/train", "container": "main", "gpuModel": "H100"},
)
LEASE = named("Lease", "gpuwatch", OPS, "coordination.k8s.io/v1", spec={"holderIdentity": "gpuwatch-0"})


def own_event() -> Object:
    made = event_of(ObjectRef("v1", "Node", "gpu-1"), at=NOW, reason="Released", action="Release", note="Idle.")
    return {**made, "reportingInstance": "gpuwatch-0"}


def foreign_event() -> Object:
    made = own_event()
    made["metadata"]["name"] = "another"
    return {**made, "reportingController": "example.com/other"}


def proposed(like: Any, name: str = "mine") -> Object:
    meta = {"name": name, **({"namespace": like.namespace} if like.namespace else {})}
    kind = "Remediation" if like.namespace else "NodeRemediation"
    spec = {"proposal": to_api(like.proposal)}
    return {"apiVersion": "gpuwatch.dev/v1alpha1", "kind": kind, "metadata": meta, "spec": spec}


def others() -> list[Object]:
    """One of each of many kinds that are not gpuwatch's business."""
    labels = {"matchLabels": {"app": "x"}}
    template = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [CONTAINER]}}
    once = {"spec": {"containers": [CONTAINER], "restartPolicy": "Never"}}
    served: Object = {"selector": labels, "template": template}
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "deployment"}
    batch, rbac, networks = "batch/v1", "rbac.authorization.k8s.io/v1", "networking.k8s.io/v1"
    return [
        POD,
        named("ConfigMap", "any", data={"a": "b"}),
        PAUSED,
        named("Secret", "any", stringData={"a": "b"}),
        named("Service", "any", spec={"ports": [{"port": 80}]}),
        named("ServiceAccount", "any"),
        named("ReplicationController", "any", spec={"selector": {"app": "x"}, "template": template}),
        named("ResourceQuota", "any", spec={"hard": {"pods": "1000"}}),
        named("LimitRange", "any", spec={"limits": []}),
        named("PersistentVolumeClaim", "any",
              spec={"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}),
        named("ReplicaSet", "any", api_version="apps/v1", spec=served),
        named("DaemonSet", "any", api_version="apps/v1", spec=served),
        named("CronJob", "any", api_version=batch,
              spec={"schedule": "* * * * *", "suspend": True, "jobTemplate": {"spec": {"template": once}}}),
        named("PodDisruptionBudget", "any", api_version="policy/v1", spec={"minAvailable": 1, "selector": labels}),
        named("HorizontalPodAutoscaler", "any", api_version="autoscaling/v2",
              spec={"maxReplicas": 3, "scaleTargetRef": target}),
        named("Role", "any", api_version=rbac, rules=[]),
        named("ClusterRole", "any", "", rbac, rules=[]),
        named("NetworkPolicy", "any", api_version=networks, spec={"podSelector": {}}),
        named("PriorityClass", "any", "", "scheduling.k8s.io/v1", value=1),
        named("Namespace", "any", ""),
        {**MAINTENANCE, "metadata": {"name": "of-a-person"}},
    ]  # fmt: skip


OWNERS = {sample.id: sample for sample in (*SAMPLES, VOLCANO)}


def owner(id_: str) -> Object:
    made = OWNERS[id_].named(TEAM)
    made["metadata"]["annotations"] = {"example.com/note": "x", **made["metadata"].get("annotations", {})}
    return {**made, "status": {**OWNERS[id_].status, "note": "x"}} if "." in made["apiVersion"].split("/")[0] else made


def fields_of(object_: Object) -> tuple[tuple[str, Any], ...]:
    """The fields that a release of it sets, and to what."""
    rule = WRITTEN[key_of(object_)].release
    assert isinstance(rule, ReleaseRule)
    return () if rule.commands else tuple(rule.fields(object_, NOW))


def held(object_: Object) -> Object:
    """Another one like it, that gpuwatch has released."""
    made = put(copy.deepcopy(object_), f"/metadata/annotations/{keys.REMEDIATION.replace('/', '~1')}", NAME)
    made["metadata"]["name"] += "-held"
    for path, value in fields_of(object_):
        made = put(made, path, value)
    found: Object = made
    return found


def path_of(api: Api, object_: Object) -> str:
    meta = object_["metadata"]
    resource = api.resource(object_["apiVersion"], object_["kind"])
    return f"{resource.path(meta.get('namespace', '') if resource.namespaced else '')}/{meta['name']}"


@pytest.fixture(scope="module")
def administrator(plane: ControlPlane) -> Api:
    api = Api(plane.administrator)
    apply(api, definitions())
    apply(api, [named("Namespace", TEAM, "")])
    apply(api, [each for each in installed() if each["metadata"]["name"] != "gpuwatch-creation"])
    apply(api, everything(api))
    # A user without a Namespace and a binding of nobody stop no one's writes.
    binding = copy.deepcopy(everything(api)[1])
    binding["metadata"] = {"name": "nobody", "labels": {"gpuwatch.dev/account": "mode"}}
    apply(api, [{**binding, "subjects": []}])
    person = copy.deepcopy(binding)
    person["metadata"]["name"] = "person"
    subject = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "somebody"}
    apply(api, [{**person, "subjects": [subject]}])
    api.create({**NODE_BODY, "status": {"conditions": [{"type": "Ready", "status": "True"}], "capacity": {"cpu": "8"}}})
    # The server has added the taint of a Node that is not ready.
    assert api.answer("PATCH", "/api/v1/nodes/gpu-1", {"spec": NODE_BODY["spec"]}, content_type=MERGE).ok
    made = [each for id_ in OWNERS for each in (owner(id_), held(owner(id_)))]
    made += [*others(), RULE, COMMAND, MAINTENANCE, CHECKPOINT, LEASE, own_event(), foreign_event()]
    made += [{**CHECKPOINT, "metadata": {"name": "state", "namespace": TEAM}}]
    made += [PROFILE, proposed(of_team()), proposed(remediation())]
    for each in made:
        answer = api.answer("POST", path_of(api, each).rpartition("/")[0], each)
        assert answer.ok, answer.text
    for each in (RULE, COMMAND):
        plain = copy.deepcopy(each)
        plain["metadata"] = {"name": "of-a-person", **({"namespace": TEAM} if each is COMMAND else {})}
        api.create(plain)
    apply(api, [each for each in installed() if each["metadata"]["name"] == "gpuwatch-creation"])
    return api


@pytest.fixture(scope="module")
def keeper(plane: ControlPlane, administrator: Api) -> Api:
    """gpuwatch's own account, once every policy counts."""
    api = Api(plane.service_account(OPS, KEEPER))
    wait_until(lambda: api.answer("GET", "/api/v1/nodes").ok, lambda: "its rights do not count")
    cases = {case.policy: case for case in refusals(administrator)}

    def passing() -> list[str]:
        return [
            f"{name}: {answer.status_code} {answer.text}"
            for name, case in cases.items()
            if denied_by(answer := case.request.sent(administrator if case.by_administrator else api)) != name
        ]

    wait_until(lambda: not passing(), lambda: "\n".join(passing()))
    return api


@pytest.fixture(scope="module")
def writer(plane: ControlPlane, keeper: Api) -> Iterator[LiveWriter]:
    with api_client(plane.service_account(OPS, KEEPER)) as client:
        yield LiveWriter(client)


# What is refused


def change(api: Api, object_: Object, body: Object, subresource: str = "") -> Request:
    return Request("PATCH", f"{path_of(api, object_)}{subresource}", body, MERGE)


def creation(api: Api, object_: Object) -> Request:
    return Request("POST", path_of(api, object_).rpartition("/")[0], object_)


def deletion(api: Api, object_: Object) -> Request:
    return Request("DELETE", path_of(api, object_))


def merge_to(path: str, value: object) -> Object:
    tree: Any = value
    for name in reversed(parts(path)):
        tree = {name: tree}
    found: Object = tree
    return found


def metadata_changes() -> Iterator[Object]:
    yield {"metadata": {"labels": {"team": "x"}}}
    yield {"metadata": {"finalizers": ["example.com/hold"]}}
    yield {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "any", "uid": "x"}]}}


def annotation_changes(*peoples: str) -> Iterator[Object]:
    for key in (*peoples, "example.com/other", keys.OPT_OUT, keys.MODE):
        yield {"metadata": {"annotations": {key: "y"}}}
    for key in peoples:
        yield {"metadata": {"annotations": {key: None}}}


def leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Each value in it by its path, other than the whole of what it stands in; lists as a whole."""
    if isinstance(value, dict) and value:
        for name, each in value.items():
            yield from leaves(each, f"{path}/{name.replace('~', '~0').replace('/', '~1')}")
    else:
        yield path, value


def other_than(value: object) -> object:
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case str():
            return f"{value}x"
        case list():
            return [*value, *value[:1]]
        case _:
            return {"changed": "x"}


OTHER_FIELDS = {
    "InferenceService": ["/spec/predictor/maxReplicas"],
    "Deployment": [
        "/spec/paused",
        "/spec/template/spec/priorityClassName",
        "/spec/template/metadata/labels/more",
        "/spec/template/metadata/annotations/example.com~1more",
    ],
    "Notebook": ["/spec/template/more", "/status/more"],
    "JobSet": ["/spec/managedBy"],
}
"""Fields beside those that an object has."""


def owner_refusals(api: Api, policy: str, id_: str) -> Iterator[Request]:
    made = api.get(path_of(api, owner(id_)))
    gone = api.get(path_of(api, held(owner(id_))))
    made.update(apiVersion=owner(id_)["apiVersion"], kind=owner(id_)["kind"])
    gone.update(apiVersion=made["apiVersion"], kind=made["kind"])
    for body in (*metadata_changes(), *annotation_changes("example.com/note")):
        yield change(api, made, body)
    ours = [path for path, _ in fields_of(made)]
    beside = [(path, "x") for path in OTHER_FIELDS.get(made["kind"], ())]
    if "." in made["apiVersion"].split("/")[0]:
        beside += [(f"{path.rpartition('/')[0]}/more", "x") for path in ours] + [("/spec/more", "x")]
    for path, value in (*leaves({key: made.get(key, {}) for key in ("spec", "status")}), *beside):
        builtin = path.startswith("/status") and "." not in made["apiVersion"].split("/")[0]
        if not builtin and path not in ours and value != {}:
            yield change(api, made, merge_to(path, other_than(value)))
    for path, value in fields_of(made):
        yield change(api, made, merge_to(path, value))  # without the mark
        before = value_at(made, path)
        if isinstance(value, int) and not isinstance(value, bool):
            marked: Object = {"metadata": {"annotations": MARK}, **merge_to(path, 7)}
            yield change(api, made, marked)  # up, from what it was
        if isinstance(value, str):
            yield change(api, gone, merge_to(path, "another time"))
        if value is True and before is ABSENT:
            yield change(api, made, {"metadata": {"annotations": MARK}, **merge_to(path, False)})
    if made["kind"] == "Deployment":
        restart = {"spec": {"template": {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "x"}}}}}
        yield change(api, made, restart)


def node_refusals(api: Api) -> Iterator[Case]:
    node, tainted = NODE_BODY, {"spec": {"taints": [FOREIGN_TAINT, OWN_TAINT]}}
    marks = {"metadata": {"annotations": {**MARK, keys.TAINT: "{}"}}}
    bodies: list[Object] = [
        {"metadata": {"finalizers": ["example.com/hold"]}},
        {"metadata": {"labels": {"example.com/repair": "now"}}},
        {"metadata": {"labels": {"a": "c"}}},
        {"metadata": {"labels": {"a": None}}},
        {"metadata": {"labels": {keys.POOL: "x"}}},
        *annotation_changes("example.com/note"),
        {"spec": {"unschedulable": True}},
        {"spec": {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"]}},
        {"spec": {"providerID": "x://y"}},
        tainted,
        {**marks, "spec": {"taints": [OWN_TAINT]}},
        {**marks, "spec": {"taints": None}},
        {**marks, "spec": {"taints": [{**FOREIGN_TAINT, "effect": "NoExecute"}, OWN_TAINT]}},
        {**marks, "spec": {"taints": [FOREIGN_TAINT, {**OWN_TAINT, "key": "example.com/degraded"}]}},
        {**marks, "spec": {"taints": [FOREIGN_TAINT, {**OWN_TAINT, "effect": "NoExecute"}]}},
        {"metadata": {"annotations": {keys.TAINT: "{}"}}, **tainted},
        {"metadata": {"annotations": MARK}, **tainted},
    ]
    for body in bodies:
        yield Case("gpuwatch-nodes", change(api, node, body))
    statuses: list[Object] = [
        {"metadata": {"labels": {"x": "y"}}},
        {"metadata": {"annotations": MARK}},
        {"status": {"capacity": {"nvidia.com/gpu": "0"}}},
        {"status": {"conditions": [{"type": "Ready", "status": "False"}]}},
        {"status": {"conditions": [{"type": "Another", "status": "False"}]}},
    ]
    for body in statuses:
        request = Request("PATCH", f"{path_of(api, node)}/status", body, STRATEGIC)
        yield Case("gpuwatch-node-conditions", request)


def changed(object_: Object, path: str, value: object) -> Object:
    """A new object that differs in one place."""
    found: Object = put(copy.deepcopy(object_), path, value)
    found["metadata"]["name"] += "-2"
    return found


def pod_refusals(api: Api) -> Iterator[Case]:
    """All that the server lets be changed of a Pod, but for our note."""
    bodies: list[Object] = [
        *metadata_changes(),
        *annotation_changes(),
        {"metadata": {"annotations": MARK}},
        {"spec": {"containers": [{**CONTAINER, "image": "example.org/other:1"}]}},
        {"spec": {"activeDeadlineSeconds": 1}},
    ]
    for body in bodies:
        yield Case("gpuwatch-pods", change(api, POD, body))


def own_refusals(api: Api) -> Iterator[Case]:
    """What belongs to gpuwatch, written otherwise than it writes it."""
    yield from pod_refusals(api)
    pod = f"/api/v1/namespaces/{TEAM}/pods/worker/eviction"
    eviction = named("Eviction", "worker", api_version="policy/v1")
    named_uid = {"preconditions": {"uid": "u-1"}}
    yield Case("gpuwatch-evictions", Request("POST", pod, eviction))
    hurried = {**eviction, "deleteOptions": {**named_uid, "gracePeriodSeconds": 0}}
    yield Case("gpuwatch-evictions", Request("POST", pod, hurried))
    for path, value in (
        ("/metadata/annotations", {}),
        ("/action", "TerminateJob"),
        ("/target/kind", "Queue"),
        ("/target/apiVersion", "batch/v1"),
        ("/target/uid", "u-2"),
        ("/metadata/ownerReferences", []),
    ):
        yield Case("gpuwatch-commands", creation(api, changed(COMMAND, path, value)))
    for path, value in (
        ("/metadata/annotations", {}),
        ("/spec/taint/key", "example.com/x"),
        ("/spec/taint/effect", "NoExecute"),
        ("/spec/deviceSelector", {"driver": "gpu.example.com"}),
        ("/spec/deviceSelector", {"driver": "gpu.example.com", "pool": "gpu-1"}),
    ):
        yield Case("gpuwatch-device-taints", creation(api, changed(RULE, path, value)))
    for each, policy in ((RULE, "gpuwatch-device-taints-deleted"), (COMMAND, "gpuwatch-commands-deleted")):
        theirs = copy.deepcopy(each)
        theirs["metadata"]["name"] = "of-a-person"
        yield Case(policy, deletion(api, theirs))
        yield Case("gpuwatch-other", change(api, each, {"metadata": {"labels": {"x": "y"}}}))
    event = changed(foreign_event(), "/reportingController", "example.com/other")
    yield Case("gpuwatch-events", creation(api, event))
    series = {"series": {"count": 2, "lastObservedTime": own_event()["eventTime"]}}
    bodies: list[Object] = [*metadata_changes(), *annotation_changes(), {"note": "another"}, {"type": "Warning"}]
    for body in bodies:
        yield Case("gpuwatch-events-counted", change(api, own_event(), body))
    yield Case("gpuwatch-events-counted", change(api, foreign_event(), series))
    for each in (
        changed(LEASE, "/spec/leaseTransitions", 1),
        {**LEASE, "metadata": {"name": "gpuwatch", "namespace": TEAM}},
    ):
        yield Case("gpuwatch-lease", creation(api, each))
    for body in (*metadata_changes(), *annotation_changes()):
        yield Case("gpuwatch-lease-held", change(api, LEASE, body))
        yield Case("gpuwatch-checkpoints-written", change(api, CHECKPOINT, body))
    elsewhere = {**CHECKPOINT, "metadata": {"name": "state", "namespace": TEAM}}
    yield Case("gpuwatch-checkpoints", creation(api, elsewhere))
    yield Case("gpuwatch-checkpoints", deletion(api, elsewhere))
    for like in (of_team(), remediation()):
        for body in (*metadata_changes(), *annotation_changes(), {"metadata": {"annotations": MARK}}):
            yield Case("gpuwatch-finalizers", change(api, proposed(like), body))


def authority_refusals(api: Api) -> Iterator[Case]:
    """Of admission.yaml; test_authority tells these in full."""
    mine, node = proposed(of_team()), proposed(remediation())
    for each in (proposed(of_team(), "n"), proposed(remediation(), "n"), changed(PROFILE, "/spec/container", "x")):
        yield Case("gpuwatch-creation", creation(api, each), by_administrator=True)
    yield Case("gpuwatch-status", change(api, mine, {"status": {"phase": "Failed"}}, "/status"), by_administrator=True)
    approved = {"spec": {"approved": True, "approvedBy": "bo"}}
    yield Case("gpuwatch-decisions", change(api, mine, approved), by_administrator=True)
    yield Case("gpuwatch-decides-nothing", change(api, node, {"spec": {"approved": True}}))
    yield Case("gpuwatch-proposals", creation(api, changed(mine, "/spec/approved", True)))
    for proposal_ in (
        gang_proposal(objects=(JOB, replace(JOB, namespace="team-b"))),
        gang_proposal(pods=("team-aa/train-0",)),
    ):
        yield Case("gpuwatch-namespaces", creation(api, proposed(of_team(proposal=proposal_), "n")))
    yield Case("gpuwatch-namespaces", creation(api, changed(mine, "/spec/proposal/namespace", "team-b")))
    yield Case("gpuwatch-pause", change(api, PAUSED, {"data": None}), by_administrator=True)
    of_node = proposed(remediation(proposal=proposal(objects=(NODE, JOB))), "n")
    yield Case("gpuwatch-node-proposals", creation(api, of_node))


def other_refusals(api: Api) -> Iterator[Case]:
    """Every operation on what is nobody's business of gpuwatch."""
    for each in others():
        clone = copy.deepcopy(each)
        clone["metadata"]["name"] = "gpuwatch-made"
        marked = put(clone, "/metadata/annotations", MARK)
        requests_ = [deletion(api, each), creation(api, clone)]
        if each["kind"] != "NodeMaintenance":
            requests_.append(creation(api, marked))
        if each != POD:
            requests_.append(change(api, each, {"metadata": {"labels": {"x": "y"}}}))
            requests_.append(change(api, each, {"metadata": {"annotations": MARK}}))
        for request in requests_:
            yield Case("gpuwatch-other", request)
    yield Case("gpuwatch-other", change(api, MAINTENANCE, {"spec": {"reason": "x"}}))
    for id_ in ("deployment", "statefulset"):
        yield Case("gpuwatch-other", change(api, owner(id_), {"spec": {"replicas": 0}}, "/scale"))
    for id_ in ("deployment", "job", "statefulset"):
        yield Case("gpuwatch-other", change(api, owner(id_), {"metadata": {"annotations": MARK}}, "/status"))
    for id_, sample in OWNERS.items():
        yield Case("gpuwatch-other", deletion(api, owner(id_)))
        clone = sample.named(TEAM, annotations=MARK)
        clone["metadata"]["name"] = "gpuwatch-made"
        yield Case("gpuwatch-other", creation(api, clone))
    pods = f"/api/v1/namespaces/{TEAM}/pods"
    yield Case("gpuwatch-other", Request("POST", f"{pods}/worker/exec?command=ls&stdout=true", dry=False))
    yield Case("gpuwatch-other", Request("POST", f"{pods}/worker/attach?stdout=true", dry=False))
    yield Case("gpuwatch-other", Request("DELETE", pods))  # all of them
    yield Case("gpuwatch-other", Request("PATCH", f"{pods}/worker/status", {"status": {"phase": "Failed"}}, MERGE))
    target = {"apiVersion": "v1", "kind": "Node", "name": "gpu-1"}
    bound = named("Binding", "worker", target=target)
    yield Case("gpuwatch-other", Request("POST", f"{pods}/worker/binding", bound))
    token = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    accounts = f"/api/v1/namespaces/{TEAM}/serviceaccounts"
    yield Case("gpuwatch-other", Request("POST", f"{accounts}/any/token", token))
    yield Case("gpuwatch-other", change(api, PROFILE, {"metadata": {"labels": {"x": "y"}}}))
    for each in (NODE_BODY, LEASE, own_event()):
        yield Case("gpuwatch-other", deletion(api, each))
    yield Case("gpuwatch-other", creation(api, named("Node", "gpu-9", "")))
    pause = named("ConfigMap", "gpuwatch-pause", OPS)
    yield Case("gpuwatch-other", change(api, pause, {"data": {"paused": "false"}}))


def policy_of(id_: str) -> str:
    (found,) = (
        policy.name
        for policy in policies()[:-1]
        for rule in policy.rules
        for kind in [WRITTEN[key_of(owner(id_))]]
        if (rule.group, rule.resource) == (kind.group, kind.plural)
    )
    return found


def refusals(api: Api) -> list[Case]:
    found = [Case(policy_of(id_), request) for id_ in OWNERS for request in owner_refusals(api, policy_of(id_), id_)]
    return [*found, *node_refusals(api), *own_refusals(api), *authority_refusals(api), *other_refusals(api)]


# What is meant


def meant(api: Api) -> list[Case]:
    """Requests that pass, by the policy that looks at them."""
    found = []
    for id_ in OWNERS:
        gone = api.get(path_of(api, held(owner(id_))))
        body: Object = {"metadata": {"annotations": {keys.REMEDIATION: None, keys.NOTICE: "x"}}}
        for path, _ in fields_of(owner(id_)):
            before = value_at(owner(id_), path)
            body = put(body, path, None if before is ABSENT else before)
        gone.update(apiVersion=owner(id_)["apiVersion"], kind=owner(id_)["kind"])
        found.append(Case(policy_of(id_), change(api, gone, body)))
    condition = {"type": keys.CONDITION, "status": "True", "reason": "Xid", "message": "x"}
    status = Request("PATCH", f"{path_of(api, NODE_BODY)}/status", {"status": {"conditions": [condition]}}, STRATEGIC)
    tainted = {
        "metadata": {"annotations": {**MARK, keys.TAINT: "{}"}},
        "spec": {"taints": [FOREIGN_TAINT, OWN_TAINT]},
    }
    series = {"series": {"count": 2, "lastObservedTime": own_event()["eventTime"]}}
    finalizers = {"metadata": {"finalizers": ["gpuwatch.dev/marks"]}}
    noted = {
        "metadata": {"annotations": {keys.LAST_STORM: "x"}},
        "spec": {"holderIdentity": "gpuwatch-1"},
    }
    return [
        *found,
        Case("gpuwatch-nodes", change(api, NODE_BODY, tainted)),
        Case("gpuwatch-node-conditions", status),
        Case("gpuwatch-pods", change(api, POD, {"metadata": {"annotations": {keys.NOTICE: "x"}}})),
        Case("gpuwatch-events-counted", change(api, own_event(), series)),
        Case("gpuwatch-events", creation(api, changed(own_event(), "/note", "another"))),
        Case("gpuwatch-finalizers", change(api, proposed(of_team()), finalizers)),
        Case("gpuwatch-finalizers", change(api, proposed(remediation()), finalizers)),
        Case("gpuwatch-lease-held", change(api, LEASE, noted)),
        Case("gpuwatch-checkpoints-written", change(api, CHECKPOINT, {"spec": {"schema": 2}})),
        Case("gpuwatch-checkpoints", deletion(api, CHECKPOINT)),
        Case("gpuwatch-commands", creation(api, changed(COMMAND, "/action", "ResumeJob"))),
        Case("gpuwatch-commands-deleted", deletion(api, COMMAND)),
        Case("gpuwatch-device-taints", creation(api, changed(RULE, "/spec/deviceSelector/device", "gpu-2"))),
        Case("gpuwatch-device-taints-deleted", deletion(api, RULE)),
        Case("gpuwatch-other", creation(api, changed(MAINTENANCE, "/spec", {}))),
        Case("gpuwatch-other", deletion(api, MAINTENANCE)),
        Case("gpuwatch-creation", creation(api, proposed(of_team(), "n"))),
        Case("gpuwatch-creation", creation(api, proposed(remediation(), "n"))),
        Case("gpuwatch-creation", deletion(api, proposed(remediation()))),
        Case("gpuwatch-status", change(api, proposed(of_team()), {"status": {"phase": "Failed"}}, "/status")),
    ]


def test_every_request_of_the_table_is_refused_to_gpuwatch(administrator: Api, keeper: Api) -> None:
    cases = refusals(administrator)
    assert {case.policy for case in cases} == {
        each["metadata"]["name"] for each in installed() if each["kind"] == "ValidatingAdmissionPolicy"
    }
    passed = []
    by_policy: dict[str, int] = {}
    for case in cases:
        answer = case.request.sent(administrator if case.by_administrator else keeper)
        if not refused(answer):
            passed.append(f"{case.policy}: {case.request} {answer.status_code} {answer.text[:300]}")
        by_policy[denied_by(answer)] = by_policy.get(denied_by(answer), 0) + 1
    assert passed == []
    assert by_policy.get("", 0) < len(cases) / 10  # what is refused as invalid shows nothing


def test_every_request_that_gpuwatch_means_passes(administrator: Api, keeper: Api) -> None:
    answers = [(case, case.request.sent(keeper)) for case in meant(administrator)]
    assert [f"{case} {answer.text}" for case, answer in answers if not answer.ok] == []


@pytest.mark.parametrize("each", [10, pytest.param(1, marks=pytest.mark.thorough)])
def test_no_guardrail_holds_a_person(administrator: Api, keeper: Api, each: int) -> None:
    """each: 10 takes every tenth request of the table, 1 all."""
    table = (*refusals(administrator), *meant(administrator))
    asked = [case for case in table if not case.by_administrator][::each]
    guardrails = {policy.name for policy in policies()}
    stopped = [case for case in asked if denied_by(case.request.sent(administrator)) in guardrails]
    assert stopped == []


# What the code really writes


def now(writer: LiveWriter, object_: Object) -> Object:
    found = writer.get(replace(ref_of(object_), uid=""))
    assert found is not None
    return found


@pytest.mark.parametrize("id_", OWNERS)
def test_every_owner_is_released_and_restored(writer: LiveWriter, administrator: Api, id_: str) -> None:
    made = owner(id_)
    made["metadata"]["name"] += "-live"
    stored = administrator.create({key: value for key, value in made.items() if key != "status"})
    if "status" in made:
        path = path_of(administrator, made)
        assert administrator.answer("PATCH", path, {"status": made["status"]}, content_type=MERGE).ok
    stored = now(writer, {**stored, "apiVersion": made["apiVersion"], "kind": made["kind"]})
    plan = release(stored, remediation=NAME, at=NOW)
    assert isinstance(plan, Release), plan
    for each in plan.writes:
        write(writer, each)
    gone = now(writer, stored)
    assert keys.REMEDIATION in gone["metadata"]["annotations"]
    back = restore(gone, plan.saved, remediation=NAME)
    assert isinstance(back, Restoration), back
    for each in back.writes:
        write(writer, each)
    assert keys.REMEDIATION not in now(writer, stored)["metadata"]["annotations"]
    if made["kind"] == "Deployment":
        write(writer, rollout(now(writer, stored), remediation=NAME, at=NOW))


def test_a_node_gets_the_label_that_a_role_names_and_no_other(administrator: Api, keeper: Api) -> None:
    rbac = "rbac.authorization.k8s.io"
    rule = {"apiGroups": ["gpuwatch.dev"], "resources": ["nodelabels"], "resourceNames": ["a"], "verbs": ["use"]}
    role = named("ClusterRole", "hand-off", "", f"{rbac}/v1", rules=[rule])
    bound = copy.deepcopy(everything(administrator)[1])
    bound["metadata"]["name"] = bound["roleRef"]["name"] = "hand-off"
    apply(administrator, [role, bound])
    try:
        for value in ("c", None):
            request = change(administrator, NODE_BODY, {"metadata": {"labels": {"a": value}}})
            wait_until(lambda: request.sent(keeper).ok, lambda: request.sent(keeper).text)  # noqa: B023
        for labels in ({"a": "c", "b": "x"}, {"a/b": "x"}):
            request = change(administrator, NODE_BODY, {"metadata": {"labels": labels}})
            assert denied_by(request.sent(keeper)) == "gpuwatch-nodes"
    finally:
        for each in (bound, role):
            administrator.delete(each)


def test_a_node_gets_no_execute_only_where_a_role_names_it(administrator: Api, keeper: Api) -> None:
    rbac = "rbac.authorization.k8s.io"
    rule = {
        "apiGroups": ["gpuwatch.dev"],
        "resources": ["nodetaints"],
        "resourceNames": ["NoExecute"],
        "verbs": ["use"],
    }
    role = named("ClusterRole", "strictest", "", f"{rbac}/v1", rules=[rule])
    bound = copy.deepcopy(everything(administrator)[1])
    bound["metadata"]["name"] = bound["roleRef"]["name"] = "strictest"
    apply(administrator, [role, bound])
    marks = {"annotations": {**MARK, keys.TAINT: "{}"}}
    taints = [FOREIGN_TAINT, {**OWN_TAINT, "effect": "NoExecute"}]
    try:
        request = change(administrator, NODE_BODY, {"metadata": marks, "spec": {"taints": taints}})
        wait_until(lambda: request.sent(keeper).ok, lambda: request.sent(keeper).text)
    finally:
        for each in (bound, role):
            administrator.delete(each)


# What becomes of everybody else


def test_after_the_api_server_has_started_anew_they_hold_at_once(
    plane: ControlPlane, administrator: Api, keeper: Api
) -> None:
    with plane.gone():
        pass
    cordon = change(administrator, NODE_BODY, {"spec": {"unschedulable": True}})
    assert denied_by(cordon.sent(keeper)) == "gpuwatch-nodes"
    assert cordon.sent(administrator).ok


def test_without_any_binding_nobody_is_held_and_nobody_is_gpuwatch(administrator: Api, keeper: Api) -> None:
    label = "gpuwatch.dev/account"
    path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    bindings = [each for each in administrator.get(path)["items"] if label in each["metadata"].get("labels", {})]
    assert len(bindings) == 8

    def relabel(value: str | None, each: Object) -> None:
        body = {"metadata": {"labels": {label: value}}}
        answer = administrator.answer("PATCH", f"{path}/{each['metadata']['name']}", body, content_type=MERGE)
        assert answer.ok, answer.text

    cordon = change(administrator, NODE_BODY, {"spec": {"unschedulable": True}})
    proposing = creation(administrator, proposed(remediation(), "n"))
    try:
        for each in bindings:
            relabel(None, each)
        wait_until(lambda: cordon.sent(keeper).ok, lambda: cordon.sent(keeper).text)
        assert cordon.sent(administrator).ok
        wait_until(lambda: not proposing.sent(keeper).ok, lambda: "anybody is gpuwatch")
        assert not proposing.sent(administrator).ok
    finally:
        for each in bindings:
            relabel(each["metadata"]["labels"][label], each)
        wait_until(lambda: denied_by(cordon.sent(keeper)) != "", lambda: "nobody is held")
        wait_until(lambda: proposing.sent(keeper).ok, lambda: "nobody is gpuwatch")


def test_a_second_installation_freezes_neither_and_lets_nobody_else_in(
    plane: ControlPlane, administrator: Api, keeper: Api
) -> None:
    """Two bindings with the label: the API server needs a yes for both."""
    rbac = "rbac.authorization.k8s.io"

    def bound(name: str, role: str, **labels: str) -> Object:
        account = [{"kind": "ServiceAccount", "name": name, "namespace": TEAM}]
        made = named("ClusterRoleBinding", f"{name}-{role}", "", f"{rbac}/v1", subjects=account)
        made["metadata"]["labels"] = {f"gpuwatch.dev/{key}": value for key, value in labels.items()}
        return {**made, "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": role}}

    accounts = [named("ServiceAccount", name) for name in ("second", "deployer")]
    apply(administrator, accounts)
    second, deployer = (Api(plane.service_account(TEAM, name)) for name in ("second", "deployer"))
    bindings = [
        bound("second", "gpuwatch-controller", account="controller"),
        bound("second", "everything"),
        bound("deployer", "cluster-admin"),  # as Argo CD has it
    ]
    mine = proposed(of_team())
    proposing = creation(administrator, proposed(remediation(), "n"))
    telling = change(administrator, mine, {"status": {"phase": "Failed"}}, "/status")
    deciding = change(administrator, mine, {"spec": {"approved": True}})
    try:
        apply(administrator, bindings)
        wait_until(lambda: denied_by(deciding.sent(second)) == "gpuwatch-decides-nothing", lambda: "it is no param yet")
        wait_until(lambda: proposing.sent(second).ok, lambda: proposing.sent(second).text)
        for api in (keeper, second):
            assert [request.sent(api).text for request in (proposing, telling) if not request.sent(api).ok] == []
        wait_until(lambda: deployer.answer("GET", "/api/v1/nodes").ok, lambda: "its rights do not count")
        for api in (administrator, deployer):
            assert [denied_by(request.sent(api)) for request in (proposing, telling)] == [
                "gpuwatch-creation",
                "gpuwatch-status",
            ]
    finally:
        for each in (*bindings, *accounts):
            administrator.delete(each)


def test_the_doctor_says_whether_they_are_there(plane: ControlPlane, administrator: Api, keeper: Api) -> None:
    def told(kubeconfig: Path) -> str:
        options = ["doctor", "--telemetry", str(PAGE), "--kubeconfig", str(kubeconfig), "-o", "json"]
        facts = json.loads(CliRunner().invoke(cli, options, catch_exceptions=False).stdout)["facts"]
        return str(facts["guardrails"])

    assert told(plane.administrator) == "in place"
    assert told(plane.user("stranger")).startswith("unknown: ")
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/gpuwatch-other"
    (binding,) = (
        each for each in installed() if path.endswith(f"/{each['metadata']['name']}") and "Binding" in each["kind"]
    )
    assert administrator.answer("DELETE", path).ok
    assert told(plane.administrator).startswith("none: ")
    apply(administrator, [binding])
    pods = Request("DELETE", f"/api/v1/namespaces/{TEAM}/pods/worker")
    wait_until(lambda: denied_by(pods.sent(keeper)) == "gpuwatch-other", lambda: "it does not count again")


# Each expression matters


POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"

Site = tuple[str, str, int]
"""A CEL expression: policy, list in its spec, index."""


def sites() -> list[Site]:
    return [
        (each["metadata"]["name"], part, index)
        for each in installed()
        if each["kind"] == "ValidatingAdmissionPolicy"
        for part in ("validations", "matchConditions")
        for index in range(len(each["spec"].get(part, ())))
    ]


def rounds() -> list[list[Site]]:
    """Every site once; none twice of one policy in a round."""
    by_policy: dict[str, list[Site]] = {}
    for site in sites():
        by_policy.setdefault(site[0], []).append(site)
    longest = max(map(len, by_policy.values()))
    return [[found[turn] for found in by_policy.values() if turn < len(found)] for turn in range(longest)]


def mutated(policy: Object, part: str, index: int) -> Object:
    made = copy.deepcopy(policy)
    made["spec"][part][index]["expression"] = "true"
    made["spec"][part][index].pop("messageExpression", None)
    return made


@pytest.mark.mutants
def test_each_expression_that_is_replaced_by_true_is_missed(administrator: Api, keeper: Api) -> None:
    shipped = {each["metadata"]["name"]: each for each in installed() if each["kind"] == "ValidatingAdmissionPolicy"}
    against: dict[str, list[Case]] = {}
    for case in refusals(administrator):
        answer = case.request.sent(administrator if case.by_administrator else keeper)
        if denied_by(answer) == case.policy:
            against.setdefault(case.policy, []).append(case)

    def missed(site: Site) -> bool:
        """Whether a request of the tables is answered otherwise."""
        name, part, _ = site
        for case in against[name]:
            by_administrator = case.by_administrator or part == "matchConditions"
            denied = denied_by(case.request.sent(administrator if by_administrator else keeper)) == name
            if denied is (part == "matchConditions"):
                return True
        return False

    def restored(site: Site) -> bool:
        name, part, _ = site
        by = [(case, case.by_administrator or part == "matchConditions") for case in against[name]]
        return all(
            (denied_by(case.request.sent(administrator if admin else keeper)) == name) is (part != "matchConditions")
            for case, admin in by
        )

    survivors: list[Site] = []
    for turn in rounds():
        apply(administrator, [mutated(shipped[name], part, index) for name, part, index in turn])
        left = list(turn)

        def all_missed() -> bool:
            left[:] = [site for site in left if not missed(site)]  # noqa: B023
            return not left  # noqa: B023

        try:
            wait_until(all_missed, lambda: "", seconds=30)  # a policy counts some seconds later
        except RuntimeError:
            survivors += left
        apply(administrator, [shipped[name] for name, _, _ in turn])
        back = list(turn)

        def all_back() -> bool:
            back[:] = [site for site in back if not restored(site)]  # noqa: B023
            return not back  # noqa: B023

        wait_until(all_back, lambda: str(back))  # noqa: B023
    assert not survivors, "\n".join(map(str, survivors))


def test_no_variable_that_is_replaced_by_true_is_taken(administrator: Api) -> None:
    how = "?fieldManager=test&force=true&dryRun=All"
    for policy in (each for each in installed() if each.get("spec", {}).get("variables")):
        for index, variable in enumerate(policy["spec"]["variables"]):
            made = mutated(policy, "variables", index)
            path = f"{POLICIES}/{policy['metadata']['name']}{how}"
            answer = administrator.answer("PATCH", path, made, content_type="application/apply-patch+yaml")
            assert answer.status_code == 422, (policy["metadata"]["name"], variable)
