"""courses.yaml: what happens to one Remediation, row by row, on a fleet that lives."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
import yaml

from execute.living import ENFORCE, Fleet, Scene
from gpuwatch.act.plan.policy import PlanPolicy
from gpuwatch.facts.model.decision import ActionKind, Mode


class Row(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What happens, in this order, and what is so then (methods of `Scene`).

    fleet: attributes of the fleet. change: merge patches by object. end: owners whose Pods end. finish: Jobs of Kueue
    that end. fails: how writes fail from now on, by a part of their names. plan: other settings from now on. propose:
    how many are proposed now. skip_hours: nobody looks. until: the first minute at which it is so.
    """

    fleet: dict[str, Any] = {}
    change: dict[str, dict[str, Any]] = {}
    remove: list[str] = []
    end: list[str] = []
    finish: list[str] = []
    fails: dict[str, str] | None = None
    budgets: dict[str, int] = {}
    people: Literal["approve", "reject", "undo", "delete", "pause", "pause everything", "resume", ""] = ""
    plan: dict[str, Any] | None = None
    skip_hours: float = 0
    propose: int | None = None
    until: dict[str, Any] = {}
    hours: float = 0
    sees: dict[str, Any] = {}


class Owner(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    kind: str = "Job"
    gpus: int = 8
    pods: int = 1
    node: str = "n0"
    spec: dict[str, Any] = {}


class Start(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """settings: attributes of the fleet. queued: Jobs of Kueue; rivals: those that wait there, with their GPUs."""

    settings: dict[str, Any] = {}
    owners: dict[str, Owner] = {}
    queued: list[str] = []
    rivals: dict[str, int] = {}
    cordoned: list[str] = []


class Course(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """plan, execute: settings; by default every action is enforced, with short waits. of: the action that is looked at.
    first: what happens before anything is proposed."""

    fleet: str
    plan: dict[str, Any] = {}
    execute: dict[str, Any] = {}
    of: ActionKind | None = None
    first: Row | None = None
    rows: list[Row]


class Courses(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    fleets: dict[str, Start]
    courses: dict[str, Course]


FILE = msgspec.convert(yaml.safe_load(Path(__file__).with_name("courses.yaml").read_text(encoding="utf-8")), Courses)


def started(start: Start, nodes: int = 8) -> Fleet:
    fleet = Fleet(nodes=start.settings.get("nodes", nodes))
    for attribute, value in start.settings.items():
        fleet.become(attribute, value)
    for name, owner in start.owners.items():
        fleet.owner(owner.kind, name, owner.gpus, owner.pods, owner.node, **owner.spec)
    for name in start.queued:
        fleet.queue(name)
    for name, gpus in start.rivals.items():
        fleet.rival(name, gpus)
    for name in start.cordoned:
        fleet.cordon(name)
    return fleet


def policy(changes: dict[str, Any]) -> PlanPolicy:
    modes = changes.get("modes", {})
    given = {"modes": {ActionKind(kind): Mode(mode) for kind, mode in modes.items()}} if "modes" in changes else {}
    return replace(ENFORCE, **{**changes, **given})


def happens(scene: Scene, row: Row) -> None:
    fleet = scene.fleet
    for name, value in row.fleet.items():
        fleet.become(name, value)
    for name, patch in row.change.items():
        scene.change(name, patch)
    for name in row.remove:
        scene.remove(name)
    for owner in row.end:
        for pod in fleet.pods(owner):
            fleet._end(pod)
    for name in row.finish:
        fleet.finish(name)
    for name, allowed in row.budgets.items():
        fleet.budget(name, allowed)
    if row.fails is not None:
        fleet.fail(row.fails)
    if row.people:
        scene.people(row.people)
    if row.plan is not None:
        scene.executor = replace(scene.executor, policies=replace(scene.executor.policies, plan=policy(row.plan)))
    fleet.now += timedelta(hours=row.skip_hours)
    if row.propose is not None:
        assert len(fleet.propose(scene.executor)) == row.propose
    if row.until:
        scene.until(row.until)
    scene.drive(row.hours, least_seconds=600 if row.hours > 12 else 60)


@pytest.mark.parametrize("name", FILE.courses)
def test_course(name: str) -> None:
    course = FILE.courses[name]
    start = FILE.fleets[course.fleet]
    scene = Scene(started(start), policy(course.plan), course.of, **course.execute)
    if course.first:
        happens(scene, course.first)
    scene.fleet.propose(scene.executor)
    for number, row in enumerate(course.rows, start=1):
        happens(scene, row)
        assert scene.sees(row.sees) == row.sees, (f"row {number}", scene.store.all())
