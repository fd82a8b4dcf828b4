"""Nodes that two operators reconcile at once, so that each undoes what the other one does."""

from collections.abc import Iterable

from gpuwatch.facts.model.cluster import Node
from gpuwatch.facts.model.decision import Advice, Evidence, Finding, FindingKind, Severity, Verdict
from gpuwatch.judge.fleet import Fleet, Tells, conclude, on_node
from gpuwatch.judge.reclaim import remediators
from gpuwatch.judge.rule import without_statistics

_TELLS = Tells(FindingKind.OPERATOR_CONFLICT, "two operators reconcile one Node or its GPUs", "warning: inspect")
_MIG_MANAGER = "nvidia.com/mig.config.state"
"""Label of NVIDIA's MIG manager (gpu-operator), on each Node that it looks after."""
HAMI = "hami.io/node-nvidia-register"
"""Annotation of HAMi's device plugin, which can set up MIG devices as well: the two must not reconcile the same GPU
(Project-HAMi/website, pull request 794)."""
_DRA_DRIVER = "gpu.nvidia.com"


def operator_conflicts(fleet: Fleet) -> Iterable[Finding]:
    """UNKNOWN, so never acted on: whether they disturb each other depends on their settings."""
    claimed = {claim.pool for claim in fleet.snapshot.cluster.claims if claim.driver == _DRA_DRIVER}
    for node in fleet.snapshot.cluster.nodes:
        if facts := [*_conflicts(node, claimed)]:
            yield conclude(
                on_node(node.name),
                _TELLS,
                Verdict.UNKNOWN,
                "two operators reconcile it: " + "; ".join(who for who, _ in facts),
                severity=Severity.WARNING,
                advice=Advice.INSPECT,
                evidence=[Evidence(signal="operators", value=who, note=marks) for who, marks in facts],
                missing=["their settings, which may keep them apart"],
                gpus=fleet.at_home.get(node.name, ()),
                node=node.name,
            )


def _conflicts(node: Node, claimed: set[str]) -> Iterable[tuple[str, str]]:
    """What the two do, and the marks by which they are known."""
    repair = remediators(node)
    if len(repair) > 1:
        yield f"{' and '.join(who for who, _ in repair)} repair it", ", ".join(mark for _, mark in repair)
    if _MIG_MANAGER in node.labels and HAMI in node.annotations:
        yield "MIG manager and HAMi can set up its MIG devices", f"label {_MIG_MANAGER}, annotation {HAMI}"
    if node.name in claimed and node.accelerators.get("nvidia.com/gpu"):
        both = "the device plugin and the DRA driver give out its GPUs"
        yield both, f"capacity nvidia.com/gpu, ResourceClaims of {_DRA_DRIVER}"


OPERATOR_CONFLICT = without_statistics(_TELLS, operator_conflicts)
