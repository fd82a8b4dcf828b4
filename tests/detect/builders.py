"""Small Snapshots for the rules of `detect`: say what matters, the rest is a fleet that reports and is well.

`scene` answers only the sample counts by itself; everything else that a rule asks for is given by the test, or is
not there. `healthy` gives an answer to every question of the health rules.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from gpuwatch.facts.model.cluster import Cluster, Gang, Node, Pod
from gpuwatch.facts.model.decision import Finding, FindingKind, Snapshot
from gpuwatch.facts.model.needs import statistics
from gpuwatch.facts.model.telemetry import (
    ActivityHistory,
    Device,
    Exporter,
    Readings,
    Schema,
    Signal,
    SignalFound,
    StateChange,
    Statistic,
    Vendor,
    WindowStat,
)
from gpuwatch.judge.fleet import REPORTING_SIGNALS
from gpuwatch.judge.health.assess import HealthPolicy, assess_health, needs_of_rules

AT = datetime(2026, 10, 1, 12, 0, tzinfo=UTC)
POLICY = HealthPolicy()
INTERVAL = 30.0
H100 = "NVIDIA H100 80GB HBM3"

Answer = float | Mapping[str, float]
"""One value for every GPU, or a value per GPU; a GPU that is left out has no answer."""


def ago(**units: float) -> datetime:
    return AT - timedelta(**units)


def device(
    name: str = "gpu-0",
    *,
    node: str | None = "node-0",
    model: str = H100,
    vendor: Vendor = Vendor.NVIDIA,
    pods: Sequence[str] = (),
    present: bool = True,
    last_seen: datetime | None = AT,
    mig: str | None = None,
    pci: str = "",
    index: str = "0",
    label: str | None = None,
) -> Device:
    """A GPU, or the instance `mig` of it."""
    host = label if label is not None else node or "host"
    return Device(
        id=f"{name}/{mig}" if mig else name,
        uuid=name,
        vendor=vendor,
        vocabulary="dcgm" if vendor is Vendor.NVIDIA else vendor.value,
        mig_instance=mig,
        model=model,
        node=node,
        node_label=host,
        exporter=f"{host}:9400",
        pci_bus_id=pci,
        index=index,
        pods=tuple(pods),
        present=present,
        last_seen=last_seen,
    )


def machines(nodes: int, gpus: int = 8, *, model: str = H100, pods: bool = False) -> tuple[Device, ...]:
    """`gpu-N-G` on `node-N`; with `pods`, one Pod `ns/pod-N` holds all GPUs of its Node."""
    return tuple(
        device(
            f"gpu-{node}-{gpu}",
            node=f"node-{node}",
            model=model,
            index=str(gpu),
            pods=[f"ns/pod-{node}"] if pods else [],
        )
        for node in range(nodes)
        for gpu in range(gpus)
    )


def exporters_of(devices: Iterable[Device], *, down: Iterable[str] = ()) -> tuple[Exporter, ...]:
    """One scrape target per host; those of the hosts in `down` do not answer."""
    silent = set(down)
    hosts: dict[str, list[Device]] = {}
    for item in devices:
        hosts.setdefault(item.node_label, []).append(item)
    return tuple(
        Exporter(
            instance=found[0].exporter,
            job="dcgm-exporter",
            node_label=host,
            node=found[0].node,
            up=host not in silent,
            devices=len(found),
        )
        for host, found in hosts.items()
    )


def pod(name: str, *, workload: str = "", gang: str = "", started: datetime | None = None, node: str = "") -> Pod:
    return Pod(
        namespace="ns",
        name=name,
        phase="Running",
        node=node,
        workload=workload or f"Job/ns/{name}",
        gang=gang,
        started=started,
        accelerators={"nvidia.com/gpu": 1},
    )


def gang(name: str, pods: Sequence[str]) -> Gang:
    return Gang(id=name, framework="JobSet", workload=name, namespace="ns", pods=tuple(pods))


def cluster(
    *, nodes: Iterable[Node | str] = (), pods: Iterable[Pod] = (), gangs: Iterable[Gang] = (), known: bool = True
) -> Cluster:
    return Cluster(
        nodes=tuple(Node(name=node) if isinstance(node, str) else node for node in nodes),
        pods=tuple(pods),
        gangs=tuple(gangs),
        known=known,
    )


def scene(
    devices: Iterable[Device] | None = None,
    answers: Mapping[WindowStat, Answer] | None = None,
    *,
    variants: Mapping[WindowStat, Mapping[str, Mapping[str, float]]] | None = None,
    changes: Iterable[StateChange] = (),
    state: Cluster | None = None,
    exporters: Iterable[Exporter] | None = None,
    activity: Iterable[ActivityHistory] = (),
    coverage: float = 1.0,
    interval: float = INTERVAL,
    policy: HealthPolicy = POLICY,
) -> Snapshot:
    """A Snapshot at AT in which every present GPU reported for `coverage` of each window."""
    known = tuple(devices) if devices is not None else (device(),)
    uuids = list(dict.fromkeys(item.uuid for item in known))
    here = [item.uuid for item in known if item.present]
    values: dict[str, dict[str, float]] = {}
    for stat in statistics(needs_of_rules(policy)):
        if stat.statistic is Statistic.COUNT and stat.signal in REPORTING_SIGNALS:
            values[stat.key] = dict.fromkeys(here, stat.window_seconds / INTERVAL * coverage)
    for stat, answer in (answers or {}).items():
        given = answer if isinstance(answer, Mapping) else dict.fromkeys(uuids, answer)
        values[stat.key] = {**values.get(stat.key, {}), **given}
    rows = {stat.key: found for stat, found in (variants or {}).items()}
    signals = {stat.signal for stat in [*(answers or {}), *(variants or {})]}
    return Snapshot(
        at=AT,
        telemetry_schema=Schema(
            interval_seconds=interval,
            signals=tuple(
                SignalFound(signal=signal, vocabulary="dcgm", metric=signal.value, scale=1.0, devices=len(known))
                for signal in sorted(signals)
            ),
        ),
        devices=known,
        exporters=tuple(exporters) if exporters is not None else exporters_of(known),
        readings=Readings(
            values=values, variants=rows, promql={key: f"query({key}){{$device}}" for key in [*values, *rows]}
        ),
        activity=tuple(activity),
        changes=tuple(changes),
        cluster=state if state is not None else Cluster(),
    )


def spread(devices: Iterable[Device], usual: float, **odd: float) -> dict[str, float]:
    """The usual value for all GPUs, another for the named ones (`gpu_0_3=…` is gpu-0-3)."""
    named = {name.replace("_", "-"): value for name, value in odd.items()}
    found = {item.uuid: named.get(item.uuid, usual) for item in devices}
    unknown = set(named) - set(found)
    assert not unknown, f"no such GPU: {unknown}"
    return found


def xid_became(uuid: str, code: float, *, before: float | None = 0.0, at: datetime | None = None) -> StateChange:
    return StateChange(device=uuid, signal=Signal.XID_CODE, at=at or ago(minutes=10), before=before, after=code)


def xid_counted(uuid: str, xid: str, *, at: datetime, before: float = 0.0, after: float = 1.0) -> StateChange:
    """The exporter's windowed count began to count so many more."""
    return StateChange(device=uuid, signal=Signal.XID_WINDOW_COUNT, at=at, before=before, after=after, variant=xid)


def healthy(devices: Sequence[Device], policy: HealthPolicy = POLICY) -> dict[WindowStat, Answer]:
    """What a busy, healthy fleet answers to every question of the health rules."""
    level = {
        Signal.BUSY_RATIO: 0.97,
        Signal.POWER_WATTS: 610.0,
        Signal.POWER_LIMIT_WATTS: 700.0,
        Signal.SM_CLOCK_HERTZ: 1.7e9,
        Signal.GPU_TEMPERATURE_CELSIUS: 62.0,
        Signal.TEMPERATURE_MARGIN_CELSIUS: 25.0,
        Signal.DRAM_ACTIVE_RATIO: 0.4,
        Signal.MEMORY_COPY_UTIL_RATIO: 0.4,
        Signal.TENSOR_ACTIVE_RATIO: 0.3,
        Signal.PCIE_LINK_GENERATION: 5.0,
        Signal.PCIE_LINK_WIDTH_LANES: 16.0,
        Signal.PCIE_LINK_WIDTH_MAX_LANES: 16.0,
        Signal.NVLINK_BYTES_PER_SECOND: 3e11,
        Signal.LINK_UP_STATE: 1.0,
        Signal.FABRIC_MANAGER_CODE: 3.0,
        Signal.FABRIC_HEALTH_CODE: 1.0,
        Signal.IMEX_DAEMON_CODE: 5.0,
        Signal.VENDOR_HEALTHY_STATE: 1.0,
        Signal.INFOROM_VALID_STATE: 1.0,
    }
    answers: dict[WindowStat, Answer] = {}
    for stat in statistics(needs_of_rules(policy)):
        if stat.statistic is Statistic.COUNT:
            answers[stat] = stat.window_seconds / INTERVAL
        elif stat.statistic in (Statistic.INCREASE, Statistic.FRACTION_BITS):
            answers[stat] = 0.0
        elif stat.statistic is not Statistic.APPEARED:
            answers[stat] = level.get(stat.signal, 0.0)
    return {stat: dict.fromkeys((item.uuid for item in devices), answer) for stat, answer in answers.items()}  # type: ignore[arg-type]


def findings(snapshot: Snapshot, policy: HealthPolicy = POLICY, *, everything: bool = False) -> dict[str, Finding]:
    """Finding.id → finding. Fails where two findings share an id."""
    found = assess_health(snapshot, policy, everything=everything)
    by_id = {item.id: item for item in found}
    assert len(by_id) == len(found), "two findings of one kind on one subject"
    return by_id


def on(found: Mapping[str, Finding], kind: FindingKind, name: str = "gpu-0") -> Finding | None:
    """The finding of this kind on this GPU."""
    return found.get(f"{kind}:device/{name}")


def the(found: Mapping[str, Finding], kind: FindingKind, name: str = "gpu-0") -> Finding:
    """The finding of this kind on this GPU; KeyError where there is none."""
    return found[f"{kind}:device/{name}"]
