"""Where real servers that are built with Go lie, and the Go modules with the `tool` lines that name them.

The libraries are most of what is compiled. A library is compiled once where its version, and those of all that it
needs, are the same. So programs that can have the same versions stand in one module; `thanos`, `older` and
`helm3` take the versions of `tools` where their programs can be built with them. The control plane has those of its
own release.
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path


def in_ci() -> bool:
    """In CI a missing server is an error, elsewhere a test that was not run."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def cache_root() -> Path:
    """Everything that is built or fetched for tests, outside the checkout."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuwatch"


@dataclass(frozen=True)
class Beside:
    """A folder that lies in a Go module beside its code, and the name that its copy has beside the programs."""

    module: str
    source: str
    name: str


@dataclass(frozen=True)
class GoTools:
    """The tools of one Go module, the flags of `go build` that they need, and the folders that they work with. own: the
    module with the code of our own, where that is another one."""

    module: Path
    flags: tuple[str, ...]
    beside: tuple[Beside, ...] = ()
    own: Path | None = None

    @property
    def name(self) -> str:
        """As people know it: 'parts/tools'."""
        return f"{self.module.parent.name}/{self.module.name}"

    @property
    def folder(self) -> Path:
        """Where they are built to: one folder for each go.mod, go.sum, code of our own and flags."""
        ours = sorted((self.own or self.module).rglob("*.go"))
        locked = b"".join(file.read_bytes() for file in (self.module / "go.mod", self.module / "go.sum", *ours))
        built_from = locked + " ".join(self.flags).encode()
        return cache_root() / self.name / hashlib.sha256(built_from).hexdigest()[:16]


_HERE = Path(__file__).parent
_SMALL = "-ldflags=-s -w"
_PROMETHEUS_VERSION = "-X github.com/prometheus/common/version.Version"
HELM_VERSION = "v4.3.1"
TOOLS = GoTools(
    _HERE / "tools",
    (
        "-trimpath",
        # Of Prometheus' service discoveries those of the clouds are half of what would be compiled.
        "-tags=remove_all_sd,enable_kubernetes_sd",
        # Without a version Helm calls itself v4.3, and a chart cannot be tested against it.
        f"{_SMALL} {_PROMETHEUS_VERSION}=3.15.0 -X helm.sh/helm/v4/internal/version.version={HELM_VERSION}",
    ),
    # kwok does nothing without its stages.
    (Beside("sigs.k8s.io/kwok", "kustomize/stage", "stages"),),
)
"""Prometheus 3, promtool, Helm, kubeconform and kwok."""

OLDER = GoTools(
    _HERE / "older",
    ("-trimpath", f"{_SMALL} {_PROMETHEUS_VERSION}=0.85.0"),
    # Their custom resource definitions.
    (
        Beside(
            "github.com/prometheus-operator/prometheus-operator",
            "example/prometheus-operator-crd-full",
            "prometheus-operator-crds",
        ),
        Beside("github.com/project-codeflare/appwrapper", "config/crd/bases", "appwrapper-crds"),
    ),
)
"""What needs older libraries: the Prometheus Operator, kube-score, actionlint, and the AppWrapper controller, whose
program is named `cmd`."""

THANOS = GoTools(
    _HERE / "thanos",
    # Thanos casts Prometheus' labels to its own; in the default layout of labels its sidecar panics.
    ("-trimpath", "-tags=slicelabels", f"{_SMALL} {_PROMETHEUS_VERSION}=0.42.2"),
)

HELM_3 = GoTools(_HERE / "helm3", ("-trimpath", f"{_SMALL} -X helm.sh/helm/v3/internal/version.version=v3.22.0"))
"""Helm 3, for `make verify`."""

DNS = GoTools(_HERE / "dns", ("-trimpath", _SMALL))
"""CoreDNS, for the image on a real Node: `make image`."""
