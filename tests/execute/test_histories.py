"""Random histories of a fleet, its owners, its operators and two executors; what has to hold, holds at every write."""

from __future__ import annotations

import copy
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from execute.living import ENFORCE, GPUS, Fleet, Killed, drive, new_store, quick
from gpuwatch.execute.advance import Policies
from gpuwatch.kube import keys
from gpuwatch.kube.writer import Failure, WriteError
from gpuwatch.model.remediation import Phase, Step, StepKind
from gpuwatch.store.store import StoreError

NODES = 4
LIMIT_GPUS = 8
POLICIES = Policies(
    # One Node. Storms are left out, since they are the plan's and stop everything.
    ENFORCE.__class__(
        modes=ENFORCE.modes,
        budget_ratio=0.0,
        budget_min_gpus=LIMIT_GPUS,
        actions_per_hour=3,
        namespace_actions_per_hour=3,
        pool_actions_per_hour=3,
        storm_ratio=1.0,
        idle_storm_ratio=1.0,
    ),
    quick(announce_seconds=120, hand_off_label="repair=yes", last_effect="NoExecute"),
)
OWNERS = ("train", "chat", "web")
FOREIGN = {"key": "example.com/theirs", "value": "x", "effect": "NoSchedule"}
FOREIGN_DEGRADED = {"key": keys.DEGRADED, "value": "theirs", "effect": "PreferNoSchedule"}


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="gpuwatch-histories-")
        self.store = new_store(Path(self.folder.name) / "remediations.db")
        self.fleet = Fleet(nodes=NODES)
        self.fleet.owner("Job", "train", 8, node="n0")
        self.fleet.owner("Job", "chat", 2, node="n1")
        self.fleet.owner("Deployment", "web", 2, pods=2, node="n1")
        self.fleet.budget("web", 2)
        self.original = {name: copy.deepcopy(self.fleet.find(name)["spec"]) for name in OWNERS}
        self.executors = [self.fleet.executor(self.store, POLICIES) for _ in range(2)]
        self.theirs: dict[str, list[dict[str, str]]] = {f"n{i}": [] for i in range(NODES)}
        self.evicted: list[str] = []
        self.released: list[str] = []
        self.fault: tuple[str, bool] | None = None
        self.before: dict[str, Any] = {}
        self.fleet.before_write = self._at_write

    def teardown(self) -> None:
        """Everything can be taken back: the same specs, and nothing of ours left."""
        self.fault = None
        self.fleet.alerts = ()
        self.store.resume()
        for each in self.store.all():
            self.store.ask_undo(each.name)
        drive(self.fleet, self.executors[0], 12, least_seconds=300)
        assert not self.store.open_(), [(each.name, each.phase, each.history[-3:]) for each in self.store.open_()]
        for name in OWNERS:
            owner = self.fleet.find(name)
            spec = {key: value for key, value in owner["spec"].items() if key != "template"}
            assert spec == self.original[name], name
            ours = {key for key in owner["metadata"].get("annotations") or {} if key.startswith(keys.PREFIX)}
            ours.discard(keys.OBJECT)
            assert not ours, (name, ours)
        for index in range(NODES):
            node = self.fleet.node(f"n{index}")
            assert (node["spec"].get("taints") or []) == self.theirs[f"n{index}"]
            assert not node["metadata"].get("annotations"), node
            assert not node["metadata"].get("labels")
        self.store.close()
        self.folder.cleanup()

    # What has to hold at each write

    def _at_write(self, verb: str, what: str, done: bool) -> None:
        if what.startswith("Event "):
            return
        if not done:
            self._recorded(what)
            self.before = {name: copy.deepcopy(self._spec(name)) for name in self._names()}
        else:
            self._judge(verb, what)
        if self.fault is not None and self.fault[1] is done:
            kind, _ = self.fault
            self.fault = None
            if kind == "kill":
                raise Killed
            raise WriteError(Failure.UNSURE, "no answer")

    def _names(self) -> list[str]:
        return [*OWNERS, *(f"n{index}" for index in range(NODES))]

    def _spec(self, name: str) -> dict[str, Any]:
        found = self.fleet.node(name) if name.startswith("n") else self.fleet.find(name)
        return {"spec": found["spec"], "annotations": found["metadata"].get("annotations") or {}}

    def _begun(self) -> list[tuple[str, Step]]:
        return [
            (each.name, each.steps[each.step])
            for each in self.store.open_()
            if each.step < len(each.steps) and each.steps[each.step].begun_at is not None
        ]

    def _recorded(self, what: str) -> None:
        """The intent is kept before the write, with the very object."""
        assert any(what.endswith(f"{step.target}") for _, step in self._begun()), (what, self._begun())

    def _judge(self, verb: str, what: str) -> None:
        if self.store.paused().paused:
            begun = [step.kind for _, step in self._begun() if what.endswith(f"{step.target}")]
            assert StepKind.UNTAINT in begun, (what, begun)
        if "eviction" in what:
            assert what not in self.evicted, "a Pod is evicted once"
            self.evicted.append(what)
        for name in OWNERS:
            was, now = self.before[name], self._spec(name)
            if now["spec"].get("suspend") and not was["spec"].get("suspend"):
                marker = now["annotations"][keys.REMEDIATION]
                assert marker not in self.released, "a Remediation releases once"
                self.released.append(marker)
                kept = next(each for each in self.store.all() if each.name == marker)
                assert kept.saved, "what it was before is kept before it is changed"
        fenced = 0
        for index in range(NODES):
            name = f"n{index}"
            taints = self.fleet.node(name)["spec"].get("taints") or []
            assert [taint for taint in taints if taint in self.theirs[name]] == self.theirs[name]
            if any(taint["key"] == keys.DEGRADED and taint not in self.theirs[name] for taint in taints):
                fenced += GPUS
            new = [taint for taint in taints if taint not in (self.before[name]["spec"].get("taints") or [])]
            if any(taint["effect"] == "NoExecute" for taint in new):
                self._no_budget_breached(name)
        if verb == "patch" and fenced > sum(
            GPUS
            for index in range(NODES)
            if any(
                taint["key"] == keys.DEGRADED and taint not in self.theirs[f"n{index}"]
                for taint in self.before[f"n{index}"]["spec"].get("taints") or []
            )
        ):
            assert fenced + self._foreign_gpus() <= LIMIT_GPUS, "the budget"

    def _no_budget_breached(self, node: str) -> None:
        """NoExecute asks no PodDisruptionBudget, so it was asked for it."""
        hit = [pod for pod in self.fleet.pods("web") if pod["spec"]["nodeName"] == node]
        (budget,) = self.fleet.cluster.objects("policy/v1", "PodDisruptionBudget")
        assert len(hit) <= budget["status"]["disruptionsAllowed"]

    def _foreign_gpus(self) -> int:
        """Out of service by others, and not by us."""
        total = 0
        for index in range(NODES):
            node = self.fleet.node(f"n{index}")
            ours = [t for t in node["spec"].get("taints") or [] if t["key"] == keys.DEGRADED]
            if node["spec"].get("unschedulable") and not [t for t in ours if t not in self.theirs[f"n{index}"]]:
                total += GPUS
        return total

    # What happens

    @initialize(sick=st.sampled_from([(), ("n0",), ("n0", "n1"), ("n1",)]), idle=st.sampled_from([(), ("chat",)]))
    def begin(self, sick: tuple[str, ...], idle: tuple[str, ...]) -> None:
        self.fleet.sick = {f"GPU-{node}-{index}" for node in sick for index in range(GPUS)}
        self.fleet.idle = set(idle)

    @rule(minutes=st.sampled_from([3, 30, 600]))
    def time_passes(self, minutes: int) -> None:
        self.fleet.now += timedelta(minutes=minutes)

    @rule(who=st.integers(0, 1), times=st.integers(1, 40))
    def work(self, who: int, times: int) -> None:
        """One of two executors plans and takes up to forty steps, a minute apart, or until it is killed."""
        executor = self.executors[who]
        for _ in range(times):
            self.fleet.settle()
            try:
                self.fleet.propose(executor)
                for name in executor.due(self.fleet.now):
                    executor.run_once(name, self.fleet.now)
            except Killed:
                return
            self.fleet.now += timedelta(minutes=1)

    @rule(data=st.data())
    def something_happens(self, data: st.DataObject) -> None:
        happens = data.draw(
            st.sampled_from(
                [
                    self._health,
                    self._use,
                    self._alert,
                    self._cordon,
                    self._budget,
                    self._object,
                ]
            )
        )
        happens(data, data.draw(st.booleans()))

    def _health(self, data: st.DataObject, sick: bool) -> None:
        node = data.draw(st.integers(0, 1))
        devices = {f"GPU-n{node}-{index}" for index in range(GPUS)}
        self.fleet.sick = self.fleet.sick | devices if sick else self.fleet.sick - devices

    def _use(self, data: st.DataObject, idle: bool) -> None:
        name = data.draw(st.sampled_from(["chat", "web"]))
        (self.fleet.idle.add if idle else self.fleet.idle.discard)(name)
        (self.fleet.busy.discard if idle else self.fleet.busy.add)(name)

    @rule(paused=st.booleans())
    def pause(self, paused: bool) -> None:
        if paused:
            self.store.pause("ann", "a demo", self.fleet.now)
        else:
            self.store.resume()

    def _alert(self, _: st.DataObject, firing: bool) -> None:
        self.fleet.alerts = ("EtcdDown",) if firing else ()

    @rule(name=st.sampled_from(["n0", "n1"]), taint=st.sampled_from([FOREIGN, FOREIGN_DEGRADED]), add=st.booleans())
    def others_taint(self, name: str, taint: dict[str, str], add: bool) -> None:
        found = self.fleet.node(name)
        taints = [each for each in found["spec"].get("taints") or [] if each != taint]
        if add and any((each["key"], each["effect"]) == (taint["key"], taint["effect"]) for each in taints):
            return  # the API server allows one taint of a key and an effect
        found["spec"]["taints"] = [*taints, taint] if add else taints
        self.theirs[name] = [*[each for each in self.theirs[name] if each != taint], *([taint] if add else [])]
        self.fleet.cluster.put(found)

    def _cordon(self, data: st.DataObject, cordoned: bool) -> None:
        found = self.fleet.node(f"n{data.draw(st.integers(0, NODES - 1))}")
        found["spec"].pop("unschedulable", None)
        if cordoned:
            found["spec"]["unschedulable"] = True
        self.fleet.cluster.put(found)

    def _budget(self, data: st.DataObject, _: bool) -> None:
        self.fleet.budget("web", data.draw(st.integers(0, 2)))

    def _object(self, data: st.DataObject, objects: bool) -> None:
        owner = self.fleet.find(data.draw(st.sampled_from(OWNERS)))
        annotations = owner["metadata"].setdefault("annotations", {})
        annotations.pop(keys.OBJECT, None)
        if objects:
            annotations[keys.OBJECT] = "mine"
        self.fleet.cluster.put(owner)

    @rule(data=st.data(), decision=st.sampled_from(["approve", "reject", "undo"]))
    @precondition(lambda self: self.store.all())
    def decide(self, data: st.DataObject, decision: str) -> None:
        name = data.draw(st.sampled_from([each.name for each in self.store.all()]))
        try:
            if decision == "approve":
                self.store.approve(name, "ann")
            elif decision == "reject":
                self.store.reject(name)
            else:
                self.store.ask_undo(name)
        except StoreError:
            pass  # approved and rejected exclude each other

    @rule(kind=st.sampled_from(["kill", "unsure"]), after=st.booleans())
    def a_fault_at_the_next_write(self, kind: str, after: bool) -> None:
        self.fault = (kind, after)

    # What has to hold always

    @invariant()
    def every_mark_is_recorded(self) -> None:
        known = {each.name: each for each in self.store.all()}
        for name in self._names():
            mark = self._spec(name)["annotations"].get(keys.REMEDIATION)
            if mark:
                assert mark in known
                assert known[mark].phase.open or known[mark].phase is Phase.SUCCEEDED

    @invariant()
    def one_at_a_time(self) -> None:
        """No two Remediations have begun on the same object."""
        acting = [
            step.target
            for each in self.store.open_()
            if each.phase in (Phase.ACTING, Phase.VERIFYING, Phase.HOLDING)
            for step in {step.target: step for step in each.steps if step.kind not in _NOTES and step.begun_at}.values()
        ]
        assert len(acting) == len(set(acting))


_NOTES = (StepKind.ANNOUNCE, StepKind.CLEAR)

TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=100,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
