"""Where the pause and the profiles are kept, who decides, and what is known of each detector."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from gpuwatch.execute.precision import poor, precision
from gpuwatch.kube.writer import ClusterWriter, WriteError
from gpuwatch.model.decision import Mode
from gpuwatch.model.remediation import Remediation
from gpuwatch.model.weekly import DetectorRecord
from gpuwatch.plan.policy import PlanPolicy
from gpuwatch.settings import Settings

NAMESPACE = "gpuwatch"
_WHO = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}


def namespace_of(settings: Settings) -> str:
    """Of the Lease and of the pause: set, or that of this Pod, or the one that deploy/ makes."""
    return settings.run.namespace or os.environ.get("POD_NAMESPACE", "") or NAMESPACE


def state_of(settings: Settings) -> Path:
    """The file of the profiles of a process that runs."""
    return settings.state or settings.run.folder / "state.sqlite"


def who_is_it(writer: ClusterWriter) -> str:
    """The name by which the API server knows whoever writes here; '' where it does not say."""
    try:
        answer = writer.create({**_WHO, "metadata": {"name": ""}})
    except WriteError:
        return ""
    return str(((answer.get("status") or {}).get("userInfo") or {}).get("username", ""))


def observes(policy: PlanPolicy) -> bool:
    """Does no setting of a mode allow more than to observe?"""
    return all(mode is Mode.OBSERVE for mode in (*policy.modes.values(), *(scope.mode for scope in policy.scopes)))


def detector_records(known: Iterable[Remediation]) -> tuple[DetectorRecord, ...]:
    """What was measured of each detector, for the weekly report."""
    return tuple(
        DetectorRecord(
            detector=name,
            right=each.successes,
            wrong=each.failures,
            lower_ratio=each.lower_ratio,
            upper_ratio=each.upper_ratio,
        )
        for name, each in precision(known).items()
    )


def poor_detectors(known: Iterable[Remediation], bound: float) -> dict[str, float]:
    """What the plan is told of the detectors that may only suggest: the lower bound of their measured precision."""
    return dict(poor(precision(known), bound))
