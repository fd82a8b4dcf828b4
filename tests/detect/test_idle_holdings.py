"""Who holds what: Pods that are left out, Pods that are gone, and what is known without a cluster."""

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from detect.idle_world import A_DAY, AN_HOUR, AT, POLICY, STEP, InEffect, bystander, only, steps, with_pod, world
from frameworks.names import api_version
from gpuwatch.facts.model.cluster import ClaimedDevice, Condition, Node, OwnerStatus, Pod, Sharing, Workload
from gpuwatch.facts.model.decision import FindingKind, Snapshot, Verdict
from gpuwatch.facts.model.telemetry import ActivityHistory, Device, DoubtedDevice, Vendor
from gpuwatch.judge.idle.assess import assess_idle
from gpuwatch.judge.idle.holdings import WorkloadClass, class_of, holdings_of, image_family, left_out_reasons
from gpuwatch.judge.idle.verdict import gpu_share

IDLE = InEffect(name="pod", activity=(steps((".", 9)),), memory_bytes=0)


def named(snapshot: Snapshot) -> set[str]:
    return {str(item.subject) for item in assess_idle(snapshot, POLICY)}


class TestLeftOut:
    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"phase": "Succeeded"}, "it has ended (Succeeded)"),
            ({"phase": "Failed"}, "it has ended (Failed)"),
            ({"phase": "Pending"}, "it does not run yet (Pending)"),
            ({"deleting": True}, "it is being deleted"),
        ],
    )
    def test_pods_that_do_not_run(self, changes: dict[str, object], reason: str) -> None:
        snapshot = with_pod(world(IDLE, bystander()), IDLE.ref, **changes)
        assert left_out_reasons(snapshot) == {IDLE.ref: reason}
        assert named(snapshot) == {"pod/other/bystander"}

    @pytest.mark.parametrize(("status", "counted"), [("False", False), ("True", True), ("Unknown", False)])
    def test_pods_on_nodes_that_are_not_ready(self, status: str, counted: bool) -> None:
        snapshot = world(IDLE, bystander())
        node = Node(name="node-pod", conditions=(Condition("Ready", status),))
        snapshot = replace(snapshot, cluster=replace(snapshot.cluster, nodes=(node,)))
        assert ("pod/chat/pod" in named(snapshot)) is counted
        assert left_out_reasons(snapshot) == ({} if counted else {IDLE.ref: "its Node node-pod is not ready"})

    def test_daemons_and_exporters(self) -> None:
        snapshot = world(IDLE, bystander())
        daemon = replace(snapshot.cluster.workloads[0], status=OwnerStatus.DAEMON)
        cluster = replace(
            snapshot.cluster,
            workloads=(daemon, *snapshot.cluster.workloads[1:]),
            exporter_nodes={"bystander": "node-bystander"},
        )
        assert left_out_reasons(replace(snapshot, cluster=cluster)) == {
            "chat/pod": "it belongs to a DaemonSet",
            "other/bystander": "it exports telemetry",
        }


class TestAge:
    def test_a_pod_made_anew_under_its_old_name_has_not_worked_itself(self) -> None:
        """A StatefulSet's Pod: the row goes on under the same name, the earlier part is the workload's past."""
        text = "#" * 3 * A_DAY + steps((".", 2))
        pod = InEffect(name="db-0", kind="StatefulSet", activity=(text,), age_hours=2, memory_bytes=0)
        found = only(world(pod, bystander()), pod.ref)
        assert found.kind is FindingKind.NEVER_USED
        assert "since it started; no idle time in" in found.summary

    def test_a_pod_of_unknown_age_is_as_old_as_its_activity(self) -> None:
        snapshot = with_pod(world(IDLE, bystander()), IDLE.ref, started=None, created=None)
        found = only(snapshot, IDLE.ref)
        assert (found.kind, found.since) == (FindingKind.NEVER_USED, AT - timedelta(hours=9))


class TestWithoutPodLabels:
    """An exporter that names no Pods: the cluster tells which devices a Pod has had since its start."""

    def unlabelled(self, *pods: InEffect) -> Snapshot:
        snapshot = world(*pods, bystander())
        return replace(snapshot, activity=tuple(replace(each, pod="") for each in snapshot.activity))

    def test_a_pod_is_judged_as_with_labels(self) -> None:
        assert only(self.unlabelled(IDLE), IDLE.ref) == only(world(IDLE, bystander()), IDLE.ref)

    def test_what_its_devices_did_before_its_start_is_not_its_past(self) -> None:
        text = "#" * 3 * A_DAY + steps((".", 2))
        pod = InEffect(name="db-0", kind="StatefulSet", activity=(text,), age_hours=2, memory_bytes=0)
        snapshot = self.unlabelled(pod)
        assert holdings_of(snapshot).past.get(pod.owner, ()) == ()
        assert only(snapshot, pod.ref).kind is not FindingKind.IN_USE


class TestWithoutCluster:
    def test_holders_are_judged_by_their_names(self) -> None:
        found = only(world(IDLE, bystander(), cluster_known=False), IDLE.ref)
        assert found.kind is FindingKind.NEVER_USED
        assert found.confidence_ratio == 0.85

    def test_one_that_was_there_from_the_beginning_may_have_worked_before(self) -> None:
        old = InEffect(name="old", activity=(steps((".", 23)),))
        assert only(world(old, bystander(1), days=23 / 24, cluster_known=False), old.ref).verdict is Verdict.UNKNOWN

    @pytest.mark.parametrize(("hours_before", "kind"), [(1, FindingKind.NEVER_USED), (0.9, FindingKind.IDLE_UNKNOWN)])
    def test_telemetry_must_be_an_hour_older_to_tell_its_age(self, hours_before: float, kind: FindingKind) -> None:
        new = InEffect(name="new", activity=(steps((".", 9)),), memory_bytes=0)
        days = (9 + hours_before) / 24
        assert only(world(new, bystander(days), days=days, cluster_known=False), new.ref).kind is kind

    def test_owners_are_not_guessed_from_names(self) -> None:
        one = InEffect(name="api-5d9c7b6f4-aaaaa", activity=(steps(("#", 50), (".", 9)),))
        two = InEffect(name="api-5d9c7b6f4-bbbbb", activity=(steps(("#", 59)),))
        holdings = holdings_of(world(one, two, cluster_known=False))
        assert {holder.workload for holder in holdings.holders.values()} == {one.ref, two.ref}


class TestGonePods:
    """Pods of which only rows are left, told by the names that controllers give."""

    @pytest.mark.parametrize(
        ("kind", "workload", "name", "told"),
        [
            ("Deployment", "api", "api-5d9c7b6f4-x2k9p", True),
            ("Deployment", "api", "api-x2k9p", False),
            ("Deployment", "api", "api-v2-5d9c7b6f4-x2k9p", False),
            ("Deployment", "api-v2", "api-v2-5d9c7b6f4-x2k9p", True),
            ("StatefulSet", "db", "db-11", True),
            ("StatefulSet", "db", "db-x2k9p", False),
            ("Job", "train", "train-x2k9p", True),
            ("Job", "train", "train-3-x2k9p", True),
            ("CronJob", "nightly", "nightly-29312345-x2k9p", True),
            ("RayCluster", "ray", "ray-x2k9p", False),
        ],
    )
    def test_names_that_tell(self, kind: str, workload: str, name: str, told: bool) -> None:
        now = InEffect(name="now", kind=kind, workload=workload, activity=(steps(("#", 9)),))
        gone = InEffect(name=name, activity=("#" * A_DAY + "?" * A_DAY,))
        holdings = holdings_of(world(now, bystander(), extra=gone.histories(14 * A_DAY)))
        assert bool(holdings.past.get(now.owner)) is told

    def test_a_name_that_two_would_have_given_tells_nothing(self) -> None:
        first = InEffect(name="now-1", kind="Job", workload="a", activity=(steps(("#", 9)),))
        second = InEffect(name="now-2", kind="CronJob", workload="a", activity=(steps(("#", 9)),))
        gone = InEffect(name="a-12345-x2k9p", activity=("#" * A_DAY,))
        holdings = holdings_of(world(first, second, extra=gone.histories(14 * A_DAY)))
        assert not holdings.past


class TestDevices:
    def test_a_claim_tells_what_a_pod_holds(self) -> None:
        pod = InEffect(
            name="pod",
            activity=(steps((".", 9)),),
            pod={"claims": ("gpu",), "accelerators": {}},
            device={"pods": ()},
        )
        snapshot = world(pod, bystander())
        claim = ClaimedDevice(claim="chat/gpu", driver="gpu.nvidia.com", pool="n", name="gpu-0", device="GPU-pod-0")
        claimed = replace(snapshot, cluster=replace(snapshot.cluster, claims=(claim,)))
        assert holdings_of(claimed).holders[pod.ref].devices[0].id == "GPU-pod-0"

    @pytest.mark.parametrize("by_claim", [False, True])
    def test_a_pod_with_a_doubted_device_is_unknown(self, by_claim: bool) -> None:
        """By a claim, no count of devices tells that one is missing."""
        given = {"pod": {"claims": ("gpu",), "accelerators": {}}, "device": {"pods": ()}} if by_claim else {}
        two = InEffect(name="pod", activity=(steps((".", 9)), steps((".", 9))), memory_bytes=0, **given)
        snapshot = world(two, bystander())
        claims = tuple(
            ClaimedDevice(claim="chat/gpu", driver="gpu.nvidia.com", pool="n", name=str(n), device=f"GPU-pod-{n}")
            for n in range(2)
            if by_claim
        )
        snapshot = replace(snapshot, cluster=replace(snapshot.cluster, claims=claims))
        assert only(snapshot, two.ref).verdict is Verdict.IDLE
        doubted = [item for item in snapshot.devices if item.id == "GPU-pod-1"]
        snapshot = replace(
            snapshot,
            devices=tuple(item for item in snapshot.devices if item not in doubted),
            doubted=tuple(DoubtedDevice(shown=item, why="two hosts") for item in doubted),
        )
        found = only(snapshot, two.ref)
        assert found.verdict is Verdict.UNKNOWN
        assert any("GPU-pod-1, which may be its own, is not trusted" in text for text in found.missing)

    @pytest.mark.parametrize("elsewhere", [None, "node-other"])
    def test_a_device_of_another_node_is_not_the_pods(self, elsewhere: str | None) -> None:
        """Neither by a row of the past, nor by a claim."""
        pod = InEffect(name="pod", activity=(steps((".", 9)),), device={"node": elsewhere, "pods": ()})
        snapshot = with_pod(world(pod, bystander()), pod.ref, claims=("gpu",))
        claim = ClaimedDevice(claim="chat/gpu", driver="gpu.nvidia.com", pool="n", name="gpu-0", device="GPU-pod-0")
        snapshot = replace(snapshot, cluster=replace(snapshot.cluster, claims=(claim,)))
        assert holdings_of(snapshot).holders[pod.ref].devices == ()
        assert only(snapshot, pod.ref).verdict is Verdict.UNKNOWN

    def test_a_claim_without_its_pod_is_reported(self) -> None:
        snapshot = world(bystander())
        device = Device(id="GPU-x", uuid="GPU-x", vendor=Vendor.NVIDIA, vocabulary="dcgm")
        claim = ClaimedDevice(claim="chat/left", driver="gpu.nvidia.com", pool="n", name="gpu-0", device="GPU-x")
        orphaned = replace(
            snapshot,
            devices=(*snapshot.devices, device),
            cluster=replace(snapshot.cluster, claims=(claim,)),
        )
        found = {str(item.subject): item for item in assess_idle(orphaned, POLICY)}
        assert "ResourceClaim chat/left" in found["device/GPU-x"].summary

    @pytest.mark.parametrize(
        ("sharing", "replicas", "ambiguous"),
        [
            (Sharing.TIME_SLICING, 4, True),
            (Sharing.TIME_SLICING, 1, False),
            (Sharing.NONE, 4, False),
            (Sharing.MPS, 2, True),
        ],
    )
    def test_a_node_that_shares_its_gpus_makes_them_ambiguous(
        self, sharing: Sharing, replicas: int, ambiguous: bool
    ) -> None:
        snapshot = world(IDLE)
        node = Node(name="node-pod", sharing=sharing, replicas=replicas)
        shared = replace(snapshot, cluster=replace(snapshot.cluster, nodes=(node,)))
        assert holdings_of(shared).holders[IDLE.ref].ambiguous is ambiguous

    def test_a_held_device_without_history_is_unknown(self) -> None:
        pod = InEffect(name="pod", activity=(steps((".", 9)), steps((".", 9))))
        snapshot = world(pod, bystander())
        rows = tuple(row for row in snapshot.activity if row.device != "GPU-pod-1")
        holder = holdings_of(replace(snapshot, activity=rows)).holders[pod.ref]
        assert np.unique(holder.lanes["GPU-pod-1"][-9 * AN_HOUR :]).tolist() == [2]

    @pytest.mark.parametrize(
        ("changes", "share"),
        [
            ({}, 1.0),
            ({"mig_profile": "3g.40gb", "model": "NVIDIA A100-SXM4-80GB"}, 0.5),
            ({"mig_profile": "1g.12gb+me", "model": "NVIDIA H100 NVL"}, 1 / 8),
            ({"mig_profile": "3g.40gb"}, 1.0),  # of a card that nobody knows,
            ({"mig_profile": "2g.12gb", "model": "NVIDIA A30"}, 0.5),
            ({"shared": True, "pods": ("a/a", "a/b")}, 0.5),
        ],
    )
    def test_part_of_a_gpu(self, changes: dict[str, object], share: float) -> None:
        device = Device(id="g", uuid="g", vendor=Vendor.NVIDIA, vocabulary="dcgm", **changes)  # type: ignore[arg-type]
        assert gpu_share(device) == pytest.approx(share)


def test_histories_of_different_steps_are_refused() -> None:
    odd = ActivityHistory(device="x", pod="a/b", start=AT - timedelta(hours=1), step_seconds=60, steps="." * 60)
    with pytest.raises(ValueError, match=f"steps of 60 s and others have {STEP} s"):
        assess_idle(world(IDLE, extra=(odd,)), POLICY)


@pytest.mark.parametrize(
    ("kind", "image", "expected"),
    [
        ("Deployment", "vllm/vllm-openai", WorkloadClass.SERVING),
        ("InferenceService", "", WorkloadClass.SERVING),
        ("StatefulSet", "quay.io/jupyter/scipy", WorkloadClass.INTERACTIVE),
        ("Notebook", "", WorkloadClass.INTERACTIVE),
        ("PyTorchJob", "jupyter/pytorch", WorkloadClass.BATCH),
        ("Pod", "nvidia/cuda", WorkloadClass.OTHER),
        ("Sprocket", "", WorkloadClass.OTHER),
        ("SeldonDeployment", "", WorkloadClass.SERVING),
        ("", "codercom/code-server", WorkloadClass.INTERACTIVE),
    ],
)
def test_class_of_a_workload(kind: str, image: str, expected: WorkloadClass) -> None:
    workload = Workload(id="x", kind=kind, api_version=api_version(kind), namespace="a", name="b")
    assert class_of(Pod(namespace="a", name="p", images=(image,)), workload) is expected


@pytest.mark.parametrize(
    ("image", "family"),
    [
        ("registry.example:5000/vllm/vllm-openai:v0.9", "vllm/vllm-openai"),
        ("vllm/vllm-openai@sha256:abc", "vllm/vllm-openai"),
        ("nvcr.io/nvidia/pytorch:25.01-py3", "nvidia/pytorch"),
        ("localhost/a:1", "a"),
        ("busybox", "busybox"),
    ],
)
def test_image_family(image: str, family: str) -> None:
    assert image_family(Pod(namespace="a", name="p", images=(image,))) == family
