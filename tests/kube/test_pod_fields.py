"""Each field of a Pod's spec is modelled by the landing, or irrelevant with a reason, or refuses by its name."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import kubernetes.client
import pytest

from cluster.api import Api
from cluster.control_plane import ControlPlane
from gpuwatch.act.placement import Nowhere, Room
from gpuwatch.facts.model.cluster import HostPort, Node, Placement, Pod, Taint
from gpuwatch.sources.kube.placement import _RULES, TABLE
from gpuwatch.sources.kube.pods import take_pod
from gpuwatch.sources.kube.recorded import RecordedCluster
from kube.cluster_json import container, pod, raw
from plan.fleet import GPU, node
from plan.fleet import pod as running

Fields = Mapping[str, tuple[str, bool]]
"""Field → its type, and whether it is a list."""
Schema = Callable[[str], Fields | None]
"""The fields of a type; None for a type without any."""

REFUSED = {path: each for each in TABLE.refused for path in each.fields}
IRRELEVANT = {path: each.why for each in TABLE.irrelevant for path in each.fields}


def of_client(kind: str) -> Fields | None:
    model = getattr(kubernetes.client, kind, None)
    if model is None:
        return None
    found = {}
    for name, spelled in model.openapi_types.items():
        item = re.fullmatch(r"List\[(.+)\]", spelled)
        found[model.attribute_map[name]] = (item[1] if item else spelled, item is not None)
    return found


def decided(path: str) -> Any:
    """The rule of the field; of a field below others, perhaps a dict of rules. None where the table has none."""
    rule: Any = _RULES
    for name in path.replace("[]", "").split("."):
        if not isinstance(rule, dict):
            return rule
        rule = rule.get(name)
    return rule


def walked(schema: Schema, kind: str, above: str = "") -> Iterator[tuple[str, str, bool, Any]]:
    """(path, type, whether it is a list, rule) of each field down to where a rule covers it."""
    for name, (below, many) in (schema(kind) or {}).items():
        path = f"{above}{name}"
        rule = decided(path)
        yield path, below, many, rule
        if isinstance(rule, dict) and schema(below):
            yield from walked(schema, below, f"{path}{'[]' if many else ''}.")


def known(schema: Schema, path: str) -> bool:
    kind = "V1PodSpec"
    for step in path.split("."):
        fields = schema(kind) or {}
        name = step.removesuffix("[]")
        if name not in fields or (step.endswith("[]") and not fields[name][1]):
            return False
        kind = fields[name][0]
    return True


NAMED = [*TABLE.modelled, *TABLE.quantities, *IRRELEVANT, *REFUSED]


def test_each_field_of_the_clients_models_is_decided() -> None:
    found = list(walked(of_client, "V1PodSpec"))
    assert len(found) > 150
    assert [path for path, _, _, rule in found if rule is None] == []
    # A branch ends in rules, so that no field below it is overlooked.
    assert [path for path, kind, _, rule in found if isinstance(rule, dict) and not of_client(kind)] == []


def test_the_table_names_only_fields_that_exist_and_each_once() -> None:
    assert {path for path in NAMED if not known(of_client, path)} == set()
    assert len(set(NAMED)) == len(NAMED)
    assert all(len(each.why.split()) > 4 for each in (*TABLE.irrelevant, *TABLE.refused))


@pytest.mark.cluster
def test_each_field_of_the_api_server_is_decided(control_plane: ControlPlane) -> None:
    schemas = Api(control_plane.administrator).get("/openapi/v3/api/v1")["components"]["schemas"]

    def of_server(kind: str) -> Fields | None:
        def target(item: Any) -> str:
            refs = [item, *item.get("allOf", ())]
            return next((each["$ref"].rpartition("/")[2] for each in refs if "$ref" in each), item.get("type", ""))

        properties = schemas.get(kind, {}).get("properties")
        if not properties:
            return None
        return {
            name: (target(item["items"]), True) if item.get("type") == "array" else (target(item), False)
            for name, item in properties.items()
        }

    found = list(walked(of_server, "io.k8s.api.core.v1.PodSpec"))
    assert len(found) > 150
    assert [path for path, _, _, rule in found if rule is None] == []


def taken(spec: dict[str, Any], labels: dict[str, str] | None = None) -> Pod:
    made = {"nodeName": None, "status": {"phase": "Pending"}, "meta": {"labels": labels or {}}, **spec}
    found = take_pod(raw(pod(**made)))
    assert found is not None
    assert found.held is not None
    return found.held.pod


def landed(spec: dict[str, Any], *nodes: Node, held: tuple[Pod, ...] = ()) -> str:
    """The Node, or '' and the reason."""
    asks = taken(spec, {"app": "x"})
    found = Room(nodes or [node("n0", cpu_cores=8.0, memory_bytes=2**34)], held, {}).land([asks])
    return f"-{found.reason}" if isinstance(found, Nowhere) else found[asks.ref]


SAMPLES: dict[str, Any] = {"str": "sample", "int": 7, "bool": True, "Dict[str, str]": {"key": "1"}}


def with_field(path: str, value: Any) -> dict[str, Any]:
    """A spec with just this field set, in a Pod with one GPU."""
    spec: dict[str, Any] = {"containers": [container(limits={GPU: "1"})]}
    here: Any = spec
    *above, last = path.split(".")
    for step in above:
        name = step.removesuffix("[]")
        if step.endswith("[]"):
            here = here.setdefault(name, [{"name": "it"} if name in ("initContainers", "volumes") else {}])[0]
        else:
            here = here.setdefault(name, {})
    here[last] = value
    return spec


def sample(path: str) -> Any:
    kind, many = "V1PodSpec", False
    for step in path.split("."):
        kind, many = (of_client(kind) or {})[step.removesuffix("[]")]
    value = SAMPLES.get(kind, {"name": "it"} if many else {})
    return [value] if many else value


@pytest.mark.parametrize("path", sorted(REFUSED))
def test_a_field_that_is_not_modelled_refuses_by_its_name(path: str) -> None:
    rule = REFUSED[path]
    value = sample(path) if not rule.unless or not isinstance(rule.unless[0], bool) else not rule.unless[0]
    if rule.unless == ({},):
        value = {"matchLabels": {"team": "a"}}
    said = landed(with_field(path, value))
    assert said.startswith("-It is not known where Pod ml/train-0 can run: it has spec.")
    assert path.rpartition(".")[2] in said
    assert rule.why in said
    for harmless in rule.unless:
        assert rule.why not in landed(with_field(path, harmless)), "the value restricts nothing"


@pytest.mark.parametrize("path", sorted(IRRELEVANT))
def test_a_field_that_is_irrelevant_refuses_nothing(path: str) -> None:
    assert not taken(with_field(path, sample(path))).placement.unmodelled


@pytest.mark.parametrize("path", TABLE.quantities)
def test_a_resource_that_is_not_modelled_refuses_by_its_name(path: str) -> None:
    for name in ("rdma/hca", "ephemeral-storage", "hugepages-2Mi", "vpc.amazonaws.com/efa"):
        assert f"[{name}]: gpuwatch does not know how much" in landed(with_field(path, {name: "1", GPU: "1"}))
        assert landed(with_field(path, {name: "0", GPU: "1", "cpu": "1", "memory": "1Gi"})) == "n0"


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ({"gravity": "low"}, "spec.gravity"),
        ({"gravity": False}, "spec.gravity"),
        ({"volumes": [{"name": "v", "tape": {}}]}, "spec.volumes[v].tape"),
        ({"securityContext": {"moon": 1}}, "spec.securityContext.moon"),
        ({"initContainers": [{"name": "i", "moon": 1}]}, "spec.initContainers[i].moon"),
        ({"tolerations": [{"key": "gpu", "operator": "Gt", "value": "5"}]}, "spec.tolerations[gpu].operator=Gt"),
    ],
)
def test_a_field_of_a_newer_kubernetes_refuses(spec: dict[str, Any], name: str) -> None:
    assert f"it has {name}: gpuwatch does not " in landed(spec)


def test_a_usual_training_pod_lands() -> None:
    spec = {
        "volumes": [
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
            {"name": "kube-api-access-x", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}},
        ],
        "schedulerName": "default-scheduler",
        "runtimeClassName": "nvidia",
        "securityContext": {"runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
        "preemptionPolicy": "PreemptLowerPriority",
        "hostNetwork": False,
        "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "tolerationSeconds": 300}],
    }
    assert landed(spec) == "n0"


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
TERM = {"labelSelector": {"matchLabels": {"app": "y"}}, "topologyKey": "rack"}
OTHER = running("ml/y", "n0", 7, labels={"app": "y"})
ALIKE = running("ml/z", "n0", 7, labels={"app": "x"})
SECOND = running("ml/z", "n0", 7, labels={"app": "x", "second": ""})
FOREIGN = running("web/z", "n0", 7, labels={"app": "x"})
KIND, FIRST = {"matchLabels": {"app": "x"}}, {"matchExpressions": [{"key": "second", "operator": "DoesNotExist"}]}
SPREAD = {
    "topologyKey": "rack", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule",
    "labelSelector": {"matchLabels": {"app": "x"}},
}  # fmt: skip
R0, R1 = node("n0", labels={"rack": "r0", "hash": "1"}), node("n1", 0, labels={"rack": "r1"})
BARE, PLAIN = node("n0"), node("n0", labels={"rack": "r0"})
TAINTED = node("n0", taints=(Taint("gpu", "yes", "NoSchedule"),))


def near(**term: Any) -> dict[str, Any]:
    return {"affinity": {"podAffinity": {REQUIRED: [{**TERM, **term}]}}}


def apart(**term: Any) -> dict[str, Any]:
    return {"affinity": {"podAntiAffinity": {REQUIRED: [{**TERM, "labelSelector": KIND, **term}]}}}


def spread(**changes: Any) -> dict[str, Any]:
    return {"topologySpreadConstraints": [{**SPREAD, **changes}]}


def tolerating(**changes: str) -> dict[str, Any]:
    return {"tolerations": [{"key": "gpu", "value": "yes", "effect": "NoSchedule", **changes}]}


def port(number: int, **more: str) -> dict[str, Any]:
    opened = {"containerPort": 80, "hostPort": number, **more}
    return {"containers": [{**container(limits={GPU: "1"}), "ports": [opened]}]}


SERVES = running("ml/y", "n0", 1, placement=Placement(host_ports=(HostPort(8080, ip="10.0.0.1"),)))
AFFINE, APART = f"affinity.podAffinity.{REQUIRED}[].", f"affinity.podAntiAffinity.{REQUIRED}[]."
Z = {"matchLabels": {"app": "z"}}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[Node, ...], tuple[Pod, ...]]] = {
    f"affinity.nodeAffinity.{REQUIRED}": (
        {},
        {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "rack", "operator": "Exists"}]}]}}}},
        (BARE,), (),
    ),
    f"{AFFINE}labelSelector": (near(), near(labelSelector=Z), (PLAIN,), (OTHER,)),
    f"{AFFINE}namespaces": (near(), near(namespaces=["web"]), (PLAIN,), (OTHER,)),
    f"{AFFINE}topologyKey": (near(), near(topologyKey="zone"), (PLAIN,), (OTHER,)),
    f"{APART}labelSelector": (apart(labelSelector=FIRST), apart(), (PLAIN,), (SECOND,)),
    f"{APART}namespaceSelector": (apart(), apart(namespaceSelector={}), (PLAIN,), (FOREIGN,)),
    f"{APART}namespaces": (apart(), apart(namespaces=["ml", "web"]), (PLAIN,), (FOREIGN,)),
    f"{APART}topologyKey": (apart(topologyKey="zone"), apart(), (PLAIN,), (ALIKE,)),
    "containers[].ports[].hostPort": (port(80), port(8080), (BARE,), (SERVES,)),
    "containers[].ports[].hostIP": (port(8080, hostIP="10.0.0.2"), port(8080, hostIP="10.0.0.1"), (BARE,), (SERVES,)),
    "containers[].ports[].protocol": (port(8080, protocol="UDP"), port(8080), (BARE,), (SERVES,)),
    "initContainers[].restartPolicy": (
        {"initContainers": [container("i", limits={GPU: "8"})], "containers": [container(limits={GPU: "1"})]},
        {"initContainers": [{**container("i", limits={GPU: "8"}), "restartPolicy": "Always"}]},
        (BARE,), (),
    ),
    "nodeSelector": ({}, {"nodeSelector": {"rack": "r0"}}, (BARE,), ()),
    "tolerations[].effect": (tolerating(), tolerating(effect="NoExecute"), (TAINTED,), ()),
    "tolerations[].key": (tolerating(), tolerating(key="other"), (TAINTED,), ()),
    "tolerations[].value": (tolerating(), tolerating(value="no"), (TAINTED,), ()),
    "topologySpreadConstraints[].labelSelector": (spread(labelSelector=FIRST), spread(), (R0, R1), (SECOND,)),
    "topologySpreadConstraints[].matchLabelKeys": (spread(matchLabelKeys=["app"], labelSelector={}), spread(
        labelSelector={}), (R0, R1), (OTHER,)),
    "topologySpreadConstraints[].maxSkew": (spread(maxSkew=2), spread(), (R0, R1), (ALIKE,)),
    "topologySpreadConstraints[].minDomains": (spread(), spread(minDomains=3), (PLAIN,), (ALIKE,)),
    "topologySpreadConstraints[].topologyKey": (spread(topologyKey="hash"), spread(), (R0, R1), (ALIKE,)),
    "topologySpreadConstraints[].whenUnsatisfiable": (
        spread(whenUnsatisfiable="ScheduleAnyway"), spread(), (R0, R1), (ALIKE,)
    ),
    "containers[].resources.limits": ({}, {"containers": [container(limits={GPU: "9"})]}, (BARE,), ()),
    "containers[].resources.requests": ({}, {"containers": [container(requests={GPU: "9"})]}, (BARE,), ()),
    "overhead": ({}, {"overhead": {"cpu": "9"}}, (node("n0", cpu_cores=8.0),), ()),
    "resources.requests": ({}, {"resources": {"requests": {"cpu": "9"}}}, (node("n0", cpu_cores=8.0),), ()),
}  # fmt: skip
OF_REQUESTS = {"resources.limits": "The API server writes the requests of the Pod from its limits."}


def test_each_modelled_field_has_a_case() -> None:
    assert set(CASES) | set(OF_REQUESTS) == {*TABLE.modelled, *TABLE.quantities}


@pytest.mark.parametrize("path", sorted(CASES))
def test_a_modelled_field_makes_a_difference(path: str) -> None:
    may, may_not, nodes, held = CASES[path]
    assert landed(may, *nodes, held=held) == "n0"
    said = landed(may_not, *nodes, held=held)
    assert said.startswith("-")
    assert "It is not known" not in said


@pytest.mark.parametrize(
    ("spec", "namespace", "labels"),
    [
        (apart(labelSelector=Z), "ml", Z["matchLabels"]),
        (apart(namespaces=["web"]), "web", KIND["matchLabels"]),
        (spread(labelSelector=Z), "ml", Z["matchLabels"]),
    ],
)
def test_pods_without_accelerators_count_as_others_do(
    spec: dict[str, Any], namespace: str, labels: dict[str, str]
) -> None:
    """Those that a selector means are in a Cluster as its bystanders. Only one of the racks has GPUs."""
    there, cpu = PLAIN, node("cpu", 0, labels={"rack": "b"})
    z = [Pod(namespace=namespace, name=f"z{n}", node=PLAIN.name, phase="Running", labels=labels) for n in range(2)]

    def lands(*beside: Pod) -> bool:
        return not isinstance(Room([there, cpu], (), {}, beside).land([taken(spec, {"app": "x"})]), Nowhere)

    assert lands()
    assert not lands(*z)
    assert lands(*(replace(each, node="cpu") for each in z))
    assert lands(*(replace(each, namespace="other") for each in z))


def test_a_selector_of_nothing_refuses_nothing() -> None:
    assert landed(apart(labelSelector=None), PLAIN) == "n0"


def test_few_pods_of_the_frameworks_samples_have_a_field_that_is_not_modelled() -> None:
    """As their controllers made them. They are examples, and say little of what real fleets ask for."""
    samples = Path(__file__).parents[1] / "fixtures" / "cluster" / "frameworks"
    read = [RecordedCluster(each).read(datetime(2100, 1, 1, tzinfo=UTC)) for each in sorted(samples.iterdir())]
    pods = [each for cluster in read for each in cluster.pods]
    refused = Counter(field for each in pods for field in each.placement.unmodelled)
    print(f"{len(pods)} Pods, not modelled: {dict(refused)}")
    assert len(pods) > 50
    assert sum(bool(each.placement.unmodelled) for each in pods) <= 0.05 * len(pods), refused
