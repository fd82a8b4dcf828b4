"""Places to keep Remediations, each opened as often as wanted, with a way to look under the store and to break it. What
one of them says of its methods holds for both."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cluster.api import Api, Object
from gpuwatch.act.remediations import PAUSE, RemediationStore
from gpuwatch.facts.frameworks.objects import ref_of
from gpuwatch.facts.model.decision import ActionKind, Evidence, Mode, Score
from gpuwatch.facts.model.remediation import (
    ObjectRef,
    Phase,
    Proposal,
    Remediation,
    RemediationId,
    Saved,
    Step,
    StepKind,
    Turn,
)
from gpuwatch.sources.kube.live import api_client
from gpuwatch.sources.kube.live_writer import LiveWriter
from gpuwatch.sources.store.custom_resources import API_VERSION, KIND, NODE_KIND
from kube.memory_cluster import MemoryCluster

T0 = datetime(2026, 3, 2, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
NAMESPACE = "gpuwatch-stores"
TEAM = "team-a"
REMEDIATIONS = f"/apis/gpuwatch.dev/v1alpha1/namespaces/{TEAM}/remediations"
NODE_REMEDIATIONS = "/apis/gpuwatch.dev/v1alpha1/noderemediations"
MERGE = "application/merge-patch+json"


NODE = ObjectRef("v1", "Node", "gpu-1", uid="b0de")
JOB = ObjectRef("batch/v1", "Job", "train", TEAM, "f00d")


class Killed(Exception):
    """The process ends here."""


class InMemory:
    """Custom resources in a MemoryCluster, which knows no definitions: it takes whatever is written."""

    def __init__(self) -> None:
        self.cluster = MemoryCluster([_pause({})])

    @contextlib.contextmanager
    def opened(self) -> Iterator[RemediationStore]:
        """A store of its own, as another process would have it."""
        yield RemediationStore(self.cluster.writer(), NAMESPACE)

    def raw(self, at: RemediationId) -> dict[str, Any]:
        """What stands there: 'spec' and 'status'."""
        namespace, _, name = at.rpartition("/")
        found = self.cluster.get(ObjectRef(API_VERSION, KIND if namespace else NODE_KIND, name, namespace))
        assert found is not None
        return found

    def write_raw(self, at: RemediationId, status: dict[str, Any]) -> None:
        """This status, past the store."""
        self.cluster.put({**self.raw(at), "status": status})

    def delete(self, at: RemediationId) -> None:
        """As a person does with kubectl."""
        self.cluster.delete(ref_of(self.raw(at)))

    def hold(self, at: RemediationId, finalizers: list[str]) -> None:
        """These finalizers and no other."""
        self.cluster.patch(ref_of(self.raw(at)), {"metadata": {"finalizers": finalizers}})

    @contextlib.contextmanager
    def killed_at(self, request: int) -> Iterator[RemediationStore]:
        """A store that ends with Killed where it would make this write, counted from 0."""
        yield RemediationStore(self.cluster.writer(lease_check=_ends_after(request)), NAMESPACE)

    def set_pause(self, data: dict[str, str] | None) -> None:
        """What somebody wrote into the ConfigMap; None: it is gone."""
        ref = ObjectRef("v1", "ConfigMap", PAUSE, NAMESPACE)
        self.cluster.remove(ref) if data is None else self.cluster.put(_pause(data))


def _ends_after(writes: int) -> Callable[[], None]:
    """A lease check that ends the process before its nth write, counted from 0."""
    left = writes

    def check() -> None:
        nonlocal left
        if not left:
            raise Killed
        left -= 1

    return check


def _pause(data: dict[str, str]) -> Object:
    metadata = {"name": PAUSE, "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


class InCluster:
    """Custom resources on a real API server."""

    def __init__(self, api: Api, kubeconfig: Path) -> None:
        self.api = api
        self.kubeconfig = kubeconfig

    @contextlib.contextmanager
    def opened(self) -> Iterator[RemediationStore]:
        with api_client(self.kubeconfig) as client:
            yield RemediationStore(LiveWriter(client), NAMESPACE)

    def raw(self, at: RemediationId) -> dict[str, Any]:
        return self.api.get(path_of(at))

    def delete(self, at: RemediationId) -> None:
        assert self.api.answer("DELETE", path_of(at)).ok

    def hold(self, at: RemediationId, finalizers: list[str]) -> None:
        body = {"metadata": {"finalizers": finalizers}}
        assert self.api.answer("PATCH", path_of(at), body, content_type=MERGE).ok

    @contextlib.contextmanager
    def killed_at(self, request: int) -> Iterator[RemediationStore]:
        with api_client(self.kubeconfig) as client:
            yield RemediationStore(LiveWriter(client, lease_check=_ends_after(request)), NAMESPACE)

    def set_pause(self, data: dict[str, str] | None) -> None:
        path = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
        self.api.answer("DELETE", f"{path}/{PAUSE}")
        if data is not None:
            assert self.api.answer("POST", path, _pause(data)).ok

    def clear(self) -> None:
        for path in (REMEDIATIONS, NODE_REMEDIATIONS):
            let_go(self.api, path)
        self.set_pause({})


Place = InMemory | InCluster


def let_go(api: Api, path: str) -> None:
    """All of them are gone, though no gpuwatch runs that would take its finalizer off."""
    for each in api.get(path)["items"]:
        metadata = each["metadata"]
        named = f"{metadata.get('namespace', '')}/{metadata['name']}".removeprefix("/")
        api.answer("PATCH", path_of(named), {"metadata": {"finalizers": None}}, content_type=MERGE)
    assert api.answer("DELETE", path).ok


def namespace(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def path_of(at: RemediationId) -> str:
    namespace, _, name = at.rpartition("/")
    base = "/apis/gpuwatch.dev/v1alpha1"
    return f"{base}/namespaces/{namespace}/remediations/{name}" if namespace else f"{base}/noderemediations/{name}"


def table(api: Api, path: str) -> tuple[list[str], list[dict[str, Any]]]:
    """As kubectl asks for it: the columns, and each row by them."""
    found = api._session.get(
        f"{api._url}{path}", headers={"Accept": "application/json;as=Table;g=meta.k8s.io;v=v1"}, timeout=30
    ).json()
    columns = [column["name"] for column in found["columnDefinitions"]]
    return columns, [dict(zip(columns, row["cells"], strict=True)) for row in found["rows"]]


def proposal(target: str = "node/gpu-1", at: datetime = T0, **changes: Any) -> Proposal:
    values: dict[str, Any] = {
        "action": ActionKind.TAINT_NODE,
        "target": target,
        "reason": "GPU 3 of gpu-1 has a row that could not be remapped.",
        "findings": ("row_remap:device/GPU-1",),
        "detectors": ("row_remap",),
        "devices": ("GPU-1",),
        "pods": (),
        "pod_uids": (),
        "nodes": ("gpu-1",),
        "objects": (NODE,),
        "score": Score(
            gained_gpu_hours=24.0,
            disrupted_gpu_hours=3.5,
            pool_gpu_hours=192.0,
            confidence_ratio=0.97,
            horizon_hours=24.0,
        ),
        "mode": Mode.SUGGEST,
        "created_at": at,
        "expires_at": at + DAY,
        "pool": "a100",
        "gpus": 8,
        "evidence": (
            Evidence(signal="row_remap_failed_state", value=1.0, comparison="==", bound=1.0, at=at),
            Evidence(signal="xid", value="64", window_seconds=900, peers_median=0.0, peers=7),
        ),
    }
    return Proposal(**{**values, **changes})


def remediation(name: str = "taint-gpu-1", **changes: Any) -> Remediation:
    return Remediation(name=name, proposal=changes.pop("proposal", None) or proposal(), **changes)


def of_team(name: str = "release-train", **changes: Any) -> Remediation:
    """One for a workload, in its Namespace."""
    return Remediation(name=name, proposal=changes.pop("proposal", None) or gang_proposal(), **changes)


def gang_proposal(namespace: str = TEAM, **changes: Any) -> Proposal:
    values: dict[str, Any] = {
        "action": ActionKind.RELEASE_GANG,
        "reason": "Its 8 GPUs were idle for 9 hours.",
        "pods": (f"{namespace}/train-0", f"{namespace}/train-1"),
        "pod_uids": ("c0ffee", "decaf"),
        "objects": (replace(JOB, namespace=namespace),),
        "namespace": namespace,
    }
    return proposal(f"workload/Job/{namespace}/train", **{**values, **changes})


def course(node: ObjectRef = NODE) -> dict[str, Any]:
    """Everything that gpuwatch writes, away from its defaults."""
    return {
        "phase": Phase.VERIFYING,
        "steps": (
            Step(kind=StepKind.NOTIFY, target=node, begun_at=T0, done_at=T0 + MINUTE, attempts=1),
            Step(
                kind=StepKind.TAINT,
                target=node,
                parameters={"key": "gpuwatch.dev/degraded", "effect": "NoSchedule", "a_b": "cD"},
                attempts=2,
                error="409",
            ),
        ),
        "step": 1,
        "saved": (Saved(target=node, path="/spec/taints", before="", after='[{"key":"gpuwatch.dev/degraded"}]'),),
        "history": (Turn(T0, Phase.PROPOSED, "found"), Turn(T0 + MINUTE, Phase.VERIFYING, "tainted")),
        "next_at": T0 + 5 * MINUTE,
        "deadline_at": T0 + 30 * MINUTE,
        "attempts": 3,
        "verified": {"taint_stands": True, "podsGone": False},
        "clean_since": T0 + 2 * MINUTE,
        "undo_to": Phase.EXPIRED,
    }
