"""Cached look-ups over one Snapshot, for all candidates and guards."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from itertools import chain

from gpuwatch.act.placement import Nowhere, Room, lacks_accelerators, lacks_room_alone, waiting_groups
from gpuwatch.act.plan.policy import PlanPolicy
from gpuwatch.facts.catalog.gpus import gpu_share_ratio
from gpuwatch.facts.frameworks import OWNERS, keys
from gpuwatch.facts.frameworks.framework import Kind
from gpuwatch.facts.model.cluster import DisruptionBudget, Gang, Node, Pod, Workload
from gpuwatch.facts.model.decision import ActionKind, Advice, Candidate, Finding, Snapshot, Verdict
from gpuwatch.facts.model.grouping import grouped
from gpuwatch.facts.model.remediation import Pause, Phase, Proposal, Remediation
from gpuwatch.facts.model.telemetry import Device, DeviceId, PodRef
from gpuwatch.judge.reclaim import reclaimed

_LONG = timedelta(hours=24)
"""A Node that others took out of service for longer is no news to anybody: its capacity was made up for, or is not
missed. Repairs and RMAs take days, drains and upgrades hours."""
# Kubernetes' own taints and gpuwatch's take a Node out of service. Other NoSchedule taints (nvidia.com/gpu,
# dedicated=…) only restrict who may use it: counting them would use up every budget on a healthy cluster.
_KUBERNETES_PREFIX = "node.kubernetes.io/"


@dataclass(frozen=True)
class Ground:
    """The room left after the Pods that wait are placed, as the scheduler is about to do.

    unsettled: groups that wait and fit nowhere now.
    """

    room: Room
    unsettled: tuple[tuple[Pod, ...], ...]


@dataclass(frozen=True, kw_only=True)
class PlanFacts:
    """All that a plan is made of, passed whole, and look-ups over it. A new input is a field here.

    history: at least the Remediations that are open or of the last hour. alerts: names of firing alerts; None: unknown.
    precision: (Namespace, '' for Nodes; detector) → its lower bound. last_storm: `Plan.last_storm` of the plan before.
    first_seen: Finding.id → since when a finding that may call for an action has been there, as far as is remembered.
    rechecked: the move for a waiting Pod that is checked again: no other one is looked for in its place.
    """

    snapshot: Snapshot
    findings: tuple[Finding, ...] = ()
    policy: PlanPolicy = PlanPolicy()
    history: tuple[Remediation, ...] = ()
    alerts: tuple[str, ...] | None = ()
    pause: Pause = Pause()
    precision: Mapping[tuple[str, str], float] = field(default_factory=dict)
    last_storm: datetime | None = None
    first_seen: Mapping[str, datetime] = field(default_factory=dict)
    rechecked: tuple[Proposal, ...] = ()

    @cached_property
    def devices(self) -> dict[DeviceId, Device]:
        return {device.id: device for device in self.snapshot.devices}

    @cached_property
    def nodes(self) -> dict[str, Node]:
        return {node.name: node for node in self.snapshot.cluster.nodes}

    @cached_property
    def pods(self) -> dict[PodRef, Pod]:
        return {pod.ref: pod for pod in self.snapshot.cluster.pods}

    @cached_property
    def workloads(self) -> dict[str, Workload]:
        return {workload.id: workload for workload in self.snapshot.cluster.workloads}

    @cached_property
    def gangs(self) -> dict[str, Gang]:
        return {gang.id: gang for gang in self.snapshot.cluster.gangs}

    @cached_property
    def namespaces(self) -> dict[str, dict[str, str]]:
        """Labels and annotations of each Namespace."""
        return {item.name: {**item.labels, **item.annotations} for item in self.snapshot.cluster.namespaces}

    @cached_property
    def findings_by_id(self) -> dict[str, Finding]:
        return {finding.id: finding for finding in self.findings}

    @cached_property
    def devices_of_node(self) -> dict[str, list[Device]]:
        known = (device for device in self.snapshot.devices if device.node is not None)
        return grouped(known, lambda device: device.node or "")

    def doubt(self, nodes: Iterable[str], pods: Iterable[PodRef]) -> str:
        """Why a device that telemetry shows on these Nodes, or gives to these Pods, is doubted; '' where none is."""
        there, held = set(nodes), set(pods)
        found = (each for each in self.snapshot.doubted if each.shown.node in there or held & set(each.shown.pods))
        first = next(found, None)
        return f"Device {first.shown.id} is not trusted: {first.why}." if first else ""

    @cached_property
    def _budgets_of(self) -> dict[str, list[DisruptionBudget]]:
        return grouped(self.snapshot.cluster.budgets, lambda budget: budget.namespace)

    def disruption_budgets(self, pods: Iterable[Pod]) -> list[DisruptionBudget]:
        """Those of the Pods' Namespaces; they select no other Pods."""
        spaces = dict.fromkeys(pod.namespace for pod in pods)
        return [budget for name in spaces for budget in self._budgets_of.get(name, ())]

    @cached_property
    def members(self) -> dict[str, list[Pod]]:
        """Live Pods that hold accelerators, by gang id, or by workload id where there is no gang."""
        pods = (pod for pod in self.snapshot.cluster.pods if pod.phase in ("Running", "Pending"))
        return grouped((pod for pod in pods if pod.accelerators or pod.claims), lambda pod: pod.gang or pod.workload)

    @cached_property
    def live(self) -> dict[PodRef, Pod]:
        """The Pods of `members`."""
        return {pod.ref: pod for pods in self.members.values() for pod in pods}

    @cached_property
    def owned(self) -> dict[str, list[Pod]]:
        """Live Pods that hold accelerators, by workload id."""
        return grouped(chain.from_iterable(self.members.values()), lambda pod: pod.workload)

    @cached_property
    def companions(self) -> dict[str, list[Pod]]:
        """Pods without accelerators, by workload id."""
        return grouped(self.snapshot.cluster.companions, lambda pod: pod.workload)

    def ended_by(self, candidate: Candidate) -> list[Pod]:
        """All Pods that it ends, with accelerators or without, counted from the object that is written. A release stops
        the whole owner, and so does a move, unless the owner's Pods are independent of each other."""
        if candidate.action is ActionKind.TAINT_NODE:
            return []
        pods = self.pods_of(candidate)
        more: list[Pod] = []
        for name in sorted({pod.workload for pod in pods}):
            kind = self.kind_of(name)
            alone = kind is not None and kind.independent and not any(pod.gang for pod in pods)
            if candidate.action is ActionKind.RELEASE_GANG or not alone:
                more += (*self.owned.get(name, ()), *self.companions.get(name, ()))
        return list({pod.ref: pod for pod in (*pods, *more)}.values())

    def kind_of(self, workload: str) -> Kind | None:
        """The kind of a workload; None where the workload or the kind is not known."""
        owner = self.workloads.get(workload)
        return OWNERS.get(owner.key) if owner is not None else None

    @cached_property
    def free_gpus(self) -> dict[str, int]:
        """Node → physical GPUs of which every instance reports, is free, and is not degraded."""
        found = {}
        for name, devices in self.devices_of_node.items():
            taken = {item.uuid for item in devices if item.pods or not item.present or item.id in self.degraded_devices}
            found[name] = len({item.uuid for item in devices} - taken)
        return found

    @cached_property
    def free_blocks(self) -> dict[str, Counter[int]]:
        """Pool → free GPUs of a Node (`free_gpus`) → Nodes with as many, without those out of service."""
        found: defaultdict[str, Counter[int]] = defaultdict(Counter)
        for node in self.nodes.values():
            if node.name not in self.out_of_service and (free := self.free_gpus.get(node.name, 0)):
                found[self.pool(node)][free] += 1
        return found

    @cached_property
    def mean_group_gpus(self) -> dict[str, float]:
        """Pool → mean gang size in GPUs, over the pool's allocated GPUs; a Pod without a gang is a gang of its own."""
        sizes: dict[str, list[float]] = defaultdict(list)
        for key, pods in self.members.items():
            whole = key in self.gangs
            for group in [pods] if whole else [[pod] for pod in pods]:
                pools = {self.pool(self.nodes[pod.node]) for pod in group if pod.node in self.nodes}
                for pool in pools:
                    sizes[pool].append(self.gpu_shares(group))
        return {pool: sum(n * n for n in found) / sum(found) for pool, found in sizes.items() if sum(found)}

    @cached_property
    def disruptive(self) -> tuple[Remediation, ...]:
        """Remediations that keep GPUs out of service or disturb users, or are about to; without verified releases and
        moves."""
        return tuple(
            item
            for item in self.history
            if (item.phase.in_flight or item.announced)
            and (item.phase is not Phase.IN_EFFECT or item.proposal.action is ActionKind.TAINT_NODE)
            # Before the first write there is nothing to undo but the notification.
            and (item.phase is not Phase.UNDOING or item.began_at is not None)
            # A release that is put back keeps no GPU out of service while its Pods wait.
            and not (item.put_back and item.proposal.action is ActionKind.RELEASE_GANG)
        )

    @cached_property
    def tainted_by_us(self) -> dict[str, str]:
        """Node → the Remediation that taints it, even before the taint is visible."""
        return {
            name: item.name
            for item in self.disruptive
            if item.proposal.action is ActionKind.TAINT_NODE
            for name in item.proposal.nodes
        }

    @cached_property
    def looks_idle(self) -> tuple[float, int, int]:
        """Allocated GPUs that look idle, all that are allocated, and the machines of the former. Allocated instances of
        a GPU count as equal parts of it."""
        idle = {name for item in self.findings if item.verdict is Verdict.IDLE for name in item.devices}
        held: defaultdict[str, list[bool]] = defaultdict(list)
        machines = set()
        for device in self.snapshot.devices:
            if device.present and device.pods:
                held[device.uuid].append(device.id in idle)
                machines |= {device.node or device.node_label} if device.id in idle else set()
        return sum(sum(parts) / len(parts) for parts in held.values()), len(held), len(machines)

    @cached_property
    def idle_pods(self) -> frozenset[PodRef]:
        return frozenset(ref for item in self.findings if item.verdict is Verdict.IDLE for ref in item.pods)

    def pods_of(self, candidate: Candidate) -> list[Pod]:
        return [self.pods[ref] for ref in candidate.pods if ref in self.pods]

    def findings_of(self, candidate: Candidate) -> list[Finding]:
        return [self.findings_by_id[name] for name in candidate.findings]

    @cached_property
    def _surely_degraded(self) -> tuple[Finding, ...]:
        """A suspicion, or advice to watch, causes no action. So it makes no other GPU a worse place either."""
        found = (item for item in self.findings if item.verdict is Verdict.DEGRADED and item.advice is not Advice.WATCH)
        return tuple(item for item in found if item.confidence_ratio >= self.policy.min_confidence_ratio)

    @cached_property
    def degraded_devices(self) -> frozenset[DeviceId]:
        return frozenset(name for item in self._surely_degraded for name in item.devices)

    def pods_on(self, devices: Iterable[DeviceId]) -> list[Pod]:
        """Pods of the cluster that hold these devices by telemetry."""
        refs = {ref for name in devices if name in self.devices for ref in self.devices[name].pods}
        return [self.pods[ref] for ref in sorted(refs) if ref in self.pods]

    def physical(self, devices: Iterable[DeviceId]) -> int:
        """Physical GPUs behind these devices, each of which is a GPU or a MIG instance."""
        return len({self.devices[name].uuid if name in self.devices else name for name in devices})

    def pool(self, node: Node | None) -> str:
        return node.pool if node is not None and node.pool else "default"

    def node_gpus(self, node: Node) -> int:
        """Physical GPUs of a Node, 0 if it has none: by its labels, else by its capacity. Where MIG or sharing
        multiplies the capacity, by telemetry before that."""
        seen = len({device.uuid for device in self.devices_of_node.get(node.name, ())})
        units = sum(node.accelerators.values())
        return node.gpu_count or (seen or units if node.cut else units or seen)

    def unit_gpus(self, node: Node) -> dict[str, float]:
        """Accelerator resource → physical GPUs per unit, so that all units of the Node are its GPUs."""
        if not node.cut:
            return {}
        weights = {
            name: gpu_share_ratio(node.gpu_product, name.partition("/mig-")[2].removesuffix(".shared") or None)
            for name in node.accelerators
        }
        total = sum(node.accelerators[name] * weight for name, weight in weights.items())
        return {name: weight * self.node_gpus(node) / total for name, weight in weights.items()}

    def closed(self, node: Node) -> str:
        """Why no new Pod is scheduled to this Node; '' where it is in service."""
        return next((why for why, _ in self._closures(node)), "")

    def _closures(self, node: Node) -> Iterable[tuple[str, datetime | None]]:
        """Each reason why no new Pod is scheduled to this Node, and since when; None where no object says so."""
        if node.unschedulable:
            since = (taint.since for taint in node.taints if taint.key == f"{_KUBERNETES_PREFIX}unschedulable")
            yield f"{node.name} is cordoned", next(since, None)
        if node.ready is not True:
            since = (item.since for item in node.conditions if item.type == "Ready")
            yield (
                f"{node.name} is {'NotReady' if node.ready is False else 'without a Ready condition'}",
                next(since, None),
            )
        for taint in node.taints:
            if taint.key.startswith((_KUBERNETES_PREFIX, keys.PREFIX)) and taint.effect in ("NoSchedule", "NoExecute"):
                yield f"{node.name} has the taint {taint.key}", taint.since
        if why := reclaimed(node):
            yield f"{node.name} is taken back by its provider ({why})", None

    def closed_for_long(self, node: Node) -> bool:
        """Whether others took it out of service more than a day ago; False where no object says since when."""
        began = min((since for _, since in self._closures(node) if since is not None), default=None)
        return began is not None and self.snapshot.at - began > _LONG

    def kept_free(self, name: str) -> str:
        """Why it is out of service, or that it has gpuwatch's taint, with any effect, recorded or not; '' else."""
        node = self.nodes.get(name)
        if node is None:
            return ""
        tainted = keys.DEGRADED in {taint.key for taint in node.taints}
        return self.closed(node) or (f"{name} has the taint {keys.DEGRADED}" if tainted else "")

    @cached_property
    def in_service(self) -> dict[str, set[str]]:
        """Pool → names of its GPU Nodes that are not kept free."""
        found: defaultdict[str, set[str]] = defaultdict(set)
        for node in self.nodes.values():
            if self.node_gpus(node) and not self.kept_free(node.name):
                found[self.pool(node)].add(node.name)
        return found

    @cached_property
    def unrecorded(self) -> frozenset[str]:
        """Nodes with gpuwatch's taint and no Remediation: the record is lost, or gpuwatch did not set it."""
        tainted = {node.name for node in self.nodes.values() for taint in node.taints if taint.key == keys.DEGRADED}
        return frozenset(tainted - self.tainted_by_us.keys())

    @cached_property
    def out_of_service(self) -> dict[str, str]:
        """Node → why nothing should land there: kept free, being tainted, or degraded."""
        out = {name: why.replace(name, "it", 1) for name in self.nodes if (why := self.kept_free(name))}
        for name, remediation in self.tainted_by_us.items():
            out.setdefault(name, f"it is being tainted by {remediation}")
        for item in self._surely_degraded:
            if item.node:
                out.setdefault(item.node, "it has a degraded GPU")
        return out

    @cached_property
    def bare_room(self) -> Room:
        """Without the pending Pods, and without what moves in flight hold. Copy before changing it."""
        cluster = self.snapshot.cluster
        room = Room(self.nodes.values(), cluster.pods, self.out_of_service, cluster.bystanders)
        for item in self.disruptive:
            for pod in self._held(item):
                room.put(pod, pod.node)
        return room

    def _held(self, item: Remediation) -> Iterable[Pod]:
        """Stand-ins for the Pods of a move that are not back yet, where they are to land. New Pods of its owner take
        their own room. Their affinities are not known while they are gone."""
        uids = {ref.uid for ref in item.proposal.objects}
        owned = (pod for name, pods in self.owned.items() if self._uid(name) in uids for pod in pods)
        since = item.began_at
        back = [pod.node for pod in owned if since is not None and pod.created is not None and pod.created >= since]
        left = len(back)
        for place in sorted(item.proposal.room, key=lambda each: each.node not in back):
            for number in range(place.pods):
                left -= 1
                if left < 0 and place.node in self.nodes:
                    yield Pod(
                        namespace=item.proposal.namespace,
                        name=f"{item.name}/{place.node}/{number}",
                        node=place.node,
                        accelerators=place.accelerators,
                        cpu_cores=place.cpu_cores,
                        memory_bytes=place.memory_bytes,
                    )

    def _uid(self, workload: str) -> str:
        return self.workloads[workload].uid if workload in self.workloads else ""

    @cached_property
    def ground(self) -> Ground:
        room = self.bare_room.copy()

        def lands(group: list[Pod]) -> bool:
            # A reason that the landing does not see holds on some Node that has room here: the Pod will not take it.
            told = all(map(lacks_room_alone, group))
            return told and not isinstance(room.land(group, tell=False, perhaps=True), Nowhere)

        return Ground(room, tuple(tuple(group) for group in self.waiting if not lands(group)))

    @cached_property
    def pending(self) -> list[list[Pod]]:
        """All groups that are not placed, for whatever reason."""
        return waiting_groups(self.snapshot.cluster.pods)

    @cached_property
    def waiting(self) -> list[list[Pod]]:
        """Those that wait for accelerators, by the word of their scheduler: a tenant does not write a Pod's status."""
        return [group for group in self.pending if any(map(lacks_accelerators, group))]

    @cached_property
    def domains(self) -> Mapping[str, Mapping[str, Sequence[str]]]:
        """Topology label → its values, sorted → the Nodes of each."""
        found = {}
        for label in self.policy.topology_labels:
            labelled = (node for node in self.nodes.values() if label in node.labels)
            here = grouped(labelled, lambda node, label=label: node.labels[label])  # type: ignore[misc]
            found[label] = {value: [node.name for node in here[value]] for value in sorted(here)}
        return found

    @cached_property
    def pool_gpus(self) -> Mapping[str, int]:
        found: Counter[str] = Counter()
        for node in self.nodes.values():
            found[self.pool(node)] += self.node_gpus(node)
        return found

    @cached_property
    def open(self) -> tuple[Remediation, ...]:
        return tuple(item for item in self.history if item.phase.open)

    def open_on(self, action: ActionKind, target: str) -> Remediation | None:
        of_target = (item for item in self.open if (item.proposal.action, item.proposal.target) == (action, target))
        return next(of_target, None)

    @cached_property
    def _claimed(self) -> Counter[str]:
        return Counter(item.claim for item in self.snapshot.cluster.claims)

    def gpu_shares(self, pods: Iterable[Pod]) -> float:
        """Physical GPUs that these Pods hold, by requests or by a claim (DRA): a slice or a shared GPU counts in part.
        A Pod without a Node holds none, and may ask for any number."""
        total = 0.0
        for pod in (pod for pod in pods if pod.node):
            node = self.nodes.get(pod.node)
            worth = self.unit_gpus(node) if node is not None else {}
            total += sum(count * worth.get(name, 1.0) for name, count in pod.accelerators.items())
            total += self._devices_claimed(pod)
        return total

    def gpus(self, pods: Iterable[Pod]) -> int:
        """Physical GPUs that an action on these Pods disturbs. A GPU that is cut or shared counts whole, as telemetry
        attributes it; a unit that telemetry does not attribute is taken to be on a GPU of its own."""
        total = 0
        cut: dict[str, list[Pod]] = defaultdict(list)
        for pod in pods:
            node = self.nodes.get(pod.node)
            if node is not None and node.cut:
                cut[node.name].append(pod)
            else:
                total += self._units_of(pod)
        for name, here in cut.items():
            refs = {pod.ref for pod in here}
            devices = [device for device in self.devices_of_node.get(name, ()) if not refs.isdisjoint(device.pods)]
            seen = {ref for device in devices for ref in device.pods}
            unseen = sum(self._units_of(pod) for pod in here if pod.ref not in seen)
            total += min(len({device.uuid for device in devices}) + unseen, self.node_gpus(self.nodes[name]))
        return total

    def _units_of(self, pod: Pod) -> int:
        return sum(pod.accelerators.values()) + self._devices_claimed(pod)

    def _devices_claimed(self, pod: Pod) -> int:
        return sum(self._claimed[f"{pod.namespace}/{name}"] for name in pod.claims)
