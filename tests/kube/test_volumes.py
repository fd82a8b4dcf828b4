"""Volume claims of Pods with GPUs: what is listed, where each claim lets its Pod land, and what stays unknown."""

from pathlib import Path
from typing import Any

import pytest

from gpuwatch.act.placement import Nowhere, Room
from gpuwatch.facts.model.cluster import Cluster
from gpuwatch.sources.kube.recorded import RecordedCluster
from kube.api_server import status
from kube.cluster_json import container, metadata, node, pod, raw
from kube.test_live import NODES, NOW, PODS, Times, lists, live

CLAIMS, VOLUMES = "/api/v1/persistentvolumeclaims", "/api/v1/persistentvolumes"
STORAGE = "/apis/storage.k8s.io/v1"
CLASSES, DRIVERS, CSI_NODES, ATTACHMENTS = (
    f"{STORAGE}/{each}" for each in ("storageclasses", "csidrivers", "csinodes", "volumeattachments")
)
KINDS = (CLAIMS, VOLUMES, CLASSES, DRIVERS, CSI_NODES, ATTACHMENTS)
ZONE, BETA = "topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"
GPUS = {"nvidia.com/gpu": "8", "cpu": "8", "memory": "1Gi", "pods": "100"}
EBS, NOBODY = "ebs.csi.aws.com", "kubernetes.io/no-provisioner"
Objects = list[dict[str, Any]]


def claim(
    name: str = "data", volume: str = "v", cls: str = "wait", *, notes: Any = None, **more: Any
) -> dict[str, Any]:
    """Bound to the volume, unless that is ''."""
    meta = metadata(name, "ml", annotations={"pv.kubernetes.io/bind-completed": "yes"} if volume else notes or {})
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}, "storageClassName": cls}
    return {"metadata": meta, "spec": {**spec, **({"volumeName": volume} if volume else {}), **more}}


def volume(name: str = "v", labels: Any = None, node_terms: Any = None, phase: str = "Available", **spec: Any) -> Any:
    place = {"nodeAffinity": {"required": {"nodeSelectorTerms": node_terms}}} if node_terms is not None else {}
    made = {
        "capacity": {"storage": "5Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "wait",
        **place,
        **spec,
    }
    made = made if {"csi", "awsElasticBlockStore"} & made.keys() else {"nfs": {"server": "s"}, **made}
    return {"metadata": metadata(name, labels=labels or {}), "spec": made, "status": {"phase": phase}}


def storage_class(
    name: str = "wait", provisioner: str = NOBODY, mode: str = "WaitForFirstConsumer", **more: Any
) -> Any:
    return {"metadata": metadata(name), "provisioner": provisioner, "volumeBindingMode": mode, **more}


def within(*values: str, key: str = ZONE) -> list[Any]:
    return [{"matchExpressions": [{"key": key, "operator": "In", "values": list(values)}]}]


def asks(*uses: dict[str, Any], name: str = "x", **more: Any) -> dict[str, Any]:
    """A Pod that waits, with these volumes."""
    uses = uses or ({"persistentVolumeClaim": {"claimName": "data"}},)
    volumes = [{"name": f"v{number}", **use} for number, use in enumerate(uses)]
    return pod(name, **{"nodeName": None, "status": {"phase": "Pending"}, "volumes": volumes, **more})


def template(cls: str = "wait", **more: Any) -> dict[str, Any]:
    return {"ephemeral": {"volumeClaimTemplate": {"spec": claim(volume="", cls=cls, **more)["spec"]}}}


def found(pods: Objects, **objects: Objects) -> dict[str, Objects]:
    """Nodes in the zones a and b, and n-none without a zone."""
    nodes = [
        node(f"n-{zone}", labels={ZONE: zone, "kubernetes.io/hostname": f"n-{zone}"}, capacity=GPUS) for zone in "ab"
    ]
    nodes += [node("n-none", labels={"kubernetes.io/hostname": "n-none"}, capacity=GPUS)]
    given = {"claims": CLAIMS, "volumes": VOLUMES, "classes": CLASSES, "drivers": DRIVERS}
    given |= {"csi_nodes": CSI_NODES, "attachments": ATTACHMENTS}
    classes = objects.pop("classes", [storage_class()])
    kinds = {path: [] for path in KINDS} | {given[name]: each for name, each in objects.items()} | {CLASSES: classes}
    return lists(**{NODES: nodes, PODS: pods, **kinds})


def lands(cluster: Cluster, name: str = "ml/x") -> str:
    """The Nodes on which the Pod lands, by themselves; or what is said."""
    (asked,) = (each for each in cluster.pods if each.ref == name)
    room = Room(cluster.nodes, [each for each in cluster.pods if each is not asked], {}, cluster.bystanders)
    taking = [each.name for each in cluster.nodes if not isinstance(room.copy().land([asked], [each.name]), Nowhere)]
    said = room.land([asked])
    return " ".join(taking) if not isinstance(said, Nowhere) else said.reason


def read(given: dict[str, Objects]) -> Cluster:
    with live(given) as (_, reader):
        return reader.read(NOW)


EVERYWHERE = "n-a n-b n-none"


@pytest.mark.parametrize(
    ("terms", "labels", "where"),
    [
        (None, {}, EVERYWHERE),
        (within("b"), {}, "n-b"),
        (within("a") + within("b"), {}, "n-a n-b"),
        (within("n-none", key="kubernetes.io/hostname"), {}, "n-none"),
        ([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n-a"]}]}], {}, ""),
        ([], {}, ""),
        # A Node without any zone has each volume with the label of one.
        (None, {ZONE: "b"}, "n-b n-none"),
        (None, {ZONE: "a__b"}, EVERYWHERE),
        (None, {BETA: "b"}, "n-b n-none"),
        (within("a", "b"), {ZONE: "a"}, "n-a"),
        (None, {ZONE: "b", "topology.kubernetes.io/region": "r"}, "n-none"),
    ],
)
def test_where_the_volume_of_a_bound_claim_is(terms: Any, labels: dict[str, str], where: str) -> None:
    given = found([asks()], claims=[claim()], volumes=[volume(labels=labels, node_terms=terms, phase="Bound")])
    said = lands(read(given))
    assert said == where if where else "n-a: claim ml/data is bound to volume v, which other Nodes have" in said


@pytest.mark.parametrize(
    ("of_claim", "more", "words"),
    [
        ({"name": "other"}, {}, "claim ml/data does not exist"),
        ({"volume": "gone"}, {}, "claim ml/data has lost its volume"),
        ({"volume": "", "volumeName": "v"}, {}, "claim ml/data is not bound to its volume yet"),
        ({"volume": "", "cls": "now"}, {}, "claim ml/data is not bound to a volume"),
        ({"volume": "", "cls": "none"}, {}, "claim ml/data is not bound to a volume"),
        ({}, {"status": {"phase": "Lost"}}, "claim ml/data has lost its volume"),
    ],
)
def test_a_claim_that_no_node_serves(of_claim: Any, more: Any, words: str) -> None:
    classes = [storage_class(), storage_class("now", EBS, "Immediate")]
    given = found([asks()], claims=[{**claim(**of_claim), **more}], volumes=[volume(phase="Bound")], classes=classes)
    said = lands(read(given))
    assert words in said
    assert "It is not known" not in said


def test_the_cause_is_in_words() -> None:
    given = found([asks(nodeSelector={ZONE: "a"})], claims=[claim()], volumes=[volume(node_terms=within("b"))])
    assert "n-a: claim ml/data is bound to a volume in zone b." in lands(read(given))


@pytest.mark.parametrize(
    ("asked", "offered", "fits"),
    [
        ({}, {}, True),
        ({}, {"capacity": {"storage": "1Gi"}}, False),
        ({}, {"storageClassName": "other"}, False),
        ({}, {"accessModes": ["ReadOnlyMany"]}, False),
        ({}, {"volumeMode": "Block"}, False),
        ({"volumeMode": "Block"}, {"volumeMode": "Block"}, True),
        ({}, {"phase": "Released"}, False),
        ({}, {"claimRef": {"namespace": "ml", "name": "other"}}, False),
        ({}, {"claimRef": {"namespace": "ml", "name": "data"}}, True),
        ({}, {"claimRef": {"namespace": "ml", "name": "data", "uid": "another"}}, False),
        ({"selector": {"matchLabels": {"tier": "fast"}}}, {"labels": {"tier": "fast"}}, True),
        ({"selector": {"matchLabels": {"tier": "fast"}}}, {"labels": {"tier": "slow"}}, False),
        ({}, {"volumeAttributesClassName": "gold"}, False),
    ],
)
def test_which_free_volume_suits_a_claim(asked: Any, offered: Any, fits: bool) -> None:
    offer = volume(node_terms=within("b"), **offered)
    said = lands(read(found([asks()], claims=[claim(volume="", **asked)], volumes=[offer])))
    assert said == "n-b" if fits else "claim ml/data finds no free volume" in said


def test_a_volume_that_is_made_can_be_where_its_class_allows() -> None:
    topologies = [{"matchLabelExpressions": [{"key": ZONE, "values": ["b"]}]}]
    made = [storage_class("wait", EBS, allowedTopologies=topologies)]
    waits = claim(volume="")
    assert lands(read(found([asks()], claims=[waits], classes=[storage_class("wait", EBS)]))) == EVERYWHERE
    assert lands(read(found([asks()], claims=[waits], classes=made))) == "n-b"
    # A free one is taken first, and need not be where others are made.
    assert (
        lands(read(found([asks()], claims=[waits], classes=made, volumes=[volume(node_terms=within("a"))])))
        == "n-a n-b"
    )
    chosen = claim(volume="", notes={"volume.kubernetes.io/selected-node": "n-b"})
    assert lands(read(found([asks()], claims=[chosen], classes=made))) == "n-b"
    given = found([asks(nodeSelector={ZONE: "a"})], claims=[chosen], classes=made)
    assert "n-a: claim ml/data gets its volume on Node n-b" in lands(read(given))


def test_a_claim_by_a_template() -> None:
    made, volumes = [storage_class("wait", EBS), storage_class()], [volume(node_terms=within("b"))]
    waits = asks(template())
    assert lands(read(found([waits], classes=made[1:], volumes=volumes))) == "n-b"
    mine = claim("x-v0", notes={})
    mine["metadata"]["ownerReferences"] = [{"kind": "Pod", "name": "x", "uid": "uid-ml-x", "controller": True}]
    assert lands(read(found([waits], claims=[mine], volumes=volumes))) == "n-b"
    assert "claim ml/x-v0 is not that of the Pod" in lands(
        read(found([waits], claims=[claim("x-v0")], volumes=volumes))
    )
    # A Pod that is moved gets another claim.
    moved = asks(template(), nodeName="n-a", status={"phase": "Running"})
    assert lands(read(found([moved], claims=[mine], volumes=volumes, classes=made[:1]))) == EVERYWHERE


def test_a_claim_that_one_pod_alone_may_use() -> None:
    alone = claim(accessModes=["ReadWriteOncePod"])
    user = pod("user", containers=[container()], nodeName="n-b", volumes=asks()["spec"]["volumes"])
    for users, free in (([], True), ([user], False), ([{**user, "status": {"phase": "Succeeded"}}], True)):
        said = lands(read(found([asks(), *users], claims=[alone], volumes=[volume()])))
        assert said == EVERYWHERE if free else "is for one Pod alone, and Pod ml/user uses it" in said
    assert lands(read(found([asks(), user], claims=[claim()], volumes=[volume()]))) == EVERYWHERE


def csi_node(name: str, count: int) -> dict[str, Any]:
    return {"metadata": metadata(name), "spec": {"drivers": [{"name": EBS, "allocatable": {"count": count}}]}}


def test_how_many_volumes_a_node_attaches() -> None:
    def of(number: str) -> dict[str, Any]:
        return volume(number, csi={"driver": EBS, "volumeHandle": number}, phase="Bound")

    volumes = [of("v"), of("w"), of("z")]
    claims = [claim(), claim("other", "w")]
    bounds = [csi_node("n-a", 1), csi_node("n-b", 2)]
    other = [{"name": "o", "persistentVolumeClaim": {"claimName": "other"}}]
    user = pod("user", containers=[container()], nodeName="n-b", volumes=other)
    attached = {"attacher": EBS, "nodeName": "n-b", "source": {"persistentVolumeName": "z"}}
    left = [{"metadata": metadata("at"), "spec": attached}]

    def where(*pods: Any, **more: Any) -> str:
        return lands(read(found([asks(), *pods], claims=claims, volumes=volumes, csi_nodes=bounds, **more)))

    assert where() == EVERYWHERE
    assert where({**user, "spec": {**user["spec"], "nodeName": "n-a"}}) == "n-b n-none"
    assert where(user) == EVERYWHERE
    assert where(user, attachments=left) == "n-a n-none"
    held = pod("held", nodeName="n-a", volumes=other)
    assert where(held) == "n-b n-none"
    # Of a volume that goes to a driver under another name only the number is known.
    volumes[1] = volume("w", awsElasticBlockStore={"volumeID": "w"})
    assert where({**user, "spec": {**user["spec"], "nodeName": "n-a"}}) == "n-b n-none"


CSI = {"csi": {"driver": EBS, "volumeHandle": "h"}}


@pytest.mark.parametrize(
    ("objects", "words"),
    [
        ({"volumes": [volume(awsElasticBlockStore={"volumeID": "w"})]}, "on which Nodes a volume of this kind can be"),
        ({"volumes": [volume(nfs=None, hostPath={"path": "/data"})]}, "on which Nodes a volume of this kind can be"),
        (
            {
                "volumes": [volume(**CSI)],
                "drivers": [{"metadata": metadata(EBS), "spec": {"preventPodSchedulingIfMissing": True}}],
            },
            f"which Nodes have {EBS}",
        ),
        (
            {"claims": [claim(volume="")], "classes": [storage_class("wait", "kubernetes.io/aws-ebs")]},
            "where kubernetes.io/aws-ebs makes volumes",
        ),
        (
            {
                "claims": [claim(volume="")],
                "classes": [storage_class("wait", EBS)],
                "drivers": [{"metadata": metadata(EBS), "spec": {"storageCapacity": True}}],
            },
            f"where {EBS} has space left",
        ),
        (
            {
                "claims": [claim(volume="")],
                "volumes": [volume(claimRef={"namespace": "ml", "name": "data"}, accessModes=[])],
            },
            "whether its volume will be bound",
        ),
    ],
)
def test_what_stays_unknown_names_the_claim(objects: dict[str, Objects], words: str) -> None:
    said = lands(read(found([asks()], **{"claims": [claim()], "volumes": [volume()], **objects})))
    assert said.startswith("It is not known where Pod ml/x can run: it has spec.volumes[v0].persistentVolumeClaim: ")
    assert f"{words}, of claim ml/data." in said


def test_a_volume_that_one_node_has_at_a_time_is_unknown_where_two_pods_use_it() -> None:
    user = pod("y", nodeName="n-a", volumes=asks()["spec"]["volumes"])
    for modes, unknown in ((["ReadWriteOnce"], True), (["ReadWriteOnce", "ReadWriteMany"], False)):
        said = lands(read(found([asks(), user], claims=[claim(accessModes=modes)], volumes=[volume(**CSI)])))
        assert ("with which Pods it is to be on one Node, of claim ml/data" in said) is unknown
    assert lands(read(found([asks(), user], claims=[claim()], volumes=[volume()]))) == EVERYWHERE
    assert lands(read(found([asks()], claims=[claim()], volumes=[volume(**CSI)]))) == EVERYWHERE


def test_a_claim_without_a_volume_that_two_pods_want_and_a_template_that_is_bound_at_once_are_unknown() -> None:
    given = found([asks(), asks(name="y")], claims=[claim(volume="")], volumes=[volume()])
    assert "as several Pods wait for it" in lands(read(given))
    ended = pod("y", volumes=asks()["spec"]["volumes"], status={"phase": "Succeeded"})
    assert lands(read(found([asks(), ended], claims=[claim(volume="")], volumes=[volume()]))) == EVERYWHERE
    given = found([asks(template("now"))], classes=[storage_class("now", EBS, "Immediate")])
    assert "spec.volumes[v0].ephemeral: gpuwatch does not know where its volume will be made" in lands(read(given))


@pytest.mark.parametrize("path", KINDS)
@pytest.mark.parametrize("code", [403, 500])
def test_a_kind_that_is_refused_costs_the_claims_alone(path: str, code: int) -> None:
    given = found([asks(), pod("y", nodeName="n-a")], claims=[claim()], volumes=[volume(**CSI)])
    with live(given, trouble=Times(path, status(code, "no"), 99)) as (_, reader):
        cluster = reader.read(NOW)
    (gap,) = cluster.gaps
    assert gap.what.partition(".")[0] == path.rpartition("/")[2]
    assert cluster.unread == ()
    assert lands(cluster).startswith(
        "It is not known where Pod ml/x can run: it has spec.volumes[v0].persistentVolumeClaim"
    )
    assert lands(cluster, "ml/y") == EVERYWHERE


def test_an_object_that_cannot_be_read_is_none_that_is_missing() -> None:
    given = found([asks()], claims=[{"metadata": metadata("data", "ml"), "spec": 7}])
    cluster = read(given)
    assert "it has spec.volumes[v0].persistentVolumeClaim" in lands(cluster)
    assert [gap.what for gap in cluster.gaps] == ["persistentvolumeclaims"]
    assert cluster.unread == ()


def test_nothing_is_listed_while_no_pod_with_gpus_has_a_claim() -> None:
    user = pod("user", containers=[container()], volumes=asks()["spec"]["volumes"])
    for pods, listed in (([pod("y"), user], False), ([asks()], True)):
        with live(found(pods, claims=[claim()], volumes=[volume()])) as (server, reader):
            reader.read(NOW)
        asked = {request.path.partition("?")[0] for request in server.requests}
        assert asked.isdisjoint(KINDS) is not listed


def test_a_recording_without_these_kinds_knows_nothing_of_claims(tmp_path: Path) -> None:
    tmp_path.joinpath("pods.json").write_bytes(bytes(raw({"apiVersion": "v1", "kind": "List", "items": [asks()]})))
    cluster = RecordedCluster(tmp_path).read(NOW)
    assert "gpuwatch does not know in which zone or on which Node its volume is" in lands(cluster)
