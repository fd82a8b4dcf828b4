"""The planted faults and idle allocations, with which findings are compared."""

from collections.abc import Iterator, Sequence

from gpuwatch.facts.model.decision import FindingKind, Subject, SubjectKind
from gpuwatch.facts.model.telemetry import DeviceId
from lab.planted import REBOOT, Truth
from lab.simulate.behaviour import WorkKind
from lab.simulate.cards import Machine
from lab.simulate.fault_kinds import FAULTS, FaultKind
from lab.simulate.plan import FleetPlan
from lab.simulate.runs import Place, Run
from lab.simulate.symptoms import Fault


def device_id(machines: tuple[Machine, ...], place: Place) -> DeviceId:
    uuid = machines[place.machine].cards[place.card].uuid
    return f"{uuid}/{place.gi}" if place.gi else uuid


def allocation_truths(plan: FleetPlan, machines: tuple[Machine, ...], runs: Sequence[Run]) -> Iterator[Truth]:
    """Whether and since when each Pod is idle, for Pods that live within the window."""
    for run in runs:
        if run.end <= 0 or run.start >= plan.seconds:
            continue
        kind, since, note, harmless = _allocation(run)
        for pod in run.pods:
            ref = f"{run.workload.namespace}/{pod.name}"
            yield Truth(
                kind=kind,
                subject=Subject(SubjectKind.POD, ref),
                start=plan.moment(since),
                end=plan.until(run.end),
                devices=tuple(device_id(machines, place) for place in pod.places),
                note=note,
                harmless=harmless,
                pods=(ref,),
                nodes=tuple(machines[place.machine].name for place in pod.places[:1]),
                workload=run.workload.id,
            )


def _allocation(run: Run) -> tuple[FindingKind, float, str, bool]:
    if run.idle is not None:
        return run.idle, run.idle_from, run.note, False
    activity = run.behaviour.activity
    if run.note:
        return FindingKind.IN_USE, run.start, run.note, True
    if activity is WorkKind.HOST_BOUND:
        return FindingKind.HOST_BOUND, run.start, "a job that waits for its host", True
    if activity is WorkKind.SERVING:
        return FindingKind.BURSTY, run.start, "a service that is silent at times and keeps serving", True
    if activity is WorkKind.HUMAN:
        return FindingKind.BURSTY, run.start, "a notebook or development Pod whose owner comes back", True
    return FindingKind.IN_USE, run.start, "a job that works until it ends", True


def fault_truths(plan: FleetPlan, machines: tuple[Machine, ...], fault: Fault) -> Iterator[Truth]:
    """Findings that the fault should lead to, or for harmless ones must not lead to."""
    traits = FAULTS[fault.kind]
    kinds, devices = traits.findings, _devices(machines, fault)
    nodes = tuple(dict.fromkeys(machines[index].name for index, _ in fault.all_cards))
    if fault.machine < 0:
        kinds, nodes = kinds[:1], tuple(machine.name for machine in machines)
        subject = Subject(SubjectKind.FLEET, "fleet")
    else:
        machine = machines[fault.machine]
        if fault.kind is FaultKind.DOUBLE_BIT and machine.extended:
            kinds += (FindingKind.ECC,)
        if fault.kind is FaultKind.ROW_REMAP_PENDING and not machine.extended:
            # It only shows in the count of remapped rows and XID 63; a successful remap is no fault.
            return
        if machine.has_health_watches and traits.watch_status >= 20:
            kinds += (FindingKind.DCGM_HEALTH,)
        on_node = fault.kind in (FaultKind.EXPORTER_DOWN, FaultKind.NODE_GONE, FaultKind.POWER_BRAKE)
        subject = Subject(SubjectKind.NODE, machine.name) if on_node else Subject(SubjectKind.DEVICE, devices[0])
    for kind in kinds:
        yield Truth(
            kind=kind,
            subject=subject,
            start=plan.moment(fault.start),
            end=plan.until(fault.end),
            devices=devices,
            nodes=nodes,
            note=traits.note,
            harmless=traits.harmless,
            fault=fault.kind.value,
        )


def reboot_truths(plan: FleetPlan, machine: Machine, spans: list[tuple[float, float]]) -> Iterator[Truth]:
    """While a node reboots or its driver is reloaded, its exporter is down without a planted fault."""
    for begin, end in spans:
        if begin < plan.seconds:
            yield Truth(
                kind=FindingKind.EXPORTER_DOWN,
                subject=Subject(SubjectKind.NODE, machine.name),
                start=plan.moment(begin),
                end=plan.until(end),
                devices=(),
                note="the node reboots, or its driver is reloaded",
                harmless=True,
                nodes=(machine.name,),
                fault=REBOOT,
            )


def _devices(machines: tuple[Machine, ...], fault: Fault) -> tuple[DeviceId, ...]:
    """Every device on the fault's cards; each MIG instance is one."""
    return tuple(
        device_id(machines, Place(machine, index, instance.gi if instance else ""))
        for machine, index in fault.all_cards
        for instance in machines[machine].cards[index].instances or (None,)
    )
