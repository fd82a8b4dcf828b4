import gzip
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuwatch.facts.model.cluster import Cluster, DisruptionBudget, FactKind, OwnerStatus
from gpuwatch.facts.model.telemetry import Gap, GapKind
from gpuwatch.sources.kube.reader import ClusterError
from gpuwatch.sources.kube.recorded import RecordedCluster
from kube.cluster_json import as_list, container, controlled_by, metadata, node, owner, pod

NOW = datetime(2026, 11, 21, tzinfo=UTC)


def read(folder: Path) -> Cluster:
    return RecordedCluster(folder).read(NOW)


def write(folder: Path, **files: Any) -> Path:
    """Objects as JSON in files without a telling name."""
    for name, found in files.items():
        (folder / name).write_text(json.dumps(found))
    return folder


def names(cluster: Cluster) -> list[str]:
    return sorted(item.name for item in cluster.pods)


def gaps(cluster: Cluster, kind: GapKind) -> list[Gap]:
    return [gap for gap in cluster.gaps if gap.kind is kind]


def typed_list(*items: dict[str, Any]) -> dict[str, Any]:
    """As `kubectl get --raw` prints it: the items do not repeat their kind."""
    bare = [{key: value for key, value in item.items() if key not in ("kind", "apiVersion")} for item in items]
    return {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": bare}


def yaml_documents(*found: Any) -> bytes:
    return yaml.safe_dump_all(found).encode()


@pytest.mark.parametrize(
    "content",
    [
        json.dumps(as_list(pod("a"), pod("b"))).encode(),
        json.dumps(as_list(pod("a"), pod("b")), indent=4).encode("utf-16"),
        b"\xef\xbb\xbf" + json.dumps(as_list(pod("a"), pod("b"))).encode(),
        json.dumps(typed_list(pod("a"), pod("b"))).encode(),
        json.dumps([pod("a"), pod("b")]).encode(),
        gzip.compress(json.dumps(as_list(pod("a"), pod("b"))).encode()),
        yaml_documents(as_list(pod("a"), pod("b"))),
        yaml_documents(pod("a"), None, pod("b")),
        yaml_documents([pod("a"), pod("b")]),
        gzip.compress(yaml_documents(pod("a"), pod("b"))),
    ],
)
@pytest.mark.parametrize("name", ["pods.json", "misleading.csv", "no-name"])
def test_files_are_read_by_what_they_contain(tmp_path: Path, content: bytes, name: str) -> None:
    (tmp_path / name).write_bytes(content)
    cluster = read(tmp_path)
    assert names(cluster) == ["a", "b"]
    assert cluster.known
    assert gaps(cluster, GapKind.BAD_INPUT) == []


def test_a_single_object_a_folder_below_and_a_single_file(tmp_path: Path) -> None:
    (tmp_path / "deeper" / "down").mkdir(parents=True)
    write(tmp_path / "deeper" / "down", one=pod("a"))
    write(tmp_path, **{".hidden": pod("b")})
    assert names(read(tmp_path)) == ["a"]
    assert names(read(tmp_path / "deeper" / "down" / "one")) == ["a"]


def test_an_unquoted_time_in_yaml_is_a_time(tmp_path: Path) -> None:
    text = "apiVersion: v1\nkind: Node\nmetadata: {name: gpu-0, creationTimestamp: 2026-11-20T08:00:00Z}\n"
    (tmp_path / "node").write_text(text)
    assert read(tmp_path).nodes[0].created == datetime(2026, 11, 20, 8, tzinfo=UTC)


def test_the_newest_version_of_an_object_counts(tmp_path: Path) -> None:
    def at(version: str, phase: str) -> dict[str, Any]:
        return as_list(pod("a", meta={"resourceVersion": version}, status={"phase": phase}))

    write(tmp_path, first=at("99", "Pending"), second=at("100", "Running"), third=at("98", "Failed"))
    assert [(item.name, item.phase) for item in read(tmp_path).pods] == [("a", "Running")]


def test_kinds_without_use_are_ignored(tmp_path: Path) -> None:
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata("c", "ml")}
    certificate = {"apiVersion": "cert-manager.io/v1", "kind": "Certificate", "metadata": metadata("c", "ml")}
    write(tmp_path, all=as_list(pod("a"), config, {**config, "metadata": metadata("d", "ml")}, certificate))
    cluster = RecordedCluster(tmp_path).read(NOW)
    assert names(cluster) == ["a"]
    assert not any("ConfigMap" in f"{gap}" or "Certificate" in f"{gap}" for gap in cluster.gaps)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"kind": "List",\n  "items": [}\n', "line 2 column 13"),
        (b'{"kind": "List", "items": [', "line 1 column 28"),
        (b'{"kind": "\xff"}', "can't decode byte 0xff in position 10"),
        (b'{"kind": "List", "items": 5}', "$.items"),
        (b'{"items": [{"spec": {}}]}', "`kind` or `metadata` is missing"),
        (b'{"spec": {}}', "`kind` or `metadata` is missing"),
        (b'{"kind": "Pod"}', "`kind` or `metadata` is missing"),
        (b'{"kind": "Pod", "metadata": {"name": 5}}', "$.metadata.name"),
        (b"kind: Pod\nmetadata: [unclosed\n", "line 3, column 1"),
        (b"just a note", "neither an object nor a List"),
        (b"\x00\x01\x02PAR1", "neither JSON nor YAML"),
        (gzip.compress(b'{"kind": "List"}', mtime=0)[:-9], "cannot be read"),
        (b"\x1f\x8bnot gzip", "cannot be read"),
    ],
)
def test_a_broken_file_is_named_with_its_place_and_the_rest_goes_on(tmp_path: Path, content: bytes, said: str) -> None:
    write(tmp_path, good=as_list(pod("a")))
    (tmp_path / "broken").write_bytes(content)
    cluster = read(tmp_path)
    assert names(cluster) == ["a"]
    assert [gap.what for gap in gaps(cluster, GapKind.BAD_INPUT)] == ["file broken"]
    assert said in gaps(cluster, GapKind.BAD_INPUT)[0].detail


def test_documents_before_a_broken_one_are_kept(tmp_path: Path) -> None:
    (tmp_path / "mixed").write_bytes(yaml_documents(pod("a")) + b"---\n{broken\n")
    cluster = read(tmp_path)
    assert names(cluster) == ["a"]
    assert "the rest of the file is left out" in gaps(cluster, GapKind.BAD_INPUT)[0].detail


def test_a_broken_object_is_named_with_its_file(tmp_path: Path) -> None:
    bad = node("bad", capacity={"nvidia.com/gpu": "lots"})
    write(tmp_path, state=as_list(node("good"), bad, pod("a")))
    cluster = read(tmp_path)
    assert [item.name for item in cluster.nodes] == ["good"]
    detail = gaps(cluster, GapKind.BAD_INPUT)[0].detail
    assert "1 could not be read and are left out: bad (file state): 'lots' is no Kubernetes quantity" in detail


@pytest.mark.parametrize("ready", [True, False])
def test_a_folder_without_anything_of_use_says_what_to_put_there(tmp_path: Path, ready: bool) -> None:
    folder = tmp_path / "state"
    if ready:
        folder.mkdir()
    with pytest.raises(ClusterError, match=r"kubectl get \$kind -A -o json") as caught:
        read(folder)
    assert str(folder) in str(caught.value)


def test_a_folder_of_broken_files_says_why(tmp_path: Path) -> None:
    (tmp_path / "pods.json").write_text("{")
    with pytest.raises(ClusterError, match=r"file pods\.json: .* line 1 column 2"):
        read(tmp_path)


def test_what_was_not_recorded_is_a_gap_with_the_command_that_records_it(tmp_path: Path) -> None:
    cluster = read(write(tmp_path, nodes=as_list(node())))
    assert not cluster.known  # without Pods the absence of a Pod means nothing
    missing = {gap.what: gap.detail for gap in gaps(cluster, GapKind.NOT_SERVED)}
    assert set(missing) == {
        "pods",
        "namespaces",
        "poddisruptionbudgets.policy",
    }
    assert "`kubectl get pods -A -o json`" in missing["pods"]


def test_an_empty_list_that_was_recorded_is_empty_and_a_missing_one_is_unread(tmp_path: Path) -> None:
    def unread(**files: Any) -> set[FactKind]:
        return {item.kind for item in read(write(tmp_path, nodes=as_list(node()), **files)).unread}

    core = {FactKind.PODS, FactKind.NAMESPACES, FactKind.BUDGETS}
    assert unread() == core
    assert unread(poddisruptionbudgets=as_list()) == core - {FactKind.BUDGETS}
    typed = {"apiVersion": "v1", "kind": "NamespaceList", "items": []}
    assert unread(whatever=typed) == core - {FactKind.BUDGETS, FactKind.NAMESPACES}


def test_a_file_that_cannot_be_read_may_have_held_anything(tmp_path: Path) -> None:
    write(tmp_path, pods=as_list(pod()), nodes=as_list(node()))
    (tmp_path / "more.json").write_text("{")
    assert {item.kind for item in read(tmp_path).unread} == set(FactKind)


def test_an_owner_kind_that_was_not_recorded_is_not_a_missing_owner(tmp_path: Path) -> None:
    owned = pod("a", meta=controlled_by("Job", "j", "batch/v1"))
    without = read(write(tmp_path, pods=as_list(owned)))
    assert [item.status for item in without.workloads] == [OwnerStatus.FORBIDDEN]
    assert "jobs.batch" in {gap.what for gap in without.gaps}
    others = read(write(tmp_path, jobs=as_list(owner("Job", "other", "batch/v1"))))
    assert [item.status for item in others.workloads] == [OwnerStatus.MISSING]


def test_budgets_of_every_form(tmp_path: Path) -> None:
    selectors: dict[str, Any] = {
        "labels": {"matchLabels": {"app": "x"}},
        "expressions": {"matchExpressions": [{"key": "tier", "operator": "In", "values": ["a", "b"]}]},
        "everything": {},
        "nothing": None,
    }
    kind = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "status": {"disruptionsAllowed": 1}}
    items = ({**kind, "metadata": metadata(name, "ml"), "spec": {"selector": it}} for name, it in selectors.items())
    found = {item.name: item for item in read(write(tmp_path, state=as_list(*items))).budgets}
    assert found["labels"] == DisruptionBudget(
        namespace="ml", name="labels", match_labels={"app": "x"}, disruptions_allowed=1
    )
    assert found["expressions"].match_expressions == (("tier", "In", ("a", "b")),)
    assert [name for name in selectors if found[name].selects_all] == ["everything"]


def test_the_description_names_the_folder(tmp_path: Path) -> None:
    assert RecordedCluster(tmp_path).description == f"recorded cluster in {tmp_path}"


def test_a_recorded_cluster_does_not_load_the_kubernetes_client() -> None:
    """It takes half a second, which commands on recorded state need not pay."""
    check = "import sys, gpuwatch.sources.kube.recorded; sys.exit('kubernetes' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_exporters_hold_nothing_unless_they_stand_beside_a_workload(tmp_path: Path) -> None:
    """A training Pod may have an exporter for its own GPUs among its containers."""
    image = "nvcr.io/nvidia/k8s/dcgm-exporter:4.4.2"
    mounted = [{"name": "pods", "hostPath": {"path": "/var/lib/kubelet/pod-resources"}}]
    training = {"name": "main", "image": "train:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    pods = as_list(
        pod("exporter-x", containers=[container("exporter", image)], volumes=mounted),
        pod("train", containers=[training, container("sidecar", image)], volumes=mounted),
    )
    cluster = read(write(tmp_path, pods=pods))
    assert cluster.exporter_pods == ("ml/exporter-x",)
    assert {"exporter-x", "train"} <= cluster.exporter_nodes.keys()
