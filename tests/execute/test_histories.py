"""Random histories of a fleet, its owners, its operators and two executors; what has to hold, holds at every write.

A history is made of its seed alone. The suite runs the first 120 of `History` and of `Hostile`, in which tenants and
other clusters mean harm and any list may fail; `make histories` runs thousands of both.

What has to hold, by the names that a broken one is reported under:

namespace   No Pod ends unless the Namespace of its owner allowed it in that moment, by its mode.
opt_out     No opt-out, objection or snooze of a Pod, its owner, its Namespace or its Node is passed in that moment.
disruption  No PodDisruptionBudget is passed, whoever counts: by all Pods that a step ends, with GPUs or without.
budget      gpuwatch takes no second Node out of service, whoever took out the first. Until their Pods run again, moves
            disturb at most as many GPUs in service as a Node has, in physical GPUs. No rate of actions is passed.
            The rates forget a release or a move whose record somebody takes away by force (docs/remediation.md).
brake       Nothing disrupts while a pause, an alert, or an alert of which nobody knows stops it.
unread      Nothing disrupts on what was not read: a list that failed or was not understood, old or partial telemetry.
            What owners and operators say between a cycle's reading and a step counts in that step.
telemetry   Nothing of another cluster or tenant counts: what is acted on is this cluster's, and truly sick or idle now.
whole       Nothing is released while a Pod without a GPU works for the same owner.
once        No target is acted on twice, nor what a person declined, nor a gang before its Nodes are tainted.
foreign     No taint of others is touched.
own_fields  A write changes the fields of its kind alone.
recorded    Every action is recorded, before it is done, with what it changes.
late        A write of a process that stood still lands in a Remediation that still reckons with it, or not at all; what
            creates an object has no precondition in the API, and is swept. A late Volcano Command may stop its Job.
bounded     A gang that was stopped to run again does so in time, or a person is called.
undone      No Remediation that stopped a gang is over, by an undo, before as many of its Pods run as before, unless
            others have set the field that stopped it since.
place       No gang that a queue admitted by its quota is stopped to be moved: another team waits for that quota.
ends        Every mark of gpuwatch ends: when all is undone, the specs are the same and nothing of ours is left.
"""

import contextlib
import copy
import json
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

import pytest

from execute.broken import BREAKS
from execute.hostile import LISTS, READS, HostileFleet, is_foreign, is_side
from execute.living import ENFORCE, GPUS, Fleet, Killed, attended, device_id, drive, new_store, quick
from gpuwatch.act.execute.advance import ExecutorPolicies
from gpuwatch.act.execute.sweep import Orphan, suspects
from gpuwatch.act.remediations import PAUSE
from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.frameworks.objects import KindKey, Object, ref_of, stamp
from gpuwatch.facts.model.decision import ActionKind
from gpuwatch.facts.model.remediation import ObjectRef, Phase, Remediation, Step, StepKind
from gpuwatch.facts.model.telemetry import Device, Vendor
from gpuwatch.sources.kube.writer import Failure, WriteError
from gpuwatch.sources.store import StoreError
from gpuwatch.sources.store.custom_resources import API_VERSION
from kube.memory_cluster import MemoryCluster

pytestmark = pytest.mark.slow  # minutes of CPU
HISTORIES = int(os.environ.get("HISTORIES", "36"))
CHUNKS = max(3, HISTORIES // 100)  # of so many that every kind of action is done in each
EVENTS = 14
BROKEN_SEEDS = 40
"""Within so many a broken mechanism is seen; most are within five."""
NODES = 5
AN_HOUR = 3
POLICIES = ExecutorPolicies(
    # Three actions in an hour; of so few Nodes one may be out. Storms are left out, since they stop everything.
    replace(
        ENFORCE,
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
HOSTILE = (
    "a_list_fails",
    "an_own_read_fails",
    "telemetry_fails",
    "another_cluster",
    "a_lie",
    "foreign_owner",
    "pods_without_gpus",
    "opt_out",
    "mode",
    "forged_mark",
    "forged_gang",
    "strip",
    "stuck_pods",
    "an_upgrade",
    "a_freeze",
    "thaw",
    "given_up",
    "in_between",
    "odd_pauses",
    "lost_record",
)
OURS = frozenset((keys.REMEDIATION, keys.SAVED_STATE, keys.NOTICE, keys.TAINT))
OTHERS_OPT_OUTS = {
    "karpenter.sh/do-not-disrupt": "true",
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
}
FOREIGN = {"key": "example.com/theirs", "value": "x", "effect": "NoSchedule"}
FOREIGN_DEGRADED = {"key": keys.DEGRADED, "value": "theirs", "effect": "PreferNoSchedule"}
RESTARTED = "kubectl.kubernetes.io/restartedAt"
MINUTE = timedelta(minutes=1)


class BreachError(AssertionError):
    """What has to hold does not; rule: its name above."""

    def __init__(self, rule: str, why: object) -> None:
        super().__init__(f"{rule}: {why}")
        self.rule = rule


def holds(rule: str, condition: object, why: object) -> None:
    if not condition:
        raise BreachError(rule, why)


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
        self.fleet = self.new_fleet()
        self.fleet.owner("Job", "train", 8, node="n0")
        self.fleet.owner("Job", "chat", 2, node="n1")
        self.fleet.owner("Deployment", "web", 2, pods=2, node="n1")
        self.fleet.owner("Volcano", "batch", 2, pods=2, node="n2", maxRetry=99)
        self.fleet.owner("Job", "queued", 2, pods=2, node="n2")
        self.fleet.queue("queued")
        self.fleet.quota = 4
        self.fleet.rival("rival", 2, pods=2)
        for name in OWNERS:
            self.fleet.budget(name, 2)
        self.fleet.settle()
        self.original = {name: self.meant(name) for name in OWNERS}
        self.executors = [self.fleet.executor(self.store, self.policies) for _ in range(2)]
        self.theirs: dict[str, list[dict[str, str]]] = {f"n{i}": [] for i in range(self.fleet.nodes)}
        self.node_labels = {name: self.fleet.node(name)["metadata"].get("labels") or {} for name in self.theirs}
        self.own_doing: set[str] = set()
        self.late_command = False
        self.forged: set[str] = set()
        self.late_ones = False
        self.fault: tuple[str, bool] | None = None
        self.before: dict[str, Object] = {}
        self.effects: set[tuple[str, ...]] = set()
        self.written: list[tuple[datetime, str]] = []
        self.acted: dict[str, datetime] = {}
        self.ended: list[datetime] = []
        self.taken_back: set[str] = set()
        self.ran: dict[str, int] = {}
        self.fleet.before_write = self.at_write
        self.fleet.rehearsal.interfere = self.at_rehearsal

    policies = POLICIES

    def new_fleet(self) -> Fleet:
        return Fleet(nodes=NODES, takes_up=self.late, carries_out=self.late, frees=self.late)

    def run(self) -> None:
        for number in self.random.sample(range(2), self.random.choice([0, 1, 1, 2])):
            self.set_health(number, sick=True)
        self.fleet.idle = set(self.random.sample(OWNERS[1:], self.random.choice([0, 1, 2])))
        events = self.events()
        for _ in range(EVENTS):
            self.random.choice(events)()
            self.work()
            self.always()
        self.end()

    def events(self) -> list[Callable[[], None]]:
        return [
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

    # namespace, opt_out, brake, telemetry: asked of the objects as they are in the moment of the write

    def plainly_open(self) -> bool:
        return not self.store.paused().paused

    def may_disrupt(self, by: Remediation, step: Step) -> None:
        about = f"{by.name} writes {step.kind} of {step.target}"
        holds("brake", self.plainly_open(), f"{about} under the pause")
        holds("brake", self.fleet.alerts == (), f"{about} under the alerts {self.fleet.alerts}")
        if by.proposal.action is ActionKind.RELEASE_GANG:
            truly = by.proposal.objects[0].name in self.fleet.idle
        else:
            truly = not self.fleet.sick.isdisjoint(by.proposal.devices)
        holds("telemetry", truly, f"{about}, and its reason is not so")
        for pod in self.ended_by(step):
            for where, key in self.refusing(pod):
                holds("opt_out", False, f"{about} past {key} on {where}")
        if by.proposal.action is ActionKind.EVICT_GANG:
            holds("place", by.proposal.objects[0].name not in ("queued", "batch"), about)
        if by.proposal.objects[0].name in OWNERS:
            self.ran.setdefault(by.id, self.running(by.proposal.objects[0].name))

    def running(self, name: str) -> int:
        pods = (pod for pod in self.fleet.pods(name) if "deletionTimestamp" not in pod["metadata"])
        return sum(pod["status"]["phase"] == "Running" for pod in pods)

    def ended_by(self, step: Step) -> list[Object]:
        """The Pods that the step ends, whosever they are."""
        if step.kind is StepKind.EVICT:
            return [pod for pod in self.fleet.pods() if pod["metadata"]["uid"] == step.target.uid]
        if step.kind is StepKind.TAINT and step.parameters["effect"] == "NoExecute":
            return [pod for pod in self.fleet.pods() if pod["spec"].get("nodeName") == step.target.name]
        if step.kind in (StepKind.RELEASE, StepKind.COMMAND, StepKind.RESTART):
            return self.fleet.ended_with(step.target.name.removeprefix("job-"))
        return []

    def refusing(self, pod: Object) -> list[tuple[str, str]]:
        """(object, key) of what is on the Pod or on its owner against its end."""
        owner = self.fleet.find(pod["metadata"]["labels"]["app"])
        return [(name, key) for name, item in (("Pod", pod), ("owner", owner)) for key in self.against(item)]

    def against(self, item: Object) -> list[str]:
        found = {**(item["metadata"].get("labels") or {}), **(item["metadata"].get("annotations") or {})}
        until = found.get(keys.SNOOZE_UNTIL)
        return [
            *(key for key in (keys.OPT_OUT, keys.OBJECTION) if found.get(key, "false") != "false"),
            *(key for key, value in OTHERS_OPT_OUTS.items() if found.get(key) == value),
            *([keys.SNOOZE_UNTIL] if until and datetime.fromisoformat(until) > self.fleet.now else []),
        ]

    # budget and disruption: counted here from the objects, not by the plan

    def within_budgets(self, by: Remediation) -> None:
        if by.name in self.acted:
            return
        self.not_declined(by)
        self.tainted_first(by)
        self.acted[by.name] = self.fleet.now
        self.within_rates()
        were, out = self.out(self.before), self.out({name: self.fleet.node(name) for name in self.theirs})
        if by.proposal.action is ActionKind.TAINT_NODE:
            holds("budget", len(out) <= max(len(were), 1), f"{out} are out of service, and {were} were")
        if by.proposal.action is ActionKind.EVICT_GANG:
            moving = self.moving(were)
            holds("budget", moving <= GPUS, f"{moving} GPUs in service are disturbed by moves")

    def within_rates(self) -> None:
        """A gang that NoExecute ends counts as one that was moved."""
        done = [*self.acted.values(), *self.ended]
        lately = [at for at in done if self.fleet.now - at < timedelta(hours=1)]
        holds("budget", len(lately) <= AN_HOUR, f"{len(lately)} actions in an hour")

    def out(self, nodes: dict[str, Object]) -> set[str]:
        """Nodes that anybody took out of service."""
        taken = (name for name in self.theirs if self.our_taints(nodes[name], name))
        return {*taken, *(name for name in self.theirs if nodes[name]["spec"].get("unschedulable"))}

    def moving(self, out: set[str]) -> int:
        """GPUs of gangs that are being moved, without those on these Nodes."""
        begun = (each for each in attended(self.store) if each.name in self.acted and each.phase is not Phase.IN_EFFECT)
        moves = [each.proposal for each in begun if each.proposal.action is ActionKind.EVICT_GANG]
        return sum(len(set(each.nodes) - out) * (each.gpus // len(each.nodes)) for each in moves)

    def allowed(self, pods: list[Object], why: str) -> None:
        """Every budget allows the end of these Pods together. Our own eviction has taken one already."""
        for name in OWNERS:
            hit = [pod for pod in pods if pod["metadata"]["labels"]["app"] == name]
            found = self.fleet.cluster.get(ObjectRef("policy/v1", "PodDisruptionBudget", name, "ml"))
            most = len(hit) if found is None else found["status"]["disruptionsAllowed"]
            holds("disruption", len(hit) <= most, f"{why}: {len(hit)} Pods of {name}")

    # once

    def once(self, *effect: str) -> None:
        holds("once", effect not in self.effects, effect)
        self.effects.add(effect)

    def alone(self, by: Remediation, target: ObjectRef) -> None:
        for other in attended(self.store):
            if other.name != by.name and other.phase in (Phase.ACTING, Phase.VERIFYING, Phase.IN_EFFECT):
                mine = {step.target for step in other.steps if not step.kind.only_notes and step.begun_at}
                holds("once", target not in mine, f"{by.name} and {other.name} act on {target}")

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
            holds("once", not no or more, f"{by.name} is done, and {other.name} was declined")

    def tainted_first(self, by: Remediation) -> None:
        """A gang that is moved off sick GPUs would be moved again and again where nothing keeps it from them."""
        if by.proposal.action is ActionKind.EVICT_GANG:
            for name in {device.split("-")[1] for device in self.fleet.sick.intersection(by.proposal.devices)}:
                spec = self.before[name]["spec"]
                effects = {each["effect"] for each in spec.get("taints") or [] if each["key"] == keys.DEGRADED}
                shut = spec.get("unschedulable") or effects - {"PreferNoSchedule"}
                holds("once", shut, f"{by.name} begins, and the scheduler may put its Pods back on {name}")

    # foreign

    def theirs_stand(self) -> None:
        for name, taints in self.theirs.items():
            now = self.fleet.node(name)["spec"].get("taints") or []
            holds("foreign", [taint for taint in now if taint in taints] == taints, f"{name}: {now}")

    def our_taints(self, node: Object, name: str) -> list[dict[str, str]]:
        return [t for t in node["spec"].get("taints") or [] if t["key"] == keys.DEGRADED and t not in self.theirs[name]]

    # recorded

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
        raise BreachError("recorded", f"nothing that is kept says that {what} is to be written")

    # recorded: what is released is kept before it is changed, and end() restores all of it

    def kept(self, by: Remediation, name: str) -> None:
        holds("recorded", by.saved, f"{name} is changed, and what it was is not kept")

    # At each write

    def at_write(self, verb: str, what: str, done: bool) -> None:
        if what.startswith("Event "):
            return
        by = self.recorded(what)
        step = by.steps[by.step]
        if not done:
            if step.kind.disrupts and by.phase is Phase.ACTING and "touch" not in step.parameters:
                self.may_disrupt(by, step)
            if self.plainly_open() is False and not step.kind.disrupts:
                gives_back = by.phase is Phase.UNDOING or step.kind.gives_back or "touch" in step.parameters
                holds("brake", gives_back or "call" in step.parameters, f"{what} was written under the pause")
            self.before = {name: copy.deepcopy(self.object(name)) for name in self.names()}
            self.pods_before = copy.deepcopy(self.fleet.pods())
        else:
            self.written.append((self.fleet.now, what))
            self.theirs_stand()
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
            holds("once", len(gone) == 1, f"an eviction ended {len(gone)} Pods")
        for name in OWNERS:
            was, now = self.before[name]["spec"], self.object(name)["spec"]
            holds("own_fields", others_of(was) == others_of(now), f"{name}: {was} became {now}")
            off = (now.get("suspend") and not was.get("suspend")) or (was.get("active") and not now["active"])
            if off or (what.startswith("Command") and what.endswith("-abortjob") and name == "batch"):
                if by.phase is Phase.ACTING:
                    self.once(
                        "released", by.name, name, *(["command", str(len(self.fleet.commands))] if not off else [])
                    )
                    self.allowed(self.fleet.ended_with(name), f"{by.name} ends them")
                self.kept(by, name)
        for name in self.theirs:
            was = {taint["effect"] for taint in self.our_taints(self.before[name], name)}
            for taint in self.our_taints(self.fleet.node(name), name):
                if taint["effect"] not in was:
                    self.once("tainted", by.name, name, taint["effect"])
                    if taint["effect"] == "NoExecute":
                        here = [pod for pod in self.fleet.pods() if pod["spec"].get("nodeName") == name]
                        self.allowed(here, "NoExecute")
                        gangs = {pod["metadata"]["labels"]["app"] for pod in here if self.fleet._gpus(pod)}
                        self.ended += [self.fleet.now] * len(gangs)
                        self.within_rates()

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
                    before = self.store.get(name)
                    after = executor.run_once(name, self.fleet.now)
                    if before and after and before.phase is Phase.UNDOING and not after.phase.open:
                        self.undone(after)
            except (Killed, LostLease, StoreError):
                return
            self.fleet.now += MINUTE

    def undone(self, over: Remediation) -> None:
        name = over.proposal.objects[0].name
        if over.id in self.ran and not (name == "batch" and self.late_command):
            theirs = name in self.own_doing or self.meant(name) != self.original[name]
            runs = self.running(name) >= self.ran[over.id]
            holds("undone", runs or theirs, f"{over.name} is {over.phase}, and {self.running(name)} Pods of {name} run")

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
            if mark and mark not in self.forged:
                holds("recorded", mark in known, f"{mark} on {name}")
                over = not known[mark].phase.open and known[mark].phase is not Phase.SUCCEEDED
                holds("ends", not over or self.late_ones, f"{mark} on {name} is {known[mark].phase}")

    def swept(self) -> None:
        """Nothing outlives its record here."""

    def end(self) -> None:
        """Everything can be taken back: the same specs, and nothing of ours left."""
        self.fault = None
        self.fleet.alerts = ()
        self.store.resume()
        for each in self.store.all():
            self.store.ask_undo(each.id)
        # There is quota and room for all at last.
        self.fleet.finish("rival")
        self.fleet._free_node = lambda _gpus: "n4"  # type: ignore[method-assign]
        drive(self.fleet, self.executors[0], 12, least_seconds=300)
        left = attended(self.store)
        why = [(each.name, each.phase, each.history[-3:], each.steps[each.step :]) for each in left]
        holds("ends", not left, why)
        self.swept()
        for name in OWNERS:
            same = name in self.own_doing or self.meant(name) == self.original[name]
            holds("ends", same, f"{name}: {self.meant(name)}")
            left_on = OURS.intersection(self.fleet.find(name)["metadata"].get("annotations") or {})
            holds("ends", not left_on, f"{name}: {left_on}")
        workload = self.object("queued")
        holds("ends", not workload["metadata"].get("annotations"), workload)
        runs = self.fleet._owner("batch")["status"]["state"]["phase"] in ("Running", "Pending", "Restarting")
        holds("ends", runs or self.late_command or "batch" in self.own_doing, "batch does not run")
        for api_version, kind in (("bus.volcano.sh/v1alpha1", "Command"), ("repair.example.com/v1", "Repair")):
            holds("ends", not self.fleet.cluster.objects(api_version, kind), f"a {kind} is left")
        for name, taints in self.theirs.items():
            node = self.fleet.node(name)
            holds("ends", (node["spec"].get("taints") or []) == taints, f"{name}: {node['spec']}")
            left_on = OURS.intersection(node["metadata"].get("annotations") or {})
            holds("ends", not left_on, f"{name}: {left_on}")
            conditions = {item["type"]: item["status"] for item in node["status"]["conditions"]}
            holds("ends", conditions.get(keys.CONDITION, "False") == "False", f"{name}: {conditions}")
            labels = self.node_labels[name]
            holds("ends", (node["metadata"].get("labels") or {}) == labels, f"{name}: {node['metadata']}")
        # Each write that happened stands in a step that was begun no later.
        steps = [step for each in self.store.all() for step in each.steps if step.begun_at is not None]
        first = min((step.begun_at for step in steps if step.begun_at), default=None)
        holds("recorded", self.forged or not self.written or (first and first <= self.written[0][0]), self.written[:1])
        made = ("Command", "Repair")  # named otherwise as they are created
        wrote = {what.rpartition(" ")[2] for _, what in self.written if not what.startswith(made)}
        holds("recorded", self.forged or wrote <= {f"{step.target}" for step in steps}, wrote)


def others_of(spec: Object) -> Object:
    """The spec without what a release or a rollout may write."""
    kept = copy.deepcopy({key: value for key, value in spec.items() if key not in ("suspend", "active", "replicas")})
    template = kept.pop("template", {})
    metadata = template.pop("metadata", {})
    stamps = metadata.pop("annotations", {})
    stamps.pop(RESTARTED, None)
    return kept | template | metadata | stamps


class Hostile(History):
    """The same, where tenants and other clusters mean harm and any list may fail."""

    fleet: HostileFleet

    def __init__(self, seed: int, of: Sequence[str] = ()) -> None:
        """of: the names of the only hostile events; else some that are drawn."""
        self.of = of
        self.lost: set[str] = set()
        self.stripped: set[str] = set()
        self.odd_pause = self.late_repairs = False
        self.froze: list[tuple[str, StepKind]] = []
        self.coming: list[Callable[[], object]] = []
        self.armed = ""
        """Which write the next process is to stand still before: 'any', 'disrupts', '' for none."""
        super().__init__(seed)
        self.fleet.process.freezes = self.at_freeze
        self.fleet.between = self.between

    def new_fleet(self) -> Fleet:
        return HostileFleet(takes_up=self.late, carries_out=self.late, frees=self.late)

    def events(self) -> list[Callable[[], None]]:
        # A few sorts of harm at a time, as they would hide each other.
        drawn = self.of or self.random.sample(HOSTILE, 5)
        return [*super().events(), *[getattr(self, name) for name in drawn] * (12 // len(drawn))]

    # namespace, unread, telemetry, whole

    def may_disrupt(self, by: Remediation, step: Step) -> None:
        about = f"{by.name} writes {step.kind} of {step.target}"
        ended = self.ended_by(step)
        fleet = self.fleet
        for pod in ended:
            space = pod["metadata"]["namespace"]
            asked = (self.namespace(space)["metadata"].get("annotations") or {}).get(keys.MODE, "enforce")
            allowed = asked == "enforce" or (asked == "suggest" and by.approved)
            holds("namespace", allowed, f"{about}, which ends Pod {space}/{pod['metadata']['name']}: mode {asked}")
            holds("namespace", not is_foreign(pod) or step.kind is StepKind.TAINT, f"{about} for a foreign Pod")
        foreign = [ref for ref in by.proposal.pods if not ref.startswith("ml/")]
        holds("namespace", not foreign or by.proposal.action is ActionKind.TAINT_NODE, f"{about} for {foreign}")
        needed = NEEDED_TO_END if ended or step.kind is StepKind.EVICT else NEEDED_TO_TAINT
        unread = [
            f"{kind[1]} {how}"
            for kind, how in fleet.reads.items()
            if kind in needed and how != "stale" and self.is_asked(kind)
        ]
        unread = [each for each in unread if self.matters(each)]
        holds("unread", not unread, f"{about} and {unread}")
        again = NEEDED_AGAIN if step.kind is not StepKind.TAINT else ("nodes", *NEEDED_AGAIN[-1:])
        if fleet.unreadable and ended:
            holds("unread", fleet.unreadable not in again, f"{about}, and may not read {fleet.unreadable}")
        holds("unread", not fleet.partial and not fleet.stale, f"{about} on old or partial telemetry")
        known = {device_id(f"n{n}", i) for n in range(fleet.nodes) for i in range(GPUS)}
        forged = set(by.proposal.devices) - known
        holds("telemetry", not forged, f"{about}, which rests on {forged}")
        for node in by.proposal.nodes:
            for key in self.against(fleet.node(node)):
                holds("opt_out", False, f"{about} past {key} on Node {node}")
        if by.proposal.action is ActionKind.RELEASE_GANG and by.proposal.objects[0].name not in ("batch", "queued"):
            beside = [pod["metadata"]["name"] for pod in ended if is_side(pod)]
            holds("whole", not beside, f"{about} and ends {beside}")
        super().may_disrupt(by, step)

    def is_asked(self, kind: KindKey) -> bool:
        """A kind of owners is listed only where a Pod has such an owner."""
        refs = [ref for pod in self.fleet.pods() for ref in pod["metadata"].get("ownerReferences", ())]
        return kind not in KINDS_OF_OWNERS or kind in {
            (ref["apiVersion"].rpartition("/")[0], ref["kind"]) for ref in refs
        }

    def matters(self, failed: str) -> bool:
        """One Namespace's object that was not understood says nothing of others."""
        return failed != "Namespace undecodable"

    def namespace(self, name: str) -> Object:
        found = self.fleet.cluster.get(ObjectRef("v1", "Namespace", name))
        assert found is not None
        return found

    def refusing(self, pod: Object) -> list[tuple[str, str]]:
        space = self.namespace(pod["metadata"]["namespace"])
        here = [("Namespace", key) for key in self.against(space)]
        if is_foreign(pod):
            return [*here, *(("Pod", key) for key in self.against(pod))]
        return [*here, *super().refusing(pod)]

    # What happens

    def a_list_fails(self) -> None:
        if self.random.random() < 0.4:
            self.fleet.reads = {}
        else:
            self.fleet.reads[self.random.choice(LISTS)] = self.random.choice((*READS, "stale", "stale"))

    def an_own_read_fails(self) -> None:
        self.fleet.unreadable = self.random.choice(["", "", *NEEDED_AGAIN])

    def telemetry_fails(self) -> None:
        fleet = self.fleet
        fleet.alerts, fleet.partial, fleet.stale, fleet.blind = (), False, timedelta(), False
        fleet.dark, fleet.silent = set(), set()
        number = self.random.randrange(3)
        lost = {device_id(f"n{number}", index) for index in range(self.random.choice([1, GPUS]))}
        match self.random.randrange(7):
            case 0:
                fleet.alerts = None
            case 1:
                fleet.partial = True
            case 2:
                fleet.stale = timedelta(minutes=30)
            case 3:
                fleet.dark = lost
            case 4:
                fleet.silent = lost
            case 5:
                fleet.blind = True

    def another_cluster(self) -> None:
        """Rows of Nodes of the same names, from targets of other or of the same addresses."""
        if self.fleet.rows and self.random.random() < 0.5:
            self.fleet.rows = []
            return
        number = self.random.randrange(3)
        host = self.random.choice([f"n{number}", f"n{number}.eu.example.com"])
        exporter = self.random.choice([f"10.0.0.{number}:9400", "10.9.0.1:9400", ""])
        names = [f"GPU-other-{number}-{index}" for index in range(self.random.choice([1, GPUS]))]
        self.fleet.rows += [
            Device(id=name, uuid=name, vendor=Vendor.NVIDIA, vocabulary="dcgm", node_label=host, exporter=exporter)
            for name in names
        ]

    def a_lie(self) -> None:
        """A tenant's target exports rows of our GPUs, which look sick."""
        number = self.random.randrange(3)
        devices = {device_id(f"n{number}", index) for index in range(self.random.choice([1, GPUS]))}
        self.fleet.lied = devices if self.random.random() < 0.6 else set()

    def foreign_owner(self) -> None:
        owner = self.random.choice(OWNERS)
        ref = ObjectRef("v1", "Pod", f"forged-{owner}", "evil")
        if self.fleet.cluster.get(ref) is None:
            self.fleet.foreign_pod(owner)
            self.fleet.idle |= {owner} - {"train"}  # as its own Pods are, so that nothing else keeps it
        else:
            self.fleet.cluster.remove(ref)

    def pods_without_gpus(self) -> None:
        owner = self.random.choice(OWNERS)
        ref = ObjectRef("v1", "Pod", f"side-{owner}", "ml")
        if self.fleet.cluster.get(ref) is not None:
            self.fleet.cluster.remove(ref)
            return
        said = {keys.OPT_OUT: "true"}, {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}, {}, {}
        self.fleet.side_pod(owner, self.random.choice(said))
        self.fleet.idle |= {owner} - {"train"}

    def opt_out(self) -> None:
        """On a Namespace, an owner, a Pod or a Node."""
        place = self.random.choice(["space", "owner", "pod", "node"])
        if place == "space":
            found = self.namespace("ml")
        elif place == "owner":
            found = self.fleet.find(self.random.choice(OWNERS))
        elif place == "pod":
            found = copy.deepcopy(self.random.choice(self.fleet.pods()))
        else:
            found = copy.deepcopy(self.fleet.node(f"n{self.random.randrange(3)}"))
        annotations = found["metadata"].setdefault("annotations", {})
        if self.random.random() < 0.5:
            for key in (keys.OPT_OUT, keys.SNOOZE_UNTIL, *OTHERS_OPT_OUTS):
                annotations.pop(key, None)
        elif place == "pod":
            annotations |= dict([self.random.choice(list(OTHERS_OPT_OUTS.items()))])
        else:
            until = stamp(self.fleet.now + timedelta(hours=1))
            annotations |= self.random.choice([{keys.OPT_OUT: "yes"}, {keys.SNOOZE_UNTIL: until}])
        if not annotations:
            del found["metadata"]["annotations"]
        self.fleet.cluster.put(found)

    def mode(self) -> None:
        space = self.namespace("ml")
        mode = self.random.choice(["observe", "suggest", "enforce", "", "", "off"])
        space["metadata"]["annotations"] = {keys.MODE: mode} if mode else {}
        self.fleet.cluster.put(space)

    def in_between(self) -> None:
        """After a cycle has read the cluster, and before a step that rests on it reads again."""
        self.coming += [self.mode, self.opt_out, self.budgets, self.objects]
        name = self.random.choice(OWNERS)
        ref = ObjectRef("policy/v1", "PodDisruptionBudget", name, "ml")
        if self.random.random() < 0.5 and self.fleet.cluster.get(ref) is not None:
            self.fleet.cluster.remove(ref)
            self.coming.append(lambda: self.fleet.budget(name, 0))

    def between(self) -> None:
        if self.coming and self.random.random() < 0.5:
            self.coming.pop(self.random.randrange(len(self.coming)))()

    def forged_mark(self) -> None:
        """An owner writes gpuwatch's annotations on what is its own."""
        of = {each.proposal.objects[0].name: each.name for each in attended(self.store)}
        names = [each for each in OWNERS if each != "queued"]
        name = self.random.choice([each for each in names if each in of] or names)
        owner = self.fleet.find(name)
        annotations = owner["metadata"].setdefault("annotations", {})
        if any(key in annotations for key in (keys.REMEDIATION, keys.SAVED_STATE)):
            return
        mark = of.get(name, "nobody")
        path = self.random.choice(["/spec/suspend", "/spec/template/spec/priorityClassName"])
        told = [{"path": path, "before": '"system-cluster-critical"', "after": ""}]
        annotations |= {keys.REMEDIATION: mark, keys.SAVED_STATE: json.dumps(told)}
        self.fleet.cluster.put(owner)
        self.forged.add(mark)
        self.own_doing.add(name)

    def forged_gang(self) -> None:
        """Pods claim to be of another gang of their Namespace."""
        found = copy.deepcopy(self.random.choice(self.fleet.pods()))
        metadata = found["metadata"]
        claim = {"volcano.sh/job-name": "batch", "kueue.x-k8s.io/workload": "job-queued"}
        for key, value in claim.items():
            metadata["labels"].pop(key, None)
            if self.random.random() < 0.4:
                metadata["labels"][key] = value
        annotations = {"scheduling.k8s.io/group-name": "batch-group"} if self.random.random() < 0.4 else {}
        metadata["annotations"] = {**(metadata.get("annotations") or {}), **annotations}
        self.fleet.cluster.put(found)

    def strip(self) -> None:
        """Somebody removes gpuwatch's annotations."""
        name = self.random.choice(self.names())
        found = copy.deepcopy(self.object(name))
        annotations = found["metadata"].get("annotations") or {}
        gone = [key for key in OURS if annotations.pop(key, None) is not None]
        if gone:
            if not annotations:
                del found["metadata"]["annotations"]
            self.fleet.cluster.put(found)
            (self.stripped if name.startswith("n") else self.own_doing).add(name)

    def stuck_pods(self) -> None:
        name = self.random.choice(OWNERS)
        (self.fleet.undying.discard if name in self.fleet.undying else self.fleet.undying.add)(name)

    def an_upgrade(self) -> None:
        """Its controller's new version writes defaults into the spec."""
        name = self.random.choice(OWNERS)
        for found in (self.fleet.find(name), copy.deepcopy(self.object(name))):
            found["spec"]["newDefault"] = self.random.randrange(100)
            found["metadata"]["managedFields"] = [{"manager": "upgraded", "operation": "Update"}]
            self.fleet.cluster.put(found)
            if found["metadata"]["uid"] == self.object(name)["metadata"]["uid"]:
                self.original[name]["newDefault"] = found["spec"]["newDefault"]

    def lost_record(self) -> None:
        """Somebody deletes a Remediation, with its finalizer."""
        self.lose(attended(self.store))

    def lost_taint(self) -> None:
        """The same of a Node's taint that no repair system was told of."""
        told = {each.name for each in self.store.all() if any(step.kind is StepKind.HAND_OFF for step in each.steps)}
        self.lose([each for each in attended(self.store) if not each.namespace and each.name not in told])

    def lose(self, known: list[Remediation]) -> None:
        if known:
            lost = self.random.choice(known)
            kind = "Remediation" if lost.namespace else "NodeRemediation"
            self.records.remove(ObjectRef(API_VERSION, kind, lost.name, lost.namespace))
            self.lost.add(lost.name)
            # It may be proposed and done again under the same name, and counts twice in the rates then.
            self.effects = {effect for effect in self.effects if lost.name not in effect}
            # The rates forget a release or a move with its record; a taint stands and counts as long as it does.
            at = self.acted.pop(lost.name, None)
            if at is not None and not lost.namespace:
                self.acted[f"{lost.name}, lost {len(self.acted)}"] = at
            self.own_doing |= {name for name in OWNERS if lost.name in str(self.object(name)["metadata"])}

    def odd_pauses(self) -> None:
        """The pause's ConfigMap is deleted, or holds what nobody can read as open."""
        data = self.random.choice([None, {"pause": "true"}, {"paused": "flase"}, {"paused": "false", "other": "x"}])
        metadata = {"name": PAUSE, "namespace": "gpuwatch"}
        self.records.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data or {"x": "y"}})
        if data is None:
            self.records.remove(ObjectRef("v1", "ConfigMap", PAUSE, "gpuwatch"))
        self.odd_pause = True

    def pause(self) -> None:
        super().pause()
        self.odd_pause = False

    def plainly_open(self) -> bool:
        return not self.odd_pause and super().plainly_open()

    @property
    def records(self) -> MemoryCluster:
        assert isinstance(self.store._writer, MemoryCluster)
        return self.store._writer

    def always(self) -> None:
        self.forged |= self.lost
        super().always()

    # late

    def a_freeze(self) -> None:
        self.armed = "any"

    def at_freeze(self, what: str) -> bool:
        if not self.armed or what.startswith("Event ") or self.random.random() < 0.5:
            return False
        by = self.recorded(what)
        if self.armed == "disrupts" and not by.steps[by.step].kind.disrupts:
            return False
        self.armed = ""
        self.froze.append((by.id, by.steps[by.step].kind))
        return True

    def thaw(self) -> None:
        if not self.froze:
            return
        name, kind = self.froze.pop(0)
        kept = self.store.get(name)
        what = self.fleet.process.thaw()
        conditional = (kind.disrupts or kind is StepKind.CONDITION) and not what.startswith(("Command", "Repair"))
        if not (kept and kept.phase.open):
            self.late_repairs |= what.startswith("Repair")
            self.late_command |= what.startswith("Command")
        if what and conditional:
            reckons = kept is not None and kept.phase.open
            holds("late", reckons, f"{what} landed, and its Remediation is {kept and kept.phase}")
        self.theirs_stand()

    def given_up(self) -> None:
        """A process stands still with a write in hand, another leader gives the step up, and the first one wakes."""
        if not self.froze:
            self.armed = "disrupts"
            return
        self.fault = None
        with contextlib.suppress(StoreError):
            self.store.ask_undo(self.froze[0][0])
        with contextlib.suppress(Killed):  # it stands still too
            drive(self.fleet, self.random.choice(self.executors), 0.5)
        self.thaw()

    # bounded, ends

    def end(self) -> None:
        fleet = self.fleet
        while self.froze:
            self.thaw()
        self.fault, self.armed = None, ""
        fleet.reads, fleet.unreadable, fleet.rows, fleet.lied = {}, "", [], set()
        fleet.partial, fleet.stale, fleet.blind, fleet.alerts = False, timedelta(), False, ()
        self.coming.clear()
        fleet.dark, fleet.silent = set(), set()
        self.store.resume()
        self.odd_pause = False
        # Nothing stands still for ever: with what is stuck still stuck, a gang runs again or a person is called.
        drive(fleet, self.executors[0], 1, least_seconds=300)
        most = timedelta(seconds=self.policies.execute.stopped_gang_seconds) + timedelta(minutes=10)
        for each in attended(self.store):
            since = each.stopped_since
            over = since is not None and fleet.now - since > most
            holds("bounded", not over or each.called_at, f"{each.name} stands still since {since}: {each.history[-2:]}")
        fleet.undying.clear()
        for name in OWNERS:
            owner = fleet.find(name)
            annotations = owner["metadata"].get("annotations") or {}
            if annotations.get(keys.REMEDIATION) in self.forged and name in self.own_doing:
                owner["metadata"]["annotations"] = {k: v for k, v in annotations.items() if k not in OURS}
                fleet.cluster.put(owner)
        if "batch" in self.own_doing:  # who took the mark of an aborted Job is called, and resumes it
            fleet.orders.append((fleet.now, "batch", "ResumeJob"))
        super().end()

    def swept(self) -> None:
        """What has no record is taken back, without one; what nothing proves to be ours is a person's."""
        self.fleet.before_write = lambda *_: None  # a sweep writes without a record
        for late in self.fleet.cluster.objects("repair.example.com/v1", "Repair") if self.late_repairs else ():
            self.fleet.cluster.remove(ref_of(late))  # a person does: what is created names no version
        since: dict[ObjectRef, datetime] = {}
        left: tuple[Orphan, ...] = ()
        for _ in range(20):
            found = suspects(self.fleet.view().snapshot.cluster)
            left = self.executors[0].sweep(found, self.store.all(), since, self.fleet.now, MINUTE)
            self.fleet.now += timedelta(minutes=20)
        theirs = [each for each in left if each.request is not None]
        holds("ends", not theirs, [each.reason for each in theirs])
        # Where somebody took both the record and the annotation, nothing tells whose a hand-off label is.
        for name in self.stripped if self.lost else ():
            node = copy.deepcopy(self.fleet.node(name))
            node["metadata"]["labels"] = self.node_labels[name]
            self.fleet.cluster.put(node)
        for each in left:
            found = self.fleet.cluster.get(each.target)
            assert found is not None
            found["metadata"].pop("annotations", None)
            found["spec"].pop("taints", None)
            found["spec"].update({"taints": self.theirs[each.target.name]} if each.target.name in self.theirs else {})
            self.fleet.cluster.put(found)


NEEDED_TO_TAINT = {("", "Node"), ("", "Pod")}
NEEDED_TO_END = {*LISTS}
KINDS_OF_OWNERS = {("apps", "Deployment"), ("batch", "Job"), ("batch.volcano.sh", "Job")}
NEEDED_AGAIN = ("pods", "nodes", "namespaces", "poddisruptionbudgets.policy")
"""What is read again right before a Pod ends."""


def tell(seed: int, sort: Callable[[int], History] = History) -> History:
    history = sort(seed)
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


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_hostile_histories(chunk: int) -> None:
    acted: dict[ActionKind, int] = dict.fromkeys(ActionKind, 0)
    for seed in range(chunk, HISTORIES, CHUNKS):
        history = tell(seed, Hostile)
        for each in history.store.all():
            acted[each.proposal.action] += each.name in history.acted
    assert sum(acted.values()) > 0, "nothing was done in any of them, so nothing was shown"


@pytest.mark.mutants
@pytest.mark.parametrize("name", BREAKS)
def test_histories_fail_without(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each mechanism, taken out, is missed by one of the first histories of what it is against."""
    broken = BREAKS[name]
    broken.out(monkeypatch)
    for seed in range(broken.first, broken.first + BROKEN_SEEDS):
        try:
            Hostile(seed, broken.of).run()
        except BreachError as error:
            if error.rule in broken.rules:
                return
    pytest.fail(f"without {name}, {BROKEN_SEEDS} histories saw no harm")


@pytest.mark.mutants
@pytest.mark.parametrize("name", BREAKS)
def test_the_same_histories_hold_with(name: str) -> None:
    for seed in range(4):
        tell(seed, partial(Hostile, of=BREAKS[name].of))
