"""Which facts each action depends on. An action is refused if one of them was not wholly read."""

from collections.abc import Collection, Mapping

from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.facts.model.cluster import FactKind
from gpuwatch.facts.model.decision import ActionKind

_TAINT, _RELEASE = ActionKind.TAINT_NODE, ActionKind.RELEASE_GANG

INDIFFERENT: Mapping[tuple[FactKind, ActionKind], str] = {
    (FactKind.OWNERS, _TAINT): "A taint below NoExecute ends no Pod, and NoExecute is checked like a move.",
    (FactKind.BUDGETS, _TAINT): "A taint below NoExecute ends no Pod, and NoExecute is checked like a move.",
    (FactKind.QUOTAS, _TAINT): "A taint below NoExecute ends no Pod, and NoExecute is checked like a move.",
    (FactKind.QUOTAS, _RELEASE): "A release ends Pods and lets others have their place and their quota.",
    (FactKind.NAMESPACES, _TAINT): "A Node is in no Namespace, so no Namespace's settings apply to its taint.",
    (FactKind.CLAIMS, _TAINT): "A Node's GPUs are counted by its capacity, with claims or without.",
}
"""Why an action does not depend on a kind. It depends on every kind that is not here."""

_NOUNS: Mapping[FactKind, tuple[str, str]] = {
    FactKind.NODES: ("Nodes", "which are in service"),
    FactKind.PODS: ("Pods", "which would end"),
    FactKind.OWNERS: ("owners of Pods", "which Pods would end with them"),
    FactKind.GANGS: ("Kueue Workloads and PodGroups", "which Pods need each other"),
    FactKind.BUDGETS: ("PodDisruptionBudgets", "how many disruptions they allow"),
    FactKind.QUOTAS: ("ResourceQuotas", "whether the Pods may be created again"),
    FactKind.NAMESPACES: ("Namespaces", "which modes and opt-outs they have"),
    FactKind.CLAIMS: ("ResourceClaims", "which Pods have which devices"),
}


def unread(facts: PlanFacts, action: ActionKind, namespaces: Collection[str] | None = None) -> str:
    """Which facts that this action depends on were not wholly read, a sentence for each kind; '' for none.

    namespaces: those of the Pods that it touches; None for all.
    """
    reasons: dict[FactKind, str] = {}
    for item in facts.snapshot.cluster.unread:
        touched = not item.namespace or namespaces is None or item.namespace in namespaces
        if touched and (item.kind, action) not in INDIFFERENT:
            noun, what = _NOUNS[item.kind]
            where = f" of Namespace {item.namespace}" if item.namespace else ""
            reasons.setdefault(item.kind, f"Not all {noun}{where} were read, so it is not known {what}: {item.why}")
    return " ".join(reasons.values())
