"""What is imported is declared, explained, and not imported before it is needed; one version."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from detect.test_fault_memory import quiet
from gpuwatch import __version__
from gpuwatch.app.cli import main
from gpuwatch.sources.collect.snapshot_file import save_snapshot
from parts.processes import free_port

ROOT = Path(__file__).parents[2]
DECLARED = {
    re.split(r"[<>=!~ \[;]", line)[0]
    for line in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
}
DATA = {"tzdata"}  # read by the standard library's zoneinfo, imported by nothing

SETTINGS = {"apscheduler", "msgspec", "numpy", "pydantic", "pydantic-settings", "pyyaml"}
TABLES = SETTINGS | {"rich"}
CLUSTER = TABLES | {"kubernetes", "requests", "tenacity", "urllib3"}
# The modules that the commands load, and all that these import of the dependencies before a source is opened.
AT_START = {
    "cli.commands": CLUSTER,
    "cli.remediation_commands": CLUSTER,
    "cli.sizing_commands": CLUSTER | {"jinja2", "markupsafe"},
    "cli.slots_command": CLUSTER,
    "cli.whatif_command": CLUSTER,
    "cli.ledger_command": TABLES,
    "cli.uninstall": CLUSTER | {"click"},
    "cli.demo": TABLES,
    "controller.run": CLUSTER | {"jinja2", "markupsafe", "prometheus-client"},
}


# Command → the function that it calls, as `app/cli/main.py` names it.
COMMANDS = {
    node.name.replace("_", "-"): each.args[0].value
    for node in ast.parse(Path(main.__file__).read_text(encoding="utf-8")).body
    if isinstance(node, ast.FunctionDef)
    for each in node.decorator_list
    if isinstance(each, ast.Call)
    and isinstance(each.func, ast.Name)
    and each.func.id == "_command"
    and isinstance(each.args[0], ast.Constant)
    and isinstance(each.args[0].value, str)
}


def distributions() -> dict[str, str]:
    """Top-level module → the declared dependency that brings it."""
    return {
        module: name
        for module, names in packages_distributions().items()
        for name in (each.lower().replace("_", "-") for each in names)
        if name in DECLARED
    }


def loaded_after(code: str) -> set[str]:
    """The dependencies that a fresh Python has loaded after this code."""
    code += "\nimport sys\nprint('\\n', *sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    known = distributions()
    return {known[name] for name in done.stderr.splitlines()[-1].split() if name in known}


def test_what_is_imported_is_declared_and_what_is_declared_is_imported() -> None:
    imported: dict[str, list[str]] = defaultdict(list)
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                imported[name.partition(".")[0]].append(path.name)
    known = distributions()
    ours = {"gpuwatch", "", *sys.stdlib_module_names}
    assert {name: files for name, files in imported.items() if name not in ours and name not in known} == {}
    assert {known[name] for name in imported if name in known} == DECLARED - DATA


def test_each_dependency_has_a_line_that_says_what_for_and_what_else_was_considered() -> None:
    section = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").partition("\n## Dependencies\n")[2]
    rows = [line.strip("|").split("|") for line in section.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    told = [name for row in rows for name in re.findall(r"`([a-z0-9-]+)`", row[0])]
    assert sorted(told) == sorted(DECLARED)
    assert all(len(row) == 3 and row[1].strip() and row[2].strip() for row in rows)


def test_images_and_charts_have_the_version_of_the_package() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "deploy").rglob("*") if path.is_file()]
    found = {
        version
        for text in texts
        for version in re.findall(r"""gpuwatch:(\d[\w.]*)|^appVersion: ["']?([\w.]+)""", text, flags=re.MULTILINE)
    }
    assert {"".join(version) for version in found} == {__version__}


def test_help_needs_click_alone() -> None:
    help_ = "from gpuwatch.app.cli.main import cli\ntry: cli(['run', '--help'])\nexcept SystemExit: pass"
    assert loaded_after(help_) == {"click"}
    assert loaded_after("import gpuwatch") == set()


def test_the_table_has_every_module_that_a_command_loads() -> None:
    assert {function.rpartition(".")[0] for function in COMMANDS.values()} == AT_START.keys()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_the_options_that_its_function_names(command: str) -> None:
    """mypy does not see these calls, since a command's module is imported when the command runs."""
    module, _, name = COMMANDS[command].rpartition(".")
    takes = inspect.signature(getattr(importlib.import_module(f"gpuwatch.app.{module}"), name)).parameters
    options = {item.name for item in main.cli.commands[command].params if item.expose_value}
    # The rest (`**options`) says where facts come from, for `open_sources`.
    assert {key for key, item in takes.items() if item.kind is not item.VAR_KEYWORD} <= options


@pytest.mark.parametrize("module", AT_START)
def test_a_command_imports_at_its_start_what_the_table_says(module: str) -> None:
    assert loaded_after(f"import gpuwatch.app.{module}") == AT_START[module]


FRAMES_AND_SOLVERS = {"pandas", "pyarrow", "scipy", "scikit-learn"}
"""Hundreds of MiB and a second each. Other commands do not import them before what needs them runs."""

ON_A_CAPTURE: dict[str, tuple[str, ...]] = {
    "analyze": (),
    "explain": ("device/gpu-0",),
    "plan": (),
    "doctor": ("--allow-limited",),
    "capture": ("--output-file", "again.json.gz"),
}


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    file = tmp_path / "capture.json.gz"
    save_snapshot(quiet(), file)
    return file


def run(*arguments: str) -> set[str]:
    """The dependencies that a command has loaded when it ends, in a process of its own."""
    code = f"from gpuwatch.app.cli.main import cli\ntry: cli({[*arguments]})\n"
    return loaded_after(code + "except SystemExit as end: assert not end.code, end.code")


@pytest.mark.parametrize("command", ON_A_CAPTURE)
def test_a_command_on_a_capture_needs_neither_frames_nor_solvers(command: str, capture: Path) -> None:
    options = [str(capture.with_name(each)) if each.endswith(".gz") else each for each in ON_A_CAPTURE[command]]
    assert run(command, "--no-cluster", "--telemetry", str(capture), *options) == CLUSTER | {"click"}


def test_parquet_alone_needs_frames(capture: Path) -> None:
    file = str(capture.with_name("findings.parquet"))
    loaded = run("analyze", "--no-cluster", "--telemetry", str(capture), "-o", "parquet", "--output-file", file)
    assert loaded & FRAMES_AND_SOLVERS == {"pandas", "pyarrow"}


def test_a_cycle_of_the_controller_needs_neither_frames_nor_solvers(
    capture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUWATCH_RUN__FOLDER", str(capture.parent))
    code = f"""
import threading
from gpuwatch.app.controller import run  # all that the process loads
from gpuwatch.app.controller.controller import Controller
from gpuwatch.app.controller.metrics import Metrics
from gpuwatch.app.controller.replica import Replica
from gpuwatch.app.sources import open_sources
from pathlib import Path
options = dict.fromkeys(("prometheus", "kubeconfig", "context", "at", "config", "cluster"))
opened = open_sources({{**options, "telemetry": (Path({str(capture)!r}),), "no_cluster": True}})
assert opened.settings.run.folder == Path({str(capture.parent)!r})
controller = Controller(Replica({{}}, opened, None, None, Metrics(), threading.Event()))
controller.cycle.run()
assert controller.replica.found.analysis.devices
"""
    assert loaded_after(code) & FRAMES_AND_SOLVERS == set()


def test_a_prometheus_is_asked_without_frames(tmp_path: Path) -> None:
    """pyarrow imports pandas by itself where it reads a recording, so a Prometheus is looked at."""
    settings = tmp_path / "settings.yaml"
    settings.write_text(f"prometheus: {{url: 'http://127.0.0.1:{free_port()}', retries: 0}}")
    command = ["analyze", "--no-cluster", "--config", str(settings)]
    code = f"from gpuwatch.app.cli.main import cli\ntry: cli({command})\nexcept SystemExit: pass"
    assert loaded_after(code) == CLUSTER | {"click", "prometheus-api-client"}
