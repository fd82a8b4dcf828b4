from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from uuid import NAMESPACE_DNS, uuid5

import pytest

from detect.builders import ago, cluster, device, exporters_of, findings, machines, scene, xid_became
from detect.questions import REMAP
from gpuwatch.facts.model.cluster import ClaimedDevice, Condition, Node, Sharing, Taint
from gpuwatch.facts.model.decision import Advice, Finding, Severity, Verdict
from gpuwatch.facts.model.telemetry import Device, DoubtedDevice, Exporter, Gap, GapKind, Readings
from gpuwatch.judge.health.assess import HealthPolicy

# Something that every GPU answers, so that only presence is in question.
WELL = {REMAP.failed: 0.0}


LONG_AGO = ago(minutes=20)


def without(devices: Sequence[Device], *gone: str, since: datetime = LONG_AGO) -> tuple[Device, ...]:
    """The same GPUs, of which these (or all of these Nodes) have not been seen since."""
    return tuple(
        replace(item, present=False, last_seen=since) if item.uuid in gone or item.node in gone else item
        for item in devices
    )


def gone(devices: Sequence[Device], nodes: Sequence[Node] = (), **more: object) -> dict[str, Finding]:
    names = {item.node for item in devices if item.node} - {node.name for node in nodes}
    state = cluster(nodes=[*nodes, *sorted(names)])
    return findings(scene(devices, WELL, state=state, **more))  # type: ignore[arg-type]


def test_one_gpu_missing_beside_siblings_that_report() -> None:
    [finding] = gone(without(machines(2), "gpu-0-3")).values()
    assert finding.id == "gpu_missing:device/gpu-0-3"
    assert (finding.verdict, finding.severity, finding.advice) == (Verdict.DEGRADED, Severity.CRITICAL, Advice.REBOOT)
    assert (finding.node, finding.since, finding.confidence_ratio) == ("node-0", ago(minutes=20), 0.9)
    assert finding.gpu_hours == pytest.approx(1 / 3)
    assert finding.evidence[0].note == "7 siblings report"


@pytest.mark.parametrize(("seconds", "verdict"), [(300, Verdict.DEGRADED), (299, Verdict.UNKNOWN)])
def test_a_short_silence_may_be_a_failed_scrape(seconds: int, verdict: Verdict) -> None:
    [finding] = gone(without(machines(2), "gpu-0-3", since=ago(seconds=seconds))).values()
    assert finding.verdict is verdict


def test_an_xid_79_before_leaves_no_doubt() -> None:
    fell = xid_became("gpu-0-3", 79, at=ago(minutes=21))
    found = gone(without(machines(2), "gpu-0-3"), changes=[fell])
    assert found["gpu_missing:device/gpu-0-3"].confidence_ratio == 0.97
    # The two signs corroborate each other.
    assert found["xid:device/gpu-0-3"].verdict is Verdict.DEGRADED


def test_what_the_device_plugin_gave_up_on_is_evidence() -> None:
    node = Node(name="node-0", accelerators={"nvidia.com/gpu": 8}, allocatable={"nvidia.com/gpu": 7})
    finding = gone(without(machines(2), "gpu-0-3"), [node])["gpu_missing:device/gpu-0-3"]
    assert finding.evidence[-1].note == "nvidia.com/gpu: the device plugin has given up on 1"


@pytest.mark.parametrize(("lost", "confidence"), [(4, 0.9), (5, 0.6)])
def test_most_of_a_machine_gone_is_less_sure_than_half_of_it(lost: int, confidence: float) -> None:
    found = gone(without(machines(9), *(f"gpu-0-{index}" for index in range(lost))))
    assert [item.confidence_ratio for item in found.values()] == [confidence] * lost


def test_a_device_plugin_that_gave_up_on_nothing_is_no_evidence() -> None:
    node = Node(name="node-0", accelerators={"nvidia.com/gpu": 8}, allocatable={"nvidia.com/gpu": 8})
    assert len(gone(without(machines(2), "gpu-0-3"), [node])["gpu_missing:device/gpu-0-3"].evidence) == 1


def test_an_exporter_is_known_by_its_address_whatever_its_host_is_called() -> None:
    devices = without(machines(6), "node-3")
    odd = Exporter(instance="node-3:9400", node_label="dcgm-exporter-x7", up=False, devices=8)
    rest = [item for item in exporters_of(devices) if item.node != "node-3"]
    found = gone(devices, exporters=[*rest, odd])
    assert found["exporter_down:node/node-3"].evidence[0].value == 0.0


def test_an_exporter_that_answers_without_devices_is_no_hardware_either() -> None:
    [finding] = gone(without(machines(12), "node-3")).values()
    assert (finding.kind, finding.verdict) == ("exporter_down", Verdict.UNKNOWN)
    assert (finding.node, len(finding.devices)) == ("node-3", 8)
    assert "a driver that is being loaded shows no device" in finding.summary


def test_a_scrape_that_has_just_failed_is_only_watched() -> None:
    [finding] = gone(without(machines(12), "node-3", since=ago(seconds=60))).values()
    assert (finding.severity, finding.advice) == (Severity.INFO, Advice.WATCH)


def test_an_exporter_that_came_back_under_another_address_is_not_gone() -> None:
    devices = machines(3)
    old = Exporter(instance="10.0.0.9:9400", node="node-1", node_label="node-1", up=False, devices=8)
    assert gone(devices, exporters=[*exporters_of(devices), old]) == {}


def test_a_gpu_lost_while_its_exporter_restarted_is_still_gone() -> None:
    """The lost GPU's series carry the old address, its siblings' the new one."""
    devices = without(machines(3), "gpu-1-0")
    moved = tuple(
        replace(item, exporter="new:9400") if item.node == "node-1" and item.present else item for item in devices
    )
    [finding] = gone(moved).values()
    assert (finding.id, finding.verdict) == ("gpu_missing:device/gpu-1-0", Verdict.DEGRADED)


@pytest.mark.parametrize(("silent", "fleet_wide"), [(1, False), (2, False), (3, True)])
def test_a_fifth_and_three_of_the_exporters_are_the_observer(silent: int, fleet_wide: bool) -> None:
    devices = without(machines(10), *(f"node-{number}" for number in range(silent)))
    found = gone(devices)
    assert ("telemetry_missing:fleet/fleet" in found) is fleet_wide
    assert len(found) == (1 if fleet_wide else silent)
    assert {item.verdict for item in found.values()} == {Verdict.UNKNOWN}


def test_one_of_three_exporters_is_not_a_fleet() -> None:
    assert list(gone(without(machines(3), "node-0"))) == ["exporter_down:node/node-0"]


@pytest.mark.parametrize("nodes", [1, 3])
def test_all_of_them_always_are(nodes: int) -> None:
    [finding] = gone(without(machines(nodes), *(f"node-{number}" for number in range(nodes)))).values()
    assert (finding.id, finding.severity) == ("telemetry_missing:fleet/fleet", Severity.CRITICAL)
    assert len(finding.devices) == nodes * 8


def test_nothing_read_at_all_is_unknown_and_says_why() -> None:
    gap = Gap(kind=GapKind.UNREACHABLE, what="telemetry", detail="connection refused")
    empty = replace(scene([]), readings=Readings(), gaps=(gap,))
    [finding] = findings(empty).values()
    assert (finding.id, finding.verdict) == ("telemetry_missing:fleet/fleet", Verdict.UNKNOWN)
    assert "connection refused" in finding.summary


def test_a_node_that_left_the_cluster_is_no_fault() -> None:
    """Autoscaling took node-9 away: no Node object, so its host resolves to nothing."""
    left = [
        device(f"gpu-9-{index}", node=None, label="node-9", present=False, last_seen=ago(minutes=20))
        for index in range(8)
    ]
    state = cluster(nodes=["node-0", "node-1"])
    assert findings(scene([*machines(2), *left], WELL, state=state)) == {}
    # Without a cluster nobody knows: unknown, not healthy and not a fault.
    found = findings(scene([*machines(6), *left], WELL))
    assert [(item.id, item.verdict) for item in found.values()] == [("exporter_down:node/node-9", Verdict.UNKNOWN)]


def test_many_nodes_that_left_are_no_blindness() -> None:
    left = [device(f"gpu-{node}-0", node=None, label=f"node-{node}", present=False) for node in range(2, 9)]
    assert findings(scene([*machines(2), *left], WELL, state=cluster(nodes=["node-0", "node-1"]))) == {}


def test_hosts_that_never_resolve_are_not_taken_for_removed_nodes() -> None:
    nameless = [replace(item, node=None) for item in machines(6)]
    devices = [
        replace(item, present=False, last_seen=ago(minutes=20)) if item.node_label == "node-0" else item
        for item in nameless
    ]
    found = findings(scene(devices, WELL, state=cluster(nodes=["other"])))
    assert list(found) == ["exporter_down:node/node-0"]


@pytest.mark.parametrize(
    ("labels", "fault"),
    [
        ({"nvidia.com/mig.config.state": "pending"}, False),
        ({"nvidia.com/mig.config.state": "rebooting"}, False),
        ({"nvidia.com/mig.config.state": "success"}, True),
        ({"nvidia.com/mig.config.state": "failed"}, True),
        ({"nvidia.com/gpu-driver-upgrade-state": "pod-restart-required"}, False),
        ({"nvidia.com/gpu-driver-upgrade-state": "upgrade-done"}, True),
    ],
)
def test_a_change_that_somebody_makes_is_no_fault(labels: dict[str, str], fault: bool) -> None:
    found = gone(without(machines(2), "gpu-0-3"), [Node(name="node-0", labels=labels)])
    assert bool(found) is fault


@pytest.mark.parametrize(
    ("taints", "fault"),
    [
        ((Taint("aws-node-termination-handler/spot-itn", "1", "NoSchedule"),), False),
        ((Taint("karpenter.sh/disrupted", "", "NoSchedule"),), False),
        ((Taint("kubernetes.azure.com/scalesetpriority", "spot", "NoSchedule"),), True),
    ],
)
def test_what_leaves_with_a_node_that_its_provider_takes_back_is_no_fault(
    taints: tuple[Taint, ...], fault: bool
) -> None:
    """A spot Node is as any other until its end is notified."""
    node = Node(name="node-0", taints=taints, labels={"karpenter.sh/capacity-type": "spot"})
    assert bool(gone(without(machines(2), "gpu-0-3"), [node])) is fault


def test_a_new_mig_layout_is_no_loss() -> None:
    """GI ids are not stable: the old instances are gone, and the GPU is not."""
    old = [device("gpu-0", mig=mig, present=False, last_seen=ago(minutes=20)) for mig in ("7", "8")]
    assert gone([*old, device("gpu-0", mig="1"), device("gpu-1")]) == {}


def test_an_exchanged_gpu_is_not_missed() -> None:
    old = device("gpu-old", pci="00000000:53:00.0", present=False, last_seen=ago(minutes=20))
    new = device("gpu-new", pci="00000000:53:00.0")
    assert gone([old, new, device("gpu-1", pci="00000000:64:00.0")]) == {}
    assert list(gone([old, replace(new, pci_bus_id="00000000:75:00.0")])) == ["gpu_missing:device/gpu-old"]


@pytest.mark.parametrize(("created", "fault"), [(ago(minutes=19), False), (ago(days=3), True)])
def test_a_machine_that_was_made_anew_has_other_gpus(created: datetime, fault: bool) -> None:
    assert bool(gone(without(machines(2), "gpu-0-3"), [Node(name="node-0", created=created)])) is fault


def test_the_same_loss_on_many_machines_is_a_change_of_what_is_exported() -> None:
    found = gone(without(machines(5), "gpu-0-7", "gpu-1-7", "gpu-2-7"))
    assert {item.verdict for item in found.values()} == {Verdict.UNKNOWN}
    assert {item.advice for item in found.values()} == {Advice.FIX_MONITORING}
    # Two machines in five may well have one bad GPU each.
    assert {item.verdict for item in gone(without(machines(5), "gpu-0-7", "gpu-1-7")).values()} == {Verdict.DEGRADED}


def test_a_gpu_of_unknown_age_is_not_condemned() -> None:
    devices = tuple(
        replace(item, last_seen=None) if not item.present else item for item in without(machines(2), "gpu-0-3")
    )
    [finding] = gone(devices).values()
    assert finding.verdict is Verdict.UNKNOWN


def test_everything_asked_for_shows_who_is_there() -> None:
    shown = findings(scene(machines(1), WELL), everything=True)
    assert shown["gpu_missing:device/gpu-0-0"].verdict is Verdict.HEALTHY


def test_the_bounds_are_the_policys() -> None:
    devices = without(machines(10), "node-0", "node-1")
    tolerant = HealthPolicy(telemetry_missing_ratio=0.3)
    state = cluster(nodes=sorted({item.node or "" for item in devices}))
    found = findings(scene(devices, WELL, state=state), tolerant)
    assert sorted(found) == ["exporter_down:node/node-0", "exporter_down:node/node-1"]
    assert all(item.since == ago(minutes=20) for item in found.values())


def counted(name: str, capacity: int = 8, allocatable: int | None = None, **more: object) -> Node:
    whole = {"nvidia.com/gpu": capacity}
    left = {} if allocatable is None else {"nvidia.com/gpu": allocatable}
    return Node(name=name, accelerators=whole, allocatable=left, **more)  # type: ignore[arg-type]


class TestAgainstTheCluster:
    """A GPU that was lost before the inventory's window is known to nobody but the Node's capacity."""

    FLEET = tuple(item for item in machines(4) if item.uuid != "gpu-2-5")
    NODES = tuple(counted(f"node-{number}") for number in range(4))

    def test_fewer_gpus_than_the_capacity_says(self) -> None:
        [finding] = gone(self.FLEET, self.NODES).values()
        assert (finding.id, finding.verdict, finding.confidence_ratio) == (
            "gpu_missing:node/node-2",
            Verdict.DEGRADED,
            0.6,
        )
        assert finding.summary == "1 of its 8 GPUs is missing in telemetry (index 5)"

    @pytest.mark.parametrize("doubted", [["gpu-2-5"], [f"gpu-2-{n}" for n in range(8)]], ids=["one", "all of a Node"])
    @pytest.mark.parametrize("lost", [[], ["gpu-2-7"]])
    def test_a_doubted_gpu_is_not_missing(self, doubted: list[str], lost: list[str]) -> None:
        fleet = without(machines(4), *lost)
        shown = tuple(DoubtedDevice(shown=item, why="two hosts") for item in fleet if item.uuid in doubted)
        trusted = [item for item in fleet if item.uuid not in doubted]
        state = cluster(nodes=self.NODES)
        found = findings(replace(scene(trusted, WELL, state=state), doubted=shown))
        assert list(found) == [f"gpu_missing:device/{name}" for name in lost if name not in doubted]

    def test_what_is_left_beside_doubted_gpus_says_nothing_of_their_exporter(self) -> None:
        fleet = without(machines(4), "gpu-2-7")
        shown = tuple(
            DoubtedDevice(shown=item, why="two hosts") for item in fleet if item.node == "node-2" and item.present
        )
        trusted = [item for item in fleet if item.node != "node-2" or not item.present]
        assert findings(replace(scene(trusted, WELL, state=cluster(nodes=self.NODES)), doubted=shown)) == {}

    def test_the_device_plugin_agrees(self) -> None:
        nodes = [counted("node-2", allocatable=7), *(node for node in self.NODES if node.name != "node-2")]
        [finding] = gone(self.FLEET, nodes).values()
        assert (finding.severity, finding.confidence_ratio) == (Severity.CRITICAL, 0.85)

    def test_a_device_plugin_that_is_gone_agrees_with_nothing(self) -> None:
        """It withdraws all devices, also those that report: an update of the plugin, or a kubelet that waits for it."""
        nodes = [counted("node-2", allocatable=0), *(node for node in self.NODES if node.name != "node-2")]
        [finding] = gone(self.FLEET, nodes).values()
        assert (finding.severity, finding.confidence_ratio) == (Severity.WARNING, 0.6)

    def test_a_gpu_that_is_still_remembered_is_counted_once(self) -> None:
        assert list(gone(without(machines(4), "gpu-2-5"), self.NODES)) == ["gpu_missing:device/gpu-2-5"]

    @pytest.mark.parametrize(
        "node",
        [
            counted("node-2", replicas=4, sharing=Sharing.TIME_SLICING),
            counted("node-2", mig_layout={"1g.10gb": 7}),
            counted("node-2", labels={"nvidia.com/mig.config.state": "pending"}),
            counted("node-2", created=ago(minutes=59)),
            Node(name="node-2"),
            Node(name="node-2", accelerators={"nvidia.com/mig-1g.10gb": 56}),
        ],
    )
    def test_capacities_that_count_something_else_say_nothing(self, node: Node) -> None:
        others = [item for item in self.NODES if item.name != "node-2"]
        assert gone(self.FLEET, [node, *others]) == {}

    def test_a_resource_of_which_there_are_none_does_not_count(self) -> None:
        mixed = Node(name="node-2", accelerators={"nvidia.com/gpu": 8, "nvidia.com/mig-1g.10gb": 0})
        others = [item for item in self.NODES if item.name != "node-2"]
        assert list(gone(self.FLEET, [mixed, *others])) == ["gpu_missing:node/node-2"]

    def test_a_node_without_accelerators_needs_no_exporter(self) -> None:
        assert gone(machines(4), [*self.NODES, Node(name="cpu-node")]) == {}

    def test_without_a_cluster_nothing_is_counted(self) -> None:
        state = cluster(nodes=self.NODES, known=False)
        assert findings(scene(self.FLEET, WELL, state=state)) == {}

    @pytest.mark.parametrize(("nodes", "short"), [(4, 2), (40, 3)])
    def test_a_few_short_nodes_are_each_their_own(self, nodes: int, short: int) -> None:
        lost = {f"gpu-{number}-0" for number in range(short)}
        fleet = [item for item in machines(nodes, 2) if item.uuid not in lost]
        found = gone(fleet, [counted(f"node-{number}", 2) for number in range(nodes)])
        assert {item.verdict for item in found.values()} == {Verdict.DEGRADED}
        assert len(found) == short

    def test_a_node_is_given_an_hour_to_settle(self) -> None:
        others = [item for item in self.NODES if item.name != "node-2"]
        assert list(gone(self.FLEET, [counted("node-2", created=ago(minutes=60)), *others])) == [
            "gpu_missing:node/node-2"
        ]

    def test_exporters_that_leave_some_out_are_no_faults(self) -> None:
        fleet = tuple(item for item in machines(4) if not item.uuid.endswith("-7"))
        [finding] = gone(fleet, self.NODES).values()
        assert (finding.id, finding.verdict) == ("gpu_missing:fleet/fleet", Verdict.UNKNOWN)

    def test_a_node_that_no_exporter_speaks_for_is_unknown(self) -> None:
        nodes = [*self.NODES, *(counted(f"node-{number}") for number in range(5, 9))]
        fleet = [item for item in machines(9) if item.node != "node-4"]
        dark = counted("node-4", conditions=(Condition("Ready", "False"),))
        [finding] = gone(fleet, [*nodes, dark]).values()
        assert (finding.id, finding.verdict) == ("exporter_down:node/node-4", Verdict.UNKNOWN)
        assert finding.summary == "no telemetry of its GPUs, and the Node is NotReady"

    def test_a_dark_node_needs_no_whole_gpus(self) -> None:
        shared = counted("node-9", replicas=4, sharing=Sharing.TIME_SLICING)
        nodes = [*(counted(f"node-{number}") for number in range(6)), shared]
        assert list(gone(machines(6), nodes)) == ["exporter_down:node/node-9"]

    def test_many_such_nodes_are_one_finding(self) -> None:
        nodes = [*self.NODES, counted("node-7"), counted("node-8"), counted("node-9")]
        [finding] = gone(machines(4), nodes).values()
        assert (finding.id, finding.verdict) == ("exporter_down:fleet/fleet", Verdict.UNKNOWN)

    def test_hosts_that_resolve_to_no_node_may_be_the_missing_ones(self) -> None:
        lost = tuple(replace(item, node=None) if item.uuid == "gpu-0-0" else item for item in self.FLEET)
        assert findings(scene(lost, WELL, state=cluster(nodes=self.NODES))) == {}


def slotted(nodes: int) -> tuple[Device, ...]:
    return tuple(replace(item, pci_bus_id=f"00000000:{0x1A + int(item.index):02X}:00.0") for item in machines(nodes))


class TestForVirtualMachines:
    """GPUs that are passed through to a virtual machine leave the host's driver, and are not broken."""

    FLEET = without(machines(2), "gpu-0-3")

    @pytest.mark.parametrize(("config", "fault"), [("vm-passthrough", False), ("vm-vgpu", False), ("container", True)])
    def test_a_node_of_the_operator_for_vms(self, config: str, fault: bool) -> None:
        node = Node(name="node-0", labels={"nvidia.com/gpu.workload.config": config})
        assert bool(gone(self.FLEET, [node])) is fault

    def test_a_whole_node_for_vms_needs_no_exporter(self) -> None:
        node = counted("node-3", labels={"nvidia.com/gpu.workload.config": "vm-passthrough"})
        others = [counted(f"node-{number}") for number in range(3)]
        assert gone(machines(3), [*others, node]) == {}
        silent = gone(without(machines(4), "node-3"), [*others, node])["exporter_down:node/node-3"]
        assert (silent.severity, silent.advice) == (Severity.INFO, Advice.WATCH)
        assert "virtual machines" in silent.summary

    @pytest.mark.parametrize(
        ("name", "pool", "address", "fault"),
        [
            ("gpu-vfio-3", "node-0", "0000:1d:00.0", False),
            ("gpu-vfio-4", "node-0", "0000:1e:00.0", True),
            ("gpu-vfio-3", "node-1", "0000:1d:00.0", True),
            ("gpu-3", "node-0", "0000:1d:00.0", True),
        ],
    )
    def test_a_gpu_that_the_dra_driver_passed_through(self, name: str, pool: str, address: str, fault: bool) -> None:
        """The driver publishes uuid.NewSHA1(NameSpaceDNS, address) for it, on every Node alike."""
        claim = ClaimedDevice(
            claim="ns/vm", driver="gpu.nvidia.com", pool=pool, name=name, device=str(uuid5(NAMESPACE_DNS, address))
        )
        fleet = without(slotted(2), "gpu-0-3")
        state = replace(cluster(nodes=["node-0", "node-1"]), claims=(claim,))
        assert bool(findings(scene(fleet, WELL, state=state))) is fault

    @pytest.mark.parametrize(("lost", "fault"), [(1, False), (2, True)])
    def test_where_no_slot_is_exported_the_claims_are_counted(self, lost: int, fault: bool) -> None:
        claim = ClaimedDevice(claim="ns/vm", driver="gpu.nvidia.com", pool="node-0", name="gpu-vfio-3", device="?")
        fleet = without(machines(2), *(f"gpu-0-{index}" for index in range(lost)))
        state = replace(cluster(nodes=["node-0", "node-1"]), claims=(claim,))
        assert bool(findings(scene(fleet, WELL, state=state))) is fault

    @pytest.mark.parametrize(
        ("counted", "fault"),
        [
            ({"nvidia.com/gpu": 7, "nvidia.com/GH100_H100_SXM5_80GB": 1}, False),
            ({"nvidia.com/gpu": 7, "nvidia.com/pgpu": 1}, False),
            # That one was passed through long ago: the device plugin counts the one that is gone now.
            ({"nvidia.com/gpu": 8, "nvidia.com/pgpu": 1}, True),
            ({"nvidia.com/gpu": 7}, True),
            ({"nvidia.com/gpu": 7, "nvidia.com/mig-1g.10gb": 1}, True),
        ],
    )
    def test_a_gpu_that_another_device_plugin_offers(self, counted: dict[str, int], fault: bool) -> None:
        found = gone(self.FLEET, [Node(name="node-0", accelerators=counted, allocatable=counted)])
        assert bool(found) is fault


class TestWhichOne:
    """Where one is missing, the others tell which."""

    def test_a_gpu_that_is_remembered_is_named_by_index_and_slot(self) -> None:
        [finding] = gone(without(slotted(2), "gpu-0-3")).values()
        assert finding.summary.startswith("index 3, slot 00000000:1D:00.0: gone for 20 min")

    def test_seven_indices_report_and_the_eighth_is_plain(self) -> None:
        fleet = [item for item in slotted(4) if item.uuid != "gpu-2-5"]
        [finding] = gone(fleet, [counted(f"node-{number}", pool="h100") for number in range(4)]).values()
        assert finding.summary == "1 of its 8 GPUs is missing in telemetry (index 5; slot 00000000:1F:00.0)"

    def test_gpus_that_were_numbered_anew_do_not_tell_it(self) -> None:
        renumbered = [item for item in slotted(4) if item.uuid != "gpu-2-5"]
        fleet = [
            replace(item, index=str(int(item.index) - 1)) if item.node == "node-2" and int(item.index) > 5 else item
            for item in renumbered
        ]
        [finding] = gone(fleet, [counted(f"node-{number}", pool="h100") for number in range(4)]).values()
        assert "(index 7 or numbered anew; slot 00000000:1F:00.0)" in finding.summary


class TestAgainstItsSiblings:
    """After a reboot the device plugin and GPU feature discovery count seven as well."""

    FLEET = tuple(item for item in machines(4) if item.uuid != "gpu-2-5")

    def nodes(self, *capacities: int, kind: str = "p5.48xlarge") -> list[Node]:
        labels = {"node.kubernetes.io/instance-type": kind} if kind else {}
        return [
            counted(f"node-{number}", capacity, capacity, labels=labels, gpu_product="H100", gpu_count=capacity)
            for number, capacity in enumerate(capacities)
        ]

    def test_a_node_with_fewer_gpus_than_its_siblings(self) -> None:
        [finding] = gone(self.FLEET, self.nodes(8, 8, 7, 8)).values()
        assert finding.id == "gpu_missing:node/node-2"
        assert finding.summary == (
            "1 of its 8 GPUs is missing in telemetry and in its capacity; Nodes of its kind have them (index 5)"
        )
        assert (finding.verdict, finding.advice, finding.confidence_ratio) == (Verdict.DEGRADED, Advice.INSPECT, 0.6)

    def test_a_gpu_that_telemetry_remembers_is_named_once(self) -> None:
        found = gone(without(machines(4), "gpu-2-5"), self.nodes(8, 8, 7, 8))
        assert list(found) == ["gpu_missing:device/gpu-2-5"]

    def test_nodes_of_another_kind_are_no_siblings(self) -> None:
        nodes = self.nodes(8, 8, 7, 8)
        other = replace(nodes[2], labels={"node.kubernetes.io/instance-type": "p5.seven"})
        assert gone(self.FLEET, [*nodes[:2], other, nodes[3]]) == {}

    def test_too_few_siblings_prove_nothing(self) -> None:
        fleet = [item for item in machines(3) if item.uuid != "gpu-2-5"]
        assert gone(fleet, self.nodes(8, 8, 7)) == {}

    def test_nodes_of_no_known_kind_are_not_compared(self) -> None:
        assert gone(self.FLEET, self.nodes(8, 8, 7, 8, kind="")) == {}

    def test_a_pool_of_two_sizes_is_built_so(self) -> None:
        lost = {"gpu-5-0", "gpu-6-0", "gpu-7-0"}
        fleet = [item for item in machines(8) if item.uuid not in lost]
        assert gone(fleet, self.nodes(8, 8, 8, 8, 8, 7, 7, 7)) == {}
