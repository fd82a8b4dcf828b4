"""The options -n and -l: which Pods an answer is about."""

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from gpuwatch.act.analysis import coverage_of
from gpuwatch.app.errors import OptionsError, SourceError
from gpuwatch.facts.model.cluster import Cluster
from gpuwatch.facts.model.decision import Analysis, Snapshot
from gpuwatch.facts.model.telemetry import PodRef
from gpuwatch.say.explain import concerns
from gpuwatch.say.plan_tables import kubectl_kind
from gpuwatch.say.tables import shown

Matches = Callable[[Mapping[str, str]], bool]

_TERM = re.compile(
    r"(?P<no>!)?\s*(?P<key>[\w./-]+)\s*(?:(?P<sign>==?|!=)\s*(?P<one>[\w.-]*)|(?<=\s)(?P<word>in|notin)\s*\((?P<all>[^()]*)\))?"
)


def parse_selector(text: str) -> Matches | None:
    """A label selector as kubectl takes it: `a=b,c!=d,e,!f,g in (h,i)`; None for ''. Raises OptionsError.

    >>> matches = parse_selector("team=vision,tier notin (dev,test),!debug")
    >>> matches({"team": "vision"}), matches({"team": "vision", "tier": "dev"})
    (True, False)
    """
    terms: list[tuple[str, bool, frozenset[str] | None]] = []  # key, wanted, values; None: any value
    for part in filter(None, map(str.strip, re.split(r",(?![^(]*\))", text))):
        found = _TERM.fullmatch(part)
        given = None if found is None else found["all"] if found["one"] is None else found["one"]
        if found is None or (found["no"] and given is not None):
            raise OptionsError(
                f"-l: {part!r} is no label selector; write a=b, a!=b, a, !a, a in (b,c) or a notin (b,c)"
            )
        wanted = not found["no"] and found["sign"] != "!=" and found["word"] != "notin"
        terms.append((found["key"], wanted, None if given is None else frozenset(map(str.strip, given.split(",")))))
    if not terms:
        return None

    def matches(labels: Mapping[str, str]) -> bool:
        return all(
            (key in labels and (values is None or labels[key] in values)) == wanted for key, wanted, values in terms
        )

    return matches


class Scope:
    """namespace, selector: '' for all. Raises OptionsError for a selector that cannot be understood."""

    def __init__(self, namespace: str = "", selector: str = "") -> None:
        self.namespace, self.selector, self.matches = namespace, selector, parse_selector(selector)

    def __str__(self) -> str:
        """The Pods that an answer is about; '' for all."""
        place = f" in Namespace {self.namespace}" if self.namespace else ""
        labels = f" with labels {self.selector}" if self.matches else ""
        return f"Pods{place}{labels}" if place or labels else ""

    def of(self, analysis: Analysis) -> Analysis:
        """The devices, findings and plan that concern these Pods, and what is known of them."""
        if not str(self):
            return analysis
        pods = self._pods(analysis)
        devices = tuple(device for device in analysis.devices if pods & set(device.pods))
        doubted = tuple(item for item in analysis.doubted if pods & set(item.shown.pods))
        held = {device.id for device in devices}
        findings = tuple(item for item in analysis.findings if concerns(item, held, pods))
        items = (
            item
            for item in analysis.plan.items
            if pods & set(item.candidate.pods) or held & set(item.candidate.devices)
        )
        return replace(
            analysis,
            devices=devices,
            doubted=doubted,
            coverage=coverage_of(devices, doubted, findings, analysis.coverage.rules_limited),
            findings=findings,
            plan=replace(analysis.plan, items=tuple(items)),
        )

    def _pods(self, analysis: Analysis) -> set[PodRef]:
        known = {pod.ref: pod.labels for pod in analysis.cluster.pods}
        refs = set(known) | {ref for device in shown(analysis) for ref in device.pods}
        return {
            ref
            for ref in refs
            if self.namespace in ("", ref.partition("/")[0])
            and (self.matches is None or (ref in known and self.matches(known[ref])))
        }


def shown_name(subject: str, namespace: str, cluster: Cluster) -> str:
    """A subject for `-o name`: as kubectl prints it, where it is an object of the one Namespace that was asked for."""
    kind, _, name = subject.partition("/")
    if namespace and kind == "pod":
        return f"pod/{name.rpartition('/')[2]}"
    owner = next((each for each in cluster.workloads if kind == "workload" and each.id == name), None)
    return f"{kubectl_kind(owner)}/{owner.name}" if namespace and owner else subject


def check_namespace(namespace: str | None, snapshot: Snapshot) -> None:
    """Raises SourceError for a Namespace that the cluster does not have, or, where no cluster was read, without a Pod
    in telemetry."""
    known = {each.name for each in snapshot.cluster.namespaces} | {each.namespace for each in snapshot.cluster.pods}
    known |= {ref.partition("/")[0] for device in shown(snapshot) for ref in device.pods}
    if namespace and namespace not in known:
        near = difflib.get_close_matches(namespace, known, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"{len(known)} Namespaces are known"
        raise SourceError(f"there is no Namespace {namespace!r}; {hint}")
