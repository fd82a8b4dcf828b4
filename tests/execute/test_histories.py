"""Random histories of a fleet, its owners, its operators and two executors; what has to hold, holds at every write.

A history is made of its seed alone. The suite runs the first 120; `make histories` runs thousands.
"""

from __future__ import annotations

import contextlib
import copy
import os
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from execute.living import ENFORCE, GPUS, KUEUE, Fleet, Killed, attended, drive, new_store, quick
from gpuwatch.execute.advance import ExecutorPolicies
from gpuwatch.frameworks import keys
from gpuwatch.frameworks.objects import Object
from gpuwatch.kube.writer import Failure, WriteError
from gpuwatch.model.decision import ActionKind
from gpuwatch.model.remediation import ObjectRef, Phase, Remediation, StepKind
from gpuwatch.store import StoreError

HISTORIES = int(os.environ.get("HISTORIES", "120"))
CHUNKS = max(6, HISTORIES // 100)  # of so many that every kind of action is done in each
EVENTS = 14
NODES = 5
LIMIT_GPUS = 8
AN_HOUR = 3
POLICIES = ExecutorPolicies(
    # One Node, and three actions in an hour. Storms are left out, since they are the plan's and stop everything.
    replace(
        ENFORCE,
        budget_ratio=0.0,
        budget_min_gpus=LIMIT_GPUS,
        actions_per_hour=AN_HOUR,
        namespace_actions_per_hour=AN_HOUR,
        pool_actions_per_hour=AN_HOUR,
        storm_ratio=1.0,
        idle_storm_ratio=1.0,
    ),
    quick(
        notice_period_seconds=120,
        hand_off_label="repair=yes",
        hand_off_object={"apiVersion": "repair.example.com/v1", "kind": "Repair", "metadata": {"name": "{node}"}},
        last_taint_effect="NoExecute",
    ),
)
OWNERS = ("train", "chat", "web", "batch", "queued")
FOREIGN = {"key": "example.com/theirs", "value": "x", "effect": "NoSchedule"}
FOREIGN_DEGRADED = {"key": keys.DEGRADED, "value": "theirs", "effect": "PreferNoSchedule"}
MINUTE = timedelta(minutes=1)


class LostLease(Exception):
    """The lease check: another process leads now."""


ERRORS: dict[str, Callable[[], BaseException]] = {
    "409": lambda: WriteError(Failure.CONFLICT, "another version", status=409),
    "410": lambda: WriteError(Failure.NOT_FOUND, "gone", status=410),
    "429": lambda: WriteError(Failure.THROTTLED, "too many requests", retry_after_seconds=7, status=429),
    "403": lambda: WriteError(Failure.FORBIDDEN, "not yours", status=403),
    "500": lambda: WriteError(Failure.UNSURE, "internal error", status=500),
    "timeout": lambda: WriteError(Failure.UNSURE, "no answer"),
    "kill": Killed,
    "lease": LostLease,
}
AFTER = ("500", "timeout", "kill")
"""What may also come of a write that did happen."""


class History:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.store = new_store()
        self.late = timedelta(minutes=self.random.choice([0, 0, 3, 20]))
        self.fleet = Fleet(nodes=NODES, takes_up=self.late, carries_out=self.late, frees=self.late)
        self.fleet.owner("Job", "train", 8, node="n0")
        self.fleet.owner("Job", "chat", 2, node="n1")
        self.fleet.owner("Deployment", "web", 2, pods=2, node="n1")
        self.fleet.owner("Volcano", "batch", 2, pods=2, node="n2", maxRetry=99)
        self.fleet.owner("Job", "queued", 2, pods=2, node="n2")
        self.fleet.queue("queued")
        for name in OWNERS:
            self.fleet.budget(name, 2)
        self.fleet.settle()
        self.original = {name: self.meant(name) for name in OWNERS}
        self.executors = [self.fleet.executor(self.store, POLICIES) for _ in range(2)]
        self.theirs: dict[str, list[dict[str, str]]] = {f"n{i}": [] for i in range(NODES)}
        self.fault: tuple[str, bool] | None = None
        self.before: dict[str, Object] = {}
        self.effects: set[tuple[str, ...]] = set()
        self.written: list[tuple[datetime, str]] = []
        self.acted: dict[str, datetime] = {}
        self.taken_back: set[str] = set()
        self.fleet.before_write = self.at_write
        self.fleet.rehearsal.interfere = self.at_rehearsal

    def run(self) -> None:
        for number in self.random.sample(range(2), self.random.choice([0, 1, 1, 2])):
            self.set_health(number, sick=True)
        self.fleet.idle = set(self.random.sample(OWNERS[1:], self.random.choice([0, 1, 2])))
        events = [
            *[self.work] * 5,
            *[self.a_fault] * 3,
            self.time_passes,
            self.health,
            self.use,
            self.pause,
            self.alert,
            self.others_taint,
            self.cordon,
            self.budgets,
            self.objects,
            self.decide,
            self.take_back,
        ]
        for _ in range(EVENTS):
            self.random.choice(events)()
            self.work()
            self.always()
        self.end()

    # 1. No budget, rate or PodDisruptionBudget is breached. Counted here from the objects, not by the plan.

    def within_budgets(self, by: Remediation) -> None:
        if by.name in self.acted:
            return
        self.not_declined(by)
        self.tainted_first(by)
        before = self.harmed(self.before)
        self.acted[by.name] = self.fleet.now
        lately = [at for at in self.acted.values() if self.fleet.now - at < timedelta(hours=1)]
        assert len(lately) <= AN_HOUR, f"{len(lately)} actions in an hour"
        after = self.harmed({name: self.fleet.node(name) for name in self.theirs})
        # What disturbs a GPU that is out of service already is no further harm.
        assert after <= max(before, LIMIT_GPUS), f"{after} GPUs are out of service or disturbed, and {before} were"

    def harmed(self, nodes: dict[str, Object]) -> int:
        """GPUs of Nodes that anybody tainted, and of gangs that are being disturbed on others."""
        tainted = {
            name
            for name in self.theirs
            if nodes[name]["spec"].get("unschedulable") or self.our_taints(nodes[name], name)
        }
        disturbed: dict[str, int] = {}
        for each in attended(self.store):
            moving = each.proposal.action is not ActionKind.TAINT_NODE
            if moving and each.name in self.acted and each.phase is not Phase.IN_EFFECT:
                for name in set(each.proposal.nodes) - tainted:
                    disturbed[name] = disturbed.get(name, 0) + each.proposal.gpus // len(each.proposal.nodes)
        return len(tainted) * GPUS + sum(min(gpus, GPUS) for gpus in disturbed.values())

    def allowed(self, pods: list[Object], why: str) -> None:
        """Every budget allows the end of these Pods together. Our own eviction has taken one already."""
        for name in OWNERS:
            hit = [pod for pod in pods if pod["metadata"]["labels"]["app"] == name]
            found = self.fleet.cluster._objects["policy", "PodDisruptionBudget", "ml", name]
            assert len(hit) <= found["status"]["disruptionsAllowed"], f"{why}: {len(hit)} Pods of {name}"

    # 2. No target is acted on twice.

    def once(self, *effect: str) -> None:
        assert effect not in self.effects, f"twice: {effect}"
        self.effects.add(effect)

    def alone(self, by: Remediation, target: ObjectRef) -> None:
        for other in attended(self.store):
            if other.name != by.name and other.phase in (Phase.ACTING, Phase.VERIFYING, Phase.IN_EFFECT):
                mine = {step.target for step in other.steps if not step.kind.only_notes and step.begun_at}
                assert target not in mine, f"{by.name} and {other.name} act on {target}"

    def not_declined(self, by: Remediation) -> None:
        """Nobody said no to it within a day, but to a taint or a move that rested on less."""
        mine = by.proposal
        for other in self.store.all():
            theirs, at = other.proposal, other.history[-1].at if other.history else other.proposal.created_at
            if (theirs.action, theirs.target) != (mine.action, mine.target) or self.fleet.now - at >= timedelta(days=1):
                continue
            no = other.phase is Phase.REJECTED or (other.phase is Phase.UNDONE and other.undo_asked)
            no = no or (other.name in self.taken_back and other.phase is Phase.UNDONE)
            more = not set(mine.devices) <= set(theirs.devices) and mine.action is not ActionKind.RELEASE_GANG
            assert not no or more, f"{by.name} is done, and {other.name} was declined"

    def tainted_first(self, by: Remediation) -> None:
        """A gang that is moved off sick GPUs would be moved again and again where nothing keeps it from them."""
        if by.proposal.action is ActionKind.EVICT_GANG:
            for name in {device.split("-")[1] for device in self.fleet.sick.intersection(by.proposal.devices)}:
                spec = self.before[name]["spec"]
                tainted = spec.get("unschedulable") or keys.DEGRADED in {
                    taint["key"] for taint in spec.get("taints") or []
                }
                assert tainted, f"{by.name} begins, and nothing taints {name}"

    # 3. No foreign taint is touched.

    def theirs_stand(self) -> None:
        for name, taints in self.theirs.items():
            now = self.fleet.node(name)["spec"].get("taints") or []
            assert [taint for taint in now if taint in taints] == taints, f"taints of others on {name}: {now}"

    def our_taints(self, node: Object, name: str) -> list[dict[str, str]]:
        return [t for t in node["spec"].get("taints") or [] if t["key"] == keys.DEGRADED and t not in self.theirs[name]]

    # 4. Every action is recorded, before it is done.

    def recorded(self, what: str) -> Remediation:
        for each in attended(self.store):
            if each.step >= len(each.steps):
                continue
            step = each.steps[each.step]
            # What is created, and a Command, is named by what it is about.
            made = step.kind in (StepKind.COMMAND, StepKind.WITHDRAW, StepKind.RESTORE) and each.name in what
            made = made or (step.kind is StepKind.HAND_OFF and what.endswith(f"{step.target.kind} {step.target.name}"))
            if step.begun_at is not None and (what.endswith(f"{step.target}") or made):
                return each
        raise AssertionError(f"nothing that is kept says that {what} is to be written")

    # 5. Every release can be restored to the same spec: it is kept before it is changed, and end() asks for all.

    def kept(self, by: Remediation, name: str) -> None:
        assert by.saved, f"{name} is changed, and what it was is not kept"

    # At each write

    def at_write(self, verb: str, what: str, done: bool) -> None:
        if what.startswith("Event "):
            return
        by = self.recorded(what)
        step = by.steps[by.step]
        if not done:
            self.before = {name: copy.deepcopy(self.object(name)) for name in self.names()}
            self.pods_before = copy.deepcopy(self.fleet.pods())
        else:
            self.written.append((self.fleet.now, what))
            self.theirs_stand()
            if self.store.paused().paused:
                gives_back = by.phase is Phase.UNDOING or step.kind.gives_back or "touch" in step.parameters
                assert gives_back, f"{what} was written under the pause"
            if not step.kind.only_notes and by.phase is Phase.ACTING:
                self.alone(by, step.target)
                self.within_budgets(by)
            self.effects_of(by, what)
        if self.fault is not None and self.fault[1] is done:
            kind, _ = self.fault
            self.fault = None
            raise ERRORS[kind]()

    def effects_of(self, by: Remediation, what: str) -> None:
        """What has changed by this write."""
        if "eviction" in what:
            self.once("evicted", what)
            gone = {pod["metadata"]["uid"] for pod in self.pods_before} - {
                pod["metadata"]["uid"] for pod in self.fleet.pods()
            }
            assert len(gone) == 1
        for name in OWNERS:
            was, now = self.before[name]["spec"], self.object(name)["spec"]
            off = (now.get("suspend") and not was.get("suspend")) or (was.get("active") and not now["active"])
            if off or (what.startswith("Command") and what.endswith("-abortjob") and name == "batch"):
                if by.phase is Phase.ACTING:
                    self.once(
                        "released", by.name, name, *(["command", str(len(self.fleet.commands))] if not off else [])
                    )
                    self.allowed(self.fleet.pods(name), f"{by.name} ends them")
                self.kept(by, name)
        for name in self.theirs:
            was = {taint["effect"] for taint in self.our_taints(self.before[name], name)}
            for taint in self.our_taints(self.fleet.node(name), name):
                if taint["effect"] not in was:
                    self.once("tainted", by.name, name, taint["effect"])
                    if taint["effect"] == "NoExecute":
                        self.allowed([p for p in self.fleet.pods() if p["spec"].get("nodeName") == name], "NoExecute")

    def at_rehearsal(self, verb: str, what: str, done: bool) -> None:
        if self.fault is not None and not done and self.fault[0] != "kill" and self.random.random() < 0.2:
            kind, _ = self.fault
            self.fault = None
            raise ERRORS[kind]()

    def names(self) -> list[str]:
        return [*OWNERS, *self.theirs]

    def object(self, name: str) -> Object:
        """A Node, or what is released: the owner, or Kueue's Workload."""
        if name.startswith("n"):
            return self.fleet.node(name)
        if name == "queued":
            return self.fleet.cluster._objects["kueue.x-k8s.io", "Workload", "ml", "job-queued"]
        return self.fleet._owner(name)

    def meant(self, name: str) -> Object:
        """What its owner asked for. A rollout's stamp is no part of it, and Kueue writes suspend itself."""
        spec = copy.deepcopy(self.object(name)["spec"])
        spec.pop("template", None)
        return spec

    # What happens

    def work(self) -> None:
        """One of two executors plans and takes some steps, a minute apart, or until it is killed."""
        executor = self.random.choice(self.executors)
        for _ in range(self.random.choice([1, 4, 15])):
            self.fleet.settle()
            try:
                if self.random.random() < 0.4:
                    self.fleet.propose(executor)
                for name in executor.due(self.fleet.now):
                    executor.run_once(name, self.fleet.now)
            except (Killed, LostLease):
                return
            self.fleet.now += MINUTE

    def a_fault(self) -> None:
        kind = self.random.choice(list(ERRORS))
        self.fault = kind, kind in AFTER and self.random.random() < 0.5

    def time_passes(self) -> None:
        self.fleet.now += timedelta(minutes=self.random.choice([3, 30, 600]))

    def health(self) -> None:
        self.set_health(self.random.randrange(3), sick=self.random.random() < 0.6)

    def set_health(self, number: int, sick: bool) -> None:
        devices = {f"GPU-n{number}-{index}" for index in range(GPUS)}
        self.fleet.sick = self.fleet.sick | devices if sick else self.fleet.sick - devices

    def use(self) -> None:
        name = self.random.choice(OWNERS[1:])
        idle = self.random.random() < 0.6
        (self.fleet.idle.add if idle else self.fleet.idle.discard)(name)
        (self.fleet.busy.discard if idle else self.fleet.busy.add)(name)

    def pause(self) -> None:
        if self.random.random() < 0.5:
            self.store.pause("ann", "a demo", self.fleet.now)
        else:
            self.store.resume()

    def alert(self) -> None:
        self.fleet.alerts = self.random.choice([(), (), ("EtcdDown",)])

    def others_taint(self) -> None:
        name, taint = self.random.choice(["n0", "n1"]), self.random.choice([FOREIGN, FOREIGN_DEGRADED])
        found = self.fleet.node(name)
        taints = [each for each in found["spec"].get("taints") or [] if each != taint]
        add = self.random.random() < 0.6
        if add and any((each["key"], each["effect"]) == (taint["key"], taint["effect"]) for each in taints):
            return  # the API server allows one taint of a key and an effect
        found["spec"]["taints"] = [*taints, taint] if add else taints
        self.theirs[name] = [*[each for each in self.theirs[name] if each != taint], *([taint] if add else [])]
        self.fleet.cluster.put(found)

    def cordon(self) -> None:
        found = self.fleet.node(f"n{self.random.randrange(NODES)}")
        found["spec"].pop("unschedulable", None)
        if self.random.random() < 0.4:
            found["spec"]["unschedulable"] = True
        self.fleet.cluster.put(found)

    def budgets(self) -> None:
        self.fleet.budget(self.random.choice(OWNERS), self.random.randrange(3))

    def objects(self) -> None:
        owner = self.fleet.find(self.random.choice(OWNERS))
        annotations = owner["metadata"].setdefault("annotations", {})
        annotations.pop(keys.OBJECTION, None)
        if self.random.random() < 0.4:
            annotations[keys.OBJECTION] = "mine"
        self.fleet.cluster.put(owner)

    def take_back(self) -> None:
        """An owner resumes what was suspended, or somebody takes our taint off."""
        for name in self.names():
            found = copy.deepcopy(self.object(name))
            mark = (found["metadata"].get("annotations") or {}).get(keys.REMEDIATION)
            kept = next((each for each in self.store.all() if each.name == mark), None)
            if kept is None or kept.phase is not Phase.IN_EFFECT or self.random.random() < 0.5:
                continue
            if name.startswith("n"):
                found["spec"]["taints"] = list(self.theirs[name])
            elif name == "queued":
                found["spec"]["active"] = True
            elif "suspend" in found["spec"]:
                found["spec"]["suspend"] = False
            else:
                continue
            self.fleet.cluster.put(found)
            self.taken_back.add(kept.name)

    def decide(self) -> None:
        known = self.store.all()
        if not known:
            return
        name = self.random.choice(known[-4:]).id
        decision = self.random.choice([lambda n: self.store.approve(n, "ann"), self.store.reject, self.store.ask_undo])
        with contextlib.suppress(StoreError):  # approved and rejected exclude each other
            decision(name)

    # What has to hold always, and in the end

    def always(self) -> None:
        known = {each.name: each for each in self.store.all()}
        for name in self.names():
            mark = (self.object(name)["metadata"].get("annotations") or {}).get(keys.REMEDIATION)
            if mark:
                assert mark in known, f"{mark} on {name} is not recorded"
                assert known[mark].phase.open or known[mark].phase is Phase.SUCCEEDED

    def end(self) -> None:
        """Everything can be taken back: the same specs, and nothing of ours left."""
        self.fault = None
        self.fleet.alerts = ()
        self.store.resume()
        for each in self.store.all():
            self.store.ask_undo(each.id)
        drive(self.fleet, self.executors[0], 12, least_seconds=300)
        left = attended(self.store)
        assert not left, [(each.name, each.phase, each.history[-3:], each.steps[each.step :]) for each in left]
        for name in OWNERS:
            assert self.meant(name) == self.original[name], name
            ours = {key for key in self.fleet.find(name)["metadata"].get("annotations") or {} if keys.PREFIX in key}
            assert not ours - {keys.OBJECTION}, (name, ours)
        (workload,) = self.fleet.cluster.objects(KUEUE, "Workload")
        assert not workload["metadata"].get("annotations")
        assert self.fleet._owner("batch")["status"]["state"]["phase"] in ("Running", "Pending", "Restarting")
        assert not self.fleet.cluster.objects("bus.volcano.sh/v1alpha1", "Command")
        assert not self.fleet.cluster.objects("repair.example.com/v1", "Repair")
        for name, taints in self.theirs.items():
            node = self.fleet.node(name)
            assert (node["spec"].get("taints") or []) == taints
            assert not node["metadata"].get("annotations"), node
            assert not node["metadata"].get("labels")
        # Each write that happened stands in a step that was begun no later.
        steps = [step for each in self.store.all() for step in each.steps if step.begun_at is not None]
        assert self.written == [] or min(step.begun_at for step in steps if step.begun_at) <= self.written[0][0]
        made = ("Command", "Repair")  # named otherwise as they are created
        assert {what.rpartition(" ")[2] for _, what in self.written if not what.startswith(made)} <= {
            f"{step.target}" for step in steps
        }


def tell(seed: int) -> History:
    history = History(seed)
    try:
        history.run()
    except AssertionError as error:
        error.add_note(f"history {seed}")
        raise
    return history


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_random_histories(chunk: int) -> None:
    acted: dict[ActionKind, int] = dict.fromkeys(ActionKind, 0)
    for seed in range(chunk, HISTORIES, CHUNKS):
        history = tell(seed)
        for each in history.store.all():
            acted[each.proposal.action] += each.name in history.acted
    for kind in (ActionKind.TAINT_NODE, ActionKind.EVICT_GANG, ActionKind.RELEASE_GANG):
        assert acted[kind] > 0, f"no {kind} was done in any of them, so nothing was shown of it"
