"""The commands `gpuwatch` and `kubectl gpuwatch` and their options. Exit codes: `exit_code.py`.

Only click and the exit codes are imported here; each command imports the rest when it runs, so that `--help` answers at
once.
"""

import io
import sys
import textwrap
from collections.abc import Callable
from datetime import UTC, datetime
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import click

from gpuwatch import __version__
from gpuwatch.app.exit_code import ExitCode

F = TypeVar("F", bound=Callable[..., Any])


def parse_moment(text: str) -> datetime:
    """Parses ISO 8601 with a zone, or seconds since the epoch, into UTC. Raises click.BadParameter for anything else,
    such as a time without a zone.

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
        raise click.BadParameter(f"{text!r} is no time; write 2026-01-31T18:00Z, or seconds since 1970") from None
    if moment.tzinfo is None:
        raise click.BadParameter(f"{text!r} has no time zone; add Z for UTC, or an offset such as +01:00")
    return moment.astimezone(UTC)


def _options(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Several options as one decorator, in the order of --help."""

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _format(*forms: str, text: str = "The form of the output: for people, or for machines.") -> Callable[[F], F]:
    """-o; the first is the default."""
    kinds = click.Choice(forms)
    # Eager, as other options are checked against it.
    return click.option(
        "-o", "--output", "form", type=kinds, default=forms[0], show_default=True, is_eager=True, help=text
    )


def _file(name: str, text: str | None = None, *, dir_okay: bool = True, **more: Any) -> Callable[[F], F]:
    path = click.Path(path_type=Path, dir_okay=dir_okay)
    return click.option(name, type=path, **{"metavar": "FILE", "help": text, **more})


def _state(text: str) -> Callable[[F], F]:
    return _file("--state", text, dir_okay=False)


def _check_output(context: click.Context, _option: click.Parameter, output_file: Path | None) -> Path | None:
    form = context.params["form"]
    if output_file is not None and form not in ("csv", "opencost-csv", "parquet"):
        raise click.UsageError(f"--output-file is for -o csv and -o parquet; for {form}, redirect with > FILE.")
    if output_file is None and form == "parquet" and sys.stdout.isatty():
        raise click.UsageError("A terminal cannot show Parquet; give --output-file FILE.")
    return output_file


_output_file = _file(
    "--output-file",
    "Write CSV or Parquet there.  [default: standard output]",
    dir_okay=False,
    callback=_check_output,
)


def _in_namespace(text: str) -> Callable[[F], F]:
    """-n and -A; the later one of them counts."""
    return _options(
        click.option("-n", "--namespace", default="", metavar="NAME", help=text),
        click.option("-A", "--all-namespaces", "namespace", flag_value="", help="All Namespaces: the default."),
    )


_filter = _options(
    _in_namespace("Only what concerns this Namespace's Pods."),
    click.option(
        "-l", "--selector", default="", metavar="LABELS", help="Only what concerns Pods with these labels: a=b,c!=d,e"
    ),
)
_rows = click.option("--rows", type=click.IntRange(1), default=30, show_default=True, help="Lines of each table.")
_listing = _options(_format("table", "wide", "json", "yaml", "csv", "name", "parquet"), _output_file, _rows)
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
    help="Print each step on stderr; -vv each request too.",
)
_kubeconfig = _options(
    _file("--kubeconfig", "Kubeconfig to use."),
    click.option("--context", metavar="NAME", help="Context of the kubeconfig."),
)
_no_cluster = click.option("--no-cluster", is_flag=True, help="Look at telemetry alone.")
_config = _file("--config", "Settings (YAML).")

_sources = _options(
    _prometheus,
    _file(
        "--telemetry",
        "Recorded telemetry instead: Parquet, an exposition page, OpenMetrics, a folder of them, or a file of "
        "`gpuwatch capture` (which brings its cluster along). May be repeated.",
        multiple=True,
    ),
    _file(
        "--cluster",
        "Recorded cluster: a folder of `kubectl get … -o json|yaml` lists. Else the kubeconfig or the "
        "in-cluster account is used.",
        metavar="DIR",
    ),
    _kubeconfig,
    _no_cluster,
    click.option(
        "--at",
        type=parse_moment,
        metavar="TIME",
        help="Answer as of this moment in the past (2026-01-31T18:00Z).",
    ),
    _config,
    _verbose,
)


_profiles = _options(
    _state(
        "File that keeps the profiles and the advice given: only what is new is fetched then. Without one the "
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

    `run` repeats this, and acts as far as its settings allow: not at all, by default. The other commands change nothing
    in the cluster, except approve, reject, undo, pause, resume and uninstall.
    """


def _command(function: str) -> Callable[[Callable[[], None]], click.Command]:
    """A command that calls this function of a module of `app`, with its options by name, and exits with its answer. An
    expected error is a sentence on stderr."""

    def decorate(described: Callable[[], None]) -> click.Command:
        @cli.command()
        @wraps(described)
        def call(**options: Any) -> None:
            from gpuwatch.app.cli.terminal import reported

            module, _, name = function.rpartition(".")
            sys.exit(reported(getattr(import_module(f"gpuwatch.app.{module}"), name), **options))

        return call

    return decorate


@_command("cli.commands.run_analyze")
@_sources
@_filter
@_listing
@_state("State file of `gpuwatch run` in this cluster: the faults that it remembers count.")
@click.option("--fail-on-findings", is_flag=True, help="Exit with 3 when anything is degraded or idle, for scripts.")
def analyze() -> None:
    """What is degraded or idle, and what to do about it.

    The default table has a line for each finding; `-o wide` adds evidence and reasons, `explain` tells all of one.
    """


@_command("cli.commands.run_explain")
@click.argument("subject", metavar="KIND/NAME")
@_sources
@_profiles
@_in_namespace("Namespace of the Pod or the workload.")
@_format("table", "wide", "json", "yaml")
def explain() -> None:
    """Why something is idle, degraded or on its GPU.

    KIND/NAME: pod/NAME or a workload such as deployment/NAME, with -n or as KIND/NAMESPACE/NAME; device/UUID, of which
    a beginning is enough; node/NAME; gang/ID. `-o wide` shows the rules that found nothing as well.
    """


@_command("cli.sizing_commands.run_recommend")
@_sources
@_profiles
@_in_namespace("Only workloads of this Namespace.")
@click.option(
    "--workload", metavar="KIND/NAMESPACE/NAME", help="One workload in full; NAMESPACE/NAME or its name will do."
)
@_format("table", "wide", "json", "yaml", "csv", "name", "parquet", "patch", text="'patch': YAML for owners to apply.")
@_output_file
@_rows
def recommend() -> None:
    """The GPU that each workload needs, and what that saves.

    A MIG slice, another GPU, a share or fewer GPUs, how fast it would run there, and the exact change. Where the
    evidence does not suffice, why, and what would resolve it.
    """


@_command("cli.sizing_commands.run_mig_plan")
@_sources
@_profiles
@_format(
    "table", "wide", "json", "yaml", "mig-parted", text="'mig-parted' prints the configuration for the MIG manager."
)
@_rows
def mig_plan() -> None:
    """Pack all advised slices into valid MIG geometries.

    GPUs freed, the order of draining, and the configuration for mig-parted.
    """


@_command("cli.slots_command.run_slots")
@_sources
@click.option(
    "--gpus",
    type=click.IntRange(1, 100_000),
    multiple=True,
    help="GPUs of a gang. May be repeated.  [default: 1 2 4 8 16 32 64]",
)
@click.option(
    "--by", metavar="LABEL", multiple=True, help="Show the slots in each value of this Node label. May be repeated."
)
@click.option("--tolerate", metavar="KEY", multiple=True, help="A taint that the Pods tolerate. May be repeated.")
@_format("table", "wide", "json", "yaml", "csv", "parquet")
@_output_file
@_rows
def slots() -> None:
    """How many more gangs of each size would start now.

    Of each GPU model: anywhere, and with all Pods in one NVLink domain, rack or zone. Free GPUs that are in none of
    these gangs have the reason beside them, such as too little CPU.
    """


@_command("cli.whatif_command.run_whatif")
@click.argument("pod", required=False)
@_sources
@click.option("-n", "--namespace", default="", metavar="NAME", help="Namespace of the Pod.")
@click.option("--gpus", type=click.IntRange(1, 100_000), help="GPUs of a request that does not exist yet.")
@click.option("--model", default="", metavar="NAME", help="Its GPU model, or a part of the name.")
@click.option("--pods", type=click.IntRange(1, 10_000), help="Its Pods.  [default: as few as Nodes allow]")
@click.option(
    "--cpu", type=click.FloatRange(0), metavar="CORES", help="Of each Pod.  [default: as the median Pod asks for]"
)
@click.option("--memory-gib", type=click.FloatRange(0), metavar="GIB", help="Of each Pod.  [default: likewise]")
@click.option("--tolerate", metavar="KEY", multiple=True, help="A taint that its Pods tolerate. May be repeated.")
@_format("table", "wide", "json", "yaml")
@_rows
def whatif() -> None:
    """Why a Pod waits, and what would place it.

    Of POD, as NAMESPACE/NAME, with its gang; or of a new request: `--gpus 16 --model H100`. Tells on which Nodes there
    is room; else why not, and which single changes would make it, each tried by the landing: a taint to tolerate, less
    CPU, a Node to uncordon, idle work to release, Pods to move. Changes nothing.
    """


@_command("cli.ledger_command.run_ledger")
@_sources
@_state(
    "State that the ledger is kept beside, in FILE.ledger: only hours that are new are read then. Hours are kept for "
    "eight days, days by team, model and row for 400. Without one the whole period is read, every time."
)
@click.option("--days", type=click.FloatRange(0.1, 400), default=7.0, show_default=True, help="Length of the period.")
@click.option(
    "--by",
    type=click.Choice(["row", "team", "workload", "image", "node", "model", "pool", "hour"]),
    default="row",
    show_default=True,
    help="What the table sums by; a team is a Namespace.",
)
@click.option(
    "--group",
    type=click.Choice(["working", "starting", "idle", "free", "out"]),
    help="Show the rows of this group alone, each in a column: '--by image --group starting' tells what starts slowly.",
)
@_format(
    *("table", "wide", "json", "csv", "parquet", "opencost-csv"),
    text="'csv' has each hour; 'opencost-csv' has a day of each workload, in the columns of OpenCost's export.",
)
@_output_file
@_rows
def ledger() -> None:
    """Where every GPU-hour went.

    Each hour of each GPU is in exactly one row: worked, allocated and idle, starting, free, or out of service. The rows
    add up to all hours. What cannot be known has a column of its own.
    """


@_command("cli.sizing_commands.run_report")
@_sources
@click.option("--from", "start", type=parse_moment, metavar="TIME", help="Begin; by default seven days before the end.")
@click.option("--to", "end", type=parse_moment, metavar="TIME", help="End; by default now, or --at.")
@click.option(
    "--output-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("reports"),
    show_default=True,
    metavar="DIR",
    help="Each report becomes a folder in it: HTML, Markdown, JSON, CSV; what could not be sent waits there.",
)
@click.option("--send/--no-send", default=True, show_default=True, help="To the destinations of the settings.")
@_state("File that keeps the profiles and the advice given.")
@_format("summary", "markdown", "json", "parquet", text="Printed form; 'parquet' adds Parquet to the folder's files.")
def report() -> None:
    """Write the weekly report, and send it.

    Allocation against use, money wasted and savable, the changes worth most, per team and workload; as one HTML file,
    Markdown, JSON and CSV, and sent to where the settings say.
    """


@_command("cli.commands.run_doctor")
@_sources
@_format("table", "wide", "json", "yaml")
@_file("--csv-out", "Write the exporter's counter CSV there.")
@click.option(
    "--allow-limited", is_flag=True, help="Exit with 0 although rules lack signals, if all sources can be read."
)
def doctor() -> None:
    """What is connected, and which rule lacks which signal.

    -o wide prints the lines of the exporter's configuration that enable what is missing. Exit code: 0 all rules have
    what they can use, 1 a source cannot be read, 4 a rule lacks signals.
    """


@_command("cli.commands.run_capture")
@_sources
@_file("--output-file", default=Path("gpuwatch-capture.json.gz"), show_default=True)
@click.option("--pseudonyms", is_flag=True, help="Replace names of Nodes, Pods, namespaces, owners, images and GPUs.")
def capture() -> None:
    """Write all facts of one moment to a file.

    Telemetry statistics and cluster state, for a colleague, a bug report or a replay.
    """


@_command("cli.demo.run_demo")
@_file("--folder", "Where it is kept.", metavar=None, default=Path("out/demo"), show_default=True)
def demo() -> None:
    """Show a recorded simulated fleet; no cluster is needed.

    What gpuwatch finds of the planted faults and idle allocations, and what it misses.
    """


@_command("controller.run.run_controller")
@_prometheus
@_kubeconfig
@_no_cluster
@_file("--config", "Settings (YAML); watched for changes.")
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Lines on stderr."
)
def run() -> None:
    """Watch the fleet until SIGTERM: the controller.

    It analyses the fleet every minute, proposes and does what the modes of the settings allow, keeps profiles, and
    reports weekly. /healthz, /readyz and /metrics are on port 8080. Several replicas elect a leader by a Lease.
    SIGHUP, or a change of the file, reloads the settings.
    """


_remediations = _options(
    _kubeconfig,
    click.option(
        "--controller-namespace", metavar="NAME", help="Where gpuwatch runs; the pause is there.  [default: gpuwatch]"
    ),
    _config,
    _verbose,
)


_within = _in_namespace(
    "Only Remediations of this Namespace's workloads; rights in it are enough. Else all, those of Nodes too."
)
_decision = _options(
    click.argument("name"),
    _remediations,
    _within,
    click.option("--dry-run", is_flag=True, help="Have the API server judge the request, and store nothing."),
)


@_command("cli.remediation_commands.run_plan")
@_sources
@_filter
@_listing
def plan() -> None:
    """Which actions would be taken now, which not, and why.

    Nothing is done by this command. `-o wide` has every reason, and what weighs on the budgets.
    """


@_command("cli.remediation_commands.run_history")
@click.argument("name", required=False, metavar="[NAME]")
@_remediations
@_within
@click.option("--open", "open_only", is_flag=True, help="Only those that have not ended.")
@_listing
def history() -> None:
    """What was proposed, approved, done and undone.

    With a NAME, or its beginning, one of them in full.
    """


@_command("cli.remediation_commands.run_approve")
@_decision
@click.option("--by", metavar="WHO", help="Who approves, for the record; the cluster accepts your user name only.")
def approve() -> None:
    """Approve a proposal.

    Owners are notified, it is checked again, done, and verified.
    """


_finding_correct = click.option(
    "--finding-correct",
    is_flag=True,
    help="The finding was right; without this flag, the decision counts against its rule.",
)


@_command("cli.remediation_commands.run_reject")
@_decision
@_finding_correct
def reject() -> None:
    """Reject a proposal: it is never done.

    This also stops an action whose owners were already notified.
    """


@_command("cli.remediation_commands.run_undo")
@_decision
@_finding_correct
def undo() -> None:
    """Undo an action of a Remediation.

    A released workload is restored as it was, a taint is removed.
    """


@_command("cli.remediation_commands.run_pause")
@_remediations
@click.option("--reason", default="", metavar="TEXT", help="Why; all commands show it.")
@click.option("--by", metavar="WHO", help="Who; by default your name in the cluster.")
@click.option("--all", "everything", is_flag=True, help="Stop undoing too; a person is called instead.")
def pause() -> None:
    """Stop all actions of all replicas, from the next write on.

    Actions that are due to be undone are still undone, unless --all is set.
    """


@_command("cli.remediation_commands.run_resume")
@_remediations
def resume() -> None:
    """End the pause."""


@_command("cli.uninstall.run_uninstall")
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
def uninstall() -> None:
    """Undo all open actions, and delete all that gpuwatch made.

    Pauses gpuwatch and deletes Remediations, marks, profiles and state; says what is left, and why. Without
    --scale-down, scale the Deployment to 0 first. You can interrupt it and run it again. Exit code: 1 if something
    is left.
    """


@cli.command()
def schema() -> None:
    """The JSON Schema of `analyze -o json`."""
    from gpuwatch.say.machine import analysis_schema, to_json

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
