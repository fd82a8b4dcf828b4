"""Inventory: who is there, who holds what, and what is gone."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpuwatch.facts.model.telemetry import Device, Exporter, GapKind, Vendor
from gpuwatch.sources.telemetry.discovery import discover
from gpuwatch.sources.telemetry.inventory import Inventory, take_inventory
from gpuwatch.sources.telemetry.recording import RecordingStore, open_recording
from gpuwatch.sources.telemetry.samples import Function, Partition, SampleStore
from telemetry.timeline import AT, EVERY, FIXTURES, NOW, SAMPLES, Timeline, Witness, gpu, held, needs_samples, uuid

GAUDI = "01P0-HL2080A0-15-TNPS34-{}-07-{}"
TEMPERATURE, USED = "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_FB_USED"


def inventory_of(
    store: SampleStore, at: datetime = AT, lookback_seconds: int = 3600, lost_seconds: int = 0
) -> Inventory:
    schema, _ = discover(store, at)
    return take_inventory(store, at, schema, lookback_seconds, lost_seconds)


def of_page(*pages: Path) -> Inventory:
    return inventory_of(open_recording(list(pages), AT))


def holders(inventory: Inventory) -> dict[str, tuple[str, ...]]:
    return {device.id: device.pods for device in inventory.devices}


def exporters(inventory: Inventory) -> dict[str, tuple[bool | None, int]]:
    """By instance, whether it is up, and its devices."""
    return {each.instance: (each.up, each.devices) for each in inventory.exporters}


def only(inventory: Inventory) -> Device:
    assert len(inventory.devices) == 1
    return inventory.devices[0]


def test_honor_labels_false() -> None:
    inventory = of_page(FIXTURES / "honor-labels-false.prom")
    assert inventory.gaps == ()
    assert holders(inventory) == {uuid(1): ("team-a/train-0",), uuid(2): ()}
    assert inventory.scrape_targets == {"gpu-operator/nvidia-dcgm-exporter-7xk2p"}
    [exporter] = inventory.exporters
    job = "nvidia-dcgm-exporter"
    assert exporter == Exporter(instance="10.0.1.5:9400", job=job, node_label="gpu-a", up=True, devices=2)
    assert inventory.devices[0] == Device(
        id=uuid(1),
        uuid=uuid(1),
        vendor=Vendor.NVIDIA,
        vocabulary="dcgm",
        index="0",
        model="NVIDIA H100 80GB HBM3",
        driver_version="570.86.15",
        pci_bus_id="00000000:10:00.0",
        node_label="gpu-a",
        exporter="10.0.1.5:9400",
        pods=("team-a/train-0",),
        containers=("main",),
        last_seen=AT,
    )


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        # An exporter that only `up` gives away.
        ("honor-labels-true.prom", {uuid(0x11): ("team-b/llm-7d9f",), uuid(0x12): ()}),
        ("old-namespace.prom", {uuid(0x61): ("team-h/sim-3",), uuid(0x62): ()}),
        ("vgpu-replicated.prom", {uuid(0x31): ("team-d/notebook-ann-0", "team-e/notebook-bob-0")}),
        ("gaudi.prom", {GAUDI.format("00", "00"): ("team-k/gaudi-train-0",), GAUDI.format("01", "01"): ()}),
    ],
)
def test_holders_of_each_label_scheme(page: str, expected: dict[str, tuple[str, ...]]) -> None:
    inventory = of_page(FIXTURES / page)
    assert holders(inventory) == expected
    assert [each.shared for each in inventory.devices] == [len(pods) > 1 for _, pods in sorted(expected.items())]


@needs_samples
def test_real_answers_of_an_api_with_honor_labels_true() -> None:
    names = ("aicr-promapi-DCGM_FI_DEV_GPU_UTIL.json", "aicr-promapi-DCGM_FI_DEV_FB_USED.json")
    store = open_recording([SAMPLES / "dcgm" / name for name in names])
    inventory = inventory_of(store, store.end)
    held_devices = {device.id: device.pods for device in inventory.devices if device.pods}
    assert held_devices == {
        "GPU-c4529c8d-69c4-b61d-e0bc-7b2460096005": ("dynamo-workload/vllm-agg-0-vllmdecodeworker-s65j5",)
    }
    assert len(inventory.devices) == 16
    seen = [(each.node_label, each.devices, each.up) for each in inventory.exporters]
    assert seen == [("gpu-node-1", 8, None), ("gpu-node-2", 8, None)]


@needs_samples
def test_real_page_of_eight_h100() -> None:
    inventory = of_page(SAMPLES / "dcgm" / "aicr-h100x8-eks-driver580.prom")
    assert len(inventory.devices) == 8
    assert sum(bool(device.pods) for device in inventory.devices) == 1
    first = next(device for device in inventory.devices if device.index == "0")
    assert first.pods == ("dynamo-workload/vllm-agg-0-vllmdecodeworker-s65j5",)
    assert first.containers == ("main",)
    assert (first.driver_version, first.pci_bus_id) == ("580.105.08", "00000000:53:00.0")
    assert inventory.exporters == ()  # a bare page names no scrape target


@needs_samples
def test_real_page_of_two_t4_with_empty_labels() -> None:
    inventory = of_page(SAMPLES / "dcgm" / "runai-t4-x2-1workload.prom")
    assert holders(inventory) == {
        "GPU-5f587dd4-6505-0873-c6db-8324dbfe5ba9": (),
        "GPU-7a2e92f2-be71-d37e-a744-541600ffc722": (
            "runai-reservation/runai-reservation-gpu-qa-mig-worker-gpu-1-kvltw",
        ),
    }
    # The exporter gives its own Pod for a host; that is for the cluster to resolve.
    assert {device.node_label for device in inventory.devices} == {"nvidia-dcgm-exporter-s228n"}


@needs_samples
def test_real_pages_of_an_a100_with_and_without_instances() -> None:
    gpu_uuid = "GPU-7099682b-a20d-2bcc-74ab-b9060454d81e"
    empty = only(of_page(SAMPLES / "dcgm" / "runai-a100-mig-enabled-empty.prom"))
    assert (empty.id, empty.mig_instance, empty.pods) == (gpu_uuid, None, ())
    active = only(of_page(SAMPLES / "dcgm" / "runai-a100-mig-1g5gb-active.prom"))
    assert (active.id, active.uuid) == (f"{gpu_uuid}/9", gpu_uuid)
    assert (active.mig_instance, active.mig_profile) == ("9", "1g.5gb")


@needs_samples
def test_real_lines_of_an_amd_guest() -> None:
    device = only(of_page(SAMPLES / "amd" / "issue259-unpartitioned-excerpt.prom"))
    assert (device.vendor, device.id, device.pods) == (Vendor.AMD, "cb76105c40d0:0", ())


def test_mig_instances_and_a_gpu_without_one() -> None:
    inventory = of_page(FIXTURES / "mig.prom")
    assert [(device.id, device.uuid, device.mig_profile) for device in inventory.devices] == [
        (f"{uuid(0x51)}/2", uuid(0x51), "3g.40gb"),
        (f"{uuid(0x51)}/7", uuid(0x51), "1g.10gb"),
        (uuid(0x52), uuid(0x52), None),
    ]
    assert holders(inventory)[f"{uuid(0x51)}/7"] == ("team-g/small-0",)


def test_the_device_row_beside_rows_per_process_is_no_holder() -> None:
    inventory = of_page(FIXTURES / "per-process.prom")
    device = only(inventory)
    assert (device.pods, device.containers) == (("team-f/serve-a", "team-f/serve-b"), ("s", "s"))
    assert device.shared
    assert {metric for metric, _ in inventory.per_process} == {"DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED"}


def test_one_pod_with_two_containers_shares_nothing(tmp_path: Path) -> None:
    timeline = Timeline()
    for container in ("b", "a"):
        timeline.add(TEMPERATURE, gpu(1) | held("p") | {"exported_container": container}, 40)
    device = only(inventory_of(timeline.store(tmp_path)))
    assert (device.pods, device.containers, device.shared) == (("team/p",), ("a",), False)


def test_mixed_spellings_of_the_host_in_one_fleet() -> None:
    inventory = of_page(FIXTURES / "mig.prom", FIXTURES / "dcgm49.prom")
    assert {each.vocabulary: each.node_label for each in inventory.devices} == {"dcgm": "gpu-f", "dcgm49": "gpu-c"}
    assert next(d for d in inventory.devices if d.vocabulary == "dcgm49").driver_version == "590.10.01"
    # Series of the other spelling are in the part ''.
    assert inventory.partition == Partition("Hostname", {"gpu-f": 3, "": 2}, 0.0)


def test_amd_partitions() -> None:
    inventory = of_page(FIXTURES / "amd-mi300x.prom")
    assert [(device.id, device.uuid, device.mig_profile, device.pods) for device in inventory.devices] == [
        ("mi-a:692409005408:0", "mi-a:692409005408:0", None, ("team-i/bench-0",)),
        ("mi-a:692409005409/0", "mi-a:692409005409", "cpx_nps4", ()),
        ("mi-a:692409005409/1", "mi-a:692409005409", "cpx_nps4", ("team-i/part-1",)),
    ]
    assert {device.model for device in inventory.devices} == {"AMD Instinct MI300X OAM"}


def test_tiles_of_intel_are_one_device() -> None:
    tiles = only(of_page(FIXTURES / "xpum1.prom"))
    assert (tiles.vendor, tiles.pods, tiles.node_label) == (Vendor.INTEL, ("team-j/hpc-0",), "xe-a")


# What is gone


def fleet(timeline: Timeline, hosts: Sequence[str] = ("node-a", "node-b"), gpus: int = 4) -> Timeline:
    """Four GPUs on each host, an `up` for each exporter; nothing has happened yet."""
    for host in hosts:
        for number in range(gpus):
            timeline.add(TEMPERATURE, gpu({"node-a": 0, "node-b": 8}[host] + number, host), 40)
        timeline.add("up", {"job": "dcgm", "instance": f"{host}:9400"}, 1)
    return timeline


def test_one_gpu_missing_while_its_exporter_is_up(tmp_path: Path) -> None:
    timeline = fleet(Timeline(), gpus=3)
    timeline.add(TEMPERATURE, gpu(3, "node-a"), 40, until=600, ends=True)
    inventory = inventory_of(timeline.store(tmp_path))
    gone = [device for device in inventory.devices if not device.present]
    assert [device.id for device in gone] == [uuid(3)]
    assert gone[0].exporter == "node-a:9400"
    assert gone[0].node_label == "node-a"
    assert gone[0].last_seen == datetime.fromtimestamp(NOW - 600, UTC)
    assert exporters(inventory) == {"node-a:9400": (True, 4), "node-b:9400": (True, 3)}


def test_only_of_what_is_gone_is_it_asked_when_it_was_last_seen(tmp_path: Path) -> None:
    timeline = fleet(Timeline(), gpus=3)
    witness = Witness(timeline.store(tmp_path))
    inventory = inventory_of(witness)
    assert {(device.present, device.last_seen) for device in inventory.devices} == {(True, AT)}
    assert not [each for each in witness.asked if each.function is Function.LAST_TIME]

    timeline.add(TEMPERATURE, gpu(3, "node-a"), 40, until=600, ends=True)
    witness = Witness(timeline.store(tmp_path))
    inventory_of(witness)
    dear = [each for each in witness.asked if each.function is Function.LAST_TIME]
    assert [matcher.value for each in dear for matcher in each.selector.matchers] == [uuid(3)]


def test_many_that_are_gone_are_asked_for_without_naming_them(tmp_path: Path) -> None:
    timeline = Timeline()
    for number in range(301):
        timeline.add(TEMPERATURE, gpu(number), 40, ago=1200, until=900, every=150, ends=True)
    witness = Witness(timeline.store(tmp_path))
    inventory = inventory_of(witness)
    assert len(inventory.devices) == 301
    dear = [each for each in witness.asked if each.function is Function.LAST_TIME]
    assert [each.selector.matchers for each in dear] == [()]


def test_an_exporter_that_is_down(tmp_path: Path) -> None:
    timeline = fleet(Timeline(), ("node-b",))
    for number in range(4):
        timeline.add(TEMPERATURE, gpu(number, "node-a") | held("p"), 40, until=600, ends=True)
    up = {"job": "dcgm", "instance": "node-a:9400"}
    timeline.add("up", up, lambda ago: 1 if ago >= 600 else 0)
    inventory = inventory_of(timeline.store(tmp_path))
    assert exporters(inventory) == {"node-a:9400": (False, 4), "node-b:9400": (True, 4)}
    assert [device.present for device in inventory.devices] == [False] * 4 + [True] * 4
    assert inventory.devices[0].pods == ()  # nobody says who holds it now


def test_what_is_still_found_of_an_exporter_that_is_down_is_of_the_past(tmp_path: Path) -> None:
    timeline = fleet(Timeline(), ("node-b",))
    timeline.add(TEMPERATURE, gpu(1, "node-a") | held("p"), 40, until=120)  # with no marker of its end
    timeline.add(TEMPERATURE, gpu(2, "node-a") | held("q"), 40, until=120)
    timeline.add(TEMPERATURE, gpu(2, "node-a") | held("q") | {"instance": "node-a:9500"}, 40)  # another one shows it
    for port, answers in ((9400, 0), (9500, 1)):
        up = {"job": "dcgm", "instance": f"node-a:{port}"}
        timeline.add("up", up, lambda ago, answers=answers: 1 if ago >= 120 else answers)  # type: ignore[misc]
    inventory = inventory_of(timeline.store(tmp_path))
    assert exporters(inventory) == {"node-a:9400": (False, 1), "node-a:9500": (True, 1), "node-b:9400": (True, 4)}
    gone, shown = (next(each for each in inventory.devices if each.id == uuid(number)) for number in (1, 2))
    assert (gone.present, gone.pods, gone.exporter, gone.last_seen) == (False, (), "node-a:9400", AT)
    assert (shown.present, shown.exporter) == (True, "node-a:9500")


def test_an_exporter_whose_target_vanished_is_down(tmp_path: Path) -> None:
    timeline = fleet(Timeline(), ("node-b",))
    timeline.add(TEMPERATURE, gpu(1, "node-a"), 40, until=600, ends=True)
    timeline.add("up", {"job": "dcgm", "instance": "node-a:9400"}, 1, until=600, ends=True)
    inventory = inventory_of(timeline.store(tmp_path))
    assert exporters(inventory) == {"node-a:9400": (False, 1), "node-b:9400": (True, 4)}


def test_everything_gone(tmp_path: Path) -> None:
    timeline = Timeline()
    for number in range(4):
        timeline.add(TEMPERATURE, gpu(number), 40, until=1200)
    inventory = inventory_of(timeline.store(tmp_path))
    assert [device.present for device in inventory.devices] == [False] * 4
    assert [(each.devices, each.up) for each in inventory.exporters] == [(4, None)]


def test_both_sides_of_the_look_back(tmp_path: Path) -> None:
    timeline = fleet(Timeline(), ("node-b",))
    timeline.add(TEMPERATURE, gpu(1, "node-a"), 40, ago=7200, until=3600 - EVERY, ends=True)
    timeline.add(TEMPERATURE, gpu(2, "node-a"), 40, ago=7200, until=3600, ends=True)
    inventory = inventory_of(timeline.store(tmp_path))
    assert [device.id for device in inventory.devices if not device.present] == [uuid(1)]


HOUR, DAY = 3600, 24 * 3600


def lost(timeline: Timeline, folder: Path) -> dict[str, float]:
    """Seconds since the devices that are not there now were seen."""
    devices = inventory_of(timeline.store(folder), lost_seconds=DAY).devices
    return {each.id: NOW - each.last_seen.timestamp() for each in devices if not each.present and each.last_seen}


@pytest.mark.parametrize("seconds", [0.9 * HOUR, 1.1 * HOUR, 3 * HOUR, 12 * HOUR, 23.5 * HOUR, DAY - 60, DAY])
def test_a_gpu_is_missed_for_a_day_beside_others_of_its_machine(seconds: float, tmp_path: Path) -> None:
    timeline = fleet(Timeline(), ("node-a",), gpus=3)
    timeline.add(TEMPERATURE, gpu(3, "node-a"), 40, ago=3 * DAY, until=seconds, every=60, ends=True)
    told = lost(timeline, tmp_path)
    assert list(told) == ([uuid(3)] if seconds < DAY else [])
    # To five minutes, once it is gone for longer than the look-back.
    assert all(seconds - 300 <= ago <= seconds for ago in told.values())


@pytest.mark.parametrize(("hours", "missed"), [(0.9, True), (1.1, False), (3, False)])
def test_a_machine_that_is_gone_as_a_whole_is_missed_for_the_look_back_alone(
    hours: float, missed: bool, tmp_path: Path
) -> None:
    """It has left the cluster, perhaps; others may come and go every hour."""
    timeline = fleet(Timeline(), ("node-b",))
    for number in range(4):
        timeline.add(TEMPERATURE, gpu(number, "node-a"), 40, ago=2 * DAY, until=hours * HOUR, every=60, ends=True)
    witness = Witness(timeline.store(tmp_path))
    devices = inventory_of(witness, lost_seconds=DAY).devices
    assert len([each for each in devices if not each.present]) == (4 if missed else 0)
    dear = [each for each in witness.asked if each.function is Function.LAST_TIME]
    assert all(each.window_seconds == HOUR for each in dear)


def test_a_restarted_exporter_does_not_hide_that_a_gpu_is_lost(tmp_path: Path) -> None:
    timeline = Timeline()
    for number in range(4):
        old = gpu(number, "node-a", instance="10.0.0.1:9400")
        timeline.add(TEMPERATURE, old, 40, ago=DAY, until=5 * HOUR, every=60, ends=True)
        if number != 3:
            timeline.add(TEMPERATURE, gpu(number, "node-a", instance="10.0.0.2:9400"), 40, ago=5 * HOUR, every=60)
    assert list(lost(timeline, tmp_path)) == [uuid(3)]
    inventory = inventory_of(timeline.store(tmp_path), lost_seconds=DAY)
    assert [(each.instance, each.devices) for each in inventory.exporters] == [("10.0.0.2:9400", 4)]


def test_an_old_mig_layout_is_not_missed(tmp_path: Path) -> None:
    timeline = Timeline()
    timeline.add(TEMPERATURE, gpu(1, GPU_I_ID="7", GPU_I_PROFILE="1g.10gb"), 40, ago=DAY, until=5 * HOUR, every=60)
    timeline.add(TEMPERATURE, gpu(1), 40, ago=5 * HOUR, every=60)
    assert lost(timeline, tmp_path) == {}


def test_a_gpu_that_moved_to_another_machine_is_there(tmp_path: Path) -> None:
    timeline = fleet(Timeline(), gpus=3)
    timeline.add(TEMPERATURE, gpu(3, "node-a"), 40, ago=DAY, until=5 * HOUR, every=60, ends=True)
    timeline.add(TEMPERATURE, gpu(3, "node-b"), 40, ago=4 * HOUR, every=60)
    assert lost(timeline, tmp_path) == {}


def test_looking_further_back_costs_a_few_instant_questions(tmp_path: Path) -> None:
    asked = {}
    for lost_seconds in (0, DAY):
        witness = Witness(fleet(Timeline()).store(tmp_path))
        schema, _ = discover(witness, AT)
        witness.asked.clear()
        take_inventory(witness, AT, schema, HOUR, lost_seconds)
        asked[lost_seconds] = list(witness.asked)
    more = [each for each in asked[DAY] if each not in asked[0]]
    assert [each.function for each in more] == [Function.LAST] * 5
    assert [each.offset_seconds // HOUR for each in more] == [2, 4, 8, 16, 24]


def test_a_question_about_earlier_that_fails_is_a_gap(tmp_path: Path) -> None:
    timeline = fleet(Timeline(), ("node-a",))
    inventory = inventory_of(Witness(timeline.store(tmp_path), lambda each: each.offset_seconds > 0), lost_seconds=DAY)
    assert len(inventory.devices) == 4
    assert {gap.what for gap in inventory.gaps} == {f"devices before the look-back ({TEMPERATURE})"}


def test_a_restarted_exporter_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    timeline = Timeline()
    for number in range(4):
        timeline.add(TEMPERATURE, gpu(number, instance="10.0.0.1:9400"), 40, until=1200, ends=True)
        if number:
            timeline.add(TEMPERATURE, gpu(number, instance="10.0.0.9:9400"), 40, ago=1100)
    inventory = inventory_of(timeline.store(tmp_path))
    # GPU 0 did not come back: its exporter is up, so the GPU is what is missing.
    assert [(each.instance, each.devices) for each in inventory.exporters] == [("10.0.0.9:9400", 4)]
    assert {device.exporter for device in inventory.devices} == {"10.0.0.9:9400"}
    assert [device.present for device in inventory.devices] == [False, True, True, True]


def test_localhost_tells_no_exporter_from_another(tmp_path: Path) -> None:
    timeline = Timeline()
    timeline.add(TEMPERATURE, gpu(1, "localhost", instance="10.0.0.1:9400"), 40, until=1200, ends=True)
    timeline.add(TEMPERATURE, gpu(2, "localhost", instance="10.0.0.2:9400"), 40)
    inventory = inventory_of(timeline.store(tmp_path))
    assert exporters(inventory) == {"10.0.0.1:9400": (None, 1), "10.0.0.2:9400": (None, 1)}


def test_a_new_mig_layout_loses_no_device(tmp_path: Path) -> None:
    timeline = Timeline().add(TEMPERATURE, gpu(1), 40, until=1200, ends=True)
    timeline.add(TEMPERATURE, gpu(2), 40, until=1200, ends=True)
    for instance in ("7", "8"):
        timeline.add(TEMPERATURE, gpu(1, GPU_I_ID=instance, GPU_I_PROFILE="1g.10gb"), 40, ago=1100)
    inventory = inventory_of(timeline.store(tmp_path))
    assert [(device.id, device.present) for device in inventory.devices] == [
        (f"{uuid(1)}/7", True),
        (f"{uuid(1)}/8", True),
        (uuid(2), False),
    ]


def test_a_device_is_there_if_any_of_its_metrics_is(tmp_path: Path) -> None:
    timeline = Timeline().add(TEMPERATURE, gpu(1), 40).add(USED, gpu(1), 5)
    timeline.add(TEMPERATURE, gpu(2), 40, until=900, ends=True).add(USED, gpu(2), 5)
    inventory = inventory_of(timeline.store(tmp_path))
    assert [device.present for device in inventory.devices] == [True, True]


def test_the_holder_is_who_holds_it_now(tmp_path: Path) -> None:
    timeline = Timeline().add(TEMPERATURE, gpu(1) | held("old"), 40, until=600, ends=True)
    timeline.add(TEMPERATURE, gpu(1) | held("new"), 40, ago=600)
    device = only(inventory_of(timeline.store(tmp_path)))
    assert (device.pods, device.shared) == (("team/new",), False)


def test_a_pod_beside_an_exported_pod_is_an_exporter_even_without_up(tmp_path: Path) -> None:
    own = {"pod": "collector-1", "namespace": "mon", "container": "c"}
    timeline = Timeline().add(TEMPERATURE, gpu(1) | own | held("work"), 40).add(TEMPERATURE, gpu(2) | own, 40)
    assert holders(inventory_of(timeline.store(tmp_path))) == {uuid(1): ("team/work",), uuid(2): ()}


@pytest.mark.parametrize(
    ("known", "held_by"),
    [
        ((), [("mon/gpu-telemetry-w8kfd",), ("mon/gpu-telemetry-w8kfd",), ("mon/notebook-b4x9z",)]),
        (("mon/gpu-telemetry-w8kfd",), [(), (), ("mon/notebook-b4x9z",)]),
        (("mon/gpu-telemetry-b4x9z",), [(), (), ("mon/notebook-b4x9z",)]),
    ],
    ids=["nobody says so", "it is known", "the one after it is known"],
)
def test_an_exporter_under_a_name_of_its_own_holds_nothing_where_the_cluster_knows_it(
    known: tuple[str, ...], held_by: list[tuple[str, ...]], tmp_path: Path
) -> None:
    """With honorLabels: true and without `up` nothing in telemetry tells it from a workload."""
    timeline = Timeline()
    for number, pod in ((0, "gpu-telemetry-w8kfd"), (1, "gpu-telemetry-w8kfd"), (2, "notebook-b4x9z")):
        labels = gpu(number) | {"namespace": "mon", "pod": pod, "container": "main"}
        timeline.add(TEMPERATURE, labels, 40)
    store = timeline.store(tmp_path)
    schema, _ = discover(store, AT)
    inventory = take_inventory(store, AT, schema, 3600, exporter_pods=known)
    assert [device.pods for device in inventory.devices] == held_by
    assert inventory.scrape_targets == set(known)


def test_two_hosts_for_one_gpu_are_none(tmp_path: Path) -> None:
    timeline = Timeline().add(TEMPERATURE, gpu(1, "node-a"), 40).add(TEMPERATURE, gpu(1, "node-b"), 40)
    inventory = inventory_of(timeline.store(tmp_path))
    assert only(inventory).node_label == ""
    assert "at once with the hosts node-a, node-b" in inventory.doubts[only(inventory).id]


def test_of_two_exporters_on_one_host_the_one_that_names_it_is_believed(tmp_path: Path) -> None:
    timeline = Timeline().add(TEMPERATURE, gpu(1, "node-a"), 40)
    timeline.add(TEMPERATURE, gpu(1, "nvidia-dcgm-exporter-abcde"), 40)
    inventory = inventory_of(timeline.store(tmp_path))
    assert only(inventory).node_label == "node-a"
    assert inventory.gaps == ()


def test_partition_goes_by_the_device_where_the_host_is_the_exporters_pod(tmp_path: Path) -> None:
    timeline = Timeline().add(TEMPERATURE, gpu(1, "nvidia-dcgm-exporter-abcde"), 40)
    inventory = inventory_of(timeline.store(tmp_path))
    assert inventory.partition == Partition("UUID", {"": 0, uuid(1): 1}, 30.0)


# Questions that fail


def with_failing(store: RecordingStore, *functions: Function) -> Inventory:
    failing = Witness(store, lambda expression: expression.function in functions)
    return take_inventory(failing, AT, discover(store, AT)[0], 3600)


def test_no_answer_about_now_does_not_make_devices_gone(tmp_path: Path) -> None:
    timeline = Timeline().add(TEMPERATURE, gpu(1) | held("p"), 40)
    timeline.add(TEMPERATURE, gpu(2), 40, until=300).add(TEMPERATURE, gpu(3), 40, until=300 - EVERY)
    inventory = with_failing(timeline.store(tmp_path), Function.LAST)
    assert [device.present for device in inventory.devices] == [True, False, True]
    assert inventory.devices[0].pods == ("team/p",)
    assert {gap.kind for gap in inventory.gaps} == {GapKind.QUERY_FAILED}


@pytest.mark.parametrize("function", [Function.LAST_IN_WINDOW, Function.LAST_TIME])
def test_no_answer_about_the_look_back_leaves_what_is_there_now(tmp_path: Path, function: Function) -> None:
    timeline = Timeline().add(TEMPERATURE, gpu(1), 40).add(TEMPERATURE, gpu(2), 40, until=900)
    inventory = with_failing(timeline.store(tmp_path), function)
    assert [(device.id, device.last_seen) for device in inventory.devices] == [(uuid(1), AT)]
    assert [gap.kind for gap in inventory.gaps if "look-back" in gap.what] == [GapKind.QUERY_FAILED]


def test_an_empty_schema_has_an_empty_inventory(tmp_path: Path) -> None:
    inventory = inventory_of(Timeline().add("node_load1", {}, 1).store(tmp_path))
    assert inventory == Inventory()
