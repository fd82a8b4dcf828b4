"""What makes the sentences true, each taken out on purpose, and the reasons that then stop nothing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from execute import broken
from gpuwatch.act.execute import advance, executor, recheck, steps
from gpuwatch.act.execute.policy import ExecutePolicy
from gpuwatch.act.execute.recheck import Check, Health
from gpuwatch.act.plan import brakes, draw
from gpuwatch.act.plan import facts as plan_facts
from gpuwatch.act.plan.brakes import BRAKES
from gpuwatch.act.plan.budget import Ledger
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.plan.guards import Clearance, Guard
from gpuwatch.act.plan.policy import PlanPolicy
from gpuwatch.facts.model.decision import Mode
from gpuwatch.facts.model.remediation import Proposal, Remediation, StepKind

Out = Callable[[pytest.MonkeyPatch], None]


def returning(answer: Any, name: str, *modules: Any) -> Out:
    """The function of this name in these modules answers this."""

    def out(patch: pytest.MonkeyPatch) -> None:
        for module in modules:
            patch.setattr(module, name, lambda *_args, **_named: answer)

    return out


def modes(patch: pytest.MonkeyPatch) -> None:
    """Every action may be enforced, whatever the settings say."""
    asked = PlanPolicy.scope
    patch.setattr(PlanPolicy, "scope", lambda *args: replace(asked(*args), mode=Mode.ENFORCE))


def rechecked_never(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(advance.Advance, "_cleared", lambda *_: Check(Clearance.GO))


def healthy_if(found: Health, taken_for: Health) -> Out:
    """What was found of a tainted Node counts as something else."""
    asked = recheck.health

    def told(proposal: Proposal, facts: PlanFacts) -> tuple[Health, str]:
        state, why = asked(proposal, facts)
        return (taken_for if state is found else state), why

    return lambda patch: patch.setattr(advance, "health", told)


def handed_off_at_once(patch: pytest.MonkeyPatch) -> None:
    def steps_of(remediation: Remediation, _facts: PlanFacts, _taints: object, policy: ExecutePolicy) -> Any:
        told = any(step.kind is StepKind.HAND_OFF for step in remediation.steps)
        return "" if told else steps.hand_off_steps(remediation, policy)

    patch.setattr(advance, "_to_hand_off", steps_of)


@dataclass(frozen=True, slots=True)
class Mechanism:
    """reasons: those of `AGAINST` that stop nothing without it, of `BESIDE` that then stop something, and courses that
    then break. guards: refuse nothing
    without it. others: what else is taken out. later: the reasons come so many minutes after the finding, or
    where it is -1 right before a write."""

    reasons: tuple[str, ...]
    guards: tuple[Guard, ...] = ()
    others: tuple[Out, ...] = ()
    later: int = 0

    def out(self, patch: pytest.MonkeyPatch) -> None:
        for guard in self.guards:
            patch.setattr(guard, "check", None)
            if guard in BRAKES:
                patch.setitem(BRAKES, guard, lambda _facts: "")
        for each in self.others:
            each(patch)


def of(*reasons: str, later: int = 0) -> Callable[..., Mechanism]:
    def made(*out: Guard | Out) -> Mechanism:
        guards = tuple(each for each in out if isinstance(each, Guard))
        return Mechanism(reasons, guards, tuple(each for each in out if not isinstance(each, Guard)), later)

    return made


MECHANISMS: Mapping[str, Mechanism] = {
    # 1
    "modes of the settings": of("observe_taint_node", "suggest_evict_gang", "observe_release_gang")(modes),
    "mode of the Namespace": of("namespace_observes", "namespace_mistyped")(broken.modes_unasked),
    "approval that a finding asks for": of("asks_for_approval")(returning("", "_to_approve", draw)),
    "precision": of("wrong_before")(returning("", "_imprecise", draw), returning("", "distrusted", advance)),
    "priority": of("protected")(Guard.PRIORITY),
    # 2
    "trusted rows": of("lie")(broken.any_telemetry),
    "Node of the device": of("namesake")(broken.any_telemetry, Guard.NODE_KNOWN),
    "no doubt about the Node": of("doubted")(Guard.TELEMETRY_TRUSTED),
    "confidence": of("unsure_of_node", "unsure_of_idleness")(Guard.EVIDENCE),
    "gain": of("unsaved")(Guard.WORTH_IT),
    "all Pods idle": of("pod_without_gpu")(Guard.WHOLE_GROUP_IDLE),
    "owner": of("bare_pods")(Guard.OWNER),
    "framework": of("of_cron_job", "deletes_data", "queued", "autoscaled", "deployed")(Guard.FRAMEWORK),
    "attribution": of("shared")(Guard.ATTRIBUTION),
    "demand": of("nobody_waits")(
        Guard.DEMAND, lambda patch: patch.setattr(draw, "_with_demand", lambda item, *_: item)
    ),
    "quota": of("quota")(Guard.LANDS),
    "room": of("full", "volume_of_a_zone")(Guard.LANDS, returning({}, "place", draw), returning((), "_held", draw)),
    "read at the source": of("exporter_says_well", "exporter_says_work", "exporter_is_silent")(
        returning("", "not_shown", advance)
    ),
    "toleration": of("tolerant")(Guard.TAINTED_FIRST),
    "closed first": of("node_stays_open")(returning((), "taken_back", draw, recheck)),
    "cordon of others": of("cordon")(Guard.ALREADY_TAINTED),
    # 3
    "opt-outs and objections": of("opt_out_on_node", "objection_on_namespace")(Guard.OPTED_OUT),
    "snoozes": of("snooze_on_owner_of_moved", "snooze_on_released_pods")(Guard.SNOOZED),
    "PodDisruptionBudgets": of("budget_of_moved", "budget_of_released")(Guard.DISRUPTION_BUDGET),
    "whole lists": of("budgets_unread")(Guard.CLUSTER_KNOWN, broken.completeness),
    "pause": of("paused")(Guard.PAUSED),
    "freeze": of("frozen")(Guard.FREEZE),
    "alert": of("alert", "alerts_unknown")(Guard.ALERT),
    "other remediators": of("repaired_by_another")(Guard.OTHER_REMEDIATOR),
    "back-off after a no": of("declined")(returning("", "left_alone", executor)),
    "checks before the first write": of("opt_out_on_moved_pods", "busy_again", later=30)(rechecked_never),
    "checks before each write": of("opt_out_on_node", later=2)(broken.asked_once),
    "live reads": of("unseen_opt_out", "unseen_budget", later=58)(broken.read_before),
    "words of the scheduler": of("ghosts")(returning(True, "lacks_accelerators", plan_facts)),
    "pause right before a write": of("paused", later=-1)(returning(False, "held_up", executor)),
    # 4
    "partial answers": of("partial_answer")(Guard.PARTIAL_ANSWER),
    "clocks": of("clocks")(Guard.CLOCKS),
    "one cluster": of("several_clusters")(Guard.SEVERAL_CLUSTERS),
    "records": of("record_unread")(Guard.MEMORY),
    "age of facts": of("old_facts")(lambda patch: patch.setattr(recheck, "MAX_FACTS_AGE_SECONDS", 86_400)),
    "storms": of("several_sick")(Guard.BRAKE, returning("", "_storm", brakes)),
    "idle storms": of("resting")(Guard.IDLE_STORM),
    "Nodes out of service": of("others_out")(Guard.BUDGET, returning((), "_out_of_service", Ledger)),
    "budgets of the plan as a whole": of("budget_of_both")(Guard.ONCE, returning((), "_budgets", draw._Grants)),
    "cool-down": of("storm_before")(Guard.COOL_DOWN),
    "last Nodes": of("one_node_left")(Guard.POOL_NODES, returning((), "_last_nodes", Ledger)),
    "rates": of("acted_lately")(Guard.RATE, returning((), "_too_fast", Ledger)),
    "one at a time": of("plan")(Guard.ALREADY_OPEN),
    # 5
    "notice": of("notice")(returning(0, "notice_seconds", steps)),
    "proof of health": of("heals_unseen")(healthy_if(Health.UNKNOWN, Health.PROVEN)),
    "a sick Node keeps its taint": of("stays_sick")(healthy_if(Health.SICK, Health.UNKNOWN)),
    "handed off once empty": of("handed_off")(handed_off_at_once),
}
