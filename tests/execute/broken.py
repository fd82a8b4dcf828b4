"""What stops harm, each taken out on purpose, so that random histories show that they would see it missing."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from execute import hostile
from gpuwatch.act.execute import advance, recheck, steps
from gpuwatch.act.execute.executor import Executor
from gpuwatch.act.execute.recheck import Check
from gpuwatch.act.plan import brakes, draw, guards
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.plan.guards import Clearance
from gpuwatch.act.remediations import RemediationStore
from gpuwatch.facts.frameworks import keys, release
from gpuwatch.facts.frameworks.objects import Object, ref_of
from gpuwatch.facts.model import remediation as model
from gpuwatch.facts.model.remediation import Pause, Saved
from gpuwatch.sources.kube.owners import OwnerIndex


def completeness(patch: pytest.MonkeyPatch) -> None:
    """A list that failed is an empty list."""
    for module in (guards, recheck, advance):
        patch.setattr(module, "unread", lambda *_a, **_k: "")


def owners_anywhere(patch: pytest.MonkeyPatch) -> None:
    """An owner is found by its uid alone, in any Namespace, and what it is used for from there is not asked."""
    patch.setattr(OwnerIndex, "find", lambda self, ref, _namespace: self.by_uid.get(ref.uid))
    for module in (
        model,
        "gpuwatch.act.execute.propose",
        "gpuwatch.act.remediations",
        "gpuwatch.sources.store.custom_resources",
    ):
        patch.setattr(f"{getattr(module, '__name__', module)}.misplaced", lambda *_: "")


def pods_with_gpus_only(patch: pytest.MonkeyPatch) -> None:
    """Pods without a GPU do not count."""
    patch.setattr(PlanFacts, "companions", {})


def asked_once(patch: pytest.MonkeyPatch) -> None:
    """What must hold is asked before the first write alone."""
    asked = advance.Advance._cleared

    def cleared(course: advance.Advance, *rest: Any) -> Check:
        return Check(Clearance.GO) if course.remediation.began_at is not None else asked(course, *rest)

    patch.setattr(advance.Advance, "_cleared", cleared)


def rungs_unasked(patch: pytest.MonkeyPatch) -> None:
    """NoExecute ends Pods, and none of them is asked about."""
    patch.setattr(recheck, "no_execute_refused", lambda *_: "")


def read_before(patch: pytest.MonkeyPatch) -> None:
    """What stands around a step is not read again before it."""
    patch.setattr(advance, "read_again", lambda facts, _live: facts)


def any_telemetry(patch: pytest.MonkeyPatch) -> None:
    """Whoever exports a row is believed."""
    patch.setattr(hostile, "by_trust", lambda devices, *_: (devices, (), []))


def adopted_state(patch: pytest.MonkeyPatch) -> None:
    """Saved state is taken from the object's own annotation, and restored whatever its path."""
    asked = release.release

    def adopting(object_: Object, **given: Any) -> Any:
        annotations: Mapping[str, str] = object_["metadata"].get("annotations") or {}
        if not given.get("kept") and keys.SAVED_STATE in annotations:
            told = json.loads(annotations[keys.SAVED_STATE])
            given["kept"] = tuple(Saved(target=ref_of(object_), **item) for item in told)
        return asked(object_, **given)

    class Whatever(set[str]):
        def __contains__(self, _item: object) -> bool:
            return True

    patch.setattr(steps, "release", adopting)
    patch.setattr(release, "_own_paths", lambda _fields: Whatever())


def late_writes(patch: pytest.MonkeyPatch) -> None:
    """What another process may have in hand is not made to come too late."""
    patch.setattr(steps, "touch_step", lambda *_: None)


def nobody_called(patch: pytest.MonkeyPatch) -> None:
    """A gang that does not run again calls nobody."""
    patch.setattr(advance.Advance, "_called", lambda *_: None)


def unknown_alerts(patch: pytest.MonkeyPatch) -> None:
    """Alerts that nobody could read do not brake."""
    asked = brakes.BRAKES[guards.Guard.ALERT]
    patch.setitem(brakes.BRAKES, guards.Guard.ALERT, lambda facts: asked(facts) if facts.alerts is not None else "")


def no_sweep(patch: pytest.MonkeyPatch) -> None:
    """What has no record is left."""
    patch.setattr(Executor, "sweep", lambda *_: ())


def open_pauses(patch: pytest.MonkeyPatch) -> None:
    """A pause that cannot be understood is none."""
    asked = RemediationStore._pause_of

    def known(store: RemediationStore, found: Object | None) -> Pause:
        data = (found or {}).get("data") or {}
        return asked(store, found) if data.get("paused") in ("true", "all") else Pause()

    patch.setattr(RemediationStore, "_pause_of", known)


def modes_unasked(patch: pytest.MonkeyPatch) -> None:
    """The mode of a Namespace does not count."""
    asked = draw.mode_of

    def mode(candidate: Any, facts: PlanFacts) -> Any:
        scope = facts.policy.scope(candidate.action, "", candidate.pool)
        return (scope.mode, "Settings.") if candidate.namespace else asked(candidate, facts)

    for module in (draw, recheck):
        patch.setattr(module, "mode_of", mode, raising=False)


def said_undone(patch: pytest.MonkeyPatch) -> None:
    """What is put back counts as undone, whether it runs or not."""
    patch.setattr(advance.Advance, "_over", lambda *_: ".")


def any_effect(patch: pytest.MonkeyPatch) -> None:
    """A taint of any effect counts as one that keeps Pods away."""

    def taken_back(candidate: Any, facts: PlanFacts) -> tuple[str, ...]:
        return tuple(name for name in guards.left_behind(candidate, facts) if not facts.kept_free(name))

    for module in (draw, recheck):
        patch.setattr(module, "taken_back", taken_back)


@dataclass(frozen=True, slots=True)
class Broken:
    """out: takes the mechanism out. rules: which of those of the histories break then. of: the events against which it
    stands. first: the first seed that is tried, where harm is rare (of 120: completeness 4)."""

    out: Callable[[pytest.MonkeyPatch], None]
    rules: tuple[str, ...]
    of: tuple[str, ...]
    first: int = 0


_ENDING = ("namespace", "opt_out", "disruption", "unread")
BREAKS: Mapping[str, Broken] = {
    "pods_with_gpus_only": Broken(pods_with_gpus_only, ("whole", *_ENDING), ("pods_without_gpus", "use")),
    "asked_once": Broken(asked_once, ("brake", "telemetry", *_ENDING), ("telemetry_fails", "opt_out", "alert")),
    "rungs_unasked": Broken(rungs_unasked, _ENDING, ("opt_out", "mode", "budgets")),
    "any_telemetry": Broken(any_telemetry, ("telemetry",), ("another_cluster", "a_lie")),
    "adopted_state": Broken(adopted_state, ("own_fields",), ("forged_mark", "use")),
    "nobody_called": Broken(nobody_called, ("bounded",), ("cordon", "use", "decide")),
    "unknown_alerts": Broken(unknown_alerts, ("brake",), ("telemetry_fails",)),
    "open_pauses": Broken(open_pauses, ("brake",), ("odd_pauses",)),
    "modes_unasked": Broken(modes_unasked, ("namespace",), ("mode",)),
    "owners_anywhere": Broken(owners_anywhere, ("namespace",), ("foreign_owner", "use")),
    "completeness": Broken(completeness, _ENDING, ("a_list_fails", "opt_out", "mode"), first=60),
    "no_sweep": Broken(no_sweep, ("ends",), ("lost_taint",)),
    "read_before": Broken(read_before, ("opt_out", "namespace", "disruption"), ("in_between", "use"), first=50),
    "late_writes": Broken(late_writes, ("late",), ("given_up", "given_up", "use"), first=60),
    "said_undone": Broken(said_undone, ("undone",), ("cordon", "use", "decide")),
    "any_effect": Broken(any_effect, ("once",), ("health",)),
}
"""What is taken out, by a name for it."""
