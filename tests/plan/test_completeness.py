"""What was not read, or not wholly, refuses every action that depends on it: an empty list proves nothing. And what
becomes of a Remediation that the plan refuses follows from the guard."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

import gpuwatch.act
from gpuwatch.act.plan.brakes import BRAKES
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.plan.guards import INDIFFERENT, Clearance, Guard, GuardCase, guard
from gpuwatch.act.plan.policy import PlanPolicy
from gpuwatch.facts.model.cluster import Cluster, DisruptionBudget, FactKind, Namespace, Unread
from gpuwatch.facts.model.decision import ActionKind, Candidate, Mode, Score, Snapshot, Subject, SubjectKind
from plan.fleet import NOW, device, guards, idle, node, only, plan_of, pod, reason, snapshot

SCORE = Score(gained_gpu_hours=9, disrupted_gpu_hours=0, pool_gpu_hours=9, confidence_ratio=1, horizon_hours=24)
ENFORCED = PlanPolicy(modes={ActionKind.RELEASE_GANG: Mode.ENFORCE})


def told(action: ActionKind, *unread: Unread) -> str:
    """What the guard says against this action on Namespace ml."""
    target = Subject(SubjectKind.NODE, "a")
    candidate = Candidate(
        action=action, target=target, findings=(), devices=(), pods=("ml/x",), nodes=("a",), namespace="ml", gpus=1
    )
    facts = PlanFacts(snapshot=Snapshot(at=NOW, cluster=Cluster(known=True, unread=unread)))
    case = GuardCase(candidate, SCORE, facts)
    return next((each.reason for each in guard(case) if each.guard == Guard.CLUSTER_KNOWN), "")


@pytest.mark.parametrize(("kind", "action"), list(product(FactKind, ActionKind)))
def test_every_fact_that_is_missing_refuses_or_is_said_not_to_matter(kind: FactKind, action: ActionKind) -> None:
    said = told(action, Unread(kind, "", "403: grant the verb list."))
    if (kind, action) in INDIFFERENT:
        assert said == ""
        assert len(INDIFFERENT[kind, action].split()) > 5
    else:
        assert said.endswith("403: grant the verb list.")
    assert Guard.CLUSTER_KNOWN.nature is Clearance.WAIT


def test_each_kind_has_a_reason_of_its_own() -> None:
    acting = (ActionKind.EVICT_GANG, ActionKind.RELEASE_GANG)
    reasons = {told(action, Unread(kind, "", "")) for kind in FactKind for action in acting} - {""}
    assert len(reasons) == len(FactKind)


def test_one_namespaces_loss_costs_that_namespace() -> None:
    lost = Unread(FactKind.BUDGETS, "web", "1 could not be read")
    assert told(ActionKind.RELEASE_GANG, lost) == ""
    assert "Namespace ml" in told(ActionKind.RELEASE_GANG, replace(lost, namespace="ml"))


@pytest.mark.parametrize(
    ("unread", "alerts", "taint", "move"),
    [
        ((), (), (), ()),
        ((Unread(FactKind.BUDGETS, "", "403"),), (), (), ("cluster_known",)),
        ((Unread(FactKind.BUDGETS, "ml", "403"),), (), (), ()),
        ((Unread(FactKind.NODES, "", "403"),), (), ("cluster_known",), ("cluster_known",)),
        ((Unread(FactKind.BUDGETS, "", "403"),), ("Down",), ("alert",), ("alert", "cluster_known")),
    ],
)
def test_a_plan_says_what_stops_every_action_of_a_kind(
    unread: tuple[Unread, ...], alerts: tuple[str, ...], taint: tuple[str, ...], move: tuple[str, ...]
) -> None:
    """Also without a candidate, and in the mode observe; what concerns one Namespace does not count."""
    state = snapshot([node("a")], [device("a", 0)], unread=unread)
    stops = plan_of(state, (), PlanPolicy(brake_alerts=("Down",)), alerts=alerts).stops
    assert (stops[ActionKind.TAINT_NODE], stops[ActionKind.EVICT_GANG]) == (taint, move)
    assert stops[ActionKind.RELEASE_GANG] == move


def test_a_cluster_that_does_not_say_what_it_read_is_unread() -> None:
    assert {item.kind for item in Cluster(known=True).unread} == set(FactKind)


def _abandoned(**cluster: object) -> Snapshot:
    chat = pod("ml/chat-0", "a", owner="Deployment/ml/chat", labels={"app": "chat"})
    return snapshot([node("a"), node("b")], [device("a", 0, "ml/chat-0")], [chat], **cluster)


def test_what_a_list_would_have_refused_is_refused_while_the_list_is_missing() -> None:
    findings = (idle("ml/chat-0", [device("a", 0)]),)
    budget = DisruptionBudget(namespace="ml", name="chat", match_labels={"app": "chat"}, disruptions_allowed=0)
    space = Namespace(name="ml", annotations={"gpuwatch.dev/mode": "observe", "gpuwatch.dev/opt-out": "true"})
    read = only(
        plan_of(_abandoned(budgets=(budget,), namespaces=(space,)), findings, ENFORCED), ActionKind.RELEASE_GANG
    )
    assert (guards(read), read.mode) == ({"opted_out", "disruption_budget"}, Mode.OBSERVE)
    missing = tuple(Unread(kind, "", "403") for kind in (FactKind.BUDGETS, FactKind.NAMESPACES))
    lost = only(plan_of(_abandoned(unread=missing), findings, ENFORCED), ActionKind.RELEASE_GANG)
    assert (guards(lost), lost.mode) == ({"cluster_known"}, Mode.OBSERVE)
    assert "PodDisruptionBudgets" in reason(lost, "cluster_known")
    assert lost.mode_reason == "The mode of Namespace ml was not read: 403"
    whole = only(plan_of(_abandoned(), findings, ENFORCED), ActionKind.RELEASE_GANG)
    assert (guards(whole), whole.mode) == (set(), Mode.ENFORCE)


def test_every_refusal_is_made_by_a_guard_and_so_has_a_nature() -> None:
    files = Path(gpuwatch.act.__path__[0]).glob("**/*.py")
    assert [path.name for path in files if "Refusal(" in path.read_text()] == ["guards.py"]
    assert {each for each in Guard if each.nature is Clearance.OBJECTED} == {Guard.OPTED_OUT}
    shared = {Guard.ONCE, Guard.RATE, Guard.BUDGET, Guard.POOL_NODES}
    assert {each for each in Guard if each.nature is None} == shared
    assert all(each.nature is Clearance.WAIT for each in BRAKES)


def test_what_an_action_that_has_begun_is_not_asked_again() -> None:
    assert {each for each in Guard if not each.each_step} == {Guard.WORTH_IT, Guard.ALREADY_TAINTED, Guard.RATE}
