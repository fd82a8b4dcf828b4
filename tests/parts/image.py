"""The image of deploy/Dockerfile, built by buildah on a Debian that mmdebstrap makes, unpacked by umoci, run by runc.

So no container engine, no daemon and no image of others is needed, but Debian and root. An image is built once for the
files that it is made of; it lies outside the checkout, and the one before is deleted. `python -m parts.image` builds it
and says how large it is.
"""

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from parts.go_tools import cache_root
from parts.gpuwatch_run import begun

DEBIAN_PACKAGES = ("buildah", "mmdebstrap", "runc", "umoci")
MAX_COMPRESSED_BYTES = 150 * 1000**2
ROOT = Path(__file__).parents[2]

_BASE = "localhost/debian-python:base"
_IMAGE = "localhost/gpuwatch:built"
_NAME = "gpuwatch"
# What Debian's own slim images leave out, and byte code.
_LEFT_OUT = ("doc/*", "man/*", "info/*", "locale/*")
_DEBOOTSTRAP = (
    "mmdebstrap",
    "--variant=minbase",
    "--include=python3-minimal,python3-venv,ca-certificates",
    *(f"--dpkgopt=path-exclude=/usr/share/{each}" for each in _LEFT_OUT),
    "--dpkgopt=path-include=/usr/share/doc/*/copyright",
    '--customize-hook=find "$1/usr/lib" -name __pycache__ -prune -exec rm -r {} +',
    "trixie",
)
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


@dataclass(frozen=True)
class Image:
    """folder: has `layout`, the image as OCI describes it, and `bundle`, its files and how to run them."""

    folder: Path

    @property
    def rootfs(self) -> Path:
        return self.folder / "bundle" / "rootfs"

    @property
    def spec(self) -> dict[str, Any]:
        """How a runtime runs it, as the image itself says it."""
        return _json(self.folder / "bundle" / "config.json")

    @property
    def layers(self) -> list[int]:
        """Compressed bytes of each layer, the base first."""
        return [layer["size"] for layer in self._manifest["layers"]]

    @property
    def config(self) -> dict[str, Any]:
        found: dict[str, Any] = self._blob(self._manifest["config"]["digest"])["config"]
        return found

    @property
    def _manifest(self) -> dict[str, Any]:
        index = _json(self.folder / "layout" / "index.json")
        return self._blob(index["manifests"][0]["digest"])

    def _blob(self, digest: str) -> dict[str, Any]:
        return _json(self.folder / "layout" / "blobs" / digest.replace(":", "/"))


def missing() -> list[str]:
    """What this machine lacks to build and run the image."""
    lacks = [name for name in DEBIAN_PACKAGES if shutil.which(name) is None]
    return [*lacks, "root"] if os.geteuid() != 0 else lacks


def built() -> Image:
    """The image of the files as they are now. Raises RuntimeError with the end of what a tool said that failed."""
    cache = cache_root() / "image"
    target = cache / f"gpuwatch-{_fingerprint()}"
    if target.exists():
        return Image(target)
    cache.mkdir(parents=True, exist_ok=True)
    base = cache / f"base-{hashlib.sha256(' '.join(_DEBOOTSTRAP).encode()).hexdigest()[:16]}.tar"
    with TemporaryDirectory(prefix="building-", dir=cache) as temporary:
        work = Path(temporary)
        if not base.exists():
            _made([*_DEBOOTSTRAP, work / "base.tar"])
            (work / "base.tar").rename(base)
        done = work / "done"
        done.mkdir()
        _build(base, work, done)
        if not target.exists():  # another process may have built it meanwhile
            for old in cache.glob("gpuwatch-*"):
                shutil.rmtree(old, ignore_errors=True)
            done.rename(target)
    return Image(target)


def _build(base: Path, work: Path, done: Path) -> None:
    buildah = ["buildah", "--storage-driver=vfs", f"--root={work / 'store'}", f"--runroot={work / 'run'}"]
    build = [*buildah, "build", "--isolation=chroot", "--format=oci", "--pull-never"]
    (work / "Base").write_text(f"FROM scratch\nADD {base.name} /\n")
    _made([*build, f"--file={work / 'Base'}", f"--tag={_BASE}", base.parent])
    # pip in the build trusts what this machine trusts: it may reach the package index through a proxy.
    trusted = [f"--volume={_CERTIFICATES}:{_CERTIFICATES}:ro"] if _CERTIFICATES.exists() else []
    dockerfile = ROOT / "deploy" / "Dockerfile"
    ours = [f"--build-arg=BASE={_BASE}", f"--file={dockerfile}", f"--ignorefile={dockerfile}.dockerignore"]
    _made([*build, *trusted, *ours, f"--tag={_IMAGE}", ROOT])
    layout = f"{done / 'layout'}:{_NAME}"
    _made([*buildah, "push", "--compression-format=gzip", "--compression-level=9", _IMAGE, f"oci:{layout}"])
    _made(["umoci", "unpack", f"--image={layout}", done / "bundle"])


def _fingerprint() -> str:
    """Of the files that the image is made of, and of how its base is made."""
    digest = hashlib.sha256(" ".join(_DEBOOTSTRAP).encode())
    files = ["deploy/Dockerfile", "deploy/Dockerfile.dockerignore", "pyproject.toml", "README.md", "LICENSE", "NOTICE"]
    files += ["requirements/build.txt", "requirements/runtime.txt"]
    sources = (file for file in (ROOT / "src").rglob("*") if file.is_file())
    named = {str(file.relative_to(ROOT)) for file in sources if "__pycache__" not in str(file)}
    for name in [*files, *sorted(name for name in named if ".egg-info" not in name)]:
        content = hashlib.sha256((ROOT / name).read_bytes()).hexdigest()
        digest.update(f"{name} {content}\n".encode())
    return digest.hexdigest()[:16]


def _made(command: Sequence[str | Path]) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stdout + done.stderr)[-4000:]
        raise RuntimeError(f"{' '.join(map(str, command))} ended with {done.returncode}: {said}")


def _json(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


@contextlib.contextmanager
def container(
    image: Image,
    folder: Path,
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    read_only: Mapping[str, Path] | None = None,
    writable: Sequence[str] = (),
    entrypoint: Sequence[str] = (),
) -> Iterator[subprocess.Popen[bytes]]:
    """The image with these arguments as Kubernetes runs it in a Namespace that enforces `restricted`, on this machine's
    network: as the image's user, no capabilities, no new privileges, its own files read-only. Without a seccomp profile
    and limits of memory.

    read_only: what lies where in it. writable: folders like an emptyDir of a Pod with fsGroup 65532. What it says goes
    to `folder/log`.
    """
    spec = image.spec
    process = spec["process"]
    process["terminal"] = False
    process["args"] = [*(entrypoint or process["args"]), *arguments]
    process["env"] += [f"{name}={value}" for name, value in (environment or {}).items()]
    process["noNewPrivileges"] = True
    process["capabilities"] = {}
    spec["root"] = {"path": str(image.rootfs), "readonly": True}
    spec["linux"]["namespaces"] = [each for each in spec["linux"]["namespaces"] if each["type"] != "network"]
    for place, source in (read_only or {}).items():
        options = ["bind", "ro", "nosuid", "nodev"]
        spec["mounts"].append({"destination": place, "type": "bind", "source": str(source), "options": options})
    for place in writable:
        options = ["nosuid", "nodev", "mode=2775", "gid=65532"]
        spec["mounts"].append({"destination": place, "type": "tmpfs", "source": "tmpfs", "options": options})
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(spec))
    runc = ["runc", f"--root={folder / 'state'}"]
    name = f"gpuwatch-{os.getpid()}-{folder.name}"
    run = [*runc, "run", f"--bundle={folder}", name]
    try:
        with begun(run, folder / "log", os.environ, folder) as started:
            yield started
    finally:
        # Nothing is left of one that has ended; one that was killed is still there.
        subprocess.run([*runc, "delete", "--force", name], capture_output=True, check=False)


def main() -> int:
    lacks = missing()
    if lacks:
        print(f"image: not built: this machine lacks {', '.join(lacks)}; Debian has them as packages of these names")
        return 1
    started = time.monotonic()
    image = built()
    base, ours = image.layers[0], sum(image.layers[1:])
    unpacked = sum(file.lstat().st_size for file in image.rootfs.rglob("*") if file.is_file() and not file.is_symlink())
    print(
        f"image: {(base + ours) / 1e6:.0f} MB compressed, {base / 1e6:.0f} of it the base; at most "
        f"{MAX_COMPRESSED_BYTES / 1e6:.0f}; {unpacked / 1e6:.0f} MB unpacked; {time.monotonic() - started:.0f} s; "
        f"{image.folder / 'layout'}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
