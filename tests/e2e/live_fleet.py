"""A fleet that lives in a real API server and that a real Prometheus scrapes: GPUs follow the Pods that hold them.

Every Node has a page, as dcgm-exporter writes it, that tells of each GPU and of the Pod that holds it now. What an
application does is said by its label `app`; what is wrong with a GPU by `faults`. GPUs are held through the device
plugin (`node`) or through ResourceClaims (`claimed_node`).

kwok plays the kubelets. What gpuwatch does is proven on real Nodes (`cluster.real_node`); this fleet is kept for what
two of them cannot do on two cores: a dozen Nodes and pools, two worlds side by side, devices of ResourceClaims without
a driver, and clusters of others (`E2E_EXISTING`). `cluster/test_real_node.py` holds its pages to a real Node's, in all
but which of several free devices a Pod gets.
"""

import hashlib
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from cluster.api import Api, Object
from e2e.exporters import INTERVAL_SECONDS, NAMESPACE, Exporters, Sample, scraped, target
from parts import remote_write
from rules.exporters import STEADY

LOOK_SECONDS = 2
GPUS_PER_NODE = 8
PRODUCT = "NVIDIA-A100-SXM4-80GB"
_MEMORY_MIB = 81_920
DRIVER = "gpu.nvidia.com"


def node(name: str, pool: str, gpus: int = GPUS_PER_NODE) -> Object:
    """As the device plugin and GPU Feature Discovery leave it."""
    host = {"nvidia.com/gpu": str(gpus), "cpu": "96", "memory": "1200Gi", "pods": "110"}
    labels = {
        "kubernetes.io/hostname": name,
        "gpuwatch.dev/pool": pool,
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.count": str(gpus),
        # A GPU model has a limit of its own, and each test is to have its own limits.
        **({"nvidia.com/gpu.product": PRODUCT} if pool == "seen" else {}),
        "nvidia.com/gpu.memory": str(_MEMORY_MIB),
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"capacity": host, "allocatable": host},
    }


def claimed_node(name: str, pool: str) -> tuple[Object, Object]:
    """A Node whose GPUs its driver hands out to ResourceClaims, and the ResourceSlice in which it tells of them."""
    host = node(name, pool)
    for side in host["status"].values():
        side.pop("nvidia.com/gpu", None)
    devices = [
        {"name": f"gpu-{index}", "attributes": {"uuid": {"string": gpu_uuid(name, index)}}}
        for index in range(GPUS_PER_NODE)
    ]
    spec = {
        "driver": DRIVER,
        "nodeName": name,
        "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
        "devices": devices,
    }
    told = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": f"{name}-{DRIVER}"}}
    return host, {**told, "spec": spec}


def claiming(name: str, *, pool: str, gpus: int, copies: int = 1, namespace: str = "team-a") -> tuple[Object, Object]:
    """A template of claims for so many GPUs, and a Job each of whose Pods has such a claim."""
    request = {"name": "gpus", "exactly": {"deviceClassName": DRIVER, "count": gpus}}
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }
    job = workload("Job", name, pool=pool, gpus=0, copies=copies, namespace=namespace)
    pod = job["spec"]["template"]["spec"]
    pod["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": name}]
    pod["containers"][0]["resources"] = {"claims": [{"name": "gpus"}]}
    return template, job


def workload(
    kind: str, name: str, *, pool: str, gpus: int, copies: int = 1, namespace: str = "team-a", priority: str = ""
) -> Object:
    """A Job of `copies` Pods that belong together, or a Deployment of as many."""
    template: Object = {
        "metadata": {"labels": {"app": name}},
        "spec": {
            "nodeSelector": {"gpuwatch.dev/pool": pool},
            "containers": [
                {"name": "main", "image": "example.org/main:1", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
            ],
            **({"priorityClassName": priority} if priority else {}),
        },
    }
    if kind == "Job":
        template["spec"]["restartPolicy"] = "Never"
        spec: Object = {"parallelism": copies, "completions": copies, "template": template}
        version = "batch/v1"
    else:
        spec = {"replicas": copies, "selector": {"matchLabels": {"app": name}}, "template": template}
        version = "apps/v1"
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": namespace}, "spec": spec}


@dataclass
class LiveFleet:
    """idle: values of the label `app` whose Pods do nothing. faults: Node → indices of GPUs whose memory could not be
    repaired. renewed: Nodes whose dcgm-exporter is 4.9, which has other names, units and labels than 4.8."""

    api: Api
    exporters: Exporters
    prometheus: str
    idle: set[str] = field(default_factory=set)
    faults: dict[str, set[int]] = field(default_factory=dict)
    renewed: set[str] = field(default_factory=set)
    _alone: bool = False
    _looking: threading.Lock = field(default_factory=threading.Lock)
    _seen: dict[str, list[Object]] = field(default_factory=dict)
    _held: dict[str, list[str]] = field(default_factory=dict)  # Node → per GPU the uid of its Pod, or ''
    _past: dict[tuple[str, int], list[dict[str, str]]] = field(default_factory=dict)  # written series of free GPUs

    def look(self) -> None:
        """What the pages tell from now on: every GPU of every Node, as its Pods are now."""
        with self._looking:
            every, nodes, claims = self._all(_PODS), self._all(_NODES), self._all(_CLAIMS)
        pods = {
            item["metadata"]["uid"]: item
            for item in every
            if item["status"].get("phase") == "Running"  # also while it ends: it has its devices until it has ended
        }
        shown: dict[str, list[Sample]] = {}
        for found in nodes:
            name, count = found["metadata"]["name"], _gpus(found)
            self._place(name, count, pods, claims)
            held = self._held[name]
            shown[name] = [each for index in range(count) for each in self._gpu(name, index, pods.get(held[index]))]
        self.exporters.show(shown)
        self._place_exporters(every)
        self._end_the_past()

    def _place_exporters(self, every: list[Object]) -> None:
        """Their Pods have the addresses at which the pages are."""
        for pod in every:
            meta, spec = pod["metadata"], pod["spec"]
            if self._alone or meta["namespace"] != NAMESPACE or not spec.get("nodeName"):
                continue
            address = self.exporters.address(spec["nodeName"])
            if pod["status"].get("podIP") != address:
                path = f"/api/v1/namespaces/{NAMESPACE}/pods/{meta['name']}/status"
                body = {"status": {"podIP": address, "podIPs": [{"ip": address}]}}
                answer = self.api.answer("PATCH", path, body, content_type="application/merge-patch+json")
                assert answer.ok or answer.status_code in (404, 409), answer.text

    def _end_the_past(self) -> None:
        """Of GPUs that are held now: a scrape ends only series that the scrape before it has seen, and no written
        ones."""
        now = time.time()
        held = [(name, index) for name, uids in self._held.items() for index, uid in enumerate(uids) if uid]
        ended = [labels for gpu in held for labels in self._past.pop(gpu, ())]
        if ended:
            remote_write.write(self.prometheus, ((labels, [(now, None)]) for labels in ended))

    @contextmanager
    def without_api(self) -> Iterator[None]:
        """The API server may be gone until the block ends: every Pod goes on as it was last seen."""
        with self._looking:
            self._alone = True
        try:
            yield
        finally:
            self._alone = False

    def _all(self, path: str) -> list[Object]:
        if not self._alone:
            unserved = path == _CLAIMS and self.api.answer("GET", path).status_code == 404
            self._seen[path] = [] if unserved else self.api.get(path)["items"]
        return self._seen[path]

    def history(self, until: float, seconds: float, only: str = "") -> None:
        """As if every Node, or this one, had been scraped and free for so long: GPUs without a history are judged by
        nobody."""
        moments = [until - seconds + step for step in range(0, int(seconds), INTERVAL_SECONDS)]
        for found in self.api.get("/api/v1/nodes")["items"]:
            name = found["metadata"]["name"]
            if only in ("", name):
                free = {index: list(self._gpu(name, index, None)) for index in range(_gpus(found))}
                series = [(scraped(each, name), each[2]) for samples in free.values() for each in samples]
                series.append(({"__name__": "up", **target(name)}, 1.0))
                remote_write.write(
                    self.prometheus, ((labels, [(at, value) for at in moments]) for labels, value in series)
                )
                for index, samples in free.items():
                    self._past[name, index] = [scraped(each, name) for each in samples]

    def _place(self, name: str, count: int, pods: Mapping[str, Object], claims: list[Object]) -> None:
        """GPUs of Pods that are gone are free; Pods that are new take those of their claims, or the first free ones."""
        held = self._held.setdefault(name, [""] * count)
        here = {uid: pod for uid, pod in pods.items() if pod["spec"].get("nodeName") == name}
        held[:] = [uid if uid in here else "" for uid in held]
        for uid, pod in here.items():
            wanted = sum(
                int(box.get("resources", {}).get("limits", {}).get("nvidia.com/gpu", "0"))
                for box in pod["spec"]["containers"]
            )
            free = [index for index, holder in enumerate(held) if not holder]
            for index in free[: max(wanted - held.count(uid), 0)]:
                held[index] = uid
        for claim in claims:
            status = claim.get("status") or {}
            holders = [each["uid"] for each in status.get("reservedFor") or () if each["uid"] in here]
            for device in (status.get("allocation") or {}).get("devices", {}).get("results", ()):
                if holders and device["pool"] == name:
                    held[int(device["device"].removeprefix("gpu-"))] = holders[0]

    def _gpu(self, name: str, index: int, pod: Object | None) -> Iterator[Sample]:
        works = pod is not None and pod["metadata"]["labels"].get("app") not in self.idle
        labels = {
            "Hostname": name,
            "UUID": gpu_uuid(name, index),
            "gpu": str(index),
            "device": f"nvidia{index}",
            "modelName": PRODUCT,
        }
        if pod is not None:
            labels |= {
                "namespace": pod["metadata"]["namespace"],
                "pod": pod["metadata"]["name"],
                "container": "main",
            }
        failed = index in self.faults.get(name, ())
        # Every GPU its own heat, so that none looks like a copy of another.
        noise = int(hashlib.sha256(gpu_uuid(name, index).encode()).hexdigest(), 16) % 7
        metrics = {
            "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.93 if works else 0.0,
            "DCGM_FI_DEV_GPU_UTIL": 97.0 if works else 0.0,
            "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.41 if works else 0.0,
            "DCGM_FI_PROF_DRAM_ACTIVE": 0.38 if works else 0.0,
            "DCGM_FI_DEV_MEM_COPY_UTIL": 44.0 if works else 0.0,
            "DCGM_FI_PROF_PCIE_TX_BYTES": 4.1e8 if works else 2.0e5,
            "DCGM_FI_PROF_PCIE_RX_BYTES": 3.9e8 if works else 2.0e5,
            "DCGM_FI_DEV_FB_USED": 61_440.0 if works else 3.0 if pod is None else 24_576.0,
            "DCGM_FI_DEV_FB_FREE": _MEMORY_MIB - (61_440.0 if works else 3.0 if pod is None else 24_576.0),
            "DCGM_FI_DEV_POWER_USAGE": (352.0 if works else 58.0) + noise,
            "DCGM_FI_DEV_GPU_TEMP": (61.0 if works else 31.0) + noise,
            "DCGM_FI_DEV_SM_CLOCK": 1410.0 if works else 210.0,
            "DCGM_FI_DEV_XID_ERRORS": 0.0,
            "DCGM_FI_DEV_ROW_REMAP_FAILURE": float(failed),
            "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": 0.0,
            "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": 0.0,
        }
        if name in self.renewed:
            labels["hostname"] = labels.pop("Hostname")
        for metric, value in metrics.items():
            renamed, factor = _FROM_4_9.get(metric, (metric, 1.0)) if name in self.renewed else (metric, 1.0)
            yield renamed, labels, value * factor


_FROM_4_9 = {
    **{old: (new, float(factor)) for old, (new, _, factor) in STEADY.items()},
    "DCGM_FI_DEV_MEM_COPY_UTIL": ("DCGM_FI_DEV_MEMORY_UTIL_RATIO", 0.01),
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": ("DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL", 1.0),
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": ("DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL", 1.0),
}
"""Name up to 4.8 → name from 4.9, and the factor to its unit."""

_PODS, _NODES, _CLAIMS = "/api/v1/pods", "/api/v1/nodes", "/apis/resource.k8s.io/v1/resourceclaims"


def _gpus(found: Object) -> int:
    """By the device plugin's count, or by what GPU Feature Discovery saw."""
    counted = found["status"].get("capacity", {}).get("nvidia.com/gpu")
    return int(counted or found["metadata"].get("labels", {}).get("nvidia.com/gpu.count", "0"))


def gpu_uuid(node_name: str, index: int) -> str:
    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{node_name}.{index}')}"


@contextmanager
def reporting(fleet: LiveFleet) -> Iterator[None]:
    """The pages follow the cluster until the block ends. Raises RuntimeError then where they could not."""
    stop = threading.Event()
    failed: list[Exception] = []

    def report() -> None:
        due = time.monotonic()
        while not stop.is_set():
            try:
                fleet.look()
            except Exception as error:  # noqa: BLE001 - told below; a thread's own is lost
                failed.append(error)
            due += LOOK_SECONDS
            stop.wait(max(due - time.monotonic(), 0))

    thread = threading.Thread(target=report, name="fleet", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)
    if failed:
        raise RuntimeError(f"the fleet could not look {len(failed)} times; first: {failed[0]}") from failed[0]
