"""A Snapshot survives its file, and other files are refused with a sentence."""

import gzip
from pathlib import Path

import msgspec
import pytest
import yaml

from gpuwatch.facts.model.decision import Snapshot
from gpuwatch.sources.collect.pseudonyms import pseudonymise
from gpuwatch.sources.collect.snapshot_file import SnapshotFileError, is_snapshot, load_snapshot, save_snapshot

SECRETS = ("acme", "blackbox", "team-x", "fusion", "registry.acme.example", "0a1b2c3d")
"""Every name in the Snapshot holds one of these."""


def full() -> Snapshot:
    """One of everything."""
    text = Path(__file__).with_name("snapshot.yaml").read_text()
    return msgspec.convert(yaml.safe_load(text), Snapshot, strict=False)


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.json.gz"
    save_snapshot(full(), path)
    assert is_snapshot(path)
    assert load_snapshot(path) == full()
    assert [item.name for item in tmp_path.iterdir()] == ["snapshot.json.gz"]


def test_pseudonyms_leave_no_name_behind_and_keep_every_reference(tmp_path: Path) -> None:
    changed = pseudonymise(full())
    path = tmp_path / "snapshot.json.gz"
    save_snapshot(changed, path)
    text = gzip.decompress(path.read_bytes()).decode()
    assert [secret for secret in SECRETS if secret in text] == []
    (device,), (pod,), (gang,) = changed.devices, changed.cluster.pods, changed.cluster.gangs
    assert device.pods == (pod.ref,) == gang.pods == (changed.activity[0].pod,)
    assert device.node == pod.node == changed.cluster.nodes[0].name
    assert pod.workload == changed.cluster.workloads[0].id
    assert pod.gang == gang.id
    assert pod.placement.tolerations[0].key == changed.cluster.nodes[0].taints[0].key
    assert pod.placement.node_terms[0].fields[0].values == (pod.node,)
    assert pod.placement.pod_affinity[0].namespaces == (pod.namespace,)
    assert dict(pod.placement.pod_affinity[0].match_labels) == dict(pod.placement.spread[0].match_labels)
    assert changed.readings.values["power_watts:last:0"] == {device.uuid: 61.5}
    assert changed.cluster.claims[0].device == device.uuid
    assert list(changed.cluster.nodes[0].published or ()) == [device.uuid]
    assert changed.cluster.nodes[0].labels["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-80GB"
    assert device.mig_profile == "1g.10gb"
    assert changed.readings.promql == {
        "power_watts:last:0": 'max(x{$device, err="1", cluster="…", job=~"…", instance!~"…"})'
    }
    (doubted,) = changed.doubted
    assert (doubted.shown.node, doubted.shown.pods) == (pod.node, (pod.ref,))
    assert doubted.why == pod.unscheduled == changed.cluster.workloads[0].loses == "(withheld)"
    (run,) = changed.pod_runs
    assert (run.pod, run.node, run.reasons) == (pod.ref, pod.node, ("Error",))
    assert list(changed.boots) == list(changed.infiniband) == [pod.node]
    assert changed.infiniband[pod.node or ""] == full().infiniband["gpu-1.acme.example"]


def test_pseudonyms_cannot_be_guessed() -> None:
    first, second = pseudonymise(full()), pseudonymise(full())
    assert first.devices[0].uuid != second.devices[0].uuid
    assert pseudonymise(full(), key=b"k") == pseudonymise(full(), key=b"k")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"hello", "not a whole gzip file"),
        (gzip.compress(b"{}"), "not a file of `gpuwatch capture`"),
        (gzip.compress(b"{"), "damaged"),
        (gzip.compress(b'{"format":"gpuwatch-snapshot","version":3}'), "newer gpuwatch"),
        (gzip.compress(b'{"format":"gpuwatch-snapshot","version":1,"snapshot":{}}'), "older gpuwatch"),
        (gzip.compress(b'{"format":"gpuwatch-snapshot","version":2,"snapshot":{"at":7}}'), "damaged"),
        (gzip.compress(b'{"format":"gpuwatch-snapshot","version":1}' * 99)[:-9], "not a whole gzip file"),
    ],
    ids=["text", "other JSON", "half JSON", "newer", "older", "wrong type", "cut off"],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(content)
    with pytest.raises(SnapshotFileError, match=complaint) as caught:
        load_snapshot(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert not is_snapshot(tmp_path / "none")
    with pytest.raises(SnapshotFileError, match="no such file"):
        load_snapshot(tmp_path / "none")
