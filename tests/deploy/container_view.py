"""A process of this machine that sees a container's mounts, for Pods of the manifests that have to start.

It stands for a real kubelet in two things only, because ten Pods start in seconds so, with and without links of
Services: the mounts of a container, and with `pod_environment` its variables, which test_chart_live holds to those of a
real Node. The Pods that live are on real Nodes. A view of the file system of its own needs Linux.
"""

import contextlib
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

CHECKOUT = Path(__file__).resolve().parents[2]
ENTRY_POINT = [sys.executable, "-m", "gpuwatch.app.cli.main"]


def can_run() -> bool:
    """Whether this machine lets a process have a view of the file system of its own."""
    with TemporaryDirectory() as folder, contextlib.suppress(FileNotFoundError):
        try_it = seeing({Path("/etc/gpuwatch-test"): Path(folder)}, Path(folder) / "view", ["true"])
        return subprocess.run(try_it, capture_output=True, check=False).returncode == 0
    return False


def seeing(mounts: Mapping[Path, Path], scratch: Path, command: list[str]) -> list[str]:
    """The command where these folders (place → what is there) are mounted, and nothing of it is seen from outside.

    A place that is not there is made in an overlay over the nearest folder that is. /tmp comes last: what is mounted
    may lie in it. So may the checkout, whose programs are run.
    """
    scratch.mkdir(exist_ok=True)
    script = ["set -e", f"mount -t tmpfs tmpfs {shlex.quote(str(scratch))}"]
    places = {place.resolve(): source for place, source in mounts.items()}
    parents = {next(each for each in place.parents if each.exists()) for place in places if not place.exists()}
    for number, parent in enumerate(sorted(parents)):
        upper, work = scratch / f"upper-{number}", scratch / f"work-{number}"
        script.append(f"mkdir {shlex.join([str(upper), str(work)])}")
        options = f"lowerdir={parent},upperdir={upper},workdir={work}"
        script.append(f"mount -t overlay overlay -o {shlex.quote(options)} {shlex.quote(str(parent))}")
    script.append(f"exec 9< {shlex.quote(str(CHECKOUT))}")
    for place in sorted(places, key=lambda each: each == Path("/tmp")):
        script.append(f"mkdir -p {shlex.quote(str(place))}")
        script.append(f"mount --bind {shlex.join([str(places[place]), str(place)])}")
        if place in CHECKOUT.parents:
            script.append(f"mkdir -p {shlex.quote(str(CHECKOUT))}")
            script.append(f"mount --no-canonicalize --bind /proc/self/fd/9 {shlex.quote(str(CHECKOUT))}")
    script.append('exec "$@" 9<&-')
    as_root = () if os.geteuid() == 0 else ("--map-root-user",)
    return ["unshare", "--mount", *as_root, "sh", "-c", "\n".join(script), "sh", *command]
