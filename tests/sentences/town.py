"""A random cluster by its seed, in which a taint, a move or a release is called for, under gpuwatch's defaults.

Node n0 has a dead GPU and the gang `train` runs there, or `chat` on n1 is idle, or both. What is around them is drawn.
Its scheduler is one for which a preference is no bar: it likes n0 best.
"""

import copy
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from execute.hostile import HostileFleet
from execute.living import GPUS, attended, device_id, is_closed, new_store
from gpuwatch.act.execute.advance import ExecutorPolicies
from gpuwatch.act.execute.executor import Executor
from gpuwatch.act.execute.policy import ExecutePolicy
from gpuwatch.act.execute.precision import poor, precision_by_place
from gpuwatch.act.plan.brakes import first_seen
from gpuwatch.act.plan.draw import draw_plan
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.plan.policy import MIN_PRECISION_RATIO, PlanPolicy
from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.frameworks.objects import Object, stamp
from gpuwatch.facts.model.decision import ActionKind, Finding, Mode, Plan, PlanItem, Verdict
from gpuwatch.facts.model.remediation import Phase, Remediation, Step, StepKind
from gpuwatch.facts.model.telemetry import Device, Gap

TAINT, MOVE, RELEASE = ActionKind.TAINT_NODE, ActionKind.EVICT_GANG, ActionKind.RELEASE_GANG
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
LOOKS = 5 * MINUTE  # five times as long as by default
SIZES = (3, 4, 5, 7, 12, 21)
"""Nodes: pools of less than twenty, in which one at a time is the limit, and one that is larger."""
ENDING = (StepKind.RELEASE, StepKind.COMMAND, StepKind.RESTART, StepKind.EVICT)
NOTICE = timedelta(seconds=ExecutePolicy().notice_period_seconds)


class BreachError(AssertionError):
    """What a sentence says does not hold; of: the name of what does not."""

    def __init__(self, of: str, why: object) -> None:
        super().__init__(f"{of}: {why}")
        self.of = of


class Town(HostileFleet):
    """calls: the actions that are called for. against: by name, what stands against each now. passing: what of it may
    be announced all the same. doubts: changes of the findings that call for an action. plan, execute: changes of the
    default settings. later: what happens when. at_last: what happens between the checks of a write and
    the write. drawn: what a test has drawn. told: when owners were notified. acted: when each action was done."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        super().__init__(nodes=self.random.choice(SIZES), shared="")
        self.calls = self.random.choice(((TAINT, MOVE), (RELEASE,), (TAINT, MOVE, RELEASE)))
        self.plan: dict[str, Any] = {"modes": dict.fromkeys(ActionKind, Mode.ENFORCE)}
        self.execute: dict[str, Any] = {}
        self.against: dict[ActionKind, set[str]] = {action: set() for action in (TAINT, MOVE, RELEASE)}
        self.passing: set[str] = set()
        self.doubts: dict[ActionKind, dict[str, Any]] = {}
        self.later: list[tuple[datetime, Callable[[], object]]] = []
        self.sharing: set[str] = set()
        self.gone: list[Device] = []
        self.more_gaps: list[Gap] = []
        self.more_findings: list[Finding] = []
        self.last_storm: datetime | None = None
        self.first_seen: dict[str, datetime] = {}
        self.began = self.now
        self.sick_at = self.unseen_at = self.now
        self.at_last: Callable[[], object] | None = None
        self.told: dict[str, datetime] = {}
        self.acted: dict[ActionKind, datetime] = {}
        self.drawn: list[str] = []
        self.store = new_store()
        kinds, pods, gpus = (
            ("Job", "Deployment", "StatefulSet"),
            self.random.choice((1, 2)),
            self.random.choice((4, GPUS)),
        )
        self.owner("Job" if pods > 1 else self.random.choice(kinds), "train", gpus // pods, pods=pods, node="n0")
        self.owner(self.random.choice(kinds), "chat", self.random.choice((1, 2, 4)), node="n1")
        for index in range(2, self.nodes - 1):
            if self.random.random() < 0.5:
                self.owner("Job", f"web{index}", self.random.choice((1, 4, 8)), node=f"n{index}")
        self.sick = {device_id("n0", 0)} if TAINT in self.calls else set()
        self.idle = {"chat"} if RELEASE in self.calls else set()
        self.settle()
        self.before_write = self._at_write
        self.rehearsal.interfere = self._at_rehearsal

    # How it lives

    def live(self, hours: float) -> None:
        policies = ExecutorPolicies(PlanPolicy(**self.plan), ExecutePolicy(**self.execute))
        executor = self.executor(self.store, policies)
        end, look = self.now + timedelta(hours=hours), self.now
        while self.now < end:
            for each in [each for each in self.later if each[0] <= self.now]:
                self.later.remove(each)
                each[1]()
            self.settle()
            if look <= self.now:
                look = self.now + LOOKS
                self._look(executor)
            for name in executor.due(self.now):
                self._carry_on(executor, name)
            self._see()
            due = [each.next_at for each in attended(self.store) if each.next_at is not None]
            self.now = max(self.now + MINUTE, min([look, *due, *(at for at, _ in self.later)]))

    def _look(self, executor: Executor) -> None:
        view, known = self.view(), self.store.all()
        view = replace(view, snapshot=replace(view.snapshot, gaps=(*view.snapshot.gaps, *self.store.gaps)))
        facts = replace(
            view,
            policy=executor.policies.plan,
            history=known,
            pause=self.store.paused(),
            precision=poor(precision_by_place(known), MIN_PRECISION_RATIO),
        )
        plan = draw_plan(facts)
        self._promises(plan)
        self.last_storm, self.first_seen = plan.last_storm, first_seen(facts)
        executor.propose(plan, view, self.now)

    def _promises(self, plan: Plan) -> None:
        """What the plan admits and may enforce is announced, so nothing stands against it, and it is not under way."""
        about = {
            action: {_ref(pod) for pod in self.pods(owner)} for action, owner in ((MOVE, "train"), (RELEASE, "chat"))
        }
        for item in plan.items:
            candidate = item.candidate
            if not item.admitted or item.mode is not Mode.ENFORCE:
                continue
            if (
                "n0" in candidate.nodes
                if candidate.action is TAINT
                else about[candidate.action].intersection(candidate.pods)
            ):
                for name in sorted(self.against[candidate.action] - self.passing):
                    raise BreachError(name, f"the plan admits {candidate.id}")
            for each in attended(self.store):
                if (each.proposal.action, each.proposal.target) == (candidate.action, str(candidate.target)):
                    raise BreachError("twice", f"the plan admits {candidate.id}, and {each.name} is {each.phase}")

        ended = [ref for item in plan.items if item.admitted and item.mode is Mode.ENFORCE for ref in _ended_by(item)]
        seen = self.reads.get(("policy", "PodDisruptionBudget")) is None
        for budget in self._all("policy/v1", "PodDisruptionBudget") if seen else ():
            hit = [pod for pod in self.pods() if _ref(pod) in ended and _selects(budget, pod)]
            if len(hit) > budget["status"]["disruptionsAllowed"]:
                raise BreachError("together", f"the plan admits the end of {len(hit)} Pods of {budget['metadata']}")

    def _carry_on(self, executor: Executor, name: str) -> None:
        """As the remediation job does: step by step, until nothing more is due."""
        before: Remediation | None = None
        for _ in range(12):
            after = executor.run_once(name, self.now)
            self.settle()
            if after == before:
                return
            before = after

    def _see(self) -> None:
        self.sick_at = self.now if self.sick else self.sick_at
        self.unseen_at = self.now if self.blind or self.dark else self.unseen_at
        last = self.execute.get("last_taint_effect", ExecutePolicy().last_taint_effect)
        taints = self.node("n0")["spec"].get("taints") or ()
        if any((each["key"], each["effect"]) == (keys.DEGRADED, last) for each in taints):
            self.acted.setdefault(TAINT, self.now)
        if self._runs_elsewhere():
            self.acted.setdefault(MOVE, self.now)
        if not self.pods("chat"):
            self.acted.setdefault(RELEASE, self.now)

    def _runs_elsewhere(self) -> bool:
        pods = self.pods("train")
        runs = len(pods) == self.size["train"][1] and all(pod["status"]["phase"] == "Running" for pod in pods)
        return runs and all(pod["spec"]["nodeName"] != "n0" for pod in pods)

    def _notify(self, remediation: Remediation) -> None:
        super()._notify(remediation)
        self.told.setdefault(remediation.name, self.now)

    def stand(self, name: str, stops: Iterable[ActionKind], passing: bool) -> None:
        """passing: what stops it may pass while owners can object, so that it is announced."""
        for action in stops:
            self.against[action].add(name)
        if passing:
            self.passing.add(name)

    def fall(self, name: str) -> None:
        for names in self.against.values():
            names.discard(name)
        self.passing.discard(name)

    # What holds at every write

    def _at_write(self, _verb: str, what: str, done: bool) -> None:
        if done or what.startswith("Event "):
            return
        for by in attended(self.store):
            step = by.steps[by.step] if by.step < len(by.steps) else None
            if step is None or step.begun_at is None or "touch" in step.parameters:
                continue
            if step.kind.disrupts and by.phase is Phase.ACTING:
                self._disrupts(by, step)
            if step.kind is StepKind.UNTAINT:
                self._opens(by)

    def _at_rehearsal(self, _verb: str, what: str, _done: bool) -> None:
        """What comes between all checks and the write."""
        if self.at_last is not None and not what.startswith("Event "):
            steps = (each.steps[each.step] for each in attended(self.store) if each.step < len(each.steps))
            if any(step.kind.disrupts and f"{step.target}" in what for step in steps):
                at_last, self.at_last = self.at_last, None
                at_last()

    def _opens(self, by: Remediation) -> None:
        """A taint goes once the Node was seen to be well for an hour, or not seen to be sick for three days."""
        policy = ExecutePolicy(**self.execute)
        proven = self.now - max(self.sick_at, self.unseen_at) >= timedelta(seconds=policy.healthy_for_seconds)
        expired = self.now - self.sick_at >= timedelta(seconds=policy.taint_expiry_seconds)
        if not (proven or expired or by.undo_asked):
            raise BreachError("opened", f"{by.name}: sick at {self.sick_at}, not seen at {self.unseen_at}")

    def _disrupts(self, by: Remediation, step: Step) -> None:
        about = f"{by.name} writes {step.kind} of {step.target}"
        # What is of one of the three stops no release of another workload.
        ours = by.proposal.objects[0].name == {TAINT: "n0", MOVE: "train", RELEASE: "chat"}[by.proposal.action]
        for name in sorted(self.against[by.proposal.action] if ours else set.intersection(*self.against.values())):
            raise BreachError(name, about)
        if step.kind is StepKind.HAND_OFF and (left := [pod for pod in self.pods() if _is_on(pod, "n0")]):
            raise BreachError("handed_off", f"{about}, and {left[0]['metadata']['name']} runs there")
        if step.kind in ENDING and self.now - self.told.get(by.name, self.now) < NOTICE:
            raise BreachError("notice", about)

    # What gpuwatch sees

    def view(self) -> PlanFacts:
        return replace(super().view(), last_storm=self.last_storm, first_seen=self.first_seen)

    def gaps(self) -> tuple[Gap, ...]:
        return (*super().gaps(), *self.more_gaps)

    def _devices(self, pods: list[Object]) -> tuple[Device, ...]:
        found = super()._devices(pods)
        shared = (replace(each, shared=each.shared or bool(self.sharing.intersection(each.pods))) for each in found)
        return (*shared, *self.gone)

    def _findings(self, devices: tuple[Device, ...], pods: list[Object]) -> list[Finding]:
        doubts = {Verdict.DEGRADED: TAINT, Verdict.IDLE: RELEASE}
        found = super()._findings(devices, pods)
        changes = (self.doubts.get(doubts.get(each.verdict, MOVE), {}) for each in found)
        return [*(replace(each, **change) for each, change in zip(found, changes, strict=True)), *self.more_findings]

    # Its scheduler

    def spot_node(self, name: str) -> None:
        """A new Node of a pool of its own, for those who tolerate that it ends."""
        node = copy.deepcopy(self.node("n0"))
        node["metadata"] = {**node["metadata"], "name": name, "uid": f"{name}-{self.now}"}
        node["metadata"]["creationTimestamp"] = stamp(self.now)
        node["metadata"]["labels"] = {**node["metadata"]["labels"], keys.POOL: "spot"}
        node["status"]["addresses"] = []
        node["spec"] = {"taints": [{"key": "example.com/spot", "value": "true", "effect": "NoSchedule"}]}
        self.cluster.put(node)

    def beside_gpus(self, node: str) -> None:
        """A Pod of a database, without a GPU."""
        self.stuck.add("beside")
        self._own_pod("ml", "beside", {"app": "beside"}, self._reference("chat"), 0, node)

    def _refuse(self, pod: Object) -> None:
        if pod["metadata"]["labels"]["app"] in self.size:  # it looks at no Pod for another scheduler
            super()._refuse(pod)

    def _free_node(self, gpus: int) -> str | None:
        names = [f"n{index}" for index in range(self.nodes)]
        open_ = {node["metadata"]["name"] for node in self._all("v1", "Node") if not is_closed(node)}
        return next((name for name in names if name in open_ and self._has_room(name, gpus)), None)


def _is_on(pod: Object, node: str) -> bool:
    return bool(pod["spec"].get("nodeName") == node)


def _ref(pod: Object) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def _ended_by(item: PlanItem) -> tuple[str, ...]:
    return () if item.candidate.action is TAINT else item.candidate.pods


def _selects(budget: Object, pod: Object) -> bool:
    """By the label that Pods have here."""
    selector = budget["spec"]["selector"]
    wanted = (
        [selector["matchLabels"]["app"]] if "matchLabels" in selector else selector["matchExpressions"][0]["values"]
    )
    return pod["metadata"]["labels"]["app"] in wanted
