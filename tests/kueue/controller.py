"""Kueue's real controller: built from its released module, and started against the tests' control plane.

Neither `make parts` nor CI builds it, as that takes minutes. `kueue/record.py` does, and writes down what Kueue did.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cluster.api import Api
from cluster.control_plane import ControlPlane
from parts.go_tools import cache_root
from parts.processes import answers, free_port, running_process, wait_until

MODULE = "sigs.k8s.io/kueue"


@dataclass(frozen=True)
class KueueBuild:
    """definitions: the folder of its module with its custom resource definitions and webhooks."""

    version: str
    program: Path
    definitions: Path


def build_kueue(version: str) -> KueueBuild:
    """As Go's proxy has the release, built once. Raises CalledProcessError where Go cannot."""
    at = f"{MODULE}@{version}"
    folder = cache_root() / "kueue" / version
    go = {**os.environ, "GOBIN": str(folder)}
    program = folder / "kueue"
    if not program.exists():
        subprocess.run(
            ["go", "install", "-trimpath", "-ldflags=-s -w", f"{MODULE}/cmd/kueue@{version}"], check=True, env=go
        )
    told = subprocess.run(["go", "mod", "download", "-json", at], check=True, capture_output=True, cwd=folder, env=go)
    return KueueBuild(version, program, Path(json.loads(told.stdout)["Dir"]) / "config" / "components")


@contextlib.contextmanager
def running_kueue(build: KueueBuild, cluster: ControlPlane) -> Iterator[Path]:
    """With its webhooks, its feature gates as released, and batch Jobs as the only kind. Yields the file of its log.

    Needs root: it looks for the certificate of its metrics in /etc, which is one of its own here.
    """
    api = Api(cluster.administrator)
    port, health = free_port(), f"127.0.0.1:{free_port()}"
    peer = cluster.folder / "etcd" / "fixtures" / "peer"  # a certificate for this machine
    trusted = b64encode((peer / "cert.pem").read_bytes()).decode()
    folder = cluster.folder / "kueue"
    certificates = folder / "certificates"
    certificates.mkdir(parents=True)
    for name, file in (("tls.crt", "cert.pem"), ("tls.key", "key.pem")):
        (certificates / name).write_bytes((peer / file).read_bytes())
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kueue-system"}})
    converted = {
        file.name.removeprefix("webhook_in_") for file in (build.definitions / "crd/patches").glob("webhook_in_*")
    }

    def reached(path: str) -> dict[str, str]:
        return {"url": f"https://127.0.0.1:{port}{path}", "caBundle": trusted}

    for file in sorted((build.definitions / "crd/bases").glob("*.yaml")):
        definition = yaml.safe_load(file.read_text(encoding="utf-8"))
        if len(definition["spec"]["versions"]) > 1 and file.name.partition("_")[2] in converted:
            webhook = {"clientConfig": reached("/convert"), "conversionReviewVersions": ["v1"]}
            definition["spec"]["conversion"] = {"strategy": "Webhook", "webhook": webhook}
        api.create(definition)
    wait_until(lambda: _served(api), lambda: "The API server does not serve Kueue's kinds.")
    settings: dict[str, Any] = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": "kueue-system",
        "health": {"healthProbeBindAddress": health},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": port, "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "clientConnection": {"qps": 300, "burst": 500},
        "integrations": {"frameworks": ["batch/job"]},
        "featureGates": {"VisibilityOnDemand": False},  # another server, which tells people who waits
    }
    (folder / "settings.yaml").write_text(json.dumps(settings))
    script = f"""
    mkdir -p upper/kueue/metrics work
    cp -r certificates upper/kueue/metrics/certs
    mount -t overlay overlay -o lowerdir=/etc,upperdir=$PWD/upper,workdir=$PWD/work /etc
    exec {shlex.quote(str(build.program))} --config=settings.yaml --zap-log-level=3
    """
    command: list[str | Path] = [
        "env",
        f"KUBECONFIG={cluster.administrator}",
        "unshare",
        "--mount",
        "bash",
        "-ec",
        script,
    ]
    with running_process(command, folder / "kueue.log", lambda: answers(f"http://{health}/readyz")):
        for hooks in yaml.safe_load_all((build.definitions / "webhook/manifests.yaml").read_text(encoding="utf-8")):
            for hook in hooks["webhooks"]:
                hook["clientConfig"] = reached(hook["clientConfig"]["service"]["path"])
            api.create(hooks)
        yield folder / "kueue.log"


def _served(api: Api) -> bool:
    found = api.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")["items"]
    told = ((each["type"], each["status"]) for item in found for each in item["status"]["conditions"] or ())
    return list(told).count(("Established", "True")) == len(found)
