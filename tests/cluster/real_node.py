"""Real Nodes beside the control plane: kubelet, containerd, runc, CNI, kube-proxy and a device plugin of GPUs.

    with running_nodes(build, count=2) as nodes:
        Api(nodes.cluster.administrator)              # the API server; the Nodes are Ready and have their GPUs
        nodes[0].set_gpu(2, health="Unhealthy")       # as its device plugin tells the kubelet
        nodes[0].set_gpu(0, DCGM_FI_DEV_ROW_REMAP_FAILURE=1)
        with nodes[0].without("kubelet"): ...         # or "containerd", "gpu-plugin", "kube-proxy"

Containers really run: the image `workload:1` ends as its arguments say (kubernetes/workload). Each Node's page of
metrics (`page_url`) is dcgm-exporter's, and whose a GPU is comes from the kubelet there too.

Each Node is a network, PID and mount namespace below one process. When that process ends, programs, containers, mounts,
links and iptables rules end with it; `cgroups` and the bridge to this machine are taken away by name. The machine
forwards nothing, so what is on a Node reaches this machine only. It needs root on Linux and what `DEBIAN_PACKAGES`
names; the rest is built by `parts/install`. One process at a time has Nodes; others wait. The code for cgroup version 2
was not run yet.
"""

import contextlib
import fcntl
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster.api import Api
from cluster.control_plane import ControlPlane, ControlPlaneBuild, running
from parts.go_tools import cache_root
from parts.processes import wait_until

DEBIAN_PACKAGES = ("containerd", "runc", "containernetworking-plugins", "iptables", "conntrack", "iproute2", "kmod")
PROGRAMS = ("containerd", "ctr", "runc", "iptables", "conntrack", "ip", "unshare", "nsenter")
_BUILT = ("kubelet", "kube-proxy", "gpu-plugin", "workload")
_PLUGINS = Path("/usr/lib/cni")
_CGROUPS = Path("/sys/fs/cgroup")

HOST = "10.77.0.1"
"""This machine, as the Nodes see it. Addresses of 10.77 and 10.78 exist on the bridge and inside the Nodes only."""
_BRIDGE = "gwbr"
_DNS = "10.77.0.2"  # where the first Node is
PAUSE, WORKLOAD = "localhost/pause:1", "docker.io/library/workload:1"
EXPORTER_PORT = 9400
GPU_PRODUCT = "NVIDIA-A100-SXM4-80GB"


def missing(build: ControlPlaneBuild) -> list[str]:
    """What this machine lacks for a Node."""
    lacks = [name for name in PROGRAMS if shutil.which(name) is None]
    lacks += [name for name in _BUILT if not os.access(build.folder / name, os.X_OK)]
    lacks += [] if (_PLUGINS / "bridge").exists() else ["the CNI plugins"]
    return [*lacks, "root"] if os.geteuid() != 0 else lacks


class Program:
    """One program of a Node, which can be stopped and started anew."""

    def __init__(self, command: Sequence[str | Path], log: Path) -> None:
        self.log = log
        self._command = [str(each) for each in command]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(self._command, stdout=output, stderr=output, cwd=self.log.parent)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Ends it, and waits for its end: the program is the child of nsenter, which enters a PID namespace."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        for pid in _children(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def wait(self) -> None:
        """For its end, which something else brings."""
        if self._process is not None:
            self._process.wait()

    @property
    def ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None


@dataclass(frozen=True)
class RealNode:
    """folder: its files and logs. inside: the words before a command that runs on it. pid: the process that all of it
    is below."""

    name: str
    address: str
    pods: str
    cgroup: str
    folder: Path
    gpus: int
    pid: int
    inside: Sequence[str]
    programs: dict[str, Program] = field(default_factory=dict)

    @property
    def page_url(self) -> str:
        """Of its GPUs' metrics."""
        return f"http://{self.address}:{EXPORTER_PORT}/metrics"

    def set_gpu(self, index: int, **values: object) -> None:
        """health: what the device plugin says of it. busy: does what holds it use it? Any other name is a metric's."""
        words = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in values.items()}
        query = urllib.parse.urlencode({"index": index, **words})
        request = urllib.request.Request(f"http://{self.address}:{EXPORTER_PORT}/set?{query}", method="POST")
        with _opener().open(request, timeout=10):
            pass

    def run(self, *command: str | Path) -> str:
        """What a command says that runs on this Node. Raises RuntimeError where it fails."""
        return _run(*self.inside, *command)

    def restart(self, program: str, number: int = signal.SIGTERM) -> None:
        self.programs[program].stop(number)
        self.programs[program].start()

    @contextlib.contextmanager
    def without(self, program: str) -> Iterator[None]:
        """The program is stopped until the block ends."""
        self.programs[program].stop()
        try:
            yield
        finally:
            self.programs[program].start()


@dataclass(frozen=True)
class RealNodes:
    cluster: ControlPlane
    nodes: Sequence[RealNode]

    def __getitem__(self, index: int) -> RealNode:
        return self.nodes[index]


@contextlib.contextmanager
def running_nodes(
    build: ControlPlaneBuild,
    *,
    count: int = 1,
    gpus: int = 4,
    images: Sequence[Path] = (),
    kubelet: Mapping[str, Any] | None = None,
    plugin: Sequence[str] = (),
    dns: Path | None = None,
    checkout: str = "",
) -> Iterator[RealNodes]:
    """A living control plane with so many Nodes `gpu-0`, `gpu-1`, …, Ready and with their GPUs.

    images: further ones for all Nodes, as `image_of_layout` writes them. kubelet: over its configuration. plugin:
    further flags of the device plugin. dns: CoreDNS, where Pods are to find Services by their names. checkout: name of
    an image that is this checkout's gpuwatch with the interpreter that runs now (`_mounted`), so nothing is built.
    Raises RuntimeError with the ends of the logs where a Node does not become ready.
    """
    names = [f"gpu-{number}" for number in range(count)]
    users = {**{f"system:node:{name}": "system:nodes" for name in names}, "system:kube-proxy": "system:node-proxier"}
    with contextlib.ExitStack() as stack:
        stack.enter_context(_alone())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="real-nodes-")))
        stack.enter_context(_bridge())
        cluster = stack.enter_context(running(build, alive=True, address=HOST, kubelets=users, flags=_SERVER))
        # The binding of a real cluster names the user; tokens here come with groups.
        Api(cluster.administrator).create(_PROXIER)
        archives = [*_built_images(build, folder), *images]
        mounted = _mounted() if checkout else {}
        if checkout:
            archives.append(_image(checkout, (PYTHON, "-m", "gpuwatch.app.cli.main"), folder, user="65532:65532"))
        nodes = [
            stack.enter_context(_node(build, cluster, folder, number, count, gpus, kubelet or {}, plugin, mounted))
            for number in range(count)
        ]
        for node in nodes:
            node.programs["containerd"].start()
        for node in nodes:
            _import(node, archives)
        for node in nodes:
            for name in ("kubelet", "kube-proxy", "gpu-plugin"):
                node.programs[name].start()
        if dns is not None:
            _start_dns(dns, cluster, nodes[0])
        api = Api(cluster.administrator)
        wait_until(lambda: all(_has_gpus(api, node) for node in nodes), lambda: _logs(nodes), 90)
        yield RealNodes(cluster, nodes)


def _start_dns(program: Path, cluster: ControlPlane, node: RealNode) -> None:
    """On this Node, at `_DNS`, until the Node ends."""
    file = node.folder / "Corefile"
    served = (
        f"kubernetes cluster.local in-addr.arpa {{\n kubeconfig {cluster.administrator}\n pods insecure\n ttl 5\n}}"
    )
    file.write_text(f".:53 {{\nbind {_DNS}\nerrors\nready 127.0.0.1:8181\n{served}\n}}\n")
    running = Program([*node.inside, program, f"-conf={file}"], node.folder / "dns.log")
    running.start()
    node.programs["dns"] = running


# The API server reaches kubelets by their addresses, for the logs of Pods: this machine cannot resolve their names.
_SERVER = ("--enable-admission-plugins=NodeRestriction", "--kubelet-preferred-address-types=InternalIP")
_PROXIER = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "kube-proxy-of-real-nodes"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:node-proxier"},
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:node-proxier"}],
}


def image_of_layout(layout: Path, name: str, archive: Path) -> Path:
    """An OCI layout as an archive that a Node takes, under this name."""
    index = json.loads((layout / "index.json").read_text())
    for each in index["manifests"]:
        each["annotations"] = {"io.containerd.image.name": name}
    with tarfile.open(archive, "w") as tar:
        _add(tar, "oci-layout", (layout / "oci-layout").read_bytes())
        _add(tar, "index.json", json.dumps(index).encode())
        for blob in sorted((layout / "blobs").rglob("*")):
            if blob.is_file():
                tar.add(blob, str(blob.relative_to(layout)))
    return archive


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """One process at a time: the bridge and its addresses are there once."""
    cache_root().mkdir(parents=True, exist_ok=True)
    with (cache_root() / "real-nodes.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _bridge() -> Iterator[None]:
    """From this machine to the Nodes. One that a killed process has left is taken away first."""
    subprocess.run(["ip", "link", "delete", _BRIDGE], capture_output=True, check=False)
    _run("ip", "link", "add", _BRIDGE, "type", "bridge")
    try:
        _run("ip", "address", "add", f"{HOST}/24", "dev", _BRIDGE)
        _run("ip", "link", "set", _BRIDGE, "up")
        yield
    finally:
        _run("ip", "link", "delete", _BRIDGE)


@contextlib.contextmanager
def _node(
    build: ControlPlaneBuild,
    cluster: ControlPlane,
    parent: Path,
    number: int,
    count: int,
    gpus: int,
    kubelet: Mapping[str, Any],
    plugin: Sequence[str],
    mounted: Mapping[Path, Path],
) -> Iterator[RealNode]:
    """The namespaces of one Node and its programs, none of them started yet."""
    name, address, pods, cgroup = f"gpu-{number}", f"10.77.0.{number + 2}", f"10.78.{number}.0/24", f"gwnode{number}"
    folder = parent / name
    for each in ("kubelet", "log", "cni", "net.d"):
        (folder / each).mkdir(parents=True)
    # /run is the Node's own, and so are the folders that its programs have fixed names for.
    bound = "".join(
        f"mkdir -p {where}; mount --bind {folder / each} {where}; "
        for each, where in (("kubelet", "/var/lib/kubelet"), ("log", "/var/log"), ("cni", "/var/lib/cni"))
    )
    script = (
        f"mount --make-rshared /; mount -t tmpfs tmpfs /run; mkdir -p /run/node /run/netns /run/lock; {bound}"
        f"ip link set lo up; exec {build.folder / 'workload'} pause"
    )
    namespaces = ("--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
    with _cgroups(cgroup):
        outer = subprocess.Popen(["unshare", *namespaces, "bash", "-ec", script])
        logged: dict[str, Program] = {}
        try:
            pid = _pid_1(outer)
            inside = ["nsenter", "--target", str(pid), "--mount", "--pid", "--net", "--"]
            node = RealNode(name, address, pods, cgroup, folder, gpus, pid, inside)
            _link(node, count)
            programs = _programs(build, cluster, node, kubelet, plugin, mounted)
            logged |= {each: Program([*inside, *command], folder / f"{each}.log") for each, command in programs.items()}
            yield RealNode(name, address, pods, cgroup, folder, gpus, pid, inside, logged)
        finally:
            outer.kill()  # by --kill-child pid 1 too, and by that everything in its namespaces
            outer.wait()
            for program in logged.values():
                program.wait()


def _pid_1(outer: subprocess.Popen[bytes]) -> int:
    def started() -> bool:
        if outer.poll() is not None:
            raise RuntimeError(f"no namespaces for a Node: unshare ended with {outer.returncode}")
        found = _children(outer.pid)
        return bool(found) and b"pause" in Path(f"/proc/{found[0]}/cmdline").read_bytes().split(b"\0")

    wait_until(started, lambda: "pid 1 of a Node was not ready in time")
    return _children(outer.pid)[0]


def _link(node: RealNode, count: int) -> None:
    """Joins the Node to the bridge, and tells it and this machine the ways to its Pods."""
    link = f"{_BRIDGE}{node.name.partition('-')[2]}"
    _run("ip", "link", "add", link, "type", "veth", "peer", "name", "uplink", "netns", node.pid)
    _run("ip", "link", "set", link, "master", _BRIDGE, "up")
    _run("ip", "route", "add", node.pods, "via", node.address, "dev", _BRIDGE)
    node.run("ip", "address", "add", f"{node.address}/24", "dev", "uplink")
    node.run("ip", "link", "set", "uplink", "up")
    node.run("ip", "route", "add", "default", "via", HOST)
    for other in range(count):
        if f"gpu-{other}" != node.name:
            node.run("ip", "route", "add", f"10.78.{other}.0/24", "via", f"10.77.0.{other + 2}")
    node.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
    # A Pod that reaches one of its own Node through a Service: without this the answer passes the bridge alone. Where
    # the kernel has no br_netfilter the setting is not there, and only that way is closed.
    with contextlib.suppress(RuntimeError):
        node.run("sysctl", "-qw", "net.bridge.bridge-nf-call-iptables=1")


@contextlib.contextmanager
def _cgroups(name: str) -> Iterator[None]:
    """The Node's own, in each hierarchy of version 1, or in the one of version 2."""
    one = (_CGROUPS / "cgroup.controllers").exists()
    if one:
        every = (_CGROUPS / "cgroup.controllers").read_text().split()
        (_CGROUPS / "cgroup.subtree_control").write_text(" ".join(f"+{each}" for each in every))
    roots = [_CGROUPS] if one else [each for each in _CGROUPS.iterdir() if each.is_dir() and not each.is_symlink()]
    own = [each / name for each in roots]
    for each in own:
        each.mkdir(exist_ok=True)
    try:
        yield
    finally:
        for each in own:
            wait_until(lambda each=each: _removed(each), lambda each=each: f"{each} is still in use", 20)  # type: ignore[misc]


def _removed(cgroup: Path) -> bool:
    """Is it gone, with all below it? The kernel refuses while a process is in it."""
    for folder in [*sorted((each for each in cgroup.rglob("*") if each.is_dir()), reverse=True), cgroup]:
        with contextlib.suppress(OSError):
            folder.rmdir()
    return not cgroup.exists()


def _programs(
    build: ControlPlaneBuild,
    cluster: ControlPlane,
    node: RealNode,
    kubelet: Mapping[str, Any],
    plugin: Sequence[str],
    mounted: Mapping[Path, Path],
) -> dict[str, list[str | Path]]:
    """The command of each program of a Node, whose configuration is written here."""
    folder = node.folder
    certificate = folder / "ca.crt"
    shutil.copy(cluster.certificate, certificate)

    def logs_in(user: str) -> Path:
        token = cluster.tokens[user]
        content = cluster.kubeconfig(f"{node.name}-{user.replace(':', '-')}", token).read_text()
        written = folder / f"{user.replace(':', '-')}.kubeconfig"
        written.write_text(content)
        return written

    labels = {"present": "true", "count": node.gpus, "product": GPU_PRODUCT, "memory": 81_920}
    (folder / "containerd.toml").write_text(_CONTAINERD.format(folder=folder, plugins=_PLUGINS))
    spec = json.loads(_run("ctr", "oci", "spec"))
    spec["mounts"] += [
        {"type": "bind", "options": ["rbind", "ro"], "source": f"{source}", "destination": f"{place}"}
        for place, source in mounted.items()
    ]
    _write(folder / "container.json", spec)
    _write(folder / "net.d" / "10-bridge.conflist", _network(node))
    _write(folder / "kubelet.json", {**_kubelet(node), **kubelet})
    _write(folder / "kube-proxy.json", _kube_proxy(node, logs_in("system:kube-proxy")))
    return {
        "containerd": ["containerd", f"--config={folder / 'containerd.toml'}"],
        "kubelet": [
            build.folder / "kubelet",
            f"--config={folder / 'kubelet.json'}",
            f"--kubeconfig={logs_in(f'system:node:{node.name}')}",
            f"--hostname-override={node.name}",
            f"--node-ip={node.address}",
            "--node-labels=" + ",".join(f"nvidia.com/gpu.{key}={value}" for key, value in labels.items()),
        ],
        "kube-proxy": [build.folder / "kube-proxy", f"--config={folder / 'kube-proxy.json'}"],
        "gpu-plugin": [
            build.folder / "gpu-plugin",
            f"--node={node.name}",
            f"--gpus={node.gpus}",
            f"--listen={node.address}:{EXPORTER_PORT}",
            *plugin,
        ],
    }


def _kubelet(node: RealNode) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": False,
        "failSwapOn": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{node.cgroup}",
        "containerRuntimeEndpoint": "unix:///run/node/containerd.sock",
        "address": node.address,
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "clusterDNS": [_DNS],
        "clusterDomain": "cluster.local",
        "resolvConf": "",
        # Nothing is evicted because the disk of this machine is full.
        "evictionHard": {"memory.available": "1Mi", "nodefs.available": "1Mi", "imagefs.available": "1Mi"},
        "imageGCHighThresholdPercent": 100,
        "nodeStatusUpdateFrequency": "2s",
        "nodeStatusReportFrequency": "5s",
        "syncFrequency": "5s",
        "serializeImagePulls": False,
        "featureGates": {"ResourceHealthStatus": True},
    }


def _kube_proxy(node: RealNode, kubeconfig: Path) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "bindAddress": node.address,
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "clusterCIDR": "10.78.0.0/16",
        "hostnameOverride": node.name,
        # Those of the whole machine stay as they are.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "iptables": {"minSyncPeriod": "0s", "syncPeriod": "30s"},
    }


def _network(node: RealNode) -> dict[str, Any]:
    addresses = {
        "type": "host-local",
        "dataDir": "/run/node/cni",
        "ranges": [[{"subnet": node.pods}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": addresses,
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "1.0.0", "name": "node", "plugins": [bridge, ports]}


# restrict_oom_score_adj: root may lack CAP_SYS_RESOURCE, as in a container; no OOM score can be lowered then, and runc
# fails where one is to be (-998 of each sandbox).
_CONTAINERD = f"""version = 2
root = "{{folder}}/containerd"
state = "/run/node/containerd"
[grpc]
  address = "/run/node/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{{plugins}}"
    conf_dir = "{{folder}}/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    base_runtime_spec = "{{folder}}/container.json"
"""

_OPT = Path("/opt/gpuwatch")
PYTHON = f"{_OPT}/venv/bin/python"
"""The interpreter of the image that is this checkout."""


def _mounted() -> dict[Path, Path]:
    """What every container then sees of this machine, read-only: place → source. The system's libraries and the
    interpreter that runs now stand where they are; the virtual environment and the sources of this checkout stand where
    no Pod mounts anything, as the checkout may lie in /tmp."""
    found = {each: each for each in (Path("/usr"), Path(sys.base_prefix))}
    return {**found, _OPT / "venv": Path(sys.prefix), _OPT / "src": Path(__file__).parents[2] / "src"}


def _built_images(build: ControlPlaneBuild, folder: Path) -> list[Path]:
    """Of `workload`, once as what holds sandboxes and once as what works, which needs an unprivileged user."""
    entries = {PAUSE: ("/workload", "pause"), WORKLOAD: ("/workload",)}
    return [_image(name, entry, folder, build.folder / "workload") for name, entry in entries.items()]


def _image(
    name: str, entry: Sequence[str], folder: Path, program: Path | None = None, user: str = "65535:65535"
) -> Path:
    """An image of one static program, or of nothing but places for what is mounted, as an archive."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        if program is not None:
            _add(tar, program.name, program.read_bytes(), 0o755)
        for each in ("tmp", "proc", "sys", "dev", "etc"):
            info = tarfile.TarInfo(each)
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(info)
        for each in ("bin", "lib", "lib64"):
            info = tarfile.TarInfo(each)
            info.type, info.linkname = tarfile.SYMTYPE, f"usr/{each}"
            tar.addfile(info)
    blobs = {}

    def stored(data: bytes, kind: str) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        media = f"application/vnd.oci.image.{kind}"
        return {"mediaType": media, "digest": f"sha256:{digest}", "size": len(data)}

    files = stored(layer.getvalue(), "layer.v1.tar")
    config = {
        "architecture": "amd64" if os.uname().machine == "x86_64" else "arm64",
        "os": "linux",
        "config": {"Entrypoint": list(entry), "User": user, "Env": [f"PYTHONPATH={_OPT}/src"]},
        "rootfs": {"type": "layers", "diff_ids": [files["digest"]]},
    }
    described = stored(json.dumps(config).encode(), "config.v1+json")
    manifest = {"schemaVersion": 2, "config": described, "layers": [files]}
    listed = stored(json.dumps({**manifest, "mediaType": _MANIFEST}).encode(), "manifest.v1+json")
    listed["annotations"] = {"io.containerd.image.name": name}
    archive = folder / f"{name.rpartition('/')[2].partition(':')[0]}.tar"
    with tarfile.open(archive, "w") as tar:
        _add(tar, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
        _add(tar, "index.json", json.dumps({"schemaVersion": 2, "manifests": [listed]}).encode())
        for path, data in blobs.items():
            _add(tar, path, data)
    return archive


_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def _add(tar: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), mode
    tar.addfile(info, io.BytesIO(data))


def _import(node: RealNode, archives: Sequence[Path]) -> None:
    client = ("ctr", "--address=/run/node/containerd.sock", "--namespace=k8s.io")

    def answers() -> bool:
        asked = [*node.inside, *client, "version"]
        return subprocess.run(asked, capture_output=True, check=False).returncode == 0

    wait_until(answers, lambda: _logs([node]))
    for archive in archives:
        node.run(*client, "images", "import", archive)


def _has_gpus(api: Api, node: RealNode) -> bool:
    for name, program in node.programs.items():
        if program.ended:
            raise RuntimeError(f"{name} of {node.name} ended: {program.log.read_text()[-3000:]}")
    found = api.answer("GET", f"/api/v1/nodes/{node.name}")
    if not found.ok:
        return False
    status = found.json()["status"]
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions", ()))
    return ready and status.get("allocatable", {}).get("nvidia.com/gpu") == str(node.gpus)


def _logs(nodes: Sequence[RealNode]) -> str:
    ends = [
        f"{program.log}:\n{program.log.read_text()[-1500:]}" for node in nodes for program in node.programs.values()
    ]
    return "the Nodes were not ready in time\n" + "\n".join(ends)


def _children(pid: int) -> list[int]:
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def _opener() -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _write(file: Path, content: object) -> None:
    file.write_text(json.dumps(content))


def _run(*command: object) -> str:
    words = [str(each) for each in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout
