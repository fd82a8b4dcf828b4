"""The door for labels: every spelling that exporters used, on rows as they were seen."""

import pytest

from gpuwatch.facts.model.telemetry import Vendor
from gpuwatch.sources.telemetry.labels import (
    Holder,
    Identity,
    device_matchers,
    holder,
    identity,
    looks_like_exporter,
    names_a_host,
    node_label,
    target,
)

NVIDIA, AMD, INTEL, GAUDI = Vendor.NVIDIA, Vendor.AMD, Vendor.INTEL, Vendor.GAUDI
UUID = "GPU-473571f2-fb37-ef7e-50fe-9885b74a23cd"


@pytest.mark.parametrize(
    ("labels", "vendor", "expected"),
    [
        ({"UUID": UUID}, NVIDIA, Identity(UUID, UUID)),
        ({"UUID": UUID, "GPU_I_ID": "", "GPU_I_PROFILE": ""}, NVIDIA, Identity(UUID, UUID)),
        (
            {"UUID": UUID, "GPU_I_PROFILE": "1g.5gb", "GPU_I_ID": "7"},
            NVIDIA,
            Identity(f"{UUID}/7", UUID, "7", "1g.5gb"),
        ),
        # GI 0 is the 7g instance: a digit, not nothing.
        ({"UUID": UUID, "GPU_I_ID": "0"}, NVIDIA, Identity(f"{UUID}/0", UUID, "0")),
        ({"uuid": UUID}, NVIDIA, Identity(UUID, UUID)),
        # NVLink rows of 4.8.3 spell it gpu_uuid.
        ({"nvlink": "0", "nvswitch": "0", "gpu": "0", "gpu_uuid": UUID}, NVIDIA, Identity(UUID, UUID)),
        ({"gpu": "0", "Hostname": "a"}, NVIDIA, None),
        ({"UUID": "01P0-HL2080A0"}, GAUDI, Identity("01P0-HL2080A0", "01P0-HL2080A0")),
    ],
)
def test_nvidia_and_gaudi_are_told_by_uuid(labels: dict[str, str], vendor: Vendor, expected: Identity | None) -> None:
    assert identity(labels, vendor) == expected


def test_an_amd_gpu_is_its_uuid_where_that_is_exported() -> None:
    labels = {"gpu_uuid": "ccff74a1", "hostname": "tw038", "gpu_id": "2", "gpu_compute_partition_type": "spx"}
    assert identity(labels, AMD) == Identity("ccff74a1", "ccff74a1")


def test_an_amd_gpu_without_uuid_is_its_host_serial_and_index() -> None:
    labels = {"hostname": "tw038", "serial_number": "692409005408", "gpu_id": "2", "gpu_partition_id": "0"}
    assert identity(labels, AMD) == Identity("tw038:692409005408:2", "tw038:692409005408:2")
    # As in ROCm/device-metrics-exporter issue 259: an SR-IOV guest has no serial number, and 'none' for a mode.
    guest = {"hostname": "cb76105c40d0", "serial_number": "", "gpu_id": "0", "gpu_partition_id": "NA"}
    assert identity(guest | {"gpu_compute_partition_type": "none"}, AMD) == Identity("cb76105c40d0:0", "cb76105c40d0:0")


def test_amd_partitions_share_the_serial_number_of_their_gpu() -> None:
    labels = {
        "hostname": "mi-a",
        "serial_number": "6924",
        "gpu_compute_partition_type": "CPX",
        "gpu_memory_partition_type": "NPS4",
    }
    third = identity(labels | {"gpu_id": "11", "gpu_partition_id": "3"}, AMD)
    fourth = identity(labels | {"gpu_id": "12", "gpu_partition_id": "4"}, AMD)
    assert third == Identity("mi-a:6924/3", "mi-a:6924", "3", "cpx_nps4")
    assert fourth is not None
    assert fourth.uuid == "mi-a:6924"
    assert fourth.id != "mi-a:6924/3"


def test_a_gpu_metric_of_another_exporter_is_no_amd_device() -> None:
    assert identity({"hostname": "a", "device": "0"}, AMD) is None


def test_intel_tiles_are_one_device() -> None:
    tiles = [{"uuid": "0100", "pci_bdf": "0000:3a:00.0", "sub_dev": tile} for tile in ("0", "1")]
    assert {identity(tile, INTEL) for tile in tiles} == {Identity("0100", "0100")}


def test_intel_without_uuid_is_its_host_and_pci_address() -> None:
    labels = {"pci_bdf": "0000:3a:00.0", "node": "xe-a"}
    assert identity(labels, INTEL) == Identity("xe-a:0000:3a:00.0", "xe-a:0000:3a:00.0")
    other_host = identity(labels | {"node": "xe-b"}, INTEL)
    by_target = identity({"pci_bdf": "0000:3a:00.0", "instance": "10.0.0.1:29999"}, INTEL)
    assert other_host is not None
    assert by_target is not None
    assert len({other_host.id, by_target.id, "xe-a:0000:3a:00.0"}) == 3
    assert identity({"node": "xe-a"}, INTEL) is None


EXPORTER = {"pod": "dcgm-exporter-dev-78z52", "namespace": "monitoring", "container": "exporter"}


def test_exported_labels_name_the_workload() -> None:
    # The line of NVIDIA/dcgm-exporter issue 340.
    row = EXPORTER | {
        "exported_container": "ai-artifactory-control",
        "exported_namespace": "default",
        "exported_pod": "pod1",
    }
    assert holder(row, NVIDIA) == Holder("default/pod1", "ai-artifactory-control")
    assert target(row) == "monitoring/dcgm-exporter-dev-78z52"


def test_an_idle_row_with_the_exporters_own_pod_is_held_by_nobody() -> None:
    assert holder(EXPORTER, NVIDIA) is None
    assert holder({**EXPORTER, "exported_pod": "", "exported_namespace": ""}, NVIDIA) is None
    assert target(EXPORTER) is None  # it may as well be a workload: nothing in the row says so


@pytest.mark.parametrize(
    ("pod", "container", "is_exporter"),
    [
        ("nvidia-dcgm-exporter-wqqqn", "nvidia-dcgm-exporter", True),
        ("dcgm-exporter-78z52", "dcgm-exporter", True),
        ("renamed-abcde", "dcgm-exporter", True),
        ("nvidia-dcgm-exporter-wqqqn", "renamed", True),
        ("vllm-agg-0-vllmdecodeworker-s65j5", "main", False),
        ("export-model-0", "main", False),
        ("trainer-dcgm-0", "main", False),
    ],
)
def test_without_known_targets_the_usual_names_decide(pod: str, container: str, is_exporter: bool) -> None:
    row = {"pod": pod, "namespace": "any", "container": container}
    assert (holder(row, NVIDIA) is None) is is_exporter


def test_known_targets_decide_over_names() -> None:
    row = {"pod": "collector-9zz1c", "namespace": "observability", "container": "collector"}
    assert holder(row, NVIDIA) == Holder("observability/collector-9zz1c", "collector")
    assert holder(row, NVIDIA, frozenset({"observability/collector-9zz1c"})) is None


def test_an_exporters_name_in_a_namespace_that_is_not_scraped_is_a_workload() -> None:
    targets = frozenset({"gpu-operator/nvidia-dcgm-exporter-wqqqn"})
    row = {"pod": "my-dcgm-exporter-fork-0", "namespace": "research", "container": "exporter"}
    assert holder(row, NVIDIA, targets) == Holder("research/my-dcgm-exporter-fork-0", "exporter")
    # A restarted exporter is in its namespace under a name that is not known yet.
    restarted = {"pod": "nvidia-dcgm-exporter-aaaaa", "namespace": "gpu-operator", "container": "x"}
    assert holder(restarted, NVIDIA, targets) is None


@pytest.mark.parametrize(
    ("namespace", "pod", "is_exporter"),
    [
        ("mon", "gpu-telemetry-b4x9z", True),
        ("mon", "gpu-telemetry-w8kfd", True),  # the same DaemonSet's, before or on another Node
        ("mon", "gpu-telemetry-0", False),
        ("mon", "gpu-telemetry-api-w8kfd", False),
        ("mon", "gpu-telemetry-aeiou", False),  # no name that Kubernetes makes
        ("team", "gpu-telemetry-w8kfd", False),
    ],
)
def test_pods_that_the_maker_of_a_known_exporter_made_are_exporters(
    namespace: str, pod: str, is_exporter: bool
) -> None:
    labels = {"namespace": namespace, "pod": pod, "container": "collector"}
    found = holder(labels, NVIDIA, frozenset({"mon/gpu-telemetry-b4x9z"}))
    assert (found is None) is is_exporter


def test_empty_labels_are_nobody() -> None:
    # As in the pages of old exporters: container="",namespace="",pod="".
    assert holder({"container": "", "namespace": "", "pod": ""}, NVIDIA) is None
    assert holder({}, NVIDIA) is None


def test_old_names_of_dcgm_exporter() -> None:
    row = {"pod_name": "sim-3", "pod_namespace": "team", "container_name": "solver", **EXPORTER}
    assert holder(row, NVIDIA) == Holder("team/sim-3", "solver")
    assert holder({**row, "pod_name": ""}, NVIDIA) is None


def test_other_vendors_name_the_pod_in_their_own_labels() -> None:
    scraped = {"pod": "some-exporter-of-ours-x", "namespace": "monitoring"}
    intel = {"kube_pod": "hpc-0", "kube_namespace": "team", "kube_container": "solver"}
    assert holder(intel | scraped, INTEL) == Holder("team/hpc-0", "solver")
    assert holder(scraped, INTEL) is None
    gaudi = {"pod_name": "g-0", "pod_namespace": "team"}
    assert holder(gaudi | scraped, GAUDI) == Holder("team/g-0", "")
    assert holder(scraped, GAUDI) is None
    amd = {"pod": "rocm-0", "namespace": "team", "container": "c"}
    assert holder(amd, AMD) == Holder("team/rocm-0", "c")
    assert holder({"pod": "", "namespace": "", "container": ""}, AMD) is None


def test_the_host_is_what_the_scrape_says_before_what_the_exporter_says() -> None:
    row = {"node": "ip-10-0-1-2", "Hostname": "nvidia-dcgm-exporter-wqqqn"}
    assert node_label(row) == "ip-10-0-1-2"
    assert node_label({"Hostname": "gpu-node-1"}) == "gpu-node-1"
    assert node_label({"hostname": "gpu-node-1"}) == "gpu-node-1"
    assert node_label({"node": "", "hostname": "gpu-node-1"}) == "gpu-node-1"
    assert node_label({"gpu": "0"}) == ""


@pytest.mark.parametrize(
    ("value", "is_host"),
    [
        ("gpu-node-1", True),
        ("ip-10-0-1-2.ec2.internal", True),
        ("localhost", False),
        ("10.0.1.2", False),
        ("fd00::1", False),
        ("nvidia-dcgm-exporter-tl46n", False),
        ("", False),
    ],
)
def test_what_exporters_give_in_place_of_a_host_name(value: str, is_host: bool) -> None:
    assert names_a_host(value) is is_host


def test_exporter_pods_by_name() -> None:
    assert looks_like_exporter("nvidia-dcgm-exporter-drqwq")
    assert looks_like_exporter("default-metrics-exporter-4kx9p")
    assert not looks_like_exporter("xpumping-station-0")


def test_matchers_pick_one_device() -> None:
    def shown(labels: dict[str, str], vendor: Vendor) -> str:
        return ",".join(f'{each.label}{each.op}"{each.value}"' for each in device_matchers(labels, vendor))

    assert shown({"UUID": UUID, "GPU_I_ID": "7", "pod": "x"}, NVIDIA) == f'UUID="{UUID}",GPU_I_ID="7"'
    assert shown({"uuid": UUID}, NVIDIA) == f'uuid="{UUID}"'
    amd = {"hostname": "mi-a", "serial_number": "6924", "gpu_id": "2", "gpu_partition_id": "0"}
    assert shown(amd, AMD) == 'hostname="mi-a",serial_number="6924",gpu_id="2",gpu_partition_id="0"'
    assert shown(amd | {"gpu_uuid": "cc"}, AMD) == 'gpu_uuid="cc",gpu_partition_id="0"'
    assert shown({"pci_bdf": "0000:3a:00.0", "node": "xe-a"}, INTEL) == 'pci_bdf="0000:3a:00.0",node="xe-a"'
    assert shown({"UUID": "01P0"}, GAUDI) == 'UUID="01P0"'
