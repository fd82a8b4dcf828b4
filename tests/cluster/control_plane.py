"""A real Kubernetes control plane for tests, without containers: its programs as child processes.

    with running(build) as cluster:
        connect(cluster.administrator)                                     # a kubeconfig that may do everything
        connect(cluster.user("stranger"))                                  # one that may do nothing
        connect(cluster.service_account("team-a", "reader"))               # of a ServiceAccount that exists
        with cluster.gone():                                               # the API server is away meanwhile

RBAC decides, resource.k8s.io is served, and `cluster.asked()` is the server's own log of what users asked. On its own
there is no scheduler and no controller: what is created stays as it is, so that a test writes status itself, deletes
only what has no finalizer, and gets no default ServiceAccounts. With `alive=True` the scheduler and the controllers
run, and kwok plays the kubelets: Nodes become Ready, Pods are scheduled, run, and end when they are deleted. DRA device
taints are on then, and the scheduler's own gangs: Pods that name a PodGroup are placed together. A Job's Pods go on
running until something ends them. `cluster.real_node` has kubelets in kwok's place.

`parts/install` builds the programs of `cluster/kubernetes/go.mod` and kwok; nothing here builds or downloads. With
TEST_KUBERNETES=1.37 both take that version, from `cluster/kubernetes-1.37`.
"""

import base64
import contextlib
import json
import os
import secrets
import ssl
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from parts.go_tools import TOOLS, GoTools
from parts.processes import answers, free_port, running_process, wait_until


class Release(NamedTuple):
    """module: the Go module beside this file that builds it. gang: the version of the scheduler's own PodGroups. gates:
    what gpuwatch uses and is not on by default."""

    version: str
    module: str
    gang: str
    gates: tuple[str, ...]


RELEASES = {
    "1.36": Release(
        "v1.36.3",
        "kubernetes",
        "v1alpha2",
        ("DRADeviceTaints", "DRADeviceTaintRules", "GenericWorkload", "GangScheduling", "ResourceHealthStatus"),
    ),
    "1.37": Release("v1.37.2", "kubernetes-1.37", "v1beta1", ("GenericWorkload", "ResourceHealthStatus")),
}
RELEASE = RELEASES[os.environ.get("TEST_KUBERNETES", "1.36")]
"""What this run uses; `make verify` also asks for the newer one."""
VERSION = RELEASE.version
_VERSION_PACKAGE = "k8s.io/component-base/version"
_MAJOR, _MINOR, _ = VERSION.removeprefix("v").split(".")
# Without a version the server calls itself v0.0.0-master, and clients that parse it fail.
_VERSION_FLAGS = (
    f"-X {_VERSION_PACKAGE}.gitVersion={VERSION} "
    f"-X {_VERSION_PACKAGE}.gitMajor={_MAJOR} -X {_VERSION_PACKAGE}.gitMinor={_MINOR}"
)
KUBERNETES_TOOLS = GoTools(
    Path(__file__).parent / RELEASE.module,
    ("-trimpath", f"-ldflags=-s -w {_VERSION_FLAGS}"),
    own=Path(__file__).parent / "kubernetes",
)

_LOOPBACK = "127.0.0.1"
ADMINISTRATOR = "administrator"
AUDIT_LOG = "audit.log"
# Without the administrator, so that the log shows what the users under test asked for.
_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [{"level": "None", "userGroups": ["system:masters"]}, {"level": "Metadata"}],
}
_SCHEDULER, _CONTROLLERS, _KUBELETS = "system:kube-scheduler", "system:kube-controller-manager", "kwok"
USERS: Mapping[str, str] = {
    ADMINISTRATOR: "system:masters",
    "stranger": "",
    _SCHEDULER: "",
    _CONTROLLERS: "",
    _KUBELETS: "system:masters",
}
"""Who may log in from the start, with the group that gives them their rights."""


@dataclass(frozen=True)
class ControlPlaneBuild:
    """stages: kwok's own, which say how Nodes and Pods live."""

    etcd: Path
    apiserver: Path
    scheduler: Path
    controllers: Path
    kwok: Path
    stages: Path

    @property
    def folder(self) -> Path:
        """Where the programs of a Node lie too."""
        return self.etcd.parent


def find_control_plane() -> ControlPlaneBuild | None:
    """The programs that parts/install built; None where it did not."""
    folder = KUBERNETES_TOOLS.folder
    build = ControlPlaneBuild(
        etcd=folder / "server",
        apiserver=folder / "kube-apiserver",
        scheduler=folder / "kube-scheduler",
        controllers=folder / "kube-controller-manager",
        kwok=TOOLS.folder / "kwok",
        stages=TOOLS.folder / "stages",
    )
    programs = (build.etcd, build.apiserver, build.scheduler, build.controllers, build.kwok, build.stages)
    return build if all(os.access(program, os.X_OK) for program in programs) else None


@dataclass(frozen=True)
class Asked:
    """One request that the server answered, from its audit log. `resource` is '' where the request was for none.

    at: when it came in, Unix seconds by the server's clock. credential: of a ServiceAccount's token, as `credential`
    tells it of a kubeconfig; '' else.
    """

    user: str
    verb: str
    resource: str
    uri: str
    status: int
    at: float = field(default=0.0, compare=False)
    credential: str = field(default="", compare=False)

    @property
    def dry_run(self) -> bool:
        """As far as the address says it; of a deletion it stands in the body."""
        return "dryRun" in self.uri


def credential(kubeconfig: Path) -> str:
    """By what the audit log knows the ServiceAccount's token in this kubeconfig from others of the same account."""
    token: str = json.loads(kubeconfig.read_text())["users"][0]["user"]["token"]
    payload = token.split(".")[1]
    return f"JTI={json.loads(base64.urlsafe_b64decode(payload + '=' * (-len(payload) % 4)))['jti']}"


@dataclass(frozen=True)
class ControlPlane:
    """A running API server.

    folder: kubeconfigs and logs, gone with the server. tokens: of `USERS`. programs: all but etcd, by name, in the
    order in which they are started. started: their processes.
    """

    url: str
    certificate: Path
    folder: Path
    tokens: Mapping[str, str]
    programs: dict[str, Sequence[str | Path]]
    started: contextlib.ExitStack

    @property
    def administrator(self) -> Path:
        """Kubeconfig of a member of system:masters."""
        return self.user(ADMINISTRATOR)

    def user(self, name: str) -> Path:
        """Kubeconfig of one of `USERS`."""
        return self.kubeconfig(name, self.tokens[name])

    def service_account(self, namespace: str, name: str, file: str = "") -> Path:
        """Kubeconfig of a ServiceAccount that exists, with a fresh token of an hour. file: its name, where the account
        is to have several."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
        answer = json.loads(self._request(path, json.dumps(asked).encode()))
        return self.kubeconfig(file or f"{namespace}-{name}", answer["status"]["token"])

    def kubeconfig(self, name: str, token: str) -> Path:
        """A kubeconfig with this bearer token; `name` names its file, its user and its context."""
        written = self.folder / f"{name}.kubeconfig"
        cluster = {"server": self.url, "certificate-authority": str(self.certificate)}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": name, "user": {"token": token}}],
            "contexts": [{"name": name, "context": {"cluster": "test", "user": name}}],
            "current-context": name,
        }
        written.write_text(json.dumps(content))
        return written

    def asked(self) -> list[Asked]:
        """Everything that anybody but the administrator has asked for so far, oldest first."""
        found = []
        for line in self.audit_log.read_text().splitlines():
            event = json.loads(line)
            resource = event.get("objectRef", {}).get("resource", "")
            status = event["responseStatus"]["code"]
            at = datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp()
            user = event["user"]
            (of,) = user.get("extra", {}).get("authentication.kubernetes.io/credential-id", [""])
            found.append(Asked(user["username"], event["verb"], resource, event["requestURI"], status, at, of))
        return found

    @contextlib.contextmanager
    def gone(self) -> Iterator[None]:
        """Without the API server until the block ends, as when its machine is started anew: the scheduler, the
        controllers and the simulated kubelets are gone too. What is stored stays."""
        self.started.close()
        try:
            yield
        finally:
            self.start()

    def start(self) -> None:
        """Raises RuntimeError where one of the programs does not start."""
        for name, command in self.programs.items():
            self.started.enter_context(running_process(command, self.folder / f"{name}.log", self.ready))

    @property
    def audit_log(self) -> Path:
        return self.folder / AUDIT_LOG

    def ready(self) -> bool:
        """Does /readyz answer 200? A failing answer also has an `ok` in its body."""
        return self.has("/readyz")

    def has(self, path: str) -> bool:
        """Is this answered with success?"""
        try:
            self._request(path)
        except (OSError, ssl.SSLError):
            return False
        return True

    def _request(self, path: str, body: bytes | None = None) -> bytes:
        """As the administrator, past any proxy. Raises URLError where the answer is no success."""
        headers = {"Authorization": f"Bearer {self.tokens[ADMINISTRATOR]}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}{path}", data=body, headers=headers)
        trusted = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=str(self.certificate)))
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), trusted)
        with opener.open(request, timeout=10) as answer:
            return bytes(answer.read())


@contextlib.contextmanager
def running(
    build: ControlPlaneBuild,
    *,
    flags: Sequence[str] = (),
    alive: bool = False,
    address: str = _LOOPBACK,
    kubelets: Mapping[str, str] | None = None,
) -> Iterator[ControlPlane]:
    """A fresh, empty control plane, ready. `flags` are added to kube-apiserver's; `alive` starts the scheduler, the
    controllers and the simulated kubelets too.

    address: that the API server listens on. kubelets: users with their groups, as in `USERS`, that log in from real
    Nodes; the simulated kubelets are left out then, and a Node that falls silent is lost as soon as it is in a cluster.
    """
    with tempfile.TemporaryDirectory(prefix="control-plane-") as temporary, contextlib.ExitStack() as stack:
        folder = Path(temporary)
        etcd_url = stack.enter_context(_etcd(build, folder))
        users = {**USERS, **(kubelets or {})}
        tokens = {name: secrets.token_hex(16) for name in users}
        token_file = folder / "tokens.csv"
        lines = (f'{tokens[name]},{name},{name},"{group}"' for name, group in users.items())
        token_file.write_text("".join(f"{line}\n" for line in lines))
        audit_policy = folder / "audit-policy.json"
        audit_policy.write_text(json.dumps(_AUDIT_POLICY))
        port = free_port()
        url = f"https://{address}:{port}"
        certificates = folder / "certificates"
        command: list[str | Path] = [
            build.apiserver,
            f"--etcd-servers={etcd_url}",
            f"--bind-address={address}",
            f"--advertise-address={address}",
            f"--secure-port={port}",
            f"--cert-dir={certificates}",  # where it writes a certificate that it signs itself
            f"--client-ca-file={_key(folder).with_name('cert.pem')}",
            f"--token-auth-file={token_file}",
            "--authorization-mode=Node,RBAC",
            f"--audit-policy-file={audit_policy}",
            f"--audit-log-path={folder / AUDIT_LOG}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={_key(folder)}",
            f"--service-account-key-file={_key(folder)}",
            "--service-cluster-ip-range=10.0.0.0/24",
            # One would refuse a loopback address.
            *(["--endpoint-reconciler-type=none"] if address == _LOOPBACK else []),
            *(_GATES_SERVED if alive else _NO_ACCOUNTS),
            *flags,
        ]
        programs: dict[str, Sequence[str | Path]] = {"kube-apiserver": command}
        started = stack.enter_context(contextlib.ExitStack())
        cluster = ControlPlane(url, certificates / "apiserver.crt", folder, tokens, programs, started)
        if alive:
            living = dict(_living(build, cluster))
            if kubelets is not None:
                del living["kwok"]
                living["kube-controller-manager"].remove(_PATIENCE)
            programs.update(living)
        cluster.start()
        if alive:
            # Until a controller has made it, Pods are refused.
            wait_until(
                lambda: cluster.has("/api/v1/namespaces/default/serviceaccounts/default"),
                lambda: "the default ServiceAccount was not made",
            )
        yield cluster


# It refuses Pods of a Namespace whose default account no controller has made yet.
_NO_ACCOUNTS = ("--disable-admission-plugins=ServiceAccount",)
_PATIENCE = "--node-monitor-grace-period=5m"  # no simulated Node dies, but a busy machine's heartbeats are late
_GATES = "--feature-gates=" + ",".join(f"{name}=true" for name in RELEASE.gates)
_GATES_SERVED = (_GATES, f"--runtime-config=resource.k8s.io/v1beta2=true,scheduling.k8s.io/{RELEASE.gang}=true")


def _living(build: ControlPlaneBuild, cluster: ControlPlane) -> Iterator[tuple[str, list[str | Path]]]:
    """The programs that make objects live, by name. They retry until their watches are up, so none is waited for."""
    yield (
        "kube-controller-manager",
        [
            build.controllers,
            f"--kubeconfig={cluster.user(_CONTROLLERS)}",
            f"--authentication-kubeconfig={cluster.user(_CONTROLLERS)}",
            f"--authorization-kubeconfig={cluster.user(_CONTROLLERS)}",
            f"--service-account-private-key-file={_key(cluster.folder)}",
            f"--root-ca-file={cluster.certificate}",  # which Pods find in the ConfigMap kube-root-ca.crt
            "--use-service-account-credentials=true",
            f"--secure-port={free_port()}",
            f"--cert-dir={cluster.folder / 'controllers'}",
            "--leader-elect=false",
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
            _PATIENCE,
            _GATES,
        ],
    )
    yield (
        "kube-scheduler",
        [
            build.scheduler,
            f"--kubeconfig={cluster.user(_SCHEDULER)}",
            f"--authentication-kubeconfig={cluster.user(_SCHEDULER)}",
            f"--authorization-kubeconfig={cluster.user(_SCHEDULER)}",
            f"--secure-port={free_port()}",
            f"--cert-dir={cluster.folder / 'scheduler'}",
            "--leader-elect=false",
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
            _GATES,
        ],
    )
    stages = cluster.folder / "stages.yaml"
    # Without pod-complete, which ends every Pod of a Job within a second.
    used = (
        "node/fast/node-initialize",
        "node/heartbeat-with-lease/node-heartbeat-with-lease",
        "pod/fast/pod-ready",
        "pod/fast/pod-delete",
    )
    stages.write_text("\n---\n".join((build.stages / f"{name}.yaml").read_text() for name in used))
    yield (
        "kwok",
        [build.kwok, f"--kubeconfig={cluster.user(_KUBELETS)}", f"--config={stages}", "--manage-all-nodes=true"],
    )


@contextlib.contextmanager
def _etcd(build: ControlPlaneBuild, folder: Path) -> Iterator[str]:
    """etcd's client URL."""
    client, peer = f"http://127.0.0.1:{free_port()}", f"https://127.0.0.1:{free_port()}"
    command: list[str | Path] = [
        build.etcd,
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--peer-auto-tls",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]
    with running_process(command, folder / "etcd.log", lambda: answers(f"{client}/health")):
        yield client


def _key(folder: Path) -> Path:
    """The key that etcd makes for its peers, beside its certificate: ours to use, where nothing else makes keys."""
    return folder / "etcd" / "fixtures" / "peer" / "key.pem"
