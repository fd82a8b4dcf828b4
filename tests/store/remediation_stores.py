"""Places to keep Remediations, each opened as often as wanted, with a way to look under the store and to break it."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from cluster.api import Api, Object
from deploy.manifests import CRDS, apply, documents
from gpuwatch.kube.live import api_client
from gpuwatch.kube.live_writer import LiveWriter
from gpuwatch.model.decision import ActionKind, Evidence, Mode, Score
from gpuwatch.model.remediation import ObjectRef, Phase, Proposal, Remediation, Saved, Step, StepKind, Turn
from gpuwatch.store.kubernetes import PAUSE, KubernetesRemediations
from gpuwatch.store.remediation_sqlite import SqliteRemediations
from gpuwatch.store.remediations import RemediationStore
from parts.processes import wait_until

T0 = datetime(2026, 3, 2, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
NAMESPACE = "gpuwatch-stores"
REMEDIATIONS = "/apis/gpuwatch.dev/v1alpha1/remediations"
MERGE = "application/merge-patch+json"


class Killed(Exception):
    """The process ends here."""


class Place(Protocol):
    def opened(self) -> contextlib.AbstractContextManager[RemediationStore]:
        """A store of its own, as another process would have it."""

    def raw(self, name: str) -> dict[str, Any]:
        """What stands there: 'spec' and 'status'."""

    def of_a_later_version(self) -> contextlib.AbstractContextManager[None]:
        """Meanwhile the place takes whatever status is written there, as one that a later version made may."""

    def write_raw(self, name: str, status: dict[str, Any]) -> None:
        """This status, past the store."""

    def killed_at(self, request: int) -> contextlib.AbstractContextManager[RemediationStore]:
        """A store that ends with Killed where it would make this write, counted from 0."""

    def break_pause(self, text: str) -> None:
        """Somebody's own idea of a pause."""


class InFile:
    """An SQLite file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextlib.contextmanager
    def opened(self) -> Iterator[SqliteRemediations]:
        with SqliteRemediations.open(self.path) as store:
            yield store

    def raw(self, name: str) -> dict[str, Any]:
        with contextlib.closing(sqlite3.connect(self.path)) as db:
            spec, status = db.execute("SELECT spec, status FROM remediation WHERE name = ?", (name,)).fetchone()
        return {"spec": json.loads(spec), "status": json.loads(status)}

    def of_a_later_version(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def write_raw(self, name: str, status: dict[str, Any]) -> None:
        with contextlib.closing(sqlite3.connect(self.path)) as db, db:
            db.execute("UPDATE remediation SET status = ? WHERE name = ?", (json.dumps(status), name))

    @contextlib.contextmanager
    def killed_at(self, request: int) -> Iterator[SqliteRemediations]:
        with SqliteRemediations.open(self.path) as store:
            store._db = _Ending(store._db, request)  # type: ignore[assignment]
            yield store

    def break_pause(self, text: str) -> None:
        with contextlib.closing(sqlite3.connect(self.path)) as db, db:
            db.execute("UPDATE pause SET body = ?", (text,))


class _Ending:
    """A connection that ends before its nth statement that writes or commits, as a killed process does."""

    def __init__(self, db: sqlite3.Connection, writes: int) -> None:
        self._db = db
        self._left = writes

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        if statement.startswith(("INSERT", "UPDATE", "DELETE", "COMMIT")):
            if not self._left:
                raise Killed
            self._left -= 1
        return self._db.execute(statement, *values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)


class InCluster:
    """Custom resources on a real API server."""

    def __init__(self, api: Api, kubeconfig: Path) -> None:
        self.api = api
        self.kubeconfig = kubeconfig

    @contextlib.contextmanager
    def opened(self) -> Iterator[KubernetesRemediations]:
        with api_client(self.kubeconfig) as client:
            yield KubernetesRemediations(LiveWriter(client), NAMESPACE)

    def raw(self, name: str) -> dict[str, Any]:
        return self.api.get(f"{REMEDIATIONS}/{name}")

    @contextlib.contextmanager
    def of_a_later_version(self) -> Iterator[None]:
        """The definition takes anything as status."""
        shipped, loose = _definition(), _definition()
        anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        loose["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"] = anything
        probe: Object = {"apiVersion": "gpuwatch.dev/v1alpha1", "kind": "Remediation", "metadata": {"name": "probe"}}
        with self.opened() as store:
            store.create(Remediation(name="probe", proposal=proposal()))

        def takes_anything() -> bool:
            """A changed definition counts a moment later."""
            path = f"{REMEDIATIONS}/probe/status?dryRun=All"
            return self.api.answer("PATCH", path, {"status": {"phase": "Resting"}}, content_type=MERGE).ok

        apply(self.api, [loose])
        wait_until(takes_anything, lambda: "the later definition does not count")
        self.api.delete(probe)
        try:
            yield
        finally:
            self.clear()
            with self.opened() as store:
                store.create(Remediation(name="probe", proposal=proposal()))
            apply(self.api, [shipped])
            wait_until(lambda: not takes_anything(), lambda: "the shipped definition does not count")

    def write_raw(self, name: str, status: dict[str, Any]) -> None:
        answer = self.api.answer("PUT", f"{REMEDIATIONS}/{name}/status", {**self.raw(name), "status": status})
        assert answer.ok, answer.text

    @contextlib.contextmanager
    def killed_at(self, request: int) -> Iterator[KubernetesRemediations]:
        left = request

        def lease_check() -> None:
            nonlocal left
            if not left:
                raise Killed
            left -= 1

        with api_client(self.kubeconfig) as client:
            yield KubernetesRemediations(LiveWriter(client, lease_check=lease_check), NAMESPACE)

    def break_pause(self, text: str) -> None:
        path = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
        body: Object = {"metadata": {"name": PAUSE}, "data": {"paused": text}}
        assert self.api.answer("POST", path, {"apiVersion": "v1", "kind": "ConfigMap", **body}).ok

    def clear(self) -> None:
        assert self.api.answer("DELETE", REMEDIATIONS).ok
        self.api.answer("DELETE", f"/api/v1/namespaces/{NAMESPACE}/configmaps/{PAUSE}")


def _definition() -> Object:
    (found,) = (each for each in documents(CRDS) if each["spec"]["names"]["kind"] == "Remediation")
    return found


def proposal(target: str = "node/gpu-1", at: datetime = T0, **changes: Any) -> Proposal:
    values: dict[str, Any] = {
        "action": ActionKind.TAINT_NODE,
        "target": target,
        "reason": "GPU 3 of gpu-1 has a row that could not be remapped.",
        "findings": ("row_remap:device/GPU-1",),
        "detectors": ("row_remap",),
        "devices": ("GPU-1",),
        "pods": ("team-a/train-0",),
        "pod_uids": ("c0ffee",),
        "nodes": ("gpu-1",),
        "objects": (ObjectRef("v1", "Node", "gpu-1", uid="b0de"),),
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


def course() -> dict[str, Any]:
    """Everything that gpuwatch writes, away from its defaults."""
    node = ObjectRef("v1", "Node", "gpu-1", uid="b0de")
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
