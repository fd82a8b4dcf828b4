"""Reads what a Transition needs, stores its intent, writes once, stores the result. It neither sleeps nor retries."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import msgspec

from gpuwatch.act.execute.advance import (
    Advance,
    ExecutorPolicies,
    StepInputs,
    Transition,
    WantedInputs,
    held_up,
    idle,
    needs,
    needs_source,
)
from gpuwatch.act.execute.policy import ExecutePolicy
from gpuwatch.act.execute.propose import left_alone, propose
from gpuwatch.act.execute.recheck import LiveFacts
from gpuwatch.act.execute.requests import SWEPT, Notify, rehearse, send, write
from gpuwatch.act.execute.source import nodes_to_read
from gpuwatch.act.execute.steps import DEVICE_TAINT_VERSIONS, TargetState
from gpuwatch.act.execute.sweep import Orphan, held_objects, made, orphan
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.remediations import ConflictError, RefusedError, RemediationStore
from gpuwatch.facts.frameworks import WRITTEN, kueue, volcano
from gpuwatch.facts.frameworks.fights import AUTOSCALERS, Surroundings, is_scaled
from gpuwatch.facts.frameworks.objects import Object, key_of
from gpuwatch.facts.model.cluster import Cluster
from gpuwatch.facts.model.decision import ActionKind, Plan
from gpuwatch.facts.model.remediation import ObjectRef, Phase, Remediation, RemediationId
from gpuwatch.facts.model.telemetry import Gap, GapKind, SourceRead
from gpuwatch.sources.kube.decode import take_budget
from gpuwatch.sources.kube.kinds import BUDGET
from gpuwatch.sources.kube.writer import ClusterWriter, Failure, WriteError, listed

_NO_EXPORTER = "has no exporter's Pod that lists a port. For exporters that are no Pods there is execute.source_read."

_OWNERS_DEEP = 6
"""Most controllers above a Pod that are followed. TrainJob, JobSet, Job and Pod make four."""

_SWEPT_AT_ONCE = 10
"""Most writes of one sweep."""

_MADE = ((DEVICE_TAINT_VERSIONS, "DeviceTaintRule", ""), (("bus.volcano.sh/v1alpha1",), "Command", ""))
"""API versions, kind and Namespace of what gpuwatch makes of itself."""

_POD_GROUPS = (volcano.POD_GROUP.api_version, volcano.POD_GROUP.kind)


@dataclass(frozen=True, slots=True)
class Executor:
    """Carries out Remediations, one write at a time.

    rehearsal: the same cluster as `writer`, with every write as a dry run. fresh: returns an assessed Snapshot that is
    at most `MAX_FACTS_AGE_SECONDS` old. notify: called at least once per notification. source: reads exporters, by URL.

    Several executors may share one store: only the one that stored the intent writes.
    """

    store: RemediationStore
    writer: ClusterWriter
    rehearsal: ClusterWriter
    fresh: Callable[[], PlanFacts]
    notify: Notify
    policies: ExecutorPolicies = ExecutorPolicies()
    source: Callable[[Sequence[str]], SourceRead] = lambda _: SourceRead(failed="There is no way to read exporters.")
    refused: list[Gap] = field(default_factory=list, init=False, repr=False, compare=False)
    """Proposals of the last `propose` that the store refused to keep."""
    failures: dict[RemediationId, WriteError] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Why the last step of each Remediation failed, where it did."""
    _known: dict[RemediationId, Remediation] = field(default_factory=dict, init=False, repr=False, compare=False)
    """All as read when the run began, with what was stored here since: reading all per Remediation would be slow."""

    def propose(self, plan: Plan, view: PlanFacts, now: datetime) -> tuple[Remediation, ...]:
        """Store a proposal for every admitted item whose target is not in back-off. Returns the proposals stored now,
        by any replica. A proposal that the store refuses is listed in `refused`. Raises StoreError."""
        policy, known = self.policies.execute, list(self.store.all())
        kept = []
        self.refused.clear()
        for item in plan.items:
            found = propose(item, view.snapshot, view.findings, now, policy, {each.name for each in known})
            if found is None or left_alone(found.proposal, known, view.snapshot.at, now, policy):
                continue
            try:
                kept.append(self.store.create(found))
            except RefusedError as error:
                self.refused.append(Gap(kind=GapKind.REFUSED, what=f"proposal {found.id}", detail=str(error)))
                continue
            known.append(kept[-1])
        return tuple(kept)

    def due(self, now: datetime) -> tuple[RemediationId, ...]:
        """Remediations that `run_once` may have work for: undoing first, then those begun, then by score. Nodes are
        tainted before gangs move, so that no gang lands there again. Raises StoreError."""
        self._read()
        self.store.catch_up()
        found = [each for each in self._known.values() if not idle(each, now)]
        rank = {Phase.UNDOING: 0, Phase.ACTING: 1, Phase.VERIFYING: 2, Phase.IN_EFFECT: 3, Phase.NOTIFIED: 4}
        found.sort(
            key=lambda each: (
                rank.get(each.phase, 5),
                each.proposal.action is not ActionKind.TAINT_NODE,
                -each.proposal.score.value,
                each.id,
            )
        )
        return tuple(each.id for each in found)

    def sweep(
        self,
        refs: Iterable[ObjectRef],
        known: Iterable[Remediation],
        since: dict[ObjectRef, datetime],
        now: datetime,
        grace: timedelta,
        later: Iterable[ObjectRef] = (),
    ) -> tuple[Orphan, ...]:
        """Remove gpuwatch's marks on these objects, and objects that it made, that have no Remediation. Returns what
        was found.

        since: when each was first found; kept by the caller. A mark is removed after `grace`, so that a slow store can
        catch up. later: objects that another sweep reads. Nothing is written while a
        Remediation cannot be decoded or everything is paused.
        """
        read_only, found, written = bool(self.store.gaps) or self.store.paused().everything, [], 0
        for each in orphans(self.writer, refs, tuple(known), self.policies.execute):
            ripe = now - since.setdefault(each.target, now) >= grace
            writes = each.request is not None and ripe and not read_only and written < _SWEPT_AT_ONCE
            written += writes
            found.append(self._swept(each, now) if writes else each)
        for ref in set(since).difference((each.target for each in found), later):
            del since[ref]
        return tuple(found)

    def _swept(self, found: Orphan, now: datetime) -> Orphan:
        assert found.request is not None
        try:
            write(self.rehearsal, found.request)
            write(self.writer, found.request)
            note = f"{found.reason} It was removed."
            self.writer.event(found.target, at=now, reason=SWEPT, action="Sweep", note=note)
        except WriteError as error:
            return Orphan(found.target, f"{found.reason} It could not be removed: {error.message}")
        return found

    def _read(self) -> None:
        everything = self.store.all()
        self._known.clear()
        self._known.update((each.id, each) for each in everything)

    def run_once(self, at: RemediationId, now: datetime) -> Remediation | None:
        """Take one Remediation one step further, with at most one write. Returns it as stored; None if unknown. Raises
        StoreError, and what `fresh` and `notify` raise; the next run continues there. A failed write is recorded."""
        after = self._step(at, now)
        if after is not None and self._known:
            self._known[at] = after
        return after

    def _step(self, at: RemediationId, now: datetime) -> Remediation | None:
        remediation = self.store.get(at)
        if remediation is None or idle(remediation, now):
            return remediation
        self.failures.pop(at, None)
        try:
            inputs = self._inputs(remediation, needs(remediation))
        except WriteError as error:
            self.failures[at] = error
            return remediation  # unknown state: do nothing
        move = Advance(remediation, inputs, now, self.policies).transition()
        if move is None:
            return remediation
        try:
            return self._carry_out(remediation, move, now)
        except ConflictError:
            return self.store.get(at)  # another replica or a person changed it meanwhile

    def _carry_out(self, remediation: Remediation, move: Transition, now: datetime) -> Remediation:
        if move.request is None or move.then is None:
            return self.store.save(move.intent)
        try:
            rehearse(self.rehearsal, move.request)
        except WriteError as error:
            index = move.intent.step
            step = replace(move.intent.steps[index], begun_at=remediation.steps[index].begun_at)
            unbegun = (*move.intent.steps[:index], step, *move.intent.steps[index + 1 :])
            return self.store.save(self._failed(replace(move.intent, steps=unbegun), error, now))
        kept = self.store.save(move.intent)
        if held_up(kept, kept.steps[kept.step], self.store.paused()):
            return self.store.save(replace(remediation, version=kept.version))
        try:
            send(self.writer, move.request, kept, self.notify, now)
        except WriteError as error:
            return self.store.save(self._failed(kept, error, now))
        return self.store.save(replace(move.then, version=kept.version))

    def _failed(self, intent: Remediation, error: WriteError, now: datetime) -> Remediation:
        self.failures[intent.id] = error
        return Advance(intent, StepInputs(), now, self.policies).failed(error)

    def _inputs(self, remediation: Remediation, wanted: WantedInputs) -> StepInputs:
        if wanted.latest or not self._known:
            self._read()
        view = self.fresh() if wanted.view else None  # before what is read right before a step
        return StepInputs(
            pause=self.store.paused(),
            state=self._state(remediation, wanted, view) if wanted.target is not None else TargetState(),
            waiter=self.writer.get(wanted.waiter) if wanted.waiter else None,
            view=view,
            others=tuple(each for each in self._known.values() if each.id != remediation.id),
            source=self._source(remediation, view) if view is not None and needs_source(remediation) else {},
        )

    def _source(self, remediation: Remediation, view: PlanFacts) -> dict[str, SourceRead]:
        """What the exporters of its Nodes show; of a release up to the first that does not answer if each has to."""
        known, wanted = view.snapshot.cluster.exporter_urls, self.policies.execute.source_read
        reads: dict[str, SourceRead] = {}
        for node in () if wanted == "off" else nodes_to_read(remediation.proposal, view):
            urls = [url for url, at in known.items() if at == node]
            reads[node] = self.source(urls) if urls else SourceRead(failed=f"Node {node} {_NO_EXPORTER}")
            if reads[node].failed and wanted == "required" and remediation.proposal.action is ActionKind.RELEASE_GANG:
                break
        return reads

    def _state(self, remediation: Remediation, wanted: WantedInputs, view: PlanFacts | None) -> TargetState:
        """Raises WriteError if the object itself cannot be read."""
        assert wanted.target is not None
        found = self.writer.get(wanted.target)
        sent = None if wanted.sent is None else self.writer.get(wanted.sent)
        if not wanted.around:
            return TargetState(found, sent)
        main = remediation.proposal.objects[0]
        owner = found if wanted.target == main else self.writer.get(main)
        live = "" if view is None else self._live(remediation, wanted, view.snapshot.cluster)
        if main.kind == "Node":
            return TargetState(found, sent, owner, live=live)
        surroundings = Surroundings() if found is None else read_surroundings(self.writer, found)
        pods: tuple[Object, ...] | None = None
        groups: tuple[Object, ...] | None = None
        with suppress(WriteError):
            pods = self._pods_of(main, remediation.proposal.pod_uids)
        with suppress(WriteError):
            groups = self.writer.objects(*_POD_GROUPS, main.namespace)
        if isinstance(live, LiveFacts):
            near = tuple(item for item in (found, owner, *(pods or ())) if item is not None)
            live = replace(live, objects=(*live.objects, *near)) if pods is not None else "Its Pods could not be read."
        return TargetState(found, sent, owner, surroundings, pods, groups, live)

    def _live(self, remediation: Remediation, wanted: WantedInputs, cluster: Cluster) -> LiveFacts | str:
        """Its Nodes, its Namespace, the Pods that NoExecute would end, and the PodDisruptionBudgets that select Pods
        that the step ends; or why they could not be read."""
        namespace = remediation.namespace
        refs = [ObjectRef("v1", "Node", name) for name in remediation.proposal.nodes]
        refs += [ObjectRef("v1", "Namespace", namespace)] if namespace else []
        try:
            objects = tuple(item for ref in refs if (item := self.writer.get(ref)) is not None)
            if not wanted.budgets:
                return LiveFacts(objects)
            if not namespace:
                objects = (*objects, *self._on_nodes(remediation.proposal.nodes, cluster))
            kept = self.writer.objects(BUDGET.api_version, BUDGET.kind, namespace)
            budgets = tuple(take_budget(msgspec.Raw(json.dumps(item).encode())) for item in kept)
        except msgspec.MsgspecError as error:
            return f"A PodDisruptionBudget could not be decoded: {error}"
        except WriteError as error:
            return error.message
        return LiveFacts(objects, budgets, namespace)

    def _on_nodes(self, nodes: Sequence[str], cluster: Cluster) -> Iterable[Object]:
        """The Pods in the Namespaces of those on these Nodes, their owners, and all Namespaces. Raises WriteError."""
        there = [pod for pod in cluster.pods if pod.node in nodes]
        owners = {pod.workload for pod in there}
        kinds = {("v1", "Namespace", ""), *(("v1", "Pod", pod.namespace) for pod in there)}
        kinds |= {(each.api_version, each.kind, each.namespace) for each in cluster.workloads if each.id in owners}
        return (item for kind in sorted(kinds) for item in self.writer.objects(*kind))

    def _pods_of(self, main: ObjectRef, told: Sequence[str]) -> tuple[Object, ...]:
        """Pods of the Namespace whose owner chain leads to `main`, and those with the given uids. Raises WriteError.
        KubeRay releases by deleting the RayCluster in between, LeaderWorkerSet by deleting the leader. The Pods below
        outlive it with their devices, and no owner reference leads from them to the owner any more."""
        leads: dict[str, bool] = {main.uid: True}

        def follow(object_: Object, namespace: str, deep: int) -> bool:
            for owner in object_["metadata"].get("ownerReferences") or ():
                uid = owner.get("uid", "")
                if uid not in leads:
                    leads[uid] = False
                    ref = ObjectRef(owner["apiVersion"], owner["kind"], owner["name"], namespace, uid)
                    above = self.writer.get(ref) if deep and owner.get("controller") else None
                    leads[uid] = above is not None and follow(above, namespace, deep - 1)
                if leads[uid]:
                    return True
            return False

        pods = self.writer.objects("v1", "Pod", main.namespace)
        return tuple(pod for pod in pods if pod["metadata"]["uid"] in told or follow(pod, main.namespace, _OWNERS_DEEP))


def orphans(
    writer: ClusterWriter, refs: Iterable[ObjectRef], known: Sequence[Remediation], policy: ExecutePolicy
) -> Iterator[Orphan]:
    """Marks on these objects, and objects that gpuwatch made, without a Remediation; and objects that were not read.
    A kind that gpuwatch makes and may not list is left out: it may not create such objects either."""
    held = held_objects(known)
    for ref in refs:
        if (ref.kind, ref.namespace, ref.name) in held:
            continue
        kind = WRITTEN.get((ref.api_version.rpartition("/")[0], ref.kind))
        served = kind.api_versions if kind is not None else (ref.api_version,)
        try:
            read = (writer.get(replace(ref, api_version=each)) for each in served)
            object_ = next(filter(None, read), None)
        except WriteError as error:
            yield Orphan(ref, f"{ref} was not read: {error.message}")
            continue
        found = None if object_ is None else orphan(object_, policy.hand_off_label)
        if found is not None:
            yield found
    wanted = policy.hand_off_object
    theirs = [((wanted["apiVersion"],), wanted["kind"], wanted["metadata"].get("namespace", ""))] if wanted else []
    for api_versions, kind, namespace in (*_MADE, *theirs):
        try:
            yield from made(listed(writer, api_versions, kind, namespace), known)
        except WriteError as error:
            if kind == wanted.get("kind") or error.failure is not Failure.FORBIDDEN:
                yield Orphan(ObjectRef("", kind, ""), f"Objects of kind {kind} were not read: {error.message}")


def read_surroundings(writer: ClusterWriter, object_: Object) -> Surroundings:
    """Kueue's Workloads and Volcano's PodGroups in its Namespace, and its autoscalers if it can be scaled. Raises
    nothing: `unread` lists what could not be read."""
    namespace = object_["metadata"].get("namespace", "")
    found: list[Object] = []
    unread = []
    for kind in (kueue.WORKLOAD, volcano.POD_GROUP, *(AUTOSCALERS if is_scaled(key_of(object_)) else ())):
        try:
            found += listed(writer, kind.api_versions, kind.kind, namespace)
        except WriteError as error:
            unread.append(error.message)
    return Surroundings(tuple(found), tuple(unread))
