"""The commands `gpuwatch` and `kubectl gpuwatch` and their options. Exit codes: `exit_code.py`.

Only click and the exit codes are imported here; each command imports the rest when it runs, so that `--help` answers at
once.
"""

import io
import sys
import textwrap
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpuwatch import __version__
from gpuwatch.app.exit_code import ExitCode

if TYPE_CHECKING:
    from gpuwatch.app.scope import Scope

F = TypeVar("F", bound=Callable[..., Any])


class TimeParameter(click.ParamType[datetime]):
    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            return parse_moment(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def parse_moment(text: str) -> datetime:
    """Parses ISO 8601 with a zone, or seconds since the epoch, into UTC. Raises ValueError for anything else, such as a
    time without a zone (whose six o'clock would it be?).

    >>> parse_moment("2026-01-31T18:00Z").isoformat()
    '2026-01-31T18:00:00+00:00'
    >>> parse_moment("1773114089").isoformat()
    '2026-03-10T03:41:29+00:00'
    """
    try:
        return datetime.fromtimestamp(float(text), UTC)
    except (ValueError, OverflowError, OSError):
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no time; write it as 2026-01-31T18:00Z or in seconds since 1970") from None
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone; add Z for UTC or an offset such as +01:00")
    return moment.astimezone(UTC)


def _options(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Several options as one decorator, in the order of --help."""

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _format(*forms: str, text: str = "For people or for machines.") -> Callable[[F], F]:
    """-o; the first is the default."""
    kinds = click.Choice(forms)
    return click.option("-o", "--output", "form", type=kinds, default=forms[0], show_default=True, help=text)


def _state(text: str) -> Callable[[F], F]:
    return click.option("--state", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help=text)


def _file(name: str, text: str) -> Callable[[F], F]:
    return click.option(name, type=click.Path(path_type=Path), metavar="FILE", help=text)


_output_file = click.option(
    "--output-file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write CSV or Parquet there.  [default: standard output]",
)


def _check_output(form: str, output_file: Path | None) -> None:
    if output_file is not None and form not in ("csv", "parquet"):
        raise click.UsageError(f"--output-file is for -o csv and -o parquet; for {form}, redirect with > FILE.")
    if output_file is None and form == "parquet" and sys.stdout.isatty():
        raise click.UsageError("A terminal cannot show Parquet; give --output-file FILE.")


_everywhere = click.option("-A", "--all-namespaces", is_flag=True, help="All Namespaces, as without -n.")
_filter = _options(
    click.option("-n", "--namespace", metavar="NAME", help="Only what concerns this Namespace's Pods."),
    _everywhere,
    click.option("-l", "--selector", metavar="LABELS", help="Only what concerns Pods with these labels: a=b,c!=d,e"),
)


def _scope(namespace: str | None, selector: str | None = None, *, all_namespaces: bool) -> "Scope":
    from gpuwatch.app.scope import Scope

    if namespace and all_namespaces:
        raise click.UsageError("-n and -A contradict each other; give one of them.")
    try:
        return Scope(namespace or "", selector or "")
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="-l") from error


_rows = click.option("--rows", type=click.IntRange(1), default=30, show_default=True, help="Lines of each table.")
_prometheus = click.option("--prometheus", metavar="URL", help="Prometheus, Thanos, Mimir or VictoriaMetrics to query.")


def _set_verbosity(_context: click.Context, _option: click.Parameter, count: int) -> None:
    if count:
        from gpuwatch.app.logs import log_to_stderr

        log_to_stderr("text", verbosity=count)


_verbose = click.option(
    "-v",
    "--verbose",
    count=True,
    expose_value=False,
    callback=_set_verbosity,
    help="Tell each step on stderr; -vv each request too.",
)
_kubeconfig = _options(
    _file("--kubeconfig", "Kubeconfig to use."),
    click.option("--context", metavar="NAME", help="Context of the kubeconfig."),
)
_no_cluster = click.option("--no-cluster", is_flag=True, help="Look at telemetry alone.")
_config = _file("--config", "Settings (YAML).")

_sources = _options(
    _prometheus,
    click.option(
        "--telemetry",
        type=click.Path(path_type=Path),
        multiple=True,
        metavar="FILE",
        help="Recorded telemetry instead: Parquet, an exposition page, OpenMetrics, a folder of them, or a file of "
        "`gpuwatch capture` (which brings its cluster along). May be repeated.",
    ),
    click.option(
        "--cluster",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Recorded cluster: a folder of `kubectl get … -o json|yaml` lists. Else the kubeconfig or the "
        "in-cluster account is used.",
    ),
    _kubeconfig,
    _no_cluster,
    click.option(
        "--at",
        type=TimeParameter(),
        metavar="TIME",
        help="Any moment in the past as if it were now (2026-01-31T18:00Z).",
    ),
    _config,
    _verbose,
)


_profiles = _options(
    _state(
        "SQLite file that keeps the profiles and the advice given: only what is new is fetched then. Without one the "
        "whole history is, every time. `explain` counts the faults that `run` remembers there."
    ),
    click.option(
        "--days",
        type=click.FloatRange(0.1, 60),
        default=7.0,
        show_default=True,
        help="How far back to look where nothing is kept yet.",
    ),
)


def _exit_codes() -> str:
    lines = (
        textwrap.fill(f"{int(each):<4} {each.meaning}", 78, initial_indent="  ", subsequent_indent=" " * 7)
        for each in ExitCode
    )
    return "\b\nExit codes:\n" + "\n".join(lines)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}, epilog=_exit_codes())
@click.version_option(__version__, prog_name="gpuwatch")
def cli() -> None:
    """Finds degraded GPUs, idle allocations and workloads on the wrong GPU in a Kubernetes cluster, shows its evidence,
    and proposes what to do.

    `run` goes on doing so, and does what its settings allow: nothing, by default. All other commands change nothing,
    but for those that decide about what `run` proposes: approve, reject, undo, pause, resume and uninstall.
    """


@cli.command()
@_sources
@_filter
@_format("table", "wide", "json", "yaml", "csv", "name", "parquet")
@_output_file
@_rows
@_state("State file of `gpuwatch run` in this cluster: the faults that it remembers count.")
@click.option("--fail-on-findings", is_flag=True, help="Exit with 3 when anything is degraded or idle, for scripts.")
def analyze(
    form: str,
    output_file: Path | None,
    rows: int,
    fail_on_findings: bool,
    state: Path | None,
    namespace: str | None,
    all_namespaces: bool,
    selector: str | None,
    **sources: Any,
) -> None:
    """What is degraded or idle, and what to do about it.

    The default table has a line for each finding; `-o wide` adds evidence and reasons, `explain` tells all of one.
    """
    from gpuwatch.app.commands import run_analyze

    _check_output(form, output_file)
    scope = _scope(namespace, selector, all_namespaces=all_namespaces)
    sys.exit(run_analyze(form, output_file, rows, fail_on_findings, state, scope, sources))


@cli.command()
@click.argument("subject", metavar="KIND/NAME")
@_sources
@_profiles
@click.option("-n", "--namespace", metavar="NAME", help="Namespace of the Pod or the workload.")
@_format("table", "wide", "json", "yaml")
def explain(subject: str, form: str, state: Path | None, days: float, namespace: str | None, **sources: Any) -> None:
    """Why something is idle, degraded or on its GPU.

    KIND/NAME: pod/NAME or a workload such as deployment/NAME, with -n or as KIND/NAMESPACE/NAME; device/UUID, of which
    a beginning is enough; node/NAME; gang/ID. `-o wide` shows the rules that found nothing as well.
    """
    from gpuwatch.app.commands import run_explain

    sys.exit(run_explain(subject, namespace or "", form, state, days, sources))


@cli.command()
@_sources
@_profiles
@click.option("-n", "--namespace", metavar="NAME", help="Only workloads of this Namespace.")
@_everywhere
@click.option("--workload", metavar="KIND/NAMESPACE/NAME", help="One workload in full; its name alone will do.")
@_format(
    "table",
    "wide",
    "json",
    "yaml",
    "csv",
    "name",
    "parquet",
    "patch",
    text="'patch': what owners would change, as YAML.",
)
@_output_file
@_rows
def recommend(
    form: str,
    output_file: Path | None,
    rows: int,
    namespace: str | None,
    all_namespaces: bool,
    workload: str | None,
    state: Path | None,
    days: float,
    **sources: Any,
) -> None:
    """The GPU that each workload needs, and what that saves.

    A MIG slice, another GPU, a share or fewer GPUs, how fast it would run there, and the exact change. Where the
    evidence does not suffice, why, and what would resolve it.
    """
    from gpuwatch.app.sizing_commands import run_recommend

    _check_output(form, output_file)
    _scope(namespace, all_namespaces=all_namespaces)
    sys.exit(run_recommend(form, output_file, rows, namespace, workload, state, days, sources))


@cli.command("mig-plan")
@_sources
@_profiles
@_format(
    "table", "wide", "json", "yaml", "mig-parted", text="'mig-parted' prints the configuration for the MIG manager."
)
@_rows
def mig_plan(form: str, rows: int, state: Path | None, days: float, **sources: Any) -> None:
    """Pack all advised slices into valid MIG geometries.

    GPUs freed, the order of draining, and the configuration for mig-parted.
    """
    from gpuwatch.app.sizing_commands import run_mig_plan

    sys.exit(run_mig_plan(form, rows, state, days, sources))


@cli.command()
@_sources
@click.option(
    "--from", "start", type=TimeParameter(), metavar="TIME", help="Begin; by default seven days before the end."
)
@click.option("--to", "end", type=TimeParameter(), metavar="TIME", help="End; by default now, or --at.")
@click.option(
    "--output-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("reports"),
    show_default=True,
    metavar="DIR",
    help="Each report becomes a folder in it: HTML, Markdown, JSON, CSV; what could not be sent waits there.",
)
@click.option("--send/--no-send", default=True, show_default=True, help="To the destinations of the settings.")
@_state("SQLite file that keeps the profiles and the advice given.")
@_format("summary", "markdown", "json", "parquet", text="Printed form; 'parquet' adds Parquet to the folder's files.")
def report(
    form: str,
    start: datetime | None,
    end: datetime | None,
    output_dir: Path,
    send: bool,
    state: Path | None,
    **sources: Any,
) -> None:
    """Write the weekly report, and send it.

    Allocation against use, money wasted and savable, the changes worth most, per team and workload; as one HTML file,
    Markdown, JSON and CSV, and sent to where the settings say.
    """
    from gpuwatch.app.sizing_commands import run_report

    sys.exit(run_report(form, start, end, output_dir, send, state, sources))


@cli.command()
@_sources
@_format("table", "wide", "json", "yaml")
@_file("--csv-out", "Write the exporter's counter CSV there.")
@click.option("--allow-limited", is_flag=True, help="Exit with 0 where rules lack signals and all sources can be read.")
def doctor(form: str, csv_out: Path | None, allow_limited: bool, **sources: Any) -> None:
    """What is connected, and which rule lacks which signal.

    Prints the lines of the exporter's configuration that enable what is missing. Exit code: 0 all rules have what
    they can use, 1 a source cannot be read, 4 a rule lacks signals.
    """
    from gpuwatch.app.commands import run_doctor

    sys.exit(run_doctor(form, csv_out, sources, allow_limited=allow_limited))


@cli.command()
@_sources
@click.option(
    "--output-file",
    type=click.Path(path_type=Path),
    default=Path("gpuwatch-capture.json.gz"),
    show_default=True,
    metavar="FILE",
)
@click.option("--pseudonyms", is_flag=True, help="Replace names of Nodes, Pods, namespaces, owners, images and GPUs.")
def capture(output_file: Path, pseudonyms: bool, **sources: Any) -> None:
    """Write all that is known of a moment to one file.

    Telemetry statistics and cluster state, for a colleague, a bug report or a replay.
    """
    from gpuwatch.app.commands import run_capture

    sys.exit(run_capture(output_file, pseudonyms, sources))


@cli.command()
@click.option("--seed", type=int, default=7, show_default=True, help="Another fleet with each seed.")
@click.option("--gpus", type=click.IntRange(8, 4096), default=64, show_default=True)
@click.option("--days", type=click.FloatRange(0.5, 60), default=7.0, show_default=True)
@click.option(
    "--folder", type=click.Path(path_type=Path), default=Path("out/demo"), show_default=True, help="Where it is kept."
)
def demo(seed: int, gpus: int, days: float, folder: Path) -> None:
    """Show a week of a simulated fleet.

    What gpuwatch finds of the planted faults and idle allocations, and what it misses.
    """
    from gpuwatch.app.demo import run_demo

    sys.exit(run_demo(seed, gpus, days, folder))


@cli.command()
@_prometheus
@_kubeconfig
@_no_cluster
@_file("--config", "Settings (YAML); watched for changes.")
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Lines on stderr."
)
def run(log_format: Any, **sources: Any) -> None:
    """Watch the fleet until SIGTERM: the controller.

    It analyses the fleet every minute, proposes and does what the modes of the settings allow, keeps profiles, and
    reports weekly. /healthz, /readyz and /metrics are on port 8080. Several replicas elect a leader by a Lease.
    SIGHUP, or a change of the file, reloads the settings.
    """
    from gpuwatch.app.run import run_controller

    sys.exit(run_controller(log_format, {**sources, "telemetry": (), "cluster": None, "at": None}))


_remediations = _options(
    _kubeconfig,
    click.option(
        "--controller-namespace", metavar="NAME", help="Where gpuwatch runs; the pause is there.  [default: gpuwatch]"
    ),
    _config,
    _verbose,
)


_within = click.option(
    "-n",
    "--namespace",
    metavar="NAME",
    help="Only those for workloads of this Namespace, for which rights in it will do; else all, also for Nodes.",
)


@cli.command()
@_sources
@_filter
@_format("table", "wide", "json", "yaml", "csv", "name", "parquet")
@_output_file
@_rows
def plan(
    form: str,
    output_file: Path | None,
    rows: int,
    namespace: str | None,
    all_namespaces: bool,
    selector: str | None,
    **sources: Any,
) -> None:
    """What would be done now, and what not and why.

    Nothing is done by this command. `-o wide` has every reason, and what weighs on the budgets.
    """
    from gpuwatch.app.remediation_commands import run_plan

    _check_output(form, output_file)
    sys.exit(run_plan(form, output_file, rows, _scope(namespace, selector, all_namespaces=all_namespaces), sources))


@cli.command()
@click.argument("name", required=False, metavar="[NAME]")
@_remediations
@_within
@_everywhere
@click.option("--open", "open_only", is_flag=True, help="Only those to which something may still happen.")
@_format("table", "wide", "json", "yaml", "csv", "name", "parquet")
@_output_file
@_rows
def history(
    name: str | None,
    form: str,
    output_file: Path | None,
    rows: int,
    open_only: bool,
    all_namespaces: bool,
    **where: Any,
) -> None:
    """What was proposed, approved, done and undone.

    With a NAME, or its beginning, one of them in full.
    """
    from gpuwatch.app.remediation_commands import run_history

    _check_output(form, output_file)
    _scope(where["namespace"], all_namespaces=all_namespaces)
    sys.exit(run_history(name, form, output_file, rows, open_only, where))


@cli.command()
@click.argument("name")
@_remediations
@_within
@click.option("--by", metavar="WHO", help="Who approves, for the record; a cluster takes its own name for you alone.")
def approve(name: str, by: str | None, **where: Any) -> None:
    """Approve a proposal.

    Owners are notified, it is checked again, done, and verified.
    """
    from gpuwatch.app.remediation_commands import run_approve

    sys.exit(run_approve(name, by, where))


_finding_correct = click.option(
    "--finding-correct",
    is_flag=True,
    help="The GPU was idle or degraded as was said; without it, this counts against the rule that said so.",
)


@cli.command()
@click.argument("name")
@_remediations
@_within
@_finding_correct
def reject(name: str, finding_correct: bool, **where: Any) -> None:
    """Reject a proposal: it is never done.

    Also an action of which owners were notified already.
    """
    from gpuwatch.app.remediation_commands import run_reject

    sys.exit(run_reject(name, finding_correct, where))


@cli.command()
@click.argument("name")
@_remediations
@_within
@_finding_correct
def undo(name: str, finding_correct: bool, **where: Any) -> None:
    """Have what was done taken back.

    A released workload is restored as it was, a taint is removed.
    """
    from gpuwatch.app.remediation_commands import run_undo

    sys.exit(run_undo(name, finding_correct, where))


@cli.command()
@_remediations
@click.option("--reason", default="", metavar="TEXT", help="Why; all commands show it.")
@click.option("--by", metavar="WHO", help="Who; by default your name in the cluster.")
@click.option("--all", "everything", is_flag=True, help="Stop giving back too; a person is called for what stands.")
def pause(reason: str, by: str | None, everything: bool, **where: Any) -> None:
    """Stop every replica, from its next write on.

    What gpuwatch took is still given back, but for --all.
    """
    from gpuwatch.app.remediation_commands import run_pause

    sys.exit(run_pause(reason, by, everything, where))


@cli.command()
@_remediations
def resume(**where: Any) -> None:
    """End the pause."""
    from gpuwatch.app.remediation_commands import run_resume

    sys.exit(run_resume(where))


@cli.command()
@_remediations
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Say what would go, and change nothing.")
@click.option("--crds", is_flag=True, help="Delete the custom resource definitions too, once nothing is left.")
@click.option("--timeout", type=click.IntRange(1), default=900, show_default=True, metavar="SECONDS")
@click.option("--account", metavar="NAMESPACE:NAME", help="Whose rights to use.  [default: as bound]")
@click.option(
    "--scale-down",
    metavar="DEPLOYMENT",
    help="Scale gpuwatch's Deployment to 0 first; delete the Pod DEPLOYMENT-doctor too.",
)
@_format("table", "json", "yaml")
def uninstall(form: str, yes: bool, dry_run: bool, crds: bool, timeout: int, **where: Any) -> None:
    """Give back all that is held, and delete every trace.

    Pauses gpuwatch and deletes Remediations, marks, profiles and state; says what is left, and why. Without
    --scale-down, scale the Deployment to 0 first. It may be ended anywhere and run again. Exit code: 1 where
    something is left.
    """
    from gpuwatch.app.uninstall import run_uninstall

    sys.exit(run_uninstall(form, dry_run, yes, crds, timeout, where))


@cli.command()
def schema() -> None:
    """The JSON Schema of `analyze -o json`."""
    from gpuwatch.report.machine import analysis_schema, to_json

    click.echo(to_json(analysis_schema()))


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a Latin-1 terminal shows ? for a character that it lacks
    try:
        sys.exit(cli.main(prog_name="gpuwatch", standalone_mode=False))
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        click.echo("gpuwatch: interrupted", err=True)
        sys.exit(ExitCode.INTERRUPTED)


if __name__ == "__main__":
    main()
