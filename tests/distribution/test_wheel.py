"""The wheel and the sdist of `make dist`: what they hold, and that what pip, pipx and uv install of them works."""

import os
import subprocess
import sys
import tarfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

from gpuwatch import __version__

pytestmark = pytest.mark.dist

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / ".venv-dist" / "bin"
PAGE = ROOT / "tests" / "fixtures" / "exposition" / "honor-labels-false.prom"


def run(*command: str | Path, **environment: str) -> str:
    """Standard output, in an environment without this checkout's Python."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=clean | environment, cwd=PAGE.parent, timeout=900
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def only(pattern: str) -> Path:
    found = list((ROOT / "dist").glob(pattern))
    assert len(found) == 1, f"{found or 'nothing'} in dist/; run: make dist"
    return found[0]


@pytest.fixture(scope="module")
def wheel() -> Path:
    return only(f"gpuwatch_controller-{__version__}-*.whl")


@pytest.fixture(scope="module")
def sources() -> set[str]:
    """What git tracks below src/, without the parts' pages for readers of the repository."""
    listed = run("git", "-C", ROOT, "ls-files", "--", "src").splitlines()
    return {name.removeprefix("src/") for name in listed if not name.endswith("/README.md")}


def test_the_wheel_holds_the_package_and_its_licence(wheel: Path, sources: set[str]) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        info = f"gpuwatch_controller-{__version__}.dist-info"
        metadata = HeaderParser().parsestr(archive.read(f"{info}/METADATA").decode())
    files = ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "top_level.txt")
    files += ("licenses/LICENSE", "licenses/NOTICE")
    assert names == sources | {f"{info}/{name}" for name in files}
    assert not [name for name in names if {"lab", "simulate"} & set(Path(name).parts)]
    assert (metadata["Name"], metadata["Version"]) == ("gpuwatch-controller", __version__)


def test_the_sdist_holds_what_builds_the_wheel_and_nothing_else(sources: set[str]) -> None:
    with tarfile.open(only(f"gpuwatch_controller-{__version__}.tar.gz")) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    made = {name for name in names if name in ("PKG-INFO", "setup.cfg") or ".egg-info/" in name}
    assert names - made == {f"src/{name}" for name in sources} | {"LICENSE", "NOTICE", "README.md", "pyproject.toml"}


def installed(by: str, wheel: Path, folder: Path) -> Path:
    """The folder of the commands that this installer puts in place."""
    bin_ = folder / "bin"
    if by == "pip":
        run(sys.executable, "-m", "venv", folder)
        run(bin_ / "python", "-m", "pip", "install", "--quiet", wheel)
    elif by == "pipx":
        run(TOOLS / "pipx", "install", wheel, PIPX_HOME=str(folder / "home"), PIPX_BIN_DIR=str(bin_))
    elif by == "uv":
        directories = {"UV_TOOL_DIR": str(folder / "tools"), "UV_TOOL_BIN_DIR": str(bin_)}
        run(TOOLS / "uv", "tool", "install", "--python", sys.executable, wheel, **directories)
    else:
        run(TOOLS / "uv", "venv", "--python", sys.executable, folder)
        run(TOOLS / "uv", "pip", "install", "--resolution", "lowest-direct", wheel, VIRTUAL_ENV=str(folder))
    return bin_


@pytest.mark.parametrize("by", ["pip", "pipx", "uv", "uv with the oldest dependencies"])
def test_what_is_installed_works(by: str, wheel: Path, tmp_path: Path) -> None:
    commands = installed(by, wheel, tmp_path / "clean")
    gpuwatch = commands / "gpuwatch"
    assert run(gpuwatch, "--version") == f"gpuwatch, version {__version__}\n"
    assert run(commands / "kubectl-gpuwatch", "--version") == f"gpuwatch, version {__version__}\n"
    told = run(gpuwatch, "analyze", "--telemetry", PAGE, "--no-cluster")
    assert "2 devices on 1 node" in told
    assert "Idle allocations (1)" in run(gpuwatch, "demo", "--folder", tmp_path / "demo")
    source = ("--telemetry", tmp_path / "demo" / "telemetry.parquet", "--cluster", tmp_path / "demo" / "cluster")
    run(gpuwatch, "report", *source, "-o", "parquet", "--output-dir", tmp_path / "reports")
    assert list((tmp_path / "reports").glob("*/teams.parquet"))
