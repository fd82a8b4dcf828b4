"""Nodes and GPUs where Pods of several programs die soon after their start, while the same programs live elsewhere."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import comb
from statistics import median

import numpy as np

from gpuwatch.facts.model.decision import Advice, Evidence, Finding, FindingKind, Severity, Verdict
from gpuwatch.facts.model.telemetry import PodRef, PodRun
from gpuwatch.judge.fleet import Fleet, Tells, conclude, on_node
from gpuwatch.judge.health.fault_memory import stem
from gpuwatch.judge.health.xid_events import COMMON_CAUSE_SECONDS
from gpuwatch.judge.rule import FROM_OBJECTS, Judged, Nothing, Rule

_TELLS = Tells(FindingKind.POD_FAILURES, "Pods die soon after their start here, and live elsewhere", "warning: inspect")

_EARLY_SECONDS = 600
"""An image's start and the first collective fit into it; most failures of programs that ran well come later."""
_CRASHES = 3
"""Restarts from which a running Pod may be one that dies again and again."""
_PROGRAMS = 3
"""Programs that fail at a place and live elsewhere. One or two may have one owner, whose change broke both."""
_CHANCE = 0.01
"""Chance of so many deaths at any one place of a healthy fleet: with windows of six hours, once in 25 days."""
_BY_OTHERS = frozenset({"deleted", "Evicted", "NodeAffinity", "NodeLost", "Shutdown"})
"""Reasons that are not the Pod's fault, of those that kube-state-metrics has (internal/store/pod.go). It has one more:
UnexpectedAdmissionError, a fault of the Node."""
_TAG = re.compile(r"(@.*|:[^/:]*)$")


def pod_failures(fleet: Fleet, _: Nothing) -> Judged:
    """Findings on GPUs, and on Nodes where no single GPU explains the deaths. UNKNOWN, so never acted on: an early
    death shows no fault of the machine. On GPUs only where each GPU's history is known, for a fair comparison."""
    runs = [run for run in fleet.snapshot.pod_runs if run.node in fleet.nodes]
    node_of = {gpu.uuid: gpu.lead.node for gpu in fleet.present}
    held: dict[PodRef, set[str]] = defaultdict(set)
    for history in fleet.snapshot.activity:
        held[history.pod].add(fleet.uuids.get(history.device, ""))

    def cards(run: PodRun) -> set[str]:
        return {uuid for uuid in held[run.pod] if node_of.get(uuid) == run.node}

    known = set().union(*held.values()) >= node_of.keys()
    of_cards = _suspects(fleet, runs, cards) if known else {}
    alike = Counter(node_of[uuid] for uuid in of_cards)
    lemons = {uuid: finding for uuid, finding in of_cards.items() if alike[node_of[uuid]] == 1}
    rest = [run for run in runs if lemons.keys().isdisjoint(cards(run))]
    words, missing = "running Pods do not prove a GPU healthy", ["failed Pods"]
    return Judged(
        lambda gpu: fleet.unknown(gpu, _TELLS, words, missing),
        [*lemons.values(), *_suspects(fleet, rest, lambda run: {run.node}).values()],
    )


def _suspects(fleet: Fleet, runs: Sequence[PodRun], places: Callable[[PodRun], Iterable[str]]) -> dict[str, Finding]:
    """Findings by place. The Pods of a workload at one place are one case, which died if none of them lived. A workload
    at several places is no case, as a gang dies as one; a ReplicaSet's Pods are independent."""
    programs = _programs(runs)
    spots: dict[tuple[str, str], set[str]] = defaultdict(set)
    for run in runs:
        spots[programs[run], run.created_by or run.pod].update(places(run))
    cases: dict[str, dict[tuple[str, str], list[PodRun]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        workload = (programs[run], run.created_by or run.pod)
        alone = len(spots[workload]) == 1 or run.created_by.startswith("ReplicaSet/")
        if alone and len(where := set(places(run))) == 1 and _died(fleet, run) is not None:
            cases[where.pop()][workload].append(run)
    dead = {
        place: {case: ends for case, ends in mine.items() if all(_died(fleet, run) for run in ends)}
        for place, mine in cases.items()
    }
    here = {place: Counter(program for program, _ in mine) for place, mine in cases.items()}
    deaths = {place: Counter(program for program, _ in mine) for place, mine in dead.items()}
    total, died = sum(here.values(), Counter[str]()), sum(deaths.values(), Counter[str]())
    found = {}
    for place, mine in deaths.items():
        away, lost = total - here[place], died - mine
        living = [program for program in mine if away[program] > lost[program]]
        chance = len(cases) * _chance((here[place][each], mine[each], total[each], died[each]) for each in here[place])
        runs_lost = [run for ends in dead[place].values() for run in ends]
        ends = sorted(end for run in runs_lost if (end := run.ended or run.started))
        again = ends and (ends[-1] - ends[0]).total_seconds() >= COMMON_CAUSE_SECONDS
        # Deaths at one moment have one cause, such as a drain.
        if len(living) >= _PROGRAMS and chance <= _CHANCE and again:
            others, others_died = (sum(each[program] for program in mine) for each in (away, lost))
            words = (
                f"{mine.total()} of {here[place].total()} workloads here died within {_EARLY_SECONDS // 60} min, and "
            )
            words += f"{others_died} of {others} elsewhere that run the same {len(mine)} programs"
            note = f"{chance:.1g} is the chance of so many deaths at any of {len(cases)} places"
            found[place] = _finding(fleet, place, runs_lost, words, note)
    return found


def _chance(strata: Iterable[tuple[int, int, int, int]]) -> float:
    """The chance of at least so many deaths here, if a program's deaths were spread over its cases by chance: Fisher's
    exact test over several programs. strata: of each, cases and deaths here, cases and deaths in all."""
    spread, seen = np.ones(1), 0
    for here, died, total, died_in_all in strata:
        ways = [comb(died_in_all, k) * comb(total - died_in_all, here - k) for k in range(min(here, died_in_all) + 1)]
        spread = np.convolve(spread, [way / comb(total, here) for way in ways])
        seen += died
    return float(spread[seen:].sum())


def _died(fleet: Fleet, run: PodRun) -> bool | None:
    """Whether it died early; False if it lived; None where unknown, or where others ended it."""
    if _BY_OTHERS.intersection(run.reasons):
        return None
    if run.phase == "Succeeded":
        return False
    end = {"Failed": run.ended, "Running": fleet.snapshot.at}.get(run.phase)
    if end is None or run.started is None:
        return None
    if (end - run.started).total_seconds() >= _EARLY_SECONDS:
        return False
    return True if run.phase == "Failed" or run.restarts >= _CRASHES else None


def _programs(runs: Iterable[PodRun]) -> Mapping[PodRun, str]:
    """Namespace and images without tags. A Pod that the kubelet refused has no image: Pods with its name decide."""
    programs: dict[PodRun, str] = {}
    of_name: dict[str, str] = {}
    for run in runs:
        space, _, pod = run.pod.partition("/")
        images = sorted({_TAG.sub("", image) for image in run.images})
        programs[run] = name = f"{space}/{stem(run.created_by.partition('/')[2] or pod)}"
        if images:
            programs[run] = of_name[name] = " ".join([space, *images])
    return {run: of_name.get(program, program) for run, program in programs.items()}


def _finding(fleet: Fleet, place: str, dead: Sequence[PodRun], words: str, chance: str) -> Finding:
    gpu = next((gpu for gpu in fleet.present if gpu.uuid == place), None)
    reasons = Counter(reason for run in dead for reason in run.reasons)
    lives = [(run.ended - run.started).total_seconds() for run in dead if run.ended and run.started]
    pods = f'last_over_time(kube_pod_info{{node="{dead[0].node}"}}[6h])'
    query = f'last_over_time(kube_pod_status_phase{{phase="Failed"}}[6h]) == 1 and on (namespace, pod) {pods}'
    said = ", ".join(f"{reason} × {count}" for reason, count in sorted(reasons.items())) or "not exported"
    evidence = [Evidence(signal="reasons of failed Pods", value=said, promql=query, note=chance)]
    if lives:
        evidence.append(Evidence(signal="time to failure", value=median(lives), unit="seconds", statistic="median"))
    return conclude(
        gpu or on_node(place),
        _TELLS,
        Verdict.UNKNOWN,
        words,
        severity=Severity.WARNING,
        advice=Advice.INSPECT,
        evidence=evidence,
        missing=["a counter, an XID or a test of the machine that shows a fault"],
        gpus=() if gpu else fleet.at_home.get(place, ()),
        node=place,
    )


POD_FAILURES = Rule(tells=(_TELLS,), needs=Nothing, judge=pod_failures, assesses=False, unshown=FROM_OBJECTS)
