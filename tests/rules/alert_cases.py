"""The cases of alert_cases.yaml, and those that follow from the catalog of XIDs and the policy of NVLink errors."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

import yaml

from gpuwatch.facts.catalog.xids import XidClass, xids
from gpuwatch.judge.health.link import COUNTERS, NVLINK_CRC_ERRORS_PER_SECOND, NVLINK_ERRORS_PER_MINUTE
from rules.promtool import Case

CARD = 'cluster="c1",node="gpu-1",UUID="GPU-a",gpu="0",modelName="H100"'
THE_CARD = {"cluster": "c1", "node": "gpu-1", "UUID": "GPU-a"}
CARD_SAYS = ("GPU-a", "H100", "gpu-1", "c1")
Labels = Mapping[str, str]


@cache
def _listed() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
    return found


def listed_cases(s: int) -> Iterator[Case]:
    """Those of the YAML file. s: minutes that a window of this Prometheus leaves out at its start."""
    words, _, *alerts = _listed().items()
    for alert, rows in alerts:
        for row in rows:
            for names in row.get("each", ({},)):
                for case in row.get("cases", (row,)):
                    yield from _cases(alert, _filled(case, {**words[1], **names}, s), s)


def _filled(value: Any, words: Mapping[str, object], s: int) -> Any:
    """With its words in place of their names, and `459-s` as a number."""
    if isinstance(value, dict):
        return {_filled(key, words, s): _filled(item, words, s) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, words, s) for item in value]
    if not isinstance(value, str):
        return value
    if value == "$card":
        return CARD_SAYS
    text = re.sub(r"\{(\d+)-s\}", lambda match: str(int(match[1]) - s), Template(value).substitute(words))
    return int(text.removesuffix("-s")) - s if re.fullmatch(r"\d+-s", text) else text


def _cases(alert: str, case: Mapping[str, Any], s: int) -> Iterator[Case]:
    said = (item if isinstance(item, tuple) else (str(item),) for item in case.get("says", ()))
    says = tuple(word for words in said for word in words)
    if "below" in case:
        bounds = (case["below"], case["above"])
        yield from edges(alert, case["wait"], *bounds, case["fires"], says, case.get("steady"))
    elif case.get("major", 2 + s) == 2 + s:
        samples = {name: str(values) for name, values in case["samples"].items()}
        yield Case(str(case["name"]), alert, samples, case["fires"], says)


def series(name: str, labels: str, *more: str) -> str:
    return f"{name}{{{','.join((labels, *more))}}}"


def edges(
    alert: str,
    wait: int,
    below: Mapping[str, object],
    above: Mapping[str, object],
    labels: Labels,
    says: tuple[str, ...] = (),
    more: Mapping[str, str] | None = None,
) -> Iterator[Case]:
    """Constant values: one too few never fires, one enough fires after the wait and not before."""
    length = wait + 10
    steady = dict(more or {})
    held = [{name: f"{value}x{length}" for name, value in each.items()} for each in (below, above)]
    yield Case("below", alert, steady | held[0], {length: []})
    early: dict[int, Sequence[Labels]] = {wait - 1: []} if wait else {}
    yield Case("above", alert, steady | held[1], {**early, wait: [labels]}, says)
    nothing = dict.fromkeys(held[1], "NaN " * (length + 1))
    yield Case("not a number", alert, steady | nothing, {length: []})
    # Gone: it ends with the series, after Prometheus' look-back or at once where the series is marked stale.
    ended = {name: f"{value}x{length} stale" for name, value in above.items()}
    gone = {name: values for name, values in steady.items() if name not in ended}
    yield Case("ends", alert, gone | ended, {length: [labels], length + 1: []})


def xid_cases(s: int) -> Iterator[Case]:
    every = {
        f'gpu:gpu_xid:last{{cluster="c1",node="n",UUID="GPU-{code}",gpu="0",modelName="H100"}}': f"{code}x20"
        for code in range(200)
    }
    classes = {
        "GpuXidFatal": XidClass.FATAL,
        "GpuXidNeedsSecondSign": XidClass.CORROBORATE,
        "GpuXidApplication": XidClass.APPLICATION,
    }
    for alert, xid_class in classes.items():
        codes = [code for code, xid in xids().items() if xid.xid_class is xid_class]
        yield Case("all numbers", alert, every, {1: [{"UUID": f"GPU-{code}"} for code in codes]})
    codes = [code for code, xid in xids().items() if xid.xid_class is XidClass.APPLICATION]
    held = {name: f"_x15 {values}" for name, values in every.items()}
    held |= {
        f'device:gpu_workload:info{{cluster="c1",node="n",UUID="GPU-{code}",namespace="a",pod="p"}}': "1x40"
        for code in range(200)
    }
    named = [{"UUID": f"GPU-{code}", "pod": "p", "gpu": "0", "modelName": "H100"} for code in codes]
    yield Case("all numbers of Pods", "GpuXidApplication", held, {14: [], 16: named})

    xid, heat = series("gpu:gpu_xid:last", CARD), series("gpu:gpu_temperature_celsius:max", CARD)
    pod = {series("device:gpu_workload:info", CARD, 'namespace="a",pod="p"'): "1x1000"}
    yield from new_xid_cases("GpuXidFatal", 79, 60, s)
    yield from new_xid_cases("GpuXidNeedsSecondSign", 94, 60, s)
    yield from new_xid_cases("GpuXidApplication", 31, 10, s)
    yield from new_xid_cases("GpuXidApplication", 31, 10, s, pod)
    pods = {
        series(
            "device:gpu_workload:info", CARD, 'GPU_I_ID="1",namespace="team-a",pod="one",container="c"'
        ): "1x110 stale",
        series("device:gpu_workload:info", CARD, 'GPU_I_ID="2",namespace="team-b",pod="two",container="c"'): "1x300",
        series(
            "device:gpu_workload:info", CARD, 'GPU_I_ID="1",namespace="team-c",pod="later",container="c"'
        ): "_x101 1x300",
    }
    both = [{**THE_CARD, "namespace": "team-a", "pod": "one"}, {**THE_CARD, "namespace": "team-b", "pod": "two"}]
    late = {series("device:gpu_workload:info", CARD, 'namespace="team-a",pod="one"'): "_x90 1x200"}
    one = [{**THE_CARD, "pod": "one"}]
    yield Case("ten minutes before", "GpuXidApplication", {heat: "50x300", xid: "_x100 31x200", **late}, {100: one})
    yield Case(
        "who had it",
        "GpuXidApplication",
        {heat: "50x300", xid: "_x100 31x200", **pods},
        {99: [], 100: both, 109: both, 110: []},
        ("Pod team-",),
    )
    yield Case(
        "Pods of it",
        "GpuXidFatal",
        {heat: "50x300", xid: "_x100 79x200", **pods},
        {100: [THE_CARD]},
        ("team-a/one", "team-b/two"),
    )


def new_xid_cases(
    alert: str, code: int, window: int, s: int, beside: Mapping[str, str] | None = None
) -> Iterator[Case]:
    """What is news: the first series, a change, the same again; and what is none."""
    fires = [THE_CARD]
    xid, heat = series("gpu:gpu_xid:last", CARD), series("gpu:gpu_temperature_celsius:max", CARD)

    def case(name: str, heat_is: str, xid_is: str, fires: Mapping[int, Sequence[Labels]]) -> Case:
        samples = {heat: heat_is, xid: xid_is, **(beside or {})}
        return Case(f"{name}, Pods {bool(beside)}", alert, samples, fires, (f"XID {code}", *CARD_SAYS))

    # An exporter that shows no XID until the first: it is new for one window.
    lasts = {99: [], 100: fires, 99 + window: fires, 100 + window: []}
    yield case("first series", "50x500", f"_x100 {code}x400", lasts)
    yield case("0 before", "50x500", f"0x99 {code}x400", lasts)
    yield case("Prometheus is new", "50x500", f"{code}x500", {0: fires, window - 1: fires, window: []})
    # The same again, after its exporter started anew: for one scrape it showed 0, or no XID.
    again = {299: [], 300: [], 301: fires, 299 + window: fires}
    yield case("again after 0", "50x1000", f"{code}x299 0 {code}x400", {**again, 300 + window: fires, 301 + window: []})
    anew = {**again, 300 + window: [] if s else fires, 301 + window: []}
    yield case("again after a restart", "50x1000", f"{code}x299 stale {code}x400", anew)
    yield case("another between", "50x1000", f"{code}x299 500 {code}x400", {301: fires, 301 + window: []})
    # No news: its whole exporter was away.
    away = {350: [], 402: [], 420: [], 402 + window: [], 460 + window: []}
    yield case("a gap", "50x299 stale _x100 50x400", f"{code}x299 stale _x100 {code}x400", away)
    # Six hours are bridged: last seen at minute 9, back at minute 370, and one more.
    for name, missing, last in (("six hours", 359 - s, []), ("more than six hours", 360 - s, fires)):
        gap, back = f"stale _x{missing}", 11 + missing
        ends = {back: [], back + window // 2: [], back + window - 1: last, back + window: []}
        yield case(name, f"50x9 {gap} 50x400", f"{code}x9 {gap} {code}x400", ends)


def nvlink_cases(s: int) -> Iterator[Case]:
    """Every counter that gpuwatch's own rule has, by how its detector names it, a second."""
    name = "gpu_kind:gpu_nvlink_errors:rate15m"
    for signal in COUNTERS:
        kind = signal.removeprefix("nvlink_").removesuffix("_total")
        if not signal.startswith("nvlink_"):
            continue
        rate, label = series(name, CARD, f'kind="{kind}"'), {**THE_CARD, "kind": kind}
        if kind in ("failed_recoveries", "link_downs"):
            # One within 15 minutes, recorded for as long. It fires while a second window still has it.
            seen = f"0x19 {1 / 900}x14 0x60"
            yield Case(f"{kind} none", "GpuNvlinkErrors", {rate: "0x60"}, {60: []})
            last = 49 - s
            yield Case(
                kind,
                "GpuNvlinkErrors",
                {rate: seen},
                {34: [], 35: [label], last: [label], last + 1: []},
                (*CARD_SAYS, "0.0667", kind.replace("_", " "), "a minute"),
            )
            continue
        bound = 60 * NVLINK_CRC_ERRORS_PER_SECOND if "crc" in kind else NVLINK_ERRORS_PER_MINUTE
        yield Case(f"{kind} below", "GpuNvlinkErrors", {rate: f"{bound / 60}x60"}, {60: []})
        yield Case(f"{kind} burst", "GpuNvlinkErrors", {rate: f"0x19 {2 * bound / 60}x14 0x60"}, {34: [], 35: []})
        yield Case(
            kind,
            "GpuNvlinkErrors",
            {rate: f"{1.01 * bound / 60}x20 0x9"},
            {14: [], 15: [label], 20: [label], 21: []},
            (*CARD_SAYS, kind.replace("_", " "), "a minute"),
        )


def all_cases(major: int) -> list[Case]:
    """Cases for a Prometheus of this major version: 3 leaves the first moment out of a window, 2 counts it in."""
    s = 1 if major >= 3 else 0
    return [case for each in (xid_cases, nvlink_cases, listed_cases) for case in each(s)]
