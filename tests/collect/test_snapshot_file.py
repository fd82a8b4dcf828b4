"""A Snapshot survives its file, and other files are refused with a sentence."""

import gzip
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpuwatch.facts.model.cluster import (
    ClaimedDevice,
    Cluster,
    DisruptionBudget,
    Gang,
    Namespace,
    Node,
    NodeTerm,
    OwnerStatus,
    Placement,
    Pod,
    PodTerm,
    Requirement,
    Spread,
    Taint,
    Toleration,
    Workload,
)
from gpuwatch.facts.model.decision import Snapshot
from gpuwatch.facts.model.telemetry import (
    ActivityHistory,
    Device,
    Exporter,
    Gap,
    GapKind,
    PodRun,
    Readings,
    Schema,
    Signal,
    SignalFound,
    StateChange,
    Vendor,
)
from gpuwatch.sources.collect.pseudonyms import pseudonymise
from gpuwatch.sources.collect.snapshot_file import SnapshotFileError, is_snapshot, load_snapshot, save_snapshot

AT = datetime(2026, 3, 2, 12, tzinfo=UTC)
QUERY = 'max(x{$device, err="1", cluster="acme", job=~"team-x|a\\"fusion", instance!~"blackbox:1"})'
SECRETS = ("acme", "blackbox", "team-x", "fusion", "registry.acme.example", "0a1b2c3d")
"""Every name in the Snapshot below holds one of these."""


def full() -> Snapshot:
    """One of everything."""
    uuid = "GPU-0a1b2c3d-1111"
    return Snapshot(
        at=AT,
        telemetry_schema=Schema(
            matchers={"cluster": "acme"},
            vocabularies=("dcgm",),
            signals=(
                SignalFound(
                    signal=Signal.POWER_WATTS, vocabulary="dcgm", metric="DCGM_FI_DEV_POWER_USAGE", scale=1.0, devices=1
                ),
            ),
            backend="Prometheus at https://prometheus.acme.example/x",
        ),
        devices=(
            Device(
                id=f"{uuid}/7",
                uuid=uuid,
                vendor=Vendor.NVIDIA,
                vocabulary="dcgm",
                mig_instance="7",
                mig_profile="1g.10gb",
                model="NVIDIA A100-SXM4-80GB",
                node_label="gpu-1.acme.example",
                node="gpu-1.acme.example",
                untrusted="nothing ties team-x/fusion-0 to a Node",
                exporter="exporter.acme.example:9400",
                pods=("team-x/fusion-0",),
                containers=("fusion",),
            ),
        ),
        exporters=(Exporter(instance="exporter.acme.example:9400", job="acme", node="gpu-1.acme.example", up=True),),
        readings=Readings(
            values={"power_watts:last:0": {uuid: 61.5}},
            variants={"xid_window_count:max:600": {uuid: {"79": 1.0}}},
            promql={"power_watts:last:0": QUERY, f"matcher:{uuid}": f'UUID="{uuid}"'},
        ),
        activity=(ActivityHistory(device=f"{uuid}/7", pod="team-x/fusion-0", start=AT, step_seconds=300, steps="#.?"),),
        changes=(StateChange(device=uuid, signal=Signal.XID_CODE, at=AT, before=None, after=79.0),),
        pod_runs=(
            PodRun(
                pod="team-x/fusion-0",
                node="gpu-1.acme.example",
                created_by="Job/fusion",
                images=("registry.acme.example/blackbox:1",),
                reasons=("Error",),
            ),
        ),
        boots={"gpu-1.acme.example": AT},
        infiniband={"gpu-1.acme.example": {"mlx5_0/1": {"node_infiniband_state_id:max:300": 4.0}}},
        cluster=Cluster(
            nodes=(
                Node(
                    name="gpu-1.acme.example",
                    labels={"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "acme.example/team-x": "fusion"},
                    annotations={"acme.example/owner": "blackbox"},
                    taints=(
                        Taint("acme.example/for", "team-x", "NoSchedule"),
                        Taint("nvidia.com/gpu", "acme", "NoSchedule"),
                    ),
                    pool="acme-pool",
                ),
            ),
            pods=(
                Pod(
                    namespace="team-x",
                    name="fusion-0",
                    node="gpu-1.acme.example",
                    images=("registry.acme.example/blackbox:1",),
                    workload="StatefulSet/team-x/fusion",
                    gang="StatefulSet/team-x/fusion",
                    unscheduled='Unschedulable: persistentvolumeclaim "blackbox" not found',
                    claims=("fusion-claim",),
                    placement=Placement(
                        tolerations=(Toleration("acme.example/for", "Equal", "team-x", "NoSchedule"),),
                        node_selector={"acme.example/pool": "blackbox"},
                        node_terms=(
                            NodeTerm(
                                (Requirement("acme.example/zone", "In", ("blackbox",)),),
                                (Requirement("metadata.name", "In", ("gpu-1.acme.example",)),),
                            ),
                        ),
                        pod_affinity=(
                            PodTerm(
                                topology_key="acme.example/rack",
                                match_labels={"acme.example/app": "fusion"},
                                namespaces=("team-x",),
                            ),
                        ),
                        pod_anti_affinity=(
                            PodTerm(
                                topology_key="acme.example/rack",
                                match_expressions=(Requirement("acme.example/app", "In", ("fusion",)),),
                                namespaces=("team-x",),
                            ),
                        ),
                        spread=(
                            Spread(
                                topology_key="acme.example/rack",
                                match_labels={"acme.example/app": "fusion"},
                                match_expressions=(Requirement("acme.example/app", "Exists"),),
                            ),
                        ),
                    ),
                ),
            ),
            workloads=(
                Workload(
                    id="StatefulSet/team-x/fusion",
                    kind="StatefulSet",
                    api_version="apps/v1",
                    namespace="team-x",
                    name="fusion",
                    status=OwnerStatus.FOUND,
                    queue="acme-queue",
                    loses="Its suspension deletes the Job blackbox that it wraps.",
                ),
            ),
            gangs=(
                Gang(
                    id="StatefulSet/team-x/fusion",
                    framework="StatefulSet",
                    workload="StatefulSet/team-x/fusion",
                    namespace="team-x",
                    pods=("team-x/fusion-0",),
                ),
            ),
            budgets=(
                DisruptionBudget(
                    namespace="team-x",
                    name="fusion",
                    match_labels={"acme.example/app": "fusion"},
                    match_expressions=(("acme.example/tier", "In", ("blackbox",)),),
                ),
            ),
            namespaces=(Namespace(name="team-x", labels={"acme.example/cost": "fusion"}),),
            claims=(
                ClaimedDevice(
                    claim="team-x/fusion-claim", driver="gpu.nvidia.com", pool="acme", name="gpu-0", device=uuid
                ),
            ),
            exporter_nodes={"exporter.acme.example": "gpu-1.acme.example"},
            exporter_pods=("team-x/exporter.acme.example",),
            node_addresses={"gpu-1.acme.example": "gpu-1.acme.example"},
            known=True,
        ),
        gaps=(Gap(kind=GapKind.QUERY_FAILED, what="x", detail="https://prometheus.acme.example said no to team-x"),),
    )


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
    assert changed.cluster.nodes[0].labels["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-80GB"
    assert device.mig_profile == "1g.10gb"
    assert changed.readings.promql == {
        "power_watts:last:0": 'max(x{$device, err="1", cluster="…", job=~"…", instance!~"…"})'
    }
    assert device.untrusted == pod.unscheduled == changed.cluster.workloads[0].loses == "(withheld)"
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
        (gzip.compress(b'{"format":"gpuwatch-snapshot","version":2}'), "newer gpuwatch"),
        (gzip.compress(b'{"format":"gpuwatch-snapshot","version":1,"snapshot":{"at":7}}'), "damaged"),
        (gzip.compress(b'{"format":"gpuwatch-snapshot","version":1}' * 99)[:-9], "not a whole gzip file"),
    ],
    ids=["text", "other JSON", "half JSON", "newer", "wrong type", "cut off"],
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
