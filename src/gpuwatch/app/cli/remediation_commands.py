"""`plan`, `history`, `approve`, `reject`, `undo`, `pause` and `resume`. Each returns its exit code."""

import difflib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpuwatch.account.weekly import actions_in
from gpuwatch.act.analysis import analyse
from gpuwatch.act.execute.precision import poor, precision_by_place
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.plan.policy import MIN_PRECISION_RATIO
from gpuwatch.act.remediations import RemediationStore
from gpuwatch.app.cli.scope import Scope, check_namespace, shown_name
from gpuwatch.app.cli.terminal import output as console
from gpuwatch.app.cli.terminal import print_listing, remark
from gpuwatch.app.errors import SourceError
from gpuwatch.app.exit_code import ExitCode
from gpuwatch.app.settings import Settings, load_settings
from gpuwatch.app.sources import Opened, checked_sources, take_snapshot
from gpuwatch.facts.model.decision import Plan, Snapshot
from gpuwatch.facts.model.remediation import Pause, Phase, Remediation
from gpuwatch.facts.model.telemetry import Gap, GapKind
from gpuwatch.say.machine import PLAN
from gpuwatch.say.remediation_tables import as_argument, history_tables, pause_text, remediation_detail
from gpuwatch.say.tables import plan_tables
from gpuwatch.say.weekly_machine import ACTIONS
from gpuwatch.sources.kube.live import api_client
from gpuwatch.sources.kube.live_writer import LiveWriter
from gpuwatch.sources.kube.reader import ClusterError
from gpuwatch.sources.kube.writer import WriteError
from gpuwatch.sources.store import StoreError
from gpuwatch.sources.telemetry.alerts import firing

VERSION = 1
"""Version of the JSON of these commands. Fields may be added; a removal or a change of meaning raises it."""

_KINDS = ("remediation", "rem", "noderemediation", "noderem")
"""What may stand before a name, also with its API group, as `-o name` prints it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAnswer:
    """What `plan -o json` prints."""

    version: int
    at: datetime
    plan: Plan
    gaps: tuple[Gap, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryAnswer:
    """What `history -o json` prints. pause: None where it could not be read, which is a gap."""

    version: int
    at: datetime
    pause: Pause | None
    remediations: tuple[Remediation, ...]
    gaps: tuple[Gap, ...]


def run_plan(form: str, output_file: Path | None, rows: int, namespace: str, selector: str, **options: Any) -> int:
    scope = Scope(namespace, selector)
    opened = checked_sources(options)
    snapshot = take_snapshot(opened)
    known, gaps = plan_facts(opened, options, snapshot)
    analysis = analyse(replace(known, snapshot=replace(snapshot, gaps=(*snapshot.gaps, *gaps))), opened.policies)
    check_namespace(scope.namespace, snapshot)
    analysis = scope.of(analysis)
    named = (str(item.candidate.target) for item in analysis.plan.items if item.admitted)
    print_listing(
        PlanAnswer(version=VERSION, at=analysis.at, plan=analysis.plan, gaps=analysis.gaps),
        form,
        lambda: plan_tables(analysis, opened.description, scope=str(scope), rows=rows, wide=form == "wide"),
        (shown_name(name, scope.namespace, snapshot.cluster) for name in named),
        PLAN,
        analysis.plan.items,
        output_file,
    )
    return ExitCode.OK if snapshot.devices or snapshot.doubted else ExitCode.FAILED


def plan_facts(opened: Opened, options: Mapping[str, Any], snapshot: Snapshot) -> tuple[PlanFacts, tuple[Gap, ...]]:
    """What the controller would also consider: a live cluster's history and firing alerts."""
    alerts: tuple[str, ...] | None = ()
    gaps: tuple[Gap, ...] = ()
    names = opened.policies.plan.brake_alerts
    if names and opened.store is not None:
        alerts, gaps = firing(opened.store, names, opened.at, snapshot.telemetry_schema.matchers)
    facts = PlanFacts(snapshot=snapshot, alerts=alerts)
    if options["at"] is not None:
        return facts, gaps
    kept, more = kept_of(opened, options)
    if kept is None:
        return facts, (*gaps, *more)
    known, pause = kept
    doubtful = poor(precision_by_place(known), MIN_PRECISION_RATIO)
    return replace(facts, history=known, pause=pause, precision=doubtful), (*gaps, *more)


def kept_of(
    opened: Opened, options: Mapping[str, Any]
) -> tuple[tuple[tuple[Remediation, ...], Pause] | None, tuple[Gap, ...]]:
    """The Remediations and the pause of a live cluster; None without a cluster, or with a gap if they cannot be
    read."""
    if opened.cluster is None or not opened.cluster.served:
        return None, ()
    writer = LiveWriter(api_client(options["kubeconfig"], options["context"]), instance="gpuwatch-cli")
    store = RemediationStore(writer, opened.settings.namespace)
    try:
        return (store.all(), store.paused()), store.gaps
    except StoreError as error:
        return None, (Gap(kind=GapKind.REFUSED, what="remediations", detail=str(error)),)


def run_history(
    name: str | None, form: str, output_file: Path | None, rows: int, open_only: bool, **options: Any
) -> int:
    now = datetime.now(UTC)
    store, _ = opened_store(options)
    known = (_one(store, name, options),) if name is not None else _all(store, options)
    gaps = store.gaps
    pause, unread = _pause(store)
    if open_only and name is None:
        known = tuple(each for each in known if each.phase.open)
    answer = HistoryAnswer(version=VERSION, at=now, pause=pause, remediations=known, gaps=(*gaps, *unread))
    wide = form == "wide"
    print_listing(
        answer,
        form,
        lambda: (
            history_tables(known, pause or Pause(), answer.gaps, now, rows=rows, wide=wide)
            if name is None
            else remediation_detail(known[0], now)
        ),
        (f"{'' if each.namespace else 'node'}remediation.gpuwatch.dev/{each.name}" for each in known),
        ACTIONS,
        actions_in(known, datetime.min.replace(tzinfo=UTC), now),
        output_file,
    )
    return ExitCode.OK


def run_approve(name: str, by: str | None, **options: Any) -> int:
    store, writer = opened_store(options)
    found = _one(store, name, options)
    # In mode enforce it may wait because no owner could be notified.
    if found.phase not in (Phase.PROPOSED, Phase.NOTIFIED) and not (found.approved and found.phase.open):
        raise StoreError(f"{found.id} is {found.phase}{_because(found)}: there is nothing to approve")
    if not found.approved:
        found = store.approve(found.id, by if by is not None else _who_is_it(writer))
    _tell(
        f"{found.name} is approved by {found.approved_by or 'a person'}: owners are notified, and it is done once "
        "the notice period is over and all guards agree."
    )
    _tell_pause(store)
    return ExitCode.OK


def run_reject(name: str, finding_correct: bool, **options: Any) -> int:
    store, _ = opened_store(options)
    found = _one(store, name, options)
    if found.phase not in (Phase.PROPOSED, Phase.NOTIFIED):
        what = f"take it back: gpuwatch undo {as_argument(found)}"
        what = what if found.phase.open else "there is nothing to reject"
        raise StoreError(f"{found.name} is {found.phase}{_because(found)}: {what}")
    found = store.reject(found.id, finding_correct)
    _tell(f"{found.name} is rejected, and is not done.")
    return ExitCode.OK


def run_undo(name: str, finding_correct: bool, **options: Any) -> int:
    store, _ = opened_store(options)
    found = _one(store, name, options)
    if found.phase is Phase.PROPOSED:
        raise StoreError(f"{found.name} is only proposed: stop it with gpuwatch reject {as_argument(found)}")
    if not found.phase.open and found.phase not in (Phase.SUCCEEDED, Phase.FAILED):
        raise StoreError(f"{found.name} is {found.phase}{_because(found)}: nothing of it stands")
    found = store.ask_undo(found.id, finding_correct)
    _tell(
        f"{found.name} is taken back: what is still as gpuwatch left it becomes as it was before, and what others "
        "changed since stays."
    )
    _tell_pause(store)
    return ExitCode.OK


def run_pause(reason: str, by: str | None, everything: bool, **options: Any) -> int:
    now = datetime.now(UTC)
    store, writer = opened_store(options)
    pause = store.pause(by if by is not None else _who_is_it(writer), reason, now, everything=everything)
    _tell(pause_text(pause, now))
    return ExitCode.OK


def run_resume(**options: Any) -> int:
    store, _ = opened_store(options)
    before = store.paused()
    store.resume()
    _tell("It goes on." if before.paused else "It was not paused.")
    return ExitCode.OK


def opened_store(options: Mapping[str, Any], settings: Settings | None = None) -> tuple[RemediationStore, LiveWriter]:
    """The cluster's store and its writer. settings: default is the file in the options."""
    settings = settings or load_settings(options["config"])
    try:
        client = api_client(options["kubeconfig"], options["context"])
    except ClusterError as error:
        raise SourceError(
            f"{error} Remediations and the pause are kept in the cluster alone: `gpuwatch run` without a cluster "
            "proposes nothing."
        ) from error
    dry_run = options.get("dry_run", False)
    if dry_run:
        remark("Dry run: nothing is stored.")
    writer = LiveWriter(client, instance="gpuwatch-cli", dry_run=dry_run)
    namespace = options["controller_namespace"] or settings.namespace
    return RemediationStore(writer, namespace, within=options.get("namespace") or "", forgiving=True), writer


def _all(store: RemediationStore, options: Mapping[str, Any]) -> tuple[Remediation, ...]:
    """Those of --namespace, else all. Raises StoreError with advice if listing is forbidden."""
    namespace = options.get("namespace")
    try:
        known = store.all()
    except StoreError as error:
        if namespace:
            raise
        raise StoreError(f"{error} Your rights in one Namespace may do: -n NAMESPACE") from error
    return tuple(each for each in known if not namespace or each.namespace == namespace)


def _pause(store: RemediationStore) -> tuple[Pause | None, tuple[Gap, ...]]:
    """A user with rights in one Namespace only need not read the pause."""
    try:
        return store.paused(), ()
    except StoreError as error:
        return None, (Gap(kind=GapKind.REFUSED, what="pause", detail=str(error)),)


def _one(store: RemediationStore, name: str, options: Mapping[str, Any]) -> Remediation:
    """The Remediation with this name or unique prefix. Raises StoreError."""
    kind, _, rest = name.partition("/")
    name = rest if kind.partition(".")[0] in _KINDS else name
    try:
        known = _all(store, options)
    except StoreError:
        with suppress(StoreError):  # `get` may be allowed where `list` is not
            found = store.get(f"{options.get('namespace') or ''}/{name}".removeprefix("/"))
            if found is not None:
                return found
        raise
    exact = [each for each in known if name in (each.name, each.id)]
    begun = exact or [each for each in known if name and (each.name.startswith(name) or each.id.startswith(name))]
    if len(begun) == 1:
        return begun[0]
    if begun:
        shown = ", ".join(each.id for each in begun[:3]) + (" …" if len(begun) > 3 else "")
        more = "name the Namespace, with -n" if exact else "give more of it"
        raise StoreError(f"{name!r} begins the names of {len(begun)} Remediations: {shown}; {more}")
    for gap in store.gaps:
        if gap.kind is GapKind.BAD_INPUT and name and gap.what.rpartition("/")[2].rpartition(" ")[2].startswith(name):
            raise StoreError(f"{gap.what}: {gap.detail}")
    names = [each.name for each in known]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]}?" if near else f"{len(names)} are known" + (": gpuwatch history" if names else "")
    raise StoreError(f"there is no Remediation {name!r}; {hint}")


def _who_is_it(writer: LiveWriter) -> str:
    """The user name that the API server reports for these credentials; '' if none."""
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview", "metadata": {"name": ""}}
    try:
        answer = writer.create(review)
    except WriteError:
        return ""
    return str(((answer.get("status") or {}).get("userInfo") or {}).get("username", ""))


def _because(remediation: Remediation) -> str:
    if not remediation.history:
        return ""
    last = remediation.history[-1]
    return f" since {last.at:%Y-%m-%d %H:%MZ} ({last.message.rstrip('.')})"


def _tell(text: str) -> None:
    console().print(text, markup=False, soft_wrap=True)


def _tell_pause(store: RemediationStore) -> None:
    pause, _ = _pause(store)
    if pause is not None and pause.paused:
        remark(pause_text(pause, datetime.now(UTC)), "yellow")
