"""`whatif`: where Pods would land; else why not, and what would place them. Returns its exit code."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from gpuwatch.act.analysis import analyse
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.slots import kinds_of, largest_part, pod_like
from gpuwatch.act.whatif import WhatIf, what_if
from gpuwatch.app.cli.remediation_commands import plan_facts
from gpuwatch.app.cli.terminal import print_answer
from gpuwatch.app.errors import OptionsError, SourceError
from gpuwatch.app.exit_code import ExitCode
from gpuwatch.app.sources import checked_sources, take_snapshot
from gpuwatch.facts.model.cluster import Pod
from gpuwatch.facts.model.telemetry import Gap
from gpuwatch.say.whatif_tables import asked_words, whatif_tables

VERSION = 1
"""Version of the JSON of `whatif`. Fields may be added; a removal or a change of meaning raises it."""

_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfAnswer:
    """What `whatif -o json` prints. asked: in words."""

    version: int
    at: datetime
    asked: str
    answer: WhatIf
    gaps: tuple[Gap, ...]


def run_whatif(
    pod: str | None,
    form: str,
    rows: int,
    namespace: str,
    gpus: int | None,
    model: str,
    pods: int | None,
    cpu: float | None,
    memory_gib: float | None,
    tolerate: tuple[str, ...],
    **options: Any,
) -> int:
    if (pod is None) == (gpus is None):
        raise OptionsError("name a Pod that waits, or give --gpus for a request that does not exist yet")
    if pod is not None and (model or pods or tolerate or cpu is not None or memory_gib is not None):
        raise OptionsError("--model, --pods, --cpu, --memory-gib and --tolerate are of a new request, with --gpus")
    opened = checked_sources(options)
    snapshot = take_snapshot(opened)
    known, gaps = plan_facts(opened, options, snapshot)
    analysis = analyse(known, opened.policies)
    facts = replace(known, findings=analysis.findings, policy=opened.policies.plan)
    within: Sequence[str] | None = None
    if pod is not None:
        group = _waiting(facts, pod, namespace)
    else:
        assert gpus is not None
        group, within = _request(facts, gpus, model, pods, cpu, memory_gib, tolerate)
    answer = WhatIfAnswer(
        version=VERSION,
        at=snapshot.at,
        asked=asked_words(group),
        answer=what_if(group, facts, analysis.plan.items, within),
        gaps=(*snapshot.gaps, *gaps),
    )
    print_answer(answer, form, lambda: whatif_tables(answer.asked, answer.answer, rows=rows))
    return ExitCode.OK


def _waiting(facts: PlanFacts, name: str, namespace: str) -> list[Pod]:
    """The Pods of its gang that wait, or it alone; also those that a gate keeps from the scheduler."""
    wanted = name.removeprefix("pod/")
    wanted = f"{namespace}/{wanted}" if namespace and "/" not in wanted else wanted
    found = [group for group in facts.pending if any(wanted in (pod.ref, pod.name, pod.gang) for pod in group)]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(min(pod.ref for pod in group) for group in found[:5])
        raise SourceError(
            f"{len(found)} waiting Pods are called {name}: {names}; name the Namespace, as NAMESPACE/NAME"
        )
    held = next((each for each in facts.pods.values() if wanted in (each.ref, each.name, each.gang)), None)
    if held is not None and held.placement.gated and not held.node:
        mates = facts.members.get(held.gang, [held])
        return [each for each in mates if each.placement.gated and not each.node]
    if held is not None:
        where = f"it is on Node {held.node}" if held.node else "it has ended, or ends"
        raise SourceError(f"Pod {held.ref} does not wait for a place: {where}")
    waits = [min(pod.ref for pod in group) for group in facts.pending]
    some = "; none waits"
    if waits:
        more = " and more" if len(waits) > 3 else ""
        some = f"; those that wait are {', '.join(waits[:3])}{more}"
    raise SourceError(f"no Pod that waits for GPUs is called {name}{some}")


def _request(
    facts: PlanFacts,
    gpus: int,
    model: str,
    pods: int | None,
    cpu: float | None,
    memory_gib: float | None,
    tolerate: Sequence[str],
) -> tuple[list[Pod], list[str]]:
    """The Pods of a new request, and the Nodes that have such GPUs."""
    kinds = {kind: nodes for kind, nodes in kinds_of(facts).items() if kind[2]}
    wanted = {kind: nodes for kind, nodes in kinds.items() if model.lower() in kind[0].lower()}
    if len(wanted) != 1:
        names = ", ".join(sorted({name or "(unknown)" for name, _, _ in wanted or kinds})) or "none"
        which = "name the GPU model"
        if model:
            which = f"several GPU models are called {model!r}" if wanted else f"no GPU model is called {model!r}"
        raise OptionsError(f"{which}; --model takes a part of the name: {names}")
    (((_, resource, _), nodes),) = wanted.items()
    most = max(node.allocatable[resource] for node in nodes.values())
    count = pods or gpus // largest_part(gpus, most)
    if gpus % count:
        raise OptionsError(f"{gpus} GPUs cannot be divided by {count} Pods")
    usual = pod_like(facts, resource, nodes, gpus // count, tolerate)
    each = replace(
        usual,
        namespace="new",
        cpu_cores=usual.cpu_cores if cpu is None else cpu,
        memory_bytes=usual.memory_bytes if memory_gib is None else round(memory_gib * _GIB),
    )
    return [replace(each, name=f"request-{number}") for number in range(count)], sorted(nodes)
