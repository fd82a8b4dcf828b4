"""`gpuwatch uninstall`: gives back what is held, and takes away what gpuwatch keeps in the cluster."""

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import click
from rich.text import Text

from gpuwatch.act.execute.advance import ExecutorPolicies
from gpuwatch.act.execute.executor import Executor, orphans
from gpuwatch.act.execute.policy import ExecutePolicy
from gpuwatch.act.execute.sweep import orphan
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.act.remediations import ConflictError, RefusedError, RemediationStore
from gpuwatch.app.cli.remediation_commands import VERSION, opened_store
from gpuwatch.app.cli.terminal import print_answer, remark
from gpuwatch.app.controller.leader import Election, NotLeadingError
from gpuwatch.app.exit_code import ExitCode
from gpuwatch.app.settings import load_settings
from gpuwatch.facts.frameworks import keys, kueue
from gpuwatch.facts.frameworks.objects import ref_of
from gpuwatch.facts.model.decision import Snapshot
from gpuwatch.facts.model.remediation import ObjectRef, Phase
from gpuwatch.sources.kube.kinds import LISTED_OWNERS, NODE
from gpuwatch.sources.kube.live import api_client
from gpuwatch.sources.kube.live_writer import LiveWriter
from gpuwatch.sources.kube.writer import ClusterWriter, Failure, WriteError, listed
from gpuwatch.sources.store import StoreError
from gpuwatch.sources.store.custom_resources import API_VERSION, CHECKPOINT_KIND, GROUP, PROFILE_KIND

_RETRY_SECONDS = 5
"""First wait after a failed undo, a quarter of the longest: a person waits for the answer."""

_REFUSED_SECONDS = 20.0
"""How long all that is left has to be refused until that is the answer: a role takes effect some time after it is
bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UninstallAnswer:
    """What `uninstall -o json` prints. left: what stays, and why; in a dry run what would go."""

    version: int
    dry_run: bool
    left: tuple[str, ...]


def run_uninstall(form: str, dry_run: bool, yes: bool, crds: bool, timeout: int, **options: Any) -> int:
    settings, end = load_settings(options["config"]), time.monotonic() + timeout
    store, person = opened_store(options, settings)
    namespace = options["controller_namespace"] or settings.namespace
    if dry_run:
        known, policy = store.all(), settings.execute
        found = orphans(person, _marked(person, policy), known, policy)
        told = (str(each.target) if each.request else each.reason for each in found)
        return _told(form, (*(f"{each.id} ({each.phase})" for each in known), *told), dry_run=True)
    account = options["account"] or _account(person)
    if not yes:
        click.confirm("Give back what gpuwatch holds, and delete its Remediations, profiles and state?", abort=True)
    if store.pause("gpuwatch uninstall", "it is being uninstalled", datetime.now(UTC)).everything:
        raise StoreError("everything is paused, giving back too: `gpuwatch resume` first")
    ending_seconds = _scaled_down(person, namespace, options["scale_down"]) * settings.run.shutdown_timeout_seconds
    client: Any = api_client(options["kubeconfig"], options["context"])
    client.set_default_header("Impersonate-User", f"system:serviceaccount:{account}")
    run = settings.run
    election = Election(
        LiveWriter(client), namespace, f"uninstall-{uuid.uuid4()}",
        lease_duration_seconds=run.lease_duration_seconds,
    )  # fmt: skip
    stop = threading.Event()
    renewing = threading.Thread(target=election.run, args=(stop,), name="lease", daemon=True)
    renewing.start()
    try:
        _until(lambda: election.leads, 2 * run.lease_duration_seconds + ending_seconds)
        if not election.leads:
            raise StoreError(
                f"{election.holder or 'no replica'} leads, and uninstall may not act beside it: "
                f"kubectl -n {namespace} scale deployment gpuwatch --replicas=0, then run it again"
            )
        writer = LiveWriter(client, lease_check=election.check_lease, instance="gpuwatch-uninstall")
        policies = ExecutorPolicies(settings.plan, _impatient(settings.execute))
        executor = Executor(
            RemediationStore(writer, namespace), writer, LiveWriter(client, dry_run=True),
            lambda: PlanFacts(snapshot=Snapshot(at=datetime.now(UTC))), lambda _: None, policies,
        )  # fmt: skip
        left = take_away(executor, max(end - time.monotonic(), _REFUSED_SECONDS))
        kept = [each for kind in (PROFILE_KIND, CHECKPOINT_KIND) for each in person.objects(API_VERSION, kind)]
        if crds and not left:  # not before: a definition takes its Remediations along
            definitions = person.objects("apiextensions.k8s.io/v1", "CustomResourceDefinition")
            kept += [each for each in definitions if each["spec"]["group"] == GROUP]
        refs = [ref_of(each) for each in kept]
        if options["scale_down"]:
            refs.append(ObjectRef("v1", "Pod", f"{options['scale_down']}-doctor", namespace))
        left = (*left, *_deleted(person, refs))
    except (WriteError, NotLeadingError) as error:
        raise StoreError(f"it is not finished; run it again: {error}") from error
    finally:
        stop.set()
        renewing.join()
        election.release()
    if not left:
        person.delete(election.lease)
    return _told(form, left)


def take_away(executor: Executor, timeout_seconds: float) -> tuple[str, ...]:
    """Undo and delete all Remediations, and take back the marks that are left. Returns what is left and why. It ends
    early where everything that is left is refused. It may be ended anywhere and begun again. Raises StoreError and
    WriteError."""
    store, told, wanted_at = executor.store, -1, time.monotonic()
    end = wanted_at + timeout_seconds
    _without_waiting(store)
    while True:
        refused = store.delete_all()
        for at in executor.due(datetime.now(UTC)):
            try:
                executor.run_once(at, datetime.now(UTC))
            except StoreError as error:
                refused[at] = str(error)
        store.all()
        store.catch_up()
        known = store.all()
        if len(known) != told:
            remark(f"{(told := len(known))} Remediations are left")
        failed = {at: error for at, error in executor.failures.items() if at not in refused}
        if not all(each.id in refused or _is_refused(failed.get(each.id)) for each in known):
            wanted_at = time.monotonic()
        if not (known or store.gaps) or time.monotonic() >= min(end, wanted_at + _REFUSED_SECONDS):
            break
        time.sleep(1.0)
    why = {at: error.message for at, error in failed.items()} | refused
    left = [
        f"Remediation {each.id} is {each.phase}: "
        f"{why.get(each.id) or (each.history[-1].message if each.history else 'it was not deleted in time')}"
        for each in known
    ]
    left += [f"{gap.what}: {gap.detail}" for gap in store.gaps]
    swept: list[str] = []
    while True:
        marked = _marked(executor.writer, executor.policies.execute)
        found = executor.sweep(marked, known, {}, datetime.now(UTC), timedelta())
        was, swept = swept, [each.reason for each in found]
        if swept == was:
            return (*left, *swept)


def _without_waiting(store: RemediationStore) -> None:
    """Undoing that failed before is tried at once: its cause may have been repaired, and its wait may be long. A write
    that may still be under way is waited for."""
    for each in store.all():
        begun = each.next_step is not None and each.next_step.begun_at is not None
        if each.phase is Phase.UNDOING and each.next_at is not None and not begun:
            with suppress(ConflictError, RefusedError):
                store.save(replace(each, next_at=None))


def _impatient(policy: ExecutePolicy) -> ExecutePolicy:
    return replace(
        policy,
        retry_seconds=min(_RETRY_SECONDS, policy.retry_seconds),
        retry_max_seconds=min(4 * _RETRY_SECONDS, policy.retry_max_seconds),
    )


def _deleted(person: ClusterWriter, refs: Iterable[ObjectRef]) -> Iterator[str]:
    """Deletes them. Yields those that could not be deleted, and why."""
    for ref in refs:
        try:
            person.delete(ref)
        except WriteError as error:
            if error.failure is not Failure.NOT_FOUND:
                yield f"{ref} was not deleted: {error.message}"


def _is_refused(error: WriteError | None) -> bool:
    return error is not None and error.failure in (Failure.FORBIDDEN, Failure.INVALID)


def _scaled_down(person: ClusterWriter, namespace: str, deployment: str | None) -> bool:
    """Whether the Deployment was told to end its Pods; one that is gone has none."""
    if not deployment:
        return False
    try:
        at = ObjectRef("apps/v1", "Deployment", deployment, namespace)
        person.patch(at, {"spec": {"replicas": 0}}, subresource="scale")
    except WriteError as error:
        if error.failure is not Failure.NOT_FOUND:
            raise
        return False
    return True


def _account(person: ClusterWriter) -> str:
    """NAMESPACE:NAME of the ServiceAccount whom the bindings name by which the guardrails hold gpuwatch."""
    bindings = person.objects("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", labels=keys.ACCOUNT)
    subjects = (subject for each in bindings for subject in each.get("subjects") or ())
    found = {f"{each['namespace']}:{each['name']}" for each in subjects if each["kind"] == "ServiceAccount"}
    if len(found) != 1:
        raise StoreError(
            f"whose rights to use is not known: the ClusterRoleBindings with the label {keys.ACCOUNT} name "
            f"{', '.join(sorted(found)) or 'no ServiceAccount'}. Say --account NAMESPACE:NAME"
        )
    return found.pop()


def _marked(writer: ClusterWriter, policy: ExecutePolicy) -> Iterator[ObjectRef]:
    for kind in (NODE, *LISTED_OWNERS.values(), kueue.WORKLOAD):
        for found in listed(writer, kind.api_versions, kind.kind):
            if orphan(found, policy.hand_off_label) is not None:
                yield ref_of(found)


def _until(done: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not done() and time.monotonic() < end:
        time.sleep(0.2)


def _told(form: str, left: tuple[str, ...], dry_run: bool = False) -> int:
    said = "\n".join(left) or "Nothing of gpuwatch is left but its manifests and the pause."
    print_answer(UninstallAnswer(version=VERSION, dry_run=dry_run, left=left), form, lambda: Text(said))
    return ExitCode.FAILED if left and not dry_run else ExitCode.OK
