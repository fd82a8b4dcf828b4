"""scenes.yaml: a small fleet, what was found in it, and what the plan says of each action."""

import typing
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
import yaml

from gpuwatch.act.plan.policy import PlanPolicy
from gpuwatch.facts.model.cluster import Cluster, Gang
from gpuwatch.facts.model.decision import ActionKind, Plan
from gpuwatch.facts.model.telemetry import DoubtedDevice, Gap
from plan.fleet import GPU, device, guards, idle, node, only, plan_of, pod, reason, sick, snapshot, workload

T = TypeVar("T")


class Scene(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Nodes of `gpus` GPUs (8), and Pods that hold the first of them, `gpus` each (1), in this order, or wait with `on`
    ''; other keys are fields of the model, beside the defaults of plan/fleet.py. devices: changes, by NODE/INDEX.
    doubted: why it is, by NODE/INDEX. sick: findings by NODE/INDEX; idle: by Pod. guards: those that refuse the only
    candidate of each action; of no other action there is a candidate. reasons: a part of what a guard says. helps: the
    one thing to change. waiters: for whom each workload is released. disturbs, gpus: the Pods and GPUs that the action
    disturbs. brake: how it begins."""

    nodes: dict[str, dict[str, Any]]
    pods: dict[str, dict[str, Any]] = {}
    devices: dict[str, dict[str, Any]] = {}
    doubted: dict[str, str] = {}
    workloads: dict[str, dict[str, Any]] = {}
    gangs: dict[str, str] = {}
    cluster: dict[str, Any] = {}
    gaps: list[Gap] = []
    sick: dict[str, dict[str, Any]] = {}
    idle: dict[str, dict[str, Any]] = {}
    policy: dict[str, Any] = {}
    alerts: tuple[str, ...] | None = ()
    guards: dict[ActionKind, list[str]] | None = None
    reasons: dict[str, str] = {}
    helps: dict[ActionKind, str] = {}
    waiters: dict[str, str] | None = None
    disturbs: dict[ActionKind, list[str]] = {}
    gpus: dict[ActionKind, int] = {}
    brake: str = ""


FOLDER = Path(__file__).parent
SCENES = yaml.safe_load((FOLDER / "scenes.yaml").read_text(encoding="utf-8"))
SCENES.pop("shared")


def changed(base: T, changes: dict[str, Any]) -> T:
    return msgspec.convert({**msgspec.to_builtins(base), **changes}, type(base))


def drawn(scene: Scene) -> Plan:
    nodes = [changed(node(name, given.pop("gpus", 8)), given) for name, given in scene.nodes.items()]
    devices = {
        f"{each.name}/{index}": device(each.name, index)
        for each in nodes
        for index in range(each.accelerators.get(GPU, 0) // each.replicas)
    }
    pods, used = [], Counter[str]()
    for ref, given in scene.pods.items():
        on, gpus = given.pop("on"), given.pop("gpus", 1)
        waits = {} if on else {"phase": "Pending", "started": None}
        pods.append(changed(pod(ref, on, gpus, given.pop("owner", "")), {**waits, **given}))
        for index in range(gpus if on else 0):
            at = f"{on}/{used[on] + index}"
            devices[at] = changed(devices[at], {"pods": [ref]})
        used[on] += gpus
    devices = {at: changed(each, scene.devices.get(at, {})) for at, each in devices.items()}
    owners = dict.fromkeys(each.workload for each in pods)
    workloads = [changed(workload(name), scene.workloads.get(name, {})) for name in owners]
    gangs = [
        Gang(id=name, framework=kind, workload=name, namespace="ml", pods=tuple(p.ref for p in pods if p.gang == name))
        for name, kind in scene.gangs.items()
    ]
    hints = typing.get_type_hints(Cluster)
    cluster = {name: msgspec.convert(value, hints[name]) for name, value in scene.cluster.items()}
    trusted = [each for at, each in devices.items() if at not in scene.doubted]
    doubted = [DoubtedDevice(shown=devices[at], why=why) for at, why in scene.doubted.items()]
    state = snapshot(nodes, trusted, pods, workloads, gangs, **cluster)
    state = replace(state, doubted=tuple(doubted), gaps=tuple(scene.gaps))
    held = {ref: [each for each in devices.values() if ref in each.pods] for ref in scene.idle}
    findings = (
        *(changed(sick(devices[at]), given) for at, given in scene.sick.items()),
        *(changed(idle(ref, held[ref]), given) for ref, given in scene.idle.items()),
    )
    return plan_of(state, findings, changed(PlanPolicy(), scene.policy), alerts=scene.alerts)


@pytest.mark.parametrize("name", SCENES)
def test_scene(name: str) -> None:
    scene = msgspec.convert(SCENES[name], Scene)
    plan = drawn(scene)
    assert plan.brake.startswith(scene.brake) if scene.brake else plan.brake == ""
    if scene.guards is not None:
        found = {item.candidate.action for item in plan.items}
        assert {action: sorted(guards(only(plan, action))) for action in found} == scene.guards
    for guard, said in scene.reasons.items():
        refused = [item for item in plan.items if guard in guards(item)]
        assert any(said in reason(item, guard) for item in refused), [item.refusals for item in plan.items]
    assert {action: only(plan, action).helps for action in scene.helps} == scene.helps
    for action, pods in scene.disturbs.items():
        assert list(only(plan, action).candidate.pods) == pods
    for action, gpus in scene.gpus.items():
        assert only(plan, action).candidate.gpus == gpus
    if scene.waiters is not None:
        released = [item.candidate for item in plan.items if item.admitted]
        assert {each.target.name.rpartition("/")[2]: each.waiter for each in released} == scene.waiters
