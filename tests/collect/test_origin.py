"""Whose telemetry is it: series of other clusters and rows of tenants' own targets do nothing here."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from collect.test_collect import NEEDS, POLICY
from gpuwatch.act.analysis import Policies, analyse
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.facts.model.cluster import Cluster, Gang, Node
from gpuwatch.facts.model.decision import Snapshot, Verdict
from gpuwatch.facts.model.telemetry import Device, Gap, GapKind, Signal, Statistic, WindowStat
from gpuwatch.judge.health import assess as health
from gpuwatch.sources.collect.collect import collect
from gpuwatch.sources.telemetry.connection import Connection
from gpuwatch.sources.telemetry.prometheus import PrometheusStore
from gpuwatch.sources.telemetry.samples import SampleStore
from parts import remote_write
from parts.prometheus_server import ServerBuild, running
from plan.fleet import pod, workload
from telemetry.timeline import AT, Timeline, gpu, held, uuid

TEMPERATURE, XID = "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_XID_ERRORS"
CORRECTED, BUSY, DAY = "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "DCGM_FI_DEV_GPU_UTIL", 86_400
STAT = WindowStat(Signal.GPU_TEMPERATURE_CELSIUS, Statistic.LAST)
OURS, THEIRS = "10.1.0.5:9400", "10.9.0.5:9400"
CLUSTER = Cluster(
    nodes=(Node(name="n0", accelerators={"nvidia.com/gpu": 2}, gpu_count=2),),
    exporter_nodes={"dcgm-exporter-bbbbb": "n0", "10.1.0.5": "n0"},
    exporter_pods=("gpu-operator/dcgm-exporter-bbbbb",),
    node_addresses={"10.0.0.5": "n0"},
    known=True,
)


@dataclass
class Fixed:
    cluster: Cluster = CLUSTER
    description: str = "a few Nodes"

    def read(self, at: datetime) -> Cluster:
        return self.cluster


def up(timeline: Timeline, instance: str, pod: str, job: str = "dcgm", **more: str) -> None:
    namespace, _, name = pod.partition("/")
    labels = {"instance": instance, "job": job, "namespace": namespace, "pod": name} | more
    timeline.add("up", {key: value for key, value in labels.items() if value}, 1)


def ours(**more: str) -> Timeline:
    """Two healthy GPUs of n0, by the exporter there."""
    timeline = Timeline()
    for number in (1, 2):
        timeline.add(TEMPERATURE, gpu(number, "n0", instance=OURS, **more), 40)
        timeline.add(XID, gpu(number, "n0", instance=OURS, **more), 0)
    up(timeline, OURS, "gpu-operator/dcgm-exporter-bbbbb", **more)
    return timeline


def theirs(timeline: Timeline, host: str, **more: str) -> Timeline:
    """Two GPUs of another cluster, one of them with XID 79."""
    for number in (8, 9):
        timeline.add(TEMPERATURE, gpu(number, host, **({"instance": THEIRS} | more)), 60)
    return timeline.add(XID, gpu(8, host, **({"instance": THEIRS} | more)), lambda ago: 79 if ago < 600 else 0)


def forged(timeline: Timeline, **more: str) -> Timeline:
    """A tenant's target writes that our GPU 1 is hot and has XID 79."""
    row = gpu(1, "n0", **({"instance": "10.1.0.66:8080", "job": "pods"} | more))
    timeline.add(TEMPERATURE, row, 99)
    return timeline.add(XID, row, lambda ago: 79 if ago < 600 else 0)


Taken = Callable[..., Snapshot]


@pytest.fixture
def recorded(tmp_path: Path) -> Taken:
    return lambda timeline, **given: taken(timeline.store(tmp_path), **given)


def taken(
    store: SampleStore,
    matchers: Mapping[str, str] = {},
    trusted: tuple[Mapping[str, str], ...] = (),
    cluster: Cluster = CLUSTER,
) -> Snapshot:
    needs = NEEDS.__class__(
        **{name: getattr(NEEDS, name) for name in NEEDS.__slots__} | {"stats": (*NEEDS.stats, STAT)}
    )
    return collect(store, Fixed(cluster), AT, needs, matchers=matchers, trusted=trusted)


def degraded(snapshot: Snapshot) -> set[str]:
    return {
        name
        for item in health.assess_health(snapshot, POLICY)
        if item.verdict is Verdict.DEGRADED
        for name in item.devices
    }


def gaps(snapshot: Snapshot, kind: GapKind) -> list[Gap]:
    return [gap for gap in snapshot.gaps if gap.kind is kind]


def by_id(snapshot: Snapshot) -> dict[str, Device]:
    return {device.id: device for device in snapshot.devices}


def test_one_cluster_without_any_setting_is_read_as_it_is(recorded: Taken) -> None:
    snapshot = recorded(ours(cluster="eu-1"))
    assert ([item.node for item in snapshot.devices], snapshot.doubted) == (["n0", "n0"], ())
    assert (snapshot.telemetry_schema.matchers, snapshot.gaps and gaps(snapshot, GapKind.AMBIGUOUS)) == ({}, [])


@pytest.mark.parametrize("host", ["n9", "n0.eu.example.com"])
@pytest.mark.parametrize(("own", "other"), [("eu-1", "eu-2"), ("", "eu-2"), ("eu-1", "")])
def test_the_one_cluster_that_our_nodes_confirm_is_found(recorded: Taken, host: str, own: str, other: str) -> None:
    snapshot = recorded(theirs(ours(cluster=own), host, cluster=other))
    assert snapshot.telemetry_schema.matchers == {"cluster": own}
    assert {item.id for item in snapshot.devices} == {uuid(1), uuid(2)}
    assert degraded(snapshot) == set()


def test_two_clusters_with_hosts_of_our_names_are_an_error_that_names_them_and_the_setting(recorded: Taken) -> None:
    timeline = theirs(ours(cluster="eu-1"), "n0", cluster="eu-2")
    (gap,) = gaps(recorded(timeline), GapKind.AMBIGUOUS)
    assert all(word in gap.detail for word in ("'eu-1'", "'eu-2'", "prometheus.matchers"))
    chosen = recorded(timeline, matchers={"cluster": "eu-1"})
    assert {item.id for item in chosen.devices} == {uuid(1), uuid(2)}
    assert gaps(chosen, GapKind.AMBIGUOUS) == []


def test_matchers_that_select_nothing_are_told_and_hold_for_alerts(recorded: Taken) -> None:
    snapshot = recorded(ours(cluster="eu-1"), matchers={"cluster": "eu-9"})
    assert (snapshot.devices, snapshot.telemetry_schema.matchers) == ((), {"cluster": "eu-9"})


def test_another_clusters_host_is_not_ours_by_its_short_name(recorded: Taken) -> None:
    snapshot = recorded(theirs(ours(), "n0.eu.example.com"))
    assert {item.shown.id: item.shown.node for item in snapshot.doubted} == {uuid(8): None, uuid(9): None}


def test_more_gpus_than_the_node_has_are_shown_and_not_trusted(recorded: Taken) -> None:
    snapshot = recorded(theirs(ours(), "n0", instance="n0:9400"))
    assert (snapshot.devices, ["which has 2" in item.why for item in snapshot.doubted]) == ((), [True] * 4)
    assert gaps(snapshot, GapKind.UNTRUSTED)


def test_a_target_of_which_nothing_is_known_is_shown_and_trusted_by_a_setting(recorded: Taken) -> None:
    timeline = Timeline().add(TEMPERATURE, gpu(1, "n0", instance="192.0.2.7:9400"), 40)
    (found,) = recorded(timeline).doubted
    assert (found.shown.node, "prometheus.trusted_targets: [{job: dcgm}]" in found.why) == ("n0", True)
    for trusted in ({"job": "dcgm"}, {"instance": "192.0.2.7:9400"}):
        assert recorded(timeline, trusted=(trusted,)).devices == (found.shown,)
    assert recorded(timeline, trusted=({"job": "other"},)).doubted == (found,)


def test_an_exporter_on_the_node_itself_is_trusted_by_its_address(recorded: Taken) -> None:
    timeline = Timeline().add(TEMPERATURE, gpu(1, "n0", instance="10.0.0.5:9400"), 40)
    snapshot = recorded(timeline)
    assert (set(by_id(snapshot)), snapshot.doubted) == ({uuid(1)}, ())


def test_rows_of_another_node_than_the_exporters_are_not_trusted(recorded: Taken) -> None:
    timeline = ours().add(TEMPERATURE, gpu(3, "n0", instance="10.1.0.5:9400"), 40)
    timeline.add(TEMPERATURE, gpu(1, "other", instance=OURS), 40)
    found = {item.shown.id: item.why for item in recorded(timeline).doubted}
    assert "at once with the hosts" in found[uuid(1)]


@pytest.mark.parametrize("job", ["pods", "dcgm"])
@pytest.mark.parametrize("pod", ["evil/web-0", "evil/dcgm-exporter-bbbbb", "evil/dcgm-exporter-ccccc"])
def test_rows_of_a_tenants_target_count_for_nothing(recorded: Taken, job: str, pod: str) -> None:
    timeline = forged(ours(), job=job)
    up(timeline, "10.1.0.66:8080", pod, job=job)
    snapshot = recorded(timeline)
    assert (set(by_id(snapshot)), snapshot.doubted) == ({uuid(1), uuid(2)}, ())
    assert snapshot.readings.get(STAT, by_id(snapshot)[uuid(1)]) == 40
    assert degraded(snapshot) == set()
    (gap,) = gaps(snapshot, GapKind.UNTRUSTED)
    assert pod in gap.detail
    assert "prometheus.trusted_targets" in gap.detail


@pytest.mark.parametrize("job", ["dcgm", "pods"])
def test_a_tenants_target_that_exports_faults_alone_counts_for_nothing(recorded: Taken, job: str) -> None:
    row = gpu(1, "n0", instance="10.1.0.66:8080", job=job)
    timeline = ours().add(XID, row, lambda ago: 79 if ago < 600 else 0)
    assert degraded(recorded(timeline)) == set()  # no `up`, as by remote write
    up(timeline, "10.1.0.66:8080", "evil/web-0", job=job)
    assert degraded(recorded(timeline)) == set()


def test_what_a_tenants_target_wrote_before_it_ended_counts_for_nothing(recorded: Taken) -> None:
    row = gpu(1, "n0", instance="10.1.0.66:8080", job="pods")
    timeline = ours().add(XID, row, lambda ago: 79 if ago < 1800 else 0, until=1200, ends=True)
    assert degraded(recorded(timeline)) == set()


def test_a_genuine_fault_is_still_seen_beside_them(recorded: Taken) -> None:
    timeline = Timeline().add(TEMPERATURE, gpu(1, "n0", instance=OURS), 40)
    timeline.add(XID, gpu(1, "n0", instance=OURS), lambda ago: 79 if ago < 600 else 0)
    up(timeline, OURS, "gpu-operator/dcgm-exporter-bbbbb")
    up(timeline, "10.1.0.66:8080", "evil/web-0")
    assert degraded(recorded(timeline)) == {uuid(1)}


def test_a_rollout_from_48_to_49_keeps_both_vocabularies(recorded: Taken) -> None:
    """The exporter's Pod is another one with another address; the old one was of the same DaemonSet."""
    timeline = Timeline()
    timeline.add(TEMPERATURE, gpu(1, "n0", instance="10.1.0.4:9400"), 40, until=600, ends=True)
    up(timeline, "10.1.0.4:9400", "gpu-operator/dcgm-exporter-ddddd")
    newer = {"Hostname": "", "hostname": "n0", "instance": OURS}
    timeline.add("DCGM_FI_DEV_GPU_TEMP", gpu(1, "n0", **newer), 41, ago=500)
    timeline.add("DCGM_FI_DEV_BOARD_POWER_WATTS", gpu(1, "n0", **newer), 200, ago=500)
    timeline.add(TEMPERATURE, gpu(2, "n0", instance="10.1.0.4:9400"), 40, until=600, ends=True)
    up(timeline, OURS, "gpu-operator/dcgm-exporter-bbbbb")
    snapshot = recorded(timeline)
    assert {item.id: item.present for item in snapshot.devices} == {uuid(1): True, uuid(2): False}
    assert snapshot.doubted == ()


def test_where_no_exporter_is_recognised_all_is_shown_and_nothing_trusted(recorded: Taken) -> None:
    timeline = Timeline().add(TEMPERATURE, gpu(1, "n0", instance="10.1.0.66:9400"), 40)
    up(timeline, "10.1.0.66:9400", "monitoring/gpu-metrics-x")
    snapshot = recorded(timeline)
    assert snapshot.devices == ()
    assert ["is not known as an exporter" in item.why for item in snapshot.doubted] == [True]


@pytest.mark.parametrize(("ours_per_second", "theirs_per_second"), [([5] * 10, 0), ([5] + [0] * 9, 5)])
def test_invented_devices_are_no_peers(recorded: Taken, ours_per_second: list[float], theirs_per_second: float) -> None:
    """Beside 30 quiet ones, ten equal GPUs looked noisy; beside 30 noisy ones, the one noisy GPU looked usual."""

    def noisy(timeline: Timeline, number: int, per_second: float, **more: str) -> None:
        row = gpu(number, "n0", **more)
        timeline.add(TEMPERATURE, row, 40, ago=2 * DAY, every=600)
        timeline.add(CORRECTED, row, lambda ago: (2 * DAY - ago) * per_second, ago=2 * DAY, every=600)

    timeline = Timeline()
    for number, per_second in enumerate(ours_per_second):
        noisy(timeline, number, per_second, instance=OURS)
    up(timeline, OURS, "gpu-operator/dcgm-exporter-bbbbb")
    for number in range(100, 130):
        noisy(timeline, number, theirs_per_second, instance="192.0.2.7:9400", Hostname="")
    ten = replace(CLUSTER, nodes=(Node(name="n0", accelerators={"nvidia.com/gpu": 10}, gpu_count=10),))
    snapshot = recorded(timeline, cluster=ten)
    assert degraded(snapshot) == ({uuid(0)} if len(set(ours_per_second)) > 1 else set())
    # No other fact of the Snapshot tells of them, so that no rule meets one.
    told = {name for values in snapshot.readings.values.values() for name in values}
    told |= {item.device for item in (*snapshot.changes, *snapshot.activity)}
    assert told <= {uuid(number) for number in range(10)} == set(by_id(snapshot))
    assert len(snapshot.doubted) == 30


@pytest.mark.parametrize(
    ("instance", "named", "why"),
    [
        ("10.1.0.5", "evil/forged", ""),
        ("n0", "evil/forged", ""),
        ("10.1.0.5", "", "is not known as an exporter"),
        ("n0", "", "is not known as an exporter"),
        ("10.1.0.5", "gpu-operator/dcgm-exporter-zzzzz", "its address is on n0, and `up` names a Pod on n1"),
        (OURS, "evil/forged", "`up` names the Pod evil/forged too, which is no exporter"),
    ],
    ids=["of a Pod", "of a Pod on a Node", "of a Service", "of a Service on a Node", "of two exporters", "the same"],
)
def test_a_forged_instance_is_no_exporter(recorded: Taken, instance: str, named: str, why: str) -> None:
    """Jobs that map labels of Pods and Services to targets let a tenant choose `instance` and `job`."""
    timeline = forged(ours(), instance=instance, job="dcgm", app="forged")
    up(timeline, instance, named)
    two = replace(
        CLUSTER,
        nodes=(*CLUSTER.nodes, Node(name="n1", accelerators={"nvidia.com/gpu": 2}, gpu_count=2)),
        exporter_nodes={**CLUSTER.exporter_nodes, "dcgm-exporter-zzzzz": "n1"},
        exporter_pods=(*CLUSTER.exporter_pods, "gpu-operator/dcgm-exporter-zzzzz"),
    )
    snapshot = recorded(timeline, cluster=two)
    assert degraded(snapshot) == set()
    assert any(why in item.why for item in snapshot.doubted) if why else snapshot.doubted == ()
    # A setting covers a target with all the Pods that `up` names.
    if instance == OURS:
        assert recorded(timeline, cluster=two, trusted=({"namespace": "gpu-operator"},)).doubted == snapshot.doubted


@pytest.mark.parametrize("busy", [True, False])
def test_a_gpu_on_no_node_of_ours_moves_and_releases_nothing(recorded: Taken, busy: bool) -> None:
    """The text of the gap led people to trust all targets of a job; their Pods may have our Pods' names."""
    timeline = Timeline()
    for name in (TEMPERATURE, BUSY):
        for number in (1, 2):
            timeline.add(name, gpu(number, "n0", instance=OURS), 40, ago=2 * DAY)
        foreign = gpu(8, "elsewhere", instance="192.0.2.7:9400", **held("train-0"))
        timeline.add(name, foreign, 90 if busy or name is TEMPERATURE else 0, ago=2 * DAY)
    timeline.add(XID, foreign, lambda ago: 79 if ago < 600 else 0)
    up(timeline, OURS, "gpu-operator/dcgm-exporter-bbbbb")
    job, ref = "Job.batch/team/train", "team/train-0"
    own = pod(ref, "n0", owner=job, gang=job, started=AT - timedelta(hours=40))
    gang = Gang(id=job, framework="Job", workload=job, namespace="team", pods=(ref,))
    cluster = replace(CLUSTER, pods=(own,), workloads=(workload(job),), gangs=(gang,), unread=())
    snapshot = recorded(timeline, cluster=cluster, trusted=({"job": "dcgm"},))
    analysis = analyse(PlanFacts(snapshot=snapshot), Policies())
    assert [item.candidate.id for item in analysis.plan.items] == []
    assert {item.verdict for item in analysis.findings if ref in item.pods} == {Verdict.UNKNOWN}
    (doubted,) = snapshot.doubted
    assert doubted.why.startswith("telemetry gives it to team/train-0, which runs on n0, and the GPU is on the host")


@contextmanager
def served(build: ServerBuild, timeline: Timeline) -> Iterator[SampleStore]:
    with running(build) as url:
        remote_write.write(url, timeline.for_remote_write())
        store = PrometheusStore(Connection(url=url))
        try:
            yield store
        finally:
            store.close()


@pytest.mark.prometheus
def test_a_real_server_with_two_clusters_and_a_tenants_target(newest_prometheus: ServerBuild) -> None:
    timeline = forged(theirs(ours(cluster="eu-1"), "n0.eu.example.com", cluster="eu-2"), cluster="eu-1")
    up(timeline, "10.1.0.66:8080", "evil/dcgm-exporter-bbbbb", job="pods", cluster="eu-1")
    with served(newest_prometheus, timeline) as store:
        snapshot = taken(store)
        assert snapshot.telemetry_schema.matchers == {"cluster": "eu-1"}
        assert (set(by_id(snapshot)), snapshot.doubted) == ({uuid(1), uuid(2)}, ())
        assert snapshot.readings.get(STAT, by_id(snapshot)[uuid(1)]) == 40
        assert degraded(snapshot) == set()
